/* SPDX-License-Identifier: Apache-2.0
 *
 * What a load reads: the files of every table, from a model directory or from models[] of the
 * configuration, checked against their manifest. Used by one thread at a time.
 */
#ifndef HPS_SERVER_LOAD_SOURCE_H
#define HPS_SERVER_LOAD_SOURCE_H

#include <limits.h>

#include "base/rows/modeldir.h"
#include "cache/version/version.h"
#include "config/config.h"
#include "config/manifest.h"
#include "server/load/table_order.h"

struct hps_source_table {
    struct hps_model_table files;
    uint32_t dim;                /* that the configuration demands; 0: what the files say */
    const float *default_values; /* borrowed from the configuration; NULL: zeros */
    uint32_t n_default_values;   /* 1: the value of a whole row; else dim */
    enum hps_dtype file_dtype;   /* as its manifest says; 0: it does not */
    enum hps_dtype row_dtype;    /* that its rows are to be stored as; 0: that of the files */
    struct hps_fingerprint print;
    uint64_t place; /* of the last sort */
};

struct hps_source {
    struct hps_roots *roots; /* that its files are read below */
    char *text;              /* for people: the directory, or the configuration's name */
    char *dir;               /* NULL when the tables lie in several places */
    struct hps_source_table *tables;
    uint32_t n_tables;
    struct hps_manifest manifest;
    struct hps_fingerprint print;
    struct hps_fingerprint canonical; /* the same by the paths as hps_source_canonical has them */
};

/* `text` of a source of hps_source_open_config with several tables. */
#define HPS_SOURCE_CONFIG "models[]"

/* The tables of a directory, in the manifest's order where there is one, else by name. Default rows
 * and row_dtype come from `model` (may be NULL) where it has a table of that name. Nothing is read
 * that is not below one of `roots`, whatever links are in the directory; takes `roots`, on an error
 * too (NULL: any file may be read). out_source is owned by the caller: hps_source_close. */
hps_status hps_source_open_dir(struct hps_roots *roots, const char *dir,
                               const struct hps_config_model *model, struct hps_source *out_source,
                               struct hps_error *err) HPS_MUST_CHECK;
/* How rows are to be stored, by whoever asks for a load. */
struct hps_row_wish {
    bool given;           /* false: as models[] says, else as the files have them */
    enum hps_dtype dtype; /* 0: that of the files */
};

/* A table and where its files are, as hps_model_table_open takes them. */
struct hps_source_named {
    const char *name;
    const char *path;
    struct hps_row_wish row_dtype;
};

/* Tables that lie anywhere, under the names that they are to have, in this order. Widths, default
 * rows and, where none is given, row_dtype come from `model` (may be NULL). A manifest beside them
 * is not read, as for models[]. takes `roots`, as above. error   also INVALID: no table, too many,
 * a name twice */
hps_status hps_source_open_tables(struct hps_roots *roots, const struct hps_source_named *tables,
                                  size_t n_tables, const struct hps_config_model *model,
                                  struct hps_source *out_source, struct hps_error *err)
    HPS_MUST_CHECK;
/* The tables of models[], in its order. A path that stands there is the operator's own word, and
 * followed wherever it leads; what lies in a directory so named must be below one of `model_roots`,
 * or of the directory that the path leads into. */
hps_status hps_source_open_config(const struct hps_strings *model_roots,
                                  const struct hps_config_model *model,
                                  struct hps_source *out_source, struct hps_error *err)
    HPS_MUST_CHECK;
/* Store the rows of all its tables so, whatever it has found. */
void hps_source_set_row_dtype(struct hps_source *source, enum hps_dtype dtype);
/* Absolute, without links in the directories above the last name: the same for whoever names a
 * file. False: no such directory; out_path is `path` then. `path` need not exist. */
bool hps_source_canonical(const char *path, char out_path[PATH_MAX]);
/* Are the files of the table those that were there at the open? PRECONDITION names the table. */
hps_status hps_source_check_unchanged(const struct hps_source_table *table, struct hps_error *err)
    HPS_MUST_CHECK;
/* Put the tables into an order; those that it lacks come behind the others, among themselves as
 * they were. */
void hps_source_sort(struct hps_source *source, const struct hps_table_order *order);
void hps_source_close(struct hps_source *source); /* a zeroed one is legal */

#endif

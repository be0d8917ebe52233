/* SPDX-License-Identifier: Apache-2.0
 *
 * The files of every table that a load reads, from a model directory or from models[], checked
 * against their manifest. Used by one thread at a time.
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
    uint32_t dim;                /* configured width; 0: as in the files */
    const float *default_values; /* borrowed from the configuration; NULL: zeros */
    uint32_t n_default_values;   /* 1: one value for the whole row; else dim */
    enum hps_dtype file_dtype;   /* from the manifest; 0: not given */
    enum hps_dtype row_dtype;    /* type of stored rows; 0: as in the files */
    struct hps_fingerprint print;
    uint64_t place; /* position in the last sort */
};

struct hps_source {
    struct hps_roots *roots; /* the files are read below these */
    char *text;              /* for messages: the directory, or the name in the configuration */
    char *dir;               /* NULL: the tables are in several places */
    struct hps_source_table *tables;
    uint32_t n_tables;
    struct hps_manifest manifest;
    struct hps_fingerprint print;
    struct hps_fingerprint canonical; /* fingerprint by the paths of hps_source_canonical */
};

/* `text` of hps_source_open_config if the model has several tables. */
#define HPS_SOURCE_CONFIG "models[]"

/* Open the tables of a directory, in the order of its manifest, or by name without one. Default
 * rows and row_dtype come from the table of that name in `model` (may be NULL). Only files below
 * one of `roots` are read, after links are followed; NULL: any file. takes `roots`, also on
 * failure. owner of out_source: the caller, hps_source_close. */
hps_status hps_source_open_dir(struct hps_roots *roots, const char *dir,
                               const struct hps_config_model *model, struct hps_source *out_source,
                               struct hps_error *err) HPS_MUST_CHECK;
/* The row type that a load request asks to store. */
struct hps_row_wish {
    bool given;           /* false: from models[], else as in the files */
    enum hps_dtype dtype; /* 0: as in the files */
};

/* A table and its files, as for hps_model_table_open. */
struct hps_source_named {
    const char *name;
    const char *path;
    struct hps_row_wish row_dtype;
};

/* Open named tables in any place, in this order. Widths, default rows and, if not given, row_dtype
 * come from `model` (may be NULL). No manifest is read. takes `roots`, as above.
 * error   also INVALID: no table, too many, or a name twice */
hps_status hps_source_open_tables(struct hps_roots *roots, const struct hps_source_named *tables,
                                  size_t n_tables, const struct hps_config_model *model,
                                  struct hps_source *out_source, struct hps_error *err)
    HPS_MUST_CHECK;
/* Open the tables of a models[] entry, in its order. The operator chose each path, so links in it
 * may lead anywhere. Files inside a named directory must be below one of `model_roots`, or below
 * the directory that the path leads to. */
hps_status hps_source_open_config(const struct hps_strings *model_roots,
                                  const struct hps_config_model *model,
                                  struct hps_source *out_source, struct hps_error *err)
    HPS_MUST_CHECK;
/* Store the rows of all tables in this type; overrides models[] and `tables`. */
void hps_source_set_row_dtype(struct hps_source *source, enum hps_dtype dtype);
/* Make a path absolute, and resolve links in its directories, but not in the last name. So all
 * names of a file's directory give the same path. `path` need not exist. False: no such directory;
 * out_path is then `path`. */
bool hps_source_canonical(const char *path, char out_path[PATH_MAX]);
/* Whether the files of the table are unchanged since the open. PRECONDITION names the table. */
hps_status hps_source_check_unchanged(const struct hps_source_table *table, struct hps_error *err)
    HPS_MUST_CHECK;
/* Sort the tables by an order. Tables that are not in it come last, in their present order. */
void hps_source_sort(struct hps_source *source, const struct hps_table_order *order);
void hps_source_close(struct hps_source *source); /* may be zeroed */

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds and opens the files of every table that a load reads. Either all files are in a model
 * directory, with or without a manifest.json. Or each table has its own path, from the request or
 * from a models[] entry. One thread at a time.
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
    uint32_t dim;                 /* configured width; 0: as in the files */
    const float *default_values;  /* borrowed from the configuration; NULL: zeros */
    uint32_t n_default_values;    /* 1: one value for all columns; else one per column */
    enum hps_dtype file_dtype;    /* row type of the files, from the manifest; 0: not given */
    enum hps_dtype row_dtype;     /* type of the stored rows; 0: as in the files */
    struct hps_fingerprint print; /* of the files of this table */
    uint64_t place;               /* used by hps_source_sort */
};

struct hps_source {
    struct hps_roots *roots; /* files are read only below these directories; NULL: anywhere */
    char *text;              /* for messages: a directory, a path, or HPS_SOURCE_CONFIG */
    char *dir;               /* the model directory; NULL: the tables have their own paths */
    struct hps_source_table *tables;
    uint32_t n_tables;
    struct hps_manifest manifest;     /* of the model directory; empty if there is none */
    struct hps_fingerprint print;     /* of all files, by their paths as given */
    struct hps_fingerprint canonical; /* of all files, by their paths of hps_source_canonical */
};

/* The value of hps_source.text if hps_source_open_config has opened several tables. */
#define HPS_SOURCE_CONFIG "models[]"

/* Open the tables of a model directory. Their order is that of its manifest.json or, without a
 * manifest, the order of names. A manifest must name exactly the tables in the directory, and the
 * file sizes in it must be right. Widths, default rows and row types come from the table of the
 * same name in `model` (may be NULL). The files, and the targets of symbolic links, must be below
 * one of `roots`. If `roots` is NULL, they may be anywhere. Takes `roots`, also on failure. The
 * caller closes *out_source with hps_source_close. May block. */
hps_status hps_source_open_dir(struct hps_roots *roots, const char *dir,
                               const struct hps_config_model *model, struct hps_source *out_source,
                               struct hps_error *err) HPS_MUST_CHECK;
/* The type in which a load request wants rows to be stored. */
struct hps_row_wish {
    /* False: use the type in models[] or, if there is none, the type of the files. */
    bool given;
    enum hps_dtype dtype; /* 0: the type of the files */
};

/* A table and its files, as for hps_model_table_open. */
struct hps_source_named {
    const char *name;
    const char *path;
    struct hps_row_wish row_dtype;
};

/* Open named tables, each with its own path, in this order. Widths and default rows come from
 * `model` (may be NULL). The row type of a table is its row_dtype or, if that is not given, the
 * type in `model`. No manifest is read. May block. For `roots` and *out_source the rules of
 * hps_source_open_dir apply.
 * error   INVALID: there is no table, there are too many, or two have the same name; others as
 *         hps_source_open_dir */
hps_status hps_source_open_tables(struct hps_roots *roots, const struct hps_source_named *tables,
                                  size_t n_tables, const struct hps_config_model *model,
                                  struct hps_source *out_source, struct hps_error *err)
    HPS_MUST_CHECK;
/* Open the tables of a models[] entry, in the order of the entry. The operator chose the path of
 * each table, so symbolic links in these paths may lead anywhere. If a file of a table is
 * itself a symbolic link, its target must be below a permitted directory. The permitted
 * directories are `model_roots` and, for each path in the entry, the directory that contains the
 * target of the path. May block. The caller closes *out_source with hps_source_close. */
hps_status hps_source_open_config(const struct hps_strings *model_roots,
                                  const struct hps_config_model *model,
                                  struct hps_source *out_source, struct hps_error *err)
    HPS_MUST_CHECK;
/* Replace row_dtype of all tables by `dtype`. 0: as in the files. */
void hps_source_set_row_dtype(struct hps_source *source, enum hps_dtype dtype);
/* Make a path absolute, and resolve links in its directory part, but not in its last component. Two
 * paths of one file give the same result if they differ only in the directory part. The file need
 * not exist, but its directory must. False: the directory does not exist, or the path is too long;
 * out_path is then `path`. */
bool hps_source_canonical(const char *path, char out_path[PATH_MAX]);
/* Return OK if the files of the table have not changed since hps_source_open_*.
 * error   PRECONDITION: a file changed; the text has its path; errors of reading its properties */
hps_status hps_source_check_unchanged(const struct hps_source_table *table, struct hps_error *err)
    HPS_MUST_CHECK;
/* Sort the tables into the order `order`. Tables that are not in `order` come last, in their
 * present order. */
void hps_source_sort(struct hps_source *source, const struct hps_table_order *order);
void hps_source_close(struct hps_source *source); /* *source may be zeroed */

#endif

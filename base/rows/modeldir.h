/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds the files of each table, in a model directory or from one path per table as in ps.json.
 * Computes the fingerprint that detects changes of those files. Any thread.
 *
 *   T/ with key and emb_vector     one HugeCTR table T
 *   T.npy                          table T, the row number is the key
 *   T.keys.npy + T.rows.npy        table T
 *   T.scale_bias.npy               with either: scales and biases, if the rows are uint8
 *   config.json + feature_<i>.npy  a checkpoint of NVIDIA DeepLearningExamples' DLRM and DCNv2
 */
#ifndef HPS_BASE_ROWS_MODELDIR_H
#define HPS_BASE_ROWS_MODELDIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/rows/roots.h"
#include "base/rows/rowfile.h"
#include "base/status.h"

enum { HPS_MODEL_NAME_BYTES_MAX = 120, HPS_MODEL_TABLES_MAX = 4096 };

/* Names of models and tables: [a-zA-Z0-9_-]{1,120}, as in HPS. */
bool hps_model_name_valid(const char *name);
/* Labels of versions follow HPS_LABEL_RULE: never a number, and usable in a path without escapes.
 */
bool hps_label_valid(const char *label);
#define HPS_LABEL_RULE \
    "1 to 120 of a-z A-Z 0-9 . _ -, beginning with a letter, a digit or _, and not digits alone"

struct hps_model_table {
    const struct hps_roots *roots; /* its files must be below them; borrowed; NULL: any path */
    char *name;
    enum hps_row_form form; /* never AUTO */
    char *path;             /* for hps_row_reader_open; T.rows.npy of a pair */
};

struct hps_model_dir {
    const struct hps_roots *roots; /* borrowed, also by its tables */
    char *path;
    struct hps_model_table *tables; /* sorted by name, numbers within by value: t_2 before t_10 */
    size_t n_tables;
    char *manifest_path; /* <path>/manifest.json; NULL: none */
    char *dle_path;      /* <path>/config.json of a DLE checkpoint; NULL: none */
};

/* List the tables of a directory. Other files and hidden ones are ignored, except an entry that
 * leads out of `roots`: it could be a table. The result borrows `roots`; NULL: any path is allowed.
 *
 * error   NOT_FOUND, PERMISSION (also: not below the roots), IO, NO_MEMORY; INVALID: no table,
 *         one table in two forms, half of a pair or of a HugeCTR directory, scales without rows,
 *         a gap in feature_<i>, a bad name, too many tables
 */
hps_status hps_model_dir_open(const char *path, const struct hps_roots *roots,
                              struct hps_model_dir *out_dir, struct hps_error *err) HPS_MUST_CHECK;
void hps_model_dir_close(struct hps_model_dir *dir); /* no effect if all zero */

/* One table given by its path: a HugeCTR directory, a .npy, or either file (or the common prefix)
 * of a pair. Roots and errors as above. */
hps_status hps_model_table_open(const char *name, const char *path, const struct hps_roots *roots,
                                struct hps_model_table *out_table, struct hps_error *err)
    HPS_MUST_CHECK;
void hps_model_table_close(struct hps_model_table *table); /* no effect if all zero */

struct hps_fingerprint {
    uint64_t hash; /* of names, paths, sizes and times (ns) of the files, in order of tables */
    char text[17]; /* hash in hexadecimal */
    uint64_t n_files;
    uint64_t bytes;
    uint64_t mtime_ms_oldest; /* Unix time of the oldest file */
};

/* error   NOT_FOUND, PERMISSION, IO, NO_MEMORY */
hps_status hps_model_fingerprint(const struct hps_model_table *tables, size_t n_tables,
                                 struct hps_fingerprint *out_print, struct hps_error *err)
    HPS_MUST_CHECK;

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds the files of each table, in a model directory or from one path per table as in ps.json.
 * Computes the fingerprint that detects changes of these files. Any thread. A model directory has
 * the files of each table T in one of these forms:
 *
 *   T/key, T/emb_vector            HugeCTR form
 *   T.npy                          rows; the row number is the key
 *   T.keys.npy, T.rows.npy         a pair: keys and rows
 *   *.safetensors                  each tensor [rows, dim] is a table. Characters of its name that
 *                                  names of tables may not have become '_'
 *
 * If T.npy or T.rows.npy has INT8 rows (uint8), T.scale_bias.npy has their scales and biases.
 *
 * A checkpoint of the models DLRM and DCNv2 in NVIDIA DeepLearningExamples (DLE) has config.json
 * and one feature_<i>.npy for each table.
 */
#ifndef HPS_BASE_ROWS_MODELDIR_H
#define HPS_BASE_ROWS_MODELDIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/rows/roots.h"
#include "base/rows/rowfile.h"
#include "base/rows/safetensors.h"
#include "base/status.h"

enum { HPS_MODEL_NAME_BYTES_MAX = 120, HPS_MODEL_TABLES_MAX = 4096 };

/* Whether `name` is a valid name of a model or table: [a-zA-Z0-9_-]{1,120}, as in HPS. */
bool hps_model_name_valid(const char *name);
/* Whether `label` is a valid label of a version (HPS_LABEL_RULE). Such a label cannot be confused
 * with a version number, and needs no escapes in a URL path. */
bool hps_label_valid(const char *label);
#define HPS_LABEL_RULE \
    "1 to 120 of a-z A-Z 0-9 . _ -, beginning with a letter, a digit or _, and not digits alone"

struct hps_model_table {
    const struct hps_roots *roots; /* the files must be below these; borrowed; NULL: any path */
    char *name;
    enum hps_row_form form; /* never AUTO */
    char *path;             /* path for hps_row_reader_open; for a pair T.rows.npy, for
                             * a tensor F.safetensors:TENSOR */
};

struct hps_model_dir {
    const struct hps_roots *roots; /* borrowed, also by its tables */
    char *path;
    struct hps_model_table *tables; /* sorted by name, with numbers by value: t_2 before t_10 */
    size_t n_tables;
    char *manifest_path; /* <path>/manifest.json; NULL: the file does not exist */
    char *dle_path;      /* <path>/config.json of a DLE checkpoint; NULL: not such a checkpoint */
};

/* List the tables of a directory, or of one safetensors file. Hidden files, and files in none of
 * the forms above, are ignored. But a link that leads out of `roots` is an error, because it could
 * be a table. The result borrows `roots`; if NULL, any path is allowed.
 *
 * error   NOT_FOUND, PERMISSION (also: not below the roots), IO, NO_MEMORY; INVALID: no table,
 *         a table in two forms, only one of the two files of a pair or HugeCTR table, scales
 *         without rows, a missing number among feature_<i> or the parts of a safetensors file, a
 * bad name, too many tables
 */
hps_status hps_model_dir_open(const char *path, const struct hps_roots *roots,
                              struct hps_model_dir *out_dir, struct hps_error *err) HPS_MUST_CHECK;
void hps_model_dir_close(struct hps_model_dir *dir); /* no effect if all zero */

/* Find one table by its path: a HugeCTR directory, a .npy file, F.safetensors:TENSOR, or a
 * pair, given by one of its files or by their common prefix. Roots and errors as
 * hps_model_dir_open. */
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

/* Compute the fingerprint of the files of tables[n_tables].
 * error   NOT_FOUND, PERMISSION, IO, NO_MEMORY */
hps_status hps_model_fingerprint(const struct hps_model_table *tables, size_t n_tables,
                                 struct hps_fingerprint *out_print, struct hps_error *err)
    HPS_MUST_CHECK;

#endif

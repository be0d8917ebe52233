/* SPDX-License-Identifier: Apache-2.0
 *
 * manifest.json of a model directory: a description of the files by their writer, which is checked
 * if present. config.json of a DLE checkpoint is read into the same structure. Any thread.
 *
 *   {"format": "hpsd-manifest", "version": 1, "lineage": "run7",
 *    "tables": [{"name": "items", "dim": 128, "rows": 1000, "dtype": "fp32",
 *                "files": [{"name": "items.npy", "bytes": 512128, "crc32c": "1a2b3c4d"}]}],
 *    "start_positions": [{"cluster": "x", "topic": "hps_et.m.items", "partition": 0,
 *                          "offset": 17}]}
 *
 * Only "tables" and their names are required. Unknown keys are ignored. "dtype" is the type of the
 * rows in the files, by the names of hps_dtype_name. Without it, rows of bf16 look like other
 * arrays of uint16 or <V2.
 */
#ifndef HPS_CONFIG_MANIFEST_H
#define HPS_CONFIG_MANIFEST_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/rows/modeldir.h"
#include "base/rows/rowfile.h"
#include "base/status.h"
#include "base/types.h"

struct hps_manifest_file {
    char *name; /* relative to the directory of the manifest, never above it */
    uint64_t bytes;
    uint32_t crc32c;
    bool bytes_known;
    bool crc32c_known;
};

struct hps_manifest_table {
    char *name;
    uint32_t dim;         /* 0: not given */
    enum hps_dtype dtype; /* 0: not given */
    uint64_t n_rows;
    bool n_rows_known;
    struct hps_manifest_file *files;
    size_t n_files;
};

struct hps_manifest_position {
    char *cluster; /* "": not given */
    char *topic;
    int32_t partition;
    int64_t offset; /* of the first record that is not in the files */
};

struct hps_manifest {
    const char *file; /* name of the file, for messages; NULL: there was no file */
    char *lineage;    /* NULL: not given */
    struct hps_manifest_table *tables;
    size_t n_tables;
    struct hps_manifest_position *positions;
    size_t n_positions;
};

/* Read manifest.json. error NOT_FOUND, PERMISSION, IO, NO_MEMORY; INVALID: names file and line or
 * field */
hps_status hps_manifest_read(const char *path, struct hps_manifest *out_manifest,
                             struct hps_error *err) HPS_MUST_CHECK;
/* Read config.json of a DLE checkpoint ("categorical_cardinalities", "embedding_dim") as a manifest
 * of tables feature_0 ... Errors as above. */
hps_status hps_manifest_read_dle(const char *path, struct hps_manifest *out_manifest,
                                 struct hps_error *err) HPS_MUST_CHECK;
/* Read the description of `dir`, below its roots: manifest.json, else the DLE config.json, else
 * none (n_tables 0). Errors as above. */
hps_status hps_manifest_open(const struct hps_model_dir *dir, struct hps_manifest *out_manifest,
                             struct hps_error *err) HPS_MUST_CHECK;
void hps_manifest_close(struct hps_manifest *manifest); /* no effect if all zero */

const struct hps_manifest_table *hps_manifest_find(const struct hps_manifest *manifest,
                                                   const char *table);
/* Check that manifest and directory name the same tables, and that files have the given sizes;
 * reads no contents. PRECONDITION names the first difference; NOT_FOUND, PERMISSION. OK if the
 * manifest has no tables. */
hps_status hps_manifest_check_dir(const struct hps_manifest *manifest,
                                  const struct hps_model_dir *dir, struct hps_error *err)
    HPS_MUST_CHECK;
/* Check that width, row count and file dtype of an opened table are those of the manifest. OK if
 * the manifest does not name the table. PRECONDITION. */
hps_status hps_manifest_check_table(const struct hps_manifest *manifest, const char *table,
                                    const struct hps_row_desc *desc, struct hps_error *err)
    HPS_MUST_CHECK;
/* Check that the files of a table exist with the sizes of the manifest. OK if the manifest does not
 * name the table. PRECONDITION, NOT_FOUND. */
hps_status hps_manifest_check_sizes(const struct hps_manifest *manifest, const char *table,
                                    const char *dir_path, struct hps_error *err) HPS_MUST_CHECK;
/* Read all files of a table that have a checksum, below `roots` (NULL: anywhere), and compare them.
 * DATA_LOSS names the file; PERMISSION: it is not below the roots; CANCELLED. */
hps_status hps_manifest_check_files(const struct hps_manifest *manifest, const char *table,
                                    const struct hps_roots *roots, const char *dir_path,
                                    const atomic_bool *cancel, struct hps_error *err)
    HPS_MUST_CHECK;
/* Write `path`: temporary file, fsync, rename. error EXHAUSTED: disk full; IO; NO_MEMORY */
hps_status hps_manifest_write(const struct hps_manifest *manifest, const char *path,
                              struct hps_error *err) HPS_MUST_CHECK;

#endif

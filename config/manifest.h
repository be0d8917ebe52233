/* SPDX-License-Identifier: Apache-2.0
 *
 * manifest.json of a model directory: what its writer says about the files, checked when present;
 * and config.json of a DLE checkpoint, read into the same structure. Any thread.
 *
 *   {"format": "hpsd-manifest", "version": 1, "lineage": "run7",
 *    "tables": [{"name": "items", "dim": 128, "rows": 1000, "dtype": "fp32",
 *                "files": [{"name": "items.npy", "bytes": 512128, "crc32c": "1a2b3c4d"}]}],
 *    "start_positions": [{"cluster": "x", "topic": "hps_et.m.items", "partition": 0,
 *                          "offset": 17}]}
 *
 * Everything but "tables" and their names may be missing. Unknown keys are ignored. "dtype" is that
 * of the rows in the files, by the names of hps_dtype_name; it is what tells rows of bf16 from
 * other arrays of uint16 or <V2.
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
    uint32_t dim;         /* 0: not said */
    enum hps_dtype dtype; /* 0: not said */
    uint64_t n_rows;
    bool n_rows_known;
    struct hps_manifest_file *files;
    size_t n_files;
};

struct hps_manifest_position {
    char *cluster; /* "" when not said */
    char *topic;
    int32_t partition;
    int64_t offset; /* of the first record that the files do not contain */
};

struct hps_manifest {
    const char *file; /* the name of the file that was read, for messages; NULL: none was */
    char *lineage;    /* NULL: not said */
    struct hps_manifest_table *tables;
    size_t n_tables;
    struct hps_manifest_position *positions;
    size_t n_positions;
};

/* Read manifest.json. error NOT_FOUND, PERMISSION, IO, NO_MEMORY; INVALID: names file and
 * line or field */
hps_status hps_manifest_read(const char *path, struct hps_manifest *out_manifest,
                             struct hps_error *err) HPS_MUST_CHECK;
/* Read config.json of a DLE checkpoint ("categorical_cardinalities", "embedding_dim") as a
 * manifest of tables feature_0 ... Errors as above. */
hps_status hps_manifest_read_dle(const char *path, struct hps_manifest *out_manifest,
                                 struct hps_error *err) HPS_MUST_CHECK;
/* What `dir` says about itself, by files below its roots: manifest.json, else the DLE config.json,
 * else nothing (n_tables 0). */
hps_status hps_manifest_open(const struct hps_model_dir *dir, struct hps_manifest *out_manifest,
                             struct hps_error *err) HPS_MUST_CHECK;
void hps_manifest_close(struct hps_manifest *manifest); /* a zeroed one is legal */

const struct hps_manifest_table *hps_manifest_find(const struct hps_manifest *manifest,
                                                   const char *table);
/* The manifest and the directory name the same tables, and files have the sizes that it says; both
 * cheap. PRECONDITION names the first difference. A manifest without tables says nothing: OK. */
hps_status hps_manifest_check_dir(const struct hps_manifest *manifest,
                                  const struct hps_model_dir *dir, struct hps_error *err)
    HPS_MUST_CHECK;
/* Width, row count and the dtype of the files of an opened table are those of the manifest.
 * PRECONDITION. */
hps_status hps_manifest_check_table(const struct hps_manifest *manifest, const char *table,
                                    const struct hps_row_desc *desc, struct hps_error *err)
    HPS_MUST_CHECK;
/* Files of a table are there, with the sizes that the manifest says. A table that it does not name:
 * OK. PRECONDITION, NOT_FOUND. */
hps_status hps_manifest_check_sizes(const struct hps_manifest *manifest, const char *table,
                                    const char *dir_path, struct hps_error *err) HPS_MUST_CHECK;
/* Read all files of a table, below `roots` (NULL: anywhere), and compare their checksums. DATA_LOSS
 * names the file; PERMISSION: it leads out of the roots; CANCELLED. */
hps_status hps_manifest_check_files(const struct hps_manifest *manifest, const char *table,
                                    const struct hps_roots *roots, const char *dir_path,
                                    const atomic_bool *cancel, struct hps_error *err)
    HPS_MUST_CHECK;
/* Write `path` through a temporary file, fsync and rename. error EXHAUSTED: disk full;
 * IO; NO_MEMORY */
hps_status hps_manifest_write(const struct hps_manifest *manifest, const char *path,
                              struct hps_error *err) HPS_MUST_CHECK;

#endif

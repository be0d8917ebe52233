/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads and writes manifest.json of a model directory. The program that writes the model files
 * describes them in manifest.json, and a load checks the files against it. manifest.json is
 * optional. config.json of a DLE checkpoint is read into the same structure. Any thread.
 *
 *   {"format": "hpsd-manifest", "version": 1, "lineage": "run7",
 *    "tables": [{"name": "items", "dim": 128, "rows": 1000, "dtype": "fp32",
 *                "files": [{"name": "items.npy", "bytes": 512128, "crc32c": "1a2b3c4d"}]}],
 *    "start_positions": [{"cluster": "x", "topic": "hps_et.m.items", "partition": 0,
 *                          "offset": 17}]}
 *
 * Only "tables" and the names of the tables are required. Unknown keys are ignored. "dtype" is the
 * type of the rows in the files, as hps_dtype_name names it. NumPy has no bf16 type, so .npy files
 * usually have bf16 rows as uint16 or <V2. Such files need "dtype", or option row_dtype as bf16.
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
    char *name; /* path relative to the directory of the manifest, without ".." */
    uint64_t bytes;
    uint32_t crc32c;
    bool bytes_known;
    bool crc32c_known;
};

struct hps_manifest_table {
    char *name;
    uint32_t dim;         /* 0: not given */
    enum hps_dtype dtype; /* type of the rows in the files; 0: not given */
    uint64_t n_rows;
    bool n_rows_known;
    struct hps_manifest_file *files;
    size_t n_files;
};

struct hps_manifest_position {
    char *cluster; /* "": not given */
    char *topic;
    int32_t partition;
    int64_t offset; /* of the first update record that the files do not include */
};

struct hps_manifest {
    const char *file; /* "manifest.json" or "config.json"; NULL: no file was read */
    char *lineage;    /* NULL: not given */
    struct hps_manifest_table *tables;
    size_t n_tables;
    struct hps_manifest_position *positions;
    size_t n_positions;
};

/* Read a manifest.json.
 *
 * error   NOT_FOUND, PERMISSION, IO, NO_MEMORY; INVALID: malformed, `err` names the file and the
 *         line or field; NEWER_FORMAT: a newer version of hpsd wrote it
 * owner   *out_manifest: the caller, hps_manifest_close
 */
hps_status hps_manifest_read(const char *path, struct hps_manifest *out_manifest,
                             struct hps_error *err) HPS_MUST_CHECK;
/* Read the config.json of a DLE checkpoint ("categorical_cardinalities", "embedding_dim") as a
 * manifest of tables feature_0, feature_1, ... Errors and owner: see hps_manifest_read. */
hps_status hps_manifest_read_dle(const char *path, struct hps_manifest *out_manifest,
                                 struct hps_error *err) HPS_MUST_CHECK;
/* Read the manifest.json of `dir` if there is one, else its DLE config.json. The file must be below
 * the roots of `dir`. If neither file exists, the manifest is empty (n_tables 0). Errors and owner:
 * see hps_manifest_read. */
hps_status hps_manifest_open(const struct hps_model_dir *dir, struct hps_manifest *out_manifest,
                             struct hps_error *err) HPS_MUST_CHECK;
void hps_manifest_close(struct hps_manifest *manifest); /* no effect if all zero */

/* The table with this name; NULL if the manifest does not have it. */
const struct hps_manifest_table *hps_manifest_find(const struct hps_manifest *manifest,
                                                   const char *table);
/* Check that the manifest and the directory have the same tables, and that the files have the sizes
 * given in the manifest. Reads no contents. OK also if the manifest has no tables.
 *
 * error   PRECONDITION: `err` names the first difference; NOT_FOUND, PERMISSION
 */
hps_status hps_manifest_check_dir(const struct hps_manifest *manifest,
                                  const struct hps_model_dir *dir, struct hps_error *err)
    HPS_MUST_CHECK;
/* Check that dim, number of rows and dtype of an opened table are those given in the manifest. OK
 * also if the manifest does not have the table. PRECONDITION: they differ. */
hps_status hps_manifest_check_table(const struct hps_manifest *manifest, const char *table,
                                    const struct hps_row_desc *desc, struct hps_error *err)
    HPS_MUST_CHECK;
/* Check that the files of a table exist and have the sizes given in the manifest. OK also if the
 * manifest does not have the table. PRECONDITION: a size differs; NOT_FOUND: a file is missing. */
hps_status hps_manifest_check_sizes(const struct hps_manifest *manifest, const char *table,
                                    const char *dir_path, struct hps_error *err) HPS_MUST_CHECK;
/* Read each file of a table that has a checksum in the manifest, and compare the checksums. Files
 * must be below `roots`; NULL: they may be anywhere.
 *
 * error   DATA_LOSS: a checksum differs, `err` names the file; PERMISSION: a file is not below the
 *         roots; CANCELLED: *cancel became true
 */
hps_status hps_manifest_check_files(const struct hps_manifest *manifest, const char *table,
                                    const struct hps_roots *roots, const char *dir_path,
                                    const atomic_bool *cancel, struct hps_error *err)
    HPS_MUST_CHECK;
/* Write the manifest to `path`: write a temporary file, sync it and rename it.
 *
 * error   EXHAUSTED: the disk is full; IO; NO_MEMORY
 */
hps_status hps_manifest_write(const struct hps_manifest *manifest, const char *path,
                              struct hps_error *err) HPS_MUST_CHECK;

#endif

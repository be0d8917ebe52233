/* SPDX-License-Identifier: Apache-2.0
 *
 * Headers of safetensors files. A file has 8 bytes of length, a JSON object of that length, and the
 * data of all tensors without gaps:
 *
 *   {"emb.weight": {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]},
 *    "__metadata__": {"format": "pt"}}
 *
 * A table in such a file is named by a path FILE:TENSOR, or FILE:TENSOR:SCALE:BIAS if its values
 * are 8-bit integers. FILE ends with ".safetensors". Any thread.
 */
#ifndef HPS_BASE_ROWS_SAFETENSORS_H
#define HPS_BASE_ROWS_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/rows/npy.h"
#include "base/status.h"

enum {
    HPS_SAFETENSORS_PREFIX_BYTES = 8,
    HPS_SAFETENSORS_HEADER_BYTES_MAX = 16 << 20, /* longer headers are rejected */
    HPS_SAFETENSORS_DIMS_MAX = 64
};

struct hps_tensor {
    const char *name;  /* in the header, as are the next */
    const char *dtype; /* as in the file: "F32" */
    /* False: hpsd cannot read the dtype, or the shape has not 1 or 2 dimensions. `array` is then
     * invalid except its data_offset and data_bytes. */
    bool readable;
    struct hps_npy array; /* data_offset counts from the start of the file */
};

struct hps_safetensors {
    char *head;                 /* NULL: not open */
    struct hps_tensor *tensors; /* sorted by name */
    size_t n_tensors;
};

/* Length of FILE in a path FILE:TENSOR...; the length of other paths. */
size_t hps_safetensors_file_size(const char *path);
/* Whether FILE of the path ends with ".safetensors". */
bool hps_safetensors_is_path(const char *path);

/* Parse a header. Takes `head` (from hps_alloc), which has `size` bytes behind the 8 bytes of
 * length, and one further byte. file_bytes: the size of the file.
 *
 * error   INVALID: not such a header; a name twice or with escapes; data that overlap, have gaps,
 *         or do not end at file_bytes; a size that differs from the shape; NO_MEMORY
 * owner   *out_set: the caller, hps_safetensors_close
 */
hps_status hps_safetensors_parse(char *head, size_t size, uint64_t file_bytes,
                                 struct hps_safetensors *out_set, struct hps_error *err)
    HPS_MUST_CHECK;
/* Read and parse the header of an open file of file_bytes bytes. Errors and owner as
 * hps_safetensors_parse; DATA_LOSS, IO. `path` is for messages. */
hps_status hps_safetensors_read(int fd, const char *path, uint64_t file_bytes,
                                struct hps_safetensors *out_set, struct hps_error *err)
    HPS_MUST_CHECK;
void hps_safetensors_close(struct hps_safetensors *set); /* no effect if all zero */

/* NULL: no such tensor. */
const struct hps_tensor *hps_safetensors_find(const struct hps_safetensors *set, const char *name);
/* Whether the tensor is a table: it has two dimensions and a type that hpsd can read. */
bool hps_tensor_is_table(const struct hps_tensor *tensor);
/* Whether the tensor has the keys of a table, or the scales or biases of a table of integers. So it
 * is no table itself. */
bool hps_safetensors_is_companion(const struct hps_safetensors *set,
                                  const struct hps_tensor *tensor);

#endif

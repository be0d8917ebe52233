/* SPDX-License-Identifier: Apache-2.0
 *
 * Headers of NumPy's .npy files, versions 1 to 3. Pure functions over bytes. Any thread.
 */
#ifndef HPS_BASE_ROWS_NPY_H
#define HPS_BASE_ROWS_NPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/types.h"

enum {
    HPS_NPY_HEADER_BYTES = 128,         /* size of the headers that hps_npy_format writes */
    HPS_NPY_HEADER_BYTES_MAX = 1 << 16, /* longer headers are rejected */
    HPS_NPY_DIMS_MAX = 2
};

/* Named as in NumPy, by the size in bytes: U8 is uint64, U1 is uint8, I1 is int8. V2 is an untyped
 * item of two bytes, the type in which ml_dtypes saves bfloat16. */
enum hps_npy_type {
    HPS_NPY_F4,
    HPS_NPY_F2,
    HPS_NPY_I8,
    HPS_NPY_U8,
    HPS_NPY_U2,
    HPS_NPY_U1,
    HPS_NPY_I4,
    HPS_NPY_U4,
    HPS_NPY_V2,
    HPS_NPY_I1,
    HPS_NPY_BF16 /* the header says "bfloat16"; hps_npy_format cannot write it */
};

struct hps_npy {
    enum hps_npy_type type;
    uint32_t n_dims; /* 1 or 2 */
    uint64_t shape[HPS_NPY_DIMS_MAX];
    uint64_t data_offset; /* of the first element */
    uint64_t data_bytes;  /* product of shape and element size; checked for overflow */
};

uint32_t hps_npy_type_bytes(enum hps_npy_type type);
/* Whether the array can be keys: one dimension of int64, uint64, int32 or uint32. */
bool hps_npy_is_keys(const struct hps_npy *npy);
/* Widen n keys of this type to 8 bytes each, in place. Before the call they are packed at the start
 * of keys[n]. int32 keeps its sign. Keys of 8 bytes are unchanged. */
void hps_npy_widen_keys(enum hps_npy_type type, hps_key *keys, size_t n);
/* Parse the header of a file from its first `size` bytes: the whole file, or at least
 * HPS_NPY_HEADER_BYTES_MAX + 12 bytes. INVALID: not a .npy file that hpsd can read. `err` names the
 * byte offset and the expected bytes, or the format that the file seems to have, for example HDF5.
 */
hps_status hps_npy_parse(const uint8_t *data, size_t size, struct hps_npy *out_npy,
                         struct hps_error *err) HPS_MUST_CHECK;
/* Write a version 1.0 header of exactly HPS_NPY_HEADER_BYTES. Uses type, n_dims and shape. */
void hps_npy_format(const struct hps_npy *npy, uint8_t out_header[HPS_NPY_HEADER_BYTES]);

#endif

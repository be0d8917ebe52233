/* SPDX-License-Identifier: Apache-2.0
 *
 * Synthetic rows that can be verified anywhere: value i of the row of `key` in table number `table`
 * is a pure function of (seed, table, key, i). Used by hps-gen, hps-bench --verify and tests. Any
 * thread.
 *
 * All arithmetic is modulo 2^64; mix64 is hps_mix64 of base/hash.h:
 *
 *     G = 0x9E3779B97F4A7C15
 *     c = mix64(mix64(mix64(seed) + table) ^ key)
 *     u = mix64(c + i * G) >> 40                          24 bits
 *     value = (u - 2^23) / 2^23                           exact in float32, in [-1, 1)
 *
 * Rows of other types are converted by hps_row_convert: a float16 row is rounded to nearest, ties
 * to even (so 1.0 can occur), an INT8 row is quantised. In NumPy:
 *
 *     i = np.arange(dim, dtype=np.uint64)
 *     u = mix64(c + i * G) >> np.uint64(40)
 *     row = ((u.astype(np.int64) - 2**23) / 2**23).astype(np.float32)    # .astype(np.float16)
 */
#ifndef HPS_BASE_ROWS_ROWGEN_H
#define HPS_BASE_ROWS_ROWGEN_H

#include <stdint.h>

#include "base/hash.h"
#include "base/types.h"

/* The `c` above, common to all values of a row. */
static inline uint64_t hps_rowgen_base(uint64_t seed, uint32_t table, hps_key key)
{
    return hps_mix64(hps_mix64(hps_mix64(seed) + table) ^ key);
}

static inline float hps_rowgen_value(uint64_t base, uint32_t i)
{
    uint64_t u = hps_mix64(base + i * HPS_HASH_GOLDEN) >> 40;

    return (float)((int32_t)u - (1 << 23)) * 0x1p-23f;
}

/* Key of row r of a table: r, or if `hashed` is not 0, a hash of r. Different rows have different
 * hashes. */
static inline hps_key hps_rowgen_key(uint64_t r, int hashed)
{
    return hashed != 0 ? hps_mix64(r + HPS_HASH_GOLDEN) : r;
}

/* The bits of a float32 as float16, rounded to nearest, ties to even. A NaN stays a NaN; too large
 * values become Inf. */
uint16_t hps_rowgen_half(float value);

/* Write the row of a key as FP32: row[dim], aligned as floats. */
void hps_rowgen_row(uint64_t seed, uint32_t table, hps_key key, uint32_t dim, void *row);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Ceiling for lookups in memory: gather rows at known places, and touch one line for each key, as
 * an index would. Main thread.
 */
#ifndef HPS_BENCH_CEILING_H
#define HPS_BENCH_CEILING_H

#include <stdbool.h>
#include <stdint.h>

#include "base/block.h"
#include "base/types.h"

enum { BENCH_CEILING_KEYS_MAX = 1024 };

/* Memory in 2 MB pages, like the host map's. */
struct bench_ceiling {
    struct hps_block_pool *pool;
    struct hps_block *rows_block, *lines_block;
    uint8_t *rows;  /* bytes: rows of any width, side by side */
    uint8_t *lines; /* [n_lines][64] */
    uint64_t n_lines;
    uint64_t sink;
};

/* Allocate rows_bytes for rows, and a line for every four of n_rows. */
hps_status bench_ceiling_open(struct bench_ceiling *ceiling, uint64_t rows_bytes, uint64_t n_rows,
                              struct hps_error *err) HPS_MUST_CHECK;
void bench_ceiling_close(struct bench_ceiling *ceiling); /* no effect if zeroed */

/* How rows are copied: by memcpy, by the widest vectors of this CPU, or by non-temporal stores if
 * rows are whole lines. */
enum bench_copy { BENCH_COPY_PLAIN, BENCH_COPY_VECTORS, BENCH_COPY_STREAM };

/* Copy the n rows at `places` to `out`, without gaps. */
void bench_ceiling_gather(const struct bench_ceiling *ceiling, uint32_t row_bytes,
                          const uint64_t *places, unsigned n, uint8_t *out, enum bench_copy how);
void bench_ceiling_touch(struct bench_ceiling *ceiling, const hps_key *keys, unsigned n);

#endif

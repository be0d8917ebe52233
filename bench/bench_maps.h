/* SPDX-License-Identifier: Apache-2.0
 *
 * Hash maps of C++ libraries as bench_maps.c sees them: from a key to the place of its row in one
 * array. Also read by a C++ compiler.
 */
#ifndef HPS_BENCH_BENCH_MAPS_H
#define HPS_BENCH_BENCH_MAPS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct bench_map_rows {
    const uint8_t *data; /* row i at data + i * row_bytes */
    uint32_t row_bytes;
};

struct bench_map_kind {
    const char *name;
    void *(*make)(const uint64_t *keys, uint32_t n); /* keys[i] -> i; NULL: no memory */
    /* Copy the rows of keys[n] to out[n][row_bytes], a key that is not there leaves its row alone;
     * returns how many were there. */
    uint32_t (*get)(const void *map, const struct bench_map_rows *rows, const uint64_t *keys,
                    uint32_t n, uint8_t *out);
    void (*free)(void *map);
};

/* Those that this build has; ends with a NULL name. */
extern const struct bench_map_kind bench_map_kinds[];

#ifdef __cplusplus
}
#endif

#endif

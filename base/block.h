/* SPDX-License-Identifier: Apache-2.0
 *
 * Pooled, reference-counted blocks of bytes: results are written into one once, and whoever still
 * reads it (the socket, a copy engine) holds a reference. Any thread.
 */
#ifndef HPS_BASE_BLOCK_H
#define HPS_BASE_BLOCK_H

#include <stdatomic.h>

#include "base/status.h"

struct hps_block_pool;

struct hps_block {
    struct hps_block_pool *pool;
    struct hps_block *next_free;
    uint8_t *data;   /* 64-byte aligned; 2 MB pages asked for when capacity >= 2 MB */
    size_t capacity; /* bytes, at least what was asked for */
    bool in_slab;
    atomic_uint refs;
};

/* Keeps at most bytes_idle_max of freed blocks for reuse, in power-of-two classes. NULL: no
 * memory. */
struct hps_block_pool *hps_block_pool_new(size_t bytes_idle_max);
/* Have one range of memory for hps_block_new_slab: a device can write to it, once it has been
 * registered. Before the first block is taken. NO_MEMORY */
hps_status hps_block_pool_slab_add(struct hps_block_pool *pool, size_t size) HPS_MUST_CHECK;
/* The range that slab_add made; NULL and 0 without one. */
uint8_t *hps_block_pool_slab(const struct hps_block_pool *pool, size_t *out_size);
/* Every block must have been released. */
void hps_block_pool_free(struct hps_block_pool *pool);
/* One reference, contents undefined. NULL: no memory. */
struct hps_block *hps_block_new(struct hps_block_pool *pool, size_t size);
/* A block within the slab: see hps_block_pool_slab_add. NULL: no room there, or there is no slab.
 */
struct hps_block *hps_block_new_slab(struct hps_block_pool *pool, size_t size);
void hps_block_ref(struct hps_block *block);
void hps_block_unref(struct hps_block *block); /* NULL is legal; the last one gives it back */
/* Keep the caller's reference for ever: somebody who cannot be stopped, a lost device, may still
 * write there. The bytes count as in use no more. Blocks of the slab only. */
void hps_block_abandon(struct hps_block *block);
size_t hps_block_pool_bytes(const struct hps_block_pool *pool); /* in use, not idle */

#endif

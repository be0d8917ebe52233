/* SPDX-License-Identifier: Apache-2.0
 *
 * Pooled, reference-counted blocks of bytes. A result is written once into a block; each reader,
 * such as a socket or a copy engine, holds a reference. Any thread.
 */
#ifndef HPS_BASE_BLOCK_H
#define HPS_BASE_BLOCK_H

#include <stdatomic.h>

#include "base/status.h"

struct hps_block_pool;

struct hps_block {
    struct hps_block_pool *pool;
    struct hps_block *next_free;
    uint8_t *data;   /* 64-byte aligned; requests 2 MB pages if capacity >= 2 MB */
    size_t capacity; /* bytes, at least the requested size */
    bool in_slab;
    atomic_uint refs;
};

/* Keeps at most bytes_idle_max bytes of freed blocks for reuse, in power-of-two classes. NULL: no
 * memory. */
struct hps_block_pool *hps_block_pool_new(size_t bytes_idle_max);
/* Add one range of memory for hps_block_new_slab. The caller may register it with a device, which
 * can then write to it. Call before the first block is taken. NO_MEMORY */
hps_status hps_block_pool_slab_add(struct hps_block_pool *pool, size_t size) HPS_MUST_CHECK;
/* The range of hps_block_pool_slab_add; NULL and 0 without one. */
uint8_t *hps_block_pool_slab(const struct hps_block_pool *pool, size_t *out_size);
/* The caller must have released all blocks. */
void hps_block_pool_free(struct hps_block_pool *pool);
/* One reference, contents undefined. NULL: no memory. */
struct hps_block *hps_block_new(struct hps_block_pool *pool, size_t size);
/* A block within the slab (hps_block_pool_slab_add). NULL: no free piece of that size, no memory,
 * or no slab. */
struct hps_block *hps_block_new_slab(struct hps_block_pool *pool, size_t size);
void hps_block_ref(struct hps_block *block);
void hps_block_unref(struct hps_block *block); /* no effect if NULL; the last reference frees it */
/* Keep the block, and the caller's reference, until the pool is freed: a lost device may still
 * write to it. Its bytes no longer count as in use. Only for blocks of the slab. */
void hps_block_abandon(struct hps_block *block);
size_t hps_block_pool_bytes(const struct hps_block_pool *pool); /* in use, not idle */

#endif

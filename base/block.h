/* SPDX-License-Identifier: Apache-2.0
 *
 * Pooled, reference-counted blocks of bytes. A result is written once into a block; each reader,
 * such as a socket or the copy engine of a GPU, holds a reference. Any thread.
 */
#ifndef HPS_BASE_BLOCK_H
#define HPS_BASE_BLOCK_H

#include <stdatomic.h>

#include "base/status.h"

struct hps_block_pool;

struct hps_block {
    struct hps_block_pool *pool;
    struct hps_block *next_free;
    uint8_t *data;   /* 64-byte aligned; if capacity >= 2 MB, in huge pages where possible */
    size_t capacity; /* bytes, at least the requested size */
    bool in_slab;    /* data is in the pool's slab */
    atomic_uint refs;
};

/* Create a pool. It keeps at most bytes_idle_max bytes of freed blocks for reuse, in classes of
 * power-of-two sizes. NULL: no memory. */
struct hps_block_pool *hps_block_pool_new(size_t bytes_idle_max);
/* Add the slab of the pool: one range of memory for hps_block_new_slab. The caller may register it
 * with a device, so that the device can write to it. To be called at most once, before the first
 * block is allocated. NO_MEMORY */
hps_status hps_block_pool_slab_add(struct hps_block_pool *pool, size_t size) HPS_MUST_CHECK;
/* The slab and its size; NULL and 0 if the pool has no slab. */
uint8_t *hps_block_pool_slab(const struct hps_block_pool *pool, size_t *out_size);
/* Free the pool. All blocks must have been released. */
void hps_block_pool_free(struct hps_block_pool *pool);
/* Allocate a block with undefined contents. The caller owns one reference. NULL: no memory. */
struct hps_block *hps_block_new(struct hps_block_pool *pool, size_t size);
/* Same, within the slab. NULL: the slab has no free piece of that size, or the pool has no slab, or
 * no memory. */
struct hps_block *hps_block_new_slab(struct hps_block_pool *pool, size_t size);
void hps_block_ref(struct hps_block *block);
void hps_block_unref(struct hps_block *block); /* no effect if NULL; the last reference frees it */
/* Do not reuse the block before the pool is freed, because a lost device may still write to it.
 * Takes the caller's reference. The bytes of the block no longer count as in use. Only for blocks
 * of the slab. */
void hps_block_abandon(struct hps_block *block);
/* Bytes of the blocks in use. Idle blocks do not count. */
size_t hps_block_pool_bytes(const struct hps_block_pool *pool);

#endif

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
/* Add the slab of the pool: one range of memory, from which hps_block_new_slab allocates. The
 * caller may register the slab with a device, so that the device can write to it. Call this at most
 * once, before the first block is allocated. NO_MEMORY: the slab cannot be allocated. */
hps_status hps_block_pool_slab_add(struct hps_block_pool *pool, size_t size) HPS_MUST_CHECK;
/* The slab and its size; NULL and 0 if the pool has no slab. */
uint8_t *hps_block_pool_slab(const struct hps_block_pool *pool, size_t *out_size);
/* Free the pool. All blocks must have been released. No effect if NULL. */
void hps_block_pool_free(struct hps_block_pool *pool);
/* Allocate a block with undefined contents. The caller owns one reference. NULL: no memory. */
struct hps_block *hps_block_new(struct hps_block_pool *pool, size_t size);
/* Like hps_block_new, but the bytes are in the slab. NULL: the pool has no slab, no free piece of
 * the slab is large enough, or there is no memory. */
struct hps_block *hps_block_new_slab(struct hps_block_pool *pool, size_t size);
void hps_block_ref(struct hps_block *block);
/* Release a reference. The last one frees the block. No effect if NULL. */
void hps_block_unref(struct hps_block *block);
/* Release the caller's reference to a block of the slab, but do not reuse its bytes until the pool
 * is freed: a lost device may still write to them. hps_block_pool_bytes no longer counts the block.
 */
void hps_block_abandon(struct hps_block *block);
/* Capacity of all blocks in use, in bytes. Freed blocks that are kept for reuse do not count. */
size_t hps_block_pool_bytes(const struct hps_block_pool *pool);

#endif

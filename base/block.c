/* SPDX-License-Identifier: Apache-2.0
 *
 * Blocks in power-of-two classes from 4 KiB. Blocks from 2 MiB on are mapped, aligned to 2 MiB,
 * with huge pages requested. Freed blocks are kept for reuse in a list per class, up to
 * bytes_idle_max. Blocks of the slab are taken from it and freed to it separately. Any thread. One
 * mutex protects lists and slab; it is never held over a system call.
 */
#include "base/block.h"

#include <stdbool.h>
#include <sys/mman.h>

#include "base/assert.h"
#include "base/buddy.h"
#include "base/heap.h"
#include "base/lock.h"
#include "base/poison.h"

enum { CLASS_BITS_MIN = 12, CLASS_BITS_MAX = 46, N_CLASSES = CLASS_BITS_MAX - CLASS_BITS_MIN + 1 };

#define DATA_ALIGN ((size_t)64)
#define HUGE_BYTES ((size_t)2 << 20)

struct hps_block_pool {
    struct hps_lock lock;
    struct hps_block *idle[N_CLASSES]; /* lock */
    size_t bytes_idle;                 /* lock */
    size_t bytes_idle_max;
    atomic_size_t bytes_used;
    uint8_t *slab; /* may be NULL; constant once there are blocks */
    size_t slab_size;
    struct hps_buddy *buddy;     /* lock; of the slab */
    struct hps_block *abandoned; /* lock */
};

static unsigned class_of(size_t size)
{
    if (size <= (size_t)1 << CLASS_BITS_MIN) {
        return 0;
    }
    unsigned bits = 64u - (unsigned)__builtin_clzll((unsigned long long)size - 1);
    return bits - CLASS_BITS_MIN;
}

/* Map `capacity` bytes, a multiple of 2 MiB, on a 2 MiB boundary. */
static uint8_t *huge_map(size_t capacity)
{
    size_t mapped = capacity + HUGE_BYTES;
    uint8_t *raw = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) {
        return NULL;
    }
    size_t head = (HUGE_BYTES - ((uintptr_t)raw & (HUGE_BYTES - 1))) & (HUGE_BYTES - 1);
    if (head != 0) {
        munmap(raw, head);
    }
    size_t tail = mapped - head - capacity;
    if (tail != 0) {
        munmap(raw + head + capacity, tail);
    }
    madvise(raw + head, capacity, MADV_HUGEPAGE); /* advice only; it may fail */
    return raw + head;
}

static void data_free(uint8_t *data, size_t capacity)
{
    if (capacity >= HUGE_BYTES) {
        munmap(data, capacity);
    } else {
        hps_free_aligned(data);
    }
}

static struct hps_block *block_around(struct hps_block_pool *pool, uint8_t *data, unsigned cls)
{
    struct hps_block *block = hps_alloc(sizeof(*block));
    if (block != NULL) {
        block->pool = pool;
        block->next_free = NULL;
        block->data = data;
        block->capacity = (size_t)1 << (cls + CLASS_BITS_MIN);
        block->in_slab = false;
        atomic_init(&block->refs, 0);
    }
    return block;
}

/* NULL: no slab, no free piece in it, or no memory. */
static struct hps_block *slab_block(struct hps_block_pool *pool, unsigned cls)
{
    struct hps_block *block = pool->buddy == NULL ? NULL : block_around(pool, NULL, cls);
    if (block == NULL) {
        return NULL;
    }
    hps_lock_acquire(&pool->lock);
    uint64_t offset = hps_buddy_take(pool->buddy, cls + CLASS_BITS_MIN);
    hps_lock_release(&pool->lock);
    if (offset == UINT64_MAX) {
        hps_free(block);
        return NULL;
    }
    block->data = pool->slab + offset;
    block->in_slab = true;
    return block;
}

static struct hps_block *idle_block(struct hps_block_pool *pool, unsigned cls)
{
    hps_lock_acquire(&pool->lock);
    struct hps_block *block = pool->idle[cls];
    if (block != NULL) {
        HPS_ASSERT(!block->in_slab && pool->bytes_idle >= block->capacity);
        pool->idle[cls] = block->next_free;
        pool->bytes_idle -= block->capacity;
    }
    hps_lock_release(&pool->lock);
    return block;
}

static struct hps_block *fresh_block(struct hps_block_pool *pool, unsigned cls)
{
    size_t capacity = (size_t)1 << (cls + CLASS_BITS_MIN);
    uint8_t *data =
        capacity >= HUGE_BYTES ? huge_map(capacity) : hps_alloc_aligned(DATA_ALIGN, capacity);
    struct hps_block *block = data == NULL ? NULL : block_around(pool, data, cls);
    if (block == NULL && data != NULL) {
        data_free(data, capacity);
    }
    return block;
}

static void block_destroy(struct hps_block *block)
{
    struct hps_block_pool *pool = block->pool;

    if (block->in_slab) { /* stays poisoned until it is reused */
        hps_lock_acquire(&pool->lock);
        hps_buddy_give(pool->buddy, (uint64_t)(block->data - pool->slab),
                       class_of(block->capacity) + CLASS_BITS_MIN);
        hps_lock_release(&pool->lock);
    } else {
        HPS_UNPOISON(block->data, block->capacity);
        data_free(block->data, block->capacity);
    }
    hps_free(block);
}

struct hps_block_pool *hps_block_pool_new(size_t bytes_idle_max)
{
    struct hps_block_pool *pool = hps_calloc(1, sizeof(*pool));
    if (pool == NULL) {
        return NULL;
    }
    hps_lock_init(&pool->lock, HPS_LOCK_BLOCKS);
    pool->bytes_idle_max = bytes_idle_max;
    atomic_init(&pool->bytes_used, 0);
    return pool;
}

void hps_block_pool_free(struct hps_block_pool *pool)
{
    if (pool == NULL) {
        return;
    }
    HPS_ASSERT(hps_block_pool_bytes(pool) == 0);
    for (unsigned i = 0; i < N_CLASSES; i++) {
        while (pool->idle[i] != NULL) {
            struct hps_block *block = pool->idle[i];
            pool->idle[i] = block->next_free;
            block_destroy(block);
        }
    }
    while (pool->abandoned != NULL) { /* only the headers; the slab frees their data */
        struct hps_block *block = pool->abandoned;
        pool->abandoned = block->next_free;
        hps_free(block);
    }
    if (pool->slab != NULL) {
        HPS_UNPOISON(pool->slab, pool->slab_size);
        munmap(pool->slab, pool->slab_size);
    }
    hps_buddy_free(pool->buddy);
    hps_lock_fini(&pool->lock);
    hps_free(pool);
}

hps_status hps_block_pool_slab_add(struct hps_block_pool *pool, size_t size)
{
    size_t whole = (size + HUGE_BYTES - 1) & ~(HUGE_BYTES - 1);

    HPS_ASSERT(pool->slab == NULL && hps_block_pool_bytes(pool) == 0 && pool->bytes_idle == 0);
    if (size == 0 || whole < size) {
        return HPS_NO_MEMORY;
    }
    pool->buddy = hps_buddy_new(whole);
    pool->slab = pool->buddy == NULL ? NULL : huge_map(whole);
    if (pool->slab == NULL) {
        hps_buddy_free(pool->buddy);
        pool->buddy = NULL;
        return HPS_NO_MEMORY;
    }
    pool->slab_size = whole;
    HPS_POISON(pool->slab, whole);
    return HPS_OK;
}

uint8_t *hps_block_pool_slab(const struct hps_block_pool *pool, size_t *out_size)
{
    *out_size = pool->slab_size;
    return pool->slab;
}

/* takes `block`; no effect if NULL. */
static struct hps_block *hand_out(struct hps_block *block)
{
    if (block != NULL) {
        HPS_ASSERT(atomic_load_explicit(&block->refs, memory_order_relaxed) == 0);
        HPS_UNPOISON(block->data, block->capacity);
        block->next_free = NULL;
        atomic_store_explicit(&block->refs, 1, memory_order_relaxed);
        atomic_fetch_add_explicit(&block->pool->bytes_used, block->capacity, memory_order_relaxed);
    }
    return block;
}

struct hps_block *hps_block_new(struct hps_block_pool *pool, size_t size)
{
    if (size > (size_t)1 << CLASS_BITS_MAX) {
        return NULL;
    }
    unsigned cls = class_of(size);
    struct hps_block *block = idle_block(pool, cls);
    return hand_out(block != NULL ? block : fresh_block(pool, cls));
}

struct hps_block *hps_block_new_slab(struct hps_block_pool *pool, size_t size)
{
    return size > (size_t)1 << CLASS_BITS_MAX ? NULL : hand_out(slab_block(pool, class_of(size)));
}

void hps_block_ref(struct hps_block *block)
{
    unsigned before = atomic_fetch_add_explicit(&block->refs, 1, memory_order_relaxed);
    HPS_ASSERT(before != 0);
}

void hps_block_unref(struct hps_block *block)
{
    if (block == NULL) {
        return;
    }
    unsigned before = atomic_fetch_sub_explicit(&block->refs, 1, memory_order_acq_rel);
    HPS_ASSERT(before != 0);
    if (before != 1) {
        return;
    }
    struct hps_block_pool *pool = block->pool;
    size_t capacity = block->capacity;
    HPS_ASSERT(hps_block_pool_bytes(pool) >= capacity);
    unsigned cls = class_of(capacity);
    HPS_POISON(block->data, capacity);
    hps_lock_acquire(&pool->lock);
    bool keep = !block->in_slab && capacity <= pool->bytes_idle_max - pool->bytes_idle;
    if (keep) {
        block->next_free = pool->idle[cls];
        pool->idle[cls] = block;
        pool->bytes_idle += capacity;
        HPS_ASSERT(pool->bytes_idle <= pool->bytes_idle_max);
    }
    hps_lock_release(&pool->lock);
    if (!keep) {
        block_destroy(block);
    }
    /* Last: once this is visible, the owner may free the pool. */
    atomic_fetch_sub_explicit(&pool->bytes_used, capacity, memory_order_release);
}

void hps_block_abandon(struct hps_block *block)
{
    struct hps_block_pool *pool = block->pool;

    HPS_ASSERT(block->in_slab && atomic_load(&block->refs) > 0);
    hps_lock_acquire(&pool->lock);
    block->next_free = pool->abandoned;
    pool->abandoned = block;
    hps_lock_release(&pool->lock);
    atomic_fetch_sub_explicit(&pool->bytes_used, block->capacity, memory_order_release);
}

size_t hps_block_pool_bytes(const struct hps_block_pool *pool)
{
    return atomic_load_explicit(&pool->bytes_used, memory_order_acquire);
}

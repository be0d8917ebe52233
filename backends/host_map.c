/* SPDX-License-Identifier: Apache-2.0
 *
 * The host tier. Readers run on any thread and take no lock: they find a row id in a 64-byte bucket
 * (one cache line) and copy the row, inside an epoch. Writers of a table take its mutex, write a
 * new row beside the old one and publish its id; the old row is reused once every reader has left.
 * So a published row never changes and none is ever seen torn.
 *
 * Measured (10 M rows of 512 bytes): keys in the bucket itself beat byte tags, which are a second
 * dependent cache line; multiply-high indexing uses the memory budget exactly; prefetching a block
 * of keys before probing it is worth a third.
 */
#include "backends/host_map.h"

#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#include "backends/key_sort.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/epoch.h"
#include "base/hash.h"
#include "base/heap.h"

enum {
    BUCKET_KEYS = 5,
    BUCKETS_MIN = 4,
    BLOCK_KEYS = 64, /* looked up together; 32 to 128 measured the same */
    ROW_ALIGN = 16,  /* row starts; 64 would cost narrow rows up to 4 x their size */
    HUGE_BYTES = 2 << 20,
    STEP_BYTES = 64 << 10, /* rows are charged to the budget by steps of this size */
    LIMBO_ROWS = 256,
    SCAN_ROWS = 1024,
};

#define ROW_NONE UINT32_MAX

/* meta: bits 0-4 slot holds a key, bits 8-12 slot held one that was erased, bit 31 some key that
 * hashes to this bucket or one before it lies behind it. */
#define META_LIVE(slot) (UINT32_C(1) << (slot))
#define META_DEAD(slot) (UINT32_C(1) << (8 + (slot)))
#define META_DEAD_ALL   (UINT32_C(0x1f) << 8)
#define META_OVERFLOW   (UINT32_C(1) << 31)

struct bucket {
    _Atomic(uint64_t) keys[BUCKET_KEYS];
    _Atomic(uint32_t) rows[BUCKET_KEYS];
    _Atomic(uint32_t) meta;
};
_Static_assert(sizeof(struct bucket) == 64, "a bucket is one cache line");

/* Never changes size; growth replaces it. */
struct buckets {
    uint64_t n_buckets;
    size_t bytes;
    struct bucket *array; /* [n_buckets] */
};

/* What a table without rows has for an index: it costs nothing, so that a full budget keeps no
 * version out. The one bucket is never counted and never written. */
static struct bucket no_bucket;
static struct buckets no_buckets = {.array = &no_bucket};

/* Rows that were unlinked but may still be read. */
struct limbo {
    uint64_t stamp;
    uint32_t n_rows;
    uint32_t rows[LIMBO_ROWS];
};

/* One table. Everything but `buckets`, the slab pointers and the counters belongs to the writer. */
struct map {
    struct host_map *store;
    pthread_mutex_t lock; /* one writer */
    _Atomic(struct buckets *) buckets;
    _Atomic(uint8_t *) *slabs; /* [n_slabs_max], lazily backed; NULL until used */
    size_t n_slabs_max;
    uint32_t row_bytes;
    uint32_t stride;     /* row_bytes rounded up to ROW_ALIGN */
    uint32_t slab_shift; /* log2 of rows per slab */
    uint32_t step_shift; /* log2 of rows per budget step */
    uint64_t rows_used;  /* row ids given out so far */
    uint64_t rows_paid;  /* row ids charged to the budget */
    uint64_t n_spare;    /* rows on the free list and in limbo */
    uint32_t free_row;   /* list through the first bytes of free rows */
    uint64_t n_dead;     /* erased slots not yet usable for another key */
    struct limbo limbo[2];
    unsigned limbo_now;
    _Atomic(uint64_t) n_rows;
    _Atomic(uint64_t) used_bytes;
};

/* All tables of a space, replaced as one when a load is committed. */
struct map_set {
    uint32_t n_maps;
    struct map *maps[];
};

struct host_space {
    struct hps_space base;
    char *model;
    int64_t version;
    uint32_t n_tables;
    struct hps_table *tables;  /* [n_tables] copies, names not used */
    pthread_rwlock_t set_lock; /* writers share it; held alone while `set` is replaced */
    _Atomic(struct map_set *) set;
    bool loading; /* under the store's lock */
    struct host_space *next;
};

struct host_map {
    struct hps_store base;
    uint64_t bytes_max;
    uint64_t seed;
    _Atomic(uint64_t) used_bytes;
    struct hps_epoch *epoch;
    pthread_mutex_t lock; /* the list of spaces */
    struct host_space *spaces;
};

struct hps_store_load {
    struct host_space *space;
    struct map_set *set;
    bool any; /* a row was added: the two below hold the last one's place */
    uint32_t table;
    hps_key key;
};

/* ---- budget and pages ---- */

static bool charge(struct map *map, uint64_t bytes)
{
    struct host_map *store = map->store;
    uint64_t used = atomic_load_explicit(&store->used_bytes, memory_order_relaxed);
    do {
        if (bytes > store->bytes_max - used) {
            return false;
        }
    } while (!atomic_compare_exchange_weak_explicit(&store->used_bytes, &used, used + bytes,
                                                    memory_order_relaxed, memory_order_relaxed));
    atomic_fetch_add_explicit(&map->used_bytes, bytes, memory_order_relaxed);
    return true;
}

static void discharge(struct map *map, uint64_t bytes)
{
    atomic_fetch_sub_explicit(&map->store->used_bytes, bytes, memory_order_relaxed);
    atomic_fetch_sub_explicit(&map->used_bytes, bytes, memory_order_relaxed);
}

/* Zeroed address space that costs memory only where touched. */
static void *pages_new(size_t bytes)
{
    void *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return start != MAP_FAILED ? start : NULL;
}

static void pages_free(void *start, size_t bytes)
{
    if (start != NULL) {
        int failed = munmap(start, bytes);
        HPS_ASSERT(failed == 0);
    }
}

static size_t pages_round(size_t bytes)
{
    return (bytes + 4095) & ~(size_t)4095;
}

/* As pages_new, at a multiple of 2 MB so that huge pages fit. bytes: a multiple of 4096. */
static uint8_t *pages_new_aligned(size_t bytes)
{
    uint8_t *raw = pages_new(bytes + HUGE_BYTES);
    if (raw == NULL) {
        return NULL;
    }
    size_t head = (size_t)(-(uintptr_t)raw & (HUGE_BYTES - 1));
    if (head != 0) {
        pages_free(raw, head);
    }
    if (head != HUGE_BYTES) {
        pages_free(raw + head + bytes, HUGE_BYTES - head);
    }
    return raw + head;
}

/* ---- bucket arrays ---- */

static uint64_t buckets_for(uint64_t n_rows)
{
    /* 3/4 full: about one key in ten then lies in the next bucket */
    uint64_t n = n_rows / 15 * 4 + (n_rows % 15 * 4 + 14) / 15;
    return n > BUCKETS_MIN || n == 0 ? n : BUCKETS_MIN;
}

static size_t buckets_bytes(uint64_t n_buckets)
{
    return n_buckets == 0 ? 0 : sizeof(struct buckets) + (size_t)n_buckets * sizeof(struct bucket);
}

/* EXHAUSTED or NO_MEMORY. */
static hps_status buckets_new(struct map *map, uint64_t n_buckets, struct buckets **out_buckets)
{
    size_t bytes = buckets_bytes(n_buckets);
    if (n_buckets == 0) {
        *out_buckets = &no_buckets;
        return HPS_OK;
    }
    if (!charge(map, bytes)) {
        return HPS_EXHAUSTED;
    }
    struct buckets *buckets = hps_alloc(sizeof(*buckets));
    size_t array_bytes = pages_round((size_t)n_buckets * sizeof(struct bucket));
    struct bucket *array = NULL;
    if (buckets != NULL && array_bytes >= HUGE_BYTES) {
        array = (struct bucket *)(void *)pages_new_aligned(array_bytes);
        if (array != NULL) {
            (void)madvise(array, array_bytes, MADV_HUGEPAGE); /* a wish: 4 KB pages work too */
        }
    } else if (buckets != NULL) {
        array = hps_alloc_aligned(sizeof(struct bucket), (size_t)n_buckets * sizeof(*array));
        if (array != NULL) {
            memset((void *)array, 0, (size_t)n_buckets * sizeof(*array));
        }
    }
    if (array == NULL) {
        hps_free(buckets);
        discharge(map, bytes);
        return HPS_NO_MEMORY;
    }
    *buckets = (struct buckets){.n_buckets = n_buckets, .bytes = bytes, .array = array};
    *out_buckets = buckets;
    return HPS_OK;
}

static void buckets_free(struct map *map, struct buckets *buckets)
{
    size_t array_bytes = pages_round((size_t)buckets->n_buckets * sizeof(struct bucket));
    if (buckets == &no_buckets) {
        return;
    }
    if (array_bytes >= HUGE_BYTES) {
        pages_free(buckets->array, array_bytes);
    } else {
        hps_free_aligned(buckets->array);
    }
    discharge(map, buckets->bytes);
    hps_free(buckets);
}

static uint64_t bucket_index(const struct buckets *buckets, uint64_t seed, hps_key key)
{
    uint64_t h = key ^ seed;
    h = (h ^ (h >> 32)) * UINT64_C(0xd6e8feb86659fd93);
    h = (h ^ (h >> 32)) * UINT64_C(0xd6e8feb86659fd93);
    h ^= h >> 32;
    __extension__ typedef unsigned __int128 u128;
    return (uint64_t)(((u128)h * buckets->n_buckets) >> 64);
}

static uint32_t meta_of(const struct bucket *bucket)
{
    return atomic_load_explicit(&bucket->meta, memory_order_acquire);
}

/* Row id of `key` or ROW_NONE. */
static uint32_t probe(const struct buckets *buckets, uint64_t at, hps_key key)
{
    for (uint64_t n = 0; n < buckets->n_buckets; n++) {
        const struct bucket *bucket = &buckets->array[at];
        uint32_t meta = meta_of(bucket);
        for (unsigned slot = 0; slot < BUCKET_KEYS; slot++) {
            if ((meta & META_LIVE(slot)) != 0 &&
                atomic_load_explicit(&bucket->keys[slot], memory_order_relaxed) == key) {
                return atomic_load_explicit(&bucket->rows[slot], memory_order_acquire);
            }
        }
        if ((meta & META_OVERFLOW) == 0) {
            break;
        }
        at = at + 1 < buckets->n_buckets ? at + 1 : 0;
    }
    return ROW_NONE;
}

struct place {
    struct bucket *bucket;
    unsigned slot;
};

/* Where `key` lies (with_dead: or lay, when it was erased). The writer only. */
static bool place_find(const struct map *map, struct buckets *buckets, hps_key key, bool with_dead,
                       struct place *out_place)
{
    uint64_t at = bucket_index(buckets, map->store->seed, key);
    for (uint64_t n = 0; n < buckets->n_buckets; n++) {
        struct bucket *bucket = &buckets->array[at];
        uint32_t meta = meta_of(bucket);
        for (unsigned slot = 0; slot < BUCKET_KEYS; slot++) {
            uint32_t wanted = META_LIVE(slot) | (with_dead ? META_DEAD(slot) : 0);
            if ((meta & wanted) != 0 &&
                atomic_load_explicit(&bucket->keys[slot], memory_order_relaxed) == key) {
                *out_place = (struct place){bucket, slot};
                return true;
            }
        }
        if ((meta & META_OVERFLOW) == 0) {
            break;
        }
        at = at + 1 < buckets->n_buckets ? at + 1 : 0;
    }
    return false;
}

/* Add a key that is not there, marking the buckets it passes over. There must be a free slot. */
static void place_add(const struct map *map, struct buckets *buckets, hps_key key, uint32_t row)
{
    uint64_t at = bucket_index(buckets, map->store->seed, key);
    for (;;) {
        struct bucket *bucket = &buckets->array[at];
        uint32_t meta = meta_of(bucket);
        for (unsigned slot = 0; slot < BUCKET_KEYS; slot++) {
            if ((meta & (META_LIVE(slot) | META_DEAD(slot))) == 0) {
                atomic_store_explicit(&bucket->rows[slot], row, memory_order_release);
                atomic_store_explicit(&bucket->keys[slot], key, memory_order_relaxed);
                atomic_store_explicit(&bucket->meta, meta | META_LIVE(slot), memory_order_release);
                return;
            }
        }
        atomic_store_explicit(&bucket->meta, meta | META_OVERFLOW, memory_order_release);
        at = at + 1 < buckets->n_buckets ? at + 1 : 0;
    }
}

/* ---- rows ---- */

static void grace_wait(struct map *map, uint64_t stamp)
{
    /* readers leave after a block of keys, so this is short and rare */
    while (!hps_epoch_passed(map->store->epoch, stamp)) {
        sched_yield();
    }
}

static size_t slab_bytes(const struct map *map)
{
    return pages_round((size_t)map->stride << map->slab_shift);
}

static uint8_t *row_at(const struct map *map, uint32_t row)
{
    uint8_t *slab = atomic_load_explicit(&map->slabs[row >> map->slab_shift], memory_order_acquire);
    return slab + (size_t)(row & ((UINT32_C(1) << map->slab_shift) - 1)) * map->stride;
}

/* Pay for one more step of rows, with a slab below it. EXHAUSTED or NO_MEMORY. */
static hps_status rows_grow(struct map *map)
{
    size_t slab = (size_t)(map->rows_paid >> map->slab_shift);
    uint64_t n_step = UINT64_C(1) << map->step_shift;
    if (slab >= map->n_slabs_max || map->rows_paid + n_step > ROW_NONE) {
        return HPS_EXHAUSTED;
    }
    if (!charge(map, n_step * map->stride)) {
        return HPS_EXHAUSTED;
    }
    if (atomic_load_explicit(&map->slabs[slab], memory_order_relaxed) == NULL) {
        uint8_t *pages = pages_new_aligned(slab_bytes(map));
        if (pages == NULL) {
            discharge(map, n_step * map->stride);
            return HPS_NO_MEMORY;
        }
        /* a small table would waste a huge page: the first slab gets them when a second is needed
         */
        (void)madvise(pages, slab_bytes(map), slab == 0 ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
        if (slab == 1) {
            uint8_t *first = atomic_load_explicit(&map->slabs[0], memory_order_relaxed);
            (void)madvise(first, slab_bytes(map), MADV_HUGEPAGE);
        }
        atomic_store_explicit(&map->slabs[slab], pages, memory_order_release);
    }
    map->rows_paid += n_step;
    return HPS_OK;
}

static void limbo_reclaim(struct map *map, struct limbo *limbo)
{
    if (limbo->n_rows == 0) {
        return;
    }
    grace_wait(map, limbo->stamp);
    for (uint32_t i = 0; i < limbo->n_rows; i++) {
        memcpy(row_at(map, limbo->rows[i]), &map->free_row, sizeof(map->free_row));
        map->free_row = limbo->rows[i];
    }
    limbo->n_rows = 0;
}

static void limbo_turn(struct map *map)
{
    map->limbo[map->limbo_now].stamp = hps_epoch_retire(map->store->epoch);
    map->limbo_now ^= 1;
    limbo_reclaim(map, &map->limbo[map->limbo_now]);
}

/* Give back a row that was just unlinked. Never fails. */
static void row_retire(struct map *map, uint32_t row)
{
    struct limbo *limbo = &map->limbo[map->limbo_now];
    limbo->rows[limbo->n_rows++] = row;
    map->n_spare++;
    if (limbo->n_rows == LIMBO_ROWS) {
        limbo_turn(map);
    }
}

/* A row to write. keep: leave one spare behind, so that a full store can still replace its rows. */
static hps_status row_new(struct map *map, bool keep, uint32_t *out_row)
{
    uint64_t n_needed = keep ? 2 : 1;
    while (map->n_spare + (map->rows_paid - map->rows_used) < n_needed) {
        hps_status status = rows_grow(map);
        if (status != HPS_OK) {
            return status;
        }
    }
    if (map->free_row == ROW_NONE && map->rows_used == map->rows_paid) {
        limbo_turn(map);
        limbo_turn(map);
    }
    if (map->free_row != ROW_NONE) {
        *out_row = map->free_row;
        memcpy(&map->free_row, row_at(map, *out_row), sizeof(map->free_row));
        map->n_spare--;
    } else {
        HPS_ASSERT(map->rows_used < map->rows_paid);
        *out_row = (uint32_t)map->rows_used++;
    }
    return HPS_OK;
}

/* ---- one table ---- */

static uint32_t log2_floor(uint64_t n)
{
    return 63 - (uint32_t)__builtin_clzll(n);
}

/* Rows of this width per slab (at least 2 MB) and per budget step, as powers of two. */
static void map_shape(struct map *map, uint32_t row_bytes)
{
    map->row_bytes = row_bytes;
    map->stride = (row_bytes + ROW_ALIGN - 1) & ~(uint32_t)(ROW_ALIGN - 1);
    map->step_shift = map->stride < STEP_BYTES ? log2_floor(STEP_BYTES / map->stride) : 0;
    map->slab_shift = map->step_shift;
    while (((size_t)map->stride << map->slab_shift) < HUGE_BYTES) {
        map->slab_shift++;
    }
}

static void map_free(struct map *map)
{
    if (map == NULL) {
        return;
    }
    for (size_t i = 0; map->slabs != NULL && i < map->n_slabs_max; i++) {
        uint8_t *slab = atomic_load_explicit(&map->slabs[i], memory_order_relaxed);
        if (slab == NULL) {
            break;
        }
        pages_free(slab, slab_bytes(map));
    }
    discharge(map, map->rows_paid * map->stride);
    pages_free((void *)map->slabs, pages_round(map->n_slabs_max * sizeof(*map->slabs)));
    struct buckets *buckets = atomic_load_explicit(&map->buckets, memory_order_relaxed);
    if (buckets != NULL) {
        buckets_free(map, buckets);
    }
    pthread_mutex_destroy(&map->lock);
    hps_free(map);
}

/* An empty table with room for n_rows in its index. */
static hps_status map_new(struct host_map *store, uint32_t row_bytes, uint64_t n_rows,
                          struct map **out_map)
{
    struct map *map = hps_calloc(1, sizeof(*map));
    if (map == NULL) {
        return HPS_NO_MEMORY;
    }
    map->store = store;
    map->free_row = ROW_NONE;
    map_shape(map, row_bytes);
    pthread_mutex_init(&map->lock, NULL);
    uint64_t n_ids = (UINT64_C(1) << 32) >> map->slab_shift;
    uint64_t n_fit = store->bytes_max / slab_bytes(map) + 1;
    map->n_slabs_max = (size_t)(n_ids < n_fit ? n_ids : n_fit);
    map->slabs = pages_new(pages_round(map->n_slabs_max * sizeof(*map->slabs)));
    struct buckets *buckets = NULL;
    hps_status status = map->slabs != NULL ? HPS_OK : HPS_NO_MEMORY;
    if (status == HPS_OK) {
        status = buckets_new(map, buckets_for(n_rows), &buckets);
    }
    if (status != HPS_OK) {
        map_free(map);
        return status;
    }
    atomic_store_explicit(&map->buckets, buckets, memory_order_release);
    *out_map = map;
    return HPS_OK;
}

static uint64_t map_rows(const struct map *map)
{
    return atomic_load_explicit(&map->n_rows, memory_order_relaxed);
}

/* Move every key into n_buckets new buckets and let the old ones go. */
static hps_status map_rehash(struct map *map, uint64_t n_buckets)
{
    struct buckets *old = atomic_load_explicit(&map->buckets, memory_order_relaxed);
    struct buckets *buckets = NULL;
    hps_status status = buckets_new(map, n_buckets, &buckets);
    if (status != HPS_OK) {
        return status;
    }
    for (uint64_t i = 0; i < old->n_buckets; i++) {
        struct bucket *bucket = &old->array[i];
        uint32_t meta = meta_of(bucket);
        for (unsigned slot = 0; slot < BUCKET_KEYS; slot++) {
            if ((meta & META_LIVE(slot)) != 0) {
                place_add(map, buckets,
                          atomic_load_explicit(&bucket->keys[slot], memory_order_relaxed),
                          atomic_load_explicit(&bucket->rows[slot], memory_order_relaxed));
            }
        }
    }
    map->n_dead = 0;
    atomic_store_explicit(&map->buckets, buckets, memory_order_release);
    grace_wait(map, hps_epoch_retire(map->store->epoch));
    buckets_free(map, old);
    return HPS_OK;
}

/* Make erased slots usable again where they are. A reader that found the old key there may still be
 * about to read the slot's row, so a grace period comes first. */
static void map_purge(struct map *map)
{
    struct buckets *buckets = atomic_load_explicit(&map->buckets, memory_order_relaxed);
    grace_wait(map, hps_epoch_retire(map->store->epoch));
    for (uint64_t i = 0; i < buckets->n_buckets; i++) {
        uint32_t meta = meta_of(&buckets->array[i]);
        if ((meta & META_DEAD_ALL) != 0) {
            atomic_store_explicit(&buckets->array[i].meta, meta & ~META_DEAD_ALL,
                                  memory_order_release);
        }
    }
    map->n_dead = 0;
}

/* See to it that one more key finds a slot: at most 4/5 of the slots are taken, 9/10 when the
 * budget has no room for a larger index. */
static hps_status map_make_room(struct map *map)
{
    const struct buckets *buckets = atomic_load_explicit(&map->buckets, memory_order_relaxed);
    uint64_t n_buckets = buckets->n_buckets;
    uint64_t n_rows = map_rows(map);
    uint64_t n_taken = n_rows + map->n_dead;
    if (n_taken < n_buckets * 4) {
        return HPS_OK;
    }
    bool mostly_live = map->n_dead < n_taken / 4;
    uint64_t n_new = mostly_live ? n_buckets + n_buckets / 2 : n_buckets;
    hps_status status = map_rehash(map, n_new > BUCKETS_MIN ? n_new : BUCKETS_MIN);
    if (status == HPS_OK) {
        return HPS_OK;
    }
    uint64_t n_hard = n_buckets * BUCKET_KEYS - n_buckets / 2;
    if (n_taken >= n_hard && map->n_dead > 0) {
        map_purge(map);
        n_taken = n_rows;
    }
    return n_taken < n_hard ? HPS_OK : status;
}

static hps_status map_put(struct map *map, hps_key key, const uint8_t *data)
{
    struct place place;
    uint32_t row;
    struct buckets *buckets = atomic_load_explicit(&map->buckets, memory_order_relaxed);
    bool found = place_find(map, buckets, key, true, &place);
    if (!found) {
        hps_status status = map_make_room(map);
        if (status != HPS_OK) {
            return status;
        }
        buckets = atomic_load_explicit(&map->buckets, memory_order_relaxed);
    }
    bool live = found && (meta_of(place.bucket) & META_LIVE(place.slot)) != 0;
    hps_status status = row_new(map, !live, &row);
    if (status != HPS_OK) {
        return status;
    }
    memcpy(row_at(map, row), data, map->row_bytes);
    if (!found) {
        place_add(map, buckets, key, row);
    } else {
        uint32_t old = atomic_load_explicit(&place.bucket->rows[place.slot], memory_order_relaxed);
        atomic_store_explicit(&place.bucket->rows[place.slot], row, memory_order_release);
        if (live) {
            row_retire(map, old);
            return HPS_OK;
        }
        uint32_t meta = meta_of(place.bucket) & ~META_DEAD(place.slot);
        atomic_store_explicit(&place.bucket->meta, meta | META_LIVE(place.slot),
                              memory_order_release);
        map->n_dead--;
    }
    atomic_fetch_add_explicit(&map->n_rows, 1, memory_order_relaxed);
    return HPS_OK;
}

static void map_erase(struct map *map, hps_key key)
{
    struct place place;
    struct buckets *buckets = atomic_load_explicit(&map->buckets, memory_order_relaxed);
    if (!place_find(map, buckets, key, false, &place)) {
        return;
    }
    uint32_t meta = meta_of(place.bucket) & ~META_LIVE(place.slot);
    atomic_store_explicit(&place.bucket->meta, meta | META_DEAD(place.slot), memory_order_release);
    map->n_dead++;
    atomic_fetch_sub_explicit(&map->n_rows, 1, memory_order_relaxed);
    row_retire(map, atomic_load_explicit(&place.bucket->rows[place.slot], memory_order_relaxed));
}

/* Look up keys [lo, hi) of the batch, at most BLOCK_KEYS, where [hi, n) is known to be missing. */
static void map_get_block(const struct map *map, struct hps_batch *batch, uint32_t lo, uint32_t hi)
{
    uint64_t at[BLOCK_KEYS];
    uint32_t rows[BLOCK_KEYS];
    uint32_t n = hi - lo;
    const struct buckets *buckets = atomic_load_explicit(&map->buckets, memory_order_acquire);
    for (uint32_t i = 0; i < n; i++) {
        at[i] = bucket_index(buckets, map->store->seed, batch->keys[lo + i]);
        __builtin_prefetch(&buckets->array[at[i]]);
    }
    for (uint32_t i = 0; i < n; i++) {
        rows[i] = probe(buckets, at[i], batch->keys[lo + i]);
        if (rows[i] != ROW_NONE) {
            const uint8_t *row = row_at(map, rows[i]);
            for (uint32_t line = 0; line < map->row_bytes; line += 64) {
                __builtin_prefetch(row + line);
            }
        }
    }
    for (uint32_t i = n; i-- > 0;) {
        if (rows[i] != ROW_NONE) {
            memcpy(batch->rows + (size_t)batch->slots[lo + i] * map->row_bytes,
                   row_at(map, rows[i]), map->row_bytes);
            hps_batch_found(batch, lo + i);
        }
    }
}

/* ---- sets of tables ---- */

static void set_free(struct map_set *set)
{
    if (set != NULL) {
        for (uint32_t i = 0; i < set->n_maps; i++) {
            map_free(set->maps[i]);
        }
        hps_free(set);
    }
}

/* sized: with room in the indexes for the rows the tables expect. */
static hps_status set_new(struct host_map *store, const struct hps_table *tables, uint32_t n_tables,
                          bool sized, struct map_set **out_set)
{
    struct map_set *set = hps_calloc(1, sizeof(*set) + n_tables * sizeof(set->maps[0]));
    if (set == NULL) {
        return HPS_NO_MEMORY;
    }
    for (uint32_t i = 0; i < n_tables; i++) {
        hps_status status =
            map_new(store, tables[i].row_bytes, sized ? tables[i].n_rows : 0, &set->maps[i]);
        if (status != HPS_OK) {
            set_free(set);
            return status;
        }
        set->n_maps++;
    }
    *out_set = set;
    return HPS_OK;
}

static uint64_t bytes_available(struct host_map *store)
{
    return store->bytes_max - atomic_load_explicit(&store->used_bytes, memory_order_relaxed);
}

static hps_status fail_budget(struct host_map *store, hps_status status, const char *what,
                              uint64_t bytes, struct hps_error *err)
{
    if (status != HPS_EXHAUSTED) {
        return hps_error_set(err, status, "host: no memory for %s", what);
    }
    return hps_error_set(
        err, status, "host: %s needs %" PRIu64 " bytes, %" PRIu64 " of %" PRIu64 " are available",
        what, bytes, bytes_available(store), store->bytes_max);
}

/* What the tables will take with the rows they expect. */
static uint64_t tables_bytes(const struct hps_table *tables, uint32_t n_tables)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < n_tables; i++) {
        struct map shape;
        map_shape(&shape, tables[i].row_bytes);
        uint64_t n_step = UINT64_C(1) << shape.step_shift;
        /* one spare row, see row_new */
        uint64_t n_rows = tables[i].n_rows != 0 ? tables[i].n_rows + 1 : 0;
        uint64_t n_steps = n_rows / n_step + (n_rows % n_step != 0);
        uint64_t index = buckets_bytes(buckets_for(tables[i].n_rows));
        uint64_t rows;
        if (__builtin_mul_overflow(n_steps, n_step * shape.stride, &rows) ||
            __builtin_add_overflow(bytes, index, &bytes) ||
            __builtin_add_overflow(bytes, rows, &bytes)) {
            return UINT64_MAX;
        }
    }
    return bytes;
}

static uint64_t tables_rows(const struct hps_table *tables, uint32_t n_tables)
{
    uint64_t n_rows = 0;
    for (uint32_t i = 0; i < n_tables; i++) {
        n_rows += tables[i].n_rows;
    }
    return n_rows;
}

/* ---- the store ---- */

static struct host_map *host_of(struct hps_space *space)
{
    return (struct host_map *)space->store;
}

static struct map *map_of(struct hps_space *base, const struct hps_table *table)
{
    struct host_space *space = (struct host_space *)base;
    struct map_set *set = atomic_load_explicit(&space->set, memory_order_acquire);
    HPS_ASSERT(table->id < set->n_maps);
    struct map *map = set->maps[table->id];
    HPS_ASSERT(map->row_bytes == table->row_bytes);
    return map;
}

/* The table for a writer, locked: no other writer, and no load is committed meanwhile. */
static struct map *map_lock(struct hps_space *base, const struct hps_table *table)
{
    pthread_rwlock_rdlock(&((struct host_space *)base)->set_lock);
    struct map *map = map_of(base, table);
    pthread_mutex_lock(&map->lock);
    return map;
}

static void map_unlock(struct hps_space *base, struct map *map)
{
    pthread_mutex_unlock(&map->lock);
    pthread_rwlock_unlock(&((struct host_space *)base)->set_lock);
}

static void host_close(struct hps_store *base)
{
    struct host_map *store = (struct host_map *)base;
    HPS_ASSERT(store->spaces == NULL);
    HPS_ASSERT(atomic_load(&store->used_bytes) == 0);
    pthread_mutex_destroy(&store->lock);
    hps_epoch_free(store->epoch);
    hps_free(store);
}

static hps_status check_tables(const struct hps_space_id *id, struct hps_error *err)
{
    for (uint32_t i = 0; i < id->n_tables; i++) {
        HPS_ASSERT(id->tables[i].id == i);
        if (id->tables[i].row_bytes == 0 || id->tables[i].row_bytes > UINT32_MAX / 2) {
            return hps_error_set(err, HPS_INVALID, "host: table %s has rows of %" PRIu32 " bytes",
                                 id->tables[i].name, id->tables[i].row_bytes);
        }
    }
    return HPS_OK;
}

static hps_status space_link(struct host_map *store, struct host_space *space,
                             struct hps_error *err)
{
    hps_status status = HPS_OK;
    pthread_mutex_lock(&store->lock);
    for (struct host_space *s = store->spaces; s != NULL; s = s->next) {
        if (s->version == space->version && strcmp(s->model, space->model) == 0) {
            status = hps_error_set(err, HPS_EXISTS, "host: %s version %" PRId64 " is open already",
                                   space->model, space->version);
            break;
        }
    }
    if (status == HPS_OK) {
        space->next = store->spaces;
        store->spaces = space;
    }
    pthread_mutex_unlock(&store->lock);
    return status;
}

static hps_status host_space_open(struct hps_store *base, const struct hps_space_id *id,
                                  struct hps_space **out_space, struct hps_error *err)
{
    struct host_map *store = (struct host_map *)base;
    hps_status status = check_tables(id, err);
    if (status != HPS_OK) {
        return status;
    }
    struct host_space *space = hps_calloc(1, sizeof(*space));
    char *model = hps_strdup(id->model);
    struct hps_table *tables = hps_alloc(id->n_tables * sizeof(*tables));
    struct map_set *set = NULL;
    status = space != NULL && model != NULL && tables != NULL ? HPS_OK : HPS_NO_MEMORY;
    if (status == HPS_OK) {
        status = set_new(store, id->tables, id->n_tables, false, &set);
    }
    if (status != HPS_OK) {
        hps_ignore(hps_error_set(err, status, "host: no memory for a new space"));
        goto fail;
    }
    space->base.store = base;
    space->model = model;
    space->version = id->version;
    memcpy(tables, id->tables, id->n_tables * sizeof(*tables));
    space->tables = tables;
    pthread_rwlock_init(&space->set_lock, NULL);
    space->n_tables = id->n_tables;
    atomic_init(&space->set, set);
    status = space_link(store, space, err);
    if (status != HPS_OK) {
        pthread_rwlock_destroy(&space->set_lock);
        goto fail;
    }
    *out_space = &space->base;
    return HPS_OK;
fail:
    set_free(set);
    hps_free(tables);
    hps_free(model);
    hps_free(space);
    return status;
}

static void host_space_close(struct hps_space *base)
{
    struct host_space *space = (struct host_space *)base;
    struct host_map *store = host_of(base);
    HPS_ASSERT(!space->loading);
    pthread_mutex_lock(&store->lock);
    struct host_space **link = &store->spaces;
    while (*link != space) {
        link = &(*link)->next;
    }
    *link = space->next;
    pthread_mutex_unlock(&store->lock);
    set_free(atomic_load_explicit(&space->set, memory_order_acquire));
    pthread_rwlock_destroy(&space->set_lock);
    hps_free(space->tables);
    hps_free(space->model);
    hps_free(space);
}

static hps_status host_space_drop(struct hps_space *space, struct hps_error *err)
{
    (void)err;
    host_space_close(space);
    return HPS_OK;
}

static void host_space_usage(struct hps_space *base, struct hps_store_usage *out_usage)
{
    struct host_space *space = (struct host_space *)base;
    struct host_map *store = host_of(base);
    struct hps_store_usage usage = {.capacity_bytes = store->bytes_max};
    struct hps_epoch_slot *slot = hps_epoch_enter(store->epoch);
    struct map_set *set = atomic_load_explicit(&space->set, memory_order_acquire);
    for (uint32_t i = 0; i < set->n_maps; i++) {
        usage.n_rows += map_rows(set->maps[i]);
        usage.used_bytes += atomic_load_explicit(&set->maps[i]->used_bytes, memory_order_relaxed);
    }
    hps_epoch_leave(store->epoch, slot);
    *out_usage = usage;
}

static hps_status host_reserve(struct hps_space *base, struct hps_error *err)
{
    struct host_space *space = (struct host_space *)base;
    hps_status status = HPS_OK;
    for (uint32_t i = 0; status == HPS_OK && i < space->n_tables; i++) {
        const struct hps_table *table = &space->tables[i];
        uint64_t n_buckets = buckets_for(table->n_rows);
        struct map *map = map_lock(base, table);
        if (atomic_load_explicit(&map->buckets, memory_order_relaxed)->n_buckets < n_buckets) {
            status = map_rehash(map, n_buckets);
        }
        map_unlock(base, map);
        if (status != HPS_OK) {
            return fail_budget(host_of(base), status, "the index of a table",
                               buckets_bytes(n_buckets), err);
        }
    }
    return status;
}

static hps_status host_get(struct hps_space *space, const struct hps_call *call,
                           const struct hps_table *table, struct hps_batch *batch)
{
    struct hps_epoch *epoch = host_of(space)->epoch;
    uint32_t hi = batch->n;
    while (hi > 0) {
        if (call->deadline_us != 0 && hps_clock_us() >= call->deadline_us) {
            return HPS_DEADLINE;
        }
        uint32_t lo = hi > BLOCK_KEYS ? hi - BLOCK_KEYS : 0;
        struct hps_epoch_slot *slot = hps_epoch_enter(epoch);
        map_get_block(map_of(space, table), batch, lo, hi);
        hps_epoch_leave(epoch, slot);
        hi = lo;
    }
    return HPS_OK;
}

static hps_status host_put(struct hps_space *space, const struct hps_call *call,
                           const struct hps_table *table, const hps_key *keys, const uint8_t *rows,
                           uint32_t n)
{
    (void)call; /* no I/O: a batch is written in full */
    struct map *map = map_lock(space, table);
    hps_status status = HPS_OK;
    uint32_t i = 0;
    for (; i < n && status == HPS_OK; i++) {
        status = map_put(map, keys[i], rows + (size_t)i * table->row_bytes);
    }
    if (status != HPS_OK) {
        for (i--; i < n; i++) {
            map_erase(map, keys[i]); /* an older row must not outlive a newer one that got lost */
        }
    }
    map_unlock(space, map);
    return status;
}

/* A row that an update has overtaken stays out: the updater changes stamps before it takes the
 * table's lock, and `guard` reads them under it. */
static hps_status host_insert(struct hps_space *space, const struct hps_call *call,
                              const struct hps_table *table, const hps_key *keys,
                              const uint32_t *slots, const uint8_t *rows, uint32_t n,
                              const struct hps_insert_guard *guard,
                              struct hps_insert_report *out_report)
{
    (void)call; /* no I/O */
    struct map *map = map_lock(space, table);
    struct hps_insert_report report = {0};
    for (uint32_t i = 0; i < n; i++) {
        struct buckets *buckets = atomic_load_explicit(&map->buckets, memory_order_relaxed);
        struct place place;
        if (guard != NULL && !guard->fresh(guard->ctx, i)) {
            report.n_stale++;
        } else if (!place_find(map, buckets, keys[i], false, &place)) {
            const uint8_t *row = rows + (size_t)slots[i] * table->row_bytes;
            bool put = map_put(map, keys[i], row) == HPS_OK;
            report.n_inserted += put ? 1 : 0;
            report.n_no_room += put ? 0 : 1;
        }
    }
    map_unlock(space, map);
    *out_report = report;
    return HPS_OK;
}

static hps_status host_erase(struct hps_space *space, const struct hps_call *call,
                             const struct hps_table *table, const hps_key *keys, uint32_t n)
{
    (void)call;
    struct map *map = map_lock(space, table);
    for (uint32_t i = 0; i < n; i++) {
        map_erase(map, keys[i]);
    }
    map_unlock(space, map);
    return HPS_OK;
}

/* ---- loads ---- */

static hps_status load_claim(struct host_space *space, struct hps_error *err)
{
    struct host_map *store = host_of(&space->base);
    struct hps_store_usage usage;
    host_space_usage(&space->base, &usage);
    hps_status status = HPS_OK;
    pthread_mutex_lock(&store->lock);
    if (space->loading || usage.n_rows != 0) {
        status = hps_error_set(err, HPS_PRECONDITION, "host: %s version %" PRId64 " %s",
                               space->model, space->version,
                               space->loading ? "is being loaded already" : "is not empty");
    } else {
        space->loading = true;
    }
    pthread_mutex_unlock(&store->lock);
    return status;
}

static void load_end(struct hps_store_load *load)
{
    struct host_map *store = host_of(&load->space->base);
    pthread_mutex_lock(&store->lock);
    load->space->loading = false;
    pthread_mutex_unlock(&store->lock);
    hps_free(load);
}

static hps_status host_load_begin(struct hps_space *base, uint64_t rows_expected,
                                  uint64_t bytes_expected, struct hps_store_load **out_load,
                                  struct hps_error *err)
{
    struct host_space *space = (struct host_space *)base;
    struct host_map *store = host_of(base);
    bool sized = tables_rows(space->tables, space->n_tables) == rows_expected;
    uint64_t needed = bytes_expected;
    if (sized) {
        needed = tables_bytes(space->tables, space->n_tables);
    } else if (__builtin_add_overflow(needed, rows_expected / 15 * 4 * sizeof(struct bucket),
                                      &needed)) {
        needed = UINT64_MAX;
    }
    hps_status status = load_claim(space, err);
    if (status != HPS_OK) {
        return status;
    }
    struct hps_store_load *load = hps_calloc(1, sizeof(*load));
    if (load == NULL) {
        status = HPS_NO_MEMORY;
    } else if (needed > bytes_available(store)) {
        status = HPS_EXHAUSTED;
    } else {
        status = set_new(store, space->tables, space->n_tables, sized, &load->set);
    }
    if (status != HPS_OK) {
        pthread_mutex_lock(&store->lock);
        space->loading = false;
        pthread_mutex_unlock(&store->lock);
        hps_free(load);
        return fail_budget(store, status, "the load", needed, err);
    }
    load->space = space;
    *out_load = load;
    return HPS_OK;
}

static hps_status host_load_add(struct hps_store_load *load, const struct hps_table *table,
                                const hps_key *keys, const uint8_t *rows, uint32_t n,
                                struct hps_error *err)
{
    HPS_ASSERT(table->id < load->set->n_maps);
    struct map *map = load->set->maps[table->id];
    HPS_ASSERT(map->row_bytes == table->row_bytes);
    for (uint32_t i = 0; i < n; i++) {
        if (load->any &&
            (table->id < load->table || (table->id == load->table && keys[i] <= load->key))) {
            return hps_error_set(err, HPS_INVALID,
                                 "host: table %s: key %" PRIu64 " is not above the one before it",
                                 table->name, keys[i]);
        }
        hps_status status = map_put(map, keys[i], rows + (size_t)i * table->row_bytes);
        if (status != HPS_OK) {
            return fail_budget(map->store, status, "the next row of the load", map->stride, err);
        }
        load->any = true;
        load->table = table->id;
        load->key = keys[i];
    }
    return HPS_OK;
}

static hps_status host_load_commit(struct hps_store_load *load, struct hps_error *err)
{
    (void)err;
    struct host_space *space = load->space;
    struct hps_epoch *epoch = host_of(&space->base)->epoch;
    pthread_rwlock_wrlock(&space->set_lock);
    struct map_set *old = atomic_exchange_explicit(&space->set, load->set, memory_order_acq_rel);
    pthread_rwlock_unlock(&space->set_lock);
    uint64_t stamp = hps_epoch_retire(epoch);
    while (!hps_epoch_passed(epoch, stamp)) {
        sched_yield();
    }
    set_free(old);
    load_end(load);
    return HPS_OK;
}

static void host_load_abort(struct hps_store_load *load)
{
    set_free(load->set);
    load_end(load);
}

/* ---- scan ---- */

/* The keys of a table in order. owner: *out_keys is the caller's (hps_free). */
static hps_status map_keys(struct hps_space *space, const struct hps_table *table,
                           hps_key **out_keys, uint64_t *out_n)
{
    struct map *map = map_lock(space, table);
    uint64_t n = 0;
    hps_key *keys = hps_alloc((size_t)map_rows(map) * sizeof(*keys));
    if (keys != NULL) {
        const struct buckets *buckets = atomic_load_explicit(&map->buckets, memory_order_relaxed);
        for (uint64_t i = 0; i < buckets->n_buckets; i++) {
            const struct bucket *bucket = &buckets->array[i];
            uint32_t meta = meta_of(bucket);
            for (unsigned slot = 0; slot < BUCKET_KEYS; slot++) {
                if ((meta & META_LIVE(slot)) != 0) {
                    keys[n++] = atomic_load_explicit(&bucket->keys[slot], memory_order_relaxed);
                }
            }
        }
    }
    map_unlock(space, map);
    if (keys == NULL) {
        return HPS_NO_MEMORY;
    }
    hps_key_sort(keys, NULL, (size_t)n);
    *out_keys = keys;
    *out_n = n;
    return HPS_OK;
}

/* Copy the rows of keys[n] that are still there; returns how many, keys closed up in order. */
static uint32_t map_copy(struct hps_space *space, const struct hps_table *table, hps_key *keys,
                         uint8_t *rows, uint32_t n)
{
    struct hps_epoch *epoch = host_of(space)->epoch;
    uint32_t n_found = 0;
    struct hps_epoch_slot *slot = hps_epoch_enter(epoch);
    const struct map *map = map_of(space, table);
    const struct buckets *buckets = atomic_load_explicit(&map->buckets, memory_order_acquire);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t row = probe(buckets, bucket_index(buckets, map->store->seed, keys[i]), keys[i]);
        if (row != ROW_NONE) {
            memcpy(rows + (size_t)n_found * map->row_bytes, row_at(map, row), map->row_bytes);
            keys[n_found++] = keys[i];
        }
    }
    hps_epoch_leave(epoch, slot);
    return n_found;
}

static hps_status host_scan(struct hps_space *space, const struct hps_table *table,
                            hps_status (*fn)(void *ctx, const hps_key *keys, const uint8_t *rows,
                                             uint32_t n),
                            void *ctx, struct hps_error *err)
{
    hps_key *keys = NULL;
    uint64_t n = 0;
    uint8_t *rows = hps_alloc((size_t)SCAN_ROWS * table->row_bytes);
    hps_status status = rows != NULL ? HPS_OK : HPS_NO_MEMORY;
    if (status == HPS_OK) {
        status = map_keys(space, table, &keys, &n);
    }
    if (status != HPS_OK) {
        hps_free(rows);
        return hps_error_set(err, status, "host: no memory to scan table %s", table->name);
    }
    for (uint64_t i = 0; i < n && status == HPS_OK; i += SCAN_ROWS) {
        uint32_t n_batch = n - i < SCAN_ROWS ? (uint32_t)(n - i) : SCAN_ROWS;
        n_batch = map_copy(space, table, keys + i, rows, n_batch);
        if (n_batch > 0) {
            status = fn(ctx, keys + i, rows, n_batch);
        }
    }
    hps_free(keys);
    hps_free(rows);
    return status;
}

static const struct hps_store_ops host_ops = {
    .name = "host",
    .tier = HPS_TIER_HOST,
    .caps = 0,
    .close = host_close,
    .space_open = host_space_open,
    .space_close = host_space_close,
    .space_drop = host_space_drop,
    .space_usage = host_space_usage,
    .reserve = host_reserve,
    .get = host_get,
    .insert = host_insert,
    .put = host_put,
    .erase = host_erase,
    .load_begin = host_load_begin,
    .load_add = host_load_add,
    .load_commit = host_load_commit,
    .load_abort = host_load_abort,
    .scan = host_scan,
};

hps_status hps_host_map_open(uint64_t bytes_max, struct hps_store **out_store,
                             struct hps_error *err)
{
    struct host_map *store = hps_calloc(1, sizeof(*store));
    struct hps_epoch *epoch = hps_epoch_new();
    if (store == NULL || epoch == NULL) {
        hps_epoch_free(epoch);
        hps_free(store);
        return hps_error_set(err, HPS_NO_MEMORY, "host: no memory for the store");
    }
    store->base.ops = &host_ops;
    store->bytes_max = bytes_max;
    store->epoch = epoch;
    store->seed = hps_hash_secret(); /* clients must not be able to aim at one bucket */
    pthread_mutex_init(&store->lock, NULL);
    *out_store = &store->base;
    return HPS_OK;
}

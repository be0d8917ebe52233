/* SPDX-License-Identifier: Apache-2.0
 *
 * Two passes over a block of keys. The first fetches the bucket of a key some way ahead and probes
 * the one whose bucket has arrived; the second does so with rows: fetch ahead, copy. A fetch holds
 * its place in the core until its page is translated, so what counts is that only few instructions
 * lie between two. Hence two passes: one that fetches both bucket and row reached 0.60 of gather
 * and index where two reach 0.82 (docs/performance.md). Any thread.
 *
 * Vector kernels read the five keys of a bucket as plain loads. Each 8-byte lane is read whole on
 * x86, behind the acquire load of the bucket's state. ThreadSanitizer cannot know that and gets the
 * scalar kernel alone.
 */
#include "backends/host/kernel.h"

#include <string.h>
#include <unistd.h>

#if defined(__x86_64__) && !defined(HPS_TSAN)
#define HOST_VECTORS 1
#include <immintrin.h>
#endif

enum {
    LINE_BYTES = 64,
    NAIVE_KEYS = 12,
    AHEAD = 48, /* keys between fetch and use: 24 to 64 measured the same */
    L2_BYTES_USUAL = 2 << 20,
};

/* ---- passes, made for each kind of vectors --------------------------------------------------- */

typedef uint32_t (*match_fn)(const struct hps_host_bucket *bucket, hps_key key);
typedef void (*copy_fn)(uint8_t *to, const uint8_t *from, uint32_t bytes);

/* To L2: there are more misses to be had at once there than in L1. */
static inline void fetch(const void *at)
{
    __builtin_prefetch(at, 0, 2);
}

static inline __attribute__((always_inline)) void row_fetch(const struct hps_host_lookup *lookup,
                                                            const uint8_t *row)
{
    fetch(row);
    for (uint32_t at = LINE_BYTES; at < lookup->row_bytes; at += LINE_BYTES) {
        fetch(row + at);
    }
    if (lookup->stride % LINE_BYTES != 0) {
        fetch(row + lookup->row_bytes - 1);
    }
}

static inline const uint8_t *row_at(const struct hps_host_lookup *lookup,
                                    struct hps_host_place place)
{
    return lookup->rows + (size_t)hps_host_row_of(place) * lookup->stride;
}

static inline __attribute__((always_inline)) const uint8_t *block_hit(
    const struct hps_host_lookup *lookup, struct hps_host_place place)
{
    if (lookup->touch) {
        hps_host_touch(place);
    }
    return row_at(lookup, place);
}

/* What aiming needs, read once per block. */
struct aim {
    uint64_t seed;
    struct hps_host_bucket *array;
    uint64_t n_homes;
    bool growing;
};

static inline struct aim block_aim(const struct hps_host_lookup *lookup,
                                   const struct hps_host_block *block)
{
    return (struct aim){.seed = lookup->index->seed,
                        .array = block->now->array,
                        .n_homes = block->now->n_homes,
                        .growing =
                            atomic_load_explicit(&block->now->from, memory_order_acquire) != NULL};
}

static inline __attribute__((always_inline)) void key_aim(const struct aim *aim, hps_key key,
                                                          struct hps_host_block *block, uint32_t i)
{
    uint64_t hash = hps_host_hash(aim->seed, key);
    struct hps_host_bucket *bucket = &aim->array[hps_host_home(hash, aim->n_homes)];
    if (aim->growing) {
        bucket = hps_host_aim(block->now, hash);
    }
    fetch(bucket);
    block->buckets[i] = bucket;
}

/* Keys that may lie behind their home buckets: by now the next buckets have arrived, too. */
static void block_probe_later(const struct hps_host_lookup *lookup, const hps_key *keys,
                              struct hps_host_block *block, const uint8_t *later, uint32_t n)
{
    for (uint32_t l = 0; l < n; l++) {
        uint32_t i = later[l];
        struct hps_host_place place = hps_host_probe(block->buckets[i] + 1, keys[i]);
        if (place.bucket != NULL) {
            block->rows[i] = block_hit(lookup, place);
            block->n_found++;
        }
    }
}

static inline __attribute__((always_inline)) void block_probe(const struct hps_host_lookup *given,
                                                              const hps_key *keys,
                                                              struct hps_host_block *block,
                                                              match_fn match)
{
    const struct hps_host_lookup lookup = *given; /* in registers, whatever is written below */
    const struct aim aim = block_aim(given, block);
    uint8_t later[HPS_HOST_BLOCK_KEYS];
    uint32_t n_later = 0, n_found = 0;
    uint32_t n = block->n;
    for (uint32_t i = 0; i < n && i < AHEAD; i++) {
        key_aim(&aim, keys[i], block, i);
    }
    for (uint32_t i = 0; i < n; i++) {
        if (i + AHEAD < n) {
            key_aim(&aim, keys[i + AHEAD], block, i + AHEAD);
        }
        struct hps_host_bucket *bucket = block->buckets[i];
        uint32_t state = hps_host_state(bucket);
        uint32_t found = match(bucket, keys[i]) & state & HPS_HOST_LIVE_ALL;
        block->rows[i] = NULL;
        if (found != 0) {
            struct hps_host_place place = {bucket, (unsigned)__builtin_ctz(found)};
            block->rows[i] = block_hit(&lookup, place);
            n_found++;
        } else if (hps_host_passed(state)) {
            fetch(bucket + 1);
            later[n_later++] = (uint8_t)i;
        }
    }
    block->n_found = n_found;
    block_probe_later(given, keys, block, later, n_later);
}

/* The usual case: all keys were found, and none behind them is missing. */
static inline __attribute__((always_inline)) void block_copy_all(
    const struct hps_host_lookup *lookup, struct hps_batch *batch,
    const struct hps_host_block *block, copy_fn copy)
{
    uint32_t row_bytes = lookup->row_bytes;
    uint32_t n = block->n;
    const uint32_t *slots = batch->slots + block->lo;
    uint8_t *to = batch->rows;
    for (uint32_t i = 0; i < n && i < AHEAD; i++) {
        row_fetch(lookup, block->rows[i]);
    }
    for (uint32_t i = 0; i < n; i++) {
        if (i + AHEAD < n) {
            row_fetch(lookup, block->rows[i + AHEAD]);
        }
        copy(to + (size_t)slots[i] * row_bytes, block->rows[i], row_bytes);
    }
    batch->n = block->lo;
}

/* From the last key to the first, so that a swap moves only keys that were seen. */
static inline __attribute__((always_inline)) void block_copy_found(
    const struct hps_host_lookup *lookup, struct hps_batch *batch,
    const struct hps_host_block *block, copy_fn copy)
{
    uint32_t n = block->n;
    for (uint32_t i = n + AHEAD; i-- > 0;) {
        if (i >= AHEAD && block->rows[i - AHEAD] != NULL) {
            row_fetch(lookup, block->rows[i - AHEAD]);
        }
        if (i < n && block->rows[i] != NULL) {
            uint32_t at = block->lo + i;
            copy(batch->rows + (size_t)batch->slots[at] * lookup->row_bytes, block->rows[i],
                 lookup->row_bytes);
            hps_batch_found(batch, at);
        }
    }
}

static inline __attribute__((always_inline)) void block_copy(const struct hps_host_lookup *given,
                                                             struct hps_batch *batch,
                                                             const struct hps_host_block *block,
                                                             copy_fn copy)
{
    const struct hps_host_lookup lookup = *given; /* in registers, as above */
    if (block->n_found == block->n && block->lo + block->n == batch->n) {
        block_copy_all(&lookup, batch, block, copy);
    } else {
        block_copy_found(&lookup, batch, block, copy);
    }
}

/* ---- scalar ---------------------------------------------------------------------------------- */

static bool runs_everywhere(void)
{
    return true;
}

static void copy_plain(uint8_t *to, const uint8_t *from, uint32_t bytes)
{
    memcpy(to, from, bytes);
}

static void scalar_probe(const struct hps_host_lookup *lookup, const hps_key *keys,
                         struct hps_host_block *block)
{
    block_probe(lookup, keys, block, hps_host_match);
}

static void scalar_copy(const struct hps_host_lookup *lookup, struct hps_batch *batch,
                        const struct hps_host_block *block)
{
    block_copy(lookup, batch, block, copy_plain);
}

#ifdef HOST_VECTORS

/* ---- AVX2 ------------------------------------------------------------------------------------ */

#define AVX2 __attribute__((target("avx2,bmi")))

static bool runs_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi");
}

AVX2 static inline uint32_t match_avx2(const struct hps_host_bucket *bucket, hps_key key)
{
    __m256i four = _mm256_load_si256((const __m256i *)(const void *)bucket->keys);
    __m256i same = _mm256_cmpeq_epi64(four, _mm256_set1_epi64x((long long)key));
    uint32_t match = (uint32_t)_mm256_movemask_pd(_mm256_castsi256_pd(same));
    hps_key fifth = atomic_load_explicit(&bucket->keys[4], memory_order_relaxed);
    return match | (uint32_t)(fifth == key) << 4;
}

AVX2 static inline void copy_avx2(uint8_t *to, const uint8_t *from, uint32_t bytes)
{
    for (uint32_t at = 0; at < bytes; at += 64) {
        __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)(from + at));
        __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(from + at + 32));
        _mm256_storeu_si256((__m256i *)(void *)(to + at), a);
        _mm256_storeu_si256((__m256i *)(void *)(to + at + 32), b);
    }
}

AVX2 static inline void stream_avx2(uint8_t *to, const uint8_t *from, uint32_t bytes)
{
    for (uint32_t at = 0; at < bytes; at += 64) {
        __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)(from + at));
        __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(from + at + 32));
        _mm256_stream_si256((__m256i *)(void *)(to + at), a);
        _mm256_stream_si256((__m256i *)(void *)(to + at + 32), b);
    }
}

AVX2 static void avx2_probe(const struct hps_host_lookup *lookup, const hps_key *keys,
                            struct hps_host_block *block)
{
    block_probe(lookup, keys, block, match_avx2);
}

AVX2 static void avx2_copy(const struct hps_host_lookup *lookup, struct hps_batch *batch,
                           const struct hps_host_block *block)
{
    if (lookup->stream) {
        block_copy(lookup, batch, block, stream_avx2);
    } else if (lookup->row_bytes % LINE_BYTES == 0) {
        block_copy(lookup, batch, block, copy_avx2);
    } else {
        block_copy(lookup, batch, block, copy_plain);
    }
}

/* ---- AVX-512 --------------------------------------------------------------------------------- */

#define AVX512 __attribute__((target("avx512f,avx2,bmi")))

static bool runs_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && runs_avx2();
}

/* The whole bucket in one load; the last three lanes are rows and state. */
AVX512 static inline uint32_t match_avx512(const struct hps_host_bucket *bucket, hps_key key)
{
    __m512i line = _mm512_load_si512((const void *)bucket);
    return _mm512_mask_cmpeq_epi64_mask(HPS_HOST_LIVE_ALL, line, _mm512_set1_epi64((long long)key));
}

AVX512 static inline void copy_avx512(uint8_t *to, const uint8_t *from, uint32_t bytes)
{
    for (uint32_t at = 0; at < bytes; at += 64) {
        _mm512_storeu_si512((void *)(to + at), _mm512_loadu_si512((const void *)(from + at)));
    }
}

AVX512 static inline void stream_avx512(uint8_t *to, const uint8_t *from, uint32_t bytes)
{
    for (uint32_t at = 0; at < bytes; at += 64) {
        _mm512_stream_si512((__m512i *)(void *)(to + at),
                            _mm512_loadu_si512((const void *)(from + at)));
    }
}

AVX512 static void avx512_probe(const struct hps_host_lookup *lookup, const hps_key *keys,
                                struct hps_host_block *block)
{
    block_probe(lookup, keys, block, match_avx512);
}

AVX512 static void avx512_copy(const struct hps_host_lookup *lookup, struct hps_batch *batch,
                               const struct hps_host_block *block)
{
    if (lookup->stream) {
        block_copy(lookup, batch, block, stream_avx512);
    } else if (lookup->row_bytes % LINE_BYTES == 0) {
        block_copy(lookup, batch, block, copy_avx512);
    } else {
        block_copy(lookup, batch, block, copy_plain);
    }
}

#endif

static const struct hps_host_kernel kernels[] = {
#ifdef HOST_VECTORS
    {"avx512", runs_avx512, avx512_probe, avx512_copy},
    {"avx2", runs_avx2, avx2_probe, avx2_copy},
#endif
    {"scalar", runs_everywhere, scalar_probe, scalar_copy},
};

const struct hps_host_kernel *hps_host_kernels(unsigned *out_n)
{
    *out_n = sizeof(kernels) / sizeof(kernels[0]);
    return kernels;
}

const struct hps_host_kernel *hps_host_kernel(void)
{
    const struct hps_host_kernel *kernel = kernels;
    while (!kernel->runs()) {
        kernel++;
    }
    return kernel;
}

/* ---- look-ups -------------------------------------------------------------------------------- */

/* Few keys: there is nothing to be done while a fetch is under way. */
static void look_up_naive(const struct hps_host_lookup *lookup, const struct hps_host_buckets *now,
                          struct hps_batch *batch, uint32_t lo, uint32_t hi)
{
    uint32_t row_bytes = lookup->row_bytes;
    for (uint32_t i = hi; i-- > lo;) {
        uint64_t hash = hps_host_hash(lookup->index->seed, batch->keys[i]);
        struct hps_host_place place = hps_host_probe(hps_host_aim(now, hash), batch->keys[i]);
        if (place.bucket != NULL) {
            memcpy(batch->rows + (size_t)batch->slots[i] * row_bytes, row_at(lookup, place),
                   row_bytes);
            if (lookup->touch) {
                hps_host_touch(place);
            }
            hps_batch_found(batch, i);
        }
    }
}

void hps_host_look_up(const struct hps_host_lookup *lookup, const struct hps_host_kernel *kernel,
                      struct hps_batch *batch, uint32_t lo, uint32_t hi)
{
    const struct hps_host_buckets *now =
        atomic_load_explicit(&lookup->index->now, memory_order_acquire);
    if (hi - lo < NAIVE_KEYS) {
        look_up_naive(lookup, now, batch, lo, hi);
        return;
    }
    struct hps_host_block block;
    block.now = now;
    while (hi > lo) {
        block.n = hi - lo < HPS_HOST_BLOCK_KEYS ? hi - lo : HPS_HOST_BLOCK_KEYS;
        hi -= block.n;
        block.lo = hi;
        kernel->probe(lookup, batch->keys + hi, &block);
        kernel->copy(lookup, batch, &block);
    }
#ifdef HOST_VECTORS
    if (lookup->stream) {
        _mm_sfence(); /* whoever is told of the rows must see them */
    }
#endif
}

bool hps_host_streams(uint32_t row_bytes, const struct hps_batch *batch)
{
    static _Atomic(long) l2_bytes; /* asked of the system once */
    long l2 = atomic_load_explicit(&l2_bytes, memory_order_relaxed);
    if (l2 == 0) {
        l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
        l2 = l2 > 0 ? l2 : L2_BYTES_USUAL;
        atomic_store_explicit(&l2_bytes, l2, memory_order_relaxed);
    }
    return row_bytes % LINE_BYTES == 0 && (uintptr_t)batch->rows % LINE_BYTES == 0 &&
           (uint64_t)batch->n * row_bytes > (uint64_t)l2;
}

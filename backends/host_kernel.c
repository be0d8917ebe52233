/* SPDX-License-Identifier: Apache-2.0
 *
 * Three stages, each a block of keys behind the one before it: aim (hash, fetch the bucket), probe
 * (fetch the row), copy. So the fetches of one stage have the time of another to arrive. Each stage
 * first works out its addresses and then fetches them in a loop of nothing else: a fetch holds its
 * place in the core until its page is translated, and the fewer instructions lie between two, the
 * more of them are translated at once (0.60 to 0.67 of the ceiling without that, 0.74 to 0.86 with
 * it, at 64 bytes a row). Any thread.
 *
 * Vector kernels read the five keys of a bucket as plain loads. Each 8-byte lane is read whole on
 * x86, behind the acquire load of the bucket's state. ThreadSanitizer cannot know that and gets the
 * scalar kernel alone.
 */
#include "backends/host_kernel.h"

#include <string.h>
#include <unistd.h>

#if defined(__x86_64__) && !defined(HPS_TSAN)
#define HOST_VECTORS 1
#include <immintrin.h>
#endif

enum { LINE_BYTES = 64, NAIVE_KEYS = 12, L2_BYTES_USUAL = 2 << 20 };

/* ---- stages, made for each kind of vectors ---- */

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
    uint32_t row_bytes = lookup->rows->row_bytes;
    for (uint32_t at = 0; at < row_bytes; at += LINE_BYTES) {
        fetch(row + at);
    }
    if (((uintptr_t)row & (LINE_BYTES - 1)) != 0) {
        fetch(row + row_bytes - 1);
    }
}

static inline __attribute__((always_inline)) void block_hit(const struct hps_host_lookup *lookup,
                                                            struct hps_host_block *block,
                                                            uint32_t i, struct hps_host_place place)
{
    const uint8_t *row = hps_host_row_at(lookup->rows, hps_host_row_of(place));
    block->rows[i] = row;
    if (lookup->touch) {
        hps_host_touch(place);
    }
}

/* A key that may lie behind its bucket is left for the end of the block: by then the next bucket
 * has been fetched. */
static inline __attribute__((always_inline)) void block_probe(const struct hps_host_lookup *lookup,
                                                              const hps_key *keys,
                                                              struct hps_host_block *block,
                                                              match_fn match)
{
    uint8_t later[HPS_HOST_BLOCK_KEYS];
    uint32_t n_later = 0;
    for (uint32_t i = 0; i < block->n; i++) {
        struct hps_host_bucket *bucket = block->buckets[i];
        uint32_t state = hps_host_state(bucket);
        uint32_t found = match(bucket, keys[i]) & state & HPS_HOST_LIVE_ALL;
        block->rows[i] = NULL;
        if (found != 0) {
            struct hps_host_place place = {bucket, (unsigned)__builtin_ctz(found)};
            block_hit(lookup, block, i, place);
        } else if (hps_host_passed(state)) {
            fetch(bucket + 1);
            later[n_later++] = (uint8_t)i;
        }
    }
    for (uint32_t l = 0; l < n_later; l++) {
        uint32_t i = later[l];
        struct hps_host_place place = hps_host_probe(block->buckets[i], keys[i]);
        if (place.bucket != NULL) {
            block_hit(lookup, block, i, place);
        }
    }
    for (uint32_t i = 0; i < block->n; i++) {
        if (block->rows[i] != NULL) {
            row_fetch(lookup, block->rows[i]);
        }
    }
}

/* From the last key to the first, so that a swap moves only keys that were seen. */
static inline __attribute__((always_inline)) void block_copy(const struct hps_host_lookup *lookup,
                                                             struct hps_batch *batch,
                                                             const struct hps_host_block *block,
                                                             copy_fn copy, copy_fn stream)
{
    uint32_t row_bytes = lookup->rows->row_bytes;
    for (uint32_t i = block->n; i-- > 0;) {
        const uint8_t *row = block->rows[i];
        uint32_t at = block->lo + i;
        if (row == NULL) {
            continue;
        }
        uint8_t *to = batch->rows + (size_t)batch->slots[at] * row_bytes;
        if (lookup->stream) {
            stream(to, row, row_bytes);
        } else {
            copy(to, row, row_bytes);
        }
        if (at + 1 == batch->n) {
            batch->n--; /* the usual case: nothing behind it is missing */
        } else {
            hps_batch_found(batch, at);
        }
    }
}

/* ---- scalar ---- */

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
    block_copy(lookup, batch, block, copy_plain, copy_plain);
}

#ifdef HOST_VECTORS

/* ---- AVX2 ---- */

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
    if (bytes % 64 != 0) {
        memcpy(to, from, bytes);
        return;
    }
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
    block_copy(lookup, batch, block, copy_avx2, stream_avx2);
}

/* ---- AVX-512 ---- */

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
    if (bytes % 64 != 0) {
        memcpy(to, from, bytes);
        return;
    }
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
    block_copy(lookup, batch, block, copy_avx512, stream_avx512);
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

/* ---- the pipeline ---- */

static void block_aim(const struct hps_host_lookup *lookup, const struct hps_host_buckets *now,
                      const hps_key *keys, struct hps_host_block *block)
{
    uint64_t seed = lookup->index->seed;
    if (atomic_load_explicit(&now->from, memory_order_acquire) != NULL) {
        for (uint32_t i = 0; i < block->n; i++) {
            block->buckets[i] = hps_host_aim(now, hps_host_hash(seed, keys[i]));
        }
    } else {
        struct hps_host_bucket *array = now->array;
        uint64_t n_homes = now->n_homes;
        for (uint32_t i = 0; i < block->n; i++) {
            block->buckets[i] = &array[hps_host_home(hps_host_hash(seed, keys[i]), n_homes)];
        }
    }
    for (uint32_t i = 0; i < block->n; i++) {
        fetch(block->buckets[i]);
    }
}

/* Few keys: a pipeline would be filled and drained for nothing. */
static void look_up_naive(const struct hps_host_lookup *lookup, const struct hps_host_buckets *now,
                          struct hps_batch *batch, uint32_t lo, uint32_t hi)
{
    uint32_t row_bytes = lookup->rows->row_bytes;
    for (uint32_t i = hi; i-- > lo;) {
        uint64_t hash = hps_host_hash(lookup->index->seed, batch->keys[i]);
        struct hps_host_place place = hps_host_probe(hps_host_aim(now, hash), batch->keys[i]);
        if (place.bucket != NULL) {
            memcpy(batch->rows + (size_t)batch->slots[i] * row_bytes,
                   hps_host_row_at(lookup->rows, hps_host_row_of(place)), row_bytes);
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
    struct hps_host_block blocks[3];
    uint32_t n_blocks = (hi - lo + HPS_HOST_BLOCK_KEYS - 1) / HPS_HOST_BLOCK_KEYS;
    for (uint32_t i = 0; i < n_blocks + 2; i++) {
        if (i < n_blocks) {
            struct hps_host_block *block = &blocks[i % 3];
            block->n = hi - lo < HPS_HOST_BLOCK_KEYS ? hi - lo : HPS_HOST_BLOCK_KEYS;
            hi -= block->n;
            block->lo = hi;
            block_aim(lookup, now, batch->keys + hi, block);
        }
        if (i >= 1 && i - 1 < n_blocks) {
            struct hps_host_block *block = &blocks[(i - 1) % 3];
            kernel->probe(lookup, batch->keys + block->lo, block);
        }
        if (i >= 2) {
            kernel->copy(lookup, batch, &blocks[(i - 2) % 3]);
        }
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

/* SPDX-License-Identifier: Apache-2.0
 *
 * Lookups in two passes over a block of keys. The first pass prefetches the bucket of a later key
 * and probes the bucket that has arrived. The second does the same with rows: prefetch ahead, copy.
 * A prefetch holds a slot in the core until its page is translated, so only few instructions may
 * lie between two of them. Therefore keys are hashed beforehand, and there are two passes. One pass
 * for both bucket and row reached 0.60 of the ceiling of bench/ceiling.h, two passes 0.82. Any
 * thread.
 *
 * Vector kernels read the five keys of a bucket as plain loads. On x86 each 8-byte lane is read
 * whole, after the acquire load of the bucket's state. ThreadSanitizer cannot know that, so it gets
 * only the scalar kernel.
 */
#include "backends/host/kernel.h"

#include <string.h>
#include <unistd.h>

#include "base/assert.h"

#if defined(__x86_64__) && !defined(HPS_TSAN)
#define HOST_VECTORS 1
#include <immintrin.h>
#endif

enum {
    LINE_BYTES = HPS_HOST_LINE_BYTES,
    BUCKET_SHIFT = 6, /* log2 of the size of a bucket */
    NAIVE_KEYS = 12,
    AHEAD = HPS_HOST_AHEAD,
    L2_BYTES_USUAL = 2 << 20,
};

_Static_assert(HPS_HOST_BUCKET_BYTES == 1 << BUCKET_SHIFT, "addresses of buckets");

/* ---- passes, one for each kind of vectors ---------------------------------------------------- */

/* Compute the first bucket to probe for each key of a block, from `first` on. Done before any
 * prefetch, so that no hashing separates two prefetches. */
typedef void (*aim_fn)(const struct hps_host_lookup *lookup, const hps_key *keys,
                       struct hps_host_block *block, uint32_t first);
typedef uint32_t (*match_fn)(const struct hps_host_bucket *bucket, hps_key key);
/* Copy a row, and prefetch the row `ahead`, which may be `from` itself. With one prefetch between
 * two loads, more misses are in flight than with all prefetches of a row in a burst. */
typedef void (*copy_fn)(const struct hps_host_lookup *lookup, uint8_t *to, const uint8_t *from,
                        const uint8_t *ahead);

static inline const uint8_t *row_at(const struct hps_host_lookup *lookup,
                                    struct hps_host_place place)
{
    return lookup->rows + (size_t)hps_host_row_of(place) * lookup->stride;
}

static inline void hit_note(enum hps_host_note note, struct hps_host_place place,
                            struct hps_host_block *block, uint32_t i)
{
    if (note == HPS_HOST_NOTE_TOUCH) {
        hps_host_touch(place);
        return;
    }
    block->buckets[i] = place.bucket;
    block->places[i] = (uint8_t)place.slot;
}

static inline __attribute__((always_inline)) void block_hit(const struct hps_host_lookup *lookup,
                                                            struct hps_host_place place,
                                                            struct hps_host_block *block,
                                                            uint32_t i)
{
    if (lookup->note != HPS_HOST_NOTE_NOTHING) {
        hit_note(lookup->note, place, block, i);
    }
    block->rows[i] = row_at(lookup, place);
}

static inline void bucket_fetch(const struct hps_host_bucket *bucket)
{
    __builtin_prefetch(bucket, 0, 2); /* into L2, like rows */
}

/* Prefetch the cache line of a row at offset `at`. */
static inline void row_fetch_at(const uint8_t *row, uint32_t at)
{
    __builtin_prefetch(row + at, 0, 2);
}

static bool is_growing(const struct hps_host_block *block)
{
    return atomic_load_explicit(&block->now->from, memory_order_acquire) != NULL;
}

static void aim_plain(const struct hps_host_lookup *lookup, const hps_key *keys,
                      struct hps_host_block *block, uint32_t first)
{
    const struct hps_host_buckets *now = block->now;
    uint64_t seed = lookup->index->seed;
    if (is_growing(block)) {
        for (uint32_t i = first; i < block->n; i++) {
            block->buckets[i] = hps_host_aim(now, hps_host_hash(seed, keys[i]));
        }
        return;
    }
    struct hps_host_bucket *array = now->array;
    uint64_t n_homes = now->n_homes;
    for (uint32_t i = first, n = block->n; i < n; i++) {
        block->buckets[i] = &array[hps_host_home(hps_host_hash(seed, keys[i]), n_homes)];
    }
}

/* Keys that are not in their first bucket. */
struct missed {
    uint32_t n;
    uint32_t n_later; /* the part that may be in later buckets */
    uint16_t later[HPS_HOST_BLOCK_KEYS];
};

static inline __attribute__((always_inline)) void key_probe(const struct hps_host_lookup *lookup,
                                                            hps_key key,
                                                            struct hps_host_block *block,
                                                            uint32_t i, struct missed *missed,
                                                            match_fn match)
{
    struct hps_host_bucket *bucket = block->buckets[i];
    uint32_t state = hps_host_state(bucket);
    uint32_t found = match(bucket, key) & state & HPS_HOST_LIVE_ALL;
    if (found != 0) {
        struct hps_host_place place = {bucket, (unsigned)__builtin_ctz(found)};
        block_hit(lookup, place, block, i);
        return;
    }
    block->rows[i] = NULL;
    missed->n++;
    if (hps_host_passed(state)) {
        bucket_fetch(bucket + 1);
        missed->later[missed->n_later++] = (uint16_t)i;
    }
}

/* The next buckets have arrived by now. */
static void block_probe_later(const struct hps_host_lookup *lookup, const hps_key *keys,
                              struct hps_host_block *block, struct missed *missed)
{
    for (uint32_t l = 0; l < missed->n_later; l++) {
        uint32_t i = missed->later[l];
        struct hps_host_place place = hps_host_probe(block->buckets[i] + 1, keys[i]);
        if (place.bucket != NULL) {
            block_hit(lookup, place, block, i);
            missed->n--;
        }
    }
}

static inline __attribute__((always_inline)) void block_probe(const struct hps_host_lookup *given,
                                                              const hps_key *keys,
                                                              struct hps_host_block *block,
                                                              aim_fn aim, match_fn match)
{
    /* Keeps it in registers despite the writes below. */
    const struct hps_host_lookup lookup = *given;
    struct missed missed;
    missed.n = 0;
    missed.n_later = 0;
    aim(given, keys, block, 0);
    uint32_t n = block->n;
    uint32_t i = 0;
    for (; i < n && i < AHEAD; i++) {
        bucket_fetch(block->buckets[i]);
    }
    for (i = 0; i + AHEAD < n; i++) {
        bucket_fetch(block->buckets[i + AHEAD]);
        key_probe(&lookup, keys[i], block, i, &missed, match);
    }
    for (; i < n; i++) {
        key_probe(&lookup, keys[i], block, i, &missed, match);
    }
    block_probe_later(given, keys, block, &missed);
    block->n_found = n - missed.n;
}

/* Fast path: all keys were found, and no later key is missing. */
static inline __attribute__((always_inline)) void block_copy_all(
    const struct hps_host_lookup *lookup, struct hps_batch *batch,
    const struct hps_host_block *block, copy_fn copy)
{
    uint32_t n = block->n;
    const uint32_t *slots = batch->slots + block->lo;
    for (uint32_t i = 0; i < n && i < AHEAD; i++) {
        hps_host_row_fetch(lookup, block->rows[i]);
    }
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *ahead = block->rows[i + AHEAD < n ? i + AHEAD : i];
        copy(lookup, hps_host_out_at(&lookup->out, slots[i]), block->rows[i], ahead);
    }
    batch->n = block->lo;
}

/* From the last key to the first, so that a swap moves only keys that were handled. */
static inline __attribute__((always_inline)) void block_copy_found(
    const struct hps_host_lookup *lookup, struct hps_batch *batch,
    const struct hps_host_block *block, copy_fn copy)
{
    uint32_t n = block->n;
    for (uint32_t i = n + AHEAD; i-- > 0;) {
        const uint8_t *ahead = i >= AHEAD ? block->rows[i - AHEAD] : NULL;
        if (i < n && block->rows[i] != NULL) {
            uint32_t at = block->lo + i;
            copy(lookup, hps_host_out_at(&lookup->out, batch->slots[at]), block->rows[i],
                 ahead != NULL ? ahead : block->rows[i]);
            hps_batch_found(batch, at);
        } else if (ahead != NULL) {
            hps_host_row_fetch(lookup, ahead);
        }
    }
}

/* Prefetch the row of a key, and the head of its group if that decides whether the row exists. */
static inline __attribute__((always_inline)) const uint8_t *span_ahead(
    const struct hps_host_span *span, uint32_t stride, hps_key key)
{
    uint64_t number = key - span->first;
    number = number < span->n ? number : 0;
    if (number >= span->n_full) {
        __builtin_prefetch(hps_host_span_group(span, number), 0, 3);
    }
    return span->rows + number * stride;
}

/* Do both passes at once: copy rows of a dense range, and stop at the first key that it lacks. */
static inline __attribute__((always_inline)) void block_copy_span(
    const struct hps_host_lookup *lookup, struct hps_batch *batch,
    const struct hps_host_block *block, copy_fn copy)
{
    const struct hps_host_span span = *block->span;
    const hps_key *keys = batch->keys + block->lo;
    const uint32_t *slots = batch->slots + block->lo;
    const uint32_t n = block->n;
    for (uint32_t i = 0; i < n && i < AHEAD; i++) {
        hps_host_row_fetch(lookup, span_ahead(&span, lookup->stride, keys[i]));
    }
    for (uint32_t i = 0; i < n; i++) {
        uint64_t number = keys[i] - span.first;
        if (number >= span.n_full &&
            (number >= span.n || !hps_host_group_has(hps_host_span_group(&span, number), number))) {
            return;
        }
        const uint8_t *ahead =
            span_ahead(&span, lookup->stride, keys[i + AHEAD < n ? i + AHEAD : i]);
        copy(lookup, hps_host_out_at(&lookup->out, slots[i]), span.rows + number * lookup->stride,
             ahead);
    }
    batch->n = block->lo;
}

static inline __attribute__((always_inline)) void block_copy(const struct hps_host_lookup *given,
                                                             struct hps_batch *batch,
                                                             const struct hps_host_block *block,
                                                             copy_fn copy)
{
    const struct hps_host_lookup lookup = *given; /* in registers, as above */
    if (block->span != NULL) {
        block_copy_span(&lookup, batch, block, copy);
    } else if (block->n_found == block->n && block->lo + block->n == batch->n) {
        block_copy_all(&lookup, batch, block, copy);
    } else {
        block_copy_found(&lookup, batch, block, copy);
    }
}

/* Rows of whole, aligned cache lines. For the usual widths the loops over lines are unrolled,
 * because only few instructions may lie between two prefetches. */
static inline __attribute__((always_inline)) void block_copy_lines(
    const struct hps_host_lookup *given, struct hps_batch *batch,
    const struct hps_host_block *block, copy_fn copy)
{
    struct hps_host_lookup lookup = *given;
    switch (lookup.row_bytes / LINE_BYTES) {
#define LINES(n)                                   \
    case n:                                        \
        lookup.row_bytes = (n)*LINE_BYTES;         \
        lookup.fetch_bytes = ((n)-1) * LINE_BYTES; \
        block_copy(&lookup, batch, block, copy);   \
        break;
        LINES(1)
        LINES(2)
        LINES(4)
        LINES(8)
#undef LINES
    default:
        block_copy(&lookup, batch, block, copy);
    }
}

/* Other rows: the prefetch loop of short rows is unrolled. */
static inline __attribute__((always_inline)) void block_copy_other(
    const struct hps_host_lookup *given, struct hps_batch *batch,
    const struct hps_host_block *block, copy_fn copy)
{
    struct hps_host_lookup lookup = *given;
    switch (lookup.fetch_bytes / LINE_BYTES) {
#define STEPS(n)                                 \
    case n:                                      \
        lookup.fetch_bytes = (n)*LINE_BYTES;     \
        block_copy(&lookup, batch, block, copy); \
        break;
        STEPS(0)
        STEPS(1)
        STEPS(2)
        STEPS(3)
#undef STEPS
    default:
        block_copy(&lookup, batch, block, copy);
    }
}

/* Rows that need conversion, with the vectors of base/dtype.h. */
static inline void copy_converted(const struct hps_host_lookup *lookup, uint8_t *to,
                                  const uint8_t *from, const uint8_t *ahead)
{
    hps_host_row_fetch(lookup, ahead);
    lookup->out.convert(to, from, lookup->out.dim);
}

/* ---- scalar ---------------------------------------------------------------------------------- */

static bool runs_everywhere(void)
{
    return true;
}

static inline void copy_plain(const struct hps_host_lookup *lookup, uint8_t *to,
                              const uint8_t *from, const uint8_t *ahead)
{
    hps_host_row_fetch(lookup, ahead);
    memcpy(to, from, lookup->row_bytes);
}

static void scalar_probe(const struct hps_host_lookup *lookup, const hps_key *keys,
                         struct hps_host_block *block)
{
    block_probe(lookup, keys, block, aim_plain, hps_host_match);
}

static void scalar_copy(const struct hps_host_lookup *lookup, struct hps_batch *batch,
                        const struct hps_host_block *block)
{
    if (lookup->out.convert != NULL) {
        block_copy(lookup, batch, block, copy_converted);
    } else {
        block_copy(lookup, batch, block, copy_plain);
    }
}

#ifdef HOST_VECTORS

/* Narrow rows: two overlapping pieces instead of a loop for the rest. */
static inline __attribute__((always_inline)) void copy_narrow(uint8_t *to, const uint8_t *from,
                                                              uint32_t bytes)
{
    if (bytes >= 2 * sizeof(uint64_t)) {
        __m128i a = _mm_loadu_si128((const __m128i *)(const void *)from);
        __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(from + bytes - sizeof(a)));
        _mm_storeu_si128((__m128i *)(void *)to, a);
        _mm_storeu_si128((__m128i *)(void *)(to + bytes - sizeof(a)), b);
    } else {
        memcpy(to, from, bytes);
    }
}

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

AVX2 static inline void line_avx2(uint8_t *to, const uint8_t *from)
{
    __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)from);
    __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(from + 32));
    _mm256_storeu_si256((__m256i *)(void *)to, a);
    _mm256_storeu_si256((__m256i *)(void *)(to + 32), b);
}

AVX2 static inline void copy_avx2(const struct hps_host_lookup *lookup, uint8_t *to,
                                  const uint8_t *from, const uint8_t *ahead)
{
    HPS_HOST_UNROLL for (uint32_t at = 0; at < lookup->row_bytes; at += LINE_BYTES)
    {
        row_fetch_at(ahead, at);
        line_avx2(to + at, from + at);
    }
}

/* At least 32 bytes; the last piece overlaps the one before it. */
AVX2 static inline void copy_odd_avx2(const struct hps_host_lookup *lookup, uint8_t *to,
                                      const uint8_t *from, const uint8_t *ahead)
{
    hps_host_row_fetch(lookup, ahead);
    uint32_t bytes = lookup->row_bytes;
    for (uint32_t at = 0; at + 32 < bytes; at += 32) {
        _mm256_storeu_si256((__m256i *)(void *)(to + at),
                            _mm256_loadu_si256((const __m256i *)(const void *)(from + at)));
    }
    uint32_t last = bytes - 32;
    _mm256_storeu_si256((__m256i *)(void *)(to + last),
                        _mm256_loadu_si256((const __m256i *)(const void *)(from + last)));
}

AVX2 static inline void copy_narrow_avx2(const struct hps_host_lookup *lookup, uint8_t *to,
                                         const uint8_t *from, const uint8_t *ahead)
{
    hps_host_row_fetch(lookup, ahead);
    copy_narrow(to, from, lookup->row_bytes);
}

AVX2 static inline void stream_avx2(const struct hps_host_lookup *lookup, uint8_t *to,
                                    const uint8_t *from, const uint8_t *ahead)
{
    for (uint32_t at = 0; at < lookup->row_bytes; at += LINE_BYTES) {
        row_fetch_at(ahead, at);
        __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)(from + at));
        __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(from + at + 32));
        _mm256_stream_si256((__m256i *)(void *)(to + at), a);
        _mm256_stream_si256((__m256i *)(void *)(to + at + 32), b);
    }
}

AVX2 static void avx2_probe(const struct hps_host_lookup *lookup, const hps_key *keys,
                            struct hps_host_block *block)
{
    block_probe(lookup, keys, block, aim_plain, match_avx2);
}

AVX2 static void avx2_copy(const struct hps_host_lookup *lookup, struct hps_batch *batch,
                           const struct hps_host_block *block)
{
    if (lookup->out.convert != NULL) {
        block_copy_other(lookup, batch, block, copy_converted);
    } else if (lookup->out.stream) {
        block_copy(lookup, batch, block, stream_avx2);
    } else if (lookup->row_bytes % LINE_BYTES == 0) {
        block_copy_lines(lookup, batch, block, copy_avx2);
    } else if (lookup->row_bytes >= 32) {
        block_copy_other(lookup, batch, block, copy_odd_avx2);
    } else {
        block_copy_other(lookup, batch, block, copy_narrow_avx2);
    }
}

/* ---- AVX-512 --------------------------------------------------------------------------------- */

/* Used for hashes and copies only. Comparing a bucket as one vector was 2.7 % slower than as a
 * vector of four keys and one more. */

#define AVX512 __attribute__((target("avx512f,avx512dq,avx2,bmi")))

enum { HASHES = 8 }; /* per vector */

static bool runs_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && runs_avx2();
}

/* hps_host_hash and hps_host_home of 8 keys: the upper 64 bits of the product of a hash and
 * n_homes, which is below 2^32. */
AVX512 static inline __m512i homes_avx512(__m512i keys, __m512i seed, __m512i n_homes)
{
    const __m512i factor = _mm512_set1_epi64((long long)HPS_HOST_HASH_FACTOR);
    __m512i h = _mm512_xor_si512(keys, seed);
    h = _mm512_mullo_epi64(_mm512_xor_si512(h, _mm512_srli_epi64(h, 32)), factor);
    h = _mm512_mullo_epi64(_mm512_xor_si512(h, _mm512_srli_epi64(h, 32)), factor);
    h = _mm512_xor_si512(h, _mm512_srli_epi64(h, 32));
    __m512i upper = _mm512_mul_epu32(_mm512_srli_epi64(h, 32), n_homes);
    __m512i lower = _mm512_mul_epu32(h, n_homes);
    return _mm512_srli_epi64(_mm512_add_epi64(upper, _mm512_srli_epi64(lower, 32)), 32);
}

AVX512 static void aim_avx512(const struct hps_host_lookup *lookup, const hps_key *keys,
                              struct hps_host_block *block, uint32_t first)
{
    const struct hps_host_buckets *now = block->now;
    uint32_t i = first;
    if (!is_growing(block) && now->n_homes <= UINT32_MAX) {
        const __m512i array = _mm512_set1_epi64((long long)(uintptr_t)now->array);
        const __m512i seed = _mm512_set1_epi64((long long)lookup->index->seed);
        const __m512i n_homes = _mm512_set1_epi64((long long)now->n_homes);
        for (; i + HASHES <= block->n; i += HASHES) {
            __m512i homes =
                homes_avx512(_mm512_loadu_si512((const void *)(keys + i)), seed, n_homes);
            homes = _mm512_slli_epi64(homes, BUCKET_SHIFT);
            _mm512_storeu_si512((void *)(block->buckets + i), _mm512_add_epi64(array, homes));
        }
    }
    aim_plain(lookup, keys, block, i);
}

AVX512 static inline void copy_avx512(const struct hps_host_lookup *lookup, uint8_t *to,
                                      const uint8_t *from, const uint8_t *ahead)
{
    HPS_HOST_UNROLL for (uint32_t at = 0; at < lookup->row_bytes; at += LINE_BYTES)
    {
        row_fetch_at(ahead, at);
        _mm512_storeu_si512((void *)(to + at), _mm512_loadu_si512((const void *)(from + at)));
    }
}

/* More than a line; the last piece overlaps the one before it. */
AVX512 static inline void copy_odd_avx512(const struct hps_host_lookup *lookup, uint8_t *to,
                                          const uint8_t *from, const uint8_t *ahead)
{
    hps_host_row_fetch(lookup, ahead);
    uint32_t last = lookup->row_bytes - LINE_BYTES;
    for (uint32_t at = 0; at < last; at += LINE_BYTES) {
        _mm512_storeu_si512((void *)(to + at), _mm512_loadu_si512((const void *)(from + at)));
    }
    _mm512_storeu_si512((void *)(to + last), _mm512_loadu_si512((const void *)(from + last)));
}

AVX512 static inline void stream_avx512(const struct hps_host_lookup *lookup, uint8_t *to,
                                        const uint8_t *from, const uint8_t *ahead)
{
    for (uint32_t at = 0; at < lookup->row_bytes; at += LINE_BYTES) {
        row_fetch_at(ahead, at);
        _mm512_stream_si512((__m512i *)(void *)(to + at),
                            _mm512_loadu_si512((const void *)(from + at)));
    }
}

AVX512 static void avx512_probe(const struct hps_host_lookup *lookup, const hps_key *keys,
                                struct hps_host_block *block)
{
    block_probe(lookup, keys, block, aim_avx512, match_avx2);
}

AVX512 static void avx512_copy(const struct hps_host_lookup *lookup, struct hps_batch *batch,
                               const struct hps_host_block *block)
{
    if (lookup->out.convert == NULL && lookup->out.stream) {
        block_copy(lookup, batch, block, stream_avx512);
    } else if (lookup->out.convert == NULL && lookup->row_bytes % LINE_BYTES == 0) {
        block_copy_lines(lookup, batch, block, copy_avx512);
    } else if (lookup->out.convert == NULL && lookup->row_bytes > LINE_BYTES) {
        block_copy_other(lookup, batch, block, copy_odd_avx512);
    } else {
        avx2_copy(lookup, batch, block);
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

/* ---- lookups --------------------------------------------------------------------------------- */

/* Length to step over by cache lines so that, with the last byte, every line of a row is reached. A
 * row begins at a multiple of the largest power of 2 in the stride. */
static uint32_t fetch_bytes_of(const struct hps_host_rows *rows)
{
    uint32_t align = rows->stride & -rows->stride;
    uint32_t begin_max = align < LINE_BYTES ? LINE_BYTES - align : 0;
    return (begin_max + rows->row_bytes - 1) / LINE_BYTES * LINE_BYTES;
}

struct hps_host_lookup hps_host_lookup(const struct hps_host_index *index,
                                       const struct hps_host_rows *rows)
{
    return (struct hps_host_lookup){.index = index,
                                    .rows = rows->area.start,
                                    .row_bytes = rows->row_bytes,
                                    .stride = rows->stride,
                                    .fetch_bytes = fetch_bytes_of(rows)};
}

/* Few keys: prefetching has nothing to overlap with. */
static void lookup_naive(const struct hps_host_lookup *lookup, const struct hps_host_buckets *now,
                         struct hps_batch *batch, uint32_t lo, uint32_t hi)
{
    for (uint32_t i = hi; i-- > lo;) {
        uint64_t hash = hps_host_hash(lookup->index->seed, batch->keys[i]);
        struct hps_host_place place = hps_host_probe(hps_host_aim(now, hash), batch->keys[i]);
        if (place.bucket != NULL) {
            hps_host_row_read(lookup, hps_host_out_at(&lookup->out, batch->slots[i]),
                              row_at(lookup, place));
            if (lookup->note == HPS_HOST_NOTE_TOUCH) {
                hps_host_touch(place);
            }
            hps_batch_found(batch, i);
        }
    }
}

void hps_host_lookup_run(const struct hps_host_lookup *lookup, const struct hps_host_kernel *kernel,
                         struct hps_batch *batch, uint32_t lo, uint32_t hi)
{
    const struct hps_host_buckets *now =
        atomic_load_explicit(&lookup->index->now, memory_order_acquire);
    if (hi - lo < NAIVE_KEYS) {
        lookup_naive(lookup, now, batch, lo, hi);
    } else {
        struct hps_host_block block;
        block.now = now;
        while (hi > lo) {
            block.n = hi - lo < HPS_HOST_BLOCK_KEYS ? hi - lo : HPS_HOST_BLOCK_KEYS;
            hi -= block.n;
            block.lo = hi;
            block.span = NULL;
            kernel->probe(lookup, batch->keys + hi, &block);
            kernel->copy(lookup, batch, &block);
        }
    }
    if (lookup->out.stream) {
        hps_row_stream_end(); /* makes streamed rows visible before they are announced */
    }
}

/* ---- destination of rows --------------------------------------------------------------------- */

static bool more_than_l2(uint64_t bytes)
{
    static _Atomic(long) l2_bytes; /* queried from the system once */
    long l2 = atomic_load_explicit(&l2_bytes, memory_order_relaxed);
    if (l2 == 0) {
        l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
        l2 = l2 > 0 ? l2 : L2_BYTES_USUAL;
        atomic_store_explicit(&l2_bytes, l2, memory_order_relaxed);
    }
    return bytes > (uint64_t)l2;
}

struct hps_host_out hps_host_out(const struct hps_table *table, const struct hps_batch *batch)
{
    const struct hps_shape *shape = &batch->shape;
    struct hps_host_out out = {batch->rows, table->row_bytes, NULL, table->dim, false};
    enum hps_dtype dtype = table->dtype;
    uint64_t row_bytes = table->row_bytes;
    if (shape->rows != NULL) {
        out.rows = shape->rows;
        out.stride = shape->stride;
        dtype = shape->dtype;
        row_bytes = hps_dtype_row_bytes(dtype, table->dim);
        HPS_DEBUG_ASSERT(shape->stride >= row_bytes);
    }
    out.stream = (row_bytes | out.stride | (uintptr_t)out.rows) % LINE_BYTES == 0 &&
                 more_than_l2(batch->n * row_bytes);
    if (dtype != table->dtype) {
        out.convert = hps_row_converter(dtype, table->dtype, out.stream);
    }
    return out;
}

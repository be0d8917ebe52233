/* SPDX-License-Identifier: Apache-2.0
 *
 * See ceiling.h. The gather prefetches, with as few instructions as possible between two
 * prefetches.
 */
#include "bench/ceiling.h"

#include <string.h>

#include "base/hash.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

enum { AHEAD = 48, LINE = 64 };

hps_status bench_ceiling_open(struct bench_ceiling *ceiling, uint64_t rows_bytes, uint64_t n_rows,
                              struct hps_error *err)
{
    *ceiling = (struct bench_ceiling){.pool = hps_block_pool_new(0), .n_lines = n_rows / 4};
    if (ceiling->pool != NULL) {
        ceiling->rows_block = hps_block_new(ceiling->pool, rows_bytes);
        ceiling->lines_block = hps_block_new(ceiling->pool, ceiling->n_lines * LINE);
    }
    if (ceiling->rows_block == NULL || ceiling->lines_block == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for %llu rows",
                             (unsigned long long)n_rows);
    }
    ceiling->rows = ceiling->rows_block->data;
    ceiling->lines = ceiling->lines_block->data;
    memset(ceiling->rows, 1, rows_bytes);
    memset(ceiling->lines, 1, ceiling->n_lines * LINE);
    return HPS_OK;
}

void bench_ceiling_close(struct bench_ceiling *ceiling)
{
    hps_block_unref(ceiling->lines_block);
    hps_block_unref(ceiling->rows_block);
    if (ceiling->pool != NULL) {
        hps_block_pool_free(ceiling->pool);
    }
    *ceiling = (struct bench_ceiling){0};
}

/* Copy a row and prefetch the row `ahead`, which may be `from` itself. */
typedef void (*copy_fn)(uint8_t *to, const uint8_t *from, const uint8_t *ahead, uint32_t bytes);

static inline __attribute__((always_inline)) void fetch(const uint8_t *row, uint32_t bytes)
{
    for (uint32_t at = 0; at < bytes; at += LINE) {
        __builtin_prefetch(row + at, 0, 2);
    }
    if (bytes % LINE != 0) { /* a row may touch one more line */
        __builtin_prefetch(row + bytes - 1, 0, 2);
    }
}

static inline __attribute__((always_inline)) void gather(const struct bench_ceiling *ceiling,
                                                         uint32_t row_bytes, const uint64_t *places,
                                                         unsigned n, uint8_t *out, copy_fn copy)
{
    const uint8_t *rows = ceiling->rows;

    for (unsigned i = 0; i < n && i < AHEAD; i++) {
        fetch(rows + places[i] * row_bytes, row_bytes);
    }
    for (unsigned i = 0; i < n; i++) {
        uint64_t ahead = places[i + AHEAD < n ? i + AHEAD : i];
        copy(out + (size_t)i * row_bytes, rows + places[i] * row_bytes, rows + ahead * row_bytes,
             row_bytes);
    }
}

static inline void copy_plain(uint8_t *to, const uint8_t *from, const uint8_t *ahead,
                              uint32_t bytes)
{
    fetch(ahead, bytes);
    memcpy(to, from, bytes);
}

#ifdef __x86_64__

/* In rows of whole lines, one prefetch lies between a line and the next. With all prefetches of a
 * row in a burst, fewer misses are in flight. */

#define AVX2   __attribute__((target("avx2")))
#define AVX512 __attribute__((target("avx512f")))

AVX2 static inline void lines_avx2(uint8_t *to, const uint8_t *from, const uint8_t *ahead,
                                   uint32_t bytes)
{
    for (uint32_t at = 0; at < bytes; at += LINE) {
        __builtin_prefetch(ahead + at, 0, 2);
        __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)(from + at));
        __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(from + at + 32));
        _mm256_storeu_si256((__m256i *)(void *)(to + at), a);
        _mm256_storeu_si256((__m256i *)(void *)(to + at + 32), b);
    }
}

/* At least 32 bytes: the last piece overlaps the one before it. */
AVX2 static inline void copy_avx2(uint8_t *to, const uint8_t *from, const uint8_t *ahead,
                                  uint32_t bytes)
{
    fetch(ahead, bytes);
    for (uint32_t at = 0; at + 32 < bytes; at += 32) {
        _mm256_storeu_si256((__m256i *)(void *)(to + at),
                            _mm256_loadu_si256((const __m256i *)(const void *)(from + at)));
    }
    _mm256_storeu_si256((__m256i *)(void *)(to + bytes - 32),
                        _mm256_loadu_si256((const __m256i *)(const void *)(from + bytes - 32)));
}

AVX2 static inline void stream_avx2(uint8_t *to, const uint8_t *from, const uint8_t *ahead,
                                    uint32_t bytes)
{
    for (uint32_t at = 0; at < bytes; at += LINE) {
        __builtin_prefetch(ahead + at, 0, 2);
        __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)(from + at));
        __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(from + at + 32));
        _mm256_stream_si256((__m256i *)(void *)(to + at), a);
        _mm256_stream_si256((__m256i *)(void *)(to + at + 32), b);
    }
}

AVX512 static inline void lines_avx512(uint8_t *to, const uint8_t *from, const uint8_t *ahead,
                                       uint32_t bytes)
{
    for (uint32_t at = 0; at < bytes; at += LINE) {
        __builtin_prefetch(ahead + at, 0, 2);
        _mm512_storeu_si512((void *)(to + at), _mm512_loadu_si512((const void *)(from + at)));
    }
}

/* At least 64 bytes. */
AVX512 static inline void copy_avx512(uint8_t *to, const uint8_t *from, const uint8_t *ahead,
                                      uint32_t bytes)
{
    fetch(ahead, bytes);
    for (uint32_t at = 0; at + 64 < bytes; at += 64) {
        _mm512_storeu_si512((void *)(to + at), _mm512_loadu_si512((const void *)(from + at)));
    }
    _mm512_storeu_si512((void *)(to + bytes - 64),
                        _mm512_loadu_si512((const void *)(from + bytes - 64)));
}

AVX2 static void gather_avx2(const struct bench_ceiling *ceiling, uint32_t row_bytes,
                             const uint64_t *places, unsigned n, uint8_t *out, bool stream)
{
    if (stream) {
        gather(ceiling, row_bytes, places, n, out, stream_avx2);
    } else if (row_bytes % LINE == 0) {
        gather(ceiling, row_bytes, places, n, out, lines_avx2);
    } else {
        gather(ceiling, row_bytes, places, n, out, copy_avx2);
    }
}

AVX512 static void gather_avx512(const struct bench_ceiling *ceiling, uint32_t row_bytes,
                                 const uint64_t *places, unsigned n, uint8_t *out)
{
    if (row_bytes % LINE == 0) {
        gather(ceiling, row_bytes, places, n, out, lines_avx512);
    } else {
        gather(ceiling, row_bytes, places, n, out, copy_avx512);
    }
}

#endif

void bench_ceiling_gather(const struct bench_ceiling *ceiling, uint32_t row_bytes,
                          const uint64_t *places, unsigned n, uint8_t *out, enum bench_copy how)
{
#ifdef __x86_64__
    bool stream = how == BENCH_COPY_STREAM && row_bytes % LINE == 0 && (uintptr_t)out % LINE == 0;
    bool vectors = how != BENCH_COPY_PLAIN;
    if (vectors && !stream && row_bytes >= 64 && __builtin_cpu_supports("avx512f")) {
        gather_avx512(ceiling, row_bytes, places, n, out);
        return;
    }
    if (vectors && row_bytes >= 32 && __builtin_cpu_supports("avx2")) {
        gather_avx2(ceiling, row_bytes, places, n, out, stream);
        return;
    }
#endif
    (void)how;
    gather(ceiling, row_bytes, places, n, out, copy_plain);
}

void bench_ceiling_touch(struct bench_ceiling *ceiling, const hps_key *keys, unsigned n)
{
    uint64_t lines[BENCH_CEILING_KEYS_MAX];

    for (unsigned i = 0; i < n; i++) {
        lines[i] = (uint64_t)(((unsigned __int128)hps_mix64(keys[i]) * ceiling->n_lines) >> 64);
    }
    for (unsigned i = 0; i < n + AHEAD; i++) {
        if (i < n) {
            __builtin_prefetch(ceiling->lines + lines[i] * LINE, 0, 2);
        }
        if (i >= AHEAD) {
            ceiling->sink += ceiling->lines[lines[i - AHEAD] * LINE];
        }
    }
}

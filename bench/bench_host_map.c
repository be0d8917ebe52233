/* SPDX-License-Identifier: Apache-2.0
 *
 * Look-ups in the host map against what the memory allows: gathering rows whose places are known,
 * plus touching one index line per key. One thread, batches of 1,024 random keys; its CPU time, as
 * none of the three waits.
 */
#include <stdio.h>
#include <string.h>

#include "backends/host/map.h"
#include "backends/store_limits.h"
#include "base/arena.h"
#include "base/block.h"
#include "base/hash.h"
#include "base/heap.h"
#include "bench/bench.h"
#include "client/zipf.h"

enum {
    BATCH = 1024,
    ROUNDS = 5,
    AHEAD = 48, /* rows between prefetch and use */
    LINE = 64,
    PIECE = 4096,
    STREAM_BYTES_MIN = 256, /* rows from here on are written past the cache */
};
#define ROUND_NS UINT64_C(300000000)

struct work {
    struct hps_store *store;
    struct hps_space *space;
    struct hps_table table;
    struct hps_arena *arena;
    struct hps_block_pool *pool; /* its blocks are in 2 MB pages, like the map's */
    struct hps_block *rows_block, *lines_block;
    uint8_t *rows;  /* [n][row_bytes], for the ceiling */
    uint8_t *lines; /* [n_lines][LINE] */
    uint64_t n_lines;
    uint8_t *out;
    hps_key keys[BATCH];
    uint32_t slots[BATCH];
    uint64_t places[BATCH];
    struct hps_random random;
    struct hps_zipf zipf;
    uint64_t sink;
};

static hps_key key_of(uint64_t row)
{
    return hps_mix64(row + 1);
}

static hps_status fill(struct work *work, struct hps_error *err)
{
    uint32_t row_bytes = work->table.row_bytes;
    uint64_t n = work->table.n_rows;
    const struct hps_store_ops *ops = work->store->ops;
    struct hps_call call = {.scratch = work->arena};
    hps_key keys[PIECE];
    hps_status status = HPS_OK;

    for (uint64_t row = 0; row < n && status == HPS_OK; row += PIECE) {
        uint32_t count = n - row < PIECE ? (uint32_t)(n - row) : PIECE;
        for (uint32_t i = 0; i < count; i++) {
            keys[i] = key_of(row + i);
            memset(work->rows + (row + i) * row_bytes, (int)((row + i) & 0xff), row_bytes);
        }
        status =
            ops->put(work->space, &call, &work->table, keys, work->rows + row * row_bytes, count);
    }
    return status == HPS_OK ? HPS_OK
                            : hps_error_set(err, status, "fill: %s", hps_status_text(status));
}

static void prefetch_row(const uint8_t *row, uint32_t bytes)
{
    for (uint32_t at = 0; at < bytes; at += LINE) {
        __builtin_prefetch(row + at, 0, 2);
    }
}

static void draw(struct work *work)
{
    for (unsigned i = 0; i < BATCH; i++) {
        work->places[i] = hps_zipf_row(&work->zipf, hps_zipf_rank(&work->zipf, &work->random));
        work->keys[i] = key_of(work->places[i]);
        work->slots[i] = i;
    }
}

/* The fastest way known to write a row that is not read again here. */
static void copy_row(uint8_t *to, const uint8_t *from, uint32_t bytes)
{
#ifdef __SSE2__
    typedef long long vector __attribute__((vector_size(16)));
    if (bytes >= STREAM_BYTES_MIN) {
        for (uint32_t at = 0; at < bytes; at += (uint32_t)sizeof(vector)) {
            __builtin_ia32_movntdq((vector *)(void *)(to + at),
                                   *(const vector *)(const void *)(from + at));
        }
        return;
    }
#endif
    memcpy(to, from, bytes);
}

static void gather(struct work *work)
{
    uint32_t bytes = work->table.row_bytes;

    for (unsigned i = 0; i < BATCH + AHEAD; i++) {
        if (i < BATCH) {
            prefetch_row(work->rows + work->places[i] * bytes, bytes);
        }
        if (i >= AHEAD) {
            copy_row(work->out + (size_t)(i - AHEAD) * bytes,
                     work->rows + work->places[i - AHEAD] * bytes, bytes);
        }
    }
}

static void touch_index(struct work *work)
{
    uint64_t lines[BATCH];

    for (unsigned i = 0; i < BATCH; i++) {
        lines[i] = (uint64_t)(((unsigned __int128)hps_mix64(work->keys[i]) * work->n_lines) >> 64);
    }
    for (unsigned i = 0; i < BATCH + AHEAD; i++) {
        if (i < BATCH) {
            __builtin_prefetch(work->lines + lines[i] * LINE, 0, 2);
        }
        if (i >= AHEAD) {
            work->sink += work->lines[lines[i - AHEAD] * LINE];
        }
    }
}

static hps_status look_up(struct work *work)
{
    struct hps_call call = {.scratch = work->arena};
    struct hps_batch batch = {
        .keys = work->keys, .slots = work->slots, .rows = work->out, .n = BATCH};

    hps_arena_reset(work->arena);
    hps_status status = work->store->ops->get(work->space, &call, &work->table, &batch);
    return status == HPS_OK && batch.n != 0 ? HPS_INTERNAL : status;
}

static uint64_t cpu_ns(void)
{
    return bench_clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

/* Nanoseconds per key of each of the three, interleaved batch by batch. */
static hps_status round_of(struct work *work, double *out_gather, double *out_index,
                           double *out_lookup)
{
    uint64_t spent[3] = {0, 0, 0};
    uint64_t n_batches = 0;
    uint64_t end_ns = bench_now_ns() + ROUND_NS;

    do {
        draw(work);
        uint64_t t0 = cpu_ns();
        gather(work);
        uint64_t t1 = cpu_ns();
        draw(work); /* other keys, so that nothing is warm from the step before */
        uint64_t t2 = cpu_ns();
        touch_index(work);
        uint64_t t3 = cpu_ns();
        draw(work);
        uint64_t t4 = cpu_ns();
        hps_status status = look_up(work);
        uint64_t t5 = cpu_ns();
        if (status != HPS_OK) {
            return status;
        }
        spent[0] += t1 - t0;
        spent[1] += t3 - t2;
        spent[2] += t5 - t4;
        n_batches++;
    } while (bench_now_ns() < end_ns);
    double keys = (double)n_batches * BATCH;
    *out_gather = (double)spent[0] / keys;
    *out_index = (double)spent[1] / keys;
    *out_lookup = (double)spent[2] / keys;
    return HPS_OK;
}

static hps_status measure(struct work *work, const char *name, double target, struct hps_error *err)
{
    double gather_ns[ROUNDS], index_ns[ROUNDS], lookup_ns[ROUNDS], ratio[ROUNDS];

    for (int i = 0; i < ROUNDS; i++) {
        hps_status status = round_of(work, &gather_ns[i], &index_ns[i], &lookup_ns[i]);
        if (status != HPS_OK) {
            return hps_error_set(err, status, "%s: %s", name, hps_status_text(status));
        }
        ratio[i] = (gather_ns[i] + index_ns[i]) / lookup_ns[i];
    }
    bench_report(name, "gather", bench_median(gather_ns, ROUNDS), "ns/key", BENCH_NO_TARGET, 0);
    bench_report(name, "index", bench_median(index_ns, ROUNDS), "ns/key", BENCH_NO_TARGET, 0);
    bench_report(name, "lookup", bench_median(lookup_ns, ROUNDS), "ns/key", BENCH_NO_TARGET, 0);
    bench_report(name, "(gather+index)/lookup", bench_median(ratio, ROUNDS), "ratio",
                 BENCH_AT_LEAST, target);
    return HPS_OK;
}

static hps_status run_dim(uint32_t dim, uint64_t n_rows, double target, struct hps_error *err)
{
    static float zeros[256];
    struct work *work = hps_calloc(1, sizeof(*work));
    char name[64];
    hps_status status = HPS_NO_MEMORY;

    if (work == NULL) {
        return hps_error_set(err, status, "no memory");
    }
    work->table = (struct hps_table){"t", 0, dim, dim * 4, HPS_DTYPE_FP32, n_rows, zeros};
    work->random.state = 1;
    work->n_lines = n_rows / 4;
    work->arena = hps_arena_new(1 << 20, 16 << 20);
    work->pool = hps_block_pool_new(0);
    work->out = hps_alloc_aligned(64, (size_t)BATCH * work->table.row_bytes);
    if (work->pool != NULL) {
        work->rows_block = hps_block_new(work->pool, n_rows * work->table.row_bytes);
        work->lines_block = hps_block_new(work->pool, work->n_lines * LINE);
    }
    if (work->arena == NULL || work->rows_block == NULL || work->lines_block == NULL ||
        work->out == NULL) {
        (void)hps_error_set(err, status, "no memory for %llu rows", (unsigned long long)n_rows);
        goto out;
    }
    work->rows = work->rows_block->data;
    work->lines = work->lines_block->data;
    memset(work->lines, 1, work->n_lines * LINE);
    struct hps_space_id id = {"m", 1, &work->table, 1, 0};
    status = hps_host_map_open(UINT64_C(8) << 30, &work->store, err);
    if (status == HPS_OK) {
        status = work->store->ops->space_open(work->store, &id, &work->space, err);
    }
    if (status == HPS_OK) { /* as a load does: else the index is left in the middle of a growth */
        status = work->store->ops->limits->reserve(work->space, err);
    }
    if (status == HPS_OK) {
        status = fill(work, err);
    }
    for (int skewed = 0; skewed < 2 && status == HPS_OK; skewed++) {
        hps_zipf_init(&work->zipf, n_rows, skewed ? 0.99 : 0, 0);
        (void)snprintf(name, sizeof(name), "dim %u, %llu M rows, %s", dim,
                       (unsigned long long)(n_rows >> 20), skewed ? "zipf 0.99" : "uniform");
        status = measure(work, name, target, err);
    }
out:
    if (work->space != NULL) {
        work->store->ops->space_close(work->space);
    }
    if (work->store != NULL) {
        work->store->ops->close(work->store);
    }
    hps_free_aligned(work->out);
    hps_block_unref(work->lines_block);
    hps_block_unref(work->rows_block);
    if (work->pool != NULL) {
        hps_block_pool_free(work->pool);
    }
    hps_arena_free(work->arena);
    hps_free(work);
    return status;
}

hps_status bench_host_map(struct hps_error *err)
{
    bench_bind(1);
    hps_status status = run_dim(16, UINT64_C(8) << 20, 0.9, err);
    return status != HPS_OK ? status : run_dim(128, UINT64_C(2) << 20, 0.75, err);
}

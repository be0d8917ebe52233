/* SPDX-License-Identifier: Apache-2.0
 *
 * Look-ups in the host map against hash maps of C++ libraries that lead to rows in one array of
 * 2 MB pages: what one would write without a host map. Batch by batch in turn, other keys each
 * time. Main thread.
 */
#include "bench/bench_maps.h"

#include <stdio.h>
#include <string.h>

#include "backends/host/map.h"
#include "base/block.h"
#include "base/heap.h"
#include "bench/bench.h"
#include "client/zipf.h"

enum { BATCH = 1024, PIECE = 4096, ROUNDS = 5, OURS = 0, KINDS_MAX = 8 };
#define ROUND_NS UINT64_C(300000000)

#ifndef HPS_BENCH_CXX /* no C++ compiler when this was built */
const struct bench_map_kind bench_map_kinds[] = {{NULL, NULL, NULL, NULL}};
#endif

struct work {
    struct hps_store *store;
    struct hps_space *space;
    struct hps_table table;
    struct hps_block_pool *pool;
    struct hps_block *block; /* the others' rows */
    struct bench_map_rows rows;
    void *maps[KINDS_MAX];
    unsigned n_maps;
    hps_key *all_keys; /* [n_rows] */
    uint8_t *out;
    hps_key keys[BATCH];
    uint32_t slots[BATCH];
    struct hps_random random;
    struct hps_zipf zipf;
};

/* ns per key; [OURS], then the others in their order */
struct times {
    double ns[1 + KINDS_MAX][ROUNDS];
};

static void draw(struct work *work)
{
    for (uint32_t i = 0; i < BATCH; i++) {
        work->keys[i] =
            work->all_keys[hps_zipf_row(&work->zipf, hps_zipf_rank(&work->zipf, &work->random))];
        work->slots[i] = i;
    }
}

/* Time of this thread: what other programs take from it does not count. */
static uint64_t cpu_ns(void)
{
    return bench_clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

/* One batch by each map. */
static hps_status run_turn(struct work *work, uint64_t *spent_ns)
{
    struct hps_call call = {0};
    struct hps_batch batch = {work->keys, work->slots, work->out, BATCH};

    draw(work);
    uint64_t start_ns = cpu_ns();
    hps_status status = work->store->ops->get(work->space, &call, &work->table, &batch);
    spent_ns[OURS] += cpu_ns() - start_ns;
    if (status != HPS_OK || batch.n != 0) {
        return status != HPS_OK ? status : HPS_NOT_FOUND;
    }
    for (unsigned i = 0; i < work->n_maps; i++) {
        draw(work);
        start_ns = cpu_ns();
        uint32_t n_found =
            bench_map_kinds[i].get(work->maps[i], &work->rows, work->keys, BATCH, work->out);
        spent_ns[1 + i] += cpu_ns() - start_ns;
        if (n_found != BATCH) {
            return HPS_NOT_FOUND;
        }
    }
    return HPS_OK;
}

static hps_status measure(struct work *work, const char *name, struct hps_error *err)
{
    struct times times = {0};

    for (unsigned round = 0; round < ROUNDS; round++) {
        uint64_t spent_ns[1 + KINDS_MAX] = {0};
        uint64_t n_keys = 0, end_ns = bench_now_ns() + ROUND_NS;
        while (bench_now_ns() < end_ns) {
            hps_status status = run_turn(work, spent_ns);
            if (status != HPS_OK) {
                return hps_error_set(err, status, "%s: %s", name, hps_status_text(status));
            }
            n_keys += BATCH;
        }
        for (unsigned i = 0; i <= work->n_maps; i++) {
            times.ns[i][round] = (double)spent_ns[i] / (double)n_keys;
        }
    }
    for (unsigned i = 0; i < work->n_maps; i++) {
        double ratio[ROUNDS];
        char metric[48];
        for (unsigned round = 0; round < ROUNDS; round++) {
            ratio[round] = times.ns[1 + i][round] / times.ns[OURS][round];
        }
        (void)snprintf(metric, sizeof(metric), "host map/%s", bench_map_kinds[i].name);
        bench_report(name, metric, bench_median(ratio, ROUNDS), "speed-up", BENCH_NO_TARGET, 0);
        bench_report(name, bench_map_kinds[i].name, bench_median(times.ns[1 + i], ROUNDS), "ns/key",
                     BENCH_NO_TARGET, 0);
    }
    bench_report(name, "host map", bench_median(times.ns[OURS], ROUNDS), "ns/key", BENCH_NO_TARGET,
                 0);
    return HPS_OK;
}

/* Every map gets the same keys and rows. */
static hps_status fill(struct work *work)
{
    struct hps_call call = {0};
    uint32_t n_rows = (uint32_t)work->table.n_rows, row_bytes = work->table.row_bytes;
    hps_status status = HPS_OK;

    for (uint32_t row = 0; row < n_rows; row++) {
        work->all_keys[row] = hps_mix64((uint64_t)row + 1);
    }
    memset(work->block->data, 1, (size_t)n_rows * row_bytes);
    for (uint32_t row = 0; row < n_rows && status == HPS_OK; row += PIECE) {
        uint32_t n = n_rows - row < PIECE ? n_rows - row : PIECE;
        status = work->store->ops->put(work->space, &call, &work->table, work->all_keys + row,
                                       work->rows.data + (size_t)row * row_bytes, n);
    }
    for (; status == HPS_OK && bench_map_kinds[work->n_maps].name != NULL; work->n_maps++) {
        if (work->n_maps == KINDS_MAX) {
            return HPS_INTERNAL;
        }
        work->maps[work->n_maps] = bench_map_kinds[work->n_maps].make(work->all_keys, n_rows);
        status = work->maps[work->n_maps] == NULL ? HPS_NO_MEMORY : HPS_OK;
    }
    return status;
}

static hps_status work_open(struct work *work, uint32_t dim, uint32_t n_rows, struct hps_error *err)
{
    static const float zeros[256];

    work->table = (struct hps_table){"t", 0, dim, dim * 4, HPS_DTYPE_FP32, n_rows, zeros};
    work->random.state = 1;
    work->all_keys = hps_calloc(n_rows, sizeof(*work->all_keys));
    work->out = hps_alloc_aligned(64, (size_t)BATCH * work->table.row_bytes);
    work->pool = hps_block_pool_new(0);
    if (work->pool != NULL) {
        work->block = hps_block_new(work->pool, (size_t)n_rows * work->table.row_bytes);
    }
    if (work->all_keys == NULL || work->out == NULL || work->block == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for %u rows", n_rows);
    }
    work->rows = (struct bench_map_rows){work->block->data, work->table.row_bytes};
    struct hps_space_id id = {"m", 1, &work->table, 1, 0};
    hps_status status = hps_host_map_open(UINT64_C(4) << 30, &work->store, err);
    if (status == HPS_OK) {
        status = work->store->ops->space_open(work->store, &id, &work->space, err);
    }
    if (status == HPS_OK) {
        status = fill(work);
        if (status != HPS_OK) {
            (void)hps_error_set(err, status, "fill: %s", hps_status_text(status));
        }
    }
    return status;
}

static void work_close(struct work *work)
{
    for (unsigned i = 0; i < work->n_maps; i++) {
        bench_map_kinds[i].free(work->maps[i]);
    }
    if (work->space != NULL) {
        work->store->ops->space_close(work->space);
    }
    if (work->store != NULL) {
        work->store->ops->close(work->store);
    }
    hps_block_unref(work->block);
    if (work->pool != NULL) {
        hps_block_pool_free(work->pool);
    }
    hps_free_aligned(work->out);
    hps_free(work->all_keys);
    hps_free(work);
}

static hps_status run_dim(uint32_t dim, uint32_t n_rows, struct hps_error *err)
{
    struct work *work = hps_calloc(1, sizeof(*work));
    char name[64];

    if (work == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory");
    }
    hps_status status = work_open(work, dim, n_rows, err);
    for (int skewed = 0; skewed < 2 && status == HPS_OK; skewed++) {
        hps_zipf_init(&work->zipf, n_rows, skewed ? 0.99 : 0, 0);
        (void)snprintf(name, sizeof(name), "dim %u, %u M rows, %s", dim, n_rows >> 20,
                       skewed ? "zipf 0.99" : "uniform");
        status = measure(work, name, err);
    }
    work_close(work);
    return status;
}

hps_status bench_maps(struct hps_error *err)
{
    if (bench_map_kinds[0].name == NULL) {
        (void)fprintf(stderr, "hps-benchmarks: maps: built without a C++ compiler, nothing to "
                              "compare with\n");
    }
    bench_bind(1);
    hps_status status = run_dim(16, 4 << 20, err);
    return status != HPS_OK ? status : run_dim(128, 1 << 20, err);
}

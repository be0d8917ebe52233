/* SPDX-License-Identifier: Apache-2.0
 *
 * Lookups in the host map compared with the ceiling of the memory: gather rows at known places and
 * touch one index line per key. The gather uses memcpy or non-temporal stores, whichever is faster;
 * the vector gather is reported without a target. One thread, batches of 1,024 random keys, CPU
 * time.
 */
#include <stdio.h>
#include <string.h>

#include "backends/host/map.h"
#include "backends/store_limits.h"
#include "base/arena.h"
#include "base/hash.h"
#include "base/heap.h"
#include "bench/bench.h"
#include "bench/ceiling.h"
#include "client/zipf.h"

enum { BATCH = BENCH_CEILING_KEYS_MAX, ROUNDS = 5, PIECE = 4096 };
#define ROUND_NS UINT64_C(300000000)

struct work {
    struct hps_store *store;
    struct hps_space *space;
    struct hps_table table;
    struct hps_arena *arena;
    struct bench_ceiling ceiling;
    uint8_t *out;
    uint8_t *streamed; /* for non-temporal stores, which would evict `out` */
    hps_key keys[BATCH];
    uint32_t slots[BATCH];
    uint64_t places[BATCH];
    struct hps_random random;
    struct hps_zipf zipf;
};

/* Nanoseconds per key. */
struct spent {
    double gather[3]; /* by enum bench_copy */
    double index;
    double lookup;
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
            memset(work->ceiling.rows + (row + i) * row_bytes, (int)((row + i) & 0xff), row_bytes);
        }
        status = ops->put(work->space, &call, &work->table, keys,
                          work->ceiling.rows + row * row_bytes, count);
    }
    return status == HPS_OK ? HPS_OK
                            : hps_error_set(err, status, "fill: %s", hps_status_text(status));
}

static void draw(struct work *work)
{
    for (unsigned i = 0; i < BATCH; i++) {
        work->places[i] = hps_zipf_row(&work->zipf, hps_zipf_rank(&work->zipf, &work->random));
        work->keys[i] = key_of(work->places[i]);
        work->slots[i] = i;
    }
}

static hps_status do_lookup(struct work *work)
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

/* Each step has its own keys, so that no step warms the cache for the next one. The steps take
 * turns batch by batch. */
static hps_status round_of(struct work *work, struct spent *out_spent)
{
    enum { INDEX = 3, LOOKUP, STEPS };
    uint64_t spent[STEPS] = {0};
    uint64_t n_batches = 0;
    uint64_t end_ns = bench_now_ns() + ROUND_NS;
    hps_status status = HPS_OK;

    do {
        for (unsigned step = 0; step < STEPS && status == HPS_OK; step++) {
            draw(work);
            uint64_t begin_ns = cpu_ns();
            if (step < INDEX) {
                bench_ceiling_gather(&work->ceiling, work->table.row_bytes, work->places, BATCH,
                                     step == BENCH_COPY_STREAM ? work->streamed : work->out,
                                     (enum bench_copy)step);
            } else if (step == INDEX) {
                bench_ceiling_touch(&work->ceiling, work->keys, BATCH);
            } else {
                status = do_lookup(work);
            }
            spent[step] += cpu_ns() - begin_ns;
        }
        n_batches++;
    } while (status == HPS_OK && bench_now_ns() < end_ns);
    double keys = (double)n_batches * BATCH;
    for (unsigned step = 0; step < INDEX; step++) {
        out_spent->gather[step] = (double)spent[step] / keys;
    }
    out_spent->index = (double)spent[INDEX] / keys;
    out_spent->lookup = (double)spent[LOOKUP] / keys;
    return status;
}

static hps_status measure(struct work *work, const char *name, double target, struct hps_error *err)
{
    static const char *const gathers[] = {"gather", "gather in vectors", "gather, non-temporal"};
    double gather_ns[3][ROUNDS], index_ns[ROUNDS], lookup_ns[ROUNDS], ratio[ROUNDS],
        in_vectors[ROUNDS];

    for (int i = 0; i < ROUNDS; i++) {
        struct spent spent;
        hps_status status = round_of(work, &spent);
        if (status != HPS_OK) {
            return hps_error_set(err, status, "%s: %s", name, hps_status_text(status));
        }
        double plain = spent.gather[BENCH_COPY_PLAIN], streamed = spent.gather[BENCH_COPY_STREAM];
        for (unsigned how = 0; how < 3; how++) {
            gather_ns[how][i] = spent.gather[how];
        }
        index_ns[i] = spent.index;
        lookup_ns[i] = spent.lookup;
        ratio[i] = ((plain < streamed ? plain : streamed) + spent.index) / spent.lookup;
        in_vectors[i] = (spent.gather[BENCH_COPY_VECTORS] + spent.index) / spent.lookup;
    }
    for (unsigned how = 0; how < 3; how++) {
        bench_report(name, gathers[how], bench_median(gather_ns[how], ROUNDS), "ns/key",
                     BENCH_NO_TARGET, 0);
    }
    bench_report(name, "index", bench_median(index_ns, ROUNDS), "ns/key", BENCH_NO_TARGET, 0);
    bench_report(name, "lookup", bench_median(lookup_ns, ROUNDS), "ns/key", BENCH_NO_TARGET, 0);
    bench_report(name, "(gather+index)/lookup", bench_median(ratio, ROUNDS), "ratio",
                 BENCH_AT_LEAST, target);
    bench_report(name, "(in vectors+index)/lookup", bench_median(in_vectors, ROUNDS), "ratio",
                 BENCH_NO_TARGET, 0);
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
    work->arena = hps_arena_new(1 << 20, 16 << 20);
    work->out = hps_alloc_aligned(64, (size_t)BATCH * work->table.row_bytes);
    work->streamed = hps_alloc_aligned(64, (size_t)BATCH * work->table.row_bytes);
    if (work->arena == NULL || work->out == NULL || work->streamed == NULL) {
        (void)hps_error_set(err, status, "no memory");
        goto out;
    }
    status = bench_ceiling_open(&work->ceiling, n_rows * work->table.row_bytes, n_rows, err);
    if (status != HPS_OK) {
        goto out;
    }
    struct hps_space_id id = {"m", 1, &work->table, 1, 0};
    status = hps_host_map_open(UINT64_C(8) << 30, &work->store, err);
    if (status == HPS_OK) {
        status = work->store->ops->space_open(work->store, &id, &work->space, err);
    }
    if (status == HPS_OK) { /* as a load does; else the index stays half grown */
        status = work->store->ops->limits->reserve(work->space, &work->table, NULL, 0, err);
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
    hps_free_aligned(work->streamed);
    bench_ceiling_close(&work->ceiling);
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

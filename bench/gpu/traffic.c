/* SPDX-License-Identifier: Apache-2.0
 *
 * The embedding cache as its caller uses it: results to the host by kernel stores or by gather and
 * copy (mapped_bytes_max is where they are equally fast), insertion of missing rows after lookups,
 * and lookup latency during updates. Thread: main.
 */
#include <stdio.h>
#include <string.h>

#include "base/heap.h"
#include "bench/gpu/cache.h"

enum { N_LATENCIES = 20000 };

/* ---- delivery -------------------------------------------------------------------------------- */

enum { N_SIZES = 8, DELIVERY_ROW_BYTES = 128, DELIVERIES = 300 };
static const uint32_t n_keys_of_size[N_SIZES] = {32, 128, 512, 1024, 2048, 8192, 32768, 65536};

static void deliver(struct bench_rig *rig, uint32_t mapped_bytes_max, uint32_t n_sizes,
                    double p50_us[N_SIZES])
{
    static const uint32_t row_bytes[] = {DELIVERY_ROW_BYTES};
    static uint64_t keys[HPS_EMBED_BATCH_KEYS_MAX];
    uint32_t n_keys_max = n_keys_of_size[n_sizes - 1], n_rounds = bench_count(rig, DELIVERIES, 2);
    const struct bench_cache_spec spec = {.n_tables = 1,
                                          .row_bytes = row_bytes,
                                          .n_rows = bench_count(rig, 1000000, 500),
                                          .n_keys = n_keys_max,
                                          .n_in_region = n_keys_max,
                                          .mapped_bytes_max = mapped_bytes_max};
    struct bench_cache cache;
    double us[DELIVERIES];

    bench_cache_open(rig, &cache, &spec);
    for (uint32_t s = 0; s < n_sizes && rig->status == HPS_OK; s++) {
        for (uint32_t i = 0; i < n_rounds && rig->status == HPS_OK; i++) {
            bench_cache_draw(&cache, keys, n_keys_of_size[s], n_keys_of_size[s], 0);
            us[i] = bench_cache_lookup_us(&cache, keys, n_keys_of_size[s]);
        }
        p50_us[s] = bench_median(us, n_rounds);
    }
    bench_cache_check(&cache, spec.n_rows, 0.99);
    bench_cache_close(&cache);
}

void bench_delivery(struct bench_rig *rig)
{
    uint32_t n_sizes = bench_count(rig, N_SIZES, 3), cut_over = 0;
    double mapped[N_SIZES] = {0}, gathered[N_SIZES] = {0};
    char name[64];

    deliver(rig, UINT32_MAX, n_sizes, mapped);
    deliver(rig, 1, n_sizes, gathered);
    for (uint32_t s = 0; s < n_sizes && rig->status == HPS_OK; s++) {
        uint32_t bytes = n_keys_of_size[s] * DELIVERY_ROW_BYTES;
        (void)snprintf(name, sizeof(name), "%u KiB to the host", bytes >> 10);
        bench_result(rig, name, "mapped stores, p50", mapped[s], "us", BENCH_NO_TARGET, 0);
        bench_result(rig, name, "gather and copy, p50", gathered[s], "us", BENCH_NO_TARGET, 0);
        bench_result(rig, name, "the faster of both",
                     bytes / 1e3 / (mapped[s] < gathered[s] ? mapped[s] : gathered[s]), "GB/s",
                     BENCH_NO_TARGET, 0);
        cut_over = mapped[s] <= gathered[s] ? bytes : cut_over;
    }
    if (!rig->sim) {
        bench_result(rig, "cut-over", "mapped is faster up to", cut_over / 1024.0, "KiB",
                     BENCH_NO_TARGET, 0);
    }
}

/* ---- misses ---------------------------------------------------------------------------------- */

enum { MISS_NS = 250000000, MISS_BATCHES_SIM = 6, N_PERCENTS = 4 };

struct miss_case {
    const char *name;
    uint32_t n_tables;
    const uint32_t *row_bytes;
    uint32_t n_keys; /* of each table in a batch */
    bool on_device;
    bool matrix;
    uint32_t percents[N_PERCENTS]; /* missing; 0: no more of them */
    double target_percent;         /* of the bus, where 10 % are missing; 0: none */
};

struct flights {
    struct hps_embed_ticket *tickets[BENCH_TICKETS];
    uint64_t *keys[BENCH_TICKETS]; /* [n_tables][n_keys] */
    uint64_t n_missed;
    uint64_t missed_bytes;
    uint64_t n_keys;
};

/* The rows that a lookup has missed are staged, as if they had been found in a lower tier. Their
 * content is that of other keys: rows that lie ready cost no time here. */
static void insert_missing(struct bench_cache *cache, struct flights *flights, uint32_t f)
{
    const struct bench_cache_spec *spec = &cache->spec;

    for (uint32_t t = 0; t < spec->n_tables; t++) {
        uint64_t *keys = flights->keys[f] + (uint64_t)t * spec->n_keys;
        uint32_t n_missing = bench_cache_missing(flights->tickets[f], t, keys, spec->n_keys);
        bench_cache_stage(cache, t, HPS_EMBED_INSERT_WANTED, keys, cache->pool, n_missing);
        flights->n_missed += n_missing;
        flights->missed_bytes += (uint64_t)n_missing * spec->row_bytes[t];
    }
}

/* The end of one flight, and the begin of the next in its place. */
static void next_flight(struct bench_cache *cache, struct flights *flights, uint32_t f,
                        uint32_t missing_percent, bool submit)
{
    struct bench_rig *rig = cache->rig;
    uint32_t n = cache->spec.n_keys;

    while (flights->tickets[f] != NULL && !bench_cache_ended(cache, flights->tickets[f])) {
    }
    if (flights->tickets[f] != NULL && rig->status == HPS_OK) {
        insert_missing(cache, flights, f);
        flights->n_keys += (uint64_t)cache->spec.n_tables * n;
    }
    hps_embed_release(flights->tickets[f]);
    flights->tickets[f] = NULL;
    if (submit) {
        bench_cache_draw(cache, flights->keys[f], n, n, missing_percent);
        hps_embed_advance(cache->cache);
        flights->tickets[f] = bench_cache_submit(cache, flights->keys[f], n, n, f * n);
    }
}

static struct hps_embed_range_usage usage_of(const struct bench_cache *cache)
{
    struct hps_embed_range_usage all = {0}, one;

    for (uint32_t t = 0; t < cache->spec.n_tables; t++) {
        hps_embed_range_usage(cache->ranges[t], &one);
        all.n_inserted += one.n_inserted;
        all.n_evicted += one.n_evicted;
    }
    return all;
}

static void run_misses(struct bench_cache *cache, const struct miss_case *is, uint32_t percent,
                       double h2d_gb_s)
{
    struct bench_rig *rig = cache->rig;
    struct hps_embed_range_usage before = usage_of(cache);
    struct flights flights = {0};
    uint64_t began = bench_now_ns();
    bool going = true;
    char name[96];

    for (uint32_t f = 0; f < BENCH_TICKETS; f++) {
        flights.keys[f] = hps_alloc((uint64_t)is->n_tables * is->n_keys * sizeof(uint64_t));
        (void)bench_ok(rig, flights.keys[f] != NULL ? HPS_OK : HPS_NO_MEMORY, "keys");
    }
    for (uint32_t b = 0; going && rig->status == HPS_OK; b++) {
        next_flight(cache, &flights, b % BENCH_TICKETS, percent, true);
        going = rig->sim ? b < MISS_BATCHES_SIM : bench_now_ns() - began < MISS_NS;
    }
    for (uint32_t f = 0; f < BENCH_TICKETS; f++) {
        next_flight(cache, &flights, f, percent, false);
    }
    bench_cache_drain(cache);
    double seconds = (double)(bench_now_ns() - began) / 1e9;
    double gb_s = (double)flights.missed_bytes / 1e9 / seconds;
    struct hps_embed_range_usage after = usage_of(cache);
    (void)snprintf(name, sizeof(name), "%s, %u %% missing", is->name, percent);
    bench_result(rig, name, "keys", (double)flights.n_keys / seconds / 1e6, "M/s", BENCH_NO_TARGET,
                 0);
    bench_result(rig, name, "missing", 100 * (double)flights.n_missed / (double)flights.n_keys, "%",
                 BENCH_NO_TARGET, 0);
    bench_result(rig, name, "rows put in", gb_s, "GB/s", BENCH_NO_TARGET, 0);
    bench_result(rig, name, "rows put in, of H2D", 100 * gb_s / h2d_gb_s, "%",
                 percent == 10 && is->target_percent > 0 ? BENCH_AT_LEAST : BENCH_NO_TARGET,
                 is->target_percent);
    bench_result(rig, name, "of them in place of others",
                 100 * (double)(after.n_evicted - before.n_evicted) /
                     (double)(after.n_inserted - before.n_inserted),
                 "%", BENCH_NO_TARGET, 0);
    bench_result(rig, name, "rows in spills", 100 * bench_cache_spilled_share(cache), "%",
                 BENCH_NO_TARGET, 0);
    for (uint32_t f = 0; f < BENCH_TICKETS; f++) {
        hps_free(flights.keys[f]);
    }
}

static hps_status give_in(struct bench_rig *rig, void *arg, uint32_t i)
{
    const struct bench_copy_args *copy = arg;

    (void)i;
    return hps_copy_to_device(rig->stream, copy->to, (const void *)(uintptr_t)copy->from,
                              copy->n_quads * 16);
}

static double measure_h2d_gb_s(struct bench_rig *rig)
{
    uint64_t size = bench_fitting_bytes(rig, 16 << 20, 1, 64 << 10);
    uint32_t before = rig->n_pieces;
    hps_devptr unused;
    struct bench_copy_args copy = {(uintptr_t)bench_host_memory(rig, size, &unused),
                                   bench_memory(rig, size), size / 16};
    struct bench_work work = {.name = "host to device", .give = give_in, .arg = &copy};

    bench_turns(rig, &work, 1);
    bench_free_to(rig, before);
    bench_result(rig, work.name, "16 MiB", (double)size / work.us / 1000, "GB/s", BENCH_NO_TARGET,
                 0);
    return (double)size / work.us / 1000;
}

void bench_misses(struct bench_rig *rig)
{
    static const uint32_t wide[] = {512};
    static const uint32_t mixed[BENCH_TABLES] = {512, 256, 128, 64,  64,  128, 256, 512, 128,
                                                 64,  64,  256, 128, 128, 64,  64,  512, 256,
                                                 128, 64,  64,  128, 256, 128, 64,  64};
    static const struct miss_case cases[] = {
        {"512 B to the host", 1, wide, 16384, false, false, {1, 5, 10, 20}, 85},
        {"512 B to the device", 1, wide, 16384, true, false, {1, 5, 10, 20}, 0},
        {"26 tables to the device", BENCH_TABLES, mixed, 512, true, false, {10}, 0},
        {"26 tables to the host", BENCH_TABLES, mixed, 512, false, false, {10}, 0},
        {"26 tables to a matrix", BENCH_TABLES, mixed, 512, false, true, {10}, 0},
        {"26 tables, 8 keys of each", BENCH_TABLES, mixed, 8, false, false, {10}, 0},
    };
    double h2d_gb_s = measure_h2d_gb_s(rig);

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]) && rig->status == HPS_OK; i++) {
        struct miss_case is = cases[i];
        is.n_keys = bench_count(rig, is.n_keys, is.n_keys < 64 ? is.n_keys : 64);
        const struct bench_cache_spec spec = {
            .n_tables = is.n_tables,
            .row_bytes = is.row_bytes,
            .n_rows = bench_count(rig, 1000000 / is.n_tables, 500),
            .n_keys = is.n_keys,
            .n_in_region = is.n_keys * BENCH_TICKETS,
            .on_device = is.on_device,
            .matrix = is.matrix,
        };
        struct bench_cache cache;
        bench_cache_open(rig, &cache, &spec);
        bench_cache_check(&cache, spec.n_rows, 0.99);
        for (uint32_t p = 0; p < N_PERCENTS && is.percents[p] > 0 && rig->status == HPS_OK; p++) {
            run_misses(&cache, &is, is.percents[p], h2d_gb_s);
        }
        bench_cache_close(&cache);
    }
}

/* ---- lookups during updates ------------------------------------------------------------------ */

enum { UPDATES_PER_S = 1000000, UPDATE_KEYS = 2048 };

struct latencies {
    double p50, p99, p999; /* us */
    double updates_per_s;
};

/* Updates that are due by the clock, in pieces. Returns how many rows they were. */
static uint64_t update(struct bench_cache *cache, uint64_t began_ns, uint64_t n_done,
                       uint32_t piece)
{
    uint64_t due = (bench_now_ns() - began_ns) * UPDATES_PER_S / 1000000000;
    uint32_t first = (uint32_t)(n_done % (cache->n_pool / piece * piece));

    if (due < n_done + piece && !cache->rig->sim) {
        return 0;
    }
    bench_cache_stage(cache, 0, HPS_EMBED_UPDATE, cache->pool_keys + first,
                      cache->pool + (uint64_t)first * cache->spec.row_bytes[0], piece);
    return piece;
}

/* piece: rows of updates that come at once; 0: none come. */
static struct latencies measure(struct bench_cache *cache, uint32_t piece)
{
    struct bench_rig *rig = cache->rig;
    uint32_t n_rounds = bench_count(rig, N_LATENCIES, 4), n = cache->spec.n_keys;
    static double us[N_LATENCIES];
    static uint64_t keys[UPDATE_KEYS];
    uint64_t began = bench_now_ns(), n_done = 0;
    struct latencies is;

    for (uint32_t i = 0; i < n_rounds && rig->status == HPS_OK; i++) {
        if (piece > 0) {
            n_done += update(cache, began, n_done, piece);
        }
        bench_cache_draw(cache, keys, n, n, 0);
        us[i] = bench_cache_lookup_us(cache, keys, n);
    }
    is.updates_per_s = (double)n_done * 1e9 / (double)(bench_now_ns() - began);
    is.p50 = bench_median(us, n_rounds); /* sorts */
    is.p99 = bench_quantile(us, n_rounds, 0.99);
    is.p999 = bench_quantile(us, n_rounds, 0.999);
    return is;
}

static void report_updates(struct bench_rig *rig, const char *name, const struct latencies *is,
                           const struct latencies *quiet, enum bench_target target)
{
    bench_result(rig, name, "updates", is->updates_per_s, "per s", BENCH_NO_TARGET, 0);
    bench_result(rig, name, "p50", is->p50, "us", BENCH_NO_TARGET, 0);
    bench_result(rig, name, "p99", is->p99, "us", BENCH_NO_TARGET, 0);
    bench_result(rig, name, "p99.9", is->p999, "us", BENCH_NO_TARGET, 0);
    bench_result(rig, name, "p99, more", 100 * (is->p99 / quiet->p99 - 1), "%", target, 5);
    bench_result(rig, name, "p99.9, more", 100 * (is->p999 / quiet->p999 - 1), "%", BENCH_NO_TARGET,
                 0);
}

void bench_updates(struct bench_rig *rig)
{
    static const uint32_t row_bytes[] = {128}, pieces[] = {0, 512, 4096, 16384};
    uint32_t n_keys = bench_count(rig, UPDATE_KEYS, 64);
    char name[64];

    for (int on_device = 0; on_device < 2 && rig->status == HPS_OK; on_device++) {
        const struct bench_cache_spec spec = {.n_tables = 1,
                                              .row_bytes = row_bytes,
                                              .n_rows = bench_count(rig, 1000000, 500),
                                              .n_keys = n_keys,
                                              .n_in_region = n_keys,
                                              .on_device = on_device != 0};
        struct bench_cache cache;
        struct latencies quiet = {0};
        bench_cache_open(rig, &cache, &spec);
        for (size_t i = 0; i < 4 && rig->status == HPS_OK; i++) {
            uint32_t piece = pieces[i] < cache.n_pool ? pieces[i] : cache.n_pool;
            struct latencies is = measure(&cache, piece);
            if (i == 0) {
                is = measure(&cache, 0); /* warm by now */
                quiet = is;
            }
            (void)snprintf(name, sizeof(name), "to the %s, %u rows at once",
                           on_device != 0 ? "device" : "host", pieces[i]);
            report_updates(rig, name, &is, &quiet,
                           pieces[i] == 512 ? BENCH_AT_MOST : BENCH_NO_TARGET);
        }
        bench_cache_check(&cache, spec.n_rows, 0.99);
        bench_cache_close(&cache);
    }
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The embedding cache as its caller uses it: results to the host by stores of the kernel or by
 * gather and copy (where they meet is mapped_bytes_max), rows that were missing put in behind
 * look-ups, and look-ups beside updates. Thread: main.
 */
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "base/heap.h"
#include "bench/gpu/rig.h"
#include "cache/embed/cache.h"

enum {
    N_TICKETS = 4,
    N_LATENCIES = 20000,
    N_UPDATED = 512, /* rows of one piece of updates */
    UPDATES_PER_S = 1000000,
};

struct paths {
    struct bench_rig *rig;
    struct hps_embed_cache *cache;
    struct hps_embed_range *range;
    struct hps_embed_region *region;
    uint8_t *host; /* of the region */
    uint32_t row_bytes;
    uint32_t n_rows;
    uint64_t *keys; /* [BATCH_KEYS_MAX] */
    uint8_t *rows;  /* [SLICE_ROWS_MAX] to be staged, whatever they hold */
    uint64_t next_unknown;
};

/* Stage all of it, as fast as it is taken. */
static void stage(struct paths *paths, enum hps_embed_op op, const uint64_t *keys, uint32_t n)
{
    struct bench_rig *rig = paths->rig;

    for (uint32_t at = 0, taken; at < n && rig->status == HPS_OK; at += taken) {
        uint32_t piece = n - at < HPS_EMBED_SLICE_ROWS_MAX ? n - at : HPS_EMBED_SLICE_ROWS_MAX;
        hps_status status = hps_embed_stage(paths->cache, paths->range, op, keys + at, paths->rows,
                                            piece, NULL, &taken);
        if (status == HPS_AGAIN) {
            taken = 0;
        } else if (!bench_ok(rig, status, "stage")) {
            return;
        }
        hps_embed_advance(paths->cache);
    }
}

static void drain(struct paths *paths)
{
    while (paths->rig->status == HPS_OK && !hps_embed_idle(paths->cache)) {
        hps_embed_advance(paths->cache);
        if (paths->rig->sim) {
            (void)sched_yield();
        }
    }
}

static void fill(struct paths *paths)
{
    for (uint32_t at = 0; at < paths->n_rows && paths->rig->status == HPS_OK;) {
        uint32_t n = paths->n_rows - at;
        n = n < HPS_EMBED_SLICE_ROWS_MAX ? n : HPS_EMBED_SLICE_ROWS_MAX;
        for (uint32_t i = 0; i < n; i++) {
            paths->keys[i] = bench_key(0, at + i);
        }
        stage(paths, HPS_EMBED_INSERT, paths->keys, n);
        at += n;
    }
    drain(paths);
}

/* memory: n_rows rows, all in the cache. */
static void paths_open(struct bench_rig *rig, struct paths *paths, uint32_t row_bytes,
                       uint32_t n_rows, uint32_t mapped_bytes_max)
{
    uint64_t range_bytes = hps_embed_range_bytes(row_bytes, n_rows, n_rows);
    uint64_t region_bytes = (uint64_t)HPS_EMBED_BATCH_KEYS_MAX * row_bytes * N_TICKETS;
    struct hps_embed_cache_config config = {.arena_bytes = range_bytes + 4096,
                                            .gather_bytes = rig->sim ? 16 << 20 : 256 << 20,
                                            .stage_bytes = 32 << 20,
                                            .timeout_us = 60000000,
                                            .n_batches = N_TICKETS,
                                            .mapped_bytes_max = mapped_bytes_max};
    const struct hps_embed_range_config range = {row_bytes, n_rows, range_bytes};
    hps_devptr unused;

    *paths = (struct paths){.rig = rig, .row_bytes = row_bytes, .n_rows = n_rows};
    region_bytes = rig->sim ? region_bytes / 16 : region_bytes;
    paths->keys = bench_host_memory(rig, HPS_EMBED_BATCH_KEYS_MAX * sizeof(uint64_t), &unused);
    paths->rows = bench_host_memory(rig, (uint64_t)HPS_EMBED_SLICE_ROWS_MAX * row_bytes, &unused);
    paths->host = hps_alloc_aligned(4096, region_bytes);
    if (rig->status == HPS_OK &&
        bench_ok(rig, hps_embed_cache_open(rig->device, &config, &paths->cache, rig->err),
                 "a cache") &&
        bench_ok(rig,
                 hps_embed_region_host(paths->cache, paths->host, region_bytes, &paths->region,
                                       rig->err),
                 "a region") &&
        bench_ok(rig, hps_embed_range_new(paths->cache, &range, &paths->range, rig->err),
                 "a range")) {
        fill(paths);
    }
}

static void paths_close(struct paths *paths)
{
    drain(paths);
    hps_embed_range_free(paths->range);
    while (paths->region != NULL && hps_embed_region_free(paths->region) == HPS_AGAIN &&
           paths->rig->status == HPS_OK) {
        hps_embed_advance(paths->cache);
    }
    hps_embed_cache_close(paths->cache);
    hps_free_aligned(paths->host);
    bench_free_to(paths->rig, 0);
}

/* Keys of rows at random; one in a hundred times missing_percent was never there. */
static void draw(struct paths *paths, uint32_t n, uint32_t missing_percent)
{
    for (uint32_t i = 0; i < n; i++) {
        uint64_t random = hps_random_next(&paths->rig->random);
        bool missing = (random >> 32) % 100 < missing_percent;
        paths->keys[i] = missing ? bench_key(1, paths->next_unknown++)
                                 : bench_key(0, (uint32_t)random % paths->n_rows);
    }
}

/* slot: which part of the region. NULL: too much is under way, or a failure. */
static struct hps_embed_ticket *submit(struct paths *paths, uint32_t n, uint32_t slot)
{
    struct hps_embed_ticket *ticket = NULL;
    const struct hps_embed_part part = {
        .range = paths->range,
        .keys = (const uint8_t *)paths->keys,
        .n = n,
        .region = paths->region,
        .offset = ((uint64_t)slot * n * paths->row_bytes + 255) / 256 * 256,
    };
    hps_status status = hps_embed_submit(paths->cache, &part, 1, &ticket);

    if (status != HPS_AGAIN) {
        (void)bench_ok(paths->rig, status, "submit");
    }
    return status == HPS_OK ? ticket : NULL;
}

static bool is_done(struct paths *paths, struct hps_embed_ticket *ticket)
{
    hps_status status = hps_embed_poll(ticket);

    if (status == HPS_AGAIN) {
        if (paths->rig->sim) {
            (void)sched_yield();
        }
        return false;
    }
    (void)bench_ok(paths->rig, status, "a look-up");
    return true;
}

/* From submit to done. */
static double look_up_us(struct paths *paths, uint32_t n)
{
    uint64_t began = bench_now_ns();
    struct hps_embed_ticket *ticket = submit(paths, n, 0);

    while (ticket != NULL && !is_done(paths, ticket)) {
    }
    uint64_t ended = bench_now_ns();
    hps_embed_release(ticket);
    hps_embed_advance(paths->cache);
    return (double)(ended - began) / 1000;
}

/* ---- delivery -------------------------------------------------------------------------------- */

enum { N_SIZES = 8, DELIVERY_ROW_BYTES = 128 };
static const uint32_t n_keys_of_size[N_SIZES] = {32, 128, 512, 1024, 2048, 8192, 32768, 65536};

static void deliver(struct bench_rig *rig, uint32_t mapped_bytes_max, double p50_us[N_SIZES])
{
    uint32_t n_rounds = bench_count(rig, 300, 2), n_sizes = bench_count(rig, N_SIZES, 3);
    static double us[N_LATENCIES];
    struct paths paths;

    paths_open(rig, &paths, DELIVERY_ROW_BYTES, bench_count(rig, 1000000, 500), mapped_bytes_max);
    for (uint32_t s = 0; s < n_sizes && rig->status == HPS_OK; s++) {
        for (uint32_t i = 0; i < n_rounds && rig->status == HPS_OK; i++) {
            draw(&paths, n_keys_of_size[s], 0);
            us[i] = look_up_us(&paths, n_keys_of_size[s]);
        }
        p50_us[s] = bench_median(us, n_rounds);
    }
    paths_close(&paths);
}

void bench_delivery(struct bench_rig *rig)
{
    uint32_t n_sizes = bench_count(rig, N_SIZES, 3), cut_over = 0;
    double mapped[N_SIZES] = {0}, gathered[N_SIZES] = {0};
    char name[64];

    deliver(rig, UINT32_MAX, mapped);
    deliver(rig, 1, gathered);
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

enum { MISS_ROW_BYTES = 512, MISS_KEYS = 16384 };

struct in_flight {
    struct hps_embed_ticket *ticket;
    uint64_t *keys; /* [MISS_KEYS] */
};

/* The rows that a look-up missed are staged, as if they had just been found below. */
static uint32_t insert_missing(struct paths *paths, const struct in_flight *flight, uint32_t n)
{
    const uint32_t *hits = hps_embed_hits(flight->ticket, 0);
    uint32_t n_missing = 0;

    for (uint32_t i = 0; i < n; i++) {
        if ((hits[i / 32] >> i % 32 & 1) == 0) {
            flight->keys[n_missing++] = flight->keys[i];
        }
    }
    stage(paths, HPS_EMBED_INSERT, flight->keys, n_missing);
    return n_missing;
}

static void miss_path(struct bench_rig *rig, struct paths *paths, uint32_t missing_percent,
                      double h2d_gb_s)
{
    struct in_flight flights[N_TICKETS] = {{0}};
    uint32_t n_batches = bench_count(rig, 400, 6), n = bench_count(rig, MISS_KEYS, 128);
    uint64_t n_missed = 0;
    uint32_t before = rig->n_pieces;
    hps_devptr unused;
    char name[64];

    for (uint32_t f = 0; f < N_TICKETS; f++) {
        flights[f].keys = bench_host_memory(rig, MISS_KEYS * sizeof(uint64_t), &unused);
    }
    uint64_t began = bench_now_ns();
    for (uint32_t b = 0; b < n_batches + N_TICKETS && rig->status == HPS_OK; b++) {
        struct in_flight *flight = &flights[b % N_TICKETS];
        while (flight->ticket != NULL && !is_done(paths, flight->ticket)) {
        }
        if (flight->ticket != NULL && rig->status == HPS_OK) {
            n_missed += insert_missing(paths, flight, n);
        }
        hps_embed_release(flight->ticket);
        flight->ticket = NULL;
        if (b < n_batches && rig->status == HPS_OK) {
            draw(paths, n, missing_percent);
            memcpy(flight->keys, paths->keys, n * sizeof(uint64_t));
            do {
                hps_embed_advance(paths->cache);
                flight->ticket = submit(paths, n, b % N_TICKETS);
            } while (flight->ticket == NULL && rig->status == HPS_OK);
        }
    }
    for (uint32_t f = 0; f < N_TICKETS; f++) {
        hps_embed_release(flights[f].ticket);
    }
    drain(paths);
    double seconds = (double)(bench_now_ns() - began) / 1e9;
    double gb_s = (double)n_missed * MISS_ROW_BYTES / 1e9 / seconds;
    (void)snprintf(name, sizeof(name), "%u %% missing, %u B rows", missing_percent, MISS_ROW_BYTES);
    bench_result(rig, name, "keys", (double)n * n_batches / seconds / 1e6, "M/s", BENCH_NO_TARGET,
                 0);
    bench_result(rig, name, "rows put in", gb_s, "GB/s", BENCH_NO_TARGET, 0);
    bench_result(rig, name, "rows put in, of H2D", 100 * gb_s / h2d_gb_s, "%",
                 missing_percent == 10 ? BENCH_AT_LEAST : BENCH_NO_TARGET, 85);
    bench_free_to(rig, before);
}

static hps_status give_in(struct bench_rig *rig, void *arg, uint32_t i)
{
    const struct bench_copy_args *copy = arg;

    (void)i;
    return hps_copy_to_device(rig->stream, copy->to, (const void *)(uintptr_t)copy->from,
                              copy->n_quads * 16);
}

static double h2d_gb_s(struct bench_rig *rig)
{
    uint64_t size = bench_fitting_bytes(rig, 16 << 20, 1, 64 << 10);
    uint32_t before = rig->n_pieces;
    hps_devptr unused;
    struct bench_copy_args copy = {(uintptr_t)bench_host_memory(rig, size, &unused),
                                   bench_memory(rig, size), size / 16};
    struct bench_work work = {give_in, &copy, bench_count(rig, 8, 1), 0};
    double us = rig->status == HPS_OK ? bench_median_us(rig, &work) : 1;

    bench_free_to(rig, before);
    return (double)size / us / 1000;
}

void bench_misses(struct bench_rig *rig)
{
    static const uint32_t percents[] = {1, 5, 10, 20};
    double gb_s = h2d_gb_s(rig);
    struct paths paths;

    bench_result(rig, "host to device", "16 MiB", gb_s, "GB/s", BENCH_NO_TARGET, 0);
    paths_open(rig, &paths, MISS_ROW_BYTES, bench_count(rig, 1000000, 500), 0);
    for (size_t i = 0; i < sizeof(percents) / sizeof(percents[0]) && rig->status == HPS_OK; i++) {
        miss_path(rig, &paths, percents[i], gb_s);
    }
    paths_close(&paths);
}

/* ---- look-ups beside updates ----------------------------------------------------------------- */

struct latencies {
    double p50_us, p99_us;
    double updates_per_s;
};

/* Updates that are due by the clock. */
static uint64_t update(struct paths *paths, uint64_t began_ns, uint64_t n_done, uint64_t per_s)
{
    uint64_t keys[N_UPDATED], due = (bench_now_ns() - began_ns) * per_s / 1000000000;

    if (due < n_done + N_UPDATED) {
        return 0;
    }
    for (uint32_t i = 0; i < N_UPDATED; i++) {
        keys[i] = bench_key(0, hps_random_next(&paths->rig->random) % paths->n_rows);
    }
    stage(paths, HPS_EMBED_UPDATE, keys, N_UPDATED);
    return N_UPDATED;
}

static struct latencies measure(struct paths *paths, uint64_t updates_per_s)
{
    uint32_t n_rounds = bench_count(paths->rig, N_LATENCIES, 4);
    uint32_t n = bench_count(paths->rig, 2048, 64);
    static double us[N_LATENCIES];
    uint64_t began = bench_now_ns(), n_done = 0;
    struct latencies is;

    for (uint32_t i = 0; i < n_rounds && paths->rig->status == HPS_OK; i++) {
        if (updates_per_s > 0) {
            n_done += update(paths, began, n_done, updates_per_s);
        }
        draw(paths, n, 0);
        us[i] = look_up_us(paths, n);
    }
    is.updates_per_s = (double)n_done * 1e9 / (double)(bench_now_ns() - began);
    is.p50_us = bench_median(us, n_rounds); /* and sorted */
    is.p99_us = us[n_rounds * 99 / 100];
    return is;
}

void bench_updates(struct bench_rig *rig)
{
    struct paths paths;

    paths_open(rig, &paths, 128, bench_count(rig, 1000000, 500), 0);
    if (rig->status == HPS_OK) {
        (void)measure(&paths, 0);
        struct latencies quiet = measure(&paths, 0);
        struct latencies busy = measure(&paths, UPDATES_PER_S);
        bench_result(rig, "look-ups alone", "p50", quiet.p50_us, "us", BENCH_NO_TARGET, 0);
        bench_result(rig, "look-ups alone", "p99", quiet.p99_us, "us", BENCH_NO_TARGET, 0);
        bench_result(rig, "beside updates", "updates", busy.updates_per_s, "per s", BENCH_NO_TARGET,
                     0);
        bench_result(rig, "beside updates", "p50", busy.p50_us, "us", BENCH_NO_TARGET, 0);
        bench_result(rig, "beside updates", "p99", busy.p99_us, "us", BENCH_NO_TARGET, 0);
        bench_result(rig, "beside updates", "p99, more", 100 * (busy.p99_us / quiet.p99_us - 1),
                     "%", BENCH_AT_MOST, 5);
    }
    paths_close(&paths);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Cases that NVIDIA published for HugeCTR's parameter server, with this cache: lookups of 26 tables
 * by batch size, and the hit rate by the share of cached keys. Thread: main.
 */
#include <math.h>
#include <stdio.h>

#include "base/heap.h"
#include "bench/gpu/cache.h"

/* ---- 26 tables by batch size ----------------------------------------------------------------- */

enum { KEYS_MAX = 65536, KEYS_MAX_SIM = 64, ROUNDS = 200, ROUNDS_MIN = 5, SIZE_NS = 200000000 };

/* One request, in as many batches as it takes, from the first submit to the last end, in us. */
static double request_us(struct bench_cache *cache, const uint64_t *keys, uint32_t stride,
                         uint32_t n)
{
    struct hps_embed_ticket *tickets[BENCH_TICKETS] = {0};
    uint32_t piece_max = cache->spec.n_keys, n_given = 0;
    uint64_t began = bench_now_ns();

    for (uint32_t at = 0; at < n && cache->rig->status == HPS_OK; at += piece_max) {
        struct hps_embed_ticket **ticket = &tickets[n_given++ % BENCH_TICKETS];
        while (*ticket != NULL && !bench_cache_ended(cache, *ticket)) {
        }
        hps_embed_release(*ticket);
        hps_embed_advance(cache->cache);
        *ticket = bench_cache_submit(cache, keys + at, stride,
                                     n - at < piece_max ? n - at : piece_max, at);
    }
    for (uint32_t i = 0; i < BENCH_TICKETS; i++) {
        while (tickets[i] != NULL && !bench_cache_ended(cache, tickets[i])) {
        }
    }
    uint64_t ended = bench_now_ns();
    for (uint32_t i = 0; i < BENCH_TICKETS; i++) {
        hps_embed_release(tickets[i]);
    }
    hps_embed_advance(cache->cache);
    return (double)(ended - began) / 1000;
}

static void run_size(struct bench_cache *cache, const uint64_t *keys, uint32_t stride, uint32_t n)
{
    struct bench_rig *rig = cache->rig;
    uint32_t n_rounds = 0, n_rounds_max = bench_count(rig, ROUNDS, 2);
    double us[ROUNDS];
    char name[64];

    (void)request_us(cache, keys, stride, n);
    uint64_t began = bench_now_ns();
    while (rig->status == HPS_OK && n_rounds < n_rounds_max &&
           (n_rounds < ROUNDS_MIN || bench_now_ns() - began < SIZE_NS)) {
        us[n_rounds++] = request_us(cache, keys, stride, n);
    }
    double p50 = bench_median(us, n_rounds);
    (void)snprintf(name, sizeof(name), "%u x %u keys to the %s", cache->spec.n_tables, n,
                   cache->spec.on_device ? "device" : "host");
    bench_result(rig, name, "p50", p50, "us", BENCH_NO_TARGET, 0);
    bench_result(rig, name, "keys", (double)n * cache->spec.n_tables / p50, "M/s", BENCH_NO_TARGET,
                 0);
}

void bench_claims(struct bench_rig *rig)
{
    static uint32_t row_bytes[BENCH_TABLES];
    uint32_t n_max = bench_count(rig, KEYS_MAX, KEYS_MAX_SIM);
    struct bench_cache_spec spec = {
        .n_tables = BENCH_TABLES,
        .row_bytes = row_bytes,
        .n_rows = bench_count(rig, 100000, 200),
        .n_keys = bench_count(rig, HPS_EMBED_BATCH_KEYS_MAX / BENCH_TABLES / 32 * 32, 32),
        .n_in_region = n_max,
        .alpha = 1.05};
    uint64_t *keys = hps_alloc((uint64_t)BENCH_TABLES * n_max * sizeof(*keys));

    (void)bench_ok(rig, keys != NULL ? HPS_OK : HPS_NO_MEMORY, "keys");
    for (uint32_t t = 0; t < BENCH_TABLES; t++) {
        row_bytes[t] = 128;
    }
    for (int on_device = 1; on_device >= 0 && rig->status == HPS_OK; on_device--) {
        struct bench_cache cache;
        spec.on_device = on_device != 0;
        bench_cache_open(rig, &cache, &spec);
        bench_cache_draw(&cache, keys, n_max, n_max, 0);
        for (uint32_t n = 1; n <= n_max && rig->status == HPS_OK; n *= 4) {
            run_size(&cache, keys, n_max, n);
        }
        bench_cache_check(&cache, spec.n_rows, 0.99);
        bench_cache_close(&cache);
    }
    hps_free(keys);
}

/* ---- hit rate -------------------------------------------------------------------------------- */

/* Keys by Zipf's law in constant time, by the alias method (Walker 1977): place i is rank i with
 * probability keep, else rank other. */
struct place {
    float keep;
    uint32_t other;
};

static void make_places(struct place *places, double *weights, uint32_t n, double alpha)
{
    double sum = 0;
    uint32_t first_small = 0, large = 0;

    for (uint32_t i = 0; i < n; i++) {
        weights[i] = pow(i + 1, -alpha);
        sum += weights[i];
    }
    for (uint32_t i = 0; i < n; i++) {
        weights[i] *= n / sum;
        first_small += weights[i] >= 1 ? 1 : 0;
        places[i] = (struct place){1, i};
    }
    for (uint32_t small = first_small; small < n; small++) {
        places[small] = (struct place){(float)weights[small], large};
        weights[large] -= 1 - weights[small];
        while (weights[large] < 1 && large + 1 < first_small) {
            places[large] = (struct place){(float)weights[large], large + 1};
            weights[large + 1] -= 1 - weights[large];
            large++;
        }
    }
}

static void draw(struct bench_rig *rig, const struct place *places, uint32_t n_places,
                 uint64_t *keys, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint64_t random = hps_random_next(&rig->random);
        uint32_t rank = (uint32_t)((random >> 32) * n_places >> 32);
        bool keep = (float)(random & 0xffffff) < places[rank].keep * 0x1p24F;
        keys[i] = bench_key(0, keep ? rank : places[rank].other);
    }
}

/* Looks up a batch and offers the missing rows to the cache. Returns the number of hits. */
static uint64_t lookup_and_fill(struct bench_cache *cache, uint64_t *keys, uint32_t n)
{
    struct hps_embed_ticket *ticket = bench_cache_submit(cache, keys, n, n, 0);

    while (ticket != NULL && !bench_cache_ended(cache, ticket)) {
    }
    if (ticket == NULL || cache->rig->status != HPS_OK) {
        return 0;
    }
    uint32_t n_missing = bench_cache_missing(ticket, 0, keys, n);
    hps_embed_release(ticket);
    bench_cache_stage(cache, 0, HPS_EMBED_INSERT, keys, NULL, n_missing);
    return n - n_missing;
}

/* The share of keys that hit in the last fifth of n_asked, in percent. */
static double hit_percent(struct bench_cache *cache, const struct place *places, uint64_t n_asked)
{
    static uint64_t keys[HPS_EMBED_BATCH_KEYS_MAX];
    uint64_t n_hits = 0, n_last = 0;
    uint32_t n = cache->spec.n_keys;

    for (uint64_t at = 0; at < n_asked && cache->rig->status == HPS_OK; at += n) {
        draw(cache->rig, places, cache->spec.n_rows, keys, n);
        uint64_t n_hit = lookup_and_fill(cache, keys, n);
        if (at >= n_asked / 5 * 4) {
            n_hits += n_hit;
            n_last += n;
        }
    }
    return n_last == 0 ? 0 : 100 * (double)n_hits / (double)n_last;
}

void bench_hit_rate(struct bench_rig *rig)
{
    /* Expected: hit rates of a simulation of the sketch. The target is half a point less. */
    static const struct {
        uint32_t cached_percent;
        uint64_t n_asked;
        double expected;
    } cases[] = {{1, 30000000, 76.0}, {10, 130000000, 87.8}};
    static const uint32_t row_bytes[] = {16};
    uint32_t n_rows = bench_count(rig, 10000000, 10000), n_keys = bench_count(rig, 65536, 512);
    struct place *places = hps_alloc(n_rows * sizeof(*places));
    double *weights = hps_alloc(n_rows * sizeof(*weights));
    char name[64];

    if (bench_ok(rig, places != NULL && weights != NULL ? HPS_OK : HPS_NO_MEMORY, "keys")) {
        make_places(places, weights, n_rows, 1.05);
    }
    hps_free(weights);
    for (size_t i = 0; i < 2 && rig->status == HPS_OK; i++) {
        const struct bench_cache_spec spec = {.n_tables = 1,
                                              .row_bytes = row_bytes,
                                              .n_rows = n_rows,
                                              .n_cached = n_rows / 100 * cases[i].cached_percent,
                                              .n_keys = n_keys,
                                              .n_in_region = n_keys,
                                              .on_device = true};
        struct bench_cache cache;
        bench_cache_open(rig, &cache, &spec);
        double percent = hit_percent(&cache, places, rig->sim ? 5 * n_keys : cases[i].n_asked);
        (void)snprintf(name, sizeof(name), "%u M keys, zipf 1.05, %u %% cached", n_rows / 1000000,
                       cases[i].cached_percent);
        bench_result(rig, name, "hits", percent, "%", BENCH_AT_LEAST, cases[i].expected - 0.5);
        bench_result(rig, name, "hits, expected", cases[i].expected, "%", BENCH_NO_TARGET, 0);
        bench_cache_check(&cache, n_rows / 1000, rig->sim ? 0 : 0.5);
        bench_cache_close(&cache);
    }
    hps_free(places);
}

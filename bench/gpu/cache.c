/* SPDX-License-Identifier: Apache-2.0
 *
 * See cache.h.
 */
#include "bench/gpu/cache.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "base/heap.h"
#include "cache/embed/internal.h"

enum { PERCENT = 100, UNKNOWN_TABLE = 9999, CHECKED_KEYS = 64, REGION_ALIGN = 256 };

/* ---- changes --------------------------------------------------------------------------------- */

static void make_rows(struct bench_cache *cache, uint32_t table, const uint64_t *keys, uint32_t n)
{
    uint32_t row_bytes = cache->spec.row_bytes[table];

    for (uint32_t i = 0; i < n; i++) {
        bench_row(keys[i], cache->rows + (uint64_t)i * row_bytes, row_bytes);
    }
}

void bench_cache_stage(struct bench_cache *cache, uint32_t table, enum hps_embed_op op,
                       const uint64_t *keys, const uint8_t *rows, uint32_t n)
{
    struct bench_rig *rig = cache->rig;

    for (uint32_t at = 0, taken, made = 0; at < n && rig->status == HPS_OK; at += taken) {
        uint32_t piece = n - at < HPS_EMBED_SLICE_ROWS_MAX ? n - at : HPS_EMBED_SLICE_ROWS_MAX;
        const uint8_t *from = cache->rows;
        if (rows != NULL) {
            from = rows + (uint64_t)at * cache->spec.row_bytes[table];
        } else if (made != at + piece) {
            make_rows(cache, table, keys + at, piece);
            made = at + piece;
        }
        hps_status status = hps_embed_stage(cache->cache, cache->ranges[table], op, keys + at, from,
                                            piece, NULL, &taken);
        if (status == HPS_AGAIN) {
            taken = 0;
        } else if (!bench_ok(rig, status, "stage")) {
            return;
        } else if (taken < piece) {
            made = 0;
        }
        hps_embed_advance(cache->cache);
        if (status == HPS_AGAIN && rig->sim) {
            (void)sched_yield();
        }
    }
}

void bench_cache_drain(struct bench_cache *cache)
{
    while (cache->rig->status == HPS_OK && !hps_embed_idle(cache->cache)) {
        hps_embed_advance(cache->cache);
        if (cache->rig->sim) {
            (void)sched_yield();
        }
    }
}

static uint64_t n_spilled(struct bench_rig *rig, const struct hps_embed_desc *desc)
{
    uint32_t before = rig->n_pieces, n_blocks = hps_embed_blocks(desc->n_sets);
    uint32_t n_ways = hps_embed_spill_lines(desc->n_sets) * HPS_EMBED_KERNEL_WAYS;
    uint32_t home = desc->home_set >> hps_embed_block_shift(desc->n_sets);
    uint64_t n = 0, size = (uint64_t)n_blocks * n_ways * sizeof(uint64_t);
    hps_devptr unused;
    uint64_t *ways = bench_host_memory(rig, size, &unused);

    bench_download(rig, ways, hps_embed_set_at(desc->sets, hps_embed_spill(desc->n_sets, 0)), size);
    for (uint32_t block = 0; block < n_blocks && rig->status == HPS_OK; block++) {
        uint64_t marker = block == home ? desc->marker_home : desc->marker;
        for (uint32_t i = 0; i < n_ways; i++) {
            n += ways[(uint64_t)block * n_ways + i] != marker ? 1 : 0;
        }
    }
    bench_free_to(rig, before);
    return n;
}

double bench_cache_spilled_share(struct bench_cache *cache)
{
    struct hps_embed_range_usage usage;
    uint64_t n_rows = 0, n_in_spills = 0;

    for (uint32_t t = 0; t < cache->spec.n_tables; t++) {
        hps_embed_range_usage(cache->ranges[t], &usage);
        n_rows += usage.n_rows;
        n_in_spills += n_spilled(cache->rig, &cache->ranges[t]->desc);
    }
    return n_rows > 0 ? (double)n_in_spills / (double)n_rows : 0;
}

static void fill(struct bench_cache *cache, uint32_t table)
{
    uint64_t *keys = hps_alloc(HPS_EMBED_SLICE_ROWS_MAX * sizeof(*keys));

    (void)bench_ok(cache->rig, keys != NULL ? HPS_OK : HPS_NO_MEMORY, "keys");
    for (uint32_t at = 0; at < cache->spec.n_rows && cache->rig->status == HPS_OK;) {
        uint32_t n = cache->spec.n_rows - at;
        n = n < HPS_EMBED_SLICE_ROWS_MAX ? n : HPS_EMBED_SLICE_ROWS_MAX;
        for (uint32_t i = 0; i < n; i++) {
            keys[i] = bench_key(table, at + i);
        }
        bench_cache_stage(cache, table, HPS_EMBED_INSERT, keys, NULL, n);
        at += n;
    }
    bench_cache_drain(cache);
    hps_free(keys);
}

/* ---- opening --------------------------------------------------------------------------------- */

static uint64_t aligned(uint64_t size)
{
    return (size + REGION_ALIGN - 1) / REGION_ALIGN * REGION_ALIGN;
}

/* Rows of n keys of each of the first n_tables, by table. */
static uint64_t rows_bytes(const struct bench_cache *cache, uint32_t n_tables, uint32_t n)
{
    uint64_t size = 0;

    for (uint32_t t = 0; t < n_tables; t++) {
        size += aligned((uint64_t)n * cache->spec.row_bytes[t]);
    }
    return size;
}

static uint32_t matrix_bytes(const struct bench_cache *cache, uint32_t n_tables)
{
    uint32_t size = 0;

    for (uint32_t t = 0; t < n_tables; t++) {
        size += cache->spec.row_bytes[t];
    }
    return size;
}

/* From one row of a table in the region to the next, and to row i. */
static uint32_t region_stride(const struct bench_cache *cache, uint32_t table)
{
    return cache->spec.matrix ? matrix_bytes(cache, cache->spec.n_tables)
                              : cache->spec.row_bytes[table];
}

static uint64_t region_offset(const struct bench_cache *cache, uint32_t table, uint32_t i)
{
    uint64_t first = cache->spec.matrix ? matrix_bytes(cache, table)
                                        : rows_bytes(cache, table, cache->spec.n_in_region);

    return first + (uint64_t)i * region_stride(cache, table);
}

static void open_region(struct bench_cache *cache)
{
    struct bench_rig *rig = cache->rig;
    uint64_t size = rows_bytes(cache, cache->spec.n_tables, cache->spec.n_in_region);
    hps_status status;

    if (cache->spec.on_device) {
        cache->device = bench_memory(rig, size);
        status = rig->status != HPS_OK ? rig->status
                                       : hps_embed_region_device(cache->cache, cache->device, size,
                                                                 &cache->region, rig->err);
    } else {
        cache->host = hps_alloc_aligned(4096, size);
        status = cache->host == NULL ? HPS_NO_MEMORY
                                     : hps_embed_region_host(cache->cache, cache->host, size,
                                                             &cache->region, rig->err);
    }
    (void)bench_ok(rig, status, "a region");
}

static void open_cache(struct bench_cache *cache)
{
    struct bench_rig *rig = cache->rig;
    const struct bench_cache_spec *spec = &cache->spec;
    uint32_t n_cached = spec->n_cached > 0 ? spec->n_cached : spec->n_rows;
    uint64_t batch_bytes = rows_bytes(cache, spec->n_tables, spec->n_keys);
    struct hps_embed_cache_config config = {.gather_bytes = BENCH_TICKETS * batch_bytes + 4096,
                                            .stage_bytes = UINT64_C(64) << 20,
                                            .timeout_us = 60000000,
                                            .n_batches = BENCH_TICKETS,
                                            .mapped_bytes_max = spec->mapped_bytes_max};
    struct hps_embed_range_config ranges[BENCH_TABLES];

    for (uint32_t t = 0; t < spec->n_tables; t++) {
        uint64_t bytes = hps_embed_range_bytes(spec->row_bytes[t], spec->n_rows, n_cached);
        ranges[t] = (struct hps_embed_range_config){spec->row_bytes[t], spec->n_rows, bytes};
        config.arena_bytes += bytes;
    }
    (void)bench_ok(rig, hps_embed_cache_open(rig->device, &config, &cache->cache, rig->err),
                   "a cache");
    for (uint32_t t = 0; t < spec->n_tables && rig->status == HPS_OK; t++) {
        (void)bench_ok(rig,
                       hps_embed_range_new(cache->cache, &ranges[t], &cache->ranges[t], rig->err),
                       "a range");
    }
}

void bench_cache_open(struct bench_rig *rig, struct bench_cache *cache,
                      const struct bench_cache_spec *spec)
{
    uint32_t widest = 0;

    *cache = (struct bench_cache){.rig = rig, .spec = *spec};
    hps_zipf_init(&cache->zipf, spec->n_rows, spec->alpha, 0);
    for (uint32_t t = 0; t < spec->n_tables; t++) {
        widest = spec->row_bytes[t] > widest ? spec->row_bytes[t] : widest;
    }
    cache->n_pool = spec->n_rows < BENCH_POOL ? spec->n_rows : BENCH_POOL;
    cache->rows = hps_alloc((uint64_t)HPS_EMBED_SLICE_ROWS_MAX * widest);
    cache->pool = hps_alloc((uint64_t)cache->n_pool * spec->row_bytes[0]);
    cache->pool_keys = hps_alloc(cache->n_pool * sizeof(*cache->pool_keys));
    if (!bench_ok(rig,
                  cache->rows != NULL && cache->pool != NULL && cache->pool_keys != NULL
                      ? HPS_OK
                      : HPS_NO_MEMORY,
                  "rows")) {
        return;
    }
    for (uint32_t i = 0; i < cache->n_pool; i++) {
        cache->pool_keys[i] = bench_key(0, i);
        bench_row(cache->pool_keys[i], cache->pool + (uint64_t)i * spec->row_bytes[0],
                  spec->row_bytes[0]);
    }
    open_cache(cache);
    if (rig->status == HPS_OK) {
        open_region(cache);
    }
    for (uint32_t t = 0; t < spec->n_tables && spec->n_cached == 0; t++) {
        fill(cache, t);
    }
}

void bench_cache_close(struct bench_cache *cache)
{
    struct bench_rig *rig = cache->rig;

    bench_cache_drain(cache);
    for (uint32_t t = 0; t < cache->spec.n_tables; t++) {
        hps_embed_range_free(cache->ranges[t]);
    }
    while (cache->region != NULL && hps_embed_region_free(cache->region) == HPS_AGAIN &&
           rig->status == HPS_OK) {
        hps_embed_advance(cache->cache);
    }
    hps_embed_cache_close(cache->cache);
    hps_free_aligned(cache->host);
    hps_free(cache->rows);
    hps_free(cache->pool);
    hps_free(cache->pool_keys);
    bench_free_to(rig, 0);
}

/* ---- lookups --------------------------------------------------------------------------------- */

void bench_cache_draw(struct bench_cache *cache, uint64_t *keys, uint32_t stride, uint32_t n,
                      uint32_t missing_percent)
{
    struct hps_random *random = &cache->rig->random;

    for (uint32_t t = 0; t < cache->spec.n_tables; t++) {
        for (uint32_t i = 0; i < n; i++) {
            bool missing =
                missing_percent > 0 && hps_random_next(random) % PERCENT < missing_percent;
            keys[(uint64_t)t * stride + i] =
                missing ? bench_key(UNKNOWN_TABLE, cache->next_unknown++)
                        : bench_key(t, hps_zipf_rank(&cache->zipf, random) - 1);
        }
    }
}

struct hps_embed_ticket *bench_cache_submit(struct bench_cache *cache, const uint64_t *keys,
                                            uint32_t stride, uint32_t n, uint32_t skipped)
{
    const struct bench_cache_spec *spec = &cache->spec;
    struct hps_embed_part parts[BENCH_TABLES];
    struct hps_embed_ticket *ticket = NULL;
    hps_status status;

    for (uint32_t t = 0; t < spec->n_tables; t++) {
        parts[t] = (struct hps_embed_part){
            .range = cache->ranges[t],
            .keys = (const uint8_t *)(keys + (uint64_t)t * stride),
            .n = n,
            .region = cache->region,
            .offset = region_offset(cache, t, skipped),
            .stride = spec->matrix ? region_stride(cache, t) : 0,
        };
    }
    while ((status = hps_embed_submit(cache->cache, parts, spec->n_tables, &ticket)) == HPS_AGAIN) {
        hps_embed_advance(cache->cache);
        if (cache->rig->sim) {
            (void)sched_yield();
        }
    }
    (void)bench_ok(cache->rig, status, "submit");
    return status == HPS_OK ? ticket : NULL;
}

bool bench_cache_ended(struct bench_cache *cache, struct hps_embed_ticket *ticket)
{
    hps_status status = hps_embed_poll(ticket);

    if (status == HPS_AGAIN) {
        if (cache->rig->sim) {
            (void)sched_yield();
        }
        return false;
    }
    (void)bench_ok(cache->rig, status, "a lookup");
    return true;
}

static bool is_hit(const struct hps_embed_ticket *ticket, uint32_t part, uint32_t i)
{
    return (hps_embed_hits(ticket, part)[i / 32] >> i % 32 & 1) != 0;
}

uint32_t bench_cache_missing(const struct hps_embed_ticket *ticket, uint32_t part, uint64_t *keys,
                             uint32_t n)
{
    uint32_t n_missing = 0;

    for (uint32_t i = 0; i < n; i++) {
        if (!is_hit(ticket, part, i)) {
            keys[n_missing++] = keys[i];
        }
    }
    return n_missing;
}

double bench_cache_lookup_us(struct bench_cache *cache, const uint64_t *keys, uint32_t n)
{
    uint64_t began = bench_now_ns();
    struct hps_embed_ticket *ticket = bench_cache_submit(cache, keys, n, n, 0);

    while (ticket != NULL && !bench_cache_ended(cache, ticket)) {
    }
    uint64_t ended = bench_now_ns();
    hps_embed_release(ticket);
    hps_embed_advance(cache->cache);
    return (double)(ended - began) / 1000;
}

/* The row that a lookup has put into the region. */
static const uint8_t *row_at(struct bench_cache *cache, uint64_t offset, uint32_t row_bytes,
                             uint8_t *copy)
{
    if (cache->host != NULL) {
        return cache->host + offset;
    }
    bench_download(cache->rig, copy, cache->device + offset, row_bytes);
    return copy;
}

void bench_cache_check(struct bench_cache *cache, uint32_t n_rows, double min_share)
{
    struct bench_rig *rig = cache->rig;
    const struct bench_cache_spec *spec = &cache->spec;
    uint32_t n = spec->n_keys < CHECKED_KEYS ? spec->n_keys : CHECKED_KEYS, n_hit = 0;
    uint32_t before = rig->n_pieces;
    uint64_t keys[BENCH_TABLES * CHECKED_KEYS];
    hps_devptr unused;
    uint8_t *copy = bench_host_memory(rig, HPS_EMBED_ROW_BYTES_MAX, &unused);

    for (uint32_t i = 0; i < spec->n_tables * n; i++) {
        keys[i] = bench_key(i / n, hps_random_next(&rig->random) % n_rows);
    }
    bench_cache_drain(cache);
    struct hps_embed_ticket *ticket =
        rig->status == HPS_OK ? bench_cache_submit(cache, keys, n, n, 0) : NULL;
    while (ticket != NULL && !bench_cache_ended(cache, ticket)) {
    }
    for (uint32_t i = 0; ticket != NULL && i < spec->n_tables * n && rig->status == HPS_OK; i++) {
        uint32_t t = i / n, row_bytes = spec->row_bytes[t];
        if (!is_hit(ticket, t, i % n)) {
            continue;
        }
        n_hit++;
        bench_row(keys[i], cache->rows, row_bytes);
        const uint8_t *row = row_at(cache, region_offset(cache, t, i % n), row_bytes, copy);
        if (memcmp(row, cache->rows, row_bytes) != 0) {
            (void)bench_ok(rig, HPS_INTERNAL, "a row from the cache differs from its key's");
        }
    }
    if (n_hit < min_share * spec->n_tables * n) {
        (void)bench_ok(rig, HPS_INTERNAL, "rows that were put into the cache are not there");
    }
    hps_embed_release(ticket);
    hps_embed_advance(cache->cache);
    bench_free_to(rig, before);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * See embed_rig.h.
 */
#include "tests/gpu/embed_rig.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/heap.h"
#include "tests/lib/pause.h"

enum { POISON = 0xb7, UNKNOWN = UINT32_MAX, CHANGE_MAX = HPS_EMBED_SLICE_ROWS_MAX };

bool embed_expect(struct embed_rig *rig, bool holds, const char *fmt, ...)
{
    if (!holds && !rig->failed) {
        char text[300];
        va_list args;
        va_start(args, fmt);
        (void)vsnprintf(text, sizeof(text), fmt, args);
        va_end(args);
        rig->failed = true;
        hps_ignore(hps_error_set(rig->err, HPS_INTERNAL, "%s", text));
    }
    return holds;
}

bool embed_ok(struct embed_rig *rig, hps_status status, const char *what)
{
    return embed_expect(rig, status == HPS_OK, "%s: %s (%.200s)", what, hps_status_text(status),
                        rig->err->text);
}

void *embed_calloc(struct embed_rig *rig, size_t count, size_t size)
{
    void *memory = hps_calloc(count, size);

    (void)embed_ok(rig, memory != NULL ? HPS_OK : HPS_NO_MEMORY, "memory");
    return memory;
}

uint32_t embed_random(struct embed_rig *rig, uint32_t below)
{
    return (uint32_t)(hps_random_next(&rig->random) % below);
}

/* ---- opening and closing --------------------------------------------------------------------- */

static void query_open(struct embed_rig *rig, struct embed_query *query, bool on_device)
{
    uint32_t n_keys_max = rig->config.batch_keys_max;
    hps_devptr unused;
    void *host = NULL;

    query->keys = embed_calloc(rig, n_keys_max, sizeof(*query->keys));
    query->indices = embed_calloc(rig, n_keys_max, sizeof(*query->indices));
    query->expected = embed_calloc(rig, n_keys_max, sizeof(*query->expected));
    if (on_device) {
        if (embed_ok(rig, hps_device_alloc(rig->device, rig->query_bytes, &query->device, rig->err),
                     "device memory") &&
            embed_ok(rig,
                     hps_device_host_alloc(rig->device, rig->query_bytes, &host, &unused, rig->err),
                     "host memory")) {
            (void)embed_ok(rig,
                           hps_embed_region_device(rig->cache, query->device, rig->query_bytes,
                                                   &query->region, rig->err),
                           "a region");
        }
    } else {
        host = hps_alloc_aligned(4096, rig->query_bytes);
        if (embed_ok(rig, host != NULL ? HPS_OK : HPS_NO_MEMORY, "memory")) {
            (void)embed_ok(
                rig,
                hps_embed_region_host(rig->cache, host, rig->query_bytes, &query->region, rig->err),
                "a region");
        }
    }
    query->host = host;
}

void embed_rig_open(struct embed_rig *rig, struct hps_device *device,
                    const struct hps_embed_cache_config *config, uint64_t query_bytes,
                    unsigned n_device, struct hps_error *err)
{
    *rig = (struct embed_rig){.device = device, .config = *config, .err = err, .random = {1}};
    rig->query_bytes = query_bytes;
    if (rig->config.batch_keys_max == 0) {
        rig->config.batch_keys_max = HPS_EMBED_BATCH_KEYS_MAX;
    }
    if (!embed_ok(rig, hps_embed_cache_open(device, &rig->config, &rig->cache, err), "open") ||
        !embed_ok(rig, hps_stream_q_new(device, "rig", false, &rig->stream, err), "a stream") ||
        !embed_ok(rig, hps_event_new(device, &rig->event, err), "an event")) {
        return;
    }
    for (unsigned i = 0; i < EMBED_QUERIES && !rig->failed; i++) {
        query_open(rig, &rig->queries[i], i < n_device);
    }
}

static void query_close(struct embed_rig *rig, struct embed_query *query)
{
    hps_embed_release(query->ticket);
    if (query->region != NULL) {
        while (hps_embed_region_free(query->region) == HPS_AGAIN) {
            hps_embed_advance(rig->cache);
            brief_pause();
        }
    }
    if (query->device != 0) {
        hps_device_host_free(rig->device, query->host);
        hps_device_free(rig->device, query->device);
    } else {
        hps_free_aligned(query->host);
    }
    hps_free(query->keys);
    hps_free(query->indices);
    hps_free(query->expected);
}

bool embed_rig_close(struct embed_rig *rig)
{
    for (unsigned i = 0; i < EMBED_QUERIES; i++) {
        query_close(rig, &rig->queries[i]);
    }
    hps_embed_cache_close(rig->cache);
    hps_stream_q_free(rig->stream);
    hps_event_free(rig->event);
    hps_free(rig->rows);
    return !rig->failed;
}

/* ---- tables ---------------------------------------------------------------------------------- */

static uint64_t bytes_for(uint32_t row_bytes, uint64_t n_slots)
{
    return hps_embed_range_bytes(row_bytes, 4 * n_slots, n_slots);
}

static uint32_t set_of(const struct embed_table *table, hps_key key)
{
    const struct hps_embed_desc *desc = &table->range->desc;
    return hps_embed_set(hps_embed_mix(key, desc->seed), desc->n_sets);
}

/* The number of keys in each set, and in the spill of its block. An erased key leaves a free way
 * in the set for the next key. So a spill never has more keys than its sets have beyond their
 * ways. */
struct places {
    uint32_t *in_set;
    uint32_t *in_spill;
};

static struct places places_new(struct embed_rig *rig, const struct embed_table *table)
{
    uint32_t n_sets = table->range->desc.n_sets;

    return (struct places){embed_calloc(rig, n_sets, sizeof(uint32_t)),
                           embed_calloc(rig, hps_embed_blocks(n_sets), sizeof(uint32_t))};
}

static void places_free(struct places *places)
{
    hps_free(places->in_set);
    hps_free(places->in_spill);
}

/* Add one key; returns whether it fits. */
static bool place(struct places *places, const struct embed_table *table, hps_key key)
{
    uint32_t n_sets = table->range->desc.n_sets, set = set_of(table, key);
    uint32_t *in_set = &places->in_set[set];
    uint32_t *in_spill = &places->in_spill[set >> hps_embed_block_shift(n_sets)];
    uint32_t *in = *in_set < HPS_EMBED_WAYS ? in_set : in_spill;
    bool fits = in == in_set || *in < HPS_EMBED_WAYS * hps_embed_spill_lines(n_sets);

    if (fits) {
        ++*in;
    }
    return fits;
}

static bool table_alloc(struct embed_rig *rig, struct embed_table *table, uint32_t row_bytes,
                        uint64_t n_slots, uint32_t n_keys)
{
    struct hps_embed_range_config config = {
        .row_bytes = row_bytes, .n_rows = 4 * n_slots, .bytes_max = bytes_for(row_bytes, n_slots)};

    if (n_slots == EMBED_WHOLE) {
        config.n_rows = n_keys;
        config.bytes_max = hps_embed_range_bytes(row_bytes, n_keys, n_keys);
    }
    *table = (struct embed_table){.row_bytes = row_bytes};
    table->keys = embed_calloc(rig, n_keys, sizeof(*table->keys));
    table->versions = embed_calloc(rig, n_keys, sizeof(*table->versions));
    uint64_t bytes = (uint64_t)CHANGE_MAX * row_bytes;
    if (bytes > rig->rows_bytes) {
        hps_free(rig->rows);
        rig->rows = embed_calloc(rig, 1, bytes);
        rig->rows_bytes = bytes;
    }
    return !rig->failed &&
           embed_ok(rig, hps_embed_range_new(rig->cache, &config, &table->range, rig->err),
                    "a range");
}

void embed_table_open(struct embed_rig *rig, struct embed_table *table, uint32_t row_bytes,
                      uint64_t n_slots, uint32_t n_keys, uint64_t stride)
{
    if (!table_alloc(rig, table, row_bytes, n_slots, n_keys)) {
        return;
    }
    struct places places = places_new(rig, table);
    table->exact = true;
    for (uint64_t i = 0; !rig->failed && table->n_keys < n_keys && i < 1000 * (uint64_t)n_keys;
         i++) {
        hps_key key = stride != 0 ? i * stride : hps_random_next(&rig->random);
        if (place(&places, table, key)) {
            table->keys[table->n_keys++] = key;
        }
    }
    (void)embed_expect(rig, table->n_keys == n_keys, "%u keys of %u fit", table->n_keys, n_keys);
    places_free(&places);
}

void embed_table_open_keys(struct embed_rig *rig, struct embed_table *table, uint32_t row_bytes,
                           uint64_t n_slots, const hps_key *keys, uint32_t n_keys)
{
    if (!table_alloc(rig, table, row_bytes, n_slots, n_keys)) {
        return;
    }
    struct places places = places_new(rig, table);
    table->exact = true;
    table->n_keys = n_keys;
    for (uint32_t i = 0; i < n_keys && !rig->failed; i++) {
        table->keys[i] = keys[i];
        table->exact = place(&places, table, keys[i]) && table->exact;
    }
    places_free(&places);
}

void embed_table_close(struct embed_table *table)
{
    hps_embed_range_free(table->range);
    hps_free(table->keys);
    hps_free(table->versions);
    *table = (struct embed_table){0};
}

void embed_keys_of_one_set(const struct embed_rig *rig, uint64_t n_slots, uint32_t row_bytes,
                           hps_key start, hps_key *keys, uint32_t n)
{
    struct hps_embed_layout layout;
    uint32_t n_found = 0;

    if (rig->failed) {
        return;
    }
    hps_embed_layout(row_bytes, bytes_for(row_bytes, n_slots), UINT32_MAX, &layout);
    uint64_t seed = rig->cache->config.seed;
    uint32_t set = hps_embed_set(hps_embed_mix(start, seed), layout.n_sets);
    for (hps_key key = start; n_found < n; key++) {
        if (hps_embed_set(hps_embed_mix(key, seed), layout.n_sets) == set) {
            keys[n_found++] = key;
        }
    }
}

void embed_row(const struct embed_table *table, hps_key key, uint32_t version, uint8_t *row)
{
    uint64_t word = hps_mix64(key ^ hps_mix64(version)) ^ table->row_bytes;

    for (uint32_t i = 0; i < table->row_bytes; i += 8) {
        uint32_t left = table->row_bytes - i;
        memcpy(row + i, &word, left < 8 ? left : 8);
        word += HPS_HASH_GOLDEN;
    }
}

/* ---- changes --------------------------------------------------------------------------------- */

static void model_change(struct embed_table *table, enum hps_embed_op op, const uint32_t *indices,
                         uint32_t n, uint32_t first_version)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t *version = &table->versions[indices[i]];
        bool last = true;
        for (uint32_t j = i + 1; j < n && n <= 256; j++) {
            last = last && indices[j] != indices[i];
        }
        if (!last || table->retired) {
            continue;
        }
        if (op == HPS_EMBED_ERASE) {
            *version = 0;
        } else if ((op == HPS_EMBED_UPDATE) == (*version != 0)) {
            *version = first_version + i;
        }
    }
}

void embed_change(struct embed_rig *rig, struct embed_table *table, enum hps_embed_op op,
                  const uint32_t *indices, uint32_t n)
{
    hps_key keys[256], *many = n <= 256 ? keys : embed_calloc(rig, n, sizeof(*many));
    const uint8_t *rows = op == HPS_EMBED_ERASE ? NULL : rig->rows;
    uint32_t first_version = rig->version + 1;

    for (uint32_t i = 0; i < n && !rig->failed; i++) {
        many[i] = table->keys[indices[i]];
        embed_row(table, many[i], ++rig->version, rig->rows + (size_t)i * table->row_bytes);
    }
    for (uint32_t at = 0, taken = 0; at < n && !rig->failed; at += taken) {
        hps_status status = hps_embed_stage(
            rig->cache, table->range, op, many + at,
            rows == NULL ? NULL : rows + (size_t)at * table->row_bytes, n - at, NULL, &taken);
        if (status == HPS_AGAIN) {
            taken = 0;
            hps_embed_advance(rig->cache);
            brief_pause();
        } else if (!embed_ok(rig, status, "stage")) {
            break;
        }
    }
    if (!rig->failed) {
        model_change(table, op, indices, n, first_version);
    }
    if (many != keys) {
        hps_free(many);
    }
}

void embed_change_random(struct embed_rig *rig, struct embed_table *table, enum hps_embed_op op,
                         uint32_t n)
{
    uint32_t indices[256];

    n = n < 256 ? n : 256;
    for (uint32_t i = 0; i < n && !rig->failed; i++) {
        indices[i] = embed_random(rig, table->n_keys);
    }
    embed_change(rig, table, op, indices, n);
}

/* ---- lookups --------------------------------------------------------------------------------- */

static hps_key unknown_key(struct embed_rig *rig, const struct embed_table *table)
{
    for (;;) { /* a random key is rarely in the table, but it may be */
        hps_key key = hps_random_next(&rig->random);
        bool known = false;
        for (uint32_t i = 0; i < table->n_keys && !known; i++) {
            known = table->keys[i] == key;
        }
        if (!known) {
            return key;
        }
    }
}

static struct hps_embed_part *query_part(struct embed_rig *rig, struct embed_query *query,
                                         struct embed_table *table, uint32_t n)
{
    uint64_t bytes = (uint64_t)n * table->row_bytes;

    if (rig->failed ||
        !embed_expect(rig,
                      query->n_parts < EMBED_QUERY_PARTS &&
                          query->n_keys + n <= rig->config.batch_keys_max &&
                          query->bytes + bytes + EMBED_PADDING + 16 <= rig->query_bytes,
                      "the query is full")) {
        return NULL;
    }
    query->tables[query->n_parts] = table;
    struct hps_embed_part *part = &query->parts[query->n_parts++];
    *part = (struct hps_embed_part){.range = table->range,
                                    .keys = (const uint8_t *)(query->keys + query->n_keys),
                                    .n = n,
                                    .region = query->region,
                                    .offset = query->bytes};
    query->bytes = (query->bytes + bytes + 15) / 16 * 16;
    if (embed_random(rig, 2) == 0) { /* otherwise adjacent rows, which may be copied as one */
        query->bytes += EMBED_PADDING;
    }
    return part;
}

static void query_key(struct embed_query *query, const struct embed_table *table, hps_key key,
                      uint32_t index)
{
    query->keys[query->n_keys] = key;
    query->indices[query->n_keys] = index;
    query->expected[query->n_keys++] = index == UNKNOWN ? 0 : table->versions[index];
}

void embed_query_random(struct embed_rig *rig, struct embed_query *query, struct embed_table *table,
                        uint32_t n, uint32_t unknown_percent)
{
    if (query_part(rig, query, table, n) == NULL) {
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (embed_random(rig, 100) < unknown_percent) {
            query_key(query, table, unknown_key(rig, table), UNKNOWN);
        } else {
            uint32_t index = embed_random(rig, table->n_keys);
            query_key(query, table, table->keys[index], index);
        }
    }
}

void embed_query_all(struct embed_rig *rig, struct embed_query *query, struct embed_table *table)
{
    if (query_part(rig, query, table, table->n_keys) == NULL) {
        return;
    }
    for (uint32_t i = 0; i < table->n_keys; i++) {
        query_key(query, table, table->keys[i], i);
    }
}

static void poison(struct embed_rig *rig, const struct embed_query *query)
{
    if (query->device == 0) {
        memset(query->host, POISON, query->bytes);
        return;
    }
    if (embed_ok(rig, hps_fill_on_device(rig->stream, query->device, POISON, query->bytes),
                 "fill")) {
        (void)embed_ok(rig, hps_event_record(rig->event, rig->stream), "record");
        (void)embed_ok(rig, hps_event_wait(rig->event), "wait");
    }
}

/* False: the cache must end other lookups first. */
static bool submit(struct embed_rig *rig, struct embed_query *query)
{
    hps_status status = hps_embed_submit(rig->cache, query->parts, query->n_parts, &query->ticket);
    if (status == HPS_AGAIN) {
        hps_embed_advance(rig->cache);
        return false;
    }
    (void)embed_ok(rig, status, "submit");
    return true;
}

bool embed_begin_now(struct embed_rig *rig, struct embed_query *query)
{
    query->bytes += EMBED_PADDING;
    if (!rig->failed) {
        poison(rig, query);
    }
    return rig->failed || submit(rig, query);
}

void embed_begin_later(struct embed_rig *rig, struct embed_query *query)
{
    while (!rig->failed && !submit(rig, query)) {
        brief_pause();
    }
}

void embed_begin(struct embed_rig *rig, struct embed_query *query)
{
    if (!embed_begin_now(rig, query)) {
        embed_begin_later(rig, query);
    }
}

/* Copy rows in device memory to the host. */
static void fetch(struct embed_rig *rig, const struct embed_query *query)
{
    if (query->device != 0 &&
        embed_ok(rig, hps_copy_to_host(rig->stream, query->host, query->device, query->bytes),
                 "copy")) {
        (void)embed_ok(rig, hps_event_record(rig->event, rig->stream), "record");
        (void)embed_ok(rig, hps_event_wait(rig->event), "wait");
    }
}

static void check_key(struct embed_rig *rig, const struct embed_query *query, uint32_t part,
                      uint32_t i, uint32_t at)
{
    struct embed_table *table = query->tables[part];
    uint8_t expected[HPS_EMBED_ROW_BYTES_MAX];
    uint32_t version = query->expected[at];
    bool hit = (hps_embed_hits(query->ticket, part)[i / 32] >> i % 32 & 1) != 0;
    const uint8_t *row = query->host + query->parts[part].offset + (size_t)i * table->row_bytes;

    if (!embed_expect(rig, hit == (version != 0) || (!table->exact && !hit),
                      "part %u, key %u (%" PRIx64 "): hit %d, version %u", part, i, query->keys[at],
                      hit, version)) {
        return;
    }
    rig->n_hits += hit;
    if (hit) {
        embed_row(table, query->keys[at], version, expected);
        (void)embed_expect(rig, memcmp(row, expected, table->row_bytes) == 0,
                           "part %u, key %u (%" PRIx64 "): not the row of version %u, %u bytes",
                           part, i, query->keys[at], version, table->row_bytes);
    }
}

/* Bytes between the parts were not written. */
static void check_between(struct embed_rig *rig, const struct embed_query *query, uint32_t part)
{
    const struct hps_embed_part *of = &query->parts[part];
    uint64_t end = part + 1 < query->n_parts ? of[1].offset : query->bytes;

    for (uint64_t i = of->offset + (uint64_t)of->n * query->tables[part]->row_bytes; i < end; i++) {
        if (!embed_expect(rig, query->host[i] == POISON, "part %u: byte %" PRIu64 " was written",
                          part, i)) {
            return;
        }
    }
}

static void check_query(struct embed_rig *rig, struct embed_query *query)
{
    uint32_t at = 0;

    for (uint32_t part = 0; part < query->n_parts; part++) {
        uint32_t n = query->parts[part].n;
        for (uint32_t i = 0; i < n && !rig->failed; i++) {
            check_key(rig, query, part, i, at++);
        }
        if (n % 32 != 0) {
            (void)embed_expect(rig, hps_embed_hits(query->ticket, part)[n / 32] >> n % 32 == 0,
                               "part %u: bits behind the last key", part);
        }
        check_between(rig, query, part);
    }
}

static void query_reset(struct embed_query *query)
{
    hps_embed_release(query->ticket);
    query->ticket = NULL;
    query->n_parts = 0;
    query->n_keys = 0;
    query->bytes = 0;
}

void embed_finish(struct embed_rig *rig, struct embed_query *query)
{
    while (query->ticket != NULL && !rig->failed) {
        hps_status status = hps_embed_poll(query->ticket);
        if (status != HPS_AGAIN) {
            (void)embed_ok(rig, status, "poll");
            break;
        }
        brief_pause();
    }
    if (!rig->failed) {
        fetch(rig, query);
        check_query(rig, query);
    }
    query_reset(query);
    if (!rig->failed) {
        hps_embed_advance(rig->cache);
    }
}

void embed_drop(struct embed_rig *rig, struct embed_query *query)
{
    (void)rig;
    query_reset(query);
}

static void learn(struct embed_query *query, struct embed_table *table)
{
    const uint32_t *hits = hps_embed_hits(query->ticket, 0);

    for (uint32_t i = 0; i < table->n_keys; i++) {
        if ((hits[i / 32] >> i % 32 & 1) == 0) {
            table->versions[i] = 0;
        }
    }
}

void embed_lookup_all(struct embed_rig *rig, struct embed_table *table)
{
    struct embed_query *query = &rig->queries[0];

    embed_query_all(rig, query, table);
    embed_begin(rig, query);
    while (!rig->failed && hps_embed_poll(query->ticket) == HPS_AGAIN) {
        brief_pause();
    }
    if (!rig->failed && !table->exact && hps_embed_poll(query->ticket) == HPS_OK) {
        learn(query, table);
    }
    embed_finish(rig, query);
}

void embed_drain(struct embed_rig *rig)
{
    for (bool idle = false; !rig->failed && !idle; idle = hps_embed_idle(rig->cache)) {
        hps_embed_advance(rig->cache);
        brief_pause();
    }
}

void embed_expect_counts(struct embed_rig *rig, struct embed_table *table)
{
    struct hps_embed_range_usage usage;
    uint64_t n = 0;

    if (rig->failed) {
        return;
    }
    embed_drain(rig);
    hps_embed_range_usage(table->range, &usage);
    for (uint32_t i = 0; i < table->n_keys; i++) {
        n += table->versions[i] != 0;
    }
    (void)embed_expect(rig, usage.n_rows == n, "%" PRIu64 " rows by the counters, %" PRIu64,
                       usage.n_rows, n);
    (void)embed_expect(rig, usage.n_rows == usage.n_inserted - usage.n_evicted - usage.n_erased,
                       "counters of %" PRIu64 " rows do not add up", usage.n_rows);
    if (table->exact) {
        (void)embed_expect(rig, usage.n_evicted == 0 && usage.n_refused == 0,
                           "%" PRIu64 " evicted, %" PRIu64 " refused where all fit",
                           usage.n_evicted, usage.n_refused);
    }
}

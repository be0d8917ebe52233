/* SPDX-License-Identifier: Apache-2.0
 *
 * The embedding cache, compared with a dictionary. See embed_rig.h.
 */
#include "tests/gpu/embed_checks.h"
#include "cache/device/sim/sim.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/heap.h"
#include "tests/gpu/embed_rig.h"
#include "tests/gpu/shape_checks.h"
#include "tests/lib/work.h"

enum {
    MAPPED_ALL = 1 << 30,
    GATHER_ALL = 1,
    PATIENCE_US = 600000000, /* a simulated device on a busy machine is slow */
};

/* Small; every key is counted. */
static struct hps_embed_cache_config small_config(void)
{
    return (struct hps_embed_cache_config){
        .arena_bytes = 16 << 20,
        .gather_bytes = 4 << 20,
        .stage_bytes = 1 << 20,
        .timeout_us = PATIENCE_US,
        .seed = 42,
        .n_batches = EMBED_QUERIES,
        .batch_keys_max = 8192,
        .batch_parts_max = EMBED_QUERY_PARTS,
        .sample_rate = 1,
    };
}

static bool is_gpu(struct hps_device *device)
{
    return hps_device_info(device)->kind == HPS_DEVICE_CUDA;
}

static void change_any(struct embed_rig *rig, struct embed_table *table)
{
    static const enum hps_embed_op ops[] = {HPS_EMBED_INSERT, HPS_EMBED_INSERT_WANTED,
                                            HPS_EMBED_UPDATE, HPS_EMBED_ERASE};
    enum hps_embed_op op = ops[embed_random(rig, 4)];

    embed_change_random(rig, table, op, 1 + embed_random(rig, op == HPS_EMBED_ERASE ? 8 : 60));
}

/* Changes and lookups in random order, with several lookups in flight. */
static void mix(struct embed_rig *rig, struct embed_table *tables, uint32_t n_tables,
                uint32_t n_rounds, uint32_t n_keys_max)
{
    for (uint32_t round = 0; round < n_rounds && !rig->failed; round++) {
        struct embed_query *query = &rig->queries[round % EMBED_QUERIES];
        embed_finish(rig, query);
        for (uint32_t i = 0; i < n_tables; i++) {
            change_any(rig, &tables[i]);
            embed_query_random(rig, query, &tables[i], embed_random(rig, n_keys_max + 1),
                               embed_random(rig, 3) * 20);
        }
        embed_begin(rig, query);
    }
    for (uint32_t i = 0; i < EMBED_QUERIES; i++) {
        embed_finish(rig, &rig->queries[i]);
    }
}

static void check_all(struct embed_rig *rig, struct embed_table *tables, uint32_t n_tables)
{
    for (uint32_t i = 0; i < n_tables; i++) {
        embed_lookup_all(rig, &tables[i]);
        embed_expect_counts(rig, &tables[i]);
    }
}

/* ---- row widths ------------------------------------------------------------------------------ */

static bool check_widths(struct hps_device *device, struct hps_error *err,
                         uint32_t mapped_bytes_max, unsigned n_device)
{
    static const uint32_t widths[] = {4,   8,   12,  16,  20,  32,  36,   48,   64,
                                      100, 128, 132, 256, 512, 768, 1028, 4096,       /* fp32 */
                                      2,   6,   10,  30,  66,  510, 2046, 1,    33,   /* halves */
                                      5,   7,   9,   11,  24,  40,  68,   72,   136}; /* int8 */
    enum { N = sizeof(widths) / sizeof(widths[0]) };
    struct hps_embed_cache_config config = small_config();
    struct embed_table tables[N];
    struct embed_rig rig;

    config.mapped_bytes_max = mapped_bytes_max;
    embed_rig_open(&rig, device, &config, 1 << 20, n_device, err);
    for (uint32_t i = 0; i < N; i++) {
        embed_table_open(&rig, &tables[i], widths[i], 160, 90, 0);
    }
    mix(&rig, tables, N, 10, 40);
    check_all(&rig, tables, N);
    for (uint32_t i = 0; i < N; i++) {
        embed_table_close(&tables[i]);
    }
    return embed_rig_close(&rig);
}

static bool widths_mapped(struct hps_device *device, struct hps_error *err)
{
    return check_widths(device, err, MAPPED_ALL, 0);
}

static bool widths_gathered(struct hps_device *device, struct hps_error *err)
{
    return check_widths(device, err, GATHER_ALL, 0);
}

static bool widths_on_device(struct hps_device *device, struct hps_error *err)
{
    return check_widths(device, err, GATHER_ALL, 3);
}

/* ---- batch sizes ----------------------------------------------------------------------------- */

static void lookup_n(struct embed_rig *rig, struct embed_table *table, uint32_t n,
                     uint32_t unknown_percent)
{
    struct embed_query *query = &rig->queries[embed_random(rig, EMBED_QUERIES)];

    embed_query_random(rig, query, table, n, unknown_percent);
    embed_begin(rig, query);
    embed_finish(rig, query);
}

static bool batch_sizes(struct hps_device *device, struct hps_error *err)
{
    static const uint32_t sizes[] = {0,  1,   2,   31,  32,  33,   63,   64,   65,
                                     95, 127, 255, 256, 257, 1000, 4095, 8191, 8192};
    struct hps_embed_cache_config config = small_config();
    struct embed_table table;
    struct embed_rig rig;

    embed_rig_open(&rig, device, &config, 1 << 20, 2, err);
    embed_table_open(&rig, &table, 16, 2000, 800, 0);
    for (uint32_t i = 0; i < 8; i++) {
        embed_change_random(&rig, &table, HPS_EMBED_INSERT, 200);
    }
    for (uint32_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]) && !rig.failed; i++) {
        lookup_n(&rig, &table, sizes[i], 20);
    }
    for (uint32_t unknown = 0; unknown <= 100; unknown += 50) {
        lookup_n(&rig, &table, 333, unknown);
    }
    check_all(&rig, &table, 1);
    embed_table_close(&table);
    return embed_rig_close(&rig);
}

/* As many keys as fit into a batch: gathered, copied out in several chunks, and stored directly. */
static bool largest_batch(struct hps_device *device, struct hps_error *err)
{
    struct hps_embed_cache_config config = {
        .arena_bytes = 16 << 20,
        .gather_bytes = 8 << 20,
        .timeout_us = PATIENCE_US,
        .seed = 42,
        .n_batches = 2,
    };
    struct embed_table table;
    struct embed_rig rig;

    embed_rig_open(&rig, device, &config, 3 << 20, 1, err);
    uint32_t *indices = embed_calloc(&rig, HPS_EMBED_SLICE_ROWS_MAX, sizeof(*indices));
    embed_table_open(&rig, &table, 32, 30000, HPS_EMBED_SLICE_ROWS_MAX, 3);
    for (uint32_t i = 0; i < HPS_EMBED_SLICE_ROWS_MAX && !rig.failed; i++) {
        indices[i] = i;
    }
    embed_change(&rig, &table, HPS_EMBED_INSERT, indices, HPS_EMBED_SLICE_ROWS_MAX);
    for (unsigned i = 0; i < 2; i++) {
        embed_query_random(&rig, &rig.queries[i], &table, HPS_EMBED_BATCH_KEYS_MAX, 0);
        embed_begin(&rig, &rig.queries[i]);
    }
    embed_finish(&rig, &rig.queries[1]);
    embed_finish(&rig, &rig.queries[0]);
    (void)embed_expect(&rig, rig.n_hits == 2 * HPS_EMBED_BATCH_KEYS_MAX, "%" PRIu64 " hits",
                       rig.n_hits);
    embed_expect_counts(&rig, &table);
    embed_table_close(&table);
    hps_free(indices);
    return embed_rig_close(&rig);
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* Every key is valid, also keys that mark a way as empty, in their own set and in other sets. */
static bool special_keys(struct hps_device *device, struct hps_error *err)
{
    hps_key keys[256 + 4] = {UINT64_C(1) << 63, (UINT64_C(1) << 63) - 1, 1, UINT64_MAX - 1};
    struct hps_embed_cache_config config = small_config();
    struct embed_table tables[3];
    struct embed_rig rig;

    for (uint32_t i = 0; i < 256; i++) { /* all possible markers; 0 and -1 are two of them */
        keys[4 + i] = i * UINT64_C(0x0101010101010101);
    }
    embed_rig_open(&rig, device, &config, 1 << 20, 0, err);
    embed_table_open_keys(&rig, &tables[0], 8, 4000, keys, 260);
    embed_table_open(&rig, &tables[1], 8, 1000, 400, UINT64_C(1) << 32); /* strided */
    embed_table_open(&rig, &tables[2], 8, 1000, 400, UINT64_C(1) << 52);
    (void)embed_expect(&rig, tables[0].exact, "the special keys do not fit");
    embed_lookup_all(&rig, &tables[0]); /* no key is cached, whatever marks a way as empty */
    (void)embed_expect(&rig, rig.n_hits == 0, "a key is there before it was inserted");
    mix(&rig, tables, 3, 12, 300);
    check_all(&rig, tables, 3);
    for (uint32_t i = 0; i < 3; i++) {
        embed_table_close(&tables[i]);
    }
    return embed_rig_close(&rig);
}

/* The marker keys in the smallest range, which has two sets. */
static bool smallest_range(struct hps_device *device, struct hps_error *err)
{
    struct hps_embed_cache_config config = small_config();
    hps_key keys[8];
    struct embed_table table;
    struct embed_rig rig;

    embed_rig_open(&rig, device, &config, 1 << 20, 0, err);
    embed_keys_of_one_set(&rig, 1, 4, UINT64_MAX, keys, 8);
    embed_table_open_keys(&rig, &table, 4, 1, keys, 8);
    if (!rig.failed) {
        uint32_t n_sets = table.range->desc.n_sets;
        (void)embed_expect(&rig, n_sets == 2, "%u sets", n_sets);
    }
    mix(&rig, &table, 1, 30, 100);
    check_all(&rig, &table, 1);
    embed_table_close(&table);
    return embed_rig_close(&rig);
}

/* Insert keys that are not cached, more than fit. */
static void crowd(struct embed_rig *rig, struct embed_table *table, uint32_t n_rounds)
{
    uint32_t indices[64];

    for (uint32_t round = 0; round < n_rounds && !rig->failed; round++) {
        uint32_t n = 0;
        uint32_t first = embed_random(rig, table->n_keys);
        for (uint32_t i = 0; i < table->n_keys && n < 40; i++) {
            uint32_t index = (first + i) % table->n_keys;
            if (table->versions[index] == 0) {
                indices[n++] = index;
            }
        }
        embed_change(rig, table, HPS_EMBED_INSERT, indices, n);
        embed_lookup_all(rig, table);
        embed_expect_counts(rig, table);
        embed_change_random(rig, table, HPS_EMBED_UPDATE, 20);
        embed_change_random(rig, table, HPS_EMBED_ERASE, 3);
        embed_query_random(rig, &rig->queries[0], table, 200, 10); /* some keys become popular */
        embed_begin(rig, &rig->queries[0]);
        embed_finish(rig, &rig->queries[0]);
        embed_lookup_all(rig, table);
        embed_expect_counts(rig, table);
    }
}

static bool crowded_sets(struct hps_device *device, struct hps_error *err)
{
    struct hps_embed_cache_config config = small_config();
    hps_key keys[300];
    struct embed_table one_set, all_sets;
    struct embed_rig rig;
    struct hps_embed_range_usage usage;

    embed_rig_open(&rig, device, &config, 1 << 20, 0, err);
    embed_keys_of_one_set(&rig, 400, 24, 7, keys, 60);
    embed_table_open_keys(&rig, &one_set, 24, 400, keys, 60);
    for (uint32_t i = 0; i < 300; i++) {
        keys[i] = i;
    }
    embed_table_open_keys(&rig, &all_sets, 24, 100, keys, 300);
    crowd(&rig, &one_set, 6);
    crowd(&rig, &all_sets, 6);
    if (!rig.failed) {
        hps_embed_range_usage(one_set.range, &usage);
        uint32_t n_ways = 8 * (1 + hps_embed_spill_lines(one_set.range->desc.n_sets));
        (void)embed_expect(&rig, usage.n_rows == n_ways || usage.n_erased > 0,
                           "%" PRIu64 " rows in one set", usage.n_rows);
        (void)embed_expect(&rig, usage.n_refused > 0, "nothing was refused");
        hps_embed_range_usage(all_sets.range, &usage);
        (void)embed_expect(&rig, usage.n_evicted > 0, "nothing was evicted");
    }
    embed_table_close(&one_set);
    embed_table_close(&all_sets);
    return embed_rig_close(&rig);
}

/* One key in fifty finds no way in its set and is stored in the spill. Updates and erasures must
 * find it there. */
static bool whole_table(struct hps_device *device, struct hps_error *err)
{
    struct hps_embed_cache_config config = small_config();
    uint32_t n_keys = is_gpu(device) ? 60000 : 6000;
    struct hps_embed_range_usage usage;
    struct embed_table table;
    struct embed_rig rig;

    config.batch_keys_max = 65536;
    config.arena_bytes = (uint64_t)n_keys * 512;
    embed_rig_open(&rig, device, &config, (uint64_t)n_keys * 32 + 4096, 0, err);
    hps_key *keys = embed_calloc(&rig, n_keys, sizeof(*keys));
    uint32_t *indices = embed_calloc(&rig, n_keys, sizeof(*indices));
    for (uint32_t i = 0; i < n_keys && !rig.failed; i++) {
        keys[i] = hps_random_next(&rig.random);
        indices[i] = i;
    }
    embed_table_open_keys(&rig, &table, 28, EMBED_WHOLE, keys, n_keys);
    (void)embed_expect(&rig, table.exact, "not all rows of a whole table have a place");
    for (uint32_t i = 0; i < n_keys && !rig.failed; i += 2000) {
        embed_change(&rig, &table, HPS_EMBED_INSERT, indices + i, 2000);
    }
    embed_lookup_all(&rig, &table);
    embed_expect_counts(&rig, &table);
    if (!rig.failed) {
        hps_embed_range_usage(table.range, &usage);
        (void)embed_expect(&rig, usage.resident_share >= 1, "%f resident", usage.resident_share);
    }
    for (uint32_t i = 0; i < n_keys && !rig.failed; i += 2000) { /* so many sets have holes */
        embed_change(&rig, &table, HPS_EMBED_UPDATE, indices + i, 2000);
        embed_change(&rig, &table, HPS_EMBED_ERASE, indices + i, 1000);
        embed_change(&rig, &table, HPS_EMBED_UPDATE, indices + i, 2000);
        embed_change(&rig, &table, HPS_EMBED_INSERT_WANTED, indices + i + 500, 500);
    }
    embed_lookup_all(&rig, &table);
    embed_expect_counts(&rig, &table);
    embed_table_close(&table);
    hps_free(keys);
    hps_free(indices);
    return embed_rig_close(&rig);
}

static void hold(struct hps_device *device, bool on)
{
    if (!is_gpu(device)) {
        hps_device_sim_hold(device, on);
    }
}

/* Keys are counted while other keys are judged by the same counts. In any case, all lanes of a
 * warp must decide alike, and no key may get another key's row. */
static bool counts_race_changes(struct hps_device *device, struct hps_error *err)
{
    struct hps_embed_cache_config config = small_config();
    hps_key keys[60];
    struct embed_table table;
    struct embed_rig rig;

    embed_rig_open(&rig, device, &config, 1 << 20, 0, err);
    embed_keys_of_one_set(&rig, 400, 16, 7, keys, 60);
    embed_table_open_keys(&rig, &table, 16, 400, keys, 60);
    for (uint32_t round = 0; round < 30 + HPS_TEST_WORK(120) && !rig.failed; round++) {
        uint32_t indices[60], n = 0;
        for (uint32_t i = 0; i < table.n_keys; i++) {
            indices[n] = i;
            n += table.versions[i] == 0 ? 1 : 0;
        }
        embed_change(&rig, &table, HPS_EMBED_INSERT, indices, n);
        hold(device, true);                /* so that both begin together */
        for (uint32_t i = 0; i < 2; i++) { /* after the changes, but not after their counts */
            embed_query_random(&rig, &rig.queries[i], &table, 1000, 0);
            if (!embed_begin_now(&rig, &rig.queries[i])) {
                hold(device, false); /* must end before the lookup begins */
                embed_begin_later(&rig, &rig.queries[i]);
            }
        }
        hold(device, false);
        embed_finish(&rig, &rig.queries[0]);
        embed_finish(&rig, &rig.queries[1]);
        embed_lookup_all(&rig, &table); /* which keys were inserted and evicted */
    }
    embed_lookup_all(&rig, &table);
    embed_expect_counts(&rig, &table);
    embed_table_close(&table);
    return embed_rig_close(&rig);
}

/* ---- order ----------------------------------------------------------------------------------- */

/* Lookups in flight while their rows change: each must see exactly the changes that were staged
 * before it was submitted. */
static bool changes_in_order(struct hps_device *device, struct hps_error *err)
{
    struct hps_embed_cache_config config = small_config();
    struct embed_table table;
    struct embed_rig rig;

    config.mapped_bytes_max = 2048;
    embed_rig_open(&rig, device, &config, 1 << 20, 1, err);
    embed_table_open(&rig, &table, 96, 64, 30, 0);
    for (uint32_t round = 0; round < 150 && !rig.failed; round++) {
        struct embed_query *query = &rig.queries[round % 3];
        embed_finish(&rig, query);
        if (round % 5 == 0) {
            embed_change_random(&rig, &table, HPS_EMBED_ERASE, 10);
        }
        embed_change_random(&rig, &table, HPS_EMBED_UPDATE, 20);
        embed_change_random(&rig, &table, HPS_EMBED_INSERT, 10);
        embed_query_all(&rig, query, &table);
        embed_begin(&rig, query);
        if (round % 2 == 0) {
            embed_change_random(&rig, &table, HPS_EMBED_UPDATE, 20);
        }
    }
    for (uint32_t i = 0; i < 3; i++) {
        embed_finish(&rig, &rig.queries[i]);
    }
    embed_expect_counts(&rig, &table);
    embed_table_close(&table);
    return embed_rig_close(&rig);
}

/* Tickets are released before their lookups have ended; slots and regions are reused. */
static bool early_releases(struct hps_device *device, struct hps_error *err)
{
    struct hps_embed_cache_config config = small_config();
    struct embed_table table;
    struct embed_rig rig;

    config.mapped_bytes_max = 4096;
    embed_rig_open(&rig, device, &config, 1 << 20, 0, err);
    embed_table_open(&rig, &table, 64, 200, 100, 0);
    for (uint32_t round = 0; round < 30 && !rig.failed; round++) {
        struct embed_query *dropped = &rig.queries[round % 2], *kept = &rig.queries[2 + round % 2];
        change_any(&rig, &table);
        embed_query_random(&rig, dropped, &table, embed_random(&rig, 200), 10);
        if (round < 2) {
            embed_begin(&rig, dropped); /* a later one would be poisoned while it is written */
        }
        embed_drop(&rig, dropped);
        embed_query_random(&rig, kept, &table, embed_random(&rig, 200), 10);
        embed_begin(&rig, kept);
        embed_finish(&rig, kept);
    }
    check_all(&rig, &table, 1);
    embed_table_close(&table);
    return embed_rig_close(&rig);
}

/* ---- replaced ranges ------------------------------------------------------------------------- */

/* Versions are switched while lookups are in flight: each table gets the memory of the previous
 * one. A retired table misses every key. */
static bool ranges_in_turn(struct hps_device *device, struct hps_error *err)
{
    struct hps_embed_cache_config config = small_config();
    struct embed_table tables[2] = {0};
    struct embed_rig rig;

    config.arena_bytes = 192 << 10; /* memory for one and a half tables */
    embed_rig_open(&rig, device, &config, 1 << 20, 0, err);
    embed_table_open(&rig, &tables[0], 64, 1500, 300, 0);
    for (uint32_t round = 0; round < 6 && !rig.failed; round++) {
        struct embed_table *old = &tables[round % 2], *new = &tables[(round + 1) % 2];
        for (uint32_t i = 0; i < 3; i++) {
            change_any(&rig, old);
        }
        embed_query_all(&rig, &rig.queries[1], old);
        embed_begin(&rig, &rig.queries[1]);
        change_any(&rig, old);
        hps_embed_range_retire(old->range);
        old->retired = true;
        for (uint32_t i = 0; i < old->n_keys; i++) {
            old->versions[i] = 0;
        }
        change_any(&rig, old);
        embed_query_all(&rig, &rig.queries[2], old);
        embed_begin(&rig, &rig.queries[2]);
        embed_finish(&rig, &rig.queries[2]);
        embed_finish(&rig, &rig.queries[1]);
        embed_drain(&rig);
        embed_table_close(old);
        embed_table_open(&rig, new, round % 2 == 0 ? 60 : 64, 1500, 300, 0);
        embed_lookup_all(&rig, new); /* no row of the old table */
    }
    (void)embed_expect(&rig, rig.n_hits > 0, "no hits");
    embed_table_close(&tables[0]);
    embed_table_close(&tables[1]);
    return embed_rig_close(&rig);
}

static bool many_tables(struct hps_device *device, struct hps_error *err)
{
    struct hps_embed_cache_config config = small_config();
    struct embed_table tables[EMBED_QUERY_PARTS];
    struct embed_rig rig;

    embed_rig_open(&rig, device, &config, 1 << 20, 0, err);
    for (uint32_t i = 0; i < EMBED_QUERY_PARTS; i++) {
        embed_table_open(&rig, &tables[i], 4 + i % 9 * 4, 60, 30, 0);
    }
    mix(&rig, tables, EMBED_QUERY_PARTS, 8, 40);
    check_all(&rig, tables, EMBED_QUERY_PARTS);
    for (uint32_t i = 0; i < EMBED_QUERY_PARTS; i++) {
        embed_table_close(&tables[i]);
    }
    return embed_rig_close(&rig);
}

/* ---- the largest range ----------------------------------------------------------------------- */

/* Offsets of rows and sets beyond 32 bits: more than 2^31 slots on a GPU with enough memory. */
static bool largest_range(struct hps_device *device, struct hps_error *err)
{
    enum { ROW_BYTES = 16, BYTES_PER_SLOT = 32, N_KEYS = 1024, SIM_SHARE = 256 };
    struct hps_embed_cache_config config = small_config();
    uint64_t free_bytes = hps_device_info(device)->memory_free_bytes;
    uint64_t bytes = is_gpu(device) ? free_bytes / 100 * 95 : free_bytes / SIM_SHARE;
    uint64_t n_slots = bytes / BYTES_PER_SLOT, enough = (UINT64_C(1) << 31) + (1 << 29);
    struct embed_table table;
    struct embed_rig rig;

    n_slots = n_slots < enough ? n_slots : enough;
    config.arena_bytes = hps_embed_range_bytes(ROW_BYTES, 4 * n_slots, n_slots);
    embed_rig_open(&rig, device, &config, 1 << 20, 0, err);
    embed_table_open(&rig, &table, ROW_BYTES, n_slots, N_KEYS, 0);
    if (!rig.failed) {
        (void)printf("largest_range: %" PRIu64 " slots\n", (uint64_t)table.range->usage.n_slots);
    }
    for (uint32_t i = 0; i < 3 * N_KEYS / 256 && !rig.failed; i++) {
        embed_change_random(&rig, &table, HPS_EMBED_INSERT, 256);
        embed_change_random(&rig, &table, HPS_EMBED_UPDATE, 60);
    }
    check_all(&rig, &table, 1);
    (void)embed_expect(&rig, rig.n_hits > N_KEYS / 2, "%" PRIu64 " hits", rig.n_hits);
    embed_table_close(&table);
    return embed_rig_close(&rig);
}

/* Every lookup reads all rows while thousands of rows are updated. No row may be torn, and each
 * row must be of the last write that was staged before. */
static bool updates_race_lookups(struct hps_device *device, struct hps_error *err)
{
    struct hps_embed_cache_config config = small_config();
    uint32_t n_keys = is_gpu(device) ? 40000 : 200, n_rounds = is_gpu(device) ? 200 : 12;
    uint32_t n_changed = n_keys / 4;
    uint64_t row_bytes = 132; /* not a multiple of 16 bytes: rows are adjacent */
    struct embed_table table;
    struct embed_rig rig;

    config.arena_bytes = (uint64_t)n_keys * 4096;
    config.gather_bytes = n_keys * row_bytes * 5;
    config.stage_bytes = 32 << 20;
    config.batch_keys_max = 65536;
    embed_rig_open(&rig, device, &config, n_keys * row_bytes + 4096, 2, err);
    uint32_t *indices = embed_calloc(&rig, n_changed, sizeof(*indices));
    embed_table_open(&rig, &table, (uint32_t)row_bytes, (uint64_t)2 * n_keys, n_keys, 0);
    for (uint32_t round = 0; round < n_rounds && !rig.failed; round++) {
        struct embed_query *query = &rig.queries[round % EMBED_QUERIES];
        uint32_t first = embed_random(&rig, n_keys);
        embed_finish(&rig, query);
        for (uint32_t i = 0; i < n_changed; i++) {
            indices[i] = (first + i) % n_keys;
        }
        embed_change(&rig, &table, round < 8 ? HPS_EMBED_INSERT : HPS_EMBED_UPDATE, indices,
                     n_changed);
        if (round % 8 == 7) {
            embed_change(&rig, &table, HPS_EMBED_ERASE, indices, n_changed / 8);
            embed_change(&rig, &table, HPS_EMBED_INSERT, indices, n_changed / 16);
        }
        embed_query_all(&rig, query, &table);
        embed_begin(&rig, query);
    }
    for (uint32_t i = 0; i < EMBED_QUERIES; i++) {
        embed_finish(&rig, &rig.queries[i]);
    }
    embed_expect_counts(&rig, &table);
    embed_table_close(&table);
    hps_free(indices);
    return embed_rig_close(&rig);
}

const struct embed_check embed_checks[] = {
    {"widths_when_mapped", widths_mapped},
    {"widths_when_gathered", widths_gathered},
    {"widths_on_the_device", widths_on_device},
    {"batch_sizes", batch_sizes},
    {"largest_batch", largest_batch},
    {"special_keys", special_keys},
    {"smallest_range", smallest_range},
    {"crowded_sets", crowded_sets},
    {"counts_race_changes", counts_race_changes},
    {"changes_in_order", changes_in_order},
    {"early_releases", early_releases},
    {"ranges_in_turn", ranges_in_turn},
    {"many_tables", many_tables},
    {"whole_table", whole_table},
    {"largest_range", largest_range},
    {"updates_race_lookups", updates_race_lookups},
    {"shapes_when_mapped", shape_check_mapped},
    {"shapes_when_gathered", shape_check_gathered},
    {"shapes_on_the_device", shape_check_on_device},
    {"bags_of_all_sizes", shape_check_sizes},
    {"sums_beside_updates", shape_check_updates},
};
const size_t n_embed_checks = sizeof(embed_checks) / sizeof(embed_checks[0]);

/* SPDX-License-Identifier: Apache-2.0
 *
 * Lookups checked against a dictionary: duplicates, order, policies, types, failing tiers. One
 * thread.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/dtype.h"
#include "cache/lookup/lookup.h"
#include "tests/lib/lookup_fixture.h"

enum { KEYS_MAX = 3000, PARTS = 3, KEY_SPACE = 2000 };

struct lookup_test {
    struct fixture fx;
    struct hps_arena *arena;
    struct hps_arena *scratch;
    uint8_t *rows;
    uint8_t key_bytes[PARTS][KEYS_MAX * 8 + 8];
    struct hps_lookup_part parts[PARTS];
    struct hps_lookup lookup;
    struct hps_error err;
};

static int setup(void **state)
{
    struct lookup_test *t = hps_calloc(1, sizeof(*t));

    assert_non_null(t);
    fixture_open(&t->fx, 0);
    t->arena = hps_arena_new(4096, 1 << 24);
    t->scratch = hps_arena_new(4096, 1 << 24);
    assert_non_null(t->arena);
    assert_non_null(t->scratch);
    *state = t;
    return 0;
}

static int teardown(void **state)
{
    struct lookup_test *t = *state;

    hps_clock_real();
    hps_free_aligned(t->rows);
    hps_arena_free(t->arena);
    hps_arena_free(t->scratch);
    fixture_close(&t->fx);
    hps_free(t);
    return 0;
}

/* Part i looks up these keys in table i, from an unaligned address. */
static void set_part(struct lookup_test *t, uint32_t i, const hps_key *keys, uint32_t n)
{
    memcpy(t->key_bytes[i] + 1, keys, (size_t)n * sizeof(*keys));
    t->parts[i] = (struct hps_lookup_part){
        .table = &t->fx.tables[i], .keys = t->key_bytes[i] + 1, .n_keys = n};
}

static void begin(struct lookup_test *t, uint32_t n_parts)
{
    hps_arena_reset(t->arena);
    hps_free_aligned(t->rows);
    t->rows = NULL;
    t->lookup.version = &t->fx.version;
    t->lookup.arena = t->arena;
    t->lookup.scratch = t->scratch;
    t->lookup.parts = t->parts;
    t->lookup.n_parts = n_parts;
    t->lookup.set = NULL;
    t->lookup.set_size = 0;
    assert_int_equal(hps_lookup_plan(&t->lookup, &t->err), HPS_OK);
    t->rows = hps_alloc_aligned(64, t->lookup.rows_bytes + 64);
    assert_non_null(t->rows);
    t->lookup.rows = t->rows;
}

static hps_status run(struct lookup_test *t)
{
    bool done = false;
    hps_status status = hps_lookup_run_memory(&t->lookup, &done, &t->err);

    if (status == HPS_OK && !done) {
        status = hps_lookup_run_rest(&t->lookup, &t->err);
    }
    return status;
}

/* ---- the dictionary -------------------------------------------------------------------------- */

static bool on_disk(uint32_t table, hps_key key)
{
    return hps_mix64(key + table) % 4 != 0;
}

static bool in_host(uint32_t table, hps_key key)
{
    return on_disk(table, key) && hps_mix64(key * 3 + table) % 2 == 0;
}

static void fill_stores(struct lookup_test *t)
{
    for (uint32_t table = 0; table < FIXTURE_TABLES; table++) {
        for (hps_key key = 0; key < KEY_SPACE; key++) {
            if (on_disk(table, key)) {
                fixture_put(&t->fx, FIXTURE_DISK, table, key);
            }
            if (in_host(table, key)) {
                fixture_put(&t->fx, FIXTURE_HOST, table, key);
            }
        }
    }
}

static enum hps_key_status expected_status(const struct lookup_test *t, uint32_t table, hps_key key)
{
    if (t->lookup.miss_policy == HPS_MISS_MEMORY_ONLY) {
        return in_host(table, key) ? HPS_KEY_FOUND : HPS_KEY_DEFAULTED;
    }
    return on_disk(table, key) ? HPS_KEY_FOUND : HPS_KEY_UNKNOWN;
}

static void expected_row(const struct lookup_test *t, const struct hps_table *table, hps_key key,
                         enum hps_key_status status, void *row)
{
    uint8_t stored[FIXTURE_DIM_MAX * 4];

    if (status == HPS_KEY_FOUND) {
        fixture_row(table, key, stored);
    } else if (status == HPS_KEY_UNKNOWN && t->lookup.unknown_policy == HPS_UNKNOWN_ZERO) {
        memset(stored, 0, sizeof(stored));
    } else {
        memcpy(stored, table->default_row, table->row_bytes);
    }
    hps_row_convert(row, t->lookup.output == 0 ? HPS_DTYPE_FP32 : t->lookup.output, stored,
                    table->dtype, table->dim);
}

static void check_part(const struct lookup_test *t, uint32_t p)
{
    const struct hps_lookup_part *part = &t->parts[p];
    uint32_t n_unknown = 0;
    uint32_t n_defaulted = 0;
    uint8_t row[FIXTURE_DIM_MAX * 4];

    for (uint32_t i = 0; i < part->n_keys; i++) {
        hps_key key;
        memcpy(&key, part->keys + (size_t)i * 8, 8);
        enum hps_key_status status = expected_status(t, p, key);
        expected_row(t, part->table, key, status, row);
        assert_memory_equal(part->rows + (size_t)i * part->row_bytes, row, part->row_bytes);
        if (part->key_status == NULL) {
            assert_int_equal(status, HPS_KEY_FOUND);
        } else {
            assert_int_equal(part->key_status[i], status);
        }
        n_unknown += status == HPS_KEY_UNKNOWN ? 1 : 0;
        n_defaulted += status == HPS_KEY_DEFAULTED ? 1 : 0;
    }
    assert_int_equal(part->n_unknown, n_unknown);
    assert_int_equal(part->n_defaulted, n_defaulted);
    assert_int_equal(part->key_status != NULL, n_unknown + n_defaulted > 0);
}

static uint32_t count_unique(const hps_key *keys, uint32_t n)
{
    uint8_t seen[KEY_SPACE] = {0};
    uint32_t n_unique = 0;

    for (uint32_t i = 0; i < n; i++) {
        n_unique += seen[keys[i]] == 0 ? 1 : 0;
        seen[keys[i]] = 1;
    }
    return n_unique;
}

static void test_lookup_when_random_then_equals_dictionary(void **state)
{
    struct lookup_test *t = *state;
    static hps_key keys[PARTS][KEYS_MAX];
    uint64_t seed = 12345;

    for (unsigned round = 0; round < 60; round++) {
        t->lookup = (struct hps_lookup){0};
        fill_stores(t);
        t->lookup.output = (enum hps_dtype)(round % 4);
        t->lookup.miss_policy = round % 5 == 4 ? HPS_MISS_MEMORY_ONLY : HPS_MISS_EXACT;
        t->lookup.unknown_policy = round % 2 == 0 ? HPS_UNKNOWN_MODEL : HPS_UNKNOWN_ZERO;
        uint32_t space = round % 3 == 0 ? 20 : KEY_SPACE;
        for (uint32_t p = 0; p < PARTS; p++) {
            uint32_t n = (uint32_t)(hps_mix64(++seed) % (round % 2 == 0 ? 12 : KEYS_MAX));
            for (uint32_t i = 0; i < n; i++) {
                keys[p][i] = hps_mix64(++seed) % space;
            }
            set_part(t, p, keys[p], n);
        }
        begin(t, PARTS);
        assert_int_equal(run(t), HPS_OK);
        for (uint32_t p = 0; p < PARTS; p++) {
            check_part(t, p);
            assert_int_equal(t->parts[p].n_unique, count_unique(keys[p], t->parts[p].n_keys));
            assert_int_equal((uintptr_t)t->parts[p].rows % HPS_ROWS_ALIGN * t->parts[p].n_keys, 0);
        }
        /* Insertion changes the result of MEMORY_ONLY: start with new tiers. */
        fixture_close(&t->fx);
        fixture_open(&t->fx, 0);
    }
}

static void test_lookup_when_keys_repeat_then_each_is_fetched_once(void **state)
{
    struct lookup_test *t = *state;
    hps_key keys[64];

    for (uint32_t i = 0; i < 64; i++) {
        keys[i] = i % 4;
    }
    for (hps_key key = 0; key < 4; key++) {
        fixture_put(&t->fx, FIXTURE_DISK, 0, key);
    }
    set_part(t, 0, keys, 64);
    begin(t, 1);
    assert_int_equal(run(t), HPS_OK);
    assert_int_equal(t->parts[0].n_unique, 4);
    assert_int_equal(hps_fake_keys(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET), 4);
    assert_null(t->parts[0].key_status);
}

static void test_lookup_when_keys_are_extreme_then_they_are_keys(void **state)
{
    struct lookup_test *t = *state;
    hps_key keys[12] = {0, UINT64_MAX, UINT64_C(1) << 63, INT64_MAX, 1, 2, 3, 4, 5,
                        6, 0,          UINT64_MAX};

    for (uint32_t i = 0; i < 10; i++) {
        fixture_put(&t->fx, FIXTURE_DISK, 0, keys[i]);
    }
    set_part(t, 0, keys, 12);
    begin(t, 1);
    assert_int_equal(run(t), HPS_OK);
    assert_int_equal(t->parts[0].n_unknown, 0);
    assert_int_equal(t->parts[0].n_unique, 10);
    assert_memory_equal(t->parts[0].rows + 16, t->parts[0].rows + 11 * 16, 16);
}

static void test_lookup_when_unknown_is_an_error_then_table_and_key_are_named(void **state)
{
    struct lookup_test *t = *state;
    hps_key key = (hps_key)-5;

    t->lookup.unknown_policy = HPS_UNKNOWN_ERROR;
    set_part(t, 0, &key, 1);
    begin(t, 1);
    assert_int_equal(run(t), HPS_NOT_FOUND);
    assert_string_equal(t->err.text, "table 't0': unknown key -5");
}

/* Counters of "t0" and of the lookups of table 1, in one family. */
static struct hps_metrics *count_keys(struct lookup_test *t, struct hps_table_metrics *series)
{
    static const struct hps_metric_family_def family = {"keys", "what", HPS_METRIC_COUNTER,
                                                        "Keys."};
    static const char *const names[] = {"found", "unknown", "unique", "host", "other"};
    struct hps_metric *metrics[5];
    struct hps_metrics *registry = hps_metrics_new(&family, 1, 16);

    assert_non_null(registry);
    for (unsigned i = 0; i < 5; i++) {
        metrics[i] = hps_metric_get(registry, 0, &names[i]);
    }
    for (unsigned i = 0; i < FIXTURE_TABLES; i++) {
        series[i] = (struct hps_table_metrics){.keys_found = metrics[0],
                                               .keys_defaulted = metrics[4],
                                               .keys_unknown = metrics[1],
                                               .unique_keys = metrics[2]};
        series[i].tier_hit[HPS_TIER_HOST] = metrics[3];
        series[i].tier_miss[HPS_TIER_HOST] = metrics[4];
    }
    t->fx.version.metrics = series;
    return registry;
}

static void test_lookup_when_a_part_fails_then_no_key_is_counted(void **state)
{
    struct lookup_test *t = *state;
    struct hps_table_metrics series[FIXTURE_TABLES];
    struct hps_metrics *registry = count_keys(t, series);
    hps_key keys[] = {5, 6};

    fixture_put(&t->fx, FIXTURE_HOST, 0, 5);
    t->lookup.unknown_policy = HPS_UNKNOWN_ERROR;
    set_part(t, 0, &keys[0], 1);
    set_part(t, 1, &keys[1], 1);
    begin(t, 2);
    assert_int_equal(run(t), HPS_NOT_FOUND);
    assert_true(hps_metric_value(series[0].keys_found) == 0);
    assert_true(hps_metric_value(series[0].unique_keys) == 0);
    assert_true(hps_metric_value(series[0].tier_hit[HPS_TIER_HOST]) == 1); /* this read succeeded */
    t->lookup.unknown_policy = HPS_UNKNOWN_ZERO;
    begin(t, 2);
    assert_int_equal(run(t), HPS_OK);
    assert_true(hps_metric_value(series[0].keys_found) == 1);
    assert_true(hps_metric_value(series[0].keys_unknown) == 1);
    assert_true(hps_metric_value(series[0].unique_keys) == 2);
    t->fx.version.metrics = NULL;
    hps_metrics_free(registry);
}

static void test_lookup_when_defaulted_or_abandoned_then_counted_once(void **state)
{
    struct lookup_test *t = *state;
    struct hps_table_metrics series[FIXTURE_TABLES];
    struct hps_metrics *registry = count_keys(t, series);
    hps_key keys[] = {5, 6};
    bool done = false;

    fixture_put(&t->fx, FIXTURE_HOST, 0, 5);
    fixture_put(&t->fx, FIXTURE_DISK, 0, 6);
    set_part(t, 0, keys, 2);
    begin(t, 1);
    assert_int_equal(hps_lookup_run_memory(&t->lookup, &done, &t->err), HPS_OK);
    assert_false(done);
    hps_lookup_abandon(&t->lookup);
    assert_true(hps_metric_value(series[0].tier_hit[HPS_TIER_HOST]) == 1);
    assert_true(hps_metric_value(series[0].keys_found) == 0);
    begin(t, 1);
    assert_int_equal(hps_lookup_run_memory(&t->lookup, &done, &t->err), HPS_OK);
    assert_int_equal(hps_lookup_run_defaults(&t->lookup, &t->err), HPS_OK);
    assert_int_equal(t->parts[0].n_defaulted, 1);
    assert_int_equal(t->parts[0].key_status[0], HPS_KEY_FOUND);
    assert_int_equal(t->parts[0].key_status[1], HPS_KEY_DEFAULTED);
    assert_memory_equal(t->parts[0].rows + 16, t->fx.default_rows[0], 16);
    assert_true(hps_metric_value(series[0].tier_hit[HPS_TIER_HOST]) == 2);
    assert_true(hps_metric_value(series[0].keys_found) == 1);
    t->fx.version.metrics = NULL;
    hps_metrics_free(registry);
}

static void test_lookup_when_it_has_no_keys_then_no_tier_is_called(void **state)
{
    struct lookup_test *t = *state;
    hps_key key = 0;

    begin(t, 0);
    assert_int_equal(run(t), HPS_OK);
    set_part(t, 0, &key, 0);
    begin(t, 1);
    assert_int_equal(t->lookup.rows_bytes, 0);
    assert_int_equal(run(t), HPS_OK);
    assert_int_equal(t->parts[0].n_unique, 0);
}

static void test_lookup_when_memory_suffices_then_done_without_blocking(void **state)
{
    struct lookup_test *t = *state;
    hps_key key = 1;
    bool done = false;

    fixture_put(&t->fx, FIXTURE_HOST, 0, key);
    set_part(t, 0, &key, 1);
    begin(t, 1);
    assert_int_equal(hps_lookup_run_memory(&t->lookup, &done, &t->err), HPS_OK);
    assert_true(done);
    set_part(t, 1, &key, 1);
    begin(t, 2);
    assert_int_equal(hps_lookup_run_memory(&t->lookup, &done, &t->err), HPS_OK);
    assert_false(done);
    assert_int_equal(hps_fake_calls(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET), 0);
    assert_int_equal(hps_lookup_run_rest(&t->lookup, &t->err), HPS_OK);
    assert_int_equal(t->parts[1].key_status[0], HPS_KEY_UNKNOWN);
}

static void test_lookup_when_memory_only_and_host_is_complete_then_misses_are_unknown(void **state)
{
    struct lookup_test *t = *state;
    hps_key key = 1;

    t->fx.version.host_complete = true;
    t->lookup.miss_policy = HPS_MISS_MEMORY_ONLY;
    set_part(t, 0, &key, 1);
    begin(t, 1);
    assert_int_equal(run(t), HPS_OK);
    assert_int_equal(t->parts[0].key_status[0], HPS_KEY_UNKNOWN);
}

static void test_lookup_when_it_names_no_policy_then_the_versions_policies_apply(void **state)
{
    struct lookup_test *t = *state;
    hps_key keys[2] = {1, 2}; /* on disk, nowhere */

    fixture_put(&t->fx, FIXTURE_DISK, 0, 1);
    t->fx.version.miss_policy = HPS_MISS_MEMORY_ONLY;
    t->fx.version.unknown_policy = HPS_UNKNOWN_ERROR;
    set_part(t, 0, keys, 2);
    begin(t, 1);
    t->fx.version.miss_policy = HPS_MISS_EXACT; /* used from the next lookup on */
    assert_int_equal(run(t), HPS_OK);
    assert_int_equal(t->parts[0].n_defaulted, 2);
    assert_int_equal(hps_fake_calls(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET), 0);

    t->lookup.miss_policy = HPS_MISS_MODEL;
    begin(t, 1);
    assert_int_equal(run(t), HPS_NOT_FOUND);
    t->lookup.unknown_policy = HPS_UNKNOWN_DEFAULT_ROW; /* overrides the version's policy */
    begin(t, 1);
    assert_int_equal(run(t), HPS_OK);
    assert_int_equal(t->parts[0].n_unknown, 1);
    assert_memory_equal(t->parts[0].rows + 16, t->fx.tables[0].default_row, 16);

    t->fx.version.unknown_policy = HPS_UNKNOWN_ZERO;
    t->lookup.unknown_policy = HPS_UNKNOWN_MODEL;
    begin(t, 1);
    assert_int_equal(run(t), HPS_OK);
    static const uint8_t zeros[16];
    assert_memory_equal(t->parts[0].rows + 16, zeros, 16);
}

static void test_lookup_when_the_wait_ends_then_keys_are_defaulted(void **state)
{
    struct lookup_test *t = *state;
    hps_key keys[2] = {1, 2};

    hps_clock_fake(1000);
    hps_fake_latency(t->fx.stores[FIXTURE_HOST], HPS_FAKE_GET, 500);
    fixture_put(&t->fx, FIXTURE_HOST, 0, 1);
    fixture_put(&t->fx, FIXTURE_DISK, 0, 2);
    t->lookup.miss_policy = HPS_MISS_WAIT;
    t->lookup.wait_us_max = 100;
    t->lookup.deadline_us = 1000000;
    set_part(t, 0, keys, 2);
    begin(t, 1);
    assert_int_equal(run(t), HPS_OK);
    assert_int_equal(t->parts[0].key_status[0], HPS_KEY_FOUND);
    assert_int_equal(t->parts[0].key_status[1], HPS_KEY_DEFAULTED);
    assert_int_equal(t->parts[0].n_defaulted, 1);
    assert_memory_equal(t->parts[0].rows + 16, t->fx.tables[0].default_row, 16);
}

static void test_lookup_when_the_wait_suffices_then_rows_are_real(void **state)
{
    struct lookup_test *t = *state;
    hps_key key = 2;

    hps_clock_fake(1000);
    fixture_put(&t->fx, FIXTURE_DISK, 0, 2);
    t->lookup.miss_policy = HPS_MISS_WAIT;
    t->lookup.wait_us_max = 100;
    set_part(t, 0, &key, 1);
    begin(t, 1);
    assert_int_equal(run(t), HPS_OK);
    assert_null(t->parts[0].key_status);
}

/* Calls to a shared tier block, so MEMORY_ONLY never makes them. A row of a later position is
 * allowed in a reply, but not for a unit. */
static void test_lookup_when_a_tier_is_shared_then_only_policies_that_may_block_read_it(
    void **state)
{
    struct lookup_test *t = *state;
    struct hps_store *redis = fixture_open_middle(&t->fx, true);
    hps_key keys[2] = {1, 2};

    fixture_put(&t->fx, FIXTURE_HOST, 0, 1);
    fixture_put(&t->fx, 1, 0, 2); /* redis */
    fixture_put(&t->fx, 2, 0, 2); /* disk */
    set_part(t, 0, keys, 2);
    t->lookup.miss_policy = HPS_MISS_MEMORY_ONLY;
    begin(t, 1);
    assert_int_equal(run(t), HPS_OK);
    assert_int_equal(t->parts[0].n_defaulted, 1);
    assert_int_equal(hps_fake_calls(redis, HPS_FAKE_GET), 0);
    assert_int_equal(hps_fake_calls(redis, HPS_FAKE_GET_MANY), 0);
    hps_fake_later(redis, true);
    t->lookup.miss_policy = HPS_MISS_EXACT;
    begin(t, 1);
    assert_int_equal(run(t), HPS_OK);
    assert_int_equal(t->parts[0].walk.reports[HPS_TIER_REDIS].n_found, 1);
    assert_false(fixture_has(&t->fx, FIXTURE_HOST, 0, 2));
    t->lookup.unit = true;
    begin(t, 1);
    assert_int_equal(run(t), HPS_OK);
    assert_int_equal(t->parts[0].walk.reports[HPS_TIER_REDIS].n_found, 0);
    assert_int_equal(t->parts[0].walk.reports[HPS_TIER_ROCKSDB].n_found, 1);
    assert_true(fixture_has(&t->fx, FIXTURE_HOST, 0, 2));
    fixture_close_middle(&t->fx, redis);
}

static void test_lookup_when_deadline_has_passed_then_it_fails(void **state)
{
    struct lookup_test *t = *state;
    hps_key key = 2;

    hps_clock_fake(1000);
    hps_fake_latency(t->fx.stores[FIXTURE_HOST], HPS_FAKE_GET, 500);
    t->lookup.deadline_us = 1100;
    set_part(t, 0, &key, 1);
    begin(t, 1);
    assert_int_equal(run(t), HPS_DEADLINE);
    t->lookup.miss_policy = HPS_MISS_WAIT; /* a passed deadline gives no default rows */
    t->lookup.wait_us_max = 10000;
    t->lookup.deadline_us = hps_clock_us() + 100;
    begin(t, 1);
    assert_int_equal(run(t), HPS_DEADLINE);
}

static void test_lookup_when_tiers_fail_then_only_the_lowest_fails_the_lookup(void **state)
{
    struct lookup_test *t = *state;
    hps_key key = 2;

    fixture_put(&t->fx, FIXTURE_DISK, 0, key);
    set_part(t, 0, &key, 1);
    hps_fake_fail(t->fx.stores[FIXTURE_HOST], HPS_FAKE_GET, HPS_UNAVAILABLE, 0, 1, 0);
    begin(t, 1);
    assert_int_equal(run(t), HPS_OK);
    assert_null(t->parts[0].key_status);
    hps_fake_fail(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET, HPS_IO, 0, 1, 0);
    begin(t, 1);
    assert_int_equal(run(t), HPS_IO);
    assert_non_null(strstr(t->err.text, "rocksdb"));
}

static void test_lookup_when_the_arena_is_full_then_exhausted(void **state)
{
    struct lookup_test *t = *state;
    static hps_key keys[KEYS_MAX];

    for (uint32_t i = 0; i < KEYS_MAX; i++) {
        keys[i] = i;
    }
    set_part(t, 0, keys, KEYS_MAX);
    begin(t, 1);
    t->lookup.arena = hps_arena_new(256, 8192);
    assert_int_equal(run(t), HPS_EXHAUSTED);
    assert_non_null(strstr(t->err.text, "t0"));
    hps_arena_free(t->lookup.arena);
}

int main(void)
{
#define LOOKUP_TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        LOOKUP_TEST(test_lookup_when_random_then_equals_dictionary),
        LOOKUP_TEST(test_lookup_when_keys_repeat_then_each_is_fetched_once),
        LOOKUP_TEST(test_lookup_when_keys_are_extreme_then_they_are_keys),
        LOOKUP_TEST(test_lookup_when_unknown_is_an_error_then_table_and_key_are_named),
        LOOKUP_TEST(test_lookup_when_a_part_fails_then_no_key_is_counted),
        LOOKUP_TEST(test_lookup_when_defaulted_or_abandoned_then_counted_once),
        LOOKUP_TEST(test_lookup_when_it_has_no_keys_then_no_tier_is_called),
        LOOKUP_TEST(test_lookup_when_memory_suffices_then_done_without_blocking),
        LOOKUP_TEST(test_lookup_when_it_names_no_policy_then_the_versions_policies_apply),
        LOOKUP_TEST(test_lookup_when_memory_only_and_host_is_complete_then_misses_are_unknown),
        LOOKUP_TEST(test_lookup_when_the_wait_ends_then_keys_are_defaulted),
        LOOKUP_TEST(test_lookup_when_the_wait_suffices_then_rows_are_real),
        LOOKUP_TEST(test_lookup_when_a_tier_is_shared_then_only_policies_that_may_block_read_it),
        LOOKUP_TEST(test_lookup_when_deadline_has_passed_then_it_fails),
        LOOKUP_TEST(test_lookup_when_tiers_fail_then_only_the_lowest_fails_the_lookup),
        LOOKUP_TEST(test_lookup_when_the_arena_is_full_then_exhausted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

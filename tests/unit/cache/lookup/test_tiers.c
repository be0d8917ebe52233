/* SPDX-License-Identifier: Apache-2.0
 *
 * The tier walk: order, ranges, insertion upward, failing tiers, deadlines, loads that end.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/clock.h"
#include "cache/lookup/tiers.h"
#include "tests/lib/lookup_fixture.h"

enum { KEYS_MAX = 6000 };

struct walk_test {
    struct fixture fx;
    hps_key keys[KEYS_MAX];
    uint32_t slots[KEYS_MAX];
    uint8_t rows[KEYS_MAX * 16];
    struct hps_walk walk;
    struct hps_walk_call call;
    struct hps_error err;
};

static int setup(void **state)
{
    struct walk_test *t = hps_calloc(1, sizeof(*t));

    assert_non_null(t);
    fixture_open(&t->fx, 0);
    *state = t;
    return 0;
}

static int teardown(void **state)
{
    struct walk_test *t = *state;

    hps_clock_real();
    fixture_close(&t->fx);
    hps_free(t);
    return 0;
}

/* Walk over keys 0 .. n of table t0. */
static void begin(struct walk_test *t, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        t->keys[i] = i;
        t->slots[i] = i;
    }
    struct hps_batch batch = {.keys = t->keys, .slots = t->slots, .rows = t->rows, .n = n};
    hps_walk_init(&t->walk, &t->fx.version, &t->fx.tables[0], &batch);
}

/* Keys of a range of the batch still belong to their slots and have the right row. */
static void assert_found(struct walk_test *t, enum hps_tier_kind tier, bool (*expected)(hps_key))
{
    uint32_t from = hps_walk_found_begin(&t->walk, tier);
    uint8_t row[16];

    for (uint32_t i = from; i < from + t->walk.reports[tier].n_found; i++) {
        hps_key key = t->walk.batch.keys[i];
        assert_int_equal(key, t->walk.batch.slots[i]);
        assert_true(expected(key));
        fixture_row(&t->fx.tables[0], key, row);
        assert_memory_equal(t->rows + key * 16, row, 16);
    }
}

static bool is_third(hps_key key)
{
    return key % 3 == 0;
}

static bool is_other_even(hps_key key)
{
    return key % 3 != 0 && key % 2 == 0;
}

static void test_walk_when_host_has_all_then_no_other_tier_is_read(void **state)
{
    struct walk_test *t = *state;

    fixture_put_range(&t->fx, FIXTURE_HOST, 0, 0, 10);
    begin(t, 10);
    assert_int_equal(hps_walk_memory(&t->walk, &t->call, &t->err), HPS_OK);
    assert_true(hps_walk_done(&t->walk));
    assert_int_equal(t->walk.reports[HPS_TIER_HOST].n_found, 10);
    assert_int_equal(hps_fake_calls(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET), 0);
}

static void test_walk_when_keys_are_spread_then_ranges_name_the_tier_of_each_key(void **state)
{
    struct walk_test *t = *state;
    uint32_t n = 5000; /* several chunks */

    for (hps_key key = 0; key < n; key++) {
        if (is_third(key)) {
            fixture_put(&t->fx, FIXTURE_HOST, 0, key);
        } else if (is_other_even(key)) {
            fixture_put(&t->fx, FIXTURE_DISK, 0, key);
        }
    }
    begin(t, n);
    assert_int_equal(hps_walk_memory(&t->walk, &t->call, &t->err), HPS_OK);
    assert_false(hps_walk_done(&t->walk));
    assert_int_equal(hps_fake_calls(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET), 0);
    assert_int_equal(hps_walk_rest(&t->walk, &t->call, &t->err), HPS_OK);
    assert_int_equal(t->walk.n_absent, 1667);
    assert_int_equal(t->walk.reports[HPS_TIER_HOST].n_found, 1667);
    assert_int_equal(t->walk.reports[HPS_TIER_ROCKSDB].n_asked, 3333);
    assert_int_equal(t->walk.reports[HPS_TIER_ROCKSDB].n_found, 1666);
    assert_int_equal(t->walk.batch.n, 0);
    assert_found(t, HPS_TIER_HOST, is_third);
    assert_found(t, HPS_TIER_ROCKSDB, is_other_even);
    for (uint32_t i = 0; i < t->walk.n_absent; i++) {
        assert_false(is_third(t->walk.batch.keys[i]) || is_other_even(t->walk.batch.keys[i]));
    }
}

/* Keys that the gpu finds leave the walk: before its steps, and between them. */
static void test_walk_when_the_gpu_answers_then_all_ranges_stay_valid(void **state)
{
    struct walk_test *t = *state;
    uint32_t n_hits = 0;

    t->fx.version.gpu = (struct hps_gpu_space *)(void *)t; /* never dereferenced */
    fixture_put_range(&t->fx, FIXTURE_HOST, 0, 0, 40);
    fixture_put_range(&t->fx, FIXTURE_DISK, 0, 40, 70);
    begin(t, 100);
    hps_walk_answered(&t->walk, HPS_TIER_GPU, 10); /* 90 .. 99 */
    t->walk.recalled = true;
    assert_int_equal(hps_walk_memory(&t->walk, &t->call, &t->err), HPS_OK);
    assert_int_equal(t->walk.batch.n, 50);
    hps_key answered[6];
    memcpy(answered, t->keys + 44, sizeof(answered));
    hps_walk_answered(&t->walk, HPS_TIER_GPU, 6);
    assert_true(hps_walk_hits(&t->walk, HPS_TIER_GPU, &n_hits));
    assert_int_equal(n_hits, 10 + 40 + 6);
    assert_int_equal(t->walk.batch.n, 44);
    assert_int_equal(hps_walk_found_begin(&t->walk, HPS_TIER_HOST), 44);
    assert_int_equal(hps_walk_found_begin(&t->walk, HPS_TIER_GPU), 84);
    assert_int_equal(t->walk.reports[HPS_TIER_GPU].n_found, 16);
    for (uint32_t i = 44; i < 84; i++) {
        assert_in_range(t->keys[i], 0, 39);
    }
    for (uint32_t i = 0; i < 6; i++) { /* at the end, in any order, with their slots */
        hps_key key = t->keys[84 + i];
        assert_int_equal(key, t->slots[84 + i]);
        uint32_t same = 0;
        for (uint32_t k = 0; k < 6; k++) {
            same += key == answered[k] ? 1 : 0;
        }
        assert_int_equal(same, 1);
    }
    for (uint32_t i = 90; i < 100; i++) {
        assert_in_range(t->keys[i], 90, 99);
    }
    t->fx.version.gpu = NULL;
    assert_int_equal(hps_walk_rest(&t->walk, &t->call, &t->err), HPS_OK);
    assert_int_equal(t->walk.batch.n, 0);
    assert_int_equal(t->walk.reports[HPS_TIER_HOST].n_found, 40);
    assert_int_equal(t->walk.reports[HPS_TIER_ROCKSDB].n_found + t->walk.n_absent, 44);
}

static void test_walk_when_found_below_then_host_has_it_afterwards(void **state)
{
    struct walk_test *t = *state;

    t->call.scratch = hps_arena_new(1024, 1 << 20);
    fixture_put_range(&t->fx, FIXTURE_DISK, 0, 0, 100);
    begin(t, 110);
    assert_int_equal(hps_walk_rest(&t->walk, &t->call, &t->err), HPS_OK);
    assert_int_equal(t->walk.reports[HPS_TIER_HOST].n_inserted, 100);
    assert_int_equal(t->walk.reports[HPS_TIER_HOST].n_dropped, 0);
    assert_true(fixture_has(&t->fx, FIXTURE_HOST, 0, 0));
    assert_true(fixture_has(&t->fx, FIXTURE_HOST, 0, 99));
    assert_false(fixture_has(&t->fx, FIXTURE_HOST, 0, 105)); /* unknown keys are not kept */
    hps_arena_free(t->call.scratch);
    t->call.scratch = NULL;
}

static void test_walk_when_host_fails_to_insert_then_rows_are_right_and_drops_counted(void **state)
{
    struct walk_test *t = *state;

    fixture_put_range(&t->fx, FIXTURE_DISK, 0, 0, 100);
    hps_fake_fail(t->fx.stores[FIXTURE_HOST], HPS_FAKE_INSERT, HPS_UNAVAILABLE, 0, UINT32_MAX, 40);
    begin(t, 100);
    assert_int_equal(hps_walk_rest(&t->walk, &t->call, &t->err), HPS_OK);
    assert_int_equal(t->walk.reports[HPS_TIER_ROCKSDB].n_found, 100);
    assert_int_equal(t->walk.reports[HPS_TIER_HOST].n_inserted, 40);
    assert_int_equal(t->walk.reports[HPS_TIER_HOST].n_dropped, 60);
    assert_int_equal(t->walk.reports[HPS_TIER_HOST].insert_status, HPS_UNAVAILABLE);
}

static void test_walk_when_host_is_down_then_it_is_skipped_and_gets_no_rows(void **state)
{
    struct walk_test *t = *state;

    fixture_put_range(&t->fx, FIXTURE_DISK, 0, 0, 100);
    hps_fake_fail(t->fx.stores[FIXTURE_HOST], HPS_FAKE_GET, HPS_UNAVAILABLE, 0, 1, 0);
    begin(t, 100);
    assert_int_equal(hps_walk_rest(&t->walk, &t->call, &t->err), HPS_OK);
    assert_int_equal(t->walk.reports[HPS_TIER_HOST].status, HPS_UNAVAILABLE);
    assert_int_equal(t->walk.reports[HPS_TIER_ROCKSDB].n_found, 100);
    assert_int_equal(t->walk.reports[HPS_TIER_HOST].n_unanswered, 100);
    assert_int_equal(hps_fake_calls(t->fx.stores[FIXTURE_HOST], HPS_FAKE_INSERT), 0);
}

static void test_walk_when_host_fails_half_way_then_its_hits_count(void **state)
{
    struct walk_test *t = *state;
    uint32_t n = 3000;

    fixture_put_range(&t->fx, FIXTURE_HOST, 0, 0, n);
    fixture_put_range(&t->fx, FIXTURE_DISK, 0, 0, n);
    hps_fake_fail(t->fx.stores[FIXTURE_HOST], HPS_FAKE_GET, HPS_IO, 1, 1, 100);
    begin(t, n);
    assert_int_equal(hps_walk_rest(&t->walk, &t->call, &t->err), HPS_OK);
    assert_int_equal(t->walk.reports[HPS_TIER_HOST].n_found, HPS_WALK_KEYS_MEMORY + 100);
    assert_int_equal(t->walk.reports[HPS_TIER_ROCKSDB].n_found, n - HPS_WALK_KEYS_MEMORY - 100);
    assert_int_equal(t->walk.batch.n, 0);
    /* no misses: it is unknown whether the tier has the other keys of that call */
    assert_int_equal(t->walk.reports[HPS_TIER_HOST].n_asked, 2 * HPS_WALK_KEYS_MEMORY);
    assert_int_equal(t->walk.reports[HPS_TIER_HOST].n_unanswered, HPS_WALK_KEYS_MEMORY - 100);
}

static void test_walk_when_last_tier_fails_then_the_part_fails(void **state)
{
    struct walk_test *t = *state;

    hps_fake_fail(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET, HPS_UNAVAILABLE, 0, 1, 0);
    begin(t, 3);
    assert_int_equal(hps_walk_rest(&t->walk, &t->call, &t->err), HPS_UNAVAILABLE);
    assert_non_null(strstr(t->err.text, "rocksdb"));
    assert_non_null(strstr(t->err.text, "t0"));
    assert_int_equal(t->walk.reports[HPS_TIER_ROCKSDB].n_unanswered, 3);
}

static void test_walk_when_host_is_complete_then_a_miss_is_proof(void **state)
{
    struct walk_test *t = *state;

    t->fx.version.host_complete = true;
    begin(t, 3);
    assert_int_equal(hps_walk_memory(&t->walk, &t->call, &t->err), HPS_OK);
    assert_true(hps_walk_done(&t->walk));
    assert_int_equal(t->walk.n_absent, 3);
    assert_int_equal(hps_fake_calls(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET), 0);
}

static void *walk_memory(void *arg)
{
    struct walk_test *t = arg;

    assert_int_equal(hps_walk_memory(&t->walk, &t->call, &t->err), HPS_OK);
    return NULL;
}

static void test_walk_when_host_becomes_complete_during_it_then_a_miss_proves_nothing(void **state)
{
    struct walk_test *t = *state;
    pthread_t walker;

    fixture_put_range(&t->fx, FIXTURE_DISK, 0, 0, 3);
    begin(t, 3);
    hps_fake_gate_shut(t->fx.stores[FIXTURE_HOST], HPS_FAKE_GET);
    assert_int_equal(pthread_create(&walker, NULL, walk_memory, t), 0);
    hps_fake_gate_wait(t->fx.stores[FIXTURE_HOST], HPS_FAKE_GET, 1);
    t->fx.version.host_complete = true;
    hps_fake_gate_open(t->fx.stores[FIXTURE_HOST], HPS_FAKE_GET);
    assert_int_equal(pthread_join(walker, NULL), 0);
    assert_int_equal(t->walk.n_absent, 0);
    assert_int_equal(hps_walk_rest(&t->walk, &t->call, &t->err), HPS_OK);
    assert_int_equal(t->walk.reports[HPS_TIER_ROCKSDB].n_found, 3);
}

static void test_walk_when_complete_host_fails_then_nothing_is_proven(void **state)
{
    struct walk_test *t = *state;

    t->fx.version.host_complete = true;
    fixture_put_range(&t->fx, FIXTURE_DISK, 0, 0, 3);
    hps_fake_fail(t->fx.stores[FIXTURE_HOST], HPS_FAKE_GET, HPS_UNAVAILABLE, 0, 1, 0);
    begin(t, 3);
    assert_int_equal(hps_walk_memory(&t->walk, &t->call, &t->err), HPS_OK);
    assert_false(hps_walk_done(&t->walk));
    assert_int_equal(hps_walk_rest(&t->walk, &t->call, &t->err), HPS_OK);
    assert_int_equal(t->walk.reports[HPS_TIER_ROCKSDB].n_found, 3);
}

static void test_walk_when_deadline_passes_then_found_keys_stay_found(void **state)
{
    struct walk_test *t = *state;
    uint32_t n = 3000;

    hps_clock_fake(1000);
    hps_fake_latency(t->fx.stores[FIXTURE_HOST], HPS_FAKE_GET, 100);
    fixture_put_range(&t->fx, FIXTURE_HOST, 0, 0, n);
    t->call.deadline_us = 1150;
    begin(t, n);
    assert_int_equal(hps_walk_rest(&t->walk, &t->call, &t->err), HPS_DEADLINE);
    assert_int_equal(t->walk.reports[HPS_TIER_HOST].n_found, HPS_WALK_KEYS_MEMORY);
    assert_int_equal(t->walk.reports[HPS_TIER_HOST].duration_us, 200);
    assert_int_equal(t->walk.batch.n, n - HPS_WALK_KEYS_MEMORY);
    assert_int_equal(t->walk.n_absent, 0);
}

static void test_walk_when_deadline_has_passed_then_no_tier_is_blamed(void **state)
{
    struct walk_test *t = *state;

    hps_clock_fake(1000);
    t->call.deadline_us = 1000;
    begin(t, 10);
    assert_int_equal(hps_walk_rest(&t->walk, &t->call, &t->err), HPS_DEADLINE);
    assert_int_equal(t->walk.reports[HPS_TIER_HOST].n_asked, 0);
    assert_int_equal(t->walk.reports[HPS_TIER_HOST].n_faults, 0);
}

static bool cancelled_after_two(const void *ctx)
{
    const struct walk_test *t = ctx;

    return hps_fake_calls(t->fx.stores[FIXTURE_HOST], HPS_FAKE_GET) >= 2;
}

static void test_walk_when_cancelled_then_work_stops_at_the_next_chunk(void **state)
{
    struct walk_test *t = *state;

    t->call.cancelled = cancelled_after_two;
    t->call.cancelled_ctx = t;
    begin(t, KEYS_MAX);
    assert_int_equal(hps_walk_memory(&t->walk, &t->call, &t->err), HPS_CANCELLED);
    assert_int_equal(hps_fake_calls(t->fx.stores[FIXTURE_HOST], HPS_FAKE_GET), 2);
}

/* ---- in pieces ------------------------------------------------------------------------------- */

enum { BIG_KEYS = 20000, BIG_PARTS = 3 };

struct big {
    hps_key keys[BIG_PARTS][BIG_KEYS];
    uint32_t slots[BIG_PARTS][BIG_KEYS];
    uint8_t *rows[BIG_PARTS];
    struct hps_walk walks[BIG_PARTS];
};

/* Parts of very different sizes over tables of different widths. */
static void begin_big(struct walk_test *t, struct big *big)
{
    static const uint32_t sizes[BIG_PARTS] = {BIG_KEYS, 1, HPS_WALK_KEYS_PIECE + 1};

    for (uint32_t p = 0; p < BIG_PARTS; p++) {
        for (uint32_t i = 0; i < sizes[p]; i++) {
            big->keys[p][i] = i;
            big->slots[p][i] = i;
        }
        struct hps_batch batch = {
            .keys = big->keys[p], .slots = big->slots[p], .rows = big->rows[p], .n = sizes[p]};
        hps_walk_init(&big->walks[p], &t->fx.version, &t->fx.tables[p], &batch);
        big->walks[p].next = p + 1 < BIG_PARTS ? &big->walks[p + 1] : NULL;
    }
}

static struct big *new_big(struct walk_test *t)
{
    struct big *big = hps_calloc(1, sizeof(*big));

    assert_non_null(big);
    for (uint32_t p = 0; p < BIG_PARTS; p++) {
        big->rows[p] = hps_calloc(BIG_KEYS, t->fx.tables[p].row_bytes);
        assert_non_null(big->rows[p]);
        for (hps_key key = 0; key < BIG_KEYS; key++) {
            if (is_third(key)) {
                fixture_put(&t->fx, FIXTURE_HOST, p, key);
            }
        }
    }
    return big;
}

static void free_big(struct big *big)
{
    for (uint32_t p = 0; p < BIG_PARTS; p++) {
        hps_free(big->rows[p]);
    }
    hps_free(big);
}

static void check_big(struct walk_test *t, const struct big *big)
{
    uint8_t row[FIXTURE_DIM_MAX * 4];

    for (uint32_t p = 0; p < BIG_PARTS; p++) {
        const struct hps_walk *walk = &big->walks[p];
        size_t row_bytes = t->fx.tables[p].row_bytes;
        assert_int_equal(walk->reports[HPS_TIER_HOST].n_asked, walk->n_keys);
        assert_int_equal(walk->reports[HPS_TIER_HOST].n_found, (walk->n_keys + 2) / 3);
        assert_int_equal(walk->batch.n + walk->reports[HPS_TIER_HOST].n_found, walk->n_keys);
        for (uint32_t i = 0; i < walk->n_keys; i++) {
            hps_key key = big->keys[p][i];
            assert_int_equal(key, big->slots[p][i]);
            assert_int_equal(is_third(key), i >= walk->batch.n);
            fixture_row(&t->fx.tables[p], key, row);
            assert_true(!is_third(key) ||
                        memcmp(big->rows[p] + key * row_bytes, row, row_bytes) == 0);
        }
    }
}

static void test_walk_when_it_is_large_then_helpers_take_pieces_with_the_same_result(void **state)
{
    struct walk_test *t = *state;
    struct big *big = new_big(t);

    assert_int_equal(hps_pool_new("help", 3, 0, &t->call.helpers), HPS_OK);
    begin_big(t, big);
    assert_int_equal(hps_walk_memory(&big->walks[0], &t->call, &t->err), HPS_OK);
    check_big(t, big);
    hps_pool_free(t->call.helpers);
    t->call.helpers = NULL;
    begin_big(t, big);
    assert_int_equal(hps_walk_memory(&big->walks[0], &t->call, &t->err), HPS_OK);
    check_big(t, big);
    free_big(big);
}

static void test_walk_when_a_piece_fails_then_the_rest_counts_and_the_tier_is_skipped(void **state)
{
    struct walk_test *t = *state;
    struct big *big = new_big(t);
    const struct hps_tier_report *report = &big->walks[0].reports[HPS_TIER_HOST];

    assert_int_equal(hps_pool_new("help", 3, 0, &t->call.helpers), HPS_OK);
    hps_fake_fail(t->fx.stores[FIXTURE_HOST], HPS_FAKE_GET, HPS_UNAVAILABLE, 2, 1, 0);
    begin_big(t, big);
    big->walks[0].next = NULL;
    assert_int_equal(hps_walk_memory(&big->walks[0], &t->call, &t->err), HPS_OK);
    assert_int_equal(report->status, HPS_UNAVAILABLE);
    assert_int_equal(report->n_faults, 1);
    assert_in_range(report->n_found, BIG_KEYS / 3 - HPS_WALK_KEYS_PIECE, BIG_KEYS / 3);
    assert_int_equal(big->walks[0].batch.n + report->n_found, BIG_KEYS);
    assert_int_equal(big->walks[0].kind_next, HPS_TIER_HOST + 1);
    hps_pool_free(t->call.helpers);
    t->call.helpers = NULL;
    free_big(big);
}

int main(void)
{
#define WALK_TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        WALK_TEST(test_walk_when_host_has_all_then_no_other_tier_is_read),
        WALK_TEST(test_walk_when_keys_are_spread_then_ranges_name_the_tier_of_each_key),
        WALK_TEST(test_walk_when_the_gpu_answers_then_all_ranges_stay_valid),
        WALK_TEST(test_walk_when_found_below_then_host_has_it_afterwards),
        WALK_TEST(test_walk_when_host_fails_to_insert_then_rows_are_right_and_drops_counted),
        WALK_TEST(test_walk_when_host_is_down_then_it_is_skipped_and_gets_no_rows),
        WALK_TEST(test_walk_when_host_fails_half_way_then_its_hits_count),
        WALK_TEST(test_walk_when_last_tier_fails_then_the_part_fails),
        WALK_TEST(test_walk_when_host_is_complete_then_a_miss_is_proof),
        WALK_TEST(test_walk_when_host_becomes_complete_during_it_then_a_miss_proves_nothing),
        WALK_TEST(test_walk_when_complete_host_fails_then_nothing_is_proven),
        WALK_TEST(test_walk_when_deadline_passes_then_found_keys_stay_found),
        WALK_TEST(test_walk_when_deadline_has_passed_then_no_tier_is_blamed),
        WALK_TEST(test_walk_when_cancelled_then_work_stops_at_the_next_chunk),
        WALK_TEST(test_walk_when_it_is_large_then_helpers_take_pieces_with_the_same_result),
        WALK_TEST(test_walk_when_a_piece_fails_then_the_rest_counts_and_the_tier_is_skipped),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

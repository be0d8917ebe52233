/* SPDX-License-Identifier: Apache-2.0
 *
 * Used keys stay, keys of a scan are evicted soon, and a key that returns soon after its
 * eviction skips probation.
 */
// clang-format off
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>
// clang-format on

#include "backends/host/evict.h"
#include "base/hash.h"

enum { N = 1000 };

static struct hps_host_budget budget;
static struct hps_host_account account;
static struct hps_epoch *epoch;
static struct hps_host_index index_;
static struct hps_host_evict evict;

static int set_up(void **state)
{
    (void)state;
    budget = (struct hps_host_budget){.bytes_max = UINT64_C(1) << 32};
    hps_host_account_init(&account, &budget);
    epoch = hps_epoch_new();
    evict = (struct hps_host_evict){0};
    return hps_host_index_open(&index_, &account, epoch, 7, N) == HPS_OK ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    hps_host_evict_close(&evict);
    hps_host_index_close(&index_);
    hps_epoch_free(epoch);
    return 0;
}

static bool there(uint64_t i)
{
    return hps_host_index_find(&index_, hps_mix64(i)).bucket != NULL;
}

static void touch(uint64_t i)
{
    struct hps_host_place place = hps_host_index_find(&index_, hps_mix64(i));
    assert_non_null(place.bucket);
    hps_host_touch(place);
}

static void throw_out(void)
{
    uint32_t generation;
    uint64_t slot;
    struct hps_host_place place = {0};
    for (unsigned i = 0; i < 100 && place.bucket == NULL; i++) {
        place = hps_host_evict_victim(&evict, &index_);
    }
    assert_non_null(place.bucket);
    hps_host_index_kill(&index_, place, &generation, &slot);
    hps_host_index_bury(&index_, generation, slot);
}

/* Insert a key like a full table does. Returns whether it is on probation. */
static bool come_in(uint64_t i)
{
    hps_key key = hps_mix64(i);
    if (index_.n_keys >= N) {
        throw_out();
    }
    bool probation = hps_host_evict_probation(&evict, hps_host_hash(index_.seed, key));
    assert_int_equal(hps_host_index_ensure_capacity(&index_), HPS_OK);
    assert_int_equal(hps_host_index_add(&index_, key, (uint32_t)i, probation), HPS_OK);
    (void)hps_host_index_step(&index_);
    if (probation) {
        hps_host_evict_entered(&evict, key);
    }
    return probation;
}

static void fill(void)
{
    for (uint64_t i = 0; i < N; i++) {
        assert_false(come_in(i)); /* not full, so no probation */
    }
    hps_host_evict_start(&evict, N);
}

static void test_scan_when_hot_keys_are_used_then_they_stay(void **state)
{
    (void)state;
    fill();
    for (uint64_t i = 0; i < 10000; i++) {
        assert_true(come_in(N + i));
        if (i % 20 == 0) {
            for (uint64_t hot = 0; hot < N / 4; hot++) {
                if (there(hot)) {
                    touch(hot);
                }
            }
        }
    }
    uint64_t n_hot = 0;
    for (uint64_t hot = 0; hot < N / 4; hot++) {
        n_hot += there(hot) ? 1 : 0;
    }
    assert_true(n_hot >= N / 4 - N / 20);
    assert_int_equal(index_.n_keys, N);
}

static void test_probation_when_used_twice_then_stays_else_is_evicted_first(void **state)
{
    (void)state;
    fill();
    for (uint64_t i = 0; i < 300; i++) {
        assert_true(come_in(N + i));
        if (i < 50) {
            touch(N + i);
            touch(N + i);
        }
    }
    uint64_t n_stayed = 0;
    uint64_t n_left = 0;
    for (uint64_t i = 0; i < 50; i++) {
        n_stayed += there(N + i) ? 1 : 0;
        n_left += there(N + 50 + i) ? 0 : 1;
    }
    assert_true(n_stayed >= 45); /* the clock may have evicted a key just after its promotion */
    assert_int_equal(n_left, 50);
    assert_true(evict.n_ring <= N / 10 + 1);
}

static void test_ghost_when_key_returns_soon_then_skips_probation(void **state)
{
    (void)state;
    fill();
    for (uint64_t i = 0; i < 150; i++) {
        assert_true(come_in(N + i));
    }
    assert_false(there(N));
    assert_false(come_in(N));     /* evicted on probation, then requested again */
    assert_true(come_in(100000)); /* never seen */
    struct hps_host_place place = hps_host_index_find(&index_, hps_mix64(N));
    assert_false(hps_host_is_marked(place));
}

static void test_victim_when_all_are_hot_or_the_index_grows_then_a_key_is_evicted(void **state)
{
    (void)state;
    fill();
    for (uint64_t i = 0; i < N; i++) {
        touch(i);
        touch(i);
        touch(i);
    }
    assert_int_equal(hps_host_index_reserve(&index_, 10 * N), HPS_OK);
    (void)hps_host_index_step(&index_);
    for (uint64_t i = 0; i < N; i++) {
        throw_out();
    }
    assert_int_equal(index_.n_keys, 0);
}

static void test_start_when_table_is_tiny_then_no_probation(void **state)
{
    (void)state;
    hps_host_evict_start(&evict, 3);
    for (uint64_t i = 0; i < 3000; i++) {
        assert_false(come_in(i));
    }
    assert_int_equal(index_.n_keys, N);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_scan_when_hot_keys_are_used_then_they_stay, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(
            test_probation_when_used_twice_then_stays_else_is_evicted_first, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_ghost_when_key_returns_soon_then_skips_probation,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(
            test_victim_when_all_are_hot_or_the_index_grows_then_a_key_is_evicted, set_up,
            tear_down),
        cmocka_unit_test_setup_teardown(test_start_when_table_is_tiny_then_no_probation, set_up,
                                        tear_down),
    };
    return cmocka_run_group_tests_name("host_evict", tests, NULL, NULL);
}

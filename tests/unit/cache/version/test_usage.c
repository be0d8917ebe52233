/* SPDX-License-Identifier: Apache-2.0
 *
 * What is counted of the lookups of a version, by many threads, and over its unloads.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <pthread.h>
#include <cmocka.h>

#include "cache/version/usage.h"

enum { N_THREADS = 24, N_LOOKUPS = 1000 }; /* more threads than there are shards */

static const struct hps_usage_lookup good = {
    .good = true, .ended_ms = 7000, .us = 100, .part_us = {1, 2, 3, 4}};
static const struct hps_usage_lookup bad = {.ended_ms = 9000, .us = 50, .part_us = {1, 2, 3, 4}};

static void test_get_when_nothing_was_counted_then_zeros(void **state)
{
    struct hps_usages *usages = hps_usages_new();
    struct hps_usage_sums sums;
    (void)state;
    hps_usage_get(hps_usages_of(usages, "m", 1), &sums);
    assert_int_equal(sums.n_good + sums.n_failed + sums.good_us + sums.failed_us + sums.last_ms, 0);
    hps_usages_free(usages);
}

static void test_add_when_it_failed_then_its_parts_count_for_nothing(void **state)
{
    struct hps_usages *usages = hps_usages_new();
    struct hps_usage *usage = hps_usages_of(usages, "m", 1);
    struct hps_usage_sums sums;
    (void)state;
    hps_usage_add(usage, &good);
    hps_usage_add(usage, &bad);
    hps_usage_add(usage, &bad);
    hps_usage_get(usage, &sums);
    assert_int_equal(sums.n_good, 1);
    assert_int_equal(sums.good_us, 100);
    assert_int_equal(sums.n_failed, 2);
    assert_int_equal(sums.failed_us, 100);
    for (unsigned i = 0; i < HPS_USAGE_PARTS; i++) {
        assert_int_equal(sums.part_us[i], i + 1);
    }
    assert_int_equal(sums.last_ms, 9000);
    hps_usages_free(usages);
}

static void *count(void *arg)
{
    for (unsigned i = 0; i < N_LOOKUPS; i++) {
        hps_usage_add(arg, i % 4 == 0 ? &bad : &good);
    }
    return NULL;
}

static void test_add_when_many_threads_count_then_none_is_lost(void **state)
{
    struct hps_usages *usages = hps_usages_new();
    struct hps_usage *usage = hps_usages_of(usages, "m", 1);
    struct hps_usage_sums sums;
    pthread_t threads[N_THREADS];
    (void)state;
    for (unsigned i = 0; i < N_THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, count, usage), 0);
    }
    for (unsigned i = 0; i < N_THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    hps_usage_get(usage, &sums);
    assert_int_equal(sums.n_good, N_THREADS * N_LOOKUPS / 4 * 3);
    assert_int_equal(sums.n_failed, N_THREADS * N_LOOKUPS / 4);
    assert_int_equal(sums.part_us[HPS_USAGE_OUTPUT], 4 * sums.n_good);
    hps_usages_free(usages);
}

static void test_of_when_asked_again_then_the_same_and_each_version_its_own(void **state)
{
    struct hps_usages *usages = hps_usages_new();
    struct hps_usage *usage = hps_usages_of(usages, "m", 1);
    (void)state;
    assert_non_null(usage);
    assert_ptr_equal(hps_usages_of(usages, "m", 1), usage);
    assert_ptr_not_equal(hps_usages_of(usages, "m", 2), usage);
    assert_ptr_not_equal(hps_usages_of(usages, "n", 1), usage);
    assert_ptr_equal(hps_usages_of(usages, "m", 1), usage);
    hps_usages_free(usages);
    hps_usages_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_get_when_nothing_was_counted_then_zeros),
        cmocka_unit_test(test_add_when_it_failed_then_its_parts_count_for_nothing),
        cmocka_unit_test(test_add_when_many_threads_count_then_none_is_lost),
        cmocka_unit_test(test_of_when_asked_again_then_the_same_and_each_version_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The arithmetic of the hit rate, against whole numbers. One thread.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cache/lookup/policy.h"

/* A threshold of so many percent is reached by h of h + m keys when 100 h >= percent (h + m). */
static void test_hits_when_threshold_is_a_percentage_then_exact_at_the_boundary(void **state)
{
    (void)state;
    for (uint64_t percent = 0; percent < 100; percent++) {
        double threshold = (double)percent / 100.0;
        for (uint32_t m = 1; m <= 500; m++) {
            uint64_t h = (percent * m + 99 - percent) / (100 - percent);
            assert_true(100 * h >= percent * (h + m));
            assert_true(h == 0 || 100 * (h - 1) < percent * (h - 1 + m));
            assert_int_equal(hps_policy_hits_min(threshold, m), h);
        }
    }
}

static void test_hits_when_threshold_is_fine_then_exact_at_the_boundary(void **state)
{
    (void)state;
    static const uint32_t counts[] = {1, 2, 3, 999, 2048, 100000, 2097152};
    for (uint64_t millionths = 899990; millionths < 1000000; millionths += 7) {
        for (unsigned i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
            uint64_t m = counts[i];
            uint64_t rest = 1000000 - millionths;
            uint64_t h = (millionths * m + rest - 1) / rest;
            uint64_t got = hps_policy_hits_min((double)millionths / 1e6, counts[i]);
            assert_true(got == h || (h > UINT32_MAX && got == UINT64_MAX));
        }
    }
}

static void test_hits_when_nothing_is_missed_then_none_is_needed(void **state)
{
    (void)state;
    assert_int_equal(hps_policy_hits_min(0.0, 0), 0);
    assert_int_equal(hps_policy_hits_min(0.9, 0), 0);
    assert_int_equal(hps_policy_hits_min(1.0, 0), 0);
    assert_int_equal(hps_policy_hits_min(7.5, 0), 0);
}

static void test_hits_when_threshold_is_one_or_more_then_never(void **state)
{
    (void)state;
    assert_true(hps_policy_hits_min(1.0, 1) == UINT64_MAX);
    assert_true(hps_policy_hits_min(2.0, 1) == UINT64_MAX);
    assert_true(hps_policy_hits_min((double)INFINITY, 1) == UINT64_MAX);
    assert_true(hps_policy_hits_min((double)NAN, 1) == UINT64_MAX);
    assert_true(hps_policy_hits_min(nextafter(1.0, 0.0), 1) == UINT64_MAX);
    assert_true(hps_policy_hits_min(nextafter(1.0, 0.0), UINT32_MAX) == UINT64_MAX);
}

static void test_hits_when_threshold_is_zero_or_less_then_none_is_needed(void **state)
{
    (void)state;
    assert_int_equal(hps_policy_hits_min(0.0, 1), 0);
    assert_int_equal(hps_policy_hits_min(0.0, UINT32_MAX), 0);
    assert_int_equal(hps_policy_hits_min(-1.0, UINT32_MAX), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hits_when_threshold_is_a_percentage_then_exact_at_the_boundary),
        cmocka_unit_test(test_hits_when_threshold_is_fine_then_exact_at_the_boundary),
        cmocka_unit_test(test_hits_when_nothing_is_missed_then_none_is_needed),
        cmocka_unit_test(test_hits_when_threshold_is_one_or_more_then_never),
        cmocka_unit_test(test_hits_when_threshold_is_zero_or_less_then_none_is_needed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

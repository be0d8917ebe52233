/* SPDX-License-Identifier: Apache-2.0
 *
 * The breaker on a fake clock: what opens it, when it lets a probe through, what closes it.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "backends/breaker.h"
#include "base/clock.h"

static const struct hps_breaker_options OPTIONS = {.tier = "fake",
                                                   .failures_max = 3,
                                                   .timeout_us = 1000,
                                                   .pause_us_first = 100,
                                                   .pause_us_max = 350};

static int setup(void **state)
{
    hps_clock_fake(1000);
    *state = hps_breaker_new(&OPTIONS);
    assert_non_null(*state);
    return 0;
}

static int teardown(void **state)
{
    hps_breaker_free(*state);
    hps_clock_real();
    return 0;
}

static void call(struct hps_breaker *breaker, hps_status status, uint64_t duration_us)
{
    enum hps_breaker_pass pass = hps_breaker_enter(breaker);

    assert_int_not_equal(pass, HPS_BREAKER_REFUSED);
    hps_breaker_leave(breaker, pass, status, duration_us);
}

static void fail_times(struct hps_breaker *breaker, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        call(breaker, HPS_UNAVAILABLE, 1);
    }
}

static void test_breaker_when_calls_fail_in_a_row_then_it_refuses(void **state)
{
    struct hps_breaker *breaker = *state;

    fail_times(breaker, 2);
    assert_true(hps_breaker_up(breaker));
    fail_times(breaker, 1);
    assert_false(hps_breaker_up(breaker));
    assert_int_equal(hps_breaker_enter(breaker), HPS_BREAKER_REFUSED);
}

static void test_breaker_when_a_call_succeeds_between_then_it_stays_closed(void **state)
{
    struct hps_breaker *breaker = *state;

    for (unsigned i = 0; i < 5; i++) {
        fail_times(breaker, 2);
        call(breaker, HPS_OK, 1);
    }
    assert_true(hps_breaker_up(breaker));
}

static void test_breaker_when_rows_are_damaged_then_it_stays_closed(void **state)
{
    struct hps_breaker *breaker = *state;

    for (unsigned i = 0; i < 10; i++) {
        call(breaker, HPS_DATA_LOSS, 1);
        call(breaker, HPS_IO, 1);
        call(breaker, HPS_NO_MEMORY, 1);
    }
    assert_true(hps_breaker_up(breaker));
}

static void test_breaker_when_deadlines_were_short_then_they_say_nothing(void **state)
{
    struct hps_breaker *breaker = *state;

    fail_times(breaker, 2);
    for (unsigned i = 0; i < 10; i++) {
        call(breaker, HPS_DEADLINE, 999);
        call(breaker, HPS_CANCELLED, 5000);
    }
    assert_true(hps_breaker_up(breaker));
    call(breaker, HPS_DEADLINE, 1000); /* the third failure in a row */
    assert_false(hps_breaker_up(breaker));
}

static void test_breaker_when_the_pause_is_over_then_one_probe_passes(void **state)
{
    struct hps_breaker *breaker = *state;

    fail_times(breaker, 3);
    hps_clock_advance(99);
    assert_int_equal(hps_breaker_enter(breaker), HPS_BREAKER_REFUSED);
    hps_clock_advance(1);
    assert_int_equal(hps_breaker_enter(breaker), HPS_BREAKER_PROBE);
    assert_int_equal(hps_breaker_enter(breaker), HPS_BREAKER_REFUSED);
    hps_breaker_leave(breaker, HPS_BREAKER_PROBE, HPS_OK, 1);
    assert_true(hps_breaker_up(breaker));
    assert_int_equal(hps_breaker_enter(breaker), HPS_BREAKER_PASSED);
    fail_times(breaker, 2); /* it counts from the start again */
    assert_true(hps_breaker_up(breaker));
}

static void test_breaker_when_probes_fail_then_pauses_double_up_to_the_longest(void **state)
{
    static const uint64_t pauses_us[] = {100, 200, 350, 350};
    struct hps_breaker *breaker = *state;

    fail_times(breaker, 3);
    for (unsigned i = 0; i < 4; i++) {
        hps_clock_advance(pauses_us[i] - 1);
        assert_int_equal(hps_breaker_enter(breaker), HPS_BREAKER_REFUSED);
        hps_clock_advance(1);
        call(breaker, HPS_UNAVAILABLE, 1);
    }
    hps_clock_advance(350);
    call(breaker, HPS_OK, 1);
    fail_times(breaker, 3);
    hps_clock_advance(100); /* the first pause again */
    assert_int_equal(hps_breaker_enter(breaker), HPS_BREAKER_PROBE);
    hps_breaker_leave(breaker, HPS_BREAKER_PROBE, HPS_OK, 1);
}

static void test_breaker_when_a_probe_is_cancelled_then_the_next_call_probes(void **state)
{
    struct hps_breaker *breaker = *state;

    fail_times(breaker, 3);
    hps_clock_advance(100);
    call(breaker, HPS_CANCELLED, 1);
    assert_false(hps_breaker_up(breaker));
    assert_int_equal(hps_breaker_enter(breaker), HPS_BREAKER_PROBE);
    hps_breaker_leave(breaker, HPS_BREAKER_PROBE, HPS_OK, 1);
}

static void test_breaker_when_a_call_from_before_succeeds_then_it_stays_open(void **state)
{
    struct hps_breaker *breaker = *state;
    enum hps_breaker_pass pass = hps_breaker_enter(breaker);

    fail_times(breaker, 3);
    hps_breaker_leave(breaker, pass, HPS_OK, 1);
    assert_false(hps_breaker_up(breaker));
}

static void *call_often(void *arg)
{
    for (unsigned i = 0; i < 2000; i++) {
        enum hps_breaker_pass pass = hps_breaker_enter(arg);
        if (pass != HPS_BREAKER_REFUSED) {
            hps_breaker_leave(arg, pass, i % 7 < 4 ? HPS_UNAVAILABLE : HPS_OK, 1);
        }
        hps_clock_advance(3);
    }
    return NULL;
}

static void test_breaker_when_threads_race_then_it_works_on(void **state)
{
    struct hps_breaker *breaker = *state;
    pthread_t threads[4];

    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, call_often, breaker), 0);
    }
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    hps_clock_advance(350);
    call(breaker, HPS_OK, 1); /* a probe, if it is open */
    assert_true(hps_breaker_up(breaker));
}

int main(void)
{
#define BREAKER_TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        BREAKER_TEST(test_breaker_when_calls_fail_in_a_row_then_it_refuses),
        BREAKER_TEST(test_breaker_when_a_call_succeeds_between_then_it_stays_closed),
        BREAKER_TEST(test_breaker_when_rows_are_damaged_then_it_stays_closed),
        BREAKER_TEST(test_breaker_when_deadlines_were_short_then_they_say_nothing),
        BREAKER_TEST(test_breaker_when_the_pause_is_over_then_one_probe_passes),
        BREAKER_TEST(test_breaker_when_probes_fail_then_pauses_double_up_to_the_longest),
        BREAKER_TEST(test_breaker_when_a_probe_is_cancelled_then_the_next_call_probes),
        BREAKER_TEST(test_breaker_when_a_call_from_before_succeeds_then_it_stays_open),
        BREAKER_TEST(test_breaker_when_threads_race_then_it_works_on),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

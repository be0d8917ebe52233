/* SPDX-License-Identifier: Apache-2.0
 *
 * The fake clock. Two threads where noted.
 */
#include "base/clock.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void test_clock_when_real_then_never_backwards(void **state)
{
    (void)state;
    uint64_t last = hps_clock_us();
    assert_true(last != 0);
    for (unsigned i = 0; i < 1000; i++) {
        uint64_t now = hps_clock_us();
        assert_true(now >= last);
        last = now;
    }
    assert_true(hps_clock_wall_ms() > 1600000000000u); /* some day after 2020 */
}

static void test_clock_when_fake_then_moves_only_when_told(void **state)
{
    (void)state;
    hps_clock_fake(5000000);
    assert_int_equal(hps_clock_us(), 5000000);
    assert_int_equal(hps_clock_wall_ms(), 5000);
    hps_clock_advance(1500);
    assert_int_equal(hps_clock_us(), 5001500);
    assert_int_equal(hps_clock_wall_ms(), 5001);
    hps_clock_real();
    assert_true(hps_clock_wall_ms() > 1600000000000u);
}

static void test_forward_when_the_wall_clock_is_set_then_it_never_goes_back(void **state)
{
    static const struct {
        uint64_t advance_ms;
        int64_t shift_ms;   /* of the wall clock */
        int64_t forward_ms; /* since the start */
    } steps[] = {{0, 0, 0},        {10, 0, 10},           {0, -3600000, 10},
                 {10, 0, 20},      {3600010, 0, 3600030}, {0, 3600500, 3600530},
                 {0, -1, 3600530}, {1, 0, 3600531}};
    int64_t start_ms = 5000000;
    (void)state;
    hps_clock_fake((uint64_t)start_ms * 1000);
    for (unsigned i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        hps_clock_advance(steps[i].advance_ms * 1000);
        hps_clock_wall_shift(steps[i].shift_ms);
        int64_t now_ms = hps_clock_forward_ms();
        int64_t wall_ms = (int64_t)hps_clock_wall_ms();
        assert_int_equal(now_ms, start_ms + steps[i].forward_ms);
        assert_int_equal(hps_clock_wall_of(now_ms), wall_ms);
        assert_int_equal(hps_clock_wall_of(now_ms - 700), wall_ms - 700);
        assert_int_equal(hps_clock_wall_of(0), 0);
    }
    hps_clock_wall_shift(-3600000);
    hps_clock_fake(hps_clock_us()); /* a new process has only the wall clock */
    hps_clock_wall_shift(-3600000);
    assert_int_equal(hps_clock_forward_ms(), hps_clock_wall_ms());
    hps_clock_real();
    assert_true(hps_clock_forward_ms() > 1600000000000);
}

static void *advance_many(void *arg)
{
    (void)arg;
    for (unsigned i = 0; i < 1000; i++) {
        hps_clock_advance(1);
    }
    return NULL;
}

static void test_clock_when_two_threads_advance_then_sum(void **state)
{
    (void)state;
    hps_clock_fake(1);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, advance_many, NULL), 0);
    advance_many(NULL);
    pthread_join(thread, NULL);
    assert_int_equal(hps_clock_us(), 2001);
    hps_clock_real();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_clock_when_real_then_never_backwards),
        cmocka_unit_test(test_clock_when_fake_then_moves_only_when_told),
        cmocka_unit_test(test_forward_when_the_wall_clock_is_set_then_it_never_goes_back),
        cmocka_unit_test(test_clock_when_two_threads_advance_then_sum),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

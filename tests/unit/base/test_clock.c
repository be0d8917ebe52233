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
        cmocka_unit_test(test_clock_when_two_threads_advance_then_sum),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Locks and conditions, with the assertions of debug builds. This file enables the assertions in
 * every build. Two threads where noted.
 */
#ifndef HPS_DEBUG
#define HPS_DEBUG
#endif
#include "base/lock.c"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void hook(const char *expr, const char *file, int line)
{
    mock_assert(0, expr, file, line);
}

static struct hps_lock outer, inner, beside; /* `inner` and `beside` have one rank */
static struct hps_lock patient;              /* may be held during a wait */
static struct hps_rwlock shared;
static struct hps_cond cond;

static int setup(void **state)
{
    (void)state;
    hps_assert_hook(hook);
    hps_lock_init(&patient, HPS_LOCK_CATALOG_SWITCH);
    hps_lock_init(&outer, HPS_LOCK_CATALOG);
    hps_lock_init(&inner, HPS_LOCK_TLS);
    hps_lock_init(&beside, HPS_LOCK_SLOW_LOG);
    hps_rwlock_init(&shared, HPS_LOCK_HOST_SET);
    hps_cond_init(&cond);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    hps_cond_fini(&cond);
    hps_rwlock_fini(&shared);
    hps_lock_fini(&beside);
    hps_lock_fini(&inner);
    hps_lock_fini(&outer);
    hps_lock_fini(&patient);
    hps_assert_hook(NULL);
    return 0;
}

/* ---- order ----------------------------------------------------------------------------------- */

static void test_lock_when_taken_by_rank_then_held_until_released(void **state)
{
    (void)state;
    hps_lock_acquire(&outer);
    hps_rwlock_read(&shared);
    hps_lock_acquire(&inner);
    hps_lock_assert_held(&outer);
    hps_lock_assert_held(&shared);
    hps_lock_assert_held(&inner);
    hps_lock_release(&outer); /* in any order */
    expect_assert_failure(hps_lock_assert_held(&outer));
    hps_lock_assert_held(&inner);
    hps_lock_release(&inner);
    hps_rwlock_release(&shared);
    expect_assert_failure(hps_lock_assert_held(&shared));
}

static void test_lock_when_rank_is_below_a_held_one_then_assertion(void **state)
{
    (void)state;
    hps_lock_acquire(&inner);
    expect_assert_failure(hps_lock_acquire(&outer));
    expect_assert_failure(hps_rwlock_read(&shared));
    expect_assert_failure(hps_rwlock_write(&shared));
    hps_lock_release(&inner);
    hps_lock_acquire(&outer); /* the failed calls changed nothing */
    hps_lock_release(&outer);
}

static void test_lock_when_any_held_one_is_above_then_assertion(void **state)
{
    (void)state;
    assert_true(hps_lock_try(&inner));
    assert_true(hps_lock_try(&outer));
    expect_assert_failure(hps_rwlock_read(&shared)); /* above the last one held, below the first */
    hps_lock_release(&outer);
    hps_lock_release(&inner);
}

static void test_lock_when_of_one_rank_or_twice_then_assertion(void **state)
{
    (void)state;
    hps_lock_acquire(&inner);
    expect_assert_failure(hps_lock_acquire(&beside));
    expect_assert_failure(hps_lock_acquire(&inner));
    hps_lock_release(&inner);
    hps_rwlock_read(&shared);
    expect_assert_failure(hps_rwlock_read(&shared));
    hps_rwlock_release(&shared);
}

static void test_lock_when_released_by_a_thread_that_does_not_hold_it_then_assertion(void **state)
{
    (void)state;
    expect_assert_failure(hps_lock_release(&inner));
    expect_assert_failure(hps_rwlock_release(&shared));
}

static void test_lock_when_not_initialised_or_destroyed_then_assertion(void **state)
{
    (void)state;
    struct hps_lock lock = {0};
    expect_assert_failure(hps_lock_acquire(&lock));
    expect_assert_failure(hps_lock_init(&lock, HPS_LOCK_NONE));
    hps_lock_init(&lock, HPS_LOCK_TLS);
    hps_lock_acquire(&lock);
    expect_assert_failure(hps_lock_fini(&lock));
    hps_lock_release(&lock);
    hps_lock_fini(&lock);
    expect_assert_failure(hps_lock_acquire(&lock));
}

static void test_lock_when_static_then_it_works(void **state)
{
    (void)state;
    static struct hps_lock lock = HPS_LOCK_STATIC(TLS);
    hps_lock_acquire(&lock);
    hps_lock_assert_held(&lock);
    hps_lock_release(&lock);
}

/* ---- two threads ----------------------------------------------------------------------------- */

static void *on_other_thread(void *arg)
{
    bool *taken = arg;
    taken[0] = hps_lock_debug_is_held(&inner) || hps_lock_debug_is_held(&shared);
    taken[1] = hps_lock_try(&inner);
    hps_rwlock_read(&shared);
    hps_rwlock_release(&shared);
    return NULL;
}

static void test_try_when_another_thread_holds_it_then_false(void **state)
{
    (void)state;
    bool taken[2] = {true, true};
    pthread_t thread;
    hps_rwlock_read(&shared);
    hps_lock_acquire(&inner);
    assert_int_equal(pthread_create(&thread, NULL, on_other_thread, taken), 0);
    pthread_join(thread, NULL);
    assert_false(taken[0]); /* locks of this thread do not count for the other */
    assert_false(taken[1]);
    hps_lock_release(&inner);
    hps_rwlock_release(&shared);
}

static void test_try_when_free_then_taken_in_any_order(void **state)
{
    (void)state;
    hps_lock_acquire(&inner);
    assert_true(hps_lock_try(&outer));
    hps_lock_assert_held(&outer);
    hps_lock_release(&outer);
    hps_lock_release(&inner);
}

static bool ready; /* outer */

static void *signal_ready(void *arg)
{
    (void)arg;
    hps_lock_acquire(&outer);
    ready = true;
    hps_cond_signal(&cond);
    hps_lock_release(&outer);
    return NULL;
}

static void test_wait_when_signalled_then_true_and_the_lock_is_held(void **state)
{
    (void)state;
    pthread_t thread;
    for (unsigned round = 0; round < 2; round++) {
        bool in_time = true;
        ready = false;
        hps_lock_acquire(&outer); /* before the thread begins: the signal comes during the wait */
        assert_int_equal(pthread_create(&thread, NULL, signal_ready, NULL), 0);
        while (!ready && round == 0) {
            hps_cond_wait(&cond, &outer);
        }
        while (!ready && in_time) {
            in_time = hps_cond_wait_until(&cond, &outer, UINT64_MAX);
        }
        hps_lock_assert_held(&outer);
        hps_lock_release(&outer);
        pthread_join(thread, NULL);
        assert_true(ready);
        assert_true(in_time);
    }
}

/* ---- waiting --------------------------------------------------------------------------------- */

static void test_wait_until_when_deadline_passes_then_false(void **state)
{
    (void)state;
    uint64_t deadline_us = hps_clock_us() + 1000;
    hps_lock_acquire(&outer);
    while (hps_cond_wait_until(&cond, &outer, deadline_us)) { /* spurious wake-ups */
    }
    hps_lock_assert_held(&outer);
    hps_lock_release(&outer);
    assert_true(hps_clock_us() >= deadline_us);
}

static void test_wait_until_when_clock_is_frozen_then_the_remaining_time_passes(void **state)
{
    (void)state;
    hps_clock_fake(5000000);
    hps_lock_acquire(&outer);
    while (hps_cond_wait_until(&cond, &outer, 5001000)) {
    }
    while (hps_cond_wait_until(&cond, &outer, 4000000)) { /* in the past */
    }
    hps_clock_advance(1000000);
    while (hps_cond_wait_until(&cond, &outer, 6000000)) {
    }
    hps_lock_release(&outer);
    assert_int_equal(hps_clock_us(), 6000000);
    hps_clock_real();
}

static void test_wait_when_another_lock_is_held_then_assertion(void **state)
{
    (void)state;
    hps_lock_acquire(&outer);
    hps_lock_acquire(&inner);
    expect_assert_failure(hps_cond_wait(&cond, &inner));
    expect_assert_failure(hps_cond_wait_until(&cond, &inner, 1));
    expect_assert_failure(hps_lock_assert_may_wait());
    hps_lock_release(&inner);
    expect_assert_failure(hps_lock_assert_may_wait());
    hps_lock_release(&outer);
    hps_lock_assert_may_wait();
}

static void test_wait_when_the_lock_is_not_held_then_assertion(void **state)
{
    (void)state;
    expect_assert_failure(hps_cond_wait(&cond, &inner));
    expect_assert_failure(hps_cond_wait_until(&cond, &inner, 1));
}

static void test_wait_when_the_other_lock_may_be_held_then_it_waits(void **state)
{
    (void)state;
    hps_lock_acquire(&patient);
    hps_lock_assert_may_wait();
    hps_lock_acquire(&outer);
    while (hps_cond_wait_until(&cond, &outer, 1)) {
    }
    hps_lock_release(&outer);
    hps_lock_release(&patient);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_lock_when_taken_by_rank_then_held_until_released),
        TEST(test_lock_when_rank_is_below_a_held_one_then_assertion),
        TEST(test_lock_when_any_held_one_is_above_then_assertion),
        TEST(test_lock_when_of_one_rank_or_twice_then_assertion),
        TEST(test_lock_when_released_by_a_thread_that_does_not_hold_it_then_assertion),
        TEST(test_lock_when_not_initialised_or_destroyed_then_assertion),
        TEST(test_lock_when_static_then_it_works),
        TEST(test_try_when_another_thread_holds_it_then_false),
        TEST(test_try_when_free_then_taken_in_any_order),
        TEST(test_wait_when_signalled_then_true_and_the_lock_is_held),
        TEST(test_wait_until_when_deadline_passes_then_false),
        TEST(test_wait_until_when_clock_is_frozen_then_the_remaining_time_passes),
        TEST(test_wait_when_another_lock_is_held_then_assertion),
        TEST(test_wait_when_the_lock_is_not_held_then_assertion),
        TEST(test_wait_when_the_other_lock_may_be_held_then_it_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

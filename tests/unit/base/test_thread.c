/* SPDX-License-Identifier: Apache-2.0
 *
 * How threads begin: base/thread.h. The tests' own thread.
 */
#include "base/thread.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>

#include <cmocka.h>

struct seen {
    sigset_t blocked;
};

static void *look(void *arg)
{
    struct seen *seen = arg;
    pthread_sigmask(SIG_SETMASK, NULL, &seen->blocked);
    return seen;
}

static void test_thread_when_started_then_it_takes_no_signals_and_its_starter_does(void **state)
{
    static const size_t stacks[] = {0, 1 << 20};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct seen seen;
        pthread_t thread;
        sigset_t mine;
        void *answer = NULL;
        assert_int_equal(hps_thread_start(stacks[i], look, &seen, &thread), HPS_OK);
        assert_int_equal(pthread_join(thread, &answer), 0);
        assert_ptr_equal(answer, &seen);
        assert_true(sigismember(&seen.blocked, SIGTERM) && sigismember(&seen.blocked, SIGHUP));
        pthread_sigmask(SIG_SETMASK, NULL, &mine);
        assert_false(sigismember(&mine, SIGTERM));
    }
}

static void *nice_of_mine(void *arg)
{
    *(int *)arg = getpriority(PRIO_PROCESS, 0);
    return NULL;
}

static void *look_behind(void *arg)
{
    int *nices = arg;
    pthread_t thread;
    hps_thread_background();
    nice_of_mine(&nices[0]);
    assert_int_equal(hps_thread_start(0, nice_of_mine, &nices[1], &thread), HPS_OK);
    assert_int_equal(pthread_join(thread, NULL), 0);
    return NULL;
}

static void test_background_when_entered_then_so_are_its_children_and_no_others(void **state)
{
    int mine = getpriority(PRIO_PROCESS, 0), nices[2] = {mine, mine};
    pthread_t thread;
    (void)state;
    assert_int_equal(hps_thread_start(0, look_behind, nices, &thread), HPS_OK);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(getpriority(PRIO_PROCESS, 0), mine);
    assert_int_equal(nices[0], nices[1]);
    assert_true(nices[0] > mine || mine == 19);
}

static void test_thread_when_its_stack_is_none_then_refused(void **state)
{
    pthread_t thread;
    sigset_t mine;
    (void)state;
    assert_int_equal(hps_thread_start(1, look, NULL, &thread), HPS_EXHAUSTED);
    pthread_sigmask(SIG_SETMASK, NULL, &mine);
    assert_false(sigismember(&mine, SIGTERM));
}

static void *pause_long(void *arg)
{
    bool stopped = hps_thread_pause(UINT64_C(3600) * 1000000, arg);
    return stopped ? arg : NULL;
}

/* Each of the hours would be noticed. */
static void test_pause_when_interrupted_then_over_for_those_it_is_meant_for(void **state)
{
    static atomic_bool stops[2];
    pthread_t threads[2];
    void *answer = NULL;
    (void)state;
    assert_false(hps_thread_pause(1, NULL));
    assert_false(hps_thread_pause(1000, &stops[0]));
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(hps_thread_start(0, pause_long, &stops[i], &threads[i]), HPS_OK);
    }
    for (size_t i = 0; i < 2; i++) {
        assert_false(atomic_load(&stops[i])); /* the other one goes on */
        hps_thread_interrupt(&stops[i]);
        assert_int_equal(pthread_join(threads[i], &answer), 0);
        assert_ptr_equal(answer, &stops[i]);
    }
    assert_true(hps_thread_pause(UINT64_C(3600) * 1000000, &stops[0])); /* from then on */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_thread_when_started_then_it_takes_no_signals_and_its_starter_does),
        cmocka_unit_test(test_background_when_entered_then_so_are_its_children_and_no_others),
        cmocka_unit_test(test_thread_when_its_stack_is_none_then_refused),
        cmocka_unit_test(test_pause_when_interrupted_then_over_for_those_it_is_meant_for),
    };
    return cmocka_run_group_tests_name("thread", tests, NULL, NULL);
}

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_thread_when_started_then_it_takes_no_signals_and_its_starter_does),
        cmocka_unit_test(test_background_when_entered_then_so_are_its_children_and_no_others),
        cmocka_unit_test(test_thread_when_its_stack_is_none_then_refused),
    };
    return cmocka_run_group_tests_name("thread", tests, NULL, NULL);
}

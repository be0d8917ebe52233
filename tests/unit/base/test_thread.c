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
        cmocka_unit_test(test_thread_when_its_stack_is_none_then_refused),
    };
    return cmocka_run_group_tests_name("thread", tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Failed assertions reach the hook. One thread.
 */
#include "base/assert.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void hook(const char *expr, const char *file, int line)
{
    mock_assert(0, expr, file, line);
}

static int setup(void **state)
{
    (void)state;
    hps_assert_hook(hook);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    hps_assert_hook(NULL);
    return 0;
}

static void test_assert_when_false_then_hook(void **state)
{
    (void)state;
    int two = 2;
    expect_assert_failure(HPS_ASSERT(two == 3));
}

static void test_assert_when_true_then_evaluated_once(void **state)
{
    (void)state;
    int n = 0;
    HPS_ASSERT(++n == 1);
    assert_int_equal(n, 1);
}

static void test_debug_assert_when_off_then_not_evaluated(void **state)
{
    (void)state;
    int n = 0;
    HPS_DEBUG_ASSERT(++n == 1);
#ifdef HPS_DEBUG
    assert_int_equal(n, 1);
#else
    assert_int_equal(n, 0);
#endif
}

static void test_assert_when_no_hook_then_abort(void **state)
{
    (void)state;
    hps_assert_hook(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        close(STDERR_FILENO);
        hps_assert_failed("x", "y", 1);
    }
    int how = 0;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFSIGNALED(how) || WEXITSTATUS(how) != 0); /* a sanitizer may turn it into exit */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_assert_when_false_then_hook, setup, teardown),
        cmocka_unit_test(test_assert_when_true_then_evaluated_once),
        cmocka_unit_test(test_debug_assert_when_off_then_not_evaluated),
        cmocka_unit_test(test_assert_when_no_hook_then_abort),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

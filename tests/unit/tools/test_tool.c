/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tools share: progress, interrupts, exit codes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "tools/tool.h"

enum { EVERY_US = 1 << 30 };

static void test_progress_when_drawn_again_then_over_the_line_before(void **state)
{
    char text[256] = "";
    struct tool_progress progress = {.out = fmemopen(text, sizeof(text), "w")};

    (void)state;
    assert_non_null(progress.out);
    assert_true(tool_progress_due(&progress, EVERY_US)); /* the first time */
    tool_progress_draw(&progress, "%d of ten", 10);
    assert_false(tool_progress_due(&progress, EVERY_US));
    assert_true(tool_progress_due(&progress, 0));
    tool_progress_draw(&progress, "%s", "\x1b[2J");
    tool_progress_draw(&progress, "done");
    tool_progress_end(&progress);
    tool_progress_end(&progress); /* there is no line any more */
    assert_int_equal(fclose(progress.out), 0);
    assert_string_equal(text, "\r10 of ten\r\\u001b[2J\rdone     \n");
}

static void test_progress_when_not_shown_then_never_due(void **state)
{
    struct tool_progress progress = {.out = NULL};

    (void)state;
    assert_false(tool_progress_due(&progress, 0));
    tool_progress_draw(&progress, "unseen");
    tool_progress_end(&progress);
    assert_int_equal(progress.columns, 0);
}

static void test_interrupts_when_the_first_comes_then_noted_and_the_second_is_left_alone(
    void **state)
{
    struct sigaction now;

    (void)state;
    assert_false(tool_interrupted());
    tool_interrupts_note(true);
    assert_int_equal(raise(SIGTERM), 0);
    assert_true(tool_interrupted());
    assert_int_equal(tool_interrupt(), SIGTERM);
    assert_int_equal(sigaction(SIGTERM, NULL, &now), 0);
    assert_true(now.sa_handler == SIG_DFL); /* which ends the program */
    assert_int_equal(sigaction(SIGINT, NULL, &now), 0);
    assert_true(now.sa_handler != SIG_DFL);
    (void)signal(SIGINT, SIG_DFL);
}

static void test_exit_when_a_call_failed_then_by_its_status(void **state)
{
    (void)state;
    assert_int_equal(tool_exit_of(HPS_UNAVAILABLE), 3);
    assert_int_equal(tool_exit_of(HPS_DEADLINE), 4);
    assert_int_equal(tool_exit_of(HPS_NOT_FOUND), 1);
}

static void test_address_when_the_environment_names_one_then_that(void **state)
{
    (void)state;
    assert_int_equal(unsetenv("HPSD_ADDR"), 0);
    assert_string_equal(tool_admin_address(), TOOL_ADMIN_ADDRESS);
    assert_int_equal(setenv("HPSD_ADDR", "", 1), 0);
    assert_string_equal(tool_admin_address(), TOOL_ADMIN_ADDRESS);
    assert_int_equal(setenv("HPSD_ADDR", "unix:/x", 1), 0);
    assert_string_equal(tool_admin_address(), "unix:/x");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_progress_when_drawn_again_then_over_the_line_before),
        cmocka_unit_test(test_progress_when_not_shown_then_never_due),
        cmocka_unit_test(
            test_interrupts_when_the_first_comes_then_noted_and_the_second_is_left_alone),
        cmocka_unit_test(test_exit_when_a_call_failed_then_by_its_status),
        cmocka_unit_test(test_address_when_the_environment_names_one_then_that),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

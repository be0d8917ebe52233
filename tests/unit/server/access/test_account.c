/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "server/access/account.h"

static void test_get_when_same_name_then_same_account(void **state)
{
    struct hps_accounts *accounts = hps_accounts_new();
    struct hps_account *one = hps_account_get(accounts, "cert:a");
    struct hps_account *same = hps_account_get(accounts, "cert:a");
    struct hps_account *other = hps_account_get(accounts, "cert:b");

    (void)state;
    assert_ptr_equal(one, same);
    assert_ptr_not_equal(one, other);
    hps_account_unref(one);
    hps_account_unref(same);
    hps_account_unref(other);
    hps_accounts_free(accounts);
}

static void test_take_when_burst_is_used_then_one_at_a_time(void **state)
{
    struct hps_accounts *accounts = hps_accounts_new();
    struct hps_account *account = hps_account_get(accounts, "user:1");
    uint64_t now_us = 5 * 1000 * 1000;
    uint64_t retry_us = 0;

    (void)state;
    for (unsigned i = 0; i < 100; i++) { /* what a second may have, at once */
        assert_true(hps_account_take(account, 100, now_us, &retry_us));
    }
    assert_false(hps_account_take(account, 100, now_us, &retry_us));
    assert_in_range(retry_us, 9000, 11000);
    assert_true(hps_account_take(account, 100, now_us + retry_us, &retry_us));
    assert_false(hps_account_take(account, 100, now_us + 10001, &retry_us));
    now_us += 10 * 1000 * 1000; /* idle time is not saved up beyond a second */
    for (unsigned i = 0; i < 100; i++) {
        assert_true(hps_account_take(account, 100, now_us, &retry_us));
    }
    assert_false(hps_account_take(account, 100, now_us, &retry_us));
    hps_account_unref(account);
    hps_accounts_free(accounts);
}

static void test_get_when_all_connections_went_then_what_was_used_stays_used(void **state)
{
    struct hps_accounts *accounts = hps_accounts_new();
    uint64_t now_us = hps_clock_us();
    uint64_t retry_us = 0;

    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        struct hps_account *account = hps_account_get(accounts, "user:1");
        assert_int_equal(hps_account_take(account, 2, now_us, &retry_us), i < 2);
        hps_account_unref(account);
    }
    hps_accounts_free(accounts);
}

static void test_charge_when_over_the_limit_then_refused_but_never_what_is_alone(void **state)
{
    struct hps_accounts *accounts = hps_accounts_new();
    struct hps_account *account = hps_account_get(accounts, "user:1");

    (void)state;
    assert_true(hps_account_charge(account, 100, 1000));
    assert_false(hps_account_charge(account, 100, 1));
    hps_account_discharge(account, 1000);
    assert_true(hps_account_charge(account, 100, 60));
    assert_true(hps_account_charge(account, 100, 40));
    assert_false(hps_account_charge(account, 100, 1));
    hps_account_discharge(account, 100);
    hps_account_unref(account);
    hps_accounts_free(accounts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_get_when_same_name_then_same_account),
        cmocka_unit_test(test_take_when_burst_is_used_then_one_at_a_time),
        cmocka_unit_test(test_get_when_all_connections_went_then_what_was_used_stays_used),
        cmocka_unit_test(test_charge_when_over_the_limit_then_refused_but_never_what_is_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

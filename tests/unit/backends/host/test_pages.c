/* SPDX-License-Identifier: Apache-2.0
 *
 * The budget is never passed, and areas give their pages back.
 */
// clang-format off
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>
// clang-format on

#include <sys/mman.h>

#include "backends/host/pages.h"

static void test_charge_when_over_budget_or_own_limit_then_nothing_is_charged(void **state)
{
    (void)state;
    struct hps_host_budget budget = {.bytes_max = 1000};
    struct hps_host_account one;
    struct hps_host_account two;
    hps_host_account_init(&one, &budget);
    hps_host_account_init(&two, &budget);
    assert_true(hps_host_charge(&one, 600));
    assert_false(hps_host_charge(&two, 401));
    assert_true(hps_host_charge(&two, 400));
    assert_int_equal(hps_host_available(&budget), 0);
    assert_false(hps_host_charge(&one, UINT64_MAX));
    hps_host_discharge(&one, 600);
    assert_int_equal(hps_host_available(&budget), 600);
    atomic_store(&two.bytes_max, 300);
    assert_false(hps_host_charge(&two, 1)); /* has more than it may have now */
    assert_true(hps_host_charge(&one, 600));
    hps_host_discharge(&one, 600);
    hps_host_discharge(&two, 400);
    assert_int_equal(atomic_load(&budget.used_bytes), 0);
}

static void test_area_when_committed_and_discarded_then_reads_as_zeros_again(void **state)
{
    (void)state;
    struct hps_host_area area = {0};
    assert_true(hps_host_area_reserve(&area, ((size_t)64 << 20) + 1));
    assert_int_equal((uintptr_t)area.start % HPS_HOST_HUGE_BYTES, 0);
    assert_true(hps_host_area_commit(&area, 100000));
    assert_true(area.committed >= 100000);
    area.start[99999] = 7;
    area.start[0] = 8;
    assert_true(hps_host_area_commit(&area, 50)); /* has it already */
    assert_true(area.committed >= 100000);
    hps_host_area_discard(&area, 4096, 99999); /* only the whole pages between */
    assert_int_equal(area.start[99999], 7);
    hps_host_area_discard(&area, 0, area.committed);
    assert_int_equal(area.start[0], 0);
    assert_int_equal(area.start[99999], 0);
    hps_host_area_free(&area);
    hps_host_area_free(&area);
}

/* The rest is a promise of address space, not of memory: it is not there to be touched. */
static void test_area_when_reserved_then_costs_no_memory_before_it_is_committed(void **state)
{
    (void)state;
    struct hps_host_area area = {0};
    unsigned char resident[1];
    assert_true(hps_host_area_reserve(&area, (size_t)1 << 36));
    assert_true(hps_host_area_commit(&area, 4096));
    assert_int_equal(mincore(area.start, 4096, resident), 0);
    assert_int_equal(resident[0] & 1, 0);
    hps_host_area_free(&area);
    assert_false(hps_host_area_reserve(&area, (size_t)1 << 60));
}

static void test_advice_when_system_has_no_huge_pages_then_says_so(void **state)
{
    (void)state;
    struct hps_host_budget budget = {.huge = false};
    struct hps_host_area area = {0};
    const char *why = NULL;
    assert_true(hps_host_area_reserve(&area, 4 << 20));
    assert_false(hps_host_area_advise(&area, &budget, true));
    assert_false(hps_host_area_advise(&area, &budget, false));
    hps_host_area_free(&area);
    assert_true(hps_host_huge_pages(&why) || why != NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_charge_when_over_budget_or_own_limit_then_nothing_is_charged),
        cmocka_unit_test(test_area_when_committed_and_discarded_then_reads_as_zeros_again),
        cmocka_unit_test(test_area_when_reserved_then_costs_no_memory_before_it_is_committed),
        cmocka_unit_test(test_advice_when_system_has_no_huge_pages_then_says_so),
    };
    return cmocka_run_group_tests_name("host_pages", tests, NULL, NULL);
}

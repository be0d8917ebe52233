/* SPDX-License-Identifier: Apache-2.0
 *
 * Nothing leaves limbo while a reader that may have seen it is inside, and nobody waits.
 */
// clang-format off
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>
// clang-format on

#include "backends/host/limbo.h"

static void test_pop_when_reader_inside_then_nothing_until_it_leaves(void **state)
{
    (void)state;
    enum { N = 1000 };
    struct hps_epoch *epoch = hps_epoch_new();
    struct hps_host_limbo limbo;
    struct hps_host_gone gone = {0};
    assert_int_equal(hps_host_limbo_open(&limbo, epoch), HPS_OK);
    assert_false(hps_host_limbo_pop(&limbo, &gone));
    struct hps_epoch_slot *reader = hps_epoch_enter(epoch);
    for (uint32_t i = 0; i < N; i++) {
        gone = (struct hps_host_gone){.row = i, .slot = i * 3, .generation = 1};
        assert_true(hps_host_limbo_push(&limbo, &gone));
    }
    hps_host_limbo_seal(&limbo);
    assert_false(hps_host_limbo_pop(&limbo, &gone));
    hps_epoch_leave(epoch, reader);
    reader = hps_epoch_enter(epoch); /* came too late to have seen any */
    for (uint32_t i = 0; i < N; i++) {
        assert_true(hps_host_limbo_pop(&limbo, &gone));
        assert_int_equal(gone.row, i);
        assert_int_equal(gone.slot, i * 3);
    }
    assert_int_equal(limbo.n, 0);
    assert_false(hps_host_limbo_pop(&limbo, &gone));
    hps_epoch_leave(epoch, reader);
    hps_host_limbo_close(&limbo);
    hps_epoch_free(epoch);
}

static void test_pop_when_not_sealed_then_waits_for_a_full_block(void **state)
{
    (void)state;
    struct hps_epoch *epoch = hps_epoch_new();
    struct hps_host_limbo limbo;
    struct hps_host_gone gone = {.row = 5};
    assert_int_equal(hps_host_limbo_open(&limbo, epoch), HPS_OK);
    for (unsigned round = 0; round < 300; round++) { /* and blocks are used again */
        assert_true(hps_host_limbo_push(&limbo, &gone));
        assert_false(hps_host_limbo_pop(&limbo, &gone));
        hps_host_limbo_seal(&limbo);
        assert_true(hps_host_limbo_push(&limbo, &gone));
        assert_true(hps_host_limbo_pop(&limbo, &gone));
        hps_host_limbo_seal(&limbo);
        assert_true(hps_host_limbo_pop(&limbo, &gone));
        assert_int_equal(limbo.n, 0);
    }
    hps_host_limbo_close(&limbo);
    hps_epoch_free(epoch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pop_when_reader_inside_then_nothing_until_it_leaves),
        cmocka_unit_test(test_pop_when_not_sealed_then_waits_for_a_full_block),
    };
    return cmocka_run_group_tests_name("host_limbo", tests, NULL, NULL);
}

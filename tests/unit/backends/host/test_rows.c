/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows are charged in steps, keep their places, and are reused.
 */
// clang-format off
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>
// clang-format on

#include <string.h>

#include "backends/host/rows.h"

static struct hps_host_budget budget;
static struct hps_host_account account;

static void open_with(struct hps_host_rows *rows, uint64_t bytes_max, uint32_t row_bytes)
{
    budget = (struct hps_host_budget){.bytes_max = bytes_max};
    hps_host_account_init(&account, &budget);
    assert_int_equal(hps_host_rows_open(rows, &account, row_bytes, 0, 0), HPS_OK);
}

static void test_rows_when_grown_to_the_budget_then_charged_as_computed(void **state)
{
    (void)state;
    enum { N = 20000, ROW = 300 };
    struct hps_host_rows rows;
    open_with(&rows, hps_host_rows_bytes(ROW, 0, N), ROW);
    uint32_t n = 0;
    for (; n < N; n++) {
        if (hps_host_rows_ready(&rows) == 0) {
            assert_int_equal(hps_host_rows_grow(&rows), HPS_OK);
        }
        uint32_t row = hps_host_rows_take(&rows);
        assert_int_equal(row, n);
        memset(hps_host_row_at(&rows, row), (int)(n & 0xff), ROW);
    }
    while (hps_host_rows_ready(&rows) > 0) {
        (void)hps_host_rows_take(&rows);
    }
    assert_int_equal(hps_host_rows_grow(&rows), HPS_EXHAUSTED);
    assert_int_equal(hps_host_available(&budget), 0);
    for (uint32_t i = 0; i < N; i++) {
        const uint8_t *row = hps_host_row_at(&rows, i);
        assert_true(row[0] == (i & 0xff) && row[ROW - 1] == (i & 0xff));
    }
    hps_host_rows_clear(&rows);
    assert_int_equal(atomic_load(&account.used_bytes), 0);
    assert_int_equal(hps_host_rows_grow(&rows), HPS_OK);
    assert_int_equal(hps_host_rows_take(&rows), 0);
    assert_int_equal(hps_host_row_at(&rows, 0)[0], 0); /* a fresh page */
    hps_host_rows_close(&rows);
    assert_int_equal(atomic_load(&budget.used_bytes), 0);
}

static void test_take_when_rows_were_released_then_they_are_first(void **state)
{
    (void)state;
    struct hps_host_rows rows;
    open_with(&rows, 1 << 20, 8);
    assert_int_equal(hps_host_rows_grow(&rows), HPS_OK);
    uint64_t ready = hps_host_rows_ready(&rows);
    assert_int_equal(hps_host_rows_take(&rows), 0);
    assert_int_equal(hps_host_rows_take(&rows), 1);
    hps_host_rows_give(&rows, 0);
    hps_host_rows_give(&rows, 1);
    assert_int_equal(hps_host_rows_ready(&rows), ready);
    assert_int_equal(hps_host_rows_take(&rows), 1);
    assert_int_equal(hps_host_rows_take(&rows), 0);
    assert_int_equal(hps_host_rows_take(&rows), 2);
    hps_host_rows_close(&rows);
}

/* A row of 128 one-byte values takes 132 or 136 bytes, without padding. */
static void test_stride_when_rows_are_narrow_then_little_more_than_their_bytes(void **state)
{
    (void)state;
    static const uint32_t widths[][2] = {{1, 4},     {4, 4},     {9, 12},    {20, 20},
                                         {24, 24},   {64, 64},   {132, 132}, {136, 136},
                                         {255, 256}, {256, 256}, {260, 272}, {512, 512}};
    for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++) {
        struct hps_host_rows rows;
        open_with(&rows, 1 << 20, widths[i][0]);
        assert_int_equal(rows.stride, widths[i][1]);
        hps_host_rows_close(&rows);
    }
}

static void test_bytes_when_beyond_64_bits_then_the_maximum(void **state)
{
    (void)state;
    assert_true(hps_host_rows_bytes(512, 0, UINT64_MAX) == UINT64_MAX);
    assert_int_equal(hps_host_rows_bytes(512, 0, 0), 0);
    assert_int_equal(hps_host_rows_bytes(1 << 20, 0, 3), 3 << 20);
}

/* Each table could use the full budget; together they need more addresses than a process has. */
static void test_rows_when_many_tables_share_a_large_budget_then_all_have_addresses(void **state)
{
    (void)state;
#ifdef HPS_TSAN
    skip(); /* TSan needs most addresses itself */
#endif
    enum { N_TABLES = 3000, ROW = 64, N_ROWS = 100 << 20 };
    static struct hps_host_rows rows[N_TABLES];
    budget = (struct hps_host_budget){.bytes_max = UINT64_C(64) << 30};
    hps_host_account_init(&account, &budget);
    for (unsigned i = 0; i < N_TABLES; i++) {
        uint64_t n_rows = i == N_TABLES - 1 ? N_ROWS : 1000;
        assert_int_equal(hps_host_rows_open(&rows[i], &account, ROW, 0, n_rows), HPS_OK);
        assert_true(rows[i].area.bytes >= UINT64_C(1) << 30);
    }
    assert_true(rows[0].area.bytes >= budget.bytes_max);
    assert_true(rows[N_TABLES - 1].n_max >= UINT64_C(4) * N_ROWS);
    for (unsigned i = 0; i < N_TABLES; i++) {
        hps_host_rows_close(&rows[i]);
    }
    assert_int_equal(atomic_load(&budget.reserved_bytes), 0);
}

/* The last huge page must be small compared with all pages. A cleared table starts small again
 * and reports that. */
static void test_huge_bytes_when_rows_grow_and_are_cleared_then_little_more_than_rows(void **state)
{
    (void)state;
    struct hps_host_rows rows;
    open_with(&rows, 64 << 20, 512);
    budget.huge = true;
    for (unsigned round = 0; round < 2; round++) {
        while (rows.n_paid * 512 < 40 << 20) {
            assert_int_equal(hps_host_rows_grow(&rows), HPS_OK);
            uint64_t used = atomic_load(&account.used_bytes);
            assert_true(atomic_load(&account.huge_bytes) <= used + used / 8);
        }
        assert_true(atomic_load(&account.huge_bytes) >= 40 << 20);
        hps_host_rows_clear(&rows);
        assert_int_equal(atomic_load(&account.huge_bytes), 0);
    }
    hps_host_rows_close(&rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_when_grown_to_the_budget_then_charged_as_computed),
        cmocka_unit_test(test_take_when_rows_were_released_then_they_are_first),
        cmocka_unit_test(test_rows_when_many_tables_share_a_large_budget_then_all_have_addresses),
        cmocka_unit_test(test_huge_bytes_when_rows_grow_and_are_cleared_then_little_more_than_rows),
        cmocka_unit_test(test_stride_when_rows_are_narrow_then_little_more_than_their_bytes),
        cmocka_unit_test(test_bytes_when_beyond_64_bits_then_the_maximum),
    };
    return cmocka_run_group_tests_name("host_rows", tests, NULL, NULL);
}

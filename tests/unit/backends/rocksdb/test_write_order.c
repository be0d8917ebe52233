/* SPDX-License-Identifier: Apache-2.0
 *
 * The rows of a batch in the order of their keys: nothing lost, and of a key given twice the last
 * one last, in batches of several tables and of more rows than a piece has.
 */
// clang-format off
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>
// clang-format on

#include <string.h>

#include "backends/rocksdb/write_order.h"
#include "base/heap.h"

enum { PIECE = 1 << 16, N_MAX = 3 * PIECE };

struct given {
    const struct hps_table *table;
    hps_key key;
    const uint8_t *row;
};

struct sink {
    struct given *rows;
    uint32_t n;
};

static void take(void *ctx, const struct hps_table *table, hps_key key, const uint8_t *row)
{
    struct sink *sink = ctx;
    assert_true(sink->n < N_MAX);
    sink->rows[sink->n++] = (struct given){table, key, row};
}

static struct sink sink_of(const struct hps_write *writes, uint32_t n_writes)
{
    struct sink sink = {.rows = hps_calloc(N_MAX, sizeof(*sink.rows))};
    assert_non_null(sink.rows);
    assert_int_equal(hps_write_order(writes, n_writes, take, &sink), HPS_OK);
    return sink;
}

static void test_order_when_no_rows_then_nothing(void **state)
{
    (void)state;
    const struct hps_table table = {.id = 1, .row_bytes = 1};
    const struct hps_write none = {.table = &table};
    struct sink sink = sink_of(&none, 1);
    assert_int_equal(sink.n, 0);
    hps_free(sink.rows);
    sink = sink_of(NULL, 0);
    assert_int_equal(sink.n, 0);
    hps_free(sink.rows);
}

static void test_order_when_tables_mix_then_by_table_and_key_with_each_its_row(void **state)
{
    (void)state;
    const struct hps_table a = {.id = 2, .row_bytes = 1};
    const struct hps_table b = {.id = 7, .row_bytes = 2};
    const hps_key first[] = {9, UINT64_MAX, 3}, second[] = {5, 4}, third[] = {8, 1};
    const uint8_t rows[] = {10, 11, 12}, wide[] = {20, 21, 22, 23};
    const struct hps_write writes[] = {
        {&b, second, wide, 2}, {&a, first, rows, 3}, {&b, third, NULL, 2}};
    const struct given expected[] = {
        {&a, 3, &rows[2]}, {&a, 9, &rows[0]}, {&a, UINT64_MAX, &rows[1]},
        {&b, 1, NULL},     {&b, 4, &wide[2]}, {&b, 5, &wide[0]},
        {&b, 8, NULL}};
    struct sink sink = sink_of(writes, 3);
    assert_int_equal(sink.n, 7);
    for (uint32_t i = 0; i < sink.n; i++) {
        assert_ptr_equal(sink.rows[i].table, expected[i].table);
        assert_true(sink.rows[i].key == expected[i].key);
        assert_ptr_equal(sink.rows[i].row, expected[i].row);
    }
    hps_free(sink.rows);
}

/* A store applies them one after the other: the last one stays. */
static void test_order_when_a_key_comes_often_then_its_last_write_is_last(void **state)
{
    (void)state;
    enum { N_KEYS = 700 };
    const struct hps_table table = {.id = 1, .row_bytes = 1};
    hps_key *keys = hps_calloc(N_MAX, sizeof(*keys));
    uint8_t *rows = hps_calloc(N_MAX, 1);
    const uint8_t *last[N_KEYS];
    assert_non_null(keys);
    assert_non_null(rows);
    for (uint32_t i = 0; i < N_MAX; i++) {
        keys[i] = (hps_key)i * 7919 % N_KEYS;
    }
    const struct hps_write writes[] = {
        {&table, keys, rows, PIECE / 2},
        {&table, keys + PIECE / 2, rows + PIECE / 2, PIECE},
        {&table, keys + PIECE / 2 + PIECE, rows + PIECE / 2 + PIECE, N_MAX - PIECE / 2 - PIECE}};
    struct sink sink = sink_of(writes, 3);
    assert_int_equal(sink.n, N_MAX);
    memset(last, 0, sizeof(last));
    uint8_t *seen = hps_calloc(N_MAX, 1);
    assert_non_null(seen);
    for (uint32_t i = 0; i < N_MAX; i++) {
        const struct given *one = &sink.rows[i];
        assert_true(keys[one->row - rows] == one->key);
        assert_false(seen[one->row - rows]);
        seen[one->row - rows] = 1;
        assert_true(last[one->key] == NULL || last[one->key] < one->row);
        last[one->key] = one->row;
        assert_true(i % PIECE == 0 || sink.rows[i - 1].key <= one->key);
    }
    hps_free(seen);
    hps_free(sink.rows);
    hps_free(rows);
    hps_free(keys);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_when_no_rows_then_nothing),
        cmocka_unit_test(test_order_when_tables_mix_then_by_table_and_key_with_each_its_row),
        cmocka_unit_test(test_order_when_a_key_comes_often_then_its_last_write_is_last),
    };
    return cmocka_run_group_tests_name("write_order", tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Stores with limits (backends/store_limits.h): reservations, evictions, and that each evicted
 * row is counted once.
 */
#include "tests/contract/store_contract_internal.h"

#include "backends/store_limits.h"

enum { N_ROWS = 1000, FULL_KEYS = 8192 };

static void test_reserve_when_memory_suffices_then_rows_fit(void **state)
{
    (void)state;
    struct hps_store *store = contract_open();
    struct hps_table table = contract_tables[0];
    table.n_rows = N_ROWS;
    struct hps_space *space = contract_space_open_tables(store, 1, &table, 1);
    assert_int_equal(store->ops->limits->reserve(space, &table, NULL, 0, &contract_error), HPS_OK);
    for (hps_key key = 0; key < N_ROWS; key++) {
        assert_int_equal(contract_put(space, &table, key, 0), HPS_OK);
    }
    assert_int_equal(store->ops->limits->evictions_take(space, &table), 0);
    contract_drop(space);
    store->ops->close(store);
}

static void test_reserve_when_over_budget_then_no_change(void **state)
{
    (void)state;
    struct hps_store *store = contract_open_bytes(1 << 20);
    struct hps_table table = contract_tables[0];
    table.n_rows = UINT64_C(1) << 32;
    struct hps_space *space = contract_space_open_tables(store, 1, &table, 1);
    assert_int_equal(store->ops->limits->reserve(space, &table, NULL, 0, &contract_error),
                     HPS_EXHAUSTED);
    assert_int_equal(contract_put(space, &table, 1, 0), HPS_OK);
    assert_true(contract_has(space, &table, 1, 0));
    contract_drop(space);
    store->ops->close(store);
}

/* Insert a row like an asynchronous insertion, which may evict other rows. Updates may not. */
static void insert(struct hps_space *space, const struct hps_table *table, hps_key key)
{
    static const uint32_t slot = 0;
    uint8_t row[512];
    struct hps_insert_report report;
    store_contract_fill(row, table->row_bytes, key, 0);
    assert_int_equal(space->store->ops->insert(space, &contract_no_limit, table, &key, &slot, row,
                                               1, NULL, &report),
                     HPS_OK);
    assert_int_equal(report.n_inserted, 1);
}

static void test_rows_when_there_are_too_many_then_each_evicted_one_is_counted_once(void **state)
{
    (void)state;
    struct hps_store *store = contract_open_bytes(1 << 20);
    if ((store->ops->caps & HPS_STORE_KEEPS) != 0) { /* it refuses new rows instead */
        store->ops->close(store);
        skip();
    }
    const struct hps_table *table = &contract_tables[2];
    struct hps_space *space = contract_space_open(store, 1);
    uint64_t n_left = 0;
    for (hps_key key = 0; key < FULL_KEYS; key++) {
        insert(space, table, contract_mix(key)); /* rows of a range would not be evicted */
    }
    assert_true(atomic_load(&space->incomplete));
    for (hps_key key = 0; key < FULL_KEYS; key++) {
        n_left += contract_has(space, table, contract_mix(key), 0) ? 1 : 0;
    }
    assert_true(n_left > 0);
    assert_true(n_left < FULL_KEYS);
    assert_int_equal(store->ops->limits->evictions_take(space, table), FULL_KEYS - n_left);
    assert_int_equal(store->ops->limits->evictions_take(space, table), 0);
    contract_drop(space);
    store->ops->close(store);
}

static void test_active_when_it_changes_then_rows_stay(void **state)
{
    (void)state;
    struct hps_store *store = contract_open();
    struct hps_space *space = contract_space_open(store, 1);
    assert_int_equal(contract_put(space, &contract_tables[0], 1, 0), HPS_OK);
    store->ops->limits->space_active(space, true);
    assert_true(contract_has(space, &contract_tables[0], 1, 0));
    store->ops->limits->space_active(space, false);
    assert_true(contract_has(space, &contract_tables[0], 1, 0));
    contract_drop(space);
    store->ops->close(store);
}

int contract_limits_run(const char *name)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_reserve_when_memory_suffices_then_rows_fit, contract_clean),
        cmocka_unit_test_teardown(test_reserve_when_over_budget_then_no_change, contract_clean),
        cmocka_unit_test_teardown(
            test_rows_when_there_are_too_many_then_each_evicted_one_is_counted_once,
            contract_clean),
        cmocka_unit_test_teardown(test_active_when_it_changes_then_rows_stay, contract_clean),
    };
    return cmocka_run_group_tests_name(name, tests, NULL, NULL);
}

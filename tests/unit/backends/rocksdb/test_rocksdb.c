/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening and closing the store: what was written is there again, read-only, one process at a time.
 */
#include "backends/store_durable.h"
#include "tests/unit/backends/rocksdb/rocksdb_test.h"

static void test_open_when_closed_before_then_rows_and_records_are_there(void **state)
{
    (void)state;
    struct hps_store *store = open_store();
    struct hps_space *space = open_space(store);
    load(space, 5000);
    assert_int_equal(put(space, 7000), HPS_OK);
    hps_key gone = 11;
    assert_int_equal(store->ops->erase(space, &no_limit, &table, &gone, 1), HPS_OK);
    assert_int_equal(store->ops->durable->record_put(store, "k", 1, "v", 1, &error), HPS_OK);
    store->ops->space_close(space);
    store->ops->close(store);
    for (unsigned round = 0; round < 2; round++) { /* then once read-only */
        assert_int_equal(try_open(round == 1, &store), HPS_OK);
        space = open_space(store);
        assert_true(has(space, 0));
        assert_true(has(space, 4999));
        assert_true(has(space, 7000));
        assert_false(has(space, 11));
        assert_false(has(space, 5000));
        store->ops->space_close(space);
        store->ops->close(store);
    }
}

static void test_open_when_read_only_then_writes_are_refused(void **state)
{
    (void)state;
    struct hps_store *store = NULL;
    assert_int_equal(try_open(true, &store), HPS_NOT_FOUND);
    store = open_store();
    struct hps_space *space = open_space(store);
    load(space, 10);
    store->ops->space_close(space);
    store->ops->close(store);
    assert_int_equal(try_open(true, &store), HPS_OK);
    space = open_space(store);
    struct hps_space *other = NULL;
    struct hps_store_load *rows = NULL;
    assert_int_equal(space_open(store, "m", 2, &other), HPS_PRECONDITION);
    assert_int_equal(put(space, 1), HPS_PRECONDITION);
    assert_int_equal(store->ops->bulk->begin(space, 0, 0, &rows, &error), HPS_PRECONDITION);
    assert_int_equal(store->ops->durable->record_put(store, "k", 1, "v", 1, &error),
                     HPS_PRECONDITION);
    assert_int_equal(store->ops->durable->record_delete(store, "k", 1, &error), HPS_PRECONDITION);
    assert_int_equal(store->ops->space_drop(space, &error), HPS_PRECONDITION);
    space = open_space(store); /* a drop that fails gives the handle back all the same */
    assert_true(has(space, 9));
    store->ops->space_close(space);
    store->ops->close(store);
}

static void test_open_when_open_elsewhere_then_busy(void **state)
{
    (void)state;
    struct hps_store *store = open_store();
    struct hps_store *other = NULL;
    assert_int_equal(try_open(false, &other), HPS_BUSY);
    assert_int_equal(try_open(true, &other), HPS_BUSY);
    assert_null(other);
    store->ops->close(store);
    store = open_store();
    store->ops->close(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            test_open_when_closed_before_then_rows_and_records_are_there, setup, teardown),
        cmocka_unit_test_setup_teardown(test_open_when_read_only_then_writes_are_refused, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_open_when_open_elsewhere_then_busy, setup, teardown),
    };
    return cmocka_run_group_tests_name("rocksdb", tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * A version with damage in its files: it is noticed, remembered over restarts, and can be unloaded.
 */
#include "backends/store_durable.h"
#include "tests/unit/backends/rocksdb/rocksdb_test.h"

static hps_status put_many(struct hps_space *space, unsigned n)
{
    hps_status status = HPS_OK;
    for (unsigned i = 0; i < n && status == HPS_OK; i++) {
        status = put(space, (hps_key)i * 7 % 2000);
    }
    return status;
}

/* All writing stops where a compaction meets damage: after a restart it goes on, so that the
 * damaged version can be replaced. */
static void test_compaction_when_a_version_is_damaged_then_it_can_be_unloaded(void **state)
{
    (void)state;
    struct hps_store *store = open_store();
    struct hps_space *space = open_space(store);
    assert_int_equal(put_many(space, 3000), HPS_OK);
    store->ops->space_close(space);
    store->ops->close(store);
    assert_true(damage_files() > 0);
    store = open_store();
    space = open_space(store);
    struct hps_space *other = NULL;
    assert_int_equal(put_many(space, 100000), HPS_DATA_LOSS);
    assert_int_equal(space_open(store, "m", 2, &other), HPS_OK);
    assert_int_equal(put(other, 1), HPS_DATA_LOSS);
    assert_non_null(store->ops->durable->writes_refused(store));
    store->ops->space_close(other);
    store->ops->space_close(space);
    store->ops->close(store);
    for (unsigned round = 0; round < 2; round++) {
        store = open_store();
        space = open_space(store);
        assert_int_equal(space_open(store, "m", 2, &other), HPS_OK);
        assert_int_equal(put_many(space, 3000), HPS_OK);
        assert_int_equal(put_many(other, 3000), HPS_OK);
        assert_int_equal(store->ops->durable->record_put(store, "k", 1, "v", 1, &error), HPS_OK);
        assert_null(store->ops->durable->writes_refused(store));
        if (round == 0) {
            assert_int_equal(access(below("hpsd.damaged"), F_OK), 0);
            store->ops->space_close(space);
        } else {
            assert_int_equal(store->ops->space_drop(space, &error), HPS_OK);
        }
        store->ops->space_close(other);
        store->ops->close(store);
    }
    assert_int_equal(access(below("hpsd.damaged"), F_OK), -1);
    store = open_store();
    assert_int_equal(space_open(store, "m", 2, &other), HPS_OK);
    assert_true(has(other, 1999));
    store->ops->space_close(other);
    store->ops->close(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            test_compaction_when_a_version_is_damaged_then_it_can_be_unloaded, setup, teardown),
    };
    return cmocka_run_group_tests_name("rocksdb_damaged", tests, NULL, NULL);
}

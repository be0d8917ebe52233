/* SPDX-License-Identifier: Apache-2.0
 *
 * Names of spaces, and a drop that fails.
 */
#include "backends/store_durable.h"
#include "tests/unit/backends/rocksdb/rocksdb_test.h"

#include <errno.h>

static void test_space_when_name_is_illegal_then_invalid(void **state)
{
    (void)state;
    static const char *const names[] = {"", "a@b", "a/b", "..", "a b", "\xc3\xa9"};
    struct hps_store *store = open_store();
    struct hps_space *space = NULL;
    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        assert_int_equal(space_open(store, names[i], 1, &space), HPS_INVALID);
    }
    char name[122];
    memset(name, 'x', 121);
    name[121] = '\0';
    assert_int_equal(space_open(store, name, 1, &space), HPS_INVALID);
    name[120] = '\0';
    assert_int_equal(space_open(store, "m", -1, &space), HPS_INVALID);
    assert_int_equal(space_open(store, name, INT64_MAX, &space), HPS_OK);
    assert_int_equal(store->ops->space_drop(space, &error), HPS_OK);
    store->ops->close(store);
}

/* A version of the same number, loaded before the next start, must see nothing of the old one: not
 * its positions either, which are no rows. */
static void test_drop_when_the_disk_has_no_room_then_a_new_space_begins_empty(void **state)
{
    (void)state;
    if (mount("tmpfs", dir, "tmpfs", 0, "size=96m") != 0) {
        print_message("SKIPPED: cannot mount a small tmpfs: %s\n", strerror(errno));
        skip();
    }
    struct hps_store *store = open_store();
    struct hps_space *space = open_space(store);
    const struct hps_record record = {"p", 1, "7", 1};
    uint64_t position_there = 0;
    assert_int_equal(store->ops->durable->apply(space, &no_limit, NULL, 0, &record, 1, &error),
                     HPS_OK);
    assert_int_equal(unlink(below("hpsd.ballast")), 0); /* else a drop finds room in any case */
    fill_from_outside();
    assert_int_equal(store->ops->space_drop(space, &error), HPS_EXHAUSTED);
    assert_int_equal(unlink(below("others")), 0);
    space = open_space(store);
    load(space, 10);
    assert_int_equal(
        store->ops->durable->space_record_scan(space, read_position, &position_there, &error),
        HPS_OK);
    assert_int_equal(position_there, 0);
    store->ops->space_close(space);
    store->ops->close(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_space_when_name_is_illegal_then_invalid, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(
            test_drop_when_the_disk_has_no_room_then_a_new_space_begins_empty, setup, teardown),
    };
    return cmocka_run_group_tests_name("rocksdb_spaces", tests, NULL, NULL);
}

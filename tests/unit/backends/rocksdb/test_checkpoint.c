/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies of the store, linked and on another disk.
 */
#include "backends/store_durable.h"
#include "tests/unit/backends/rocksdb/rocksdb_test.h"

/* Files of rows below `at` that another directory holds too. */
static unsigned linked_files(const char *at)
{
    unsigned n = 0;
    DIR *listing = opendir(at);
    assert_non_null(listing);
    for (struct dirent *entry = readdir(listing); entry != NULL; entry = readdir(listing)) {
        char name[1100];
        struct stat info;
        (void)snprintf(name, sizeof(name), "%s/%s", at, entry->d_name);
        n += strstr(name, ".sst") != NULL && stat(name, &info) == 0 && info.st_nlink > 1;
    }
    closedir(listing);
    return n;
}

static void test_checkpoint_when_opened_then_holds_what_was_there(void **state)
{
    (void)state;
    struct hps_store *store = open_store();
    struct hps_space *space = open_space(store);
    const struct hps_record record = {"p", 1, "7", 1};
    char target[HPS_TMPDIR_PATH_MAX + 8];
    (void)snprintf(target, sizeof(target), "%s/copy", dir);
    load(space, 3000);
    assert_int_equal(put(space, 5000), HPS_OK);
    assert_int_equal(store->ops->durable->apply(space, &no_limit, NULL, 0, &record, 1, &error),
                     HPS_OK);
    assert_int_equal(store->ops->durable->checkpoint(store, target, &error), HPS_OK);
    assert_int_equal(store->ops->durable->checkpoint(store, target, &error), HPS_EXISTS);
    assert_true(linked_files(below("copy/hpsd")) > 0);
    assert_int_equal(put(space, 6000), HPS_OK); /* is later than the copy */
    assert_int_equal(store->ops->space_drop(space, &error), HPS_OK);
    struct hps_rocksdb_options options = options_of(false);
    options.path = target;
    struct hps_store *copy = NULL;
    assert_int_equal(hps_rocksdb_open(&options, &copy, &error), HPS_OK);
    space = open_space(copy);
    uint64_t position_there = 0;
    assert_true(has(space, 0));
    assert_true(has(space, 2999));
    assert_true(has(space, 5000));
    assert_false(has(space, 6000));
    assert_int_equal(
        copy->ops->durable->space_record_scan(space, read_position, &position_there, &error),
        HPS_OK);
    assert_int_equal(position_there, '7');
    copy->ops->space_close(space);
    copy->ops->close(copy);
    store->ops->close(store);
}

static void test_checkpoint_when_read_only_or_on_another_full_disk_then_refused(void **state)
{
    (void)state;
    struct hps_store *store = open_store();
    struct hps_space *space = open_space(store);
    load(space, 5000);
    assert_int_equal(mkdir(below("other"), 0700), 0);
    char target[HPS_TMPDIR_PATH_MAX + 8];
    (void)snprintf(target, sizeof(target), "%s/other", dir);
    bool mounted = mount("tmpfs", target, "tmpfs", 0, "size=1m") == 0;
    if (mounted) {
        assert_int_equal(store->ops->durable->checkpoint(store, target, &error), HPS_EXHAUSTED);
        assert_non_null(strstr(error.text, "needed"));
        assert_int_equal(umount2(target, MNT_DETACH), 0);
        assert_int_equal(mount("tmpfs", target, "tmpfs", 0, "size=32m"), 0);
        assert_int_equal(store->ops->durable->checkpoint(store, target, &error), HPS_OK);
        assert_int_equal(linked_files(below("other/hpsd")), 0); /* copies */
        assert_int_equal(umount2(target, MNT_DETACH), 0);
    }
    store->ops->space_close(space);
    store->ops->close(store);
    assert_int_equal(try_open(true, &store), HPS_OK);
    assert_int_equal(store->ops->durable->checkpoint(store, target, &error), HPS_PRECONDITION);
    store->ops->close(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_checkpoint_when_opened_then_holds_what_was_there,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_checkpoint_when_read_only_or_on_another_full_disk_then_refused, setup, teardown),
    };
    return cmocka_run_group_tests_name("rocksdb_checkpoint", tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * RocksDB's write-ahead log: old logs do not accumulate.
 */
#include "backends/rocksdb/internal.h"
#include "backends/store_durable.h"
#include "tests/unit/backends/rocksdb/rocksdb_test.h"

/* Number of files in the database with this suffix. */
static unsigned count_files(const char *suffix)
{
    unsigned n = 0;
    DIR *listing = opendir(below("hpsd"));
    assert_non_null(listing);
    for (struct dirent *entry = readdir(listing); entry != NULL; entry = readdir(listing)) {
        const char *found = strstr(entry->d_name, suffix);
        n += found != NULL && found[strlen(suffix)] == '\0';
    }
    closedir(listing);
    return n;
}

static void test_open_when_repeated_then_logs_do_not_accumulate(void **state)
{
    (void)state;
    struct hps_store *store = open_store();
    struct hps_space *space = open_space(store);
    assert_int_equal(put(space, 1), HPS_OK);
    assert_int_equal(store->ops->durable->record_put(store, "k", 1, "v", 1, &error), HPS_OK);
    unsigned n_max = 0;
    for (unsigned i = 0; i < 60; i++) {
        store->ops->space_close(space);
        store->ops->close(store);
        store = open_store();
        space = open_space(store);
        unsigned n = count_files(".log");
        n_max = n > n_max ? n : n_max;
    }
    assert_in_range(n_max, 2, 20);
    assert_in_range(count_files(".sst"), 1, 30);
    assert_true(has(space, 1));
    store->ops->space_close(space);
    store->ops->close(store);
}

/* RocksDB calls the listener before it refuses writes, so a successful write in between proves
 * nothing. */
static void test_error_when_it_is_permanent_then_a_successful_write_does_not_end_it(void **state)
{
    (void)state;
    struct hps_store *store = open_store();
    struct hps_space *space = open_space(store);
    const struct hps_rocksdb_event fatal = {.kind = HPS_ROCKSDB_ERROR,
                                            .reason = 0,
                                            .code = HPS_ROCKSDB_CODE_IO_ERROR,
                                            .severity = HPS_ROCKSDB_SEVERITY_FATAL,
                                            .text = "IO error: made up"};
    assert_null(store->ops->durable->writes_refused(store));
    hps_rocksdb_health_event(store, &fatal);
    assert_int_equal(put(space, 1), HPS_OK);
    assert_int_equal(store->ops->durable->record_put(store, "k", 1, "v", 1, &error), HPS_OK);
    assert_non_null(store->ops->durable->writes_refused(store));
    assert_false(hps_rocksdb_takes_writes((struct hps_rocksdb *)store));
    store->ops->space_close(space);
    store->ops->close(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_open_when_repeated_then_logs_do_not_accumulate, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(
            test_error_when_it_is_permanent_then_a_successful_write_does_not_end_it, setup,
            teardown),
    };
    return cmocka_run_group_tests_name("rocksdb_wal", tests, NULL, NULL);
}

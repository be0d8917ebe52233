/* SPDX-License-Identifier: Apache-2.0
 *
 * Which directories the store accepts, and whether their files match the database.
 */
#include "tests/unit/backends/rocksdb/rocksdb_test.h"

#include <rocksdb/c.h>

/* Sum of names, sizes and times of all files below hpsd. */
static uint64_t directory_sum(void)
{
    uint64_t sum = 0;
    DIR *listing = opendir(below("hpsd"));
    assert_non_null(listing);
    for (struct dirent *entry = readdir(listing); entry != NULL; entry = readdir(listing)) {
        char name[300];
        struct stat info;
        if (strcmp(entry->d_name, "..") == 0) {
            continue; /* its time changes with the lock file */
        }
        (void)snprintf(name, sizeof(name), "hpsd/%s", entry->d_name);
        assert_int_equal(stat(below(name), &info), 0);
        for (const char *c = entry->d_name; *c != '\0'; c++) {
            sum = sum * 31 + (uint64_t)*c;
        }
        sum +=
            (uint64_t)info.st_size + (uint64_t)info.st_mtim.tv_nsec + (uint64_t)info.st_mtim.tv_sec;
    }
    closedir(listing);
    return sum;
}

/* Write into the default family like another program or a later build. */
static void raw_put(const char *path, const char *key, const char *value)
{
    char *text = NULL;
    rocksdb_options_t *options = rocksdb_options_create();
    rocksdb_options_set_create_if_missing(options, 1);
    const char *names[2] = {"default", "catalog"};
    const rocksdb_options_t *each[2] = {options, options};
    rocksdb_column_family_handle_t *handles[2] = {NULL, NULL};
    rocksdb_t *db = access(path, F_OK) == 0 ? rocksdb_open_column_families(options, path, 2, names,
                                                                           each, handles, &text)
                                            : rocksdb_open(options, path, &text);
    if (text != NULL) {
        fail_msg("raw open: %s", text);
    }
    rocksdb_writeoptions_t *write = rocksdb_writeoptions_create();
    rocksdb_put(db, write, key, strlen(key), value, strlen(value), &text);
    assert_null(text);
    for (unsigned i = 0; i < 2; i++) {
        if (handles[i] != NULL) {
            rocksdb_column_family_handle_destroy(handles[i]);
        }
    }
    rocksdb_writeoptions_destroy(write);
    rocksdb_close(db);
    rocksdb_options_destroy(options);
}

/* ---- accepted directories -------------------------------------------------------------------- */

static void test_open_when_format_is_newer_then_refused_and_untouched(void **state)
{
    (void)state;
    struct hps_store *store = open_store();
    store->ops->close(store);
    raw_put(below("hpsd"), "hpsd.format", "4");
    uint64_t before = directory_sum();
    assert_int_equal(try_open(false, &store), HPS_NEWER_FORMAT);
    assert_int_equal(try_open(true, &store), HPS_NEWER_FORMAT);
    assert_true(directory_sum() == before);
    raw_put(below("hpsd"), "hpsd.format", "one");
    assert_int_equal(try_open(false, &store), HPS_DATA_LOSS);
}

/* The format record, read like any program could. The store must be closed. */
static char format_of(void)
{
    char *text = NULL;
    size_t size = 0;
    rocksdb_options_t *options = rocksdb_options_create();
    rocksdb_readoptions_t *read = rocksdb_readoptions_create();
    rocksdb_t *db = rocksdb_open_for_read_only(options, below("hpsd"), 0, &text);
    assert_null(text);
    char *value = rocksdb_get(db, read, "hpsd.format", 11, &size, &text);
    assert_null(text);
    assert_int_equal(size, 1);
    char format = value[0];
    rocksdb_free(value);
    rocksdb_close(db);
    rocksdb_readoptions_destroy(read);
    rocksdb_options_destroy(options);
    return format;
}

/* Make or open a space with one table of this type. */
static void space_of_type(enum hps_dtype dtype, int64_t version)
{
    const struct hps_table one = {.name = "t",
                                  .dim = 8,
                                  .dtype = dtype,
                                  .row_bytes = (uint32_t)hps_dtype_row_bytes(dtype, 8)};
    const struct hps_space_id id = {
        .model = "m", .version = version, .tables = &one, .n_tables = 1};
    struct hps_store *store = open_store();
    struct hps_space *space = NULL;
    assert_int_equal(store->ops->space_open(store, &id, &space, &error), HPS_OK);
    store->ops->space_close(space);
    store->ops->close(store);
}

static void test_format_when_rows_are_int8_then_raised_and_stays(void **state)
{
    (void)state;
    space_of_type(HPS_DTYPE_FP32, 1);
    space_of_type(HPS_DTYPE_FP16, 2);
    space_of_type(HPS_DTYPE_BF16, 3);
    assert_int_equal(format_of(), '1');
    space_of_type(HPS_DTYPE_INT8_ROWWISE_F16, 4);
    assert_int_equal(format_of(), '2');
    space_of_type(HPS_DTYPE_INT8_ROWWISE_F16, 4); /* opened again */
    space_of_type(HPS_DTYPE_FP32, 1);
    assert_int_equal(format_of(), '2');
}

static void test_open_when_database_is_foreign_then_refused_and_untouched(void **state)
{
    (void)state;
    raw_put(below("hpsd"), "something", "else");
    uint64_t before = directory_sum();
    struct hps_store *store = NULL;
    assert_int_equal(try_open(false, &store), HPS_PRECONDITION);
    assert_non_null(strstr(error.text, "is not a database of hpsd"));
    assert_true(directory_sum() == before);
}

static void test_open_when_directory_holds_other_files_then_refused(void **state)
{
    (void)state;
    assert_int_equal(mkdir(below("hpsd"), 0700), 0);
    struct hps_store *store = open_store(); /* an empty directory is accepted */
    store->ops->close(store);
    hps_tmpdir_remove(&own, "hpsd");
    assert_int_equal(mkdir(below("hpsd"), 0700), 0);
    int fd = open(below("hpsd/notes.txt"), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(try_open(false, &store), HPS_PRECONDITION);
    assert_int_equal(access(below("hpsd/notes.txt"), F_OK), 0);
}

static void test_open_when_creation_was_cut_short_then_created_again(void **state)
{
    (void)state;
    assert_int_equal(mkdir(below("hpsd.new"), 0700), 0);
    int fd = open(below("hpsd.new/MANIFEST-000001"), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    close(fd);
    struct hps_store *store = open_store();
    store->ops->close(store);
    assert_int_equal(access(below("hpsd.new"), F_OK), -1);
}

/* ---- files ----------------------------------------------------------------------------------- */

/* Cut the file of rows to `keep` thousandths of its size. */
static void cut_files(unsigned keep)
{
    DIR *listing = opendir(below("hpsd"));
    assert_non_null(listing);
    for (struct dirent *entry = readdir(listing); entry != NULL; entry = readdir(listing)) {
        char name[300];
        struct stat info;
        (void)snprintf(name, sizeof(name), "hpsd/%s", entry->d_name);
        if (strstr(name, ".sst") != NULL && stat(below(name), &info) == 0 &&
            info.st_size > 100000) { /* a file of rows, not of the database itself */
            assert_int_equal(truncate(below(name), info.st_size * (off_t)keep / 1000), 0);
        }
    }
    closedir(listing);
}

static void test_open_when_a_file_is_cut_short_then_data_loss_in_every_mode(void **state)
{
    (void)state;
    static const unsigned keeps[] = {999, 700, 300, 0};
    struct hps_store *store = open_store();
    struct hps_space *space = open_space(store);
    load(space, 5000);
    store->ops->space_close(space);
    store->ops->close(store);
    for (unsigned k = 0; k < sizeof(keeps) / sizeof(keeps[0]); k++) {
        cut_files(keeps[k]);
        for (unsigned m = 0; m < sizeof(modes) / sizeof(modes[0]); m++) {
            assert_int_equal(open_mode(modes[m], &store), HPS_DATA_LOSS);
            assert_non_null(strstr(error.text, ".sst"));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_format_when_rows_are_int8_then_raised_and_stays, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_open_when_format_is_newer_then_refused_and_untouched,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_open_when_database_is_foreign_then_refused_and_untouched, setup, teardown),
        cmocka_unit_test_setup_teardown(test_open_when_directory_holds_other_files_then_refused,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_open_when_creation_was_cut_short_then_created_again,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_open_when_a_file_is_cut_short_then_data_loss_in_every_mode, setup, teardown),
    };
    return cmocka_run_group_tests_name("rocksdb_database", tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * A crash in the middle of a load, and the files of a load. The program runs itself to be the
 * process that crashes.
 */
#include "tests/unit/backends/rocksdb/rocksdb_test.h"

#include <spawn.h>
#include <sys/wait.h>

#include "base/heap.h"

enum { CRASHED = 42 };

/* What the child does: end in the middle of a load, as by a crash. */
static int load_and_crash(const char *path)
{
    struct hps_store *store = NULL;
    struct hps_space *space = NULL;
    struct hps_store_load *rows = NULL;
    (void)snprintf(dir, HPS_TMPDIR_PATH_MAX, "%s", path);
    bool good = try_open(false, &store) == HPS_OK && space_open(store, "m", 1, &space) == HPS_OK &&
                store->ops->bulk->begin(space, 0, 0, &rows, &error) == HPS_OK &&
                load_rows(store, rows, 0, 2000) == HPS_OK;
    _exit(good ? CRASHED : 1);
}

/* In a program of its own: RocksDB has threads here, and a fork would copy only this one. */
static void crash_in_load(void)
{
    char self[] = "/proc/self/exe";
    char *const arguments[] = {self, dir, NULL};
    pid_t child = 0;
    assert_int_equal(posix_spawn(&child, self, NULL, NULL, arguments, environ), 0);
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), CRASHED);
}

static void test_open_when_a_load_was_cut_short_then_nothing_of_it_is_left(void **state)
{
    (void)state;
    crash_in_load();
    assert_int_equal(access(below("hpsd/load-m@1"), F_OK), 0);
    struct hps_store *store = open_store();
    assert_int_equal(access(below("hpsd/load-m@1"), F_OK), -1);
    struct hps_space *space = open_space(store);
    assert_false(has(space, 0));
    load(space, 100);
    assert_true(has(space, 99));
    assert_int_equal(access(below("hpsd/load-m@1"), F_OK), -1);
    store->ops->space_close(space);
    store->ops->close(store);
}

/* The bytes of the only table file. The caller frees them. */
static uint8_t *read_file(size_t *out_size)
{
    uint8_t *bytes = NULL;
    DIR *listing = opendir(below("hpsd"));
    assert_non_null(listing);
    for (struct dirent *entry = readdir(listing); entry != NULL; entry = readdir(listing)) {
        char name[300];
        struct stat info;
        (void)snprintf(name, sizeof(name), "hpsd/%s", entry->d_name);
        if (strstr(name, ".sst") == NULL) {
            continue;
        }
        assert_null(bytes);
        assert_int_equal(stat(below(name), &info), 0);
        *out_size = (size_t)info.st_size;
        bytes = hps_alloc(*out_size);
        int fd = open(below(name), O_RDONLY | O_CLOEXEC);
        assert_int_equal(read(fd, bytes, *out_size), info.st_size);
        close(fd);
    }
    closedir(listing);
    assert_non_null(bytes);
    return bytes;
}

static void test_load_when_rows_nearly_fill_pages_then_no_row_is_in_two_pages(void **state)
{
    (void)state;
    enum { N = 250, PAGE = 4096 };
    struct hps_store *store = open_store();
    struct hps_space *space = open_space(store);
    load(space, N);
    size_t size = 0;
    uint8_t *bytes = read_file(&size);
    for (hps_key key = 0; key < N; key++) {
        uint8_t row[ROW_BYTES];
        fill(row, key);
        const uint8_t *at = memmem(bytes, size, row, sizeof(row));
        assert_non_null(at);
        assert_int_equal((at - bytes) / PAGE, (at + ROW_BYTES - 1 - bytes) / PAGE);
    }
    hps_free(bytes);
    store->ops->space_close(space);
    store->ops->close(store);
}

int main(int argc, char **argv)
{
    if (argc == 2) {
        return load_and_crash(argv[1]);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            test_open_when_a_load_was_cut_short_then_nothing_of_it_is_left, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_load_when_rows_nearly_fill_pages_then_no_row_is_in_two_pages, setup, teardown),
    };
    return cmocka_run_group_tests_name("rocksdb_load", tests, NULL, NULL);
}

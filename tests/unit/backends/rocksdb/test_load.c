/* SPDX-License-Identifier: Apache-2.0
 *
 * A crash in the middle of a load, and the files of a load. The program runs itself to be the
 * process that crashes.
 */
#include "tests/unit/backends/rocksdb/rocksdb_test.h"

#include <spawn.h>
#include <sys/wait.h>

#include "backends/store_durable.h"
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

/* ---- files ----------------------------------------------------------------------------------- */

enum { PAGE = 4096, WIDE_BYTES = 1024, N_ROWS = 250 };

/* The bytes of all table files, each padded to pages. The caller frees them. */
static uint8_t *read_files(size_t *out_size)
{
    uint8_t *bytes = NULL;
    size_t size = 0;
    char name[300];
    struct stat info;
    DIR *listing = opendir(below("hpsd"));
    assert_non_null(listing);
    while (next_table_file(listing, name, &info)) {
        size_t padded = ((size_t)info.st_size + PAGE - 1) / PAGE * PAGE;
        bytes = hps_realloc(bytes, size + padded);
        memset(bytes + size, 0, padded);
        int fd = open(below(name), O_RDONLY | O_CLOEXEC);
        assert_int_equal(read(fd, bytes + size, padded), info.st_size);
        close(fd);
        size += padded;
    }
    closedir(listing);
    *out_size = size;
    return bytes;
}

static struct hps_space *open_tables(struct hps_store *store, const struct hps_table *tables,
                                     uint32_t n_tables)
{
    struct hps_space_id id = {.model = "m", .version = 1, .tables = tables, .n_tables = n_tables};
    struct hps_space *space = NULL;
    assert_int_equal(store->ops->space_open(store, &id, &space, &error), HPS_OK);
    return space;
}

/* Load n_rows of each table, and return the bytes of the files. Rows of ROW_BYTES are as `fill`
 * writes them, others have zeros. The caller frees the bytes. */
static uint8_t *load_tables(const struct hps_table *tables, uint32_t n_tables, size_t *out_size)
{
    uint8_t row[WIDE_BYTES] = {0};
    struct hps_store *store = open_store();
    struct hps_space *space = open_tables(store, tables, n_tables);
    struct hps_store_load *rows = NULL;
    assert_int_equal(store->ops->bulk->begin(space, 0, 0, &rows, &error), HPS_OK);
    for (uint32_t t = 0; t < n_tables; t++) {
        for (hps_key key = 0; key < tables[t].n_rows; key++) {
            if (tables[t].row_bytes == ROW_BYTES) {
                fill(row, key);
            }
            assert_int_equal(store->ops->bulk->add(rows, &tables[t], &key, row, 1, &error), HPS_OK);
        }
        memset(row, 0, sizeof(row));
    }
    assert_int_equal(store->ops->bulk->commit(rows, &error), HPS_OK);
    uint8_t *bytes = read_files(out_size);
    store->ops->space_close(space);
    store->ops->close(store);
    hps_tmpdir_remove(&own, "hpsd");
    return bytes;
}

static struct hps_table table_of(uint32_t id, uint32_t row_bytes, uint64_t n_rows)
{
    return (struct hps_table){.name = "t",
                              .id = id,
                              .dim = row_bytes / 4,
                              .row_bytes = row_bytes,
                              .dtype = HPS_DTYPE_FP32,
                              .n_rows = n_rows};
}

/* The files have the rows of keys below N_ROWS, none of them in two pages. */
static void assert_one_page_each(const uint8_t *bytes, size_t size)
{
    for (hps_key key = 0; key < N_ROWS; key++) {
        uint8_t row[ROW_BYTES];
        fill(row, key);
        const uint8_t *at = memmem(bytes, size, row, sizeof(row));
        assert_non_null(at);
        assert_int_equal((at - bytes) / PAGE, (at + ROW_BYTES - 1 - bytes) / PAGE);
    }
}

static void test_load_when_rows_nearly_fill_pages_then_no_row_is_in_two_pages(void **state)
{
    (void)state;
    const struct hps_table of = table_of(0, ROW_BYTES, N_ROWS);
    size_t size = 0;
    uint8_t *bytes = load_tables(&of, 1, &size);
    assert_one_page_each(bytes, size);
    hps_free(bytes);
}

/* Estimates may be 1 % too small, because they do not count the index. */
static void assert_as_estimated(size_t size, const struct hps_table *tables, uint32_t n_tables)
{
    uint64_t bytes = 0;
    for (uint32_t t = 0; t < n_tables; t++) {
        bytes += hps_disk_table_bytes(tables[t].n_rows, tables[t].row_bytes);
    }
    assert_in_range(size, 1, bytes + bytes / 100 + (uint64_t)2 * PAGE * n_tables);
}

static void test_load_when_rows_have_any_size_then_the_files_are_not_larger_than_estimated(
    void **state)
{
    (void)state;
    static const uint32_t sizes[] = {16, 128, 512, 872, 1024}; /* 872: one seventh too large */
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        const struct hps_table of = table_of(0, sizes[i], 4000);
        size_t size = 0;
        hps_free(load_tables(&of, 1, &size));
        assert_as_estimated(size, &of, 1);
    }
}

static void test_load_when_only_some_tables_fill_pages_then_only_their_blocks_are_aligned(
    void **state)
{
    (void)state;
    for (unsigned first = 0; first < 2; first++) {
        struct hps_table tables[2];
        tables[first] = table_of(first, ROW_BYTES, N_ROWS);
        tables[1 - first] = table_of(1 - first, WIDE_BYTES, 4000);
        size_t size = 0;
        uint8_t *bytes = load_tables(tables, 2, &size);
        assert_one_page_each(bytes, size);
        assert_as_estimated(size, tables, 2);
        hps_free(bytes);
    }
}

/* A load of this part of the free space, estimated without the alignment of blocks. sized: the
 * table has its number of rows. */
static hps_status begin_percent(uint32_t row_bytes, unsigned percent, bool sized)
{
    struct hps_store *store = open_store();
    struct hps_store_load *rows = NULL;
    uint64_t bytes_free = store->ops->durable->bytes_free(store);
    uint64_t n_rows = bytes_free / 100 * percent / (row_bytes + HPS_DISK_ENTRY_BYTES);
    const struct hps_table of = table_of(0, row_bytes, sized ? n_rows : 0);
    struct hps_space *space = open_tables(store, &of, 1);
    hps_status status = store->ops->bulk->begin(space, n_rows, n_rows * row_bytes, &rows, &error);
    if (status == HPS_OK) {
        store->ops->bulk->abort(rows);
    }
    store->ops->space_close(space);
    store->ops->close(store);
    return status;
}

static void test_begin_when_blocks_are_aligned_then_it_needs_an_eighth_more_space(void **state)
{
    (void)state;
    for (unsigned sized = 0; sized < 2; sized++) {
        assert_int_equal(begin_percent(ROW_BYTES, 94, sized), HPS_EXHAUSTED);
        assert_int_equal(begin_percent(ROW_BYTES, 80, sized), HPS_OK);
        assert_int_equal(begin_percent(WIDE_BYTES, 94, sized), HPS_OK);
        assert_int_equal(begin_percent(WIDE_BYTES, 106, sized), HPS_EXHAUSTED);
    }
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
        cmocka_unit_test_setup_teardown(
            test_load_when_rows_have_any_size_then_the_files_are_not_larger_than_estimated, setup,
            teardown),
        cmocka_unit_test_setup_teardown(
            test_load_when_only_some_tables_fill_pages_then_only_their_blocks_are_aligned, setup,
            teardown),
        cmocka_unit_test_setup_teardown(
            test_begin_when_blocks_are_aligned_then_it_needs_an_eighth_more_space, setup, teardown),
    };
    return cmocka_run_group_tests_name("rocksdb_load", tests, NULL, NULL);
}

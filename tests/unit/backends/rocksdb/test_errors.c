/* SPDX-License-Identifier: Apache-2.0
 *
 * Error texts of RocksDB. Each test makes the installed RocksDB return an error that hpsd
 * recognizes by its first words. A release with different words fails here.
 */
#include <fcntl.h>
#include <rocksdb/c.h>
#include <sys/wait.h>

#include "backends/rocksdb/internal.h"
#include "tests/lib/failing_disk.h"
#include "tests/unit/backends/rocksdb/rocksdb_test.h"

enum { ROWS = 2000 };

static rocksdb_options_t *options;
static rocksdb_readoptions_t *read_options;
static rocksdb_writeoptions_t *write_options;

static int options_setup(void **state)
{
    options = rocksdb_options_create();
    rocksdb_options_set_create_if_missing(options, 1);
    rocksdb_options_set_compression(options, rocksdb_no_compression);
    read_options = rocksdb_readoptions_create();
    write_options = rocksdb_writeoptions_create();
    return setup(state);
}

static int options_teardown(void **state)
{
    failing_disk_repair();
    rocksdb_writeoptions_destroy(write_options);
    rocksdb_readoptions_destroy(read_options);
    rocksdb_options_destroy(options);
    return teardown(state);
}

/* Check the first words of `text` and the status that they mean, and free `text`. */
static void check_text(char *text, const char *first_words, hps_status meaning)
{
    assert_non_null(text);
    if (strncmp(text, first_words, strlen(first_words)) != 0) {
        fail_msg("\"%s\" does not begin with \"%s\"", text, first_words);
    }
    assert_int_equal(hps_rocksdb_text_status(text), meaning);
    rocksdb_free(text);
}

static rocksdb_t *open_database(void)
{
    char *text = NULL;
    rocksdb_t *db = rocksdb_open(options, below("hpsd"), &text);
    if (text != NULL) {
        fail_msg("open: %s", text);
    }
    return db;
}

static char *open_fails(void)
{
    char *text = NULL;
    assert_null(rocksdb_open(options, below("hpsd"), &text));
    return text;
}

static char *write_row(rocksdb_t *db, uint32_t key)
{
    char *text = NULL;
    uint8_t row[ROW_BYTES];
    fill(row, key);
    rocksdb_put(db, write_options, (const char *)&key, sizeof(key), (const char *)row, sizeof(row),
                &text);
    return text;
}

/* A database with one file of rows, closed. */
static void make_rows(void)
{
    char *text = NULL;
    rocksdb_t *db = open_database();
    for (uint32_t key = 0; key < ROWS; key++) {
        assert_null(write_row(db, key));
    }
    rocksdb_flushoptions_t *flush = rocksdb_flushoptions_create();
    rocksdb_flush(db, flush, &text);
    assert_null(text);
    rocksdb_flushoptions_destroy(flush);
    rocksdb_close(db);
}

/* Cut the only file of rows to this many thousandths. */
static void cut_file(unsigned thousandths)
{
    DIR *listing = opendir(below("hpsd"));
    assert_non_null(listing);
    unsigned n = 0;
    for (struct dirent *entry = readdir(listing); entry != NULL; entry = readdir(listing)) {
        char name[300];
        struct stat info;
        (void)snprintf(name, sizeof(name), "hpsd/%s", entry->d_name);
        if (strstr(name, ".sst") != NULL && stat(below(name), &info) == 0) {
            assert_int_equal(truncate(below(name), info.st_size / 1000 * thousandths), 0);
            n++;
        }
    }
    closedir(listing);
    assert_int_equal(n, 1);
}

static void test_text_when_a_block_is_damaged_then_data_loss(void **state)
{
    (void)state;
    char *text = NULL;
    make_rows();
    assert_int_equal(damage_files(), 1);
    rocksdb_t *db = open_database();
    rocksdb_iterator_t *iter = rocksdb_create_iterator(db, read_options);
    rocksdb_iter_seek_to_first(iter);
    while (rocksdb_iter_valid(iter)) {
        rocksdb_iter_next(iter);
    }
    rocksdb_iter_get_error(iter, &text);
    rocksdb_iter_destroy(iter);
    rocksdb_close(db);
    check_text(text, "Corruption: ", HPS_DATA_LOSS);
}

static void test_text_when_a_mapped_file_is_cut_short_then_data_loss(void **state)
{
    (void)state;
    make_rows();
    cut_file(500);
    rocksdb_options_set_allow_mmap_reads(options, 1);
    check_text(open_fails(), "IO error: While mmap read offset ", HPS_DATA_LOSS);
}

static void test_text_when_a_mapped_file_is_empty_then_data_loss(void **state)
{
    (void)state;
    make_rows();
    cut_file(0);
    rocksdb_options_set_allow_mmap_reads(options, 1);
    check_text(open_fails(), "IO error: while mmap file for read: ", HPS_DATA_LOSS);
}

static void test_text_when_this_process_has_the_database_then_busy(void **state)
{
    (void)state;
    rocksdb_t *db = open_database();
    check_text(open_fails(), "IO error: lock hold by current process", HPS_BUSY);
    rocksdb_close(db);
}

/* The child must not call RocksDB, because it lacks RocksDB's threads. */
static void lock_in_child(const char *path, int ready, int end)
{
    char byte = 0;
    const struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0 || fcntl(fd, F_SETLK, &lock) != 0 || write(ready, "", 1) != 1) {
        _exit(1);
    }
    _exit(read(end, &byte, 1) == 0 ? 0 : 1);
}

static void test_text_when_another_process_has_the_database_then_busy(void **state)
{
    (void)state;
    int ready[2];
    int end[2];
    char byte;
    make_rows();
    assert_int_equal(pipe(ready), 0);
    assert_int_equal(pipe(end), 0);
    const char *path = below("hpsd/LOCK");
    pid_t child = fork();
    if (child == 0) {
        close(end[1]);
        lock_in_child(path, ready[1], end[0]);
    }
    close(ready[1]);
    close(end[0]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    check_text(open_fails(), "IO error: While lock file: ", HPS_BUSY);
    int status = 0;
    close(ready[0]);
    close(end[1]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void test_text_when_the_disk_is_full_then_exhausted(void **state)
{
    (void)state;
    rocksdb_t *db = open_database();
    atomic_store(&failing_disk.wal_write_errno, ENOSPC);
    check_text(write_row(db, 1), "IO error: No space left on device", HPS_EXHAUSTED);
    failing_disk_repair();
    rocksdb_close(db);
}

static void test_text_when_the_disk_fails_then_io(void **state)
{
    (void)state;
    rocksdb_t *db = open_database();
    atomic_store(&failing_disk.wal_write_errno, EIO);
    check_text(write_row(db, 1), "IO error: ", HPS_IO);
    failing_disk_repair();
    rocksdb_close(db);
}

/* Reads a batch of keys with a deadline, like a lookup. */
static void test_text_when_the_deadline_has_passed_then_deadline(void **state)
{
    (void)state;
    enum { KEYS = 200 };
    uint32_t keys[KEYS];
    const char *at[KEYS];
    size_t sizes[KEYS];
    rocksdb_pinnableslice_t *values[KEYS];
    char *texts[KEYS];
    make_rows();
    static const char *const names[1] = {"default"};
    const rocksdb_options_t *each[1] = {options};
    rocksdb_column_family_handle_t *family = NULL;
    char *text = NULL;
    rocksdb_t *db =
        rocksdb_open_column_families(options, below("hpsd"), 1, names, each, &family, &text);
    assert_null(text);
    for (uint32_t i = 0; i < KEYS; i++) {
        keys[i] = i;
        at[i] = (const char *)&keys[i];
        sizes[i] = sizeof(keys[i]);
    }
    rocksdb_readoptions_set_deadline(read_options, 1);
    rocksdb_batched_multi_get_cf(db, read_options, family, KEYS, at, sizes, values, texts, false);
    for (uint32_t i = 0; i < KEYS; i++) {
        if (values[i] != NULL) {
            rocksdb_pinnableslice_destroy(values[i]);
        }
        if (i < KEYS - 1) {
            rocksdb_free(texts[i]);
        }
    }
    check_text(texts[KEYS - 1], "Operation timed out: ", HPS_DEADLINE);
    rocksdb_column_family_handle_destroy(family);
    rocksdb_close(db);
}

static void test_text_when_an_argument_is_invalid_then_internal(void **state)
{
    (void)state;
    rocksdb_options_set_create_if_missing(options, 0);
    check_text(open_fails(), "Invalid argument: ", HPS_INTERNAL);
}

static void test_text_when_a_call_is_not_for_this_database_then_internal(void **state)
{
    (void)state;
    char *text = NULL;
    make_rows();
    rocksdb_t *db = rocksdb_open_for_read_only(options, below("hpsd"), 0, &text);
    assert_null(text);
    check_text(write_row(db, 1), "Not implemented: ", HPS_INTERNAL);
    rocksdb_close(db);
}

/* Words count only at the beginning; later they may be part of a path. */
static void test_text_when_the_words_are_not_first_then_io(void **state)
{
    (void)state;
    assert_int_equal(hps_rocksdb_text_status("IO error: in Corruption: No space left"), HPS_IO);
    assert_int_equal(hps_rocksdb_text_status("IO error: While open: /a/LOCK/b: denied"), HPS_IO);
    assert_int_equal(hps_rocksdb_text_status(""), HPS_IO);
    /* The error of a write that waited for a compaction on a full disk. In test_fault_rocksdb.c,
     * it depends on timing. */
    assert_int_equal(hps_rocksdb_text_status("Result incomplete: IO error: No space left on "
                                             "device: While appending to file: 000705.sst"),
                     HPS_EXHAUSTED);
    assert_int_equal(hps_rocksdb_text_status("Result incomplete: "), HPS_IO);
}

int main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, options_setup, options_teardown)
    const struct CMUnitTest tests[] = {
        T(test_text_when_a_block_is_damaged_then_data_loss),
        T(test_text_when_a_mapped_file_is_cut_short_then_data_loss),
        T(test_text_when_a_mapped_file_is_empty_then_data_loss),
        T(test_text_when_this_process_has_the_database_then_busy),
        T(test_text_when_another_process_has_the_database_then_busy),
        T(test_text_when_the_disk_is_full_then_exhausted),
        T(test_text_when_the_disk_fails_then_io),
        T(test_text_when_the_deadline_has_passed_then_deadline),
        T(test_text_when_an_argument_is_invalid_then_internal),
        T(test_text_when_a_call_is_not_for_this_database_then_internal),
        T(test_text_when_the_words_are_not_first_then_io),
    };
    return cmocka_run_group_tests_name("rocksdb_errors", tests, NULL, NULL);
}

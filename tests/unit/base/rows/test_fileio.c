/* SPDX-License-Identifier: Apache-2.0
 *
 * Whole reads and writes of files.
 */
#include "base/rows/fileio.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/heap.h"
#include "base/rows/crc32c.h"
#include "tests/lib/fault_heap.h"
#include "tests/lib/tmpdir_fixture.h"

static void test_status_when_errno_then_its_kind(void **state)
{
    (void)state;
    assert_int_equal(hps_file_status(ENOENT), HPS_NOT_FOUND);
    assert_int_equal(hps_file_status(EACCES), HPS_PERMISSION);
    assert_int_equal(hps_file_status(ENOTEMPTY), HPS_EXISTS);
    assert_int_equal(hps_file_status(ENOSPC), HPS_EXHAUSTED);
    assert_int_equal(hps_file_status(EDQUOT), HPS_EXHAUSTED);
    assert_int_equal(hps_file_status(ENOMEM), HPS_NO_MEMORY);
    assert_int_equal(hps_file_status(EIO), HPS_IO);
    struct hps_error err = {0};
    assert_int_equal(hps_file_error(&err, ENOSPC, "cannot write", "/a"), HPS_EXHAUSTED);
    assert_string_equal(err.text, "cannot write /a: No space left on device");
}

static void test_open_when_fifo_then_refused_without_waiting(void **state)
{
    (void)state;
    int fd = -7;
    uint64_t bytes = 0;
    struct hps_error err = {0};
    assert_int_equal(mkfifo(hps_tmpdir_join(&dir, "f"), 0600), 0);
    assert_int_equal(hps_file_open_read(hps_tmpdir_join(&dir, "f"), &fd, &bytes, &err),
                     HPS_INVALID);
    assert_int_equal(fd, -7);
}

static void test_pread_when_file_ends_then_data_loss_names_byte(void **state)
{
    (void)state;
    int fd = -1;
    uint64_t bytes = 0;
    char data[8];
    struct hps_error err = {0};
    hps_tmpdir_write(&dir, "f", "abcdef", 6);
    assert_int_equal(hps_file_open_read(hps_tmpdir_join(&dir, "f"), &fd, &bytes, &err), HPS_OK);
    assert_int_equal(bytes, 6);
    assert_int_equal(hps_file_pread(fd, "f", data, 4, 2, &err), HPS_OK);
    assert_memory_equal(data, "cdef", 4);
    assert_int_equal(hps_file_pread(fd, "f", data, 8, 2, &err), HPS_DATA_LOSS);
    assert_string_equal(err.text, "f: ends at byte 6, expected 4 more bytes");
    assert_int_equal(hps_file_pwrite(fd, "f", data, 1, 0, &err), HPS_IO); /* opened to read */
    close(fd);
}

static void test_replace_when_there_then_new_content_and_no_temporary(void **state)
{
    (void)state;
    const char *path = hps_tmpdir_join(&dir, "f");
    struct stat st;
    assert_int_equal(hps_file_replace(path, "old", 3, NULL), HPS_OK);
    assert_int_equal(hps_file_replace(path, "newer", 5, NULL), HPS_OK);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, 5);
    assert_int_equal(hps_tmpdir_entries(&dir, "."), 1);
    hps_tmpdir_mkdir(&dir, "d");
    assert_int_not_equal(hps_file_replace(hps_tmpdir_join(&dir, "d"), "x", 1, NULL), HPS_OK);
    assert_int_equal(hps_tmpdir_entries(&dir, "."), 2);
}

static void test_copy_when_several_pieces_then_equal_and_a_shorter_file_is_refused(void **state)
{
    (void)state;
    static char data[(2 << 20) + 5], there[sizeof(data)];
    atomic_bool cancel = false;
    uint32_t crc = 0, read_crc = 0;
    for (size_t i = 0; i < sizeof(data); i++) {
        data[i] = (char)(i * 31 >> 7);
    }
    hps_tmpdir_write(&dir, "f", data, sizeof(data));
    int from = open(hps_tmpdir_join(&dir, "f"), O_RDONLY | O_CLOEXEC);
    int to = open(hps_tmpdir_join(&dir, "g"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(hps_file_copy(from, to, "f", sizeof(data), &cancel, &crc, NULL), HPS_OK);
    assert_int_equal(crc, hps_crc32c(0, data, sizeof(data)));
    assert_int_equal(hps_file_pread(to, "g", there, sizeof(data), 0, NULL), HPS_OK);
    assert_memory_equal(there, data, sizeof(data));
    assert_int_equal(hps_file_copy(from, -1, "f", sizeof(data), NULL, &read_crc, NULL), HPS_OK);
    assert_int_equal(read_crc, crc);
    assert_int_equal(hps_file_copy(from, to, "f", sizeof(data) + 1, NULL, &crc, NULL),
                     HPS_DATA_LOSS);
    atomic_store(&cancel, true);
    assert_int_equal(hps_file_copy(from, to, "f", sizeof(data), &cancel, &crc, NULL),
                     HPS_CANCELLED);
    close(from);
    close(to);
}

static void test_temp_name_when_called_twice_then_hidden_and_different(void **state)
{
    (void)state;
    char *first = hps_file_temp_name("/a/b.npy");
    char *second = hps_file_temp_name("b.npy");
    assert_non_null(first);
    assert_non_null(second);
    assert_int_equal(strncmp(first, "/a/.b.npy.tmp-", 14), 0);
    assert_int_equal(strncmp(second, ".b.npy.tmp-", 11), 0);
    assert_string_not_equal(first + 4, second + 1);
    hps_free(first);
    hps_free(second);
}

static void replace(void *ctx)
{
    (void)ctx;
    hps_status status = hps_file_replace(hps_tmpdir_join(&dir, "f"), "x", 1, NULL);
    assert_true(status == HPS_OK || status == HPS_NO_MEMORY);
}

static void test_replace_when_memory_fails_then_survived(void **state)
{
    (void)state;
    assert_true(hps_fault_heap_run(replace, NULL) >= 2);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_status_when_errno_then_its_kind),
        T(test_open_when_fifo_then_refused_without_waiting),
        T(test_pread_when_file_ends_then_data_loss_names_byte),
        T(test_replace_when_there_then_new_content_and_no_temporary),
        T(test_copy_when_several_pieces_then_equal_and_a_shorter_file_is_refused),
        T(test_temp_name_when_called_twice_then_hidden_and_different),
        T(test_replace_when_memory_fails_then_survived),
    };
#undef T
    return cmocka_run_group_tests(tests, NULL, NULL);
}

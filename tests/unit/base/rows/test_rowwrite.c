/* SPDX-License-Identifier: Apache-2.0
 *
 * The writer of model files never leaves an incomplete file. test_rowfile.c reads its files
 * back.
 */
#include "base/rows/rowfile.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "tests/lib/tmpdir_fixture.h"

static void test_writer_when_pieces_are_large_then_rows_keep_their_order(void **state)
{
    (void)state;
    enum { DIM = 1024, N = 700 };
    static float rows[N][DIM];
    static hps_key keys[N];
    struct hps_row_writer_options options = {HPS_ROW_FORM_HUGECTR, DIM, HPS_DTYPE_FP32};
    struct hps_row_writer *writer = NULL;
    for (size_t r = 0; r < N; r++) {
        keys[r] = N - r;
        rows[r][0] = (float)r;
        rows[r][DIM - 1] = -(float)r;
    }
    assert_int_equal(hps_row_writer_open(hps_tmpdir_join(&dir, "t"), &options, &writer, NULL),
                     HPS_OK);
    /* 400 KiB, then 600 KiB that also fit the buffer, then more than it holds. */
    static const size_t pieces[] = {100, 150, 449, 1};
    for (size_t i = 0, r = 0; i < 4; r += pieces[i++]) {
        assert_int_equal(hps_row_writer_append(writer, keys + r, rows[r], pieces[i], NULL), HPS_OK);
    }
    assert_int_equal(hps_row_writer_close(writer, NULL), HPS_OK);
    const struct hps_row_options any = {0};
    struct hps_row_reader *reader = NULL;
    assert_int_equal(hps_row_reader_open(hps_tmpdir_join(&dir, "t"), &any, &reader, NULL), HPS_OK);
    assert_int_equal(hps_row_reader_desc(reader)->dim, DIM); /* derived */
    static float got[N][DIM];
    static hps_key got_keys[N];
    size_t n = 0;
    assert_int_equal(hps_row_reader_next(reader, N + 1, got_keys, got, &n, NULL), HPS_OK);
    assert_int_equal(n, N);
    assert_memory_equal(got, rows, sizeof(rows));
    assert_memory_equal(got_keys, keys, sizeof(keys));
    hps_row_reader_close(reader);
}

static void test_writer_when_aborted_then_no_file_is_left(void **state)
{
    (void)state;
    static const enum hps_row_form forms[] = {HPS_ROW_FORM_HUGECTR, HPS_ROW_FORM_NPY,
                                              HPS_ROW_FORM_NPY_PAIR};
    for (size_t i = 0; i < 3; i++) {
        struct hps_row_writer_options options = {forms[i], 2, HPS_DTYPE_FP32};
        struct hps_row_writer *writer = NULL;
        float row[2] = {1, 2};
        hps_key key = 0;
        assert_int_equal(
            hps_row_writer_open(hps_tmpdir_join(&dir, "t.rows.npy"), &options, &writer, NULL),
            HPS_OK);
        assert_int_equal(hps_row_writer_append(writer, &key, row, 1, NULL), HPS_OK);
        hps_row_writer_abort(writer);
        assert_int_equal(hps_tmpdir_entries(&dir, "."), 0);
    }
    hps_row_writer_abort(NULL);
}

static void test_writer_when_its_data_is_inconsistent_then_invalid(void **state)
{
    (void)state;
    struct hps_row_writer *writer = NULL;
    struct hps_error err = {0};
    struct hps_row_writer_options half = {HPS_ROW_FORM_HUGECTR, 2, HPS_DTYPE_FP16};
    struct hps_row_writer_options wide = {HPS_ROW_FORM_NPY, HPS_ROW_DIM_MAX + 1, HPS_DTYPE_FP32};
    struct hps_row_writer_options pair = {HPS_ROW_FORM_NPY_PAIR, 2, HPS_DTYPE_FP32};
    struct hps_row_writer_options tree = {HPS_ROW_FORM_HUGECTR, 2, HPS_DTYPE_FP32};
    struct hps_row_writer_options npy = {HPS_ROW_FORM_NPY, 1, HPS_DTYPE_FP32};
    const char *path = hps_tmpdir_join(&dir, "t.npy");
    assert_int_equal(hps_row_writer_open(path, &half, &writer, &err), HPS_INVALID);
    assert_int_equal(hps_row_writer_open(path, &wide, &writer, &err), HPS_INVALID);
    assert_int_equal(hps_row_writer_open(path, &pair, &writer, &err), HPS_INVALID);
    assert_int_equal(hps_row_writer_open(dir.path, &tree, &writer, &err), HPS_EXISTS);
    assert_int_equal(hps_row_writer_open("/no/such/place/t.npy", &npy, &writer, &err),
                     HPS_NOT_FOUND);
    float row = 0;
    hps_key key = 1;
    assert_int_equal(hps_row_writer_open(path, &npy, &writer, &err), HPS_OK);
    assert_int_equal(hps_row_writer_append(writer, &key, &row, 1, &err), HPS_INVALID);
    assert_non_null(strstr(err.text, "key 1 cannot be row 0"));
    hps_row_writer_abort(writer);
    assert_int_equal(hps_tmpdir_entries(&dir, "."), 0);
}

/* A limit on the file size represents a full disk: the kernel fails the write at the same place. */
static void test_writer_when_disk_is_full_then_exhausted_and_no_file_is_left(void **state)
{
    (void)state;
    struct hps_row_writer_options options = {HPS_ROW_FORM_HUGECTR, 1024, HPS_DTYPE_FP32};
    struct hps_row_writer *writer = NULL;
    struct hps_error err = {0};
    static float rows[16][1024];
    struct rlimit old;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    struct rlimit limit = {.rlim_cur = 3 << 20, .rlim_max = old.rlim_max};
    assert_true(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_int_equal(hps_row_writer_open(hps_tmpdir_join(&dir, "t"), &options, &writer, &err),
                     HPS_OK);
    hps_status status = HPS_OK;
    for (int i = 0; i < 200 && status == HPS_OK; i++) {
        hps_key keys[16] = {0};
        status = hps_row_writer_append(writer, keys, rows, 16, &err);
    }
    assert_int_equal(status, HPS_EXHAUSTED);
    assert_non_null(strstr(err.text, "emb_vector"));
    assert_int_equal(hps_row_writer_close(writer, &err), HPS_EXHAUSTED); /* still full */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_true(signal(SIGXFSZ, SIG_DFL) != SIG_ERR);
    assert_int_equal(hps_tmpdir_entries(&dir, "."), 0);
}

static void test_writer_when_not_closed_then_no_file_is_visible(void **state)
{
    (void)state;
    struct hps_row_writer_options options = {HPS_ROW_FORM_NPY, 1, HPS_DTYPE_FP32};
    struct hps_row_writer *writer = NULL;
    float row = 1;
    hps_key key = 0;
    const char *path = hps_tmpdir_join(&dir, "t.npy");
    hps_tmpdir_write(&dir, "t.npy", "old", 3);
    assert_int_equal(hps_row_writer_open(path, &options, &writer, NULL), HPS_OK);
    assert_int_equal(hps_row_writer_append(writer, &key, &row, 1, NULL), HPS_OK);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, 3); /* the old file, until the new one is complete */
    assert_int_equal(hps_row_writer_close(writer, NULL), HPS_OK);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, 132);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_writer_when_pieces_are_large_then_rows_keep_their_order),
        T(test_writer_when_aborted_then_no_file_is_left),
        T(test_writer_when_its_data_is_inconsistent_then_invalid),
        T(test_writer_when_disk_is_full_then_exhausted_and_no_file_is_left),
        T(test_writer_when_not_closed_then_no_file_is_visible),
    };
#undef T
    return cmocka_run_group_tests(tests, NULL, NULL);
}

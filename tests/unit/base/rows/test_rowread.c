/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of every type read from files: unchanged, joined from two files, converted, or refused.
 */
#include "base/rows/rowfile.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/heap.h"
#include "base/rows/npy.h"
#include "base/rows/rowgen.h"
#include "tests/lib/fault_heap.h"
#include "tests/lib/tmpdir_fixture.h"

enum { DIM = 13, N_ROWS = 100, ROW_BYTES_MAX = DIM * 4 }; /* odd: scales are not aligned */

static const enum hps_dtype dtypes[] = {HPS_DTYPE_FP32, HPS_DTYPE_FP16, HPS_DTYPE_BF16,
                                        HPS_DTYPE_INT8_ROWWISE_F32, HPS_DTYPE_INT8_ROWWISE_F16};

enum { N_DTYPES = sizeof(dtypes) / sizeof(dtypes[0]) };

static hps_key key_of(size_t r)
{
    return r * 7 % N_ROWS;
}

/* Row r of the formula as `dtype`. */
static void make_row(size_t r, enum hps_dtype dtype, uint8_t *row)
{
    float values[DIM];
    hps_rowgen_row(1, 0, r, DIM, values);
    hps_row_convert(row, dtype, values, HPS_DTYPE_FP32, DIM);
}

/* Write rows of `dtype` to t.npy, or with unsorted keys to t.rows.npy. Returns the name. */
static const char *write_rows(enum hps_dtype dtype, bool pair, size_t n)
{
    const char *name = pair ? "t.rows.npy" : "t.npy";
    const struct hps_row_writer_options options = {
        .form = pair ? HPS_ROW_FORM_NPY_PAIR : HPS_ROW_FORM_NPY, .dim = DIM, .dtype = dtype};
    struct hps_row_writer *writer = NULL;
    assert_int_equal(hps_row_writer_open(hps_tmpdir_join(&dir, name), &options, &writer, NULL),
                     HPS_OK);
    for (size_t r = 0; r < n; r++) {
        uint8_t row[ROW_BYTES_MAX];
        hps_key key = pair ? key_of(r) : r;
        make_row(r, dtype, row);
        assert_int_equal(hps_row_writer_append(writer, &key, row, 1, NULL), HPS_OK);
    }
    assert_int_equal(hps_row_writer_close(writer, NULL), HPS_OK);
    return name;
}

static struct hps_row_reader *open_rows(const char *name, struct hps_row_options options)
{
    struct hps_row_reader *reader = NULL;
    struct hps_error err = {0};
    if (hps_row_reader_open(hps_tmpdir_join(&dir, name), &options, &reader, &err) != HPS_OK) {
        fail_msg("%s", err.text);
    }
    return reader;
}

static void expect_refused(const char *name, struct hps_row_options options, hps_status status,
                           const char *text)
{
    struct hps_row_reader *reader = NULL;
    struct hps_error err = {0};
    assert_int_equal(hps_row_reader_open(hps_tmpdir_join(&dir, name), &options, &reader, &err),
                     status);
    assert_null(reader);
    if (strstr(err.text, text) == NULL) {
        fail_msg("'%s' is not in '%s'", text, err.text);
    }
}

/* The next read fails with this text. */
static void expect_unread(const char *name, struct hps_row_options options, const char *text)
{
    struct hps_row_reader *reader = open_rows(name, options);
    struct hps_error err = {0};
    hps_key keys[N_ROWS];
    uint8_t rows[N_ROWS * ROW_BYTES_MAX];
    size_t n = 77;
    assert_int_equal(hps_row_reader_next(reader, N_ROWS, keys, rows, &n, &err), HPS_INVALID);
    assert_int_equal(n, 77);
    if (strstr(err.text, text) == NULL) {
        fail_msg("'%s' is not in '%s'", text, err.text);
    }
    hps_row_reader_close(reader);
}

/* ---- unchanged rows -------------------------------------------------------------------------- */

static void read_back(enum hps_dtype dtype, bool pair)
{
    size_t row_bytes = (size_t)hps_dtype_row_bytes(dtype, DIM);
    const char *name = write_rows(dtype, pair, N_ROWS);
    struct hps_row_reader *reader = open_rows(name, (struct hps_row_options){.dtype = dtype});
    const struct hps_row_desc *desc = hps_row_reader_desc(reader);
    assert_int_equal(desc->dtype, dtype);
    assert_int_equal(desc->file_dtype, dtype);
    assert_int_equal(desc->dim, DIM);
    assert_int_equal(desc->n_rows, N_ROWS);
    for (size_t r = 0; r < N_ROWS;) {
        hps_key keys[9];
        uint8_t rows[9 * ROW_BYTES_MAX + 1]; /* an odd address: any alignment is allowed */
        size_t n = 0;
        assert_int_equal(hps_row_reader_next(reader, 9, keys, rows + 1, &n, NULL), HPS_OK);
        assert_true(n > 0);
        for (size_t i = 0; i < n; i++, r++) {
            uint8_t expected[ROW_BYTES_MAX];
            make_row(r, dtype, expected);
            assert_true(keys[i] == (pair ? key_of(r) : r));
            assert_memory_equal(rows + 1 + i * row_bytes, expected, row_bytes);
        }
    }
    assert_int_equal(hps_row_reader_loss(reader)->n, 0);
    hps_row_reader_close(reader);
}

static void test_rows_when_of_any_type_then_read_as_they_were_written(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_DTYPES; i++) {
        read_back(dtypes[i], false); /* replaces the files of the previous type */
        read_back(dtypes[i], true);
    }
}

static void put_npy(const char *name, struct hps_npy npy)
{
    uint8_t file[HPS_NPY_HEADER_BYTES + 256] = {0};
    hps_npy_format(&npy, file);
    size_t size =
        npy.shape[0] * (npy.n_dims == 2 ? npy.shape[1] : 1) * hps_npy_type_bytes(npy.type);
    hps_tmpdir_write(&dir, name, file, HPS_NPY_HEADER_BYTES + size);
}

/* The file is refused unless an option names BF16. Then it is read as BF16 and converted to
 * FP32. */
static void expect_bf16_if_said(const char *name, const char *text)
{
    expect_refused(name, (struct hps_row_options){0}, HPS_INVALID, text);
    expect_refused(name, (struct hps_row_options){.row_dtype = HPS_DTYPE_FP16}, HPS_INVALID, text);
    expect_refused(name,
                   (struct hps_row_options){.dtype = HPS_DTYPE_FP16, .row_dtype = HPS_DTYPE_BF16},
                   HPS_INVALID, text);
    struct hps_row_reader *reader =
        open_rows(name, (struct hps_row_options){.row_dtype = HPS_DTYPE_BF16});
    assert_int_equal(hps_row_reader_desc(reader)->file_dtype, HPS_DTYPE_BF16);
    hps_row_reader_close(reader);
    reader = open_rows(
        name, (struct hps_row_options){.dtype = HPS_DTYPE_BF16, .row_dtype = HPS_DTYPE_FP32});
    assert_int_equal(hps_row_reader_desc(reader)->dtype, HPS_DTYPE_FP32);
    hps_row_reader_close(reader);
}

static void test_rows_when_they_may_be_bf16_then_only_if_an_option_says_so(void **state)
{
    (void)state;
    expect_bf16_if_said(write_rows(HPS_DTYPE_BF16, false, 3), "rows of uint16");
    struct hps_npy npy = {.type = HPS_NPY_V2, .n_dims = 2, .shape = {3, 5}};
    put_npy("v2.npy", npy);
    expect_bf16_if_said("v2.npy", "rows of two bytes without a type (<V2)");
    npy.type = HPS_NPY_BF16; /* the file names the type */
    put_npy("named.npy", npy);
    struct hps_row_reader *reader = open_rows("named.npy", (struct hps_row_options){0});
    assert_int_equal(hps_row_reader_desc(reader)->file_dtype, HPS_DTYPE_BF16);
    hps_row_reader_close(reader);
}

static void test_scales_when_absent_or_of_another_shape_then_refused(void **state)
{
    (void)state;
    static const struct {
        struct hps_npy npy;
        const char *text;
    } cases[] = {
        {{.type = HPS_NPY_F4, .n_dims = 2, .shape = {5, 3}}, "expected an array [rows, 2]"},
        {{.type = HPS_NPY_F4, .n_dims = 1, .shape = {10, 0}}, "expected an array [rows, 2]"},
        {{.type = HPS_NPY_U2, .n_dims = 2, .shape = {5, 2}}, "expected an array [rows, 2]"},
        {{.type = HPS_NPY_F2, .n_dims = 2, .shape = {4, 2}}, "scales of 4 rows, expected 5"},
    };
    put_npy("t.npy", (struct hps_npy){.type = HPS_NPY_U1, .n_dims = 2, .shape = {5, 4}});
    expect_refused("t.npy", (struct hps_row_options){0}, HPS_NOT_FOUND,
                   "rows of uint8 need their scales and biases");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        put_npy("t.scale_bias.npy", cases[i].npy);
        expect_refused("t.npy", (struct hps_row_options){0}, HPS_INVALID, cases[i].text);
    }
    put_npy("t.scale_bias.npy", (struct hps_npy){.type = HPS_NPY_F2, .n_dims = 2, .shape = {5, 2}});
    struct hps_row_reader *reader = open_rows("t.npy", (struct hps_row_options){0});
    assert_int_equal(hps_row_reader_desc(reader)->dtype, HPS_DTYPE_INT8_ROWWISE_F16);
    hps_row_reader_close(reader);
}

static void test_scale_when_not_finite_then_refused_by_name(void **state)
{
    (void)state;
    uint8_t file[HPS_NPY_HEADER_BYTES + 16];
    const float scales[2][2] = {{1, 0}, {1, INFINITY}};
    const struct hps_npy npy = {.type = HPS_NPY_F4, .n_dims = 2, .shape = {2, 2}};
    put_npy("t.npy", (struct hps_npy){.type = HPS_NPY_U1, .n_dims = 2, .shape = {2, 3}});
    hps_npy_format(&npy, file);
    memcpy(file + HPS_NPY_HEADER_BYTES, scales, sizeof(scales));
    hps_tmpdir_write(&dir, "t.scale_bias.npy", file, sizeof(file));
    expect_unread("t.npy", (struct hps_row_options){0},
                  "t.scale_bias.npy: NaN or Inf at byte 140: row 1 (key 1), bias");
}

/* ---- converted rows -------------------------------------------------------------------------- */

/* Rows must equal the results of hps_row_convert, and its losses are counted. */
static void convert(enum hps_dtype from, enum hps_dtype to, size_t piece)
{
    size_t row_bytes = (size_t)hps_dtype_row_bytes(to, DIM);
    const char *name = write_rows(from, false, N_ROWS);
    struct hps_row_reader *reader =
        open_rows(name, (struct hps_row_options){.dtype = from, .row_dtype = to});
    struct hps_row_loss loss = {0};
    assert_int_equal(hps_row_reader_desc(reader)->dtype, to);
    assert_int_equal(hps_row_reader_desc(reader)->file_dtype, from);
    for (size_t r = 0; r < N_ROWS;) {
        hps_key keys[N_ROWS];
        uint8_t rows[N_ROWS * ROW_BYTES_MAX];
        size_t n = 0;
        assert_int_equal(hps_row_reader_next(reader, piece, keys, rows, &n, NULL), HPS_OK);
        for (size_t i = 0; i < n; i++, r++) {
            uint8_t given[ROW_BYTES_MAX], expected[ROW_BYTES_MAX];
            float wide[DIM];
            make_row(r, from, given);
            hps_row_convert(wide, HPS_DTYPE_FP32, given, from, DIM);
            hps_row_convert(expected, to, wide, HPS_DTYPE_FP32, DIM);
            assert_memory_equal(rows + i * row_bytes, expected, row_bytes);
            hps_row_loss_add(&loss, given, from, expected, to, DIM);
        }
    }
    assert_int_equal(hps_row_reader_loss(reader)->n, N_ROWS * DIM);
    assert_true(hps_row_reader_loss(reader)->max == loss.max);
    assert_true(hps_row_reader_loss(reader)->sum == loss.sum);
    assert_true(to != HPS_DTYPE_FP32 || loss.max == 0); /* halves convert exactly */
    assert_true(!hps_dtype_is_int8(to) || loss.max > 0);
    hps_row_reader_rewind(reader);
    assert_int_equal(hps_row_reader_loss(reader)->n, 0);
    hps_row_reader_close(reader);
}

static void test_rows_when_another_type_is_requested_then_converted(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_DTYPES; i++) {
        for (size_t k = 0; k < N_DTYPES; k++) {
            if (i != k && !hps_dtype_is_int8(dtypes[i])) {
                convert(dtypes[i], dtypes[k], 7);
                convert(dtypes[i], dtypes[k], N_ROWS);
            }
        }
    }
}

static void test_rows_when_more_than_a_piece_then_all_are_converted(void **state)
{
    (void)state;
    enum { WIDE = 4096, N = 200 };
    const struct hps_row_writer_options options = {HPS_ROW_FORM_NPY, WIDE, HPS_DTYPE_FP32};
    struct hps_row_writer *writer = NULL;
    static float values[WIDE];
    static uint8_t rows[N][WIDE + 8], expected[WIDE + 8];
    hps_key keys[N];
    size_t n = 0;
    assert_int_equal(hps_row_writer_open(hps_tmpdir_join(&dir, "w.npy"), &options, &writer, NULL),
                     HPS_OK);
    for (hps_key key = 0; key < N; key++) {
        hps_rowgen_row(1, 0, key, WIDE, values);
        assert_int_equal(hps_row_writer_append(writer, &key, values, 1, NULL), HPS_OK);
    }
    assert_int_equal(hps_row_writer_close(writer, NULL), HPS_OK);
    struct hps_row_reader *reader =
        open_rows("w.npy", (struct hps_row_options){.row_dtype = HPS_DTYPE_INT8_ROWWISE_F32});
    assert_int_equal(hps_row_reader_next(reader, N, keys, rows, &n, NULL), HPS_OK);
    assert_int_equal(n, N);
    for (hps_key key = 0; key < N; key++) {
        hps_rowgen_row(1, 0, key, WIDE, values);
        hps_row_convert(expected, HPS_DTYPE_INT8_ROWWISE_F32, values, HPS_DTYPE_FP32, WIDE);
        assert_true(keys[key] == key);
        assert_memory_equal(rows[key], expected, sizeof(expected));
    }
    hps_row_reader_close(reader);
}

static void test_rows_when_quantised_already_then_never_quantised_again(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_DTYPES; i++) {
        for (size_t k = 0; k < N_DTYPES; k++) {
            if (hps_dtype_is_int8(dtypes[i]) && i != k) {
                expect_refused(write_rows(dtypes[i], false, 2),
                               (struct hps_row_options){.row_dtype = dtypes[k]}, HPS_INVALID,
                               "are already quantised as");
            }
        }
        struct hps_row_reader *reader =
            open_rows(write_rows(dtypes[i], false, 2),
                      (struct hps_row_options){.dtype = dtypes[i], .row_dtype = dtypes[i]});
        assert_int_equal(hps_row_reader_loss(reader)->n, 0);
        hps_row_reader_close(reader);
    }
}

/* ---- values out of range --------------------------------------------------------------------- */

/* Write three rows of FP32 with `value` in the last one. */
static void write_value(float value)
{
    const struct hps_row_writer_options options = {HPS_ROW_FORM_NPY_PAIR, 2, HPS_DTYPE_FP32};
    const hps_key keys[3] = {30, 20, (hps_key)-10};
    const float rows[3][2] = {{1, 2}, {3, 4}, {5, value}};
    struct hps_row_writer *writer = NULL;
    assert_int_equal(
        hps_row_writer_open(hps_tmpdir_join(&dir, "v.rows.npy"), &options, &writer, NULL), HPS_OK);
    assert_int_equal(hps_row_writer_append(writer, keys, rows, 3, NULL), HPS_OK);
    assert_int_equal(hps_row_writer_close(writer, NULL), HPS_OK);
}

static void test_value_when_too_large_for_fp16_then_refused_unless_infinities_are_allowed(
    void **state)
{
    (void)state;
    const struct hps_row_options strict = {.row_dtype = HPS_DTYPE_FP16};
    const struct hps_row_options loose = {.row_dtype = HPS_DTYPE_FP16, .nan_allowed = true};
    write_value(-70000);
    expect_unread("v.rows.npy", strict,
                  "v.rows.npy: -70000 in row 2 (key -10), value 1, does not fit fp16");
    struct hps_row_reader *reader = open_rows("v.rows.npy", loose);
    hps_key keys[3];
    uint16_t rows[3][2];
    size_t n = 0;
    assert_int_equal(hps_row_reader_next(reader, 3, keys, rows, &n, NULL), HPS_OK);
    assert_int_equal(rows[2][1], 0xfc00);
    hps_row_reader_close(reader);
    write_value(65504);
    reader = open_rows("v.rows.npy", strict);
    assert_int_equal(hps_row_reader_next(reader, 3, keys, rows, &n, NULL), HPS_OK);
    hps_row_reader_close(reader);
}

static void test_value_when_int8_cannot_hold_it_then_refused_with_any_option(void **state)
{
    (void)state;
    static const float values[] = {NAN, INFINITY, -FLT_MAX};
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        write_value(values[i]);
        expect_unread(
            "v.rows.npy",
            (struct hps_row_options){.row_dtype = HPS_DTYPE_INT8_ROWWISE_F16, .nan_allowed = true},
            "in row 2 (key -10), value 1, does not fit int8_rowwise_f16");
    }
    write_value(NAN);
    expect_unread("v.rows.npy", (struct hps_row_options){.row_dtype = HPS_DTYPE_INT8_ROWWISE_F32},
                  "NaN or Inf at byte 148: row 2 (key -10), value 1");
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void read_converted(void *ctx)
{
    const struct hps_row_options *options = ctx;
    const char *name = options->row_dtype == 0 ? "i.npy" : "h.npy";
    struct hps_row_reader *reader = NULL;
    hps_key keys[4];
    uint8_t rows[4 * ROW_BYTES_MAX];
    size_t n = 0;
    hps_status status = hps_row_reader_open(hps_tmpdir_join(&dir, name), options, &reader, NULL);
    if (status == HPS_OK) {
        status = hps_row_reader_next(reader, 4, keys, rows, &n, NULL);
        assert_int_equal(status, HPS_OK);
        hps_row_reader_close(reader);
    }
    assert_true(status == HPS_OK || status == HPS_NO_MEMORY);
}

static void test_all_when_memory_fails_then_error_without_leak(void **state)
{
    (void)state;
    struct hps_row_options split = {0}, by_way = {.row_dtype = HPS_DTYPE_INT8_ROWWISE_F32};
    write_rows(HPS_DTYPE_INT8_ROWWISE_F16, false, 4);
    assert_int_equal(rename(hps_tmpdir_join(&dir, "t.npy"), hps_tmpdir_join(&dir, "i.npy")), 0);
    assert_int_equal(rename(hps_tmpdir_join(&dir, "t.scale_bias.npy"),
                            hps_tmpdir_join(&dir, "i.scale_bias.npy")),
                     0);
    write_rows(HPS_DTYPE_FP16, false, 4);
    assert_int_equal(rename(hps_tmpdir_join(&dir, "t.npy"), hps_tmpdir_join(&dir, "h.npy")), 0);
    assert_true(hps_fault_heap_run(read_converted, &split) > 4);
    assert_true(hps_fault_heap_run(read_converted, &by_way) > 4);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_rows_when_of_any_type_then_read_as_they_were_written),
        T(test_rows_when_they_may_be_bf16_then_only_if_an_option_says_so),
        T(test_scales_when_absent_or_of_another_shape_then_refused),
        T(test_scale_when_not_finite_then_refused_by_name),
        T(test_rows_when_another_type_is_requested_then_converted),
        T(test_rows_when_more_than_a_piece_then_all_are_converted),
        T(test_rows_when_quantised_already_then_never_quantised_again),
        T(test_value_when_too_large_for_fp16_then_refused_unless_infinities_are_allowed),
        T(test_value_when_int8_cannot_hold_it_then_refused_with_any_option),
        T(test_all_when_memory_fails_then_error_without_leak),
    };
#undef T
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Reader of model files: every form there and back, and every way a file can be wrong.
 */
#include "base/rows/rowfile.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/rows/npy.h"
#include "tests/lib/fault_heap.h"
#include "tests/lib/tmpdir_fixture.h"

static hps_status open_reader(const char *name, struct hps_row_options options,
                              struct hps_row_reader **out_reader, struct hps_error *err)
{
    return hps_row_reader_open(hps_tmpdir_join(&dir, name), &options, out_reader, err);
}

/* The open fails with this status and the text has this in it. */
static void expect_refused(const char *name, struct hps_row_options options, hps_status status,
                           const char *text)
{
    struct hps_row_reader *reader = NULL;
    struct hps_error err = {0};
    assert_int_equal(open_reader(name, options, &reader, &err), status);
    assert_null(reader);
    assert_int_equal(err.status, status);
    if (strstr(err.text, text) == NULL) {
        fail_msg("'%s' is not in '%s'", text, err.text);
    }
}

/* Value i of row r, exact in float16 too. */
static float value_of(uint64_t r, uint32_t i)
{
    return (float)((r * 7 + i) % 512) * 0.25f - 64.0f;
}

/* Write rows 0 ... n-1 with keys[r] (NULL: r) through the writer, in uneven pieces. */
static void write_table(const char *name, enum hps_row_form form, enum hps_dtype dtype,
                        uint32_t dim, const hps_key *keys, size_t n)
{
    struct hps_row_writer_options options = {.form = form, .dim = dim, .dtype = dtype};
    struct hps_row_writer *writer = NULL;
    struct hps_error err = {0};
    assert_int_equal(hps_row_writer_open(hps_tmpdir_join(&dir, name), &options, &writer, &err),
                     HPS_OK);
    for (size_t r = 0; r < n; r++) {
        float row[64];
        uint16_t half[64];
        hps_key key = keys != NULL ? keys[r] : r;
        for (uint32_t i = 0; i < dim; i++) {
            row[i] = value_of(r, i);
            half[i] = (uint16_t)(r * dim + i) & 0x3fff; /* finite bits; compared as bits */
        }
        const void *bytes = dtype == HPS_DTYPE_FP32 ? (const void *)row : (const void *)half;
        assert_int_equal(hps_row_writer_append(writer, &key, bytes, 1, &err), HPS_OK);
    }
    assert_int_equal(hps_row_writer_close(writer, &err), HPS_OK);
}

/* Read all in pieces of `piece` and compare with what write_table wrote. */
static void expect_table(const char *name, enum hps_row_form form, enum hps_dtype dtype,
                         uint32_t dim, const hps_key *keys, size_t n, size_t piece)
{
    struct hps_row_reader *reader = NULL;
    struct hps_error err = {0};
    assert_int_equal(open_reader(name, (struct hps_row_options){.dim = dim}, &reader, &err),
                     HPS_OK);
    const struct hps_row_desc *desc = hps_row_reader_desc(reader);
    assert_int_equal(desc->form, form);
    assert_int_equal(desc->n_rows, n);
    assert_int_equal(desc->dim, dim);
    assert_int_equal(desc->dtype, dtype);
    assert_true(desc->sorted_unique == (form == HPS_ROW_FORM_NPY));
    size_t row_bytes = hps_dtype_row_bytes(dtype, dim);
    size_t value_bytes = row_bytes / dim;
    for (size_t r = 0;;) {
        hps_key got_keys[16];
        uint8_t rows[16 * 64 * 4 + 1];
        size_t m = 99;
        /* At an odd address: any alignment is allowed. */
        assert_int_equal(hps_row_reader_next(reader, piece, got_keys, rows + 1, &m, &err), HPS_OK);
        if (m == 0) {
            assert_int_equal(r, n);
            break;
        }
        for (size_t k = 0; k < m; k++, r++) {
            assert_true(got_keys[k] == (keys != NULL ? keys[r] : r));
            for (uint32_t i = 0; i < dim; i++) {
                float value = value_of(r, i);
                uint16_t half = (uint16_t)(r * dim + i) & 0x3fff;
                const void *expected =
                    dtype == HPS_DTYPE_FP32 ? (const void *)&value : (const void *)&half;
                assert_memory_equal(rows + 1 + k * row_bytes + i * value_bytes, expected,
                                    value_bytes);
            }
        }
    }
    hps_row_reader_close(reader);
}

/* A safetensors file with this header and these data. */
static void write_tensors(const char *name, const char *head, const void *data, size_t size)
{
    uint8_t file[4096];
    uint64_t n = strlen(head);

    assert_true(8 + n + size <= sizeof(file));
    memcpy(file, &n, 8);
    memcpy(file + 8, head, n);
    memcpy(file + 8 + n, data, size);
    hps_tmpdir_write(&dir, name, file, 8 + n + size);
}

/* Read the 2 rows of a table of 2 rows. */
static void expect_two(const char *path, enum hps_dtype dtype, const hps_key keys[2],
                       const void *rows, size_t size)
{
    struct hps_row_reader *reader = NULL;
    struct hps_error err = {0};
    hps_key got_keys[3];
    uint8_t got[256];
    size_t n = 0;

    hps_status status = open_reader(path, (struct hps_row_options){0}, &reader, &err);
    if (status != HPS_OK) {
        fail_msg("%s", err.text);
    }
    const struct hps_row_desc *desc = hps_row_reader_desc(reader);
    assert_int_equal(desc->form, HPS_ROW_FORM_SAFETENSORS);
    assert_int_equal(desc->file_dtype, dtype);
    assert_int_equal(hps_row_reader_next(reader, 3, got_keys, got, &n, &err), HPS_OK);
    assert_int_equal(n, 2);
    assert_memory_equal(got_keys, keys, 2 * sizeof(keys[0]));
    assert_memory_equal(got, rows, size);
    hps_row_reader_close(reader);
}

static const hps_key first_keys[2] = {0, 1};

static void test_safetensors_when_tensors_of_floats_then_rows(void **state)
{
    (void)state;
    static const float data[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    static const uint16_t half[4] = {0x3c00, 0x3c01, 0x3c02, 0x3c03};
    static const hps_key keys[2] = {9, UINT64_MAX};
    uint8_t more[8 + 16 + 16];
    write_tensors("m.safetensors",
                  "{\"a/b.weight\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]},"
                  "\"c\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[16,32]},"
                  "\"__metadata__\":{\"format\":\"pt\"}}   ",
                  data, sizeof(data));
    expect_two("m.safetensors:a/b.weight", HPS_DTYPE_FP32, first_keys, data, 16);
    expect_two("m.safetensors:c", HPS_DTYPE_FP32, first_keys, data + 4, 16);
    memcpy(more, half, 8);
    memcpy(more + 8, keys, 16);
    write_tensors("k.safetensors",
                  "{\"t\":{\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[0,8]},"
                  "\"t.keys\":{\"dtype\":\"U64\",\"shape\":[2],\"data_offsets\":[8,24]}}",
                  more, 24);
    expect_two("k.safetensors", HPS_DTYPE_BF16, keys, half, 8);
    write_tensors("h.safetensors",
                  "{\"t\":{\"dtype\":\"F16\",\"shape\":[2,2],\"data_offsets\":[0,8]}}", half, 8);
    expect_two("h.safetensors", HPS_DTYPE_FP16, first_keys, half, 8);
}

static void test_safetensors_when_rows_are_int8_then_with_scales_and_biases(void **state)
{
    (void)state;
    static const uint8_t u8[4] = {0, 1, 128, 255};
    static const float scales[2] = {0.5f, 2.0f}, biases[2] = {-1.0f, 3.0f};
    static const uint16_t halves[4] = {0x3c00, 0x4000, 0x4200, 0x4400}; /* 1, 2, 3, 4 */
    uint8_t data[4 + 16 + 8], rows[2 * 10];
    memcpy(data, u8, 4);
    memcpy(data + 4, halves, 8); /* scales 1, 2, biases 3, 4 */
    memcpy(data + 12, scales, 8);
    memcpy(data + 20, biases, 8);
#define HEAD(type)                                                            \
    "{\"t\":{\"dtype\":\"" type "\",\"shape\":[2,2],\"data_offsets\":[0,4]}," \
    "\"t.scale\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[4,8]},"   \
    "\"t.bias\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[8,12]},"   \
    "\"s\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[12,20]},"     \
    "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[20,28]}}"
    write_tensors("u.safetensors", HEAD("U8"), data, sizeof(data));
    for (size_t i = 0; i < 2; i++) {
        memcpy(rows + i * 6, u8 + 2 * i, 2);
        memcpy(rows + i * 6 + 2, &halves[i], 2);
        memcpy(rows + i * 6 + 4, &halves[2 + i], 2);
    }
    expect_two("u.safetensors:t", HPS_DTYPE_INT8_ROWWISE_F16, first_keys, rows, 12);
    for (size_t i = 0; i < 2; i++) {
        memcpy(rows + i * 10, u8 + 2 * i, 2);
        memcpy(rows + i * 10 + 2, &scales[i], 4);
        memcpy(rows + i * 10 + 6, &biases[i], 4);
    }
    expect_two("u.safetensors:t:s:b", HPS_DTYPE_INT8_ROWWISE_F32, first_keys, rows, 20);
    write_tensors("i.safetensors", HEAD("I8"), data, sizeof(data));
#undef HEAD
    for (size_t i = 0; i < 2; i++) { /* (v + 128) * scale + (bias - 128 * scale) */
        float scale = (float)(i + 1), bias = (float)(i + 3) - 128 * scale;
        rows[i * 10] = u8[2 * i] ^ 0x80;
        rows[i * 10 + 1] = u8[2 * i + 1] ^ 0x80;
        memcpy(rows + i * 10 + 2, &scale, 4);
        memcpy(rows + i * 10 + 6, &bias, 4);
    }
    expect_two("i.safetensors:t", HPS_DTYPE_INT8_ROWWISE_F32, first_keys, rows, 20);
}

static void test_safetensors_when_wrong_then_it_says_what_was_expected(void **state)
{
    (void)state;
    static const struct hps_row_options any = {0};
    static const uint8_t data[64] = {0};
#define TENSOR(name, type, shape, begin, end)                                                     \
    "\"" name "\":{\"dtype\":\"" type "\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end \
    "]}"
    write_tensors(
        "m.safetensors",
        "{" TENSOR("a", "F32", "[2,2]", 0, 16) "," TENSOR("b", "F64", "[1,2]", 16, 32) "," TENSOR(
            "c", "U8", "[2,2]", 32, 36) "," TENSOR("d", "F32", "[3]", 36,
                                                   48) "," TENSOR("e", "I64", "[1,2]", 48, 64) "}",
        data, sizeof(data));
    expect_refused("m.safetensors", any, HPS_INVALID, "has 2 tables, 'a', 'c'; expected");
    expect_refused("m.safetensors:x", any, HPS_INVALID, "has no tensor 'x'");
    expect_refused("m.safetensors:a:b", any, HPS_INVALID,
                   "expected FILE:TENSOR or FILE:TENSOR:SCALE");
    expect_refused("m.safetensors:", any, HPS_INVALID, "expected FILE:TENSOR");
    expect_refused("m.safetensors:b", any, HPS_INVALID, "a tensor of F64");
    expect_refused("m.safetensors:c", any, HPS_INVALID, "has no tensor 'c.scale'");
    expect_refused("m.safetensors:c:d:d", any, HPS_INVALID, "scales of 3 rows, expected 2");
    expect_refused("m.safetensors:c:a:d", any, HPS_INVALID,
                   "expected a tensor [rows] of F32 or F16");
    expect_refused("m.safetensors:d", any, HPS_INVALID, "an array of 1 dimension, expected 2");
    expect_refused("m.safetensors:e", any, HPS_INVALID, "rows of 64-bit integers");
    expect_refused("m.safetensors:a", (struct hps_row_options){.dim = 3}, HPS_INVALID,
                   "2 values per row, expected 3");
    expect_refused("none.safetensors:a", any, HPS_NOT_FOUND, "none.safetensors");
    write_tensors("n.safetensors", "{" TENSOR("d", "F32", "[16]", 0, 64) "}", data, 64);
    expect_refused("n.safetensors", any, HPS_INVALID, "no tensor of 2 dimensions");
    write_tensors("short.safetensors", "{" TENSOR("a", "F32", "[4,4]", 0, 64) "}", data, 60);
    expect_refused("short.safetensors:a", any, HPS_INVALID, "the file is too short");
#undef TENSOR
    hps_tmpdir_write(&dir, "tiny.safetensors", "1234567", 7);
    expect_refused("tiny.safetensors:a", any, HPS_INVALID, "expected a safetensors file");
    hps_tmpdir_write(&dir, "zip.safetensors", "PK\x03\x04PK\x03\x04PK", 10);
    expect_refused("zip.safetensors:a", any, HPS_INVALID, "expected at most 16777216");
}

static void test_safetensors_when_keys_cannot_be_keys_then_refused(void **state)
{
    (void)state;
    static const struct {
        const char *keys, *expected;
    } all[] = {
        {"\"I64\",\"shape\":[2,1],\"data_offsets\":[16,32]", "an array of 1 dimension of int64"},
        {"\"F64\",\"shape\":[2],\"data_offsets\":[16,32]", "expected keys [rows] of I64"},
        {"\"F32\",\"shape\":[2,2],\"data_offsets\":[16,32]", "an array of 1 dimension of int64"},
    };
    static const uint8_t data[32] = {0};
    char head[256];
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        snprintf(head, sizeof(head),
                 "{\"t\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]},"
                 "\"t.keys\":{\"dtype\":%s}}",
                 all[i].keys);
        write_tensors("t.safetensors", head, data, sizeof(data));
        expect_refused("t.safetensors:t", (struct hps_row_options){0}, HPS_INVALID,
                       all[i].expected);
    }
}

static void test_safetensors_when_scales_have_two_dimensions_then_one_table(void **state)
{
    (void)state;
    static const float rest[4] = {0.5f, 2.0f, -1.0f, 3.0f}; /* scales, biases */
    uint8_t data[4 + sizeof(rest)] = {1, 2, 3, 4}, rows[2 * 10];
    memcpy(data + 4, rest, sizeof(rest));
    for (size_t i = 0; i < 2; i++) {
        memcpy(rows + 10 * i, data + 2 * i, 2);
        memcpy(rows + 10 * i + 2, &rest[i], 4);
        memcpy(rows + 10 * i + 6, &rest[2 + i], 4);
    }
    write_tensors("t.safetensors",
                  "{\"t\":{\"dtype\":\"U8\",\"shape\":[2,2],\"data_offsets\":[0,4]},"
                  "\"t.scale\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[4,12]},"
                  "\"t.bias\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[12,20]}}",
                  data, sizeof(data));
    expect_two("t.safetensors", HPS_DTYPE_INT8_ROWWISE_F32, first_keys, rows, sizeof(rows));
}

static const hps_key odd_keys[5] = {7, 0, UINT64_MAX, UINT64_C(1) << 63, 3};

static void test_safetensors_when_written_then_read_back(void **state)
{
    (void)state;
    write_table("t.safetensors", HPS_ROW_FORM_SAFETENSORS, HPS_DTYPE_FP32, 3, odd_keys, 5);
    expect_table("t.safetensors", HPS_ROW_FORM_SAFETENSORS, HPS_DTYPE_FP32, 3, odd_keys, 5, 2);
    expect_table("t.safetensors:t", HPS_ROW_FORM_SAFETENSORS, HPS_DTYPE_FP32, 3, odd_keys, 5, 16);
    write_table("t.safetensors", HPS_ROW_FORM_SAFETENSORS, HPS_DTYPE_BF16, 64, odd_keys, 5);
    expect_table("t.safetensors", HPS_ROW_FORM_SAFETENSORS, HPS_DTYPE_BF16, 64, odd_keys, 5, 2);
    write_table("e.safetensors", HPS_ROW_FORM_SAFETENSORS, HPS_DTYPE_FP16, 4, NULL, 0);
    expect_table("e.safetensors", HPS_ROW_FORM_SAFETENSORS, HPS_DTYPE_FP16, 4, NULL, 0, 1);
    assert_int_equal(hps_tmpdir_entries(&dir, "."), 2); /* no temporary files */
}

static void test_hugectr_when_written_then_read_back(void **state)
{
    (void)state;
    write_table("t/", HPS_ROW_FORM_HUGECTR, HPS_DTYPE_FP32, 3, odd_keys, 5);
    expect_table("t", HPS_ROW_FORM_HUGECTR, HPS_DTYPE_FP32, 3, odd_keys, 5, 2);
    expect_table("t", HPS_ROW_FORM_HUGECTR, HPS_DTYPE_FP32, 3, odd_keys, 5, 16);
    assert_int_equal(hps_tmpdir_entries(&dir, "."), 1);
    assert_int_equal(hps_tmpdir_entries(&dir, "t"), 2);
}

static void test_npy_when_written_then_read_back(void **state)
{
    (void)state;
    write_table("a.npy", HPS_ROW_FORM_NPY, HPS_DTYPE_FP32, 64, NULL, 37);
    expect_table("a.npy", HPS_ROW_FORM_NPY, HPS_DTYPE_FP32, 64, NULL, 37, 5);
    write_table("b.npy", HPS_ROW_FORM_NPY, HPS_DTYPE_FP16, 1, NULL, 1);
    expect_table("b.npy", HPS_ROW_FORM_NPY, HPS_DTYPE_FP16, 1, NULL, 1, 1);
    write_table("b.npy", HPS_ROW_FORM_NPY, HPS_DTYPE_FP16, 2, NULL, 0); /* replaced */
    expect_table("b.npy", HPS_ROW_FORM_NPY, HPS_DTYPE_FP16, 2, NULL, 0, 1);
    assert_int_equal(hps_tmpdir_entries(&dir, "."), 2);
}

static void test_pair_when_written_then_read_back_by_either_name(void **state)
{
    (void)state;
    write_table("p.rows.npy", HPS_ROW_FORM_NPY_PAIR, HPS_DTYPE_FP16, 4, odd_keys, 5);
    expect_table("p.rows.npy", HPS_ROW_FORM_NPY_PAIR, HPS_DTYPE_FP16, 4, odd_keys, 5, 3);
    expect_table("p.keys.npy", HPS_ROW_FORM_NPY_PAIR, HPS_DTYPE_FP16, 4, odd_keys, 5, 3);
    write_table("p.rows.npy", HPS_ROW_FORM_NPY_PAIR, HPS_DTYPE_FP32, 2, odd_keys, 4);
    expect_table("p.rows.npy", HPS_ROW_FORM_NPY_PAIR, HPS_DTYPE_FP32, 2, odd_keys, 4, 3);
    assert_int_equal(hps_tmpdir_entries(&dir, "."), 2);
}

static void test_pair_when_keys_are_of_4_bytes_then_widened_at_any_row(void **state)
{
    (void)state;
    struct {
        uint8_t header[HPS_NPY_HEADER_BYTES];
        int32_t keys[5];
    } file = {.keys = {7, 0, -1, INT32_MIN, 3}};
    const struct hps_npy npy = {.type = HPS_NPY_I4, .n_dims = 1, .shape = {5}};
    const hps_key wide[5] = {7, 0, UINT64_MAX, (hps_key)(int64_t)INT32_MIN, 3};
    write_table("p.rows.npy", HPS_ROW_FORM_NPY_PAIR, HPS_DTYPE_FP16, 4, odd_keys, 5);
    hps_npy_format(&npy, file.header);
    hps_tmpdir_write(&dir, "p.keys.npy", &file, sizeof(file));
    expect_table("p.rows.npy", HPS_ROW_FORM_NPY_PAIR, HPS_DTYPE_FP16, 4, wide, 5, 3);
}

static void put_hugectr(const char *name, size_t bytes_keys, size_t bytes_rows)
{
    static const uint8_t zeros[4096];
    char path[64];
    hps_tmpdir_mkdir(&dir, name);
    (void)snprintf(path, sizeof(path), "%s/key", name);
    hps_tmpdir_write(&dir, path, zeros, bytes_keys);
    (void)snprintf(path, sizeof(path), "%s/emb_vector", name);
    hps_tmpdir_write(&dir, path, zeros, bytes_rows);
}

static void test_hugectr_when_sizes_disagree_then_invalid_with_both(void **state)
{
    (void)state;
    struct hps_row_options dim0 = {0};
    struct hps_row_options dim4 = {.dim = 4};
    put_hugectr("odd", 20, 64);
    expect_refused("odd", dim4, HPS_INVALID, "20 bytes, expected a multiple of 8");
    put_hugectr("rows", 32, 63);
    expect_refused("rows", dim4, HPS_INVALID, "63 bytes, expected 4 rows x 4");
    expect_refused("rows", dim0, HPS_INVALID, "63 bytes, expected a multiple of 4 x 4");
    put_hugectr("dim", 32, 32);
    expect_refused("dim", dim4, HPS_INVALID, "32 bytes, expected 4 rows x 4");
    put_hugectr("narrow", 32, 128);
    expect_refused("narrow", dim4, HPS_INVALID, "narrow/key: 32 bytes look like 8 keys of 4 bytes");
    expect_refused("narrow", dim4, HPS_INVALID,
                   "or the keys are int64, and the rows have 8 values, expected 4");
    put_hugectr("narrow3", 12, 48); /* an odd number of keys: whatever the width is */
    expect_refused("narrow3", dim0, HPS_INVALID, "12 bytes look like 3 keys of 4 bytes");
    put_hugectr("none", 32, 0);
    expect_refused("none", dim0, HPS_INVALID, "0 values per row");
    put_hugectr("empty", 0, 0);
    expect_refused("empty", dim0, HPS_INVALID, "emb_vector");
    expect_table("empty", HPS_ROW_FORM_HUGECTR, HPS_DTYPE_FP32, 4, NULL, 0, 1);
    hps_tmpdir_mkdir(&dir, "bare");
    expect_refused("bare", dim4, HPS_NOT_FOUND, "bare/key");
    expect_refused("absent", dim4, HPS_NOT_FOUND, "absent");
}

static void put_npy(const char *name, struct hps_npy npy, long bytes_more)
{
    uint8_t file[HPS_NPY_HEADER_BYTES + 4096] = {0};
    hps_npy_format(&npy, file);
    npy.data_bytes =
        npy.shape[0] * (npy.n_dims == 2 ? npy.shape[1] : 1) * hps_npy_type_bytes(npy.type);
    hps_tmpdir_write(&dir, name, file,
                     (size_t)((long)(HPS_NPY_HEADER_BYTES + npy.data_bytes) + bytes_more));
}

static void test_npy_when_file_does_not_fit_header_then_invalid(void **state)
{
    (void)state;
    struct hps_npy f4 = {.type = HPS_NPY_F4, .n_dims = 2, .shape = {5, 4}};
    put_npy("short.npy", f4, -1);
    expect_refused("short.npy", (struct hps_row_options){0}, HPS_INVALID,
                   "207 bytes, expected 208");
    put_npy("long.npy", f4, 3);
    expect_refused("long.npy", (struct hps_row_options){0}, HPS_INVALID, "211 bytes, expected 208");
    put_npy("dim.npy", f4, 0);
    expect_refused("dim.npy", (struct hps_row_options){.dim = 5}, HPS_INVALID,
                   "4 values per row, expected 5");
    struct hps_npy flat = {.type = HPS_NPY_F4, .n_dims = 1, .shape = {5}};
    put_npy("flat.npy", flat, 0);
    expect_refused("flat.npy", (struct hps_row_options){0}, HPS_INVALID, "1 dimension, expected 2");
    struct hps_npy ints = {.type = HPS_NPY_I8, .n_dims = 2, .shape = {5, 4}};
    put_npy("ints.npy", ints, 0);
    expect_refused("ints.npy", (struct hps_row_options){0}, HPS_INVALID, "expected float32");
    struct hps_npy wide = {.type = HPS_NPY_F4, .n_dims = 2, .shape = {0, 65537}};
    put_npy("wide.npy", wide, 0);
    expect_refused("wide.npy", (struct hps_row_options){0}, HPS_INVALID, "1 to 65536");
    hps_tmpdir_write(&dir, "empty.npy", "", 0);
    expect_refused("empty.npy", (struct hps_row_options){0}, HPS_INVALID, "magic");
    expect_refused(".", (struct hps_row_options){.form = HPS_ROW_FORM_NPY}, HPS_INVALID,
                   "not a regular file");
}

static void test_pair_when_halves_disagree_then_invalid(void **state)
{
    (void)state;
    struct hps_npy rows = {.type = HPS_NPY_F4, .n_dims = 2, .shape = {5, 4}};
    struct hps_npy keys = {.type = HPS_NPY_U8, .n_dims = 1, .shape = {4}};
    put_npy("p.rows.npy", rows, 0);
    expect_refused("p.rows.npy", (struct hps_row_options){0}, HPS_NOT_FOUND, "p.keys.npy");
    put_npy("p.keys.npy", keys, 0);
    expect_refused("p.rows.npy", (struct hps_row_options){0}, HPS_INVALID, "4 keys, expected 5");
    put_npy("p.keys.npy", rows, 0);
    expect_refused("p.rows.npy", (struct hps_row_options){0}, HPS_INVALID, "int64, uint64, int32");
    expect_refused("p.npy", (struct hps_row_options){.form = HPS_ROW_FORM_NPY_PAIR}, HPS_INVALID,
                   "*.rows.npy");
}

static void test_next_when_file_is_cut_short_then_data_loss(void **state)
{
    (void)state;
    hps_key keys[8];
    float rows[8 * 2];
    size_t n = 77;
    struct hps_error err = {0};
    struct hps_row_reader *reader = NULL;
    write_table("t", HPS_ROW_FORM_HUGECTR, HPS_DTYPE_FP32, 2, NULL, 8);
    assert_int_equal(open_reader("t", (struct hps_row_options){0}, &reader, &err), HPS_OK);
    assert_int_equal(truncate(hps_tmpdir_join(&dir, "t/emb_vector"), 36), 0);
    assert_int_equal(hps_row_reader_next(reader, 4, keys, rows, &n, &err), HPS_OK);
    assert_int_equal(hps_row_reader_next(reader, 4, keys, rows, &n, &err), HPS_DATA_LOSS);
    assert_int_equal(n, 4);
    assert_non_null(strstr(err.text, "emb_vector: ends at byte 36, expected 28 more"));
    assert_int_equal(truncate(hps_tmpdir_join(&dir, "t/key"), 4), 0);
    assert_int_equal(hps_row_reader_scan_keys(reader, &err), HPS_DATA_LOSS);
    hps_row_reader_close(reader);
}

static void test_next_when_nan_or_inf_then_invalid_names_row_unless_allowed(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t b = 0; b < 3; b++) {
        float data[6][3] = {{0}};
        hps_key file_keys[6] = {10, 11, 12, 13, (hps_key)-14, 15};
        hps_key keys[6];
        float rows[6][3];
        size_t n = 0;
        struct hps_error err = {0};
        struct hps_row_reader *reader = NULL;
        data[4][1] = bad[b];
        char name[8];
        (void)snprintf(name, sizeof(name), "t%zu", b);
        put_hugectr(name, 48, 72);
        char path[32];
        (void)snprintf(path, sizeof(path), "%s/emb_vector", name);
        hps_tmpdir_write(&dir, path, data, sizeof(data));
        (void)snprintf(path, sizeof(path), "%s/key", name);
        hps_tmpdir_write(&dir, path, file_keys, sizeof(file_keys));
        assert_int_equal(open_reader(name, (struct hps_row_options){0}, &reader, &err), HPS_OK);
        assert_int_equal(hps_row_reader_next(reader, 2, keys, rows, &n, &err), HPS_OK);
        assert_int_equal(hps_row_reader_next(reader, 6, keys, rows, &n, &err), HPS_INVALID);
        assert_non_null(strstr(err.text, "at byte 52: row 4 (key -14), value 1"));
        hps_row_reader_close(reader);
        assert_int_equal(
            open_reader(name, (struct hps_row_options){.nan_allowed = true}, &reader, &err),
            HPS_OK);
        assert_int_equal(hps_row_reader_next(reader, 6, keys, rows, &n, &err), HPS_OK);
        assert_int_equal(n, 6);
        hps_row_reader_close(reader);
    }
}

static void test_next_when_fp16_nan_then_invalid(void **state)
{
    (void)state;
    struct hps_row_writer_options options = {HPS_ROW_FORM_NPY, 2, HPS_DTYPE_FP16};
    struct hps_row_writer *writer = NULL;
    struct hps_row_reader *reader = NULL;
    struct hps_error err = {0};
    const uint16_t data[3][2] = {{0, 1}, {0x7bff, 0x8000}, {0, 0xfc00}};
    const hps_key data_keys[3] = {0, 1, 2};
    assert_int_equal(hps_row_writer_open(hps_tmpdir_join(&dir, "h.npy"), &options, &writer, &err),
                     HPS_OK);
    assert_int_equal(hps_row_writer_append(writer, data_keys, data, 3, &err), HPS_OK);
    assert_int_equal(hps_row_writer_close(writer, &err), HPS_OK);
    assert_int_equal(open_reader("h.npy", (struct hps_row_options){0}, &reader, &err), HPS_OK);
    hps_key keys[3];
    uint16_t rows[3][2];
    size_t n = 0;
    assert_int_equal(hps_row_reader_next(reader, 3, keys, rows, &n, &err), HPS_INVALID);
    assert_non_null(strstr(err.text, "row 2 (key 2), value 1"));
    hps_row_reader_close(reader);
}

static void test_keys_when_4_bytes_then_truncated_as_hps_does(void **state)
{
    (void)state;
    const hps_key data[3] = {UINT64_C(0x100000005), UINT64_MAX, 6};
    write_table("t", HPS_ROW_FORM_HUGECTR, HPS_DTYPE_FP32, 1, data, 3);
    struct hps_row_reader *reader = NULL;
    hps_key keys[3];
    float rows[3];
    size_t n = 0;
    assert_int_equal(open_reader("t", (struct hps_row_options){.key_bytes = 4}, &reader, NULL),
                     HPS_OK);
    assert_int_equal(hps_row_reader_next(reader, 3, keys, rows, &n, NULL), HPS_OK);
    assert_true(keys[0] == 5 && keys[1] == UINT32_MAX && keys[2] == 6);
    hps_row_reader_close(reader);
}

static void test_scan_keys_when_ascending_or_not_then_told(void **state)
{
    (void)state;
    const struct {
        hps_key keys[3];
        bool sorted;
    } cases[] = {
        {{0, 5, UINT64_MAX}, true}, /* as unsigned integers */
        {{5, 4, 6}, false},
        {{4, 6, 6}, false},
    };
    for (size_t i = 0; i < 3; i++) {
        char name[8];
        (void)snprintf(name, sizeof(name), "t%zu", i);
        write_table(name, HPS_ROW_FORM_HUGECTR, HPS_DTYPE_FP32, 1, cases[i].keys, 3);
        struct hps_row_reader *reader = NULL;
        hps_key key;
        float row;
        size_t n;
        assert_int_equal(open_reader(name, (struct hps_row_options){0}, &reader, NULL), HPS_OK);
        assert_int_equal(hps_row_reader_next(reader, 1, &key, &row, &n, NULL), HPS_OK);
        assert_int_equal(hps_row_reader_scan_keys(reader, NULL), HPS_OK);
        assert_true(hps_row_reader_desc(reader)->sorted_unique == cases[i].sorted);
        assert_int_equal(hps_row_reader_next(reader, 1, &key, &row, &n, NULL), HPS_OK);
        assert_true(key == cases[i].keys[1]); /* not moved */
        hps_row_reader_rewind(reader);
        assert_int_equal(hps_row_reader_next(reader, 1, &key, &row, &n, NULL), HPS_OK);
        assert_true(key == cases[i].keys[0]);
        hps_row_reader_close(reader);
    }
}

static void all_calls(void *ctx)
{
    const enum hps_row_form *form = (const enum hps_row_form *)ctx;
    struct hps_row_writer_options options = {*form, 2, HPS_DTYPE_FP32};
    struct hps_row_writer *writer = NULL;
    struct hps_row_reader *reader = NULL;
    float rows[2] = {0};
    hps_key keys[1] = {0};
    size_t n = 0;
    const char *name = *form == HPS_ROW_FORM_HUGECTR ? "d" : "f.rows.npy";
    hps_status status = hps_row_writer_open(hps_tmpdir_join(&dir, name), &options, &writer, NULL);
    if (status == HPS_OK) {
        status = hps_row_writer_append(writer, keys, rows, 1, NULL);
        assert_int_equal(status, HPS_OK);
        status = hps_row_writer_close(writer, NULL);
    }
    if (status == HPS_OK) {
        status = open_reader(name, (struct hps_row_options){.form = *form}, &reader, NULL);
    }
    if (status == HPS_OK) {
        status = hps_row_reader_scan_keys(reader, NULL);
        hps_ignore(hps_row_reader_next(reader, 1, keys, rows, &n, NULL));
        hps_row_reader_close(reader);
    }
    assert_true(status == HPS_OK || status == HPS_NO_MEMORY);
    (void)unlink(hps_tmpdir_join(&dir, "d/key"));
    (void)unlink(hps_tmpdir_join(&dir, "d/emb_vector"));
    (void)rmdir(hps_tmpdir_join(&dir, "d"));
}

static void test_all_when_memory_fails_then_survived(void **state)
{
    (void)state;
    static enum hps_row_form forms[] = {HPS_ROW_FORM_HUGECTR, HPS_ROW_FORM_NPY,
                                        HPS_ROW_FORM_NPY_PAIR};
    for (size_t i = 0; i < 3; i++) {
        assert_true(hps_fault_heap_run(all_calls, &forms[i]) > 5);
    }
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_safetensors_when_written_then_read_back),
        T(test_safetensors_when_tensors_of_floats_then_rows),
        T(test_safetensors_when_rows_are_int8_then_with_scales_and_biases),
        T(test_safetensors_when_wrong_then_it_says_what_was_expected),
        T(test_safetensors_when_scales_have_two_dimensions_then_one_table),
        T(test_safetensors_when_keys_cannot_be_keys_then_refused),
        T(test_hugectr_when_written_then_read_back),
        T(test_npy_when_written_then_read_back),
        T(test_pair_when_written_then_read_back_by_either_name),
        T(test_hugectr_when_sizes_disagree_then_invalid_with_both),
        T(test_npy_when_file_does_not_fit_header_then_invalid),
        T(test_pair_when_keys_are_of_4_bytes_then_widened_at_any_row),
        T(test_pair_when_halves_disagree_then_invalid),
        T(test_next_when_file_is_cut_short_then_data_loss),
        T(test_next_when_nan_or_inf_then_invalid_names_row_unless_allowed),
        T(test_next_when_fp16_nan_then_invalid),
        T(test_keys_when_4_bytes_then_truncated_as_hps_does),
        T(test_scan_keys_when_ascending_or_not_then_told),
        T(test_all_when_memory_fails_then_survived),
    };
#undef T
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Headers of .npy files: what NumPy writes is read, everything else is refused with its place.
 */
#include "base/rows/npy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* A header of this version around a dict; returns its size. */
static size_t make(uint8_t *out, uint8_t major, const char *dict)
{
    size_t n = strlen(dict);
    size_t prefix = major == 1 ? 10 : 12;

    memcpy(out, "\x93NUMPY", 6);
    out[6] = major;
    out[7] = 0;
    memset(out + 8, 0, 4);
    out[8] = (uint8_t)(n & 0xff);
    out[9] = (uint8_t)(n >> 8);
    memcpy(out + prefix, dict, n);
    return prefix + n;
}

static hps_status parse(uint8_t major, const char *dict, struct hps_npy *npy, struct hps_error *err)
{
    uint8_t header[512];
    size_t n = make(header, major, dict);

    return hps_npy_parse(header, n, npy, err);
}

static void test_parse_when_versions_1_2_3_then_shape_type_and_offset(void **state)
{
    (void)state;
    static const char dict[] =
        "{'descr': '<f4', 'fortran_order': False, 'shape': (12, 34), }      \n";
    for (uint8_t major = 1; major <= 3; major++) {
        struct hps_npy npy;
        assert_int_equal(parse(major, dict, &npy, NULL), HPS_OK);
        assert_int_equal(npy.type, HPS_NPY_F4);
        assert_int_equal(npy.n_dims, 2);
        assert_int_equal(npy.shape[0], 12);
        assert_int_equal(npy.shape[1], 34);
        assert_int_equal(npy.data_offset, (major == 1 ? 10 : 12) + sizeof(dict) - 1);
        assert_int_equal(npy.data_bytes, 12 * 34 * 4);
    }
}

static void test_parse_when_other_spellings_of_python_then_read(void **state)
{
    (void)state;
    struct hps_npy npy;
    assert_int_equal(
        parse(1, "{\"shape\":(3L,),\"fortran_order\":False,\"descr\":\"<i8\"}", &npy, NULL),
        HPS_OK);
    assert_int_equal(npy.type, HPS_NPY_I8);
    assert_int_equal(npy.n_dims, 1);
    assert_int_equal(npy.data_bytes, 24);
    assert_int_equal(
        parse(1, "{'descr': '<u8', 'fortran_order': False, 'shape': ( 0 , ), }", &npy, NULL),
        HPS_OK);
    assert_int_equal(npy.data_bytes, 0);
    assert_int_equal(
        parse(1, "{'descr': '=f2', 'fortran_order': False, 'shape': (2, 3)}", &npy, NULL), HPS_OK);
    assert_int_equal(npy.data_bytes, 12);
    assert_int_equal(
        parse(1, "{'descr': '<u2', 'fortran_order': False, 'shape': (2, 3)}", &npy, NULL), HPS_OK);
    assert_int_equal(npy.type, HPS_NPY_U2);
    assert_int_equal(npy.data_bytes, 12);
    assert_int_equal(
        parse(1, "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3)}", &npy, NULL), HPS_OK);
    assert_int_equal(npy.type, HPS_NPY_U1);
    assert_int_equal(npy.data_bytes, 6);
}

static void test_parse_when_bfloat16_of_ml_dtypes_or_narrow_keys_then_read(void **state)
{
    (void)state;
    static const struct {
        const char *descr;
        enum hps_npy_type type;
        uint32_t bytes;
    } cases[] = {
        {"<V2", HPS_NPY_V2, 2}, /* numpy.save of ml_dtypes.bfloat16 */
        {"|V2", HPS_NPY_V2, 2}, {"bfloat16", HPS_NPY_BF16, 2}, {"<f2", HPS_NPY_F2, 2},
        {"<i4", HPS_NPY_I4, 4}, {"<u4", HPS_NPY_U4, 4},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char dict[128];
        struct hps_npy npy;
        (void)snprintf(dict, sizeof(dict),
                       "{'descr': '%s', 'fortran_order': False, 'shape': (2, 3), }",
                       cases[i].descr);
        assert_int_equal(parse(1, dict, &npy, NULL), HPS_OK);
        assert_int_equal(npy.type, cases[i].type);
        assert_int_equal(npy.data_bytes, 6 * cases[i].bytes);
    }
}

static void test_keys_when_narrow_then_widened_by_their_type(void **state)
{
    (void)state;
    const uint32_t packed[4] = {1, UINT32_MAX, UINT32_C(1) << 31, 7};
    hps_key keys[4];
    memcpy(keys, packed, sizeof(packed));
    hps_npy_widen_keys(HPS_NPY_I4, keys, 4);
    const hps_key with_sign[4] = {1, UINT64_MAX, UINT64_MAX << 31, 7};
    assert_memory_equal(keys, with_sign, sizeof(keys));
    memcpy(keys, packed, sizeof(packed));
    hps_npy_widen_keys(HPS_NPY_U4, keys, 4);
    const hps_key without[4] = {1, UINT32_MAX, UINT64_C(1) << 31, 7};
    assert_memory_equal(keys, without, sizeof(keys));
    hps_npy_widen_keys(HPS_NPY_U8, keys, 4);
    assert_memory_equal(keys, without, sizeof(keys));
}

static void test_parse_when_another_format_then_invalid_and_named(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t n;
        const char *text;
    } cases[] = {
        {"PK\3\4\24\0\0\0\0\0archive/data.pkl", 26, "a zip archive (torch.save"},
        {"\x89HDF\r\n\x1a\n\0\0\0", 11, "HDF5"},
        {"\x42\0\0\0\0\0\0\0{\"weight\":{\"dtype\":\"F32\"", 32, "safetensors"},
        {"PAR1\x15\4\x15\x10\x15\x14", 10, "Parquet"},
        {"ARROW1\0\0\xff\xff", 10, "Arrow"},
        {"\x80\2\x8a\nl\xfc\x9c\x46\xf9\x20", 10, "pickle"},
        {"\x08\x08\x12\7pytorch", 11, "ONNX"},
        {"\x1f\x8b\x08\0\0\0\0\0\0\3", 10, "gzip"},
        {"0.5,0.25,1.5\n", 13, "text"},
        {"\0\0\x80\x3f\0\0\0\x40\0\0\0\0", 12, "magic bytes \\x93NUMPY"}, /* numbers alone */
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct hps_npy npy;
        struct hps_error err = {0};
        assert_int_equal(hps_npy_parse((const uint8_t *)cases[i].bytes, cases[i].n, &npy, &err),
                         HPS_INVALID);
        if (strstr(err.text, cases[i].text) == NULL) {
            fail_msg("case %zu: '%s' is not in '%s'", i, cases[i].text, err.text);
        }
    }
}

static void test_parse_when_dict_is_wrong_then_invalid_and_names_why(void **state)
{
    (void)state;
    static const struct {
        const char *dict;
        const char *text;
    } cases[] = {
        {"{'descr': '>f4', 'fortran_order': False, 'shape': (1, 2), }", "big-endian"},
        {"{'descr': '<f4', 'fortran_order': True, 'shape': (1, 2), }", "fortran_order is True"},
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (1, 2), }", "dtype '<f8'"},
        {"{'descr': '|u2', 'fortran_order': False, 'shape': (1, 2), }", "dtype '|u2'"},
        {"{'descr': '|V1', 'fortran_order': False, 'shape': (1, 2), }", "dtype '|V1'"},
        {"{'descr': '<float16', 'fortran_order': False, 'shape': (1, 2), }", "dtype '<float16'"},
        {"{'descr': '|O', 'fortran_order': False, 'shape': (1, 2), }", "dtype '|O'"},
        {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1, 2), }", "quoted string"},
        {"{'descr': '<f4', 'fortran_order': Maybe, 'shape': (1, 2), }", "True or False"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2, 3), }", "at most 2"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (), }", "1 or 2 dimensions"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 2), }", "a number"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1 2), }", "in 'shape'"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': 1, }", "'(' of 'shape'"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (18446744073709551616, 2), }",
         "below 2^64"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4), }",
         "overflows"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2305843009213693951, 1), }",
         "overflows"},
        {"{'descr': '<f4', 'fortran_order': False, }", "before here"},
        {"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), }",
         "only once"},
        {"{'descr': '<f4', 'color': 'red', 'fortran_order': False, 'shape': (1, 2), }",
         "expected 'descr'"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), } x", "spaces up to"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2)", "',' or '}'"},
        {"{'descr': '<f4", "quotes"},
        {"{'descr' '<f4'}", "':'"},
        {"[]", "'{'"},
        {"", "'{'"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct hps_npy npy = {.n_dims = 99};
        struct hps_error err = {0};
        assert_int_equal(parse(1, cases[i].dict, &npy, &err), HPS_INVALID);
        if (strstr(err.text, cases[i].text) == NULL) {
            fail_msg("case %zu: '%s' is not in '%s'", i, cases[i].text, err.text);
        }
        assert_int_equal(npy.n_dims, 99); /* outputs only on success */
    }
}

static void test_parse_when_prefix_is_wrong_then_invalid(void **state)
{
    (void)state;
    uint8_t good[256];
    size_t n = make(good, 1, "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), }");
    struct hps_npy npy;
    struct hps_error err;
    for (size_t size = 0; size < n; size++) {
        assert_int_equal(hps_npy_parse(good, size, &npy, &err), HPS_INVALID);
    }
    uint8_t bad[256];
    memcpy(bad, good, n);
    bad[6] = 4;
    assert_int_equal(hps_npy_parse(bad, n, &npy, &err), HPS_INVALID);
    assert_non_null(strstr(err.text, "version 4.0"));
    memcpy(bad, good, n);
    bad[9] = 0xff;
    assert_int_equal(hps_npy_parse(bad, n, &npy, &err), HPS_INVALID);
    assert_non_null(strstr(err.text, "the file ends"));
    memcpy(bad, "PK\x03\x04", 4);
    assert_int_equal(hps_npy_parse(bad, n, &npy, &err), HPS_INVALID);
    assert_non_null(strstr(err.text, "a zip archive"));
    n = make(bad, 2, "{}");
    bad[11] = 0xff; /* 4 GB */
    assert_int_equal(hps_npy_parse(bad, n, &npy, &err), HPS_INVALID);
    assert_non_null(strstr(err.text, "at most 65536"));
}

static void test_format_when_parsed_again_then_the_same(void **state)
{
    (void)state;
    static const struct hps_npy shapes[] = {
        {.type = HPS_NPY_F4, .n_dims = 2, .shape = {0, 1}},
        {.type = HPS_NPY_F2, .n_dims = 2, .shape = {UINT64_C(1) << 44, 65536}},
        {.type = HPS_NPY_I8, .n_dims = 1, .shape = {UINT64_C(1) << 59, 0}},
        {.type = HPS_NPY_U8, .n_dims = 1, .shape = {7, 0}},
    };
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        uint8_t header[HPS_NPY_HEADER_BYTES];
        struct hps_npy npy;
        hps_npy_format(&shapes[i], header);
        assert_int_equal(hps_npy_parse(header, sizeof(header), &npy, NULL), HPS_OK);
        assert_int_equal(npy.type, shapes[i].type);
        assert_int_equal(npy.n_dims, shapes[i].n_dims);
        assert_int_equal(npy.shape[0], shapes[i].shape[0]);
        assert_int_equal(npy.shape[1], shapes[i].shape[1]);
        assert_int_equal(npy.data_offset, HPS_NPY_HEADER_BYTES);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse_when_versions_1_2_3_then_shape_type_and_offset),
        cmocka_unit_test(test_parse_when_other_spellings_of_python_then_read),
        cmocka_unit_test(test_parse_when_bfloat16_of_ml_dtypes_or_narrow_keys_then_read),
        cmocka_unit_test(test_keys_when_narrow_then_widened_by_their_type),
        cmocka_unit_test(test_parse_when_another_format_then_invalid_and_named),
        cmocka_unit_test(test_parse_when_dict_is_wrong_then_invalid_and_names_why),
        cmocka_unit_test(test_parse_when_prefix_is_wrong_then_invalid),
        cmocka_unit_test(test_format_when_parsed_again_then_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

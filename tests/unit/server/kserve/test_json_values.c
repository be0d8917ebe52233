/* SPDX-License-Identifier: Apache-2.0
 *
 * Values of tensors in JSON. One thread.
 */
#include <math.h>

#include "base/hash.h"
#include "server/kserve/json_scan.h"
#include "tests/unit/server/kserve/kserve_test.h"

static struct kserve_tensor tensor;

static hps_status read_values(enum kserve_datatype datatype, unsigned n_dims, const int64_t *shape,
                              const char *text)
{
    tensor = (struct kserve_tensor){.name = {"KEYS", 4}, .datatype = datatype, .n_dims = n_dims};
    memcpy(tensor.shape, shape, n_dims * sizeof(*shape));
    return kserve_json_values(in_block(text, strlen(text)), &tensor, arena, &err);
}

static hps_status read_flat(enum kserve_datatype datatype, int64_t n, const char *text)
{
    return read_values(datatype, 1, &n, text);
}

static void test_values_when_integers_then_all_of_them_are_read(void **state)
{
    static const int64_t expected[] = {0, -1, INT64_MAX, INT64_MIN, 10};

    (void)state;
    assert_int_equal(
        read_flat(KSERVE_INT64, 5, "[-0 , -1,\n9223372036854775807,\t-9223372036854775808,10\r]"),
        HPS_OK);
    assert_int_equal(tensor.size, sizeof(expected));
    assert_memory_equal(tensor.data, expected, sizeof(expected));
    assert_int_equal(read_flat(KSERVE_INT32, 2, "[2147483647,-2147483648]"), HPS_OK);
    assert_memory_equal(tensor.data, ((int32_t[]){INT32_MAX, INT32_MIN}), 8);
    assert_int_equal(read_flat(KSERVE_UINT8, 2, "[255,-0]"), HPS_OK);
    assert_memory_equal(tensor.data, "\xff\0", 2);
    assert_int_equal(read_flat(KSERVE_INT64, 0, "[ ]"), HPS_OK);
    assert_int_equal(tensor.size, 0);
    assert_null(tensor.data);
}

static void test_values_when_keys_have_any_bits_then_they_are_unchanged(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 2000; i++) {
        int64_t key = (int64_t)(hps_mix64(i) >> i % 64 << i % 7);
        int64_t got;
        char text[32];
        (void)snprintf(text, sizeof(text), "[%lld]", (long long)key);
        assert_int_equal(read_flat(KSERVE_INT64, 1, text), HPS_OK);
        memcpy(&got, tensor.data, sizeof(got));
        assert_true(got == key);
        hps_arena_reset(arena);
    }
}

static void test_values_when_one_is_no_integer_then_it_is_named(void **state)
{
    static const struct {
        enum kserve_datatype datatype;
        const char *value;
    } cases[] = {
        {KSERVE_INT64, "1e3"},
        {KSERVE_INT64, "1.5"},
        {KSERVE_INT64, "1.0"},
        {KSERVE_INT64, "\"1\""},
        {KSERVE_INT64, "true"},
        {KSERVE_INT64, "null"},
        {KSERVE_INT64, "{}"},
        {KSERVE_INT64, "-"},
        {KSERVE_INT64, "+1"},
        {KSERVE_INT64, "01"},
        {KSERVE_INT64, "-01"},
        {KSERVE_INT64, "0x1"},
        {KSERVE_INT64, "1\x01"},
        {KSERVE_INT64, "9223372036854775808"},
        {KSERVE_INT64, "-9223372036854775809"},
        {KSERVE_INT64, "18446744073709551617"},
        {KSERVE_INT64, "100000000000000000000000000000"},
        {KSERVE_INT32, "2147483648"},
        {KSERVE_INT32, "-2147483649"},
        {KSERVE_UINT8, "256"},
        {KSERVE_UINT8, "-1"},
    };
    char text[80];

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        (void)snprintf(text, sizeof(text), "[7, %s]", cases[i].value);
        assert_int_equal(read_flat(cases[i].datatype, 2, text), HPS_INVALID);
        assert_says("input 'KEYS': data[1]: '");
        assert_says("expected an integer of ");
    }
    assert_int_equal(read_flat(KSERVE_INT64, 2, "[1, 1e3]"), HPS_INVALID);
    assert_says("data[1]: '1e3', expected an integer of -9223372036854775808 to");
}

static void test_values_when_floats_then_rounded_to_nearest(void **state)
{
    static const float expected[] = {1, -0.5F, 1e10F, 0x1p-149F, 0, 0.1F, -0.0F, 16777216};
    float got[8];

    (void)state;
    assert_int_equal(read_flat(KSERVE_FP32, 8,
                               "[1,-0.5,1E+10,1.4e-45,1e-400,0.1000000014901161193847656,-0,"
                               "16777217]"),
                     HPS_OK);
    assert_int_equal(tensor.size, sizeof(expected));
    assert_memory_equal(tensor.data, expected, sizeof(expected));
    memcpy(got, tensor.data, sizeof(got));
    assert_true(signbit(got[6]));
}

static void test_values_when_one_is_no_float_then_it_is_named(void **state)
{
    static const char *const values[] = {"NaN", "Infinity", "-inf",  "0x1p3", "-0X1", "1.", "1.e5",
                                         ".5",  "1e",       "1e+",   "01.5",  "--1",  "1f", "\"1\"",
                                         "-",   "1e39",     "-1e39", "1e999", "true"};
    char text[80];

    (void)state;
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        (void)snprintf(text, sizeof(text), "[0,%s]", values[i]);
        assert_int_equal(read_flat(KSERVE_FP32, 2, text), HPS_INVALID);
        assert_says("input 'KEYS': data[1]: '");
        assert_says("expected a number");
    }
}

static void test_values_when_nested_like_the_shape_then_row_major(void **state)
{
    static const int64_t expected[] = {1, 2, 3, 4, 5, 6};
    static const int64_t shape[] = {2, 3};
    static const int64_t row[] = {1, 6};
    static const int64_t empty[] = {2, 0};

    (void)state;
    assert_int_equal(read_values(KSERVE_INT64, 2, shape, "[[1,2,3] , [4,5,6]]"), HPS_OK);
    assert_memory_equal(tensor.data, expected, sizeof(expected));
    assert_int_equal(read_values(KSERVE_INT64, 2, shape, "[1,2,3,4,5,6]"), HPS_OK);
    assert_memory_equal(tensor.data, expected, sizeof(expected));
    assert_int_equal(read_values(KSERVE_INT64, 2, row, "[[1,2,3,4,5,6]]"), HPS_OK);
    assert_memory_equal(tensor.data, expected, sizeof(expected));
    assert_int_equal(read_values(KSERVE_INT64, 2, empty, "[[],[ ]]"), HPS_OK);
    assert_int_equal(read_values(KSERVE_INT64, 0, shape, "[5]"), HPS_OK);
    assert_int_equal(tensor.size, 8);
}

static void test_values_when_nested_differently_then_refused(void **state)
{
    static const char *const texts[] = {
        "[[1,2],[3,4],[5,6]]", "[[1,2,3],4,5,6]", "[1,2,3,[4,5,6]]",     "[[1,2,3],[4,5]]",
        "[[[1,2,3],[4,5,6]]]", "[[1,2,3]]",       "[[1,2,3],[4,5,6],[]]"};
    static const int64_t shape[] = {2, 3};

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        assert_int_equal(read_values(KSERVE_INT64, 2, shape, texts[i]), HPS_INVALID);
        assert_says("input 'KEYS': data[");
    }
    assert_int_equal(read_values(KSERVE_INT64, 0, shape, "[[5]]"), HPS_INVALID);
}

static void test_values_when_the_array_is_no_json_then_refused(void **state)
{
    static const char *const texts[] = {"[1 2]", "[1,]", "[,1]", "[1,,2]", "[1}2]", "[1;2]", "[,]"};

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        assert_int_equal(read_flat(KSERVE_INT64, 2, texts[i]), HPS_INVALID);
        assert_says("input 'KEYS': data[");
    }
}

static void test_values_when_their_number_differs_from_the_shape_then_both_are_named(void **state)
{
    (void)state;
    assert_int_equal(read_flat(KSERVE_INT64, 3, "[1,2]"), HPS_INVALID);
    assert_says("input 'KEYS': data has 2 values, its shape has 3");
    assert_int_equal(read_flat(KSERVE_INT64, 1, "[1,2]"), HPS_INVALID);
    assert_says("data has 2 values, its shape has 1");
    assert_int_equal(read_flat(KSERVE_INT64, 0, "[1]"), HPS_INVALID);
    assert_int_equal(read_flat(KSERVE_INT64, 1, "[]"), HPS_INVALID);
    /* does not allocate 16 GB for two values */
    assert_int_equal(read_flat(KSERVE_INT64, INT32_MAX, "[1,2]"), HPS_INVALID);
    assert_says("data has 2 values, its shape has 2147483647");
    assert_int_equal(read_flat(KSERVE_INT64, -1, "[1,2]"), HPS_INVALID);
    assert_says("shape[0] is -1");
}

static void test_values_when_memory_is_short_then_exhausted(void **state)
{
    struct hps_buf text;

    (void)state;
    hps_buf_init(&text, 1 << 22);
    assert_int_equal(hps_buf_append(&text, "[1", 2), HPS_OK);
    for (unsigned i = 1; i < 200000; i++) {
        assert_int_equal(hps_buf_append(&text, ",1", 2), HPS_OK);
    }
    assert_int_equal(hps_buf_append(&text, "]", 2), HPS_OK);
    assert_int_equal(read_flat(KSERVE_INT64, 200000, (const char *)text.data), HPS_EXHAUSTED);
    assert_says("input 'KEYS': no memory for 1600000 bytes");
    assert_int_equal(read_flat(KSERVE_INT32, 200000, (const char *)text.data), HPS_OK);
    hps_buf_fini(&text);
}

static void test_values_when_the_datatype_has_none_in_json_then_refused(void **state)
{
    (void)state;
    assert_int_equal(read_flat(KSERVE_FP16, 1, "[1]"), HPS_INVALID);
    assert_says("input 'KEYS': values of FP16 cannot be sent as JSON");
    assert_int_equal(read_flat(KSERVE_BF16, 1, "[1]"), HPS_INVALID);
}

int main(void)
{
#define VALUES_TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        VALUES_TEST(test_values_when_integers_then_all_of_them_are_read),
        VALUES_TEST(test_values_when_keys_have_any_bits_then_they_are_unchanged),
        VALUES_TEST(test_values_when_one_is_no_integer_then_it_is_named),
        VALUES_TEST(test_values_when_floats_then_rounded_to_nearest),
        VALUES_TEST(test_values_when_one_is_no_float_then_it_is_named),
        VALUES_TEST(test_values_when_nested_like_the_shape_then_row_major),
        VALUES_TEST(test_values_when_nested_differently_then_refused),
        VALUES_TEST(test_values_when_the_array_is_no_json_then_refused),
        VALUES_TEST(test_values_when_their_number_differs_from_the_shape_then_both_are_named),
        VALUES_TEST(test_values_when_memory_is_short_then_exhausted),
        VALUES_TEST(test_values_when_the_datatype_has_none_in_json_then_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

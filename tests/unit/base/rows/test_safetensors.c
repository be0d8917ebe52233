/* SPDX-License-Identifier: Apache-2.0
 *
 * Headers of safetensors files: which are read, and what is refused. Files are read in
 * test_rowfile.c; the names of tables are in test_modeldir.c.
 */
#include "base/rows/safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/heap.h"

static hps_status parse(const char *text, uint64_t data_bytes, struct hps_safetensors *set,
                        struct hps_error *err)
{
    size_t n = strlen(text);
    char *head = hps_alloc(n + 1);
    assert_non_null(head);
    memcpy(head, text, n);
    return hps_safetensors_parse(head, n, 8 + n + data_bytes, set, err);
}

#define TENSOR(name, type, shape, offsets) \
    "\"" name "\":{\"dtype\":\"" type "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void test_parse_when_all_kinds_of_tensors_then_tables_are_known(void **state)
{
    (void)state;
    static const char text[] = "{" TENSOR("w", "F32", "[2, 3]", "[8,32]") ",\n\t" TENSOR(
        "v", "F8_E4M3", "[4]",
        "[0,4]") "," TENSOR("u", "BF16", "[1,2]",
                            "[4,8]") "," TENSOR("w.keys", "I64", "[2]",
                                                "[32,48]") "," TENSOR("none", "F32",
                                                                      "[0,9223372036854775807,8]",
                                                                      "[48,48]") ",\"__metadata__"
                                                                                 "\":{\"a\":"
                                                                                 "\"b\\\"}\",\"c\":"
                                                                                 "\"\"}}  ";
    struct hps_safetensors set = {0};
    struct hps_error err = {0};
    assert_int_equal(parse(text, 48, &set, &err), HPS_OK);
    assert_int_equal(set.n_tensors, 5);
    const struct hps_tensor *w = hps_safetensors_find(&set, "w");
    assert_true(hps_tensor_is_table(w));
    assert_int_equal(w->array.type, HPS_NPY_F4);
    assert_int_equal(w->array.shape[0], 2);
    assert_int_equal(w->array.shape[1], 3);
    assert_int_equal(w->array.data_offset, 8 + strlen(text) + 8);
    assert_true(hps_safetensors_is_companion(&set, hps_safetensors_find(&set, "w.keys")));
    assert_false(hps_safetensors_is_companion(&set, w));
    assert_false(hps_safetensors_find(&set, "v")->readable);
    assert_false(hps_safetensors_find(&set, "none")->readable);
    assert_null(hps_safetensors_find(&set, "W"));
    hps_safetensors_close(&set);
    hps_safetensors_close(&set);
    assert_int_equal(parse("{}", 0, &set, &err), HPS_OK);
    assert_null(hps_safetensors_find(&set, "w"));
    hps_safetensors_close(&set);
}

static void test_parse_when_wrong_then_it_says_what_was_expected(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t data_bytes;
        const char *expected;
    } all[] = {
        {"[]", 0, "byte 8: expected '{'"},
        {"{} x", 0, "spaces up to the end"},
        {"{\"a", 0, "the end of a string"},
        {"{\"a\\u0041\":1}", 0, "a name without escapes"},
        {"{\"a\":{\"x\":1}}", 0, "'dtype', 'shape' and 'data_offsets', each once"},
        {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}", 0, "each once"},
        {"{\"a\":{\"dtype\":\"U8\"}}", 0, "'dtype', 'shape' and 'data_offsets' before"},
        {"{\"a\":{\"shape\":[-1]}}", 0, "expected a number"},
        {"{\"a\":{\"shape\":[18446744073709551616]}}", 0, "a number below 2^64"},
        {"{" TENSOR("a", "U8", "[2]", "[0,2,3]") "}", 2, "two numbers"},
        {"{" TENSOR("a", "U8", "[2]", "[2,0]") "}", 2, "data end at byte 0"},
        {"{" TENSOR("a", "U8", "[2]", "[0,2]") "}", 1, "expected at most 1"},
        {"{" TENSOR("a", "U8", "[2]", "[0,2]") "}", 3, "3 bytes of data, expected 2"},
        {"{" TENSOR("a", "F32", "[2]", "[0,2]") "}", 2,
         "2 bytes of data, expected 2 values of F32"},
        {"{" TENSOR("a", "F32", "[4611686018427387904]", "[0,0]") "}", 0, "0 bytes of data"},
        {"{" TENSOR("a", "U8", "[1]", "[1,2]") "}", 2, "data begin at byte 1, expected 0"},
        {"{" TENSOR("a", "U8", "[2]", "[0,2]") "," TENSOR("b", "U8", "[2]", "[1,3]") "}", 3,
         "'b': data begin at byte 1, expected 2"},
        {"{" TENSOR("a", "U8", "[1]", "[0,1]") "," TENSOR("a", "U8", "[1]", "[1,2]") "}", 2,
         "tensor 'a' twice"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "a string in quotes"},
    };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        struct hps_safetensors set = {0};
        struct hps_error err = {0};
        assert_int_equal(parse(all[i].text, all[i].data_bytes, &set, &err), HPS_INVALID);
        if (strstr(err.text, all[i].expected) == NULL) {
            fail_msg("'%s' is not in '%s'", all[i].expected, err.text);
        }
        assert_null(set.head);
    }
}

static void test_path_when_it_names_a_tensor_then_the_file_ends_before_it(void **state)
{
    (void)state;
    assert_int_equal(hps_safetensors_file_size("/m/x.safetensors:a/b.w:s:b"), 16);
    assert_int_equal(hps_safetensors_file_size("/m/x.safetensors"), 16);
    assert_int_equal(hps_safetensors_file_size("/m/x:y.npy"), 10);
    assert_true(hps_safetensors_is_path("x.safetensors:a.npy"));
    assert_true(hps_safetensors_is_path("x.safetensors"));
    assert_false(hps_safetensors_is_path(".safetensors"));
    assert_false(hps_safetensors_is_path("x.safetensors.npy"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse_when_all_kinds_of_tensors_then_tables_are_known),
        cmocka_unit_test(test_parse_when_wrong_then_it_says_what_was_expected),
        cmocka_unit_test(test_path_when_it_names_a_tensor_then_the_file_ends_before_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

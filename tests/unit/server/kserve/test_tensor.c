/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors and parameters of KServe: valid combinations, and refusals by name. One thread.
 */
#include "tests/unit/server/kserve/kserve_test.h"

static struct kserve_infer infer;

static int setup_infer(void **state)
{
    infer = (struct kserve_infer){.wait_us_max = -1};
    return setup(state);
}

static struct kserve_text text(const char *text)
{
    return (struct kserve_text){.at = text, .size = strlen(text)};
}

/* ---- datatypes ------------------------------------------------------------------------------- */

static void test_datatype_when_named_then_its_name_and_size_are_right(void **state)
{
    static const size_t bytes[KSERVE_DATATYPES] = {0, 1, 4, 8, 2, 2, 4};

    (void)state;
    for (unsigned i = KSERVE_UNKNOWN + 1; i < KSERVE_DATATYPES; i++) {
        const char *name = kserve_datatype_name((enum kserve_datatype)i);
        assert_int_equal(kserve_datatype_of(name, strlen(name)), i);
        assert_int_equal(kserve_datatype_bytes((enum kserve_datatype)i), bytes[i]);
    }
    assert_string_equal(kserve_datatype_name(KSERVE_UNKNOWN), "?");
    assert_int_equal(kserve_datatype_bytes(KSERVE_UNKNOWN), 0);
}

static void test_datatype_when_the_name_is_unknown_then_unknown(void **state)
{
    static const struct kserve_text texts[] = {
        {"?", 1}, {"", 0}, {NULL, 0}, {"INT6", 4}, {"INT64\0", 6}, {"int64", 5}, {"BYTES", 5}};

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        assert_int_equal(kserve_datatype_of(texts[i].at, texts[i].size), KSERVE_UNKNOWN);
    }
}

/* ---- parameters ------------------------------------------------------------------------------ */

static hps_status take_number(const char *name, int64_t number)
{
    struct kserve_parameter parameter = {
        .name = text(name), .type = KSERVE_PARAMETER_NUMBER, .number = number};

    return kserve_take_parameter(&infer, &parameter, &err);
}

static hps_status take_text(const char *name, const char *value)
{
    struct kserve_parameter parameter = {
        .name = text(name), .type = KSERVE_PARAMETER_TEXT, .text = text(value)};

    return kserve_take_parameter(&infer, &parameter, &err);
}

static void test_parameter_when_it_is_hpsds_then_it_is_used(void **state)
{
    (void)state;
    assert_int_equal(take_number("timeout", INT64_MAX), HPS_OK);
    assert_int_equal(take_number("hps_max_wait_us", 0), HPS_OK);
    assert_int_equal(take_text("hps_miss_policy", "wait"), HPS_OK);
    assert_int_equal(take_text("hps_output_type", "FP16"), HPS_OK);
    assert_int_equal(take_text("hps_pooling", "sum"), HPS_OK);
    assert_true(infer.timeout_us == INT64_MAX);
    assert_int_equal(infer.wait_us_max, 0);
    assert_memory_equal(infer.miss_policy.at, "wait", 4);
    assert_memory_equal(infer.output_type.at, "FP16", 4);
    assert_memory_equal(infer.pooling.at, "sum", 3);
    assert_int_equal(infer.pooling.size, 3);
}

static void test_parameter_when_it_is_wrong_or_unknown_then_refused_by_name_or_ignored(void **state)
{
    static const struct {
        const char *name;
        const char *value; /* NULL: the number */
        int64_t number;
        const char *says; /* NULL: accepted */
    } cases[] = {
        {"timeout", "5", 0, "'timeout' is not an integer"},
        {"hps_pooling", NULL, 1, "'hps_pooling' is not a string"},
        {"timeout", NULL, -1, "'timeout' is -1"},
        {"hps_max_wait_us", NULL, INT64_MIN, "'hps_max_wait_us' is -9223372036854775808"},
        {"sequence_id", NULL, 4, NULL},
        {"priority", NULL, 4, NULL},
        {"", "nothing", 0, NULL},
        {"hp", "nothing", 0, NULL},
        {"hps_mis_policy", "wait", 0,
         "'hps_mis_policy' is unknown, expected hps_max_wait_us, hps_miss_policy"},
        {"triton_final_response", NULL, 1,
         "'triton_final_response': names that begin with triton_ are reserved"},
    };
    const struct kserve_parameter other = {.name = text("triton_enable_empty_final_response"),
                                           .type = KSERVE_PARAMETER_OTHER};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        hps_status status = cases[i].value != NULL ? take_text(cases[i].name, cases[i].value)
                                                   : take_number(cases[i].name, cases[i].number);
        assert_int_equal(status, cases[i].says == NULL ? HPS_OK : HPS_INVALID);
        assert_says(cases[i].says == NULL ? "" : cases[i].says);
    }
    assert_int_equal(infer.timeout_us, 0);
    assert_int_equal(infer.wait_us_max, -1);
    assert_int_equal(kserve_take_parameter(&infer, &other, &err), HPS_OK);
}

static void test_parameter_of_a_tensor_when_it_is_unsupported_then_refused(void **state)
{
    static const struct {
        enum kserve_side side;
        const char *tensor, *parameter;
        hps_status status;
        const char *says;
    } cases[] = {
        {KSERVE_INPUT, "KEYS", "shared_memory_region", HPS_UNIMPLEMENTED,
         "input 'KEYS', parameter 'shared_memory_region': shared memory is not supported"},
        {KSERVE_OUTPUT, "OUTPUT0", "classification", HPS_UNIMPLEMENTED,
         "output 'OUTPUT0', parameter 'classification'"},
        {KSERVE_OUTPUT, "OUTPUT0", "hps_output_type", HPS_INVALID, "belong to the request"},
        {KSERVE_INPUT, "KEYS", "classification", HPS_OK, ""},
        {KSERVE_INPUT, "KEYS", "mine", HPS_OK, ""},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(kserve_check_parameter(cases[i].side, text(cases[i].tensor),
                                                text(cases[i].parameter), &err),
                         cases[i].status);
        assert_says(cases[i].says);
    }
}

/* ---- tensors --------------------------------------------------------------------------------- */

static struct kserve_tensor tensor(const char *name, unsigned n_dims, int64_t a, int64_t b)
{
    return (struct kserve_tensor){.name = text(name),
                                  .datatype = KSERVE_INT64,
                                  .n_dims = n_dims,
                                  .shape = {a, b, 2, 2, 2, 2, 2, 2}};
}

static hps_status check(struct kserve_tensor *inputs, uint32_t n_inputs)
{
    infer.inputs = inputs;
    infer.n_inputs = n_inputs;
    return kserve_check_tensors(&infer, arena, &err);
}

static void test_tensors_when_bytes_match_the_shape_then_ok(void **state)
{
    static const uint8_t bytes[48];
    struct kserve_tensor inputs[3] = {tensor("c", 2, 3, 2), tensor("a", 0, 0, 0),
                                      tensor("b", 2, 0, INT32_MAX)};
    size_t size;

    (void)state;
    inputs[0].data = bytes;
    inputs[0].size = 48;
    inputs[1].data = bytes;
    inputs[1].size = 8; /* no dimension: one value */
    assert_int_equal(check(inputs, 3), HPS_OK);
    assert_string_equal(inputs[0].name.at, "c");
    assert_int_equal(kserve_tensor_bytes(&inputs[0], &size, &err), HPS_OK);
    assert_int_equal(size, 48);
    assert_int_equal(check(NULL, 0), HPS_OK);
}

static void test_tensors_when_sizes_differ_then_both_are_named(void **state)
{
    struct kserve_tensor input = tensor("KEYS", 2, 1, 3);

    (void)state;
    input.size = 23;
    assert_int_equal(check(&input, 1), HPS_INVALID);
    assert_says("input 'KEYS': got 23 bytes, but 3 values of INT64 have 24");
}

static void test_tensors_when_a_shape_is_too_large_then_refused(void **state)
{
    static const struct {
        int64_t a, b;
        const char *says;
    } cases[] = {
        {-1, 1, "shape[0] is -1"},
        {0, INT64_MIN, "shape[1] is -9223372036854775808"},
        {0, INT64_C(1) << 31, "shape[1] is 2147483648, expected 0 to 2147483647"},
        {INT64_C(1) << 30, 2, "has 2147483648 values or more, limit is 2147483647"},
        {INT32_MAX, INT32_MAX, "values or more, limit is"},
        {INT64_C(1) << 61, 8, "shape[0] is 2305843009213693952"}, /* 2^64 bytes would be 0 */
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct kserve_tensor input = tensor("KEYS", 2, cases[i].a, cases[i].b);
        assert_int_equal(check(&input, 1), HPS_INVALID);
        assert_says(cases[i].says);
    }
    struct kserve_tensor deep = tensor("KEYS", KSERVE_DIMS_MAX, INT32_MAX, 0);
    for (unsigned i = 2; i < KSERVE_DIMS_MAX; i++) {
        deep.shape[i] = INT32_MAX;
    }
    assert_int_equal(check(&deep, 1), HPS_OK); /* no values */
    deep.shape[1] = 1;
    assert_int_equal(check(&deep, 1), HPS_INVALID);
}

static void test_tensors_when_a_datatype_is_missing_then_refused(void **state)
{
    struct kserve_tensor input = tensor("KEYS", 1, 0, 0);

    (void)state;
    input.datatype = KSERVE_UNKNOWN;
    assert_int_equal(check(&input, 1), HPS_INVALID);
    assert_says("input 'KEYS': got no datatype");
}

static void test_tensors_when_a_name_is_duplicate_then_refused(void **state)
{
    struct kserve_tensor inputs[3] = {tensor("a", 1, 0, 0), tensor("bb", 1, 0, 0),
                                      tensor("a", 1, 0, 0)};
    struct kserve_output outputs[3] = {
        {.name = text("x")}, {.name = text("y")}, {.name = text("y")}};

    (void)state;
    assert_int_equal(check(inputs, 3), HPS_INVALID);
    assert_says("got input 'a' twice");
    inputs[2].name = text("");
    assert_int_equal(check(inputs, 3), HPS_INVALID);
    assert_says("an input without a name");
    infer.outputs = outputs;
    infer.n_outputs = 3;
    assert_int_equal(check(inputs, 2), HPS_INVALID);
    assert_says("got output 'y' twice");
    infer.n_outputs = 2;
    assert_int_equal(check(inputs, 2), HPS_OK);
    assert_string_equal(outputs[0].name.at, "x");
}

static void test_tensors_when_the_arena_is_full_then_exhausted(void **state)
{
    struct kserve_tensor input = tensor("a", 1, 0, 0);
    struct hps_arena *full = hps_arena_new(64, 64);

    (void)state;
    assert_non_null(full);
    while (hps_arena_alloc(full, 1) != NULL) {
    }
    infer.inputs = &input;
    infer.n_inputs = 1;
    assert_int_equal(kserve_check_tensors(&infer, full, &err), HPS_EXHAUSTED);
    hps_arena_free(full);
}

static void test_tensors_max_when_tables_are_at_their_limit_then_no_overflow(void **state)
{
    (void)state;
    assert_true(kserve_tensors_max(&(struct hps_decode_limits){.tables_max = UINT32_MAX}) ==
                UINT64_C(3) * UINT32_MAX + 8);
}

int main(void)
{
#define TENSOR_TEST(fn) cmocka_unit_test_setup_teardown(fn, setup_infer, teardown)
    const struct CMUnitTest tests[] = {
        TENSOR_TEST(test_datatype_when_named_then_its_name_and_size_are_right),
        TENSOR_TEST(test_datatype_when_the_name_is_unknown_then_unknown),
        TENSOR_TEST(test_parameter_when_it_is_hpsds_then_it_is_used),
        TENSOR_TEST(test_parameter_when_it_is_wrong_or_unknown_then_refused_by_name_or_ignored),
        TENSOR_TEST(test_parameter_of_a_tensor_when_it_is_unsupported_then_refused),
        TENSOR_TEST(test_tensors_when_bytes_match_the_shape_then_ok),
        TENSOR_TEST(test_tensors_when_sizes_differ_then_both_are_named),
        TENSOR_TEST(test_tensors_when_a_shape_is_too_large_then_refused),
        TENSOR_TEST(test_tensors_when_a_datatype_is_missing_then_refused),
        TENSOR_TEST(test_tensors_when_a_name_is_duplicate_then_refused),
        TENSOR_TEST(test_tensors_when_the_arena_is_full_then_exhausted),
        TENSOR_TEST(test_tensors_max_when_tables_are_at_their_limit_then_no_overflow),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

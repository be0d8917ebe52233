/* SPDX-License-Identifier: Apache-2.0
 *
 * Answers to infer requests over HTTP, as jansson reads them, with the rows behind. One thread.
 */
#include "config/json.h"
#include "server/kserve/infer.h"
#include "tests/lib/encode_fixture.h"

/* A body in one piece, and its JSON. */
struct answered {
    uint8_t *bytes;
    size_t size;
    size_t json_size;
    json_t *json;
};

static struct kserve_text text(const char *at)
{
    return (struct kserve_text){at, strlen(at)};
}

static struct kserve_answer answer_of(struct kserve_answer_output *outputs, uint32_t n)
{
    return (struct kserve_answer){
        .model = text("dlrm"), .id = text("r-1"), .outputs = outputs, .n_outputs = n};
}

static hps_status encode(struct encode_test *t, const struct kserve_answer *answer,
                         struct hps_encoded *out_encoded, size_t *out_json_size)
{
    hps_status status =
        kserve_answer_http(answer, &t->lookup, t->rows, t->pool, t->arena, out_encoded, &t->err);

    *out_json_size = status == HPS_OK ? out_encoded->json_size : 0;
    return status;
}

static struct answered answer(struct encode_test *t, const struct kserve_answer *of)
{
    struct answered got = {0};
    struct hps_encoded encoded;
    json_error_t error;
    size_t at = 0;

    assert_int_equal(encode(t, of, &encoded, &got.json_size), HPS_OK);
    assert_true(encoded.size <= kserve_answer_http_bytes_max(of, &t->lookup));
    got.size = (size_t)encoded.size;
    got.bytes = hps_alloc(got.size);
    assert_non_null(got.bytes);
    for (unsigned i = 0; i < encoded.n_slices; i++) {
        assert_true(encoded.slices[i].size > 0 && at + encoded.slices[i].size <= got.size);
        memcpy(got.bytes + at, encoded.slices[i].data, encoded.slices[i].size);
        at += encoded.slices[i].size;
    }
    assert_int_equal(at, got.size);
    hps_encoded_release(&encoded);
    assert_int_equal(hps_json_load((const char *)got.bytes, got.json_size, 0, &got.json, &error),
                     HPS_OK);
    return got;
}

static void forget(struct answered *got)
{
    json_decref(got->json);
    hps_free(got->bytes);
}

static const json_t *output_of(const struct answered *got, size_t i)
{
    return json_array_get(json_object_get(got->json, "outputs"), i);
}

static void assert_member(const json_t *object, const char *name, const char *expected)
{
    assert_string_equal(json_string_value(json_object_get(object, name)), expected);
}

static void assert_shape(const json_t *output, size_t n_dims, int64_t a, int64_t b)
{
    const json_t *shape = json_object_get(output, "shape");

    assert_int_equal(json_array_size(shape), n_dims);
    assert_int_equal(json_integer_value(json_array_get(shape, 0)), a);
    assert_int_equal(json_integer_value(json_array_get(shape, 1)), b);
}

static int64_t binary_size(const json_t *output)
{
    return json_integer_value(
        json_object_get(json_object_get(output, "parameters"), "binary_data_size"));
}

/* Rows of a part, where the body has them. */
static size_t check_rows(const struct encode_test *t, const struct answered *got, size_t at,
                         uint32_t p)
{
    assert_true(at + t->parts[p].rows_bytes <= got->size);
    assert_memory_equal(got->bytes + at, t->parts[p].rows, t->parts[p].rows_bytes);
    return at + (size_t)t->parts[p].rows_bytes;
}

static void test_answer_when_rows_are_flat_then_all_parts_are_behind_the_json(void **state)
{
    struct encode_test *t = *state;
    struct kserve_answer_output output = {
        .name = {"OUTPUT0", 7}, .kind = KSERVE_OUTPUT_FLAT, .binary = true};
    struct kserve_answer of = answer_of(&output, 1);

    of.by_position = true;
    encode_lookup(t, &(struct encode_ask){ENCODE_PARTS, 100, 500, false, false});
    struct answered got = answer(t, &of);
    const json_t *parameters = json_object_get(got.json, "parameters");
    assert_member(got.json, "model_name", "dlrm");
    assert_member(got.json, "model_version", "7");
    assert_member(got.json, "id", "r-1");
    assert_int_equal(json_integer_value(json_object_get(parameters, "NumSample")), 100);
    assert_int_equal(json_integer_value(json_object_get(parameters, "DeviceID")), 0);
    assert_int_equal(json_array_size(json_object_get(got.json, "outputs")), 1);
    assert_member(output_of(&got, 0), "name", "OUTPUT0");
    assert_member(output_of(&got, 0), "datatype", "FP32");
    assert_shape(output_of(&got, 0), 1, 100 * (4 + 3 + 16), 0);
    assert_int_equal(binary_size(output_of(&got, 0)), 100 * (4 + 3 + 16) * 4);
    size_t at = got.json_size;
    for (uint32_t p = 0; p < ENCODE_PARTS; p++) {
        at = check_rows(t, &got, at, p);
    }
    assert_int_equal(at, got.size);
    forget(&got);
}

static void test_answer_when_outputs_are_mixed_then_binary_ones_follow_in_their_order(void **state)
{
    struct encode_test *t = *state;
    struct kserve_answer_output outputs[4] = {
        {.name = {"t2", 2}, .kind = KSERVE_OUTPUT_TABLE, .part = 2, .binary = true},
        {.name = {"STATUS", 6}, .kind = KSERVE_OUTPUT_STATUS, .binary = true},
        {.name = {"t1", 2}, .kind = KSERVE_OUTPUT_TABLE, .part = 1},
        {.name = {"t0", 2}, .kind = KSERVE_OUTPUT_TABLE, .part = 0, .binary = true},
    };
    struct kserve_answer of = answer_of(outputs, 4);

    of.id = (struct kserve_text){0};
    encode_lookup(t, &(struct encode_ask){ENCODE_PARTS, 50, 500, false, false});
    struct answered got = answer(t, &of);
    assert_null(json_object_get(got.json, "id"));
    assert_null(json_object_get(got.json, "parameters"));
    assert_shape(output_of(&got, 0), 2, 50, 16);
    assert_member(output_of(&got, 1), "datatype", "UINT8");
    assert_shape(output_of(&got, 1), 1, 150, 0);
    assert_int_equal(binary_size(output_of(&got, 1)), 150);
    assert_null(json_object_get(output_of(&got, 0), "data"));
    assert_null(json_object_get(output_of(&got, 2), "parameters"));
    size_t at = check_rows(t, &got, got.json_size, 2);
    for (uint32_t p = 0; p < ENCODE_PARTS; p++) {
        assert_memory_equal(got.bytes + at, t->parts[p].key_status, 50);
        at += 50;
    }
    at = check_rows(t, &got, at, 0);
    assert_int_equal(at, got.size);
    forget(&got);
}

static void test_answer_when_rows_are_json_then_they_read_back_the_same(void **state)
{
    struct encode_test *t = *state;
    struct kserve_answer_output outputs[2] = {
        {.name = {"OUTPUT0", 7}, .kind = KSERVE_OUTPUT_FLAT},
        {.name = {"STATUS", 6}, .kind = KSERVE_OUTPUT_STATUS},
    };
    struct kserve_answer of = answer_of(outputs, 2);
    size_t at = 0;

    encode_lookup(t, &(struct encode_ask){ENCODE_PARTS, 100, 500, false, false});
    ((float *)(void *)t->parts[1].rows)[5] = -0x1.fffffep127F;
    ((float *)(void *)t->parts[1].rows)[6] = -0x1.2p-149F;
    struct answered got = answer(t, &of);
    const json_t *data = json_object_get(output_of(&got, 0), "data");
    assert_int_equal(got.size, got.json_size);
    assert_int_equal(json_array_size(data), 100 * (4 + 3 + 16));
    for (uint32_t p = 0; p < ENCODE_PARTS; p++) {
        for (size_t i = 0; i < t->parts[p].rows_bytes / sizeof(float); i++) {
            float value = (float)json_number_value(json_array_get(data, at++));
            assert_memory_equal(&value, t->parts[p].rows + i * sizeof(value), sizeof(value));
        }
    }
    data = json_object_get(output_of(&got, 1), "data");
    assert_int_equal(json_array_size(data), 300);
    for (size_t i = 0; i < 300; i++) {
        assert_int_equal(json_integer_value(json_array_get(data, i)),
                         t->parts[i / 100].key_status[i % 100]);
    }
    forget(&got);
}

static void test_answer_when_rows_are_sent_then_they_are_not_copied(void **state)
{
    struct encode_test *t = *state;
    struct kserve_answer_output output = {
        .name = {"OUTPUT0", 7}, .kind = KSERVE_OUTPUT_FLAT, .binary = true};
    const struct kserve_answer of = answer_of(&output, 1);
    struct hps_encoded encoded;
    size_t json_size;

    encode_lookup(t, &(struct encode_ask){ENCODE_PARTS, 100, 500, false, false});
    assert_int_equal(encode(t, &of, &encoded, &json_size), HPS_OK);
    assert_int_equal(encoded.n_slices, 1 + ENCODE_PARTS);
    for (uint32_t p = 0; p < ENCODE_PARTS; p++) {
        assert_ptr_equal(encoded.slices[1 + p].data, t->parts[p].rows);
        assert_ptr_equal(encoded.slices[1 + p].block, t->rows);
    }
    hps_encoded_release(&encoded);
}

static void test_answer_when_there_are_no_keys_then_no_values(void **state)
{
    struct encode_test *t = *state;
    struct kserve_answer_output outputs[3] = {
        {.name = {"a", 1}, .kind = KSERVE_OUTPUT_FLAT},
        {.name = {"b", 1}, .kind = KSERVE_OUTPUT_FLAT, .binary = true},
        {.name = {"c", 1}, .kind = KSERVE_OUTPUT_STATUS, .binary = true},
    };
    struct kserve_answer of = answer_of(outputs, 3);

    of.by_position = true;
    encode_lookup(t, &(struct encode_ask){0, 0, 1, false, false});
    struct answered got = answer(t, &of);
    assert_int_equal(got.size, got.json_size);
    assert_int_equal(json_array_size(json_object_get(output_of(&got, 0), "data")), 0);
    assert_non_null(json_object_get(output_of(&got, 0), "data"));
    assert_int_equal(binary_size(output_of(&got, 1)), 0);
    assert_shape(output_of(&got, 2), 1, 0, 0);
    forget(&got);
}

static void test_answer_when_names_have_anything_in_them_then_they_are_escaped(void **state)
{
    struct encode_test *t = *state;
    static const char name[] = "a\"\\\n\x01\xc3\xa4\x7f";
    struct kserve_answer_output output = {
        .name = {name, sizeof(name) - 1}, .kind = KSERVE_OUTPUT_FLAT, .binary = true};
    struct kserve_answer of = answer_of(&output, 1);

    of.model =
        (struct kserve_text){"m\xff", 2}; /* a model has no such name, but it costs nothing */
    encode_lookup(t, &(struct encode_ask){1, 1, 1, false, false});
    struct answered got = answer(t, &of);
    assert_member(output_of(&got, 0), "name", name);
    assert_member(got.json, "model_name", "m\xef\xbf\xbd");
    forget(&got);
}

/* ---- what JSON cannot say -------------------------------------------------------------------- */

static void assert_refused(struct encode_test *t, const struct kserve_answer *of, const char *says)
{
    struct hps_encoded encoded;
    size_t json_size;

    assert_int_equal(encode(t, of, &encoded, &json_size), HPS_INVALID);
    if (strstr(t->err.text, says) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", t->err.text, says);
    }
}

static void test_answer_when_a_value_is_not_finite_then_refused_as_json(void **state)
{
    struct encode_test *t = *state;
    struct kserve_answer_output output = {.name = {"OUTPUT0", 7}, .kind = KSERVE_OUTPUT_FLAT};
    const struct kserve_answer of = answer_of(&output, 1);

    encode_lookup(t, &(struct encode_ask){ENCODE_PARTS, 10, 500, false, false});
    memcpy(t->parts[1].rows, &(float){__builtin_nanf("")}, sizeof(float));
    assert_refused(t, &of,
                   "output 'OUTPUT0': value 40 is not a number, which JSON cannot hold; request it "
                   "with parameters.binary_data");
    memcpy(t->parts[0].rows, &(float){-__builtin_inff()}, sizeof(float));
    assert_refused(t, &of, "output 'OUTPUT0': value 0 is infinite");
    output.binary = true;
    struct answered got = answer(t, &of);
    (void)check_rows(t, &got, got.json_size, 0);
    forget(&got);
}

static void test_answer_when_rows_are_halves_then_refused_as_json_before_and_behind(void **state)
{
    struct encode_test *t = *state;
    struct kserve_answer_output outputs[2] = {
        {.name = {"STATUS", 6}, .kind = KSERVE_OUTPUT_STATUS},
        {.name = {"t0", 2}, .kind = KSERVE_OUTPUT_TABLE, .part = 0},
    };
    const struct kserve_answer of = answer_of(outputs, 2);

    t->lookup.output = HPS_DTYPE_FP16;
    encode_lookup(t, &(struct encode_ask){ENCODE_PARTS, 10, 500, false, false});
    assert_refused(t, &of, "output 't0': values of FP16 cannot be sent as JSON; request it with");
    assert_int_equal(kserve_answer_http_check(&of, HPS_DTYPE_BF16, &t->err), HPS_INVALID);
    assert_non_null(strstr(t->err.text, "output 't0': values of BF16"));
    assert_int_equal(kserve_answer_http_check(&of, HPS_DTYPE_FP32, &t->err), HPS_OK);
    outputs[1].binary = true;
    assert_int_equal(kserve_answer_http_check(&of, HPS_DTYPE_FP16, &t->err), HPS_OK);
    struct answered got = answer(t, &of);
    assert_member(output_of(&got, 1), "datatype", "FP16");
    assert_int_equal(binary_size(output_of(&got, 1)), 10 * 4 * 2);
    forget(&got);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void test_answer_when_the_arena_is_full_then_exhausted(void **state)
{
    struct encode_test *t = *state;
    struct kserve_answer_output output = {
        .name = {"OUTPUT0", 7}, .kind = KSERVE_OUTPUT_FLAT, .binary = true};
    const struct kserve_answer of = answer_of(&output, 1);
    struct hps_encoded encoded;

    encode_lookup(t, &(struct encode_ask){ENCODE_PARTS, 10, 500, false, false});
    for (size_t room = 64; room < 1024; room += 64) {
        struct hps_arena *small = hps_arena_new(room, room);
        assert_non_null(small);
        hps_status status =
            kserve_answer_http(&of, &t->lookup, t->rows, t->pool, small, &encoded, &t->err);
        assert_true(status == HPS_OK || status == HPS_EXHAUSTED);
        if (status == HPS_OK) {
            hps_encoded_release(&encoded);
        }
        assert_true(room > 64 || status == HPS_EXHAUSTED);
        hps_arena_free(small);
    }
}

int main(void)
{
#define ANSWER_TEST(fn) cmocka_unit_test_setup_teardown(fn, encode_setup, encode_teardown)
    const struct CMUnitTest tests[] = {
        ANSWER_TEST(test_answer_when_rows_are_flat_then_all_parts_are_behind_the_json),
        ANSWER_TEST(test_answer_when_outputs_are_mixed_then_binary_ones_follow_in_their_order),
        ANSWER_TEST(test_answer_when_rows_are_json_then_they_read_back_the_same),
        ANSWER_TEST(test_answer_when_rows_are_sent_then_they_are_not_copied),
        ANSWER_TEST(test_answer_when_there_are_no_keys_then_no_values),
        ANSWER_TEST(test_answer_when_names_have_anything_in_them_then_they_are_escaped),
        ANSWER_TEST(test_answer_when_a_value_is_not_finite_then_refused_as_json),
        ANSWER_TEST(test_answer_when_rows_are_halves_then_refused_as_json_before_and_behind),
        ANSWER_TEST(test_answer_when_the_arena_is_full_then_exhausted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

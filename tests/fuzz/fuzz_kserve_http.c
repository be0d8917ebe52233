/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares the decoder of HTTP infer requests with jansson, which parses the complete JSON. If hpsd
 * accepts a body, jansson must accept it, and names, shapes and values must be equal. If hpsd calls
 * a text invalid JSON, jansson must reject it. An input has two bytes, the size of the JSON
 * (0xffff: all, without a header for it), and then the body.
 */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/assert.h"
#include "base/heap.h"
#include "config/json.h"
#include "server/kserve/infer.h"

enum { ARENA_BYTES = 1 << 20 };

static const struct hps_decode_limits LIMITS = {
    .tables_max = 8, .keys_max = 4096, .request_id_max = 64};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_text(struct kserve_text ours, const json_t *theirs)
{
    HPS_ASSERT(json_is_string(theirs) && json_string_length(theirs) == ours.size);
    HPS_ASSERT(memcmp(ours.at, json_string_value(theirs), ours.size) == 0);
}

/* The value must be the next one of the tensor, at *at. */
static void check_value(const struct kserve_tensor *ours, const json_t *theirs, size_t *at)
{
    size_t bytes = kserve_datatype_bytes(ours->datatype);
    int64_t integer = 0;
    float number;

    HPS_ASSERT(*at + bytes <= ours->size);
    if (ours->datatype == KSERVE_FP32) {
        HPS_ASSERT(json_is_number(theirs));
        memcpy(&number, ours->data + *at, bytes);
        /* jansson has rounded it to a double */
        float expected = (float)json_number_value(theirs);
        HPS_ASSERT(isfinite(number));
        HPS_ASSERT(number == expected || nextafterf(number, INFINITY) == expected ||
                   nextafterf(number, -INFINITY) == expected);
    } else {
        HPS_ASSERT(json_is_integer(theirs));
        memcpy(&integer, ours->data + *at, bytes);
        integer = ours->datatype == KSERVE_INT32 ? (int32_t)integer : integer;
        HPS_ASSERT(integer == json_integer_value(theirs));
    }
    *at += bytes;
}

static void check_values(const struct kserve_tensor *ours, const json_t *theirs, size_t *at)
{
    HPS_ASSERT(json_is_array(theirs));
    for (size_t i = 0; i < json_array_size(theirs); i++) {
        const json_t *value = json_array_get(theirs, i);
        if (json_is_array(value)) {
            check_values(ours, value, at);
        } else {
            check_value(ours, value, at);
        }
    }
}

/* Raw values follow the JSON, one tensor after another, up to the end. */
struct raw {
    const uint8_t *at;
    const uint8_t *end;
};

static void check_input(const struct kserve_tensor *ours, const json_t *theirs, struct raw *raw)
{
    const json_t *shape = json_object_get(theirs, "shape");
    const json_t *datatype = json_object_get(theirs, "datatype");
    const json_t *data = json_object_get(theirs, "data");
    const json_t *binary =
        json_object_get(json_object_get(theirs, "parameters"), "binary_data_size");
    uint64_t n = 1;
    size_t at = 0;

    check_text(ours->name, json_object_get(theirs, "name"));
    HPS_ASSERT(strcmp(json_string_value(datatype), kserve_datatype_name(ours->datatype)) == 0);
    HPS_ASSERT(json_array_size(shape) == ours->n_dims);
    for (unsigned i = 0; i < ours->n_dims; i++) {
        HPS_ASSERT(json_integer_value(json_array_get(shape, i)) == ours->shape[i]);
        n *= (uint64_t)ours->shape[i];
    }
    HPS_ASSERT(ours->size == n * kserve_datatype_bytes(ours->datatype));
    HPS_ASSERT((data == NULL) != (binary == NULL));
    if (data != NULL) {
        check_values(ours, data, &at);
        HPS_ASSERT(at == ours->size);
    } else {
        HPS_ASSERT(json_integer_value(binary) == (int64_t)ours->size);
        HPS_ASSERT(ours->size == 0 || ours->data == raw->at);
        HPS_ASSERT((size_t)(raw->end - raw->at) >= ours->size);
        raw->at += ours->size;
    }
}

static void check_output(const struct kserve_output *ours, const json_t *theirs, bool binary)
{
    const json_t *own = json_object_get(json_object_get(theirs, "parameters"), "binary_data");

    check_text(ours->name, json_object_get(theirs, "name"));
    HPS_ASSERT(ours->binary == (own == NULL ? binary : json_is_true(own)));
}

static void check_request(const struct kserve_infer *ours, const json_t *theirs, struct raw raw)
{
    const json_t *inputs = json_object_get(theirs, "inputs");
    const json_t *outputs = json_object_get(theirs, "outputs");
    const json_t *parameters = json_object_get(theirs, "parameters");

    HPS_ASSERT(json_array_size(inputs) == ours->n_inputs);
    HPS_ASSERT(ours->n_inputs <= kserve_tensors_max(&LIMITS));
    HPS_ASSERT(json_array_size(outputs) == ours->n_outputs);
    HPS_ASSERT(ours->binary == json_is_true(json_object_get(parameters, "binary_data_output")));
    HPS_ASSERT(ours->timeout_us ==
               (uint64_t)json_integer_value(json_object_get(parameters, "timeout")));
    if (json_object_get(theirs, "id") != NULL) {
        check_text(ours->id, json_object_get(theirs, "id"));
    }
    for (uint32_t i = 0; i < ours->n_inputs; i++) {
        check_input(&ours->inputs[i], json_array_get(inputs, i), &raw);
    }
    HPS_ASSERT(raw.at == raw.end);
    for (uint32_t i = 0; i < ours->n_outputs; i++) {
        check_output(&ours->outputs[i], json_array_get(outputs, i), ours->binary);
    }
}

/* Valid JSON may be refused only because of its contents or its size. */
static void check_refusal(const char *text)
{
    static const char prefix[] = "the JSON of the request: ";
    static const char *const reasons[] = {"more than ", "nested more than ", "expected an object"};
    bool known = strncmp(text, prefix, sizeof(prefix) - 1) != 0;

    for (size_t i = 0; i < sizeof(reasons) / sizeof(reasons[0]) && !known; i++) {
        known = strncmp(text + sizeof(prefix) - 1, reasons[i], strlen(reasons[i])) == 0;
    }
    HPS_ASSERT(known);
}

static void read_body(const uint8_t *body, size_t size, size_t json_size, struct hps_arena *arena)
{
    struct kserve_infer infer = {0};
    struct hps_error err = {0};
    json_error_t error;
    json_t *json = NULL;
    hps_status status = kserve_infer_http(body, size, json_size, &LIMITS, arena, &infer, &err);
    size_t head = json_size == SIZE_MAX ? size : json_size;

    HPS_ASSERT(status == HPS_OK || err.status == status);
    if (head > size || head == 0) {
        HPS_ASSERT(status == HPS_INVALID);
        return;
    }
    hps_status theirs = hps_json_load((const char *)body, head, 0, &json, &error);
    if (theirs != HPS_OK && status == HPS_OK) {
        /* jansson rejects integers above int64, also as floats */
        HPS_ASSERT(strncmp(error.text, "too big ", 8) == 0);
    } else if (status == HPS_OK) {
        HPS_ASSERT(json_is_object(json));
        check_request(&infer, json, (struct raw){body + head, body + size});
    } else if (theirs == HPS_OK) {
        check_refusal(err.text);
    }
    json_decref(json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hps_arena *arena = hps_arena_new(4096, ARENA_BYTES);
    size_t json_size = size < 2 ? SIZE_MAX : (size_t)data[0] | (size_t)data[1] << 8;
    size_t body_size = size < 2 ? 0 : size - 2;
    uint8_t *body = hps_alloc(body_size);

    if (arena != NULL && body != NULL) {
        if (body_size > 0) {
            memcpy(body, data + 2, body_size);
        }
        read_body(body, body_size, json_size == UINT16_MAX ? SIZE_MAX : json_size, arena);
    }
    hps_free(body);
    hps_arena_free(arena);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Decodes the body of an infer request over HTTP: JSON, followed by the values of inputs that have
 * binary_data_size. Any thread.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/text.h"
#include "config/json.h"
#include "server/kserve/json_scan.h"

enum { WHERE_BYTES = 64 };

struct reader {
    const struct hps_decode_limits *limits;
    struct hps_arena *arena;
    struct hps_error *err;
    struct kserve_infer *infer;
    bool cut;                            /* the request has a length header for the JSON */
    struct kserve_text raw;              /* bytes after the JSON that no input has taken */
    size_t raw_size;                     /* all bytes after the JSON */
    const struct kserve_json_data *data; /* [n_data] not taken yet */
    size_t n_data;
};

/* ---- members --------------------------------------------------------------------------------- */

static hps_status no_memory(const struct reader *reader)
{
    return hps_error_set(reader->err, HPS_EXHAUSTED, "no memory for the JSON of the request");
}

/* Copies a string of the JSON to the arena, because the JSON is freed. */
static hps_status keep_text(const struct reader *reader, const json_t *json,
                            struct kserve_text *out_text)
{
    size_t size = json_string_length(json);
    const char *text = hps_arena_strndup(reader->arena, json_string_value(json), size);

    if (text == NULL) {
        return no_memory(reader);
    }
    *out_text = (struct kserve_text){text, size};
    return HPS_OK;
}

/* The name of an array element in errors: "array[index].". Empty if array is NULL: the request
 * itself. */
static const char *where(const char *array, size_t index, char text[WHERE_BYTES])
{
    text[0] = '\0';
    if (array != NULL) {
        (void)snprintf(text, WHERE_BYTES, "%s[%zu].", array, index);
    }
    return text;
}

/* Takes a member of an object that must be a string. */
static hps_status take_text(const struct reader *reader, const json_t *object, const char *array,
                            size_t index, const char *name, struct kserve_text *out_text)
{
    const json_t *json = json_object_get(object, name);
    char text[WHERE_BYTES];

    if (!json_is_string(json)) {
        return hps_error_set(reader->err, HPS_INVALID, "%s%s: %s, expected a string",
                             where(array, index, text), name,
                             json == NULL ? "missing" : "wrong type");
    }
    return keep_text(reader, json, out_text);
}

/* An optional member. NULL: the member is missing or null. */
static json_t *optional(const json_t *object, const char *name)
{
    json_t *json = json_object_get(object, name);

    return json_is_null(json) ? NULL : json;
}

/* Takes the parameters of an object; NULL: none. */
static hps_status take_parameters(const struct reader *reader, const json_t *object,
                                  const char *array, size_t index, json_t **out_parameters)
{
    json_t *json = optional(object, "parameters");
    char text[WHERE_BYTES];

    if (json != NULL && !json_is_object(json)) {
        return hps_error_set(reader->err, HPS_INVALID, "%sparameters: expected an object",
                             where(array, index, text));
    }
    if (json_object_size(json) > KSERVE_PARAMETERS_MAX) {
        return hps_error_set(reader->err, HPS_INVALID, "%sparameters: %zu of them, limit is %d",
                             where(array, index, text), json_object_size(json),
                             KSERVE_PARAMETERS_MAX);
    }
    *out_parameters = json;
    return HPS_OK;
}

/* Takes an array of the request, and allocates *out_n zeroed elements of `bytes` each. */
static hps_status take_array(const struct reader *reader, const json_t *root, const char *name,
                             size_t bytes, json_t **out_array, void **out_elements, uint32_t *out_n)
{
    json_t *json = json_object_get(root, name);
    size_t n = json_array_size(json);

    *out_array = json;
    *out_n = 0;
    if (!json_is_array(json)) {
        return hps_error_set(reader->err, HPS_INVALID, "%s: %s, expected an array", name,
                             json == NULL ? "missing" : "wrong type");
    }
    HPS_ASSERT(n <= kserve_tensors_max(reader->limits)); /* the scan has checked it */
    *out_elements = hps_arena_calloc(reader->arena, n, bytes);
    *out_n = (uint32_t)n;
    return *out_elements == NULL ? no_memory(reader) : HPS_OK;
}

static struct kserve_text text_of(const char *text)
{
    return (struct kserve_text){text, strlen(text)};
}

/* ---- inputs ---------------------------------------------------------------------------------- */

static hps_status take_shape(const struct reader *reader, const json_t *json,
                             struct kserve_tensor *tensor)
{
    const json_t *shape = json_object_get(json, "shape");

    if (!json_is_array(shape)) {
        return hps_error_set(
            reader->err, HPS_INVALID, "input '%.*s': shape: %s, expected an array of integers",
            KSERVE_TEXT_ARGS(tensor->name), shape == NULL ? "missing" : "wrong type");
    }
    if (json_array_size(shape) > KSERVE_DIMS_MAX) {
        return hps_error_set(
            reader->err, HPS_INVALID, "input '%.*s': shape: %zu dimensions, limit is %d",
            KSERVE_TEXT_ARGS(tensor->name), json_array_size(shape), KSERVE_DIMS_MAX);
    }
    tensor->n_dims = (unsigned)json_array_size(shape);
    for (unsigned i = 0; i < tensor->n_dims; i++) {
        const json_t *dim = json_array_get(shape, i);
        if (!json_is_integer(dim)) {
            return hps_error_set(reader->err, HPS_INVALID,
                                 "input '%.*s': shape[%u]: wrong type, expected an integer",
                                 KSERVE_TEXT_ARGS(tensor->name), i);
        }
        tensor->shape[i] = json_integer_value(dim);
    }
    return HPS_OK;
}

static hps_status take_datatype(const struct reader *reader, const json_t *json,
                                struct kserve_tensor *tensor)
{
    const json_t *datatype = json_object_get(json, "datatype");

    if (!json_is_string(datatype)) {
        return hps_error_set(
            reader->err, HPS_INVALID, "input '%.*s': datatype: %s, expected a string",
            KSERVE_TEXT_ARGS(tensor->name), datatype == NULL ? "missing" : "wrong type");
    }
    tensor->datatype =
        kserve_datatype_of(json_string_value(datatype), json_string_length(datatype));
    if (tensor->datatype == KSERVE_UNKNOWN) {
        return hps_error_set(reader->err, HPS_INVALID,
                             "input '%.*s': datatype: '%.64s', expected INT64, INT32 or FP32",
                             KSERVE_TEXT_ARGS(tensor->name), json_string_value(datatype));
    }
    return HPS_OK;
}

/* Takes the next bytes after the JSON, as many as the parameter says. */
static hps_status take_binary(struct reader *reader, const json_t *size,
                              struct kserve_tensor *tensor)
{
    if (!json_is_integer(size) || json_integer_value(size) < 0) {
        return hps_error_set(reader->err, HPS_INVALID,
                             "input '%.*s': binary_data_size: expected an integer of 0 or more",
                             KSERVE_TEXT_ARGS(tensor->name));
    }
    uint64_t bytes = (uint64_t)json_integer_value(size);
    if (!reader->cut) {
        return hps_error_set(
            reader->err, HPS_INVALID,
            "input '%.*s': binary_data_size: %" PRIu64
            ", but without the header Inference-Header-Content-Length the whole body is JSON",
            KSERVE_TEXT_ARGS(tensor->name), bytes);
    }
    if (bytes > reader->raw.size) {
        return hps_error_set(reader->err, HPS_INVALID,
                             "input '%.*s': binary_data_size: %" PRIu64
                             ", but of the %zu bytes after the JSON only %zu are left",
                             KSERVE_TEXT_ARGS(tensor->name), bytes, reader->raw_size,
                             reader->raw.size);
    }
    tensor->data = bytes == 0 ? NULL : (const uint8_t *)reader->raw.at;
    tensor->size = (size_t)bytes;
    reader->raw.at += bytes;
    reader->raw.size -= bytes;
    return HPS_OK;
}

/* The values of this input in the JSON; NULL: none. */
static const struct kserve_json_data *find_data(struct reader *reader, size_t index)
{
    if (reader->n_data == 0 || reader->data[0].input != index) {
        return NULL;
    }
    reader->n_data--;
    return reader->data++;
}

static hps_status take_values(struct reader *reader, const json_t *json, size_t index,
                              const json_t *binary, struct kserve_tensor *tensor)
{
    const struct kserve_json_data *data = find_data(reader, index);
    bool other = data == NULL && json_object_get(json, "data") != NULL;

    HPS_ASSERT(data == NULL || json_is_null(json_object_get(json, "data")));
    if (other) {
        return hps_error_set(reader->err, HPS_INVALID,
                             "input '%.*s': data: wrong type, expected an array",
                             KSERVE_TEXT_ARGS(tensor->name));
    }
    if ((data == NULL) == (binary == NULL)) {
        return hps_error_set(reader->err, HPS_INVALID,
                             "input '%.*s': %s data %s parameters.binary_data_size: expected the "
                             "values either in the JSON or after it",
                             KSERVE_TEXT_ARGS(tensor->name), data == NULL ? "neither" : "both",
                             data == NULL ? "nor" : "and");
    }
    return binary != NULL ? take_binary(reader, binary, tensor)
                          : kserve_json_values(data->text, tensor, reader->arena, reader->err);
}

/* Takes the name and the parameters of an input or output. */
static hps_status take_named(const struct reader *reader, const json_t *json, const char *array,
                             size_t index, struct kserve_text *out_name, json_t **out_parameters)
{
    if (!json_is_object(json)) {
        return hps_error_set(reader->err, HPS_INVALID, "%s[%zu]: expected an object", array, index);
    }
    hps_status status = take_text(reader, json, array, index, "name", out_name);
    return status == HPS_OK ? take_parameters(reader, json, array, index, out_parameters) : status;
}

static hps_status take_input(struct reader *reader, const json_t *json, size_t index,
                             struct kserve_tensor *tensor)
{
    const json_t *binary = NULL;
    json_t *parameters = NULL;
    const char *name;
    json_t *value;
    hps_status status = take_named(reader, json, "inputs", index, &tensor->name, &parameters);

    json_object_foreach (parameters, name, value) {
        if (strcmp(name, "binary_data_size") == 0) {
            binary = value;
        } else if (status == HPS_OK) {
            status = kserve_check_parameter(KSERVE_INPUT, tensor->name, text_of(name), reader->err);
        }
    }
    if (status == HPS_OK) {
        status = take_datatype(reader, json, tensor);
    }
    if (status == HPS_OK) {
        status = take_shape(reader, json, tensor);
    }
    return status == HPS_OK ? take_values(reader, json, index, binary, tensor) : status;
}

static hps_status take_inputs(struct reader *reader, const json_t *root)
{
    struct kserve_infer *infer = reader->infer;
    void *inputs = NULL;
    json_t *array;
    uint32_t n;
    hps_status status =
        take_array(reader, root, "inputs", sizeof(*infer->inputs), &array, &inputs, &n);

    infer->inputs = inputs;
    for (uint32_t i = 0; i < n && status == HPS_OK; i++) {
        status = take_input(reader, json_array_get(array, i), i, &infer->inputs[i]);
        infer->n_inputs = i + 1;
    }
    if (status == HPS_OK && reader->raw.size > 0) {
        return hps_error_set(reader->err, HPS_INVALID,
                             "%zu of the %zu bytes after the JSON belong to no input: the sum of "
                             "binary_data_size is smaller",
                             reader->raw.size, reader->raw_size);
    }
    return status;
}

/* ---- outputs --------------------------------------------------------------------------------- */

/* Takes a parameter that is true or false. */
static hps_status take_bool(const struct reader *reader, const char *array, size_t index,
                            const char *name, const json_t *value, bool *out_value)
{
    char text[WHERE_BYTES];

    if (!json_is_boolean(value)) {
        return hps_error_set(reader->err, HPS_INVALID, "%sparameters.%s: expected true or false",
                             where(array, index, text), name);
    }
    *out_value = json_is_true(value);
    return HPS_OK;
}

static hps_status take_output(struct reader *reader, const json_t *json, size_t index,
                              struct kserve_output *output)
{
    json_t *parameters = NULL;
    const char *name;
    json_t *value;
    hps_status status = take_named(reader, json, "outputs", index, &output->name, &parameters);

    output->binary = reader->infer->binary;
    json_object_foreach (parameters, name, value) {
        if (status != HPS_OK) {
            break;
        }
        status =
            strcmp(name, "binary_data") == 0
                ? take_bool(reader, "outputs", index, name, value, &output->binary)
                : kserve_check_parameter(KSERVE_OUTPUT, output->name, text_of(name), reader->err);
    }
    return status;
}

static hps_status take_outputs(struct reader *reader, const json_t *root)
{
    struct kserve_infer *infer = reader->infer;
    void *outputs = NULL;
    json_t *array;
    uint32_t n;

    if (optional(root, "outputs") == NULL) {
        return HPS_OK;
    }
    hps_status status =
        take_array(reader, root, "outputs", sizeof(*infer->outputs), &array, &outputs, &n);
    infer->outputs = outputs;
    for (uint32_t i = 0; i < n && status == HPS_OK; i++) {
        status = take_output(reader, json_array_get(array, i), i, &infer->outputs[i]);
        infer->n_outputs = i + 1;
    }
    return status;
}

/* ---- the request ----------------------------------------------------------------------------- */

static hps_status take_id(struct reader *reader, const json_t *root)
{
    struct kserve_infer *infer = reader->infer;

    if (optional(root, "id") == NULL) {
        return HPS_OK;
    }
    hps_status status = take_text(reader, root, NULL, 0, "id", &infer->id);
    if (status == HPS_OK && infer->id.size > reader->limits->request_id_max) {
        return hps_error_set(reader->err, HPS_INVALID, "id: %zu bytes, limit is %u", infer->id.size,
                             reader->limits->request_id_max);
    }
    return status;
}

static hps_status take_request_parameter(const struct reader *reader, const char *name,
                                         const json_t *value)
{
    struct kserve_parameter parameter = {.name = text_of(name), .type = KSERVE_PARAMETER_OTHER};
    hps_status status = HPS_OK;

    if (strcmp(name, "binary_data_output") == 0) {
        return take_bool(reader, NULL, 0, name, value, &reader->infer->binary);
    }
    if (json_is_string(value)) {
        parameter.type = KSERVE_PARAMETER_TEXT;
        status = keep_text(reader, value, &parameter.text);
    } else if (json_is_integer(value)) {
        parameter.type = KSERVE_PARAMETER_NUMBER;
        parameter.number = json_integer_value(value);
    }
    return status == HPS_OK ? kserve_take_parameter(reader->infer, &parameter, reader->err)
                            : status;
}

static hps_status take_request(struct reader *reader, json_t *root)
{
    json_t *parameters = NULL;
    const char *name;
    json_t *value;

    if (!json_is_object(root)) {
        return hps_error_set(reader->err, HPS_INVALID,
                             "the JSON of the request: expected an object");
    }
    hps_status status = take_id(reader, root);
    if (status == HPS_OK) {
        status = take_parameters(reader, root, NULL, 0, &parameters);
    }
    json_object_foreach (parameters, name, value) {
        if (status == HPS_OK) {
            status = take_request_parameter(reader, name, value);
        }
    }
    if (status == HPS_OK) {
        status = take_inputs(reader, root);
    }
    if (status == HPS_OK) {
        status = take_outputs(reader, root);
    }
    return status == HPS_OK ? kserve_check_tensors(reader->infer, reader->arena, reader->err)
                            : status;
}

static hps_status read_json(struct reader *reader, struct kserve_text text)
{
    struct kserve_json json;
    json_t *root = NULL;
    json_error_t error;
    hps_status status = kserve_json_scan(text, reader->limits, &json, reader->err);

    if (status == HPS_OK) {
        status = hps_json_load((const char *)json.head.data, json.head.size, 0, &root, &error);
        if (status == HPS_NO_MEMORY) {
            status =
                hps_error_set(reader->err, HPS_NO_MEMORY, "no memory for the JSON of the request");
        } else if (status != HPS_OK) {
            char path[KSERVE_JSON_PATH_BYTES];
            const char *advice = reader->cut || text.size == 0 || text.at[0] == '{'
                                     ? ""
                                     : "; where tensors follow JSON, the header "
                                       "Inference-Header-Content-Length is the number of its bytes";
            kserve_json_path(&json, (size_t)error.position, reader->limits, path);
            status = hps_error_set(reader->err, HPS_INVALID, "the JSON of the request: %s%s",
                                   error.text, advice);
            if (path[0] != '\0') {
                status = hps_error_prefix(reader->err, status, "%s", path);
            }
        }
    }
    if (status == HPS_INVALID && reader->cut) {
        status = hps_error_prefix(reader->err, status, "Inference-Header-Content-Length: %zu",
                                  text.size);
    }
    if (status == HPS_OK) {
        reader->data = kserve_json_data(&json, &reader->n_data);
        status = take_request(reader, root);
    }
    json_decref(root);
    kserve_json_fini(&json);
    return status;
}

hps_status kserve_infer_http(const uint8_t *data, size_t size, size_t json_size,
                             const struct hps_decode_limits *limits, struct hps_arena *arena,
                             struct kserve_infer *out, struct hps_error *err)
{
    struct kserve_infer infer = {.wait_us_max = -1};
    bool cut = json_size != SIZE_MAX;
    size_t head_size = cut ? json_size : size;

    if (head_size > size) {
        return hps_error_set(err, HPS_INVALID,
                             "Inference-Header-Content-Length: %zu, but the body has %zu bytes",
                             head_size, size);
    }
    if (cut && head_size == 0) {
        return hps_error_set(err, HPS_INVALID,
                             "Inference-Header-Content-Length: 0 is for models with one input and "
                             "no JSON; this model needs the JSON to name its inputs");
    }
    if (size == 0) {
        return hps_error_set(err, HPS_INVALID, "the body is empty, expected JSON");
    }
    struct reader reader = {.limits = limits,
                            .arena = arena,
                            .err = err,
                            .infer = &infer,
                            .cut = cut,
                            .raw = {(const char *)data + head_size, size - head_size},
                            .raw_size = size - head_size};
    hps_status status = read_json(&reader, (struct kserve_text){(const char *)data, head_size});
    if (status == HPS_OK) {
        infer.model = out->model;
        infer.model_version = out->model_version;
        *out = infer;
    }
    return status;
}

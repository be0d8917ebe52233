/* SPDX-License-Identifier: Apache-2.0
 *
 * The bounded decoder of ModelInferRequest, which points into the message. It counts the elements
 * of each kind before it allocates. Any thread.
 */
#include <inttypes.h>
#include <string.h>

#include "server/kserve/infer.h"
#include "server/rpc/wire.h"

/* Field numbers of grpc_service.proto. */
enum {
    REQUEST_MODEL_NAME = 1,
    REQUEST_MODEL_VERSION,
    REQUEST_ID,
    REQUEST_PARAMETERS,
    REQUEST_INPUTS,
    REQUEST_OUTPUTS,
    REQUEST_RAW_INPUTS,
    REQUEST_FIELDS
};
enum {
    INPUT_NAME = 1,
    INPUT_DATATYPE,
    INPUT_SHAPE,
    INPUT_PARAMETERS,
    INPUT_CONTENTS,
    INPUT_FIELDS
};
enum { OUTPUT_NAME = 1, OUTPUT_PARAMETERS };
enum { ENTRY_KEY = 1, ENTRY_VALUE };
enum {
    PARAMETER_BOOL = 1,
    PARAMETER_INT64,
    PARAMETER_STRING,
    PARAMETER_DOUBLE,
    PARAMETER_UINT64,
    PARAMETER_FIELDS
};
enum {
    CONTENTS_BOOL = 1,
    CONTENTS_INT,
    CONTENTS_INT64,
    CONTENTS_UINT,
    CONTENTS_UINT64,
    CONTENTS_FP32,
    CONTENTS_FP64,
    CONTENTS_BYTES,
    CONTENTS_FIELDS
};
/* Limits on fields, which leave room for fields of newer clients, and on the pieces of contents. */
enum { FIELDS_MAX = 64, PIECES_MAX = 1024 };

struct reader {
    struct hps_arena *arena;
    const struct hps_decode_limits *limits;
    struct kserve_infer *infer;
    struct hps_error *err;
    struct cursor *contents; /* [n_inputs] */
    uint32_t n_contents;     /* inputs with contents */
    uint32_t n_parameters;   /* of the request, input or output that is being read */
};

static struct kserve_text text_of(const struct field *field)
{
    return (struct kserve_text){.at = (const char *)field->data, .size = field->size};
}

static hps_status malformed(const struct reader *reader, const char *what)
{
    return hps_error_set(reader->err, HPS_INVALID, "malformed %s", what);
}

static hps_status too_many(const struct reader *reader, const char *what, uint64_t n_max)
{
    return hps_error_set(reader->err, HPS_INVALID, "%s: more than the limit, %" PRIu64, what,
                         n_max);
}

/* ---- parameters ------------------------------------------------------------------------------ */

/* Reads InferParameter: the last member of the oneof counts. */
static bool read_value(struct cursor in, struct kserve_parameter *out)
{
    struct field field;

    while (in.at < in.end) {
        if (!field_read(&in, &field)) {
            return false;
        }
        if (field.number >= PARAMETER_FIELDS) {
            continue;
        }
        bool is_text = field.number == PARAMETER_STRING;
        bool is_double = field.number == PARAMETER_DOUBLE;
        if (field.wire != (is_text ? WIRE_LEN : is_double ? WIRE_I64 : WIRE_VARINT)) {
            return false;
        }
        bool is_number = field.number == PARAMETER_INT64 ||
                         (field.number == PARAMETER_UINT64 && field.value <= INT64_MAX);
        out->type = is_text     ? KSERVE_PARAMETER_TEXT
                    : is_number ? KSERVE_PARAMETER_NUMBER
                                : KSERVE_PARAMETER_OTHER;
        out->text = text_of(&field);
        out->number = (int64_t)field.value;
    }
    return true;
}

/* Reads an entry of a map of parameters. */
static hps_status read_parameter(struct reader *reader, struct cursor in,
                                 struct kserve_parameter *out)
{
    struct field field;
    unsigned n_fields = 0;
    unsigned n_values = 0; /* two would have to be merged; no client sends two */

    *out = (struct kserve_parameter){.type = KSERVE_PARAMETER_OTHER};
    if (++reader->n_parameters > KSERVE_PARAMETERS_MAX) {
        return too_many(reader, "parameters", KSERVE_PARAMETERS_MAX);
    }
    while (in.at < in.end) {
        if (!field_read(&in, &field) || ++n_fields > FIELDS_MAX) {
            return malformed(reader, "parameters");
        }
        bool known = field.number == ENTRY_KEY || field.number == ENTRY_VALUE;
        n_values += field.number == ENTRY_VALUE ? 1 : 0;
        if ((known && field.wire != WIRE_LEN) || n_values > 1) {
            return malformed(reader, "parameters");
        }
        if (field.number == ENTRY_KEY) {
            out->name = text_of(&field);
        } else if (field.number == ENTRY_VALUE && !read_value(field_bytes(&field), out)) {
            return malformed(reader, "InferParameter");
        }
    }
    return HPS_OK;
}

/* Reads a parameter of an input or output. */
static hps_status read_tensor_parameter(struct reader *reader, enum kserve_side side,
                                        struct kserve_text tensor, struct cursor in)
{
    struct kserve_parameter parameter;
    hps_status status = read_parameter(reader, in, &parameter);

    return status == HPS_OK ? kserve_check_parameter(side, tensor, parameter.name, reader->err)
                            : status;
}

/* ---- inputs ---------------------------------------------------------------------------------- */

static hps_status add_dim(const struct reader *reader, struct kserve_tensor *tensor, uint64_t value)
{
    if (tensor->n_dims == KSERVE_DIMS_MAX) {
        return hps_error_set(reader->err, HPS_INVALID,
                             "input '%.*s': its shape has more than %d dimensions",
                             KSERVE_TEXT_ARGS(tensor->name), KSERVE_DIMS_MAX);
    }
    tensor->shape[tensor->n_dims++] = (int64_t)value;
    return HPS_OK;
}

static hps_status read_shape(const struct reader *reader, const struct field *field,
                             struct kserve_tensor *tensor)
{
    struct cursor in = field_bytes(field);
    hps_status status = HPS_OK;
    uint64_t value;

    if (field->wire == WIRE_VARINT) {
        return add_dim(reader, tensor, field->value);
    }
    if (field->wire != WIRE_LEN) {
        return malformed(reader, "InferInputTensor.shape");
    }
    while (status == HPS_OK && in.at < in.end) {
        status = varint_read(&in, 10, &value) ? add_dim(reader, tensor, value)
                                              : malformed(reader, "InferInputTensor.shape");
    }
    return status;
}

static hps_status read_input_field(struct reader *reader, const struct field *field,
                                   struct kserve_tensor *tensor)
{
    if (field->number == INPUT_SHAPE) {
        return read_shape(reader, field, tensor);
    }
    if (field->wire != WIRE_LEN) {
        return malformed(reader, "InferInputTensor");
    }
    if (field->number == INPUT_DATATYPE) {
        tensor->datatype = kserve_datatype_of((const char *)field->data, field->size);
    } else if (field->number == INPUT_PARAMETERS) {
        return read_tensor_parameter(reader, KSERVE_INPUT, tensor->name, field_bytes(field));
    } else if (field->number == INPUT_CONTENTS) {
        struct cursor *contents = &reader->contents[tensor - reader->infer->inputs];
        if (contents->at != NULL) { /* pieces, to be put together: no client makes them */
            return hps_error_set(reader->err, HPS_INVALID, "input '%.*s': got contents twice",
                                 KSERVE_TEXT_ARGS(tensor->name));
        }
        reader->n_contents++;
        *contents = field_bytes(field);
    }
    return HPS_OK;
}

static hps_status read_input(struct reader *reader, struct cursor in, struct kserve_tensor *tensor)
{
    struct cursor names = in;
    struct field field;
    unsigned n_fields = 0;
    hps_status status = HPS_OK;

    reader->n_parameters = 0;
    while (names.at < names.end && field_read(&names, &field)) { /* for errors in earlier fields */
        if (field.number == INPUT_NAME && field.wire == WIRE_LEN) {
            tensor->name = text_of(&field);
        }
    }
    while (status == HPS_OK && in.at < in.end) {
        if (!field_read(&in, &field)) {
            return malformed(reader, "InferInputTensor");
        }
        if (++n_fields > FIELDS_MAX + KSERVE_PARAMETERS_MAX) {
            return too_many(reader, "fields of InferInputTensor", FIELDS_MAX);
        }
        if (field.number < INPUT_FIELDS) {
            status = read_input_field(reader, &field, tensor);
        }
    }
    return status;
}

/* ---- contents -------------------------------------------------------------------------------- */

/* Where the values of InferTensorContents are written. */
struct values {
    uint8_t *at;
    uint8_t *end;
};

static bool add_value(struct values *out, enum kserve_datatype datatype, uint64_t value)
{
    size_t size = kserve_datatype_bytes(datatype);

    if ((size_t)(out->end - out->at) < size || (datatype == KSERVE_UINT8 && value > UINT8_MAX)) {
        return false;
    }
    memcpy(out->at, &value, size); /* little-endian, as all platforms of hpsd */
    out->at += size;
    return true;
}

/* False: malformed, more values than the shape has, or out of the range of the type. */
static bool add_values(struct values *out, enum kserve_datatype datatype, const struct field *field)
{
    struct cursor in = field_bytes(field);
    uint64_t value;

    if (datatype == KSERVE_FP32) {
        bool fits = field->size % sizeof(float) == 0 && (size_t)(out->end - out->at) >= field->size;
        if (fits && field->size > 0) {
            memcpy(out->at, field->data, field->size);
            out->at += field->size;
        }
        return fits && (field->wire == WIRE_LEN || field->wire == WIRE_I32);
    }
    if (field->wire == WIRE_VARINT) {
        return add_value(out, datatype, field->value);
    }
    while (in.at < in.end) {
        if (!varint_read(&in, 10, &value) || !add_value(out, datatype, value)) {
            return false;
        }
    }
    return field->wire == WIRE_LEN;
}

static const char *const CONTENTS_NAMES[CONTENTS_FIELDS] = {
    [0] = "raw_input_contents",         [CONTENTS_BOOL] = "bool_contents",
    [CONTENTS_INT] = "int_contents",    [CONTENTS_INT64] = "int64_contents",
    [CONTENTS_UINT] = "uint_contents",  [CONTENTS_UINT64] = "uint64_contents",
    [CONTENTS_FP32] = "fp32_contents",  [CONTENTS_FP64] = "fp64_contents",
    [CONTENTS_BYTES] = "bytes_contents"};

/* The field of each datatype; 0: none. */
static const uint32_t CONTENTS_OF[KSERVE_DATATYPES] = {[KSERVE_INT32] = CONTENTS_INT,
                                                       [KSERVE_INT64] = CONTENTS_INT64,
                                                       [KSERVE_FP32] = CONTENTS_FP32,
                                                       [KSERVE_UINT8] = CONTENTS_UINT};

static hps_status wrong_field(const struct reader *reader, const struct kserve_tensor *tensor,
                              uint32_t number)
{
    return hps_error_set(
        reader->err, HPS_INVALID, "input '%.*s': contents: got %s, but values of %s belong in %s",
        KSERVE_TEXT_ARGS(tensor->name), CONTENTS_NAMES[number],
        kserve_datatype_name(tensor->datatype), CONTENTS_NAMES[CONTENTS_OF[tensor->datatype]]);
}

/* n_max: the number of values of the shape. */
static hps_status wrong_values(const struct reader *reader, const struct kserve_tensor *tensor,
                               size_t n_max)
{
    return hps_error_set(reader->err, HPS_INVALID,
                         "input '%.*s': contents: expected %s to have %zu values, as the shape "
                         "says, each within the range of %s",
                         KSERVE_TEXT_ARGS(tensor->name),
                         CONTENTS_NAMES[CONTENTS_OF[tensor->datatype]], n_max,
                         kserve_datatype_name(tensor->datatype));
}

/* Copies the values of an input from `contents` to the arena. */
static hps_status read_contents(const struct reader *reader, struct cursor in,
                                struct kserve_tensor *tensor)
{
    size_t size = 0;
    unsigned n_pieces = 0;
    struct field field;
    hps_status status = kserve_tensor_bytes(tensor, &size, reader->err);

    if (status != HPS_OK) {
        return status;
    }
    size_t n_values = size / kserve_datatype_bytes(tensor->datatype);
    /* A value has at least one byte. This limits the memory to a multiple of the message. */
    bool fits = n_values <= cursor_size(&in);
    uint8_t *data = hps_arena_alloc(reader->arena, fits ? size + 1 : 1);
    if (data == NULL) {
        return hps_error_set(reader->err, HPS_EXHAUSTED, "input '%.*s': no memory for %zu bytes",
                             KSERVE_TEXT_ARGS(tensor->name), size);
    }
    struct values values = {.at = data, .end = data + (fits ? size : 0)};
    bool good = true;
    while (good && in.at < in.end) {
        good = field_read(&in, &field);
        if (good && field.number < CONTENTS_FIELDS) {
            if (field.number != CONTENTS_OF[tensor->datatype]) {
                return wrong_field(reader, tensor, field.number);
            }
            bool piece = field.wire == WIRE_LEN;
            good = (!piece || ++n_pieces <= PIECES_MAX) &&
                   add_values(&values, tensor->datatype, &field);
        }
    }
    if (!good || !fits || values.at != values.end) {
        return wrong_values(reader, tensor, n_values);
    }
    tensor->data = size == 0 ? NULL : data;
    tensor->size = size;
    return HPS_OK;
}

/* ---- the request ----------------------------------------------------------------------------- */

static hps_status read_output(struct reader *reader, struct cursor in, struct kserve_output *output)
{
    struct field field;
    unsigned n_fields = 0;
    hps_status status = HPS_OK;

    output->binary = true;
    reader->n_parameters = 0;
    while (status == HPS_OK && in.at < in.end) {
        if (!field_read(&in, &field) || ++n_fields > FIELDS_MAX + KSERVE_PARAMETERS_MAX) {
            return malformed(reader, "InferRequestedOutputTensor");
        }
        bool known = field.number == OUTPUT_NAME || field.number == OUTPUT_PARAMETERS;
        if (known && field.wire != WIRE_LEN) {
            return malformed(reader, "InferRequestedOutputTensor");
        }
        if (field.number == OUTPUT_NAME) {
            output->name = text_of(&field);
        } else if (field.number == OUTPUT_PARAMETERS) {
            status =
                read_tensor_parameter(reader, KSERVE_OUTPUT, output->name, field_bytes(&field));
        }
    }
    return status;
}

/* Counts the fields of each number. */
static hps_status scan(const struct reader *reader, struct cursor in, uint32_t n[REQUEST_FIELDS])
{
    const uint64_t tensors_max = kserve_tensors_max(reader->limits);
    struct field field;
    unsigned n_fields = 0;

    while (in.at < in.end) {
        if (!field_read(&in, &field)) {
            return malformed(reader, "ModelInferRequest");
        }
        if (field.number < REQUEST_FIELDS && field.wire != WIRE_LEN) {
            return malformed(reader, "ModelInferRequest");
        }
        if (field.number < REQUEST_PARAMETERS || field.number >= REQUEST_FIELDS) {
            if (++n_fields > FIELDS_MAX) {
                return too_many(reader, "unknown or repeated fields", FIELDS_MAX);
            }
            continue;
        }
        n[field.number]++;
        if (n[field.number] > tensors_max) {
            return too_many(reader, "inputs, outputs, raw_input_contents or parameters",
                            tensors_max);
        }
    }
    return HPS_OK;
}

static hps_status allocate(struct reader *reader, const uint32_t n[REQUEST_FIELDS])
{
    struct kserve_infer *infer = reader->infer;
    size_t n_inputs = n[REQUEST_INPUTS];
    size_t n_outputs = n[REQUEST_OUTPUTS];

    infer->inputs = hps_arena_calloc(reader->arena, n_inputs + 1, sizeof(*infer->inputs));
    infer->outputs = hps_arena_calloc(reader->arena, n_outputs + 1, sizeof(*infer->outputs));
    reader->contents = hps_arena_calloc(reader->arena, n_inputs + 1, sizeof(*reader->contents));
    if (infer->inputs == NULL || infer->outputs == NULL || reader->contents == NULL) {
        return hps_error_set(reader->err, HPS_EXHAUSTED, "no memory for %zu inputs, %zu outputs",
                             n_inputs, n_outputs);
    }
    return HPS_OK;
}

static void take_name(const struct field *field, struct kserve_infer *infer)
{
    if (field->number == REQUEST_MODEL_NAME) {
        infer->model = text_of(field);
    } else if (field->number == REQUEST_MODEL_VERSION) {
        infer->model_version = text_of(field);
    } else if (field->number == REQUEST_ID) {
        infer->id = text_of(field);
    }
}

void kserve_infer_grpc_names(const uint8_t *data, size_t size, struct kserve_infer *infer)
{
    struct cursor in = {.at = data, .end = size == 0 ? data : data + size};
    struct field field;

    for (unsigned n = 0; n < FIELDS_MAX && in.at < in.end && field_read(&in, &field); n++) {
        if (field.wire == WIRE_LEN) {
            take_name(&field, infer);
        }
    }
}

static hps_status read_field(struct reader *reader, const struct field *field)
{
    struct kserve_infer *infer = reader->infer;
    struct kserve_parameter parameter;
    hps_status status;

    switch (field->number) {
    case REQUEST_MODEL_NAME:
    case REQUEST_MODEL_VERSION:
    case REQUEST_ID:
        take_name(field, infer);
        return HPS_OK;
    case REQUEST_PARAMETERS:
        status = read_parameter(reader, field_bytes(field), &parameter);
        return status == HPS_OK ? kserve_take_parameter(infer, &parameter, reader->err) : status;
    default: /* tensors are read separately */
        return HPS_OK;
    }
}

static hps_status read_tensors(struct reader *reader, struct cursor in)
{
    struct kserve_infer *infer = reader->infer;
    struct field field;
    hps_status status = HPS_OK;

    while (status == HPS_OK && in.at < in.end && field_read(&in, &field)) {
        if (field.number == REQUEST_INPUTS) {
            status = read_input(reader, field_bytes(&field), &infer->inputs[infer->n_inputs++]);
        } else if (field.number == REQUEST_OUTPUTS) {
            status = read_output(reader, field_bytes(&field), &infer->outputs[infer->n_outputs++]);
        }
    }
    return status;
}

/* The i-th buffer belongs to the i-th input. */
static hps_status take_raw(struct reader *reader, struct cursor in, uint32_t n_raw)
{
    struct kserve_infer *infer = reader->infer;
    struct field field;
    uint32_t i = 0;

    if (reader->n_contents > 0) {
        return hps_error_set(reader->err, HPS_INVALID,
                             "got contents of %u inputs and %u raw_input_contents, expected one of "
                             "the two for all inputs",
                             reader->n_contents, n_raw);
    }
    if (n_raw != infer->n_inputs) {
        return hps_error_set(reader->err, HPS_INVALID,
                             "raw_input_contents: %u buffers, but there are %u inputs", n_raw,
                             infer->n_inputs);
    }
    while (in.at < in.end && field_read(&in, &field)) {
        if (field.number == REQUEST_RAW_INPUTS) {
            infer->inputs[i].data = field.size == 0 ? NULL : field.data;
            infer->inputs[i++].size = field.size;
        }
    }
    return HPS_OK;
}

static hps_status take_contents(struct reader *reader)
{
    hps_status status = HPS_OK;

    for (uint32_t i = 0; i < reader->infer->n_inputs && status == HPS_OK; i++) {
        status = read_contents(reader, reader->contents[i], &reader->infer->inputs[i]);
    }
    return status;
}

hps_status kserve_infer_grpc(const uint8_t *data, size_t size,
                             const struct hps_decode_limits *limits, struct hps_arena *arena,
                             struct kserve_infer *out, struct hps_error *err)
{
    struct kserve_infer infer = {.wait_us_max = -1, .binary = true};
    struct reader reader = {.arena = arena, .limits = limits, .infer = &infer, .err = err};
    const struct cursor all = {.at = data, .end = size == 0 ? data : data + size};
    struct cursor in = all;
    struct field field;
    uint32_t n[REQUEST_FIELDS] = {0};
    hps_status status = scan(&reader, all, n);

    *out = (struct kserve_infer){0};
    kserve_infer_grpc_names(data, size, out);
    if (status == HPS_OK) {
        status = allocate(&reader, n);
    }
    while (status == HPS_OK && in.at < in.end && field_read(&in, &field)) {
        status = read_field(&reader, &field);
    }
    if (status == HPS_OK && infer.id.size > limits->request_id_max) {
        status = hps_error_set(err, HPS_INVALID, "id: %zu bytes, limit is %u", infer.id.size,
                               limits->request_id_max);
    }
    if (status == HPS_OK) {
        status = read_tensors(&reader, all);
    }
    if (status == HPS_OK) {
        status = n[REQUEST_RAW_INPUTS] > 0 ? take_raw(&reader, all, n[REQUEST_RAW_INPUTS])
                                           : take_contents(&reader);
    }
    if (status == HPS_OK) {
        status = kserve_check_tensors(&infer, arena, err);
    }
    if (status == HPS_OK) {
        *out = infer;
    }
    return status;
}

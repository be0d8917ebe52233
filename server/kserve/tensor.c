/* SPDX-License-Identifier: Apache-2.0
 *
 * Parameters and tensors of a KServe request of any transport: datatypes, sizes, names. Any thread.
 */
#include "server/kserve/infer.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"

static const struct {
    const char *name;
    size_t bytes;
} DATATYPES[KSERVE_DATATYPES] = {
    [KSERVE_UNKNOWN] = {"?", 0},   [KSERVE_UINT8] = {"UINT8", 1}, [KSERVE_INT32] = {"INT32", 4},
    [KSERVE_INT64] = {"INT64", 8}, [KSERVE_FP16] = {"FP16", 2},   [KSERVE_BF16] = {"BF16", 2},
    [KSERVE_FP32] = {"FP32", 4},
};

const char *kserve_datatype_name(enum kserve_datatype datatype)
{
    HPS_ASSERT(datatype < KSERVE_DATATYPES);
    return DATATYPES[datatype].name;
}

size_t kserve_datatype_bytes(enum kserve_datatype datatype)
{
    HPS_ASSERT(datatype < KSERVE_DATATYPES);
    return DATATYPES[datatype].bytes;
}

enum kserve_datatype kserve_datatype_of(const char *name, size_t size)
{
    for (unsigned i = KSERVE_UNKNOWN + 1; i < KSERVE_DATATYPES; i++) {
        if (hps_text_is(DATATYPES[i].name, name, size)) {
            return (enum kserve_datatype)i;
        }
    }
    return KSERVE_UNKNOWN;
}

/* ---- parameters ------------------------------------------------------------------------------ */

static bool begins(struct kserve_text text, const char *with)
{
    size_t size = strlen(with);

    return text.size >= size && memcmp(text.at, with, size) == 0;
}

static hps_status take_number(const struct kserve_parameter *parameter, int64_t *out_number,
                              struct hps_error *err)
{
    if (parameter->type != KSERVE_PARAMETER_NUMBER) {
        return hps_error_set(err, HPS_INVALID, "parameter '%.*s' is not an integer",
                             KSERVE_TEXT_ARGS(parameter->name));
    }
    if (parameter->number < 0) {
        return hps_error_set(err, HPS_INVALID, "parameter '%.*s' is %" PRId64 ", which is below 0",
                             KSERVE_TEXT_ARGS(parameter->name), parameter->number);
    }
    *out_number = parameter->number;
    return HPS_OK;
}

static hps_status take_text(const struct kserve_parameter *parameter, struct kserve_text *out_text,
                            struct hps_error *err)
{
    if (parameter->type != KSERVE_PARAMETER_TEXT) {
        return hps_error_set(err, HPS_INVALID, "parameter '%.*s' is not a string",
                             KSERVE_TEXT_ARGS(parameter->name));
    }
    *out_text = parameter->text;
    return HPS_OK;
}

hps_status kserve_take_parameter(struct kserve_infer *infer,
                                 const struct kserve_parameter *parameter, struct hps_error *err)
{
    struct kserve_text name = parameter->name;

    if (kserve_is(name, "timeout")) {
        int64_t timeout_us = 0;
        hps_status status = take_number(parameter, &timeout_us, err);
        infer->timeout_us = (uint64_t)timeout_us;
        return status;
    }
    if (kserve_is(name, "hps_max_wait_us")) {
        return take_number(parameter, &infer->wait_us_max, err);
    }
    if (kserve_is(name, "hps_miss_policy")) {
        return take_text(parameter, &infer->miss_policy, err);
    }
    if (kserve_is(name, "hps_output_type")) {
        return take_text(parameter, &infer->output_type, err);
    }
    if (kserve_is(name, "hps_pooling")) {
        return take_text(parameter, &infer->pooling, err);
    }
    if (begins(name, "hps_")) {
        return hps_error_set(err, HPS_INVALID,
                             "parameter '%.*s' is unknown, expected hps_max_wait_us, "
                             "hps_miss_policy, hps_output_type or hps_pooling",
                             KSERVE_TEXT_ARGS(name));
    }
    if (begins(name, "triton_") && !kserve_is(name, "triton_enable_empty_final_response")) {
        return hps_error_set(err, HPS_INVALID,
                             "parameter '%.*s': names that begin with triton_ are reserved",
                             KSERVE_TEXT_ARGS(name));
    }
    return HPS_OK;
}

static const char *side_name(enum kserve_side side)
{
    return side == KSERVE_INPUT ? "input" : "output";
}

hps_status kserve_check_parameter(enum kserve_side side, struct kserve_text tensor,
                                  struct kserve_text parameter, struct hps_error *err)
{
    if (begins(parameter, "shared_memory_")) {
        return hps_error_set(
            err, HPS_UNIMPLEMENTED, "%s '%.*s', parameter '%.*s': shared memory is not supported",
            side_name(side), KSERVE_TEXT_ARGS(tensor), KSERVE_TEXT_ARGS(parameter));
    }
    if (side == KSERVE_OUTPUT && kserve_is(parameter, "classification")) {
        return hps_error_set(err, HPS_UNIMPLEMENTED,
                             "output '%.*s', parameter 'classification': rows have no classes",
                             KSERVE_TEXT_ARGS(tensor));
    }
    if (begins(parameter, "hps_")) {
        return hps_error_set(
            err, HPS_INVALID,
            "%s '%.*s', parameter '%.*s': parameters that begin with hps_ belong to the request",
            side_name(side), KSERVE_TEXT_ARGS(tensor), KSERVE_TEXT_ARGS(parameter));
    }
    return HPS_OK;
}

/* ---- tensors --------------------------------------------------------------------------------- */

hps_status kserve_tensor_bytes(const struct kserve_tensor *tensor, size_t *out_size,
                               struct hps_error *err)
{
    uint64_t n_values = 1;

    HPS_ASSERT(tensor->n_dims <= KSERVE_DIMS_MAX);
    if (tensor->datatype == KSERVE_UNKNOWN) {
        return hps_error_set(
            err, HPS_INVALID,
            "input '%.*s': got no datatype or an unsupported one, expected INT64, INT32 or FP32",
            KSERVE_TEXT_ARGS(tensor->name));
    }
    for (unsigned i = 0; i < tensor->n_dims; i++) {
        if (tensor->shape[i] < 0 || tensor->shape[i] > KSERVE_VALUES_MAX) {
            return hps_error_set(
                err, HPS_INVALID, "input '%.*s': shape[%u] is %" PRId64 ", expected 0 to %d",
                KSERVE_TEXT_ARGS(tensor->name), i, tensor->shape[i], KSERVE_VALUES_MAX);
        }
    }
    for (unsigned i = 0; i < tensor->n_dims; i++) {
        n_values *= (uint64_t)tensor->shape[i]; /* both are below 2^31 */
        if (n_values > KSERVE_VALUES_MAX) {
            return hps_error_set(err, HPS_INVALID,
                                 "input '%.*s': its shape has %" PRIu64
                                 " values or more, limit is %d",
                                 KSERVE_TEXT_ARGS(tensor->name), n_values, KSERVE_VALUES_MAX);
        }
    }
    *out_size = (size_t)n_values * kserve_datatype_bytes(tensor->datatype);
    return HPS_OK;
}

static hps_status check_tensor(const struct kserve_tensor *tensor, struct hps_error *err)
{
    size_t size = 0;
    hps_status status = kserve_tensor_bytes(tensor, &size, err);

    if (status == HPS_OK && tensor->size != size) {
        return hps_error_set(err, HPS_INVALID,
                             "input '%.*s': got %zu bytes, but %zu values of %s have %zu",
                             KSERVE_TEXT_ARGS(tensor->name), tensor->size,
                             size / kserve_datatype_bytes(tensor->datatype),
                             kserve_datatype_name(tensor->datatype), size);
    }
    return status;
}

static int by_name(const void *a, const void *b)
{
    return kserve_text_compare(a, b);
}

/* Sorts names[n] and checks that they are not empty and unique. */
static hps_status check_names(enum kserve_side side, struct kserve_text *names, uint32_t n,
                              struct hps_error *err)
{
    if (n > 0) {
        qsort(names, n, sizeof(*names), by_name);
    }
    for (uint32_t i = 0; i < n; i++) {
        if (names[i].size == 0) {
            return hps_error_set(err, HPS_INVALID, "got an %s without a name", side_name(side));
        }
        if (i > 0 && by_name(&names[i - 1], &names[i]) == 0) {
            return hps_error_set(err, HPS_INVALID, "got %s '%.*s' twice", side_name(side),
                                 KSERVE_TEXT_ARGS(names[i]));
        }
    }
    return HPS_OK;
}

hps_status kserve_check_tensors(const struct kserve_infer *infer, struct hps_arena *arena,
                                struct hps_error *err)
{
    uint32_t n_max = infer->n_inputs > infer->n_outputs ? infer->n_inputs : infer->n_outputs;
    struct kserve_text *names = hps_arena_calloc(arena, n_max, sizeof(*names));
    hps_status status = HPS_OK;

    if (names == NULL) {
        return hps_error_set(err, HPS_EXHAUSTED, "no memory for the names of %u tensors", n_max);
    }
    for (uint32_t i = 0; i < infer->n_inputs && status == HPS_OK; i++) {
        names[i] = infer->inputs[i].name;
        status = check_tensor(&infer->inputs[i], err);
    }
    if (status == HPS_OK) {
        status = check_names(KSERVE_INPUT, names, infer->n_inputs, err);
    }
    for (uint32_t i = 0; i < infer->n_outputs; i++) {
        names[i] = infer->outputs[i].name;
    }
    if (status == HPS_OK) {
        status = check_names(KSERVE_OUTPUT, names, infer->n_outputs, err);
    }
    return status;
}

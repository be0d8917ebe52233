/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares the decoder of ModelInferRequest with protobuf-c. If hpsd accepts a message, protobuf-c
 * must accept it, and the contents must be equal. If protobuf-c has written a message, hpsd must
 * not call it malformed. An accepted message is converted to a lookup. The lookup must be within
 * the limits, and point into the message or the arena.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/assert.h"
#include "base/heap.h"
#include "inference/grpc_service.pb-c.h"
#include "server/kserve/infer.h"

enum { ARENA_BYTES = 1 << 20 };

static const struct hps_decode_limits LIMITS = {
    .tables_max = 16, .keys_max = 4096, .request_id_max = 128};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* ---- comparison with protobuf-c -------------------------------------------------------------- */

/* protobuf-c ends a string at its first NUL. */
static void check_text(struct kserve_text ours, const char *theirs)
{
    size_t n = ours.size == 0 ? 0 : strnlen(ours.at, ours.size);

    HPS_ASSERT(strlen(theirs) == n);
    HPS_ASSERT(n == 0 || memcmp(ours.at, theirs, n) == 0);
}

static void check_bytes(const struct kserve_tensor *ours, const void *theirs, size_t size)
{
    HPS_ASSERT(ours->size == size);
    HPS_ASSERT(size == 0 || memcmp(ours->data, theirs, size) == 0);
}

/* Checks that only values of one type exist, and that they are equal. */
static void check_contents(const struct kserve_tensor *ours,
                           const Inference__InferTensorContents *theirs)
{
    size_t n_all = theirs->n_bool_contents + theirs->n_int_contents + theirs->n_int64_contents +
                   theirs->n_uint_contents + theirs->n_uint64_contents + theirs->n_fp32_contents +
                   theirs->n_fp64_contents + theirs->n_bytes_contents;

    HPS_ASSERT(n_all == ours->size / kserve_datatype_bytes(ours->datatype));
    if (ours->datatype == KSERVE_INT64) {
        check_bytes(ours, theirs->int64_contents, theirs->n_int64_contents * sizeof(int64_t));
    } else if (ours->datatype == KSERVE_INT32) {
        check_bytes(ours, theirs->int_contents, theirs->n_int_contents * sizeof(int32_t));
    } else if (ours->datatype == KSERVE_FP32) {
        check_bytes(ours, theirs->fp32_contents, theirs->n_fp32_contents * sizeof(float));
    } else if (ours->datatype == KSERVE_UINT8) {
        HPS_ASSERT(n_all == theirs->n_uint_contents);
        for (size_t i = 0; i < n_all; i++) {
            HPS_ASSERT(ours->data[i] == theirs->uint_contents[i]);
        }
    } else {
        HPS_ASSERT(n_all == 0);
    }
}

static void check_input(const struct kserve_tensor *ours,
                        const Inference__ModelInferRequest__InferInputTensor *theirs,
                        const ProtobufCBinaryData *raw)
{
    uint64_t n = 1;

    check_text(ours->name, theirs->name);
    HPS_ASSERT(ours->datatype != KSERVE_UNKNOWN);
    HPS_ASSERT(strcmp(kserve_datatype_name(ours->datatype), theirs->datatype) == 0);
    HPS_ASSERT(theirs->n_shape == ours->n_dims);
    for (unsigned i = 0; i < ours->n_dims; i++) {
        HPS_ASSERT(ours->shape[i] == theirs->shape[i] && ours->shape[i] >= 0);
        n *= (uint64_t)ours->shape[i];
    }
    HPS_ASSERT(n <= KSERVE_VALUES_MAX);
    HPS_ASSERT(ours->size == n * kserve_datatype_bytes(ours->datatype));
    HPS_ASSERT((ours->data == NULL) == (ours->size == 0));
    if (raw != NULL) {
        HPS_ASSERT(theirs->contents == NULL);
        check_bytes(ours, raw->data, raw->len);
    } else if (theirs->contents != NULL) {
        check_contents(ours, theirs->contents);
    } else {
        HPS_ASSERT(ours->size == 0);
    }
}

/* The last parameter with this name counts. */
static const Inference__InferParameter *parameter_of(const Inference__ModelInferRequest *theirs,
                                                     const char *name)
{
    const Inference__InferParameter *found = NULL;

    for (size_t i = 0; i < theirs->n_parameters; i++) {
        if (strcmp(theirs->parameters[i]->key, name) == 0) {
            found = theirs->parameters[i]->value;
        }
    }
    return found;
}

static void check_parameters(const struct kserve_infer *ours,
                             const Inference__ModelInferRequest *theirs)
{
    const Inference__InferParameter *timeout = parameter_of(theirs, "timeout");
    const Inference__InferParameter *pooling = parameter_of(theirs, "hps_pooling");

    HPS_ASSERT((timeout == NULL ? 0 : (uint64_t)timeout->int64_param) == ours->timeout_us);
    if (pooling == NULL) {
        HPS_ASSERT(ours->pooling.size == 0);
    } else {
        HPS_ASSERT(pooling->parameter_choice_case ==
                   INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_STRING_PARAM);
        check_text(ours->pooling, pooling->string_param);
    }
}

static void check_request(const struct kserve_infer *ours,
                          const Inference__ModelInferRequest *theirs)
{
    size_t n_raw = theirs->n_raw_input_contents;

    check_text(ours->model, theirs->model_name);
    check_text(ours->model_version, theirs->model_version);
    check_text(ours->id, theirs->id);
    check_parameters(ours, theirs);
    HPS_ASSERT(ours->n_inputs == theirs->n_inputs && ours->n_outputs == theirs->n_outputs);
    HPS_ASSERT(ours->n_inputs <= kserve_tensors_max(&LIMITS));
    HPS_ASSERT(ours->n_outputs <= kserve_tensors_max(&LIMITS));
    HPS_ASSERT(n_raw == 0 || n_raw == ours->n_inputs);
    for (uint32_t i = 0; i < ours->n_inputs; i++) {
        check_input(&ours->inputs[i], theirs->inputs[i],
                    n_raw == 0 ? NULL : &theirs->raw_input_contents[i]);
    }
    for (uint32_t i = 0; i < ours->n_outputs; i++) {
        check_text(ours->outputs[i].name, theirs->outputs[i]->name);
    }
}

/* protobuf-c keeps unknown fields, also with invalid numbers, and writes them again. */
static bool has_unknown(const ProtobufCMessage *message)
{
    bool unknown = message->n_unknown_fields > 0;

    for (unsigned i = 0; i < message->descriptor->n_fields && !unknown; i++) {
        const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];
        const char *at = (const char *)message + field->offset;
        if (field->type != PROTOBUF_C_TYPE_MESSAGE) {
            continue;
        }
        if (field->label != PROTOBUF_C_LABEL_REPEATED) {
            const ProtobufCMessage *one;
            memcpy(&one, at, sizeof(one));
            unknown = one != NULL && has_unknown(one);
            continue;
        }
        size_t n;
        ProtobufCMessage *const *many;
        memcpy(&n, (const char *)message + field->quantifier_offset, sizeof(n));
        memcpy(&many, at, sizeof(many));
        for (size_t j = 0; j < n && !unknown; j++) {
            unknown = has_unknown(many[j]);
        }
    }
    return unknown;
}

/* hpsd may refuse a message that protobuf-c has written only because of its contents. */
static void check_canonical(const Inference__ModelInferRequest *theirs)
{
    struct hps_arena *arena = hps_arena_new(4096, ARENA_BYTES);
    size_t size = inference__model_infer_request__get_packed_size(theirs);
    uint8_t *bytes = hps_alloc(size);
    struct kserve_infer infer;
    struct hps_error err;

    if (arena != NULL && bytes != NULL) {
        inference__model_infer_request__pack(theirs, bytes);
        hps_status status = kserve_infer_grpc(bytes, size, &LIMITS, arena, &infer, &err);
        if (status == HPS_OK) {
            check_request(&infer, theirs);
        } else {
            HPS_ASSERT(err.status == status);
            HPS_ASSERT(strncmp(err.text, "malformed", 9) != 0);
        }
    }
    hps_free(bytes);
    hps_arena_free(arena);
}

/* ---- conversion to a lookup ------------------------------------------------------------------ */

static void check_bags(const struct hps_lookup_query *query)
{
    uint32_t before = 0;

    HPS_ASSERT(query->pooling <= HPS_POOLING_MEAN_BY_COUNT && query->pooling != 0);
    if (query->pooling == HPS_POOLING_NONE) {
        HPS_ASSERT(query->offsets == NULL && query->weights == NULL && query->n_bags == 0);
        return;
    }
    for (size_t i = 0; i <= query->n_bags; i++) {
        uint32_t offset;
        memcpy(&offset, query->offsets + i * sizeof(offset), sizeof(offset));
        HPS_ASSERT(offset >= before && (i > 0 || offset == 0));
        before = offset;
    }
    HPS_ASSERT(before == query->n_keys);
}

/* Also reads all bytes, so that a sanitizer detects wrong pointers. */
static uint64_t sum_of(const uint8_t *data, size_t size)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < size; i++) {
        sum += data[i];
    }
    return sum;
}

/* For each query, the counts of all samples must add up to its keys. */
static void check_samples(const struct hps_lookup_request *request,
                          const struct kserve_answer *answer)
{
    HPS_ASSERT(answer->by_position ? answer->n_samples > 0 : answer->counts == NULL);
    for (uint32_t i = 0; answer->counts != NULL && i < request->n_queries; i++) {
        uint64_t n = 0;
        for (uint32_t sample = 0; sample < answer->n_samples; sample++) {
            n += answer->counts[(size_t)sample * request->n_queries + i];
        }
        HPS_ASSERT(n == request->queries[i].n_keys);
    }
}

static void check_lookup(const struct hps_lookup_request *request, const struct kserve_infer *infer,
                         const struct kserve_answer *answer)
{
    uint64_t n_keys = 0;
    uint64_t n_bags = 0;
    uint64_t sum = 0;
    uint64_t n_read = answer->by_position ? 2 : request->n_queries; /* number of inputs */

    HPS_ASSERT(request->n_queries <= LIMITS.tables_max);
    for (uint32_t i = 0; i < request->n_queries; i++) {
        const struct hps_lookup_query *query = &request->queries[i];
        check_bags(query);
        n_keys += query->n_keys;
        n_bags += query->n_bags;
        n_read += query->offsets != NULL ? 1 : 0;
        n_read += query->weights != NULL ? 1 : 0;
        sum += sum_of(query->keys, (size_t)query->n_keys * sizeof(hps_key));
        sum += sum_of(query->weights, query->weights == NULL ? 0 : query->n_keys * sizeof(float));
        sum += sum_of((const uint8_t *)query->table, query->table_size);
    }
    HPS_ASSERT(request->n_keys == n_keys && n_keys <= LIMITS.keys_max);
    HPS_ASSERT(request->n_bags == n_bags && n_bags <= LIMITS.keys_max);
    HPS_ASSERT(n_read <= infer->n_inputs);
    HPS_ASSERT(request->label_size == 0 || request->version == 0);
    HPS_ASSERT(request->timeout_us == infer->timeout_us);
    HPS_ASSERT(infer->n_outputs == 0 || answer->n_outputs == infer->n_outputs);
    for (uint32_t i = 0; i < answer->n_outputs; i++) {
        const struct kserve_answer_output *output = &answer->outputs[i];
        HPS_ASSERT(output->kind < KSERVE_OUTPUT_KINDS);
        HPS_ASSERT(output->kind != KSERVE_OUTPUT_TABLE || output->part < request->n_queries);
        sum += sum_of((const uint8_t *)output->name.at, output->name.size);
    }
    __asm__ volatile("" ::"r"(sum)); /* prevents that the compiler removes the reads */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hps_arena *arena = hps_arena_new(4096, ARENA_BYTES);
    struct hps_lookup_request request = {0};
    struct kserve_answer answer = {0};
    struct kserve_infer infer;
    struct hps_error err;

    if (arena == NULL) {
        return 0;
    }
    hps_status status = kserve_infer_grpc(data, size, &LIMITS, arena, &infer, &err);
    Inference__ModelInferRequest *theirs = inference__model_infer_request__unpack(NULL, size, data);
    if (status == HPS_OK) {
        HPS_ASSERT(theirs != NULL);
        check_request(&infer, theirs);
        status = kserve_view(&infer, &LIMITS, arena, &request, &answer, &err);
        if (status == HPS_OK) {
            check_lookup(&request, &infer, &answer);
            check_samples(&request, &answer);
        } else {
            HPS_ASSERT(err.status == status && err.text[0] != '\0');
        }
    }
    if (theirs != NULL && !has_unknown(&theirs->base)) {
        check_canonical(theirs);
    }
    if (theirs != NULL) {
        inference__model_infer_request__free_unpacked(theirs, NULL);
    }
    hps_arena_free(arena);
    return 0;
}

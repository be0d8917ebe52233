/* SPDX-License-Identifier: Apache-2.0
 *
 * Metadata and configuration: the server, the tensors of a model, shared memory. Larger replies are
 * built on workers.
 */
#include <inttypes.h>
#include <string.h>

#include "base/assert.h"
#include "base/build_info.h"
#include "inference/grpc_service.pb-c.h"
#include "server/kserve/op.h"

enum { DIMS_MAX = 2 };

#define ANY_SIZE INT64_C(-1)

/* ---- tensors --------------------------------------------------------------------------------- */

struct tensor {
    const char *name;
    enum { INT32, INT64, FP32, UINT8 } type;
    unsigned n_dims;
    int64_t dims[DIMS_MAX];
    bool optional;
};

static const struct {
    const char *name;
    Inference__DataType config;
} types[] = {[INT32] = {"INT32", INFERENCE__DATA_TYPE__TYPE_INT32},
             [INT64] = {"INT64", INFERENCE__DATA_TYPE__TYPE_INT64},
             [FP32] = {"FP32", INFERENCE__DATA_TYPE__TYPE_FP32},
             [UINT8] = {"UINT8", INFERENCE__DATA_TYPE__TYPE_UINT8}};

/* The tensors of one view of a version. */
struct tensors {
    struct tensor *inputs; /* [n_inputs]; in the arena or static, like outputs */
    struct tensor *outputs;
    size_t n_inputs, n_outputs;
    bool batched; /* the first dimension of inputs is the batch */
};

/* The view of HPS: each row of KEYS and NUMKEYS is a sample. */
static void describe_positions(struct tensors *out)
{
    static struct tensor inputs[] = {
        {KSERVE_KEYS, INT64, 2, {ANY_SIZE, ANY_SIZE}, false},
        {KSERVE_NUMKEYS, INT32, 2, {ANY_SIZE, ANY_SIZE}, false},
    };
    static struct tensor outputs[] = {
        {KSERVE_OUTPUT0, FP32, 1, {ANY_SIZE}, false},
        {KSERVE_STATUS, UINT8, 1, {ANY_SIZE}, false},
    };
    *out = (struct tensors){
        .inputs = inputs, .n_inputs = 2, .outputs = outputs, .n_outputs = 2, .batched = true};
}

/* False: op->error is set. */
static bool describe_tables(struct hps_unary *op, const struct hps_version *version,
                            struct tensors *out)
{
    struct tensor *inputs = hps_unary_alloc(op, 3 * (size_t)version->n_tables, sizeof(*inputs));
    struct tensor *outputs = hps_unary_alloc(op, version->n_tables, sizeof(*outputs));
    *out = (struct tensors){.inputs = inputs, .outputs = outputs};
    if (inputs == NULL || outputs == NULL) {
        return false;
    }
    for (uint32_t place = 0; place < version->n_places; place++) {
        uint32_t i = hps_version_table_at(version, place);
        if (i == UINT32_MAX) {
            continue;
        }
        const char *name = hps_unary_text(op, version->tables[i].name);
        inputs[out->n_inputs++] = (struct tensor){name, INT64, 1, {ANY_SIZE}, true};
        inputs[out->n_inputs++] =
            (struct tensor){kserve_join(op, name, KSERVE_OFFSETS), INT64, 1, {ANY_SIZE}, true};
        inputs[out->n_inputs++] =
            (struct tensor){kserve_join(op, name, KSERVE_WEIGHTS), FP32, 1, {ANY_SIZE}, true};
        outputs[out->n_outputs++] =
            (struct tensor){name, FP32, 2, {ANY_SIZE, (int64_t)version->tables[i].dim}, false};
    }
    HPS_ASSERT(out->n_outputs == version->n_tables);
    return op->error.status == HPS_OK;
}

static bool describe(struct hps_unary *op, const struct hps_version *version, struct tensors *out)
{
    if (kserve_of(op)->by_table) {
        return describe_tables(op, version, out);
    }
    describe_positions(out);
    return true;
}

static int64_t *dims_of(struct hps_unary *op, const struct tensor *tensor, unsigned first)
{
    HPS_ASSERT(first < tensor->n_dims);
    int64_t *dims = hps_unary_alloc(op, tensor->n_dims, sizeof(*dims));
    if (dims != NULL) {
        memcpy(dims, tensor->dims + first, (tensor->n_dims - first) * sizeof(*dims));
    }
    return dims;
}

/* ---- metadata -------------------------------------------------------------------------------- */

typedef Inference__ModelMetadataResponse metadata_message;
typedef Inference__ModelMetadataResponse__TensorMetadata tensor_message;
typedef Inference__ModelMetadataResponse__PropertiesEntry property_message;

static tensor_message **tensor_messages(struct hps_unary *op, const struct tensor *tensors,
                                        size_t n)
{
    tensor_message **messages =
        kserve_messages(op, &inference__model_metadata_response__tensor_metadata__descriptor, n);
    for (size_t i = 0; messages != NULL && i < n; i++) {
        messages[i]->name = (char *)(uintptr_t)tensors[i].name;
        messages[i]->datatype = (char *)(uintptr_t)types[tensors[i].type].name;
        messages[i]->n_shape = tensors[i].n_dims;
        messages[i]->shape = dims_of(op, &tensors[i], 0);
    }
    return messages;
}

static void put_property(struct hps_unary *op, metadata_message *reply, const char *name,
                         const char *value)
{
    if (value != NULL && value[0] != '\0') {
        property_message *property = reply->properties[reply->n_properties++];
        property->key = (char *)(uintptr_t)name;
        property->value = hps_unary_text(op, value);
    }
}

static void put_versions(struct hps_unary *op, metadata_message *reply,
                         const struct hps_model_pinned *pinned)
{
    reply->versions = hps_unary_alloc(op, pinned->n, sizeof(char *));
    for (size_t i = 0; reply->versions != NULL && i < pinned->n; i++) {
        reply->versions[reply->n_versions++] = kserve_number(op, pinned->versions[i]->number);
    }
}

static void put_metadata(struct hps_unary *op, metadata_message *reply,
                         const struct hps_model_pinned *pinned, const struct hps_version *chosen)
{
    struct tensors tensors;
    reply->properties =
        kserve_messages(op, &inference__model_metadata_response__properties_entry__descriptor, 2);
    if (reply->properties == NULL || !describe(op, chosen, &tensors)) {
        return;
    }
    reply->name = hps_unary_text(op, kserve_of(op)->name);
    reply->platform = (char *)(uintptr_t)KSERVE_PLATFORM;
    put_versions(op, reply, pinned);
    put_property(op, reply, "label", chosen->label);
    put_property(op, reply, "lineage", chosen->lineage);
    reply->inputs = tensor_messages(op, tensors.inputs, tensors.n_inputs);
    reply->outputs = tensor_messages(op, tensors.outputs, tensors.n_outputs);
    reply->n_inputs = tensors.n_inputs;
    reply->n_outputs = tensors.n_outputs;
    op->reply = &reply->base;
}

void kserve_model_metadata(struct hps_unary *op)
{
    struct hps_model_pinned pinned;
    struct hps_version *chosen = NULL;
    metadata_message *reply =
        hps_unary_message(op, &inference__model_metadata_response__descriptor);
    if (reply != NULL && kserve_pin(op, &pinned, &chosen)) {
        put_metadata(op, reply, &pinned, chosen);
        hps_model_unpin(&pinned);
    }
}

/* ---- configuration --------------------------------------------------------------------------- */

static Inference__ModelInput **config_inputs(struct hps_unary *op, const struct tensors *tensors,
                                             bool without_batch)
{
    Inference__ModelInput **messages =
        kserve_messages(op, &inference__model_input__descriptor, tensors->n_inputs);
    unsigned first = without_batch ? 1 : 0;
    for (size_t i = 0; messages != NULL && i < tensors->n_inputs; i++) {
        const struct tensor *tensor = &tensors->inputs[i];
        messages[i]->name = (char *)(uintptr_t)tensor->name;
        messages[i]->data_type = types[tensor->type].config;
        messages[i]->optional = tensor->optional;
        messages[i]->n_dims = tensor->n_dims - first;
        messages[i]->dims = dims_of(op, tensor, first);
    }
    return messages;
}

static Inference__ModelOutput **config_outputs(struct hps_unary *op, const struct tensors *tensors)
{
    Inference__ModelOutput **messages =
        kserve_messages(op, &inference__model_output__descriptor, tensors->n_outputs);
    for (size_t i = 0; messages != NULL && i < tensors->n_outputs; i++) {
        const struct tensor *tensor = &tensors->outputs[i];
        messages[i]->name = (char *)(uintptr_t)tensor->name;
        messages[i]->data_type = types[tensor->type].config;
        messages[i]->n_dims = tensor->n_dims;
        messages[i]->dims = dims_of(op, tensor, 0);
    }
    return messages;
}

/* The resident versions. */
static Inference__ModelVersionPolicy *version_policy(struct hps_unary *op,
                                                     const struct hps_model_pinned *pinned)
{
    Inference__ModelVersionPolicy *policy =
        hps_unary_message(op, &inference__model_version_policy__descriptor);
    Inference__ModelVersionPolicy__Specific *specific =
        hps_unary_message(op, &inference__model_version_policy__specific__descriptor);
    int64_t *numbers = hps_unary_alloc(op, pinned->n, sizeof(*numbers));
    if (policy == NULL || specific == NULL || numbers == NULL) {
        return NULL;
    }
    for (size_t i = 0; i < pinned->n; i++) {
        numbers[i] = pinned->versions[i]->number;
    }
    specific->versions = numbers;
    specific->n_versions = pinned->n;
    policy->policy_choice_case = INFERENCE__MODEL_VERSION_POLICY__POLICY_CHOICE_SPECIFIC;
    policy->specific = specific;
    return policy;
}

static void put_config(struct hps_unary *op, Inference__ModelConfig *config,
                       const struct hps_model_pinned *pinned, const struct hps_version *chosen)
{
    struct tensors tensors;
    if (!describe(op, chosen, &tensors)) {
        return;
    }
    uint32_t batch = tensors.batched ? chosen->batch_samples_max : 0;
    Inference__ModelInstanceGroup **groups =
        kserve_messages(op, &inference__model_instance_group__descriptor, 1);
    config->name = hps_unary_text(op, kserve_of(op)->name);
    config->backend = (char *)(uintptr_t)KSERVE_PLATFORM;
    config->max_batch_size = batch < INT32_MAX ? (int32_t)batch : INT32_MAX;
    config->version_policy = version_policy(op, pinned);
    config->input = config_inputs(op, &tensors, batch > 0);
    config->n_input = tensors.n_inputs;
    config->output = config_outputs(op, &tensors);
    config->n_output = tensors.n_outputs;
    config->instance_group = groups;
    if (groups != NULL) {
        groups[0]->name = config->name;
        groups[0]->count = 1;
        groups[0]->kind = chosen->gpu != NULL ? INFERENCE__MODEL_INSTANCE_GROUP__KIND__KIND_GPU
                                              : INFERENCE__MODEL_INSTANCE_GROUP__KIND__KIND_CPU;
        config->n_instance_group = 1;
    }
    config->model_transaction_policy =
        hps_unary_message(op, &inference__model_transaction_policy__descriptor);
}

void kserve_model_config(struct hps_unary *op)
{
    struct hps_model_pinned pinned;
    struct hps_version *chosen = NULL;
    Inference__ModelConfigResponse *reply =
        hps_unary_message(op, &inference__model_config_response__descriptor);
    Inference__ModelConfig *config = hps_unary_message(op, &inference__model_config__descriptor);
    if (reply != NULL && config != NULL && kserve_pin(op, &pinned, &chosen)) {
        put_config(op, config, &pinned, chosen);
        hps_model_unpin(&pinned);
        reply->config = config;
        op->reply = &reply->base;
    }
}

/* ---- the server ------------------------------------------------------------------------------ */

void kserve_server_metadata(struct hps_unary *op)
{
    /* Only the implemented extensions, because clients rely on the list. */
    static const char *const extensions[] = {"model_repository", "model_configuration",
                                             "binary_tensor_data", "parameters", "statistics"};
    enum { N = sizeof(extensions) / sizeof(extensions[0]) };
    Inference__ServerMetadataResponse *reply =
        hps_unary_message(op, &inference__server_metadata_response__descriptor);
    if (reply != NULL) {
        reply->name = (char *)(uintptr_t) "hpsd";
        reply->version = (char *)(uintptr_t)hps_build_version;
        reply->extensions = (char **)(uintptr_t)extensions;
        reply->n_extensions = N;
        op->reply = &reply->base;
    }
}

void kserve_server_live(struct hps_unary *op)
{
    static const Inference__ServerLiveResponse reply = {
        .base = PROTOBUF_C_MESSAGE_INIT(&inference__server_live_response__descriptor), .live = 1};
    op->reply = &reply.base;
}

/* The state of the last refresh. /readyz refreshes before it replies. */
void kserve_server_ready(struct hps_unary *op)
{
    Inference__ServerReadyResponse *reply =
        hps_unary_message(op, &inference__server_ready_response__descriptor);
    if (reply != NULL) {
        reply->ready = hps_readiness_get(kserve_parts(op)->readiness, NULL, NULL);
        op->reply = &reply->base;
    }
}

/* A model that does not exist is not ready; this is not an error. */
void kserve_model_ready(struct hps_unary *op)
{
    struct hps_model_pinned pinned;
    struct hps_version *chosen = NULL;
    Inference__ModelReadyResponse *reply =
        hps_unary_message(op, &inference__model_ready_response__descriptor);
    if (reply == NULL) {
        return;
    }
    if (kserve_pin(op, &pinned, &chosen)) {
        hps_model_unpin(&pinned);
        reply->ready = true;
    }
    op->error = (struct hps_error){0};
    op->reply = &reply->base;
}

/* ---- shared memory --------------------------------------------------------------------------- */

void kserve_memory_status(struct hps_unary *op)
{
    static const Inference__SystemSharedMemoryStatusResponse system = {
        .base =
            PROTOBUF_C_MESSAGE_INIT(&inference__system_shared_memory_status_response__descriptor)};
    static const Inference__CudaSharedMemoryStatusResponse cuda = {
        .base =
            PROTOBUF_C_MESSAGE_INIT(&inference__cuda_shared_memory_status_response__descriptor)};
    bool is_cuda =
        op->request->descriptor == &inference__cuda_shared_memory_status_request__descriptor;

    if (kserve_of(op)->name[0] != '\0') {
        hps_ignore(hps_error_set(&op->error, HPS_NOT_FOUND,
                                 "Unable to find %s shared memory region: '%.120s'",
                                 is_cuda ? "cuda" : "system", kserve_of(op)->name));
    }
    op->reply = is_cuda ? &cuda.base : &system.base;
}

void kserve_memory_unregister(struct hps_unary *op)
{
    static const Inference__SystemSharedMemoryUnregisterResponse reply = {
        .base = PROTOBUF_C_MESSAGE_INIT(
            &inference__system_shared_memory_unregister_response__descriptor)};
    op->reply = &reply.base; /* both kinds have no fields */
}

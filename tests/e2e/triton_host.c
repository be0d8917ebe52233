/* SPDX-License-Identifier: Apache-2.0
 *
 * A host of Triton's backend "hps": it has the functions that Triton provides, loads the backend,
 * and does what lines of its standard input say (test_triton_host.py). The tables have the rows of
 * base/rows/rowgen.h for the keys 0 to ROWS - 1; other keys have rows of zeroes.
 *
 *     triton_host LIBRARY MODEL ROWS DIM[,DIM…] [NAME=VALUE…]     (of --backend-config)
 *
 * Every command is answered by a line:
 *
 * - load N, unload: the model with N instances; "0" or "CODE TEXT"
 * - ask TIMEOUT_US: one request; "CODE TEXT"
 * - many N TIMEOUT_US: N requests in one Execute; "N of them with the right rows, US"
 * - gpu: a request with keys in GPU memory; "CODE TEXT"
 * - cancel: a request, cancelled while its lookup is in flight; "CODE TEXT"
 * - random N THREADS PERMILLE GPU: N batches of requests of all kinds from each thread;
 *   PERMILLE of a thousand calls of Triton's functions fail; GPU 1: some buffers are in GPU memory.
 * "N requests, N failed"
 * - raw KEYS NUMKEYS COUNT…: one request whose tensors have these shapes, such as 2x5, and these
 *   counts, the last of them repeated; keys count from 0; "CODE TEXT"
 * - dims DIM[,DIM…]: from now on, rows are expected to have these widths; "0"
 * - unchecked: from now on, rows are not compared; "0"
 * - measure ADDRESS N_TABLES N_KEYS IN_FLIGHT N: "US US", of N requests by the backend, and by
 *   hpsd.h alone
 *
 * At the end it checks that all objects were returned, and prints "ok". It aborts if an answer is
 * wrong.
 */
#include <dlfcn.h>
#include <inttypes.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/rows/rowgen.h"
#include "base/thread.h"
#include "client/hpsd.h"
#include "clients/triton/triton_abi.h"

enum { TABLES_MAX = 64, PIECES_MAX = 6, BATCH_MAX = 8, INSTANCES_MAX = 4, SEED = 1 };

struct triton_error {
    int code;
    char text[600];
};
struct triton_message {
    char text[2000];
};
struct triton_backend {
    void *state;
    struct triton_message config;
};
struct triton_model {
    void *state;
    struct triton_backend *backend;
    const char *name;
};
struct triton_instance {
    void *state;
    struct triton_model *model;
};
struct piece {
    uint8_t *memory; /* allocated */
    const uint8_t *data;
    size_t size;
};
struct triton_input {
    const char *name;
    int type, memory;
    int64_t shape[2];
    uint32_t n_dims, n_pieces;
    uint64_t size;
    struct piece pieces[PIECES_MAX];
};
struct triton_output {
    int type, memory;
    uint32_t n_dims;
    int64_t n_values;
    struct triton_request *request;
    float *rows; /* the request's */
    size_t size;
};
struct triton_response {
    struct triton_request *request;
    struct triton_output output;
    int64_t n_sample, device_id;
};
struct triton_request {
    struct triton_input inputs[2]; /* KEYS, NUMKEYS */
    uint64_t timeout_us;
    uint64_t sent_ns; /* when Execute was called */
    atomic_bool cancelled;
    int output_memory;
    float *rows; /* memory of the output, used again if the request is sent again */
    size_t rows_size;
    bool faulted; /* a function failed on purpose */
    float *expected;
    size_t n_expected;
    int64_t n_sample_expected;
    bool answered, reported;
    int code; /* -1: rows */
    char text[600];
    sem_t *released;
};

static struct {
    void *library;
    struct triton_backend backend;
    struct triton_model model;
    struct triton_instance instances[INSTANCES_MAX];
    unsigned n_instances;
    uint32_t dims[TABLES_MAX], n_tables;
    uint64_t n_rows;
    atomic_int errors, messages, responses; /* now in use */
    atomic_uint permille;
    bool unchecked; /* rows are not compared, as that would take time */
} host;

static _Thread_local uint64_t random_state;

static uint64_t random_below(uint64_t n)
{
    random_state += HPS_HASH_GOLDEN;
    return hps_mix64(random_state) % n;
}

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void fail(const char *what)
{
    fprintf(stderr, "triton_host: %s\n", what);
    abort();
}

static void expect(bool right, const char *what)
{
    if (!right) {
        fail(what);
    }
}

/* ---- Triton's functions ---------------------------------------------------------------------- */

struct triton_error *TRITONSERVER_ErrorNew(int code, const char *text)
{
    struct triton_error *error = hps_calloc(1, sizeof(*error));

    expect(code >= 0 && code <= TRITON_CANCELLED, "a code that does not exist");
    error->code = code;
    snprintf(error->text, sizeof(error->text), "%s", text);
    atomic_fetch_add(&host.errors, 1);
    return error;
}

void TRITONSERVER_ErrorDelete(struct triton_error *error)
{
    atomic_fetch_sub(&host.errors, 1);
    hps_free(error);
}

int TRITONSERVER_ErrorCode(struct triton_error *error)
{
    return error->code;
}

const char *TRITONSERVER_ErrorMessage(struct triton_error *error)
{
    return error->text;
}

struct triton_error *TRITONSERVER_MessageSerializeToJson(struct triton_message *message,
                                                         const char **out_text, size_t *out_size)
{
    *out_text = message->text;
    *out_size = strlen(message->text);
    return NULL;
}

struct triton_error *TRITONSERVER_MessageDelete(struct triton_message *message)
{
    atomic_fetch_sub(&host.messages, 1);
    hps_free(message);
    return NULL;
}

struct triton_error *TRITONSERVER_LogMessage(int level, const char *file, int line,
                                             const char *text)
{
    fprintf(stderr, "level=%d %s:%d: %s\n", level, file, line, text);
    return NULL;
}

struct triton_error *TRITONBACKEND_ApiVersion(uint32_t *out_major, uint32_t *out_minor)
{
    *out_major = 1;
    *out_minor = 19;
    return NULL;
}

struct triton_error *TRITONBACKEND_BackendConfig(struct triton_backend *backend,
                                                 struct triton_message **out_config)
{
    *out_config = &backend->config;
    return NULL;
}

struct triton_error *TRITONBACKEND_BackendState(struct triton_backend *backend, void **out_state)
{
    *out_state = backend->state;
    return NULL;
}

struct triton_error *TRITONBACKEND_BackendSetState(struct triton_backend *backend, void *state)
{
    backend->state = state;
    return NULL;
}

struct triton_error *TRITONBACKEND_ModelBackend(struct triton_model *model,
                                                struct triton_backend **out_backend)
{
    *out_backend = model->backend;
    return NULL;
}

struct triton_error *TRITONBACKEND_ModelName(struct triton_model *model, const char **out_name)
{
    *out_name = model->name;
    return NULL;
}

struct triton_error *TRITONBACKEND_ModelConfig(struct triton_model *model, uint32_t config_version,
                                               struct triton_message **out_config)
{
    struct triton_message *message = hps_calloc(1, sizeof(*message));

    expect(config_version == 1 && model == &host.model, "ModelConfig");
    snprintf(message->text, sizeof(message->text),
             "{\"name\":\"%s\",\"input\":[{\"name\":\"KEYS\",\"data_type\":\"TYPE_INT64\"},"
             "{\"name\":\"NUMKEYS\",\"data_type\":\"TYPE_INT32\"}],"
             "\"output\":[{\"name\":\"OUTPUT0\",\"data_type\":\"TYPE_FP32\"}]}",
             model->name);
    atomic_fetch_add(&host.messages, 1);
    *out_config = message;
    return NULL;
}

struct triton_error *TRITONBACKEND_ModelState(struct triton_model *model, void **out_state)
{
    *out_state = model->state;
    return NULL;
}

struct triton_error *TRITONBACKEND_ModelSetState(struct triton_model *model, void *state)
{
    model->state = state;
    return NULL;
}

struct triton_error *TRITONBACKEND_ModelInstanceState(struct triton_instance *instance,
                                                      void **out_state)
{
    *out_state = instance->state;
    return NULL;
}

struct triton_error *TRITONBACKEND_ModelInstanceSetState(struct triton_instance *instance,
                                                         void *state)
{
    instance->state = state;
    return NULL;
}

struct triton_error *TRITONBACKEND_ModelInstanceModel(struct triton_instance *instance,
                                                      struct triton_model **out_model)
{
    *out_model = instance->model;
    return NULL;
}

/* Fails now and then, if the test wants it. */
static struct triton_error *fault(struct triton_request *request)
{
    unsigned permille = atomic_load(&host.permille);

    if (permille == 0 || random_below(1000) >= permille) {
        return NULL;
    }
    request->faulted = true;
    return TRITONSERVER_ErrorNew(TRITON_INTERNAL, "failed on purpose");
}

struct triton_error *TRITONBACKEND_RequestInput(struct triton_request *request, const char *name,
                                                struct triton_input **out_input)
{
    struct triton_error *error = fault(request);

    for (int i = 0; error == NULL && i < 2; i++) {
        if (strcmp(request->inputs[i].name, name) == 0) {
            *out_input = &request->inputs[i];
            return NULL;
        }
    }
    return error != NULL ? error : TRITONSERVER_ErrorNew(TRITON_INVALID_ARG, "no such input");
}

struct triton_error *TRITONBACKEND_RequestOutputName(struct triton_request *request, uint32_t index,
                                                     const char **out_name)
{
    expect(index == 0, "RequestOutputName");
    *out_name = "OUTPUT0";
    return fault(request);
}

#ifndef OLDER_SERVER
struct triton_error *TRITONBACKEND_RequestIsCancelled(struct triton_request *request,
                                                      bool *out_cancelled)
{
    *out_cancelled = atomic_load(&request->cancelled);
    return NULL;
}

struct triton_error *TRITONBACKEND_InferenceRequestTimeoutMicroseconds(
    struct triton_request *request, uint64_t *out_timeout_us)
{
    *out_timeout_us = request->timeout_us;
    return NULL;
}
#endif

struct triton_error *TRITONBACKEND_RequestRelease(struct triton_request *request, uint32_t flags)
{
    expect(flags == TRITON_RELEASE_ALL && request->reported, "RequestRelease");
    expect(request->answered || request->faulted, "a request without a response");
    sem_post(request->released); /* the request may be freed now */
    return NULL;
}

struct triton_error *TRITONBACKEND_InputProperties(struct triton_input *input,
                                                   const char **out_name, int *out_type,
                                                   const int64_t **out_shape, uint32_t *out_n_dims,
                                                   uint64_t *out_bytes, uint32_t *out_n_buffers)
{
    expect(out_name == NULL, "InputProperties");
    *out_type = input->type;
    *out_shape = input->shape;
    *out_n_dims = input->n_dims;
    *out_bytes = input->size;
    *out_n_buffers = input->n_pieces;
    return NULL;
}

struct triton_error *TRITONBACKEND_InputBuffer(struct triton_input *input, uint32_t index,
                                               const void **out_buffer, uint64_t *out_bytes,
                                               int *io_memory, int64_t *io_device)
{
    expect(index < input->n_pieces && *io_device == 0, "InputBuffer");
    *out_buffer = input->pieces[index].data;
    *out_bytes = input->pieces[index].size;
    *io_memory = input->memory;
    return NULL;
}

struct triton_error *TRITONBACKEND_ResponseNew(struct triton_response **out_response,
                                               struct triton_request *request)
{
    struct triton_error *error = fault(request);

    if (error == NULL) {
        *out_response = hps_calloc(1, sizeof(**out_response));
        (*out_response)->request = request;
        atomic_fetch_add(&host.responses, 1);
    }
    return error;
}

struct triton_error *TRITONBACKEND_ResponseOutput(struct triton_response *response,
                                                  struct triton_output **out_output,
                                                  const char *name, int type, const int64_t *shape,
                                                  uint32_t n_dims)
{
    expect(strcmp(name, "OUTPUT0") == 0 && n_dims == 1 && type == TRITON_FP32, "ResponseOutput");
    response->output.n_values = shape[0];
    response->output.memory = response->request->output_memory;
    response->output.request = response->request;
    *out_output = &response->output;
    return fault(response->request);
}

struct triton_error *TRITONBACKEND_OutputBuffer(struct triton_output *output, void **out_buffer,
                                                uint64_t bytes, int *io_memory, int64_t *io_device)
{
    expect(bytes == (uint64_t)output->n_values * sizeof(float) && *io_device == 0, "OutputBuffer");
    if (output->request->rows == NULL || output->request->rows_size != bytes) {
        hps_free(output->request->rows);
        output->request->rows = hps_alloc(bytes);
        output->request->rows_size = bytes;
    }
    output->rows = bytes == 0 ? NULL : output->request->rows;
    output->size = bytes;
    *out_buffer = output->rows;
    *io_memory = output->memory;
    return NULL;
}

struct triton_error *TRITONBACKEND_ResponseSetIntParameter(struct triton_response *response,
                                                           const char *name, int64_t value)
{
    if (strcmp(name, "NumSample") == 0) {
        response->n_sample = value;
    } else {
        expect(strcmp(name, "DeviceID") == 0 && value == 0, "ResponseSetIntParameter");
    }
    return fault(response->request);
}

static void check_rows(const struct triton_response *response)
{
    const struct triton_request *request = response->request;
    const struct triton_output *output = &response->output;

    expect(request->expected != NULL, "rows for a malformed request");
    expect(output->size == request->n_expected * sizeof(float), "an output of another size");
    expect(output->size == 0 || host.unchecked ||
               memcmp(output->rows, request->expected, output->size) == 0,
           "a wrong row");
    expect(response->n_sample == request->n_sample_expected, "NumSample");
}

struct triton_error *TRITONBACKEND_ResponseSend(struct triton_response *response, uint32_t flags,
                                                struct triton_error *error)
{
    struct triton_request *request = response->request;

    expect(flags == TRITON_RESPONSE_FINAL && !request->answered && !request->reported,
           "ResponseSend");
    request->answered = true;
    request->code = error == NULL ? -1 : error->code;
    if (error == NULL) {
        check_rows(response);
    } else {
        snprintf(request->text, sizeof(request->text), "%s", error->text);
    }
    hps_free(response);
    atomic_fetch_sub(&host.responses, 1);
    return fault(request);
}

struct triton_error *TRITONBACKEND_ModelInstanceReportStatistics(
    struct triton_instance *instance, struct triton_request *request, bool success,
    uint64_t exec_start_ns, uint64_t compute_start_ns, uint64_t compute_end_ns,
    uint64_t exec_end_ns)
{
    expect(instance->state != NULL && !request->reported, "ReportStatistics");
    expect(request->faulted || success == (request->code == -1), "ReportStatistics: success");
    expect(exec_start_ns >= request->sent_ns && exec_start_ns <= compute_end_ns &&
               compute_end_ns <= exec_end_ns,
           "ReportStatistics: times");
    expect(compute_start_ns == 0 || compute_start_ns >= exec_start_ns, "ReportStatistics: start");
    request->reported = true;
    return NULL;
}

struct triton_error *TRITONBACKEND_ModelInstanceReportBatchStatistics(
    struct triton_instance *instance, uint64_t batch_size, uint64_t exec_start_ns,
    uint64_t compute_start_ns, uint64_t compute_end_ns, uint64_t exec_end_ns)
{
    expect(instance->state != NULL && batch_size > 0 && exec_start_ns <= compute_start_ns &&
               compute_start_ns <= compute_end_ns && compute_end_ns <= exec_end_ns,
           "ReportBatchStatistics");
    return NULL;
}

/* ---- the backend ----------------------------------------------------------------------------- */

typedef struct triton_error *(*call_fn)(void *object);
typedef struct triton_error *(*execute_fn)(struct triton_instance *, struct triton_request **,
                                           uint32_t);

/* Prints the error, or "0". */
static void answer(struct triton_error *error)
{
    printf("%d%s%s\n", error == NULL ? 0 : error->code, error == NULL ? "" : " ",
           error == NULL ? "" : error->text);
    if (error != NULL) {
        TRITONSERVER_ErrorDelete(error);
    }
}

static struct triton_error *call(const char *name, void *object)
{
    call_fn fn = NULL;

    *(void **)&fn = dlsym(host.library, name);
    expect(fn != NULL, name);
    return fn(object);
}

static void execute(unsigned instance, struct triton_request **requests, uint32_t n)
{
    execute_fn fn = NULL;

    *(void **)&fn = dlsym(host.library, "TRITONBACKEND_ModelInstanceExecute");
    for (uint32_t i = 0; i < n; i++) {
        requests[i]->sent_ns = now_ns();
    }
    struct triton_error *error = fn(&host.instances[instance], requests, n);
    expect(error == NULL, "Execute failed");
}

static void unload(void)
{
    while (host.n_instances > 0) {
        struct triton_instance *instance = &host.instances[--host.n_instances];
        expect(call("TRITONBACKEND_ModelInstanceFinalize", instance) == NULL, "InstanceFinalize");
        instance->state = NULL;
    }
    expect(call("TRITONBACKEND_ModelFinalize", &host.model) == NULL, "ModelFinalize");
    host.model.state = NULL;
}

static struct triton_error *load(unsigned n_instances)
{
    struct triton_error *error = call("TRITONBACKEND_ModelInitialize", &host.model);

    for (unsigned i = 0; error == NULL && i < n_instances; i++) {
        host.instances[i].model = &host.model;
        error = call("TRITONBACKEND_ModelInstanceInitialize", &host.instances[i]);
        if (error != NULL) {
            unload();
            return error;
        }
        host.n_instances++;
    }
    return error;
}

/* ---- requests -------------------------------------------------------------------------------- */

enum kind { VALID, WRONG_SUM, NEGATIVE, WRONG_TYPE, WRONG_SIZE, SHORT_PIECES, KINDS };

/* Copies data[size] to pieces of any size and alignment. */
static void cut(struct triton_input *input, const void *data, size_t size, unsigned n_pieces)
{
    size_t at = 0;

    input->size = size;
    input->n_pieces = size == 0 ? 0 : n_pieces;
    for (unsigned i = 0; i < input->n_pieces; i++) {
        size_t n = i + 1 == n_pieces ? size - at : random_below(size - at + 1);
        size_t skip = random_below(8);
        struct piece *piece = &input->pieces[i];
        piece->memory = hps_alloc(skip + n);
        memcpy(piece->memory + skip, (const uint8_t *)data + at, n);
        piece->data = piece->memory + skip;
        piece->size = n;
        at += n;
    }
}

static void request_free(struct triton_request *request)
{
    for (int i = 0; i < 2; i++) {
        for (unsigned p = 0; p < request->inputs[i].n_pieces; p++) {
            hps_free(request->inputs[i].pieces[p].memory);
        }
    }
    hps_free(request->rows);
    hps_free(request->expected);
    hps_free(request);
}

static size_t expect_rows(struct triton_request *request, const int64_t *keys,
                          const int32_t *counts, uint32_t n_samples, uint32_t n_tables)
{
    size_t n = 0;

    for (uint32_t i = 0; i < n_samples * n_tables; i++) {
        n += (size_t)counts[i] * host.dims[i % n_tables];
    }
    request->expected = hps_calloc(n + 1, sizeof(float));
    size_t at = 0;
    size_t key = 0;
    for (uint32_t i = 0; i < n_samples * n_tables; i++) {
        uint32_t dim = host.dims[i % n_tables];
        for (int32_t k = 0; k < counts[i]; k++, key++, at += dim) {
            if ((uint64_t)keys[key] < host.n_rows) {
                hps_rowgen_row(SEED, i % n_tables, (hps_key)keys[key], dim, request->expected + at);
            }
        }
    }
    request->n_expected = n;
    request->n_sample_expected = n_tables == 0 ? 0 : (int64_t)(key / n_tables);
    return key;
}

static void spoil(struct triton_request *request, enum kind kind, int32_t *counts)
{
    struct triton_input *keys = &request->inputs[0];

    if (kind == WRONG_SUM) {
        counts[0]++;
    } else if (kind == NEGATIVE) {
        counts[0] = -1;
    } else if (kind == WRONG_TYPE) {
        keys->type = TRITON_INT32;
    } else if (kind == WRONG_SIZE) {
        keys->shape[keys->n_dims - 1]++;
    } else if (kind == SHORT_PIECES) {
        keys->size += sizeof(int64_t);
        keys->shape[keys->n_dims - 1]++;
    }
    if (kind != VALID) {
        hps_free(request->expected);
        request->expected = NULL;
    }
}

/* A request of n_samples samples with up to n_keys_max keys of each table. */
static struct triton_request *request_new(enum kind kind, uint32_t n_samples, uint32_t n_tables,
                                          uint32_t n_keys_max, bool exact, unsigned n_pieces,
                                          sem_t *released)
{
    struct triton_request *request = hps_calloc(1, sizeof(*request));
    int32_t *counts = hps_calloc((size_t)n_samples * n_tables, sizeof(*counts));
    uint32_t n_row = 0;

    for (uint32_t i = 0; i < n_tables; i++) {
        counts[i] = (int32_t)(exact ? n_keys_max : random_below(n_keys_max + 1));
        n_row += (uint32_t)counts[i];
    }
    for (uint32_t i = n_tables; i < n_samples * n_tables; i++) {
        counts[i] = counts[n_tables - 1 - i % n_tables]; /* another order, with the same sum */
    }
    int64_t *keys = hps_calloc((size_t)n_samples * n_row + 1, sizeof(*keys));
    for (uint32_t i = 0; i < n_samples * n_row; i++) {
        keys[i] = exact || random_below(10) > 0 ? (int64_t)random_below(host.n_rows)
                                                : -(int64_t)random_below(1000);
    }
    request->released = released;
    bool flat = n_samples == 1 && random_below(2) == 0;
    request->inputs[0] = (struct triton_input){
        .name = "KEYS", .type = TRITON_INT64, .n_dims = flat ? 1 : 2, .shape = {n_samples, n_row}};
    request->inputs[1] = (struct triton_input){.name = "NUMKEYS",
                                               .type = TRITON_INT32,
                                               .n_dims = flat ? 1 : 2,
                                               .shape = {n_samples, n_tables}};
    if (flat) {
        request->inputs[0].shape[0] = n_row;
        request->inputs[1].shape[0] = n_tables;
    }
    expect_rows(request, keys, counts, n_samples, n_tables);
    cut(&request->inputs[0], keys, (size_t)n_samples * n_row * sizeof(*keys), n_pieces);
    spoil(request, kind, counts);
    cut(&request->inputs[1], counts, (size_t)n_samples * n_tables * sizeof(*counts), n_pieces);
    hps_free(keys);
    hps_free(counts);
    return request;
}

static void wait_for(sem_t *released, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        while (sem_wait(released) != 0) {
        }
    }
}

static void print_end(const struct triton_request *request)
{
    printf("%d%s%s\n", request->code, request->code == -1 ? "" : " ", request->text);
}

/* ---- commands -------------------------------------------------------------------------------- */

static void run_ask(uint64_t timeout_us, bool cancel, int memory)
{
    sem_t released;

    sem_init(&released, 0, 0);
    struct triton_request *request = request_new(VALID, 1, host.n_tables, 5, true, 2, &released);
    request->timeout_us = timeout_us;
    request->inputs[0].memory = memory;
    execute(0, &request, 1);
    atomic_store(&request->cancelled, cancel);
    wait_for(&released, 1);
    print_end(request);
    request_free(request);
    sem_destroy(&released);
}

/* Reads a shape, such as "2x5". Returns the number of its values. */
static size_t parse_shape(const char *text, struct triton_input *input)
{
    size_t n = 1;

    for (char *end = (char *)text; *end != '\0'; text = end + (*end == 'x')) {
        expect(input->n_dims < sizeof(input->shape) / sizeof(*input->shape), "a shape");
        input->shape[input->n_dims] = (int64_t)strtoull(text, &end, 10);
        n *= (size_t)input->shape[input->n_dims++];
    }
    return n;
}

static void run_raw(const char *keys_shape, const char *counts_shape, char *counts_text)
{
    struct triton_request *request = hps_calloc(1, sizeof(*request));
    struct triton_input *inputs = request->inputs;
    int32_t count = 0;
    sem_t released;

    sem_init(&released, 0, 0);
    inputs[0] = (struct triton_input){.name = "KEYS", .type = TRITON_INT64};
    inputs[1] = (struct triton_input){.name = "NUMKEYS", .type = TRITON_INT32};
    size_t n_keys = parse_shape(keys_shape, &inputs[0]);
    size_t n_counts = parse_shape(counts_shape, &inputs[1]);
    int64_t *keys = hps_calloc(n_keys + 1, sizeof(*keys));
    int32_t *counts = hps_calloc(n_counts + 1, sizeof(*counts));
    for (size_t i = 0; i < n_keys; i++) {
        keys[i] = (int64_t)i;
    }
    size_t sum = 0;
    for (size_t i = 0; i < n_counts; i++) {
        char *word = strsep(&counts_text, " \n");
        count = word == NULL || *word == '\0' ? count : (int32_t)strtol(word, NULL, 10);
        counts[i] = count;
        sum += (size_t)count; /* too large if a count is negative */
    }
    cut(&inputs[0], keys, n_keys * sizeof(*keys), 1);
    cut(&inputs[1], counts, n_counts * sizeof(*counts), 1);
    request->released = &released;
    uint32_t n_tables = (uint32_t)inputs[1].shape[inputs[1].n_dims - 1];
    uint32_t n_samples = n_tables == 0 ? 0 : (uint32_t)(n_counts / n_tables);
    if (n_tables <= host.n_tables && sum == n_keys && count >= 0) {
        expect_rows(request, keys, counts, n_samples, n_tables);
    }
    execute(0, &request, 1);
    wait_for(&released, 1);
    print_end(request);
    hps_free(keys);
    hps_free(counts);
    request_free(request);
    sem_destroy(&released);
}

static void run_many(unsigned n, uint64_t timeout_us)
{
    struct triton_request **requests = hps_calloc(n, sizeof(*requests));
    unsigned n_right = 0;
    sem_t released;

    sem_init(&released, 0, 0);
    for (unsigned i = 0; i < n; i++) {
        requests[i] = request_new(VALID, 1, host.n_tables, 5, true, 1, &released);
        requests[i]->timeout_us = timeout_us;
    }
    uint64_t begin_us = hps_clock_us();
    execute(0, requests, n);
    wait_for(&released, n);
    uint64_t end_us = hps_clock_us();
    for (unsigned i = 0; i < n; i++) {
        n_right += requests[i]->code == -1;
        request_free(requests[i]);
    }
    printf("%u %" PRIu64 "\n", n_right, end_us - begin_us);
    hps_free(requests);
    sem_destroy(&released);
}

struct job {
    pthread_t thread;
    unsigned number, n_batches;
    bool gpu;
    unsigned n_requests, n_failed;
};

static void check(struct job *job, const struct triton_request *request, enum kind kind,
                  bool cancelled)
{
    bool may_fail = request->faulted || cancelled;

    job->n_requests++;
    job->n_failed += request->code != -1;
    if (kind == VALID) {
        expect(request->code == -1 || may_fail, request->text);
    } else {
        expect(request->code == TRITON_INVALID_ARG || request->faulted, "a malformed request");
    }
}

static void run_batch(struct job *job)
{
    struct triton_request *requests[BATCH_MAX];
    enum kind kinds[BATCH_MAX];
    bool cancelled[BATCH_MAX];
    unsigned n = 1 + (unsigned)random_below(BATCH_MAX);
    sem_t released;

    sem_init(&released, 0, 0);
    for (unsigned i = 0; i < n; i++) {
        uint32_t n_samples = random_below(3) > 0 ? 1 : 1 + (uint32_t)random_below(5);
        uint32_t n_tables = 1 + (uint32_t)random_below(host.n_tables);
        kinds[i] = random_below(4) > 0 ? VALID : (enum kind)random_below(KINDS);
        requests[i] = request_new(kinds[i], n_samples, n_tables, (uint32_t)random_below(60), false,
                                  1 + (unsigned)random_below(PIECES_MAX), &released);
        cancelled[i] = random_below(8) == 0;
        if (job->gpu) {
            requests[i]->inputs[random_below(2)].memory = TRITON_GPU;
            requests[i]->output_memory = random_below(2) == 0 ? TRITON_GPU : TRITON_CPU;
        }
    }
    execute((unsigned)random_below(host.n_instances), requests, n);
    for (unsigned i = 0; i < n; i++) {
        if (cancelled[i]) {
            atomic_store(&requests[i]->cancelled, true);
        }
    }
    wait_for(&released, n);
    for (unsigned i = 0; i < n; i++) {
        check(job, requests[i], kinds[i], cancelled[i]);
        request_free(requests[i]);
    }
    sem_destroy(&released);
}

static void *run_job(void *arg)
{
    struct job *job = arg;

    random_state = job->number * UINT64_C(1000003);
    for (unsigned i = 0; i < job->n_batches; i++) {
        run_batch(job);
    }
    return NULL;
}

static void run_random(unsigned n_batches, unsigned n_threads, unsigned permille, bool gpu)
{
    struct job *jobs = hps_calloc(n_threads, sizeof(*jobs));
    unsigned n_requests = 0;
    unsigned n_failed = 0;

    atomic_store(&host.permille, permille);
    for (unsigned i = 0; i < n_threads; i++) {
        jobs[i] = (struct job){.number = i + 1, .n_batches = n_batches, .gpu = gpu};
        expect(hps_thread_start(0, run_job, &jobs[i], &jobs[i].thread) == HPS_OK, "a thread");
    }
    for (unsigned i = 0; i < n_threads; i++) {
        pthread_join(jobs[i].thread, NULL);
        n_requests += jobs[i].n_requests;
        n_failed += jobs[i].n_failed;
    }
    atomic_store(&host.permille, 0);
    hps_free(jobs);
    printf("%u requests, %u failed\n", n_requests, n_failed);
}

/* ---- the cost -------------------------------------------------------------------------------- */

struct direct {
    struct hpsd_lookup lookup;
    struct hpsd_query queries[TABLES_MAX];
    struct hpsd_result results[TABLES_MAX];
    sem_t *released;
};

static void direct_done(void *ctx, const struct hpsd_reply *reply, const struct hpsd_error *error)
{
    struct direct *direct = ctx;

    expect(reply != NULL, error->text);
    sem_post(direct->released);
}

/* Makes n requests of the same keys; the time in microseconds. `client` NULL: by the backend. */
static uint64_t measure(struct hpsd_client *client, uint32_t n_tables, uint32_t n_keys,
                        unsigned in_flight, unsigned n)
{
    struct triton_request **requests = hps_calloc(in_flight, sizeof(*requests));
    struct direct *directs = hps_calloc(in_flight, sizeof(*directs));
    sem_t released;

    sem_init(&released, 0, 0);
    for (unsigned i = 0; i < in_flight; i++) {
        requests[i] = request_new(VALID, 1, n_tables, n_keys, true, 1, &released);
        directs[i].released = &released;
        for (uint32_t t = 0; t < n_tables; t++) {
            directs[i].queries[t].keys =
                requests[i]->inputs[0].pieces[0].data + (size_t)t * n_keys * sizeof(int64_t);
            directs[i].queries[t].n_keys = n_keys;
        }
        directs[i].lookup =
            (struct hpsd_lookup){.model = host.model.name,
                                 .queries = directs[i].queries,
                                 .n_queries = n_tables,
                                 .results = directs[i].results,
                                 .rows_size = requests[i]->n_expected * sizeof(float)};
        directs[i].lookup.rows = hps_alloc(directs[i].lookup.rows_size);
    }
    uint64_t begin_us = hps_clock_us();
    for (unsigned sent = 0, ended = 0; ended < n;) {
        for (; sent < n && sent - ended < in_flight; sent++) {
            unsigned i = sent % in_flight;
            requests[i]->answered = requests[i]->reported = false;
            if (client == NULL) {
                execute(0, &requests[i], 1);
            } else {
                expect(hpsd_lookup_start(client, &directs[i].lookup, direct_done, &directs[i], NULL,
                                         NULL) == HPSD_OK,
                       "hpsd_lookup_start");
            }
        }
        wait_for(&released, sent - ended); /* replies may come in any order */
        ended = sent;
    }
    uint64_t took_us = hps_clock_us() - begin_us;
    for (unsigned i = 0; i < in_flight; i++) {
        hps_free(directs[i].lookup.rows);
        request_free(requests[i]);
    }
    hps_free(directs);
    hps_free(requests);
    sem_destroy(&released);
    return took_us;
}

static void run_measure(const char *address, uint32_t n_tables, uint32_t n_keys, unsigned in_flight,
                        unsigned n)
{
    const struct hpsd_options options = {.addresses = address};
    struct hpsd_client *client;
    uint64_t best[2] = {UINT64_MAX, UINT64_MAX};

    expect(hpsd_open(&options, &client, NULL) == HPSD_OK, "hpsd_open");
    for (int round = 0; round < 7; round++) { /* in turn; the first ones open buffers */
        for (int way = 0; way < 2; way++) {
            uint64_t us = measure(way == 0 ? NULL : client, n_tables, n_keys, in_flight, n);
            best[way] = us < best[way] ? us : best[way];
        }
    }
    hpsd_close(client);
    printf("%" PRIu64 " %" PRIu64 "\n", best[0], best[1]);
}

static void set_dims(char *dims)
{
    host.n_tables = 0;
    for (char *dim = strsep(&dims, ","); dim != NULL; dim = strsep(&dims, ",")) {
        expect(host.n_tables < TABLES_MAX, "too many tables");
        host.dims[host.n_tables++] = (uint32_t)strtoul(dim, NULL, 10);
    }
}

static void obey(char *line)
{
    unsigned n[4] = {0};
    uint64_t us = 0;
    char address[256];
    char shape[32];
    int at = 0;

    if (sscanf(line, "load %u", &n[0]) == 1) {
        answer(load(n[0]));
    } else if (strncmp(line, "unload", 6) == 0) {
        unload();
        answer(NULL);
    } else if (strncmp(line, "unchecked", 9) == 0) {
        host.unchecked = true;
        answer(NULL);
    } else if (sscanf(line, "dims %255s", address) == 1) {
        set_dims(address);
        answer(NULL);
    } else if (sscanf(line, "ask %" SCNu64, &us) == 1) {
        run_ask(us, false, TRITON_CPU);
    } else if (strncmp(line, "cancel", 6) == 0) {
        run_ask(0, true, TRITON_CPU);
    } else if (strncmp(line, "gpu", 3) == 0) {
        run_ask(0, false, TRITON_GPU);
    } else if (sscanf(line, "raw %255s %31s %n", address, shape, &at) == 2) {
        run_raw(address, shape, line + at);
    } else if (sscanf(line, "many %u %" SCNu64, &n[0], &us) == 2) {
        run_many(n[0], us);
    } else if (sscanf(line, "random %u %u %u %u", &n[0], &n[1], &n[2], &n[3]) == 4) {
        run_random(n[0], n[1], n[2], n[3] != 0);
    } else if (sscanf(line, "measure %255s %u %u %u %u", address, &n[0], &n[1], &n[2], &n[3]) ==
               5) {
        run_measure(address, n[0], n[1], n[2], n[3]);
    } else {
        fail(line);
    }
    fflush(stdout);
}

static void set_up(char **words)
{
    char *config = host.backend.config.text;
    size_t size = sizeof(host.backend.config.text);

    host.library = dlopen(words[0], RTLD_NOW | RTLD_LOCAL);
    if (host.library == NULL) {
        fail(dlerror());
    }
    host.model = (struct triton_model){.backend = &host.backend, .name = words[1]};
    host.n_rows = strtoull(words[2], NULL, 10);
    set_dims(words[3]);
    size_t at = (size_t)snprintf(config, size, "{\"cmdline\":{\"backend-directory\":\"x\"");
    for (char **word = words + 4; *word != NULL; word++) {
        char *equals = strchr(*word, '=');
        expect(equals != NULL, "expected NAME=VALUE");
        at += (size_t)snprintf(config + at, size - at, ",\"%.*s\":\"%s\"", (int)(equals - *word),
                               *word, equals + 1);
    }
    snprintf(config + at, size - at, "}}");
}

int main(int argc, char **argv)
{
    char line[512];

    if (argc < 5) {
        return 2;
    }
    set_up(argv + 1);
    struct triton_error *error = call("TRITONBACKEND_Initialize", &host.backend);
    bool up = error == NULL;
    answer(error);
    fflush(stdout);
    while (up && fgets(line, sizeof(line), stdin) != NULL) {
        obey(line);
    }
    if (host.model.state != NULL) {
        unload();
    }
    if (up) {
        expect(call("TRITONBACKEND_Finalize", &host.backend) == NULL, "Finalize");
    }
    dlclose(host.library);
    expect(atomic_load(&host.errors) == 0, "an error was not deleted");
    expect(atomic_load(&host.messages) == 0, "a message was not deleted");
    expect(atomic_load(&host.responses) == 0, "a response was not sent");
    puts("ok");
    return 0;
}

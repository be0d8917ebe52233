/* SPDX-License-Identifier: Apache-2.0
 *
 * The size of an output must be known before its rows arrive. So a lookup is started in one of two
 * ways. If the widths of its tables are known, from an earlier reply, its rows are received into
 * the output. Otherwise, and again if a new version of the model has other widths, the client
 * library allocates the memory, and the rows are copied to the output.
 */
#include "clients/triton/backend.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/heap.h"

struct call {
    struct hps_triton_watched watched;
    struct hps_triton_instance *instance;
    struct triton_request *request;
    struct triton_response *response; /* with the output below; NULL: none yet */
    void *output;
    size_t output_size;
    int output_memory; /* enum triton_memory */
    int64_t version;   /* the output has its widths */
    bool pinned;       /* the lookup is repeated in this version */
    bool direct;       /* rows are received into the output */
    struct hps_triton_keys keys;
    struct hpsd_query *queries;  /* [keys.n_tables] */
    struct hpsd_result *results; /* [keys.n_tables] */
    uint64_t exec_ns, start_ns;  /* of now_ns */
    uint64_t deadline_us;
    atomic_uint refs; /* the lookup; the thread that starts it */
};

static void call_unref(struct call *call)
{
    if (atomic_fetch_sub_explicit(&call->refs, 1, memory_order_acq_rel) == 1) {
        hps_triton_keys_free(&call->keys);
        hps_free(call->queries);
        hps_free(call->results);
        hps_free(call);
    }
}

/* Triton subtracts its own times, in nanoseconds, so these must not be rounded down. */
static uint64_t now_ns(void)
{
    struct timespec now;

    int failed = clock_gettime(CLOCK_MONOTONIC, &now);
    HPS_ASSERT(failed == 0);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* ---- the answer ------------------------------------------------------------------------------ */

static void log_failed(const struct call *call, const char *what, struct triton_error *error)
{
    struct hps_error err;

    if (hps_triton_taken(error, &err) != HPS_OK) {
        hps_triton_log(TRITON_ERROR, "model '%s': %s failed: %s", call->instance->model->name, what,
                       err.text);
    }
}

static hps_status set_parameters(const struct call *call, struct hps_error *err)
{
    uint32_t n_tables = call->keys.n_tables;
    int64_t n_samples = n_tables == 0 ? 0 : (int64_t)(call->keys.n_keys / n_tables);
    hps_status status = hps_triton_taken(
        TRITONBACKEND_ResponseSetIntParameter(call->response, "NumSample", n_samples), err);

    return status != HPS_OK
               ? status
               : hps_triton_taken(
                     TRITONBACKEND_ResponseSetIntParameter(call->response, "DeviceID", 0), err);
}

static void send(struct call *call, hps_status status, const char *text)
{
    struct triton_error *error = hps_triton_error(status, text);

    if (call->response == NULL) {
        log_failed(call, "ResponseNew", TRITONBACKEND_ResponseNew(&call->response, call->request));
    }
    if (call->response != NULL) {
        log_failed(call, "ResponseSend",
                   TRITONBACKEND_ResponseSend(call->response, TRITON_RESPONSE_FINAL, error));
        call->response = NULL;
    }
    if (error != NULL) {
        TRITONSERVER_ErrorDelete(error);
    }
}

/* Answers the request and gives it back. The call must not be used any more, without a reference.
 */
static void finish(struct call *call, hps_status status, const char *text)
{
    struct triton_instance *instance = call->instance->triton;
    uint64_t exec_ns = call->exec_ns;
    uint64_t start_ns = call->start_ns;
    uint64_t end_ns = now_ns();
    uint32_t n_samples = call->keys.n_samples > 0 ? call->keys.n_samples : 1;
    struct hps_error err;

    hps_triton_watch_end(&call->instance->model->backend->watch, &call->watched);
    if (status == HPS_OK && set_parameters(call, &err) != HPS_OK) {
        status = err.status;
        text = err.text;
    }
    send(call, status, text);
    uint64_t sent_ns = now_ns();
    log_failed(call, "ReportStatistics",
               TRITONBACKEND_ModelInstanceReportStatistics(
                   instance, call->request, status == HPS_OK, exec_ns, start_ns, end_ns, sent_ns));
    if (status == HPS_OK) {
        log_failed(call, "ReportBatchStatistics",
                   TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, n_samples, exec_ns,
                                                                    start_ns, end_ns, sent_ns));
    }
    log_failed(call, "RequestRelease",
               TRITONBACKEND_RequestRelease(call->request, TRITON_RELEASE_ALL));
    call_unref(call);
}

/* ---- widths ---------------------------------------------------------------------------------- */

/* Computes the size of the rows, if the widths of all tables of the call are known. */
static bool expected_size(const struct call *call, uint64_t *out_size, int64_t *out_version)
{
    struct hps_triton_model *model = call->instance->model;
    uint64_t n_values = 0;

    hps_lock_acquire(&model->lock);
    bool known = model->n_dims >= call->keys.n_tables;
    for (uint32_t i = 0; known && i < call->keys.n_tables; i++) {
        n_values += (uint64_t)call->queries[i].n_keys * model->dims[i];
    }
    *out_version = model->version;
    hps_lock_release(&model->lock);
    *out_size = n_values * sizeof(float);
    return known;
}

static void learn_dims(const struct call *call, int64_t version)
{
    struct hps_triton_model *model = call->instance->model;
    uint32_t n = call->keys.n_tables;

    hps_lock_acquire(&model->lock);
    if (model->version != version) {
        model->n_dims = 0;
        model->version = version;
    }
    if (n > model->n_dims) {
        uint32_t *dims = hps_realloc(model->dims, n * sizeof(*dims));
        for (uint32_t i = 0; dims != NULL && i < n; i++) {
            dims[i] = call->results[i].dim;
        }
        model->dims = dims != NULL ? dims : model->dims;
        model->n_dims = dims != NULL ? n : model->n_dims;
    }
    hps_lock_release(&model->lock);
}

static void forget_dims(struct hps_triton_model *model)
{
    hps_lock_acquire(&model->lock);
    model->n_dims = 0;
    hps_lock_release(&model->lock);
}

static uint64_t reply_size(const struct call *call)
{
    uint64_t n_values = 0;

    for (uint32_t i = 0; i < call->keys.n_tables; i++) {
        n_values += (uint64_t)call->results[i].n_rows * call->results[i].dim;
    }
    return n_values * sizeof(float);
}

/* ---- the output ------------------------------------------------------------------------------ */

static hps_status new_output(struct call *call, uint64_t size, struct hps_error *err)
{
    const int64_t shape[] = {(int64_t)(size / sizeof(float))};
    struct triton_output *output;
    const char *name;
    int64_t device = 0;
    hps_status status =
        hps_triton_taken(TRITONBACKEND_RequestOutputName(call->request, 0, &name), err);

    if (status == HPS_OK) {
        status = hps_triton_taken(TRITONBACKEND_ResponseNew(&call->response, call->request), err);
    }
    if (status == HPS_OK) {
        status = hps_triton_taken(
            TRITONBACKEND_ResponseOutput(call->response, &output, name, TRITON_FP32, shape, 1),
            err);
    }
    if (status == HPS_OK) {
        call->output_size = size;
        call->output_memory = TRITON_CPU;
        status = hps_triton_taken(
            TRITONBACKEND_OutputBuffer(output, &call->output, size, &call->output_memory, &device),
            err);
    }
    return status;
}

/* Makes the output before the lookup, if its size is known. */
static hps_status prepare_output(struct call *call, struct hps_error *err)
{
    uint64_t size;

    if (call->keys.n_samples > 1 || !expected_size(call, &size, &call->version)) {
        return HPS_OK;
    }
    hps_status status = new_output(call, size, err);
    call->direct = status == HPS_OK && size > 0 && call->output_memory != TRITON_GPU;
    return status;
}

static hps_status copy(uint8_t **to, const void *from, size_t size, int memory,
                       struct hps_error *err)
{
    hps_status status = HPS_OK;

    if (size > 0 && memory == TRITON_GPU) {
        status = hps_triton_gpu_copy(*to, from, size, err);
    } else if (size > 0) {
        memcpy(*to, from, size);
    }
    *to += size;
    return status == HPS_OK ? HPS_OK : hps_error_prefix(err, status, "the output");
}

/* Copies the rows of the client library to the output, one sample after the other. */
static hps_status copy_output(struct call *call, struct hps_error *err)
{
    const struct hps_triton_keys *keys = &call->keys;
    uint32_t *next = hps_calloc(keys->n_tables, sizeof(*next)); /* rows copied of each table */
    hps_status status = next == NULL ? hps_error_set(err, HPS_NO_MEMORY, "no memory") : HPS_OK;
    uint8_t *to = call->output;

    for (uint32_t sample = 0; status == HPS_OK && sample < keys->n_samples; sample++) {
        for (uint32_t i = 0; status == HPS_OK && i < keys->n_tables; i++) {
            const struct hpsd_result *result = &call->results[i];
            size_t n = hps_triton_keys_count(keys, sample, i);
            if (n > 0 && result->dim > 0) {
                const uint8_t *from = (const uint8_t *)result->rows + next[i] * result->stride;
                status = copy(&to, from, n * result->dim * sizeof(float), call->output_memory, err);
            }
            next[i] += (uint32_t)n;
        }
    }
    hps_free(next);
    return status;
}

/* ---- the lookup ------------------------------------------------------------------------------ */

static hps_status begin(struct call *call, struct hps_error *err);

static hps_status other_widths(const struct call *call, struct hps_error *err)
{
    return hps_error_set(err, HPS_UNAVAILABLE,
                         "the tables of model \"%s\" have other widths in its new version; send "
                         "the request again",
                         call->instance->model->name);
}

/* Takes the rows of a reply. AGAIN: they do not have the size of the output. */
static hps_status take_rows(struct call *call, int64_t version, struct hps_error *err)
{
    hps_status status = HPS_OK;
    bool fits = call->response == NULL || reply_size(call) == call->output_size;

    if (!fits) {
        forget_dims(call->instance->model);
    }
    if (!call->pinned) {
        learn_dims(call, version);
    }
    if (!fits) {
        return HPS_AGAIN;
    }
    if (call->response == NULL) {
        status = new_output(call, reply_size(call), err);
    }
    return status != HPS_OK || call->direct ? status : copy_output(call, err);
}

static void done(void *ctx, const struct hpsd_reply *reply, const struct hpsd_error *error)
{
    struct call *call = ctx;
    struct hps_error err;
    hps_status status = hps_error_set(&err, hps_triton_status(error), "%s", error->text);

    if (reply != NULL) {
        status = take_rows(call, reply->version, &err);
        hpsd_free(reply->memory);
    } else if (status == HPS_RANGE && call->direct) {
        forget_dims(call->instance->model);
        status = HPS_AGAIN;
    }
    if (status == HPS_AGAIN && !call->pinned) {
        call->pinned = true;
        status = begin(call, &err);
        if (status == HPS_OK) {
            return;
        }
    } else if (status == HPS_AGAIN || (status == HPS_NOT_FOUND && call->pinned)) {
        status = other_widths(call, &err);
    }
    finish(call, status, err.text);
}

/* Starts the lookup, which may have ended when this returns. After an error it has not started. */
static hps_status begin(struct call *call, struct hps_error *err)
{
    struct hps_triton_watch *watch = &call->instance->model->backend->watch;
    uint64_t now_us = hps_clock_us();
    struct hpsd_lookup lookup = {
        .model = call->instance->model->name,
        .version = call->pinned ? call->version : 0,
        .queries = call->queries,
        .n_queries = call->keys.n_tables,
        .rows = call->direct ? call->output : NULL,
        .rows_size = call->direct ? call->output_size : 0,
        .timeout_us = now_us < call->deadline_us ? call->deadline_us - now_us : 1,
        .results = call->results,
    };
    struct hpsd_error error;
    uint64_t id;

    atomic_fetch_add_explicit(&call->refs, 1, memory_order_relaxed);
    if (hpsd_lookup_start(call->instance->client, &lookup, done, call, &id, &error) != HPSD_OK) {
        atomic_fetch_sub_explicit(&call->refs, 1, memory_order_relaxed);
        return hps_error_set(err, hps_triton_status(&error), "%s", error.text);
    }
    hps_triton_watch_add(watch, &call->watched, id);
    call_unref(call);
    return HPS_OK;
}

static hps_status make_queries(struct call *call, struct hps_error *err)
{
    struct hps_triton_keys *keys = &call->keys;
    const uint8_t *at = keys->keys;

    call->queries = hps_calloc(keys->n_tables, sizeof(*call->queries));
    call->results = hps_calloc(keys->n_tables, sizeof(*call->results));
    if (call->queries == NULL || call->results == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory");
    }
    for (uint32_t i = 0; i < keys->n_tables; i++) {
        size_t n = hps_triton_keys_of_table(keys, i);
        call->queries[i] = (struct hpsd_query){.keys = at, .n_keys = n};
        at += n * sizeof(int64_t);
    }
    return HPS_OK;
}

static uint64_t deadline_of(const struct hps_triton_instance *instance,
                            struct triton_request *request)
{
    uint64_t now_us = hps_clock_us();
    uint64_t timeout_us = 0;

    if (TRITONBACKEND_InferenceRequestTimeoutMicroseconds != NULL) {
        /* Without a timeout that can be read, the default applies. */
        hps_ignore(hps_triton_taken(
            TRITONBACKEND_InferenceRequestTimeoutMicroseconds(request, &timeout_us), NULL));
    }
    timeout_us = timeout_us > 0 ? timeout_us : instance->model->backend->config.timeout_us;
    return timeout_us < UINT64_MAX - now_us ? now_us + timeout_us : UINT64_MAX;
}

void hps_triton_call_start(struct hps_triton_instance *instance, struct triton_request *request)
{
    struct call *call = hps_alloc(sizeof(*call));
    struct hps_error err = {0};
    struct call first = {
        .watched = {.request = request, .client = instance->client},
        .instance = instance,
        .request = request,
        .exec_ns = now_ns(),
        .deadline_us = deadline_of(instance, request),
        .refs = 1,
    };

    if (call == NULL) {
        first.refs = 2; /* it is not freed */
        finish(&first, HPS_NO_MEMORY, "no memory");
        return;
    }
    *call = first;
    hps_status status = hps_triton_keys_read(request, &call->keys, &err);
    if (status == HPS_OK) {
        status = make_queries(call, &err);
    }
    if (status == HPS_OK) {
        status = prepare_output(call, &err);
    }
    call->start_ns = now_ns();
    if (status == HPS_OK) {
        status = begin(call, &err);
    }
    if (status != HPS_OK) {
        finish(call, status, err.text);
    }
}

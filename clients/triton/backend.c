/* SPDX-License-Identifier: Apache-2.0 */
#include "clients/triton/backend.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/heap.h"

/* A model that is loaded while hpsd is away does not wait longer for it. */
enum { PROBE_US = 500000 };

/* ---- errors, log ----------------------------------------------------------------------------- */

static int code_of(hps_status status)
{
    switch (status) {
    case HPS_INVALID:
    case HPS_RANGE:
        return TRITON_INVALID_ARG;
    case HPS_NOT_FOUND:
        return TRITON_NOT_FOUND;
    case HPS_EXISTS:
        return TRITON_ALREADY_EXISTS;
    case HPS_UNIMPLEMENTED:
        return TRITON_UNSUPPORTED;
    case HPS_CANCELLED:
        return TRITONBACKEND_RequestIsCancelled == NULL ? TRITON_UNAVAILABLE : TRITON_CANCELLED;
    case HPS_UNAVAILABLE:
    case HPS_DEADLINE:
    case HPS_EXHAUSTED:
    case HPS_ABORTED:
    case HPS_NO_MEMORY:
        return TRITON_UNAVAILABLE;
    case HPS_UNKNOWN:
        return TRITON_UNKNOWN;
    default:
        return TRITON_INTERNAL;
    }
}

static hps_status status_of(int code)
{
    static const hps_status statuses[] = {
        [TRITON_UNKNOWN] = HPS_UNKNOWN,         [TRITON_INTERNAL] = HPS_INTERNAL,
        [TRITON_NOT_FOUND] = HPS_NOT_FOUND,     [TRITON_INVALID_ARG] = HPS_INVALID,
        [TRITON_UNAVAILABLE] = HPS_UNAVAILABLE, [TRITON_UNSUPPORTED] = HPS_UNIMPLEMENTED,
        [TRITON_ALREADY_EXISTS] = HPS_EXISTS,   [TRITON_CANCELLED] = HPS_CANCELLED,
    };

    return code >= 0 && code < (int)(sizeof(statuses) / sizeof(*statuses)) ? statuses[code]
                                                                           : HPS_UNKNOWN;
}

struct triton_error *hps_triton_error(hps_status status, const char *text)
{
    return status == HPS_OK ? NULL : TRITONSERVER_ErrorNew(code_of(status), text);
}

hps_status hps_triton_taken(struct triton_error *error, struct hps_error *err)
{
    if (error == NULL) {
        return HPS_OK;
    }
    hps_status status = hps_error_set(err, status_of(TRITONSERVER_ErrorCode(error)), "%s",
                                      TRITONSERVER_ErrorMessage(error));
    TRITONSERVER_ErrorDelete(error);
    return status;
}

hps_status hps_triton_status(const struct hpsd_error *error)
{
    return (hps_status)(-(int)error->status); /* the codes of gRPC; hps_status has them negative */
}

void hps_triton_log(enum triton_level level, const char *fmt, ...)
{
    char text[640];
    va_list args;

    va_start(args, fmt);
    int length = vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    /* A message that cannot be logged is lost. */
    hps_ignore(length < 0
                   ? HPS_UNKNOWN
                   : hps_triton_taken(TRITONSERVER_LogMessage((int)level, "hps", 0, text), NULL));
}

/* ---- backend --------------------------------------------------------------------------------- */

static hps_status check_version(struct hps_error *err)
{
    uint32_t major = 0;
    uint32_t minor = 0;
    hps_status status = hps_triton_taken(TRITONBACKEND_ApiVersion(&major, &minor), err);

    if (status == HPS_OK && (major != TRITON_API_MAJOR || minor < TRITON_API_MINOR)) {
        return hps_error_set(err, HPS_UNIMPLEMENTED,
                             "backend 'hps' needs version %d.%d of Triton's backend interface, or "
                             "a later one of %d; this server has %u.%u",
                             TRITON_API_MAJOR, TRITON_API_MINOR, TRITON_API_MAJOR, major, minor);
    }
    return status;
}

static hps_status read_config(struct triton_backend *triton, struct hps_triton_config *out,
                              struct hps_error *err)
{
    struct triton_message *message; /* the server's */
    const char *json;
    size_t size;
    hps_status status = hps_triton_taken(TRITONBACKEND_BackendConfig(triton, &message), err);

    if (status == HPS_OK) {
        status = hps_triton_taken(TRITONSERVER_MessageSerializeToJson(message, &json, &size), err);
    }
    return status == HPS_OK ? hps_triton_config_read(json, size, out, err) : status;
}

static hps_status backend_open(struct triton_backend *triton, struct hps_error *err)
{
    struct hps_triton_backend *backend;
    hps_status status = check_version(err);

    if (status != HPS_OK) {
        return status;
    }
    backend = hps_calloc(1, sizeof(*backend));
    if (backend == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory");
    }
    status = read_config(triton, &backend->config, err);
    if (status != HPS_OK) {
        hps_free(backend);
        return status;
    }
    status = hps_triton_watch_start(&backend->watch);
    if (status != HPS_OK) {
        hps_error_set(err, status, "backend 'hps': no thread could be started");
    } else {
        status = hps_triton_taken(TRITONBACKEND_BackendSetState(triton, backend), err);
    }
    if (status != HPS_OK) {
        hps_triton_watch_stop(&backend->watch);
        hps_triton_config_free(&backend->config);
        hps_free(backend);
        return status;
    }
    hps_triton_log(TRITON_INFO, "backend 'hps' looks up rows in hpsd at %s",
                   backend->config.addresses);
    if (backend->config.ignored != NULL) {
        hps_triton_log(TRITON_INFO,
                       "--backend-config=hps,ps=%s ignored: hpsd reads this file (hpsd --config)",
                       backend->config.ignored);
    }
    return HPS_OK;
}

struct triton_error *TRITONBACKEND_Initialize(struct triton_backend *triton)
{
    struct hps_error err = {0};

    return hps_triton_error(backend_open(triton, &err), err.text);
}

struct triton_error *TRITONBACKEND_Finalize(struct triton_backend *triton)
{
    void *state = NULL;
    struct triton_error *error = TRITONBACKEND_BackendState(triton, &state);
    struct hps_triton_backend *backend = state;

    if (error == NULL && backend != NULL) {
        hps_triton_watch_stop(&backend->watch);
        hps_triton_config_free(&backend->config);
        hps_free(backend);
    }
    return error;
}

/* ---- models ---------------------------------------------------------------------------------- */

static hps_status check_model(struct triton_model *triton, struct hps_error *err)
{
    struct triton_message *message;
    const char *json;
    size_t size;
    hps_status status = hps_triton_taken(TRITONBACKEND_ModelConfig(triton, 1, &message), err);

    if (status != HPS_OK) {
        return status;
    }
    status = hps_triton_taken(TRITONSERVER_MessageSerializeToJson(message, &json, &size), err);
    if (status == HPS_OK) {
        status = hps_triton_config_check_model(json, size, err);
    }
    hps_ignore(hps_triton_taken(TRITONSERVER_MessageDelete(message), NULL)); /* nothing to do */
    return status;
}

static hps_status model_open(struct triton_model *triton, struct hps_error *err)
{
    struct triton_backend *parent;
    void *backend = NULL;
    const char *name;
    hps_status status = hps_triton_taken(TRITONBACKEND_ModelName(triton, &name), err);

    if (status == HPS_OK) {
        status = hps_triton_taken(TRITONBACKEND_ModelBackend(triton, &parent), err);
    }
    if (status == HPS_OK) {
        status = hps_triton_taken(TRITONBACKEND_BackendState(parent, &backend), err);
    }
    if (status == HPS_OK) {
        status = check_model(triton, err);
    }
    if (status != HPS_OK) {
        return status;
    }
    struct hps_triton_model *model = hps_calloc(1, sizeof(*model));
    char *copy = hps_strdup(name);
    if (model == NULL || copy == NULL) {
        hps_free(model);
        hps_free(copy);
        return hps_error_set(err, HPS_NO_MEMORY, "no memory");
    }
    model->backend = backend;
    model->name = copy;
    hps_lock_init(&model->lock, HPS_LOCK_TRITON_DIMS);
    status = hps_triton_taken(TRITONBACKEND_ModelSetState(triton, model), err);
    if (status != HPS_OK) {
        hps_lock_fini(&model->lock);
        hps_free(model->name);
        hps_free(model);
    }
    return status;
}

struct triton_error *TRITONBACKEND_ModelInitialize(struct triton_model *triton)
{
    struct hps_error err = {0};

    return hps_triton_error(model_open(triton, &err), err.text);
}

struct triton_error *TRITONBACKEND_ModelFinalize(struct triton_model *triton)
{
    void *state = NULL;
    struct triton_error *error = TRITONBACKEND_ModelState(triton, &state);
    struct hps_triton_model *model = state;

    if (error == NULL && model != NULL) {
        hps_lock_fini(&model->lock);
        hps_free(model->dims);
        hps_free(model->name);
        hps_free(model);
    }
    return error;
}

/* ---- instances ------------------------------------------------------------------------------- */

static hps_status client_open(const struct hps_triton_config *config,
                              struct hpsd_client **out_client, struct hps_error *err)
{
    const struct hpsd_options options = {
        .addresses = config->addresses,
        .token_file = config->token_file,
        .token_in_clear = config->token_in_clear,
        .tls_ca = config->tls_ca,
        .tls_cert = config->tls_cert,
        .tls_key = config->tls_key,
        .timeout_us = config->timeout_us,
        .connections = config->connections,
    };
    struct hpsd_error error;

    if (hpsd_open(&options, out_client, &error) != HPSD_OK) {
        return hps_error_set(err, hps_triton_status(&error), "%s", error.text);
    }
    return HPS_OK;
}

/* Connects, and reports early what lookups would meet. It is no error: hpsd may start later. */
static void probe(const struct hps_triton_instance *instance)
{
    const struct hpsd_query query = {.keys = ""};
    const struct hpsd_lookup lookup = {
        .model = instance->model->name, .queries = &query, .n_queries = 1, .timeout_us = PROBE_US};
    struct hpsd_reply reply = {0};
    struct hpsd_error error;

    if (hpsd_lookup(instance->client, &lookup, &reply, &error) != HPSD_OK) {
        hps_triton_log(TRITON_WARN, "model '%s': requests fail for now: %s", instance->model->name,
                       error.text);
    } else {
        hpsd_free(reply.memory);
    }
}

static hps_status instance_open(struct triton_instance *triton, struct hps_error *err)
{
    struct triton_model *parent;
    void *state = NULL;
    hps_status status = hps_triton_taken(TRITONBACKEND_ModelInstanceModel(triton, &parent), err);

    if (status == HPS_OK) {
        status = hps_triton_taken(TRITONBACKEND_ModelState(parent, &state), err);
    }
    if (status != HPS_OK) {
        return status;
    }
    struct hps_triton_instance *instance = hps_calloc(1, sizeof(*instance));
    if (instance == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory");
    }
    instance->triton = triton;
    instance->model = state;
    status = client_open(&instance->model->backend->config, &instance->client, err);
    if (status == HPS_OK) {
        status = hps_triton_taken(TRITONBACKEND_ModelInstanceSetState(triton, instance), err);
    }
    if (status != HPS_OK) {
        hpsd_close(instance->client);
        hps_free(instance);
        return status;
    }
    probe(instance);
    return HPS_OK;
}

struct triton_error *TRITONBACKEND_ModelInstanceInitialize(struct triton_instance *triton)
{
    struct hps_error err = {0};

    return hps_triton_error(instance_open(triton, &err), err.text);
}

struct triton_error *TRITONBACKEND_ModelInstanceFinalize(struct triton_instance *triton)
{
    void *state = NULL;
    struct triton_error *error = TRITONBACKEND_ModelInstanceState(triton, &state);
    struct hps_triton_instance *instance = state;

    if (error == NULL && instance != NULL) {
        hpsd_close(instance->client);
        hps_free(instance);
    }
    return error;
}

struct triton_error *TRITONBACKEND_ModelInstanceExecute(struct triton_instance *triton,
                                                        struct triton_request **requests,
                                                        uint32_t n_requests)
{
    void *state = NULL;
    struct triton_error *error = TRITONBACKEND_ModelInstanceState(triton, &state);

    for (uint32_t i = 0; error == NULL && i < n_requests; i++) {
        hps_triton_call_start(state, requests[i]);
    }
    return error;
}

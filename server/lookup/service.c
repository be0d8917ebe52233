/* SPDX-License-Identifier: Apache-2.0
 *
 * The two look-up methods: callbacks of the call, and the wait for room. A request belongs to the
 * loop thread of its connection but while a worker runs it; it lives as long as somebody holds it:
 * the call until it closes, the admission queue, the worker, the gpu, and each callback that is
 * running.
 *
 *     on_message ─▶ decode, pin, plan ─▶ admission ─┬─▶ memory tiers, here ─┬───────────▶ reply
 *                   (prepare.c)          │ (waits)  └─▶ worker ─────────────┤ (rest)      ▲
 *                                        └─ on_granted: posted to the loop  └─▶ I/O thread ┘
 *                                                      (dispatch.c, unit.c)          (reply.c)
 */
#include "server/lookup/service.h"

#include <inttypes.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "server/lookup/encode.h"
#include "server/lookup/internal.h"

enum {
    /* Of a look-up's arena: keys twice, slots, set, duplicates, status, marks of the stream. Beside
     * narrow rows this is most of what a look-up holds. */
    WORK_BYTES_PER_KEY = 50
};

/* ---- admission ------------------------------------------------------------------------------- */

/* Loop thread: the wait for room is over. */
static void on_admitted(struct hps_task *task)
{
    struct request *request = CONTAINER_OF(task, struct request, task);

    hps_timer_stop(&request->queue_timer);
    if (!request->closed) {
        request_start(request);
    }
    request_drop(request);
}

/* Any thread. */
static void on_granted(struct hps_admission_ticket *ticket)
{
    struct request *request = CONTAINER_OF(ticket, struct request, ticket);

    hps_stages_enter(&request->stages, HPS_STAGE_LOOP);
    request->task.run = on_admitted;
    hps_loop_post(request->loop, &request->task);
}

static void on_queue_timeout(void *ctx)
{
    struct request *request = ctx;
    struct hps_lookup_service *service = request->service;

    if (!hps_admission_cancel(service->parts.admission, &request->ticket)) {
        return; /* let in meanwhile: on_admitted is on its way */
    }
    struct hps_error err;
    hps_error_set(&err, HPS_EXHAUSTED,
                  "no room for a reply of %" PRIu64 " bytes within %" PRIu64
                  " us; replies in flight have %" PRIu64 " bytes",
                  request->ticket.bytes, request->queue_us_max,
                  hps_admission_bytes(service->parts.admission));
    request_reject(request, HPS_REJECT_QUEUE, &err);
    request_drop(request);
}

static void admit(struct request *request)
{
    struct hps_lookup_service *service = request->service;
    uint64_t bytes = hps_encode_size_max(&request->lookup);
    uint64_t work_bytes =
        request->lookup.n_keys * WORK_BYTES_PER_KEY + hps_lookup_scratch_bytes(&request->lookup);
    uint64_t n_tries = request->lookup.unit ? HPS_LOOKUP_TRIES_MAX : 1;
    struct hps_error err;
    bool held = false;

    if (bytes < request->lookup.rows_bytes) { /* rows that shrink when they change type */
        bytes = request->lookup.rows_bytes;
    }
    hps_stages_enter(&request->stages, HPS_STAGE_ADMISSION);
    request->queue_us_max = atomic_load(&service->queue_us_max);
    request->ticket.on_granted = on_granted;
    request_hold(request); /* by the queue, if it has to wait */
    hps_status status = hps_admission_ask(service->parts.admission, &request->ticket, bytes,
                                          n_tries * work_bytes, &held, &err);
    if (status == HPS_OK && !held) {
        hps_timer_set_after(request->loop, &request->queue_timer, request->queue_us_max);
        return;
    }
    if (status == HPS_OK) {
        request_start(request);
    } else if (status == HPS_RANGE) { /* no use in trying again */
        err.status = HPS_EXHAUSTED;
        hps_metric_add(service->parts.metrics->rejected[HPS_REJECT_REPLY_BYTES], 1);
        request_fail(request, HPS_EXHAUSTED, &err);
    } else {
        request_reject(request, HPS_REJECT_QUEUE, &err);
    }
    request_drop(request);
}

/* ---- callbacks of the call ------------------------------------------------------------------- */

static struct request *request_begin(struct hps_lookup_service *service, struct hps_grpc_call *call,
                                     bool streaming)
{
    struct request *request = request_take(service);

    if (request == NULL) {
        return NULL;
    }
    memset(&request->service, 0, sizeof(*request) - offsetof(struct request, service));
    request->service = service;
    request->call = call;
    request->loop = hps_grpc_call_loop(call);
    request->streaming = streaming;
    request->code = -1;
    request->start_us = hps_grpc_call_start_us(call);
    hps_stages_begin(&request->stages, HPS_STAGE_RECEIVE, request->start_us);
    request->n_holders = 1; /* the call */
    hps_timer_init(&request->queue_timer, on_queue_timeout, request);
    hps_timer_init(&request->wait_timer, request_wait_over, request);
    hps_grpc_call_ref(call);
    hps_grpc_call_set_user(call, request);
    hps_metric_gauge_add(service->parts.metrics->requests_in_flight, 1);
    return request;
}

static void on_message(struct hps_grpc_call *call, const uint8_t *data, size_t size, bool streaming)
{
    struct hps_lookup_service *service = hps_grpc_call_ctx(call);
    struct request *request = request_begin(service, call, streaming);
    struct hps_error err;

    if (request == NULL) {
        hps_error_set(&err, HPS_NO_MEMORY, "no memory for a request");
        hps_grpc_call_fail(call, &err);
        return;
    }
    request_hold(request);
    hps_stages_enter(&request->stages, HPS_STAGE_DECODE);
    hps_status status = request_prepare(request, data, size, &err);
    if (status == HPS_OK) {
        admit(request);
    } else {
        request_fail(request, status, &err);
    }
    request_drop(request);
}

static void on_lookup(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    on_message(call, data, size, false);
}

static void on_lookup_stream(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    on_message(call, data, size, true);
}

static void on_drained(struct hps_grpc_call *call)
{
    struct request *request = hps_grpc_call_user(call);

    if (request == NULL || request->stream == NULL) {
        return;
    }
    request_hold(request);
    request_pump(request);
    request_drop(request);
}

static void on_close(struct hps_grpc_call *call)
{
    struct request *request = hps_grpc_call_user(call);

    if (request == NULL) {
        return; /* closed before its message was whole */
    }
    hps_grpc_call_set_user(call, NULL);
    request->closed = true;
    request->closed_us = hps_clock_us();
    hps_timer_stop(&request->queue_timer);
    hps_timer_stop(&request->wait_timer);
    if (request_withdraw(request)) {
        if (!request->rereads) {
            hps_lookup_abandon(&request->lookup);
        }
        request_drop(request);
    }
    if (request->hold_waits && hps_update_hold_cancel(request->lookup.version, &request->hold)) {
        request->hold_waits = false;
        request_drop(request);
    }
    if (hps_admission_cancel(request->service->parts.admission, &request->ticket)) {
        request_drop(request);
    }
    request_drop(request);
}

/* ---- the service ----------------------------------------------------------------------------- */

struct hps_lookup_service *hps_lookup_service_new(const struct hps_lookup_service_parts *parts)
{
    struct hps_lookup_service *service = hps_calloc(1, sizeof(*service));

    if (service == NULL) {
        return NULL;
    }
    service->parts = *parts;
    hps_lookup_service_limits_set(service, &parts->limits);
    service->methods[0] = (struct hps_grpc_method){
        .path = "/hps.v1.ParameterServer/Lookup", .on_message = on_lookup, .on_close = on_close};
    service->methods[1] = (struct hps_grpc_method){.path = "/hps.v1.ParameterServer/LookupStream",
                                                   .on_message = on_lookup_stream,
                                                   .on_close = on_close,
                                                   .on_drained = on_drained};
    service->grpc = (struct hps_grpc_service){.name = "hps.v1.ParameterServer",
                                              .methods = service->methods,
                                              .n_methods = 2,
                                              .ctx = service};
    if (pthread_mutex_init(&service->lock, NULL) != 0) {
        hps_free(service);
        return NULL;
    }
    return service;
}

void hps_lookup_service_limits_set(struct hps_lookup_service *service,
                                   const struct hps_lookup_limits *limits)
{
    atomic_store(&service->tables_max, limits->tables_max);
    atomic_store(&service->keys_max, limits->keys_max);
    atomic_store(&service->queue_us_max, limits->queue_us_max);
}

void hps_lookup_service_free(struct hps_lookup_service *service)
{
    if (service == NULL) {
        return;
    }
    HPS_ASSERT(service->n_used == 0);
    while (service->idle != NULL) {
        struct request *request = service->idle;
        service->idle = request->next_idle;
        request_free(request);
    }
    pthread_mutex_destroy(&service->lock);
    hps_free(service);
}

const struct hps_grpc_service *hps_lookup_service_grpc(const struct hps_lookup_service *service)
{
    return &service->grpc;
}

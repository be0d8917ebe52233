/* SPDX-License-Identifier: Apache-2.0
 *
 * The two lookup methods of hps.v1: callbacks of the call. A request belongs to the loop thread of
 * its connection, except while another thread has it (`phase`). It is freed once its call has ended
 * and no thread has it.
 *
 *     on_packed ─┬─▶ here ───┬─▶ inflate, decode, pin, plan ─▶ capacity ─┐
 *                └─▶ worker ─┘   (unpack.c, prepare.c)        (room.c)   │
 *     ┌──────────────────────────────────────────────────────────────────┘
 *     └─┬─▶ memory tiers, here ─┬───────────▶ reply
 *       └─▶ worker ─────────────┤ (rest)      ▲
 *     (dispatch.c, handover.c)  └─▶ I/O thread ┘  (reply.c)
 */
#include "server/lookup/service.h"

#include <inttypes.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/lock.h"
#include "server/access/access.h"
#include "server/lookup/encode.h"
#include "server/lookup/internal.h"

/* ---- hps.v1 ---------------------------------------------------------------------------------- */

static hps_status decode(const struct hps_grpc_call *call, const uint8_t *data, size_t size,
                         const struct hps_decode_limits *limits, struct hps_arena *arena,
                         struct hps_lookup_request *out_request,
                         struct hps_lookup_asked **out_asked, struct hps_error *err)
{
    (void)call;
    (void)out_asked;
    return hps_decode_lookup(data, size, limits, arena, out_request, err);
}

static uint64_t bytes_max(const struct hps_lookup_asked *asked, const struct hps_lookup *lookup)
{
    (void)asked;
    return hps_encode_size_max(lookup);
}

static hps_status encode(const struct hps_lookup_asked *asked, const struct hps_lookup *lookup,
                         const struct hps_encode_explain *explain, struct hps_block *rows,
                         struct hps_block_pool *pool, struct hps_arena *arena,
                         struct hps_encoded *out_encoded, struct hps_error *err)
{
    (void)asked;
    (void)err;
    return hps_encode_lookup(lookup, explain, rows, pool, arena, out_encoded);
}

static const struct hps_lookup_front hps_v1 = {
    .positions = "queries", .decode = decode, .bytes_max = bytes_max, .encode = encode};

/* ---- callbacks of the call ------------------------------------------------------------------- */

static void on_packed(struct hps_lookup_service *service, const struct hps_lookup_front *front,
                      struct hps_grpc_call *call, const struct hps_grpc_packed *packed,
                      bool streaming)
{
    struct request *request =
        request_new(service, front, call, streaming, hps_grpc_call_start_us(call));
    struct hps_error err;

    if (request == NULL) {
        hps_error_set(&err, HPS_NO_MEMORY, "no memory for a request");
        hps_grpc_call_fail(call, &err);
        return;
    }
    hps_grpc_call_set_user(call, request);
    request_turn_begin(request);
    if (request_take_turn(request)) {
        request_unpack(request, packed);
    }
    request_turn_end(request);
}

void hps_lookup_call_packed(struct hps_lookup_service *service,
                            const struct hps_lookup_front *front, struct hps_grpc_call *call,
                            const struct hps_grpc_packed *packed)
{
    on_packed(service, front, call, packed, false);
}

static void on_lookup(struct hps_grpc_call *call, const struct hps_grpc_packed *packed)
{
    on_packed(hps_grpc_call_ctx(call), &hps_v1, call, packed, false);
}

static void on_lookup_stream(struct hps_grpc_call *call, const struct hps_grpc_packed *packed)
{
    on_packed(hps_grpc_call_ctx(call), &hps_v1, call, packed, true);
}

static void on_drained(struct hps_grpc_call *call)
{
    struct request *request = hps_grpc_call_user(call);

    if (request == NULL || request->reply.stream == NULL) {
        return;
    }
    request_turn_begin(request);
    request_pump(request);
    request_turn_end(request);
}

void hps_lookup_call_closed(struct hps_grpc_call *call)
{
    struct request *request = hps_grpc_call_user(call);

    if (request == NULL) {
        return; /* the call ended before its message was complete */
    }
    hps_grpc_call_set_user(call, NULL);
    request_turn_begin(request);
    request_close(request);
    request_turn_end(request);
}

void hps_lookup_call_undelivered(struct hps_grpc_call *call, int grpc_code)
{
    const struct hps_lookup_service *service = hps_grpc_call_ctx(call);
    const struct hps_service_metrics *metrics = service->parts.metrics;

    if (grpc_code != hps_status_grpc_code(HPS_UNAUTHENTICATED) &&
        grpc_code != hps_status_grpc_code(HPS_PERMISSION)) {
        hps_metric_add(metrics->requests[grpc_code], 1);
        hps_metric_observe_us(metrics->duration, hps_clock_us() - hps_grpc_call_start_us(call));
    }
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
    service->methods[0] = (struct hps_grpc_method){.path = "/hps.v1.ParameterServer/Lookup",
                                                   .roles = HPS_ROLE_LOOKUP,
                                                   .on_packed = on_lookup,
                                                   .on_close = hps_lookup_call_closed,
                                                   .on_undelivered = hps_lookup_call_undelivered};
    service->methods[1] = (struct hps_grpc_method){.path = "/hps.v1.ParameterServer/LookupStream",
                                                   .roles = HPS_ROLE_LOOKUP,
                                                   .on_packed = on_lookup_stream,
                                                   .on_close = hps_lookup_call_closed,
                                                   .on_undelivered = hps_lookup_call_undelivered,
                                                   .on_drained = on_drained};
    service->grpc = (struct hps_grpc_service){.name = "hps.v1.ParameterServer",
                                              .methods = service->methods,
                                              .n_methods = 2,
                                              .ctx = service};
    hps_lock_init(&service->lock, HPS_LOCK_LOOKUP_SERVICE);
    return service;
}

void hps_lookup_service_limits_set(struct hps_lookup_service *service,
                                   const struct hps_lookup_limits *limits)
{
    atomic_store(&service->tables_max, limits->tables_max);
    atomic_store(&service->keys_max, limits->keys_max);
    atomic_store(&service->queue_us_max, limits->queue_us_max);
    atomic_store(&service->reply_bytes_max, limits->reply_bytes_max);
}

void hps_lookup_service_free(struct hps_lookup_service *service)
{
    if (service == NULL) {
        return;
    }
    request_free_idle(service);
    hps_lock_fini(&service->lock);
    hps_free(service);
}

const struct hps_grpc_service *hps_lookup_service_grpc(const struct hps_lookup_service *service)
{
    return &service->grpc;
}

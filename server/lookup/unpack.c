/* SPDX-License-Identifier: Apache-2.0
 *
 * Inflates and decodes a message. A few KB of gzip may inflate to many MB, with millions of keys in
 * as many pieces. So only small messages are unpacked on the loop, and a worker unpacks larger
 * ones. The inflated bytes are freed right after decoding. On the loop thread of the connection,
 * except on_worker.
 */
#include "base/clock.h"
#include "net/gzip.h"
#include "server/lookup/internal.h"

enum { JSON_HERE_BYTES_MAX = 16 * 1024 }; /* JSON that the loop decodes */

static size_t json_bytes(const struct request *request, size_t size)
{
    size_t (*of)(const struct hps_grpc_call *call, size_t size) = request->front->json_bytes;

    return of != NULL ? of(request->call.grpc, size) : 0;
}

/* Largest inflated size that the loop decodes. The size in a gzip trailer tells whether a message
 * is small; if it is false, inflating stops here and a worker begins again. */
static size_t small_bytes(const struct request *request, const struct hps_grpc_packed *packed)
{
    size_t bytes = request->service->parts.limits.inline_message_bytes;
    bool json = packed->compressed && request->front->json_bytes != NULL;

    return json && bytes > JSON_HERE_BYTES_MAX ? JSON_HERE_BYTES_MAX : bytes;
}

/* Largest inflated size of a quick task. */
static size_t quick_bytes(const struct request *request)
{
    bool json = request->front->json_bytes != NULL;

    return (size_t)HPS_POOL_QUICK / (json ? HPS_COST_BYTE + HPS_COST_JSON_BYTE : HPS_COST_BYTE);
}

/* The size of the message without compression, as its trailer says. zlib has no such trailer. */
static size_t plain_size(const struct hps_grpc_packed *packed)
{
    size_t size = packed->compressed ? hps_gzip_size(packed->data, packed->size) : 0;

    return size > packed->size ? size : packed->size;
}

/* Loop or worker thread. too_large: valid up to here, but more than size_max inflated bytes. */
static hps_status unpack(struct request *request, const struct hps_grpc_packed *packed,
                         size_t size_max, bool *out_too_large, struct hps_error *err)
{
    struct hps_buf plain;
    const uint8_t *data = NULL;
    size_t size = 0;
    hps_status status = hps_grpc_unpack(packed, size_max, &plain, &data, &size, err);

    *out_too_large = status == HPS_EXHAUSTED && size_max < packed->size_max;
    request->call.too_large = status == HPS_EXHAUSTED && !*out_too_large;
    if (status == HPS_OK) {
        status = request_prepare(request, data, size, err);
    }
    hps_buf_fini(&plain);
    return status;
}

/* Worker thread. Inflates at most `bytes`, which are request memory in this time. */
static void unpack_as(struct request *request, size_t bytes, bool *out_too_large)
{
    struct hps_charge *charge = hps_grpc_call_charge(request->call.grpc);

    *out_too_large = false;
    request->err.status = HPS_OK;
    if (hps_charge_grow(charge, HPS_LIMIT_REQUESTS, bytes, &request->err) == HPS_OK) {
        hps_ignore(unpack(request, &request->packed, bytes, out_too_large, &request->err));
        hps_charge_shrink(charge, HPS_LIMIT_REQUESTS, bytes);
    }
}

/* Worker thread. The inflated bytes are request memory: as many as the trailer of a gzip message
 * says. If it says too few, and for zlib, as many as a message may have. */
static void unpack_charged(struct request *request, size_t size_max, bool *out_too_large)
{
    const struct hps_grpc_packed *packed = &request->packed;
    size_t most = size_max < packed->size_max ? size_max : packed->size_max;
    size_t trailer = packed->is_zlib ? most : plain_size(packed);

    if (!packed->compressed) {
        hps_ignore(unpack(request, packed, size_max, out_too_large, &request->err));
        return;
    }
    unpack_as(request, trailer < most ? trailer : most, out_too_large);
    if (*out_too_large && trailer < most) {
        unpack_as(request, most, out_too_large);
    }
}

static void go_on(struct request *request, hps_status status, const struct hps_error *err)
{
    uint64_t deadline_us = request->lookup.deadline_us;

    if (status == HPS_OK && request->exchange == NULL && deadline_us != 0) {
        hps_grpc_call_deadline_limit(request->call.grpc, deadline_us);
    }
    if (status == HPS_OK) {
        request_ask_room(request);
    } else {
        request_fail(request, err);
    }
}

/* ---- on a worker ----------------------------------------------------------------------------- */

/* The call may have been ended by now but not closed, because its status waits to be sent. */
static void give_up_late(struct request *request)
{
    uint64_t deadline_us = request->lookup.deadline_us;

    if (hps_grpc_call_cancelled(request->call.grpc)) {
        bool late = deadline_us != 0 && hps_clock_us() >= deadline_us;
        hps_error_set(&request->err, late ? HPS_DEADLINE : HPS_CANCELLED,
                      "the call ended while its message was decoded");
    }
}

static void on_unpacked(struct hps_task *task)
{
    struct request *request = HPS_CONTAINER_OF(task, struct request, task);

    request_turn_begin(request);
    HPS_ASSERT(request->phase == PHASE_UNPACK);
    hps_grpc_call_drop_message(request->call.grpc);
    if (request->call.closed) {
        request->pool = NULL;
        request->phase = PHASE_ENDED;
    } else {
        request_arrive(request);
        give_up_late(request);
        go_on(request, request->err.status, &request->err);
    }
    request_turn_end(request);
}

/* Worker thread. If the message is larger than its trailer says, the task is not quick. */
static void on_worker(struct hps_task *task)
{
    struct request *request = HPS_CONTAINER_OF(task, struct request, task);
    bool limited = request->packed.compressed && task->cost <= HPS_POOL_QUICK;
    size_t size_max = limited ? quick_bytes(request) : SIZE_MAX;
    bool too_large;

    hps_stages_enter(&request->stages, HPS_STAGE_DECODE);
    request->err.status = HPS_OK;
    unpack_charged(request, size_max, &too_large);
    if (too_large && request_post(request, request->service->parts.workers, HPS_POOL_LONG,
                                  on_worker) == HPS_OK) {
        return;
    }
    request->task.run = on_unpacked;
    hps_stages_enter(&request->stages, HPS_STAGE_LOOP);
    request_to_loop(request, &request->task);
}

static void to_worker(struct request *request, const struct hps_grpc_packed *packed)
{
    struct hps_pool *workers = request->service->parts.workers;
    size_t size = plain_size(packed);

    request->packed = *packed;
    if (request_post(request, workers,
                     size * HPS_COST_BYTE + json_bytes(request, size) * HPS_COST_JSON_BYTE,
                     on_worker) == HPS_OK) {
        hps_grpc_call_keep_message(request->call.grpc);
        request->pool = workers;
        request->phase = PHASE_UNPACK;
    } else {
        request_reject(request, HPS_REJECT_WORKERS, &request->err);
    }
}

/* ---- on the loop ----------------------------------------------------------------------------- */

void request_unpack(struct request *request, const struct hps_grpc_packed *packed)
{
    bool too_large = true;
    hps_status status = HPS_OK;

    HPS_ASSERT(request->phase == PHASE_LOOP);
    size_t size = plain_size(packed);
    if (size <= small_bytes(request, packed) && json_bytes(request, size) <= JSON_HERE_BYTES_MAX) {
        hps_stages_enter(&request->stages, HPS_STAGE_DECODE);
        status = unpack(request, packed, small_bytes(request, packed), &too_large, &request->err);
    }
    if (too_large) {
        to_worker(request, packed);
    } else {
        go_on(request, status, &request->err);
    }
}

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

/* Largest inflated size that the loop decodes. The size in a gzip trailer tells whether a message
 * is small; if it is false, inflating stops here and a worker begins again. */
static size_t small_bytes(const struct request *request)
{
    return request->service->parts.limits.inline_message_bytes;
}

static bool seems_small(const struct request *request, const struct hps_grpc_packed *packed)
{
    size_t size = packed->size;

    if (packed->compressed && size <= small_bytes(request)) {
        size = hps_gzip_size(packed->data, packed->size);
    }
    return size <= small_bytes(request);
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

/* Worker thread. */
static void on_worker(struct hps_task *task)
{
    struct request *request = HPS_CONTAINER_OF(task, struct request, task);
    bool too_large;

    hps_stages_enter(&request->stages, HPS_STAGE_DECODE);
    request->err.status = HPS_OK;
    hps_ignore(unpack(request, &request->packed, SIZE_MAX, &too_large, &request->err));
    request->task.run = on_unpacked;
    hps_stages_enter(&request->stages, HPS_STAGE_LOOP);
    hps_loop_post(request->loop, &request->task);
}

static void to_worker(struct request *request, const struct hps_grpc_packed *packed)
{
    struct hps_pool *workers = request->service->parts.workers;

    hps_stages_enter(&request->stages, HPS_STAGE_QUEUE);
    request->packed = *packed;
    request->task.run = on_worker;
    hps_status status = hps_pool_post(workers, &request->task);
    if (status == HPS_OK) {
        hps_grpc_call_keep_message(request->call.grpc);
        request->pool = workers;
        request->phase = PHASE_UNPACK;
        return;
    }
    hps_error_set(&request->err, status,
                  "lookup rejected: %zu lookups wait for a worker, the limit; retry later",
                  hps_pool_depth(workers));
    request_reject(request, HPS_REJECT_WORKERS, &request->err);
}

/* ---- on the loop ----------------------------------------------------------------------------- */

void request_unpack(struct request *request, const struct hps_grpc_packed *packed)
{
    bool too_large = true;
    hps_status status = HPS_OK;

    HPS_ASSERT(request->phase == PHASE_LOOP);
    if (seems_small(request, packed)) {
        hps_stages_enter(&request->stages, HPS_STAGE_DECODE);
        status = unpack(request, packed, small_bytes(request), &too_large, &request->err);
    }
    if (too_large) {
        to_worker(request, packed);
    } else {
        go_on(request, status, &request->err);
    }
}

void request_unpack_close(struct request *request)
{
    HPS_ASSERT(request->phase == PHASE_UNPACK);
    if (request_withdraw(request)) {
        request->phase = PHASE_ENDED;
    } /* otherwise on_unpacked will follow */
}

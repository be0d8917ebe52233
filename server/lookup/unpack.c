/* SPDX-License-Identifier: Apache-2.0
 *
 * The bytes of a client become a request that is prepared. Some KB of gzip may be many MB, and
 * those may be millions of keys in as many pieces: what is not small is inflated and decoded by a
 * worker, which has the plain bytes for no longer than that takes. On the loop thread of the
 * connection, but for on_worker.
 */
#include "base/clock.h"
#include "net/gzip.h"
#include "server/lookup/internal.h"

/* Plain bytes that are decoded on the loop, if there are no more: whether they are many is known of
 * honest clients at once, and of others when as many have come out. */
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

/* The loop, or a worker. too_large: it is well so far, but has more than size_max plain bytes. */
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

/* The call may have been ended meanwhile, though not be over: its status waits to be sent. */
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
                  "look-up rejected: %zu others wait for a worker, which is the limit; retry later",
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
    } /* else on_unpacked is on its way */
}

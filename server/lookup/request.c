/* SPDX-License-Identifier: Apache-2.0
 *
 * A request from its call to its end: the turns of the loop thread, the invariants between turns,
 * errors in place of a reply, and the end, once no thread has it. On the loop thread of the
 * connection.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "server/lookup/internal.h"

/* Tells a rejected client how long to wait before it retries. */
static const char PUSHBACK_NAME[] = "grpc-retry-pushback-ms";
enum { RETRY_US = 100 * 1000 };

/* ---- the end --------------------------------------------------------------------------------- */

static int code_of_closed(const struct request *request)
{
    const struct request_call *call = &request->call;
    uint64_t deadline_us = request->lookup.deadline_us;

    /* A reply that the client did not receive completely is not a success. */
    if (call->code > 0 || (call->code == 0 && !hps_grpc_call_cancelled(call->grpc))) {
        return call->code;
    }
    return hps_status_grpc_code(deadline_us != 0 && call->closed_us >= deadline_us ? HPS_DEADLINE
                                                                                   : HPS_CANCELLED);
}

void request_name_work(struct request *request)
{
    static const enum hps_stage stages[HPS_TIER_COUNT] = {[HPS_TIER_HOST] = HPS_STAGE_HOST,
                                                          [HPS_TIER_REDIS] = HPS_STAGE_REDIS,
                                                          [HPS_TIER_ROCKSDB] = HPS_STAGE_ROCKSDB};
    struct hps_lookup *lookup = &request->lookup;

    for (unsigned kind = 0; kind < HPS_TIER_COUNT; kind++) {
        if (!hps_tier_on_device((enum hps_tier_kind)kind)) { /* no thread is at work */
            hps_stages_name(&request->stages, HPS_STAGE_WORK, stages[kind], lookup->tier_us[kind]);
        }
        lookup->tier_us[kind] = 0;
    }
    hps_stages_name(&request->stages, HPS_STAGE_WORK, HPS_STAGE_WAIT, lookup->others_us);
    lookup->others_us = 0;
}

/* Counts a lookup of any protocol in the usage of its version, if the version was found. */
static void count_usage(const struct request *request, bool good)
{
    const struct hps_version *version = request->lookup.version;
    struct hps_usage *usage = version != NULL ? version->usage : request->usage;
    const uint64_t *us = request->stages.us;

    if (usage == NULL) {
        return;
    }
    struct hps_usage_lookup lookup = {
        .good = good, .ended_ms = hps_clock_wall_ms(), .us = request->slow.duration_us};
    lookup.part_us[HPS_USAGE_QUEUE] =
        us[HPS_STAGE_ADMISSION] + us[HPS_STAGE_QUEUE] + us[HPS_STAGE_LOOP];
    lookup.part_us[HPS_USAGE_INPUT] = us[HPS_STAGE_DECODE];
    lookup.part_us[HPS_USAGE_WALK] = us[HPS_STAGE_GPU] + us[HPS_STAGE_HOST] + us[HPS_STAGE_REDIS] +
                                     us[HPS_STAGE_ROCKSDB] + us[HPS_STAGE_WAIT] +
                                     us[HPS_STAGE_UNIT] + us[HPS_STAGE_WORK];
    lookup.part_us[HPS_USAGE_OUTPUT] = us[HPS_STAGE_ENCODE] + us[HPS_STAGE_SEND];
    hps_usage_add(usage, &lookup);
}

static void account(struct request *request)
{
    const struct hps_service_metrics *metrics = request->service->parts.metrics;
    struct hps_slow_request *slow = &request->slow;

    slow->grpc_code = code_of_closed(request);
    slow->duration_us = request->call.closed_us - request->call.start_us;
    slow->n_keys = request->lookup.n_keys;
    hps_stages_enter_at(&request->stages, request->stages.now, request->call.closed_us);
    request_name_work(request);
    memcpy(slow->stage_us, request->stages.us, sizeof(slow->stage_us));
    if (request->reply.encoded) {
        for (unsigned i = 0; i < HPS_STAGE_COUNT; i++) {
            hps_metric_observe_us(metrics->stage_duration[i], slow->stage_us[i]);
        }
    }
    hps_metric_add(metrics->requests[slow->grpc_code], 1);
    hps_metric_observe_us(metrics->duration, slow->duration_us);
    hps_slowlog_add(request->service->parts.slowlog, slow);
    count_usage(request, slow->grpc_code == 0);
    hps_metric_gauge_add(metrics->requests_in_flight, -1);
}

void request_unpin(struct request *request)
{
    if (request->lookup.version != NULL) {
        request->usage = request->lookup.version->usage;
        hps_version_unpin(request->lookup.version);
        request->lookup.version = NULL;
    }
}

/* No thread has the request. Releases the pin before the rows, and both before their charges. */
static void end_request(struct request *request)
{
    struct hps_lookup_service *service = request->service;

    account(request);
    request_unpin(request);
    hps_lookup_release(&request->lookup);
    hps_block_unref(request->lookup.block);
    request_give_room(request);
    hps_grpc_call_unref(request->call.grpc);
    request_give(service, request);
}

/* ---- turns ----------------------------------------------------------------------------------- */

struct request *request_new(struct hps_lookup_service *service,
                            const struct hps_lookup_front *front, struct hps_grpc_call *call,
                            bool streaming, uint64_t start_us)
{
    struct request *request = request_take(service);

    if (request == NULL) {
        return NULL;
    }
    request->service = service;
    request->front = front;
    request->loop = hps_grpc_call_loop(call);
    request->phase = PHASE_LOOP;
    request->call = (struct request_call){
        .grpc = call, .streaming = streaming, .code = -1, .start_us = start_us};
    request->lookup.deadline_us = hps_grpc_call_deadline_us(call);
    hps_stages_begin(&request->stages, HPS_STAGE_RECEIVE, start_us);
    hps_timer_init(&request->timer, request_on_timer, request);
    hps_grpc_call_ref(call);
    hps_metric_gauge_add(service->parts.metrics->requests_in_flight, 1);
    return request;
}

static bool is_answered(const struct request *request)
{
    return request->phase == PHASE_REPLY || request->phase == PHASE_ENDED;
}

/* Asserts that the current step belongs to the phase. */
static void phase_fits_step(const struct request *request)
{
    if (request->phase == PHASE_IO) { /* its thread may be at the next step already */
        return;
    }
    enum hps_step step = request->lookup_state.step;

    switch (request->phase) {
    case PHASE_UNPACK:
    case PHASE_ROOM:
        HPS_ASSERT(step == HPS_STEP_NONE);
        break;
    case PHASE_WORKER:
        HPS_ASSERT(step == HPS_STEP_MEMORY || step == HPS_STEP_COLLECT);
        break;
    case PHASE_GPU:
        HPS_ASSERT(step == HPS_STEP_GPU_FIRST || step == HPS_STEP_GPU_MISSES);
        break;
    case PHASE_AWAIT:
        HPS_ASSERT(step == HPS_STEP_AWAIT_UPDATES || step == HPS_STEP_AWAIT_REREAD);
        break;
    case PHASE_ENCODE:
        HPS_ASSERT(step == HPS_STEP_DONE);
        break;
    case PHASE_REPLY:
    case PHASE_ENDED: /* NONE: rejected before the first step */
        HPS_ASSERT(step == HPS_STEP_NONE || hps_step_is_last(step));
        break;
    case PHASE_LOOP:
    case PHASE_IO:
        break;
    }
}

/* Asserts that only phases with a limited wait have a timer. */
static void timer_fits_phase(const struct request *request)
{
    enum request_phase phase = request->phase;

    if (hps_timer_armed(&request->timer)) {
        HPS_ASSERT(!request->call.closed);
        HPS_ASSERT(phase == PHASE_ROOM || phase == PHASE_IO || phase == PHASE_GPU ||
                   phase == PHASE_AWAIT);
    } else {
        HPS_ASSERT(phase != PHASE_AWAIT);
    }
}

/* In phases of other threads the thread owns the lookup, so less of it is checked. */
static void holdings_fit_phase(const struct request *request)
{
    if (request->phase == PHASE_UNPACK) {
        HPS_ASSERT(request->packed.data != NULL);
        return;
    }
    if (request->phase == PHASE_ROOM) {
        HPS_ASSERT(request->lookup.version != NULL);
        HPS_ASSERT(request->lookup.block == NULL);
        return;
    }
    bool holds = request->room.held > 0;

    HPS_ASSERT(request->room.key_bytes == 0);
    switch (request->phase) {
    case PHASE_AWAIT:
        HPS_ASSERT(request->lookup.block != NULL);
        HPS_ASSERT(request->lookup.version != NULL);
        HPS_ASSERT(holds);
        break;
    case PHASE_WORKER:
    case PHASE_ENCODE:
    case PHASE_IO:
    case PHASE_GPU:
        HPS_ASSERT(request->lookup.version != NULL);
        HPS_ASSERT(holds);
        break;
    case PHASE_REPLY:
    case PHASE_ENDED:
        HPS_ASSERT(request->lookup.version == NULL || !request->reply.encoded);
        break;
    case PHASE_LOOP:
    case PHASE_UNPACK:
    case PHASE_ROOM:
        break;
    }
}

void request_sane(const struct request *request)
{
    const struct hps_lookup_service_parts *parts = &request->service->parts;
    const struct request_reply *reply = &request->reply;
    enum request_phase phase = request->phase;
    bool worker = phase == PHASE_UNPACK || phase == PHASE_WORKER || phase == PHASE_ENCODE;

    HPS_ASSERT(hps_loop_is_mine(request->loop));
    HPS_ASSERT(phase != PHASE_LOOP); /* the turn has handed it over or ended it */
    HPS_ASSERT(phase != PHASE_REPLY || !request->call.closed);
    HPS_ASSERT(phase != PHASE_ENDED || request->call.closed);
    HPS_ASSERT(request->call.code < 0 || is_answered(request));
    HPS_ASSERT(!reply->encoded || is_answered(request));
    HPS_ASSERT(reply->stream == NULL || (reply->encoded && request->call.streaming));
    HPS_ASSERT(!reply->pumping);
    HPS_ASSERT(phase != PHASE_GPU || request->gpu.left_version == NULL);
    HPS_ASSERT(request->pool == (worker ? parts->workers : phase == PHASE_IO ? parts->io : NULL));
    phase_fits_step(request);
    timer_fits_phase(request);
    holdings_fit_phase(request);
}

void request_turn_begin(struct request *request)
{
    HPS_ASSERT(hps_loop_is_mine(request->loop));
    request->n_turns++;
}

void request_turn_end(struct request *request)
{
    HPS_ASSERT(request->n_turns > 0);
    if (--request->n_turns > 0) {
        return;
    }
    HPS_DEBUG_SANE(request_sane(request));
    if (request->phase == PHASE_ENDED && request->gpu.left_version == NULL) {
        end_request(request);
    }
}

void request_arrive(struct request *request)
{
    HPS_ASSERT(request->n_turns > 0);
    HPS_ASSERT(request->phase != PHASE_LOOP && !is_answered(request));
    request->phase = PHASE_LOOP;
    request->pool = NULL;
    hps_timer_stop(&request->timer);
    if (!request->call.closed) { /* else its time ended when the call closed */
        hps_stages_enter(&request->stages, HPS_STAGE_WORK);
    }
}

/* ---- errors ---------------------------------------------------------------------------------- */

void request_drop_message(struct request *request)
{
    request->lookup.parts = NULL;
    request->lookup.n_parts = 0;
    request->asked = NULL;
    request_give_arenas(request->service, request);
}

void request_fail(struct request *request, const struct hps_error *err)
{
    HPS_ASSERT(request->phase == PHASE_LOOP || request->phase == PHASE_REPLY);
    HPS_ASSERT(err->status != HPS_OK);
    HPS_ASSERT(!request->call.closed);
    HPS_ASSERT(request->call.code < 0);
    hps_stages_enter(&request->stages, HPS_STAGE_SEND);
    request->phase = PHASE_REPLY; /* before the call is finished, which may end it at once */
    request->call.code = hps_status_grpc_code(err->status);
    if (request->exchange != NULL) {
        exchange_tell(request->exchange, request, err);
    } else if (request->call.too_large && err->status == HPS_EXHAUSTED) { /* not DEADLINE */
        hps_grpc_call_fail_too_large(request->call.grpc, err);
    } else {
        hps_grpc_call_fail(request->call.grpc, err);
    }
    if (request->lookup_state.step == HPS_STEP_NONE) {
        request_drop_message(request);
    }
}

static void fail_retry(struct request *request, uint64_t retry_us, const struct hps_error *err)
{
    char text[24];
    int size = snprintf(text, sizeof(text), "%" PRIu64, (retry_us + 999) / 1000);

    HPS_ASSERT(size > 0 && (size_t)size < sizeof(text));
    /* If the trailer does not fit, the client uses its own back-off. With other requests on the
     * call it has no place. */
    hps_ignore(
        request->exchange != NULL
            ? HPS_OK
            : hps_grpc_call_add_trailer(request->call.grpc, PUSHBACK_NAME, text, (size_t)size));
    request_fail(request, err);
}

void request_fail_retry(struct request *request, const struct hps_error *err)
{
    fail_retry(request, RETRY_US, err);
}

void request_reject_for(struct request *request, enum hps_reject reason, uint64_t retry_us,
                        const struct hps_error *err)
{
    hps_metric_add(request->service->parts.metrics->rejected[reason], 1);
    fail_retry(request, retry_us, err);
}

void request_reject(struct request *request, enum hps_reject reason, const struct hps_error *err)
{
    request_reject_for(request, reason, RETRY_US, err);
}

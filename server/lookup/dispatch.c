/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs a lookup from step to step until it is answered. cache/lookup/next.h decides the next step;
 * this file chooses its thread. Memory tiers of a small lookup run on the loop thread, of a large
 * one on a worker; tiers that may block run on an I/O thread; waits use the timer. handover.c moves
 * the request to other threads and back. If the client disconnects, waits are withdrawn. On the
 * loop thread.
 */
#include <inttypes.h>

#include "base/clock.h"
#include "cache/lookup/step.h"
#include "server/lookup/internal.h"

/* ---- the end of a lookup without a reply ----------------------------------------------------- */

static void abort_unit(struct request *request)
{
    const struct hps_error cause = request->err;

    hps_error_set(&request->err, HPS_ABORTED,
                  "model \"%s\": %s; retry the lookup, or request fewer keys at a time",
                  request->lookup.version->model, cause.text);
    request_fail_retry(request, &request->err);
}

static void fail(struct request *request)
{
    switch (request->lookup_state.failure) {
    case HPS_FAILURE_ERROR:
        request_fail(request, &request->err);
        break;
    case HPS_FAILURE_UPDATES:
        abort_unit(request);
        break;
    case HPS_FAILURE_BUSY:
        request_reject(request, HPS_REJECT_WORKERS, &request->err);
        break;
    case HPS_FAILURE_NONE:
    case HPS_FAILURE_GONE:
        HPS_ASSERT(request->call.closed);
        request->phase = PHASE_ENDED;
        break;
    }
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* Handing a small lookup over would take as long as its memory tiers do. */
static bool is_small(const struct request *request)
{
    const struct hps_lookup_limits *limits = &request->service->parts.limits;
    const struct hps_lookup *lookup = &request->lookup;

    return lookup->n_keys <= limits->inline_keys_max &&
           lookup->rows_bytes <= limits->inline_bytes_max &&
           request_pooled_bytes(lookup) <= limits->inline_bytes_max;
}

static enum hps_outcome do_here(struct request *request)
{
    return hps_lookup_step(&request->lookup, request->lookup_state.step, &request->err);
}

static enum hps_outcome await_timer(struct request *request)
{
    hps_stages_enter(&request->stages, HPS_STAGE_UNIT);
    request->phase = PHASE_AWAIT;
    hps_timer_set_after(request->loop, &request->timer, request->lookup_state.wait_us);
    return HPS_OUTCOME_OVER;
}

/* The returned value is valid only if the request is still in PHASE_LOOP. */
static enum hps_outcome take_step(struct request *request)
{
    switch (request->lookup_state.step) {
    case HPS_STEP_BEGIN: /* keep the times of earlier tries */
        request_name_work(request);
        return do_here(request);
    case HPS_STEP_GPU_FIRST:
    case HPS_STEP_GPU_MISSES:
        return request_to_gpu(request);
    case HPS_STEP_MEMORY:
    case HPS_STEP_COLLECT:
        return is_small(request) ? do_here(request) : request_to_worker(request);
    case HPS_STEP_STORES:
    case HPS_STEP_REREAD:
        return request_to_io(request);
    case HPS_STEP_AWAIT_UPDATES:
    case HPS_STEP_AWAIT_REREAD:
        return await_timer(request);
    case HPS_STEP_DEFAULTS:
    case HPS_STEP_ABANDON:
        return do_here(request);
    case HPS_STEP_DONE:
        request_reply(request);
        break;
    case HPS_STEP_FAILED:
        fail(request);
        break;
    case HPS_STEP_NONE:
    case HPS_STEP_COUNT:
        HPS_ASSERT(false);
    }
    return HPS_OUTCOME_OVER;
}

void request_advance(struct request *request, enum hps_outcome outcome)
{
    HPS_ASSERT(request->phase == PHASE_LOOP);
    while (request->phase == PHASE_LOOP) {
        request->lookup_state =
            hps_lookup_state_next(&request->lookup_state, outcome, request->call.closed);
        outcome = take_step(request);
    }
}

void request_start(struct request *request)
{
    struct hps_lookup *lookup = &request->lookup;

    HPS_ASSERT(!request->call.closed);
    if (hps_lookup_take_block(lookup) != HPS_OK) {
        hps_error_set(&request->err, HPS_NO_MEMORY, "no memory for %" PRIu64 " bytes of rows",
                      lookup->rows_bytes);
        request_fail(request, &request->err);
        return;
    }
    lookup->gpu_done = request_gpu_done;
    request->lookup_state = (struct hps_lookup_state){.miss_policy = lookup->miss_policy,
                                                      .unit = lookup->unit,
                                                      .has_gpu = lookup->version->gpu != NULL};
    request_advance(request, HPS_OUTCOME_OVER);
}

/* ---- timer and close ------------------------------------------------------------------------- */

void request_on_timer(void *ctx)
{
    struct request *request = ctx;

    request_turn_begin(request);
    switch (request->phase) {
    case PHASE_ROOM:
        request_room_on_timer(request);
        break;
    case PHASE_IO: /* a lookup that runs checks its own deadline */
        if (request_withdraw(request)) {
            request_advance(request, HPS_OUTCOME_LATE);
        }
        break;
    case PHASE_GPU:
        request_leave_gpu(request);
        request_advance(request, HPS_OUTCOME_LATE);
        break;
    case PHASE_AWAIT:
        request_arrive(request);
        request_advance(request, HPS_OUTCOME_OVER);
        break;
    case PHASE_LOOP:
    case PHASE_UNPACK:
    case PHASE_WORKER:
    case PHASE_ENCODE:
    case PHASE_REPLY:
    case PHASE_ENDED:
        HPS_ASSERT(false); /* they have no timer */
    }
    request_turn_end(request);
}

void request_close(struct request *request)
{
    request->call.closed = true;
    request->call.closed_us = hps_clock_us();
    hps_timer_stop(&request->timer);
    switch (request->phase) {
    case PHASE_UNPACK:
    case PHASE_ENCODE:
        if (request_withdraw(request)) {
            request->phase = PHASE_ENDED;
        } /* otherwise it will come back */
        break;
    case PHASE_ROOM:
        request_room_close(request);
        break;
    case PHASE_WORKER:
    case PHASE_IO:
        if (request_withdraw(request)) {
            request_advance(request, HPS_OUTCOME_LATE);
        }
        break;
    case PHASE_AWAIT:
        request_arrive(request);
        request_advance(request, HPS_OUTCOME_LATE);
        break;
    case PHASE_GPU: /* its answer cannot be withdrawn */
        break;
    case PHASE_REPLY:
        request->phase = PHASE_ENDED;
        break;
    case PHASE_LOOP:
    case PHASE_ENDED:
        HPS_ASSERT(false); /* on_close comes once, and only after a reply or error */
    }
}

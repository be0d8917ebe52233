/* SPDX-License-Identifier: Apache-2.0
 *
 * Which thread does what of a look-up: from step to step until it is answered. Memory tiers of a
 * small one are asked here, on the loop thread; a worker asks those of a large one, an I/O thread
 * asks the tiers that may block. Both post it back to the loop. What waits for one of them is
 * withdrawn when the client goes; and answered with what is there when the client waits for rows no
 * longer.
 *
 * The gpu, where a version has one, is asked by the loop before the memory tiers or after them, and
 * posts back: no thread waits for it. A device that writes cannot be called back: what it was asked
 * for is held until it has answered, whoever has gone, and whatever else the request has been
 * answered with meanwhile.
 */
#include <inttypes.h>

#include "base/clock.h"
#include "server/lookup/internal.h"

/* Loop thread: from step to step, unless the request waits for the gpu or is with a worker. */
static void take_step(struct request *request, enum step step);

void request_finish(struct request *request, hps_status status, const struct hps_error *err)
{
    if (status == HPS_ABORTED && request->lookup.unit) {
        request_finish_torn(request, err);
    } else if (status != HPS_OK) {
        request_fail(request, status, err);
    } else {
        request_reply(request);
    }
}

/* ---- to a thread and back -------------------------------------------------------------------- */

hps_status request_post_to(struct request *request, struct hps_pool *pool, const char *name,
                           void (*run)(struct hps_task *task))
{
    hps_stages_enter(&request->stages, HPS_STAGE_QUEUE);
    request->task.run = run;
    request->pool = pool;
    if (hps_pool_post(pool, &request->task) != HPS_OK) {
        request->pool = NULL;
        hps_stages_enter(&request->stages, HPS_STAGE_WORK);
        return hps_error_set(&request->err, HPS_EXHAUSTED, "%zu look-ups wait for %s already",
                             hps_pool_depth(pool), name);
    }
    return HPS_OK;
}

void request_post_back(struct request *request, void (*run)(struct hps_task *task))
{
    request->task.run = run;
    hps_stages_enter(&request->stages, HPS_STAGE_LOOP);
    hps_loop_post(request->loop, &request->task);
}

bool request_withdraw(struct request *request)
{
    if (request->pool == NULL || !hps_pool_withdraw(request->pool, &request->task)) {
        return false;
    }
    request->pool = NULL;
    hps_timer_stop(&request->wait_timer);
    hps_stages_enter(&request->stages, HPS_STAGE_WORK);
    return true;
}

/* ---- I/O threads ----------------------------------------------------------------------------- */

void request_io_done(struct hps_task *task)
{
    struct request *request = CONTAINER_OF(task, struct request, task);

    request->pool = NULL;
    request->rereads = false;
    hps_stages_enter(&request->stages, HPS_STAGE_WORK);
    hps_timer_stop(&request->wait_timer);
    request_finish(request, request->status, &request->err);
    request_drop(request);
}

/* I/O thread: the tiers that may block. */
static void on_io(struct hps_task *task)
{
    struct request *request = CONTAINER_OF(task, struct request, task);

    hps_stages_enter(&request->stages, HPS_STAGE_WORK);
    if (hps_grpc_call_cancelled(request->call)) {
        request->status = hps_error_set(&request->err, HPS_CANCELLED, "the client is gone");
        hps_lookup_abandon(&request->lookup);
    } else {
        request->status = hps_lookup_run_rest(&request->lookup, &request->err);
    }
    if (request->lookup.torn) {
        request_reread(request);
    }
    request_post_back(request, request_io_done);
}

static void answer_with_what_is_there(struct request *request)
{
    struct hps_error err;
    request_finish(request, hps_lookup_give_up(&request->lookup, &err), &err);
}

/* Loop thread: the memory tiers have been asked. */
static void hand_to_io(struct request *request)
{
    const struct hps_lookup *lookup = &request->lookup;
    bool waits = lookup->miss_policy == HPS_MISS_WAIT;
    uint64_t wait_deadline_us = lookup->wait_deadline_us; /* it is not ours once it is posted */

    request_hold(request);
    if (request_post_to(request, request->service->parts.io, "the I/O threads", on_io) == HPS_OK) {
        if (waits) {
            hps_timer_set(request->loop, &request->wait_timer, wait_deadline_us);
        }
        return;
    }
    if (waits) { /* for no time, then */
        answer_with_what_is_there(request);
    } else {
        hps_lookup_abandon(&request->lookup);
        request_reject(request, HPS_REJECT_WORKERS, &request->err);
    }
    request_drop(request);
}

/* ---- the gpu --------------------------------------------------------------------------------- */

/* Loop thread: go on without what the gpu was asked for. The reply gives the request's pin back,
 * but the gpu needs the version until it has answered. */
static void leave_gpu(struct request *request)
{
    request->at_gpu = false;
    hps_stages_enter(&request->stages, HPS_STAGE_WORK);
    request->gpu_version = request->lookup.version;
    hps_version_pin(request->gpu_version);
    hps_lookup_leave_gpu(&request->lookup);
    request_hold(request);
    take_step(request, request->gpu_first ? STEP_MEMORY : STEP_GPU);
    request_drop(request);
}

/* Ask the gpu before the memory tiers, or for what they miss; where there is nothing to ask go on
 * without. */
static void ask_gpu(struct request *request, bool first)
{
    request_hold(request); /* by the gpu */
    request->gpu_first = first;
    if (request->lookup.version->gpu != NULL) {
        hps_stages_enter(&request->stages, HPS_STAGE_GPU);
    }
    request->at_gpu = hps_lookup_ask_gpu(&request->lookup);
    if (!request->at_gpu) {
        hps_stages_enter(&request->stages, HPS_STAGE_WORK);
        take_step(request, first ? STEP_MEMORY : STEP_GPU);
        request_drop(request);
    } else if (request->lookup.gpu_deadline_us != 0) {
        hps_timer_set(request->loop, &request->wait_timer, request->lookup.gpu_deadline_us);
    }
}

/* Loop thread: the gpu has answered: the first question, before the memory tiers, or the second. */
static void on_gpu(struct hps_task *task)
{
    struct request *request = CONTAINER_OF(task, struct request, gpu_task);

    if (!request->at_gpu) { /* it was not waited for */
        hps_version_unpin(request->gpu_version);
        request_drop(request);
        return;
    }
    request->at_gpu = false;
    hps_stages_enter_at(&request->stages, HPS_STAGE_LOOP, request->gpu_done_us);
    hps_stages_enter(&request->stages, HPS_STAGE_WORK);
    hps_timer_stop(&request->wait_timer);
    if (request->closed) {
        hps_lookup_abandon(&request->lookup);
    } else {
        take_step(request, request->gpu_first ? STEP_MEMORY : STEP_GPU);
    }
    request_drop(request);
}

/* The gpu tier's thread. */
static void on_gpu_done(struct hps_lookup *lookup)
{
    struct request *request = CONTAINER_OF(lookup, struct request, lookup);

    request->gpu_done_us = hps_clock_us();
    request->gpu_task.run = on_gpu;
    hps_loop_post(request->loop, &request->gpu_task);
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void end_step(struct request *request, enum step step, hps_status status, bool done,
                     const struct hps_error *err)
{
    if (status != HPS_OK || done) {
        request_finish(request, status, err);
    } else if (request->closed) {
        hps_lookup_abandon(&request->lookup);
    } else if (step == STEP_MEMORY && request->lookup.version->gpu != NULL) {
        ask_gpu(request, false);
    } else {
        hand_to_io(request);
    }
}

/* Loop thread: a worker is done with the request. */
static void on_worked(struct hps_task *task)
{
    struct request *request = CONTAINER_OF(task, struct request, task);

    request->pool = NULL;
    hps_stages_enter(&request->stages, HPS_STAGE_WORK);
    end_step(request, request->step, request->status, request->step_done, &request->err);
    request_drop(request);
}

static hps_status run_step(struct request *request, enum step step, bool *out_done,
                           struct hps_error *err)
{
    return step == STEP_MEMORY ? hps_lookup_run_memory(&request->lookup, out_done, err)
                               : hps_lookup_run_gpu(&request->lookup, out_done, err);
}

/* Worker thread: a step of a large look-up. */
static void on_worker(struct hps_task *task)
{
    struct request *request = CONTAINER_OF(task, struct request, task);

    hps_stages_enter(&request->stages, HPS_STAGE_WORK);
    request->step_done = false;
    if (hps_grpc_call_cancelled(request->call)) {
        request->status = hps_error_set(&request->err, HPS_CANCELLED, "the client is gone");
        hps_lookup_abandon(&request->lookup);
    } else {
        request->lookup.helpers = request->service->parts.workers;
        request->status = run_step(request, request->step, &request->step_done, &request->err);
    }
    request_post_back(request, on_worked);
}

static void hand_to_worker(struct request *request, enum step step)
{
    request_hold(request);
    request->step = step;
    if (request_post_to(request, request->service->parts.workers, "a worker", on_worker) !=
        HPS_OK) {
        hps_lookup_abandon(&request->lookup);
        request_reject(request, HPS_REJECT_WORKERS, &request->err);
        request_drop(request);
    }
}

static void take_step(struct request *request, enum step step)
{
    const struct hps_lookup_limits *limits = &request->service->parts.limits;
    struct hps_error err;
    bool done = false;

    if (request->lookup.rows_bytes > limits->inline_bytes_max ||
        request->lookup.n_keys > limits->inline_keys_max) {
        hand_to_worker(request, step);
        return;
    }
    hps_status status = run_step(request, step, &done, &err);
    end_step(request, step, status, done, &err);
}

/* ---- begin and end of a try ------------------------------------------------------------------ */

void request_start_try(struct request *request)
{
    request->n_tries++;
    request->reread = false;
    request->held = false;
    ask_gpu(request, true);
}

void request_start(struct request *request)
{
    struct hps_lookup *lookup = &request->lookup;
    struct hps_error err;

    hps_stages_enter(&request->stages, HPS_STAGE_WORK);
    if (hps_lookup_take_block(lookup) != HPS_OK) {
        hps_error_set(&err, HPS_NO_MEMORY, "no memory for %" PRIu64 " bytes of rows",
                      lookup->rows_bytes);
        request_fail(request, HPS_NO_MEMORY, &err);
        return;
    }
    lookup->gpu_done = on_gpu_done;
    request_start_try(request);
}

void request_wait_over(void *ctx)
{
    struct request *request = ctx;

    if (request->unit_waits) {
        request_unit_resume(request);
    } else if (request->at_gpu) {
        leave_gpu(request);
    } else if (request_withdraw(request)) {
        answer_with_what_is_there(request);
        request_drop(request);
    }
}

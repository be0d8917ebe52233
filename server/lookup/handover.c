/* SPDX-License-Identifier: Apache-2.0
 *
 * Gives a request to a worker, an I/O thread or the gpu for one step, and takes it back to its
 * loop. It always comes back, unless it is withdrawn before a thread has begun. Everything that the
 * step needs must be set before the post: then the loop no longer owns the request.
 *
 * Functions run on the loop thread unless their comment names another.
 */
#include "server/lookup/internal.h"

#include "base/clock.h"
#include "cache/lookup/step.h"

/* ---- back ------------------------------------------------------------------------------------ */

static void on_back(struct hps_task *task)
{
    struct request *request = HPS_CONTAINER_OF(task, struct request, task);

    request_turn_begin(request);
    request_arrive(request);
    request_advance(request, request->outcome);
    request_turn_end(request);
}

/* Worker or I/O thread, which does not use the request afterwards. */
static void post_back(struct request *request)
{
    request->task.run = on_back;
    hps_stages_enter(&request->stages, HPS_STAGE_LOOP);
    request_to_loop(request, &request->task);
}

/* ---- workers and I/O threads ----------------------------------------------------------------- */

hps_status request_post(struct request *request, struct hps_pool *pool, uint64_t cost,
                        void (*run)(struct hps_task *task))
{
    hps_stages_enter(&request->stages, HPS_STAGE_QUEUE);
    request->task.run = run;
    return hps_pool_post_for(pool, &request->task, hps_grpc_call_client(request->call.grpc), cost,
                             &request->err);
}

/* Posts a step to `pool`. */
static enum hps_outcome post(struct request *request, struct hps_pool *pool, uint64_t cost,
                             void (*run)(struct hps_task *task))
{
    HPS_ASSERT(request->phase == PHASE_LOOP);
    if (request_post(request, pool, cost, run) != HPS_OK) {
        hps_stages_enter(&request->stages, HPS_STAGE_WORK);
        return HPS_OUTCOME_BUSY;
    }
    request->pool = pool;
    return HPS_OUTCOME_OVER;
}

/* The time that a step of the lookup takes in memory. A store may need more. */
static uint64_t cost_of(const struct hps_lookup *lookup)
{
    uint64_t bytes = lookup->rows_bytes + request_pooled_bytes(lookup);

    return lookup->n_keys * HPS_COST_KEY + bytes / 4; /* rows are copied at 4 GB/s */
}

/* Worker or I/O thread. */
static enum hps_outcome end_cancelled(struct request *request)
{
    hps_error_set(&request->err, HPS_CANCELLED, "the client disconnected");
    return HPS_OUTCOME_ERROR;
}

/* Worker or I/O thread: does the step, unless the client has disconnected. A REREAD is done in any
 * case: its lookup has all rows, so there is nothing to abandon. */
static enum hps_outcome do_step(struct request *request)
{
    bool open = request->lookup_state.step != HPS_STEP_REREAD;

    if (open && hps_grpc_call_cancelled(request->call.grpc)) {
        hps_lookup_abandon(&request->lookup);
        return end_cancelled(request);
    }
    return hps_lookup_step(&request->lookup, request->lookup_state.step, &request->err);
}

/* Worker thread: does a step of a large lookup. */
static void on_worker(struct hps_task *task)
{
    struct request *request = HPS_CONTAINER_OF(task, struct request, task);

    hps_stages_enter(&request->stages, HPS_STAGE_WORK);
    request->lookup.helpers = request->service->parts.workers;
    request->outcome = do_step(request);
    post_back(request);
}

enum hps_outcome request_to_worker(struct request *request)
{
    enum hps_outcome outcome =
        post(request, request->service->parts.workers, cost_of(&request->lookup), on_worker);

    request->phase = outcome == HPS_OUTCOME_BUSY ? PHASE_LOOP : PHASE_WORKER;
    return outcome;
}

/* I/O thread: does the step in tiers that may block. If updates have changed rows since, it reads
 * them again here. */
static void on_io(struct hps_task *task)
{
    struct request *request = HPS_CONTAINER_OF(task, struct request, task);

    hps_stages_enter(&request->stages, HPS_STAGE_WORK);
    request->outcome = do_step(request);
    struct hps_lookup_state next =
        hps_lookup_state_next(&request->lookup_state, request->outcome, false);
    if (next.step == HPS_STEP_REREAD) {
        request->lookup_state = next;
        request->outcome = hps_lookup_step(&request->lookup, next.step, &request->err);
    }
    post_back(request);
}

enum hps_outcome request_to_io(struct request *request)
{
    bool stores = request->lookup_state.step == HPS_STEP_STORES;
    bool waits = stores && request->lookup_state.miss_policy == HPS_MISS_WAIT;
    uint64_t deadline_us = request->lookup.wait_deadline_us;

    HPS_ASSERT(stores || request->lookup_state.step == HPS_STEP_REREAD);
    enum hps_outcome outcome =
        post(request, request->service->parts.io, cost_of(&request->lookup), on_io);
    if (outcome == HPS_OUTCOME_BUSY) {
        return outcome;
    }
    request->phase = PHASE_IO;
    if (waits) {
        hps_timer_set(request->loop, &request->timer, deadline_us);
    }
    return outcome;
}

bool request_withdraw(struct request *request)
{
    HPS_ASSERT(request->pool != NULL);
    if (!hps_pool_withdraw(request->pool, &request->task)) {
        return false; /* a thread runs it and will post it back */
    }
    request_arrive(request);
    return true;
}

/* ---- the gpu --------------------------------------------------------------------------------- */

/* The gpu has answered a query that is in PHASE_GPU or that was left. */
static void on_gpu(struct hps_task *task)
{
    struct request *request = HPS_CONTAINER_OF(task, struct request, gpu.task);

    request_turn_begin(request);
    if (request->gpu.left_version != NULL) {
        hps_version_unpin(request->gpu.left_version);
        request->gpu.left_version = NULL;
        if (request->exchange != NULL) {
            exchange_sent(request->exchange);
        }
    } else {
        HPS_ASSERT(request->phase == PHASE_GPU);
        hps_stages_enter_at(&request->stages, HPS_STAGE_LOOP, request->gpu.done_us);
        request_arrive(request);
        request_advance(request, HPS_OUTCOME_OVER);
    }
    request_turn_end(request);
}

/* The gpu tier's thread. */
void request_gpu_done(struct hps_lookup *lookup)
{
    struct request *request = HPS_CONTAINER_OF(lookup, struct request, lookup);

    request->gpu.done_us = hps_clock_us();
    request->gpu.task.run = on_gpu;
    request_to_loop(request, &request->gpu.task);
}

enum hps_outcome request_to_gpu(struct request *request)
{
    HPS_ASSERT(request->phase == PHASE_LOOP);
    if (request->lookup_state.has_gpu) {
        hps_stages_enter(&request->stages, HPS_STAGE_GPU);
    }
    if (!hps_lookup_ask_gpu(&request->lookup)) {
        hps_stages_enter(&request->stages, HPS_STAGE_WORK);
        return HPS_OUTCOME_REFUSED;
    }
    request->phase = PHASE_GPU;
    if (request->lookup.gpu_deadline_us != 0) {
        hps_timer_set(request->loop, &request->timer, request->lookup.gpu_deadline_us);
    }
    return HPS_OUTCOME_OVER;
}

/* The reply releases the request's pin, but the gpu uses the version until it answers. */
void request_leave_gpu(struct request *request)
{
    HPS_ASSERT(request->phase == PHASE_GPU);
    HPS_ASSERT(request->gpu.left_version == NULL);
    request->gpu.left_version = request->lookup.version;
    hps_version_pin(request->gpu.left_version);
    hps_lookup_leave_gpu(&request->lookup);
    request_arrive(request);
}

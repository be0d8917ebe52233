/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests that want a unit: one may find that updates came between its rows. Then an I/O thread
 * reads those again that they have changed, and at last, if they come each time, while it holds
 * them back. For that it stands in line without a thread (cache/update/update.h), and holds nothing
 * back until it is read; a client that has had its share waits a little and tries again. Or it
 * finds that the only copy of a row, which other daemons update too, is ahead of them: then it
 * waits a little, on no thread, for its own updates, and is looked up from the beginning. On the
 * loop thread, but for the reading.
 */
#include "server/lookup/internal.h"

enum {
    UNIT_WAIT_US = 1000, /* the first time; then each time twice as long: a second in all */
    UNIT_WAITS_MAX = 10
};

/* Once more, and the times of what was in vain are kept. */
static void try_again(struct request *request)
{
    hps_stages_enter(&request->stages, HPS_STAGE_WORK);
    request_name_work(request);
    hps_lookup_again(&request->lookup);
    request_start_try(request);
}

/* Wait for updates, or for what a client may have. False: it has waited for long enough. */
static bool wait_a_little(struct request *request)
{
    if (request->n_waits == UNIT_WAITS_MAX) {
        return false;
    }
    request->unit_waits = true;
    hps_stages_enter(&request->stages, HPS_STAGE_UNIT);
    hps_timer_set_after(request->loop, &request->wait_timer,
                        (uint64_t)UNIT_WAIT_US << request->n_waits++);
    return true;
}

/* ---- beside updates -------------------------------------------------------------------------- */

void request_reread(struct request *request)
{
    request->reread = true;
    request->status = hps_lookup_reread(&request->lookup, HPS_LOOKUP_REREADS_MAX, &request->err);
}

/* I/O thread. It has been read whole: there is nothing to abandon. */
static void on_reread(struct hps_task *task)
{
    struct request *request = CONTAINER_OF(task, struct request, task);

    hps_stages_enter(&request->stages, HPS_STAGE_WORK);
    request_reread(request);
    request_post_back(request, request_io_done);
}

static void hand_to_reread(struct request *request)
{
    request_hold(request);
    request->rereads = true;
    if (request_post_to(request, request->service->parts.io, "the I/O threads", on_reread) !=
        HPS_OK) {
        request_reject(request, HPS_REJECT_WORKERS, &request->err);
        request_drop(request);
    }
}

/* ---- while updates are held back ------------------------------------------------------------- */

/* It may be possible without, or later. */
static void wait_for_share(struct request *request)
{
    struct hps_error err;

    if (request->closed || wait_a_little(request)) {
        return;
    }
    hps_error_set(&err, HPS_EXHAUSTED,
                  "consistency: updates came each time, and have been held back for this client "
                  "for %d ms a second, which is the limit; ask for fewer keys at a time",
                  HPS_UPDATE_HOLD_US_PER_S / 1000);
    request_reject(request, HPS_REJECT_HOLDS, &err);
}

/* Rows have been read while updates were held back; or they are held back for this client no
 * more. */
static void on_hold_done(struct hps_task *task)
{
    struct request *request = CONTAINER_OF(task, struct request, task);

    request->hold_waits = false;
    hps_stages_enter(&request->stages, HPS_STAGE_WORK);
    if (request->held) {
        request_finish(request, request->status, &request->err);
    } else {
        wait_for_share(request);
    }
    request_drop(request);
}

/* I/O thread. */
static void on_hold(struct hps_update_hold *hold, bool held)
{
    struct request *request = CONTAINER_OF(hold, struct request, hold);

    hps_stages_enter(&request->stages, HPS_STAGE_WORK);
    request->held = held;
    if (hps_grpc_call_cancelled(request->call)) {
        request->status = hps_error_set(&request->err, HPS_CANCELLED, "the client is gone");
    } else if (held) {
        request->status = hps_lookup_reread(&request->lookup, 1, &request->err);
    }
    request_post_back(request, on_hold_done);
}

static void stand_in_line(struct request *request)
{
    struct hps_error err;

    request_hold(request); /* until on_hold_done */
    hps_stages_enter(&request->stages, HPS_STAGE_UNIT);
    request->hold.run = on_hold;
    request->hold.client = hps_grpc_call_client(request->call);
    request->hold_waits = true; /* it is not ours when it waits */
    hps_status status =
        hps_update_hold(request->lookup.version, request->service->parts.io, &request->hold);
    if (status == HPS_OK) {
        return;
    }
    request->hold_waits = false;
    if (status == HPS_AGAIN) {
        wait_for_share(request);
    } else {
        hps_error_set(&err, status, "%zu look-ups wait for the I/O threads already",
                      hps_pool_depth(request->service->parts.io));
        request_reject(request, HPS_REJECT_WORKERS, &err);
    }
    request_drop(request);
}

/* ---- what comes next ------------------------------------------------------------------------- */

void request_finish_torn(struct request *request, const struct hps_error *err)
{
    const struct hps_lookup *lookup = &request->lookup;
    struct hps_error last = *err;

    if (request->closed) {
        return;
    }
    if (lookup->torn && !request->reread) {
        hand_to_reread(request);
        return;
    }
    if (lookup->torn && !request->held) {
        stand_in_line(request);
        return;
    }
    if (lookup->ahead && wait_a_little(request)) { /* the updates that it is ahead by may come */
        request->n_tries--;
        return;
    }
    if (!lookup->torn && !lookup->ahead && request->n_tries < HPS_LOOKUP_TRIES_MAX) {
        try_again(request);
        return;
    }
    last.status = HPS_UNAVAILABLE;
    request_fail(request, last.status, &last);
}

void request_unit_resume(struct request *request)
{
    request->unit_waits = false;
    if (request->lookup.torn) {
        hand_to_reread(request);
    } else {
        try_again(request);
    }
}

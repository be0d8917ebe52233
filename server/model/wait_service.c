/* SPDX-License-Identifier: Apache-2.0
 *
 * WaitForUpdates, from the message to the reply: see server/model/service.h.
 */
#include "server/model/service.h"

#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/container.h"
#include "base/rows/update_record.h"
#include "server/access/access.h"
#include "server/lookup/known.h"
#include "server/model/wait.h"

enum {
    ARENA_BYTES_MAX = 512 * 1024, /* held while the call waits */
    WAIT_MS_MAX = 3600 * 1000
};

struct waiting {
    struct hps_unary op;
    struct hps_update_waiter waiter;
    struct hps_timer timer; /* max_wait_ms */
    struct hps_wait wait;
    bool moved; /* another version is active now, so the wait moves to it */
    Hps__V1__WaitForUpdatesResponse reply;
};

/* ---- the reply; any thread ------------------------------------------------------------------- */

static void finish(struct waiting *waiting)
{
    struct hps_wait *wait = &waiting->wait;
    waiting->reply = (Hps__V1__WaitForUpdatesResponse){
        .base = PROTOBUF_C_MESSAGE_INIT(&hps__v1__wait_for_updates_response__descriptor),
        .outcome = wait->outcome,
        .text = wait->why.text,
        .version = waiting->op.version,
        .topic = wait->topic,
        .partition = wait->partition,
        .offset = wait->offset,
        .mark = &wait->mark,
        .key_bytes = wait->key_bytes};
    waiting->op.reply = &waiting->reply.base;
    hps_unary_finish(&waiting->op);
}

/* Loop thread: the time to wait has passed, or the call has ended. */
static void end(struct waiting *waiting)
{
    const struct hps_model_service_parts *parts = waiting->op.parts;
    if (parts->updater != NULL && hps_updater_wait_end(parts->updater, &waiting->waiter)) {
        finish(waiting);
    }
}

static void on_time(void *ctx)
{
    end(ctx);
}

static void on_closed(struct hps_unary *op)
{
    end((struct waiting *)op);
}

static void fini(struct hps_unary *op)
{
    hps_timer_stop(&((struct waiting *)op)->timer);
}

/* ---- waiting --------------------------------------------------------------------------------- */

static bool has_moved(const struct waiting *waiting)
{
    const struct hps_model_service_parts *parts = waiting->op.parts;
    const Hps__V1__WaitForUpdatesRequest *request = waiting->wait.request;
    struct hps_version *active;
    struct hps_error none;
    if (request->version != 0 ||
        hps_models_pin(parts->models, request->model, strlen(request->model), 0, &active, &none) !=
            HPS_OK) {
        return false;
    }
    bool moved = active->number != waiting->op.version;
    hps_version_unpin(active);
    return moved;
}

/* Thread `update`, or the worker that begins the wait. Under the lock of waits. */
static enum hps_update_check on_check(struct hps_update_waiter *waiter,
                                      const struct hps_stream_view *view)
{
    struct waiting *waiting = HPS_CONTAINER_OF(waiter, struct waiting, waiter);
    enum hps_update_check look = hps_wait_look(&waiting->wait, view, waiter->refreshed);
    waiting->moved = has_moved(waiting);
    return waiting->moved ? HPS_UPDATE_CHECK_DONE : look;
}

/* Waits again, for the version that is active now. The lock of waits is held, so if the call ends
 * from here on, hps_updater_wait returns CANCELLED. */
static hps_status begin_again(struct waiting *waiting)
{
    int64_t begin_ms = waiting->wait.begin_ms;
    hps_wait_init(&waiting->wait, waiting->wait.request);
    waiting->wait.begin_ms = begin_ms;
    waiting->waiter.state = HPS_UPDATE_WAITER_NEW;
    return hps_unary_post(&waiting->op);
}

/* Threads as on_check, and any thread that ends the wait. Under the lock of waits. */
static void on_done(struct hps_update_waiter *waiter, enum hps_update_end end)
{
    struct waiting *waiting = HPS_CONTAINER_OF(waiter, struct waiting, waiter);
    bool moved = end == HPS_UPDATE_END_DONE ? waiting->moved
                                            : end == HPS_UPDATE_END_VERSION && has_moved(waiting);
    if (moved && begin_again(waiting) == HPS_OK) {
        return;
    }
    if (end == HPS_UPDATE_END_STOPS) {
        hps_ignore(hps_error_set(&waiting->op.error, HPS_UNAVAILABLE, "the server stops"));
    } else if (end == HPS_UPDATE_END_VERSION) {
        hps_wait_end(&waiting->wait, waiting->op.version);
    }
    finish(waiting);
}

/* False: the version does not have the table of the topic. The reply says so. */
static bool has_table(struct waiting *waiting, const struct hps_version *version, const char *topic)
{
    struct hps_update_topic of;
    if (topic[0] == '\0' || !hps_update_topic_parse(topic, &of) || of.table[0] == '\0' ||
        hps_version_table(version, of.table, strlen(of.table)) != UINT32_MAX) {
        return true;
    }
    hps_wait_no_table(&waiting->wait, version->number, topic, of.table);
    return false;
}

/* OK: the wait has begun, and on_done finishes the call. Otherwise the caller finishes it. */
static hps_status begin(struct waiting *waiting)
{
    const struct hps_model_service_parts *parts = waiting->op.parts;
    const Hps__V1__WaitForUpdatesRequest *request = waiting->wait.request;
    struct hps_error *err = &waiting->op.error;
    struct hps_version *version;
    if (parts->updater == NULL) {
        return hps_error_set(err, HPS_PRECONDITION,
                             "update_source.type is null: the server applies no updates");
    }
    hps_status status = hps_models_pin(parts->models, request->model, strlen(request->model),
                                       request->version, &version, err);
    if (status != HPS_OK) {
        if (status == HPS_NOT_FOUND && request->version == 0) {
            hps_known_models(parts->models, waiting->op.call, HPS_ROLE_LOOKUP, err);
        }
        return status;
    }
    bool known = has_table(waiting, version, request->topic);
    for (size_t i = 0; i < request->n_records && known; i++) {
        known = has_table(waiting, version, request->records[i]->topic);
    }
    waiting->op.version = version->number;
    hps_version_unpin(version);
    if (!known) {
        return HPS_NOT_FOUND;
    }
    status = hps_updater_wait(parts->updater, request->model, waiting->op.version, &waiting->waiter,
                              err);
    if (status == HPS_CANCELLED) { /* max_wait_ms has passed, or the call has ended */
        err->status = HPS_OK;
    }
    return status;
}

static void wait_for_updates(struct hps_unary *op)
{
    struct waiting *waiting = (struct waiting *)op;
    if (begin(waiting) != HPS_OK) {
        finish(waiting);
    }
}

/* Loop thread. */
static hps_status read_request(struct hps_unary *op)
{
    struct waiting *waiting = (struct waiting *)op;
    const Hps__V1__WaitForUpdatesRequest *request =
        (const Hps__V1__WaitForUpdatesRequest *)op->request;
    const struct hps_access_grant *grant = hps_access_grant_of(op->call);
    uint64_t wait_ms = request->max_wait_ms;
    wait_ms = wait_ms == 0 || wait_ms > WAIT_MS_MAX ? WAIT_MS_MAX : wait_ms;
    if (op->model[0] == '\0') {
        return hps_error_set(&op->error, HPS_INVALID, "model: empty");
    }
    waiting->waiter.check = on_check;
    waiting->waiter.done = on_done;
    waiting->waiter.client = grant != NULL ? hps_access_grant_account(grant) : NULL;
    hps_wait_init(&waiting->wait, request);
    hps_timer_init(&waiting->timer, on_time, waiting);
    hps_timer_set(hps_grpc_call_loop(op->call), &waiting->timer, hps_clock_us() + wait_ms * 1000);
    return hps_wait_check(request, &op->error);
}

static const struct hps_unary_method methods[] = {
    {.path = "/hps.v1.ParameterServer/WaitForUpdates",
     .request = &hps__v1__wait_for_updates_request__descriptor,
     .work = wait_for_updates,
     .place = HPS_UNARY_WORKER,
     .kind = HPS_UNARY_WAITS,
     .scope = HPS_UNARY_MODEL,
     .roles = HPS_ROLE_LOOKUP},
};

struct hps_unary_service *hps_wait_service_new(const struct hps_model_service_parts *parts)
{
    HPS_ASSERT(parts->models != NULL && parts->workers != NULL);
    const struct hps_unary_options options = {.name = "hps.v1.ParameterServer",
                                              .methods = methods,
                                              .n_methods = 1,
                                              .parts = parts,
                                              .parts_bytes = sizeof(*parts),
                                              .workers = parts->workers,
                                              .op_bytes = sizeof(struct waiting),
                                              .arena_bytes_max = ARENA_BYTES_MAX,
                                              .read = read_request,
                                              .closed = on_closed,
                                              .fini = fini};
    return hps_unary_service_new(&options);
}

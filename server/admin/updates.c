/* SPDX-License-Identifier: Apache-2.0
 *
 * Admin methods for updates: the state of each version's updates, and the operator's commands to
 * pause, move and repair them. They begin on the admin pool; no thread waits for a refresh or a
 * command.
 */
#include <inttypes.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "hps/v1/admin.pb-c.h"
#include "server/access/access.h"
#include "server/admin/op.h"
#include "server/update/updates.h"

enum { REFRESH_US_MAX = 5 * 1000 * 1000 };

/* ---- views ----------------------------------------------------------------------------------- */

struct update_list {
    struct hps_unary *op;
    Hps__V1__GetUpdatesResponse *reply;
};

/* Whether the request names the version, and the caller may see it. */
static bool is_listed(const struct hps_unary *op, const char *model, int64_t version)
{
    const Hps__V1__GetUpdatesRequest *request = (const Hps__V1__GetUpdatesRequest *)op->request;
    return (request->model[0] == '\0' || strcmp(request->model, model) == 0) &&
           (request->version == 0 || request->version == version) && hps_unary_sees(op, model);
}

static void add_partition(struct hps_unary *op, const struct hps_partition_view *view,
                          Hps__V1__VersionUpdates *version)
{
    Hps__V1__PartitionUpdates *of = hps_unary_add(op, &hps__v1__partition_updates__descriptor,
                                                  &version->partitions, &version->n_partitions);
    if (of != NULL) {
        of->topic = hps_unary_text(op, view->topic);
        of->partition = view->partition;
        of->state = (char *)hps_partition_state_text(view->state);
        of->offset = view->next;
        of->end_offset = view->high;
        of->lag_record_count = view->lag;
        of->lag_unknown = !view->lag_known;
        of->as_of_unix_ms = hps_clock_wall_of(view->as_of_ms);
        of->lag_ms = hps_partition_lag_ms(view);
        of->end_unix_ms = hps_clock_wall_of(view->response_asked_ms);
        of->records_per_s = view->records_per_s;
        of->passed_over_offset = view->skipped;
        of->passed_over_end_offset = view->skipped_end;
        of->reason = hps_unary_text(op, view->reason);
    }
}

static void add_rejected(struct hps_unary *op, const struct hps_rejected_view *view,
                         Hps__V1__VersionUpdates *version)
{
    Hps__V1__RejectedRecord *of =
        hps_unary_add(op, &hps__v1__rejected_record__descriptor, &version->rejected_records,
                      &version->n_rejected_records);
    if (of != NULL) {
        of->topic = hps_unary_text(op, view->topic);
        of->partition = view->partition;
        of->offset = view->offset;
        of->reason = hps_unary_text(op, view->reason);
        of->message = hps_unary_text(op, view->text);
        of->unix_ms = hps_clock_wall_of(view->read_ms);
    }
}

static void add_version(struct hps_unary *op, const struct hps_stream_view *view,
                        Hps__V1__GetUpdatesResponse *reply)
{
    HPS_ASSERT(view->n_partitions == 0 || view->partitions != NULL);
    Hps__V1__VersionUpdates *of = hps_unary_add(op, &hps__v1__version_updates__descriptor,
                                                &reply->versions, &reply->n_versions);
    if (of == NULL) {
        return;
    }
    of->model = hps_unary_text(op, view->model);
    of->version = view->version;
    of->lineage = hps_unary_text(op, view->lineage);
    of->active = view->active;
    of->frozen = view->frozen;
    of->listed = view->listed;
    of->connected = view->connected;
    of->connection_error = hps_unary_text(op, view->connection_error);
    of->held = hps_unary_text(op, view->held);
    of->shared_tier = hps_unary_text(op, view->shared_apart    ? "apart"
                                         : view->shared_behind ? "behind"
                                                               : "");
    of->update_sequence = view->sequence;
    of->record_count = view->n_records;
    of->rejected_record_count = view->n_rejected;
    of->key_count = view->n_keys;
    of->event_time_unix_ms = view->event_time_ms;
    of->as_of_unix_ms = hps_clock_wall_of(view->as_of_ms);
    of->records_per_s = view->records_per_s;
    of->keys_per_s = view->keys_per_s;
    for (uint32_t i = 0; i < view->n_rejected_views; i++) {
        add_rejected(op, &view->rejected[i], of);
    }
    for (uint32_t i = 0; i < view->n_partitions; i++) {
        add_partition(op, &view->partitions[i], of);
    }
}

static void add_stream(void *ctx, const struct hps_stream_view *view)
{
    struct update_list *list = ctx;
    if (is_listed(list->op, view->model, view->version)) {
        add_version(list->op, view, list->reply);
    }
}

static void say_none(struct hps_unary *op, const Hps__V1__GetUpdatesRequest *request)
{
    if (request->version != 0) {
        hps_ignore(hps_error_set(&op->error, HPS_NOT_FOUND,
                                 "model \"%s\" has no version %" PRId64 " that takes updates",
                                 request->model, request->version));
    } else {
        hps_ignore(hps_error_set(&op->error, HPS_NOT_FOUND,
                                 "model \"%s\" has no version that takes updates", request->model));
    }
}

static void list_updates(struct hps_unary *op)
{
    const Hps__V1__GetUpdatesRequest *request = (const Hps__V1__GetUpdatesRequest *)op->request;
    Hps__V1__GetUpdatesResponse *reply =
        hps_unary_message(op, &hps__v1__get_updates_response__descriptor);
    if (reply == NULL) {
        return;
    }
    struct update_list list = {op, reply};
    hps_updater_each(admin_parts(op)->updater, add_stream, &list);
    if (reply->n_versions == 0 && request->model[0] != '\0') {
        say_none(op, request);
        return;
    }
    reply->unix_ms = admin_of(op)->begin_unix_ms;
    op->reply = &reply->base;
}

/* ---- refresh --------------------------------------------------------------------------------- */

static bool on_wants(struct hps_update_waiter *waiter, const char *model, int64_t version)
{
    return is_listed(&HPS_CONTAINER_OF(waiter, struct admin_op, refresh)->rpc, model, version);
}

/* A version is refreshed, or takes no more updates: look at the others. Thread `update`, or the one
 * that ends the waits. */
static void on_refreshed(struct hps_update_waiter *waiter, enum hps_update_end end)
{
    struct hps_unary *op = &HPS_CONTAINER_OF(waiter, struct admin_op, refresh)->rpc;
    waiter->state = HPS_UPDATE_WAITER_NEW;
    hps_status status = end == HPS_UPDATE_END_STOPS
                            ? hps_error_set(&op->error, HPS_UNAVAILABLE, "the server stops")
                            : hps_unary_post(op);
    if (status != HPS_OK) {
        hps_unary_finish(op);
    }
}

static void say_late(struct hps_unary *op)
{
    hps_ignore(hps_error_set(&op->error, HPS_UNAVAILABLE,
                             "the updates were not refreshed within %d s; request them without a "
                             "refresh to see the last known state",
                             REFRESH_US_MAX / 1000000));
}

void admin_end_updates(struct hps_unary *op)
{
    struct hps_updater *updater = admin_parts(op)->updater;
    if (updater != NULL && hps_updater_wait_end(updater, &admin_of(op)->refresh)) {
        say_late(op);
        hps_unary_finish(op);
    }
}

static void on_late(void *ctx)
{
    admin_end_updates(ctx);
}

void admin_begin_updates(struct hps_unary *op)
{
    struct admin_op *own = admin_of(op);
    const struct hps_access_grant *grant = hps_access_grant_of(op->call);
    own->begin_unix_ms = (int64_t)hps_clock_wall_ms();
    own->refresh.wants = on_wants;
    own->refresh.done = on_refreshed;
    own->refresh.client = grant != NULL ? hps_access_grant_account(grant) : NULL;
    hps_timer_init(&own->timer, on_late, op);
    hps_timer_set_after(hps_grpc_call_loop(op->call), &own->timer, REFRESH_US_MAX);
}

/* Runs again each time that on_refreshed has posted it. */
void admin_get_updates(struct hps_unary *op)
{
    const Hps__V1__GetUpdatesRequest *request = (const Hps__V1__GetUpdatesRequest *)op->request;
    struct hps_updater *updater = admin_parts(op)->updater;
    hps_status status = HPS_OK;
    if (updater == NULL) {
        status = hps_error_set(&op->error, HPS_PRECONDITION,
                               "update_source.type is null: the server applies no updates");
    } else if (request->refresh) {
        status = hps_updater_refresh(updater, &admin_of(op)->refresh, &op->error);
    }
    if (status == HPS_AGAIN) {
        return; /* on_refreshed may have passed `op` on */
    }
    if (status == HPS_CANCELLED) {
        say_late(op);
    } else if (status == HPS_OK) {
        list_updates(op);
    }
    hps_unary_finish(op);
}

/* ---- commands -------------------------------------------------------------------------------- */

static bool command_kind(Hps__V1__UpdateAction action, enum hps_update_command_kind *out_kind)
{
    switch (action) {
    case HPS__V1__UPDATE_ACTION__UPDATE_ACTION_PAUSE:
        *out_kind = HPS_UPDATE_PAUSE;
        return true;
    case HPS__V1__UPDATE_ACTION__UPDATE_ACTION_RESUME:
        *out_kind = HPS_UPDATE_RESUME;
        return true;
    case HPS__V1__UPDATE_ACTION__UPDATE_ACTION_SEEK:
        *out_kind = HPS_UPDATE_SEEK;
        return true;
    case HPS__V1__UPDATE_ACTION__UPDATE_ACTION_ACCEPT_GAP:
        *out_kind = HPS_UPDATE_ACCEPT_GAP;
        return true;
    default:
        return false;
    }
}

static bool seek_target(Hps__V1__SeekTarget target, enum hps_update_seek *out_to)
{
    switch (target) {
    case HPS__V1__SEEK_TARGET__SEEK_TARGET_OFFSET:
        *out_to = HPS_UPDATE_SEEK_OFFSET;
        return true;
    case HPS__V1__SEEK_TARGET__SEEK_TARGET_EARLIEST:
        *out_to = HPS_UPDATE_SEEK_EARLIEST;
        return true;
    case HPS__V1__SEEK_TARGET__SEEK_TARGET_LATEST:
        *out_to = HPS_UPDATE_SEEK_LATEST;
        return true;
    case HPS__V1__SEEK_TARGET__SEEK_TARGET_TIME:
        *out_to = HPS_UPDATE_SEEK_TIME;
        return true;
    default:
        return false;
    }
}

static hps_status read_command(const Hps__V1__ControlUpdatesRequest *request,
                               struct hps_update_command *out_command, struct hps_error *err)
{
    struct hps_update_command command = {.model = request->model,
                                         .version = request->version,
                                         .topic = request->topic,
                                         .partition =
                                             request->one_partition ? request->partition : -1,
                                         .value = request->seek_value};
    if (!command_kind(request->action, &command.kind)) {
        return hps_error_set(err, HPS_INVALID, "action: got %d, expected 1 to 4",
                             (int)request->action);
    }
    if (request->one_partition && request->partition < 0) {
        return hps_error_set(err, HPS_INVALID, "partition: got %d, expected 0 or more",
                             request->partition);
    }
    if (command.kind == HPS_UPDATE_SEEK && !seek_target(request->seek_target, &command.to)) {
        return hps_error_set(err, HPS_INVALID, "seek_target: got %d, expected 1 to 4",
                             (int)request->seek_target);
    }
    if (command.kind == HPS_UPDATE_SEEK && command.value < 0) {
        return hps_error_set(err, HPS_INVALID,
                             "seek_value: got a negative number, expected 0 or more");
    }
    *out_command = command;
    return HPS_OK;
}

static void on_command(struct hps_update_work *work)
{
    struct hps_unary *op = &HPS_CONTAINER_OF(work, struct admin_op, command)->rpc;
    op->error = work->error;
    Hps__V1__ControlUpdatesResponse *reply =
        work->error.status == HPS_OK
            ? hps_unary_message(op, &hps__v1__control_updates_response__descriptor)
            : NULL;
    if (reply != NULL) {
        reply->partition_count = work->n;
        op->reply = &reply->base;
    }
    hps_unary_finish(op);
}

void admin_control_updates(struct hps_unary *op)
{
    const Hps__V1__ControlUpdatesRequest *request =
        (const Hps__V1__ControlUpdatesRequest *)op->request;
    struct hps_update_work *work = &admin_of(op)->command;
    op->version = request->version;
    if (read_command(request, &work->command, &op->error) == HPS_OK) {
        work->done = on_command;
        hps_updater_command(admin_parts(op)->updater, work);
    } else {
        hps_unary_finish(op);
    }
}

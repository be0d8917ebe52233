/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of admin methods, and the progress stream of a load.
 */
#include "server/admin/service.h"

#include "base/assert.h"
#include "hps/v1/admin.pb-c.h"
#include "server/access/access.h"
#include "server/admin/op.h"

enum { ARENA_BYTES_MAX = 64 << 20, PROGRESS_PERIOD_US = 200 * 1000 };

static const struct hps_unary_method methods[] = {
#define METHOD_ON(place_, name, type, work_, kind_, role, scope_)                         \
    {                                                                                     \
        .path = "/hps.v1.Admin/" name, .request = &hps__v1__##type##_request__descriptor, \
        .work = work_, .place = HPS_UNARY_##place_, .kind = HPS_UNARY_##kind_,            \
        .scope = HPS_UNARY_##scope_, .roles = role                                        \
    }
#define METHOD(...) METHOD_ON(ADMIN, __VA_ARGS__)
    /* On the loop: operators need these while all admin threads are busy. */
    METHOD_ON(LOOP, "Ping", ping, admin_ping, READS, HPS_ROLES_ALL, ANY),
    METHOD_ON(LOOP, "SetLogLevel", set_log_level, admin_set_log_level, CHANGES, HPS_ROLE_ADMIN,
              SERVER),
    METHOD_ON(LOOP, "Drain", drain, admin_drain, CHANGES, HPS_ROLE_ADMIN, SERVER),
    METHOD("GetStatus", get_status, admin_get_status, READS, HPS_ROLE_READ, SERVER),
    METHOD("ListModels", list_models, admin_list_models, READS, HPS_ROLE_READ, LISTS),
    METHOD("ListTables", list_tables, admin_list_tables, READS, HPS_ROLE_READ, LISTS),
    {.path = "/hps.v1.Admin/LoadModel",
     .request = &hps__v1__load_model_request__descriptor,
     .work = admin_load_model,
     .place = HPS_UNARY_ADMIN,
     .kind = HPS_UNARY_CHANGES,
     .scope = HPS_UNARY_MODEL,
     .roles = HPS_ROLE_LOAD,
     .request_bytes_max = HPS_REQUEST_BYTES_MAX + HPS_ENTRY_BYTES_MAX}, /* of models[] */
    METHOD("ActivateVersion", activate_version, admin_activate, CHANGES_LATER, HPS_ROLE_LOAD,
           MODEL),
    METHOD("RollbackModel", rollback_model, admin_rollback, CHANGES, HPS_ROLE_LOAD, MODEL),
    METHOD("UnloadVersion", unload_version, admin_unload, CHANGES_LATER, HPS_ROLE_LOAD, MODEL),
    METHOD("GetStats", get_stats, admin_get_stats, READS, HPS_ROLE_READ, LISTS),
    METHOD("ExplainKey", explain_key, admin_explain_key, TELLS, HPS_ROLE_READ, MODEL),
    METHOD("GetSlowLog", get_slow_log, admin_get_slow_log, TELLS, HPS_ROLE_READ, LISTS),
    METHOD("ResetSlowLog", reset_slow_log, admin_reset_slow_log, CHANGES, HPS_ROLE_ADMIN, SERVER),
    METHOD("GetUpdates", get_updates, admin_get_updates, WAITS, HPS_ROLE_READ, LISTS),
    METHOD("ControlUpdates", control_updates, admin_control_updates, CHANGES_LATER, HPS_ROLE_ADMIN,
           MODEL),
    METHOD("CreateSnapshot", create_snapshot, admin_create_snapshot, CHANGES, HPS_ROLE_ADMIN,
           SERVER),
    METHOD("ExportVersion", export_version, admin_export_version, CHANGES, HPS_ROLE_ADMIN, MODEL),
    METHOD("GetConfig", get_config, admin_get_config, TELLS, HPS_ROLE_ADMIN, SERVER),
#undef METHOD
#undef METHOD_ON
};

/* ---- progress -------------------------------------------------------------------------------- */

/* Add the tables that were converted. */
static void put_conversions(struct hps_arena *arena, const struct hps_load *load,
                            Hps__V1__LoadProgress *progress)
{
    uint32_t n = 0;
    const struct hps_load_conversion *all = hps_load_conversions(load, &n);
    Hps__V1__TableConversion *messages = hps_arena_calloc(arena, n + 1, sizeof(*messages));
    Hps__V1__TableConversion **pointers =
        hps_arena_calloc(arena, n + 1, sizeof(Hps__V1__TableConversion *));
    if (messages == NULL || pointers == NULL) {
        return;
    }
    progress->conversions = pointers;
    for (uint32_t i = 0; i < n; i++) {
        if (all[i].from == all[i].to) {
            continue;
        }
        Hps__V1__TableConversion *message = &messages[progress->n_conversions];
        hps__v1__table_conversion__init(message);
        message->table = (char *)(uintptr_t)hps_load_table_name(load, i);
        message->data_type_from = admin_dtype_text(all[i].from);
        message->data_type_to = admin_dtype_text(all[i].to);
        message->error_max = all[i].loss.max;
        message->error_mean = all[i].loss.n > 0 ? all[i].loss.sum / (double)all[i].loss.n : 0;
        pointers[progress->n_conversions++] = message;
    }
}

static void send_progress(struct admin_op *op, struct hps_load_state *state)
{
    Hps__V1__LoadProgress progress = HPS__V1__LOAD_PROGRESS__INIT;
    progress.model = ((const Hps__V1__LoadModelRequest *)op->rpc.request)->model;
    progress.version = state->version;
    progress.stage = (char *)state->stage;
    progress.rows_done = state->rows_done;
    progress.rows_total = state->rows_total;
    progress.bytes_done = state->bytes_done;
    progress.bytes_total = state->bytes_total;
    progress.remaining_ms = state->remaining_ms;
    progress.table = (char *)state->table;
    progress.done = state->done;
    progress.activated = state->activated;
    progress.duplicate_key_count = state->duplicate_keys;
    progress.unload_versions = state->going.numbers;
    progress.n_unload_versions = state->going.n;
    if (state->done || !op->notes_sent) {
        const struct hps_strings *notes = hps_load_notes(op->load);
        progress.notes = notes->items;
        progress.n_notes = notes->n;
        op->notes_sent = true;
    }
    if (state->done) {
        const struct hps_switched *outcome = hps_load_outcome(op->load);
        const struct hps_version_diff *diff = &outcome->diff;
        progress.active_version = outcome->previous;
        progress.row_count = state->n_rows;
        progress.dropped_row_count = state->n_rows_dropped;
        progress.diffs = admin_table_diffs(op->rpc.arena, diff);
        progress.n_diffs = progress.diffs != NULL ? diff->n_tables : 0;
        put_conversions(op->rpc.arena, op->load, &progress);
    }
    hps_message_send(op->rpc.call, &progress.base);
}

static void on_progress(void *ctx)
{
    struct admin_op *op = ctx;
    struct hps_grpc_call *call = op->rpc.call;
    struct hps_load_state state;
    hps_load_state_get(op->load, &state);
    if (state.done && state.error.status != HPS_OK) {
        hps_grpc_call_fail(call, &state.error);
        return;
    }
    /* A client that does not read gets fewer messages, so that no memory accumulates. */
    if (state.done || hps_grpc_call_queued(call) == 0) {
        send_progress(op, &state);
    }
    if (state.done || ((const Hps__V1__LoadModelRequest *)op->rpc.request)->no_wait) {
        hps_grpc_call_finish(call, 0, NULL);
        return;
    }
    hps_timer_set_after(hps_grpc_call_loop(call), &op->timer, PROGRESS_PERIOD_US);
}

void admin_follow_load(struct hps_unary *op)
{
    hps_timer_init(&admin_of(op)->timer, on_progress, op);
    on_progress(op);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static hps_status op_read(struct hps_unary *op)
{
    if (op->method->work == admin_get_updates) {
        admin_begin_updates(op);
    }
    return HPS_OK;
}

static void op_fini(struct hps_unary *op)
{
    hps_timer_stop(&admin_of(op)->timer);
    hps_load_unref(admin_of(op)->load);
}

struct hps_unary_service *hps_admin_service_new(const struct hps_admin_parts *parts)
{
    HPS_ASSERT(parts->pool != NULL && parts->catalog != NULL && parts->models != NULL);
    HPS_ASSERT(parts->status != NULL && parts->drain != NULL && parts->print_config != NULL);
    const struct hps_unary_options options = {.name = "hps.v1.Admin",
                                              .methods = methods,
                                              .n_methods = sizeof(methods) / sizeof(methods[0]),
                                              .parts = parts,
                                              .parts_bytes = sizeof(*parts),
                                              .admin_pool = parts->pool,
                                              .audit = parts->audit,
                                              .op_bytes = sizeof(struct admin_op),
                                              .arena_bytes_max = ARENA_BYTES_MAX,
                                              .read = op_read,
                                              .closed = admin_end_updates,
                                              .fini = op_fini};
    return hps_unary_service_new(&options);
}

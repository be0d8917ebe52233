/* SPDX-License-Identifier: Apache-2.0
 *
 * One admin call while it is worked on: request and answer live in its arena. The work runs on the
 * admin pool; only service.c touches the call, on its loop.
 */
#ifndef HPS_SERVER_ADMIN_OP_H
#define HPS_SERVER_ADMIN_OP_H

#include "server/admin/service.h"
#include "server/rpc/message.h"

struct admin_op {
    struct hps_task task;
    struct hps_grpc_call *call; /* referenced */
    const struct hps_admin_parts *parts;
    struct hps_arena *arena;
    const ProtobufCMessage *request;
    const ProtobufCMessage *reply; /* set by the work, in the arena (or borrowed) */
    const struct admin_method *method;
    struct hps_load *load;    /* LoadModel: the load to report on; taken by the stream */
    struct hps_switch waiter; /* ActivateVersion: its end answers the call */
    struct hps_unload unload; /* UnloadVersion: its end answers the call */
    struct hps_error error;   /* status not OK: the call fails */
    /* For the audit log, set by the work. */
    const char *model;
    int64_t version;
};

/* The work is done: write to the audit log and send the answer. Any thread; gives `op` away. */
void admin_finish(struct admin_op *op);

/* What the audit log has of the call: who asked for what, and how it went. Not a loop thread. */
void admin_audit(const struct admin_op *op, const char *method);
/* The same of a call that was refused before there was any work. Loop thread. */
void admin_audit_refused(const struct hps_admin_parts *parts, const struct hps_grpc_call *call,
                         const char *method, hps_status status, const char *why);

/* From the arena, zeroed; NULL sets op->error. */
void *admin_alloc(struct admin_op *op, size_t count, size_t size);
/* A copy in the arena; "" for NULL or without memory. */
char *admin_text(struct admin_op *op, const char *text);

/* Whether a list for this call may have what is of `model`. */
bool admin_sees(const struct admin_op *op, const char *model);

/* "fp32", "fp16", "bf16": static text. */
char *admin_dtype_text(enum hps_dtype dtype);
struct Hps__V1__TableDiff;
/* Messages of the differences, [diff->n_tables], all in the arena; NULL: no memory. */
struct Hps__V1__TableDiff **admin_table_diffs(struct hps_arena *arena,
                                              const struct hps_version_diff *diff);

/* The work of each method (models.c, state.c, updates.c, snapshot.c). When it returns the call is
 * answered; ActivateVersion and UnloadVersion call admin_finish themselves, once. */
void admin_ping(struct admin_op *op);
void admin_get_status(struct admin_op *op);
void admin_list_models(struct admin_op *op);
void admin_list_tables(struct admin_op *op);
void admin_load_model(struct admin_op *op);
void admin_activate(struct admin_op *op);
void admin_rollback(struct admin_op *op);
void admin_unload(struct admin_op *op);
void admin_get_stats(struct admin_op *op);
void admin_explain_key(struct admin_op *op);
void admin_get_slow_log(struct admin_op *op);
void admin_reset_slow_log(struct admin_op *op);
void admin_get_updates(struct admin_op *op);
void admin_control_updates(struct admin_op *op);
void admin_create_snapshot(struct admin_op *op);
void admin_get_config(struct admin_op *op);
void admin_set_log_level(struct admin_op *op);
void admin_drain(struct admin_op *op);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * One admin call in progress (server/rpc/unary.h). Its work runs on a thread of the admin pool, or
 * on the loop, as the table in service.c says.
 */
#ifndef HPS_SERVER_ADMIN_OP_H
#define HPS_SERVER_ADMIN_OP_H

#include "base/container.h"
#include "server/admin/service.h"
#include "server/rpc/message.h"
#include "server/update/updates.h"

struct admin_op {
    struct hps_unary rpc;
    /* LoadModel: the call streams the progress of this load, and holds a reference to it. */
    struct hps_load *load;
    struct hps_timer timer; /* LoadModel: sends the next message; GetUpdates: ends the wait */
    bool notes_sent;        /* LoadModel: the notes of the load have been sent */
    /* When these are done, the call is answered. */
    struct hps_switch waiter;         /* ActivateVersion */
    struct hps_unload unload;         /* UnloadVersion */
    struct hps_update_waiter refresh; /* GetUpdates */
    struct hps_update_work command;   /* ControlUpdates */
    int64_t begin_unix_ms;            /* GetUpdates: before any query of the log */
};

static inline struct admin_op *admin_of(struct hps_unary *op)
{
    return HPS_CONTAINER_OF(op, struct admin_op, rpc);
}

static inline const struct hps_admin_parts *admin_parts(const struct hps_unary *op)
{
    return op->parts;
}

/* op->follow of LoadModel: stream the progress of the load. Loop thread. */
void admin_follow_load(struct hps_unary *op);

/* GetUpdates: begins the time that a refresh may take. Loop thread. */
void admin_begin_updates(struct hps_unary *op);
/* GetUpdates: ends the refresh, since the time has passed or the call has ended. Loop thread. */
void admin_end_updates(struct hps_unary *op);

/* The name of a row type, such as "fp16". Static text. */
char *admin_dtype_text(enum hps_dtype dtype);
struct Hps__V1__TableDiff;
/* Make a message for each table of `diff`, in the arena. shape: [diff->n_tables]. NULL: out of
 * memory. */
struct Hps__V1__TableDiff **admin_table_diffs(struct hps_arena *arena,
                                              const struct hps_version_diff *diff);

/* The functions below do the work of the methods (models.c, state.c, updates.c, snapshot.c,
 * export.c). */
void admin_ping(struct hps_unary *op);
void admin_get_status(struct hps_unary *op);
void admin_list_models(struct hps_unary *op);
void admin_list_tables(struct hps_unary *op);
void admin_load_model(struct hps_unary *op);
void admin_activate(struct hps_unary *op);
void admin_rollback(struct hps_unary *op);
void admin_unload(struct hps_unary *op);
void admin_get_stats(struct hps_unary *op);
void admin_explain_key(struct hps_unary *op);
void admin_get_slow_log(struct hps_unary *op);
void admin_reset_slow_log(struct hps_unary *op);
void admin_get_updates(struct hps_unary *op);
void admin_control_updates(struct hps_unary *op);
void admin_create_snapshot(struct hps_unary *op);
void admin_export_version(struct hps_unary *op);
void admin_get_config(struct hps_unary *op);
void admin_set_log_level(struct hps_unary *op);
void admin_drain(struct hps_unary *op);

#endif

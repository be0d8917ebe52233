/* SPDX-License-Identifier: Apache-2.0
 *
 * One call of the service while it is worked on: request and answer live in its arena. The work of
 * most methods runs on a worker, of those that may block on the admin pool; only service.c touches
 * the call.
 */
#ifndef HPS_SERVER_KSERVE_OP_H
#define HPS_SERVER_KSERVE_OP_H

#include "base/arena.h"
#include "server/kserve/names.h"
#include "server/kserve/service.h"
#include "server/model/pinned.h"
#include "server/rpc/message.h"

struct kserve_method;

struct kserve_op {
    struct hps_task task;
    struct hps_grpc_call *call; /* referenced */
    const struct hps_kserve_parts *parts;
    struct hps_arena *arena;
    const struct kserve_method *method;
    const ProtobufCMessage *request;

    /* What it is of, if its request says that. */
    const char *name;  /* as asked for */
    const char *model; /* without KSERVE_TABLES */
    bool by_table;     /* the view that has it */
    struct kserve_version version;

    const ProtobufCMessage *reply; /* set by the work, in the arena or static */
    struct hps_error error;        /* status not OK: the call fails */
    struct hps_load *load;         /* the answer waits for its end */
    struct hps_timer timer;
    int64_t audit_version; /* of a change */
};

/* From the arena, zeroed; NULL sets op->error. */
void *kserve_alloc(struct kserve_op *op, size_t count, size_t size);
/* A copy in the arena; "" for NULL. NULL sets op->error. */
char *kserve_text(struct kserve_op *op, const char *text);
char *kserve_number(struct kserve_op *op, int64_t number);
/* Two texts as one. */
char *kserve_join(struct kserve_op *op, const char *first, const char *second);
/* A message without fields that are set; NULL sets op->error. */
void *kserve_message(struct kserve_op *op, const ProtobufCMessageDescriptor *type);
/* An array of pointers to n of them; n may be 0. */
void *kserve_messages(struct kserve_op *op, const ProtobufCMessageDescriptor *type, size_t n);

/* All versions of op->model, if none is asked for; *out_chosen: the one that is, or the active one.
 *
 * owner   the caller, hps_model_unpin; *out_chosen among them
 * error   false: op->error is NOT_FOUND in Triton's words, UNAVAILABLE, EXHAUSTED
 */
bool kserve_pin(struct kserve_op *op, struct hps_model_pinned *out_pinned,
                struct hps_version **out_chosen);

/* The work of each method. */
void kserve_server_live(struct kserve_op *op);
void kserve_server_ready(struct kserve_op *op);
void kserve_server_metadata(struct kserve_op *op);
void kserve_model_ready(struct kserve_op *op);
void kserve_model_metadata(struct kserve_op *op);
void kserve_model_config(struct kserve_op *op);
void kserve_model_statistics(struct kserve_op *op);
void kserve_repository_index(struct kserve_op *op);
void kserve_repository_load(struct kserve_op *op);
void kserve_repository_unload(struct kserve_op *op);
/* No region can be registered: the status is an empty list, and unregister always succeeds. */
void kserve_memory_status(struct kserve_op *op);
void kserve_memory_unregister(struct kserve_op *op);
void kserve_not_built(struct kserve_op *op);

#endif

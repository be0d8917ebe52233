/* SPDX-License-Identifier: Apache-2.0
 *
 * A running call of the KServe service (server/rpc/unary.h). Calls of ModelInfer and
 * ModelStreamInfer do not use this header.
 */
#ifndef HPS_SERVER_KSERVE_OP_H
#define HPS_SERVER_KSERVE_OP_H

#include "base/container.h"
#include "server/kserve/names.h"
#include "server/kserve/service.h"
#include "server/model/pinned.h"
#include "server/rpc/message.h"

struct kserve_op {
    struct hps_unary rpc; /* rpc.model has no suffix KSERVE_TABLES */
    /* The model's name as in the request; "": the request names no model. */
    const char *name;
    bool by_table;                 /* `name` has the suffix KSERVE_TABLES */
    struct kserve_version version; /* the version that the request names */
    /* The load that the call has begun, or NULL. The call holds a reference to the load, and
     * replies when the load ends. */
    struct hps_load *load;
    struct hps_timer timer; /* checks whether `load` has ended */
};

static inline struct kserve_op *kserve_of(struct hps_unary *op)
{
    return HPS_CONTAINER_OF(op, struct kserve_op, rpc);
}

static inline const struct hps_kserve_parts *kserve_parts(const struct hps_unary *op)
{
    return op->parts;
}

/* op->follow of a call that began a load: replies when the load has ended. Loop thread. */
void kserve_follow_load(struct hps_unary *op);

/* A number as decimal text, in the arena. If there is no memory, op->error is set and the result is
 * "". */
char *kserve_number(struct hps_unary *op, int64_t number);
/* Both texts joined, in the arena. NULL: the arena is full, and op->error is set. */
char *kserve_join(struct hps_unary *op, const char *first, const char *second);
/* An array of n pointers to new messages, in the arena; n may be 0. NULL: the arena is full, and
 * op->error is set. */
void *kserve_messages(struct hps_unary *op, const ProtobufCMessageDescriptor *type, size_t n);

/* Pins the version that the request names, or all versions of op->model if it names none.
 * *out_chosen is the named version, or the active one. The caller unpins the versions with
 * hps_model_unpin; *out_chosen is one of them.
 *
 * error   returns false; op->error is NOT_FOUND (in Triton's wording), UNAVAILABLE or EXHAUSTED */
bool kserve_pin(struct hps_unary *op, struct hps_model_pinned *out_pinned,
                struct hps_version **out_chosen);

/* The work of the methods. Each sets op->reply or op->error. */
void kserve_server_live(struct hps_unary *op);
void kserve_server_ready(struct hps_unary *op);
void kserve_server_metadata(struct hps_unary *op);
void kserve_model_ready(struct hps_unary *op);
void kserve_model_metadata(struct hps_unary *op);
void kserve_model_config(struct hps_unary *op);
void kserve_model_statistics(struct hps_unary *op);
void kserve_repository_index(struct hps_unary *op);
void kserve_repository_load(struct hps_unary *op);
void kserve_repository_unload(struct hps_unary *op);
/* Shared memory is not supported, so no region is ever registered. The status methods return an
 * empty list, and the unregister methods always succeed. */
void kserve_memory_status(struct hps_unary *op);
void kserve_memory_unregister(struct hps_unary *op);
/* For methods that hpsd does not support: fails with UNIMPLEMENTED. */
void kserve_not_built(struct hps_unary *op);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * One call of the service while it is worked on (server/rpc/unary.h).
 */
#ifndef HPS_SERVER_KSERVE_OP_H
#define HPS_SERVER_KSERVE_OP_H

#include "base/container.h"
#include "server/kserve/names.h"
#include "server/kserve/service.h"
#include "server/model/pinned.h"
#include "server/rpc/message.h"

struct kserve_op {
    struct hps_unary rpc; /* model: without KSERVE_TABLES */
    const char *name;     /* as asked for; "": none */
    bool by_table;        /* the view that has it */
    struct kserve_version version;
    struct hps_load *load; /* the answer waits for its end */
    struct hps_timer timer;
};

static inline struct kserve_op *kserve_of(struct hps_unary *op)
{
    return HPS_CONTAINER_OF(op, struct kserve_op, rpc);
}

static inline const struct hps_kserve_parts *kserve_parts(const struct hps_unary *op)
{
    return op->parts;
}

/* op->follow of a load: answer when it has ended. Loop. */
void kserve_follow_load(struct hps_unary *op);

/* What follows is in the arena. */
char *kserve_number(struct hps_unary *op, int64_t number);
/* Two texts as one. */
char *kserve_join(struct hps_unary *op, const char *first, const char *second);
/* An array of pointers to n of them; n may be 0. */
void *kserve_messages(struct hps_unary *op, const ProtobufCMessageDescriptor *type, size_t n);

/* All versions of op->model, if none is asked for; *out_chosen: the one that is, or the active one.
 *
 * owner   the caller, hps_model_unpin; *out_chosen among them
 * error   false: op->error is NOT_FOUND in Triton's words, UNAVAILABLE, EXHAUSTED
 */
bool kserve_pin(struct hps_unary *op, struct hps_model_pinned *out_pinned,
                struct hps_version **out_chosen);

/* The work of each method. */
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
/* No region can be registered: the status is an empty list, and unregister always succeeds. */
void kserve_memory_status(struct hps_unary *op);
void kserve_memory_unregister(struct hps_unary *op);
void kserve_not_built(struct hps_unary *op);

#endif

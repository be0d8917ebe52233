/* SPDX-License-Identifier: Apache-2.0
 *
 * A call of the KServe service, except ModelInfer, while it runs (server/rpc/unary.h).
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
    const char *name;     /* as in the request; "": none */
    bool by_table;        /* the name means the view ".tables" */
    struct kserve_version version;
    struct hps_load *load; /* the reply waits for it; NULL: none */
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

/* op->follow of a load: replies when the load has ended. Loop thread. */
void kserve_follow_load(struct hps_unary *op);

/* The next three return memory of the arena. Without memory they set op->error. */
char *kserve_number(struct hps_unary *op, int64_t number);
/* Concatenates two texts. */
char *kserve_join(struct hps_unary *op, const char *first, const char *second);
/* An array of n pointers to new messages; n may be 0. */
void *kserve_messages(struct hps_unary *op, const ProtobufCMessageDescriptor *type, size_t n);

/* Pins the version that the request names, or all versions of op->model if it names none.
 * *out_chosen is the named version, or the active one.
 *
 * owner   the caller, hps_model_unpin; *out_chosen is one of them
 * error   false: op->error is NOT_FOUND in Triton's words, UNAVAILABLE or EXHAUSTED */
bool kserve_pin(struct hps_unary *op, struct hps_model_pinned *out_pinned,
                struct hps_version **out_chosen);

/* The work of each method: sets op->reply or op->error. */
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

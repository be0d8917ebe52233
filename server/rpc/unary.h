/* SPDX-License-Identifier: Apache-2.0
 *
 * The way of a call whose request is one small message: Admin, GetModel, KServe's management.
 *
 *     loop      count it against its identity, unpack the request, ask the rules of access
 *     place     the method's work, on the loop itself, a worker or the admin pool
 *     loop      send the reply, or fail the call with the error; write to the audit log before
 *
 * A service is a table of methods and what their works use (its parts). The calls of a service are
 * structs that embed struct hps_unary as their first member.
 */
#ifndef HPS_SERVER_RPC_UNARY_H
#define HPS_SERVER_RPC_UNARY_H

#include "base/pool.h"
#include "server/observe/audit.h"
#include "server/rpc/message.h"

struct hps_unary;
struct hps_unary_service;

enum hps_unary_place {
    HPS_UNARY_LOOP,
    HPS_UNARY_WORKER,
    HPS_UNARY_ADMIN, /* the admin pool: the work may block */
    HPS_UNARY_PLACES
};

/* What the caller needs the method's role for. */
enum hps_unary_scope {
    HPS_UNARY_OPEN,  /* everybody may call it, and it is not counted: health checks */
    HPS_UNARY_ANY,   /* for any model */
    HPS_UNARY_LISTS, /* for the model that is named; without one the reply has what it may see */
    HPS_UNARY_MODEL, /* for the model that is named; without one for all models */
    HPS_UNARY_SERVER /* for all models */
};

enum hps_unary_kind {
    HPS_UNARY_READS,
    HPS_UNARY_TELLS,        /* what not everybody should know: each call is in the audit log */
    HPS_UNARY_CHANGES,      /* the same, and the work is done even if the client has gone */
    HPS_UNARY_CHANGES_LATER /* the same, and the work, or what it starts, calls hps_unary_finish */
};

struct hps_unary_method {
    const char *path; /* "/hps.v1.Admin/Ping" */
    const ProtobufCMessageDescriptor *request;
    /* Sets op->reply, or op->error. On the thread of the place. */
    void (*work)(struct hps_unary *op);
    enum hps_unary_place place;
    enum hps_unary_kind kind;
    enum hps_unary_scope scope;
    uint32_t roles;           /* any of these is enough; 0: any at all */
    size_t request_bytes_max; /* 0: HPS_REQUEST_BYTES_MAX */
};

struct hps_unary {
    struct hps_task task;
    struct hps_unary_service *service;
    const void *parts; /* of the service */
    const struct hps_unary_method *method;
    struct hps_grpc_call *call; /* referenced; works only ask it */
    struct hps_arena *arena;
    const ProtobufCMessage *request;
    const char *model; /* which the request names; "": none. For access and the audit log */
    int64_t version;   /* for the audit log; set by the work */

    const ProtobufCMessage *reply; /* in the arena, or static */
    struct hps_error error;        /* status not OK: the call fails */
    /* Set by the work: runs on the loop instead of the answer, if there is no error. The call keeps
     * `op` from then on, until it closes; that may be before this returns. */
    void (*follow)(struct hps_unary *op);
};

struct hps_unary_options {                  /* copied */
    const char *name;                       /* "hps.v1.Admin" */
    const struct hps_unary_method *methods; /* [n_methods], static */
    unsigned n_methods;
    const void *parts; /* [parts_bytes], copied; pools and the audit log are borrowed */
    size_t parts_bytes;
    struct hps_pool *workers, *admin_pool; /* those that the methods' places need */
    struct hps_audit *audit;               /* NULL: all methods read */
    bool counted;           /* each call is one of the requests_per_s of its identity */
    size_t op_bytes;        /* of the struct that embeds hps_unary; zeroed when a call begins */
    size_t arena_bytes_max; /* of request and reply of a call */
    /* The rest may be NULL. */
    hps_status (*read)(struct hps_unary *op); /* more of the request; may set op->model. Loop */
    void (*answer)(struct hps_unary *op);     /* instead of sending op->reply. Loop */
    void (*fini)(struct hps_unary *op);       /* before it is freed. Loop */
};

/* NULL: no memory. */
struct hps_unary_service *hps_unary_service_new(const struct hps_unary_options *options);
/* Loops drained, pools stopped. NULL is legal. */
void hps_unary_service_free(struct hps_unary_service *service);
/* For hps_grpc_server_add. */
const struct hps_grpc_service *hps_unary_service_grpc(const struct hps_unary_service *service);

/* The work of a method of CHANGES_LATER is done: write to the audit log and have the answer sent.
 * Any thread but loops; gives `op` away. */
void hps_unary_finish(struct hps_unary *op);
/* Send op->reply and end the call, or fail it with op->error. Loop. */
void hps_unary_answer(struct hps_unary *op);

/* ---- calls that come another way than by gRPC ------------------------------------------------ */

/* A call of the method with this name ("ModelReady"). Loop. NULL: no memory, the call has failed.
 */
struct hps_unary *hps_unary_new(struct hps_unary_service *service, struct hps_grpc_call *call,
                                const char *method) HPS_MUST_CHECK;
/* op->request is there, or op->error. Loop; gives `op` away. */
void hps_unary_start(struct hps_unary *op);
/* The method of that name, as hps_grpc_server_add_http takes it under `pattern`. */
struct hps_grpc_method hps_unary_route(const struct hps_unary_service *service, const char *method,
                                       const char *pattern,
                                       void (*on_message)(struct hps_grpc_call *call,
                                                          const uint8_t *data, size_t size));

/* ---- what works use -------------------------------------------------------------------------- */

/* From the arena, zeroed; NULL sets op->error. Any thread that has `op`. */
void *hps_unary_alloc(struct hps_unary *op, size_t count, size_t size);
/* A copy in the arena, of "" for NULL. Without memory "", and op->error is set. */
char *hps_unary_text(struct hps_unary *op, const char *text);
/* The value of a text field of the request, NULL: it has no such field. */
const char *hps_unary_field(const struct hps_unary *op, const char *name);
/* Whether the reply may have what is of `model`. */
bool hps_unary_sees(const struct hps_unary *op, const char *model);

#endif

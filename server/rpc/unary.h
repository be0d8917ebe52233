/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs calls with one small request message: Admin, GetModel, WaitForUpdates, and KServe except
 * ModelInfer and ModelStreamInfer. Each call has three phases:
 *
 *     loop      unpack the request, count it in the quota of the identity, check access; a worker
 *               or admin thread unpacks a large request
 *     place     run the method's work on the loop, a worker or the admin pool; if calls of its kind
 *               are logged, write the call to the audit log
 *     loop      send the reply, or fail the call with the error
 *
 * A service consists of a table of methods, and of the parts of the daemon that the methods use. A
 * service may have its own struct for a call, with struct hps_unary as first member. "Loop" below
 * means the loop thread of the call's connection.
 */
#ifndef HPS_SERVER_RPC_UNARY_H
#define HPS_SERVER_RPC_UNARY_H

#include "base/pool.h"
#include "server/observe/audit.h"
#include "server/rpc/message.h"

struct hps_unary;
struct hps_unary_service;

/* Where the work of a method runs. */
enum hps_unary_place {
    HPS_UNARY_LOOP,   /* on the loop, even if all threads are busy; the work must be short */
    HPS_UNARY_WORKER, /* on a worker; the work must not block */
    HPS_UNARY_ADMIN   /* on the admin pool; the work may block */
};

/* Roles apply to models. This says for which models the caller must have one of the method's
 * roles. */
enum hps_unary_scope {
    HPS_UNARY_OPEN, /* no role is needed, and no quota applies: for health checks */
    HPS_UNARY_ANY,  /* for at least one model */
    /* For the model that the request names. If it names none, for at least one model; the reply
     * then lists the models that the caller may see. */
    HPS_UNARY_LISTS,
    HPS_UNARY_MODEL, /* for the model that the request names; if it names none, for all models */
    HPS_UNARY_SERVER /* for all models */
};

/* A call that the access rules reject is in the audit log, whatever its kind. */
enum hps_unary_kind {
    HPS_UNARY_READS,        /* not in the audit log; the work is skipped if the call has ended */
    HPS_UNARY_WAITS,        /* as READS, but the reply is sent only after hps_unary_finish */
    HPS_UNARY_TELLS,        /* as READS, but calls are in the audit log: the data is confidential */
    HPS_UNARY_CHANGES,      /* as TELLS, but the work runs even if the call has ended */
    HPS_UNARY_CHANGES_LATER /* as CHANGES, but the reply is sent only after hps_unary_finish */
};

struct hps_unary_method {
    const char *path; /* such as "/hps.v1.Admin/Ping" */
    const ProtobufCMessageDescriptor *request;
    /* Sets op->reply or op->error. Runs on a thread of the place. With kind WAITS or CHANGES_LATER
     * it calls hps_unary_finish, or lets a callback do so later. */
    void (*work)(struct hps_unary *op);
    enum hps_unary_place place;
    enum hps_unary_kind kind;
    enum hps_unary_scope scope;
    uint32_t roles;           /* the caller needs one of these roles; 0: any role */
    size_t request_bytes_max; /* limit on the request; 0: HPS_REQUEST_BYTES_MAX */
};

struct hps_unary {
    struct hps_task task;
    struct hps_unary_service *service;
    const void *parts; /* the service's copy of hps_unary_options.parts */
    const struct hps_unary_method *method;
    struct hps_grpc_call *call; /* referenced; the work only reads it */
    struct hps_arena *arena;
    const uint8_t *packed; /* a large request, until it is unpacked; in the arena */
    size_t packed_size;
    void (*unpack)(struct hps_unary *op, const uint8_t *data, size_t size);
    const ProtobufCMessage *request; /* in the arena */
    const char *model;               /* the model that the request names; "": none */
    int64_t version;                 /* for the audit log; the work may set it; 0: none */

    const ProtobufCMessage *reply; /* in the arena, or static */
    struct hps_error error;        /* status not OK: the call fails */
    /* The work may set this callback. If it is set and there is no error, the loop calls `follow`
     * instead of sending the reply, and `follow` must send it. From then on the call owns `op`.
     * When the call closes, `op` is freed; this may happen before `follow` returns. */
    void (*follow)(struct hps_unary *op);
};

struct hps_unary_options {                  /* copied */
    const char *name;                       /* such as "hps.v1.Admin" */
    const struct hps_unary_method *methods; /* [n_methods], static */
    unsigned n_methods;
    const void *parts; /* [parts_bytes] the service's own data for its methods; copied */
    size_t parts_bytes;
    struct hps_pool *workers, *admin_pool; /* borrowed; NULL: no method has that place */
    struct hps_audit *audit;               /* borrowed; NULL: all methods are READS or WAITS */
    size_t op_bytes;        /* size of the service's struct for a call, which begins zeroed */
    size_t arena_bytes_max; /* limit of a call's arena, for its request and reply */
    /* The callbacks below run on the loop, and may be NULL. */

    /* Reads and checks more of the request. It may change op->model. */
    hps_status (*read)(struct hps_unary *op);
    /* Sends op->reply and ends the call. NULL: the reply is sent as a gRPC message. */
    void (*answer)(struct hps_unary *op);
    /* Called when the call of a WAITS method ends before its reply. If hps_unary_finish was not
     * called yet, the service must still call it. Not NULL if there is a WAITS method. */
    void (*closed)(struct hps_unary *op);
    /* Called before the struct of a call is freed. */
    void (*fini)(struct hps_unary *op);
};

/* NULL: out of memory. */
struct hps_unary_service *hps_unary_service_new(const struct hps_unary_options *options);
/* Call it after all loops are drained and the pools are stopped. No effect if NULL. */
void hps_unary_service_free(struct hps_unary_service *service);
/* The methods, for hps_grpc_server_add. */
const struct hps_grpc_service *hps_unary_service_grpc(const struct hps_unary_service *service);

/* End the work of a WAITS or CHANGES_LATER method: write the call to the audit log, if calls of its
 * kind are logged, and let the loop reply. Takes `op`. Any thread; for CHANGES_LATER not a loop
 * thread. */
void hps_unary_finish(struct hps_unary *op);
/* Post op->task to the pool of the method's place; if that is the loop, to any pool of the service.
 * The tasks of READS and WAITS are quick (base/pool.h).
 * EXHAUSTED, CLOSED: op->error is set. Any thread. */
hps_status hps_unary_post(struct hps_unary *op) HPS_MUST_CHECK;
/* Send op->reply and end the call or, after an error, fail the call with op->error. Loop. */
void hps_unary_answer(struct hps_unary *op);

/* ---- calls over HTTP/1.1 --------------------------------------------------------------------- */

/* Begin a call. method: the name of a method of the service, such as "ModelReady". NULL: out of
 * memory, and the call has failed. Loop. */
struct hps_unary *hps_unary_new(struct hps_unary_service *service, struct hps_grpc_call *call,
                                const char *method) HPS_MUST_CHECK;
/* Run a call with the request data[size]. `unpack` sets op->request or op->error; a worker or admin
 * thread calls it if the request is large. Takes `op`. Loop. */
void hps_unary_read(struct hps_unary *op, const uint8_t *data, size_t size,
                    void (*unpack)(struct hps_unary *op, const uint8_t *data, size_t size));
/* Returns the method of this name as a route for hps_grpc_server_add_http. on_message: receives the
 * body, and does hps_unary_new and hps_unary_read. */
struct hps_grpc_method hps_unary_route(const struct hps_unary_service *service, const char *method,
                                       const char *pattern,
                                       void (*on_message)(struct hps_grpc_call *call,
                                                          const uint8_t *data, size_t size));

/* ---- functions for hps_unary_method.work ----------------------------------------------------- */

/* Call these functions on the thread that runs the work of the method. */

/* Zeroed memory of count * size bytes in the arena. NULL: the arena is full, op->error is set. */
void *hps_unary_alloc(struct hps_unary *op, size_t count, size_t size);
/* A new message in the arena, with its fields at their defaults. NULL: the arena is full, and
 * op->error is set. */
void *hps_unary_message(struct hps_unary *op, const ProtobufCMessageDescriptor *type);
/* Append a new message to a repeated field. items: address of the field's array, which has *n
 * messages. Returns the message. NULL: the arena is full, and op->error is set. */
void *hps_unary_add(struct hps_unary *op, const ProtobufCMessageDescriptor *type, void *items,
                    size_t *n);
/* A copy of `text` in the arena; NULL counts as "". If there is no memory, op->error is set and the
 * result is "". */
char *hps_unary_text(struct hps_unary *op, const char *text);
/* The value of the request's text field `name`. NULL: requests of this type have no such field. */
const char *hps_unary_field(const struct hps_unary *op, const char *name);
/* Whether the caller may see `model`. Only then may the reply name it. */
bool hps_unary_sees(const struct hps_unary *op, const char *model);

#endif

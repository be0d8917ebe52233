/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs calls with one small request message: Admin, GetModel, KServe's management.
 *
 *     loop      count the call against its identity, unpack the request, check access
 *     place     run the method's work, on the loop, a worker or the admin pool; write the audit log
 *     loop      send the reply, or fail the call with the error
 *
 * A service is a table of methods, and the parts of the daemon that their works use. Each service
 * has its own struct for a call, with struct hps_unary as first member.
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
    HPS_UNARY_ADMIN /* the admin pool: the work may block */
};

/* The models for which the caller needs one of the method's roles. */
enum hps_unary_scope {
    HPS_UNARY_OPEN, /* none: open to all callers, and not counted; health checks */
    HPS_UNARY_ANY,  /* any model */
    /* the named model; without a name the reply lists the models that the caller may see */
    HPS_UNARY_LISTS,
    HPS_UNARY_MODEL, /* the named model; without a name all models */
    HPS_UNARY_SERVER /* all models */
};

enum hps_unary_kind {
    HPS_UNARY_READS,
    HPS_UNARY_WAITS,        /* as READS; the work, or a callback, calls hps_unary_finish */
    HPS_UNARY_TELLS,        /* confidential data: each call is in the audit log */
    HPS_UNARY_CHANGES,      /* as TELLS; the work runs even if the client has cancelled */
    HPS_UNARY_CHANGES_LATER /* as CHANGES; the work, or a callback, calls hps_unary_finish */
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
    struct hps_grpc_call *call; /* referenced; works only read it */
    struct hps_arena *arena;
    const ProtobufCMessage *request;
    const char *model; /* named by the request; "": none. For access and the audit log */
    int64_t version;   /* for the audit log; set by the work */

    const ProtobufCMessage *reply; /* in the arena, or static */
    struct hps_error error;        /* status not OK: the call fails */
    /* Set by the work: runs on the loop instead of the reply, if there is no error. The call then
     * owns `op`, and frees it when it closes, possibly before this returns. */
    void (*follow)(struct hps_unary *op);
};

struct hps_unary_options {                  /* copied */
    const char *name;                       /* "hps.v1.Admin" */
    const struct hps_unary_method *methods; /* [n_methods], static */
    unsigned n_methods;
    const void *parts; /* [parts_bytes], copied; pools and the audit log are borrowed */
    size_t parts_bytes;
    struct hps_pool *workers, *admin_pool; /* NULL: no method has that place */
    struct hps_audit *audit;               /* NULL: all methods read */
    bool counted;           /* each call counts towards the requests_per_s of its identity */
    size_t op_bytes;        /* of the service's struct of a call; zeroed when a call begins */
    size_t arena_bytes_max; /* of request and reply of a call */
    /* The callbacks below may be NULL. */
    hps_status (*read)(struct hps_unary *op); /* more of the request; may set op->model. Loop */
    /* sends the reply instead of hps_unary_answer. Loop */
    void (*answer)(struct hps_unary *op);
    void (*closed)(struct hps_unary *op); /* a WAITS call ended before its reply. Loop */
    void (*fini)(struct hps_unary *op);   /* called before the struct is freed. Loop */
};

/* NULL: out of memory. */
struct hps_unary_service *hps_unary_service_new(const struct hps_unary_options *options);
/* Call it after loops are drained and pools stopped. No effect if NULL. */
void hps_unary_service_free(struct hps_unary_service *service);
/* For hps_grpc_server_add. */
const struct hps_grpc_service *hps_unary_service_grpc(const struct hps_unary_service *service);

/* End the work of a WAITS or CHANGES_LATER method: write the audit log of changes, and send the
 * reply from the loop. Any thread, for changes not a loop thread; takes `op`. */
void hps_unary_finish(struct hps_unary *op);
/* Send op->reply and end the call, or fail it with op->error. Loop. */
void hps_unary_answer(struct hps_unary *op);

/* ---- calls by HTTP/1.1 ----------------------------------------------------------------------- */

/* Begin a call of the method with this name ("ModelReady"). Loop. NULL: out of memory, the call has
 * failed. */
struct hps_unary *hps_unary_new(struct hps_unary_service *service, struct hps_grpc_call *call,
                                const char *method) HPS_MUST_CHECK;
/* Run the call; op->request or op->error is set. Loop; takes `op`. */
void hps_unary_start(struct hps_unary *op);
/* The method as a route for hps_grpc_server_add_http, with this pattern. */
struct hps_grpc_method hps_unary_route(const struct hps_unary_service *service, const char *method,
                                       const char *pattern,
                                       void (*on_message)(struct hps_grpc_call *call,
                                                          const uint8_t *data, size_t size));

/* ---- functions for works --------------------------------------------------------------------- */

/* Zeroed memory of the arena; NULL: op->error is set. Thread of the work. */
void *hps_unary_alloc(struct hps_unary *op, size_t count, size_t size);
/* A message in the arena, its fields at their defaults; NULL: op->error is set. */
void *hps_unary_message(struct hps_unary *op, const ProtobufCMessageDescriptor *type);
/* The same, appended to a repeated field. items: address of its array, which has *n messages. */
void *hps_unary_add(struct hps_unary *op, const ProtobufCMessageDescriptor *type, void *items,
                    size_t *n);
/* A copy in the arena; "" for NULL. Without memory "", and op->error is set. */
char *hps_unary_text(struct hps_unary *op, const char *text);
/* The value of a text field of the request, NULL: it has no such field. */
const char *hps_unary_field(const struct hps_unary *op, const char *name);
/* Whether the reply may name `model`. */
bool hps_unary_sees(const struct hps_unary *op, const char *model);

#endif

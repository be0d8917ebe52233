/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of the lookup service:
 *
 *     service.c       the methods
 *     quota.c         quotas of an identity
 *     unpack.c        inflating a message
 *     prepare.c       from a message to a planned lookup
 *     room.c          waiting for capacity for the reply
 *     dispatch.c      the next step, and its thread
 *     handover.c      to another thread and back
 *     reply.c         the reply, with explain.c
 *     exchange.c      a call with many requests
 *     request.c       turns, errors, the end
 *     request_pool.c  idle requests
 *
 * A request belongs to the loop thread of its connection. The functions here are called on that
 * thread, unless they say otherwise. While another thread has the request, as its phase says, the
 * loop thread uses only `phase`, `timer`, `pool`, `n_turns`, `call` and `gpu.left_version`.
 */
#ifndef HPS_SERVER_LOOKUP_INTERNAL_H
#define HPS_SERVER_LOOKUP_INTERNAL_H

#include <stdatomic.h>
#include <stddef.h>

#include "base/arena.h"
#include "base/assert.h"
#include "base/container.h"
#include "base/lock.h"
#include "cache/lookup/lookup.h"
#include "cache/lookup/next.h"
#include "cache/update/update.h"
#include "cache/version/usage.h"
#include "net/loop.h"
#include "server/lookup/encode.h"
#include "server/lookup/front.h"
#include "server/lookup/service.h"
#include "server/observe/stages.h"

/* Which thread or queue has a request, and the meaning of its timer. Loop thread only. */
enum request_phase {
    PHASE_LOOP,   /* the loop thread, in its current turn */
    PHASE_UNPACK, /* a worker that inflates and decodes; as PHASE_WORKER */
    PHASE_CONN,   /* the queue of its connection, for capacity for the reply; timer: reject */
    PHASE_ROOM,   /* the queue of admission, or the way back; timer: request_room_on_timer */
    PHASE_WORKER, /* the worker pool, from the post until it is back or withdrawn */
    PHASE_IO,     /* the I/O pool, likewise; timer, with miss policy WAIT: withdraw */
    PHASE_GPU,    /* the gpu; timer: continue without its answer */
    PHASE_AWAIT,  /* no thread: the lookup continues when the timer fires */
    PHASE_REPLY,  /* the call, which has the reply or an error and has not ended */
    PHASE_ENDED   /* the call has ended and no thread has the request */
};

/* The call of a request. */
struct request_call {
    struct hps_grpc_call *grpc; /* with a reference */
    bool streaming;
    bool explain;
    bool closed;    /* on_close was called */
    bool too_large; /* the message alone exceeds the limit of a message */
    int code;       /* gRPC code with which the service ended it; -1: it has not */
    uint64_t start_us;
    uint64_t closed_us;
};

struct hps_account; /* server/access/account.h */
struct exchange;    /* exchange.c */

/* What the reply holds of the limits on all replies. */
struct request_room {
    struct hps_admission_ticket ticket;
    uint64_t reply_bytes; /* of the reply, and of the rows that are added for its bags */
    uint64_t work_bytes;  /* further memory of the lookup */
    uint64_t wait_us_max;
    uint64_t late_us;            /* when the wait for admission ends */
    struct hps_account *account; /* of the caller; NULL: no quota of bytes */
    uint64_t account_bytes;      /* charged to it */
};

/* The part of a request that its query of the gpu uses. */
struct request_gpu {
    struct hps_task task;             /* posted by the gpu tier's thread to the loop */
    uint64_t done_us;                 /* set by the gpu tier's thread before it posts the task */
    struct hps_version *left_version; /* pinned while a query that was left runs; else NULL */
};

/* The reply to a request. */
struct request_reply {
    struct hps_stream *stream; /* NULL: one message */
    bool encoded;
    bool pumping; /* request_pump is running */
};

/* A request for a lookup, from its message to the end of its call. */
struct request {
    struct request *next_idle; /* in the service's list of idle requests */
    struct hps_arena *arena;
    struct hps_arena *scratch;

    /* The following fields are zeroed for each request. */
    struct hps_lookup_service *service;
    const struct hps_lookup_front *front; /* the protocol of the request */
    struct hps_lookup_asked *asked;       /* data of the front end; may be NULL */
    struct hps_loop *loop;
    enum request_phase phase;
    unsigned n_turns; /* nested callbacks of the loop thread that are running */
    struct hps_timer timer;
    struct hps_task task;          /* posted to a worker, an I/O thread or the loop */
    struct hps_pool *pool;         /* in PHASE_UNPACK, PHASE_WORKER and PHASE_IO; else NULL */
    struct hps_grpc_packed packed; /* in PHASE_UNPACK: the message, kept by the call */
    struct request_call call;
    struct exchange *exchange; /* NULL: the call has one request */
    struct request_room room;
    struct request_gpu gpu;
    struct hps_course course;
    struct hps_lookup lookup;
    enum hps_outcome outcome; /* of the last step that another thread did */
    struct hps_error err;     /* of the last step that failed */
    struct request_reply reply;
    /* Set when the version is unpinned; until then use lookup.version->usage. */
    struct hps_usage *usage;
    struct hps_stages stages;
    struct hps_slow_request slow;
};

/* Shared by all loops. */
struct hps_lookup_service {
    /* The next three fields are used instead of the ones in parts.limits. */

    struct hps_lookup_service_parts parts;
    _Atomic uint32_t tables_max;
    _Atomic uint32_t keys_max;
    _Atomic uint64_t queue_us_max;
    struct hps_grpc_method methods[2]; /* of hps.v1 */
    struct hps_grpc_service grpc;
    struct hps_lock lock; /* protects the next three */
    struct request *idle;
    uint32_t n_idle;
    uint32_t n_used;
};

/* ---- request_pool.c -------------------------------------------------------------------------- */

/* Returns an idle request or a new one. Its arenas are empty; the caller sets all other fields.
 * NULL: no memory. Any thread. */
struct request *request_take(struct hps_lookup_service *service);
/* Keeps the request for reuse, or frees it if there are arenas_idle_max. Any thread. */
void request_give(struct hps_lookup_service *service, struct request *request);
/* Frees the idle requests. No request may be in use. */
void request_free_idle(struct hps_lookup_service *service);

/* ---- request.c ------------------------------------------------------------------------------- */

/* Makes a request for a call, in PHASE_LOOP. Its duration and its own timeout count from start_us.
 * Takes a reference of the call. NULL: no memory.
 *
 * unit    start_us by hps_clock_us */
struct request *request_new(struct hps_lookup_service *service,
                            const struct hps_lookup_front *front, struct hps_grpc_call *call,
                            bool streaming, uint64_t start_us);
/* Each callback of the loop thread that uses a request begins and ends with these; they nest. The
 * outermost request_turn_end checks the request in debug builds (request_sane). It frees the
 * request if the call has ended and no thread has the request, so the request must not be used
 * afterwards. */
void request_turn_begin(struct request *request);
void request_turn_end(struct request *request);
/* Asserts that phase, timer, pool, pins, ticket and reply agree. Between two turns only. */
void request_sane(const struct request *request);
/* Returns a request from another thread or a queue to PHASE_LOOP. Stops its timer. */
void request_arrive(struct request *request);
/* Moves the time that tiers and the wait for other lookups took, since the last call, from the WORK
 * stage to their own stages. The WORK stage must have ended. */
void request_name_work(struct request *request);
/* Ends the request with an error: the call, or in a call with many requests only this request. The
 * call must not have ended. */
void request_fail(struct request *request, const struct hps_error *err);
/* As request_fail, and tells the client to retry after 100 ms. */
void request_fail_retry(struct request *request, const struct hps_error *err);
/* As request_fail_retry, and counts the rejection by `reason`. The client may retry after 100 ms,
 * or after retry_us. */
void request_reject(struct request *request, enum hps_reject reason, const struct hps_error *err);
void request_reject_for(struct request *request, enum hps_reject reason, uint64_t retry_us,
                        const struct hps_error *err);
/* Releases the pin of the version, if there is one, once its rows are copied or not needed. */
void request_unpin(struct request *request);

/* ---- unpack.c -------------------------------------------------------------------------------- */

/* Unpacks and prepares a message that has arrived, then asks for capacity for its reply. A message
 * of at most inline_message_bytes is unpacked here, a larger one by a worker. Call within the
 * callback that received it. */
void request_unpack(struct request *request, const struct hps_grpc_packed *packed);
/* The call has ended in PHASE_UNPACK. */
void request_unpack_close(struct request *request);

/* ---- prepare.c ------------------------------------------------------------------------------- */

/* Decodes a message, notes the caller for the slow log, checks access, pins the version and plans
 * the lookup. data[size] is not used afterwards. If the version was pinned, it stays pinned on
 * failure until the request ends, unless the decoder failed.
 * thread  loop; worker in PHASE_UNPACK
 * error   INVALID, PERMISSION, NOT_FOUND (model, version, table), UNAVAILABLE (max_staleness_ms),
 *         EXHAUSTED; others of the decoder, the model set and the plan */
hps_status request_prepare(struct request *request, const uint8_t *data, size_t size,
                           struct hps_error *err) HPS_MUST_CHECK;

/* ---- quota.c --------------------------------------------------------------------------------- */

/* Counts a lookup against requests_per_s of the identity. False: the quota is used up and the
 * request is rejected. */
bool request_take_turn(struct request *request) HPS_MUST_CHECK;
/* Charges bytes to the quota of the identity, until request_discharge_quota. False: too many bytes
 * are in flight and the request is rejected. */
bool request_charge_quota(struct request *request, uint64_t bytes) HPS_MUST_CHECK;
void request_discharge_quota(struct request *request); /* no effect if nothing is charged */

/* ---- room.c ---------------------------------------------------------------------------------- */

/* Asks for capacity for the reply of a prepared lookup, first of its connection, then of admission.
 * Then starts the lookup, at once or later, or rejects it. */
void request_ask_room(struct request *request);
/* Bytes of the stored rows that the lookup adds into bags. */
uint64_t request_pooled_bytes(const struct hps_lookup *lookup);
/* PHASE_CONN: the reply now counts against its connection. */
void request_room_charged(struct request *request);
/* PHASE_CONN: the timer has fired. Rejects the request. */
void request_conn_late(struct request *request);
/* PHASE_ROOM: the timer has fired. Checks how fast clients read. Shortly before the wait ends it
 * cuts off a client that is too slow; at the end it rejects the request. */
void request_room_on_timer(struct request *request);
/* The call has ended in PHASE_ROOM. */
void request_room_close(struct request *request);

/* ---- dispatch.c ------------------------------------------------------------------------------ */

/* Starts the lookup: the reply has its capacity. */
void request_start(struct request *request);
/* The current step has ended with `outcome`. Does the next steps, until another thread, a timer or
 * the call has the request, or it has ended. */
void request_advance(struct request *request, enum hps_outcome outcome);
/* The call has ended: withdraws the lookup from queues and waits, and ends a request that no thread
 * has. */
void request_close(struct request *request);
/* Callback of the timer; ctx: the request. */
void request_on_timer(void *ctx);

/* ---- handover.c ------------------------------------------------------------------------------ */

/* Each of the following gives the request to another thread, sets its phase and returns. That
 * thread does the step, and request_advance continues on the loop. If the request is still in
 * PHASE_LOOP, the returned value is the outcome of the step; otherwise it means nothing. */

/* For MEMORY and COLLECT of a large lookup. BUSY, with request->err, if the pool's queue is full.
 */
enum hps_outcome request_to_worker(struct request *request) HPS_MUST_CHECK;
/* For STORES and REREAD. BUSY, with request->err, if the pool's queue is full. */
enum hps_outcome request_to_io(struct request *request) HPS_MUST_CHECK;
/* Takes the request back from a pool if no thread has begun: it is in PHASE_LOOP. False: a thread
 * has it and will return it. */
bool request_withdraw(struct request *request) HPS_MUST_CHECK;
/* For GPU_FIRST and GPU_MISSES. REFUSED: the gpu was not queried. */
enum hps_outcome request_to_gpu(struct request *request) HPS_MUST_CHECK;
/* PHASE_GPU: continues without the gpu's answer, in PHASE_LOOP. The device may still write, so the
 * version stays pinned and the request stays allocated until the answer comes. */
void request_leave_gpu(struct request *request);
/* Callback hps_lookup.gpu_done, on the gpu tier's thread. */
void request_gpu_done(struct hps_lookup *lookup);

/* ---- reply.c --------------------------------------------------------------------------------- */

/* Encodes the reply of a lookup that is done, unpins the version, and sends. */
void request_reply(struct request *request);
/* Sends messages of the stream until STREAM_QUEUED_LOW bytes are queued. */
void request_pump(struct request *request);

/* ---- exchange.c ------------------------------------------------------------------------------ */

/* A reply was sent, or the gpu has answered a query that was left. The exchange checks afterwards
 * whether the request has ended: the send queue is empty and no query is left at the gpu. */
void exchange_sent(struct exchange *exchange);
/* Sends an error in place of a reply. */
void exchange_tell(struct exchange *exchange, const struct request *request,
                   const struct hps_error *err);

/* ---- explain.c ------------------------------------------------------------------------------- */

/* Stages and notes of a lookup, in the request's arena. For use while the reply is encoded. NULL:
 * the client did not ask for them, or there is no memory. */
const struct hps_encode_explain *request_explain(struct request *request);

#endif

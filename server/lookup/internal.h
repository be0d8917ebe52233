/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of the lookup service:
 *
 *     service.c       the methods
 *     quota.c         calls per second of an identity
 *     unpack.c        inflating a message
 *     prepare.c       decoding a message, and planning its lookup
 *     room.c          waiting for capacity for the reply
 *     dispatch.c      running the steps of a lookup, each on its thread
 *     handover.c      moving a request to another thread and back
 *     reply.c         encoding and sending the reply, with explain.c
 *     exchange.c      a call with many requests
 *     request.c       beginning and ending a request, errors, checks
 *     request_pool.c  the memory of requests; unused arenas, kept for reuse
 *
 * A request belongs to the loop thread of its connection. The functions here are called on that
 * thread, unless they say otherwise. `phase` says which thread has the request. While another
 * thread has it, the loop thread uses only `phase`, `timer`, `pool`, `n_turns`, `call` and
 * `gpu.left_version`.
 *
 * A "turn" of a request is a callback of the loop thread that uses the request.
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

/* Which thread or queue has a request, and what the timer of the request does when it fires. In a
 * phase whose comment does not mention the timer, it is not set. Loop thread only. */
enum request_phase {
    PHASE_LOOP, /* the loop thread, in its current turn */
    /* The worker pool, which inflates and decodes the message. The phase ends when the request is
     * back on the loop, or withdrawn from the queue of the pool. */
    PHASE_UNPACK,
    /* A queue of net/limits.h, where the request waits for memory. After that: the mailbox of the
     * loop, until the loop thread continues the request. Timer: request_room_on_timer. */
    PHASE_ROOM,
    /* The worker pool, for a step of a large lookup. The phase ends as PHASE_UNPACK does. */
    PHASE_WORKER,
    /* The worker pool, which encodes the reply. The phase ends as PHASE_UNPACK does. */
    PHASE_ENCODE,
    /* The I/O pool, for a step in tiers that may block. The phase ends as PHASE_UNPACK does. Timer,
     * with miss policy WAIT: withdraw the request. */
    PHASE_IO,
    /* The gpu tier, which is queried. Timer: continue without the gpu's answer. */
    PHASE_GPU,
    /* No thread: the lookup waits, for example for updates. Timer: continue the lookup. */
    PHASE_AWAIT,
    /* The call, which has the reply or an error, and has not ended. */
    PHASE_REPLY,
    /* The call has ended, and no thread has the request. */
    PHASE_ENDED
};

/* The call of a request. */
struct request_call {
    struct hps_grpc_call *grpc; /* referenced */
    bool streaming;             /* LookupStream: the reply has several messages */
    bool explain;               /* the reply has the field `explain` */
    bool closed;                /* on_close was called */
    bool too_large;             /* the inflated message exceeds the limit of a message */
    int code;           /* gRPC code with which the service answered the request; -1: not yet */
    uint64_t start_us;  /* hps_clock_us: the request arrived */
    uint64_t closed_us; /* hps_clock_us: on_close was called */
};

struct exchange; /* exchange.c */

/* The memory that a request needs, and how long it waits for it. */
struct request_room {
    uint64_t reply;       /* upper bound of the memory of the reply */
    uint64_t wanted;      /* the same and the memory of the lookup's work */
    uint64_t held;        /* reserved: nothing, `wanted`, or later `reply` */
    uint64_t key_bytes;   /* counted as request memory while the request waits */
    uint64_t wait_us_max; /* longest wait for memory that other connections hold */
    uint64_t late_us;     /* hps_loop_now_us at which the wait ends */
    bool at_connection;   /* it waits for memory of its connection */
};

/* The state of a request's query to the gpu tier. */
struct request_gpu {
    struct hps_task task; /* posted by the gpu tier's thread to the loop */
    uint64_t done_us;     /* hps_clock_us when the gpu answered; set before the task is posted */
    /* NULL, unless the request has continued without the gpu's answer and the query still runs.
     * Then it is the version of the request, which stays pinned until the gpu answers. */
    struct hps_version *left_version;
};

/* The reply to a request. */
struct request_reply {
    struct hps_stream *stream;  /* NULL: the reply is one message */
    struct hps_encoded message; /* until it is sent */
    bool encoded;               /* the reply was encoded, or an error prevented it */
    bool pumping;               /* request_pump is running */
};

/* The arenas of a request. */
struct request_arenas {
    struct request_arenas *next_idle; /* in the service's list */
    struct hps_arena *arena, *scratch;
};

/* A request for a lookup, from its message to the end of its call. */
struct request {
    struct request_arenas *arenas; /* NULL: returned */
    struct hps_arena *arena;       /* keys and all data of the request; NULL: returned */
    struct hps_arena *scratch;     /* temporary data of the lookup's steps; NULL: returned */

    struct hps_lookup_service *service;
    const struct hps_lookup_front *front; /* the protocol of the request */
    struct hps_lookup_asked *asked;       /* data of the front end; may be NULL */
    struct hps_loop *loop;                /* of the connection */
    enum request_phase phase;
    unsigned n_turns; /* nested callbacks of the loop thread that are running */
    struct hps_timer timer;
    struct hps_task task; /* posted to a worker, an I/O thread or the loop */
    /* PHASE_UNPACK, PHASE_WORKER, PHASE_ENCODE, PHASE_IO: the pool that has `task`; else NULL. */
    struct hps_pool *pool;
    struct hps_grpc_packed packed; /* in PHASE_UNPACK: the message, which the call keeps valid */
    struct request_call call;
    struct exchange *exchange; /* of a call with many requests; NULL: the call has one request */
    struct request_room room;
    struct request_gpu gpu;
    struct hps_lookup_state
        lookup_state; /* the current step of the lookup, and the data that selects the next step */
    struct hps_lookup lookup;
    enum hps_outcome outcome; /* of the last step that another thread did */
    struct hps_error err;     /* of the last step that failed */
    struct request_reply reply;
    /* The usage counters of the version, once it is unpinned. Before that use
     * lookup.version->usage. */
    struct hps_usage *usage;
    struct hps_stages stages;
    struct hps_slow_request slow;
};

/* Shared by all loops. */
struct hps_lookup_service {
    struct hps_lookup_service_parts parts;
    /* Limits that a reload may change. The fields of the same name in parts.limits are not used. */
    _Atomic uint32_t tables_max;
    _Atomic uint32_t keys_max;
    _Atomic uint64_t queue_us_max;
    _Atomic uint64_t reply_bytes_max;
    struct hps_grpc_method methods[2]; /* Lookup and LookupStream */
    struct hps_grpc_service grpc;
    struct hps_lock lock;        /* protects the fields below */
    struct request_arenas *idle; /* list of unused arenas */
    uint32_t n_idle;
    uint32_t n_used; /* requests that are in use */
};

/* Bytes of the first chunks of a request's arenas. */
enum { REQUEST_ARENA_BYTES = 32 * 1024, REQUEST_SCRATCH_BYTES = 16 * 1024 };

/* ---- request_pool.c -------------------------------------------------------------------------- */

/* Makes a request with empty arenas; all other fields are zero. NULL: out of memory. Any thread. */
struct request *request_take(struct hps_lookup_service *service);
/* Gives the arenas of a request back: its work is done. They are kept for reuse or, if
 * arenas_idle_max pairs are unused already, freed. No effect if they were returned. Any thread.
 */
void request_give_arenas(struct hps_lookup_service *service, struct request *request);
/* Frees a request and gives its arenas back. Any thread. */
void request_give(struct hps_lookup_service *service, struct request *request);
/* Frees the unused arenas. No request may be in use. */
void request_free_idle(struct hps_lookup_service *service);

/* ---- request.c ------------------------------------------------------------------------------- */

/* Makes a request for a call, in PHASE_LOOP. start_us (hps_clock_us): when the request arrived; its
 * duration and its timeout count from start_us. The request holds a reference to the call. NULL:
 * out of memory. */
struct request *request_new(struct hps_lookup_service *service,
                            const struct hps_lookup_front *front, struct hps_grpc_call *call,
                            bool streaming, uint64_t start_us);
/* Begin and end a turn: each callback of the loop thread that uses a request calls them first and
 * last. Turns may nest. In debug builds the outermost request_turn_end does request_sane. If the
 * call has ended and no thread has the request, request_turn_end frees it, so the caller must not
 * use the request afterwards. */
void request_turn_begin(struct request *request);
void request_turn_end(struct request *request);
/* Asserts that phase, timer, pool, pins, ticket and reply are consistent. Call it between turns. */
void request_sane(const struct request *request);
/* Call it when the request has returned to the loop from another thread or a queue. Sets PHASE_LOOP
 * and stops the timer. */
void request_arrive(struct request *request);
/* Moves time from the WORK stage to other stages: the time in each tier to the stage of the tier,
 * and the time of waiting for rows that other lookups fetched to the WAIT stage. Only time since
 * the last request_name_work is moved. The WORK stage must have ended. */
void request_name_work(struct request *request);
/* Ends the request with an error. This ends the call, except a call with many requests. The call
 * must not have ended. */
void request_fail(struct request *request, const struct hps_error *err);
/* As request_fail, and also tells the client to retry after 100 ms. */
void request_fail_retry(struct request *request, const struct hps_error *err);
/* As request_fail_retry, and counts the rejection in the metrics by `reason`. */
void request_reject(struct request *request, enum hps_reject reason, const struct hps_error *err);
/* As request_reject, but tells the client to retry after retry_us. */
void request_reject_for(struct request *request, enum hps_reject reason, uint64_t retry_us,
                        const struct hps_error *err);
/* Gives the arenas back: nothing of the message or of the lookup's work is used any more. The call
 * may last longer, until the client has read its reply or status. */
void request_drop_message(struct request *request);
/* Unpins the version, once its rows are copied or not needed. No effect if no version is pinned. */
void request_unpin(struct request *request);

/* ---- unpack.c -------------------------------------------------------------------------------- */

/* Inflates a message that has arrived, does request_prepare, and then request_ask_room. If the
 * inflated message exceeds inline_message_bytes, a worker inflates it and does request_prepare.
 * Call it within on_packed: only there can it keep the bytes of the message for the worker. */
void request_unpack(struct request *request, const struct hps_grpc_packed *packed);

/* ---- prepare.c ------------------------------------------------------------------------------- */

/* Decodes the message in data[size], notes the caller for the slow log, checks access, pins the
 * version and plans the lookup. data[size] is not used afterwards. After an error the version may
 * stay pinned until the request ends.
 * thread  loop; worker in PHASE_UNPACK
 * error   INVALID, PERMISSION, NOT_FOUND (model, version, table), UNAVAILABLE (max_staleness_ms),
 *         EXHAUSTED; others of the decoder, the model set and the plan */
hps_status request_prepare(struct request *request, const uint8_t *data, size_t size,
                           struct hps_error *err) HPS_MUST_CHECK;

/* ---- quota.c --------------------------------------------------------------------------------- */

/* Counts a lookup against the quota requests_per_s of the caller's identity. False: the quota is
 * used up, and the request was rejected. */
bool request_take_turn(struct request *request) HPS_MUST_CHECK;

/* ---- room.c ---------------------------------------------------------------------------------- */

/* Reserves memory for the reply and the work of a prepared lookup. Then does request_start, at once
 * or when there is memory. Rejects the request if a quota is used up or the wait takes too long. */
void request_ask_room(struct request *request);
/* The lookup is done and its reply encoded: gives back the memory of its work. */
void request_give_work(struct request *request);
/* Gives back all reserved memory. No effect if nothing is reserved. */
void request_give_room(struct request *request);
/* Bytes of the stored rows that the lookup reads for queries with pooling. A key that occurs twice
 * counts twice. */
uint64_t request_pooled_bytes(const struct hps_lookup *lookup);
/* In PHASE_ROOM: the timer has fired. Checks how fast clients read their replies. Near the end of
 * the wait, cuts off a client that reads too slowly. At the end, rejects the request. */
void request_room_on_timer(struct request *request);
/* Handles the end of the call in PHASE_ROOM. */
void request_room_close(struct request *request);

/* ---- dispatch.c ------------------------------------------------------------------------------ */

/* Starts the lookup, once capacity for the reply is reserved. */
void request_start(struct request *request);
/* Call it when the current step has ended with `outcome`. Does the next steps, as long as the
 * request is in PHASE_LOOP. */
void request_advance(struct request *request, enum hps_outcome outcome);
/* Ends the request, because its call has ended. If the request is queued or waits, it is withdrawn
 * and ends at once. If another thread has the request, the request ends when it returns to the
 * loop. */
void request_close(struct request *request);
/* Callback of request->timer. ctx: the request. */
void request_on_timer(void *ctx);

/* ---- handover.c ------------------------------------------------------------------------------ */

/* request_to_worker, request_to_io and request_to_gpu give the request to another thread, set its
 * phase and return. That thread does the step; afterwards request_advance continues on the loop. If
 * the request cannot be handed over, it stays in PHASE_LOOP, and the returned value is the outcome
 * of the step. Otherwise the returned value has no meaning. */

/* Posts a task of the request, which has results, to its loop. Any thread. */
static inline void request_to_loop(struct request *request, struct hps_task *task)
{
    hps_loop_post_for(request->loop, task, hps_grpc_call_client(request->call.grpc));
}

/* Posts request->task to `pool`. cost: its estimated time in nanoseconds. The caller sets `pool`
 * and `phase`. Loop, or a thread of the pool that posts the task again. EXHAUSTED: sets
 * request->err */
hps_status request_post(struct request *request, struct hps_pool *pool, uint64_t cost,
                        void (*run)(struct hps_task *task)) HPS_MUST_CHECK;
/* For the steps MEMORY and COLLECT of a large lookup. BUSY, with a text in request->err: the queue
 * of the pool is full. */
enum hps_outcome request_to_worker(struct request *request) HPS_MUST_CHECK;
/* For the steps STORES and REREAD. BUSY: as request_to_worker. */
enum hps_outcome request_to_io(struct request *request) HPS_MUST_CHECK;
/* Takes the request back from the queue of its pool, into PHASE_LOOP. False: a thread of the pool
 * runs the request, and will return it to the loop. */
bool request_withdraw(struct request *request) HPS_MUST_CHECK;
/* For the steps GPU_FIRST and GPU_MISSES. REFUSED: the gpu was not queried. */
enum hps_outcome request_to_gpu(struct request *request) HPS_MUST_CHECK;
/* In PHASE_GPU: returns to PHASE_LOOP without the gpu's answer. The device may still write to the
 * request's memory, so until the answer comes the version stays pinned and the request allocated.
 */
void request_leave_gpu(struct request *request);
/* The callback hps_lookup.gpu_done: the gpu has answered. On the gpu tier's thread. */
void request_gpu_done(struct hps_lookup *lookup);

/* ---- reply.c --------------------------------------------------------------------------------- */

/* Encodes the reply of a lookup that is done, on the loop or a worker; then unpins the version and
 * sends the reply. */
void request_reply(struct request *request);
/* Sends messages of a streamed reply until 2 MiB are queued in the call, or all messages are
 * sent. */
void request_pump(struct request *request);

/* ---- exchange.c ------------------------------------------------------------------------------ */

/* Call it when a reply was queued or sent, and when the gpu answers a query that its request did
 * not wait for. In the next iteration of the loop, the exchange ends the current request if the
 * call's send queue is empty and no query to the gpu still runs. The exchange then reads the next
 * message. */
void exchange_sent(struct exchange *exchange);
/* Sends the error of a request in place of its reply. */
void exchange_tell(struct exchange *exchange, const struct request *request,
                   const struct hps_error *err);

/* ---- explain.c ------------------------------------------------------------------------------- */

/* The stages and notes of a lookup for the field `explain`, in the request's arena. Call it while
 * the reply is encoded. NULL: the request does not have `explain` set, or there is no memory. */
const struct hps_encode_explain *request_explain(struct request *request);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the look-up service share: service.c (the methods), quota.c (what whoever asks
 * may use), unpack.c (from the bytes that came to a message), prepare.c (from a message to a
 * planned look-up), room.c (the wait for room for the reply), dispatch.c (does what comes next, and
 * decides on which thread), handover.c (to such a thread and back), reply.c and explain.c (the
 * answer), exchange.c (a call that carries many), request.c (turns, errors, the end),
 * request_pool.c (idle requests).
 *
 * A request belongs to the loop thread of its connection, which calls what is declared here unless
 * it says something else. While its phase says that somebody else has it, the loop thread touches
 * `phase`, `timer`, `pool`, `n_turns`, `call` and `gpu.left_version` alone.
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

/* Who has a request. Loop thread alone. What its timer means follows from this. */
enum request_phase {
    PHASE_LOOP,   /* the turn of its loop thread that is under way */
    PHASE_UNPACK, /* the workers, who inflate and decode it: as PHASE_WORKER */
    PHASE_CONN, /* the line of its connection, for room beside its replies; timer: it is refused */
    PHASE_ROOM, /* the queue for room, or it is on its way from there; timer: request_room_on_timer
                 */
    PHASE_WORKER, /* the workers: from its post until it is back or withdrawn, as the next */
    PHASE_IO,     /* the I/O threads; timer, of a look-up that waits so long for rows: withdrawn */
    PHASE_GPU,    /* the gpu, until it has answered; timer: it is left there */
    PHASE_AWAIT,  /* its timer: it goes on then */
    PHASE_REPLY,  /* its call, which has been given the answer, or an error, and is not over */
    PHASE_ENDED   /* nobody, and its call is over */
};

/* The call that a request is of. */
struct request_call {
    struct hps_grpc_call *grpc; /* with a reference */
    bool streaming;
    bool explain;
    bool closed;    /* on_close was called */
    bool too_large; /* its message is, whoever else is there */
    int code;       /* that we ended it with; -1: we have not */
    uint64_t start_us;
    uint64_t closed_us;
};

struct hps_account; /* server/access/account.h */
struct exchange;    /* exchange.c */

/* The room for the reply among all replies. */
struct request_room {
    struct hps_admission_ticket ticket;
    uint64_t reply_bytes; /* of the reply, and of the rows that are added for it */
    uint64_t work_bytes;  /* of what else it takes */
    uint64_t wait_us_max;
    uint64_t late_us;            /* when the wait among all is over */
    struct hps_account *account; /* of the call's grant; NULL: it has no quota of bytes */
    uint64_t account_bytes;      /* charged to it */
};

/* What the gpu has of a request. */
struct request_gpu {
    struct hps_task task;             /* from the gpu to the loop */
    uint64_t done_us;                 /* by the gpu tier's thread, before the task is posted */
    struct hps_version *left_version; /* with a pin, while a look-up that was left is there */
};

/* The answer of a request. */
struct request_reply {
    struct hps_stream *stream; /* NULL: one message */
    bool encoded;
    bool pumping; /* messages are being sent */
};

/* A look-up as a client asked for it: from its message to the end of its call. */
struct request {
    struct request *next_idle; /* of the service */
    struct hps_arena *arena;
    struct hps_arena *scratch;

    /* From here on zeroed for each request. */
    struct hps_lookup_service *service;
    const struct hps_lookup_front *front; /* by which it came */
    struct hps_lookup_asked *asked;       /* of the front end; NULL: it needs nothing */
    struct hps_loop *loop;
    enum request_phase phase;
    unsigned n_turns; /* callbacks of the loop thread that are running, one within the other */
    struct hps_timer timer;
    struct hps_task task;          /* to a worker, an I/O thread or the loop */
    struct hps_pool *pool;         /* of PHASE_UNPACK, PHASE_WORKER and PHASE_IO; else NULL */
    struct hps_grpc_packed packed; /* of PHASE_UNPACK: what came, kept by the call */
    struct request_call call;
    struct exchange *exchange; /* NULL: the call is of this request alone */
    struct request_room room;
    struct request_gpu gpu;
    struct hps_course course;
    struct hps_lookup lookup;
    enum hps_outcome outcome; /* of the step that another thread did */
    struct hps_error err;     /* of the last step that ended with one */
    struct request_reply reply;
    struct hps_usage *usage; /* of the version, once its pin is given back; NULL: as there */
    struct hps_stages stages;
    struct hps_slow_request slow;
};

/* Shared by all loops. */
struct hps_lookup_service {
    struct hps_lookup_service_parts parts; /* limits: the next three are what holds */
    _Atomic uint32_t tables_max;
    _Atomic uint32_t keys_max;
    _Atomic uint64_t queue_us_max;
    struct hps_grpc_method methods[2]; /* of hps.v1 */
    struct hps_grpc_service grpc;
    struct hps_lock lock; /* over the next three */
    struct request *idle;
    uint32_t n_idle;
    uint32_t n_used;
};

/* ---- request_pool.c -------------------------------------------------------------------------- */

/* An idle one, or a new one: with empty arenas, and nothing else that is set. Any thread. NULL: no
 * memory. */
struct request *request_take(struct hps_lookup_service *service);
/* Back to the idle ones; or freed, when there are enough. Any thread. */
void request_give(struct hps_lookup_service *service, struct request *request);
/* Free the idle ones. No other may be left. */
void request_free_idle(struct hps_lookup_service *service);

/* ---- request.c ------------------------------------------------------------------------------- */

/* A request for a call, in PHASE_LOOP, that began then: its time, and what it says itself of its
 * deadline, count from there. NULL: no memory.
 *
 * unit    start_us by hps_clock_us
 */
struct request *request_new(struct hps_lookup_service *service,
                            const struct hps_lookup_front *front, struct hps_grpc_call *call,
                            bool streaming, uint64_t start_us);
/* Every callback of the loop thread that touches a request stands between these two; they nest. At
 * the end of the outermost one the request is sane; and is given back, if nobody has it any more:
 * it may be gone afterwards. */
void request_turn_begin(struct request *request);
void request_turn_end(struct request *request);
/* Asserts that phase, timer, pool, pins, ticket and answer are legal together between two turns. */
void request_sane(const struct request *request);
/* The request was elsewhere, and goes on here, in PHASE_LOOP. */
void request_arrive(struct request *request);
/* What tiers, and waiting for other look-ups, had of the time that the look-up worked since this
 * was asked last. The stage of work has ended. */
void request_name_work(struct request *request);
/* End the call with an error. Nothing else has ended it. */
void request_fail(struct request *request, const struct hps_error *err);
/* ... and tell the client to try again in a moment. */
void request_fail_retry(struct request *request, const struct hps_error *err);
/* End the call for want of room: the client is told when to come back, in a moment or after so many
 * us. */
void request_reject(struct request *request, enum hps_reject reason, const struct hps_error *err);
void request_reject_for(struct request *request, enum hps_reject reason, uint64_t retry_us,
                        const struct hps_error *err);
/* Rows are copied or of no use any more: let the catalog have the version. */
void request_unpin(struct request *request);

/* ---- unpack.c -------------------------------------------------------------------------------- */

/* A message has come: unpack and prepare it here if that takes no longer than a small look-up, else
 * on a worker; then ask for room for its reply. Within its callback. */
void request_unpack(struct request *request, const struct hps_grpc_packed *packed);
/* PHASE_UNPACK, and its call is over. */
void request_unpack_close(struct request *request);

/* ---- prepare.c ------------------------------------------------------------------------------- */

/* Decode a message, note who asks, pin the version, and plan the look-up. Of data[size] nothing is
 * needed afterwards. The version stays pinned also on failure, until the request ends.
 * thread  the loop's, or that of PHASE_UNPACK
 * error   INVALID, NOT_FOUND (model, version, table), UNAVAILABLE (max_staleness_ms), EXHAUSTED;
 *         what the decoder, the model set and the plan say */
hps_status request_prepare(struct request *request, const uint8_t *data, size_t size,
                           struct hps_error *err) HPS_MUST_CHECK;

/* ---- quota.c --------------------------------------------------------------------------------- */

/* One more look-up of whoever asks. False: it has had those of this second, and the call is
 * rejected. */
bool request_take_turn(struct request *request) HPS_MUST_CHECK;
/* Bytes of the reply count against whoever asks, until they are discharged. False: it has too many
 * in flight, and the call is rejected. */
bool request_charge_quota(struct request *request, uint64_t bytes) HPS_MUST_CHECK;
void request_discharge_quota(struct request *request); /* if anything is charged */

/* ---- room.c ---------------------------------------------------------------------------------- */

/* Ask for room for the reply of a look-up that is prepared, first beside those of its connection,
 * then beside all. It is started then, at once or later; or rejected. */
void request_ask_room(struct request *request);
/* Bytes of the rows that the look-up adds. */
uint64_t request_pooled_bytes(const struct hps_lookup *lookup);
/* PHASE_CONN, and its connection has room: it counts against it now. */
void request_room_charged(struct request *request);
/* PHASE_CONN, and its timer is over. */
void request_conn_late(struct request *request);
/* PHASE_ROOM: slow readers are looked for, or it is late. */
void request_room_on_timer(struct request *request);
/* PHASE_ROOM, and its call is over. */
void request_room_close(struct request *request);

/* ---- dispatch.c ------------------------------------------------------------------------------ */

/* There is room for the reply: look up. */
void request_start(struct request *request);
/* The step that was under way has come to `outcome`: do what comes next, until somebody else has
 * the request, or nobody. */
void request_advance(struct request *request, enum hps_outcome outcome);
/* The call is over: withdraw what waits, let go of what nobody has. */
void request_close(struct request *request);
/* For the timer; ctx: the request. */
void request_on_timer(void *ctx);

/* ---- handover.c ------------------------------------------------------------------------------ */

/* Each gives the request to others, which its phase tells then; they do its step, and the loop goes
 * on with request_advance. What is returned counts only if it is still in PHASE_LOOP. */

/* MEMORY and COLLECT of a large look-up. BUSY, with request->err. */
enum hps_outcome request_to_worker(struct request *request) HPS_MUST_CHECK;
/* STORES and REREAD. BUSY, with request->err. */
enum hps_outcome request_to_io(struct request *request) HPS_MUST_CHECK;
/* Back from their queue, if no thread has begun: in PHASE_LOOP. */
bool request_withdraw(struct request *request) HPS_MUST_CHECK;
/* GPU_FIRST and GPU_MISSES. REFUSED. */
enum hps_outcome request_to_gpu(struct request *request) HPS_MUST_CHECK;
/* PHASE_GPU: go on without its answer, which still comes. A device that writes cannot be called
 * back: the version stays pinned for it. In PHASE_LOOP. */
void request_leave_gpu(struct request *request);
/* For hps_lookup.gpu_done; on the gpu tier's thread. */
void request_gpu_done(struct hps_lookup *lookup);

/* ---- reply.c --------------------------------------------------------------------------------- */

/* The look-up is done: encode, let go of the version, send. */
void request_reply(struct request *request);
/* More messages of the stream, while little is queued. */
void request_pump(struct request *request);

/* ---- exchange.c ------------------------------------------------------------------------------ */

/* The answer is sent, or the gpu that was left with the request is done: it is over when both are
 * so, and the answer has left. */
void exchange_sent(struct exchange *exchange);
/* Instead of an answer. */
void exchange_tell(struct exchange *exchange, const struct request *request,
                   const struct hps_error *err);

/* ---- explain.c ------------------------------------------------------------------------------- */

/* Stages and notes of a look-up that is being answered, in its arena. NULL: the client did not ask,
 * or there is no memory for them. */
const struct hps_encode_explain *request_explain(struct request *request);

#endif

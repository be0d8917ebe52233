/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the look-up service share: service.c (the methods, and the wait for room),
 * prepare.c (from a message to a planned look-up), dispatch.c (which thread does what of it),
 * unit.c (those that want a unit), reply.c (the answer), request.c (requests are taken, ended with
 * an error, and given back).
 *
 * A request belongs to the loop thread of its connection, which calls what is declared here unless
 * it says something else; but while a worker or an I/O thread has it, to that.
 */
#ifndef HPS_SERVER_LOOKUP_INTERNAL_H
#define HPS_SERVER_LOOKUP_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

#include "base/arena.h"
#include "base/assert.h"
#include "cache/lookup/lookup.h"
#include "cache/update/update.h"
#include "net/loop.h"
#include "server/lookup/encode.h"
#include "server/lookup/service.h"
#include "server/observe/stages.h"

#define CONTAINER_OF(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

/* Of a look-up, what is done without waiting: memory tiers, then what the gpu had of the rest. */
enum step { STEP_MEMORY, STEP_GPU };

/* A look-up as a client asked for it: from its message to the end of its call. */
struct request {
    struct request *next_idle; /* of the service */
    struct hps_arena *arena;
    struct hps_arena *scratch;

    /* From here on zeroed for each request. */
    struct hps_lookup_service *service;
    struct hps_grpc_call *call;
    struct hps_loop *loop;
    unsigned n_holders; /* loop thread */
    bool streaming;
    bool closed; /* on_close was called */
    bool explain;
    bool pumping;
    struct hps_admission_ticket ticket;
    uint64_t queue_us_max; /* of its wait */
    struct hps_timer queue_timer;
    struct hps_task task;        /* to a worker, an I/O thread or the loop */
    struct hps_pool *pool;       /* that the task was posted to, until it is back; NULL: none */
    struct hps_timer wait_timer; /* of one that waits so long for rows: of the gpu, or for an I/O
                                    thread; or of a unit, before it is read again */
    enum step step;              /* what a worker does, or did */
    bool step_done;              /* it: all keys are answered */
    bool gpu_first;              /* the gpu is asked before the memory tiers, not after them */
    bool at_gpu;                 /* it has the look-up */
    struct hps_task gpu_task;    /* from the gpu to the loop */
    struct hps_version *gpu_version; /* with a pin, of a look-up that was left there */
    struct hps_update_hold hold;     /* of one that wants a unit */
    bool hold_waits;                 /* in line */
    unsigned n_tries;                /* from the beginning, but for those that found rows ahead */
    unsigned n_waits;                /* for updates after those, or for the client's share */
    bool unit_waits;                 /* now */
    bool rereads;                    /* an I/O thread is to read rows again, or does */
    bool reread;                     /* it did, beside updates */
    bool held;                       /* the same while they were held back */
    struct hps_lookup lookup;
    struct hps_stream *stream;
    hps_status status; /* of the worker */
    struct hps_error err;
    int code; /* of the call, -1: not ended by us */
    uint64_t start_us;
    uint64_t closed_us;
    bool encoded;
    uint64_t gpu_done_us; /* by the gpu tier's thread, before gpu_task is posted */
    struct hps_stages stages;
    struct hps_slow_request slow;
};

/* Shared by all loops. */
struct hps_lookup_service {
    struct hps_lookup_service_parts parts; /* limits: the next three are what holds */
    _Atomic uint32_t tables_max;
    _Atomic uint32_t keys_max;
    _Atomic uint64_t queue_us_max;
    struct hps_grpc_method methods[2];
    struct hps_grpc_service grpc;
    pthread_mutex_t lock; /* over the next three */
    struct request *idle;
    uint32_t n_idle;
    uint32_t n_used;
};

/* ---- request.c ------------------------------------------------------------------------------- */

/* An idle one, or a new one: with empty arenas, and nothing else that is set. Any thread. NULL: no
 * memory. */
struct request *request_take(struct hps_lookup_service *service);
/* One that is in no list. NULL is legal. */
void request_free(struct request *request);
/* Nobody holds it any more: account for it, and give it back. For request_drop alone. */
void request_end(struct request *request);
/* What tiers, and waiting for other look-ups, had of the time that the look-up worked since this
 * was asked last. The stage of work has ended. */
void request_name_work(struct request *request);
/* End the call with an error, unless it has ended. */
void request_fail(struct request *request, hps_status status, const struct hps_error *err);
/* End the call for want of room: the client is told when to come back. */
void request_reject(struct request *request, enum hps_reject reason, const struct hps_error *err);

/* It stays until whoever holds it has dropped it. */
static inline void request_hold(struct request *request)
{
    HPS_ASSERT(request->n_holders > 0);
    request->n_holders++;
}

/* It may be gone afterwards. */
static inline void request_drop(struct request *request)
{
    HPS_ASSERT(request->n_holders > 0);
    if (--request->n_holders == 0) {
        request_end(request);
    }
}

/* Rows are copied or of no use any more: let the catalog have the version. */
static inline void request_unpin(struct request *request)
{
    if (request->lookup.version != NULL) {
        hps_version_unpin(request->lookup.version);
        request->lookup.version = NULL;
    }
}

/* ---- prepare.c ------------------------------------------------------------------------------- */

/* Decode a message, note who asks, pin the version, and plan the look-up. Of data[size] nothing is
 * needed afterwards. The version stays pinned also on failure, until the request ends.
 * error   INVALID, NOT_FOUND (model, version, table), UNAVAILABLE (max_staleness_ms), EXHAUSTED;
 *         what the decoder, the model set and the plan say */
hps_status request_prepare(struct request *request, const uint8_t *data, size_t size,
                           struct hps_error *err) HPS_MUST_CHECK;

/* ---- dispatch.c ------------------------------------------------------------------------------ */

/* There is room for the reply: look up. The call may have ended when this returns. */
void request_start(struct request *request);
/* The look-up from its beginning; there is a block for its rows. */
void request_start_try(struct request *request);
/* The look-up has ended, as `status` and `err` say: answer, or what unit.c makes of it. */
void request_finish(struct request *request, hps_status status, const struct hps_error *err);
/* Have a thread of `pool` call `run`; name: of the pool, for people. takes `request` on OK.
 * EXHAUSTED, in request->err: too many wait. */
hps_status request_post_to(struct request *request, struct hps_pool *pool, const char *name,
                           void (*run)(struct hps_task *task)) HPS_MUST_CHECK;
/* Have the loop call `run`. Worker or I/O thread, which has the request no longer. */
void request_post_back(struct request *request, void (*run)(struct hps_task *task));
/* For request_post_back: an I/O thread is done with the request. */
void request_io_done(struct hps_task *task);
/* Back from the pool, if it waits for a thread of one. The caller drops it. */
bool request_withdraw(struct request *request);
/* The client waits no longer for rows. An I/O thread that is asking a store knows that itself. Or a
 * unit has waited before it is read again. For wait_timer; ctx: the request */
void request_wait_over(void *ctx);

/* ---- unit.c ---------------------------------------------------------------------------------- */

/* It has ended with ABORTED: look up again, or no more: the client may try, as `err` says. */
void request_finish_torn(struct request *request, const struct hps_error *err);
/* What updates have changed since it was read, as long as they go on. Ends in request->status. I/O
 * thread. */
void request_reread(struct request *request);
/* Its wait is over: for updates, or for what its client may have. */
void request_unit_resume(struct request *request);

/* ---- reply.c --------------------------------------------------------------------------------- */

/* The look-up is done: encode, let go of the version, send. */
void request_reply(struct request *request);
/* More messages of the stream, while little is queued. */
void request_pump(struct request *request);

#endif

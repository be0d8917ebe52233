/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the C library share:
 *
 *     hpsd.c          clients, and who drives them; calls that wait
 *     hpsd_lookup.c   lookups: checked, encoded, started, waited for
 *     hpsd_model.c    descriptions of models
 *     hpsd_call.c     a call: its attempts, until it has ended
 *     hpsd_servers.c  the servers: chosen, failed, reachable again
 *
 * Who drives. The connections of a client are on one loop. One thread at a time turns the loop: the
 * driver. While other calls are in flight this is the thread of the client. A caller that waits for
 * the only call drives by itself, which saves two changes of threads. If another call is submitted
 * before the end, the caller lets the thread of the client drive. So user callbacks run only on the
 * thread of the client.
 *
 * Without calls, the thread of the client turns the loop every few seconds, because servers close
 * connections that leave a PING without an answer.
 *
 * The lock protects the fields marked `lock`. Everything else of servers and calls belongs to the
 * driver.
 */
#ifndef HPS_CLIENT_HPSD_INTERNAL_H
#define HPS_CLIENT_HPSD_INTERNAL_H

#include <sys/types.h>

#include "base/buf.h"
#include "base/lock.h"
#include "base/worker.h"
#include "client/hpsd.h"
#include "client/intake.h"
#include "client/zipf.h"
#include "net/grpc.h"
#include "net/loop.h"

enum { HPSD_SERVERS_MAX = 64 };

struct hpsd_server;

/* One connection at a time to a server. */
struct hpsd_link {
    struct hpsd_server *server;
    struct hps_grpc_channel *channel; /* NULL: none was needed so far */
    bool suspect; /* no reply came in time: the next use checks the connection */
    bool probing; /* a health check is in flight */
};

struct hpsd_server {
    struct hpsd_client *client;
    char *address;
    struct hps_tls *tls;
    struct hpsd_link *links; /* [n_links] */
    uint32_t next_link;
    size_t n_attempts;   /* in flight */
    bool proven;         /* it has answered since it last failed */
    bool unreachable;    /* it has failed, and no health check has been answered since */
    unsigned n_failures; /* in a row */
    uint64_t down_until_us;
};

enum hpsd_driver { HPSD_DRIVER_NONE, HPSD_DRIVER_THREAD, HPSD_DRIVER_CALLER };

struct hpsd_client {
    struct hps_lock lock;
    struct hps_cond wake; /* the thread waits here while it does not drive */
    struct hps_worker worker;
    struct hps_loop *loop;
    struct hps_task nudge;       /* ends a turn of the driver */
    bool nudged;                 /* lock; `nudge` is posted */
    bool closing;                /* lock */
    enum hpsd_driver driver;     /* lock */
    struct hpsd_call *calls;     /* lock; calls in flight */
    size_t n_calls;              /* lock */
    struct hpsd_call *queue;     /* lock; to be started or cancelled by the thread */
    struct hpsd_call *queue_end; /* lock */
    uint64_t last_id;            /* lock */
    uint64_t driven_us;          /* lock; when the loop was last turned */
    pid_t pid;
    /* Constant. */
    char *token;
    uint64_t timeout_us;
    size_t reply_bytes_max;
    bool single_attempt;
    uint32_t n_links; /* of each server */
    uint32_t n_servers;
    struct hpsd_server *servers; /* [n_servers] */
    struct hps_random random;    /* driver */
};

/* A call, from its request until its end. Constant fields are set before it is submitted. */
struct hpsd_call {
    struct hpsd_client *client;
    struct hpsd_call *next, *prev; /* lock; in client->calls */
    struct hpsd_call *queue_next;  /* lock */
    bool queued;                   /* lock */
    bool cancelled;                /* lock */
    bool ended;                    /* lock; of a call that a thread waits for */
    uint64_t id;
    /* Constant. */
    const char *path;
    struct hps_buf request;
    uint64_t timeout_us;
    uint64_t deadline_us;
    struct hpsd_link *pinned;               /* the only connection to use, once; NULL: any */
    void (*on_end)(struct hpsd_call *call); /* once, by the driver; may free the call */
    void *waiter;                           /* of the owner of on_end */
    hpsd_done_fn done;
    void *done_ctx;
    /* Driver. */
    bool started;
    bool failed;            /* `error` is the end; on_end follows */
    struct hpsd_link *link; /* of the attempt in flight */
    struct hps_grpc_client_call *grpc;
    struct hps_timer timer; /* the next attempt, or the end */
    uint64_t tried;         /* bit i: server i has failed in this round */
    unsigned n_attempts;
    unsigned n_rounds;
    char refusal[240]; /* why a server was UNAVAILABLE or ABORTED; "": none was */
    int refusal_code;
    struct hps_error refused; /* why the reply cannot be used */
    struct hpsd_error error;
    struct hpsd_reply reply;
    struct hps_buf message; /* the reply of a call that is no lookup */
    unsigned n_messages;
    struct hps_intake intake; /* queries is NULL: not a lookup */
};

/* ---- hpsd.c ---------------------------------------------------------------------------------- */

/* Sets `error` (may be NULL) to the gRPC code of err->status and its text. Returns the code. */
enum hpsd_status hpsd_error_take(struct hpsd_error *error, const struct hps_error *err);
/* Whether the calling process may use the client, and if `waits` whether this thread may wait. */
enum hpsd_status hpsd_client_check(const struct hpsd_client *client, bool waits,
                                   struct hpsd_error *error);
/* Starts a call. Its owner gets it back by on_end. CLOSED: the client is being closed. out_id may
 * be NULL. */
hps_status hpsd_client_submit(struct hpsd_client *client, struct hpsd_call *call, uint64_t *out_id)
    HPS_MUST_CHECK;
/* Starts a call and waits until it has ended. Sets on_end. */
void hpsd_client_wait(struct hpsd_client *client, struct hpsd_call *call);

/* ---- hpsd_call.c ----------------------------------------------------------------------------- */

/* The n_extra bytes after the struct are for its owner. NULL: no memory. Any thread. */
struct hpsd_call *hpsd_call_new(struct hpsd_client *client, const char *path, uint64_t timeout_us,
                                size_t n_extra);
void hpsd_call_free(struct hpsd_call *call);
/* Makes the first attempt. on_end follows later, not within this function. Driver. */
void hpsd_call_start(struct hpsd_call *call);
/* Ends the call, which may not have started. on_end is called within this function. Driver. */
void hpsd_call_abort(struct hpsd_call *call);

/* ---- hpsd_servers.c -------------------------------------------------------------------------- */

/* addresses: separated by commas. */
hps_status hpsd_servers_open(struct hpsd_client *client, const struct hpsd_options *options,
                             struct hps_error *err) HPS_MUST_CHECK;
void hpsd_servers_close(struct hpsd_client *client);
/* The server for the next attempt. tried: bit i: not server i, unless all were tried. */
struct hpsd_server *hpsd_servers_pick(struct hpsd_client *client, uint64_t tried);
/* The next connection of the server, in turn. */
struct hpsd_link *hpsd_server_link(struct hpsd_server *server);
/* Makes sure that the link has a channel. */
hps_status hpsd_link_open(struct hpsd_link *link, struct hps_error *err) HPS_MUST_CHECK;
/* How long an attempt may take if the call has `left_us` and all servers have failed n_rounds
 * times. */
uint64_t hpsd_server_limit(const struct hpsd_server *server, uint64_t left_us, unsigned n_rounds);
void hpsd_server_worked(struct hpsd_server *server);
void hpsd_server_failed(struct hpsd_server *server);
/* A random time from half of `us` to `us`. */
uint64_t hpsd_client_jitter(struct hpsd_client *client, uint64_t us);

#endif

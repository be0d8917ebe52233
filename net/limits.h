/* SPDX-License-Identifier: Apache-2.0
 *
 * The memory that clients use, and how much of it each of them may use.
 *
 * Two sums of bytes are limited: *requests* (calls, their headers and messages, and what is decoded
 * from them) and *replies* (replies of all methods, and the work of lookups). A call has one
 * *charge*, which grows before the call takes memory. A charge counts in up to four *accounts*: of
 * its connection, of the caller's identity, of the client's address, and of all clients. Each
 * account has a limit:
 *
 *     all         `max`
 *     address     (max - what all clients hold) / share
 *     identity    the same, and the quota that the rules of the identity set
 *     connection  `connection_max`
 *
 * A charge grows only if each of its accounts then stays within its limit. A charge that is alone
 * in an account may exceed the limit of this account, so one large request or reply is always
 * possible. With a share of 0.25 one client gets 80 % of `max`, two get 44 % each, and so on: there
 * is always some memory left for the next client.
 *
 * Small charges have precedence:
 *
 *   - A charge with more than 64 KiB of request memory leaves the last eighth of `max` to others.
 *   - Replies may wait for memory. Small ones (max / 64) and large ones wait in separate queues,
 *     and accounts take turns in each. While a large one waits for the memory of all clients, the
 *     small ones that pass it may hold an eighth of `max`.
 *
 * Operators (connections of the admin listener) may use a sixteenth more than `max`, and no share
 * limits them. So they can act while clients hold everything.
 *
 * Threads: any, unless a comment says otherwise. Threads that charge at the same time may exceed a
 * limit by one step each, of at most max / 64 for replies. Charging takes the lock only for replies
 * that wait or are large.
 */
#ifndef HPS_NET_LIMITS_H
#define HPS_NET_LIMITS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "base/metric.h"
#include "base/status.h"

enum hps_limit { HPS_LIMIT_REQUESTS, HPS_LIMIT_REPLIES, HPS_LIMIT_COUNT };
enum hps_limit_scope {
    HPS_SCOPE_CONNECTION,
    HPS_SCOPE_IDENTITY,
    HPS_SCOPE_ADDRESS,
    HPS_SCOPE_ALL,
    HPS_SCOPE_COUNT
};
/* Labels of metrics: "request_bytes", "reply_bytes"; "connection", "identity", "address", "all". */
const char *hps_limit_name(enum hps_limit limit);
const char *hps_limit_scope_name(enum hps_limit_scope scope);

/* Request bytes of an open call: its structs, its kept headers, and a message of up to 1 KiB. */
enum { HPS_CALL_BYTES = 4096, HPS_CALL_MESSAGE_BYTES = 1024 };

struct hps_limits_options {
    uint64_t max[HPS_LIMIT_COUNT];
    uint64_t connection_max[HPS_LIMIT_COUNT];
    double share; /* 0: no limit for addresses and identities */
};

/* Each may be NULL. */
struct hps_limits_metrics {
    struct hps_metric *used[HPS_LIMIT_COUNT], *max[HPS_LIMIT_COUNT]; /* gauges */
    struct hps_metric *largest[HPS_LIMIT_COUNT]; /* gauges: of one address or identity */
    struct hps_metric *in_flight;                /* gauge: the same as used[HPS_LIMIT_REPLIES] */
    struct hps_metric *waiting;                  /* gauge: replies that wait */
    struct hps_metric *refused[HPS_LIMIT_COUNT][HPS_SCOPE_COUNT]; /* counters */
};

struct hps_limits;

/* NULL: no memory. */
struct hps_limits *hps_limits_new(const struct hps_limits_options *options,
                                  const struct hps_limits_metrics *metrics);
/* Changes the limits. Charges keep the bytes that they hold. Replies that wait for other
 * clients are granted if they fit now, others when their connection returns memory. */
void hps_limits_set(struct hps_limits *limits, const struct hps_limits_options *options);
/* No account may be referenced. NULL has no effect. */
void hps_limits_free(struct hps_limits *limits);
uint64_t hps_limits_used(const struct hps_limits *limits, enum hps_limit limit); /* bytes */
void hps_limits_export(struct hps_limits *limits); /* sets the gauges */

/* ---- accounts -------------------------------------------------------------------------------- */

struct hps_account;

/* The account of an address or identity: "address:10.0.0.7", "user:1000", "token:ci". All addresses
 * of an IPv6 network of 64 bits have one account. Refusals contain the name.
 *
 * owner   the caller, hps_account_unref
 * error   NULL: no memory
 */
struct hps_account *hps_account_get(struct hps_limits *limits, const char *name);
/* A new account of a connection from `address`. Takes over the caller's reference to `address`,
 * also on failure. owner, error: as hps_account_get */
struct hps_account *hps_account_connection(struct hps_account *address, bool is_operator);
/* NULL has no effect. An account by name is kept until its rate (hps_account_take) has recovered.
 */
void hps_account_unref(struct hps_account *account);
uint64_t hps_account_used(const struct hps_account *account, enum hps_limit limit); /* bytes */
/* Whether the replies of a connection hold connection_max, or a reply waits for it. */
bool hps_account_is_full(const struct hps_account *connection);
/* Counts one call or message. False: there were more than per_s a second on average, or more than
 * per_s at once; *out_retry_us is the time until the next one is allowed.
 *
 * unit    per_s > 0; now_us: hps_clock_us
 */
bool hps_account_take(struct hps_account *account, uint32_t per_s, uint64_t now_us,
                      uint64_t *out_retry_us);

/* ---- charges --------------------------------------------------------------------------------- */

enum hps_charge_state {
    HPS_CHARGE_IDLE,             /* does not wait */
    HPS_CHARGE_WAITS_CONNECTION, /* for memory of its connection */
    HPS_CHARGE_WAITS,            /* for memory of its client, or of all */
};

/* Embedded in a call; zeroed before hps_charge_open. The caller sets `on_granted` and `ctx`. */
struct hps_charge {
    struct hps_account *connection; /* referenced; NULL: closed */
    struct hps_account *identity;   /* borrowed; NULL: none */
    _Atomic uint64_t quota;         /* reply bytes of the identity; 0: none */
    _Atomic uint64_t held[HPS_LIMIT_COUNT];
    uint64_t passed; /* reply bytes that were granted while a large charge waited */
    /* The charge has waited, and holds the bytes now. Runs on the thread that freed the memory, and
     * holds no lock. */
    void (*on_granted)(void *ctx);
    void *ctx;
    _Atomic(enum hps_charge_state) state; /* may change to IDLE or WAITS on other threads */
    unsigned size;                        /* while it waits: large or small */
    uint64_t wanted;                      /* while it waits */
    TAILQ_ENTRY(hps_charge) link;         /* while it waits */
};

/* Opens the charge of a call: HPS_CALL_BYTES of request memory. connection NULL: nothing is
 * counted, and the functions below have no effect.
 *
 * error   EXHAUSTED: *err names the account, the limit and the option, and says what to do. The
 *         refusal is counted in metrics->refused. The charge stays closed
 */
hps_status hps_charge_open(struct hps_charge *charge, struct hps_account *connection,
                           struct hps_error *err) HPS_MUST_CHECK;
/* The call has an identity. It must be set once, while no reply memory is held. `identity` may be
 * the account of the address. It must stay valid until the charge is closed. error: as
 * hps_charge_open. */
hps_status hps_charge_identify(struct hps_charge *charge, struct hps_account *identity,
                               uint64_t quota, struct hps_error *err) HPS_MUST_CHECK;
/* Changes the quota. The charge keeps the bytes that it holds. */
void hps_charge_quota_set(struct hps_charge *charge, uint64_t quota);
/* Holds `bytes` more, before they are allocated. error: as hps_charge_open. Reply memory that does
 * not wait is not limited by connection_max, but counts there. */
hps_status hps_charge_grow(struct hps_charge *charge, enum hps_limit limit, uint64_t bytes,
                           struct hps_error *err) HPS_MUST_CHECK;
void hps_charge_shrink(struct hps_charge *charge, enum hps_limit limit, uint64_t bytes);
/* Holds `bytes` of reply memory, later if necessary. OK: they are held. AGAIN: the charge waits;
 * on_granted follows unless hps_charge_cancel returns true. First it waits for its connection, in
 * order, without delaying other connections. The caller limits the time.
 *
 * error   EXHAUSTED: the quota of the identity would be exceeded
 */
hps_status hps_charge_wait(struct hps_charge *charge, uint64_t bytes, struct hps_error *err)
    HPS_MUST_CHECK;
/* True: the charge waited, does not wait any more, and on_granted is not called. *out_scope: the
 * account for whose memory it waited. *err: why, as for hps_charge_open, with "within wait_us".
 * Both may be NULL. */
bool hps_charge_cancel(struct hps_charge *charge, uint64_t wait_us, enum hps_limit_scope *out_scope,
                       struct hps_error *err);
/* The account that has too little memory for `bytes` more; COUNT: each has enough. ALL has
 * precedence, then the order of the enum. The reply memory of the connection is not checked. The
 * result may change at any time. */
enum hps_limit_scope hps_charge_short_of(const struct hps_charge *charge, enum hps_limit limit,
                                         uint64_t bytes);
/* For hps_arena_on_grow; ctx: the charge. Chunks are request memory until the charge is closed. */
bool hps_charge_arena(void *ctx, size_t bytes);
/* Gives everything back. The charge must not wait. No effect on a closed charge. */
void hps_charge_close(struct hps_charge *charge);

#endif

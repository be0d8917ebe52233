/* SPDX-License-Identifier: Apache-2.0
 *
 * Limits the number of connections, and chooses which connection to close when the limit is
 * reached. Each connection has a place, from its accept to its end. Its client is an IPv4 address,
 * an IPv6 /64 network, or a Unix user (hps_sock_client).
 *
 * When `max` places are taken, a new connection displaces another one, which is then closed:
 *
 *   - If some clients have more places than its client has with the new connection, the client with
 *     the most places loses its slowest connection.
 *   - Else its client has the most places, alone or with others. These clients lose the slowest
 *     connection that has been without calls for a second. If there is none, the new connection is
 *     refused.
 *
 * So a client with fewer connections than another one gets a place, and clients with equally many
 * do not take those from each other that have calls. A search compares at most 512 connections.
 *
 * The slowest connection is the first of these; of several, the one without progress (see
 * hps_place_busy) for the longest time:
 *
 *   1. without calls for a second, and without any request so far
 *   2. without calls for a second
 *   3. without calls for less than a second: its client may be about to use it
 *   4. with calls in flight
 *
 * A client is slowed if its connections repeatedly fail before their first request, or make calls
 * that are not authenticated (see limits.failures_max). Of a slowed client, only
 * HPS_PLACES_LET_IN_PER_S connections are accepted per second.
 *
 * Any thread, unless stated otherwise.
 */
#ifndef HPS_NET_PLACES_H
#define HPS_NET_PLACES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/metric.h"

struct hps_place_table;
struct hps_place; /* of one connection */

/* Connections of a slowed client that are accepted per second, on average. At most this many are
 * accepted at the same moment. */
enum { HPS_PLACES_LET_IN_PER_S = 10 };

/* Why a connection is refused. The name is a metric label. */
enum hps_place_refusal {
    HPS_PLACES_FULL,       /* `max` is reached, and no connection may be displaced */
    HPS_PLACES_CLIENT_MAX, /* its client has reached client_max */
    HPS_PLACES_SLOWED,     /* its client is slowed */
    HPS_PLACES_FAILED,     /* no memory or system resource for it (the acceptor, too) */
    HPS_PLACES_REFUSALS
};

/* Which connection is displaced. The name is a metric label. */
enum hps_place_loss {
    HPS_PLACES_IDLE,  /* one without calls; its label is "idle" */
    HPS_PLACES_CALLS, /* one with calls in flight; its label is "share" */
    HPS_PLACES_LOSSES
};

const char *hps_place_refusal_name(enum hps_place_refusal why);
const char *hps_place_loss_name(enum hps_place_loss which);

struct hps_place_limits {
    unsigned max;          /* places; 0: no limit */
    unsigned client_max;   /* places of one client; 0: no limit. Does not apply to Unix users */
    unsigned failures_max; /* failures per minute above which a client is slowed; 0: never */
    /* True: the server replies to each call at once, so a connection with calls waits for its
     * client. Then such a connection counts as one without calls, and the slowest connection is
     * displaced even in its first second. A displaced connection must close within an iteration of
     * its loop: see hps_place_leaves_at_once. */
    bool short_calls;
};

/* Creates a table. displaced[HPS_PLACES_LOSSES]: counters (copied); the array and each of them may
 * be NULL. Returns NULL if there is no memory. */
struct hps_place_table *hps_places_new(const struct hps_place_limits *limits,
                                       struct hps_metric *const *displaced);
/* Drops the owner's reference to the table. Places stay valid. NULL has no effect. */
void hps_places_free(struct hps_place_table *table);
/* Sets the limits for connections that are admitted from now on. */
void hps_places_limits_set(struct hps_place_table *table, const struct hps_place_limits *limits);
/* The number of places, also of displaced connections that have not closed yet. */
unsigned hps_places_taken(struct hps_place_table *table);

/* Admits a new connection and returns its place. If another connection is displaced, its on_leave
 * is called before this returns. Displaced connections that have not closed yet do not count
 * towards `max`. At most 64 of them may be open, or any number with short_calls.
 *
 * unit    client: from hps_sock_client; is_unix: it is a Unix socket; now_us: from hps_clock_us
 * owner   the caller owns the place and frees it with hps_place_free
 * error   NULL: the connection is refused, and *out_why is set
 */
struct hps_place *hps_places_admit(struct hps_place_table *table, uint64_t client, bool is_unix,
                                   uint64_t now_us, enum hps_place_refusal *out_why) HPS_MUST_CHECK;
/* Frees the place of a connection that has ended. NULL has no effect. */
void hps_place_free(struct hps_place *place);

/* Allows the connection to be displaced from now on. Without this call it is never displaced. When
 * it is displaced, hps_place_is_leaving becomes true, and the thread that admits the other
 * connection calls on_leave(ctx) once. on_leave runs under a lock, so it may only post to a loop.
 * `ctx` must stay valid until hps_place_free. */
void hps_place_on_leave(struct hps_place *place, void (*on_leave)(void *ctx), void *ctx);
bool hps_place_is_leaving(const struct hps_place *place);
/* Whether the calls of a displaced connection are aborted instead of getting time to end. */
bool hps_place_leaves_at_once(const struct hps_place *place);

/* Records that the connection has calls in flight, and that one of them has begun or its client has
 * read a part of a reply. Cheap. Only on the connection's thread. NULL has no effect. */
void hps_place_busy(struct hps_place *place, uint64_t now_us);
/* Records that the last call of the connection has ended. Cheap. Only on the connection's thread.
 * NULL has no effect. */
void hps_place_idle(struct hps_place *place, uint64_t now_us);

/* Records a failure that the client of the connection has caused: the connection ended before its
 * first request, or a call was not authenticated. If the caller should report the client now,
 * returns its number of failures since the last report; else 0. The caller should report a client
 * at its first failure, then at most every 10 s. NULL: no effect, returns 1. */
uint64_t hps_place_failed(struct hps_place *place, uint64_t now_us);

#endif

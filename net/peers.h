/* SPDX-License-Identifier: Apache-2.0
 *
 * Limits the number of connections, and chooses which connection to close when a limit is reached.
 * A peer is the set of clients with the same hps_sock_client: an IPv4 address, an IPv6 /64 network,
 * or a Unix user. Each connection has a slot (struct hps_peer_slot), from its accept to its end.
 *
 * A new connection is refused if its peer is slowed (see below) or has reached
 * connections_per_peer_max. Otherwise it is accepted while fewer than connections_max connections
 * are open. At connections_max, it displaces an open connection, which is then closed. If none may
 * be displaced, the new connection is refused.
 *
 * The share of a peer is limits.share * connections_max. A connection is displaced from:
 *
 *   1. the peer of the new connection, if this peer has its share or more
 *   2. else the peer with the most connections, if any peer has more than its share
 *   3. else all peers
 *
 * Connections that have made no request so far are displaced first, then idle connections, then
 * connections with calls in flight. Of several, the one that has been idle for longest is
 * displaced. Some connections may be displaced in case 2 only:
 *
 *   - connections with calls in flight
 *   - connections that have been idle, or without a request, for less than a second, because their
 *     clients may be about to use them. With limits.idle_at_once, they may always be displaced
 *
 * A search for the connection to displace compares at most 512 connections.
 *
 * A peer is slowed if its connections repeatedly fail before their first request, or make calls
 * that are not authenticated (see limits.failures_max). While it is slowed, only
 * HPS_PEERS_LET_IN_PER_S of its connections are accepted per second.
 *
 * Any thread, unless stated otherwise.
 */
#ifndef HPS_NET_PEERS_H
#define HPS_NET_PEERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/metric.h"

struct hps_peers;     /* the table of peers */
struct hps_peer_slot; /* the slot of one connection */

/* Connections of a slowed peer that are accepted per second, on average. At most this many are
 * accepted at the same moment. */
enum { HPS_PEERS_LET_IN_PER_S = 10 };

/* Why a connection is refused. The name is a metric label. */
enum hps_peers_refusal {
    HPS_PEERS_FULL,     /* connections_max is reached, and no connection may be displaced */
    HPS_PEERS_PEER_MAX, /* its peer has reached connections_per_peer_max */
    HPS_PEERS_SLOWED,   /* its peer is slowed */
    HPS_PEERS_FAILED,   /* no memory or system resource for it */
    HPS_PEERS_REFUSALS
};

/* Why a connection is displaced. The name is a metric label. */
enum hps_peers_loss {
    HPS_PEERS_IDLE,       /* it has been idle for longest (cases 1 and 3 above) */
    HPS_PEERS_OVER_SHARE, /* its peer has more than its share (case 2 above) */
    HPS_PEERS_LOSSES
};

const char *hps_peers_refusal_name(enum hps_peers_refusal why);
const char *hps_peers_loss_name(enum hps_peers_loss why);

struct hps_peers_limits {
    unsigned connections_max;          /* 0: no limit */
    unsigned connections_per_peer_max; /* 0: no limit. Does not apply to Unix users */
    double share;          /* share of a peer, as a fraction of connections_max; 0: no shares */
    unsigned failures_max; /* failures per minute above which a peer is slowed; 0: never slowed */
    /* True: connections may be displaced in their first idle second too, and the number of
     * displaced connections that are still open is not limited. Set by an owner whose loop both
     * accepts and closes connections, so that a displaced connection closes within a turn. */
    bool idle_at_once;
};

/* Metrics that count refused and displaced connections. Each may be NULL. */
struct hps_peers_metrics {
    struct hps_metric *refused[HPS_PEERS_REFUSALS];
    struct hps_metric *displaced[HPS_PEERS_LOSSES];
};

/* Creates a table. `metrics` is copied; NULL: nothing is counted. Returns NULL if there is no
 * memory. */
struct hps_peers *hps_peers_new(const struct hps_peers_limits *limits,
                                const struct hps_peers_metrics *metrics);
/* Drops the owner's reference to the table. Slots stay valid. NULL has no effect. */
void hps_peers_free(struct hps_peers *peers);
/* Sets the limits for connections that are admitted from now on. */
void hps_peers_limits_set(struct hps_peers *peers, const struct hps_peers_limits *limits);
unsigned hps_peers_connections(struct hps_peers *peers); /* slots in use */
uint64_t hps_peers_refused(struct hps_peers *peers);     /* connections refused so far */

/* Admits a new connection and returns its slot. If another connection is displaced, its on_leave is
 * called before this returns. Displaced connections that have not closed yet do not count towards
 * connections_max. At most 64 of them may be open, or any number with idle_at_once.
 *
 * unit    client: from hps_sock_client; is_unix: it is a Unix socket; now_us: from hps_clock_us
 * owner   the caller owns the slot and frees it with hps_peer_slot_free
 * error   NULL: the connection is refused and counted, and *out_why is set
 */
struct hps_peer_slot *hps_peers_admit(struct hps_peers *peers, uint64_t client, bool is_unix,
                                      uint64_t now_us, enum hps_peers_refusal *out_why)
    HPS_MUST_CHECK;
/* Counts a connection that the caller itself has refused, not hps_peers_admit. */
void hps_peers_count_refused(struct hps_peers *peers, enum hps_peers_refusal why);
/* Frees the slot of a connection that has ended. NULL has no effect. */
void hps_peer_slot_free(struct hps_peer_slot *slot);

/* Allows the connection to be displaced from now on. Without this call it is never displaced. When
 * it is displaced, hps_peer_slot_is_leaving becomes true, and the thread that admits the other
 * connection calls on_leave(ctx) once. on_leave runs under a lock, so it may only post to a loop.
 * `ctx` must stay valid until hps_peer_slot_free. */
void hps_peer_slot_on_leave(struct hps_peer_slot *slot, void (*on_leave)(void *ctx), void *ctx);
bool hps_peer_slot_is_leaving(const struct hps_peer_slot *slot);

/* Records that calls of the connection are in flight. Cheap. Only on the connection's thread. NULL
 * has no effect. */
void hps_peer_slot_busy(struct hps_peer_slot *slot);
/* Records that the connection is idle since now_us, after its calls have ended. Cheap. Only on the
 * connection's thread. NULL has no effect. */
void hps_peer_slot_idle(struct hps_peer_slot *slot, uint64_t now_us);

/* Adds `more` to the number of request bytes in memory for the connection. To subtract n bytes,
 * pass (size_t)0 - n. The connection must have subtracted all its bytes before hps_peer_slot_free.
 * NULL has no effect. */
void hps_peer_slot_hold(struct hps_peer_slot *slot, size_t more);
/* The number of request bytes (hps_peer_slot_hold) of all connections of the peer. NULL: 0. */
size_t hps_peer_slot_peer_bytes(const struct hps_peer_slot *slot);

/* Records a failure that the peer of the connection has caused: the connection ended before its
 * first request, or a call was not authenticated. If the caller should report the peer now, returns
 * its number of failures since the last report; else 0. The caller should report a peer at its
 * first failure, then at most every 10 s. NULL: no effect, returns 1. */
uint64_t hps_peer_slot_failed(struct hps_peer_slot *slot, uint64_t now_us);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Which clients are connected, and which connection is closed when the limit is reached. A peer is
 * the set of clients with the same hps_sock_client: an IPv4 address, an IPv6 /64 network, or a Unix
 * user. Each connection has a slot, from its accept to its end.
 *
 * Below connections_max every peer may connect, however many connections the other peers have. Only
 * connections_per_peer_max and the slowing of a peer (see below) refuse it. At connections_max a
 * new connection displaces another one:
 *
 *   - If its peer has a share or more: the connection of this peer that has been idle for longest.
 *   - Else, if peers are above the share: a connection of the peer with the most connections.
 *   - Else: the connection that has been idle for longest.
 *
 * Connections without a request yet are displaced before idle ones, and idle ones before those with
 * calls in flight. A connection with calls in flight is displaced only if its peer is above the
 * share. The same holds for one idle for less than a second, because its client may be about to use
 * it, unless limits.idle_at_once. A search compares at most 512 connections.
 *
 * A peer is slowed if its connections repeatedly fail before their first request. Then only
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

struct hps_peers; /* the table */
struct hps_seat;  /* of one connection */

enum { HPS_PEERS_LET_IN_PER_S = 10 }; /* of a slowed peer; also the size of a burst */

/* Why a connection is refused: label of a metric. */
enum hps_peers_refusal {
    HPS_PEERS_FULL,     /* connections_max, and none may be displaced */
    HPS_PEERS_PEER_MAX, /* connections_per_peer_max */
    HPS_PEERS_SLOWED,
    HPS_PEERS_FAILED, /* out of memory or of a system resource */
    HPS_PEERS_REFUSALS
};

/* Why a connection is displaced: label of a metric. */
enum hps_peers_loss {
    HPS_PEERS_IDLE,       /* idle for longest */
    HPS_PEERS_OVER_SHARE, /* its peer is above the share */
    HPS_PEERS_LOSSES
};

const char *hps_peers_refusal_name(enum hps_peers_refusal why);
const char *hps_peers_loss_name(enum hps_peers_loss why);

struct hps_peers_limits {
    unsigned connections_max;          /* 0: no limit */
    unsigned connections_per_peer_max; /* 0: no limit; Unix users have no limit */
    double share;                      /* of connections_max, for each peer; 0: no shares */
    unsigned failures_max;             /* of a peer per minute, then it is slowed; 0: never */
    /* Connections may be displaced within their first idle second, and any number at a time. For an
     * owner that accepts and closes on one loop: few displaced ones are then open between two
     * turns. */
    bool idle_at_once;
};

/* Series to count in; each may be NULL. */
struct hps_peers_metrics {
    struct hps_metric *refused[HPS_PEERS_REFUSALS];
    struct hps_metric *displaced[HPS_PEERS_LOSSES];
};

/* `metrics` is copied; NULL: none. Returns NULL if there is no memory. */
struct hps_peers *hps_peers_new(const struct hps_peers_limits *limits,
                                const struct hps_peers_metrics *metrics);
/* Slots stay valid. NULL has no effect. */
void hps_peers_free(struct hps_peers *peers);
/* For connections that are admitted from now on. */
void hps_peers_limits_set(struct hps_peers *peers, const struct hps_peers_limits *limits);
unsigned hps_peers_connections(struct hps_peers *peers); /* slots in use */
uint64_t hps_peers_refused(struct hps_peers *peers);     /* connections so far */

/* A slot for a new connection. If another connection is displaced, its on_leave is called before
 * this returns. Until displaced connections have closed, connections_max may be exceeded: by 64 at
 * most, or with idle_at_once by as many as the owner accepts before they close.
 *
 * unit    client: of hps_sock_client; is_unix: of a Unix socket; now_us: of hps_clock_us
 * owner   the slot is the caller's: hps_seat_free
 * error   NULL: refused and counted; *out_why is set
 */
struct hps_seat *hps_peers_admit(struct hps_peers *peers, uint64_t client, bool is_unix,
                                 uint64_t now_us, enum hps_peers_refusal *out_why) HPS_MUST_CHECK;
/* Counts a connection that the caller has refused. */
void hps_peers_count_refused(struct hps_peers *peers, enum hps_peers_refusal why);
/* The connection has ended. NULL has no effect. */
void hps_seat_free(struct hps_seat *seat);

/* From now on the connection may be displaced. Then hps_seat_is_leaving becomes true and on_leave
 * is called, once, by the thread that admits the other connection. on_leave runs under a lock: it
 * may only post to a loop. `ctx` must stay valid until hps_seat_free. Without this call the
 * connection is never displaced. */
void hps_seat_on_leave(struct hps_seat *seat, void (*on_leave)(void *ctx), void *ctx);
bool hps_seat_is_leaving(const struct hps_seat *seat);

/* State of the connection: calls are in flight; or none is since now_us, after it has had calls.
 * Cheap. Only on the connection's thread. No effect if NULL. */
void hps_seat_busy(struct hps_seat *seat);
void hps_seat_idle(struct hps_seat *seat, uint64_t now_us);

/* Adds `more` to the bytes of requests that the connection holds (modulo 2^64: it may be negative).
 * The second call returns the sum over all connections of the peer. The connection must have
 * subtracted all its bytes before hps_seat_free. NULL: no effect, and 0. */
void hps_seat_hold(struct hps_seat *seat, size_t more);
size_t hps_seat_peer_holds(const struct hps_seat *seat);

/* The connection has failed before its first request, and its peer is the cause. If it is time to
 * report this peer (the first time, then every 10 s), returns the number of its failures since the
 * last report; else 0. NULL: 1. */
uint64_t hps_seat_failed(struct hps_seat *seat, uint64_t now_us);

#endif

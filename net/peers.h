/* SPDX-License-Identifier: Apache-2.0
 *
 * Who is connected, and who goes when all places are taken. A peer is all clients with the same
 * hps_sock_client: an IPv4 address, an IPv6 network of 64 bits, or a Unix user. Each connection has
 * a seat, from its accept to its end.
 *
 * While there is room, everybody may come, whatever the others have. When there is none:
 *
 *     who comes and has less than a share   takes the place of a connection of whoever has most, of
 *                                           those who have more than a share; else that of the
 *                                           longest idle connection of all
 *     who comes and has a share or more     takes the place of the longest idle of its own
 *
 * Connections without a request go before idle ones, and idle ones before those that have calls. A
 * connection that has calls gives way only where its peer has more than a share. One that has been
 * idle for less than a second gives way only there, too, unless limits.idle_at_once: others might
 * be about to use it.
 *
 * A peer whose connections fail before their first request again and again is slowed: of those
 * that come from it then only some a second are let in.
 *
 * Any thread, unless it says something else.
 */
#ifndef HPS_NET_PEERS_H
#define HPS_NET_PEERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/metric.h"

struct hps_peers; /* the table */
struct hps_seat;  /* of one connection */

enum { HPS_PEERS_LET_IN_PER_S = 10 }; /* of a peer that is slowed; bursts of as many */

/* Why a connection is refused: label of a metric. */
enum hps_peers_refusal {
    HPS_PEERS_FULL,     /* connections_max, and nobody gives way */
    HPS_PEERS_PEER_MAX, /* connections_per_peer_max */
    HPS_PEERS_SLOWED,
    HPS_PEERS_FAILED, /* no memory, or whatever the system lacks */
    HPS_PEERS_REFUSALS
};

/* Why a connection gives way to another one: label of a metric. */
enum hps_peers_loss {
    HPS_PEERS_IDLE,       /* it has been idle for the longest time */
    HPS_PEERS_OVER_SHARE, /* its peer has more than a share */
    HPS_PEERS_LOSSES
};

const char *hps_peers_refusal_name(enum hps_peers_refusal why);
const char *hps_peers_loss_name(enum hps_peers_loss why);

struct hps_peers_limits {
    unsigned connections_max;          /* 0: none */
    unsigned connections_per_peer_max; /* 0: none; Unix users have none */
    double share;                      /* of connections_max; 0: no shares */
    unsigned failures_max;             /* of a peer in a minute, then it is slowed; 0: never */
    /* A connection may give way within its first second of idleness, and any number at a time: for
     * an owner whose loop accepts and closes, so that few are left between two turns. */
    bool idle_at_once;
};

/* Series that are counted; each may be NULL. */
struct hps_peers_metrics {
    struct hps_metric *refused[HPS_PEERS_REFUSALS];
    struct hps_metric *displaced[HPS_PEERS_LOSSES];
};

/* metrics: copied; NULL: none. NULL: no memory. */
struct hps_peers *hps_peers_new(const struct hps_peers_limits *limits,
                                const struct hps_peers_metrics *metrics);
/* Seats that are taken stay valid. NULL is legal. */
void hps_peers_free(struct hps_peers *peers);
/* For connections that come from now on. */
void hps_peers_limits_set(struct hps_peers *peers, const struct hps_peers_limits *limits);
unsigned hps_peers_connections(struct hps_peers *peers); /* seats that are taken */
uint64_t hps_peers_refused(struct hps_peers *peers);     /* connections so far */

/* A seat for a connection that has come. Where another one has to give way, its on_leave is called
 * before this returns; until it has gone there may be a few more than connections_max: 64 at most,
 * or with idle_at_once as many as the owner accepts before those that leave have their turn.
 *
 * client    of hps_sock_client; is_unix: of a Unix socket
 * now_us    of hps_clock_us
 * owner     the seat is the caller's, hps_seat_free
 * error     NULL: refused, counted, *out_why set
 */
struct hps_seat *hps_peers_admit(struct hps_peers *peers, uint64_t client, bool is_unix,
                                 uint64_t now_us, enum hps_peers_refusal *out_why) HPS_MUST_CHECK;
/* A connection was refused by somebody else: it is counted. */
void hps_peers_count_refused(struct hps_peers *peers, enum hps_peers_refusal why);
/* The connection is gone. NULL is legal. */
void hps_seat_free(struct hps_seat *seat);

/* The connection can be asked to give way from now on: on_leave is called, once, by the thread that
 * admits another one, under a lock: it may do no more than post to a loop. hps_seat_is_leaving is
 * true then. ctx must stay valid until hps_seat_free. */
void hps_seat_on_leave(struct hps_seat *seat, void (*on_leave)(void *ctx), void *ctx);
bool hps_seat_is_leaving(const struct hps_seat *seat);

/* What its connection does: it has calls; or it has none since then (and has had some). Cheap, and
 * by its thread alone. NULL is legal. */
void hps_seat_busy(struct hps_seat *seat);
void hps_seat_idle(struct hps_seat *seat, uint64_t now_us);

/* Its connection holds so many bytes of requests more (modulo 2^64: it may be fewer), which count
 * together with those of the other connections of its peer; all are given back before
 * hps_seat_free. NULL is legal: they count nowhere, and are 0. */
void hps_seat_hold(struct hps_seat *seat, size_t more);
size_t hps_seat_peer_holds(const struct hps_seat *seat);

/* The connection has failed before its first request, by what its peer did. Returns how often that
 * was since this peer was last told of, if it is time to tell of it again (the first time, then
 * once in 10 s); else 0. NULL is legal: 1. */
uint64_t hps_seat_failed(struct hps_seat *seat, uint64_t now_us);

#endif

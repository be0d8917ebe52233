/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of the Redis cluster client: client.c (opening, closing, status), node.c
 * (nodes, their connections, the map of slots), run.c (running commands, on workers) and keeper.c
 * (its thread). `lock` protects everything unless stated otherwise.
 */
#ifndef HPS_BACKENDS_REDIS_CLIENT_INTERNAL_H
#define HPS_BACKENDS_REDIS_CLIENT_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "backends/breaker.h"
#include "backends/redis/client/client.h"
#include "backends/redis/client/conn.h"
#include "base/worker.h"
#include "net/resolve.h"

#define HPS_REDIS_NOBODY (-1)

/* A connection that is ready for commands, in the pool or checked out. */
struct hps_redis_link {
    struct hps_redis_conn *conn;
    uint64_t generation; /* of its node when the connection was opened */
    uint64_t n_uses;
    uint64_t n_bytes_told; /* bytes received that the node's counter includes */
};

struct hps_redis_node {
    struct hps_addr addr;         /* immutable, like the next two */
    char text[HPS_ADDR_TEXT_MAX]; /* printed address */
    struct hps_breaker *breaker;
    bool entry;        /* a configured address */
    bool listed;       /* in the map of slots */
    uint64_t last_map; /* n_maps when the node was last named */
    int16_t master; /* for a listed replica: its master; HPS_REDIS_NOBODY: this node is a master */
    uint32_t n_slots;
    /* [n_idle], capacity connections_per_node; the most recently used last. */
    struct hps_redis_link *idle;
    uint32_t n_idle;
    uint32_t n_live;      /* idle or checked out */
    uint32_t n_making;    /* being opened */
    uint32_t n_waiting;   /* calls that wait for a connection */
    uint64_t generation;  /* links of an older generation are not reused */
    uint64_t made_bad_us; /* last time that opening a connection failed */
    uint64_t unnamed_us;  /* last time that its name could not be resolved */
    bool finding;         /* its name is being resolved */
    /* While n_making > 0, used by the thread (keeper.c) alone, without the lock: */
    struct hps_resolve *resolve; /* in progress, or kept; NULL: none */
    /* Index of the address to try first: the last that worked, or the one after it. */
    uint32_t turn;
    struct hps_redis_node_stats stats;
    /* When an error of this kind was last logged; 0: never. */
    uint64_t logged_us[HPS_REDIS_ERROR_KINDS];
};

struct hps_redis_cluster {
    struct hps_redis_options options; /* strings are owned */
    struct hps_tls *tls;
    struct hps_lock lock;
    struct hps_cond changed; /* a link was returned, or a node's state or the map has changed */
    /* The place of a node that has left is reused once it is idle. */
    struct hps_redis_node *nodes[HPS_REDIS_NODES_MAX];
    uint32_t n_nodes;
    uint64_t n_maps;    /* number of maps adopted */
    uint32_t n_waiting; /* threads that wait for `changed` */
    int16_t slots[HPS_REDIS_SLOTS];
    uint32_t turn; /* for choosing replicas */
    enum hps_redis_kind kind;
    struct hps_redis_stats stats;

    /* The map of slots is requested if refresh_wanted is set and refresh_at_us has passed. */
    bool refresh_wanted;
    int16_t refresh_hint; /* node to ask first, or HPS_REDIS_NOBODY */
    uint64_t refresh_at_us;
    uint64_t refreshed_us;
    uint32_t n_refreshes_failed; /* consecutive failures; each attempt asked every candidate */

    struct hps_worker thread;
    void *keeper; /* private to keeper.c */
    int wake_fd;
    bool stopping;
};

/* ---- node.c: all need the lock --------------------------------------------------------------- */

/* The index of the node, created if needed. HPS_REDIS_NOBODY: no memory, or more than
 * HPS_REDIS_NODES_MAX nodes. The index stays valid while the node is configured, listed or in
 * use. Otherwise it stays valid until two maps of slots have been adopted since the node was
 * last named. */
int16_t hps_redis_node_find(struct hps_redis_cluster *cluster, const struct hps_addr *addr);
void hps_redis_node_free(struct hps_redis_node *node);
/* Take an idle link that looks sound. False: none. */
bool hps_redis_node_checkout(struct hps_redis_node *node, struct hps_redis_link *out_link);
/* Takes ownership of the link: returns it to the pool, or closes it if it is too old or the pool is
 * full. */
void hps_redis_node_checkin(struct hps_redis_cluster *cluster, struct hps_redis_node *node,
                            struct hps_redis_link link);
/* Takes ownership of a broken link and closes it. The idle links of its generation are closed,
 * too. */
void hps_redis_node_broke(struct hps_redis_cluster *cluster, struct hps_redis_node *node,
                          struct hps_redis_link link);
/* Takes ownership of a new connection, started when the node's generation was `generation`. */
void hps_redis_node_add(struct hps_redis_cluster *cluster, struct hps_redis_node *node,
                        struct hps_redis_conn *conn, uint64_t generation);
/* Report the result of a call of the node to its breaker, and to `stats.error`; `why` is for
 * people. */
void hps_redis_node_account(struct hps_redis_cluster *cluster, struct hps_redis_node *node,
                            hps_status status, uint64_t duration_us, const char *why);
/* Same, for the probe of a node that is down (hps_breaker_enter let it through). */
void hps_redis_node_probed(struct hps_redis_cluster *cluster, struct hps_redis_node *node,
                           hps_status status, const char *why);
/* The server answered with `error`: count it and store it as `stats.error`. Log it, each kind of
 * error at most once a minute. */
void hps_redis_node_refused(struct hps_redis_node *node, const char *error);
/* Close the idle links, and the checked-out ones when they come back. */
void hps_redis_node_drop_links(struct hps_redis_node *node);

/* A new map of slots: begin, tell each range, commit. */
struct hps_redis_map {
    struct hps_redis_cluster *cluster;
    int16_t slots[HPS_REDIS_SLOTS];
    uint32_t n_slots;
    bool listed[HPS_REDIS_NODES_MAX];
    int16_t master[HPS_REDIS_NODES_MAX];
    int16_t told; /* the last master passed to tell */
};
void hps_redis_map_begin(struct hps_redis_map *map, struct hps_redis_cluster *cluster);
void hps_redis_map_tell(void *map, uint16_t first, uint16_t last, bool master,
                        const struct hps_addr *addr); /* hps_redis_slots_fn */
void hps_redis_map_commit(struct hps_redis_map *map, enum hps_redis_kind kind);
/* Move one slot to another node. */
void hps_redis_map_move(struct hps_redis_cluster *cluster, uint16_t slot, int16_t node);

/* As hps_redis_cluster_why, with the lock held. */
void hps_redis_why(const struct hps_redis_cluster *cluster, char *out_text, size_t size);

/* Wake all threads that wait for `changed`. */
void hps_redis_changed(struct hps_redis_cluster *cluster);

/* ---- keeper.c -------------------------------------------------------------------------------- */

hps_status hps_redis_keeper_start(struct hps_redis_cluster *cluster, struct hps_error *err)
    HPS_MUST_CHECK;
/* Waits until the thread has ended. */
void hps_redis_keeper_stop(struct hps_redis_cluster *cluster);
/* Any thread, with or without the lock. */
void hps_redis_keeper_wake(struct hps_redis_cluster *cluster);
/* How many connections the node still needs. Caller must hold the lock. */
uint32_t hps_redis_links_wanted(const struct hps_redis_cluster *cluster,
                                const struct hps_redis_node *node);
/* Request the map of slots, from `hint` first unless it is HPS_REDIS_NOBODY. Caller must hold the
 * lock. */
void hps_redis_refresh(struct hps_redis_cluster *cluster, int16_t hint);

#endif

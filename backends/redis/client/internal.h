/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of the Redis cluster client: client.c (opening, closing, status), node.c
 * (nodes, their connections, the map of slots), run.c (running commands, on workers) and
 * maintenance.c (the thread of the client). `lock` of struct hps_redis_cluster protects all fields
 * in this file, unless stated otherwise.
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

#define HPS_REDIS_NOBODY (-1) /* in place of the index of a node: no node */

/* A connection that is ready for commands: either idle, in its node's pool, or checked out by a
 * call. */
struct hps_redis_link {
    struct hps_redis_conn *conn;
    uint64_t generation; /* the node's generation when the connection was opened */
    uint64_t n_uses;
    uint64_t n_bytes_counted; /* received bytes that are already in the node's n_bytes_received */
};

struct hps_redis_node {
    struct hps_addr addr;         /* immutable */
    char text[HPS_ADDR_TEXT_MAX]; /* immutable: printed address */
    struct hps_breaker *breaker;  /* immutable */
    bool entry;                   /* a configured address */
    bool listed;                  /* in the map of slots */
    /* cluster's n_maps when hps_redis_node_find last returned this node. */
    uint64_t last_map;
    /* For a listed replica, the index of its master; HPS_REDIS_NOBODY: this node is a master. */
    int16_t master;
    uint32_t n_slots;
    /* [n_idle], capacity connections_per_node; the most recently used link is the last one. */
    struct hps_redis_link *idle;
    uint32_t n_idle;
    uint32_t n_live;      /* connections that are idle or checked out */
    uint32_t n_making;    /* connections that are being opened */
    uint32_t n_waiting;   /* calls that wait for a connection */
    uint64_t generation;  /* links of an older generation are not reused */
    uint64_t made_bad_us; /* hps_clock_us when opening a connection last failed; 0: never */
    /* hps_clock_us of the last failure to resolve its name; 0: the last attempt succeeded. */
    uint64_t unnamed_us;
    bool finding; /* its name is being resolved */
    /* While n_making > 0, only the thread of maintenance.c uses `resolve` and `turn`, without the
     * lock. */
    struct hps_resolve *resolve; /* resolution in progress, or its result; NULL: not resolved */
    /* Index of the resolved address to try first: the last address that worked. If the last address
     * that worked now fails, the index of the next one. */
    uint32_t turn;
    struct hps_redis_node_stats stats;
    /* For each kind of error: when it was last logged; 0: never. */
    uint64_t logged_us[HPS_REDIS_ERROR_KINDS];
};

struct hps_redis_cluster {
    struct hps_redis_options options; /* strings are owned */
    struct hps_tls *tls;
    struct hps_lock lock;
    struct hps_cond changed; /* a link was returned, or a node's state or the map has changed */
    /* The index of a node that has left the cluster is reused once the node is idle. */
    struct hps_redis_node *nodes[HPS_REDIS_NODES_MAX];
    uint32_t n_nodes;
    uint64_t n_maps;                /* number of maps of slots adopted */
    uint32_t n_waiting;             /* threads that wait for `changed` */
    int16_t slots[HPS_REDIS_SLOTS]; /* the map: index of each slot's node, or HPS_REDIS_NOBODY */
    uint32_t turn;                  /* counts reads, to use replicas in turn */
    enum hps_redis_kind kind;
    struct hps_redis_stats stats;

    /* The map of slots is requested if refresh_wanted is set and refresh_at_us has passed. */
    bool refresh_wanted;
    int16_t refresh_hint; /* node to query first, or HPS_REDIS_NOBODY */
    uint64_t refresh_at_us;
    uint64_t refreshed_us; /* when the current map was received; 0: never */
    /* Consecutive requests of the map that failed because no candidate node returned a valid
     * map. */
    uint32_t n_refreshes_failed;

    struct hps_worker thread; /* the thread of maintenance.c */
    void *maintenance;        /* private to maintenance.c */
    int wake_fd;              /* wakes the thread */
    bool stopping;
};

/* ---- node.c: callers must hold the lock ------------------------------------------------------ */

/* The index of the node with this address; the node is created if needed. HPS_REDIS_NOBODY: no
 * memory, or more than HPS_REDIS_NODES_MAX nodes. The index stays valid while the node is
 * configured, listed or in use. Otherwise it stays valid until two more maps of slots have been
 * adopted after the last call for this node. */
int16_t hps_redis_node_find(struct hps_redis_cluster *cluster, const struct hps_addr *addr);
void hps_redis_node_free(struct hps_redis_node *node);
/* Check out an idle link that can be reused (hps_redis_conn_idle_ok). False: the node has no such
 * link. */
bool hps_redis_node_checkout(struct hps_redis_node *node, struct hps_redis_link *out_link);
/* Takes ownership of the link: returns it to the pool, or closes it if its generation is old or the
 * pool is full. */
void hps_redis_node_checkin(struct hps_redis_cluster *cluster, struct hps_redis_node *node,
                            struct hps_redis_link link);
/* Takes ownership of a broken link and closes it. Unless its generation is old, the idle links of
 * the node are closed, too. */
void hps_redis_node_broke(struct hps_redis_cluster *cluster, struct hps_redis_node *node,
                          struct hps_redis_link link);
/* Takes ownership of a new connection, started when the node's generation was `generation`. */
void hps_redis_node_add(struct hps_redis_cluster *cluster, struct hps_redis_node *node,
                        struct hps_redis_conn *conn, uint64_t generation);
/* Report the result of a call of the node to its breaker. After a failure, `why` is stored as
 * stats.error. */
void hps_redis_node_account(struct hps_redis_cluster *cluster, struct hps_redis_node *node,
                            hps_status status, uint64_t duration_us, const char *why);
/* Same as hps_redis_node_account, for the probe of a node that is down (hps_breaker_enter returned
 * PROBE). */
void hps_redis_node_probed(struct hps_redis_cluster *cluster, struct hps_redis_node *node,
                           hps_status status, const char *why);
/* Record an error reply of the node: count it and store its text as `stats.error`. Also log it, but
 * each kind of error at most once a minute. */
void hps_redis_node_refused(struct hps_redis_node *node, const char *error);
/* Close the node's idle links now, and its checked-out links when they are checked in. */
void hps_redis_node_drop_links(struct hps_redis_node *node);

/* A new map of slots. Fill it with hps_redis_map_begin and one hps_redis_map_tell for each range of
 * slots; hps_redis_map_commit adopts it. */
struct hps_redis_map {
    struct hps_redis_cluster *cluster;
    int16_t slots[HPS_REDIS_SLOTS];      /* index of the node of each slot, or HPS_REDIS_NOBODY */
    uint32_t n_slots;                    /* slots with a node */
    bool listed[HPS_REDIS_NODES_MAX];    /* as hps_redis_node.listed */
    int16_t master[HPS_REDIS_NODES_MAX]; /* as hps_redis_node.master */
    /* Last master passed to hps_redis_map_tell; owner of the replicas that follow. */
    int16_t reported;
};
void hps_redis_map_begin(struct hps_redis_map *map, struct hps_redis_cluster *cluster);
void hps_redis_map_tell(void *map, uint16_t first, uint16_t last, bool master,
                        const struct hps_addr *addr); /* hps_redis_slots_fn */
void hps_redis_map_commit(struct hps_redis_map *map, enum hps_redis_kind kind);
/* Change the node of one slot in the current map. */
void hps_redis_map_move(struct hps_redis_cluster *cluster, uint16_t slot, int16_t node);

/* Same as hps_redis_cluster_why. */
void hps_redis_why(const struct hps_redis_cluster *cluster, char *out_text, size_t size);

/* Wake all threads that wait for `changed`. */
void hps_redis_changed(struct hps_redis_cluster *cluster);

/* ---- maintenance.c --------------------------------------------------------------------------- */

/* Start the thread that opens connections, probes nodes and requests the map of slots. */
hps_status hps_redis_maintenance_start(struct hps_redis_cluster *cluster, struct hps_error *err)
    HPS_MUST_CHECK;
/* Stop the thread and wait until it has ended. */
void hps_redis_maintenance_stop(struct hps_redis_cluster *cluster);
/* Make the thread of maintenance.c look for work now. Any thread, with or without the lock. */
void hps_redis_maintenance_wake(struct hps_redis_cluster *cluster);
/* How many more connections the node needs. Caller must hold the lock. */
uint32_t hps_redis_links_wanted(const struct hps_redis_cluster *cluster,
                                const struct hps_redis_node *node);
/* Have the thread request the map of slots, first from the node `hint` unless it is
 * HPS_REDIS_NOBODY. Caller must hold the lock. */
void hps_redis_refresh(struct hps_redis_cluster *cluster, int16_t hint);

#endif

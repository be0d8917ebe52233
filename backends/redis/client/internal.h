/* SPDX-License-Identifier: Apache-2.0
 *
 * What the parts of the Redis cluster client share: client.c (its life, what is known of it),
 * node.c (nodes, their connections and the map of slots), run.c (the one call, on workers) and
 * keeper.c (its thread). All of it is under `lock`, unless said otherwise.
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

/* A connection that has been introduced, in the pool or with whoever has checked it out. */
struct hps_redis_link {
    struct hps_redis_conn *conn;
    uint64_t generation; /* of its node when it was made */
    uint64_t n_uses;
    uint64_t n_bytes_told; /* of those received, how many the node's counter has */
};

struct hps_redis_node {
    struct hps_addr addr;         /* never changes, as the next two */
    char text[HPS_ADDR_TEXT_MAX]; /* of it */
    struct hps_breaker *breaker;
    bool entry;        /* configured */
    bool listed;       /* of the map of slots */
    uint64_t last_map; /* how many there had been when somebody last named it */
    int16_t master;    /* of a listed replica; NOBODY: it is a master */
    uint32_t n_slots;
    struct hps_redis_link *idle; /* [n_idle], capacity connections_per_node; last used last */
    uint32_t n_idle;
    uint32_t n_live;      /* idle and checked out */
    uint32_t n_making;    /* on their way */
    uint32_t n_waiting;   /* calls that want one */
    uint64_t generation;  /* links of an older one are not used again */
    uint64_t made_bad_us; /* when one could last not be made */
    uint64_t unnamed_us;  /* when it could last not be found by its name */
    bool finding;         /* its name is being looked up */
    /* The keeper's alone as long as n_making > 0, without the lock: */
    struct hps_resolve *resolve; /* of its name, under way or kept; NULL: none */
    uint32_t turn; /* which of its places is tried first: the last that worked, or behind it */
    struct hps_redis_node_stats stats;
    uint64_t logged_us[HPS_REDIS_ERROR_KINDS]; /* when an error of the kind was logged; 0: never */
};

struct hps_redis_cluster {
    struct hps_redis_options options; /* texts are our own */
    struct hps_tls *tls;
    struct hps_lock lock;
    struct hps_cond changed; /* a link came back, a node's state or the map changed */
    /* One that has left gives its place to the next one that comes, once nobody is at it. */
    struct hps_redis_node *nodes[HPS_REDIS_NODES_MAX];
    uint32_t n_nodes;
    uint64_t n_maps;    /* that were taken over */
    uint32_t n_waiting; /* calls on `changed` */
    int16_t slots[HPS_REDIS_SLOTS];
    uint32_t turn; /* of replicas */
    enum hps_redis_kind kind;
    struct hps_redis_stats stats;

    /* The map of slots is asked for when it is wanted and refresh_at_us has come. */
    bool refresh_wanted;
    int16_t refresh_hint; /* the node to ask first; NOBODY */
    uint64_t refresh_at_us;
    uint64_t refreshed_us;
    uint32_t n_refreshes_failed; /* in a row, each having asked everybody */

    struct hps_worker thread;
    void *keeper; /* its own */
    int wake_fd;
    bool stopping;
};

/* ---- node.c: call with the lock held, but for _new ------------------------------------------- */

/* The index of the node, made if need be; NOBODY: no memory, or more than HPS_REDIS_NODES_MAX. It
 * stays that of the node until two maps of slots have not had it, and no link of it is in use, made
 * or waited for. */
int16_t hps_redis_node_find(struct hps_redis_cluster *cluster, const struct hps_addr *addr);
void hps_redis_node_free(struct hps_redis_node *node);
/* An idle link that seems sound. */
bool hps_redis_node_checkout(struct hps_redis_node *node, struct hps_redis_link *out_link);
/* takes the link: back into the pool, or closed if it is too old or there is no room. */
void hps_redis_node_checkin(struct hps_redis_cluster *cluster, struct hps_redis_node *node,
                            struct hps_redis_link link);
/* takes the link: it broke, so those that are idle are no good either. */
void hps_redis_node_broke(struct hps_redis_cluster *cluster, struct hps_redis_node *node,
                          struct hps_redis_link link);
/* takes the connection: a new one, begun when the node's generation was `generation`. */
void hps_redis_node_add(struct hps_redis_cluster *cluster, struct hps_redis_node *node,
                        struct hps_redis_conn *conn, uint64_t generation);
/* How a call of the node ended, for its breaker and `stats.error`; `why` is for people. */
void hps_redis_node_account(struct hps_redis_cluster *cluster, struct hps_redis_node *node,
                            hps_status status, uint64_t duration_us, const char *why);
/* The same for the probe of a node that is left alone (hps_breaker_enter let it through). */
void hps_redis_node_probed(struct hps_redis_cluster *cluster, struct hps_redis_node *node,
                           hps_status status, const char *why);
/* The server answered a command with `error`: count it, keep it as `stats.error`, and log it, each
 * kind of error once a minute. */
void hps_redis_node_refused(struct hps_redis_node *node, const char *error);
/* Close the links that are idle, and those that are not when they come back. */
void hps_redis_node_drop_links(struct hps_redis_node *node);

/* Begin a new map of slots, tell it, take it over. */
struct hps_redis_map {
    struct hps_redis_cluster *cluster;
    int16_t slots[HPS_REDIS_SLOTS];
    uint32_t n_slots;
    bool listed[HPS_REDIS_NODES_MAX];
    int16_t master[HPS_REDIS_NODES_MAX];
    int16_t told; /* the master last told */
};
void hps_redis_map_begin(struct hps_redis_map *map, struct hps_redis_cluster *cluster);
void hps_redis_map_tell(void *map, uint16_t first, uint16_t last, bool master,
                        const struct hps_addr *addr); /* hps_redis_slots_fn */
void hps_redis_map_commit(struct hps_redis_map *map, enum hps_redis_kind kind);
/* One slot has moved. */
void hps_redis_map_move(struct hps_redis_cluster *cluster, uint16_t slot, int16_t node);

/* As hps_redis_cluster_why. With the lock held. */
void hps_redis_why(const struct hps_redis_cluster *cluster, char *out_text, size_t size);

/* Wake those who wait for `changed`. */
void hps_redis_changed(struct hps_redis_cluster *cluster);

/* ---- keeper.c -------------------------------------------------------------------------------- */

hps_status hps_redis_keeper_start(struct hps_redis_cluster *cluster, struct hps_error *err)
    HPS_MUST_CHECK;
void hps_redis_keeper_stop(struct hps_redis_cluster *cluster); /* waits for it */
void hps_redis_keeper_wake(struct hps_redis_cluster *cluster); /* any thread, lock or not */
/* How many connections the node is to get. With the lock held. */
uint32_t hps_redis_links_wanted(const struct hps_redis_cluster *cluster,
                                const struct hps_redis_node *node);
/* Have the map of slots asked for, first of `hint` (or NOBODY). With the lock held. */
void hps_redis_refresh(struct hps_redis_cluster *cluster, int16_t hint);

#endif

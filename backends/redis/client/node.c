/* SPDX-License-Identifier: Apache-2.0
 *
 * The nodes of a Redis cluster: their connections, breakers and slots. A node is created when it is
 * first named. It is removed some time after it has left. Caller must hold the cluster's lock.
 */
#include <stdio.h>
#include <string.h>

#include "backends/redis/client/internal.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/log.h"

#define LOG_EVERY_US (UINT64_C(60) * 1000 * 1000)

void hps_redis_changed(struct hps_redis_cluster *cluster)
{
    if (cluster->n_waiting > 0) {
        hps_cond_broadcast(&cluster->changed);
    }
}

/* ---- nodes ----------------------------------------------------------------------------------- */

static struct hps_redis_node *node_new(const struct hps_redis_options *options,
                                       const struct hps_addr *addr)
{
    struct hps_redis_node *node = hps_calloc(1, sizeof(*node));
    if (!node) {
        return NULL;
    }
    node->addr = *addr;
    hps_addr_print(addr, node->text, sizeof(node->text));
    snprintf(node->stats.address, sizeof(node->stats.address), "%s", node->text);
    node->master = HPS_REDIS_NOBODY;
    /* Lower than command_timeout_us, because a call may have spent part of its time before it
     * reached the node. */
    const struct hps_breaker_options breaker = {.tier = "redis",
                                                .node = node->text,
                                                .reason = node->stats.error,
                                                .failures_max = options->failures_max,
                                                .timeout_us = options->command_timeout_us / 4 * 3,
                                                .pause_us_first = options->pause_us_first,
                                                .pause_us_max = options->pause_us_max};
    node->breaker = hps_breaker_new(&breaker);
    node->idle = hps_calloc(options->connections_per_node, sizeof(*node->idle));
    if (!node->breaker || !node->idle) {
        hps_redis_node_free(node);
        return NULL;
    }
    return node;
}

void hps_redis_node_free(struct hps_redis_node *node)
{
    if (!node) {
        return;
    }
    HPS_ASSERT(node->n_live == node->n_idle && node->n_waiting == 0);
    for (uint32_t i = 0; i < node->n_idle; i++) {
        hps_redis_conn_close(node->idle[i].conn);
    }
    hps_resolve_free(node->resolve);
    hps_breaker_free(node->breaker);
    hps_free(node->idle);
    hps_free(node);
}

/* True if the place of the node may be reused. A caller with an index of it has named it since the
 * last map, under this hold of the lock. */
static bool is_gone(const struct hps_redis_cluster *cluster, const struct hps_redis_node *node)
{
    bool used = node->n_live > node->n_idle || node->n_making > 0 || node->n_waiting > 0;
    return !node->entry && !node->listed && !used && cluster->n_maps >= node->last_map + 2;
}

/* Index for a new node: that of a removed node, or n_nodes. */
static uint32_t place_for_one(const struct hps_redis_cluster *cluster)
{
    for (uint32_t i = 0; i < cluster->n_nodes; i++) {
        if (is_gone(cluster, cluster->nodes[i])) {
            return i;
        }
    }
    return cluster->n_nodes;
}

int16_t hps_redis_node_find(struct hps_redis_cluster *cluster, const struct hps_addr *addr)
{
    char text[HPS_ADDR_TEXT_MAX];
    hps_addr_print(addr, text, sizeof(text));
    for (uint32_t i = 0; i < cluster->n_nodes; i++) {
        if (strcmp(cluster->nodes[i]->text, text) == 0) {
            cluster->nodes[i]->last_map = cluster->n_maps;
            return (int16_t)i;
        }
    }
    uint32_t place = place_for_one(cluster);
    if (place == HPS_REDIS_NODES_MAX) {
        HPS_LOG(ERROR, "redis",
                "node ignored: the Redis cluster has more addresses than limit; its slots are "
                "unreachable",
                HPS_STR("node", text), HPS_U64("limit", HPS_REDIS_NODES_MAX));
        return HPS_REDIS_NOBODY;
    }
    struct hps_redis_node *node = node_new(&cluster->options, addr);
    if (!node) {
        return HPS_REDIS_NOBODY;
    }
    node->last_map = cluster->n_maps;
    if (place < cluster->n_nodes) {
        hps_redis_node_free(cluster->nodes[place]);
    } else {
        cluster->n_nodes++;
    }
    cluster->nodes[place] = node;
    return (int16_t)place;
}

/* ---- links ----------------------------------------------------------------------------------- */

static void link_close(struct hps_redis_node *node, struct hps_redis_link link)
{
    HPS_ASSERT(node->n_live > 0);
    node->n_live--;
    hps_redis_conn_close(link.conn);
}

void hps_redis_node_drop_links(struct hps_redis_node *node)
{
    node->generation++;
    while (node->n_idle > 0) {
        link_close(node, node->idle[--node->n_idle]);
    }
}

bool hps_redis_node_checkout(struct hps_redis_node *node, struct hps_redis_link *out_link)
{
    while (node->n_idle > 0) {
        struct hps_redis_link link = node->idle[--node->n_idle];
        if (hps_redis_conn_idle_ok(link.conn)) {
            *out_link = link;
            return true;
        }
        link_close(node, link);
    }
    return false;
}

static void link_put(struct hps_redis_cluster *cluster, struct hps_redis_node *node,
                     struct hps_redis_link link)
{
    if (link.generation != node->generation ||
        node->n_idle == cluster->options.connections_per_node) {
        link_close(node, link);
    } else {
        node->idle[node->n_idle++] = link;
    }
    hps_redis_changed(cluster);
}

void hps_redis_node_add(struct hps_redis_cluster *cluster, struct hps_redis_node *node,
                        struct hps_redis_conn *conn, uint64_t generation)
{
    node->n_live++;
    const struct hps_redis_link link = {.conn = conn, .generation = generation};
    link_put(cluster, node, link);
}

void hps_redis_node_checkin(struct hps_redis_cluster *cluster, struct hps_redis_node *node,
                            struct hps_redis_link link)
{
    hps_lock_assert_held(&cluster->lock);
    uint64_t n_bytes = hps_redis_conn_bytes_received(link.conn);
    HPS_ASSERT(n_bytes >= link.n_bytes_counted);
    node->stats.n_bytes_received += n_bytes - link.n_bytes_counted;
    link.n_bytes_counted = n_bytes;
    link.n_uses++;
    link_put(cluster, node, link);
}

void hps_redis_node_broke(struct hps_redis_cluster *cluster, struct hps_redis_node *node,
                          struct hps_redis_link link)
{
    hps_lock_assert_held(&cluster->lock);
    bool old = link.generation != node->generation;
    HPS_ASSERT(link.generation <= node->generation);
    link_close(node, link);
    node->stats.n_broken++;
    if (!old) {
        hps_redis_node_drop_links(node);
    }
    hps_redis_changed(cluster);
}

static void account(struct hps_redis_cluster *cluster, struct hps_redis_node *node,
                    enum hps_breaker_pass pass, hps_status status, uint64_t duration_us,
                    const char *why)
{
    bool was_up = hps_breaker_up(node->breaker);
    if (status != HPS_OK) {
        snprintf(node->stats.error, sizeof(node->stats.error), "%s", why);
    }
    /* The breaker logs the reason in stats.error. */
    hps_breaker_leave(node->breaker, pass, status, duration_us);
    if (was_up == hps_breaker_up(node->breaker)) {
        return;
    }
    if (was_up) {
        hps_redis_node_drop_links(node);
        hps_redis_refresh(cluster, HPS_REDIS_NOBODY);
    }
    hps_redis_changed(cluster);
    hps_redis_maintenance_wake(cluster);
}

void hps_redis_node_account(struct hps_redis_cluster *cluster, struct hps_redis_node *node,
                            hps_status status, uint64_t duration_us, const char *why)
{
    account(cluster, node, HPS_BREAKER_PASSED, status, duration_us, why);
}

void hps_redis_node_probed(struct hps_redis_cluster *cluster, struct hps_redis_node *node,
                           hps_status status, const char *why)
{
    account(cluster, node, HPS_BREAKER_PROBE, status, 0, why);
}

void hps_redis_node_refused(struct hps_redis_node *node, const char *error)
{
    uint64_t now_us = hps_clock_us();
    uint64_t *logged_us = &node->logged_us[hps_redis_error_kind(error, strlen(error))];
    node->stats.n_errors++;
    snprintf(node->stats.error, sizeof(node->stats.error), "%s", error);
    if (*logged_us == 0 || now_us - *logged_us >= LOG_EVERY_US) {
        *logged_us = now_us;
        HPS_LOG(WARN, "redis",
                "command refused: the Redis server answered with an error; fix the cause in error",
                HPS_STR("node", node->text), HPS_STR("error", error));
    }
}

/* ---- the map of slots ------------------------------------------------------------------------ */

void hps_redis_map_begin(struct hps_redis_map *map, struct hps_redis_cluster *cluster)
{
    map->cluster = cluster;
    map->n_slots = 0;
    map->reported = HPS_REDIS_NOBODY;
    memset(map->listed, 0, sizeof(map->listed));
    for (uint32_t i = 0; i < HPS_REDIS_SLOTS; i++) {
        map->slots[i] = HPS_REDIS_NOBODY;
    }
}

void hps_redis_map_tell(void *ctx, uint16_t first, uint16_t last, bool master,
                        const struct hps_addr *addr)
{
    struct hps_redis_map *map = ctx;
    int16_t node = hps_redis_node_find(map->cluster, addr);
    if (master) {
        map->reported = node;
    }
    if (node < 0 || map->reported < 0) {
        return;
    }
    map->listed[node] = true;
    map->master[node] = master ? HPS_REDIS_NOBODY : map->reported;
    for (uint32_t slot = first; master && slot <= last; slot++) {
        map->n_slots += map->slots[slot] < 0;
        map->slots[slot] = node;
    }
}

void hps_redis_map_commit(struct hps_redis_map *map, enum hps_redis_kind kind)
{
    struct hps_redis_cluster *cluster = map->cluster;
    bool changed =
        cluster->kind != kind || memcmp(cluster->slots, map->slots, sizeof(map->slots)) != 0;

    memcpy(cluster->slots, map->slots, sizeof(map->slots));
    cluster->kind = kind;
    cluster->n_maps++;
    cluster->stats.n_slots = map->n_slots;
    uint32_t n_listed = 0;
    for (uint32_t i = 0; i < cluster->n_nodes; i++) {
        struct hps_redis_node *node = cluster->nodes[i];
        int16_t master = map->listed[i] ? map->master[i] : HPS_REDIS_NOBODY;
        changed = changed || node->listed != map->listed[i] || node->master != master;
        if (node->listed && !map->listed[i]) {
            hps_redis_node_drop_links(node);
        }
        node->listed = map->listed[i];
        node->master = master;
        node->n_slots = 0;
        n_listed += node->listed;
        if (is_gone(cluster, node)) {
            hps_redis_node_drop_links(node); /* links from ASK redirections */
        }
    }
    for (uint32_t slot = 0; slot < HPS_REDIS_SLOTS; slot++) {
        if (map->slots[slot] >= 0) {
            cluster->nodes[map->slots[slot]]->n_slots++;
        }
    }
    cluster->n_refreshes_failed = 0;
    cluster->stats.error[0] = '\0';
    if (changed) {
        HPS_LOG(INFO, "redis", "slot map changed",
                HPS_STR("kind", kind == HPS_REDIS_STANDALONE ? "standalone" : "cluster"),
                HPS_U64("slots", map->n_slots), HPS_U64("nodes", n_listed));
    }
    hps_redis_changed(cluster);
}

void hps_redis_map_move(struct hps_redis_cluster *cluster, uint16_t slot, int16_t node)
{
    hps_lock_assert_held(&cluster->lock);
    HPS_ASSERT(node >= 0 && (uint32_t)node < cluster->n_nodes);
    int16_t old = cluster->slots[slot];
    if (old == node) {
        return;
    }
    if (old >= 0) {
        HPS_ASSERT(cluster->nodes[old]->n_slots > 0);
        cluster->nodes[old]->n_slots--;
    } else {
        cluster->stats.n_slots++;
    }
    cluster->slots[slot] = node;
    cluster->nodes[node]->n_slots++;
    cluster->nodes[node]->listed = true;
    cluster->nodes[node]->master = HPS_REDIS_NOBODY;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * See store_servers.h. Metrics are computed when they are printed, from the store's counters.
 */
#include "server/catalog/store_servers.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "backends/store_servers.h"
#include "base/assert.h"
#include "base/heap.h"

struct hps_store_servers {
    struct hps_store *store;
    struct hps_metrics *metrics;
    struct hps_store_server *now;   /* [HPS_STORE_SERVERS_MAX] */
    struct hps_store_server *shown; /* [n_shown] servers that have series */
    uint32_t n_shown;
};

struct hps_store_servers *hps_store_servers_new(struct hps_store *store,
                                                struct hps_metrics *metrics)
{
    struct hps_store_servers *servers = hps_calloc(1, sizeof(*servers));
    if (servers == NULL) {
        return NULL;
    }
    servers->store = store;
    servers->metrics = metrics;
    servers->now = hps_calloc(HPS_STORE_SERVERS_MAX, sizeof(*servers->now));
    servers->shown = hps_calloc(HPS_STORE_SERVERS_MAX, sizeof(*servers->shown));
    if (servers->now == NULL || servers->shown == NULL) {
        hps_store_servers_free(servers);
        return NULL;
    }
    return servers;
}

void hps_store_servers_free(struct hps_store_servers *servers)
{
    if (servers != NULL) {
        hps_free(servers->now);
        hps_free(servers->shown);
        hps_free(servers);
    }
}

static void set(const struct hps_store_servers *servers, enum hps_metric_id id, const char *node,
                double value)
{
    const char *tier = servers->store->ops->name;
    hps_metric_set(hps_server_metric(servers->metrics, id, tier, node, NULL, NULL), value);
}

/* Counters only grow: add the difference to the last call. */
static void count(const struct hps_store_servers *servers, enum hps_metric_id id, const char *v1,
                  const char *v2, uint64_t value)
{
    const char *tier = servers->store->ops->name;
    struct hps_metric *metric = hps_server_metric(servers->metrics, id, tier, v1, v2, NULL);
    uint64_t had = (uint64_t)hps_metric_value(metric);
    hps_metric_add(metric, value > had ? value - had : 0);
}

static void show(const struct hps_store_servers *servers, const struct hps_store_server *server)
{
    const char *node = server->address;
    set(servers, HPS_M_TIER_UP, node, server->up ? 1 : 0);
    set(servers, HPS_M_TIER_SERVER_LATENCY, node, (double)server->latency_us / 1e6);
    set(servers, HPS_M_TIER_SERVER_SLOTS, node, server->n_slots);
    set(servers, HPS_M_TIER_SERVER_CONNECTIONS, node, server->n_connections);
    count(servers, HPS_M_TIER_SERVER_COMMANDS, node, NULL, server->n_commands);
    count(servers, HPS_M_TIER_SERVER_KEYS, node, "hit", server->n_keys_found);
    count(servers, HPS_M_TIER_SERVER_KEYS, node, "miss", server->n_keys - server->n_keys_found);
    count(servers, HPS_M_TIER_SERVER_BYTES, node, "sent", server->n_bytes_sent);
    count(servers, HPS_M_TIER_SERVER_BYTES, node, "received", server->n_bytes_received);
    count(servers, HPS_M_TIER_SERVER_FAILURES, node, "error", server->n_errors);
    count(servers, HPS_M_TIER_SERVER_FAILURES, node, "timeout", server->n_timeouts);
    count(servers, HPS_M_TIER_SERVER_FAILURES, node, "broken", server->n_broken);
    count(servers, HPS_M_TIER_SERVER_FAILURES, node, "refused", server->n_refused);
}

static void show_all(const struct hps_store_servers *servers)
{
    const char *tier = servers->store->ops->name;
    struct hps_store_shared_stats stats;
    servers->store->ops->servers->stats(servers->store, &stats);
    hps_metric_set(
        hps_server_metric(servers->metrics, HPS_M_TIER_REACHABLE, tier, NULL, NULL, NULL),
        (double)stats.n_slots_up / stats.n_slots);
    count(servers, HPS_M_TIER_REDIRECTS, NULL, NULL, stats.n_redirects);
    count(servers, HPS_M_SHARED_ROWS, "found", NULL, stats.n_rows_found);
    count(servers, HPS_M_SHARED_ROWS, "absent", NULL, stats.n_rows_absent);
    count(servers, HPS_M_SHARED_ROWS, "behind", NULL, stats.n_rows_behind);
    count(servers, HPS_M_SHARED_ROWS, "ahead", NULL, stats.n_rows_ahead);
    count(servers, HPS_M_SHARED_ROWS, "inserted", NULL, stats.n_rows_inserted);
    count(servers, HPS_M_SHARED_ROWS, "refused", NULL, stats.n_rows_refused);
    count(servers, HPS_M_SHARED_ROWS, "evicted", NULL, stats.n_rows_evicted);
}

static bool is_among(const struct hps_store_server *servers, uint32_t n, const char *address)
{
    for (uint32_t i = 0; i < n; i++) {
        if (strcmp(servers[i].address, address) == 0) {
            return true;
        }
    }
    return false;
}

void hps_store_servers_refresh(struct hps_store_servers *servers)
{
    const struct hps_store_ops *ops = servers->store->ops;
    uint32_t n = ops->servers->list(servers->store, servers->now, HPS_STORE_SERVERS_MAX);
    HPS_ASSERT(n <= HPS_STORE_SERVERS_MAX);
    for (uint32_t i = 0; i < servers->n_shown; i++) {
        const char *address = servers->shown[i].address;
        if (!is_among(servers->now, n, address)) {
            const struct hps_metric_label labels[] = {{"tier", ops->name}, {"node", address}};
            hps_metrics_remove(servers->metrics, labels, 2);
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        show(servers, &servers->now[i]);
    }
    show_all(servers);
    struct hps_store_server *spare = servers->shown;
    servers->shown = servers->now;
    servers->n_shown = n;
    servers->now = spare;
}

bool hps_store_servers_all_up(struct hps_store *store, char *out_text, size_t size)
{
    struct hps_store_shared_stats stats;
    if (store->ops->servers == NULL) {
        return true;
    }
    store->ops->servers->stats(store, &stats);
    HPS_ASSERT(stats.n_slots_up <= stats.n_slots);
    if (stats.n_slots_up >= stats.n_slots) {
        return true;
    }
    snprintf(out_text, size,
             "%s is unreachable for %" PRIu32 " of %" PRIu32
             " slots, and has the only copy of their rows",
             store->ops->name, stats.n_slots - stats.n_slots_up, stats.n_slots);
    return false;
}

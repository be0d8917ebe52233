/* SPDX-License-Identifier: Apache-2.0
 *
 * A Redis cluster client: options, opening, closing, status. Thread-safe.
 */
#include "backends/redis/client/client.h"

#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "backends/redis/client/internal.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/lock.h"
#include "net/tls.h"

#define PORT_DEFAULT 6379

/* ---- options --------------------------------------------------------------------------------- */

static hps_status entry_parse(const char *from, size_t size, struct hps_addr *out_addr,
                              struct hps_error *err)
{
    char text[2 * HPS_ADDR_TEXT_MAX];
    bool is_unix = size >= 5 && memcmp(from, "unix:", 5) == 0;
    bool v6 = size > 0 && from[0] == '[';
    const char *after = v6 ? memchr(from, ']', size) : from;
    bool has_port = after && memchr(after, ':', size - (size_t)(after - from));

    if (size >= HPS_ADDR_TEXT_MAX) {
        return hps_error_set(err, HPS_INVALID, "address of Redis: '%.60s...' is too long", from);
    }
    if (is_unix || has_port) {
        snprintf(text, sizeof(text), "%.*s", (int)size, from);
    } else {
        snprintf(text, sizeof(text), "%.*s:%d", (int)size, from, PORT_DEFAULT);
    }
    return hps_addr_parse_peer(text, out_addr, err);
}

static hps_status entry_add(struct hps_redis_cluster *cluster, const struct hps_addr *addr,
                            struct hps_error *err)
{
    int16_t node = hps_redis_node_find(cluster, addr);
    if (node < 0) {
        return hps_error_set(err, HPS_INVALID, "Redis: more than %d addresses",
                             HPS_REDIS_NODES_MAX);
    }
    cluster->nodes[node]->entry = true;
    return HPS_OK;
}

/* cluster NULL: only check the addresses */
static hps_status entries_add(struct hps_redis_cluster *cluster, const char *text,
                              struct hps_error *err)
{
    uint32_t n = 0;
    while (*text) {
        struct hps_addr addr;
        text += strspn(text, ",; \t");
        size_t size = strcspn(text, ",; \t");
        hps_status status = size > 0 ? entry_parse(text, size, &addr, err) : HPS_OK;
        if (status == HPS_OK && size > 0 && cluster != NULL) {
            status = entry_add(cluster, &addr, err);
        }
        if (status != HPS_OK) {
            return status;
        }
        n += size > 0;
        text += size;
    }
    return n > 0 ? HPS_OK : hps_error_set(err, HPS_INVALID, "Redis: no address is given");
}

hps_status hps_redis_addresses_check(const char *addresses, struct hps_error *err)
{
    return entries_add(NULL, addresses, err);
}

static hps_status options_check(const struct hps_redis_options *options, struct hps_error *err)
{
    if (options->connections_per_node == 0 || options->failures_max == 0 ||
        options->connect_timeout_us == 0 || options->command_timeout_us == 0 ||
        options->pause_us_first == 0 || options->reply_bytes_max == 0) {
        return hps_error_set(err, HPS_INVALID,
                             "Redis: connections, failures, times and sizes must "
                             "be greater than 0");
    }
    bool user = options->user && options->user[0] && strcmp(options->user, "default") != 0;
    if (user && (!options->password || !options->password[0])) {
        return hps_error_set(err, HPS_INVALID, "Redis: user '%.100s' needs a password",
                             options->user);
    }
    return HPS_OK;
}

/* Replace *text by a copy. NULL stays NULL; with `some`, an empty string becomes NULL. False: no
 * memory. */
static bool keep_text(const char **text, bool some)
{
    if (*text == NULL || (some && *text[0] == '\0')) {
        *text = NULL;
        return true;
    }
    *text = hps_strdup(*text);
    return *text != NULL;
}

static hps_status tls_read(const struct hps_redis_options *options, struct hps_tls **out_tls,
                           struct hps_error *err)
{
    const struct hps_tls_options tls = {.names = options->tls_names,
                                        .cert_file = options->cert_file,
                                        .key_file = options->key_file,
                                        .ca_file = options->ca_file,
                                        .server_name = options->server_name,
                                        .any_protocol = true};
    hps_status status = hps_tls_new(&tls, out_tls, err);
    return status == HPS_OK ? status : hps_error_prefix(err, status, "Redis");
}

hps_status hps_redis_tls_check(const struct hps_redis_options *options, struct hps_error *err)
{
    struct hps_tls *tls = NULL;
    hps_status status = options->tls ? tls_read(options, &tls, err) : HPS_OK;

    hps_tls_unref(tls);
    return status;
}

static hps_status options_keep(struct hps_redis_cluster *cluster,
                               const struct hps_redis_options *options, struct hps_error *err)
{
    struct hps_redis_options *kept = &cluster->options;
    bool user = options->user && strcmp(options->user, "default") != 0;

    *kept = *options;
    kept->addresses = NULL;
    kept->user = user ? options->user : NULL;
    bool whole = keep_text(&kept->user, true);
    whole = keep_text(&kept->password, true) && whole;
    whole = keep_text(&kept->ca_file, false) && whole;
    whole = keep_text(&kept->cert_file, false) && whole;
    whole = keep_text(&kept->key_file, false) && whole;
    whole = keep_text(&kept->server_name, false) && whole;
    if (!whole) {
        return hps_error_set(err, HPS_NO_MEMORY, "Redis: out of memory");
    }
    return options->tls ? tls_read(kept, &cluster->tls, err) : HPS_OK;
}

hps_status hps_redis_cluster_renew_tls(struct hps_redis_cluster *cluster, struct hps_error *err)
{
    struct hps_tls *fresh = NULL;
    if (!cluster->tls) {
        return HPS_OK;
    }
    hps_status status = tls_read(&cluster->options, &fresh, err);
    if (status == HPS_OK) {
        hps_tls_renew(cluster->tls, fresh);
    }
    return status;
}

/* ---- opening and closing --------------------------------------------------------------------- */

static void cluster_free(struct hps_redis_cluster *cluster)
{
    for (uint32_t i = 0; i < cluster->n_nodes; i++) {
        hps_redis_node_free(cluster->nodes[i]);
    }
    if (cluster->wake_fd >= 0) {
        close(cluster->wake_fd);
    }
    hps_tls_unref(cluster->tls);
    hps_free((char *)cluster->options.user);
    if (cluster->options.password) {
        explicit_bzero((char *)cluster->options.password, strlen(cluster->options.password));
    }
    hps_free((char *)cluster->options.password);
    hps_free((char *)cluster->options.ca_file);
    hps_free((char *)cluster->options.cert_file);
    hps_free((char *)cluster->options.key_file);
    hps_free((char *)cluster->options.server_name);
    hps_cond_fini(&cluster->changed);
    hps_lock_fini(&cluster->lock);
    hps_free(cluster);
}

hps_status hps_redis_cluster_open(const struct hps_redis_options *options,
                                  struct hps_redis_cluster **out_cluster, struct hps_error *err)
{
    hps_status status = options_check(options, err);
    if (status != HPS_OK) {
        return status;
    }
    struct hps_redis_cluster *cluster = hps_calloc(1, sizeof(*cluster));
    if (!cluster) {
        return hps_error_set(err, HPS_NO_MEMORY, "Redis: out of memory");
    }
    hps_cond_init(&cluster->changed);
    hps_lock_init(&cluster->lock, HPS_LOCK_REDIS_CLUSTER);
    cluster->refresh_hint = HPS_REDIS_NOBODY;
    for (uint32_t i = 0; i < HPS_REDIS_SLOTS; i++) {
        cluster->slots[i] = HPS_REDIS_NOBODY;
    }
    cluster->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (cluster->wake_fd < 0) {
        status = hps_error_set(err, HPS_EXHAUSTED, "Redis: no file descriptor is left");
    }
    status = status == HPS_OK ? options_keep(cluster, options, err) : status;
    status = status == HPS_OK ? entries_add(cluster, options->addresses, err) : status;
    status = status == HPS_OK ? hps_redis_maintenance_start(cluster, err) : status;
    if (status != HPS_OK) {
        cluster_free(cluster);
        return status;
    }
    *out_cluster = cluster;
    return HPS_OK;
}

void hps_redis_cluster_close(struct hps_redis_cluster *cluster)
{
    if (cluster) {
        hps_redis_maintenance_stop(cluster);
        cluster_free(cluster);
    }
}

/* ---- status ---------------------------------------------------------------------------------- */

static bool all_connected(const struct hps_redis_cluster *cluster)
{
    bool any = false;
    for (uint32_t i = 0; i < cluster->n_nodes; i++) {
        const struct hps_redis_node *node = cluster->nodes[i];
        bool used = node->listed && (node->n_slots > 0 || cluster->options.replica_reads);
        if (used && (node->n_live == 0 || !hps_breaker_up(node->breaker))) {
            return false;
        }
        any = any || used;
    }
    return any;
}

bool hps_redis_cluster_wait(struct hps_redis_cluster *cluster, uint64_t deadline_us)
{
    hps_lock_acquire(&cluster->lock);
    bool connected = all_connected(cluster);
    cluster->n_waiting++;
    while (!connected && hps_clock_us() < deadline_us) {
        hps_cond_wait_until(&cluster->changed, &cluster->lock, deadline_us);
        connected = all_connected(cluster);
    }
    cluster->n_waiting--;
    hps_lock_release(&cluster->lock);
    return connected;
}

void hps_redis_cluster_masters(struct hps_redis_cluster *cluster, uint16_t *out_slots,
                               uint32_t capacity, uint32_t *out_n)
{
    bool seen[HPS_REDIS_NODES_MAX] = {false};
    uint32_t n = 0;
    hps_lock_acquire(&cluster->lock);
    for (uint32_t slot = 0; slot < HPS_REDIS_SLOTS && n < capacity; slot++) {
        int16_t node = cluster->slots[slot];
        if (node >= 0 && !seen[node]) {
            seen[node] = true;
            out_slots[n++] = (uint16_t)slot;
        }
    }
    hps_lock_release(&cluster->lock);
    *out_n = n;
}

static bool is_up(const struct hps_redis_cluster *cluster, const struct hps_redis_node *node)
{
    /* Nodes that get commands keep at least one connection. Failed nodes are probed. Other nodes
     * count as up without a connection. */
    bool spare = node->listed ? node->master >= 0 && !cluster->options.replica_reads
                              : cluster->kind != HPS_REDIS_UNKNOWN;
    return hps_breaker_up(node->breaker) && (node->n_live > 0 || spare);
}

void hps_redis_why(const struct hps_redis_cluster *cluster, char *out_text, size_t size)
{
    snprintf(out_text, size, "%s", cluster->stats.error);
    if (out_text[0] && cluster->kind == HPS_REDIS_UNKNOWN) {
        return; /* report the node that answered rather than one that is down */
    }
    for (uint32_t i = 0; i < cluster->n_nodes; i++) {
        const struct hps_redis_node *node = cluster->nodes[i];
        if ((node->listed || node->entry) && !is_up(cluster, node) && node->stats.error[0]) {
            snprintf(out_text, size, "%.150s: %.150s", node->text, node->stats.error);
            return;
        }
    }
}

void hps_redis_cluster_why(struct hps_redis_cluster *cluster, char *out_text, size_t size)
{
    hps_lock_acquire(&cluster->lock);
    hps_redis_why(cluster, out_text, size);
    hps_lock_release(&cluster->lock);
}

void hps_redis_cluster_stats(struct hps_redis_cluster *cluster, struct hps_redis_stats *out_stats)
{
    hps_lock_acquire(&cluster->lock);
    *out_stats = cluster->stats;
    out_stats->kind = cluster->kind;
    out_stats->n_nodes = 0;
    out_stats->n_slots_up = 0;
    for (uint32_t i = 0; i < cluster->n_nodes; i++) {
        const struct hps_redis_node *node = cluster->nodes[i];
        out_stats->n_nodes += node->listed || node->entry;
        out_stats->n_slots_up += hps_breaker_up(node->breaker) ? node->n_slots : 0;
    }
    hps_lock_release(&cluster->lock);
}

uint32_t hps_redis_cluster_nodes(struct hps_redis_cluster *cluster,
                                 struct hps_redis_node_stats *out_nodes, uint32_t capacity)
{
    uint32_t n = 0;
    hps_lock_acquire(&cluster->lock);
    for (uint32_t i = 0; i < cluster->n_nodes && n < capacity; i++) {
        const struct hps_redis_node *node = cluster->nodes[i];
        if (!node->listed && !node->entry) {
            continue;
        }
        out_nodes[n] = node->stats;
        out_nodes[n].role = !node->listed       ? HPS_REDIS_ENTRY
                            : node->master >= 0 ? HPS_REDIS_REPLICA
                                                : HPS_REDIS_MASTER;
        out_nodes[n].up = is_up(cluster, node);
        out_nodes[n].n_slots = node->n_slots;
        out_nodes[n].n_connections = node->n_live;
        n++;
    }
    hps_lock_release(&cluster->lock);
    return n;
}

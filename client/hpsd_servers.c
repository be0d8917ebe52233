/* SPDX-License-Identifier: Apache-2.0
 *
 * The servers of a client. docs/lookups.md has the rules, which the Python client shares. A server
 * that has failed is skipped for a short time, and until it has answered a health check, so that
 * few calls meet a dead host. Driver.
 */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "client/credentials.h"
#include "client/hpsd_internal.h"
#include "net/addr.h"
#include "net/tls.h"

enum {
    DOWN_US_MIN = 100 * 1000,      /* how long a server is skipped after one failure, */
    DOWN_US_MAX = 2 * 1000 * 1000, /* and after many */
    UNPROVEN_US = 1000 * 1000,     /* limit for the first reply of a server, if there are others */
    CONNECT_US_MAX = 1000 * 1000,
    DOUBLINGS_MAX = 10,
};

#define HEALTH_PATH "/grpc.health.v1.Health/Check"

uint64_t hpsd_client_jitter(struct hpsd_client *client, uint64_t us)
{
    return (uint64_t)((double)us * (0.5 + hps_random_unit(&client->random) / 2));
}

/* ---- open ------------------------------------------------------------------------------------ */

static hps_status server_open(struct hpsd_server *server, struct hpsd_client *client,
                              const struct hpsd_options *options, const char *address, size_t size,
                              struct hps_error *err)
{
    const struct hps_client_tls tls = {
        .on = options->tls,
        .ca = options->tls_ca,
        .cert = options->tls_cert,
        .key = options->tls_key,
        .name = options->tls_name,
    };
    struct hps_addr addr;

    server->client = client;
    server->address = hps_strndup(address, size);
    server->links = hps_calloc(client->n_links, sizeof(*server->links));
    if (server->address == NULL || server->links == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for a server");
    }
    for (uint32_t i = 0; i < client->n_links; i++) {
        server->links[i].server = server;
    }
    hps_status status = hps_addr_parse_peer(server->address, &addr, err);
    if (status == HPS_OK) {
        status = hps_client_tls_open(&tls, server->address, &server->tls, err);
        status = status == HPS_IO ? HPS_INVALID : status; /* the text says which file, and why */
    }
    if (status == HPS_OK && client->token != NULL && server->tls == NULL &&
        !options->token_in_clear) {
        status = hps_client_token_check(server->address, "token_in_clear", err);
    }
    return status;
}

hps_status hpsd_servers_open(struct hpsd_client *client, const struct hpsd_options *options,
                             struct hps_error *err)
{
    const char *at = options->addresses;
    uint32_t n = 1;

    for (const char *p = at; *p != '\0'; p++) {
        n += *p == ',';
    }
    if (n > HPSD_SERVERS_MAX) {
        return hps_error_set(err, HPS_INVALID, "addresses: got %u, the limit is %d", n,
                             HPSD_SERVERS_MAX);
    }
    client->servers = hps_calloc(n, sizeof(*client->servers));
    if (client->servers == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for servers");
    }
    for (; client->n_servers < n; at += *at == ',') {
        size_t size = strcspn(at, ",");
        struct hpsd_server *server = &client->servers[client->n_servers++];
        hps_status status = server_open(server, client, options, at, size, err);
        if (status != HPS_OK) {
            return status;
        }
        at += size;
    }
    return HPS_OK;
}

/* Calls in flight end with CANCELLED. */
static void link_drop(struct hpsd_link *link)
{
    struct hps_grpc_channel *channel = link->channel;

    link->channel = NULL; /* calls that are retried make a new one */
    link->suspect = false;
    hps_grpc_channel_free(channel);
}

void hpsd_servers_close(struct hpsd_client *client)
{
    for (uint32_t i = 0; i < client->n_servers; i++) {
        struct hpsd_server *server = &client->servers[i];
        for (uint32_t j = 0; server->links != NULL && j < client->n_links; j++) {
            link_drop(&server->links[j]);
        }
        HPS_ASSERT(server->n_attempts == 0);
        hps_tls_unref(server->tls);
        hps_free(server->links);
        hps_free(server->address);
    }
    hps_free(client->servers);
}

/* ---- health checks --------------------------------------------------------------------------- */

static void on_probe_done(void *ctx, int grpc_code, const char *message)
{
    struct hpsd_link *link = ctx;
    hps_status unavailable = HPS_UNAVAILABLE;

    (void)message;
    link->probing = false;
    if (link->channel == NULL) {
        return; /* it was dropped */
    }
    if (grpc_code == hps_status_grpc_code(HPS_DEADLINE)) {
        link_drop(link); /* the connection may be dead; the kernel notices this much later */
    } else if (grpc_code != hps_status_grpc_code(unavailable)) {
        link->suspect = false;
        link->server->unreachable = false;
        return;
    }
    if (link->server->unreachable) {
        hpsd_server_failed(link->server);
    }
}

static void probe(struct hpsd_link *link)
{
    static const struct hps_grpc_client_events events = {.on_done = on_probe_done};

    if (link->probing) {
        return;
    }
    link->probing = true;
    if (hpsd_link_open(link, NULL) != HPS_OK ||
        hps_grpc_client_start(link->channel, HEALTH_PATH, NULL, 0, hps_clock_us() + UNPROVEN_US,
                              &events, link, NULL) != HPS_OK) {
        link->probing = false;
    }
}

/* ---- choice ---------------------------------------------------------------------------------- */

struct hpsd_link *hpsd_server_link(struct hpsd_server *server)
{
    struct hpsd_link *link = &server->links[server->next_link];

    server->next_link = (server->next_link + 1) % server->client->n_links;
    return link;
}

hps_status hpsd_link_open(struct hpsd_link *link, struct hps_error *err)
{
    const struct hpsd_client *client = link->server->client;
    const struct hps_grpc_channel_options options = {
        .address = link->server->address,
        .tls = link->server->tls,
        .bearer_token = client->token,
        .reply_bytes_max = client->reply_bytes_max,
        .connect_timeout_us = client->n_servers > 1 ? CONNECT_US_MAX : 0,
        .speak_timeout_us = client->n_servers > 1 ? CONNECT_US_MAX : 0,
    };

    if (link->channel == NULL) {
        return hps_grpc_channel_new(client->loop, &options, &link->channel, err);
    }
    if (link->suspect && !link->probing) {
        probe(link);
    }
    return HPS_OK;
}

static bool is_free(const struct hpsd_server *server, uint64_t now_us)
{
    return server->down_until_us <= now_us && !server->unreachable;
}

/* Checks the failed servers that need not be skipped any more. Others take the calls until then. */
static void probe_failed(struct hpsd_client *client, uint64_t now_us)
{
    for (uint32_t i = 0; i < client->n_servers; i++) {
        struct hpsd_server *server = &client->servers[i];
        if (server->unreachable && server->down_until_us <= now_us) {
            probe(&server->links[0]);
        }
    }
}

struct hpsd_server *hpsd_servers_pick(struct hpsd_client *client, uint64_t tried)
{
    uint32_t candidates[HPSD_SERVERS_MAX];
    uint32_t n = 0;
    struct hpsd_server *oldest = NULL;
    uint64_t now_us = hps_clock_us();

    if (client->n_servers == 1) {
        return &client->servers[0];
    }
    probe_failed(client, now_us);
    for (uint32_t i = 0; i < client->n_servers; i++) {
        struct hpsd_server *server = &client->servers[i];
        if ((tried >> i & 1) != 0) {
            continue;
        }
        if (is_free(server, now_us)) {
            candidates[n++] = i;
        }
        if (oldest == NULL || server->down_until_us < oldest->down_until_us) {
            oldest = server;
        }
    }
    if (n == 0) {
        return oldest != NULL ? oldest : &client->servers[0];
    }
    uint32_t a = (uint32_t)(hps_random_next(&client->random) % n);
    uint32_t b = n == 1 ? a : (a + 1 + (uint32_t)(hps_random_next(&client->random) % (n - 1))) % n;
    struct hpsd_server *first = &client->servers[candidates[a]];
    struct hpsd_server *second = &client->servers[candidates[b]];
    return first->n_attempts <= second->n_attempts ? first : second;
}

uint64_t hpsd_server_limit(const struct hpsd_server *server, uint64_t left_us, unsigned n_rounds)
{
    const struct hpsd_client *client = server->client;
    bool other_proven = false;

    if (server->proven || client->n_servers == 1 || client->single_attempt) {
        return left_us;
    }
    for (uint32_t i = 0; i < client->n_servers; i++) {
        other_proven = other_proven || client->servers[i].proven;
    }
    uint64_t limit_us = other_proven ? left_us / 2 : left_us;
    unsigned n = n_rounds < DOUBLINGS_MAX ? n_rounds : DOUBLINGS_MAX;
    uint64_t most_us = (uint64_t)UNPROVEN_US << n; /* the lookup itself may be slow */
    return limit_us < most_us ? limit_us : most_us;
}

void hpsd_server_worked(struct hpsd_server *server)
{
    server->proven = true;
    server->unreachable = false;
    server->n_failures = 0;
    server->down_until_us = 0;
}

void hpsd_server_failed(struct hpsd_server *server)
{
    unsigned n = server->n_failures < DOUBLINGS_MAX ? server->n_failures : DOUBLINGS_MAX;
    uint64_t down_us = (uint64_t)DOWN_US_MIN << n;

    down_us = down_us < DOWN_US_MAX ? down_us : DOWN_US_MAX;
    server->proven = false;
    server->n_failures++;
    server->down_until_us = hps_clock_us() + hpsd_client_jitter(server->client, down_us);
    server->unreachable = server->client->n_servers > 1;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The servers on which what is published is to be seen: before it is sent they are asked whether
 * they would take it, afterwards until look-ups see it. One thread.
 */
#include <inttypes.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "client/message.h"
#include "net/loop.h"
#include "tools/hps-publish.h"
#include "tools/tool.h"

enum {
    CALL_US = 10 * 1000 * 1000,
    TOPIC_US = 3 * 1000 * 1000, /* in which a server hears of a topic that was made a moment ago */
    TOPIC_PAUSE_US = 100 * 1000
};

struct server {
    const char *address;
    struct hps_client *client;
    Hps__V1__GetUpdatesResponse *before; /* as nothing had been sent */
    Hps__V1__GetUpdatesResponse *now;    /* NULL: nothing later */
    Hps__V1__ListTablesResponse *tables;
};

/* A table that all servers take. */
struct checked {
    char *table;
    uint32_t dim; /* 0: deletes alone so far */
    enum hps_dtype dtype;
};

struct publish_servers {
    struct publish_target target;
    struct server servers[PUBLISH_SERVERS_MAX]; /* [n] */
    size_t n;
    struct checked *checked; /* [n_checked] */
    size_t n_checked;
    size_t last; /* most rows are of the table of those before them */
};

hps_status publish_servers_open(const struct hps_client_options *options,
                                const char *const *addresses, size_t n,
                                const struct publish_target *target,
                                struct publish_servers **out_servers, struct hps_error *err)
{
    HPS_ASSERT(n > 0 && n <= PUBLISH_SERVERS_MAX);
    struct publish_servers *servers = hps_calloc(1, sizeof(*servers));

    if (servers == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "out of memory");
    }
    servers->target = *target;
    for (; servers->n < n; servers->n++) {
        struct server *server = &servers->servers[servers->n];
        struct hps_client_options one = *options;
        one.address = server->address = addresses[servers->n];
        hps_status status = hps_client_open(&one, &server->client, err);
        if (status != HPS_OK) {
            publish_servers_close(servers);
            return hps_error_prefix(err, status, "--wait");
        }
    }
    *out_servers = servers;
    return HPS_OK;
}

static void free_reply(Hps__V1__GetUpdatesResponse *reply)
{
    if (reply != NULL) {
        hps_message_free(&reply->base);
    }
}

void publish_servers_close(struct publish_servers *servers)
{
    if (servers == NULL) {
        return;
    }
    for (size_t i = 0; i < servers->n; i++) {
        struct server *server = &servers->servers[i];
        free_reply(server->before);
        free_reply(server->now);
        if (server->tables != NULL) {
            hps_message_free(&server->tables->base);
        }
        hps_client_close(server->client);
    }
    for (size_t i = 0; i < servers->n_checked; i++) {
        hps_free(servers->checked[i].table);
    }
    hps_free(servers->checked);
    hps_free(servers);
}

/* ---- before ---------------------------------------------------------------------------------- */

static struct hps_update_goal goal_of(const struct publish_target *target)
{
    return (struct hps_update_goal){
        .model = target->model, .version = target->version, .named = target->version != 0};
}

/* With a refresh; without one where the log does not answer the server, which may change. */
static hps_status ask(const struct publish_target *target, struct hps_client *client,
                      Hps__V1__GetUpdatesResponse **out_reply, struct hps_error *err)
{
    hps_status status =
        hps_update_ask(client, target->model, target->version, true, CALL_US, out_reply, err);
    if (status == HPS_UNAVAILABLE || status == HPS_DEADLINE) {
        status =
            hps_update_ask(client, target->model, target->version, false, CALL_US, out_reply, err);
    }
    return status;
}

static hps_status ask_tables(const struct publish_target *target, struct server *server,
                             struct hps_error *err)
{
    Hps__V1__ListTablesRequest request = HPS__V1__LIST_TABLES_REQUEST__INIT;
    ProtobufCMessage *reply = NULL;

    request.model = (char *)(uintptr_t)target->model; /* it is only read */
    request.version = target->version;
    hps_status status =
        hps_client_call_message(server->client, "/hps.v1.Admin/ListTables", &request.base,
                                &hps__v1__list_tables_response__descriptor, CALL_US, &reply, err);
    if (status == HPS_OK) {
        server->tables = (Hps__V1__ListTablesResponse *)(void *)reply;
    }
    return status;
}

/* What is no matter of reaching the server is its refusal. */
static hps_status refusal(const struct server *server, hps_status status, struct hps_error *err)
{
    HPS_ASSERT(status != HPS_OK);
    bool refused = status == HPS_NOT_FOUND || status == HPS_PRECONDITION;
    err->status = refused ? HPS_INVALID : status;
    return hps_error_prefix(err, err->status, "nothing was sent: %s", server->address);
}

static hps_status begin_one(const struct publish_target *target, struct server *server,
                            struct hps_error *err)
{
    HPS_ASSERT(server->before == NULL && server->tables == NULL);
    const struct hps_update_goal goal = goal_of(target);

    hps_status status = ask(target, server->client, &server->before, err);
    if (status == HPS_OK) {
        status = hps_update_check(server->before, &goal, NULL, err);
    }
    if (status == HPS_OK) {
        status = ask_tables(target, server, err);
    }
    if (status == HPS_OK && target->key_bytes != 0 && server->tables->key_bytes != 0 &&
        target->key_bytes != server->tables->key_bytes) {
        status =
            hps_error_set(err, HPS_PRECONDITION,
                          "keys of HPS's records have %" PRIu32 " bytes there "
                          "(supportlonglong), and these %" PRIu32 ": use --key-bytes %" PRIu32,
                          server->tables->key_bytes, target->key_bytes, server->tables->key_bytes);
    }
    return status == HPS_OK ? HPS_OK : refusal(server, status, err);
}

hps_status publish_servers_begin(struct publish_servers *servers, struct hps_error *err)
{
    hps_status status = HPS_OK;

    for (size_t i = 0; i < servers->n && status == HPS_OK; i++) {
        status = begin_one(&servers->target, &servers->servers[i], err);
    }
    return status;
}

/* Servers take rows in FP32, or as they have them. */
static hps_status check_rows(const struct publish_target *target, const struct server *server,
                             const struct publish_rows_form *form, struct hps_error *err)
{
    HPS_ASSERT(server->tables != NULL);
    for (size_t i = 0; i < server->tables->n_tables; i++) {
        const Hps__V1__TableInfo *info = server->tables->tables[i];
        if (strcmp(info->table, form->table) != 0) {
            continue;
        }
        if (form->dim != 0 && form->dim != info->dim) {
            return hps_error_set(err, HPS_INVALID,
                                 "table %s of model %s has rows of %" PRIu32
                                 " values on %s, and these have %" PRIu32,
                                 form->table, target->model, info->dim, server->address, form->dim);
        }
        if (form->dim != 0 && form->dtype != HPS_DTYPE_FP32 &&
            strcmp(info->data_type, hps_dtype_name(form->dtype)) != 0) {
            return hps_error_set(err, HPS_INVALID,
                                 "table %s of model %s has rows of %s on %s, and these would be "
                                 "sent as %s: use --row-dtype fp32",
                                 form->table, target->model, info->data_type, server->address,
                                 hps_dtype_name(form->dtype));
        }
        return HPS_OK;
    }
    return hps_error_set(err, HPS_INVALID,
                         "model %s has no table %s on %s; hpsctl tables %s lists those that it has",
                         target->model, form->table, server->address, target->model);
}

static void pause_us(struct hps_client *client, uint64_t us)
{
    uint64_t now_us = hps_clock_us();
    uint64_t end_us = now_us + us;

    for (; now_us < end_us; now_us = hps_clock_us()) {
        hps_loop_turn(hps_client_loop(client), end_us - now_us);
    }
}

/* One that was made a moment ago is heard of later by some. */
static hps_status check_topic(const struct publish_target *target, struct server *server,
                              const char *topic, struct hps_error *err)
{
    HPS_ASSERT(server->before != NULL);
    const struct hps_update_goal goal = goal_of(target);
    uint64_t end_us = hps_clock_us() + TOPIC_US;

    hps_status status =
        hps_update_check(server->now != NULL ? server->now : server->before, &goal, topic, err);
    while (status == HPS_UNAVAILABLE && hps_clock_us() < end_us && !tool_interrupted()) {
        Hps__V1__GetUpdatesResponse *now = NULL;
        status = ask(target, server->client, &now, err);
        if (status != HPS_OK) {
            return hps_error_prefix(err, status, "%s", server->address);
        }
        free_reply(server->now);
        server->now = now;
        status = hps_update_check(now, &goal, topic, err);
        if (status == HPS_UNAVAILABLE) {
            pause_us(server->client, TOPIC_PAUSE_US);
        }
    }
    if (status != HPS_OK) {
        err->status = HPS_INVALID;
        return hps_error_prefix(err, HPS_INVALID, "%s", server->address);
    }
    return HPS_OK;
}

static hps_status keep_checked(struct publish_servers *servers,
                               const struct publish_rows_form *form, struct hps_error *err)
{
    HPS_ASSERT(servers->last <= servers->n_checked);
    struct checked *grown =
        hps_realloc(servers->checked, (servers->n_checked + 1) * sizeof(*grown));
    servers->checked = grown != NULL ? grown : servers->checked;
    char *name = hps_strdup(form->table);
    if (grown == NULL || name == NULL) {
        hps_free(name);
        return hps_error_set(err, HPS_NO_MEMORY, "out of memory");
    }
    servers->last = servers->n_checked;
    grown[servers->n_checked++] = (struct checked){name, form->dim, form->dtype};
    return HPS_OK;
}

static struct checked *find_checked(struct publish_servers *servers, const char *table)
{
    for (size_t n = 0; n < servers->n_checked; n++) {
        size_t i = (servers->last + n) % servers->n_checked;
        if (strcmp(servers->checked[i].table, table) == 0) {
            servers->last = i;
            return &servers->checked[i];
        }
    }
    return NULL;
}

bool publish_servers_take(struct publish_servers *servers, const struct publish_rows_form *form)
{
    const struct checked *known = find_checked(servers, form->table);

    return known != NULL &&
           (form->dim == 0 || (known->dim == form->dim && known->dtype == form->dtype));
}

hps_status publish_servers_check(struct publish_servers *servers,
                                 const struct publish_rows_form *form, const char *topic,
                                 struct hps_error *err)
{
    HPS_ASSERT(servers->n > 0 && topic != NULL);
    struct checked *known = find_checked(servers, form->table);
    hps_status status = HPS_OK;

    for (size_t i = 0; i < servers->n && status == HPS_OK; i++) {
        status = check_rows(&servers->target, &servers->servers[i], form, err);
        if (status == HPS_OK && known == NULL) {
            status = check_topic(&servers->target, &servers->servers[i], topic, err);
        }
    }
    if (status == HPS_OK && known == NULL) {
        status = keep_checked(servers, form, err);
    } else if (status == HPS_OK) {
        known->dim = form->dim;
        known->dtype = form->dtype;
    }
    return status;
}

/* ---- afterwards ------------------------------------------------------------------------------ */

hps_status publish_wait(struct publish_servers *servers, const struct hps_update_records *records,
                        size_t n, uint64_t timeout_us, struct hps_error *err)
{
    HPS_ASSERT(records != NULL || n == 0);
    struct hps_update_goal goal = goal_of(&servers->target);
    uint64_t end_us = hps_clock_us() + timeout_us;
    hps_status status = HPS_OK;

    goal.records = records;
    goal.n_records = n;
    for (size_t i = 0; i < servers->n && status == HPS_OK && n > 0; i++) {
        struct server *server = &servers->servers[i];
        uint64_t now_us = hps_clock_us();
        struct hps_update_wait *wait = hps_update_wait_new(&goal);
        if (wait == NULL) {
            return hps_error_set(err, HPS_NO_MEMORY, "out of memory");
        }
        hps_update_wait_before(wait, server->before);
        status = hps_update_wait_run(wait, server->client, now_us < end_us ? end_us - now_us : 0,
                                     tool_interrupted, err);
        hps_update_wait_free(wait);
        if (status != HPS_OK) {
            hps_ignore(hps_error_prefix(err, status, "%s", server->address));
        }
    }
    return status;
}

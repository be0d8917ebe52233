/* SPDX-License-Identifier: Apache-2.0
 *
 * The servers on which published records must become visible. Asks them before the first record
 * whether they accept the records, and waits after the last one until lookups see all. One
 * thread.
 */
#include <inttypes.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "client/message.h"
#include "tools/hps-publish.h"
#include "tools/tool.h"

enum {
    CALL_US = 10 * 1000 * 1000,
    TOPIC_US = 3 * 1000 * 1000, /* time in which servers notice a new topic */
    RANGES_MAX = 2000,          /* of one request: servers accept 64 KiB */
    RECORDS_RANGES = 15,        /* an UpdateRecords has the size of this many ranges in addition */
    RECORDS_MAX = RANGES_MAX / RECORDS_RANGES
};

struct server {
    const char *address;
    struct hps_client *client;
    Hps__V1__WaitForUpdatesResponse *before; /* reply before the first record was sent */
};

/* The content of one request. */
struct asked {
    Hps__V1__UpdateRecords records[RECORDS_MAX], *list[RECORDS_MAX]; /* [n] */
    int64_t first[RANGES_MAX], last[RANGES_MAX];
    size_t n;
};

/* A table that all servers accept. */
struct checked {
    char *table;
    uint32_t dim; /* 0: only deletes so far */
    enum hps_dtype dtype;
};

struct publish_servers {
    struct publish_target target;
    struct server servers[PUBLISH_SERVERS_MAX]; /* [n] */
    size_t n;
    struct checked *checked; /* [n_checked] */
    size_t n_checked;
    size_t last; /* most rows are of the same table as the rows before */
    struct asked asked;
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

static void free_reply(Hps__V1__WaitForUpdatesResponse *reply)
{
    hps_message_free((ProtobufCMessage *)reply);
}

void publish_servers_close(struct publish_servers *servers)
{
    if (servers == NULL) {
        return;
    }
    for (size_t i = 0; i < servers->n; i++) {
        struct server *server = &servers->servers[i];
        free_reply(server->before);
        hps_client_close(server->client);
    }
    for (size_t i = 0; i < servers->n_checked; i++) {
        hps_free(servers->checked[i].table);
    }
    hps_free(servers->checked);
    hps_free(servers);
}

/* ---- before the first record ----------------------------------------------------------------- */

static Hps__V1__WaitForUpdatesRequest request_of(const struct publish_target *target,
                                                 Hps__V1__WaitGoal goal)
{
    Hps__V1__WaitForUpdatesRequest request = HPS__V1__WAIT_FOR_UPDATES_REQUEST__INIT;

    request.model = (char *)(uintptr_t)target->model; /* not written to */
    request.version = target->version;
    request.goal = goal;
    request.names_version = target->version != 0;
    return request;
}

/* Makes a refusal by the server INVALID; other errors keep their status. */
static hps_status refusal(const struct server *server, hps_status status, struct hps_error *err)
{
    HPS_ASSERT(status != HPS_OK);
    bool refused = status == HPS_NOT_FOUND || status == HPS_PRECONDITION || status == HPS_DEADLINE;
    err->status = refused ? HPS_INVALID : status;
    return hps_error_prefix(err, err->status, "sent no records: %s", server->address);
}

static hps_status begin_one(const struct publish_target *target, struct server *server,
                            struct hps_error *err)
{
    HPS_ASSERT(server->before == NULL);
    Hps__V1__WaitForUpdatesRequest request =
        request_of(target, HPS__V1__WAIT_GOAL__WAIT_GOAL_READY);

    hps_status status =
        hps_client_wait(server->client, &request, CALL_US, tool_interrupted, &server->before, err);
    if (status == HPS_OK && target->key_bytes != 0 &&
        target->key_bytes != server->before->key_bytes) {
        status = hps_error_set(
            err, HPS_PRECONDITION,
            "the server expects keys of %" PRIu32
            " bytes in hctr records (supportlonglong), got %" PRIu32 ": use --key-bytes %" PRIu32,
            server->before->key_bytes, target->key_bytes, server->before->key_bytes);
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

/* Servers accept rows in FP32, or in the type of the table. A lookup without keys returns that
 * type. */
static hps_status check_rows(const struct publish_target *target, const struct server *server,
                             const struct publish_rows_form *form, struct hps_error *err)
{
    Hps__V1__LookupRequest request = HPS__V1__LOOKUP_REQUEST__INIT;
    Hps__V1__TableQuery query = HPS__V1__TABLE_QUERY__INIT, *queries = &query;
    ProtobufCMessage *reply = NULL;

    query.table = (char *)(uintptr_t)form->table;
    request.model = (char *)(uintptr_t)target->model;
    request.version = target->version;
    request.output_type = HPS__V1__DATA_TYPE__DATA_TYPE_RAW;
    request.queries = &queries;
    request.n_queries = 1;
    hps_status status =
        hps_client_call_message(server->client, "/hps.v1.ParameterServer/Lookup", &request.base,
                                &hps__v1__lookup_response__descriptor, CALL_US, &reply, err);
    if (status != HPS_OK) {
        return hps_error_prefix(err, status, "model %s on %s", target->model, server->address);
    }
    const Hps__V1__LookupResponse *found = (const Hps__V1__LookupResponse *)(void *)reply;
    const Hps__V1__TableResult *has = found->n_results == 1 ? found->results[0] : NULL;
    if (has == NULL) {
        status = hps_error_set(err, HPS_INTERNAL, "%s: no reply for table %s", server->address,
                               form->table);
    } else if (form->dim != 0 && form->dim != has->dim) {
        status = hps_error_set(err, HPS_INVALID,
                               "table %s of model %s has rows of %" PRIu32
                               " values on %s, got rows of %" PRIu32,
                               form->table, target->model, has->dim, server->address, form->dim);
    } else if (form->dim != 0 && form->dtype != HPS_DTYPE_FP32 &&
               (int)has->data_type != (int)form->dtype) {
        status = hps_error_set(
            err, HPS_INVALID,
            "table %s of model %s has rows of %s on %s, got rows of %s: use --row-dtype fp32",
            form->table, target->model, hps_dtype_name((enum hps_dtype)has->data_type),
            server->address, hps_dtype_name(form->dtype));
    }
    hps_message_free(reply);
    return status;
}

/* Some servers notice a new topic a little later. */
static hps_status check_topic(const struct publish_target *target, const struct server *server,
                              const char *topic, struct hps_error *err)
{
    Hps__V1__WaitForUpdatesResponse *reply = NULL;
    Hps__V1__WaitForUpdatesRequest request =
        request_of(target, HPS__V1__WAIT_GOAL__WAIT_GOAL_READY);

    request.topic = (char *)(uintptr_t)topic;
    hps_status status =
        hps_client_wait(server->client, &request, TOPIC_US, tool_interrupted, &reply, err);
    free_reply(reply);
    return status == HPS_OK ? HPS_OK : hps_error_prefix(err, status, "%s", server->address);
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
        if (status == HPS_NOT_FOUND || status == HPS_PRECONDITION || status == HPS_DEADLINE) {
            err->status = status = HPS_INVALID;
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

/* ---- after the last record ------------------------------------------------------------------- */

/* Puts as many of the first ranges into the request as fit; returns their number. */
static size_t ask_for(struct asked *asked, const struct publish_range *ranges, size_t n)
{
    Hps__V1__UpdateRecords *of = NULL;
    size_t used = 0;
    size_t i = 0;

    asked->n = 0;
    for (; i < n; i++) {
        bool other = i == 0 || ranges[i].partition != ranges[i - 1].partition ||
                     strcmp(ranges[i].topic, ranges[i - 1].topic) != 0;
        used += other ? RECORDS_RANGES + 1 : 1;
        if (used > RANGES_MAX) {
            break;
        }
        if (other) {
            of = asked->list[asked->n] = &asked->records[asked->n];
            asked->n++;
            hps__v1__update_records__init(of);
            of->topic = (char *)(uintptr_t)ranges[i].topic; /* not written to */
            of->partition = (int32_t)ranges[i].partition;
            of->first = &asked->first[i];
            of->last = &asked->last[i];
        }
        of->first[of->n_first++] = ranges[i].first;
        of->last[of->n_last++] = ranges[i].last;
    }
    return i;
}

static hps_status wait_one(struct publish_servers *servers, const struct server *server,
                           const struct publish_range *ranges, size_t n, uint64_t end_us,
                           struct hps_error *err)
{
    struct asked *asked = &servers->asked;
    hps_status status = HPS_OK;

    for (size_t i = 0; i < n && status == HPS_OK;) {
        i += ask_for(asked, ranges + i, n - i);
        Hps__V1__WaitForUpdatesResponse *reply = NULL;
        Hps__V1__WaitForUpdatesRequest request =
            request_of(&servers->target, HPS__V1__WAIT_GOAL__WAIT_GOAL_RECORDS);
        request.records = asked->list;
        request.n_records = asked->n;
        request.mark = server->before->mark;
        /* The second try reconnects a lost connection. If the server was restarted, it recognises
         * that by the mark. */
        for (int tries = 0; tries == 0 || (tries == 1 && status == HPS_UNAVAILABLE); tries++) {
            uint64_t now_us = hps_clock_us();
            status =
                hps_client_wait(server->client, &request, now_us < end_us ? end_us - now_us : 1,
                                tool_interrupted, &reply, err);
        }
        free_reply(reply);
    }
    return status;
}

hps_status publish_wait(struct publish_servers *servers, const struct publish_range *ranges,
                        size_t n, uint64_t timeout_us, struct hps_error *err)
{
    HPS_ASSERT(ranges != NULL || n == 0);
    uint64_t end_us = hps_clock_us() + timeout_us;
    hps_status status = HPS_OK;

    for (size_t i = 0; i < servers->n && status == HPS_OK; i++) {
        status = wait_one(servers, &servers->servers[i], ranges, n, end_us, err);
        if (status != HPS_OK) {
            hps_ignore(hps_error_prefix(err, status, "%s", servers->servers[i].address));
        }
    }
    return status;
}

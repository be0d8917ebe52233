/* SPDX-License-Identifier: Apache-2.0
 *
 * Which topics exist is known from the lists of the leaders' router. Ids and settings come from the
 * admin API, for which librdkafka chooses the broker. Those requests run in the background: known
 * values are kept, and a late response is used in the next call.
 */
#include "backends/kafka/topics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"

enum {
    SETTINGS_MS = 5000, /* for a response with settings; then the request may be sent again */
    IDS_MS = 1000,      /* the same for ids */
    IDS_EVERY_US = 500000,
    UNKNOWN_WAIT_MS = 1000, /* wait so long if the settings of some topic are unknown */
    KNOWN_WAIT_MS = 200,    /* ... if all are known */
};

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct hps_kafka_named *)a)->is.name,
                  ((const struct hps_kafka_named *)b)->is.name);
}

/* NULL: the consumer does not list the topic. */
static struct hps_kafka_named *topic_named(const struct hps_kafka_topics *t, const char *name)
{
    const struct hps_kafka_named key = {.is.name = name};
    return bsearch(&key, t->names, t->n_names, sizeof(key), by_name);
}

/* ---- settings -------------------------------------------------------------------------------- */

static void topic_configure(struct hps_consumer_topic *topic,
                            const rd_kafka_ConfigResource_t *resource)
{
    size_t n = 0;
    long long kept_ms = 0;
    bool by_size = true;
    if (rd_kafka_ConfigResource_error(resource) != RD_KAFKA_RESP_ERR_NO_ERROR) {
        return; /* hpsd may not see them */
    }
    const rd_kafka_ConfigEntry_t **entries = rd_kafka_ConfigResource_configs(resource, &n);
    for (size_t i = 0; i < n; i++) {
        const char *name = rd_kafka_ConfigEntry_name(entries[i]);
        const char *value = rd_kafka_ConfigEntry_value(entries[i]);
        if (value != NULL && strcmp(name, "cleanup.policy") == 0) {
            topic->compaction =
                strstr(value, "compact") != NULL ? HPS_COMPACTION_YES : HPS_COMPACTION_NO;
        } else if (value != NULL && strcmp(name, "delete.retention.ms") == 0) {
            topic->delete_retention_ms = strtoll(value, NULL, 10);
        } else if (value != NULL && strcmp(name, "retention.ms") == 0) {
            kept_ms = strtoll(value, NULL, 10);
        } else if (value != NULL && strcmp(name, "retention.bytes") == 0) {
            by_size = strtoll(value, NULL, 10) >= 0;
        } else if (value != NULL && strcmp(name, "message.timestamp.type") == 0) {
            topic->time_of = strcmp(value, "LogAppendTime") == 0 ? HPS_RECORD_TIME_APPENDED
                                                                 : HPS_RECORD_TIME_CREATED;
        }
    }
    topic->kept_ms = by_size || kept_ms < 0 ? 0 : kept_ms;
}

static void take_settings(struct hps_kafka_topics *t, rd_kafka_event_t *event)
{
    size_t n = 0;
    const rd_kafka_DescribeConfigs_result_t *result = rd_kafka_event_DescribeConfigs_result(event);
    const rd_kafka_ConfigResource_t **resources =
        rd_kafka_DescribeConfigs_result_resources(result, &n);
    for (size_t i = 0; i < n; i++) {
        struct hps_kafka_named *named = topic_named(t, rd_kafka_ConfigResource_name(resources[i]));
        if (named != NULL) {
            topic_configure(&named->is, resources[i]);
        }
    }
}

static rd_kafka_AdminOptions_t *request_options(struct hps_kafka_topics *t, rd_kafka_admin_op_t op,
                                                int timeout_ms, struct hps_kafka_admin *request)
{
    HPS_ASSERT(!request->sent); /* one request of a kind at a time */
    rd_kafka_AdminOptions_t *options = rd_kafka_AdminOptions_new(t->rk, op);
    rd_kafka_AdminOptions_set_request_timeout(options, timeout_ms, NULL, 0);
    request->sent = true;
    request->sent_us = hps_clock_us();
    request->sent_unix_ms = hps_clock_forward_ms();
    return options;
}

static void request_settings(struct hps_kafka_topics *t)
{
    rd_kafka_ConfigResource_t **resources =
        hps_calloc((size_t)t->n_reported + 1, sizeof(resources[0]));
    if (resources == NULL) {
        return; /* in the next call */
    }
    for (uint32_t i = 0; i < t->n_reported; i++) {
        resources[i] = rd_kafka_ConfigResource_new(RD_KAFKA_RESOURCE_TOPIC, t->reported[i].name);
    }
    rd_kafka_AdminOptions_t *options =
        request_options(t, RD_KAFKA_ADMIN_OP_DESCRIBECONFIGS, SETTINGS_MS, &t->settings_request);
    rd_kafka_DescribeConfigs(t->rk, resources, t->n_reported, options, t->responses);
    rd_kafka_AdminOptions_destroy(options);
    rd_kafka_ConfigResource_destroy_array(resources, t->n_reported);
    hps_free(resources);
}

/* ---- ids ------------------------------------------------------------------------------------- */

#if RD_KAFKA_VERSION >= 0x020300ff

static void take_ids(struct hps_kafka_topics *t, rd_kafka_event_t *event)
{
    size_t n = 0;
    const rd_kafka_DescribeTopics_result_t *result = rd_kafka_event_DescribeTopics_result(event);
    const rd_kafka_TopicDescription_t **described =
        rd_kafka_DescribeTopics_result_topics(result, &n);
    for (size_t i = 0; i < n; i++) {
        struct hps_kafka_named *named =
            topic_named(t, rd_kafka_TopicDescription_name(described[i]));
        const rd_kafka_Uuid_t *id = rd_kafka_TopicDescription_topic_id(described[i]);
        const rd_kafka_error_t *error = rd_kafka_TopicDescription_error(described[i]);
        bool known = error == NULL || rd_kafka_error_code(error) == RD_KAFKA_RESP_ERR_NO_ERROR;
        if (named == NULL || !known || id == NULL ||
            (rd_kafka_Uuid_most_significant_bits(id) == 0 &&
             rd_kafka_Uuid_least_significant_bits(id) == 0)) {
            continue; /* brokers before 2.8 have no ids */
        }
        (void)snprintf(named->id, HPS_KAFKA_ID_BYTES, "%s", rd_kafka_Uuid_base64str(id));
        named->is.id_asked_unix_ms = t->id_request.sent_unix_ms;
    }
}

static void request_ids(struct hps_kafka_topics *t)
{
    const char **names = hps_calloc((size_t)t->n_reported + 1, sizeof(names[0]));
    if (names == NULL) {
        return; /* in the next call */
    }
    for (uint32_t i = 0; i < t->n_reported; i++) {
        names[i] = t->reported[i].name;
    }
    rd_kafka_AdminOptions_t *options =
        request_options(t, RD_KAFKA_ADMIN_OP_DESCRIBETOPICS, IDS_MS, &t->id_request);
    rd_kafka_TopicCollection_t *collection =
        rd_kafka_TopicCollection_of_topic_names(names, t->n_reported);
    rd_kafka_DescribeTopics(t->rk, collection, options, t->responses);
    rd_kafka_TopicCollection_destroy(collection);
    rd_kafka_AdminOptions_destroy(options);
    hps_free(names);
}

#else

/* This librdkafka cannot query them. */
static void request_ids(struct hps_kafka_topics *t)
{
    (void)t;
}

static void take_ids(struct hps_kafka_topics *t, rd_kafka_event_t *event)
{
    (void)t;
    (void)event;
}

#endif

/* ---- requests -------------------------------------------------------------------------------- */

/* Takes the event. */
static void take_response(struct hps_kafka_topics *t, rd_kafka_event_t *event)
{
    bool ok = rd_kafka_event_error(event) == RD_KAFKA_RESP_ERR_NO_ERROR;
    bool settings = rd_kafka_event_type(event) == RD_KAFKA_EVENT_DESCRIBECONFIGS_RESULT;
    struct hps_kafka_admin *request = settings ? &t->settings_request : &t->id_request;
    if (ok && settings) {
        take_settings(t, event);
    } else if (ok) {
        take_ids(t, event);
    }
    request->sent = false;
    request->late = request->late && !ok;
    rd_kafka_event_destroy(event);
}

static void take_responses(struct hps_kafka_topics *t)
{
    rd_kafka_event_t *event = NULL;
    while ((event = rd_kafka_queue_poll(t->responses, 0)) != NULL) {
        take_response(t, event);
    }
}

static bool is_awaited(const struct hps_kafka_admin *request)
{
    return request->sent && !request->late;
}

/* Query ids and settings, and wait a short time for the responses. */
static void describe(struct hps_kafka_topics *t, uint64_t end_us)
{
    uint64_t begun_us = hps_clock_us();
    bool any = t->n_reported > 0;
    bool unknown = false;
    for (uint32_t i = 0; i < t->n_reported; i++) {
        unknown = unknown || t->reported[i].compaction == HPS_COMPACTION_UNKNOWN;
    }
    uint64_t until_us = begun_us + 1000 * (uint64_t)(unknown ? UNKNOWN_WAIT_MS : KNOWN_WAIT_MS);
    until_us = until_us < end_us ? until_us : end_us;
    rd_kafka_event_t *event = NULL;
    do {
        if (any && !t->settings_request.sent && t->settings_request.sent_us < begun_us) {
            request_settings(t);
        }
        if (any && !t->id_request.sent && t->id_request.sent_us < begun_us) {
            request_ids(t);
        }
        bool wait = is_awaited(&t->settings_request) || is_awaited(&t->id_request);
        event = rd_kafka_queue_poll(t->responses, wait ? hps_kafka_remaining_ms(until_us) : 0);
        if (event != NULL) {
            take_response(t, event);
        }
    } while (event != NULL);
    t->settings_request.late = t->settings_request.late || t->settings_request.sent;
    t->id_request.late = t->id_request.late || t->id_request.sent;
}

/* ---- lists ----------------------------------------------------------------------------------- */

/* Forget all of the topic but its name. */
static void forget(struct hps_kafka_named *named)
{
    named->id[0] = '\0';
    named->is = (struct hps_consumer_topic){
        .name = named->is.name, .id = named->id, .delete_retention_ms = -1};
}

static void report(struct hps_kafka_topics *t)
{
    t->n_reported = 0;
    for (uint32_t i = 0; i < t->n_names; i++) {
        if (t->names[i].is.n_partitions > 0) {
            t->reported[t->n_reported++] = t->names[i].is;
        }
    }
}

hps_status hps_kafka_topics_list(struct hps_kafka_topics *t, uint32_t timeout_ms,
                                 struct hps_consumer_topics *out_topics, struct hps_error *err)
{
    uint64_t begun_us = hps_clock_us();
    uint64_t end_us = begun_us + UINT64_C(1000) * timeout_ms;
    hps_status status = HPS_OK;
    for (uint32_t i = 0; i < t->n_names && status == HPS_OK; i++) {
        status = hps_kafka_watched_wait(t->names[i].watched, begun_us, end_us, err);
    }
    if (status != HPS_OK) {
        return status;
    }
    char *cluster_id = rd_kafka_clusterid(t->rk, hps_kafka_remaining_ms(end_us));
    char *copy = hps_strdup(cluster_id == NULL ? "" : cluster_id);
    if (cluster_id != NULL) {
        rd_kafka_mem_free(t->rk, cluster_id);
    }
    if (copy == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for topics");
    }
    hps_free(t->cluster_id);
    t->cluster_id = copy;
    for (uint32_t i = 0; i < t->n_names; i++) {
        struct hps_kafka_named *named = &t->names[i];
        named->is.n_partitions = hps_kafka_watched_listed(named->watched).n_partitions;
        if (named->is.n_partitions == 0) {
            forget(named);
        }
    }
    report(t);
    describe(t, end_us);
    report(t); /* with the new ids and settings */
    *out_topics = (struct hps_consumer_topics){t->cluster_id, t->reported, t->n_reported};
    return HPS_OK;
}

void hps_kafka_topics_listing(struct hps_kafka_topics *t, struct hps_consumer_listing *out_listing)
{
    struct hps_consumer_listing listing = {.asked_us = hps_clock_us(),
                                           .asked_unix_ms = hps_clock_forward_ms()};
    take_responses(t);
    if (t->n_reported > 0 && !t->id_request.sent &&
        listing.asked_us >= t->id_request.sent_us + IDS_EVERY_US) {
        request_ids(t);
    }
    for (uint32_t i = 0; i < t->n_names; i++) {
        struct hps_kafka_listed now = hps_kafka_watched_listed(t->names[i].watched);
        if (now.asked_us < listing.asked_us) {
            listing.asked_us = now.asked_us;
            listing.asked_unix_ms = now.asked_unix_ms;
        }
        listing.changed = listing.changed || now.n_partitions != t->names[i].is.n_partitions;
    }
    report(t);
    listing.topics = t->reported;
    listing.n_topics = t->n_reported;
    *out_listing = listing;
}

/* ---- life ------------------------------------------------------------------------------------ */

hps_status hps_kafka_topics_open(struct hps_kafka_topics *t, struct hps_kafka_leaders *leaders,
                                 const char *const *names, uint32_t n, struct hps_error *err)
{
    *t = (struct hps_kafka_topics){0};
    hps_status status = hps_kafka_leaders_start(leaders, &t->rk, err);
    if (status != HPS_OK) {
        return status;
    }
    t->responses = rd_kafka_queue_new(t->rk);
    t->names = hps_calloc((size_t)n + 1, sizeof(t->names[0]));
    t->reported = hps_calloc((size_t)n + 1, sizeof(t->reported[0]));
    status = t->names == NULL || t->reported == NULL ? HPS_NO_MEMORY : HPS_OK;
    for (uint32_t i = 0; i < n && status == HPS_OK; i++) {
        struct hps_kafka_named *named = &t->names[t->n_names];
        status = hps_kafka_watched_add(leaders, names[i], HPS_KAFKA_NO_PARTITION, &named->watched);
        if (status == HPS_INVALID) {
            status = HPS_OK; /* no such topic can exist */
        } else if (status == HPS_OK) {
            named->is.name = hps_kafka_watched_listed(named->watched).topic;
            t->n_names++;
        }
    }
    if (status != HPS_OK) {
        return hps_error_set(err, status, "no memory for topics");
    }
    qsort(t->names, t->n_names, sizeof(t->names[0]), by_name);
    for (uint32_t i = 0; i < t->n_names; i++) {
        forget(&t->names[i]);
    }
    return HPS_OK;
}

void hps_kafka_topics_close(struct hps_kafka_topics *t)
{
    for (uint32_t i = 0; i < t->n_names; i++) {
        hps_kafka_watched_release(t->names[i].watched);
    }
    if (t->responses != NULL) {
        rd_kafka_queue_destroy(t->responses);
    }
    hps_free(t->names);
    hps_free(t->reported);
    hps_free(t->cluster_id);
}

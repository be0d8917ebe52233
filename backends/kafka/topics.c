/* SPDX-License-Identifier: Apache-2.0
 *
 * Which topics exist is known from the lists of the leaders' router. Ids and settings come from the
 * admin API, for which librdkafka chooses the broker. Those requests run in the background, and
 * known values are kept.
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
    UNKNOWN_US = 1000000, /* a topic that appears waits so long for its settings */
};

/* The topic's index; list.n_topics: the consumer does not list it. */
static uint32_t topic_named(const struct hps_kafka_topics *t, const char *name)
{
    uint32_t i = 0;
    while (i < t->list.n_topics && strcmp(t->topics[i].name, name) != 0) {
        i++;
    }
    return i;
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
        uint32_t k = topic_named(t, rd_kafka_ConfigResource_name(resources[i]));
        struct hps_kafka_named *named = &t->names[k];
        if (k < t->list.n_topics && named->since_us > 0 &&
            named->since_us <= t->settings_request.sent_us) {
            topic_configure(&t->topics[k], resources[i]);
            named->described = true;
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

/* The names [*out_n] of the topics that exist, to free. 0: none, or no memory. */
static const char **existing(const struct hps_kafka_topics *t, size_t *out_n)
{
    const char **names = hps_calloc(t->list.n_topics, sizeof(names[0]));
    *out_n = 0;
    for (uint32_t i = 0; i < t->list.n_topics && names != NULL; i++) {
        if (t->names[i].since_us > 0) {
            names[(*out_n)++] = t->topics[i].name;
        }
    }
    return names;
}

static void request_settings(struct hps_kafka_topics *t)
{
    size_t n = 0;
    const char **names = existing(t, &n);
    rd_kafka_ConfigResource_t **resources = hps_calloc(n, sizeof(resources[0]));
    if (n > 0 && resources != NULL) { /* without memory: in the next call */
        for (size_t i = 0; i < n; i++) {
            resources[i] = rd_kafka_ConfigResource_new(RD_KAFKA_RESOURCE_TOPIC, names[i]);
        }
        rd_kafka_AdminOptions_t *options = request_options(t, RD_KAFKA_ADMIN_OP_DESCRIBECONFIGS,
                                                           SETTINGS_MS, &t->settings_request);
        rd_kafka_DescribeConfigs(t->rk, resources, n, options, t->responses);
        rd_kafka_AdminOptions_destroy(options);
        rd_kafka_ConfigResource_destroy_array(resources, n);
    }
    hps_free(resources);
    hps_free(names);
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
        uint32_t k = topic_named(t, rd_kafka_TopicDescription_name(described[i]));
        const rd_kafka_Uuid_t *id = rd_kafka_TopicDescription_topic_id(described[i]);
        const rd_kafka_error_t *error = rd_kafka_TopicDescription_error(described[i]);
        bool known = error == NULL || rd_kafka_error_code(error) == RD_KAFKA_RESP_ERR_NO_ERROR;
        if (k == t->list.n_topics || !known || id == NULL ||
            (rd_kafka_Uuid_most_significant_bits(id) == 0 &&
             rd_kafka_Uuid_least_significant_bits(id) == 0)) {
            continue; /* brokers before 2.8 have no ids */
        }
        (void)snprintf(t->names[k].id, HPS_KAFKA_ID_BYTES, "%s", rd_kafka_Uuid_base64str(id));
        t->topics[k].id_asked_unix_ms = t->id_request.sent_unix_ms;
    }
}

static void request_ids(struct hps_kafka_topics *t)
{
    size_t n = 0;
    const char **names = existing(t, &n);
    if (n > 0) {
        rd_kafka_AdminOptions_t *options =
            request_options(t, RD_KAFKA_ADMIN_OP_DESCRIBETOPICS, IDS_MS, &t->id_request);
        rd_kafka_TopicCollection_t *collection = rd_kafka_TopicCollection_of_topic_names(names, n);
        rd_kafka_DescribeTopics(t->rk, collection, options, t->responses);
        rd_kafka_TopicCollection_destroy(collection);
        rd_kafka_AdminOptions_destroy(options);
    }
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
    rd_kafka_event_destroy(event);
}

/* Send the requests that are due. */
static void request(struct hps_kafka_topics *t, uint64_t since_us)
{
    uint64_t now_us = hps_clock_us();
    uint64_t settings_us = t->settings_request.sent_us;
    bool settings_due = now_us >= settings_us + t->settings_us;
    for (uint32_t i = 0; i < t->list.n_topics; i++) {
        settings_due = settings_due || t->names[i].since_us > settings_us;
    }
    if (settings_due && !t->settings_request.sent) {
        request_settings(t);
    }
    bool ids_due = now_us >= t->id_request.sent_us + IDS_EVERY_US;
    if ((ids_due || t->id_request.sent_us < since_us) && !t->id_request.sent) {
        request_ids(t);
    }
    hps_kafka_leaders_list(t->leaders, since_us);
}

/* ---- lists ----------------------------------------------------------------------------------- */

/* Get the newest list, and why it is not newer. False: a topic waits for its settings. */
static bool look(struct hps_kafka_topics *t, struct hps_consumer_topics *out_list)
{
    uint64_t now_us = hps_clock_us();
    bool complete = true;
    const struct hps_kafka_listed *oldest = NULL;
    *out_list = t->list;
    out_list->error[0] = '\0';
    out_list->asked_us = now_us;
    out_list->asked_unix_ms = hps_clock_forward_ms();
    for (uint32_t i = 0; i < t->list.n_topics; i++) {
        struct hps_kafka_named *named = &t->names[i];
        named->now = hps_kafka_watched_listed(named->watched);
        if (named->now.asked_us < out_list->asked_us) {
            out_list->asked_us = named->now.asked_us;
            out_list->asked_unix_ms = named->now.asked_unix_ms;
            oldest = &named->now;
        }
        if (named->now.n_partitions == 0) {
            named->since_us = 0;
            named->described = false;
        } else if (named->since_us == 0) {
            named->since_us = now_us;
        }
        complete = complete && (named->since_us == 0 || named->described ||
                                now_us >= named->since_us + UNKNOWN_US);
    }
    if (oldest != NULL && oldest->code != RD_KAFKA_RESP_ERR_NO_ERROR) {
        snprintf(out_list->error, sizeof(out_list->error), "%.80s: %.70s", oldest->topic,
                 rd_kafka_err2str(oldest->code));
    }
    return complete;
}

/* Forget all of the topic but its name. */
static void forget(struct hps_kafka_topics *t, uint32_t i)
{
    t->names[i].id[0] = '\0';
    t->topics[i] = (struct hps_consumer_topic){
        .name = t->names[i].now.topic, .id = t->names[i].id, .delete_retention_ms = -1};
}

static void take_list(struct hps_kafka_topics *t, const struct hps_consumer_topics *list)
{
    char *cluster_id = rd_kafka_clusterid(t->rk, 0); /* known since the first list */
    snprintf(t->cluster_id, sizeof(t->cluster_id), "%s", cluster_id == NULL ? "" : cluster_id);
    if (cluster_id != NULL) {
        rd_kafka_mem_free(t->rk, cluster_id);
    }
    for (uint32_t i = 0; i < t->list.n_topics; i++) {
        if (t->names[i].now.n_partitions == 0) {
            forget(t, i);
        }
        t->topics[i].n_partitions = t->names[i].now.n_partitions;
    }
    t->list = *list;
}

const struct hps_consumer_topics *hps_kafka_topics_get(struct hps_kafka_topics *t,
                                                       uint64_t since_us)
{
    struct hps_consumer_topics list;
    rd_kafka_event_t *event = NULL;
    while ((event = rd_kafka_queue_poll(t->responses, 0)) != NULL) {
        take_response(t, event);
    }
    if (look(t, &list) && list.asked_us > t->list.asked_us) {
        take_list(t, &list);
    }
    memcpy(t->list.error, list.error, sizeof(t->list.error));
    request(t, since_us);
    return &t->list;
}

/* ---- life ------------------------------------------------------------------------------------ */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct hps_kafka_named *)a)->now.topic,
                  ((const struct hps_kafka_named *)b)->now.topic);
}

hps_status hps_kafka_topics_open(struct hps_kafka_topics *t, struct hps_kafka_leaders *leaders,
                                 const struct hps_consumer_options *options, struct hps_error *err)
{
    *t = (struct hps_kafka_topics){.leaders = leaders,
                                   .settings_us = UINT64_C(1000) * options->settings_ms};
    hps_status status = hps_kafka_leaders_start(leaders, &t->rk, err);
    if (status != HPS_OK) {
        return status;
    }
    t->responses = rd_kafka_queue_new(t->rk);
    t->names = hps_calloc(options->n_topics, sizeof(t->names[0]));
    t->topics = hps_calloc(options->n_topics, sizeof(t->topics[0]));
    status = t->names == NULL || t->topics == NULL ? HPS_NO_MEMORY : HPS_OK;
    for (uint32_t i = 0; i < options->n_topics && status == HPS_OK; i++) {
        struct hps_kafka_named *named = &t->names[t->list.n_topics];
        status = hps_kafka_watched_add(leaders, options->topics[i], HPS_KAFKA_NO_PARTITION,
                                       &named->watched);
        if (status == HPS_INVALID) {
            status = HPS_OK; /* no such topic can exist */
        } else if (status == HPS_OK) {
            named->now = hps_kafka_watched_listed(named->watched);
            t->list.n_topics++;
        }
    }
    if (status != HPS_OK) {
        return hps_error_set(err, status, "no memory for topics");
    }
    qsort(t->names, t->list.n_topics, sizeof(t->names[0]), by_name);
    for (uint32_t i = 0; i < t->list.n_topics; i++) {
        forget(t, i);
    }
    t->list.topics = t->topics;
    t->list.cluster_id = t->cluster_id;
    return HPS_OK;
}

void hps_kafka_topics_close(struct hps_kafka_topics *t)
{
    for (uint32_t i = 0; i < t->list.n_topics; i++) {
        hps_kafka_watched_release(t->names[i].watched);
    }
    if (t->responses != NULL) {
        rd_kafka_queue_destroy(t->responses);
    }
    hps_free(t->names);
    hps_free(t->topics);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Which topics there are, and how they are set. On the thread of the consumer.
 *
 * Any broker has the list, but one that hangs has the questions, too, until its connection is given
 * up: each is asked for a short time, through two handles in turn. How topics are set, and their
 * ids, come of the admin API, from a broker that we do not choose. So they are asked for in the
 * background: what is known stays known, and an answer that does not come at once is taken with the
 * next list.
 */
#include <stdlib.h>
#include <string.h>

#include "backends/kafka/internal.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"

enum {
    LIST_MS = 500,      /* for the list of topics of one broker, then another one is asked */
    SETTINGS_MS = 5000, /* for how topics are set: then they are asked for again */
    NEW_MS = 1000,      /* of that we wait, when there is a topic of which nothing is known */
    KNOWN_MS = 200,     /* ... when there is not */
};

/* ---- the list -------------------------------------------------------------------------------- */

const struct rd_kafka_metadata_topic *hps_kafka_topic_in(const struct rd_kafka_metadata *all,
                                                         const char *topic)
{
    for (int i = 0; i < all->topic_cnt; i++) {
        if (strcmp(all->topics[i].topic, topic) == 0) {
            return &all->topics[i];
        }
    }
    return NULL;
}

hps_status hps_kafka_list(struct hps_kafka_consumer *c, uint64_t end_us, rd_kafka_t **out_rk,
                          const struct rd_kafka_metadata **out_all, struct hps_error *err)
{
    rd_kafka_resp_err_t code = RD_KAFKA_RESP_ERR__TIMED_OUT;
    rd_kafka_t *rk = c->rk;
    do {
        int left_ms = hps_kafka_remaining_ms(end_us);
        code = rd_kafka_metadata(rk, 1, NULL, out_all, left_ms < LIST_MS ? left_ms : LIST_MS);
        if (code == RD_KAFKA_RESP_ERR_NO_ERROR) {
            if (rk == c->rk) {
                hps_kafka_answered(c);
            }
            *out_rk = rk;
            return HPS_OK;
        }
        rd_kafka_t *other = hps_kafka_leaders_handle(c->log->leaders);
        rk = rk == c->rk && other != NULL ? other : c->rk;
    } while (hps_kafka_remaining_ms(end_us) > 0);
    if (hps_kafka_is_down(c)) {
        return hps_error_set(err, c->link.status, "topics not listed: %s", c->link.text);
    }
    return hps_kafka_fail(err, code, "topics not listed");
}

void hps_kafka_topics_free(struct hps_consumer_topic *topics, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        hps_free((char *)topics[i].name);
        hps_free((char *)topics[i].id);
    }
    hps_free(topics);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct hps_consumer_topic *)a)->name,
                  ((const struct hps_consumer_topic *)b)->name);
}

/* Of topics in order of name; NULL: it is not among them. */
static struct hps_consumer_topic *topic_named(struct hps_consumer_topic *topics, uint32_t n,
                                              const char *name)
{
    struct hps_consumer_topic key = {.name = name};
    return n == 0 ? NULL : bsearch(&key, topics, n, sizeof(*topics), by_name);
}

static hps_status topic_make(struct hps_kafka_consumer *c,
                             const struct rd_kafka_metadata_topic *listed,
                             struct hps_consumer_topic *out_topic)
{
    const struct hps_consumer_topic *known = topic_named(c->list.topics, c->list.n, listed->topic);
    *out_topic = (struct hps_consumer_topic){.delete_retention_ms = -1};
    if (known != NULL) {
        *out_topic = *known;
    }
    out_topic->name = hps_strdup(listed->topic);
    out_topic->id = hps_strdup(""); /* what was told before may be another topic's by now */
    out_topic->n_partitions = listed->partition_cnt;
    return out_topic->name == NULL || out_topic->id == NULL ? HPS_NO_MEMORY : HPS_OK;
}

/* The consumer's topics among all. */
static hps_status topics_pick(struct hps_kafka_consumer *c, const struct rd_kafka_metadata *all,
                              struct hps_consumer_topic **out_topics, uint32_t *out_n)
{
    struct hps_consumer_topic *topics = hps_calloc((size_t)all->topic_cnt + 1, sizeof(*topics));
    uint32_t n = 0;
    if (topics == NULL) {
        return HPS_NO_MEMORY;
    }
    for (int i = 0; i < all->topic_cnt; i++) {
        const struct rd_kafka_metadata_topic *topic = &all->topics[i];
        if (topic->err == RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART || topic->partition_cnt == 0 ||
            !hps_topic_filters_match(c->filters, topic->topic, c->model)) {
            continue;
        }
        if (topic_make(c, topic, &topics[n++]) != HPS_OK) {
            hps_kafka_topics_free(topics, n);
            return HPS_NO_MEMORY;
        }
    }
    qsort(topics, n, sizeof(*topics), by_name);
    *out_topics = topics;
    *out_n = n;
    return HPS_OK;
}

/* ---- how they are set ------------------------------------------------------------------------ */

static void topic_configure(struct hps_consumer_topic *topic,
                            const rd_kafka_ConfigResource_t *resource)
{
    size_t n = 0;
    long long kept_ms = 0;
    bool by_size = true;
    if (rd_kafka_ConfigResource_error(resource) != RD_KAFKA_RESP_ERR_NO_ERROR) {
        return; /* not ours to see */
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

static void take_configs(rd_kafka_event_t *event, struct hps_consumer_topic *topics, uint32_t n)
{
    size_t n_resources = 0;
    const rd_kafka_DescribeConfigs_result_t *result = rd_kafka_event_DescribeConfigs_result(event);
    const rd_kafka_ConfigResource_t **resources =
        rd_kafka_DescribeConfigs_result_resources(result, &n_resources);
    for (size_t i = 0; i < n_resources; i++) {
        struct hps_consumer_topic *topic =
            topic_named(topics, n, rd_kafka_ConfigResource_name(resources[i]));
        if (topic != NULL) {
            topic_configure(topic, resources[i]);
        }
    }
}

/* It is the controller that is asked for settings: one that is no broker would be waited for. */
static bool has_controller(rd_kafka_t *rk, const struct rd_kafka_metadata *all)
{
    int32_t controller = rd_kafka_controllerid(rk, 0);
    for (int i = 0; i < all->broker_cnt; i++) {
        if (all->brokers[i].id == controller) {
            return true;
        }
    }
    return false;
}

static rd_kafka_AdminOptions_t *ask_options(struct hps_kafka_consumer *c, rd_kafka_admin_op_t op,
                                            struct hps_kafka_ask *ask)
{
    HPS_ASSERT(!ask->asked); /* one question of a kind at a time */
    rd_kafka_AdminOptions_t *options = rd_kafka_AdminOptions_new(c->rk, op);
    rd_kafka_AdminOptions_set_request_timeout(options, SETTINGS_MS, NULL, 0);
    ask->asked = true;
    return options;
}

static void ask_configs(struct hps_kafka_consumer *c, const struct hps_consumer_topic *topics,
                        uint32_t n)
{
    rd_kafka_ConfigResource_t **asked = hps_calloc((size_t)n + 1, sizeof(asked[0]));
    if (asked == NULL) {
        return; /* the next time */
    }
    for (uint32_t i = 0; i < n; i++) {
        asked[i] = rd_kafka_ConfigResource_new(RD_KAFKA_RESOURCE_TOPIC, topics[i].name);
    }
    rd_kafka_AdminOptions_t *options =
        ask_options(c, RD_KAFKA_ADMIN_OP_DESCRIBECONFIGS, &c->list.configs);
    rd_kafka_DescribeConfigs(c->rk, asked, n, options, c->answers);
    rd_kafka_AdminOptions_destroy(options);
    rd_kafka_ConfigResource_destroy_array(asked, n);
    hps_free(asked);
}

/* ---- their ids ------------------------------------------------------------------------------- */

#if RD_KAFKA_VERSION >= 0x020300ff

static void take_ids(rd_kafka_event_t *event, struct hps_consumer_topic *topics, uint32_t n)
{
    size_t n_described = 0;
    const rd_kafka_DescribeTopics_result_t *result = rd_kafka_event_DescribeTopics_result(event);
    const rd_kafka_TopicDescription_t **described =
        rd_kafka_DescribeTopics_result_topics(result, &n_described);
    for (size_t i = 0; i < n_described; i++) {
        struct hps_consumer_topic *topic =
            topic_named(topics, n, rd_kafka_TopicDescription_name(described[i]));
        const rd_kafka_Uuid_t *id = rd_kafka_TopicDescription_topic_id(described[i]);
        const rd_kafka_error_t *error = rd_kafka_TopicDescription_error(described[i]);
        bool known = error == NULL || rd_kafka_error_code(error) == RD_KAFKA_RESP_ERR_NO_ERROR;
        if (topic == NULL || !known || id == NULL ||
            (rd_kafka_Uuid_most_significant_bits(id) == 0 &&
             rd_kafka_Uuid_least_significant_bits(id) == 0)) {
            continue; /* brokers before 2.8 have none */
        }
        char *text = hps_strdup(rd_kafka_Uuid_base64str(id));
        if (text != NULL) {
            hps_free((char *)topic->id);
            topic->id = text;
        }
    }
}

static void ask_ids(struct hps_kafka_consumer *c, const struct hps_consumer_topic *topics,
                    uint32_t n)
{
    const char **names = hps_calloc((size_t)n + 1, sizeof(names[0]));
    if (names == NULL) {
        return; /* the next time */
    }
    for (uint32_t i = 0; i < n; i++) {
        names[i] = topics[i].name;
    }
    rd_kafka_AdminOptions_t *options =
        ask_options(c, RD_KAFKA_ADMIN_OP_DESCRIBETOPICS, &c->list.ids);
    rd_kafka_TopicCollection_t *all = rd_kafka_TopicCollection_of_topic_names(names, n);
    rd_kafka_DescribeTopics(c->rk, all, options, c->answers);
    rd_kafka_TopicCollection_destroy(all);
    rd_kafka_AdminOptions_destroy(options);
    hps_free(names);
}

#else

/* This librdkafka cannot ask for them. */
static void ask_ids(struct hps_kafka_consumer *c, const struct hps_consumer_topic *topics,
                    uint32_t n)
{
    (void)c, (void)topics, (void)n;
}

#endif

/* ---- asking ---------------------------------------------------------------------------------- */

/* takes the event. fresh: ids are of a question that was asked with this list. */
static void take_answer(struct hps_kafka_consumer *c, rd_kafka_event_t *event, bool fresh,
                        struct hps_consumer_topic *topics, uint32_t n)
{
    (void)fresh;
    bool answered = rd_kafka_event_error(event) == RD_KAFKA_RESP_ERR_NO_ERROR;
    struct hps_kafka_ask *ask = NULL;
    if (rd_kafka_event_type(event) == RD_KAFKA_EVENT_DESCRIBECONFIGS_RESULT) {
        ask = &c->list.configs;
        if (answered) {
            take_configs(event, topics, n);
        }
    }
#if RD_KAFKA_VERSION >= 0x020300ff
    if (rd_kafka_event_type(event) == RD_KAFKA_EVENT_DESCRIBETOPICS_RESULT) {
        ask = &c->list.ids;
        if (answered && fresh) {
            take_ids(event, topics, n);
        }
    }
#endif
    if (ask != NULL) {
        *ask = (struct hps_kafka_ask){.late = ask->late && !answered};
    }
    rd_kafka_event_destroy(event);
}

static bool waited_for(const struct hps_kafka_ask *ask)
{
    return ask->asked && !ask->late;
}

/* Answers that are there, or come in time. */
static void take_answers(struct hps_kafka_consumer *c, bool fresh,
                         struct hps_consumer_topic *topics, uint32_t n, uint64_t end_us)
{
    rd_kafka_event_t *event = NULL;
    do {
        bool wait = waited_for(&c->list.configs) || waited_for(&c->list.ids);
        event = rd_kafka_queue_poll(c->answers, wait ? hps_kafka_remaining_ms(end_us) : 0);
        if (event != NULL) {
            take_answer(c, event, fresh, topics, n);
        }
    } while (event != NULL);
    c->list.configs.late = c->list.configs.asked || c->list.configs.late;
    c->list.ids.late = c->list.ids.asked || c->list.ids.late;
}

static bool any_unknown(const struct hps_consumer_topic *topics, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (topics[i].compaction == HPS_COMPACTION_UNKNOWN) {
            return true;
        }
    }
    return false;
}

/* What is known of the topics, and what can be found out at once. */
static void topics_ask(struct hps_kafka_consumer *c, bool controlled,
                       struct hps_consumer_topic *topics, uint32_t n, uint64_t end_us)
{
    HPS_ASSERT(topics != c->list.topics);
    take_answers(c, false, topics, n, 0);
    if (n == 0) {
        return;
    }
    if (!c->list.configs.asked && controlled) {
        ask_configs(c, topics, n);
    }
    bool fresh = !c->list.ids.asked;
    if (fresh) {
        ask_ids(c, topics, n);
    }
    uint64_t wait_ms = any_unknown(topics, n) ? NEW_MS : KNOWN_MS;
    uint64_t until_us = hps_clock_us() + 1000 * wait_ms;
    take_answers(c, fresh, topics, n, until_us < end_us ? until_us : end_us);
}

/* ---- all of it ------------------------------------------------------------------------------- */

static hps_status cluster_id_get(rd_kafka_t *rk, int timeout_ms, char **out_id)
{
    char *id = rd_kafka_clusterid(rk, timeout_ms);
    *out_id = hps_strdup(id == NULL ? "" : id);
    if (id != NULL) {
        rd_kafka_mem_free(rk, id);
    }
    return *out_id == NULL ? HPS_NO_MEMORY : HPS_OK;
}

hps_status hps_kafka_topics(struct hps_consumer *base, uint32_t timeout_ms,
                            struct hps_consumer_topics *out_topics, struct hps_error *err)
{
    struct hps_kafka_consumer *c = (struct hps_kafka_consumer *)base;
    uint64_t end_us = hps_clock_us() + UINT64_C(1000) * timeout_ms;
    const struct rd_kafka_metadata *all = NULL;
    struct hps_consumer_topic *topics = NULL;
    rd_kafka_t *rk = NULL;
    char *cluster_id = NULL;
    uint32_t n = 0;
    hps_status status = hps_kafka_list(c, end_us, &rk, &all, err);
    if (status != HPS_OK) {
        return status;
    }
    hps_kafka_partitions_check(c, all);
    status = topics_pick(c, all, &topics, &n);
    bool controlled = has_controller(rk, all);
    rd_kafka_metadata_destroy(all);
    if (status == HPS_OK) {
        status = cluster_id_get(rk, hps_kafka_remaining_ms(end_us), &cluster_id);
    }
    if (status != HPS_OK) {
        hps_kafka_topics_free(topics, n);
        return hps_error_set(err, status, "no memory for topics");
    }
    topics_ask(c, controlled, topics, n, end_us);
    hps_kafka_topics_free(c->list.topics, c->list.n);
    hps_free(c->list.cluster_id);
    c->list.topics = topics;
    c->list.n = n;
    c->list.cluster_id = cluster_id;
    *out_topics = (struct hps_consumer_topics){cluster_id, topics, n};
    return HPS_OK;
}

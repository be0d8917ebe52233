/* SPDX-License-Identifier: Apache-2.0
 *
 * The topics of a stream's model, as the log lists them, and what that says of the log itself:
 * whether it answers, and whether it is the same cluster. On the stream's thread `update`.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "server/update/internal.h"

#define GONE_US UINT64_C(3000000) /* a topic that is missing for so long was deleted */

static bool list_partition(struct hps_update_stream *stream, const struct hps_consumer_topic *topic,
                           int32_t number, const struct hps_update_route *route, int64_t asked_ms)
{
    struct update_partition *partition = update_find_partition(stream, topic->name, number);
    const struct update_partition *first = update_find_partition(stream, topic->name, 0);
    bool is_new = partition == NULL;
    bool grown = is_new && first != NULL && first->listed.was_there;
    if (is_new) {
        partition = update_add_partition(stream, topic->name, number, route);
    }
    if (partition == NULL) {
        return false;
    }
    if (grown) { /* the list before had the topic without it: nothing older is missing */
        partition->proof.as_of_ms = stream->topics.listed_ms;
    }
    partition->listed.initial =
        update_is_listed(stream) ? partition->listed.initial : stream->topics.fresh;
    /* An id that was queried before this list may be that of an earlier topic. */
    snprintf(partition->listed.topic_id, sizeof(partition->listed.topic_id), "%s",
             topic->id_asked_unix_ms >= asked_ms ? topic->id : "");
    partition->listed.compaction = topic->compaction;
    partition->listed.delete_retention_ms = topic->delete_retention_ms;
    partition->listed.kept_ms = topic->kept_ms;
    partition->listed.time_of = topic->time_of;
    if (partition->phase == UPDATE_GONE || partition->phase == UPDATE_STARTS) {
        bool stays = update_is_published(partition) && partition->paused;
        update_phase_set(partition, stays ? UPDATE_PAUSED : UPDATE_STARTS);
        partition->reason[0] = '\0';
        stream->topics.begin_due_us = 0;
    }
    partition->listed.there = true;
    partition->other = false;
    return true;
}

static void note_topics(struct hps_update_stream *stream, int64_t asked_ms)
{
    enum update_topics_phase before = stream->topics.phase;
    bool any = stream->n_partitions > 0;
    if (!any && before == UPDATE_TOPICS_UNKNOWN) {
        HPS_LOG(WARN, "updates",
                "topic missing: no topic hps_et.<model> or hps_et.<model>.<table> exists, or "
                "hpsd's Kafka user may not see it; create it, or grant Describe and Read",
                HPS_STR("model", stream->model), HPS_I64("version", stream->number));
    }
    if (any && before != UPDATE_TOPICS_LISTED) {
        HPS_LOG(INFO, "updates", "updates started: the topics of the model are listed",
                HPS_STR("model", stream->model), HPS_I64("version", stream->number),
                HPS_U64("partitions", stream->n_partitions),
                HPS_STR("cluster", stream->topics.cluster));
    }
    update_topics_set(stream, any ? UPDATE_TOPICS_LISTED : UPDATE_TOPICS_NONE);
    stream->topics.listed_ms = asked_ms;
    stream->topics.failed = false;
}

hps_status update_unreachable(const struct hps_update_stream *stream, struct hps_error *err)
{
    return hps_error_set(err, HPS_UNAVAILABLE, "the update source does not answer%s%s",
                         stream->link.text[0] != '\0' ? ": " : "", stream->link.text);
}

/* Another cluster than before: every position is to be compared anew. */
static void note_cluster(struct hps_update_stream *stream, const char *cluster)
{
    if (cluster[0] == '\0') {
        return; /* not told this time */
    }
    bool other = stream->topics.cluster[0] != '\0' && strcmp(stream->topics.cluster, cluster) != 0;
    snprintf(stream->topics.cluster, sizeof(stream->topics.cluster), "%s", cluster);
    for (uint32_t i = 0; i < stream->n_partitions && other; i++) {
        if (update_reads(&stream->partitions[i])) {
            update_stop_partition(stream, &stream->partitions[i], UPDATE_STARTS, "");
        }
    }
}

void update_forget_missing(struct hps_update_stream *stream)
{
    for (uint32_t i = 0; i < stream->n_partitions; i++) {
        stream->partitions[i].listed.gone = false;
        stream->partitions[i].listed.missing_us = 0;
    }
}

void update_tell_reachable(struct hps_update_stream *stream)
{
    if (stream->link.outage_logged) {
        HPS_LOG(INFO, "updates", "update source reachable again", HPS_STR("model", stream->model),
                HPS_I64("version", stream->number));
    }
    stream->link.outage_logged = false;
}

static void list_failed(struct hps_update_stream *stream, hps_status status,
                        const struct hps_error *err)
{
    HPS_LOG(WARN, "updates",
            "update source unreachable: the list of topics was not answered; retried",
            HPS_STR("model", stream->model), HPS_I64("version", stream->number),
            HPS_STR("error", err->text));
    stream->link.outage_logged = true;
    update_forget_missing(stream);
    stream->topics.failed = true;
    stream->topics.due_us = update_backoff_until(stream);
    if (status == HPS_UNAVAILABLE || status == HPS_UNAUTHENTICATED) {
        update_link_set(stream, update_is_down(stream) ? UPDATE_LINK_DOWN : UPDATE_LINK_SILENT);
    }
    snprintf(stream->link.text, sizeof(stream->link.text), "%.199s", err->text);
}

/* A broker that has just started may list its topics late. */
static void note_missing(struct update_listed *listed)
{
    uint64_t now_us = hps_clock_us();
    listed->missing_us = listed->there ? 0 : listed->missing_us == 0 ? now_us : listed->missing_us;
    listed->gone = !listed->there && now_us - listed->missing_us >= GONE_US;
}

/* False: no memory for all of them. */
static bool take_topics(struct hps_update_stream *stream, const struct hps_consumer_topics *topics,
                        int64_t asked_ms)
{
    bool added = true;
    for (uint32_t i = 0; i < stream->n_partitions; i++) {
        struct update_listed *listed = &stream->partitions[i].listed;
        listed->was_there = listed->there;
        listed->there = false;
    }
    for (uint32_t i = 0; i < topics->n_topics && added; i++) {
        const struct hps_consumer_topic *topic = &topics->topics[i];
        struct hps_update_route route;
        bool ours = strlen(topic->name) < HPS_UPDATE_TOPIC_BYTES_MAX &&
                    hps_update_route(stream->version, topic->name, &route);
        for (int32_t p = 0; ours && p < topic->n_partitions && added; p++) {
            added = list_partition(stream, topic, p, &route, asked_ms);
        }
    }
    for (uint32_t i = 0; i < stream->n_partitions; i++) {
        note_missing(&stream->partitions[i].listed);
    }
    return added;
}

void update_list_topics(struct hps_update_stream *stream)
{
    struct hps_consumer_topics topics = {0};
    struct hps_error err = {0};
    int64_t asked_ms = hps_clock_forward_ms();
    HPS_ASSERT(stream->consumer != NULL);
    hps_status status =
        update_ops(stream)->topics(stream->consumer, UPDATE_LOG_TIMEOUT_MS, &topics, &err);
    if (status != HPS_OK) {
        list_failed(stream, status, &err);
        return;
    }
    note_cluster(stream, topics.cluster_id);
    if (!take_topics(stream, &topics, asked_ms)) {
        HPS_LOG(ERROR, "updates", "partitions missing: no memory for all of them; retried",
                HPS_STR("model", stream->model), HPS_I64("version", stream->number));
        stream->topics.due_us = update_backoff_until(stream);
        return;
    }
    note_topics(stream, asked_ms);
    if (!update_is_down(stream)) {
        update_tell_reachable(stream);
    }
    update_link_set(stream, update_is_down(stream) ? UPDATE_LINK_PARTIAL : UPDATE_LINK_UP);
    update_hear(stream);
    update_ask_identity(stream);
    stream->topics.due_us = hps_clock_us() + (uint64_t)stream->updater->options.topics_ms * 1000;
}

void update_list_soon(struct hps_update_stream *stream)
{
    if (!stream->topics.failed) {
        stream->topics.due_us = 0;
    }
}

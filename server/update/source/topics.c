/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists of the topics of a stream's model. A list also shows whether the log answers, and whether
 * it is the same cluster. On the stream's thread `update`.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "server/update/source/source.h"

#define IDENTIFY_US UINT64_C(500000)  /* topics are identified so often, even without new lists */
#define GONE_US     UINT64_C(3000000) /* a topic that is missing for so long was deleted */

static void note_id(struct update_listed *listed, const struct hps_consumer_topic *topic)
{
    if (topic->id_asked_unix_ms > listed->id_asked_ms) {
        snprintf(listed->topic_id, sizeof(listed->topic_id), "%s", topic->id);
        listed->id_asked_ms = topic->id_asked_unix_ms;
    }
}

static bool list_partition(struct hps_update_stream *stream, const struct hps_consumer_topic *topic,
                           int32_t number, const struct hps_update_route *route)
{
    struct update_partition *partition = update_find_partition(stream, topic->name, number);
    const struct update_partition *first = update_find_partition(stream, topic->name, 0);
    bool is_new = partition == NULL;
    bool grown = is_new && first != NULL && first->listed->was_present;
    if (is_new) {
        partition = update_add_partition(stream, topic->name, number, route);
    }
    if (partition == NULL) {
        return false;
    }
    if (grown) { /* the last list had the topic without this partition: it has no older records */
        partition->proof->as_of_ms = stream->topics->listed_ms;
    }
    partition->listed->initial =
        update_is_listed(stream) ? partition->listed->initial : stream->topics->fresh;
    note_id(partition->listed, topic);
    partition->listed->compaction = topic->compaction;
    partition->listed->delete_retention_ms = topic->delete_retention_ms;
    partition->listed->kept_ms = topic->kept_ms;
    partition->listed->time_of = topic->time_of;
    partition->listed->present = true;
    partition->other = false;
    return true;
}

static void note_topics(struct hps_update_stream *stream, int64_t asked_ms)
{
    bool any = stream->n_partitions > 0;
    if (!any && !update_is_listed(stream)) {
        UPDATE_LOG(stream, WARN,
                   "topic missing: no topic hps_et.<model> or hps_et.<model>.<table> exists, or "
                   "hpsd's Kafka user may not see it; create it, or grant Describe and Read");
    }
    if (any && !stream->topics->started) {
        UPDATE_LOG(stream, INFO, "updates started: the topics of the model are listed",
                   HPS_U64("partitions", stream->n_partitions),
                   HPS_STR("cluster", stream->cluster));
    }
    stream->topics->listed = true;
    stream->topics->started = any;
    stream->topics->listed_ms = asked_ms;
    stream->topics->failed = false;
}

void update_forget_missing(struct hps_update_stream *stream)
{
    UPDATE_EACH (stream, partition) {
        partition->listed->gone = false;
        partition->listed->missing_us = 0;
    }
}

static void list_failed(struct hps_update_stream *stream, hps_status status,
                        const struct hps_error *err)
{
    UPDATE_LOG(stream, WARN,
               "update source unreachable: the list of topics was not answered; retried",
               HPS_STR("error", err->text));
    stream->link->outage_logged = true;
    update_forget_missing(stream);
    stream->topics->failed = true;
    stream->topics->due_us = update_backoff_until(stream);
    if (status == HPS_UNAVAILABLE || status == HPS_UNAUTHENTICATED) {
        stream->link->answers = false;
    }
    snprintf(stream->link->text, sizeof(stream->link->text), "%.199s", err->text);
}

/* A broker that has just started may list its topics late. */
static void note_missing(struct update_listed *listed)
{
    uint64_t now_us = hps_clock_us();
    listed->missing_us = listed->present           ? 0
                         : listed->missing_us == 0 ? now_us
                                                   : listed->missing_us;
    listed->gone = !listed->present && now_us - listed->missing_us >= GONE_US;
}

/* False: no memory for all partitions. */
static bool take_topics(struct hps_update_stream *stream, const struct hps_consumer_topics *topics)
{
    bool added = true;
    UPDATE_EACH (stream, partition) {
        partition->listed->was_present = partition->listed->present;
        partition->listed->present = false;
    }
    for (uint32_t i = 0; i < topics->n_topics && added; i++) {
        const struct hps_consumer_topic *topic = &topics->topics[i];
        struct hps_update_route route;
        bool ours = strlen(topic->name) < HPS_UPDATE_TOPIC_BYTES_MAX &&
                    hps_update_route(stream->version, topic->name, &route);
        for (int32_t p = 0; ours && p < topic->n_partitions && added; p++) {
            added = list_partition(stream, topic, p, &route);
        }
    }
    UPDATE_EACH (stream, partition) {
        note_missing(partition->listed);
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
    if (topics.cluster_id[0] != '\0') { /* otherwise this list does not name its cluster */
        snprintf(stream->cluster, sizeof(stream->cluster), "%s", topics.cluster_id);
    }
    stream->topics->partial = !take_topics(stream, &topics);
    if (stream->topics->partial) {
        UPDATE_LOG(stream, ERROR, "partitions missing: no memory for all partitions; retried");
        stream->topics->due_us = update_backoff_until(stream);
        return;
    }
    note_topics(stream, asked_ms);
    if (!stream->link->down) {
        update_log_reachable(stream);
    }
    stream->link->answers = true;
    update_identify(stream, true);
    update_take_responses(stream);
    stream->topics->due_us = hps_clock_us() + (uint64_t)stream->options->topics_ms * 1000;
}

/* Returns whether a new list was taken. */
static bool take_listing(struct hps_update_stream *stream)
{
    struct update_topics *topics = stream->topics;
    struct hps_consumer_listing listing = {0};
    update_ops(stream)->listing(stream->consumer, &listing);
    if (listing.asked_us <= topics->listing_us || topics->partial) {
        return false;
    }
    topics->listing_us = listing.asked_us;
    if (listing.changed) {
        topics->due_us = topics->failed ? topics->due_us : 0;
        return false;
    }
    topics->listed_ms =
        listing.asked_unix_ms > topics->listed_ms ? listing.asked_unix_ms : topics->listed_ms;
    UPDATE_EACH (stream, partition) {
        uint32_t t = 0;
        while (t < listing.n_topics && strcmp(listing.topics[t].name, partition->topic) != 0) {
            t++;
        }
        if (t < listing.n_topics) {
            note_id(partition->listed, &listing.topics[t]);
        }
    }
    return true;
}

void update_take_listing(struct hps_update_stream *stream)
{
    struct update_topics *topics = stream->topics;
    uint64_t now_us = hps_clock_us();
    if (update_is_listed(stream) && (take_listing(stream) || now_us >= topics->identify_due_us)) {
        topics->identify_due_us = now_us + IDENTIFY_US;
        update_identify(stream, false);
    }
}

bool update_list_due(const struct hps_update_stream *stream, uint64_t now_us)
{
    return now_us >= stream->topics->due_us && !stream->link->down;
}

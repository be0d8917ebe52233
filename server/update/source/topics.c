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
#define SILENT_US   (UINT64_C(1000) * UPDATE_LOG_TIMEOUT_MS) /* without a list for so long */

/* The list has the partition. */
static void take_partition(struct hps_update_stream *stream, struct update_partition *partition,
                           const struct hps_consumer_topic *topic)
{
    struct update_listed *listed = partition->listed;
    listed->initial = stream->topics->listed ? listed->initial : stream->topics->fresh;
    if (topic->id_asked_unix_ms > listed->id_asked_ms) {
        snprintf(listed->topic_id, sizeof(listed->topic_id), "%s", topic->id);
        listed->id_asked_ms = topic->id_asked_unix_ms;
    }
    listed->compaction = topic->compaction;
    listed->delete_retention_ms = topic->delete_retention_ms;
    listed->kept_ms = topic->kept_ms;
    listed->time_of = topic->time_of;
    listed->present = true;
    partition->other = false;
}

/* False: no memory for all its partitions. */
static bool take_topic(struct hps_update_stream *stream, const struct hps_consumer_topic *topic)
{
    struct hps_update_route route;
    int32_t n = 0;
    bool grows = false;
    if (strlen(topic->name) >= HPS_UPDATE_TOPIC_BYTES_MAX ||
        !hps_update_route(stream->version, topic->name, &route)) {
        return true;
    }
    UPDATE_EACH (stream, partition) {
        if (partition->number < topic->n_partitions && strcmp(partition->topic, topic->name) == 0) {
            take_partition(stream, partition, topic);
            grows = grows || (partition->number == 0 && partition->listed->was_present);
            n++;
        }
    }
    for (int32_t number = 0; n < topic->n_partitions; number++) {
        if (update_find_partition(stream, topic->name, number) != NULL) {
            continue;
        }
        struct update_partition *partition =
            update_add_partition(stream, topic->name, number, &route);
        if (partition == NULL) {
            return false;
        }
        if (grows) { /* the last list had the topic without it: it has no older records */
            partition->proof->as_of_ms = stream->topics->listed_ms;
        }
        take_partition(stream, partition, topic);
        n++;
    }
    return true;
}

/* Stop reading partitions that the list lacks. They are gone if lists lack them for longer: a
 * broker that has just started may list its topics late. */
static void note_missing(struct hps_update_stream *stream, uint64_t asked_us)
{
    const struct update_event lost = {.kind = UPDATE_ON_LOST};
    UPDATE_EACH (stream, partition) {
        struct update_listed *listed = partition->listed;
        bool begins = listed->missing_us == 0 || !update_is_connected(stream);
        listed->missing_us = listed->present ? 0 : begins ? asked_us : listed->missing_us;
        listed->gone = !listed->present && asked_us - listed->missing_us >= GONE_US;
        if (!listed->present && update_phase_reads(partition->phase)) {
            (void)update_step(stream, partition, &lost, NULL);
        }
    }
}

static void note_topics(struct hps_update_stream *stream)
{
    bool any = stream->n_partitions > 0;
    if (!any && !stream->topics->listed) {
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
    if (stream->link->outage_logged) {
        UPDATE_LOG(stream, INFO, "update source reachable again");
    }
    stream->link->outage_logged = false;
    stream->link->answers = true;
    stream->link->text[0] = '\0';
}

static void take_list(struct hps_update_stream *stream, const struct hps_consumer_topics *list)
{
    bool taken = true;
    if (list->cluster_id[0] != '\0') { /* otherwise this list does not name its cluster */
        snprintf(stream->cluster, sizeof(stream->cluster), "%s", list->cluster_id);
    }
    UPDATE_EACH (stream, partition) {
        partition->listed->was_present = partition->listed->present;
        partition->listed->present = false;
    }
    for (uint32_t i = 0; i < list->n_topics && taken; i++) {
        taken = take_topic(stream, &list->topics[i]);
    }
    if (!taken) {
        UPDATE_LOG(stream, ERROR, "partitions missing: no memory for all partitions; retried");
        stream->topics->retry_due_us = update_backoff_until(stream);
        return;
    }
    note_missing(stream, list->asked_us);
    note_topics(stream);
    stream->topics->listed_us = list->asked_us;
    if (list->asked_unix_ms > stream->topics->listed_ms) {
        stream->topics->listed_ms = list->asked_unix_ms;
    }
}

/* Leaders may still respond: partitions that run continue, and others may start. */
static void note_silence(struct hps_update_stream *stream, const char *error)
{
    struct update_link *link = stream->link;
    if (!link->outage_logged) {
        snprintf(link->text, sizeof(link->text), "no list of topics was answered for 3 s%s%.150s",
                 error[0] != '\0' ? ": " : "", error);
        UPDATE_LOG(stream, WARN,
                   "update source unreachable: the list of topics was not answered; retried",
                   HPS_STR("error", link->text));
    }
    link->outage_logged = true;
}

void update_take_topics(struct hps_update_stream *stream, uint64_t since_us)
{
    struct update_topics *topics = stream->topics;
    struct hps_consumer_topics list = {0};
    uint64_t now_us = hps_clock_us();
    HPS_ASSERT(stream->consumer != NULL);
    update_ops(stream)->topics(stream->consumer, since_us, &list);
    bool newer = list.asked_us > topics->listed_us && now_us >= topics->retry_due_us;
    if (newer) {
        stream->link->heard_us = now_us;
    } else if (now_us >= stream->link->heard_us + SILENT_US) {
        note_silence(stream, list.error);
    }
    /* The same list may have newer ids. */
    bool again = since_us > 0 && stream->link->answers && list.asked_us == topics->listed_us;
    if (newer || again) {
        take_list(stream, &list);
    }
    bool due = newer || now_us >= topics->identify_due_us;
    if (due || again) {
        topics->identify_due_us = due ? now_us + IDENTIFY_US : topics->identify_due_us;
        update_identify(stream, due);
    }
}

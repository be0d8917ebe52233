/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the partitions of a stream begin: topics as the log lists them, start positions, and the
 * comparison of a stored position with what the log has now. On the stream's thread `update`.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/heap.h"
#include "base/log.h"
#include "server/update/internal.h"

static const struct hps_consumer_ops *ops(const struct hps_update_stream *stream)
{
    return stream->consumer->ops;
}

static uint64_t backoff_us(const struct hps_update_stream *stream)
{
    return (uint64_t)stream->updater->options.backoff_ms * 1000;
}

/* ---- what is stored -------------------------------------------------------------------------- */

struct update_partition *update_find_partition(struct hps_update_stream *stream, const char *topic,
                                               int32_t number)
{
    for (uint32_t i = 0; i < stream->n_partitions; i++) {
        struct update_partition *partition = &stream->partitions[i];
        if (partition->number == number && strcmp(partition->topic, topic) == 0) {
            return partition;
        }
    }
    return NULL;
}

/* NULL: no memory. */
static struct update_partition *add_partition(struct hps_update_stream *stream, const char *topic,
                                              int32_t number, const struct hps_update_route *route)
{
    if (stream->n_partitions == stream->capacity) {
        uint32_t capacity = stream->capacity == 0 ? 16 : stream->capacity * 2;
        struct update_partition *grown = hps_realloc(stream->partitions, capacity * sizeof(*grown));
        if (grown == NULL) {
            return NULL;
        }
        stream->partitions = grown;
        stream->capacity = capacity;
    }
    struct update_partition *partition = &stream->partitions[stream->n_partitions++];
    *partition = (struct update_partition){.number = number,
                                           .route = *route,
                                           .delete_retention_ms = -1,
                                           .state = HPS_PARTITION_STARTING,
                                           .high = -1,
                                           .to_commit = -1,
                                           .committed = -1,
                                           .replay = -1};
    partition->route.source = stream->shared != NULL ? stream->n_partitions - 1 : 0;
    snprintf(partition->topic, sizeof(partition->topic), "%s", topic);
    return partition;
}

struct reading {
    struct hps_update_stream *stream;
    struct hps_error *err;
};

static hps_status read_partition(const struct reading *reading, const char *topic, int32_t number,
                                 const void *value, size_t value_size)
{
    struct hps_update_stream *stream = reading->stream;
    struct hps_update_route route;
    struct hps_position position;
    hps_status status = hps_position_decode(value, value_size, &position);
    if (status != HPS_OK) {
        return hps_error_set(reading->err, status,
                             "the stored position of partition %" PRId32 " of topic '%s': %s",
                             number, topic, hps_status_text(status));
    }
    if (!hps_update_route(stream->version, topic, &route)) {
        return HPS_OK; /* of a model that had another name */
    }
    struct update_partition *partition = add_partition(stream, topic, number, &route);
    if (partition == NULL) {
        return hps_error_set(reading->err, HPS_NO_MEMORY, "no memory for a position");
    }
    partition->known = true;
    partition->applied = position;
    partition->read = position;
    partition->paused = position.paused;
    partition->as_of_ms = position.as_of_ms;
    partition->seen_ms = position.as_of_ms;
    partition->seen_next = position.next;
    partition->skipped_end = position.skipped != HPS_POSITION_WHOLE ? position.next : 0;
    snprintf(partition->reason, sizeof(partition->reason), "the log has not listed it yet");
    stream->fresh = false;
    update_note_event_time(stream, position.event_time_ms);
    return HPS_OK;
}

static hps_status read_record(void *ctx, const void *key, size_t key_size, const void *value,
                              size_t value_size)
{
    const struct reading *reading = ctx;
    char topic[HPS_UPDATE_TOPIC_BYTES_MAX];
    int32_t number;
    if (hps_position_key_parse(key, key_size, topic, &number)) {
        return read_partition(reading, topic, number, value, value_size);
    }
    if (key_size == strlen(HPS_POSITION_FROZEN) &&
        memcmp(key, HPS_POSITION_FROZEN, key_size) == 0 &&
        hps_position_frozen_decode(value, value_size, &reading->stream->frozen,
                                   &reading->stream->frozen_by)) {
        reading->stream->frozen_dirty = false;
    }
    if (key_size == strlen(HPS_POSITION_START) && value_size == sizeof(int64_t) &&
        memcmp(key, HPS_POSITION_START, key_size) == 0) {
        memcpy(&reading->stream->start_ms, value, sizeof(int64_t));
    }
    return HPS_OK;
}

hps_status update_read_positions(struct hps_update_stream *stream, struct hps_error *err)
{
    struct reading reading = {stream, err};
    stream->fresh = true;
    stream->frozen_dirty = true; /* a version that was loaded before there were updates */
    stream->start_ms = (int64_t)stream->version->loaded_unix_ms;
    return hps_update_positions(stream->version, read_record, &reading);
}

/* ---- states ---------------------------------------------------------------------------------- */

void update_stop_partition(struct hps_update_stream *stream, struct update_partition *partition,
                           enum hps_partition_state state, const char *reason)
{
    partition->state = state;
    partition->leave = true;
    partition->checking = false;
    partition->recalling = false;
    partition->none_us = 0;
    snprintf(partition->reason, sizeof(partition->reason), "%s", reason);
    if (state == HPS_PARTITION_GAP || state == HPS_PARTITION_GONE ||
        state == HPS_PARTITION_FAILED) {
        HPS_LOG(ERROR, "updates", "a partition stands still", HPS_STR("model", stream->model),
                HPS_I64("version", stream->number), HPS_STR("topic", partition->topic),
                HPS_I64("partition", partition->number), HPS_I64("offset", partition->read.next),
                HPS_STR("state", hps_partition_state_text(state)), HPS_STR("reason", reason));
    }
}

void update_gap(struct hps_update_stream *stream, struct update_partition *partition,
                int64_t accept, const char *fmt, ...)
{
    char reason[sizeof(partition->reason)];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(reason, sizeof(reason), fmt, args);
    va_end(args);
    partition->accept = accept;
    partition->other = false;
    update_stop_partition(stream, partition, HPS_PARTITION_GAP, reason);
}

/* Not where it happens: what the last poll brought is borrowed until then. */
void update_leave_stopped(struct hps_update_stream *stream)
{
    for (uint32_t i = 0; i < stream->n_partitions; i++) {
        struct update_partition *partition = &stream->partitions[i];
        if (partition->leave) {
            ops(stream)->unassign(stream->consumer, partition->topic, partition->number);
            partition->leave = false;
        }
    }
}

void update_run_from(struct hps_update_stream *stream, struct update_partition *partition,
                     int64_t offset, bool checking)
{
    const struct hps_consumer_position at = {partition->topic, partition->number, offset};
    uint32_t tag = (uint32_t)(partition - stream->partitions);
    struct hps_error err = {0};
    if (ops(stream)->assign(stream->consumer, &at, tag, &err) != HPS_OK) {
        update_stop_partition(stream, partition, HPS_PARTITION_FAILED, err.text);
        return;
    }
    partition->state = HPS_PARTITION_RUNNING;
    partition->leave = false;
    partition->checking = checking;
    partition->n_ends = 0;
    partition->reason[0] = '\0';
}

/* ---- topics ---------------------------------------------------------------------------------- */

static bool list_partition(struct hps_update_stream *stream, const struct hps_consumer_topic *topic,
                           int32_t number, const struct hps_update_route *route)
{
    struct update_partition *partition = update_find_partition(stream, topic->name, number);
    const struct update_partition *first = update_find_partition(stream, topic->name, 0);
    bool is_new = partition == NULL;
    bool grown = is_new && first != NULL && first->was_there;
    if (is_new) {
        partition = add_partition(stream, topic->name, number, route);
    }
    if (partition == NULL) {
        return false;
    }
    if (grown) { /* the list before had the topic without it: nothing older is missing */
        partition->as_of_ms = stream->listed_ms;
    }
    partition->initial = is_new ? stream->fresh && !stream->listed : partition->initial;
    snprintf(partition->topic_id, sizeof(partition->topic_id), "%s", topic->id);
    partition->compaction = topic->compaction;
    partition->delete_retention_ms = topic->delete_retention_ms;
    partition->kept_ms = topic->kept_ms;
    if (partition->state == HPS_PARTITION_GONE ||
        (partition->state == HPS_PARTITION_STARTING && !partition->there)) {
        bool stays = partition->known && partition->paused;
        partition->state = stays ? HPS_PARTITION_PAUSED : HPS_PARTITION_STARTING;
        partition->reason[0] = '\0';
        stream->begin_due_us = 0;
    }
    partition->there = true;
    return true;
}

/* Of those that are not listed who read them hears by an event. */
static void miss_partitions(struct hps_update_stream *stream)
{
    for (uint32_t i = 0; i < stream->n_partitions; i++) {
        struct update_partition *partition = &stream->partitions[i];
        if (!partition->there && partition->state == HPS_PARTITION_STARTING) {
            update_stop_partition(stream, partition, HPS_PARTITION_GONE, "the topic is not there");
        }
    }
    if (stream->n_partitions == 0 && !stream->told_empty) {
        stream->told_empty = true;
        HPS_LOG(WARN, "updates",
                "the model has no updates: no topic hps_et.<model> or hps_et.<model>.<table> is "
                "there, or this user may not see it; make the topic, or grant Describe and Read",
                HPS_STR("model", stream->model), HPS_I64("version", stream->number));
    }
}

hps_status update_away(const struct hps_update_stream *stream, struct hps_error *err)
{
    return hps_error_set(err, HPS_UNAVAILABLE, "the update source does not answer%s%s",
                         stream->away_text[0] != '\0' ? ": " : "", stream->away_text);
}

/* Another cluster than before: every position is to be compared anew. */
static void note_cluster(struct hps_update_stream *stream, const char *cluster)
{
    if (cluster[0] == '\0') {
        return; /* not told this time */
    }
    bool other = stream->cluster[0] != '\0' && strcmp(stream->cluster, cluster) != 0;
    snprintf(stream->cluster, sizeof(stream->cluster), "%s", cluster);
    for (uint32_t i = 0; i < stream->n_partitions && other; i++) {
        if (stream->partitions[i].state == HPS_PARTITION_RUNNING) {
            update_stop_partition(stream, &stream->partitions[i], HPS_PARTITION_STARTING, "");
        }
    }
}

void update_list_topics(struct hps_update_stream *stream)
{
    struct hps_consumer_topics topics = {0};
    struct hps_error err = {0};
    bool added = true;
    int64_t asked_ms = (int64_t)hps_clock_wall_ms();
    hps_status status = ops(stream)->topics(stream->consumer, UPDATE_LOG_TIMEOUT_MS, &topics, &err);
    if (status != HPS_OK) {
        HPS_LOG(WARN, "updates", "the update source does not list its topics",
                HPS_STR("model", stream->model), HPS_I64("version", stream->number),
                HPS_STR("error", err.text));
        stream->topics_due_us = hps_clock_us() + backoff_us(stream);
        stream->connected =
            stream->connected && status != HPS_UNAVAILABLE && status != HPS_UNAUTHENTICATED;
        snprintf(stream->away_text, sizeof(stream->away_text), "%.199s", err.text);
        return;
    }
    note_cluster(stream, topics.cluster_id);
    for (uint32_t i = 0; i < stream->n_partitions; i++) {
        stream->partitions[i].was_there = stream->partitions[i].there;
        stream->partitions[i].there = false;
    }
    for (uint32_t i = 0; i < topics.n_topics && added; i++) {
        const struct hps_consumer_topic *topic = &topics.topics[i];
        struct hps_update_route route;
        bool ours = strlen(topic->name) < HPS_UPDATE_TOPIC_BYTES_MAX &&
                    hps_update_route(stream->version, topic->name, &route);
        for (int32_t p = 0; ours && p < topic->n_partitions && added; p++) {
            added = list_partition(stream, topic, p, &route);
        }
    }
    if (!added) {
        HPS_LOG(ERROR, "updates", "no memory for all partitions", HPS_STR("model", stream->model));
        stream->topics_due_us = hps_clock_us() + backoff_us(stream);
        return;
    }
    miss_partitions(stream);
    if (!stream->listed && stream->n_partitions > 0) {
        HPS_LOG(INFO, "updates", "updates are read", HPS_STR("model", stream->model),
                HPS_I64("version", stream->number), HPS_U64("partitions", stream->n_partitions),
                HPS_STR("cluster", stream->cluster));
    }
    stream->connected = true;
    stream->listed = true;
    stream->listed_ms = asked_ms;
    update_hear(stream);
    update_ask_identity(stream);
    stream->topics_due_us = hps_clock_us() + (uint64_t)stream->updater->options.topics_ms * 1000;
}

/* ---- beginnings ------------------------------------------------------------------------------ */

int64_t update_start_time_ms(const struct hps_updater_options *options, int64_t files_ms)
{
    if (options->start == HPS_UPDATE_START_TIME) {
        return options->start_time_ms;
    }
    if (options->start != HPS_UPDATE_START_FILES) {
        return -1;
    }
    int64_t slack_ms = (int64_t)options->start_slack_ms;
    return files_ms > slack_ms ? files_ms - slack_ms : 0;
}

/* Where one without a position begins. */
static int64_t start_of(const struct hps_update_stream *stream,
                        const struct update_partition *partition,
                        const struct hps_consumer_offsets *has)
{
    if (has->time_unix_ms >= 0) {
        return has->at_time;
    }
    bool latest = stream->updater->options.start == HPS_UPDATE_START_LATEST && partition->initial;
    return latest ? has->high : has->low;
}

/* How old what it is to have from the log may be. */
static int64_t start_age_ms(const struct hps_consumer_offsets *has)
{
    return has->time_unix_ms >= 0 ? (int64_t)hps_clock_wall_ms() - has->time_unix_ms : INT64_MAX;
}

static bool begins_buried(const struct update_partition *partition,
                          const struct hps_consumer_offsets *has)
{
    return partition->compaction == HPS_COMPACTION_YES && has->high > has->low &&
           partition->delete_retention_ms >= 0 &&
           start_age_ms(has) > partition->delete_retention_ms;
}

/* Records that the log has no more may be some that the files lack, and that others have applied
 * who began when they were there: by time those that are older than what is kept, and the deletes
 * that compaction has removed. */
static bool begins_cut(const struct update_partition *partition, int64_t next,
                       const struct hps_consumer_offsets *has)
{
    bool by_time = has->time_unix_ms >= 0 && next > has->low;
    return has->low > 0 && !by_time && start_age_ms(has) >= partition->kept_ms;
}

/* The end of the log is another one for each daemon, and what is before it they do not all have. */
static int64_t skipped_at_start(const struct hps_update_stream *stream,
                                const struct update_partition *partition, int64_t next,
                                const struct hps_consumer_offsets *has)
{
    bool latest = stream->updater->options.start == HPS_UPDATE_START_LATEST;
    bool other = partition->shared_at > has->high; /* it is of a log that was here before */
    if (other || begins_cut(partition, next, has) || begins_buried(partition, has)) {
        return HPS_POSITION_LOST;
    }
    return latest && next > has->low ? has->low : HPS_POSITION_WHOLE;
}

static void tell_lost(const struct hps_update_stream *stream,
                      const struct update_partition *partition)
{
    bool other = partition->shared_at > partition->high;
    if (stream->shared != NULL && !stream->shared_alone) {
        HPS_LOG(WARN, "updates",
                other ? "the shared tier is further than the log: it is left alone, as the topic "
                        "was made anew or cut; unload the version everywhere, then load it"
                      : "a version begins behind records that are gone, which others may have "
                        "applied: the shared tier is left alone; a manifest with start_positions "
                        "tells where it begins",
                HPS_STR("model", stream->model), HPS_I64("version", stream->number),
                HPS_STR("topic", partition->topic), HPS_I64("partition", partition->number),
                HPS_I64("offset", partition->read.next));
    }
}

/* The files of the version end before what the log has begins. */
static bool begins_in_a_gap(struct hps_update_stream *stream, struct update_partition *partition,
                            int64_t next, const struct hps_consumer_offsets *has)
{
    const struct hps_updater_options *options = &stream->updater->options;
    bool cut = begins_cut(partition, next, has);
    bool buried = begins_buried(partition, has);
    if (options->start != HPS_UPDATE_START_FILES || stream->shared != NULL || !(cut || buried)) {
        return false;
    }
    if (cut && partition->kept_ms > 0) {
        update_gap(stream, partition, next,
                   "the files are older than what the topic keeps (retention.ms %" PRId64
                   "): updates before offset %" PRId64 " are gone",
                   partition->kept_ms, has->low);
        return true;
    }
    if (buried) {
        snprintf(partition->note, sizeof(partition->note),
                 "the files are older than delete.retention.ms: keys deleted since may still be "
                 "there; load newer files");
    } else {
        snprintf(partition->note, sizeof(partition->note),
                 "the log begins at offset %" PRId64
                 ", behind the time of the files: updates between may be gone; load newer files",
                 has->low);
    }
    HPS_LOG(WARN, "updates", "a version may lack updates from before it began to read",
            HPS_STR("model", stream->model), HPS_I64("version", stream->number),
            HPS_STR("topic", partition->topic), HPS_I64("partition", partition->number),
            HPS_STR("reason", partition->note));
    return false;
}

static void begin_new(struct hps_update_stream *stream, struct update_partition *partition,
                      const struct hps_consumer_offsets *has)
{
    int64_t next = start_of(stream, partition, has);
    partition->seen_ms = 0;
    partition->seen_next = next;
    if (begins_in_a_gap(stream, partition, next, has)) {
        return;
    }
    partition->read =
        (struct hps_position){.next = next,
                              .start = next,
                              .skipped = skipped_at_start(stream, partition, next, has),
                              .frozen = HPS_POSITION_WHOLE};
    memcpy(partition->read.cluster, stream->cluster, sizeof(stream->cluster));
    bool by_time = has->time_unix_ms > 0 && !begins_buried(partition, has);
    partition->read.as_of_ms = partition->as_of_ms;
    partition->read.base_ms = by_time ? has->time_unix_ms : (int64_t)hps_clock_wall_ms();
    if (partition->read.skipped == HPS_POSITION_LOST) {
        tell_lost(stream, partition);
    }
    partition->dirty = true; /* stored at once: another start must not decide differently */
    if (partition->paused) {
        update_stop_partition(stream, partition, HPS_PARTITION_PAUSED, "");
        return;
    }
    (void)update_identify(stream, partition, false);
    update_run_from(stream, partition, next, false);
}

static void begin_known(struct hps_update_stream *stream, struct update_partition *partition,
                        const struct hps_consumer_offsets *has)
{
    const struct hps_position *at = &partition->applied;
    struct hps_witness witness = partition->read.witness;
    partition->read = *at;
    partition->read.as_of_ms = partition->as_of_ms; /* what was proved stays so */
    if (witness.known && witness.offset < at->next) {
        partition->read.witness = witness;
    }
    if (at->cluster[0] != '\0' && stream->cluster[0] != '\0' &&
        strcmp(at->cluster, stream->cluster) != 0) {
        update_gap_other(stream, partition, has->low, "the position is of cluster %s, this is %s",
                         at->cluster, stream->cluster);
        return;
    }
    if (at->next > has->high) {
        update_gap_other(stream, partition, has->low,
                         "offset %" PRId64 " is behind the end %" PRId64
                         ": the topic was made anew or cut",
                         at->next, has->high);
        return;
    }
    if (at->next < has->low) {
        update_gap(stream, partition, has->low,
                   "offsets %" PRId64 " to %" PRId64 " are gone: retention has passed", at->next,
                   has->low - 1);
        return;
    }
    if (update_lost_tombstones(partition, has->high)) {
        update_gap_tombstones(stream, partition);
        return;
    }
    if (!stream->frozen && at->frozen != HPS_POSITION_WHOLE) { /* the version is so no more */
        update_move_to(stream, partition, at->frozen);
        return;
    }
    if (!update_identify(stream, partition, false)) {
        return;
    }
    const struct hps_witness *last = &at->last;
    bool check = last->known && last->offset >= has->low && last->offset < at->next;
    if (stream->cluster[0] != '\0') { /* it has been told */
        memcpy(partition->read.cluster, stream->cluster, sizeof(stream->cluster));
    }
    update_run_from(stream, partition, check ? last->offset : at->next, check);
}

static void begin_one(struct hps_update_stream *stream, struct update_partition *partition,
                      const struct hps_consumer_offsets *has)
{
    if (has->status == HPS_NOT_FOUND) {
        update_stop_partition(stream, partition, HPS_PARTITION_GONE, "the topic is not there");
        return;
    }
    if (has->status == HPS_UNAVAILABLE) {
        stream->begin_due_us = hps_clock_us() + backoff_us(stream);
        snprintf(partition->reason, sizeof(partition->reason), "its leader does not answer%s%.150s",
                 partition->word.text[0] != '\0' ? ": " : "", partition->word.text);
        return; /* later */
    }
    if (has->status != HPS_OK) {
        update_stop_partition(stream, partition, HPS_PARTITION_FAILED,
                              hps_status_text(has->status));
        return;
    }
    partition->low = has->low;
    partition->high = has->high;
    if (partition->known || partition->adopted) {
        begin_known(stream, partition, has);
        if (partition->paused && partition->state == HPS_PARTITION_RUNNING) {
            update_stop_partition(stream, partition, HPS_PARTITION_PAUSED, "");
        }
    } else {
        begin_new(stream, partition, has);
    }
    HPS_LOG(DEBUG, "updates", "a partition begins", HPS_STR("model", stream->model),
            HPS_I64("version", stream->number), HPS_STR("topic", partition->topic),
            HPS_I64("partition", partition->number), HPS_I64("offset", partition->read.next),
            HPS_I64("low", has->low), HPS_I64("high", has->high),
            HPS_STR("known", partition->known ? "yes" : "no"),
            HPS_STR("state", hps_partition_state_text(partition->state)));
}

/* Ask for the offsets of those that are wanted. out_parts: in order of the partitions; hps_free. */
hps_status update_ask_offsets(struct hps_update_stream *stream, update_wants_fn wants,
                              const void *ctx, int64_t time_ms,
                              struct hps_consumer_offsets **out_parts, struct hps_error *err)
{
    struct hps_consumer_offsets *parts = hps_calloc(stream->n_partitions, sizeof(*parts));
    uint32_t n = 0;
    if (parts == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for the offsets of partitions");
    }
    for (uint32_t i = 0; i < stream->n_partitions; i++) {
        const struct update_partition *partition = &stream->partitions[i];
        if (wants(ctx, partition)) {
            parts[n++] = (struct hps_consumer_offsets){
                .topic = partition->topic, .partition = partition->number, .time_unix_ms = time_ms};
        }
    }
    hps_status status =
        n == 0 ? HPS_OK
               : ops(stream)->offsets(stream->consumer, parts, n, UPDATE_LOG_TIMEOUT_MS, err);
    if (status != HPS_OK) {
        hps_free(parts);
        return status;
    }
    *out_parts = parts;
    return HPS_OK;
}

static bool is_starting(const void *ctx, const struct update_partition *partition)
{
    (void)ctx;
    return partition->state == HPS_PARTITION_STARTING && partition->there;
}

/* Positions that a shared tier has, where it is the lowest. False: they cannot be told now. */
static bool adopt(struct hps_update_stream *stream, const struct hps_consumer_offsets *parts)
{
    if (!stream->shared_alone) {
        return true;
    }
    int64_t *starts = hps_calloc(stream->n_partitions, sizeof(*starts));
    uint32_t n = 0;
    for (uint32_t i = 0; i < stream->n_partitions && starts != NULL; i++) {
        const struct update_partition *partition = &stream->partitions[i];
        starts[i] = -1;
        if (is_starting(NULL, partition)) {
            const struct hps_consumer_offsets *has = &parts[n++];
            starts[i] = has->status == HPS_OK ? start_of(stream, partition, has) : -1;
        }
    }
    bool adopted = starts != NULL && update_adopt(stream, starts);
    hps_free(starts);
    return adopted;
}

void update_begin(struct hps_update_stream *stream)
{
    struct hps_consumer_offsets *parts = NULL;
    struct hps_error err = {0};
    bool any = false;
    update_leave_stopped(stream);
    for (uint32_t i = 0; i < stream->n_partitions; i++) {
        any = any || is_starting(NULL, &stream->partitions[i]);
    }
    if (!any || stream->away || hps_clock_us() < stream->begin_due_us) {
        return;
    }
    stream->begin_due_us = 0;
    update_ask_shared(stream);
    int64_t time_ms = update_start_time_ms(&stream->updater->options, stream->start_ms);
    if (update_ask_offsets(stream, is_starting, NULL, time_ms, &parts, &err) != HPS_OK) {
        HPS_LOG(WARN, "updates", "the update source does not tell its offsets",
                HPS_STR("model", stream->model), HPS_I64("version", stream->number),
                HPS_STR("error", err.text));
        stream->begin_due_us = hps_clock_us() + backoff_us(stream);
        return;
    }
    uint32_t n = 0;
    if (!adopt(stream, parts)) {
        stream->begin_due_us = hps_clock_us() + backoff_us(stream);
        hps_free(parts);
        return;
    }
    for (uint32_t i = 0; i < stream->n_partitions; i++) {
        if (is_starting(NULL, &stream->partitions[i])) {
            begin_one(stream, &stream->partitions[i], &parts[n++]);
        }
    }
    hps_free(parts);
    update_leave_stopped(stream);
}

void update_begin_anew(struct hps_update_stream *stream, const char *topic)
{
    for (uint32_t i = 0; i < stream->n_partitions; i++) {
        struct update_partition *partition = &stream->partitions[i];
        if (partition->state == HPS_PARTITION_RUNNING &&
            (topic == NULL || strcmp(topic, partition->topic) == 0)) {
            update_stop_partition(stream, partition, HPS_PARTITION_STARTING, "");
        }
    }
    stream->begin_due_us = 0;
}

/* ---- is it the same log? --------------------------------------------------------------------- */

static void gap_missing(struct hps_update_stream *stream, struct update_partition *partition)
{
    update_gap_other(stream, partition, partition->low,
                     "the last record, at offset %" PRId64
                     ", is not there: the topic was made anew or cut",
                     partition->applied.last.offset);
}

bool update_check_first(struct hps_update_stream *stream, struct update_partition *partition,
                        const struct hps_consumer_record *record)
{
    const struct hps_position *at = &partition->applied;
    partition->checking = false;
    if (record->offset != at->last.offset) {
        if (partition->compaction == HPS_COMPACTION_NO) {
            gap_missing(stream, partition);
            return false;
        }
        return record->offset >= at->next;
    }
    uint64_t hash =
        hps_update_record_hash(record->key, record->key_size, record->value, record->value_size);
    if (hash != at->last.hash || record->time_unix_ms != at->last.time_ms) {
        update_gap_other(stream, partition, partition->low,
                         "another record is at offset %" PRId64 ": the topic was made anew",
                         at->last.offset);
    }
    return false;
}

void update_check_caught_up(struct hps_update_stream *stream, struct update_partition *partition)
{
    if (partition->checking && partition->compaction == HPS_COMPACTION_NO) {
        gap_missing(stream, partition);
    }
    partition->checking = false;
}

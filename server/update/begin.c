/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the partitions of a stream begin: stored and start positions, and the comparison of a
 * position with what the log has now. On the stream's thread `update`.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/log.h"
#include "server/update/internal.h"

#define MISSING_AGAIN_US UINT64_C(500000) /* from one list of topics to the next */

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

struct update_partition *update_add_partition(struct hps_update_stream *stream, const char *topic,
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
                                           .listed = {.delete_retention_ms = -1},
                                           .phase = UPDATE_STARTS,
                                           .high = -1,
                                           .to_commit = -1,
                                           .committed = -1,
                                           .replay = {.from = -1}};
    partition->route.source = stream->share.space != NULL ? stream->n_partitions - 1 : 0;
    snprintf(partition->topic, sizeof(partition->topic), "%s", topic);
    return partition;
}

struct reading {
    struct hps_update_stream *stream;
    struct hps_error *err;
    hps_status status; /* of add_other */
    uint32_t n_new;    /* partitions that only other versions have so far */
};

/* If a stored time is after now, the wall clock was set back since. The age of as-of is unknown, so
 * as-of is unknown. Deletes count as seen until now, so that a correction by seconds is no gap. */
static void distrust_future(struct hps_position *position)
{
    int64_t now_ms = hps_clock_forward_ms();
    bool future = position->as_of_ms > now_ms;
    position->as_of_ms = future ? 0 : position->as_of_ms;
    position->base_ms = future || position->base_ms > now_ms ? now_ms : position->base_ms;
}

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
    struct update_partition *partition = update_find_partition(stream, topic, number);
    if (partition == NULL) {
        partition = update_add_partition(stream, topic, number, &route);
    }
    if (partition == NULL) {
        return hps_error_set(reading->err, HPS_NO_MEMORY, "no memory for a position");
    }
    distrust_future(&position);
    partition->other = false;
    partition->basis = UPDATE_PUBLISHED;
    partition->applied = position;
    partition->read = position;
    partition->paused = position.paused;
    partition->proof.as_of_ms = position.as_of_ms;
    partition->proof.seen_ms = position.as_of_ms;
    partition->proof.seen_next = position.next;
    partition->skipped_end = position.skipped == HPS_POSITION_WHOLE ? 0
                             : position.before_start                ? position.start
                                                                    : position.next;
    snprintf(partition->reason, sizeof(partition->reason), "the log has not listed its topic yet");
    stream->topics.fresh = false;
    update_note_event_time(stream, position.event_time_ms);
    return HPS_OK;
}

/* One that another version read. True: it is new here. */
static bool add_other(struct reading *reading, const char *topic, int32_t number)
{
    struct hps_update_stream *stream = reading->stream;
    struct hps_update_route route;
    if (update_find_partition(stream, topic, number) != NULL ||
        !hps_update_route(stream->version, topic, &route)) {
        return false;
    }
    struct update_partition *partition = update_add_partition(stream, topic, number, &route);
    if (partition == NULL) {
        reading->status = hps_error_set(reading->err, HPS_NO_MEMORY, "no memory for partitions");
        return false;
    }
    partition->other = true;
    return true;
}

static hps_status read_record(void *ctx, const void *key, size_t key_size, const void *value,
                              size_t value_size)
{
    struct reading *reading = ctx;
    char topic[HPS_UPDATE_TOPIC_BYTES_MAX];
    int32_t number;
    if (hps_position_key_parse(key, key_size, topic, &number)) {
        return read_partition(reading, topic, number, value, value_size);
    }
    if (key_size > 0 && ((const char *)key)[key_size - 1] == HPS_POSITION_OTHER &&
        hps_position_key_parse(key, key_size - 1, topic, &number)) {
        (void)add_other(reading, topic, number);
        return reading->status;
    }
    if (key_size == strlen(HPS_POSITION_FROZEN) &&
        memcmp(key, HPS_POSITION_FROZEN, key_size) == 0 &&
        hps_position_frozen_decode(value, value_size, &reading->stream->freeze.frozen,
                                   &reading->stream->freeze.by)) {
        reading->stream->freeze.unstored = false;
    }
    if (key_size == strlen(HPS_POSITION_START) && value_size == sizeof(int64_t) &&
        memcmp(key, HPS_POSITION_START, key_size) == 0) {
        memcpy(&reading->stream->topics.start_ms, value, sizeof(int64_t));
    }
    return HPS_OK;
}

/* The log may hide a topic that another version reads. A version that begins without its partitions
 * would claim to be fresh. */
static void read_theirs(void *ctx, const struct hps_stream_view *view)
{
    struct reading *reading = ctx;
    const struct hps_update_stream *stream = reading->stream;
    bool other = strcmp(view->model, stream->model) == 0 && view->version != stream->number;
    for (uint32_t i = 0; other && i < view->n_partitions; i++) {
        const struct hps_partition_view *theirs = &view->partitions[i];
        if (theirs->state != HPS_PARTITION_GONE &&
            add_other(reading, theirs->topic, theirs->partition)) {
            reading->n_new++;
        }
    }
}

/* Store the newest n_new partitions, so that a restart without the other versions knows of them. */
static hps_status store_others(const struct reading *reading)
{
    const struct hps_update_stream *stream = reading->stream;
    uint32_t n = reading->n_new;
    char(*keys)[HPS_POSITION_KEY_BYTES_MAX] = hps_calloc(n, sizeof(*keys));
    struct hps_record *records = hps_calloc(n, sizeof(*records));
    hps_status status = HPS_NO_MEMORY;
    if (keys != NULL && records != NULL) {
        for (uint32_t i = 0; i < n; i++) {
            const struct update_partition *of = &stream->partitions[stream->n_partitions - n + i];
            size_t size = hps_position_key(of->topic, of->number, keys[i]);
            keys[i][size] = HPS_POSITION_OTHER;
            records[i] = (struct hps_record){keys[i], size + 1, "", 0};
        }
        const struct hps_update_batch batch = {.positions = records, .n_positions = n};
        status = hps_update_apply(stream->version, &batch, reading->err);
    }
    hps_free(keys);
    hps_free(records);
    return status == HPS_PRECONDITION ? HPS_OK : status; /* the version takes no updates */
}

hps_status update_read_positions(struct hps_update_stream *stream, struct hps_error *err)
{
    struct reading reading = {.stream = stream, .err = err, .status = HPS_OK};
    stream->topics.fresh = true;
    stream->freeze.unstored = true; /* a version that was loaded before there were updates */
    stream->topics.start_ms = (int64_t)stream->version->loaded_unix_ms;
    hps_status status = hps_update_positions(stream->version, read_record, &reading);
    if (status == HPS_OK) {
        hps_updater_each(stream->updater, read_theirs, &reading);
        status = reading.status;
    }
    return status == HPS_OK && reading.n_new > 0 ? store_others(&reading) : status;
}

/* ---- states ---------------------------------------------------------------------------------- */

/* What an operator is to do about a partition that has stopped by itself. */
static const char *stopped_message(enum update_phase phase)
{
    switch (phase) {
    case UPDATE_GAP:
    case UPDATE_OTHER:
        return "partition stopped at a gap: see reason; load newer files, or `hpsctl updates` "
               "seek or accept-gap";
    case UPDATE_GONE:
        return "partition gone: see reason; updates resume once the topic is listed again";
    case UPDATE_FAILED:
        return "partition failed: see reason; fix the cause, then `hpsctl updates resume`";
    default:
        return NULL;
    }
}

void update_stop_partition(struct hps_update_stream *stream, struct update_partition *partition,
                           enum update_phase phase, const char *reason)
{
    const char *message = stopped_message(phase);
    HPS_ASSERT(phase != UPDATE_CHECKS && phase != UPDATE_RUNS);
    update_phase_set(partition, phase);
    partition->leave = true;
    partition->same.asked = false;
    partition->same.none_us = 0;
    if (reason != partition->reason) {
        snprintf(partition->reason, sizeof(partition->reason), "%s", reason);
    }
    if (message != NULL) {
        HPS_LOG(ERROR, "updates", message, HPS_STR("model", stream->model),
                HPS_I64("version", stream->number), HPS_STR("topic", partition->topic),
                HPS_I64("partition", partition->number), HPS_I64("offset", partition->read.next),
                HPS_STR("state", hps_partition_state_text(update_partition_state(phase))),
                HPS_STR("reason", reason));
        partition->stop_logged = true;
    }
}

void update_tell_running(const struct hps_update_stream *stream, struct update_partition *partition)
{
    if (partition->stop_logged) {
        HPS_LOG(INFO, "updates", "partition running again", HPS_STR("model", stream->model),
                HPS_I64("version", stream->number), HPS_STR("topic", partition->topic),
                HPS_I64("partition", partition->number), HPS_I64("offset", partition->read.next));
    }
    partition->stop_logged = false;
}

void update_gap(struct hps_update_stream *stream, struct update_partition *partition,
                const char *fmt, ...)
{
    char reason[sizeof(partition->reason)];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(reason, sizeof(reason), fmt, args);
    va_end(args);
    partition->only_deletes = false;
    update_stop_partition(stream, partition, UPDATE_GAP, reason);
}

/* Not where it happens: what the last poll brought is borrowed until then. */
void update_leave_stopped(struct hps_update_stream *stream)
{
    for (uint32_t i = 0; i < stream->n_partitions; i++) {
        struct update_partition *partition = &stream->partitions[i];
        if (partition->leave) {
            update_ops(stream)->unassign(stream->consumer, partition->topic, partition->number);
            partition->leave = false;
        }
    }
}

void update_run_from(struct hps_update_stream *stream, struct update_partition *partition,
                     int64_t offset, enum update_phase phase)
{
    const struct hps_consumer_position at = {partition->topic, partition->number, offset};
    uint32_t tag = (uint32_t)(partition - stream->partitions);
    struct hps_error err = {0};
    HPS_ASSERT(phase == UPDATE_CHECKS || phase == UPDATE_RUNS);
    HPS_ASSERT(tag < stream->n_partitions);
    if (update_ops(stream)->assign(stream->consumer, &at, tag, &err) != HPS_OK) {
        update_stop_partition(stream, partition, UPDATE_FAILED, err.text);
        return;
    }
    update_phase_set(partition, phase);
    partition->leave = false;
    partition->proof.n_ends = 0;
    partition->reason[0] = '\0';
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
    bool latest =
        stream->updater->options.start == HPS_UPDATE_START_LATEST && partition->listed.initial;
    return latest ? has->high : has->low;
}

/* How old what it is to have from the log may be. The times of files are of the wall clock. */
static int64_t start_age_ms(const struct hps_consumer_offsets *has)
{
    int64_t now_ms = (int64_t)hps_clock_wall_ms();
    return has->time_unix_ms >= 0 ? now_ms - has->time_unix_ms : INT64_MAX;
}

static bool begins_buried(const struct update_partition *partition,
                          const struct hps_consumer_offsets *has)
{
    return partition->listed.compaction == HPS_COMPACTION_YES && has->high > has->low &&
           partition->listed.delete_retention_ms >= 0 &&
           start_age_ms(has) > partition->listed.delete_retention_ms;
}

/* The log has no record from before the start time, but it had records before `low`. Some of these
 * may be later than the files: DeleteRecords removes records of any age. */
static bool begins_late(int64_t next, const struct hps_consumer_offsets *has)
{
    bool by_time = has->time_unix_ms >= 0 && next > has->low;
    return has->low > 0 && !by_time;
}

/* Records that the log has no more may be some that the files lack, and that others have applied
 * who began when they were there: by time those that are older than what is kept, and the deletes
 * that compaction has removed. */
static bool begins_cut(const struct update_partition *partition, int64_t next,
                       const struct hps_consumer_offsets *has)
{
    return begins_late(next, has) && start_age_ms(has) >= partition->listed.kept_ms;
}

/* The end of the log is another one for each daemon, and what is before it they do not all have. */
static int64_t skipped_at_start(const struct hps_update_stream *stream,
                                const struct update_partition *partition, int64_t next,
                                const struct hps_consumer_offsets *has)
{
    bool latest = stream->updater->options.start == HPS_UPDATE_START_LATEST;
    bool other = partition->shared_at > has->high; /* it is of a log that was here before */
    bool late = stream->share.space == NULL && begins_late(next, has);
    if (other || late || begins_cut(partition, next, has) || begins_buried(partition, has)) {
        return HPS_POSITION_LOST;
    }
    return latest && next > has->low ? has->low : HPS_POSITION_WHOLE;
}

static void tell_lost(const struct hps_update_stream *stream,
                      const struct update_partition *partition)
{
    bool other = partition->shared_at > partition->high;
    if (stream->share.space != NULL && !stream->share.alone) {
        HPS_LOG(WARN, "updates",
                other ? "shared tier diverged: its position is past the end of the log, so the "
                        "topic was recreated or truncated, and it is bypassed; unload the version "
                        "on every daemon, then load it"
                      : "shared tier bypassed: the version starts after records that are gone, "
                        "which other daemons may have applied; load it with a manifest that has "
                        "start_positions",
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
    bool buried = begins_buried(partition, has);
    if (options->start != HPS_UPDATE_START_FILES || stream->share.space != NULL ||
        !(begins_late(next, has) || buried)) {
        return false;
    }
    if (begins_cut(partition, next, has) && partition->listed.kept_ms > 0) {
        update_gap(stream, partition,
                   "the files are older than the retention of the topic (retention.ms %" PRId64
                   "): updates before offset %" PRId64 " are gone",
                   partition->listed.kept_ms, has->low);
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
    if (!buried && !begins_cut(partition, next, has)) {
        return false; /* on a topic with few records, the usual case */
    }
    HPS_LOG(WARN, "updates",
            "updates incomplete: records from before the start position may be gone; see reason",
            HPS_STR("model", stream->model), HPS_I64("version", stream->number),
            HPS_STR("topic", partition->topic), HPS_I64("partition", partition->number),
            HPS_STR("reason", partition->note));
    return false;
}

/* The log searched the start by times that producers may set: on this topic, a record that was
 * appended after the files were written can have an older time, and was then skipped. */
static void note_skipped_by_time(const struct hps_update_stream *stream,
                                 struct update_partition *partition, int64_t next,
                                 const struct hps_consumer_offsets *has)
{
    bool noted = false;
    char since[24];
    if (stream->updater->options.start != HPS_UPDATE_START_FILES || next <= has->low ||
        partition->listed.time_of != HPS_RECORD_TIME_CREATED || partition->note[0] != '\0') {
        return;
    }
    for (uint32_t i = 0; i < stream->n_partitions; i++) {
        const struct update_partition *other = &stream->partitions[i];
        noted = noted || (other->note[0] != '\0' && strcmp(other->topic, partition->topic) == 0);
    }
    update_time_text(has->time_unix_ms, since, sizeof(since));
    snprintf(partition->note, sizeof(partition->note),
             "records before offset %" PRId64 " are skipped: their times are before %s, even if "
             "some were appended later; see start_positions, message.timestamp.type, start_slack_s",
             next, since);
    if (!noted) {
        HPS_LOG(INFO, "updates",
                "updates started by record time: records with older times are skipped, even if "
                "they were appended later; if producers set event times, use start_positions, "
                "message.timestamp.type=LogAppendTime or a larger start_slack_s",
                HPS_STR("model", stream->model), HPS_I64("version", stream->number),
                HPS_STR("topic", partition->topic), HPS_STR("since", since));
    }
}

static void begin_new(struct hps_update_stream *stream, struct update_partition *partition,
                      const struct hps_consumer_offsets *has)
{
    int64_t next = start_of(stream, partition, has);
    partition->proof.seen_ms = 0;
    partition->proof.seen_next = next;
    partition->note[0] = '\0';
    if (begins_in_a_gap(stream, partition, next, has)) {
        return;
    }
    note_skipped_by_time(stream, partition, next, has);
    partition->read =
        (struct hps_position){.next = next,
                              .start = next,
                              .skipped = skipped_at_start(stream, partition, next, has),
                              .before_start = !begins_buried(partition, has),
                              .frozen = HPS_POSITION_WHOLE};
    memcpy(partition->read.cluster, stream->topics.cluster, sizeof(stream->topics.cluster));
    bool by_time = has->time_unix_ms > 0 && !begins_buried(partition, has);
    partition->read.as_of_ms = partition->proof.as_of_ms;
    partition->read.base_ms = hps_clock_forward_ms() - (by_time ? start_age_ms(has) : 0);
    if (partition->read.skipped == HPS_POSITION_LOST) {
        tell_lost(stream, partition);
    }
    partition->pending.dirty = true; /* stored at once: another start must not decide differently */
    if (partition->paused) {
        update_stop_partition(stream, partition, UPDATE_PAUSED, "");
        return;
    }
    (void)update_identify(stream, partition, false);
    update_run_from(stream, partition, next, UPDATE_RUNS);
}

static void begin_known(struct hps_update_stream *stream, struct update_partition *partition,
                        const struct hps_consumer_offsets *has)
{
    const struct hps_position *at = &partition->applied;
    struct hps_witness witness = partition->read.witness;
    partition->read = *at;
    partition->read.as_of_ms = partition->proof.as_of_ms; /* what was proved stays so */
    /* One that was adopted is still to be stored, if the batch that had it was abandoned. */
    partition->pending.dirty = partition->pending.dirty || partition->basis == UPDATE_ADOPTED;
    if (witness.known && witness.offset < at->next) {
        partition->read.witness = witness;
    }
    if (at->cluster[0] != '\0' && stream->topics.cluster[0] != '\0' &&
        strcmp(at->cluster, stream->topics.cluster) != 0) {
        update_gap_other(stream, partition, "the position is of cluster %s, this is %s",
                         at->cluster, stream->topics.cluster);
        return;
    }
    if (at->next > has->high) {
        update_gap_other(stream, partition,
                         "offset %" PRId64 " is past the end %" PRId64
                         ": the topic was recreated or truncated",
                         at->next, has->high);
        return;
    }
    if (at->next < has->low) {
        update_gap(stream, partition,
                   "offsets %" PRId64 " to %" PRId64 " are gone: retention has passed", at->next,
                   has->low - 1);
        return;
    }
    if (update_lost_tombstones(partition, has->high)) {
        update_gap_tombstones(stream, partition);
        return;
    }
    if (!stream->freeze.frozen &&
        at->frozen != HPS_POSITION_WHOLE) { /* the version is so no more */
        update_move_to(stream, partition, at->frozen);
        return;
    }
    if (!update_identify(stream, partition, false)) {
        return;
    }
    const struct hps_witness *last = &at->last;
    bool check = last->known && last->offset >= has->low && last->offset < at->next;
    if (stream->topics.cluster[0] != '\0') { /* it has been told */
        memcpy(partition->read.cluster, stream->topics.cluster, sizeof(stream->topics.cluster));
    }
    update_run_from(stream, partition, check ? last->offset : at->next,
                    check ? UPDATE_CHECKS : UPDATE_RUNS);
}

/* A broker that has just started may not know the topic yet: wait until lists confirm it. */
static void begin_missing(struct hps_update_stream *stream, struct update_partition *partition)
{
    if (partition->listed.gone) {
        update_stop_partition(stream, partition, UPDATE_GONE, "the topic does not exist");
        return;
    }
    uint64_t again_us = hps_clock_us() + MISSING_AGAIN_US;
    stream->topics.begin_due_us = again_us;
    stream->topics.due_us = stream->topics.due_us < again_us ? stream->topics.due_us : again_us;
    snprintf(partition->reason, sizeof(partition->reason), "the log does not list the topic");
}

static void begin_one(struct hps_update_stream *stream, struct update_partition *partition,
                      const struct hps_consumer_offsets *has)
{
    if (has->status == HPS_NOT_FOUND) {
        begin_missing(stream, partition);
        return;
    }
    if (has->status == HPS_UNAVAILABLE) {
        stream->topics.begin_due_us = update_backoff_until(stream);
        snprintf(partition->reason, sizeof(partition->reason), "the leader does not answer%s%.150s",
                 partition->proof.word.text[0] != '\0' ? ": " : "", partition->proof.word.text);
        return; /* later */
    }
    if (has->status != HPS_OK) {
        update_stop_partition(stream, partition, UPDATE_FAILED,
                              has->status == HPS_PERMISSION
                                  ? "hpsd's Kafka user may not read the topic: grant Describe, Read"
                                  : hps_status_text(has->status));
        return;
    }
    partition->other = false; /* the log has it */
    if (!partition->listed.there) {
        begin_missing(stream, partition);
        return;
    }
    partition->low = has->low;
    partition->high = has->high;
    if (partition->basis != UPDATE_NOWHERE) {
        begin_known(stream, partition, has);
        if (partition->paused && update_reads(partition)) {
            update_stop_partition(stream, partition, UPDATE_PAUSED, "");
        }
    } else {
        begin_new(stream, partition, has);
    }
    HPS_LOG(DEBUG, "updates", "partition started", HPS_STR("model", stream->model),
            HPS_I64("version", stream->number), HPS_STR("topic", partition->topic),
            HPS_I64("partition", partition->number), HPS_I64("offset", partition->read.next),
            HPS_I64("low", has->low), HPS_I64("high", has->high),
            HPS_STR("known", update_is_published(partition) ? "yes" : "no"),
            HPS_STR("state", hps_partition_state_text(update_partition_state(partition->phase))));
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
    hps_status status = n == 0 ? HPS_OK
                               : update_ops(stream)->offsets(stream->consumer, parts, n,
                                                             UPDATE_LOG_TIMEOUT_MS, err);
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
    return partition->phase == UPDATE_STARTS;
}

/* Positions that a shared tier has, where it is the lowest. False: they cannot be told now. */
static bool adopt(struct hps_update_stream *stream, const struct hps_consumer_offsets *parts)
{
    if (!stream->share.alone) {
        return true;
    }
    int64_t *starts = hps_calloc(stream->n_partitions, sizeof(*starts));
    uint32_t n = 0;
    for (uint32_t i = 0; i < stream->n_partitions && starts != NULL; i++) {
        const struct update_partition *partition = &stream->partitions[i];
        starts[i] = -1;
        if (is_starting(NULL, partition)) {
            const struct hps_consumer_offsets *has = &parts[n++];
            starts[i] = has->status == HPS_OK && partition->listed.there
                            ? start_of(stream, partition, has)
                            : -1;
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
    if (!any || !update_is_listed(stream) || update_is_down(stream) ||
        hps_clock_us() < stream->topics.begin_due_us) {
        return;
    }
    stream->topics.begin_due_us = 0;
    update_ask_shared(stream);
    int64_t time_ms = update_start_time_ms(&stream->updater->options, stream->topics.start_ms);
    if (update_ask_offsets(stream, is_starting, NULL, time_ms, &parts, &err) != HPS_OK) {
        HPS_LOG(WARN, "updates",
                "update source unreachable: the offsets of partitions were not answered; retried",
                HPS_STR("model", stream->model), HPS_I64("version", stream->number),
                HPS_STR("error", err.text));
        stream->link.outage_logged = true;
        stream->topics.begin_due_us = update_backoff_until(stream);
        return;
    }
    update_tell_reachable(stream);
    uint32_t n = 0;
    if (!adopt(stream, parts)) {
        stream->topics.begin_due_us = update_backoff_until(stream);
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
        if (update_reads(partition) && (topic == NULL || strcmp(topic, partition->topic) == 0)) {
            update_stop_partition(stream, partition, UPDATE_STARTS, "");
        }
    }
    stream->topics.begin_due_us = 0;
}

/* ---- is it the same log? --------------------------------------------------------------------- */

static void gap_missing(struct hps_update_stream *stream, struct update_partition *partition)
{
    update_gap_other(stream, partition,
                     "the last record, at offset %" PRId64
                     ", does not exist: the topic was recreated or truncated",
                     partition->applied.last.offset);
}

bool update_check_first(struct hps_update_stream *stream, struct update_partition *partition,
                        const struct hps_consumer_record *record)
{
    const struct hps_position *at = &partition->applied;
    HPS_ASSERT(partition->phase == UPDATE_CHECKS);
    if (record->offset != at->last.offset) {
        if (partition->listed.compaction == HPS_COMPACTION_NO) {
            gap_missing(stream, partition);
            return false;
        }
        update_phase_set(partition, UPDATE_RUNS);
        return record->offset >= at->next;
    }
    uint64_t hash =
        hps_update_record_hash(record->key, record->key_size, record->value, record->value_size);
    if (hash != at->last.hash || record->time_unix_ms != at->last.time_ms) {
        update_gap_other(stream, partition,
                         "another record is at offset %" PRId64 ": the topic was recreated",
                         at->last.offset);
    } else {
        update_phase_set(partition, UPDATE_RUNS);
    }
    return false;
}

void update_check_caught_up(struct hps_update_stream *stream, struct update_partition *partition)
{
    if (partition->phase != UPDATE_CHECKS) {
        return;
    }
    if (partition->listed.compaction == HPS_COMPACTION_NO) {
        gap_missing(stream, partition);
    } else {
        update_phase_set(partition, UPDATE_RUNS);
    }
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the stored positions of partitions, and starts partitions once the offsets of the log are
 * known. On the stream's thread `update`.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "server/update/stream/stream.h"

#define MISSING_AGAIN_US UINT64_C(500000) /* from one request for offsets to the next */

/* ---- stored positions ------------------------------------------------------------------------ */

struct reading {
    struct hps_error *err;
    struct hps_update_stream *stream;
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
        return HPS_OK; /* the model had another name; or stored by an earlier build */
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
    *partition->applied = position;
    *partition->read = position;
    partition->paused = position.paused;
    partition->proof->as_of_ms = position.as_of_ms;
    /* A stored as-of is not later than the newest list of topics at that time. */
    if (position.as_of_ms > stream->topics->listed_ms) {
        stream->topics->listed_ms = position.as_of_ms;
    }
    partition->proof->seen_ms = position.as_of_ms;
    partition->proof->seen_next = position.next;
    partition->skipped_end = position.skipped == HPS_POSITION_WHOLE ? 0
                             : position.before_start                ? position.start
                                                                    : position.next;
    snprintf(partition->reason, sizeof(partition->reason), "the log has not listed its topic yet");
    stream->topics->fresh = false;
    update_note_event_time(stream, position.event_time_ms);
    return HPS_OK;
}

/* Adds a partition that another version of the model reads, unless it is known. due: it must be
 * stored. */
static hps_status add_other(struct hps_update_stream *stream, const char *topic, int32_t number,
                            bool due)
{
    struct hps_update_route route;
    if (update_find_partition(stream, topic, number) != NULL ||
        !hps_update_route(stream->version, topic, &route)) {
        return HPS_OK;
    }
    struct update_partition *partition = update_add_partition(stream, topic, number, &route);
    if (partition == NULL) {
        return HPS_NO_MEMORY;
    }
    partition->other = true;
    partition->other_due = due;
    return HPS_OK;
}

static hps_status read_record(void *ctx, const void *key, size_t key_size, const void *value,
                              size_t value_size)
{
    struct reading *reading = ctx;
    struct hps_update_stream *stream = reading->stream;
    char topic[HPS_UPDATE_TOPIC_BYTES_MAX];
    int32_t number;
    if (hps_position_key_parse(key, key_size, topic, &number)) {
        return read_partition(reading, topic, number, value, value_size);
    }
    if (key_size > 0 && ((const char *)key)[key_size - 1] == HPS_POSITION_OTHER &&
        hps_position_key_parse(key, key_size - 1, topic, &number)) {
        return add_other(stream, topic, number, false);
    }
    if (key_size == strlen(HPS_POSITION_FROZEN) &&
        memcmp(key, HPS_POSITION_FROZEN, key_size) == 0 &&
        hps_position_frozen_decode(value, value_size, &stream->frozen, &stream->freeze.by)) {
        stream->freeze.unstored = false;
    }
    if (key_size == strlen(HPS_POSITION_START) && value_size == sizeof(int64_t) &&
        memcmp(key, HPS_POSITION_START, key_size) == 0) {
        memcpy(&stream->topics->start_ms, value, sizeof(int64_t));
    }
    return HPS_OK;
}

hps_status update_read_positions(struct hps_update_stream *stream, struct hps_error *err)
{
    struct reading reading = {.err = err, .stream = stream};
    stream->topics->fresh = true;
    /* The version may have been loaded by an hpsd without updates. */
    stream->freeze.unstored = true;
    stream->topics->start_ms = (int64_t)stream->version->loaded_unix_ms;
    hps_status status = hps_update_positions(stream->version, read_record, &reading);
    return status == HPS_NO_MEMORY ? hps_error_set(err, status, "no memory for positions") : status;
}

/* ---- partitions of other versions ------------------------------------------------------------ */

void update_add_others(void *ctx, const struct hps_stream_view *view)
{
    struct update_others *others = ctx;
    struct hps_update_stream *stream = others->stream;
    bool other = strcmp(view->model, stream->model) == 0 && view->version != stream->number;
    for (uint32_t i = 0; other && i < view->n_partitions && others->status == HPS_OK; i++) {
        const struct hps_partition_view *theirs = &view->partitions[i];
        if (theirs->state != HPS_PARTITION_GONE) {
            others->status = add_other(stream, theirs->topic, theirs->partition, true);
        }
    }
}

/* ---- offsets --------------------------------------------------------------------------------- */

struct hps_consumer_offsets *update_ask_offsets(struct hps_update_stream *stream,
                                                update_wants_fn wants, const void *ctx,
                                                int64_t time_ms, struct hps_error *err)
{
    struct hps_consumer_offsets *offsets =
        hps_arena_calloc(stream->scratch, stream->n_partitions, sizeof(*offsets));
    if (offsets == NULL) {
        hps_ignore(hps_error_set(err, HPS_NO_MEMORY, "no memory for the offsets of partitions"));
        return NULL;
    }
    UPDATE_EACH (stream, partition) {
        if (wants(ctx, partition)) {
            offsets[partition - stream->partitions] = (struct hps_consumer_offsets){
                .topic = partition->topic, .partition = partition->number, .time_unix_ms = time_ms};
        }
    }
    hps_status status = update_ops(stream)->offsets(stream->consumer, offsets, stream->n_partitions,
                                                    UPDATE_LOG_TIMEOUT_MS, err);
    return status == HPS_OK ? offsets : NULL;
}

/* ---- starts ---------------------------------------------------------------------------------- */

int64_t update_start_time_ms(const struct hps_config_update_source *source, int64_t files_ms)
{
    if (source->start == HPS_CONFIG_UPDATE_START_TIME) {
        return (int64_t)source->start_time_unix_ms;
    }
    if (source->start != HPS_CONFIG_UPDATE_START_FILES) {
        return -1;
    }
    int64_t slack_ms = (int64_t)source->start_slack_s * 1000;
    return files_ms > slack_ms ? files_ms - slack_ms : 0;
}

/* The version starts after records that other daemons may have applied to the shared tier. */
static void log_bypassed(const struct hps_update_stream *stream,
                         const struct update_partition *partition)
{
    bool diverged = partition->shared_at > partition->high;
    if (stream->shares && !stream->sole_copy) {
        UPDATE_LOG_PARTITION(
            stream, partition, WARN,
            diverged ? "shared tier diverged: its position is past the end of the log, so the "
                       "topic was recreated or truncated, and it is bypassed; unload the version "
                       "on every daemon, then load it"
                     : "shared tier bypassed: the log no longer has some records before the start "
                       "position, which other daemons may have applied; load the version with a "
                       "manifest that has start_positions",
            HPS_I64("offset", partition->read->next));
    }
}

/* Notes which updates may be missing in the rows of a partition that starts without a position. */
static void note_lacking(const struct hps_update_stream *stream, struct update_partition *partition,
                         const struct update_step *step, int64_t low)
{
    bool deletes = step->note == UPDATE_NOTE_DELETES;
    if (step->note == UPDATE_NOTE_NONE) {
        return;
    }
    if (deletes) {
        snprintf(partition->note, sizeof(partition->note),
                 "the files are older than delete.retention.ms: keys deleted since may still have "
                 "rows; load newer files");
    } else {
        snprintf(partition->note, sizeof(partition->note),
                 "the log begins at offset %" PRId64
                 ", after the time of the files: updates between may be gone; load newer files",
                 low);
    }
    /* Otherwise the log has all records since: this is usual on a topic with few records. */
    if (deletes || partition->listed->kept_ms == 0) {
        UPDATE_LOG_PARTITION(stream, partition, WARN,
                             "updates incomplete: records from before the start position may be "
                             "missing; see reason",
                             HPS_STR("reason", partition->note));
    }
}

/* The log searched the start by times that producers may set: on this topic, a record that was
 * appended after the files were written can have an older time, and was then skipped. */
static void note_skipped_by_time(const struct hps_update_stream *stream,
                                 struct update_partition *partition,
                                 const struct hps_consumer_offsets *has)
{
    bool noted = false;
    char since[24];
    int64_t next = partition->read->next;
    if (stream->source->start != HPS_CONFIG_UPDATE_START_FILES || next <= has->low ||
        partition->listed->time_of != HPS_RECORD_TIME_CREATED || partition->note[0] != '\0') {
        return;
    }
    UPDATE_EACH (stream, other) {
        noted = noted || (other->note[0] != '\0' && strcmp(other->topic, partition->topic) == 0);
    }
    update_time_text(has->time_unix_ms, since, sizeof(since));
    snprintf(partition->note, sizeof(partition->note),
             "records before offset %" PRId64 " are skipped: their times are before %s, even if "
             "some were appended later; see start_positions, message.timestamp.type, start_slack_s",
             next, since);
    if (!noted) {
        UPDATE_LOG(stream, INFO,
                   "updates started by record time: records with older times are skipped, even if "
                   "they were appended later; if producers set event times, use start_positions, "
                   "message.timestamp.type=LogAppendTime or a larger start_slack_s",
                   HPS_STR("topic", partition->topic), HPS_STR("since", since));
    }
}

/* The start time is of the wall clock, as the files are; steps use the forward clock. */
static struct update_event offsets_event(const struct hps_consumer_offsets *has)
{
    int64_t age_ms = (int64_t)hps_clock_wall_ms() - has->time_unix_ms;
    int64_t time_ms = has->time_unix_ms < 0 ? -1 : hps_clock_forward_ms() - age_ms;
    return (struct update_event){.kind = UPDATE_ON_OFFSETS,
                                 .status = has->status,
                                 .low = has->low,
                                 .high = has->high,
                                 .time_ms = time_ms,
                                 .at_time = has->at_time};
}

static void start_one(struct hps_update_stream *stream, struct update_partition *partition,
                      const struct hps_consumer_offsets *has)
{
    const struct update_event event = offsets_event(has);
    bool exists = has->status == HPS_OK;
    bool missing = has->status == HPS_NOT_FOUND || (exists && !partition->listed->present);
    partition->other = partition->other && !exists;
    if (missing && !partition->listed->gone) {
        /* A broker that has just started may not know the topic yet: wait until lists confirm it.
         */
        stream->begin_due_us = hps_clock_us() + MISSING_AGAIN_US;
        snprintf(partition->reason, sizeof(partition->reason), "the log does not list the topic");
        return;
    }
    if (exists && !missing) {
        partition->high = has->high;
    }
    const struct update_step step =
        update_step(stream, partition, &event, hps_status_text(has->status));
    if (exists && partition->basis == UPDATE_NOWHERE) {
        partition->note[0] = '\0';
        note_lacking(stream, partition, &step, has->low);
    }
    if ((step.actions & UPDATE_DO_BEGIN) != 0) {
        note_skipped_by_time(stream, partition, has);
        if (step.skipped == HPS_POSITION_LOST) {
            log_bypassed(stream, partition);
        }
    }
    UPDATE_LOG_PARTITION(
        stream, partition, DEBUG, "partition started", HPS_I64("offset", partition->read->next),
        HPS_I64("low", has->low), HPS_I64("high", has->high),
        HPS_STR("known", update_is_published(partition) ? "yes" : "no"),
        HPS_STR("state", hps_partition_state_text(update_partition_state(partition->phase))));
}

static bool is_starting(const void *ctx, const struct update_partition *partition)
{
    (void)ctx;
    return partition->phase == UPDATE_STARTING;
}

/* If a shared tier has the only copy of the rows, takes its positions. False: it did not respond.
 * offsets: [n_partitions] by tag. */
static bool adopt(struct hps_update_stream *stream, const struct hps_consumer_offsets *offsets)
{
    if (!stream->sole_copy) {
        return true;
    }
    int64_t *starts = hps_arena_calloc(stream->scratch, stream->n_partitions, sizeof(*starts));
    for (uint32_t i = 0; i < stream->n_partitions && starts != NULL; i++) {
        const struct update_partition *partition = &stream->partitions[i];
        const struct hps_consumer_offsets *has = &offsets[i];
        starts[i] = -1;
        if (has->topic != NULL && has->status == HPS_OK && partition->listed->present) {
            const struct update_event event = offsets_event(has);
            const struct update_facts facts = update_facts_of(stream, partition);
            starts[i] = update_next(&facts, &event).offset;
        }
    }
    return starts != NULL && update_adopt(stream, starts);
}

void update_unassign_stopped(struct hps_update_stream *stream)
{
    UPDATE_EACH (stream, partition) {
        if (partition->unassign_due) {
            update_ops(stream)->unassign(stream->consumer, partition->topic, partition->number);
            partition->unassign_due = false;
        }
    }
}

/* offsets: [n_partitions] by tag; the topic of a partition that does not start is NULL. */
static void start_all(struct hps_update_stream *stream, const struct hps_consumer_offsets *offsets)
{
    if (!adopt(stream, offsets)) {
        stream->begin_due_us = update_backoff_until(stream);
        return;
    }
    for (uint32_t i = 0; i < stream->n_partitions; i++) {
        if (offsets[i].topic != NULL) {
            start_one(stream, &stream->partitions[i], &offsets[i]);
        }
    }
    update_unassign_stopped(stream);
}

void update_start_partitions(struct hps_update_stream *stream)
{
    struct hps_error err = {0};
    bool any = false;
    update_unassign_stopped(stream);
    UPDATE_EACH (stream, partition) {
        any = any || is_starting(NULL, partition);
    }
    if (!any || !stream->link->answers || hps_clock_us() < stream->begin_due_us) {
        return;
    }
    stream->begin_due_us = 0;
    update_ask_shared(stream);
    int64_t time_ms = update_start_time_ms(stream->source, stream->topics->start_ms);
    const struct hps_consumer_offsets *offsets =
        update_ask_offsets(stream, is_starting, NULL, time_ms, &err);
    if (offsets != NULL) {
        start_all(stream, offsets);
    } else {
        UPDATE_LOG(stream, WARN, "updates stalled: no memory to start partitions; retried",
                   HPS_STR("error", err.text));
        stream->begin_due_us = update_backoff_until(stream);
    }
}

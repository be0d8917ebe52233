/* SPDX-License-Identifier: Apache-2.0
 *
 * The turn of a stream: commands, topics, one poll into the current batch. On its thread `update`.
 */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "server/update/stream/stream.h"

enum { BACKOFF_MS_MAX = 5000 };

/* ---- records --------------------------------------------------------------------------------- */

/* Counts a record for a version that is not loaded. Only the active version counts it, so it is
 * counted once, and a version that reads old records again does not count them. The record itself
 * is right: no copy goes to the dead-letter topic, and no wait for other records fails. */
static void count_unloaded(struct hps_update_stream *stream,
                           const struct update_partition *partition, int64_t offset,
                           const struct hps_update_outcome *outcome)
{
    if (!outcome->for_other || outcome->version == 0 || !atomic_load(&stream->active)) {
        return;
    }
    if (!stream->common->is_loaded(stream->common, stream->model, outcome->version)) {
        update_count_rejected(stream, HPS_UPDATE_BAD_VERSION, 1);
        UPDATE_LOG_PARTITION(
            stream, partition, WARN,
            "record skipped: it names a version that is not loaded; if that version is loaded "
            "later, it may still apply the record",
            HPS_I64("record_version", outcome->version), HPS_I64("offset", offset));
    }
}

static void reject(struct hps_update_stream *stream, const struct update_partition *partition,
                   const struct hps_consumer_record *record, const char *reason, const char *text)
{
    update_count_rejected(stream, reason, 1);
    UPDATE_LOG_PARTITION(stream, partition, WARN, "record rejected: it is skipped, see reason",
                         HPS_I64("offset", record->offset), HPS_STR("reason", reason),
                         HPS_STR("error", text));
    update_show_rejected(stream, partition, record->offset, reason, text);
    update_send_dead_letter(stream, record, reason);
}

/* Whether the record is skipped because the version is frozen. */
static bool is_skipped(const struct hps_update_outcome *outcome)
{
    return outcome->for_other && outcome->version == 0;
}

/* Hashes the last record of a partition while it is borrowed from the poll. The hashes of earlier
 * records are not needed. */
static void hash_last(struct update_partition *partition, const struct hps_consumer_record *record)
{
    struct hps_witness *last = &partition->read->last;
    if (last->known && last->offset == record->offset && last->hash == 0) {
        last->hash = hps_update_record_hash(record->key, record->key_size, record->value,
                                            record->value_size);
    }
}

static void advance(struct hps_update_stream *stream, struct update_partition *partition,
                    const struct hps_consumer_record *record,
                    const struct hps_update_outcome *outcome)
{
    HPS_ASSERT(partition->phase == UPDATE_RUNNING && update_is_published(partition));
    struct hps_position *read = partition->read;
    int64_t event_ms = outcome->event_time_ms != 0 ? outcome->event_time_ms : record->time_unix_ms;
    int64_t now_ms = (int64_t)hps_clock_wall_ms();
    event_ms = event_ms < now_ms ? event_ms : now_ms; /* the producer's clock may be ahead */
    read->next = record->offset + 1;
    partition->pending.dirty = true;
    read->last = (struct hps_witness){
        .known = true, .offset = record->offset, .time_ms = record->time_unix_ms};
    if (!read->witness.known) {
        hash_last(partition, record);
        read->witness = read->last;
        partition->identity->since_ms = hps_clock_forward_ms();
    }
    if (is_skipped(outcome)) {
        partition->pending.skipped = true;
        read->skipped = read->skipped == HPS_POSITION_WHOLE ? record->offset : read->skipped;
        read->frozen = read->frozen == HPS_POSITION_WHOLE ? record->offset : read->frozen;
        read->before_start = false;
    }
    if (outcome->n_keys > 0 && event_ms > 0) {
        read->event_time_ms = event_ms > read->event_time_ms ? event_ms : read->event_time_ms;
        /* Without memory, only a metric lacks it. */
        hps_ignore(hps_buf_append(&stream->batch->times, &event_ms, sizeof(event_ms)));
    }
    partition->n_records++;
}

/* Warns once per topic of records that are not keyed on a compacted topic: compaction keeps the
 * last record of each key, so it removes their rows. They are applied if they are read before. */
static void note_form(struct hps_update_stream *stream, struct update_partition *partition,
                      enum hps_update_form form)
{
    bool logged = false;
    hps_metric_add(stream->metrics->compacted, 1);
    if (partition->form_logged) {
        return;
    }
    UPDATE_EACH (stream, other) {
        logged = logged || (other->form_logged && strcmp(other->topic, partition->topic) == 0);
    }
    if (!logged) {
        UPDATE_LOG(stream, WARN,
                   "rows lost by compaction: a compacted topic has records that are not keyed; set "
                   "cleanup.policy=delete or publish keyed ones",
                   HPS_STR("topic", partition->topic), HPS_STR("form", hps_update_form_text(form)));
    }
    partition->form_logged = true;
}

/* Returns whether the record is applied. It is not if it is the last applied record, or if it shows
 * a gap. */
static bool check_first(struct hps_update_stream *stream, struct update_partition *partition,
                        const struct hps_consumer_record *record)
{
    const struct hps_witness found = {
        true, record->offset, record->time_unix_ms,
        hps_update_record_hash(record->key, record->key_size, record->value, record->value_size)};
    const struct update_event event = {.kind = UPDATE_ON_RECORD,
                                       .offset = record->offset,
                                       .matches =
                                           hps_witness_same(&found, &partition->applied->last)};
    (void)update_step(stream, partition, &event, NULL);
    return partition->phase == UPDATE_RUNNING && record->offset >= partition->applied->next;
}

/* False: no memory; the records of the batch must be read again. */
static bool take_record(struct hps_update_stream *stream, const struct hps_consumer_record *record)
{
    HPS_ASSERT(record->tag < stream->n_partitions);
    struct update_partition *partition = &stream->partitions[record->tag];
    struct hps_update_outcome outcome;
    struct hps_error err = {0};
    if (!update_phase_reads(partition->phase)) {
        return true;
    }
    if (partition->phase == UPDATE_CHECKING && !check_first(stream, partition, record)) {
        return true;
    }
    hps_status status =
        hps_update_decoder_add(stream->batch->decoder, &partition->route, update_ops(stream),
                               record, !stream->frozen, &outcome, &err);
    if (status != HPS_OK) {
        snprintf(stream->batch->held_text, sizeof(stream->batch->held_text), "%.199s", err.text);
        return false;
    }
    if (stream->sole_copy && is_skipped(&outcome)) {
        /* If this version skipped the record, the other daemons would lack it, too. */
        (void)update_step(stream, partition, &(struct update_event){.kind = UPDATE_ON_LINEAGE},
                          NULL);
        return true;
    }
    if (outcome.bad != NULL) {
        reject(stream, partition, record, outcome.bad, err.text);
    }
    count_unloaded(stream, partition, record->offset, &outcome);
    if (partition->listed->compaction == HPS_COMPACTION_YES && outcome.form != 0 &&
        outcome.form != HPS_UPDATE_KEYED) {
        note_form(stream, partition, outcome.form);
    }
    if (outcome.form == HPS_UPDATE_KEYED && outcome.n_keys > 0) {
        hps_update_keys_note(stream->batch->keys, partition->route.table_id, record->key);
    }
    advance(stream, partition, record, &outcome);
    stream->batch->n_records++;
    return true;
}

/* ---- events ---------------------------------------------------------------------------------- */

/* The log has no readable record before `offset`. */
static void skip_to(struct update_partition *partition, int64_t offset)
{
    if (offset > partition->read->next) {
        partition->read->next = offset;
        partition->proof->read_ms = hps_clock_forward_ms();
        partition->pending.dirty = true;
    }
}

/* `offset` is the end of the log: markers of transactions before it have no records. */
static void take_caught_up(struct hps_update_stream *stream, struct update_partition *partition,
                           int64_t offset)
{
    if (offset > partition->high) { /* the leader may have named a later end since */
        partition->high = offset;
    }
    (void)update_step(stream, partition, &(struct update_event){.kind = UPDATE_ON_CAUGHT_UP}, NULL);
    if (update_phase_reads(partition->phase)) {
        skip_to(partition, offset);
    }
}

/* The log cannot deliver the records from event->offset to event->high. */
static void take_bad(struct hps_update_stream *stream, struct update_partition *partition,
                     const struct hps_consumer_event *event)
{
    static const char reason[] = "unreadable";
    int64_t from = event->offset > partition->read->next ? event->offset : partition->read->next;
    UPDATE_LOG_PARTITION(
        stream, partition, WARN,
        "records rejected: the log cannot deliver them, see error; they are skipped",
        HPS_I64("offset", event->offset), HPS_I64("next_offset", event->high),
        HPS_STR("reason", reason), HPS_STR("error", event->text));
    int64_t n = event->high > from ? event->high - from : 0;
    int64_t shown = n > HPS_REJECTED_VIEWS_MAX ? event->high - HPS_REJECTED_VIEWS_MAX : from;
    for (int64_t offset = shown; offset < event->high; offset++) {
        update_show_rejected(stream, partition, offset, reason, event->text);
    }
    if (n > 0) {
        update_count_rejected(stream, reason, (uint64_t)n);
    }
    skip_to(partition, event->high);
}

static void take_event(struct hps_update_stream *stream, const struct hps_consumer_event *event)
{
    struct update_partition *partition =
        event->tag < stream->n_partitions ? &stream->partitions[event->tag] : NULL;
    if (partition != NULL && !update_phase_reads(partition->phase)) {
        return;
    }
    switch (event->kind) {
    case HPS_CONSUMER_CAUGHT_UP:
        take_caught_up(stream, partition, event->offset);
        break;
    case HPS_CONSUMER_GAP:
    case HPS_CONSUMER_GONE: /* its offsets will show what is lost, or whether it is only hidden */
        (void)update_step(stream, partition, &(struct update_event){.kind = UPDATE_ON_LOST}, NULL);
        break;
    case HPS_CONSUMER_BAD:
        take_bad(stream, partition, event);
        break;
    case HPS_CONSUMER_FAILED:
        (void)update_step(stream, partition, &(struct update_event){.kind = UPDATE_ON_REFUSED},
                          event->text);
        break;
    case HPS_CONSUMER_DOWN:
        update_link_down(stream, event->text);
        break;
    case HPS_CONSUMER_UP: /* the next list of topics shows it */
        break;
    case HPS_CONSUMER_COMMITS:
        UPDATE_LOG(stream, WARN,
                   event->status == HPS_OK
                       ? "commits resumed: Kafka's tools see positions again"
                       : "commits failed: Kafka's tools see old positions, updates continue; see "
                         "error",
                   HPS_STR("error", event->text));
        break;
    }
}

/* ---- a batch --------------------------------------------------------------------------------- */

/* A batch has at most the rows that the rate limit allows per second, so that the next batch does
 * not wait long. */
static uint64_t batch_rows_max(const struct hps_update_stream *stream)
{
    uint64_t rows_max = stream->source->max_batch_size;
    uint64_t rate = atomic_load(&stream->common->rows_per_s_max);
    return rate > 0 && rate < rows_max ? rate : rows_max;
}

static bool batch_full(const struct hps_update_stream *stream)
{
    uint64_t rows_max = batch_rows_max(stream);
    return hps_update_decoder_keys(stream->batch->decoder) >= rows_max ||
           hps_update_decoder_bytes(stream->batch->decoder) >= stream->source->max_batch_bytes ||
           stream->batch->n_records >= rows_max;
}

/* For how many more records the batch has room, estimated by the rows per record so far; one, if
 * that is not known. */
static uint32_t batch_room(const struct hps_update_stream *stream)
{
    uint64_t rows_max = batch_rows_max(stream);
    uint64_t n_rows = hps_update_decoder_keys(stream->batch->decoder);
    uint64_t n_records = stream->batch->n_records;
    if (n_records == 0 && stream->batch->rows_per_record == 0) {
        return 1;
    }
    uint64_t each = n_records > 0 ? n_rows / n_records : stream->batch->rows_per_record;
    uint64_t room = rows_max > n_rows ? (rows_max - n_rows) / (each > 0 ? each : 1) : 1;
    uint64_t left = rows_max > n_records ? rows_max - n_records : 1;
    room = room < left ? room : left;
    return (uint32_t)(room > 0 ? room : 1);
}

/* The consumer is unusable: drops its records, and has another one opened after a pause. */
static void renew_consumer(struct hps_update_stream *stream, const char *error)
{
    UPDATE_LOG(stream, ERROR,
               "update source failed: its consumer has a fatal error; a new consumer is opened",
               HPS_STR("error", error));
    stream->link->outage_logged = true;
    snprintf(stream->link->text, sizeof(stream->link->text), "%.199s", error);
    update_stream_abandon(stream, false);
    update_link_close(stream);
    update_start_over(stream);
    update_retry_later(stream);
}

/* One poll into the current batch. False: nothing more for now. */
static bool gather_once(struct hps_update_stream *stream, uint32_t poll_ms)
{
    HPS_ASSERT(!stream->batch->held);
    struct hps_consumer_poll poll = {0};
    struct hps_error err = {0};
    bool taken = true;
    hps_status status = update_ops(stream)->poll(stream->consumer, poll_ms, batch_room(stream),
                                                 stream->source->max_batch_bytes, &poll, &err);
    if (status != HPS_OK) {
        renew_consumer(stream, err.text);
        return false;
    }
    for (uint32_t i = 0; i < poll.n_records && taken; i++) {
        taken = take_record(stream, &poll.records[i]);
    }
    int64_t now_ms = poll.n_records > 0 ? hps_clock_forward_ms() : 0;
    for (uint32_t i = 0; i < poll.n_records; i++) {
        struct update_partition *partition = &stream->partitions[poll.records[i].tag];
        partition->proof->read_ms = now_ms;
        hash_last(partition, &poll.records[i]);
        partition->pending.dirty = partition->pending.dirty || !taken; /* read again */
    }
    for (uint32_t i = 0; i < poll.n_events; i++) {
        take_event(stream, &poll.events[i]);
    }
    if (!taken) {
        UPDATE_LOG(stream, WARN, "updates stalled: no memory for a record; retried",
                   HPS_STR("error", stream->batch->held_text));
        update_stream_abandon(stream, false);
        update_retry_later(stream);
        return false;
    }
    return poll.n_records > 0;
}

static void gather(struct hps_update_stream *stream, uint32_t poll_ms)
{
    bool more = gather_once(stream, poll_ms);
    while (more && !batch_full(stream) && !update_stops(stream)) {
        more = gather_once(stream, 0);
    }
}

/* ---- the turn -------------------------------------------------------------------------------- */

/* Only known partitions can be paused: commands wait for the first list, but not for long. */
static void take_calls(struct hps_update_stream *stream)
{
    struct hps_update_work *work;
    bool waits =
        stream->consumer != NULL && !stream->topics->listed && !stream->link->outage_logged;
    while (!waits && !update_stops(stream) && (work = update_call_take(stream)) != NULL) {
        update_run_command(stream, work);
        update_stream_show(stream);
        work->advance(work);
    }
}

static void take_freeze(struct hps_update_stream *stream)
{
    uint64_t by = atomic_load(&stream->freeze.asked_by);
    if (by <= stream->freeze.by) {
        return;
    }
    stream->freeze.by = by;
    stream->freeze.unstored = true;
    if (!stream->frozen) {
        stream->frozen = true;
        UPDATE_LOG(stream, WARN,
                   "updates frozen: a version of another lineage is active; records that name no "
                   "version are skipped until `hpsctl updates seek`");
    }
}

/* Waits until due_us, or until another thread requests something, at most poll_ms. */
static void wait_until(struct hps_update_stream *stream, uint64_t due_us, uint32_t poll_ms)
{
    const struct update_refresh *refresh = stream->refresh;
    uint64_t poll_us = hps_clock_us() + (uint64_t)poll_ms * 1000;
    uint64_t until_us = due_us < poll_us ? due_us : poll_us;
    hps_lock_acquire(&stream->board->lock);
    while ((stream->board->calls == NULL || !stream->topics->listed) &&
           (refresh->asked_us <= refresh->done_us || refresh->begun_us > 0) &&
           !update_stops(stream) &&
           hps_cond_wait_until(&stream->board->changed, &stream->board->lock, until_us)) {
    }
    hps_lock_release(&stream->board->lock);
}

/* Whether records may be read: none are read while a batch is held. */
static bool can_read(const struct hps_update_stream *stream)
{
    return !stream->batch->held && stream->consumer != NULL;
}

/* Starts partitions, and fills the batch, unless the rate limit defers it. */
static void read_log(struct hps_update_stream *stream, uint64_t now_us, uint32_t poll_ms)
{
    if (can_read(stream)) {
        if (!stream->link->answers) {
            update_take_topics(stream, 0);
        }
        update_start_partitions(stream);
        update_apply_or_hold(stream); /* first positions are stored before records are read */
    }
    if (can_read(stream)) {
        uint64_t rate_us = update_rate_due_us(stream);
        if (rate_us > now_us) {
            wait_until(stream, rate_us, poll_ms);
        } else {
            gather(stream, stream->share->consumer == NULL ? poll_ms : 0);
        }
    }
}

void update_stream_turn(struct hps_update_stream *stream, uint32_t poll_ms)
{
    uint64_t now_us = hps_clock_us();
    hps_arena_reset(stream->scratch);
    if (now_us < stream->pace->retry_due_us) {
        wait_until(stream, stream->pace->retry_due_us, poll_ms);
        now_us = hps_clock_us();
    }
    bool due = now_us >= stream->pace->retry_due_us;
    if (stream->consumer == NULL && due && !update_link_open(stream)) {
        stream->pace->retry_due_us = now_us + (uint64_t)BACKOFF_MS_MAX * 1000;
        due = false;
    }
    take_freeze(stream); /* before the command: a seek ends an earlier freeze */
    take_calls(stream);
    poll_ms = update_refresh_turn(stream, poll_ms);
    if (due && stream->batch->held) {
        update_apply_or_hold(stream);
    }
    if (due) {
        read_log(stream, now_us, poll_ms);
    }
    if (stream->consumer != NULL) {
        update_take_topics(stream, 0);
        update_take_responses(stream);
        update_prove(stream);
    }
    if (due && can_read(stream)) {
        update_apply_or_hold(stream);
    }
    update_share_turn(stream, poll_ms);
    if (stream->consumer != NULL) {
        update_commit_due(stream);
    }
    update_stream_sane(stream);
    update_stream_show(stream);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The turn of a stream: commands, topics, one poll into the batch at hand. On its thread `update`.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/log.h"
#include "server/observe/metrics.h"
#include "server/update/internal.h"

enum {
    BACKOFF_MS_MAX = 5000,
    REFRESH_POLL_MS = 10 /* while somebody waits for what leaders say */
};

static int64_t wall_ms(void)
{
    return (int64_t)hps_clock_wall_ms();
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* Until something is asked of the thread, at most ms. */
static void wait_ms(struct hps_update_stream *stream, uint64_t ms)
{
    uint64_t until_us = hps_clock_us() + ms * 1000;
    const struct update_refresh *refresh = &stream->refresh;
    hps_lock_acquire(&stream->lock);
    while (
        stream->call == NULL && (refresh->asked_us <= refresh->done_us || refresh->begun_us > 0) &&
        !update_stops(stream) && hps_cond_wait_until(&stream->changed, &stream->lock, until_us)) {
    }
    hps_lock_release(&stream->lock);
}

uint64_t update_backoff_until(const struct hps_update_stream *stream)
{
    return hps_clock_us() + (uint64_t)stream->updater->options.backoff_ms * 1000;
}

void update_retry_later(struct hps_update_stream *stream)
{
    stream->pace.retry_due_us = update_backoff_until(stream);
}

/* ---- the consumer ---------------------------------------------------------------------------- */

static void close_consumer(struct hps_update_stream *stream)
{
    hps_lock_acquire(&stream->lock);
    stream->wakeable = NULL;
    hps_lock_release(&stream->lock);
    update_forget_words(stream);
    if (stream->consumer != NULL) {
        stream->consumer->ops->close(stream->consumer);
    }
    stream->consumer = NULL;
    update_link_set(stream, UPDATE_LINK_CLOSED);
}

static bool open_consumer(struct hps_update_stream *stream)
{
    const struct hps_updater_options *options = &stream->updater->options;
    struct hps_error err = {0};
    char name[160];
    snprintf(name, sizeof(name), "%s-%" PRId64, stream->model, stream->number);
    const char **topics = NULL;
    uint32_t n_topics = 0;
    hps_status status = hps_update_topics(stream->version, options->filters, options->n_filters,
                                          &topics, &n_topics, &err);
    if (status == HPS_OK) {
        const struct hps_consumer_options wanted = {
            .name = name, .group = options->group, .topics = topics, .n_topics = n_topics};
        status = options->log->ops->consumer_open(options->log, &wanted, &stream->consumer, &err);
    }
    hps_free(topics);
    if (status != HPS_OK) {
        HPS_LOG(ERROR, "updates",
                "update source failed: no consumer can be opened; retried every 5 s, check the "
                "update_source options",
                HPS_STR("model", stream->model), HPS_I64("version", stream->number),
                HPS_STR("error", err.text));
        stream->link.outage_logged = true;
        snprintf(stream->link.text, sizeof(stream->link.text), "%.199s", err.text);
        stream->consumer = NULL;
        return false;
    }
    hps_lock_acquire(&stream->lock);
    stream->wakeable = stream->consumer;
    hps_lock_release(&stream->lock);
    update_link_set(stream, UPDATE_LINK_SILENT);
    stream->topics.failed = false;
    stream->topics.due_us = 0;
    stream->topics.begin_due_us = 0;
    return true;
}

/* It is of no more use: everything begins anew, with another one. */
static void renew_consumer(struct hps_update_stream *stream)
{
    update_stream_abandon(stream, false);
    close_consumer(stream);
    for (uint32_t i = 0; i < stream->n_partitions; i++) {
        if (update_reads(&stream->partitions[i])) {
            update_stop_partition(stream, &stream->partitions[i], UPDATE_STARTS, "");
        }
    }
    update_retry_later(stream);
}

/* ---- records --------------------------------------------------------------------------------- */

/* Counts a record for a version that is not loaded. Only the active version counts it, so it is
 * counted once, and a version that reads old records again does not count them. The record itself
 * is right: no copy goes to the dead-letter topic, and no wait for other records fails. */
static void count_for_none(struct hps_update_stream *stream,
                           const struct hps_consumer_record *record,
                           const struct hps_update_fate *fate)
{
    struct hps_updater *updater = stream->updater;
    if (!fate->for_other || fate->version == 0 || !atomic_load(&stream->active)) {
        return;
    }
    hps_lock_acquire(&updater->lock);
    bool loaded = update_stream_find(updater, stream->model, fate->version) != NULL;
    hps_lock_release(&updater->lock);
    if (!loaded) {
        update_count_rejected(stream, HPS_UPDATE_BAD_VERSION, 1);
        HPS_LOG(WARN, "updates",
                "record skipped: it names a version that is not loaded; if that version is loaded "
                "later, it may still apply the record",
                HPS_STR("model", stream->model), HPS_I64("version", stream->number),
                HPS_I64("record_version", fate->version), HPS_STR("topic", record->topic),
                HPS_I64("partition", record->partition), HPS_I64("offset", record->offset));
    }
}

static void count_bad(struct hps_update_stream *stream, const struct hps_consumer_record *record,
                      const char *reason, const char *text)
{
    update_count_rejected(stream, reason, 1);
    HPS_LOG(WARN, "updates", "record rejected: it is skipped, see reason",
            HPS_STR("model", stream->model), HPS_I64("version", stream->number),
            HPS_STR("topic", record->topic), HPS_I64("partition", record->partition),
            HPS_I64("offset", record->offset), HPS_STR("reason", reason), HPS_STR("error", text));
    update_show_rejected(stream, record->topic, record->partition, record->offset, reason, text);
    update_send_dead_letter(stream, record, reason);
}

static void note_time(struct hps_update_stream *stream, const struct hps_consumer_record *record,
                      const struct hps_update_fate *fate)
{
    struct update_time time = {.ms = fate->event_time_ms};
    if (time.ms == 0 && record->time_of != HPS_RECORD_TIME_NONE) {
        time.ms = record->time_unix_ms;
        time.appended = record->time_of == HPS_RECORD_TIME_APPENDED;
    }
    if (time.ms > 0 && fate->n_keys > 0) {
        hps_ignore(
            hps_buf_append(&stream->batch.times, &time, sizeof(time))); /* only to be shown */
    }
}

/* As the version is frozen. */
static bool is_passed_over(const struct hps_update_fate *fate)
{
    return fate->for_other && fate->version == 0;
}

/* The last record, before it goes with its poll: of those before nobody asks for the hash. */
static void hash_last(struct update_partition *partition)
{
    const struct hps_consumer_record *record = partition->unhashed;
    if (record != NULL && partition->read.last.offset == record->offset) { /* not reset since */
        partition->read.last.hash = hps_update_record_hash(record->key, record->key_size,
                                                           record->value, record->value_size);
    }
    partition->unhashed = NULL;
}

static void advance(struct update_partition *partition, const struct hps_consumer_record *record,
                    const struct hps_update_fate *fate)
{
    HPS_ASSERT(partition->phase == UPDATE_RUNS && update_is_published(partition));
    struct hps_position *read = &partition->read;
    int64_t event_ms = fate->event_time_ms != 0 ? fate->event_time_ms : record->time_unix_ms;
    int64_t now_ms = wall_ms();
    event_ms = event_ms < now_ms ? event_ms : now_ms; /* one clock that is ahead must not stay */
    read->next = record->offset + 1;
    read->last = (struct hps_witness){
        .known = true, .offset = record->offset, .time_ms = record->time_unix_ms};
    partition->unhashed = record;
    if (!read->witness.known) {
        hash_last(partition);
        read->witness = read->last;
    }
    if (is_passed_over(fate)) {
        partition->pending.passed_over = true;
        read->skipped = read->skipped == HPS_POSITION_WHOLE ? record->offset : read->skipped;
        read->frozen = read->frozen == HPS_POSITION_WHOLE ? record->offset : read->frozen;
        read->before_start = false;
    }
    if (fate->n_keys > 0 && event_ms > read->event_time_ms) {
        read->event_time_ms = event_ms;
    }
    partition->n_records++;
    partition->pending.dirty = true;
}

/* The log keeps the last record of each key, and these forms have none, or all the same: rows go
 * with the records that compaction removes. Applied while they are there. */
static void note_form(struct hps_update_stream *stream, struct update_partition *partition,
                      enum hps_update_form form)
{
    bool told = false;
    hps_metric_add(stream->metrics.compacted, 1);
    for (uint32_t i = 0; i < stream->n_partitions && !partition->told_form; i++) {
        const struct update_partition *other = &stream->partitions[i];
        told = told || (other->told_form && strcmp(other->topic, partition->topic) == 0);
    }
    if (!partition->told_form && !told) {
        HPS_LOG(WARN, "updates",
                "rows lost by compaction: a compacted topic has records that are not keyed; set "
                "cleanup.policy=delete or publish keyed ones",
                HPS_STR("model", stream->model), HPS_I64("version", stream->number),
                HPS_STR("topic", partition->topic), HPS_STR("form", hps_update_form_text(form)));
    }
    partition->told_form = true;
}

struct hps_update_bytes update_bytes(const struct hps_update_stream *stream,
                                     const struct hps_consumer_ops *ops,
                                     const struct hps_consumer_record *record)
{
    struct hps_update_bytes bytes = {.key = record->key,
                                     .key_size = record->key_size,
                                     .value = record->value,
                                     .value_size = record->value_size};
    if (ops->header(record, HPS_UPDATE_HEADER_VERSION, &bytes.version_header,
                    &bytes.version_header_size) &&
        bytes.version_header == NULL) {
        bytes.version_header = ""; /* there, and too short */
    }
    if (stream->version->row_versions) { /* that it is not there is seen */
        (void)ops->header(record, HPS_UPDATE_HEADER_ROW_VERSION, &bytes.row_version_header,
                          &bytes.row_version_header_size);
    }
    if (ops->header(record, HPS_UPDATE_HEADER_DTYPE, &bytes.dtype_header,
                    &bytes.dtype_header_size) &&
        bytes.dtype_header == NULL) {
        bytes.dtype_header = ""; /* of no type */
    }
    return bytes;
}

/* What has its rows in a shared tier alone is blocked: to move on there without a record is to
 * take it from the other daemons, too, of which not all may be frozen. */
#define FROZEN_REASON "frozen: the next record is for versions of another lineage"

/* False: no memory, the batch is to be read again. */
static bool take_record(struct hps_update_stream *stream, const struct hps_consumer_record *record)
{
    HPS_ASSERT(record->tag < stream->n_partitions);
    struct update_partition *partition = &stream->partitions[record->tag];
    struct hps_update_fate fate;
    struct hps_error err = {0};
    if (!update_reads(partition)) {
        return true;
    }
    if (partition->phase == UPDATE_CHECKS && !update_check_first(stream, partition, record)) {
        return true;
    }
    const struct hps_update_bytes bytes = update_bytes(stream, update_ops(stream), record);
    hps_status status = hps_update_decoder_add(stream->batch.decoder, &partition->route, &bytes,
                                               !stream->freeze.frozen, &fate, &err);
    if (status != HPS_OK) {
        partition->pending.dirty = true; /* so that it is read again from `applied` */
        snprintf(stream->batch.held_text, sizeof(stream->batch.held_text), "%.199s", err.text);
        return false;
    }
    if (stream->share.alone && is_passed_over(&fate)) {
        update_stop_partition(stream, partition, UPDATE_BLOCKED, FROZEN_REASON);
        return true;
    }
    if (fate.bad != NULL) {
        count_bad(stream, record, fate.bad, err.text);
    }
    count_for_none(stream, record, &fate);
    if (partition->listed.compaction == HPS_COMPACTION_YES && fate.form != 0 &&
        fate.form != HPS_UPDATE_KEYED) {
        note_form(stream, partition, fate.form);
    }
    if (fate.form == HPS_UPDATE_KEYED && fate.n_keys > 0) {
        hps_update_keys_note(stream->batch.keys, partition->route.table_id, record->key);
    }
    note_time(stream, record, &fate);
    advance(partition, record, &fate);
    stream->batch.n_records++;
    return true;
}

/* ---- events ---------------------------------------------------------------------------------- */

static void take_down(struct hps_update_stream *stream, const struct hps_consumer_event *event)
{
    HPS_LOG(WARN, "updates",
            "update source unreachable: look-ups get stale rows until it is reconnected; retried",
            HPS_STR("model", stream->model), HPS_I64("version", stream->number),
            HPS_STR("error", event->text));
    update_link_set(stream, UPDATE_LINK_DOWN);
    stream->link.outage_logged = true;
    update_forget_missing(stream);
    stream->topics.due_us = 0; /* is it the same cluster? */
    update_begin_anew(stream, NULL);
    snprintf(stream->link.text, sizeof(stream->link.text), "%.199s", event->text);
}

/* What the log has behind the last record, as markers of transactions, is behind us, too. */
static void take_caught_up(struct hps_update_stream *stream, struct update_partition *partition,
                           int64_t offset)
{
    if (offset > partition->high) { /* else it was on its way when its leader told a later end */
        partition->high = offset;
    }
    update_check_caught_up(stream, partition);
    if (update_reads(partition) && offset > partition->read.next) {
        partition->read.next = offset;
        partition->pending.dirty = true;
    }
}

/* Records that the log has and cannot give us. */
static void take_bad(struct hps_update_stream *stream, struct update_partition *partition,
                     const struct hps_consumer_event *event)
{
    static const char reason[] = "unreadable";
    int64_t from = event->offset > partition->read.next ? event->offset : partition->read.next;
    HPS_LOG(WARN, "updates",
            "records rejected: the log cannot deliver them, see error; they are skipped",
            HPS_STR("model", stream->model), HPS_I64("version", stream->number),
            HPS_STR("topic", partition->topic), HPS_I64("partition", partition->number),
            HPS_I64("offset", event->offset), HPS_I64("next_offset", event->high),
            HPS_STR("reason", reason), HPS_STR("error", event->text));
    int64_t n = event->high > from ? event->high - from : 0;
    int64_t shown = n > HPS_REJECTED_VIEWS_MAX ? event->high - HPS_REJECTED_VIEWS_MAX : from;
    for (int64_t offset = shown; offset < event->high; offset++) {
        update_show_rejected(stream, partition->topic, partition->number, offset, reason,
                             event->text);
    }
    if (n > 0) {
        update_count_rejected(stream, reason, (uint64_t)n);
    }
    if (event->high > partition->read.next) {
        partition->read.next = event->high;
        partition->pending.dirty = true;
    }
}

static void take_event(struct hps_update_stream *stream, const struct hps_consumer_event *event)
{
    struct update_partition *partition =
        event->tag < stream->n_partitions ? &stream->partitions[event->tag] : NULL;
    if (partition != NULL && !update_reads(partition)) {
        return;
    }
    switch (event->kind) {
    case HPS_CONSUMER_CAUGHT_UP:
        take_caught_up(stream, partition, event->offset);
        break;
    case HPS_CONSUMER_GAP:
        if (event->high >= 0 && event->offset > event->high) {
            update_gap_other(stream, partition, "offset %" PRId64 " does not exist: %s",
                             event->offset, event->text);
        } else {
            update_gap(stream, partition, "offset %" PRId64 " does not exist: %s", event->offset,
                       event->text);
        }
        break;
    case HPS_CONSUMER_GONE:
        update_begin_anew(stream, partition->topic); /* gone, or hidden: it is asked for by name */
        break;
    case HPS_CONSUMER_BAD:
        take_bad(stream, partition, event);
        break;
    case HPS_CONSUMER_FAILED:
        update_stop_partition(stream, partition, UPDATE_FAILED, event->text);
        break;
    case HPS_CONSUMER_DOWN:
        take_down(stream, event);
        break;
    case HPS_CONSUMER_UP:
        update_tell_reachable(stream);
        update_link_set(stream, UPDATE_LINK_UP);
        break;
    case HPS_CONSUMER_COMMITS:
        HPS_LOG(WARN, "updates",
                event->status == HPS_OK
                    ? "commits resumed: Kafka's tools see positions again"
                    : "commits failed: Kafka's tools see old positions, updates go on; see error",
                HPS_STR("model", stream->model), HPS_STR("error", event->text));
        break;
    }
}

void update_note_event_time(struct hps_update_stream *stream, int64_t event_time_ms)
{
    if (event_time_ms > stream->counts.event_time_ms && event_time_ms <= wall_ms()) {
        stream->counts.event_time_ms = event_time_ms;
    }
}

/* ---- a batch --------------------------------------------------------------------------------- */

/* No batch has more rows than what a second may have, so that none waits long behind another. */
static uint64_t batch_rows_max(const struct hps_update_stream *stream)
{
    uint64_t rows_max = stream->updater->options.rows_max;
    uint64_t rate = atomic_load(&stream->updater->rows_per_s_max);
    return rate > 0 && rate < rows_max ? rate : rows_max;
}

static bool batch_full(const struct hps_update_stream *stream)
{
    const struct hps_updater_options *options = &stream->updater->options;
    uint64_t rows_max = batch_rows_max(stream);
    return hps_update_decoder_keys(stream->batch.decoder) >= rows_max ||
           hps_update_decoder_bytes(stream->batch.decoder) >= options->bytes_max ||
           stream->batch.n_records >= rows_max;
}

/* How many records more the batch has room for, by how many rows those before had: one, where that
 * is not known. */
static uint32_t batch_room(const struct hps_update_stream *stream)
{
    uint64_t rows_max = batch_rows_max(stream);
    uint64_t n_rows = hps_update_decoder_keys(stream->batch.decoder);
    uint64_t n_records = stream->batch.n_records;
    if (n_records == 0 && stream->batch.rows_per_record == 0) {
        return 1;
    }
    uint64_t each = n_records > 0 ? n_rows / n_records : stream->batch.rows_per_record;
    uint64_t room = rows_max > n_rows ? (rows_max - n_rows) / (each > 0 ? each : 1) : 1;
    uint64_t left = rows_max > n_records ? rows_max - n_records : 1;
    room = room < left ? room : left;
    return (uint32_t)(room > 0 ? room : 1);
}

/* One poll into the batch at hand. False: nothing more for now. */
static bool gather_once(struct hps_update_stream *stream, uint32_t poll_ms)
{
    HPS_ASSERT(!stream->batch.held);
    const struct hps_updater_options *options = &stream->updater->options;
    struct hps_consumer_poll poll = {0};
    struct hps_error err = {0};
    bool taken = true;
    hps_status status = update_ops(stream)->poll(stream->consumer, poll_ms, batch_room(stream),
                                                 options->bytes_max, &poll, &err);
    if (status != HPS_OK) {
        HPS_LOG(ERROR, "updates",
                "update source failed: its consumer has a fatal error; a new consumer is opened",
                HPS_STR("model", stream->model), HPS_I64("version", stream->number),
                HPS_STR("error", err.text));
        stream->link.outage_logged = true;
        renew_consumer(stream);
        return false;
    }
    for (uint32_t i = 0; i < poll.n_records && taken; i++) {
        taken = take_record(stream, &poll.records[i]);
    }
    for (uint32_t i = 0; i < poll.n_records; i++) {
        struct update_partition *partition = &stream->partitions[poll.records[i].tag];
        if (partition->unhashed == &poll.records[i]) {
            hash_last(partition);
        }
    }
    if (!taken) {
        for (uint32_t i = 0; i < poll.n_records; i++) {
            stream->partitions[poll.records[i].tag].pending.dirty = true;
        }
    }
    for (uint32_t i = 0; i < poll.n_events; i++) {
        take_event(stream, &poll.events[i]);
    }
    if (!taken) {
        HPS_LOG(WARN, "updates", "updates stalled: no memory for a record; retried",
                HPS_STR("model", stream->model), HPS_I64("version", stream->number),
                HPS_STR("error", stream->batch.held_text));
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

static void take_call(struct hps_update_stream *stream)
{
    hps_lock_acquire(&stream->lock);
    struct update_call *call = stream->call;
    hps_lock_release(&stream->lock);
    if (call == NULL) {
        return;
    }
    update_run_command(stream, call);
    update_stream_show(stream);
    hps_lock_acquire(&stream->lock);
    stream->call = NULL;
    call->done = true;
    hps_cond_broadcast(&stream->changed);
    hps_lock_release(&stream->lock);
}

static void take_freeze(struct hps_update_stream *stream)
{
    uint64_t by = atomic_load(&stream->freeze.asked_by);
    if (by <= stream->freeze.by) {
        return;
    }
    stream->freeze.by = by;
    stream->freeze.unstored = true;
    if (!stream->freeze.frozen) {
        stream->freeze.frozen = true;
        HPS_LOG(WARN, "updates",
                "updates frozen: a version of another lineage is active; records that name no "
                "version are passed over until `hpsctl updates seek`",
                HPS_STR("model", stream->model), HPS_I64("version", stream->number));
    }
}

/* Until then, or something is asked of the thread, at most poll_ms. */
static void wait_for(struct hps_update_stream *stream, uint64_t due_us, uint64_t now_us,
                     uint32_t poll_ms)
{
    uint64_t rest_ms = (due_us - now_us + 999) / 1000;
    wait_ms(stream, rest_ms < poll_ms ? rest_ms : poll_ms);
}

void update_stream_turn(struct hps_update_stream *stream, uint32_t poll_ms)
{
    uint64_t now_us = hps_clock_us();
    HPS_ASSERT(stream->version != NULL && stream->batch.decoder != NULL);
    if (now_us < stream->pace.retry_due_us) {
        wait_for(stream, stream->pace.retry_due_us, now_us, poll_ms);
        now_us = hps_clock_us();
    }
    bool due = now_us >= stream->pace.retry_due_us;
    if (stream->consumer == NULL && due && !open_consumer(stream)) {
        stream->pace.retry_due_us = now_us + (uint64_t)BACKOFF_MS_MAX * 1000;
        due = false;
    }
    take_freeze(stream); /* before a seek that came after it */
    take_call(stream);
    if (update_refresh_turn(stream) && poll_ms > REFRESH_POLL_MS) {
        poll_ms = REFRESH_POLL_MS;
    }
    if (due && stream->batch.held) {
        update_apply_or_hold(stream);
    }
    if (due && !stream->batch.held && stream->consumer != NULL) {
        if (now_us >= stream->topics.due_us && !update_is_down(stream)) {
            update_list_topics(stream);
        }
        update_begin(stream);
        update_apply_or_hold(stream); /* where they begin */
    }
    if (due && !stream->batch.held && stream->consumer != NULL) {
        uint64_t rate_us = update_rate_due_us(stream);
        if (rate_us > now_us) {
            wait_for(stream, rate_us, now_us, poll_ms);
        } else {
            gather(stream, stream->share.consumer == NULL ? poll_ms : 0);
        }
    }
    if (stream->consumer != NULL) {
        update_hear(stream);
        update_prove(stream);
    }
    if (due && !stream->batch.held && stream->consumer != NULL) {
        update_apply_or_hold(stream);
    }
    update_share_turn(stream, poll_ms);
    if (stream->consumer != NULL) {
        update_commit_due(stream);
    }
    update_stream_sane(stream);
    update_stream_show(stream);
}

/* ---- life ------------------------------------------------------------------------------------ */

static struct hps_metric *metric(const struct hps_update_stream *stream, enum hps_metric_id id)
{
    return hps_server_metric(stream->updater->options.metrics, id, stream->model, NULL, NULL, NULL);
}

hps_status update_stream_open(struct hps_update_stream *stream, struct hps_error *err)
{
    struct hps_updater *updater = stream->updater;
    const struct hps_update_decoder_options options = {.version = stream->version,
                                                       .key_bytes = updater->options.key_bytes,
                                                       .nan_allowed = &updater->nan_allowed};
    hps_buf_init(&stream->batch.times, SIZE_MAX / 2);
    stream->metrics =
        (struct update_metrics){.records = metric(stream, HPS_M_UPDATE_RECORDS),
                                .batches = metric(stream, HPS_M_UPDATE_BATCHES),
                                .freshness = metric(stream, HPS_M_UPDATE_FRESHNESS),
                                .append_freshness = metric(stream, HPS_M_UPDATE_APPEND_FRESHNESS),
                                .clock_ahead = metric(stream, HPS_M_UPDATE_CLOCK_AHEAD),
                                .compacted = metric(stream, HPS_M_UPDATE_COMPACTED),
                                .throttled = metric(stream, HPS_M_UPDATE_THROTTLED),
                                .letters_lost = metric(stream, HPS_M_UPDATE_LETTERS_LOST)};
    stream->share.space = hps_update_shared(stream->version);
    stream->share.alone = hps_update_shared_alone(stream->version);
    if (stream->share.space != NULL) {
        update_share_set(stream, UPDATE_SHARE_LEVEL);
        stream->metrics.gaps = metric(stream, HPS_M_UPDATE_SHARED_GAPS);
        stream->metrics.failed = metric(stream, HPS_M_UPDATE_SHARED_FAILED);
        stream->metrics.replayed = metric(stream, HPS_M_UPDATE_SHARED_REPLAYED);
        stream->metrics.resets = metric(stream, HPS_M_UPDATE_SHARED_RESETS);
    }
    stream->batch.decoder = hps_update_decoder_new(&options);
    stream->batch.keys =
        hps_update_keys_new(stream->version, metric(stream, HPS_M_UPDATE_MISENCODED_KEYS));
    if (stream->batch.decoder == NULL || stream->batch.keys == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for the updates of a version");
    }
    hps_status status = update_read_positions(stream, err);
    if (update_is_apart(stream)) {
        update_share_set(stream, UPDATE_SHARE_APART);
    }
    return status;
}

void update_stream_close(struct hps_update_stream *stream)
{
    update_share_close(stream);
    if (stream->consumer != NULL) {
        close_consumer(stream);
    }
    hps_update_decoder_free(stream->batch.decoder);
    stream->batch.decoder = NULL;
    hps_update_keys_free(stream->batch.keys);
    stream->batch.keys = NULL;
    hps_buf_fini(&stream->batch.times);
    hps_lock_acquire(&stream->lock);
    stream->view.n_partitions = 0;
    hps_free(stream->shown.partitions);
    stream->shown.partitions = NULL;
    stream->shown.capacity = 0;
    hps_lock_release(&stream->lock);
    hps_free(stream->partitions);
    stream->partitions = NULL;
    stream->n_partitions = 0;
    hps_version_unpin(stream->version);
    stream->version = NULL;
}

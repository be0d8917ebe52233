/* SPDX-License-Identifier: Apache-2.0
 *
 * Applies the current batch together with its positions. If this fails, the batch is held and
 * retried, or dropped, and its records are read again. Applied positions are committed to the log
 * later, for its tools. Thread `update`.
 */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "server/observe/metrics.h"
#include "server/update/sink/sink.h"

enum {
    SET_BACK_MS = 1000, /* a step of the wall clock that matters */
    COMMIT_MS_MIN = 1000
};

/* ---- the rate limit -------------------------------------------------------------------------- */

uint64_t update_rate_due_us(const struct hps_update_stream *stream)
{
    uint64_t rate = atomic_load(&stream->common->rows_per_s_max);
    return rate == 0 ? 0 : stream->pace->charged_us + stream->pace->n_rows * 1000000 / rate;
}

/* Count rows that were applied against the rate limit. */
static void charge(struct hps_update_stream *stream, uint64_t n_rows)
{
    struct update_pace *pace = stream->pace;
    uint64_t now_us = hps_clock_us();
    if (now_us >= update_rate_due_us(stream)) {
        pace->charged_us = now_us;
        pace->n_rows = 0;
    }
    pace->n_rows += n_rows;
    if (n_rows > 0 && now_us < update_rate_due_us(stream)) {
        hps_metric_add(stream->metrics->throttled, 1);
    }
}

void update_retry_later(struct hps_update_stream *stream)
{
    stream->pace->retry_due_us = update_backoff_until(stream);
}

void update_note_event_time(struct hps_update_stream *stream, int64_t event_time_ms)
{
    if (event_time_ms > stream->counts->event_time_ms &&
        event_time_ms <= (int64_t)hps_clock_wall_ms()) {
        stream->counts->event_time_ms = event_time_ms;
    }
}

/* ---- records that were rejected -------------------------------------------------------------- */

void update_count_rejected(struct hps_update_stream *stream, const char *reason, uint64_t n)
{
    struct update_batch *batch = stream->batch;
    uint32_t i = 0;
    HPS_ASSERT(n > 0);
    while (i < batch->n_reasons && strcmp(batch->rejected[i].reason, reason) != 0) {
        i++;
    }
    if (i == batch->n_reasons) {
        HPS_ASSERT(i < UPDATE_REASONS_MAX);
        batch->rejected[batch->n_reasons++] = (struct update_rejected){.reason = reason};
    }
    batch->rejected[i].n += n;
}

/* How long the batch may still wait for the dead-letter topic: UPDATE_LOG_TIMEOUT_MS for all its
 * letters, and not at all while the topic fails. */
static uint32_t letters_wait_ms(const struct update_dead_letters *letters)
{
    uint64_t waited_ms = letters->waited_us / 1000;
    bool waits = !letters->failing && waited_ms < UPDATE_LOG_TIMEOUT_MS;
    return waits ? UPDATE_LOG_TIMEOUT_MS - (uint32_t)waited_ms : 0;
}

static void letters_failed(struct hps_update_stream *stream, hps_status status, const char *text,
                           uint64_t n_lost)
{
    struct update_dead_letters *letters = &stream->batch->dead_letters;
    hps_metric_add(stream->metrics->letters_lost, n_lost);
    if (status == HPS_INVALID) { /* the topic accepts other letters */
        UPDATE_LOG(stream, WARN,
                   "dead letter lost: it is too large, see error; raise max.message.bytes of the "
                   "dead-letter topic and message.max.bytes in update_source.properties",
                   HPS_STR("topic", stream->source->dead_letter_topic), HPS_STR("error", text));
        return;
    }
    if (!letters->failing) {
        UPDATE_LOG(
            stream, WARN,
            "dead letters late or lost: the dead-letter topic does not take them, see error; "
            "updates do not wait for it any more; check that the topic exists, and the "
            "permission Write",
            HPS_STR("topic", stream->source->dead_letter_topic), HPS_STR("error", text),
            HPS_STR("status", hps_status_text(status)));
    }
    letters->failing = true;
}

void update_send_dead_letter(struct hps_update_stream *stream,
                             const struct hps_consumer_record *record, const char *reason)
{
    struct update_dead_letters *letters = &stream->batch->dead_letters;
    const char *topic = stream->source->dead_letter_topic;
    struct hps_error err = {0};
    if (topic[0] == '\0') {
        return;
    }
    uint64_t from_us = hps_clock_us();
    hps_status status = update_ops(stream)->dead_letter(stream->consumer, topic, record, reason,
                                                        letters_wait_ms(letters), &err);
    letters->waited_us += hps_clock_us() - from_us;
    letters->sent = true;
    if (status != HPS_OK) {
        letters_failed(stream, status, err.text, 1);
    }
}

/* Waits until the log has the dead letters of the batch, since its positions are stored next. Does
 * not wait for a topic that fails, since this would delay good records. */
static void flush_dead_letters(struct hps_update_stream *stream)
{
    struct update_dead_letters *letters = &stream->batch->dead_letters;
    struct hps_dead_letters flushed = {.status = HPS_OK};
    if (stream->consumer == NULL || (!letters->sent && !letters->failing)) {
        return;
    }
    update_ops(stream)->dead_letter_flush(stream->consumer, letters_wait_ms(letters), &flushed);
    letters->sent = false;
    letters->waited_us = 0;
    if (flushed.n_lost > 0 || (flushed.status != HPS_OK && !letters->failing)) {
        letters_failed(stream, flushed.status, flushed.text, flushed.n_lost);
    } else if (letters->failing && flushed.n_acknowledged > 0 && !flushed.late) {
        letters->failing = false;
        UPDATE_LOG(stream, INFO, "dead letters resumed: the dead-letter topic takes them again");
    }
}

/* ---- apply ----------------------------------------------------------------------------------- */

uint32_t update_n_unstored(const struct hps_update_stream *stream)
{
    uint32_t n = stream->freeze.unstored ? 1 : 0;
    UPDATE_EACH (stream, partition) {
        n += update_unstored(partition) || partition->other_due ? 1 : 0;
    }
    return n;
}

void update_stream_abandon(struct hps_update_stream *stream, bool keeps_gaps)
{
    struct update_batch *batch = stream->batch;
    const struct update_event event = {.kind = UPDATE_ON_ABANDONED, .keeps_gap = keeps_gaps};
    HPS_ASSERT(!batch->held || !hps_update_half_applied(stream->version));
    hps_update_decoder_clear(batch->decoder);
    hps_buf_clear(&batch->times);
    batch->n_records = 0;
    batch->n_reasons = 0;
    batch->dead_letters.sent = false;
    batch->held = false;
    UPDATE_EACH (stream, partition) {
        if (partition->pending.dirty) {
            partition->pending = (struct update_pending){0};
            (void)update_step(stream, partition, &event, NULL);
        }
    }
}

/* The latest as-of that may be stored. After a restart, a partition without a stored position is
 * not known, and the version would claim an as-of without it. */
static int64_t storable_ms(const struct hps_update_stream *stream)
{
    bool all = true;
    UPDATE_EACH (stream, partition) {
        all =
            all && (update_is_published(partition) || partition->pending.dirty || partition->other);
    }
    return all ? stream->topics->listed_ms : 0;
}

/* Makes the records to store: positions, partitions that only other versions read, and whether the
 * version is frozen. memory, out_records: [update_n_unstored]. Returns their number. */
static uint32_t make_positions(struct hps_update_stream *stream, struct hps_position_memory *memory,
                               struct hps_record *out_records)
{
    uint32_t n = 0;
    int64_t most_ms = storable_ms(stream);
    UPDATE_EACH (stream, partition) {
        const char *topic = partition->topic;
        if (update_unstored(partition)) {
            partition->read->paused = partition->paused;
            struct hps_position position = *partition->read;
            int64_t as_of_ms = position.as_of_ms < most_ms ? position.as_of_ms : most_ms;
            /* Its own deletes are applied up to its own as-of. */
            int64_t base_ms =
                position.base_ms > position.as_of_ms ? position.base_ms : position.as_of_ms;
            position.as_of_ms = hps_clock_wall_of(as_of_ms);
            position.base_ms = hps_clock_wall_of(base_ms);
            out_records[n] = hps_position_record(topic, partition->number, &position, &memory[n]);
            n++;
        } else if (partition->other_due) {
            out_records[n] = hps_position_record(topic, partition->number, NULL, &memory[n]);
            n++;
        }
    }
    if (stream->freeze.unstored) {
        out_records[n] = hps_position_frozen_record(stream->frozen, stream->freeze.by, &memory[n]);
        n++;
    }
    return n;
}

/* Measure how old the updates of the batch are. */
static void observe(struct hps_update_stream *stream)
{
    const int64_t *times = (const int64_t *)(const void *)stream->batch->times.data;
    size_t n = stream->batch->times.size / sizeof(*times);
    int64_t now_ms = (int64_t)hps_clock_wall_ms();
    for (size_t i = 0; i < n; i++) {
        int64_t age_ms = now_ms > times[i] ? now_ms - times[i] : 0;
        hps_metric_observe_us(stream->metrics->freshness, (uint64_t)age_ms * 1000);
    }
}

/* Where the skipped records end is not stored. After a restart, the stored position counts as their
 * end. */
static void note_skipped(struct update_partition *partition)
{
    if (partition->read->skipped == HPS_POSITION_WHOLE) {
        partition->skipped_end = 0;
    } else if (partition->pending.moved || partition->pending.skipped ||
               !update_is_published(partition)) {
        partition->skipped_end = partition->read->next;
    }
    partition->pending.skipped = false;
}

/* The batch is applied: the position that was read is published, and not pending any more. */
static void publish_partition(struct hps_update_stream *stream, struct update_partition *partition)
{
    stream->share->positions_due = stream->share->positions_due || partition->pending.moved;
    note_skipped(partition);
    partition->pending.dirty = false;
    partition->pending.moved = false;
    partition->basis = UPDATE_PUBLISHED;
    *partition->applied = *partition->read;
    partition->proof->as_of_ms = partition->read->as_of_ms;
    update_note_event_time(stream, partition->applied->event_time_ms);
    HPS_ASSERT(!update_unstored(partition));
}

static void publish(struct hps_update_stream *stream, uint64_t n_keys)
{
    struct update_batch *batch = stream->batch;
    observe(stream);
    UPDATE_EACH (stream, partition) {
        if (update_unstored(partition)) {
            publish_partition(stream, partition);
        }
        partition->other_due = false;
    }
    update_share_note_bypass(stream);
    stream->freeze.unstored = false;
    stream->counts->n_records += batch->n_records;
    for (uint32_t i = 0; i < batch->n_reasons; i++) {
        const struct update_rejected *of = &batch->rejected[i];
        stream->counts->n_rejected += of->n;
        hps_metric_add(hps_server_metric(stream->common->options.metrics,
                                         HPS_M_UPDATE_RECORDS_REJECTED, stream->model, of->reason,
                                         NULL, NULL),
                       of->n);
    }
    stream->counts->n_keys += n_keys;
    if (batch->n_records > 0) {
        batch->rows_per_record = n_keys / batch->n_records;
    }
    hps_metric_add(stream->metrics->records, batch->n_records);
    hps_metric_add(stream->metrics->batches, 1);
    batch->n_records = 0;
    batch->n_reasons = 0;
    hps_update_decoder_clear(batch->decoder);
    hps_buf_clear(&batch->times);
}

hps_status update_make_batch(struct hps_update_stream *stream, struct hps_update_decoder *decoder,
                             update_spans_fn make_spans, struct hps_update_batch *out_batch,
                             struct hps_error *err)
{
    uint32_t n_parts;
    const struct hps_update_part *parts = hps_update_decoder_parts(decoder, &n_parts);
    struct hps_log_span *spans =
        hps_arena_calloc(stream->scratch, stream->n_partitions, sizeof(*spans));
    uint32_t *part_spans = hps_arena_calloc(stream->scratch, n_parts, sizeof(*part_spans));
    if (spans == NULL || part_spans == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for a batch of updates");
    }
    /* The decoder has rejected rows with NaN, if they are not allowed. */
    *out_batch = (struct hps_update_batch){.parts = parts,
                                           .n_parts = n_parts,
                                           .spans = spans,
                                           .n_spans = make_spans(stream, spans),
                                           .part_spans = part_spans,
                                           .nan_allowed = true};
    for (uint32_t i = 0; i < n_parts; i++) {
        part_spans[i] = stream->partitions[parts[i].source].pending.span;
    }
    return HPS_OK;
}

hps_status update_stream_apply(struct hps_update_stream *stream, struct hps_error *err)
{
    struct hps_update_batch batch;
    uint32_t n = update_n_unstored(stream);
    struct hps_position_memory *memory = hps_arena_calloc(stream->scratch, n, sizeof(*memory));
    struct hps_record *records = hps_arena_calloc(stream->scratch, n, sizeof(*records));
    hps_status status =
        update_make_batch(stream, stream->batch->decoder, update_spans, &batch, err);
    if (status != HPS_OK || memory == NULL || records == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for a batch of updates");
    }
    batch.positions = records;
    batch.n_positions = make_positions(stream, memory, records);
    batch.apart = update_bypasses_shared(stream);
    HPS_ASSERT(batch.n_positions == n);
    hps_update_keys_check(stream->batch->keys);
    status = hps_update_apply(stream->version, &batch, err);
    if (status == HPS_OK) {
        charge(stream, hps_update_decoder_keys(stream->batch->decoder));
        publish(stream, hps_update_decoder_keys(stream->batch->decoder));
    }
    return status;
}

void update_hold(struct hps_update_stream *stream, hps_status status, const struct hps_error *err)
{
    const char *why = err->text[0] != '\0' ? err->text : hps_status_text(status);
    if (!stream->batch->held) {
        UPDATE_LOG(
            stream, WARN,
            "updates stalled: a batch cannot be applied; it is retried and the lag grows until "
            "the cause in error is fixed",
            HPS_STR("error", why));
    }
    stream->batch->held = true;
    snprintf(stream->batch->held_text, sizeof(stream->batch->held_text), "%.199s", why);
    update_retry_later(stream);
}

/* Times are stored by the wall clock. If the clock was set back, the stored times would be in the
 * future after a restart, so they are stored again. */
static void note_set_back(struct hps_update_stream *stream)
{
    int64_t now_ms = hps_clock_forward_ms();
    int64_t ahead_ms = now_ms - hps_clock_wall_of(now_ms);
    bool back = ahead_ms > stream->pace->ahead_ms + SET_BACK_MS;
    UPDATE_EACH (stream, partition) {
        partition->pending.dirty =
            partition->pending.dirty || (back && update_is_published(partition));
    }
    stream->pace->ahead_ms = ahead_ms;
}

void update_apply_or_hold(struct hps_update_stream *stream)
{
    struct hps_error err = {0};
    hps_status status = HPS_OK;
    flush_dead_letters(stream);
    if (!stream->batch->held) {
        note_set_back(stream);
    }
    if (update_n_unstored(stream) > 0) { /* none: a pause was held, and then resumed */
        status = update_stream_apply(stream, &err);
    }
    if (status != HPS_OK) {
        update_hold(stream, status, &err);
    } else if (stream->batch->held) {
        UPDATE_LOG(stream, INFO, "updates resumed: the batch that stalled is applied");
        stream->batch->held = false;
    }
}

/* ---- commits --------------------------------------------------------------------------------- */

void update_commit_due(struct hps_update_stream *stream)
{
    uint64_t sync_ms = stream->common->options.config->persistent_db.wal_sync_ms;
    uint64_t now_us = hps_clock_us();
    uint32_t n = 0;
    if (now_us < stream->pace->commit_due_us) {
        return;
    }
    stream->pace->commit_due_us = now_us + 1000 * (2 * sync_ms + COMMIT_MS_MIN);
    struct hps_consumer_position *positions =
        hps_arena_calloc(stream->scratch, stream->n_partitions, sizeof(*positions));
    if (positions == NULL) {
        return;
    }
    UPDATE_EACH (stream, partition) {
        if (partition->to_commit > partition->committed) {
            positions[n++] = (struct hps_consumer_position){partition->topic, partition->number,
                                                            partition->to_commit};
            partition->committed = partition->to_commit;
        }
        partition->to_commit = update_is_published(partition) ? partition->applied->next : -1;
    }
    if (n > 0) {
        update_ops(stream)->commit(stream->consumer, positions, n);
    }
}

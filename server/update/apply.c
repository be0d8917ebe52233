/* SPDX-License-Identifier: Apache-2.0
 *
 * What becomes of the batch at hand: it is applied with its positions, or held and retried, or
 * forgotten and read again; what was applied is committed to the log later, for its tools. On the
 * stream's thread `update`.
 */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/log.h"
#include "server/observe/metrics.h"
#include "server/update/internal.h"

enum { SET_BACK_MS = 1000 }; /* a step of the wall clock that matters */

/* ---- the rate limit -------------------------------------------------------------------------- */

/* When the rows that were applied have had their share of time, by the limit that holds now. */
uint64_t update_rate_due_us(const struct hps_update_stream *stream)
{
    uint64_t rate = atomic_load(&stream->updater->rows_per_s_max);
    return rate == 0 ? 0 : stream->pace.charged_us + stream->pace.n_rows * 1000000 / rate;
}

/* Count rows that were applied against the rate limit. */
static void charge(struct hps_update_stream *stream, uint64_t n_rows)
{
    struct update_pace *pace = &stream->pace;
    uint64_t now_us = hps_clock_us();
    if (now_us >= update_rate_due_us(stream)) {
        pace->charged_us = now_us;
        pace->n_rows = 0;
    }
    pace->n_rows += n_rows;
    if (n_rows > 0 && now_us < update_rate_due_us(stream)) {
        hps_metric_add(stream->metrics.throttled, 1);
    }
}

/* ---- records that were rejected -------------------------------------------------------------- */

void update_count_rejected(struct hps_update_stream *stream, const char *reason, uint64_t n)
{
    struct update_at_hand *batch = &stream->batch;
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

/* How long the batch may still wait for the topic: 3 s in all, and 0 while the topic fails. */
static uint32_t letters_wait_ms(const struct update_dead_letters *letters)
{
    uint64_t waited_ms = letters->waited_us / 1000;
    bool waits = !letters->failing && waited_ms < UPDATE_LOG_TIMEOUT_MS;
    return waits ? UPDATE_LOG_TIMEOUT_MS - (uint32_t)waited_ms : 0;
}

static void letters_failed(struct hps_update_stream *stream, hps_status status, const char *text,
                           uint64_t n_lost)
{
    struct update_dead_letters *letters = &stream->batch.dead_letters;
    hps_metric_add(stream->metrics.letters_lost, n_lost);
    if (status == HPS_INVALID) { /* the topic takes others */
        HPS_LOG(WARN, "updates",
                "dead letter lost: it is too large, see error; raise max.message.bytes of the "
                "dead-letter topic and message.max.bytes in update_source.properties",
                HPS_STR("model", stream->model), HPS_I64("version", stream->number),
                HPS_STR("topic", stream->updater->options.dead_letter_topic),
                HPS_STR("error", text));
        return;
    }
    if (!letters->failing) {
        HPS_LOG(WARN, "updates",
                "dead letters late or lost: the dead-letter topic does not take them, see error; "
                "updates go on without waiting for it; check that the topic exists, and the right "
                "to Write",
                HPS_STR("model", stream->model), HPS_I64("version", stream->number),
                HPS_STR("topic", stream->updater->options.dead_letter_topic),
                HPS_STR("error", text), HPS_STR("status", hps_status_text(status)));
    }
    letters->failing = true;
}

void update_send_dead_letter(struct hps_update_stream *stream,
                             const struct hps_consumer_record *record, const char *reason)
{
    struct update_dead_letters *letters = &stream->batch.dead_letters;
    const char *topic = stream->updater->options.dead_letter_topic;
    struct hps_error err = {0};
    if (topic == NULL) {
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

/* The log has the dead letters of a batch before its positions are stored. A topic that fails is
 * not waited for, since good records would be late. */
static void flush_dead_letters(struct hps_update_stream *stream)
{
    struct update_dead_letters *letters = &stream->batch.dead_letters;
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
        HPS_LOG(INFO, "updates", "dead letters resumed: the dead-letter topic takes them again",
                HPS_STR("model", stream->model), HPS_I64("version", stream->number));
    }
}

/* ---- apply ----------------------------------------------------------------------------------- */

/* Read it again from what is published. A gap was perhaps found after records of the batch, and is
 * no gap now: unless keeps_gap, the partition looks again. */
static void abandon_partition(struct hps_update_stream *stream, struct update_partition *partition,
                              bool keeps_gap)
{
    struct update_proof *proof = &partition->proof;
    int64_t next = partition->applied.next;
    bool stays = keeps_gap && update_has_gap(partition);
    /* If the gap took back as-of, that must still be stored. */
    partition->pending =
        (struct update_pending){.dirty = stays && partition->basis != UPDATE_NOWHERE};
    partition->read = partition->applied;
    partition->read.as_of_ms = proof->as_of_ms;
    proof->seen_ms = proof->as_of_ms;
    proof->seen_next = proof->seen_next < next ? proof->seen_next : next;
    if (update_reads(partition) || (update_has_gap(partition) && !stays)) {
        update_stop_partition(stream, partition, UPDATE_STARTS, "");
    }
}

void update_stream_abandon(struct hps_update_stream *stream, bool keeps_gaps)
{
    struct update_at_hand *batch = &stream->batch;
    HPS_ASSERT(!batch->held || !hps_update_half_applied(stream->version));
    hps_update_decoder_clear(batch->decoder);
    hps_buf_clear(&batch->times);
    batch->n_records = 0;
    batch->n_reasons = 0;
    batch->dead_letters.sent = false;
    batch->held = false;
    for (uint32_t i = 0; i < stream->n_partitions; i++) {
        if (stream->partitions[i].pending.dirty) {
            abandon_partition(stream, &stream->partitions[i], keeps_gaps);
        }
    }
    stream->topics.begin_due_us = 0;
}

struct stored_position { /* or the record of what is frozen */
    char key[HPS_POSITION_KEY_BYTES_MAX];
    uint8_t value[HPS_POSITION_VALUE_BYTES_MAX];
};

/* stored, out_records: [update_n_unstored] */
static uint32_t make_positions(struct hps_update_stream *stream, struct stored_position *stored,
                               struct hps_record *out_records)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < stream->n_partitions; i++) {
        struct update_partition *partition = &stream->partitions[i];
        if (update_unstored(partition)) {
            struct stored_position *to = &stored[n];
            partition->read.paused = partition->paused;
            struct hps_position position = partition->read;
            position.as_of_ms = hps_clock_wall_of(position.as_of_ms);
            position.base_ms = hps_clock_wall_of(position.base_ms);
            size_t key_size = hps_position_key(partition->topic, partition->number, to->key);
            size_t value_size = hps_position_encode(&position, to->value);
            out_records[n++] = (struct hps_record){to->key, key_size, to->value, value_size};
        }
    }
    if (stream->freeze.unstored) {
        hps_position_frozen_encode(stream->freeze.frozen, stream->freeze.by, stored[n].value);
        out_records[n] = (struct hps_record){HPS_POSITION_FROZEN, strlen(HPS_POSITION_FROZEN),
                                             stored[n].value, HPS_POSITION_FROZEN_BYTES};
        n++;
    }
    return n;
}

static void observe(struct hps_update_stream *stream)
{
    const struct update_time *times = (const struct update_time *)(void *)stream->batch.times.data;
    const struct update_metrics *metrics = &stream->metrics;
    size_t n = stream->batch.times.size / sizeof(*times);
    int64_t now_ms = (int64_t)hps_clock_wall_ms();
    for (size_t i = 0; i < n; i++) {
        bool ahead = times[i].ms > now_ms;
        uint64_t us = ahead ? 0 : (uint64_t)(now_ms - times[i].ms) * 1000;
        hps_metric_observe_us(times[i].appended ? metrics->append_freshness : metrics->freshness,
                              us);
        if (ahead) {
            hps_metric_add(metrics->clock_ahead, 1);
        }
    }
}

/* How far records were passed over is not stored: after a restart, up to where it begins. */
static void note_skipped(struct update_partition *partition)
{
    if (partition->read.skipped == HPS_POSITION_WHOLE) {
        partition->skipped_end = 0;
    } else if (partition->pending.moved || partition->pending.passed_over ||
               !update_is_published(partition)) {
        partition->skipped_end = partition->read.next;
    }
    partition->pending.passed_over = false;
}

/* The position is published: what the batch had of the partition is no longer pending. */
static void publish_partition(struct hps_update_stream *stream, struct update_partition *partition)
{
    HPS_ASSERT(partition->unhashed == NULL);
    stream->share.place_due = stream->share.place_due || partition->pending.moved;
    note_skipped(partition);
    partition->pending.dirty = false;
    partition->pending.moved = false;
    partition->basis = UPDATE_PUBLISHED;
    partition->applied = partition->read;
    partition->proof.as_of_ms = partition->read.as_of_ms;
    update_note_event_time(stream, partition->applied.event_time_ms);
    HPS_ASSERT(!update_unstored(partition));
}

static void applied(struct hps_update_stream *stream, uint64_t n_keys)
{
    struct update_at_hand *batch = &stream->batch;
    observe(stream);
    for (uint32_t i = 0; i < stream->n_partitions; i++) {
        if (update_unstored(&stream->partitions[i])) {
            publish_partition(stream, &stream->partitions[i]);
        }
    }
    update_share_note_apart(stream);
    stream->freeze.unstored = false;
    stream->counts.n_records += batch->n_records;
    for (uint32_t i = 0; i < batch->n_reasons; i++) {
        const struct update_rejected *of = &batch->rejected[i];
        stream->counts.n_rejected += of->n;
        hps_metric_add(hps_server_metric(stream->updater->options.metrics,
                                         HPS_M_UPDATE_RECORDS_REJECTED, stream->model, of->reason,
                                         NULL, NULL),
                       of->n);
    }
    stream->counts.n_keys += n_keys;
    if (batch->n_records > 0) {
        batch->rows_per_record = n_keys / batch->n_records;
    }
    hps_metric_add(stream->metrics.records, batch->n_records);
    hps_metric_add(stream->metrics.batches, 1);
    batch->n_records = 0;
    batch->n_reasons = 0;
    hps_update_decoder_clear(batch->decoder);
    hps_buf_clear(&batch->times);
}

hps_status update_stream_apply(struct hps_update_stream *stream, struct hps_error *err)
{
    const struct hps_update_part *parts = NULL;
    uint32_t n_parts = 0;
    uint32_t n = update_n_unstored(stream);
    struct stored_position *stored = hps_calloc(n, sizeof(*stored));
    struct hps_record *records = hps_calloc(n, sizeof(*records));
    struct hps_log_span *spans = hps_calloc(n, sizeof(*spans));
    uint32_t *part_spans = NULL;
    hps_status status = HPS_NO_MEMORY;
    if (stored != NULL && records != NULL && spans != NULL) {
        status = hps_update_decoder_parts(stream->batch.decoder, &parts, &n_parts);
    }
    if (status == HPS_OK) {
        part_spans = hps_calloc(n_parts, sizeof(*part_spans));
        status = part_spans != NULL ? HPS_OK : HPS_NO_MEMORY;
    }
    if (status != HPS_OK) {
        status = hps_error_set(err, status, "no memory for a batch of updates");
        goto out;
    }
    const struct hps_update_batch batch = {
        .parts = parts,
        .n_parts = n_parts,
        .positions = records,
        .n_positions = make_positions(stream, stored, records),
        .spans = spans,
        .n_spans = update_spans(stream, parts, n_parts, spans, part_spans),
        .part_spans = part_spans,
        .apart = update_is_apart(stream),
        .nan_allowed = true}; /* what may not be applied was not decoded */
    HPS_ASSERT(batch.n_positions == n && batch.n_spans <= n);
    hps_update_keys_check(stream->batch.keys);
    status = hps_update_apply(stream->version, &batch, err);
    if (status == HPS_OK) {
        charge(stream, hps_update_decoder_keys(stream->batch.decoder));
        applied(stream, hps_update_decoder_keys(stream->batch.decoder));
    }
out:
    hps_free(stored);
    hps_free(records);
    hps_free(spans);
    hps_free(part_spans);
    return status;
}

void update_hold(struct hps_update_stream *stream, hps_status status, const struct hps_error *err)
{
    const char *why = err->text[0] != '\0' ? err->text : hps_status_text(status);
    if (!stream->batch.held) {
        HPS_LOG(WARN, "updates",
                "updates stalled: a batch cannot be applied; it is retried and the lag grows until "
                "the cause in error is fixed",
                HPS_STR("model", stream->model), HPS_I64("version", stream->number),
                HPS_STR("error", why));
    }
    stream->batch.held = true;
    snprintf(stream->batch.held_text, sizeof(stream->batch.held_text), "%.199s", why);
    update_retry_later(stream);
}

static void release(struct hps_update_stream *stream)
{
    if (stream->batch.held) {
        HPS_LOG(INFO, "updates", "updates resumed: the batch that stalled is applied",
                HPS_STR("model", stream->model), HPS_I64("version", stream->number));
    }
    stream->batch.held = false;
}

/* Times are stored by the wall clock. If it was set back, the stored times would be too young after
 * a restart: store them again. */
static void note_set_back(struct hps_update_stream *stream)
{
    int64_t now_ms = hps_clock_forward_ms();
    int64_t ahead_ms = now_ms - hps_clock_wall_of(now_ms);
    bool back = ahead_ms > stream->ahead_ms + SET_BACK_MS;
    for (uint32_t i = 0; i < stream->n_partitions && back; i++) {
        struct update_partition *partition = &stream->partitions[i];
        partition->pending.dirty = partition->pending.dirty || update_is_published(partition);
    }
    stream->ahead_ms = ahead_ms;
}

void update_apply_or_hold(struct hps_update_stream *stream)
{
    struct hps_error err = {0};
    flush_dead_letters(stream);
    if (!stream->batch.held) {
        note_set_back(stream);
    }
    if (update_n_unstored(stream) == 0) {
        release(stream); /* a pause that was held and taken back leaves nothing to be stored */
        return;
    }
    hps_status status = update_stream_apply(stream, &err);
    if (status != HPS_OK) {
        update_hold(stream, status, &err);
    } else {
        release(stream);
    }
}

/* ---- commits --------------------------------------------------------------------------------- */

static void commit(struct hps_update_stream *stream)
{
    struct hps_consumer_position *positions = hps_calloc(stream->n_partitions, sizeof(*positions));
    uint32_t n = 0;
    for (uint32_t i = 0; i < stream->n_partitions && positions != NULL; i++) {
        struct update_partition *partition = &stream->partitions[i];
        if (partition->to_commit > partition->committed) {
            positions[n++] = (struct hps_consumer_position){partition->topic, partition->number,
                                                            partition->to_commit};
            partition->committed = partition->to_commit;
        }
        partition->to_commit = update_is_published(partition) ? partition->applied.next : -1;
    }
    if (n > 0) {
        update_ops(stream)->commit(stream->consumer, positions, n);
    }
    hps_free(positions);
}

/* What was applied a while ago is on the disk by now; tools may know. */
void update_commit_due(struct hps_update_stream *stream)
{
    const struct hps_updater_options *options = &stream->updater->options;
    uint64_t now_us = hps_clock_us();
    if (options->group != NULL && now_us >= stream->pace.commit_due_us) {
        commit(stream);
        stream->pace.commit_due_us = now_us + (uint64_t)options->commit_ms * 1000;
    }
}

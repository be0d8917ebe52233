/* SPDX-License-Identifier: Apache-2.0
 *
 * What becomes of the batch at hand: it is applied with its positions, or waits, or is forgotten
 * and read again; what was applied is told to the log later. On the stream's thread `update`.
 */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/heap.h"
#include "base/log.h"
#include "server/observe/metrics.h"
#include "server/update/internal.h"

enum { LETTER_TRIES_MAX = 3 };

static const struct hps_consumer_ops *ops(const struct hps_update_stream *stream)
{
    return stream->consumer->ops;
}

/* ---- how fast -------------------------------------------------------------------------------- */

/* When the rows that were applied have had their share of time, by the limit that holds now. */
uint64_t update_rate_due_us(const struct hps_update_stream *stream)
{
    uint64_t rate = atomic_load(&stream->updater->rows_per_s_max);
    return rate == 0 ? 0 : stream->paid_us + stream->n_rows_owed * 1000000 / rate;
}

static void pay(struct hps_update_stream *stream, uint64_t n_rows)
{
    uint64_t now_us = hps_clock_us();
    if (now_us >= update_rate_due_us(stream)) {
        stream->paid_us = now_us;
        stream->n_rows_owed = 0;
    }
    stream->n_rows_owed += n_rows;
    if (n_rows > 0 && now_us < update_rate_due_us(stream)) {
        hps_metric_add(stream->metrics.throttled, 1);
    }
}

/* ---- apply ----------------------------------------------------------------------------------- */

void update_stream_abandon(struct hps_update_stream *stream)
{
    hps_update_decoder_clear(stream->decoder);
    hps_buf_clear(&stream->times);
    stream->batch_records = 0;
    stream->batch_rejected = 0;
    stream->lettered = false;
    stream->letter_status = HPS_OK;
    stream->held = false;
    for (uint32_t i = 0; i < stream->n_partitions; i++) {
        struct update_partition *partition = &stream->partitions[i];
        if (partition->dirty) {
            partition->dirty = false;
            partition->moved = false;
            partition->passed_over = false;
            partition->read = partition->applied;
            partition->read.as_of_ms = partition->as_of_ms;
            partition->seen_ms = partition->as_of_ms;
            partition->seen_next = partition->seen_next < partition->applied.next
                                       ? partition->seen_next
                                       : partition->applied.next;
            if (partition->state == HPS_PARTITION_RUNNING ||
                partition->state == HPS_PARTITION_GAP) {
                update_stop_partition(stream, partition, HPS_PARTITION_STARTING, "");
            }
        }
    }
    stream->begin_due_us = 0;
}

struct stored_position { /* or the record of what is frozen */
    char key[HPS_POSITION_KEY_BYTES_MAX];
    uint8_t value[HPS_POSITION_VALUE_BYTES_MAX];
};

bool update_unstored(const struct update_partition *partition)
{
    return partition->dirty || (partition->known && partition->paused != partition->applied.paused);
}

static uint32_t n_unstored(const struct hps_update_stream *stream)
{
    uint32_t n = stream->frozen_dirty ? 1 : 0;
    for (uint32_t i = 0; i < stream->n_partitions; i++) {
        n += update_unstored(&stream->partitions[i]) ? 1 : 0;
    }
    return n;
}

/* stored, out_records: [n_unstored] */
static uint32_t make_positions(struct hps_update_stream *stream, struct stored_position *stored,
                               struct hps_record *out_records)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < stream->n_partitions; i++) {
        struct update_partition *partition = &stream->partitions[i];
        if (update_unstored(partition)) {
            struct stored_position *to = &stored[n];
            partition->read.paused = partition->paused;
            size_t key_size = hps_position_key(partition->topic, partition->number, to->key);
            size_t value_size = hps_position_encode(&partition->read, to->value);
            out_records[n++] = (struct hps_record){to->key, key_size, to->value, value_size};
        }
    }
    if (stream->frozen_dirty) {
        hps_position_frozen_encode(stream->frozen, stream->frozen_by, stored[n].value);
        out_records[n] = (struct hps_record){HPS_POSITION_FROZEN, strlen(HPS_POSITION_FROZEN),
                                             stored[n].value, HPS_POSITION_FROZEN_BYTES};
        n++;
    }
    return n;
}

static void observe(struct hps_update_stream *stream)
{
    const struct update_time *times = (const struct update_time *)(void *)stream->times.data;
    const struct update_metrics *metrics = &stream->metrics;
    size_t n = stream->times.size / sizeof(*times);
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
    } else if (partition->moved || partition->passed_over || !partition->known) {
        partition->skipped_end = partition->read.next;
    }
    partition->passed_over = false;
}

static void applied(struct hps_update_stream *stream, uint64_t n_keys)
{
    observe(stream);
    for (uint32_t i = 0; i < stream->n_partitions; i++) {
        struct update_partition *partition = &stream->partitions[i];
        if (update_unstored(partition)) {
            stream->place_due = stream->place_due || partition->moved;
            note_skipped(partition);
            partition->dirty = false;
            partition->moved = false;
            partition->known = true;
            partition->applied = partition->read;
            partition->as_of_ms = partition->read.as_of_ms;
            update_note_event_time(stream, partition->applied.event_time_ms);
        }
    }
    bool apart = update_is_apart(stream);
    stream->place_due = stream->place_due || apart != stream->apart;
    stream->apart = apart;
    stream->frozen_dirty = false;
    stream->n_records += stream->batch_records;
    stream->n_rejected += stream->batch_rejected;
    stream->n_keys += n_keys;
    if (stream->batch_records > 0) {
        stream->rows_per_record = n_keys / stream->batch_records;
    }
    hps_metric_add(stream->metrics.records, stream->batch_records);
    hps_metric_add(stream->metrics.batches, 1);
    stream->batch_records = 0;
    stream->batch_rejected = 0;
    hps_update_decoder_clear(stream->decoder);
    hps_buf_clear(&stream->times);
}

hps_status update_stream_apply(struct hps_update_stream *stream, struct hps_error *err)
{
    const struct hps_update_part *parts = NULL;
    uint32_t n_parts = 0;
    uint32_t n = n_unstored(stream);
    struct stored_position *stored = hps_calloc(n, sizeof(*stored));
    struct hps_record *records = hps_calloc(n, sizeof(*records));
    struct hps_log_span *spans = hps_calloc(n, sizeof(*spans));
    uint32_t *part_spans = NULL;
    hps_status status = HPS_NO_MEMORY;
    if (stored != NULL && records != NULL && spans != NULL) {
        status = hps_update_decoder_parts(stream->decoder, &parts, &n_parts);
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
    status = hps_update_apply(stream->version, &batch, err);
    if (status == HPS_OK) {
        pay(stream, hps_update_decoder_keys(stream->decoder));
        applied(stream, hps_update_decoder_keys(stream->decoder));
    }
out:
    hps_free(stored);
    hps_free(records);
    hps_free(spans);
    hps_free(part_spans);
    return status;
}

static void hold(struct hps_update_stream *stream, const struct hps_error *err)
{
    if (!stream->held) {
        HPS_LOG(WARN, "updates", "a batch waits: it cannot be applied now",
                HPS_STR("model", stream->model), HPS_I64("version", stream->number),
                HPS_STR("error", err->text));
    }
    stream->held = true;
    snprintf(stream->held_text, sizeof(stream->held_text), "%.199s", err->text);
    update_retry_later(stream);
}

/* Bad records of the batch are safe before their positions are; what the dead-letter topic does not
 * take, however often, stops no updates. */
static bool flush_letters(struct hps_update_stream *stream)
{
    struct hps_error err = {0};
    if (!stream->lettered) {
        return true;
    }
    hps_status status =
        ops(stream)->dead_letter_flush(stream->consumer, UPDATE_LOG_TIMEOUT_MS, &err);
    status = stream->letter_status != HPS_OK ? stream->letter_status : status;
    bool refused = status == HPS_INVALID || status == HPS_PERMISSION || status == HPS_NOT_FOUND;
    stream->letter_tries = refused ? stream->letter_tries + 1 : 0;
    bool given_up = stream->letter_tries >= LETTER_TRIES_MAX;
    if (status != HPS_OK) {
        HPS_LOG(WARN, "updates",
                given_up ? "bad records are left out without a copy on the dead-letter topic"
                         : "bad records are not on the dead-letter topic yet: they are read again",
                HPS_STR("model", stream->model), HPS_STR("error", err.text),
                HPS_STR("status", hps_status_text(status)));
    }
    if (status != HPS_OK && !given_up) {
        update_stream_abandon(stream);
        update_retry_later(stream);
        return false;
    }
    stream->lettered = false;
    stream->letter_status = HPS_OK;
    stream->letter_tries = 0;
    return true;
}

void update_apply_or_hold(struct hps_update_stream *stream)
{
    struct hps_error err = {0};
    if (n_unstored(stream) == 0 || !flush_letters(stream)) {
        return;
    }
    hps_status status = update_stream_apply(stream, &err);
    if (status == HPS_INVALID) { /* what a row may hold has changed meanwhile: decode it again */
        update_stream_abandon(stream);
        update_retry_later(stream);
        return;
    }
    if (status != HPS_OK) {
        hold(stream, &err);
        return;
    }
    if (stream->held) {
        HPS_LOG(INFO, "updates", "updates go on", HPS_STR("model", stream->model),
                HPS_I64("version", stream->number));
    }
    stream->held = false;
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
        partition->to_commit = partition->known ? partition->applied.next : -1;
    }
    if (n > 0) {
        ops(stream)->commit(stream->consumer, positions, n);
    }
    hps_free(positions);
}

/* What was applied a while ago is on the disk by now; tools may know. */
void update_commit_due(struct hps_update_stream *stream)
{
    const struct hps_updater_options *options = &stream->updater->options;
    uint64_t now_us = hps_clock_us();
    if (options->group != NULL && now_us >= stream->commit_due_us) {
        commit(stream);
        stream->commit_due_us = now_us + (uint64_t)options->commit_ms * 1000;
    }
}

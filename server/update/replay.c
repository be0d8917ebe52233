/* SPDX-License-Identifier: Apache-2.0
 *
 * How shards of a shared tier that lag catch up:
 *
 *     look ─▶ lag ─▶ replay: a second consumer, from the lowest position to the published one
 *      ▲       │                                   │
 *      │       └▶ the log does not have it, ─▶ reset: they are emptied
 *      └───────── or too much of it ◀──────────────┘
 *
 * On the stream's thread `update`.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/log.h"
#include "server/update/internal.h"

enum {
    LOOK_MS_MIN = 100,
    LOOK_MS_MAX = 5000, /* also while nothing is behind: a server may lose what it had */
    REPLAY_POLL_MS = 20,
    STRETCH_POLLS = 12, /* for so long updates wait, of which there is one batch at most */
    REPLAYS_MAX = 5     /* in a row that do not help */
};
/* More records are not applied again: look-ups bring the rows back sooner. */
#define REPLAY_RECORDS_MAX (INT64_C(1) << 20)

static const struct hps_call no_limit = {0};

/* ---- replays: when --------------------------------------------------------------------------- */

static void look_in(struct hps_update_stream *stream, uint32_t ms)
{
    stream->share.due_us = hps_clock_us() + (uint64_t)ms * 1000;
}

static void look_later(struct hps_update_stream *stream)
{
    struct update_share *share = &stream->share;
    look_in(stream, share->wait_ms);
    share->wait_ms = share->wait_ms * 2 < LOOK_MS_MAX ? share->wait_ms * 2 : LOOK_MS_MAX;
}

static void end_replay(struct hps_update_stream *stream)
{
    struct update_share *share = &stream->share;
    if (share->consumer != NULL) {
        share->consumer->ops->close(share->consumer);
        share->consumer = NULL;
        hps_update_decoder_clear(share->decoder);
    }
    if (share->phase == UPDATE_SHARE_REPLAYS) {
        update_share_set(stream, UPDATE_SHARE_BEHIND);
    }
    for (uint32_t i = 0; i < stream->n_partitions; i++) {
        stream->partitions[i].replay.from = -1;
    }
}

void update_share_note_apart(struct hps_update_stream *stream)
{
    bool apart = update_is_apart(stream);
    if (apart == (stream->share.phase == UPDATE_SHARE_APART)) {
        return;
    }
    end_replay(stream);
    update_share_set(stream, apart ? UPDATE_SHARE_APART : UPDATE_SHARE_LEVEL);
    stream->share.place_due = true;
}

static void take_report(struct hps_update_stream *stream)
{
    struct hps_log_report report;
    hps_update_shared_take(stream->version, &report);
    hps_metric_add(stream->metrics.gaps, report.n_gap);
    hps_metric_add(stream->metrics.failed, report.n_failed);
    if (report.n_gap + report.n_failed == 0 || stream->share.phase != UPDATE_SHARE_LEVEL) {
        return;
    }
    update_share_set(stream, UPDATE_SHARE_BEHIND);
    stream->share.wait_ms = LOOK_MS_MIN;
    look_in(stream, report.n_gap > 0 ? 0 : LOOK_MS_MIN);
}

/* ---- emptying -------------------------------------------------------------------------------- */

static void reset(struct hps_update_stream *stream, const char *why)
{
    struct hps_log_report report = {0};
    end_replay(stream);
    HPS_ASSERT(stream->share.phase == UPDATE_SHARE_BEHIND);
    hps_status status =
        stream->share.space->store->ops->log->reset(stream->share.space, &no_limit, &report);
    if (status == HPS_OK) {
        HPS_LOG(
            WARN, "updates",
            "shared shards emptied: they lag and the log cannot be replayed to them, see reason; "
            "look-ups backfill them",
            HPS_STR("model", stream->model), HPS_I64("version", stream->number),
            HPS_U64("shards", report.n_applied), HPS_U64("failed", report.n_failed),
            HPS_STR("reason", why));
        hps_metric_add(stream->metrics.resets, report.n_applied);
    } else if (!stream->share.told) {
        atomic_store(&stream->version->shared_lost, stream->share.alone);
        HPS_LOG(ERROR, "updates",
                stream->share.alone
                    ? "shared tier lost rows: it holds their only copy; load the model again"
                    : "shared shards stale: they lag and cannot be emptied; they are not read "
                      "from, and emptying them is retried",
                HPS_STR("model", stream->model), HPS_I64("version", stream->number),
                HPS_STR("reason", why), HPS_STR("error", hps_status_text(status)));
        stream->share.told = true;
    }
    stream->share.n_replays = 0;
    look_later(stream);
}

/* ---- replays --------------------------------------------------------------------------------- */

static struct update_partition *partition_by_id(struct hps_update_stream *stream, uint64_t id)
{
    for (uint32_t i = 0; i < stream->n_partitions; i++) {
        struct update_partition *partition = &stream->partitions[i];
        if (update_is_published(partition) &&
            update_log_partition(partition, &partition->applied) == id) {
            return partition;
        }
    }
    return NULL;
}

/* Whether the log can be read again there: NULL; or why not. out_later: not yet. Only a partition
 * that runs has been seen to be what it was, and a compacted one lacks what came in between. */
static const char *refusal(const struct update_partition *partition, bool listed, bool *out_later)
{
    *out_later = !listed || (partition != NULL &&
                             (partition->phase == UPDATE_STARTS ||
                              partition->phase == UPDATE_CHECKS || update_is_unproved(partition)));
    if (*out_later) {
        return "not yet";
    }
    if (partition == NULL) {
        return "the log has no such partition";
    }
    if (!update_reads(partition)) {
        return "a partition is stopped";
    }
    return partition->listed.compaction == HPS_COMPACTION_NO ? NULL : "a topic may be compacted";
}

static hps_status open_replay(struct hps_update_stream *stream, struct hps_error *err)
{
    HPS_ASSERT(stream->share.consumer == NULL);
    struct update_share *share = &stream->share;
    struct hps_updater *updater = stream->updater;
    const struct hps_updater_options *options = &updater->options;
    char name[176];
    snprintf(name, sizeof(name), "%s-%" PRId64 "-again", stream->model, stream->number);
    const struct hps_consumer_options wanted = {.name = name}; /* which lists no topics */
    if (share->decoder == NULL) {
        const struct hps_update_decoder_options of = {.version = stream->version,
                                                      .key_bytes = options->key_bytes,
                                                      .nan_allowed = &updater->nan_allowed};
        share->decoder = hps_update_decoder_new(&of);
    }
    if (share->decoder == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for updates");
    }
    hps_status status =
        options->log->ops->consumer_open(options->log, &wanted, &share->consumer, err);
    if (status != HPS_OK) {
        share->consumer = NULL;
    }
    for (uint32_t i = 0; i < stream->n_partitions && status == HPS_OK; i++) {
        const struct update_partition *partition = &stream->partitions[i];
        const struct hps_consumer_position at = {partition->topic, partition->number,
                                                 partition->replay.from};
        if (partition->replay.from >= 0) {
            status = share->consumer->ops->assign(share->consumer, &at, i, err);
        }
    }
    return status;
}

static void begin_replay(struct hps_update_stream *stream, const struct hps_log_position *behind,
                         uint32_t n)
{
    struct hps_error err = {0};
    int64_t n_records = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct update_partition *partition = partition_by_id(stream, behind[i].partition);
        bool later = false;
        const char *why = refusal(partition, update_is_listed(stream), &later);
        if (later) {
            end_replay(stream);
            look_later(stream);
            return;
        }
        if (why != NULL) {
            reset(stream, why);
            return;
        }
        partition->replay.from = behind[i].offset;
        partition->replay.next = behind[i].offset;
        partition->replay.passed = false;
        n_records += partition->applied.next - behind[i].offset;
    }
    if (n_records > REPLAY_RECORDS_MAX || ++stream->share.n_replays > REPLAYS_MAX) {
        reset(stream, n_records > REPLAY_RECORDS_MAX ? "too many records" : "it does not help");
        return;
    }
    hps_status status = open_replay(stream, &err);
    if (status == HPS_OK) {
        update_share_set(stream, UPDATE_SHARE_REPLAYS);
        HPS_LOG(INFO, "updates", "shared shards lag: the log is replayed to them",
                HPS_STR("model", stream->model), HPS_I64("version", stream->number),
                HPS_I64("records", n_records));
        return;
    }
    HPS_LOG(WARN, "updates", "shared shards lag: the replay could not start; retried",
            HPS_STR("model", stream->model), HPS_I64("version", stream->number),
            HPS_STR("error", err.text));
    end_replay(stream);
    look_later(stream);
}

static void look(struct hps_update_stream *stream)
{
    struct update_share *share = &stream->share;
    uint32_t capacity = stream->n_partitions + 1;
    HPS_ASSERT(share->phase == UPDATE_SHARE_LEVEL || share->phase == UPDATE_SHARE_BEHIND);
    uint32_t n = 0;
    struct hps_log_position *behind = hps_calloc(capacity, sizeof(*behind));
    if (behind == NULL) {
        look_later(stream);
        return;
    }
    hps_status status = stream->share.space->store->ops->log->behind(stream->share.space, &no_limit,
                                                                     behind, capacity, &n);
    if (status == HPS_OK && n == 0) {
        if (share->phase == UPDATE_SHARE_BEHIND) {
            HPS_LOG(INFO, "updates", "shared shards caught up: none lags any more",
                    HPS_STR("model", stream->model), HPS_I64("version", stream->number));
        }
        atomic_store(&stream->version->shared_lost, false);
        update_share_set(stream, UPDATE_SHARE_LEVEL);
        share->told = false;
        share->n_replays = 0;
        share->wait_ms = LOOK_MS_MIN;
        look_in(stream, LOOK_MS_MAX);
    } else if (n > 0) { /* also while others cannot be asked */
        update_share_set(stream, UPDATE_SHARE_BEHIND);
        begin_replay(stream, behind, n);
    } else if (status == HPS_RANGE) {
        update_share_set(stream, UPDATE_SHARE_BEHIND);
        reset(stream, "the shards lost their positions");
    } else {
        look_later(stream);
    }
    hps_free(behind);
}

/* ---- one poll of it -------------------------------------------------------------------------- */

/* False: no memory. */
static bool replay_record(struct hps_update_stream *stream,
                          const struct hps_consumer_record *record)
{
    struct update_share *share = &stream->share;
    struct update_partition *partition = &stream->partitions[record->tag];
    struct hps_update_fate fate;
    struct hps_error err = {0};
    if (partition->replay.from < 0) {
        return true;
    }
    if (record->offset >= partition->applied.next) { /* it comes with a batch of updates */
        partition->replay.next = partition->applied.next;
        partition->replay.passed = true;
        return true;
    }
    const struct hps_update_bytes bytes = update_bytes(stream, share->consumer->ops, record);
    if (hps_update_decoder_add(share->decoder, &partition->route, &bytes, true, &fate, &err) !=
        HPS_OK) {
        return false;
    }
    partition->replay.next = record->offset + 1;
    hps_metric_add(stream->metrics.replayed, 1);
    return true;
}

static void replay_up_to(struct update_partition *partition, int64_t offset)
{
    int64_t next = partition->applied.next;
    if (offset > partition->replay.next) {
        partition->replay.next = offset < next ? offset : next;
    }
}

/* False: this consumer is of no more use; out_lost: the log does not have it. */
static bool replay_event(struct hps_update_stream *stream, const struct hps_consumer_event *event,
                         bool *out_lost)
{
    struct update_partition *partition =
        event->tag < stream->n_partitions ? &stream->partitions[event->tag] : NULL;
    switch (event->kind) {
    case HPS_CONSUMER_CAUGHT_UP:
        replay_up_to(partition, event->offset);
        return true;
    case HPS_CONSUMER_BAD: /* it was left out of the batches, too */
        replay_up_to(partition, event->high);
        return true;
    case HPS_CONSUMER_GAP:
    case HPS_CONSUMER_GONE:
        *out_lost = true;
        return false;
    case HPS_CONSUMER_FAILED:
    case HPS_CONSUMER_DOWN:
        return false;
    case HPS_CONSUMER_UP:
    case HPS_CONSUMER_COMMITS:
        break;
    }
    return true;
}

static uint32_t replay_spans(struct hps_update_stream *stream, const struct hps_update_part *parts,
                             uint32_t n_parts, struct hps_log_span *spans, uint32_t *part_spans)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < stream->n_partitions; i++) {
        struct update_partition *partition = &stream->partitions[i];
        if (partition->replay.from >= 0 && partition->replay.next > partition->replay.from) {
            partition->pending.span = n;
            spans[n++] = (struct hps_log_span){
                .partition = update_log_partition(partition, &partition->applied),
                .start = partition->applied.start,
                .first = partition->replay.from,
                .next = partition->replay.next};
        }
    }
    for (uint32_t i = 0; i < n_parts; i++) {
        part_spans[i] = stream->partitions[parts[i].source].pending.span;
    }
    return n;
}

static hps_status replay_batch(struct hps_update_stream *stream, struct hps_log_report *out_report,
                               struct hps_error *err)
{
    struct hps_update_decoder *decoder = stream->share.decoder;
    const struct hps_update_part *parts = NULL;
    uint32_t n_parts = 0;
    hps_status status = hps_update_decoder_parts(decoder, &parts, &n_parts);
    struct hps_log_span *spans = hps_calloc(stream->n_partitions, sizeof(*spans));
    uint32_t *part_spans = hps_calloc(n_parts, sizeof(*part_spans));
    if (status != HPS_OK || spans == NULL || part_spans == NULL) {
        status = hps_error_set(err, HPS_NO_MEMORY, "no memory for a batch of updates");
    } else {
        const struct hps_update_batch batch = {
            .parts = parts,
            .n_parts = n_parts,
            .spans = spans,
            .n_spans = replay_spans(stream, parts, n_parts, spans, part_spans),
            .part_spans = part_spans,
            .nan_allowed = true}; /* what may not be applied was not decoded */
        if (batch.n_spans > 0) {
            status = hps_update_replay(stream->version, &batch, out_report, err);
        }
    }
    hps_update_decoder_clear(decoder);
    hps_free(spans);
    hps_free(part_spans);
    return status;
}

/* What was applied is behind us. True: all of it is. */
static bool replayed(struct hps_update_stream *stream)
{
    bool all = true;
    for (uint32_t i = 0; i < stream->n_partitions; i++) {
        struct update_partition *partition = &stream->partitions[i];
        partition->replay.from = partition->replay.from >= 0 ? partition->replay.next : -1;
        all = all &&
              (partition->replay.from < 0 || partition->replay.from >= partition->applied.next);
    }
    return all;
}

/* The log is what it was when the replay began. */
static bool still_runs(const struct hps_update_stream *stream)
{
    bool runs = true;
    for (uint32_t i = 0; i < stream->n_partitions; i++) {
        const struct update_partition *partition = &stream->partitions[i];
        runs = runs && (partition->replay.from < 0 ||
                        (partition->phase == UPDATE_RUNS && !update_is_unproved(partition)));
    }
    return runs;
}

/* Updates went on, and what they brought was passed over here while it was not applied yet: shards
 * that were still behind have not got it. */
static hps_status read_passed(struct hps_update_stream *stream, struct hps_error *err)
{
    struct hps_consumer *consumer = stream->share.consumer;
    hps_status status = HPS_OK;
    for (uint32_t i = 0; i < stream->n_partitions && status == HPS_OK; i++) {
        struct update_partition *partition = &stream->partitions[i];
        const struct hps_consumer_position at = {partition->topic, partition->number,
                                                 partition->replay.from};
        if (partition->replay.from >= 0 && partition->replay.passed &&
            partition->replay.from < partition->applied.next) {
            partition->replay.passed = false;
            status = consumer->ops->assign(consumer, &at, i, err);
        }
    }
    return status;
}

static void replay(struct hps_update_stream *stream, uint32_t poll_ms)
{
    HPS_ASSERT(stream->share.phase == UPDATE_SHARE_REPLAYS && stream->share.consumer != NULL);
    const struct hps_updater_options *options = &stream->updater->options;
    struct update_share *share = &stream->share;
    struct hps_consumer_poll poll = {0};
    struct hps_log_report report = {0};
    struct hps_error err = {0};
    bool lost = false;
    bool goes_on = still_runs(stream) && read_passed(stream, &err) == HPS_OK &&
                   share->consumer->ops->poll(share->consumer, poll_ms, options->rows_max,
                                              options->bytes_max, &poll, &err) == HPS_OK;
    for (uint32_t i = 0; i < poll.n_records && goes_on; i++) {
        goes_on = replay_record(stream, &poll.records[i]);
    }
    for (uint32_t i = 0; i < poll.n_events && goes_on; i++) {
        goes_on = replay_event(stream, &poll.events[i], &lost);
    }
    if (lost) {
        reset(stream, "the log no longer has the records");
        return;
    }
    hps_status status = goes_on ? replay_batch(stream, &report, &err) : HPS_UNAVAILABLE;
    bool reached = report.n_failed == 0 || report.n_applied + report.n_had > 0;
    /* where it is the only copy, what fails keeps a batch from counting, not from being applied */
    if ((status != HPS_OK && !stream->share.alone) || !goes_on || !reached) {
        end_replay(stream);
        look_later(stream);
    } else if (replayed(stream)) {
        end_replay(stream);
        look_in(stream, 0);
    }
}

/* A shard takes a batch only if it is behind in no partition. So the last stretch goes without any
 * in between, or else one partition or the other would be behind for ever. */
static void replay_turn(struct hps_update_stream *stream, uint32_t poll_ms)
{
    replay(stream, poll_ms < REPLAY_POLL_MS ? poll_ms : REPLAY_POLL_MS);
    for (unsigned n = 0; n < STRETCH_POLLS && stream->share.consumer != NULL; n++) {
        int64_t n_records = 0;
        for (uint32_t i = 0; i < stream->n_partitions; i++) {
            const struct update_partition *partition = &stream->partitions[i];
            n_records +=
                partition->replay.from < 0 ? 0 : partition->applied.next - partition->replay.from;
        }
        if (n_records > stream->updater->options.rows_max) {
            return;
        }
        replay(stream, REPLAY_POLL_MS);
    }
}

/* ---- the turn -------------------------------------------------------------------------------- */

static void place_again(struct hps_update_stream *stream)
{
    struct hps_error err = {0};
    if (hps_updater_place(stream->version, &err) != HPS_OK) {
        HPS_LOG(
            WARN, "updates",
            "shared tier not updated: the version's position could not be written to it; retried",
            HPS_STR("model", stream->model), HPS_I64("version", stream->number),
            HPS_STR("error", err.text));
        return; /* the next turn */
    }
    stream->share.place_due = false;
    stream->share.wait_ms = LOOK_MS_MIN;
    end_replay(stream);
    if (stream->share.phase == UPDATE_SHARE_LEVEL) {
        update_share_set(stream, UPDATE_SHARE_BEHIND);
    }
    look_in(stream, 0);
}

void update_share_turn(struct hps_update_stream *stream, uint32_t poll_ms)
{
    struct update_share *share = &stream->share;
    if (share->phase == UPDATE_SHARE_NONE) {
        return;
    }
    share->wait_ms = share->wait_ms < LOOK_MS_MIN ? LOOK_MS_MIN : share->wait_ms;
    take_report(stream);
    if (share->place_due) {
        place_again(stream);
    }
    if (share->phase == UPDATE_SHARE_REPLAYS) {
        replay_turn(stream, poll_ms);
    } else if (share->phase != UPDATE_SHARE_APART && hps_clock_us() >= share->due_us) {
        look(stream);
    }
}

void update_share_close(struct hps_update_stream *stream)
{
    end_replay(stream);
    hps_update_decoder_free(stream->share.decoder);
    stream->share.decoder = NULL;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Brings shards of a shared tier that lag up to date. Thread `update`.
 *
 *     check ─▶ a shard lags ─┬─▶ replay ─▶ check
 *                            └─▶ reset ──▶ check
 *
 * A replay reads the log with a second consumer: from the lowest position of the shards to the
 * published position. A reset empties the shards that lag. It is needed if the log does not have
 * the records, or if they are too many.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "server/update/sink/sink.h"

enum {
    CHECK_MS_MIN = 100,
    CHECK_MS_MAX = 5000, /* also while no shard lags: a server may lose its data */
    REPLAY_POLL_MS = 20,
    STRETCH_POLLS = 12, /* polls of a replay in one turn, while updates wait */
    REPLAYS_MAX = 5     /* in a row without success */
};
/* For more records, the shards are emptied: lookups bring the rows back sooner. */
#define REPLAY_RECORDS_MAX (INT64_C(1) << 20)

static const struct hps_call no_limit = {0};

/* ---- checks ---------------------------------------------------------------------------------- */

static const struct hps_store_log_ops *log_ops(const struct hps_update_stream *stream)
{
    return stream->share->space->store->ops->log;
}

static void check_in(struct hps_update_stream *stream, uint32_t ms)
{
    stream->share->due_us = hps_clock_us() + (uint64_t)ms * 1000;
}

static void check_later(struct hps_update_stream *stream)
{
    struct update_share *share = stream->share;
    check_in(stream, share->wait_ms);
    share->wait_ms = share->wait_ms * 2 < CHECK_MS_MAX ? share->wait_ms * 2 : CHECK_MS_MAX;
}

void update_end_replay(struct hps_update_stream *stream)
{
    struct update_share *share = stream->share;
    if (share->consumer != NULL) {
        share->consumer->ops->close(share->consumer);
        share->consumer = NULL;
    }
    hps_update_decoder_free(share->decoder);
    share->decoder = NULL;
    UPDATE_EACH (stream, partition) {
        partition->replay->from = -1;
    }
}

static void retry_later(struct hps_update_stream *stream)
{
    update_end_replay(stream);
    check_later(stream);
}

void update_share_note_bypass(struct hps_update_stream *stream)
{
    bool bypasses = update_bypasses_shared(stream);
    if (bypasses == (stream->share->phase == UPDATE_SHARE_BYPASSED)) {
        return;
    }
    update_end_replay(stream);
    stream->share->phase = bypasses ? UPDATE_SHARE_BYPASSED : UPDATE_SHARE_CURRENT;
    stream->share->positions_due = true;
}

/* Take the results of the batches since the last call. */
static void take_report(struct hps_update_stream *stream)
{
    struct hps_log_report report;
    hps_update_shared_take(stream->version, &report);
    hps_metric_add(stream->metrics->gaps, report.n_gap);
    hps_metric_add(stream->metrics->failed, report.n_failed);
    if (report.n_gap + report.n_failed == 0 || stream->share->phase != UPDATE_SHARE_CURRENT) {
        return;
    }
    stream->share->phase = UPDATE_SHARE_BEHIND;
    stream->share->wait_ms = CHECK_MS_MIN;
    check_in(stream, report.n_gap > 0 ? 0 : CHECK_MS_MIN);
}

/* Empty the shards that lag. */
static void reset(struct hps_update_stream *stream, const char *why)
{
    struct hps_log_report report = {0};
    update_end_replay(stream);
    HPS_ASSERT(stream->share->phase == UPDATE_SHARE_BEHIND);
    hps_status status = log_ops(stream)->reset(stream->share->space, &no_limit, &report);
    if (status == HPS_OK) {
        UPDATE_LOG(stream, WARN,
                   "shared shards emptied: they lag and the log cannot be replayed to them, see "
                   "reason; lookups backfill them",
                   HPS_U64("shards", report.n_applied), HPS_U64("failed", report.n_failed),
                   HPS_STR("reason", why));
        hps_metric_add(stream->metrics->resets, report.n_applied);
    } else if (!stream->share->failure_logged) {
        atomic_store(&stream->version->shared_lost, stream->sole_copy);
        UPDATE_LOG(stream, ERROR,
                   stream->sole_copy
                       ? "shared tier lost rows: it holds their only copy; load the model again"
                       : "shared shards stale: they lag and cannot be emptied; lookups bypass "
                         "them, and emptying them is retried",
                   HPS_STR("reason", why), HPS_STR("error", hps_status_text(status)));
        stream->share->failure_logged = true;
    }
    stream->share->n_replays = 0;
    check_later(stream);
}

/* The number of published records that the replay has yet to apply. */
static int64_t records_left(const struct hps_update_stream *stream)
{
    int64_t n = 0;
    UPDATE_EACH (stream, partition) {
        int64_t left = partition->applied->next - partition->replay->from;
        n += partition->replay->from >= 0 && left > 0 ? left : 0;
    }
    return n;
}

/* ---- the start of a replay ------------------------------------------------------------------- */

static struct update_partition *partition_by_id(struct hps_update_stream *stream, uint64_t id)
{
    UPDATE_EACH (stream, partition) {
        if (update_is_published(partition) &&
            hps_log_partition(partition->applied->cluster, partition->topic, partition->number) ==
                id) {
            return partition;
        }
    }
    return NULL;
}

/* Why records of the partition cannot be read again; NULL: they can. out_later: this is not known
 * yet. Only a running partition has a topic that is known to be the same. A compacted topic lacks
 * records. */
static const char *refusal(const struct update_partition *partition, bool listed, bool *out_later)
{
    *out_later = !listed || (partition != NULL &&
                             (partition->phase == UPDATE_STARTING ||
                              partition->phase == UPDATE_CHECKING || !update_is_same(partition)));
    if (*out_later) {
        return "not known yet";
    }
    if (partition == NULL) {
        return "the log has no such partition";
    }
    if (!update_phase_reads(partition->phase)) {
        return "a partition is stopped";
    }
    return partition->listed->compaction == HPS_COMPACTION_NO ? NULL : "a topic may be compacted";
}

/* Read the partition from replay->from on. */
static hps_status assign(const struct hps_update_stream *stream,
                         const struct update_partition *partition, struct hps_error *err)
{
    struct hps_consumer *consumer = stream->share->consumer;
    const struct hps_consumer_position at = {partition->topic, partition->number,
                                             partition->replay->from};
    return consumer->ops->assign(consumer, &at, (uint32_t)(partition - stream->partitions), err);
}

static hps_status open_replay(struct hps_update_stream *stream, struct hps_error *err)
{
    HPS_ASSERT(stream->share->consumer == NULL);
    struct update_share *share = stream->share;
    struct hps_update_log *log = stream->common->options.log;
    char name[176];
    snprintf(name, sizeof(name), "%s-%" PRId64 "-again", stream->model, stream->number);
    const struct hps_consumer_options wanted = {.name = name}; /* without topics to list */
    share->decoder = hps_update_decoder_new(stream->version, stream->view->key_bytes,
                                            &stream->common->nan_allowed);
    if (share->decoder == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for updates");
    }
    hps_status status = log->ops->consumer_open(log, &wanted, &share->consumer, err);
    UPDATE_EACH (stream, partition) {
        if (status == HPS_OK && partition->replay->from >= 0) {
            status = assign(stream, partition, err);
        }
    }
    return status;
}

static void begin_replay(struct hps_update_stream *stream, const struct hps_log_position *behind,
                         uint32_t n)
{
    struct hps_error err = {0};
    for (uint32_t i = 0; i < n; i++) {
        struct update_partition *partition = partition_by_id(stream, behind[i].partition);
        bool later = false;
        const char *why = refusal(partition, stream->topics->listed, &later);
        if (later) {
            retry_later(stream);
            return;
        }
        if (why != NULL) {
            reset(stream, why);
            return;
        }
        partition->replay->from = behind[i].offset;
        partition->replay->next = behind[i].offset;
        partition->replay->passed = false;
    }
    int64_t n_records = records_left(stream);
    if (n_records > REPLAY_RECORDS_MAX || ++stream->share->n_replays > REPLAYS_MAX) {
        reset(stream, n_records > REPLAY_RECORDS_MAX ? "too many records" : "replays do not help");
        return;
    }
    hps_status status = open_replay(stream, &err);
    if (status == HPS_OK) {
        UPDATE_LOG(stream, INFO, "shared shards lag: the log is replayed to them",
                   HPS_I64("records", n_records));
        return;
    }
    UPDATE_LOG(stream, WARN, "shared shards lag: the replay could not start; retried",
               HPS_STR("error", err.text));
    retry_later(stream);
}

/* Ask the shards for their positions. */
static void check(struct hps_update_stream *stream)
{
    struct update_share *share = stream->share;
    uint32_t capacity = stream->n_partitions + 1;
    HPS_ASSERT(share->phase != UPDATE_SHARE_BYPASSED && share->consumer == NULL);
    uint32_t n = 0;
    struct hps_log_position *behind = hps_arena_calloc(stream->scratch, capacity, sizeof(*behind));
    hps_status status =
        behind == NULL ? HPS_NO_MEMORY
                       : log_ops(stream)->behind(share->space, &no_limit, behind, capacity, &n);
    if (status == HPS_OK && n == 0) {
        if (share->phase == UPDATE_SHARE_BEHIND) {
            UPDATE_LOG(stream, INFO, "shared shards caught up: none lags any more");
        }
        atomic_store(&stream->version->shared_lost, false);
        share->phase = UPDATE_SHARE_CURRENT;
        share->failure_logged = false;
        share->n_replays = 0;
        share->wait_ms = CHECK_MS_MIN;
        check_in(stream, CHECK_MS_MAX);
    } else if (n > 0) { /* also while other shards do not answer */
        share->phase = UPDATE_SHARE_BEHIND;
        begin_replay(stream, behind, n);
    } else if (status == HPS_RANGE) {
        share->phase = UPDATE_SHARE_BEHIND;
        reset(stream, "the shards lost their positions");
    } else {
        check_later(stream);
    }
}

/* ---- one poll of a replay -------------------------------------------------------------------- */

/* False: no memory. */
static bool replay_record(struct hps_update_stream *stream,
                          const struct hps_consumer_record *record)
{
    struct update_share *share = stream->share;
    struct update_partition *partition = &stream->partitions[record->tag];
    struct hps_update_outcome outcome;
    struct hps_error err = {0};
    if (partition->replay->from < 0) {
        return true;
    }
    if (record->offset >= partition->applied->next) { /* it is applied with a batch of updates */
        partition->replay->next = partition->applied->next;
        partition->replay->passed = true;
        return true;
    }
    if (hps_update_decoder_add(share->decoder, &partition->route, share->consumer->ops, record,
                               true, &outcome, &err) != HPS_OK) {
        return false;
    }
    partition->replay->next = record->offset + 1;
    hps_metric_add(stream->metrics->replayed, 1);
    return true;
}

static void replay_up_to(struct update_partition *partition, int64_t offset)
{
    int64_t next = partition->applied->next;
    if (offset > partition->replay->next) {
        partition->replay->next = offset < next ? offset : next;
    }
}

/* False: the replay cannot continue with this consumer. out_lost: the log does not have the
 * records. */
static bool replay_event(struct hps_update_stream *stream, const struct hps_consumer_event *event,
                         bool *out_lost)
{
    struct update_partition *partition =
        event->tag < stream->n_partitions ? &stream->partitions[event->tag] : NULL;
    switch (event->kind) {
    case HPS_CONSUMER_CAUGHT_UP:
        replay_up_to(partition, event->offset);
        break;
    case HPS_CONSUMER_BAD: /* the batches do not have the record, either */
        replay_up_to(partition, event->high);
        break;
    case HPS_CONSUMER_GAP:
    case HPS_CONSUMER_GONE:
        *out_lost = true;
        break;
    case HPS_CONSUMER_FAILED:
    case HPS_CONSUMER_DOWN:
        return false;
    case HPS_CONSUMER_UP:
    case HPS_CONSUMER_COMMITS:
        break;
    }
    return !*out_lost;
}

static uint32_t replay_spans(struct hps_update_stream *stream, struct hps_log_span *out_spans)
{
    uint32_t n = 0;
    UPDATE_EACH (stream, partition) {
        if (partition->replay->from >= 0 && partition->replay->next > partition->replay->from) {
            partition->pending.span = n;
            out_spans[n++] = (struct hps_log_span){
                .partition = hps_log_partition(partition->applied->cluster, partition->topic,
                                               partition->number),
                .start = partition->applied->start,
                .first = partition->replay->from,
                .next = partition->replay->next};
        }
    }
    return n;
}

static hps_status replay_batch(struct hps_update_stream *stream, struct hps_log_report *out_report,
                               struct hps_error *err)
{
    struct hps_update_decoder *decoder = stream->share->decoder;
    struct hps_update_batch batch;
    hps_status status = update_make_batch(stream, decoder, replay_spans, &batch, err);
    if (status == HPS_OK && batch.n_spans > 0) {
        status = hps_update_replay(stream->version, &batch, out_report, err);
    }
    hps_update_decoder_clear(decoder);
    return status;
}

/* Whether the partitions have the topics, and are in the phase, of the start of the replay. */
static bool still_runs(const struct hps_update_stream *stream)
{
    bool runs = true;
    UPDATE_EACH (stream, partition) {
        runs = runs && (partition->replay->from < 0 ||
                        (partition->phase == UPDATE_RUNNING && update_is_same(partition)));
    }
    return runs;
}

/* The replay has skipped records that were not applied when it read them. They are applied now, but
 * not by shards that were behind then: read them again. */
static hps_status read_skipped(struct hps_update_stream *stream, struct hps_error *err)
{
    hps_status status = HPS_OK;
    UPDATE_EACH (stream, partition) {
        if (status == HPS_OK && partition->replay->from >= 0 && partition->replay->passed &&
            partition->replay->from < partition->applied->next) {
            partition->replay->passed = false;
            status = assign(stream, partition, err);
        }
    }
    return status;
}

static void replay(struct hps_update_stream *stream, uint32_t poll_ms)
{
    HPS_ASSERT(stream->share->phase == UPDATE_SHARE_BEHIND && stream->share->consumer != NULL);
    struct update_share *share = stream->share;
    struct hps_consumer_poll poll = {0};
    struct hps_log_report report = {0};
    struct hps_error err = {0};
    bool lost = false;
    bool continues = still_runs(stream) && read_skipped(stream, &err) == HPS_OK &&
                     share->consumer->ops->poll(
                         share->consumer, poll_ms, (uint32_t)stream->source->max_batch_size,
                         stream->source->max_batch_bytes, &poll, &err) == HPS_OK;
    for (uint32_t i = 0; i < poll.n_records && continues; i++) {
        continues = replay_record(stream, &poll.records[i]);
    }
    for (uint32_t i = 0; i < poll.n_events && continues; i++) {
        continues = replay_event(stream, &poll.events[i], &lost);
    }
    if (lost) {
        reset(stream, "the log no longer has the records");
        return;
    }
    hps_status status = continues ? replay_batch(stream, &report, &err) : HPS_UNAVAILABLE;
    bool reached = report.n_failed == 0 || report.n_applied + report.n_had > 0;
    /* If the tier has the only copy, a failed shard fails the call, but other shards have applied
     * the batch. */
    if ((status != HPS_OK && !stream->sole_copy) || !continues || !reached) {
        retry_later(stream);
        return;
    }
    UPDATE_EACH (stream, partition) {
        partition->replay->from = partition->replay->from >= 0 ? partition->replay->next : -1;
    }
    if (records_left(stream) == 0) {
        update_end_replay(stream);
        check_in(stream, 0);
    }
}

/* A shard applies a batch only if it is behind in no partition. So no batch of updates may come
 * between the last polls of a replay: otherwise, some partition would always be behind. */
static void replay_turn(struct hps_update_stream *stream, uint32_t poll_ms)
{
    replay(stream, poll_ms < REPLAY_POLL_MS ? poll_ms : REPLAY_POLL_MS);
    for (unsigned n = 0; n < STRETCH_POLLS && stream->share->consumer != NULL &&
                         records_left(stream) <= (int64_t)stream->source->max_batch_size;
         n++) {
        replay(stream, REPLAY_POLL_MS);
    }
}

/* ---- the turn -------------------------------------------------------------------------------- */

/* Write the positions of the version to the shared tier. */
static void set_positions(struct hps_update_stream *stream)
{
    struct hps_error err = {0};
    if (update_set_shared_positions(stream->version, &err) != HPS_OK) {
        UPDATE_LOG(stream, WARN,
                   "shared tier not updated: the version's position could not be written to it; "
                   "retried",
                   HPS_STR("error", err.text));
        return; /* retried in the next turn */
    }
    stream->share->positions_due = false;
    stream->share->wait_ms = CHECK_MS_MIN;
    update_end_replay(stream);
    if (stream->share->phase == UPDATE_SHARE_CURRENT) {
        stream->share->phase = UPDATE_SHARE_BEHIND;
    }
    check_in(stream, 0);
}

void update_share_turn(struct hps_update_stream *stream, uint32_t poll_ms)
{
    struct update_share *share = stream->share;
    if (share->space == NULL) {
        return;
    }
    share->wait_ms = share->wait_ms < CHECK_MS_MIN ? CHECK_MS_MIN : share->wait_ms;
    take_report(stream);
    if (share->positions_due) {
        set_positions(stream);
    }
    if (share->consumer != NULL) {
        replay_turn(stream, poll_ms);
    } else if (share->phase != UPDATE_SHARE_BYPASSED && hps_clock_us() >= share->due_us) {
        check(stream);
    }
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * A version whose rows are also in a tier that is shared with other daemons: where it is there,
 * what a batch is in the log's own terms, and how shards that are behind are brought on:
 *
 *     look ─▶ behind ─▶ replay: a second consumer, from the lowest position to the published one
 *      ▲        │                                   │
 *      │        └▶ the log does not have it, ─▶ reset: they are emptied
 *      └────────── or too much of it ◀──────────────┘
 *
 * On the stream's thread `update`, but for hps_updater_place.
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

/* ---- where a version is ---------------------------------------------------------------------- */

struct place {
    struct hps_buf positions; /* struct hps_log_position */
    bool apart;
    struct hps_error *err;
};

static hps_status place_one(void *ctx, const void *key, size_t key_size, const void *value,
                            size_t value_size)
{
    struct place *place = ctx;
    char topic[HPS_UPDATE_TOPIC_BYTES_MAX];
    int32_t number;
    struct hps_position position;
    if (!hps_position_key_parse(key, key_size, topic, &number)) {
        return HPS_OK;
    }
    hps_status status = hps_position_decode(value, value_size, &position);
    if (status != HPS_OK) {
        return hps_error_set(place->err, status,
                             "the stored position of partition %" PRId32 " of topic '%s': %s",
                             number, topic, hps_status_text(status));
    }
    place->apart = place->apart || position.skipped != HPS_POSITION_WHOLE;
    if (position.cluster[0] == '\0' && position.next == position.start) {
        return HPS_OK; /* of a manifest: nothing has been applied yet */
    }
    const struct hps_log_position at = {.partition =
                                            hps_log_partition(position.cluster, topic, number),
                                        .offset = position.next,
                                        .start = position.start};
    status = hps_buf_append(&place->positions, &at, sizeof(at));
    return status == HPS_OK ? HPS_OK : hps_error_set(place->err, status, "no memory for positions");
}

hps_status hps_updater_place(struct hps_version *version, struct hps_error *err)
{
    struct hps_space *space = hps_update_shared(version);
    struct place place = {.err = err};
    if (space == NULL) {
        return HPS_OK;
    }
    const struct hps_store_ops *ops = space->store->ops;
    hps_buf_init(&place.positions, SIZE_MAX / 2);
    hps_status status = hps_update_positions(version, place_one, &place);
    if (status == HPS_OK && place.apart && !hps_update_shared_alone(version)) {
        ops->log->leave(space);
    } else if (status == HPS_OK) {
        const void *positions = place.positions.data;
        status = ops->log->positions_set(
            space, positions, (uint32_t)(place.positions.size / sizeof(struct hps_log_position)));
        if (status != HPS_OK) {
            status = hps_error_set(err, status, "no memory for positions");
        }
    }
    hps_buf_fini(&place.positions);
    return status;
}

bool update_is_apart(const struct hps_update_stream *stream)
{
    bool apart = false;
    for (uint32_t i = 0; i < stream->n_partitions; i++) {
        const struct update_partition *partition = &stream->partitions[i];
        const struct hps_position *at = partition->dirty ? &partition->read : &partition->applied;
        apart =
            apart || ((partition->known || partition->dirty) && at->skipped != HPS_POSITION_WHOLE);
    }
    return apart && stream->shared != NULL && !stream->shared_alone;
}

/* ---- a batch in the log's terms -------------------------------------------------------------- */

static uint64_t id_of(const struct update_partition *partition, const struct hps_position *at)
{
    return hps_log_partition(at->cluster, partition->topic, partition->number);
}

uint32_t update_spans(struct hps_update_stream *stream, const struct hps_update_part *parts,
                      uint32_t n_parts, struct hps_log_span *spans, uint32_t *part_spans)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < stream->n_partitions && stream->shared != NULL; i++) {
        struct update_partition *partition = &stream->partitions[i];
        const struct hps_position *read = &partition->read;
        /* where one moves that has a lower tier, the shared one is told afterwards */
        if (!partition->dirty || (partition->moved && !stream->shared_alone)) {
            continue;
        }
        const struct hps_position *applied = &partition->applied;
        bool follows = (partition->known || partition->adopted) &&
                       (applied->cluster[0] == '\0' || /* of a manifest */
                        strcmp(applied->cluster, read->cluster) == 0);
        partition->span = n;
        spans[n++] = (struct hps_log_span){.partition = id_of(partition, read),
                                           .start = read->start,
                                           .first = follows ? applied->next : read->start,
                                           .next = read->next};
    }
    for (uint32_t i = 0; i < n_parts && n > 0; i++) {
        part_spans[i] = stream->partitions[parts[i].source].span;
    }
    return n;
}

bool update_adopt(struct hps_update_stream *stream, const int64_t *starts)
{
    struct hps_log_position *at = hps_calloc(stream->n_partitions, sizeof(*at));
    uint32_t n = 0;
    for (uint32_t i = 0; i < stream->n_partitions && at != NULL; i++) {
        const struct update_partition *partition = &stream->partitions[i];
        if (starts[i] >= 0 && !partition->asked) {
            at[n++] = (struct hps_log_position){
                .partition =
                    hps_log_partition(stream->cluster, partition->topic, partition->number),
                .start = partition->known ? partition->applied.start : starts[i]};
        }
    }
    hps_status status =
        at == NULL ? HPS_NO_MEMORY
        : n == 0   ? HPS_OK
                 : stream->shared->store->ops->log->positions_get(stream->shared, &no_limit, at, n);
    if (status != HPS_OK) {
        HPS_LOG(WARN, "updates", "updates wait: the positions of the shared tier are not known",
                HPS_STR("model", stream->model), HPS_I64("version", stream->number),
                HPS_STR("error", hps_status_text(status)));
    }
    n = 0;
    for (uint32_t i = 0; i < stream->n_partitions && status == HPS_OK; i++) {
        struct update_partition *partition = &stream->partitions[i];
        if (starts[i] < 0 || partition->asked) {
            continue;
        }
        partition->asked = true;
        const struct hps_log_position *has = &at[n++];
        if (has->offset != has->start) { /* others have been here before */
            /* Before the start, too: the log's end, or what it begins with now, is a later one.
             * Where a shard is that does not name the partition nobody knows, then. */
            int64_t start = has->offset < has->start ? -1 : has->start;
            partition->applied = (struct hps_position){.next = has->offset,
                                                       .start = start,
                                                       .skipped = HPS_POSITION_WHOLE,
                                                       .frozen = HPS_POSITION_WHOLE};
            memcpy(partition->applied.cluster, stream->cluster, sizeof(stream->cluster));
            partition->dirty = true;
            partition->adopted = true;
        }
    }
    hps_free(at);
    return status == HPS_OK;
}

void update_ask_shared(struct hps_update_stream *stream)
{
    struct hps_log_position *at = hps_calloc(stream->n_partitions, sizeof(*at));
    uint32_t n = 0;
    for (uint32_t i = 0; i < stream->n_partitions && at != NULL; i++) {
        struct update_partition *partition = &stream->partitions[i];
        partition->shared_at = 0;
        if (partition->state == HPS_PARTITION_STARTING && !partition->known) {
            at[n++].partition =
                hps_log_partition(stream->cluster, partition->topic, partition->number);
        }
    }
    bool asks = n > 0 && stream->shared != NULL && !stream->shared_alone;
    bool told = asks && stream->shared->store->ops->log->positions_get(stream->shared, &no_limit,
                                                                       at, n) == HPS_OK;
    n = 0;
    for (uint32_t i = 0; i < stream->n_partitions && told; i++) {
        struct update_partition *partition = &stream->partitions[i];
        if (partition->state == HPS_PARTITION_STARTING && !partition->known) {
            partition->shared_at = at[n++].offset;
        }
    }
    hps_free(at);
}

/* ---- bringing on: when ----------------------------------------------------------------------- */

static void look_in(struct hps_update_stream *stream, uint32_t ms)
{
    stream->repair.due_us = hps_clock_us() + (uint64_t)ms * 1000;
}

static void look_later(struct hps_update_stream *stream)
{
    struct update_repair *repair = &stream->repair;
    look_in(stream, repair->wait_ms);
    repair->wait_ms = repair->wait_ms * 2 < LOOK_MS_MAX ? repair->wait_ms * 2 : LOOK_MS_MAX;
}

static void end_replay(struct hps_update_stream *stream)
{
    struct update_repair *repair = &stream->repair;
    if (repair->consumer != NULL) {
        repair->consumer->ops->close(repair->consumer);
        repair->consumer = NULL;
        hps_update_decoder_clear(repair->decoder);
    }
    for (uint32_t i = 0; i < stream->n_partitions; i++) {
        stream->partitions[i].replay = -1;
    }
}

static void take_report(struct hps_update_stream *stream)
{
    struct hps_log_report report;
    hps_update_shared_take(stream->version, &report);
    hps_metric_add(stream->metrics.gaps, report.n_gap);
    hps_metric_add(stream->metrics.failed, report.n_failed);
    if (report.n_gap + report.n_failed == 0 || stream->repair.behind) {
        return;
    }
    stream->repair.behind = true;
    stream->repair.wait_ms = LOOK_MS_MIN;
    look_in(stream, report.n_gap > 0 ? 0 : LOOK_MS_MIN);
}

/* ---- emptying -------------------------------------------------------------------------------- */

static void reset(struct hps_update_stream *stream, const char *why)
{
    struct hps_log_report report = {0};
    end_replay(stream);
    hps_status status = stream->shared->store->ops->log->reset(stream->shared, &no_limit, &report);
    if (status == HPS_OK) {
        HPS_LOG(WARN, "updates", "shards of a shared tier that were behind are emptied",
                HPS_STR("model", stream->model), HPS_I64("version", stream->number),
                HPS_U64("shards", report.n_applied), HPS_U64("failed", report.n_failed),
                HPS_STR("reason", why));
        hps_metric_add(stream->metrics.resets, report.n_applied);
    } else if (!stream->repair.told) {
        atomic_store(&stream->version->shared_lost, stream->shared_alone);
        HPS_LOG(ERROR, "updates",
                stream->shared_alone
                    ? "a shared tier that has the only copy has lost rows: load the model again"
                    : "shards of a shared tier are behind and cannot be emptied",
                HPS_STR("model", stream->model), HPS_I64("version", stream->number),
                HPS_STR("reason", why), HPS_STR("error", hps_status_text(status)));
        stream->repair.told = true;
    }
    stream->repair.n_replays = 0;
    look_later(stream);
}

/* ---- applying again -------------------------------------------------------------------------- */

static struct update_partition *partition_by_id(struct hps_update_stream *stream, uint64_t id)
{
    for (uint32_t i = 0; i < stream->n_partitions; i++) {
        struct update_partition *partition = &stream->partitions[i];
        if (partition->known && id_of(partition, &partition->applied) == id) {
            return partition;
        }
    }
    return NULL;
}

/* Whether the log can be read again there: NULL; or why not. out_later: not yet. Only a partition
 * that runs has been seen to be what it was, and a compacted one lacks what came in between. */
static const char *refusal(const struct update_partition *partition, bool listed, bool *out_later)
{
    *out_later = !listed || (partition != NULL && (partition->state == HPS_PARTITION_STARTING ||
                                                   partition->checking || partition->unproved));
    if (*out_later) {
        return "not yet";
    }
    if (partition == NULL) {
        return "the log has no such partition";
    }
    if (partition->state != HPS_PARTITION_RUNNING) {
        return "a partition stands still";
    }
    return partition->compaction == HPS_COMPACTION_NO ? NULL : "a topic may be compacted";
}

static hps_status open_replay(struct hps_update_stream *stream, struct hps_error *err)
{
    struct update_repair *repair = &stream->repair;
    struct hps_updater *updater = stream->updater;
    const struct hps_updater_options *options = &updater->options;
    char name[176];
    snprintf(name, sizeof(name), "%s-%" PRId64 "-again", stream->model, stream->number);
    const struct hps_consumer_options wanted = {.name = name,
                                                .model = stream->model,
                                                .filters = options->filters,
                                                .n_filters = options->n_filters};
    if (repair->decoder == NULL) {
        const struct hps_update_decoder_options of = {.version = stream->version,
                                                      .key_bytes = options->key_bytes,
                                                      .nan_allowed = &updater->nan_allowed};
        repair->decoder = hps_update_decoder_new(&of);
    }
    if (repair->decoder == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for updates");
    }
    hps_status status =
        options->log->ops->consumer_open(options->log, &wanted, &repair->consumer, err);
    if (status != HPS_OK) {
        repair->consumer = NULL;
    }
    for (uint32_t i = 0; i < stream->n_partitions && status == HPS_OK; i++) {
        const struct update_partition *partition = &stream->partitions[i];
        const struct hps_consumer_position at = {partition->topic, partition->number,
                                                 partition->replay};
        if (partition->replay >= 0) {
            status = repair->consumer->ops->assign(repair->consumer, &at, i, err);
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
        const char *why = refusal(partition, stream->listed, &later);
        if (later) {
            end_replay(stream);
            look_later(stream);
            return;
        }
        if (why != NULL) {
            reset(stream, why);
            return;
        }
        partition->replay = behind[i].offset;
        partition->replays = behind[i].offset;
        partition->replay_passed = false;
        n_records += partition->applied.next - behind[i].offset;
    }
    if (n_records > REPLAY_RECORDS_MAX || ++stream->repair.n_replays > REPLAYS_MAX) {
        reset(stream, n_records > REPLAY_RECORDS_MAX ? "too many records" : "it does not help");
        return;
    }
    hps_status status = open_replay(stream, &err);
    if (status == HPS_OK) {
        HPS_LOG(INFO, "updates",
                "shards of a shared tier are behind: the log is applied to them again",
                HPS_STR("model", stream->model), HPS_I64("version", stream->number),
                HPS_I64("records", n_records));
        return;
    }
    HPS_LOG(WARN, "updates", "shards of a shared tier are behind, and the log is not read",
            HPS_STR("model", stream->model), HPS_I64("version", stream->number),
            HPS_STR("error", err.text));
    end_replay(stream);
    look_later(stream);
}

static void look(struct hps_update_stream *stream)
{
    struct update_repair *repair = &stream->repair;
    uint32_t capacity = stream->n_partitions + 1;
    uint32_t n = 0;
    struct hps_log_position *behind = hps_calloc(capacity, sizeof(*behind));
    if (behind == NULL) {
        look_later(stream);
        return;
    }
    hps_status status =
        stream->shared->store->ops->log->behind(stream->shared, &no_limit, behind, capacity, &n);
    if (status == HPS_OK && n == 0) {
        if (repair->behind) {
            HPS_LOG(INFO, "updates", "no shard of the shared tier is behind any more",
                    HPS_STR("model", stream->model), HPS_I64("version", stream->number));
        }
        atomic_store(&stream->version->shared_lost, false);
        repair->behind = false;
        repair->told = false;
        repair->n_replays = 0;
        repair->wait_ms = LOOK_MS_MIN;
        look_in(stream, LOOK_MS_MAX);
    } else if (n > 0) { /* also while others cannot be asked */
        repair->behind = true;
        begin_replay(stream, behind, n);
    } else if (status == HPS_RANGE) {
        repair->behind = true;
        reset(stream, "they have lost their positions");
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
    struct update_repair *repair = &stream->repair;
    struct update_partition *partition = &stream->partitions[record->tag];
    struct hps_update_fate fate;
    struct hps_error err = {0};
    if (partition->replay < 0) {
        return true;
    }
    if (record->offset >= partition->applied.next) { /* it comes with a batch of updates */
        partition->replays = partition->applied.next;
        partition->replay_passed = true;
        return true;
    }
    const struct hps_update_bytes bytes = update_bytes(stream, repair->consumer->ops, record);
    if (hps_update_decoder_add(repair->decoder, &partition->route, &bytes, true, &fate, &err) !=
        HPS_OK) {
        return false;
    }
    partition->replays = record->offset + 1;
    hps_metric_add(stream->metrics.replayed, 1);
    return true;
}

static void replay_up_to(struct update_partition *partition, int64_t offset)
{
    int64_t next = partition->applied.next;
    if (offset > partition->replays) {
        partition->replays = offset < next ? offset : next;
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
        if (partition->replay >= 0 && partition->replays > partition->replay) {
            partition->span = n;
            spans[n++] = (struct hps_log_span){.partition = id_of(partition, &partition->applied),
                                               .start = partition->applied.start,
                                               .first = partition->replay,
                                               .next = partition->replays};
        }
    }
    for (uint32_t i = 0; i < n_parts; i++) {
        part_spans[i] = stream->partitions[parts[i].source].span;
    }
    return n;
}

static hps_status replay_batch(struct hps_update_stream *stream, struct hps_log_report *out_report,
                               struct hps_error *err)
{
    struct hps_update_decoder *decoder = stream->repair.decoder;
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
        partition->replay = partition->replay >= 0 ? partition->replays : -1;
        all = all && (partition->replay < 0 || partition->replay >= partition->applied.next);
    }
    return all;
}

/* The log is what it was when the replay began. */
static bool still_runs(const struct hps_update_stream *stream)
{
    bool runs = true;
    for (uint32_t i = 0; i < stream->n_partitions; i++) {
        const struct update_partition *partition = &stream->partitions[i];
        runs = runs && (partition->replay < 0 || (partition->state == HPS_PARTITION_RUNNING &&
                                                  !partition->checking && !partition->unproved));
    }
    return runs;
}

/* Updates went on, and what they brought was passed over here while it was not applied yet: shards
 * that were still behind have not got it. */
static hps_status read_passed(struct hps_update_stream *stream, struct hps_error *err)
{
    struct hps_consumer *consumer = stream->repair.consumer;
    hps_status status = HPS_OK;
    for (uint32_t i = 0; i < stream->n_partitions && status == HPS_OK; i++) {
        struct update_partition *partition = &stream->partitions[i];
        const struct hps_consumer_position at = {partition->topic, partition->number,
                                                 partition->replay};
        if (partition->replay >= 0 && partition->replay_passed &&
            partition->replay < partition->applied.next) {
            partition->replay_passed = false;
            status = consumer->ops->assign(consumer, &at, i, err);
        }
    }
    return status;
}

static void replay(struct hps_update_stream *stream, uint32_t poll_ms)
{
    const struct hps_updater_options *options = &stream->updater->options;
    struct update_repair *repair = &stream->repair;
    struct hps_consumer_poll poll = {0};
    struct hps_log_report report = {0};
    struct hps_error err = {0};
    bool lost = false;
    bool goes_on = still_runs(stream) && read_passed(stream, &err) == HPS_OK &&
                   repair->consumer->ops->poll(repair->consumer, poll_ms, options->rows_max,
                                               options->bytes_max, &poll, &err) == HPS_OK;
    for (uint32_t i = 0; i < poll.n_records && goes_on; i++) {
        goes_on = replay_record(stream, &poll.records[i]);
    }
    for (uint32_t i = 0; i < poll.n_events && goes_on; i++) {
        goes_on = replay_event(stream, &poll.events[i], &lost);
    }
    if (lost) {
        reset(stream, "the log does not have the records any more");
        return;
    }
    hps_status status = goes_on ? replay_batch(stream, &report, &err) : HPS_UNAVAILABLE;
    bool reached = report.n_failed == 0 || report.n_applied + report.n_had > 0;
    /* where it is the only copy, what fails keeps a batch from counting, not from being applied */
    if ((status != HPS_OK && !stream->shared_alone) || !goes_on || !reached) {
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
    for (unsigned n = 0; n < STRETCH_POLLS && stream->repair.consumer != NULL; n++) {
        int64_t n_records = 0;
        for (uint32_t i = 0; i < stream->n_partitions; i++) {
            const struct update_partition *partition = &stream->partitions[i];
            n_records += partition->replay < 0 ? 0 : partition->applied.next - partition->replay;
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
        HPS_LOG(WARN, "updates", "the shared tier is not told where a version is",
                HPS_STR("model", stream->model), HPS_I64("version", stream->number),
                HPS_STR("error", err.text));
        return; /* the next turn */
    }
    stream->place_due = false;
    stream->repair.behind = !stream->apart;
    stream->repair.wait_ms = LOOK_MS_MIN;
    end_replay(stream);
    look_in(stream, 0);
}

void update_share_turn(struct hps_update_stream *stream, uint32_t poll_ms)
{
    struct update_repair *repair = &stream->repair;
    if (stream->shared == NULL) {
        return;
    }
    repair->wait_ms = repair->wait_ms < LOOK_MS_MIN ? LOOK_MS_MIN : repair->wait_ms;
    take_report(stream);
    if (stream->place_due) {
        place_again(stream);
    }
    if (stream->apart) {
        end_replay(stream);
        repair->behind = false;
    } else if (repair->consumer != NULL) {
        replay_turn(stream, poll_ms);
    } else if (hps_clock_us() >= repair->due_us) {
        look(stream);
    }
}

void update_share_close(struct hps_update_stream *stream)
{
    end_replay(stream);
    hps_update_decoder_free(stream->repair.decoder);
    stream->repair.decoder = NULL;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Gathers the facts about a partition, has partition/next.c decide the step that follows an event,
 * and carries it out. On the stream's thread `update`.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "server/update/partition/steps.h"

/* An event of a partition, and the step that follows from it. */
struct stepping {
    struct hps_update_stream *stream;
    struct update_partition *partition;
    const struct update_facts *facts;
    const struct update_event *event;
    const struct update_step *step;
    const char *text; /* of the event; "": none */
};

/* ---- facts ----------------------------------------------------------------------------------- */

struct update_facts update_facts_of(const struct hps_update_stream *stream,
                                    const struct update_partition *partition)
{
    enum hps_config_update_start start = stream->source->start;
    const struct hps_position *at = partition->applied;
    const struct hps_position *read = partition->read;
    const struct update_listed *listed = partition->listed;
    const struct update_proof *proof = partition->proof;
    return (struct update_facts){
        .phase = partition->phase,
        .reason = partition->why,
        .now_ms = hps_clock_forward_ms(),
        .paused = partition->paused,
        .frozen = stream->frozen,
        .sole_copy = stream->sole_copy,
        .basis = partition->basis,
        .other_cluster = at->cluster[0] != '\0' && stream->cluster[0] != '\0' &&
                         strcmp(at->cluster, stream->cluster) != 0,
        .next = at->next,
        .read = read->next,
        .skipped = at->frozen,
        .last = at->last.known ? at->last.offset : -1,
        .witness = read->witness.known ? read->witness.offset : -1,
        .listed = listed->present,
        .compaction = listed->compaction,
        .delete_retention_ms = listed->delete_retention_ms,
        .kept_ms = listed->kept_ms,
        .starts_latest = start == HPS_CONFIG_UPDATE_START_LATEST && listed->initial,
        .starts_by_files = start == HPS_CONFIG_UPDATE_START_FILES,
        .shared = stream->shares,
        .shared_next = partition->shared_at,
        .same_ms = partition->identity->at_ms,
        .high = proof->response.asked_us > 0 ? proof->response.high : -1,
        .as_of_ms = proof->as_of_ms,
        .seen_ms = proof->seen_ms,
        .seen_next = proof->seen_next,
        .base_ms = read->base_ms,
    };
}

/* ---- reasons --------------------------------------------------------------------------------- */

static void write_reason(const struct stepping *at, char *out, size_t size)
{
    const struct update_partition *partition = at->partition;
    const struct hps_position *applied = partition->applied;
    const char *silent = partition->proof->response.text;
#define TEXT(because, ...)                      \
    case UPDATE_BECAUSE_##because:              \
        (void)snprintf(out, size, __VA_ARGS__); \
        break
    switch (at->step->reason) {
        TEXT(NOTHING, "%s", "");
        TEXT(SILENT, "the leader does not answer%s%.150s", silent[0] != '\0' ? ": " : "", silent);
        TEXT(NO_TOPIC, "the topic does not exist");
        TEXT(FORBIDDEN, "hpsd's Kafka user may not read the topic: grant Describe, Read");
        TEXT(REFUSED, "%s", at->text);
        TEXT(LINEAGE, "frozen: the next record is for versions of another lineage");
        TEXT(RETENTION, "offsets %" PRId64 " to %" PRId64 " were removed: retention has passed",
             applied->next, at->event->low - 1);
        TEXT(TOMBSTONES,
             "not up to date for longer than delete.retention.ms (%" PRId64
             "): deletes may be compacted away",
             partition->listed->delete_retention_ms);
        TEXT(OLD_FILES,
             "the files are older than the retention of the topic (retention.ms %" PRId64
             "): updates before offset %" PRId64 " were removed",
             partition->listed->kept_ms, at->event->low);
        TEXT(CLUSTER, "the position is of cluster %.60s, the log is of cluster %.60s",
             applied->cluster, at->stream->cluster);
        TEXT(PAST_END,
             "offset %" PRId64 " is past the end %" PRId64 ": the topic was recreated or truncated",
             applied->next, at->event->high);
        TEXT(LAST_MISSING,
             "the last record, at offset %" PRId64
             ", does not exist: the topic was recreated or truncated",
             applied->last.offset);
        TEXT(LAST_OTHER, "another record is at offset %" PRId64 ": the topic was recreated",
             applied->last.offset);
        TEXT(WITNESS, "another record, or none, is at offset %" PRId64 ": the topic was recreated",
             at->facts->witness);
        TEXT(TOPIC_ID, "the topic's id is %s, and was %s before: the topic was recreated",
             partition->listed->topic_id, partition->read->topic_id);
    case UPDATE_REASONS:
        HPS_ASSERT(false);
    }
#undef TEXT
}

static const char STOPPED_AT_GAP[] = "partition stopped at a gap: see reason; load newer files, or "
                                     "`hpsctl updates` seek or accept-gap";
/* The log messages of partitions that stop by themselves. */
static const char *const STOPPED[UPDATE_PHASES] = {
    [UPDATE_GAP] = STOPPED_AT_GAP,
    [UPDATE_REPLACED] = STOPPED_AT_GAP,
    [UPDATE_MISSING] = "partition gone: see reason; updates resume once the topic is listed again",
    [UPDATE_FAILED] = "partition failed: see reason; fix the cause, then `hpsctl updates resume`",
};

static void log_stopped(struct stepping *at)
{
    struct update_partition *partition = at->partition;
    const char *message = STOPPED[at->step->phase];
    if (message == NULL) {
        return;
    }
    UPDATE_LOG_PARTITION(
        at->stream, partition, ERROR, message, HPS_I64("offset", partition->read->next),
        HPS_STR("state", hps_partition_state_text(update_partition_state(partition->phase))),
        HPS_STR("reason", partition->reason));
    partition->stop_logged = true;
}

/* ---- positions ------------------------------------------------------------------------------- */

/* Read again from the applied position. */
static void restore(struct stepping *at)
{
    struct update_partition *partition = at->partition;
    struct update_proof *proof = partition->proof;
    const struct hps_witness witness = partition->read->witness;
    int64_t next = partition->applied->next;
    *partition->read = *partition->applied;
    partition->read->as_of_ms = proof->as_of_ms; /* a proof stays valid */
    if (witness.known && witness.offset < next) {
        partition->read->witness = witness;
    }
    proof->seen_next = proof->seen_next < next ? proof->seen_next : next;
    partition->identity->candidate.known = false;
    /* If the batch with an adopted position was dropped, the next batch stores the position. */
    partition->pending.dirty = partition->pending.dirty || partition->basis == UPDATE_ADOPTED;
}

static void begin(struct stepping *at)
{
    struct update_partition *partition = at->partition;
    const struct update_step *step = at->step;
    bool by_time = at->event->time_ms > 0 && !step->buried;
    *partition->read =
        (struct hps_position){.next = step->offset,
                              .start = step->offset,
                              .skipped = step->skipped,
                              .before_start = !step->buried,
                              .as_of_ms = partition->proof->as_of_ms,
                              .base_ms = by_time ? at->event->time_ms : at->facts->now_ms,
                              .frozen = HPS_POSITION_WHOLE};
    memcpy(partition->read->cluster, at->stream->cluster, sizeof(partition->read->cluster));
    partition->proof->seen_next = step->offset;
    partition->identity->candidate.known = false;
    /* The next batch stores it: the decision must be the same after a restart. */
    partition->pending.dirty = true;
}

/* hps_position.skipped if the partition continues at `offset`. */
static int64_t skipped_by(const struct update_partition *partition, int64_t offset)
{
    const struct hps_position *at = partition->applied;
    if (!update_is_published(partition)) {
        return update_phase_has_gap(partition->phase) ? HPS_POSITION_LOST : HPS_POSITION_WHOLE;
    }
    if (update_phase_has_gap(partition->phase) || at->skipped == HPS_POSITION_LOST) {
        return HPS_POSITION_LOST;
    }
    int64_t from = at->skipped >= 0 ? at->skipped : at->next;
    return offset <= from ? HPS_POSITION_WHOLE : from;
}

static void move(struct stepping *at)
{
    struct update_partition *partition = at->partition;
    struct hps_position *read = partition->read;
    const struct hps_position *applied = partition->applied;
    int64_t offset = at->step->offset;
    bool same =
        partition->basis != UPDATE_NOWHERE && strcmp(applied->cluster, at->stream->cluster) == 0;
    *read =
        (struct hps_position){.next = offset,
                              .event_time_ms = applied->event_time_ms,
                              .start = same && applied->start <= offset ? applied->start : offset,
                              .skipped = skipped_by(partition, offset),
                              .before_start = partition->basis == UPDATE_NOWHERE,
                              .frozen = HPS_POSITION_WHOLE,
                              .base_ms = at->facts->now_ms};
    bool thaws = at->event->kind == UPDATE_ON_OFFSETS;
    if (same && (thaws || (partition->phase == UPDATE_GAP && offset == applied->next))) {
        /* The witness will show whether the topic was recreated meanwhile. */
        read->last = thaws ? read->last : applied->last;
        read->witness = applied->witness;
        memcpy(read->topic_id, applied->topic_id, sizeof(read->topic_id));
    }
    memcpy(read->cluster, at->stream->cluster, sizeof(read->cluster));
    partition->pending.moved = true;
    partition->pending.dirty = true;
    partition->note[0] = '\0';
    partition->to_commit = -1;
    partition->committed = -1;
    partition->proof->seen_next = offset;
    partition->identity->candidate.known = false;
}

/* ---- witnesses and as-of --------------------------------------------------------------------- */

static void take_candidate(struct update_partition *partition)
{
    partition->identity->candidate = partition->read->last;
    partition->identity->candidate_ms = hps_clock_forward_ms();
}

void update_identity_due(struct update_partition *partition, bool own)
{
    struct update_identity *identity = partition->identity;
    if (own) {
        identity->needs = UPDATE_IDENTITY_OWN;
        identity->asked = false;
        identity->again_us = 0;
        take_candidate(partition);
    } else if (identity->needs == UPDATE_IDENTITY_PROVED) {
        identity->needs = UPDATE_IDENTITY_ANY;
    }
}

static void advance_witness(struct update_partition *partition, int64_t time_ms)
{
    struct update_identity *identity = partition->identity;
    struct hps_witness *witness = &partition->read->witness;
    if (!identity->candidate.known) {
        take_candidate(partition);
    }
    if (identity->candidate.known && identity->candidate_ms <= time_ms) {
        *witness = identity->candidate.offset > witness->offset ? identity->candidate : *witness;
        identity->candidate.known = false;
    }
}

/* Keep the stored as-of young, also while no records arrive. Otherwise a restart would report
 * deletes as lost that were read. */
static void store_as_of(struct update_partition *partition)
{
    int64_t old_ms = partition->proof->as_of_ms - partition->applied->as_of_ms;
    partition->pending.dirty =
        partition->pending.dirty || (partition->listed->compaction == HPS_COMPACTION_YES &&
                                     partition->listed->delete_retention_ms > 0 &&
                                     old_ms > partition->listed->delete_retention_ms / 4);
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void set_phase(struct stepping *at)
{
    struct update_partition *partition = at->partition;
    const struct update_step *step = at->step;
    unsigned changes = UPDATE_DO_ASSIGN | UPDATE_DO_UNASSIGN;
    if (step->phase == partition->phase && step->reason == UPDATE_BECAUSE_NOTHING &&
        (step->actions & changes) == 0) {
        return;
    }
    partition->phase = step->phase;
    partition->why = step->reason;
    write_reason(at, partition->reason, sizeof(partition->reason));
    if ((step->actions & UPDATE_DO_UNASSIGN) != 0) {
        partition->unassign_due = true;
        partition->identity->asked = false;
        partition->identity->none_us = 0;
        log_stopped(at);
    }
}

static void assign(struct stepping *at)
{
    struct update_partition *partition = at->partition;
    struct hps_update_stream *stream = at->stream;
    const struct hps_consumer_position from = {partition->topic, partition->number,
                                               at->step->offset};
    struct hps_error err = {0};
    partition->unassign_due = false;
    if (update_ops(stream)->assign(stream->consumer, &from,
                                   (uint32_t)(partition - stream->partitions), &err) != HPS_OK) {
        const struct update_event refused = {.kind = UPDATE_ON_REFUSED};
        update_step(stream, partition, &refused, err.text);
    }
}

static void claim(struct stepping *at)
{
    struct update_partition *partition = at->partition;
    struct update_proof *proof = partition->proof;
    uint32_t n = 0;
    while (n < proof->n_ends && proof->ends[n].asked_ms <= at->step->as_of_ms) {
        n++;
    }
    proof->n_ends -= n;
    memmove(proof->ends, proof->ends + n, proof->n_ends * sizeof(proof->ends[0]));
    partition->read->as_of_ms = at->step->as_of_ms;
    if (!partition->pending.dirty) {
        proof->as_of_ms = at->step->as_of_ms;
        store_as_of(partition);
    }
}

static void carry_out(struct stepping *at)
{
    struct update_partition *partition = at->partition;
    const unsigned actions = at->step->actions;
    if ((actions & UPDATE_DO_RESTORE) != 0) {
        restore(at);
    }
    partition->identity->at_ms = at->step->same_ms;
    partition->proof->seen_ms = at->step->seen_ms;
    if (at->event->kind == UPDATE_ON_ENDS && at->event->time_ms > 0) {
        partition->proof->seen_next = partition->read->next;
    }
    if ((actions & UPDATE_DO_BEGIN) != 0) {
        begin(at);
    }
    if ((actions & UPDATE_DO_MOVE) != 0) {
        move(at);
    }
    set_phase(at);
    if ((actions & UPDATE_DO_FORGET_ENDS) != 0) {
        partition->proof->n_ends = 0;
    }
    if ((actions & UPDATE_DO_ASK_OFFSETS) != 0) {
        at->stream->begin_due_us = 0;
    }
    if ((actions & UPDATE_DO_ASK_LATER) != 0) {
        at->stream->begin_due_us = update_backoff_until(at->stream);
    }
    if ((actions & UPDATE_DO_ASK_WITNESS) != 0) {
        update_identity_due(partition, at->event->kind != UPDATE_ON_LISTED);
    }
    if ((actions & UPDATE_DO_ADVANCE) != 0) {
        advance_witness(partition, at->event->time_ms);
    }
    if ((actions & UPDATE_DO_CLAIM) != 0) {
        claim(at);
    }
    if ((actions & UPDATE_DO_ASSIGN) != 0) {
        assign(at);
    }
}

struct update_step update_step(struct hps_update_stream *stream, struct update_partition *partition,
                               const struct update_event *event, const char *text)
{
    const struct update_facts facts = update_facts_of(stream, partition);
    const struct update_step step = update_next(&facts, event);
    struct stepping at = {stream, partition, &facts, event, &step, text != NULL ? text : ""};
    carry_out(&at);
    return step;
}

void update_start_over(struct hps_update_stream *stream)
{
    const struct update_event lost = {.kind = UPDATE_ON_LOST};
    UPDATE_EACH (stream, partition) {
        if (update_phase_reads(partition->phase)) {
            (void)update_step(stream, partition, &lost, NULL);
        }
    }
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Decides the next step of a partition: see next.h. Any thread.
 */
#include "server/update/partition/next.h"

#include "base/assert.h"

#define TO(phase) (1U << UPDATE_##phase)
enum {
    READING = TO(CHECKING) | TO(RUNNING),
    HAS_GAP = TO(GAP) | TO(REPLACED),
    ANY_PHASE = (1U << UPDATE_PHASES) - 1,
};

/* The phases that may follow each phase. */
static const unsigned STEPS[UPDATE_PHASES] = {
    [UPDATE_STARTING] = ANY_PHASE & ~TO(BLOCKED),
    [UPDATE_CHECKING] = ANY_PHASE & ~TO(BLOCKED),
    [UPDATE_RUNNING] = ANY_PHASE & ~TO(CHECKING),
    [UPDATE_PAUSED] = TO(STARTING) | TO(PAUSED) | TO(REPLACED),
    [UPDATE_BLOCKED] =
        TO(BLOCKED) | TO(STARTING) | TO(RUNNING) | TO(PAUSED) | TO(REPLACED) | TO(FAILED),
    [UPDATE_GAP] = TO(GAP) | TO(STARTING) | TO(RUNNING) | TO(PAUSED) | TO(FAILED),
    [UPDATE_REPLACED] = TO(REPLACED) | TO(STARTING) | TO(RUNNING) | TO(PAUSED) | TO(FAILED),
    [UPDATE_MISSING] = TO(MISSING) | TO(STARTING) | TO(RUNNING) | TO(PAUSED) | TO(FAILED),
    [UPDATE_FAILED] = TO(FAILED) | TO(STARTING) | TO(RUNNING) | TO(PAUSED),
};

/* The phases in which each event can happen. */
static const unsigned EVENTS[UPDATE_EVENTS] = {
    [UPDATE_ON_LISTED] = ANY_PHASE,
    [UPDATE_ON_OFFSETS] = TO(STARTING),
    [UPDATE_ON_RECORD] = TO(CHECKING),
    [UPDATE_ON_CAUGHT_UP] = READING,
    [UPDATE_ON_REFUSED] = READING,
    [UPDATE_ON_LINEAGE] = TO(RUNNING),
    [UPDATE_ON_RESPONSE] = ANY_PHASE,
    [UPDATE_ON_IDENTITY] = READING | TO(PAUSED) | TO(BLOCKED),
    [UPDATE_ON_WITNESS] = READING | TO(PAUSED) | TO(BLOCKED),
    [UPDATE_ON_ENDS] = TO(RUNNING),
    [UPDATE_ON_ABANDONED] = ANY_PHASE,
    [UPDATE_ON_LOST] = READING,
    [UPDATE_ON_PAUSE] = ANY_PHASE,
    [UPDATE_ON_RESUME] = ANY_PHASE,
    [UPDATE_ON_MOVE] = ANY_PHASE,
    [UPDATE_ON_ACCEPT] = HAS_GAP,
    [UPDATE_ON_THAW] = ANY_PHASE,
};

static int64_t max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* ---- steps ----------------------------------------------------------------------------------- */

static struct update_step stay(const struct update_facts *facts)
{
    return (struct update_step){.phase = facts->phase,
                                .skipped = HPS_POSITION_WHOLE,
                                .same_ms = facts->same_ms,
                                .as_of_ms = facts->as_of_ms,
                                .seen_ms = facts->seen_ms};
}

static struct update_step stop(const struct update_facts *facts, enum update_phase phase,
                               enum update_reason reason)
{
    struct update_step step = stay(facts);
    step.phase = phase;
    step.reason = reason;
    step.actions = UPDATE_DO_UNASSIGN;
    return step;
}

static struct update_step start_over(const struct update_facts *facts)
{
    struct update_step step = stop(facts, UPDATE_STARTING, UPDATE_BECAUSE_NOTHING);
    step.actions |= UPDATE_DO_ASK_OFFSETS;
    return step;
}

/* The topic is known to be the same at time_ms. */
static void prove(struct update_step *step, int64_t time_ms)
{
    step->same_ms = max(step->same_ms, time_ms);
}

/* Have the topic's identity proved. A partition without a record that was read needs no proof.
 * witness: -1: none. */
static void identify(const struct update_facts *facts, struct update_step *step, int64_t witness,
                     int64_t next)
{
    if (witness < 0 && next == 0) {
        prove(step, facts->now_ms);
        return;
    }
    step->actions |= UPDATE_DO_ASK_WITNESS;
}

/* Read from `offset`, unless an operator has paused the partition. */
static void run(const struct update_facts *facts, struct update_step *step, enum update_phase phase,
                int64_t offset)
{
    step->phase = facts->paused ? UPDATE_PAUSED : phase;
    step->offset = offset;
    step->actions |= facts->paused ? UPDATE_DO_UNASSIGN : UPDATE_DO_ASSIGN | UPDATE_DO_FORGET_ENDS;
}

/* same: the position moves in the topic that was read. It may have been recreated since: its
 * witness is compared. */
static struct update_step move(const struct update_facts *facts, int64_t offset, bool same)
{
    struct update_step step = stay(facts);
    HPS_ASSERT(offset >= 0);
    step.actions = UPDATE_DO_MOVE;
    step.as_of_ms = 0;
    step.seen_ms = 0;
    run(facts, &step, UPDATE_RUNNING, offset);
    identify(facts, &step, same ? facts->witness : -1, offset);
    return step;
}

/* A command moves the position: at a gap of deletes, accept-gap stays in the same topic. */
static struct update_step move_to(const struct update_facts *facts, int64_t offset)
{
    bool stays = facts->phase == UPDATE_GAP && offset == facts->next && !facts->other_cluster;
    return move(facts, offset, stays);
}

/* ---- where a partition starts ---------------------------------------------------------------- */

/* Whether deletes that were logged since seen_ms may have been compacted away. high: the end of the
 * log. */
static bool lost_deletes(const struct update_facts *facts, int64_t high)
{
    int64_t seen_ms = max(facts->seen_ms, facts->base_ms);
    bool logged = max(high, facts->read) > facts->seen_next;
    return facts->compaction == HPS_COMPACTION_YES && facts->delete_retention_ms >= 0 &&
           seen_ms > 0 && logged && facts->now_ms - seen_ms > facts->delete_retention_ms;
}

static struct update_step start_known(const struct update_facts *facts,
                                      const struct update_event *event)
{
    struct update_facts at = *facts;
    struct update_step step;
    bool checks = at.last >= event->low && at.last < at.next && at.last >= 0;

    at.read = at.next;
    if (at.other_cluster) {
        step = stop(&at, UPDATE_REPLACED, UPDATE_BECAUSE_CLUSTER);
    } else if (at.next > event->high) {
        step = stop(&at, UPDATE_REPLACED, UPDATE_BECAUSE_PAST_END);
    } else if (at.next < event->low) {
        step = stop(&at, UPDATE_GAP, UPDATE_BECAUSE_RETENTION);
    } else if (lost_deletes(&at, event->high)) {
        step = stop(&at, UPDATE_GAP, UPDATE_BECAUSE_TOMBSTONES);
    } else if (!at.frozen && at.skipped >= 0) {
        step = move(&at, at.skipped, true);
    } else {
        step = stay(&at);
        run(&at, &step, checks ? UPDATE_CHECKING : UPDATE_RUNNING, checks ? at.last : at.next);
        identify(&at, &step, at.witness, at.next);
    }
    step.actions |= UPDATE_DO_RESTORE;
    return step;
}

/* Start a partition that has no position. Its rows may lack updates: see step.note. */
static struct update_step start_new(const struct update_facts *facts,
                                    const struct update_event *event)
{
    struct update_step step = stay(facts);
    bool by_time = event->time_ms >= 0;
    int64_t age_ms = by_time ? facts->now_ms - event->time_ms : INT64_MAX;
    int64_t next = by_time ? event->at_time : facts->starts_latest ? event->high : event->low;
    /* `late`: the log has no record from before the start time, but had records before `low`.
     * `cut`: retention may have removed them. `buried`: compaction may have removed deletes. */
    bool late = event->low > 0 && !(by_time && next > event->low);
    bool cut = late && age_ms >= facts->kept_ms;
    bool buried = facts->compaction == HPS_COMPACTION_YES && event->high > event->low &&
                  facts->delete_retention_ms >= 0 && age_ms > facts->delete_retention_ms;

    step.seen_ms = 0;
    step.buried = buried;
    if (facts->starts_by_files && !facts->shared && cut && facts->kept_ms > 0) {
        return stop(facts, UPDATE_GAP, UPDATE_BECAUSE_OLD_FILES);
    }
    if (facts->starts_by_files && !facts->shared && (late || buried)) {
        step.note = buried ? UPDATE_NOTE_DELETES : UPDATE_NOTE_RECORDS;
    }
    if (cut || buried || (late && !facts->shared) || facts->shared_next > event->high) {
        step.skipped = HPS_POSITION_LOST;
    } else if (facts->starts_latest && next > event->low) {
        step.skipped = event->low;
    }
    step.actions = UPDATE_DO_BEGIN;
    run(facts, &step, UPDATE_RUNNING, next);
    identify(facts, &step, -1, next);
    return step;
}

static struct update_step on_offsets(const struct update_facts *facts,
                                     const struct update_event *event)
{
    struct update_step step;
    if (event->status == HPS_OK && facts->listed) {
        return facts->basis == UPDATE_NOWHERE ? start_new(facts, event) : start_known(facts, event);
    }
    switch (event->status) {
    case HPS_OK:
    case HPS_NOT_FOUND:
        return stop(facts, UPDATE_MISSING, UPDATE_BECAUSE_NO_TOPIC);
    case HPS_UNAVAILABLE:
        step = stay(facts);
        step.reason = UPDATE_BECAUSE_SILENT;
        step.actions = UPDATE_DO_ASK_LATER;
        return step;
    default:
        return stop(facts, UPDATE_FAILED,
                    event->status == HPS_PERMISSION ? UPDATE_BECAUSE_FORBIDDEN
                                                    : UPDATE_BECAUSE_REFUSED);
    }
}

/* ---- is it the same topic? ------------------------------------------------------------------- */

static struct update_step on_listed(const struct update_facts *facts)
{
    struct update_step step = stay(facts);
    bool stopped = facts->phase == UPDATE_PAUSED || facts->phase == UPDATE_BLOCKED;
    if (update_phase_reads(facts->phase) && facts->other_cluster) {
        return start_over(facts);
    }
    if (!facts->listed) {
        return step;
    }
    if (facts->phase == UPDATE_MISSING || facts->phase == UPDATE_STARTING) {
        step = start_over(facts);
        step.phase = facts->basis == UPDATE_PUBLISHED && facts->paused ? UPDATE_PAUSED : step.phase;
    } else if (facts->phase == UPDATE_RUNNING || (stopped && facts->basis == UPDATE_PUBLISHED)) {
        identify(facts, &step, facts->witness, facts->read);
    }
    return step;
}

/* The end of the log moved back: the topic was recreated, or truncated by an unclean election. */
static struct update_step on_response(const struct update_facts *facts,
                                      const struct update_event *event)
{
    bool back = facts->high >= 0 && event->high < facts->high;
    struct update_step step =
        back && update_phase_reads(facts->phase) ? start_over(facts) : stay(facts);
    step.actions |= back ? UPDATE_DO_FORGET_ENDS : 0;
    return step;
}

static struct update_step on_identity(const struct update_facts *facts,
                                      const struct update_event *event)
{
    struct update_step step = stay(facts);
    if (!event->matches) {
        return stop(facts, UPDATE_REPLACED, UPDATE_BECAUSE_TOPIC_ID);
    }
    step.actions = UPDATE_DO_ADVANCE;
    prove(&step, event->time_ms);
    return step;
}

static struct update_step on_witness(const struct update_facts *facts,
                                     const struct update_event *event)
{
    struct update_step step = stay(facts);
    bool compacts = facts->compaction != HPS_COMPACTION_NO;
    bool none = event->offset < 0;
    bool removed = event->low > facts->witness || (compacts && event->offset > facts->witness) ||
                   (none && event->settled && facts->compaction == HPS_COMPACTION_YES);
    if (facts->witness < 0 || event->matches || removed) {
        step.actions = facts->witness < 0 ? UPDATE_DO_LEARN : UPDATE_DO_ADVANCE;
        prove(&step, event->time_ms);
        return step;
    }
    if (none && facts->high > facts->witness) {
        return step; /* a new leader may not return its last records yet */
    }
    return stop(facts, UPDATE_REPLACED, UPDATE_BECAUSE_WITNESS);
}

/* ---- records and ends ------------------------------------------------------------------------ */

/* The last applied record is not in the log. Compaction may have removed it. */
static struct update_step without_last(const struct update_facts *facts)
{
    struct update_step step = stay(facts);
    if (facts->compaction == HPS_COMPACTION_NO) {
        return stop(facts, UPDATE_REPLACED, UPDATE_BECAUSE_LAST_MISSING);
    }
    step.phase = UPDATE_RUNNING;
    return step;
}

static struct update_step on_record(const struct update_facts *facts,
                                    const struct update_event *event)
{
    struct update_step step = stay(facts);
    if (event->offset != facts->last) {
        return without_last(facts);
    }
    step.phase = UPDATE_RUNNING;
    return event->matches ? step : stop(facts, UPDATE_REPLACED, UPDATE_BECAUSE_LAST_OTHER);
}

static struct update_step on_ends(const struct update_facts *facts,
                                  const struct update_event *event)
{
    struct update_step step = stay(facts);
    if (facts->basis != UPDATE_PUBLISHED || facts->frozen) {
        return step;
    }
    if (lost_deletes(facts, event->high)) {
        return stop(facts, UPDATE_GAP, UPDATE_BECAUSE_TOMBSTONES);
    }
    step.seen_ms = event->time_ms > 0 ? event->time_ms : step.seen_ms;
    if (event->sure_ms > 0) {
        step.as_of_ms = event->sure_ms;
        step.actions = UPDATE_DO_CLAIM;
    }
    return step;
}

/* ---- commands -------------------------------------------------------------------------------- */

static struct update_step on_pause(const struct update_facts *facts)
{
    bool stored = facts->basis == UPDATE_PUBLISHED;
    bool stops = update_phase_reads(facts->phase) || facts->phase == UPDATE_BLOCKED ||
                 (facts->phase == UPDATE_STARTING && stored);
    if (facts->paused || !stops) {
        return stay(facts); /* MISSING and FAILED: it pauses when it would start again */
    }
    return stop(facts, UPDATE_PAUSED,
                facts->phase == UPDATE_BLOCKED ? UPDATE_BECAUSE_LINEAGE : UPDATE_BECAUSE_NOTHING);
}

static struct update_step on_resume(const struct update_facts *facts)
{
    bool stopped = facts->phase == UPDATE_BLOCKED || facts->phase == UPDATE_FAILED;
    return stopped || facts->paused ? start_over(facts) : stay(facts);
}

/* Continue with the first record that exists now. After a gap of deletes, continue at the position:
 * the earlier records would not bring the deletes back. */
static struct update_step on_accept(const struct update_facts *facts,
                                    const struct update_event *event)
{
    bool stays = facts->phase == UPDATE_GAP && facts->reason == UPDATE_BECAUSE_TOMBSTONES &&
                 facts->read >= event->low && facts->read <= event->high;
    return move_to(facts, stays ? facts->read : event->low);
}

static struct update_step on_thaw(const struct update_facts *facts)
{
    bool skipped = update_phase_reads(facts->phase) && facts->skipped >= 0;
    return skipped || facts->phase == UPDATE_BLOCKED ? start_over(facts) : stay(facts);
}

/* ---- any event ------------------------------------------------------------------------------- */

/* A gap may have been found after records of the batch: it is checked again. */
static struct update_step on_abandoned(const struct update_facts *facts,
                                       const struct update_event *event)
{
    bool gap = update_phase_has_gap(facts->phase) && !event->keeps_gap;
    bool restarts = update_phase_reads(facts->phase) || gap;
    struct update_step step = restarts ? start_over(facts) : stay(facts);
    step.actions |= UPDATE_DO_RESTORE;
    step.seen_ms = facts->as_of_ms;
    return step;
}

static struct update_step decide(const struct update_facts *facts, const struct update_event *event)
{
    switch (event->kind) {
    case UPDATE_ON_LISTED:
        return on_listed(facts);
    case UPDATE_ON_OFFSETS:
        return on_offsets(facts, event);
    case UPDATE_ON_RECORD:
        return on_record(facts, event);
    case UPDATE_ON_CAUGHT_UP:
        return facts->phase == UPDATE_CHECKING ? without_last(facts) : stay(facts);
    case UPDATE_ON_REFUSED:
        return stop(facts, UPDATE_FAILED, UPDATE_BECAUSE_REFUSED);
    case UPDATE_ON_LINEAGE:
        return facts->sole_copy ? stop(facts, UPDATE_BLOCKED, UPDATE_BECAUSE_LINEAGE) : stay(facts);
    case UPDATE_ON_RESPONSE:
        return on_response(facts, event);
    case UPDATE_ON_IDENTITY:
        return on_identity(facts, event);
    case UPDATE_ON_WITNESS:
        return on_witness(facts, event);
    case UPDATE_ON_ENDS:
        return on_ends(facts, event);
    case UPDATE_ON_ABANDONED:
        return on_abandoned(facts, event);
    case UPDATE_ON_LOST:
        return start_over(facts);
    case UPDATE_ON_PAUSE:
        return on_pause(facts);
    case UPDATE_ON_RESUME:
        return on_resume(facts);
    case UPDATE_ON_MOVE:
        return move_to(facts, event->offset);
    case UPDATE_ON_ACCEPT:
        return on_accept(facts, event);
    case UPDATE_ON_THAW:
        return on_thaw(facts);
    case UPDATE_EVENTS:
        break;
    }
    HPS_ASSERT(false);
    return stay(facts);
}

struct update_step update_next(const struct update_facts *facts, const struct update_event *event)
{
    HPS_ASSERT((unsigned)facts->phase < UPDATE_PHASES && (unsigned)event->kind < UPDATE_EVENTS);
    HPS_ASSERT((EVENTS[event->kind] & 1U << facts->phase) != 0);
    struct update_step step = decide(facts, event);
    HPS_ASSERT((STEPS[facts->phase] & 1U << step.phase) != 0);
    HPS_ASSERT(!facts->paused || !update_phase_reads(step.phase) ||
               event->kind == UPDATE_ON_RESUME);
    HPS_ASSERT(step.reason != UPDATE_BECAUSE_NOTHING || step.phase <= UPDATE_PAUSED ||
               step.phase == facts->phase);
    return step;
}

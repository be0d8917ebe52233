/* SPDX-License-Identifier: Apache-2.0
 *
 * What leaders have proved. As-of of a partition is the time of a question to its own leader: all
 * that was logged before it lies before the end that was answered, so once we have read up to
 * there and applied it, nothing older is missing.
 *
 *     heard: end 120, asked 10:00:00.1 ─▶ ends[] ─▶ read.next ≥ 120 ─▶ as-of 10:00:00.1
 *
 * Two things make that untrue, and are asked for:
 * - the topic is another one of the same name. A *witness*, a record that was read once, is
 *   recalled whenever topics are listed, and before a partition counts as fresh after an outage;
 *   what is another record now is another topic. Where topics have ids, the id tells. That is known
 *   until the next list is due; when neither list nor witness has come by then, as-of stands still.
 * - deletes of a compacted topic that nobody can read any more: the log removes tombstones after a
 *   while, so what is read that long after it may have been logged is a gap.
 *
 * On the stream's thread `update`.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "server/update/internal.h"

enum {
    RECALL_MS = 10000, /* after which a witness is asked for once more */
};
/* For how long nothing is found at a witness before it counts as removed; and between questions. */
#define NONE_US       UINT64_C(10000000)
#define NONE_AGAIN_US UINT64_C(100000)

static int64_t wall_ms(void)
{
    return (int64_t)hps_clock_wall_ms();
}

static const struct hps_consumer_ops *ops(const struct hps_update_stream *stream)
{
    return stream->consumer->ops;
}

/* ---- ends ------------------------------------------------------------------------------------ */

/* Of the same end the later question proves more; without room every other one goes, so that those
 * that stay are spread over how far we are behind. */
static void add_end(struct update_partition *partition, const struct hps_leader_word *word)
{
    const struct update_end end = {word->high, word->asked_unix_ms};
    uint32_t n = partition->n_ends;
    if (n > 0 && partition->ends[n - 1].high == end.high) {
        partition->ends[n - 1] = end;
        return;
    }
    if (n == UPDATE_ENDS_MAX) {
        n = 0;
        for (uint32_t i = 0; i < UPDATE_ENDS_MAX; i += 2) {
            partition->ends[n++] = partition->ends[i];
        }
    }
    partition->ends[n++] = end;
    partition->n_ends = n;
}

/* Records that were there are no more: another topic, or what an unclean election leaves of it. */
static void went_back(struct hps_update_stream *stream, struct update_partition *partition)
{
    partition->n_ends = 0;
    if (partition->state == HPS_PARTITION_RUNNING) {
        update_stop_partition(stream, partition, HPS_PARTITION_STARTING, "");
        stream->begin_due_us = 0;
    }
}

static void take_word(struct hps_update_stream *stream, struct update_partition *partition)
{
    struct hps_leader_word word = {0};
    ops(stream)->heard(partition->watch, &word);
    if (word.asked_us < partition->word.asked_us) {
        return; /* of a leader that was one, and answered late */
    }
    bool answered = word.asked_us > partition->word.asked_us;
    uint64_t before_us = partition->word.asked_us;
    bool back = answered && before_us > 0 && word.high < partition->word.high;
    bool silent = answered && before_us > 0 && word.asked_us > before_us + UPDATE_LEADER_SILENT_US;
    partition->word = word;
    if (!answered) {
        return;
    }
    partition->heard_ms = word.asked_unix_ms;
    partition->high = word.high;
    if (back) {
        went_back(stream, partition);
    }
    if (partition->state == HPS_PARTITION_RUNNING) {
        add_end(partition, &word);
    }
    if (silent) { /* what it leads may be another topic by now */
        partition->unproved = true;
        partition->recalling = false;
        stream->topics_due_us = 0;
    }
}

bool update_leader_silent(const struct update_partition *partition)
{
    uint64_t asked_us = partition->word.asked_us;
    return asked_us == 0 || hps_clock_us() > asked_us + UPDATE_LEADER_SILENT_US;
}

void update_forget_words(struct hps_update_stream *stream)
{
    for (uint32_t i = 0; i < stream->n_partitions; i++) {
        struct update_partition *partition = &stream->partitions[i];
        partition->watch = NULL;
        partition->word = (struct hps_leader_word){0};
        partition->n_ends = 0;
        partition->recalling = false;
        partition->none_us = 0;
    }
}

/* ---- is it the same topic? ------------------------------------------------------------------- */

void update_gap_other(struct hps_update_stream *stream, struct update_partition *partition,
                      int64_t accept, const char *fmt, ...)
{
    char reason[sizeof(partition->reason)];
    int64_t same_ms = partition->same_ms;
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(reason, sizeof(reason), fmt, args);
    va_end(args);
    partition->as_of_ms = partition->as_of_ms < same_ms ? partition->as_of_ms : same_ms;
    partition->read.as_of_ms = partition->as_of_ms;
    partition->dirty = partition->known; /* to be stored, so that a restart does not claim it */
    update_gap(stream, partition, accept, "%s", reason);
    partition->other = true;
}

static void is_same(struct update_partition *partition, int64_t at_ms)
{
    struct hps_position *read = &partition->read;
    if (partition->candidate.known && partition->candidate.offset > read->witness.offset) {
        read->witness = partition->candidate;
    }
    partition->unproved = false;
    partition->none_us = 0;
    if (at_ms > partition->same_ms || partition->same_ms > wall_ms()) { /* a clock set back */
        partition->same_ms = at_ms;
    }
}

static bool stands_or_runs(const struct update_partition *partition)
{
    return partition->state == HPS_PARTITION_RUNNING ||
           (partition->state == HPS_PARTITION_PAUSED && partition->known);
}

/* Since then it ought to have been asked for again: as often as topics are listed. */
static int64_t same_due_ms(const struct hps_update_stream *stream,
                           const struct update_partition *partition)
{
    return partition->same_ms + (int64_t)stream->updater->options.topics_ms;
}

int64_t update_same_until_ms(const struct hps_update_stream *stream,
                             const struct update_partition *partition)
{
    bool nothing_read = !partition->read.witness.known && partition->read.next == 0;
    bool asked = stands_or_runs(partition) && !nothing_read;
    return asked ? same_due_ms(stream, partition) + UPDATE_LOG_TIMEOUT_MS : INT64_MAX;
}

/* What is at, or behind, the end of what was read before it was known by what: from now on it is
 * known by that. */
static void learn(struct update_partition *partition, const struct hps_recalled *now)
{
    if (now->offset >= 0) {
        partition->read.witness = (struct hps_witness){
            .known = true, .offset = now->offset, .time_ms = now->time_unix_ms, .hash = now->hash};
        partition->dirty = partition->dirty || partition->known;
    }
    partition->learning = false;
    is_same(partition, partition->recall_ms);
}

enum none { NONE_WAIT, NONE_ASK, NONE_GONE, NONE_REMOVED };

/* There is nothing from the witness on, it seems. A broker that leads since a moment ago gives out
 * its last records only once the others have them, too; one that led before, and does not know yet
 * that it does no more, lacks them; and a topic made anew grows. Who leads now says by the end that
 * it tells: its word is waited for, and where the witness lies before that end it is asked for
 * again. Only compaction leaves nothing for good. */
static enum none judge_none(struct update_partition *partition, const struct hps_recalled *now)
{
    const struct hps_leader_word *word = &partition->word;
    if (word->asked_us < now->asked_us) {
        return NONE_WAIT;
    }
    if (word->high <= partition->read.witness.offset) {
        return NONE_GONE;
    }
    uint64_t now_us = hps_clock_us();
    bool lasts = partition->none_us > 0 && now_us - partition->none_us > NONE_US;
    partition->none_us = partition->none_us > 0 ? partition->none_us : now_us;
    partition->none_again_us = now_us + NONE_AGAIN_US;
    return lasts && partition->compaction == HPS_COMPACTION_YES ? NONE_REMOVED : NONE_ASK;
}

static void gap_witness(struct hps_update_stream *stream, struct update_partition *partition,
                        const struct hps_recalled *now)
{
    update_gap_other(stream, partition, now->low >= 0 ? now->low : 0,
                     "another record, or none, is at offset %" PRId64 ": the topic was made anew",
                     partition->read.witness.offset);
}

static void judge(struct hps_update_stream *stream, struct update_partition *partition,
                  const struct hps_recalled *now)
{
    const struct hps_witness *witness = &partition->read.witness;
    bool same = now->offset == witness->offset && now->hash == witness->hash &&
                now->time_unix_ms == witness->time_ms;
    bool removed = now->low > witness->offset || /* by retention, or by compaction */
                   (now->offset > witness->offset && partition->compaction != HPS_COMPACTION_NO);
    if (!same && !removed && now->offset < 0) {
        enum none none = judge_none(partition, now);
        if (none == NONE_WAIT) {
            partition->recalling = true; /* the answer stays */
            return;
        }
        if (none == NONE_ASK) {
            partition->unproved = true; /* update_hear asks again */
            return;
        }
        removed = none == NONE_REMOVED;
    }
    if (!same && !removed) {
        gap_witness(stream, partition, now);
        return;
    }
    if (same) {
        memcpy(partition->read.topic_id, partition->topic_id, sizeof(partition->topic_id));
    }
    is_same(partition, partition->recall_ms);
}

/* Of the record to be asked for; without a witness the last one before what is read next. */
static int64_t witness_offset(const struct update_partition *partition)
{
    const struct hps_position *read = &partition->read;
    return partition->learning ? read->next - 1 : read->witness.offset;
}

static void ask_witness(struct hps_update_stream *stream, struct update_partition *partition)
{
    if (partition->watch != NULL) {
        partition->recall_ms = wall_ms();
        partition->recall_offset = witness_offset(partition);
        partition->recalling = true;
        ops(stream)->recall(partition->watch, partition->recall_offset);
    }
}

static void take_recalled(struct hps_update_stream *stream, struct update_partition *partition)
{
    struct hps_recalled now = {0};
    if (!partition->recalling || !stands_or_runs(partition) ||
        !ops(stream)->recalled(partition->watch, &now) ||
        now.asked_offset != partition->recall_offset || now.status != HPS_OK) {
        return; /* refused: asked again with the next list of topics */
    }
    partition->recalling = false;
    if (partition->learning) {
        learn(partition, &now);
    } else {
        judge(stream, partition, &now);
    }
}

bool update_identify(struct hps_update_stream *stream, struct update_partition *partition,
                     bool listed)
{
    struct hps_position *read = &partition->read;
    bool known = read->topic_id[0] != '\0' && partition->topic_id[0] != '\0';
    partition->candidate = read->last;
    partition->recalling = false;
    partition->unproved = false;
    if (known && listed && strcmp(read->topic_id, partition->topic_id) != 0) {
        update_gap_other(stream, partition, 0,
                         "the topic's id is %s, of what was read it was %s: the topic was made "
                         "anew",
                         partition->topic_id, read->topic_id);
        return false;
    }
    partition->learning = !read->witness.known && read->next > 0;
    if ((known && listed && !partition->learning) || (!read->witness.known && read->next == 0)) {
        is_same(partition, stream->listed_ms);
        return true;
    }
    partition->unproved = true;
    ask_witness(stream, partition);
    return true;
}

void update_ask_identity(struct hps_update_stream *stream)
{
    for (uint32_t i = 0; i < stream->n_partitions; i++) {
        struct update_partition *partition = &stream->partitions[i];
        bool unproved = partition->unproved; /* what was proved stays so until the answer */
        bool learned = partition->read.witness.known;
        bool asked = partition->recalling && wall_ms() - partition->recall_ms < RECALL_MS;
        if (!stands_or_runs(partition) || partition->checking || asked) {
            continue; /* a question that is under way is not begun anew: its answer may take time */
        }
        if (update_identify(stream, partition, true) && partition->unproved && learned) {
            partition->unproved = unproved;
        }
    }
}

/* Whether the witness is to be asked for without a list of topics, which does not come. */
static bool is_identity_wanted(const struct hps_update_stream *stream,
                               const struct update_partition *partition)
{
    bool askable = partition->learning || partition->read.witness.known;
    bool again = partition->none_us == 0 || hps_clock_us() >= partition->none_again_us;
    int64_t now_ms = wall_ms();
    bool overdue = now_ms > same_due_ms(stream, partition) + UPDATE_LOG_TIMEOUT_MS / 2 ||
                   partition->same_ms > now_ms; /* a clock set back */
    bool asked = partition->recalling && now_ms - partition->recall_ms < RECALL_MS &&
                 now_ms >= partition->recall_ms; /* an answer that refuses stays one */
    return askable && again && (partition->unproved || overdue) && !asked &&
           stands_or_runs(partition);
}

void update_hear(struct hps_update_stream *stream)
{
    struct hps_error err = {0};
    for (uint32_t i = 0; i < stream->n_partitions; i++) {
        struct update_partition *partition = &stream->partitions[i];
        if (partition->watch == NULL &&
            ops(stream)->watch(stream->consumer, partition->topic, partition->number,
                               &partition->watch, &err) != HPS_OK) {
            continue; /* no memory: the next time */
        }
        take_word(stream, partition);
        if (is_identity_wanted(stream, partition)) {
            ask_witness(stream, partition);
        }
        take_recalled(stream, partition);
    }
}

/* ---- as-of ----------------------------------------------------------------------------------- */

bool update_lost_tombstones(const struct update_partition *partition, int64_t high)
{
    /* Of what is read nothing can be lost any more, be it applied and proved or not. */
    const struct hps_position *read = &partition->read;
    int64_t seen_ms = partition->seen_ms > 0 ? partition->seen_ms : read->base_ms;
    bool logged = high > partition->seen_next || partition->read.next > partition->seen_next;
    return partition->compaction == HPS_COMPACTION_YES && partition->delete_retention_ms >= 0 &&
           seen_ms > 0 && logged && wall_ms() - seen_ms > partition->delete_retention_ms;
}

void update_gap_tombstones(struct hps_update_stream *stream, struct update_partition *partition)
{
    update_gap(stream, partition, partition->read.next,
               "behind or away for longer than delete.retention.ms (%" PRId64
               "): deletes may be compacted away",
               partition->delete_retention_ms);
}

/* Stored as-of is to be young enough that a restart does not find tombstones lost that were seen:
 * also where there is nothing to read. */
static void store_as_of(struct update_partition *partition)
{
    int64_t old_ms = partition->as_of_ms - partition->applied.as_of_ms;
    partition->dirty = partition->dirty || (partition->compaction == HPS_COMPACTION_YES &&
                                            partition->delete_retention_ms > 0 &&
                                            old_ms > partition->delete_retention_ms / 4);
}

static void prove(struct hps_update_stream *stream, struct update_partition *partition)
{
    struct hps_position *read = &partition->read;
    uint32_t n = 0;
    while (n < partition->n_ends && partition->ends[n].high <= read->next) {
        n++;
    }
    int64_t high = partition->n_ends > 0 ? partition->ends[partition->n_ends - 1].high : 0;
    if (update_lost_tombstones(partition, high)) {
        update_gap_tombstones(stream, partition);
        return;
    }
    if (n == 0) {
        return;
    }
    partition->seen_ms = partition->ends[n - 1].asked_ms;
    partition->seen_next = read->next;
    int64_t same_until_ms = update_same_until_ms(stream, partition);
    while (n > 0 && partition->ends[n - 1].asked_ms > same_until_ms) {
        n--;
    }
    if (n == 0 || partition->unproved) {
        return; /* it may be another topic: the ends are kept */
    }
    read->as_of_ms = partition->ends[n - 1].asked_ms; /* later, unless the clock was set back */
    partition->n_ends -= n;
    memmove(partition->ends, partition->ends + n, partition->n_ends * sizeof(partition->ends[0]));
    if (!partition->dirty) {
        partition->as_of_ms = read->as_of_ms;
        store_as_of(partition);
    }
}

void update_prove(struct hps_update_stream *stream)
{
    for (uint32_t i = 0; i < stream->n_partitions && !stream->frozen; i++) {
        struct update_partition *partition = &stream->partitions[i];
        if (partition->state == HPS_PARTITION_RUNNING && partition->known && !partition->checking) {
            prove(stream, partition);
        }
    }
}

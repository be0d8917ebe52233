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
 *   until the next list is due; when neither list nor witness has come by then, as-of stalls.
 * - deletes of a compacted topic that nobody can read any more: the log removes tombstones after a
 *   while, so what is read that long after it may have been logged is a gap.
 *
 * On the stream's thread `update`.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "server/update/internal.h"

enum {
    RECALL_MS = 10000, /* after which a witness is asked for once more */
};
/* For how long nothing is found at a witness before it counts as removed; and between questions. */
#define NONE_US       UINT64_C(10000000)
#define NONE_AGAIN_US UINT64_C(100000)

/* ---- ends ------------------------------------------------------------------------------------ */

/* Of the same end the later question proves more; without room every other one goes, so that those
 * that stay are spread over how far we are behind. */
static void add_end(struct update_partition *partition, const struct hps_leader_response *word)
{
    const struct update_end end = {word->high, word->asked_unix_ms};
    uint32_t n = partition->proof.n_ends;
    HPS_ASSERT(n <= UPDATE_ENDS_MAX);
    if (n > 0 && partition->proof.ends[n - 1].high == end.high) {
        partition->proof.ends[n - 1] = end;
        return;
    }
    if (n == UPDATE_ENDS_MAX) {
        n = 0;
        for (uint32_t i = 0; i < UPDATE_ENDS_MAX; i += 2) {
            partition->proof.ends[n++] = partition->proof.ends[i];
        }
    }
    partition->proof.ends[n++] = end;
    partition->proof.n_ends = n;
}

/* Records that were there are no more: another topic, or what an unclean election leaves of it. */
static void went_back(struct hps_update_stream *stream, struct update_partition *partition)
{
    partition->proof.n_ends = 0;
    if (update_reads(partition)) {
        update_stop_partition(stream, partition, UPDATE_STARTS, "");
        stream->topics.begin_due_us = 0;
    }
}

/* The leader answered nobody for a while, and does again since since_us: what it leads may be
 * another topic by now. What was asked for since then tells; what was asked before does not. */
static void doubt(struct hps_update_stream *stream, struct update_partition *partition,
                  uint64_t since_us)
{
    struct update_identity *same = &partition->same;
    same->state = same->state == UPDATE_PROVED ? UPDATE_UNPROVED : same->state;
    same->asked = same->asked && same->asked_us >= since_us;
    update_list_soon(stream);
}

static void take_word(struct hps_update_stream *stream, struct update_partition *partition)
{
    struct update_proof *proof = &partition->proof;
    struct hps_leader_response word = {0};
    update_ops(stream)->leader_response(proof->watch, &word);
    HPS_ASSERT(word.since_us <= word.asked_us);
    if (word.asked_us < proof->word.asked_us) {
        return; /* of a leader that was one, and answered late */
    }
    uint64_t before_us = proof->word.asked_us;
    bool answered = word.asked_us > before_us;
    bool back = answered && before_us > 0 && word.high < proof->word.high;
    bool broke = answered && before_us > 0 && word.since_us > before_us;
    proof->word = word;
    if (!answered) {
        return;
    }
    proof->heard_ms = word.asked_unix_ms;
    partition->high = word.high;
    if (back) {
        went_back(stream, partition);
    }
    if (update_reads(partition)) {
        add_end(partition, &word);
    }
    if (broke) {
        doubt(stream, partition, word.since_us);
    }
}

bool update_leader_silent(const struct update_partition *partition)
{
    uint64_t asked_us = partition->proof.word.asked_us;
    return asked_us == 0 || hps_clock_us() > asked_us + UPDATE_LEADER_SILENT_US;
}

void update_forget_words(struct hps_update_stream *stream)
{
    for (uint32_t i = 0; i < stream->n_partitions; i++) {
        struct update_partition *partition = &stream->partitions[i];
        partition->proof.watch = NULL;
        partition->proof.word = (struct hps_leader_response){0};
        partition->proof.n_ends = 0;
        partition->same.asked = false;
        partition->same.none_us = 0;
    }
}

/* ---- is it the same topic? ------------------------------------------------------------------- */

void update_gap_other(struct hps_update_stream *stream, struct update_partition *partition,
                      const char *fmt, ...)
{
    char reason[sizeof(partition->reason)];
    struct update_proof *proof = &partition->proof;
    int64_t same_ms = partition->same.at_ms;
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(reason, sizeof(reason), fmt, args);
    va_end(args);
    proof->as_of_ms = proof->as_of_ms < same_ms ? proof->as_of_ms : same_ms;
    partition->read.as_of_ms = proof->as_of_ms;
    /* To be stored, so that a restart does not claim what was claimed. */
    partition->pending.dirty = update_is_published(partition);
    partition->pending.moved = partition->pending.moved && partition->pending.dirty;
    partition->pending.passed_over = partition->pending.passed_over && partition->pending.dirty;
    update_stop_partition(stream, partition, UPDATE_OTHER, reason);
}

static void is_same(struct update_partition *partition, int64_t at_ms)
{
    struct hps_position *read = &partition->read;
    if (partition->same.candidate.known &&
        partition->same.candidate.offset > read->witness.offset) {
        read->witness = partition->same.candidate;
    }
    partition->same.state = UPDATE_PROVED;
    partition->same.none_us = 0;
    if (at_ms > partition->same.at_ms) {
        partition->same.at_ms = at_ms;
    }
}

static bool stands_or_runs(const struct update_partition *partition)
{
    bool stands = partition->phase == UPDATE_PAUSED || partition->phase == UPDATE_BLOCKED;
    return update_reads(partition) || (stands && update_is_published(partition));
}

/* Since then it ought to have been asked for again: as often as topics are listed. */
static int64_t same_due_ms(const struct hps_update_stream *stream,
                           const struct update_partition *partition)
{
    return partition->same.at_ms + (int64_t)stream->updater->options.topics_ms;
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
        partition->pending.dirty = partition->pending.dirty || update_is_published(partition);
    }
    is_same(partition, partition->same.asked_ms);
}

enum none { NONE_WAIT, NONE_ASK, NONE_GONE, NONE_REMOVED };

/* There is nothing from the witness on, it seems. A broker that leads since a moment ago gives out
 * its last records only once the others have them, too; one that led before, and does not know yet
 * that it does no more, lacks them; and a topic made anew grows. Who leads now says by the end that
 * it tells: its word is waited for, and where the witness lies before that end it is asked for
 * again. Only compaction leaves nothing for good. */
static enum none judge_none(struct update_partition *partition, const struct hps_recalled *now)
{
    const struct hps_leader_response *word = &partition->proof.word;
    if (word->asked_us < now->asked_us) {
        return NONE_WAIT;
    }
    if (word->high <= partition->read.witness.offset) {
        return NONE_GONE;
    }
    uint64_t now_us = hps_clock_us();
    bool lasts = partition->same.none_us > 0 && now_us - partition->same.none_us > NONE_US;
    partition->same.none_us = partition->same.none_us > 0 ? partition->same.none_us : now_us;
    partition->same.none_again_us = now_us + NONE_AGAIN_US;
    return lasts && partition->listed.compaction == HPS_COMPACTION_YES ? NONE_REMOVED : NONE_ASK;
}

static void gap_witness(struct hps_update_stream *stream, struct update_partition *partition)
{
    update_gap_other(stream, partition,
                     "another record, or none, is at offset %" PRId64 ": the topic was recreated",
                     partition->read.witness.offset);
}

static void judge(struct hps_update_stream *stream, struct update_partition *partition,
                  const struct hps_recalled *now)
{
    const struct hps_witness *witness = &partition->read.witness;
    bool same = now->offset == witness->offset && now->hash == witness->hash &&
                now->time_unix_ms == witness->time_ms;
    bool removed =
        now->low > witness->offset || /* by retention, or by compaction */
        (now->offset > witness->offset && partition->listed.compaction != HPS_COMPACTION_NO);
    if (!same && !removed && now->offset < 0) {
        enum none none = judge_none(partition, now);
        if (none == NONE_WAIT) {
            partition->same.asked = true; /* the answer stays */
            return;
        }
        if (none == NONE_ASK) {
            partition->same.state = UPDATE_UNPROVED; /* update_hear asks again */
            return;
        }
        removed = none == NONE_REMOVED;
    }
    if (!same && !removed) {
        gap_witness(stream, partition);
        return;
    }
    if (same) {
        memcpy(partition->read.topic_id, partition->listed.topic_id,
               sizeof(partition->listed.topic_id));
    }
    is_same(partition, partition->same.asked_ms);
}

/* Of the record to be asked for; without a witness the last one before what is read next. */
static int64_t witness_offset(const struct update_partition *partition)
{
    const struct hps_position *read = &partition->read;
    return partition->same.state == UPDATE_LEARNS ? read->next - 1 : read->witness.offset;
}

static void ask_witness(struct hps_update_stream *stream, struct update_partition *partition)
{
    if (partition->proof.watch != NULL) {
        struct update_identity *same = &partition->same;
        same->asked_ms = hps_clock_forward_ms();
        same->asked_us = hps_clock_us();
        same->asked_offset = witness_offset(partition);
        same->asked = true;
        HPS_ASSERT(same->asked_offset >= 0);
        update_ops(stream)->recall(partition->proof.watch, same->asked_offset);
    }
}

static void take_recalled(struct hps_update_stream *stream, struct update_partition *partition)
{
    struct hps_recalled now = {0};
    if (!partition->same.asked || !stands_or_runs(partition) ||
        !update_ops(stream)->recalled(partition->proof.watch, &now) ||
        now.asked_offset != partition->same.asked_offset || now.status != HPS_OK) {
        return; /* refused: asked again with the next list of topics */
    }
    partition->same.asked = false;
    if (partition->same.state == UPDATE_LEARNS) {
        learn(partition, &now);
    } else {
        judge(stream, partition, &now);
    }
}

bool update_identify(struct hps_update_stream *stream, struct update_partition *partition,
                     bool listed)
{
    struct hps_position *read = &partition->read;
    struct update_identity *same = &partition->same;
    const char *topic_id = partition->listed.topic_id;
    bool known = read->topic_id[0] != '\0' && topic_id[0] != '\0';
    bool learns = !read->witness.known && read->next > 0;
    bool nothing_read = !read->witness.known && read->next == 0;
    same->candidate = read->last;
    same->asked = false;
    same->state = UPDATE_PROVED;
    if (known && listed && strcmp(read->topic_id, topic_id) != 0) {
        update_gap_other(stream, partition,
                         "the topic's id is %s, of what was read it was %s: the topic was "
                         "recreated",
                         topic_id, read->topic_id);
        return false;
    }
    if ((known && listed && !learns) || nothing_read) {
        is_same(partition, stream->topics.listed_ms);
        return true;
    }
    same->state = learns ? UPDATE_LEARNS : UPDATE_UNPROVED;
    ask_witness(stream, partition);
    return true;
}

void update_ask_identity(struct hps_update_stream *stream)
{
    for (uint32_t i = 0; i < stream->n_partitions; i++) {
        struct update_partition *partition = &stream->partitions[i];
        struct update_identity *same = &partition->same;
        bool proved = same->state == UPDATE_PROVED;
        bool asked = same->asked && hps_clock_forward_ms() - same->asked_ms < RECALL_MS;
        if (!stands_or_runs(partition) || partition->phase == UPDATE_CHECKS || asked) {
            continue; /* a question that is under way is not begun anew: its answer may take time */
        }
        if (update_identify(stream, partition, true) && proved && same->state == UPDATE_UNPROVED) {
            same->state = UPDATE_PROVED; /* what was proved stays so until the answer */
        }
    }
}

/* Whether the witness is to be asked for without a list of topics, which does not come. */
static bool is_identity_wanted(const struct hps_update_stream *stream,
                               const struct update_partition *partition)
{
    const struct hps_position *read = &partition->read;
    bool askable = partition->same.state == UPDATE_LEARNS ? read->next > 0 : read->witness.known;
    bool again = partition->same.none_us == 0 || hps_clock_us() >= partition->same.none_again_us;
    int64_t now_ms = hps_clock_forward_ms();
    bool overdue = now_ms > same_due_ms(stream, partition) + UPDATE_LOG_TIMEOUT_MS / 2;
    bool asked = partition->same.asked && /* an answer that refuses stays one */
                 now_ms - partition->same.asked_ms < RECALL_MS;
    return askable && again && (update_is_unproved(partition) || overdue) && !asked &&
           stands_or_runs(partition);
}

void update_hear(struct hps_update_stream *stream)
{
    struct hps_error err = {0};
    HPS_ASSERT(stream->consumer != NULL);
    for (uint32_t i = 0; i < stream->n_partitions; i++) {
        struct update_partition *partition = &stream->partitions[i];
        if (partition->proof.watch == NULL &&
            update_ops(stream)->watch(stream->consumer, partition->topic, partition->number,
                                      &partition->proof.watch, &err) != HPS_OK) {
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
    int64_t seen_ms = partition->proof.seen_ms > 0 ? partition->proof.seen_ms : read->base_ms;
    bool logged =
        high > partition->proof.seen_next || partition->read.next > partition->proof.seen_next;
    return partition->listed.compaction == HPS_COMPACTION_YES &&
           partition->listed.delete_retention_ms >= 0 && seen_ms > 0 && logged &&
           hps_clock_forward_ms() - seen_ms > partition->listed.delete_retention_ms;
}

void update_gap_tombstones(struct hps_update_stream *stream, struct update_partition *partition)
{
    update_gap(stream, partition,
               "behind or away for longer than delete.retention.ms (%" PRId64
               "): deletes may be compacted away",
               partition->listed.delete_retention_ms);
    partition->only_deletes = true;
}

/* Stored as-of is to be young enough that a restart does not find tombstones lost that were seen:
 * also where there is nothing to read. */
static void store_as_of(struct update_partition *partition)
{
    int64_t old_ms = partition->proof.as_of_ms - partition->applied.as_of_ms;
    partition->pending.dirty =
        partition->pending.dirty || (partition->listed.compaction == HPS_COMPACTION_YES &&
                                     partition->listed.delete_retention_ms > 0 &&
                                     old_ms > partition->listed.delete_retention_ms / 4);
}

static void prove(struct hps_update_stream *stream, struct update_partition *partition)
{
    struct hps_position *read = &partition->read;
    struct update_proof *proof = &partition->proof;
    uint32_t n = 0;
    while (n < proof->n_ends && proof->ends[n].high <= read->next) {
        n++;
    }
    int64_t high = proof->n_ends > 0 ? proof->ends[proof->n_ends - 1].high : 0;
    if (update_lost_tombstones(partition, high)) {
        update_gap_tombstones(stream, partition);
        return;
    }
    if (n == 0) {
        return;
    }
    proof->seen_ms = proof->ends[n - 1].asked_ms;
    proof->seen_next = read->next;
    int64_t same_until_ms = update_same_until_ms(stream, partition);
    while (n > 0 && proof->ends[n - 1].asked_ms > same_until_ms) {
        n--;
    }
    if (n == 0 || update_is_unproved(partition)) {
        return; /* it may be another topic: the ends are kept */
    }
    read->as_of_ms = proof->ends[n - 1].asked_ms;
    proof->n_ends -= n;
    memmove(proof->ends, proof->ends + n, proof->n_ends * sizeof(proof->ends[0]));
    if (!partition->pending.dirty) {
        proof->as_of_ms = read->as_of_ms;
        store_as_of(partition);
    }
}

void update_prove(struct hps_update_stream *stream)
{
    for (uint32_t i = 0; i < stream->n_partitions && !stream->freeze.frozen; i++) {
        struct update_partition *partition = &stream->partitions[i];
        if (partition->phase == UPDATE_RUNS && update_is_published(partition)) {
            prove(stream, partition);
            if (partition->phase == UPDATE_RUNS && !update_is_unproved(partition)) {
                update_tell_running(stream, partition);
            }
        }
    }
}

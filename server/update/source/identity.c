/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether topics are still the ones that were read: see partition/next.h. After each list of topics
 * the ids of topics are compared. If an id is not known, the stream recalls one witness per topic
 * and leader. This witness proves the topic for all partitions that have the same leader. A
 * partition that starts has its own witness recalled. On the stream's thread `update`.
 */
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "server/update/source/source.h"

enum {
    ID_YOUNG_MS = 2000, /* without an answer with ids for so long, witnesses are recalled */
    SAME_YOUNG_MS = 2 * UPDATE_LOG_TIMEOUT_MS /* a topic counts as the same for so long */
};
/* If no record is found at a witness for so long, compaction counts as the cause. */
#define NONE_US       UINT64_C(10000000)
#define NONE_AGAIN_US UINT64_C(100000)
#define REFUSED_US    UINT64_C(1000000)
#define RECALL_MS     INT64_C(10000) /* without an answer, a record is requested again */

/* Only these partitions are checked. An operator must end a gap, even if the topic is the same. */
static bool pauses_or_runs(const struct update_partition *partition)
{
    bool pauses = partition->phase == UPDATE_PAUSED || partition->phase == UPDATE_BLOCKED;
    return update_phase_reads(partition->phase) || (pauses && update_is_published(partition));
}

static bool nothing_read(const struct update_partition *partition)
{
    return !partition->read->witness.known && partition->read->next == 0;
}

/* Whether the topic must be proved to be the same. */
static bool is_checked(const struct update_partition *partition)
{
    return pauses_or_runs(partition) && !nothing_read(partition);
}

int64_t update_same_until_ms(const struct update_partition *partition)
{
    return is_checked(partition) ? partition->identity->at_ms + SAME_YOUNG_MS : INT64_MAX;
}

bool update_is_proved_since(const struct update_partition *partition, int64_t since_ms)
{
    const struct update_identity *identity = partition->identity;
    return !is_checked(partition) ||
           (identity->needs == UPDATE_IDENTITY_PROVED && identity->at_ms >= since_ms);
}

bool update_is_same(const struct update_partition *partition)
{
    bool due = partition->identity->needs == UPDATE_IDENTITY_OWN && !nothing_read(partition);
    return !due && hps_clock_forward_ms() <= update_same_until_ms(partition);
}

/* ---- witnesses ------------------------------------------------------------------------------- */

/* The record to request; without a witness, the last record before the position. */
static int64_t witness_offset(const struct update_partition *partition)
{
    const struct hps_position *read = partition->read;
    return read->witness.known ? read->witness.offset : read->next - 1;
}

static void ask(struct hps_update_stream *stream, struct update_partition *partition)
{
    struct update_identity *identity = partition->identity;
    identity->asked_ms = hps_clock_forward_ms();
    identity->asked_offset = witness_offset(partition);
    identity->asked = true;
    /* An id that was known before the witness may be the id of an earlier topic. */
    bool its_id = partition->listed->id_asked_ms >= identity->since_ms;
    memcpy(identity->asked_id, its_id ? partition->listed->topic_id : partition->read->topic_id,
           sizeof(identity->asked_id));
    HPS_ASSERT(identity->asked_offset >= 0);
    update_ops(stream)->recall(partition->proof->watch, identity->asked_offset);
}

/* ---- answers --------------------------------------------------------------------------------- */

/* A record from `broker` proved the topic of `by`: also for other partitions of this leader.
 * Another partition may have been read from an earlier topic. So its own topic must have been
 * proved while the topic of `by` had the witness of `by`. */
static void prove_others(struct hps_update_stream *stream, const struct update_partition *by,
                         int32_t broker)
{
    const struct update_event event = {
        .kind = UPDATE_ON_IDENTITY, .matches = true, .time_ms = by->identity->asked_ms};
    UPDATE_EACH (stream, other) {
        if (broker >= 0 && other->identity->needs == UPDATE_IDENTITY_ANY &&
            other->proof->response.broker == broker && pauses_or_runs(other) &&
            strcmp(other->topic, by->topic) == 0) {
            const struct update_identity *its = other->identity;
            bool was_same = its->at_ms > 0 && its->at_ms >= by->identity->since_ms &&
                            its->at_ms >= by->identity->removed_ms && its->at_ms >= its->since_ms;
            if (was_same) {
                (void)update_step(stream, other, &event, NULL);
            }
            other->identity->needs = was_same ? UPDATE_IDENTITY_PROVED : UPDATE_IDENTITY_OWN;
        }
    }
}

/* The topic lacks the witness of `by`: each other partition needs its own witness as a proof. */
static void doubt_others(struct hps_update_stream *stream, const struct update_partition *by)
{
    UPDATE_EACH (stream, other) {
        if (other != by && is_checked(other) && strcmp(other->topic, by->topic) == 0) {
            update_identity_due(other, true);
        }
    }
}

static void judge(struct hps_update_stream *stream, struct update_partition *partition,
                  const struct hps_recalled *now)
{
    struct update_identity *identity = partition->identity;
    struct hps_position *read = partition->read;
    const struct hps_witness found = {.known = now->offset >= 0,
                                      .offset = now->offset,
                                      .time_ms = now->time_unix_ms,
                                      .hash = now->hash};
    uint64_t now_us = hps_clock_us();
    identity->none_us = found.known ? 0 : identity->none_us > 0 ? identity->none_us : now_us;
    const struct update_event event = {
        .kind = UPDATE_ON_WITNESS,
        .offset = now->offset,
        .low = now->low,
        .matches = found.known && hps_witness_same(&found, &read->witness),
        .settled = !found.known && now_us - identity->none_us > NONE_US,
        .time_ms = identity->asked_ms};
    bool was_same = identity->at_ms >= identity->since_ms;
    unsigned actions = update_step(stream, partition, &event, NULL).actions;
    if (partition->phase == UPDATE_REPLACED) {
        doubt_others(stream, partition);
        return;
    }
    if ((actions & (UPDATE_DO_LEARN | UPDATE_DO_ADVANCE)) == 0) {
        identity->needs = UPDATE_IDENTITY_OWN;
        identity->again_us = now_us + NONE_AGAIN_US;
        return;
    }
    identity->needs = UPDATE_IDENTITY_PROVED;
    identity->none_us = 0;
    identity->alone = !event.matches || !was_same;
    identity->removed_ms = event.matches ? identity->removed_ms : identity->asked_ms;
    if ((actions & UPDATE_DO_LEARN) != 0 && found.known) {
        read->witness = found;
        identity->since_ms = identity->asked_ms;
        partition->pending.dirty = partition->pending.dirty || update_is_published(partition);
    }
    if (event.matches) {
        memcpy(read->topic_id, identity->asked_id, sizeof(read->topic_id));
    }
    if (!identity->alone) {
        prove_others(stream, partition, now->broker);
    }
}

/* If no record is found at the witness, the end that the leader names decides: see next.c. A broker
 * that has just become the leader, or is no longer the leader, may not return the last records. So
 * the answer waits for a response that was requested later. */
static void take_recalled(struct hps_update_stream *stream, struct update_partition *partition)
{
    struct update_identity *identity = partition->identity;
    struct hps_recalled now = {0};
    if (!pauses_or_runs(partition) ||
        !update_ops(stream)->recalled(partition->proof->watch, &now) ||
        now.asked_offset != identity->asked_offset ||
        (now.status == HPS_OK && now.offset < 0 &&
         partition->proof->response.asked_us < now.asked_us)) {
        identity->asked = hps_clock_forward_ms() - identity->asked_ms < RECALL_MS;
        return;
    }
    identity->asked = false;
    if (now.status != HPS_OK) {
        identity->again_us = hps_clock_us() + REFUSED_US;
    } else if (identity->asked_offset ==
               witness_offset(partition)) { /* otherwise it is requested again */
        judge(stream, partition, &now);
    }
}

/* ---- requests -------------------------------------------------------------------------------- */

static bool is_wanted(const struct update_partition *partition)
{
    const struct update_identity *identity = partition->identity;
    return identity->needs != UPDATE_IDENTITY_PROVED && partition->proof->watch != NULL &&
           is_checked(partition) && hps_clock_us() >= identity->again_us &&
           (identity->needs == UPDATE_IDENTITY_OWN || !update_leader_silent(partition));
}

/* Whether a record of the same topic was requested from the same leader. A request for a partition
 * whose leader is silent gets no answer: it does not count. */
static bool leader_is_asked(const struct hps_update_stream *stream,
                            const struct update_partition *partition)
{
    int32_t broker = partition->proof->response.broker;
    if (broker < 0) {
        return false;
    }
    UPDATE_EACH (stream, other) {
        if (other->identity->asked && !update_leader_silent(other) && !other->identity->alone &&
            other->proof->response.broker == broker &&
            strcmp(other->topic, partition->topic) == 0) {
            return true;
        }
    }
    return false;
}

void update_identity_turn(struct hps_update_stream *stream)
{
    UPDATE_EACH (stream, partition) {
        if (!partition->identity->asked && is_wanted(partition) &&
            (partition->identity->needs == UPDATE_IDENTITY_OWN || partition->identity->alone ||
             !leader_is_asked(stream, partition))) {
            ask(stream, partition);
        }
    }
    UPDATE_EACH (stream, partition) {
        if (partition->identity->asked) {
            take_recalled(stream, partition);
        }
    }
}

/* If the id was requested at since_ms or later and matches, no recall is needed. */
static void compare_id(struct hps_update_stream *stream, struct update_partition *partition,
                       int64_t since_ms)
{
    const struct hps_position *read = partition->read;
    const struct update_listed *listed = partition->listed;
    const struct update_event event = {.kind = UPDATE_ON_IDENTITY,
                                       .matches = strcmp(read->topic_id, listed->topic_id) == 0,
                                       .time_ms = listed->id_asked_ms};
    if (read->topic_id[0] == '\0' || listed->topic_id[0] == '\0') {
        return;
    }
    if (listed->id_asked_ms > partition->identity->at_ms || !event.matches) {
        (void)update_step(stream, partition, &event, NULL);
    }
    if (event.matches && listed->id_asked_ms >= since_ms) {
        partition->identity->needs = UPDATE_IDENTITY_PROVED;
    }
}

void update_identify(struct hps_update_stream *stream, bool due)
{
    const struct update_event event = {.kind = UPDATE_ON_LISTED};
    int64_t since_ms = hps_clock_forward_ms() - ID_YOUNG_MS;
    UPDATE_EACH (stream, partition) {
        const struct update_listed *listed = partition->listed;
        bool appears = listed->present && !listed->was_present;
        if (due && (pauses_or_runs(partition) || appears)) {
            (void)update_step(stream, partition, &event, NULL);
        }
        if (pauses_or_runs(partition)) {
            compare_id(stream, partition, since_ms);
        }
    }
}

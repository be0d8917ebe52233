/* SPDX-License-Identifier: Apache-2.0
 *
 * The ends of partitions that leaders name, and the as-of that follows from them: see
 * partition/next.h.
 *
 *     response: end 120, asked 10:00:00.1 ─▶ ends[] ─▶ read.next ≥ 120 ─▶ as-of 10:00:00.1
 *
 * On the stream's thread `update`.
 */
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "server/update/source/source.h"

/* ---- ends ------------------------------------------------------------------------------------ */

/* If the array is full, every other end is dropped. The remaining ends cover the time by which the
 * partition is behind. */
static void add_end(struct update_proof *proof, const struct hps_leader_response *response)
{
    HPS_ASSERT(proof->n_ends <= UPDATE_ENDS_MAX);
    if (proof->n_ends == UPDATE_ENDS_MAX) {
        proof->n_ends = 0;
        for (uint32_t i = 0; i < UPDATE_ENDS_MAX; i += 2) {
            proof->ends[proof->n_ends++] = proof->ends[i];
        }
    }
    proof->ends[proof->n_ends++] =
        (struct update_end){.high = response->high, .asked_ms = response->asked_unix_ms};
}

static void take_response(struct hps_update_stream *stream, struct update_partition *partition)
{
    struct update_proof *proof = partition->proof;
    struct hps_leader_response response = {0};
    update_ops(stream)->leader_response(proof->watch, &response);
    if (response.asked_us < proof->response.asked_us) {
        return; /* a late response of a former leader */
    }
    bool answered = response.asked_us > proof->response.asked_us;
    bool other = response.broker != proof->response.broker;
    if (answered) {
        const struct update_event event = {.kind = UPDATE_ON_RESPONSE, .high = response.high};
        (void)update_step(stream, partition, &event, NULL);
    }
    proof->response = response;
    if (!answered) {
        return;
    }
    proof->response_asked_ms = response.asked_unix_ms;
    partition->high = response.high;
    proof->n_ends = other ? 0 : proof->n_ends;
    if (update_phase_reads(partition->phase)) {
        add_end(proof, &response);
    }
}

bool update_leader_silent(const struct update_partition *partition)
{
    uint64_t asked_us = partition->proof->response.asked_us;
    return asked_us == 0 || hps_clock_us() > asked_us + UPDATE_LEADER_SILENT_US;
}

void update_forget_responses(struct hps_update_stream *stream)
{
    UPDATE_EACH (stream, partition) {
        partition->proof->watch = NULL;
        partition->proof->response = (struct hps_leader_response){0};
        partition->proof->n_ends = 0;
        partition->identity->asked = false;
        partition->identity->none_us = 0;
    }
}

void update_take_responses(struct hps_update_stream *stream)
{
    struct hps_error err = {0};
    HPS_ASSERT(stream->consumer != NULL);
    UPDATE_EACH (stream, partition) {
        if (partition->proof->watch != NULL ||
            update_ops(stream)->watch(stream->consumer, partition->topic, partition->number,
                                      &partition->proof->watch, &err) == HPS_OK) {
            take_response(stream, partition);
        } /* otherwise there is no memory: the next turn tries again */
    }
    update_identity_turn(stream);
}

/* ---- as-of ----------------------------------------------------------------------------------- */

static void prove(struct hps_update_stream *stream, struct update_partition *partition)
{
    struct update_proof *proof = partition->proof;
    const struct update_identity *identity = partition->identity;
    struct update_event event = {.kind = UPDATE_ON_ENDS};
    for (uint32_t i = 0; i < proof->n_ends && proof->ends[i].high <= partition->read->next; i++) {
        struct update_end *end = &proof->ends[i];
        int64_t read_ms = end->asked_ms > proof->read_ms ? end->asked_ms : proof->read_ms;
        end->read_ms = end->read_ms > 0 ? end->read_ms : read_ms;
        event.time_ms = end->asked_ms;
        /* The end, the records before it and the witness are of one topic. */
        bool sure = end->asked_ms >= identity->since_ms && end->read_ms <= identity->at_ms;
        event.sure_ms = sure ? event.time_ms : event.sure_ms;
    }
    if (event.time_ms > 0 || partition->listed->compaction == HPS_COMPACTION_YES) {
        event.high = proof->n_ends > 0 ? proof->ends[proof->n_ends - 1].high : 0;
        (void)update_step(stream, partition, &event, NULL);
    }
}

/* The partition runs. Log this if its stop was logged. */
static void log_running(const struct hps_update_stream *stream, struct update_partition *partition)
{
    if (partition->stop_logged) {
        UPDATE_LOG_PARTITION(stream, partition, INFO, "partition running again",
                             HPS_I64("offset", partition->read->next));
    }
    partition->stop_logged = false;
}

void update_prove(struct hps_update_stream *stream)
{
    UPDATE_EACH (stream, partition) {
        if (!stream->frozen && partition->phase == UPDATE_RUNNING &&
            update_is_published(partition)) {
            prove(stream, partition);
            if (partition->phase == UPDATE_RUNNING && update_is_same(partition)) {
                log_running(stream, partition);
            }
        }
    }
}

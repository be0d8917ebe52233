/* SPDX-License-Identifier: Apache-2.0
 *
 * What an operator asks of a stream: to pause, to move, to accept a gap, and to ask the log how far
 * it is. On the stream's thread `update`.
 */
#include <inttypes.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/log.h"
#include "server/update/internal.h"

/* After a refresh waits have none begin for so long, and so many times as long as it took. */
enum { REST_US_MIN = 200 * 1000, REST_SHARE = 4 };

/* ---- commands -------------------------------------------------------------------------------- */

static bool fits(const void *ctx, const struct update_partition *partition)
{
    const struct hps_update_command *command = ctx;
    return (command->topic[0] == '\0' || strcmp(command->topic, partition->topic) == 0) &&
           (command->partition < 0 || command->partition == partition->number);
}

/* One that is gone, or has failed, stays that, and stops where it would begin again. */
static void pause_one(struct hps_update_stream *stream, struct update_partition *partition,
                      struct update_call *call)
{
    enum update_phase phase = partition->phase;
    if (update_has_gap(partition) || partition->paused) {
        return;
    }
    partition->paused = true;
    if (phase == UPDATE_BLOCKED) {
        update_stop_partition(stream, partition, UPDATE_PAUSED, partition->reason);
    } else if (update_reads(partition) ||
               (phase == UPDATE_STARTS && update_is_published(partition))) {
        update_stop_partition(stream, partition, UPDATE_PAUSED, "");
    }
    call->n_changed++;
}

static void resume_one(struct hps_update_stream *stream, struct update_partition *partition,
                       struct update_call *call)
{
    enum update_phase phase = partition->phase;
    if (phase == UPDATE_BLOCKED || phase == UPDATE_FAILED || partition->paused) {
        partition->paused = false;
        update_stop_partition(stream, partition, UPDATE_STARTS, "");
        stream->topics.begin_due_us = 0;
        call->n_changed++;
    }
}

/* From where on records are passed over when it goes on at `offset`. */
static int64_t skipped_by(const struct update_partition *partition, int64_t offset)
{
    const struct hps_position *at = &partition->applied;
    if (!update_is_published(partition)) {
        return update_has_gap(partition) ? HPS_POSITION_LOST : HPS_POSITION_WHOLE;
    }
    if (update_has_gap(partition) || at->skipped == HPS_POSITION_LOST) {
        return HPS_POSITION_LOST;
    }
    int64_t from = at->skipped >= 0 ? at->skipped : at->next;
    return offset <= from ? HPS_POSITION_WHOLE : from;
}

/* From here on; what was before is forgotten. Stored by the apply that follows. */
void update_move_to(struct hps_update_stream *stream, struct update_partition *partition,
                    int64_t offset)
{
    struct hps_position *read = &partition->read;
    const struct hps_position *at = &partition->applied;
    HPS_ASSERT(offset >= 0);
    HPS_ASSERT(stream->consumer != NULL);
    bool same =
        (partition->basis != UPDATE_NOWHERE) && strcmp(at->cluster, stream->topics.cluster) == 0;
    *read = (struct hps_position){.next = offset,
                                  .as_of_ms = 0,
                                  .event_time_ms = at->event_time_ms,
                                  .start = same && at->start <= offset ? at->start : offset,
                                  .skipped = skipped_by(partition, offset),
                                  .before_start = partition->basis == UPDATE_NOWHERE,
                                  .frozen = HPS_POSITION_WHOLE,
                                  .base_ms = hps_clock_forward_ms()};
    if (same && partition->phase == UPDATE_GAP && offset == at->next) {
        /* Whether the topic was recreated during the gap is still to be checked. */
        read->last = at->last;
        read->witness = at->witness;
        memcpy(read->topic_id, at->topic_id, sizeof(at->topic_id));
    }
    partition->pending.moved = true;
    partition->note[0] = '\0';
    memcpy(read->cluster, stream->topics.cluster, sizeof(stream->topics.cluster));
    partition->to_commit = -1;
    partition->committed = -1;
    partition->pending.dirty = true;
    partition->proof.seen_ms = 0;
    partition->proof.seen_next = offset;
    if (partition->paused) {
        update_stop_partition(stream, partition, UPDATE_PAUSED, "");
    } else {
        update_run_from(stream, partition, offset, UPDATE_RUNS);
    }
    (void)update_identify(stream, partition, false);
}

/* The partitions that a seek or an accept-gap moves. */
static bool moves(const void *ctx, const struct update_partition *partition)
{
    const struct hps_update_command *command = ctx;
    return fits(ctx, partition) && (command->kind == HPS_UPDATE_SEEK || update_has_gap(partition));
}

/* Continue after a gap with the first record that exists now. Only for a gap of deletes, continue
 * at the position: reading the earlier records again would not bring the deletes back. */
static int64_t offset_after_gap(const struct update_partition *partition,
                                const struct hps_consumer_offsets *has)
{
    int64_t next = partition->read.next;
    bool stays = partition->phase == UPDATE_GAP && partition->only_deletes && next >= has->low &&
                 next <= has->high;
    return stays ? next : has->low;
}

static hps_status move_offset(const struct hps_update_command *command,
                              const struct update_partition *partition,
                              const struct hps_consumer_offsets *has, int64_t *out_offset,
                              struct hps_error *err)
{
    int64_t offset = command->kind == HPS_UPDATE_ACCEPT_GAP    ? offset_after_gap(partition, has)
                     : command->to == HPS_UPDATE_SEEK_OFFSET   ? command->value
                     : command->to == HPS_UPDATE_SEEK_EARLIEST ? has->low
                     : command->to == HPS_UPDATE_SEEK_LATEST   ? has->high
                                                               : has->at_time;
    if (has->status != HPS_OK) {
        return hps_error_set(err, has->status, "partition %" PRId32 " of topic '%s': %s",
                             has->partition, has->topic, hps_status_text(has->status));
    }
    if (offset < has->low || offset > has->high) {
        return hps_error_set(err, HPS_RANGE,
                             "partition %" PRId32 " of topic '%s': offset %" PRId64
                             " is not in %" PRId64 " to %" PRId64,
                             has->partition, has->topic, offset, has->low, has->high);
    }
    *out_offset = offset;
    return HPS_OK;
}

/* What has its rows in a shared tier alone has been brought on by others, too: it only goes on. */
static hps_status check_move(const struct hps_update_stream *stream,
                             const struct update_partition *partition, int64_t offset,
                             struct hps_error *err)
{
    bool is_somewhere = partition->basis != UPDATE_NOWHERE;
    if (!stream->share.alone || !is_somewhere || offset >= partition->applied.next) {
        return HPS_OK;
    }
    return hps_error_set(err, HPS_PRECONDITION,
                         "partition %" PRId32 " of topic '%s': offset %" PRId64
                         " is before %" PRId64 ", and a shared tier that has the only copy of the "
                         "rows does not go back: load a new version",
                         partition->number, partition->topic, offset, partition->applied.next);
}

/* The version is frozen no more: partitions that are not moved themselves begin with the first
 * record that was skipped, or where they were blocked. What is stopped at a gap, say, stays there.
 */
static void thaw(struct hps_update_stream *stream, const struct hps_update_command *command)
{
    stream->freeze.frozen = false;
    stream->freeze.unstored = true;
    for (uint32_t i = 0; i < stream->n_partitions; i++) {
        struct update_partition *partition = &stream->partitions[i];
        if (fits(command, partition)) {
            continue;
        }
        bool passed = update_reads(partition) && partition->applied.frozen != HPS_POSITION_WHOLE;
        if (passed || partition->phase == UPDATE_BLOCKED) {
            update_stop_partition(stream, partition, UPDATE_STARTS, "");
            stream->topics.begin_due_us = 0;
        }
    }
}

static void tell_accepted(const struct hps_update_stream *stream,
                          const struct update_partition *partition, int64_t offset)
{
    HPS_LOG(WARN, "updates",
            "gap accepted: updates go on after it, the records in it are not applied",
            HPS_STR("model", stream->model), HPS_I64("version", stream->number),
            HPS_STR("topic", partition->topic), HPS_I64("partition", partition->number),
            HPS_I64("offset", offset), HPS_STR("reason", partition->reason));
}

/* An accept-gap that names no topic leaves partitions at their gap that do not exist any more. */
static bool stays(const struct hps_update_command *command, const struct hps_consumer_offsets *has)
{
    return command->kind == HPS_UPDATE_ACCEPT_GAP && command->topic[0] == '\0' &&
           has->status == HPS_NOT_FOUND;
}

/* All of them, or none. */
static hps_status move_all(struct hps_update_stream *stream, struct update_call *call)
{
    const struct hps_update_command *command = call->command;
    bool seeks = command->kind == HPS_UPDATE_SEEK;
    struct hps_consumer_offsets *parts = NULL;
    int64_t time_ms = seeks && command->to == HPS_UPDATE_SEEK_TIME ? command->value : -1;
    hps_status status = update_ask_offsets(stream, moves, command, time_ms, &parts, &call->error);
    uint32_t n = 0;
    int64_t offset;
    for (uint32_t i = 0; i < stream->n_partitions && status == HPS_OK; i++) {
        const struct update_partition *partition = &stream->partitions[i];
        const struct hps_consumer_offsets *has = &parts[n];
        n += moves(command, partition) ? 1 : 0;
        if (moves(command, partition) && !stays(command, has)) {
            status = move_offset(command, partition, has, &offset, &call->error);
            status =
                status == HPS_OK ? check_move(stream, partition, offset, &call->error) : status;
        }
    }
    n = 0;
    for (uint32_t i = 0; i < stream->n_partitions && status == HPS_OK; i++) {
        struct update_partition *partition = &stream->partitions[i];
        const struct hps_consumer_offsets *has = &parts[n];
        n += moves(command, partition) ? 1 : 0;
        if (moves(command, partition) && !stays(command, has)) {
            partition->high = has->high;
            status = move_offset(command, partition, has, &offset, &call->error);
            if (!seeks) {
                tell_accepted(stream, partition, offset);
            }
            update_move_to(stream, partition, offset);
            call->n_changed++;
        }
    }
    if (status == HPS_OK && seeks && stream->freeze.frozen && call->n_changed > 0) {
        thaw(stream, command);
    }
    hps_free(parts);
    return status;
}

/* Before a move, drop the batch that waits; its records are read again if they are still wanted. A
 * half-applied batch must be completed instead (hps_update_half_applied). */
static hps_status drop_or_complete(struct hps_update_stream *stream, struct hps_error *err)
{
    if (stream->batch.held && hps_update_half_applied(stream->version)) {
        update_apply_or_hold(stream);
        if (stream->batch.held) {
            return hps_error_set(err, HPS_UNAVAILABLE,
                                 "a batch is applied in part and must be completed first: %.150s",
                                 stream->batch.held_text);
        }
    } else if (stream->batch.held) {
        update_stream_abandon(stream, true);
    }
    return HPS_OK;
}

/* Commands that move positions: nothing of the batch at hand may follow them. */
static hps_status move(struct hps_update_stream *stream, struct update_call *call)
{
    if (stream->consumer == NULL) {
        return update_unreachable(stream, &call->error);
    }
    hps_status status = drop_or_complete(stream, &call->error);
    if (status != HPS_OK) {
        return status;
    }
    update_leave_stopped(stream);
    bool frozen = stream->freeze.frozen;
    status = move_all(stream, call);
    if (status != HPS_OK || call->n_changed == 0) {
        return status;
    }
    status = update_stream_apply(stream, &call->error);
    if (status != HPS_OK && hps_update_half_applied(stream->version)) {
        update_hold(stream, status, &call->error);
        return hps_error_prefix(&call->error, status,
                                "done, but not stored everywhere yet; hpsd retries that");
    }
    if (status != HPS_OK) {
        update_stream_abandon(stream, false);
        stream->freeze.frozen = frozen;
    }
    return status;
}

static void pause_or_resume(struct hps_update_stream *stream, struct update_call *call)
{
    for (uint32_t i = 0; i < stream->n_partitions; i++) {
        struct update_partition *partition = &stream->partitions[i];
        if (fits(call->command, partition) && call->command->kind == HPS_UPDATE_PAUSE) {
            pause_one(stream, partition, call);
        } else if (fits(call->command, partition)) {
            resume_one(stream, partition, call);
        }
    }
}

/* Stored with the batch that waits, if one does. */
static hps_status store_pause(struct hps_update_stream *stream, struct update_call *call)
{
    if (stream->batch.held || call->n_changed == 0) {
        return HPS_OK;
    }
    hps_status status = update_stream_apply(stream, &call->error);
    return status == HPS_OK
               ? HPS_OK
               : hps_error_prefix(&call->error, status,
                                  "done, but not stored, so that a restart forgets it");
}

void update_run_command(struct hps_update_stream *stream, struct update_call *call)
{
    const struct hps_update_command *command = call->command;
    hps_status status = HPS_OK;
    if (command->kind == HPS_UPDATE_PAUSE && !update_is_listed(stream) &&
        stream->consumer != NULL) {
        update_list_topics(stream); /* what is not known yet cannot be paused */
    }
    call->n = 0;
    for (uint32_t i = 0; i < stream->n_partitions; i++) {
        call->n += fits(command, &stream->partitions[i]) ? 1 : 0;
    }
    switch (command->kind) {
    case HPS_UPDATE_REFRESH:
        HPS_ASSERT(false); /* it is asked for otherwise */
        break;
    case HPS_UPDATE_SEEK:
    case HPS_UPDATE_ACCEPT_GAP:
        status = move(stream, call);
        break;
    case HPS_UPDATE_PAUSE:
    case HPS_UPDATE_RESUME:
        pause_or_resume(stream, call);
        status = store_pause(stream, call);
        if (command->kind == HPS_UPDATE_PAUSE && !update_is_listed(stream) && call->n == 0) {
            status = update_unreachable(stream, &call->error);
        }
        break;
    }
    call->error.status = status;
}

/* ---- refresh --------------------------------------------------------------------------------- */

static void begin_refresh(struct hps_update_stream *stream)
{
    struct update_refresh *refresh = &stream->refresh;
    hps_lock_acquire(&stream->lock);
    bool asked = refresh->asked_us > refresh->done_us;
    hps_lock_release(&stream->lock);
    if (asked) {
        refresh->begun_us = hps_clock_us();
        if (stream->consumer != NULL) {
            update_list_topics(stream);
        }
    }
}

static void end_refresh(struct hps_update_stream *stream, uint32_t n)
{
    struct update_refresh *refresh = &stream->refresh;
    struct hps_error error = {0};
    if (!update_is_connected(stream)) {
        error.status = update_unreachable(stream, &error);
    }
    update_stream_show(stream); /* before anybody goes on */
    hps_lock_acquire(&stream->lock);
    HPS_ASSERT(refresh->begun_us > refresh->done_us);
    uint64_t now_us = hps_clock_us();
    uint64_t rest_us = REST_SHARE * (now_us - refresh->begun_us);
    refresh->rest_until_us = now_us + (rest_us > REST_US_MIN ? rest_us : REST_US_MIN);
    refresh->done_us = refresh->begun_us;
    refresh->n = n;
    refresh->error = error;
    refresh->begun_us = 0;
    stream->pace.look_due_us = 0; /* those who wait for it look with this turn */
    hps_cond_broadcast(&stream->changed);
    hps_lock_release(&stream->lock);
}

/* Leaders answer in their own time: one that does not delays neither updates nor, for long, who
 * waits. A partition is done when its leader has answered, and is known to be the same topic. */
bool update_refresh_turn(struct hps_update_stream *stream)
{
    struct update_refresh *refresh = &stream->refresh;
    uint32_t n_waiting = 0;
    uint32_t n = 0;
    if (refresh->begun_us == 0) {
        begin_refresh(stream);
    }
    if (refresh->begun_us == 0) {
        return false;
    }
    if (update_is_connected(stream)) {
        update_hear(stream);
        update_prove(stream);
    }
    for (uint32_t i = 0; i < stream->n_partitions && update_is_connected(stream); i++) {
        const struct update_partition *partition = &stream->partitions[i];
        bool answered =
            partition->proof.word.asked_us >= refresh->begun_us && !partition->same.asked;
        n_waiting += !answered && partition->phase != UPDATE_GONE ? 1 : 0;
        n += answered ? 1 : 0;
    }
    if (n_waiting > 0 && hps_clock_us() < refresh->begun_us + UPDATE_LEADER_SILENT_US) {
        return true;
    }
    end_refresh(stream, n);
    return false;
}

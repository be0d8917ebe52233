/* SPDX-License-Identifier: Apache-2.0
 *
 * Carries out the commands of operators: pause, resume, seek, accept-gap and refresh. On the
 * stream's thread `update`.
 */
#include <inttypes.h>
#include <string.h>

#include "base/assert.h"
#include "server/update/stream/stream.h"

enum {
    CALLS_MAX = 64, /* commands that wait for one stream */
    POLL_MS = 10,   /* while a refresh waits for the responses of leaders */
    /* After a refresh, waits start the next one only after a pause: REST_SHARE times as long as the
     * refresh took, at least REST_US_MIN. */
    REST_US_MIN = 200 * 1000,
    REST_SHARE = 4
};

/* Whether the command names the partition. ctx: struct hps_update_command. */
static bool is_named(const void *ctx, const struct update_partition *partition)
{
    const struct hps_update_command *command = ctx;
    return (command->topic[0] == '\0' || strcmp(command->topic, partition->topic) == 0) &&
           (command->partition < 0 || command->partition == partition->number);
}

/* ---- seek and accept-gap --------------------------------------------------------------------- */

/* Whether the command moves the partition. */
static bool moves(const void *ctx, const struct update_partition *partition)
{
    const struct hps_update_command *command = ctx;
    return is_named(ctx, partition) &&
           (command->kind == HPS_UPDATE_SEEK || update_phase_has_gap(partition->phase));
}

/* Returns the event that moves the partition. Fails if the log does not have the offset. */
static hps_status move_event(const struct hps_update_command *command,
                             const struct hps_consumer_offsets *has, struct update_event *out_event,
                             struct hps_error *err)
{
    bool seeks = command->kind == HPS_UPDATE_SEEK;
    int64_t offset = command->to == HPS_UPDATE_SEEK_OFFSET     ? command->value
                     : command->to == HPS_UPDATE_SEEK_EARLIEST ? has->low
                     : command->to == HPS_UPDATE_SEEK_LATEST   ? has->high
                                                               : has->at_time;
    if (has->status != HPS_OK) {
        return hps_error_set(err, has->status, "%s", hps_status_text(has->status));
    }
    if (seeks && (offset < has->low || offset > has->high)) {
        return hps_error_set(err, HPS_RANGE, "offset %" PRId64 " is not in %" PRId64 " to %" PRId64,
                             offset, has->low, has->high);
    }
    *out_event = (struct update_event){.kind = seeks ? UPDATE_ON_MOVE : UPDATE_ON_ACCEPT,
                                       .low = has->low,
                                       .high = has->high,
                                       .offset = offset};
    return HPS_OK;
}

/* If a shared tier has the only copy of the rows, other daemons have applied records to it, too: a
 * partition does not move back. Until the tier has named its position, no move can be judged. */
static hps_status check_move(const struct hps_update_stream *stream,
                             const struct update_partition *partition, int64_t offset,
                             struct hps_error *err)
{
    bool has_position = partition->basis != UPDATE_NOWHERE;
    if (stream->sole_copy && !has_position && !partition->shared_asked) {
        return hps_error_set(err, HPS_UNAVAILABLE,
                             "the shared tier has the only copy of the rows, and has not named its "
                             "position yet; retry later");
    }
    if (!stream->sole_copy || !has_position || offset >= partition->applied->next) {
        return HPS_OK;
    }
    return hps_error_set(err, HPS_PRECONDITION,
                         "offset %" PRId64 " is before %" PRId64
                         ", and a shared tier that has the only copy of the rows does not go back: "
                         "load a new version",
                         offset, partition->applied->next);
}

/* The version is not frozen any more: partitions that the command did not move continue with the
 * first record that was skipped. */
static void thaw(struct hps_update_stream *stream)
{
    const struct update_event event = {.kind = UPDATE_ON_THAW};
    stream->frozen = false;
    stream->freeze.unstored = true;
    UPDATE_EACH (stream, partition) {
        if (!partition->pending.moved) {
            (void)update_step(stream, partition, &event, NULL);
        }
    }
}

/* Checks the move of a partition, or carries it out. */
static hps_status move_one(struct hps_update_stream *stream, struct update_partition *partition,
                           const struct hps_consumer_offsets *has, bool carries_out,
                           struct hps_update_work *work)
{
    struct update_event event;
    int64_t offset = 0;
    hps_status status = move_event(&work->command, has, &event, &work->error);
    if (status == HPS_OK) {
        const struct update_facts facts = update_facts_of(stream, partition);
        offset = update_next(&facts, &event).offset;
        status = check_move(stream, partition, offset, &work->error);
    }
    if (status != HPS_OK) {
        return hps_error_prefix(&work->error, status, "partition %" PRId32 " of topic '%s'",
                                partition->number, partition->topic);
    }
    if (!carries_out) {
        return HPS_OK;
    }
    if (event.kind == UPDATE_ON_ACCEPT) {
        UPDATE_LOG_PARTITION(
            stream, partition, WARN,
            "gap accepted: updates continue after it, the records in it are not applied",
            HPS_I64("offset", offset), HPS_STR("reason", partition->reason));
    }
    partition->high = has->high;
    (void)update_step(stream, partition, &event, NULL);
    work->n_changed++;
    return HPS_OK;
}

/* Moves all partitions, or none: first each move is checked. */
static hps_status move_all(struct hps_update_stream *stream, struct hps_update_work *work)
{
    const struct hps_update_command *command = &work->command;
    bool seeks = command->kind == HPS_UPDATE_SEEK;
    bool missing = false;
    int64_t time_ms = seeks && command->to == HPS_UPDATE_SEEK_TIME ? command->value : -1;
    const struct hps_consumer_offsets *offsets =
        update_ask_offsets(stream, moves, command, time_ms, &work->error);
    hps_status status = offsets != NULL ? HPS_OK : work->error.status;
    for (int carries_out = 0; carries_out < 2 && status == HPS_OK; carries_out++) {
        for (uint32_t i = 0; i < stream->n_partitions && status == HPS_OK; i++) {
            const struct hps_consumer_offsets *has = &offsets[i];
            bool gone = command->partition < 0 && has->status == HPS_NOT_FOUND;
            if (has->topic != NULL && gone) { /* the command does not name it */
                missing = true;
            } else if (has->topic != NULL) {
                status = move_one(stream, &stream->partitions[i], has, carries_out == 1, work);
            }
        }
    }
    bool named = seeks || command->topic[0] != '\0';
    if (status == HPS_OK && named && missing && work->n_changed == 0) {
        status = hps_error_set(&work->error, HPS_NOT_FOUND, "no such partition exists in the log");
    } else if (status == HPS_OK && seeks && stream->frozen && work->n_changed > 0) {
        thaw(stream);
    }
    return status;
}

/* Before a move, drop the held batch; its records are read again if they are still wanted. A
 * half-applied batch must be completed instead (hps_update_half_applied). */
static hps_status drop_or_complete(struct hps_update_stream *stream, struct hps_error *err)
{
    if (stream->batch->held && hps_update_half_applied(stream->version)) {
        update_apply_or_hold(stream);
        if (stream->batch->held) {
            return hps_error_set(err, HPS_UNAVAILABLE,
                                 "a batch is applied in part and must be completed first: %.150s",
                                 stream->batch->held_text);
        }
    } else if (stream->batch->held) {
        update_stream_abandon(stream, true);
    }
    return HPS_OK;
}

static hps_status move(struct hps_update_stream *stream, struct hps_update_work *work)
{
    if (!stream->link->answers) {
        return update_unreachable(stream, &work->error);
    }
    hps_status status = drop_or_complete(stream, &work->error);
    if (status != HPS_OK) {
        return status;
    }
    update_unassign_stopped(stream);
    bool frozen = stream->frozen;
    status = move_all(stream, work);
    if (status != HPS_OK || work->n_changed == 0) {
        return status;
    }
    status = update_stream_apply(stream, &work->error);
    if (status != HPS_OK && hps_update_half_applied(stream->version)) {
        update_hold(stream, status, &work->error);
        return hps_error_prefix(&work->error, status,
                                "done, but not stored everywhere yet; hpsd retries that");
    }
    if (status != HPS_OK) {
        update_stream_abandon(stream, false);
        stream->frozen = frozen;
    }
    return status;
}

/* ---- pause and resume ------------------------------------------------------------------------ */

static void pause_or_resume(struct hps_update_stream *stream, struct hps_update_work *work)
{
    bool pauses = work->command.kind == HPS_UPDATE_PAUSE;
    const struct update_event event = {.kind = pauses ? UPDATE_ON_PAUSE : UPDATE_ON_RESUME};
    UPDATE_EACH (stream, partition) {
        bool stopped = partition->phase == UPDATE_BLOCKED || partition->phase == UPDATE_FAILED;
        bool changes = pauses ? !partition->paused && !update_phase_has_gap(partition->phase)
                              : partition->paused || stopped;
        if (changes && is_named(&work->command, partition)) {
            (void)update_step(stream, partition, &event, NULL);
            partition->paused = pauses;
            work->n_changed++;
        }
    }
}

/* Stores the change, or leaves it to be stored with the held batch. */
static hps_status store_pause(struct hps_update_stream *stream, struct hps_update_work *work)
{
    if (stream->batch->held || work->n_changed == 0) {
        return HPS_OK;
    }
    hps_status status = update_stream_apply(stream, &work->error);
    return status == HPS_OK
               ? HPS_OK
               : hps_error_prefix(&work->error, status,
                                  "done, but not stored, so that a restart forgets it");
}

bool update_call_add(struct hps_update_stream *stream, struct hps_update_work *work)
{
    unsigned n = 0;
    hps_lock_acquire(&stream->board->lock);
    struct hps_update_work **at = &stream->board->calls;
    while (*at != NULL) {
        at = &(*at)->next;
        n++;
    }
    bool added = n < CALLS_MAX;
    if (added) {
        work->next = NULL;
        *at = work;
        update_wake(stream);
    }
    hps_lock_release(&stream->board->lock);
    return added;
}

struct hps_update_work *update_call_take(struct hps_update_stream *stream)
{
    hps_lock_acquire(&stream->board->lock);
    struct hps_update_work *work = stream->board->calls;
    stream->board->calls = work != NULL ? work->next : NULL;
    hps_lock_release(&stream->board->lock);
    return work;
}

void update_run_command(struct hps_update_stream *stream, struct hps_update_work *work)
{
    const struct hps_update_command *command = &work->command;
    bool pauses = command->kind == HPS_UPDATE_PAUSE;
    uint32_t n_named = 0;
    hps_status status;
    if (pauses && !stream->topics->listed && stream->consumer != NULL) {
        update_take_topics(stream, 0); /* only known partitions can be paused */
    }
    work->n_changed = 0;
    UPDATE_EACH (stream, partition) {
        n_named += is_named(command, partition) ? 1 : 0;
    }
    work->n_partitions += n_named;
    if (pauses || command->kind == HPS_UPDATE_RESUME) {
        pause_or_resume(stream, work);
        status = store_pause(stream, work);
        if (pauses && !stream->topics->listed && n_named == 0) {
            status = update_unreachable(stream, &work->error);
        }
    } else {
        status = move(stream, work);
    }
    work->n += work->n_changed;
    work->error.status = status;
}

/* ---- refresh --------------------------------------------------------------------------------- */

static void begin_refresh(struct hps_update_stream *stream)
{
    struct update_refresh *refresh = stream->refresh;
    hps_lock_acquire(&stream->board->lock);
    bool requested = refresh->asked_us > refresh->done_us;
    hps_lock_release(&stream->board->lock);
    if (requested) {
        refresh->begun_us = hps_clock_us();
        refresh->begun_ms = hps_clock_forward_ms();
    }
}

static bool is_listed_since(const struct hps_update_stream *stream, uint64_t since_us)
{
    return stream->link->answers && stream->topics->listed_us >= since_us;
}

static void end_refresh(struct hps_update_stream *stream)
{
    struct update_refresh *refresh = stream->refresh;
    struct hps_error error = {0};
    if (!is_listed_since(stream, refresh->begun_us)) {
        error.status = update_unreachable(stream, &error);
    }
    update_stream_show(stream); /* callers of the refresh read the view next */
    hps_lock_acquire(&stream->board->lock);
    HPS_ASSERT(refresh->begun_us > refresh->done_us);
    uint64_t now_us = hps_clock_us();
    uint64_t rest_us = REST_SHARE * (now_us - refresh->begun_us);
    refresh->rest_until_us = now_us + (rest_us > REST_US_MIN ? rest_us : REST_US_MIN);
    refresh->done_us = refresh->begun_us;
    refresh->error = error;
    refresh->begun_us = 0;
    stream->board->check_due_us = 0; /* waits see the result in this turn */
    hps_lock_release(&stream->board->lock);
}

/* Leaders respond at different times. A silent leader does not delay updates; it delays the refresh
 * by at most UPDATE_LEADER_SILENT_US. A partition is done when its leader has responded and its
 * topic is proved to be the same. */
uint32_t update_refresh_turn(struct hps_update_stream *stream, uint32_t poll_ms)
{
    struct update_refresh *refresh = stream->refresh;
    if (refresh->begun_us == 0) {
        begin_refresh(stream);
    }
    if (refresh->begun_us == 0) {
        return poll_ms;
    }
    if (stream->consumer != NULL) {
        update_take_topics(stream, refresh->begun_us);
        update_take_responses(stream);
        update_prove(stream);
    }
    bool waits = !is_listed_since(stream, refresh->begun_us);
    UPDATE_EACH (stream, partition) {
        bool done = partition->proof->response.asked_us >= refresh->begun_us &&
                    update_is_proved_since(partition, refresh->begun_ms);
        waits = waits || (!done && partition->phase != UPDATE_MISSING);
    }
    if (waits && !stream->link->outage_logged &&
        hps_clock_us() < refresh->begun_us + UPDATE_LEADER_SILENT_US) {
        return poll_ms < POLL_MS ? poll_ms : POLL_MS;
    }
    end_refresh(stream);
    return 0;
}

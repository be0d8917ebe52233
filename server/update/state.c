/* SPDX-License-Identifier: Apache-2.0
 *
 * Which phase may follow which, and what holds of a stream when a turn of its thread has ended.
 */
#include "server/update/state.h"

#include "base/assert.h"

/* ---- phases ---------------------------------------------------------------------------------- */

#define TO(phase) (1U << (phase))

/* The phases that may follow each. A seek moves any of them to RUNS, PAUSED or FAILED. */
static const unsigned PARTITION_STEPS[UPDATE_PHASES] = {
    [UPDATE_STARTS] = TO(UPDATE_STARTS) | TO(UPDATE_CHECKS) | TO(UPDATE_RUNS) | TO(UPDATE_PAUSED) |
                      TO(UPDATE_GAP) | TO(UPDATE_OTHER) | TO(UPDATE_GONE) | TO(UPDATE_FAILED),
    [UPDATE_CHECKS] = TO(UPDATE_STARTS) | TO(UPDATE_RUNS) | TO(UPDATE_PAUSED) | TO(UPDATE_GAP) |
                      TO(UPDATE_OTHER) | TO(UPDATE_GONE) | TO(UPDATE_FAILED),
    [UPDATE_RUNS] = TO(UPDATE_STARTS) | TO(UPDATE_RUNS) | TO(UPDATE_PAUSED) | TO(UPDATE_BLOCKED) |
                    TO(UPDATE_GAP) | TO(UPDATE_OTHER) | TO(UPDATE_GONE) | TO(UPDATE_FAILED),
    [UPDATE_PAUSED] = TO(UPDATE_STARTS) | TO(UPDATE_PAUSED) | TO(UPDATE_OTHER),
    [UPDATE_BLOCKED] = TO(UPDATE_STARTS) | TO(UPDATE_RUNS) | TO(UPDATE_PAUSED) | TO(UPDATE_OTHER) |
                       TO(UPDATE_FAILED),
    [UPDATE_GAP] = TO(UPDATE_STARTS) | TO(UPDATE_RUNS) | TO(UPDATE_PAUSED) | TO(UPDATE_FAILED),
    [UPDATE_OTHER] = TO(UPDATE_STARTS) | TO(UPDATE_RUNS) | TO(UPDATE_PAUSED) | TO(UPDATE_FAILED),
    [UPDATE_GONE] = TO(UPDATE_STARTS) | TO(UPDATE_RUNS) | TO(UPDATE_PAUSED) | TO(UPDATE_FAILED),
    [UPDATE_FAILED] = TO(UPDATE_STARTS) | TO(UPDATE_RUNS) | TO(UPDATE_PAUSED) | TO(UPDATE_FAILED),
};

static const unsigned LINK_STEPS[] = {
    [UPDATE_LINK_CLOSED] = TO(UPDATE_LINK_SILENT),
    [UPDATE_LINK_SILENT] = TO(UPDATE_LINK_CLOSED) | TO(UPDATE_LINK_UP) | TO(UPDATE_LINK_DOWN),
    [UPDATE_LINK_UP] = TO(UPDATE_LINK_CLOSED) | TO(UPDATE_LINK_SILENT) | TO(UPDATE_LINK_DOWN),
    [UPDATE_LINK_DOWN] = TO(UPDATE_LINK_CLOSED) | TO(UPDATE_LINK_UP) | TO(UPDATE_LINK_PARTIAL),
    [UPDATE_LINK_PARTIAL] = TO(UPDATE_LINK_CLOSED) | TO(UPDATE_LINK_UP) | TO(UPDATE_LINK_DOWN),
};

static const unsigned TOPICS_STEPS[] = {
    [UPDATE_TOPICS_UNKNOWN] = TO(UPDATE_TOPICS_NONE) | TO(UPDATE_TOPICS_LISTED),
    [UPDATE_TOPICS_NONE] = TO(UPDATE_TOPICS_LISTED),
    [UPDATE_TOPICS_LISTED] = 0,
};

/* NONE is left as the stream is opened only. */
static const unsigned SHARE_STEPS[] = {
    [UPDATE_SHARE_NONE] = TO(UPDATE_SHARE_LEVEL),
    [UPDATE_SHARE_LEVEL] = TO(UPDATE_SHARE_BEHIND) | TO(UPDATE_SHARE_APART),
    [UPDATE_SHARE_BEHIND] =
        TO(UPDATE_SHARE_LEVEL) | TO(UPDATE_SHARE_REPLAYS) | TO(UPDATE_SHARE_APART),
    [UPDATE_SHARE_REPLAYS] = TO(UPDATE_SHARE_BEHIND),
    [UPDATE_SHARE_APART] = TO(UPDATE_SHARE_LEVEL),
};

static const unsigned LIFE_STEPS[] = {
    [UPDATE_LIVES] = TO(UPDATE_STOPS),
    [UPDATE_STOPS] = TO(UPDATE_ENDED),
    [UPDATE_ENDED] = 0,
};

void update_phase_set(struct update_partition *partition, enum update_phase to)
{
    HPS_ASSERT(partition->phase < UPDATE_PHASES);
    HPS_ASSERT((PARTITION_STEPS[partition->phase] & TO(to)) != 0);
    partition->phase = to;
}

void update_link_set(struct hps_update_stream *stream, enum update_link_phase to)
{
    HPS_ASSERT(stream->link.phase == to || (LINK_STEPS[stream->link.phase] & TO(to)) != 0);
    stream->link.phase = to;
}

void update_topics_set(struct hps_update_stream *stream, enum update_topics_phase to)
{
    HPS_ASSERT(stream->topics.phase == to || (TOPICS_STEPS[stream->topics.phase] & TO(to)) != 0);
    stream->topics.phase = to;
}

void update_share_set(struct hps_update_stream *stream, enum update_share_phase to)
{
    HPS_ASSERT(stream->share.phase == to || (SHARE_STEPS[stream->share.phase] & TO(to)) != 0);
    stream->share.phase = to;
}

/* Who asks it to stop may come late: what has ended stays so. */
void update_life_set(struct hps_update_stream *stream, enum update_life to)
{
    int from = UPDATE_LIVES;
    if (to == UPDATE_STOPS) {
        (void)atomic_compare_exchange_strong(&stream->life, &from, UPDATE_STOPS);
        return;
    }
    from = atomic_exchange(&stream->life, (int)to);
    HPS_ASSERT((LIFE_STEPS[from] & TO(to)) != 0);
}

enum hps_partition_state update_partition_state(enum update_phase phase)
{
    static const enum hps_partition_state STATES[UPDATE_PHASES] = {
        [UPDATE_STARTS] = HPS_PARTITION_STARTING, [UPDATE_CHECKS] = HPS_PARTITION_RUNNING,
        [UPDATE_RUNS] = HPS_PARTITION_RUNNING,    [UPDATE_PAUSED] = HPS_PARTITION_PAUSED,
        [UPDATE_BLOCKED] = HPS_PARTITION_PAUSED,  [UPDATE_GAP] = HPS_PARTITION_GAP,
        [UPDATE_OTHER] = HPS_PARTITION_GAP,       [UPDATE_GONE] = HPS_PARTITION_GONE,
        [UPDATE_FAILED] = HPS_PARTITION_FAILED,
    };
    HPS_ASSERT(phase < UPDATE_PHASES);
    return STATES[phase];
}

/* ---- a partition ----------------------------------------------------------------------------- */

/* What it is allowed to be in its phase. */
static void phase_sane(const struct hps_update_stream *stream,
                       const struct update_partition *partition)
{
    HPS_ASSERT(partition->phase < UPDATE_PHASES);
    if (update_reads(partition)) {
        HPS_ASSERT(stream->consumer != NULL);
        HPS_ASSERT(!partition->leave);
        HPS_ASSERT(!partition->paused);
        HPS_ASSERT(partition->reason[0] == '\0');
    }
    HPS_ASSERT(partition->phase != UPDATE_CHECKS || partition->applied.last.known);
    HPS_ASSERT(partition->phase != UPDATE_PAUSED || partition->paused);
    if (partition->phase == UPDATE_BLOCKED) {
        HPS_ASSERT(!partition->paused);
        HPS_ASSERT(stream->freeze.frozen && stream->share.alone);
    }
    HPS_ASSERT(partition->phase != UPDATE_GAP || partition->reason[0] != '\0');
    HPS_ASSERT(partition->phase != UPDATE_OTHER || partition->reason[0] != '\0');
}

/* published ≤ read, and what is read and not published is pending. */
static void positions_sane(const struct hps_update_stream *stream,
                           const struct update_partition *partition)
{
    const struct update_pending *pending = &partition->pending;
    HPS_ASSERT(partition->unhashed == NULL);
    HPS_ASSERT(pending->dirty || !pending->moved);
    HPS_ASSERT(pending->dirty || !pending->passed_over);
    if (update_is_published(partition)) {
        HPS_ASSERT(partition->applied.next >= 0);
        HPS_ASSERT(pending->moved || partition->read.next >= partition->applied.next);
        HPS_ASSERT(pending->dirty || partition->read.next == partition->applied.next);
    } else {
        HPS_ASSERT(partition->replay.from < 0);
        HPS_ASSERT(pending->dirty || !update_reads(partition));
    }
    HPS_ASSERT(partition->basis != UPDATE_ADOPTED || stream->share.alone);
    HPS_ASSERT(partition->high >= -1);
    if (partition->replay.from >= 0) {
        HPS_ASSERT(stream->share.phase == UPDATE_SHARE_REPLAYS);
        HPS_ASSERT(partition->replay.next == partition->replay.from);
    }
}

/* What its leader said, and the question for its witness. */
static void proof_sane(const struct hps_update_stream *stream,
                       const struct update_partition *partition)
{
    const struct update_proof *proof = &partition->proof;
    const struct update_identity *same = &partition->same;
    HPS_ASSERT(proof->watch == NULL || stream->consumer != NULL);
    HPS_ASSERT(proof->watch != NULL || proof->n_ends == 0);
    HPS_ASSERT(proof->watch != NULL || !same->asked);
    HPS_ASSERT(proof->word.since_us <= proof->word.asked_us);
    HPS_ASSERT(proof->n_ends <= UPDATE_ENDS_MAX);
    for (uint32_t i = 1; i < proof->n_ends; i++) {
        HPS_DEBUG_ASSERT(proof->ends[i - 1].high < proof->ends[i].high);
    }
    HPS_ASSERT(same->state <= UPDATE_LEARNS);
    HPS_ASSERT(!same->asked || same->asked_offset >= 0);
}

void update_partition_sane(const struct hps_update_stream *stream,
                           const struct update_partition *partition)
{
    phase_sane(stream, partition);
    positions_sane(stream, partition);
    proof_sane(stream, partition);
}

/* ---- a stream -------------------------------------------------------------------------------- */

uint32_t update_n_unstored(const struct hps_update_stream *stream)
{
    uint32_t n = stream->freeze.unstored ? 1 : 0;
    for (uint32_t i = 0; i < stream->n_partitions; i++) {
        n += update_unstored(&stream->partitions[i]) ? 1 : 0;
    }
    return n;
}

/* What was read is applied, held or forgotten: a turn leaves nothing else behind. */
static void batch_sane(const struct hps_update_stream *stream)
{
    const struct update_at_hand *batch = &stream->batch;
    HPS_ASSERT(!batch->dead_letters.sent);
    if (batch->held) {
        HPS_ASSERT(batch->held_text[0] != '\0');
        HPS_ASSERT(update_n_unstored(stream) > 0 || batch->n_records == 0);
    } else {
        HPS_ASSERT(batch->n_records == 0 && batch->n_reasons == 0);
        HPS_ASSERT(hps_update_decoder_keys(batch->decoder) == 0);
        HPS_ASSERT(batch->times.size == 0);
    }
}

static void share_sane(const struct hps_update_stream *stream)
{
    const struct update_share *share = &stream->share;
    HPS_ASSERT((share->phase == UPDATE_SHARE_NONE) == (share->space == NULL));
    HPS_ASSERT((share->phase == UPDATE_SHARE_REPLAYS) == (share->consumer != NULL));
    HPS_ASSERT(share->phase != UPDATE_SHARE_APART || !share->alone);
    HPS_ASSERT(!share->alone || share->space != NULL);
    HPS_ASSERT(share->consumer == NULL || share->decoder != NULL);
}

void update_stream_sane(const struct hps_update_stream *stream)
{
    HPS_ASSERT((stream->link.phase == UPDATE_LINK_CLOSED) == (stream->consumer == NULL));
    HPS_ASSERT(stream->wakeable == stream->consumer);
    HPS_ASSERT(!update_has_ended(stream));
    HPS_ASSERT(stream->n_partitions <= stream->capacity);
    HPS_ASSERT(stream->topics.phase != UPDATE_TOPICS_LISTED || stream->n_partitions > 0);
    HPS_ASSERT(update_is_listed(stream) || stream->topics.listed_ms == 0);
    batch_sane(stream);
    share_sane(stream);
    for (uint32_t i = 0; i < stream->n_partitions; i++) {
        update_partition_sane(stream, &stream->partitions[i]);
    }
}

/* ---- what others see ------------------------------------------------------------------------- */

static void partition_view_sane(const struct hps_stream_view *stream,
                                const struct hps_partition_view *view)
{
    HPS_ASSERT(view->state < HPS_PARTITION_STATES);
    HPS_ASSERT(view->next >= -1 && view->high >= -1);
    if (view->lag_known) {
        HPS_ASSERT(view->next >= 0 && view->high >= 0);
        HPS_ASSERT(view->same_ms > 0);
        HPS_ASSERT(view->state != HPS_PARTITION_STARTING && view->state != HPS_PARTITION_GONE);
        HPS_ASSERT(view->state != HPS_PARTITION_UNREACHABLE);
    }
    HPS_ASSERT(view->state != HPS_PARTITION_FROZEN || stream->frozen);
    HPS_ASSERT(view->state != HPS_PARTITION_HELD || stream->held[0] != '\0');
    HPS_ASSERT(view->state != HPS_PARTITION_HELD || !stream->frozen);
}

void update_view_sane(const struct hps_update_stream *stream)
{
    const struct hps_stream_view *view = &stream->view;
    hps_lock_assert_held(&stream->lock);
    HPS_ASSERT(view->n_partitions <= stream->shown.capacity);
    HPS_ASSERT(view->n_rejected_views <= HPS_REJECTED_VIEWS_MAX);
    HPS_ASSERT(!view->connected || view->away[0] == '\0');
    HPS_ASSERT(!view->shared_behind || view->shared);
    HPS_ASSERT(!view->shared_apart || (view->shared && !view->shared_behind));
    for (uint32_t i = 0; i < view->n_partitions; i++) {
        partition_view_sane(view, &view->partitions[i]);
        HPS_ASSERT(view->as_of_ms <= view->partitions[i].as_of_ms);
    }
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Asserts the invariants of a stream at the end of a turn. next.c and the functions that set a
 * phase assert more. On the stream's thread `update`.
 */
#include "base/assert.h"
#include "server/update/stream/stream.h"

/* ---- a partition ----------------------------------------------------------------------------- */

static void phase_sane(const struct hps_update_stream *stream,
                       const struct update_partition *partition)
{
    if (update_phase_reads(partition->phase)) {
        HPS_ASSERT(stream->consumer != NULL);
        HPS_ASSERT(!partition->unassign_due);
        HPS_ASSERT(!partition->paused);
    }
    HPS_ASSERT(partition->phase != UPDATE_PAUSED || partition->paused);
    HPS_ASSERT(partition->phase != UPDATE_BLOCKED || (stream->frozen && stream->sole_copy));
}

/* applied ≤ read, and records between the two are pending. */
static void positions_sane(const struct hps_update_stream *stream,
                           const struct update_partition *partition)
{
    const struct update_pending *pending = &partition->pending;
    HPS_ASSERT(pending->dirty || (!pending->moved && !pending->skipped));
    if (update_is_published(partition)) {
        HPS_ASSERT(partition->applied->next >= 0);
        HPS_ASSERT(pending->moved || partition->read->next >= partition->applied->next);
        HPS_ASSERT(pending->dirty || partition->read->next == partition->applied->next);
    } else {
        HPS_ASSERT(partition->replay->from < 0);
        HPS_ASSERT(pending->dirty || !update_phase_reads(partition->phase));
    }
    HPS_ASSERT(partition->basis != UPDATE_ADOPTED || stream->sole_copy);
    if (partition->replay->from >= 0) {
        HPS_ASSERT(stream->share->consumer != NULL);
        HPS_ASSERT(partition->replay->next == partition->replay->from);
    }
}

/* The responses of its leader, and the request for its witness. */
static void proof_sane(const struct hps_update_stream *stream,
                       const struct update_partition *partition)
{
    const struct update_proof *proof = partition->proof;
    const struct update_identity *same = partition->identity;
    HPS_ASSERT(proof->watch == NULL || stream->consumer != NULL);
    HPS_ASSERT(proof->watch != NULL || (proof->n_ends == 0 && !same->asked));
    HPS_ASSERT(proof->as_of_ms <= same->at_ms || same->at_ms == 0);
}

/* ---- a stream -------------------------------------------------------------------------------- */

/* Records that were read are applied, held or dropped. */
static void batch_sane(const struct hps_update_stream *stream)
{
    const struct update_batch *batch = stream->batch;
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

void update_stream_sane(const struct hps_update_stream *stream)
{
    const struct update_share *share = stream->share;
    HPS_ASSERT(stream->consumer != NULL || !stream->link->answers);
    HPS_ASSERT(stream->board->wakeable == stream->consumer);
    HPS_ASSERT(share->phase == UPDATE_SHARE_CURRENT || share->space != NULL);
    HPS_ASSERT(share->phase == UPDATE_SHARE_BEHIND || share->consumer == NULL);
    HPS_ASSERT(share->phase != UPDATE_SHARE_BYPASSED || !stream->sole_copy);
    batch_sane(stream);
    UPDATE_EACH (stream, partition) {
        phase_sane(stream, partition);
        positions_sane(stream, partition);
        proof_sane(stream, partition);
    }
}

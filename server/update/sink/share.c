/* SPDX-License-Identifier: Apache-2.0
 *
 * Positions of a version in a tier that is shared with other daemons, and the log records that a
 * batch has for the tier. replay.c handles shards that lag. Thread `update`; also the thread that
 * adds a version, for update_set_shared_positions.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "server/update/sink/sink.h"

/* ---- positions of a version ------------------------------------------------------------------ */

/* The stored positions of a version. */
struct stored {
    struct hps_buf positions; /* struct hps_log_position */
    bool skipped;             /* the version has skipped records */
    struct hps_error *err;
};

static hps_status add_stored(void *ctx, const void *key, size_t key_size, const void *value,
                             size_t value_size)
{
    struct stored *stored = ctx;
    char topic[HPS_UPDATE_TOPIC_BYTES_MAX];
    int32_t number;
    struct hps_position position;
    if (!hps_position_key_parse(key, key_size, topic, &number)) {
        return HPS_OK;
    }
    hps_status status = hps_position_decode(value, value_size, &position);
    if (status != HPS_OK) {
        return hps_error_set(stored->err, status,
                             "the stored position of partition %" PRId32 " of topic '%s': %s",
                             number, topic, hps_status_text(status));
    }
    stored->skipped = stored->skipped || position.skipped != HPS_POSITION_WHOLE;
    if (position.cluster[0] == '\0' && position.next == position.start) {
        return HPS_OK; /* from a manifest: no record was applied yet */
    }
    const struct hps_log_position at = {.partition =
                                            hps_log_partition(position.cluster, topic, number),
                                        .offset = position.next,
                                        .start = position.start};
    status = hps_buf_append(&stored->positions, &at, sizeof(at));
    return status == HPS_OK ? HPS_OK
                            : hps_error_set(stored->err, status, "no memory for positions");
}

hps_status update_set_shared_positions(struct hps_version *version, struct hps_error *err)
{
    struct hps_space *space = hps_update_shared(version);
    struct stored stored = {.err = err};
    if (space == NULL) {
        return HPS_OK;
    }
    const struct hps_store_ops *ops = space->store->ops;
    hps_buf_init(&stored.positions, SIZE_MAX / 2);
    hps_status status = hps_update_positions(version, add_stored, &stored);
    if (status == HPS_OK && stored.skipped && !hps_update_shared_alone(version)) {
        ops->log->leave(space);
    } else if (status == HPS_OK) {
        const void *positions = stored.positions.data;
        status = ops->log->positions_set(
            space, positions, (uint32_t)(stored.positions.size / sizeof(struct hps_log_position)));
        if (status != HPS_OK) {
            status = hps_error_set(err, status, "no memory for positions");
        }
    }
    hps_buf_fini(&stored.positions);
    return status;
}

bool update_bypasses_shared(const struct hps_update_stream *stream)
{
    bool skipped = false;
    UPDATE_EACH (stream, partition) {
        bool dirty = partition->pending.dirty;
        const struct hps_position *at = dirty ? partition->read : partition->applied;
        skipped = skipped ||
                  ((update_is_published(partition) || dirty) && at->skipped != HPS_POSITION_WHOLE);
    }
    return skipped && stream->share->space != NULL && !stream->sole_copy;
}

/* ---- the records of a batch ------------------------------------------------------------------ */

uint32_t update_spans(struct hps_update_stream *stream, struct hps_log_span *out_spans)
{
    uint32_t n = 0;
    UPDATE_EACH (stream, partition) {
        const struct hps_position *read = partition->read;
        const struct hps_position *applied = partition->applied;
        /* The tier gets a moved position when it is due (share.positions_due). */
        bool moved = partition->pending.moved && !stream->sole_copy;
        if (!stream->shares || !partition->pending.dirty || moved) {
            continue;
        }
        bool follows = partition->basis != UPDATE_NOWHERE &&
                       (applied->cluster[0] == '\0' || /* from a manifest */
                        strcmp(applied->cluster, read->cluster) == 0);
        partition->pending.span = n;
        out_spans[n++] = (struct hps_log_span){
            .partition = hps_log_partition(read->cluster, partition->topic, partition->number),
            .start = read->start,
            .first = follows ? applied->next : read->start,
            .next = read->next};
    }
    return n;
}

/* ---- partitions that start ------------------------------------------------------------------- */

static hps_status get_positions(const struct hps_update_stream *stream, struct hps_log_position *at,
                                uint32_t n)
{
    const struct hps_call no_limit = {0};
    struct hps_space *space = stream->share->space;
    return n == 0 ? HPS_OK : space->store->ops->log->positions_get(space, &no_limit, at, n);
}

/* The partition continues at the position of the shared tier, unless no daemon has applied records
 * yet. */
static void adopt(struct hps_update_stream *stream, struct update_partition *partition,
                  const struct hps_log_position *has)
{
    partition->shared_asked = true;
    if (has->offset == has->start) {
        return;
    }
    /* An offset before the start was applied by a daemon that started earlier: its start is not
     * known, so neither is the offset of a shard without a position for the partition. */
    *partition->applied = (struct hps_position){.next = has->offset,
                                                .start = has->offset < has->start ? -1 : has->start,
                                                .skipped = HPS_POSITION_WHOLE,
                                                .frozen = HPS_POSITION_WHOLE};
    memcpy(partition->applied->cluster, stream->cluster, sizeof(stream->cluster));
    partition->pending.dirty = true;
    if (partition->basis == UPDATE_NOWHERE) {
        partition->basis = UPDATE_ADOPTED;
    }
}

bool update_adopt(struct hps_update_stream *stream, const int64_t *starts)
{
    HPS_ASSERT(stream->sole_copy && stream->share->space != NULL);
    struct hps_log_position *at =
        hps_arena_calloc(stream->scratch, stream->n_partitions, sizeof(*at));
    uint32_t n = 0;
    for (uint32_t i = 0; i < stream->n_partitions && at != NULL; i++) {
        const struct update_partition *partition = &stream->partitions[i];
        if (starts[i] >= 0 && !partition->shared_asked) {
            at[n++] = (struct hps_log_position){
                .partition =
                    hps_log_partition(stream->cluster, partition->topic, partition->number),
                .start = update_is_published(partition) ? partition->applied->start : starts[i]};
        }
    }
    hps_status status = at == NULL ? HPS_NO_MEMORY : get_positions(stream, at, n);
    if (status != HPS_OK) {
        UPDATE_LOG(stream, WARN,
                   "updates stalled: the shared tier did not answer for its positions; retried",
                   HPS_STR("error", hps_status_text(status)));
    }
    n = 0;
    for (uint32_t i = 0; i < stream->n_partitions && status == HPS_OK; i++) {
        if (starts[i] >= 0 && !stream->partitions[i].shared_asked) {
            adopt(stream, &stream->partitions[i], &at[n++]);
        }
    }
    return status == HPS_OK;
}

static bool is_new(const struct update_partition *partition)
{
    return partition->phase == UPDATE_STARTING && !update_is_published(partition);
}

void update_ask_shared(struct hps_update_stream *stream)
{
    bool asks = stream->shares && !stream->sole_copy;
    struct hps_log_position *at =
        asks ? hps_arena_calloc(stream->scratch, stream->n_partitions, sizeof(*at)) : NULL;
    uint32_t n = 0;
    UPDATE_EACH (stream, partition) {
        partition->shared_at = 0;
        if (at != NULL && is_new(partition)) {
            at[n++].partition =
                hps_log_partition(stream->cluster, partition->topic, partition->number);
        }
    }
    bool answered = at != NULL && get_positions(stream, at, n) == HPS_OK;
    n = 0;
    UPDATE_EACH (stream, partition) {
        if (answered && is_new(partition)) {
            partition->shared_at = at[n++].offset;
        }
    }
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * A version whose rows are also in a tier that is shared with other daemons: where it is there, and
 * what a batch is in the log's own terms. Shards that lag: replay.c. On the stream's thread
 * `update`, but for hps_updater_place.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/log.h"
#include "server/update/internal.h"

static const struct hps_call no_limit = {0};

/* ---- where a version is ---------------------------------------------------------------------- */

struct place {
    struct hps_buf positions; /* struct hps_log_position */
    bool apart;
    struct hps_error *err;
};

static hps_status place_one(void *ctx, const void *key, size_t key_size, const void *value,
                            size_t value_size)
{
    struct place *place = ctx;
    char topic[HPS_UPDATE_TOPIC_BYTES_MAX];
    int32_t number;
    struct hps_position position;
    if (!hps_position_key_parse(key, key_size, topic, &number)) {
        return HPS_OK;
    }
    hps_status status = hps_position_decode(value, value_size, &position);
    if (status != HPS_OK) {
        return hps_error_set(place->err, status,
                             "the stored position of partition %" PRId32 " of topic '%s': %s",
                             number, topic, hps_status_text(status));
    }
    place->apart = place->apart || position.skipped != HPS_POSITION_WHOLE;
    if (position.cluster[0] == '\0' && position.next == position.start) {
        return HPS_OK; /* of a manifest: nothing has been applied yet */
    }
    const struct hps_log_position at = {.partition =
                                            hps_log_partition(position.cluster, topic, number),
                                        .offset = position.next,
                                        .start = position.start};
    status = hps_buf_append(&place->positions, &at, sizeof(at));
    return status == HPS_OK ? HPS_OK : hps_error_set(place->err, status, "no memory for positions");
}

hps_status hps_updater_place(struct hps_version *version, struct hps_error *err)
{
    struct hps_space *space = hps_update_shared(version);
    struct place place = {.err = err};
    if (space == NULL) {
        return HPS_OK;
    }
    const struct hps_store_ops *ops = space->store->ops;
    hps_buf_init(&place.positions, SIZE_MAX / 2);
    hps_status status = hps_update_positions(version, place_one, &place);
    if (status == HPS_OK && place.apart && !hps_update_shared_alone(version)) {
        ops->log->leave(space);
    } else if (status == HPS_OK) {
        const void *positions = place.positions.data;
        status = ops->log->positions_set(
            space, positions, (uint32_t)(place.positions.size / sizeof(struct hps_log_position)));
        if (status != HPS_OK) {
            status = hps_error_set(err, status, "no memory for positions");
        }
    }
    hps_buf_fini(&place.positions);
    return status;
}

bool update_is_apart(const struct hps_update_stream *stream)
{
    bool apart = false;
    for (uint32_t i = 0; i < stream->n_partitions; i++) {
        const struct update_partition *partition = &stream->partitions[i];
        bool dirty = partition->pending.dirty;
        const struct hps_position *at = dirty ? &partition->read : &partition->applied;
        apart = apart ||
                ((update_is_published(partition) || dirty) && at->skipped != HPS_POSITION_WHOLE);
    }
    return apart && stream->share.space != NULL && !stream->share.alone;
}

/* ---- a batch in the log's terms -------------------------------------------------------------- */

uint64_t update_log_partition(const struct update_partition *partition,
                              const struct hps_position *at)
{
    return hps_log_partition(at->cluster, partition->topic, partition->number);
}

uint32_t update_spans(struct hps_update_stream *stream, const struct hps_update_part *parts,
                      uint32_t n_parts, struct hps_log_span *spans, uint32_t *part_spans)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < stream->n_partitions && stream->share.space != NULL; i++) {
        struct update_partition *partition = &stream->partitions[i];
        const struct hps_position *read = &partition->read;
        /* where one moves that has a lower tier, the shared one is told afterwards */
        if (!partition->pending.dirty || (partition->pending.moved && !stream->share.alone)) {
            continue;
        }
        const struct hps_position *applied = &partition->applied;
        bool follows = (partition->basis != UPDATE_NOWHERE) &&
                       (applied->cluster[0] == '\0' || /* of a manifest */
                        strcmp(applied->cluster, read->cluster) == 0);
        partition->pending.span = n;
        spans[n++] = (struct hps_log_span){.partition = update_log_partition(partition, read),
                                           .start = read->start,
                                           .first = follows ? applied->next : read->start,
                                           .next = read->next};
    }
    for (uint32_t i = 0; i < n_parts && n > 0; i++) {
        part_spans[i] = stream->partitions[parts[i].source].pending.span;
    }
    return n;
}

bool update_adopt(struct hps_update_stream *stream, const int64_t *starts)
{
    HPS_ASSERT(stream->share.alone && stream->share.space != NULL);
    struct hps_log_position *at = hps_calloc(stream->n_partitions, sizeof(*at));
    uint32_t n = 0;
    for (uint32_t i = 0; i < stream->n_partitions && at != NULL; i++) {
        const struct update_partition *partition = &stream->partitions[i];
        if (starts[i] >= 0 && !partition->shared_asked) {
            at[n++] = (struct hps_log_position){
                .partition =
                    hps_log_partition(stream->topics.cluster, partition->topic, partition->number),
                .start = update_is_published(partition) ? partition->applied.start : starts[i]};
        }
    }
    hps_status status = at == NULL ? HPS_NO_MEMORY
                        : n == 0   ? HPS_OK
                                   : stream->share.space->store->ops->log->positions_get(
                                         stream->share.space, &no_limit, at, n);
    if (status != HPS_OK) {
        HPS_LOG(WARN, "updates",
                "updates stalled: the shared tier did not answer for its positions; retried",
                HPS_STR("model", stream->model), HPS_I64("version", stream->number),
                HPS_STR("error", hps_status_text(status)));
    }
    n = 0;
    for (uint32_t i = 0; i < stream->n_partitions && status == HPS_OK; i++) {
        struct update_partition *partition = &stream->partitions[i];
        if (starts[i] < 0 || partition->shared_asked) {
            continue;
        }
        partition->shared_asked = true;
        const struct hps_log_position *has = &at[n++];
        if (has->offset != has->start) { /* others have been here before */
            /* Before the start, too: the log's end, or what it begins with now, is a later one.
             * Where a shard is that does not name the partition nobody knows, then. */
            int64_t start = has->offset < has->start ? -1 : has->start;
            partition->applied = (struct hps_position){.next = has->offset,
                                                       .start = start,
                                                       .skipped = HPS_POSITION_WHOLE,
                                                       .frozen = HPS_POSITION_WHOLE};
            memcpy(partition->applied.cluster, stream->topics.cluster,
                   sizeof(stream->topics.cluster));
            partition->pending.dirty = true;
            if (partition->basis == UPDATE_NOWHERE) {
                partition->basis = UPDATE_ADOPTED;
            }
        }
    }
    hps_free(at);
    return status == HPS_OK;
}

void update_ask_shared(struct hps_update_stream *stream)
{
    struct hps_log_position *at = hps_calloc(stream->n_partitions, sizeof(*at));
    uint32_t n = 0;
    for (uint32_t i = 0; i < stream->n_partitions && at != NULL; i++) {
        struct update_partition *partition = &stream->partitions[i];
        partition->shared_at = 0;
        if (partition->phase == UPDATE_STARTS && !update_is_published(partition)) {
            at[n++].partition =
                hps_log_partition(stream->topics.cluster, partition->topic, partition->number);
        }
    }
    bool asks = n > 0 && stream->share.space != NULL && !stream->share.alone;
    bool told = asks && stream->share.space->store->ops->log->positions_get(
                            stream->share.space, &no_limit, at, n) == HPS_OK;
    n = 0;
    for (uint32_t i = 0; i < stream->n_partitions && told; i++) {
        struct update_partition *partition = &stream->partitions[i];
        if (partition->phase == UPDATE_STARTS && !update_is_published(partition)) {
            partition->shared_at = at[n++].offset;
        }
    }
    hps_free(at);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Creates, opens, closes and frees a stream. On the thread that adds the version, then on the
 * stream's thread `update`.
 */
#include <string.h>

#include "base/assert.h"
#include "base/heap.h"
#include "server/observe/metrics.h"
#include "server/update/stream/stream.h"

enum { MEMORY_BYTES_FIRST = 64 * 1024, SCRATCH_BYTES_FIRST = 16 * 1024, BYTES_MAX = 1 << 30 };

/* Makes the structs that the stream points to. False: no memory for all of them. */
static bool make_parts(struct hps_update_stream *stream, const struct hps_version *version)
{
    const char *lineage = version->lineage != NULL ? version->lineage : "";
    stream->model = hps_arena_strndup(stream->memory, version->model, strlen(version->model));
    stream->lineage = hps_arena_strndup(stream->memory, lineage, strlen(lineage));
    bool made = stream->model != NULL && stream->lineage != NULL;
#define MAKE(part)                                                             \
    stream->part = hps_arena_calloc(stream->memory, 1, sizeof(*stream->part)); \
    made = made && stream->part != NULL
    MAKE(board);
    MAKE(refresh);
    MAKE(shown);
    MAKE(view);
    MAKE(link);
    MAKE(topics);
    MAKE(batch);
    MAKE(pace);
    MAKE(counts);
    MAKE(metrics);
    MAKE(share);
#undef MAKE
    return made;
}

static void free_all(struct hps_update_stream *stream)
{
    hps_arena_free(stream->memory);
    hps_arena_free(stream->scratch);
    hps_free(stream);
}

struct hps_update_stream *update_stream_new(struct update_common *common,
                                            struct hps_version *version, uint64_t n_switches)
{
    struct hps_update_stream *stream = hps_calloc(1, sizeof(*stream));
    if (stream == NULL) {
        return NULL;
    }
    stream->common = common;
    stream->source = &common->options.config->update_source;
    stream->number = version->number;
    stream->freeze.by = n_switches;
    stream->memory = hps_arena_new(MEMORY_BYTES_FIRST, BYTES_MAX);
    stream->scratch = hps_arena_new(SCRATCH_BYTES_FIRST, BYTES_MAX);
    if (stream->memory == NULL || stream->scratch == NULL || !make_parts(stream, version)) {
        free_all(stream);
        return NULL;
    }
    hps_lock_init(&stream->board->lock, HPS_LOCK_UPDATE_STREAM);
    hps_cond_init(&stream->board->changed);
    stream->view->model = stream->model;
    stream->view->lineage = stream->lineage;
    stream->view->version = stream->number;
    stream->view->instance = common->instance;
    stream->view->key_bytes = common->options.config->key_bytes;
    hps_version_pin(version);
    stream->version = version;
    return stream;
}

void update_stream_free(struct hps_update_stream *stream)
{
    HPS_ASSERT(stream->consumer == NULL && stream->version == NULL);
    HPS_ASSERT(stream->board->calls == NULL);
    hps_lock_fini(&stream->board->lock);
    hps_cond_fini(&stream->board->changed);
    free_all(stream);
}

void update_wake(struct hps_update_stream *stream)
{
    hps_lock_assert_held(&stream->board->lock);
    hps_cond_broadcast(&stream->board->changed);
    if (stream->board->wakeable != NULL) {
        stream->board->wakeable->ops->wake(stream->board->wakeable);
    }
}

/* A request to stop may come late: a stream that has ended stays so. */
void update_life_set(struct hps_update_stream *stream, enum update_life to)
{
    int from = UPDATE_LIVES;
    if (to == UPDATE_STOPS) {
        (void)atomic_compare_exchange_strong(&stream->life, &from, UPDATE_STOPS);
        return;
    }
    from = atomic_exchange(&stream->life, (int)to);
    HPS_ASSERT(from == UPDATE_STOPS && to == UPDATE_ENDED);
}

static struct hps_metric *metric(const struct hps_update_stream *stream, enum hps_metric_id id)
{
    return hps_server_metric(stream->common->options.metrics, id, stream->model, NULL, NULL, NULL);
}

hps_status update_stream_open(struct hps_update_stream *stream, struct hps_error *err)
{
    hps_buf_init(&stream->batch->times, SIZE_MAX / 2);
    *stream->metrics =
        (struct update_metrics){.records = metric(stream, HPS_M_UPDATE_RECORDS),
                                .batches = metric(stream, HPS_M_UPDATE_BATCHES),
                                .freshness = metric(stream, HPS_M_UPDATE_FRESHNESS),
                                .compacted = metric(stream, HPS_M_UPDATE_COMPACTED),
                                .throttled = metric(stream, HPS_M_UPDATE_THROTTLED),
                                .letters_lost = metric(stream, HPS_M_UPDATE_LETTERS_LOST)};
    stream->share->space = hps_update_shared(stream->version);
    stream->shares = stream->share->space != NULL;
    stream->sole_copy = hps_update_shared_alone(stream->version);
    if (stream->shares) {
        stream->metrics->gaps = metric(stream, HPS_M_UPDATE_SHARED_GAPS);
        stream->metrics->failed = metric(stream, HPS_M_UPDATE_SHARED_FAILED);
        stream->metrics->replayed = metric(stream, HPS_M_UPDATE_SHARED_REPLAYED);
        stream->metrics->resets = metric(stream, HPS_M_UPDATE_SHARED_RESETS);
    }
    stream->batch->decoder = hps_update_decoder_new(stream->version, stream->view->key_bytes,
                                                    &stream->common->nan_allowed);
    stream->batch->keys =
        hps_update_keys_new(stream->version, metric(stream, HPS_M_UPDATE_MISENCODED_KEYS));
    if (stream->batch->decoder == NULL || stream->batch->keys == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for the updates of a version");
    }
    hps_status status = update_read_positions(stream, err);
    if (update_bypasses_shared(stream)) {
        stream->share->phase = UPDATE_SHARE_BYPASSED;
    }
    return status;
}

void update_stream_close(struct hps_update_stream *stream)
{
    update_end_replay(stream);
    update_link_close(stream);
    hps_update_decoder_free(stream->batch->decoder);
    stream->batch->decoder = NULL;
    hps_update_keys_free(stream->batch->keys);
    stream->batch->keys = NULL;
    hps_buf_fini(&stream->batch->times);
    hps_lock_acquire(&stream->board->lock);
    stream->view->n_partitions = 0;
    hps_free(stream->shown->partitions);
    stream->shown->partitions = NULL;
    stream->shown->capacity = 0;
    hps_lock_release(&stream->board->lock);
    hps_free(stream->partitions);
    stream->partitions = NULL;
    stream->n_partitions = 0;
    hps_version_unpin(stream->version);
    stream->version = NULL;
}

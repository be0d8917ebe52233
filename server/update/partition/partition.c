/* SPDX-License-Identifier: Apache-2.0
 *
 * The partitions of a stream: see partition.h.
 */
#include "server/update/partition/partition.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/assert.h"
#include "base/heap.h"

/* ---- a list of partitions -------------------------------------------------------------------- */

struct update_partition *update_find_partition(struct hps_update_stream *stream, const char *topic,
                                               int32_t number)
{
    UPDATE_EACH (stream, partition) {
        if (partition->number == number && strcmp(partition->topic, topic) == 0) {
            return partition;
        }
    }
    return NULL;
}

/* False: no memory for all of them. */
static bool make_parts(struct hps_arena *memory, struct update_partition *partition)
{
    partition->applied = hps_arena_calloc(memory, 1, sizeof(*partition->applied));
    partition->read = hps_arena_calloc(memory, 1, sizeof(*partition->read));
    partition->listed = hps_arena_calloc(memory, 1, sizeof(*partition->listed));
    partition->proof = hps_arena_calloc(memory, 1, sizeof(*partition->proof));
    partition->identity = hps_arena_calloc(memory, 1, sizeof(*partition->identity));
    partition->replay = hps_arena_calloc(memory, 1, sizeof(*partition->replay));
    return partition->applied != NULL && partition->read != NULL && partition->listed != NULL &&
           partition->proof != NULL && partition->identity != NULL && partition->replay != NULL;
}

struct update_partition *update_add_partition(struct hps_update_stream *stream, const char *topic,
                                              int32_t number, const struct hps_update_route *route)
{
    if (stream->n_partitions == stream->capacity) {
        uint32_t capacity = stream->capacity == 0 ? 16 : stream->capacity * 2;
        struct update_partition *grown = hps_realloc(stream->partitions, capacity * sizeof(*grown));
        if (grown == NULL) {
            return NULL;
        }
        stream->partitions = grown;
        stream->capacity = capacity;
    }
    struct update_partition *partition = &stream->partitions[stream->n_partitions];
    *partition = (struct update_partition){.number = number,
                                           .route = *route,
                                           .phase = UPDATE_STARTING,
                                           .high = -1,
                                           .to_commit = -1,
                                           .committed = -1};
    if (!make_parts(stream->memory, partition)) {
        return NULL;
    }
    partition->listed->delete_retention_ms = -1;
    partition->replay->from = -1;
    partition->route.source = stream->shares ? stream->n_partitions : 0;
    snprintf(partition->topic, sizeof(partition->topic), "%s", topic);
    stream->n_partitions++;
    return partition;
}

/* ---- as operators see it --------------------------------------------------------------------- */

enum hps_partition_state update_partition_state(enum update_phase phase)
{
    static const enum hps_partition_state STATES[UPDATE_PHASES] = {
        [UPDATE_STARTING] = HPS_PARTITION_STARTING, [UPDATE_CHECKING] = HPS_PARTITION_RUNNING,
        [UPDATE_RUNNING] = HPS_PARTITION_RUNNING,   [UPDATE_PAUSED] = HPS_PARTITION_PAUSED,
        [UPDATE_BLOCKED] = HPS_PARTITION_PAUSED,    [UPDATE_GAP] = HPS_PARTITION_GAP,
        [UPDATE_REPLACED] = HPS_PARTITION_GAP,      [UPDATE_MISSING] = HPS_PARTITION_GONE,
        [UPDATE_FAILED] = HPS_PARTITION_FAILED,
    };
    HPS_ASSERT(phase < UPDATE_PHASES);
    return STATES[phase];
}

const char *hps_partition_state_text(enum hps_partition_state state)
{
    static const char *const texts[] = {"starting", "running", "paused", "gap",        "gone",
                                        "failed",   "frozen",  "held",   "unreachable"};
    _Static_assert(sizeof(texts) / sizeof(texts[0]) == HPS_PARTITION_STATES, "one each");
    HPS_ASSERT(state < HPS_PARTITION_STATES);
    return texts[state];
}

int64_t hps_partition_lag_ms(const struct hps_partition_view *view)
{
    return view->as_of_ms <= 0 ? -1 : hps_clock_forward_ms() - view->as_of_ms;
}

void update_time_text(int64_t unix_ms, char *out_text, size_t size)
{
    time_t seconds = (time_t)(unix_ms / 1000);
    struct tm utc;
    if (gmtime_r(&seconds, &utc) == NULL ||
        strftime(out_text, size, "%Y-%m-%dT%H:%M:%SZ", &utc) == 0) {
        snprintf(out_text, size, "Unix time %" PRId64 " s", (int64_t)seconds);
    }
}

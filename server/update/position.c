/* SPDX-License-Identifier: Apache-2.0
 *
 * Positions as bytes: see position.h. Any thread.
 */
#include "server/update/position.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "positions are stored as they lie");

enum { FORMAT = 3, FORMAT_2 = 2, FORMAT_1 = 1 };
enum { LAST_KNOWN = 1, PAUSED = 2, WITNESS_KNOWN = 4, BEFORE_START = 8 };

struct stored {
    uint8_t format;
    uint8_t bits;
    uint16_t cluster_size, topic_id_size, zero;
    int64_t next, last_offset, last_time_ms;
    uint64_t last_hash;
    int64_t as_of_ms, event_time_ms;
    int64_t start, skipped;
    int64_t witness_offset, witness_time_ms;
    uint64_t witness_hash;
    int64_t frozen, base_ms;
};
_Static_assert(sizeof(struct stored) == 112, "as documented");

size_t hps_position_key(const char *topic, int32_t partition,
                        char out_key[HPS_POSITION_KEY_BYTES_MAX])
{
    int size = snprintf(out_key, HPS_POSITION_KEY_BYTES_MAX, "%s/%" PRId32, topic, partition);
    HPS_ASSERT(size > 0 && size < HPS_POSITION_KEY_BYTES_MAX);
    return (size_t)size;
}

bool hps_position_key_parse(const void *key, size_t size,
                            char out_topic[HPS_UPDATE_TOPIC_BYTES_MAX], int32_t *out_partition)
{
    char text[HPS_POSITION_KEY_BYTES_MAX];
    if (size >= sizeof(text)) {
        return false;
    }
    memcpy(text, key, size);
    text[size] = '\0';
    char *slash = strrchr(text, '/');
    if (slash == NULL || slash[1] < '0' || slash[1] > '9' ||
        slash - text >= HPS_UPDATE_TOPIC_BYTES_MAX) {
        return false;
    }
    *slash = '\0';
    char *end;
    long long number = strtoll(slash + 1, &end, 10);
    if (*end != '\0' || number > INT32_MAX) {
        return false;
    }
    memcpy(out_topic, text, (size_t)(slash - text) + 1);
    *out_partition = (int32_t)number;
    return true;
}

size_t hps_position_encode(const struct hps_position *position,
                           uint8_t out_value[HPS_POSITION_VALUE_BYTES_MAX])
{
    size_t cluster_size = strlen(position->cluster);
    size_t topic_id_size = strlen(position->topic_id);
    HPS_ASSERT(position->next >= 0);
    HPS_ASSERT(cluster_size < HPS_CLUSTER_BYTES_MAX && topic_id_size < HPS_TOPIC_ID_BYTES_MAX);
    const struct hps_witness *last = &position->last;
    const struct hps_witness *witness = &position->witness;
    uint8_t bits = (last->known ? LAST_KNOWN : 0) | (position->paused ? PAUSED : 0) |
                   (witness->known ? WITNESS_KNOWN : 0) |
                   (position->before_start ? BEFORE_START : 0);
    const struct stored stored = {.format = FORMAT,
                                  .bits = bits,
                                  .cluster_size = (uint16_t)cluster_size,
                                  .topic_id_size = (uint16_t)topic_id_size,
                                  .next = position->next,
                                  .last_offset = last->offset,
                                  .last_time_ms = last->time_ms,
                                  .last_hash = last->hash,
                                  .as_of_ms = position->as_of_ms,
                                  .event_time_ms = position->event_time_ms,
                                  .start = position->start,
                                  .skipped = position->skipped,
                                  .witness_offset = witness->offset,
                                  .witness_time_ms = witness->time_ms,
                                  .witness_hash = witness->hash,
                                  .frozen = position->frozen,
                                  .base_ms = position->base_ms};
    uint8_t *at = out_value;
    memcpy(at, &stored, sizeof(stored));
    memcpy(at + sizeof(stored), position->cluster, cluster_size);
    memcpy(at + sizeof(stored) + cluster_size, position->topic_id, topic_id_size);
    return sizeof(stored) + cluster_size + topic_id_size;
}

/* How many bytes come before the ids, in each format. */
static size_t fixed_size(uint8_t format)
{
    return format == FORMAT_1   ? offsetof(struct stored, start)
           : format == FORMAT_2 ? offsetof(struct stored, witness_offset)
                                : sizeof(struct stored);
}

hps_status hps_position_decode(const void *value, size_t size, struct hps_position *out_position)
{
    struct stored stored = {.start = -1, .skipped = 0, .frozen = HPS_POSITION_WHOLE};
    uint8_t format = size >= 1 ? *(const uint8_t *)value : 0;
    size_t fixed = fixed_size(format);
    if (format > FORMAT) {
        return HPS_NEWER_FORMAT;
    }
    if (format == 0 || size < fixed) {
        return HPS_DATA_LOSS;
    }
    memcpy(&stored, value, fixed);
    if (stored.cluster_size >= HPS_CLUSTER_BYTES_MAX ||
        stored.topic_id_size >= HPS_TOPIC_ID_BYTES_MAX ||
        size != fixed + stored.cluster_size + stored.topic_id_size || stored.next < 0 ||
        stored.skipped < HPS_POSITION_LOST || stored.frozen < HPS_POSITION_WHOLE) {
        return HPS_DATA_LOSS;
    }
    const struct hps_witness last = {.known = (stored.bits & LAST_KNOWN) != 0,
                                     .offset = stored.last_offset,
                                     .time_ms = stored.last_time_ms,
                                     .hash = stored.last_hash};
    const struct hps_witness witness = {.known = (stored.bits & WITNESS_KNOWN) != 0,
                                        .offset = stored.witness_offset,
                                        .time_ms = stored.witness_time_ms,
                                        .hash = stored.witness_hash};
    *out_position = (struct hps_position){.next = stored.next,
                                          .paused = (stored.bits & PAUSED) != 0,
                                          .last = last,
                                          .witness = format < FORMAT ? last : witness,
                                          .as_of_ms = stored.as_of_ms,
                                          .event_time_ms = stored.event_time_ms,
                                          .start = stored.start,
                                          .skipped = stored.skipped,
                                          .before_start = (stored.bits & BEFORE_START) != 0,
                                          .frozen = stored.frozen,
                                          .base_ms = stored.base_ms};
    const uint8_t *ids = (const uint8_t *)value + fixed;
    memcpy(out_position->cluster, ids, stored.cluster_size);
    memcpy(out_position->topic_id, ids + stored.cluster_size, stored.topic_id_size);
    return HPS_OK;
}

void hps_position_frozen_encode(bool frozen, uint64_t n_switches,
                                uint8_t out_value[HPS_POSITION_FROZEN_BYTES])
{
    out_value[0] = frozen ? 1 : 0;
    memcpy(out_value + 1, &n_switches, sizeof(n_switches));
}

bool hps_position_frozen_decode(const void *value, size_t size, bool *out_frozen,
                                uint64_t *out_n_switches)
{
    if (size != HPS_POSITION_FROZEN_BYTES) {
        return false;
    }
    *out_frozen = *(const uint8_t *)value != 0;
    memcpy(out_n_switches, (const uint8_t *)value + 1, sizeof(*out_n_switches));
    return true;
}

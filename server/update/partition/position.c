/* SPDX-License-Identifier: Apache-2.0
 *
 * Positions as bytes: see position.h. Any thread.
 */
#include "server/update/partition/position.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "positions are stored as in memory");

enum { FORMAT = 3, FORMAT_2 = 2, FORMAT_1 = 1 };
enum { LAST_KNOWN = 1, PAUSED = 2, WITNESS_KNOWN = 4, BEFORE_START = 8 };

struct stored_witness {
    int64_t offset, time_ms;
    uint64_t hash;
};
struct stored {
    uint8_t format;
    uint8_t bits;
    uint16_t cluster_size, topic_id_size, zero;
    int64_t next;
    struct stored_witness last;
    int64_t as_of_ms, event_time_ms;
    int64_t start, skipped;
    struct stored_witness witness;
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

static struct stored_witness to_stored(const struct hps_witness *witness)
{
    return (struct stored_witness){witness->offset, witness->time_ms, witness->hash};
}

static struct hps_witness from_stored(bool known, const struct stored_witness *stored)
{
    return (struct hps_witness){known, stored->offset, stored->time_ms, stored->hash};
}

size_t hps_position_encode(const struct hps_position *position,
                           uint8_t out_value[HPS_POSITION_VALUE_BYTES_MAX])
{
    size_t cluster_size = strlen(position->cluster);
    size_t topic_id_size = strlen(position->topic_id);
    HPS_ASSERT(position->next >= 0);
    HPS_ASSERT(cluster_size < HPS_CLUSTER_BYTES_MAX && topic_id_size < HPS_TOPIC_ID_BYTES_MAX);
    uint8_t bits = (position->last.known ? LAST_KNOWN : 0) | (position->paused ? PAUSED : 0) |
                   (position->witness.known ? WITNESS_KNOWN : 0) |
                   (position->before_start ? BEFORE_START : 0);
    const struct stored stored = {.format = FORMAT,
                                  .bits = bits,
                                  .cluster_size = (uint16_t)cluster_size,
                                  .topic_id_size = (uint16_t)topic_id_size,
                                  .next = position->next,
                                  .last = to_stored(&position->last),
                                  .as_of_ms = position->as_of_ms,
                                  .event_time_ms = position->event_time_ms,
                                  .start = position->start,
                                  .skipped = position->skipped,
                                  .witness = to_stored(&position->witness),
                                  .frozen = position->frozen,
                                  .base_ms = position->base_ms};
    memcpy(out_value, &stored, sizeof(stored));
    memcpy(out_value + sizeof(stored), position->cluster, cluster_size);
    memcpy(out_value + sizeof(stored) + cluster_size, position->topic_id, topic_id_size);
    return sizeof(stored) + cluster_size + topic_id_size;
}

/* The number of bytes before the ids, by format. */
static size_t fixed_size(uint8_t format)
{
    return format == FORMAT_1   ? offsetof(struct stored, start)
           : format == FORMAT_2 ? offsetof(struct stored, witness)
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
    const struct hps_witness last = from_stored((stored.bits & LAST_KNOWN) != 0, &stored.last);
    const struct hps_witness witness =
        from_stored((stored.bits & WITNESS_KNOWN) != 0, &stored.witness);
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

struct hps_record hps_position_record(const char *topic, int32_t partition,
                                      const struct hps_position *position,
                                      struct hps_position_memory *to)
{
    size_t key_size = hps_position_key(topic, partition, to->key);
    if (position == NULL) {
        to->key[key_size++] = HPS_POSITION_OTHER;
    }
    size_t value_size = position != NULL ? hps_position_encode(position, to->value) : 0;
    return (struct hps_record){to->key, key_size, to->value, value_size};
}

struct hps_record hps_position_frozen_record(bool frozen, uint64_t n_switches,
                                             struct hps_position_memory *to)
{
    to->value[0] = frozen ? 1 : 0;
    memcpy(to->value + 1, &n_switches, sizeof(n_switches));
    return (struct hps_record){HPS_POSITION_FROZEN, strlen(HPS_POSITION_FROZEN), to->value,
                               HPS_POSITION_FROZEN_BYTES};
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

/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as records of a store about the progress of updates: positions in the update log, their
 * keys, the frozen state of a version, and the positions of a Redis shard. If they are accepted,
 * they are written, and must mean the same.
 */
#include "backends/redis/positions.h"
#include "base/assert.h"
#include "server/update/partition/position.h"
#include "tests/fuzz/script.h"

static void check_position(const uint8_t *data, size_t size)
{
    struct hps_position position;
    struct hps_position again;
    uint8_t value[HPS_POSITION_VALUE_BYTES_MAX];

    hps_status status = hps_position_decode(data, size, &position);
    if (status != HPS_OK) {
        HPS_ASSERT(status == HPS_DATA_LOSS || status == HPS_NEWER_FORMAT);
        return;
    }
    HPS_ASSERT(memchr(position.cluster, '\0', sizeof(position.cluster)) != NULL);
    HPS_ASSERT(memchr(position.topic_id, '\0', sizeof(position.topic_id)) != NULL);
    HPS_ASSERT(position.next >= 0);
    size_t n = hps_position_encode(&position, value);
    HPS_ASSERT(n <= sizeof(value) && hps_position_decode(value, n, &again) == HPS_OK);
    HPS_ASSERT(again.next == position.next && again.paused == position.paused);
    HPS_ASSERT(again.skipped == position.skipped && again.frozen == position.frozen);
    HPS_ASSERT(again.start == position.start && again.witness.hash == position.witness.hash);
    HPS_ASSERT(again.last.known == position.last.known &&
               again.last.offset == position.last.offset);
    HPS_ASSERT(strcmp(again.cluster, position.cluster) == 0);
    HPS_ASSERT(strcmp(again.topic_id, position.topic_id) == 0);
}

static void check_key(const uint8_t *data, size_t size)
{
    char topic[HPS_UPDATE_TOPIC_BYTES_MAX];
    char topic_again[HPS_UPDATE_TOPIC_BYTES_MAX];
    char key[HPS_POSITION_KEY_BYTES_MAX];
    int32_t partition;
    int32_t partition_again;

    if (hps_position_key_parse(data, size, topic, &partition)) {
        HPS_ASSERT(partition >= 0 && memchr(topic, '\0', sizeof(topic)) != NULL);
        size_t n = hps_position_key(topic, partition, key);
        HPS_ASSERT(hps_position_key_parse(key, n, topic_again, &partition_again));
        HPS_ASSERT(partition == partition_again && strcmp(topic, topic_again) == 0);
    }
}

static void check_frozen(const uint8_t *data, size_t size)
{
    struct hps_position_memory memory;
    bool frozen;
    uint64_t n_switches;

    if (hps_position_frozen_decode(data, size, &frozen, &n_switches)) {
        (void)hps_position_frozen_record(frozen, n_switches, &memory);
        HPS_ASSERT(memcmp(memory.value + 1, data + 1, HPS_POSITION_FROZEN_BYTES - 1) == 0);
    }
}

static void check_shard(const uint8_t *data, size_t size)
{
    struct hps_redis_positions positions = {0};
    struct hps_buf out;

    hps_buf_init(&out, size + 1);
    hps_status status = hps_redis_positions_decode(&positions, data, size);
    if (status == HPS_OK) {
        HPS_ASSERT(hps_redis_positions_encode(&positions, &out) == HPS_OK);
        HPS_ASSERT(out.size == size && (size == 0 || memcmp(out.data, data, size) == 0));
        HPS_ASSERT(hps_redis_positions_within(&positions, &positions));
    }
    hps_buf_fini(&out);
    hps_redis_positions_fini(&positions);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct script script = {data, size};

    switch (script_u8(&script) & 3) {
    case 0:
        check_position(script.at, script.left);
        break;
    case 1:
        check_key(script.at, script.left);
        break;
    case 2:
        check_frozen(script.at, script.left);
        break;
    default:
        check_shard(script.at, script.left);
        break;
    }
    return 0;
}

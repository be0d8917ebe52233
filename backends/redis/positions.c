/* SPDX-License-Identifier: Apache-2.0
 *
 * Sets of log positions; see positions.h.
 */
#include "backends/redis/positions.h"

#include <string.h>

#include "base/assert.h"
#include "base/heap.h"

void hps_redis_positions_fini(struct hps_redis_positions *positions)
{
    hps_free(positions->items);
    *positions = (struct hps_redis_positions){0};
}

void hps_redis_positions_clear(struct hps_redis_positions *positions)
{
    positions->n = 0;
}

const struct hps_redis_position *hps_redis_positions_find(
    const struct hps_redis_positions *positions, uint64_t partition)
{
    for (uint32_t i = 0; i < positions->n; i++) {
        if (positions->items[i].partition == partition) {
            return &positions->items[i];
        }
    }
    return NULL;
}

static hps_status grow(struct hps_redis_positions *positions, uint32_t n)
{
    HPS_ASSERT(positions->n <= positions->capacity);
    if (n <= positions->capacity) {
        return HPS_OK;
    }
    uint32_t capacity = n + n / 2 + 4;
    struct hps_redis_position *items =
        hps_realloc(positions->items, capacity * sizeof(*positions->items));
    if (items == NULL) {
        return HPS_NO_MEMORY;
    }
    positions->items = items;
    positions->capacity = capacity;
    return HPS_OK;
}

hps_status hps_redis_positions_copy(struct hps_redis_positions *to,
                                    const struct hps_redis_positions *from)
{
    HPS_ASSERT(to != from);
    hps_status status = grow(to, from->n);
    if (status == HPS_OK) {
        if (from->n > 0) {
            memcpy(to->items, from->items, from->n * sizeof(*to->items));
        }
        to->n = from->n;
    }
    return status;
}

hps_status hps_redis_positions_raise(struct hps_redis_positions *positions, uint64_t partition,
                                     int64_t start, int64_t offset)
{
    for (uint32_t i = 0; i < positions->n; i++) {
        struct hps_redis_position *item = &positions->items[i];
        if (item->partition == partition) {
            item->offset = item->offset < offset ? offset : item->offset;
            item->start = start >= 0 ? start : item->start;
            return HPS_OK;
        }
    }
    hps_status status = grow(positions, positions->n + 1);
    if (status == HPS_OK) {
        positions->items[positions->n++] = (struct hps_redis_position){partition, offset, start};
    }
    return status;
}

hps_status hps_redis_positions_decode(struct hps_redis_positions *positions, const void *data,
                                      size_t size)
{
    const uint8_t *bytes = data;
    uint32_t n = (uint32_t)(size / HPS_REDIS_POSITION_BYTES);
    positions->n = 0;
    if (size % HPS_REDIS_POSITION_BYTES != 0) {
        return HPS_INVALID;
    }
    hps_status status = grow(positions, n);
    for (uint32_t i = 0; i < n && status == HPS_OK; i++) {
        uint64_t words[2];
        memcpy(words, bytes + (size_t)i * HPS_REDIS_POSITION_BYTES, sizeof(words));
        int64_t offset = (int64_t)__builtin_bswap64(words[1]);
        positions->items[positions->n++] = (struct hps_redis_position){words[0], offset, -1};
        /* No log has negative offsets, so hpsd did not write this. */
        status = offset < 0 ? HPS_INVALID : HPS_OK;
    }
    return status;
}

static hps_status put_words(struct hps_buf *out, uint64_t partition, const int64_t *offsets,
                            uint32_t n)
{
    uint64_t words[4] = {partition};
    HPS_ASSERT(n < sizeof(words) / sizeof(words[0]));
    for (uint32_t i = 0; i < n; i++) {
        words[i + 1] = __builtin_bswap64((uint64_t)offsets[i]);
    }
    return hps_buf_append(out, words, (n + 1) * sizeof(words[0]));
}

hps_status hps_redis_positions_encode(const struct hps_redis_positions *positions,
                                      struct hps_buf *out)
{
    hps_status status = HPS_OK;
    for (uint32_t i = 0; i < positions->n && status == HPS_OK; i++) {
        status = put_words(out, positions->items[i].partition, &positions->items[i].offset, 1);
    }
    return status;
}

hps_status hps_redis_spans_encode(const struct hps_log_span *spans, uint32_t n, struct hps_buf *out)
{
    hps_status status = HPS_OK;
    for (uint32_t i = 0; i < n && status == HPS_OK; i++) {
        HPS_ASSERT(spans[i].first <= spans[i].next);
        const int64_t offsets[3] = {spans[i].start, spans[i].first, spans[i].next};
        status = put_words(out, spans[i].partition, offsets, 3);
    }
    return status;
}

/* Both sets usually have the same order, so try the same index first. */
static const struct hps_redis_position *find_near(const struct hps_redis_positions *positions,
                                                  uint64_t partition, uint32_t i)
{
    bool near = i < positions->n && positions->items[i].partition == partition;
    return near ? &positions->items[i] : hps_redis_positions_find(positions, partition);
}

bool hps_redis_positions_cover(const struct hps_redis_positions *shard,
                               const struct hps_redis_positions *of)
{
    for (uint32_t i = 0; i < of->n; i++) {
        const struct hps_redis_position *item = &of->items[i];
        const struct hps_redis_position *has = find_near(shard, item->partition, i);
        if ((has == NULL ? item->start : has->offset) < item->offset) {
            return false;
        }
    }
    return true;
}

bool hps_redis_positions_within(const struct hps_redis_positions *shard,
                                const struct hps_redis_positions *of)
{
    for (uint32_t i = 0; i < shard->n; i++) {
        const struct hps_redis_position *item = &shard->items[i];
        const struct hps_redis_position *has = find_near(of, item->partition, i);
        if (has == NULL || has->offset < item->offset) {
            return false;
        }
    }
    return true;
}

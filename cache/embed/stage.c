/* SPDX-License-Identifier: Apache-2.0
 *
 * Taking changes from the caller. Rows go into the staging ring: the copy engine reads its host
 * half, and the device half has the same layout. Entries go into the open slice. See internal.h for
 * threads.
 */
#include <string.h>

#include "base/assert.h"
#include "base/index_set.h"
#include "cache/embed/internal.h"

enum { ROW_ALIGN = 16 };

/* The arguments of one call of stage. */
struct staging {
    struct hps_embed_range *range;
    enum hps_embed_op op;
    const hps_key *keys;
    const uint8_t *rows;
    const struct hps_insert_guard *guard;
    uint64_t ring_bytes; /* per row */
};

/* ---- repeated keys --------------------------------------------------------------------------- */

struct wanted {
    const hps_key *keys;
    hps_key key;
};

static bool is_key(const void *ctx, uint32_t i)
{
    const struct wanted *wanted = ctx;

    return wanted->keys[i] == wanted->key;
}

/* Mark keys that occur again later: only the last one counts. */
static void mark_repeated(struct hps_embed_cache *cache, const hps_key *keys, uint32_t n)
{
    struct hps_index_set seen;

    HPS_ASSERT(n <= HPS_EMBED_SLICE_ROWS_MAX);
    hps_index_set_init(&seen, cache->intake.seen, hps_index_set_places(n));
    for (uint32_t i = n; i-- > 0;) {
        const struct wanted wanted = {keys, keys[i]};
        uint64_t hash = hps_embed_mix(keys[i], cache->config.seed);
        uint32_t *place = hps_index_set_find(&seen, hash, is_key, &wanted);
        cache->intake.repeated[i] = *place != 0;
        *place = i + 1;
    }
}

/* ---- the staging ring ------------------------------------------------------------------------ */

hps_status hps_embed_rows_send(struct hps_embed_cache *cache)
{
    hps_status status = HPS_OK;

    while (cache->stage.unsent_begin < cache->stage.unsent_end && status == HPS_OK) {
        uint64_t left = cache->stage.unsent_end - cache->stage.unsent_begin;
        size_t n = left < HPS_EMBED_PIECE_IN_BYTES ? left : HPS_EMBED_PIECE_IN_BYTES;
        status = hps_copy_to_device(cache->in, cache->stage.device + cache->stage.unsent_begin,
                                    cache->stage.host + cache->stage.unsent_begin, n);
        cache->stage.unsent_begin += n;
    }
    HPS_ASSERT(cache->stage.unsent_end <= cache->stage.ring.size);
    return status;
}

/* Take the space of one row. AGAIN: the ring is full. */
static hps_status take_row(struct hps_embed_cache *cache, uint64_t bytes, uint64_t *out_offset)
{
    if (!hps_embed_ring_take(&cache->stage.ring, bytes, out_offset)) {
        return HPS_AGAIN;
    }
    if (*out_offset != cache->stage.unsent_end ||
        cache->stage.unsent_end - cache->stage.unsent_begin >= HPS_EMBED_PIECE_IN_BYTES) {
        hps_status status = hps_embed_rows_send(cache);
        if (status != HPS_OK) {
            return hps_embed_lose(cache);
        }
        cache->stage.unsent_begin = *out_offset;
    }
    cache->stage.unsent_end = *out_offset + bytes;
    return HPS_OK;
}

/* ---- slices ---------------------------------------------------------------------------------- */

/* The index of the range in the slice; adds it if needed. */
static uint32_t range_index(struct hps_embed_cache *cache, struct hps_embed_slice *slice,
                            struct hps_embed_range *range)
{
    if (range->slice != cache->n_opened) {
        range->slice = cache->n_opened;
        HPS_ASSERT(slice->n_ranges < HPS_EMBED_SLICE_RANGES && !range->retired);
        range->slice_index = slice->n_ranges;
        slice->ranges[slice->n_ranges++] = range;
        hps_embed_range_use(range);
    }
    return range->slice_index;
}

/* A slice with capacity for one more change of the range. AGAIN: all are in flight. */
static hps_status slice_with_capacity(struct hps_embed_cache *cache,
                                      const struct hps_embed_range *range,
                                      struct hps_embed_slice **out_slice)
{
    for (unsigned i = 0; i < 2; i++) {
        struct hps_embed_slice *slice = hps_embed_slice_open(cache);
        if (slice == NULL) {
            return HPS_AGAIN;
        }
        if (slice->n_entries < HPS_EMBED_SLICE_ROWS_MAX &&
            (slice->n_ranges < HPS_EMBED_SLICE_RANGES || range->slice == cache->n_opened)) {
            *out_slice = slice;
            return HPS_OK;
        }
        hps_status status = hps_embed_slice_close(cache);
        if (status != HPS_OK) {
            return status;
        }
    }
    return HPS_AGAIN;
}

static hps_status stage_one(struct hps_embed_cache *cache, const struct staging *staging,
                            uint32_t i)
{
    struct hps_embed_slice *slice;
    struct hps_embed_range *range = staging->range;
    uint64_t offset = 0;
    hps_status status = slice_with_capacity(cache, range, &slice);

    if (status == HPS_OK && staging->ring_bytes > 0) {
        status = take_row(cache, staging->ring_bytes, &offset);
    }
    if (status != HPS_OK) {
        return status;
    }
    if (staging->ring_bytes > 0) {
        uint32_t row_bytes = range->config.row_bytes;
        memcpy(cache->stage.host + offset, staging->rows + (size_t)i * row_bytes, row_bytes);
    }
    uint32_t set =
        hps_embed_set(hps_embed_mix(staging->keys[i], range->desc.seed), range->desc.n_sets);
    cache->intake.entries[slice->n_entries] = (struct hps_embed_entry){
        .key = staging->keys[i],
        .row = (uint32_t)(offset / ROW_ALIGN),
        .op = (uint32_t)staging->op,
    };
    cache->intake.order[slice->n_entries] =
        hps_embed_order(range_index(cache, slice, range), set, slice->n_entries);
    slice->n_entries++;
    return HPS_OK;
}

uint64_t hps_embed_staged_bytes(const struct hps_embed_cache *cache)
{
    return cache->stage.ring.head - cache->stage.ring.tail;
}

static bool fresh(const struct staging *staging, uint32_t i)
{
    bool inserts = staging->op == HPS_EMBED_INSERT || staging->op == HPS_EMBED_INSERT_WANTED;

    return !inserts || staging->guard == NULL || staging->guard->fresh(staging->guard->ctx, i);
}

hps_status hps_embed_stage(struct hps_embed_cache *cache, struct hps_embed_range *range,
                           enum hps_embed_op op, const hps_key *keys, const uint8_t *rows,
                           uint32_t n, const struct hps_insert_guard *guard, uint32_t *out_n_taken)
{
    struct staging staging = {.range = range, .op = op, .keys = keys, .rows = rows, .guard = guard};
    hps_status status = HPS_OK;
    uint32_t i;

    HPS_ASSERT(range->cache == cache && !range->freed);
    HPS_ASSERT((op == HPS_EMBED_ERASE) == (rows == NULL) || n == 0);
    if (cache->lost) {
        return HPS_DATA_LOSS;
    }
    if (range->retired) {
        *out_n_taken = n;
        return HPS_OK;
    }
    if (n > 0 && !hps_embed_range_ready(range)) {
        return HPS_AGAIN;
    }
    if (op != HPS_EMBED_ERASE) {
        staging.ring_bytes = range->desc.row_stride;
    }
    n = n < HPS_EMBED_SLICE_ROWS_MAX ? n : HPS_EMBED_SLICE_ROWS_MAX;
    hps_embed_slices_advance(cache);
    mark_repeated(cache, keys, n);
    for (i = 0; i < n && status == HPS_OK; i++) {
        if (cache->intake.repeated[i]) {
            continue;
        }
        if (!fresh(&staging, i)) {
            range->usage.n_stale++;
            continue;
        }
        status = stage_one(cache, &staging, i);
    }
    if (status == HPS_DATA_LOSS) {
        return status;
    }
    *out_n_taken = status == HPS_OK ? i : i - 1;
    HPS_ASSERT(*out_n_taken <= n);
    return n > 0 && *out_n_taken == 0 ? HPS_AGAIN : HPS_OK;
}

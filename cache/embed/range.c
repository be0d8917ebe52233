/* SPDX-License-Identifier: Apache-2.0
 *
 * The arena and its ranges. A list of the ranges that hold memory, in order of address, is the only
 * record of allocation: gaps between neighbours are free. See internal.h for threads.
 */
#include "base/assert.h"
#include "base/heap.h"
#include "cache/embed/internal.h"

enum {
    ALIGN = 256,
    QUAD = 16,
    N_SETS_MIN = 2, /* with one set, no key hashes elsewhere and could mark empty ways */
    ROWS_PER_10_SLOTS = 6,
    BLOCK_SETS = 32, /* of a range of at least GROWN_SETS */
    GROWN_SETS = 128,
};

#define N_SETS_MAX (UINT32_MAX / 8 * 7) /* so that sets and lines of spills have 32-bit numbers */

/* ---- sizes ----------------------------------------------------------------------------------- */

/* A multiple of 16, as rows are staged. If it is no multiple of 32, a sector, the remainder is half
 * a sector. So a row has the same number of sectors wherever it begins. */
static uint32_t stride_of(uint32_t row_bytes)
{
    return (uint32_t)hps_embed_align_up(row_bytes, QUAD);
}

uint64_t hps_embed_index_bytes(uint32_t n_sets)
{
    return hps_embed_marks_at(0, n_sets, hps_embed_blocks(n_sets));
}

static uint64_t slots_of(uint32_t n_sets)
{
    return (uint64_t)hps_embed_spill(n_sets, hps_embed_blocks(n_sets)) * HPS_EMBED_WAYS;
}

static void layout_sets(uint32_t row_bytes, uint64_t n_sets, struct hps_embed_layout *out)
{
    out->n_sets = (uint32_t)n_sets;
    out->n_slots = slots_of(out->n_sets);
    out->row_stride = stride_of(row_bytes);
    out->rows = hps_embed_align_up(hps_embed_index_bytes(out->n_sets), ALIGN);
    out->sketch = out->rows + hps_embed_align_up(out->n_slots * out->row_stride, ALIGN);
    out->bytes = out->sketch + hps_embed_align_up(n_sets * HPS_EMBED_SKETCH_BYTES_PER_SET, ALIGN);
}

/* An upper bound of the sets that fit into `bytes`: at most one block too many. For small ranges it
 * is further off, as their spills take a larger share. */
static uint64_t sets_at_most(uint32_t row_bytes, uint64_t bytes)
{
    uint64_t spill = (uint64_t)HPS_EMBED_SPILL_LINES_MAX *
                     (HPS_EMBED_SET_BYTES + (uint64_t)HPS_EMBED_WAYS * stride_of(row_bytes));
    uint64_t per_set = HPS_EMBED_SET_BYTES + HPS_EMBED_SKETCH_BYTES_PER_SET +
                       (uint64_t)HPS_EMBED_WAYS * stride_of(row_bytes);
    uint64_t per_block = BLOCK_SETS * per_set + spill;

    return bytes / per_block * BLOCK_SETS + (bytes % per_block) * BLOCK_SETS / per_block;
}

void hps_embed_layout(uint32_t row_bytes, uint64_t bytes_max, uint64_t n_sets_max,
                      struct hps_embed_layout *out_layout)
{
    uint64_t n_sets = sets_at_most(row_bytes, bytes_max);

    n_sets = n_sets < n_sets_max ? n_sets : n_sets_max;
    n_sets = n_sets < N_SETS_MAX ? n_sets : N_SETS_MAX;
    if (n_sets < N_SETS_MIN) {
        *out_layout = (struct hps_embed_layout){0};
        return;
    }
    layout_sets(row_bytes, n_sets, out_layout);
    while (n_sets > N_SETS_MIN && out_layout->bytes > bytes_max) {
        n_sets--;
        layout_sets(row_bytes, n_sets, out_layout);
    }
    if (out_layout->bytes > bytes_max) {
        *out_layout = (struct hps_embed_layout){0};
    }
}

/* Whether n_sets sets have n_slots slots. Where blocks become larger, there are fewer blocks and
 * slots. So this also checks that no larger number of sets has too few. */
static bool has_slots(uint64_t n_sets, uint64_t n_slots)
{
    uint64_t larger = N_SETS_MIN;

    while (larger <= n_sets) {
        larger *= 2;
    }
    return slots_of((uint32_t)n_sets) >= n_slots &&
           (n_sets >= GROWN_SETS || slots_of((uint32_t)larger) >= n_slots);
}

/* The fewest sets that have n_slots slots, including slots in spills. */
static uint64_t sets_for_slots(uint64_t n_slots)
{
    const uint64_t per_block = (uint64_t)HPS_EMBED_WAYS * (BLOCK_SETS + HPS_EMBED_SPILL_LINES_MAX);
    uint64_t n_blocks = n_slots / per_block; /* of a small range, more than it needs */
    uint64_t n_sets = n_blocks > 8 ? (n_blocks - 1) * BLOCK_SETS : N_SETS_MIN;

    while (n_sets < N_SETS_MAX && !has_slots(n_sets, n_slots)) {
        n_sets++;
    }
    return n_sets < N_SETS_MAX ? n_sets : N_SETS_MAX;
}

/* The sets in which nearly all of n rows find a slot, with the spills: n / 0.6 ways. */
static uint64_t sets_for_rows(uint64_t n)
{
    uint64_t slots = n / ROWS_PER_10_SLOTS * 10 + (n % ROWS_PER_10_SLOTS) * 10 / ROWS_PER_10_SLOTS;
    uint64_t n_sets = n > UINT64_MAX / 16 ? N_SETS_MAX : slots / HPS_EMBED_WAYS + 1;

    n_sets = n_sets < N_SETS_MAX ? n_sets : N_SETS_MAX;
    return n_sets < N_SETS_MIN ? N_SETS_MIN : n_sets;
}

uint64_t hps_embed_range_bytes(uint32_t row_bytes, uint64_t n_rows, uint64_t n_rows_cached)
{
    uint64_t n = n_rows_cached < n_rows ? n_rows_cached : n_rows;
    struct hps_embed_layout layout;

    layout_sets(row_bytes, n >= n_rows - n ? sets_for_rows(n) : sets_for_slots(n), &layout);
    return layout.bytes;
}

/* ---- descriptors ----------------------------------------------------------------------------- */

/* A key of eight equal bytes: filling memory with one byte stores it everywhere. */
static uint64_t byte_key(unsigned byte)
{
    return byte * UINT64_C(0x0101010101010101);
}

static uint32_t set_of(const struct hps_embed_desc *desc, uint64_t key)
{
    return hps_embed_set(hps_embed_mix(key, desc->seed), desc->n_sets);
}

static uint32_t block_of(const struct hps_embed_desc *desc, uint32_t set)
{
    return set >> hps_embed_block_shift(desc->n_sets);
}

void hps_embed_desc_init(struct hps_embed_desc *desc, uint64_t sets, uint32_t n_sets, uint64_t seed)
{
    unsigned byte = 0;
    uint32_t home;

    *desc = (struct hps_embed_desc){.sets = sets, .seed = seed, .n_sets = n_sets};
    desc->marker = byte_key(0xff);
    desc->home_set = set_of(desc, desc->marker);
    home = block_of(desc, desc->home_set);
    while (block_of(desc, set_of(desc, byte_key(byte))) == home) {
        byte++;
        HPS_ASSERT(byte < 0xff); /* 255 keys and 2 blocks: fails for one seed in 2^255 */
    }
    desc->marker_home = byte_key(byte);
}

/* The bytes to clear of a range with a sketch. */
static uint64_t clear_bytes(const struct hps_embed_desc *desc)
{
    return hps_embed_index_bytes(desc->n_sets) +
           (uint64_t)desc->n_sets * HPS_EMBED_SKETCH_BYTES_PER_SET +
           (1 + (uint64_t)hps_embed_spill_lines(desc->n_sets)) * HPS_EMBED_SET_BYTES;
}

/* Queue the clearing of up to bytes_max bytes, beginning at byte *at of clear_bytes(desc). Advance
 * *at. */
static hps_status clear_piece(struct hps_stream_q *stream, const struct hps_embed_desc *desc,
                              uint64_t bytes_max, uint64_t *at)
{
    const uint32_t n_sets = desc->n_sets, n_blocks = hps_embed_blocks(n_sets);
    const uint32_t home = hps_embed_spill(n_sets, block_of(desc, desc->home_set));
    const uint64_t marks = hps_embed_marks_at(desc->sets, n_sets, 0);
    const uint64_t sketch_bytes = (uint64_t)n_sets * HPS_EMBED_SKETCH_BYTES_PER_SET;
    const struct {
        uint64_t at, bytes;
        uint64_t byte; /* its lowest byte is stored everywhere */
    } areas[] = {
        {desc->sets, marks - desc->sets, desc->marker},
        {marks, (uint64_t)n_blocks * 4, 0},
        {desc->sketch, desc->sketch != 0 ? sketch_bytes : 0, 0},
        {hps_embed_set_at(desc->sets, desc->home_set), HPS_EMBED_SET_BYTES, desc->marker_home},
        {hps_embed_set_at(desc->sets, home),
         (uint64_t)hps_embed_spill_lines(n_sets) * HPS_EMBED_SET_BYTES, desc->marker_home},
    };
    uint64_t end = 0; /* of the areas so far */
    hps_status status = HPS_OK;

    for (size_t i = 0; i < sizeof(areas) / sizeof(areas[0]) && status == HPS_OK; i++) {
        end += areas[i].bytes;
        uint64_t left = *at < end ? end - *at : 0;
        uint64_t n = left < bytes_max ? left : bytes_max;
        if (n > 0) {
            status = hps_fill_on_device(stream, areas[i].at + areas[i].bytes - left,
                                        (uint8_t)areas[i].byte, n);
        }
        bytes_max -= n;
        *at += n;
    }
    return status;
}

hps_status hps_embed_clear(struct hps_stream_q *stream, const struct hps_embed_desc *desc)
{
    uint64_t at = 0;

    return clear_piece(stream, desc, UINT64_MAX, &at);
}

/* ---- the arena ------------------------------------------------------------------------------- */

static uint64_t range_end(const struct hps_embed_range *range)
{
    return range == NULL ? 0 : range->offset + range->usage.bytes;
}

/* The smallest free piece that fits. out_previous: the range before it, or NULL. */
static bool find_space(const struct hps_embed_cache *cache, uint64_t bytes,
                       struct hps_embed_range **out_previous)
{
    struct hps_embed_range *previous = NULL, *next = cache->ranges;
    uint64_t best = UINT64_MAX;

    for (;;) {
        uint64_t end = next != NULL ? next->offset : cache->config.arena_bytes;
        uint64_t bytes_left = end - range_end(previous);
        if (bytes_left >= bytes && bytes_left < best) {
            best = bytes_left;
            *out_previous = previous;
        }
        if (next == NULL) {
            return best != UINT64_MAX;
        }
        previous = next;
        next = next->next;
    }
}

/* Free bytes, in total and in the largest piece. retiring: count the memory of retired ranges as
 * free. */
static void free_space(const struct hps_embed_cache *cache, bool retiring, uint64_t *out_bytes,
                       uint64_t *out_piece_max)
{
    uint64_t begin = 0, sum = 0, most = 0;
    const struct hps_embed_range *range = cache->ranges;

    for (;; range = range->next) {
        if (range != NULL && range->retired && retiring) {
            continue;
        }
        uint64_t end = range != NULL ? range->offset : cache->config.arena_bytes;
        sum += end - begin;
        most = end - begin > most ? end - begin : most;
        if (range == NULL) {
            break;
        }
        begin = range_end(range);
    }
    *out_bytes = sum;
    *out_piece_max = most;
}

static void insert_behind(struct hps_embed_cache *cache, struct hps_embed_range *range,
                          struct hps_embed_range *previous)
{
    range->previous = previous;
    range->next = previous != NULL ? previous->next : cache->ranges;
    range->offset = range_end(previous);
    if (range->next != NULL) {
        range->next->previous = range;
    }
    if (previous != NULL) {
        previous->next = range;
    } else {
        cache->ranges = range;
    }
}

static void take_out(struct hps_embed_range *range)
{
    if (range->next != NULL) {
        range->next->previous = range->previous;
    }
    if (range->previous != NULL) {
        range->previous->next = range->next;
    } else {
        range->cache->ranges = range->next;
    }
    range->previous = range->next = NULL;
}

static hps_status no_space(const struct hps_embed_cache *cache, uint64_t bytes,
                           struct hps_error *err)
{
    uint64_t free_bytes, piece, later_bytes, later_piece;

    free_space(cache, false, &free_bytes, &piece);
    free_space(cache, true, &later_bytes, &later_piece);
    return hps_error_set(err, later_piece >= bytes ? HPS_AGAIN : HPS_EXHAUSTED,
                         "the arena of %llu bytes cannot hold a range of %llu bytes: %llu are "
                         "free, the largest free block has %llu, and %llu more are being freed",
                         (unsigned long long)cache->config.arena_bytes, (unsigned long long)bytes,
                         (unsigned long long)free_bytes, (unsigned long long)piece,
                         (unsigned long long)(later_bytes - free_bytes));
}

void hps_embed_cache_usage(const struct hps_embed_cache *cache,
                           struct hps_embed_cache_usage *out_usage)
{
    *out_usage = (struct hps_embed_cache_usage){.arena_bytes = cache->config.arena_bytes};
    free_space(cache, false, &out_usage->free_bytes, &out_usage->free_piece_bytes_max);
    out_usage->n_batches = cache->n_running;
    out_usage->n_slices = (uint32_t)(cache->n_closed - cache->n_applied);
}

/* ---- ranges ---------------------------------------------------------------------------------- */

static hps_status check_config(const struct hps_embed_range_config *config,
                               struct hps_embed_layout *layout, struct hps_error *err)
{
    if (config->row_bytes == 0 || config->row_bytes > HPS_EMBED_ROW_BYTES_MAX) {
        return hps_error_set(err, HPS_INVALID, "rows of %u bytes: a range takes 1 to %u",
                             config->row_bytes, (unsigned)HPS_EMBED_ROW_BYTES_MAX);
    }
    hps_embed_layout(config->row_bytes, config->bytes_max, sets_for_rows(config->n_rows), layout);
    if (layout->n_sets == 0) {
        struct hps_embed_layout least;
        layout_sets(config->row_bytes, N_SETS_MIN, &least);
        return hps_error_set(err, HPS_INVALID,
                             "%llu bytes for a range: rows of %u bytes need at least %llu",
                             (unsigned long long)config->bytes_max, config->row_bytes,
                             (unsigned long long)least.bytes);
    }
    return HPS_OK;
}

static void describe(struct hps_embed_range *range, const struct hps_embed_layout *layout)
{
    uint64_t base = range->cache->arena + range->offset;

    hps_embed_desc_init(&range->desc, base, layout->n_sets, range->cache->config.seed);
    range->desc.rows = base + layout->rows;
    range->desc.sketch = base + layout->sketch;
    range->desc.row_stride = layout->row_stride;
    range->usage.n_slots = layout->n_slots;
}

bool hps_embed_range_ready(const struct hps_embed_range *range)
{
    return range->retired || range->n_cleared == clear_bytes(&range->desc);
}

/* Queue the next piece of clearing of the range, within the limit of bytes on the device. Earlier
 * work on this memory is on the same stream, or has ended. */
static hps_status clear_more(struct hps_embed_range *range)
{
    struct hps_embed_cache *cache = range->cache;
    uint64_t before = range->n_cleared,
             bytes_left = HPS_EMBED_PIECE_CLEAR_BYTES - cache->clearing.bytes;

    HPS_ASSERT(!hps_embed_range_ready(range));
    uint64_t began_us = hps_embed_begins(cache);
    if (bytes_left == 0) {
        return HPS_OK;
    }
    hps_status status = clear_piece(cache->in, &range->desc, bytes_left, &range->n_cleared);
    status = status == HPS_OK ? hps_event_record(cache->clearing.done, cache->in) : status;
    hps_embed_given(cache, began_us);
    cache->clearing.bytes += range->n_cleared - before;
    return status;
}

void hps_embed_ranges_advance(struct hps_embed_cache *cache)
{
    hps_status status = HPS_OK;

    if (cache->clearing.bytes == 0 || !hps_embed_ended(cache, cache->clearing.done)) {
        return;
    }
    cache->clearing.bytes = 0;
    hps_embed_progress(cache);
    struct hps_embed_range *range = cache->ranges;
    while (cache->clearing.n_ranges > 0 && status == HPS_OK &&
           cache->clearing.bytes < HPS_EMBED_PIECE_CLEAR_BYTES) {
        if (!hps_embed_range_ready(range)) {
            status = clear_more(range);
            cache->clearing.n_ranges -= hps_embed_range_ready(range);
        }
        range = range->next;
    }
    hps_ignore(status == HPS_OK ? status : hps_embed_lose(cache)); /* the next call returns it */
}

hps_status hps_embed_range_new(struct hps_embed_cache *cache,
                               const struct hps_embed_range_config *config,
                               struct hps_embed_range **out_range, struct hps_error *err)
{
    struct hps_embed_layout layout;
    struct hps_embed_range *range, *previous = NULL;

    if (cache->lost) {
        return hps_error_set(err, HPS_DATA_LOSS, "the device is lost");
    }
    hps_status status = check_config(config, &layout, err);
    if (status != HPS_OK) {
        return status;
    }
    if (!find_space(cache, layout.bytes, &previous)) {
        return no_space(cache, layout.bytes, err);
    }
    range = hps_calloc(1, sizeof(*range));
    if (range == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for a range");
    }
    range->cache = cache;
    range->config = *config;
    range->usage.bytes = layout.bytes;
    insert_behind(cache, range, previous);
    describe(range, &layout);
    if (clear_more(range) != HPS_OK) {
        take_out(range);
        hps_free(range);
        return hps_error_set(err, hps_embed_lose(cache), "the device is lost");
    }
    cache->clearing.n_ranges += !hps_embed_range_ready(range);
    *out_range = range;
    return HPS_OK;
}

/* Release the memory of a retired range once it is unused, and the range once it is freed. */
static void settle(struct hps_embed_range *range)
{
    if (!range->retired || range->n_uses > 0) {
        return;
    }
    if (range->usage.bytes > 0) {
        HPS_ASSERT(range->cache->n_retiring > 0);
        range->cache->n_retiring--;
        take_out(range);
        range->usage.bytes = 0;
        range->usage.n_slots = 0;
        range->usage.n_rows = 0;
    }
    if (range->freed) {
        hps_free(range);
    }
}

void hps_embed_range_use(struct hps_embed_range *range)
{
    HPS_ASSERT(!range->freed);
    range->n_uses++;
}

void hps_embed_range_unuse(struct hps_embed_range *range)
{
    HPS_ASSERT(range->n_uses > 0);
    range->n_uses--;
    settle(range);
}

static void retire(struct hps_embed_range *range)
{
    if (!range->retired) {
        range->cache->clearing.n_ranges -= !hps_embed_range_ready(range);
        range->retired = true;
        range->cache->n_retiring++;
    }
}

void hps_embed_range_retire(struct hps_embed_range *range)
{
    retire(range);
    settle(range);
}

void hps_embed_range_free(struct hps_embed_range *range)
{
    if (range != NULL) {
        HPS_ASSERT(!range->freed);
        retire(range);
        range->freed = true;
        settle(range);
    }
}

void hps_embed_range_usage(const struct hps_embed_range *range,
                           struct hps_embed_range_usage *out_usage)
{
    *out_usage = range->usage;
    if (range->config.n_rows > 0) {
        double share = (double)range->usage.n_rows / (double)range->config.n_rows;
        out_usage->resident_share = share < 1 ? share : 1;
    }
}

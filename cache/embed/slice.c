/* SPDX-License-Identifier: Apache-2.0
 *
 * Applying changes. When a slice is closed its changes are sorted by set, so that one warp applies
 * all changes of a block of sets. Changes of one set stay in the order staged. Stream `in` copies
 * records and rows while lookups run, and the application follows on stream `work`:
 *
 *     in     rows … rows, records ─▶ event
 *     work   lookup    lookup       └ apply ─▶ event    lookup
 *
 * See internal.h for threads.
 */
#include <string.h>

#include "base/assert.h"
#include "cache/embed/internal.h"

enum { RADIX_BITS = 8, RADIX = 1 << RADIX_BITS, SHORT = 48 };

/* Offsets in the block of a slice that is copied to the device; packed, to copy little. */
struct block {
    size_t groups, entries, end;
};

static struct block block_of(uint32_t n_ranges, uint32_t n_groups, uint32_t n_entries)
{
    struct block block = {.groups = n_ranges * sizeof(struct hps_embed_desc)};

    block.entries = block.groups + n_groups * sizeof(struct hps_embed_group);
    block.end = block.entries + n_entries * sizeof(struct hps_embed_entry);
    return block;
}

size_t hps_embed_slice_bytes(void)
{
    return block_of(HPS_EMBED_SLICE_RANGES, HPS_EMBED_SLICE_ROWS_MAX, HPS_EMBED_SLICE_ROWS_MAX).end;
}

static struct hps_embed_slice *slice_at(const struct hps_embed_cache *cache, uint64_t number)
{
    return &cache->slices[number % HPS_EMBED_SLICES];
}

struct hps_embed_slice *hps_embed_slice_open(struct hps_embed_cache *cache)
{
    if (cache->n_opened == cache->n_closed) {
        if (cache->n_opened - cache->n_applied == HPS_EMBED_SLICES) {
            return NULL;
        }
        struct hps_embed_slice *slice = slice_at(cache, ++cache->n_opened);
        slice->n_ranges = 0;
        slice->n_entries = 0;
    }
    HPS_ASSERT(cache->n_opened == cache->n_closed + 1 && cache->n_applied <= cache->n_closed);
    return slice_at(cache, cache->n_opened);
}

/* ---- sorting --------------------------------------------------------------------------------- */

static void sort_short(uint64_t *order, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++) {
        uint64_t moved = order[i];
        uint32_t j = i;
        for (; j > 0 && order[j - 1] > moved; j--) {
            order[j] = order[j - 1];
        }
        order[j] = moved;
    }
}

/* One digit, stable. */
static void sort_digit(const uint64_t *from, uint64_t *to, uint32_t n, unsigned shift)
{
    uint32_t begins[RADIX] = {0};
    uint32_t sum = 0;

    for (uint32_t i = 0; i < n; i++) {
        begins[from[i] >> shift & (RADIX - 1)]++;
    }
    for (unsigned digit = 0; digit < RADIX; digit++) {
        uint32_t count = begins[digit];
        begins[digit] = sum;
        sum += count;
    }
    for (uint32_t i = 0; i < n; i++) {
        to[begins[from[i] >> shift & (RADIX - 1)]++] = from[i];
    }
}

static bool ascends(const uint64_t *order, uint32_t n)
{
    uint32_t i = 1;

    while (i < n && order[i - 1] < order[i]) {
        i++;
    }
    return i >= n;
}

/* Sort in ascending order. The lowest bits are the numbers of the changes, which are in order
 * already. So only the digits above them that differ are sorted. Returns the array, `order` or
 * `other`, that has the result. */
static uint64_t *sort(uint64_t *order, uint64_t *other, uint32_t n)
{
    uint64_t differ = 0;

    if (n <= SHORT) {
        sort_short(order, n);
        return order;
    }
    for (uint32_t i = 1; i < n; i++) {
        differ |= order[i] ^ order[0];
    }
    for (unsigned shift = HPS_EMBED_ORDER_NUMBER_BITS; shift < 64; shift += RADIX_BITS) {
        if ((differ >> shift & (RADIX - 1)) != 0) {
            sort_digit(order, other, n, shift);
            uint64_t *swap = order;
            order = other;
            other = swap;
        }
    }
    HPS_DEBUG_ASSERT(ascends(order, n));
    return order;
}

/* ---- records --------------------------------------------------------------------------------- */

static uint32_t range_of(uint64_t order)
{
    return (uint32_t)(order >> (HPS_EMBED_ORDER_NUMBER_BITS + 32));
}

static uint32_t block_of_sets(const struct hps_embed_slice *slice, uint64_t order)
{
    uint32_t set = (uint32_t)(order >> HPS_EMBED_ORDER_NUMBER_BITS);

    return set >> hps_embed_block_shift(slice->ranges[range_of(order)]->desc.n_sets);
}

/* Whether two changes are in one block of one range. */
static bool same_group(const struct hps_embed_slice *slice, uint64_t one, uint64_t other)
{
    return range_of(one) == range_of(other) &&
           block_of_sets(slice, one) == block_of_sets(slice, other);
}

static uint32_t count_groups(const struct hps_embed_slice *slice, const uint64_t *order)
{
    uint32_t n_groups = 1;

    for (uint32_t i = 1; i < slice->n_entries; i++) {
        n_groups += !same_group(slice, order[i], order[i - 1]);
    }
    return n_groups;
}

/* Write descriptors, groups and entries for the kernel. */
static void encode(const struct hps_embed_cache *cache, const struct hps_embed_slice *slice,
                   const uint64_t *order, const struct block *block)
{
    struct hps_embed_desc *descs = (struct hps_embed_desc *)slice->host;
    struct hps_embed_group *groups = (struct hps_embed_group *)(slice->host + block->groups);
    struct hps_embed_entry *entries = (struct hps_embed_entry *)(slice->host + block->entries);

    HPS_ASSERT(block->end <= hps_embed_slice_bytes());
    for (uint32_t i = 0; i < slice->n_ranges; i++) {
        descs[i] = slice->ranges[i]->desc;
    }
    groups--;
    for (uint32_t i = 0; i < slice->n_entries; i++) {
        if (i == 0 || !same_group(slice, order[i], order[i - 1])) {
            *++groups = (struct hps_embed_group){
                .range = range_of(order[i]),
                .block = block_of_sets(slice, order[i]),
                .first = i,
            };
        }
        groups->n++;
        entries[i] = cache->intake.entries[order[i] & (HPS_EMBED_SLICE_ROWS_MAX - 1)];
#if HPS_EMBED_APPLY_TOGETHER
        uint32_t set = (uint32_t)(order[i] >> HPS_EMBED_ORDER_NUMBER_BITS);
        uint32_t shift = hps_embed_block_shift(descs[groups->range].n_sets);
        entries[i].op |= (set & ((1u << shift) - 1)) << 8;
#endif
    }
}

/* ---- queueing on the device ------------------------------------------------------------------ */

static hps_status send_records(struct hps_embed_cache *cache, struct hps_embed_slice *slice,
                               size_t bytes)
{
    hps_status status = hps_embed_rows_send(cache);

    for (size_t at = 0; at < bytes && status == HPS_OK;) {
        size_t left = bytes - at;
        size_t n = left < HPS_EMBED_PIECE_IN_BYTES ? left : HPS_EMBED_PIECE_IN_BYTES;
        status = hps_copy_to_device(cache->in, slice->device + at, slice->host + at, n);
        at += n;
    }
    return status == HPS_OK ? hps_event_record(slice->copied_in, cache->in) : status;
}

static hps_status launch_apply(struct hps_embed_cache *cache, struct hps_embed_slice *slice,
                               const struct block *block, uint32_t n_groups)
{
    struct hps_embed_apply_args args = {
        .descs = slice->device,
        .groups = slice->device + block->groups,
        .entries = slice->device + block->entries,
        .rows = cache->stage.device,
        .counts = slice->counts_device,
        .counts_out = slice->counts_mapped,
        .blocks_done = slice->blocks_done,
        .n_groups = n_groups,
        .n_ranges = slice->n_ranges,
    };
    hps_status status = hps_stream_q_wait(cache->work, slice->copied_in);

    if (status == HPS_OK) {
        status = hps_launch(cache->work, &hps_embed_kernel_apply,
                            (n_groups + HPS_EMBED_BLOCK_WARPS - 1) / HPS_EMBED_BLOCK_WARPS, &args);
    }
    return status == HPS_OK ? hps_event_record(slice->applied, cache->work) : status;
}

/* From now on the ranges of the slice may have rows, and their keys are counted. Stream `work`
 * follows the clearing of the ranges because it waits for the slice; `watch` has to wait too. */
static hps_status enliven(struct hps_embed_cache *cache, struct hps_embed_slice *slice)
{
    bool any = false;

    for (uint32_t i = 0; i < slice->n_ranges; i++) {
        any = any || !slice->ranges[i]->live;
        slice->ranges[i]->live = true;
    }
    return any ? hps_stream_q_wait(cache->watch, slice->copied_in) : HPS_OK;
}

hps_status hps_embed_slice_close(struct hps_embed_cache *cache)
{
    if (cache->lost) {
        return HPS_DATA_LOSS;
    }
    if (cache->n_opened == cache->n_closed) {
        return HPS_OK;
    }
    struct hps_embed_slice *slice = slice_at(cache, cache->n_opened);
    if (slice->n_entries == 0) {
        return HPS_OK;
    }
    HPS_ASSERT(slice->n_entries <= HPS_EMBED_SLICE_ROWS_MAX);
    HPS_ASSERT(slice->n_ranges > 0 && slice->n_ranges <= HPS_EMBED_SLICE_RANGES);
    uint64_t *order = sort(cache->intake.order, cache->intake.order_other, slice->n_entries);
    uint32_t n_groups = count_groups(slice, order);
    struct block block = block_of(slice->n_ranges, n_groups, slice->n_entries);
    encode(cache, slice, order, &block);
    uint64_t began_us = hps_embed_begins(cache);
    slice->rows_end = cache->stage.ring.head;
    cache->n_closed = cache->n_opened;
    hps_status status = send_records(cache, slice, block.end);
    status = status == HPS_OK ? launch_apply(cache, slice, &block, n_groups) : status;
    status = status == HPS_OK ? enliven(cache, slice) : status;
    hps_embed_given(cache, began_us);
    return status == HPS_OK ? HPS_OK : hps_embed_lose(cache);
}

/* ---- noticing completed work ----------------------------------------------------------------- */

static void end(struct hps_embed_cache *cache, struct hps_embed_slice *slice)
{
    for (uint32_t i = 0; i < slice->n_ranges; i++) {
        struct hps_embed_range_usage *usage = &slice->ranges[i]->usage;
        const struct hps_embed_counts *counts = &slice->counts[i];
        HPS_ASSERT(!slice->ranges[i]->freed || slice->ranges[i]->n_uses > 0);
        usage->n_rows += counts->n_inserted;
        usage->n_rows -= counts->n_evicted + counts->n_erased;
        usage->n_inserted += counts->n_inserted;
        usage->n_evicted += counts->n_evicted;
        usage->n_erased += counts->n_erased;
        usage->n_refused += counts->n_refused;
        hps_embed_range_unuse(slice->ranges[i]);
    }
    hps_embed_ring_give(&cache->stage.ring, slice->rows_end);
    hps_embed_progress(cache);
}

void hps_embed_slices_advance(struct hps_embed_cache *cache)
{
    while (cache->n_applied < cache->n_closed && !cache->lost) {
        struct hps_embed_slice *slice = slice_at(cache, cache->n_applied + 1);
        if (!hps_embed_ended(cache, slice->applied)) {
            return;
        }
        cache->n_applied++;
        end(cache, slice);
    }
}

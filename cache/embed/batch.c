/* SPDX-License-Identifier: Apache-2.0
 *
 * Lookups. A ticket is a slot for one batch. It has host memory for keys, parts and tiles, which
 * the kernel reads, and for hit words, which the kernel writes. It also holds references for the
 * batch in flight. The slot is free again after the caller has released it and its last event has
 * completed.
 *
 *     results up to mapped_bytes_max, to device memory, or of rows with gaps between them
 *         work   kernel ─▶ rows in the region, hits, flag
 *     larger results to host memory
 *         work   kernel ─▶ rows in the gather buffer
 *         out    └ copies of up to 1 MiB ─▶ rows in the region, event
 *     with bags
 *         work   kernel ─▶ addresses of rows ─▶ second kernel ─▶ sums in the place of rows
 *     watch      keys of every n-th tile ─▶ counts of the sketch, event
 *
 * See internal.h for threads.
 */
#include <string.h>

#include "base/assert.h"
#include "cache/embed/internal.h"

/* ---- tickets --------------------------------------------------------------------------------- */

static bool gathers(const struct hps_embed_ticket *ticket)
{
    return ticket->gather_end > ticket->gather_begin;
}

static struct hps_embed_ticket *free_ticket(struct hps_embed_cache *cache)
{
    for (uint32_t i = 0; i < cache->config.n_batches; i++) {
        if (!cache->tickets[i].held && !cache->tickets[i].running) {
            return &cache->tickets[i];
        }
    }
    return NULL;
}

/* ---- the end of a batch ---------------------------------------------------------------------- */

/* Release the gather buffer up to the oldest batch that still has rows there. */
static void give_gathered(struct hps_embed_cache *cache)
{
    uint64_t oldest = cache->gather_ring.head;

    for (uint32_t i = 0; i < cache->config.n_batches; i++) {
        const struct hps_embed_ticket *ticket = &cache->tickets[i];
        if (ticket->running && gathers(ticket) && ticket->gather_begin < oldest) {
            oldest = ticket->gather_begin;
        }
    }
    hps_embed_ring_give(&cache->gather_ring, oldest);
}

static void end(struct hps_embed_ticket *ticket)
{
    HPS_ASSERT(ticket->running && ticket->cache->n_running > 0);
    ticket->running = false;
    ticket->cache->n_running--;
    ticket->result = HPS_OK;
    hps_embed_progress(ticket->cache);
    for (uint32_t i = 0; i < ticket->n_parts; i++) {
        HPS_ASSERT(ticket->uses[i].region->n_uses > 0);
        ticket->uses[i].region->n_uses--;
        hps_embed_range_unuse(ticket->uses[i].range);
    }
    if (gathers(ticket)) {
        give_gathered(ticket->cache);
    }
}

/* ---- queueing on the device ------------------------------------------------------------------ */

static uint32_t blocks_for(uint64_t n_warps, uint32_t in_block)
{
    return (uint32_t)((n_warps + in_block - 1) / in_block);
}

static hps_status launch_lookup(struct hps_embed_ticket *ticket)
{
    const struct hps_embed_block block = hps_embed_block_of(&ticket->cache->config);
    struct hps_embed_lookup_args args = {
        .parts = ticket->device + block.parts,
        .tiles = ticket->device + block.tiles,
        .keys = ticket->device + block.keys,
        .weights = ticket->device + block.weights,
        .found = ticket->cache->found,
        .hits = ticket->device + block.hits,
        .blocks_done = ticket->blocks_done,
        .flag = ticket->n_bags == 0 ? ticket->device : 0,
        .n_tiles = ticket->n_tiles,
        .sequence = ticket->sequence,
    };

    return hps_launch(ticket->cache->work, &hps_embed_kernel_lookup,
                      blocks_for(ticket->n_tiles, HPS_EMBED_LOOKUP_WARPS), &args);
}

/* Directly after the lookup: the next lookup overwrites `found`. */
static hps_status launch_pool(struct hps_embed_ticket *ticket)
{
    const struct hps_embed_block block = hps_embed_block_of(&ticket->cache->config);
    struct hps_embed_pool_args args = {
        .parts = ticket->device + block.parts,
        .bags = ticket->device + block.bags,
        .found = ticket->cache->found,
        .blocks_done = ticket->blocks_done,
        .flag = ticket->device,
        .n_bags = ticket->n_bags,
        .lanes = ticket->bag_lanes,
        .sequence = ticket->sequence,
    };
    uint64_t n_warps = ((uint64_t)args.n_bags * args.lanes + 31) / 32;

    return hps_launch(ticket->cache->work, &hps_embed_kernel_pool,
                      blocks_for(n_warps, HPS_EMBED_BLOCK_WARPS), &args);
}

static hps_status launch(struct hps_embed_ticket *ticket)
{
    hps_status status = launch_lookup(ticket);

    if (status == HPS_OK && ticket->n_bags > 0) {
        status = launch_pool(ticket);
    }
    return status == HPS_OK ? hps_event_record(ticket->worked, ticket->cache->work) : status;
}

/* The number of parts from `first` on with adjacent rows, in the gather buffer and the region. */
static uint32_t run_of_parts(const struct hps_embed_ticket *ticket, uint32_t first,
                             uint64_t *out_bytes)
{
    const struct hps_embed_use *uses = ticket->uses;
    uint32_t i = first + 1;

    *out_bytes = uses[first].bytes;
    while (i < ticket->n_parts && uses[i].region == uses[first].region &&
           uses[i].offset == uses[first].offset + *out_bytes &&
           uses[i].gather == uses[first].gather + *out_bytes) {
        *out_bytes += uses[i++].bytes;
    }
    return i - first;
}

static hps_status copy_out(struct hps_embed_ticket *ticket)
{
    struct hps_stream_q *out = ticket->cache->out;
    hps_status status = hps_stream_q_wait(out, ticket->worked);
    uint64_t bytes;

    for (uint32_t i = 0; i < ticket->n_parts && status == HPS_OK;) {
        const struct hps_embed_use *use = &ticket->uses[i];
        i += run_of_parts(ticket, i, &bytes);
        for (uint64_t at = 0; use->gather != 0 && at < bytes && status == HPS_OK;) {
            uint64_t left = bytes - at;
            size_t n = left < HPS_EMBED_PIECE_OUT_BYTES ? left : HPS_EMBED_PIECE_OUT_BYTES;
            status = hps_copy_to_host(out, (uint8_t *)use->region->host + use->offset + at,
                                      use->gather + at, n);
            at += n;
        }
    }
    return status == HPS_OK ? hps_event_record(ticket->copied_out, out) : status;
}

/* The keys that a sketch counts before it is halved. */
static uint64_t window_of(const struct hps_embed_range *range)
{
    uint64_t per_slot = HPS_EMBED_WINDOW_KEYS / range->cache->config.sample_rate;

    return range->usage.n_slots *
           (per_slot > HPS_EMBED_WINDOW_COUNTED ? per_slot : HPS_EMBED_WINDOW_COUNTED);
}

/* Halve the sketches that have counted a window of keys. */
static hps_status halve(struct hps_embed_ticket *ticket)
{
    hps_status status = HPS_OK;

    for (uint32_t i = 0; i < ticket->n_parts && status == HPS_OK; i++) {
        struct hps_embed_range *range = ticket->uses[i].range;
        uint64_t window = window_of(range);
        if (range->n_counted < window || range->retired) {
            continue;
        }
        struct hps_embed_halve_args args = {
            .sketch = range->desc.sketch,
            .n_words = (uint64_t)range->desc.n_sets * (HPS_EMBED_SKETCH_BYTES_PER_SET / 4),
        };
        uint64_t n_warps = args.n_words / (HPS_EMBED_HALVE_WORDS_PER_THREAD * 32) + 1;
        uint64_t n_blocks = (n_warps + HPS_EMBED_BLOCK_WARPS - 1) / HPS_EMBED_BLOCK_WARPS;
        range->n_counted -= window;
        status = hps_launch(ticket->cache->watch, &hps_embed_kernel_halve,
                            (uint32_t)(n_blocks < UINT32_MAX ? n_blocks : UINT32_MAX), &args);
    }
    return status;
}

/* Count the keys of every sample_rate-th tile. The first one depends on the sequence number. */
static hps_status watch(struct hps_embed_ticket *ticket)
{
    struct hps_embed_cache *cache = ticket->cache;
    const struct hps_embed_block block = hps_embed_block_of(&cache->config);
    const struct hps_embed_tile *tiles = (struct hps_embed_tile *)(ticket->host + block.tiles);
    const struct hps_embed_part_desc *parts =
        (const struct hps_embed_part_desc *)(ticket->host + block.parts);
    struct hps_embed_observe_args args = {
        .parts = ticket->device + block.parts,
        .tiles = ticket->device + block.tiles,
        .keys = ticket->device + block.keys,
        .n_tiles = ticket->n_tiles,
        .first = (uint32_t)(hps_mix64(ticket->sequence) % cache->config.sample_rate),
        .step = cache->config.sample_rate,
    };
    uint32_t n = 0;

    for (uint64_t i = args.first; i < args.n_tiles; i += args.step) {
        if (parts[tiles[i].part].sketch != 0) {
            ticket->uses[tiles[i].part].range->n_counted += tiles[i].n;
            n++;
        }
    }
    if (n == 0) {
        return HPS_OK;
    }
    ticket->watches = true;
    hps_status status = hps_launch(
        cache->watch, &hps_embed_kernel_observe,
        blocks_for((args.n_tiles - args.first + args.step - 1) / args.step, HPS_EMBED_BLOCK_WARPS),
        &args);
    status = status == HPS_OK ? halve(ticket) : status;
    return status == HPS_OK ? hps_event_record(ticket->watched, cache->watch) : status;
}

/* On an error the ticket stays running: work that was queued may still use it. */
static hps_status begin(struct hps_embed_ticket *ticket)
{
    uint64_t began_us = hps_embed_begins(ticket->cache);
    hps_status status;

    HPS_ASSERT(!ticket->running && ticket->cache->n_running < ticket->cache->config.n_batches);
    ticket->running = true;
    ticket->cache->n_running++;
    if (ticket->n_tiles == 0) {
        end(ticket);
        return HPS_OK;
    }
    status = launch(ticket);
    if (status == HPS_OK && gathers(ticket)) {
        status = copy_out(ticket);
    }
    status = status == HPS_OK ? watch(ticket) : status;
    hps_embed_given(ticket->cache, began_us);
    return status;
}

/* Sequence numbers repeat after 2^32 batches. The flag still holds the number of the ticket's last
 * batch, so it is reset to 0, which is no sequence number. */
static void number(struct hps_embed_ticket *ticket)
{
    struct hps_embed_cache *cache = ticket->cache;

    HPS_ASSERT(!ticket->running && !ticket->held); /* no caller reads its flag */
    cache->sequence += cache->sequence == UINT32_MAX ? 2 : 1;
    HPS_ASSERT(cache->sequence != 0);
    ticket->sequence = cache->sequence;
    __atomic_store_n((uint32_t *)ticket->host, 0, __ATOMIC_RELAXED);
}

hps_status hps_embed_submit(struct hps_embed_cache *cache, const struct hps_embed_part *parts,
                            uint32_t n_parts, struct hps_embed_ticket **out_ticket)
{
    struct hps_embed_plan plan;
    uint64_t gather_offset = 0;

    if (cache->lost) {
        return HPS_DATA_LOSS;
    }
    hps_status status = hps_embed_plan(cache, parts, n_parts, &plan);
    if (status != HPS_OK) {
        return status;
    }
    hps_embed_batches_advance(cache);
    struct hps_embed_ticket *ticket = free_ticket(cache);
    if (ticket == NULL ||
        (plan.gather_bytes > 0 &&
         !hps_embed_ring_take(&cache->gather_ring, plan.gather_bytes, &gather_offset))) {
        return HPS_AGAIN;
    }
    ticket->gather_end = cache->gather_ring.head;
    ticket->gather_begin = ticket->gather_end - plan.gather_bytes;
    number(ticket);
    ticket->watches = false;
    status = hps_embed_slice_close(cache);
    if (status != HPS_OK) {
        return status;
    }
    hps_embed_pack(ticket, parts, n_parts,
                   plan.gather_bytes > 0 ? cache->gather + gather_offset : 0);
    ticket->result = HPS_AGAIN;
    if (begin(ticket) != HPS_OK) {
        return hps_embed_lose(cache);
    }
    ticket->held = true;
    *out_ticket = ticket;
    return HPS_OK;
}

/* ---- noticing completed work ----------------------------------------------------------------- */

void hps_embed_batches_advance(struct hps_embed_cache *cache)
{
    for (uint32_t i = 0; i < cache->config.n_batches && !cache->lost; i++) {
        struct hps_embed_ticket *ticket = &cache->tickets[i];
        if (ticket->running && hps_embed_ended(cache, ticket->worked) &&
            (!gathers(ticket) || hps_embed_ended(cache, ticket->copied_out)) &&
            (!ticket->watches || hps_embed_ended(cache, ticket->watched))) {
            end(ticket);
        }
    }
}

void hps_embed_batches_drop(struct hps_embed_cache *cache)
{
    for (uint32_t i = 0; i < cache->config.n_batches; i++) {
        struct hps_embed_ticket *ticket = &cache->tickets[i];
        for (uint32_t j = 0; ticket->running && j < ticket->n_parts; j++) {
            hps_embed_range_unuse(ticket->uses[j].range);
        }
    }
}

hps_status hps_embed_poll(struct hps_embed_ticket *ticket)
{
    struct hps_embed_cache *cache = ticket->cache;

    HPS_ASSERT(ticket->held);
    if (ticket->result == HPS_AGAIN && !cache->lost) {
        bool done = gathers(ticket)
                        ? hps_embed_ended(cache, ticket->copied_out)
                        : hps_flag_load((const uint32_t *)ticket->host) == ticket->sequence;
        if (done) {
            hps_embed_progress(cache);
            ticket->result = HPS_OK;
        } else {
            hps_embed_check(cache, ticket->worked);
        }
    }
    if (ticket->result == HPS_AGAIN && cache->lost) {
        ticket->result = HPS_DATA_LOSS;
    }
    return ticket->result;
}

const uint32_t *hps_embed_hits(const struct hps_embed_ticket *ticket, uint32_t part)
{
    HPS_ASSERT(ticket->held && ticket->result == HPS_OK);
    HPS_ASSERT(part < ticket->n_parts);
    size_t hits = hps_embed_block_of(&ticket->cache->config).hits;
    return (const uint32_t *)(ticket->host + hits) + ticket->uses[part].first_tile;
}

void hps_embed_release(struct hps_embed_ticket *ticket)
{
    if (ticket != NULL) {
        HPS_ASSERT(ticket->held);
        ticket->held = false;
    }
}

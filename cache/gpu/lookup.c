/* SPDX-License-Identifier: Apache-2.0
 *
 * Lookups of a gpu tier. Parts of all pending lookups are packed into one batch, up to its limits.
 * While batches are on the device, the next one is packed. All on the tier's thread, except
 * hps_gpu_lookup.
 */
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/container.h"
#include "base/heap.h"
#include "cache/gpu/internal.h"

enum {
    KEYS_ALIGN = 32,   /* pieces without bags have whole tiles of keys, except the last of a part */
    ROW_ALIGN = 16,    /* of the rows of a piece in device memory, */
    BATCH_ALIGN = 256, /* and of the rows of a batch */
    PARTS_MAX = 4096
};

/* Capacity left in the batch being packed. */
struct capacity {
    uint32_t n_keys;
    uint32_t n_parts;
    uint64_t n_bytes;
};

hps_status gpu_lookups_init(struct hps_gpu_tier *tier)
{
    struct hps_embed_cache_config *cache = &tier->options.cache;

    cache->batch_keys_max =
        cache->batch_keys_max == 0 ? HPS_EMBED_BATCH_KEYS_MAX : cache->batch_keys_max;
    cache->batch_parts_max = cache->batch_parts_max == 0 ? PARTS_MAX : cache->batch_parts_max;
    tier->parts = hps_calloc(cache->batch_parts_max, sizeof(*tier->parts));
    tier->shapes = hps_calloc(cache->batch_parts_max, sizeof(*tier->shapes));
    for (uint32_t i = 0; i < cache->n_batches; i++) {
        struct gpu_batch *batch = &tier->batches[i];
        batch->pieces = hps_calloc(cache->batch_parts_max, sizeof(*batch->pieces));
        if (batch->pieces == NULL) {
            return HPS_NO_MEMORY;
        }
    }
    return tier->parts == NULL || tier->shapes == NULL ? HPS_NO_MEMORY : HPS_OK;
}

void gpu_lookups_fini(struct hps_gpu_tier *tier)
{
    HPS_ASSERT(tier->head == NULL && tier->n_batches == 0);
    for (uint32_t i = 0; i < GPU_BATCHES_MAX; i++) {
        hps_free(tier->batches[i].pieces);
    }
    hps_free(tier->parts);
    hps_free(tier->shapes);
}

/* ---- arrival --------------------------------------------------------------------------------- */

static void on_lookup(struct hps_task *task)
{
    struct hps_gpu_lookup *lookup = HPS_CONTAINER_OF(task, struct hps_gpu_lookup, task);
    struct hps_gpu_tier *tier = lookup->tier;

    HPS_ASSERT(gpu_tier_is_mine(tier));
    for (uint32_t i = 0; i < lookup->n_parts; i++) {
        const struct hps_gpu_part *part = &lookup->parts[i];
        memset(part->hits, 0, (part->n + 31) / 32 * sizeof(*part->hits));
    }
    if (tier->head == NULL) {
        tier->head = lookup;
    } else {
        tier->tail->next = lookup;
    }
    tier->tail = lookup;
    if (atomic_load(&tier->lost)) {
        gpu_lookups_end(tier);
    }
}

static bool in_slab(const struct hps_gpu_tier *tier, const struct hps_block *block)
{
    return block->data >= tier->slab && block->data < tier->slab + tier->slab_size;
}

/* Whether to ask `one` rather than `other`: by its caches, then by a device that is not lost, then
 * by fewer pending lookups. */
static bool is_better(const struct hps_gpu_space *one, const struct hps_gpu_space *other)
{
    bool one_there = !atomic_load(&one->tier->lost);
    bool other_there = !atomic_load(&other->tier->lost);
    bool one_present = one_there && atomic_load(&one->present);
    bool other_present = other_there && atomic_load(&other->present);

    if (one_present != other_present) {
        return one_present;
    }
    if (one_there != other_there) {
        return one_there;
    }
    return atomic_load(&one->tier->n_waiting) < atomic_load(&other->tier->n_waiting);
}

/* The device to ask. Equally loaded devices take turns, so that all of their caches fill. */
static struct hps_gpu_space *choose(struct hps_gpu_space *space)
{
    struct hps_gpu_space *first = space;
    struct hps_gpu_space *best;
    unsigned n = 0;

    if (space->sibling == NULL) {
        return space;
    }
    for (const struct hps_gpu_space *each = space; each != NULL; each = each->sibling) {
        n++;
    }
    unsigned begin = atomic_fetch_add_explicit(&space->n_turns, 1, memory_order_relaxed) % n;
    for (unsigned i = 0; i < begin; i++) {
        first = first->sibling;
    }
    best = first;
    for (unsigned i = 1; i < n; i++) {
        first = first->sibling != NULL ? first->sibling : space;
        best = is_better(first, best) ? first : best;
    }
    return best;
}

hps_status hps_gpu_lookup(struct hps_gpu_lookup *lookup)
{
    lookup->asked = choose(lookup->space);
    struct hps_gpu_tier *tier = lookup->asked->tier;

    if (atomic_load(&tier->lost)) {
        return HPS_UNAVAILABLE;
    }
    if (!in_slab(tier, lookup->block)) {
        return HPS_INVALID;
    }
    if (atomic_fetch_add(&tier->n_waiting, 1) >= tier->options.waiting_max) {
        atomic_fetch_sub(&tier->n_waiting, 1);
        return HPS_EXHAUSTED;
    }
    hps_block_ref(lookup->block);
    lookup->tier = tier;
    lookup->next = NULL;
    lookup->status = HPS_OK;
    lookup->asked_us = hps_clock_us();
    lookup->change = atomic_load(&tier->changes.last);
    lookup->part_next = 0;
    lookup->key_next = 0;
    lookup->bag_next = 0;
    lookup->n_batches = 0;
    lookup->task.run = on_lookup;
    hps_mailbox_post(tier->mailbox, &lookup->task);
    return HPS_OK;
}

/* ---- packing and submitting ------------------------------------------------------------------ */

static bool all_submitted(const struct hps_gpu_lookup *lookup)
{
    return lookup->part_next == lookup->n_parts;
}

/* The lookup has ended: return it to the caller. */
static void finish(struct hps_gpu_lookup *lookup)
{
    struct hps_gpu_tier *tier = lookup->tier;

    HPS_ASSERT(gpu_tier_is_mine(tier));
    HPS_ASSERT(lookup->n_batches == 0 && all_submitted(lookup));
    if (lookup->status == HPS_DATA_LOSS) {
        hps_block_abandon(lookup->block);
    } else {
        hps_block_unref(lookup->block);
    }
    lookup->duration_us = hps_clock_us() - lookup->asked_us;
    unsigned n_waiting = atomic_fetch_sub(&tier->n_waiting, 1);
    HPS_ASSERT(n_waiting > 0);
    lookup->done(lookup);
    if (n_waiting == 1) {
        gpu_tier_settled(tier);
    }
}

static bool is_pooled(const struct hps_gpu_part *part)
{
    return part->pooling > HPS_POOLING_NONE;
}

/* Pass over the next n keys, of n_bags bags: they were submitted or need no work. */
static void advance(struct hps_gpu_lookup *lookup, uint32_t n, uint32_t n_bags)
{
    const struct hps_gpu_part *part = &lookup->parts[lookup->part_next];

    lookup->key_next += n;
    lookup->bag_next += n_bags;
    HPS_ASSERT(lookup->key_next <= part->n);
    if (is_pooled(part) ? lookup->bag_next == part->n_bags : lookup->key_next == part->n) {
        lookup->part_next++;
        lookup->key_next = 0;
        lookup->bag_next = 0;
    }
}

/* Skip bags that the device does not answer: without keys, or with more than a batch takes. */
static void skip_bags(struct hps_gpu_lookup *lookup)
{
    const struct hps_gpu_part *part = &lookup->parts[lookup->part_next];
    uint32_t n_keys_max = lookup->tier->options.cache.batch_keys_max;
    uint32_t end = lookup->bag_next;

    while (end < part->n_bags && (part->offsets[end] == part->offsets[end + 1] ||
                                  part->offsets[end + 1] - part->offsets[end] > n_keys_max)) {
        end++;
    }
    advance(lookup, part->offsets[end] - part->offsets[lookup->bag_next], end - lookup->bag_next);
}

static uint64_t row_bytes_of(const struct gpu_table *table, const struct hps_gpu_part *part)
{
    return part->dtype == 0 ? table->row_bytes : hps_dtype_row_bytes(part->dtype, table->dim);
}

/* The next keys of a part that fit, in whole bags if it has bags. n_keys 0: none fit. */
static struct gpu_bags next_keys(const struct hps_gpu_lookup *lookup,
                                 const struct capacity *capacity, uint64_t row_bytes)
{
    const struct hps_gpu_part *part = &lookup->parts[lookup->part_next];
    uint32_t n = part->n - lookup->key_next;
    uint64_t n_rows_max = capacity->n_bytes / row_bytes;

    if (is_pooled(part)) {
        return gpu_bags_fit(part, lookup->bag_next, capacity->n_keys, n_rows_max);
    }
    uint64_t n_max = n_rows_max < capacity->n_keys ? n_rows_max : capacity->n_keys;
    return (struct gpu_bags){.n_keys = n <= n_max ? n : (uint32_t)n_max / KEYS_ALIGN * KEYS_ALIGN};
}

/* The form of the rows of a piece; NULL: as stored. */
static const struct hps_embed_shape *shape_of(struct hps_embed_shape *shape,
                                              const struct gpu_table *table,
                                              const struct hps_gpu_part *part,
                                              const struct gpu_bags *bags, uint32_t begin)
{
    if (!is_pooled(part) && (part->dtype == 0 || part->dtype == table->dtype)) {
        return NULL;
    }
    *shape = (struct hps_embed_shape){.stored = table->dtype,
                                      .dim = table->dim,
                                      .wanted = part->dtype,
                                      .pooling = HPS_POOLING_NONE};
    if (is_pooled(part)) {
        shape->pooling = part->pooling;
        shape->n_bags = bags->n;
        shape->offsets = part->offsets + bags->first;
        shape->weights =
            part->weights == NULL ? NULL : part->weights + (size_t)begin * sizeof(float);
    }
    return shape;
}

/* Pack the next keys of a lookup. False: none fit. */
static bool pack_piece(struct hps_gpu_tier *tier, struct gpu_batch *batch,
                       struct capacity *capacity, struct hps_gpu_lookup *lookup)
{
    const struct hps_gpu_part *part = &lookup->parts[lookup->part_next];
    const struct gpu_table *table = &lookup->asked->tables[part->table_id];
    uint64_t row_bytes = row_bytes_of(table, part);
    uint64_t stride = part->stride != 0 ? part->stride : row_bytes;
    uint32_t begin = lookup->key_next, n_piece = batch->n_pieces;
    const struct gpu_bags bags = next_keys(lookup, capacity, row_bytes);
    uint64_t n_rows = is_pooled(part) ? bags.n : bags.n_keys;
    uint64_t row = is_pooled(part) ? bags.first : begin;

    if (bags.n_keys == 0 || capacity->n_parts == 0) {
        return false;
    }
    tier->parts[n_piece] = (struct hps_embed_part){
        .range = table->range,
        .keys = part->keys + (size_t)begin * sizeof(hps_key),
        .n = bags.n_keys,
        .region = tier->region,
        .offset = (uint64_t)(lookup->block->data - tier->slab) + part->offset + row * stride,
        .stride = part->stride,
        .shape = shape_of(&tier->shapes[n_piece], table, part, &bags, begin)};
    batch->pieces[batch->n_pieces++] = (struct gpu_piece){
        .lookup = lookup, .part = lookup->part_next, .begin = begin, .n = bags.n_keys};
    capacity->n_keys -= bags.n_keys;
    capacity->n_parts--;
    uint64_t n_bytes = (n_rows * row_bytes + ROW_ALIGN - 1) / ROW_ALIGN * ROW_ALIGN;
    capacity->n_bytes -= n_bytes < capacity->n_bytes ? n_bytes : capacity->n_bytes;
    lookup->n_batches++; /* one count per piece */
    advance(lookup, bags.n_keys, bags.n);
    return true;
}

/* Skip keys that miss in any case: of tables without a cache, and of bags that are not answered.
 * Returns whether keys are left. */
static bool skip_misses(struct hps_gpu_lookup *lookup)
{
    while (!all_submitted(lookup)) {
        const struct hps_gpu_part *part = &lookup->parts[lookup->part_next];
        uint32_t before = lookup->part_next;
        if (part->n == 0 || lookup->asked->tables[part->table_id].range == NULL) {
            lookup->part_next++;
            lookup->key_next = 0;
            lookup->bag_next = 0;
        } else if (is_pooled(part)) {
            skip_bags(lookup);
        }
        if (lookup->part_next == before) {
            return true;
        }
    }
    return false;
}

/* Remove the first pending lookup, and end it if none of its batches is on the device. */
static void pop(struct hps_gpu_tier *tier)
{
    struct hps_gpu_lookup *lookup = tier->head;

    tier->head = lookup->next;
    if (lookup->n_batches == 0) {
        finish(lookup);
    }
}

/* Pack pending lookups in order. A lookup is packed only after every change that was queued before
 * it is staged. */
static void pack(struct hps_gpu_tier *tier, struct gpu_batch *batch)
{
    const struct hps_embed_cache_config *cache = &tier->options.cache;
    struct capacity capacity = {.n_keys = cache->batch_keys_max,
                                .n_parts = cache->batch_parts_max,
                                .n_bytes = cache->gather_bytes - BATCH_ALIGN};
    uint64_t changes_done = gpu_changes_done(tier, true);

    batch->n_pieces = 0;
    while (tier->head != NULL && tier->head->change <= changes_done) {
        struct hps_gpu_lookup *lookup = tier->head;
        while (skip_misses(lookup)) {
            if (!pack_piece(tier, batch, &capacity, lookup)) {
                return;
            }
        }
        pop(tier);
    }
}

/* The batch that is packed or being packed: the one after those in flight. */
static struct gpu_batch *next_batch(struct hps_gpu_tier *tier)
{
    return &tier->batches[(tier->first + tier->n_batches) % tier->options.cache.n_batches];
}

/* AGAIN: the batch stays packed. */
static hps_status submit(struct hps_gpu_tier *tier, struct gpu_batch *batch)
{
    HPS_ASSERT(batch->n_pieces > 0 && batch->n_pieces <= tier->options.cache.batch_parts_max);
    HPS_ASSERT(tier->n_batches < tier->options.cache.n_batches);
    batch->ticket = NULL;
    tier->packed = true;
    hps_status status = hps_embed_submit(tier->cache, tier->parts, batch->n_pieces, &batch->ticket);

    HPS_ASSERT(status != HPS_INVALID); /* packed within its limits */
    tier->packed = status == HPS_AGAIN;
    tier->n_batches += tier->packed ? 0 : 1;
    return status;
}

bool gpu_lookups_submit(struct hps_gpu_tier *tier)
{
    bool any = false;

    HPS_ASSERT(gpu_tier_is_mine(tier));
    while (tier->n_batches < tier->options.cache.n_batches &&
           (tier->packed || tier->head != NULL)) {
        struct gpu_batch *batch = next_batch(tier);
        const struct hps_gpu_lookup *head = tier->head;

        if (!tier->packed) {
            pack(tier, batch);
            any |= tier->head != head;
        }
        hps_status status = batch->n_pieces == 0 ? HPS_AGAIN : submit(tier, batch);
        if (status == HPS_AGAIN) {
            break;
        }
        any = true;
        if (status != HPS_OK) {
            gpu_tier_lose(tier, "a batch of lookups could not be queued");
            break;
        }
    }
    return any;
}

/* ---- completion ------------------------------------------------------------------------------ */

static void finish_piece(const struct gpu_piece *piece, hps_status status, const uint32_t *hits)
{
    struct hps_gpu_lookup *lookup = piece->lookup;
    struct hps_gpu_part *part = &lookup->parts[piece->part];

    if (status == HPS_OK) {
        gpu_bits_put(part->hits, piece->begin, piece->n, hits);
    } else {
        lookup->status = status;
    }
    HPS_ASSERT(lookup->n_batches > 0);
    lookup->n_batches--;
    if (lookup->n_batches == 0 && all_submitted(lookup)) {
        finish(lookup);
    }
}

static void finish_batch(struct hps_gpu_tier *tier, hps_status status)
{
    struct gpu_batch *batch = &tier->batches[tier->first];

    HPS_ASSERT(tier->n_batches > 0);
    for (uint32_t i = 0; i < batch->n_pieces; i++) {
        finish_piece(&batch->pieces[i], status,
                     status == HPS_OK ? hps_embed_hits(batch->ticket, i) : NULL);
    }
    if (batch->ticket != NULL) {
        hps_embed_release(batch->ticket);
    }
    tier->first = (tier->first + 1) % tier->options.cache.n_batches;
    tier->n_batches--;
}

bool gpu_lookups_poll(struct hps_gpu_tier *tier)
{
    bool any = false;

    HPS_ASSERT(gpu_tier_is_mine(tier));
    while (tier->n_batches > 0) {
        hps_status status = hps_embed_poll(tier->batches[tier->first].ticket);
        if (status == HPS_AGAIN) {
            break;
        }
        if (status != HPS_OK) {
            gpu_tier_lose(tier, "the device did not answer a batch of lookups");
            return true;
        }
        finish_batch(tier, HPS_OK);
        any = true;
    }
    return any;
}

void gpu_lookups_end(struct hps_gpu_tier *tier)
{
    /* Lookups with a batch on the device end with their last batch; nothing more of them is
     * submitted. */
    struct hps_gpu_lookup *waiting = tier->head;

    HPS_ASSERT(gpu_tier_is_mine(tier) && atomic_load(&tier->lost));
    tier->head = NULL;
    for (struct hps_gpu_lookup *lookup = waiting; lookup != NULL; lookup = lookup->next) {
        lookup->part_next = lookup->n_parts;
    }
    while (waiting != NULL) {
        struct hps_gpu_lookup *lookup = waiting;
        waiting = lookup->next;
        if (lookup->n_batches == 0) {
            lookup->status = lookup->status == HPS_OK ? HPS_UNAVAILABLE : lookup->status;
            finish(lookup);
        }
    }
    tier->n_batches += tier->packed ? 1 : 0;
    tier->packed = false;
    while (tier->n_batches > 0) {
        finish_batch(tier, HPS_DATA_LOSS);
    }
}

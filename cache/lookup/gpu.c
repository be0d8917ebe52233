/* SPDX-License-Identifier: Apache-2.0
 *
 * Where a look-up meets the gpu tier. A part whose result is large is asked of the gpu first, all
 * keys as they were sent, and the device writes the rows to their final places: the cores are
 * spared the gather, and for what it had the search for duplicates. Of any other part the keys that
 * memory misses are asked, into a scratch block, and copied from there. On the thread that holds
 * the look-up.
 */
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/container.h"
#include "cache/lookup/internal.h"

enum { BITS = 32 }; /* of a word of hits */

bool lookup_gpu_caches(const struct hps_lookup *lookup, const struct hps_lookup_part *part)
{
    const struct hps_gpu_space *gpu = lookup->version->gpu;

    return gpu != NULL && lookup->blocks != NULL && hps_gpu_space_caches(gpu, part->table->id);
}

bool lookup_gpu_answered(const struct hps_lookup *lookup, const struct hps_lookup_part *part)
{
    const struct hps_tier_report *report = &part->walk.reports[HPS_TIER_GPU];

    return report->n_asked > 0 && report->status == HPS_OK && lookup_gpu_caches(lookup, part);
}

static bool has_host_map(const struct hps_version *version)
{
    const struct hps_store_ops *ops = version->tiers[0]->store->ops;

    return (ops->caps & HPS_STORE_BLOCKING) == 0;
}

/* Rows, not bags. The gpu's caches may come and go meanwhile: then one question more or less is
 * asked. */
static bool wants_gpu_first(const struct hps_lookup *lookup, const struct hps_lookup_part *part)
{
    uint64_t bytes = (uint64_t)part->n_keys * part->table->row_bytes;

    if (part->n_keys == 0 || part->form == HPS_PART_POOLED || !lookup_gpu_caches(lookup, part)) {
        return false;
    }
    switch (lookup->path) {
    case HPS_LOOKUP_PATH_GPU:
        return true;
    case HPS_LOOKUP_PATH_HOST:
        return !has_host_map(lookup->version);
    case HPS_LOOKUP_PATH_AUTO:
        break;
    }
    return bytes >= HPS_LOOKUP_GPU_FIRST_BYTES || !has_host_map(lookup->version);
}

/* ---- memory that the device writes to -------------------------------------------------------- */

/* The gpu can be asked for it first: there is a place for the rows as the device has them. */
static bool can_ask_first(const struct hps_lookup *lookup, const struct hps_lookup_part *part)
{
    bool has_place = part->form == HPS_PART_STORED || part->tail_offset > 0;

    return has_place && wants_gpu_first(lookup, part);
}

static bool any_first(const struct hps_lookup *lookup)
{
    uint32_t i = 0;

    while (i < lookup->n_parts && !can_ask_first(lookup, &lookup->parts[i])) {
        i++;
    }
    return i < lookup->n_parts;
}

/* Room behind the rows. */
static void plan_tails(struct hps_lookup *lookup)
{
    uint64_t size = lookup->rows_bytes == 0 ? HPS_ROWS_ALIGN : lookup->rows_bytes;

    for (uint32_t i = 0; i < lookup->n_parts && lookup->n_shaped > 0; i++) {
        struct hps_lookup_part *part = &lookup->parts[i];
        if (part->form == HPS_PART_SHAPED && wants_gpu_first(lookup, part)) {
            part->tail_offset = size;
            size += lookup_gathered_bytes(part);
        }
    }
    lookup->block_bytes = (size_t)size;
}

/* The slab is for those that need it: whoever finds no room there is not asked of the gpu. */
hps_status hps_lookup_take_block(struct hps_lookup *lookup)
{
    plan_tails(lookup);
    lookup->block =
        any_first(lookup) ? hps_block_new_slab(lookup->blocks, lookup->block_bytes) : NULL;
    if (lookup->block == NULL) {
        lookup->block = hps_block_new(lookup->blocks, lookup->block_bytes);
    }
    lookup->rows = lookup->block == NULL ? NULL : lookup->block->data;
    return lookup->block == NULL ? HPS_NO_MEMORY : HPS_OK;
}

uint64_t lookup_gpu_scratch_bytes(const struct hps_lookup *lookup,
                                  const struct hps_lookup_part *part)
{
    bool asked = lookup_gpu_caches(lookup, part) && !wants_gpu_first(lookup, part);

    return asked ? lookup_gathered_bytes(part) : 0;
}

/* ---- asking ---------------------------------------------------------------------------------- */

/* Add keys of a part; their rows are to come to `offset` of the block. EXHAUSTED: arena */
static hps_status add_part(struct hps_lookup *lookup, struct hps_lookup_part *part,
                           const uint8_t *keys, uint32_t n, uint64_t offset)
{
    struct hps_lookup_gpu *gpu = &lookup->gpu;
    uint32_t *hits = hps_arena_alloc(lookup->arena, (n + BITS - 1) / BITS * sizeof(*hits));

    if (hits == NULL) {
        return HPS_EXHAUSTED;
    }
    HPS_ASSERT(gpu->ask.n_parts < lookup->n_parts);
    HPS_ASSERT(n > 0);
    gpu->parts[gpu->ask.n_parts] = part;
    gpu->ask.parts[gpu->ask.n_parts++] = (struct hps_gpu_part){
        .table_id = part->table->id, .n = n, .keys = keys, .offset = offset, .hits = hits};
    return HPS_OK;
}

static hps_status add_whole_parts(struct hps_lookup *lookup)
{
    hps_status status = HPS_OK;

    for (uint32_t i = 0; i < lookup->n_parts && status == HPS_OK; i++) {
        struct hps_lookup_part *part = &lookup->parts[i];
        if (can_ask_first(lookup, part)) {
            uint64_t offset = part->form == HPS_PART_STORED ? part->rows_offset : part->tail_offset;
            status = add_part(lookup, part, part->keys, part->n_keys, offset);
        }
    }
    lookup->gpu.ask.block = lookup->block;
    return status;
}

/* The walk may go on before the gpu has read its keys. NULL: no memory */
static const uint8_t *copy_keys(struct hps_lookup *lookup, const struct hps_batch *batch)
{
    uint8_t *keys = hps_arena_alloc(lookup->arena, batch->n * sizeof(*batch->keys));

    if (keys != NULL) {
        memcpy(keys, batch->keys, batch->n * sizeof(*batch->keys));
    }
    return keys;
}

static hps_status add_misses(struct hps_lookup *lookup)
{
    struct hps_lookup_gpu *gpu = &lookup->gpu;
    struct hps_error err;
    hps_status status = lookup_gather(lookup, true, &err); /* that is where they go afterwards */
    size_t size = 0;

    for (uint32_t i = 0; i < lookup->n_parts && status == HPS_OK; i++) {
        struct hps_lookup_part *part = &lookup->parts[i];
        const struct hps_batch *batch = &part->walk.batch;
        if (part->waits_for_gpu) {
            const uint8_t *keys = copy_keys(lookup, batch);
            status = keys == NULL ? HPS_EXHAUSTED : add_part(lookup, part, keys, batch->n, size);
            size += (size_t)lookup_align_rows((uint64_t)batch->n * part->table->row_bytes);
        }
    }
    if (status == HPS_OK && size > 0) {
        gpu->scratch = hps_block_new_slab(lookup->blocks, size);
        status = gpu->scratch == NULL ? HPS_NO_MEMORY : HPS_OK;
    }
    gpu->ask.block = gpu->scratch;
    return status;
}

static struct hps_lookup *lookup_of(struct hps_gpu_lookup *ask)
{
    return HPS_CONTAINER_OF(ask, struct hps_lookup, gpu.ask);
}

static void on_done(struct hps_gpu_lookup *ask)
{
    struct hps_lookup *lookup = lookup_of(ask);

    lookup->gpu_done(lookup);
}

/* No part waits for the gpu any more. */
void lookup_gpu_forget(struct hps_lookup *lookup)
{
    hps_block_unref(lookup->gpu.scratch);
    lookup->gpu.scratch = NULL;
    lookup->gpu.asked = false;
    for (uint32_t i = 0; i < lookup->n_parts; i++) {
        lookup->parts[i].waits_for_gpu = false;
    }
}

static bool any_waits(const struct hps_lookup *lookup)
{
    uint32_t i = 0;

    while (i < lookup->n_parts && !lookup->parts[i].waits_for_gpu) {
        i++;
    }
    return i < lookup->n_parts;
}

bool hps_lookup_ask_gpu(struct hps_lookup *lookup)
{
    struct hps_lookup_gpu *gpu = &lookup->gpu;
    bool first = !lookup->begun;

    HPS_ASSERT(!gpu->asked);
    lookup_begin(lookup);
    if (gpu->left || (first ? !any_first(lookup) : !any_waits(lookup))) {
        return false;
    }
    *gpu = (struct hps_lookup_gpu){.ask = {.space = lookup->version->gpu, .done = on_done}};
    gpu->parts = hps_arena_alloc(lookup->arena, lookup->n_parts * sizeof(struct hps_lookup_part *));
    gpu->ask.parts = hps_arena_alloc(lookup->arena, lookup->n_parts * sizeof(*gpu->ask.parts));
    hps_status status = gpu->parts == NULL || gpu->ask.parts == NULL ? HPS_EXHAUSTED : HPS_OK;
    if (status == HPS_OK) {
        status = first ? add_whole_parts(lookup) : add_misses(lookup);
    }
    if (status != HPS_OK || gpu->ask.n_parts == 0) {
        lookup_gpu_forget(lookup);
        return false;
    }
    HPS_ASSERT(gpu->ask.block != NULL);
    HPS_ASSERT(lookup->gpu_done != NULL);
    gpu->asked = true;
    status = hps_gpu_lookup(&gpu->ask);
    if (status == HPS_OK) { /* it may have been answered already: it is not ours */
        return true;
    }
    gpu->ask.status = status;
    return false;
}

uint64_t lookup_gpu_deadline_us(const struct hps_lookup *lookup)
{
    bool bounded =
        lookup->miss_policy == HPS_MISS_WAIT || lookup->miss_policy == HPS_MISS_MEMORY_ONLY;
    uint64_t wait_us = lookup->wait_us_max == 0 ? HPS_LOOKUP_GPU_WAIT_US : lookup->wait_us_max;

    return bounded ? hps_clock_us() + wait_us : 0;
}

void hps_lookup_leave_gpu(struct hps_lookup *lookup)
{
    HPS_ASSERT(lookup->gpu.asked && !lookup->gpu.left);
    lookup->gpu.left = true; /* it has references of its own to the blocks that it writes to */
}

/* ---- taking the answer ----------------------------------------------------------------------- */

hps_status lookup_gpu_block(struct hps_lookup *lookup, struct hps_error *err)
{
    const struct hps_lookup_gpu *gpu = &lookup->gpu;

    if (!gpu->asked || gpu->scratch != NULL || (!gpu->left && gpu->ask.status != HPS_DATA_LOSS)) {
        return HPS_OK;
    }
    size_t size = lookup->block_bytes;
    hps_block_unref(lookup->block); /* the tier keeps it until it has answered, or for ever */
    lookup->block = hps_block_new(lookup->blocks, size);
    if (lookup->block == NULL) {
        lookup->rows = NULL;
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for %zu bytes of rows", size);
    }
    lookup->rows = lookup->block->data;
    return HPS_OK;
}

static bool is_hit(const struct hps_gpu_part *asked, uint32_t i)
{
    return (asked->hits[i / BITS] >> i % BITS & 1) != 0;
}

void lookup_gpu_hits(struct hps_lookup *lookup)
{
    struct hps_lookup_gpu *gpu = &lookup->gpu;

    if (!gpu->asked || gpu->left || gpu->ask.status != HPS_OK) {
        return;
    }
    for (uint32_t i = 0; i < gpu->ask.n_parts; i++) {
        gpu->parts[i]->hits = gpu->ask.parts[i].hits;
        gpu->parts[i]->hits_tier = HPS_TIER_GPU;
    }
}

/* Sort the walk's missing keys, which were asked in this order, by the bits of their hits, and copy
 * their rows. */
static void take_hits(struct hps_lookup_part *part, const struct hps_gpu_part *asked,
                      const uint8_t *scratch)
{
    struct hps_batch *batch = &part->walk.batch;
    size_t row_bytes = part->table->row_bytes;
    uint32_t n = batch->n;

    HPS_ASSERT(n == asked->n); /* nobody had the look-up meanwhile */
    for (uint32_t i = n; i-- > 0;) {
        if (is_hit(asked, i)) {
            memcpy(batch->rows + batch->slots[i] * row_bytes,
                   scratch + asked->offset + i * row_bytes, row_bytes);
            hps_batch_found(batch, i);
        }
    }
    uint32_t n_hits = n - batch->n;
    batch->n = n;
    hps_walk_answered(&part->walk, HPS_TIER_GPU, n_hits);
}

void lookup_gpu_take(struct hps_lookup *lookup)
{
    struct hps_lookup_gpu *gpu = &lookup->gpu;
    hps_status status = gpu->left ? HPS_DEADLINE : gpu->ask.status;
    /* Lost before it began, or refused: no question. */
    bool begun = status == HPS_OK || status == HPS_DATA_LOSS || gpu->left;
    /* Refused for want of room, for the rows or in the queue: the device has not failed. */
    bool failed = status != HPS_OK && status != HPS_INVALID && status != HPS_EXHAUSTED;
    uint64_t duration_us = gpu->left ? hps_clock_us() - gpu->ask.asked_us : gpu->ask.duration_us;

    for (uint32_t i = 0; i < gpu->ask.n_parts && gpu->asked; i++) {
        struct hps_lookup_part *part = gpu->parts[i];
        struct hps_tier_report *report = &part->walk.reports[HPS_TIER_GPU];
        part->walk.gpu_missed = gpu->ask.asked;
        report->status = status;
        report->n_asked = begun ? part->walk.batch.n + report->n_found : 0; /* hits as sent */
        report->n_unanswered = status == HPS_OK ? 0 : report->n_asked;
        report->n_faults = failed && i == 0 ? 1 : 0;
        report->duration_us = i == 0 ? duration_us : 0;
        if (status == HPS_OK && gpu->scratch != NULL) {
            take_hits(part, &gpu->ask.parts[i], gpu->scratch->data);
        }
    }
    lookup_gpu_forget(lookup);
}

/* ---- between --------------------------------------------------------------------------------- */

void lookup_gpu_offer(struct hps_lookup *lookup)
{
    for (uint32_t i = 0; i < lookup->n_parts; i++) {
        struct hps_lookup_part *part = &lookup->parts[i];
        const struct hps_tier_report *report = &part->walk.reports[HPS_TIER_GPU];
        if (part->finished || report->status != HPS_OK || !lookup_gpu_caches(lookup, part)) {
            continue;
        }
        if (report->n_asked > 0) {
            hps_walk_offer_memory(&part->walk, lookup->since);
        } else {
            part->waits_for_gpu = !hps_walk_done(&part->walk);
        }
    }
}

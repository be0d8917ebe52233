/* SPDX-License-Identifier: Apache-2.0
 *
 * Connects a lookup with the gpu tier. A part with large results queries the gpu first, with all
 * keys as sent. The device writes the rows to their final places, in the type of the reply, or adds
 * the bags that it has whole. CPU cores then need not gather these rows or search them for
 * duplicates. Other parts, and bags that are not whole, query the gpu for the keys that memory
 * misses; the rows go to a scratch block and are copied from there. On the thread that owns the
 * lookup.
 */
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/container.h"
#include "cache/lookup/internal.h"

enum { BITS = 32 }; /* of a word of `hits` */

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

/* A bag is whole on the device if the device has all its keys. The bags of a host map nearly always
 * are; those of the device only if it caches the whole table. */
static bool bags_are_whole(const struct hps_lookup *lookup, const struct hps_lookup_part *part)
{
    return hps_gpu_space_rows_max(lookup->version->gpu, part->table->id) >= part->table->n_rows;
}

/* A unit needs each row, to read it again, so its bags do not query the gpu. The gpu's caches may
 * change between calls: then one query more or less is made. */
static bool wants_gpu_first(const struct hps_lookup *lookup, const struct hps_lookup_part *part)
{
    bool pooled = part->form == HPS_PART_POOLED;
    uint64_t bytes = (uint64_t)part->n_keys * part->table->row_bytes;

    if (part->n_keys == 0 || part->stride > UINT32_MAX || (pooled && lookup->unit) ||
        !lookup_gpu_caches(lookup, part)) {
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
    return !has_host_map(lookup->version) ||
           (bytes >= HPS_LOOKUP_GPU_FIRST_BYTES && (!pooled || bags_are_whole(lookup, part)));
}

/* ---- memory that the device writes to -------------------------------------------------------- */

static bool any_first(const struct hps_lookup *lookup)
{
    uint32_t i = lookup->version->gpu == NULL ? lookup->n_parts : 0;

    while (i < lookup->n_parts && !wants_gpu_first(lookup, &lookup->parts[i])) {
        i++;
    }
    return i < lookup->n_parts;
}

/* The slab is for lookups that query the gpu first. If it has no space, the gpu is not queried. */
hps_status hps_lookup_take_block(struct hps_lookup *lookup)
{
    size_t size = lookup->rows_bytes == 0 ? HPS_ROWS_ALIGN : (size_t)lookup->rows_bytes;

    lookup->block = any_first(lookup) ? hps_block_new_slab(lookup->blocks, size) : NULL;
    if (lookup->block == NULL) {
        lookup->block = hps_block_new(lookup->blocks, size);
    }
    lookup->rows = lookup->block == NULL ? NULL : lookup->block->data;
    return lookup->block == NULL ? HPS_NO_MEMORY : HPS_OK;
}

uint64_t lookup_gpu_scratch_bytes(const struct hps_lookup *lookup,
                                  const struct hps_lookup_part *part)
{
    bool asked = lookup_gpu_caches(lookup, part) &&
                 (part->form == HPS_PART_POOLED || !wants_gpu_first(lookup, part));

    return asked ? lookup_gathered_bytes(part) : 0;
}

/* ---- asking ---------------------------------------------------------------------------------- */

/* Add the query of a part. EXHAUSTED: arena */
static hps_status add_part(struct hps_lookup *lookup, struct hps_lookup_part *part,
                           const struct hps_gpu_part *asked)
{
    struct hps_lookup_gpu *gpu = &lookup->gpu;
    struct hps_gpu_part *added = &gpu->ask.parts[gpu->ask.n_parts];

    HPS_ASSERT(gpu->ask.n_parts < lookup->n_parts);
    HPS_ASSERT(asked->n > 0);
    *added = *asked;
    added->table_id = part->table->id;
    added->hits =
        hps_arena_alloc(lookup->arena, (asked->n + BITS - 1) / BITS * sizeof(*added->hits));
    if (added->hits == NULL) {
        return HPS_EXHAUSTED;
    }
    gpu->parts[gpu->ask.n_parts++] = part;
    return HPS_OK;
}

static hps_status add_whole_parts(struct hps_lookup *lookup)
{
    hps_status status = HPS_OK;

    for (uint32_t i = 0; i < lookup->n_parts && status == HPS_OK; i++) {
        struct hps_lookup_part *part = &lookup->parts[i];
        if (wants_gpu_first(lookup, part)) {
            const struct hps_gpu_part asked = {.n = part->n_keys,
                                               .keys = part->keys,
                                               .offset = part->rows_offset,
                                               .stride = (uint32_t)part->stride,
                                               .dtype = part->out_dtype,
                                               .pooling = part->pooling,
                                               .n_bags = part->n_bags,
                                               .offsets = part->offsets,
                                               .weights = part->weights};
            status = add_part(lookup, part, &asked);
        }
    }
    lookup->gpu.ask.block = lookup->block;
    return status;
}

/* A copy, because the walk may continue before the gpu has read its keys. NULL: no memory */
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
    hps_status status = lookup_gather(lookup, true, &err); /* where these rows are copied to */
    size_t size = 0;

    for (uint32_t i = 0; i < lookup->n_parts && status == HPS_OK; i++) {
        struct hps_lookup_part *part = &lookup->parts[i];
        const struct hps_batch *batch = &part->walk.batch;
        if (part->waits_for_gpu) {
            const struct hps_gpu_part asked = {
                .n = batch->n, .keys = copy_keys(lookup, batch), .offset = size};
            status = asked.keys == NULL ? HPS_EXHAUSTED : add_part(lookup, part, &asked);
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
    if (status == HPS_OK) { /* may be answered already: no longer ours */
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
    lookup->gpu.left = true; /* it holds its own references to the blocks that it writes to */
}

/* ---- taking the answer ----------------------------------------------------------------------- */

hps_status lookup_gpu_block(struct hps_lookup *lookup, struct hps_error *err)
{
    const struct hps_lookup_gpu *gpu = &lookup->gpu;

    if (!gpu->asked || gpu->scratch != NULL || (!gpu->left && gpu->ask.status != HPS_DATA_LOSS)) {
        return HPS_OK;
    }
    size_t size = lookup->rows_bytes;
    hps_block_unref(lookup->block); /* the tier keeps it until it answers, or permanently */
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

/* EXHAUSTED: arena */
static hps_status take_bags(struct hps_lookup *lookup, struct hps_lookup_part *part,
                            const struct hps_gpu_part *asked)
{
    uint32_t *whole =
        hps_arena_alloc(lookup->arena, (part->n_bags + BITS - 1) / BITS * sizeof(*whole));

    if (whole == NULL) {
        return HPS_EXHAUSTED;
    }
    hps_gpu_bags_whole(asked, whole);
    part->cached = asked->hits;
    return lookup_take_whole(lookup, part, whole, HPS_TIER_GPU);
}

hps_status lookup_gpu_hits(struct hps_lookup *lookup, struct hps_error *err)
{
    struct hps_lookup_gpu *gpu = &lookup->gpu;
    bool answered = gpu->asked && !gpu->left && gpu->ask.status == HPS_OK;
    hps_status status = HPS_OK;

    for (uint32_t i = 0; answered && i < gpu->ask.n_parts && status == HPS_OK; i++) {
        struct hps_lookup_part *part = gpu->parts[i];
        if (part->form == HPS_PART_POOLED) {
            status = take_bags(lookup, part, &gpu->ask.parts[i]);
        } else {
            part->hits = gpu->ask.parts[i].hits;
            part->hits_tier = HPS_TIER_GPU;
        }
    }
    return status == HPS_OK ? HPS_OK
                            : hps_error_set(err, status, "no memory for the bags of %u tables",
                                            lookup->n_pooled);
}

/* Separate the walk's missing keys, which were queried in this order, by their hit bits, and copy
 * the rows of hits. */
static void take_hits(struct hps_lookup_part *part, const struct hps_gpu_part *asked,
                      const uint8_t *scratch)
{
    struct hps_batch *batch = &part->walk.batch;
    size_t row_bytes = part->table->row_bytes;
    uint32_t n = batch->n;

    HPS_ASSERT(n == asked->n); /* no thread owned the lookup since */
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
    /* Otherwise it was refused, or the device was lost before: that is no query. */
    bool begun = status == HPS_OK || status == HPS_DATA_LOSS || gpu->left;
    /* INVALID and EXHAUSTED: no space in the slab or the queue. The device has not failed. */
    bool failed = status != HPS_OK && status != HPS_INVALID && status != HPS_EXHAUSTED;
    uint64_t duration_us = gpu->left ? hps_clock_us() - gpu->ask.asked_us : gpu->ask.duration_us;

    for (uint32_t i = 0; i < gpu->ask.n_parts && gpu->asked; i++) {
        struct hps_lookup_part *part = gpu->parts[i];
        struct hps_tier_report *report = &part->walk.reports[HPS_TIER_GPU];
        part->walk.gpu_missed = gpu->ask.asked;
        report->status = status;
        if (begun && report->n_asked == 0) { /* else they were counted by the first query */
            report->n_asked = part->walk.batch.n + report->n_found; /* hits as sent */
        }
        report->n_unanswered = status == HPS_OK || !begun ? 0 : part->walk.batch.n;
        report->n_faults = failed && i == 0 ? 1 : 0;
        report->duration_us += i == 0 ? duration_us : 0;
        if (status == HPS_OK && gpu->scratch != NULL) {
            take_hits(part, &gpu->ask.parts[i], gpu->scratch->data);
        }
    }
    lookup_gpu_forget(lookup);
}

/* ---- between --------------------------------------------------------------------------------- */

void lookup_gpu_offer(struct hps_lookup *lookup)
{
    for (uint32_t i = 0; lookup->version->gpu != NULL && i < lookup->n_parts; i++) {
        struct hps_lookup_part *part = &lookup->parts[i];
        const struct hps_tier_report *report = &part->walk.reports[HPS_TIER_GPU];
        if (part->finished || report->status != HPS_OK || !lookup_gpu_caches(lookup, part)) {
            continue;
        }
        bool first = report->n_asked > 0;
        if (first) {
            hps_walk_offer_memory(&part->walk, lookup->since, part->cached);
        }
        /* The device may have rows of bags that it has not whole. */
        part->waits_for_gpu =
            (!first || part->form == HPS_PART_POOLED) && !hps_walk_done(&part->walk);
    }
}

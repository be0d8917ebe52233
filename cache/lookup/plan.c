/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans a lookup before it starts: how the rows of each part get to their places, where these are,
 * and how much memory is needed. On the thread that owns the lookup.
 */
#include <inttypes.h>

#include "base/assert.h"
#include "cache/lookup/internal.h"

/* Read them once, so that a change does not affect parts of the lookup differently. */
static void choose_policies(struct hps_lookup *lookup)
{
    if (lookup->miss_policy == HPS_MISS_MODEL) {
        lookup->miss_policy = atomic_load(&lookup->version->miss_policy);
    }
    if (lookup->unknown_policy == HPS_UNKNOWN_MODEL) {
        lookup->unknown_policy = atomic_load(&lookup->version->unknown_policy);
    }
}

static void choose_form(const struct hps_lookup *lookup, struct hps_lookup_part *part)
{
    enum hps_dtype stored = part->table->dtype;
    bool concat = lookup->layout == HPS_LAYOUT_CONCAT;
    bool raw = lookup->output == HPS_DTYPE_RAW;
    bool pooled = part->pooling > HPS_POOLING_NONE;

    HPS_ASSERT(!raw || (!concat && !pooled));
    HPS_ASSERT(!pooled || (part->offsets[0] == 0 && part->offsets[part->n_bags] == part->n_keys));
    part->out_dtype = raw ? stored : lookup->output == 0 ? HPS_DTYPE_FP32 : lookup->output;
    part->n_rows = pooled ? part->n_bags : part->n_keys;
    part->form = concat || part->out_dtype != stored ? HPS_PART_SHAPED : HPS_PART_STORED;
    part->form = pooled ? HPS_PART_POOLED : part->form;
}

/* Whether a tier does not convert rows: a memory tier, or any tier. */
static bool has_unshaping_tier(const struct hps_lookup *lookup, bool in_memory)
{
    struct hps_tier tiers[HPS_TIERS_MAX];
    uint32_t n = hps_version_tiers(lookup->version, tiers);
    bool has = false;

    for (uint32_t i = 0; i < n && !has; i++) {
        bool memory = (tiers[i].caps & (HPS_CAP_ON_DEVICE | HPS_CAP_BLOCKS)) == 0;
        bool shapes = memory && (tiers[i].space->store->ops->caps & HPS_STORE_SHAPES) != 0;
        has = !shapes && (memory || !in_memory);
    }
    return has;
}

static hps_status size_part(struct hps_lookup_part *part, struct hps_error *err)
{
    const struct hps_table *table = part->table;
    uint64_t row_bytes = hps_dtype_row_bytes(part->out_dtype, table->dim);
    uint64_t wider = row_bytes > table->row_bytes ? row_bytes : table->row_bytes; /* gathered */
    uint32_t n = part->n_rows > part->n_keys ? part->n_rows : part->n_keys;

    if (wider > UINT32_MAX || wider * n > UINT64_MAX / 4) {
        return hps_error_set(err, HPS_RANGE, "table '%s': %u rows of %" PRIu64 " bytes",
                             table->name, n, wider);
    }
    part->row_bytes = (uint32_t)row_bytes;
    part->rows_bytes = row_bytes * part->n_rows;
    return HPS_OK;
}

/* The rows of each part in a block of their own. */
static hps_status place_per_table(struct hps_lookup *lookup, struct hps_error *err)
{
    uint64_t total = 0;

    for (uint32_t i = 0; i < lookup->n_parts; i++) {
        struct hps_lookup_part *part = &lookup->parts[i];
        if (total > UINT64_MAX / 4) {
            return hps_error_set(err, HPS_RANGE, "%" PRIu64 " bytes of rows of %u tables", total,
                                 i);
        }
        part->stride = part->row_bytes;
        part->column = 0;
        part->rows_offset = total;
        total += lookup_align_rows(part->rows_bytes);
    }
    lookup->rows_bytes = total;
    return HPS_OK;
}

/* One matrix: in each row, the values of a part follow the values of the parts before it. */
static hps_status place_in_matrix(struct hps_lookup *lookup, struct hps_error *err)
{
    uint32_t n_rows = lookup->n_parts == 0 ? 0 : lookup->parts[0].n_rows;
    uint64_t offset = 0;
    uint64_t dim = 0;
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < lookup->n_parts; i++) { /* up to 2^32 parts of up to 2^32 bytes */
        struct hps_lookup_part *part = &lookup->parts[i];
        HPS_ASSERT(part->n_rows == n_rows);
        part->column = dim;
        part->rows_offset = offset;
        dim += part->table->dim;
        offset += part->row_bytes;
    }
    if (__builtin_mul_overflow(offset, (uint64_t)n_rows, &bytes) || bytes > UINT64_MAX / 4) {
        return hps_error_set(err, HPS_RANGE, "a matrix of %u rows of %" PRIu64 " bytes", n_rows,
                             offset);
    }
    for (uint32_t i = 0; i < lookup->n_parts; i++) {
        lookup->parts[i].stride = offset;
    }
    lookup->n_rows = n_rows;
    lookup->matrix_dim = dim;
    lookup->matrix_bytes = bytes;
    lookup->rows_bytes = lookup_align_rows(bytes);
    return HPS_OK;
}

void lookup_reset_part(struct hps_lookup_part *part)
{
    part->rows = NULL;
    part->key_status = NULL;
    part->hits = NULL;
    part->hits_tier = HPS_TIER_GPU;
    part->n_unique = 0;
    part->n_defaulted = 0;
    part->n_unknown = 0;
    part->n_whole_bags = 0;
    part->finished = false;
    part->waits_for_gpu = false;
    part->whole = NULL;
    part->cached = NULL;
    part->gathered = NULL;
}

hps_status hps_lookup_plan(struct hps_lookup *lookup, struct hps_error *err)
{
    choose_policies(lookup);
    lookup->n_keys = 0;
    lookup->n_shaped = 0;
    lookup->n_pooled = 0;
    for (uint32_t i = 0; i < lookup->n_parts; i++) {
        struct hps_lookup_part *part = &lookup->parts[i];
        choose_form(lookup, part);
        hps_status status = size_part(part, err);
        if (status != HPS_OK) {
            return status;
        }
        lookup_reset_part(part);
        lookup->n_keys += part->n_keys;
        lookup->n_shaped += part->form == HPS_PART_SHAPED ? 1 : 0;
        lookup->n_pooled += part->form == HPS_PART_POOLED ? 1 : 0;
    }
    lookup->memory_shapes = lookup->n_shaped > 0 && !has_unshaping_tier(lookup, true);
    lookup->n_rows = 0;
    lookup->matrix_dim = 0;
    lookup->matrix_bytes = 0;
    lookup->n_reread = 0;
    lookup->begun = false;
    lookup->torn = false;
    lookup->gpu.asked = false;
    lookup->gpu.left = false;
    return lookup->layout == HPS_LAYOUT_CONCAT ? place_in_matrix(lookup, err)
                                               : place_per_table(lookup, err);
}

/* ---- rows that are gathered ------------------------------------------------------------------ */

void lookup_set_places(const struct hps_lookup *lookup, struct hps_lookup_part *part,
                       struct hps_batch *batch)
{
    if (part->form == HPS_PART_STORED) {
        batch->rows = part->rows;
    } else if (part->form == HPS_PART_SHAPED && lookup->memory_shapes && part->hits == NULL) {
        /* Otherwise the gpu, which was queried first, is offered rows from memory in their stored
         * form. */
        batch->shape = (struct hps_shape){
            .rows = part->rows, .stride = (size_t)part->stride, .dtype = part->out_dtype};
    }
}

uint64_t lookup_gathered_bytes(const struct hps_lookup_part *part)
{
    return lookup_align_rows((uint64_t)part->n_keys * part->table->row_bytes);
}

/* Whether rows of the part must be gathered. below: for tiers below memory. */
static bool will_gather(const struct hps_lookup_part *part, bool below)
{
    bool open = !part->finished && !hps_walk_done(&part->walk);
    bool somewhere = part->form == HPS_PART_STORED || part->gathered != NULL;

    return open && !somewhere && (below || part->walk.batch.shape.rows == NULL);
}

/* NULL: no memory. */
static uint8_t *take_memory(struct hps_lookup *lookup, size_t size, unsigned at)
{
    if (lookup->blocks == NULL) {
        return hps_arena_alloc(lookup->arena, size);
    }
    HPS_ASSERT(lookup->gathered[at] == NULL);
    lookup->gathered[at] = hps_block_new(lookup->blocks, size);
    return lookup->gathered[at] == NULL ? NULL : lookup->gathered[at]->data;
}

hps_status lookup_gather(struct hps_lookup *lookup, bool below, struct hps_error *err)
{
    bool any = lookup->n_shaped + lookup->n_pooled > 0;
    size_t size = 0;

    for (uint32_t i = 0; any && i < lookup->n_parts; i++) {
        const struct hps_lookup_part *part = &lookup->parts[i];
        size += will_gather(part, below) ? (size_t)lookup_gathered_bytes(part) : 0;
    }
    if (size == 0) {
        return HPS_OK;
    }
    uint8_t *at = take_memory(lookup, size, below ? 1 : 0);
    if (at == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory to gather %zu bytes of rows", size);
    }
    for (uint32_t i = 0; i < lookup->n_parts; i++) {
        struct hps_lookup_part *part = &lookup->parts[i];
        if (will_gather(part, below)) {
            part->gathered = at;
            part->walk.batch.rows = at;
            at += lookup_gathered_bytes(part);
        }
    }
    return HPS_OK;
}

void hps_lookup_release(struct hps_lookup *lookup)
{
    if (lookup->n_shaped + lookup->n_pooled == 0) {
        return; /* it has gathered no rows */
    }
    for (unsigned i = 0; i < HPS_LOOKUP_GATHERED_MAX; i++) {
        hps_block_unref(lookup->gathered[i]);
        lookup->gathered[i] = NULL;
    }
    for (uint32_t i = 0; i < lookup->n_parts; i++) {
        lookup->parts[i].gathered = NULL;
    }
}

uint64_t hps_lookup_scratch_bytes(const struct hps_lookup *lookup)
{
    bool gathers = lookup->n_shaped > 0 && has_unshaping_tier(lookup, false);
    bool any = gathers || lookup->n_pooled > 0 || lookup->version->gpu != NULL;
    uint64_t bytes = 0;

    for (uint32_t i = 0; any && i < lookup->n_parts; i++) {
        const struct hps_lookup_part *part = &lookup->parts[i];
        bool gathered = part->form == HPS_PART_POOLED || (part->form == HPS_PART_SHAPED && gathers);
        bytes += gathered ? lookup_gathered_bytes(part) : 0;
        bytes += lookup_gpu_scratch_bytes(lookup, part);
    }
    return bytes;
}

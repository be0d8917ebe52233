/* SPDX-License-Identifier: Apache-2.0
 *
 * Completes the rows of a part when its tiers have answered, or the lookup no longer waits for
 * them: default rows and status of keys that were not found, gathered rows, and duplicates. Bags
 * are added later (bags.c). On the thread that owns the lookup.
 */
#include <inttypes.h>
#include <string.h>

#include "base/assert.h"
#include "base/dtype.h"
#include "cache/lookup/internal.h"

static uint32_t n_duplicates(const struct hps_lookup_part *part)
{
    HPS_ASSERT(part->n_unique <= part->n_keys);
    return part->n_keys - part->n_unique;
}

static void count_status(struct hps_lookup_part *part, uint8_t status)
{
    part->n_unknown += status == HPS_KEY_UNKNOWN ? 1 : 0;
    part->n_defaulted += status == HPS_KEY_DEFAULTED ? 1 : 0;
}

/* The row of the reply for keys that were not found. NULL: no memory */
static const uint8_t *row_for_missing(struct hps_lookup *lookup, const struct hps_lookup_part *part,
                                      bool zero)
{
    const struct hps_table *table = part->table;

    if (!zero && part->out_dtype == table->dtype) {
        return table->default_row;
    }
    uint8_t *row = hps_arena_calloc(lookup->arena, 1, part->row_bytes);
    if (row != NULL && !zero) {
        hps_row_convert(row, part->out_dtype, table->default_row, table->dtype, table->dim);
    }
    return row;
}

/* Set rows and status of keys [begin, end) of the batch, which were not found. EXHAUSTED */
static hps_status put_missing(struct hps_lookup *lookup, struct hps_lookup_part *part,
                              uint32_t begin, uint32_t end, uint8_t status, bool zero)
{
    const uint32_t *slots = part->walk.batch.slots;
    const uint8_t *row = NULL;

    if (begin < end && part->form != HPS_PART_POOLED) {
        row = row_for_missing(lookup, part, zero);
        if (row == NULL) {
            return HPS_EXHAUSTED;
        }
    }
    for (uint32_t i = begin; i < end; i++) {
        if (row != NULL) {
            memcpy(part->rows + slots[i] * part->stride, row, part->row_bytes);
        }
        part->key_status[slots[i]] = status;
        count_status(part, status);
    }
    return HPS_OK;
}

/* Set rows and status of all keys that were not found. */
static hps_status put_defaults(struct hps_lookup *lookup, struct hps_lookup_part *part,
                               struct hps_error *err)
{
    uint32_t n_missing = part->walk.batch.n;
    uint32_t n_absent = part->walk.n_absent;

    if (n_missing + n_absent == 0) {
        return HPS_OK;
    }
    if (n_absent > 0 && lookup->unknown_policy == HPS_UNKNOWN_ERROR) {
        return hps_error_set(err, HPS_NOT_FOUND, "table '%s': unknown key %" PRId64,
                             part->table->name, (int64_t)part->walk.batch.keys[n_missing]);
    }
    hps_status status = HPS_EXHAUSTED;
    part->key_status = hps_arena_alloc(lookup->arena, part->n_keys);
    if (part->key_status != NULL) {
        memset(part->key_status, HPS_KEY_FOUND, part->n_keys);
        status = put_missing(lookup, part, 0, n_missing, HPS_KEY_DEFAULTED, false);
    }
    if (status == HPS_OK) {
        status = put_missing(lookup, part, n_missing, n_missing + n_absent, HPS_KEY_UNKNOWN,
                             lookup->unknown_policy == HPS_UNKNOWN_ZERO);
    }
    if (status != HPS_OK) {
        return hps_error_set(err, status, "table '%s': no memory for the status of %u keys",
                             part->table->name, part->n_keys);
    }
    for (uint32_t d = 0; d < n_duplicates(part); d++) {
        const struct hps_duplicate *duplicate = &part->duplicates[d];
        part->key_status[duplicate->index] = part->key_status[duplicate->first];
        count_status(part, part->key_status[duplicate->index]);
    }
    return HPS_OK;
}

/* Convert the gathered rows of keys [begin, begin + n) of the batch to their places. */
static void shape_rows(struct hps_lookup_part *part, uint32_t begin, uint32_t n)
{
    const struct hps_table *table = part->table;
    const uint32_t *slots = part->walk.batch.slots + begin;
    hps_row_convert_fn convert = hps_row_converter(part->out_dtype, table->dtype, false);

    HPS_ASSERT(n == 0 || part->gathered != NULL);
    for (uint32_t i = 0; i < n; i++) {
        convert(part->rows + slots[i] * part->stride,
                part->gathered + (size_t)slots[i] * table->row_bytes, table->dim);
    }
}

/* Convert all gathered rows: the rows of every tier that did not convert them itself. */
static void shape_gathered(const struct hps_lookup *lookup, struct hps_lookup_part *part)
{
    const struct hps_walk *walk = &part->walk;
    bool shaped = walk->batch.shape.rows != NULL;
    struct hps_tier tiers[HPS_TIERS_MAX];
    uint32_t n = hps_version_tiers(lookup->version, tiers);

    for (uint32_t i = 0; i < n; i++) {
        bool memory = (tiers[i].caps & (HPS_CAP_ON_DEVICE | HPS_CAP_BLOCKS)) == 0;
        if (!shaped || !memory) {
            shape_rows(part, hps_walk_found_begin(walk, tiers[i].kind),
                       hps_walk_found_n(walk, tiers[i].kind));
        }
    }
}

static void copy_duplicates(struct hps_lookup_part *part)
{
    for (uint32_t d = 0; d < n_duplicates(part); d++) {
        const struct hps_duplicate *duplicate = &part->duplicates[d];
        HPS_DEBUG_ASSERT(duplicate->first < duplicate->index);
        memcpy(part->rows + duplicate->index * part->stride,
               part->rows + duplicate->first * part->stride, part->row_bytes);
    }
}

/* Whether a tier takes rows of the part that are found below it, at once or later. */
static bool has_place(const struct hps_lookup *lookup, const struct hps_lookup_part *part)
{
    struct hps_tier tiers[HPS_TIERS_MAX];
    uint32_t n = hps_version_tiers(lookup->version, tiers);
    bool has = false;

    for (uint32_t i = 0; i < n && !has; i++) {
        has = (tiers[i].caps & (HPS_CAP_INSERTS | HPS_CAP_BACKFILLED)) != 0 &&
              ((tiers[i].caps & HPS_CAP_ON_DEVICE) == 0 || lookup_gpu_caches(lookup, part));
    }
    return has;
}

/* Queue keys that were not waited for, if the policy wants that and a tier can take their rows. */
static void insert_behind(struct hps_lookup *lookup, const struct hps_lookup_part *part)
{
    const struct hps_batch *missing = &part->walk.batch;

    if (missing->n > 0 && lookup->miss_policy != HPS_MISS_MEMORY_ONLY &&
        lookup->insertion != NULL && has_place(lookup, part)) {
        hps_insertion_add(lookup->insertion, lookup->version, part->table, missing->keys,
                          missing->n);
    }
}

hps_status lookup_finish_part(struct hps_lookup *lookup, struct hps_lookup_part *part,
                              struct hps_error *err)
{
    HPS_ASSERT(!part->finished);
    HPS_ASSERT(part->rows != NULL);
    hps_status status = put_defaults(lookup, part, err);
    if (status != HPS_OK) {
        return status;
    }
    insert_behind(lookup, part);
    if (part->form == HPS_PART_SHAPED) {
        shape_gathered(lookup, part);
    }
    if (part->form != HPS_PART_POOLED) {
        copy_duplicates(part);
    }
    part->finished = true;
    return HPS_OK;
}

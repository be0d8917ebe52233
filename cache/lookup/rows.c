/* SPDX-License-Identifier: Apache-2.0
 *
 * The rows of a part, once its tiers have answered or are not waited for any longer: default rows
 * and the status of keys that were not found, the type that was asked for, and the duplicates. On
 * the thread that holds the look-up.
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

/* Default rows and status of keys [begin, end) of the batch, none of which was found. */
static void put_default_range(struct hps_lookup_part *part, uint32_t begin, uint32_t end,
                              uint8_t status, bool zero)
{
    const struct hps_batch *batch = &part->walk.batch;
    const struct hps_table *table = part->table;

    for (uint32_t i = begin; i < end; i++) {
        uint8_t *row = batch->rows + (size_t)batch->slots[i] * table->row_bytes;

        if (zero) {
            memset(row, 0, table->row_bytes);
        } else {
            memcpy(row, table->default_row, table->row_bytes);
        }
        part->key_status[batch->slots[i]] = status;
        count_status(part, status);
    }
}

/* The same for all keys that were not found. */
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
    part->key_status = hps_arena_alloc(lookup->arena, part->n_keys);
    if (part->key_status == NULL) {
        return hps_error_set(err, HPS_EXHAUSTED, "table '%s': no memory for the status of %u keys",
                             part->table->name, part->n_keys);
    }
    memset(part->key_status, HPS_KEY_FOUND, part->n_keys);
    put_default_range(part, 0, n_missing, HPS_KEY_DEFAULTED, false);
    put_default_range(part, n_missing, n_missing + n_absent, HPS_KEY_UNKNOWN,
                      lookup->unknown_policy == HPS_UNKNOWN_ZERO);
    for (uint32_t d = 0; d < n_duplicates(part); d++) {
        const struct hps_duplicate *duplicate = &part->duplicates[d];
        part->key_status[duplicate->index] = part->key_status[duplicate->first];
        count_status(part, part->key_status[duplicate->index]);
    }
    return HPS_OK;
}

static void convert_row(const struct hps_lookup *lookup, struct hps_lookup_part *part, size_t i)
{
    const struct hps_table *table = part->table;

    hps_dtype_convert(part->rows + i * part->row_bytes, lookup_output_type(lookup),
                      part->rows + i * table->row_bytes, table->dtype, table->dim);
}

/* Change the type of all rows but duplicates, in place: from the last one when rows grow. */
static void convert_rows(const struct hps_lookup *lookup, struct hps_lookup_part *part)
{
    uint32_t n_dup = n_duplicates(part);

    if (part->row_bytes > part->table->row_bytes) {
        for (uint32_t i = part->n_keys, d = n_dup; i-- > 0;) {
            if (d > 0 && part->duplicates[d - 1].index == i) {
                d--;
            } else {
                convert_row(lookup, part, i);
            }
        }
        return;
    }
    for (uint32_t i = 0, d = 0; i < part->n_keys; i++) {
        if (d < n_dup && part->duplicates[d].index == i) {
            d++;
        } else {
            convert_row(lookup, part, i);
        }
    }
}

/* A tier takes rows of the part that are found below it: at once, or behind the answers. */
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

/* What was not waited for is fetched behind the answer, if that was the bargain and there is a tier
 * to put it into. */
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
    if (lookup_output_type(lookup) != part->table->dtype) {
        convert_rows(lookup, part);
    }
    for (uint32_t d = 0; d < n_duplicates(part); d++) {
        const struct hps_duplicate *duplicate = &part->duplicates[d];
        HPS_DEBUG_ASSERT(duplicate->first < duplicate->index);
        memcpy(part->rows + (size_t)duplicate->index * part->row_bytes,
               part->rows + (size_t)duplicate->first * part->row_bytes, part->row_bytes);
    }
    part->finished = true;
    return HPS_OK;
}

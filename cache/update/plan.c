/* SPDX-License-Identifier: Apache-2.0
 *
 * Turns a batch into writes. Every part is checked. Then only the last write of each key is kept;
 * with row versions, the write with the highest version, unless a higher one is stored. Parts of
 * which all writes are kept are used without a copy. On the updater's thread.
 */
#include <inttypes.h>
#include <string.h>

#include "base/assert.h"
#include "base/hash.h"
#include "base/heap.h"
#include "base/index_set.h"
#include "base/rows/finite.h"
#include "cache/update/internal.h"

/* ---- checks ---------------------------------------------------------------------------------- */

hps_status hps_update_check(const struct hps_version *version, const struct hps_update_part *part,
                            bool nan_allowed, struct hps_error *err)
{
    if (part->table_id >= version->n_tables) {
        return hps_error_set(err, HPS_INVALID, "table %" PRIu32 ": model \"%s\" has %" PRIu32,
                             part->table_id, version->model, version->n_tables);
    }
    const struct hps_table *table = &version->tables[part->table_id];
    if (version->row_versions && part->row_versions == NULL && part->n > 0) {
        return hps_error_set(err, HPS_INVALID, "table '%s': keys without row versions",
                             table->name);
    }
    if (part->rows == NULL || part->n == 0) {
        return HPS_OK;
    }
    if (part->row_bytes != table->row_bytes) {
        return hps_error_set(err, HPS_INVALID,
                             "table '%s': rows of %" PRIu32 " bytes, expected %" PRIu32
                             " (dim %" PRIu32 ")",
                             table->name, part->row_bytes, table->row_bytes, table->dim);
    }
    uint32_t at = 0;
    size_t bad = nan_allowed
                     ? part->n
                     : hps_first_not_finite(table->dtype, part->rows, table->dim, part->n, &at);
    if (bad < part->n) {
        return hps_error_set(
            err, HPS_INVALID, "table '%s': NaN or Inf in the row of key %" PRId64 ", %s",
            table->name, (int64_t)part->keys[bad], hps_value_name(table->dim, at).text);
    }
    return HPS_OK;
}

static hps_status check_batch(const struct hps_version *version,
                              const struct hps_update_batch *batch, uint32_t *out_n_keys,
                              struct hps_error *err)
{
    uint64_t n_keys = 0;
    for (uint32_t i = 0; i < batch->n_parts; i++) {
        hps_status status = hps_update_check(version, &batch->parts[i], batch->nan_allowed, err);
        if (status != HPS_OK) {
            return status;
        }
        n_keys += batch->parts[i].n;
    }
    if (n_keys > HPS_UPDATE_KEYS_MAX) {
        return hps_error_set(err, HPS_INVALID,
                             "got a batch of %" PRIu64 " keys, expected at most %d", n_keys,
                             HPS_UPDATE_KEYS_MAX);
    }
    *out_n_keys = (uint32_t)n_keys;
    return HPS_OK;
}

/* ---- the last write of each key -------------------------------------------------------------- */

/* The place in the batch of one key, by the key's number. */
struct place {
    uint32_t part;
    uint32_t index; /* in the keys of the part */
};

/* The keys of all writes seen so far. The batch is read backwards. */
struct seen {
    const struct hps_update_part *parts;
    struct place *places; /* [n_keys] by number, filled from the last one down */
    struct hps_index_set set;
    uint32_t number; /* of the key being searched */
};

static hps_key key_of(const struct seen *seen, uint32_t number)
{
    const struct place *place = &seen->places[number];
    return seen->parts[place->part].keys[place->index];
}

static uint32_t table_of(const struct seen *seen, uint32_t number)
{
    return seen->parts[seen->places[number].part].table_id;
}

static bool is_same_key(const void *ctx, uint32_t number)
{
    const struct seen *seen = ctx;
    return key_of(seen, number) == key_of(seen, seen->number) &&
           table_of(seen, number) == table_of(seen, seen->number);
}

/* The set's place for the key with this number: 0, or 1 + the number of a later write of it. */
static uint32_t *seen_find(struct seen *seen, uint32_t number)
{
    uint64_t hash = hps_mix64((key_of(seen, number) ^ hps_hash_secret()) +
                              table_of(seen, number) * HPS_HASH_GOLDEN);
    seen->number = number;
    return hps_index_set_find(&seen->set, hash, is_same_key, seen);
}

static bool has_higher(const struct seen *seen, uint32_t number, uint32_t other)
{
    const struct place *one = &seen->places[number];
    const struct place *two = &seen->places[other];
    return seen->parts[one->part].row_versions[one->index] >
           seen->parts[two->part].row_versions[two->index];
}

/* Mark the writes that are superseded by another write of their key. lost: [n_keys] zeros, in the
 * order of the batch; n_lost: per part. compare: the highest row version wins; without it, or if
 * versions are equal, the last write wins. */
static hps_status find_lost(const struct hps_update_batch *batch, bool compare, uint32_t n_keys,
                            uint8_t *lost, uint32_t *n_lost)
{
    HPS_ASSERT(n_keys <= HPS_UPDATE_KEYS_MAX);
    uint64_t n_places = hps_index_set_places(n_keys);
    uint32_t *set = hps_alloc(n_places * sizeof(*set));
    struct seen seen = {.parts = batch->parts, .places = hps_alloc(n_keys * sizeof(struct place))};
    hps_status status = set != NULL && seen.places != NULL ? HPS_OK : HPS_NO_MEMORY;
    if (status == HPS_OK) {
        hps_index_set_init(&seen.set, set, n_places);
    }
    for (uint32_t p = batch->n_parts; p-- > 0 && status == HPS_OK;) {
        for (uint32_t i = batch->parts[p].n; i-- > 0;) {
            uint32_t number = --n_keys;
            seen.places[number] = (struct place){p, i};
            uint32_t *noted = seen_find(&seen, number);
            uint32_t loser = number;
            if (*noted == 0) {
                *noted = number + 1;
                continue;
            }
            if (compare && has_higher(&seen, number, *noted - 1)) {
                loser = *noted - 1;
                *noted = number + 1;
            }
            lost[loser] = 1;
            n_lost[seen.places[loser].part]++;
        }
    }
    hps_free(seen.places);
    hps_free(set);
    return status;
}

/* Drop writes of keys with a higher row version in the store. */
static hps_status find_older(const struct hps_version *version,
                             const struct hps_update_batch *batch, uint8_t *lost, uint32_t *n_lost,
                             struct update_plan *plan, struct hps_error *err)
{
    hps_status status = HPS_OK;
    for (uint32_t p = 0; p < batch->n_parts && status == HPS_OK; p++) {
        uint32_t n_older = 0;
        if (n_lost[p] < batch->parts[p].n) {
            status = update_versions_compare(version, &batch->parts[p], lost, &n_older, err);
        }
        n_lost[p] += n_older;
        plan->n_older += n_older;
        lost += batch->parts[p].n;
    }
    return status;
}

/* Copy the kept keys and rows of a part into one write. */
static hps_status copy_kept(const struct hps_update_part *part, const uint8_t *lost,
                            struct hps_write *write, void **out_owned)
{
    size_t row_bytes = part->rows == NULL ? 0 : write->table->row_bytes;
    hps_key *keys = hps_alloc(write->n * (sizeof(*keys) + row_bytes));
    if (keys == NULL) {
        return HPS_NO_MEMORY;
    }
    uint8_t *rows = (uint8_t *)(keys + write->n);
    uint32_t n = 0;
    for (uint32_t i = 0; i < part->n; i++) {
        if (lost[i] != 0) {
            continue;
        }
        keys[n] = part->keys[i];
        if (part->rows != NULL) {
            memcpy(rows + n * row_bytes, part->rows + i * row_bytes, row_bytes);
        }
        n++;
    }
    HPS_ASSERT(n == write->n);
    write->keys = keys;
    write->rows = part->rows == NULL ? NULL : rows;
    *out_owned = keys;
    return HPS_OK;
}

static hps_status make_writes(const struct hps_version *version,
                              const struct hps_update_batch *batch, const uint8_t *lost,
                              const uint32_t *n_lost, struct update_plan *plan)
{
    for (uint32_t p = 0; p < batch->n_parts; p++) {
        const struct hps_update_part *part = &batch->parts[p];
        uint32_t n = part->n - n_lost[p];
        struct hps_write *write = &plan->writes[plan->n_writes];
        *write = (struct hps_write){.table = &version->tables[part->table_id],
                                    .keys = part->keys,
                                    .rows = part->rows,
                                    .n = n};
        plan->spans[plan->n_writes] = batch->part_spans != NULL ? batch->part_spans[p] : 0;
        if (n > 0 && n < part->n) {
            hps_status status = copy_kept(part, lost, write, &plan->owned[plan->n_writes]);
            if (status != HPS_OK) {
                return status;
            }
        }
        plan->n_writes += n > 0 ? 1 : 0;
        plan->n_put += part->rows != NULL ? n : 0;
        plan->n_deleted += part->rows == NULL ? n : 0;
        lost += part->n;
    }
    return HPS_OK;
}

/* Append, after the writes of rows, one write of row versions for each of them, with the same keys.
 */
static hps_status make_version_writes(const struct hps_version *version,
                                      const struct hps_update_batch *batch, const uint8_t *lost,
                                      const uint32_t *n_lost, struct update_plan *plan)
{
    const struct hps_write *rows = plan->writes;
    for (uint32_t p = 0; p < batch->n_parts; lost += batch->parts[p].n, p++) {
        const struct hps_update_part *part = &batch->parts[p];
        if (n_lost[p] == part->n) {
            continue;
        }
        uint32_t at = plan->n_writes + plan->n_version_writes;
        const uint64_t *versions = part->row_versions;
        if (n_lost[p] > 0) {
            uint64_t *kept = hps_alloc(rows->n * sizeof(*kept));
            if (kept == NULL) {
                return HPS_NO_MEMORY;
            }
            plan->owned[at] = kept;
            for (uint32_t i = 0, n = 0; i < part->n; i++) {
                if (lost[i] == 0) {
                    kept[n++] = part->row_versions[i];
                }
            }
            versions = kept;
        }
        plan->writes[at] =
            (struct hps_write){.table = &version->updates->version_tables[part->table_id],
                               .keys = rows->keys,
                               .rows = (const uint8_t *)versions,
                               .n = rows->n};
        plan->n_version_writes++;
        rows++;
    }
    return HPS_OK;
}

static hps_status make_all(const struct hps_version *version, const struct hps_update_batch *batch,
                           bool compare, const uint8_t *lost, const uint32_t *n_lost,
                           struct update_plan *plan, struct hps_error *err)
{
    hps_status status = make_writes(version, batch, lost, n_lost, plan);
    if (status == HPS_OK && compare) {
        status = make_version_writes(version, batch, lost, n_lost, plan);
    }
    return status == HPS_OK ? HPS_OK : hps_error_set(err, status, "no memory for a batch");
}

hps_status update_plan_make(const struct hps_version *version, const struct hps_update_batch *batch,
                            bool compare, struct update_plan *out_plan, struct hps_error *err)
{
    HPS_ASSERT(!compare || version->updates->version_tables != NULL);
    struct update_plan plan = {0};
    uint32_t n_keys = 0;
    hps_status status = check_batch(version, batch, &n_keys, err);
    if (status != HPS_OK) {
        return status;
    }
    size_t n_writes_max = (size_t)batch->n_parts * (compare ? 2 : 1);
    uint8_t *lost = hps_calloc(n_keys, 1);
    uint32_t *n_lost = hps_calloc(batch->n_parts, sizeof(*n_lost));
    plan.writes = hps_calloc(n_writes_max, sizeof(*plan.writes));
    plan.owned = hps_calloc(n_writes_max, sizeof(*plan.owned));
    plan.spans = hps_calloc(batch->n_parts, sizeof(*plan.spans));
    status = HPS_NO_MEMORY;
    if (lost != NULL && n_lost != NULL && plan.writes != NULL && plan.owned != NULL &&
        plan.spans != NULL) {
        status = find_lost(batch, compare, n_keys, lost, n_lost);
    }
    if (status != HPS_OK) {
        hps_error_set(err, status, "no memory for a batch of %" PRIu32 " keys", n_keys);
    } else if (compare) {
        status = find_older(version, batch, lost, n_lost, &plan, err);
    }
    if (status == HPS_OK) {
        status = make_all(version, batch, compare, lost, n_lost, &plan, err);
    }
    hps_free(lost);
    hps_free(n_lost);
    if (status != HPS_OK) {
        update_plan_free(&plan);
        return status;
    }
    *out_plan = plan;
    return HPS_OK;
}

void update_plan_free(struct update_plan *plan)
{
    uint32_t n = plan->n_writes + plan->n_version_writes;
    for (uint32_t i = 0; plan->owned != NULL && i < n; i++) {
        hps_free(plan->owned[i]);
    }
    hps_free(plan->owned);
    hps_free(plan->spans);
    hps_free(plan->writes);
    *plan = (struct update_plan){0};
}

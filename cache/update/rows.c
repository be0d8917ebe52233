/* SPDX-License-Identifier: Apache-2.0
 *
 * Counts the rows of a version. A load counts its rows. If the lowest tier is memory, the rows that
 * an update adds and removes are known. For a store on disk, a sample of each batch's keys is
 * looked up before the batch is written. The host map is read if it is complete, else the store.
 * Keys not found are new. Each sampled key counts for its share of the batch. So the sum over many
 * batches is right, and rows that are written again and again do not raise it. The counts are
 * stored with the batch. On the updater's thread, except for the views.
 */
#include <math.h>
#include <string.h>

#include "backends/store_limits.h"
#include "base/assert.h"
#include "base/hash.h"
#include "base/heap.h"
#include "cache/update/internal.h"

/* Sampled keys per batch: about 100 us in memory, and the same in RocksDB if it has them in memory.
 * They are read PIECE_KEYS at a time, so that the rows need little memory. */
enum { MEMORY_KEYS = 1024, DISK_KEYS = 32, PIECE_KEYS = 64 };

static struct hps_space *lowest_tier(const struct hps_version *version)
{
    return version->tiers[version->n_tiers - 1];
}

/* The tier that tells which keys have rows. */
static struct hps_space *sampled_tier(const struct hps_version *version)
{
    return hps_version_host_complete(version) ? version->tiers[0] : lowest_tier(version);
}

hps_status hps_update_known(const struct hps_version *version, uint32_t table_id,
                            const hps_key *keys, uint32_t n, bool *out_known)
{
    const struct hps_table *table = &version->tables[table_id];
    struct hps_space *space = sampled_tier(version);
    if (update_is_shared(space)) {
        return HPS_UNIMPLEMENTED;
    }
    hps_key *copy = hps_alloc(n * (sizeof(*copy) + sizeof(uint32_t) + table->row_bytes));
    if (copy == NULL) {
        return HPS_NO_MEMORY;
    }
    uint32_t *slots = (uint32_t *)(void *)(copy + n);
    memcpy(copy, keys, n * sizeof(*copy));
    for (uint32_t i = 0; i < n; i++) {
        slots[i] = i;
    }
    struct hps_batch batch = {.keys = copy, .slots = slots, .rows = (uint8_t *)(slots + n), .n = n};
    hps_status status = update_read_tier(space, table, &batch);
    for (uint32_t i = 0; i < n && status == HPS_OK; i++) {
        out_known[slots[i]] = i >= batch.n;
    }
    hps_free(copy);
    return status;
}

/* ---- a batch --------------------------------------------------------------------------------- */

struct sample {
    struct hps_space *space; /* the tier that is sampled */
    struct update_rows *rows;
    double weight;  /* keys of the batch per sampled key */
    uint8_t *found; /* [PIECE_KEYS] rows, not used */
    hps_key keys[PIECE_KEYS];
    uint32_t slots[PIECE_KEYS];
    uint32_t n;
};

/* Read the sampled keys of one write. If the store fails, no row counts as added or removed. */
static void ask(struct sample *sample, const struct hps_write *write)
{
    struct hps_batch batch = {
        .keys = sample->keys, .slots = sample->slots, .rows = sample->found, .n = sample->n};
    uint32_t n_new = 0;
    for (uint32_t i = 0; i < sample->n; i++) {
        sample->slots[i] = i;
    }
    if (sample->n > 0 && update_read_tier(sample->space, write->table, &batch) == HPS_OK) {
        n_new = batch.n;
    } else if (write->rows == NULL) {
        n_new = sample->n; /* so that none counts as removed */
    }
    double n = write->rows != NULL ? n_new : sample->n - n_new;
    update_rows_note(sample->rows, write, (uint64_t)llround(n * sample->weight));
    sample->n = 0;
}

static uint64_t keys_of(const struct update_plan *plan)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < plan->n_writes; i++) {
        n += plan->writes[i].n;
    }
    return n;
}

static uint32_t row_bytes_max(const struct update_plan *plan)
{
    uint32_t bytes = 0;
    for (uint32_t i = 0; i < plan->n_writes; i++) {
        uint32_t its = plan->writes[i].table->row_bytes;
        bytes = its > bytes ? its : bytes;
    }
    return bytes;
}

/* Sample every `step`-th key of the batch, from a varying first key; a small batch is read whole.
 */
hps_status update_rows_sample(const struct hps_version *version, const struct update_plan *plan,
                              struct update_rows *rows)
{
    bool memory = hps_version_host_complete(version);
    uint64_t n_max = memory ? MEMORY_KEYS : DISK_KEYS;
    uint64_t n_keys = keys_of(plan);
    uint64_t step = (n_keys + n_max - 1) / n_max;
    struct sample sample = {.space = sampled_tier(version), .rows = rows};
    if (n_keys == 0) {
        return HPS_OK;
    }
    sample.found = hps_alloc((size_t)PIECE_KEYS * row_bytes_max(plan));
    if (sample.found == NULL) {
        return HPS_NO_MEMORY;
    }
    uint64_t at = hps_mix64(hps_update_sequence(version)) % step;
    uint64_t n_sampled = (n_keys - at + step - 1) / step;
    sample.weight = (double)n_keys / (double)n_sampled;
    for (uint32_t i = 0; i < plan->n_writes; i++) {
        const struct hps_write *write = &plan->writes[i];
        for (; at < write->n; at += step) {
            sample.keys[sample.n++] = write->keys[at];
            if (sample.n == PIECE_KEYS) {
                ask(&sample, write);
            }
        }
        at -= write->n;
        ask(&sample, write);
    }
    hps_free(sample.found);
    return HPS_OK;
}

void update_rows_note(struct update_rows *rows, const struct hps_write *write, uint64_t n)
{
    HPS_ASSERT(write->table->id < rows->n_tables);
    rows->changed[write->table->id] += write->rows != NULL ? (int64_t)n : -(int64_t)n;
}

hps_status update_rows_make(const struct hps_version *version, const struct update_plan *plan,
                            struct update_rows *out_rows)
{
    struct update_rows *rows = out_rows;
    *rows = (struct update_rows){.n_tables = version->n_tables};
    if (plan->n_writes == 0) {
        return HPS_OK;
    }
    rows->changed = hps_calloc(version->n_tables, sizeof(*rows->changed));
    rows->touched = hps_calloc(version->n_tables, sizeof(*rows->touched));
    rows->keys = hps_calloc(plan->n_writes, sizeof(*rows->keys));
    if (rows->changed == NULL || rows->touched == NULL || rows->keys == NULL) {
        update_rows_free(rows);
        return HPS_NO_MEMORY;
    }
    for (uint32_t i = 0; i < plan->n_writes; i++) {
        rows->touched[plan->writes[i].table->id] = true;
    }
    for (uint32_t i = 0; i < version->n_tables; i++) {
        rows->changed[i] = atomic_load(&version->updates->rows_changed[i]);
    }
    return HPS_OK;
}

void update_rows_publish(struct hps_updates *updates, const struct update_rows *rows)
{
    for (uint32_t i = 0; rows->changed != NULL && i < rows->n_tables; i++) {
        atomic_store(&updates->rows_changed[i], rows->changed[i]);
    }
    if (rows->changed != NULL) {
        atomic_store(&updates->rows_updated, true);
    }
}

void update_rows_free(struct update_rows *rows)
{
    hps_free(rows->changed);
    hps_free(rows->touched);
    hps_free(rows->keys);
    *rows = (struct update_rows){0};
}

/* ---- views ----------------------------------------------------------------------------------- */

static bool updated(const struct hps_version *version)
{
    return version->updates != NULL && atomic_load(&version->updates->rows_updated);
}

/* Whether the only copy is in a host map that counts exactly. out_usage: set if so. */
static bool counted(const struct hps_version *version, struct hps_store_usage *out_usage)
{
    if (version->n_tiers == 0 || lowest_tier(version)->store->ops->tier != HPS_TIER_HOST) {
        return false;
    }
    *out_usage = (struct hps_store_usage){.rows_estimated = true};
    lowest_tier(version)->store->ops->space_usage(lowest_tier(version), out_usage);
    return !out_usage->rows_estimated;
}

uint64_t hps_update_table_rows(const struct hps_version *version, uint32_t table_id,
                               bool *out_estimated)
{
    uint64_t n = version->tables[table_id].n_rows;
    struct hps_store_usage usage;
    bool all_counted = counted(version, &usage);
    /* It is unknown which table's rows were dropped, and which of them came again. */
    *out_estimated = all_counted && usage.n_rows_dropped > 0;
    if (!updated(version)) {
        return n;
    }
    *out_estimated = *out_estimated || lowest_tier(version)->store->ops->tier != HPS_TIER_HOST;
    int64_t changed = atomic_load(&version->updates->rows_changed[table_id]);
    return changed < 0 && (uint64_t)-changed > n ? 0 : n + (uint64_t)changed;
}

uint64_t hps_update_dense_rows(const struct hps_version *version, uint32_t table_id)
{
    if (version->n_tiers == 0) { /* only planned */
        return 0;
    }
    struct hps_space *host = version->tiers[0]; /* the map is the highest store, if there is one */
    const struct hps_store_limits_ops *limits = host->store->ops->limits;
    return limits != NULL ? limits->dense_rows(host, &version->tables[table_id]) : 0;
}

uint64_t hps_update_rows(const struct hps_version *version, bool *out_estimated)
{
    struct hps_store_usage usage = {.rows_estimated = true};
    uint64_t n = 0;
    int64_t changed = 0;
    *out_estimated = false;
    if (counted(version, &usage)) {
        return usage.n_rows;
    }
    for (uint32_t i = 0; i < version->n_tables; i++) {
        n += version->tables[i].n_rows;
    }
    if (!updated(version)) {
        return n;
    }
    const struct hps_space *lowest = lowest_tier(version);
    *out_estimated = lowest->store->ops->tier != HPS_TIER_HOST;
    lowest->store->ops->space_usage(lowest_tier(version), &usage);
    if (!usage.rows_estimated) {
        return usage.n_rows;
    }
    for (uint32_t i = 0; i < version->n_tables; i++) {
        changed += atomic_load(&version->updates->rows_changed[i]);
    }
    return changed < 0 && (uint64_t)-changed > n ? 0 : n + (uint64_t)changed;
}

void hps_update_usage(const struct hps_version *version, struct hps_space *space,
                      struct hps_store_usage *out_usage)
{
    struct hps_store_usage usage;
    space->store->ops->space_usage(space, &usage);
    if (usage.rows_estimated) {
        usage.n_rows = hps_update_rows(version, &usage.rows_estimated);
    }
    *out_usage = usage;
}

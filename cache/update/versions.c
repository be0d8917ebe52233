/* SPDX-License-Identifier: Apache-2.0
 *
 * Row versions: for each key that updates have written or deleted, the version of that update. An
 * older update that arrives later through another partition is then left out. Versions are stored
 * as rows of 8 bytes in a hidden table per table, in the same write as the rows; a delete leaves
 * its version there. A row loaded from files has no version, so any update replaces it. On the
 * updater's thread.
 */
#include "base/assert.h"
#include "base/heap.h"
#include "cache/update/internal.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "versions are stored as they lie");

static const struct hps_space *lowest_tier(const struct hps_version *version)
{
    return version->tiers[version->n_tiers - 1];
}

hps_status update_versions_open(const struct hps_version *version, struct hps_updates *updates,
                                struct hps_error *err)
{
    const struct hps_store_ops *ops = lowest_tier(version)->store->ops;
    if (!version->row_versions) {
        return HPS_OK;
    }
    if (ops->durable == NULL) {
        return hps_error_set(
            err, HPS_PRECONDITION,
            "model '%s': row_versions needs a persistent store, which tier %s is not",
            version->model, ops->name);
    }
    updates->version_tables = hps_calloc(version->n_tables, sizeof(*updates->version_tables));
    if (updates->version_tables == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for %u tables", version->n_tables);
    }
    for (uint32_t i = 0; i < version->n_tables; i++) {
        HPS_ASSERT(i < HPS_TABLE_HIDDEN);
        updates->version_tables[i] = (struct hps_table){.name = version->tables[i].name,
                                                        .id = i | HPS_TABLE_HIDDEN,
                                                        .dim = sizeof(uint64_t) / sizeof(float),
                                                        .row_bytes = sizeof(uint64_t),
                                                        .dtype = HPS_DTYPE_FP32};
    }
    return HPS_OK;
}

/* The stored versions of the keys that are not lost: stored[i] is the version of keys[i], 0: none.
 */
static hps_status read_stored(const struct hps_version *version, const struct hps_update_part *part,
                              const uint8_t *lost, uint64_t *stored)
{
    struct hps_space *space = version->tiers[version->n_tiers - 1];
    hps_key *keys = hps_alloc((size_t)part->n * (sizeof(hps_key) + sizeof(uint32_t)));
    if (keys == NULL) {
        return HPS_NO_MEMORY;
    }
    struct hps_batch batch = {
        .keys = keys, .slots = (uint32_t *)(void *)(keys + part->n), .rows = (uint8_t *)stored};
    for (uint32_t i = 0; i < part->n; i++) {
        if (lost[i] == 0) {
            batch.keys[batch.n] = part->keys[i];
            batch.slots[batch.n++] = i;
        }
    }
    hps_status status =
        update_read_tier(space, &version->updates->version_tables[part->table_id], &batch);
    hps_free(keys);
    return status;
}

hps_status update_versions_compare(const struct hps_version *version,
                                   const struct hps_update_part *part, uint8_t *lost,
                                   uint32_t *out_n_older, struct hps_error *err)
{
    uint64_t *stored = hps_calloc(part->n, sizeof(*stored));
    HPS_ASSERT(version->row_versions && part->row_versions != NULL);
    HPS_ASSERT(part->table_id < version->n_tables);
    uint32_t n_older = 0;
    hps_status status = stored == NULL ? HPS_NO_MEMORY : read_stored(version, part, lost, stored);
    if (status != HPS_OK) {
        hps_free(stored);
        return hps_error_set(err, status, "table '%s': the row versions of %u keys cannot be read",
                             version->tables[part->table_id].name, part->n);
    }
    for (uint32_t i = 0; i < part->n; i++) {
        /* An equal version is applied again: after a failure some tier may lack it. */
        if (lost[i] == 0 && stored[i] > part->row_versions[i]) {
            lost[i] = 1;
            n_older++;
        }
    }
    hps_free(stored);
    *out_n_older = n_older;
    return HPS_OK;
}

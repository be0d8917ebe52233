/* SPDX-License-Identifier: Apache-2.0
 *
 * Lookups, which divide the keys of each table among the base and the inner store; and writes,
 * which go to the inner store together with the marks of their keys. Blocks on disk. Thread-safe.
 */
#include <string.h>

#include "backends/basefile/internal.h"
#include "base/assert.h"
#include "base/heap.h"

/* ---- lookups --------------------------------------------------------------------------------- */

/* Whether the row of a key is in the base. */
static bool in_base(const struct hps_basefile *base, hps_key key)
{
    uint64_t i = key - base->record.first;
    return i < base->record.n && hps_basefile_exists(base, i) &&
           !hps_basefile_bit(base->changed, i);
}

/* Divide a batch: first the keys of the inner store, then the keys of the base, which may be NULL.
 */
static void divide(const struct hps_part_batch *part, struct hps_basefile *base,
                   struct hps_part_batch *inner, struct hps_basefile_want *want)
{
    struct hps_batch batch = part->batch;
    uint32_t n = batch.n;
    for (uint32_t i = 0; base != NULL && i < n;) {
        if (in_base(base, batch.keys[i])) {
            hps_batch_swap(&batch, i, --n);
        } else {
            i++;
        }
    }
    *inner = *part;
    inner->batch.n = n;
    *want = (struct hps_basefile_want){.base = base, .batch = batch};
    want->batch.keys += n;
    want->batch.slots += n;
    want->batch.n -= n;
}

/* Both divisions have been looked up: put the keys that are missing first. */
static void collect(struct hps_part_batch *part, const struct hps_part_batch *inner,
                    const struct hps_basefile_want *want)
{
    uint32_t n = inner->batch.n;
    uint32_t first = (uint32_t)(want->batch.keys - part->batch.keys);
    for (uint32_t i = 0; i < want->batch.n; i++) {
        hps_batch_swap(&part->batch, n++, first + i);
    }
    part->batch.n = n;
}

hps_status hps_basefile_get_many(struct hps_space *base, const struct hps_call *call,
                                 struct hps_part_batch *parts, uint32_t n_parts)
{
    struct hps_basefile_space *space = (struct hps_basefile_space *)base;
    const struct hps_store_ops *inner_ops = space->inner->store->ops;
    size_t bytes = n_parts * (sizeof(struct hps_part_batch) + sizeof(struct hps_basefile_want));
    if (!atomic_load(&space->any)) {
        return inner_ops->get_many(space->inner, call, parts, n_parts);
    }
    struct hps_part_batch *inner = hps_alloc(bytes);
    if (inner == NULL) {
        return HPS_NO_MEMORY;
    }
    struct hps_basefile_want *wants = (struct hps_basefile_want *)(void *)(inner + n_parts);
    uint32_t n_inner = 0;
    unsigned epoch = hps_basefile_enter(space);
    for (uint32_t i = 0; i < n_parts; i++) {
        divide(&parts[i], hps_basefile_base_of(space, parts[i].table), &inner[i], &wants[i]);
        n_inner += inner[i].batch.n;
    }
    hps_status status =
        n_inner > 0 ? inner_ops->get_many(space->inner, call, inner, n_parts) : HPS_OK;
    hps_status read = hps_basefile_read(hps_basefile_of(base), call, wants, n_parts);
    hps_basefile_leave(space, epoch);
    for (uint32_t i = 0; i < n_parts; i++) {
        collect(&parts[i], &inner[i], &wants[i]);
    }
    hps_free(inner);
    return status == HPS_OK ? read : status;
}

/* ---- writes ---------------------------------------------------------------------------------- */

/* Collect the keys of a write that have no mark yet. */
static uint32_t unmarked(const struct hps_basefile *base, const struct hps_write *write,
                         hps_key *keys)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < write->n; i++) {
        uint64_t number = write->keys[i] - base->record.first;
        if (number < base->record.n && !hps_basefile_bit(base->changed, number)) {
            keys[n++] = write->keys[i];
        }
    }
    return n;
}

/* The inner store has the write: set the bits. */
static void bits_follow(struct hps_basefile *base, const struct hps_write *write)
{
    for (uint32_t i = 0; i < write->n; i++) {
        if (hps_basefile_covers(base, write->keys[i])) {
            hps_basefile_change(base, write->keys[i]);
        }
    }
}

/* Apply the writes with their marks. Caller must hold `writes`. *out_due: a table is due for a
 * merge. */
static hps_status apply_marked(struct hps_basefile_space *space, const struct hps_call *call,
                               const struct hps_write *writes, uint32_t n_writes,
                               const struct hps_record *records, uint32_t n_records, bool *out_due,
                               struct hps_error *err)
{
    size_t n_keys = 0;
    for (uint32_t i = 0; i < n_writes; i++) {
        n_keys += writes[i].n;
    }
    struct hps_write *all = hps_calloc(2 * (size_t)n_writes + 1, sizeof(*all));
    hps_key *keys = hps_alloc((n_keys + 1) * sizeof(*keys));
    uint8_t *values = hps_calloc(n_keys + 1, 1); /* rows of marks */
    hps_status status;
    uint32_t n_all = 0;
    if (all == NULL || keys == NULL || values == NULL) {
        status = hps_error_set(err, HPS_NO_MEMORY, "rocksdb: no memory for the batch");
        goto done;
    }
    hps_key *to = keys;
    for (uint32_t i = 0; i < n_writes; i++) {
        const struct hps_basefile *base = hps_basefile_base_of(space, writes[i].table);
        uint32_t n = base != NULL ? unmarked(base, &writes[i], to) : 0;
        all[n_all++] = writes[i];
        if (n > 0) {
            all[n_all++] = (struct hps_write){&space->marks[writes[i].table->id], to, values, n};
        }
        to += n;
    }
    status = space->inner->store->ops->durable->apply(space->inner, call, all, n_all, records,
                                                      n_records, err);
    for (uint32_t i = 0; i < n_writes && status == HPS_OK; i++) {
        struct hps_basefile *base = hps_basefile_base_of(space, writes[i].table);
        if (base != NULL) {
            bits_follow(base, &writes[i]);
            *out_due = *out_due || (base->recent == NULL && hps_basefile_merge_due(base));
        }
    }
done:
    hps_free(all);
    hps_free(keys);
    hps_free(values);
    return status;
}

hps_status hps_basefile_apply(struct hps_space *base, const struct hps_call *call,
                              const struct hps_write *writes, uint32_t n_writes,
                              const struct hps_record *records, uint32_t n_records,
                              struct hps_error *err)
{
    struct hps_basefile_space *space = (struct hps_basefile_space *)base;
    bool due = false;
    if (!atomic_load(&space->any)) {
        return space->inner->store->ops->durable->apply(space->inner, call, writes, n_writes,
                                                        records, n_records, err);
    }
    hps_lock_acquire(&space->writes);
    hps_status status = apply_marked(space, call, writes, n_writes, records, n_records, &due, err);
    hps_lock_release(&space->writes);
    if (due) {
        hps_basefile_merger_wake(hps_basefile_of(base));
    }
    return status;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Applies a batch: see update.h. On the version's updater thread.
 */
#include "cache/update/update.h"

#include <inttypes.h>
#include <sched.h>
#include <string.h>

#include "base/assert.h"
#include "base/heap.h"
#include "cache/gpu/tier.h"
#include "cache/update/internal.h"
#include "cache/version/absent.h"

enum {
    /* Tries to get memory for a row, without any lock. Readers that hold the last free rows leave
     * after microseconds, unless their thread is not running. */
    TRIES_MAX = 1000,
    SOME_KEYS = 64, /* tried together */
};

static const struct hps_call no_limit = {0};

/* The old rows of one write's keys, in a host map without a store below it. */
struct saved {
    hps_key *keys;   /* [n] new ones first */
    uint32_t *slots; /* [n] index of keys[i] in the write */
    uint8_t *rows;   /* by slot, for keys that had a row */
    uint32_t n_new;
};

struct apply {
    struct hps_version *version;
    const struct hps_update_batch *batch;
    struct update_plan plan;
    struct update_rows rows;
    struct update_records records;
    struct saved *saved; /* [plan.n_writes]; NULL: there is a store below the map */
    bool begun;          /* tiers have changed and were not restored */
};

static struct hps_space *lowest_tier(const struct hps_version *version)
{
    return version->tiers[version->n_tiers - 1];
}

/* Put or erase the keys of a write. */
static hps_status write_keys(struct hps_space *space, const struct hps_write *write)
{
    const struct hps_store_ops *ops = space->store->ops;
    return write->rows == NULL
               ? ops->erase(space, &no_limit, write->table, write->keys, write->n)
               : ops->put(space, &no_limit, write->table, write->keys, write->rows, write->n);
}

/* ---- tiers above the lowest one -------------------------------------------------------------- */

/* Put or erase; if a put fails, no older row may stay. A tier that evicts has then already dropped
 * the key for lack of room; a lower tier has the row. After any other failure, and in a tier that
 * keeps its rows, the keys are erased. */
static hps_status write_or_erase(struct hps_space *space, const struct hps_write *write,
                                 struct hps_error *err)
{
    const struct hps_store_ops *ops = space->store->ops;
    hps_status status = write_keys(space, write);
    if (status == HPS_OK) {
        return HPS_OK;
    }
    atomic_store(&space->incomplete, true); /* first: from now on a miss proves nothing */
    bool gone =
        status == HPS_EXHAUSTED && write->rows != NULL && (ops->caps & HPS_STORE_KEEPS) == 0;
    if (!gone) {
        status = ops->erase(space, &no_limit, write->table, write->keys, write->n);
    }
    if (status == HPS_OK || status == HPS_EXHAUSTED) {
        return HPS_OK;
    }
    return hps_error_set(err, status, "table '%s': tier %s may have old rows: %s",
                         write->table->name, ops->name, hps_status_text(status));
}

static hps_status write_tier(const struct apply *apply, uint32_t tier, struct hps_error *err)
{
    struct hps_space *space = apply->version->tiers[tier];
    hps_status status = HPS_OK;
    if (update_is_shared(space)) {
        return update_shared_write(apply->version, space, apply->batch, &apply->plan, err);
    }
    for (uint32_t i = 0; i < apply->plan.n_writes && status == HPS_OK; i++) {
        status = write_or_erase(space, &apply->plan.writes[i], err);
    }
    return status;
}

static hps_status write_lowest(struct apply *apply, struct hps_error *err)
{
    struct hps_space *space = lowest_tier(apply->version);
    hps_status status;
    if (update_is_shared(space)) {
        status = update_shared_write(apply->version, space, apply->batch, &apply->plan, err);
        apply->begun = true; /* a part of it may have the batch although another part failed */
        return status;
    }
    status = space->store->ops->durable->apply(space, &no_limit, apply->plan.writes,
                                               apply->plan.n_writes + apply->plan.n_version_writes,
                                               apply->records.records, apply->records.n, err);
    apply->begun = status == HPS_OK;
    return status;
}

static hps_status write_upwards(struct apply *apply, struct hps_error *err)
{
    hps_status status = write_lowest(apply, err);
    for (uint32_t tier = apply->version->n_tiers - 1; tier-- > 0 && status == HPS_OK;) {
        status = write_tier(apply, tier, err);
    }
    return status;
}

/* ---- a host map without a store below it ----------------------------------------------------- */

static hps_status save(struct hps_space *space, const struct hps_write *write, struct saved *saved)
{
    size_t row_bytes = write->table->row_bytes;
    saved->keys = hps_alloc(write->n * (sizeof(hps_key) + sizeof(uint32_t)));
    saved->rows = hps_alloc(write->n * row_bytes);
    if (saved->keys == NULL || saved->rows == NULL) {
        return HPS_NO_MEMORY;
    }
    saved->slots = (uint32_t *)(void *)(saved->keys + write->n);
    memcpy(saved->keys, write->keys, write->n * sizeof(hps_key));
    for (uint32_t i = 0; i < write->n; i++) {
        saved->slots[i] = i;
    }
    struct hps_batch batch = {
        .keys = saved->keys, .slots = saved->slots, .rows = saved->rows, .n = write->n};
    hps_status status = update_read_tier(space, write->table, &batch);
    saved->n_new = batch.n;
    return status;
}

static hps_status save_all(struct apply *apply, struct hps_error *err)
{
    uint32_t n = apply->plan.n_writes;
    hps_status status = HPS_OK;
    apply->saved = hps_calloc(n, sizeof(*apply->saved));
    if (apply->saved == NULL) {
        status = HPS_NO_MEMORY;
    }
    for (uint32_t i = 0; i < n && status == HPS_OK; i++) {
        status = save(lowest_tier(apply->version), &apply->plan.writes[i], &apply->saved[i]);
    }
    if (status != HPS_OK) {
        return hps_error_set(err, status, "the rows that a batch replaces cannot be kept: %s",
                             hps_status_text(status));
    }
    return HPS_OK;
}

/* Restore one row. There is memory for it, since the key had a row before the batch. */
static hps_status put_back_row(struct hps_space *space, const struct hps_write *write,
                               const struct saved *saved, uint32_t i)
{
    const uint8_t *row = saved->rows + (size_t)saved->slots[i] * write->table->row_bytes;
    hps_status status = HPS_UNKNOWN;
    for (unsigned try = 0; status != HPS_OK && try < TRIES_MAX; try++) {
        status = space->store->ops->put(space, &no_limit, write->table, &saved->keys[i], row, 1);
        if (status != HPS_OK) {
            sched_yield();
        }
    }
    return status;
}

/* Undo: erase the new keys of the first n_added writes, restore old rows of the first n_written.
 * Returns `why`, or DATA_LOSS if the map could not be restored. */
static hps_status put_back(struct apply *apply, uint32_t n_added, uint32_t n_written,
                           hps_status why, struct hps_error *err)
{
    struct hps_space *space = lowest_tier(apply->version);
    const struct hps_store_ops *ops = space->store->ops;
    hps_status status = HPS_OK;
    for (uint32_t w = 0; w < n_added && status == HPS_OK; w++) {
        const struct hps_write *write = &apply->plan.writes[w];
        const struct saved *saved = &apply->saved[w];
        if (write->rows != NULL) {
            status = ops->erase(space, &no_limit, write->table, saved->keys, saved->n_new);
        }
        for (uint32_t i = saved->n_new; i < write->n && w < n_written && status == HPS_OK; i++) {
            status = put_back_row(space, write, saved, i);
        }
    }
    if (status != HPS_OK) {
        apply->begun = true;
        return hps_error_set(
            err, HPS_DATA_LOSS,
            "tier %s: a batch failed (%s), and rows that it had replaced are lost: "
            "load the model again",
            ops->name, hps_status_text(why));
    }
    return hps_error_set(err, why, "tier %s applied nothing of a batch of %" PRIu64 " rows: %s",
                         ops->name, apply->plan.n_put, hps_status_text(why));
}

static bool keeps(const struct hps_space *space)
{
    return (space->store->ops->caps & HPS_STORE_KEEPS) != 0;
}

/* Add new keys [first, first + n); an earlier try may have added some of them. */
static hps_status add_some(struct hps_space *space, const struct hps_write *write,
                           const struct saved *saved, uint32_t first, uint32_t n)
{
    uint32_t n_tries = keeps(space) ? TRIES_MAX : 1;
    uint32_t n_in = 0;
    hps_status status = HPS_OK;
    for (uint32_t try = 0; status == HPS_OK && n_in < n && try < n_tries; try++) {
        struct hps_insert_report report = {0};
        if (try > 0) {
            sched_yield();
        }
        status = space->store->ops->insert(space, &no_limit, write->table, saved->keys + first,
                                           saved->slots + first, write->rows, n, NULL, &report);
        n_in += report.n_inserted;
    }
    return status == HPS_OK && n_in < n ? HPS_EXHAUSTED : status;
}

/* Add the new keys of a write; rows that exist stay. */
static hps_status add_new(struct hps_space *space, const struct hps_write *write,
                          const struct saved *saved)
{
    uint32_t n = write->rows != NULL ? saved->n_new : 0;
    hps_status status = HPS_OK;
    for (uint32_t i = 0; i < n && status == HPS_OK; i += SOME_KEYS) {
        status = add_some(space, write, saved, i, n - i < SOME_KEYS ? n - i : SOME_KEYS);
    }
    return status;
}

/* A map that keeps its rows needs no saved old rows any more. Replace them with the new rows of
 * keys whose row changes, in the order of saved->keys from n_new on. Returns how many there are. */
static uint32_t changed_rows(const struct hps_write *write, struct saved *saved)
{
    size_t row_bytes = write->table->row_bytes;
    uint32_t n = saved->n_new;
    for (uint32_t i = saved->n_new; i < write->n; i++) {
        size_t at = saved->slots[i] * row_bytes;
        if (memcmp(saved->rows + at, write->rows + at, row_bytes) != 0) {
            saved->keys[n] = saved->keys[i];
            saved->slots[n++] = saved->slots[i];
        }
    }
    for (uint32_t i = saved->n_new; i < n; i++) {
        memcpy(saved->rows + (i - saved->n_new) * row_bytes,
               write->rows + saved->slots[i] * row_bytes, row_bytes);
    }
    return n - saved->n_new;
}

/* Replace rows one by one, waiting for readers to free the memory of each old row. */
static hps_status replace_patiently(struct hps_space *space, const struct hps_write *write,
                                    const hps_key *keys, const uint8_t *rows, uint32_t n)
{
    hps_status status = HPS_OK;
    for (uint32_t i = 0; i < n && status == HPS_OK; i++) {
        const uint8_t *row = rows + (size_t)i * write->table->row_bytes;
        status = HPS_EXHAUSTED;
        for (uint32_t try = 0; status == HPS_EXHAUSTED && try < TRIES_MAX; try++) {
            if (try > 0) {
                sched_yield();
            }
            status = space->store->ops->put(space, &no_limit, write->table, &keys[i], row, 1);
        }
    }
    return status;
}

/* Replace existing rows in a map that keeps its rows when memory is short. Rows that an earlier try
 * of this batch wrote are left alone: they need no memory. */
static hps_status replace(struct hps_space *space, const struct hps_write *write,
                          struct saved *saved)
{
    uint32_t n = changed_rows(write, saved);
    hps_status status = HPS_OK;
    for (uint32_t i = 0; i < n && status == HPS_OK; i += SOME_KEYS) {
        const hps_key *keys = saved->keys + saved->n_new + i;
        const uint8_t *rows = saved->rows + (size_t)i * write->table->row_bytes;
        uint32_t n_some = n - i < SOME_KEYS ? n - i : SOME_KEYS;
        status = space->store->ops->put(space, &no_limit, write->table, keys, rows, n_some);
        if (status == HPS_EXHAUSTED) {
            status = replace_patiently(space, write, keys, rows, n_some);
        }
    }
    return status;
}

/* All new keys are in, and the rest only needs memory that readers still hold. So replaced rows
 * stay, and the same batch continues from there. */
static hps_status stay_half_way(struct apply *apply, hps_status why, struct hps_error *err)
{
    apply->begun = true;
    return hps_error_set(err, why,
                         "tier %s has applied a part of a batch of %" PRIu64
                         " rows, and waits for readers before the rest: %s",
                         lowest_tier(apply->version)->store->ops->name, apply->plan.n_put,
                         hps_status_text(why));
}

/* New keys first: only they may not fit, and until all are in, no row has been replaced. */
static hps_status write_whole(struct apply *apply, struct hps_error *err)
{
    struct hps_space *space = lowest_tier(apply->version);
    const struct update_plan *plan = &apply->plan;
    hps_status status = HPS_OK;
    uint32_t n_added = 0;
    uint32_t n_written = 0;
    for (; n_added < plan->n_writes && status == HPS_OK; n_added++) {
        status = add_new(space, &plan->writes[n_added], &apply->saved[n_added]);
    }
    for (; n_written < plan->n_writes && status == HPS_OK; n_written++) {
        const struct hps_write *write = &plan->writes[n_written];
        struct saved *saved = &apply->saved[n_written];
        if (saved->n_new < write->n) {
            bool one_by_one = write->rows != NULL && keeps(space);
            status = one_by_one ? replace(space, write, saved) : write_keys(space, write);
        }
    }
    if (status == HPS_OK) {
        return HPS_OK;
    }
    return n_written > 0 && keeps(space) ? stay_half_way(apply, status, err)
                                         : put_back(apply, n_added, n_written, status, err);
}

/* ---- the gpu --------------------------------------------------------------------------------- */

/* After all tiers and before the stamps end: see hps_gpu_update. */
static void write_gpu(const struct apply *apply)
{
    struct hps_gpu_space *gpu = apply->version->gpu;
    for (uint32_t i = 0; gpu != NULL && i < apply->plan.n_writes; i++) {
        const struct hps_write *write = &apply->plan.writes[i];
        hps_gpu_update(gpu, write->table->id, write->keys, write->rows, write->n);
    }
}

/* ---- the batch ------------------------------------------------------------------------------- */

/* A shared lowest tier counts its own rows. */
static hps_status count_rows(struct apply *apply, struct hps_error *err)
{
    const struct update_plan *plan = &apply->plan;
    hps_status status = update_rows_make(apply->version, plan, &apply->rows);
    if (status == HPS_OK && apply->saved == NULL &&
        !update_is_shared(lowest_tier(apply->version))) {
        status = update_rows_sample(apply->version, plan, &apply->rows);
    }
    for (uint32_t i = 0; status == HPS_OK && apply->saved != NULL && i < plan->n_writes; i++) {
        uint32_t n_new = apply->saved[i].n_new;
        const struct hps_write *write = &plan->writes[i];
        update_rows_note(&apply->rows, write, write->rows != NULL ? n_new : write->n - n_new);
    }
    return status == HPS_OK ? HPS_OK
                            : hps_error_set(err, status, "no memory to count the rows of a batch");
}

/* Everything that can fail before a tier changes. */
static hps_status prepare(struct apply *apply, const struct hps_update_batch *batch,
                          struct hps_error *err)
{
    const struct hps_version *version = apply->version;
    bool memory = lowest_tier(version)->store->ops->tier == HPS_TIER_HOST;
    for (uint32_t i = 0; i < version->n_tiers; i++) {
        const struct hps_store_ops *ops = version->tiers[i]->store->ops;
        bool above = i + 1 < version->n_tiers || memory;
        bool takes =
            update_is_shared(version->tiers[i]) ? ops->log != NULL : above || ops->durable != NULL;
        if (!takes) {
            return hps_error_set(err, HPS_PRECONDITION, "tier %s takes no updates", ops->name);
        }
    }
    hps_status status = update_plan_make(version, batch, version->row_versions, &apply->plan, err);
    if (status == HPS_OK && memory) {
        status = save_all(apply, err);
    }
    if (status == HPS_OK) {
        status = count_rows(apply, err);
    }
    if (status == HPS_OK) {
        status = update_records_make(version, batch, &apply->rows, &apply->records, err);
    }
    return status;
}

bool hps_update_half_applied(const struct hps_version *version)
{
    return hps_stamps_now(version->stamps) % 2 != 0;
}

static hps_status carry_out(struct apply *apply, struct hps_error *err)
{
    struct hps_version *version = apply->version;
    const struct update_plan *plan = &apply->plan;
    bool whole = !hps_update_half_applied(version); /* the last batch ended */
    hps_stamps_begin(version->stamps);
    for (uint32_t i = 0; i < plan->n_writes; i++) {
        const struct hps_write *write = &plan->writes[i];
        hps_stamps_mark(version->stamps, write->table->id, write->keys, write->n);
        if (write->rows != NULL && version->absent != NULL) {
            hps_absent_remove(version->absent, write->table->id, write->keys, write->n);
        }
    }
    hps_status status = apply->saved == NULL ? write_upwards(apply, err) : write_whole(apply, err);
    if (status == HPS_OK) {
        write_gpu(apply);
    }
    if (status == HPS_OK || (whole && !apply->begun)) {
        hps_stamps_end(version->stamps);
    }
    return status;
}

static void count(const struct hps_version *version, const struct update_plan *plan)
{
    if (version->update_rows_put != NULL) {
        hps_metric_add(version->update_rows_put, plan->n_put);
        hps_metric_add(version->update_rows_deleted, plan->n_deleted);
    }
    if (version->update_rows_older != NULL) {
        hps_metric_add(version->update_rows_older, plan->n_older);
    }
}

static void apply_free(struct apply *apply)
{
    for (uint32_t i = 0; apply->saved != NULL && i < apply->plan.n_writes; i++) {
        hps_free(apply->saved[i].keys);
        hps_free(apply->saved[i].rows);
    }
    hps_free(apply->saved);
    update_records_free(&apply->records);
    update_rows_free(&apply->rows);
    update_plan_free(&apply->plan);
}

hps_status hps_update_apply(struct hps_version *version, const struct hps_update_batch *batch,
                            struct hps_error *err)
{
    struct hps_updates *updates = version->updates;
    struct apply apply = {.version = version, .batch = batch};
    HPS_ASSERT(updates != NULL);
    HPS_ASSERT(!hps_version_idle(version));
    bool busy = atomic_exchange(&updates->busy, true);
    HPS_ASSERT(!busy);
    hps_status status = prepare(&apply, batch, err);
    if (status == HPS_OK) {
        update_turn_begin(updates);
        status = carry_out(&apply, err);
        update_turn_end(updates);
    }
    if (status == HPS_OK) {
        update_rows_publish(updates, &apply.rows);
        update_records_publish(updates, &apply.records);
        count(version, &apply.plan);
    }
    apply_free(&apply);
    atomic_store(&updates->busy, false);
    return status;
}

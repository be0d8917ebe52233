/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads of the host map: rows go into a separate set of tables, which replaces the set of the space
 * at the commit. One thread per load. Its memory may be taken for an active version, which makes it
 * fail.
 */
#include "backends/host/internal.h"

#include <inttypes.h>
#include <sched.h>

#include "base/heap.h"

static uint64_t tables_rows(const struct hps_table *tables, uint32_t n_tables)
{
    uint64_t n_rows = 0;
    for (uint32_t i = 0; i < n_tables; i++) {
        n_rows += tables[i].n_rows;
    }
    return n_rows;
}

static hps_status load_claim(struct host_space *space, struct hps_error *err)
{
    struct host_map *store = host_of(&space->base);
    struct hps_store_usage usage;
    hps_status status = HPS_OK;
    hps_lock_acquire(&store->lock);
    host_space_usage(&space->base, &usage);
    if (space->loading || usage.n_rows != 0) {
        status = hps_error_set(err, HPS_PRECONDITION, "host: %s version %" PRId64 " %s",
                               space->model, space->version,
                               space->loading ? "is being loaded already" : "is not empty");
    } else {
        space->loading = true;
    }
    hps_lock_release(&store->lock);
    return status;
}

/* load may be NULL */
static void load_set(struct host_space *space, bool loading, struct hps_store_load *load)
{
    struct host_map *store = host_of(&space->base);
    hps_lock_acquire(&store->lock);
    space->loading = loading;
    space->load = load;
    hps_lock_release(&store->lock);
}

/* Limits that do not depend on the budget. */
static hps_status check_rows(struct host_space *space, struct hps_error *err)
{
    const struct hps_host_shared *shared = &host_of(&space->base)->shared;
    for (uint32_t i = 0; i < space->n_tables; i++) {
        if (host_rows_kept(shared, space->tables[i].n_rows) > HPS_HOST_TABLE_ROWS_MAX) {
            return hps_error_set(err, HPS_EXHAUSTED,
                                 "host: table %" PRIu32 " has %" PRIu64 " rows, at most %" PRIu32
                                 " are possible",
                                 i, space->tables[i].n_rows, HPS_HOST_TABLE_ROWS_MAX);
        }
    }
    return HPS_OK;
}

hps_status host_load_begin(struct hps_space *base, uint64_t rows_expected, uint64_t bytes_expected,
                           struct hps_store_load **out_load, struct hps_error *err)
{
    struct host_space *space = (struct host_space *)base;
    struct host_map *store = host_of(base);
    bool sized = tables_rows(space->tables, space->n_tables) == rows_expected;
    uint64_t needed = bytes_expected;
    if (sized || store->shared.lossy) {
        needed = host_tables_bytes(store, space->tables, space->n_tables);
    } else if (__builtin_add_overflow(needed, hps_host_index_bytes(rows_expected), &needed)) {
        needed = UINT64_MAX;
    }
    hps_status status = check_rows(space, err);
    if (status == HPS_OK) {
        status = load_claim(space, err);
    }
    if (status != HPS_OK) {
        return status;
    }
    struct hps_store_load *load = hps_calloc(1, sizeof(*load));
    uint64_t available = hps_host_available(&store->shared.budget);
    if (load == NULL) {
        status = HPS_NO_MEMORY;
    } else if (needed > available) {
        status = HPS_EXHAUSTED;
    } else {
        status = host_set_new(store, space, space->tables, space->n_tables, &load->set);
    }
    if (status != HPS_OK) {
        load_set(space, false, NULL);
        hps_free(load);
        return host_fail_budget(store, status, "the load", needed, err);
    }
    HPS_ASSERT(load->set->n_tables == space->n_tables);
    load->space = space;
    load->sized = sized;
    load->tight = host_is_tight(space->tables, space->n_tables, needed, available);
    load_set(space, true, load);
    *out_load = load;
    return HPS_OK;
}

static hps_status fail_gave_way(const struct hps_store_load *load, struct hps_error *err)
{
    return hps_error_set(err, HPS_EXHAUSTED,
                         "host: the load of %s version %" PRId64
                         " was stopped: an active version needs its memory",
                         load->space->model, load->space->version);
}

/* Caller must hold the lock of the table. */
static hps_status load_row(struct hps_store_load *load, const struct hps_table *table, hps_key key,
                           const uint8_t *row, struct hps_error *err)
{
    if (load->any && (table->id < load->table || (table->id == load->table && key <= load->key))) {
        return hps_error_set(err, HPS_INVALID,
                             "host: table %s: got key %" PRIu64
                             ", expected keys in ascending order",
                             table->name, key);
    }
    hps_status status = hps_host_table_put(load->set->tables[table->id], key, row);
    if (status != HPS_OK) {
        return host_fail_budget(host_of(&load->space->base), status, "the next row of the load",
                                table->row_bytes, err);
    }
    load->any = true;
    load->table = table->id;
    load->key = key;
    return HPS_OK;
}

/* Prepare a table for its first rows. */
static hps_status table_begin(struct hps_store_load *load, const struct hps_table *table,
                              const hps_key *keys, uint32_t n, struct hps_error *err)
{
    struct host_map *store = host_of(&load->space->base);
    uint64_t n_rows = load->sized ? host_rows_kept(&store->shared, table->n_rows) : 0;
    hps_status status =
        hps_host_table_prepare(load->set->tables[table->id], n_rows, keys, n, load->tight);
    return status == HPS_OK ? status
                            : host_fail_budget(store, status, "the index of a table",
                                               hps_host_index_bytes(n_rows), err);
}

hps_status host_load_add(struct hps_store_load *load, const struct hps_table *table,
                         const hps_key *keys, const uint8_t *rows, uint32_t n,
                         struct hps_error *err)
{
    HPS_ASSERT(table->id < load->set->n_tables);
    struct hps_host_table *host = load->set->tables[table->id];
    HPS_ASSERT(host->rows.row_bytes == table->row_bytes);
    hps_status status = HPS_OK;
    if (!load->any || load->table != table->id) {
        status = table_begin(load, table, keys, n, err);
    }
    hps_lock_acquire(&host->lock); /* there is no other writer, but share.c may clear the table */
    status = atomic_load(&load->gave_way) ? fail_gave_way(load, err) : status;
    for (uint32_t i = 0; i < n && status == HPS_OK; i++) {
        hps_host_table_fetch(host, keys, n, i);
        status = load_row(load, table, keys[i], rows + (size_t)i * table->row_bytes, err);
    }
    hps_lock_release(&host->lock);
    return status;
}

hps_status host_load_commit(struct hps_store_load *load, struct hps_error *err)
{
    struct host_space *space = load->space;
    struct hps_epoch *epoch = host_of(&space->base)->shared.epoch;
    struct host_map *store = host_of(&space->base);
    struct host_set *old = NULL;
    hps_rwlock_write(&space->set_lock);
    hps_lock_acquire(&store->lock);
    bool gave_way = atomic_load(&load->gave_way);
    HPS_ASSERT(space->loading && space->load == load);
    if (!gave_way) {
        atomic_store(&space->base.incomplete, false); /* before any row of it can be lost */
        old = atomic_exchange_explicit(&space->set, load->set, memory_order_acq_rel);
        space->load = NULL;
        host_shares_update(store);
    }
    hps_lock_release(&store->lock);
    hps_rwlock_release(&space->set_lock);
    if (gave_way) {
        return fail_gave_way(load, err);
    }
    uint64_t stamp = hps_epoch_retire(epoch);
    while (!hps_epoch_passed(epoch, stamp)) {
        sched_yield();
    }
    host_set_free(old);
    load_set(space, false, NULL);
    hps_free(load);
    return HPS_OK;
}

void host_load_abort(struct hps_store_load *load)
{
    HPS_ASSERT(load->space->loading);
    load_set(load->space, true, NULL);
    host_set_free(load->set);
    load_set(load->space, false, NULL);
    hps_free(load);
}

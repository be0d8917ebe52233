/* SPDX-License-Identifier: Apache-2.0
 *
 * The spaces of the host map: the tables of a version as one set, which a load replaces; opening,
 * closing, usage. Thread-safe; the store's lock protects the list of spaces.
 */
#include "backends/host/internal.h"
#include "base/lock.h"

#include <inttypes.h>
#include <string.h>

#include "base/heap.h"

/* ---- sets of tables -------------------------------------------------------------------------- */

void host_set_free(struct host_set *set)
{
    if (set != NULL) {
        for (uint32_t i = 0; i < set->n_tables; i++) {
            hps_host_table_free(set->tables[i]);
        }
        hps_free(set);
    }
}

uint64_t host_rows_kept(const struct hps_host_shared *shared, uint64_t n_rows)
{
    return shared->lossy && n_rows > shared->rows_max ? shared->rows_max : n_rows;
}

hps_status host_set_new(struct host_map *store, struct host_space *space,
                        const struct hps_table *tables, uint32_t n_tables,
                        struct host_set **out_set)
{
    struct host_set *set = hps_calloc(1, sizeof(*set) + n_tables * sizeof(set->tables[0]));
    if (set == NULL) {
        return HPS_NO_MEMORY;
    }
    for (uint32_t i = 0; i < n_tables; i++) {
        hps_status status = hps_host_table_new(&store->shared, tables[i].row_bytes,
                                               host_rows_kept(&store->shared, tables[i].n_rows),
                                               &space->base.incomplete, &set->tables[i]);
        if (status != HPS_OK) {
            host_set_free(set);
            return status;
        }
        set->n_tables++;
    }
    *out_set = set;
    return HPS_OK;
}

uint64_t host_tables_bytes(const struct host_map *store, const struct hps_table *tables,
                           uint32_t n_tables)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < n_tables; i++) {
        uint64_t one = hps_host_table_bytes(&store->shared, tables[i].row_bytes,
                                            host_rows_kept(&store->shared, tables[i].n_rows));
        if (__builtin_add_overflow(bytes, one, &bytes)) {
            return UINT64_MAX;
        }
    }
    return bytes;
}

bool host_is_tight(const struct hps_table *tables, uint32_t n_tables, uint64_t needed,
                   uint64_t available)
{
    uint64_t extra = 0;
    for (uint32_t i = 0; i < n_tables; i++) {
        extra += hps_host_dense_extra(tables[i].row_bytes, false);
    }
    uint64_t most = available - available / 5;
    return extra > most || needed > most - extra;
}

hps_status host_fail_budget(struct host_map *store, hps_status status, const char *what,
                            uint64_t bytes, struct hps_error *err)
{
    if (status != HPS_EXHAUSTED) {
        return hps_error_set(err, status, "host: no memory for %s", what);
    }
    return hps_error_set(
        err, status, "host: %s needs %" PRIu64 " bytes, %" PRIu64 " of %" PRIu64 " are available",
        what, bytes, hps_host_available(&store->shared.budget), store->shared.budget.bytes_max);
}

/* ---- opening and closing --------------------------------------------------------------------- */

static hps_status check_tables(const struct hps_space_id *id, struct hps_error *err)
{
    for (uint32_t i = 0; i < id->n_tables; i++) {
        HPS_ASSERT(id->tables[i].id == i);
        if (id->tables[i].row_bytes == 0 || id->tables[i].row_bytes > UINT32_MAX / 2) {
            return hps_error_set(err, HPS_INVALID, "host: table %s has rows of %" PRIu32 " bytes",
                                 id->tables[i].name, id->tables[i].row_bytes);
        }
    }
    return HPS_OK;
}

static hps_status space_link(struct host_map *store, struct host_space *space,
                             struct hps_error *err)
{
    hps_status status = HPS_OK;
    hps_lock_acquire(&store->lock);
    for (struct host_space *s = store->spaces; s != NULL; s = s->next) {
        if (s->version == space->version && strcmp(s->model, space->model) == 0) {
            status = hps_error_set(err, HPS_EXISTS, "host: %s version %" PRId64 " is already open",
                                   space->model, space->version);
            break;
        }
    }
    if (status == HPS_OK) {
        space->next = store->spaces;
        store->spaces = space;
        host_shares_update(store);
    }
    hps_lock_release(&store->lock);
    return status;
}

hps_status host_space_open(struct hps_store *base, const struct hps_space_id *id,
                           struct hps_space **out_space, struct hps_error *err)
{
    struct host_map *store = (struct host_map *)base;
    HPS_ASSERT(id->n_tables > 0 || id->tables == NULL);
    hps_status status = check_tables(id, err);
    if (status != HPS_OK) {
        return status;
    }
    struct host_space *space = hps_calloc(1, sizeof(*space));
    char *model = hps_strdup(id->model);
    struct hps_table *tables = hps_alloc(id->n_tables * sizeof(*tables));
    struct host_set *set = NULL;
    status = space != NULL && model != NULL && tables != NULL ? HPS_OK : HPS_NO_MEMORY;
    if (status == HPS_OK) {
        status = host_set_new(store, space, id->tables, id->n_tables, &set);
    }
    if (status != HPS_OK) {
        hps_ignore(hps_error_set(err, status, "host: no memory for a new space"));
        goto fail;
    }
    space->base.store = base;
    space->model = model;
    space->version = id->version;
    memcpy(tables, id->tables, id->n_tables * sizeof(*tables));
    space->tables = tables;
    hps_rwlock_init(&space->set_lock, HPS_LOCK_HOST_SET);
    space->n_tables = id->n_tables;
    atomic_init(&space->set, set);
    status = space_link(store, space, err);
    if (status != HPS_OK) {
        hps_rwlock_fini(&space->set_lock);
        goto fail;
    }
    *out_space = &space->base;
    return HPS_OK;
fail:
    host_set_free(set);
    hps_free(tables);
    hps_free(model);
    hps_free(space);
    return status;
}

void host_space_close(struct hps_space *base)
{
    struct host_space *space = (struct host_space *)base;
    struct host_map *store = host_of(base);
    HPS_ASSERT(!space->loading);
    HPS_ASSERT(space->load == NULL);
    hps_lock_acquire(&store->lock);
    struct host_space **link = &store->spaces;
    while (*link != space) {
        HPS_ASSERT(*link != NULL);
        link = &(*link)->next;
    }
    *link = space->next;
    host_shares_update(store);
    hps_lock_release(&store->lock);
    host_set_free(atomic_load_explicit(&space->set, memory_order_acquire));
    hps_rwlock_fini(&space->set_lock);
    hps_free(space->tables);
    hps_free(space->model);
    hps_free(space);
}

hps_status host_space_drop(struct hps_space *space, struct hps_error *err)
{
    (void)err;
    host_space_close(space);
    return HPS_OK;
}

/* ---- usage ----------------------------------------------------------------------------------- */

void host_space_usage(struct hps_space *base, struct hps_store_usage *out_usage)
{
    struct host_space *space = (struct host_space *)base;
    struct hps_host_shared *shared = &host_of(base)->shared;
    struct hps_store_usage usage = {.capacity_bytes = shared->budget.bytes_max};
    struct hps_epoch_slot *slot = hps_epoch_enter(shared->epoch);
    struct host_set *set = atomic_load_explicit(&space->set, memory_order_acquire);
    for (uint32_t i = 0; i < set->n_tables; i++) {
        struct hps_host_account *account = &set->tables[i]->account;
        usage.n_rows += hps_host_table_rows(set->tables[i]);
        usage.n_rows_dropped +=
            atomic_load_explicit(&set->tables[i]->n_dropped, memory_order_relaxed);
        usage.used_bytes += atomic_load_explicit(&account->used_bytes, memory_order_relaxed);
        usage.huge_bytes += atomic_load_explicit(&account->huge_bytes, memory_order_relaxed);
    }
    hps_epoch_leave(shared->epoch, slot);
    *out_usage = usage;
}

uint64_t host_evictions_take(struct hps_space *base, const struct hps_table *table)
{
    struct host_space *space = (struct host_space *)base;
    struct hps_epoch *epoch = host_of(base)->shared.epoch;
    struct hps_epoch_slot *slot = hps_epoch_enter(epoch);
    struct host_set *set = atomic_load_explicit(&space->set, memory_order_acquire);
    HPS_ASSERT(table->id < set->n_tables);
    uint64_t n =
        atomic_exchange_explicit(&set->tables[table->id]->n_evicted, 0, memory_order_relaxed);
    hps_epoch_leave(epoch, slot);
    return n;
}

uint64_t host_dense_rows(struct hps_space *base, const struct hps_table *table)
{
    struct hps_epoch *epoch = host_of(base)->shared.epoch;
    struct hps_epoch_slot *slot = hps_epoch_enter(epoch);
    const struct hps_host_dense *dense = hps_host_table_dense(host_table_of(base, table));
    uint64_t n = dense != NULL ? hps_host_dense_rows(dense) : 0;
    hps_epoch_leave(epoch, slot);
    return n;
}

hps_status host_reserve(struct hps_space *base, const struct hps_table *table, const hps_key *keys,
                        uint32_t n, struct hps_error *err)
{
    struct host_space *space = (struct host_space *)base;
    struct host_map *store = host_of(base);
    struct hps_store_usage usage;
    host_space_usage(base, &usage);
    bool tight = host_is_tight(space->tables, space->n_tables,
                               host_tables_bytes(store, space->tables, space->n_tables),
                               usage.used_bytes + hps_host_available(&store->shared.budget));
    hps_rwlock_read(&space->set_lock);
    hps_status status =
        hps_host_table_prepare(host_table_of(base, table), table->n_rows, keys, n, tight);
    hps_rwlock_release(&space->set_lock);
    return status == HPS_OK ? status
                            : host_fail_budget(store, status, "the index of a table",
                                               hps_host_index_bytes(table->n_rows), err);
}

/* A range that lacks rows would keep memory that eviction cannot use for other rows. */
void host_refilled(struct hps_space *base, bool failed)
{
    struct host_space *space = (struct host_space *)base;
    hps_rwlock_read(&space->set_lock);
    for (uint32_t i = 0; failed && i < space->n_tables; i++) {
        struct hps_host_table *host = host_table_of(base, &space->tables[i]);
        hps_lock_acquire(&host->lock);
        if (hps_host_table_dense(host) != NULL) {
            hps_host_table_clear(host);
            (void)hps_host_table_clear_end(host); /* or the next insertion ends it */
        }
        hps_lock_release(&host->lock);
    }
    hps_rwlock_release(&space->set_lock);
}

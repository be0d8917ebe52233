/* SPDX-License-Identifier: Apache-2.0
 *
 * The host tier: calls for the rows of an open space, and the store with its options. Readers run
 * on any thread and take no lock. Writers take the lock of their table (table.h).
 */
#include "backends/host/map.h"

#include <string.h>

#include "backends/host/internal.h"
#include "backends/store_limits.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/heap.h"
#include "base/key_sort.h"
#include "base/lock.h"
#include "base/log.h"

enum {
    EPOCH_KEYS = 1024, /* looked up in one epoch, and between two checks of the deadline ... */
    /* ... or fewer, if rows are wide, because writers cannot reuse rows during an epoch. */
    EPOCH_BYTES = 1 << 20,
};

/* ---- rows ------------------------------------------------------------------------------------ */

/* Lock the table for a writer. Until it is unlocked, there is no other writer and no load is
 * committed. */
static struct hps_host_table *table_lock(struct hps_space *base, const struct hps_table *table)
{
    hps_rwlock_read(&((struct host_space *)base)->set_lock);
    struct hps_host_table *host = host_table_of(base, table);
    hps_lock_acquire(&host->lock);
    return host;
}

static void table_unlock(struct hps_space *base, struct hps_host_table *host)
{
    hps_lock_release(&host->lock);
    hps_rwlock_release(&((struct host_space *)base)->set_lock);
}

static uint32_t keys_per_epoch(uint32_t row_bytes)
{
    uint32_t n = EPOCH_BYTES / row_bytes;
    n = n < EPOCH_KEYS ? n : EPOCH_KEYS;
    return n > HPS_HOST_BLOCK_KEYS ? n : HPS_HOST_BLOCK_KEYS;
}

static hps_status host_get(struct hps_space *space, const struct hps_call *call,
                           const struct hps_table *table, struct hps_batch *batch)
{
    struct hps_epoch *epoch = host_of(space)->shared.epoch;
    uint32_t hi = batch->n;
    uint32_t n_epoch = keys_per_epoch(table->row_bytes);
    const struct hps_host_out out = hps_host_out(table, batch);
    while (hi > 0) {
        if (call->deadline_us != 0 && hps_clock_us() >= call->deadline_us) {
            return HPS_DEADLINE;
        }
        uint32_t lo = hi > n_epoch ? hi - n_epoch : 0;
        struct hps_epoch_slot *slot = hps_epoch_enter(epoch);
        hps_host_table_get(host_table_of(space, table), &out, batch, lo, hi);
        hps_epoch_leave(epoch, slot);
        hi = lo;
    }
    return HPS_OK;
}

static hps_status host_put(struct hps_space *space, const struct hps_call *call,
                           const struct hps_table *table, const hps_key *keys, const uint8_t *rows,
                           uint32_t n)
{
    (void)call; /* no I/O */
    struct hps_host_table *host = table_lock(space, table);
    hps_status status = HPS_OK;
    for (uint32_t i = 0; i < n; i++) {
        hps_host_table_fetch(host, keys, n, i);
        hps_status one = hps_host_table_put(host, keys[i], rows + (size_t)i * table->row_bytes);
        status = one != HPS_OK ? one : status;
    }
    table_unlock(space, host);
    return status;
}

static hps_status host_insert(struct hps_space *space, const struct hps_call *call,
                              const struct hps_table *table, const hps_key *keys,
                              const uint32_t *slots, const uint8_t *rows, uint32_t n,
                              const struct hps_insert_guard *guard,
                              struct hps_insert_report *out_report)
{
    (void)call; /* no I/O */
    struct hps_host_table *host = table_lock(space, table);
    struct hps_insert_report report = {0};
    for (uint32_t i = 0; i < n; i++) {
        hps_host_table_fetch(host, keys, n, i);
        if (guard != NULL && !guard->fresh(guard->ctx, i)) {
            report.n_stale++;
        } else if (!hps_host_table_has(host, keys[i])) {
            const uint8_t *row = rows + (size_t)slots[i] * table->row_bytes;
            bool in = hps_host_table_insert(host, keys[i], row, &report.n_evicted) == HPS_OK;
            report.n_inserted += in ? 1 : 0;
            report.n_no_capacity += in ? 0 : 1;
        }
    }
    table_unlock(space, host);
    *out_report = report;
    return HPS_OK;
}

static hps_status host_erase(struct hps_space *space, const struct hps_call *call,
                             const struct hps_table *table, const hps_key *keys, uint32_t n)
{
    (void)call;
    struct hps_host_table *host = table_lock(space, table);
    for (uint32_t i = 0; i < n; i++) {
        hps_host_table_fetch(host, keys, n, i);
        hps_host_table_erase(host, keys[i]);
    }
    table_unlock(space, host);
    return HPS_OK;
}

/* ---- scan ------------------------------------------------------------------------------------ */

struct key_list {
    hps_key *keys; /* [n_max] */
    uint64_t n;
    uint64_t n_max;
};

static void key_collect(void *ctx, hps_key key)
{
    struct key_list *list = ctx;
    HPS_DEBUG_ASSERT(list->n < list->n_max);
    list->keys[list->n++] = key;
}

/* The keys of a table, sorted. owner: the caller frees *out_keys (hps_free). */
static hps_status table_keys(struct hps_space *space, const struct hps_table *table,
                             hps_key **out_keys, uint64_t *out_n)
{
    struct hps_host_table *host = table_lock(space, table);
    const struct hps_host_dense *dense = hps_host_table_dense(host);
    uint64_t n_max = host->index.n_keys + (dense != NULL ? hps_host_dense_rows(dense) : 0);
    struct key_list list = {.keys = hps_alloc((size_t)n_max * sizeof(hps_key)), .n_max = n_max};
    if (list.keys != NULL) {
        hps_host_index_each(&host->index, key_collect, &list);
    }
    if (list.keys != NULL && dense != NULL) {
        hps_host_dense_each(dense, key_collect, &list);
    }
    HPS_ASSERT(list.keys == NULL || list.n == list.n_max);
    table_unlock(space, host);
    if (list.keys == NULL) {
        return HPS_NO_MEMORY;
    }
    hps_key_sort(list.keys, NULL, (size_t)list.n);
    *out_keys = list.keys;
    *out_n = list.n;
    return HPS_OK;
}

/* Copy the rows of keys[n] that still exist. Returns their number; keys is compacted in order. */
static uint32_t table_copy(struct hps_space *space, const struct hps_table *table, hps_key *keys,
                           uint8_t *rows, uint32_t n)
{
    struct hps_epoch *epoch = host_of(space)->shared.epoch;
    uint32_t n_found = 0;
    struct hps_epoch_slot *slot = hps_epoch_enter(epoch);
    const struct hps_host_table *host = host_table_of(space, table);
    for (uint32_t i = 0; i < n; i++) {
        hps_key key = keys[i];
        struct hps_batch one = {.keys = &key, .slots = &n_found, .rows = rows, .n = 1};
        const struct hps_host_out out = hps_host_out(table, &one);
        hps_host_table_get(host, &out, &one, 0, 1);
        keys[n_found] = keys[i];
        n_found += one.n == 0 ? 1 : 0;
    }
    hps_epoch_leave(epoch, slot);
    return n_found;
}

static hps_status host_scan(struct hps_space *space, const struct hps_table *table, hps_rows_fn fn,
                            void *ctx, struct hps_error *err)
{
    hps_key *keys = NULL;
    uint64_t n = 0;
    uint32_t n_epoch = keys_per_epoch(table->row_bytes);
    uint8_t *rows = hps_alloc((size_t)n_epoch * table->row_bytes);
    hps_status status = rows != NULL ? HPS_OK : HPS_NO_MEMORY;
    if (status == HPS_OK) {
        status = table_keys(space, table, &keys, &n);
    }
    if (status != HPS_OK) {
        hps_free(rows);
        return hps_error_set(err, status, "host: no memory to scan table %s", table->name);
    }
    for (uint64_t i = 0; i < n && status == HPS_OK; i += n_epoch) {
        uint32_t n_batch = n - i < n_epoch ? (uint32_t)(n - i) : n_epoch;
        n_batch = table_copy(space, table, keys + i, rows, n_batch);
        if (n_batch > 0) {
            status = fn(ctx, keys + i, rows, n_batch);
        }
    }
    hps_free(keys);
    hps_free(rows);
    return status;
}

/* ---- the store ------------------------------------------------------------------------------- */

static void host_close(struct hps_store *base)
{
    struct host_map *store = (struct host_map *)base;
    HPS_ASSERT(store->spaces == NULL);
    HPS_ASSERT(atomic_load(&store->shared.budget.used_bytes) == 0);
    hps_lock_fini(&store->lock);
    hps_epoch_free(store->shared.epoch);
    hps_free(store);
}

static const struct hps_store_bulk_ops bulk_ops = {
    .begin = host_load_begin,
    .add = host_load_add,
    .commit = host_load_commit,
    .abort = host_load_abort,
};

static const struct hps_store_limits_ops limits_ops = {
    .evictions_take = host_evictions_take,
    .reserve = host_reserve,
    .refilled = host_refilled,
    .dense_rows = host_dense_rows,
    .space_active = host_space_active,
};

static const struct hps_store_pool_ops pool_ops = {
    .bags = host_bags,
};

static const struct hps_store_ops host_ops = {
    .name = "host",
    .tier = HPS_TIER_HOST,
    .caps = HPS_STORE_INSERTS | HPS_STORE_SCANS | HPS_STORE_SHAPES,
    .bulk = &bulk_ops,
    .limits = &limits_ops,
    .pool = &pool_ops,
    .close = host_close,
    .space_open = host_space_open,
    .space_close = host_space_close,
    .space_drop = host_space_drop,
    .space_usage = host_space_usage,
    .get = host_get,
    .get_many = hps_store_get_each,
    .insert = host_insert,
    .put = host_put,
    .erase = host_erase,
    .scan = host_scan,
};

static void shared_init(struct hps_host_shared *shared, const struct hps_host_map_options *options,
                        struct hps_epoch *epoch)
{
    const char *why = NULL;
    double target = (double)options->rows_max * options->target_ratio;
    shared->budget.bytes_max = options->bytes_max;
    shared->budget.huge = hps_host_huge_pages(&why);
    shared->epoch = epoch;
    shared->seed = hps_hash_secret();
    shared->kernel = hps_host_kernel();
    shared->evicts = options->evicts || options->lossy;
    shared->lossy = options->lossy;
    shared->dense = options->dense;
    shared->rows_max = options->rows_max != 0 ? options->rows_max : UINT64_MAX;
    shared->rows_target = options->rows_max != 0 ? (uint64_t)target : UINT64_MAX;
    shared->give_way = options->evicts ? host_give_way : NULL;
    if (!shared->budget.huge) {
        HPS_LOG(WARN, "host", "huge pages unavailable: lookups take up to 4 times as long; see why",
                HPS_STR("why", why));
    }
}

hps_status hps_host_map_open_with(const struct hps_host_map_options *options,
                                  struct hps_store **out_store, struct hps_error *err)
{
    HPS_ASSERT(!options->lossy || !options->evicts);
    HPS_ASSERT(options->rows_max == 0 || (options->target_ratio > 0 && !options->dense));
    struct host_map *store = hps_calloc(1, sizeof(*store));
    struct hps_epoch *epoch = hps_epoch_new();
    if (store == NULL || epoch == NULL) {
        hps_epoch_free(epoch);
        hps_free(store);
        return hps_error_set(err, HPS_NO_MEMORY, "host: no memory for the store");
    }
    store->ops = host_ops;
    store->ops.caps |= options->evicts ? 0 : HPS_STORE_KEEPS;
    store->base.ops = &store->ops;
    shared_init(&store->shared, options, epoch);
    hps_lock_init(&store->lock, HPS_LOCK_HOST);
    *out_store = &store->base;
    return HPS_OK;
}

hps_status hps_host_map_open(uint64_t bytes_max, struct hps_store **out_store,
                             struct hps_error *err)
{
    const struct hps_host_map_options options = {.bytes_max = bytes_max};
    return hps_host_map_open_with(&options, out_store, err);
}

struct hps_epoch *hps_host_map_epoch(struct hps_store *store)
{
    return ((struct host_map *)store)->shared.epoch;
}

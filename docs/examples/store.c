/* SPDX-License-Identifier: Apache-2.0
 *
 * Example of a store. A store embeds `struct hps_store` as its first member, and a space embeds
 * `struct hps_space`. The table of calls at the end lists its operations. One lock guards
 * everything, so any thread may call.
 */
#include "docs/examples/store.h"

#include <pthread.h>
#include <string.h>

#include "backends/store_bulk.h"
#include "base/clock.h"
#include "base/heap.h"

enum { SCAN_ROWS = 256 }; /* given out at a time */

/* Keys ascending; row i at rows + i * row_bytes. */
struct array {
    hps_key *keys;
    uint8_t *rows;
    uint32_t n;
    uint32_t capacity;
    uint32_t row_bytes;
};

struct example_space {
    struct hps_space base;
    struct example_space *next;
    char *model;
    int64_t version;
    bool loading;
    uint32_t n_tables;
    struct array tables[]; /* by id */
};

struct example_store {
    struct hps_store base;
    pthread_mutex_t lock;
    struct example_space *spaces; /* open ones */
};

/* Rows of a load are kept apart until it is committed. */
struct hps_store_load {
    struct example_space *space;
    uint32_t n_tables;
    struct array tables[];
};

static struct example_store *store_of(const struct hps_space *space)
{
    return (struct example_store *)space->store;
}

/* ---- arrays ---------------------------------------------------------------------------------- */

static void array_fini(struct array *array)
{
    hps_free(array->keys);
    hps_free(array->rows);
}

/* Where the key is, or would be. */
static uint32_t array_find(const struct array *array, hps_key key)
{
    uint32_t low = 0;
    uint32_t high = array->n;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        low = array->keys[middle] < key ? middle + 1 : low;
        high = array->keys[middle] < key ? high : middle;
    }
    return low;
}

static bool array_has(const struct array *array, uint32_t at, hps_key key)
{
    return at < array->n && array->keys[at] == key;
}

static hps_status array_grow(struct array *array)
{
    uint32_t capacity = array->capacity == 0 ? 64 : 2 * array->capacity;
    hps_key *keys = hps_realloc(array->keys, capacity * sizeof(*keys));
    if (keys == NULL) {
        return HPS_NO_MEMORY;
    }
    array->keys = keys;
    uint8_t *rows = hps_realloc(array->rows, (size_t)capacity * array->row_bytes);
    if (rows == NULL) {
        return HPS_NO_MEMORY;
    }
    array->rows = rows;
    array->capacity = capacity;
    return HPS_OK;
}

static hps_status array_put(struct array *array, hps_key key, const uint8_t *row)
{
    size_t row_bytes = array->row_bytes;
    uint32_t at = array_find(array, key);
    if (!array_has(array, at, key)) {
        if (array->n == array->capacity && array_grow(array) != HPS_OK) {
            return HPS_NO_MEMORY;
        }
        memmove(array->keys + at + 1, array->keys + at, (array->n - at) * sizeof(key));
        memmove(array->rows + (at + 1) * row_bytes, array->rows + at * row_bytes,
                (array->n - at) * row_bytes);
        array->keys[at] = key;
        array->n++;
    }
    memcpy(array->rows + at * row_bytes, row, row_bytes);
    return HPS_OK;
}

static void array_erase(struct array *array, hps_key key)
{
    size_t row_bytes = array->row_bytes;
    uint32_t at = array_find(array, key);
    if (array_has(array, at, key)) {
        array->n--;
        memmove(array->keys + at, array->keys + at + 1, (array->n - at) * sizeof(key));
        memmove(array->rows + at * row_bytes, array->rows + (at + 1) * row_bytes,
                (array->n - at) * row_bytes);
    }
}

/* ---- spaces ---------------------------------------------------------------------------------- */

static void space_free(struct example_space *space)
{
    for (uint32_t i = 0; i < space->n_tables; i++) {
        array_fini(&space->tables[i]);
    }
    hps_free(space->model);
    hps_free(space);
}

static hps_status space_open(struct hps_store *base, const struct hps_space_id *id,
                             struct hps_space **out_space, struct hps_error *err)
{
    struct example_store *store = (struct example_store *)base;
    struct example_space *space =
        hps_calloc(1, sizeof(*space) + id->n_tables * sizeof(space->tables[0]));
    if (space == NULL || (space->model = hps_strdup(id->model)) == NULL) {
        hps_free(space);
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for a space");
    }
    space->base.store = base;
    space->version = id->version;
    space->n_tables = id->n_tables;
    for (uint32_t i = 0; i < id->n_tables; i++) {
        space->tables[i].row_bytes = id->tables[i].row_bytes;
    }
    hps_status status = HPS_OK;
    pthread_mutex_lock(&store->lock);
    for (struct example_space *other = store->spaces; other != NULL; other = other->next) {
        bool same = other->version == id->version && strcmp(other->model, id->model) == 0;
        status = same ? HPS_EXISTS : status;
    }
    if (status == HPS_OK) {
        space->next = store->spaces;
        store->spaces = space;
    }
    pthread_mutex_unlock(&store->lock);
    if (status != HPS_OK) {
        space_free(space);
        return hps_error_set(err, status, "version %lld of %s is open", (long long)id->version,
                             id->model);
    }
    *out_space = &space->base;
    return HPS_OK;
}

static void space_close(struct hps_space *base)
{
    struct example_store *store = store_of(base);
    pthread_mutex_lock(&store->lock);
    struct example_space **place = &store->spaces;
    while (&(*place)->base != base) {
        place = &(*place)->next;
    }
    *place = (*place)->next;
    pthread_mutex_unlock(&store->lock);
    space_free((struct example_space *)base);
}

/* Nothing outlives the handle. */
static hps_status space_drop(struct hps_space *base, struct hps_error *err)
{
    (void)err;
    space_close(base);
    return HPS_OK;
}

static void space_usage(struct hps_space *base, struct hps_store_usage *out_usage)
{
    struct example_space *space = (struct example_space *)base;
    struct hps_store_usage usage = {0};
    pthread_mutex_lock(&store_of(base)->lock);
    for (uint32_t i = 0; i < space->n_tables; i++) {
        const struct array *array = &space->tables[i];
        usage.n_rows += array->n;
        usage.used_bytes += (uint64_t)array->capacity * (sizeof(hps_key) + array->row_bytes);
    }
    pthread_mutex_unlock(&store_of(base)->lock);
    *out_usage = usage;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Moves each key that it finds behind `n`. It runs from the back, so it visits each key once. */
static hps_status get(struct hps_space *base, const struct hps_call *call,
                      const struct hps_table *table, struct hps_batch *batch)
{
    const struct array *array = &((struct example_space *)base)->tables[table->id];
    if (call->deadline_us != 0 && hps_clock_us() >= call->deadline_us) {
        return HPS_DEADLINE;
    }
    pthread_mutex_lock(&store_of(base)->lock);
    for (uint32_t i = batch->n; i-- > 0;) {
        hps_key key = batch->keys[i];
        uint32_t at = array_find(array, key);
        if (array_has(array, at, key)) {
            memcpy(batch->rows + (size_t)batch->slots[i] * table->row_bytes,
                   array->rows + (size_t)at * table->row_bytes, table->row_bytes);
            hps_batch_found(batch, i);
        }
    }
    pthread_mutex_unlock(&store_of(base)->lock);
    return HPS_OK;
}

/* A key that the store has keeps its row. For other keys it calls the guard under the lock. */
static hps_status insert(struct hps_space *base, const struct hps_call *call,
                         const struct hps_table *table, const hps_key *keys, const uint32_t *slots,
                         const uint8_t *rows, uint32_t n, const struct hps_insert_guard *guard,
                         struct hps_insert_report *out_report)
{
    struct array *array = &((struct example_space *)base)->tables[table->id];
    struct hps_insert_report report = {0};
    (void)call;
    pthread_mutex_lock(&store_of(base)->lock);
    for (uint32_t i = 0; i < n; i++) {
        if (array_has(array, array_find(array, keys[i]), keys[i])) {
            continue;
        }
        if (guard != NULL && !guard->fresh(guard->ctx, i)) {
            report.n_stale++;
        } else if (array_put(array, keys[i], rows + (size_t)slots[i] * table->row_bytes) !=
                   HPS_OK) {
            report.n_no_capacity++;
        } else {
            report.n_inserted++;
        }
    }
    pthread_mutex_unlock(&store_of(base)->lock);
    *out_report = report;
    return HPS_OK;
}

static hps_status erase(struct hps_space *base, const struct hps_call *call,
                        const struct hps_table *table, const hps_key *keys, uint32_t n)
{
    struct array *array = &((struct example_space *)base)->tables[table->id];
    (void)call;
    pthread_mutex_lock(&store_of(base)->lock);
    for (uint32_t i = 0; i < n; i++) {
        array_erase(array, keys[i]);
    }
    pthread_mutex_unlock(&store_of(base)->lock);
    return HPS_OK;
}

/* Without memory none of the keys has an older row any more. */
static hps_status put(struct hps_space *base, const struct hps_call *call,
                      const struct hps_table *table, const hps_key *keys, const uint8_t *rows,
                      uint32_t n)
{
    struct array *array = &((struct example_space *)base)->tables[table->id];
    hps_status status = HPS_OK;
    (void)call;
    pthread_mutex_lock(&store_of(base)->lock);
    for (uint32_t i = 0; i < n; i++) {
        if (array_put(array, keys[i], rows + (size_t)i * table->row_bytes) != HPS_OK) {
            array_erase(array, keys[i]);
            status = HPS_EXHAUSTED;
        }
    }
    pthread_mutex_unlock(&store_of(base)->lock);
    return status;
}

/* `fn` is called without the lock, so it may query the store. A row that is inserted or erased
 * during the scan may be left out, or passed twice. */
static hps_status scan(struct hps_space *base, const struct hps_table *table,
                       hps_status (*fn)(void *ctx, const hps_key *keys, const uint8_t *rows,
                                        uint32_t n),
                       void *ctx, struct hps_error *err)
{
    const struct array *array = &((struct example_space *)base)->tables[table->id];
    size_t row_bytes = table->row_bytes;
    hps_key *keys = hps_alloc(SCAN_ROWS * (sizeof(*keys) + row_bytes));
    if (keys == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "table %s: no memory for a scan", table->name);
    }
    uint8_t *rows = (uint8_t *)(keys + SCAN_ROWS);
    hps_status status = HPS_OK;
    for (uint32_t n = SCAN_ROWS, at = 0; n == SCAN_ROWS && status == HPS_OK; at += n) {
        pthread_mutex_lock(&store_of(base)->lock);
        n = at >= array->n ? 0 : array->n - at < SCAN_ROWS ? array->n - at : SCAN_ROWS;
        if (n > 0) {
            memcpy(keys, array->keys + at, n * sizeof(*keys));
            memcpy(rows, array->rows + at * row_bytes, n * row_bytes);
        }
        pthread_mutex_unlock(&store_of(base)->lock);
        status = n == 0 ? HPS_OK : fn(ctx, keys, rows, n);
    }
    hps_free(keys);
    return status;
}

/* ---- loads ----------------------------------------------------------------------------------- */

static void set_loading(struct example_space *space, bool loading)
{
    pthread_mutex_lock(&store_of(&space->base)->lock);
    space->loading = loading;
    pthread_mutex_unlock(&store_of(&space->base)->lock);
}

static void load_abort(struct hps_store_load *load)
{
    for (uint32_t i = 0; i < load->n_tables; i++) {
        array_fini(&load->tables[i]);
    }
    set_loading(load->space, false);
    hps_free(load);
}

static hps_status load_begin(struct hps_space *base, uint64_t rows_expected,
                             uint64_t bytes_expected, struct hps_store_load **out_load,
                             struct hps_error *err)
{
    struct example_space *space = (struct example_space *)base;
    bool busy = false;
    (void)rows_expected, (void)bytes_expected;
    pthread_mutex_lock(&store_of(base)->lock);
    busy = space->loading;
    for (uint32_t i = 0; i < space->n_tables; i++) {
        busy = busy || space->tables[i].n > 0;
    }
    space->loading = space->loading || !busy;
    pthread_mutex_unlock(&store_of(base)->lock);
    if (busy) {
        return hps_error_set(err, HPS_PRECONDITION, "the space has rows, or is being loaded");
    }
    struct hps_store_load *load =
        hps_calloc(1, sizeof(*load) + space->n_tables * sizeof(load->tables[0]));
    if (load == NULL) {
        set_loading(space, false);
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for a load");
    }
    load->space = space;
    load->n_tables = space->n_tables;
    for (uint32_t i = 0; i < load->n_tables; i++) {
        load->tables[i].row_bytes = space->tables[i].row_bytes;
    }
    *out_load = load;
    return HPS_OK;
}

static hps_status load_add(struct hps_store_load *load, const struct hps_table *table,
                           const hps_key *keys, const uint8_t *rows, uint32_t n,
                           struct hps_error *err)
{
    struct array *array = &load->tables[table->id];
    for (uint32_t id = table->id + 1; id < load->n_tables; id++) {
        if (load->tables[id].n > 0) {
            return hps_error_set(err, HPS_INVALID, "tables do not ascend");
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        if (array->n > 0 && keys[i] <= array->keys[array->n - 1]) {
            return hps_error_set(err, HPS_INVALID, "table %s: keys do not ascend", table->name);
        }
        if (array_put(array, keys[i], rows + (size_t)i * table->row_bytes) != HPS_OK) {
            return hps_error_set(err, HPS_NO_MEMORY, "table %s: no memory", table->name);
        }
    }
    return HPS_OK;
}

/* All tables at once: under one lock. */
static hps_status load_commit(struct hps_store_load *load, struct hps_error *err)
{
    struct example_store *store = store_of(&load->space->base);
    (void)err;
    pthread_mutex_lock(&store->lock);
    for (uint32_t i = 0; i < load->n_tables; i++) {
        array_fini(&load->space->tables[i]);
        load->space->tables[i] = load->tables[i];
    }
    pthread_mutex_unlock(&store->lock);
    set_loading(load->space, false);
    hps_free(load);
    return HPS_OK;
}

/* ---- the store ------------------------------------------------------------------------------- */

static void store_close(struct hps_store *base)
{
    struct example_store *store = (struct example_store *)base;
    pthread_mutex_destroy(&store->lock);
    hps_free(store);
}

static const struct hps_store_bulk_ops bulk_ops = {
    .begin = load_begin,
    .add = load_add,
    .commit = load_commit,
    .abort = load_abort,
};

static const struct hps_store_ops example_ops = {
    .name = "example",
    .tier = HPS_TIER_HOST,
    /* In memory: it does not block, and belongs to this process alone. */
    .caps = HPS_STORE_INSERTS | HPS_STORE_SCANS,
    .bulk = &bulk_ops,
    .close = store_close,
    .space_open = space_open,
    .space_close = space_close,
    .space_drop = space_drop,
    .space_usage = space_usage,
    .get = get,
    .get_many = hps_store_get_each,
    .insert = insert,
    .put = put,
    .erase = erase,
    .scan = scan,
};

hps_status hps_example_store_open(struct hps_store **out_store, struct hps_error *err)
{
    struct example_store *store = hps_calloc(1, sizeof(*store));
    if (store == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for a store");
    }
    pthread_mutex_init(&store->lock, NULL);
    store->base.ops = &example_ops;
    *out_store = &store->base;
    return HPS_OK;
}

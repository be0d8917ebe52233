/* SPDX-License-Identifier: Apache-2.0
 *
 * The scripted store. One mutex protects all data. A call waits at its gate before it begins.
 */
#include "tests/lib/fake_store.h"

#include <inttypes.h>
#include <pthread.h>
#include <string.h>

#include "backends/store_bulk.h"
#include "backends/store_durable.h"
#include "backends/store_log.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"

struct script {
    uint32_t skip;
    uint32_t n_times;
    uint32_t n_keys;
    hps_status status;
    bool shut;
    uint32_t n_waiting;
    uint64_t latency_us;
    uint64_t n_calls;
    uint64_t n_keys_seen;
};

/* The rows of one table, sorted by key. */
struct fake_table {
    uint32_t row_bytes;
    size_t n;
    size_t capacity;
    hps_key *keys;
    uint8_t *rows;
};

struct fake_tables {
    uint32_t n_tables;
    struct fake_table tables[];
};

struct record {
    void *key;
    size_t key_size;
    void *value;
    size_t value_size;
    struct record *next; /* in order of key */
};

struct fake_space {
    struct hps_space base;
    char *model;
    int64_t version;
    bool open;
    bool loading;
    struct fake_tables *data;
    struct record *records;
    struct fake_space *next;
};

struct fake {
    struct hps_store base;
    struct hps_store_ops ops;
    uint64_t bytes_max;
    uint64_t used_bytes;
    uint64_t bytes_free;
    bool later;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct script scripts[HPS_FAKE_OP_COUNT];
    struct fake_space *spaces;
    struct record *records;
};

struct hps_store_load {
    struct fake_space *space;
    struct fake_tables *data;
    bool any;
    uint32_t table;
    hps_key key;
};

/* ---- script ---------------------------------------------------------------------------------- */

/* Take the lock and run the script of `op`. out_n_keys: keys to process before the status is
 * returned. */
static hps_status play(struct fake *store, enum hps_fake_op op, uint32_t n, uint32_t *out_n_keys)
{
    struct script *script = &store->scripts[op];
    pthread_mutex_lock(&store->lock);
    script->n_calls++;
    script->n_keys_seen += n;
    script->n_waiting++;
    pthread_cond_broadcast(&store->changed);
    while (script->shut) {
        pthread_cond_wait(&store->changed, &store->lock);
    }
    script->n_waiting--;
    if (script->latency_us != 0) {
        hps_clock_advance(script->latency_us);
    }
    *out_n_keys = n;
    if (script->n_times == 0) {
        return HPS_OK;
    }
    if (script->skip > 0) {
        script->skip--;
        return HPS_OK;
    }
    if (script->n_times != UINT32_MAX) {
        script->n_times--;
    }
    *out_n_keys = script->n_keys < n ? script->n_keys : n;
    return script->status;
}

static hps_status play_error(struct fake *store, enum hps_fake_op op, struct hps_error *err)
{
    uint32_t n_keys;
    hps_status status = play(store, op, 0, &n_keys);
    return status == HPS_OK ? status : hps_error_set(err, status, "fake: scripted");
}

static hps_status unlock(struct fake *store, hps_status status)
{
    pthread_mutex_unlock(&store->lock);
    return status;
}

void hps_fake_fail(struct hps_store *base, enum hps_fake_op op, hps_status status, uint32_t skip,
                   uint32_t n_times, uint32_t n_keys)
{
    struct fake *store = (struct fake *)base;
    pthread_mutex_lock(&store->lock);
    struct script *script = &store->scripts[op];
    script->status = status;
    script->skip = skip;
    script->n_times = n_times;
    script->n_keys = n_keys;
    pthread_mutex_unlock(&store->lock);
}

static void gate_set(struct hps_store *base, enum hps_fake_op op, bool shut)
{
    struct fake *store = (struct fake *)base;
    pthread_mutex_lock(&store->lock);
    store->scripts[op].shut = shut;
    pthread_cond_broadcast(&store->changed);
    pthread_mutex_unlock(&store->lock);
}

void hps_fake_gate_shut(struct hps_store *store, enum hps_fake_op op)
{
    gate_set(store, op, true);
}

void hps_fake_gate_open(struct hps_store *store, enum hps_fake_op op)
{
    gate_set(store, op, false);
}

void hps_fake_gate_wait(struct hps_store *base, enum hps_fake_op op, uint32_t n_waiting)
{
    struct fake *store = (struct fake *)base;
    pthread_mutex_lock(&store->lock);
    while (store->scripts[op].n_waiting < n_waiting) {
        pthread_cond_wait(&store->changed, &store->lock);
    }
    pthread_mutex_unlock(&store->lock);
}

/* Set one number of the store under its lock. */
static void number_set(struct hps_store *base, uint64_t *number, uint64_t value)
{
    pthread_mutex_lock(&((struct fake *)base)->lock);
    *number = value;
    pthread_mutex_unlock(&((struct fake *)base)->lock);
}

static uint64_t number_get(struct hps_store *base, const uint64_t *number)
{
    pthread_mutex_lock(&((struct fake *)base)->lock);
    uint64_t value = *number;
    pthread_mutex_unlock(&((struct fake *)base)->lock);
    return value;
}

void hps_fake_latency(struct hps_store *base, enum hps_fake_op op, uint64_t latency_us)
{
    number_set(base, &((struct fake *)base)->scripts[op].latency_us, latency_us);
}

uint64_t hps_fake_calls(struct hps_store *base, enum hps_fake_op op)
{
    return number_get(base, &((struct fake *)base)->scripts[op].n_calls);
}

uint64_t hps_fake_keys(struct hps_store *base, enum hps_fake_op op)
{
    return number_get(base, &((struct fake *)base)->scripts[op].n_keys_seen);
}

void hps_fake_bytes_free(struct hps_store *base, uint64_t bytes)
{
    number_set(base, &((struct fake *)base)->bytes_free, bytes);
}

void hps_fake_later(struct hps_store *base, bool later)
{
    struct fake *store = (struct fake *)base;
    pthread_mutex_lock(&store->lock);
    HPS_ASSERT((store->ops.caps & HPS_STORE_SHARED) != 0);
    store->later = later;
    pthread_mutex_unlock(&store->lock);
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* The index of `key`, or of the first larger key. */
static size_t table_find(const struct fake_table *table, hps_key key, bool *out_found)
{
    size_t lo = 0;
    size_t hi = table->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (table->keys[mid] < key) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    *out_found = lo < table->n && table->keys[lo] == key;
    return lo;
}

/* Allocate memory for n_more rows. */
static hps_status table_grow(struct fake_table *table, size_t n_more)
{
    if (table->n + n_more <= table->capacity) {
        return HPS_OK;
    }
    size_t capacity = 2 * (table->n + n_more);
    hps_key *keys = hps_realloc(table->keys, capacity * sizeof(*keys));
    if (keys == NULL) {
        return HPS_NO_MEMORY;
    }
    table->keys = keys;
    uint8_t *rows = hps_realloc(table->rows, capacity * table->row_bytes);
    if (rows == NULL) {
        return HPS_NO_MEMORY;
    }
    table->rows = rows;
    table->capacity = capacity;
    return HPS_OK;
}

static hps_status table_put(struct fake *store, struct fake_table *table, hps_key key,
                            const uint8_t *row)
{
    bool found;
    size_t size = table->row_bytes;
    size_t at = table_find(table, key, &found);
    if (!found) {
        if (store->bytes_max != 0 && size > store->bytes_max - store->used_bytes) {
            return HPS_EXHAUSTED;
        }
        hps_status status = table_grow(table, 1);
        if (status != HPS_OK) {
            return status;
        }
        memmove(table->keys + at + 1, table->keys + at, (table->n - at) * sizeof(key));
        memmove(table->rows + (at + 1) * size, table->rows + at * size, (table->n - at) * size);
        table->keys[at] = key;
        table->n++;
        store->used_bytes += size;
    }
    memcpy(table->rows + at * size, row, size);
    return HPS_OK;
}

static void table_erase(struct fake *store, struct fake_table *table, hps_key key)
{
    bool found;
    size_t size = table->row_bytes;
    size_t at = table_find(table, key, &found);
    if (found) {
        table->n--;
        memmove(table->keys + at, table->keys + at + 1, (table->n - at) * sizeof(key));
        memmove(table->rows + at * size, table->rows + (at + 1) * size, (table->n - at) * size);
        store->used_bytes -= size;
    }
}

static struct fake_tables *tables_new(uint32_t n_tables)
{
    struct fake_tables *data = hps_calloc(1, sizeof(*data) + n_tables * sizeof(data->tables[0]));
    if (data != NULL) {
        data->n_tables = n_tables;
    }
    return data;
}

static void tables_free(struct fake *store, struct fake_tables *data)
{
    if (data == NULL) {
        return;
    }
    for (uint32_t i = 0; i < data->n_tables; i++) {
        store->used_bytes -= data->tables[i].n * data->tables[i].row_bytes;
        hps_free(data->tables[i].keys);
        hps_free(data->tables[i].rows);
    }
    hps_free(data);
}

static struct fake_table *table_of(struct hps_space *space, const struct hps_table *table)
{
    struct fake_tables *data = ((struct fake_space *)space)->data;
    bool hidden = (table->id & HPS_TABLE_HIDDEN) != 0;
    uint32_t at = (table->id & ~HPS_TABLE_HIDDEN) + (hidden ? data->n_tables / 2 : 0);
    HPS_ASSERT(at < data->n_tables);
    HPS_ASSERT(data->tables[at].row_bytes == table->row_bytes);
    return &data->tables[at];
}

/* ---- lists of records ------------------------------------------------------------------------ */

/* The link to the first record that is not less than `key`. */
static struct record **record_find(struct record **link, const void *key, size_t size,
                                   bool *out_found)
{
    *out_found = false;
    for (; *link != NULL; link = &(*link)->next) {
        size_t common = (*link)->key_size < size ? (*link)->key_size : size;
        int order = memcmp((*link)->key, key, common);
        if (order > 0 || (order == 0 && (*link)->key_size >= size)) {
            *out_found = order == 0 && (*link)->key_size == size;
            break;
        }
    }
    return link;
}

static void record_free(struct record *record)
{
    if (record != NULL) {
        hps_free(record->key);
        hps_free(record->value);
        hps_free(record);
    }
}

static void record_remove(struct record **link)
{
    struct record *record = *link;
    *link = record->next;
    record_free(record);
}

static struct record *record_new(const void *key, size_t key_size, const void *value,
                                 size_t value_size)
{
    struct record *record = hps_calloc(1, sizeof(*record));
    if (record == NULL) {
        return NULL;
    }
    *record = (struct record){hps_alloc(key_size + 1), key_size, hps_alloc(value_size + 1),
                              value_size, NULL};
    if (record->key == NULL || record->value == NULL) {
        record_free(record);
        return NULL;
    }
    memcpy(record->key, key, key_size);
    if (value_size > 0) {
        memcpy(record->value, value, value_size);
    }
    return record;
}

/* takes `record`. It replaces a record with the same key. */
static void record_insert(struct record **list, struct record *record)
{
    bool found;
    struct record **link = record_find(list, record->key, record->key_size, &found);
    if (found) {
        record_remove(link);
    }
    record->next = *link;
    *link = record;
}

static void records_free(struct record *list)
{
    while (list != NULL) {
        record_remove(&list);
    }
}

/* ---- spaces ---------------------------------------------------------------------------------- */

static void space_free(struct fake *store, struct fake_space *space)
{
    struct fake_space **link = &store->spaces;
    while (*link != space) {
        link = &(*link)->next;
    }
    *link = space->next;
    tables_free(store, space->data);
    records_free(space->records);
    hps_free(space->model);
    hps_free(space);
}

static hps_status space_new(struct fake *store, const struct hps_space_id *id,
                            struct fake_space **out_space)
{
    struct fake_space *space = hps_calloc(1, sizeof(*space));
    char *model = hps_strdup(id->model);
    struct fake_tables *data = tables_new(2 * id->n_tables);
    if (space == NULL || model == NULL || data == NULL) {
        hps_free(space);
        hps_free(model);
        hps_free(data);
        return HPS_NO_MEMORY;
    }
    for (uint32_t i = 0; i < id->n_tables; i++) { /* and one hidden table for each */
        data->tables[i].row_bytes = id->tables[i].row_bytes;
        data->tables[id->n_tables + i].row_bytes = sizeof(uint64_t);
    }
    space->base.store = &store->base;
    space->model = model;
    space->version = id->version;
    space->data = data;
    space->next = store->spaces;
    store->spaces = space;
    *out_space = space;
    return HPS_OK;
}

static hps_status fake_space_open(struct hps_store *base, const struct hps_space_id *id,
                                  struct hps_space **out_space, struct hps_error *err)
{
    struct fake *store = (struct fake *)base;
    hps_status status = play_error(store, HPS_FAKE_SPACE_OPEN, err);
    if (status != HPS_OK) {
        return unlock(store, status);
    }
    struct fake_space *space = store->spaces;
    while (space != NULL &&
           (space->version != id->version || strcmp(space->model, id->model) != 0)) {
        space = space->next;
    }
    if (space == NULL) {
        status = space_new(store, id, &space);
        if (status != HPS_OK) {
            return unlock(store, hps_error_set(err, status, "fake: no memory"));
        }
    } else if (space->open) {
        return unlock(store, hps_error_set(err, HPS_EXISTS, "fake: %s@%" PRId64 " is open already",
                                           id->model, id->version));
    }
    space->open = true;
    *out_space = &space->base;
    return unlock(store, HPS_OK);
}

static void fake_space_close(struct hps_space *base)
{
    struct fake *store = (struct fake *)base->store;
    struct fake_space *space = (struct fake_space *)base;
    pthread_mutex_lock(&store->lock);
    space->open = false;
    if ((store->ops.caps & HPS_STORE_DURABLE) == 0) {
        space_free(store, space);
    }
    pthread_mutex_unlock(&store->lock);
}

static hps_status fake_space_drop(struct hps_space *base, struct hps_error *err)
{
    struct fake *store = (struct fake *)base->store;
    hps_status status = play_error(store, HPS_FAKE_SPACE_DROP, err);
    struct fake_space *space = (struct fake_space *)base;
    space->open = false;
    if (status == HPS_OK || (store->ops.caps & HPS_STORE_DURABLE) == 0) {
        space_free(store, space);
    }
    return unlock(store, status);
}

static void fake_space_usage(struct hps_space *base, struct hps_store_usage *out_usage)
{
    struct fake *store = (struct fake *)base->store;
    struct fake_tables *data = ((struct fake_space *)base)->data;
    *out_usage = (struct hps_store_usage){.capacity_bytes = store->bytes_max};
    pthread_mutex_lock(&store->lock);
    for (uint32_t i = 0; i < data->n_tables; i++) {
        out_usage->n_rows += data->tables[i].n;
        out_usage->used_bytes += data->tables[i].n * data->tables[i].row_bytes;
    }
    pthread_mutex_unlock(&store->lock);
}

/* ---- rows, as operations --------------------------------------------------------------------- */

/* Return the rows of at most n_keys_max keys. The caller holds the lock. */
static void answer(struct hps_space *space, const struct hps_call *call,
                   const struct hps_table *table, struct hps_batch *batch, uint32_t n_keys_max)
{
    const struct fake *store = (const struct fake *)space->store;
    const struct fake_table *rows = table_of(space, table);
    size_t size = rows->row_bytes;
    if (store->later && call->exact_position) {
        return;
    }
    for (uint32_t i = batch->n; i-- > 0 && n_keys_max > 0; n_keys_max--) {
        bool found;
        size_t at = table_find(rows, batch->keys[i], &found);
        if (found) {
            memcpy(batch->rows + batch->slots[i] * size, rows->rows + at * size, size);
            hps_batch_found(batch, i);
        }
    }
    if (store->later && call->later != NULL) {
        *call->later = true;
    }
}

static hps_status fake_get(struct hps_space *space, const struct hps_call *call,
                           const struct hps_table *table, struct hps_batch *batch)
{
    struct fake *store = (struct fake *)space->store;
    uint32_t n_keys;
    hps_status status = play(store, HPS_FAKE_GET, batch->n, &n_keys);
    if (call->deadline_us != 0 && hps_clock_us() >= call->deadline_us) {
        return unlock(store, HPS_DEADLINE);
    }
    answer(space, call, table, batch, n_keys);
    return unlock(store, status);
}

static hps_status fake_get_many(struct hps_space *space, const struct hps_call *call,
                                struct hps_part_batch *parts, uint32_t n_parts)
{
    struct fake *store = (struct fake *)space->store;
    uint32_t n = 0;
    uint32_t n_keys;
    for (uint32_t i = 0; i < n_parts; i++) {
        n += parts[i].batch.n;
    }
    hps_status status = play(store, HPS_FAKE_GET_MANY, n, &n_keys);
    if (call->deadline_us != 0 && hps_clock_us() >= call->deadline_us) {
        return unlock(store, HPS_DEADLINE);
    }
    for (uint32_t i = 0; i < n_parts && n_keys > 0; i++) {
        uint32_t n_part = parts[i].batch.n < n_keys ? parts[i].batch.n : n_keys;
        answer(space, call, parts[i].table, &parts[i].batch, n_part);
        n_keys -= n_part;
    }
    return unlock(store, status);
}

static hps_status fake_insert(struct hps_space *space, const struct hps_call *call,
                              const struct hps_table *table, const hps_key *keys,
                              const uint32_t *slots, const uint8_t *rows, uint32_t n,
                              const struct hps_insert_guard *guard,
                              struct hps_insert_report *out_report)
{
    (void)call;
    struct fake *store = (struct fake *)space->store;
    struct hps_insert_report report = {0};
    uint32_t n_keys;
    hps_status status = play(store, HPS_FAKE_INSERT, n, &n_keys);
    struct fake_table *into = table_of(space, table);
    for (uint32_t i = 0; i < n_keys; i++) {
        bool found;
        (void)table_find(into, keys[i], &found);
        if (guard != NULL && !guard->fresh(guard->ctx, i)) {
            report.n_stale++;
        } else if (!found) {
            const uint8_t *row = rows + (size_t)slots[i] * table->row_bytes;
            bool put = table_put(store, into, keys[i], row) == HPS_OK;
            report.n_inserted += put ? 1 : 0;
            report.n_no_capacity += put ? 0 : 1;
        }
    }
    report.n_failed = status == HPS_OK ? n - n_keys : 0;
    *out_report = report;
    return unlock(store, status);
}

static hps_status fake_put(struct hps_space *space, const struct hps_call *call,
                           const struct hps_table *table, const hps_key *keys, const uint8_t *rows,
                           uint32_t n)
{
    (void)call;
    struct fake *store = (struct fake *)space->store;
    uint32_t n_keys;
    hps_status status = play(store, HPS_FAKE_PUT, n, &n_keys);
    struct fake_table *into = table_of(space, table);
    uint32_t i = 0;
    hps_status put = HPS_OK;
    for (; i < n_keys && put == HPS_OK; i++) {
        put = table_put(store, into, keys[i], rows + (size_t)i * table->row_bytes);
    }
    if (put != HPS_OK) {
        i--;
        status = put;
    }
    if (status == HPS_EXHAUSTED) {
        for (; i < n; i++) {
            table_erase(store, into, keys[i]);
        }
    }
    return unlock(store, status);
}

static hps_status fake_erase(struct hps_space *space, const struct hps_call *call,
                             const struct hps_table *table, const hps_key *keys, uint32_t n)
{
    (void)call;
    struct fake *store = (struct fake *)space->store;
    uint32_t n_keys;
    hps_status status = play(store, HPS_FAKE_ERASE, n, &n_keys);
    for (uint32_t i = 0; i < n_keys; i++) {
        table_erase(store, table_of(space, table), keys[i]);
    }
    return unlock(store, status);
}

/* Do everything that can fail before anything changes. */
static hps_status apply_prepare(struct hps_space *space, const struct hps_write *writes,
                                uint32_t n_writes)
{
    struct fake *store = (struct fake *)space->store;
    uint64_t bytes = 0;
    size_t n_new = 0; /* of all tables: too much memory does no harm */
    for (uint32_t w = 0; w < n_writes; w++) {
        struct fake_table *table = table_of(space, writes[w].table);
        size_t n_before = n_new;
        for (uint32_t i = 0; writes[w].rows != NULL && i < writes[w].n; i++) {
            bool found;
            (void)table_find(table, writes[w].keys[i], &found);
            n_new += found ? 0 : 1;
        }
        bytes += (uint64_t)(n_new - n_before) * table->row_bytes;
        hps_status status = table_grow(table, n_new);
        if (status != HPS_OK) {
            return status;
        }
    }
    return store->bytes_max != 0 && bytes > store->bytes_max - store->used_bytes ? HPS_EXHAUSTED
                                                                                 : HPS_OK;
}

static void apply_write(struct hps_space *space, const struct hps_write *write)
{
    struct fake *store = (struct fake *)space->store;
    struct fake_table *table = table_of(space, write->table);
    for (uint32_t i = 0; i < write->n; i++) {
        if (write->rows == NULL) {
            table_erase(store, table, write->keys[i]);
        } else {
            hps_status put =
                table_put(store, table, write->keys[i], write->rows + (size_t)i * table->row_bytes);
            HPS_ASSERT(put == HPS_OK); /* apply_prepare has allocated the memory */
        }
    }
}

/* New records in the given order. */
static hps_status records_new(const struct hps_record *records, uint32_t n, struct record **out_new)
{
    struct record *list = NULL;
    for (uint32_t i = n; i-- > 0;) {
        const struct hps_record *from = &records[i];
        if (from->value == NULL) {
            continue;
        }
        struct record *record =
            record_new(from->key, from->key_size, from->value, from->value_size);
        if (record == NULL) {
            records_free(list);
            return HPS_NO_MEMORY;
        }
        record->next = list;
        list = record;
    }
    *out_new = list;
    return HPS_OK;
}

static hps_status fake_apply(struct hps_space *base, const struct hps_call *call,
                             const struct hps_write *writes, uint32_t n_writes,
                             const struct hps_record *records, uint32_t n_records,
                             struct hps_error *err)
{
    (void)call;
    struct fake *store = (struct fake *)base->store;
    struct fake_space *space = (struct fake_space *)base;
    struct record *fresh = NULL;
    hps_status status = play_error(store, HPS_FAKE_APPLY, err);
    if (status != HPS_OK) {
        return unlock(store, status);
    }
    status = apply_prepare(base, writes, n_writes);
    if (status == HPS_OK) {
        status = records_new(records, n_records, &fresh);
    }
    if (status != HPS_OK) {
        return unlock(store, hps_error_set(err, status, "fake: no room for the batch"));
    }
    for (uint32_t i = 0; i < n_writes; i++) {
        apply_write(base, &writes[i]);
    }
    for (uint32_t i = 0; i < n_records; i++) {
        bool found;
        struct record **link =
            record_find(&space->records, records[i].key, records[i].key_size, &found);
        if (records[i].value == NULL && found) {
            record_remove(link);
        } else if (records[i].value != NULL) {
            struct record *record = fresh;
            fresh = fresh->next;
            record_insert(&space->records, record);
        }
    }
    return unlock(store, HPS_OK);
}

static hps_status fake_space_record_scan(struct hps_space *base, hps_record_fn fn, void *ctx,
                                         struct hps_error *err)
{
    struct fake *store = (struct fake *)base->store;
    hps_status status = unlock(store, play_error(store, HPS_FAKE_RECORD_SCAN, err));
    const struct record *record = ((struct fake_space *)base)->records;
    for (; record != NULL && status == HPS_OK; record = record->next) {
        status = fn(ctx, record->key, record->key_size, record->value, record->value_size);
    }
    return status;
}

/* Rows are copied in batches, so that `fn` runs without the lock. */
static hps_status fake_scan(struct hps_space *space, const struct hps_table *table,
                            hps_status (*fn)(void *ctx, const hps_key *keys, const uint8_t *rows,
                                             uint32_t n),
                            void *ctx, struct hps_error *err)
{
    enum { BATCH = 64 };
    struct fake *store = (struct fake *)space->store;
    hps_status status = unlock(store, play_error(store, HPS_FAKE_SCAN, err));
    if (status != HPS_OK) {
        return status;
    }
    uint8_t *rows = hps_alloc((size_t)BATCH * table->row_bytes);
    if (rows == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "fake: no memory");
    }
    hps_key keys[BATCH];
    hps_key next = 0;
    bool more = true;
    while (more && status == HPS_OK) {
        pthread_mutex_lock(&store->lock);
        const struct fake_table *from = table_of(space, table);
        bool found;
        size_t at = table_find(from, next, &found);
        uint32_t n = from->n - at < BATCH ? (uint32_t)(from->n - at) : BATCH;
        if (n > 0) {
            memcpy(keys, from->keys + at, n * sizeof(*keys));
            memcpy(rows, from->rows + at * from->row_bytes, (size_t)n * from->row_bytes);
        }
        pthread_mutex_unlock(&store->lock);
        more = n == BATCH && keys[n - 1] != UINT64_MAX;
        next = more ? keys[n - 1] + 1 : 0;
        status = n > 0 ? fn(ctx, keys, rows, n) : HPS_OK;
    }
    hps_free(rows);
    return status;
}

/* ---- loads ----------------------------------------------------------------------------------- */

static hps_status load_check(const struct fake *store, const struct fake_space *space,
                             uint64_t bytes_expected, struct hps_error *err)
{
    bool empty = true;
    for (uint32_t i = 0; i < space->data->n_tables; i++) {
        empty = empty && space->data->tables[i].n == 0;
    }
    if (space->loading || !empty) {
        return hps_error_set(err, HPS_PRECONDITION, "fake: the space is %s",
                             space->loading ? "being loaded already" : "not empty");
    }
    uint64_t bytes = store->bytes_max - store->used_bytes;
    if (store->bytes_max != 0 && bytes_expected > bytes) {
        return hps_error_set(err, HPS_EXHAUSTED,
                             "fake: %" PRIu64 " bytes needed, %" PRIu64 " available",
                             bytes_expected, bytes);
    }
    return HPS_OK;
}

static hps_status fake_load_begin(struct hps_space *base, uint64_t rows_expected,
                                  uint64_t bytes_expected, struct hps_store_load **out_load,
                                  struct hps_error *err)
{
    (void)rows_expected;
    struct fake *store = (struct fake *)base->store;
    struct fake_space *space = (struct fake_space *)base;
    hps_status status = play_error(store, HPS_FAKE_LOAD_BEGIN, err);
    if (status == HPS_OK) {
        status = load_check(store, space, bytes_expected, err);
    }
    if (status != HPS_OK) {
        return unlock(store, status);
    }
    uint32_t n_tables = space->data->n_tables;
    struct hps_store_load *load = hps_calloc(1, sizeof(*load));
    struct fake_tables *data = tables_new(n_tables);
    if (load == NULL || data == NULL) {
        hps_free(load);
        hps_free(data);
        return unlock(store, hps_error_set(err, HPS_NO_MEMORY, "fake: no memory"));
    }
    for (uint32_t i = 0; i < n_tables; i++) {
        data->tables[i].row_bytes = space->data->tables[i].row_bytes;
    }
    load->space = space;
    load->data = data;
    space->loading = true;
    *out_load = load;
    return unlock(store, HPS_OK);
}

static hps_status fake_load_add(struct hps_store_load *load, const struct hps_table *table,
                                const hps_key *keys, const uint8_t *rows, uint32_t n,
                                struct hps_error *err)
{
    struct fake *store = (struct fake *)load->space->base.store;
    hps_status status = play_error(store, HPS_FAKE_LOAD_ADD, err);
    HPS_ASSERT(table->id < load->data->n_tables);
    for (uint32_t i = 0; i < n && status == HPS_OK; i++) {
        if (load->any &&
            (table->id < load->table || (table->id == load->table && keys[i] <= load->key))) {
            status = hps_error_set(err, HPS_INVALID, "fake: table %s: keys are not ascending",
                                   table->name);
            break;
        }
        status = table_put(store, &load->data->tables[table->id], keys[i],
                           rows + (size_t)i * table->row_bytes);
        if (status != HPS_OK) {
            status = hps_error_set(err, status, "fake: no room for the next row of the load");
        }
        load->any = true;
        load->table = table->id;
        load->key = keys[i];
    }
    return unlock(store, status);
}

static hps_status fake_load_commit(struct hps_store_load *load, struct hps_error *err)
{
    struct fake *store = (struct fake *)load->space->base.store;
    hps_status status = play_error(store, HPS_FAKE_LOAD_COMMIT, err);
    if (status == HPS_OK) {
        tables_free(store, load->space->data);
        load->space->data = load->data;
        load->space->loading = false;
        hps_free(load);
    }
    return unlock(store, status);
}

static void fake_load_abort(struct hps_store_load *load)
{
    struct fake *store = (struct fake *)load->space->base.store;
    pthread_mutex_lock(&store->lock);
    load->space->loading = false;
    tables_free(store, load->data);
    hps_free(load);
    pthread_mutex_unlock(&store->lock);
}

/* ---- records --------------------------------------------------------------------------------- */

static hps_status fake_record_put(struct hps_store *base, const void *key, size_t key_size,
                                  const void *value, size_t value_size, struct hps_error *err)
{
    struct fake *store = (struct fake *)base;
    hps_status status = play_error(store, HPS_FAKE_RECORD_PUT, err);
    if (status != HPS_OK) {
        return unlock(store, status);
    }
    struct record *record = record_new(key, key_size, value, value_size);
    if (record == NULL) {
        return unlock(store, hps_error_set(err, HPS_NO_MEMORY, "fake: no memory"));
    }
    record_insert(&store->records, record);
    return unlock(store, HPS_OK);
}

static hps_status fake_record_delete(struct hps_store *base, const void *key, size_t key_size,
                                     struct hps_error *err)
{
    struct fake *store = (struct fake *)base;
    hps_status status = play_error(store, HPS_FAKE_RECORD_DELETE, err);
    bool found = false;
    struct record **link = record_find(&store->records, key, key_size, &found);
    if (status == HPS_OK && found) {
        record_remove(link);
    }
    return unlock(store, status);
}

/* `fn` must not write records. */
static hps_status fake_record_scan(struct hps_store *base, const char *prefix, hps_record_fn fn,
                                   void *ctx, struct hps_error *err)
{
    struct fake *store = (struct fake *)base;
    size_t prefix_size = strlen(prefix);
    hps_status status = unlock(store, play_error(store, HPS_FAKE_RECORD_SCAN, err));
    for (const struct record *r = store->records; r != NULL && status == HPS_OK; r = r->next) {
        if (r->key_size >= prefix_size && memcmp(r->key, prefix, prefix_size) == 0) {
            status = fn(ctx, r->key, r->key_size, r->value, r->value_size);
        }
    }
    return status;
}

static hps_status fake_space_list(struct hps_store *base, hps_space_fn fn, void *ctx,
                                  struct hps_error *err)
{
    (void)err;
    struct fake *store = (struct fake *)base;
    hps_status status = HPS_OK;
    struct fake_space *next = NULL;
    for (struct fake_space *s = store->spaces; s != NULL && status == HPS_OK; s = next) {
        next = s->next; /* `fn` may drop the space that it gets */
        status = fn(ctx, s->model, s->version);
    }
    return status;
}

static uint64_t fake_bytes_free(struct hps_store *base)
{
    return number_get(base, &((struct fake *)base)->bytes_free);
}

static const char *fake_writes_refused(struct hps_store *base)
{
    return fake_bytes_free(base) == 0 ? "disk nearly full" : NULL;
}

static void fake_close(struct hps_store *base)
{
    struct fake *store = (struct fake *)base;
    while (store->spaces != NULL) {
        HPS_ASSERT(!store->spaces->open);
        space_free(store, store->spaces);
    }
    records_free(store->records);
    HPS_ASSERT(store->used_bytes == 0);
    pthread_cond_destroy(&store->changed);
    pthread_mutex_destroy(&store->lock);
    hps_free(store);
}

static hps_status fake_checkpoint(struct hps_store *base, const char *dir, struct hps_error *err)
{
    (void)base;
    return hps_error_set(err, HPS_UNIMPLEMENTED, "%s: a store in memory", dir);
}

/* ---- the log of a shared store --------------------------------------------------------------- */

/* Tests of walks only need a store that takes updates. fake_shared.h stores positions. */
static hps_status fake_log_positions_set(struct hps_space *space,
                                         const struct hps_log_position *positions, uint32_t n)
{
    (void)space, (void)positions, (void)n;
    return HPS_UNIMPLEMENTED;
}

static hps_status fake_log_positions_get(struct hps_space *space, const struct hps_call *call,
                                         struct hps_log_position *positions, uint32_t n)
{
    (void)space, (void)call, (void)positions, (void)n;
    return HPS_UNIMPLEMENTED;
}

static void fake_log_leave(struct hps_space *space)
{
    (void)space;
}

static hps_status fake_log_apply(struct hps_space *space, const struct hps_call *call,
                                 const struct hps_log_batch *batch,
                                 struct hps_log_report *out_report)
{
    (void)space, (void)call, (void)batch, (void)out_report;
    return HPS_UNIMPLEMENTED;
}

static hps_status fake_log_behind(struct hps_space *space, const struct hps_call *call,
                                  struct hps_log_position *out_positions, uint32_t capacity,
                                  uint32_t *out_n)
{
    (void)space, (void)call, (void)out_positions, (void)capacity, (void)out_n;
    return HPS_UNIMPLEMENTED;
}

static hps_status fake_log_reset(struct hps_space *space, const struct hps_call *call,
                                 struct hps_log_report *out_report)
{
    (void)space, (void)call, (void)out_report;
    return HPS_UNIMPLEMENTED;
}

/* ---- the store ------------------------------------------------------------------------------- */

static const struct hps_store_bulk_ops fake_bulk = {.begin = fake_load_begin,
                                                    .add = fake_load_add,
                                                    .commit = fake_load_commit,
                                                    .abort = fake_load_abort};

static const struct hps_store_durable_ops fake_durable = {
    .apply = fake_apply,
    .space_record_scan = fake_space_record_scan,
    .record_put = fake_record_put,
    .record_delete = fake_record_delete,
    .record_scan = fake_record_scan,
    .space_list = fake_space_list,
    .bytes_free = fake_bytes_free,
    .writes_refused = fake_writes_refused,
    .checkpoint = fake_checkpoint,
};

static const struct hps_store_log_ops fake_log = {.positions_set = fake_log_positions_set,
                                                  .positions_get = fake_log_positions_get,
                                                  .leave = fake_log_leave,
                                                  .apply = fake_log_apply,
                                                  .behind = fake_log_behind,
                                                  .reset = fake_log_reset};

struct hps_store *hps_fake_store_new(const struct hps_fake_options *options)
{
    struct fake *store = hps_calloc(1, sizeof(*store));
    if (store == NULL) {
        return NULL;
    }
    store->ops = (struct hps_store_ops){
        .name = options->name != NULL ? options->name : "fake",
        .tier = options->tier,
        .caps = options->caps | HPS_STORE_INSERTS | HPS_STORE_SCANS,
        .bulk = &fake_bulk,
        .durable = (options->caps & HPS_STORE_DURABLE) != 0 ? &fake_durable : NULL,
        .log = (options->caps & HPS_STORE_SHARED) != 0 ? &fake_log : NULL,
        .close = fake_close,
        .space_open = fake_space_open,
        .space_close = fake_space_close,
        .space_drop = fake_space_drop,
        .space_usage = fake_space_usage,
        .get = fake_get,
        .get_many = (options->caps & HPS_STORE_JOINS) != 0 ? fake_get_many : hps_store_get_each,
        .insert = fake_insert,
        .put = fake_put,
        .erase = fake_erase,
        .scan = fake_scan,
    };
    hps_store_check(&store->ops);
    store->base.ops = &store->ops;
    store->bytes_max = options->bytes_max;
    store->bytes_free = UINT64_MAX;
    pthread_mutex_init(&store->lock, NULL);
    pthread_cond_init(&store->changed, NULL);
    return &store->base;
}

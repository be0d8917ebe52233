/* SPDX-License-Identifier: Apache-2.0
 *
 * Spaces above spaces of the inner store: their records, opening them with their bases, closing and
 * dropping them. Any thread.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "backends/basefile/internal.h"
#include "base/assert.h"
#include "base/heap.h"

/* ---- records --------------------------------------------------------------------------------- */

/* The value is a struct hps_basefile_record per table. */
static hps_status take_record(void *ctx, const void *key, size_t key_size, const void *value,
                              size_t value_size)
{
    struct hps_basefile_records *records = ctx;
    uint32_t format = 0;
    (void)key;
    if (records->key != NULL && key_size != strlen(records->key)) {
        return HPS_OK; /* another version: m@12 begins with m@1 */
    }
    if (value_size >= sizeof(format)) {
        memcpy(&format, value, sizeof(format));
    }
    if (format > HPS_BASEFILE_FORMAT) {
        return hps_error_set(records->err, HPS_NEWER_FORMAT,
                             "rocksdb: base files have format %" PRIu32 ", this build reads up to "
                             "%d",
                             format, HPS_BASEFILE_FORMAT);
    }
    if (format == 0 || value_size % sizeof(*records->at) != 0) {
        return hps_error_set(records->err, HPS_DATA_LOSS,
                             "rocksdb: unreadable record of base files");
    }
    size_t n = value_size / sizeof(*records->at);
    struct hps_basefile_record *at =
        hps_realloc(records->at, (records->n + n) * sizeof(*records->at));
    if (at == NULL) {
        return hps_error_set(records->err, HPS_NO_MEMORY, "rocksdb: no memory for records");
    }
    memcpy(at + records->n, value, value_size);
    records->at = at;
    records->n += n;
    return HPS_OK;
}

hps_status hps_basefile_records_read(struct hps_store *inner, struct hps_basefile_records *records)
{
    const char *prefix = records->key != NULL ? records->key : HPS_BASEFILE_RECORDS;
    return inner->ops->durable->record_scan(inner, prefix, take_record, records, records->err);
}

hps_status hps_basefile_records_write(struct hps_basefile_space *space, struct hps_error *err)
{
    struct hps_store *inner = space->inner->store;
    const struct hps_store_durable_ops *durable = inner->ops->durable;
    size_t key_size = strlen(space->key);
    bool any = false;
    for (uint32_t i = 0; i < space->n_tables; i++) {
        space->records[i].format = HPS_BASEFILE_FORMAT;
        any = any || space->records[i].number != 0;
    }
    if (!any && !space->recorded) {
        return HPS_OK; /* also on a full disk */
    }
    space->recorded = true;
    hps_status status = any ? durable->record_put(inner, space->key, key_size, space->records,
                                                  space->n_tables * sizeof(*space->records), err)
                            : durable->record_delete(inner, space->key, key_size, err);
    space->recorded = any || status != HPS_OK;
    return status;
}

/* ---- calls ----------------------------------------------------------------------------------- */

unsigned hps_basefile_enter(struct hps_basefile_space *space)
{
    for (;;) {
        unsigned epoch = atomic_load(&space->epoch);
        atomic_fetch_add(&space->n_calls[epoch % 2], 1);
        if (epoch == atomic_load(&space->epoch)) {
            return epoch;
        }
        hps_basefile_leave(space, epoch); /* perhaps too late for the merge to see the call */
    }
}

void hps_basefile_leave(struct hps_basefile_space *space, unsigned epoch)
{
    unsigned n = atomic_fetch_sub(&space->n_calls[epoch % 2], 1);
    HPS_ASSERT(n > 0);
    if (n == 1 && epoch != atomic_load(&space->epoch)) {
        hps_basefile_merger_wake(hps_basefile_of(&space->base)); /* it waits for this call */
    }
}

/* ---- opening --------------------------------------------------------------------------------- */

static void space_free(struct hps_basefile_space *space)
{
    for (uint32_t i = 0; space->bases != NULL && i < space->n_tables; i++) {
        struct hps_basefile *base = atomic_load(&space->bases[i]);
        if (base != NULL) {
            atomic_fetch_sub(&base->store->bytes, hps_basefile_bytes(base));
            hps_basefile_base_close(base);
        }
    }
    hps_lock_fini(&space->writes);
    hps_free((void *)space->bases);
    hps_free(space->records);
    hps_free(space->marks);
    hps_free(space);
}

static hps_status space_new(struct hps_basefile_store *store, const struct hps_space_id *id,
                            struct hps_basefile_space **out_space, struct hps_error *err)
{
    struct hps_basefile_space *space = hps_calloc(1, sizeof(*space));
    if (space == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "rocksdb: no memory for a version");
    }
    hps_lock_init(&space->writes, HPS_LOCK_BASEFILE_WRITES);
    space->base.store = &store->base;
    space->tables = id->tables;
    space->n_tables = id->n_tables;
    space->records = hps_calloc((size_t)id->n_tables + 1, sizeof(*space->records));
    space->marks = hps_calloc((size_t)id->n_tables + 1, sizeof(*space->marks));
    space->bases = hps_calloc((size_t)id->n_tables + 1, sizeof(*space->bases));
    if (space->records == NULL || space->marks == NULL || space->bases == NULL) {
        space_free(space);
        return hps_error_set(err, HPS_NO_MEMORY, "rocksdb: no memory for a version");
    }
    (void)snprintf(space->key, sizeof(space->key), HPS_BASEFILE_RECORDS "%s@%" PRId64, id->model,
                   id->version);
    space->name = space->key + strlen(HPS_BASEFILE_RECORDS);
    space->recorded = id->n_tables == 0; /* not known */
    for (uint32_t i = 0; i < id->n_tables; i++) {
        HPS_ASSERT(id->tables[i].id == i);
        space->marks[i] = (struct hps_table){.name = id->tables[i].name,
                                             .id = i | HPS_BASEFILE_MARKS,
                                             .dim = 1,
                                             .row_bytes = 1,
                                             .dtype = HPS_DTYPE_INT8_ROWWISE_F32};
    }
    *out_space = space;
    return HPS_OK;
}

void hps_basefile_install(struct hps_basefile_space *space, struct hps_basefile *base)
{
    atomic_fetch_add(&base->store->bytes, hps_basefile_bytes(base));
    atomic_store(&space->bases[base->table->id], base);
    atomic_store(&space->any, true);
}

static hps_status take_marks(void *ctx, const hps_key *keys, const uint8_t *rows, uint32_t n)
{
    struct hps_basefile *base = ctx;
    (void)rows;
    for (uint32_t i = 0; i < n; i++) {
        if (hps_basefile_covers(base, keys[i])) {
            hps_basefile_change(base, keys[i]);
        }
    }
    return HPS_OK;
}

/* Open the base of a table, and read the marks. */
static hps_status base_open(struct hps_basefile_space *space, uint32_t table, struct hps_error *err)
{
    struct hps_basefile_store *store = hps_basefile_of(&space->base);
    const struct hps_basefile_record *record = &space->records[table];
    struct hps_basefile *base = NULL;
    hps_status status =
        hps_basefile_base_new(store, record, &space->tables[table], record->n, &base, err);
    if (status == HPS_OK) {
        status = hps_basefile_base_open(base, false, err);
    }
    if (status == HPS_OK) {
        status = store->inner->ops->scan(space->inner, &space->marks[table], take_marks, base, err);
    }
    if (status != HPS_OK) {
        hps_basefile_base_close(base);
        return status;
    }
    hps_basefile_install(space, base);
    return HPS_OK;
}

/* Open the bases that the record names. */
static hps_status bases_open(struct hps_basefile_space *space, struct hps_error *err)
{
    struct hps_basefile_records records = {.key = space->key, .err = err};
    hps_status status = hps_basefile_records_read(space->inner->store, &records);
    if (status == HPS_OK && records.n != 0 && records.n != space->n_tables) {
        status = hps_error_set(err, HPS_DATA_LOSS, "rocksdb: %s: base files of other tables",
                               space->name);
    }
    space->recorded = records.n > 0;
    for (uint32_t i = 0; i < records.n && status == HPS_OK; i++) {
        space->records[i] = records.at[i];
        status = records.at[i].number != 0 ? base_open(space, i, err) : HPS_OK;
    }
    hps_free(records.at);
    return status;
}

hps_status hps_basefile_space_open(struct hps_store *base, const struct hps_space_id *id,
                                   struct hps_space **out_space, struct hps_error *err)
{
    struct hps_basefile_store *store = (struct hps_basefile_store *)base;
    struct hps_basefile_space *space = NULL;
    hps_status status = space_new(store, id, &space, err);
    if (status != HPS_OK) {
        return status;
    }
    status = store->inner->ops->space_open(store->inner, id, &space->inner, err);
    if (status == HPS_OK && space->n_tables > 0) { /* else it is opened to be dropped */
        status = bases_open(space, err);
    }
    if (status != HPS_OK) {
        if (space->inner != NULL) {
            store->inner->ops->space_close(space->inner);
        }
        space_free(space);
        return status;
    }
    hps_lock_acquire(&store->lock);
    space->next = store->spaces;
    store->spaces = space;
    hps_lock_release(&store->lock);
    if (atomic_load(&space->any)) {
        hps_basefile_merger_wake(store); /* a restart may have interrupted a merge */
    }
    *out_space = &space->base;
    return HPS_OK;
}

/* ---- closing --------------------------------------------------------------------------------- */

/* Make base-merge leave the space, and keep it out. */
static void space_unlist(struct hps_basefile_space *space)
{
    struct hps_basefile_store *store = hps_basefile_of(&space->base);
    struct hps_basefile_space **link = &store->spaces;
    hps_lock_acquire(&store->lock);
    atomic_store(&space->cancel, true);
    while (store->merging == space) {
        hps_cond_wait(&store->wake, &store->lock);
    }
    while (*link != space) {
        link = &(*link)->next;
    }
    *link = space->next;
    hps_lock_release(&store->lock);
    hps_basefile_merge_end(space, space->old);
}

void hps_basefile_space_close(struct hps_space *base)
{
    struct hps_basefile_space *space = (struct hps_basefile_space *)base;
    space_unlist(space);
    space->inner->store->ops->space_close(space->inner);
    space_free(space);
}

/* The record goes first: without it no files belong to the space. Files that stay, because of a
 * crash or an error, are removed by the next open of the store. */
hps_status hps_basefile_space_drop(struct hps_space *base, struct hps_error *err)
{
    struct hps_basefile_space *space = (struct hps_basefile_space *)base;
    struct hps_basefile_store *store = hps_basefile_of(base);
    struct hps_error ignored;
    struct hps_basefile_records records = {.key = space->key, .err = &ignored};
    space_unlist(space);
    hps_lock_acquire(&store->names);
    hps_ignore(hps_basefile_records_read(store->inner, &records));
    memset(space->records, 0, space->n_tables * sizeof(*space->records));
    hps_status status = hps_basefile_records_write(space, err);
    for (size_t i = 0; i < records.n && status == HPS_OK; i++) {
        hps_basefile_base_remove(store, records.at[i].number);
    }
    hps_lock_release(&store->names);
    hps_free(records.at);
    if (status == HPS_OK) {
        status = store->inner->ops->space_drop(space->inner, err);
    } else {
        store->inner->ops->space_close(space->inner);
    }
    space_free(space);
    return status;
}

void hps_basefile_space_usage(struct hps_space *base, struct hps_store_usage *out_usage)
{
    struct hps_basefile_space *space = (struct hps_basefile_space *)base;
    space->inner->store->ops->space_usage(space->inner, out_usage);
    unsigned epoch = hps_basefile_enter(space);
    for (uint32_t i = 0; i < space->n_tables; i++) {
        const struct hps_basefile *table = atomic_load(&space->bases[i]);
        if (table != NULL) {
            /* A changed key has a mark, and mostly a row, in the inner store. */
            uint64_t twice = 2 * atomic_load(&table->n_changed);
            uint64_t n = out_usage->n_rows + table->record.n_rows;
            out_usage->n_rows = n > twice ? n - twice : 0;
            out_usage->used_bytes += hps_basefile_bytes(table);
            out_usage->n_pages_damaged += atomic_load(&table->n_damaged);
        }
    }
    hps_basefile_leave(space, epoch);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Spaces; each is a column family `<model>@<version>`: names, listing, opening, closing, dropping.
 * Any thread. The store's lock protects the list of families once the store is open.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/rocksdb/internal.h"
#include "base/assert.h"
#include "base/heap.h"
#include "base/log.h"

enum { MODEL_MAX_BYTES = 120 };

/* ---- names ----------------------------------------------------------------------------------- */

static bool model_legal(const char *model, size_t size)
{
    if (size == 0 || size > MODEL_MAX_BYTES) {
        return false;
    }
    for (size_t i = 0; i < size; i++) {
        char c = model[i];
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
              c == '_' || c == '-')) {
            return false;
        }
    }
    return true;
}

static hps_status family_name(const struct hps_space_id *id, char *out_name, struct hps_error *err)
{
    if (!model_legal(id->model, strlen(id->model)) || id->version < 0) {
        return hps_error_set(
            err, HPS_INVALID,
            "rocksdb: cannot store model \"%s\" version %" PRId64
            ": expected a name of 1 to %d characters of a-z A-Z 0-9 _ - and a version of 0 or more",
            id->model, id->version, MODEL_MAX_BYTES);
    }
    (void)snprintf(out_name, HPS_ROCKSDB_NAME_MAX_BYTES, "%s@%" PRId64, id->model, id->version);
    return HPS_OK;
}

/* Split "<model>@<version>". out_model has space for MODEL_MAX_BYTES and a NUL. */
static bool family_parse(const char *name, char *out_model, int64_t *out_version)
{
    const char *at = strrchr(name, '@');
    if (at == NULL || !model_legal(name, (size_t)(at - name)) || at[1] < '0' || at[1] > '9') {
        return false;
    }
    char *end = NULL;
    errno = 0;
    long long version = strtoll(at + 1, &end, 10);
    if (errno != 0 || *end != '\0') {
        return false;
    }
    memcpy(out_model, name, (size_t)(at - name));
    out_model[at - name] = '\0';
    *out_version = version;
    return true;
}

/* ---- families -------------------------------------------------------------------------------- */

hps_status hps_rocksdb_family_add(struct hps_rocksdb *store, const char *name,
                                  rocksdb_column_family_handle_t *handle,
                                  struct hps_rocksdb_family **out_family, struct hps_error *err)
{
    HPS_ASSERT(handle != NULL);
    struct hps_rocksdb_family *family = hps_calloc(1, sizeof(*family));
    char *copy = hps_strdup(name);
    if (family == NULL || copy == NULL) {
        hps_free(family);
        hps_free(copy);
        rocksdb_column_family_handle_destroy(handle);
        return hps_rocksdb_fail_memory(err);
    }
    family->name = copy;
    family->handle = handle;
    family->next = store->families;
    store->families = family;
    if (out_family != NULL) {
        *out_family = family;
    }
    return HPS_OK;
}

void hps_rocksdb_family_free(struct hps_rocksdb_family *family)
{
    HPS_ASSERT(!family->open);
    rocksdb_column_family_handle_destroy(family->handle);
    hps_free(family->name);
    hps_free(family);
}

/* Drop a family; on success it is in the list of dropped ones, and its files go with its handle.
 * Caller must hold the store's lock. */
static hps_status family_drop(struct hps_rocksdb *store, struct hps_rocksdb_family *family,
                              struct hps_error *err)
{
    char *text = NULL;
    struct hps_rocksdb_family **link = &store->families;
    hps_lock_assert_held(&store->lock);
    HPS_ASSERT(!family->open);
    family->leftover = true;
    hps_status status = hps_rocksdb_dir_guard_vital(&store->dir, 0, err);
    if (status != HPS_OK) {
        return status;
    }
    rocksdb_drop_column_family(store->db, family->handle, &text);
    if (text != NULL) {
        return hps_rocksdb_fail_text(text, err, "cannot drop the family");
    }
    while (*link != family) {
        link = &(*link)->next;
    }
    *link = family->next;
    family->next = store->dropped;
    store->dropped = family;
    if (family->damaged && hps_rocksdb_damaged_write(store, NULL) != HPS_OK) {
        HPS_LOG(WARN, "rocksdb",
                "damaged version dropped: its line in hpsd.damaged could not be removed",
                HPS_STR("family", family->name));
    }
    return HPS_OK;
}

/* ---- dropped families ------------------------------------------------------------------------ */

/* At the end of a job RocksDB tells its listeners whether a family stalls. It reads the options of
 * the family, which may have been freed by then (up to its newest release:
 * SuperVersionContext::Clean). So the handle of a dropped family stays open until every flush,
 * compaction and write that ran at the drop has ended. RocksDB's counters show when. */
bool hps_rocksdb_dropped_free(struct hps_rocksdb *store)
{
    uint64_t n_flushes = 1;
    uint64_t n_compactions = 1;
    struct hps_rocksdb_family *unknown = NULL;
    hps_lock_acquire(&store->lock);
    if (store->dropped != NULL) {
        (void)rocksdb_property_int(store->db, "rocksdb.num-running-flushes", &n_flushes);
        (void)rocksdb_property_int(store->db, "rocksdb.num-running-compactions", &n_compactions);
    }
    for (struct hps_rocksdb_family **link = &store->dropped; *link != NULL;) {
        struct hps_rocksdb_family *family = *link;
        HPS_ASSERT(family->leftover && !family->open);
        family->flushed = family->flushed || n_flushes == 0;
        family->compacted = family->compacted || n_compactions == 0;
        if (family->flushed && family->compacted) {
            *link = family->next;
            family->next = unknown;
            unknown = family;
        } else {
            link = &family->next;
        }
    }
    bool left = store->dropped != NULL;
    hps_lock_release(&store->lock);
    if (unknown != NULL) {
        hps_rwlock_write(&store->wal.gate);
        hps_rwlock_release(&store->wal.gate);
    }
    while (unknown != NULL) {
        struct hps_rocksdb_family *family = unknown;
        unknown = family->next;
        hps_rocksdb_family_free(family);
    }
    return left;
}

void hps_rocksdb_dropped_close(struct hps_rocksdb *store)
{
    HPS_ASSERT(!store->wal.sync.running);
    if (store->dropped != NULL) {
        rocksdb_cancel_all_background_work(store->db, 1);
    }
    while (store->dropped != NULL) {
        struct hps_rocksdb_family *family = store->dropped;
        store->dropped = family->next;
        hps_rocksdb_family_free(family);
    }
}

/* ---- finding the family of a space ----------------------------------------------------------- */

/* Caller must hold the store's lock. */
static hps_status family_get(struct hps_rocksdb *store, const char *name,
                             struct hps_rocksdb_family **out_family, struct hps_error *err)
{
    struct hps_rocksdb_family *f = store->families;
    hps_lock_assert_held(&store->lock);
    while (f != NULL && strcmp(f->name, name) != 0) {
        f = f->next;
    }
    if (f != NULL && f->open) {
        return hps_error_set(err, HPS_EXISTS, "rocksdb: %s is open already", name);
    }
    if (f != NULL && !f->leftover) {
        *out_family = f;
        return HPS_OK;
    }
    hps_status dropped = f != NULL ? family_drop(store, f, err) : HPS_OK;
    if (dropped != HPS_OK) {
        return dropped;
    }
    if (store->dir.read_only) {
        return hps_rocksdb_fail_read_only(store, err);
    }
    hps_status status = hps_rocksdb_dir_guard_small(&store->dir, 0, err);
    if (status != HPS_OK) {
        return status;
    }
    char *text = NULL;
    rocksdb_column_family_handle_t *handle =
        rocksdb_create_column_family(store->db, store->options, name, &text);
    if (text != NULL) {
        return hps_rocksdb_fail_text(text, err, "cannot create the family");
    }
    return hps_rocksdb_family_add(store, name, handle, out_family, err);
}

static bool is_new(struct hps_rocksdb *store, const char *name)
{
    hps_lock_acquire(&store->lock);
    const struct hps_rocksdb_family *f = store->families;
    while (f != NULL && strcmp(f->name, name) != 0) {
        f = f->next;
    }
    bool new = f == NULL || f->leftover;
    hps_lock_release(&store->lock);
    return new;
}

/* Raise the format before content is stored that builds of an earlier format do not know. They then
 * refuse the database by its record, instead of reporting damage. */
static hps_status format_raise(struct hps_rocksdb *store, unsigned format, struct hps_error *err)
{
    const char value[] = {(char)('0' + format)};
    if (atomic_load(&store->format) >= format || store->dir.read_only) {
        return HPS_OK;
    }
    hps_status status = hps_rocksdb_dir_guard_small(&store->dir, 0, err);
    if (status == HPS_OK) {
        status = hps_rocksdb_wal_check(store, err);
    }
    if (status != HPS_OK) {
        return status;
    }
    char *text = NULL;
    uint64_t begun = hps_rocksdb_write_begin(store);
    rocksdb_put(store->db, store->write_synced, HPS_ROCKSDB_FORMAT_KEY,
                strlen(HPS_ROCKSDB_FORMAT_KEY), value, sizeof(value), &text);
    hps_rocksdb_write_end(store, begun, text);
    if (text != NULL) {
        return hps_rocksdb_fail_text(text, err, "cannot write the format record");
    }
    atomic_store(&store->format, format);
    HPS_LOG(INFO, "rocksdb", "format raised: builds without these rows cannot open the store",
            HPS_STR("rows", format == HPS_ROCKSDB_FORMAT_INT8 ? "INT8" : "base files"),
            HPS_STR("path", store->dir.path), HPS_U64("format", format));
    return HPS_OK;
}

static hps_status format_raise_for(struct hps_rocksdb *store, const struct hps_space_id *id,
                                   struct hps_error *err)
{
    unsigned format = store->base_files ? HPS_ROCKSDB_FORMAT : HPS_ROCKSDB_FORMAT_FIRST;
    for (uint32_t i = 0; i < id->n_tables; i++) {
        if (hps_dtype_is_int8(id->tables[i].dtype) && format < HPS_ROCKSDB_FORMAT_INT8) {
            format = HPS_ROCKSDB_FORMAT_INT8;
        }
    }
    return format_raise(store, format, err);
}

/* ---- spaces ---------------------------------------------------------------------------------- */

hps_status hps_rocksdb_space_open(struct hps_store *base, const struct hps_space_id *id,
                                  struct hps_space **out_space, struct hps_error *err)
{
    struct hps_rocksdb *store = (struct hps_rocksdb *)base;
    char name[HPS_ROCKSDB_NAME_MAX_BYTES];
    hps_status status = family_name(id, name, err);
    if (status == HPS_OK && is_new(store, name)) {
        status = format_raise_for(store, id, err);
    }
    if (status != HPS_OK) {
        return status;
    }
    struct hps_rocksdb_space *space = hps_calloc(1, sizeof(*space));
    if (space == NULL) {
        return hps_rocksdb_fail_memory(err);
    }
    hps_lock_acquire(&store->lock);
    status = family_get(store, name, &space->family, err);
    if (status == HPS_OK) {
        HPS_ASSERT(!space->family->open && !space->family->leftover);
        space->family->open = true;
    }
    hps_lock_release(&store->lock);
    if (status != HPS_OK) {
        hps_free(space);
        return status;
    }
    space->base.store = base;
    space->tables = id->tables;
    space->n_tables = id->n_tables;
    *out_space = &space->base;
    return HPS_OK;
}

void hps_rocksdb_space_close(struct hps_space *base)
{
    struct hps_rocksdb *store = hps_rocksdb_of(base);
    struct hps_rocksdb_space *space = (struct hps_rocksdb_space *)base;
    hps_lock_acquire(&store->lock);
    HPS_ASSERT(!space->loading && space->family->open);
    space->family->open = false;
    hps_lock_release(&store->lock);
    hps_free(space);
}

hps_status hps_rocksdb_space_drop(struct hps_space *base, struct hps_error *err)
{
    struct hps_rocksdb *store = hps_rocksdb_of(base);
    struct hps_rocksdb_family *family = ((struct hps_rocksdb_space *)base)->family;
    if (store->dir.read_only) {
        hps_rocksdb_space_close(base);
        return hps_rocksdb_fail_read_only(store, err);
    }
    hps_lock_acquire(&store->lock);
    HPS_ASSERT(family->open && !((struct hps_rocksdb_space *)base)->loading);
    family->open = false;
    hps_status status = family_drop(store, family, err);
    hps_lock_release(&store->lock);
    hps_free(base);
    if (status == HPS_OK) {
        if (hps_rocksdb_dropped_free(store)) {
            hps_rocksdb_sync_wake(store);
        }
        hps_rocksdb_dir_ballast(&store->dir);
        hps_rocksdb_mode_review(store);
    }
    return status;
}

static uint64_t property(struct hps_space *space, const char *name)
{
    uint64_t value = 0;
    if (rocksdb_property_int_cf(hps_rocksdb_of(space)->db, hps_rocksdb_handle(space), name,
                                &value) != 0) {
        return 0;
    }
    return value;
}

void hps_rocksdb_space_usage(struct hps_space *space, struct hps_store_usage *out_usage)
{
    *out_usage = (struct hps_store_usage){
        .n_rows = property(space, "rocksdb.estimate-num-keys"),
        .rows_estimated = true,
        .used_bytes = property(space, "rocksdb.live-sst-files-size") +
                      property(space, "rocksdb.cur-size-all-mem-tables"),
    };
}

/* Copies the names first, because `fn` may open or drop spaces. */
hps_status hps_rocksdb_space_list(struct hps_store *base, hps_space_fn fn, void *ctx,
                                  struct hps_error *err)
{
    struct hps_rocksdb *store = (struct hps_rocksdb *)base;
    hps_lock_acquire(&store->lock);
    size_t n = 0;
    for (const struct hps_rocksdb_family *f = store->families; f != NULL; f = f->next) {
        n++;
    }
    char(*names)[HPS_ROCKSDB_NAME_MAX_BYTES] = hps_calloc(n, sizeof(*names));
    size_t i = 0;
    for (const struct hps_rocksdb_family *f = store->families; names != NULL && f != NULL;
         f = f->next) {
        (void)snprintf(names[i++], HPS_ROCKSDB_NAME_MAX_BYTES, "%s", f->name);
    }
    hps_lock_release(&store->lock);
    if (names == NULL) {
        return hps_rocksdb_fail_memory(err);
    }
    hps_status status = HPS_OK;
    for (i = 0; i < n && status == HPS_OK; i++) {
        char model[MODEL_MAX_BYTES + 1];
        int64_t version;
        if (family_parse(names[i], model, &version)) {
            status = fn(ctx, model, version);
        }
    }
    hps_free(names);
    return status;
}

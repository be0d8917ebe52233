/* SPDX-License-Identifier: Apache-2.0
 *
 * The rows of tables in the order of keys: the inner store passes the rows that have changed, and
 * the rows of the base are put between them. Used by scans, views and merges. Blocks on disk.
 * Thread-safe.
 */
#include <string.h>

#include "backends/basefile/internal.h"
#include "base/assert.h"
#include "base/heap.h"
#include "base/rows/fileio.h"

enum {
    CHUNK_PAGES = 256, /* and one row */
    OUT_ROWS = 1024,
    OUT_BYTES = 4 << 20,
};

/* A walk through one table with a base. */
struct walk {
    struct hps_basefile *base;
    _Atomic(uint64_t) *masked; /* a bit per row: left out of the base */
    hps_rows_fn fn;
    void *ctx;
    struct hps_error *err;
    uint64_t at;    /* next row of the base */
    uint8_t *chunk; /* pages [chunk_first, chunk_end) of the base */
    uint64_t chunk_first;
    uint64_t chunk_end;
    hps_key *keys; /* [n_max] rows to be passed */
    uint8_t *rows; /* [n_max][row_bytes] */
    uint32_t n;
    uint32_t n_max;
};

/* ---- the walk -------------------------------------------------------------------------------- */

static void walk_free(struct walk *walk)
{
    hps_free((void *)walk->masked);
    hps_free_aligned(walk->chunk);
    hps_free(walk->keys);
    hps_free(walk->rows);
    *walk = (struct walk){0};
}

/* No row is masked yet. */
static hps_status walk_init(struct walk *walk, struct hps_basefile *base, hps_rows_fn fn, void *ctx,
                            struct hps_error *err)
{
    uint32_t row_bytes = base->table->row_bytes;
    *walk = (struct walk){.base = base, .fn = fn, .ctx = ctx, .err = err};
    walk->n_max = OUT_BYTES / row_bytes < OUT_ROWS ? OUT_BYTES / row_bytes : OUT_ROWS;
    walk->masked = hps_calloc(hps_basefile_words(base->record.n), sizeof(*walk->masked));
    walk->chunk = hps_alloc_aligned(
        HPS_BASEFILE_PAGE_BYTES,
        (CHUNK_PAGES + row_bytes / HPS_BASEFILE_PAGE_BYTES + (size_t)2) * HPS_BASEFILE_PAGE_BYTES);
    walk->keys = hps_alloc(walk->n_max * sizeof(*walk->keys));
    walk->rows = hps_alloc((size_t)walk->n_max * row_bytes);
    if (walk->masked != NULL && walk->chunk != NULL && walk->keys != NULL && walk->rows != NULL) {
        return HPS_OK;
    }
    walk_free(walk);
    return hps_error_set(err, HPS_NO_MEMORY, "rocksdb: no memory for a scan");
}

static void walk_mask(const struct walk *walk, const hps_key *keys, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint64_t row = keys[i] - walk->base->record.first;
        if (row < walk->base->record.n) {
            walk->masked[row / 64] |= UINT64_C(1) << row % 64;
        }
    }
}

static hps_status out_flush(struct walk *walk)
{
    uint32_t n = walk->n;
    walk->n = 0;
    return n > 0 ? walk->fn(walk->ctx, walk->keys, walk->rows, n) : HPS_OK;
}

static hps_status out_add(struct walk *walk, hps_key key, const uint8_t *row)
{
    uint32_t row_bytes = walk->base->table->row_bytes;
    walk->keys[walk->n] = key;
    memcpy(walk->rows + (size_t)walk->n * row_bytes, row, row_bytes);
    return ++walk->n == walk->n_max ? out_flush(walk) : HPS_OK;
}

/* Read the chunk that begins with `page`. */
static hps_status chunk_read(struct walk *walk, uint64_t page)
{
    struct hps_basefile *base = walk->base;
    uint64_t n = base->n_pages - page;
    uint64_t n_most = CHUNK_PAGES + base->table->row_bytes / HPS_BASEFILE_PAGE_BYTES + 2;
    n = n < n_most ? n : n_most;
    hps_status status = hps_basefile_pages_read(base, page, n, walk->chunk, walk->err);
    for (uint64_t i = 0; i < n && status == HPS_OK; i++) {
        if (!hps_basefile_page_check(base, page + i, walk->chunk + i * HPS_BASEFILE_PAGE_BYTES)) {
            status = hps_error_set(walk->err, HPS_DATA_LOSS, "base file %s: a page is damaged",
                                   base->name);
        }
    }
    walk->chunk_first = page;
    walk->chunk_end = status == HPS_OK ? page + n : page;
    return status;
}

/* Pass the rows of the base before row `end`. */
static hps_status base_until(struct walk *walk, uint64_t end)
{
    const struct hps_basefile *base = walk->base;
    hps_status status = HPS_OK;
    for (; walk->at < end && status == HPS_OK; walk->at++) {
        if (!hps_basefile_exists(base, walk->at) || hps_basefile_bit(walk->masked, walk->at)) {
            continue;
        }
        uint64_t offset = walk->at * base->table->row_bytes;
        uint64_t page = offset / HPS_BASEFILE_PAGE_BYTES;
        uint64_t last = (offset + base->table->row_bytes - 1) / HPS_BASEFILE_PAGE_BYTES;
        if (page < walk->chunk_first || last >= walk->chunk_end) {
            status = chunk_read(walk, page);
        }
        if (status == HPS_OK) {
            status = out_add(walk, base->record.first + walk->at,
                             walk->chunk + (offset - walk->chunk_first * HPS_BASEFILE_PAGE_BYTES));
        }
    }
    return status;
}

/* Rows of the inner store. They replace rows of the base. */
static hps_status walk_rows(void *ctx, const hps_key *keys, const uint8_t *rows, uint32_t n)
{
    struct walk *walk = ctx;
    const struct hps_basefile *base = walk->base;
    hps_status status = HPS_OK;
    for (uint32_t i = 0; i < n && status == HPS_OK; i++) {
        if (keys[i] >= base->record.first) {
            uint64_t row = keys[i] - base->record.first;
            bool inside = row < base->record.n;
            status = base_until(walk, inside ? row : base->record.n);
            walk->at = inside ? row + 1 : base->record.n;
        }
        if (status == HPS_OK) {
            status = out_add(walk, keys[i], rows + (size_t)i * base->table->row_bytes);
        }
    }
    return status;
}

static hps_status walk_end(struct walk *walk)
{
    hps_status status = base_until(walk, walk->base->record.n);
    return status == HPS_OK ? out_flush(walk) : status;
}

/* ---- scans ----------------------------------------------------------------------------------- */

hps_status hps_basefile_scan(struct hps_space *from, const struct hps_table *table, hps_rows_fn fn,
                             void *ctx, struct hps_error *err)
{
    struct hps_basefile_space *space = (struct hps_basefile_space *)from;
    const struct hps_store_ops *inner = space->inner->store->ops;
    struct walk walk = {0};
    unsigned epoch = hps_basefile_enter(space);
    struct hps_basefile *base = hps_basefile_base_of(space, table);
    hps_status status;
    if (base == NULL) {
        status = inner->scan(space->inner, table, fn, ctx, err);
        goto done;
    }
    status = walk_init(&walk, base, fn, ctx, err);
    if (status != HPS_OK) {
        goto done;
    }
    /* A key that changes after this is in the inner store's scan, or the base has its old row. */
    for (uint64_t i = 0; i < hps_basefile_words(base->record.n); i++) {
        walk.masked[i] = atomic_load(&base->changed[i]);
    }
    status = inner->scan(space->inner, table, walk_rows, &walk, err);
    if (status == HPS_OK) {
        status = walk_end(&walk);
    }
done:
    walk_free(&walk);
    hps_basefile_leave(space, epoch);
    return status;
}

/* ---- views ----------------------------------------------------------------------------------- */

/* The inner store passes, for each table with a base, its marks, then its rows. */
struct viewing {
    const struct hps_view *view;
    struct hps_basefile **bases; /* [view->n_tables] at the begin of the view */
    uint32_t n_begun;            /* tables of the view */
    struct walk walk;            /* base NULL: the table is only in the inner store */
    struct hps_error *err;
};

static hps_status viewing_record(void *ctx, const void *key, size_t key_size, const void *value,
                                 size_t value_size)
{
    const struct hps_view *view = ((const struct viewing *)ctx)->view;
    return view->record(view->ctx, key, key_size, value, value_size);
}

static hps_status viewing_pass(void *ctx, const hps_key *keys, const uint8_t *rows, uint32_t n)
{
    const struct viewing *viewing = ctx;
    const struct hps_view *view = viewing->view;
    return view->rows(view->ctx, &view->tables[viewing->n_begun - 1], keys, rows, n);
}

/* End the current table. */
static hps_status viewing_end(struct viewing *viewing)
{
    hps_status status = viewing->walk.base != NULL ? walk_end(&viewing->walk) : HPS_OK;
    walk_free(&viewing->walk);
    return status;
}

static hps_status viewing_begin(void *ctx, const struct hps_table *table)
{
    struct viewing *viewing = ctx;
    const struct hps_view *view = viewing->view;
    const struct hps_basefile *base = viewing->walk.base;
    bool marked = base != NULL && base->table->id == table->id; /* its marks were passed */
    hps_status status = marked ? HPS_OK : viewing_end(viewing);
    if (status != HPS_OK) {
        return status;
    }
    return (table->id & HPS_BASEFILE_MARKS) != 0
               ? walk_init(&viewing->walk, viewing->bases[viewing->n_begun], viewing_pass, viewing,
                           viewing->err)
               : view->begin(view->ctx, &view->tables[viewing->n_begun++]); /* its own struct */
}

static hps_status viewing_rows(void *ctx, const struct hps_table *table, const hps_key *keys,
                               const uint8_t *rows, uint32_t n)
{
    struct viewing *viewing = ctx;
    if ((table->id & HPS_BASEFILE_MARKS) != 0) {
        walk_mask(&viewing->walk, keys, n);
        return HPS_OK;
    }
    return viewing->walk.base != NULL ? walk_rows(&viewing->walk, keys, rows, n)
                                      : viewing_pass(viewing, keys, rows, n);
}

hps_status hps_basefile_view(struct hps_space *from, const struct hps_view *view,
                             struct hps_error *err)
{
    struct hps_basefile_space *space = (struct hps_basefile_space *)from;
    struct viewing viewing = {.view = view, .err = err};
    struct hps_table *tables = hps_calloc(2 * (size_t)view->n_tables + 1, sizeof(*tables));
    viewing.bases = hps_calloc((size_t)view->n_tables + 1, sizeof(*viewing.bases));
    unsigned epoch = hps_basefile_enter(space);
    hps_status status;
    if (tables == NULL || viewing.bases == NULL) {
        status = hps_error_set(err, HPS_NO_MEMORY, "rocksdb: no memory for a view");
        goto done;
    }
    struct hps_view inner = {.tables = tables,
                             .ctx = &viewing,
                             .record = viewing_record,
                             .begin = viewing_begin,
                             .rows = viewing_rows};
    for (uint32_t i = 0; i < view->n_tables; i++) {
        viewing.bases[i] = hps_basefile_base_of(space, &view->tables[i]);
        if (viewing.bases[i] != NULL) {
            tables[inner.n_tables++] = space->marks[view->tables[i].id];
        }
        tables[inner.n_tables++] = view->tables[i];
    }
    status = space->inner->store->ops->durable->view(space->inner, &inner, err);
    if (status == HPS_OK) {
        status = viewing_end(&viewing);
    }
    walk_free(&viewing.walk);
done:
    hps_basefile_leave(space, epoch);
    hps_free(tables);
    hps_free((void *)viewing.bases);
    return status;
}

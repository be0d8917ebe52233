/* SPDX-License-Identifier: Apache-2.0
 *
 * A writer puts a new row beside the old one and publishes its id; the old row is used again once
 * every reader has left. So a published row never changes and none is ever seen torn, and nobody
 * waits for anybody. On any thread, one writer at a time.
 */
#include "backends/host_table.h"

#include <sched.h>
#include <string.h>

#include "base/assert.h"
#include "base/heap.h"

enum {
    LIMBO_USUAL = 256, /* entries that may wait before each call lets some out */
    LIMBO_POPS = 4,    /* of them per call */
    SPARE_SHARE = 512, /* one row in so many is kept to replace others with */
    SPARE_MAX = 4096,
    ROW_TRIES = 64,       /* looks for a row that readers leave, before it is refused */
    RESERVE_STEPS = 1024, /* of a growth, without letting go of the lock */
};

static uint64_t spare_for(uint64_t n_rows)
{
    return n_rows / SPARE_SHARE < SPARE_MAX ? 1 + n_rows / SPARE_SHARE : SPARE_MAX;
}

uint64_t hps_host_table_bytes(uint32_t row_bytes, uint64_t n_rows)
{
    uint64_t rows = hps_host_rows_bytes(row_bytes, 0, n_rows == 0 ? 0 : n_rows + spare_for(n_rows));
    uint64_t bytes;
    return __builtin_add_overflow(rows, hps_host_index_bytes(n_rows), &bytes) ? UINT64_MAX : bytes;
}

hps_status hps_host_table_new(struct hps_host_shared *shared, uint32_t row_bytes, uint64_t n_rows,
                              struct hps_host_table **out_table)
{
    struct hps_host_table *table = hps_calloc(1, sizeof(*table));
    if (table == NULL) {
        return HPS_NO_MEMORY;
    }
    table->shared = shared;
    pthread_mutex_init(&table->lock, NULL);
    hps_host_account_init(&table->account, &shared->budget);
    hps_status status = hps_host_limbo_open(&table->limbo, shared->epoch);
    if (status == HPS_OK) {
        status = hps_host_rows_open(&table->rows, &table->account, row_bytes, 0);
    }
    if (status == HPS_OK) {
        status = hps_host_index_open(&table->index, &table->account, shared->epoch, shared->seed,
                                     n_rows);
    }
    if (status != HPS_OK) {
        hps_host_table_free(table);
        return status;
    }
    *out_table = table;
    return HPS_OK;
}

void hps_host_table_free(struct hps_host_table *table)
{
    if (table != NULL) {
        hps_host_index_close(&table->index);
        hps_host_rows_close(&table->rows);
        hps_host_limbo_close(&table->limbo);
        pthread_mutex_destroy(&table->lock);
        hps_free(table);
    }
}

/* ---- what readers may still have ---- */

static bool limbo_pop(struct hps_host_table *table)
{
    struct hps_host_gone gone;
    if (!hps_host_limbo_pop(&table->limbo, &gone)) {
        return false;
    }
    hps_host_rows_give(&table->rows, gone.row);
    if (gone.generation != 0) {
        hps_host_index_bury(&table->index, gone.generation, gone.slot);
    }
    return true;
}

static void limbo_empty(struct hps_host_table *table)
{
    hps_host_limbo_seal(&table->limbo);
    while (limbo_pop(table)) {
    }
}

static void retire(struct hps_host_table *table, const struct hps_host_gone *gone)
{
    while (!hps_host_limbo_push(&table->limbo, gone)) {
        /* No memory for a note of it: only then does a writer wait. Readers leave after a block of
         * keys. */
        limbo_empty(table);
        sched_yield();
    }
}

/* A share of what is to be done behind the calls. */
static void work(struct hps_host_table *table)
{
    (void)hps_host_index_step(&table->index);
    for (unsigned i = 0; i < LIMBO_POPS && table->limbo.n > LIMBO_USUAL; i++) {
        if (!limbo_pop(table)) {
            break;
        }
    }
}

/* ---- rows ---- */

/* Have a row ready to be taken while n_keep others stay, be it in limbo: a full table must still be
 * able to replace its rows. */
static hps_status row_ready(struct hps_host_table *table, uint64_t n_keep)
{
    struct hps_host_rows *rows = &table->rows;
    while (hps_host_rows_ready(rows) + table->limbo.n < n_keep + 1) {
        hps_status status = hps_host_rows_grow(rows);
        if (status != HPS_OK) {
            return status;
        }
    }
    for (unsigned i = 0; hps_host_rows_ready(rows) == 0 && i < ROW_TRIES; i++) {
        limbo_empty(table);
        if (hps_host_rows_ready(rows) == 0 && hps_host_rows_grow(rows) != HPS_OK) {
            sched_yield();
        }
    }
    return hps_host_rows_ready(rows) != 0 ? HPS_OK : HPS_EXHAUSTED;
}

static uint32_t row_write(struct hps_host_table *table, const uint8_t *data)
{
    uint32_t row = hps_host_rows_take(&table->rows);
    memcpy(hps_host_row_at(&table->rows, row), data, table->rows.row_bytes);
    return row;
}

/* ---- keys ---- */

bool hps_host_table_has(const struct hps_host_table *table, hps_key key)
{
    return hps_host_index_find(&table->index, key).bucket != NULL;
}

static hps_status row_replace(struct hps_host_table *table, struct hps_host_place place,
                              const uint8_t *data)
{
    hps_status status = row_ready(table, 0);
    if (status != HPS_OK) {
        return status;
    }
    struct hps_host_gone old = {.row = hps_host_row_of(place)};
    atomic_store_explicit(&place.bucket->rows[place.slot], row_write(table, data),
                          memory_order_release);
    retire(table, &old);
    return HPS_OK;
}

static hps_status row_add(struct hps_host_table *table, hps_key key, const uint8_t *data)
{
    hps_status status = hps_host_index_make_room(&table->index);
    if (status != HPS_OK) {
        limbo_empty(table); /* slots of erased keys */
        status = hps_host_index_make_room(&table->index);
    }
    if (status == HPS_OK) {
        status = row_ready(table, spare_for(table->index.n_keys + 1));
    }
    if (status != HPS_OK) {
        return status;
    }
    uint32_t row = row_write(table, data);
    status = hps_host_index_add(&table->index, key, row, false);
    if (status != HPS_OK) {
        hps_host_rows_give(&table->rows, row); /* no reader has seen it */
        return status;
    }
    atomic_fetch_add_explicit(&table->n_rows, 1, memory_order_relaxed);
    return HPS_OK;
}

hps_status hps_host_table_put(struct hps_host_table *table, hps_key key, const uint8_t *data)
{
    work(table);
    struct hps_host_place place = hps_host_index_find(&table->index, key);
    return place.bucket != NULL ? row_replace(table, place, data) : row_add(table, key, data);
}

void hps_host_table_erase(struct hps_host_table *table, hps_key key)
{
    work(table);
    struct hps_host_place place = hps_host_index_find(&table->index, key);
    if (place.bucket == NULL) {
        return;
    }
    struct hps_host_gone gone = {.row = hps_host_row_of(place)};
    hps_host_index_kill(&table->index, place, &gone.generation, &gone.slot);
    atomic_fetch_sub_explicit(&table->n_rows, 1, memory_order_relaxed);
    retire(table, &gone);
}

hps_status hps_host_table_reserve(struct hps_host_table *table, uint64_t n_rows)
{
    bool more = true;
    bool begun = false;
    hps_status status = HPS_OK;
    while (status == HPS_OK && (more || !begun)) {
        pthread_mutex_lock(&table->lock);
        for (unsigned i = 0; i < RESERVE_STEPS && more; i++) {
            more = hps_host_index_step(&table->index);
        }
        if (!more && !begun) {
            status = hps_host_index_reserve(&table->index, n_rows);
            begun = true;
            more = true;
        }
        pthread_mutex_unlock(&table->lock);
    }
    return status;
}

void hps_host_table_get(const struct hps_host_table *table, struct hps_batch *batch, uint32_t lo,
                        uint32_t hi, bool stream)
{
    const struct hps_host_lookup lookup = {
        .index = &table->index, .rows = &table->rows, .stream = stream};
    hps_host_look_up(&lookup, table->shared->kernel, batch, lo, hi);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Fills the embedding caches of whole tables. See whole.h.
 *
 *     lowest tier ── scan ─▶ batch ── insert ─▶ device
 *                     └ rows that were updated since the scan began ── get, insert ─▶ device
 */
#include "server/load/whole.h"

#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "cache/gpu/tier.h"
#include "cache/lookup/tiers.h"
#include "server/load/warmup_internal.h"

enum {
    /* For a row that is updated each time it is read. Afterwards only a lookup inserts it. */
    TRIES = 8
};

struct whole {
    struct hps_version *version;
    const struct hps_warmup_limits *limits;
    struct hps_warmup_report *report;
    const struct hps_table *table;
    uint64_t since;  /* clock of the stamps before the scan of the table */
    hps_key *keys;   /* [WARMUP_BATCH_KEYS_MAX] keys to read again */
    uint32_t *slots; /* [WARMUP_BATCH_KEYS_MAX] */
    uint8_t *rows;   /* for a batch of this table */
    bool left_out;   /* some rows of this table were not inserted */
};

static bool is_whole(const struct hps_version *version, uint32_t table)
{
    return version->tables[table].n_rows > 0 &&
           hps_gpu_space_rows_max(version->gpu, table) >= version->tables[table].n_rows;
}

bool hps_whole_useful(const struct hps_version *version)
{
    bool useful = false;
    if (version->gpu == NULL || !version->gpu_whole) {
        return false;
    }
    for (uint32_t i = 0; i < version->n_tables; i++) {
        useful = useful || (is_whole(version, i) && (hps_gpu_space_unfilled(version->gpu, i) ||
                                                     hps_gpu_space_coming(version->gpu)));
    }
    return useful;
}

static struct hps_space *lowest(const struct whole *whole)
{
    return whole->version->tiers[whole->version->n_tiers - 1];
}

static bool goes_on(struct whole *whole)
{
    uint64_t free_bytes;
    if (whole->limits->deadline_us != 0 && hps_clock_us() >= whole->limits->deadline_us) {
        whole->report->end = HPS_WARMUP_TIME;
    } else if (!whole->limits->go_on(whole->limits->ctx, whole->report, &free_bytes)) {
        whole->report->end = HPS_WARMUP_STOPPED;
    }
    return whole->report->end != HPS_WARMUP_TIME && whole->report->end != HPS_WARMUP_STOPPED;
}

/* ---- rows to the device ---------------------------------------------------------------------- */

/* Insert rows that were read since `since`; row i is at rows + slots[i] * row_bytes. Returns how
 * many an update may have changed, and puts their keys into whole->keys. */
static uint32_t insert(struct whole *whole, const hps_key *keys, const uint32_t *slots,
                       const uint8_t *rows, uint32_t n, uint64_t since)
{
    const struct hps_stamp_guard stamps = {.stamps = whole->version->stamps,
                                           .keys = keys,
                                           .table_id = whole->table->id,
                                           .since = since};
    const struct hps_insert_guard guard = {hps_stamp_guard_fresh, &stamps};
    const struct hps_gpu_insertion insertion = {.table_id = whole->table->id,
                                                .n = n,
                                                .keys = keys,
                                                .slots = slots,
                                                .rows = rows,
                                                .guard = &guard,
                                                .waits = true};
    struct hps_insert_report inserted;
    uint32_t n_changed = 0;
    HPS_ASSERT(n <= warmup_batch_keys(whole->table));
    hps_gpu_insert(whole->version->gpu, &insertion, &inserted);
    whole->report->n_gpu_rows += inserted.n_inserted;
    whole->left_out = whole->left_out || inserted.n_no_capacity > 0 ||
                      !hps_gpu_space_caches(whole->version->gpu, whole->table->id);
    for (uint32_t i = 0; i < n; i++) { /* after the insertion, so that refused rows are included */
        if (!hps_stamp_guard_fresh(&stamps, i)) {
            whole->keys[n_changed++] = keys[i];
        }
    }
    return n_changed;
}

/* Read n keys of whole->keys again from the lowest tier. Repeat for keys that are updated during
 * the read. */
static hps_status read_again(struct whole *whole, uint32_t n)
{
    enum hps_tier_kind from = lowest(whole)->store->ops->tier;
    const struct hps_walk_call call = {
        .purpose = HPS_WALK_WARM, .unasked = ~hps_tier_bit(from), .closed = UINT32_MAX};
    hps_status status = HPS_OK;
    for (unsigned try = 0; try < TRIES && n > 0 && status == HPS_OK; try++) {
        uint64_t since = hps_stamps_now(whole->version->stamps);
        const struct hps_batch batch = {
            .keys = whole->keys, .slots = whole->slots, .rows = whole->rows, .n = n};
        struct hps_error err;
        struct hps_walk walk;
        for (uint32_t i = 0; i < n; i++) {
            whole->slots[i] = i;
        }
        hps_walk_init(&walk, whole->version, whole->table, &batch);
        status = hps_walk_rest(&walk, &call, &err);
        if (status == HPS_OK && walk.reports[from].later) { /* it lacks updates */
            whole->left_out = true;
            return HPS_OK;
        }
        if (status == HPS_OK) {
            uint32_t at = hps_walk_found_begin(&walk, from);
            n = insert(whole, whole->keys + at, whole->slots + at, whole->rows,
                       walk.reports[from].n_found, since);
        }
    }
    return status;
}

static hps_status take_batch(struct whole *whole, const hps_key *keys, const uint8_t *rows,
                             uint32_t n)
{
    uint64_t start_us = hps_clock_us();
    uint32_t n_again = n;
    HPS_ASSERT(n > 0);
    if (!goes_on(whole)) {
        return HPS_CANCELLED;
    }
    if ((lowest(whole)->store->ops->caps & HPS_STORE_SHARED) != 0) {
        memcpy(whole->keys, keys, n * sizeof(*keys)); /* its rows may be of any log position */
    } else {
        for (uint32_t i = 0; i < n; i++) {
            whole->slots[i] = i;
        }
        n_again = insert(whole, keys, whole->slots, rows, n, whole->since);
    }
    hps_status status = read_again(whole, n_again);
    whole->report->n_keys += n;
    hps_warmup_pause_after(whole->limits, start_us);
    return status;
}

static hps_status take_rows(void *ctx, const hps_key *keys, const uint8_t *rows, uint32_t n)
{
    struct whole *whole = ctx;
    uint32_t n_max = warmup_batch_keys(whole->table);
    hps_status status = HPS_OK;
    for (uint32_t at = 0; at < n && status == HPS_OK; at += n_max) {
        status = take_batch(whole, keys + at, rows + (size_t)at * whole->table->row_bytes,
                            n - at < n_max ? n - at : n_max);
    }
    return status;
}

/* ---- tables ---------------------------------------------------------------------------------- */

static hps_status scan(struct whole *whole, struct hps_error *err)
{
    struct hps_space *space = lowest(whole);
    hps_status status = HPS_NO_MEMORY;
    HPS_ASSERT(whole->version->gpu != NULL);
    whole->rows = hps_alloc((size_t)warmup_batch_keys(whole->table) * whole->table->row_bytes);
    if (whole->rows != NULL) {
        whole->left_out = false;
        hps_gpu_space_fill_begin(whole->version->gpu, whole->table->id);
        whole->since = hps_stamps_now(whole->version->stamps);
        status = space->store->ops->scan(space, whole->table, take_rows, whole, err);
    }
    if (status == HPS_OK && !whole->left_out) {
        hps_gpu_space_fill_end(whole->version->gpu, whole->table->id);
    }
    hps_free(whole->rows);
    return status;
}

/* A newly active version gets its caches a little later. */
static bool await_cache(struct whole *whole, uint32_t table)
{
    while (!hps_gpu_space_caches(whole->version->gpu, table) &&
           hps_gpu_space_coming(whole->version->gpu) && goes_on(whole)) {
        hps_gpu_space_await(whole->version->gpu, WARMUP_LOOK_US);
    }
    return hps_gpu_space_unfilled(whole->version->gpu, table);
}

/* Fill one table. False: stop. An error of one table does not end the fill. */
static bool cache_table(struct whole *whole, uint32_t i)
{
    struct hps_warmup_report *report = whole->report;
    struct hps_error err = {0};
    whole->table = &whole->version->tables[i];
    if (is_whole(whole->version, i) && await_cache(whole, i)) {
        hps_status status = scan(whole, &err);
        if (status != HPS_OK && status != HPS_CANCELLED) {
            hps_ignore(hps_error_set(&report->error, status, "table \"%s\": %s", whole->table->name,
                                     err.text[0] != '\0' ? err.text : hps_status_text(status)));
        }
    }
    return report->end != HPS_WARMUP_TIME && report->end != HPS_WARMUP_STOPPED;
}

void hps_whole_refill(struct hps_version *version, const struct hps_warmup_limits *limits,
                      struct hps_warmup_report *out_report)
{
    struct hps_warmup_report report = {.end = HPS_WARMUP_DONE};
    struct whole whole = {.version = version,
                          .limits = limits,
                          .report = &report,
                          .keys = hps_calloc(WARMUP_BATCH_KEYS_MAX, sizeof(*whole.keys)),
                          .slots = hps_calloc(WARMUP_BATCH_KEYS_MAX, sizeof(*whole.slots))};
    uint64_t start_us = hps_clock_us();
    for (uint32_t i = 0; i < version->n_tables; i++) {
        report.n_keys_all += is_whole(version, i) ? version->tables[i].n_rows : 0;
    }
    if (whole.keys == NULL || whole.slots == NULL) {
        hps_ignore(hps_error_set(&report.error, HPS_NO_MEMORY,
                                 "no memory to warm the embedding caches up"));
    } else if (version->n_tiers > 0 && (lowest(&whole)->store->ops->caps & HPS_STORE_SCANS) != 0) {
        for (uint32_t i = 0; i < version->n_tables && cache_table(&whole, i); i++) {
        }
    }
    hps_free(whole.keys);
    hps_free(whole.slots);
    if (report.error.status != HPS_OK) {
        report.end = HPS_WARMUP_FAILED;
    }
    report.duration_us = hps_clock_us() - start_us;
    *out_report = report;
}

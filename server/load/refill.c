/* SPDX-License-Identifier: Apache-2.0
 *
 * The refill of a host map after a restart. All rows of a version are scanned in its lowest tier
 * and inserted into the map, while the version serves and takes updates. On the loader thread.
 *
 *     lowest tier ── scan ─▶ insert ─▶ map
 *                             └ rows that an update may have changed ── walk: read again ─▶ map
 */
#include <inttypes.h>
#include <sched.h>
#include <string.h>

#include "backends/store_limits.h"
#include "base/assert.h"
#include "base/heap.h"
#include "cache/lookup/tiers.h"
#include "server/load/loader.h"

struct refill {
    struct hps_version *version;
    struct hps_space *host;
    const struct hps_table *table;
    const atomic_bool *cancel;
    struct hps_error *err;
    bool begun;      /* the scan of the table has found rows */
    uint64_t since;  /* clock of the stamps before the scan of the table */
    uint32_t *slots; /* [n_slots] 0, 1, 2, ... */
    uint32_t n_slots;
    uint64_t n_stale; /* rows that were updated each time they were read */
};

static hps_status grow_slots(struct refill *refill, uint32_t n)
{
    if (n <= refill->n_slots) {
        return HPS_OK;
    }
    uint32_t *slots = hps_realloc(refill->slots, n * sizeof(*slots));
    if (slots == NULL) {
        return HPS_NO_MEMORY;
    }
    refill->slots = slots;
    for (uint32_t i = refill->n_slots; i < n; i++) {
        slots[i] = i;
    }
    refill->n_slots = n;
    return HPS_OK;
}

/* Insert n rows of the scan, except rows that an update may have changed since it began. */
static hps_status insert_scanned(struct refill *refill, const hps_key *keys, const uint8_t *rows,
                                 uint32_t n, uint32_t *out_n_stale)
{
    const struct hps_call call = {0};
    struct hps_insert_report report = {0};
    const struct hps_stamp_guard stamps = {refill->version->stamps, keys, refill->table->id,
                                           refill->since};
    const struct hps_insert_guard guard = {hps_stamp_guard_fresh, &stamps};
    HPS_ASSERT(n <= refill->n_slots);
    hps_status status = refill->host->store->ops->insert(refill->host, &call, refill->table, keys,
                                                         refill->slots, rows, n, &guard, &report);
    HPS_ASSERT(report.n_inserted + report.n_no_capacity + report.n_stale <= n);
    *out_n_stale = report.n_stale;
    bool full = report.n_no_capacity > 0 || report.n_evicted > 0;
    return status == HPS_OK && full ? HPS_EXHAUSTED : status;
}

/* Keys of rows that an update may have changed, or that share a stripe with such a key. Keys that
 * are not in the host map are read again until no update intervenes. */
struct again {
    hps_key *keys;
    uint32_t *slots;
    uint8_t *rows;
    uint32_t n;
};

/* Walk the keys through the map and the lowest tier. Rows that only the lowest tier has go into the
 * map. Keys that neither has were deleted. */
static hps_status again_try(struct refill *refill, struct again *again)
{
    struct hps_version *version = refill->version;
    enum hps_tier_kind to = refill->host->store->ops->tier;
    enum hps_tier_kind from = version->tiers[version->n_tiers - 1]->store->ops->tier;
    const struct hps_walk_call call = {.purpose = HPS_WALK_WARM,
                                       .unasked = ~(hps_tier_bit(to) | hps_tier_bit(from)),
                                       .closed = ~hps_tier_bit(to)};
    const struct hps_batch batch = {
        .keys = again->keys, .slots = again->slots, .rows = again->rows, .n = again->n};
    struct hps_error err;
    struct hps_walk walk;
    memcpy(again->slots, refill->slots, again->n * sizeof(*again->slots));
    hps_walk_init(&walk, version, refill->table, &batch);
    hps_status status = hps_walk_rest(&walk, &call, &err);
    const struct hps_tier_report *host = &walk.reports[to];
    status = status == HPS_OK ? host->status : status;
    status = status == HPS_OK ? host->insert_status : status;
    if (status != HPS_OK) {
        return status;
    }
    uint32_t n = walk.reports[from].n_found;
    memmove(again->keys, again->keys + hps_walk_found_begin(&walk, from), n * sizeof(*again->keys));
    again->n = host->n_stale > 0 ? n : 0;
    return host->n_no_capacity > 0 || host->n_evicted > 0 ? HPS_EXHAUSTED : HPS_OK;
}

static hps_status read_again(struct refill *refill, const hps_key *keys, uint32_t n)
{
    enum { TRIES_MAX = 1000 }; /* a batch of updates ends within milliseconds */
    struct again again = {.keys = hps_alloc(n * sizeof(*keys)),
                          .slots = hps_alloc(n * sizeof(uint32_t)),
                          .rows = hps_alloc((size_t)n * refill->table->row_bytes),
                          .n = n};
    hps_status status = HPS_NO_MEMORY;
    if (again.keys != NULL && again.slots != NULL && again.rows != NULL) {
        memcpy(again.keys, keys, n * sizeof(*keys));
        status = HPS_OK;
    }
    for (unsigned try = 0; again.n > 0 && status == HPS_OK && try < TRIES_MAX; try++) {
        if (try > 0) {
            sched_yield();
        }
        status = atomic_load(refill->cancel) ? HPS_CANCELLED : again_try(refill, &again);
    }
    refill->n_stale += again.n;
    hps_free(again.keys);
    hps_free(again.slots);
    hps_free(again.rows);
    return status;
}

/* Before the first rows of a table. */
static hps_status begin_table(struct refill *refill, const hps_key *keys, uint32_t n)
{
    const struct hps_store_limits_ops *limits = refill->host->store->ops->limits;
    if (refill->begun || limits == NULL) {
        return HPS_OK;
    }
    refill->begun = true;
    return limits->reserve(refill->host, refill->table, keys, n, refill->err);
}

static hps_status take_rows(void *ctx, const hps_key *keys, const uint8_t *rows, uint32_t n)
{
    struct refill *refill = ctx;
    uint32_t n_stale = 0;
    if (atomic_load(refill->cancel)) {
        return HPS_CANCELLED;
    }
    hps_status status = begin_table(refill, keys, n);
    if (status == HPS_OK) {
        status = grow_slots(refill, n);
    }
    if (status == HPS_OK) {
        status = insert_scanned(refill, keys, rows, n, &n_stale);
    }
    return status == HPS_OK && n_stale > 0 ? read_again(refill, keys, n) : status;
}

/* Rows of other versions, or rows that lookups inserted, may have evicted rows of the refill. */
static hps_status check_complete(const struct refill *refill, struct hps_error *err)
{
    if (refill->n_stale > 0) {
        return hps_error_set(err, HPS_ABORTED,
                             "host map not complete: %" PRIu64 " rows changed during every read",
                             refill->n_stale);
    }
    if (atomic_load(&refill->host->incomplete)) {
        return hps_error_set(
            err, HPS_EXHAUSTED,
            "host map not complete: lookups filled the memory before all rows fit");
    }
    return HPS_OK;
}

hps_status hps_load_refill_host(const struct hps_load_env *env, struct hps_version *version,
                                const atomic_bool *cancel, struct hps_error *err)
{
    struct hps_space *from = version->tiers[version->n_tiers - 1];
    struct hps_space *host = version->tiers[0];
    HPS_ASSERT(host->store == hps_stores_host(&env->stores));
    HPS_ASSERT(from != host);
    /* A shared store may have rows of other log positions. */
    HPS_ASSERT((from->store->ops->caps & HPS_STORE_SHARED) == 0);
    struct refill refill = {.version = version, .host = host, .cancel = cancel, .err = err};
    atomic_store(&version->host_complete, false);
    atomic_store(&host->incomplete, false); /* the refill inserts lost rows again */
    hps_status status = HPS_OK;
    for (uint32_t i = 0; status == HPS_OK && i < version->n_tables; i++) {
        refill.begun = false;
        refill.table = &version->tables[i];
        refill.since = hps_stamps_now(version->stamps);
        status = from->store->ops->scan(from, refill.table, take_rows, &refill, err);
    }
    if (status == HPS_OK) {
        status = check_complete(&refill, err);
    }
    if (status == HPS_OK) {
        /* `incomplete` overrides it if rows are lost */
        atomic_store(&version->host_complete, true);
    }
    if (host->store->ops->limits != NULL) {
        host->store->ops->limits->refilled(host, status != HPS_OK);
    }
    hps_free(refill.slots);
    return status;
}

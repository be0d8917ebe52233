/* SPDX-License-Identifier: Apache-2.0
 *
 * All rows of a version into the host map, behind what is served: after a restart, and while
 * updates come. On the loader thread.
 */
#include <inttypes.h>
#include <sched.h>
#include <string.h>

#include "base/assert.h"
#include "base/heap.h"
#include "cache/lookup/tiers.h"
#include "server/load/loader.h"

struct fill {
    struct hps_version *version;
    struct hps_space *host;
    const struct hps_table *table;
    const atomic_bool *cancel;
    uint64_t since;  /* of the version's stamps, before the scan of the table began */
    uint32_t *slots; /* [n_slots] 0, 1, 2, ... */
    uint32_t n_slots;
    uint64_t n_stale; /* that were updated again and again while they were read */
};

static hps_status fill_slots(struct fill *fill, uint32_t n)
{
    if (n <= fill->n_slots) {
        return HPS_OK;
    }
    uint32_t *slots = hps_realloc(fill->slots, n * sizeof(*slots));
    if (slots == NULL) {
        return HPS_NO_MEMORY;
    }
    fill->slots = slots;
    for (uint32_t i = fill->n_slots; i < n; i++) {
        slots[i] = i;
    }
    fill->n_slots = n;
    return HPS_OK;
}

/* Insert rows that were read since `since`, but for those that an update may have overtaken. */
static hps_status fill_insert(struct fill *fill, const hps_key *keys, const uint32_t *slots,
                              const uint8_t *rows, uint32_t n, uint64_t since,
                              uint32_t *out_n_stale)
{
    const struct hps_call call = {0};
    struct hps_insert_report report = {0};
    const struct hps_stamp_guard stamps = {fill->version->stamps, keys, fill->table->id, since};
    const struct hps_insert_guard guard = {hps_stamp_guard_fresh, &stamps};
    hps_status status = fill->host->store->ops->insert(fill->host, &call, fill->table, keys, slots,
                                                       rows, n, &guard, &report);
    *out_n_stale = report.n_stale;
    bool full = report.n_no_room > 0 || report.n_evicted > 0;
    return status == HPS_OK && full ? HPS_EXHAUSTED : status;
}

/* Keys that an update may have overtaken, or that only share the stripe of one that was: those that
 * are not in the host map are read again, until no update comes between. */
struct again {
    hps_key *keys;
    uint32_t *slots;
    uint8_t *rows;
    uint32_t n;
};

/* Walk them through the map and the lowest tier: what only that has goes into the map, and those
 * that neither has have been deleted. */
static hps_status again_try(struct fill *fill, struct again *again)
{
    struct hps_version *version = fill->version;
    enum hps_tier_kind to = fill->host->store->ops->tier;
    enum hps_tier_kind from = version->tiers[version->n_tiers - 1]->store->ops->tier;
    const struct hps_walk_call call = {.purpose = HPS_WALK_WARM,
                                       .unasked = ~(hps_tier_bit(to) | hps_tier_bit(from)),
                                       .closed = ~hps_tier_bit(to)};
    const struct hps_batch batch = {again->keys, again->slots, again->rows, again->n};
    struct hps_error err;
    struct hps_walk walk;
    memcpy(again->slots, fill->slots, again->n * sizeof(*again->slots));
    hps_walk_init(&walk, version, fill->table, &batch);
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
    return host->n_no_room > 0 || host->n_evicted > 0 ? HPS_EXHAUSTED : HPS_OK;
}

static hps_status fill_again(struct fill *fill, const hps_key *keys, uint32_t n)
{
    enum { TRIES_MAX = 1000 }; /* a batch of updates is over after milliseconds */
    struct again again = {.keys = hps_alloc(n * sizeof(*keys)),
                          .slots = hps_alloc(n * sizeof(uint32_t)),
                          .rows = hps_alloc((size_t)n * fill->table->row_bytes),
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
        status = atomic_load(fill->cancel) ? HPS_CANCELLED : again_try(fill, &again);
    }
    fill->n_stale += again.n;
    hps_free(again.keys);
    hps_free(again.slots);
    hps_free(again.rows);
    return status;
}

static hps_status fill_rows(void *ctx, const hps_key *keys, const uint8_t *rows, uint32_t n)
{
    struct fill *fill = ctx;
    uint32_t n_stale = 0;
    if (atomic_load(fill->cancel)) {
        return HPS_CANCELLED;
    }
    hps_status status = fill_slots(fill, n);
    if (status == HPS_OK) {
        status = fill_insert(fill, keys, fill->slots, rows, n, fill->since, &n_stale);
    }
    return status == HPS_OK && n_stale > 0 ? fill_again(fill, keys, n) : status;
}

/* Rows of other versions, and those that look-ups missed meanwhile, may have taken the room of rows
 * that the fill had put. */
static hps_status check_filled(const struct fill *fill, struct hps_error *err)
{
    if (fill->n_stale > 0) {
        return hps_error_set(err, HPS_ABORTED,
                             "host: updates came again and again between the reading and the "
                             "putting of %" PRIu64 " rows",
                             fill->n_stale);
    }
    if (atomic_load(&fill->host->incomplete)) {
        return hps_error_set(err, HPS_EXHAUSTED,
                             "host: rows found no room beside those that were asked for meanwhile");
    }
    return HPS_OK;
}

hps_status hps_load_fill_host(const struct hps_load_env *env, struct hps_version *version,
                              const atomic_bool *cancel, struct hps_error *err)
{
    struct hps_space *from = version->tiers[version->n_tiers - 1];
    struct hps_space *host = version->tiers[0];
    HPS_ASSERT(host->store == env->host && from != host);
    struct fill fill = {.version = version, .host = host, .cancel = cancel};
    atomic_store(&version->host_complete, false);
    atomic_store(&host->incomplete, false); /* what it has lost so far is put there again */
    hps_status status =
        host->store->ops->reserve != NULL ? host->store->ops->reserve(host, err) : HPS_OK;
    for (uint32_t i = 0; status == HPS_OK && i < version->n_tables; i++) {
        fill.table = &version->tables[i];
        fill.since = hps_stamps_now(version->stamps);
        status = from->store->ops->scan(from, fill.table, fill_rows, &fill, err);
    }
    if (status == HPS_OK) {
        status = check_filled(&fill, err);
    }
    if (status == HPS_OK) {
        atomic_store(&version->host_complete, true); /* unless rows are lost: `incomplete` tells */
    }
    hps_free(fill.slots);
    return status;
}

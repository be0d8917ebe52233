/* SPDX-License-Identifier: Apache-2.0
 *
 * Insertions upward: rows that a tier has found go into the memory tiers above it and, later, into
 * shared tiers, unless an update has changed them since. Lookups that wait for these rows get them.
 * Keys that the lowest tier lacks are remembered as absent. On the thread of the lookup.
 */
#include "base/arena.h"
#include "base/assert.h"
#include "cache/gpu/tier.h"
#include "cache/lookup/tiers_internal.h"
#include "cache/version/absent.h"
#include "cache/version/fetched.h"
#include "cache/version/stamps.h"

static struct hps_stamp_guard guard_of(const struct hps_walk *walk, uint32_t begin, uint64_t since)
{
    return (struct hps_stamp_guard){.stamps = walk->version->stamps,
                                    .keys = walk->batch.keys + begin,
                                    .table_id = walk->table->id,
                                    .since = since};
}

static void add_report(struct hps_tier_report *report, const struct hps_insert_report *inserted)
{
    report->n_inserted += inserted->n_inserted;
    report->n_no_capacity += inserted->n_no_capacity;
    report->n_stale += inserted->n_stale;
    report->n_evicted += inserted->n_evicted;
}

/* ---- the tiers in memory --------------------------------------------------------------------- */

/* wanted, waits: see struct hps_gpu_insertion */
static void offer_device(struct hps_walk *walk, enum hps_tier_kind kind, uint32_t begin, uint32_t n,
                         uint64_t since, bool wanted, bool waits)
{
    const struct hps_batch *batch = &walk->batch;
    const struct hps_stamp_guard unchanged = guard_of(walk, begin, since);
    const struct hps_insert_guard guard = {.fresh = hps_stamp_guard_fresh, .ctx = &unchanged};
    struct hps_insert_report inserted;
    const struct hps_gpu_insertion insertion = {.table_id = walk->table->id,
                                                .n = n,
                                                .keys = batch->keys + begin,
                                                .slots = batch->slots + begin,
                                                .rows = batch->rows,
                                                .guard = &guard,
                                                .missed = walk->gpu_missed,
                                                .wanted = wanted,
                                                .waits = waits};

    hps_gpu_insert(walk->version->gpu, &insertion, &inserted);
    add_report(&walk->reports[kind], &inserted);
}

/* Keys [begin, end) of the batch, all of one tier: move those not in `cached` to the front. Returns
 * where the cached ones begin. */
static uint32_t sort_out_cached(struct hps_batch *batch, uint32_t begin, uint32_t end,
                                const uint32_t *cached)
{
    for (uint32_t i = begin; i < end; i++) {
        uint32_t slot = batch->slots[i];
        if ((cached[slot / 32] >> slot % 32 & 1) == 0) {
            hps_key key = batch->keys[i];
            batch->keys[i] = batch->keys[begin];
            batch->slots[i] = batch->slots[begin];
            batch->keys[begin] = key;
            batch->slots[begin++] = slot;
        }
    }
    return begin;
}

void hps_walk_offer_memory(struct hps_walk *walk, uint64_t since, const uint32_t *cached)
{
    uint32_t begin = walk->batch.n + walk->n_absent;
    uint32_t end = hps_walk_found_begin(walk, HPS_TIER_GPU);

    HPS_ASSERT(walk->version->gpu != NULL);
    HPS_ASSERT(begin <= end);
    HPS_ASSERT(end - begin == hps_walk_found_n(walk, HPS_TIER_HOST)); /* the only memory tier */
    end = cached == NULL ? end : sort_out_cached(&walk->batch, begin, end, cached);
    if (walk->reports[HPS_TIER_GPU].status == HPS_OK && begin < end) {
        offer_device(walk, HPS_TIER_GPU, begin, end - begin, since, false, false);
    }
}

/* Returns whether the tier took all rows; rows that an update has changed do not count. */
static bool insert_range(const struct walk_step *step, struct hps_walk *walk,
                         const struct hps_tier *to, uint32_t begin, uint32_t n)
{
    struct hps_tier_report *report = &walk->reports[to->kind];
    struct hps_insert_report inserted = {0};
    struct hps_call call = {.scratch = step->call->scratch};
    const struct hps_stamp_guard unchanged = guard_of(walk, begin, step->since);
    const struct hps_insert_guard guard = {.fresh = hps_stamp_guard_fresh, .ctx = &unchanged};

    if (call.scratch != NULL) {
        hps_arena_reset(call.scratch);
    }
    report->insert_status = to->space->store->ops->insert(
        to->space, &call, walk->table, walk->batch.keys + begin, walk->batch.slots + begin,
        walk->batch.rows, n, &guard, &inserted);
    add_report(report, &inserted);
    if (report->insert_status != HPS_OK) {
        report->n_dropped += n - inserted.n_inserted - inserted.n_no_capacity - inserted.n_stale;
    }
    return report->insert_status == HPS_OK && inserted.n_no_capacity == 0;
}

static bool takes(const struct walk_step *step, const struct hps_walk *walk,
                  const struct hps_tier *tier, uint32_t cap)
{
    return (tier->caps & cap) != 0 && walk->reports[tier->kind].status == HPS_OK &&
           (step->call->closed & hps_tier_bit(tier->kind)) == 0;
}

void walk_insert_found(const struct walk_step *step, struct hps_walk *walk, uint32_t from,
                       uint32_t begin, uint32_t n)
{
    enum hps_walk_purpose purpose = step->call->purpose;
    bool held = false; /* the last memory tier took all rows */

    HPS_ASSERT(from < step->n_tiers);
    HPS_ASSERT(begin + n <= walk->n_keys);
    for (uint32_t to = from; to-- > 0 && n > 0 && purpose != HPS_WALK_REPORT;) {
        const struct hps_tier *tier = &step->tiers[to];
        if (!takes(step, walk, tier, HPS_CAP_INSERTS)) {
            continue;
        }
        if ((tier->caps & HPS_CAP_ON_DEVICE) != 0) {
            offer_device(walk, tier->kind, begin, n, step->since,
                         purpose == HPS_WALK_BEHIND && !held, purpose == HPS_WALK_WARM);
        } else {
            held = insert_range(step, walk, tier, begin, n);
        }
    }
}

/* ---- shared tiers and waiting lookups -------------------------------------------------------- */

/* Rows of updates that this version does not have yet were found: queue their keys, so that a job
 * fetches the rows of this version for the memory tiers. */
static void fetch_again(const struct walk_step *step, struct hps_walk *walk, uint32_t begin,
                        uint32_t n)
{
    uint32_t caps = 0; /* of all tiers */

    for (uint32_t i = 0; i < step->n_tiers; i++) {
        caps |= step->tiers[i].caps;
    }
    if (step->call->insertion != NULL && step->call->purpose == HPS_WALK_ANSWER && n > 0 &&
        (caps & HPS_CAP_INSERTS) != 0) {
        hps_insertion_add(step->call->insertion, walk->version, walk->table,
                          walk->batch.keys + begin, n);
    }
}

/* Hand rows that tier `from` found to the shared tiers above it. They are inserted later. */
static void backfill(const struct walk_step *step, struct hps_walk *walk, uint32_t from,
                     uint32_t begin, uint32_t n)
{
    struct hps_backfill_rows found = {.version = walk->version,
                                      .table = walk->table,
                                      .keys = walk->batch.keys + begin,
                                      .slots = walk->batch.slots + begin,
                                      .rows = walk->batch.rows,
                                      .n = n,
                                      .since = step->since};

    for (uint32_t to = 0; to < from && n > 0 && step->call->insertion != NULL; to++) {
        if (takes(step, walk, &step->tiers[to], HPS_CAP_BACKFILLED)) {
            found.space = step->tiers[to].space;
            hps_insertion_backfill(step->call->insertion, &found);
        }
    }
}

/* Note rows that an insertion job fetched. Forget rows that a lookup waited for. */
static void note_fetched(const struct walk_step *step, const struct hps_walk *walk, uint32_t begin,
                         uint32_t n)
{
    struct hps_fetched *fetched = step->version->fetched;
    const hps_key *keys = walk->batch.keys + begin;

    if (fetched != NULL && step->call->purpose == HPS_WALK_BEHIND) {
        hps_fetched_note(fetched, walk->table->id, keys, n);
    } else if (fetched != NULL && step->call->purpose == HPS_WALK_ANSWER) {
        hps_fetched_forget(fetched, walk->table->id, keys, n);
    }
}

void walk_spread_found(struct walk_step *step, struct hps_walk *walk, uint32_t from, uint32_t begin,
                       uint32_t n)
{
    const struct hps_batch *batch = &walk->batch;
    const struct hps_tier *tier = &step->tiers[from];

    if (!walk->fetch.later) {
        walk_insert_found(step, walk, from, begin, n);
    }
    note_fetched(step, walk, begin, n);
    for (uint32_t i = begin; i < begin + n && walk->fetch.n_led > 0; i++) {
        hps_flight_land(step->version->flight, &step->caller, walk->table->id, batch->keys[i],
                        batch->rows + (size_t)batch->slots[i] * walk->table->row_bytes,
                        (uint8_t)tier->kind);
    }
    if (walk->fetch.later && (tier->caps & HPS_CAP_LOWEST) == 0) {
        fetch_again(step, walk, begin, n); /* after landing: a job would wait for these */
    }
    backfill(step, walk, from, begin, n);
}

void walk_prove_absent(struct walk_step *step, struct hps_walk *walk)
{
    uint32_t begin = walk->fetch.n_joined;
    uint32_t n = walk->batch.n - begin;
    const struct hps_stamp_guard unchanged = guard_of(walk, begin, step->since);
    const struct hps_insert_guard guard = {.fresh = hps_stamp_guard_fresh, .ctx = &unchanged};

    HPS_ASSERT((step->tiers[step->n_tiers - 1].caps & HPS_CAP_LOWEST) != 0);
    if (step->version->absent != NULL && !walk->fetch.later &&
        step->call->purpose != HPS_WALK_REPORT) {
        hps_absent_add(step->version->absent, walk->table->id, walk->batch.keys + begin, n, &guard);
    }
    for (uint32_t i = begin; i < begin + n && walk->fetch.n_led > 0; i++) {
        hps_flight_land(step->version->flight, &step->caller, walk->table->id, walk->batch.keys[i],
                        NULL, 0);
    }
    walk_settle_absent(walk, n);
}

/* ---- whether there was room ------------------------------------------------------------------ */

/* Checks the cache tier and the tiers below it; only these get insertions. If the cache tier is on
 * a device, capacity in one of them suffices. */
void hps_walk_note_capacity(const struct hps_walk *walk, struct hps_version *version,
                            enum hps_walk_purpose purpose)
{
    enum hps_tier_kind cache_tier = atomic_load(&version->cache_tier);
    bool some = false;
    bool none = false;

    HPS_ASSERT(walk->version == version);
    for (uint32_t kind = cache_tier; kind < HPS_TIER_COUNT; kind++) {
        const struct hps_tier_report *report = &walk->reports[kind];
        bool full =
            report->n_no_capacity > report->n_inserted; /* readers may keep a few rows out */
        none = none || full;
        some = some || (!full && report->n_inserted > 0);
    }
    none = none && (!hps_tier_on_device(cache_tier) || purpose == HPS_WALK_BEHIND);
    if ((some || none) && atomic_load(&version->cache_full) != !some) {
        atomic_store(&version->cache_full, !some);
    }
}

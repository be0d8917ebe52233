/* SPDX-License-Identifier: Apache-2.0
 *
 * What is inserted upward: rows that a tier has found go into the memory tiers above it, to the gpu
 * and, later, into shared tiers, unless an update has overtaken them; whoever waits for them is
 * told. What the lowest tier lacks is known to be in none. On the thread of the look-up.
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
    report->n_no_room += inserted->n_no_room;
    report->n_stale += inserted->n_stale;
}

void hps_walk_offer_gpu(struct hps_walk *walk, uint32_t begin, uint32_t n, uint64_t since,
                        bool wanted)
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
                                                .wanted = wanted};

    if (walk->version->gpu != NULL && walk->gpu.status == HPS_OK && n > 0) {
        hps_gpu_insert(walk->version->gpu, &insertion, &inserted);
        add_report(&walk->gpu, &inserted);
    }
}

/* Insert keys [begin, begin + n) of the batch into tier `to`. Failure only costs later look-ups: it
 * is reported. Returns whether all that an update has not overtaken are there. */
static bool insert_range(const struct walk_rest *rest, struct hps_walk *walk, uint32_t to,
                         uint32_t begin, uint32_t n)
{
    struct hps_tier_report *report = &walk->reports[to];
    struct hps_space *space = walk->version->tiers[to];
    struct hps_insert_report inserted = {0};
    struct hps_call call = {.scratch = rest->call->scratch};
    const struct hps_stamp_guard unchanged = guard_of(walk, begin, rest->since);
    const struct hps_insert_guard guard = {.fresh = hps_stamp_guard_fresh, .ctx = &unchanged};

    if (call.scratch != NULL) {
        hps_arena_reset(call.scratch);
    }
    report->insert_status = space->store->ops->insert(
        space, &call, walk->table, walk->batch.keys + begin, walk->batch.slots + begin,
        walk->batch.rows, n, &guard, &inserted);
    add_report(report, &inserted);
    if (report->insert_status != HPS_OK) {
        report->n_dropped += n - inserted.n_inserted - inserted.n_no_room - inserted.n_stale;
    }
    return report->insert_status == HPS_OK && inserted.n_no_room == 0;
}

/* Rows of updates that this version does not have yet were found: those that it has are to be
 * fetched for the tiers in memory. */
static void fetch_again(const struct walk_rest *rest, struct hps_walk *walk, uint32_t begin,
                        uint32_t n)
{
    bool has_place = !walk_tier_blocks(rest->version, 0) || rest->version->gpu != NULL;

    if (rest->call->insertion != NULL && !rest->call->behind && has_place && n > 0) {
        hps_insertion_add(rest->call->insertion, walk->version, walk->table,
                          walk->batch.keys + begin, n);
    }
}

/* Tier `from` found these: put them into the tiers in memory above it. One that was skipped is left
 * alone. */
static void fill_memory(const struct walk_rest *rest, struct hps_walk *walk, uint32_t from,
                        uint32_t begin, uint32_t n)
{
    bool held = false; /* by one of them */

    for (uint32_t to = 0; to < from && n > 0; to++) {
        if (walk_tier_ops(rest->version, to)->tier == HPS_TIER_HOST &&
            walk->reports[to].status == HPS_OK) {
            held = insert_range(rest, walk, to, begin, n);
        }
    }
    hps_walk_offer_gpu(walk, begin, n, rest->since, rest->call->behind && !held);
}

/* The same for shared tiers, which nobody waits for. */
static void fill_shared(const struct walk_rest *rest, struct hps_walk *walk, uint32_t from,
                        uint32_t begin, uint32_t n)
{
    struct hps_fill_rows found = {.version = walk->version,
                                  .table = walk->table,
                                  .keys = walk->batch.keys + begin,
                                  .slots = walk->batch.slots + begin,
                                  .rows = walk->batch.rows,
                                  .n = n,
                                  .since = rest->since};

    for (uint32_t to = 0; to < from && n > 0 && rest->call->insertion != NULL; to++) {
        if (hps_version_fills(rest->version, to) && walk->reports[to].status == HPS_OK) {
            found.tier = to;
            hps_insertion_fill(rest->call->insertion, &found);
        }
    }
}

void walk_spread_found(struct walk_rest *rest, struct hps_walk *walk, uint32_t from, uint32_t begin,
                       uint32_t n)
{
    const struct hps_batch *batch = &walk->batch;
    bool from_last = from + 1 == rest->version->n_tiers;

    if (!walk->fetch.later) {
        fill_memory(rest, walk, from, begin, n);
    }
    if (rest->version->fetched != NULL) {
        (rest->call->behind ? hps_fetched_note : hps_fetched_forget)(
            rest->version->fetched, walk->table->id, batch->keys + begin, n);
    }
    for (uint32_t i = begin; i < begin + n && walk->fetch.n_led > 0; i++) {
        hps_flight_land(rest->version->flight, &rest->trip, walk->table->id, batch->keys[i],
                        batch->rows + (size_t)batch->slots[i] * walk->table->row_bytes,
                        (uint8_t)from);
    }
    if (walk->fetch.later && !from_last) { /* now, as the job would wait for these */
        fetch_again(rest, walk, begin, n);
    }
    fill_shared(rest, walk, from, begin, n);
}

/* What the lowest tier lacks it lacks until an update brings it; not where another program writes.
 */
static bool absence_lasts(const struct hps_version *version)
{
    uint32_t lowest = version->n_tiers - 1;

    return !walk_tier_is_shared(version, lowest) ||
           walk_tier_ops(version, lowest)->log_apply != NULL;
}

void walk_prove_absent(struct walk_rest *rest, struct hps_walk *walk)
{
    uint32_t begin = walk->fetch.n_joined;
    uint32_t n = walk->batch.n - begin;
    const struct hps_stamp_guard unchanged = guard_of(walk, begin, rest->since);
    const struct hps_insert_guard guard = {.fresh = hps_stamp_guard_fresh, .ctx = &unchanged};

    if (rest->version->absent != NULL && !walk->fetch.later && absence_lasts(rest->version)) {
        hps_absent_add(rest->version->absent, walk->table->id, walk->batch.keys + begin, n, &guard);
    }
    for (uint32_t i = begin; i < begin + n && walk->fetch.n_led > 0; i++) {
        hps_flight_land(rest->version->flight, &rest->trip, walk->table->id, walk->batch.keys[i],
                        NULL, 0);
    }
    walk_settle_absent(walk, n);
}

/* ---- whether there was room ------------------------------------------------------------------ */

/* Room of what a walk has filled: it found some, or it did not. */
struct room {
    bool some;
    bool none;
};

static void look_for_room(struct room *room, const struct hps_tier_report *report)
{
    bool full = report->n_no_room > report->n_inserted; /* a few may fail beside readers */

    room->none = room->none || full;
    room->some = room->some || (!full && report->n_inserted > 0);
}

void hps_walk_note_room(const struct hps_walk *walk, struct hps_version *version, bool behind)
{
    enum hps_tier_kind kind = atomic_load(&version->cache_tier);
    struct room room = {false, false};

    HPS_ASSERT(walk->version == version);
    for (uint32_t tier = 0; tier < version->n_tiers; tier++) {
        if (kind == HPS_TIER_GPU || walk_tier_ops(version, tier)->tier == kind) {
            look_for_room(&room, &walk->reports[tier]);
        }
    }
    if (kind == HPS_TIER_GPU) {
        look_for_room(&room, &walk->gpu);
        room.none = room.none && behind;
    }
    if ((room.some || room.none) && atomic_load(&version->cache_full) != !room.some) {
        atomic_store(&version->cache_full, !room.some);
    }
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The tier walk: ask, keep what was found in ranges, insert upward. On the thread of its look-up.
 */
#include "cache/lookup/tiers.h"

#include <string.h>

#include "backends/breaker.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "cache/gpu/tier.h"
#include "cache/version/absent.h"
#include "cache/version/fetched.h"
#include "cache/version/stamps.h"

enum {
    GROUP_PARTS_MAX = 128,    /* of one call for several parts */
    WAIT_SLICE_US = 5 * 1000, /* at most, between two looks at deadline and cancel flag */
};

static const struct hps_store_ops *tier_ops(const struct hps_version *version, uint32_t tier)
{
    return version->tiers[tier]->store->ops;
}

static bool tier_blocks(const struct hps_version *version, uint32_t tier)
{
    return (tier_ops(version, tier)->caps & HPS_STORE_BLOCKING) != 0;
}

static bool tier_is_shared(const struct hps_version *version, uint32_t tier)
{
    return (tier_ops(version, tier)->caps & HPS_STORE_SHARED) != 0;
}

const char *hps_tier_name(enum hps_tier_kind kind)
{
    static const char *const names[HPS_TIER_COUNT] = {
        [HPS_TIER_GPU] = "gpu",
        [HPS_TIER_HOST] = "host",
        [HPS_TIER_REDIS] = "redis",
        [HPS_TIER_ROCKSDB] = "rocksdb",
    };

    HPS_ASSERT((unsigned)kind < HPS_TIER_COUNT);
    return names[kind];
}

void hps_walk_init(struct hps_walk *walk, struct hps_version *version,
                   const struct hps_table *table, const struct hps_batch *batch)
{
    HPS_ASSERT(version->n_tiers > 0);
    HPS_ASSERT(version->n_tiers <= HPS_TIERS_MAX);
    memset(walk, 0, sizeof(*walk));
    walk->version = version;
    walk->table = table;
    walk->batch = *batch;
    walk->n_keys = batch->n;
}

bool hps_walk_done(const struct hps_walk *walk)
{
    return walk->batch.n == 0;
}

uint32_t hps_walk_found_begin(const struct hps_walk *walk, uint32_t tier)
{
    uint32_t begin = walk->n_keys;

    HPS_ASSERT(tier < walk->version->n_tiers);
    for (uint32_t i = 0; i <= tier; i++) {
        begin -= walk->reports[i].n_found;
    }
    return begin;
}

bool hps_walk_hits(const struct hps_walk *walk, enum hps_tier_kind kind, uint32_t *out_n)
{
    bool has = kind == HPS_TIER_GPU && walk->version->gpu != NULL;
    uint32_t n = walk->n_absent + walk->gpu.n_found;

    for (uint32_t tier = 0; tier < walk->tier_next; tier++) {
        n += walk->reports[tier].n_found;
        if (tier_ops(walk->version, tier)->tier == kind) {
            has = true;
            break;
        }
    }
    if (has) {
        *out_n = n;
    }
    return has;
}

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
        if (kind == HPS_TIER_GPU || tier_ops(version, tier)->tier == kind) {
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

bool hps_walk_tier_blocks(const struct hps_walk *walk, uint32_t tier)
{
    return tier_blocks(walk->version, tier);
}

static hps_status check_interrupted(const struct hps_walk_call *call)
{
    if (call->cancelled != NULL && call->cancelled(call->cancelled_ctx)) {
        return HPS_CANCELLED;
    }
    if (call->deadline_us != 0 && hps_clock_us() >= call->deadline_us) {
        return HPS_DEADLINE;
    }
    return HPS_OK;
}

/* ---- ranges of the batch --------------------------------------------------------------------- */

static void batch_swap(struct hps_batch *batch, uint32_t a, uint32_t b)
{
    hps_key key = batch->keys[a];
    uint32_t slot = batch->slots[a];

    batch->keys[a] = batch->keys[b];
    batch->slots[a] = batch->slots[b];
    batch->keys[b] = key;
    batch->slots[b] = slot;
}

/* Exchange two neighbouring ranges, [at, at + n) and the n_next keys behind it, in any order. */
static void swap_ranges(struct hps_batch *batch, uint32_t at, uint32_t n, uint32_t n_next)
{
    uint32_t n_swaps = n < n_next ? n : n_next;

    for (uint32_t i = 0; i < n_swaps; i++) {
        batch_swap(batch, at + i, at + n + n_next - 1 - i);
    }
}

/* The last n missing keys were found by `tier`: put them into its range. Returns where they begin.
 */
static uint32_t settle_found(struct hps_walk *walk, uint32_t tier, uint32_t n)
{
    uint32_t at = walk->batch.n - n;

    swap_ranges(&walk->batch, at, n, walk->n_absent);
    walk->batch.n = at;
    at += walk->n_absent;
    for (uint32_t t = walk->version->n_tiers - 1; t > tier; t--) {
        swap_ranges(&walk->batch, at, n, walk->reports[t].n_found);
        at += walk->reports[t].n_found;
    }
    walk->reports[tier].n_found += n;
    return at;
}

/* From the end of those that miss, over all that the walk has answered, to the very end. */
void hps_walk_answered(struct hps_walk *walk, uint32_t n)
{
    uint32_t at = walk->batch.n - n;

    HPS_ASSERT(n <= walk->batch.n);
    swap_ranges(&walk->batch, at, n, walk->n_absent);
    walk->batch.n = at;
    at += walk->n_absent;
    for (uint32_t t = walk->version->n_tiers; t-- > 0;) {
        swap_ranges(&walk->batch, at, n, walk->reports[t].n_found);
        at += walk->reports[t].n_found;
    }
    walk->n_keys -= n;
    walk->gpu.n_found += n;
}

/* The last n missing keys are in no tier. */
static void settle_absent(struct hps_walk *walk, uint32_t n)
{
    walk->batch.n -= n;
    walk->n_absent += n;
}

/* ---- one call of a store --------------------------------------------------------------------- */

/* Pieces of several walks, asked of a tier together. */
struct group {
    struct hps_part_batch parts[GROUP_PARTS_MAX];
    struct hps_walk *walks[GROUP_PARTS_MAX];
    uint32_t n_keys[GROUP_PARTS_MAX];
    uint32_t n;
};

/* Add the next piece of a walk, of at most n_max keys:
 *
 *     [ missing | piece | not asked | answered ]
 *               lo                  hi
 *
 * Returns how many keys it has. */
static uint32_t group_add(struct group *group, struct hps_walk *walk, uint32_t n_max)
{
    const struct hps_walk_fetch *fetch = &walk->fetch;
    uint32_t n = fetch->hi - fetch->lo < n_max ? fetch->hi - fetch->lo : n_max;

    group->parts[group->n] =
        (struct hps_part_batch){.table = walk->table,
                                .batch = {.keys = walk->batch.keys + fetch->lo,
                                          .slots = walk->batch.slots + fetch->lo,
                                          .rows = walk->batch.rows,
                                          .n = n}};
    group->walks[group->n] = walk;
    group->n_keys[group->n] = n;
    group->n++;
    return n;
}

/* Move what was answered of a piece behind `hi`. */
static void take_answers(struct hps_walk *walk, uint32_t n, uint32_t n_missing)
{
    struct hps_walk_fetch *fetch = &walk->fetch;

    HPS_ASSERT(n_missing <= n);
    swap_ranges(&walk->batch, fetch->lo + n_missing, n - n_missing, fetch->hi - (fetch->lo + n));
    fetch->lo += n_missing;
    fetch->hi -= n - n_missing;
}

/* A job behind answers wants no later rows either, as long as there is a tier that has others. */
static hps_status call_store(struct group *group, struct hps_space *space, bool last,
                             const struct hps_walk_call *call, bool *out_later)
{
    const struct hps_store_ops *ops = space->store->ops;
    struct hps_call store_call = {.scratch = call->scratch,
                                  .deadline_us = call->deadline_us,
                                  .exact_position = call->exact || (call->behind && !last),
                                  .later = out_later};

    if (call->scratch != NULL) {
        hps_arena_reset(call->scratch);
    }
    if (group->n > 1) {
        return ops->get_many(space, &store_call, group->parts, group->n);
    }
    return ops->get(space, &store_call, group->parts[0].table, &group->parts[0].batch);
}

/* Ask for the group, if the tier may be asked. out_refused: it may not */
static hps_status ask_group(struct group *group, uint32_t tier, const struct hps_walk_call *call,
                            bool *out_refused)
{
    const struct hps_version *version = group->walks[0]->version;
    struct hps_breaker *breaker = version->breakers[tier];
    struct hps_tier_report *first = &group->walks[0]->reports[tier];
    enum hps_breaker_pass pass = HPS_BREAKER_PASSED;
    hps_status status = HPS_UNAVAILABLE;
    bool later = false;

    if (breaker != NULL) {
        pass = hps_breaker_enter(breaker);
    }
    *out_refused = pass == HPS_BREAKER_REFUSED;
    if (!*out_refused) {
        uint64_t start_us = hps_clock_us();
        status =
            call_store(group, version->tiers[tier], tier + 1 == version->n_tiers, call, &later);
        uint64_t duration_us = hps_clock_us() - start_us;
        first->duration_us += duration_us;
        if (breaker != NULL) {
            hps_breaker_leave(breaker, pass, status, duration_us);
        }
    }
    first->n_faults += status == HPS_OK ? 0 : 1;
    for (uint32_t i = 0; i < group->n; i++) {
        struct hps_tier_report *report = &group->walks[i]->reports[tier];
        report->n_asked += *out_refused ? 0 : group->n_keys[i];
        report->n_unanswered += status == HPS_OK || *out_refused ? 0 : group->parts[i].batch.n;
        report->status = status == HPS_OK ? report->status : status;
        group->walks[i]->fetch.later = group->walks[i]->fetch.later || later;
        take_answers(group->walks[i], group->n_keys[i], group->parts[i].batch.n);
    }
    return status;
}

/* ---- memory tiers ---------------------------------------------------------------------------- */

/* Some of a walk's missing keys, asked by one thread. */
struct piece {
    struct hps_walk *walk;
    uint32_t lo; /* in the batch */
    uint32_t n;
    uint32_t n_asked;
    uint32_t n_unanswered;
    uint32_t n_missing; /* out: they are in front, those found behind */
    hps_status status;
    bool failed; /* the tier did, else it was not asked on */
    uint64_t duration_us;
};

/* All pieces of a question to one tier. */
struct pieces {
    const struct hps_walk_call *call;
    struct hps_arena *scratch; /* NULL: several threads are at it */
    uint32_t tier;
    struct piece *array;
};

static void ask_piece(void *ctx, uint32_t i)
{
    const struct pieces *pieces = ctx;
    struct piece *piece = &pieces->array[i];
    struct hps_batch *all = &piece->walk->batch;
    struct hps_space *space = piece->walk->version->tiers[pieces->tier];
    struct hps_call call = {.scratch = pieces->scratch, .deadline_us = pieces->call->deadline_us};
    uint64_t start_us = hps_clock_us();
    uint32_t hi = piece->n;
    uint32_t lo = 0; /* [ missing | not asked | found ], of the piece, to lo, to hi */

    while (lo < hi && piece->status == HPS_OK) {
        uint32_t n = hi - lo < HPS_WALK_KEYS_MEMORY ? hi - lo : HPS_WALK_KEYS_MEMORY;
        struct hps_batch batch = {.keys = all->keys + piece->lo + lo,
                                  .slots = all->slots + piece->lo + lo,
                                  .rows = all->rows,
                                  .n = n};
        piece->status = check_interrupted(pieces->call);
        if (piece->status != HPS_OK) {
            break;
        }
        if (call.scratch != NULL) {
            hps_arena_reset(call.scratch);
        }
        piece->status = space->store->ops->get(space, &call, piece->walk->table, &batch);
        HPS_ASSERT(batch.n <= n);
        piece->failed = piece->status != HPS_OK;
        piece->n_asked += n;
        piece->n_unanswered += piece->failed ? batch.n : 0;
        swap_ranges(all, piece->lo + lo + batch.n, n - batch.n, hi - (lo + n));
        lo += batch.n;
        hi -= n - batch.n;
    }
    piece->n_missing = hi;
    piece->duration_us = hps_clock_us() - start_us;
}

/* The pieces of a walk, from the last one on, become one question that was answered: what each
 * found is behind what all of them miss. Returns a status that is not OK, if there is one. */
static hps_status merge_pieces(struct hps_walk *walk, uint32_t tier, const struct piece *pieces,
                               uint32_t n)
{
    struct hps_tier_report *report = &walk->reports[tier];
    uint32_t n_missing = 0;
    uint32_t n_found = 0;

    for (uint32_t i = n; i-- > 0;) {
        const struct piece *piece = &pieces[i];
        uint32_t found = piece->n - piece->n_missing;
        swap_ranges(&walk->batch, piece->lo + piece->n_missing, found, n_missing);
        n_missing += piece->n_missing;
        n_found += found;
        report->n_asked += piece->n_asked;
        report->n_unanswered += piece->n_unanswered;
        report->duration_us += piece->duration_us;
        report->n_faults += piece->failed ? 1 : 0;
        report->status = piece->status == HPS_OK ? report->status : piece->status;
    }
    settle_found(walk, tier, n_found);
    return report->status;
}

/* A tier's answer that ends the walk. */
static hps_status fail(const struct hps_walk *walk, uint32_t tier, hps_status status, bool refused,
                       struct hps_error *err)
{
    const char *why = "";

    if (refused) {
        why = ": it has failed and is not asked until it answers a probe";
    } else if (status == HPS_ABORTED) {
        why = ": consistency: it has rows of updates that this version has not had yet";
    }
    return hps_error_set(err, status, "table '%s': tier %s: %s%s", walk->table->name,
                         tier_ops(walk->version, tier)->name, hps_status_text(status), why);
}

static bool interrupted(hps_status status)
{
    return status == HPS_CANCELLED || status == HPS_DEADLINE;
}

static bool in_memory(const struct hps_walk *walk)
{
    return !hps_walk_done(walk) && !tier_blocks(walk->version, walk->tier_next);
}

/* A miss in this tier proves that no tier has the key, if that is so before the tier is asked and
 * afterwards: rows put there during the question prove nothing, nor do rows that an update has
 * dropped meanwhile. */
static bool tier_is_complete(const struct hps_version *version, uint32_t tier)
{
    return tier + 1 == version->n_tiers ||
           (tier_ops(version, tier)->tier == HPS_TIER_HOST && hps_version_host_complete(version));
}

/* The next tier has answered a walk's n pieces. complete: as it was before */
static hps_status memory_step(struct hps_walk *walk, const struct piece *pieces, uint32_t n,
                              bool complete, struct hps_error *err)
{
    uint32_t tier = walk->tier_next;
    bool last = tier + 1 == walk->version->n_tiers;
    hps_status status = merge_pieces(walk, tier, pieces, n);

    if (interrupted(status) || (status != HPS_OK && last)) {
        return fail(walk, tier, status, false, err);
    }
    if (status == HPS_OK && complete && tier_is_complete(walk->version, tier)) {
        settle_absent(walk, walk->batch.n);
    }
    walk->tier_next++;
    return HPS_OK;
}

/* Ask the memory tiers for one walk, on this thread. */
static hps_status ask_alone(struct hps_walk *walk, const struct hps_walk_call *call,
                            struct hps_error *err)
{
    hps_status status = HPS_OK;

    while (in_memory(walk) && status == HPS_OK) {
        struct piece piece = {.walk = walk, .n = walk->batch.n};
        struct pieces pieces = {
            .call = call, .scratch = call->scratch, .tier = walk->tier_next, .array = &piece};
        bool complete = tier_is_complete(walk->version, walk->tier_next);
        ask_piece(&pieces, 0);
        status = memory_step(walk, &piece, 1, complete, err);
    }
    return status;
}

static uint32_t n_pieces_of(const struct hps_walk *walk)
{
    return (walk->batch.n + HPS_WALK_KEYS_PIECE - 1) / HPS_WALK_KEYS_PIECE;
}

static void cut(struct hps_walk *walk, struct piece *array, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t lo = i * HPS_WALK_KEYS_PIECE;
        uint32_t n_left = walk->batch.n - lo;
        array[i] = (struct piece){.walk = walk,
                                  .lo = lo,
                                  .n = n_left < HPS_WALK_KEYS_PIECE ? n_left : HPS_WALK_KEYS_PIECE};
    }
}

/* Ask the first tier, which is in memory, for all walks, with the helpers' help. Without memory for
 * the pieces nothing has happened. */
static hps_status ask_with_helpers(struct hps_walk *first, const struct hps_walk_call *call,
                                   struct hps_error *err)
{
    bool complete = tier_is_complete(first->version, 0);
    hps_status status = HPS_OK;
    uint32_t n = 0;
    uint32_t at = 0;

    for (const struct hps_walk *walk = first; walk != NULL; walk = walk->next) {
        n += n_pieces_of(walk);
    }
    struct piece *array = hps_alloc(n * sizeof(*array));
    struct pieces pieces = {.call = call, .array = array};
    if (array == NULL) {
        return HPS_OK;
    }
    for (struct hps_walk *walk = first; walk != NULL; walk = walk->next) {
        cut(walk, array + at, n_pieces_of(walk));
        at += n_pieces_of(walk);
    }
    uint64_t start_us = hps_clock_us();
    hps_pool_split(call->helpers, n, ask_piece, &pieces);
    for (uint32_t i = 0; i < n; i++) { /* they ran beside each other */
        array[i].duration_us = i == 0 ? hps_clock_us() - start_us : 0;
    }
    at = 0;
    for (struct hps_walk *walk = first; walk != NULL; walk = walk->next) {
        n = n_pieces_of(walk);
        /* All are merged, so that what was found counts when one has failed. */
        hps_status step = n > 0 ? memory_step(walk, array + at, n, complete, err) : HPS_OK;
        status = step == HPS_OK ? status : step;
        at += n;
    }
    hps_free(array);
    return status;
}

/* The first tier has not been asked yet, and is to be asked for much. */
static bool is_large(const struct hps_walk *first)
{
    uint64_t n = 0;

    for (const struct hps_walk *walk = first; walk != NULL; walk = walk->next) {
        n += walk->batch.n;
    }
    return first->tier_next == 0 && !tier_blocks(first->version, 0) &&
           n >= 4 * (uint64_t)HPS_WALK_KEYS_PIECE;
}

/* Sort out the keys that an earlier look-up found to be in no tier. */
static void recall_absent(struct hps_walk *walk)
{
    const struct hps_absent *absent = walk->version->absent;
    uint32_t n_before = walk->batch.n;

    for (uint32_t i = n_before; absent != NULL && i-- > 0;) {
        if (hps_absent_has(absent, walk->table->id, walk->batch.keys[i])) {
            batch_swap(&walk->batch, i, walk->batch.n - 1);
            settle_absent(walk, 1);
        }
    }
    walk->n_remembered += n_before - walk->batch.n;
}

hps_status hps_walk_memory(struct hps_walk *first, const struct hps_walk_call *call,
                           struct hps_error *err)
{
    hps_status status = HPS_OK;

    if (call->helpers != NULL && is_large(first)) {
        status = ask_with_helpers(first, call, err);
    }
    for (struct hps_walk *walk = first; walk != NULL && status == HPS_OK; walk = walk->next) {
        HPS_ASSERT(walk->version == first->version);
        status = ask_alone(walk, call, err);
        if (status == HPS_OK && !walk->recalled) {
            recall_absent(walk);
            walk->recalled = true;
        }
    }
    return status;
}

/* ---- tiers that block: what is found --------------------------------------------------------- */

/* One hps_walk_rest. */
struct rest {
    struct hps_walk *first;
    const struct hps_version *version;
    const struct hps_walk_call *call;
    struct hps_flight_trip trip;
    uint64_t since;   /* hps_stamps_now before the stores were asked */
    uint32_t n_share; /* keys that may still be shared with others */
};

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
static bool insert_range(const struct rest *rest, struct hps_walk *walk, uint32_t to,
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
static void fetch_again(const struct rest *rest, struct hps_walk *walk, uint32_t begin, uint32_t n)
{
    bool has_place = !tier_blocks(rest->version, 0) || rest->version->gpu != NULL;

    if (rest->call->insertion != NULL && !rest->call->behind && has_place && n > 0) {
        hps_insertion_add(rest->call->insertion, walk->version, walk->table,
                          walk->batch.keys + begin, n);
    }
}

/* Tier `from` found these: put them into the tiers in memory above it. One that was skipped is left
 * alone. */
static void fill_memory(const struct rest *rest, struct hps_walk *walk, uint32_t from,
                        uint32_t begin, uint32_t n)
{
    bool held = false; /* by one of them */

    for (uint32_t to = 0; to < from && n > 0; to++) {
        if (tier_ops(rest->version, to)->tier == HPS_TIER_HOST &&
            walk->reports[to].status == HPS_OK) {
            held = insert_range(rest, walk, to, begin, n);
        }
    }
    hps_walk_offer_gpu(walk, begin, n, rest->since, rest->call->behind && !held);
}

/* The same for shared tiers, which nobody waits for. */
static void fill_shared(const struct rest *rest, struct hps_walk *walk, uint32_t from,
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

/* Tier `from` found these: fill those above it, and tell who waits for them. */
static void spread_found(struct rest *rest, struct hps_walk *walk, uint32_t from, uint32_t begin,
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

    return !tier_is_shared(version, lowest) || tier_ops(version, lowest)->log_apply != NULL;
}

/* The lowest tier has answered: the keys that still miss, and do not wait for others, are in none.
 */
static void prove_absent(struct rest *rest, struct hps_walk *walk)
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
    settle_absent(walk, n);
}

/* ---- tiers that block: asking ---------------------------------------------------------------- */

/* The next pieces to ask for, from `walk` on, of at most so many keys. Returns where to go on: NULL
 * once all are asked. */
static struct hps_walk *fill_group(struct group *group, struct hps_walk *walk, bool many,
                                   uint32_t room)
{
    group->n = 0;
    while (walk != NULL && room > 0 && group->n < (many ? GROUP_PARTS_MAX : 1)) {
        if (walk->fetch.lo < walk->fetch.hi) {
            room -= group_add(group, walk, room);
        }
        if (walk->fetch.hi - walk->fetch.lo > (group->n > 0 ? group->n_keys[group->n - 1] : 0)) {
            return walk; /* more of it is left */
        }
        walk = walk->next;
    }
    return walk;
}

/* Ask one tier for the missing keys of all walks, but those that wait for others. out_failed: the
 * walk with the failure */
static hps_status ask_blocking(struct rest *rest, uint32_t tier, const struct hps_walk **out_failed,
                               bool *out_refused)
{
    bool many = tier_ops(rest->version, tier)->get_many != NULL;
    /* Each question of a server that says nothing costs its time-out: one has all the keys. */
    uint32_t room = tier_is_shared(rest->version, tier) ? UINT32_MAX : HPS_WALK_KEYS_BLOCKING;
    struct hps_walk *at = rest->first;
    struct group group;
    hps_status status = HPS_OK;

    for (struct hps_walk *walk = rest->first; walk != NULL; walk = walk->next) {
        walk->fetch.lo = walk->fetch.n_joined;
        walk->fetch.hi = walk->batch.n;
        walk->fetch.later = false;
    }
    while (at != NULL && status == HPS_OK) {
        at = fill_group(&group, at, many, room);
        if (group.n == 0) {
            break;
        }
        *out_failed = group.walks[0];
        status = check_interrupted(rest->call);
        if (status == HPS_OK) {
            status = ask_group(&group, tier, rest->call, out_refused);
        } else {
            group.walks[0]->reports[tier].status = status;
        }
    }
    for (struct hps_walk *walk = rest->first; walk != NULL; walk = walk->next) {
        uint32_t n = walk->batch.n - walk->fetch.hi;
        uint32_t begin = settle_found(walk, tier, n);
        spread_found(rest, walk, tier, begin, n);
    }
    return status;
}

static bool any_to_ask(const struct rest *rest)
{
    const struct hps_walk *walk = rest->first;

    while (walk != NULL && walk->batch.n == walk->fetch.n_joined) {
        walk = walk->next;
    }
    return walk != NULL;
}

/* Fetch the keys that do not wait for others from all tiers that block. */
static hps_status fetch(struct rest *rest, struct hps_error *err)
{
    const struct hps_version *version = rest->version;
    uint32_t tier = 0;

    rest->since = hps_stamps_now(version->stamps);
    while (tier < version->n_tiers && !tier_blocks(version, tier)) {
        tier++;
    }
    for (; tier < version->n_tiers && any_to_ask(rest); tier++) {
        const struct hps_walk *failed = rest->first;
        bool refused = false;
        bool last = tier + 1 == version->n_tiers;
        hps_status status = ask_blocking(rest, tier, &failed, &refused);
        if (interrupted(status) || (status != HPS_OK && last)) {
            return fail(failed, tier, status, refused, err);
        }
        for (struct hps_walk *walk = rest->first; walk != NULL && last; walk = walk->next) {
            prove_absent(rest, walk);
        }
    }
    return HPS_OK;
}

/* ---- tiers that block: keys that others fetch ------------------------------------------------ */

/* Whoever wants exact rows takes none that others fetch, where there may be later ones. */
static bool shares(const struct rest *rest)
{
    bool any_shared = false;

    for (uint32_t tier = 0; tier < rest->version->n_tiers; tier++) {
        any_shared = any_shared || tier_is_shared(rest->version, tier);
    }
    return rest->version->flight != NULL && !(rest->call->exact && any_shared);
}

/* Find out which missing keys others are fetching, and put those in front. */
static void join_others(struct rest *rest, struct hps_walk *walk)
{
    struct hps_walk_fetch *fetch = &walk->fetch;
    struct hps_batch *batch = &walk->batch;
    uint32_t n = batch->n;

    if (!shares(rest) || n == 0 || n > rest->n_share) {
        return;
    }
    fetch->flights = hps_alloc(n * sizeof(*fetch->flights));
    fetch->joined = hps_alloc(n * sizeof(struct hps_flight_key *));
    if (fetch->flights == NULL || fetch->joined == NULL) {
        return; /* nothing is shared, then */
    }
    fetch->n_flights = n;
    rest->n_share -= n;
    for (uint32_t i = 0; i < n; i++) {
        struct hps_flight_key *flight = &fetch->flights[i];
        *flight = (struct hps_flight_key){.key = batch->keys[i],
                                          .row = batch->rows +
                                                 (size_t)batch->slots[i] * walk->table->row_bytes,
                                          .row_bytes = walk->table->row_bytes,
                                          .table_id = walk->table->id,
                                          .since = rest->since};
        enum hps_flight_state state =
            hps_flight_join(rest->version->flight, &rest->trip, rest->version->stamps, flight);
        fetch->n_led += state == HPS_FLIGHT_LEADS ? 1 : 0;
        if (state == HPS_FLIGHT_WAITS) {
            batch_swap(batch, i, fetch->n_joined);
            fetch->joined[fetch->n_joined++] = flight;
        }
    }
}

/* Key i, one of those that wait, goes to the others, as the first of them. */
static void stop_waiting(struct hps_walk *walk, uint32_t i)
{
    struct hps_walk_fetch *fetch = &walk->fetch;

    fetch->n_joined--;
    fetch->joined[i] = fetch->joined[fetch->n_joined];
    batch_swap(&walk->batch, i, fetch->n_joined);
}

/* Take what has come for the keys that wait. Returns how many have come to lead. */
static uint32_t collect(struct hps_walk *walk)
{
    struct hps_walk_fetch *fetch = &walk->fetch;
    uint32_t n_promoted = 0;

    for (uint32_t i = fetch->n_joined; i-- > 0;) {
        const struct hps_flight_key *flight = fetch->joined[i];
        unsigned state = atomic_load_explicit(&flight->state, memory_order_acquire);

        if (state == HPS_FLIGHT_WAITS) {
            continue;
        }
        stop_waiting(walk, i);
        batch_swap(&walk->batch, fetch->n_joined, walk->batch.n - 1);
        if (state == HPS_FLIGHT_FOUND) {
            settle_found(walk, flight->tier, 1);
            walk->reports[flight->tier].n_shared++;
        } else if (state == HPS_FLIGHT_ABSENT) {
            settle_absent(walk, 1);
            walk->n_shared_absent++;
        } else if (state == HPS_FLIGHT_LEADS) {
            fetch->n_led++;
            n_promoted++;
        }
    }
    return n_promoted;
}

/* To the next look at deadline and cancel flag. */
static uint32_t wait_us(const struct hps_walk_call *call)
{
    uint64_t now_us = hps_clock_us();

    if (call->deadline_us == 0 || call->deadline_us >= now_us + WAIT_SLICE_US) {
        return WAIT_SLICE_US;
    }
    return call->deadline_us > now_us ? (uint32_t)(call->deadline_us - now_us) : 0;
}

/* Wait until others have fetched all the keys that wait for them, or one of those has to be fetched
 * here since whoever did it failed. */
static hps_status await_others(struct rest *rest, struct hps_error *err)
{
    uint32_t n_promoted = 0;
    uint64_t start_us = hps_clock_us();
    hps_status status = HPS_OK;

    while (status == HPS_OK && !hps_flight_wait(&rest->trip, wait_us(rest->call))) {
        status = check_interrupted(rest->call);
    }
    rest->first->wait_us += hps_clock_us() - start_us;
    if (status != HPS_OK) {
        return hps_error_set(err, status, "%s while another look-up fetches the same keys",
                             hps_status_text(status));
    }
    for (struct hps_walk *walk = rest->first; walk != NULL; walk = walk->next) {
        n_promoted += collect(walk);
    }
    hps_flight_take_promoted(&rest->trip, n_promoted);
    return HPS_OK;
}

/* Whoever waits for a key that was not fetched goes on with it alone. */
static void leave_others(struct rest *rest, struct hps_walk *walk)
{
    struct hps_walk_fetch *fetch = &walk->fetch;

    for (uint32_t i = 0; i < fetch->n_flights; i++) {
        hps_flight_leave(rest->version->flight, &fetch->flights[i]);
    }
    collect(walk);
    hps_free(fetch->flights);
    hps_free(fetch->joined);
    *fetch = (struct hps_walk_fetch){0};
}

static bool any_missing(const struct rest *rest)
{
    const struct hps_walk *walk = rest->first;

    while (walk != NULL && hps_walk_done(walk)) {
        walk = walk->next;
    }
    return walk != NULL;
}

hps_status hps_walk_rest(struct hps_walk *first, const struct hps_walk_call *call,
                         struct hps_error *err)
{
    struct rest rest = {
        .first = first, .version = first->version, .call = call, .n_share = HPS_WALK_KEYS_SHARED};
    hps_status status = hps_walk_memory(first, call, err);

    if (status != HPS_OK || !any_missing(&rest)) {
        return status;
    }
    hps_flight_trip_begin(&rest.trip);
    rest.since = hps_stamps_now(rest.version->stamps);
    for (struct hps_walk *walk = first; walk != NULL; walk = walk->next) {
        join_others(&rest, walk);
    }
    while (status == HPS_OK && any_missing(&rest)) {
        status = fetch(&rest, err);
        if (status == HPS_OK) {
            status = await_others(&rest, err);
        }
    }
    for (struct hps_walk *walk = first; walk != NULL; walk = walk->next) {
        leave_others(&rest, walk);
    }
    hps_flight_trip_end(&rest.trip);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The order in which the tiers are asked, and the walk that follows it: memory tiers one after the
 * other, which is all that a hit in memory takes, then those that block. How one of these is asked
 * is in tiers_blocking.c, what is inserted of its rows into tiers above it in tiers_upward.c, and
 * how keys are waited for that other look-ups fetch in tiers_others.c. On the thread of the walk's
 * look-up; memory tiers also on those of its helpers.
 */
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "cache/lookup/tiers_internal.h"
#include "cache/version/absent.h"
#include "cache/version/stamps.h"

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
        if (walk_tier_ops(walk->version, tier)->tier == kind) {
            has = true;
            break;
        }
    }
    if (has) {
        *out_n = n;
    }
    return has;
}

bool hps_walk_tier_blocks(const struct hps_walk *walk, uint32_t tier)
{
    return walk_tier_blocks(walk->version, tier);
}

hps_status walk_check_interrupted(const struct hps_walk_call *call)
{
    if (call->cancelled != NULL && call->cancelled(call->cancelled_ctx)) {
        return HPS_CANCELLED;
    }
    if (call->deadline_us != 0 && hps_clock_us() >= call->deadline_us) {
        return HPS_DEADLINE;
    }
    return HPS_OK;
}

/* From the end of those that miss, over all that the walk has answered, to the very end. */
void hps_walk_answered(struct hps_walk *walk, uint32_t n)
{
    uint32_t at = walk->batch.n - n;

    HPS_ASSERT(n <= walk->batch.n);
    walk_swap_ranges(&walk->batch, at, n, walk->n_absent);
    walk->batch.n = at;
    at += walk->n_absent;
    for (uint32_t t = walk->version->n_tiers; t-- > 0;) {
        walk_swap_ranges(&walk->batch, at, n, walk->reports[t].n_found);
        at += walk->reports[t].n_found;
    }
    walk->n_keys -= n;
    walk->gpu.n_found += n;
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
        piece->status = walk_check_interrupted(pieces->call);
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
        walk_swap_ranges(all, piece->lo + lo + batch.n, n - batch.n, hi - (lo + n));
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
        walk_swap_ranges(&walk->batch, piece->lo + piece->n_missing, found, n_missing);
        n_missing += piece->n_missing;
        n_found += found;
        report->n_asked += piece->n_asked;
        report->n_unanswered += piece->n_unanswered;
        report->duration_us += piece->duration_us;
        report->n_faults += piece->failed ? 1 : 0;
        report->status = piece->status == HPS_OK ? report->status : piece->status;
    }
    walk_settle_found(walk, tier, n_found);
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
                         walk_tier_ops(walk->version, tier)->name, hps_status_text(status), why);
}

static bool interrupted(hps_status status)
{
    return status == HPS_CANCELLED || status == HPS_DEADLINE;
}

static bool in_memory(const struct hps_walk *walk)
{
    return !hps_walk_done(walk) && !walk_tier_blocks(walk->version, walk->tier_next);
}

/* A miss in this tier proves that no tier has the key, if that is so before the tier is asked and
 * afterwards: rows put there during the question prove nothing, nor do rows that an update has
 * dropped meanwhile. */
static bool tier_is_complete(const struct hps_version *version, uint32_t tier)
{
    return tier + 1 == version->n_tiers || (walk_tier_ops(version, tier)->tier == HPS_TIER_HOST &&
                                            hps_version_host_complete(version));
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
        walk_settle_absent(walk, walk->batch.n);
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
    return first->tier_next == 0 && !walk_tier_blocks(first->version, 0) &&
           n >= 4 * (uint64_t)HPS_WALK_KEYS_PIECE;
}

/* Sort out the keys that an earlier look-up found to be in no tier. */
static void recall_absent(struct hps_walk *walk)
{
    const struct hps_absent *absent = walk->version->absent;
    uint32_t n_before = walk->batch.n;

    for (uint32_t i = n_before; absent != NULL && i-- > 0;) {
        if (hps_absent_has(absent, walk->table->id, walk->batch.keys[i])) {
            walk_swap(&walk->batch, i, walk->batch.n - 1);
            walk_settle_absent(walk, 1);
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

/* ---- tiers that block ------------------------------------------------------------------------ */

static bool any_to_ask(const struct walk_rest *rest)
{
    const struct hps_walk *walk = rest->first;

    while (walk != NULL && walk->batch.n == walk->fetch.n_joined) {
        walk = walk->next;
    }
    return walk != NULL;
}

/* Fetch the keys that do not wait for others from all tiers that block. */
static hps_status fetch(struct walk_rest *rest, struct hps_error *err)
{
    const struct hps_version *version = rest->version;
    uint32_t tier = 0;

    rest->since = hps_stamps_now(version->stamps);
    while (tier < version->n_tiers && !walk_tier_blocks(version, tier)) {
        tier++;
    }
    for (; tier < version->n_tiers && any_to_ask(rest); tier++) {
        const struct hps_walk *failed = rest->first;
        bool refused = false;
        bool last = tier + 1 == version->n_tiers;
        hps_status status = walk_ask_blocking(rest, tier, &failed, &refused);
        if (interrupted(status) || (status != HPS_OK && last)) {
            return fail(failed, tier, status, refused, err);
        }
        for (struct hps_walk *walk = rest->first; walk != NULL && last; walk = walk->next) {
            walk_prove_absent(rest, walk);
        }
    }
    return HPS_OK;
}

static bool any_missing(const struct walk_rest *rest)
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
    struct walk_rest rest = {
        .first = first, .version = first->version, .call = call, .n_share = HPS_WALK_KEYS_SHARED};
    hps_status status = hps_walk_memory(first, call, err);

    if (status != HPS_OK || !any_missing(&rest)) {
        return status;
    }
    hps_flight_trip_begin(&rest.trip);
    rest.since = hps_stamps_now(rest.version->stamps);
    for (struct hps_walk *walk = first; walk != NULL; walk = walk->next) {
        walk_join_others(&rest, walk);
    }
    while (status == HPS_OK && any_missing(&rest)) {
        status = fetch(&rest, err);
        if (status == HPS_OK) {
            status = walk_await_others(&rest, err);
        }
    }
    for (struct hps_walk *walk = first; walk != NULL; walk = walk->next) {
        walk_leave_others(&rest, walk);
    }
    hps_flight_trip_end(&rest.trip);
    return status;
}

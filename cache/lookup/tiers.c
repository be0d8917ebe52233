/* SPDX-License-Identifier: Apache-2.0
 *
 * The order of the tiers in a walk: first the memory tiers, which suffice if every key is a hit
 * there, then the tiers that block. tiers_blocking.c queries one tier that blocks, tiers_upward.c
 * inserts its rows into the tiers above, and tiers_others.c waits for keys that other lookups
 * fetch. On the thread of the walk's lookup; memory tiers also on its helpers.
 */
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "cache/lookup/tiers_internal.h"
#include "cache/version/absent.h"
#include "cache/version/stamps.h"

void hps_walk_init(struct hps_walk *walk, struct hps_version *version,
                   const struct hps_table *table, const struct hps_batch *batch)
{
    HPS_ASSERT(version != NULL);
    HPS_ASSERT(table->id < version->n_tables);
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

uint32_t hps_walk_found_n(const struct hps_walk *walk, enum hps_tier_kind kind)
{
    uint32_t n_before = kind == walk->kind_before ? walk->n_found_before : 0;

    HPS_ASSERT((unsigned)kind < HPS_TIER_COUNT);
    HPS_ASSERT(walk->reports[kind].n_found >= n_before);
    return walk->reports[kind].n_found - n_before;
}

uint32_t hps_walk_found_begin(const struct hps_walk *walk, enum hps_tier_kind kind)
{
    uint32_t begin = walk->n_keys;

    HPS_ASSERT((unsigned)kind < HPS_TIER_COUNT);
    for (unsigned i = 0; i <= kind; i++) {
        uint32_t n = hps_walk_found_n(walk, (enum hps_tier_kind)i);
        HPS_ASSERT(begin >= n);
        begin -= n;
    }
    return begin;
}

static bool has_tier(const struct hps_version *version, enum hps_tier_kind kind)
{
    struct hps_tier tiers[HPS_TIERS_MAX];
    uint32_t n = hps_version_tiers(version, tiers);
    uint32_t i = 0;

    while (i < n && tiers[i].kind != kind) {
        i++;
    }
    return i < n;
}

bool hps_walk_hits(const struct hps_walk *walk, enum hps_tier_kind kind, uint32_t *out_n)
{
    bool aside = hps_tier_on_device(kind);
    uint32_t end = aside ? walk->kind_next : (uint32_t)kind + 1;
    uint32_t n = walk->n_absent;

    end = end <= kind ? (uint32_t)kind + 1 : end; /* its own at least, if it is queried first */
    for (uint32_t i = 0; i < end; i++) {
        n += walk->reports[i].n_found;
    }
    if (!has_tier(walk->version, kind) || (!aside && walk->kind_next <= kind)) {
        return false;
    }
    *out_n = n;
    return true;
}

hps_status hps_walk_check_interrupted(const struct hps_walk_call *call)
{
    if (call->cancelled != NULL && call->cancelled(call->cancelled_ctx)) {
        return HPS_CANCELLED;
    }
    if (call->deadline_us != 0 && hps_clock_us() >= call->deadline_us) {
        return HPS_DEADLINE;
    }
    return HPS_OK;
}

void hps_walk_found_before(struct hps_walk *walk, enum hps_tier_kind kind, uint32_t n)
{
    HPS_ASSERT(walk->n_found_before == 0);
    HPS_ASSERT(walk->kind_next == 0);
    walk->n_found_before = n;
    walk->kind_before = kind;
    walk->reports[kind].n_found += n;
}

void hps_walk_answered(struct hps_walk *walk, enum hps_tier_kind kind, uint32_t n)
{
    HPS_ASSERT(hps_tier_on_device(kind));
    walk_settle_found(walk, kind, n);
    HPS_DEBUG_ASSERT(walk_sane(walk));
}

/* ---- memory tiers ---------------------------------------------------------------------------- */

/* Some missing keys of a walk, looked up by one thread. */
struct piece {
    struct hps_walk *walk;
    uint32_t lo; /* in the batch */
    uint32_t n;
    uint32_t n_asked;
    uint32_t n_unanswered;
    uint32_t n_missing; /* out: they come first, found ones after them */
    hps_status status;
    bool failed; /* the tier failed; else it was interrupted */
    uint64_t duration_us;
};

/* All pieces of a query of one tier. */
struct pieces {
    const struct hps_walk_call *call;
    const struct hps_tier *tier;
    struct hps_arena *scratch; /* NULL: several threads run pieces */
    struct piece *array;
};

static void ask_piece(void *ctx, uint32_t i)
{
    const struct pieces *pieces = ctx;
    struct piece *piece = &pieces->array[i];
    struct hps_batch *all = &piece->walk->batch;
    struct hps_space *space = pieces->tier->space;
    struct hps_call call = {.scratch = pieces->scratch, .deadline_us = pieces->call->deadline_us};
    uint64_t start_us = hps_clock_us();
    uint32_t hi = piece->n;
    uint32_t lo = 0; /* [ missing | not looked up | found ]: to lo, to hi */

    while (lo < hi && piece->status == HPS_OK) {
        uint32_t n = hi - lo < HPS_WALK_KEYS_MEMORY ? hi - lo : HPS_WALK_KEYS_MEMORY;
        struct hps_batch batch = {.keys = all->keys + piece->lo + lo,
                                  .slots = all->slots + piece->lo + lo,
                                  .rows = all->rows,
                                  .n = n,
                                  .shape = all->shape};
        piece->status = hps_walk_check_interrupted(pieces->call);
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

/* Merge the pieces of a walk, from the last to the first, so that the found keys follow all missing
 * keys. Returns a failed piece's status, if there is one. */
static hps_status merge_pieces(struct hps_walk *walk, enum hps_tier_kind kind,
                               const struct piece *pieces, uint32_t n)
{
    struct hps_tier_report *report = &walk->reports[kind];
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
    walk_settle_found(walk, kind, n_found);
    return report->status;
}

/* Set the error of a tier that ends the walk. */
static hps_status fail(const struct hps_walk *walk, enum hps_tier_kind kind, hps_status status,
                       bool refused, struct hps_error *err)
{
    const char *why = "";

    if (refused) {
        why = ": it has failed, and lookups skip it until a probe succeeds";
    } else if (status == HPS_ABORTED) {
        why = ": consistency: it has updates that this version has not applied yet";
    }
    return hps_error_set(err, status, "table '%s': tier %s: %s%s", walk->table->name,
                         hps_tier_name(kind), hps_status_text(status), why);
}

static bool interrupted(hps_status status)
{
    return status == HPS_CANCELLED || status == HPS_DEADLINE;
}

static void step_begin(struct walk_step *step, struct hps_walk *first,
                       const struct hps_walk_call *call)
{
    step->first = first;
    step->version = first->version;
    step->call = call;
    step->n_tiers = hps_version_tiers(first->version, step->tiers);
    step->since = hps_stamps_now(first->version->stamps);
}

/* The first tier, from this kind on, that the walk queries. n_tiers: none. */
static uint32_t tier_from(const struct walk_step *step, uint32_t kind)
{
    uint32_t tier = 0;

    while (tier < step->n_tiers &&
           (step->tiers[tier].kind < kind || !walk_asks(step, &step->tiers[tier]))) {
        tier++;
    }
    return tier;
}

/* The same, if that tier is in memory. */
static bool memory_from(const struct walk_step *step, uint32_t kind, uint32_t *out_tier)
{
    uint32_t tier = tier_from(step, kind);

    *out_tier = tier;
    return tier < step->n_tiers && (step->tiers[tier].caps & HPS_CAP_BLOCKS) == 0;
}

/* Whether a miss in this tier proves that no tier has the key. It must be true before and after the
 * query: a row inserted during the query proves nothing, nor does a row that an update dropped
 * during it. */
static bool proves_absence(const struct walk_step *step, uint32_t tier)
{
    uint32_t caps = step->tiers[tier].caps;

    return (caps & HPS_CAP_LOWEST) != 0 ||
           ((caps & HPS_CAP_COMPLETE) != 0 && hps_version_host_complete(step->version));
}

/* The tier has answered the n pieces of a walk. proof: proves_absence before the query */
static hps_status memory_answered(const struct walk_step *step, uint32_t tier,
                                  struct hps_walk *walk, const struct piece *pieces, uint32_t n,
                                  bool proof, struct hps_error *err)
{
    const struct hps_tier *asked = &step->tiers[tier];
    uint32_t n_before = walk->batch.n;
    hps_status status = merge_pieces(walk, asked->kind, pieces, n);

    HPS_ASSERT(walk->kind_next <= asked->kind);
    if (step->call->purpose == HPS_WALK_WARM) {
        walk_insert_found(step, walk, tier, hps_walk_found_begin(walk, asked->kind),
                          n_before - walk->batch.n);
    }
    if (interrupted(status) || (status != HPS_OK && (asked->caps & HPS_CAP_LOWEST) != 0)) {
        return fail(walk, asked->kind, status, false, err);
    }
    if (status == HPS_OK && proof && proves_absence(step, tier)) {
        walk_settle_absent(walk, walk->batch.n);
    }
    walk->kind_next = (uint32_t)asked->kind + 1;
    return HPS_OK;
}

/* Query the memory tiers for one walk, on this thread. */
static hps_status ask_alone(const struct walk_step *step, struct hps_walk *walk,
                            struct hps_error *err)
{
    hps_status status = HPS_OK;
    uint32_t tier = 0;

    while (status == HPS_OK && !hps_walk_done(walk) && memory_from(step, walk->kind_next, &tier)) {
        struct piece piece = {.walk = walk, .n = walk->batch.n};
        struct pieces pieces = {.call = step->call,
                                .tier = &step->tiers[tier],
                                .scratch = step->call->scratch,
                                .array = &piece};
        bool proof = proves_absence(step, tier);
        ask_piece(&pieces, 0);
        status = memory_answered(step, tier, walk, &piece, 1, proof, err);
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

/* Query this tier, the first one, for all walks, with helpers. Without memory for the pieces,
 * nothing is done. */
static hps_status ask_with_helpers(const struct walk_step *step, uint32_t tier,
                                   struct hps_error *err)
{
    bool proof = proves_absence(step, tier);
    hps_status status = HPS_OK;
    uint32_t n = 0;
    uint32_t at = 0;

    for (const struct hps_walk *walk = step->first; walk != NULL; walk = walk->next) {
        n += n_pieces_of(walk);
    }
    struct piece *array = hps_alloc(n * sizeof(*array));
    struct pieces pieces = {.call = step->call, .tier = &step->tiers[tier], .array = array};
    if (array == NULL) {
        return HPS_OK;
    }
    for (struct hps_walk *walk = step->first; walk != NULL; walk = walk->next) {
        cut(walk, array + at, n_pieces_of(walk));
        at += n_pieces_of(walk);
    }
    uint64_t start_us = hps_clock_us();
    hps_pool_split(step->call->helpers, n, ask_piece, &pieces);
    for (uint32_t i = 0; i < n; i++) { /* they ran in parallel */
        array[i].duration_us = i == 0 ? hps_clock_us() - start_us : 0;
    }
    at = 0;
    for (struct hps_walk *walk = step->first; walk != NULL; walk = walk->next) {
        n = n_pieces_of(walk);
        /* All are merged, so that found keys count even if a piece failed. */
        hps_status answer =
            n > 0 ? memory_answered(step, tier, walk, array + at, n, proof, err) : HPS_OK;
        status = answer == HPS_OK ? status : answer;
        at += n;
    }
    hps_free(array);
    return status;
}

/* Whether the first tier is in memory, has not been queried, and many keys are missing. */
static bool is_large(const struct walk_step *step, uint32_t *out_tier)
{
    uint64_t n = 0;

    for (const struct hps_walk *walk = step->first; walk != NULL; walk = walk->next) {
        n += walk->batch.n;
    }
    return n >= 4 * (uint64_t)HPS_WALK_KEYS_PIECE && step->first->kind_next == 0 &&
           memory_from(step, 0, out_tier);
}

/* Settle the keys that an earlier lookup found to be in no tier. */
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

static hps_status ask_memory(const struct walk_step *step, struct hps_error *err)
{
    bool recalls = step->call->purpose != HPS_WALK_REPORT;
    hps_status status = HPS_OK;
    uint32_t tier = 0;

    if (step->call->helpers != NULL && is_large(step, &tier)) {
        status = ask_with_helpers(step, tier, err);
    }
    for (struct hps_walk *walk = step->first; walk != NULL && status == HPS_OK; walk = walk->next) {
        HPS_ASSERT(walk->version == step->version);
        status = ask_alone(step, walk, err);
        if (status == HPS_OK && recalls && !walk->recalled) {
            recall_absent(walk);
            walk->recalled = true;
        }
        HPS_DEBUG_ASSERT(walk_sane(walk));
    }
    return status;
}

hps_status hps_walk_memory(struct hps_walk *first, const struct hps_walk_call *call,
                           struct hps_error *err)
{
    struct walk_step step;

    step_begin(&step, first, call);
    return ask_memory(&step, err);
}

/* ---- tiers that block ------------------------------------------------------------------------ */

static bool any_to_ask(const struct walk_step *step)
{
    const struct hps_walk *walk = step->first;

    while (walk != NULL && walk->batch.n == walk->fetch.n_joined) {
        walk = walk->next;
    }
    return walk != NULL;
}

/* Fetch the keys that do not wait for other lookups from all tiers that block. */
static hps_status fetch(struct walk_step *step, struct hps_error *err)
{
    bool asks = false; /* true from the first tier that blocks on */

    step->since = hps_stamps_now(step->version->stamps);
    for (uint32_t tier = 0; tier < step->n_tiers && any_to_ask(step); tier++) {
        const struct hps_tier *asked = &step->tiers[tier];
        const struct hps_walk *failed = step->first;
        bool last = (asked->caps & HPS_CAP_LOWEST) != 0;
        bool refused = false;

        asks = asks || (asked->caps & HPS_CAP_BLOCKS) != 0;
        if (!asks || !walk_asks(step, asked)) {
            continue;
        }
        hps_status status = walk_ask_blocking(step, tier, &failed, &refused);
        if (interrupted(status) || (status != HPS_OK && last)) {
            return fail(failed, asked->kind, status, refused, err);
        }
        for (struct hps_walk *walk = step->first; walk != NULL && last; walk = walk->next) {
            walk_prove_absent(step, walk);
        }
    }
    return HPS_OK;
}

static bool any_missing(const struct walk_step *step)
{
    const struct hps_walk *walk = step->first;

    while (walk != NULL && hps_walk_done(walk)) {
        walk = walk->next;
    }
    return walk != NULL;
}

/* Whether any key waits for another lookup. */
static bool any_joined(const struct walk_step *step)
{
    const struct hps_walk *walk = step->first;

    while (walk != NULL && walk->fetch.n_joined == 0) {
        walk = walk->next;
    }
    return walk != NULL;
}

hps_status hps_walk_rest(struct hps_walk *first, const struct hps_walk_call *call,
                         struct hps_error *err)
{
    struct walk_step step;
    bool waits = true;

    step_begin(&step, first, call);
    step.n_share = HPS_WALK_KEYS_SHARED;
    hps_status status = ask_memory(&step, err);
    if (status != HPS_OK || !any_missing(&step)) {
        return status;
    }
    hps_flight_caller_begin(&step.caller);
    step.since = hps_stamps_now(step.version->stamps);
    for (struct hps_walk *walk = first; walk != NULL; walk = walk->next) {
        walk_join_others(&step, walk);
    }
    while (status == HPS_OK && waits) {
        status = fetch(&step, err);
        waits = any_joined(&step);
        if (status == HPS_OK && waits) { /* some may have to be fetched here afterwards */
            status = walk_await_others(&step, err);
        }
    }
    for (struct hps_walk *walk = first; walk != NULL; walk = walk->next) {
        walk_leave_others(&step, walk);
        HPS_DEBUG_ASSERT(walk_sane(walk));
    }
    hps_flight_caller_end(&step.caller);
    return status;
}

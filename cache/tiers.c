/* SPDX-License-Identifier: Apache-2.0
 *
 * The tier walk: ask, keep what was found in ranges, insert upward. On the thread of its look-up.
 */
#include "cache/tiers.h"

#include <string.h>

#include "base/assert.h"
#include "base/clock.h"

static const struct hps_store_ops *tier_ops(const struct hps_walk *walk, uint32_t tier)
{
    return walk->version->tiers[tier]->store->ops;
}

static bool tier_blocks(const struct hps_walk *walk, uint32_t tier)
{
    return (tier_ops(walk, tier)->caps & HPS_STORE_BLOCKING) != 0;
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

void hps_walk_init(struct hps_walk *walk, const struct hps_version *version,
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
    return walk->batch.n == 0 || walk->absent;
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

static void batch_swap(struct hps_batch *batch, uint32_t a, uint32_t b)
{
    hps_key key = batch->keys[a];
    uint32_t slot = batch->slots[a];

    batch->keys[a] = batch->keys[b];
    batch->slots[a] = batch->slots[b];
    batch->keys[b] = key;
    batch->slots[b] = slot;
}

/* Ask for keys[lo .. lo + n) of a batch whose keys from *hi on are answered:
 *
 *     [ missing | chunk | not asked | answered ]
 *     0         lo              *hi
 *
 * Afterwards the answered ones of the chunk have moved behind *hi. Returns how many of it are
 * missing. */
static uint32_t get_chunk(struct hps_walk *walk, uint32_t tier, const struct hps_call *call,
                          uint32_t lo, uint32_t n, uint32_t *hi, hps_status *out_status)
{
    struct hps_space *space = walk->version->tiers[tier];
    struct hps_batch chunk = {.keys = walk->batch.keys + lo,
                              .slots = walk->batch.slots + lo,
                              .rows = walk->batch.rows,
                              .n = n};

    *out_status = space->store->ops->get(space, call, walk->table, &chunk);
    HPS_ASSERT(chunk.n <= n);
    uint32_t n_found = n - chunk.n;
    uint32_t n_behind = *hi - (lo + n);
    uint32_t n_swaps = n_found < n_behind ? n_found : n_behind;
    for (uint32_t i = 0; i < n_swaps; i++) {
        batch_swap(&walk->batch, lo + chunk.n + i, *hi - 1 - i);
    }
    *hi -= n_found;
    return chunk.n;
}

/* Ask one tier for all missing keys, a chunk at a time. */
static hps_status ask_tier(struct hps_walk *walk, uint32_t tier, const struct hps_walk_call *call)
{
    struct hps_tier_report *report = &walk->reports[tier];
    uint32_t chunk_max = tier_blocks(walk, tier) ? HPS_WALK_KEYS_BLOCKING : HPS_WALK_KEYS_MEMORY;
    struct hps_call store_call = {.scratch = call->scratch, .deadline_us = call->deadline_us};
    uint64_t start_us = hps_clock_us();
    uint32_t lo = 0;
    uint32_t hi = walk->batch.n;
    hps_status status = HPS_OK;

    report->n_asked = hi;
    while (lo < hi && status == HPS_OK) {
        status = check_interrupted(call);
        if (status != HPS_OK) {
            break;
        }
        if (call->scratch != NULL) {
            hps_arena_reset(call->scratch);
        }
        uint32_t n = hi - lo < chunk_max ? hi - lo : chunk_max;
        lo += get_chunk(walk, tier, &store_call, lo, n, &hi, &status);
    }
    report->n_found = walk->batch.n - hi;
    report->status = status;
    report->duration_us = hps_clock_us() - start_us;
    walk->batch.n = hi;
    return status;
}

/* Ask the next tier and note what its answer means for the walk. */
static hps_status walk_step(struct hps_walk *walk, const struct hps_walk_call *call,
                            struct hps_error *err)
{
    uint32_t tier = walk->tier_next;
    bool last = tier + 1 == walk->version->n_tiers;
    const struct hps_store_ops *ops = tier_ops(walk, tier);
    /* Read before the tier is asked: rows put there during the question prove nothing. */
    bool complete = ops->tier == HPS_TIER_HOST && walk->version->host_complete;
    hps_status status = ask_tier(walk, tier, call);

    if (status == HPS_CANCELLED || status == HPS_DEADLINE) {
        return hps_error_set(err, status, "table '%s': %s in tier %s", walk->table->name,
                             hps_status_text(status), ops->name);
    }
    if (status != HPS_OK && last) {
        return hps_error_set(err, status, "table '%s': tier %s: %s", walk->table->name, ops->name,
                             hps_status_text(status));
    }
    if (status == HPS_OK) {
        walk->absent = last || complete;
    }
    walk->tier_next++;
    return HPS_OK;
}

hps_status hps_walk_memory(struct hps_walk *walk, const struct hps_walk_call *call,
                           struct hps_error *err)
{
    while (!hps_walk_done(walk) && !tier_blocks(walk, walk->tier_next)) {
        hps_status status = walk_step(walk, call, err);
        if (status != HPS_OK) {
            return status;
        }
    }
    return HPS_OK;
}

/* Insert what tier `from` found into tier `to`. Failure only costs later look-ups: it is reported.
 */
static void insert_found(struct hps_walk *walk, uint32_t from, uint32_t to,
                         struct hps_arena *scratch)
{
    struct hps_tier_report *report = &walk->reports[to];
    struct hps_space *space = walk->version->tiers[to];
    struct hps_insert_report inserted = {0};
    struct hps_call call = {.scratch = scratch};
    uint32_t n = walk->reports[from].n_found;
    uint32_t begin = hps_walk_found_begin(walk, from);

    if (scratch != NULL) {
        hps_arena_reset(scratch);
    }
    report->insert_status =
        space->store->ops->insert(space, &call, walk->table, walk->batch.keys + begin,
                                  walk->batch.slots + begin, walk->batch.rows, n, NULL, &inserted);
    report->n_inserted += inserted.n_inserted;
    report->n_no_room += inserted.n_no_room;
    if (report->insert_status != HPS_OK) {
        report->n_dropped += n - inserted.n_inserted - inserted.n_no_room - inserted.n_stale;
    }
}

/* Fill the host tier from the tiers below it; a tier that was skipped is left alone. */
static void insert_upward(struct hps_walk *walk, struct hps_arena *scratch)
{
    for (uint32_t to = 0; to < walk->tier_next; to++) {
        if (tier_ops(walk, to)->tier != HPS_TIER_HOST || walk->reports[to].status != HPS_OK) {
            continue;
        }
        for (uint32_t from = to + 1; from < walk->tier_next; from++) {
            if (walk->reports[from].n_found > 0) {
                insert_found(walk, from, to, scratch);
            }
        }
    }
}

hps_status hps_walk_rest(struct hps_walk *walk, const struct hps_walk_call *call,
                         struct hps_error *err)
{
    while (!hps_walk_done(walk)) {
        hps_status status = walk_step(walk, call, err);
        if (status != HPS_OK) {
            return status;
        }
    }
    insert_upward(walk, call->scratch);
    return HPS_OK;
}

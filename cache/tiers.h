/* SPDX-License-Identifier: Apache-2.0
 *
 * The walk of one part down the tiers of its version: `for each tier while keys are missing: get`.
 * Memory tiers may be asked on a loop thread, blocking ones only on a worker; hence two steps. A
 * walk is used by one thread at a time and may move between threads between its steps.
 */
#ifndef HPS_CACHE_TIERS_H
#define HPS_CACHE_TIERS_H

#include "cache/version.h"

/* Keys asked for between two looks at the cancel flag. */
enum { HPS_WALK_KEYS_MEMORY = 1024, HPS_WALK_KEYS_BLOCKING = 16384 };

/* What one tier did for one part. */
struct hps_tier_report {
    uint32_t n_asked;
    uint32_t n_found;
    uint32_t n_inserted; /* rows found below that were put into this tier */
    uint32_t n_no_room;  /* rows found below that it had no room for */
    uint32_t n_dropped;  /* rows found below that it failed to take */
    hps_status status;   /* of the look-up; not OK: it was skipped, or failed the part */
    hps_status insert_status;
    uint64_t duration_us;
};

struct hps_walk {
    const struct hps_version *version;
    const struct hps_table *table;
    struct hps_batch batch;
    uint32_t n_keys;    /* of the batch before the walk */
    uint32_t tier_next; /* the first tier not asked yet */
    bool absent;        /* the keys still missing are in no tier */
    struct hps_tier_report reports[HPS_TIERS_MAX];
};

/* What a step may cost. `scratch` is reset before each call of a store. */
struct hps_walk_call {
    struct hps_arena *scratch;
    uint64_t deadline_us;               /* 0 = none */
    bool (*cancelled)(const void *ctx); /* NULL: never */
    const void *cancelled_ctx;
};

/* batch: the keys must be unique; it is used in place. */
void hps_walk_init(struct hps_walk *walk, const struct hps_version *version,
                   const struct hps_table *table, const struct hps_batch *batch);

/* Nothing is left to ask: all keys are found, or known to be absent. */
bool hps_walk_done(const struct hps_walk *walk);

/* Ask the tiers that cannot block, down to the first that can. error: as hps_walk_rest */
hps_status hps_walk_memory(struct hps_walk *walk, const struct hps_walk_call *call,
                           struct hps_error *err) HPS_MUST_CHECK;

/* Ask all tiers that are left, then insert what they found into the host tier above them. A tier
 * that fails is skipped, but for the last one. Afterwards walk->batch holds the missing keys, and
 * behind them, tier by tier from the back, those found.
 *
 * thread  one that may block
 * error   DEADLINE, CANCELLED (keys found so far stay found); what the authoritative tier answered
 */
hps_status hps_walk_rest(struct hps_walk *walk, const struct hps_walk_call *call,
                         struct hps_error *err) HPS_MUST_CHECK;

/* First index in the batch of the keys found by tier `tier`; there are reports[tier].n_found. */
uint32_t hps_walk_found_begin(const struct hps_walk *walk, uint32_t tier);

/* "gpu", "host", "redis", "rocksdb": names on the wire and in metrics. */
const char *hps_tier_name(enum hps_tier_kind kind);

#endif

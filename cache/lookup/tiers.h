/* SPDX-License-Identifier: Apache-2.0
 *
 * The walk of the parts of one look-up down the tiers of their version: `for each tier while keys
 * are missing: get`. Nobody else asks a store for the rows of several tiers: insertions behind the
 * answers, warm-ups, refills and the explanation of one key are walks, too, which differ in their
 * purpose and in the tiers that they ask and insert into (struct hps_walk_call).
 *
 * Memory tiers may be asked on a loop thread, blocking ones only on a worker; hence two steps. A
 * walk is used by one thread at a time and may move between threads between its steps. A tier on a
 * device is asked beside the walk (gpu.c of this folder), which hands what was found there to the
 * walk.
 */
#ifndef HPS_CACHE_LOOKUP_TIERS_H
#define HPS_CACHE_LOOKUP_TIERS_H

#include "base/pool.h"
#include "cache/lookup/insertion.h"
#include "cache/version/flight.h"
#include "cache/version/tier.h"

/* Keys asked for between two looks at the cancel flag (but of a shared tier all at once); keys of a
 * large look-up that another thread may take over; and keys, of one look-up, that are shared with
 * others, which takes 96 bytes each and up to 4 % of the time of a warm read. */
enum {
    HPS_WALK_KEYS_MEMORY = 1024,
    HPS_WALK_KEYS_BLOCKING = 16384,
    HPS_WALK_KEYS_PIECE = 2048,
    HPS_WALK_KEYS_SHARED = 4096
};

/* What one tier did for one part. Zeroed: it was not asked, or the version has no such tier. */
struct hps_tier_report {
    uint32_t n_asked;
    uint32_t n_unanswered; /* of them, since the call failed */
    uint32_t n_found;      /* by this look-up or by one that it waited for */
    uint32_t n_shared;     /* of them, by one that it waited for: they are not in n_asked */
    uint32_t n_inserted;   /* rows found below that were put into this tier */
    uint32_t n_no_room;    /* rows found below that it had no room for */
    uint32_t n_stale;      /* rows found below that an update has overtaken */
    uint32_t n_dropped;    /* rows found below that it failed to take */
    uint32_t n_evicted;    /* rows of others that went for those inserted */
    uint32_t n_faults; /* calls that failed, of this part or of several that it is the first of */
    bool later;        /* an answer may be of updates that this version does not have yet */
    hps_status status; /* of the look-up; not OK: it was skipped, or failed the part */
    hps_status insert_status;
    uint64_t duration_us; /* of calls for several parts: all of it with the first */
};

/* What the second step of a walk holds while it runs. */
struct hps_walk_fetch {
    struct hps_flight_key *flights; /* [n_flights] NULL: nothing is shared */
    struct hps_flight_key **joined; /* [n_joined] for each of the batch's first keys: it waits */
    uint32_t n_flights;
    uint32_t n_joined;
    uint32_t n_led;
    uint32_t lo; /* of the batch, while a tier is asked: the next key to ask, */
    uint32_t hi; /* and the first one that it has answered */
    bool later;  /* its answer may be of updates that this version does not have yet */
};

/* The keys of the batch, and behind them, by the tiers from the last one up:
 *
 *     [ missing | in no tier | found by rocksdb | by redis | by host | by the gpu ]
 *     0         batch.n      batch.n + n_absent                                   n_keys
 *
 * The row of key i is at batch.rows + slots[i] * row_bytes, as it is stored, but where batch.shape
 * says if that is wanted and a memory tier that can has found it. batch.rows may be NULL as long as
 * only such tiers are asked.
 */
struct hps_walk {
    struct hps_version *version;
    const struct hps_table *table;
    struct hps_batch batch;
    uint32_t n_keys;         /* of the batch before the walk */
    uint32_t n_found_before; /* by one tier, of keys as sent, which never were in the batch */
    enum hps_tier_kind kind_before; /* of that tier */
    uint32_t n_absent;              /* proven to be in no tier */
    uint32_t n_remembered;    /* of them, from an earlier look-up: no blocking tier was asked */
    uint32_t n_shared_absent; /* of them, by a look-up that this one waited for */
    uint32_t kind_next;       /* tiers of the kinds before it have been asked */
    bool recalled;            /* keys known to be absent were sorted out */
    struct hps_tier_report reports[HPS_TIER_COUNT]; /* by kind; of kind_before n_found is with
                                                       n_found_before */
    const struct hps_gpu_space *gpu_missed;         /* the device that was asked; NULL: none */
    struct hps_walk *next;                          /* of those given to a step together */
    uint64_t wait_us; /* for rows that others fetch; of walks linked together: with the first */
    struct hps_walk_fetch fetch;
};

/* Who wants the rows. */
enum hps_walk_purpose {
    HPS_WALK_ANSWER, /* a look-up, which waits for them */
    /* An insertion: somebody was answered without them. What finds no room in a memory tier goes to
     * the device in any case. */
    HPS_WALK_BEHIND,
    /* Memory tiers, and nobody yet: what any tier has goes into all those above it, and the device
     * is waited for. No fetches are shared, and nobody is taken to have asked. */
    HPS_WALK_WARM,
    /* Somebody who looks at the tiers: nothing is inserted, remembered or shared, and keys that are
     * known to be absent are asked for all the same. */
    HPS_WALK_REPORT
};

/* What a step may do, and cost. `scratch` is reset before each call of a store. */
struct hps_walk_call {
    enum hps_walk_purpose purpose;
    uint32_t unasked; /* hps_tier_bit of each kind that is passed over, */
    uint32_t closed;  /* and of each that nothing is inserted into */
    struct hps_arena *scratch;
    uint64_t deadline_us;               /* 0 = none */
    bool (*cancelled)(const void *ctx); /* NULL: never */
    const void *cancelled_ctx;
    struct hps_pool *helpers; /* NULL: the caller does everything */
    /* Where rows go that a shared tier wants, and keys whose rows are to be fetched once more;
     * NULL: nowhere. */
    struct hps_insertion *insertion;
    bool exact; /* no rows of updates that this version does not have yet */
};

/* batch: the keys must be unique; it is used in place. */
void hps_walk_init(struct hps_walk *walk, struct hps_version *version,
                   const struct hps_table *table, const struct hps_batch *batch);

/* Nothing is left to ask: all keys are found, or known to be absent. */
bool hps_walk_done(const struct hps_walk *walk);

/* The tier of this kind was asked before the walk began, and had n keys, as sent, that are not in
 * the batch. */
void hps_walk_found_before(struct hps_walk *walk, enum hps_tier_kind kind, uint32_t n);
/* The last n missing keys were found by a tier that was asked beside the walk, and their rows are
 * in their places. Between the walk's steps. */
void hps_walk_answered(struct hps_walk *walk, enum hps_tier_kind kind, uint32_t n);

/* For this walk and those linked behind it (of one version): ask the tiers that cannot block, down
 * to the first that can; then sort out keys that are known to be in no tier. With call->helpers a
 * large look-up is done in pieces by several threads. error: as hps_walk_rest */
hps_status hps_walk_memory(struct hps_walk *first, const struct hps_walk_call *call,
                           struct hps_error *err) HPS_MUST_CHECK;

/* For this walk and those linked behind it (of one version): ask all tiers that are left, and
 * insert what they find into the memory tiers above them, unless an update has come between; a
 * shared tier above them gets it later (backfill.h). A tier that fails is skipped, but for the last
 * one. A key that another look-up is fetching is waited for instead.
 *
 * A shared tier may have rows of updates that this version does not have yet. They are right for
 * whoever asks, but not for the tiers above, which would keep them for those who want the rows of a
 * unit: their keys are queued, to be fetched without them behind the answer.
 *
 * thread  one that may block
 * error   DEADLINE, CANCELLED (keys found so far stay found); what the authoritative tier answered,
 *         UNAVAILABLE while it is not asked because it is down
 */
hps_status hps_walk_rest(struct hps_walk *first, const struct hps_walk_call *call,
                         struct hps_error *err) HPS_MUST_CHECK;

/* Keys that count as hits of the tier of this kind: found by it or by one above it, or proven to be
 * in no tier. Of a tier on a device, those found by any tier so far: it may be asked before those
 * in memory or after them. False: the version has no such tier, or it has not been asked yet. */
bool hps_walk_hits(const struct hps_walk *walk, enum hps_tier_kind kind, uint32_t *out_n);
/* Note in the walk's version whether its cache tier had room for what the walk found below. Where
 * that is on a device, any tier in memory will do, and only a walk behind an answer finds no room:
 * what a look-up offers the device's queue may be dropped at any time. */
void hps_walk_note_room(const struct hps_walk *walk, struct hps_version *version,
                        enum hps_walk_purpose purpose);

/* The keys of the batch that were found by the tier of this kind: where they begin, and how many
 * there are (those found before the walk are not in the batch). */
uint32_t hps_walk_found_begin(const struct hps_walk *walk, enum hps_tier_kind kind);
uint32_t hps_walk_found_n(const struct hps_walk *walk, enum hps_tier_kind kind);
/* Between two calls of a store. error: DEADLINE, CANCELLED. Any thread. */
hps_status hps_walk_check_interrupted(const struct hps_walk_call *call) HPS_MUST_CHECK;

/* Offer the device of the version what the memory tiers have found, but for rows that an update has
 * changed since `since` (hps_stamps_now, before they were asked), or that it has: bit slot % 32 of
 * word slot / 32 of `cached`; NULL: none. Only copies; never waits. A device that refused the
 * walk's question is spared. Between the walk's steps. */
void hps_walk_offer_memory(struct hps_walk *walk, uint64_t since, const uint32_t *cached);

#endif

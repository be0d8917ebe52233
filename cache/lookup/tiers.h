/* SPDX-License-Identifier: Apache-2.0
 *
 * The walk: the parts of one lookup query the tiers of their version from the top, `for each tier
 * while keys are missing: get`. All code that reads several tiers uses it: lookups, insertion jobs,
 * warm-ups, refills, and the explanation of one key. They differ in their purpose, and in the tiers
 * that they query and insert into (struct hps_walk_call).
 *
 * Memory tiers may be queried on a loop thread, blocking tiers only on a thread that may block;
 * hence two steps. One thread at a time uses a walk; it may move between threads between the steps.
 * A tier on a device is queried outside the walk (gpu.c of this folder), and its hits are handed to
 * the walk.
 */
#ifndef HPS_CACHE_LOOKUP_TIERS_H
#define HPS_CACHE_LOOKUP_TIERS_H

#include "base/pool.h"
#include "cache/lookup/insertion.h"
#include "cache/version/flight.h"
#include "cache/version/tier.h"

/* Keys per call of a memory tier and of a blocking tier; cancellation is checked between calls (a
 * shared tier gets all keys in one call). PIECE: keys of a large lookup that a helper takes at
 * once. SHARED: keys per lookup that share fetches with other lookups. Sharing takes 96 bytes per
 * key and up to 4 % of the time of a warm read. */
enum {
    HPS_WALK_KEYS_MEMORY = 1024,
    HPS_WALK_KEYS_BLOCKING = 16384,
    HPS_WALK_KEYS_PIECE = 2048,
    HPS_WALK_KEYS_SHARED = 4096
};

/* The work of one tier for one part. All zero: the tier was not queried, or the version lacks it.
 */
struct hps_tier_report {
    uint32_t n_asked;
    uint32_t n_unanswered; /* of n_asked: without an answer, because the call failed */
    uint32_t n_found;      /* by this lookup or by one that it waited for */
    uint32_t n_shared;     /* of n_found, by a lookup that this one waited for; not in n_asked */
    uint32_t n_inserted;   /* rows found below and inserted into this tier */
    uint32_t n_no_room;    /* rows found below that did not fit */
    uint32_t n_stale;      /* rows found below that an update has changed since */
    uint32_t n_dropped;    /* rows found below that were not inserted because of an error */
    uint32_t n_evicted;    /* rows that the insertions evicted */
    uint32_t n_faults;     /* failed calls; a call for several parts counts for the first */
    bool later;            /* an answer may include updates that this version does not have yet */
    hps_status status;     /* of get; not OK: the tier was skipped, or the part failed */
    hps_status insert_status;
    uint64_t duration_us; /* a call for several parts counts for the first */
};

/* State of the second step of a walk. */
struct hps_walk_fetch {
    struct hps_flight_key *flights; /* [n_flights]; NULL: no fetches are shared */
    struct hps_flight_key **joined; /* [n_joined] of the batch's first keys, which wait */
    uint32_t n_flights;
    uint32_t n_joined;
    uint32_t n_led;
    uint32_t lo; /* in the batch, while a tier is queried: next key to read */
    uint32_t hi; /* first key that the tier has answered */
    bool later;  /* its answer may include updates that this version does not have yet */
};

/* The batch's missing keys, followed by the keys found, by tier from the lowest one up:
 *
 *     [ missing | in no tier | found by rocksdb | by redis | by host | by the gpu ]
 *     0         batch.n      batch.n + n_absent                                   n_keys
 *
 * The row of key i is at batch.rows + slots[i] * row_bytes, in its stored form. If batch.shape is
 * set, rows that a memory tier with HPS_STORE_SHAPES found are there instead. batch.rows may be
 * NULL while only such tiers are queried.
 */
struct hps_walk {
    struct hps_version *version;
    const struct hps_table *table;
    struct hps_batch batch;
    uint32_t n_keys;         /* keys in the batch before the walk */
    uint32_t n_found_before; /* keys as sent that one tier found; they were never in the batch */
    enum hps_tier_kind kind_before; /* the kind of that tier */
    uint32_t n_absent;              /* keys known to be in no tier */
    uint32_t n_remembered;          /* of n_absent, known before: no blocking tier was queried */
    uint32_t n_shared_absent;       /* of n_absent, from a lookup that this one waited for */
    uint32_t kind_next;             /* tiers with a smaller kind have been queried */
    bool recalled;                  /* keys known to be absent were removed */
    struct hps_tier_report reports[HPS_TIER_COUNT]; /* by kind; n_found includes n_found_before */
    const struct hps_gpu_space *gpu_missed;         /* the device that was queried; NULL: none */
    struct hps_walk *next;                          /* next walk of the same step */
    uint64_t wait_us; /* waiting for rows that others fetch; of linked walks: in the first */
    struct hps_walk_fetch fetch;
};

/* Why the rows are read. */
enum hps_walk_purpose {
    HPS_WALK_ANSWER, /* for a lookup that waits for them */
    /* For an asynchronous insertion: a lookup was answered without these rows. Rows that no memory
     * tier took go to the device in any case. */
    HPS_WALK_BEHIND,
    /* To warm up memory tiers: rows found by any tier are inserted into all memory tiers above it,
     * and the walk waits for capacity in the device's queue. No fetches are shared, and the keys do
     * not count as requested. */
    HPS_WALK_WARM,
    /* To report on the tiers: nothing is inserted, remembered or shared, and keys known to be
     * absent are looked up too. */
    HPS_WALK_REPORT
};

/* Permissions and limits of a step. `scratch` is reset before each call of a store. */
struct hps_walk_call {
    enum hps_walk_purpose purpose;
    uint32_t unasked; /* hps_tier_bit of each kind that is not queried */
    uint32_t closed;  /* and of each kind that gets no insertions */
    struct hps_arena *scratch;
    uint64_t deadline_us;               /* 0 = none */
    bool (*cancelled)(const void *ctx); /* NULL: never */
    const void *cancelled_ctx;
    struct hps_pool *helpers; /* NULL: the caller does everything */
    /* Takes rows for shared tiers, and keys to be fetched again; NULL: neither is done. */
    struct hps_insertion *insertion;
    bool exact; /* no rows of updates that this version does not have yet */
};

/* batch: its keys must be unique; it is permuted in place. */
void hps_walk_init(struct hps_walk *walk, struct hps_version *version,
                   const struct hps_table *table, const struct hps_batch *batch);

/* Whether every key is found or known to be in no tier. */
bool hps_walk_done(const struct hps_walk *walk);

/* Before the walk: the tier of this kind has found n keys, as sent, that are not in the batch. */
void hps_walk_found_before(struct hps_walk *walk, enum hps_tier_kind kind, uint32_t n);
/* A tier outside the walk has found the last n missing keys, and their rows are in their places.
 * Between the walk's steps. */
void hps_walk_answered(struct hps_walk *walk, enum hps_tier_kind kind, uint32_t n);

/* For this walk and those linked to it (of one version): query the memory tiers down to the
 * first that may block. Then remove keys that are known to be in no tier. With call->helpers,
 * several threads share a large lookup. Errors as of hps_walk_rest. */
hps_status hps_walk_memory(struct hps_walk *first, const struct hps_walk_call *call,
                           struct hps_error *err) HPS_MUST_CHECK;

/* For this walk and those linked to it (of one version): query all remaining tiers. Found rows are
 * inserted into the memory tiers above, unless an update has changed them since the read; a shared
 * tier above gets them later (backfill.h). A tier that fails is skipped, except the lowest one. For
 * a key that another lookup is fetching, the walk waits.
 *
 * A shared tier may have rows of updates that this version does not have yet. They are valid
 * answers, but are not inserted into the tiers above, because lookups of consistency units need
 * rows of this version there. Their keys are queued, and jobs fetch the rows of this version later.
 *
 * thread  one that may block
 * error   DEADLINE, CANCELLED (keys found so far stay found); the error of the authoritative tier;
 *         UNAVAILABLE: its breaker is open
 */
hps_status hps_walk_rest(struct hps_walk *first, const struct hps_walk_call *call,
                         struct hps_error *err) HPS_MUST_CHECK;

/* Hits of the tier of this kind: keys that it or a tier above it found, and keys known to be in no
 * tier. For a tier on a device: keys that any tier has found so far, because it may be queried
 * before or after the memory tiers. False: the version has no such tier, or the tier has not been
 * queried yet. */
bool hps_walk_hits(const struct hps_walk *walk, enum hps_tier_kind kind, uint32_t *out_n);
/* Record in the version whether its cache tier had capacity for the rows that the walk found below
 * it. If the cache tier is on a device, capacity in any memory tier suffices. Then only
 * HPS_WALK_BEHIND can report a lack of capacity: the device's queue may drop rows of other walks at
 * any time. */
void hps_walk_note_room(const struct hps_walk *walk, struct hps_version *version,
                        enum hps_walk_purpose purpose);

/* The keys of the batch that the tier of this kind found: the first index, and the number. Keys
 * found before the walk are not in the batch. */
uint32_t hps_walk_found_begin(const struct hps_walk *walk, enum hps_tier_kind kind);
uint32_t hps_walk_found_n(const struct hps_walk *walk, enum hps_tier_kind kind);
/* Checks the deadline and cancellation, between calls of a store. DEADLINE, CANCELLED. Thread-safe.
 */
hps_status hps_walk_check_interrupted(const struct hps_walk_call *call) HPS_MUST_CHECK;

/* Offer the version's device the rows that the memory tiers have found. Rows that an update has
 * changed since `since` (hps_stamps_now before the tiers were queried) are left out, and so are
 * rows that the device has: bit slot % 32 of word slot / 32 of `cached`; NULL: none. Copies the
 * rows and never waits. No effect if the device refused the walk's query. Between the walk's steps.
 */
void hps_walk_offer_memory(struct hps_walk *walk, uint64_t since, const uint32_t *cached);

#endif

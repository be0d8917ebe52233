/* SPDX-License-Identifier: Apache-2.0
 *
 * A *walk* looks up keys of one table. It queries the tiers of the version from the top down, until
 * every key is found or known to be in no tier. All code that reads several tiers uses walks:
 * lookups, insertion jobs, warm-ups, refills, and the explanation of one key. Their walks differ in
 * purpose, and in the tiers that they query and insert into (struct hps_walk_call). A lookup with
 * several parts links one walk for each part, and the steps below process the linked walks
 * together.
 *
 * A walk has two steps: hps_walk_memory for the memory tiers, which may run on a loop thread, and
 * hps_walk_rest for the tiers that may block. One thread at a time uses a walk; another thread may
 * continue it after a step. A walk does not query a tier on a device. Instead, gpu.c of this folder
 * queries the device, and reports the keys that the device found to the walk.
 */
#ifndef HPS_CACHE_LOOKUP_TIERS_H
#define HPS_CACHE_LOOKUP_TIERS_H

#include "base/pool.h"
#include "cache/lookup/insertion.h"
#include "cache/version/flight.h"
#include "cache/version/tier.h"

/* Maximum numbers of keys. Cancellation and deadline are checked between calls of a tier. */
enum {
    HPS_WALK_KEYS_MEMORY = 1024, /* per call of a memory tier */
    /* Per call of a tier that blocks. A shared tier gets all keys in one call. */
    HPS_WALK_KEYS_BLOCKING = 16384,
    HPS_WALK_KEYS_PIECE = 2048, /* per piece of a large lookup; helpers take one at a time */
    /* Per step: the keys whose fetches may be shared with other lookups (cache/version/flight.h).
     * Sharing takes 96 bytes per key and up to 4 % of the time of a warm read. */
    HPS_WALK_KEYS_SHARED = 4096
};

/* The work of one tier for one walk. All fields are 0 if the walk neither queried the tier nor
 * inserted into it. "Found below" means: found in any lower tier. */
struct hps_tier_report {
    uint32_t n_asked;       /* keys for which the tier was queried */
    uint32_t n_unanswered;  /* keys of n_asked that a failed call did not answer */
    uint32_t n_found;       /* keys found in this tier, by this walk or by one that it waited for */
    uint32_t n_shared;      /* keys of n_found that another lookup found; not in n_asked */
    uint32_t n_inserted;    /* rows found below and inserted into this tier */
    uint32_t n_no_capacity; /* rows found below for which this tier had no capacity */
    uint32_t n_stale;       /* rows found below, not inserted because an update may have changed
                               them since the read */
    uint32_t n_dropped;     /* rows found below that were not inserted because of an error */
    uint32_t n_evicted;     /* rows that the insertions evicted */
    uint32_t n_faults;      /* failed calls; a call for several walks counts only for the first */
    bool later;             /* some row that the tier returned may have updates that this version
                               does not have yet */
    hps_status status;      /* error of the last query that failed; OK: no query failed. After an
                               error, this tier may not be queried for the remaining keys */
    hps_status insert_status; /* status of the last insertion into this tier */
    uint64_t duration_us;     /* time of all queries; the time of a call for several walks counts
                                 only for the first walk */
};

/* Private: state of hps_walk_rest. */
struct hps_walk_fetch {
    struct hps_flight_key *flights; /* [n_flights]; NULL: no fetches are shared */
    struct hps_flight_key **joined; /* [n_joined] keys that wait for other lookups; joined[i] is
                                       batch.keys[i] */
    uint32_t n_flights;
    uint32_t n_joined;
    uint32_t n_led; /* keys that this walk fetches for itself and for lookups that wait for them */
    /* While a tier is queried: keys [lo, hi) of the batch are yet to be queried, and keys from hi
     * on have been found. */
    uint32_t lo;
    uint32_t hi;
    bool later; /* rows of the current tier may have updates that this version does not have yet */
};

/* One walk: the keys of one table. The arrays of its batch begin with the missing keys. After them
 * come the keys that no tier has, and the keys found by each tier, from the lowest one up:
 *
 *     [ missing | in no tier | found by rocksdb | by redis | by host | by the gpu ]
 *     0         batch.n      batch.n + n_absent                                   n_keys
 *
 * The row of batch.keys[i] is at batch.rows + slots[i] * row_bytes, as stored. If batch.shape is
 * set, a memory tier with HPS_STORE_SHAPES writes its rows to batch.shape instead. batch.rows may
 * be NULL while only such tiers are queried.
 */
struct hps_walk {
    struct hps_version *version;
    const struct hps_table *table;
    struct hps_batch batch;
    uint32_t n_keys;         /* keys in the batch before the walk */
    uint32_t n_found_before; /* keys found before the walk, with duplicates; not in the batch */
    enum hps_tier_kind kind_before; /* the tier that found them */
    uint32_t n_absent;              /* keys of the batch known to be in no tier */
    uint32_t n_remembered; /* keys of n_absent that are remembered as absent (version/absent.h) */
    uint32_t n_shared_absent; /* keys of n_absent that another lookup found in no tier, while this
                                 lookup waited for it */
    uint32_t kind_next;       /* memory tiers with a smaller kind have been queried */
    bool recalled; /* missing keys that are remembered as absent have been moved to n_absent */
    struct hps_tier_report reports[HPS_TIER_COUNT]; /* by kind; n_found includes n_found_before */
    const struct hps_gpu_space *gpu_missed; /* the caches on the device that was queried; NULL: no
                                               device was queried */
    struct hps_walk *next; /* the next linked walk: all are of one lookup or one job */
    uint64_t wait_us;      /* time spent waiting for rows that other lookups fetch; the first of the
                              linked walks has the time of all of them */
    struct hps_walk_fetch fetch;
};

/* Why the rows are read. No walk inserts rows with updates that this version does not have yet
 * (hps_walk_rest). For BEHIND and WARM, a shared tier above the lowest one does not return such
 * rows. */
enum hps_walk_purpose {
    HPS_WALK_ANSWER, /* for a lookup that waits for the rows */
    /* For an asynchronous insertion: a lookup was answered without these rows. If the host map does
     * not take all rows of a call, or there is no host map, all these rows are offered to the
     * device as wanted (struct hps_gpu_insertion). The device then also inserts rows of rarely
     * requested keys. */
    HPS_WALK_BEHIND,
    /* To warm up memory tiers: rows found by any tier are inserted into all memory tiers above it.
     * The walk waits for capacity in the device's queue, shares no fetches, and does not count the
     * keys as requested. */
    HPS_WALK_WARM,
    /* To report on the tiers: nothing is inserted, remembered or shared. The tiers are also queried
     * for keys that are remembered as absent. */
    HPS_WALK_REPORT
};

/* Permissions and limits of a step. */
struct hps_walk_call {
    enum hps_walk_purpose purpose;
    uint32_t unasked;                   /* set of tiers (hps_tier_bit) that are not queried */
    uint32_t closed;                    /* set of tiers (hps_tier_bit) that get no insertions */
    struct hps_arena *scratch;          /* reset before each call of a store; NULL: the heap */
    uint64_t deadline_us;               /* hps_clock_us; 0: no deadline */
    bool (*cancelled)(const void *ctx); /* NULL: never cancelled */
    const void *cancelled_ctx;
    struct hps_pool *helpers; /* threads that share the work; NULL: only the caller */
    /* Queue for rows that shared tiers get later, and for keys whose rows a job is to fetch again;
     * NULL: neither is queued. */
    struct hps_insertion *insertion;
    bool exact; /* shared tiers must not return rows with updates that this version lacks */
};

/* Set up a walk for the keys of *batch, which must be unique. Copies the struct, not its arrays.
 * The steps change the order of its keys and slots. */
void hps_walk_init(struct hps_walk *walk, struct hps_version *version,
                   const struct hps_table *table, const struct hps_batch *batch);

/* Whether every key is found or known to be in no tier. */
bool hps_walk_done(const struct hps_walk *walk);

/* Report that the tier of this kind has found n keys, with duplicates, before the walk. These keys
 * are not in the batch. Call it before the first step. */
void hps_walk_found_before(struct hps_walk *walk, enum hps_tier_kind kind, uint32_t n);
/* Report that the tier of this kind, which is on a device, has found the last n of the missing
 * keys. Their rows must already be in their places. Call it before or after a step. */
void hps_walk_answered(struct hps_walk *walk, enum hps_tier_kind kind, uint32_t n);

/* For this walk and those linked to it, all of one version: query the memory tiers, down to the
 * first tier that may block. Missing keys that are remembered as absent then count as known to be
 * in no tier. With call->helpers, several threads share a large lookup. Errors as of hps_walk_rest.
 */
hps_status hps_walk_memory(struct hps_walk *first, const struct hps_walk_call *call,
                           struct hps_error *err) HPS_MUST_CHECK;

/* For this walk and those linked to it, all of one version: query all remaining tiers. Found rows
 * are inserted into the memory tiers above, unless an update has changed them since the read. A
 * shared tier above gets them later (backfill.h). If a tier fails, the walk continues with the next
 * one; if the lowest tier fails, the walk fails. If another lookup is fetching a key, the walk
 * waits for its row.
 *
 * A shared tier may have rows with updates that this version does not have yet. Such rows are valid
 * answers. They are not inserted into the tiers above, because lookups that want a consistency unit
 * need rows without these updates from those tiers. The keys of such rows are queued in
 * call->insertion, and jobs later fetch the rows without these updates.
 *
 * thread  one that may block
 * error   DEADLINE, CANCELLED. UNAVAILABLE: the breaker of the lowest tier is open. ABORTED: with
 *         call->exact, the lowest tier has rows only with updates that this version lacks. Other
 *         errors of the lowest tier. Keys found before an error stay found
 */
hps_status hps_walk_rest(struct hps_walk *first, const struct hps_walk_call *call,
                         struct hps_error *err) HPS_MUST_CHECK;

/* The number of hits for the hit rate of the tier of this kind: keys that this tier or a tier above
 * it found, plus keys known to be in no tier. For a tier on a device, the keys that the memory
 * tiers have found so far also count, because the device may be queried before or after them. Keys
 * found before the walk count with their duplicates. Returns false if the version has no such tier,
 * or if the tier is not on a device and has not been queried yet. */
bool hps_walk_hits(const struct hps_walk *walk, enum hps_tier_kind kind, uint32_t *out_n);
/* Update version->cache_full after a walk, from the insertions into the cache tier and the tiers
 * below it. A tier lacked capacity if it refused more rows for lack of capacity than it took.
 * - The flag becomes false if one of these tiers took rows and did not lack capacity.
 * - Otherwise it becomes true if one of these tiers lacked capacity. But if the cache tier is on a
 *   device, this applies only to walks of HPS_WALK_BEHIND: in other walks, the device's queue may
 *   just have been full.
 * - In all other cases the flag does not change. */
void hps_walk_note_capacity(const struct hps_walk *walk, struct hps_version *version,
                            enum hps_walk_purpose purpose);

/* The keys of the batch that the tier of this kind found: the index of the first one, and how many.
 * Keys found before the walk do not count, because they are not in the batch. */
uint32_t hps_walk_found_begin(const struct hps_walk *walk, enum hps_tier_kind kind);
uint32_t hps_walk_found_n(const struct hps_walk *walk, enum hps_tier_kind kind);
/* Check the deadline and the cancellation of the call. DEADLINE, CANCELLED. Thread-safe. */
hps_status hps_walk_check_interrupted(const struct hps_walk_call *call) HPS_MUST_CHECK;

/* Offer to the version's device, for insertion, the rows that the host map has found. Call it after
 * hps_walk_memory. Copies the rows and never waits. No effect if a query of the device failed. Two
 * kinds of rows are not offered: rows that an update may have changed after `since` was read, and
 * rows that the device has.
 *
 * since    hps_stamps_now, read before the tiers were queried
 * cached   bit slot % 32 of word slot / 32 is set if the device has the row of that slot; NULL: the
 *         device does not have any of the rows
 */
void hps_walk_offer_memory(struct hps_walk *walk, uint64_t since, const uint32_t *cached);

#endif

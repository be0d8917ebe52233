/* SPDX-License-Identifier: Apache-2.0
 *
 * The walk of the parts of one look-up down the tiers of their version: `for each tier while keys
 * are missing: get`. Memory tiers may be asked on a loop thread, blocking ones only on a worker;
 * hence two steps. A walk is used by one thread at a time and may move between threads between its
 * steps.
 */
#ifndef HPS_CACHE_LOOKUP_TIERS_H
#define HPS_CACHE_LOOKUP_TIERS_H

#include "base/pool.h"
#include "cache/lookup/insertion.h"
#include "cache/version/flight.h"
#include "cache/version/version.h"

/* Keys asked for between two looks at the cancel flag (but of a shared tier all at once); keys of a
 * large look-up that another thread may take over; and keys, of one look-up, that are shared with
 * others, which takes 96 bytes each and up to 4 % of the time of a warm read. */
enum {
    HPS_WALK_KEYS_MEMORY = 1024,
    HPS_WALK_KEYS_BLOCKING = 16384,
    HPS_WALK_KEYS_PIECE = 2048,
    HPS_WALK_KEYS_SHARED = 4096
};

/* What one tier did for one part. */
struct hps_tier_report {
    uint32_t n_asked;
    uint32_t n_unanswered; /* of them, since the call failed */
    uint32_t n_found;      /* by this look-up or by one that it waited for */
    uint32_t n_shared;     /* of them, by one that it waited for: they are not in n_asked */
    uint32_t n_inserted;   /* rows found below that were put into this tier */
    uint32_t n_no_room;    /* rows found below that it had no room for */
    uint32_t n_stale;      /* rows found below that an update has overtaken */
    uint32_t n_dropped;    /* rows found below that it failed to take */
    uint32_t n_faults; /* calls that failed, of this part or of several that it is the first of */
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

/* The keys of the batch, and behind them (but for those that the gpu had before the walk began,
 * which never were in the batch):
 *
 *     [ missing | in no tier | found by the last tier ... | found by the first tier | by the gpu ]
 *     0         batch.n      batch.n + n_absent                               n_keys
 */
struct hps_walk {
    struct hps_version *version;
    const struct hps_table *table;
    struct hps_batch batch;
    uint32_t n_keys;          /* of the batch before the walk, but for those that the gpu found */
    uint32_t n_absent;        /* proven to be in no tier */
    uint32_t n_remembered;    /* of them, from an earlier look-up: no blocking tier was asked */
    uint32_t n_shared_absent; /* of them, by a look-up that this one waited for */
    uint32_t tier_next;       /* the first tier not asked yet */
    bool recalled;            /* keys known to be absent were sorted out */
    struct hps_tier_report reports[HPS_TIERS_MAX];
    struct hps_tier_report gpu; /* of a version with a gpu space; n_asked is the look-up's */
    const struct hps_gpu_space *gpu_missed; /* the device that was asked; NULL: none */
    struct hps_walk *next;                  /* of those given to a step together */
    uint64_t wait_us; /* for rows that others fetch; of walks linked together: with the first */
    struct hps_walk_fetch fetch;
};

/* What a step may cost. `scratch` is reset before each call of a store. */
struct hps_walk_call {
    struct hps_arena *scratch;
    uint64_t deadline_us;               /* 0 = none */
    bool (*cancelled)(const void *ctx); /* NULL: never */
    const void *cancelled_ctx;
    struct hps_pool *helpers; /* NULL: the caller does everything */
    /* Where rows go that a shared tier wants, and keys whose rows are to be fetched once more;
     * NULL: nowhere. */
    struct hps_insertion *insertion;
    bool exact;  /* no rows of updates that this version does not have yet */
    bool behind; /* somebody was answered without these rows: one that finds no room in the host
                    map goes into the gpu's cache in any case */
};

/* batch: the keys must be unique; it is used in place. */
void hps_walk_init(struct hps_walk *walk, struct hps_version *version,
                   const struct hps_table *table, const struct hps_batch *batch);

/* Nothing is left to ask: all keys are found, or known to be absent. */
bool hps_walk_done(const struct hps_walk *walk);

/* The last n missing keys were found by the gpu, and their rows are in their places: they leave the
 * walk. Between its steps. */
void hps_walk_answered(struct hps_walk *walk, uint32_t n);

/* For this walk and those linked behind it (of one version): ask the tiers that cannot block, down
 * to the first that can; then sort out keys that are known to be in no tier. With call->helpers a
 * large look-up is done in pieces by several threads. error: as hps_walk_rest */
hps_status hps_walk_memory(struct hps_walk *first, const struct hps_walk_call *call,
                           struct hps_error *err) HPS_MUST_CHECK;

/* For this walk and those linked behind it (of one version): ask all tiers that are left, and
 * insert what they find into the host tier above them, unless an update has come between; a shared
 * tier above them gets it later (fill.h). A tier that fails is skipped, but for the last one. A key
 * that another look-up is fetching is waited for instead.
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
 * in no tier. With a gpu, those found by any tier in memory: whichever of them is asked first.
 * False: the version has no such tier, or it has not been asked yet. */
bool hps_walk_hits(const struct hps_walk *walk, enum hps_tier_kind kind, uint32_t *out_n);
/* Note in the walk's version whether its cache tier had room for what the walk found below. With a
 * gpu that is any tier in memory, and only a walk behind an answer (hps_walk_call) finds none: what
 * a look-up offers the device's queue may be dropped at any time. */
void hps_walk_note_room(const struct hps_walk *walk, struct hps_version *version, bool behind);
bool hps_walk_tier_blocks(const struct hps_walk *walk, uint32_t tier);

/* First index in the batch of the keys found by tier `tier`; there are reports[tier].n_found. */
uint32_t hps_walk_found_begin(const struct hps_walk *walk, uint32_t tier);

/* Offer keys [begin, begin + n) of the batch, which were found below it, to the gpu of the version,
 * but for those that an update has changed since `since` (hps_stamps_now). Only copies. A gpu that
 * refused the walk's question is spared. wanted: see hps_gpu_insertion */
void hps_walk_offer_gpu(struct hps_walk *walk, uint32_t begin, uint32_t n, uint64_t since,
                        bool wanted);

/* "gpu", "host", "redis", "rocksdb": names on the wire and in metrics. */
const char *hps_tier_name(enum hps_tier_kind kind);

#endif

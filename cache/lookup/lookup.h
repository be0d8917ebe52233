/* SPDX-License-Identifier: Apache-2.0
 *
 * One lookup, independent of any transport. A lookup has *parts*: each is one table of the request,
 * with its keys. The lookup finds the unique keys of each part and queries the tiers from the top
 * down. It gives default rows to missing keys, copies rows for duplicate keys, and pools bags of
 * keys. One thread owns a lookup at a time. Steps in memory run on a loop or a worker; steps that
 * may block run on an I/O thread.
 *
 * The form of a part (enum hps_part_form) says how its rows get to their places in the reply:
 *
 *     stored   The reply has rows as the table stores them, table by table. Each tier copies its
 *              rows to their places.
 *     shaped   The reply has another type, or one matrix of all tables. A tier with
 *              HPS_STORE_SHAPES, and a gpu that is queried first, write rows to their places. Rows
 *              of other tiers are *gathered* in extra memory, as stored, and converted at the end.
 *     pooled   The reply has one row for each bag of keys. The row is computed from the rows and
 *              weights of these keys by a formula of enum hps_pooling. A memory tier that pools
 *              (backends/store_pool.h), or a gpu that is queried first, pools the bags for which it
 *              has all keys. Rows of other bags are gathered, and pooled at the end. If the lookup
 *              wants a consistency unit, no tier pools.
 *
 * The steps (hps_lookup_...) and their order:
 *
 *     plan ─▶ take_block, or the caller's rows ─▶ (gpu) ─▶ run_memory ─┬─▶ done
 *         ┌────────────────────────────────────────────────────────┘
 *         └─▶ (gpu) ─▶ run_gpu ─┬─▶ done
 *                               └─▶ run_rest ─▶ done
 *                                   (or run_defaults, or abandon)
 *
 * (gpu) is hps_lookup_ask_gpu. For some parts the gpu is queried before the memory tiers, for other
 * parts after them. Until the gpu answers, no thread owns the lookup. If the gpu does not answer
 * in time, the lookup continues without it (hps_lookup_leave_gpu).
 *
 * A lookup that wants a consistency unit ends with ABORTED in three cases. The fields `torn` and
 * `ahead` of struct hps_lookup tell them apart:
 *
 *     torn     Every key is answered, but updates have changed some rows after they were read.
 *              hps_lookup_reread reads these rows again.
 *     ahead    The only copy of a row has updates that the version does not have yet.
 *     neither  The lookup would fail with NOT_FOUND, but an update may have added the missing key
 *              since the lookup began.
 *
 * After any ABORTED, hps_lookup_again resets the lookup to its state after take_block.
 */
#ifndef HPS_CACHE_LOOKUP_LOOKUP_H
#define HPS_CACHE_LOOKUP_LOOKUP_H

#include "base/arena.h"
#include "base/row_sum.h"
#include "cache/gpu/tier.h"
#include "cache/lookup/insertion.h"
#include "cache/lookup/tiers.h"

enum {
    HPS_ROWS_ALIGN = 64,
    /* HPS_LOOKUP_PATH_AUTO: the least size of a part's rows, as stored, for which the gpu is
     * queried before the host map */
    HPS_LOOKUP_GPU_FIRST_BYTES = 256 * 1024,
    /* HPS_MISS_WAIT and HPS_MISS_MEMORY_ONLY: longest wait for the gpu if wait_us_max is 0 */
    HPS_LOOKUP_GPU_WAIT_US = 1000 * 1000,
    HPS_LOOKUP_REREADS_MAX = 4, /* most rereads; during the last one, updates are held back */
    /* Most blocks of gathered rows: one for the memory tiers, one for the tiers below them */
    HPS_LOOKUP_GATHERED_MAX = 2
};

/* Values of the label `reason` of the metric tier_errors_total. */
enum hps_tier_fault { HPS_FAULT_UNAVAILABLE, HPS_FAULT_DEADLINE, HPS_FAULT_OTHER, HPS_FAULT_COUNT };
/* Values of the label `reason` of the metric insertion_dropped_total. */
enum hps_drop_reason {
    HPS_DROP_NO_SPACE,    /* the tier had no capacity for the row */
    HPS_DROP_STALE,       /* an update may have changed the row since it was read */
    HPS_DROP_FAILED,      /* the tier failed */
    HPS_DROP_QUEUE_FULL,  /* the queue of keys, or of rows for shared tiers, was full */
    HPS_DROP_NOT_FETCHED, /* a job ended without the row, for lack of memory or after an error */
    HPS_DROP_STOPPED,     /* the version was unloaded or the server stopped */
    HPS_DROP_COUNT
};

/* Metric series shared by all lookups. */
struct hps_lookup_metrics {
    struct hps_metric *tier_duration[HPS_TIER_COUNT];
    struct hps_metric *tier_errors[HPS_TIER_COUNT][HPS_FAULT_COUNT];
    /* mode="sync": the lookup waited for the rows; mode="async": an insertion job fetched them */
    struct hps_metric *insertion_rows[HPS_TIER_COUNT];       /* mode="sync" */
    struct hps_metric *insertion_rows_async[HPS_TIER_COUNT]; /* mode="async" */
    struct hps_metric *insertion_dropped[HPS_DROP_COUNT];
    struct hps_metric *insertion_queue_rows;
    struct hps_metric *insertion_shared_queue_rows;
};

/* Which parts query the gpu before the host map, if a version has both. If a lookup wants a
 * consistency unit, its parts with pooling never query the gpu first. */
enum hps_lookup_path {
    HPS_LOOKUP_PATH_AUTO, /* parts of at least HPS_LOOKUP_GPU_FIRST_BYTES; with pooling, only if the
                             gpu is to cache the whole table */
    HPS_LOOKUP_PATH_GPU,  /* all parts */
    HPS_LOOKUP_PATH_HOST  /* no part */
};

/* The layout of the rows of a reply. */
enum hps_row_layout {                           /* numbers of hps.v1.RowLayout */
                      HPS_LAYOUT_PER_TABLE = 1, /* one block of rows per part; also 0 */
                      HPS_LAYOUT_CONCAT = 2     /* one matrix: row i has row i of each part */
};

/* How the rows of a part get to their places: see the top of this file. */
enum hps_part_form { HPS_PART_STORED, HPS_PART_SHAPED, HPS_PART_POOLED };

/* keys[index] is equal to the earlier keys[first] and gets the same row. */
struct hps_duplicate {
    uint32_t index;
    uint32_t first;
};

/* One table of a request. */
struct hps_lookup_part {
    /* in */
    const struct hps_table *table;
    const uint8_t *keys; /* [n_keys] int64 LE, any alignment, borrowed */
    uint32_t n_keys;
    enum hps_pooling pooling; /* 0 or NONE: one row for each key; n_bags, offsets and weights are
                                 not used */
    uint32_t n_bags;
    const uint32_t *offsets; /* [n_bags + 1] bag b has keys [offsets[b], offsets[b + 1]). They start
                                with 0, never decrease, and end with n_keys. Borrowed */
    const uint8_t *weights;  /* [n_keys] float LE, any alignment, borrowed; NULL: all are 1 */

    /* set by plan */
    enum hps_part_form form;
    uint32_t n_rows;          /* rows of the part in the reply: n_bags with pooling, else n_keys */
    enum hps_dtype out_dtype; /* type of the values in the reply */
    uint32_t row_bytes;       /* size of one row in the reply: dim values of out_dtype */
    uint64_t stride;          /* bytes from one row of the reply to the next */
    uint64_t column;          /* CONCAT: number of values of earlier parts in each row of the
                                 matrix; else 0 */
    uint64_t rows_bytes;      /* n_rows * row_bytes */
    uint64_t rows_offset;     /* bytes from lookup->rows to the first row of the part; PER_TABLE: a
                                 multiple of HPS_ROWS_ALIGN */

    /* out */
    uint8_t *rows;       /* row i of the reply at rows + i * stride; NULL: the part has no rows, or
                            run_memory has not found its unique keys yet */
    uint8_t *key_status; /* [n_keys] enum hps_key_status; NULL: all keys were found */
    /* Keys that hits_tier found before the walk; the walk leaves them out. For keys[i], bit i % 32
     * of word i / 32 is set; each duplicate has its own bit. hits_tier is the gpu if it was queried
     * first, or the host map if it pools. With pooling, only the keys of bags that the tier has
     * pooled have their bits set. NULL: no key was found before the walk. */
    const uint32_t *hits;
    enum hps_tier_kind hits_tier;
    uint32_t n_unique;     /* unique keys of the walk, plus the number of bits set in `hits` */
    uint32_t n_defaulted;  /* keys with the status DEFAULTED; each duplicate counts */
    uint32_t n_unknown;    /* keys with the status UNKNOWN; each duplicate counts */
    uint32_t n_whole_bags; /* POOLED: number of bags that a tier pooled. A memory tier also pools
                              bags without keys; the gpu does not */
    struct hps_duplicate *duplicates; /* [n_keys - n_unique] by ascending index; without keys that
                                         are set in `hits` */
    struct hps_walk walk;             /* what each tier did, and which keys it answered */
    bool finished;      /* all keys of the part are answered; some bags may not be pooled yet */
    bool waits_for_gpu; /* the gpu will be queried for keys that the memory tiers missed */

    /* private */
    uint32_t *whole; /* POOLED: the bags that tiers pooled, as in struct hps_bags; NULL: no tier
                        pooled a bag */
    const uint32_t *cached; /* POOLED: keys that the gpu had when it was queried first, including
                               keys of bags that it did not pool; bits as in `hits`; NULL: the gpu
                               was not queried first */
    /* The row of keys[i], as stored, is at gathered + i * table->row_bytes. NULL: the part gathers
     * no rows. */
    uint8_t *gathered;
};

/* Whether part->hits_tier found keys[i] before the walk. */
static inline bool hps_lookup_part_hit(const struct hps_lookup_part *part, uint32_t i)
{
    return part->hits != NULL && (part->hits[i / 32] >> i % 32 & 1) != 0;
}

/* The current query of the gpu. It has either all keys of the parts that query the gpu first, or
 * the keys of other parts that the memory tiers missed. */
struct hps_lookup_gpu {
    struct hps_gpu_lookup ask;
    struct hps_lookup_part **parts; /* [ask.n_parts] ask.parts[i] has the keys of parts[i] */
    struct hps_block *scratch; /* where the gpu writes rows that the memory tiers missed; NULL: it
                                  writes rows to their places in the reply */
    bool asked; /* the gpu has been queried, and hps_lookup_run_memory or _run_gpu has not yet taken
                   its answer */
    bool left;  /* the lookup has continued without the gpu's answer (hps_lookup_leave_gpu); the gpu
                   may still use `ask` */
};

/* One lookup: its input (in), where its rows go, and its results (out). It is one large struct so
 * that the caller can embed it, zero it at once, and hand it from thread to thread. */
struct hps_lookup {
    /* in */
    struct hps_version *version; /* pinned by the caller */
    struct hps_arena *arena;     /* for all memory of the lookup */
    struct hps_arena *scratch;   /* for calls of stores; NULL: stores use the heap */
    struct hps_lookup_part *parts;
    uint32_t n_parts;
    enum hps_miss_policy miss_policy;       /* 0: hps_lookup_plan sets the version's policy */
    enum hps_unknown_policy unknown_policy; /* 0: hps_lookup_plan sets the version's policy */
    enum hps_dtype output; /* FP32 (also 0), FP16 or BF16. RAW: rows as stored; allowed only with
                              PER_TABLE and without pooling */
    enum hps_row_layout layout; /* CONCAT: all parts must have the same number of rows */
    bool unit;    /* consistency unit: of each update batch, the rows have all changes or none */
    bool rereads; /* this lookup reads changed rows again for another lookup, which checks that all
                     its rows are of one unit */
    /* HPS_MISS_WAIT: longest wait for the stores, and for the gpu. HPS_MISS_MEMORY_ONLY: longest
     * wait for the gpu. 0: no wait for the stores, HPS_LOOKUP_GPU_WAIT_US for the gpu. */
    uint32_t wait_us_max;
    uint64_t deadline_us;               /* hps_clock_us; 0: no deadline */
    bool (*cancelled)(const void *ctx); /* any thread may call it; NULL: never cancelled */
    const void *cancelled_ctx;
    const struct hps_lookup_metrics *metrics; /* NULL: not counted */
    struct hps_pool *helpers; /* threads that share the work of run_memory; NULL: only the caller */
    /* Queue for keys that the lookup does not wait for. NULL: no asynchronous insertion, and
     * lookups under HPS_MISS_THRESHOLD always wait. */
    struct hps_insertion *insertion;
    enum hps_lookup_path path;
    struct hps_block_pool *blocks; /* pool for blocks of rows; NULL: the gpu is not queried */
    /* The block that contains `rows`. hps_lookup_take_block sets it, with a reference for the
     * caller. The lookup replaces the block if a gpu may still write to it: the gpu was lost, or
     * the lookup continued without its answer. */
    struct hps_block *block;
    /* Called when the gpu has answered: the caller owns the lookup again. Runs on the gpu tier's
     * thread, so it should only hand the lookup to another thread. */
    void (*gpu_done)(struct hps_lookup *lookup);

    /* set by plan */
    uint64_t n_keys;
    uint32_t n_shaped;     /* SHAPED parts */
    uint32_t n_pooled;     /* POOLED parts */
    bool memory_shapes;    /* there are SHAPED parts, and every memory tier converts rows */
    uint64_t rows_bytes;   /* size of `rows`, which the caller provides aligned to HPS_ROWS_ALIGN */
    uint64_t matrix_bytes; /* CONCAT: size of the matrix at `rows`, [n_rows][matrix_dim]; else 0 */
    uint64_t matrix_dim;   /* CONCAT: the sum of all dims; else 0 */
    uint32_t n_rows;       /* CONCAT: rows of each part; else 0 */

    uint8_t *rows; /* in: memory for the rows; set by take_block or, after plan, by the caller */

    /* out */
    uint64_t update_sequence;         /* number of the newest batch of updates that all rows
                                         include */
    int64_t event_time_ms;            /* newest event time of the updates up to that batch, Unix ms;
                                         0: not known */
    uint64_t tier_us[HPS_TIER_COUNT]; /* time spent in each tier */
    uint64_t others_us; /* time spent waiting for rows that other lookups were fetching */
    uint64_t pooled_us; /* time that the memory tier took to pool; part of the tier's time */
    uint32_t *set;      /* [set_size] private: hash set for finding duplicates, used by all parts */
    uint32_t set_size;
    uint64_t wait_deadline_us; /* HPS_MISS_WAIT: end of the wait for the stores, hps_clock_us */
    uint64_t gpu_deadline_us;  /* end of the wait for the gpu, hps_clock_us; 0: no end */
    uint64_t since;            /* hps_stamps_now, read before any tier was queried */
    uint64_t n_reread; /* keys read again because updates had changed them; duplicates count */
    bool begun;        /* some tier may have been queried */
    bool torn; /* ABORTED: every key is answered, but updates have changed some rows after they were
                  read */
    bool ahead; /* ABORTED: the only copy of a row is ahead of this version */
    struct hps_lookup_gpu gpu;
    struct hps_block *gathered[HPS_LOOKUP_GATHERED_MAX]; /* blocks of gathered rows */
};

/* Choose policies and the form of each part, and compute the sizes and places of the rows.
 *
 * error   RANGE: the rows are too large to be addressed
 */
hps_status hps_lookup_plan(struct hps_lookup *lookup, struct hps_error *err) HPS_MUST_CHECK;

/* Take a block of lookup->blocks for the rows. If a part queries the gpu first, the block is taken
 * from the slab, to which a device can write, unless the slab is full. NO_MEMORY */
hps_status hps_lookup_take_block(struct hps_lookup *lookup) HPS_MUST_CHECK;
/* Upper bound of the memory, in bytes, that the lookup takes in addition to `rows`: for gathered
 * rows, and for rows that the gpu has and the memory tiers missed. Call it after plan. */
uint64_t hps_lookup_scratch_bytes(const struct hps_lookup *lookup);
/* Free the gathered rows. The steps call this at the end of a lookup, unless it is torn. A caller
 * that does not reread a torn lookup must call it. May be called again. */
void hps_lookup_release(struct hps_lookup *lookup);

/* Query the gpu. A call before hps_lookup_run_memory queries it for all keys of the parts that
 * query the gpu first. A call after hps_lookup_run_memory queries it for keys that the memory tiers
 * missed.
 *
 * Returns true if the gpu owns the lookup until it calls gpu_done. Returns false if there was
 * nothing to query, or the gpu did not accept the query; the caller continues with the next step.
 * Never blocks.
 */
bool hps_lookup_ask_gpu(struct hps_lookup *lookup) HPS_MUST_CHECK;
/* Continue without the gpu, after gpu_deadline_us has passed. The lookup belongs to the caller
 * again, as if the gpu had found nothing. The gpu still calls gpu_done once; until then the memory
 * of the lookup and the pin of its version must stay. Call it on the thread to which gpu_done hands
 * the lookup. */
void hps_lookup_leave_gpu(struct hps_lookup *lookup);

/* Find the unique keys and query the memory tiers. *out_done is true if every part is answered.
 * Otherwise call hps_lookup_ask_gpu, hps_lookup_run_gpu and hps_lookup_run_rest next. If the
 * version has no gpu, call only hps_lookup_run_rest.
 *
 * error   NOT_FOUND: unknown_policy is HPS_UNKNOWN_ERROR, and a key is in no tier; `err` names the
 *         table and the key. ABORTED: the lookup wants a unit, and it is torn or ahead, or an
 *         update may have added a key that was in no tier. EXHAUSTED: the arena is full. DEADLINE,
 *         CANCELLED, NO_MEMORY, or the error of the authoritative tier
 */
hps_status hps_lookup_run_memory(struct hps_lookup *lookup, bool *out_done, struct hps_error *err)
    HPS_MUST_CHECK;

/* Take the answer of the gpu, if it was queried. *out_done is true if every part is answered.
 * Otherwise call hps_lookup_run_rest next. Errors as of hps_lookup_run_memory. */
hps_status hps_lookup_run_gpu(struct hps_lookup *lookup, bool *out_done, struct hps_error *err)
    HPS_MUST_CHECK;

/* Query the remaining tiers and finish all parts. Errors as of hps_lookup_run_memory.
 *
 * thread  one that may block
 */
hps_status hps_lookup_run_rest(struct hps_lookup *lookup, struct hps_error *err) HPS_MUST_CHECK;
/* Call this instead of hps_lookup_run_rest if no thread was free within the time to wait for the
 * stores. Finishes all parts with the rows found so far, and default rows for the other keys.
 *
 * error   NOT_FOUND, EXHAUSTED and ABORTED as of hps_lookup_run_memory
 */
hps_status hps_lookup_run_defaults(struct hps_lookup *lookup, struct hps_error *err) HPS_MUST_CHECK;
/* End a lookup whose answer is no longer wanted; call it instead of the next step. Adds the work
 * done so far to the metrics. */
void hps_lookup_abandon(struct hps_lookup *lookup);

/* Read again those rows of a torn lookup that updates have changed. Queries all tiers that the miss
 * policy allows, except the gpu. More updates may be applied during a reread, so the call makes up
 * to HPS_LOOKUP_REREADS_MAX rereads. During the last one, updates are held back (hps_update_hold).
 * If a batch has been in progress since before the rows were read, the next reread is the last one.
 * The parts' counts by tier stay as they were after the first read.
 *
 * thread  one that may block
 * error   ABORTED with `torn`: updates changed rows during each reread and could not be held back,
 *         or a batch has failed half-way. ABORTED with `ahead`: see the top of this file. The other
 *         errors are NO_MEMORY, and those of hps_lookup_run_rest
 */
hps_status hps_lookup_reread(struct hps_lookup *lookup, struct hps_error *err) HPS_MUST_CHECK;

/* Reset the lookup after ABORTED, so that it can start again with the same memory for rows. If the
 * lookup once continued without the gpu's answer, it does not query the gpu again. The metrics of
 * tiers count every try, the metrics of keys only the last one. */
void hps_lookup_again(struct hps_lookup *lookup);

/* Add the work of an insertion job's walks, `first` and those linked to it, to the metrics. */
void hps_lookup_count_insertion(const struct hps_lookup_metrics *metrics,
                                const struct hps_walk *first);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * One lookup, independent of any transport: the unique keys of each part, the walk down the tiers,
 * default rows for missing keys, duplicates, and bags. One thread owns a lookup at a time. Steps in
 * memory run on a loop or a worker; steps that may block run on an I/O thread.
 *
 * How the rows of a part get to their places in the reply (enum hps_part_form):
 *
 *     stored   the reply has rows as the table stores them, table by table: each tier copies them
 *              there
 *     shaped   the reply has another type, or one matrix: a tier with HPS_STORE_SHAPES, and a gpu
 *              that is queried first, write there; rows of other tiers are *gathered* as stored,
 *              and converted at the end
 *     pooled   the reply has one row for each bag of keys: a memory tier that pools
 *              (backends/store_pool.h), or a gpu that is queried first, adds the bags that it has
 *              whole; rows of other bags are gathered and added at the end
 *
 *     plan ─▶ take_block, or the caller's rows ─▶ (gpu) ─▶ run_memory ─┬─▶ done
 *         ┌────────────────────────────────────────────────────────┘
 *         └─▶ (gpu) ─▶ run_gpu ─┬─▶ done
 *                               └─▶ run_rest ─▶ done
 *                                   (or run_defaults, or abandon)
 *
 * hps_lookup_ask_gpu queries the gpu, before the memory tiers for some parts and after them for
 * others. Until the gpu answers, no thread owns the lookup. If the time to wait has passed, the
 * lookup continues without the answer (hps_lookup_leave_gpu).
 *
 * A lookup that wants a consistency unit may have seen only some rows of a batch of updates. Or the
 * only copy of a row may be ahead of the version. In both cases, the last step returns ABORTED
 * instead of OK. If all rows are there (`torn`), hps_lookup_reread reads those again that updates
 * have changed. In any case, hps_lookup_again resets the lookup to its state after take_block.
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
    HPS_LOOKUP_GPU_FIRST_BYTES = 256 * 1024, /* HPS_LOOKUP_PATH_AUTO: rows of a part, as stored */
    HPS_LOOKUP_GPU_WAIT_US = 1000 * 1000,    /* for WAIT and MEMORY_ONLY if wait_us_max is 0 */
    HPS_LOOKUP_REREADS_MAX = 4,              /* in the last one updates are held back */
    HPS_LOOKUP_GATHERED_MAX = 2              /* blocks: for memory tiers, and for tiers below */
};

/* Reasons of tier_errors_total and insertion_dropped_total. */
enum hps_tier_fault { HPS_FAULT_UNAVAILABLE, HPS_FAULT_DEADLINE, HPS_FAULT_OTHER, HPS_FAULT_COUNT };
enum hps_drop_reason {
    HPS_DROP_NO_SPACE,
    HPS_DROP_STALE,
    HPS_DROP_FAILED,
    HPS_DROP_QUEUE_FULL,  /* for asynchronous insertions, like the next */
    HPS_DROP_NOT_FETCHED, /* no tier below answered */
    HPS_DROP_STOPPED,     /* the version was unloaded or the server stopped */
    HPS_DROP_COUNT
};

/* Metric series shared by all lookups. */
struct hps_lookup_metrics {
    struct hps_metric *tier_duration[HPS_TIER_COUNT];
    struct hps_metric *tier_errors[HPS_TIER_COUNT][HPS_FAULT_COUNT];
    struct hps_metric *insertion_rows[HPS_TIER_COUNT];       /* mode="sync" */
    struct hps_metric *insertion_rows_async[HPS_TIER_COUNT]; /* mode="async" */
    struct hps_metric *insertion_dropped[HPS_DROP_COUNT];
    struct hps_metric *insertion_queue_rows;
    struct hps_metric *insertion_shared_queue_rows;
};

/* Whether the gpu is queried before the host map, if a version has both. */
enum hps_lookup_path {
    HPS_LOOKUP_PATH_AUTO, /* if the rows of the part are large */
    HPS_LOOKUP_PATH_GPU,
    HPS_LOOKUP_PATH_HOST
};

/* The layout of the rows of a reply. */
enum hps_row_layout {                           /* numbers of hps.v1.RowLayout */
                      HPS_LAYOUT_PER_TABLE = 1, /* one block of rows per part; also 0 */
                      HPS_LAYOUT_CONCAT = 2     /* one matrix: row i has row i of each part */
};

/* How the rows of a part get to their places: see above. */
enum hps_part_form { HPS_PART_STORED, HPS_PART_SHAPED, HPS_PART_POOLED };

/* A key that was sent before: its row is the row of keys[first]. */
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
    enum hps_pooling pooling; /* 0 or NONE: a row for each key; the next fields are not used */
    uint32_t n_bags;
    const uint32_t *offsets; /* [n_bags + 1] bag b has keys [offsets[b], offsets[b + 1]); the first
                                is 0, the last n_keys, they never fall; borrowed */
    const uint8_t *weights;  /* [n_keys] float LE, any alignment, borrowed; NULL: all are 1 */

    /* set by plan */
    enum hps_part_form form;
    uint32_t n_rows;          /* rows of the reply: bags, or keys */
    enum hps_dtype out_dtype; /* their type; RAW: the type of the table */
    uint32_t row_bytes;       /* bytes of one row: dim values */
    uint64_t stride;          /* bytes from one row to the next */
    uint64_t column;          /* CONCAT: values before it in a row of the matrix; else 0 */
    uint64_t rows_bytes;      /* n_rows * row_bytes */
    uint64_t rows_offset;     /* from lookup->rows; PER_TABLE: a multiple of HPS_ROWS_ALIGN */

    /* out */
    uint8_t *rows;       /* row i of the reply at rows + i * stride; NULL: no rows */
    uint8_t *key_status; /* [n_keys] enum hps_key_status, NULL: all found */
    /* Keys as sent that one tier had before the walk: bit i % 32 of word i / 32. The tier is the
     * gpu, if it was queried first for all keys, or the host map, for bags that it has whole.
     * Duplicates among them are not removed. NULL: none */
    const uint32_t *hits;
    enum hps_tier_kind hits_tier;
    uint32_t n_unique;    /* keys that are walked, plus those in `hits` */
    uint32_t n_defaulted; /* of keys as sent */
    uint32_t n_unknown;
    uint32_t n_whole_bags; /* POOLED: bags that a tier added; it had all their keys, or they have no
                              keys */
    struct hps_duplicate *duplicates; /* [n_keys - n_unique] of walked keys, by ascending index */
    struct hps_walk walk;             /* what each tier did, and which keys it answered */
    bool finished;
    bool waits_for_gpu; /* its keys that memory missed will be looked up on the gpu */

    /* private */
    uint32_t *whole; /* POOLED: bags already in their places, as in struct hps_bags; NULL: none */
    const uint32_t *cached; /* POOLED: keys that a gpu queried first had, also in bags that it did
                               not add; bits as in `hits` */
    uint8_t *gathered; /* the row of key i, as stored, is at gathered + i * table->row_bytes; may be
                          NULL */
};

/* Whether part->hits_tier had key i, as sent, before the walk. */
static inline bool hps_lookup_part_hit(const struct hps_lookup_part *part, uint32_t i)
{
    return part->hits != NULL && (part->hits[i / 32] >> i % 32 & 1) != 0;
}

/* One query of the gpu: the parts that want it first, or the misses of other parts. */
struct hps_lookup_gpu {
    struct hps_gpu_lookup ask;
    struct hps_lookup_part **parts; /* [ask.n_parts] the part of each ask.parts[i] */
    struct hps_block *scratch;      /* for rows of misses; NULL: rows go to their places */
    bool asked;                     /* ask.status is valid */
    bool left;                      /* the lookup did not wait for it; the gpu still uses `ask` */
};

/* One lookup: its input (in), where its rows go, and its results (out). It is one large struct
 * because the caller embeds it, zeroes it at once, and hands it from thread to thread. */
struct hps_lookup {
    /* in */
    struct hps_version *version; /* pinned by the caller */
    struct hps_arena *arena;     /* for all memory of the lookup */
    struct hps_arena *scratch;   /* for stores; NULL: they use the heap */
    struct hps_lookup_part *parts;
    uint32_t n_parts;
    enum hps_miss_policy miss_policy; /* 0: plan sets the version's policy, here and in the next */
    enum hps_unknown_policy unknown_policy;
    enum hps_dtype output;      /* FP32 (also 0), FP16, BF16; RAW: as stored, PER_TABLE, no bags */
    enum hps_row_layout layout; /* CONCAT: all parts have the same number of rows */
    bool unit;                  /* consistency unit: all rows of a batch of updates or none */
    bool rereads;         /* it rereads rows for another lookup, which checks its unit itself */
    uint32_t wait_us_max; /* for HPS_MISS_WAIT; for the gpu also HPS_MISS_MEMORY_ONLY */
    uint64_t deadline_us; /* 0 = none */
    bool (*cancelled)(const void *ctx); /* called by any thread; NULL: never */
    const void *cancelled_ctx;
    const struct hps_lookup_metrics *metrics; /* NULL: not counted */
    struct hps_pool *helpers; /* may take pieces of run_memory; NULL: the caller does all */
    /* Takes keys that the lookup does not wait for. NULL: no asynchronous insertion, and
     * HPS_MISS_THRESHOLD always waits. */
    struct hps_insertion *insertion;
    enum hps_lookup_path path;
    /* The pool for blocks of rows (NULL: the gpu is not queried), and the block that holds `rows`.
     * hps_lookup_take_block sets it, with a reference. The lookup replaces the block if a device
     * that was lost or left may still write to it. */
    struct hps_block_pool *blocks;
    struct hps_block *block;
    /* The gpu has answered, and the caller owns the lookup again. On the tier's thread; must be
     * quick: hand the lookup to another thread. */
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

    uint8_t *rows; /* in; set it after plan */

    /* out */
    uint64_t update_sequence; /* every row is at least as new as after this batch */
    int64_t event_time_ms;    /* newest event time of the batches up to that one; 0: unknown */
    uint64_t tier_us[HPS_TIER_COUNT];
    uint64_t others_us; /* waiting for rows that other lookups were fetching */
    uint64_t pooled_us; /* pooling by the memory tier, of all parts; reported with the first part */
    uint32_t *set;      /* [set_size] hash set of the deduplication, shared by all parts */
    uint32_t set_size;
    uint64_t wait_deadline_us;
    uint64_t gpu_deadline_us; /* how long to wait for the gpu; 0: until it answers */
    uint64_t since;           /* hps_stamps_now, read before any tier */
    uint64_t n_reread; /* keys as sent that were read again because updates had changed them */
    bool begun;
    bool torn;  /* ABORTED with all rows, but updates have changed some since */
    bool ahead; /* ABORTED because the only copy of a row is ahead of this version */
    struct hps_lookup_gpu gpu;
    struct hps_block *gathered[HPS_LOOKUP_GATHERED_MAX]; /* rows of parts until they are used */
};

/* Choose policies and forms, and compute sizes and places of the rows.
 *
 * error   RANGE: the sizes do not fit
 */
hps_status hps_lookup_plan(struct hps_lookup *lookup, struct hps_error *err) HPS_MUST_CHECK;

/* Take a block of lookup->blocks for the rows. If the gpu comes first and the slab has space, the
 * block lies where a device can write to it. NO_MEMORY */
hps_status hps_lookup_take_block(struct hps_lookup *lookup) HPS_MUST_CHECK;
/* Upper bound of the memory that the lookup takes besides the rows: for gathered rows, and for rows
 * of gpu queries after the memory tiers. After plan. */
uint64_t hps_lookup_scratch_bytes(const struct hps_lookup *lookup);
/* Free gathered rows. Call it when only the rows of the reply are still used. A torn lookup that is
 * not read again still holds them. May be called again. */
void hps_lookup_release(struct hps_lookup *lookup);

/* Query the gpu if that is the next step: before the memory tiers for parts that want it first,
 * after them for the misses of other parts. True: the gpu owns the lookup until gpu_done. False:
 * there was nothing to query, or the gpu does not accept the query, and the lookup continues
 * without it. Thread-safe, never blocks. */
bool hps_lookup_ask_gpu(struct hps_lookup *lookup) HPS_MUST_CHECK;
/* After gpu_deadline_us: take the lookup back, and continue as if the gpu had found nothing.
 * gpu_done is still called once. Until then the memory of the lookup and the pin of its version
 * must stay. On the thread that gpu_done would hand the lookup to. */
void hps_lookup_leave_gpu(struct hps_lookup *lookup);

/* Find the unique keys and query the memory tiers. out_done: every part is answered. Otherwise
 * hps_lookup_ask_gpu, hps_lookup_run_gpu and hps_lookup_run_rest must follow; for a version without
 * a gpu only the last.
 *
 * error   NOT_FOUND (HPS_UNKNOWN_ERROR: names table and key), DEADLINE, CANCELLED, NO_MEMORY,
 *         EXHAUSTED (arena), or the error of an authoritative tier; ABORTED: the lookup wants a
 *         unit and may have seen a part of a batch
 */
hps_status hps_lookup_run_memory(struct hps_lookup *lookup, bool *out_done, struct hps_error *err)
    HPS_MUST_CHECK;

/* Take the answer of the gpu, if there is one. out_done: every part is answered. Otherwise
 * hps_lookup_run_rest must follow. Errors as above. */
hps_status hps_lookup_run_gpu(struct hps_lookup *lookup, bool *out_done, struct hps_error *err)
    HPS_MUST_CHECK;

/* Query the remaining tiers and finish all parts. Errors as above.
 *
 * thread  one that may block
 */
hps_status hps_lookup_run_rest(struct hps_lookup *lookup, struct hps_error *err) HPS_MUST_CHECK;
/* Instead of run_rest, if the time to wait has passed before a thread was free for it: finish all
 * parts with the rows found, and default rows for the rest. error: NOT_FOUND, EXHAUSTED, ABORTED */
hps_status hps_lookup_run_defaults(struct hps_lookup *lookup, struct hps_error *err) HPS_MUST_CHECK;
/* Instead of the next step, if there will be no answer: count the work done. */
void hps_lookup_abandon(struct hps_lookup *lookup);

/* Read again the rows of a torn lookup that updates have changed. Queries all tiers that the miss
 * policy allows, except the gpu. Up to HPS_LOOKUP_REREADS_MAX times, because updates may arrive
 * again. The last time, or at once while a batch is being applied, updates are held back. The
 * answer's counts by tier stay as after the first reading.
 *
 * thread  one that may block
 * error   ABORTED: updates arrived each time and cannot be held back now (torn), a batch is in some
 *         tiers only (torn), or rows are ahead; NO_MEMORY, EXHAUSTED; errors of hps_lookup_run_rest
 */
hps_status hps_lookup_reread(struct hps_lookup *lookup, struct hps_error *err) HPS_MUST_CHECK;

/* After ABORTED: start again, with the same memory for rows. A gpu that was left is not queried
 * again. The tiers' work of earlier tries stays counted, but not as keys of an answer. */
void hps_lookup_again(struct hps_lookup *lookup);

/* Count the work of an insertion job's walks. */
void hps_lookup_count_insertion(const struct hps_lookup_metrics *metrics,
                                const struct hps_walk *first);

#endif

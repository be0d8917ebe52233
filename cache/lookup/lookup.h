/* SPDX-License-Identifier: Apache-2.0
 *
 * The life of one look-up, free of any transport: unique keys of each part, the walk down the
 * tiers, default rows for what is missing, duplicates filled in, and bags added. A look-up belongs
 * to one thread at a time: a loop runs the memory tiers, a worker what may block.
 *
 * How the rows of a part come to where they are sent from (enum hps_part_form):
 *
 *     stored   the answer wants them as they are stored, table by table: each tier writes there
 *     shaped   it wants another type, or one matrix: a tier that can (HPS_STORE_SHAPES, and a gpu
 *              that is asked first) writes there; what others have is *gathered* as stored, and
 *              converted when all is there
 *     pooled   it wants one row for each bag of keys: a tier in memory (backends/store_pool.h), or
 *              a gpu that is asked first, adds the rows of bags that it has whole; those of others
 *              are gathered and added then
 *
 *     plan ─▶ take_block, or the caller's rows ─▶ (gpu) ─▶ run_memory ─┬─▶ done
 *         ┌────────────────────────────────────────────────────────┘
 *         └─▶ (gpu) ─▶ run_gpu ─┬─▶ done
 *                               └─▶ run_rest ─▶ done
 *                                   (or run_defaults, or abandon)
 *
 * The gpu is asked by hps_lookup_ask_gpu, before the memory tiers for some parts and after them for
 * others; meanwhile no thread has the look-up. A look-up that may wait no
 * longer goes on without the answer (hps_lookup_leave_gpu).
 *
 * A look-up that wants a unit may have seen only some rows of a batch of updates, or found that the
 * only copy of a row is ahead of the version: the last step then answers ABORTED instead of OK.
 * Where all rows are there (`torn`) hps_lookup_reread reads those again that updates have changed;
 * in any case hps_lookup_again takes it back to where it was after take_block.
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
    HPS_LOOKUP_GPU_WAIT_US = 1000 * 1000,    /* of WAIT and MEMORY_ONLY without wait_us_max */
    HPS_LOOKUP_REREADS_MAX = 4,              /* the last while updates are held back */
    HPS_LOOKUP_GATHERED_MAX = 2              /* blocks; of memory tiers, and of those below */
};

/* Reasons of tier_errors_total and insertion_dropped_total. */
enum hps_tier_fault { HPS_FAULT_UNAVAILABLE, HPS_FAULT_DEADLINE, HPS_FAULT_OTHER, HPS_FAULT_COUNT };
enum hps_drop_reason {
    HPS_DROP_NO_SPACE,
    HPS_DROP_STALE,
    HPS_DROP_FAILED,
    HPS_DROP_QUEUE_FULL,  /* behind an answer, as the next */
    HPS_DROP_NOT_FETCHED, /* no tier below answered */
    HPS_DROP_STOPPED,     /* the version or the server went */
    HPS_DROP_COUNT
};

/* Series that all look-ups share. */
struct hps_lookup_metrics {
    struct hps_metric *tier_duration[HPS_TIER_COUNT];
    struct hps_metric *tier_errors[HPS_TIER_COUNT][HPS_FAULT_COUNT];
    struct hps_metric *insertion_rows[HPS_TIER_COUNT];       /* mode="sync" */
    struct hps_metric *insertion_rows_async[HPS_TIER_COUNT]; /* mode="async" */
    struct hps_metric *insertion_dropped[HPS_DROP_COUNT];
    struct hps_metric *insertion_queue_rows;
    struct hps_metric *insertion_shared_queue_rows;
};

/* Whether a row on a device is taken from there before the host map is asked, where a version has
 * both. */
enum hps_lookup_path {
    HPS_LOOKUP_PATH_AUTO, /* for parts with large results */
    HPS_LOOKUP_PATH_GPU,
    HPS_LOOKUP_PATH_HOST
};

/* How the rows of an answer lie. */
enum hps_row_layout {                           /* numbers of hps.v1.RowLayout */
                      HPS_LAYOUT_PER_TABLE = 1, /* those of each part by themselves; also 0 */
                      HPS_LAYOUT_CONCAT = 2 /* one matrix: row i has those of all parts, in order */
};

/* How the rows of a part come to their places: see above. */
enum hps_part_form { HPS_PART_STORED, HPS_PART_SHAPED, HPS_PART_POOLED };

/* A key sent before: its row is that of keys[first]. */
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
    enum hps_pooling pooling; /* 0 or NONE: a row for each key, and the next fields are not used */
    uint32_t n_bags;
    const uint32_t *offsets; /* [n_bags + 1] bag b has keys [offsets[b], offsets[b + 1]): from 0,
                                never falling, to n_keys; borrowed */
    const uint8_t *weights;  /* [n_keys] float LE, any alignment, borrowed; NULL: all are 1 */

    /* by plan */
    enum hps_part_form form;
    uint32_t n_rows;          /* of the answer: bags, or keys */
    enum hps_dtype out_dtype; /* of its rows; with RAW that of the table */
    uint32_t row_bytes;       /* of one of them: dim values */
    uint64_t stride;          /* bytes from one to the next */
    uint64_t column;          /* CONCAT: values before it in a row of the matrix; else 0 */
    uint64_t rows_bytes;      /* n_rows * row_bytes */
    uint64_t rows_offset;     /* from lookup->rows; PER_TABLE: a multiple of HPS_ROWS_ALIGN */

    /* out */
    uint8_t *rows;       /* row i of the answer at rows + i * stride; NULL: there is none */
    uint8_t *key_status; /* [n_keys] enum hps_key_status, NULL: all found */
    /* Of keys as sent that one tier had before the walk: the gpu, which was asked for all of them
     * first, or the host map, of bags that it had whole. Bit i % 32 of word i / 32. Nobody looks
     * for duplicates among them. NULL: none */
    const uint32_t *hits;
    enum hps_tier_kind hits_tier;
    uint32_t n_unique;    /* keys that are walked, and those of `hits` */
    uint32_t n_defaulted; /* of keys as sent */
    uint32_t n_unknown;
    uint32_t
        n_whole_bags; /* POOLED: that a tier added, all of whose keys it had, or no key at all */
    struct hps_duplicate *duplicates; /* [n_keys - n_unique], index ascending; of walked keys */
    struct hps_walk walk;             /* what each tier did, and which keys it answered */
    bool finished;
    bool waits_for_gpu; /* its misses in memory are to be asked of the gpu */

    /* the look-up's own */
    uint32_t *whole; /* POOLED: bags that are in their places, as struct hps_bags; NULL: none */
    const uint32_t *cached; /* POOLED: keys that the gpu, which was asked first, had, also those of
                               bags that it had not whole; as hits */
    uint8_t *gathered; /* the row of key i, as stored, at gathered + i * table->row_bytes; NULL */
};

/* part->hits_tier had key i, as sent, before the walk. */
static inline bool hps_lookup_part_hit(const struct hps_lookup_part *part, uint32_t i)
{
    return part->hits != NULL && (part->hits[i / 32] >> i % 32 & 1) != 0;
}

/* What is asked of the gpu together: parts that want it first, or the misses of the others. */
struct hps_lookup_gpu {
    struct hps_gpu_lookup ask;
    struct hps_lookup_part **parts; /* [ask.n_parts] whose keys they are */
    struct hps_block *scratch;      /* of misses: where their rows go; NULL: to their places */
    bool asked;                     /* ask.status is to be looked at */
    bool left;                      /* it has not answered yet, and `ask` is still its own */
};

/* One look-up: what its caller wants of it (in), where its rows go, and what came of it (out). Many
 * fields, but in one piece: the caller embeds it, zeroes it at once, and hands it whole from thread
 * to thread. */
struct hps_lookup {
    /* in */
    struct hps_version *version; /* pinned by the caller */
    struct hps_arena *arena;     /* holds all that the look-up makes */
    struct hps_arena *scratch;   /* for stores; NULL: they use the heap */
    struct hps_lookup_part *parts;
    uint32_t n_parts;
    enum hps_miss_policy miss_policy; /* plan puts the version's own in place of 0, here and next */
    enum hps_unknown_policy unknown_policy;
    enum hps_dtype output;      /* FP32 (also 0), FP16, BF16; RAW: as stored, PER_TABLE, no bags */
    enum hps_row_layout layout; /* CONCAT: all parts have the same number of rows */
    bool unit;                  /* of a batch of updates all rows or none */
    bool rereads; /* it reads rows again for another one, which looks after its unit itself */
    uint32_t wait_us_max;               /* HPS_MISS_WAIT; for the gpu also HPS_MISS_MEMORY_ONLY */
    uint64_t deadline_us;               /* 0 = none */
    bool (*cancelled)(const void *ctx); /* any thread; NULL: never */
    const void *cancelled_ctx;
    const struct hps_lookup_metrics *metrics; /* NULL: not counted */
    struct hps_pool *helpers; /* that may take pieces of run_memory; NULL: the caller does it all */
    /* Takes the keys that a look-up stopped waiting for; NULL: nothing is fetched behind an answer,
     * and HPS_MISS_THRESHOLD always waits. */
    struct hps_insertion *insertion;
    enum hps_lookup_path path;
    /* Where blocks of rows are from (NULL: the gpu is not asked), and the one that `rows` lies in,
     * with a reference, by hps_lookup_take_block. The look-up puts another in its place when a
     * device that was lost, or left, may still write to it. */
    struct hps_block_pool *blocks;
    struct hps_block *block;
    /* The gpu has answered, and the look-up is the caller's again. On the tier's thread; must be
     * quick: hand over. */
    void (*gpu_done)(struct hps_lookup *lookup);

    /* by plan */
    uint64_t n_keys;
    uint32_t n_shaped;   /* parts of that form, */
    uint32_t n_pooled;   /* and of that one */
    bool memory_shapes;  /* there are some SHAPED, and every tier in memory puts rows into shape */
    uint64_t rows_bytes; /* that the caller must provide at `rows`, aligned to HPS_ROWS_ALIGN */
    uint64_t matrix_bytes; /* CONCAT: of the matrix at `rows`, [n_rows][matrix_dim]; else 0, */
    uint64_t matrix_dim;   /* as this, the sum of all dims, */
    uint32_t n_rows;       /* and this, of any part */

    uint8_t *rows; /* in, after plan */

    /* out */
    uint64_t update_sequence; /* every row is at least as new as that batch left it */
    int64_t event_time_ms;    /* newest event time of the batches up to it; 0: none */
    uint64_t tier_us[HPS_TIER_COUNT];
    uint64_t others_us; /* waiting for rows that other look-ups were fetching already */
    uint64_t pooled_us; /* adding bags where their rows lie, of all parts; reported of the first */
    uint32_t *set;      /* [set_size] of the dedupe, shared by all parts */
    uint32_t set_size;
    uint64_t wait_deadline_us;
    uint64_t gpu_deadline_us; /* the gpu is waited for until then; 0: until it answers */
    uint64_t since;           /* hps_stamps_now before any tier was asked */
    uint64_t n_reread;        /* keys as sent, as updates had changed them */
    bool begun;
    bool torn;  /* ABORTED with all its rows, of which updates have changed some meanwhile */
    bool ahead; /* ABORTED for rows of updates that this version does not have yet, and no others */
    struct hps_lookup_gpu gpu;
    struct hps_block *gathered[HPS_LOOKUP_GATHERED_MAX]; /* rows of parts; until they are used */
};

/* Sizes and places of the rows.
 * error   RANGE: the sizes do not fit
 */
hps_status hps_lookup_plan(struct hps_lookup *lookup, struct hps_error *err) HPS_MUST_CHECK;

/* A block of lookup->blocks for the rows: where a device can write to it, if the gpu is to be asked
 * first and there is room; behind them is room for what it has of parts that are SHAPED. NO_MEMORY
 */
hps_status hps_lookup_take_block(struct hps_lookup *lookup) HPS_MUST_CHECK;
/* Memory that the look-up takes at most beside the rows: where rows are gathered, and where those
 * go that the gpu is asked for after the memory tiers. After plan. */
uint64_t hps_lookup_scratch_bytes(const struct hps_lookup *lookup);
/* Nobody does anything with the look-up any more but send its rows: give back what it has gathered,
 * which a look-up that was torn, and not read again, still holds. Again: nothing happens. */
void hps_lookup_release(struct hps_lookup *lookup);

/* Ask the gpu, if that comes next: before the memory tiers for parts that want it first, after them
 * for the misses of the others. True: from now on the look-up is the gpu's, until gpu_done.
 * Otherwise there was nothing to ask, or the gpu does not take it, and the look-up goes on without.
 * Any thread, never blocks. */
bool hps_lookup_ask_gpu(struct hps_lookup *lookup) HPS_MUST_CHECK;
/* After gpu_deadline_us: the look-up is the caller's again, and goes on as if gpu_done had come and
 * the gpu had found nothing. gpu_done does come, once: until then what the look-up is made of and
 * its version's pin must stay. On the thread that gpu_done hands it to. */
void hps_lookup_leave_gpu(struct hps_lookup *lookup);

/* Dedupe and ask the memory tiers. out_done: every part is answered; else hps_lookup_run_gpu must
 * follow, with hps_lookup_ask_gpu before it, and then hps_lookup_run_rest. For a version without a
 * gpu the latter alone will do.
 * error   NOT_FOUND (HPS_UNKNOWN_ERROR: names table and key), DEADLINE, CANCELLED, NO_MEMORY,
 *         EXHAUSTED (arena), or what an authoritative tier answered; ABORTED: `unit`, and a batch
 * of updates was being applied
 */
hps_status hps_lookup_run_memory(struct hps_lookup *lookup, bool *out_done, struct hps_error *err)
    HPS_MUST_CHECK;

/* Take what the gpu answered, if it was asked. out_done: every part is answered; else
 * hps_lookup_run_rest must follow. error: as above */
hps_status hps_lookup_run_gpu(struct hps_lookup *lookup, bool *out_done, struct hps_error *err)
    HPS_MUST_CHECK;

/* Ask the tiers that are left and finish all parts. thread: one that may block. error: as above. */
hps_status hps_lookup_run_rest(struct hps_lookup *lookup, struct hps_error *err) HPS_MUST_CHECK;
/* Instead of run_rest, when the wait is over before a thread was free for it: finish all parts with
 * what is there, and default rows for the rest. error: NOT_FOUND, EXHAUSTED, ABORTED */
hps_status hps_lookup_run_defaults(struct hps_lookup *lookup, struct hps_error *err) HPS_MUST_CHECK;
/* Instead of the next step, when there will be no answer: what was done is counted. */
void hps_lookup_abandon(struct hps_lookup *lookup);

/* Of a torn look-up: read what updates have changed since again, from all tiers that its miss
 * policy allows but the gpu; up to HPS_LOOKUP_REREADS_MAX times, as updates may come meanwhile. The
 * last time, which is the next one while a batch is under way, they are held back. The answer's
 * counts by tier stay those of the first reading.
 *
 * thread  one that may block
 * error   ABORTED: updates came each time and cannot be held back now (torn), one is in some tiers
 *         only (torn), or rows are ahead; NO_MEMORY, EXHAUSTED; those of hps_lookup_run_rest
 */
hps_status hps_lookup_reread(struct hps_lookup *lookup, struct hps_error *err) HPS_MUST_CHECK;

/* After ABORTED: begin anew, with the same rows. A gpu that was left is not asked again. What the
 * tries before did stays counted as work of the tiers, but not as keys of an answer. */
void hps_lookup_again(struct hps_lookup *lookup);

/* Count what the walks of an insertion behind look-ups did. */
void hps_lookup_count_insertion(const struct hps_lookup_metrics *metrics,
                                const struct hps_walk *first);

#endif

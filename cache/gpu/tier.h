/* SPDX-License-Identifier: Apache-2.0
 *
 * The gpu tier: one device, its embedding cache, and the thread that owns both.
 *
 *     look-ups ──mailbox──▶ ┌──────────────────────────────┐ ── submit ──▶ embedding cache
 *     insertions, updates ─▶│ thread "gpu-N": one fused     │ ◀── poll ───
 *                   (queue) │ batch of many look-ups' parts │ ── done(lookup) ──▶ who asked
 *                           └──────────────────────────────┘
 *
 * The thread never walks tiers, waits for no lock that is held over work, and asks for no device
 * memory while serving. Parts of look-ups that wait at the same time go out as one batch; while a
 * batch is on its way the next one gathers.
 *
 * Changes are queued in the order in which they come, under one lock, as stamps.h asks for:
 * an insertion is checked under it and a later update is queued behind the insertion, so that no
 * old row comes back. The thread stages what is queued before it submits a look-up: a look-up that
 * begins after hps_gpu_update has returned sees the new row or none.
 *
 * A device that is lost, or has shown no progress for too long, ends the tier for the life of the
 * process: look-ups that it has begun are answered DATA_LOSS, others UNAVAILABLE; nobody waits for
 * it again. Memory that it might still write stays referenced for ever.
 *
 * A driver that hangs ends the process: memory that it may still write to cannot be reclaimed. A
 * second thread, "gpu-N-watch", finds the tier's thread in the same step for stall_us_max, logs
 * that, and calls _exit(1). A lost device that may still write stall_us_max after the tier begins
 * to close ends the process likewise.
 */
#ifndef HPS_CACHE_GPU_TIER_H
#define HPS_CACHE_GPU_TIER_H

#include "base/block.h"
#include "base/mailbox.h"
#include "cache/embed/cache.h"

struct hps_gpu_tier;
struct hps_gpu_space; /* of one version */

struct hps_gpu_tier_options {
    const struct hps_device_driver *driver;
    int index;
    struct hps_embed_cache_config cache; /* arena_bytes 0: 80 % of what is free */
    struct hps_block_pool *blocks; /* where rows of look-ups go; outlives the tier. Blocks that do
                                      not lie in its slab cannot be asked for */
    uint64_t queue_bytes_max;      /* of insertions that wait or are on their way to the device;
                                      further ones are dropped. 8 MiB: look-ups wait behind them */
    uint32_t waiting_max;          /* look-ups that wait; further ones are refused */
    uint64_t stall_us_max;         /* without progress the device counts as lost; without return
                                      from a call of its driver the process ends. 0: what `driver`
                                      says */
};

/* NOT_FOUND: no such device; PRECONDITION: device or driver too old; NO_MEMORY: names how much was
 * needed and free. The thread runs when it returns OK. */
hps_status hps_gpu_tier_open(const struct hps_gpu_tier_options *options,
                             struct hps_gpu_tier **out_tier, struct hps_error *err) HPS_MUST_CHECK;
/* Wait until every look-up has been answered, and its done() has returned: who they are handed to
 * may go then. Nobody asks any more. NULL is legal. */
void hps_gpu_tier_drain(struct hps_gpu_tier *tier);
/* Every space is closed, no look-up is under way. NULL is legal. */
void hps_gpu_tier_close(struct hps_gpu_tier *tier);
/* The tier's thread has seen all that was given to it before, and written down what that uses. */
void hps_gpu_tier_sync(struct hps_gpu_tier *tier);
const struct hps_device_info *hps_gpu_tier_info(const struct hps_gpu_tier *tier);
bool hps_gpu_tier_lost(const struct hps_gpu_tier *tier); /* any thread */
/* Of its arena, as the tier's thread last wrote it down: at most 10 ms ago where that runs, and in
 * any case before a call that waits for it has returned. Never blocks. */
void hps_gpu_tier_usage(struct hps_gpu_tier *tier, struct hps_embed_cache_usage *out_usage);

/* ---- versions -------------------------------------------------------------------------------- */

/* How much of a table is cached. */
struct hps_gpu_share {
    uint64_t n_rows;        /* of the table */
    uint64_t n_rows_cached; /* 0: this table is not cached */
};

/* All of it is copied. */
struct hps_gpu_space_options {
    const char *model; /* for logs, as the number of the version */
    int64_t number;
    const struct hps_table *tables;     /* [n_tables] */
    const struct hps_gpu_share *shares; /* [n_tables] */
    uint32_t n_tables;
};

/* The caches of a version's tables, made in the order of the tables. One that does not fit is left
 * out for now (every key is a miss), and that is logged; those behind it that fit are made. The
 * space gets what it lacks as soon as there is room and the version is active.
 * thread  one that may block
 * error   NO_MEMORY, UNAVAILABLE (lost) */
hps_status hps_gpu_space_open(struct hps_gpu_tier *tier,
                              const struct hps_gpu_space_options *options,
                              struct hps_gpu_space **out_space, struct hps_error *err)
    HPS_MUST_CHECK;
/* The same caches on one more device, of another tier: look-ups are spread over all, each asks the
 * one where the fewest wait; rows go to that which missed them, updates to all. What is said below
 * of a space holds for all of its devices together. Before anybody uses the space; errors as above.
 */
hps_status hps_gpu_space_add(struct hps_gpu_space *space, struct hps_gpu_tier *tier,
                             const struct hps_gpu_space_options *options, struct hps_error *err)
    HPS_MUST_CHECK;
/* Whether every device of it is lost. Any thread, as the next. */
bool hps_gpu_space_lost(const struct hps_gpu_space *space);
/* Rows that are resident on the device of that tier. */
uint64_t hps_gpu_space_rows(struct hps_gpu_space *space, const struct hps_gpu_tier *tier);
/* The version is served by default from now on, or no more: caches of spaces that are not active
 * give way to those of one that is. May block. */
void hps_gpu_space_active(struct hps_gpu_space *space, bool active);
/* No look-up of the space is under way; changes that wait are dropped. May block. */
void hps_gpu_space_close(struct hps_gpu_space *space);
/* Written down like hps_gpu_tier_usage, as the next. What is counted is so from the opening of the
 * space on, over all caches that it had; the rest is 0 while a table has none. Of all devices
 * together, but for n_slots and resident_share: those are of the one that has most. Of one that is
 * lost only the counts. */
void hps_gpu_space_usage(struct hps_gpu_space *space, uint32_t table_id,
                         struct hps_embed_range_usage *out_usage);
/* Of all tables: [n_tables]. */
void hps_gpu_space_usages(struct hps_gpu_space *space, struct hps_embed_range_usage *out_usages);
/* Whether rows of the table can be there now: the device is not lost, and the table has its cache.
 * Any thread. */
bool hps_gpu_space_caches(const struct hps_gpu_space *space, uint32_t table_id);
/* Whether the space has caches on a device, all or some. Any thread, as the next ones. */
bool hps_gpu_space_present(const struct hps_gpu_space *space);
/* Is the space active, with a device that has yet to see whether there is room? It does so soon. */
bool hps_gpu_space_coming(const struct hps_gpu_space *space);
/* Wait until it is so no more, or so long. */
void hps_gpu_space_await(struct hps_gpu_space *space, uint64_t us);
/* Is the space to have caches on that tier's device, with no room for any? NULL is legal. */
bool hps_gpu_space_without_room(const struct hps_gpu_space *space, const struct hps_gpu_tier *tier);
/* How many tables of a space that has caches on that tier's device have none for want of room; tier
 * NULL: of the device where most have none. A space of NULL is legal. */
uint32_t hps_gpu_space_tables_without_room(const struct hps_gpu_space *space,
                                           const struct hps_gpu_tier *tier);
/* So many rows of the table are to be cached when the space has its caches. */
uint64_t hps_gpu_space_rows_max(const struct hps_gpu_space *space, uint32_t table_id);
/* All rows of the table are to be cached, and nobody has yet put them there since its cache was
 * last made; false where there is none. */
bool hps_gpu_space_unfilled(const struct hps_gpu_space *space, uint32_t table_id);
/* Whoever puts them all there says so before it reads the first, and once all are queued. One
 * thread per table at a time, else the table may count as whole too late. */
void hps_gpu_space_fill_begin(struct hps_gpu_space *space, uint32_t table_id);
void hps_gpu_space_fill_end(struct hps_gpu_space *space, uint32_t table_id);
/* Memory that caches with these shares take. */
uint64_t hps_gpu_share_bytes(const struct hps_table *tables, const struct hps_gpu_share *shares,
                             uint32_t n_tables);

/* ---- look-ups -------------------------------------------------------------------------------- */

/* Keys of one table, and how their rows are wanted: a row for each key, or, with a pooling, one for
 * each bag of them, where that has keys and all are cached. What is in the places of others is
 * undefined, and so are bytes between rows if those lie close together. */
struct hps_gpu_part {
    /* in */
    uint32_t table_id;
    uint32_t n;
    const uint8_t *keys;  /* [n] int64 LE, any alignment; stay until done, as the next pointers */
    uint64_t offset;      /* row i goes to block->data + offset + i * stride */
    uint32_t stride;      /* 0: they lie close together */
    enum hps_dtype dtype; /* of those rows: FP32, FP16, BF16; 0, without a pooling: as they are
                             stored. Offset and stride are multiples of the bytes of its values */
    enum hps_pooling pooling; /* 0 or NONE: the next fields are not used */
    uint32_t n_bags;
    const uint32_t *offsets; /* [n_bags + 1] bag b has keys [offsets[b], offsets[b + 1]): from 0,
                                never falling, to n */
    const uint8_t *weights;  /* [n] float LE, any alignment; NULL: all are 1 */
    /* out */
    uint32_t
        *hits; /* [(n + 31) / 32] by the caller; bit i % 32 of word i / 32: keys[i] was cached */
};

/* One look-up. Its memory, and that of its parts, stays until done. */
struct hps_gpu_lookup {
    struct hps_gpu_space *space;
    struct hps_block *block; /* referenced until the device writes to it no more */
    struct hps_gpu_part *parts;
    uint32_t n_parts;
    /* On the tier's thread; must be quick: hand over. The look-up belongs to the caller again. */
    void (*done)(struct hps_gpu_lookup *lookup);

    /* The one of its devices that is asked; also where UNAVAILABLE says so. */
    struct hps_gpu_space *asked;

    /* out. OK; UNAVAILABLE: the device was lost before it began; DATA_LOSS: after that, and what
     * lies in the block may still change: never use it again */
    hps_status status;
    uint64_t duration_us; /* from asking until done */

    /* the tier's */
    struct hps_gpu_tier *tier;
    struct hps_task task;
    struct hps_gpu_lookup *next;
    uint64_t asked_us;
    uint64_t change;    /* the last change that was queued before it */
    uint32_t part_next; /* what is not submitted yet begins in this part, */
    uint32_t key_next;  /* with this key: a multiple of 32 unless it is the first of a bag, */
    uint32_t bag_next;  /* of this one */
    uint32_t n_batches; /* submitted and not ended */
};

/* takes `lookup` until done. UNAVAILABLE (the tier is lost), EXHAUSTED (too many wait), INVALID
 * (the block is not in the slab): then nothing happens, ask another tier. Any thread, never blocks.
 */
hps_status hps_gpu_lookup(struct hps_gpu_lookup *lookup) HPS_MUST_CHECK;

/* Of a part with a pooling, after done with OK: which bags were answered, as bits like those of
 * hits in whole, [(n_bags + 31) / 32]. Not answered are also those without keys, and those with
 * more than a batch takes, of which nothing is known. Any thread. */
void hps_gpu_bags_whole(const struct hps_gpu_part *part, uint32_t *whole);

/* ---- changes --------------------------------------------------------------------------------- */

/* Rows found below, the one of keys[i] at rows + slots[i] * row_bytes. Borrowed for the call. */
struct hps_gpu_insertion {
    uint32_t table_id;
    uint32_t n;
    const hps_key *keys;
    const uint32_t *slots;
    const uint8_t *rows;
    const struct hps_insert_guard *guard; /* NULL: all are fresh */
    bool wanted; /* somebody was answered without them: they go in however seldom they were asked
                    for, so that the next answer has them */
    const struct hps_gpu_space *missed; /* hps_gpu_lookup.asked: only this device gets them; NULL:
                                           all of them do */
    bool waits;                         /* for room in the queue; else what finds none is dropped */
};
/* Any thread; one that may block if it waits. out_report: set in any case */
void hps_gpu_insert(struct hps_gpu_space *space, const struct hps_gpu_insertion *insertion,
                    struct hps_insert_report *out_report);
/* The rows that keys have from now on (rows NULL: they have none): cached ones are replaced or go.
 * Waits for room in the queue, not for the device. A lost tier takes everything; without memory for
 * what is queued the table's cache is emptied, so that no old row is left. One updater per version.
 */
void hps_gpu_update(struct hps_gpu_space *space, uint32_t table_id, const hps_key *keys,
                    const uint8_t *rows, uint32_t n);

#endif

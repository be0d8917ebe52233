/* SPDX-License-Identifier: Apache-2.0
 *
 * The gpu tier: one device, its embedding cache, and the thread that owns both.
 *
 *     lookups ──────mailbox──▶ ┌───────────────────────────────┐ ── submit ──▶ embedding cache
 *     insertions, updates ───▶ │ thread "gpu-N": one batch has │ ◀── poll ────
 *                     (queue)  │ parts of many lookups         │ ── done(lookup) ──▶ caller
 *                              └───────────────────────────────┘
 *
 * N is the index of the device. The thread queries no other tier. All device memory is allocated
 * when the tier is opened. No thread holds a lock of the tier for long. Parts of lookups that are
 * pending at the same time form one batch. While batches are on the device, the thread fills the
 * next one.
 *
 * Insertions and updates are *changes*. They enter one queue, in the order in which they take its
 * lock, and the changes of a table are applied in this order. The guard of an insertion is called
 * under this lock. A later update of the same key is queued behind the insertion, and replaces or
 * erases its row. So no insertion brings back an older row (cache/version/stamps.h). The thread
 * stages the queued changes (hps_embed_stage) before it submits a lookup. A lookup that begins
 * after hps_gpu_update has returned finds the new row or misses.
 *
 * A device is lost if its driver reports an error, or if it makes no progress for stall_us_max. The
 * tier then stays unusable until the process ends. Pending lookups get DATA_LOSS if the device may
 * still write to their block, else UNAVAILABLE. Memory to which the device may still write is never
 * reused.
 *
 * If a call of the driver hangs, the process ends, because memory to which the driver may still
 * write cannot be reclaimed. A second thread, "gpu-N-watch", checks whether the tier's thread has
 * been in one call of the driver for stall_us_max. If so, "gpu-N-watch" logs this and calls
 * _exit(1). The process also ends if a lost device may still write to memory after
 * hps_gpu_tier_close has waited for stall_us_max.
 */
#ifndef HPS_CACHE_GPU_TIER_H
#define HPS_CACHE_GPU_TIER_H

#include "base/block.h"
#include "base/mailbox.h"
#include "cache/embed/cache.h"

struct hps_gpu_tier;
struct hps_gpu_space; /* the caches of one version */

struct hps_gpu_tier_options {
    const struct hps_device_driver *driver;
    int index;                           /* number of the device, passed to the driver */
    struct hps_embed_cache_config cache; /* arena_bytes 0: 80 % of the free device memory */
    /* Lookups write their rows to blocks of this pool, which must be in the pool's slab
     * (base/block.h). The pool must outlive the tier. */
    struct hps_block_pool *blocks;
    /* Maximum bytes of changes that are queued or staged. Insertions above it are dropped or wait
     * (hps_gpu_insertion.waits). 0: 8 MiB. A large value delays lookups, because a lookup waits for
     * the changes queued before it. */
    uint64_t queue_bytes_max;
    uint32_t waiting_max; /* most pending lookups; further ones are refused. 0: 4,096 */
    /* A device that makes no progress for this time, in microseconds, is lost. A call of the driver
     * that takes this time ends the process. 0: the driver's stall_us_max, or 5 s if that is 0. */
    uint64_t stall_us_max;
};

/* Open a device and start the tier's thread. *options is copied. NOT_FOUND: no such device;
 * PRECONDITION: the device or its driver is too old; NO_MEMORY: the device has too little free
 * memory, `err` names the needed and free bytes. */
hps_status hps_gpu_tier_open(const struct hps_gpu_tier_options *options,
                             struct hps_gpu_tier **out_tier, struct hps_error *err) HPS_MUST_CHECK;
/* Wait until every lookup has been answered and its done() has returned. The caller must make sure
 * that no new lookups begin. No effect if NULL. */
void hps_gpu_tier_drain(struct hps_gpu_tier *tier);
/* Close the device and end the tier's thread. All spaces must be closed, and no lookup may be
 * pending. No effect if NULL. */
void hps_gpu_tier_close(struct hps_gpu_tier *tier);
/* Wait until the tier's thread has run every task that was in its mailbox before this call, and has
 * published its usage. Any thread except the tier's. */
void hps_gpu_tier_sync(struct hps_gpu_tier *tier);
const struct hps_device_info *hps_gpu_tier_info(const struct hps_gpu_tier *tier);
bool hps_gpu_tier_lost(const struct hps_gpu_tier *tier); /* any thread */
/* Usage of the device's arena, as last published by the tier's thread. It is at most 10 ms old
 * while that thread has work. It is current after hps_gpu_tier_sync, and after opening, activating
 * or closing a space. Never waits for the thread. */
void hps_gpu_tier_usage(struct hps_gpu_tier *tier, struct hps_embed_cache_usage *out_usage);

/* ---- versions -------------------------------------------------------------------------------- */

/* How much of a table is cached. */
struct hps_gpu_share {
    uint64_t n_rows;        /* rows of the table */
    uint64_t n_rows_cached; /* rows that the cache is to hold; 0: the table is not cached */
};

/* Borrowed for the call: hps_gpu_space_open and hps_gpu_space_add copy what they need. */
struct hps_gpu_space_options {
    const char *model;                  /* name of the model, for logs */
    int64_t number;                     /* number of the version, for logs */
    const struct hps_table *tables;     /* [n_tables] */
    const struct hps_gpu_share *shares; /* [n_tables] */
    uint32_t n_tables;
};

/* Make the caches of a version's tables, in the order of the tables. If the cache of a table does
 * not fit into the device's free memory, the table has no cache for now, and all its keys miss.
 * This is logged, and the caches of later tables are still made. The tier makes missing caches when
 * there is free memory and the space is active (hps_gpu_space_active).
 *
 * thread  one that may block
 * error   NO_MEMORY: too little host memory; UNAVAILABLE: the device is lost
 */
hps_status hps_gpu_space_open(struct hps_gpu_tier *tier,
                              const struct hps_gpu_space_options *options,
                              struct hps_gpu_space **out_space, struct hps_error *err)
    HPS_MUST_CHECK;
/* Make the same caches on the device of another tier. Each lookup then queries one device, usually
 * the one with the fewest pending lookups. Rows that this device missed are inserted on this device
 * only. Updates go to all devices. The functions below refer to all devices of the space together.
 * Call this before the space is used. Errors as of hps_gpu_space_open. */
hps_status hps_gpu_space_add(struct hps_gpu_space *space, struct hps_gpu_tier *tier,
                             const struct hps_gpu_space_options *options, struct hps_error *err)
    HPS_MUST_CHECK;
/* Whether all devices of the space are lost. Any thread. */
bool hps_gpu_space_lost(const struct hps_gpu_space *space);
/* The number of the space's rows that are resident on the device of `tier`, as last published. Any
 * thread. */
uint64_t hps_gpu_space_rows(struct hps_gpu_space *space, const struct hps_gpu_tier *tier);
/* Set whether the version is the active one of its model. If an active space needs memory, the
 * caches of inactive spaces are removed. May block. */
void hps_gpu_space_active(struct hps_gpu_space *space, bool active);
/* Free the space and its caches. No lookup of the space may be pending. Queued changes of the space
 * are dropped. May block. */
void hps_gpu_space_close(struct hps_gpu_space *space);
/* Usage of one table, as last published (see hps_gpu_tier_usage). n_inserted, n_evicted, n_erased,
 * n_refused and n_stale are totals since the space was opened; they include earlier caches of the
 * table. The other fields describe the table's current cache, and are 0 while it has no cache. With
 * several devices, fields are summed, but n_slots and resident_share are the largest value of any
 * device. A lost device contributes only to the five totals. */
void hps_gpu_space_usage(struct hps_gpu_space *space, uint32_t table_id,
                         struct hps_embed_range_usage *out_usage);
/* hps_gpu_space_usage of all tables: out_usages[n_tables]. */
void hps_gpu_space_usages(struct hps_gpu_space *space, struct hps_embed_range_usage *out_usages);
/* Whether the table has a cache on a device that is not lost. Any thread. */
bool hps_gpu_space_caches(const struct hps_gpu_space *space, uint32_t table_id);
/* The functions from here to hps_gpu_space_fill_end may be called by any thread. */

/* Whether at least one device that is not lost has a cache of at least one table of the space. If
 * no table of the space needs a cache, any device that is not lost suffices. */
bool hps_gpu_space_present(const struct hps_gpu_space *space);
/* Whether the space is active and, on at least one device that is not lost, it is not yet known
 * whether the missing caches fit. */
bool hps_gpu_space_coming(const struct hps_gpu_space *space);
/* Wait until hps_gpu_space_coming returns false, for at most `us` microseconds. */
void hps_gpu_space_await(struct hps_gpu_space *space, uint64_t us);
/* Whether the space has no cache on the device of `tier` because none of its caches fits there.
 * False if the device is lost or the space is NULL. */
bool hps_gpu_space_without_capacity(const struct hps_gpu_space *space,
                                    const struct hps_gpu_tier *tier);
/* How many tables have no cache on the device of `tier` because the cache does not fit there. If
 * tier is NULL, returns the largest number of any device. A device that is lost, or on which the
 * space has no cache at all, counts as 0. Returns 0 if the space is NULL. */
uint32_t hps_gpu_space_tables_without_capacity(const struct hps_gpu_space *space,
                                               const struct hps_gpu_tier *tier);
/* How many rows of the table are to be cached (hps_gpu_share.n_rows_cached). */
uint64_t hps_gpu_space_rows_max(const struct hps_gpu_space *space, uint32_t table_id);
/* Whether a fill of the table is needed. This is so if all rows of the table are to be cached, and
 * on at least one device the cache was made after the last complete fill began. False if no device
 * has a cache of the table. */
bool hps_gpu_space_unfilled(const struct hps_gpu_space *space, uint32_t table_id);
/* A *fill* inserts all rows of a table. Call hps_gpu_space_fill_begin before the first row is read,
 * and hps_gpu_space_fill_end after the last insertion is queued. Only one fill of a table may run
 * at a time; otherwise hps_gpu_space_unfilled may return false too early. */
void hps_gpu_space_fill_begin(struct hps_gpu_space *space, uint32_t table_id);
void hps_gpu_space_fill_end(struct hps_gpu_space *space, uint32_t table_id);

/* Device memory in bytes that the caches of these tables take. shares: [n_tables]. */
uint64_t hps_gpu_share_bytes(const struct hps_table *tables, const struct hps_gpu_share *shares,
                             uint32_t n_tables);

/* ---- lookups --------------------------------------------------------------------------------- */

/* Keys of one table, and the form of their rows. Without pooling, the device writes one row for
 * each key that is cached. With pooling, it writes one row for each bag that has keys, if all keys
 * of the bag are cached. The content of the places of all other rows is undefined afterwards. Gaps
 * between rows are not written. The arrays must stay valid until done() is called. */
struct hps_gpu_part {
    /* in */
    uint32_t table_id;
    uint32_t n;          /* number of keys */
    const uint8_t *keys; /* [n] int64 LE, any alignment */
    uint64_t offset;     /* row i goes to block->data + offset + i * stride */
    uint32_t stride;     /* bytes; 0: the size of a row */
    /* Type of the rows in the block: FP32, FP16 or BF16; offset and stride must then be multiples
     * of the size of a value. 0: rows as stored; not allowed with pooling. */
    enum hps_dtype dtype;
    enum hps_pooling pooling; /* 0 or NONE: n_bags, offsets and weights are not used */
    uint32_t n_bags;
    const uint32_t *offsets; /* [n_bags + 1] bag b has keys [offsets[b], offsets[b + 1]). They start
                                with 0, never decrease, and end with n */
    const uint8_t *weights;  /* [n] float LE, any alignment; NULL: all are 1 */
    /* out */
    uint32_t *hits; /* [(n + 31) / 32] bit i % 32 of word i / 32 is set if keys[i] was cached */
};

/* One lookup. The struct and its parts must stay valid until done() is called. */
struct hps_gpu_lookup {
    struct hps_gpu_space *space;
    struct hps_block *block; /* where rows go; the tier holds a reference while the device may write
                                to it */
    struct hps_gpu_part *parts;
    uint32_t n_parts;
    /* Called on the tier's thread when the lookup has ended. The lookup then belongs to the caller
     * again. Must return quickly: hand the lookup to another thread. */
    void (*done)(struct hps_gpu_lookup *lookup);

    /* out. The caches on the device that was chosen; set even if hps_gpu_lookup fails */
    struct hps_gpu_space *asked;

    /* out. OK: the device has answered. UNAVAILABLE: the device was lost, and no batch of this
     * lookup was on it. DATA_LOSS: the device was lost while a batch of this lookup was on it. The
     * device may still write to the block, which must never be used again. */
    hps_status status;
    uint64_t duration_us; /* out. Time from hps_gpu_lookup to done() */

    /* private to the tier */
    struct hps_gpu_tier *tier;
    struct hps_task task;
    struct hps_gpu_lookup *next;
    uint64_t asked_us;  /* when hps_gpu_lookup was called */
    uint64_t change;    /* number of the last change queued before this lookup */
    uint32_t part_next; /* the first part that is not yet submitted completely */
    uint32_t key_next;  /* the next key of part_next to submit: a multiple of 32, or the first key
                           of bag bag_next */
    uint32_t bag_next;  /* the next bag of part_next to submit */
    uint32_t n_batches; /* pieces that are packed or submitted, and not yet answered */
};

/* Begin a lookup. After OK the lookup belongs to the tier until done() is called. After an error,
 * done() is not called. Any thread; never blocks.
 *
 * error   UNAVAILABLE: the device is lost; EXHAUSTED: too many lookups are pending; INVALID: the
 *         block is not in the slab of hps_gpu_tier_options.blocks
 */
hps_status hps_gpu_lookup(struct hps_gpu_lookup *lookup) HPS_MUST_CHECK;

/* Which bags of a part with pooling were answered. Call it after done() was called with the status
 * OK. whole: [(n_bags + 31) / 32] bit b % 32 of word b / 32 is set if bag b was answered. Bags
 * without keys, and bags with more keys than a batch takes, are never answered. Any thread. */
void hps_gpu_bags_whole(const struct hps_gpu_part *part, uint32_t *whole);

/* ---- changes --------------------------------------------------------------------------------- */

/* Rows found in a lower tier. All arrays are borrowed for the call. */
struct hps_gpu_insertion {
    uint32_t table_id;
    uint32_t n; /* number of keys */
    const hps_key *keys;
    const uint32_t *slots;
    const uint8_t *rows;                  /* the row of keys[i] is at rows + slots[i] * row_bytes */
    const struct hps_insert_guard *guard; /* called for each key while the queue of changes is
                                             locked; NULL: all rows are inserted */
    bool wanted; /* a reply lacked these rows: insert them even if all resident rows are requested
                    more often */
    const struct hps_gpu_space *missed; /* a value of hps_gpu_lookup.asked: insert only on that
                                           device; NULL: on all devices of the space */
    bool waits; /* true: wait until the queue has capacity; false: drop rows that do not fit */
};
/* Queue the insertion of rows. *out_report is always set, and has the sum of all devices.
 * n_inserted counts the queued rows, but the device may not insert all of them. If insertion->waits
 * is true, the call may block. Any thread. */
void hps_gpu_insert(struct hps_gpu_space *space, const struct hps_gpu_insertion *insertion,
                    struct hps_insert_report *out_report);
/* Queue an update: replace the cached rows of these keys by `rows` ([n][row_bytes]), or erase them
 * if `rows` is NULL. Keys that are not cached are not inserted. All keys are queued nevertheless,
 * because an insertion that was queued before may have an older row.
 *
 * To keep older rows out of the cache, use this order: hps_stamps_mark, the update of the
 * tiers below, hps_gpu_update, hps_stamps_end.
 *
 * The change is dropped if the table has no cache when the tier's thread stages it. A cache that is
 * made later begins empty. If there is no memory to queue the update, the whole cache of the table
 * is emptied, so that no old row is left. A lost tier ignores updates.
 *
 * Waits while the changes that are queued and not staged take twice queue_bytes_max or more. Only
 * one thread per version, its updater, may call this. */
void hps_gpu_update(struct hps_gpu_space *space, uint32_t table_id, const hps_key *keys,
                    const uint8_t *rows, uint32_t n);

#endif

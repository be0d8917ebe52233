/* SPDX-License-Identifier: Apache-2.0
 *
 * The gpu tier: one device, its embedding cache, and the thread that owns both.
 *
 *     lookups ──────mailbox──▶ ┌───────────────────────────────┐ ── submit ──▶ embedding cache
 *     insertions, updates ───▶ │ thread "gpu-N": one batch has │ ◀── poll ────
 *                     (queue)  │ parts of many lookups         │ ── done(lookup) ──▶ caller
 *                              └───────────────────────────────┘
 *
 * The thread never asks another tier and allocates no device memory while it serves. Its locks are
 * held briefly. Parts of lookups that wait at the same time form one batch. While batches are on
 * the device, the next one fills.
 *
 * Insertions and updates enter one queue of changes. The lock of the change queue gives their
 * order: the guard of an insertion is checked under it, and a later update queues behind the
 * insertion. So the update replaces or erases the row, and no insertion brings back an older one
 * (cache/version/stamps.h). The thread stages the queued changes before it submits a lookup. A
 * lookup that begins after hps_gpu_update has returned finds the new row or misses.
 *
 * A device is lost if its driver reports an error, or if it makes no progress for stall_us_max. The
 * tier then stays unusable until the process ends. Lookups with a batch on the device get
 * DATA_LOSS, others UNAVAILABLE. Memory that the device might still write to is never reused.
 *
 * A driver that hangs ends the process, because memory that it may still write to cannot be
 * reclaimed. A second thread, "gpu-N-watch", checks whether the tier's thread has been in one call
 * of the driver for stall_us_max. It then logs that and calls _exit(1). The process also ends if a
 * lost device may still write stall_us_max after the tier began to close.
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
    int index;
    struct hps_embed_cache_config cache; /* arena_bytes 0: 80 % of the free device memory */
    struct hps_block_pool *blocks; /* rows of lookups are written to its blocks; outlives the tier.
                                      A lookup into a block outside its slab is INVALID */
    uint64_t queue_bytes_max; /* of changes, queued or staged; insertions beyond it are dropped. 0:
                                 8 MiB, as lookups wait for the changes queued before them */
    uint32_t waiting_max;     /* pending lookups; further ones are refused. 0: 4,096 */
    uint64_t stall_us_max; /* a device without progress for so long is lost, and a driver call that
                              takes so long ends the process. 0: the driver's default, or 5 s */
};

/* Open a device. NOT_FOUND: no such device; PRECONDITION: device or driver too old; NO_MEMORY:
 * names the needed and free bytes. The tier's thread runs when this returns OK. */
hps_status hps_gpu_tier_open(const struct hps_gpu_tier_options *options,
                             struct hps_gpu_tier **out_tier, struct hps_error *err) HPS_MUST_CHECK;
/* Wait until every lookup has been answered and its done() has returned. The caller must have
 * stopped new lookups. No effect if NULL. */
void hps_gpu_tier_drain(struct hps_gpu_tier *tier);
/* All spaces must be closed and no lookup pending. No effect if NULL. */
void hps_gpu_tier_close(struct hps_gpu_tier *tier);
/* Wait until the tier's thread has processed everything posted to it before this call, and has
 * published its usage. */
void hps_gpu_tier_sync(struct hps_gpu_tier *tier);
const struct hps_device_info *hps_gpu_tier_info(const struct hps_gpu_tier *tier);
bool hps_gpu_tier_lost(const struct hps_gpu_tier *tier); /* any thread */
/* Usage of the arena, as last published by the tier's thread: at most 10 ms old while that thread
 * has work, and current after a call that waited for that thread. Never blocks. */
void hps_gpu_tier_usage(struct hps_gpu_tier *tier, struct hps_embed_cache_usage *out_usage);

/* ---- versions -------------------------------------------------------------------------------- */

/* How much of a table is cached. */
struct hps_gpu_share {
    uint64_t n_rows;        /* of the table */
    uint64_t n_rows_cached; /* 0: this table is not cached */
};

/* The options are copied. */
struct hps_gpu_space_options {
    const char *model; /* model and number are for logs */
    int64_t number;
    const struct hps_table *tables;     /* [n_tables] */
    const struct hps_gpu_share *shares; /* [n_tables] */
    uint32_t n_tables;
};

/* Make the caches of a version's tables, in the order of the tables. A table whose cache does not
 * fit gets none for now, so all its keys miss; this is logged. Later tables that fit get theirs.
 * Missing caches are made once there is free space and the version is active.
 * thread  one that may block
 * error   NO_MEMORY, UNAVAILABLE (lost) */
hps_status hps_gpu_space_open(struct hps_gpu_tier *tier,
                              const struct hps_gpu_space_options *options,
                              struct hps_gpu_space **out_space, struct hps_error *err)
    HPS_MUST_CHECK;
/* Add the same caches on one more device, of another tier. Each lookup goes to the device with the
 * fewest pending lookups, and the rows it missed are inserted there. Updates go to all devices. The
 * functions below refer to all devices of the space together. Call this before the space is used.
 * Errors as above. */
hps_status hps_gpu_space_add(struct hps_gpu_space *space, struct hps_gpu_tier *tier,
                             const struct hps_gpu_space_options *options, struct hps_error *err)
    HPS_MUST_CHECK;
/* Whether all its devices are lost. Any thread. */
bool hps_gpu_space_lost(const struct hps_gpu_space *space);
/* Rows resident on the device of that tier. Any thread. */
uint64_t hps_gpu_space_rows(struct hps_gpu_space *space, const struct hps_gpu_tier *tier);
/* Set whether the version is served by default. If an active space needs memory, caches of inactive
 * spaces are removed. May block. */
void hps_gpu_space_active(struct hps_gpu_space *space, bool active);
/* No lookup of the space may be pending. Queued changes are dropped. May block. */
void hps_gpu_space_close(struct hps_gpu_space *space);
/* Usage of one table, published like hps_gpu_tier_usage. Counts cover all caches that the table has
 * had since the space was opened. The other fields are 0 while it has no cache. Fields are sums
 * over all devices, but n_slots and resident_share are the largest of any device. A lost device
 * adds its counts only. */
void hps_gpu_space_usage(struct hps_gpu_space *space, uint32_t table_id,
                         struct hps_embed_range_usage *out_usage);
/* The usage of all tables: [n_tables]. */
void hps_gpu_space_usages(struct hps_gpu_space *space, struct hps_embed_range_usage *out_usages);
/* Whether rows of the table can be cached now: it has a cache on a device that is not lost. Any
 * thread. */
bool hps_gpu_space_caches(const struct hps_gpu_space *space, uint32_t table_id);
/* Whether the space has caches, all or some, on a device that is not lost. Also true if it needs
 * none. Any thread, as the next functions. */
bool hps_gpu_space_present(const struct hps_gpu_space *space);
/* Whether the space is active and some device has yet to decide whether the missing caches fit. */
bool hps_gpu_space_coming(const struct hps_gpu_space *space);
/* Wait until hps_gpu_space_coming is false, for at most `us` microseconds. */
void hps_gpu_space_await(struct hps_gpu_space *space, uint64_t us);
/* Whether the space has no cache on that tier's device because none fits. False if NULL. */
bool hps_gpu_space_without_room(const struct hps_gpu_space *space, const struct hps_gpu_tier *tier);
/* How many tables have no cache on that tier's device because it does not fit. tier NULL: on the
 * device with the most such tables. 0 for a device on which the space has no cache at all, and if
 * the space is NULL. */
uint32_t hps_gpu_space_tables_without_room(const struct hps_gpu_space *space,
                                           const struct hps_gpu_tier *tier);
/* The number of rows of the table to be cached, once it has its cache. */
uint64_t hps_gpu_space_rows_max(const struct hps_gpu_space *space, uint32_t table_id);
/* Whether all rows of the table are to be cached, but have not been inserted since its cache was
 * last made. False if it has no cache. */
bool hps_gpu_space_unfilled(const struct hps_gpu_space *space, uint32_t table_id);
/* A thread that inserts all rows of the table calls begin before it reads the first row, and end
 * once the last insertion is queued. At most one thread per table at a time. Otherwise the table
 * may count as filled too early. */
void hps_gpu_space_fill_begin(struct hps_gpu_space *space, uint32_t table_id);
void hps_gpu_space_fill_end(struct hps_gpu_space *space, uint32_t table_id);
/* Memory that caches of these shares take. */
uint64_t hps_gpu_share_bytes(const struct hps_table *tables, const struct hps_gpu_share *shares,
                             uint32_t n_tables);

/* ---- lookups --------------------------------------------------------------------------------- */

/* Keys of one table, and the form of their rows. Without pooling there is one row per key. With
 * pooling there is one row per bag that has keys and has all of them cached. The places of other
 * rows are undefined afterwards. Gaps between rows are not written. */
struct hps_gpu_part {
    /* in */
    uint32_t table_id;
    uint32_t n;
    const uint8_t *keys;  /* [n] int64 LE, any alignment; stays until done, as the arrays below */
    uint64_t offset;      /* row i goes to block->data + offset + i * stride */
    uint32_t stride;      /* 0: packed rows */
    enum hps_dtype dtype; /* of the rows wanted: FP32, FP16, BF16; then offset and stride are
                             multiples of a value's bytes. 0, without pooling: as stored */
    enum hps_pooling pooling; /* 0 or NONE: the next fields are unused */
    uint32_t n_bags;
    const uint32_t *offsets; /* [n_bags + 1] bag b has keys [offsets[b], offsets[b + 1]): from 0,
                                never falling, to n */
    const uint8_t *weights;  /* [n] float LE, any alignment; NULL: all are 1 */
    /* out */
    uint32_t *hits; /* [(n + 31) / 32] caller's; bit i % 32 of word i / 32: keys[i] was cached */
};

/* One lookup. It and its parts must stay until done. */
struct hps_gpu_lookup {
    struct hps_gpu_space *space;
    struct hps_block *block; /* the tier holds a reference while the device may write to it */
    struct hps_gpu_part *parts;
    uint32_t n_parts;
    /* Called on the tier's thread; must return quickly, so hand the lookup over. The lookup belongs
     * to the caller again. */
    void (*done)(struct hps_gpu_lookup *lookup);

    /* out. The device that was chosen; set even if hps_gpu_lookup fails. */
    struct hps_gpu_space *asked;

    /* out. OK; UNAVAILABLE: the device was lost, with no batch of this lookup on it; DATA_LOSS: the
     * device was lost with one on it, and may still write to the block: never use the block
     * again */
    hps_status status;
    uint64_t duration_us; /* from hps_gpu_lookup to done */

    /* private to the tier */
    struct hps_gpu_tier *tier;
    struct hps_task task;
    struct hps_gpu_lookup *next;
    uint64_t asked_us;
    uint64_t change;    /* the last change queued before it */
    uint32_t part_next; /* the first part not yet submitted completely, */
    uint32_t key_next;  /* its first key to submit: a multiple of 32, or the first of a bag, */
    uint32_t bag_next;  /* and that bag */
    uint32_t n_batches; /* submitted and not ended */
};

/* Takes `lookup` until done. On an error done() is not called, and the caller asks another tier:
 * UNAVAILABLE (the tier is lost), EXHAUSTED (too many are pending), INVALID (the block is not in
 * the slab). Any thread; never blocks. */
hps_status hps_gpu_lookup(struct hps_gpu_lookup *lookup) HPS_MUST_CHECK;

/* Which bags of a part with pooling were answered. Call it after done with OK. Bits as in `hits`:
 * [(n_bags + 31) / 32]. Bags without keys, and bags with more keys than a batch takes, are not
 * answered. Any thread. */
void hps_gpu_bags_whole(const struct hps_gpu_part *part, uint32_t *whole);

/* ---- changes --------------------------------------------------------------------------------- */

/* Rows found in a lower tier: that of keys[i] is at rows + slots[i] * row_bytes. Borrowed for the
 * call. */
struct hps_gpu_insertion {
    uint32_t table_id;
    uint32_t n;
    const hps_key *keys;
    const uint32_t *slots;
    const uint8_t *rows;
    const struct hps_insert_guard *guard; /* asked under the lock of the queue; NULL: all fresh */
    bool wanted; /* a reply lacked these rows: they are inserted even if their keys are rare, so
                    that the next reply has them */
    const struct hps_gpu_space *missed; /* hps_gpu_lookup.asked: only there; NULL: on all devices */
    bool waits; /* until the queue has capacity; otherwise rows that do not fit are dropped */
};
/* Any thread; if it waits, one that may block. out_report: always set */
void hps_gpu_insert(struct hps_gpu_space *space, const struct hps_gpu_insertion *insertion,
                    struct hps_insert_report *out_report);
/* Update keys to new rows (rows NULL: erase the keys). Cached rows are replaced or erased; keys
 * that are not cached stay so. All keys are queued, cached or not, because an insertion queued
 * before may have an older row. Waits for capacity in the queue, but not for the device. A lost
 * tier ignores updates. If there is no memory to queue an update, the cache of the table is
 * emptied, so that no old row is left. One updater per version. */
void hps_gpu_update(struct hps_gpu_space *space, uint32_t table_id, const hps_key *keys,
                    const uint8_t *rows, uint32_t n);

#endif

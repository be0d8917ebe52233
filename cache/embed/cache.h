/* SPDX-License-Identifier: Apache-2.0
 *
 * The embedding cache: hot rows in the memory of one device, for all tables of all resident
 * versions. No type of a driver (CUDA) is visible here.
 *
 * A *range* is the cache of one table of one version. It consists of sets. A set has 8 *slots*,
 * each for one key and its row. Up to 32 neighbouring sets share a *spill*: more slots, for keys
 * whose set is full. A *sketch* estimates how often each key is looked up (a count-min sketch). All
 * ranges are in one *arena*, device memory that is allocated once.
 *
 *     lookup     submit ─▶ poll … OK ─▶ hits of each part ─▶ release
 *     change     stage ─▶ (applied between lookups, in the order of the calls of submit and stage)
 *
 * A *part* is some keys of one range. A lookup has many parts, of any ranges, in one launch. The
 * kernel does not write to the cache. It stores the rows of cached keys at their destination, and
 * one bit per key: hit or miss. Changes (insertions, updates, erasures) are staged while lookups
 * run. The device applies them between two lookups. A lookup that is submitted after
 * hps_embed_stage has returned sees its changes; an earlier lookup does not. No lookup sees half a
 * row. So the kernels need no locks.
 *
 * If the device is lost, every call that returns a status returns DATA_LOSS until the cache is
 * closed, except hps_embed_region_free. Releasing, freeing and closing still work.
 *
 * Thread: all calls for one cache must be made by one thread, the device's thread. Only open,
 * close, and making or freeing a host region may block or allocate device memory.
 */
#ifndef HPS_CACHE_EMBED_CACHE_H
#define HPS_CACHE_EMBED_CACHE_H

#include "backends/store.h"
#include "base/row_sum.h"
#include "cache/device/device.h"

struct hps_embed_cache;
struct hps_embed_range;
struct hps_embed_ticket;

enum {
    HPS_EMBED_WAYS = 8,               /* slots of a set */
    HPS_EMBED_BATCH_KEYS_MAX = 65536, /* most keys per call of hps_embed_submit */
    /* Most changes per call of hps_embed_stage, and per slice. A *slice* is the changes that one
     * launch applies. */
    HPS_EMBED_SLICE_ROWS_MAX = 16384,
    HPS_EMBED_ROW_BYTES_MAX = 65536,
};

/* A field that is 0 has its default value. */
struct hps_embed_cache_config {
    uint64_t arena_bytes;  /* device memory for ranges; has no default */
    uint64_t gather_bytes; /* device memory for rows that are then copied to the host; default 64
                              MiB */
    uint64_t stage_bytes;  /* memory for staged rows, as much on the host as on the device; default
                              32 MiB */
    uint64_t timeout_us;   /* a device without progress for this time is lost; default 5 s */
    uint64_t seed;         /* seed of the hash of keys; default: the secret of the process */
    uint32_t n_batches;    /* most lookups in flight; default 4 */
    uint32_t batch_keys_max;  /* most keys of a lookup; default 65,536 */
    uint32_t batch_parts_max; /* most parts of a lookup; default 4,096 */
    /* If the rows that a lookup returns to host memory take at most this size together, the kernel
     * stores them there. Otherwise the kernel gathers the rows in device memory, and a copy engine
     * copies them to the host. Rows with gaps between them are always stored by the kernel. Default
     * 65,536 bytes. */
    uint32_t mapped_bytes_max;
    uint32_t sample_rate; /* sketches count 1 of sample_rate keys; default 8; tests use 1 */
};

/* Open a cache, and allocate all memory that it uses until it is closed. NO_MEMORY: the device has
 * too little free memory, `err` names the needed and free bytes. INVALID: a value of the
 * configuration is out of bounds. */
hps_status hps_embed_cache_open(struct hps_device *device,
                                const struct hps_embed_cache_config *config,
                                struct hps_embed_cache **out_cache, struct hps_error *err)
    HPS_MUST_CHECK;
/* Close a cache. Waits for work in flight, unless the device is lost. All tickets must have been
 * released, and all ranges and regions freed. If the device is lost, regions for which
 * hps_embed_region_free returns AGAIN may be left. No effect if NULL. */
void hps_embed_cache_close(struct hps_embed_cache *cache);

/* ---- ranges ---------------------------------------------------------------------------------- */

struct hps_embed_range_config {
    uint32_t row_bytes; /* 1 to HPS_EMBED_ROW_BYTES_MAX. The cache pads rows to a multiple of 16
                           bytes. Copies are fastest if row_bytes is a multiple of 16, and slowest
                           if it is not a multiple of 4 */
    uint64_t n_rows;    /* rows of the table */
    uint64_t bytes_max; /* maximum size of the range in the arena. The range is smaller if all rows
                           of the table need less */
};

/* The size in bytes of a range for n_rows_cached of the n_rows rows of a table. If n_rows_cached is
 * less than half of n_rows, the range has one slot per cached row, in sets and spills together.
 * Otherwise its sets have n_rows_cached / 0.6 slots, and its spills have 9 % of that number (more
 * if the range has fewer than 128 sets). If all rows of a table are to be cached, only 3 of 10^8
 * rows then find no slot. Without spills, 2 of 100 rows would find no slot. With one slot per row,
 * 1 of 7 would find none. */
uint64_t hps_embed_range_bytes(uint32_t row_bytes, uint64_t n_rows, uint64_t n_rows_cached);
/* Make a range.
 *
 * error   INVALID: row_bytes is out of bounds, or bytes_max is less than the smallest range takes.
 *         EXHAUSTED: the arena has no free piece that is large enough; `err` names the needed and
 *         free bytes. AGAIN: there will be such a piece when the work that uses retired ranges has
 *         ended. NO_MEMORY: too little host memory. DATA_LOSS: the device is lost
 */
hps_status hps_embed_range_new(struct hps_embed_cache *cache,
                               const struct hps_embed_range_config *config,
                               struct hps_embed_range **out_range, struct hps_error *err)
    HPS_MUST_CHECK;
/* Whether changes of the range can be staged. The memory of a new range is cleared first, in
 * pieces; hps_embed_advance queues the next piece. Until all memory is cleared, lookups in the
 * range miss every key. */
bool hps_embed_range_ready(const struct hps_embed_range *range);
/* From now on lookups in the range miss every key, and its changes are ignored. Its memory is
 * released when no work in flight uses the range any more. */
void hps_embed_range_retire(struct hps_embed_range *range);
/* Retire the range, and end its use: no later submit or stage may name it. Tickets in flight stay
 * valid. No effect if NULL. */
void hps_embed_range_free(struct hps_embed_range *range);

struct hps_embed_range_usage {
    uint64_t bytes;   /* memory of the range; 0 once it is retired and its memory is released */
    uint64_t n_slots; /* slots in sets and spills */
    /* n_rows, n_inserted, n_evicted, n_erased and n_refused include a change only after the calling
     * thread has noticed that the device applied it (hps_embed_advance). */
    uint64_t n_rows;     /* resident rows */
    uint64_t n_inserted; /* rows inserted */
    uint64_t n_evicted;  /* rows evicted by insertions */
    uint64_t n_erased;   /* rows erased by HPS_EMBED_ERASE */
    /* insertions rejected because set and spill had only rows with at least as many lookups */
    uint64_t n_refused;
    uint64_t n_stale;      /* insertions that the guard of hps_embed_stage rejected; 0 in hpsd */
    double resident_share; /* n_rows divided by the rows of the table; at most 1 */
};
void hps_embed_range_usage(const struct hps_embed_range *range,
                           struct hps_embed_range_usage *out_usage);

struct hps_embed_cache_usage {
    uint64_t arena_bytes;          /* size of the arena */
    uint64_t free_bytes;           /* free memory of the arena */
    uint64_t free_piece_bytes_max; /* size of its largest free piece */
    uint32_t n_batches;            /* lookups in flight */
    uint32_t n_slices;             /* slices of changes in flight */
};
void hps_embed_cache_usage(const struct hps_embed_cache *cache,
                           struct hps_embed_cache_usage *out_usage);

/* ---- regions: destinations of rows ----------------------------------------------------------- */

/* Memory to which lookups write rows: host memory, which is registered with the driver, or device
 * memory. The caller owns the memory, which must be aligned to 16 bytes and stay allocated until
 * the region is freed. Each part of a lookup holds a reference to its region until the device has
 * written the rows of the part. */
struct hps_embed_region;
hps_status hps_embed_region_host(struct hps_embed_cache *cache, void *memory, size_t size,
                                 struct hps_embed_region **out_region, struct hps_error *err)
    HPS_MUST_CHECK;
hps_status hps_embed_region_device(struct hps_embed_cache *cache, hps_devptr memory, size_t size,
                                   struct hps_embed_region **out_region, struct hps_error *err)
    HPS_MUST_CHECK;
/* Free a region. OK: the region is freed. AGAIN: lookups still write to the region, even if their
 * tickets were released; call again later. After the loss of the device, AGAIN means that the
 * device may still write to the memory. If a kernel hangs, every call returns AGAIN, and the memory
 * must never be reused. If region is NULL, returns OK and has no effect. */
hps_status hps_embed_region_free(struct hps_embed_region *region) HPS_MUST_CHECK;

/* ---- lookups --------------------------------------------------------------------------------- */

/* The form of the rows of a part: conversion to another type, and pooling. */
struct hps_embed_shape {
    enum hps_dtype stored; /* the type of the range's rows */
    uint32_t dim;          /* values per row; must match row_bytes of the range */
    enum hps_dtype wanted; /* the type of the destination: FP32, FP16 or BF16 */
    /* NONE: one row per key. Otherwise one row per bag. The part has the keys of bag 0, then the
     * keys of bag 1, and so on; bag b has offsets[b + 1] - offsets[b] keys. All keys of the part
     * must be in bags. */
    enum hps_pooling pooling;
    uint32_t n_bags;
    const uint32_t *offsets; /* [n_bags + 1] never decreasing; may start with any number */
    const uint8_t *weights;  /* [n of the part] float LE, any alignment; NULL: all are 1 */
};

/* Keys of one range. The row of keys[i] goes to region + offset + i * stride if it is cached. With
 * pooling, the row of bag b goes to region + offset + b * stride if the bag has keys and all are
 * cached. The content of the places of all other rows is undefined afterwards: overwrite them
 * before the memory is sent to a client. Bytes between rows are not written. */
struct hps_embed_part {
    struct hps_embed_range *range;
    const uint8_t *keys; /* [n] int64 LE, any alignment; duplicates are allowed */
    uint32_t n;          /* number of keys */
    struct hps_embed_region *region;
    uint64_t offset;
    uint32_t stride; /* bytes from one row to the next, at least the size of a row; 0: the size of a
                        row */
    /* NULL: rows as stored, without pooling; offset and stride need no alignment. With a shape,
     * offset and stride must be multiples of the size of a value. */
    const struct hps_embed_shape *shape;
};

/* Begin a lookup of all parts: one launch, and a second one if any part has pooling.
 *
 * owner   parts, keys and shapes are borrowed for the call; the caller owns the ticket
 * error   AGAIN: too much work is in flight; poll, then retry. INVALID: there are more than
 *         batch_parts_max parts or batch_keys_max keys, or the rows do not fit into gather_bytes;
 *         split the lookup. DATA_LOSS: the device is lost
 */
hps_status hps_embed_submit(struct hps_embed_cache *cache, const struct hps_embed_part *parts,
                            uint32_t n_parts, struct hps_embed_ticket **out_ticket) HPS_MUST_CHECK;
/* Check a lookup. OK: every row is at its destination. AGAIN: not yet. DATA_LOSS: the device is
 * lost, possibly because it made no progress for timeout_us; the content of the regions is
 * undefined. */
hps_status hps_embed_poll(struct hps_embed_ticket *ticket) HPS_MUST_CHECK;
/* The hit bits of a part, once hps_embed_poll has returned OK. Bit i % 32 of word i / 32 is set if
 * keys[i] of the part was cached. Bits after the last key are 0. Valid until the ticket is
 * released. */
const uint32_t *hps_embed_hits(const struct hps_embed_ticket *ticket, uint32_t part);
/* End the caller's use of a ticket, at any time. Does not wait. If the lookup is unfinished, its
 * regions stay referenced until it ends. No effect if NULL. */
void hps_embed_release(struct hps_embed_ticket *ticket);

/* ---- changes --------------------------------------------------------------------------------- */

enum hps_embed_op {
    /* Insert rows found in lower tiers. No effect on a key that is resident. If set and spill are
     * full, the new row replaces their row with the fewest lookups. It is not inserted if its own
     * key does not have more lookups than that row. */
    HPS_EMBED_INSERT,
    /* Like INSERT, but if set and spill are full, the new row always replaces their row with the
     * fewest lookups. */
    HPS_EMBED_INSERT_WANTED,
    HPS_EMBED_UPDATE, /* replace the rows of keys that are resident; no effect on other keys */
    HPS_EMBED_ERASE   /* remove keys; `rows` must be NULL */
};

/* Stage changes: a lookup submitted later sees them. The next hps_embed_submit or hps_embed_advance
 * queues them on the device. Keys and rows are copied. If a key occurs several times in one call,
 * only its last change is applied. For insertions, guard->fresh is called for each key during this
 * call, and keys for which it returns false are not inserted. If guard is NULL, all keys are
 * inserted. Only tests pass a guard. The gpu tier passes NULL, because it calls the guard when it
 * queues the insertion (cache/gpu/tier.h).
 *
 * shape   rows: [n][row_bytes]; out_n_taken: how many keys were taken, from the front. If it is
 *         less than n, the caller must stage the other keys later
 * error   AGAIN: no key was taken, because there is no memory for more changes now, or the range is
 *         not ready; DATA_LOSS: the device is lost
 */
hps_status hps_embed_stage(struct hps_embed_cache *cache, struct hps_embed_range *range,
                           enum hps_embed_op op, const hps_key *keys, const uint8_t *rows,
                           uint32_t n, const struct hps_insert_guard *guard, uint32_t *out_n_taken)
    HPS_MUST_CHECK;

/* Size in bytes of the rows that are staged, and not yet known to be applied. */
uint64_t hps_embed_staged_bytes(const struct hps_embed_cache *cache);

/* Notice completed work (lookups, changes, clearing) and queue the staged changes on the device.
 * Does not block. Call it again and again while hps_embed_idle returns false. */
void hps_embed_advance(struct hps_embed_cache *cache);
/* Whether the thread may sleep: no work is in flight or staged, and no retired range still has
 * memory. Also true after the loss of the device. */
bool hps_embed_idle(const struct hps_embed_cache *cache);
/* Whether the device is lost, as noticed so far. */
bool hps_embed_lost(const struct hps_embed_cache *cache);

#endif

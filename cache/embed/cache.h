/* SPDX-License-Identifier: Apache-2.0
 *
 * The embedding cache: hot rows in the memory of one device, for all tables of all resident
 * versions. No type of a driver (CUDA) is visible here.
 *
 * A *range* is the cache of one table of one version. It has sets of 8 keys (64 bytes) with a row
 * per key. Each 32 sets share a *spill* for rows whose set is full. A sketch counts lookups per
 * key. All ranges are in one arena that is allocated once.
 *
 *     lookup     submit ─▶ poll … OK ─▶ hits of each part ─▶ release
 *     change     stage ─▶ (applied in the order of submit and stage, between lookups)
 *
 * One launch looks up all parts of a batch, of any tables. The kernel only reads the cache: it
 * stores the rows that hit at their destination, and one bit per key for hit or miss. Changes are
 * staged while lookups run and are applied in stream order. A lookup submitted after stage has
 * returned sees them, an earlier one does not, and none sees half a row. So the device needs no
 * locks, versions or epochs.
 *
 * If the device is lost, every call that can fail returns DATA_LOSS until the cache is closed.
 * Releasing, freeing and closing still work.
 *
 * Thread: one, the device's, for all calls of a cache. No call blocks or allocates device memory,
 * except open, close and the making and freeing of host regions.
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
    HPS_EMBED_WAYS = 8,
    HPS_EMBED_BATCH_KEYS_MAX = 65536, /* per submit */
    HPS_EMBED_SLICE_ROWS_MAX = 16384, /* per slice of changes, and per call of hps_embed_stage */
    HPS_EMBED_ROW_BYTES_MAX = 65536,
};

/* Zeroes: the defaults. */
struct hps_embed_cache_config {
    uint64_t arena_bytes;      /* for ranges; required */
    uint64_t gather_bytes;     /* device memory for rows to be copied to the host; 64 MiB */
    uint64_t stage_bytes;      /* host and device memory for staged rows, each; 32 MiB */
    uint64_t timeout_us;       /* the device is lost after so long without progress; 5 s */
    uint64_t seed;             /* of the hash of keys; 0: the secret of the process */
    uint32_t n_batches;        /* in flight at most; 4 */
    uint32_t batch_keys_max;   /* 65,536 */
    uint32_t batch_parts_max;  /* 4,096 */
    uint32_t mapped_bytes_max; /* the kernel stores results up to this size into host memory; larger
                                  ones are gathered and copied; 65,536. Rows with gaps between them
                                  are always stored by the kernel */
    uint32_t sample_rate;      /* one key in so many is counted; 8. 1 in tests */
};

/* Allocates all memory, until close. NO_MEMORY names the needed and free bytes; INVALID: a value of
 * the configuration is out of bounds. */
hps_status hps_embed_cache_open(struct hps_device *device,
                                const struct hps_embed_cache_config *config,
                                struct hps_embed_cache **out_cache, struct hps_error *err)
    HPS_MUST_CHECK;
/* Waits for work in flight, unless the device is lost. All tickets must be released, and all ranges
 * and regions freed (except regions that return AGAIN after a loss). No effect if NULL. */
void hps_embed_cache_close(struct hps_embed_cache *cache);

/* ---- ranges ---------------------------------------------------------------------------------- */

struct hps_embed_range_config {
    uint32_t row_bytes; /* 1 to ROW_BYTES_MAX, rounded up to multiples of 16 in memory. Multiples of
                           16 are copied fastest; row sizes that are no multiple of 4 are slow */
    uint64_t n_rows;    /* rows of the table */
    uint64_t bytes_max; /* the most that the range may take of the arena; it never takes more than
                           it needs for all rows of the table */
};

/* The memory of a range in which `n_rows_cached` of n_rows rows can be resident. If that is less
 * than half of the rows, the range has one slot per cached row. Otherwise it has rows / 0.6 slots
 * in sets, and 9 % of that in spills (more in a range of fewer than 128 sets). Then 3 rows in 10^8
 * find no slot, so none in most tables. Without spills it would be 2 in 100, and with one slot per
 * row 1 in 7. */
uint64_t hps_embed_range_bytes(uint32_t row_bytes, uint64_t n_rows, uint64_t n_rows_cached);
/* INVALID: row_bytes, or bytes_max is less than the smallest range takes. EXHAUSTED: the arena has
 * no free piece of that size; the text names the needed and free bytes. AGAIN: there will be such a
 * piece once the work that uses retired ranges has ended. NO_MEMORY: of the host. DATA_LOSS. */
hps_status hps_embed_range_new(struct hps_embed_cache *cache,
                               const struct hps_embed_range_config *config,
                               struct hps_embed_range **out_range, struct hps_error *err)
    HPS_MUST_CHECK;
/* Whether its changes can be staged. A new range is cleared first, a large one in pieces; each
 * hps_embed_advance may queue the next piece. Until then lookups in the range miss every key. */
bool hps_embed_range_ready(const struct hps_embed_range *range);
/* Release its memory once all work in flight has ended. From now on lookups in the range miss every
 * key, and its changes are ignored. */
void hps_embed_range_retire(struct hps_embed_range *range);
/* Retires the range. No later submit or stage may name it. Tickets in flight stay valid. No effect
 * if NULL. */
void hps_embed_range_free(struct hps_embed_range *range);

struct hps_embed_range_usage {
    uint64_t bytes;   /* of the arena; 0 once it is retired and unused */
    uint64_t n_slots; /* in sets and spills */
    uint64_t n_rows; /* resident after the last slice known to be applied; the next four likewise */
    uint64_t n_inserted;
    uint64_t n_evicted;
    uint64_t n_erased;
    uint64_t n_refused;    /* insertions that lost against resident rows */
    uint64_t n_stale;      /* insertions that their guard refused */
    double resident_share; /* n_rows divided by the rows of the table; at most 1 */
};
void hps_embed_range_usage(const struct hps_embed_range *range,
                           struct hps_embed_range_usage *out_usage);

struct hps_embed_cache_usage {
    uint64_t arena_bytes;
    uint64_t free_bytes;
    uint64_t free_piece_bytes_max; /* the largest free piece */
    uint32_t n_batches;            /* in flight */
    uint32_t n_slices;             /* of changes, in flight */
};
void hps_embed_cache_usage(const struct hps_embed_cache *cache,
                           struct hps_embed_cache_usage *out_usage);

/* ---- regions: destinations of rows ----------------------------------------------------------- */

/* Host memory that kernels and copy engines may write, or device memory. Host memory is registered
 * once, not per request; it is the caller's and must stay until the region is freed. Aligned to 16
 * bytes. Each part of a lookup holds a reference until the device has written its rows. */
struct hps_embed_region;
hps_status hps_embed_region_host(struct hps_embed_cache *cache, void *memory, size_t size,
                                 struct hps_embed_region **out_region, struct hps_error *err)
    HPS_MUST_CHECK;
hps_status hps_embed_region_device(struct hps_embed_cache *cache, hps_devptr memory, size_t size,
                                   struct hps_embed_region **out_region, struct hps_error *err)
    HPS_MUST_CHECK;
/* OK: the region is freed; AGAIN: lookups still write to it, even if their tickets were released.
 * After the loss of the device it is OK once the driver cannot write any more. If that cannot be
 * known (a kernel hangs), it stays AGAIN, and the memory must never be reused. No effect if
 * NULL. */
hps_status hps_embed_region_free(struct hps_embed_region *region) HPS_MUST_CHECK;

/* ---- lookups --------------------------------------------------------------------------------- */

/* The form of rows that are not wanted as stored. */
struct hps_embed_shape {
    enum hps_dtype stored; /* the type of the range's rows */
    uint32_t dim;          /* values per row; must match row_bytes of the range */
    enum hps_dtype wanted; /* FP32, FP16 or BF16 */
    /* NONE: one row per key. Otherwise one row per bag: bag b has the next offsets[b + 1] -
     * offsets[b] keys of the part. The bags must contain all keys of the part. */
    enum hps_pooling pooling;
    uint32_t n_bags;
    const uint32_t *offsets; /* [n_bags + 1] never falling */
    const uint8_t *weights;  /* [n] float LE, any alignment; NULL: all are 1 */
};

/* Keys of one table. The row of keys[i] goes to region + offset + i * stride if it is cached. With
 * pooling, the row of bag b goes to region + offset + b * stride if the bag has keys and all are
 * cached. Other places are undefined afterwards: overwrite them before anyone else reads them.
 * Bytes between rows are not written. */
struct hps_embed_part {
    struct hps_embed_range *range;
    const uint8_t *keys; /* [n] int64 LE, any alignment; duplicates are allowed */
    uint32_t n;
    struct hps_embed_region *region;
    uint64_t offset;
    uint32_t stride;                     /* 0: packed rows */
    const struct hps_embed_shape *shape; /* NULL: rows as stored, at any address; otherwise at
                                            multiples of the size of a value */
};

/* Begin a lookup of all parts: one launch, and a second one if any part has bags. The data of the
 * parts is borrowed for the call. owner: the caller owns the ticket.
 * error   AGAIN: too much work is in flight, so poll and retry; INVALID: more keys, parts or bytes
 *         than a batch takes, so split; DATA_LOSS: the device is lost */
hps_status hps_embed_submit(struct hps_embed_cache *cache, const struct hps_embed_part *parts,
                            uint32_t n_parts, struct hps_embed_ticket **out_ticket) HPS_MUST_CHECK;
/* OK: every row is at its destination; AGAIN; DATA_LOSS: the device is lost (also after timeout_us
 * without progress), and the contents of the regions are undefined */
hps_status hps_embed_poll(struct hps_embed_ticket *ticket) HPS_MUST_CHECK;
/* After OK: bit i % 32 of word i / 32 is set if keys[i] of the part was cached. Bits after the last
 * key are 0. Valid until the ticket is released. */
const uint32_t *hps_embed_hits(const struct hps_embed_ticket *ticket, uint32_t part);
/* Allowed at any time, and does not wait. The regions of an unfinished lookup stay referenced until
 * its last event. No effect if NULL. */
void hps_embed_release(struct hps_embed_ticket *ticket);

/* ---- changes --------------------------------------------------------------------------------- */

enum hps_embed_op {
    HPS_EMBED_INSERT, /* rows found in lower tiers; ignored if the key is resident; may lose by
                         frequency */
    HPS_EMBED_INSERT_WANTED, /* likewise, but never loses: if set and spill are full, it evicts the
                                row with the fewest lookups, even if it has fewer itself */
    HPS_EMBED_UPDATE,        /* replaces resident rows only */
    HPS_EMBED_ERASE          /* rows: NULL */
};

/* Queue changes. They are applied before any lookup submitted later, and queued on the device no
 * later than by the next hps_embed_advance. If a key is given twice, the last one counts. guard
 * (NULL: all are fresh) is called for each key of an insertion, and only in this call.
 * out_n_taken: keys taken, from the front; if fewer than n, the caller stages the rest again later
 * error   AGAIN: the cache is full of changes, or the range is not ready, and nothing was taken;
 *         DATA_LOSS: the device is lost */
hps_status hps_embed_stage(struct hps_embed_cache *cache, struct hps_embed_range *range,
                           enum hps_embed_op op, const hps_key *keys, const uint8_t *rows,
                           uint32_t n, const struct hps_insert_guard *guard, uint32_t *out_n_taken)
    HPS_MUST_CHECK;

/* Bytes of rows that are staged and not known to be applied. */
uint64_t hps_embed_staged_bytes(const struct hps_embed_cache *cache);

/* Notice completed work (batches, changes, clearing) and queue the staged changes on the device.
 * Cheap; call it in every turn of the loop. */
void hps_embed_advance(struct hps_embed_cache *cache);
/* The thread may sleep: nothing is in flight or staged, and no memory waits to be released. Also
 * true after a loss. */
bool hps_embed_idle(const struct hps_embed_cache *cache);
/* Whether the device is lost, as noticed so far. */
bool hps_embed_lost(const struct hps_embed_cache *cache);

#endif

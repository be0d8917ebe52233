/* SPDX-License-Identifier: Apache-2.0
 *
 * The embedding cache: hot rows in the memory of one device, for all tables of all resident
 * versions. No type of a driver (CUDA) is visible here.
 *
 * A *range* is the cache of one table of one version: sets of 8 keys (64 bytes), a row per key, a
 * *spill* per 32 sets for rows whose set is full, and a sketch of how often keys are asked for. All
 * ranges lie in one arena that is allocated once.
 *
 *     look-up    submit ─▶ poll … OK ─▶ hits of each part ─▶ release
 *     change     stage ─▶ (applied in the order of submit and stage, between look-ups)
 *
 * All tables of all parts of a submitted batch are one launch. The kernel only reads the cache:
 * rows that hit are stored where they are wanted, one bit per key says which. Changes are staged
 * beside running look-ups and applied in stream order: a look-up submitted after stage has returned
 * sees them, one submitted before does not, and none sees half a row. Hence no locks, versions or
 * epochs on the device.
 *
 * A lost device: every call that can fail answers DATA_LOSS from then on, for the life of the
 * cache; releasing, freeing and closing still work.
 *
 * Thread: one, the device's, for all calls of a cache; no call blocks or allocates device memory
 * but open, close and the making and freeing of host regions.
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
    HPS_EMBED_BATCH_KEYS_MAX = 65536, /* of one submit */
    HPS_EMBED_SLICE_ROWS_MAX = 16384, /* of one application of changes, and of one stage */
    HPS_EMBED_ROW_BYTES_MAX = 65536,
};

/* Zeroes: the defaults. */
struct hps_embed_cache_config {
    uint64_t arena_bytes;      /* for ranges; required */
    uint64_t gather_bytes;     /* device memory for rows on their way to the host; 64 MiB */
    uint64_t stage_bytes;      /* host and device memory for rows under way, each; 32 MiB */
    uint64_t timeout_us;       /* without any progress, then the device is lost; 5 s */
    uint64_t seed;             /* of where keys go; 0: the secret of the process */
    uint32_t n_batches;        /* in flight at most; 4 */
    uint32_t batch_keys_max;   /* 65,536 */
    uint32_t batch_parts_max;  /* 4,096 */
    uint32_t mapped_bytes_max; /* results up to this size are stored by the kernel into host memory;
                                  larger ones gathered and copied out; 65,536. Rows that do not lie
                                  close together are always stored */
    uint32_t sample_rate;      /* one key in so many is counted; 8. 1 in tests */
};

/* Everything is allocated here, for good. NO_MEMORY names what was needed and what was free. */
hps_status hps_embed_cache_open(struct hps_device *device,
                                const struct hps_embed_cache_config *config,
                                struct hps_embed_cache **out_cache, struct hps_error *err)
    HPS_MUST_CHECK;
/* Waits for what is under way, unless the device is lost. Every ticket is released, every range and
 * region freed (but regions that answer AGAIN for ever). NULL is legal. */
void hps_embed_cache_close(struct hps_embed_cache *cache);

/* ---- ranges ---------------------------------------------------------------------------------- */

struct hps_embed_range_config {
    uint32_t row_bytes; /* 1 to ROW_BYTES_MAX, in memory whole quads of 16; a multiple of 16 is
                           copied fastest, one that is no multiple of 4 slowly */
    uint64_t n_rows;    /* that the table has */
    uint64_t bytes_max; /* what the range may take of the arena; it takes no more than it needs for
                           all rows of the table */
};

/* Memory that a range takes so that `n_rows_cached` of n_rows rows can be resident: slots as rows
 * where less than half of them are to be cached, else rows / 0.6 in sets and 9 % of that in spills
 * (more in a range of fewer than 128 sets): then 3 rows in 10^8 have no place, which is none of
 * most tables. Without spills it would be 2 in a hundred, and one in seven at slots = rows. */
uint64_t hps_embed_range_bytes(uint32_t row_bytes, uint64_t n_rows, uint64_t n_rows_cached);
/* INVALID: row_bytes, or bytes_max is less than the smallest range takes. EXHAUSTED: the arena has
 * no room for it in one piece (needed and free bytes are named). AGAIN: it will have, as soon as
 * what retired ranges are still used for has ended. */
hps_status hps_embed_range_new(struct hps_embed_cache *cache,
                               const struct hps_embed_range_config *config,
                               struct hps_embed_range **out_range, struct hps_error *err)
    HPS_MUST_CHECK;
/* Whether its changes can be staged: a new range is cleared first, a large one in pieces, each of
 * which hps_embed_advance gives to the device. Until then its lookups miss every key. */
bool hps_embed_range_ready(const struct hps_embed_range *range);
/* Give its memory to others, as soon as what is under way has ended. From now on its look-ups miss
 * every key, and its changes come to nothing. */
void hps_embed_range_retire(struct hps_embed_range *range);
/* Retires it. No submit or stage may name it any more; tickets that are under way may be used. */
void hps_embed_range_free(struct hps_embed_range *range);

struct hps_embed_range_usage {
    uint64_t bytes;   /* of the arena; 0 once it is retired and nothing uses it */
    uint64_t n_slots; /* of sets and spills */
    uint64_t n_rows;  /* resident, as of the last application that was seen to end; so are: */
    uint64_t n_inserted;
    uint64_t n_evicted;
    uint64_t n_erased;
    uint64_t n_refused;    /* insertions that lost against the rows that were there */
    uint64_t n_stale;      /* insertions that their guard kept out */
    double resident_share; /* n_rows of the rows that the table has; 1 at most */
};
void hps_embed_range_usage(const struct hps_embed_range *range,
                           struct hps_embed_range_usage *out_usage);

struct hps_embed_cache_usage {
    uint64_t arena_bytes;
    uint64_t free_bytes;
    uint64_t free_piece_bytes_max; /* in one piece */
    uint32_t n_batches;            /* under way */
    uint32_t n_slices;             /* of changes, under way */
};
void hps_embed_cache_usage(const struct hps_embed_cache *cache,
                           struct hps_embed_cache_usage *out_usage);

/* ---- regions: where rows go ------------------------------------------------------------------ */

/* Host memory that kernels and copy engines may write (registered once, not per request; the
 * caller's, and it must stay until the region is freed) or device memory. Aligned to 16 bytes.
 * Whoever writes it asynchronously holds a reference: a look-up takes one for each part. */
struct hps_embed_region;
hps_status hps_embed_region_host(struct hps_embed_cache *cache, void *memory, size_t size,
                                 struct hps_embed_region **out_region, struct hps_error *err)
    HPS_MUST_CHECK;
hps_status hps_embed_region_device(struct hps_embed_cache *cache, hps_devptr memory, size_t size,
                                   struct hps_embed_region **out_region, struct hps_error *err)
    HPS_MUST_CHECK;
/* Gives it up: OK, and it is gone, or AGAIN while look-ups still write to it, whatever became of
 * their tickets. After a lost device OK only once the driver cannot write any more: where that
 * cannot be known (a kernel that hangs) AGAIN for ever, and the memory must never be used again. */
hps_status hps_embed_region_free(struct hps_embed_region *region) HPS_MUST_CHECK;

/* ---- look-ups -------------------------------------------------------------------------------- */

/* Rows that are not wanted as they are stored. */
struct hps_embed_shape {
    enum hps_dtype stored; /* of the range's rows, */
    uint32_t dim;          /* whose row_bytes are those of so many values */
    enum hps_dtype wanted; /* FP32, FP16 or BF16 */
    /* NONE: a row for each key. Else one for each bag: bag b has the next
     * offsets[b + 1] - offsets[b] keys of the part, all of which they are. */
    enum hps_pooling pooling;
    uint32_t n_bags;
    const uint32_t *offsets; /* [n_bags + 1] never falling */
    const uint8_t *weights;  /* [n] float LE, any alignment; NULL: all are 1 */
};

/* Keys of one table; the row of keys[i] goes to region + offset + i * stride if it is cached, and
 * what bag b comes to goes to region + offset + b * stride if it has keys that are all cached. What
 * is in the other places afterwards is undefined: overwrite it before anybody else sees it. Bytes
 * between rows are not touched. */
struct hps_embed_part {
    struct hps_embed_range *range;
    const uint8_t *keys; /* [n] int64 LE, any alignment, duplicates are legal */
    uint32_t n;
    struct hps_embed_region *region;
    uint64_t offset;
    uint32_t stride;                     /* 0: rows lie close together */
    const struct hps_embed_shape *shape; /* NULL: rows as they are stored, at any address; else at
                                            multiples of the bytes of a value */
};

/* Begin a look-up of all parts, in one launch, and one more that adds rows if bags are among them.
 * What the parts point to is borrowed for the call. owner: the caller owns the ticket.
 * error   AGAIN: too much is under way, poll and try again; INVALID: more keys, parts or bytes than
 *         a batch takes (the caller splits); DATA_LOSS: the device is gone */
hps_status hps_embed_submit(struct hps_embed_cache *cache, const struct hps_embed_part *parts,
                            uint32_t n_parts, struct hps_embed_ticket **out_ticket) HPS_MUST_CHECK;
/* OK: every row is where it is wanted; AGAIN; DATA_LOSS: the device is gone (also after timeout_us
 * without any progress): what the regions hold is undefined */
hps_status hps_embed_poll(struct hps_embed_ticket *ticket) HPS_MUST_CHECK;
/* After OK. Bit i % 32 of word i / 32: keys[i] of the part was cached; bits behind the last key are
 * 0. Until the ticket is released. */
const uint32_t *hps_embed_hits(const struct hps_embed_ticket *ticket, uint32_t part);
/* At any time: nothing of an unfinished look-up is waited for, its regions stay referenced until
 * its last event. */
void hps_embed_release(struct hps_embed_ticket *ticket);

/* ---- changes --------------------------------------------------------------------------------- */

enum hps_embed_op {
    HPS_EMBED_INSERT, /* rows found below: not in place of a row that is there; by frequency */
    HPS_EMBED_INSERT_WANTED, /* likewise, but never refused: where set and spill are full the row
                                that was asked for least goes, even if this one was less */
    HPS_EMBED_UPDATE,        /* only keys that are there */
    HPS_EMBED_ERASE          /* rows: NULL */
};

/* Queue changes, to be applied before any look-up submitted later, and at the latest by the next
 * hps_embed_advance. Of a key given twice the last one counts. guard (NULL: all are fresh) is asked
 * per key for insertions, here and only here.
 * out_n_taken: keys taken, from the front; fewer than n: the rest must be staged again later
 * error   AGAIN: the cache is full of changes, or the range is not ready; nothing was taken */
hps_status hps_embed_stage(struct hps_embed_cache *cache, struct hps_embed_range *range,
                           enum hps_embed_op op, const hps_key *keys, const uint8_t *rows,
                           uint32_t n, const struct hps_insert_guard *guard, uint32_t *out_n_taken)
    HPS_MUST_CHECK;

/* Of rows that were staged and are not known to be applied yet. */
uint64_t hps_embed_staged_bytes(const struct hps_embed_cache *cache);

/* Take notice of what has ended (batches, changes, memory of retired ranges, regions) and begin
 * what was staged. Cheap; call it in every turn. */
void hps_embed_advance(struct hps_embed_cache *cache);
/* Nothing is under way: the thread may sleep until somebody asks for something. */
bool hps_embed_idle(const struct hps_embed_cache *cache);
/* Whether the device is gone, as far as was noticed. */
bool hps_embed_lost(const struct hps_embed_cache *cache);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of the embedding cache. All of it runs on the device's thread.
 *
 *     cache.c    opening, closing, noticing completed work, loss of the device
 *     range.c    the arena, ranges and their size
 *     region.c   destinations of rows
 *     batch.c    lookups
 *     pack.c     encoding a lookup for the device
 *     stage.c    changes: taking them from the caller
 *     slice.c    changes: sorting and applying them
 *
 * Four streams, ordered by events alone:
 *
 *     in      clears new ranges, copies rows and records of slices, piece by piece
 *     work    lookups and applications of slices; waits for `in` before a slice
 *     out     copies rows from the gather buffer to the host; waits for `work`
 *     watch   counts keys in sketches; waits for `in` when a range gets its first rows
 */
#ifndef HPS_CACHE_EMBED_INTERNAL_H
#define HPS_CACHE_EMBED_INTERNAL_H

#include "cache/embed/cache.h"
#include "cache/embed/kernels.h"
#include "cache/embed/ring.h"

enum {
    HPS_EMBED_SLICES = 8,                 /* one being filled, the others in flight */
    HPS_EMBED_SLICE_RANGES = 1024,        /* per slice */
    HPS_EMBED_PIECE_IN_BYTES = 256 << 10, /* larger pieces would block the copy engine too long */
    HPS_EMBED_PIECE_OUT_BYTES = 1 << 20,
    HPS_EMBED_PIECE_CLEAR_BYTES = 8 << 20, /* of new ranges; a few us each, with changes between */
    /* A sketch is halved after WINDOW_KEYS lookups and WINDOW_COUNTED counted keys per slot. 40
     * keys give 0.7 to 1.8 points more hit rate than 10, as a rule. With 1 of 8
     * counted, drift of the hot keys costs no more hit rate. */
    HPS_EMBED_WINDOW_KEYS = 40,
    HPS_EMBED_WINDOW_COUNTED = 10,
};

/* `bytes` rounded up to a multiple of `step`. */
static inline uint64_t hps_embed_align_up(uint64_t bytes, uint64_t step)
{
    return (bytes + step - 1) / step * step;
}

/* ---- ranges ---------------------------------------------------------------------------------- */

/* In the cache's list while it holds memory, in the order of addresses. */
struct hps_embed_range {
    struct hps_embed_cache *cache;
    struct hps_embed_range *previous, *next;
    struct hps_embed_range_config config;
    struct hps_embed_range_usage usage;
    struct hps_embed_desc desc;
    uint64_t offset;    /* in the arena */
    uint64_t n_cleared; /* bytes queued on `in` for clearing; ready once all are */
    uint64_t n_counted; /* keys that the sketch counted since it was last halved */
    uint64_t slice;     /* number of the last slice that names it, and its index there */
    uint32_t slice_index;
    uint32_t n_uses; /* in batches and slices in flight */
    bool live;       /* may have rows: a slice for it has been queued on the device */
    bool retired;
    bool freed;
};

struct hps_embed_region {
    struct hps_embed_cache *cache;
    void *host; /* NULL: device memory */
    hps_devptr memory;
    uint64_t size;
    uint32_t n_uses;
};

/* ---- batches --------------------------------------------------------------------------------- */

struct hps_embed_use {
    struct hps_embed_range *range;
    struct hps_embed_region *region;
    uint64_t offset;   /* in the region */
    uint64_t bytes;    /* of its rows, which are packed if they are gathered */
    hps_devptr gather; /* where its rows are before they are copied out; 0: they are not gathered */
    uint32_t first_tile;
};

/* One lookup at a time. Its host memory that kernels access is one block. */
struct hps_embed_ticket {
    struct hps_embed_cache *cache;
    uint8_t *host; /* struct hps_embed_block */
    hps_devptr device;
    hps_devptr blocks_done;
    struct hps_event *worked, *copied_out, *watched;
    struct hps_embed_use *uses; /* [batch_parts_max] */
    uint32_t n_parts;
    uint32_t n_tiles;
    uint32_t n_bags;
    uint32_t bag_lanes; /* for the widest of its bags */
    uint32_t sequence;
    uint64_t gather_begin; /* positions in the ring; equal: gathers nothing */
    uint64_t gather_end;
    hps_status result;
    bool held;    /* by the caller */
    bool running; /* on the device, or not yet seen to have ended */
    bool watches; /* its keys are counted */
};

/* ---- slices ---------------------------------------------------------------------------------- */

/* Changes that one launch applies. One block carries descriptors, groups and entries; the rows are
 * in the staging ring. */
struct hps_embed_slice {
    uint8_t *host;
    hps_devptr device;
    struct hps_embed_counts *counts; /* [SLICE_RANGES] host memory */
    hps_devptr counts_mapped;        /* the same memory, for the kernel */
    hps_devptr counts_device;
    hps_devptr blocks_done;
    struct hps_event *copied_in, *applied;
    struct hps_embed_range *ranges[HPS_EMBED_SLICE_RANGES];
    uint32_t n_ranges;
    uint32_t n_entries;
    uint64_t rows_end; /* position in the staging ring */
};

/* ---- the cache ------------------------------------------------------------------------------- */

/* The staging ring: rows to be copied to the device, at equal offsets in host and device memory. */
struct hps_embed_stage {
    uint8_t *host;
    hps_devptr device;
    struct hps_embed_ring ring;
    uint64_t unsent_begin, unsent_end; /* offsets of the rows not yet queued on `in` */
};

/* The host's record of changes until their slice is closed. */
struct hps_embed_intake {
    struct hps_embed_entry *entries; /* [SLICE_ROWS_MAX] of the open slice, in the order staged */
    uint64_t *order, *order_other;   /* [SLICE_ROWS_MAX] */
    uint32_t *seen;                  /* [SEEN] a hash set of the keys of this call of stage */
    uint8_t *repeated;               /* [SLICE_ROWS_MAX] the key occurs again later */
};

/* New ranges are cleared in pieces. All ranges together have at most one piece on the device. */
struct hps_embed_clearing {
    struct hps_event *done; /* recorded after the piece on the device */
    uint64_t bytes;         /* size of that piece; 0: none is on the device */
    uint32_t n_ranges;      /* ranges with pieces still to queue */
};

struct hps_embed_cache {
    struct hps_device *device;
    struct hps_embed_cache_config config;
    struct hps_stream_q *in, *work, *out, *watch;
    bool lost;
    uint64_t progress_us; /* when work was last seen to begin or end */

    hps_devptr arena;
    hps_devptr small; /* counters, and the empty index */
    struct hps_embed_range *ranges;
    struct hps_embed_desc empty; /* of the empty index, used for retired ranges */
    uint32_t n_retiring;         /* of `ranges` */
    struct hps_embed_clearing clearing;

    struct hps_embed_ticket *tickets; /* [n_batches] */
    uint32_t sequence;
    uint32_t n_running; /* tickets */
    hps_devptr gather;
    struct hps_embed_ring gather_ring;
    hps_devptr found; /* struct hps_embed_found [batch_keys_max] of the batch that `work` runs */

    struct hps_embed_slice *slices; /* [SLICES] number n is slices[n % SLICES] */
    uint64_t n_opened;              /* number of the last slice opened, from 1 */
    uint64_t n_closed;              /* of the last slice queued on the device */
    uint64_t n_applied;             /* of the last slice seen to have ended */
    struct hps_embed_stage stage;
    struct hps_embed_intake intake;
};

enum { HPS_EMBED_SEEN = 2 * HPS_EMBED_SLICE_ROWS_MAX };

/* ---- cache.c --------------------------------------------------------------------------------- */

/* Mark the device lost. Returns DATA_LOSS, as every call does from now on. */
hps_status hps_embed_lose(struct hps_embed_cache *cache);
/* Work was seen to end: restarts the time-out. */
void hps_embed_progress(struct hps_embed_cache *cache);
/* Call these before and after queueing work on the device. The time that the driver took to accept
 * the work does not count towards the time-out. begins returns the time to pass to given. */
uint64_t hps_embed_begins(struct hps_embed_cache *cache);
void hps_embed_given(struct hps_embed_cache *cache, uint64_t began_us);
/* Whether an event has completed. Notices the loss of the device. */
bool hps_embed_ended(struct hps_embed_cache *cache, struct hps_event *event);
/* Called while a caller waits for an event: notices a loss or a time-out. */
void hps_embed_check(struct hps_embed_cache *cache, struct hps_event *event);

/* ---- range.c --------------------------------------------------------------------------------- */

struct hps_embed_layout {
    uint32_t n_sets;
    uint32_t row_stride;
    uint64_t n_slots; /* in sets and spills */
    uint64_t rows;    /* offsets in the range */
    uint64_t sketch;
    uint64_t bytes;
};
/* The size of sets, spills and marks. */
uint64_t hps_embed_index_bytes(uint32_t n_sets);
/* The layout with the most sets that fits into bytes_max; n_sets 0: none fits. */
void hps_embed_layout(uint32_t row_bytes, uint64_t bytes_max, uint64_t n_sets_max,
                      struct hps_embed_layout *out_layout);
/* Initialize a descriptor for sets at an address, and choose its markers. Other fields are 0. */
void hps_embed_desc_init(struct hps_embed_desc *desc, uint64_t sets, uint32_t n_sets,
                         uint64_t seed);
/* Mark all ways of a range as empty. */
hps_status hps_embed_clear(struct hps_stream_q *stream, const struct hps_embed_desc *desc)
    HPS_MUST_CHECK;
/* Queue the next piece of clearing if the last one has ended. */
void hps_embed_ranges_advance(struct hps_embed_cache *cache);
void hps_embed_range_use(struct hps_embed_range *range);
void hps_embed_range_unuse(struct hps_embed_range *range);

/* ---- pack.c ---------------------------------------------------------------------------------- */

/* Offsets in the memory that host and kernels share for a ticket; the flag is at 0. */
struct hps_embed_block {
    size_t parts, tiles, hits, bags, keys, weights, end;
};
struct hps_embed_block hps_embed_block_of(const struct hps_embed_cache_config *config);

/* The size of a batch. */
struct hps_embed_plan {
    uint64_t n_keys;
    uint64_t gather_bytes; /* 0: the kernel stores rows at their destination */
};
/* INVALID: more than a batch takes. */
hps_status hps_embed_plan(const struct hps_embed_cache *cache, const struct hps_embed_part *parts,
                          uint32_t n_parts, struct hps_embed_plan *out_plan) HPS_MUST_CHECK;
/* Write the parts into the ticket and take references to their ranges and regions. gather: device
 * memory for the rows to be gathered; 0: no part gathers. */
void hps_embed_pack(struct hps_embed_ticket *ticket, const struct hps_embed_part *parts,
                    uint32_t n_parts, hps_devptr gather);

/* ---- batch.c --------------------------------------------------------------------------------- */

/* Notice lookups that have ended. */
void hps_embed_batches_advance(struct hps_embed_cache *cache);
/* When the cache closes: release the ranges of lookups that were not seen to end. */
void hps_embed_batches_drop(struct hps_embed_cache *cache);

/* ---- stage.c, slice.c ------------------------------------------------------------------------ */

size_t hps_embed_slice_bytes(void);
/* Queue the staged changes on the device. No effect without changes. */
hps_status hps_embed_slice_close(struct hps_embed_cache *cache) HPS_MUST_CHECK;
/* The slice being filled; a new one is opened if needed. NULL: all slices are in flight. */
struct hps_embed_slice *hps_embed_slice_open(struct hps_embed_cache *cache);
void hps_embed_slices_advance(struct hps_embed_cache *cache);
/* The sort key of a change: range, set (so changes of one block are neighbours), and the order in
 * which it was staged. */
enum { HPS_EMBED_ORDER_NUMBER_BITS = 14 };
static inline uint64_t hps_embed_order(uint32_t range, uint32_t set, uint32_t number)
{
    return ((uint64_t)range << 32 | set) << HPS_EMBED_ORDER_NUMBER_BITS | number;
}
static_assert(1 << HPS_EMBED_ORDER_NUMBER_BITS == HPS_EMBED_SLICE_ROWS_MAX, "as many numbers");
/* Copy the rows of the staging ring that are not yet queued on `in`. */
hps_status hps_embed_rows_send(struct hps_embed_cache *cache) HPS_MUST_CHECK;

#endif

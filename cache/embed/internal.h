/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the embedding cache share. The device's thread, all of it.
 *
 *     cache.c    opening, closing, taking notice of what has ended, loss
 *     range.c    the arena, ranges, their size
 *     region.c   where rows go
 *     batch.c    look-ups
 *     pack.c     what a look-up tells the device
 *     stage.c    changes: taking them in
 *     slice.c    changes: sorting and applying them
 *
 * Four streams, ordered by events alone:
 *
 *     in      clearing of new ranges, rows and records of slices, piece by piece
 *     work    look-ups and applications of slices; waits for `in` before a slice
 *     out     rows from the gather buffer to the host; waits for `work`
 *     watch   counts of the sketch; waits for `in` when a range gets its first rows
 */
#ifndef HPS_CACHE_EMBED_INTERNAL_H
#define HPS_CACHE_EMBED_INTERNAL_H

#include "cache/embed/cache.h"
#include "cache/embed/kernels.h"
#include "cache/embed/ring.h"

enum {
    HPS_EMBED_SLICES = 8,                 /* one being filled, the rest under way */
    HPS_EMBED_SLICE_RANGES = 1024,        /* of one slice */
    HPS_EMBED_PIECE_IN_BYTES = 256 << 10, /* larger ones would hold the copy engine too long */
    HPS_EMBED_PIECE_OUT_BYTES = 1 << 20,
    HPS_EMBED_PIECE_CLEAR_BYTES = 8 << 20, /* of new ranges; a few us, and changes go between */
    /* A sketch is halved after WINDOW_KEYS looked-up keys per slot, but not before WINDOW_COUNTED
     * of them were counted. 40 instead of 10 gains 0.7 to 1.8 points of hit rate in most cases. */
    HPS_EMBED_WINDOW_KEYS = 40,
    HPS_EMBED_WINDOW_COUNTED = 10,
};

/* `bytes`, or more, so that it is a multiple of `step`. */
static inline uint64_t hps_embed_align_up(uint64_t bytes, uint64_t step)
{
    return (bytes + step - 1) / step * step;
}

/* ---- ranges ---------------------------------------------------------------------------------- */

/* In the cache's list while it holds memory, in the order of the arena. */
struct hps_embed_range {
    struct hps_embed_cache *cache;
    struct hps_embed_range *previous, *next;
    struct hps_embed_range_config config;
    struct hps_embed_range_usage usage;
    struct hps_embed_desc desc;
    uint64_t offset;    /* in the arena */
    uint64_t n_cleared; /* bytes queued on `in` for clearing; the range is ready at all */
    uint64_t n_counted; /* by the sketch, since it was halved */
    uint64_t slice;     /* number of the last slice that names it, and where there */
    uint32_t slice_index;
    uint32_t n_uses; /* by batches and slices under way */
    bool live;       /* may have rows: a slice for it has been given to the device */
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
    uint64_t bytes;    /* of its rows, which lie close together if they are gathered */
    hps_devptr gather; /* where its rows lie before they are copied out; 0: they do not */
    uint32_t first_tile;
};

/* One look-up at a time. Host memory of it that kernels see lies in one block. */
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
    uint32_t bag_lanes; /* that the widest of its bags wants */
    uint32_t sequence;
    uint64_t gather_begin; /* positions in the ring; the same: gathers nothing */
    uint64_t gather_end;
    hps_status result;
    bool held;    /* by the caller */
    bool running; /* on the device, as far as is known */
    bool watches; /* its keys are counted */
};

/* ---- slices ---------------------------------------------------------------------------------- */

/* Changes that are applied by one launch. Descriptors, groups and entries travel in one block, the
 * rows in the staging ring. */
struct hps_embed_slice {
    uint8_t *host;
    hps_devptr device;
    struct hps_embed_counts *counts; /* [SLICE_RANGES] host memory */
    hps_devptr counts_mapped;        /* the same, for the kernel */
    hps_devptr counts_device;
    hps_devptr blocks_done;
    struct hps_event *copied_in, *applied;
    struct hps_embed_range *ranges[HPS_EMBED_SLICE_RANGES];
    uint32_t n_ranges;
    uint32_t n_entries;
    uint64_t rows_end; /* position in the staging ring */
};

/* ---- the cache ------------------------------------------------------------------------------- */

/* The staging ring: rows on their way to the device, in host memory and in device memory alike. */
struct hps_embed_stage {
    uint8_t *host;
    hps_devptr device;
    struct hps_embed_ring ring;
    uint64_t unsent_begin, unsent_end; /* offsets: not given to `in` yet */
};

/* What is known of changes on the host until their slice is closed. */
struct hps_embed_intake {
    struct hps_embed_entry *entries; /* [SLICE_ROWS_MAX] of the open slice, as they came */
    uint64_t *order, *order_other;   /* [SLICE_ROWS_MAX] */
    uint32_t *seen;                  /* [SEEN] places of a set: the keys of this stage */
    uint8_t *repeated;               /* [SLICE_ROWS_MAX] a later one follows */
};

/* New ranges are cleared in pieces. All ranges together have one piece on the device at a time. */
struct hps_embed_clearing {
    struct hps_event *done; /* behind the piece on the device */
    uint64_t bytes;         /* size of that piece; 0: the device is idle */
    uint32_t n_ranges;      /* ranges with pieces still to queue */
};

struct hps_embed_cache {
    struct hps_device *device;
    struct hps_embed_cache_config config;
    struct hps_stream_q *in, *work, *out, *watch;
    bool lost;
    uint64_t progress_us; /* when something was last seen to end, or to begin */

    hps_devptr arena;
    hps_devptr small; /* counters, and the empty index */
    struct hps_embed_range *ranges;
    struct hps_embed_desc empty; /* of the empty index: what retired ranges point at */
    uint32_t n_retiring;         /* of `ranges` */
    struct hps_embed_clearing clearing;

    struct hps_embed_ticket *tickets; /* [n_batches] */
    uint32_t sequence;
    uint32_t n_running; /* tickets */
    hps_devptr gather;
    struct hps_embed_ring gather_ring;
    hps_devptr found; /* struct hps_embed_found [batch_keys_max] of the batch that `work` is at */

    struct hps_embed_slice *slices; /* [SLICES] number n is slices[n % SLICES] */
    uint64_t n_opened;              /* the number of the last one opened, from 1 */
    uint64_t n_closed;              /* of the last one given to the device */
    uint64_t n_applied;             /* of the last one seen to have ended */
    struct hps_embed_stage stage;
    struct hps_embed_intake intake;
};

enum { HPS_EMBED_SEEN = 2 * HPS_EMBED_SLICE_ROWS_MAX };

/* ---- cache.c --------------------------------------------------------------------------------- */

/* The device is gone: from now on everything answers DATA_LOSS, and so does this. */
hps_status hps_embed_lose(struct hps_embed_cache *cache);
/* Something ended. */
void hps_embed_progress(struct hps_embed_cache *cache);
/* Something is about to be given to the device; and has been: however long a driver took to take
 * it, the device was not waited for meanwhile. */
uint64_t hps_embed_begins(struct hps_embed_cache *cache);
void hps_embed_given(struct hps_embed_cache *cache, uint64_t began_us);
/* Whether an event has completed; a device that is gone is noticed. */
bool hps_embed_ended(struct hps_embed_cache *cache, struct hps_event *event);
/* Something is waited for: notice if it will not come. */
void hps_embed_check(struct hps_embed_cache *cache, struct hps_event *event);

/* ---- range.c --------------------------------------------------------------------------------- */

struct hps_embed_layout {
    uint32_t n_sets;
    uint32_t row_stride;
    uint64_t n_slots; /* of sets and spills */
    uint64_t rows;    /* offsets in the range */
    uint64_t sketch;
    uint64_t bytes;
};
/* Of sets, spills and marks. */
uint64_t hps_embed_index_bytes(uint32_t n_sets);
/* The layout with the most sets that has room in bytes_max; n_sets 0: none has. */
void hps_embed_layout(uint32_t row_bytes, uint64_t bytes_max, uint64_t n_sets_max,
                      struct hps_embed_layout *out_layout);
/* A descriptor of sets at an address, with the markers that fit. The rest is 0. */
void hps_embed_desc_init(struct hps_embed_desc *desc, uint64_t sets, uint32_t n_sets,
                         uint64_t seed);
/* Make all ways of a range empty. */
hps_status hps_embed_clear(struct hps_stream_q *stream, const struct hps_embed_desc *desc)
    HPS_MUST_CHECK;
/* Queue the next piece of clearing once the last one has ended. */
void hps_embed_ranges_advance(struct hps_embed_cache *cache);
void hps_embed_range_use(struct hps_embed_range *range);
void hps_embed_range_unuse(struct hps_embed_range *range);

/* ---- pack.c ---------------------------------------------------------------------------------- */

/* Offsets in the memory of a ticket that host and kernels share; the flag is at 0. */
struct hps_embed_block {
    size_t parts, tiles, hits, bags, keys, weights, end;
};
struct hps_embed_block hps_embed_block_of(const struct hps_embed_cache_config *config);

/* What a batch comes to. */
struct hps_embed_plan {
    uint64_t n_keys;
    uint64_t gather_bytes; /* 0: the kernel writes where the rows are wanted */
};
/* INVALID: more than a batch takes. */
hps_status hps_embed_plan(const struct hps_embed_cache *cache, const struct hps_embed_part *parts,
                          uint32_t n_parts, struct hps_embed_plan *out_plan) HPS_MUST_CHECK;
/* Write the parts into the ticket, with references to all that they name. gather: where rows that
 * are gathered go; 0: none are. */
void hps_embed_pack(struct hps_embed_ticket *ticket, const struct hps_embed_part *parts,
                    uint32_t n_parts, hps_devptr gather);

/* ---- batch.c --------------------------------------------------------------------------------- */

/* Take notice of look-ups that have ended. */
void hps_embed_batches_advance(struct hps_embed_cache *cache);
/* At the cache's end: those that nobody saw end use no range any more. */
void hps_embed_batches_drop(struct hps_embed_cache *cache);

/* ---- stage.c, slice.c ------------------------------------------------------------------------ */

size_t hps_embed_slice_bytes(void);
/* Give what was staged to the device; nothing where there is nothing. */
hps_status hps_embed_slice_close(struct hps_embed_cache *cache) HPS_MUST_CHECK;
/* The slice that is being filled; one is begun if there is none. NULL: none is free. */
struct hps_embed_slice *hps_embed_slice_open(struct hps_embed_cache *cache);
void hps_embed_slices_advance(struct hps_embed_cache *cache);
/* What the changes of a slice are sorted by: range, set (so that those of one block are
 * neighbours), and the order they came in. */
enum { HPS_EMBED_ORDER_NUMBER_BITS = 14 };
static inline uint64_t hps_embed_order(uint32_t range, uint32_t set, uint32_t number)
{
    return ((uint64_t)range << 32 | set) << HPS_EMBED_ORDER_NUMBER_BITS | number;
}
static_assert(1 << HPS_EMBED_ORDER_NUMBER_BITS == HPS_EMBED_SLICE_ROWS_MAX, "as many numbers");
/* Give the rows that lie unsent in the staging ring to the copy engine. */
hps_status hps_embed_rows_send(struct hps_embed_cache *cache) HPS_MUST_CHECK;

#endif

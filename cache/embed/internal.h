/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of the embedding cache. All functions are for the device's thread.
 *
 *     cache.c    opening, closing, noticing completed work, loss of the device
 *     range.c    the arena, ranges and their size
 *     region.c   destinations of rows
 *     batch.c    lookups
 *     pack.c     encoding a lookup for the device
 *     stage.c    changes: taking them from the caller
 *     slice.c    changes: sorting and applying them
 *
 * The cache has four streams. Only events order the work of two streams:
 *
 *     in      clears new ranges, copies rows and records of slices to the device, piece by piece
 *     work    runs lookups and applies slices; waits for `in` before it applies a slice
 *     out     copies rows from the gather buffer to the host; waits for `work`
 *     watch   counts keys in sketches; waits for `in` when a range gets its first rows
 */
#ifndef HPS_CACHE_EMBED_INTERNAL_H
#define HPS_CACHE_EMBED_INTERNAL_H

#include "cache/embed/cache.h"
#include "cache/embed/kernels.h"
#include "cache/embed/ring.h"

enum {
    HPS_EMBED_SLICES = 8,                 /* one is filled while 7 are in flight */
    HPS_EMBED_SLICE_RANGES = 1024,        /* most ranges of a slice */
    HPS_EMBED_PIECE_IN_BYTES = 256 << 10, /* most bytes per copy to the device; a larger copy would
                                             block the copy engine too long */
    HPS_EMBED_PIECE_OUT_BYTES = 1 << 20,  /* most bytes per copy to the host */
    /* Most bytes that are being cleared on the device at one time. A piece takes a few
     * microseconds, and changes can run between two pieces. */
    HPS_EMBED_PIECE_CLEAR_BYTES = 8 << 20,
    /* A sketch is halved when, per slot of its range, WINDOW_KEYS keys were looked up and at least
     * WINDOW_COUNTED of them were counted. With 40 instead of 10 for WINDOW_KEYS, the hit rate is
     * usually 0.7 to 1.8 percentage points higher. With a sample rate of 8, it is not lower after
     * the hot keys have changed. */
    HPS_EMBED_WINDOW_KEYS = 40,
    HPS_EMBED_WINDOW_COUNTED = 10,
};

/* `bytes` rounded up to a multiple of `step`. */
static inline uint64_t hps_embed_align_up(uint64_t bytes, uint64_t step)
{
    return (bytes + step - 1) / step * step;
}

/* ---- ranges ---------------------------------------------------------------------------------- */

struct hps_embed_range {
    struct hps_embed_cache *cache;
    struct hps_embed_range *previous, *next; /* neighbours in cache->ranges */
    struct hps_embed_range_config config;
    struct hps_embed_range_usage usage;
    struct hps_embed_desc desc; /* the description of the range for the device */
    uint64_t offset;            /* offset of the range in the arena */
    uint64_t n_cleared;   /* bytes whose clearing is queued on `in`; the range is ready when these
                             are all bytes that need clearing */
    uint64_t n_counted;   /* keys that the sketch counted since it was last halved */
    uint64_t slice;       /* number of the last slice that has changes of the range */
    uint32_t slice_index; /* index of the range in that slice */
    uint32_t n_uses;      /* lookups and slices in flight, or being filled, that use the range */
    bool live;            /* may have rows: a slice for it has been queued on the device */
    bool retired;
    bool freed; /* the caller has freed the range; the struct is freed when n_uses is 0 */
};

struct hps_embed_region {
    struct hps_embed_cache *cache;
    void *host;        /* the caller's memory; NULL: it is device memory */
    hps_devptr memory; /* the address for the device */
    uint64_t size;
    uint32_t n_uses; /* parts of lookups in flight that write to the region */
};

/* ---- batches --------------------------------------------------------------------------------- */

/* One part of a lookup. */
struct hps_embed_use {
    struct hps_embed_range *range;
    struct hps_embed_region *region;
    uint64_t offset;     /* offset of its rows in the region */
    uint64_t bytes;      /* from the start of its first row to the end of its last one */
    hps_devptr gather;   /* where the kernel gathers its rows; 0: they are not gathered */
    uint32_t first_tile; /* index of its first tile (kernels.h) */
};

/* The state of one lookup, reused for later lookups. */
struct hps_embed_ticket {
    struct hps_embed_cache *cache;
    uint8_t *host;          /* host memory that kernels access; layout: struct hps_embed_block */
    hps_devptr device;      /* the address of `host` for the device */
    hps_devptr blocks_done; /* counter of the kernels' finished blocks; 0 between launches */
    /* recorded after the lookup's work on the streams `work`, `out` and `watch` */
    struct hps_event *worked, *copied_out, *watched;
    struct hps_embed_use *uses; /* [batch_parts_max] */
    uint32_t n_parts;
    uint32_t n_tiles;
    uint32_t n_bags;    /* bags that have keys */
    uint32_t bag_lanes; /* lanes per bag of the pool kernel: enough for the widest row */
    uint32_t sequence;  /* the value to which the last kernel sets the flag */
    /* the ticket's piece of the gather ring, from gather_begin to gather_end; if they are equal, no
     * part gathers its rows */
    uint64_t gather_begin;
    uint64_t gather_end;
    hps_status result;
    bool held;    /* the caller has not released the ticket */
    bool running; /* on the device, or not yet seen to have ended */
    bool watches; /* a sample of its keys is being counted on `watch` */
};

/* ---- slices ---------------------------------------------------------------------------------- */

/* Changes that one launch applies. Their descriptors, groups and entries (kernels.h) are copied to
 * the device as one piece of memory; the rows are in the staging ring. */
struct hps_embed_slice {
    uint8_t *host;                   /* descriptors, groups and entries */
    hps_devptr device;               /* their copy on the device */
    struct hps_embed_counts *counts; /* [SLICE_RANGES] results, in host memory */
    hps_devptr counts_mapped;        /* the address of `counts` for the device */
    hps_devptr counts_device;        /* [SLICE_RANGES] where the kernel counts, in device memory */
    hps_devptr blocks_done;          /* counter of the kernel's finished blocks */
    struct hps_event *copied_in, *applied;
    struct hps_embed_range *ranges[HPS_EMBED_SLICE_RANGES]; /* [n_ranges] that have changes */
    uint32_t n_ranges;
    uint32_t n_entries; /* changes */
    uint64_t rows_end;  /* position in the staging ring after its rows */
};

/* ---- the cache ------------------------------------------------------------------------------- */

/* The staging ring: rows to be copied to the device. A row has the same offset in host and device
 * memory. */
struct hps_embed_stage {
    uint8_t *host;
    hps_devptr device;
    struct hps_embed_ring ring;
    uint64_t unsent_begin, unsent_end; /* offsets of the rows not yet queued on `in` */
};

/* The changes of the slice that is being filled. */
struct hps_embed_intake {
    struct hps_embed_entry *entries; /* [SLICE_ROWS_MAX] in the order staged */
    uint64_t *order, *order_other;   /* [SLICE_ROWS_MAX] hps_embed_order of each entry; order_other
                                        is scratch memory for sorting */
    uint32_t *seen;                  /* [HPS_EMBED_SEEN] hash set of the keys of one call of
                                        hps_embed_stage */
    uint8_t *repeated; /* [SLICE_ROWS_MAX] 1: the key occurs again later in the same call */
};

/* New ranges are cleared in pieces. At most HPS_EMBED_PIECE_CLEAR_BYTES of all ranges together are
 * on the device at a time. */
struct hps_embed_clearing {
    struct hps_event *done; /* recorded after the last piece on the device */
    uint64_t bytes;         /* size of all pieces on the device; 0: no piece is on the device */
    uint32_t n_ranges;      /* ranges with pieces that are not yet queued */
};

struct hps_embed_cache {
    struct hps_device *device;
    struct hps_embed_cache_config config;
    struct hps_stream_q *in, *work, *out, *watch;
    bool lost;
    uint64_t progress_us; /* when work was last seen to begin or end, hps_clock_us */

    hps_devptr arena;
    hps_devptr small; /* device memory for counters, and for a small range without rows */
    struct hps_embed_range *ranges; /* list of the ranges that have memory, by ascending offset */
    struct hps_embed_desc empty;    /* descriptor of a range without rows; lookups get it if their
                                       range is retired or not live */
    uint32_t n_retiring;            /* retired ranges in `ranges` */
    struct hps_embed_clearing clearing;

    struct hps_embed_ticket *tickets; /* [n_batches] */
    uint32_t sequence;                /* number of the last lookup submitted */
    uint32_t n_running;               /* tickets that are running */
    hps_devptr gather;                /* the gather buffer */
    struct hps_embed_ring gather_ring;
    hps_devptr found; /* struct hps_embed_found [batch_keys_max] of the lookup that `work` runs */

    struct hps_embed_slice *slices; /* [SLICES] the slice with number n is slices[n % SLICES] */
    uint64_t n_opened;              /* number of the last slice opened for changes, from 1 */
    uint64_t n_closed;              /* number of the last slice queued on the device */
    uint64_t n_applied;             /* number of the last slice seen to have ended */
    struct hps_embed_stage stage;
    struct hps_embed_intake intake;
};

enum { HPS_EMBED_SEEN = 2 * HPS_EMBED_SLICE_ROWS_MAX };

/* ---- cache.c --------------------------------------------------------------------------------- */

/* Mark the device lost. Returns DATA_LOSS. */
hps_status hps_embed_lose(struct hps_embed_cache *cache);
/* Restart the time-out (timeout_us). Called when some work has ended. */
void hps_embed_progress(struct hps_embed_cache *cache);
/* Call hps_embed_begins before queueing work on the device, and hps_embed_given after it, with the
 * time that the first call returned. The time that the driver takes to accept the work then does
 * not count towards the time-out. */
uint64_t hps_embed_begins(struct hps_embed_cache *cache);
void hps_embed_given(struct hps_embed_cache *cache, uint64_t began_us);
/* Whether an event has completed. Marks the device lost if the driver reports an error. */
bool hps_embed_ended(struct hps_embed_cache *cache, struct hps_event *event);
/* Check an event for which the caller waits. Marks the device lost if the driver reports an error,
 * or if no work has ended for timeout_us. */
void hps_embed_check(struct hps_embed_cache *cache, struct hps_event *event);

/* ---- range.c --------------------------------------------------------------------------------- */

/* The layout of a range in memory (kernels.h). */
struct hps_embed_layout {
    uint32_t n_sets;
    uint32_t row_stride; /* bytes from one row to the next */
    uint64_t n_slots;    /* in sets and spills */
    uint64_t rows;       /* offset of the rows in the range */
    uint64_t sketch;     /* offset of the sketch in the range */
    uint64_t bytes;      /* size of the range */
};
/* The size in bytes of the index of a range: sets, spills and marks. */
uint64_t hps_embed_index_bytes(uint32_t n_sets);
/* Find the layout with the most sets, at most n_sets_max, that fits into bytes_max. If even the
 * smallest layout does not fit, out_layout->n_sets is 0. */
void hps_embed_layout(uint32_t row_bytes, uint64_t bytes_max, uint64_t n_sets_max,
                      struct hps_embed_layout *out_layout);
/* Initialize a descriptor for n_sets sets at the address `sets`, and choose the markers of empty
 * slots. Its fields rows, sketch and row_stride are 0 afterwards. */
void hps_embed_desc_init(struct hps_embed_desc *desc, uint64_t sets, uint32_t n_sets,
                         uint64_t seed);
/* Queue the clearing of a whole range: afterwards all its slots are empty. */
hps_status hps_embed_clear(struct hps_stream_q *stream, const struct hps_embed_desc *desc)
    HPS_MUST_CHECK;
/* If the device has cleared all pieces that were queued, queue the next pieces. */
void hps_embed_ranges_advance(struct hps_embed_cache *cache);
/* Take and release a reference to a range, for a lookup or a slice. */
void hps_embed_range_use(struct hps_embed_range *range);
void hps_embed_range_unuse(struct hps_embed_range *range);

/* ---- pack.c ---------------------------------------------------------------------------------- */

/* Offsets of the arrays in the host memory of a ticket that kernels access. The arrays have the
 * same names in the arguments of the kernels. At offset 0 is the flag, which the last kernel sets
 * to the ticket's sequence number. */
struct hps_embed_block {
    size_t parts, tiles, hits, bags, keys, weights, end;
};
struct hps_embed_block hps_embed_block_of(const struct hps_embed_cache_config *config);

/* The size of a lookup. */
struct hps_embed_plan {
    uint64_t n_keys;
    uint64_t gather_bytes; /* memory of the gather buffer that the lookup needs; 0: the kernel
                              stores all rows at their destination */
};
/* Compute the size of a lookup. INVALID: it has more keys, parts or bytes than a batch takes. */
hps_status hps_embed_plan(const struct hps_embed_cache *cache, const struct hps_embed_part *parts,
                          uint32_t n_parts, struct hps_embed_plan *out_plan) HPS_MUST_CHECK;
/* Write the parts into the ticket, and take references to their ranges and regions. gather: the
 * ticket's piece of the gather buffer; 0: no part gathers its rows. */
void hps_embed_pack(struct hps_embed_ticket *ticket, const struct hps_embed_part *parts,
                    uint32_t n_parts, hps_devptr gather);

/* ---- batch.c --------------------------------------------------------------------------------- */

/* Notice lookups that have ended, and release their ranges and regions. */
void hps_embed_batches_advance(struct hps_embed_cache *cache);
/* Called when the cache is closed: release the ranges of lookups that were not seen to end. */
void hps_embed_batches_drop(struct hps_embed_cache *cache);

/* ---- stage.c, slice.c ------------------------------------------------------------------------ */

/* The largest size in bytes of a slice's descriptors, groups and entries together. */
size_t hps_embed_slice_bytes(void);
/* Close the slice that is being filled: queue its changes on the device. No effect without changes.
 */
hps_status hps_embed_slice_close(struct hps_embed_cache *cache) HPS_MUST_CHECK;
/* The slice that is being filled; opens a new one if needed. NULL: all slices are in flight. */
struct hps_embed_slice *hps_embed_slice_open(struct hps_embed_cache *cache);
/* Notice slices that have been applied: update the usage of their ranges, and release these ranges
 * and the slices' part of the staging ring. */
void hps_embed_slices_advance(struct hps_embed_cache *cache);
/* The sort key of a change. range: the index of the range in the slice. set: the set of the key.
 * number: the index of the change in the order staged. Sorting makes changes of one block of sets
 * neighbours. */
enum { HPS_EMBED_ORDER_NUMBER_BITS = 14 };
static inline uint64_t hps_embed_order(uint32_t range, uint32_t set, uint32_t number)
{
    return ((uint64_t)range << 32 | set) << HPS_EMBED_ORDER_NUMBER_BITS | number;
}
static_assert(1 << HPS_EMBED_ORDER_NUMBER_BITS == HPS_EMBED_SLICE_ROWS_MAX, "as many numbers");
/* Queue on `in` the copy of the staged rows that are not yet queued. */
hps_status hps_embed_rows_send(struct hps_embed_cache *cache) HPS_MUST_CHECK;

#endif

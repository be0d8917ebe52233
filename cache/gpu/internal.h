/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of the gpu tier: tier.c (open, close, the thread), lookup.c (batches of
 * lookups), bags.c (bags of keys in them), change.c (the queue of insertions and updates), space.c
 * (versions).
 */
#ifndef HPS_CACHE_GPU_INTERNAL_H
#define HPS_CACHE_GPU_INTERNAL_H

#include <stdatomic.h>

#include "base/worker.h"
#include "cache/gpu/tier.h"

enum { GPU_BATCHES_MAX = 16, GPU_LABEL_BYTES = 128, GPU_NAMES_BYTES = 200 };

/* A part of a lookup, or as many of its keys as fit into a batch. */
struct gpu_piece {
    struct hps_gpu_lookup *lookup;
    uint32_t part;
    uint32_t begin; /* the first key */
    uint32_t n;
};

struct gpu_batch {
    struct hps_embed_ticket *ticket;
    struct gpu_piece *pieces; /* [batch_parts_max] in the order submitted */
    uint32_t n_pieces;
};

struct gpu_change {
    struct gpu_change *next;
    struct hps_gpu_space *space;
    enum hps_embed_op op;
    uint32_t table_id;
    uint32_t n;
    uint32_t n_staged;
    bool empties; /* erases all rows of the table, in place of an update without memory; a member of
                     gpu_table */
    uint64_t number;
    size_t bytes;
    hps_key *keys; /* [n] */
    uint8_t *rows; /* [n][row_bytes]; NULL for an erasure */
};

struct gpu_changes {
    struct hps_lock lock;
    struct hps_cond room;
    struct gpu_change *head; /* lock: not yet taken by the tier's thread */
    struct gpu_change *tail; /* lock; undefined while head is NULL */
    size_t bytes;            /* lock: queued, or taken but not staged */
    uint64_t staged_bytes;   /* lock: staged and not yet applied, as of the last turn */
    bool ended;              /* lock: the device is lost; no change is taken any more */
    bool woken;              /* lock: the wake task is in the mailbox */
    _Atomic uint64_t last;   /* number of the last queued change; written under the lock */
    struct hps_task wake;

    /* only the tier's thread */
    struct gpu_change *staging;
    struct gpu_change *staging_tail; /* undefined while staging is NULL */
    uint64_t n_taken;                /* number of the last change taken */
};

/* Figures that the tier's thread publishes, so that other threads need not wait for it. */
struct gpu_published {
    struct hps_lock lock;    /* leaf; also protects the usages of tables */
    struct hps_cond settled; /* signalled when caches have been made or will not be, no lookup is
                                pending, or the device is lost */
    struct hps_embed_cache_usage usage;
    uint64_t at_us; /* the tier's thread, as the next */
    bool due;       /* the figures have changed since */
};

/* The thread that ends the process if the driver hangs. */
struct gpu_watch {
    struct hps_worker worker;
    struct hps_lock lock;
    struct hps_cond changed;
    bool stopping; /* lock */
};

struct hps_gpu_tier {
    struct hps_gpu_tier_options options;
    struct hps_device *device;
    struct hps_embed_cache *cache;
    struct hps_embed_region *region; /* the slab of options.blocks */
    uint8_t *slab;
    size_t slab_size;
    struct hps_mailbox *mailbox;
    struct hps_worker worker;
    atomic_bool lost;
    atomic_uint n_waiting;
    struct gpu_changes changes;
    struct gpu_published published;
    struct gpu_watch watch;

    _Atomic pthread_t owner;  /* the tier's thread: first the opener, then the thread of `worker` */
    _Atomic uint64_t n_steps; /* grows as the tier's thread works; even while it waits for mail */

    /* only the tier's thread */
    struct hps_gpu_space *spaces;
    struct hps_gpu_lookup *head; /* lookups not yet submitted completely, in order */
    struct hps_gpu_lookup *tail; /* undefined while head is NULL */
    struct gpu_batch batches[GPU_BATCHES_MAX];
    struct hps_embed_part *parts;   /* [batch_parts_max] of the packed batch */
    struct hps_embed_shape *shapes; /* [batch_parts_max] the shapes of these parts */
    uint32_t first;                 /* of the batches in flight, in a ring */
    uint32_t n_batches;
    bool packed; /* the batch after those in flight is packed, but the cache has not taken it yet */
    bool wanted; /* caches may have to be made or removed: gpu_spaces_settle */
    bool stopping;
};

/* The caches of one version on one device. */
struct hps_gpu_space {
    struct hps_gpu_tier *tier;
    struct hps_gpu_space *next; /* of the tier; only its thread */
    struct hps_gpu_space
        *sibling; /* the same version on another device; constant while the space is in use */
    atomic_uint n_turns; /* of the first sibling: rotates lookups among equally loaded devices */
    uint32_t n_tables;
    bool active;    /* the tier's thread */
    bool warned;    /* the tier's thread: it is logged that not all caches fit */
    bool made_anew; /* the tier's thread: all caches were remade, to join fragments of memory */
    bool spoiled;   /* the tier's thread: a cache was emptied, and all are to be remade */
    atomic_bool present; /* it has caches, all or some, or needs none; written by the tier's thread,
                            as the next */
    atomic_uint n_missing; /* tables that need a cache and have none */
    atomic_bool coming;    /* active, and it is undecided whether the missing caches fit */
    /* Emptied caches are remade only once all changes up to this number are staged: they may carry
     * old rows. */
    _Atomic uint64_t spoiled_until;
    char label[GPU_LABEL_BYTES]; /* for logs */
    struct gpu_table {
        char *name; /* for logs; NULL: no memory for it */
        uint32_t row_bytes;
        uint32_t dim;
        enum hps_dtype dtype;
        atomic_bool there; /* `range` is set; for all threads, written by the tier's, as the next */
        atomic_uint n_made;
        atomic_uint filling; /* n_made at the last hps_gpu_space_fill_begin, */
        atomic_uint filled;  /* and at the fill that last ended; 0: never */
        struct hps_gpu_share share;
        struct hps_embed_range *range;      /* the tier's thread, as the next; NULL: none */
        struct hps_embed_range_usage past;  /* counts of ranges that were released */
        struct hps_embed_range_usage usage; /* lock of gpu_published */
        struct gpu_change emptying;
        bool is_emptying; /* lock of the changes: `emptying` is queued */
    } tables[];
};

/* Whether the caller is the tier's thread. */
static inline bool gpu_tier_is_mine(const struct hps_gpu_tier *tier)
{
    return pthread_equal(atomic_load(&tier->owner), pthread_self()) != 0;
}

/* ---- bags.c ---------------------------------------------------------------------------------- */

/* A run of whole bags of a part. */
struct gpu_bags {
    uint32_t first;
    uint32_t n;
    uint32_t n_keys;
};
/* The bags from `first` on that fit into n_keys_max keys and n_rows_max rows. n_keys is 0 if none
 * fits. */
struct gpu_bags gpu_bags_fit(const struct hps_gpu_part *part, uint32_t first, uint64_t n_keys_max,
                             uint64_t n_rows_max);
/* Set bits [begin, begin + n), all of them 0, to the first n of `from`. */
void gpu_bits_put(uint32_t *bits, uint32_t begin, uint32_t n, const uint32_t *from);

/* ---- space.c, tier.c ------------------------------------------------------------------------- */

/* hps_gpu_space_caches for one device. Any thread. */
bool gpu_space_caches(const struct hps_gpu_space *space, uint32_t table_id);
/* Run fn(ctx) on the tier's thread and wait for it. Not for that thread itself. fn must not take a
 * lock that the caller holds. */
void gpu_tier_call(struct hps_gpu_tier *tier, void (*fn)(void *ctx), void *ctx);

/* Wake the threads that wait for `settled`. */
void gpu_tier_settled(struct hps_gpu_tier *tier);
/* Publish the usage of the spaces. On the tier's thread, with the lock of gpu_published held. */
void gpu_spaces_publish(struct hps_gpu_tier *tier);

/* ---- on the tier's thread; true: something was done ------------------------------------------ */

bool gpu_changes_stage(struct hps_gpu_tier *tier);
bool gpu_lookups_submit(struct hps_gpu_tier *tier);
bool gpu_lookups_poll(struct hps_gpu_tier *tier);
bool gpu_spaces_settle(struct hps_gpu_tier *tier);

/* Handle the loss of the device, noticed as `text` says. Ends all pending lookups and changes. */
void gpu_tier_lose(struct hps_gpu_tier *tier, const char *text);
void gpu_changes_end(struct hps_gpu_tier *tier);
/* Drop the queued changes of the space (NULL: of all). */
void gpu_changes_drop(struct hps_gpu_tier *tier, const struct hps_gpu_space *space);
/* Update the count of bytes that are staged and not yet applied. */
void gpu_changes_note(struct hps_gpu_tier *tier);
/* The number up to which every change is staged. but_waiting: changes that wait for the clearing of
 * their table's cache count as staged, as lookups find no row in it until then. */
uint64_t gpu_changes_done(const struct hps_gpu_tier *tier, bool but_waiting);
void gpu_lookups_end(struct hps_gpu_tier *tier);

void gpu_changes_init(struct hps_gpu_tier *tier);
void gpu_changes_fini(struct hps_gpu_tier *tier); /* any thread, after the tier's has ended */
hps_status gpu_lookups_init(struct hps_gpu_tier *tier);
void gpu_lookups_fini(struct hps_gpu_tier *tier);

#endif

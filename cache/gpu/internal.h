/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the gpu tier share: tier.c (open, close, the thread), lookup.c (batches of
 * look-ups), bags.c (bags of keys in them), change.c (the queue of insertions and updates), space.c
 * (versions).
 */
#ifndef HPS_CACHE_GPU_INTERNAL_H
#define HPS_CACHE_GPU_INTERNAL_H

#include <stdatomic.h>

#include "base/worker.h"
#include "cache/gpu/tier.h"

enum { GPU_BATCHES_MAX = 16, GPU_LABEL_BYTES = 128, GPU_NAMES_BYTES = 200 };

/* A part, or as much of it as a batch has room for. */
struct gpu_piece {
    struct hps_gpu_lookup *lookup;
    uint32_t part;
    uint32_t begin; /* key */
    uint32_t n;
};

struct gpu_batch {
    struct hps_embed_ticket *ticket;
    struct gpu_piece *pieces; /* [batch_parts_max] as submitted */
    uint32_t n_pieces;
};

struct gpu_change {
    struct gpu_change *next;
    struct hps_gpu_space *space;
    enum hps_embed_op op;
    uint32_t table_id;
    uint32_t n;
    uint32_t n_staged;
    bool empties; /* the table's cache, of all rows: in place of an update; a member of gpu_table */
    uint64_t number;
    size_t bytes;
    hps_key *keys; /* [n] */
    uint8_t *rows; /* [n][row_bytes]; NULL of an erasure */
};

struct gpu_changes {
    struct hps_lock lock;
    struct hps_cond room;
    struct gpu_change *head; /* lock: not seen by the thread yet */
    struct gpu_change *tail; /* lock; undefined while head is NULL */
    size_t bytes;            /* lock: queued, and seen but not staged */
    uint64_t staged_bytes;   /* lock: on their way to the device, as of the last turn */
    bool ended;              /* lock: the device is lost; nothing is taken any more */
    bool woken;              /* lock: the wake task is on its way */
    _Atomic uint64_t last;   /* number of the last one queued; written under lock */
    struct hps_task wake;

    /* the tier's thread */
    struct gpu_change *staging;
    struct gpu_change *staging_tail; /* undefined while staging is NULL */
    uint64_t n_taken;                /* number of the last one seen */
};

/* What others may know without asking the tier's thread: it writes that down now and then. */
struct gpu_published {
    struct hps_lock lock; /* leaf; also over the usages of tables */
    struct hps_cond
        settled; /* caches have come, or will not; no look-up waits; the device is lost */
    struct hps_embed_cache_usage usage;
    uint64_t at_us; /* the tier's thread, as the next */
    bool due;       /* something has changed since */
};

/* The thread that ends the process when the driver hangs. */
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

    _Atomic pthread_t owner;  /* the tier's thread: the opener, then that of `worker` */
    _Atomic uint64_t n_steps; /* grows as the tier's thread works; even while it waits for mail */

    /* the tier's thread */
    struct hps_gpu_space *spaces;
    struct hps_gpu_lookup *head; /* not submitted to their end, in order */
    struct hps_gpu_lookup *tail; /* undefined while head is NULL */
    struct gpu_batch batches[GPU_BATCHES_MAX];
    struct hps_embed_part *parts; /* [batch_parts_max] of the batch that is packed, and how their */
    struct hps_embed_shape *shapes; /* [batch_parts_max] rows are wanted */
    uint32_t first;                 /* of the batches under way, in a ring */
    uint32_t n_batches;
    bool packed; /* the batch behind them is, and not known to be taken by the cache */
    bool wanted; /* an active space lacks caches, and there may be room now */
    bool stopping;
};

/* On one device. */
struct hps_gpu_space {
    struct hps_gpu_tier *tier;
    struct hps_gpu_space *next; /* of the tier; its thread */
    struct hps_gpu_space
        *sibling;        /* the same on another device; does not change while it is used */
    atomic_uint n_turns; /* look-ups, of the first one: whose turn it is among equals */
    uint32_t n_tables;
    bool active;         /* the tier's thread */
    bool warned;         /* the tier's thread: the log has it that there is no room for all */
    bool made_anew;      /* the tier's thread: for want of room in one piece */
    bool spoiled;        /* the tier's thread: a cache was emptied; all are made anew */
    atomic_bool present; /* it has caches, all or some; written on the tier's thread, as the next */
    atomic_uint n_missing; /* tables that are to have one and have none */
    atomic_bool coming;    /* it is active, and it is not known yet whether it gets those */
    /* No sooner than all changes up to this number are staged: old rows may be among them. */
    _Atomic uint64_t spoiled_until;
    char label[GPU_LABEL_BYTES]; /* for logs */
    struct gpu_table {
        char *name; /* for logs; NULL: no memory */
        uint32_t row_bytes;
        uint32_t dim;
        enum hps_dtype dtype;
        atomic_bool there; /* `range`, for all threads; written on the tier's, as the next */
        atomic_uint n_made;
        atomic_uint filling; /* n_made when somebody last began to fill it whole, */
        atomic_uint filled;  /* and when that was done; 0: never */
        struct hps_gpu_share share;
        struct hps_embed_range *range;      /* the tier's thread, as the next; NULL: none */
        struct hps_embed_range_usage past;  /* counts of ranges that were given up */
        struct hps_embed_range_usage usage; /* lock of gpu_published */
        struct gpu_change emptying;
        bool is_emptying; /* the lock of changes: it is queued */
    } tables[];
};

/* Is the caller the tier's thread? */
static inline bool gpu_tier_is_mine(const struct hps_gpu_tier *tier)
{
    return pthread_equal(atomic_load(&tier->owner), pthread_self()) != 0;
}

/* ---- bags.c ---------------------------------------------------------------------------------- */

/* As many bags of a part as there is room for. */
struct gpu_bags {
    uint32_t first;
    uint32_t n;
    uint32_t n_keys;
};
/* Of bags from `first` on: so many that n_keys_max and n_rows_max do. None: n_keys is 0. */
struct gpu_bags gpu_bags_fit(const struct hps_gpu_part *part, uint32_t first, uint64_t n_keys_max,
                             uint64_t n_rows_max);
/* Bits of keys [begin, begin + n), all of them 0, become those of `from`. */
void gpu_bits_put(uint32_t *bits, uint32_t begin, uint32_t n, const uint32_t *from);

/* ---- space.c, tier.c ------------------------------------------------------------------------- */

/* hps_gpu_space_caches for one device. Any thread. */
bool gpu_space_caches(const struct hps_gpu_space *space, uint32_t table_id);
/* Run fn(ctx) on the tier's thread and wait for it. Any other thread; of the locks that it holds
 * fn() may take none. */
void gpu_tier_call(struct hps_gpu_tier *tier, void (*fn)(void *ctx), void *ctx);

/* Wake who waits for `settled`. */
void gpu_tier_settled(struct hps_gpu_tier *tier);
/* Write down what the spaces use. On the tier's thread. */
void gpu_spaces_publish(struct hps_gpu_tier *tier);

/* ---- on the tier's thread: true when something was done -------------------------------------- */

bool gpu_changes_stage(struct hps_gpu_tier *tier);
bool gpu_lookups_submit(struct hps_gpu_tier *tier);
bool gpu_lookups_poll(struct hps_gpu_tier *tier);
bool gpu_spaces_settle(struct hps_gpu_tier *tier);

/* The device is lost: `text` says what showed it. Answers everything that is under way. */
void gpu_tier_lose(struct hps_gpu_tier *tier, const char *text);
void gpu_changes_end(struct hps_gpu_tier *tier);
/* Forget what waits for the space (NULL: for any). */
void gpu_changes_drop(struct hps_gpu_tier *tier, const struct hps_gpu_space *space);
/* Take notice of what is staged and not applied yet. */
void gpu_changes_note(struct hps_gpu_tier *tier);
/* Every change up to this number is staged. but_waiting: or waits until the cache of its table is
 * cleared, in which lookups find no row until then. */
uint64_t gpu_changes_done(const struct hps_gpu_tier *tier, bool but_waiting);
void gpu_lookups_end(struct hps_gpu_tier *tier);

void gpu_changes_init(struct hps_gpu_tier *tier);
void gpu_changes_fini(struct hps_gpu_tier *tier); /* any thread; the tier's has ended */
hps_status gpu_lookups_init(struct hps_gpu_tier *tier);
void gpu_lookups_fini(struct hps_gpu_tier *tier);

#endif

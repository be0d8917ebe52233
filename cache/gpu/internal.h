/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of the gpu tier: tier.c (open, close, the thread), lookup.c (batches of
 * lookups), bags.c (parts with bags), change.c (the queue of insertions and updates), space.c
 * (caches of versions).
 */
#ifndef HPS_CACHE_GPU_INTERNAL_H
#define HPS_CACHE_GPU_INTERNAL_H

#include <stdatomic.h>

#include "base/worker.h"
#include "cache/gpu/tier.h"

enum { GPU_BATCHES_MAX = 16, GPU_LABEL_BYTES = 128, GPU_NAMES_BYTES = 200 };

/* Consecutive keys of one part of a lookup: all keys of the part, or as many as fit into a batch.
 */
struct gpu_piece {
    struct hps_gpu_lookup *lookup;
    uint32_t part;  /* index of the part in lookup->parts */
    uint32_t begin; /* index of the first key */
    uint32_t n;     /* number of keys */
};

/* Pieces of pending lookups that the embedding cache looks up in one launch. */
struct gpu_batch {
    struct hps_embed_ticket *ticket; /* NULL: not submitted yet */
    struct gpu_piece *pieces;        /* [batch_parts_max] piece i is part i of the ticket */
    uint32_t n_pieces;
};

/* An insertion, an update or an erasure of keys of one table. */
struct gpu_change {
    struct gpu_change *next;
    struct hps_gpu_space *space;
    enum hps_embed_op op;
    uint32_t table_id;
    uint32_t n;        /* number of keys */
    uint32_t n_staged; /* the first n_staged keys are staged */
    /* The change erases all rows of the table, because there was no memory for an update. Only
     * gpu_table.emptying has this set. */
    bool empties;
    uint64_t number; /* position in the queue of changes, from 1 */
    size_t bytes;    /* host memory of this change */
    hps_key *keys;   /* [n] */
    uint8_t *rows;   /* [n][row_bytes]; NULL for an erasure */
};

/* The queue of changes. A change is queued by any thread, then taken by the tier's thread, then
 * staged in the embedding cache. Fields marked "lock" are protected by `lock`. */
struct gpu_changes {
    struct hps_lock lock;
    struct hps_cond capacity; /* signalled when bytes or staged_bytes decrease, or `ended` is set */
    struct gpu_change *head;  /* lock: queued, not yet taken by the tier's thread */
    struct gpu_change *tail;  /* lock; undefined while head is NULL */
    size_t bytes;             /* lock: bytes of changes that are queued, or taken but not staged */
    uint64_t staged_bytes;    /* lock: bytes that are staged and not yet applied; the tier's thread
                                 updates it at least once per iteration */
    bool ended;               /* lock: the device is lost, so no further change is queued */
    bool woken;               /* lock: `wake` is in the mailbox */
    _Atomic uint64_t last;    /* number of the last queued change; written under the lock */
    struct hps_task wake;     /* wakes the tier's thread */

    /* only the tier's thread */
    struct gpu_change *staging;      /* changes taken and not yet staged, in order */
    struct gpu_change *staging_tail; /* undefined while staging is NULL */
    uint64_t n_taken;                /* number of the last change taken */
};

/* Usage that the tier's thread publishes, so that other threads can read it without waiting for
 * that thread. */
struct gpu_published {
    struct hps_lock lock;    /* protects `usage` and gpu_table.usage; no lock is taken under it */
    struct hps_cond settled; /* signalled when missing caches have been made or are known not to
                                fit, when no lookup is pending, and when the device is lost */
    struct hps_embed_cache_usage usage;
    uint64_t at_us; /* only the tier's thread: time of the last publication, hps_clock_us */
    bool due;       /* only the tier's thread: the usage has changed since the last publication */
};

/* The thread that ends the process if the driver hangs. */
struct gpu_watch {
    struct hps_worker worker;
    struct hps_lock lock;
    struct hps_cond changed;
    bool stopping; /* protected by `lock`: the thread must end */
};

struct hps_gpu_tier {
    struct hps_gpu_tier_options options;
    struct hps_device *device;
    struct hps_embed_cache *cache;
    struct hps_embed_region *region; /* the slab of options.blocks */
    uint8_t *slab;
    size_t slab_size;
    struct hps_mailbox *mailbox; /* tasks for the tier's thread */
    struct hps_worker worker;    /* the tier's thread */
    atomic_bool lost;
    atomic_uint n_waiting; /* pending lookups: accepted and not yet ended */
    struct gpu_changes changes;
    struct gpu_published published;
    struct gpu_watch watch;

    _Atomic pthread_t owner;  /* the thread that may use the device: the one that opens the tier,
                                 later the thread of `worker` */
    _Atomic uint64_t n_steps; /* for the watch: increases as the tier's thread works, and is even
                                 while that thread waits for mail */

    /* only the tier's thread */
    struct hps_gpu_space *spaces;              /* list of all open spaces */
    struct hps_gpu_lookup *head;               /* lookups not yet submitted completely, in order */
    struct hps_gpu_lookup *tail;               /* undefined while head is NULL */
    struct gpu_batch batches[GPU_BATCHES_MAX]; /* a ring */
    struct hps_embed_part *parts;   /* [batch_parts_max] parts of the batch being packed */
    struct hps_embed_shape *shapes; /* [batch_parts_max] shapes of these parts */
    uint32_t first;                 /* index of the oldest batch in flight */
    uint32_t n_batches;             /* batches in flight */
    bool packed;   /* the batch after those in flight is packed, but the embedding cache has not
                      accepted it yet */
    bool wanted;   /* caches may have to be made or removed: gpu_spaces_settle has work */
    bool stopping; /* the thread ends */
};

/* The caches of one version on one device. */
struct hps_gpu_space {
    struct hps_gpu_tier *tier;
    struct hps_gpu_space *next; /* only the tier's thread: next in tier->spaces */
    /* the space of the same version on the next device; NULL: there is no further device. Constant
     * while the space is in use */
    struct hps_gpu_space *sibling;
    atomic_uint n_turns; /* only in the version's first space: counts lookups, so that equally
                            loaded devices are used in turn */
    uint32_t n_tables;

    /* only the tier's thread */
    bool active;    /* set by hps_gpu_space_active */
    bool warned;    /* the missing caches have been logged, and are not logged again */
    bool recreated; /* all caches were freed and made again, to join fragments of free memory; not
                       repeated until the space has had all its caches */
    bool spoiled;   /* a cache was emptied, so all caches of the space will be freed and made
                       again */

    /* written by the tier's thread, read by all */
    atomic_bool present;   /* the space has at least one cache, or needs none */
    atomic_uint n_missing; /* tables that need a cache and do not have it */
    atomic_bool coming;    /* the space is active, and it is not yet known whether its missing
                              caches fit */

    /* Number of a change. That change and earlier ones may have rows that are older than an update
     * that could not be queued for lack of memory. So caches that were emptied are made again only
     * after these changes are staged. */
    _Atomic uint64_t spoiled_until;
    char label[GPU_LABEL_BYTES]; /* model/version, for logs */
    struct gpu_table {
        char *name; /* name of the table, for logs; NULL: there was no memory for it */
        uint32_t row_bytes;
        uint32_t dim;
        enum hps_dtype dtype;
        /* written by the tier's thread, read by all */
        atomic_bool there;  /* the table has a cache: `range` is set */
        atomic_uint n_made; /* how often a cache was made for the table */
        /* written by the thread that fills the cache */
        atomic_uint filling; /* n_made at the last hps_gpu_space_fill_begin */
        atomic_uint filled;  /* `filling` at the last hps_gpu_space_fill_end; 0: never filled */
        struct hps_gpu_share share;
        struct hps_embed_range *range;     /* only the tier's thread: the cache; NULL: the table has
                                              no cache */
        struct hps_embed_range_usage past; /* only the tier's thread: sum of the counts of earlier
                                              caches */
        struct hps_embed_range_usage usage; /* protected by gpu_published.lock */
        /* A change that empties the cache. It is part of the table, so that queueing it needs no
         * memory. Protected by gpu_changes.lock. */
        struct gpu_change emptying;
        bool is_emptying; /* protected by gpu_changes.lock: `emptying` is queued */
    } tables[];
};

/* Whether the calling thread may use the device (hps_gpu_tier.owner). */
static inline bool gpu_tier_is_mine(const struct hps_gpu_tier *tier)
{
    return pthread_equal(atomic_load(&tier->owner), pthread_self()) != 0;
}

/* ---- bags.c ---------------------------------------------------------------------------------- */

/* A range of complete bags of a part. */
struct gpu_bags {
    uint32_t first;  /* index of the first bag */
    uint32_t n;      /* number of bags */
    uint32_t n_keys; /* keys of all these bags */
};
/* The longest range of bags from `first` on that has at most n_keys_max keys and n_rows_max rows.
 * If bag `first` alone exceeds a limit, n and n_keys are 0. */
struct gpu_bags gpu_bags_fit(const struct hps_gpu_part *part, uint32_t first, uint64_t n_keys_max,
                             uint64_t n_rows_max);
/* Copy the first n bits of `from` to bits [begin, begin + n) of `bits`. These bits of `bits` must
 * be 0 before. */
void gpu_bits_put(uint32_t *bits, uint32_t begin, uint32_t n, const uint32_t *from);

/* ---- space.c, tier.c ------------------------------------------------------------------------- */

/* Like hps_gpu_space_caches, but only for the device of this space, not for its siblings. Any
 * thread. */
bool gpu_space_caches(const struct hps_gpu_space *space, uint32_t table_id);
/* Run fn(ctx) on the tier's thread and wait until it has returned. Any thread except the tier's. fn
 * must not take a lock that the caller holds. */
void gpu_tier_call(struct hps_gpu_tier *tier, void (*fn)(void *ctx), void *ctx);

/* Wake the threads that wait for gpu_published.settled. */
void gpu_tier_settled(struct hps_gpu_tier *tier);
/* Copy the usage of all caches to gpu_table.usage. On the tier's thread, with the lock of
 * gpu_published held. */
void gpu_spaces_publish(struct hps_gpu_tier *tier);

/* ---- on the tier's thread -------------------------------------------------------------------- */

/* Each of the four functions does as much of its work as is possible now, and returns whether it
 * did anything. */
bool gpu_changes_stage(struct hps_gpu_tier *tier);  /* stages queued changes */
bool gpu_lookups_submit(struct hps_gpu_tier *tier); /* packs and submits pending lookups */
bool gpu_lookups_poll(struct hps_gpu_tier *tier);   /* ends lookups that the device has answered */
bool gpu_spaces_settle(struct hps_gpu_tier *tier);  /* makes missing caches, removes others */

/* Handle the loss of the device: log it, end all pending lookups with an error, and drop all
 * changes. text: how the loss was noticed. */
void gpu_tier_lose(struct hps_gpu_tier *tier, const char *text);
/* After a loss: drop all changes, and accept no more. */
void gpu_changes_end(struct hps_gpu_tier *tier);
/* Drop the changes of the space that are not staged. If space is NULL, drop those of all spaces. */
void gpu_changes_drop(struct hps_gpu_tier *tier, const struct hps_gpu_space *space);
/* Update gpu_changes.staged_bytes. */
void gpu_changes_note(struct hps_gpu_tier *tier);
/* Returns the number of a change: this change and all earlier ones are staged. The changes of a
 * table are not staged while its new cache is being cleared; lookups miss every key of such a
 * cache. If but_waiting is true, such changes count as staged if they are at the front of the
 * queue. */
uint64_t gpu_changes_done(const struct hps_gpu_tier *tier, bool but_waiting);
/* After a loss: end all pending lookups with an error. */
void gpu_lookups_end(struct hps_gpu_tier *tier);

/* ---- opening and closing the tier, while its thread does not run ----------------------------- */

void gpu_changes_init(struct hps_gpu_tier *tier);
void gpu_changes_fini(struct hps_gpu_tier *tier);
hps_status gpu_lookups_init(struct hps_gpu_tier *tier);
void gpu_lookups_fini(struct hps_gpu_tier *tier);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the redis store share.
 *
 * Threads: look-ups and insertions: any; updates (store_log.h) and loads: one thread per space at a
 * time; `redis-leases` (leases.c) renews leases, notes what was used and counts rows. A space's
 * lock is held only while memory is read or written, never across a call of the cluster.
 */
#ifndef HPS_BACKENDS_REDIS_INTERNAL_H
#define HPS_BACKENDS_REDIS_INTERNAL_H

#include <pthread.h>

#include "backends/redis/keys.h"
#include "backends/redis/positions.h"
#include "backends/redis/redis.h"
#include "backends/redis/scripts.h"
#include "backends/store_bulk.h"
#include "backends/store_log.h"
#include "base/worker.h"

enum { REDIS_DIGEST_BYTES = 20, REDIS_ASK_READS = 16, REDIS_TOUCHES_MAX = 4096 };

/* An answer says what was when the server gave it: some time between the question and the moment at
 * which it is read, while batches are published and other answers come. Hence two rules.
 *
 * 1. Rows are judged by where the version was before their question was put: they must be of no
 *    earlier positions. All that a look-up must see had been published, and so was in the shard,
 *    before it asked; what is published after that no answer need have.
 * 2. What an answer says of its shard is noted if nothing has been heard of the shard since the
 *    question was put, or if it is as far as what was last known, in every partition. So older
 *    knowledge never replaces newer, and a server that has lost what it had is believed as soon as
 *    it is asked again. As a digest always stands for the same positions, knowledge that is old
 *    makes no row right that is wrong: it only costs questions.
 */

/* How often a shard changed, by which an answer is found to be older than what has been heard
 * since. */
struct redis_shard_seen {
    uint32_t n_changes; /* of what is known of it */
    uint32_t n_writes;  /* of ours, and that it was not there */
};

/* What is known of one shard, as of the last answer of it. */
struct redis_shard {
    struct hps_redis_name keys[2]; /* of the rows; of their use */
    uint16_t slot;
    bool known;    /* digest and positions are of one answer */
    bool missing;  /* it was not there */
    bool readable; /* known, and no earlier than where the version is */
    bool exact;    /* known, and just there */
    uint8_t ask;   /* reads that ask for the positions at once: others write */
    uint8_t digest[REDIS_DIGEST_BYTES];
    struct hps_redis_positions positions; /* also if it is not known any more: the last ones */
    uint64_t n_rows;
    struct redis_shard_seen seen;
};

/* A row that was asked for. */
struct redis_touch {
    uint32_t shard;
    uint8_t field[HPS_REDIS_FIELD_BYTES];
};

struct redis_space {
    struct hps_space space;
    struct redis *redis;
    struct redis_space *next; /* of the store */
    char *model;
    int64_t version;
    const struct hps_table *tables; /* the version's */
    uint32_t n_tables;
    uint64_t rows_max; /* of a shard, 0: any */
    struct hps_redis_name leases;
    uint16_t leases_slot;
    char *names;                   /* all of them */
    atomic_bool loaded;            /* all its shards have been there */
    atomic_bool loading;           /* nothing is seen of it before its commit */
    atomic_bool left;              /* nor while the version is not the log's */
    uint64_t lease_us;             /* the keeper's: when it was renewed */
    _Atomic uint32_t n_sampled;    /* rows since the last one that was noted */
    struct hps_lock lock;          /* all that follows */
    uint32_t n_shards;             /* fixed */
    struct redis_shard *shards;    /* [n_shards]; names and slot are fixed */
    struct hps_redis_positions at; /* where the version is */
    uint32_t n_lost;               /* of the only copy: shards that the keeper has missed */
    struct redis_touch *touches;   /* [REDIS_TOUCHES_MAX] */
    uint32_t n_touches;
};

struct redis {
    struct hps_store store;
    struct hps_redis_store_options options;
    char *member;
    struct hps_redis_cluster *cluster;
    struct hps_lock lock; /* the next two; held by the keeper while it is at work on the spaces */
    struct redis_space *spaces;
    bool stops;
    struct hps_cond wake;
    struct hps_worker keeper;
    _Atomic uint64_t n_found, n_absent, n_behind, n_ahead, n_inserted, n_refused, n_evicted;
    _Atomic uint64_t n_gap, n_failed, n_reset;
};

static inline struct redis_space *redis_space_of(struct hps_space *space)
{
    return (struct redis_space *)(void *)space;
}

/* ---- redis.c --------------------------------------------------------------------------------- */

/* Until when a read, or a write, may take. */
uint64_t redis_read_deadline(const struct redis *redis, const struct hps_call *call);
uint64_t redis_write_deadline(const struct redis *redis, const struct hps_call *call);

/* ---- batch.c --------------------------------------------------------------------------------- */

/* Commands that are built one after another into one buffer, and their replies. */
struct redis_batch {
    struct hps_buf bytes;
    struct hps_redis_command *commands; /* [n] */
    struct hps_redis_values *values;    /* [n] of each */
    uint32_t *shards;                   /* [n] */
    struct redis_shard_seen *seen;      /* [n] of its shard, before it is sent */
    size_t *at;                         /* [n + 1] where each begins in bytes */
    uint32_t n;
    uint32_t capacity;
};

hps_status redis_batch_init(struct redis_batch *batch, uint32_t capacity) HPS_MUST_CHECK;
void redis_batch_fini(struct redis_batch *batch);
void redis_batch_clear(struct redis_batch *batch);
/* The bytes put since the last one are a command of this shard. */
void redis_batch_end(struct redis_batch *batch, struct redis_space *space, uint32_t shard,
                     uint8_t flags);
/* Run them; a script that a server does not know is given to it, and called again. Statuses are
 * those of the commands. */
void redis_batch_run(struct redis *redis, struct redis_batch *batch, enum hps_redis_script script,
                     uint64_t deadline_us);

/* The status of the first command that failed, with the text of the server or the cluster. A
 * command that was not answered in time, or that the server denies, is UNAVAILABLE here. */
hps_status redis_batch_failure(const struct redis_batch *batch, struct hps_error *err)
    HPS_MUST_CHECK;
/* Why a question to the servers failed: a node that is down now, else what `first` says. */
hps_status redis_unanswered(struct redis *redis, const struct hps_error *first,
                            struct hps_error *err) HPS_MUST_CHECK;

/* Append the command for one shard; nothing: it gets none. */
typedef hps_status redis_shard_put_fn(void *ctx, struct hps_buf *bytes, uint32_t shard);
/* A command for each shard that `put` has one for, all of one script (HPS_REDIS_SCRIPTS: of none),
 * run at once.
 *
 * owner   *out_batch is the caller's to end (redis_batch_fini), on failure too
 * error   NO_MEMORY, or what `put` returned: nothing was sent. Each command has a status of its own
 */
hps_status redis_shards_call(struct redis_space *space, enum hps_redis_script script,
                             redis_shard_put_fn *put, void *ctx, uint64_t deadline_us,
                             struct redis_batch *out_batch) HPS_MUST_CHECK;

/* ---- leases.c -------------------------------------------------------------------------------- */

/* What becomes of the lease of this daemon. */
enum redis_lease_use {
    REDIS_LEASE_TAKE,  /* unless another deletes the rows just now: n is -1 then */
    REDIS_LEASE_LEAVE, /* it is given up */
    REDIS_LEASE_DROP   /* and if n is 0 the rows are this daemon's to delete: nobody takes one
                          meanwhile */
};
/* out_n: how many daemons have one, this one included if it takes it. */
hps_status redis_lease(struct redis_space *space, enum redis_lease_use use, uint64_t deadline_us,
                       int64_t *out_n, struct hps_error *err) HPS_MUST_CHECK;
/* From now on the version is in use by this daemon, so that no other deletes it. UNAVAILABLE: one
 * does so just now, or the server does not answer. */
hps_status redis_lease_take(struct redis_space *space, struct hps_error *err) HPS_MUST_CHECK;
/* A command of one key, and a number behind it. */
hps_status redis_put_command(struct hps_buf *bytes, const char *name,
                             const struct hps_redis_name *key, uint64_t number, bool has_number)
    HPS_MUST_CHECK;
/* Count the rows of the shards and restart their time to live. Returns false if a shard did not
 * answer; `err` then has the first failure, if a server or the cluster named one. */
bool redis_count_rows(struct redis_space *space, struct hps_error *err);
/* Start the keeper, which ends with the store. NO_MEMORY */
hps_status redis_keeper_start(struct redis *redis) HPS_MUST_CHECK;

/* ---- state.c: what is known of shards; all but the first take the lock ----------------------- */

/* Under the lock: the shard is at the positions that it has known. */
void redis_shard_judge(const struct redis_space *space, struct redis_shard *shard);
/* Where the version is, as scripts take it. */
hps_status redis_positions_put(struct redis_space *space, struct hps_buf *out_bytes) HPS_MUST_CHECK;
struct redis_shard_seen redis_shard_seen(struct redis_space *space, uint32_t shard);
/* To a question put at `seen` it answered with this digest and these positions (no digest: it is
 * not there). True: what is known of it is this, or newer. */
bool redis_shard_learn(struct redis_space *space, uint32_t at, struct redis_shard_seen seen,
                       const void *digest, size_t digest_size, const void *positions,
                       size_t positions_size);
/* The same of two of the values, that begin at `first`. False also: no such. */
bool redis_learn_values(struct redis_space *space, uint32_t at, struct redis_shard_seen seen,
                        const struct hps_redis_values *values, uint32_t first);
/* The shard had the digest `from` and took the spans: it has `digest` now. */
void redis_shard_moved(struct redis_space *space, uint32_t at,
                       const uint8_t from[REDIS_DIGEST_BYTES],
                       const uint8_t digest[REDIS_DIGEST_BYTES], const struct hps_log_span *spans,
                       uint32_t n_spans);
/* A question put at `seen` has no answer: nothing is known of it, unless something has been heard
 * since. */
void redis_shard_forget(struct redis_space *space, uint32_t at, struct redis_shard_seen seen);
/* So many rows it has after a write of ours. */
void redis_shard_wrote(struct redis_space *space, uint32_t shard, int64_t n_rows);
/* So many fields it has, unless it was written since `seen`; and if `learns`, whether it is there,
 * unless something else has been heard of it since then. */
void redis_shard_count(struct redis_space *space, uint32_t shard, uint64_t n_fields, bool learns,
                       struct redis_shard_seen seen);
/* Shards that are known not to be there. */
uint32_t redis_shards_missing(struct redis_space *space);
/* Ask all shards, or those of which nothing is known, for their positions. The number that did not
 * answer; `err` is set as redis_count_rows sets it. */
uint32_t redis_shards_ask(struct redis_space *space, bool unknown_only, uint64_t deadline_us,
                          struct hps_error *err);
/* Rows came with the first of the values, a digest, and perhaps the second, positions. The version
 * was at `begin` when the look-up began, and the question was put at `seen`. Readable: they are of
 * no earlier positions than `begin`; exact: nor of any that the version has not got to by now. What
 * the values tell of the shard is noted. False: it takes the positions to judge. */
bool redis_judge_rows(struct redis_space *space, uint32_t at, struct redis_shard_seen seen,
                      const struct hps_redis_positions *begin,
                      const struct hps_redis_values *values, bool *out_readable, bool *out_exact);
/* Is the shard known to have this digest, and the version to have got to where that is? */
bool redis_shard_reached(struct redis_space *space, uint32_t at,
                         const uint8_t digest[REDIS_DIGEST_BYTES]);

/* ---- read.c ---------------------------------------------------------------------------------- */

hps_status redis_get(struct hps_space *space, const struct hps_call *call,
                     const struct hps_table *table, struct hps_batch *batch) HPS_MUST_CHECK;
hps_status redis_get_many(struct hps_space *space, const struct hps_call *call,
                          struct hps_part_batch *parts, uint32_t n_parts) HPS_MUST_CHECK;
/* ---- write.c --------------------------------------------------------------------------------- */

hps_status redis_put(struct hps_space *space, const struct hps_call *call,
                     const struct hps_table *table, const hps_key *keys, const uint8_t *rows,
                     uint32_t n) HPS_MUST_CHECK;
hps_status redis_erase(struct hps_space *space, const struct hps_call *call,
                       const struct hps_table *table, const hps_key *keys, uint32_t n)
    HPS_MUST_CHECK;
hps_status redis_log_positions_set(struct hps_space *space,
                                   const struct hps_log_position *positions, uint32_t n)
    HPS_MUST_CHECK;
hps_status redis_log_positions_get(struct hps_space *space, const struct hps_call *call,
                                   struct hps_log_position *positions, uint32_t n) HPS_MUST_CHECK;
void redis_log_leave(struct hps_space *space);
hps_status redis_log_apply(struct hps_space *space, const struct hps_call *call,
                           const struct hps_log_batch *batch, struct hps_log_report *out_report)
    HPS_MUST_CHECK;
hps_status redis_log_behind(struct hps_space *space, const struct hps_call *call,
                            struct hps_log_position *out_positions, uint32_t capacity,
                            uint32_t *out_n) HPS_MUST_CHECK;
hps_status redis_log_reset(struct hps_space *space, const struct hps_call *call,
                           struct hps_log_report *out_report) HPS_MUST_CHECK;
/* Empty the shards marked in `which` [n_shards]; of each marked one what became of it: 1 emptied,
 * 2 something else was there than what was known, 0 not reached. */
hps_status redis_reset(struct redis_space *space, uint8_t *which, uint64_t deadline_us)
    HPS_MUST_CHECK;
/* Shards that are not there begin at the version's positions, but not where they had the only copy.
 */
hps_status redis_make_missing(struct redis_space *space, uint64_t deadline_us) HPS_MUST_CHECK;
/* The field of a key, as an argument of a command. */
hps_status redis_put_field(struct hps_buf *bytes, const struct hps_table *table, hps_key key)
    HPS_MUST_CHECK;

/* ---- insert.c -------------------------------------------------------------------------------- */

hps_status redis_insert(struct hps_space *space, const struct hps_call *call,
                        const struct hps_table *table, const hps_key *keys, const uint32_t *slots,
                        const uint8_t *rows, uint32_t n, const struct hps_insert_guard *guard,
                        struct hps_insert_report *out_report) HPS_MUST_CHECK;

/* ---- evict.c --------------------------------------------------------------------------------- */

/* Take rows out of the shards that have too many, a few per step, until the deadline. Returns how
 * many. */
uint64_t redis_evict(struct redis_space *space, uint64_t deadline_us);
/* One in some rows was used; note it for the keeper. */
void redis_touch(struct redis_space *space, uint32_t shard,
                 const uint8_t field[HPS_REDIS_FIELD_BYTES]);
/* Send the samples of use to the servers. On the keeper's thread. */
void redis_touches_flush(struct redis_space *space);

/* ---- load.c ---------------------------------------------------------------------------------- */

hps_status redis_load_begin(struct hps_space *space, uint64_t rows_expected,
                            uint64_t bytes_expected, struct hps_store_load **out_load,
                            struct hps_error *err) HPS_MUST_CHECK;
hps_status redis_load_add(struct hps_store_load *load, const struct hps_table *table,
                          const hps_key *keys, const uint8_t *rows, uint32_t n,
                          struct hps_error *err) HPS_MUST_CHECK;
hps_status redis_load_commit(struct hps_store_load *load, struct hps_error *err) HPS_MUST_CHECK;
void redis_load_abort(struct hps_store_load *load);
/* Unlink what a load of this daemon has left that was cut off. */
hps_status redis_load_tidy(struct redis_space *space, struct hps_error *err) HPS_MUST_CHECK;

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of the redis store.
 *
 * Threads: lookups and insertions: any. Updates (store_log.h) and loads: one thread per space at a
 * time. The thread `redis-leases` (leases.c) renews leases, sends samples of use and counts rows.
 * The lock of a space is held only to read or write memory, never across a call of the cluster.
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

/* A reply describes its shard at the moment when the server gave it. Batches are published and
 * other replies arrive between request and processing. Two rules follow.
 *
 * 1. Rows are compared with the positions that the version had before the request: they must be at
 *    these positions or later. Whatever a lookup must see was published, and so was in the shard,
 *    before its request. A reply need not include updates that are published later.
 * 2. The state of a shard in a reply is recorded in two cases: nothing about the shard has changed
 *    since the request, or the reply is at or beyond the last known position in every partition. So
 *    older state never replaces newer state. If a server has lost data, its next reply is accepted.
 *    A digest always means the same positions, so outdated state never makes a wrong row valid. It
 *    only causes extra requests. */

/* Counts changes of a shard. A reply is older than our knowledge if a count has changed since its
 * request. */
struct redis_shard_seen {
    uint32_t n_changes; /* changes of its known state */
    uint32_t n_writes;  /* our writes, and reports that it is missing */
};

/* State of one shard, as of its last reply. */
struct redis_shard {
    struct hps_redis_name keys[2]; /* of its rows; of their use counts */
    uint16_t slot;
    bool known;    /* digest and positions are from the same reply */
    bool missing;  /* the server does not have it */
    bool readable; /* known, and at or beyond the version's positions in every partition */
    bool exact;    /* known, and exactly at the version's positions */
    uint8_t ask;   /* reads left that request the positions at once, because other daemons write */
    uint8_t digest[REDIS_DIGEST_BYTES];
    struct hps_redis_positions positions; /* if not known, the last known ones */
    uint64_t n_rows;
    struct redis_shard_seen seen;
};

/* A row that was used. */
struct redis_touch {
    uint32_t shard;
    uint8_t field[HPS_REDIS_FIELD_BYTES];
};

struct redis_space {
    struct hps_space space;
    struct redis *redis;
    struct redis_space *next; /* in the store's list */
    char *model;
    int64_t version;
    const struct hps_table *tables; /* owned by the version */
    uint32_t n_tables;
    uint64_t rows_max; /* limit of a shard; 0: none */
    struct hps_redis_name leases;
    uint16_t leases_slot;
    char *names;                   /* memory of all key names */
    atomic_bool loaded;            /* every shard has existed; set by a load */
    atomic_bool loading;           /* gets find nothing until its commit */
    atomic_bool left;              /* gets find nothing while the version does not match the log */
    uint64_t lease_us;             /* when the lease was renewed; of the leases thread */
    _Atomic uint32_t n_sampled;    /* rows since the last sample */
    struct hps_lock lock;          /* protects the fields below */
    uint32_t n_shards;             /* immutable */
    struct redis_shard *shards;    /* [n_shards]; names and slot are immutable */
    struct hps_redis_positions at; /* positions of the version */
    uint32_t n_lost;             /* shards of the only copy that the leases thread found missing */
    struct redis_touch *touches; /* [REDIS_TOUCHES_MAX] */
    uint32_t n_touches;
};

struct redis {
    struct hps_store store;
    struct hps_redis_store_options options;
    char *member;
    struct hps_redis_cluster *cluster;
    /* Protects spaces and stops; the leases thread holds it while it works on spaces. */
    struct hps_lock lock;
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

/* The deadline of a read or write: that of the call, or the configured limit if it is earlier. */
uint64_t redis_read_deadline(const struct redis *redis, const struct hps_call *call);
uint64_t redis_write_deadline(const struct redis *redis, const struct hps_call *call);

/* ---- batch.c --------------------------------------------------------------------------------- */

/* Commands built one after another in one buffer, and their replies. */
struct redis_batch {
    struct hps_buf bytes;
    struct hps_redis_command *commands; /* [n] */
    struct hps_redis_values *values;    /* [n] one per command */
    uint32_t *shards;                   /* [n] */
    struct redis_shard_seen *seen;      /* [n] of the shard, before the command is sent */
    size_t *at;                         /* [n + 1] where each command begins in `bytes` */
    uint32_t n;
    uint32_t capacity;
};

hps_status redis_batch_init(struct redis_batch *batch, uint32_t capacity) HPS_MUST_CHECK;
void redis_batch_fini(struct redis_batch *batch);
void redis_batch_clear(struct redis_batch *batch);
/* End a command of this shard: the bytes appended since the last end. */
void redis_batch_end(struct redis_batch *batch, struct redis_space *space, uint32_t shard,
                     uint8_t flags);
/* Run the commands. A script that a server lacks is loaded there and called again. Each command has
 * its own status. */
void redis_batch_run(struct redis *redis, struct redis_batch *batch, enum hps_redis_script script,
                     uint64_t deadline_us);

/* The status of the first command that failed, with the error text of the server or cluster.
 * Commands that timed out or were denied give UNAVAILABLE. */
hps_status redis_batch_failure(const struct redis_batch *batch, struct hps_error *err)
    HPS_MUST_CHECK;
/* Why the servers did not answer: a node that is down now, or else the error in `first`. */
hps_status redis_unanswered(struct redis *redis, const struct hps_error *first,
                            struct hps_error *err) HPS_MUST_CHECK;

/* Append the command for one shard. Appending nothing skips the shard. */
typedef hps_status redis_shard_put_fn(void *ctx, struct hps_buf *bytes, uint32_t shard);
/* Build a command for each shard with `put` and run all of them. All are calls of `script`;
 * HPS_REDIS_SCRIPTS: they call none.
 *
 * owner   the caller ends *out_batch (redis_batch_fini), also on failure
 * error   NO_MEMORY, or the status of `put`: nothing was sent. Each command has its own status */
hps_status redis_shards_call(struct redis_space *space, enum hps_redis_script script,
                             redis_shard_put_fn *put, void *ctx, uint64_t deadline_us,
                             struct redis_batch *out_batch) HPS_MUST_CHECK;

/* ---- leases.c -------------------------------------------------------------------------------- */

/* What to do with the lease of this daemon. */
enum redis_lease_use {
    REDIS_LEASE_TAKE,  /* take or renew it; n is -1 while another daemon deletes the rows */
    REDIS_LEASE_LEAVE, /* give it up */
    /* Give it up. If n is 0, this daemon may delete the rows, and for lease_ms no other daemon gets
     * a lease. */
    REDIS_LEASE_DROP
};
/* *out_n: number of daemons with a lease, including this one if it takes one. */
hps_status redis_lease(struct redis_space *space, enum redis_lease_use use, uint64_t deadline_us,
                       int64_t *out_n, struct hps_error *err) HPS_MUST_CHECK;
/* Take a lease, so that no other daemon deletes the version. UNAVAILABLE: another daemon is
 * deleting it, or the server does not answer. */
hps_status redis_lease_take(struct redis_space *space, struct hps_error *err) HPS_MUST_CHECK;
/* Append a command with one key, and a number after it if has_number. */
hps_status redis_put_command(struct hps_buf *bytes, const char *name,
                             const struct hps_redis_name *key, uint64_t number, bool has_number)
    HPS_MUST_CHECK;
/* Count the rows of all shards and restart their time to live. False: a shard did not answer; `err`
 * has the first failure that a server or the cluster reported. */
bool redis_count_rows(struct redis_space *space, struct hps_error *err);
/* Start the leases thread; it runs until the store is closed. NO_MEMORY */
hps_status redis_keeper_start(struct redis *redis) HPS_MUST_CHECK;

/* ---- state.c: known state of shards; all but redis_shard_judge take the space's lock --------- */

/* Set `readable` and `exact` from the shard's known positions. Caller must hold the lock. */
void redis_shard_judge(const struct redis_space *space, struct redis_shard *shard);
/* The version's positions in stored form, as arguments of scripts. */
hps_status redis_positions_put(struct redis_space *space, struct hps_buf *out_bytes) HPS_MUST_CHECK;
struct redis_shard_seen redis_shard_seen(struct redis_space *space, uint32_t shard);
/* Record a reply to a request made at `seen`, by rule 2: this digest and these positions;
 * digest_size 0: the shard is missing. True: the known state is this one or a newer one. */
bool redis_shard_learn(struct redis_space *space, uint32_t at, struct redis_shard_seen seen,
                       const void *digest, size_t digest_size, const void *positions,
                       size_t positions_size);
/* Same, with digest and positions in values `first` and `first + 1`. Also false if they are not
 * there. */
bool redis_learn_values(struct redis_space *space, uint32_t at, struct redis_shard_seen seen,
                        const struct hps_redis_values *values, uint32_t first);
/* Record that the shard went from digest `from` to `digest` by applying the spans. */
void redis_shard_moved(struct redis_space *space, uint32_t at,
                       const uint8_t from[REDIS_DIGEST_BYTES],
                       const uint8_t digest[REDIS_DIGEST_BYTES], const struct hps_log_span *spans,
                       uint32_t n_spans);
/* A request made at `seen` got no reply: mark the shard as not known, unless its state has changed
 * since. */
void redis_shard_forget(struct redis_space *space, uint32_t at, struct redis_shard_seen seen);
/* Record the number of rows of a shard after one of our writes. */
void redis_shard_wrote(struct redis_space *space, uint32_t shard, int64_t n_rows);
/* Record the number of fields of a shard, unless it was written since `seen`. With `learns`, also
 * record whether it exists, unless its state has changed since `seen`. */
void redis_shard_count(struct redis_space *space, uint32_t shard, uint64_t n_fields, bool learns,
                       struct redis_shard_seen seen);
/* Number of shards known to be missing. */
uint32_t redis_shards_missing(struct redis_space *space);
/* Request the positions of all shards, or of those that are not known. Returns how many did not
 * answer; sets `err` as redis_count_rows does. */
uint32_t redis_shards_ask(struct redis_space *space, bool unknown_only, uint64_t deadline_us,
                          struct hps_error *err);
/* Judge rows by the digest and optional positions at the start of `values`. `begin` has the
 * version's positions when the lookup began; the request was made at `seen`. Readable: the rows are
 * at or beyond `begin`. Exact: they are also not beyond the version's current positions. Records
 * the state of the shard. False: cannot decide without the positions. */
bool redis_judge_rows(struct redis_space *space, uint32_t at, struct redis_shard_seen seen,
                      const struct hps_redis_positions *begin,
                      const struct hps_redis_values *values, bool *out_readable, bool *out_exact);
/* True if the shard is known to have this digest, and the version has reached its positions. */
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
/* Empty the shards marked in `which` [n_shards]. On return, for each marked shard: 1 emptied, 2 its
 * state was not the expected one, 0 not reached. */
hps_status redis_reset(struct redis_space *space, uint8_t *which, uint64_t deadline_us)
    HPS_MUST_CHECK;
/* Create missing shards, empty, at the version's positions. No effect if this store has the only
 * copy. */
hps_status redis_make_missing(struct redis_space *space, uint64_t deadline_us) HPS_MUST_CHECK;
/* Append the field of a key as an argument. */
hps_status redis_put_field(struct hps_buf *bytes, const struct hps_table *table, hps_key key)
    HPS_MUST_CHECK;

/* ---- insert.c -------------------------------------------------------------------------------- */

hps_status redis_insert(struct hps_space *space, const struct hps_call *call,
                        const struct hps_table *table, const hps_key *keys, const uint32_t *slots,
                        const uint8_t *rows, uint32_t n, const struct hps_insert_guard *guard,
                        struct hps_insert_report *out_report) HPS_MUST_CHECK;

/* ---- evict.c --------------------------------------------------------------------------------- */

/* Evict rows from shards that have too many, in small steps, until the deadline. Returns the number
 * of evicted rows. */
uint64_t redis_evict(struct redis_space *space, uint64_t deadline_us);
/* Record one use of a row, to be sent by the leases thread. */
void redis_touch(struct redis_space *space, uint32_t shard,
                 const uint8_t field[HPS_REDIS_FIELD_BYTES]);
/* Send the recorded uses to the servers. On the leases thread. */
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
/* Delete the leftovers of an interrupted load of this daemon. */
hps_status redis_load_tidy(struct redis_space *space, struct hps_error *err) HPS_MUST_CHECK;

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of the redis store.
 *
 * Threads: lookups and insertions run on any thread, updates (store_log.h) and loads on one thread
 * per space at a time. The thread `redis-leases` (leases.c) renews leases, reports used rows to the
 * servers and counts rows. A lease of a daemon prevents other daemons from deleting the rows of a
 * version. The lock of a space is held only to read or write memory, never during a call of the
 * cluster.
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

/* REDIS_ASK_READS: initial value of redis_shard.ask. REDIS_TOUCHES_MAX: size of
 * redis_space.touches. */
enum { REDIS_DIGEST_BYTES = 20, REDIS_ASK_READS = 16, REDIS_TOUCHES_MAX = 4096 };

/* Each shard stores the log positions of its rows and a digest of these positions. hpsd keeps the
 * positions of each shard in memory, and a reply with rows normally has the digest only.
 *
 * A reply describes its shard at the moment when the server sent it. Before hpsd processes it,
 * batches may be published and other replies may arrive. Two rules follow.
 *
 * 1. The rows of a reply are used only if their shard was at or beyond the positions that the
 *    version had before the request. These positions include every update that the lookup must
 *    see (store_log.h, apply). The reply may lack updates that are published after the request.
 * 2. The state of a shard in a reply is recorded in two cases: nothing about the shard has changed
 *    since the request, or the reply is at or beyond the last known position in every partition. So
 *    an old reply never replaces newer state. A shard that has lost data is at earlier positions;
 *    the first case still accepts its state. A digest always means the same positions, so outdated
 *    state never makes a wrong row valid. It only causes extra requests. */

/* Counters of changes of a shard. A caller copies them before a request. If they differ afterwards,
 * the reply may be older than the known state. */
struct redis_shard_seen {
    uint32_t n_changes; /* changes of the known state of the shard */
    uint32_t n_writes;  /* writes of this daemon, plus replies that report the shard missing */
};

/* State of one shard, from replies and from this daemon's own writes. */
struct redis_shard {
    struct hps_redis_name keys[2]; /* Redis keys of the shard's rows and of their use counts */
    uint16_t slot;                 /* hash slot of both keys */
    /* The state of the shard is known: `missing` is set, or digest and positions are valid. */
    bool known;
    bool missing;  /* the server does not have the shard */
    bool readable; /* known, and at or beyond the version's positions in every partition */
    bool exact;    /* known, and exactly at the version's positions */
    /* Number of future reads of this shard that also request its positions. Set when another daemon
     * seems to write to the shard. */
    uint8_t ask;
    uint8_t digest[REDIS_DIGEST_BYTES];
    struct hps_redis_positions positions; /* the last known positions if `known` is false */
    uint64_t n_rows;
    struct redis_shard_seen seen;
};

/* A row that a lookup found; recorded for eviction by use. */
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
    uint64_t rows_max;            /* limit of rows of a shard; 0: no limit */
    struct hps_redis_name leases; /* Redis key of the leases */
    uint16_t leases_slot;         /* hash slot of `leases` */
    char *names;                  /* memory of all key names */
    atomic_bool loaded;           /* a load was committed, so a shard without data has lost it */
    atomic_bool loading;          /* a load is running: gets find nothing until its commit */
    atomic_bool left;             /* log->leave was called: gets find nothing */
    /* hps_clock_us when the lease was last renewed; 0: never. Protected by the store's lock. */
    uint64_t lease_us;
    _Atomic uint32_t n_sampled;    /* number of rows looked up; selects one row in sample_every */
    struct hps_lock lock;          /* protects the fields below */
    uint32_t n_shards;             /* immutable */
    struct redis_shard *shards;    /* [n_shards]; names and slot are immutable */
    struct hps_redis_positions at; /* positions of the version */
    /* Shards that the leases thread found missing, if this store has the only copy of the rows. */
    uint32_t n_lost;
    /* [REDIS_TOUCHES_MAX] uses of rows that were not sent to the servers yet. */
    struct redis_touch *touches;
    uint32_t n_touches;
};

struct redis {
    struct hps_store store;
    struct hps_redis_store_options options;
    char *member; /* name of this daemon in leases */
    struct hps_redis_cluster *cluster;
    /* Protects `spaces` and `stops`. The leases thread holds this lock while it works on spaces. */
    struct hps_lock lock;
    struct redis_space *spaces;
    bool stops;                    /* the leases thread must end */
    struct hps_cond wake;          /* wakes the leases thread */
    struct hps_worker maintenance; /* the leases thread */
    /* See the fields n_rows_… of struct hps_store_shared_stats. */
    _Atomic uint64_t n_found, n_absent, n_behind, n_ahead, n_inserted, n_refused, n_evicted;
    /* See the fields n_shards_… of struct hps_store_shared_stats. */
    _Atomic uint64_t n_gap, n_failed, n_reset;
};

static inline struct redis_space *redis_space_of(struct hps_space *space)
{
    return (struct redis_space *)(void *)space;
}

/* ---- redis.c --------------------------------------------------------------------------------- */

/* The deadline (hps_clock_us) of a read or write: the deadline of the call or the end of the
 * configured limit, whichever is earlier. call NULL: only the limit counts. */
uint64_t redis_read_deadline(const struct redis *redis, const struct hps_call *call);
uint64_t redis_write_deadline(const struct redis *redis, const struct hps_call *call);

/* ---- batch.c --------------------------------------------------------------------------------- */

/* Commands built one after another in one buffer, and their replies. */
struct redis_batch {
    struct hps_buf bytes;
    struct hps_redis_command *commands; /* [n] */
    struct hps_redis_values *values;    /* [n] reply of each command */
    uint32_t *shards;                   /* [n] shard of each command */
    struct redis_shard_seen *seen;      /* [n] counters of its shard before the command is sent */
    size_t *at;                         /* [n + 1] where each command begins in `bytes` */
    uint32_t n;
    uint32_t capacity;
};

hps_status redis_batch_init(struct redis_batch *batch, uint32_t capacity) HPS_MUST_CHECK;
void redis_batch_fini(struct redis_batch *batch);
void redis_batch_clear(struct redis_batch *batch);
/* End a command, which the caller has appended to `bytes`. flags: of struct hps_redis_command. */
void redis_batch_end(struct redis_batch *batch, struct redis_space *space, uint32_t shard,
                     uint8_t flags);
/* Run the commands; each gets its own status. All commands call `script`; HPS_REDIS_SCRIPTS: they
 * call no script. If a server lacks the script, it is loaded there and called again. */
void redis_batch_run(struct redis *redis, struct redis_batch *batch, enum hps_redis_script script,
                     uint64_t deadline_us);

/* The status of the first command that failed, with the error text of the server or cluster.
 * Commands that timed out or were denied give UNAVAILABLE. */
hps_status redis_batch_failure(const struct redis_batch *batch, struct hps_error *err)
    HPS_MUST_CHECK;
/* Set `err` to the reason why servers did not respond: the last failure of a node that is down. If
 * no node is down, the reason is the text of `first`. Returns the status of `first`, which must not
 * be OK. */
hps_status redis_unanswered(struct redis *redis, const struct hps_error *first,
                            struct hps_error *err) HPS_MUST_CHECK;

/* Append the command for one shard to `bytes`. If the function appends nothing, no command is sent
 * for this shard. */
typedef hps_status redis_shard_put_fn(void *ctx, struct hps_buf *bytes, uint32_t shard);
/* Build a command for each shard with `put` and run all of them (redis_batch_run).
 *
 * owner   the caller frees *out_batch (redis_batch_fini), also on failure
 * error   NO_MEMORY, or the status of `put`: nothing was sent */
hps_status redis_shards_call(struct redis_space *space, enum hps_redis_script script,
                             redis_shard_put_fn *put, void *ctx, uint64_t deadline_us,
                             struct redis_batch *out_batch) HPS_MUST_CHECK;

/* ---- leases.c -------------------------------------------------------------------------------- */

/* What to do with the lease of this daemon on a version. */
enum redis_lease_use {
    REDIS_LEASE_TAKE,  /* take or renew it; *out_n is -1 while another daemon deletes the rows */
    REDIS_LEASE_LEAVE, /* give it up */
    /* Give it up. If *out_n is 0, this daemon may delete the rows, and no other daemon gets a lease
     * for the next lease_ms. */
    REDIS_LEASE_DROP
};
/* Change the lease of this daemon. *out_n: number of daemons with a lease, including this one after
 * REDIS_LEASE_TAKE. */
hps_status redis_lease(struct redis_space *space, enum redis_lease_use use, uint64_t deadline_us,
                       int64_t *out_n, struct hps_error *err) HPS_MUST_CHECK;
/* Take a lease, so that no other daemon deletes the version. UNAVAILABLE: another daemon is
 * deleting it, or the server does not answer. */
hps_status redis_lease_take(struct redis_space *space, struct hps_error *err) HPS_MUST_CHECK;
/* Append the command `name` with one key, and a number after the key if has_number. */
hps_status redis_put_command(struct hps_buf *bytes, const char *name,
                             const struct hps_redis_name *key, uint64_t number, bool has_number)
    HPS_MUST_CHECK;
/* Count the rows of all shards and restart their time to live. False: a shard did not respond;
 * `err` has the first failure that a server or the cluster reported. */
bool redis_count_rows(struct redis_space *space, struct hps_error *err);
/* Start the leases thread, which runs until the store is closed. The only error is NO_MEMORY. */
hps_status redis_maintenance_start(struct redis *redis) HPS_MUST_CHECK;

/* ---- state.c: known state of shards ---------------------------------------------------------- */

/* All functions of state.c except redis_shard_judge take the space's lock. `at` is the index of a
 * shard; `seen` has its counters before the request. */

/* Set `readable` and `exact` from the shard's known positions. Caller must hold the lock. */
void redis_shard_judge(const struct redis_space *space, struct redis_shard *shard);
/* Write the version's positions in stored form (positions.h), an argument of scripts. The call
 * initializes out_bytes; the caller frees it, also on failure. */
hps_status redis_positions_put(struct redis_space *space, struct hps_buf *out_bytes) HPS_MUST_CHECK;
/* The current counters of a shard. */
struct redis_shard_seen redis_shard_seen(struct redis_space *space, uint32_t shard);
/* Record the digest and positions that a reply has for the shard, by rule 2 above. digest_size 0:
 * the reply says that the shard is missing. True: the known state is now that of the reply or a
 * newer one. */
bool redis_shard_learn(struct redis_space *space, uint32_t at, struct redis_shard_seen seen,
                       const void *digest, size_t digest_size, const void *positions,
                       size_t positions_size);
/* Same as redis_shard_learn, with digest and positions from the values `first` and `first + 1` of a
 * reply. Also false if the reply lacks these values. */
bool redis_learn_values(struct redis_space *space, uint32_t at, struct redis_shard_seen seen,
                        const struct hps_redis_values *values, uint32_t first);
/* Record that this daemon has applied the spans to the shard, which changed the shard's digest from
 * `from` to `digest`. */
void redis_shard_moved(struct redis_space *space, uint32_t at,
                       const uint8_t from[REDIS_DIGEST_BYTES],
                       const uint8_t digest[REDIS_DIGEST_BYTES], const struct hps_log_span *spans,
                       uint32_t n_spans);
/* Mark the shard as not known, because a request got no usable reply. No effect if its state has
 * changed since the request. */
void redis_shard_forget(struct redis_space *space, uint32_t at, struct redis_shard_seen seen);
/* Record the number of rows of a shard after a write of this daemon. */
void redis_shard_wrote(struct redis_space *space, uint32_t shard, int64_t n_rows);
/* Record the number of rows of a shard whose hash has n_fields fields, unless this daemon has
 * written to it since the request. With `learns`, also record whether the shard exists, unless its
 * state has changed since the request. */
void redis_shard_count(struct redis_space *space, uint32_t shard, uint64_t n_fields, bool learns,
                       struct redis_shard_seen seen);
/* Number of shards known to be missing. */
uint32_t redis_shards_missing(struct redis_space *space);
/* Request digest and positions of all shards, or with unknown_only of the shards that are not
 * known. Returns the number of shards that did not respond. `err` (may be NULL) has the first
 * failure that a server or the cluster reported. */
uint32_t redis_shards_ask(struct redis_space *space, bool unknown_only, uint64_t deadline_us,
                          struct hps_error *err);
/* Decide whether the rows of a reply may be used, and record the state of the shard. `values`
 * begins with the digest, and may have the positions next. `begin` has the version's positions when
 * the lookup began. *out_readable: the rows are at or beyond `begin`. *out_exact: they are also not
 * beyond the version's current positions. Returns false if the digest is not known, so that the
 * positions must be requested. */
bool redis_judge_rows(struct redis_space *space, uint32_t at, struct redis_shard_seen seen,
                      const struct hps_redis_positions *begin,
                      const struct hps_redis_values *values, bool *out_readable, bool *out_exact);
/* Whether the shard is known to have this digest, and the version has reached the shard's
 * positions. */
bool redis_shard_reached(struct redis_space *space, uint32_t at,
                         const uint8_t digest[REDIS_DIGEST_BYTES]);

/* ---- read.c: contracts in backends/store.h --------------------------------------------------- */

hps_status redis_get(struct hps_space *space, const struct hps_call *call,
                     const struct hps_table *table, struct hps_batch *batch) HPS_MUST_CHECK;
hps_status redis_get_many(struct hps_space *space, const struct hps_call *call,
                          struct hps_part_batch *parts, uint32_t n_parts) HPS_MUST_CHECK;

/* ---- write.c: contracts in backends/store.h and store_log.h ---------------------------------- */

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
/* Empty each shard i whose which[i] is not 0; shape which[n_shards]. Afterwards which[i] is 1 if
 * the shard was emptied. It is 2 if the shard was not emptied because its state on the server was
 * not the known state. It is 0 if the server was not reached, or which[i] was 0. Must not be called
 * if this store has the only copy. */
hps_status redis_reset(struct redis_space *space, uint8_t *which, uint64_t deadline_us)
    HPS_MUST_CHECK;
/* Create the shards that are known to be missing, without rows, at the version's positions. No
 * effect if this store has the only copy. */
hps_status redis_make_missing(struct redis_space *space, uint64_t deadline_us) HPS_MUST_CHECK;
/* Append the field of a key (keys.h) as an argument of a command. */
hps_status redis_put_field(struct hps_buf *bytes, const struct hps_table *table, hps_key key)
    HPS_MUST_CHECK;

/* ---- insert.c: contract in backends/store.h -------------------------------------------------- */

/* Three steps: copy the digests of shards that are exactly at the version's positions, call the
 * guard for each row, and run a script per shard. The script inserts rows only if the shard still
 * has the copied digest. If the guard does not see the marks of a batch (cache/version/stamps.h),
 * the digest was copied before that batch changed the shard. Then there are two cases. If the batch
 * changes the shard before the script runs, the digests differ and the script inserts nothing. If
 * the batch changes the shard after the script, it replaces or erases the inserted rows. */
hps_status redis_insert(struct hps_space *space, const struct hps_call *call,
                        const struct hps_table *table, const hps_key *keys, const uint32_t *slots,
                        const uint8_t *rows, uint32_t n, const struct hps_insert_guard *guard,
                        struct hps_insert_report *out_report) HPS_MUST_CHECK;

/* ---- evict.c --------------------------------------------------------------------------------- */

/* Evict rows from shards with more than rows_max rows, in small steps, until each is at the target
 * (target_ratio) or the deadline has passed. Returns the number of evicted rows. */
uint64_t redis_evict(struct redis_space *space, uint64_t deadline_us);
/* Record one use of a row. The leases thread sends it to the server. If REDIS_TOUCHES_MAX uses are
 * recorded already, this one is lost. */
void redis_touch(struct redis_space *space, uint32_t shard,
                 const uint8_t field[HPS_REDIS_FIELD_BYTES]);
/* Send the recorded uses to the servers. On the leases thread. */
void redis_touches_flush(struct redis_space *space);

/* ---- load.c: contracts in backends/store_bulk.h ---------------------------------------------- */

hps_status redis_load_begin(struct hps_space *space, uint64_t rows_expected,
                            uint64_t bytes_expected, struct hps_store_load **out_load,
                            struct hps_error *err) HPS_MUST_CHECK;
hps_status redis_load_add(struct hps_store_load *load, const struct hps_table *table,
                          const hps_key *keys, const uint8_t *rows, uint32_t n,
                          struct hps_error *err) HPS_MUST_CHECK;
hps_status redis_load_commit(struct hps_store_load *load, struct hps_error *err) HPS_MUST_CHECK;
void redis_load_abort(struct hps_store_load *load);
/* Delete the Redis keys of an interrupted load of this daemon. */
hps_status redis_load_tidy(struct redis_space *space, struct hps_error *err) HPS_MUST_CHECK;

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * The redis tier: rows in hashes of a Redis server or cluster that several daemons share.
 * docs/redis.md describes the stored data and why rows can be trusted.
 */
#ifndef HPS_BACKENDS_REDIS_REDIS_H
#define HPS_BACKENDS_REDIS_REDIS_H

#include "backends/redis/client/client.h"
#include "backends/store.h"

/* Which rows a shard evicts when it has more than its limit. */
enum hps_redis_evict {
    HPS_REDIS_EVICT_RANDOM,
    HPS_REDIS_EVICT_USED,  /* of a random sample, the rows used least often */
    HPS_REDIS_EVICT_OLDEST /* of a random sample, the rows used least recently */
};

struct hps_redis_store_options {
    struct hps_redis_options redis;
    uint32_t n_shards;         /* per version; must be the same in all daemons */
    uint32_t fields_max;       /* maximum number of rows per command */
    uint64_t write_timeout_us; /* longest duration of a write; an earlier deadline has priority */
    bool authoritative; /* this store has the only copy of the rows, so never empties shards */
    /* Name of this daemon, unique among the daemons that share Redis. NULL: "hpsd". */
    const char *member;
    uint64_t lease_ms; /* a lease expires this long after it was last renewed */
    /* Rows expire this long after a daemon last renewed its lease on their version; 0: they do not
     * expire. */
    uint64_t ttl_ms;
    /* Limit of rows per table and shard; 0: no limit. A shard evicts when all its tables together
     * have more than rows_max times the number of tables. */
    uint64_t rows_max;
    double target_ratio; /* a shard over its limit evicts rows down to its limit times this */
    enum hps_redis_evict evict;
    uint32_t sample_every; /* one in this many looked-up rows is recorded as used, if found */
};

#define HPS_REDIS_STORE_DEFAULT                                                  \
    ((struct hps_redis_store_options){.redis = HPS_REDIS_OPTIONS_DEFAULT,        \
                                      .n_shards = 64,                            \
                                      .fields_max = 2000,                        \
                                      .write_timeout_us = UINT64_C(1000) * 1000, \
                                      .lease_ms = 30 * 1000,                     \
                                      .target_ratio = 0.8,                       \
                                      .sample_every = 16})

/* Open the store; does not wait for any server. Strings are borrowed for the call.
 * error   INVALID: an option is invalid, and `err` names it; NO_MEMORY */
hps_status hps_redis_open(const struct hps_redis_store_options *options,
                          struct hps_store **out_store, struct hps_error *err) HPS_MUST_CHECK;

/* The client of a store's servers. Owned by the store. */
struct hps_redis_cluster *hps_redis_of(struct hps_store *store);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * The redis tier: rows in hashes of a Redis server or cluster, shared by many daemons. What is kept
 * there, and why it can be trusted, is in docs/redis.md.
 */
#ifndef HPS_BACKENDS_REDIS_REDIS_H
#define HPS_BACKENDS_REDIS_REDIS_H

#include "backends/redis/client/client.h"
#include "backends/store.h"

/* Which rows go when a shard has too many. */
enum hps_redis_evict {
    HPS_REDIS_EVICT_RANDOM,
    HPS_REDIS_EVICT_USED,  /* those asked for least, of a sample */
    HPS_REDIS_EVICT_OLDEST /* those not asked for the longest, of a sample */
};

struct hps_redis_store_options {
    struct hps_redis_options redis;
    uint32_t n_shards;   /* per version: all daemons say the same */
    uint32_t fields_max; /* per command */
    uint64_t write_timeout_us;
    bool authoritative;  /* no store below has the rows: shards are never emptied */
    const char *member;  /* the name of this daemon among those that share the server */
    uint64_t lease_ms;   /* how long after its last sign of life a daemon counts as gone */
    uint64_t ttl_ms;     /* how long after the last one the rows stay; 0: until they are dropped */
    uint64_t rows_max;   /* of each table in each shard, 0: any; of all tables together it holds */
    double target_ratio; /* of rows_max: down to it a shard evicts that has more */
    enum hps_redis_evict evict;
    uint32_t sample_every; /* of the rows found, one in so many is noted as used */
};

#define HPS_REDIS_STORE_DEFAULT                                                  \
    ((struct hps_redis_store_options){.redis = HPS_REDIS_OPTIONS_DEFAULT,        \
                                      .n_shards = 64,                            \
                                      .fields_max = 2000,                        \
                                      .write_timeout_us = UINT64_C(1000) * 1000, \
                                      .lease_ms = 30 * 1000,                     \
                                      .target_ratio = 0.8,                       \
                                      .sample_every = 16})

/* Does not wait for any server. Strings are borrowed for the call. INVALID: an option, named in
 * `err`; NO_MEMORY. */
hps_status hps_redis_open(const struct hps_redis_store_options *options,
                          struct hps_store **out_store, struct hps_error *err) HPS_MUST_CHECK;

/* The servers of a store. Owned by the store. */
struct hps_redis_cluster *hps_redis_of(struct hps_store *store);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Names of keys and fields in Redis, as docs/redis.md describes them. All daemons share the stored
 * data, so these names must never change. Pure functions.
 */
#ifndef HPS_BACKENDS_REDIS_KEYS_H
#define HPS_BACKENDS_REDIS_KEYS_H

#include "backends/store.h"

enum {
    HPS_REDIS_NAME_BYTES_MAX = 320, /* of a key, including the NUL */
    HPS_REDIS_FIELD_BYTES = 12      /* of the field of a row: u32 BE table, u64 BE key */
};

/* A hash that is part of key names. It separates versions that have the same model and number, but
 * other rows or another number of shards. */
uint64_t hps_redis_load_hash(const struct hps_space_id *id, uint32_t n_shards);
/* "hpsd:{model/version/hash/shard}", with ":used" appended if `used`. Returns the number of
 * bytes. */
size_t hps_redis_shard_name(const struct hps_space_id *id, uint64_t load_hash, uint32_t shard,
                            bool used, char out_name[HPS_REDIS_NAME_BYTES_MAX]);
/* "hpsd:{model/version/hash}:leases". Returns the number of bytes. */
size_t hps_redis_leases_name(const struct hps_space_id *id, uint64_t load_hash,
                             char out_name[HPS_REDIS_NAME_BYTES_MAX]);
void hps_redis_field(uint32_t table_id, hps_key key, uint8_t out_field[HPS_REDIS_FIELD_BYTES]);
/* The shard of a key, from 0 to n_shards - 1. */
uint32_t hps_redis_shard(uint32_t table_id, hps_key key, uint32_t n_shards);

#endif

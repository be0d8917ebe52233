/* SPDX-License-Identifier: Apache-2.0
 *
 * Names of keys and fields in Redis; see keys.h. Thread-safe.
 */
#include "backends/redis/keys.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/hash.h"

_Static_assert(HPS_REDIS_NAME_BYTES_MAX > 2 * 120 + 64, "two names of 120 bytes and numbers fit");

static size_t printed(int size)
{
    HPS_ASSERT(size > 0 && size < HPS_REDIS_NAME_BYTES_MAX);
    return (size_t)size;
}

uint64_t hps_redis_load_hash(const struct hps_space_id *id, uint32_t n_shards)
{
    uint64_t hash = hps_hash_bytes(&id->load_id, sizeof(id->load_id), n_shards);
    for (uint32_t i = 0; i < id->n_tables; i++) {
        const struct hps_table *table = &id->tables[i];
        const uint32_t form[4] = {table->id, table->dim, table->row_bytes, (uint32_t)table->dtype};
        hash = hps_hash_bytes(table->name, strlen(table->name), hash);
        hash = hps_hash_bytes(form, sizeof(form), hash);
    }
    return hash;
}

size_t hps_redis_shard_name(const struct hps_space_id *id, uint64_t load_hash, uint32_t shard,
                            bool used, char out_name[HPS_REDIS_NAME_BYTES_MAX])
{
    return printed(snprintf(out_name, HPS_REDIS_NAME_BYTES_MAX,
                            "hpsd:{%s/%" PRId64 "/%016" PRIx64 "/%" PRIu32 "}%s", id->model,
                            id->version, load_hash, shard, used ? ":used" : ""));
}

size_t hps_redis_leases_name(const struct hps_space_id *id, uint64_t load_hash,
                             char out_name[HPS_REDIS_NAME_BYTES_MAX])
{
    return printed(snprintf(out_name, HPS_REDIS_NAME_BYTES_MAX,
                            "hpsd:{%s/%" PRId64 "/%016" PRIx64 "}:leases", id->model, id->version,
                            load_hash));
}

void hps_redis_field(uint32_t table_id, hps_key key, uint8_t out_field[HPS_REDIS_FIELD_BYTES])
{
    uint32_t table = __builtin_bswap32(table_id);
    uint64_t number = __builtin_bswap64(key);
    memcpy(out_field, &table, sizeof(table));
    memcpy(out_field + sizeof(table), &number, sizeof(number));
}

uint32_t hps_redis_shard(uint32_t table_id, hps_key key, uint32_t n_shards)
{
    uint64_t hash = hps_mix64(key + table_id * HPS_HASH_GOLDEN);
    return (uint32_t)(((hash >> 32) * n_shards) >> 32);
}

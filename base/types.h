/* SPDX-License-Identifier: Apache-2.0
 *
 * The few types every layer shares.
 */
#ifndef HPS_BASE_TYPES_H
#define HPS_BASE_TYPES_H

#include <stddef.h>
#include <stdint.h>

/* An embedding key: the bits of an int64; all 2^64 values are legal. */
typedef uint64_t hps_key;

/* `supportlonglong: false`: a key is the low 32 bits of the int64 that a file, an update record or
 * a request holds, as HPS casts it. In place. */
static inline void hps_keys_narrow(hps_key *keys, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        keys[i] = (uint32_t)keys[i];
    }
}

/* Status of one key of an answer. Numbers are those of hps.v1.KeyStatus. */
enum hps_key_status { HPS_KEY_FOUND = 1, HPS_KEY_DEFAULTED = 2, HPS_KEY_UNKNOWN = 3 };

/* The tiers, top to bottom; names on the wire: gpu, host, redis, rocksdb. */
enum hps_tier_kind {
    HPS_TIER_GPU,
    HPS_TIER_HOST,
    HPS_TIER_REDIS,
    HPS_TIER_ROCKSDB,
    HPS_TIER_COUNT
};

#endif

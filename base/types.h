/* SPDX-License-Identifier: Apache-2.0
 *
 * Types that every layer uses.
 */
#ifndef HPS_BASE_TYPES_H
#define HPS_BASE_TYPES_H

#include <stddef.h>
#include <stdint.h>

/* An embedding key: the bits of an int64. All 2^64 values are valid. */
typedef uint64_t hps_key;

/* Reduce keys to their low 32 bits, in place, as HPS does with `supportlonglong: false`. The keys
 * are the int64 values of a file, an update record or a request. */
static inline void hps_keys_narrow(hps_key *keys, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        keys[i] = (uint32_t)keys[i];
    }
}

/* Status of one key of a reply. The numbers are those of hps.v1.KeyStatus. */
enum hps_key_status { HPS_KEY_FOUND = 1, HPS_KEY_DEFAULTED = 2, HPS_KEY_UNKNOWN = 3 };

/* The tiers, from the highest to the lowest. Their names in messages and metrics are gpu, host,
 * redis and rocksdb. */
enum hps_tier_kind {
    HPS_TIER_GPU,
    HPS_TIER_HOST,
    HPS_TIER_REDIS,
    HPS_TIER_ROCKSDB,
    HPS_TIER_COUNT
};

#endif

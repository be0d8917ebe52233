/* SPDX-License-Identifier: Apache-2.0
 *
 * The few types every layer shares.
 */
#ifndef HPS_BASE_TYPES_H
#define HPS_BASE_TYPES_H

#include <stdint.h>

/* An embedding key: the bits of an int64; all 2^64 values are legal. */
typedef uint64_t hps_key;

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

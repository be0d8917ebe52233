/* SPDX-License-Identifier: Apache-2.0
 *
 * The tiers of a version, from top to bottom, for code that uses all of them. The version's
 * embedding caches on devices are one tier. Callers decide by the capabilities of a tier, not by
 * the name of its store.
 */
#ifndef HPS_CACHE_VERSION_TIER_H
#define HPS_CACHE_VERSION_TIER_H

#include "cache/version/version.h"

enum {
    HPS_CAP_ON_DEVICE = 1,  /* no store: queried outside the walk (cache/gpu/tier.h) */
    HPS_CAP_BLOCKS = 2,     /* a call may block: not on a loop thread */
    HPS_CAP_SHARED = 4,     /* may have rows of updates that this version does not have yet */
    HPS_CAP_LOWEST = 8,     /* authoritative: a key that it lacks is in no tier */
    HPS_CAP_COMPLETE = 16,  /* the same while hps_version_host_complete is true */
    HPS_CAP_INSERTS = 32,   /* takes rows found below it during the lookup */
    HPS_CAP_BACKFILLED = 64 /* takes them later (hps_version_backfills) */
};

struct hps_tier {
    enum hps_tier_kind kind;
    uint32_t caps;               /* HPS_CAP_... */
    struct hps_space *space;     /* borrowed; NULL: on a device */
    struct hps_breaker *breaker; /* borrowed; NULL: none */
};

/* Returns the number of tiers; their kinds ascend. out_tiers: [HPS_TIERS_MAX]. Thread-safe. */
uint32_t hps_version_tiers(const struct hps_version *version, struct hps_tier *out_tiers);
/* The number of tiers. Inline because it runs once per answer. */
static inline uint32_t hps_version_n_tiers(const struct hps_version *version)
{
    return version->n_tiers + (version->gpu != NULL ? 1 : 0);
}

/* Whether tiers of this kind are on a device. */
static inline bool hps_tier_on_device(enum hps_tier_kind kind)
{
    return kind == HPS_TIER_GPU;
}

/* The bit of a kind in a set of kinds. */
static inline uint32_t hps_tier_bit(enum hps_tier_kind kind)
{
    return UINT32_C(1) << kind;
}

/* "gpu", "host", "redis", "rocksdb": names in messages and metrics. Static text. */
const char *hps_tier_name(enum hps_tier_kind kind);

#endif

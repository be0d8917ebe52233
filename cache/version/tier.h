/* SPDX-License-Identifier: Apache-2.0
 *
 * The tiers of a version, top to bottom, for code that goes through all of them: the version's
 * embedding caches on devices count as one tier like the others. What a tier can do is in its
 * capabilities, so that nobody asks which store it is.
 */
#ifndef HPS_CACHE_VERSION_TIER_H
#define HPS_CACHE_VERSION_TIER_H

#include "cache/version/version.h"

enum {
    HPS_CAP_ON_DEVICE = 1,  /* no store: asked by a queue, beside the walk (cache/gpu/tier.h) */
    HPS_CAP_BLOCKS = 2,     /* asking it may block: not on a loop thread */
    HPS_CAP_SHARED = 4,     /* it may have rows of updates that this version does not have yet */
    HPS_CAP_LOWEST = 8,     /* authoritative: what it lacks is in no tier */
    HPS_CAP_COMPLETE = 16,  /* the same while hps_version_host_complete says so */
    HPS_CAP_INSERTS = 32,   /* takes rows found below it at once, */
    HPS_CAP_BACKFILLED = 64 /* or behind the answers (hps_version_backfills) */
};

struct hps_tier {
    enum hps_tier_kind kind;
    uint32_t caps;               /* HPS_CAP_... */
    struct hps_space *space;     /* borrowed; NULL: on a device */
    struct hps_breaker *breaker; /* borrowed; NULL: it is always asked */
};

/* Returns how many there are; their kinds ascend. out_tiers: [HPS_TIERS_MAX]. Any thread. */
uint32_t hps_version_tiers(const struct hps_version *version, struct hps_tier *out_tiers);
/* How many of them there are: run per answer, hence here. */
static inline uint32_t hps_version_n_tiers(const struct hps_version *version)
{
    return version->n_tiers + (version->gpu != NULL ? 1 : 0);
}

/* Tiers of this kind are on a device, whether a version has one or not. */
static inline bool hps_tier_on_device(enum hps_tier_kind kind)
{
    return kind == HPS_TIER_GPU;
}

/* A kind as one bit of a set of kinds. */
static inline uint32_t hps_tier_bit(enum hps_tier_kind kind)
{
    return UINT32_C(1) << kind;
}

/* "gpu", "host", "redis", "rocksdb": names on the wire and in metrics. Static text. */
const char *hps_tier_name(enum hps_tier_kind kind);

#endif

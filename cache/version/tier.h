/* SPDX-License-Identifier: Apache-2.0
 *
 * The tiers of a version, from top to bottom. The list includes the one tier that is not a store:
 * the version's embedding caches on devices. Callers decide by the capabilities of a tier, not by
 * the name of its store.
 */
#ifndef HPS_CACHE_VERSION_TIER_H
#define HPS_CACHE_VERSION_TIER_H

#include "cache/version/version.h"

enum {
    HPS_CAP_ON_DEVICE = 1, /* not a store: lookups query this tier asynchronously */
    HPS_CAP_BLOCKS = 2,    /* calls may block, so an event-loop thread must not make them */
    HPS_CAP_SHARED = 4,    /* rows may have updates that this version does not have yet */
    HPS_CAP_LOWEST = 8,    /* authoritative: a key that this tier lacks is in no tier */
    HPS_CAP_COMPLETE = 16, /* while hps_version_host_complete is true, a key that this tier lacks
                              is in no tier */
    HPS_CAP_INSERTS = 32,  /* a lookup inserts rows that it finds in lower tiers into this tier */
    /* Rows found in lower tiers are inserted into this tier later, by the thread `backfill`. */
    HPS_CAP_BACKFILLED = 64
};

struct hps_tier {
    enum hps_tier_kind kind;
    uint32_t caps;               /* HPS_CAP_... */
    struct hps_space *space;     /* borrowed from the version; NULL: the tier is on a device */
    struct hps_breaker *breaker; /* borrowed from the version; NULL: the tier has no breaker */
};

/* List the tiers from top to bottom, in ascending order of kind. Returns their number. out_tiers:
 * [HPS_TIERS_MAX]. Thread-safe. */
uint32_t hps_version_tiers(const struct hps_version *version, struct hps_tier *out_tiers);
/* The number of tiers. Inline because it is called for every reply. */
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

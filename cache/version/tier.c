/* SPDX-License-Identifier: Apache-2.0
 *
 * Derives the capabilities of each tier from its store and its place. Thread-safe.
 */
#include "cache/version/tier.h"

#include "base/assert.h"

const char *hps_tier_name(enum hps_tier_kind kind)
{
    static const char *const names[HPS_TIER_COUNT] = {
        [HPS_TIER_GPU] = "gpu",
        [HPS_TIER_HOST] = "host",
        [HPS_TIER_REDIS] = "redis",
        [HPS_TIER_ROCKSDB] = "rocksdb",
    };

    HPS_ASSERT((unsigned)kind < HPS_TIER_COUNT);
    return names[kind];
}

/* i: index in version->tiers */
static uint32_t caps_of(const struct hps_version *version, uint32_t i)
{
    const struct hps_store_ops *ops = version->tiers[i]->store->ops;
    bool blocks = (ops->caps & HPS_STORE_BLOCKING) != 0;
    bool shared = (ops->caps & HPS_STORE_SHARED) != 0;
    bool lowest = i + 1 == version->n_tiers;
    bool inserts = (ops->caps & HPS_STORE_INSERTS) != 0;
    uint32_t caps = blocks ? HPS_CAP_BLOCKS : HPS_CAP_COMPLETE;

    caps |= shared ? HPS_CAP_SHARED : 0;
    caps |= lowest ? HPS_CAP_LOWEST : 0;
    caps |= !blocks && !lowest && inserts ? HPS_CAP_INSERTS : 0;
    caps |= hps_version_backfills(version, i) ? HPS_CAP_BACKFILLED : 0;
    return caps;
}

uint32_t hps_version_tiers(const struct hps_version *version, struct hps_tier *out_tiers)
{
    uint32_t n = 0;

    HPS_ASSERT(version->n_tiers <= HPS_TIERS_MAX);
    if (version->gpu != NULL) {
        out_tiers[n++] =
            (struct hps_tier){.kind = HPS_TIER_GPU, .caps = HPS_CAP_ON_DEVICE | HPS_CAP_INSERTS};
    }
    for (uint32_t i = 0; i < version->n_tiers; i++) {
        struct hps_tier *tier = &out_tiers[n];

        HPS_ASSERT(n < HPS_TIERS_MAX);
        *tier = (struct hps_tier){.kind = version->tiers[i]->store->ops->tier,
                                  .caps = caps_of(version, i),
                                  .space = version->tiers[i],
                                  .breaker = version->breakers[i]};
        HPS_ASSERT(n == 0 || tier->kind > out_tiers[n - 1].kind);
        n++;
    }
    HPS_ASSERT(n == hps_version_n_tiers(version));
    return n;
}

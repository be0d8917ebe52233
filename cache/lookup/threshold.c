/* SPDX-License-Identifier: Apache-2.0
 *
 * Decides which parts wait for the stores: by the miss policy of the lookup, and under
 * HPS_MISS_THRESHOLD by the hit rate of the part's unique keys. On the thread that owns the lookup.
 */
#include <stdatomic.h>

#include "base/assert.h"
#include "base/hash.h"
#include "cache/lookup/internal.h"
#include "cache/lookup/policy.h"
#include "cache/version/fetched.h"

struct wanted {
    const struct hps_lookup_part *part;
    hps_key key;
};

static bool is_key(const void *ctx, uint32_t index)
{
    const struct wanted *wanted = ctx;

    return lookup_key_at(wanted->part, index) == wanted->key;
}

/* Add key `index` of the part, as sent, to a set of indices. True: the key was not in it. */
static bool set_add(struct hps_index_set *set, const struct hps_lookup_part *part, uint32_t index)
{
    const struct wanted wanted = {part, lookup_key_at(part, index)};
    uint64_t hash = hps_mix64(wanted.key ^ hps_hash_secret());
    uint32_t *place = hps_index_set_find(set, hash, is_key, &wanted);
    bool added = *place == 0;

    *place = index + 1;
    return added;
}

/* Whether at least n_wanted hits of the part are unique; stops counting there. A walked key does
 * not count, even if a second query found it on the gpu. */
static bool has_unique_hits(struct hps_lookup *lookup, const struct hps_lookup_part *part,
                            uint64_t n_wanted)
{
    const struct hps_walk *walk = &part->walk;
    uint64_t n = 0;
    struct hps_index_set set;

    if (n_wanted > walk->n_found_before ||
        lookup_take_set(lookup, n_wanted + walk->n_keys, &set) != HPS_OK) {
        return false;
    }
    for (uint32_t i = 0; i < walk->n_keys; i++) {
        (void)set_add(&set, part, walk->batch.slots[i]);
    }
    for (uint32_t i = 0; i < part->n_keys && n < n_wanted; i++) {
        n += hps_lookup_part_hit(part, i) && set_add(&set, part, i) ? 1 : 0;
    }
    return n == n_wanted;
}

/* Whether a missing row was inserted by a job before and has been lost since. */
static bool misses_what_came(const struct hps_lookup *lookup, const struct hps_lookup_part *part)
{
    const struct hps_fetched *fetched = lookup->version->fetched;
    const struct hps_batch *batch = &part->walk.batch;
    uint32_t i = 0;

    while (fetched != NULL && i < batch->n &&
           !hps_fetched_often(fetched, part->table->id, batch->keys[i])) {
        i++;
    }
    return fetched != NULL && i < batch->n;
}

/* Whether missing rows are inserted after the answer, because the hit rate has reached the
 * version's threshold. Without an embedding cache, or if it did not answer, there is no hit rate:
 * the lookup waits. */
static bool is_asynchronous(struct hps_lookup *lookup, const struct hps_lookup_part *part)
{
    const struct hps_version *version = lookup->version;
    enum hps_tier_kind cache_tier = atomic_load(&version->cache_tier);
    uint32_t n_hits = 0;

    if (lookup->insertion == NULL || atomic_load(&version->cache_full) ||
        (hps_tier_on_device(cache_tier) && !lookup_gpu_answered(lookup, part)) ||
        !hps_walk_hits(&part->walk, cache_tier, &n_hits)) {
        return false;
    }
    HPS_ASSERT(n_hits <= part->n_unique);
    uint64_t n_hits_min =
        hps_policy_hits_min(atomic_load(&version->hit_rate_threshold), part->n_unique - n_hits);
    uint32_t n_others = n_hits - part->walk.n_found_before;
    bool reached = n_hits >= n_hits_min;
    if (reached && part->hits != NULL && n_others < n_hits_min) { /* n_hits counts duplicates */
        reached = has_unique_hits(lookup, part, n_hits_min - n_others);
    }
    return reached && !misses_what_came(lookup, part);
}

bool lookup_waits_for_stores(struct hps_lookup *lookup, const struct hps_lookup_part *part)
{
    switch (lookup->miss_policy) {
    case HPS_MISS_MEMORY_ONLY:
        return false;
    case HPS_MISS_WAIT:
        return lookup->wait_us_max > 0;
    case HPS_MISS_THRESHOLD:
        return !is_asynchronous(lookup, part);
    case HPS_MISS_MODEL:
    case HPS_MISS_EXACT:
        break;
    }
    return true;
}

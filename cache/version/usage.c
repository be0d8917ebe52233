/* SPDX-License-Identifier: Apache-2.0
 *
 * Counters in shards, like pins. Counters are freed only with the whole set, because a user may
 * hold them longer than the version lives: 2 KiB for each version ever loaded.
 */
#include "cache/version/usage.h"

#include <stdalign.h>
#include <stdatomic.h>
#include <string.h>

#include "base/heap.h"
#include "cache/version/version.h"

enum { CACHE_LINE = 64 };

struct shard {
    alignas(2 * CACHE_LINE) _Atomic uint64_t n_good;
    _Atomic uint64_t good_us;
    _Atomic uint64_t part_us[HPS_USAGE_PARTS];
    _Atomic uint64_t last_ms;
    _Atomic uint64_t n_failed;
    _Atomic uint64_t failed_us;
};
_Static_assert(sizeof(struct shard) == 2 * CACHE_LINE, "no two on one cache line");

struct hps_usage {
    struct shard shards[HPS_PIN_SHARDS];
    struct hps_usage *next;
    char *model;
    int64_t version;
};

struct hps_usages {
    struct hps_usage *first;
};

static void add(_Atomic uint64_t *to, uint64_t n)
{
    atomic_fetch_add_explicit(to, n, memory_order_relaxed);
}

static uint64_t get(const _Atomic uint64_t *from)
{
    return atomic_load_explicit(from, memory_order_relaxed);
}

void hps_usage_add(struct hps_usage *usage, const struct hps_usage_lookup *lookup)
{
    struct shard *shard = &usage->shards[hps_version_shard()];
    /* If two threads share a shard, either may store last: they ended at about the same time. */
    atomic_store_explicit(&shard->last_ms, lookup->ended_ms, memory_order_relaxed);
    if (!lookup->good) {
        add(&shard->n_failed, 1);
        add(&shard->failed_us, lookup->us);
        return;
    }
    add(&shard->n_good, 1);
    add(&shard->good_us, lookup->us);
    for (unsigned i = 0; i < HPS_USAGE_PARTS; i++) {
        add(&shard->part_us[i], lookup->part_us[i]);
    }
}

void hps_usage_get(const struct hps_usage *usage, struct hps_usage_sums *out_sums)
{
    struct hps_usage_sums sums = {0};
    for (unsigned i = 0; i < HPS_PIN_SHARDS; i++) {
        const struct shard *shard = &usage->shards[i];
        uint64_t last_ms = get(&shard->last_ms);
        sums.n_good += get(&shard->n_good);
        sums.good_us += get(&shard->good_us);
        sums.n_failed += get(&shard->n_failed);
        sums.failed_us += get(&shard->failed_us);
        for (unsigned k = 0; k < HPS_USAGE_PARTS; k++) {
            sums.part_us[k] += get(&shard->part_us[k]);
        }
        sums.last_ms = last_ms > sums.last_ms ? last_ms : sums.last_ms;
    }
    *out_sums = sums;
}

struct hps_usages *hps_usages_new(void)
{
    return hps_calloc(1, sizeof(struct hps_usages));
}

static void usage_free(struct hps_usage *usage)
{
    hps_free(usage->model);
    hps_free_aligned(usage);
}

void hps_usages_free(struct hps_usages *usages)
{
    while (usages != NULL && usages->first != NULL) {
        struct hps_usage *usage = usages->first;
        usages->first = usage->next;
        usage_free(usage);
    }
    hps_free(usages);
}

struct hps_usage *hps_usages_of(struct hps_usages *usages, const char *model, int64_t version)
{
    struct hps_usage *usage = usages->first;
    while (usage != NULL && (usage->version != version || strcmp(usage->model, model) != 0)) {
        usage = usage->next;
    }
    if (usage != NULL) {
        return usage;
    }
    usage = hps_alloc_aligned(alignof(struct hps_usage), sizeof(*usage));
    if (usage == NULL) {
        return NULL;
    }
    memset(usage, 0, sizeof(*usage));
    usage->version = version;
    usage->model = hps_strdup(model);
    if (usage->model == NULL) {
        usage_free(usage);
        return NULL;
    }
    usage->next = usages->first;
    usages->first = usage;
    return usage;
}

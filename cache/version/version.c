/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory and pins of a version. Pins are counted per shard of threads, so that concurrent requests
 * do not contend for one cache line. Thread-safe.
 */
#include "cache/version/version.h"

#include <string.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/text.h"
#include "cache/version/absent.h"
#include "cache/version/fetched.h"
#include "cache/version/flight.h"

static atomic_uint next_shard;
static _Thread_local unsigned my_shard = UINT32_MAX;

unsigned hps_version_shard(void)
{
    if (my_shard == UINT32_MAX) {
        my_shard = atomic_fetch_add(&next_shard, 1) % HPS_PIN_SHARDS;
    }
    return my_shard;
}

hps_status hps_version_set_places(struct hps_version *version, const uint32_t *places,
                                  uint32_t n_places)
{
    uint32_t *by_place = hps_calloc(n_places, sizeof(*by_place));
    if (by_place == NULL) {
        return HPS_NO_MEMORY;
    }
    memset(by_place, 0xff, n_places * sizeof(*by_place));
    for (uint32_t i = 0; i < version->n_tables; i++) {
        HPS_ASSERT(places[i] < n_places && by_place[places[i]] == UINT32_MAX);
        by_place[places[i]] = i;
        version->places[i] = places[i];
    }
    hps_free(version->by_place);
    version->by_place = by_place;
    version->n_places = n_places;
    return HPS_OK;
}

static bool alloc_places(struct hps_version *version)
{
    uint32_t n = version->n_tables;
    version->places = hps_calloc(n, sizeof(*version->places));
    version->by_place = hps_calloc(n, sizeof(*version->by_place));
    if (version->places == NULL || version->by_place == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < n; i++) {
        version->places[i] = i;
        version->by_place[i] = i;
    }
    version->n_places = n;
    return true;
}

struct hps_version *hps_version_new(const char *model, int64_t number, uint32_t n_tables)
{
    struct hps_version *version = hps_calloc(1, sizeof(*version));
    if (version == NULL) {
        return NULL;
    }
    version->number = number;
    atomic_init(&version->cache_tier, HPS_TIER_GPU);
    atomic_init(&version->hit_rate_threshold, 1.0);
    version->n_tables = n_tables;
    version->model = hps_strdup(model);
    version->tables = hps_calloc(n_tables, sizeof(*version->tables));
    version->metrics = hps_calloc(n_tables, sizeof(*version->metrics));
    version->hot = hps_calloc(n_tables, sizeof(*version->hot));
    version->absent = hps_absent_new();
    version->fetched = hps_fetched_new();
    version->flight = hps_flight_new();
    if (version->model == NULL || version->tables == NULL || version->metrics == NULL ||
        version->hot == NULL || version->absent == NULL || version->fetched == NULL ||
        version->flight == NULL || !alloc_places(version)) {
        hps_version_free(version);
        return NULL;
    }
    return version;
}

void hps_version_free(struct hps_version *version)
{
    if (version == NULL) {
        return;
    }
    for (uint32_t i = 0; version->tables != NULL && i < version->n_tables; i++) {
        hps_free((void *)version->tables[i].name);
        hps_free((void *)version->tables[i].default_row);
    }
    if (version->updates != NULL) {
        version->updates_free(version->updates);
    }
    hps_stamps_free(version->stamps);
    hps_absent_free(version->absent);
    hps_fetched_free(version->fetched);
    hps_flight_free(version->flight);
    hps_free(version->tables);
    hps_free(version->places);
    hps_free(version->by_place);
    hps_free(version->metrics);
    hps_free(version->hot);
    hps_free(version->model);
    hps_free(version->label);
    hps_free(version->lineage);
    hps_free(version->source);
    hps_free(version->fingerprint);
    hps_free(version->load_id);
    hps_free(version->config);
    hps_free(version->configured);
    hps_free(version);
}

uint32_t hps_version_table(const struct hps_version *version, const char *name, size_t size)
{
    for (uint32_t i = 0; i < version->n_tables; i++) {
        if (hps_text_is(version->tables[i].name, name, size)) {
            return i;
        }
    }
    return UINT32_MAX;
}

void hps_version_pin(struct hps_version *version)
{
    atomic_fetch_add(&version->pins[hps_version_shard()].n_taken, 1);
}

void hps_version_unpin(struct hps_version *version)
{
    atomic_fetch_add(&version->pins[hps_version_shard()].n_given, 1);
}

/* The shards are read one after another while holders pin and unpin, but both counts only rise. At
 * the moment between the two passes, at least n_given pins had been returned and at most n_taken
 * taken. If these are equal, no pin was held then, and a thread without a pin cannot take a further
 * one. */
bool hps_version_idle(const struct hps_version *version)
{
    uint64_t n_given = 0, n_taken = 0;
    for (unsigned i = 0; i < HPS_PIN_SHARDS; i++) {
        n_given += atomic_load(&version->pins[i].n_given);
    }
    for (unsigned i = 0; i < HPS_PIN_SHARDS; i++) {
        n_taken += atomic_load(&version->pins[i].n_taken);
    }
    HPS_ASSERT(n_taken >= n_given);
    return n_taken == n_given;
}

bool hps_version_backfills(const struct hps_version *version, uint32_t tier)
{
    const struct hps_store_ops *ops = version->tiers[tier]->store->ops;

    return version->shared_takes_missed && tier + 1 < version->n_tiers &&
           (ops->caps & HPS_STORE_SHARED) != 0 && (ops->caps & HPS_STORE_INSERTS) != 0;
}

/* A refill clears host_complete before it clears `incomplete`, and sets it at its end. So read them
 * in the opposite order. */
bool hps_version_host_complete(const struct hps_version *version)
{
    for (uint32_t i = 0; i < version->n_tiers; i++) {
        const struct hps_space *space = version->tiers[i];
        bool blocks = (space->store->ops->caps & HPS_STORE_BLOCKING) != 0; /* not the host map */
        if (!blocks && atomic_load(&space->incomplete)) {
            return false;
        }
    }
    return atomic_load(&version->host_complete);
}

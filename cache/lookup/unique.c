/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds the unique keys of a part: each is walked once, and further copies of it are its
 * duplicates. Keys that a tier had before the walk are left out. On the thread that owns the
 * lookup.
 */
#include "base/assert.h"
#include "base/hash.h"
#include "cache/lookup/internal.h"

/* Up to this many keys are compared with each other; for more a set is faster. */
enum { QUADRATIC_KEYS_MAX = 8 };

/* The first key from i on that is not a hit. */
static uint32_t next_walked(const struct hps_lookup_part *part, uint32_t i)
{
    if (part->hits == NULL || i >= part->n_keys) {
        return i;
    }
    uint32_t missed = ~part->hits[i / 32] & UINT32_MAX << i % 32;
    while (missed == 0 && (i | 31) < part->n_keys - 1) {
        i = (i | 31) + 1;
        missed = ~part->hits[i / 32];
    }
    return missed == 0 ? part->n_keys : (i & ~31u) + (uint32_t)__builtin_ctz(missed);
}

static uint32_t count_hits(const struct hps_lookup_part *part)
{
    uint32_t n = 0;

    for (uint32_t i = 0; part->hits != NULL && i < part->n_keys; i += 32) {
        n += (uint32_t)__builtin_popcount(part->hits[i / 32]);
    }
    return n;
}

/* State while the keys of a part are added to the batch that is walked. */
struct dedupe {
    struct hps_lookup *lookup;
    struct hps_lookup_part *part;
    struct hps_batch *batch;
    uint32_t n; /* keys as sent that are not hits */
    uint32_t n_duplicates;
};

static hps_status add_duplicate(struct dedupe *dedupe, uint32_t index, uint32_t first)
{
    struct hps_lookup_part *part = dedupe->part;

    if (part->duplicates == NULL) { /* space for all remaining keys */
        size_t size = (size_t)(dedupe->n - dedupe->batch->n) * sizeof(*part->duplicates);
        part->duplicates = hps_arena_alloc(dedupe->lookup->arena, size);
        if (part->duplicates == NULL) {
            return HPS_EXHAUSTED;
        }
    }
    HPS_DEBUG_ASSERT(first < index); /* and the indices ascend */
    HPS_DEBUG_ASSERT(dedupe->n_duplicates == 0 ||
                     part->duplicates[dedupe->n_duplicates - 1].index < index);
    part->duplicates[dedupe->n_duplicates++] =
        (struct hps_duplicate){.index = index, .first = first};
    return HPS_OK;
}

static void add_unique(struct hps_batch *batch, uint32_t index, hps_key key)
{
    batch->keys[batch->n] = key;
    batch->slots[batch->n] = index;
    batch->n++;
}

static hps_status dedupe_few(struct dedupe *dedupe)
{
    const struct hps_lookup_part *part = dedupe->part;
    struct hps_batch *batch = dedupe->batch;

    for (uint32_t i = next_walked(part, 0); i < part->n_keys; i = next_walked(part, i + 1)) {
        hps_key key = lookup_key_at(part, i);
        uint32_t u = 0;

        while (u < batch->n && batch->keys[u] != key) {
            u++;
        }
        if (u == batch->n) {
            add_unique(batch, i, key);
        } else if (add_duplicate(dedupe, i, batch->slots[u]) != HPS_OK) {
            return HPS_EXHAUSTED;
        }
    }
    return HPS_OK;
}

hps_status lookup_take_set(struct hps_lookup *lookup, uint64_t n, struct hps_index_set *out_set)
{
    uint64_t size = hps_index_set_places(n);

    if (size > lookup->set_size) {
        lookup->set = hps_arena_alloc(lookup->arena, size * sizeof(*lookup->set));
        if (lookup->set == NULL || size > UINT32_MAX) {
            lookup->set_size = 0;
            return HPS_EXHAUSTED;
        }
        lookup->set_size = (uint32_t)size;
    }
    hps_index_set_init(out_set, lookup->set, size);
    return HPS_OK;
}

struct wanted {
    const hps_key *keys; /* of the batch */
    hps_key key;
};

static bool is_key(const void *ctx, uint32_t i)
{
    const struct wanted *wanted = ctx;

    return wanted->keys[i] == wanted->key;
}

/* Uses a set of the keys of the batch. */
static hps_status dedupe_many(struct dedupe *dedupe)
{
    struct hps_lookup *lookup = dedupe->lookup;
    const struct hps_lookup_part *part = dedupe->part;
    struct hps_batch *batch = dedupe->batch;
    uint64_t secret = hps_hash_secret();
    struct hps_index_set set;

    if (lookup_take_set(lookup, dedupe->n, &set) != HPS_OK) {
        return HPS_EXHAUSTED;
    }
    for (uint32_t i = next_walked(part, 0); i < part->n_keys; i = next_walked(part, i + 1)) {
        hps_key key = lookup_key_at(part, i);
        const struct wanted wanted = {batch->keys, key};
        uint32_t *place = hps_index_set_find(&set, hps_mix64(key ^ secret), is_key, &wanted);

        if (*place == 0) {
            add_unique(batch, i, key);
            *place = batch->n;
        } else if (add_duplicate(dedupe, i, batch->slots[*place - 1]) != HPS_OK) {
            return HPS_EXHAUSTED;
        }
    }
    return HPS_OK;
}

hps_status lookup_start_part(struct hps_lookup *lookup, struct hps_lookup_part *part)
{
    struct hps_batch batch = {0};
    uint32_t n_hits = count_hits(part);

    HPS_ASSERT(n_hits <= part->n_keys);
    struct dedupe dedupe = {
        .lookup = lookup, .part = part, .batch = &batch, .n = part->n_keys - n_hits};
    hps_status status = HPS_OK;

    part->duplicates = NULL;
    part->rows = lookup->rows + part->rows_offset;
    lookup_set_places(lookup, part, &batch);
    if (dedupe.n > 0) {
        batch.keys = hps_arena_alloc(lookup->arena, dedupe.n * sizeof(*batch.keys));
        batch.slots = hps_arena_alloc(lookup->arena, dedupe.n * sizeof(*batch.slots));
        if (batch.keys == NULL || batch.slots == NULL) {
            part->rows = NULL;
            return HPS_EXHAUSTED;
        }
        status = dedupe.n <= QUADRATIC_KEYS_MAX ? dedupe_few(&dedupe) : dedupe_many(&dedupe);
        HPS_ASSERT(status != HPS_OK || batch.n + dedupe.n_duplicates == dedupe.n);
    }
    part->n_unique = n_hits + batch.n;
    hps_walk_init(&part->walk, lookup->version, part->table, &batch);
    hps_walk_found_before(&part->walk, part->hits_tier, n_hits);
    return status;
}

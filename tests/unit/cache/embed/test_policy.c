/* SPDX-License-Identifier: Apache-2.0
 *
 * Hit rate of the embedding cache on a trace, compared with a model of its policy and with LRU.
 * All three have the same number of rows and the same trace.
 */
#include "base/heap.h"
#include "cache/embed/kernels.h"
#include "tests/lib/embed_fixture.h"

enum {
    N_KEYS = 1 << 14,
    BATCH = 512,
    N_BATCHES = 160,
    N_WARM = 60,
    ROW_BYTES = 4,
    N_SLOTS = 800,
    WAYS = HPS_EMBED_KERNEL_WAYS,
    SETS_WINDOW = 40,      /* counts per slot before all counts are halved */
    POLICY_SETS_SEED = 42, /* the seed of the sets in the cache's configuration */
};

#define POINTS_MAX 0.3
#define NONE       UINT32_MAX

/* ---- models ---------------------------------------------------------------------------------- */

/* A cache of `capacity` rows that stores no rows. `there` marks the cached keys below N_KEYS. */
struct policy {
    const struct policy_kind *kind;
    uint32_t capacity, n_keys;
    uint32_t *slots; /* [capacity] keys, NONE where a slot is empty */
    bool there[N_KEYS];
    uint8_t *sketch; /* [HPS_EMBED_SKETCH_ROWS][n_cells], for policy_sets */
    uint32_t n_cells, n_counted;
    uint64_t touched[N_KEYS]; /* time of the last request or insertion, for policy_lru */
    uint64_t now;
};

/* touch: record a request for a key. insert: cache a missing key, immediately or later. */
struct policy_kind {
    void (*touch)(struct policy *policy, uint32_t key);
    void (*insert)(struct policy *policy, uint32_t key); /* the key must be missing */
};

static uint8_t *sets_cell(const struct policy *policy, uint32_t row, uint32_t key)
{
    uint64_t twice = hps_mix64(hps_embed_mix(key, POLICY_SETS_SEED));

    return policy->sketch + hps_embed_cell_at(0, policy->n_cells, row, twice);
}

static unsigned sets_estimate(const struct policy *policy, uint32_t key)
{
    unsigned least = HPS_EMBED_COUNT_MAX;

    for (uint32_t row = 0; row < HPS_EMBED_SKETCH_ROWS; row++) {
        unsigned count = *sets_cell(policy, row, key);
        least = count < least ? count : least;
    }
    return least;
}

static void sets_touch(struct policy *policy, uint32_t key)
{
    unsigned least = sets_estimate(policy, key);

    for (uint32_t row = 0; row < HPS_EMBED_SKETCH_ROWS && least < HPS_EMBED_COUNT_MAX; row++) {
        uint8_t *cell = sets_cell(policy, row, key);
        *cell = (uint8_t)(*cell + (*cell == least));
    }
    if (++policy->n_counted < SETS_WINDOW * policy->capacity) {
        return;
    }
    for (size_t i = 0; i < (size_t)HPS_EMBED_SKETCH_ROWS * policy->n_cells; i++) {
        policy->sketch[i] >>= 1;
    }
    policy->n_counted = 0;
}

static void put(struct policy *policy, uint32_t *slot, uint32_t key)
{
    if (*slot != NONE) {
        policy->there[*slot] = false;
    } else {
        policy->n_keys++;
    }
    *slot = key;
    policy->there[key] = true;
}

static void sets_insert(struct policy *policy, uint32_t key)
{
    uint32_t set = hps_embed_set(hps_embed_mix(key, POLICY_SETS_SEED), policy->capacity / WAYS);
    uint32_t *ways = policy->slots + (size_t)set * WAYS, *least = NULL;
    unsigned fewest = sets_estimate(policy, key);

    for (uint32_t i = 0; i < WAYS; i++) {
        if (ways[i] == NONE) {
            least = &ways[i];
            break;
        }
        if (sets_estimate(policy, ways[i]) < fewest) {
            fewest = sets_estimate(policy, ways[i]);
            least = &ways[i];
        }
    }
    if (least != NULL) {
        put(policy, least, key);
    }
}

/* A model of the cache on a device, key by key, with 8-way sets. A new key takes an empty way.
 * In a full set, it replaces the key with the least count in the sketch, if its own count is
 * higher. Capacity: a multiple of 8, at least 16. */
static const struct policy_kind policy_sets = {sets_touch, sets_insert};

static void lru_touch(struct policy *policy, uint32_t key)
{
    policy->touched[key] = ++policy->now;
}

static void lru_insert(struct policy *policy, uint32_t key)
{
    uint32_t *oldest = &policy->slots[0];

    for (uint32_t i = 0; i < policy->capacity; i++) {
        uint32_t *slot = &policy->slots[i];
        if (*slot == NONE) {
            oldest = slot;
            break;
        }
        oldest = policy->touched[*slot] < policy->touched[*oldest] ? slot : oldest;
    }
    put(policy, oldest, key);
    policy->touched[key] = ++policy->now;
}

/* Evict the least recently used key: the lower bound. */
static const struct policy_kind policy_lru = {lru_touch, lru_insert};

static struct policy *policy_new(const struct policy_kind *kind, uint32_t capacity)
{
    struct policy *policy = hps_calloc(1, sizeof(*policy));

    assert_non_null(policy);
    policy->kind = kind;
    policy->capacity = capacity;
    policy->n_cells = hps_embed_sketch_cells(capacity / WAYS);
    policy->slots = hps_calloc(capacity, sizeof(*policy->slots));
    policy->sketch = hps_calloc(HPS_EMBED_SKETCH_ROWS, policy->n_cells);
    assert_non_null(policy->slots);
    assert_non_null(policy->sketch);
    for (uint32_t i = 0; i < capacity; i++) {
        policy->slots[i] = NONE;
    }
    return policy;
}

static void policy_free(struct policy *policy)
{
    hps_free(policy->slots);
    hps_free(policy->sketch);
    hps_free(policy);
}

static bool policy_touch(struct policy *policy, uint32_t key)
{
    policy->kind->touch(policy, key);
    return policy->there[key];
}

static void policy_insert(struct policy *policy, uint32_t key)
{
    if (!policy->there[key]) { /* a batch may have a key twice */
        policy->kind->insert(policy, key);
    }
}

static void request(struct policy *policy, uint32_t key)
{
    if (!policy_touch(policy, key)) {
        policy_insert(policy, key);
    }
}

static void test_sets_when_full_then_a_new_key_needs_more_requests(void **state)
{
    struct policy *policy = policy_new(&policy_sets, 16);
    uint32_t n = 0;

    (void)state;
    for (uint32_t key = 0; key < 100; key++) { /* more keys than ways, each requested once */
        request(policy, key);
    }
    for (uint32_t key = 0; key < 100; key++) {
        n += policy->there[key];
    }
    assert_int_equal(n, 16);
    assert_int_equal(policy->n_keys, 16);
    uint32_t out = 0;
    while (policy->there[out]) {
        out++;
    }
    for (uint32_t i = 0; i < 20; i++) { /* 20: other keys may share its counters */
        request(policy, out);
    }
    assert_true(policy->there[out]);
    assert_int_equal(policy->n_keys, 16);
    policy_free(policy);
}

static void test_lru_when_full_then_the_least_recent_is_evicted(void **state)
{
    struct policy *policy = policy_new(&policy_lru, 16);

    (void)state;
    for (uint32_t key = 0; key < 16; key++) {
        request(policy, key);
    }
    assert_true(policy_touch(policy, 0));
    request(policy, 16);
    assert_true(policy->there[0]);
    assert_false(policy->there[1]);
    assert_true(policy->there[2]);
    assert_true(policy->there[16]);
    policy_free(policy);
}

/* ---- the cache ------------------------------------------------------------------------------- */

/* Look up a batch and move its missing keys to the front of `keys`. All counts are updated on
 * return. */
static uint32_t missing(struct embed_fixture *f, struct hps_embed_range *range, hps_key *keys)
{
    struct hps_embed_part part = {.range = range,
                                  .keys = (const uint8_t *)keys,
                                  .n = BATCH,
                                  .region = f->rig.queries[0].region};
    struct hps_embed_ticket *ticket;
    uint32_t n = 0;

    assert_int_equal(hps_embed_submit(f->rig.cache, &part, 1, &ticket), HPS_OK);
    while (hps_embed_poll(ticket) == HPS_AGAIN) {
    }
    const uint32_t *hits = hps_embed_hits(ticket, 0);
    for (uint32_t i = 0; i < BATCH; i++) {
        if ((hits[i / 32] >> i % 32 & 1) == 0) {
            keys[n++] = keys[i];
        }
    }
    hps_embed_release(ticket);
    embed_drain(&f->rig);
    return n;
}

static double percent(uint64_t n_missed)
{
    return 100.0 - 100.0 * (double)n_missed / ((N_BATCHES - N_WARM) * (double)BATCH);
}

static double replay_cache(struct embed_fixture *f, struct hps_embed_range *range,
                           const uint32_t *trace)
{
    static const uint8_t rows[BATCH * ROW_BYTES];
    uint64_t n_missed = 0;

    for (uint32_t b = 0; b < N_BATCHES; b++) {
        hps_key keys[BATCH];
        uint32_t n_taken = 0;
        for (uint32_t i = 0; i < BATCH; i++) {
            keys[i] = trace[b * BATCH + i];
        }
        uint32_t n = missing(f, range, keys);
        n_missed += b >= N_WARM ? n : 0;
        if (n > 0) {
            assert_int_equal(hps_embed_stage(f->rig.cache, range, HPS_EMBED_INSERT, keys, rows, n,
                                             NULL, &n_taken),
                             HPS_OK);
        }
        assert_int_equal(n_taken, n);
        embed_drain(&f->rig); /* so that insertions precede the next counts */
    }
    return percent(n_missed);
}

static double replay_policy(const struct policy_kind *kind, uint32_t capacity,
                            const uint32_t *trace)
{
    struct policy *policy = policy_new(kind, capacity);
    uint64_t n_missed = 0;

    for (uint32_t b = 0; b < N_BATCHES; b++) {
        uint32_t keys[BATCH], n = 0;
        for (uint32_t i = 0; i < BATCH; i++) {
            if (!policy_touch(policy, trace[b * BATCH + i])) {
                keys[n++] = trace[b * BATCH + i];
            }
        }
        for (uint32_t i = 0; i < n; i++) {
            policy_insert(policy, keys[i]);
        }
        n_missed += b >= N_WARM ? n : 0;
    }
    policy_free(policy);
    return percent(n_missed);
}

static void test_hit_rate_when_every_key_is_counted_then_equal_to_the_model(void **state)
{
    struct hps_embed_cache_config config = fixture_config();
    struct hps_embed_range_config range_config = {
        ROW_BYTES, N_KEYS, hps_embed_range_bytes(ROW_BYTES, N_KEYS, N_SLOTS)};
    uint32_t *trace = hps_calloc(N_BATCHES * BATCH, sizeof(*trace));
    struct hps_embed_range *range;
    struct hps_random random = {5};
    struct hps_zipf zipf;
    struct embed_fixture f;
    (void)state;

    hps_zipf_init(&zipf, N_KEYS, 1.05, 0);
    for (uint32_t i = 0; i < N_BATCHES * BATCH; i++) {
        trace[i] = (uint32_t)hps_zipf_row(&zipf, hps_zipf_rank(&zipf, &random));
    }
    config.seed = POLICY_SETS_SEED;
    fixture_open(&f, 0, &config);
    assert_int_equal(hps_embed_range_new(f.rig.cache, &range_config, &range, &f.err), HPS_OK);
    uint32_t n_slots = (uint32_t)range->usage.n_slots;
    double ours = replay_cache(&f, range, trace);
    double model = replay_policy(&policy_sets, n_slots, trace);
    double lru = replay_policy(&policy_lru, n_slots, trace);
    print_message("%u slots: cache %.2f %%, policy %.2f %%, LRU %.2f %%\n", n_slots, ours, model,
                  lru);
    assert_true(ours > model - POINTS_MAX && ours < model + POINTS_MAX);
    assert_true(ours > lru + 2);
    hps_embed_range_free(range);
    hps_free(trace);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sets_when_full_then_a_new_key_needs_more_requests),
        cmocka_unit_test(test_lru_when_full_then_the_least_recent_is_evicted),
        cmocka_unit_test(test_hit_rate_when_every_key_is_counted_then_equal_to_the_model),
    };
    return cmocka_run_group_tests_name("embed_policy", tests, NULL, NULL);
}

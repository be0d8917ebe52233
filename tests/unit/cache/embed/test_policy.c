/* SPDX-License-Identifier: Apache-2.0
 *
 * What the embedding cache keeps: its hit rate on a trace, beside that of a simulation of its
 * policy (bench/policies.h) on the same trace.
 */
#include "base/heap.h"
#include "bench/policies.h"
#include "tests/lib/embed_fixture.h"

enum { N_KEYS = 1 << 14, BATCH = 512, N_BATCHES = 160, N_WARM = 60, ROW_BYTES = 4, N_SLOTS = 800 };

#define POINTS_MAX 0.3

/* Look keys up; the missing ones are left in front. The counts are in when it returns. */
static uint32_t missing(struct embed_fixture *f, struct hps_embed_range *range, hps_key *keys)
{
    struct hps_embed_part part = {range, (const uint8_t *)keys, BATCH, f->rig.queries[0].region, 0};
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
        embed_drain(&f->rig); /* else the next batch is counted before these are judged */
    }
    return percent(n_missed);
}

static double replay_policy(const struct policy_kind *kind, uint32_t capacity,
                            const uint32_t *trace)
{
    struct policy *policy = policy_new(kind, N_KEYS, capacity);
    uint64_t n_missed = 0;

    assert_non_null(policy);
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

static void test_hit_rate_when_every_key_is_counted_then_is_that_of_the_policy(void **state)
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
        cmocka_unit_test(test_hit_rate_when_every_key_is_counted_then_is_that_of_the_policy),
    };
    return cmocka_run_group_tests_name("embed_policy", tests, NULL, NULL);
}

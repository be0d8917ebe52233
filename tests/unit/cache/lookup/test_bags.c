/* SPDX-License-Identifier: Apache-2.0
 *
 * Lookups in every reply form (types, one matrix, bags) over every arrangement of tiers. The
 * bytes always equal those of tests/lib/forms_fixture.h. One thread, except helpers and the
 * simulated device.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/container.h"
#include "tests/lib/forms_fixture.h"
#include "tests/lib/gpu_fixture.h"
#include "tests/lib/pause.h"
#include "tests/lib/work.h"

enum { N_DRAWS = HPS_TEST_WORK(60), GIVE_UP_US = 60 * 1000 * 1000, ODD = 0xA5 };

struct bags_test {
    struct forms_fixture fx;
    struct gpu_fixture gpu; /* blocks NULL: no gpu */
    struct hps_block_pool *blocks;
    struct hps_pool *helpers;
    struct hps_lookup lookup;
    atomic_bool answered;
    uint8_t *rows; /* if there are no blocks */
    struct hps_error err;
    /* Runs before a store call or before pooling, when the lookup checks for cancellation. */
    void (*come)(struct bags_test *t);
    unsigned n_calls; /* checks before the first run of `come` */
    unsigned n_times;
    bool gone; /* the client has disconnected */
};

static struct bags_test *open_test(const enum forms_tier *tiers, uint32_t n)
{
    struct bags_test *t = hps_calloc(1, sizeof(*t));

    assert_non_null(t);
    forms_open(&t->fx, tiers, n);
    t->fx.version.shared_takes_missed = true;
    return t;
}

static void close_test(struct bags_test *t)
{
    hps_lookup_release(&t->lookup);
    hps_block_unref(t->lookup.block);
    hps_pool_free(t->helpers);
    if (t->gpu.blocks != NULL) {
        gpu_fixture_close(&t->gpu);
    } else if (t->blocks != NULL) {
        assert_int_equal(hps_block_pool_bytes(t->blocks), 0);
        hps_block_pool_free(t->blocks);
    }
    hps_stamps_free(t->fx.version.stamps);
    hps_free_aligned(t->rows);
    forms_close(&t->fx);
    hps_clock_real();
    hps_free(t);
}

/* ---- a lookup -------------------------------------------------------------------------------- */

static void on_answered(struct hps_lookup *lookup)
{
    struct bags_test *t = HPS_CONTAINER_OF(lookup, struct bags_test, lookup);

    atomic_store(&t->answered, true);
}

static void ask_gpu(struct bags_test *t)
{
    uint64_t give_up_us = hps_clock_us() + GIVE_UP_US;

    atomic_store(&t->answered, false);
    if (!hps_lookup_ask_gpu(&t->lookup)) {
        return;
    }
    while (!atomic_load(&t->answered)) {
        assert_true(hps_clock_us() < give_up_us);
        brief_pause();
    }
}

static bool on_call(const void *ctx)
{
    struct bags_test *t = (struct bags_test *)ctx;

    if (t->n_calls > 0) {
        t->n_calls--;
    } else if (t->n_times > 0) {
        t->n_times--;
        t->come(t);
    }
    return t->gone;
}

/* Allocate the rows of the drawn lookup. */
static void begin(struct bags_test *t)
{
    struct hps_lookup *lookup = &t->lookup;

    hps_arena_reset(t->fx.arena);
    lookup->helpers = t->helpers;
    lookup->blocks = t->blocks;
    lookup->gpu_done = on_answered;
    if (t->come != NULL) { /* with helpers, many threads would check */
        lookup->cancelled = on_call;
        lookup->cancelled_ctx = t;
    }
    assert_int_equal(hps_lookup_plan(lookup, &t->err), HPS_OK);
    if (t->blocks != NULL) {
        assert_int_equal(hps_lookup_take_block(lookup), HPS_OK);
    } else {
        hps_free_aligned(t->rows);
        t->rows = hps_alloc_aligned(HPS_ROWS_ALIGN, lookup->rows_bytes + HPS_ROWS_ALIGN);
        assert_non_null(t->rows);
        lookup->rows = t->rows;
    }
    memset(lookup->rows, ODD, lookup->rows_bytes);
}

/* Run the steps as the lookup service does. */
static hps_status run(struct bags_test *t)
{
    struct hps_lookup *lookup = &t->lookup;
    bool done = false;

    ask_gpu(t);
    hps_status status = hps_lookup_run_memory(lookup, &done, &t->err);
    if (status == HPS_OK && !done) {
        ask_gpu(t);
        status = hps_lookup_run_gpu(lookup, &done, &t->err);
    }
    if (status == HPS_OK && !done) {
        status = hps_lookup_run_rest(lookup, &t->err);
    }
    return status;
}

static void end(struct bags_test *t)
{
    hps_block_unref(t->lookup.block);
    t->lookup.block = NULL;
    if (t->blocks != NULL) { /* gathered rows have been freed */
        assert_int_equal(hps_block_pool_bytes(t->blocks), 0);
    }
}

/* ---- checking -------------------------------------------------------------------------------- */

static void check_rows(const struct bags_test *t, const struct hps_lookup_part *part)
{
    uint8_t row[FORMS_ROW_MAX];

    for (uint32_t r = 0; r < part->n_rows; r++) {
        forms_expected(&t->fx, &t->lookup, part, r, row);
        assert_memory_equal(part->rows + r * part->stride, row, part->row_bytes);
    }
}

/* Every key has a status, and one tier replied for it. */
static void check_counts(const struct bags_test *t, const struct hps_lookup_part *part)
{
    uint32_t n_unknown = 0;
    uint32_t n_tiers = part->walk.n_absent + part->walk.batch.n;
    uint32_t n_hits = 0;

    for (uint32_t i = 0; i < part->n_keys; i++) {
        bool found = part->key_status == NULL || part->key_status[i] == HPS_KEY_FOUND;
        assert_int_equal(found, forms_exists(&t->fx, part->table->id, forms_key(part, i)));
        n_unknown += found ? 0 : 1;
        n_hits += hps_lookup_part_hit(part, i) ? 1 : 0;
    }
    for (unsigned kind = 0; kind < HPS_TIER_COUNT; kind++) {
        const struct hps_tier_report *report = &part->walk.reports[kind];
        n_tiers += report->n_found;
        assert_true(report->n_asked >= report->n_found - report->n_shared);
    }
    assert_int_equal(part->n_unknown, n_unknown);
    assert_int_equal(part->n_defaulted, 0);
    assert_int_equal(part->walk.n_found_before, n_hits);
    assert_int_equal(part->n_unique, n_tiers);
    assert_true(part->n_unique <= part->n_keys);
}

static void check(const struct bags_test *t)
{
    for (uint32_t i = 0; i < t->lookup.n_parts; i++) {
        const struct hps_lookup_part *part = &t->lookup.parts[i];
        if (part->n_rows > 0) {
            check_rows(t, part);
            check_counts(t, part);
        }
    }
}

static void draw_all(struct bags_test *t)
{
    for (uint64_t seed = 1; seed <= N_DRAWS; seed++) {
        forms_draw_lookup(&t->fx, seed * 1000, &t->lookup);
        t->lookup.path = (enum hps_lookup_path)(seed % 3);
        begin(t);
        assert_int_equal(run(t), HPS_OK);
        check(t);
        end(t);
    }
}

/* ---- arrangements ---------------------------------------------------------------------------- */

static struct bags_test *open_gpu_test(const enum forms_tier *tiers, uint32_t n)
{
    struct bags_test *t = open_test(tiers, n);

    gpu_fixture_open(&t->gpu, &t->fx.version, NULL);
    t->blocks = t->gpu.blocks;
    for (uint32_t table = 0; table < FORMS_TABLES; table++) {
        uint8_t row[FORMS_ROW_MAX];
        for (hps_key key = 0; key < FORMS_KEYS; key += 3) {
            if (forms_exists(&t->fx, table, key)) {
                forms_row(&t->fx, table, key, row);
                gpu_fixture_put(&t->gpu, &t->fx.tables[table], key, row);
            }
        }
    }
    return t;
}

static void test_forms_when_any_arrangement_of_tiers_then_rows_are_right(void **state)
{
    static const struct {
        enum forms_tier tiers[3];
        uint32_t n;
        bool gpu, blocks;
    } cases[] = {
        {{FORMS_HOST_MAP}, 1, false, false},
        {{FORMS_FAKE_HOST}, 1, false, false}, /* it neither converts rows nor pools bags */
        {{FORMS_DISK}, 1, false, true},
        {{FORMS_HOST_MAP, FORMS_DISK}, 2, false, true}, /* memory has some complete bags */
        {{FORMS_HOST_MAP, FORMS_REDIS, FORMS_DISK}, 3, false, false},
        {{FORMS_FAKE_HOST, FORMS_DISK}, 2, false, true},
        {{FORMS_DISK}, 1, true, true},
        {{FORMS_HOST_MAP, FORMS_DISK}, 2, true, true},
    };
    (void)state;
    for (unsigned c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        struct bags_test *t = cases[c].gpu ? open_gpu_test(cases[c].tiers, cases[c].n)
                                           : open_test(cases[c].tiers, cases[c].n);
        print_message("arrangement %u\n", c);
        if (cases[c].blocks && !cases[c].gpu) {
            t->blocks = hps_block_pool_new(0);
        }
        draw_all(t);
        close_test(t);
    }
}

/* ---- large lookups --------------------------------------------------------------------------- */

/* One large bag between small bags in each part. The bits must not depend on the number of
 * threads. */
static void draw_large(struct bags_test *t, uint64_t seed)
{
    forms_draw_lookup(&t->fx, seed, &t->lookup);
    t->lookup.output = HPS_DTYPE_FP32;
    t->lookup.layout = HPS_LAYOUT_CONCAT;
    t->lookup.n_parts = 3;
    for (uint32_t i = 0; i < 3; i++) {
        struct forms_part *sent = &t->fx.sent[i];
        uint32_t n_large = i == 0 ? 100 * 1000 : 10 * 1000;
        forms_draw_part(&t->fx, i, 100, (enum hps_pooling)(2 + i));
        uint32_t n = sent->offsets[100];
        for (uint32_t b = 51; b <= 100; b++) {
            sent->offsets[b] += n_large;
        }
        for (uint32_t k = n; k < n + n_large; k++) {
            hps_key key = forms_draw(&t->fx, FORMS_KEYS);
            float weight = (float)((int)forms_draw(&t->fx, 65) - 32) / 8.0f;
            memcpy(sent->keys + 1 + k * sizeof(key), &key, sizeof(key));
            memcpy(sent->weights + 1 + k * sizeof(weight), &weight, sizeof(weight));
        }
        t->fx.parts[i].n_keys = sent->offsets[100];
    }
}

static void run_large(const enum forms_tier *tiers, uint32_t n, unsigned n_helpers)
{
    struct bags_test *t = open_test(tiers, n);

    if (n_helpers > 0) {
        assert_int_equal(hps_pool_new("helper", n_helpers, 64, &t->helpers), HPS_OK);
    }
    draw_large(t, 1);
    begin(t);
    assert_int_equal(run(t), HPS_OK);
    check(t);
    end(t);
    close_test(t);
}

static void test_large_bags_when_helpers_pool_pieces_then_the_same_bits(void **state)
{
    static const enum forms_tier tiers[] = {FORMS_FAKE_HOST, FORMS_HOST_MAP, FORMS_DISK};
    (void)state;
    run_large(tiers, 1, 3);
    run_large(tiers + 1, 1, 3);
    run_large(tiers + 1, 2, 3);
    run_large(tiers + 2, 1, 0);
}

/* ---- counts ---------------------------------------------------------------------------------- */

/* One part of table 0: bags of n keys each. */
static void set_bags(struct bags_test *t, const hps_key *keys, uint32_t n_keys, uint32_t n)
{
    struct forms_part *sent = &t->fx.sent[0];
    uint32_t n_bags = n_keys / n;

    memcpy(sent->keys + 1, keys, n_keys * sizeof(*keys));
    for (uint32_t b = 0; b <= n_bags; b++) {
        sent->offsets[b] = b * n;
    }
    t->fx.parts[0] = (struct hps_lookup_part){.table = &t->fx.tables[0],
                                              .keys = sent->keys + 1,
                                              .n_keys = n_keys,
                                              .pooling = HPS_POOLING_SUM,
                                              .n_bags = n_bags,
                                              .offsets = sent->offsets};
    t->lookup = (struct hps_lookup){.version = &t->fx.version,
                                    .arena = t->fx.arena,
                                    .scratch = t->fx.scratch,
                                    .parts = t->fx.parts,
                                    .n_parts = 1,
                                    .miss_policy = HPS_MISS_EXACT,
                                    .unknown_policy = HPS_UNKNOWN_DEFAULT_ROW};
}

/* The i-th key of table 0 that exists in the first tier, only below it, or nowhere. */
enum place { IN_MEMORY, BELOW, NOWHERE };

static hps_key key_in(struct bags_test *t, enum place place, uint32_t i)
{
    for (hps_key key = 0;; key++) {
        bool exists = forms_exists(&t->fx, 0, key);
        enum place of = !exists                   ? NOWHERE
                        : hps_mix64(key) % 2 == 0 ? IN_MEMORY
                                                  : BELOW; /* as in forms_fill */
        if (of == place && i-- == 0) {
            return key;
        }
    }
}

static void test_counts_when_memory_has_a_complete_bag_then_all_keys_sent_in_it_are_hits(
    void **state)
{
    static const enum forms_tier tiers[] = {FORMS_HOST_MAP, FORMS_DISK};
    struct bags_test *t = open_test(tiers, 2);
    hps_key a = key_in(t, IN_MEMORY, 0);
    hps_key b = key_in(t, IN_MEMORY, 1);
    hps_key below = key_in(t, BELOW, 0);
    const hps_key keys[] = {a, b, a, /**/ a, a, a, /**/ b, below, b, /**/ a, below, b};
    (void)state;
    set_bags(t, keys, 12, 3);
    begin(t);
    assert_int_equal(run(t), HPS_OK);
    const struct hps_lookup_part *part = &t->lookup.parts[0];
    check_rows(t, part);
    check_counts(t, part);
    assert_int_equal(part->n_whole_bags, 2);
    assert_int_equal(part->hits_tier, HPS_TIER_HOST);
    assert_int_equal(part->hits[0], 0x3f);
    assert_int_equal(part->n_unique, 6 + 3); /* a, b and `below`, in the last two bags */
    assert_int_equal(part->walk.reports[HPS_TIER_HOST].n_asked, 6 + 3);
    assert_int_equal(part->walk.reports[HPS_TIER_HOST].n_found, 6 + 2);
    assert_int_equal(part->walk.reports[HPS_TIER_ROCKSDB].n_found, 1);
    assert_int_equal(hps_walk_found_begin(&part->walk, HPS_TIER_HOST), 1);
    assert_int_equal(hps_walk_found_n(&part->walk, HPS_TIER_HOST), 2);
    assert_null(part->key_status);
    end(t);
    close_test(t);
}

static void test_counts_when_all_bags_are_empty_then_zeros(void **state)
{
    static const enum forms_tier tiers[] = {FORMS_FAKE_HOST, FORMS_DISK};
    struct bags_test *t = open_test(tiers, 2);
    static const uint8_t zeros[5 * 64];
    const hps_key none[1] = {0};
    (void)state;
    set_bags(t, none, 0, 1);
    memset(t->fx.sent[0].offsets, 0, 6 * sizeof(uint32_t));
    t->fx.parts[0].n_bags = 5;
    begin(t);
    assert_int_equal(run(t), HPS_OK);
    assert_memory_equal(t->fx.parts[0].rows, zeros, sizeof(zeros));
    assert_int_equal(t->fx.parts[0].n_unique, 0);
    end(t);
    close_test(t);
}

static void test_unknown_key_when_it_is_an_error_then_the_lookup_fails(void **state)
{
    static const enum forms_tier tiers[] = {FORMS_HOST_MAP};
    struct bags_test *t = open_test(tiers, 1);
    const hps_key keys[] = {key_in(t, IN_MEMORY, 0), FORMS_KEYS + 7};
    (void)state;
    set_bags(t, keys, 2, 2);
    t->lookup.unknown_policy = HPS_UNKNOWN_ERROR;
    begin(t);
    assert_int_equal(run(t), HPS_NOT_FOUND);
    assert_string_equal(t->err.text, "table 't0': unknown key 1007");
    end(t);
    close_test(t);
}

/* MEMORY_ONLY does not wait for rows: the default row is added to the sum. */
static void test_memory_only_when_a_key_is_below_then_its_default_row_is_added(void **state)
{
    static const enum forms_tier tiers[] = {FORMS_HOST_MAP, FORMS_DISK};
    struct bags_test *t = open_test(tiers, 2);
    const hps_key keys[] = {key_in(t, IN_MEMORY, 0), key_in(t, BELOW, 0), /**/
                            key_in(t, IN_MEMORY, 1), key_in(t, IN_MEMORY, 0)};
    (void)state;
    set_bags(t, keys, 4, 2);
    t->lookup.miss_policy = HPS_MISS_MEMORY_ONLY;
    begin(t);
    assert_int_equal(run(t), HPS_OK);
    const struct hps_lookup_part *part = &t->lookup.parts[0];
    assert_int_equal(part->key_status[1], HPS_KEY_DEFAULTED);
    assert_int_equal(part->n_defaulted, 1);
    check_rows(t, part); /* uses the status of each key */
    assert_int_equal(hps_fake_calls(t->fx.stores[1], HPS_FAKE_GET), 0);
    end(t);
    close_test(t);
}

/* ---- the hit rate ---------------------------------------------------------------------------- */

static bool waits_for_store(struct bags_test *t, const hps_key *keys, uint32_t n)
{
    struct hps_insertion *insertion = NULL;
    struct hps_pool *io = NULL;
    bool done = false;

    assert_int_equal(hps_pool_new("io", 1, 16, &io), HPS_OK);
    const struct hps_insertion_options options = {.io = io, .rows_max = 100, .jobs_max = 1};
    assert_int_equal(hps_insertion_new(&options, &insertion), HPS_OK);
    atomic_store(&t->fx.version.cache_tier, HPS_TIER_HOST);
    atomic_store(&t->fx.version.hit_rate_threshold, 0.5);
    set_bags(t, keys, n, 2);
    t->lookup.miss_policy = HPS_MISS_THRESHOLD;
    t->lookup.insertion = insertion;
    begin(t);
    assert_int_equal(hps_lookup_run_memory(&t->lookup, &done, &t->err), HPS_OK);
    if (!done) {
        assert_int_equal(hps_lookup_run_rest(&t->lookup, &t->err), HPS_OK);
    }
    hps_insertion_stop(insertion);
    hps_pool_free(io);
    hps_insertion_free(insertion);
    end(t);
    return !done;
}

static void test_threshold_when_hits_are_duplicates_then_each_key_counts_once(void **state)
{
    static const enum forms_tier tiers[] = {FORMS_HOST_MAP, FORMS_DISK};
    struct bags_test *t = open_test(tiers, 2);
    hps_key a = key_in(t, IN_MEMORY, 0);
    const hps_key same[] = {a, a, /**/ a, a, /**/ key_in(t, BELOW, 0), key_in(t, BELOW, 1)};
    const hps_key others[] = {a,
                              key_in(t, IN_MEMORY, 1),
                              /**/ key_in(t, IN_MEMORY, 2),
                              key_in(t, IN_MEMORY, 3),
                              /**/ key_in(t, BELOW, 2),
                              key_in(t, BELOW, 3)};
    (void)state;
    assert_true(waits_for_store(t, same, 6));    /* 1 of 3 keys is a hit */
    assert_false(waits_for_store(t, others, 6)); /* 4 of 6 keys are hits */
    close_test(t);
}

/* ---- units ----------------------------------------------------------------------------------- */

/* A batch of updates that changes every ninth row. */
static void update(struct bags_test *t)
{
    struct hps_version *version = &t->fx.version;

    hps_stamps_begin(version->stamps);
    for (uint32_t table = 0; table < FORMS_TABLES; table++) {
        for (hps_key key = 0; key < FORMS_KEYS; key += 9) {
            if (!forms_exists(&t->fx, table, key)) {
                continue;
            }
            hps_stamps_mark(version->stamps, table, &key, 1);
            t->fx.generation[table][key]++;
            for (uint32_t tier = version->n_tiers; tier-- > 0;) {
                forms_put(&t->fx, tier, table, key);
            }
        }
    }
    hps_stamps_end(version->stamps);
}

static void run_units(const enum forms_tier *tiers, uint32_t n)
{
    struct bags_test *t = open_test(tiers, n);
    unsigned n_torn = 0;

    t->blocks = hps_block_pool_new(0);
    t->fx.version.stamps = hps_stamps_new();
    t->come = update;
    for (uint64_t seed = 1; seed <= N_DRAWS / 2; seed++) {
        forms_draw_lookup(&t->fx, seed * 1000, &t->lookup);
        t->lookup.unit = true;
        t->n_calls = (unsigned)(seed % 7);
        t->n_times = 1;
        begin(t);
        hps_status status = run(t);
        if (status == HPS_ABORTED && t->lookup.torn) {
            n_torn++;
            status = hps_lookup_reread(&t->lookup, &t->err);
        }
        assert_int_equal(status, HPS_OK);
        check(t); /* against the current rows */
        end(t);
    }
    assert_true(n_torn > 0);
    close_test(t);
}

static void test_unit_when_an_update_comes_between_then_bags_are_of_one_state(void **state)
{
    static const enum forms_tier tiers[] = {FORMS_HOST_MAP, FORMS_DISK};
    (void)state;
    run_units(tiers, 2);
    run_units(tiers, 1);
    run_units(tiers + 1, 1);
}

/* A torn lookup is abandoned or started again. Both discard its gathered rows. */
static void test_unit_when_it_is_torn_then_abandoned_or_started_again(void **state)
{
    static const enum forms_tier tiers[] = {FORMS_HOST_MAP, FORMS_DISK};
    const hps_key keys[] = {0, 9, 18, 27, 36, 45, 54, 63};
    (void)state;
    for (unsigned again = 0; again < 2; again++) {
        struct bags_test *t = open_test(tiers, 2);
        t->blocks = hps_block_pool_new(0);
        t->fx.version.stamps = hps_stamps_new();
        t->come = update;
        set_bags(t, keys, 8, 4);
        t->lookup.unit = true;
        t->n_calls = 1;
        t->n_times = 1;
        begin(t);
        assert_int_equal(run(t), HPS_ABORTED);
        assert_true(t->lookup.torn);
        if (again == 1) {
            hps_lookup_again(&t->lookup);
            assert_int_equal(run(t), HPS_OK);
            check(t);
        } else {
            hps_lookup_release(&t->lookup);
            hps_lookup_release(&t->lookup);
        }
        end(t);
        close_test(t);
    }
}

/* ---- clients that disconnect ----------------------------------------------------------------- */

static void leave(struct bags_test *t)
{
    t->gone = true;
}

/* A disconnect at any check ends the lookup soon, with CANCELLED. */
static void test_cancel_when_at_any_check_then_cancelled(void **state)
{
    static const enum forms_tier tiers[] = {FORMS_HOST_MAP, FORMS_DISK};
    struct bags_test *t = open_test(tiers, 2);
    unsigned n_cancelled = 0;
    hps_status status = HPS_CANCELLED;
    (void)state;
    t->blocks = hps_block_pool_new(0);
    t->come = leave;
    for (unsigned n = 0; status == HPS_CANCELLED; n++) {
        draw_large(t, 3);
        t->gone = false;
        t->n_calls = n;
        t->n_times = 1;
        begin(t);
        status = run(t);
        assert_true(status == HPS_OK || status == HPS_CANCELLED);
        n_cancelled += status == HPS_CANCELLED ? 1 : 0;
        if (status == HPS_OK) {
            check(t);
        }
        end(t);
    }
    assert_true(n_cancelled > 5);
    close_test(t);
}

static void nothing(struct bags_test *t)
{
    (void)t;
}

/* How often a lookup of these keys, pooled or not, checks for cancellation. */
static unsigned looks_of(struct bags_test *t, const hps_key *keys, uint32_t n, bool pooled)
{
    set_bags(t, keys, n, n);
    t->fx.parts[0].pooling = pooled ? HPS_POOLING_SUM : HPS_POOLING_NONE;
    t->n_calls = UINT32_MAX;
    begin(t);
    assert_int_equal(run(t), HPS_OK);
    check(t);
    end(t);
    return UINT32_MAX - t->n_calls;
}

/* A lookup of one long bag checks for cancellation within the bag, for stored rows and for
 * gathered rows. */
static void test_cancel_when_one_bag_has_100000_keys_then_checked_within_the_bag(void **state)
{
    enum { N = 100 * 1000 };
    static const enum forms_tier host[] = {FORMS_HOST_MAP}, disk[] = {FORMS_DISK};
    static hps_key keys[N];
    (void)state;
    for (int gathered = 0; gathered < 2; gathered++) {
        struct bags_test *t = open_test(gathered == 1 ? disk : host, 1);
        for (uint32_t i = 0; i < N; i++) {
            keys[i] = hps_mix64(i) % FORMS_KEYS;
            while (!forms_exists(&t->fx, 0, keys[i])) {
                keys[i] = (keys[i] + 1) % FORMS_KEYS;
            }
        }
        t->blocks = hps_block_pool_new(0);
        t->come = nothing;
        assert_true(looks_of(t, keys, N, true) >= looks_of(t, keys, N, false) + 20);
        close_test(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forms_when_any_arrangement_of_tiers_then_rows_are_right),
        cmocka_unit_test(test_large_bags_when_helpers_pool_pieces_then_the_same_bits),
        cmocka_unit_test(
            test_counts_when_memory_has_a_complete_bag_then_all_keys_sent_in_it_are_hits),
        cmocka_unit_test(test_counts_when_all_bags_are_empty_then_zeros),
        cmocka_unit_test(test_unknown_key_when_it_is_an_error_then_the_lookup_fails),
        cmocka_unit_test(test_memory_only_when_a_key_is_below_then_its_default_row_is_added),
        cmocka_unit_test(test_threshold_when_hits_are_duplicates_then_each_key_counts_once),
        cmocka_unit_test(test_unit_when_an_update_comes_between_then_bags_are_of_one_state),
        cmocka_unit_test(test_unit_when_it_is_torn_then_abandoned_or_started_again),
        cmocka_unit_test(test_cancel_when_at_any_check_then_cancelled),
        cmocka_unit_test(test_cancel_when_one_bag_has_100000_keys_then_checked_within_the_bag),
    };
    return cmocka_run_group_tests_name("bags", tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Counting hot keys: how many of the hottest keys are found in a skewed trace, ageing, growth,
 * and complete and damaged records.
 */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/arena.h"
#include "base/hash.h"
#include "base/heap.h"
#include "cache/lookup/hot.h"
#include "tests/lib/lookup_fixture.h"

/* ---- a trace --------------------------------------------------------------------------------- */

enum { N_KEYS = 1 << 18, N_NOTED = 4 << 20, PART = 512, N_COUNTED = 4096, TOP = 2048 };

struct trace {
    double *cdf; /* [N_KEYS] by rank */
    uint64_t state;
};

static hps_key key_of(uint32_t rank)
{
    return hps_mix64(rank + HPS_HASH_GOLDEN);
}

static void trace_open(struct trace *trace, double alpha)
{
    double sum = 0;
    trace->cdf = hps_calloc(N_KEYS, sizeof(*trace->cdf));
    trace->state = 7;
    for (uint32_t i = 0; i < N_KEYS; i++) {
        sum += pow(i + 1, -alpha);
        trace->cdf[i] = sum;
    }
    for (uint32_t i = 0; i < N_KEYS; i++) {
        trace->cdf[i] /= sum;
    }
}

static void trace_close(struct trace *trace)
{
    hps_free(trace->cdf);
}

static uint32_t trace_next(struct trace *trace)
{
    trace->state += HPS_HASH_GOLDEN;
    double u = (double)(hps_mix64(trace->state) >> 11) * 0x1p-53;
    uint32_t lo = 0;
    uint32_t hi = N_KEYS - 1;
    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        if (trace->cdf[mid] < u) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

static int keys_up(const void *a, const void *b)
{
    hps_key left = *(const hps_key *)a;
    hps_key right = *(const hps_key *)b;
    return left < right ? -1 : left > right;
}

/* The share of the TOP hottest keys that is among the first TOP of `top`. out_hits: lookups of
 * these keys, as a share of the lookups of all TOP hottest keys. */
static double found_share(const struct trace *trace, const struct hps_hot_key *top, uint32_t n,
                          double *out_hits)
{
    n = n < TOP ? n : TOP;
    hps_key *keys = hps_calloc(n + 1, sizeof(*keys));
    for (uint32_t i = 0; i < n; i++) {
        keys[i] = top[i].key;
    }
    qsort(keys, n, sizeof(*keys), keys_up);
    uint32_t n_found = 0;
    double hits = 0;
    for (uint32_t rank = 0; rank < N_KEYS; rank++) {
        hps_key key = key_of(rank);
        if (bsearch(&key, keys, n, sizeof(*keys), keys_up) != NULL) {
            n_found += rank < TOP;
            hits += trace->cdf[rank] - (rank > 0 ? trace->cdf[rank - 1] : 0);
        }
    }
    hps_free(keys);
    *out_hits = hits / trace->cdf[TOP - 1];
    return (double)n_found / TOP;
}

/* ---- other algorithms ------------------------------------------------------------------------ */

/* Space-saving with the same memory: a new key takes over the place and the count of the key
 * with the least count in its bucket. */
struct saving {
    struct hps_hot_key keys[N_COUNTED];
};

static void saving_count(struct saving *saving, hps_key key)
{
    struct hps_hot_key *bucket = &saving->keys[hps_mix64(key) % (N_COUNTED / 8) * 8];
    struct hps_hot_key *least = bucket;
    for (unsigned i = 0; i < 8; i++) {
        if (bucket[i].key == key && bucket[i].count > 0) {
            bucket[i].count++;
            return;
        }
        least = bucket[i].count < least->count ? &bucket[i] : least;
    }
    least->key = key;
    least->count++;
}

static int counts_down(const void *a, const void *b)
{
    const struct hps_hot_key *left = a;
    const struct hps_hot_key *right = b;
    return left->count > right->count ? -1 : left->count < right->count;
}

/* Exact counts of 1 in 64 lookups of the trace, without a limit of memory. */
static struct hps_hot_key *exact_counts(const uint32_t *sampled)
{
    struct hps_hot_key *all = hps_calloc(N_KEYS, sizeof(*all));
    for (uint32_t i = 0; i < N_KEYS; i++) {
        all[i] = (struct hps_hot_key){key_of(i), sampled[i]};
    }
    qsort(all, N_KEYS, sizeof(*all), counts_down);
    return all;
}

struct shares {
    double found, hits, saving_found, saving_hits, exact_found, exact_hits;
};

static struct shares run_trace(double alpha, uint32_t n_noted)
{
    struct trace trace;
    struct shares shares;
    hps_key part[PART];
    struct hps_hot *hot = hps_hot_new(N_COUNTED);
    struct saving *saving = hps_calloc(1, sizeof(*saving));
    uint32_t *sampled = hps_calloc(N_KEYS, sizeof(*sampled));
    trace_open(&trace, alpha);
    for (uint32_t i = 0; i < n_noted; i += PART) {
        for (uint32_t k = 0; k < PART; k++) {
            uint32_t rank = trace_next(&trace);
            part[k] = key_of(rank);
            if (hps_mix64(i + k) % 64 == 0) {
                saving_count(saving, part[k]);
                sampled[rank]++;
            }
        }
        hps_hot_note(hot, part, PART);
    }
    struct hps_hot_key *top;
    uint32_t n;
    assert_int_equal(hps_hot_top(hot, &top, &n), HPS_OK);
    struct hps_hot_key *exact = exact_counts(sampled);
    qsort(saving->keys, N_COUNTED, sizeof(saving->keys[0]), counts_down);
    shares.found = found_share(&trace, top, n, &shares.hits);
    shares.saving_found = found_share(&trace, saving->keys, N_COUNTED, &shares.saving_hits);
    shares.exact_found = found_share(&trace, exact, N_KEYS, &shares.exact_hits);
    hps_free(top);
    hps_free(exact);
    hps_free(sampled);
    hps_free(saving);
    hps_hot_free(hot);
    trace_close(&trace);
    return shares;
}

static void test_top_when_the_trace_is_skewed_then_most_of_the_hottest_keys_are_found(void **state)
{
    static const double alphas[] = {0.8, 1.0, 1.2};
    static const double hits_min[] = {0.88, 0.95, 0.97};
    (void)state;
    for (unsigned i = 0; i < sizeof(alphas) / sizeof(alphas[0]); i++) {
        struct shares shares = run_trace(alphas[i], N_NOTED);
        print_message("alpha %.1f, keys found and their look-ups: ours %.3f %.3f, space-saving "
                      "%.3f %.3f, exact counts of 1 in 64 %.3f %.3f\n",
                      alphas[i], shares.found, shares.hits, shares.saving_found, shares.saving_hits,
                      shares.exact_found, shares.exact_hits);
        assert_true(shares.hits >= hits_min[i]);
        assert_true(shares.found > shares.saving_found + 0.05);
    }
}

/* After a short time, 16 lookups per counted key suffice to find the hottest keys. */
static void test_top_when_few_lookups_were_noted_then_the_hottest_keys_are_found(void **state)
{
    (void)state;
    struct shares shares = run_trace(1.0, 16 * N_COUNTED);
    print_message("of %d look-ups: keys found %.3f and their look-ups %.3f\n", 16 * N_COUNTED,
                  shares.found, shares.hits);
    assert_true(shares.hits >= 0.9);
}

/* ---- counting -------------------------------------------------------------------------------- */

static uint32_t count_of(struct hps_hot *hot, hps_key key)
{
    struct hps_hot_key *top;
    uint32_t n;
    uint32_t count = 0;
    assert_int_equal(hps_hot_top(hot, &top, &n), HPS_OK);
    for (uint32_t i = 0; i < n; i++) {
        count = top[i].key == key ? top[i].count : count;
        assert_true(i == 0 || top[i - 1].count >= top[i].count);
    }
    hps_free(top);
    return count;
}

/* Calls of one key count like one call of many keys. */
static void test_note_when_calls_have_one_key_then_counted_like_one_long_call(void **state)
{
    static const hps_key keys[] = {0, 1, UINT64_MAX, UINT64_C(1) << 63};
    struct hps_hot *hot = hps_hot_new(N_COUNTED);
    (void)state;
    for (uint32_t i = 0; i < 80000; i++) {
        hps_hot_note(hot, &keys[i % 4], 1);
    }
    assert_int_equal(hps_hot_seen(hot), 80000);
    for (unsigned i = 0; i < 4; i++) {
        assert_in_range(count_of(hot, keys[i]), 18000, 22000);
    }
    hps_hot_free(hot);
}

static void test_note_when_the_same_lookup_comes_again_then_all_its_keys_are_counted(void **state)
{
    struct hps_hot *hot = hps_hot_new(N_COUNTED);
    struct hps_hot_key *top;
    hps_key part[256];
    uint32_t n;
    (void)state;
    for (uint32_t i = 0; i < 256; i++) {
        part[i] = i; /* a multiple of every sampling distance */
    }
    for (uint32_t i = 0; i < 400; i++) {
        hps_hot_note(hot, part, 256);
    }
    assert_int_equal(hps_hot_top(hot, &top, &n), HPS_OK);
    assert_int_equal(n, 256);
    hps_free(top);
    hps_hot_free(hot);
}

static void note_many(struct hps_hot *hot, hps_key key, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        hps_hot_note(hot, &key, 1);
    }
}

static void test_age_when_enough_was_noted_then_halved_and_idle_time_keeps_counts(void **state)
{
    struct hps_hot *hot = hps_hot_new(HPS_HOT_KEYS_MIN);
    (void)state;
    hps_hot_add(hot, 5, 1000);
    hps_hot_age(hot);
    assert_int_equal(count_of(hot, 5), 1000);
    note_many(hot, 6, 100 * HPS_HOT_KEYS_MIN);
    hps_hot_age(hot);
    assert_int_equal(count_of(hot, 5), 500);
    hps_hot_age(hot);
    assert_int_equal(count_of(hot, 5), 500);
    hps_hot_free(hot);
}

static void test_note_when_other_keys_become_hot_then_they_replace_the_old_ones(void **state)
{
    struct hps_hot *hot = hps_hot_new(HPS_HOT_KEYS_MIN);
    (void)state;
    for (hps_key key = 0; key < 1000; key++) {
        hps_hot_add(hot, key, 5000);
    }
    for (unsigned round = 0; round < 16; round++) {
        for (hps_key key = 1 << 20; key < (1 << 20) + 8; key++) {
            note_many(hot, key, 1000);
        }
        hps_hot_age(hot);
    }
    uint32_t n_found = 0;
    for (hps_key key = 1 << 20; key < (1 << 20) + 8; key++) {
        n_found += count_of(hot, key) > 0;
    }
    assert_int_equal(n_found, 8);
    hps_hot_free(hot);
}

static void test_grow_when_wider_then_counts_stay_and_never_shrinks(void **state)
{
    struct hps_hot *hot = hps_hot_new(HPS_HOT_KEYS_MIN);
    (void)state;
    for (hps_key key = 0; key < 20; key++) {
        hps_hot_add(hot, key, 10 + (uint32_t)key);
    }
    uint32_t n_there = 0;
    uint32_t there[20];
    for (hps_key key = 0; key < 20; key++) {
        there[key] = count_of(hot, key);
        n_there += there[key] > 0;
    }
    assert_true(n_there >= 8);
    assert_int_equal(hps_hot_grow(hot, 5000), HPS_OK);
    assert_int_equal(hps_hot_keys_max(hot), 5000);
    assert_int_equal(hps_hot_grow(hot, 100), HPS_OK);
    assert_int_equal(hps_hot_keys_max(hot), 5000);
    for (hps_key key = 0; key < 20; key++) {
        assert_int_equal(count_of(hot, key), there[key]);
    }
    hps_hot_free(hot);
}

enum { N_THREADS = 3, N_ROUNDS = 2000 };

static void *note_on_thread(void *arg)
{
    hps_key part[64];
    for (uint32_t i = 0; i < N_ROUNDS; i++) {
        for (uint32_t k = 0; k < 64; k++) {
            part[k] = i % 16 * 64 + k;
        }
        hps_hot_note(arg, part, 64);
    }
    return NULL;
}

static void test_note_when_counts_are_read_and_grow_concurrently_then_keys_are_right(void **state)
{
    struct hps_hot *hot = hps_hot_new(HPS_HOT_KEYS_MIN);
    pthread_t threads[N_THREADS];
    (void)state;
    for (unsigned i = 0; i < N_THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, note_on_thread, hot), 0);
    }
    for (uint32_t i = 0; i < 20; i++) {
        struct hps_hot_key *top;
        uint32_t n;
        assert_int_equal(hps_hot_grow(hot, HPS_HOT_KEYS_MIN * i), HPS_OK);
        hps_hot_age(hot);
        assert_int_equal(hps_hot_top(hot, &top, &n), HPS_OK);
        for (uint32_t k = 0; k < n; k++) {
            assert_true(top[k].key < 1024);
        }
        hps_free(top);
    }
    for (unsigned i = 0; i < N_THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    assert_int_equal(hps_hot_seen(hot), N_THREADS * N_ROUNDS * 64);
    hps_hot_free(hot);
}

/* ---- lookups --------------------------------------------------------------------------------- */

static hps_status do_lookup(struct fixture *fx, struct hps_arena *arena, const hps_key *keys,
                            uint32_t n)
{
    static uint8_t rows[1024] __attribute__((aligned(HPS_ROWS_ALIGN)));
    struct hps_lookup_part part = {
        .table = &fx->tables[0], .keys = (const uint8_t *)keys, .n_keys = n};
    struct hps_lookup lookup = {.version = &fx->version,
                                .arena = arena,
                                .parts = &part,
                                .n_parts = 1,
                                .miss_policy = HPS_MISS_EXACT,
                                .unknown_policy = HPS_UNKNOWN_DEFAULT_ROW};
    struct hps_error err;
    bool done = false;
    hps_arena_reset(arena);
    hps_status status = hps_lookup_plan(&lookup, &err);
    assert_true(lookup.rows_bytes <= sizeof(rows));
    lookup.rows = rows;
    if (status == HPS_OK) {
        status = hps_lookup_run_memory(&lookup, &done, &err);
    }
    return status == HPS_OK && !done ? hps_lookup_run_rest(&lookup, &err) : status;
}

static void test_lookup_when_keys_are_found_in_any_tier_then_noted_but_unknown_keys_not(
    void **state)
{
    const hps_key keys[] = {1, 1, 2, 900, 901}; /* in memory, twice; on disk; nowhere */
    struct fixture fx;
    struct hps_hot *hot[FIXTURE_TABLES] = {hps_hot_new(HPS_HOT_KEYS_MIN)};
    struct hps_arena *arena = hps_arena_new(4096, 1 << 20);
    (void)state;
    fixture_open(&fx, 0);
    fixture_put(&fx, FIXTURE_HOST, 0, 1);
    fixture_put(&fx, FIXTURE_DISK, 0, 1);
    fixture_put(&fx, FIXTURE_DISK, 0, 2);
    fx.version.hot = hot;
    for (unsigned i = 0; i < 200; i++) {
        assert_int_equal(do_lookup(&fx, arena, keys, 5), HPS_OK);
    }
    assert_int_equal(hps_hot_seen(hot[0]), 2 * 200);
    assert_true(count_of(hot[0], 1) > 0 && count_of(hot[0], 2) > 0);
    assert_int_equal(count_of(hot[0], 900), 0);
    fixture_close(&fx);
    hps_arena_free(arena);
    hps_hot_free(hot[0]);
}

/* ---- records --------------------------------------------------------------------------------- */

enum { N_RECORD = 3 };
static const struct hps_hot_key record_keys[N_RECORD] = {{0, 9}, {UINT64_MAX, UINT32_MAX}, {77, 1}};

static uint8_t *new_record(size_t *out_size)
{
    *out_size = hps_hot_record_size(5, N_RECORD);
    uint8_t *data = hps_alloc(*out_size);
    hps_hot_record_write("items", 5, record_keys, N_RECORD, data);
    return data;
}

static void test_record_when_read_back_then_the_same(void **state)
{
    struct hps_hot_record record;
    size_t size;
    (void)state;
    uint8_t *data = new_record(&size);
    assert_int_equal(hps_hot_record_read(data, size, &record, NULL), HPS_OK);
    assert_int_equal(record.table_size, 5);
    assert_memory_equal(record.table, "items", 5);
    assert_int_equal(record.n, N_RECORD);
    for (uint32_t i = 0; i < N_RECORD; i++) {
        struct hps_hot_key key = hps_hot_record_key(&record, i);
        assert_true(key.key == record_keys[i].key && key.count == record_keys[i].count);
    }
    hps_free(data);
}

static void test_record_when_damaged_or_cut_then_refused_with_a_reason(void **state)
{
    struct hps_hot_record record;
    struct hps_error err;
    size_t size;
    (void)state;
    uint8_t *data = new_record(&size);
    for (size_t i = 0; i < size; i++) {
        for (unsigned bit = 0; bit < 8; bit++) {
            data[i] ^= (uint8_t)(1u << bit);
            err.text[0] = '\0';
            assert_int_not_equal(hps_hot_record_read(data, size, &record, &err), HPS_OK);
            assert_true(err.text[0] != '\0');
            data[i] ^= (uint8_t)(1u << bit);
        }
        uint8_t *cut = hps_alloc(i); /* of this size, so that a read past the end is detected */
        memcpy(cut, data, i);
        assert_int_equal(hps_hot_record_read(cut, i, &record, &err), HPS_DATA_LOSS);
        hps_free(cut);
    }
    data[4] = 2;
    assert_int_equal(hps_hot_record_read(data, size, &record, &err), HPS_NEWER_FORMAT);
    assert_string_equal(err.text, "format 2, this build reads 1");
    hps_free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_top_when_the_trace_is_skewed_then_most_of_the_hottest_keys_are_found),
        cmocka_unit_test(test_top_when_few_lookups_were_noted_then_the_hottest_keys_are_found),
        cmocka_unit_test(test_note_when_calls_have_one_key_then_counted_like_one_long_call),
        cmocka_unit_test(test_note_when_the_same_lookup_comes_again_then_all_its_keys_are_counted),
        cmocka_unit_test(test_age_when_enough_was_noted_then_halved_and_idle_time_keeps_counts),
        cmocka_unit_test(test_note_when_other_keys_become_hot_then_they_replace_the_old_ones),
        cmocka_unit_test(test_grow_when_wider_then_counts_stay_and_never_shrinks),
        cmocka_unit_test(test_note_when_counts_are_read_and_grow_concurrently_then_keys_are_right),
        cmocka_unit_test(
            test_lookup_when_keys_are_found_in_any_tier_then_noted_but_unknown_keys_not),
        cmocka_unit_test(test_record_when_read_back_then_the_same),
        cmocka_unit_test(test_record_when_damaged_or_cut_then_refused_with_a_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

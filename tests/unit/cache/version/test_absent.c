/* SPDX-License-Identifier: Apache-2.0
 *
 * The set of absent keys: it confuses no keys, is bounded, and a walk that an update has
 * overtaken adds no keys to it.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/hash.h"
#include "cache/version/absent.h"
#include "cache/version/stamps.h"
#include "tests/lib/fault_heap.h"

static int setup(void **state)
{
    *state = hps_absent_new();
    assert_non_null(*state);
    return 0;
}

static int teardown(void **state)
{
    hps_absent_free(*state);
    return 0;
}

static void test_absent_when_keys_are_added_then_only_they_are_known(void **state)
{
    struct hps_absent *absent = *state;
    const hps_key keys[] = {0, 7, UINT64_MAX - 1, UINT64_C(1) << 63};

    assert_false(hps_absent_has(absent, 0, 0)); /* zeroed memory must not match key 0 of table 0 */
    hps_absent_add(absent, 3, keys, 4, NULL);
    for (unsigned i = 0; i < 4; i++) {
        assert_true(hps_absent_has(absent, 3, keys[i]));
        assert_false(hps_absent_has(absent, 2, keys[i]));
        assert_false(hps_absent_has(absent, 3, keys[i] + 1));
    }
    assert_false(hps_absent_has(absent, 0, 0));
}

static void test_absent_when_keys_are_removed_then_they_are_forgotten(void **state)
{
    struct hps_absent *absent = *state;
    const hps_key keys[] = {1, 2, 3};

    hps_absent_remove(absent, 0, keys, 3); /* no key was added before */
    hps_absent_add(absent, 0, keys, 3, NULL);
    hps_absent_add(absent, 1, keys, 3, NULL);
    hps_absent_remove(absent, 0, keys + 1, 1);
    assert_true(hps_absent_has(absent, 0, 1));
    assert_false(hps_absent_has(absent, 0, 2));
    assert_true(hps_absent_has(absent, 0, 3));
    assert_true(hps_absent_has(absent, 1, 2));
}

static void test_absent_when_more_keys_are_added_than_fit_then_it_keeps_some_of_them(void **state)
{
    struct hps_absent *absent = *state;
    unsigned n_known = 0;
    enum { N = 400000 };

    for (hps_key key = 0; key < N; key++) {
        hps_key odd = 2 * key + 1;
        hps_absent_add(absent, 0, &odd, 1, NULL);
    }
    for (hps_key key = 0; key < N; key++) {
        n_known += hps_absent_has(absent, 0, 2 * key + 1) ? 1 : 0;
        assert_false(hps_absent_has(absent, 0, 2 * key));
    }
    assert_in_range(n_known, 60000, 65536); /* 1 MiB of keys */
}

static bool only_even(const void *ctx, uint32_t i)
{
    (void)ctx;
    return i % 2 == 0;
}

static void test_absent_when_some_are_stale_then_only_fresh_ones_are_kept(void **state)
{
    struct hps_absent *absent = *state;
    const struct hps_insert_guard guard = {.fresh = only_even};
    const hps_key keys[] = {10, 11, 12, 13};

    hps_absent_add(absent, 0, keys, 4, &guard);
    for (hps_key key = 10; key < 14; key++) {
        assert_int_equal(hps_absent_has(absent, 0, key), key % 2 == 0);
    }
}

static void add_one(void *ctx)
{
    struct hps_absent *absent = hps_absent_new();
    hps_key key = 5;

    (void)ctx;
    if (absent != NULL) {
        hps_absent_add(absent, 0, &key, 1, NULL);
        (void)hps_absent_has(absent, 0, key);
        hps_absent_remove(absent, 0, &key, 1);
        assert_false(hps_absent_has(absent, 0, key));
    }
    hps_absent_free(absent);
}

static void test_absent_when_memory_runs_out_then_nothing_is_kept(void **state)
{
    (void)state;
    assert_true(hps_fault_heap_run(add_one, NULL) >= 2);
}

/* ---- races ----------------------------------------------------------------------------------- */

enum { RACE_KEYS = 64, RACE_ROUNDS = 4000 };

/* Keys begin to exist one after another and stay. Walks that started earlier try to add them as
 * absent. */
struct race {
    struct hps_absent *absent;
    struct hps_stamps *stamps;
    atomic_bool exists[RACE_KEYS];    /* the contents of the store */
    atomic_uint published[RACE_KEYS]; /* odd: the update of the key is published */
    atomic_bool stop;
    atomic_uint n_wrong;
    atomic_uint n_added;
};

static void *walk_keys(void *arg)
{
    struct race *race = arg;
    uint64_t random = 1;

    while (!atomic_load(&race->stop)) {
        random = hps_mix64(random + 1);
        hps_key key = random % RACE_KEYS;
        unsigned published = atomic_load(&race->published[key]);
        if (hps_absent_has(race->absent, 0, key)) {
            race->n_wrong +=
                published % 2 != 0 && published == atomic_load(&race->published[key]) ? 1 : 0;
            continue;
        }
        const struct hps_stamp_guard seen = {.stamps = race->stamps,
                                             .keys = &key,
                                             .table_id = 0,
                                             .since = hps_stamps_now(race->stamps)};
        const struct hps_insert_guard guard = {.fresh = hps_stamp_guard_fresh, .ctx = &seen};
        if (!atomic_load(&race->exists[key])) {
            hps_absent_add(race->absent, 0, &key, 1, &guard);
            race->n_added++;
        }
    }
    return NULL;
}

static void update_keys(struct race *race)
{
    for (unsigned round = 0; round < RACE_ROUNDS; round++) {
        hps_key key = round % RACE_KEYS;

        race->published[key] += race->published[key] % 2;
        atomic_store(&race->exists[key], false); /* an erase adds no row, so it needs no stamp */
        hps_stamps_begin(race->stamps);
        hps_stamps_mark(race->stamps, 0, &key, 1);
        atomic_store(&race->exists[key], true);
        hps_absent_remove(race->absent, 0, &key, 1);
        hps_stamps_end(race->stamps);
        race->published[key]++;
    }
}

static void test_absent_when_updates_race_with_walks_then_no_existing_key_is_absent(void **state)
{
    struct race race = {.absent = *state, .stamps = hps_stamps_new()};
    pthread_t threads[3];

    assert_non_null(race.stamps);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, walk_keys, &race), 0);
    }
    update_keys(&race);
    atomic_store(&race.stop, true);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    assert_int_equal(race.n_wrong, 0);
    for (hps_key key = 0; key < RACE_KEYS; key++) {
        assert_false(hps_absent_has(race.absent, 0, key));
    }
    hps_stamps_free(race.stamps);
}

int main(void)
{
#define ABSENT_TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        ABSENT_TEST(test_absent_when_keys_are_added_then_only_they_are_known),
        ABSENT_TEST(test_absent_when_keys_are_removed_then_they_are_forgotten),
        ABSENT_TEST(test_absent_when_more_keys_are_added_than_fit_then_it_keeps_some_of_them),
        ABSENT_TEST(test_absent_when_some_are_stale_then_only_fresh_ones_are_kept),
        ABSENT_TEST(test_absent_when_memory_runs_out_then_nothing_is_kept),
        ABSENT_TEST(test_absent_when_updates_race_with_walks_then_no_existing_key_is_absent),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

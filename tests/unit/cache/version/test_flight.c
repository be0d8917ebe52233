/* SPDX-License-Identifier: Apache-2.0
 *
 * Single flight: which caller leads a fetch, which callers wait, and which row each gets. A
 * caller that fails or leaves does not fail other callers.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/hash.h"
#include "base/heap.h"
#include "cache/version/flight.h"

enum { N = 4, ROW_BYTES = 16 };

struct flight_test {
    struct hps_flight *flight;
    struct hps_flight_caller callers[N];
    struct hps_flight_key keys[N];
    uint8_t rows[N][ROW_BYTES];
};

static const uint8_t ROW[ROW_BYTES] = "the row";

static int setup(void **state)
{
    struct flight_test *t = hps_calloc(1, sizeof(*t));

    assert_non_null(t);
    t->flight = hps_flight_new();
    assert_non_null(t->flight);
    for (unsigned i = 0; i < N; i++) {
        hps_flight_caller_begin(&t->callers[i]);
    }
    *state = t;
    return 0;
}

static int teardown(void **state)
{
    struct flight_test *t = *state;

    for (unsigned i = 0; i < N; i++) {
        hps_flight_leave(t->flight, &t->keys[i]);
    }
    for (unsigned i = 0; i < N; i++) {
        hps_flight_caller_end(&t->callers[i]);
    }
    hps_flight_free(t->flight); /* asserts that it is empty */
    hps_free(t);
    return 0;
}

static enum hps_flight_state join_at(struct flight_test *t, unsigned i, uint32_t table, hps_key key,
                                     const struct hps_stamps *stamps)
{
    t->keys[i] = (struct hps_flight_key){.key = key,
                                         .row = t->rows[i],
                                         .row_bytes = ROW_BYTES,
                                         .table_id = table,
                                         .since = hps_stamps_now(stamps)};
    return hps_flight_join(t->flight, &t->callers[i], stamps, &t->keys[i]);
}

static enum hps_flight_state join(struct flight_test *t, unsigned i, hps_key key)
{
    return join_at(t, i, 0, key, NULL);
}

static void assert_found(struct flight_test *t, unsigned i, uint8_t tier)
{
    assert_int_equal(t->keys[i].state, HPS_FLIGHT_FOUND);
    assert_int_equal(t->keys[i].tier, tier);
    assert_memory_equal(t->rows[i], ROW, ROW_BYTES);
}

static void test_flight_when_the_leader_has_the_row_then_all_callers_get_it(void **state)
{
    struct flight_test *t = *state;

    assert_int_equal(join(t, 0, 7), HPS_FLIGHT_LEADS);
    assert_int_equal(join(t, 1, 7), HPS_FLIGHT_WAITS);
    assert_int_equal(join(t, 2, 7), HPS_FLIGHT_WAITS);
    assert_int_equal(join(t, 3, 8), HPS_FLIGHT_LEADS); /* another key */
    assert_false(hps_flight_wait(&t->callers[1], 0));
    hps_flight_land(t->flight, &t->callers[0], 0, 7, ROW, 1);
    assert_true(hps_flight_wait(&t->callers[1], 0));
    assert_found(t, 1, 1);
    assert_found(t, 2, 1);
    assert_int_equal(t->keys[3].state, HPS_FLIGHT_LEADS);
    assert_int_equal(join(t, 0, 7), HPS_FLIGHT_LEADS); /* a later caller fetches again */
}

static void test_flight_when_tables_differ_then_keys_do(void **state)
{
    struct flight_test *t = *state;

    assert_int_equal(join_at(t, 0, 0, 7, NULL), HPS_FLIGHT_LEADS);
    assert_int_equal(join_at(t, 1, 1, 7, NULL), HPS_FLIGHT_LEADS);
}

static void test_flight_when_no_tier_has_the_key_then_all_callers_get_absent(void **state)
{
    struct flight_test *t = *state;

    (void)join(t, 0, 7);
    (void)join(t, 1, 7);
    hps_flight_land(t->flight, &t->callers[0], 0, 7, NULL, 0);
    assert_int_equal(t->keys[1].state, HPS_FLIGHT_ABSENT);
}

static void test_flight_when_a_caller_that_does_not_lead_lands_a_row_then_no_effect(void **state)
{
    struct flight_test *t = *state;

    (void)join(t, 0, 7);
    (void)join(t, 1, 7);
    hps_flight_land(t->flight, &t->callers[1], 0, 7, ROW, 1);
    hps_flight_land(t->flight, &t->callers[0], 0, 9, ROW, 1);
    assert_int_equal(t->keys[1].state, HPS_FLIGHT_WAITS);
}

static void test_flight_when_the_leader_leaves_then_the_first_waiting_caller_leads(void **state)
{
    struct flight_test *t = *state;

    for (unsigned i = 0; i < 4; i++) {
        (void)join(t, i, 7);
    }
    hps_flight_leave(t->flight, &t->keys[0]);
    assert_int_equal(t->keys[1].state, HPS_FLIGHT_LEADS);
    assert_int_equal(t->keys[2].state, HPS_FLIGHT_WAITS);
    assert_true(hps_flight_wait(&t->callers[1], 0));
    assert_false(hps_flight_wait(&t->callers[2], 0));
    hps_flight_take_promoted(&t->callers[1], 1);
    hps_flight_leave(t->flight, &t->keys[1]); /* and so on for the next caller */
    assert_int_equal(t->keys[2].state, HPS_FLIGHT_LEADS);
    hps_flight_land(t->flight, &t->callers[2], 0, 7, ROW, 2);
    assert_found(t, 3, 2);
}

static void test_flight_when_waiting_callers_leave_then_other_callers_get_the_row(void **state)
{
    struct flight_test *t = *state;

    for (unsigned i = 0; i < 4; i++) {
        (void)join(t, i, 7);
    }
    hps_flight_leave(t->flight, &t->keys[3]); /* the last one leaves, then another joins */
    assert_int_equal(join(t, 3, 7), HPS_FLIGHT_WAITS);
    hps_flight_leave(t->flight, &t->keys[1]);
    hps_flight_land(t->flight, &t->callers[0], 0, 7, ROW, 1);
    assert_int_equal(t->keys[1].state, HPS_FLIGHT_ALONE);
    assert_int_equal(t->rows[1][0], 0); /* its memory was not written */
    assert_found(t, 2, 1);
    assert_found(t, 3, 1);
}

static void test_flight_when_the_key_is_updated_during_it_then_no_caller_joins(void **state)
{
    struct flight_test *t = *state;
    struct hps_stamps *stamps = hps_stamps_new();
    const hps_key key = 7;

    assert_non_null(stamps);
    assert_int_equal(join_at(t, 0, 0, key, stamps), HPS_FLIGHT_LEADS);
    assert_int_equal(join_at(t, 1, 0, key, stamps), HPS_FLIGHT_WAITS);
    hps_stamps_begin(stamps);
    hps_stamps_mark(stamps, 0, &key, 1);
    assert_int_equal(join_at(t, 2, 0, key, stamps), HPS_FLIGHT_ALONE);
    hps_stamps_end(stamps);
    assert_int_equal(join_at(t, 3, 0, key, stamps), HPS_FLIGHT_ALONE);
    hps_flight_land(t->flight, &t->callers[3], 0, key, ROW, 1); /* it leads no fetch */
    assert_int_equal(t->keys[1].state, HPS_FLIGHT_WAITS);
    hps_stamps_free(stamps);
}

/* ---- races ----------------------------------------------------------------------------------- */

enum { RACE_THREADS = 4, RACE_ROUNDS = 3000, RACE_KEYS = 3, RACE_KEY_SPACE = 5 };

struct racer {
    struct hps_flight *flight;
    uint64_t random;
    unsigned n_found;
    unsigned n_led;
    unsigned n_wrong;
};

/* Fetch the keys that this caller leads. */
static void fetch(struct racer *racer, const struct hps_flight_caller *caller,
                  struct hps_flight_key *keys, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        if (keys[i].state == HPS_FLIGHT_LEADS) {
            memset(keys[i].row, (int)keys[i].key + 1, ROW_BYTES);
            hps_flight_land(racer->flight, caller, 0, keys[i].key, keys[i].row, 1);
            racer->n_led++;
        }
    }
}

static void check_found(struct racer *racer, const struct hps_flight_key *key)
{
    for (unsigned b = 0; b < ROW_BYTES && key->state == HPS_FLIGHT_FOUND; b++) {
        racer->n_wrong += key->row[b] != key->key + 1 ? 1 : 0;
    }
    racer->n_found += key->state == HPS_FLIGHT_FOUND ? 1 : 0;
}

static void run_caller(struct racer *racer)
{
    struct hps_flight_caller caller;
    struct hps_flight_key keys[RACE_KEYS];
    uint8_t rows[RACE_KEYS][ROW_BYTES];
    bool fails = (racer->random = hps_mix64(racer->random + 1)) % 4 == 0;

    hps_flight_caller_begin(&caller);
    for (unsigned i = 0; i < RACE_KEYS; i++) {
        hps_key key = (racer->random >> 8 * i) % RACE_KEY_SPACE;
        keys[i] = (struct hps_flight_key){.key = key, .row = rows[i], .row_bytes = ROW_BYTES};
        (void)hps_flight_join(racer->flight, &caller, NULL, &keys[i]);
    }
    if (!fails) {
        fetch(racer, &caller, keys, RACE_KEYS);
        (void)hps_flight_wait(&caller, (uint32_t)(racer->random % 50));
    }
    for (unsigned i = 0; i < RACE_KEYS; i++) {
        hps_flight_leave(racer->flight, &keys[i]);
    }
    for (unsigned i = 0; i < RACE_KEYS; i++) {
        check_found(racer, &keys[i]);
    }
    hps_flight_caller_end(&caller);
}

static void *run_racer(void *arg)
{
    for (unsigned i = 0; i < RACE_ROUNDS; i++) {
        run_caller(arg);
    }
    return NULL;
}

static void test_flight_when_callers_race_and_fail_then_every_row_is_right(void **state)
{
    struct flight_test *t = *state;
    struct racer racers[RACE_THREADS];
    pthread_t threads[RACE_THREADS];
    unsigned n_found = 0;

    for (unsigned i = 0; i < RACE_THREADS; i++) {
        racers[i] = (struct racer){.flight = t->flight, .random = i};
        assert_int_equal(pthread_create(&threads[i], NULL, run_racer, &racers[i]), 0);
    }
    for (unsigned i = 0; i < RACE_THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(racers[i].n_wrong, 0);
        assert_true(racers[i].n_led > 0);
        n_found += racers[i].n_found;
    }
    assert_true(n_found > 0); /* includes keys that one caller requests twice */
}

int main(void)
{
#define FLIGHT_TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        FLIGHT_TEST(test_flight_when_the_leader_has_the_row_then_all_callers_get_it),
        FLIGHT_TEST(test_flight_when_tables_differ_then_keys_do),
        FLIGHT_TEST(test_flight_when_no_tier_has_the_key_then_all_callers_get_absent),
        FLIGHT_TEST(test_flight_when_a_caller_that_does_not_lead_lands_a_row_then_no_effect),
        FLIGHT_TEST(test_flight_when_the_leader_leaves_then_the_first_waiting_caller_leads),
        FLIGHT_TEST(test_flight_when_waiting_callers_leave_then_other_callers_get_the_row),
        FLIGHT_TEST(test_flight_when_the_key_is_updated_during_it_then_no_caller_joins),
        FLIGHT_TEST(test_flight_when_callers_race_and_fail_then_every_row_is_right),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

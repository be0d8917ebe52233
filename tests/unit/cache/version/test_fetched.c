/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows that were fetched behind answers: counted by table and key, bounded, and forgotten.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cache/version/fetched.h"
#include "tests/lib/fault_heap.h"

static int setup(void **state)
{
    *state = hps_fetched_new();
    assert_non_null(*state);
    return 0;
}

static int teardown(void **state)
{
    hps_fetched_free(*state);
    return 0;
}

static void test_note_when_fetched_a_few_times_then_often_of_that_key_alone(void **state)
{
    struct hps_fetched *fetched = *state;
    const hps_key keys[] = {0, 7, UINT64_MAX};

    for (unsigned i = 0; i < 3; i++) {
        assert_false(hps_fetched_often(fetched, 1, keys[i])); /* nothing was noted at all */
    }
    for (unsigned time = 1; time <= 1000; time++) { /* beyond what a count has room for */
        hps_fetched_note(fetched, 1, keys, 3);
        for (unsigned i = 0; i < 3; i++) {
            assert_int_equal(hps_fetched_often(fetched, 1, keys[i]), time >= HPS_FETCHED_OFTEN);
            assert_false(hps_fetched_often(fetched, 0, keys[i]));
            assert_false(hps_fetched_often(fetched, 1, keys[i] + 1000));
        }
    }
}

static void test_note_when_many_others_come_then_it_is_forgotten(void **state)
{
    struct hps_fetched *fetched = *state;
    hps_key key = 5;

    for (unsigned i = 0; i < HPS_FETCHED_OFTEN; i++) {
        hps_fetched_note(fetched, 0, &key, 1);
    }
    assert_true(hps_fetched_often(fetched, 0, key));
    for (hps_key other = 1000; hps_fetched_often(fetched, 0, key); other++) {
        assert_true(other < UINT64_C(100) * HPS_FETCHED_KEYS);
        hps_fetched_note(fetched, 0, &other, 1);
    }
    for (unsigned i = 0; i < HPS_FETCHED_OFTEN; i++) { /* from the beginning */
        assert_false(hps_fetched_often(fetched, 0, key));
        hps_fetched_note(fetched, 0, &key, 1);
    }
    assert_true(hps_fetched_often(fetched, 0, key));
}

static void test_forget_when_waited_for_then_counted_anew_and_others_are_not(void **state)
{
    struct hps_fetched *fetched = *state;
    const hps_key keys[] = {3, 4};

    hps_fetched_forget(fetched, 0, keys, 2); /* nothing was noted at all */
    for (unsigned i = 0; i < HPS_FETCHED_OFTEN; i++) {
        hps_fetched_note(fetched, 0, keys, 2);
    }
    hps_fetched_forget(fetched, 1, keys, 2);
    assert_true(hps_fetched_often(fetched, 0, 3));
    hps_fetched_forget(fetched, 0, keys, 1);
    assert_true(hps_fetched_often(fetched, 0, 4));
    for (unsigned i = 1; i <= HPS_FETCHED_OFTEN; i++) {
        assert_false(hps_fetched_often(fetched, 0, 3));
        hps_fetched_note(fetched, 0, keys, 1);
    }
    assert_true(hps_fetched_often(fetched, 0, 3));
}

static void *note_often(void *arg)
{
    for (hps_key key = 0; key < 20000; key++) {
        hps_key one = key % 500;
        hps_fetched_note(arg, 0, &one, 1);
        (void)hps_fetched_often(arg, 0, key % 300);
    }
    return NULL;
}

static void test_note_when_many_threads_then_each_key_ends_as_often(void **state)
{
    pthread_t threads[4];

    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, note_often, *state), 0);
    }
    for (unsigned i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
    }
    unsigned n = 0;
    for (hps_key key = 0; key < 500; key++) {
        n += hps_fetched_often(*state, 0, key) ? 1 : 0;
    }
    assert_true(n > 450); /* of 500, a few share their places */
}

static void fetched_scenario(void *ctx)
{
    (void)ctx;
    struct hps_fetched *fetched = hps_fetched_new();
    hps_key key = 1;

    if (fetched != NULL) {
        hps_fetched_note(fetched, 0, &key, 1);
        (void)hps_fetched_often(fetched, 0, key);
    }
    hps_fetched_free(fetched);
}

static void test_note_when_any_allocation_fails_then_nothing_leaks(void **state)
{
    (void)state;
    assert_int_equal(hps_fault_heap_run(fetched_scenario, NULL), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(test_note_when_fetched_a_few_times_then_often_of_that_key_alone),
        TEST(test_note_when_many_others_come_then_it_is_forgotten),
        TEST(test_forget_when_waited_for_then_counted_anew_and_others_are_not),
        TEST(test_note_when_many_threads_then_each_key_ends_as_often),
        TEST(test_note_when_any_allocation_fails_then_nothing_leaks),
    };
    return cmocka_run_group_tests_name("fetched", tests, NULL, NULL);
}

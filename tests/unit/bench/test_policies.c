/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulated eviction policies that the host map's is compared with: traces short enough to be
 * followed on paper.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "bench/policies.h"

enum { N_KEYS = 1000 };

static void request(struct policy *policy, uint32_t key)
{
    if (!policy_touch(policy, key)) {
        policy_insert(policy, key);
    }
}

static void request_range(struct policy *policy, uint32_t from, uint32_t to)
{
    for (uint32_t key = from; key < to; key++) {
        request(policy, key);
    }
}

static struct policy *make(const struct policy_kind *kind, uint32_t capacity)
{
    struct policy *policy = policy_new(kind, N_KEYS, capacity);

    assert_non_null(policy);
    return policy;
}

static void test_sets_when_full_then_a_newcomer_must_be_asked_for_more_often(void **state)
{
    struct policy *policy = make(&policy_sets, 16);
    uint32_t n = 0;

    (void)state;
    request_range(policy, 0, 100); /* more than have a place; each once */
    for (uint32_t key = 0; key < 100; key++) {
        n += policy_has(policy, key);
    }
    assert_int_equal(n, 16);
    assert_int_equal(policy_count(policy), 16);
    uint32_t out = 0;
    while (policy_has(policy, out)) {
        out++;
    }
    for (uint32_t i = 0; i < 20; i++) { /* others may have been counted as if they were it */
        request(policy, out);
    }
    assert_true(policy_has(policy, out));
    assert_int_equal(policy_count(policy), 16);
    policy_free(policy);
}

static void test_lru_when_full_then_the_least_recent_goes(void **state)
{
    struct policy *policy = make(&policy_lru, 3);

    (void)state;
    request_range(policy, 1, 4);
    assert_true(policy_touch(policy, 1));
    request(policy, 4);
    assert_true(policy_has(policy, 1));
    assert_false(policy_has(policy, 2));
    assert_true(policy_has(policy, 3));
    assert_true(policy_has(policy, 4));
    policy_free(policy);
}

static void test_sieve_when_full_then_the_hand_spares_each_hit_once(void **state)
{
    struct policy *policy = make(&policy_sieve, 3);

    (void)state;
    request_range(policy, 1, 4);
    request(policy, 1);
    request(policy, 4); /* passes over 1, takes 2, rests at 3 */
    assert_true(policy_has(policy, 1));
    assert_false(policy_has(policy, 2));
    request(policy, 5); /* takes 3, rests at 4 */
    assert_false(policy_has(policy, 3));
    request(policy, 4);
    request(policy, 6); /* passes over 4, takes 5 */
    assert_true(policy_has(policy, 1));
    assert_true(policy_has(policy, 4));
    assert_false(policy_has(policy, 5));
    assert_true(policy_has(policy, 6));
    policy_free(policy);
}

static void test_s3fifo_when_hit_twice_then_a_scan_does_not_push_it_out(void **state)
{
    struct policy *policy = make(&policy_s3fifo, 10);

    (void)state;
    request_range(policy, 0, 10);
    request(policy, 1);
    request(policy, 1);
    request(policy, 2); /* once is not enough */
    request_range(policy, 10, 200);
    assert_true(policy_has(policy, 1));
    assert_false(policy_has(policy, 2));
    assert_int_equal(policy_count(policy), 10);
    policy_free(policy);
}

static void test_s3fifo_when_back_soon_then_it_is_remembered(void **state)
{
    struct policy *policy = make(&policy_s3fifo, 10);

    (void)state;
    request_range(policy, 0, 11); /* 0 leaves */
    assert_false(policy_has(policy, 0));
    request(policy, 0); /* into the main queue; 1 leaves */
    request_range(policy, 11, 200);
    assert_true(policy_has(policy, 0));
    request(policy, 1); /* too late: as new */
    request_range(policy, 200, 210);
    assert_false(policy_has(policy, 1));
    policy_free(policy);
}

static void test_s3fifo_when_the_main_queue_is_full_then_hits_count_there(void **state)
{
    struct policy *policy = make(&policy_s3fifo, 10);

    (void)state;
    for (uint32_t key = 0; key < 10; key++) {
        request(policy, key);
        request(policy, key);
        request(policy, key);
    }
    request(policy, 10); /* all ten go to the main queue, which takes nine: the oldest goes */
    assert_false(policy_has(policy, 0));
    assert_int_equal(policy_count(policy), 10);
    request(policy, 1);
    request(policy, 11);
    request(policy, 10); /* remembered: a tenth for the main queue */
    request(policy, 12);
    request(policy, 11);
    assert_true(policy_has(policy, 1));
    assert_int_equal(policy_count(policy), 10);
    policy_free(policy);
}

static void test_wtinylfu_when_a_scan_comes_then_frequent_keys_stay(void **state)
{
    struct policy *policy = make(&policy_wtinylfu, 10);

    (void)state;
    for (int round = 0; round < 4; round++) {
        request_range(policy, 0, 9);
    }
    request_range(policy, 100, 150);
    for (uint32_t key = 0; key < 9; key++) {
        assert_true(policy_has(policy, key));
    }
    assert_int_equal(policy_count(policy), 10);
    policy_free(policy);
}

static void test_wtinylfu_when_asked_for_more_often_then_it_replaces_the_oldest(void **state)
{
    struct policy *policy = make(&policy_wtinylfu, 10);

    (void)state;
    request_range(policy, 0, 10);
    for (int i = 0; i < 5; i++) {
        assert_false(policy_touch(policy, 500));
    }
    policy_insert(policy, 500); /* into the window */
    request(policy, 501);       /* pushes it out of there, into the main part */
    assert_true(policy_has(policy, 500));
    request(policy, 502); /* pushes out 501, which nobody knows */
    assert_false(policy_has(policy, 501));
    assert_int_equal(policy_count(policy), 10);
    policy_free(policy);
}

static void test_policies_when_all_keys_fit_then_each_misses_once(void **state)
{
    static const struct policy_kind *const kinds[] = {&policy_lru, &policy_sieve, &policy_s3fifo,
                                                      &policy_wtinylfu};
    (void)state;
    for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        struct policy *policy = make(kinds[i], N_KEYS);
        unsigned n_missed = 0;
        for (uint32_t request_of = 0; request_of < 3 * N_KEYS; request_of++) {
            uint32_t key = request_of * 7 % N_KEYS;
            if (!policy_touch(policy, key)) {
                n_missed++;
                policy_insert(policy, key);
                policy_insert(policy, key); /* a batch may name a key twice */
            }
        }
        assert_int_equal(n_missed, N_KEYS);
        policy_free(policy);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sets_when_full_then_a_newcomer_must_be_asked_for_more_often),
        cmocka_unit_test(test_lru_when_full_then_the_least_recent_goes),
        cmocka_unit_test(test_sieve_when_full_then_the_hand_spares_each_hit_once),
        cmocka_unit_test(test_s3fifo_when_hit_twice_then_a_scan_does_not_push_it_out),
        cmocka_unit_test(test_s3fifo_when_back_soon_then_it_is_remembered),
        cmocka_unit_test(test_s3fifo_when_the_main_queue_is_full_then_hits_count_there),
        cmocka_unit_test(test_wtinylfu_when_a_scan_comes_then_frequent_keys_stay),
        cmocka_unit_test(test_wtinylfu_when_asked_for_more_often_then_it_replaces_the_oldest),
        cmocka_unit_test(test_policies_when_all_keys_fit_then_each_misses_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

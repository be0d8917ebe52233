/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulated eviction policy that the host map's is compared with: traces short enough to be
 * followed on paper.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "bench/s3fifo.h"

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

static struct policy *make(uint32_t capacity)
{
    struct policy *policy = policy_new(N_KEYS, capacity);

    assert_non_null(policy);
    return policy;
}

static void test_s3fifo_when_hit_twice_then_a_scan_does_not_push_it_out(void **state)
{
    struct policy *policy = make(10);

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
    struct policy *policy = make(10);

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
    struct policy *policy = make(10);

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

static void test_policy_when_all_keys_fit_then_each_misses_once(void **state)
{
    struct policy *policy = make(N_KEYS);
    unsigned n_missed = 0;

    (void)state;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_s3fifo_when_hit_twice_then_a_scan_does_not_push_it_out),
        cmocka_unit_test(test_s3fifo_when_back_soon_then_it_is_remembered),
        cmocka_unit_test(test_s3fifo_when_the_main_queue_is_full_then_hits_count_there),
        cmocka_unit_test(test_policy_when_all_keys_fit_then_each_misses_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

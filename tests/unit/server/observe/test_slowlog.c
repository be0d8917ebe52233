/* SPDX-License-Identifier: Apache-2.0
 *
 * The slow log: what is kept, in which order, for how long.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/log.h"
#include "server/observe/slowlog.h"

static struct hps_slowlog *slowlog;
static struct hps_slow_request out[HPS_SLOWLOG_SIZE + 1];

static int setup(void **state)
{
    (void)state;
    hps_log_level_set(HPS_LOG_ERROR);
    slowlog = hps_slowlog_new(1000);
    return slowlog == NULL ? -1 : 0;
}

static int teardown(void **state)
{
    (void)state;
    hps_slowlog_free(slowlog);
    hps_log_level_set(HPS_LOG_INFO);
    return 0;
}

static void add(uint64_t duration_us, uint64_t n_keys)
{
    struct hps_slow_request request = {.duration_us = duration_us, .n_keys = n_keys, .model = "m"};

    snprintf(request.request_id, sizeof(request.request_id), "id-%u", (unsigned)n_keys);
    hps_slowlog_add(slowlog, &request);
}

static void test_slowlog_when_fast_then_not_kept(void **state)
{
    (void)state;
    add(999, 1);
    add(1000, 2);
    assert_int_equal(hps_slowlog_snapshot(slowlog, out, HPS_SLOWLOG_SIZE), 1);
    assert_int_equal(out[0].n_keys, 2);
    assert_string_equal(out[0].request_id, "id-2");
    assert_int_equal(out[0].sequence, 1);
    assert_true(out[0].unix_ms > 0);
}

static void test_slowlog_when_full_then_the_newest_are_kept(void **state)
{
    (void)state;
    for (uint64_t i = 1; i <= HPS_SLOWLOG_SIZE + 5; i++) {
        add(5000, i);
    }
    assert_int_equal(hps_slowlog_snapshot(slowlog, out, HPS_SLOWLOG_SIZE + 1), HPS_SLOWLOG_SIZE);
    assert_int_equal(out[0].n_keys, HPS_SLOWLOG_SIZE + 5);
    assert_int_equal(out[HPS_SLOWLOG_SIZE - 1].n_keys, 6);
    assert_int_equal(hps_slowlog_snapshot(slowlog, out, 3), 3);
    assert_int_equal(out[2].sequence, HPS_SLOWLOG_SIZE + 3);
}

static void test_slowlog_when_reset_then_empty_and_sequence_goes_on(void **state)
{
    (void)state;
    add(5000, 1);
    add(5000, 2);
    assert_int_equal(hps_slowlog_reset(slowlog), 2);
    assert_int_equal(hps_slowlog_snapshot(slowlog, out, HPS_SLOWLOG_SIZE), 0);
    add(5000, 3);
    assert_int_equal(hps_slowlog_snapshot(slowlog, out, HPS_SLOWLOG_SIZE), 1);
    assert_int_equal(out[0].sequence, 3);
}

static void test_slowlog_when_threshold_moves_then_it_counts_at_once(void **state)
{
    (void)state;
    assert_int_equal(hps_slowlog_threshold_us(slowlog), 1000);
    hps_slowlog_threshold_set(slowlog, 10);
    add(20, 1);
    assert_int_equal(hps_slowlog_snapshot(slowlog, out, HPS_SLOWLOG_SIZE), 1);
}

int main(void)
{
#define SLOWLOG_TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        SLOWLOG_TEST(test_slowlog_when_fast_then_not_kept),
        SLOWLOG_TEST(test_slowlog_when_full_then_the_newest_are_kept),
        SLOWLOG_TEST(test_slowlog_when_reset_then_empty_and_sequence_goes_on),
        SLOWLOG_TEST(test_slowlog_when_threshold_moves_then_it_counts_at_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

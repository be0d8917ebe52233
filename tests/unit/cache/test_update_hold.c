/* SPDX-License-Identifier: Apache-2.0
 *
 * Batches of updates and those who hold them back: each waits for the other, and neither for ever.
 */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/heap.h"
#include "cache/update_internal.h"

static unsigned n_granted;

static void count_granted(struct hps_update_hold *hold)
{
    (void)hold;
    n_granted++;
}

static struct hps_version *version_new(void)
{
    struct hps_version *version = hps_version_new("m", 1, 1);
    assert_non_null(version);
    version->updates = hps_calloc(1, sizeof(*version->updates));
    assert_non_null(version->updates);
    assert_int_equal(update_holds_init(version->updates), HPS_OK);
    n_granted = 0;
    return version;
}

/* Until a batch waits, or has gone on. */
static void wait_for_turn(struct hps_updates *updates)
{
    bool turn = false;
    while (!turn) {
        pthread_mutex_lock(&updates->lock);
        turn = updates->turn;
        pthread_mutex_unlock(&updates->lock);
        sched_yield();
    }
}

static void *batch_main(void *arg)
{
    struct hps_updates *updates = arg;
    update_turn_begin(updates);
    atomic_fetch_add(&updates->sequence, 1);
    return NULL;
}

static void test_hold_when_a_batch_comes_then_it_waits_for_all_of_them(void **state)
{
    (void)state;
    struct hps_version *version = version_new();
    struct hps_update_hold holds[4];
    pthread_t thread;
    for (unsigned i = 0; i < 4; i++) {
        holds[i] = (struct hps_update_hold){.granted = count_granted};
    }
    assert_true(hps_update_hold(version, &holds[0]));
    assert_true(hps_update_hold(version, &holds[1]));
    assert_int_equal(pthread_create(&thread, NULL, batch_main, version->updates), 0);
    wait_for_turn(version->updates);
    assert_false(hps_update_hold(version, &holds[2])); /* or batches would never begin */
    assert_false(hps_update_hold(version, &holds[3]));
    assert_true(hps_update_hold_cancel(version, &holds[3]));
    assert_false(hps_update_hold_cancel(version, &holds[3]));
    hps_update_release(version);
    assert_int_equal(hps_update_sequence(version), 0);
    hps_update_release(version);
    pthread_join(thread, NULL);
    assert_int_equal(hps_update_sequence(version), 1);
    assert_int_equal(n_granted, 0);
    update_turn_end(version->updates);
    assert_int_equal(n_granted, 1);
    assert_false(hps_update_hold_cancel(version, &holds[2]));
    hps_update_release(version);
    hps_version_free(version);
}

static void test_hold_when_one_in_the_middle_goes_then_the_others_are_granted(void **state)
{
    (void)state;
    struct hps_version *version = version_new();
    struct hps_update_hold holds[3];
    update_turn_begin(version->updates);
    for (unsigned i = 0; i < 3; i++) {
        holds[i] = (struct hps_update_hold){.granted = count_granted};
        assert_false(hps_update_hold(version, &holds[i]));
    }
    assert_true(hps_update_hold_cancel(version, &holds[1]));
    update_turn_end(version->updates);
    assert_int_equal(n_granted, 2);
    hps_update_release(version);
    hps_update_release(version);
    update_turn_begin(version->updates);
    update_turn_end(version->updates);
    hps_version_free(version);
}

static void test_hold_when_the_version_takes_no_updates_then_granted(void **state)
{
    (void)state;
    struct hps_version *version = hps_version_new("m", 1, 1);
    struct hps_update_hold hold = {.granted = count_granted};
    n_granted = 0;
    assert_true(hps_update_hold(version, &hold));
    assert_false(hps_update_hold_cancel(version, &hold));
    hps_update_release(version);
    assert_int_equal(n_granted, 0);
    hps_version_free(version);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hold_when_a_batch_comes_then_it_waits_for_all_of_them),
        cmocka_unit_test(test_hold_when_one_in_the_middle_goes_then_the_others_are_granted),
        cmocka_unit_test(test_hold_when_the_version_takes_no_updates_then_granted),
    };
    return cmocka_run_group_tests_name("update_hold", tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Batches and the lookup that holds them back: each waits for the other, and neither for long.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/heap.h"
#include "cache/update/internal.h"
#include "tests/lib/pause.h"

static int setup(void **state)
{
    struct hps_version *version = hps_version_new("m", 1, 1);
    assert_non_null(version);
    version->updates = hps_calloc(1, sizeof(*version->updates));
    assert_non_null(version->updates);
    hps_lock_init(&version->updates->lock, HPS_LOCK_UPDATES);
    hps_cond_init(&version->updates->changed);
    version->updates_free = hps_updates_free;
    *state = version;
    return 0;
}

static int teardown(void **state)
{
    hps_version_free(*state);
    return 0;
}

static void wait_for(struct hps_version *version, const bool *flag)
{
    for (bool seen = false; !seen; brief_pause()) {
        hps_lock_acquire(&version->updates->lock);
        seen = *flag;
        hps_lock_release(&version->updates->lock);
    }
}

static void *batch_main(void *arg)
{
    struct hps_updates *updates = ((struct hps_version *)arg)->updates;
    update_turn_begin(updates);
    atomic_fetch_add(&updates->sequence, 1);
    update_turn_end(updates);
    return NULL;
}

static void *hold_main(void *arg)
{
    return hps_update_hold(arg) ? arg : NULL;
}

/* A batch that waits for the end of the hold. */
static pthread_t start_batch(struct hps_version *version)
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, batch_main, version), 0);
    wait_for(version, &version->updates->batch_waits);
    return thread;
}

static void test_hold_when_it_has_ended_then_the_next_lookup_may_hold(void **state)
{
    struct hps_version *version = *state;
    assert_true(hps_update_hold(version));
    assert_false(hps_update_hold(version));
    hps_update_release(version);
    batch_main(version); /* waits for nothing */
    assert_true(hps_update_hold(version));
    hps_update_release(version);
}

static void test_hold_when_a_batch_waits_then_that_has_its_turn_before_the_next_hold(void **state)
{
    struct hps_version *version = *state;
    assert_true(hps_update_hold(version));
    pthread_t batch = start_batch(version);
    assert_int_equal(hps_update_sequence(version), 0);
    hps_update_release(version);
    pthread_join(batch, NULL);
    assert_int_equal(hps_update_sequence(version), 1);
    version->updates->batch_waits = true; /* as before it has woken */
    assert_false(hps_update_hold(version));
}

static void test_hold_when_a_batch_is_under_way_then_it_is_next(void **state)
{
    struct hps_version *version = *state;
    pthread_t hold;
    void *held = NULL;
    update_turn_begin(version->updates);
    assert_int_equal(pthread_create(&hold, NULL, hold_main, version), 0);
    wait_for(version, &version->updates->held);
    update_turn_end(version->updates);
    pthread_t batch = start_batch(version); /* behind the hold */
    pthread_join(hold, &held);
    assert_int_equal(hps_update_sequence(version), 0);
    hps_update_release(version);
    pthread_join(batch, NULL);
    assert_ptr_equal(held, version);
    assert_int_equal(hps_update_sequence(version), 1);
}

static void test_hold_when_it_takes_too_long_then_the_batch_begins(void **state)
{
    struct hps_version *version = *state;
    assert_true(hps_update_hold(version));
    batch_main(version);
    assert_int_equal(hps_update_sequence(version), 1);
    hps_update_release(version);
}

static void test_hold_when_the_batch_takes_too_long_then_refused(void **state)
{
    struct hps_version *version = *state;
    update_turn_begin(version->updates);
    assert_false(hps_update_hold(version));
    update_turn_end(version->updates);
    assert_true(hps_update_hold(version));
    hps_update_release(version);
}

int main(void)
{
#define HOLD_TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        HOLD_TEST(test_hold_when_it_has_ended_then_the_next_lookup_may_hold),
        HOLD_TEST(test_hold_when_a_batch_waits_then_that_has_its_turn_before_the_next_hold),
        HOLD_TEST(test_hold_when_a_batch_is_under_way_then_it_is_next),
        HOLD_TEST(test_hold_when_it_takes_too_long_then_the_batch_begins),
        HOLD_TEST(test_hold_when_the_batch_takes_too_long_then_refused),
    };
    return cmocka_run_group_tests_name("update_hold", tests, NULL, NULL);
}

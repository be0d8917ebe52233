/* SPDX-License-Identifier: Apache-2.0
 *
 * Who waits for the updates of a version: when they are shown a view, how many there may be, and
 * how a wait ends. Over a stream that the test turns by hand.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "tests/lib/stream_rig.h"

enum { ALL_MAX = 256, ONE_MAX = 64 };

struct wait {
    struct hps_update_waiter waiter;
    enum hps_update_look says;
    unsigned n_looks;
    int end; /* -1: it waits */
};

static enum hps_update_look on_look(struct hps_update_waiter *waiter,
                                    const struct hps_stream_view *view)
{
    struct wait *wait = (struct wait *)waiter;
    assert_int_equal(view->version, 7);
    assert_true(view->active);
    wait->n_looks++;
    return wait->says;
}

static void on_done(struct hps_update_waiter *waiter, enum hps_update_end end)
{
    assert_int_equal(((struct wait *)waiter)->end, -1);
    ((struct wait *)waiter)->end = (int)end;
}

static hps_status wait_begin(struct rig *rig, struct wait *wait, const void *who, int64_t version)
{
    struct hps_error err = {0};
    *wait = (struct wait){.waiter = {.look = on_look, .done = on_done, .who = who},
                          .says = HPS_UPDATE_LOOK_WAIT,
                          .end = -1};
    return hps_updater_wait(rig->updater, "m", version, &wait->waiter, &err);
}

static struct rig *listed(void **state)
{
    struct rig *rig = *state;
    open_stream(rig);
    rig->updater->streams = rig->stream;
    turns(rig, 3);
    return rig;
}

static int end(void **state)
{
    struct rig *rig = *state;
    if (rig->updater != NULL) {
        rig->updater->streams = NULL;
    }
    return teardown(state);
}

static void test_wait_when_the_stream_turns_then_it_looks_until_it_is_done(void **state)
{
    struct rig *rig = listed(state);
    struct wait wait;
    assert_int_equal(wait_begin(rig, &wait, NULL, 7), HPS_OK);
    assert_int_equal(wait.n_looks, 1);
    wait.says = HPS_UPDATE_LOOK_DONE;
    hps_clock_advance(10 * 1000);
    turns(rig, 1);
    assert_int_equal(wait.n_looks, 2);
    assert_int_equal(wait.end, HPS_UPDATE_END_LOOKED);
    hps_clock_advance(10 * 1000);
    turns(rig, 1);
    assert_int_equal(wait.n_looks, 2);
    assert_false(hps_updater_wait_end(rig->updater, &wait.waiter));
}

static void test_wait_when_turns_are_quick_then_it_looks_no_more_than_every_10_ms(void **state)
{
    struct rig *rig = listed(state);
    struct wait wait;
    assert_int_equal(wait_begin(rig, &wait, NULL, 7), HPS_OK);
    hps_clock_advance(10 * 1000);
    turns(rig, 5);
    assert_int_equal(wait.n_looks, 2);
    assert_true(hps_updater_wait_end(rig->updater, &wait.waiter));
}

static void test_wait_when_a_refresh_is_wanted_then_one_is_made_and_then_a_pause(void **state)
{
    struct rig *rig = listed(state);
    struct wait wait;
    hps_clock_advance(1000);
    assert_int_equal(wait_begin(rig, &wait, NULL, 7), HPS_OK);
    assert_false(wait.waiter.refreshed);
    wait.says = HPS_UPDATE_LOOK_REFRESH;
    hps_clock_advance(10 * 1000);
    turns(rig, 2);
    assert_true(rig->stream->refresh.done_us > wait.waiter.begin_us);
    assert_true(wait.waiter.refreshed);
    uint64_t done_us = rig->stream->refresh.done_us;
    for (int i = 0; i < 15; i++) { /* no other one within 200 ms */
        hps_clock_advance(10 * 1000);
        turns(rig, 1);
    }
    assert_int_equal(rig->stream->refresh.done_us, done_us);
    hps_clock_advance(100 * 1000);
    turns(rig, 2);
    assert_true(rig->stream->refresh.done_us > done_us);
    assert_true(hps_updater_wait_end(rig->updater, &wait.waiter));
}

static void test_waits_when_there_are_too_many_then_refused_by_identity_and_in_all(void **state)
{
    struct rig *rig = listed(state);
    struct wait *waits = hps_calloc(ALL_MAX + 1, sizeof(*waits));
    const char *who = "1234";
    assert_non_null(waits);
    for (int i = 0; i < ALL_MAX; i++) {
        if (i > 0 && i % ONE_MAX == 0) {
            assert_int_equal(wait_begin(rig, &waits[i], who, 7), HPS_EXHAUSTED);
            who++;
        }
        assert_int_equal(wait_begin(rig, &waits[i], who, 7), HPS_OK);
    }
    assert_int_equal(wait_begin(rig, &waits[ALL_MAX], NULL, 7), HPS_EXHAUSTED);
    assert_true(hps_updater_wait_end(rig->updater, &waits[0].waiter));
    assert_int_equal(wait_begin(rig, &waits[0], NULL, 7), HPS_OK);
    hps_updater_waits_close(rig->updater); /* the server stops: all end, and no more begin */
    for (int i = 0; i < ALL_MAX; i++) {
        assert_int_equal(waits[i].end, HPS_UPDATE_END_STOPS);
    }
    assert_int_equal(wait_begin(rig, &waits[0], NULL, 7), HPS_UNAVAILABLE);
    hps_free(waits);
}

static void test_wait_when_the_version_goes_or_is_not_there_then_it_ends(void **state)
{
    struct rig *rig = listed(state);
    struct wait wait;
    struct hps_error err = {0};
    assert_int_equal(wait_begin(rig, &wait, NULL, 8), HPS_NOT_FOUND);
    assert_int_equal(wait_begin(rig, &wait, NULL, 7), HPS_OK);
    update_waits_end(rig->stream);
    assert_int_equal(wait.end, HPS_UPDATE_END_VERSION);
    wait = (struct wait){.waiter = {.look = on_look, .done = on_done}, .end = -1};
    assert_false(hps_updater_wait_end(rig->updater, &wait.waiter)); /* before it began */
    assert_int_equal(hps_updater_wait(rig->updater, "m", 7, &wait.waiter, &err), HPS_CANCELLED);
    assert_int_equal(wait.n_looks, 0);
}

#define T(test) cmocka_unit_test_setup_teardown(test, rig_setup, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_wait_when_the_stream_turns_then_it_looks_until_it_is_done),
        T(test_wait_when_turns_are_quick_then_it_looks_no_more_than_every_10_ms),
        T(test_wait_when_a_refresh_is_wanted_then_one_is_made_and_then_a_pause),
        T(test_waits_when_there_are_too_many_then_refused_by_identity_and_in_all),
        T(test_wait_when_the_version_goes_or_is_not_there_then_it_ends),
    };
    return cmocka_run_group_tests_name("waits", tests, NULL, NULL);
}

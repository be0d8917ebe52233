/* SPDX-License-Identifier: Apache-2.0
 *
 * Waits for the updates of a version: when a waiter checks the view, how many waits are allowed,
 * and how a wait ends. Refreshes and commands, which no thread waits for. The test runs each turn
 * of the stream, so a function that waits for the stream would never return.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "base/container.h"
#include "tests/lib/stream_rig.h"

enum { ALL_MAX = 256, ONE_MAX = 64, COMMANDS_MAX = 64 };

struct wait {
    struct hps_update_waiter waiter;
    enum hps_update_check result;
    unsigned n_checks;
    int end; /* -1: it waits */
};

static enum hps_update_check on_check(struct hps_update_waiter *waiter,
                                      const struct hps_stream_view *view)
{
    struct wait *wait = (struct wait *)waiter;
    assert_int_equal(view->version, 7);
    assert_true(view->active);
    wait->n_checks++;
    return wait->result;
}

static void on_done(struct hps_update_waiter *waiter, enum hps_update_end end)
{
    assert_int_equal(((struct wait *)waiter)->end, -1);
    ((struct wait *)waiter)->end = (int)end;
}

static hps_status wait_begin(struct rig *rig, struct wait *wait, const void *client,
                             int64_t version)
{
    struct hps_error err = {0};
    *wait = (struct wait){.waiter = {.check = on_check, .done = on_done, .client = client},
                          .result = HPS_UPDATE_CHECK_WAIT,
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

static void test_wait_when_the_stream_turns_then_it_checks_until_done(void **state)
{
    struct rig *rig = listed(state);
    struct wait wait;
    assert_int_equal(wait_begin(rig, &wait, NULL, 7), HPS_OK);
    assert_int_equal(wait.n_checks, 1);
    wait.result = HPS_UPDATE_CHECK_DONE;
    hps_clock_advance(10 * 1000);
    turns(rig, 1);
    assert_int_equal(wait.n_checks, 2);
    assert_int_equal(wait.end, HPS_UPDATE_END_DONE);
    hps_clock_advance(10 * 1000);
    turns(rig, 1);
    assert_int_equal(wait.n_checks, 2);
    assert_false(hps_updater_wait_end(rig->updater, &wait.waiter));
}

static void test_wait_when_turns_are_quick_then_it_checks_every_10_ms(void **state)
{
    struct rig *rig = listed(state);
    struct wait wait;
    assert_int_equal(wait_begin(rig, &wait, NULL, 7), HPS_OK);
    hps_clock_advance(10 * 1000);
    turns(rig, 5);
    assert_int_equal(wait.n_checks, 2);
    assert_true(hps_updater_wait_end(rig->updater, &wait.waiter));
}

static void test_wait_when_it_requests_refreshes_then_they_have_pauses(void **state)
{
    struct rig *rig = listed(state);
    struct wait wait;
    hps_clock_advance(1000);
    assert_int_equal(wait_begin(rig, &wait, NULL, 7), HPS_OK);
    assert_false(wait.waiter.refreshed);
    wait.result = HPS_UPDATE_CHECK_REFRESH;
    hps_clock_advance(10 * 1000);
    turns(rig, 2);
    assert_true(rig->stream->refresh->done_us > wait.waiter.begin_us);
    assert_true(wait.waiter.refreshed);
    uint64_t done_us = rig->stream->refresh->done_us;
    for (int i = 0; i < 15; i++) { /* no other refresh within 200 ms */
        hps_clock_advance(10 * 1000);
        turns(rig, 1);
    }
    assert_int_equal(rig->stream->refresh->done_us, done_us);
    hps_clock_advance(100 * 1000);
    turns(rig, 2);
    assert_true(rig->stream->refresh->done_us > done_us);
    assert_true(hps_updater_wait_end(rig->updater, &wait.waiter));
}

static void test_waits_when_too_many_then_rejected_by_client_and_in_all(void **state)
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
    hps_updater_waits_close(
        rig->updater); /* the server stops: all waits end, and new ones are rejected */
    for (int i = 0; i < ALL_MAX; i++) {
        assert_int_equal(waits[i].end, HPS_UPDATE_END_STOPS);
    }
    assert_int_equal(wait_begin(rig, &waits[0], NULL, 7), HPS_UNAVAILABLE);
    hps_free(waits);
}

static void test_wait_when_the_version_is_removed_or_unknown_then_it_ends(void **state)
{
    struct rig *rig = listed(state);
    struct wait wait;
    struct hps_error err = {0};
    assert_int_equal(wait_begin(rig, &wait, NULL, 8), HPS_NOT_FOUND);
    assert_int_equal(wait_begin(rig, &wait, NULL, 7), HPS_OK);
    update_waits_end(rig->stream);
    assert_int_equal(wait.end, HPS_UPDATE_END_VERSION);
    wait = (struct wait){.waiter = {.check = on_check, .done = on_done}, .end = -1};
    assert_false(hps_updater_wait_end(rig->updater, &wait.waiter)); /* it does not wait yet */
    assert_int_equal(hps_updater_wait(rig->updater, "m", 7, &wait.waiter, &err), HPS_CANCELLED);
    assert_int_equal(wait.n_checks, 0);
}

/* ---- refreshes ------------------------------------------------------------------------------- */

static bool on_wants(struct hps_update_waiter *waiter, const char *model, int64_t version)
{
    (void)waiter;
    assert_string_equal(model, "m");
    return version == 7;
}

static bool wants_none(struct hps_update_waiter *waiter, const char *model, int64_t version)
{
    return !on_wants(waiter, model, version);
}

/* Begin or continue the refresh of one caller. */
static hps_status refresh(struct rig *rig, struct wait *wait, bool begins)
{
    struct hps_error err = {0};
    if (begins) {
        *wait = (struct wait){.waiter = {.wants = on_wants, .done = on_done}};
    }
    wait->end = -1;
    wait->waiter.state = HPS_UPDATE_WAITER_NEW;
    return hps_updater_refresh(rig->updater, &wait->waiter, &err);
}

static void test_refresh_when_a_leader_is_silent_then_no_thread_waits_and_one_serves_all_callers(
    void **state)
{
    struct rig *rig = listed(state);
    struct wait waits[3], late;
    hps_fake_log_leader(rig->log, ITEMS, 0, HPS_UNAVAILABLE);
    hps_clock_advance(1000);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(refresh(rig, &waits[i], true), HPS_AGAIN);
    }
    turns(rig, 1);
    uint64_t begun_us = rig->stream->refresh->begun_us;
    assert_int_equal(begun_us, hps_clock_us());
    hps_clock_advance(1000 * 1000);
    assert_int_equal(refresh(rig, &late, true), HPS_AGAIN);
    assert_true(hps_updater_wait_end(rig->updater, &waits[2].waiter)); /* its time has passed */
    turns(rig, 1);
    assert_int_equal(waits[0].end, -1);
    hps_clock_advance(1100 * 1000);
    turns(rig, 1);
    assert_int_equal(rig->stream->refresh->done_us, begun_us);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(waits[i].end, HPS_UPDATE_END_DONE);
        assert_int_equal(refresh(rig, &waits[i], false), HPS_OK);
    }
    assert_int_equal(waits[2].end, -1);
    assert_int_equal(late.end, -1); /* it came when that refresh had begun */
    hps_fake_log_leader(rig->log, ITEMS, 0, HPS_OK);
    turns(rig, 2);
    assert_int_equal(late.end, HPS_UPDATE_END_DONE);
    assert_int_equal(refresh(rig, &late, false), HPS_OK);
}

static void test_refresh_when_it_fails_or_finds_no_version_then_the_caller_learns_it(void **state)
{
    struct rig *rig = listed(state);
    struct hps_error err = {0};
    struct wait wait;
    struct hps_update_waiter none = {.wants = wants_none, .done = on_done};
    assert_int_equal(hps_updater_refresh(rig->updater, &none, &err), HPS_OK);
    hps_fake_log_set(rig->log, HPS_FAKE_AWAY, HPS_UNAVAILABLE);
    turns(rig, 2);
    hps_clock_advance(1000);
    assert_int_equal(refresh(rig, &wait, true), HPS_AGAIN);
    turns(rig, 2);
    assert_int_equal(wait.end, HPS_UPDATE_END_DONE);
    assert_int_equal(refresh(rig, &wait, false), HPS_UNAVAILABLE);
    hps_clock_advance(1000);
    assert_int_equal(refresh(rig, &wait, true), HPS_AGAIN);
    update_waits_end(rig->stream); /* the version is removed */
    assert_int_equal(wait.end, HPS_UPDATE_END_VERSION);
    assert_int_equal(refresh(rig, &wait, true), HPS_AGAIN);
    hps_updater_waits_close(rig->updater);
    assert_int_equal(wait.end, HPS_UPDATE_END_STOPS);
    assert_int_equal(refresh(rig, &wait, true), HPS_UNAVAILABLE);
}

/* ---- commands -------------------------------------------------------------------------------- */

struct command {
    struct hps_update_work work;
    unsigned number; /* how many commands have ended by then */
};

static unsigned n_ended;

static void on_command(struct hps_update_work *work)
{
    HPS_CONTAINER_OF(work, struct command, work)->number = ++n_ended;
}

static void test_commands_when_the_stream_is_busy_then_they_wait_in_order_and_no_thread_waits(
    void **state)
{
    struct rig *rig = listed(state);
    static struct command commands[COMMANDS_MAX + 1];
    n_ended = 0;
    for (unsigned i = 0; i <= COMMANDS_MAX; i++) {
        commands[i].work = (struct hps_update_work){
            .command = {.kind = i % 2 == 0 ? HPS_UPDATE_PAUSE : HPS_UPDATE_RESUME,
                        .model = "",
                        .topic = "",
                        .partition = -1},
            .done = on_command};
        hps_updater_command(rig->updater, &commands[i].work);
    }
    assert_int_equal(n_ended, 1);
    assert_int_equal(commands[COMMANDS_MAX].work.error.status, HPS_EXHAUSTED);
    turns(rig, 1);
    for (unsigned i = 0; i < COMMANDS_MAX; i++) {
        assert_int_equal(commands[i].number, i + 2);
        assert_int_equal(commands[i].work.error.status, HPS_OK);
        assert_int_equal(commands[i].work.n, 1);
    }
}

static void test_commands_when_no_list_has_arrived_then_they_wait_for_it_at_most_3_s(void **state)
{
    for (int answers = 0; answers < 2; answers++) {
        struct rig *rig = rig_open();
        struct command pause = {
            .work = {
                .command = {.kind = HPS_UPDATE_PAUSE, .model = "", .topic = "", .partition = -1},
                .done = on_command}};
        (void)state;
        hps_fake_log_set(rig->log, HPS_FAKE_LISTS, HPS_UNAVAILABLE);
        open_stream(rig);
        rig->updater->streams = rig->stream;
        hps_updater_command(rig->updater, &pause.work);
        n_ended = 0;
        turns(rig, 1);
        hps_clock_advance(2999 * 1000);
        turns(rig, 1);
        assert_int_equal(n_ended, 0);
        hps_fake_log_set(rig->log, HPS_FAKE_LISTS, answers ? HPS_OK : HPS_UNAVAILABLE);
        hps_clock_advance(1000);
        turns(rig, 2);
        assert_int_equal(n_ended, 1);
        assert_int_equal(pause.work.error.status, answers ? HPS_OK : HPS_UNAVAILABLE);
        assert_int_equal(pause.work.n, answers);
        rig->updater->streams = NULL;
        rig_close(rig);
    }
}

#define T(test) cmocka_unit_test_setup_teardown(test, rig_setup, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_wait_when_the_stream_turns_then_it_checks_until_done),
        T(test_wait_when_turns_are_quick_then_it_checks_every_10_ms),
        T(test_wait_when_it_requests_refreshes_then_they_have_pauses),
        T(test_waits_when_too_many_then_rejected_by_client_and_in_all),
        T(test_wait_when_the_version_is_removed_or_unknown_then_it_ends),
        T(test_refresh_when_a_leader_is_silent_then_no_thread_waits_and_one_serves_all_callers),
        T(test_refresh_when_it_fails_or_finds_no_version_then_the_caller_learns_it),
        T(test_commands_when_the_stream_is_busy_then_they_wait_in_order_and_no_thread_waits),
        cmocka_unit_test(test_commands_when_no_list_has_arrived_then_they_wait_for_it_at_most_3_s),
    };
    return cmocka_run_group_tests_name("waits", tests, NULL, NULL);
}

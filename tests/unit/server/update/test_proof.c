/* SPDX-License-Identifier: Apache-2.0
 *
 * What a stream claims to be fresh, turn by turn: only what the leaders of its partitions have
 * proved.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "tests/lib/stream_rig.h"

enum { S = 1000 * 1000, HOUR_MS = 3600 * 1000 };

static int64_t now_ms(void)
{
    return hps_clock_forward_ms();
}

static const struct hps_partition_view *view_of(struct rig *rig, const char *topic, int32_t number)
{
    for (uint32_t i = 0; i < rig->stream->view.n_partitions; i++) {
        const struct hps_partition_view *view = &rig->stream->view.partitions[i];
        if (view->partition == number && strcmp(view->topic, topic) == 0) {
            return view;
        }
    }
    fail_msg("no partition %d of %s", (int)number, topic);
    return NULL;
}

static double gauge(struct rig *rig, enum hps_metric_id id, const char *a, const char *b,
                    const char *c)
{
    rig->stream->view.active = true;
    update_show_gauges(rig->metrics, &rig->stream->view);
    return hps_metric_value(hps_server_metric(rig->metrics, id, a, b, c, NULL));
}

static double staleness(struct rig *rig)
{
    return gauge(rig, HPS_M_UPDATE_STALENESS, "m", NULL, NULL);
}

static void wait_s(struct rig *rig, unsigned s)
{
    for (unsigned i = 0; i < s; i++) {
        hps_clock_advance(S);
        turns(rig, 1);
    }
}

/* ---- leaders --------------------------------------------------------------------------------- */

static void test_as_of_when_one_leader_is_silent_then_it_stands_though_others_answer(void **state)
{
    struct rig *rig = *state;
    hps_fake_log_topic(rig->log, USERS, 1);
    begin(rig, 1);
    int64_t proved_ms = now_ms();
    assert_int_equal(rig->stream->view.as_of_ms, proved_ms);
    assert_true(gauge(rig, HPS_M_UPDATE_SOURCE_UP, "m", NULL, NULL) == 1);
    hps_fake_log_leader(rig->log, ITEMS, 0, HPS_UNAVAILABLE);
    put(rig, 1, 11);
    put_on(rig, USERS, 0, 5, 50);
    wait_s(rig, 40);
    assert_true(update_is_connected(rig->stream));
    assert_true(fixture_value(&rig->fx, FIXTURE_USERS, 5) == 50);
    assert_int_equal(view_of(rig, USERS, 0)->as_of_ms, now_ms());
    assert_int_equal(view_of(rig, ITEMS, 0)->as_of_ms, proved_ms);
    assert_int_equal(hps_update_as_of_ms(rig->fx.version), proved_ms);
    assert_true(staleness(rig) == 40);
    assert_true(gauge(rig, HPS_M_UPDATE_SOURCE_UP, "m", NULL, NULL) == 0);
    assert_non_null(strstr(view_of(rig, ITEMS, 0)->reason, "does not answer"));
    assert_int_equal(view_of(rig, ITEMS, 0)->state, HPS_PARTITION_UNREACHABLE);
    assert_true(isinf(gauge(rig, HPS_M_UPDATE_LAG, ITEMS, "0", NULL)));
    hps_fake_log_leader(rig->log, ITEMS, 0, HPS_OK);
    turns(rig, 3);
    assert_true(item(rig, 1) == 11);
    assert_true(staleness(rig) == 0);
    assert_true(gauge(rig, HPS_M_UPDATE_SOURCE_UP, "m", NULL, NULL) == 1);
    assert_string_equal(view_of(rig, ITEMS, 0)->reason, "");
}

/* ---- a clock that is set back ---------------------------------------------------------------- */

static void test_staleness_when_the_clock_is_set_back_then_it_grows_as_before(void **state)
{
    struct rig *rig = *state;
    begin(rig, 1);
    hps_fake_log_leader(rig->log, ITEMS, 0, HPS_UNAVAILABLE);
    wait_s(rig, 10);
    hps_clock_wall_shift(-HOUR_MS);
    wait_s(rig, 30);
    assert_true(staleness(rig) == 40);
    assert_int_equal(hps_update_age_ms(rig->fx.version), 40000);
    assert_int_equal(hps_partition_lag_ms(view_of(rig, ITEMS, 0)), 40000);
    hps_fake_log_leader(rig->log, ITEMS, 0, HPS_OK);
    wait_s(rig, 70); /* new lists and witnesses come as before */
    assert_true(staleness(rig) == 0);
    assert_int_equal(hps_update_age_ms(rig->fx.version), 0);
    assert_true(now_ms() - view_of(rig, ITEMS, 0)->same_ms <= 30000);
}

/* hpsd ends 10 s after the leader fell silent, and starts 4 s later. */
static void test_staleness_when_the_clock_was_set_back_before_a_restart_then_never_too_low(
    void **state)
{
    static const struct {
        int64_t ahead_ms;            /* of the wall clock as the leader answers last */
        int64_t running_ms, down_ms; /* set back by, while hpsd runs, and while it is down */
        int64_t age_ms;              /* after the start; -1: not known */
    } cases[] = {{0, 0, 0, 14000},          {0, 0, HOUR_MS, -1},
                 {0, HOUR_MS, 0, 14000},    {0, HOUR_MS, -HOUR_MS, 14000 + HOUR_MS},
                 {HOUR_MS, 0, HOUR_MS, -1}, {HOUR_MS, HOUR_MS, 0, 14000}};
    (void)state;
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rig *rig = rig_open();
        hps_fake_log_topic_compacted(rig->log, ITEMS, HPS_COMPACTION_YES, 10 * HOUR_MS);
        begin(rig, 1);
        hps_clock_wall_shift(cases[i].ahead_ms);
        hps_clock_advance(UINT64_C(36000) * S);
        wait_s(rig, 1); /* base_ms is now older than delete.retention.ms */
        hps_fake_log_leader(rig->log, ITEMS, 0, HPS_UNAVAILABLE);
        put(rig, 2, 20);
        hps_clock_wall_shift(-cases[i].running_ms);
        wait_s(rig, 10);
        hps_clock_fake(hps_clock_us() + 4 * S); /* another process */
        hps_clock_wall_shift(cases[i].ahead_ms - cases[i].running_ms - cases[i].down_ms);
        rig_restart(rig, 3);
        assert_int_equal(hps_update_age_ms(rig->fx.version), cases[i].age_ms);
        assert_int_equal(hps_partition_lag_ms(view_of(rig, ITEMS, 0)), cases[i].age_ms);
        assert_true(isinf(staleness(rig)) == (cases[i].age_ms < 0));
        hps_fake_log_leader(rig->log, ITEMS, 0, HPS_OK);
        wait_s(rig, 3);
        assert_true(item(rig, 2) == 20);
        assert_true(staleness(rig) == 0);
        rig_close(rig);
    }
}

static void note_view(void *ctx, const struct hps_stream_view *view)
{
    struct hps_stream_view *noted = ctx;
    *noted = *view;
}

/* The thread waits for a list of topics, say: nothing is shown meanwhile. */
static void test_view_when_no_turn_comes_then_nothing_is_claimed_for_longer_than_it_is_so(
    void **state)
{
    struct rig *rig = *state;
    struct hps_stream_view view;
    begin(rig, 1);
    rig->updater->streams = rig->stream;
    hps_clock_advance(UPDATE_LEADER_SILENT_US);
    hps_updater_each(rig->updater, note_view, &view);
    bool is_known = view.leaders_up && view.partitions[0].lag_known;
    enum hps_partition_state state_before = view.partitions[0].state;
    hps_clock_advance(10); /* the script's answers are a microsecond apart */
    hps_updater_each(rig->updater, note_view, &view);
    rig->updater->streams = NULL;
    assert_true(is_known);
    assert_int_equal(state_before, HPS_PARTITION_RUNNING);
    assert_false(view.leaders_up || view.partitions[0].lag_known);
    assert_int_equal(view.partitions[0].state, HPS_PARTITION_RUNNING); /* nobody knows better */
    assert_non_null(strstr(view.partitions[0].reason, "hpsd waits"));
    turns(rig, 3);
    assert_int_equal(view_of(rig, ITEMS, 0)->state, HPS_PARTITION_RUNNING);
    assert_true(rig->stream->view.leaders_up && view_of(rig, ITEMS, 0)->lag_known);
}

static void test_view_when_the_topic_is_not_proved_in_time_then_the_lag_is_not_known(void **state)
{
    struct rig *rig = *state;
    struct hps_stream_view view;
    begin(rig, 1);
    rig->updater->streams = rig->stream;
    rig->stream->shown.partitions[0].word_until_us = UINT64_MAX; /* its leader goes on answering */
    hps_clock_advance((uint64_t)(rig->options.topics_ms + UPDATE_LOG_TIMEOUT_MS) * 1000);
    hps_updater_each(rig->updater, note_view, &view);
    bool is_known = view.partitions[0].lag_known;
    hps_clock_advance(1000);
    hps_updater_each(rig->updater, note_view, &view);
    rig->updater->streams = NULL;
    assert_true(is_known);
    assert_false(view.partitions[0].lag_known);
    assert_non_null(strstr(view.partitions[0].reason, "topic was recreated"));
}

static void test_lag_when_at_a_gap_for_long_then_still_known(void **state)
{
    struct rig *rig = *state;
    begin(rig, 4);
    hps_fake_log_append_hole(rig->log, ITEMS, 0);
    put(rig, 6, 10);
    hps_fake_log_trim(rig->log, ITEMS, 0, 5);
    turns(rig, 3);
    assert_int_equal(view_of(rig, ITEMS, 0)->state, HPS_PARTITION_GAP);
    assert_true(view_of(rig, ITEMS, 0)->lag_known);
    wait_s(rig, 120);
    assert_int_equal(view_of(rig, ITEMS, 0)->state, HPS_PARTITION_GAP);
    assert_true(view_of(rig, ITEMS, 0)->lag_known);
}

/* Committed records behind the open transaction are logged, and not to be had yet. */
static void test_as_of_when_a_transaction_is_open_then_it_waits_for_its_end(void **state)
{
    struct rig *rig = *state;
    begin(rig, 1);
    int64_t proved_ms = now_ms();
    hps_fake_log_topic_set(rig->log, ITEMS, HPS_FAKE_SLOW, true);
    put(rig, 1, 11);
    wait_s(rig, 5);
    assert_int_equal(rig->stream->view.as_of_ms, proved_ms);
    assert_int_equal(view_of(rig, ITEMS, 0)->lag, 1);
    hps_fake_log_topic_set(rig->log, ITEMS, HPS_FAKE_SLOW, false);
    turns(rig, 2);
    assert_true(item(rig, 1) == 11);
    assert_int_equal(rig->stream->view.as_of_ms, now_ms());
}

static void test_as_of_when_behind_then_only_what_was_read_up_to_is_claimed(void **state)
{
    struct rig *rig = *state;
    rig->options.rows_per_s_max = 10;
    begin(rig, 0);
    for (int i = 0; i < 200; i++) {
        put(rig, (hps_key)i, (float)i);
        hps_clock_advance(S / 100); /* ten times as fast as they are read */
        turns(rig, 1);
    }
    int64_t end_ms = now_ms();
    int64_t next = view_of(rig, ITEMS, 0)->next;
    int64_t as_of_ms = rig->stream->view.as_of_ms;
    assert_true(next < 100);
    /* Record i was logged i * 10 ms after the first one: none that is not read is older. */
    assert_true(as_of_ms <= end_ms - 2000 + next * 10);
    assert_true(as_of_ms > end_ms - 2000);
    wait_s(rig, 30);
    assert_int_equal(view_of(rig, ITEMS, 0)->lag, 0);
    assert_int_equal(rig->stream->view.as_of_ms, now_ms());
}

static void test_as_of_when_quiet_and_the_log_was_away_then_it_does_not_go_back(void **state)
{
    struct rig *rig = *state;
    begin(rig, 1);
    wait_s(rig, 600);
    int64_t proved_ms = now_ms();
    assert_int_equal(rig->stream->view.as_of_ms, proved_ms);
    hps_fake_log_set(rig->log, HPS_FAKE_AWAY, HPS_UNAVAILABLE);
    wait_s(rig, 1);
    hps_fake_log_set(rig->log, HPS_FAKE_AWAY, HPS_OK);
    for (int i = 0; i < 4; i++) {
        assert_true(rig->stream->view.as_of_ms >= proved_ms);
        turns(rig, 1);
    }
    assert_int_equal(rig->stream->view.as_of_ms, now_ms());
    assert_int_equal(command(rig, HPS_UPDATE_PAUSE), HPS_OK);
    proved_ms = now_ms();
    wait_s(rig, 5);
    assert_true(staleness(rig) == 5);
    assert_int_equal(command(rig, HPS_UPDATE_RESUME), HPS_OK);
    assert_true(rig->stream->view.as_of_ms >= proved_ms);
}

static void test_as_of_when_a_topic_grows_then_since_it_was_listed_before(void **state)
{
    struct rig *rig = *state;
    begin(rig, 1);
    int64_t listed_ms = now_ms();
    wait_s(rig, 29);
    hps_fake_log_topic(rig->log, ITEMS, 2);
    hps_fake_log_leader(rig->log, ITEMS, 1, HPS_UNAVAILABLE);
    wait_s(rig, 2);
    assert_int_equal(rig->stream->view.n_partitions, 2);
    assert_int_equal(rig->stream->view.as_of_ms, listed_ms);
    assert_int_equal(view_of(rig, ITEMS, 1)->state, HPS_PARTITION_STARTING);
    assert_non_null(strstr(view_of(rig, ITEMS, 1)->reason, "does not answer"));
    hps_fake_log_leader(rig->log, ITEMS, 1, HPS_OK);
    turns(rig, 1);
    assert_true(rig->stream->view.as_of_ms >= listed_ms); /* also as it begins */
    wait_s(rig, 1);
    assert_int_equal(rig->stream->view.as_of_ms, now_ms());
}

static void test_as_of_when_the_model_has_no_topic_then_it_is_not_known(void **state)
{
    struct rig *rig = *state;
    hps_fake_log_topic_set(rig->log, ITEMS, HPS_FAKE_DELETED, true);
    begin(rig, 0);
    assert_true(update_is_listed(rig->stream));
    assert_int_equal(hps_update_as_of_ms(rig->fx.version), 0);
    assert_true(isinf(staleness(rig)));
    hps_fake_log_topic(rig->log, ITEMS, 1);
    put(rig, 1, 10);
    wait_s(rig, 31);
    assert_int_equal(hps_update_as_of_ms(rig->fx.version), now_ms());
}

static void test_staleness_when_never_proved_then_endless(void **state)
{
    struct rig *rig = *state;
    put(rig, 1, 10);
    hps_fake_log_leader(rig->log, ITEMS, 0, HPS_UNAVAILABLE);
    begin(rig, 0);
    assert_true(isinf(staleness(rig)));
    assert_true(isinf(gauge(rig, HPS_M_UPDATE_LAG_SECONDS, ITEMS, "0", NULL)));
    assert_true(gauge(rig, HPS_M_UPDATE_PARTITION_STATE, ITEMS, "0", "starting") == 1);
}

/* ---- states ---------------------------------------------------------------------------------- */

static void test_state_when_a_batch_waits_then_held_and_behind(void **state)
{
    struct rig *rig = *state;
    begin(rig, 1);
    hps_fake_fail(rig->fx.disk, HPS_FAKE_APPLY, HPS_EXHAUSTED, 0, 1000, 0);
    put(rig, 1, 11);
    turns(rig, 1);
    put(rig, 1, 12);
    wait_s(rig, 5);
    assert_int_equal(view_of(rig, ITEMS, 0)->state, HPS_PARTITION_HELD);
    assert_int_equal(view_of(rig, ITEMS, 0)->lag, 2);
    assert_non_null(strstr(view_of(rig, ITEMS, 0)->reason, "a batch cannot be applied"));
    assert_true(staleness(rig) >= 5);
    assert_true(gauge(rig, HPS_M_UPDATE_PARTITION_STATE, ITEMS, "0", "held") == 1);
    assert_true(gauge(rig, HPS_M_UPDATE_PARTITION_STATE, ITEMS, "0", "running") == 0);
}

static void test_state_when_frozen_then_said_and_growing_old(void **state)
{
    struct rig *rig = *state;
    begin(rig, 1);
    freeze(rig, 1);
    turns(rig, 1);
    put(rig, 1, 11);
    wait_s(rig, 5);
    assert_true(item(rig, 1) == 10);
    assert_int_equal(view_of(rig, ITEMS, 0)->state, HPS_PARTITION_FROZEN);
    assert_non_null(strstr(view_of(rig, ITEMS, 0)->reason, "lineage"));
    assert_int_equal(view_of(rig, ITEMS, 0)->skipped, 1);
    assert_true(gauge(rig, HPS_M_UPDATE_FROZEN, "m", NULL, NULL) == 1);
    assert_true(staleness(rig) == 5);
    assert_true(gauge(rig, HPS_M_UPDATE_LAG, ITEMS, "0", NULL) ==
                1); /* passed over is not applied */
    rig->n_switches = 1;
    rig_restart(rig, 0);
    put(rig, 2, 22);
    wait_s(rig, 3);
    assert_int_equal(view_of(rig, ITEMS, 0)->state, HPS_PARTITION_FROZEN);
    assert_true(staleness(rig) >= 8);
    assert_true(gauge(rig, HPS_M_UPDATE_LAG, ITEMS, "0", NULL) == 2);
}

/* Each of two partitions has a record that is applied, and one that is passed over. */
static void freeze_both(struct rig *rig)
{
    hps_fake_log_topic(rig->log, USERS, 1);
    put_on(rig, USERS, 0, 1, 10);
    begin(rig, 1);
    freeze(rig, 1);
    put(rig, 1, 11);
    put_on(rig, USERS, 0, 1, 11);
    wait_s(rig, 2);
}

/* Else its as-of would claim what was passed over. */
static void test_seek_when_frozen_then_the_other_partitions_go_on_where_they_froze(void **state)
{
    struct rig *rig = *state;
    freeze_both(rig);
    rig->n_switches = 1;
    rig_restart(rig, 3);
    assert_int_equal(command_on(rig, ITEMS, 0, HPS_UPDATE_SEEK, HPS_UPDATE_SEEK_EARLIEST, 0),
                     HPS_OK);
    turns(rig, 3);
    assert_true(item(rig, 1) == 11);
    assert_true(fixture_value(&rig->fx, FIXTURE_USERS, 1) == 11);
    assert_int_equal(rig->stream->view.as_of_ms, now_ms());
}

static void test_state_when_restarted_then_starting_until_listed_or_gone(void **state)
{
    struct rig *rig = *state;
    begin(rig, 1);
    hps_fake_log_topic_set(rig->log, ITEMS, HPS_FAKE_DELETED, true);
    rig_restart(rig, 0);
    update_stream_show(rig->stream);
    assert_int_equal(view_of(rig, ITEMS, 0)->state, HPS_PARTITION_STARTING);
    wait_s(rig, 5);
    assert_int_equal(view_of(rig, ITEMS, 0)->state, HPS_PARTITION_GONE);
}

static void test_seek_when_paused_then_it_stays_paused(void **state)
{
    struct rig *rig = *state;
    begin(rig, 2);
    assert_int_equal(command(rig, HPS_UPDATE_PAUSE), HPS_OK);
    assert_int_equal(seek(rig, 1), HPS_OK);
    put(rig, 1, 11);
    turns(rig, 3);
    assert_int_equal(view_of(rig, ITEMS, 0)->state, HPS_PARTITION_PAUSED);
    assert_int_equal(view_of(rig, ITEMS, 0)->next, 1);
    assert_true(item(rig, 1) == 10);
    rig_restart(rig, 3);
    assert_int_equal(view_of(rig, ITEMS, 0)->state, HPS_PARTITION_PAUSED);
    assert_int_equal(command(rig, HPS_UPDATE_RESUME), HPS_OK);
    turns(rig, 3);
    assert_true(item(rig, 1) == 11);
}

static void test_record_when_it_cannot_be_read_then_left_out_and_said(void **state)
{
    struct rig *rig = *state;
    put(rig, 1, 10);
    put(rig, 2, 20);
    put(rig, 3, 30);
    hps_fake_log_spoil(rig->log, ITEMS, 0, 1);
    open_stream(rig);
    turns(rig, 4);
    assert_true(item(rig, 1) == 10);
    assert_true(item(rig, 2) == -1);
    assert_true(item(rig, 3) == 30);
    assert_int_equal(view_of(rig, ITEMS, 0)->state, HPS_PARTITION_RUNNING);
    assert_int_equal(rig->stream->view.n_rejected_views, 1);
    assert_int_equal(rig->stream->view.rejected[0].offset, 1);
    assert_string_equal(rig->stream->view.rejected[0].reason, "unreadable");
    assert_true(gauge(rig, HPS_M_UPDATE_RECORDS_REJECTED, "m", "unreadable", NULL) == 1);
    rig_restart(rig, 3);
    assert_int_equal(view_of(rig, ITEMS, 0)->next, 3);
}

/* ---- deletes that are compacted away --------------------------------------------------------- */

static void compacted(struct rig *rig)
{
    hps_fake_log_topic_compacted(rig->log, ITEMS, HPS_COMPACTION_YES, HOUR_MS);
    begin(rig, 2);
}

static void test_tombstone_when_compacted_away_while_the_leader_was_silent_then_a_gap(void **state)
{
    struct rig *rig = *state;
    compacted(rig);
    hps_fake_log_leader(rig->log, ITEMS, 0, HPS_UNAVAILABLE);
    int64_t tombstone = put(rig, 1, -1);
    put(rig, 3, 30);
    wait_s(rig, 1);
    hps_clock_advance(UINT64_C(3601) * S);
    hps_fake_log_compact(rig->log, ITEMS, 0, tombstone);
    hps_fake_log_leader(rig->log, ITEMS, 0, HPS_OK);
    turns(rig, 4);
    assert_int_equal(view_of(rig, ITEMS, 0)->state, HPS_PARTITION_GAP);
    assert_non_null(strstr(view_of(rig, ITEMS, 0)->reason, "delete.retention.ms"));
    assert_true(staleness(rig) >= 3601);
    assert_int_equal(command(rig, HPS_UPDATE_ACCEPT_GAP), HPS_OK);
    turns(rig, 3);
    assert_true(item(rig, 3) == 30);
    assert_int_equal(rig->stream->view.as_of_ms, now_ms());
}

static void test_tombstone_when_read_that_far_behind_then_a_gap(void **state)
{
    struct rig *rig = *state;
    rig->options.rows_per_s_max = 1;
    compacted(rig);
    for (int i = 0; i < 4000; i++) {
        put(rig, 10 + (hps_key)i, 1);
    }
    for (int i = 0; i < 3590; i++) {
        wait_s(rig, 1);
        assert_int_equal(view_of(rig, ITEMS, 0)->state, HPS_PARTITION_RUNNING);
    }
    wait_s(rig, 20);
    assert_int_equal(view_of(rig, ITEMS, 0)->state, HPS_PARTITION_GAP);
}

/* Updates stood still for longer than tombstones stay: a leader was silent, or a batch was held. */
static void test_tombstone_when_not_read_that_long_then_a_gap_if_anything_was_logged(void **state)
{
    static const struct {
        bool held, logged;
        enum hps_partition_state state;
    } cases[] = {{false, false, HPS_PARTITION_RUNNING},
                 {true, false, HPS_PARTITION_HELD},
                 {true, true, HPS_PARTITION_GAP}};
    (void)state;
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rig *rig = rig_open();
        compacted(rig);
        if (cases[i].held) {
            hps_fake_fail(rig->fx.disk, HPS_FAKE_APPLY, HPS_EXHAUSTED, 0, 100000, 0);
            put(rig, 3, 30);
            turns(rig, 1);
        } else {
            hps_fake_log_leader(rig->log, ITEMS, 0, HPS_UNAVAILABLE);
        }
        if (cases[i].logged) {
            put(rig, 1, -1);
            hps_clock_advance(UINT64_C(3700) * S);
        } else {
            wait_s(rig, 3700);
        }
        hps_fake_log_leader(rig->log, ITEMS, 0, HPS_OK);
        turns(rig, 3);
        assert_int_equal(view_of(rig, ITEMS, 0)->state, cases[i].state);
        assert_int_equal(rig->stream->view.as_of_ms == now_ms(), !cases[i].held);
        rig_close(rig);
    }
}

/* As-of is not known yet: since when deletes may be missing is. */
static void test_tombstone_when_stopped_in_the_first_backlog_then_a_gap(void **state)
{
    struct rig *rig = *state;
    rig->options.rows_per_s_max = 1;
    hps_fake_log_topic_compacted(rig->log, ITEMS, HPS_COMPACTION_YES, HOUR_MS);
    for (int i = 0; i < 6; i++) {
        put(rig, (hps_key)i, 10);
    }
    open_stream(rig);
    wait_s(rig, 3);
    assert_int_equal(rig->stream->view.as_of_ms, 0);
    int64_t tombstone = put(rig, 1, -1);
    put(rig, 50, 1);
    close_stream(rig);
    fixture_version_close(&rig->fx);
    hps_clock_advance(UINT64_C(7200) * S);
    hps_fake_log_compact(rig->log, ITEMS, 0, tombstone);
    fixture_version(&rig->fx, 7, "run");
    open_stream(rig);
    wait_s(rig, 5);
    assert_int_equal(view_of(rig, ITEMS, 0)->state, HPS_PARTITION_GAP);
}

/* ---- another topic of the same name ---------------------------------------------------------- */

/* Made anew at once, and grown past where we were, before anybody looked. */
static void replace(struct rig *rig)
{
    for (int i = 0; i < 4; i++) {
        put(rig, (hps_key)i, 10);
        hps_clock_advance(1000);
    }
    begin(rig, 0);
    wait_s(rig, 31); /* topics are listed again */
    put(rig, 5, 10);
    turns(rig, 2);
    wait_s(rig, 1);
    hps_fake_log_topic_replace(rig->log, ITEMS);
    for (int i = 0; i < 8; i++) {
        put(rig, (hps_key)i, 20);
        hps_clock_advance(1000);
    }
}

static void test_topic_when_made_anew_and_outgrown_then_a_gap_once_it_is_asked(void **state)
{
    struct rig *rig = *state;
    int64_t begun_ms = now_ms();
    replace(rig);
    turns(rig, 3);
    assert_true(item(rig, 1) == 10); /* nobody told: rows of the new topic are missing */
    assert_true(item(rig, 7) == 20);
    wait_s(rig, 31);
    assert_int_equal(view_of(rig, ITEMS, 0)->state, HPS_PARTITION_GAP);
    assert_non_null(strstr(view_of(rig, ITEMS, 0)->reason, "recreated"));
    /* What was claimed meanwhile was not so. */
    assert_true(rig->stream->view.as_of_ms <= begun_ms + 32000);
    rig_restart(rig, 3);
    assert_int_equal(view_of(rig, ITEMS, 0)->state, HPS_PARTITION_GAP);
    assert_true(rig->stream->view.as_of_ms <= begun_ms + 32000);
    assert_int_equal(command(rig, HPS_UPDATE_ACCEPT_GAP), HPS_OK);
    turns(rig, 3);
    assert_true(item(rig, 1) == 20);
    assert_int_equal(rig->stream->view.as_of_ms, now_ms());
    wait_s(rig, 62);
    assert_int_equal(view_of(rig, ITEMS, 0)->state, HPS_PARTITION_RUNNING);
}

static void test_topic_when_made_anew_then_each_way_to_look_finds_it(void **state)
{
    static const struct {
        bool restarted, refreshed; /* else topics are listed */
        bool shorter;              /* its end is before the witness, as its leader says, too */
        const char *reason;
    } cases[] = {{.restarted = true, .reason = "another record"},
                 {.refreshed = true, .reason = "another record"},
                 {.shorter = true, .reason = "does not exist"},
                 {.reason = "topic's id"}};
    (void)state;
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rig *rig = rig_open();
        if (strstr(cases[i].reason, "id") != NULL) {
            hps_fake_log_topic_set(rig->log, ITEMS, HPS_FAKE_DELETED, true);
            hps_fake_log_set(rig->log, HPS_FAKE_IDS, true);
            hps_fake_log_topic(rig->log, ITEMS, 1);
        }
        replace(rig);
        turns(rig, 3);
        assert_true(item(rig, 7) == 20);
        if (cases[i].restarted) {
            rig_restart(rig, 3);
        } else if (cases[i].refreshed) {
            rig->stream->refresh.asked_us = hps_clock_us();
            assert_false(update_refresh_turn(rig->stream));
        } else {
            if (cases[i].shorter) {
                hps_fake_log_topic_replace(rig->log, ITEMS);
                put(rig, 1, 30);
            }
            wait_s(rig, 31);
        }
        assert_int_equal(view_of(rig, ITEMS, 0)->state, HPS_PARTITION_GAP);
        assert_non_null(strstr(view_of(rig, ITEMS, 0)->reason, cases[i].reason));
        rig_close(rig);
    }
}

static void run_until_known_same(struct rig *rig)
{
    begin(rig, 1);
    wait_s(rig, 31); /* topics are listed again, and the witness is recalled */
    assert_int_equal(rig->stream->view.as_of_ms, now_ms());
    assert_int_equal(view_of(rig, ITEMS, 0)->same_ms, now_ms() - S / 1000);
}

/* The leader's word says nothing of whose end it is. */
static void test_as_of_when_neither_list_nor_witness_comes_then_it_stands(void **state)
{
    struct rig *rig = *state;
    run_until_known_same(rig);
    int64_t until_ms = view_of(rig, ITEMS, 0)->same_ms + rig->options.topics_ms + 3000;
    hps_fake_log_set(rig->log, HPS_FAKE_LISTS, HPS_UNAVAILABLE);
    hps_fake_log_set(rig->log, HPS_FAKE_RECALLS_MUTE, true);
    wait_s(rig, 60);
    assert_int_equal(view_of(rig, ITEMS, 0)->state, HPS_PARTITION_RUNNING);
    assert_in_range(rig->stream->view.as_of_ms, until_ms - S / 1000, until_ms);
    assert_false(view_of(rig, ITEMS, 0)->lag_known);
    assert_non_null(strstr(view_of(rig, ITEMS, 0)->reason, "topic was recreated"));
    hps_fake_log_set(rig->log, HPS_FAKE_RECALLS_MUTE, false);
    hps_fake_log_set(rig->log, HPS_FAKE_LISTS, HPS_OK);
    wait_s(rig, 1);
    turns(rig, 3);
    assert_int_equal(rig->stream->view.as_of_ms, now_ms());
    assert_true(view_of(rig, ITEMS, 0)->lag_known);
    assert_string_equal(view_of(rig, ITEMS, 0)->reason, "");
}

static void test_as_of_when_only_lists_do_not_come_then_the_witness_is_asked_for(void **state)
{
    struct rig *rig = *state;
    run_until_known_same(rig);
    hps_fake_log_set(rig->log, HPS_FAKE_LISTS, HPS_UNAVAILABLE);
    wait_s(rig, 600);
    assert_int_equal(rig->stream->view.as_of_ms, now_ms());
    hps_fake_log_topic_replace(rig->log, ITEMS);
    put(rig, 1, 20);
    hps_clock_advance(1000);
    put(rig, 2, 20);
    wait_s(rig, 34);
    assert_int_equal(view_of(rig, ITEMS, 0)->state, HPS_PARTITION_GAP);
}

static void test_witness_when_refused_while_lists_do_not_come_then_asked_for_again(void **state)
{
    struct rig *rig = *state;
    run_until_known_same(rig);
    hps_fake_log_set(rig->log, HPS_FAKE_LISTS, HPS_UNAVAILABLE);
    hps_fake_log_set(rig->log, HPS_FAKE_RECALLS, HPS_NOT_FOUND);
    wait_s(rig, 40);
    assert_true(rig->stream->view.as_of_ms < now_ms());
    struct hps_watch *watch = rig->stream->partitions[0].proof.watch;
    hps_fake_log_set(rig->log, HPS_FAKE_RECALLS, HPS_OK);
    rig->stream->consumer->ops->recall(watch, -1); /* what was asked has had its answer */
    wait_s(rig, 12);
    turns(rig, 2);
    assert_int_equal(rig->stream->view.as_of_ms, now_ms());
}

/* That the stream waits for a list says nothing of leaders, which answer all the while. */
static void test_as_of_when_lists_hang_then_it_goes_on_by_what_leaders_answer(void **state)
{
    struct rig *rig = *state;
    run_until_known_same(rig);
    hps_fake_log_set(rig->log, HPS_FAKE_RECALLS_TAKE_US, S / 10);
    hps_fake_log_set(rig->log, HPS_FAKE_LISTS, HPS_UNAVAILABLE);
    hps_fake_log_set(rig->log, HPS_FAKE_LISTS_TAKE_US, 3 * S);
    wait_s(rig, 60);
    for (unsigned i = 0; i < 60; i++) {
        wait_s(rig, 1);
        assert_in_range(rig->stream->view.as_of_ms, now_ms() - 4000, now_ms());
        assert_true(view_of(rig, ITEMS, 0)->lag_known);
    }
}

/* It may have another topic now: one that was asked before the silence does not tell, and the list
 * that was not answered is not asked for without the pause. */
static void test_topic_when_its_leader_was_silent_while_lists_hang_then_asked_for_once(void **state)
{
    struct rig *rig = *state;
    run_until_known_same(rig);
    struct update_partition *partition = &rig->stream->partitions[0];
    hps_fake_log_set(rig->log, HPS_FAKE_LISTS, HPS_UNAVAILABLE);
    wait_s(rig, 40);
    hps_fake_log_set(rig->log, HPS_FAKE_RECALLS_TAKE_US, 2 * S);
    hps_fake_log_leader(rig->log, ITEMS, 0, HPS_UNAVAILABLE);
    wait_s(rig, 3);
    hps_fake_log_topic_replace(rig->log, ITEMS);
    put(rig, 1, 20);
    put(rig, 2, 20);
    hps_fake_log_leader(rig->log, ITEMS, 0, HPS_OK);
    turns(rig, 1);
    assert_int_equal(partition->same.state, UPDATE_UNPROVED);
    assert_true(partition->same.asked);
    assert_true(rig->stream->topics.due_us > hps_clock_us());
    uint64_t asked_us = partition->same.asked_us;
    wait_s(rig, 1);
    assert_int_equal(partition->same.asked_us, asked_us); /* its answer is awaited */
    wait_s(rig, 2);
    assert_int_equal(view_of(rig, ITEMS, 0)->state, HPS_PARTITION_GAP);
}

/* All of its partitions are new, and none is known to be new in the log: it may have been hidden.
 */
static void test_topic_when_listed_later_than_others_then_nothing_is_known_of_its_partitions(
    void **state)
{
    struct rig *rig = *state;
    begin(rig, 0);
    assert_int_equal(rig->stream->view.as_of_ms, now_ms());
    hps_fake_log_topic(rig->log, USERS, 2);
    hps_fake_log_leader(rig->log, USERS, 0, HPS_UNAVAILABLE);
    hps_fake_log_leader(rig->log, USERS, 1, HPS_UNAVAILABLE);
    wait_s(rig, 31);
    assert_int_equal(view_of(rig, USERS, 0)->as_of_ms, 0);
    assert_int_equal(view_of(rig, USERS, 1)->as_of_ms, 0);
    int64_t listed_ms = rig->stream->topics.listed_ms;
    hps_fake_log_topic(rig->log, USERS, 3); /* it grows */
    hps_fake_log_leader(rig->log, USERS, 2, HPS_UNAVAILABLE);
    wait_s(rig, 31);
    assert_int_equal(view_of(rig, USERS, 2)->as_of_ms, listed_ms);
}

/* A leader that is new, or one that is one no more, does not give the witness out: no gap, and
 * nothing is fresher for it. */
static void begin_without_witness(struct rig *rig, enum hps_compaction compaction)
{
    hps_fake_log_topic_compacted(rig->log, ITEMS, compaction, 3600000);
    begin(rig, 4);
    hps_fake_log_recall_end(rig->log, ITEMS, 0, 0);
    wait_s(rig, 31); /* topics are listed again */
    assert_int_equal(view_of(rig, ITEMS, 0)->state, HPS_PARTITION_RUNNING);
    rig_restart(rig, 5);
    assert_int_equal(view_of(rig, ITEMS, 0)->state, HPS_PARTITION_RUNNING);
    assert_true(rig->stream->view.as_of_ms < now_ms()); /* not known to be the same yet */
}

/* What compaction leaves at the end can be nothing. That is believed after a while. */
static void test_witness_when_none_is_found_then_it_is_asked_again_or_was_compacted_away(
    void **state)
{
    static const struct {
        enum hps_compaction compaction;
        bool found; /* in the end */
        unsigned wait_s;
        bool fresh;
    } cases[] = {{HPS_COMPACTION_NO, true, 1, true},
                 {HPS_COMPACTION_YES, false, 11, true},
                 {HPS_COMPACTION_UNKNOWN, false, 15, false}};
    (void)state;
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rig *rig = rig_open();
        begin_without_witness(rig, cases[i].compaction);
        if (cases[i].found) {
            hps_fake_log_recall_end(rig->log, ITEMS, 0, -1);
        }
        wait_s(rig, cases[i].wait_s);
        assert_int_equal(view_of(rig, ITEMS, 0)->state, HPS_PARTITION_RUNNING);
        assert_int_equal(rig->stream->view.as_of_ms == now_ms(), cases[i].fresh);
        hps_fake_log_topic_replace(rig->log, ITEMS);
        hps_fake_log_recall_end(rig->log, ITEMS, 0, -1);
        for (int k = 0; k < 8; k++) {
            put(rig, (hps_key)k, 20);
        }
        wait_s(rig, 31);
        assert_int_equal(view_of(rig, ITEMS, 0)->state, HPS_PARTITION_GAP);
        rig_close(rig);
    }
}

/* One look that finds nothing, long after another one, proves nothing: it must last. */
static void test_witness_when_none_is_found_now_and_then_then_that_is_not_believed(void **state)
{
    struct rig *rig = *state;
    begin_without_witness(rig, HPS_COMPACTION_YES);
    hps_fake_log_recall_end(rig->log, ITEMS, 0, -1);
    wait_s(rig, 1);
    assert_int_equal(rig->stream->view.as_of_ms, now_ms());
    for (int i = 0; i < 2; i++) {
        wait_s(rig, 15);
        hps_fake_log_recall_end(rig->log, ITEMS, 0, 0);
        rig->stream->topics.due_us = 0; /* listed now */
        turns(rig, 1);
        int64_t as_of_ms = rig->stream->view.as_of_ms;
        wait_s(rig, 5);
        assert_int_equal(rig->stream->view.as_of_ms, as_of_ms); /* stands still until found */
        hps_fake_log_recall_end(rig->log, ITEMS, 0, -1);
        wait_s(rig, 1);
        assert_int_equal(rig->stream->view.as_of_ms, now_ms());
    }
}

/* Where nothing was read yet the record before is what the topic is known by. */
static void test_topic_when_made_anew_before_a_record_was_read_then_a_gap(void **state)
{
    (void)state;
    for (int sought = 0; sought < 2; sought++) {
        struct rig *rig = rig_open();
        rig->options.start = sought ? HPS_UPDATE_START_EARLIEST : HPS_UPDATE_START_LATEST;
        begin(rig, 4);
        if (sought) {
            assert_int_equal(seek(rig, 4), HPS_OK);
        }
        turns(rig, 3);
        assert_int_equal(rig->stream->view.as_of_ms, now_ms());
        hps_fake_log_topic_replace(rig->log, ITEMS);
        for (int i = 0; i < 8; i++) {
            put(rig, (hps_key)i, 20);
        }
        wait_s(rig, 31);
        assert_int_equal(view_of(rig, ITEMS, 0)->state, HPS_PARTITION_GAP);
        assert_int_equal(command(rig, HPS_UPDATE_ACCEPT_GAP), HPS_OK);
        turns(rig, 3);
        assert_true(item(rig, 1) == 20);
        rig_close(rig);
    }
}

/* wait-for asks a paused partition, too: what it has is of another topic. */
static void test_topic_when_made_anew_while_paused_then_a_refresh_finds_it(void **state)
{
    struct rig *rig = *state;
    begin(rig, 4);
    assert_int_equal(command(rig, HPS_UPDATE_PAUSE), HPS_OK);
    hps_fake_log_topic_replace(rig->log, ITEMS);
    put(rig, 1, 20);
    rig_restart(rig, 3);
    rig->stream->refresh.asked_us = hps_clock_us();
    (void)update_refresh_turn(rig->stream);
    assert_int_equal(view_of(rig, ITEMS, 0)->state, HPS_PARTITION_GAP);
    assert_int_equal(view_of(rig, ITEMS, 0)->high, 1); /* as its leader says */
    assert_true(isinf(gauge(rig, HPS_M_UPDATE_LAG, ITEMS, "0", NULL)));
    assert_int_equal(view_of(rig, ITEMS, 0)->lag, 0);
}

/* As many records as were read of the old one are no reason to say that none is missing. */
static void test_lag_when_a_topic_made_anew_grows_past_the_position_then_not_known(void **state)
{
    struct rig *rig = *state;
    begin(rig, 4);
    assert_true(gauge(rig, HPS_M_UPDATE_LAG, ITEMS, "0", NULL) == 0);
    hps_fake_log_topic_replace(rig->log, ITEMS);
    put(rig, 1, 20);
    rig_restart(rig, 3);
    for (int i = 1; i < 6; i++) {
        assert_int_equal(view_of(rig, ITEMS, 0)->state, HPS_PARTITION_GAP);
        assert_int_equal(view_of(rig, ITEMS, 0)->high, i);
        assert_true(isinf(gauge(rig, HPS_M_UPDATE_LAG, ITEMS, "0", NULL)));
        put(rig, (hps_key)i, 20);
        wait_s(rig, 2);
    }
}

/* Its leader has told its end, and nothing else. */
static void tell_end(struct rig *rig, int64_t high)
{
    struct update_partition *partition = &rig->stream->partitions[0];
    partition->high = high;
    partition->proof.word.asked_us = hps_clock_us();
    update_stream_show(rig->stream);
}

/* After a start it is not known yet where to read on, and of what topic. */
static void test_lag_when_not_begun_then_not_known(void **state)
{
    struct rig *rig = *state;
    begin(rig, 4);
    hps_fake_log_topic_replace(rig->log, ITEMS);
    hps_fake_log_topic_set(rig->log, ITEMS, HPS_FAKE_OFFSETS, HPS_UNAVAILABLE);
    rig_restart(rig, 0);
    for (int i = 1; i < 6; i++) { /* shorter than what was read, as long, and longer */
        put(rig, (hps_key)i, 20);
        turns(rig, 1);
        tell_end(rig, i);
        assert_int_equal(view_of(rig, ITEMS, 0)->state, HPS_PARTITION_STARTING);
        assert_true(isinf(gauge(rig, HPS_M_UPDATE_LAG, ITEMS, "0", NULL)));
    }
    hps_fake_log_topic_set(rig->log, ITEMS, HPS_FAKE_OFFSETS, HPS_OK);
    wait_s(rig, 10);
    assert_int_equal(view_of(rig, ITEMS, 0)->state, HPS_PARTITION_GAP);
}

static void test_lag_when_paused_and_not_proved_since_the_start_then_not_known(void **state)
{
    struct rig *rig = *state;
    begin(rig, 1);
    assert_int_equal(command(rig, HPS_UPDATE_PAUSE), HPS_OK);
    assert_true(gauge(rig, HPS_M_UPDATE_LAG, ITEMS, "0", NULL) == 0);
    hps_fake_log_leader(rig->log, ITEMS, 0, HPS_UNAVAILABLE);
    rig_restart(rig, 3);
    tell_end(rig, 1);
    assert_int_equal(view_of(rig, ITEMS, 0)->state, HPS_PARTITION_PAUSED);
    assert_true(isinf(gauge(rig, HPS_M_UPDATE_LAG, ITEMS, "0", NULL)));
    hps_fake_log_leader(rig->log, ITEMS, 0, HPS_OK);
    wait_s(rig, 60);
    assert_true(gauge(rig, HPS_M_UPDATE_LAG, ITEMS, "0", NULL) == 0);
}

/* ---- topics that are hidden ------------------------------------------------------------------ */

static void test_topic_when_it_is_hidden_then_it_fails_until_resumed_with_rights(void **state)
{
    struct rig *rig = *state;
    begin(rig, 1);
    for (int restarted = 0; restarted < 2; restarted++) {
        int64_t proved_ms = now_ms();
        hps_fake_log_topic_set(rig->log, ITEMS, HPS_FAKE_HIDDEN, true);
        if (restarted) {
            rig_restart(rig, 0);
        }
        put(rig, 1, 20 + (float)restarted);
        wait_s(rig, 2);
        assert_int_equal(command(rig, HPS_UPDATE_RESUME), HPS_OK);
        wait_s(rig, 40);
        assert_int_equal(view_of(rig, ITEMS, 0)->state, HPS_PARTITION_FAILED);
        assert_non_null(strstr(view_of(rig, ITEMS, 0)->reason, "grant"));
        assert_int_equal(rig->stream->view.as_of_ms, proved_ms);
        hps_fake_log_topic_set(rig->log, ITEMS, HPS_FAKE_HIDDEN, false);
        wait_s(rig, 31); /* it is listed */
        assert_int_equal(view_of(rig, ITEMS, 0)->state, HPS_PARTITION_FAILED);
        assert_int_equal(command(rig, HPS_UPDATE_RESUME), HPS_OK);
        turns(rig, 3);
        assert_true(item(rig, 1) == 20 + (float)restarted);
        assert_int_equal(rig->stream->view.as_of_ms, now_ms());
    }
}

/* Open the stream while another version of the model has a partition of USERS. */
static void open_beside(struct rig *rig, enum hps_partition_state theirs)
{
    struct hps_partition_view view = {.topic = USERS, .state = theirs};
    struct hps_update_stream other = {
        .shown = {.partitions = &view, .capacity = 1},
        .view = {.model = "m", .version = 99, .partitions = &view, .n_partitions = 1}};
    hps_lock_init(&other.lock, HPS_LOCK_UPDATE_STREAM);
    put(rig, 1, 10);
    open_stream_beside(rig, &other);
    hps_lock_fini(&other.lock);
    wait_s(rig, 5);
    assert_true(item(rig, 1) == 10);
}

static void test_as_of_when_a_topic_is_hidden_that_another_version_has_then_not_known(void **state)
{
    struct rig *rig = *state;
    hps_fake_log_topic(rig->log, USERS, 1);
    hps_fake_log_topic_set(rig->log, USERS, HPS_FAKE_HIDDEN, true);
    put_on(rig, USERS, 0, 5, 50);
    open_beside(rig, HPS_PARTITION_RUNNING);
    for (int restarted = 0; restarted < 2; restarted++) { /* the second time without the other */
        assert_int_equal(hps_update_as_of_ms(rig->fx.version), 0);
        assert_true(isinf(staleness(rig)));
        assert_int_equal(view_of(rig, USERS, 0)->state, HPS_PARTITION_FAILED);
        assert_non_null(strstr(view_of(rig, USERS, 0)->reason, "grant"));
        assert_true(isinf(gauge(rig, HPS_M_UPDATE_LAG, USERS, "0", NULL)));
        rig_restart(rig, 0);
        wait_s(rig, 5);
    }
    hps_fake_log_topic_set(rig->log, USERS, HPS_FAKE_HIDDEN, false);
    wait_s(rig, 31); /* it is listed */
    assert_int_equal(command(rig, HPS_UPDATE_RESUME), HPS_OK);
    turns(rig, 3);
    assert_true(fixture_value(&rig->fx, FIXTURE_USERS, 5) == 50);
    assert_true(staleness(rig) == 0);
}

static void test_as_of_when_another_version_lost_a_topic_then_this_one_does_not_miss_it(
    void **state)
{
    static const enum hps_partition_state states[] = {HPS_PARTITION_GONE, HPS_PARTITION_RUNNING};
    struct rig *rig = *state;
    for (int i = 0; i < 2; i++) { /* RUNNING: the other does not know yet */
        close_stream(rig);
        open_beside(rig, states[i]);
        assert_int_equal(rig->stream->view.n_partitions, 1);
        assert_true(staleness(rig) == 0);
        assert_true(gauge(rig, HPS_M_UPDATE_PARTITION_STATE, USERS, "0", "starting") == 0);
    }
    rig_restart(rig, 0);
    wait_s(rig, 5);
    assert_true(staleness(rig) == 0);
    hps_fake_log_topic(rig->log, USERS, 1); /* now it is made */
    put_on(rig, USERS, 0, 5, 50);
    wait_s(rig, 31);
    assert_true(fixture_value(&rig->fx, FIXTURE_USERS, 5) == 50);
    assert_true(staleness(rig) == 0);
}

static void test_refresh_when_paused_while_asked_then_it_ends(void **state)
{
    struct rig *rig = *state;
    begin(rig, 1);
    rig->stream->partitions[0].same.asked = true; /* its answer is on its way */
    assert_int_equal(command(rig, HPS_UPDATE_PAUSE), HPS_OK);
    hps_clock_advance(1);
    rig->stream->refresh.asked_us = hps_clock_us();
    assert_false(update_refresh_turn(rig->stream));
    assert_int_equal(rig->stream->refresh.n, 1);
}

static void test_seek_when_frozen_then_another_partition_stays_at_its_gap(void **state)
{
    struct rig *rig = *state;
    freeze_both(rig);
    hps_fake_log_topic_replace(rig->log, USERS);
    for (int i = 0; i < 8; i++) {
        put_on(rig, USERS, 0, (hps_key)i, 20);
    }
    wait_s(rig, 31);
    assert_int_equal(view_of(rig, USERS, 0)->state, HPS_PARTITION_GAP);
    assert_int_equal(command_on(rig, ITEMS, 0, HPS_UPDATE_SEEK, HPS_UPDATE_SEEK_EARLIEST, 0),
                     HPS_OK);
    wait_s(rig, 3);
    assert_int_equal(view_of(rig, USERS, 0)->state, HPS_PARTITION_GAP);
    assert_true(rig->stream->view.as_of_ms < now_ms() - 30000);
}

static void test_topic_when_retention_took_the_witness_then_no_gap(void **state)
{
    struct rig *rig = *state;
    begin(rig, 2);
    put(rig, 3, 30);
    turns(rig, 2);
    hps_fake_log_trim(rig->log, ITEMS, 0, 2);
    wait_s(rig, 62);
    assert_int_equal(view_of(rig, ITEMS, 0)->state, HPS_PARTITION_RUNNING);
    assert_int_equal(rig->stream->view.as_of_ms, now_ms());
}

/* While it could not be asked: it is not claimed to be fresh before it is known to be the same. */
static void test_topic_when_made_anew_while_its_leader_was_silent_then_never_fresh(void **state)
{
    struct rig *rig = *state;
    begin(rig, 2);
    int64_t proved_ms = now_ms();
    hps_fake_log_leader(rig->log, ITEMS, 0, HPS_UNAVAILABLE);
    wait_s(rig, 5);
    hps_fake_log_topic_replace(rig->log, ITEMS);
    for (int i = 0; i < 8; i++) {
        put(rig, (hps_key)i, 20);
    }
    hps_fake_log_leader(rig->log, ITEMS, 0, HPS_OK);
    for (int i = 0; i < 5; i++) {
        turns(rig, 1);
        assert_true(rig->stream->view.as_of_ms <= proved_ms);
    }
    assert_int_equal(view_of(rig, ITEMS, 0)->state, HPS_PARTITION_GAP);
}

static void test_topic_when_its_leader_is_silent_after_an_outage_then_not_fresh(void **state)
{
    struct rig *rig = *state;
    begin(rig, 1);
    int64_t proved_ms = now_ms();
    hps_fake_log_set(rig->log, HPS_FAKE_AWAY, HPS_UNAVAILABLE);
    wait_s(rig, 2);
    hps_fake_log_leader(rig->log, ITEMS, 0, HPS_UNAVAILABLE);
    hps_fake_log_set(rig->log, HPS_FAKE_AWAY, HPS_OK);
    wait_s(rig, 40);
    assert_int_equal(rig->stream->view.as_of_ms, proved_ms);
}

/* ---- files that are too old ------------------------------------------------------------------ */

static void test_start_when_the_files_are_older_than_retention_then_a_gap(void **state)
{
    struct rig *rig = *state;
    rig->options.start = HPS_UPDATE_START_FILES;
    put(rig, 1, 10);
    hps_clock_advance(UINT64_C(7200) * S); /* the version was loaded before */
    put(rig, 2, 20);
    hps_fake_log_trim(rig->log, ITEMS, 0, 1);
    hps_fake_log_topic_set(rig->log, ITEMS, HPS_FAKE_KEPT_MS, HOUR_MS);
    begin(rig, 0);
    assert_int_equal(view_of(rig, ITEMS, 0)->state, HPS_PARTITION_GAP);
    assert_non_null(strstr(view_of(rig, ITEMS, 0)->reason, "retention.ms"));
    assert_true(item(rig, 2) == -1);
    assert_true(isinf(staleness(rig)));
    assert_int_equal(command(rig, HPS_UPDATE_ACCEPT_GAP), HPS_OK);
    turns(rig, 3);
    assert_true(item(rig, 2) == 20);
    rig_restart(rig, 3);
    assert_int_equal(view_of(rig, ITEMS, 0)->state, HPS_PARTITION_RUNNING);
}

static void test_start_when_records_that_the_files_lack_may_be_gone_then_it_runs_and_says_so(
    void **s)
{
    static const struct {
        int64_t kept_ms; /* 0: not known */
        int64_t low;
        bool missing;
        int64_t glitch_ms; /* the wall clock was ahead by this for a moment */
        bool compacted;
    } cases[] = {
        {0, 2, true, 0, false},
        /* retention cannot have removed them, DeleteRecords can */
        {3 * HOUR_MS, 2, true, 0, false},
        {3 * HOUR_MS, 1, false, 0, false}, /* the log has a record from before the files */
        {3 * HOUR_MS, 0, false, 0, false},
        {3 * HOUR_MS, 2, true, 10 * HOUR_MS, false},
        {3 * HOUR_MS, 1, false, 10 * HOUR_MS, true},
    };
    (void)s;
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rig *rig = rig_open();
        rig->options.start = HPS_UPDATE_START_FILES;
        if (cases[i].compacted) {
            hps_fake_log_topic_compacted(rig->log, ITEMS, HPS_COMPACTION_YES, 3 * HOUR_MS);
        }
        put(rig, 1, 10);
        put(rig, 1, 11);
        rig->fx.version->loaded_unix_ms = hps_clock_wall_ms() + 1;
        hps_clock_advance(UINT64_C(7200) * S);
        put(rig, 2, 20);
        hps_fake_log_trim(rig->log, ITEMS, 0, cases[i].low);
        hps_fake_log_topic_set(rig->log, ITEMS, HPS_FAKE_KEPT_MS, cases[i].kept_ms);
        hps_clock_wall_shift(cases[i].glitch_ms);
        (void)now_ms();
        hps_clock_wall_shift(-cases[i].glitch_ms);
        begin(rig, 0);
        const struct hps_partition_view *view = view_of(rig, ITEMS, 0);
        assert_int_equal(view->state, HPS_PARTITION_RUNNING);
        assert_int_equal(strstr(view->reason, "may be gone") != NULL, cases[i].missing);
        assert_int_equal(view->skipped == HPS_POSITION_LOST, cases[i].missing);
        assert_true(item(rig, 1) == -1 && item(rig, 2) == 20);
        hps_clock_fake(hps_clock_us()); /* another process */
        rig_restart(rig, 3);
        view = view_of(rig, ITEMS, 0); /* it applied all later records */
        assert_int_equal(view->skipped == HPS_POSITION_LOST, cases[i].missing);
        assert_int_equal(view->skipped_end, cases[i].missing ? cases[i].low : 0);
        rig_close(rig);
    }
}

static void test_start_when_producers_may_set_times_then_it_says_what_it_skips(void **state)
{
    static const struct {
        enum hps_record_time time_of;
        int64_t first_ms; /* time of the first record; the files are of 1000 */
        bool noted;
    } cases[] = {{HPS_RECORD_TIME_CREATED, 500, true},
                 {HPS_RECORD_TIME_APPENDED, 500, false},
                 {HPS_RECORD_TIME_NONE, 500, false},
                 {HPS_RECORD_TIME_CREATED, 1000, false}};
    (void)state;
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rig *rig = rig_open();
        const hps_key key = 9;
        const float row[FIXTURE_DIM] = {90, 90};
        const struct hps_fake_record first = {.key = &key,
                                              .key_size = sizeof(key),
                                              .value = row,
                                              .value_size = sizeof(row),
                                              .time_unix_ms = cases[i].first_ms,
                                              .time_of = HPS_RECORD_TIME_CREATED};
        rig->options.start = HPS_UPDATE_START_FILES;
        hps_fake_log_append(rig->log, ITEMS, 0, &first);
        hps_fake_log_topic_set(rig->log, ITEMS, HPS_FAKE_TIME_OF, cases[i].time_of);
        begin(rig, 1);
        const struct hps_partition_view *view = view_of(rig, ITEMS, 0);
        assert_int_equal(view->state, HPS_PARTITION_RUNNING);
        assert_true(item(rig, key) == (cases[i].first_ms < 1000 ? -1 : 90));
        assert_true(item(rig, 1) == 10);
        const char *note =
            "before offset 1 are skipped: their times are before 1970-01-01T00:00:01Z";
        assert_true((strstr(view->reason, note) != NULL) == cases[i].noted);
        assert_true(cases[i].noted || view->reason[0] == '\0');
        assert_int_equal(seek(rig, 0), HPS_OK);
        turns(rig, 2);
        assert_string_equal(view_of(rig, ITEMS, 0)->reason, "");
        rig_close(rig);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, rig_setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_as_of_when_one_leader_is_silent_then_it_stands_though_others_answer),
        TEST(test_staleness_when_the_clock_is_set_back_then_it_grows_as_before),
        TEST(test_staleness_when_the_clock_was_set_back_before_a_restart_then_never_too_low),
        TEST(test_view_when_no_turn_comes_then_nothing_is_claimed_for_longer_than_it_is_so),
        TEST(test_view_when_the_topic_is_not_proved_in_time_then_the_lag_is_not_known),
        TEST(test_lag_when_at_a_gap_for_long_then_still_known),
        TEST(test_as_of_when_a_transaction_is_open_then_it_waits_for_its_end),
        TEST(test_as_of_when_behind_then_only_what_was_read_up_to_is_claimed),
        TEST(test_as_of_when_quiet_and_the_log_was_away_then_it_does_not_go_back),
        TEST(test_as_of_when_a_topic_grows_then_since_it_was_listed_before),
        TEST(test_as_of_when_the_model_has_no_topic_then_it_is_not_known),
        TEST(test_staleness_when_never_proved_then_endless),
        TEST(test_state_when_a_batch_waits_then_held_and_behind),
        TEST(test_state_when_frozen_then_said_and_growing_old),
        TEST(test_seek_when_frozen_then_the_other_partitions_go_on_where_they_froze),
        TEST(test_state_when_restarted_then_starting_until_listed_or_gone),
        TEST(test_seek_when_paused_then_it_stays_paused),
        TEST(test_record_when_it_cannot_be_read_then_left_out_and_said),
        TEST(test_tombstone_when_compacted_away_while_the_leader_was_silent_then_a_gap),
        TEST(test_tombstone_when_read_that_far_behind_then_a_gap),
        cmocka_unit_test(test_tombstone_when_not_read_that_long_then_a_gap_if_anything_was_logged),
        cmocka_unit_test(test_topic_when_made_anew_then_each_way_to_look_finds_it),
        cmocka_unit_test(test_topic_when_made_anew_before_a_record_was_read_then_a_gap),
        cmocka_unit_test(
            test_witness_when_none_is_found_then_it_is_asked_again_or_was_compacted_away),
        TEST(test_topic_when_made_anew_and_outgrown_then_a_gap_once_it_is_asked),
        TEST(test_as_of_when_neither_list_nor_witness_comes_then_it_stands),
        TEST(test_as_of_when_only_lists_do_not_come_then_the_witness_is_asked_for),
        TEST(test_witness_when_refused_while_lists_do_not_come_then_asked_for_again),
        TEST(test_as_of_when_lists_hang_then_it_goes_on_by_what_leaders_answer),
        TEST(test_topic_when_its_leader_was_silent_while_lists_hang_then_asked_for_once),
        TEST(test_topic_when_listed_later_than_others_then_nothing_is_known_of_its_partitions),
        TEST(test_witness_when_none_is_found_now_and_then_then_that_is_not_believed),
        TEST(test_topic_when_made_anew_while_paused_then_a_refresh_finds_it),
        TEST(test_lag_when_a_topic_made_anew_grows_past_the_position_then_not_known),
        TEST(test_lag_when_not_begun_then_not_known),
        TEST(test_as_of_when_a_topic_is_hidden_that_another_version_has_then_not_known),
        TEST(test_as_of_when_another_version_lost_a_topic_then_this_one_does_not_miss_it),
        TEST(test_topic_when_it_is_hidden_then_it_fails_until_resumed_with_rights),
        TEST(test_lag_when_paused_and_not_proved_since_the_start_then_not_known),
        TEST(test_refresh_when_paused_while_asked_then_it_ends),
        TEST(test_seek_when_frozen_then_another_partition_stays_at_its_gap),
        TEST(test_tombstone_when_stopped_in_the_first_backlog_then_a_gap),
        TEST(test_topic_when_retention_took_the_witness_then_no_gap),
        TEST(test_topic_when_made_anew_while_its_leader_was_silent_then_never_fresh),
        TEST(test_topic_when_its_leader_is_silent_after_an_outage_then_not_fresh),
        TEST(test_start_when_the_files_are_older_than_retention_then_a_gap),
        cmocka_unit_test(
            test_start_when_records_that_the_files_lack_may_be_gone_then_it_runs_and_says_so),
        cmocka_unit_test(test_start_when_producers_may_set_times_then_it_says_what_it_skips),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

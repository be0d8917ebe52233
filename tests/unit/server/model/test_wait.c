/* SPDX-License-Identifier: Apache-2.0
 *
 * Which updates WaitForUpdates considers visible, for the views that a stream may have.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/clock.h"
#include "server/model/wait.h"

#define TOPIC   "hps_et.m.a"
#define O(name) HPS__V1__WAIT_OUTCOME__WAIT_OUTCOME_##name

enum { INSTANCE = 77 };

/* One version with two healthy partitions, both read up to offset 10 of 10 and confirmed now. */
static struct {
    struct hps_stream_view view;
    struct hps_partition_view parts[2];
    struct hps_rejected_view rejected[HPS_REJECTED_VIEWS_MAX];
    Hps__V1__WaitForUpdatesRequest request;
    Hps__V1__UpdateRecords records[2], *record_list[2];
    Hps__V1__UpdateMark mark;
    struct hps_wait wait;
    int64_t now;
} at;

static int64_t firsts[] = {3, 7}, lasts[] = {4, 8};

static void reset(Hps__V1__WaitGoal goal)
{
    memset(&at, 0, sizeof(at));
    hps_clock_fake(UINT64_C(1000000) * 1000000);
    at.now = (int64_t)hps_clock_wall_ms();
    for (int i = 0; i < 2; i++) {
        at.parts[i] = (struct hps_partition_view){.topic = TOPIC,
                                                  .partition = i,
                                                  .state = HPS_PARTITION_RUNNING,
                                                  .next = 10,
                                                  .high = 10,
                                                  .response_asked_ms = at.now,
                                                  .as_of_ms = at.now,
                                                  .same_ms = at.now,
                                                  .lag_known = true,
                                                  .skipped = -1,
                                                  .frozen = -1};
        hps__v1__update_records__init(&at.records[i]);
        at.records[i].topic = TOPIC;
        at.records[i].partition = i;
        at.records[i].first = firsts;
        at.records[i].last = lasts;
        at.records[i].n_first = at.records[i].n_last = i == 0 ? 2 : 1;
        at.record_list[i] = &at.records[i];
    }
    at.view = (struct hps_stream_view){.model = "m",
                                       .lineage = "l",
                                       .version = 1,
                                       .active = true,
                                       .listed = true,
                                       .connected = true,
                                       .as_of_ms = at.now,
                                       .partitions = at.parts,
                                       .n_partitions = 2,
                                       .rejected = at.rejected,
                                       .instance = INSTANCE,
                                       .key_bytes = 8};
    hps__v1__wait_for_updates_request__init(&at.request);
    at.request.model = "m";
    at.request.goal = goal;
    at.request.records = at.record_list;
    at.request.n_records = goal == HPS__V1__WAIT_GOAL__WAIT_GOAL_RECORDS ? 2 : 0;
    at.request.rejected_within_ms = 60000;
    hps_wait_init(&at.wait, &at.request);
}

static void now(void)
{
    reset(HPS__V1__WAIT_GOAL__WAIT_GOAL_NOW);
}
static void records(void)
{
    reset(HPS__V1__WAIT_GOAL__WAIT_GOAL_RECORDS);
}
static void ready(void)
{
    reset(HPS__V1__WAIT_GOAL__WAIT_GOAL_READY);
    at.request.topic = TOPIC;
}

static void reject(int64_t offset, int64_t age_ms)
{
    uint32_t n = at.view.n_rejected_views;
    if (n == HPS_REJECTED_VIEWS_MAX) { /* drop the oldest one */
        memmove(at.rejected, at.rejected + 1, (n - 1) * sizeof(at.rejected[0]));
        n--;
    }
    at.rejected[n] = (struct hps_rejected_view){.topic = TOPIC,
                                                .offset = offset,
                                                .read_ms = at.now - age_ms,
                                                .number = ++at.view.n_rejected_numbers,
                                                .reason = "width",
                                                .text = "rows of 20 bytes, expected 16"};
    at.view.n_rejected_views = n + 1;
}

static void expect(int line, Hps__V1__WaitOutcome outcome, bool refresh, const char *words)
{
    char copy[200];
    enum hps_update_check look = hps_wait_look(&at.wait, &at.view, true);
    enum hps_update_check wanted = outcome != O(NOT_YET) ? HPS_UPDATE_CHECK_DONE
                                   : refresh             ? HPS_UPDATE_CHECK_REFRESH
                                                         : HPS_UPDATE_CHECK_WAIT;
    if (at.wait.outcome != outcome || look != wanted) {
        fail_msg("line %d: outcome %d, look %d, expected %d, %d: %s", line, (int)at.wait.outcome,
                 (int)look, (int)outcome, (int)wanted, at.wait.why.text);
    }
    (void)snprintf(copy, sizeof(copy), "%s", words);
    for (char *save, *word = strtok_r(copy, "|", &save); word != NULL;
         word = strtok_r(NULL, "|", &save)) {
        if (strstr(at.wait.why.text, word) == NULL) {
            fail_msg("line %d: \"%s\" lacks \"%s\"", line, at.wait.why.text, word);
        }
    }
}

/* Change a healthy view, and check the outcome. */
#define CASE(goal, change, outcome, words)          \
    do {                                            \
        goal();                                     \
        change;                                     \
        expect(__LINE__, O(outcome), false, words); \
    } while (0)
#define CASE_REFRESH(goal, change, words)          \
    do {                                           \
        goal();                                    \
        change;                                    \
        expect(__LINE__, O(NOT_YET), true, words); \
    } while (0)

#define P (at.parts[0])
#define V (at.view)

/* The first partition is not confirmed up to now. */
#define LATE V.as_of_ms = P.as_of_ms = at.now - 1

static void test_now_when_judged_then_visible_only_if_all_partitions_are_confirmed(void **state)
{
    (void)state;
    CASE(now, (void)0, VISIBLE, "");
    CASE(now, LATE, NOT_YET, "partition 0 of " TOPIC "|version 1 of model \"m\"");
    hps_clock_advance(50 * 1000); /* the wait is for the time of its beginning */
    expect(__LINE__, O(NOT_YET), false, "");
    V.as_of_ms = P.as_of_ms = at.now;
    expect(__LINE__, O(VISIBLE), false, "");
    now();
    hps_clock_advance(1000 * 1000);
    hps_clock_wall_shift(-3600 * 1000);
    hps_wait_init(&at.wait, &at.request); /* begins after the last confirmation */
    expect(__LINE__, O(NOT_YET), true, "recreated");
    CASE(now, V.as_of_ms = at.now - 1, NOT_YET, "list of topics");
    CASE_REFRESH(now, P.same_ms = at.now - 5000, "partition 0|recreated");
    now(); /* new topics may be unknown */
    assert_int_equal(hps_wait_look(&at.wait, &at.view, false), HPS_UPDATE_CHECK_REFRESH);
    assert_int_equal(at.wait.outcome, O(NOT_YET));

    CASE(now, LATE; P.state = HPS_PARTITION_HELD;
         snprintf(P.reason, 200, "no room"), NOT_YET, "held|no room");
    CASE(now, LATE; P.lag = 5, NOT_YET, "5 records behind");
    CASE(now, LATE; V.connected = false;
         snprintf(V.connection_error, 200, "bad password"), NOT_YET, "not connected|bad password");

    CASE(now, LATE; P.state = HPS_PARTITION_PAUSED, PAUSED, "is paused|updates resume");
    CASE(now, LATE; P.state = HPS_PARTITION_GAP;
         snprintf(P.reason, 200, "the reason"), GAP, "is stopped at a gap|the reason|accept-gap");
    assert_string_equal(at.wait.topic, TOPIC);
    assert_int_equal(at.wait.partition, 0);
    CASE(now, LATE; P.state = HPS_PARTITION_GONE, FAILED, "is gone|created again");
    CASE(now, LATE; P.state = HPS_PARTITION_FAILED, FAILED, "has failed|updates resume");
    CASE(now, P.state = HPS_PARTITION_PAUSED, VISIBLE, ""); /* paused after the time of the wait */
    CASE(now, V.frozen = true, FROZEN, "version 1|frozen|updates seek --model m --version 1");
    CASE(now, V.n_partitions = 0; V.as_of_ms = 0, NO_TOPIC, "hps_et.m or hps_et.m.<table>");
    CASE(now, V.n_partitions = 0; V.as_of_ms = 0; V.listed = false, NOT_YET, "topics");
}

static void test_now_when_a_record_was_rejected_then_rejected_unless_allowed(void **state)
{
    (void)state;
    CASE(now, reject(3, 61000), VISIBLE, "");
    CASE(now, reject(4, 59000);
         reject(5, 1000), REJECTED, TOPIC ":0:5 was rejected|rows of 20 bytes|--allow-refused");
    assert_int_equal(at.wait.offset, 5);
    CASE(now, LATE; at.request.rejected_within_ms = 500; reject(5, 1000), NOT_YET, "");
    reject(6, -10); /* during the wait */
    expect(__LINE__, O(REJECTED), false, TOPIC ":0:6");
    CASE(now, at.request.rejected_allowed = true; reject(5, 0), VISIBLE, TOPIC ":0:5 was rejected");
}

static void test_records_when_judged_then_visible_if_read_and_confirmed_by_their_leaders(
    void **state)
{
    (void)state;
    CASE(records, P.next = 8; P.lag = 2, NOT_YET, TOPIC ":0:8 is not applied|2 records behind");
    P.next = 9;
    expect(__LINE__, O(VISIBLE), false, "");
    CASE(records, P.response_asked_ms = at.now - 1, NOT_YET, TOPIC ":0:8|not confirmed");
    CASE(records, P.high = 8, NOT_YET, TOPIC ":0:8|not confirmed"); /* of a recreated topic */
    CASE(records, P.high = 9, VISIBLE, "");
    CASE_REFRESH(records, P.same_ms = at.now - 1, TOPIC ":0:8");
    CASE_REFRESH(records, V.n_partitions = 1, TOPIC " is not read|may not see it");
    CASE_REFRESH(records, V.n_partitions = 0; V.connected = false;
                 snprintf(V.connection_error, 200, "refused"), "not connected|refused");

    CASE(records, P.state = HPS_PARTITION_PAUSED, VISIBLE, "");
    CASE(records, P.state = HPS_PARTITION_PAUSED; P.same_ms = at.now - 1, PAUSED, "is paused");
    CASE(records, P.state = HPS_PARTITION_PAUSED; P.next = 8, PAUSED, "is paused|updates resume");
    CASE(records, P.state = HPS_PARTITION_GAP, GAP, "is stopped at a gap"); /* a recreated topic */
    CASE(records, P.state = HPS_PARTITION_HELD; P.next = 8, NOT_YET, "held");
}

static void test_records_when_rejected_then_reported_for_the_awaited_ones_only(void **state)
{
    (void)state;
    CASE(records, reject(2, 0); reject(5, 0); reject(9, 0), VISIBLE, ""); /* other records */
    CASE(records, reject(7, 0), REJECTED, TOPIC ":0:7 was rejected|rows of 20 bytes");
    CASE(records, reject(7, 0); P.next = 3, REJECTED, ""); /* before the other records are read */
    /* Rejected before the records were written, in an older topic of that name. */
    CASE(records, reject(7, 0); at.request.mark = &at.mark; at.mark.instance = INSTANCE;
         at.mark.rejected = 1, VISIBLE, "");
    CASE(records, at.request.mark = &at.mark;
         at.mark.instance = INSTANCE + 1, UNKNOWN, "restarted|publish again");
    for (int marked = 0; marked < 2; marked++) { /* without a mark, old rejections are ignored */
        records();
        at.mark.instance = INSTANCE;
        at.request.mark = marked ? &at.mark : NULL;
        for (int64_t i = 0; i < HPS_REJECTED_VIEWS_MAX + 1; i++) {
            reject(100 + i, 0);
        }
        expect(__LINE__, marked ? O(UNKNOWN) : O(VISIBLE), false, marked ? "more records|log" : "");
    }
}

static void test_records_when_passed_over_or_frozen_then_reported(void **state)
{
    (void)state;
    CASE(records, P.skipped = 5; P.skipped_end = 7, VISIBLE, "");
    CASE(records, P.skipped = 5; P.skipped_end = 8, PASSED_OVER, TOPIC ":0:7 was skipped|seek");
    CASE(records, P.skipped = 5; P.skipped_end = 0, PASSED_OVER, TOPIC ":0:7"); /* end unknown */
    CASE(records, P.skipped = 9, VISIBLE, "");
    CASE(records, P.skipped = -2; P.skipped_end = 4, PASSED_OVER, TOPIC ":0:3 may not|gap");
    CASE(records, P.skipped = -2; P.skipped_end = 3, VISIBLE, "");

    CASE(records, V.frozen = true; P.state = HPS_PARTITION_FROZEN, VISIBLE, ""); /* frozen later */
    CASE(records, V.frozen = true; P.state = HPS_PARTITION_FROZEN; P.next = 8, FROZEN, "seek");
    CASE(records, V.frozen = true; V.n_partitions = 0, FROZEN, "frozen");
    CASE(records, V.frozen = true; P.skipped = 3, PASSED_OVER, TOPIC ":0:3");
    CASE(records, V.frozen = true; P.skipped = P.frozen = 3;
         at.request.names_version = true, VISIBLE, "");
    CASE(records, V.frozen = true; P.skipped = 3; P.frozen = 8; P.skipped_end = 9;
         at.request.names_version = true, PASSED_OVER, TOPIC ":0:3"); /* by an earlier seek */
    CASE(records, V.frozen = true; P.skipped = -2; P.skipped_end = 9;
         at.request.names_version = true, PASSED_OVER, TOPIC ":0:3 may not|gap");
    CASE(records, V.frozen = true; P.skipped = 0; P.frozen = 2; P.skipped_end = 9;
         at.request.names_version = true, VISIBLE, ""); /* started at the end, frozen later */
    CASE(records, V.frozen = true; P.state = HPS_PARTITION_FROZEN; P.next = 4;
         at.request.names_version = true, NOT_YET, TOPIC ":0:8");
}

static void test_ready_when_judged_then_names_updates_that_never_become_visible(void **state)
{
    (void)state;
    CASE(ready, (void)0, VISIBLE, "");
    assert_int_equal(at.wait.mark.instance, INSTANCE);
    assert_int_equal(at.wait.key_bytes, 8);
    CASE_REFRESH(ready, at.request.topic = "hps_et.m", "hps_et.m is not read");
    CASE(ready, at.request.topic = "hps_et.m"; V.connected = false, VISIBLE, ""); /* unknown */
    CASE(ready, P.state = HPS_PARTITION_FAILED, FAILED, "has failed");
    CASE(ready, P.state = HPS_PARTITION_FAILED; at.request.topic = "", VISIBLE, "");
    CASE(ready, P.state = HPS_PARTITION_GONE, VISIBLE, ""); /* it was recreated */
    CASE(ready, V.frozen = true, FROZEN, "frozen");
    CASE(ready, V.frozen = true; at.request.names_version = true, VISIBLE, "");
}

static void test_request_when_wrong_then_refused_by_field(void **state)
{
    static int64_t down[] = {7, 3}, far[] = {4, INT64_MAX};
    static const struct {
        const char *field;
        int what;
    } cases[] = {{"", 0},           {"goal", 1},       {"records:", 2},   {"topic", 3},
                 {"records[0]", 4}, {"records[0]", 5}, {"records[0]", 6}, {"topic", 7},
                 {"topic", 8},      {"records:", 9}};
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct hps_error err = {0};
        int what = cases[i].what;
        records();
        at.request.goal = what == 1   ? 9
                          : what == 2 ? HPS__V1__WAIT_GOAL__WAIT_GOAL_NOW
                          : what == 8 ? HPS__V1__WAIT_GOAL__WAIT_GOAL_READY
                                      : at.request.goal;
        at.request.n_records = what == 8 || what == 9 ? 0 : 2;
        at.request.topic = what == 3 ? TOPIC : what == 8 ? "hps_et.other" : "";
        at.records[0].first = what == 4 ? down : firsts;
        at.records[0].last = what == 5 ? far : lasts;
        at.records[0].n_last = what == 6 ? 1 : 2;
        at.records[1].topic = what == 7 ? "hps_et.other.a" : TOPIC;
        assert_int_equal(hps_wait_check(&at.request, &err), what == 0 ? HPS_OK : HPS_INVALID);
        assert_int_equal(strncmp(err.text, cases[i].field, strlen(cases[i].field)), 0);
    }
}

static int real_clock(void **state)
{
    (void)state;
    hps_clock_real();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_now_when_judged_then_visible_only_if_all_partitions_are_confirmed),
        cmocka_unit_test(test_now_when_a_record_was_rejected_then_rejected_unless_allowed),
        cmocka_unit_test(
            test_records_when_judged_then_visible_if_read_and_confirmed_by_their_leaders),
        cmocka_unit_test(test_records_when_rejected_then_reported_for_the_awaited_ones_only),
        cmocka_unit_test(test_records_when_passed_over_or_frozen_then_reported),
        cmocka_unit_test(test_ready_when_judged_then_names_updates_that_never_become_visible),
        cmocka_unit_test(test_request_when_wrong_then_refused_by_field),
    };
    return cmocka_run_group_tests_name("wait", tests, NULL, real_clock);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * What is taken for visible, by replies of a server as it might give them.
 */
#include "client/update_wait.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define TOPIC "hps_et.m.a"

enum { NOW_MS = 1000000, PARTS = 2, REFUSED_MAX = 64, START_US = 77 };

/* One version with two partitions, all well: it reads up to offset 10 of 10, proved at NOW_MS. */
static struct {
    Hps__V1__GetUpdatesResponse reply;
    Hps__V1__VersionUpdates versions[2], *version_list[2];
    Hps__V1__PartitionUpdates parts[2][PARTS], *part_lists[2][PARTS];
    Hps__V1__RejectedRecord refused[REFUSED_MAX], *refused_list[REFUSED_MAX];
    struct hps_update_goal goal;
    struct hps_update_wait *wait;
    struct hps_error err;
} at;

static void make_version(int v, int64_t number, bool active)
{
    Hps__V1__VersionUpdates *version = &at.versions[v];
    hps__v1__version_updates__init(version);
    version->model = "m";
    version->version = number;
    version->lineage = "l";
    version->active = active;
    version->listed = true;
    version->connected = true;
    version->as_of_unix_ms = NOW_MS;
    version->partitions = at.part_lists[v];
    version->n_partitions = PARTS;
    for (int i = 0; i < PARTS; i++) {
        Hps__V1__PartitionUpdates *part = &at.parts[v][i];
        hps__v1__partition_updates__init(part);
        part->topic = TOPIC;
        part->partition = i;
        part->state = "running";
        part->offset = part->end_offset = 10;
        part->as_of_unix_ms = part->end_unix_ms = part->same_topic_unix_ms = NOW_MS;
        part->passed_over_offset = -1;
        at.part_lists[v][i] = part;
    }
    at.version_list[v] = version;
}

static int setup(void **state)
{
    (void)state;
    memset(&at, 0, sizeof(at));
    hps__v1__get_updates_response__init(&at.reply);
    make_version(0, 1, true);
    make_version(1, 2, false);
    at.reply.versions = at.version_list;
    at.reply.n_versions = 1;
    at.reply.unix_ms = NOW_MS;
    at.reply.process_start_us = START_US;
    at.goal = (struct hps_update_goal){.model = "m", .refused_us = 60000000};
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    hps_update_wait_free(at.wait);
    at.wait = NULL;
    return 0;
}

static enum hps_update_verdict look_as(bool refreshed)
{
    if (at.wait == NULL) {
        at.wait = hps_update_wait_new(&at.goal);
        assert_non_null(at.wait);
    }
    at.err = (struct hps_error){0};
    return hps_update_wait_look(at.wait, &at.reply, refreshed, &at.err);
}

static void expect(enum hps_update_verdict verdict, const char *word, const char *other)
{
    enum hps_update_verdict got = look_as(true);
    if (got != verdict || (word != NULL && strstr(at.err.text, word) == NULL) ||
        (other != NULL && strstr(at.err.text, other) == NULL)) {
        fail_msg("verdict %d, expected %d with \"%s\", \"%s\": %s", (int)got, (int)verdict,
                 word != NULL ? word : "", other != NULL ? other : "", at.err.text);
    }
}

/* Judge from the beginning. */
static void expect_anew(enum hps_update_verdict verdict, const char *word, const char *other)
{
    hps_update_wait_free(at.wait);
    at.wait = NULL;
    expect(verdict, word, other);
}

static void refuse(int64_t offset, int64_t unix_ms)
{
    Hps__V1__VersionUpdates *version = &at.versions[0];
    size_t n = version->n_rejected_records;
    if (n == REFUSED_MAX) { /* as the server does */
        memmove(at.refused, at.refused + 1, (REFUSED_MAX - 1) * sizeof(at.refused[0]));
        n--;
    }
    hps__v1__rejected_record__init(&at.refused[n]);
    at.refused[n].topic = TOPIC;
    at.refused[n].partition = 0;
    at.refused[n].offset = offset;
    at.refused[n].reason = "width";
    at.refused[n].message = "rows of 20 bytes, expected 16";
    at.refused[n].unix_ms = unix_ms;
    at.refused_list[n] = &at.refused[n];
    version->rejected_records = at.refused_list;
    version->n_rejected_records = n + 1;
    version->rejected_record_count++;
}

/* ---- all that is logged now ------------------------------------------------------------------ */

static void test_now_when_proved_since_the_first_look_then_visible(void **state)
{
    (void)state;
    at.versions[0].as_of_unix_ms = at.parts[0][1].as_of_unix_ms = NOW_MS - 1;
    expect(HPS_UPDATE_WAITING, "partition 1 of " TOPIC, "version 1 of model \"m\"");
    at.reply.unix_ms = NOW_MS + 50; /* what is waited for is the time of the first look */
    expect(HPS_UPDATE_WAITING, NULL, NULL);
    at.versions[0].as_of_unix_ms = at.parts[0][1].as_of_unix_ms = NOW_MS;
    expect(HPS_UPDATE_VISIBLE, NULL, NULL);
}

static void test_now_when_no_refresh_was_carried_out_then_waited_for(void **state)
{
    (void)state; /* new topics may not be known */
    assert_int_equal(look_as(false), HPS_UPDATE_WAITING);
    assert_int_equal(look_as(true), HPS_UPDATE_VISIBLE);
    assert_int_equal(look_as(false), HPS_UPDATE_VISIBLE);
}

static void test_now_when_it_is_not_known_to_be_the_same_topic_then_waited_for(void **state)
{
    (void)state;
    at.parts[0][0].same_topic_unix_ms = NOW_MS - 5000;
    expect(HPS_UPDATE_WAITING, "partition 0 of " TOPIC, "recreated");
    at.parts[0][0].same_topic_unix_ms = NOW_MS;
    expect(HPS_UPDATE_VISIBLE, NULL, NULL);
}

static void test_now_when_frozen_then_said_at_once_with_the_way_on(void **state)
{
    (void)state; /* its last proof may be young */
    at.versions[0].frozen = true;
    expect(HPS_UPDATE_NEVER, "version 1 of model \"m\" is frozen",
           "hpsctl updates seek --model m --version 1");
}

static void test_now_when_a_partition_stands_still_then_said_at_once(void **state)
{
    static const char *const states[][3] = {
        {"paused", "is paused", "updates resume"},
        {"gap", "is stopped at a gap", "accept-gap"},
        {"gone", "is gone", "created again"},
        {"failed", "has failed", "updates resume"},
    };
    (void)state;
    at.parts[0][1].as_of_unix_ms = NOW_MS - 1;
    at.parts[0][1].reason = "the reason";
    for (size_t i = 0; i < 4; i++) {
        at.parts[0][1].state = (char *)(uintptr_t)states[i][0];
        expect_anew(HPS_UPDATE_NEVER, states[i][1], states[i][2]);
        assert_non_null(strstr(at.err.text, "partition 1 of " TOPIC));
        assert_non_null(strstr(at.err.text, "the reason"));
    }
    at.parts[0][1].as_of_unix_ms = NOW_MS; /* it stands still behind what is asked for */
    expect_anew(HPS_UPDATE_VISIBLE, NULL, NULL);
}

static void test_now_when_it_may_go_on_then_waited_for_with_the_reason(void **state)
{
    (void)state;
    at.versions[0].as_of_unix_ms = at.parts[0][0].as_of_unix_ms = 0;
    at.parts[0][0].state = "held";
    at.versions[0].held = "no room on the disk";
    expect_anew(HPS_UPDATE_WAITING, "held", "no room on the disk");
    at.parts[0][0].state = "starting";
    at.parts[0][0].reason = "it is being compared";
    expect_anew(HPS_UPDATE_WAITING, "starting", "it is being compared");
    at.parts[0][0].state = "running";
    at.parts[0][0].reason = "";
    at.parts[0][0].end_unix_ms = NOW_MS - 7000;
    expect_anew(HPS_UPDATE_WAITING, "leader has not answered for 7.0 s", "partition 0");
    at.parts[0][0].end_unix_ms = 0;
    expect_anew(HPS_UPDATE_WAITING, "leader has not answered yet", NULL);
    at.parts[0][0].end_unix_ms = NOW_MS;
    at.parts[0][0].end_offset = 15;
    at.parts[0][0].lag_record_count = 5;
    expect_anew(HPS_UPDATE_WAITING, "5 records behind", NULL);
    at.versions[0].connected = false;
    at.versions[0].connection_error = "Authentication failed";
    expect_anew(HPS_UPDATE_WAITING, "not connected", "Authentication failed");
}

static void test_now_when_the_model_has_no_topic_then_said_once_topics_were_asked_for(void **state)
{
    (void)state;
    at.versions[0].n_partitions = 0;
    at.versions[0].as_of_unix_ms = 0;
    assert_int_equal(look_as(false), HPS_UPDATE_WAITING);
    expect(HPS_UPDATE_NEVER, "model \"m\" has no topic hps_et.m or hps_et.m.<table>",
           "may not see it");
    at.versions[0].listed = false;
    expect_anew(HPS_UPDATE_WAITING, "topics", NULL);
}

static void test_now_when_no_version_is_meant_then_said_at_once(void **state)
{
    (void)state;
    at.versions[0].active = false;
    expect(HPS_UPDATE_NEVER, "no active version of model \"m\"", "hpsctl activate");
    at.goal.version = 9;
    expect_anew(HPS_UPDATE_NEVER, "version 9 of model \"m\"", "not resident");
    at.goal.version = 1; /* a version that is named need not be active */
    expect_anew(HPS_UPDATE_VISIBLE, NULL, NULL);
}

static void test_now_when_one_of_two_models_is_not_there_then_waited_for(void **state)
{
    (void)state;
    at.goal.model = "";
    at.reply.n_versions = 2;
    at.versions[1].model = "other";
    at.versions[1].as_of_unix_ms = 0;
    at.parts[1][0].as_of_unix_ms = 0;
    expect_anew(HPS_UPDATE_VISIBLE, NULL, NULL); /* it is not active */
    at.versions[1].active = true;
    expect_anew(HPS_UPDATE_WAITING, "\"other\"", NULL);
    at.versions[1].frozen = true;
    expect_anew(HPS_UPDATE_NEVER, "\"other\"", "frozen");
}

static void test_now_when_a_record_was_refused_of_late_then_told_unless_allowed(void **state)
{
    (void)state;
    refuse(3, NOW_MS - 61000);
    expect_anew(HPS_UPDATE_VISIBLE, NULL, NULL);
    refuse(4, NOW_MS - 59000);
    refuse(5, NOW_MS - 1000);
    expect_anew(HPS_UPDATE_NEVER, TOPIC ":0:5 was refused", "rows of 20 bytes, expected 16");
    assert_non_null(strstr(at.err.text, "2 records"));
    assert_non_null(strstr(at.err.text, "--allow-refused"));
    at.goal.refused_us = 500000;
    expect_anew(HPS_UPDATE_VISIBLE, NULL, NULL);
    refuse(6, NOW_MS + 10); /* while it is waited for */
    expect(HPS_UPDATE_NEVER, TOPIC ":0:6 was refused", NULL);
    at.goal.refused_allowed = true;
    expect_anew(HPS_UPDATE_VISIBLE, NULL, NULL);
    assert_non_null(strstr(hps_update_wait_refused(at.wait), TOPIC ":0:6 was refused"));
    for (int64_t i = 0; i < REFUSED_MAX; i++) {
        refuse(100 + i, NOW_MS);
    }
    expect_anew(HPS_UPDATE_VISIBLE, NULL, NULL);
    assert_non_null(strstr(hps_update_wait_refused(at.wait), "at least 64"));
}

static void test_look_when_the_server_cannot_say_or_is_another_then_no_success(void **state)
{
    (void)state;
    at.versions[0].as_of_unix_ms = 0;
    at.parts[0][0].as_of_unix_ms = 0;
    expect_anew(HPS_UPDATE_WAITING, NULL, NULL);
    at.reply.process_start_us++;
    at.versions[0].as_of_unix_ms = at.parts[0][0].as_of_unix_ms = NOW_MS;
    expect(HPS_UPDATE_NEVER, "restarted", "ask again");
    at.reply.unix_ms = 0;
    expect_anew(HPS_UPDATE_NEVER, "older", NULL);
}

/* ---- records --------------------------------------------------------------------------------- */

static const struct hps_update_range ranges[] = {{3, 4}, {7, 8}};
static const struct hps_update_records records[] = {{TOPIC, 0, ranges, 2}, {TOPIC, 1, ranges, 1}};

static void wait_for_records(void)
{
    at.goal.records = records;
    at.goal.n_records = 2;
}

static void test_records_when_read_and_the_leader_has_them_then_visible(void **state)
{
    (void)state;
    wait_for_records();
    at.parts[0][0].offset = 8;
    at.parts[0][0].lag_record_count = 2;
    expect_anew(HPS_UPDATE_WAITING, TOPIC ":0:8 is not applied", "2 records behind");
    at.parts[0][0].offset = 9;
    expect(HPS_UPDATE_VISIBLE, NULL, NULL);
    assert_int_equal((teardown(NULL), look_as(false)), HPS_UPDATE_WAITING); /* not asked yet */
    at.parts[0][0].end_unix_ms = NOW_MS - 1;
    expect_anew(HPS_UPDATE_WAITING, TOPIC ":0:8", "leader has not confirmed");
    at.parts[0][0].end_unix_ms = NOW_MS;
    at.parts[0][0].end_offset = 8; /* another topic, of which we are past the end */
    expect_anew(HPS_UPDATE_WAITING, TOPIC ":0:8", "leader has not confirmed");
    at.parts[0][0].end_offset = 9;
    at.parts[0][0].same_topic_unix_ms = NOW_MS - 1;
    expect_anew(HPS_UPDATE_WAITING, TOPIC ":0:8", NULL);
}

static void test_records_when_the_partition_is_not_read_then_waited_for_with_the_reason(
    void **state)
{
    (void)state;
    wait_for_records();
    at.versions[0].n_partitions = 1;
    expect_anew(HPS_UPDATE_WAITING, TOPIC " has no partition 1", "it has 1");
    at.versions[0].n_partitions = 0;
    expect_anew(HPS_UPDATE_WAITING, TOPIC " is not read", "may not see it");
    at.versions[0].connected = false;
    at.versions[0].connection_error = "refused by the broker";
    expect_anew(HPS_UPDATE_WAITING, "not connected", "refused by the broker");
}

static void test_records_when_one_was_refused_then_said_and_no_others(void **state)
{
    (void)state;
    wait_for_records();
    refuse(2, NOW_MS);
    refuse(5, NOW_MS); /* of another producer, between ours */
    refuse(9, NOW_MS);
    expect_anew(HPS_UPDATE_VISIBLE, NULL, NULL);
    refuse(7, NOW_MS);
    expect_anew(HPS_UPDATE_NEVER, TOPIC ":0:7 was refused", "rows of 20 bytes");
    at.parts[0][0].offset = 3; /* also before the others are read */
    expect_anew(HPS_UPDATE_NEVER, TOPIC ":0:7 was refused", NULL);
}

static void test_records_when_refused_before_they_were_written_then_of_an_older_topic(void **state)
{
    (void)state;
    wait_for_records();
    refuse(7, NOW_MS - 10);
    at.wait = hps_update_wait_new(&at.goal);
    hps_update_wait_before(at.wait, &at.reply);
    at.reply.unix_ms = NOW_MS;
    expect(HPS_UPDATE_VISIBLE, NULL, NULL);
}

static void test_records_when_more_were_refused_than_are_listed_then_no_success(void **state)
{
    (void)state;
    wait_for_records();
    at.wait = hps_update_wait_new(&at.goal);
    hps_update_wait_before(at.wait, &at.reply);
    for (int64_t i = 0; i < REFUSED_MAX + 1; i++) {
        refuse(100 + i, NOW_MS + 1);
    }
    expect(HPS_UPDATE_NEVER, "more records", "log");
    /* What is long ago is no matter where nothing is known of before. */
    expect_anew(HPS_UPDATE_VISIBLE, NULL, NULL);
}

static void test_records_when_the_server_was_restarted_since_then_no_success(void **state)
{
    (void)state;
    wait_for_records();
    at.wait = hps_update_wait_new(&at.goal);
    hps_update_wait_before(at.wait, &at.reply);
    at.reply.process_start_us++;
    expect(HPS_UPDATE_NEVER, "restarted", "publish again");
}

static void test_records_when_passed_over_then_said(void **state)
{
    (void)state;
    wait_for_records();
    at.parts[0][0].passed_over_offset = 5;
    at.parts[0][0].passed_over_end_offset = 7; /* neither before nor behind */
    expect_anew(HPS_UPDATE_VISIBLE, NULL, NULL);
    at.parts[0][0].passed_over_end_offset = 8;
    expect_anew(HPS_UPDATE_NEVER, TOPIC ":0:7 was passed over", "updates seek");
    at.parts[0][0].passed_over_end_offset = 0; /* not known how far */
    expect_anew(HPS_UPDATE_NEVER, TOPIC ":0:7 was passed over", NULL);
    at.parts[0][0].passed_over_offset = 9;
    expect_anew(HPS_UPDATE_VISIBLE, NULL, NULL);
    at.parts[0][0].passed_over_offset = -2;
    at.parts[0][0].passed_over_end_offset = 4;
    expect_anew(HPS_UPDATE_NEVER, TOPIC ":0:3 may be missing", "gap");
    at.parts[0][0].passed_over_end_offset = 3;
    expect_anew(HPS_UPDATE_VISIBLE, NULL, NULL);
}

static void test_records_when_frozen_then_only_those_that_name_the_version_come(void **state)
{
    (void)state;
    wait_for_records();
    at.versions[0].frozen = true;
    at.parts[0][0].state = at.parts[0][1].state = "frozen";
    expect_anew(HPS_UPDATE_VISIBLE, NULL, NULL); /* applied before it was frozen */
    at.parts[0][0].offset = 8;
    expect_anew(HPS_UPDATE_NEVER, "is frozen", "updates seek");
    at.parts[0][0].offset = 9;
    at.parts[0][0].passed_over_offset = 3;
    at.parts[0][0].passed_over_end_offset = 9;
    expect_anew(HPS_UPDATE_NEVER, TOPIC ":0:3 was passed over", NULL);
    at.goal.named = true;
    expect_anew(HPS_UPDATE_VISIBLE, NULL, NULL);
    at.parts[0][0].offset = 4;
    expect_anew(HPS_UPDATE_WAITING, TOPIC ":0:8", NULL);
}

static void test_records_when_the_partition_stands_still_then_said_unless_they_are_read(
    void **state)
{
    (void)state;
    wait_for_records();
    at.parts[0][0].state = "paused";
    expect_anew(HPS_UPDATE_VISIBLE, NULL, NULL);
    at.parts[0][0].same_topic_unix_ms = NOW_MS - 1; /* nobody asks while it is paused */
    expect_anew(HPS_UPDATE_NEVER, "partition 0 of " TOPIC " is paused", NULL);
    at.parts[0][0].offset = 8;
    expect_anew(HPS_UPDATE_NEVER, "partition 0 of " TOPIC " is paused", "updates resume");
    at.parts[0][0].state = "held";
    expect_anew(HPS_UPDATE_WAITING, "held", NULL);
}

/* ---- before they are written ----------------------------------------------------------------- */

static void check_says(hps_status status, const char *topic, const char *word)
{
    struct hps_error err = {0};
    hps_status got = hps_update_check(&at.reply, &at.goal, topic, &err);
    if (got != status || (word != NULL && strstr(err.text, word) == NULL)) {
        fail_msg("%s, expected %s with \"%s\": %s", hps_status_text(got), hps_status_text(status),
                 word, err.text);
    }
}

static void test_check_when_asked_then_says_what_would_never_be_visible(void **state)
{
    (void)state;
    check_says(HPS_OK, NULL, NULL);
    check_says(HPS_OK, TOPIC, NULL);
    check_says(HPS_UNAVAILABLE, "hps_et.m", "hps_et.m is not read");
    at.parts[0][1].state = "failed";
    check_says(HPS_OK, NULL, NULL); /* of which topic is not known yet */
    check_says(HPS_PRECONDITION, TOPIC, "has failed");
    at.parts[0][1].state = "gone"; /* it was made anew, as we have just seen it */
    check_says(HPS_OK, TOPIC, NULL);
    at.versions[0].connected = false; /* nobody knows */
    check_says(HPS_OK, "hps_et.m", NULL);
    at.versions[0].frozen = true;
    check_says(HPS_PRECONDITION, NULL, "frozen");
    at.goal.named = true;
    check_says(HPS_OK, NULL, NULL);
    at.goal.version = 9;
    check_says(HPS_NOT_FOUND, NULL, "version 9");
}

#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_now_when_proved_since_the_first_look_then_visible),
        T(test_now_when_no_refresh_was_carried_out_then_waited_for),
        T(test_now_when_it_is_not_known_to_be_the_same_topic_then_waited_for),
        T(test_now_when_frozen_then_said_at_once_with_the_way_on),
        T(test_now_when_a_partition_stands_still_then_said_at_once),
        T(test_now_when_it_may_go_on_then_waited_for_with_the_reason),
        T(test_now_when_the_model_has_no_topic_then_said_once_topics_were_asked_for),
        T(test_now_when_no_version_is_meant_then_said_at_once),
        T(test_now_when_one_of_two_models_is_not_there_then_waited_for),
        T(test_now_when_a_record_was_refused_of_late_then_told_unless_allowed),
        T(test_look_when_the_server_cannot_say_or_is_another_then_no_success),
        T(test_records_when_read_and_the_leader_has_them_then_visible),
        T(test_records_when_the_partition_is_not_read_then_waited_for_with_the_reason),
        T(test_records_when_one_was_refused_then_said_and_no_others),
        T(test_records_when_refused_before_they_were_written_then_of_an_older_topic),
        T(test_records_when_more_were_refused_than_are_listed_then_no_success),
        T(test_records_when_the_server_was_restarted_since_then_no_success),
        T(test_records_when_passed_over_then_said),
        T(test_records_when_frozen_then_only_those_that_name_the_version_come),
        T(test_records_when_the_partition_stands_still_then_said_unless_they_are_read),
        T(test_check_when_asked_then_says_what_would_never_be_visible),
    };
    return cmocka_run_group_tests_name("update_wait", tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether a version may become the active one, by the views of its partitions and of the active
 * version.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "tests/lib/stream_rig.h"

enum { ACTIVE = 7, OTHER = 8, PARTITIONS = 2, LAG_MAX_MS = 2000 };

/* Two streams of one version's tables; their threads do not run. */
struct two {
    struct rig *rig;
    struct hps_update_stream *active, *other;
    struct hps_error err;
};

static struct hps_update_stream *add_stream(struct rig *rig, int64_t number)
{
    struct hps_update_stream *stream = update_stream_new(&rig->updater->common, rig->fx.version, 0);
    assert_non_null(stream);
    stream->number = number;
    stream->view->version = number;
    stream->shown->partitions = hps_calloc(PARTITIONS, sizeof(*stream->shown->partitions));
    stream->shown->capacity = PARTITIONS;
    assert_non_null(stream->shown->partitions);
    stream->view->partitions = stream->shown->partitions;
    stream->view->n_partitions = PARTITIONS;
    for (int32_t i = 0; i < PARTITIONS; i++) {
        stream->shown->partitions[i] = (struct hps_partition_view){
            .topic = ITEMS, .partition = i, .state = HPS_PARTITION_RUNNING, .next = -1, .high = -1};
    }
    return stream;
}

static int setup(void **state)
{
    static struct two two;
    struct hps_error err = {0};
    two = (struct two){0};
    assert_int_equal(rig_setup((void **)&two.rig), 0);
    assert_int_equal(hps_updater_new(&two.rig->options, &two.rig->updater, &err), HPS_OK);
    two.active = add_stream(two.rig, ACTIVE);
    two.other = add_stream(two.rig, OTHER);
    atomic_store(&two.active->active, true);
    two.active->next = two.other;
    two.rig->updater->streams = two.active;
    *state = &two;
    return 0;
}

static int end(void **state)
{
    struct two *two = *state;
    two->rig->updater->streams = NULL;
    two->rig->stream = two->other;
    update_stream_close(two->active);
    update_stream_free(two->active);
    return teardown((void **)&two->rig);
}

/* The partition has read up to offset `next`. Its as-of is `age_ms` ago; below 0: not known. Sets
 * the version's as-of, too. */
static void at(struct hps_update_stream *stream, int partition, int64_t next, int64_t age_ms)
{
    struct hps_partition_view *view = &stream->shown->partitions[partition];
    view->next = next;
    view->last = (struct hps_witness){.known = next > 0, .offset = next - 1, .hash = 5};
    view->as_of_ms = age_ms < 0 ? 0 : (int64_t)hps_clock_wall_ms() - age_ms;
    stream->view->as_of_ms = INT64_MAX;
    for (int i = 0; i < PARTITIONS; i++) {
        int64_t as_of_ms = stream->shown->partitions[i].as_of_ms;
        if (as_of_ms < stream->view->as_of_ms) {
            stream->view->as_of_ms = as_of_ms;
        }
    }
}

static void name_topic(struct hps_update_stream *stream, const char *id)
{
    for (int i = 0; i < PARTITIONS; i++) {
        (void)snprintf(stream->shown->partitions[i].topic_id, HPS_TOPIC_ID_BYTES_MAX, "%s", id);
    }
}

static hps_status check(struct two *two)
{
    two->err = (struct hps_error){0};
    return hps_updater_check_lag(two->rig->updater, "m", OTHER, LAG_MAX_MS, &two->err);
}

static void test_check_when_fresh_then_accepted_at_any_position(void **state)
{
    struct two *two = *state;
    for (int i = 0; i < PARTITIONS; i++) {
        at(two->active, i, 100, 0);
        at(two->other, i, 90, LAG_MAX_MS);
    }
    assert_int_equal(check(two), HPS_OK);
    at(two->other, 1, 90, LAG_MAX_MS + 1);
    at(two->active, 1, 100, 0);
    at(two->active, 0, 100, 0);
    assert_int_equal(check(two), HPS_PRECONDITION);
}

/* After a restart while the leader of a partition is down, neither version's as-of is known. */
static void test_check_when_as_of_is_unknown_then_positions_decide(void **state)
{
    struct two *two = *state;
    at(two->active, 0, 100, -1);
    at(two->other, 0, 100, -1);
    at(two->active, 1, 824, -1);
    at(two->other, 1, 818, -1);
    assert_int_equal(check(two), HPS_PRECONDITION);
    assert_non_null(strstr(two->err.text, "version 8"));
    assert_non_null(strstr(two->err.text, "offset 818"));
    assert_non_null(strstr(two->err.text, "at 824"));
    at(two->other, 1, 824, -1);
    assert_int_equal(check(two), HPS_OK);
    at(two->other, 1, -1, -1); /* its position is not known yet */
    assert_int_equal(check(two), HPS_PRECONDITION);
    at(two->active, 1, -1, -1); /* neither is the position of the active version */
    assert_int_equal(check(two), HPS_OK);
}

/* Neither version can read one partition, which sets the as-of of both. In another partition, one
 * version is far ahead. */
static void test_check_when_as_of_is_equal_then_positions_decide(void **state)
{
    struct two *two = *state;
    at(two->active, 0, 50, 60000);
    at(two->other, 0, 50, 60000);
    at(two->active, 1, 1275, 0);
    at(two->other, 1, 1264, 4000);
    assert_int_equal(check(two), HPS_PRECONDITION);
    assert_non_null(strstr(two->err.text, "partition 1"));
    at(two->other, 1, 1264, 1000); /* it lacks only young updates there */
    assert_int_equal(check(two), HPS_OK);
    at(two->other, 1, 1275, 4000);
    assert_int_equal(check(two), HPS_OK);
}

static void test_check_when_topics_differ_then_offsets_are_not_compared(void **state)
{
    struct two *two = *state;
    for (int i = 0; i < PARTITIONS; i++) {
        at(two->active, i, 10, -1);
        at(two->other, i, 300, -1);
    }
    assert_int_equal(check(two), HPS_PRECONDITION); /* ids are not known: they may differ */
    name_topic(two->active, "second");
    name_topic(two->other, "first");
    assert_int_equal(check(two), HPS_PRECONDITION);
    name_topic(two->other, "second");
    assert_int_equal(check(two), HPS_OK);
    name_topic(two->other, "");
    at(two->other, 0, 10, -1);
    at(two->other, 1, 10, -1);
    assert_int_equal(check(two), HPS_OK); /* they have read the same record last */
    two->other->shown->partitions[1].last.hash = 6;
    assert_int_equal(check(two), HPS_PRECONDITION);
}

static void test_check_when_a_partition_is_missing_then_accepted_if_it_has_no_updates(void **state)
{
    struct two *two = *state;
    for (int i = 0; i < PARTITIONS; i++) {
        at(two->active, i, 10, -1);
        at(two->other, i, 10, -1);
    }
    two->other->view->n_partitions = 1;
    assert_int_equal(check(two), HPS_PRECONDITION);
    two->active->shown->partitions[1].state = HPS_PARTITION_GONE;
    assert_int_equal(check(two), HPS_OK);
    two->active->shown->partitions[1].state = HPS_PARTITION_RUNNING;
    (void)snprintf(two->active->shown->partitions[1].topic, HPS_UPDATE_TOPIC_BYTES_MAX,
                   "hps_et.m.another");
    assert_int_equal(check(two), HPS_OK); /* of a table that it does not have */
}

static void test_check_when_frozen_or_without_other_version_then_accepted(void **state)
{
    struct two *two = *state;
    at(two->active, 0, 10, 0);
    at(two->active, 1, 10, 0);
    assert_int_equal(check(two), HPS_PRECONDITION);
    two->other->view->frozen = true;
    assert_int_equal(check(two), HPS_OK);
    two->other->view->frozen = false;
    atomic_store(&two->active->active, false);
    assert_int_equal(check(two), HPS_OK);
    assert_int_equal(hps_updater_check_lag(NULL, "m", OTHER, LAG_MAX_MS, &two->err), HPS_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, end)
        TEST(test_check_when_fresh_then_accepted_at_any_position),
        TEST(test_check_when_as_of_is_unknown_then_positions_decide),
        TEST(test_check_when_as_of_is_equal_then_positions_decide),
        TEST(test_check_when_topics_differ_then_offsets_are_not_compared),
        TEST(test_check_when_a_partition_is_missing_then_accepted_if_it_has_no_updates),
        TEST(test_check_when_frozen_or_without_other_version_then_accepted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

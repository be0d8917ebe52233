/* SPDX-License-Identifier: Apache-2.0
 *
 * Phases go where they may, and what may not be is noticed as a turn ends.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/assert.h"
#include "tests/lib/stream_rig.h"

static void on_assert(const char *expr, const char *file, int line)
{
    mock_assert(0, expr, file, line);
}

static int setup(void **state)
{
    int failed = rig_setup(state);
    hps_assert_hook(on_assert);
    return failed;
}

static int end(void **state)
{
    hps_assert_hook(NULL);
    return teardown(state);
}

/* A stream that runs, with one partition that has read a record. */
static struct update_partition *running(struct rig *rig)
{
    begin(rig, 1);
    assert_int_equal(rig->stream->n_partitions, 1);
    assert_int_equal(rig->stream->partitions[0].phase, UPDATE_RUNS);
    return &rig->stream->partitions[0];
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void test_phase_when_the_step_is_legal_then_taken(void **state)
{
    (void)state;
    static const enum update_phase way[] = {
        UPDATE_STARTS, UPDATE_CHECKS, UPDATE_RUNS,   UPDATE_BLOCKED, UPDATE_PAUSED, UPDATE_STARTS,
        UPDATE_GONE,   UPDATE_STARTS, UPDATE_GAP,    UPDATE_RUNS,    UPDATE_OTHER,  UPDATE_PAUSED,
        UPDATE_OTHER,  UPDATE_RUNS,   UPDATE_FAILED, UPDATE_FAILED,  UPDATE_STARTS};
    struct update_partition partition = {.phase = UPDATE_STARTS};
    for (size_t i = 0; i < sizeof(way) / sizeof(way[0]); i++) {
        update_phase_set(&partition, way[i]);
        assert_int_equal(partition.phase, way[i]);
    }
}

static void expect_refused(enum update_phase from, enum update_phase to)
{
    struct update_partition partition = {.phase = from};
    expect_assert_failure(update_phase_set(&partition, to));
    assert_int_equal(partition.phase, from);
}

static void test_phase_when_the_step_is_not_legal_then_refused(void **state)
{
    (void)state;
    static const enum update_phase steps[][2] = {
        {UPDATE_PAUSED, UPDATE_RUNS},    {UPDATE_PAUSED, UPDATE_GONE},
        {UPDATE_GAP, UPDATE_CHECKS},     {UPDATE_GAP, UPDATE_OTHER},
        {UPDATE_GONE, UPDATE_CHECKS},    {UPDATE_GONE, UPDATE_GAP},
        {UPDATE_RUNS, UPDATE_CHECKS},    {UPDATE_STARTS, UPDATE_BLOCKED},
        {UPDATE_CHECKS, UPDATE_BLOCKED}, {UPDATE_FAILED, UPDATE_OTHER},
    };
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        expect_refused(steps[i][0], steps[i][1]);
    }
}

static void test_stream_phases_when_the_step_is_not_legal_then_refused(void **state)
{
    (void)state;
    struct hps_update_stream stream = {.link = {.phase = UPDATE_LINK_CLOSED}};
    expect_assert_failure(update_link_set(&stream, UPDATE_LINK_UP));
    update_link_set(&stream, UPDATE_LINK_SILENT);
    expect_assert_failure(update_link_set(&stream, UPDATE_LINK_PARTIAL));
    update_topics_set(&stream, UPDATE_TOPICS_LISTED);
    expect_assert_failure(update_topics_set(&stream, UPDATE_TOPICS_NONE));
    expect_assert_failure(update_share_set(&stream, UPDATE_SHARE_REPLAYS));
    update_share_set(&stream, UPDATE_SHARE_LEVEL);
    update_share_set(&stream, UPDATE_SHARE_BEHIND);
    update_share_set(&stream, UPDATE_SHARE_REPLAYS);
    expect_assert_failure(update_share_set(&stream, UPDATE_SHARE_APART));
    expect_assert_failure(update_share_set(&stream, UPDATE_SHARE_LEVEL));
}

static void test_life_when_stopped_late_then_it_stays_ended(void **state)
{
    (void)state;
    struct hps_update_stream stream = {.life = UPDATE_LIVES};
    expect_assert_failure(update_life_set(&stream, UPDATE_ENDED));
    atomic_store(&stream.life, UPDATE_LIVES);
    update_life_set(&stream, UPDATE_STOPS);
    assert_true(update_stops(&stream) && !update_has_ended(&stream));
    update_life_set(&stream, UPDATE_ENDED);
    update_life_set(&stream, UPDATE_STOPS);
    assert_true(update_has_ended(&stream));
}

static void test_state_when_shown_then_by_what_operators_know(void **state)
{
    (void)state;
    assert_int_equal(update_partition_state(UPDATE_CHECKS), HPS_PARTITION_RUNNING);
    assert_int_equal(update_partition_state(UPDATE_BLOCKED), HPS_PARTITION_PAUSED);
    assert_int_equal(update_partition_state(UPDATE_OTHER), HPS_PARTITION_GAP);
}

/* ---- what holds ------------------------------------------------------------------------------ */

static void test_partition_when_its_state_contradicts_itself_then_noticed(void **state)
{
    struct rig *rig = *state;
    struct update_partition *partition = running(rig);
    const struct update_partition as_it_is = *partition;
    update_stream_sane(rig->stream);
#define NOTICED(change)                                         \
    do {                                                        \
        change;                                                 \
        expect_assert_failure(update_stream_sane(rig->stream)); \
        *partition = as_it_is;                                  \
    } while (0)
    NOTICED(partition->paused = true);
    NOTICED(partition->leave = true);
    NOTICED(partition->phase = UPDATE_PAUSED);
    NOTICED(partition->phase = UPDATE_BLOCKED);
    NOTICED(partition->phase = UPDATE_GAP);
    NOTICED(partition->phase = UPDATE_PHASES);
    NOTICED(partition->pending.moved = true);
    NOTICED(partition->read.next++);
    NOTICED(partition->basis = UPDATE_ADOPTED);
    NOTICED(partition->replay.from = 0);
    NOTICED(partition->proof.n_ends = UPDATE_ENDS_MAX + 1);
    NOTICED(partition->proof.word.since_us = partition->proof.word.asked_us + 1);
    NOTICED((partition->same.asked = true, partition->same.asked_offset = -1));
    NOTICED((partition->proof.watch = NULL, partition->same.asked = true));
#undef NOTICED
    update_stream_sane(rig->stream);
}

static void test_stream_when_its_state_contradicts_itself_then_noticed(void **state)
{
    struct rig *rig = *state;
    (void)running(rig);
    struct hps_update_stream *stream = rig->stream;
#define NOTICED(change, back)                              \
    do {                                                   \
        change;                                            \
        expect_assert_failure(update_stream_sane(stream)); \
        back;                                              \
    } while (0)
    NOTICED(stream->link.phase = UPDATE_LINK_CLOSED, stream->link.phase = UPDATE_LINK_UP);
    NOTICED(stream->batch.n_records = 1, stream->batch.n_records = 0);
    NOTICED(stream->batch.held = true, stream->batch.held = false);
    NOTICED(stream->batch.dead_letters.sent = true, stream->batch.dead_letters.sent = false);
    NOTICED(stream->share.phase = UPDATE_SHARE_LEVEL, stream->share.phase = UPDATE_SHARE_NONE);
    NOTICED(stream->topics.phase = UPDATE_TOPICS_UNKNOWN,
            stream->topics.phase = UPDATE_TOPICS_LISTED);
#undef NOTICED
    update_stream_sane(stream);
}

static void test_view_when_it_claims_too_much_then_noticed(void **state)
{
    struct rig *rig = *state;
    (void)running(rig);
    struct hps_partition_view *view = &rig->stream->shown.partitions[0];
    const struct hps_partition_view as_it_is = *view;
    assert_true(as_it_is.lag_known);
    hps_lock_acquire(&rig->stream->lock);
    update_view_sane(rig->stream);
#define NOTICED(change)                                       \
    do {                                                      \
        change;                                               \
        expect_assert_failure(update_view_sane(rig->stream)); \
        *view = as_it_is;                                     \
    } while (0)
    NOTICED(view->high = -1);
    NOTICED(view->next = -1);
    NOTICED(view->same_ms = 0);
    NOTICED(view->state = HPS_PARTITION_UNREACHABLE);
    NOTICED(view->state = HPS_PARTITION_FROZEN);
    NOTICED(view->state = HPS_PARTITION_HELD);
    NOTICED(view->as_of_ms--);
#undef NOTICED
    update_view_sane(rig->stream);
    hps_lock_release(&rig->stream->lock);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_phase_when_the_step_is_legal_then_taken, setup, end),
        cmocka_unit_test_setup_teardown(test_phase_when_the_step_is_not_legal_then_refused, setup,
                                        end),
        cmocka_unit_test_setup_teardown(test_stream_phases_when_the_step_is_not_legal_then_refused,
                                        setup, end),
        cmocka_unit_test_setup_teardown(test_life_when_stopped_late_then_it_stays_ended, setup,
                                        end),
        cmocka_unit_test_setup_teardown(test_state_when_shown_then_by_what_operators_know, setup,
                                        end),
        cmocka_unit_test_setup_teardown(
            test_partition_when_its_state_contradicts_itself_then_noticed, setup, end),
        cmocka_unit_test_setup_teardown(test_stream_when_its_state_contradicts_itself_then_noticed,
                                        setup, end),
        cmocka_unit_test_setup_teardown(test_view_when_it_claims_too_much_then_noticed, setup, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

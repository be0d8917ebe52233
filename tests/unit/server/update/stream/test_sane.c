/* SPDX-License-Identifier: Apache-2.0
 *
 * The assertions about the state of a stream, and the steps of its life.
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

/* Open the stream. Returns its partition, which has read a record. */
static struct update_partition *running(struct rig *rig)
{
    begin(rig, 1);
    assert_int_equal(rig->stream->n_partitions, 1);
    assert_int_equal(rig->stream->partitions[0].phase, UPDATE_RUNNING);
    return &rig->stream->partitions[0];
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void test_life_when_stopped_after_its_end_then_it_stays_ended(void **state)
{
    (void)state;
    struct hps_update_stream stream = {.life = UPDATE_LIVES};
    expect_assert_failure(update_life_set(&stream, UPDATE_ENDED));
    atomic_store(&stream.life, UPDATE_LIVES);
    update_life_set(&stream, UPDATE_STOPS);
    assert_int_equal(atomic_load(&stream.life), UPDATE_STOPS);
    update_life_set(&stream, UPDATE_ENDED);
    update_life_set(&stream, UPDATE_STOPS);
    assert_int_equal(atomic_load(&stream.life), UPDATE_ENDED);
}

static void test_phase_when_shown_to_operators_then_as_one_of_their_states(void **state)
{
    (void)state;
    assert_int_equal(update_partition_state(UPDATE_CHECKING), HPS_PARTITION_RUNNING);
    assert_int_equal(update_partition_state(UPDATE_BLOCKED), HPS_PARTITION_PAUSED);
    assert_int_equal(update_partition_state(UPDATE_REPLACED), HPS_PARTITION_GAP);
}

/* ---- invariants ------------------------------------------------------------------------------ */

static void test_partition_when_its_state_contradicts_itself_then_an_assertion_fails(void **state)
{
    struct rig *rig = *state;
    struct update_partition *partition = running(rig);
    const struct update_partition original = *partition;
    const struct hps_position read = *partition->read;
    const struct update_replay replay = *partition->replay;
    const struct update_proof proof = *partition->proof;
    const struct update_identity same = *partition->identity;
    update_stream_sane(rig->stream);
#define FAILS(change)                                           \
    do {                                                        \
        change;                                                 \
        expect_assert_failure(update_stream_sane(rig->stream)); \
        *partition = original;                                  \
        *partition->read = read;                                \
        *partition->replay = replay;                            \
        *partition->proof = proof;                              \
        *partition->identity = same;                            \
    } while (0)
    FAILS(partition->paused = true);
    FAILS(partition->unassign_due = true);
    FAILS(partition->phase = UPDATE_PAUSED);
    FAILS(partition->phase = UPDATE_BLOCKED);
    FAILS(partition->pending.moved = true);
    FAILS(partition->read->next++);
    FAILS(partition->basis = UPDATE_ADOPTED);
    FAILS(partition->replay->from = 0);
    FAILS((partition->proof->watch = NULL, partition->identity->asked = true));
#undef FAILS
    update_stream_sane(rig->stream);
}

static void test_stream_when_its_state_contradicts_itself_then_an_assertion_fails(void **state)
{
    struct rig *rig = *state;
    (void)running(rig);
    struct hps_update_stream *stream = rig->stream;
#define FAILS(change, back)                                \
    do {                                                   \
        change;                                            \
        expect_assert_failure(update_stream_sane(stream)); \
        back;                                              \
    } while (0)
    FAILS(stream->batch->n_records = 1, stream->batch->n_records = 0);
    FAILS(stream->batch->held = true, stream->batch->held = false);
    FAILS(stream->batch->dead_letters.sent = true, stream->batch->dead_letters.sent = false);
    FAILS(stream->share->phase = UPDATE_SHARE_BEHIND, stream->share->phase = UPDATE_SHARE_CURRENT);
#undef FAILS
    update_stream_sane(stream);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_life_when_stopped_after_its_end_then_it_stays_ended,
                                        setup, end),
        cmocka_unit_test_setup_teardown(
            test_phase_when_shown_to_operators_then_as_one_of_their_states, setup, end),
        cmocka_unit_test_setup_teardown(
            test_partition_when_its_state_contradicts_itself_then_an_assertion_fails, setup, end),
        cmocka_unit_test_setup_teardown(
            test_stream_when_its_state_contradicts_itself_then_an_assertion_fails, setup, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * A stream of updates of a version with a tier that other daemons share, turn by turn: where it is
 * there, and how shards that are behind are brought on.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "tests/lib/fake_shared.h"
#include "tests/lib/stream_rig.h"

enum { TIER_SHARED = 1, TIER_DISK = 2, LOOK_US = 6 * 1000 * 1000 };

/* ---- the rig --------------------------------------------------------------------------------- */

static void open_version(struct rig *rig)
{
    struct hps_error err = {0};
    fixture_version(&rig->fx, 7, "run");
    assert_int_equal(hps_updater_place(rig->fx.version, &err), HPS_OK);
}

static struct rig *rig_new(bool alone)
{
    struct rig *rig = rig_alloc();
    rig->options.rows_max = 4;
    rig->fx.shared = hps_fake_shared_new(alone);
    if (alone) {
        rig->fx.disk->ops->close(rig->fx.disk);
        rig->fx.disk = NULL;
    }
    open_version(rig);
    return rig;
}

static int setup(void **state)
{
    *state = rig_new(false);
    return 0;
}

static int setup_alone(void **state)
{
    *state = rig_new(true);
    return 0;
}

static void restart(struct rig *rig)
{
    close_stream(rig);
    fixture_version_close(&rig->fx);
    open_version(rig);
    open_stream(rig);
}

/* Long enough for the tier to be looked at again. */
static void settle(struct rig *rig)
{
    for (unsigned i = 0; i < 4; i++) {
        hps_clock_advance(LOOK_US);
        turns(rig, 12);
    }
}

/* Keys 0 to 9, five in each shard. */
static void put_ten(struct rig *rig, float value)
{
    for (hps_key key = 0; key < 10; key++) {
        put(rig, key, value + (float)key);
    }
}

/* They are applied. */
static void begin_ten(struct rig *rig)
{
    put_ten(rig, 100);
    open_stream(rig);
    turns(rig, 6);
}

static uint64_t items(void)
{
    return hps_log_partition(CLUSTER, ITEMS, 0);
}

static int64_t shard_at(struct rig *rig, uint32_t shard)
{
    return hps_fake_shared_at(rig->fx.shared, shard, items());
}

static float value(struct rig *rig, uint32_t tier, hps_key key)
{
    return fixture_tier_value(&rig->fx, tier, FIXTURE_ITEMS, key);
}

/* In the shared tier, by the order of keys. */
static void assert_ten(struct rig *rig, float first)
{
    for (hps_key key = 0; key < 10; key++) {
        assert_true(value(rig, TIER_SHARED, key) == first + (float)key);
    }
}

static double metric(struct rig *rig, enum hps_metric_id id)
{
    return hps_metric_value(hps_server_metric(rig->metrics, id, "m", NULL, NULL, NULL));
}

/* ---- applying -------------------------------------------------------------------------------- */

static void test_stream_when_records_come_then_the_shared_tier_is_where_the_version_is(void **state)
{
    struct rig *rig = *state;
    hps_fake_log_topic(rig->log, ITEMS, 2);
    begin_ten(rig);
    assert_ten(rig, 100);
    assert_int_equal(shard_at(rig, 0), 10);
    assert_int_equal(shard_at(rig, 1), 10);
    assert_int_equal(hps_fake_shared_version_at(rig->fx.shared, items()), 10);
    assert_int_equal(hps_fake_shared_at(rig->fx.shared, 0, hps_log_partition(CLUSTER, ITEMS, 1)),
                     0);
    assert_true(metric(rig, HPS_M_UPDATE_SHARED_GAPS) == 0);
    assert_false(rig->stream->view.shared_behind);
}

static void test_stream_when_the_log_does_not_say_who_it_is_then_it_is_the_same_partition(
    void **state)
{
    struct rig *rig = *state;
    begin_ten(rig);
    hps_fake_log_cluster(rig->log, "");
    restart(rig);
    put_ten(rig, 200);
    turns(rig, 6);
    assert_ten(rig, 200);
    assert_int_equal(shard_at(rig, 0), 20);
    assert_string_equal(rig->stream->partitions[0].applied.cluster, CLUSTER);
}

static void test_place_when_restarted_then_older_rows_are_not_read(void **state)
{
    struct rig *rig = *state;
    begin_ten(rig);
    close_stream(rig);
    fixture_version_close(&rig->fx);
    hps_fake_shared_move(rig->fx.shared, 0, items(), 9);
    open_version(rig); /* and no stream */
    assert_int_equal(hps_fake_shared_version_at(rig->fx.shared, items()), 10);
    assert_true(value(rig, TIER_SHARED, 2) == -1);
    assert_true(value(rig, TIER_SHARED, 3) == 103);
}

static void test_place_when_nothing_was_ever_applied_then_shards_that_do_not_say_are_read(
    void **state)
{
    struct rig *rig = *state;
    begin(rig, 0);
    hps_fake_shared_lose(rig->fx.shared, 0);
    restart(rig);
    settle(rig);
    assert_int_equal(shard_at(rig, 0), 0); /* made anew, where the version is */
    assert_true(metric(rig, HPS_M_UPDATE_SHARED_RESETS) == 1);
}

/* ---- bringing on ----------------------------------------------------------------------------- */

static void test_repair_when_a_shard_was_away_then_it_gets_what_it_missed(void **state)
{
    struct rig *rig = *state;
    begin_ten(rig);
    hps_fake_shared_away(rig->fx.shared, 1, true);
    put_ten(rig, 200);
    put(rig, 3, -1);
    turns(rig, 6);
    assert_true(rig->stream->view.shared_behind);
    assert_true(value(rig, TIER_DISK, 5) == 205);
    hps_fake_shared_away(rig->fx.shared, 1, false);
    assert_true(value(rig, TIER_SHARED, 5) == -1);
    settle(rig);
    assert_true(value(rig, TIER_SHARED, 5) == 205);
    assert_true(value(rig, TIER_SHARED, 4) == 204);
    assert_true(value(rig, TIER_SHARED, 3) == -1);
    assert_int_equal(shard_at(rig, 1), 21);
    assert_false(rig->stream->view.shared_behind);
    assert_true(metric(rig, HPS_M_UPDATE_SHARED_REPLAYED) == 11);
    assert_true(metric(rig, HPS_M_UPDATE_SHARED_RESETS) == 0);
    assert_true(metric(rig, HPS_M_UPDATE_RECORDS) == 21); /* none twice */
}

static void test_repair_when_records_come_meanwhile_then_they_are_not_held_up(void **state)
{
    struct rig *rig = *state;
    for (unsigned i = 0; i < 10; i++) {
        put_ten(rig, (float)(100 * i));
    }
    open_stream(rig);
    turns(rig, 40);
    hps_fake_shared_move(rig->fx.shared, 1, items(), 0);
    hps_clock_advance(LOOK_US);
    turns(rig, 2);
    assert_non_null(rig->stream->share.consumer);
    put(rig, 5, 7);
    turns(rig, 2);
    assert_true(value(rig, TIER_DISK, 5) == 7);
    assert_true(value(rig, 0, 5) == 7);
    assert_non_null(rig->stream->share.consumer);
    turns(rig, 60);
    assert_null(rig->stream->share.consumer);
    assert_int_equal(shard_at(rig, 1), 101);
    assert_true(value(rig, TIER_SHARED, 5) == 7);
    assert_true(metric(rig, HPS_M_UPDATE_SHARED_RESETS) == 0);
}

/* What is applied again reads on into records that updates have not come to yet. */
static void test_repair_when_it_is_ahead_in_a_partition_then_no_record_is_left_out(void **state)
{
    struct rig *rig = *state;
    hps_fake_log_topic(rig->log, ITEMS, 2);
    put_ten(rig, 100);
    for (hps_key key = 10; key < 110; key++) {
        put_on(rig, ITEMS, 1, 10 + key % 10, (float)key);
    }
    open_stream(rig);
    turns(rig, 60);
    hps_fake_shared_move(rig->fx.shared, 1, items(), 8);
    hps_fake_shared_move(rig->fx.shared, 1, hps_log_partition(CLUSTER, ITEMS, 1), 0);
    hps_clock_advance(LOOK_US);
    turns(rig, 1);
    assert_non_null(rig->stream->share.consumer);
    put_ten(rig, 500);
    rig->stream->pace.retry_due_us = hps_clock_us() + LOOK_US; /* updates wait */
    turns(rig, 6);
    assert_true(value(rig, TIER_DISK, 5) == 105);
    assert_non_null(rig->stream->share.consumer);
    hps_clock_advance(LOOK_US);
    turns(rig, 60);
    assert_null(rig->stream->share.consumer);
    assert_int_equal(shard_at(rig, 1), 20);
    assert_ten(rig, 500);
    assert_true(metric(rig, HPS_M_UPDATE_SHARED_RESETS) == 0);
}

/* Shard 0 has fallen back, or does not say where it is. It catches up by a replay, or is emptied.
 */
static void test_repair_when_a_shard_falls_back_then_replayed_or_emptied(void **state)
{
    static const struct {
        int64_t at;  /* where the shard is; -1: its position is lost */
        int64_t low; /* of the log */
        bool compacted;
        bool emptied;
    } cases[] = {{.at = 4},
                 {.at = -1, .emptied = true},
                 {.at = 4, .low = 6, .emptied = true},
                 {.at = 4, .compacted = true, .emptied = true}};
    (void)state;
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rig *rig = rig_new(false);
        if (cases[i].compacted) {
            hps_fake_log_topic_compacted(rig->log, ITEMS, HPS_COMPACTION_YES, 1000000);
            rig->options.start = HPS_UPDATE_START_FILES;
            rig->fx.version->loaded_unix_ms = hps_clock_wall_ms();
        }
        begin_ten(rig);
        if (cases[i].at < 0) {
            hps_fake_shared_lose(rig->fx.shared, 0);
        } else {
            hps_fake_shared_move(rig->fx.shared, 0, items(), cases[i].at);
        }
        assert_true(value(rig, TIER_SHARED, 6) == -1);
        hps_fake_log_trim(rig->log, ITEMS, 0, cases[i].low);
        settle(rig);
        assert_int_equal(shard_at(rig, 0), 10);
        assert_true(value(rig, TIER_SHARED, 2) == (cases[i].emptied ? -1 : 102));
        assert_true(value(rig, TIER_SHARED, 3) == 103); /* of the other shard */
        assert_true(metric(rig, HPS_M_UPDATE_SHARED_RESETS) == cases[i].emptied);
        assert_int_equal(metric(rig, HPS_M_UPDATE_SHARED_REPLAYED) == 0, cases[i].emptied);
        put(rig, 2, 7);
        turns(rig, 3);
        assert_true(value(rig, TIER_SHARED, 2) == 7);
        rig_close(rig);
    }
}

static void test_repair_when_the_log_is_away_then_waits_for_it(void **state)
{
    struct rig *rig = *state;
    begin_ten(rig);
    hps_fake_shared_move(rig->fx.shared, 0, items(), 4);
    hps_fake_log_set(rig->log, HPS_FAKE_AWAY, HPS_UNAVAILABLE);
    settle(rig);
    assert_int_equal(shard_at(rig, 0), 4);
    assert_true(metric(rig, HPS_M_UPDATE_SHARED_RESETS) == 0);
    hps_fake_log_set(rig->log, HPS_FAKE_AWAY, HPS_OK);
    settle(rig);
    assert_ten(rig, 100);
}

/* ---- apart ----------------------------------------------------------------------------------- */

static void test_seek_when_forward_then_the_tier_is_left_until_it_goes_back(void **state)
{
    struct rig *rig = *state;
    begin_ten(rig);
    command(rig, HPS_UPDATE_PAUSE);
    put_ten(rig, 200);
    assert_int_equal(seek(rig, 15), HPS_OK);
    command(rig, HPS_UPDATE_RESUME);
    turns(rig, 6);
    assert_true(value(rig, TIER_DISK, 9) == 209);
    assert_true(value(rig, TIER_DISK, 1) == 101);
    assert_int_equal(shard_at(rig, 0), 10); /* for others to bring on */
    assert_true(hps_fake_shared_left(rig->fx.shared));
    assert_true(rig->stream->view.shared_apart);
    restart(rig);
    settle(rig);
    assert_true(hps_fake_shared_left(rig->fx.shared));
    assert_int_equal(shard_at(rig, 0), 10);
    assert_int_equal(seek(rig, 10), HPS_OK);
    settle(rig);
    assert_false(hps_fake_shared_left(rig->fx.shared));
    assert_false(rig->stream->view.shared_apart);
    assert_ten(rig, 200);
}

/* Another daemon began at another end. */
static void test_start_when_at_the_end_then_the_tier_is_left_until_a_seek_to_the_begin(void **state)
{
    struct rig *rig = *state;
    rig->options.start = HPS_UPDATE_START_LATEST;
    begin_ten(rig);
    put(rig, 3, 7);
    turns(rig, 6);
    assert_true(value(rig, TIER_DISK, 3) == 7);
    assert_true(hps_fake_shared_left(rig->fx.shared));
    assert_int_equal(seek(rig, 0), HPS_OK);
    settle(rig);
    assert_false(hps_fake_shared_left(rig->fx.shared));
    assert_int_equal(shard_at(rig, 0), 11);
    assert_true(value(rig, TIER_SHARED, 4) == 104); /* from the begin, not from where it was */
}

/* What retention took another daemon, with the same files, may have applied. */
static void test_start_when_the_log_is_cut_before_it_then_the_tier_is_left(void **state)
{
    static const struct {
        enum hps_update_start start;
        int64_t kept_ms;
        int64_t low;
        bool left;
        int64_t delete_retention_ms; /* 0: it is not compacted */
    } cases[] = {
        {HPS_UPDATE_START_EARLIEST, 1 << 30, 0, false, 0},
        {HPS_UPDATE_START_EARLIEST, 1 << 30, 4, true, 0},
        {HPS_UPDATE_START_LATEST, 1 << 30, 10, true, 0},
        {HPS_UPDATE_START_FILES, 0, 0, false, 0},
        {HPS_UPDATE_START_FILES, 0, 4, true, 0}, /* nobody knows */
        {HPS_UPDATE_START_FILES, 5000, 4, true, 0},
        {HPS_UPDATE_START_FILES, 20000, 4, false, 0}, /* what is gone is older than the files */
        {HPS_UPDATE_START_EARLIEST, 0, 0, true, 20000},
        {HPS_UPDATE_START_FILES, 0, 0, true, 5000}, /* and deletes may be */
        {HPS_UPDATE_START_FILES, 0, 0, false, 20000},
    };
    (void)state;
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rig *rig = rig_new(false);
        put_ten(rig, 100);
        hps_fake_log_topic_set(rig->log, ITEMS, HPS_FAKE_KEPT_MS, cases[i].kept_ms);
        hps_fake_log_trim(rig->log, ITEMS, 0, cases[i].low);
        if (cases[i].delete_retention_ms > 0) {
            hps_fake_log_topic_compacted(rig->log, ITEMS, HPS_COMPACTION_YES,
                                         cases[i].delete_retention_ms);
        }
        rig->options.start = cases[i].start;
        rig->fx.version->loaded_unix_ms = hps_clock_wall_ms() - 10000;
        open_stream(rig);
        settle(rig);
        assert_int_equal(hps_fake_shared_left(rig->fx.shared), cases[i].left);
        restart(rig); /* and stays so */
        assert_int_equal(hps_fake_shared_left(rig->fx.shared), cases[i].left);
        rig_close(rig);
    }
}

/* Of a topic of that name which is no more, and whose records the new one does not have. */
static void test_start_when_the_tier_is_beyond_the_log_then_it_is_left(void **state)
{
    (void)state;
    for (int64_t more = 0; more < 2; more++) {
        struct rig *rig = rig_new(false);
        put_ten(rig, 100);
        hps_fake_shared_move(rig->fx.shared, 0, items(), 10 + more);
        hps_fake_shared_move(rig->fx.shared, 1, items(), 10 + more);
        open_stream(rig);
        settle(rig);
        assert_int_equal(hps_fake_shared_left(rig->fx.shared), more);
        rig_close(rig);
    }
}

static void test_accept_gap_when_records_are_lost_then_the_tier_is_left_for_good(void **state)
{
    struct rig *rig = *state;
    begin_ten(rig);
    close_stream(rig);
    put_ten(rig, 200);
    hps_fake_log_trim(rig->log, ITEMS, 0, 14);
    begin(rig, 0);
    assert_int_equal(update_partition_state(rig->stream->partitions[0].phase), HPS_PARTITION_GAP);
    assert_int_equal(command(rig, HPS_UPDATE_ACCEPT_GAP), HPS_OK);
    settle(rig);
    assert_true(value(rig, TIER_DISK, 9) == 209);
    assert_true(hps_fake_shared_left(rig->fx.shared));
    assert_int_equal(seek(rig, 14), HPS_OK);
    settle(rig);
    assert_true(hps_fake_shared_left(rig->fx.shared));
    assert_int_equal(shard_at(rig, 0), 10);
}

static void test_frozen_when_records_are_passed_over_then_the_tier_is_left(void **state)
{
    struct rig *rig = *state;
    begin_ten(rig);
    freeze(rig, 1);
    turns(rig, 1);
    assert_false(hps_fake_shared_left(rig->fx.shared)); /* it still is what the log makes */
    put_ten(rig, 200);
    turns(rig, 6);
    assert_true(hps_fake_shared_left(rig->fx.shared));
    assert_int_equal(shard_at(rig, 0), 10);
    assert_int_equal(seek(rig, 10), HPS_OK);
    settle(rig);
    assert_ten(rig, 200);
}

/* ---- the only copy --------------------------------------------------------------------------- */

static void test_alone_when_others_were_first_then_begins_where_they_are(void **state)
{
    struct rig *rig = *state;
    begin_ten(rig);
    assert_ten(rig, 100);
    hps_fake_shared_move(rig->fx.shared, 0, items(), 8); /* as the lowest shard */
    restart(rig);
    settle(rig);
    assert_int_equal(shard_at(rig, 0), 10);
    assert_ten(rig, 100);
    assert_true(metric(rig, HPS_M_UPDATE_RECORDS) == 12);
}

static void test_alone_when_it_would_begin_later_then_begins_where_others_are(void **state)
{
    struct rig *rig = *state;
    rig->options.start = HPS_UPDATE_START_LATEST;
    begin(rig, 0);
    put_ten(rig, 100);
    turns(rig, 6);
    close_stream(rig);
    put_ten(rig, 200);
    restart(rig);
    settle(rig);
    assert_int_equal(shard_at(rig, 0), 20);
    assert_ten(rig, 200);
    assert_int_equal(rig->stream->partitions[0].applied.start, -1); /* for shards made anew */
}

static void test_alone_when_the_log_is_shorter_then_it_is_a_gap(void **state)
{
    struct rig *rig = *state;
    begin_ten(rig);
    close_stream(rig);
    put_ten(rig, 200);
    hps_fake_log_trim(rig->log, ITEMS, 0, 14);
    restart(rig);
    settle(rig);
    assert_int_equal(update_partition_state(rig->stream->partitions[0].phase), HPS_PARTITION_GAP);
    assert_int_equal(command(rig, HPS_UPDATE_ACCEPT_GAP), HPS_OK);
    settle(rig);
    assert_int_equal(shard_at(rig, 0), 20);
    assert_true(value(rig, TIER_SHARED, 1) == 101);
    assert_true(value(rig, TIER_SHARED, 9) == 209);
}

static void test_alone_when_it_is_away_at_the_start_then_waits(void **state)
{
    struct rig *rig = *state;
    put_ten(rig, 100);
    hps_fake_shared_away(rig->fx.shared, 1, true);
    open_stream(rig);
    turns(rig, 4);
    assert_int_equal(update_partition_state(rig->stream->partitions[0].phase),
                     HPS_PARTITION_STARTING);
    hps_fake_shared_away(rig->fx.shared, 1, false);
    settle(rig);
    assert_ten(rig, 100);
}

static void test_alone_when_a_shard_does_not_answer_then_the_batch_waits(void **state)
{
    struct rig *rig = *state;
    begin_ten(rig);
    hps_fake_shared_away(rig->fx.shared, 1, true);
    put_ten(rig, 200);
    settle(rig);
    assert_int_equal(rig->stream->partitions[0].applied.next, 10);
    assert_true(rig->stream->view.held[0] != '\0');
    hps_fake_shared_away(rig->fx.shared, 1, false);
    settle(rig);
    assert_ten(rig, 200);
    assert_string_equal(rig->stream->view.held, "");
}

/* A shard that does not say where it is takes no batch; a seek that it does not take either leaves
 * the partition where the others are. */
static void test_alone_when_a_seek_is_not_stored_then_begins_again_where_others_are(void **state)
{
    struct rig *rig = *state;
    rig->options.start = HPS_UPDATE_START_LATEST;
    put_ten(rig, 100);
    hps_fake_shared_move(rig->fx.shared, 0, items(), 4);
    open_stream(rig);
    turns(rig, 4);
    assert_true(rig->stream->view.held[0] != '\0');
    assert_int_not_equal(seek(rig, 10), HPS_OK);
    settle(rig);
    assert_true(rig->stream->view.held[0] != '\0');
    hps_fake_shared_move(rig->fx.shared, 1, items(), 4);
    settle(rig);
    assert_string_equal(rig->stream->view.held, "");
    assert_int_equal(shard_at(rig, 0), 10);
    assert_true(value(rig, TIER_SHARED, 9) == 109);
}

/* Then a shard is ahead of the version: it would leave out records that the host map applies. */
static void test_alone_when_a_seek_reaches_one_shard_then_it_is_completed(void **state)
{
    struct rig *rig = *state;
    begin_ten(rig);
    command(rig, HPS_UPDATE_PAUSE);
    put_ten(rig, 200);
    hps_fake_shared_away(rig->fx.shared, 1, true);
    assert_int_equal(seek(rig, 15), HPS_UNAVAILABLE);
    assert_int_equal(shard_at(rig, 0), 15);
    hps_fake_shared_away(rig->fx.shared, 1, false);
    settle(rig);
    assert_int_equal(shard_at(rig, 1), 15);
    command(rig, HPS_UPDATE_RESUME);
    settle(rig);
    for (hps_key key = 0; key < 10; key++) {
        assert_true(value(rig, TIER_SHARED, key) == (float)key + (key < 5 ? 100 : 200));
        assert_true(value(rig, 0, key) == value(rig, TIER_SHARED, key));
    }
}

static void test_alone_when_acknowledged_writes_are_lost_then_the_log_brings_them_back(void **state)
{
    struct rig *rig = *state;
    begin_ten(rig);
    hps_fake_shared_move(rig->fx.shared, 1, items(), 3);
    put(rig, 3, 7);
    settle(rig);
    assert_int_equal(shard_at(rig, 1), 11);
    assert_true(value(rig, TIER_SHARED, 3) == 7);
    assert_true(value(rig, TIER_SHARED, 5) == 105);
}

static void test_alone_when_the_log_does_not_have_what_was_lost_then_told_until_it_is_back(
    void **state)
{
    struct rig *rig = *state;
    put_ten(rig, 100);
    open_stream(rig);
    settle(rig);
    assert_false(atomic_load(&rig->stream->version->shared_lost));
    hps_fake_shared_move(rig->fx.shared, 0, items(), 4);
    hps_fake_log_trim(rig->log, ITEMS, 0, 6);
    settle(rig);
    assert_true(atomic_load(&rig->stream->version->shared_lost));
    hps_fake_shared_move(rig->fx.shared, 0, items(), 10); /* somebody has loaded it again */
    settle(rig);
    assert_false(atomic_load(&rig->stream->version->shared_lost));
}

static void test_alone_when_frozen_then_records_are_left_to_the_others(void **state)
{
    struct rig *rig = *state;
    hps_fake_log_topic(rig->log, ITEMS, 2);
    begin_ten(rig);
    freeze(rig, 1);
    turns(rig, 1);
    put_ten(rig, 200);
    put_on(rig, ITEMS, 1, 20, 5);
    settle(rig);
    assert_int_equal(shard_at(rig, 0), 10); /* nobody who goes on finds that it has them */
    assert_int_equal(update_partition_state(rig->stream->partitions[0].phase),
                     HPS_PARTITION_PAUSED);
    assert_int_equal(command_on(rig, "", 0, HPS_UPDATE_SEEK, HPS_UPDATE_SEEK_OFFSET, 10), HPS_OK);
    settle(rig);
    assert_ten(rig, 200);
    assert_true(value(rig, TIER_SHARED, 20) == 5); /* of the other partition */
}

static void test_alone_when_told_to_go_back_then_precondition(void **state)
{
    struct rig *rig = *state;
    begin_ten(rig);
    assert_int_equal(seek(rig, 4), HPS_PRECONDITION);
    command(rig, HPS_UPDATE_PAUSE);
    put_ten(rig, 200);
    assert_int_equal(seek(rig, 15), HPS_OK);
    command(rig, HPS_UPDATE_RESUME);
    settle(rig);
    assert_int_equal(shard_at(rig, 0), 20);
    assert_true(value(rig, TIER_SHARED, 1) == 101);
    assert_true(value(rig, TIER_SHARED, 9) == 209);
}

#define TEST(name)       cmocka_unit_test_setup_teardown(name, setup, teardown)
#define TEST_ALONE(name) cmocka_unit_test_setup_teardown(name, setup_alone, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_stream_when_records_come_then_the_shared_tier_is_where_the_version_is),
        TEST(test_stream_when_the_log_does_not_say_who_it_is_then_it_is_the_same_partition),
        TEST(test_place_when_restarted_then_older_rows_are_not_read),
        TEST(test_place_when_nothing_was_ever_applied_then_shards_that_do_not_say_are_read),
        TEST(test_repair_when_a_shard_was_away_then_it_gets_what_it_missed),
        TEST(test_repair_when_records_come_meanwhile_then_they_are_not_held_up),
        TEST(test_repair_when_it_is_ahead_in_a_partition_then_no_record_is_left_out),
        cmocka_unit_test(test_repair_when_a_shard_falls_back_then_replayed_or_emptied),
        TEST(test_repair_when_the_log_is_away_then_waits_for_it),
        TEST(test_seek_when_forward_then_the_tier_is_left_until_it_goes_back),
        TEST(test_start_when_at_the_end_then_the_tier_is_left_until_a_seek_to_the_begin),
        cmocka_unit_test(test_start_when_the_log_is_cut_before_it_then_the_tier_is_left),
        cmocka_unit_test(test_start_when_the_tier_is_beyond_the_log_then_it_is_left),
        TEST(test_accept_gap_when_records_are_lost_then_the_tier_is_left_for_good),
        TEST(test_frozen_when_records_are_passed_over_then_the_tier_is_left),
        TEST_ALONE(test_alone_when_others_were_first_then_begins_where_they_are),
        TEST_ALONE(test_alone_when_it_would_begin_later_then_begins_where_others_are),
        TEST_ALONE(test_alone_when_the_log_is_shorter_then_it_is_a_gap),
        TEST_ALONE(test_alone_when_it_is_away_at_the_start_then_waits),
        TEST_ALONE(test_alone_when_a_shard_does_not_answer_then_the_batch_waits),
        TEST_ALONE(test_alone_when_a_seek_is_not_stored_then_begins_again_where_others_are),
        TEST_ALONE(test_alone_when_a_seek_reaches_one_shard_then_it_is_completed),
        TEST_ALONE(test_alone_when_acknowledged_writes_are_lost_then_the_log_brings_them_back),
        TEST_ALONE(test_alone_when_the_log_does_not_have_what_was_lost_then_told_until_it_is_back),
        TEST_ALONE(test_alone_when_frozen_then_records_are_left_to_the_others),
        TEST_ALONE(test_alone_when_told_to_go_back_then_precondition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

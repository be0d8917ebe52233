/* SPDX-License-Identifier: Apache-2.0
 *
 * Each record of the log is applied once, by the first daemon that sends it, and lost rows are
 * detected.
 */
#define FX_ODD_ROWS

#include "backends/store_bulk.h"
#include "tests/lib/redis_fixture.h"

enum { N = 300 };

static struct hps_space *one;
static struct hps_space *two;

/* Two daemons at offset 10; rows of all keys. */
static void two_at_10(void)
{
    one = fx_daemon("one");
    two = fx_daemon("two");
    fx_at(one, 10);
    fx_at(two, 10);
    assert_int_equal(fx_insert(one, N, 9).n_inserted, N);
    assert_int_equal(fx_found(two, N, 9), N);
}

/* Reset until the state of all shards is known. Another daemon's recent change, or two replies
 * that cross, need another request. */
static void reset(struct hps_space *space, struct hps_log_report *out_report)
{
    uint64_t give_up_us = hps_clock_us() + FX_WAIT_US;
    uint32_t n_applied = 0;
    do {
        assert_true(hps_clock_us() < give_up_us);
        assert_int_equal(space->store->ops->log->reset(space, &fx_call, out_report), HPS_OK);
        n_applied += out_report->n_applied;
    } while (out_report->n_failed > 0);
    out_report->n_had -= n_applied - out_report->n_applied;
    out_report->n_applied = n_applied;
}

static void test_apply_when_two_daemons_apply_then_the_first_counts(void **state)
{
    (void)state;
    two_at_10();
    assert_int_equal(fx_apply(one, 10, 13, N).n_applied, FX_SHARDS);
    assert_int_equal(fx_found(one, N, 12), N);
    assert_int_equal(fx_apply(two, 10, 12, N).n_had, FX_SHARDS); /* its rows are older */
    assert_int_equal(fx_found(two, N, 12), N);
    assert_int_equal(fx_apply(two, 12, 15, N).n_applied, FX_SHARDS); /* overlaps applied records */
    assert_int_equal(fx_found(one, N, 14), N);
    assert_int_equal(fx_apply(one, 13, 15, N).n_had, FX_SHARDS);
    assert_int_equal(fx_found(one, N, 14), N);
}

static void test_apply_when_it_has_no_rows_then_all_shards_advance(void **state)
{
    (void)state;
    two_at_10();
    assert_int_equal(fx_apply(one, 10, 20, 0).n_applied, FX_SHARDS);
    assert_int_equal(fx_found(one, N, 9), N);
    fx_at(two, 20);
    assert_int_equal(fx_found(two, N, 9), N);
}

static void test_apply_when_records_are_skipped_then_gap_until_they_are_applied(void **state)
{
    (void)state;
    struct hps_log_position behind[4];
    uint32_t n_behind = 0;
    two_at_10();
    assert_int_equal(fx_apply(two, 10, 12, N).n_applied, FX_SHARDS);
    fx_at(one, 20); /* it applied more to its own store while Redis was down */
    assert_int_equal(fx_apply(one, 20, 21, N).n_gap, FX_SHARDS);
    assert_int_equal(fx_found(one, N, 11), 0);
    assert_int_equal(fx_found(two, N, 11), N); /* the shards did not change */
    assert_int_equal(one->store->ops->log->behind(one, &fx_call, behind, 4, &n_behind), HPS_OK);
    assert_int_equal(n_behind, 1);
    assert_int_equal(behind[0].partition, FX_PARTITION);
    assert_int_equal(behind[0].offset, 12);
    assert_int_equal(fx_apply(one, 12, 18, N).n_applied, FX_SHARDS);
    assert_int_equal(fx_found(one, N, 17), 0); /* the shards are still behind the version */
    assert_int_equal(fx_apply(one, 18, 21, N).n_applied, FX_SHARDS);
    assert_int_equal(fx_found(one, N, 20), N);
    assert_int_equal(one->store->ops->log->behind(one, &fx_call, behind, 4, &n_behind), HPS_OK);
    assert_int_equal(n_behind, 0);
}

static void test_apply_when_one_partition_is_applied_then_only_rows_of_the_other(void **state)
{
    (void)state;
    static uint8_t rows[2][2 * FX_ROW];
    hps_key keys[2][2] = {{1, 2}, {3, 4}};
    struct hps_write writes[2];
    struct hps_log_report report;
    const uint32_t from[2] = {0, 1};
    two_at_10();
    fx_write(&writes[0], keys[0], rows[0], 2, 50);
    fx_write(&writes[1], keys[1], rows[1], 2, 50);
    const struct hps_log_span spans[2] = {{FX_PARTITION, 0, 10, 12}, {5, 0, 0, 7}};
    const struct hps_log_batch batch = {writes, from, 2, spans, 2, false};
    assert_int_equal(fx_apply(two, 10, 13, N).n_applied, FX_SHARDS);
    assert_int_equal(one->store->ops->log->apply(one, &fx_call, &batch, &report), HPS_OK);
    assert_int_equal(report.n_applied, FX_SHARDS);
    uint8_t found[4][FX_ROW];
    hps_key asked[4] = {1, 2, 3, 4};
    uint32_t slots[4] = {0, 1, 2, 3};
    struct hps_batch get = {.keys = asked, .slots = slots, .rows = found[0], .n = 4};
    assert_int_equal(one->store->ops->get(one, &fx_call, &fx_tables[0], &get), HPS_OK);
    assert_int_equal(get.n, 0);
    for (uint32_t i = 0; i < 4; i++) {
        uint8_t row[FX_ROW];
        fx_fill(row, FX_ROW, i + 1, i < 2 ? 12 : 50);
        assert_memory_equal(found[i], row, FX_ROW);
    }
}

/* Records [first, next) of every step-th partition from `from` on. */
static struct hps_log_report apply_many(struct hps_space *space, uint32_t from, uint32_t step,
                                        int64_t first, int64_t next)
{
    enum { N_PARTITIONS = 40 };
    struct hps_log_span spans[N_PARTITIONS];
    struct hps_log_report report;
    uint32_t n = 0;
    for (uint32_t i = from; i < N_PARTITIONS; i += step) {
        spans[n++] = (struct hps_log_span){hps_mix64(i), 0, first, next};
    }
    const struct hps_log_batch batch = {.spans = spans, .n_spans = n};
    assert_int_equal(space->store->ops->log->apply(space, &fx_call, &batch, &report), HPS_OK);
    return report;
}

static void test_apply_when_many_partitions_move_then_each_by_itself(void **state)
{
    (void)state;
    two_at_10();
    assert_int_equal(apply_many(one, 0, 1, 0, 5).n_applied, FX_SHARDS); /* all partitions are new */
    assert_int_equal(apply_many(two, 0, 1, 0, 5).n_had, FX_SHARDS);
    assert_int_equal(apply_many(two, 1, 2, 5, 9).n_applied, FX_SHARDS);
    assert_int_equal(apply_many(one, 0, 8, 7, 8).n_gap, FX_SHARDS);
    fx_daemon_close(one);
    one = fx_daemon("one");
    fx_at(one, 10);
    assert_int_equal(apply_many(one, 0, 1, 0, 5).n_had, FX_SHARDS);
    assert_int_equal(apply_many(one, 0, 1, 5, 8).n_applied, FX_SHARDS);
    assert_int_equal(fx_found(one, N, 9), N);
    assert_int_equal(fx_insert(one, N + 1, 9).n_stale, N + 1); /* odd partitions are ahead */
    assert_int_equal(apply_many(one, 1, 20, 8, 9).n_had, FX_SHARDS);
    assert_int_equal(apply_many(one, 1, 2, 8, 9).n_had, FX_SHARDS);
    assert_int_equal(fx_insert(one, N + 1, 9).n_inserted, 1);
    assert_int_equal(fx_found(two, N, 9), N);
}

static void test_apply_when_a_start_is_not_known_then_gap(void **state)
{
    (void)state;
    struct hps_log_report report;
    two_at_10();
    const struct hps_log_span span = {5, -1, 3, 7};
    const struct hps_log_batch batch = {.spans = &span, .n_spans = 1};
    assert_int_equal(one->store->ops->log->apply(one, &fx_call, &batch, &report), HPS_OK);
    assert_int_equal(report.n_gap, FX_SHARDS);
    reset(one, &report);
    assert_int_equal(report.n_applied, FX_SHARDS);
    assert_int_equal(fx_insert(one, N, 9).n_inserted, N);
    assert_int_equal(fx_found(one, N, 9), N);
}

static void test_apply_when_versions_decide_then_rows_are_removed(void **state)
{
    (void)state;
    static uint8_t rows[N * FX_ROW];
    static hps_key keys[N];
    struct hps_write write;
    struct hps_log_report report;
    const uint32_t from = 0;
    const struct hps_log_span span = {FX_PARTITION, 0, 10, 11};
    two_at_10();
    for (uint32_t i = 0; i < N; i++) {
        keys[i] = i + N / 2;
    }
    fx_write(&write, keys, rows, N, 10);
    const struct hps_log_batch batch = {&write, &from, 1, &span, 1, true};
    assert_int_equal(one->store->ops->log->apply(one, &fx_call, &batch, &report), HPS_OK);
    assert_int_equal(report.n_applied, FX_SHARDS);
    assert_int_equal(fx_found(one, N, 9), N / 2);
}

/* An insertion has the position of its daemon: shards at older or newer positions refuse it. */
static void test_insert_when_the_daemon_is_behind_or_ahead_then_refused(void **state)
{
    (void)state;
    two_at_10();
    assert_int_equal(fx_apply(one, 10, 11, 0).n_applied, FX_SHARDS);
    assert_int_equal(fx_insert(two, 2 * N, 9).n_stale, 2 * N);
    assert_int_equal(fx_insert(one, 2 * N, 10).n_inserted, N);
    fx_at(one, 12);
    assert_int_equal(fx_insert(one, 3 * N, 11).n_stale, 3 * N);
}

/* The daemon's known state is older than another daemon's update. */
static void test_insert_when_another_daemon_has_just_applied_then_refused(void **state)
{
    (void)state;
    two_at_10();
    assert_int_equal(fx_insert(two, 1, 9).n_inserted, 0); /* row exists; all states known */
    assert_int_equal(fx_apply(one, 10, 11, N).n_applied, FX_SHARDS);
    assert_int_equal(fx_insert(two, 2 * N, 9).n_inserted, 0);
    assert_int_equal(fx_found(two, 2 * N, 10), N);
}

static void test_shards_when_lost_then_missing_until_reset_or_filled(void **state)
{
    (void)state;
    struct hps_log_report report;
    struct hps_log_position behind[4];
    uint32_t n_behind = 7;
    two_at_10();
    (void)hps_redis_rig_ask(fx_rig, 0, "FLUSHALL");
    assert_int_equal(fx_found(two, N, 9), 0);
    assert_int_equal(fx_apply(one, 10, 11, N).n_gap, FX_SHARDS);
    assert_int_equal(fx_found(one, N, 10), 0);
    assert_int_equal(one->store->ops->log->behind(one, &fx_call, behind, 4, &n_behind), HPS_RANGE);
    assert_int_equal(n_behind, 0);
    reset(one, &report);
    assert_int_equal(report.n_applied, FX_SHARDS);
    assert_int_equal(report.n_failed, 0);
    assert_int_equal(fx_apply(two, 10, 11, N).n_had, FX_SHARDS);
    assert_int_equal(fx_found(two, N, 10), 0);
    assert_int_equal(fx_apply(one, 11, 12, N).n_applied, FX_SHARDS);
    assert_int_equal(fx_found(one, N, 11), N);
    (void)hps_redis_rig_ask(fx_rig, 0, "FLUSHALL");
    assert_int_equal(fx_found(one, N, 11), 0);
    assert_int_equal(fx_insert(one, N, 11).n_inserted, N); /* creates the shards again */
    assert_int_equal(fx_found(one, N, 11), N);
    reset(one, &report);
    assert_int_equal(report.n_applied, 0);
    assert_int_equal(report.n_had, FX_SHARDS);
}

/* Copy all shards and restore them later, like a fail-over to a replica that missed the last
 * writes. */
static const char keep[] =
    "EVAL for\ti,k\tin\tipairs(redis.call('KEYS','hpsd*[0-9]}'))do\tredis.call('COPY',k,'kept'..k)"
    "end 0";
static const char restore[] =
    "EVAL for\ti,k\tin\tipairs(redis.call('KEYS','kept*'))do\tredis.call('COPY',k,k:sub(5),"
    "'REPLACE')end 0";

static void test_shards_when_an_older_state_is_restored_then_no_old_row_is_read(void **state)
{
    (void)state;
    struct hps_log_position behind[4];
    uint32_t n_behind = 0;
    two_at_10();
    (void)hps_redis_rig_ask(fx_rig, 0, "%s", keep);
    assert_int_equal(fx_apply(one, 10, 15, N).n_applied, FX_SHARDS);
    assert_int_equal(fx_apply(two, 10, 15, N).n_had, FX_SHARDS);
    (void)hps_redis_rig_ask(fx_rig, 0, "%s", restore);
    assert_int_equal(fx_found(one, N, 14), 0);
    assert_int_equal(fx_found(two, N, 14), 0);
    assert_int_equal(fx_insert(one, 2 * N, 14).n_inserted, 0);
    assert_int_equal(fx_apply(one, 15, 16, N).n_gap, FX_SHARDS);
    assert_int_equal(one->store->ops->log->behind(one, &fx_call, behind, 4, &n_behind), HPS_OK);
    assert_int_equal(behind[0].offset, 10);
    assert_int_equal(fx_apply(one, 10, 16, N).n_applied, FX_SHARDS);
    assert_int_equal(fx_found(one, N, 15), N);
    assert_int_equal(fx_found(two, N, 15), N);
}

/* The same, but another daemon writes to the restored shards before the next lookup, so their
 * digests are new. */
static void test_shards_when_another_daemon_writes_to_an_older_state_then_no_old_row_is_read(
    void **state)
{
    (void)state;
    two_at_10();
    (void)hps_redis_rig_ask(fx_rig, 0, "%s", keep);
    assert_int_equal(fx_apply(one, 10, 15, N).n_applied, FX_SHARDS);
    assert_int_equal(fx_found(one, N, 14), N);
    (void)hps_redis_rig_ask(fx_rig, 0, "%s", restore);
    assert_int_equal(fx_apply(two, 10, 12, N).n_applied, FX_SHARDS);
    assert_int_equal(fx_found(one, N, 11), 0);
    assert_int_equal(fx_found(two, N, 11), N);
}

static void test_apply_when_the_server_is_full_then_rows_are_removed_and_none_is_old(void **state)
{
    (void)state;
    two_at_10();
    (void)hps_redis_rig_ask(fx_rig, 0, "CONFIG SET maxmemory 1mb");
    assert_int_equal(fx_apply(one, 10, 11, N / 2).n_applied, FX_SHARDS);
    assert_int_equal(fx_apply(one, 11, 12, 0).n_applied, FX_SHARDS);
    assert_int_equal(fx_insert(one, 2 * N, 11).n_inserted, 0);
    (void)hps_redis_rig_ask(fx_rig, 0, "CONFIG SET maxmemory 0");
    fx_at(two, 12);
    assert_int_equal(fx_found(two, N, 9), N - N / 2);
    assert_int_equal(fx_apply(one, 12, 13, N).n_applied, FX_SHARDS);
    assert_int_equal(fx_found(one, N, 12), N);
}

static void test_calls_when_the_server_forgot_the_scripts_then_they_are_loaded_again(void **state)
{
    (void)state;
    two_at_10();
    (void)hps_redis_rig_ask(fx_rig, 0, "SCRIPT FLUSH");
    assert_int_equal(fx_apply(one, 10, 11, N).n_applied, FX_SHARDS);
    (void)hps_redis_rig_ask(fx_rig, 0, "SCRIPT FLUSH");
    assert_int_equal(fx_insert(one, 2 * N, 10).n_inserted, N);
}

/* Positions do not name a partition that had no records. */
static void test_positions_when_a_partition_has_no_records_then_its_start_decides(void **state)
{
    (void)state;
    struct hps_log_position positions[2] = {{FX_PARTITION, 10, -1}, {5, 40, -1}};
    two_at_10();
    assert_int_equal(two->store->ops->log->positions_set(two, positions, 2), HPS_OK);
    assert_int_equal(fx_found(two, N, 9), 0); /* the shards may be behind in partition 5 */
    positions[1].start = 40;
    assert_int_equal(two->store->ops->log->positions_set(two, positions, 2), HPS_OK);
    assert_int_equal(fx_found(two, N, 9), N);
    assert_int_equal(fx_insert(two, N + 1, 9).n_inserted, 1);
    positions[1].offset = 41;
    assert_int_equal(two->store->ops->log->positions_set(two, positions, 2), HPS_OK);
    assert_int_equal(fx_found(two, N, 9), 0);
}

/* Two daemons that reset to different positions do not undo each other. */
static void test_reset_when_daemons_differ_then_the_later_position_of_each_partition(void **state)
{
    (void)state;
    struct hps_log_report report;
    const struct hps_log_position ahead[2] = {{1, 30, -1}, {2, 5, -1}};
    const struct hps_log_position other[2] = {{1, 20, -1}, {2, 9, -1}};
    one = fx_daemon("one");
    two = fx_daemon("two");
    assert_int_equal(one->store->ops->log->positions_set(one, ahead, 2), HPS_OK);
    assert_int_equal(two->store->ops->log->positions_set(two, other, 2), HPS_OK);
    reset(one, &report);
    assert_int_equal(report.n_applied, FX_SHARDS);
    reset(two, &report);
    assert_int_equal(report.n_applied, FX_SHARDS);
    reset(one, &report);
    assert_int_equal(report.n_had, FX_SHARDS);
}

/* The only copy: lost shards are not created again, and a batch is applied only if all shards
 * took it. */
static void test_calls_when_redis_has_the_only_copy_then_no_row_is_discarded(void **state)
{
    (void)state;
    struct hps_redis_store_options options = fx_options("one");
    struct hps_store_load *load = NULL;
    struct hps_log_report report;
    hps_key key = 1;
    uint32_t slot = 0;
    uint8_t row[FX_ROW];
    options.authoritative = true;
    one = fx_daemon_with(&options);
    const struct hps_store_ops *ops = one->store->ops;
    struct hps_batch batch = {.keys = &key, .slots = &slot, .rows = row, .n = 1};
    assert_false(atomic_load(&one->incomplete));
    fx_at(one, 10);
    assert_int_equal(ops->get(one, &fx_call, &fx_tables[0], &batch), HPS_UNAVAILABLE);
    assert_int_equal(ops->bulk->begin(one, 1, 0, &load, &fx_error), HPS_OK);
    fx_fill(row, FX_ROW, key, 9);
    assert_int_equal(ops->bulk->add(load, &fx_tables[0], &key, row, 1, &fx_error), HPS_OK);
    assert_int_equal(ops->bulk->commit(load, &fx_error), HPS_OK);
    assert_int_equal(fx_found(one, 10, 9), 1);
    const struct hps_log_span span = {FX_PARTITION, 0, 10, 11};
    const struct hps_write write = {&fx_tables[0], &key, row, 1};
    const uint32_t from = 0;
    const struct hps_log_batch log = {&write, &from, 1, &span, 1, false};
    fx_fill(row, FX_ROW, key, 10);
    (void)hps_redis_rig_ask(fx_rig, 0, "CONFIG SET maxmemory 1mb");
    assert_int_equal(ops->log->apply(one, &fx_call, &log, &report), HPS_EXHAUSTED);
    assert_int_equal(fx_found(one, 10, 9), 1); /* unchanged: the version keeps its position */
    (void)hps_redis_rig_ask(fx_rig, 0, "CONFIG SET maxmemory 0");
    assert_int_equal(ops->log->apply(one, &fx_call, &log, &report), HPS_OK);
    assert_int_equal(fx_found(one, 10, 10), 1);
    (void)hps_redis_rig_ask(fx_rig, 0, "FLUSHALL");
    assert_int_equal(ops->get(one, &fx_call, &fx_tables[0], &batch), HPS_UNAVAILABLE);
    assert_int_equal(ops->put(one, &fx_call, &fx_tables[0], &key, row, 1), HPS_UNAVAILABLE);
    assert_int_equal(ops->log->reset(one, &fx_call, &report), HPS_PRECONDITION);
    assert_int_equal(ops->log->apply(one, &fx_call, &log, &report), HPS_DATA_LOSS);
}

static void test_leave_when_the_version_left_the_log_then_no_row_is_read_or_inserted(void **state)
{
    (void)state;
    one = fx_daemon("one");
    two = fx_daemon("two");
    fx_at(one, 10);
    fx_at(two, 10);
    assert_int_equal(fx_insert(one, 10, 9).n_inserted, 10);
    one->store->ops->log->leave(one);
    assert_int_equal(fx_found(one, 10, 9), 0);
    struct hps_insert_report report = fx_insert(one, 20, 9);
    assert_int_equal(report.n_inserted, 0);
    assert_int_equal(report.n_stale, 20);
    (void)hps_redis_rig_ask(fx_rig, 0, "FLUSHALL");
    assert_int_equal(fx_insert(one, 20, 9).n_inserted, 0); /* and it creates no shard */
    assert_int_equal(fx_insert(two, 10, 9).n_inserted, 10);
    fx_at(one, 10);
    assert_int_equal(fx_found(one, 10, 9), 10);
    assert_int_equal(fx_insert(one, 20, 9).n_inserted, 10);
}

static void test_positions_get_when_shards_differ_then_the_lowest(void **state)
{
    one = fx_daemon("one");
    const struct hps_store_ops *ops = one->store->ops;
    struct hps_log_position at[2] = {{.partition = FX_PARTITION, .start = 3},
                                     {.partition = FX_PARTITION + 1, .start = 4}};
    struct hps_store_load *load = NULL;
    (void)state;
    assert_int_equal(ops->log->positions_get(one, &fx_call, at, 2), HPS_DATA_LOSS);
    assert_int_equal(ops->bulk->begin(one, 0, 0, &load, &fx_error), HPS_OK);
    assert_int_equal(ops->bulk->commit(load, &fx_error), HPS_OK);
    assert_int_equal(ops->log->positions_get(one, &fx_call, at, 2), HPS_OK);
    assert_int_equal(at[0].offset, 3); /* the shards name no position */
    fx_apply(one, 0, 12, 0);
    assert_int_equal(ops->log->positions_get(one, &fx_call, at, 2), HPS_OK);
    assert_int_equal(at[0].offset, 12);
    assert_int_equal(at[1].offset, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FX_TEST(test_apply_when_two_daemons_apply_then_the_first_counts),
        FX_TEST(test_apply_when_it_has_no_rows_then_all_shards_advance),
        FX_TEST(test_apply_when_records_are_skipped_then_gap_until_they_are_applied),
        FX_TEST(test_apply_when_one_partition_is_applied_then_only_rows_of_the_other),
        FX_TEST(test_apply_when_many_partitions_move_then_each_by_itself),
        FX_TEST(test_apply_when_a_start_is_not_known_then_gap),
        FX_TEST(test_apply_when_versions_decide_then_rows_are_removed),
        FX_TEST(test_insert_when_the_daemon_is_behind_or_ahead_then_refused),
        FX_TEST(test_insert_when_another_daemon_has_just_applied_then_refused),
        FX_TEST(test_shards_when_lost_then_missing_until_reset_or_filled),
        FX_TEST(test_shards_when_an_older_state_is_restored_then_no_old_row_is_read),
        FX_TEST(test_shards_when_another_daemon_writes_to_an_older_state_then_no_old_row_is_read),
        FX_TEST(test_apply_when_the_server_is_full_then_rows_are_removed_and_none_is_old),
        FX_TEST(test_calls_when_the_server_forgot_the_scripts_then_they_are_loaded_again),
        FX_TEST(test_positions_when_a_partition_has_no_records_then_its_start_decides),
        FX_TEST(test_reset_when_daemons_differ_then_the_later_position_of_each_partition),
        FX_TEST(test_leave_when_the_version_left_the_log_then_no_row_is_read_or_inserted),
        FX_TEST(test_positions_get_when_shards_differ_then_the_lowest),
        FX_TEST(test_calls_when_redis_has_the_only_copy_then_no_row_is_discarded),
    };
    return cmocka_run_group_tests(tests, fx_start, fx_stop);
}

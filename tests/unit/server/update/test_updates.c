/* SPDX-License-Identifier: Apache-2.0
 *
 * A stream of updates, turn by turn on the test's own thread, over a log and stores that do as they
 * are told; and the updater with its threads.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/lib/stream_rig.h"

#define DEAD_LETTERS "letters"

/* ---- the rig --------------------------------------------------------------------------------- */

static const struct update_partition *partition_of(struct rig *rig, const char *topic,
                                                   int32_t number)
{
    for (uint32_t i = 0; i < rig->stream->n_partitions; i++) {
        const struct update_partition *partition = &rig->stream->partitions[i];
        if (partition->number == number && strcmp(partition->topic, topic) == 0) {
            return partition;
        }
    }
    return NULL;
}

static void half_seconds(struct rig *rig, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        turns(rig, 2);
        hps_clock_advance(500 * 1000);
    }
}

static enum hps_partition_state state_of(struct rig *rig)
{
    return update_partition_state(partition_of(rig, ITEMS, 0)->phase);
}

static unsigned n_of(const char *text, const char *what)
{
    unsigned n = 0;
    for (const char *at = strstr(text, what); at != NULL; at = strstr(at + 1, what)) {
        n++;
    }
    return n;
}

/* Its first step. True: it goes on. */
static bool refresh(struct rig *rig)
{
    hps_clock_advance(1);
    rig->stream->refresh.asked_us = hps_clock_us();
    return update_refresh_turn(rig->stream);
}

static double metric(struct rig *rig, enum hps_metric_id id, const char *label)
{
    return hps_metric_value(hps_server_metric(rig->metrics, id, "m", label, NULL, NULL));
}

/* ---- applying -------------------------------------------------------------------------------- */

static void test_stream_when_records_come_then_every_tier_has_them(void **state)
{
    struct rig *rig = *state;
    hps_fake_log_topic(rig->log, USERS, 2);
    put(rig, 1, 10);
    put(rig, 2, 20);
    put(rig, 1, 11);
    put(rig, 2, -1);
    put_on(rig, USERS, 1, 9, 90);
    begin(rig, 0);
    assert_true(item(rig, 1) == 11);
    assert_true(item(rig, 2) == -1);
    assert_true(fixture_value(&rig->fx, FIXTURE_USERS, 9) == 90);
    assert_int_equal(partition_of(rig, ITEMS, 0)->applied.next, 4);
    assert_true(metric(rig, HPS_M_UPDATE_RECORDS, NULL) == 5);
}

/* It grows, and says nothing by its size: see LookupResponse. */
static void test_sequence_when_only_positions_are_stored_then_it_counts_those_batches(void **state)
{
    struct rig *rig = *state;
    open_stream(rig);
    uint64_t before = hps_update_sequence(rig->fx.version);
    turns(rig, 3); /* where the partition begins is stored */
    assert_int_equal(hps_update_sequence(rig->fx.version), before + 1);
    assert_int_equal(rig->stream->counts.n_keys, 0);
    assert_int_equal(command(rig, HPS_UPDATE_PAUSE), HPS_OK);
    assert_int_equal(hps_update_sequence(rig->fx.version), before + 2);
}

static void test_stream_when_restarted_then_goes_on_where_it_was(void **state)
{
    struct rig *rig = *state;
    begin(rig, 1);
    put(rig, 1, 11); /* not read before the restart */
    uint64_t before = hps_update_sequence(rig->fx.version);
    rig_restart(rig, 0);
    assert_int_equal(hps_update_sequence(rig->fx.version), before);
    assert_true(fixture_tier_value(&rig->fx, 1, FIXTURE_ITEMS, 1) == 10);
    put(rig, 3, 30);
    turns(rig, 3);
    assert_int_equal(state_of(rig), HPS_PARTITION_RUNNING);
    assert_true(item(rig, 1) == 11);
    assert_true(item(rig, 3) == 30);
    assert_true(metric(rig, HPS_M_UPDATE_RECORDS, NULL) == 3); /* none twice */
}

/* Markers of transactions, and what was aborted. */
static void test_stream_when_the_log_ends_without_records_then_it_is_at_the_end(void **state)
{
    struct rig *rig = *state;
    put(rig, 1, 10);
    hps_fake_log_append_hole(rig->log, ITEMS, 0);
    hps_fake_log_append_hole(rig->log, ITEMS, 0);
    begin(rig, 0);
    assert_int_equal(partition_of(rig, ITEMS, 0)->applied.next, 3);
    assert_int_equal(rig->stream->view.partitions[0].high, 3);
    assert_int_equal(rig->stream->view.partitions[0].next, 3); /* wait-for sees this */
    assert_int_equal(rig->stream->view.partitions[0].lag, 0);
    uint64_t sequence = hps_update_sequence(rig->fx.version);
    turns(rig, 3); /* once */
    assert_int_equal(hps_update_sequence(rig->fx.version), sequence);
    for (int trimmed = 0; trimmed < 2; trimmed++) {
        hps_fake_log_trim(rig->log, ITEMS, 0, trimmed ? 4 : 0);
        rig_restart(rig, 3);
        put(rig, 1, (float)trimmed);
        turns(rig, 3);
        assert_int_equal(state_of(rig), HPS_PARTITION_RUNNING); /* no record is missing */
        assert_true(item(rig, 1) == (float)trimmed);
        assert_int_equal(partition_of(rig, ITEMS, 0)->applied.next, 4 + trimmed);
    }
}

/* Updates go on meanwhile, and who waits sees by as-of that one has not answered. */
static void test_refresh_when_a_leader_does_not_answer_then_it_is_waited_for_a_while(void **state)
{
    struct rig *rig = *state;
    hps_fake_log_topic(rig->log, USERS, 1);
    begin(rig, 1);
    assert_false(refresh(rig));
    assert_int_equal(rig->stream->refresh.n, 2);
    hps_fake_log_leader(rig->log, ITEMS, 0, HPS_UNAVAILABLE);
    put_on(rig, USERS, 0, 1, 20);
    assert_true(refresh(rig));
    turns(rig, 1);
    assert_int_equal(partition_of(rig, USERS, 0)->applied.next, 1); /* the others go on */
    assert_true(rig->stream->refresh.begun_us > 0);
    hps_clock_advance(2 * 1000 * 1000);
    turns(rig, 1);
    assert_int_equal(rig->stream->refresh.error.status, HPS_OK);
    assert_int_equal(rig->stream->refresh.n, 1);
    hps_fake_log_leader(rig->log, ITEMS, 0, HPS_OK);
    hps_fake_log_topic_set(rig->log, ITEMS, HPS_FAKE_DELETED, true); /* which has no end */
    half_seconds(rig, 8);
    assert_false(refresh(rig));
}

/* What a poll knows of the end may be older than what the log was asked for. */
static void test_refresh_when_polls_are_behind_then_the_end_stays_what_it_is(void **state)
{
    struct rig *rig = *state;
    begin(rig, 0);
    put(rig, 1, 10);
    hps_fake_log_topic_set(rig->log, ITEMS, HPS_FAKE_SLOW, true);
    put(rig, 1, 11);
    assert_false(refresh(rig));
    assert_int_equal(partition_of(rig, ITEMS, 0)->high, 2);
    turns(rig, 3);
    assert_true(item(rig, 1) == 10);
    assert_int_equal(partition_of(rig, ITEMS, 0)->high, 2);
    hps_fake_log_topic_set(rig->log, ITEMS, HPS_FAKE_SLOW, false);
    turns(rig, 3);
    assert_true(item(rig, 1) == 11);
}

static void put_bad(struct rig *rig)
{
    const struct hps_fake_record bad = {.value = "nothing known", .value_size = 13};
    hps_fake_log_append(rig->log, ITEMS, 0, &bad);
}

static void want_dead_letters(struct rig *rig)
{
    rig->options.dead_letter_topic = DEAD_LETTERS;
    hps_fake_log_topic(rig->log, DEAD_LETTERS, 1);
}

static void test_stream_when_a_record_is_bad_then_the_others_are_applied(void **state)
{
    struct rig *rig = *state;
    want_dead_letters(rig);
    put(rig, 1, 10);
    put_bad(rig);
    put(rig, 2, 20);
    begin(rig, 0);
    assert_true(item(rig, 1) == 10);
    assert_true(item(rig, 2) == 20);
    assert_int_equal(rig->stream->counts.n_rejected, 1);
    assert_int_equal(hps_fake_log_high(rig->log, DEAD_LETTERS, 0), 1);
}

static void test_stream_when_all_records_are_bad_then_it_advances(void **state)
{
    struct rig *rig = *state;
    put_bad(rig);
    put_bad(rig);
    begin(rig, 0);
    assert_int_equal(partition_of(rig, ITEMS, 0)->applied.next, 2);
    assert_true(metric(rig, HPS_M_UPDATE_RECORDS_REJECTED, "magic") == 2);
    rig_restart(rig, 3);
    assert_int_equal(partition_of(rig, ITEMS, 0)->applied.next, 2);
    assert_true(metric(rig, HPS_M_UPDATE_RECORDS_REJECTED, "magic") == 2);
}

/* A batch of n bad records and a good one. Returns for how long the good one waited. */
static uint64_t bad_and_good(struct rig *rig, unsigned n, hps_key good)
{
    uint64_t from_us = hps_clock_us();
    for (unsigned i = 0; i < n; i++) {
        put_bad(rig);
    }
    put(rig, good, 10);
    turns(rig, 3);
    assert_true(item(rig, good) == 10);
    return (hps_clock_us() - from_us) / 1000000;
}

static void test_letters_when_the_topic_does_not_take_them_then_good_rows_wait_once(void **state)
{
    static const struct {
        hps_status status; /* HPS_FAKE_LETTERS */
        unsigned wait_s;
        unsigned n_lost, n_kept; /* of seven letters; the topic takes the last */
    } cases[] = {{HPS_DEADLINE, 3, 0, 7},
                 {HPS_UNAVAILABLE, 3, 0, 7},
                 {HPS_EXHAUSTED, 3, 6, 1},
                 {HPS_PERMISSION, 0, 6, 1},
                 {HPS_INVALID, 0, 6, 1}};
    int fds[2];
    char text[8192];
    (void)state;
    assert_int_equal(pipe(fds), 0);
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rig *rig = rig_open();
        hps_log_setup(HPS_LOG_WARN, HPS_LOG_LOGFMT, fds[1]);
        want_dead_letters(rig);
        begin(rig, 1);
        hps_fake_log_set(rig->log, HPS_FAKE_LETTERS, cases[i].status);
        assert_int_equal(bad_and_good(rig, 4, 2), cases[i].wait_s);
        assert_int_equal(bad_and_good(rig, 1, 3), 0);
        assert_int_equal(bad_and_good(rig, 1, 6), 0);
        hps_fake_log_set(rig->log, HPS_FAKE_LETTERS, HPS_OK);
        assert_int_equal(bad_and_good(rig, 1, 4), 0);
        assert_int_equal(hps_fake_log_high(rig->log, DEAD_LETTERS, 0), cases[i].n_kept);
        assert_true(metric(rig, HPS_M_UPDATE_LETTERS_LOST, NULL) == cases[i].n_lost);
        assert_true(metric(rig, HPS_M_UPDATE_RECORDS_REJECTED, "magic") == 7);
        hps_fake_log_set(rig->log, HPS_FAKE_LETTERS, cases[i].status);
        assert_int_equal(bad_and_good(rig, 1, 5), cases[i].wait_s); /* it has worked since */
        text[read(fds[0], text, sizeof(text) - 1)] = '\0';
        bool too_large = cases[i].status == HPS_INVALID;
        assert_int_equal(n_of(text, "dead letter lost: it is too large") > 0, too_large);
        assert_int_equal(n_of(text, "does not take them"), too_large ? 0 : 2);
        rig_close(rig);
    }
    hps_log_setup(HPS_LOG_ERROR, HPS_LOG_LOGFMT, STDERR_FILENO);
    close(fds[0]);
    close(fds[1]);
}

static void test_rejected_when_their_batch_is_read_again_then_counted_once(void **state)
{
    struct rig *rig = *state;
    put_bad(rig);
    hps_fake_fail(rig->fx.disk, HPS_FAKE_APPLY, HPS_INVALID, 1, 1, 0); /* not the first position */
    begin(rig, 0);
    assert_int_equal(partition_of(rig, ITEMS, 0)->applied.next, 0);
    hps_clock_advance(60 * 1000);
    turns(rig, 3);
    assert_int_equal(partition_of(rig, ITEMS, 0)->applied.next, 1);
    assert_true(metric(rig, HPS_M_UPDATE_RECORDS_REJECTED, "magic") == 1);
    assert_int_equal(rig->stream->counts.n_rejected, 1);
}

/* ---- back-pressure --------------------------------------------------------------------------- */

static void test_stream_when_the_disk_is_full_then_waits_with_the_same_batch(void **state)
{
    struct rig *rig = *state;
    open_stream(rig);
    turns(rig, 2);
    hps_fake_fail(rig->fx.disk, HPS_FAKE_APPLY, HPS_EXHAUSTED, 0, 2, 0);
    put(rig, 1, 10);
    turns(rig, 2);
    assert_true(rig->stream->batch.held);
    assert_true(item(rig, 1) == -1);
    uint64_t polls = hps_fake_log_polls(rig->log);
    turns(rig, 3); /* not due: neither tried nor polled */
    assert_int_equal(hps_fake_log_polls(rig->log), polls);
    hps_clock_advance(60 * 1000);
    turns(rig, 1);
    assert_true(rig->stream->batch.held);
    hps_clock_advance(60 * 1000);
    turns(rig, 1);
    assert_false(rig->stream->batch.held);
    assert_true(item(rig, 1) == 10);
    assert_int_equal(partition_of(rig, ITEMS, 0)->applied.next, 1);
}

/* Then nothing is left to be stored, which is no reason to wait for ever. */
static void test_pause_when_it_was_held_and_is_taken_back_then_updates_go_on(void **state)
{
    struct rig *rig = *state;
    open_stream(rig);
    turns(rig, 2);
    hps_fake_fail(rig->fx.disk, HPS_FAKE_APPLY, HPS_EXHAUSTED, 0, 2, 0);
    assert_int_not_equal(command(rig, HPS_UPDATE_PAUSE), HPS_OK);
    turns(rig, 1);
    assert_true(rig->stream->batch.held);
    assert_int_equal(command(rig, HPS_UPDATE_RESUME), HPS_OK);
    put(rig, 1, 10);
    hps_clock_advance(60 * 1000);
    turns(rig, 3);
    assert_false(rig->stream->batch.held);
    assert_true(item(rig, 1) == 10);
}

/* What may not come in any more is judged as it is read, not as it is applied. */
static void test_nan_when_no_longer_accepted_then_a_batch_that_waits_is_applied(void **state)
{
    struct rig *rig = *state;
    rig->options.nan_allowed = true;
    open_stream(rig);
    turns(rig, 2);
    hps_fake_fail(rig->fx.disk, HPS_FAKE_APPLY, HPS_EXHAUSTED, 0, 1, 0);
    put(rig, 1, INFINITY);
    turns(rig, 2);
    assert_true(rig->stream->batch.held);
    hps_updater_nan_set(rig->updater, false);
    put(rig, 2, INFINITY);
    hps_clock_advance(60 * 1000);
    turns(rig, 3);
    assert_false(rig->stream->batch.held);
    assert_true(item(rig, 1) == INFINITY);
    assert_true(item(rig, 2) == -1);
    assert_int_equal(partition_of(rig, ITEMS, 0)->applied.next, 2);
}

/* Rows of a batch, not records: a record may have many. */
static void test_batch_when_records_have_many_rows_then_it_is_bounded_by_rows(void **state)
{
    enum { N_RECORDS = 30, N_ROWS = 40, ROW_BYTES = FIXTURE_DIM * 4 };
    struct rig *rig = *state;
    hps_key keys[N_ROWS];
    float rows[N_ROWS][FIXTURE_DIM];
    uint8_t value[HPS_UPDATE_HEAD_BYTES + N_ROWS * (8 + ROW_BYTES)];
    for (uint32_t i = 0; i < N_RECORDS; i++) {
        for (uint32_t j = 0; j < N_ROWS; j++) {
            keys[j] = i * N_ROWS + j + 1;
            rows[j][0] = rows[j][1] = (float)keys[j];
        }
        hps_update_hctr_encode(keys, rows, N_ROWS, 8, ROW_BYTES, value);
        const struct hps_fake_record hctr = {.value = value, .value_size = sizeof(value)};
        hps_fake_log_append(rig->log, ITEMS, 0, &hctr);
    }
    open_stream(rig); /* rows_max is 100 */
    for (uint32_t i = 0; i < N_RECORDS && rig->stream->counts.n_records < N_RECORDS; i++) {
        uint64_t before = rig->stream->counts.n_keys;
        turns(rig, 1);
        assert_true(rig->stream->counts.n_keys - before <= 100 + N_ROWS);
    }
    assert_int_equal(rig->stream->counts.n_records, N_RECORDS);
    assert_int_equal(rig->stream->counts.n_keys, N_RECORDS * N_ROWS);
    assert_true(metric(rig, HPS_M_UPDATE_BATCHES, NULL) < N_RECORDS);
    assert_true(item(rig, N_RECORDS * N_ROWS) == N_RECORDS * N_ROWS);
}

static void test_rate_when_limited_then_a_backlog_comes_as_fast_as_is_allowed(void **state)
{
    struct rig *rig = *state;
    rig->options.rows_per_s_max = 10;
    for (hps_key key = 0; key < 25; key++) {
        put(rig, key, (float)key);
    }
    begin(rig, 0);
    assert_int_equal(partition_of(rig, ITEMS, 0)->applied.next, 10);
    hps_clock_advance(999 * 1000);
    turns(rig, 3);
    assert_int_equal(partition_of(rig, ITEMS, 0)->applied.next, 10);
    hps_clock_advance(1000);
    turns(rig, 3);
    assert_int_equal(partition_of(rig, ITEMS, 0)->applied.next, 20);
    assert_true(metric(rig, HPS_M_UPDATE_THROTTLED, NULL) == 2);
    hps_updater_rate_set(rig->updater, 0); /* at once, whatever is owed */
    turns(rig, 2);
    assert_int_equal(partition_of(rig, ITEMS, 0)->applied.next, 25);
    assert_true(metric(rig, HPS_M_UPDATE_THROTTLED, NULL) == 2);
}

/* ---- where it begins ------------------------------------------------------------------------- */

static void test_start_when_latest_then_only_what_comes_later(void **state)
{
    struct rig *rig = *state;
    rig->options.start = HPS_UPDATE_START_LATEST;
    put(rig, 1, 10);
    open_stream(rig);
    turns(rig, 2);
    rig_restart(rig, 0); /* nothing was applied, and yet it is known where it began */
    put(rig, 2, 20);
    turns(rig, 3);
    assert_true(item(rig, 1) == -1);
    assert_true(item(rig, 2) == 20);
    hps_fake_log_topic(rig->log, ITEMS, 2);
    put_on(rig, ITEMS, 1, 3, 30);
    hps_clock_advance(UINT64_C(31) * 1000000);
    turns(rig, 3);
    assert_true(item(rig, 3) == 30); /* a partition that is new is read from its first record */
}

/* What a load stores of where updates begin. */
static void seed(struct rig *rig, const struct hps_manifest *manifest, uint64_t files_ms,
                 uint64_t n_switches)
{
    struct hps_error err = {0};
    hps_version_pin(rig->fx.version);
    assert_int_equal(hps_updater_seed(rig->fx.version, manifest, files_ms, n_switches, &err),
                     HPS_OK);
    hps_version_unpin(rig->fx.version);
}

static void test_start_when_by_files_then_from_their_time_less_the_slack(void **state)
{
    struct rig *rig = *state;
    const struct hps_manifest manifest = {0};
    rig->options.start = HPS_UPDATE_START_FILES;
    rig->options.start_slack_ms = 5000;
    put(rig, 1, 10);
    hps_clock_advance(10 * 1000000);
    put(rig, 2, 20);
    uint64_t files_ms = hps_clock_wall_ms() + 5000;
    seed(rig, &manifest, files_ms, 0);
    begin(rig, 0);
    assert_true(item(rig, 1) == -1);
    assert_true(item(rig, 2) == 20);
}

static void test_start_when_the_manifest_says_then_from_there(void **state)
{
    struct rig *rig = *state;
    struct hps_manifest_position at = {(char *)"", (char *)ITEMS, 0, 1};
    const struct hps_manifest manifest = {.positions = &at, .n_positions = 1};
    put(rig, 1, 10);
    put(rig, 2, 20);
    seed(rig, &manifest, 1, 0);
    begin(rig, 0);
    assert_true(item(rig, 1) == -1);
    assert_true(item(rig, 2) == 20);
}

/* ---- gaps ------------------------------------------------------------------------------------ */

/* Two records applied, then a stop. */
static void apply_two(struct rig *rig)
{
    begin(rig, 2);
    close_stream(rig);
    fixture_version_close(&rig->fx);
    fixture_version(&rig->fx, 7, "run");
}

static uint64_t start_hash(struct rig *rig, enum hps_update_start start, uint64_t files_ms,
                           const struct hps_manifest *manifest)
{
    struct hps_error err = {0};
    rig->options.start = start;
    assert_int_equal(hps_updater_new(&rig->options, &rig->updater, &err), HPS_OK);
    uint64_t hash = hps_updater_start_hash(rig->updater, manifest, files_ms);
    hps_updater_free(rig->updater);
    rig->updater = NULL;
    return hash;
}

static void test_start_when_it_is_elsewhere_then_another_hash(void **state)
{
    struct rig *rig = *state;
    const struct hps_manifest none = {0};
    struct hps_manifest_position at = {(char *)"", (char *)ITEMS, 0, 1};
    const struct hps_manifest one = {.positions = &at, .n_positions = 1};
    rig->options.start_slack_ms = 10;
    rig->options.start_time_ms = 7;
    uint64_t files = start_hash(rig, HPS_UPDATE_START_FILES, 1000, &none);
    assert_true(files != 0);
    assert_true(files == start_hash(rig, HPS_UPDATE_START_FILES, 1000, &none));
    assert_true(files != start_hash(rig, HPS_UPDATE_START_FILES, 1001, &none));
    assert_true(files != start_hash(rig, HPS_UPDATE_START_EARLIEST, 1000, &none));
    uint64_t time = start_hash(rig, HPS_UPDATE_START_TIME, 1000, &none);
    assert_true(time == start_hash(rig, HPS_UPDATE_START_TIME, 1001, &none));
    rig->options.start_time_ms++;
    assert_true(time != start_hash(rig, HPS_UPDATE_START_TIME, 1000, &none));
    uint64_t second = start_hash(rig, HPS_UPDATE_START_FILES, 1000, &one);
    assert_true(second != files);
    at.offset++;
    assert_true(second != start_hash(rig, HPS_UPDATE_START_FILES, 1000, &one));
    assert_true(hps_updater_start_hash(NULL, &one, 1000) == 0);
}

/* Two records were applied, and the log is not what it was when hpsd starts again. */
static void test_gap_when_the_log_is_another_then_stops_until_told_to_go_on(void **state)
{
    static const struct {
        const char *reason;
        const char *cluster; /* NULL: the same */
        bool anew;           /* the topic is */
        bool held;           /* ... so is the batch that found the gap */
        uint64_t away_s;
        hps_key n_more; /* records, of the keys from 3 on */
        int64_t low;    /* of the log */
    } cases[] = {
        {.reason = "retention", .n_more = 2, .low = 3},
        {.reason = "cluster-2", .cluster = "cluster-2", .n_more = 1},
        {.reason = "past the end", .anew = true, .n_more = 1},
        {.reason = "another record", .anew = true, .n_more = 3},
        {.reason = "another record", .anew = true, .held = true, .n_more = 3},
        {.reason = "delete.retention.ms", .away_s = 3601, .n_more = 1},
    };
    (void)state;
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rig *rig = rig_open();
        hps_key last = 2 + cases[i].n_more;
        if (cases[i].away_s > 0) {
            hps_fake_log_topic_compacted(rig->log, ITEMS, HPS_COMPACTION_YES, 3600 * 1000);
        }
        apply_two(rig);
        hps_clock_advance(cases[i].away_s * 1000000);
        if (cases[i].cluster != NULL) {
            hps_fake_log_cluster(rig->log, cases[i].cluster);
        }
        if (cases[i].anew) {
            hps_fake_log_topic_set(rig->log, ITEMS, HPS_FAKE_DELETED, true);
            hps_fake_log_topic(rig->log, ITEMS, 1);
        }
        for (hps_key key = 3; key <= last; key++) {
            put(rig, key, 10 * (float)key);
        }
        hps_fake_log_trim(rig->log, ITEMS, 0, cases[i].low);
        hps_fake_fail(rig->fx.disk, HPS_FAKE_APPLY, HPS_EXHAUSTED, 0, cases[i].held ? 1 : 0, 0);
        begin(rig, 0);
        turns(rig, 3);
        assert_int_equal(rig->stream->batch.held, cases[i].held);
        assert_int_equal(state_of(rig), HPS_PARTITION_GAP);
        assert_non_null(strstr(partition_of(rig, ITEMS, 0)->reason, cases[i].reason));
        assert_true(fixture_tier_value(&rig->fx, 1, FIXTURE_ITEMS, last) == -1);
        assert_int_equal(
            cases[i].cluster != NULL ? seek(rig, 2) : command(rig, HPS_UPDATE_ACCEPT_GAP), HPS_OK);
        hps_clock_advance(60 * 1000); /* the pause after a batch that failed */
        turns(rig, 2);
        assert_true(item(rig, last) == 10 * (float)last);
        assert_true(item(rig, 3) == (cases[i].low > 2 ? -1 : 30));
        rig_restart(rig, 3);
        assert_int_equal(state_of(rig), HPS_PARTITION_RUNNING);
        rig_close(rig);
    }
}

/* Two records were applied, then a gap was found. Before accept-gap, the topic loses more records,
 * or is recreated with eight rows. */
static void test_accept_when_the_log_has_changed_since_the_gap_then_no_row_of_it_is_lost(
    void **state)
{
    enum gap { RETENTION, TOMBSTONES, NO_OFFSETS };
    static const struct {
        enum gap gap;
        int64_t low; /* 0: the topic is recreated */
    } cases[] = {{RETENTION, 4}, {RETENTION, 0}, {TOMBSTONES, 0}, {NO_OFFSETS, 0}};
    (void)state;
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rig *rig = rig_open();
        if (cases[i].gap == TOMBSTONES) {
            hps_fake_log_topic_compacted(rig->log, ITEMS, HPS_COMPACTION_YES, 3600 * 1000);
        }
        apply_two(rig);
        if (cases[i].gap == NO_OFFSETS) {
            begin(rig, 0);
            hps_fake_log_topic_replace(rig->log, ITEMS);
        } else {
            for (hps_key key = 3; key <= 6; key++) {
                put(rig, key, 10 * (float)key);
            }
            hps_clock_advance(UINT64_C(3601) * 1000000);
            hps_fake_log_trim(rig->log, ITEMS, 0, cases[i].gap == RETENTION ? 3 : 0);
            begin(rig, 0);
        }
        hps_fake_log_topic_set(rig->log, ITEMS, HPS_FAKE_OFFSETS, HPS_UNAVAILABLE);
        turns(rig, 2);
        assert_int_equal(state_of(rig), HPS_PARTITION_GAP);
        assert_int_equal(command(rig, HPS_UPDATE_ACCEPT_GAP), HPS_UNAVAILABLE);
        assert_int_equal(state_of(rig), HPS_PARTITION_GAP);
        assert_int_equal(partition_of(rig, ITEMS, 0)->applied.next, 2);
        hps_fake_log_topic_set(rig->log, ITEMS, HPS_FAKE_OFFSETS, HPS_OK);
        if (cases[i].low > 0) {
            hps_fake_log_trim(rig->log, ITEMS, 0, cases[i].low);
        } else {
            hps_fake_log_topic_replace(rig->log, ITEMS);
            for (hps_key key = 1; key <= 8; key++) {
                put(rig, key, 100 * (float)key);
            }
        }
        assert_int_equal(command(rig, HPS_UPDATE_ACCEPT_GAP), HPS_OK);
        turns(rig, 3);
        if (cases[i].gap == TOMBSTONES) { /* found by the witness: it is another topic */
            assert_int_equal(state_of(rig), HPS_PARTITION_GAP);
            assert_int_equal(command(rig, HPS_UPDATE_ACCEPT_GAP), HPS_OK);
            turns(rig, 3);
        }
        assert_int_equal(state_of(rig), HPS_PARTITION_RUNNING);
        for (hps_key key = 1; key <= 8 && cases[i].low == 0; key++) {
            assert_true(item(rig, key) == 100 * (float)key);
        }
        assert_true(cases[i].low == 0 || (item(rig, 4) == -1 && item(rig, 5) == 50));
        rig_close(rig);
    }
}

static void test_gap_when_the_last_record_was_compacted_then_none(void **state)
{
    struct rig *rig = *state;
    apply_two(rig);
    put(rig, 2, 21);
    hps_fake_log_topic_compacted(rig->log, ITEMS, HPS_COMPACTION_YES, 86400000);
    hps_fake_log_compact(rig->log, ITEMS, 0, 1);
    begin(rig, 0);
    assert_int_equal(state_of(rig), HPS_PARTITION_RUNNING);
    assert_true(fixture_tier_value(&rig->fx, 1, FIXTURE_ITEMS, 2) == 21);
}

static void test_gap_when_idle_for_long_and_restarted_then_none(void **state)
{
    struct rig *rig = *state;
    hps_fake_log_topic_compacted(rig->log, ITEMS, HPS_COMPACTION_YES, 3600 * 1000);
    begin(rig, 1);
    for (unsigned i = 0; i < 10; i++) {
        hps_clock_advance(UINT64_C(1000) * 1000000);
        turns(rig, 2);
    }
    put(rig, 2, 20);
    rig_restart(rig, 3);
    assert_int_equal(state_of(rig), HPS_PARTITION_RUNNING);
    assert_true(item(rig, 2) == 20);
}

static void test_gap_when_retention_passes_while_paused_then_told(void **state)
{
    struct rig *rig = *state;
    begin(rig, 1);
    assert_int_equal(command(rig, HPS_UPDATE_PAUSE), HPS_OK);
    put(rig, 2, 20);
    put(rig, 3, 30);
    turns(rig, 2);
    assert_int_equal(state_of(rig), HPS_PARTITION_PAUSED);
    assert_true(item(rig, 2) == -1);
    hps_fake_log_trim(rig->log, ITEMS, 0, 2);
    assert_int_equal(command(rig, HPS_UPDATE_RESUME), HPS_OK);
    turns(rig, 2);
    assert_int_equal(state_of(rig), HPS_PARTITION_GAP);
}

/* ---- commands -------------------------------------------------------------------------------- */

static void test_seek_when_back_then_records_come_again(void **state)
{
    struct rig *rig = *state;
    put(rig, 1, 10);
    put(rig, 1, 11);
    begin(rig, 0);
    assert_int_equal(seek(rig, 3), HPS_RANGE);
    assert_int_equal(command_on(rig, "", -1, HPS_UPDATE_SEEK, HPS_UPDATE_SEEK_EARLIEST, 0), HPS_OK);
    assert_int_equal(partition_of(rig, ITEMS, 0)->applied.next, 0);
    turns(rig, 2);
    assert_int_equal(partition_of(rig, ITEMS, 0)->applied.next, 2);
    assert_true(item(rig, 1) == 11);
    assert_true(metric(rig, HPS_M_UPDATE_RECORDS, NULL) == 4);
}

/* The disk has the new row of key 1, the host map still the old one. If the seek dropped the batch,
 * lookups could find the old row after the new one. */
static void test_seek_when_a_batch_is_half_applied_then_it_is_completed_first(void **state)
{
    struct rig *rig = *state;
    begin(rig, 1);
    put(rig, 1, 11);
    put(rig, 2, 20);
    hps_fake_fail(rig->fx.host, HPS_FAKE_PUT, HPS_IO, 0, 1, 0);
    hps_fake_fail(rig->fx.host, HPS_FAKE_ERASE, HPS_IO, 0, 1, 0);
    turns(rig, 2);
    assert_true(rig->stream->batch.held);
    hps_fake_fail(rig->fx.disk, HPS_FAKE_APPLY, HPS_EXHAUSTED, 0, 1, 0);
    assert_int_equal(seek(rig, 3), HPS_UNAVAILABLE);
    assert_true(rig->stream->batch.held);
    assert_int_equal(partition_of(rig, ITEMS, 0)->applied.next, 1);
    assert_int_equal(seek(rig, 3), HPS_OK);
    assert_int_equal(partition_of(rig, ITEMS, 0)->applied.next, 3);
    assert_true(item(rig, 1) == 11 && item(rig, 2) == 20);
}

/* From where and up to where records were passed over, as is shown. */
static void assert_passed_over(struct rig *rig, int64_t from, int64_t end)
{
    update_stream_show(rig->stream);
    assert_int_equal(rig->stream->view.partitions[0].skipped, from);
    assert_int_equal(rig->stream->view.partitions[0].skipped_end, end);
}

static void test_seek_when_forward_then_shown_how_far_records_were_passed_over(void **state)
{
    struct rig *rig = *state;
    begin(rig, 1);
    assert_passed_over(rig, HPS_POSITION_WHOLE, 0);
    assert_int_equal(command(rig, HPS_UPDATE_PAUSE), HPS_OK);
    put(rig, 1, 11);
    put(rig, 1, 12);
    put(rig, 1, 13);
    assert_int_equal(seek(rig, 3), HPS_OK);
    assert_passed_over(rig, 1, 3);
    assert_int_equal(command(rig, HPS_UPDATE_RESUME), HPS_OK);
    turns(rig, 3);
    assert_true(item(rig, 1) == 13);
    assert_passed_over(rig, 1, 3); /* what comes behind is applied */
    rig_restart(rig, 2);
    assert_passed_over(rig, 1, 4); /* nobody knows any more: no more than what was read */
    assert_int_equal(seek(rig, 2), HPS_OK);
    assert_passed_over(rig, 1, 2); /* the rest comes again */
    assert_int_equal(seek(rig, 1), HPS_OK);
    assert_passed_over(rig, HPS_POSITION_WHOLE, 0);
}

static void test_freeze_when_records_are_passed_over_then_shown_how_far(void **state)
{
    struct rig *rig = *state;
    begin(rig, 1);
    freeze(rig, 2);
    assert_passed_over(rig, HPS_POSITION_WHOLE, 0);
    put(rig, 1, 11);
    turns(rig, 2);
    assert_passed_over(rig, 1, 2);
    assert_int_equal(rig->stream->view.partitions[0].frozen, 1);
    put(rig, 1, 12);
    turns(rig, 2);
    assert_passed_over(rig, 1, 3);
    assert_int_equal(command_on(rig, "", -1, HPS_UPDATE_SEEK, HPS_UPDATE_SEEK_LATEST, 0), HPS_OK);
    put(rig, 1, 13);
    turns(rig, 3);
    assert_true(item(rig, 1) == 13);
    assert_passed_over(rig, 1, 3);
}

static void test_accept_when_there_is_no_gap_then_nothing_changes(void **state)
{
    struct rig *rig = *state;
    begin(rig, 1);
    assert_int_equal(command(rig, HPS_UPDATE_ACCEPT_GAP), HPS_OK);
    assert_int_equal(partition_of(rig, ITEMS, 0)->applied.next, 1);
}

static void test_accept_when_one_of_the_topics_was_deleted_then_the_other_goes_on(void **state)
{
    struct rig *rig = *state;
    hps_fake_log_topic(rig->log, USERS, 1);
    begin(rig, 1);
    assert_int_equal(command(rig, HPS_UPDATE_PAUSE), HPS_OK);
    put(rig, 2, 20);
    put_on(rig, USERS, 0, 1, 10);
    put_on(rig, USERS, 0, 2, 20);
    hps_fake_log_trim(rig->log, ITEMS, 0, 2);
    hps_fake_log_trim(rig->log, USERS, 0, 1);
    assert_int_equal(command(rig, HPS_UPDATE_RESUME), HPS_OK);
    turns(rig, 2);
    hps_fake_log_topic_set(rig->log, ITEMS, HPS_FAKE_DELETED, true);
    assert_int_equal(command(rig, HPS_UPDATE_ACCEPT_GAP), HPS_OK);
    turns(rig, 2);
    assert_true(fixture_value(&rig->fx, FIXTURE_USERS, 2) == 20);
    assert_int_equal(state_of(rig), HPS_PARTITION_GAP);
    assert_int_equal(command_on(rig, ITEMS, -1, HPS_UPDATE_ACCEPT_GAP, HPS_UPDATE_SEEK_OFFSET, 0),
                     HPS_NOT_FOUND);
}

static void test_pause_when_restarted_then_holds_until_resumed(void **state)
{
    struct rig *rig = *state;
    begin(rig, 1);
    assert_int_equal(command(rig, HPS_UPDATE_PAUSE), HPS_OK);
    put(rig, 1, 11);
    rig_restart(rig, 3);
    assert_int_equal(state_of(rig), HPS_PARTITION_PAUSED);
    assert_true(fixture_tier_value(&rig->fx, 1, FIXTURE_ITEMS, 1) == 10);
    assert_int_equal(command(rig, HPS_UPDATE_RESUME), HPS_OK);
    rig_restart(rig, 3);
    assert_int_equal(state_of(rig), HPS_PARTITION_RUNNING);
    assert_true(item(rig, 1) == 11);
}

static void test_pause_when_before_the_beginning_then_holds_with_it(void **state)
{
    struct rig *rig = *state;
    put(rig, 1, 10);
    open_stream(rig);
    hps_fake_log_set(rig->log, HPS_FAKE_AWAY, HPS_UNAVAILABLE);
    turns(rig, 1);
    hps_fake_log_set(rig->log, HPS_FAKE_AWAY, HPS_OK);
    hps_clock_advance(60 * 1000);
    update_list_topics(rig->stream);
    assert_int_equal(state_of(rig), HPS_PARTITION_STARTING);
    assert_int_equal(command(rig, HPS_UPDATE_PAUSE), HPS_OK);
    turns(rig, 3);
    assert_int_equal(state_of(rig), HPS_PARTITION_PAUSED);
    rig_restart(rig, 3);
    assert_int_equal(state_of(rig), HPS_PARTITION_PAUSED);
    assert_int_equal(command(rig, HPS_UPDATE_RESUME), HPS_OK);
    turns(rig, 3);
    assert_true(item(rig, 1) == 10);
}

static void test_pause_when_the_log_is_away_then_nothing_is_applied_when_it_comes(void **state)
{
    struct rig *rig = *state;
    begin(rig, 1);
    put(rig, 1, 11);
    hps_fake_log_set(rig->log, HPS_FAKE_AWAY, HPS_UNAVAILABLE);
    rig_restart(rig, 0);
    assert_int_equal(state_of(rig), HPS_PARTITION_STARTING);
    assert_int_equal(command(rig, HPS_UPDATE_PAUSE), HPS_OK);
    hps_fake_log_set(rig->log, HPS_FAKE_AWAY, HPS_OK);
    for (int i = 0; i < 2; i++) {
        hps_clock_advance(60 * 1000);
        turns(rig, 3);
        assert_int_equal(state_of(rig), HPS_PARTITION_PAUSED);
        assert_true(fixture_tier_value(&rig->fx, 1, FIXTURE_ITEMS, 1) == 10);
        rig_restart(rig, 0);
    }
    assert_int_equal(command(rig, HPS_UPDATE_RESUME), HPS_OK);
    turns(rig, 3);
    assert_true(item(rig, 1) == 11);
}

static void test_pause_when_no_topic_was_ever_listed_then_it_is_asked_for_or_refused(void **state)
{
    struct rig *rig = *state;
    put(rig, 1, 10);
    open_stream(rig);
    hps_fake_log_set(rig->log, HPS_FAKE_AWAY, HPS_UNAVAILABLE);
    turns(rig, 1);
    assert_int_equal(command(rig, HPS_UPDATE_PAUSE), HPS_UNAVAILABLE);
    hps_fake_log_set(rig->log, HPS_FAKE_AWAY, HPS_OK);
    assert_int_equal(command(rig, HPS_UPDATE_PAUSE), HPS_OK);
    hps_clock_advance(60 * 1000);
    turns(rig, 3);
    assert_int_equal(state_of(rig), HPS_PARTITION_PAUSED);
    assert_true(item(rig, 1) == -1);
}

static void test_pause_when_it_cannot_be_stored_then_says_so_and_is_stored_later(void **state)
{
    struct rig *rig = *state;
    begin(rig, 1);
    hps_fake_fail(rig->fx.disk, HPS_FAKE_APPLY, HPS_EXHAUSTED, 0, 1, 0);
    assert_int_equal(command(rig, HPS_UPDATE_PAUSE), HPS_EXHAUSTED);
    assert_int_equal(state_of(rig), HPS_PARTITION_PAUSED);
    turns(rig, 1);
    rig_restart(rig, 2);
    assert_int_equal(state_of(rig), HPS_PARTITION_PAUSED);
}

/* ---- compaction ------------------------------------------------------------------------------ */

static void test_seek_when_it_cannot_be_stored_then_what_is_paused_stays_so(void **state)
{
    struct rig *rig = *state;
    begin(rig, 1);
    assert_int_equal(command(rig, HPS_UPDATE_PAUSE), HPS_OK);
    put(rig, 1, 11);
    hps_fake_fail(rig->fx.disk, HPS_FAKE_APPLY, HPS_EXHAUSTED, 0, 1, 0);
    assert_int_equal(command_on(rig, "", -1, HPS_UPDATE_SEEK, HPS_UPDATE_SEEK_EARLIEST, 0),
                     HPS_EXHAUSTED);
    turns(rig, 3);
    assert_int_equal(state_of(rig), HPS_PARTITION_PAUSED);
    assert_true(item(rig, 1) == 10);
    assert_int_equal(partition_of(rig, ITEMS, 0)->applied.next, 1);
    assert_int_equal(command(rig, HPS_UPDATE_RESUME), HPS_OK);
    turns(rig, 3);
    assert_true(item(rig, 1) == 11);
}

static void test_form_when_not_keyed_on_a_compacted_topic_then_counted_and_said(void **state)
{
    struct rig *rig = *state;
    uint8_t value[8 + 8 + FIXTURE_DIM * 4] = "HCTR";
    const uint32_t row_bytes = FIXTURE_DIM * 4;
    const hps_key key = 5;
    const float row[FIXTURE_DIM] = {50, 50};
    memcpy(value + 4, &row_bytes, 4);
    memcpy(value + 8, &key, 8);
    memcpy(value + 16, row, sizeof(row));
    const struct hps_fake_record hctr = {.value = value, .value_size = sizeof(value)};
    hps_fake_log_append(rig->log, ITEMS, 0, &hctr);
    begin(rig, 0);
    assert_true(metric(rig, HPS_M_UPDATE_COMPACTED, NULL) == 0);
    close_stream(rig);
    hps_fake_log_topic_compacted(rig->log, ITEMS, HPS_COMPACTION_YES, 86400000);
    open_stream(rig);
    hps_fake_log_append(rig->log, ITEMS, 0, &hctr);
    put(rig, 1, 10);
    turns(rig, 3);
    assert_true(metric(rig, HPS_M_UPDATE_COMPACTED, NULL) == 1);
    assert_true(item(rig, 5) == 50); /* applied while it is there */
    assert_true(item(rig, 1) == 10);
    update_stream_show(rig->stream);
    assert_non_null(strstr(rig->stream->view.partitions[0].reason, "compacted"));
}

/* ---- lineage --------------------------------------------------------------------------------- */

static void test_record_when_its_version_is_not_loaded_then_the_active_version_counts_it(void **s)
{
    static const struct {
        bool active, loaded;
        int n_rejected;
    } cases[] = {{true, false, 1}, {false, false, 0}, {true, true, 0}};
    const hps_key key = 1;
    const uint64_t named = 8;
    const struct hps_fake_header header = {HPS_UPDATE_HEADER_VERSION, &named, sizeof(named)};
    const struct hps_fake_record record = {
        .key = &key, .key_size = sizeof(key), .headers = &header, .n_headers = 1};
    (void)s;
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rig *rig = rig_open();
        struct hps_update_stream other = {.model = (char *)"m", .number = 8};
        want_dead_letters(rig);
        hps_fake_log_append(rig->log, ITEMS, 0, &record);
        open_stream(rig);
        atomic_store(&rig->stream->active, cases[i].active);
        rig->updater->streams = cases[i].loaded ? &other : NULL;
        turns(rig, 3);
        rig->updater->streams = NULL;
        assert_int_equal(partition_of(rig, ITEMS, 0)->applied.next, 1);
        assert_int_equal(metric(rig, HPS_M_UPDATE_RECORDS_REJECTED, "version"),
                         cases[i].n_rejected);
        assert_int_equal(rig->stream->view.n_rejected, cases[i].n_rejected);
        assert_int_equal(rig->stream->view.n_rejected_views, 0); /* waits for other records go on */
        assert_int_equal(hps_fake_log_high(rig->log, DEAD_LETTERS, 0), 0);
        rig_close(rig);
    }
}

static void test_freeze_when_another_lineage_is_active_then_stands_until_a_seek(void **state)
{
    struct rig *rig = *state;
    uint64_t named = 7;
    const struct hps_fake_header header = {HPS_UPDATE_HEADER_VERSION, &named, sizeof(named)};
    const float row[FIXTURE_DIM] = {30, 30};
    const hps_key three = 3;
    const struct hps_fake_record for_us = {.key = &three,
                                           .key_size = 8,
                                           .value = row,
                                           .value_size = sizeof(row),
                                           .headers = &header,
                                           .n_headers = 1};
    begin(rig, 1);
    freeze(rig, 2);
    put(rig, 1, 11);
    hps_fake_log_append(rig->log, ITEMS, 0, &for_us);
    turns(rig, 2);
    assert_true(item(rig, 1) == 10);
    assert_true(item(rig, 3) == 30);
    rig_restart(rig, 0);
    assert_true(rig->stream->freeze.frozen);
    put(rig, 1, 12);
    turns(rig, 3);
    assert_true(fixture_tier_value(&rig->fx, 1, FIXTURE_ITEMS, 1) == 10);
    assert_int_equal(seek(rig, 1), HPS_OK);
    turns(rig, 2);
    assert_true(item(rig, 1) == 12);
    rig_restart(rig, 0);
    assert_false(rig->stream->freeze.frozen);
}

static void test_freeze_when_the_process_ends_before_it_is_stored_then_made_up_for(void **state)
{
    struct rig *rig = *state;
    const struct hps_manifest manifest = {0};
    put(rig, 1, 10);
    seed(rig, &manifest, 1, 1);
    rig->n_switches = 1;
    begin(rig, 0);
    assert_false(rig->stream->freeze.frozen);
    rig->n_switches = 2; /* to another lineage: known to the catalog alone */
    rig_restart(rig, 0);
    atomic_store(&rig->stream->freeze.asked_by, 2);
    hps_lock_acquire(&rig->stream->lock);
    update_view_now(rig->stream);
    hps_lock_release(&rig->stream->lock);
    assert_true(rig->stream->view.frozen); /* before its next turn */
    put(rig, 1, 11);
    turns(rig, 3);
    assert_true(rig->stream->freeze.frozen);
    assert_int_equal(command_on(rig, "", -1, HPS_UPDATE_SEEK, HPS_UPDATE_SEEK_EARLIEST, 0), HPS_OK);
    rig_restart(rig, 0);
    atomic_store(&rig->stream->freeze.asked_by, 2); /* the seek came after it */
    turns(rig, 3);
    assert_false(rig->stream->freeze.frozen);
    assert_true(item(rig, 1) == 11);
}

/* ---- the log away ---------------------------------------------------------------------------- */

static void test_stream_when_the_log_is_away_then_goes_on_afterwards(void **state)
{
    struct rig *rig = *state;
    hps_fake_log_set(rig->log, HPS_FAKE_AWAY, HPS_UNAVAILABLE);
    begin(rig, 0);
    assert_false(update_is_connected(rig->stream));
    hps_fake_log_set(rig->log, HPS_FAKE_AWAY, HPS_OK);
    put(rig, 1, 10);
    hps_clock_advance(UINT64_C(31) * 1000000);
    turns(rig, 4);
    assert_true(item(rig, 1) == 10);
    hps_fake_log_set(rig->log, HPS_FAKE_AWAY, HPS_UNAVAILABLE);
    turns(rig, 2);
    assert_false(update_is_connected(rig->stream));
    hps_fake_log_set(rig->log, HPS_FAKE_AWAY, HPS_OK);
    put(rig, 1, 11);
    turns(rig, 4);
    assert_true(item(rig, 1) == 11);
    assert_true(update_is_connected(rig->stream));
}

static void test_gap_when_another_log_or_topic_is_there_after_an_outage_then_told(void **state)
{
    (void)state;
    for (int anew = 0; anew < 2; anew++) {
        struct rig *rig = rig_open();
        begin(rig, 1);
        hps_fake_log_set(rig->log, HPS_FAKE_AWAY, HPS_UNAVAILABLE);
        turns(rig, 2);
        assert_int_equal(rig->stream->view.partitions[0].high, 1); /* as last heard */
        if (anew) {
            hps_fake_log_topic_set(rig->log, ITEMS, HPS_FAKE_DELETED, true);
            hps_fake_log_topic(rig->log, ITEMS, 1);
            put(rig, 5, 50);
        } else {
            hps_fake_log_cluster(rig->log, "cluster-2");
        }
        put(rig, 6, 60);
        hps_fake_log_set(rig->log, HPS_FAKE_AWAY, HPS_OK);
        turns(rig, 4); /* long before topics are looked for again */
        assert_int_equal(state_of(rig), HPS_PARTITION_GAP);
        assert_non_null(
            strstr(partition_of(rig, ITEMS, 0)->reason, anew ? "another record" : "cluster-2"));
        assert_true(item(rig, 6) == -1);
        assert_int_equal(partition_of(rig, ITEMS, 0)->applied.next, 1);
        assert_int_equal(command(rig, HPS_UPDATE_ACCEPT_GAP), HPS_OK);
        turns(rig, 2);
        assert_true(item(rig, 6) == 60);
        rig_close(rig);
    }
}

/* A broker that has just started may list its topics late. */
static void test_topic_when_missing_after_an_outage_then_gone_only_if_it_stays_away(void **state)
{
    struct rig *rig = *state;
    int fds[2];
    char text[8192];
    begin(rig, 1);
    assert_int_equal(pipe(fds), 0);
    hps_log_setup(HPS_LOG_INFO, HPS_LOG_LOGFMT, fds[1]);
    for (unsigned stays = 0; stays < 2; stays++) {
        hps_fake_log_set(rig->log, HPS_FAKE_AWAY, HPS_UNAVAILABLE);
        turns(rig, 2);
        hps_fake_log_topic_set(rig->log, ITEMS, HPS_FAKE_DELETED, true);
        hps_fake_log_set(rig->log, HPS_FAKE_AWAY, HPS_OK);
        half_seconds(rig, stays ? 8 : 3);
        assert_int_equal(state_of(rig), stays ? HPS_PARTITION_GONE : HPS_PARTITION_STARTING);
        hps_fake_log_topic_set(rig->log, ITEMS, HPS_FAKE_DELETED, false);
        put(rig, 2, 20 + (float)stays);
        hps_clock_advance(UINT64_C(1000) * rig->options.topics_ms);
        turns(rig, 4);
        assert_true(item(rig, 2) == 20 + (float)stays);
        text[read(fds[0], text, sizeof(text) - 1)] = '\0';
        assert_int_equal(n_of(text, "level=error"), stays);
        assert_int_equal(n_of(text, "partition running again"), stays);
        assert_int_equal(n_of(text, "update source reachable again"), 1);
    }
    hps_log_setup(HPS_LOG_ERROR, HPS_LOG_LOGFMT, STDERR_FILENO);
    close(fds[0]);
    close(fds[1]);
}

static void test_stream_when_the_consumer_breaks_then_another_goes_on(void **state)
{
    struct rig *rig = *state;
    begin(rig, 1);
    hps_fake_log_break_consumers(rig->log);
    put(rig, 2, 20);
    turns(rig, 2);
    hps_clock_advance(60 * 1000);
    turns(rig, 4);
    assert_true(item(rig, 1) == 10);
    assert_true(item(rig, 2) == 20);
    assert_true(metric(rig, HPS_M_UPDATE_RECORDS, NULL) == 2);
}

/* ---- freshness ------------------------------------------------------------------------------- */

static void test_times_when_caught_up_then_as_of_now(void **state)
{
    struct rig *rig = *state;
    put(rig, 1, 10);
    int64_t event_ms = (int64_t)hps_clock_wall_ms();
    open_stream(rig);
    assert_int_equal(hps_update_as_of_ms(rig->fx.version), 0);
    turns(rig, 3);
    assert_int_equal(hps_update_event_time_ms(rig->fx.version), event_ms);
    hps_clock_advance(UINT64_C(20) * 1000000);
    turns(rig, 1);
    assert_int_equal(hps_update_as_of_ms(rig->fx.version), event_ms + 20000);
    hps_fake_log_set(rig->log, HPS_FAKE_AWAY, HPS_UNAVAILABLE);
    turns(rig, 1);
    hps_clock_advance(UINT64_C(20) * 1000000);
    turns(rig, 1);
    assert_int_equal(hps_update_as_of_ms(rig->fx.version), event_ms + 20000);
    assert_true(metric(rig, HPS_M_UPDATE_FRESHNESS, NULL) == 1);
    assert_int_equal(hps_partition_lag_ms(&rig->stream->view.partitions[0]), 20000);
}

static void test_times_when_one_clock_is_ahead_then_clamped_and_the_others_count(void **state)
{
    struct rig *rig = *state;
    const float row[FIXTURE_DIM] = {1, 1};
    const hps_key key = 1;
    int64_t now_ms = (int64_t)hps_clock_wall_ms();
    struct hps_fake_record record = {.key = &key,
                                     .key_size = 8,
                                     .value = row,
                                     .value_size = sizeof(row),
                                     .time_unix_ms = INT64_C(4102444800000), /* 2100 */
                                     .time_of = HPS_RECORD_TIME_CREATED};
    hps_fake_log_append(rig->log, ITEMS, 0, &record);
    record.time_of = HPS_RECORD_TIME_APPENDED;
    record.time_unix_ms = now_ms - 10;
    hps_fake_log_append(rig->log, ITEMS, 0, &record);
    begin(rig, 0);
    assert_true(metric(rig, HPS_M_UPDATE_CLOCK_AHEAD, NULL) == 1);
    assert_true(metric(rig, HPS_M_UPDATE_FRESHNESS, NULL) == 1);
    assert_true(metric(rig, HPS_M_UPDATE_APPEND_FRESHNESS, NULL) == 1);
    assert_true(hps_update_event_time_ms(rig->fx.version) <= now_ms);
    hps_clock_advance(5 * 1000000);
    put(rig, 2, 20);
    turns(rig, 2);
    assert_int_equal(hps_update_event_time_ms(rig->fx.version), now_ms + 5000);
}

static void test_commit_when_applied_a_while_ago_then_told_to_the_log(void **state)
{
    struct rig *rig = *state;
    begin(rig, 1);
    assert_int_equal(hps_fake_log_committed(rig->log, "hpsd", ITEMS, 0), -1);
    hps_clock_advance(UINT64_C(2001) * 1000);
    turns(rig, 1);
    assert_int_equal(hps_fake_log_committed(rig->log, "hpsd", ITEMS, 0), 1);
}

/* ---- threads --------------------------------------------------------------------------------- */

static void take_view(void *ctx, const struct hps_stream_view *view)
{
    struct hps_partition_view *out = ctx;
    assert_int_equal(view->version, 7);
    assert_int_equal(view->n_partitions, 1);
    *out = view->partitions[0];
}

/* Is there a series of that topic? */
static bool gap_is_reported(struct rig *rig)
{
    struct hps_buf text;
    hps_buf_init(&text, SIZE_MAX / 2);
    assert_int_equal(hps_metrics_print(rig->metrics, &text), HPS_OK);
    assert_int_equal(hps_buf_append(&text, "", 1), HPS_OK);
    bool told = strstr((const char *)text.data, "hpsd_update_gap{topic=\"" ITEMS) != NULL;
    hps_buf_fini(&text);
    return told;
}

static void test_updater_when_added_and_removed_then_applies_and_gives_the_pin_back(void **state)
{
    struct rig *rig = *state;
    struct hps_error err = {0};
    struct hps_partition_view view = {0};
    uint32_t n = 0;
    struct hps_update_command asked = {
        .kind = HPS_UPDATE_PAUSE, .model = "m", .topic = "", .partition = -1};
    hps_clock_real();
    assert_int_equal(hps_updater_new(&rig->options, &rig->updater, &err), HPS_OK);
    put(rig, 1, 10);
    hps_updater_add(rig->updater, rig->fx.version, 1);
    hps_updater_activated(rig->updater, rig->fx.version, 1);
    hps_fake_log_consumers_wait(rig->log, 1);
    hps_fake_log_idle_wait(rig->log);
    hps_fake_log_idle_wait(rig->log);
    assert_int_equal(hps_updater_command(rig->updater, &asked, &n, &err), HPS_OK);
    assert_int_equal(n, 1);
    hps_updater_each(rig->updater, take_view, &view);
    assert_int_equal(view.state, HPS_PARTITION_PAUSED);
    assert_int_equal(view.next, 1);
    assert_true(item(rig, 1) == 10);
    asked.model = "other";
    assert_int_equal(hps_updater_command(rig->updater, &asked, &n, &err), HPS_NOT_FOUND);
    asked.model = "";
    asked.kind = HPS_UPDATE_ACCEPT_GAP;
    assert_int_equal(hps_updater_command(rig->updater, &asked, &n, &err), HPS_PRECONDITION);
    hps_updater_gauges(rig->updater);
    assert_true(gap_is_reported(rig));
    const struct hps_version *mine = rig->fx.version;
    const struct hps_version other = {
        .model = mine->model, .number = mine->number + 1, .lineage = mine->lineage};
    hps_updater_activated(rig->updater, &other, 2);
    hps_updater_gauges(rig->updater);
    assert_false(gap_is_reported(rig)); /* which the other may not have */
    hps_updater_activated(rig->updater, mine, 3);
    hps_updater_gauges(rig->updater);
    assert_true(gap_is_reported(rig));
    hps_updater_remove(rig->updater, rig->fx.version);
    assert_false(gap_is_reported(rig)); /* an alert on it would never end */
    hps_updater_stop(rig->updater);
    assert_true(hps_version_idle(rig->fx.version));
    hps_updater_add(rig->updater, rig->fx.version, 1); /* stopped: nothing begins */
    assert_true(hps_version_idle(rig->fx.version));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, rig_setup, teardown)
        TEST(test_stream_when_records_come_then_every_tier_has_them),
        TEST(test_sequence_when_only_positions_are_stored_then_it_counts_those_batches),
        TEST(test_stream_when_restarted_then_goes_on_where_it_was),
        TEST(test_stream_when_the_log_ends_without_records_then_it_is_at_the_end),
        TEST(test_refresh_when_a_leader_does_not_answer_then_it_is_waited_for_a_while),
        TEST(test_refresh_when_polls_are_behind_then_the_end_stays_what_it_is),
        TEST(test_stream_when_a_record_is_bad_then_the_others_are_applied),
        TEST(test_stream_when_all_records_are_bad_then_it_advances),
        cmocka_unit_test(test_letters_when_the_topic_does_not_take_them_then_good_rows_wait_once),
        TEST(test_rejected_when_their_batch_is_read_again_then_counted_once),
        TEST(test_stream_when_the_disk_is_full_then_waits_with_the_same_batch),
        TEST(test_pause_when_it_was_held_and_is_taken_back_then_updates_go_on),
        TEST(test_nan_when_no_longer_accepted_then_a_batch_that_waits_is_applied),
        TEST(test_batch_when_records_have_many_rows_then_it_is_bounded_by_rows),
        TEST(test_rate_when_limited_then_a_backlog_comes_as_fast_as_is_allowed),
        TEST(test_start_when_latest_then_only_what_comes_later),
        TEST(test_start_when_by_files_then_from_their_time_less_the_slack),
        TEST(test_start_when_the_manifest_says_then_from_there),
        TEST(test_start_when_it_is_elsewhere_then_another_hash),
        cmocka_unit_test(test_gap_when_the_log_is_another_then_stops_until_told_to_go_on),
        TEST(test_gap_when_the_last_record_was_compacted_then_none),
        TEST(test_gap_when_idle_for_long_and_restarted_then_none),
        TEST(test_gap_when_retention_passes_while_paused_then_told),
        TEST(test_seek_when_back_then_records_come_again),
        TEST(test_seek_when_forward_then_shown_how_far_records_were_passed_over),
        TEST(test_freeze_when_records_are_passed_over_then_shown_how_far),
        cmocka_unit_test(
            test_accept_when_the_log_has_changed_since_the_gap_then_no_row_of_it_is_lost),
        TEST(test_seek_when_a_batch_is_half_applied_then_it_is_completed_first),
        TEST(test_accept_when_there_is_no_gap_then_nothing_changes),
        TEST(test_accept_when_one_of_the_topics_was_deleted_then_the_other_goes_on),
        TEST(test_pause_when_restarted_then_holds_until_resumed),
        TEST(test_pause_when_before_the_beginning_then_holds_with_it),
        TEST(test_pause_when_the_log_is_away_then_nothing_is_applied_when_it_comes),
        TEST(test_pause_when_no_topic_was_ever_listed_then_it_is_asked_for_or_refused),
        TEST(test_pause_when_it_cannot_be_stored_then_says_so_and_is_stored_later),
        TEST(test_seek_when_it_cannot_be_stored_then_what_is_paused_stays_so),
        TEST(test_form_when_not_keyed_on_a_compacted_topic_then_counted_and_said),
        cmocka_unit_test(
            test_record_when_its_version_is_not_loaded_then_the_active_version_counts_it),
        TEST(test_freeze_when_another_lineage_is_active_then_stands_until_a_seek),
        TEST(test_freeze_when_the_process_ends_before_it_is_stored_then_made_up_for),
        TEST(test_stream_when_the_log_is_away_then_goes_on_afterwards),
        cmocka_unit_test(test_gap_when_another_log_or_topic_is_there_after_an_outage_then_told),
        TEST(test_topic_when_missing_after_an_outage_then_gone_only_if_it_stays_away),
        TEST(test_stream_when_the_consumer_breaks_then_another_goes_on),
        TEST(test_times_when_caught_up_then_as_of_now),
        TEST(test_times_when_one_clock_is_ahead_then_clamped_and_the_others_count),
        TEST(test_commit_when_applied_a_while_ago_then_told_to_the_log),
        TEST(test_updater_when_added_and_removed_then_applies_and_gives_the_pin_back),
#undef TEST
    };
    return cmocka_run_group_tests_name("updates", tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * A stream of updates, turn by turn on the test's own thread, over a scripted log and scripted
 * stores: mostly rows of stream_script.h. And the updater with its threads.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/container.h"
#include "tests/lib/pause.h"
#include "tests/lib/stream_script.h"

/* ---- steps of this file ---------------------------------------------------------------------- */

static void put_bad(struct rig *rig)
{
    const struct hps_fake_record bad = {.value = "nothing known", .value_size = 13};
    hps_fake_log_append(rig->log, ITEMS, 0, &bad);
}

/* An offset without a record, as of a transaction's marker or of an aborted record */
static void put_hole(struct rig *rig)
{
    hps_fake_log_append_hole(rig->log, ITEMS, 0);
}

/* One record with the rows of n keys from `first` on; values: ten times the key. */
static void put_unkeyed(struct rig *rig, hps_key first, uint32_t n)
{
    enum { ROW_BYTES = FIXTURE_DIM * sizeof(float), N_MAX = 40 };
    hps_key keys[N_MAX];
    float rows[N_MAX][FIXTURE_DIM];
    uint8_t value[HPS_UPDATE_HEAD_BYTES + N_MAX * (8 + ROW_BYTES)];
    for (uint32_t i = 0; i < n; i++) {
        keys[i] = first + i;
        rows[i][0] = rows[i][1] = 10 * (float)keys[i];
    }
    hps_update_hctr_encode(keys, rows, n, 8, ROW_BYTES, value);
    const struct hps_fake_record hctr = {.value = value,
                                         .value_size = HPS_UPDATE_HEAD_BYTES + n * (8 + ROW_BYTES)};
    hps_fake_log_append(rig->log, ITEMS, 0, &hctr);
}

static void put_key_5_unkeyed(struct rig *rig)
{
    put_unkeyed(rig, 5, 1);
}

/* A record of key 3 that names a version */
static void put_for(struct rig *rig, uint64_t version)
{
    const hps_key key = 3;
    const float row[FIXTURE_DIM] = {30, 30};
    const struct hps_fake_header header = {HPS_UPDATE_HEADER_VERSION, &version, sizeof(version)};
    const struct hps_fake_record record = {.key = &key,
                                           .key_size = sizeof(key),
                                           .value = row,
                                           .value_size = sizeof(row),
                                           .headers = &header,
                                           .n_headers = 1};
    hps_fake_log_append(rig->log, ITEMS, 0, &record);
}

static void put_for_7(struct rig *rig)
{
    put_for(rig, 7);
}

/* One record with a producer's time in the year 2100, and one with a broker's time 10 ms ago */
static void put_ahead(struct rig *rig)
{
    const hps_key key = 1;
    const float row[FIXTURE_DIM] = {1, 1};
    struct hps_fake_record record = {.key = &key,
                                     .key_size = sizeof(key),
                                     .value = row,
                                     .value_size = sizeof(row),
                                     .time_unix_ms = INT64_C(4102444800000), /* 2100 */
                                     .time_of = HPS_RECORD_TIME_CREATED};
    hps_fake_log_append(rig->log, ITEMS, 0, &record);
    record.time_of = HPS_RECORD_TIME_APPENDED;
    record.time_unix_ms = (int64_t)hps_clock_wall_ms() - 10;
    hps_fake_log_append(rig->log, ITEMS, 0, &record);
}

static void take_dead_letters(struct rig *rig)
{
    rig->config.update_source.dead_letter_topic = (char *)DEAD_LETTERS;
    hps_fake_log_topic(rig->log, DEAD_LETTERS, 1);
}

static void ten_rows_per_s(struct rig *rig)
{
    rig->config.update_source.max_rows_per_s = 10;
}

static void any_rate(struct rig *rig)
{
    hps_updater_reconfigure(rig->updater, false, 0);
}

static void nan_allowed(struct rig *rig)
{
    rig->config.server.nan_policy = HPS_CONFIG_NAN_ACCEPT;
}

static void nan_refused(struct rig *rig)
{
    hps_updater_reconfigure(rig->updater, false, rig->config.update_source.max_rows_per_s);
}

static void break_consumers(struct rig *rig)
{
    hps_fake_log_break_consumers(rig->log);
}

static void other_cluster(struct rig *rig)
{
    hps_fake_log_cluster(rig->log, "cluster-2");
}

/* The next batch is written to the disk, and fails on the host. */
static void host_fails(struct rig *rig)
{
    hps_fake_fail(rig->fx.host, HPS_FAKE_PUT, HPS_IO, 0, 1, 0);
    hps_fake_fail(rig->fx.host, HPS_FAKE_ERASE, HPS_IO, 0, 1, 0);
}

static double polls_of_three_turns(struct rig *rig, const struct step *step)
{
    uint64_t before = hps_fake_log_polls(rig->log);
    (void)step;
    turns(rig, 3);
    return (double)(hps_fake_log_polls(rig->log) - before);
}

static double accept_items(struct rig *rig, const struct step *step)
{
    (void)step;
    return command_on(rig, ITEMS, -1, HPS_UPDATE_ACCEPT_GAP, HPS_UPDATE_SEEK_OFFSET, 0);
}

/* Store the start positions, as a load does. */
static void seed(struct rig *rig, const struct hps_manifest *manifest, uint64_t files_ms,
                 uint64_t n_switches)
{
    struct hps_error err = {0};
    hps_version_pin(rig->fx.version);
    assert_int_equal(hps_updater_seed(rig->fx.version, manifest, files_ms, n_switches, &err),
                     HPS_OK);
    hps_version_unpin(rig->fx.version);
}

static void start_latest(struct rig *rig)
{
    rig->config.update_source.start = HPS_CONFIG_UPDATE_START_LATEST;
}

/* The files' time less the slack is now. */
static void start_by_files(struct rig *rig)
{
    const struct hps_manifest manifest = {0};
    rig->config.update_source.start = HPS_CONFIG_UPDATE_START_FILES;
    rig->config.update_source.start_slack_s = 5;
    seed(rig, &manifest, hps_clock_wall_ms() + 5000, 0);
}

static void start_by_manifest(struct rig *rig)
{
    struct hps_manifest_position at = {(char *)"", (char *)ITEMS, 0, 1};
    const struct hps_manifest manifest = {.positions = &at, .n_positions = 1};
    seed(rig, &manifest, 1, 0);
}

#define TWO_TOPICS ON(USERS, 0), PARTITIONS(1), ON(ITEMS, 0)

/* ---- applying -------------------------------------------------------------------------------- */

static void test_stream_when_records_arrive_then_each_is_applied_once(void **state)
{
    static const struct row rows[] = {
        CASE("rows and a delete in two topics", PUT(1, 10), PUT(2, 20), PUT(1, 11), DELETE(2),
             ON(USERS, 1), PARTITIONS(2), PUT(9, 90), START(3), ROW(9, 90), ON(ITEMS, 0),
             ROW(1, 11), ROW(2, NONE), NEXT(4), METRIC(RECORDS, NULL, 5)),
        CASE("the first position and a pause count as batches without keys", START(0), SEQUENCE(0),
             TURNS(3), SEQUENCE(1), COUNT(n_keys, 0), PAUSE(OK), SEQUENCE(2)),
        CASE("a record before a restart and after it", PUT(1, 10), START(3), SEQUENCE(2),
             PUT(1, 11), START(0), SEQUENCE(2), DISK(1, 10), PUT(3, 30), TURNS(3), IS(RUNNING, ""),
             ROW(1, 11), ROW(3, 30), METRIC(RECORDS, NULL, 3)),
        CASE("a new consumer", PUT(1, 10), START(3), DO(break_consumers), PUT(2, 20), TURNS(2),
             LATER(60), TURNS(4), ROW(1, 10), ROW(2, 20), METRIC(RECORDS, NULL, 2)),
        CASE("holes at the end, read, and removed", PUT(1, 10), DO(put_hole), DO(put_hole),
             START(3), NEXT(3), HIGH(3), LAG(0), SEQUENCE(2), TURNS(3), SEQUENCE(2), START(3),
             PUT(1, 11), TURNS(3), IS(RUNNING, ""), ROW(1, 11), NEXT(4), TRIM(4), START(3),
             PUT(1, 12), TURNS(3), IS(RUNNING, ""), ROW(1, 12), NEXT(5)),
        CASE("the position is committed 2 s later", PUT(1, 10), START(3), COMMITTED(-1),
             LATER(2001), TURNS(1), COMMITTED(1))};
    RUN(rows);
}

static void test_refresh_when_a_leader_or_polls_are_behind_then_updates_continue(void **state)
{
    static const struct row rows[] = {
        CASE("it waits up to 2 s for a silent leader, and not for a deleted topic", PUT(1, 10),
             TWO_TOPICS, START(3), REFRESH(2), SILENT, ON(USERS, 0), PUT(1, 20),
             REFRESH(UNFINISHED), TURNS(1), NEXT(1), REFRESHED(UNFINISHED), LATER(2000), TURNS(1),
             REFRESHED(1), ON(ITEMS, 0), ANSWERS, TOPIC(DELETED, true), WAIT(8), IS(GONE, NULL),
             REFRESH(1)),
        CASE("the end that a leader named stays, though polls are behind it", START(3), PUT(1, 10),
             TOPIC(SLOW, true), PUT(1, 11), REFRESH(1), HIGH(2), TURNS(3), ROW(1, 10), HIGH(2),
             TOPIC(SLOW, false), TURNS(3), ROW(1, 11))};
    RUN(rows);
}

static void test_record_when_it_is_bad_then_counted_once_and_skipped(void **state)
{
    static const struct row rows[] = {
        CASE("among others", DO(take_dead_letters), PUT(1, 10), DO(put_bad), PUT(2, 20), START(3),
             ROW(1, 10), ROW(2, 20), COUNT(n_rejected, 1), COUNT(n_rejected_numbers, 1),
             LETTERS(1)),
        CASE("all of them, and a restart", DO(put_bad), DO(put_bad), START(3), NEXT(2),
             METRIC(RECORDS_REJECTED, "magic", 2), START(3), NEXT(2),
             METRIC(RECORDS_REJECTED, "magic", 2)),
        CASE("read again, since the disk refused its batch", DO(put_bad), DISK_FAILS(INVALID, 1, 1),
             START(3), NEXT(0), LATER(60), TURNS(3), NEXT(1), METRIC(RECORDS_REJECTED, "magic", 1),
             COUNT(n_rejected, 1)),
        CASE("read again, since a seek dropped the held batch", START(3), DO(put_bad),
             DISK_FAILS(EXHAUSTED, 0, 1), TURNS(1), SHOWS(held, true), SEEK(0, OK), LATER(60),
             TURNS(3), NEXT(1), METRIC(RECORDS_REJECTED, "magic", 1), COUNT(n_rejected, 1)),
        CASE("not keyed on a compacted topic: applied, counted and reported", DO(put_key_5_unkeyed),
             START(3), METRIC(COMPACTED, NULL, 0), STOP, COMPACTED(86400000), START(0),
             DO(put_key_5_unkeyed), PUT(1, 10), TURNS(3), METRIC(COMPACTED, NULL, 1), ROW(5, 50),
             ROW(1, 10), IS(RUNNING, "compacted"))};
    RUN(rows);
}

/* A bad record, and a good one, which is applied after `ms`. */
#define BAD_AND_GOOD(key, ms) DO(put_bad), PUT(key, 10), TURNS(3), ROW(key, 10), EVENT_MS(ms)
/* The topic takes the last of seven letters; then it fails again. */
#define LETTERS_CASE(failure, ms, n_lost, n_kept, n_too_large, n_not_taken)                     \
    CASE(#failure, DO(take_dead_letters), START(3), LOG(LETTERS, HPS_##failure), DO(put_bad),   \
         DO(put_bad), DO(put_bad), BAD_AND_GOOD(2, ms), BAD_AND_GOOD(3, 0), BAD_AND_GOOD(6, 0), \
         LOG(LETTERS, HPS_OK), BAD_AND_GOOD(4, 0), LETTERS(n_kept),                             \
         METRIC(LETTERS_LOST, NULL, n_lost), METRIC(RECORDS_REJECTED, "magic", 7),              \
         LOG(LETTERS, HPS_##failure), BAD_AND_GOOD(5, ms),                                      \
         LOGGED("dead letter lost: it is too large", n_too_large),                              \
         LOGGED("does not take them", n_not_taken))

static void test_letters_when_the_topic_does_not_take_them_then_good_rows_wait_once(void **state)
{
    static const struct row rows[] = {
        LETTERS_CASE(DEADLINE, 3000, 0, 7, 0, 2), LETTERS_CASE(UNAVAILABLE, 3000, 0, 7, 0, 2),
        LETTERS_CASE(EXHAUSTED, 3000, 6, 1, 0, 2), LETTERS_CASE(PERMISSION, 0, 6, 1, 0, 2),
        LETTERS_CASE(INVALID, 0, 6, 1, 4, 0)};
    RUN(rows);
}

static void test_record_when_its_version_is_not_loaded_then_the_active_version_counts_it(void **s)
{
    static const struct {
        bool active, loaded;
        int n_rejected;
    } cases[] = {{true, false, 1}, {false, false, 0}, {true, true, 0}};
    (void)s;
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rig *rig = rig_open();
        struct hps_update_stream other = {.model = (char *)"m", .number = 8};
        take_dead_letters(rig);
        put_for(rig, 8);
        open_stream(rig);
        atomic_store(&rig->stream->active, cases[i].active);
        rig->updater->streams = cases[i].loaded ? &other : NULL;
        turns(rig, 3);
        rig->updater->streams = NULL;
        const struct hps_stream_view *view = rig->stream->view;
        assert_int_equal(view->partitions[0].next, 1);
        assert_true(item(rig, 3) == -1);
        assert_int_equal(
            hps_metric_value(hps_server_metric(rig->metrics, HPS_M_UPDATE_RECORDS_REJECTED, "m",
                                               "version", NULL, NULL)),
            cases[i].n_rejected);
        assert_int_equal(view->n_rejected, cases[i].n_rejected);
        assert_int_equal(view->n_rejected_views, 0); /* waits for other records do not fail */
        assert_int_equal(hps_fake_log_high(rig->log, DEAD_LETTERS, 0), 0);
        rig_close(rig);
    }
}

/* ---- back-pressure --------------------------------------------------------------------------- */

static void test_batch_when_it_cannot_be_applied_then_held_and_nothing_is_lost(void **state)
{
    static const struct row rows[] = {
        CASE("the disk is full twice", START(2), DISK_FAILS(EXHAUSTED, 0, 2), PUT(1, 10), TURNS(2),
             SHOWS(held, true), ROW(1, NONE), GET(polls_of_three_turns, .want = 0), LATER(60),
             TURNS(1), SHOWS(held, true), LATER(60), TURNS(1), SHOWS(held, false), ROW(1, 10),
             NEXT(1)),
        CASE("a held pause that is resumed leaves nothing to store", START(2),
             DISK_FAILS(EXHAUSTED, 0, 2), PAUSE(EXHAUSTED), TURNS(1), SHOWS(held, true), RESUME(OK),
             PUT(1, 10), LATER(60), TURNS(3), SHOWS(held, false), ROW(1, 10)),
        CASE("a value is checked when it is read, not when it is applied", DO(nan_allowed),
             START(2), DISK_FAILS(EXHAUSTED, 0, 1), PUT(1, INFINITY), TURNS(2), SHOWS(held, true),
             DO(nan_refused), PUT(2, INFINITY), LATER(60), TURNS(3), SHOWS(held, false),
             ROW(1, INFINITY), ROW(2, NONE), NEXT(2)),
        /* Otherwise lookups could find the old row on the host after the new row on the disk. */
        CASE("a half-applied batch is completed before a seek", PUT(1, 10), START(3), PUT(1, 11),
             PUT(2, 20), DO(host_fails), TURNS(2), SHOWS(held, true), DISK_FAILS(EXHAUSTED, 0, 1),
             SEEK(3, UNAVAILABLE), SHOWS(held, true), NEXT(1), SEEK(3, OK), NEXT(3), ROW(1, 11),
             ROW(2, 20)),
        CASE("ten rows per second, until there is no limit", DO(ten_rows_per_s), PUTS(1, 25, 1),
             START(3), NEXT(10), LATER(999), TURNS(3), NEXT(10), LATER(1), TURNS(3), NEXT(20),
             METRIC(THROTTLED, NULL, 2), DO(any_rate), TURNS(2), NEXT(25),
             METRIC(THROTTLED, NULL, 2))};
    RUN(rows);
}

/* Rows limit a batch, since a record may have many. */
static void test_batch_when_records_have_many_rows_then_rows_limit_it(void **state)
{
    enum { N_RECORDS = 30, N_ROWS = 40 };
    struct rig *rig = *state;
    const struct hps_stream_view *view = NULL;
    for (uint32_t i = 0; i < N_RECORDS; i++) {
        put_unkeyed(rig, i * N_ROWS + 1, N_ROWS);
    }
    open_stream(rig); /* rows_max is 100 */
    view = rig->stream->view;
    for (uint32_t i = 0; i < N_RECORDS && view->n_records < N_RECORDS; i++) {
        uint64_t before = view->n_keys;
        turns(rig, 1);
        assert_true(view->n_keys - before <= 100 + N_ROWS);
    }
    assert_int_equal(view->n_records, N_RECORDS);
    assert_int_equal(view->n_keys, N_RECORDS * N_ROWS);
    assert_true(view->sequence < N_RECORDS);
    assert_true(item(rig, N_RECORDS * N_ROWS) == 10 * N_RECORDS * N_ROWS);
}

/* ---- starts ---------------------------------------------------------------------------------- */

static void test_start_when_no_position_is_stored_then_by_option_files_or_manifest(void **state)
{
    static const struct row rows[] = {
        CASE("latest: also after a restart; a new partition from its first record",
             DO(start_latest), PUT(1, 10), START(2), START(0), PUT(2, 20), TURNS(3), ROW(1, NONE),
             ROW(2, 20), PARTITIONS(2), ON(ITEMS, 1), PUT(3, 30), LATER(31000), TURNS(3),
             ROW(3, 30)),
        CASE("files: their time less the slack", PUT(1, 10), LATER(10000), PUT(2, 20),
             DO(start_by_files), START(3), ROW(1, NONE), ROW(2, 20)),
        CASE("manifest", PUT(1, 10), PUT(2, 20), DO(start_by_manifest), START(3), ROW(1, NONE),
             ROW(2, 20))};
    RUN(rows);
}

static void test_start_when_its_options_differ_then_another_hash(void **state)
{
    static const struct {
        enum hps_config_update_start start;
        uint64_t files_ms;
        int64_t time_ms, offset; /* of the option, of the manifest; 0: none */
        int start_number;        /* cases with the same number have the same hash */
    } cases[] = {{HPS_CONFIG_UPDATE_START_FILES, 2000, 7, 0, 0},
                 {HPS_CONFIG_UPDATE_START_FILES, 2000, 7, 0, 0},
                 {HPS_CONFIG_UPDATE_START_FILES, 2001, 7, 0, 1},
                 {HPS_CONFIG_UPDATE_START_EARLIEST, 1000, 7, 0, 2},
                 {HPS_CONFIG_UPDATE_START_TIME, 1000, 7, 0, 3},
                 {HPS_CONFIG_UPDATE_START_TIME, 1001, 7, 0, 3},
                 {HPS_CONFIG_UPDATE_START_TIME, 1000, 8, 0, 4},
                 {HPS_CONFIG_UPDATE_START_FILES, 2000, 7, 1, 5},
                 {HPS_CONFIG_UPDATE_START_FILES, 2000, 7, 2, 6}};
    enum { N = sizeof(cases) / sizeof(cases[0]) };
    struct rig *rig = *state;
    struct hps_error err = {0};
    uint64_t hashes[N];
    rig->config.update_source.start_slack_s = 1;
    for (unsigned i = 0; i < N; i++) {
        struct hps_manifest_position at = {(char *)"", (char *)ITEMS, 0, cases[i].offset};
        const struct hps_manifest manifest = {.positions = &at, .n_positions = at.offset > 0};
        rig->config.update_source.start = cases[i].start;
        rig->config.update_source.start_time_unix_ms = (uint64_t)cases[i].time_ms;
        assert_int_equal(hps_updater_new(&rig->options, &rig->updater, &err), HPS_OK);
        hashes[i] = hps_updater_start_hash(rig->updater, &manifest, cases[i].files_ms);
        hps_updater_free(rig->updater);
        rig->updater = NULL;
        assert_true(hashes[i] != 0 && hps_updater_start_hash(NULL, &manifest, 1000) == 0);
        for (unsigned j = 0; j < i; j++) {
            assert_int_equal(hashes[i] == hashes[j],
                             cases[i].start_number == cases[j].start_number);
        }
    }
}

/* ---- gaps ------------------------------------------------------------------------------------ */

/* Two records are applied; the rest happens while hpsd is down. */
#define TWO PUTS(1, 2, 10), START(3), STOP
#define ACCEPT_ALL \
    ACCEPT(OK), LATER(60), TURNS(2), ROW(3, 30), ROW(4, 40), ROW(5, 50), START(3), IS(RUNNING, "")

static void test_gap_when_the_log_is_another_then_stops_until_a_command(void **state)
{
    static const struct row rows[] = {
        CASE("retention passed", TWO, PUTS(3, 5, 10), TRIM(3), START(6), IS(GAP, "retention"),
             DISK(5, NONE), ACCEPT(OK), TURNS(2), ROW(3, NONE), ROWS(4, 5, 10), START(3),
             IS(RUNNING, "")),
        CASE("another cluster", TWO, DO(other_cluster), PUT(3, 30), START(6), IS(GAP, "cluster-2"),
             DISK(3, NONE), SEEK(2, OK), TURNS(2), ROW(3, 30), START(3), IS(RUNNING, "")),
        CASE("recreated and shorter", TWO, TOPIC(DELETED, true), PARTITIONS(1), PUT(3, 30),
             START(6), IS(GAP, "past the end"), DISK(3, NONE), ACCEPT(OK), TURNS(2), ROW(3, 30),
             START(3), IS(RUNNING, "")),
        CASE("recreated and longer", TWO, TOPIC(DELETED, true), PARTITIONS(1), PUTS(3, 5, 10),
             START(6), IS(GAP, "another record"), DISK(5, NONE), ACCEPT_ALL),
        CASE("retention passed while the batch of another partition is held", PARTITIONS(2),
             PUTS(1, 2, 10), START(3), PUTS(3, 5, 10), TRIM(4), ON(ITEMS, 1), PUT(7, 70),
             ON(ITEMS, 0), DISK_FAILS(EXHAUSTED, 0, 1), TURNS(1), SHOWS(held, true),
             IS(HELD, "cannot be applied"), LATER(60), TURNS(2), IS(GAP, "retention has passed"),
             ACCEPT(OK), TURNS(2), IS(RUNNING, ""), ROW(3, NONE), ROW(5, 50), ROW(7, 70)),
        CASE("deleted while a batch is held", TWO, START(3), PUT(3, 30),
             DISK_FAILS(EXHAUSTED, 0, 6), TURNS(1), TOPIC(DELETED, true), WAIT(5),
             IS(HELD, "cannot be applied"), WAIT(2), IS(GONE, NULL), ROW(3, 30)),
        CASE("recreated with fewer partitions", PARTITIONS(2), PUTS(1, 2, 10), START(3),
             TOPIC(DELETED, true), PARTITIONS(1), PUT(5, 50), TURNS(3), SEEK_TO(EARLIEST, OK),
             LATER(60), TURNS(2), ROW(5, 50), TOPIC(DELETED, true), TURNS(2),
             SEEK_TO(EARLIEST, NOT_FOUND)),
        CASE("down for longer than tombstones stay", COMPACTED(3600000), TWO, LATER(3601000),
             PUTS(3, 5, 10), START(6), IS(GAP, "delete.retention.ms"), DISK(5, NONE), ACCEPT_ALL),
        CASE("retention passes during a pause", PUT(1, 10), START(3), PAUSE(OK), PUTS(2, 3, 10),
             TURNS(2), IS(PAUSED, ""), ROW(2, NONE), TRIM(2), RESUME(OK), TURNS(2),
             IS(GAP, "retention")),
        CASE("another cluster after an outage", PUT(1, 10), START(3), AWAY, TURNS(2), HIGH(1),
             DO(other_cluster), PUT(6, 60), BACK, TURNS(4), IS(GAP, "cluster-2"), ROW(6, NONE),
             NEXT(1), ACCEPT(OK), TURNS(2), ROW(6, 60)),
        CASE("recreated during an outage", PUT(1, 10), START(3), AWAY, TURNS(2), HIGH(1),
             TOPIC(DELETED, true), PARTITIONS(1), PUTS(5, 6, 10), BACK, TURNS(4),
             IS(GAP, "another record"), ROW(6, NONE), NEXT(1), ACCEPT(OK), TURNS(2),
             ROWS(5, 6, 10))};
    RUN(rows);
}

static void test_gap_when_nothing_is_missing_then_not_reported(void **state)
{
    static const struct row rows[] = {
        CASE("the last record was compacted", TWO, PUT(2, 21), COMPACTED(86400000), COMPACT(1),
             START(3), IS(RUNNING, ""), DISK(2, 21)),
        CASE("idle for longer than tombstones stay, then restarted", COMPACTED(3600000), PUT(1, 10),
             START(3), WAIT(4000), PUT(2, 20), START(3), IS(RUNNING, ""), ROW(2, 20)),
        CASE("accept-gap without a gap", PUT(1, 10), START(3), ACCEPT(OK), NEXT(1))};
    RUN(rows);
}

/* Without the offsets of the log, accept-gap is refused, and changes nothing. */
#define REFUSED_AT_FIRST                                                                          \
    TOPIC(OFFSETS, HPS_UNAVAILABLE), TURNS(2), IS(GAP, NULL), ACCEPT(UNAVAILABLE), IS(GAP, NULL), \
        NEXT(2), TOPIC(OFFSETS, HPS_OK)

static void test_accept_when_the_log_has_changed_since_the_gap_then_no_row_of_it_is_lost(
    void **state)
{
    static const struct row rows[] = {
        CASE("retention passed, then again", TWO, PUTS(3, 6, 10), TRIM(3), START(3),
             REFUSED_AT_FIRST, TRIM(4), ACCEPT(OK), TURNS(3), IS(RUNNING, ""), ROW(4, NONE),
             ROWS(5, 6, 10)),
        CASE("retention passed, then recreated", TWO, PUTS(3, 6, 10), TRIM(3), START(3),
             REFUSED_AT_FIRST, RECREATE, PUTS(1, 8, 100), ACCEPT(OK), TURNS(3), IS(RUNNING, ""),
             ROWS(1, 8, 100)),
        CASE("tombstones are missing, then recreated: a second gap, found by the witness",
             COMPACTED(3600000), TWO, PUTS(3, 6, 10), LATER(3601000), START(3), REFUSED_AT_FIRST,
             RECREATE, PUTS(1, 8, 100), ACCEPT(OK), TURNS(3), IS(GAP, NULL), ACCEPT(OK), TURNS(3),
             IS(RUNNING, ""), ROWS(1, 8, 100)),
        CASE("recreated twice", TWO, START(3), RECREATE, TURNS(2), REFUSED_AT_FIRST, RECREATE,
             PUTS(1, 8, 100), ACCEPT(OK), TURNS(3), IS(RUNNING, ""), ROWS(1, 8, 100)),
        CASE("two gaps, and one of the topics was deleted: the other one runs", PUT(1, 10),
             TWO_TOPICS, START(3), PAUSE(OK), PUT(2, 20), TRIM(2), ON(USERS, 0), PUTS(1, 2, 10),
             TRIM(1), RESUME(OK), TURNS(2), ON(ITEMS, 0), TOPIC(DELETED, true), ACCEPT(OK),
             TURNS(2), IS(GAP, NULL), GET(accept_items, .want = HPS_NOT_FOUND), ON(USERS, 0),
             ROW(2, 20))};
    RUN(rows);
}

/* ---- commands -------------------------------------------------------------------------------- */

static void test_seek_when_it_moves_then_records_are_read_again_or_skipped(void **state)
{
    static const struct row rows[] = {
        CASE("back to the first record; past the end is refused", PUT(1, 10), PUT(1, 11), START(3),
             SEEK(3, RANGE), SEEK_TO(EARLIEST, OK), NEXT(0), TURNS(2), NEXT(2), ROW(1, 11),
             METRIC(RECORDS, NULL, 4)),
        CASE("forward, and back to the first skipped record", PUT(1, 10), START(3),
             SKIPPED_RANGE(HPS_POSITION_WHOLE, 0), PAUSE(OK), PUT(1, 11), PUT(1, 12), PUT(1, 13),
             SEEK(3, OK), SKIPPED_RANGE(1, 3), RESUME(OK), TURNS(3), ROW(1, 13),
             SKIPPED_RANGE(1, 3), START(2),
             SKIPPED_RANGE(1, 4), /* after a restart: up to the position */
             SEEK(2, OK), SKIPPED_RANGE(1, 2), SEEK(1, OK), SKIPPED_RANGE(HPS_POSITION_WHOLE, 0)),
        CASE("not stored: a paused partition stays paused", PUT(1, 10), START(3), PAUSE(OK),
             PUT(1, 11), DISK_FAILS(EXHAUSTED, 0, 1), SEEK_TO(EARLIEST, EXHAUSTED), TURNS(3),
             IS(PAUSED, ""), ROW(1, 10), NEXT(1), RESUME(OK), TURNS(3), ROW(1, 11))};
    RUN(rows);
}

static void test_pause_when_restarted_or_early_then_in_effect_until_resumed(void **state)
{
    static const struct row rows[] = {
        CASE("over restarts, as the resume does", PUT(1, 10), START(3), PAUSE(OK), PUT(1, 11),
             START(3), IS(PAUSED, ""), DISK(1, 10), RESUME(OK), START(3), IS(RUNNING, ""),
             ROW(1, 11)),
        CASE("listed, and not started yet", PUT(1, 10), TOPIC(OFFSETS, HPS_UNAVAILABLE), START(1),
             IS(STARTING, NULL), PAUSE(OK), TOPIC(OFFSETS, HPS_OK), LATER(60), TURNS(3),
             IS(PAUSED, ""), START(3), IS(PAUSED, ""), RESUME(OK), TURNS(3), ROW(1, 10)),
        CASE("two outages of the log", PUT(1, 10), START(3), PUT(1, 11), AWAY, START(0),
             IS(STARTING, NULL), PAUSE(OK), BACK, LATER(60), TURNS(3), IS(PAUSED, ""), DISK(1, 10),
             START(0), LATER(60), TURNS(3), IS(PAUSED, ""), DISK(1, 10), START(0), RESUME(OK),
             TURNS(3), ROW(1, 11)),
        CASE("no topic was ever listed: refused while the log is away", PUT(1, 10), AWAY, START(1),
             PAUSE(UNAVAILABLE), BACK, LATER(60), PAUSE(OK), TURNS(3), IS(PAUSED, ""),
             ROW(1, NONE)),
        CASE("not stored: reported, and stored later", PUT(1, 10), START(3),
             DISK_FAILS(EXHAUSTED, 0, 1), PAUSE(EXHAUSTED), IS(PAUSED, ""), TURNS(1), START(2),
             IS(PAUSED, ""))};
    RUN(rows);
}

/* ---- lineage --------------------------------------------------------------------------------- */

static void test_freeze_when_another_lineage_is_active_then_in_effect_until_a_seek(void **state)
{
    static const struct row rows[] = {
        CASE("records for this version are applied; it stays in effect over restarts", PUT(1, 10),
             START(3), FREEZE(2), PUT(1, 11), DO(put_for_7), TURNS(2), ROW(1, 10), ROW(3, 30),
             START(0), SHOWS(frozen, true), PUT(1, 12), TURNS(3), DISK(1, 10), SEEK(1, OK),
             TURNS(2), ROW(1, 12), START(0), SHOWS(frozen, false)),
        CASE("the range of skipped records is shown", PUT(1, 10), START(3), FREEZE(2),
             SKIPPED_RANGE(HPS_POSITION_WHOLE, 0), PUT(1, 11), TURNS(2), SKIPPED_RANGE(1, 2),
             SEEN(frozen, 1), PUT(1, 12), TURNS(2), SKIPPED_RANGE(1, 3), SEEK_TO(LATEST, OK),
             PUT(1, 13), TURNS(3), ROW(1, 13), SKIPPED_RANGE(1, 3))};
    RUN(rows);
}

/* The catalog stores the switch; hpsd ends before the stream stores it. */
static void test_freeze_when_the_process_ends_before_it_is_stored_then_repeated(void **state)
{
    struct rig *rig = *state;
    const struct hps_manifest manifest = {0};
    const struct hps_stream_view *view = NULL;
    put(rig, 1, 10);
    seed(rig, &manifest, 1, 1);
    rig->n_switches = 1;
    begin(rig, 0);
    assert_false(rig->stream->view->frozen);
    rig->n_switches = 2;
    for (int seek = 0; seek < 2; seek++) {
        rig_restart(rig, 0);
        update_stream_show(rig->stream);
        view = rig->stream->view;
        atomic_store(&rig->stream->freeze.asked_by, 2);
        hps_lock_acquire(&rig->stream->board->lock);
        update_view_now(rig->stream);
        hps_lock_release(&rig->stream->board->lock);
        assert_int_equal(view->frozen, seek == 0); /* before its next turn */
        put(rig, 1, 11);
        turns(rig, 3);
        assert_int_equal(view->frozen, seek == 0); /* the seek came after the switch */
        assert_true(fixture_tier_value(&rig->fx, 1, FIXTURE_ITEMS, 1) == 10 + (float)seek);
        assert_int_equal(command_on(rig, "", -1, HPS_UPDATE_SEEK, HPS_UPDATE_SEEK_EARLIEST, 0),
                         HPS_OK);
    }
}

static void test_freeze_when_another_lineage_is_activated_then_shown_before_the_next_turn(
    void **state)
{
    struct rig *rig = *state;
    begin(rig, 1);
    atomic_store(&rig->stream->freeze.asked_by, 1);
    hps_lock_acquire(&rig->stream->board->lock);
    update_view_now(rig->stream);
    hps_lock_release(&rig->stream->board->lock);
    assert_true(rig->stream->view->frozen);
    assert_int_equal(rig->stream->view->partitions[0].state, HPS_PARTITION_FROZEN);
}

/* ---- outages --------------------------------------------------------------------------------- */

static void test_stream_when_the_log_is_away_then_continues_afterwards(void **state)
{
    static const struct row rows[] = {
        CASE("from the start, and again", AWAY, START(3), SHOWS(connected, false), BACK, PUT(1, 10),
             LATER(31000), TURNS(4), ROW(1, 10), AWAY, TURNS(2), SHOWS(connected, false), BACK,
             PUT(1, 11), TURNS(4), ROW(1, 11), SHOWS(connected, true)),
        /* A broker that has just started may list its topics late. */
        CASE("the topic is listed late", PUT(1, 10), START(3), AWAY, TURNS(2), TOPIC(DELETED, true),
             BACK, WAIT(2), IS(STARTING, NULL), TOPIC(DELETED, false), PUT(2, 20), LATER(30000),
             TURNS(4), ROW(2, 20), LOGGED("level=error", 0), LOGGED("partition running again", 0),
             LOGGED("update source reachable again", 1)),
        CASE("the topic is not listed for longer", PUT(1, 10), START(3), AWAY, TURNS(2),
             TOPIC(DELETED, true), BACK, WAIT(5), IS(GONE, NULL), TOPIC(DELETED, false), PUT(2, 20),
             LATER(30000), TURNS(4), ROW(2, 20), LOGGED("level=error", 1),
             LOGGED("partition running again", 1), LOGGED("update source reachable again", 1))};
    RUN(rows);
}

/* ---- freshness ------------------------------------------------------------------------------- */

static void test_times_when_caught_up_then_as_of_now(void **state)
{
    static const struct row rows[] = {
        CASE("until an outage of the log", PUT(1, 10), START(0), AGE_MS(UNKNOWN), TURNS(3),
             EVENT_MS(0), LATER(20000), TURNS(1), AGE_MS(0), AWAY, TURNS(1), LATER(20000), TURNS(1),
             AGE_MS(20000), LAG_MS(20000), METRIC(FRESHNESS, NULL, 1)),
        CASE("the time of a clock that is ahead does not count; other times do", DO(put_ahead),
             START(3), METRIC(FRESHNESS, NULL, 2), EVENT_MS(0), LATER(5000), EVENT_MS(5000),
             PUT(2, 20), TURNS(2), EVENT_MS(0))};
    RUN(rows);
}

/* ---- threads --------------------------------------------------------------------------------- */

static void take_view(void *ctx, const struct hps_stream_view *view)
{
    struct hps_partition_view *out = ctx;
    assert_int_equal(view->version, 7);
    assert_int_equal(view->n_partitions, 1);
    *out = view->partitions[0];
}

/* Whether a series of the topic exists. */
static bool gap_is_reported(struct rig *rig)
{
    struct hps_buf text;
    hps_buf_init(&text, SIZE_MAX / 2);
    assert_int_equal(hps_metrics_print(rig->metrics, &text), HPS_OK);
    assert_int_equal(hps_buf_append(&text, "", 1), HPS_OK);
    bool found = strstr((const char *)text.data, "hpsd_update_gap{topic=\"" ITEMS) != NULL;
    hps_buf_fini(&text);
    return found;
}

struct operation {
    struct hps_update_work work;
    atomic_uint n_ends;
};

static void on_operation(struct hps_update_work *work)
{
    atomic_fetch_add(&HPS_CONTAINER_OF(work, struct operation, work)->n_ends, 1);
}

/* Carry out a command, and wait for its end. */
static hps_status operate(struct rig *rig, struct operation *operation)
{
    atomic_store(&operation->n_ends, 0);
    operation->work =
        (struct hps_update_work){.command = operation->work.command, .done = on_operation};
    hps_updater_command(rig->updater, &operation->work);
    AWAIT(atomic_load(&operation->n_ends) == 1);
    return operation->work.error.status;
}

static void test_updater_when_a_version_is_removed_then_its_pin_and_gauges_are_released(
    void **state)
{
    struct rig *rig = *state;
    struct hps_error err = {0};
    struct hps_partition_view view = {0};
    struct operation operation = {0};
    struct hps_update_command *command = &operation.work.command;
    *command = (struct hps_update_command){
        .kind = HPS_UPDATE_PAUSE, .model = "m", .topic = "", .partition = -1};
    hps_clock_real();
    assert_int_equal(hps_updater_new(&rig->options, &rig->updater, &err), HPS_OK);
    put(rig, 1, 10);
    hps_updater_add(rig->updater, rig->fx.version, 1);
    hps_updater_activated(rig->updater, rig->fx.version, 1);
    hps_fake_log_consumers_wait(rig->log, 1);
    hps_fake_log_idle_wait(rig->log);
    hps_fake_log_idle_wait(rig->log);
    assert_int_equal(operate(rig, &operation), HPS_OK);
    assert_int_equal(operation.work.n, 1);
    hps_updater_each(rig->updater, take_view, &view);
    assert_int_equal(view.state, HPS_PARTITION_PAUSED);
    assert_int_equal(view.next, 1);
    assert_true(item(rig, 1) == 10);
    command->model = "other";
    assert_int_equal(operate(rig, &operation), HPS_NOT_FOUND);
    command->model = "";
    command->topic = "other";
    assert_int_equal(operate(rig, &operation), HPS_NOT_FOUND);
    command->topic = "";
    command->kind = HPS_UPDATE_ACCEPT_GAP;
    assert_int_equal(operate(rig, &operation), HPS_PRECONDITION);
    hps_updater_gauges(rig->updater);
    assert_true(gap_is_reported(rig));
    const struct hps_version *mine = rig->fx.version;
    const struct hps_version other = {
        .model = mine->model, .number = mine->number + 1, .lineage = mine->lineage};
    hps_updater_activated(rig->updater, &other, 2);
    hps_updater_gauges(rig->updater);
    assert_false(gap_is_reported(rig)); /* the other version may not have the partition */
    hps_updater_activated(rig->updater, mine, 3);
    hps_updater_gauges(rig->updater);
    assert_true(gap_is_reported(rig));
    hps_updater_remove(rig->updater, rig->fx.version);
    hps_updater_gauges(rig->updater);
    assert_false(gap_is_reported(rig)); /* an alert on it would never end */
    assert_int_equal(operate(rig, &operation), HPS_NOT_FOUND);
    hps_updater_stop(rig->updater);
    assert_true(hps_version_idle(rig->fx.version));
    hps_updater_add(rig->updater, rig->fx.version, 1); /* stopped: no stream starts */
    assert_true(hps_version_idle(rig->fx.version));
}

/* The stream is busy, so the commands wait until it ends. */
static void test_commands_when_their_version_is_unloaded_then_only_those_for_it_alone_fail(
    void **state)
{
    struct rig *rig = *state;
    struct hps_error err = {0};
    static struct operation operations[2];
    hps_clock_real();
    assert_int_equal(hps_updater_new(&rig->options, &rig->updater, &err), HPS_OK);
    hps_updater_add(rig->updater, rig->fx.version, 1);
    hps_fake_gate_shut(rig->fx.disk, HPS_FAKE_APPLY);
    put(rig, 1, 10);
    hps_fake_gate_wait(rig->fx.disk, HPS_FAKE_APPLY, 1);
    for (size_t i = 0; i < 2; i++) {
        operations[i].work = (struct hps_update_work){.command = {.kind = HPS_UPDATE_PAUSE,
                                                                  .model = "m",
                                                                  .version = i == 0 ? 0 : 7,
                                                                  .topic = "",
                                                                  .partition = -1},
                                                      .done = on_operation};
        hps_updater_command(rig->updater, &operations[i].work);
        assert_int_equal(atomic_load(&operations[i].n_ends), 0);
    }
    hps_updater_remove(rig->updater, rig->fx.version);
    hps_fake_gate_open(rig->fx.disk, HPS_FAKE_APPLY);
    AWAIT(atomic_load(&operations[0].n_ends) + atomic_load(&operations[1].n_ends) == 2);
    assert_int_equal(operations[0].work.error.status, HPS_OK); /* of all versions */
    assert_int_equal(operations[1].work.error.status, HPS_UNAVAILABLE);
}

static void test_commands_when_the_updater_stops_then_each_ends_once(void **state)
{
    struct rig *rig = *state;
    struct hps_error err = {0};
    static struct operation operations[32];
    hps_clock_real();
    assert_int_equal(hps_updater_new(&rig->options, &rig->updater, &err), HPS_OK);
    hps_updater_add(rig->updater, rig->fx.version, 1);
    for (size_t i = 0; i < 32; i++) {
        operations[i].work = (struct hps_update_work){
            .command = {.kind = i % 2 == 0 ? HPS_UPDATE_PAUSE : HPS_UPDATE_RESUME,
                        .model = "m",
                        .topic = "",
                        .partition = -1},
            .done = on_operation};
        hps_updater_command(rig->updater, &operations[i].work);
    }
    hps_updater_stop(rig->updater);
    for (size_t i = 0; i < 32; i++) {
        assert_int_equal(atomic_load(&operations[i].n_ends), 1);
        hps_status status = operations[i].work.error.status;
        assert_true(status == HPS_OK || status == HPS_UNAVAILABLE);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, rig_setup, teardown)
        cmocka_unit_test(test_stream_when_records_arrive_then_each_is_applied_once),
        cmocka_unit_test(test_refresh_when_a_leader_or_polls_are_behind_then_updates_continue),
        cmocka_unit_test(test_record_when_it_is_bad_then_counted_once_and_skipped),
        cmocka_unit_test(test_letters_when_the_topic_does_not_take_them_then_good_rows_wait_once),
        cmocka_unit_test(
            test_record_when_its_version_is_not_loaded_then_the_active_version_counts_it),
        cmocka_unit_test(test_batch_when_it_cannot_be_applied_then_held_and_nothing_is_lost),
        TEST(test_batch_when_records_have_many_rows_then_rows_limit_it),
        cmocka_unit_test(test_start_when_no_position_is_stored_then_by_option_files_or_manifest),
        TEST(test_start_when_its_options_differ_then_another_hash),
        cmocka_unit_test(test_gap_when_the_log_is_another_then_stops_until_a_command),
        cmocka_unit_test(test_gap_when_nothing_is_missing_then_not_reported),
        cmocka_unit_test(
            test_accept_when_the_log_has_changed_since_the_gap_then_no_row_of_it_is_lost),
        cmocka_unit_test(test_seek_when_it_moves_then_records_are_read_again_or_skipped),
        cmocka_unit_test(test_pause_when_restarted_or_early_then_in_effect_until_resumed),
        cmocka_unit_test(test_freeze_when_another_lineage_is_active_then_in_effect_until_a_seek),
        TEST(test_freeze_when_another_lineage_is_activated_then_shown_before_the_next_turn),
        TEST(test_freeze_when_the_process_ends_before_it_is_stored_then_repeated),
        cmocka_unit_test(test_stream_when_the_log_is_away_then_continues_afterwards),
        cmocka_unit_test(test_times_when_caught_up_then_as_of_now),
        TEST(test_updater_when_a_version_is_removed_then_its_pin_and_gauges_are_released),
        TEST(test_commands_when_their_version_is_unloaded_then_only_those_for_it_alone_fail),
        TEST(test_commands_when_the_updater_stops_then_each_ends_once),
#undef TEST
    };
    return cmocka_run_group_tests_name("updates", tests, NULL, NULL);
}

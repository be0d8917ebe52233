/* SPDX-License-Identifier: Apache-2.0
 *
 * The as-of time of a stream, turn by turn: it never passes the time up to which the leaders of all
 * partitions have proved that no update is missing.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/lib/stream_script.h"

enum { S = 1000 * 1000, HOUR_MS = 3600 * 1000 };

/* ---- more steps ------------------------------------------------------------------------------ */

static double own_result(struct rig *rig, const struct step *step);

enum own {
    OWN_AGE,
    OWN_OLDER,
    OWN_AT_MOST,
    OWN_YOUNG_FOR,
    OWN_PROVED,
    OWN_N_PARTITIONS,
    OWN_GAUGES,
    OWN_REJECTED,
    OWN_VIEW,
    OWN_SEEK_ITEMS,
    OWN_WALL,
    OWN_REBOOT,
    OWN_BEGIN_AT,
    OWN_RATE,
    OWN_COMPACTION,
    OWN_FILES_OF_NOW,
    OWN_PUT_AT,
    OWN_SWITCH,
    OWN_HOLE,
    OWN_OTHER_VERSION
};
#define OWN(of, ...) GET(own_result, .b = OWN_##of, .text = #of, ##__VA_ARGS__)

/* The age of as-of in ms, as lookups and metrics have it; UNKNOWN */
#define AGE(ms) OWN(AGE, .want = (ms))
#define FRESH   AGE(0)
/* As-of is older than that, or not known. */
#define OLDER(ms)       OWN(OLDER, .want = (ms))
#define AGE_AT_MOST(ms) OWN(AT_MOST, .want = (ms))
/* The next s seconds, checked each second; the lag is known, too. */
#define YOUNG_FOR(s, ms) OWN(YOUNG_FOR, .a = (s), .want = (ms))
/* The topic of the first partition was proved to be the same within the last ms. */
#define PROVED_WITHIN(ms) OWN(PROVED, .a = (ms), .want = true)
#define N_PARTITIONS(n)   OWN(N_PARTITIONS, .want = (n)) /* A list has arrived. */
#define GAUGES            OWN(GAUGES, .want = true)      /* Metrics agree with the view. */
#define REJECTED(offset) \
    OWN(REJECTED, .want = (offset)) /* This record is the only rejected one: unreadable. */
#define VIEW OWN(VIEW)              /* Another thread reads the view. */
/* A seek of partition 0 of ITEMS only. */
#define SEEK_ITEMS(offset) OWN(SEEK_ITEMS, .a = (offset), .want = HPS_OK)
#define WALL(ms)           OWN(WALL, .a = (ms)) /* Set the wall clock forward. */
/* The next START is a new process, s seconds later. Its wall clock is set forward by ms. */
#define REBOOT(s, ms)   OWN(REBOOT, .a = (s), .value = (ms))
#define BEGIN_AT(start) OWN(BEGIN_AT, .a = HPS_CONFIG_UPDATE_START_##start)
#define RATE(n)         OWN(RATE, .a = (n)) /* rows per second */
#define COMPACTION(is) \
    OWN(COMPACTION, .a = HPS_COMPACTION_##is) /* The log keeps tombstones for an hour. */
#define HOLE OWN(HOLE)                        /* an offset without a record */
/* After a restart the catalog knows the switch that froze the version. */
#define SWITCH_KNOWN OWN(SWITCH)
#define FILES_OF_NOW OWN(FILES_OF_NOW)
#define PUT_AT(ms)   OWN(PUT_AT, .a = (ms)) /* Put row 90 of key 9 with that time. */
/* Start while another version of the model has a partition of USERS in that state. */
#define OTHER_VERSION(state) OWN(OTHER_VERSION, .a = HPS_PARTITION_##state)
/* The same, of a table that only the other version has. */
#define OTHER_TABLE OWN(OTHER_VERSION, .a = HPS_PARTITION_RUNNING, .value = 1)

static double gauge(struct rig *rig, enum hps_metric_id id, const char *a, const char *b,
                    const char *c)
{
    atomic_store(&rig->stream->active, true);
    rig->updater->streams = rig->stream;
    hps_updater_gauges(rig->updater);
    rig->updater->streams = NULL;
    return hps_metric_value(hps_server_metric(rig->metrics, id, a, b, c, NULL));
}

/* The age of as-of. NAN: the view, the version and the metric differ. */
static double age_ms(struct rig *rig)
{
    int64_t as_of_ms = rig->stream->view->as_of_ms;
    int64_t ms = as_of_ms > 0 ? hps_clock_forward_ms() - as_of_ms : UNKNOWN;
    double s = gauge(rig, HPS_M_UPDATE_STALENESS, "m", NULL, NULL);
    bool agree = hps_update_as_of_ms(rig->fx.version) == as_of_ms &&
                 hps_update_age_ms(rig->fx.version) == ms &&
                 (ms == UNKNOWN ? isinf(s) : s * 1000 == (double)ms);
    return agree ? (double)ms : NAN;
}

static double oldest_ms(struct rig *rig, int64_t s, double oldest)
{
    for (int64_t i = 0; i < s && oldest < INFINITY; i++) {
        wait_s(rig, 1);
        double age = age_ms(rig);
        bool known = rig->stream->view->partitions[0].lag_known && age >= 0;
        oldest = !known ? INFINITY : age > oldest ? age : oldest;
    }
    return oldest;
}

static bool partition_gauges_agree(struct rig *rig, const struct hps_partition_view *view)
{
    char number[16];
    snprintf(number, sizeof(number), "%d", (int)view->partition);
    double lag = gauge(rig, HPS_M_UPDATE_LAG, view->topic, number, NULL);
    double lag_s = gauge(rig, HPS_M_UPDATE_LAG_SECONDS, view->topic, number, NULL);
    int64_t lag_ms = hps_partition_lag_ms(view);
    bool agree = view->lag_known ? lag == (double)view->lag : isinf(lag);
    agree = agree && (lag_ms == UNKNOWN ? isinf(lag_s) : lag_s * 1000 == (double)lag_ms);
    for (int i = 0; i < HPS_PARTITION_STATES; i++) {
        const char *state = hps_partition_state_text((enum hps_partition_state)i);
        double is = gauge(rig, HPS_M_UPDATE_PARTITION_STATE, view->topic, number, state);
        agree = agree && is == ((int)view->state == i ? 1 : 0);
    }
    return agree;
}

static bool gauges_agree(struct rig *rig)
{
    const struct hps_stream_view *view = rig->stream->view;
    bool up = gauge(rig, HPS_M_UPDATE_SOURCE_UP, "m", NULL, NULL) == 1;
    bool frozen = gauge(rig, HPS_M_UPDATE_FROZEN, "m", NULL, NULL) == 1;
    bool agree = up == (view->connected && view->leaders_up) && frozen == view->frozen;
    bool has_users = false;
    for (uint32_t i = 0; i < view->n_partitions; i++) {
        agree = agree && partition_gauges_agree(rig, &view->partitions[i]);
        has_users = has_users || strcmp(view->partitions[i].topic, USERS) == 0;
    }
    return agree &&
           (has_users || gauge(rig, HPS_M_UPDATE_PARTITION_STATE, USERS, "0", "starting") == 0);
}

/* NAN: the view does not have exactly one rejected record, unreadable. */
static double rejected(const struct rig *rig)
{
    const struct hps_stream_view *view = rig->stream->view;
    bool one = view->n_rejected_views == 1 && strcmp(view->rejected[0].reason, "unreadable") == 0;
    return one ? (double)view->rejected[0].offset : NAN;
}

static void ignore_view(void *ctx, const struct hps_stream_view *view)
{
    (void)ctx;
    (void)view;
}

static void read_view(struct rig *rig)
{
    rig->updater->streams = rig->stream;
    hps_updater_each(rig->updater, ignore_view, NULL);
    rig->updater->streams = NULL;
}

static void put_at(struct rig *rig, int64_t time_ms)
{
    const hps_key key = 9;
    const float row[FIXTURE_DIM] = {90, 90};
    const struct hps_fake_record record = {.key = &key,
                                           .key_size = sizeof(key),
                                           .value = row,
                                           .value_size = sizeof(row),
                                           .time_unix_ms = time_ms,
                                           .time_of = HPS_RECORD_TIME_CREATED};
    hps_fake_log_append(rig->log, ITEMS, 0, &record);
}

static void open_with_other_version(struct rig *rig, const char *topic,
                                    enum hps_partition_state theirs)
{
    struct hps_partition_view view = {.state = theirs};
    struct update_board board = {0};
    struct update_shown shown = {.partitions = &view, .capacity = 1};
    struct hps_stream_view stream = {
        .model = "m", .version = 99, .partitions = &view, .n_partitions = 1};
    struct hps_update_stream other = {.board = &board, .shown = &shown, .view = &stream};
    (void)snprintf(view.topic, sizeof(view.topic), "%s", topic);
    hps_lock_init(&board.lock, HPS_LOCK_UPDATE_STREAM);
    open_stream_beside(rig, &other);
    hps_lock_fini(&board.lock);
    turns(rig, 3);
}

static double own_result(struct rig *rig, const struct step *step)
{
    const double age = rig->stream != NULL ? age_ms(rig) : NAN;
    switch ((enum own)step->b) {
    case OWN_AGE:
        return age;
    case OWN_OLDER:
        return age == UNKNOWN || age > step->want ? step->want : age;
    case OWN_AT_MOST:
        return age != UNKNOWN && age < step->want ? step->want : age;
    case OWN_YOUNG_FOR:
        return oldest_ms(rig, step->a, step->want);
    case OWN_PROVED:
        return hps_clock_forward_ms() - rig->stream->view->partitions[0].same_ms <= step->a;
    case OWN_N_PARTITIONS:
        return rig->stream->view->listed ? (double)rig->stream->view->n_partitions : UNKNOWN;
    case OWN_GAUGES:
        return gauges_agree(rig);
    case OWN_REJECTED:
        return rejected(rig);
    case OWN_SEEK_ITEMS:
        return command_on(rig, ITEMS, 0, HPS_UPDATE_SEEK, HPS_UPDATE_SEEK_OFFSET, step->a);
    case OWN_VIEW:
        read_view(rig);
        break;
    case OWN_WALL:
        hps_clock_wall_shift(step->a);
        (void)hps_clock_forward_ms();
        break;
    case OWN_REBOOT:
        hps_clock_fake(hps_clock_us() + (uint64_t)step->a * S);
        hps_clock_wall_shift((int64_t)step->value);
        break;
    case OWN_BEGIN_AT:
        rig->config.update_source.start = (enum hps_config_update_start)step->a;
        break;
    case OWN_RATE:
        rig->config.update_source.max_rows_per_s = (uint64_t)step->a;
        break;
    case OWN_COMPACTION:
        hps_fake_log_topic_compacted(rig->log, ITEMS, (enum hps_compaction)step->a, HOUR_MS);
        break;
    case OWN_FILES_OF_NOW:
        rig->fx.version->loaded_unix_ms = hps_clock_wall_ms() + 1;
        break;
    case OWN_PUT_AT:
        put_at(rig, step->a);
        break;
    case OWN_SWITCH:
        rig->n_switches = 1;
        break;
    case OWN_HOLE:
        (void)hps_fake_log_append_hole(rig->log, ITEMS, 0);
        break;
    case OWN_OTHER_VERSION:
        open_with_other_version(rig, step->value == 0 ? USERS : "hps_et.m.ghosts",
                                (enum hps_partition_state)step->a);
        break;
    }
    return step->want;
}

/* ---- leaders --------------------------------------------------------------------------------- */

static void second_broker(struct rig *rig)
{
    hps_fake_log_broker(rig->log, ITEMS, 1, 2);
}

#define TWO_PARTITIONS PARTITIONS(2), ON(ITEMS, 1), PUT(2, 20), ON(ITEMS, 0), PUT(1, 10)
/* The leader of partition 0 is silent; that of partition 1 proves the topic each second. */
#define PROVES_FOR(is) \
    START(3), WAIT(5), PROVED_WITHIN(1000), SILENT, WAIT(5), OWN(PROVED, .a = 1000, .want = (is))

static const struct row LEADERS[] = {
    CASE("a proof holds for partitions of the same leader", TWO_PARTITIONS, PROVES_FOR(true)),
    CASE("... and for no others", TWO_PARTITIONS, DO(second_broker), PROVES_FOR(false)),
    CASE("one of two leaders is silent", ON(USERS, 0), PARTITIONS(1), ON(ITEMS, 0), PUT(1, 10),
         START(3), FRESH, SHOWS(leaders_up, true), SILENT, PUT(1, 11), ON(USERS, 0), PUT(5, 50),
         WAIT(40), ROW(5, 50), LAG_MS(0), ON(ITEMS, 0), LAG_MS(40000), LAG(UNKNOWN), AGE(40000),
         IS(UNREACHABLE, "does not answer"), SHOWS(connected, true), SHOWS(leaders_up, false),
         GAUGES, ANSWERS, TURNS(3), ROW(1, 11), FRESH, SHOWS(leaders_up, true), IS(RUNNING, "")),
    CASE("silent since the start", PUT(1, 10), SILENT, START(3), AGE(UNKNOWN), LAG_MS(UNKNOWN),
         IS(STARTING, NULL), GAUGES),
    CASE("silent after an outage", PUT(1, 10), START(3), AWAY, WAIT(2), SILENT, BACK, WAIT(40),
         AGE(42000)),
    CASE("the leader of a new partition is silent", PUT(1, 10), START(3), WAIT(29), PARTITIONS(2),
         ON(ITEMS, 1), SILENT, WAIT(2), N_PARTITIONS(2), AGE(2000), IS(STARTING, "does not answer"),
         ANSWERS, TURNS(1), AGE_AT_MOST(2000), WAIT(1), FRESH),
    /* The log may have hidden the new topic. The last list did not have an added partition. */
    CASE("the leaders of a topic that is listed later are silent", START(3), FRESH, ON(USERS, 0),
         PARTITIONS(2), SILENT, ON(USERS, 1), SILENT, WAIT(31), LAG_MS(UNKNOWN), ON(USERS, 0),
         LAG_MS(UNKNOWN), PARTITIONS(3), ON(USERS, 2), SILENT, WAIT(31), LAG_MS(31000)),
};

static void test_as_of_when_a_leader_is_silent_then_it_does_not_advance(void **state)
{
    RUN(LEADERS);
}

static bool refuse(void *ctx, size_t bytes)
{
    (void)ctx;
    (void)bytes;
    return false;
}

static void no_memory_for_a_partition(struct rig *rig)
{
    hps_arena_on_grow(rig->stream->memory, refuse, NULL);
    while (hps_arena_alloc(rig->stream->memory, 1) != NULL) {
    }
    update_take_topics(rig->stream, 0);
    hps_arena_on_grow(rig->stream->memory, NULL, NULL);
}

/* ---- claims --------------------------------------------------------------------------------- */

static const struct row CLAIMS[] = {
    CASE("records after an open transaction are in the log, but cannot be read yet", PUT(1, 10),
         START(3), TOPIC(SLOW, true), PUT(1, 11), WAIT(5), AGE(5000), LAG(1), TOPIC(SLOW, false),
         TURNS(2), ROW(1, 11), FRESH),
    CASE("no record arrives, and the log is unreachable for a moment: as-of does not go back",
         PUT(1, 10), START(3), WAIT(600), FRESH, AWAY, WAIT(1), BACK, AGE_AT_MOST(1000), TURNS(1),
         AGE_AT_MOST(1000), TURNS(1), AGE_AT_MOST(1000), TURNS(1), AGE_AT_MOST(1000), TURNS(1),
         FRESH, PAUSE(OK), WAIT(5), AGE(5000), RESUME(OK), AGE_AT_MOST(5000)),
    CASE("the model has no topic", TOPIC(DELETED, true), START(3), N_PARTITIONS(0), AGE(UNKNOWN),
         PARTITIONS(1), PUT(1, 10), WAIT(31), FRESH),
    CASE("there is no memory for a new partition", PUT(1, 10), START(3), FRESH, PARTITIONS(2),
         LATER(40), DO(no_memory_for_a_partition), TURNS(1), N_PARTITIONS(1), AGE(40), WAIT(1),
         N_PARTITIONS(2), TURNS(2), FRESH),
    CASE("a batch cannot be applied", PUT(1, 10), START(3), DISK_FAILS(EXHAUSTED, 0, 1000),
         PUT(1, 11), TURNS(1), PUT(1, 12), WAIT(5), IS(HELD, "a batch cannot be applied"), LAG(2),
         OLDER(5000), GAUGES),
    CASE("a record cannot be read", PUTS(1, 3, 10), SPOIL(1), START(4), ROW(1, 10), ROW(2, NONE),
         ROW(3, 30), IS(RUNNING, NULL), REJECTED(1), METRIC(RECORDS_REJECTED, "unreadable", 1),
         START(3), NEXT(3)),
    CASE("retention removed the witness", PUTS(1, 2, 10), START(3), PUT(3, 30), TURNS(2), TRIM(2),
         WAIT(62), IS(RUNNING, NULL), FRESH),
    CASE("a topic is deleted before a restart", PUT(1, 10), START(3), TOPIC(DELETED, true),
         START(0), IS(STARTING, NULL), WAIT(5), IS(GONE, NULL)),
    CASE("a seek while paused", PUTS(1, 2, 10), START(3), PAUSE(OK), SEEK(1, OK), PUT(1, 11),
         TURNS(3), IS(PAUSED, NULL), NEXT(1), ROW(1, 10), START(3), IS(PAUSED, NULL), RESUME(OK),
         TURNS(3), ROW(1, 11)),
};

static void test_as_of_when_a_record_is_not_applied_then_it_is_not_claimed(void **state)
{
    RUN(CLAIMS);
}

static void test_as_of_when_behind_then_only_what_was_read_up_to_is_claimed(void **state)
{
    struct rig *rig = *state;
    rig->config.update_source.max_rows_per_s = 10;
    begin(rig, 0);
    for (int i = 0; i < 200; i++) {
        put(rig, (hps_key)i, (float)i);
        hps_clock_advance(S / 100); /* ten times the rate at which hpsd reads */
        turns(rig, 1);
    }
    int64_t end_ms = hps_clock_forward_ms();
    int64_t next = rig->stream->view->partitions[0].next;
    int64_t as_of_ms = rig->stream->view->as_of_ms;
    assert_true(next < 100);
    /* Record i was logged i * 10 ms after the first one. So all unread records are younger. */
    assert_true(as_of_ms <= end_ms - 2000 + next * 10);
    assert_true(as_of_ms > end_ms - 2000);
    wait_s(rig, 30);
    assert_int_equal(rig->stream->view->partitions[0].lag, 0);
    assert_int_equal(rig->stream->view->as_of_ms, hps_clock_forward_ms());
}

/* ---- a view without turns -------------------------------------------------------------------- */

/* One second ago topics were listed and the witness was recalled. */
#define KNOWN_SAME PUT(1, 10), START(3), WAIT(31), FRESH, PROVED_WITHIN(1000)
#define NO_LISTS   LOG(LISTS, HPS_UNAVAILABLE)

static const struct row VIEWS[] = {
    CASE("for longer than a response of a leader is young", PUT(1, 10), START(3), LATER(2000), VIEW,
         SHOWS(leaders_up, true), LAG(0), IS(RUNNING, ""), LATER(1), VIEW, SHOWS(leaders_up, false),
         LAG(UNKNOWN), IS(RUNNING, "hpsd waits"), TURNS(3), IS(RUNNING, ""),
         SHOWS(leaders_up, true), LAG(0)),
    CASE("for longer than the topic counts as the same", KNOWN_SAME, NO_LISTS,
         LOG(RECALLS_MUTE, true), WAIT(6), VIEW, LAG(0), LATER(1), VIEW, LAG(UNKNOWN),
         IS(RUNNING, "topic was recreated")),
    CASE("turns happen at a gap: its lag is known", PUTS(1, 4, 10), START(3), HOLE, PUT(6, 10),
         TRIM(5), TURNS(3), IS(GAP, NULL), LAG(2), WAIT(120), IS(GAP, NULL), LAG(2)),
};

static void test_view_when_no_turn_happens_then_claims_expire(void **state)
{
    RUN(VIEWS);
}

/* ---- a clock that is set back ---------------------------------------------------------------- */

/* The leader becomes silent. hpsd ends 10 s later, and starts 4 s after that. The wall clock is
 * ahead by `ahead` ms before the silence. It is set back by `running` ms while hpsd runs, and by
 * `down` ms while hpsd is down. hpsd read the topic first longer ago than delete.retention.ms. */
#define SET_BACK(ahead, running, down, age)                                                        \
    COMPACTED(INT64_C(10) * HOUR_MS), PUT(1, 10), START(3), WALL(ahead), LATER(36000 * 1000),      \
        WAIT(1), SILENT, PUT(2, 20), WALL(-(running)), WAIT(10),                                   \
        REBOOT(4, (ahead) - (running) - (down)), START(3), AGE(age), LAG_MS(age), GAUGES, ANSWERS, \
        WAIT(3), ROW(2, 20), FRESH

static const struct row CLOCKS[] = {
    CASE("while hpsd runs", PUT(1, 10), START(3), SILENT, WAIT(10), WALL(-HOUR_MS), WAIT(30),
         AGE(40000), LAG_MS(40000), ANSWERS, WAIT(70), FRESH, PROVED_WITHIN(30000)),
    CASE("the clock is right", SET_BACK(0, 0, 0, 14000)),
    CASE("while hpsd is down", SET_BACK(0, 0, HOUR_MS, UNKNOWN)),
    CASE("before a restart", SET_BACK(0, HOUR_MS, 0, 14000)),
    CASE("before a restart, and set forward again",
         SET_BACK(0, HOUR_MS, -HOUR_MS, 14000 + HOUR_MS)),
    CASE("it was ahead, and is set back while hpsd is down",
         SET_BACK(HOUR_MS, 0, HOUR_MS, UNKNOWN)),
    CASE("it was ahead, and is set back before a restart", SET_BACK(HOUR_MS, HOUR_MS, 0, 14000)),
};

static void test_staleness_when_the_clock_is_set_back_then_never_too_low(void **state)
{
    RUN(CLOCKS);
}

/* ---- frozen ---------------------------------------------------------------------------------- */

/* Each of two partitions has one record that is applied, and one that is skipped. */
#define FROZEN_BOTH                                                                       \
    PUT(1, 10), ON(USERS, 0), PARTITIONS(1), PUT(1, 10), START(3), FREEZE(1), PUT(1, 11), \
        ON(ITEMS, 0), PUT(1, 11), WAIT(2)

static const struct row FROZEN[] = {
    CASE("the view says so, and as-of gets older", PUT(1, 10), START(3), FREEZE(1), TURNS(1),
         PUT(1, 11), WAIT(5), ROW(1, 10), IS(FROZEN, "lineage"), SEEN(skipped, 1),
         SHOWS(frozen, true), AGE(5000), LAG(1), GAUGES, SWITCH_KNOWN, START(0), PUT(2, 22),
         WAIT(3), IS(FROZEN, NULL), OLDER(8000), LAG(2)),
    /* Otherwise as-of would claim records that the other partition skipped. */
    CASE("a seek of one: the other continues where it froze", FROZEN_BOTH, SWITCH_KNOWN, START(3),
         SEEK_ITEMS(0), TURNS(3), ROW(1, 11), ON(USERS, 0), ROW(1, 11), FRESH),
    CASE("a seek of one: the other stays at its gap", FROZEN_BOTH, ON(USERS, 0), RECREATE,
         PUTS(1, 8, 20), WAIT(31), IS(GAP, NULL), SEEK_ITEMS(0), WAIT(3), IS(GAP, NULL),
         OLDER(30001)),
};

static void test_version_when_frozen_then_old_until_a_seek(void **state)
{
    RUN(FROZEN);
}

/* ---- deletes that are compacted away --------------------------------------------------------- */

#define DISK_FULL DISK_FAILS(EXHAUSTED, 0, 100000)
/* The log keeps tombstones for an hour. */
#define HOURLY COMPACTED(HOUR_MS), PUTS(1, 2, 10), START(3)

static const struct row TOMBSTONES[] = {
    CASE("the leader is silent for an hour", HOURLY, SILENT, DELETE(1), PUT(3, 30), WAIT(1),
         LATER(3601 * 1000), COMPACT(2), ANSWERS, TURNS(4), IS(GAP, "delete.retention.ms"),
         OLDER(3601000), ACCEPT(OK), TURNS(3), ROW(3, 30), FRESH),
    CASE("the leader is silent, and nothing is logged", HOURLY, SILENT, WAIT(3700), ANSWERS,
         TURNS(3), IS(RUNNING, NULL), FRESH),
    CASE("a batch is held, and nothing is logged", HOURLY, DISK_FULL, PUT(3, 30), TURNS(1),
         WAIT(3700), TURNS(3), IS(HELD, NULL), OLDER(1)),
    CASE("a batch is held", HOURLY, DISK_FULL, PUT(3, 30), TURNS(1), DELETE(1), LATER(3700 * 1000),
         TURNS(3), IS(GAP, NULL), OLDER(1)),
    CASE("the records that hpsd reads are an hour old", RATE(1), HOURLY, PUTS(10, 4009, 1),
         WAIT(3590), IS(RUNNING, NULL), WAIT(20), IS(GAP, NULL)),
    CASE("hpsd is down for an hour in its first backlog: as-of is not known yet", RATE(1),
         COMPACTED(HOUR_MS), PUTS(1, 6, 10), START(0), WAIT(3), AGE(UNKNOWN), DELETE(1), PUT(50, 1),
         LATER(7200 * 1000), COMPACT(6), START(0), WAIT(5), IS(GAP, NULL)),
};

static void test_tombstone_when_it_may_be_compacted_away_then_a_gap(void **state)
{
    RUN(TOMBSTONES);
}

/* ---- a topic that is recreated --------------------------------------------------------------- */

/* The topic is recreated at once, and grows past the position before hpsd compares records. */
#define OUTGROWN                                                                                 \
    PUTS(1, 4, 10), START(3), WAIT(31), PUT(5, 50), TURNS(2), WAIT(1), RECREATE, PUTS(1, 8, 20), \
        TURNS(3), ROW(1, 10), ROW(7, 140)
#define NEW_TOPIC   RECREATE, PUTS(1, 8, 20)
#define GROWS(n)    IS(GAP, NULL), HIGH(n), LAG(UNKNOWN), GAUGES, PUT(n, 20), WAIT(2)
#define UNLISTED(n) PUT(n, 20), TURNS(1), HIGH(n), IS(STARTING, NULL), LAG(UNKNOWN)

static const struct row RECREATED[] = {
    CASE("found by a list, as the witness differs: the claim is withdrawn", OUTGROWN, WAIT(31),
         IS(GAP, "recreated"), OLDER(31000), START(3), IS(GAP, NULL), OLDER(31000), ACCEPT(OK),
         TURNS(3), ROW(1, 20), FRESH, WAIT(62), IS(RUNNING, NULL)),
    CASE("found by a restart", OUTGROWN, START(3), IS(GAP, "another record")),
    CASE("found by a refresh", OUTGROWN, REFRESH(1), IS(GAP, "another record")),
    CASE("its end is before the witness", OUTGROWN, RECREATE, PUT(1, 30), WAIT(31),
         IS(GAP, "past the end")),
    CASE("it has another id", TOPIC(DELETED, true), LOG(IDS, true), PARTITIONS(1), OUTGROWN,
         WAIT(31), IS(GAP, "topic's id")),
    CASE("no record was read, as the start is the end", BEGIN_AT(LATEST), PUTS(1, 4, 10), START(6),
         FRESH, NEW_TOPIC, WAIT(31), IS(GAP, NULL), ACCEPT(OK), TURNS(3), ROW(1, 20)),
    CASE("no record was read since a seek to the end", PUTS(1, 4, 10), START(3), SEEK(4, OK),
         TURNS(3), FRESH, NEW_TOPIC, WAIT(31), IS(GAP, NULL), ACCEPT(OK), TURNS(3), ROW(1, 20)),
    CASE("while paused: wait-for finds it", PUTS(1, 4, 10), START(3), PAUSE(OK), RECREATE,
         PUT(1, 20), START(3), REFRESH(1), IS(GAP, NULL), HIGH(1), LAG(UNKNOWN), SEEN(lag, 0)),
    CASE("its leader was silent at that time", PUTS(1, 2, 10), START(3), SILENT, WAIT(5), NEW_TOPIC,
         ANSWERS, TURNS(1), OLDER(5000), TURNS(1), OLDER(5000), TURNS(1), OLDER(5000), TURNS(1),
         OLDER(5000), TURNS(1), OLDER(5000), IS(GAP, NULL)),
    CASE("it grows past the position: the lag is not known", PUTS(1, 4, 10), START(3), LAG(0),
         RECREATE, PUT(1, 20), START(3), GROWS(1), GROWS(2), GROWS(3), GROWS(4), GROWS(5)),
    CASE("it is not listed yet: the lag is not known", PUTS(1, 4, 10), START(3), RECREATE, NO_LISTS,
         START(0), UNLISTED(1), UNLISTED(2), UNLISTED(3), UNLISTED(4), UNLISTED(5), GAUGES,
         LOG(LISTS, HPS_OK), WAIT(10), IS(GAP, NULL)),
    CASE("its offsets are not known yet", PUTS(1, 4, 10), START(3), NEW_TOPIC,
         TOPIC(OFFSETS, HPS_UNAVAILABLE), START(3), IS(STARTING, NULL), LAG(UNKNOWN),
         TOPIC(OFFSETS, HPS_OK), WAIT(10), IS(GAP, NULL)),
};

/* A topic of two partitions. After the rest, which is about partition 0: partition 1 */
#define TWO(...) PARTITIONS(2), ON(ITEMS, 1), PUTS(1, 2, 10), __VA_ARGS__, ON(ITEMS, 1)

/* Both are frozen after two records of partition 1; then there is another topic, and records of it
 * are not recalled. */
#define FROZEN_THEN_RECREATED                                                                   \
    PARTITIONS(2), ON(ITEMS, 1), PUTS(1, 2, 10), START(3), FREEZE(1), PUTS(3, 4, 10), TURNS(2), \
        LOG(RECALLS_MUTE, true), RECREATE, PUTS(5, 8, 10)

static const struct row RECREATED_IN_PART[] = {
    CASE("the first record of a partition that was empty proves nothing for the other",
         TWO(START(3), FRESH, RECREATE, PUTS(3, 6, 10), ON(ITEMS, 0), PUT(9, 90), WAIT(3)),
         IS(GAP, "recreated"), ROW(3, NONE)),
    CASE("retention removed the witness of one: the other is still proved",
         TWO(ON(ITEMS, 0), PUT(9, 90), START(3), FRESH, TRIM(1), WAIT(10)), IS(RUNNING, ""), FRESH),
    /* Its record 1, which was logged 3 s ago, was never read. */
    CASE("records of the new topic lead to the end of the old one", PUT(1, 10), START(3),
         TOPIC(SLOW, true), PUT(2, 20), WAIT(2), AGE(2000), LOG(RECALLS_MUTE, true), RECREATE,
         PUTS(3, 4, 10), TOPIC(SLOW, false), WAIT(1), ROW(4, 40), AGE(3000),
         LOG(RECALLS_MUTE, false), WAIT(1), IS(GAP, "recreated"), AGE(4000)),
    CASE("frozen, and continued by a seek of the other", FROZEN_THEN_RECREATED, SEEK_ITEMS(0),
         TURNS(3), LOG(RECALLS_MUTE, false), WAIT(2), IS(GAP, "recreated")),
    CASE("paused after a gap, and the other goes on in the new one: a gap after a restart",
         TWO(ON(ITEMS, 0), PUT(9, 90), START(3), PAUSE(OK), RECREATE, PUT(3, 30), ON(ITEMS, 1),
             PUTS(4, 7, 10), WAIT(2), SEEK_ITEMS(1), WAIT(2), START(3), WAIT(2)),
         IS(GAP, "recreated"), ON(ITEMS, 0), IS(PAUSED, "")),
    CASE("empty, and the id of the old one is known longer", TOPIC(DELETED, true), LOG(IDS, true),
         PARTITIONS(1), START(3), LATER(100), LOG(IDS_MUTE, true), RECREATE, PUT(1, 10), WAIT(1),
         ROW(1, 10), LOG(IDS_MUTE, false), WAIT(2), IS(RUNNING, ""), FRESH),
};

static void test_topic_when_recreated_then_a_gap_and_not_fresh(void **state)
{
    RUN(RECREATED);
    RUN(RECREATED_IN_PART);
}

/* ---- the witness ----------------------------------------------------------------------------- */

static const struct row PROOFS[] = {
    /* A leader's response does not say to which topic its end belongs. */
    CASE("neither a list nor a witness arrives: as-of does not advance", KNOWN_SAME, NO_LISTS,
         LOG(RECALLS_MUTE, true), WAIT(60), IS(RUNNING, "topic was recreated"), AGE(60000),
         LAG(UNKNOWN), GAUGES, LOG(RECALLS_MUTE, false), LOG(LISTS, HPS_OK), WAIT(2), TURNS(3),
         FRESH, LAG(0), IS(RUNNING, "")),
    CASE("only lists do not arrive: as-of does not advance, and the lag is known", KNOWN_SAME,
         NO_LISTS, WAIT(600), AGE(600000), LAG(0), RECREATE, PUT(1, 20), LATER(1), PUT(2, 20),
         WAIT(34), IS(GAP, NULL)),
    CASE("a restart while the log is unreachable: the proof stays valid", PUT(1, 10), START(3),
         FRESH, AWAY, LATER(5000), START(2), AGE(5000)),
    CASE("the same, and lists did not arrive: as-of is not later than the last list", KNOWN_SAME,
         NO_LISTS, WAIT(60), PUT(2, 20), TURNS(3), ROW(2, 20), AWAY, START(2), AGE(60000)),
    CASE("... and a partition has no position yet: nothing is known", PARTITIONS(2), ON(ITEMS, 1),
         SILENT, PUT(2, 20), ON(ITEMS, 0), PUT(1, 10), START(3), WAIT(2), PUT(3, 30), TURNS(3),
         AWAY, START(2), AGE(UNKNOWN)),
    CASE("refused while lists do not arrive: requested again", KNOWN_SAME, NO_LISTS,
         LOG(RECALLS, HPS_NOT_FOUND), WAIT(40), OLDER(1), LOG(RECALLS, HPS_OK), WAIT(12), TURNS(2),
         LAG(0)),
    /* Leaders answer while the stream waits for a list. */
    CASE("lists hang: the lag is known", KNOWN_SAME, LOG(RECALLS_TAKE_US, S / 10), NO_LISTS,
         WAIT(2), SHOWS(connected, true), WAIT(1), SHOWS(connected, false), WAIT(57), LAG(0),
         IS(RUNNING, ""), LOGGED("update source unreachable", 1), LOG(LISTS, HPS_OK), WAIT(1),
         SHOWS(connected, true), LOGGED("update source reachable again", 1)),
    CASE("lists hang and leaders answer: partitions start, and commands move them", KNOWN_SAME,
         NO_LISTS, WAIT(4), SHOWS(connected, false), PAUSE(OK), PUT(1, 20), RESUME(OK), TURNS(3),
         ROW(1, 20), PUT(2, 20), SEEK_TO(LATEST, OK), TURNS(3), ROW(2, NONE), SEEK(0, OK), TURNS(3),
         ROW(2, 20)),
    /* The topic may be another one after the silence. */
    CASE("its leader was silent while lists hang", KNOWN_SAME, NO_LISTS, WAIT(40),
         LOG(RECALLS_TAKE_US, 5 * S / 2), SILENT, WAIT(3), NEW_TOPIC, ANSWERS, TURNS(2), AGE(43000),
         WAIT(6), IS(GAP, NULL)),
    CASE("paused during a recall: a refresh ends", PUT(1, 10), START(3),
         LOG(RECALLS_TAKE_US, 5 * S), WAIT(31), PAUSE(OK), LOG(RECALLS_TAKE_US, 0), REFRESH(1)),
    CASE("paused, and not proved since the start: the lag is not known", PUT(1, 10), START(3),
         PAUSE(OK), LAG(0), LOG(RECALLS_MUTE, true), START(3), HIGH(1), IS(PAUSED, NULL),
         LAG(UNKNOWN), GAUGES, LOG(RECALLS_MUTE, false), WAIT(60), LAG(0)),
    CASE("paused, and its leader is silent since the start", PUT(1, 10), START(3), PAUSE(OK),
         SILENT, START(3), IS(PAUSED, NULL), LAG(UNKNOWN), ANSWERS, WAIT(60), LAG(0)),
};

static void test_witness_when_topics_are_not_listed_then_requested(void **state)
{
    RUN(PROOFS);
}

/* Recalls find no record from that offset on; -1: they find all records. */
#define WITNESSES_END(offset) STEP(AT, .at = hps_fake_log_recall_end, .a = (offset))
/* A leader that has just changed does not return the witness: this is no gap, and no proof. */
#define NONE_FOUND(compaction)                                                    \
    COMPACTION(compaction), PUTS(1, 4, 10), START(3), WITNESSES_END(0), WAIT(31), \
        IS(RUNNING, NULL), START(5), IS(RUNNING, NULL), OLDER(1)
#define FOUND          WITNESSES_END(-1)
#define THEN_RECREATED NEW_TOPIC, FOUND, WAIT(31), IS(GAP, NULL)
#define NONE_FOR_5_S                                                                               \
    WAIT(15), WITNESSES_END(0), REFRESH(UNFINISHED), TURNS(1), WAIT(5), AGE(5000), FOUND, WAIT(1), \
        FRESH

static const struct row WITNESSES[] = {
    CASE("found later", NONE_FOUND(NO), FOUND, WAIT(1), IS(RUNNING, NULL), FRESH, THEN_RECREATED),
    /* Compaction may remove the witness. hpsd assumes this after 10 s. */
    CASE("compacted away", NONE_FOUND(YES), WAIT(11), IS(RUNNING, NULL), FRESH, THEN_RECREATED),
    CASE("not known to be compacted", NONE_FOUND(UNKNOWN), WAIT(15), IS(RUNNING, NULL), OLDER(1),
         THEN_RECREATED),
    CASE("none from time to time: it must last", NONE_FOUND(YES), FOUND, WAIT(1), FRESH,
         NONE_FOR_5_S, NONE_FOR_5_S),
};

static void test_witness_when_none_is_found_then_no_gap_and_not_fresh_yet(void **state)
{
    RUN(WITNESSES);
}

/* ---- topics that are hidden ------------------------------------------------------------------ */

#define HIDES(how, v)                                                                        \
    TOPIC(HIDDEN, true), how, PUT(1, v), WAIT(2), RESUME(OK), WAIT(40), IS(FAILED, "grant"), \
        AGE(42000), TOPIC(HIDDEN, false), WAIT(31), IS(FAILED, NULL), RESUME(OK), TURNS(3),  \
        ROW(1, v), FRESH
#define STILL_HIDDEN AGE(UNKNOWN), IS(FAILED, "grant"), LAG(UNKNOWN), GAUGES, START(0), WAIT(5)

static const struct row HIDDEN_TOPICS[] = {
    CASE("it fails until resumed with rights", PUT(1, 10), START(3), HIDES(TURNS(0), 20),
         HIDES(START(0), 21)),
    CASE("another version reads it, but not after the restart", PUT(1, 10), ON(USERS, 0),
         PARTITIONS(1), TOPIC(HIDDEN, true), PUT(5, 50), OTHER_VERSION(RUNNING), WAIT(5),
         ON(ITEMS, 0), ROW(1, 10), ON(USERS, 0), STILL_HIDDEN, STILL_HIDDEN, TOPIC(HIDDEN, false),
         WAIT(31), RESUME(OK), TURNS(3), ROW(5, 50), FRESH),
    CASE("another version has the topic as gone", OTHER_VERSION(GONE), WAIT(5), N_PARTITIONS(1),
         FRESH, GAUGES),
    CASE("another version reads a table that this one lacks", PUT(1, 10), OTHER_TABLE,
         N_PARTITIONS(1), WAIT(1), ROW(1, 10), FRESH),
    CASE("another version does not know yet that the topic is gone", PUT(1, 10),
         OTHER_VERSION(RUNNING), WAIT(5), N_PARTITIONS(1), ROW(1, 10), FRESH, GAUGES, START(0),
         WAIT(5), FRESH, ON(USERS, 0), PARTITIONS(1), PUT(5, 50), WAIT(31), ROW(5, 50), FRESH),
};

static void test_topic_when_hidden_then_not_fresh(void **state)
{
    RUN(HIDDEN_TOPICS);
}

/* ---- where updates start --------------------------------------------------------------------- */

/* Records 0 and 1 are older than the files, record 2 is two hours younger. Retention keeps records
 * for `kept` ms; 0: not known. For a moment the wall clock was ahead by `glitch` ms. */
#define FILES(low, kept, glitch, lost)                                                          \
    BEGIN_AT(FILES), PUT(1, 10), PUT(1, 11), FILES_OF_NOW, LATER(7200 * 1000), PUT(2, 20),      \
        TRIM(low), TOPIC(KEPT_MS, kept), WALL(glitch), WALL(-(glitch)), START(3),               \
        IS(RUNNING, (lost) ? "may be gone" : ""), SKIPPED(lost, low), ROW(1, NONE), ROW(2, 20), \
        REBOOT(0, 0), START(3), SKIPPED(lost, low)
#define SKIPPED(lost, low) \
    SKIPPED_RANGE((lost) ? HPS_POSITION_LOST : HPS_POSITION_WHOLE, (lost) ? (low) : 0)

/* The files are of 1000 ms; record 0 has the time first_ms. */
#define TIMES(time_of, first_ms, first_row, reason)                                           \
    BEGIN_AT(FILES), PUT_AT(first_ms), TOPIC(TIME_OF, HPS_RECORD_TIME_##time_of), PUT(1, 10), \
        START(3), IS(RUNNING, reason), ROW(9, first_row), ROW(1, 10), SEEK(0, OK), TURNS(2),  \
        IS(RUNNING, "")
#define SKIPS "before offset 1 are skipped: their times are before 1970-01-01T00:00:01Z"

static const struct row STARTS[] = {
    CASE("the files are older than retention", BEGIN_AT(FILES), PUT(1, 10), LATER(7200 * 1000),
         PUT(2, 20), TRIM(1), TOPIC(KEPT_MS, HOUR_MS), START(3), IS(GAP, "retention.ms"),
         ROW(2, NONE), AGE(UNKNOWN), ACCEPT(OK), TURNS(3), ROW(2, 20), START(3), IS(RUNNING, NULL)),
    CASE("how long records are kept is not known", FILES(2, 0, 0, true)),
    CASE("retention cannot have removed them, DeleteRecords can", FILES(2, 3 * HOUR_MS, 0, true)),
    CASE("the log has a record from before the files", FILES(1, 3 * HOUR_MS, 0, false)),
    CASE("no record was removed", FILES(0, 3 * HOUR_MS, 0, false)),
    CASE("the wall clock was ahead for a moment", FILES(2, 3 * HOUR_MS, 10 * HOUR_MS, true)),
    CASE("the same, of a compacted topic", COMPACTED(3 * HOUR_MS),
         FILES(1, 3 * HOUR_MS, 10 * HOUR_MS, false)),
    CASE("producers may set times", TIMES(CREATED, 500, NONE, SKIPS)),
    CASE("the log sets times", TIMES(APPENDED, 500, NONE, "")),
    CASE("it is not known whether producers set times", TIMES(NONE, 500, NONE, "")),
    CASE("no record is older than the files", TIMES(CREATED, 1000, 90, "")),
};

static void test_start_when_records_before_it_are_skipped_then_a_gap_or_a_note(void **state)
{
    RUN(STARTS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_of_when_a_leader_is_silent_then_it_does_not_advance),
        cmocka_unit_test(test_as_of_when_a_record_is_not_applied_then_it_is_not_claimed),
        cmocka_unit_test_setup_teardown(
            test_as_of_when_behind_then_only_what_was_read_up_to_is_claimed, rig_setup, teardown),
        cmocka_unit_test(test_view_when_no_turn_happens_then_claims_expire),
        cmocka_unit_test(test_staleness_when_the_clock_is_set_back_then_never_too_low),
        cmocka_unit_test(test_version_when_frozen_then_old_until_a_seek),
        cmocka_unit_test(test_tombstone_when_it_may_be_compacted_away_then_a_gap),
        cmocka_unit_test(test_topic_when_recreated_then_a_gap_and_not_fresh),
        cmocka_unit_test(test_witness_when_topics_are_not_listed_then_requested),
        cmocka_unit_test(test_witness_when_none_is_found_then_no_gap_and_not_fresh_yet),
        cmocka_unit_test(test_topic_when_hidden_then_not_fresh),
        cmocka_unit_test(test_start_when_records_before_it_are_skipped_then_a_gap_or_a_note),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

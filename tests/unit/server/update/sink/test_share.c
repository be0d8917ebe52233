/* SPDX-License-Identifier: Apache-2.0
 *
 * A stream of updates of a version with a tier that other daemons share, turn by turn: the
 * positions that the tier stores, and how shards that are behind catch up.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/lib/fake_shared.h"
#include "tests/lib/stream_script.h"

enum { TIER_HOST = 0, TIER_SHARED = 1, TIER_DISK = 2, LOOK_US = 6 * 1000 * 1000 };

/* ---- more steps ------------------------------------------------------------------------------ */

static double own_result(struct rig *rig, const struct step *step);

enum own {
    OWN_AWAY,
    OWN_LOSE,
    OWN_MOVE,
    OWN_SHARD_AT,
    OWN_VERSION_AT,
    OWN_TIER,
    OWN_SHARED_TEN,
    OWN_BYPASSED,
    OWN_ROWS_LOST,
    OWN_SETTLE,
    OWN_PLACE,
    OWN_CLUSTER,
    OWN_BEGIN_AT,
    OWN_FILES,
    OWN_SEEK_FIRST
};
#define OWN(of, ...) GET(own_result, .b = OWN_##of, .text = #of, ##__VA_ARGS__)

/* The shard does not answer; it answers again. */
#define SHARD_AWAY(shard) OWN(AWAY, .a = (shard), .value = true)
#define SHARD_BACK(shard) OWN(AWAY, .a = (shard), .value = false)
#define LOSE(shard)       OWN(LOSE, .a = (shard)) /* rows and positions */
/* Another daemon, or an older copy, moves the shard to an offset of partition 0, or `number`. */
#define MOVE(shard, offset) MOVE_IN(0, shard, offset)
#define MOVE_IN(number, shard, offset) \
    OWN(MOVE, .a = (shard), .value = (offset), .per_key = (number))
/* The shard's position in partition 0, or `number` */
#define SHARD_AT(shard, offset) SHARD_AT_IN(0, shard, offset)
#define SHARD_AT_IN(number, shard, offset) \
    OWN(SHARD_AT, .a = (shard), .per_key = (number), .want = (offset))
#define VERSION_AT(offset) OWN(VERSION_AT, .want = (offset)) /* as the tier stores it */
#define HOST(key, v)       OWN(TIER, .value = TIER_HOST, .a = (key), .want = (v))
#define SHARED(key, v)     OWN(TIER, .value = TIER_SHARED, .a = (key), .want = (v))
#define BELOW(key, v)      OWN(TIER, .value = TIER_DISK, .a = (key), .want = (v))
#define SHARED_TEN(n)      OWN(SHARED_TEN, .value = (n), .want = 9 + (n)) /* rows 0 to 9: n + key */
#define BYPASSED(is)       OWN(BYPASSED, .want = (is))  /* The version no longer uses the tier. */
#define ROWS_LOST(is)      OWN(ROWS_LOST, .want = (is)) /* the only copy of them */
#define SETTLE             OWN(SETTLE)                  /* until hpsd has checked the tier again */
/* hpsd stops; the version is loaded again, without a stream. */
#define PLACE   OWN(PLACE)
#define RESTART PLACE, START(0)
/* The log reports no cluster id, or another one. */
#define NO_CLUSTER      OWN(CLUSTER, .a = false)
#define OTHER_CLUSTER   OWN(CLUSTER, .a = true)
#define BEGIN_AT(start) OWN(BEGIN_AT, .a = HPS_CONFIG_UPDATE_START_##start)
#define FILES(ms)       OWN(FILES, .a = (ms)) /* they are ms old */
/* Only partition 0 */
#define SEEK_FIRST(offset) OWN(SEEK_FIRST, .a = (offset), .want = HPS_OK)

/* Keys 0 to 9, five in each shard: n + key */
#define TEN(n)     STEP(PUT, .a = 0, .b = 9, .value = (n), .per_key = 1)
#define TEN_READ   TEN(100), START(6)
#define BEHIND(is) SHOWS(shared_behind, is)

static uint64_t partition_id(const struct step *step)
{
    return hps_log_partition(CLUSTER, ITEMS, (int32_t)step->per_key);
}

static double tier_value(struct rig *rig, int tier, int64_t key)
{
    return fixture_tier_value(&rig->fx, (uint32_t)tier, FIXTURE_ITEMS, (hps_key)key);
}

/* The value of the first key that differs, or of the last key */
static double shared_ten(struct rig *rig, double n)
{
    int64_t key = 0;
    while (key < 9 && tier_value(rig, TIER_SHARED, key) == n + (double)key) {
        key++;
    }
    return tier_value(rig, TIER_SHARED, key);
}

static void open_version(struct rig *rig)
{
    struct hps_error err = {0};
    fixture_version(&rig->fx, 7, "run");
    assert_int_equal(hps_updater_place(rig->fx.version, &err), HPS_OK);
}

static void settle(struct rig *rig)
{
    for (unsigned i = 0; i < 4; i++) {
        hps_clock_advance(LOOK_US);
        turns(rig, 12);
    }
}

static double own_result(struct rig *rig, const struct step *step)
{
    struct hps_store *shared = rig->fx.shared;
    const uint32_t shard = (uint32_t)step->a;
    switch ((enum own)step->b) {
    case OWN_SHARD_AT:
        return (double)hps_fake_shared_at(shared, shard, partition_id(step));
    case OWN_VERSION_AT:
        return (double)hps_fake_shared_version_at(shared, partition_id(step));
    case OWN_TIER:
        return tier_value(rig, (int)step->value, step->a);
    case OWN_SHARED_TEN:
        return shared_ten(rig, step->value);
    case OWN_BYPASSED:
        return hps_fake_shared_left(shared);
    case OWN_ROWS_LOST:
        return atomic_load(&rig->fx.version->shared_lost);
    case OWN_SEEK_FIRST:
        return command_on(rig, "", 0, HPS_UPDATE_SEEK, HPS_UPDATE_SEEK_OFFSET, step->a);
    case OWN_AWAY:
        hps_fake_shared_away(shared, shard, step->value != 0);
        break;
    case OWN_LOSE:
        hps_fake_shared_lose(shared, shard);
        break;
    case OWN_MOVE:
        hps_fake_shared_move(shared, shard, partition_id(step), (int64_t)step->value);
        break;
    case OWN_SETTLE:
        settle(rig);
        break;
    case OWN_PLACE:
        close_stream(rig);
        fixture_version_close(&rig->fx);
        open_version(rig);
        break;
    case OWN_CLUSTER:
        hps_fake_log_cluster(rig->log, step->a ? "other" : "");
        break;
    case OWN_BEGIN_AT:
        rig->config.update_source.start = (enum hps_config_update_start)step->a;
        break;
    case OWN_FILES:
        rig->fx.version->loaded_unix_ms = hps_clock_wall_ms() - (uint64_t)step->a;
        break;
    }
    return step->want;
}

static struct rig *open_rig(bool alone)
{
    struct rig *rig = rig_alloc();
    rig->config.update_source.max_batch_size = 4;
    rig->fx.shared = hps_fake_shared_new(alone);
    if (alone) {
        rig->fx.disk->ops->close(rig->fx.disk);
        rig->fx.disk = NULL;
    }
    open_version(rig);
    return rig;
}

static struct rig *with_disk(void)
{
    return open_rig(false);
}

static struct rig *alone(void)
{
    return open_rig(true);
}

/* ---- applying -------------------------------------------------------------------------------- */

static const struct row APPLY[] = {
    CASE("records come", PARTITIONS(2), TEN_READ, SHARED_TEN(100), SHARD_AT(0, 10), SHARD_AT(1, 10),
         VERSION_AT(10), SHARD_AT_IN(1, 0, 0), METRIC(SHARED_GAPS, NULL, 0), BEHIND(false)),
    CASE("the log does not say its id: the id is kept", TEN_READ, NO_CLUSTER, RESTART, TEN(200),
         TURNS(6), SHARED_TEN(200), SHARD_AT(0, 20), OTHER_CLUSTER, RESTART, SETTLE,
         IS(GAP, "cluster")),
    CASE("placed again: older rows are not read", TEN_READ, MOVE(0, 9), PLACE, VERSION_AT(10),
         SHARED(2, NONE), SHARED(3, 103)),
    CASE("nothing was ever applied: a shard that does not say is read", START(3), LOSE(0), RESTART,
         SETTLE, SHARD_AT(0, 0), METRIC(SHARED_RESETS, NULL, 1)),
};

static void test_shared_tier_when_records_are_applied_then_it_has_their_position(void **state)
{
    RUN_WITH(APPLY, with_disk);
}

/* ---- catching up ----------------------------------------------------------------------------- */

#define TENS(n) TEN(n), TEN((n) + 100), TEN((n) + 200), TEN((n) + 300), TEN((n) + 400)
#define OTHERS  STEP(PUT, .a = 10, .b = 19, .per_key = 1) /* keys 10 to 19 */
#define OTHERS5 OTHERS, OTHERS, OTHERS, OTHERS, OTHERS
/* Shard 0 is behind, or does not return its position. */
#define FALLS_BACK(how, low, reset, replayed)                                                \
    TEN_READ, how, SHARED(6, NONE), TRIM(low), SETTLE, SHARD_AT(0, 10),                      \
        SHARED(2, (reset) ? NONE : 102), SHARED(3, 103), METRIC(SHARED_RESETS, NULL, reset), \
        METRIC(SHARED_REPLAYED, NULL, replayed), PUT(2, 7), TURNS(3), SHARED(2, 7)

static const struct row REPAIR[] = {
    CASE("a shard was away: it gets what it missed, and no record is applied twice", TEN_READ,
         SHARD_AWAY(1), TEN(200), DELETE(3), TURNS(6), BEHIND(true), BELOW(5, 205), SHARD_BACK(1),
         SHARED(5, NONE), SETTLE, SHARED(5, 205), SHARED(4, 204), SHARED(3, NONE), SHARD_AT(1, 21),
         BEHIND(false), METRIC(SHARED_REPLAYED, NULL, 11), METRIC(SHARED_RESETS, NULL, 0),
         METRIC(RECORDS, NULL, 21)),
    CASE("records arrive during a replay: they do not wait", TENS(0), TENS(500), START(40),
         MOVE(1, 0), LATER(6000), TURNS(2), BEHIND(true), PUT(5, 7), TURNS(2), BELOW(5, 7),
         HOST(5, 7), BEHIND(true), TURNS(60), BEHIND(false), SHARD_AT(1, 101), SHARED(5, 7),
         METRIC(SHARED_RESETS, NULL, 0)),
    /* The replay of partition 1 also reads records of partition 0 that updates have
     * not applied yet. */
    CASE("a replay is ahead of updates: it omits no record", PARTITIONS(2), TEN(100), ON(ITEMS, 1),
         OTHERS5, OTHERS5, ON(ITEMS, 0), START(60), MOVE(1, 8), MOVE_IN(1, 1, 0), LATER(6000),
         TURNS(1), BEHIND(true), TEN(500), DISK_FAILS(EXHAUSTED, 0, 1), TURNS(6), BELOW(5, 105),
         BEHIND(true), LATER(6000), TURNS(60), BEHIND(false), SHARD_AT(1, 20), SHARED_TEN(500),
         METRIC(SHARED_RESETS, NULL, 0)),
    CASE("a shard falls back: replayed", FALLS_BACK(MOVE(0, 4), 0, false, 6)),
    CASE("its position is lost: emptied", FALLS_BACK(LOSE(0), 0, true, 0)),
    CASE("the log does not have the records: emptied", FALLS_BACK(MOVE(0, 4), 6, true, 0)),
    CASE("the topic is compacted: emptied", COMPACTED(1000000), BEGIN_AT(FILES), FILES(0),
         FALLS_BACK(MOVE(0, 4), 0, true, 0)),
    CASE("the log is away: waits for it", TEN_READ, MOVE(0, 4), AWAY, SETTLE, SHARD_AT(0, 4),
         METRIC(SHARED_RESETS, NULL, 0), BACK, SETTLE, SHARED_TEN(100)),
};

static void test_shard_when_it_is_behind_then_replayed_or_emptied(void **state)
{
    RUN_WITH(REPAIR, with_disk);
}

/* ---- a bypassed tier ------------------------------------------------------------------------- */

/* Records before `low` are removed. Retention keeps records for `kept` ms; 0: not known. The files
 * are 10 s old. */
#define CUT(start, kept, low, left)                                                             \
    TEN(100), TOPIC(KEPT_MS, kept), TRIM(low), BEGIN_AT(start), FILES(10000), START(0), SETTLE, \
        BYPASSED(left), RESTART, BYPASSED(left)
#define BEYOND(more) \
    TEN(100), MOVE(0, 10 + (more)), MOVE(1, 10 + (more)), START(0), SETTLE, BYPASSED((more) > 0)

static const struct row BYPASS[] = {
    CASE("a seek forward: bypassed until a seek back", TEN_READ, PAUSE(OK), TEN(200), SEEK(15, OK),
         RESUME(OK), TURNS(6), BELOW(9, 209), BELOW(1, 101), SHARD_AT(0, 10), BYPASSED(true),
         SHOWS(shared_apart, true), RESTART, SETTLE, BYPASSED(true), SHARD_AT(0, 10), SEEK(10, OK),
         SETTLE, BYPASSED(false), SHOWS(shared_apart, false), SHARED_TEN(200)),
    /* Another daemon may have started at another end. */
    CASE("a start at the end: bypassed until a seek to the start", BEGIN_AT(LATEST), TEN_READ,
         PUT(3, 7), TURNS(6), BELOW(3, 7), BYPASSED(true), SEEK(0, OK), SETTLE, BYPASSED(false),
         SHARD_AT(0, 11), SHARED(4, 104)),
    CASE("an accepted gap: always bypassed", TEN_READ, TEN(200), TRIM(14), RESTART, TURNS(3),
         IS(GAP, NULL), ACCEPT(OK), SETTLE, BELOW(9, 209), BYPASSED(true), SEEK(14, OK), SETTLE,
         BYPASSED(true), SHARD_AT(0, 10)),
    CASE("frozen: bypassed from the first skipped record on", TEN_READ, FREEZE(1), TURNS(1),
         BYPASSED(false), TEN(200), TURNS(6), BYPASSED(true), SHARD_AT(0, 10), SEEK(10, OK), SETTLE,
         SHARED_TEN(200)),
    /* Another daemon with the same files may have applied the records that retention removed. */
    CASE("nothing is removed", CUT(EARLIEST, 1 << 30, 0, false)),
    CASE("records are removed before a start with the earliest", CUT(EARLIEST, 1 << 30, 4, true)),
    CASE("all are removed before a start with the latest", CUT(LATEST, 1 << 30, 10, true)),
    CASE("nothing is removed since the files", CUT(FILES, 0, 0, false)),
    CASE("the retention is not known", CUT(FILES, 0, 4, true)),
    CASE("records may be younger than the files", CUT(FILES, 5000, 4, true)),
    CASE("the removed records are older than the files", CUT(FILES, 20000, 4, false)),
    CASE("a compacted topic from the earliest", COMPACTED(20000), CUT(EARLIEST, 0, 0, true)),
    CASE("deletes since the files may be removed", COMPACTED(5000), CUT(FILES, 0, 0, true)),
    CASE("no delete since the files is removed", COMPACTED(20000), CUT(FILES, 0, 0, false)),
    CASE("the tier is at the end of the log", BEYOND(0)),
    /* Its positions are of a deleted topic of the same name. */
    CASE("the tier is beyond the end of the log", BEYOND(1)),
};

static void test_shared_tier_when_records_are_skipped_then_bypassed(void **state)
{
    RUN_WITH(BYPASS, with_disk);
}

/* ---- the only copy --------------------------------------------------------------------------- */

/* Host and shared tier, keys `first` to `last` */
#define BOTH(first, last, n) STEP(ROWS, .a = (first), .b = (last), .value = (n), .per_key = 1)

static const struct row ONLY_COPY[] = {
    CASE("other daemons were first: starts at the lowest shard", TEN_READ, SHARED_TEN(100),
         MOVE(0, 8), RESTART, SETTLE, SHARD_AT(0, 10), SHARED_TEN(100), METRIC(RECORDS, NULL, 12)),
    CASE("its own start is later: starts where other daemons are", BEGIN_AT(LATEST), START(3),
         TEN(100), TURNS(6), TEN(200), RESTART, SETTLE, SHARD_AT(0, 20), SHARED_TEN(200)),
    CASE("the log is shorter: a gap", TEN_READ, TEN(200), TRIM(14), RESTART, SETTLE, IS(GAP, NULL),
         ACCEPT(OK), SETTLE, SHARD_AT(0, 20), SHARED(1, 101), SHARED(9, 209)),
    CASE("a shard is away at the start: waits", TEN(100), SHARD_AWAY(1), START(4),
         IS(STARTING, NULL), SHARD_BACK(1), SETTLE, SHARED_TEN(100)),
    CASE("a seek before the tier has named its position: rejected", TEN_READ, SHARD_AWAY(1),
         RESTART, TEN(200), TRIM(14), TURNS(2), SEEK_TO(EARLIEST, UNAVAILABLE), SHARD_BACK(1),
         SETTLE, SHOWS(held, false), IS(GAP, "retention"), ACCEPT(OK), SETTLE, SHARD_AT(0, 20),
         SHARED(9, 209)),
    CASE("a shard is away: the batch waits", TEN_READ, SHARD_AWAY(1), TEN(200), SETTLE, NEXT(10),
         SHOWS(held, true), SHARD_BACK(1), SETTLE, SHARED_TEN(200), SHOWS(held, false)),
    /* A shard that does not return its position gets no batch, and no seek. */
    CASE("a seek is not stored: starts again where other daemons are", BEGIN_AT(LATEST), TEN(100),
         MOVE(0, 4), START(4), SHOWS(held, true), SEEK(10, UNAVAILABLE), SETTLE, SHOWS(held, true),
         MOVE(1, 4), SETTLE, SHOWS(held, false), SHARD_AT(0, 10), SHARED(9, 109)),
    /* Otherwise that shard, ahead of the version, would omit records that the host applies. */
    CASE("a seek reaches one shard: it is completed", TEN_READ, PAUSE(OK), TEN(200), SHARD_AWAY(1),
         SEEK(15, UNAVAILABLE), SHARD_AT(0, 15), SHARD_BACK(1), SETTLE, SHARD_AT(1, 15), RESUME(OK),
         SETTLE, BOTH(0, 4, 100), BOTH(5, 9, 200)),
    CASE("acknowledged writes are lost: replayed", TEN_READ, MOVE(1, 3), PUT(3, 7), SETTLE,
         SHARD_AT(1, 11), SHARED(3, 7), SHARED(5, 105)),
    CASE("the log lacks the lost records: reported until the rows are back", TEN(100), START(0),
         SETTLE, ROWS_LOST(false), MOVE(0, 4), TRIM(6), SETTLE, ROWS_LOST(true), MOVE(0, 10),
         SETTLE, ROWS_LOST(false)),
    /* Otherwise daemons that still apply records would find the tier ahead of them. */
    CASE("frozen, and the partition does not exist any more: a seek leaves it", PARTITIONS(2),
         TEN_READ, FREEZE(1), ON(ITEMS, 1), TEN(200), TURNS(1), IS(FROZEN, NULL),
         TOPIC(DELETED, true), PARTITIONS(1), ON(ITEMS, 0), TEN(300), TEN(400), SEEK_TO(LATEST, OK),
         TURNS(3), SHOWS(frozen, false)),
    CASE("frozen: stops at the first record that it would skip", PARTITIONS(2), TEN_READ, FREEZE(1),
         TURNS(1), TEN(200), ON(ITEMS, 1), PUT(20, 5), ON(ITEMS, 0), SETTLE, SHARD_AT(0, 10),
         IS(FROZEN, NULL), NEXT(10), SEEK_FIRST(10), SETTLE, SHARED_TEN(200), SHARED(20, 5)),
    CASE("a seek back is rejected, a seek forward is done", TEN_READ, SEEK(4, PRECONDITION),
         PAUSE(OK), TEN(200), SEEK(15, OK), RESUME(OK), SETTLE, SHARD_AT(0, 20), SHARED(1, 101),
         SHARED(9, 209)),
};

static void test_shared_tier_when_it_has_the_only_copy_then_it_never_moves_back(void **state)
{
    RUN_WITH(ONLY_COPY, alone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shared_tier_when_records_are_applied_then_it_has_their_position),
        cmocka_unit_test(test_shard_when_it_is_behind_then_replayed_or_emptied),
        cmocka_unit_test(test_shared_tier_when_records_are_skipped_then_bypassed),
        cmocka_unit_test(test_shared_tier_when_it_has_the_only_copy_then_it_never_moves_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

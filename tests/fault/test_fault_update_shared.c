/* SPDX-License-Identifier: Apache-2.0
 *
 * Two daemons, one log, one real Redis server, and what befalls them in any order: restarts,
 * insertions of what only one of them has, seeks, shards that are deleted or of an older state,
 * a full server. Whatever a daemon finds in Redis is a row that the log has for the key, and none
 * that it has applied a later write over (later in the key's partition, or by row versions across
 * them); in the end all shards are at the end of the log.
 */
#include "tests/lib/redis_fixture.h"

#include "backends/redis/keys.h"
#include "base/log.h"
#include "server/observe/metrics.h"
#include "server/update/updater.h"
#include "tests/lib/fake_log.h"
#include "tests/lib/update_fixture.h"
#include "tests/lib/work.h"

#define ITEMS "hps_et.m.items"

enum {
    N_DAEMONS = 2,
    N_PARTITIONS = 2,
    N_KEYS = 40,
    N_RECORDS_MAX = 4000,
    N_STEPS = 600,
    N_SEEDS = 1 + HPS_TEST_WORK(3),
    TIER_SHARED = 1,
    TIER_DISK = 2
};

struct daemon {
    struct update_fixture fx;
    struct hps_updater *updater;
    struct hps_update_stream *stream;
};

struct written {
    hps_key key;
    uint64_t row_version;
    bool deleted;
};

static struct {
    struct daemon daemons[N_DAEMONS];
    struct hps_update_log *log;
    struct hps_metrics *metrics;
    struct hps_config config;
    struct hps_updater_options options;
    struct written records[N_PARTITIONS][N_RECORDS_MAX];
    int64_t ends[N_PARTITIONS];
    uint64_t random;
    uint64_t n_found;
    uint32_t n_written;
    bool row_versions; /* of keys that are in any partition */
} world;

static uint32_t any(uint32_t n)
{
    world.random = hps_mix64(world.random + 1);
    return (uint32_t)(world.random % n);
}

/* ---- daemons --------------------------------------------------------------------------------- */

static void daemon_start(struct daemon *daemon)
{
    struct hps_error err = {0};
    fixture_version(&daemon->fx, 7, "run");
    assert_int_equal(hps_updater_place(daemon->fx.version, &err), HPS_OK);
    assert_int_equal(hps_updater_new(&world.options, &daemon->updater, &err), HPS_OK);
    daemon->stream = update_stream_new(&daemon->updater->common, daemon->fx.version, 0);
    assert_non_null(daemon->stream);
    assert_int_equal(update_stream_open(daemon->stream, &err), HPS_OK);
}

static void daemon_stop(struct daemon *daemon)
{
    update_stream_close(daemon->stream);
    update_stream_free(daemon->stream);
    hps_updater_free(daemon->updater);
    fixture_version_close(&daemon->fx);
}

/* What is due later is due now. */
static void turn(struct daemon *daemon)
{
    daemon->stream->pace->retry_due_us = 0;
    daemon->stream->begin_due_us = 0;
    if (any(4) == 0) {
        daemon->stream->share->due_us = 0;
    }
    update_stream_turn(daemon->stream, 0);
}

static void seek(struct daemon *daemon, int64_t offset)
{
    const struct hps_update_command asked = {.kind = HPS_UPDATE_SEEK,
                                             .model = "m",
                                             .topic = "",
                                             .partition = (int32_t)any(N_PARTITIONS),
                                             .to = HPS_UPDATE_SEEK_OFFSET,
                                             .value = offset};
    struct hps_update_work work = {.command = asked};
    update_run_command(daemon->stream, &work);
}

static bool is_apart(const struct daemon *daemon)
{
    return daemon->stream->share->phase == UPDATE_SHARE_BYPASSED;
}

/* ---- the log --------------------------------------------------------------------------------- */

static uint32_t partition_of(hps_key key)
{
    return world.row_versions ? any(N_PARTITIONS) : (uint32_t)(key % N_PARTITIONS);
}

/* The row of a record says which it is. */
static void write_one(void)
{
    hps_key key = any(N_KEYS);
    uint32_t partition = partition_of(key);
    const struct written record = {
        .key = key,
        .row_version = 1 + (world.n_written + any(50)) * UINT64_C(10000) + world.n_written,
        .deleted = any(8) == 0};
    int64_t offset = world.ends[partition]++;
    assert_true(offset < N_RECORDS_MAX);
    world.records[partition][offset] = record;
    world.n_written++;
    float value = (float)(partition * N_RECORDS_MAX + offset);
    const float row[FIXTURE_DIM] = {value, value};
    const struct hps_fake_header header = {HPS_UPDATE_HEADER_ROW_VERSION, &record.row_version,
                                           sizeof(record.row_version)};
    const struct hps_fake_record fake = {.key = &key,
                                         .key_size = sizeof(key),
                                         .value = record.deleted ? NULL : row,
                                         .value_size = record.deleted ? 0 : sizeof(row),
                                         .headers = &header,
                                         .n_headers = world.row_versions ? 1 : 0,
                                         .time_unix_ms = (int64_t)hps_clock_wall_ms(),
                                         .time_of = HPS_RECORD_TIME_CREATED};
    hps_fake_log_append(world.log, ITEMS, (int32_t)partition, &fake);
}

static void write_some(void)
{
    for (uint32_t n = any(20); n > 0; n--) {
        write_one();
    }
}

/* Where a daemon has said that it is. */
static int64_t published(const struct daemon *daemon, uint32_t number)
{
    for (uint32_t i = 0; i < daemon->stream->n_partitions; i++) {
        const struct update_partition *partition = &daemon->stream->partitions[i];
        if (update_is_published(partition) && partition->number == (int32_t)number) {
            return partition->applied->next;
        }
    }
    return 0;
}

/* A row that the key never had, or that was written over by what the daemon has applied. */
static bool is_wrong(const struct daemon *daemon, hps_key key, float value)
{
    uint32_t partition = (uint32_t)value / N_RECORDS_MAX;
    int64_t at = (int64_t)value % N_RECORDS_MAX;
    if (value < 0 || partition >= N_PARTITIONS || at >= world.ends[partition]) {
        return true;
    }
    const struct written *found = &world.records[partition][at];
    bool wrong = found->key != key || found->deleted;
    for (uint32_t p = 0; p < N_PARTITIONS; p++) {
        for (int64_t i = 0; i < published(daemon, p); i++) {
            const struct written *other = &world.records[p][i];
            bool later = world.row_versions ? other->row_version > found->row_version
                                            : p == partition && i > at;
            wrong = wrong || (other->key == key && later);
        }
    }
    return wrong;
}

static void lookup_all(struct daemon *daemon, uint64_t seed)
{
    for (hps_key key = 0; key < N_KEYS; key++) {
        float found = fixture_tier_value(&daemon->fx, TIER_SHARED, FIXTURE_ITEMS, key);
        world.n_found += found >= 0 ? 1 : 0;
        if (found >= 0 && is_wrong(daemon, key, found)) {
            fail_msg("seed %u: daemon %u at %d, %d finds %d for key %u", (unsigned)seed,
                     (unsigned)(daemon - world.daemons), (int)published(daemon, 0),
                     (int)published(daemon, 1), (int)found, (unsigned)key);
        }
        assert_false(found >= 0 && is_apart(daemon));
    }
}

/* As a lookup does that has found the row below. */
static void insert_some(struct daemon *daemon)
{
    struct hps_space *space = daemon->fx.version->tiers[TIER_SHARED];
    const struct hps_table *table = &daemon->fx.version->tables[FIXTURE_ITEMS];
    struct hps_insert_report report;
    for (uint32_t n = any(20); n > 0; n--) {
        hps_key key = any(N_KEYS);
        uint32_t slot = 0;
        float value = fixture_tier_value(&daemon->fx, TIER_DISK, FIXTURE_ITEMS, key);
        const float row[FIXTURE_DIM] = {value, value};
        if (value >= 0) {
            assert_int_equal(space->store->ops->insert(space, &fx_call, table, &key, &slot,
                                                       (const uint8_t *)row, 1, NULL, &report),
                             HPS_OK);
        }
    }
}

/* ---- the server ------------------------------------------------------------------------------ */

static void shard_name(char out_name[HPS_REDIS_NAME_BYTES_MAX])
{
    const struct hps_version *version = world.daemons[0].fx.version;
    const struct hps_space_id id = {"m", 7, version->tables, FIXTURE_TABLES, 0};
    hps_redis_shard_name(&id, hps_redis_load_hash(&id, FX_SHARDS), any(FX_SHARDS), false, out_name);
}

static void hurt_server(void)
{
    char name[HPS_REDIS_NAME_BYTES_MAX];
    shard_name(name);
    switch (any(8)) {
    case 0:
        (void)hps_redis_rig_ask(fx_rig, 0, "DEL %s", name);
        break;
    case 1:
        (void)hps_redis_rig_ask(fx_rig, 0, any(4) == 0 ? "FLUSHALL" : "SCRIPT FLUSH");
        break;
    case 2:
        (void)hps_redis_rig_ask(fx_rig, 0, "CONFIG SET maxmemory %s", any(2) == 0 ? "1mb" : "0");
        break;
    case 3:
    case 4:
    case 5:
        (void)hps_redis_rig_ask(fx_rig, 0, "COPY %s old:%s REPLACE", name, name);
        break;
    default:
        (void)hps_redis_rig_ask(fx_rig, 0, "COPY old:%s %s REPLACE", name, name);
        break;
    }
}

/* ---- the test -------------------------------------------------------------------------------- */

static void step(struct daemon *daemon, uint64_t seed)
{
    switch (any(16)) {
    case 0:
        daemon_stop(daemon);
        daemon_start(daemon);
        break;
    case 1:
    case 2:
        hurt_server();
        break;
    case 3:
    case 4:
    case 5:
        write_some();
        break;
    case 6:
    case 7:
        insert_some(daemon);
        break;
    case 8:
        if (any(4) == 0) {
            seek(daemon, any((uint32_t)world.ends[0] + 1));
        }
        break;
    default:
        turn(daemon);
        break;
    }
    lookup_all(daemon, seed);
}

/* No shard is behind or lost, and each daemon is at the end. */
static bool is_settled(struct daemon *daemon)
{
    struct hps_log_position behind[N_PARTITIONS];
    struct hps_space *space = daemon->fx.version->tiers[TIER_SHARED];
    uint32_t n = 0;
    for (uint32_t p = 0; p < N_PARTITIONS; p++) {
        if (published(daemon, p) < world.ends[p]) {
            return false;
        }
    }
    return space->store->ops->log->behind(space, &fx_call, behind, N_PARTITIONS, &n) == HPS_OK &&
           n == 0;
}

static void settle(uint64_t seed)
{
    (void)hps_redis_rig_ask(fx_rig, 0, "CONFIG SET maxmemory 0");
    for (uint32_t i = 0; i < N_DAEMONS; i++) {
        struct daemon *daemon = &world.daemons[i];
        for (uint32_t p = 0; p < N_PARTITIONS; p++) { /* what was passed over is made up for */
            const struct hps_update_command asked = {.kind = HPS_UPDATE_SEEK,
                                                     .model = "m",
                                                     .topic = "",
                                                     .partition = (int32_t)p,
                                                     .to = HPS_UPDATE_SEEK_EARLIEST};
            struct hps_update_work work = {.command = asked};
            turn(daemon);
            update_run_command(daemon->stream, &work);
        }
    }
    for (unsigned n = 0; !is_settled(&world.daemons[0]) || !is_settled(&world.daemons[1]); n++) {
        if (n == 4000) {
            fail_msg("seed %u: shards stay behind", (unsigned)seed);
        }
        for (uint32_t i = 0; i < N_DAEMONS; i++) {
            turn(&world.daemons[i]);
        }
    }
}

static void world_make(uint64_t seed, bool row_versions)
{
    static const char *const members[N_DAEMONS] = {"one", "two"};
    memset(&world, 0, sizeof(world));
    world.random = seed * 1000;
    world.row_versions = row_versions;
    world.log = hps_fake_log_new("cluster-1");
    world.metrics = hps_server_metrics_new();
    hps_fake_log_topic(world.log, ITEMS, N_PARTITIONS);
    world.config = (struct hps_config){
        .key_bytes = 8,
        .persistent_db.wal_sync_ms = 500,
        .update_source = {.start = HPS_CONFIG_UPDATE_START_EARLIEST,
                          .max_batch_size = 7,
                          .max_batch_bytes = 1 << 20,
                          .poll_timeout_ms = 1000,
                          .metadata_refresh_interval_ms = 30000,
                          .failure_backoff_ms = 1,
                          .dead_letter_topic = (char *)""},
    };
    world.options = (struct hps_updater_options){
        .log = world.log, .metrics = world.metrics, .config = &world.config};
    for (uint32_t i = 0; i < N_DAEMONS; i++) {
        fixture_stores(&world.daemons[i].fx);
        world.daemons[i].fx.row_versions = row_versions;
        world.daemons[i].fx.shared = fx_open(members[i]);
        daemon_start(&world.daemons[i]);
    }
}

static void mistreat(bool row_versions)
{
    uint64_t n_found = 0;
    hps_log_level_set(HPS_LOG_ERROR);
    for (uint64_t seed = 1; seed <= N_SEEDS; seed++) {
        fx_clean(NULL);
        world_make(seed, row_versions);
        for (unsigned n = 0; n < N_STEPS; n++) {
            step(&world.daemons[any(N_DAEMONS)], seed);
        }
        settle(seed);
        for (uint32_t i = 0; i < N_DAEMONS; i++) {
            lookup_all(&world.daemons[i], seed);
        }
        n_found += world.n_found;
        for (uint32_t i = 0; i < N_DAEMONS; i++) {
            daemon_stop(&world.daemons[i]);
            fixture_stores_close(&world.daemons[i].fx);
        }
        world.log->ops->close(world.log);
        hps_metrics_free(world.metrics);
    }
    uint64_t n_least =
        N_SEEDS * N_STEPS; /* it is of use, too; less so where updates take rows out */
    assert_true(n_found > (row_versions ? n_least / 4 : n_least));
}

static void test_shared_when_anything_befalls_it_then_nothing_old_is_found_and_all_of_it_comes_on(
    void **state)
{
    (void)state;
    mistreat(false);
}

static void test_shared_when_rows_have_versions_then_likewise(void **state)
{
    (void)state;
    mistreat(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            test_shared_when_anything_befalls_it_then_nothing_old_is_found_and_all_of_it_comes_on),
        cmocka_unit_test(test_shared_when_rows_have_versions_then_likewise),
    };
    if (!hps_redis_rig_present()) {
        return HPS_REDIS_RIG_SKIP;
    }
    return cmocka_run_group_tests(tests, fx_start, fx_stop);
}

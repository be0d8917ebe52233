/* SPDX-License-Identifier: Apache-2.0
 *
 * A stream of the version of update_fixture.h, turn by turn on the test's own thread, with a
 * scripted log and a fake clock. The topic of the items has one partition.
 */
#ifndef HPS_TESTS_LIB_STREAM_RIG_H
#define HPS_TESTS_LIB_STREAM_RIG_H

#include "base/clock.h"
#include "base/log.h"
#include "server/observe/metrics.h"
#include "server/update/updater.h"
#include "tests/lib/fake_log.h"
#include "tests/lib/update_fixture.h"

#define ITEMS   "hps_et.m.items"
#define USERS   "hps_et.m.users"
#define CLUSTER "cluster-1"

struct rig {
    struct update_fixture fx;
    struct hps_update_log *log;
    struct hps_metrics *metrics;
    struct hps_config config; /* until the stream is opened */
    struct hps_updater_options options;
    struct hps_updater *updater;
    struct hps_update_stream *stream;
    uint64_t n_switches; /* switches of the model, as the catalog counts them */
};

/* Create stores, log and options, without a version and a stream. */
static inline struct rig *rig_alloc(void)
{
    struct rig *rig = hps_calloc(1, sizeof(*rig));
    assert_non_null(rig);
    hps_log_level_set(HPS_LOG_ERROR);
    hps_clock_fake(UINT64_C(1000000) * 1000000);
    fixture_stores(&rig->fx);
    rig->log = hps_fake_log_new(CLUSTER);
    rig->metrics = hps_server_metrics_new();
    hps_fake_log_topic(rig->log, ITEMS, 1);
    rig->config = (struct hps_config){
        .key_bytes = 8,
        .persistent_db.wal_sync_ms = 500,
        .update_source = {.start = HPS_CONFIG_UPDATE_START_EARLIEST,
                          .max_batch_size = 100,
                          .max_batch_bytes = 1 << 20,
                          .poll_timeout_ms = 1000,
                          .metadata_refresh_interval_ms = 30000,
                          .failure_backoff_ms = 50,
                          .dead_letter_topic = (char *)""},
    };
    rig->options = (struct hps_updater_options){
        .log = rig->log, .metrics = rig->metrics, .config = &rig->config};
    return rig;
}

/* others: existing streams; NULL: none. */
static inline void open_stream_beside(struct rig *rig, struct hps_update_stream *others)
{
    struct hps_error err = {0};
    assert_int_equal(hps_updater_new(&rig->options, &rig->updater, &err), HPS_OK);
    rig->updater->streams = others;
    rig->stream = update_stream_new(&rig->updater->common, rig->fx.version, rig->n_switches);
    assert_non_null(rig->stream);
    assert_int_equal(update_open(rig->updater, rig->stream, &err), HPS_OK);
    atomic_store(&rig->stream->active, true);
    rig->updater->streams = NULL;
}

static inline void open_stream(struct rig *rig)
{
    open_stream_beside(rig, NULL);
}

static inline void close_stream(struct rig *rig)
{
    if (rig->stream != NULL) {
        update_stream_close(rig->stream);
        update_stream_free(rig->stream);
        rig->stream = NULL;
    }
    hps_updater_free(rig->updater);
    rig->updater = NULL;
}

static inline void turns(struct rig *rig, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        update_stream_turn(rig->stream, 0);
        update_waits_show(rig->stream);
    }
}

static inline int teardown(void **state)
{
    struct rig *rig = *state;
    close_stream(rig);
    fixture_version_close(&rig->fx);
    fixture_stores_close(&rig->fx);
    rig->log->ops->close(rig->log);
    hps_metrics_free(rig->metrics);
    hps_clock_real();
    hps_free(rig);
    return 0;
}

/* For cmocka: a version without a shared tier. The test opens the stream. */
static inline int rig_setup(void **state)
{
    struct rig *rig = rig_alloc();
    fixture_version(&rig->fx, 7, "run");
    *state = rig;
    return 0;
}

/* The same for one case of many in a test. */
static inline struct rig *rig_open(void)
{
    void *state = NULL;
    assert_int_equal(rig_setup(&state), 0);
    return state;
}

static inline void rig_close(struct rig *rig)
{
    void *state = rig;
    teardown(&state);
}

/* Restart hpsd: stores and log stay. The new stream takes n turns. */
static inline void rig_restart(struct rig *rig, unsigned n)
{
    close_stream(rig);
    fixture_version_close(&rig->fx);
    fixture_version(&rig->fx, 7, "run");
    open_stream(rig);
    turns(rig, n);
}

/* Log one keyed record: key and the value of its row; below 0: a delete. Returns its offset. */
static inline int64_t put_on(struct rig *rig, const char *topic, int32_t partition, hps_key key,
                             float value)
{
    const float row[FIXTURE_DIM] = {value, value};
    const struct hps_fake_record record = {.key = &key,
                                           .key_size = sizeof(key),
                                           .value = value < 0 ? NULL : row,
                                           .value_size = value < 0 ? 0 : sizeof(row),
                                           .time_unix_ms = (int64_t)hps_clock_wall_ms(),
                                           .time_of = HPS_RECORD_TIME_CREATED};
    return hps_fake_log_append(rig->log, topic, partition, &record);
}

static inline int64_t put(struct rig *rig, hps_key key, float value)
{
    return put_on(rig, ITEMS, 0, key, value);
}

/* Log records of the keys 1 to n, open the stream, and have it read them. The value of a key is ten
 * times the key. */
static inline void begin(struct rig *rig, hps_key n)
{
    for (hps_key key = 1; key <= n; key++) {
        put(rig, key, 10 * (float)key);
    }
    open_stream(rig);
    turns(rig, 3);
}

/* Run a command for partitions of `topic` ("": all) with the number `partition` (-1: all). */
static inline hps_status command_on(struct rig *rig, const char *topic, int32_t partition,
                                    enum hps_update_command_kind kind, enum hps_update_seek to,
                                    int64_t value)
{
    struct hps_update_work work = {.command = {.kind = kind,
                                               .model = "m",
                                               .topic = topic,
                                               .partition = partition,
                                               .to = to,
                                               .value = value}};
    update_run_command(rig->stream, &work);
    update_stream_show(rig->stream);
    return work.error.status;
}

static inline hps_status command(struct rig *rig, enum hps_update_command_kind kind)
{
    return command_on(rig, "", -1, kind, HPS_UPDATE_SEEK_OFFSET, 0);
}

static inline hps_status seek(struct rig *rig, int64_t offset)
{
    return command_on(rig, "", -1, HPS_UPDATE_SEEK, HPS_UPDATE_SEEK_OFFSET, offset);
}

/* Switch n_switches of the model makes a version of another lineage the active one. */
static inline void freeze(struct rig *rig, uint64_t n_switches)
{
    atomic_store(&rig->stream->freeze.asked_by, n_switches);
    turns(rig, 1);
}

/* The first value of a row of the items, as lookups return it. */
static inline float item(struct rig *rig, hps_key key)
{
    return fixture_value(&rig->fx, FIXTURE_ITEMS, key);
}

#endif

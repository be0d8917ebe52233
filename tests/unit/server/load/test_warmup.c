/* SPDX-License-Identifier: Apache-2.0
 *
 * Hot keys that are kept over a restart and put into a host map: which keys, in which order and
 * how many. Also records that are damaged, left over or of no model.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "backends/store_durable.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/log.h"
#include "cache/device/sim/sim.h"
#include "cache/gpu/internal.h"
#include "cache/lookup/hot.h"
#include "server/load/warmup.h"
#include "server/load/whole.h"
#include "tests/lib/fake_store.h"
#include "tests/lib/pause.h"

enum { DIM = 4, ROW_BYTES = 16, N_ROWS = 4000, HOST_ROW_BYTES = ROW_BYTES + 24 };

struct rig {
    struct hps_store *host;
    struct hps_store *durable;
    struct hps_metrics *metrics;
    struct hps_warmup *warmup;
    struct hps_warmup_options options;
    struct hps_version *version;
    uint64_t free_bytes;
    uint32_t n_asked;                /* calls of go_on */
    uint32_t stop_at;                /* the call that stops; 0: none */
    struct hps_warmup_report so_far; /* at the last call */
    struct hps_device *held;         /* until the third call */
    struct hps_block_pool *blocks;   /* in tests with a device, like tier */
    struct hps_gpu_tier *tier;
};

static void row_of(uint32_t table, hps_key key, float row[DIM])
{
    for (uint32_t i = 0; i < DIM; i++) {
        row[i] = (float)key * 4 + (float)i + (float)table * 0.5f;
    }
}

/* Open version `number` with two tables, "a" before "b" or after it. Their rows are in the
 * store. */
static struct hps_version *version_open(struct rig *rig, int64_t number, const char *names[2])
{
    struct hps_version *version = hps_version_new("m", number, 2);
    const struct hps_call call = {0};
    struct hps_store *stores[2] = {rig->host, rig->durable};
    for (uint32_t i = 0; i < 2; i++) {
        version->tables[i] = (struct hps_table){.name = hps_strdup(names[i]),
                                                .id = i,
                                                .dim = DIM,
                                                .row_bytes = ROW_BYTES,
                                                .dtype = HPS_DTYPE_FP32,
                                                .n_rows = N_ROWS};
    }
    for (uint32_t i = 0; i < 2; i++) {
        const struct hps_space_id id = {"m", number, version->tables, 2, 0};
        assert_int_equal(stores[i]->ops->space_open(stores[i], &id, &version->tiers[i], NULL),
                         HPS_OK);
        version->n_tiers++;
    }
    struct hps_space *space = version->tiers[1];
    for (uint32_t i = 0; i < 2; i++) {
        for (hps_key key = 0; key < N_ROWS; key++) {
            float row[DIM];
            row_of((uint32_t)names[i][0], key, row);
            assert_int_equal(space->store->ops->put(space, &call, &version->tables[i], &key,
                                                    (const uint8_t *)row, 1),
                             HPS_OK);
        }
    }
    return version;
}

static void version_close(struct hps_version *version)
{
    for (uint32_t i = 0; i < version->n_tiers; i++) {
        version->tiers[i]->store->ops->space_close(version->tiers[i]);
    }
    hps_version_free(version);
}

/* Returns whether the host map has the right row of the key. */
static bool warm(struct hps_version *version, uint32_t table, hps_key key)
{
    float row[DIM];
    float expected[DIM];
    uint32_t slot = 0;
    hps_key asked = key;
    const struct hps_call call = {0};
    struct hps_batch batch = {.keys = &asked, .slots = &slot, .rows = (uint8_t *)row, .n = 1};
    struct hps_space *host = version->tiers[0];
    assert_int_equal(host->store->ops->get(host, &call, &version->tables[table], &batch), HPS_OK);
    row_of((uint32_t)version->tables[table].name[0], key, expected);
    if (batch.n == 0) {
        assert_memory_equal(row, expected, sizeof(row));
    }
    return batch.n == 0;
}

static uint32_t n_warm(struct hps_version *version, uint32_t table, hps_key from, hps_key to)
{
    uint32_t n = 0;
    for (hps_key key = from; key < to; key++) {
        n += warm(version, table, key);
    }
    return n;
}

static const char *names_ab[2] = {"a", "b"};
static const char *names_ba[2] = {"b", "a"};

static int setup(void **state)
{
    static struct rig rig;
    const struct hps_fake_options host = {.name = "host", .tier = HPS_TIER_HOST};
    const struct hps_fake_options durable = {.name = "rocksdb",
                                             .tier = HPS_TIER_ROCKSDB,
                                             .caps = HPS_STORE_DURABLE | HPS_STORE_BLOCKING};
    memset(&rig, 0, sizeof(rig));
    hps_log_level_set(HPS_LOG_ERROR);
    rig.host = hps_fake_store_new(&host);
    rig.durable = hps_fake_store_new(&durable);
    rig.metrics = hps_server_metrics_new();
    rig.free_bytes = UINT64_MAX;
    rig.options = (struct hps_warmup_options){.host = rig.host,
                                              .durable = rig.durable,
                                              .host_bytes_max = 1 << 20,
                                              .hot_bytes_max = 1 << 20,
                                              .metrics = rig.metrics};
    rig.version = version_open(&rig, 1, names_ab);
    rig.warmup = hps_warmup_new(&rig.options);
    hps_warmup_attach(rig.warmup, rig.version);
    *state = &rig;
    return 0;
}

static int teardown(void **state)
{
    struct rig *rig = *state;
    hps_clock_real();
    version_close(rig->version);
    hps_warmup_free(rig->warmup);
    hps_metrics_free(rig->metrics);
    rig->host->ops->close(rig->host);
    rig->durable->ops->close(rig->durable);
    return 0;
}

/* Restart the warm-up with other options. */
static void renew(struct rig *rig)
{
    hps_warmup_free(rig->warmup);
    rig->warmup = hps_warmup_new(&rig->options);
    hps_warmup_attach(rig->warmup, rig->version);
}

static void open_host(struct rig *rig)
{
    const struct hps_space_id id = {"m", 1, rig->version->tables, 2, 0};
    assert_int_equal(rig->host->ops->space_open(rig->host, &id, &rig->version->tiers[0], NULL),
                     HPS_OK);
}

/* Like a new process: everything in memory is lost. */
static void restart(struct rig *rig)
{
    rig->version->tiers[0]->store->ops->space_close(rig->version->tiers[0]);
    open_host(rig);
    renew(rig);
    hps_warmup_read(rig->warmup);
}

static bool go_on(void *ctx, const struct hps_warmup_report *so_far, uint64_t *out_free_bytes)
{
    struct rig *rig = ctx;
    rig->so_far = *so_far;
    rig->n_asked++;
    *out_free_bytes = rig->free_bytes;
    if (rig->held != NULL && rig->n_asked == 3) {
        hps_device_sim_hold(rig->held, false);
    }
    return rig->n_asked != rig->stop_at;
}

static struct hps_warmup_report fill(struct rig *rig, struct hps_version *version,
                                     uint64_t deadline_us)
{
    struct hps_warmup_report report;
    const struct hps_warmup_limits limits = {NULL, deadline_us, go_on, rig};
    hps_warmup_run(rig->warmup, version, &limits, &report);
    return report;
}

/* Make keys from .. to of a table hot, with decreasing counts. */
static void heat(struct rig *rig, uint32_t table, hps_key from, hps_key to, uint32_t count)
{
    for (hps_key key = from; key < to; key++) {
        hps_hot_add(rig->version->hot[table], key, count - (uint32_t)(key - from));
    }
}

/* Note lookups of a key. */
static void ask(struct rig *rig, uint32_t table, hps_key key)
{
    for (uint32_t i = 0; i < 200; i++) {
        hps_hot_note(rig->version->hot[table], &key, 1);
    }
}

/* The map has the n hottest counted keys and no other keys. */
static void expect_warm(struct rig *rig, uint32_t table, uint32_t n)
{
    struct hps_hot_key *top;
    uint32_t n_top;
    assert_int_equal(hps_hot_top(rig->version->hot[table], &top, &n_top), HPS_OK);
    assert_true(n_top >= n);
    for (uint32_t i = 0; i < n; i++) {
        assert_true(warm(rig->version, table, top[i].key));
    }
    assert_int_equal(n_warm(rig->version, table, 0, N_ROWS), n);
    hps_free(top);
}

struct records {
    uint32_t n;
    uint32_t n_foreign;
    char key[64]; /* of the last record */
    size_t key_size;
    uint8_t value[4096];
    size_t value_size;
};

static hps_status add_record(void *ctx, const void *key, size_t key_size, const void *value,
                             size_t value_size)
{
    struct records *records = ctx;
    if (key_size < 4 || memcmp(key, "hot/", 4) != 0) {
        records->n_foreign++;
        return HPS_OK;
    }
    assert_true(key_size < sizeof(records->key));
    records->n++;
    records->key_size = key_size;
    memcpy(records->key, key, key_size);
    records->value_size = value_size < sizeof(records->value) ? value_size : 0;
    memcpy(records->value, value, records->value_size);
    return HPS_OK;
}

static struct records records_of(struct rig *rig)
{
    struct records records = {0};
    assert_int_equal(
        rig->durable->ops->durable->record_scan(rig->durable, "", add_record, &records, NULL),
        HPS_OK);
    return records;
}

/* Save the hot keys. Then there must be n records. */
static void expect_saved(struct rig *rig, uint32_t n)
{
    hps_warmup_save(rig->warmup, true, false);
    assert_int_equal(records_of(rig).n, n);
}

/* ---- filling --------------------------------------------------------------------------------- */

static void test_fill_when_memory_suffices_then_every_hot_row_is_in_the_map(void **state)
{
    struct rig *rig = *state;
    heat(rig, 0, 100, 300, 5000);
    heat(rig, 1, 7, 10, 9000);
    struct hps_warmup_report report = fill(rig, rig->version, 0);
    assert_int_equal(report.end, HPS_WARMUP_DONE);
    assert_int_equal(report.n_keys, 203);
    assert_int_equal(report.n_rows, 203);
    assert_int_equal(n_warm(rig->version, 0, 0, N_ROWS), 200);
    assert_int_equal(n_warm(rig->version, 0, 100, 300), 200);
    assert_int_equal(n_warm(rig->version, 1, 7, 10), 3);
    const struct hps_metric *rows =
        hps_server_metric(rig->metrics, HPS_M_INSERTION_ROWS, "host", "warmup", NULL, NULL);
    assert_int_equal((int)hps_metric_value(rows), 203);
    assert_int_equal(fill(rig, rig->version, 0).n_rows, 0); /* the map has them */
}

static void test_fill_when_memory_is_short_then_the_hottest_rows_of_all_tables(void **state)
{
    struct rig *rig = *state;
    heat(rig, 0, 0, 100, 1000);
    heat(rig, 1, 0, 100, 2000);
    rig->free_bytes = 150 * HOST_ROW_BYTES;
    rig->stop_at = 2;
    struct hps_warmup_report report = fill(rig, rig->version, 0);
    assert_int_equal(report.end, HPS_WARMUP_STOPPED);
    assert_int_equal(n_warm(rig->version, 1, 0, 100), 100);
    rig->free_bytes = HOST_ROW_BYTES - 1;
    rig->stop_at = 0;
    uint64_t n_before = hps_fake_keys(rig->host, HPS_FAKE_INSERT);
    report = fill(rig, rig->version, 0);
    assert_int_equal(report.end, HPS_WARMUP_NO_CAPACITY);
    assert_int_equal(report.n_keys, 0);
    assert_int_equal(hps_fake_keys(rig->host, HPS_FAKE_INSERT), n_before);
}

static void test_fill_when_the_map_takes_no_more_then_it_ends(void **state)
{
    struct rig *rig = *state;
    const struct hps_fake_options small = {
        .name = "host", .tier = HPS_TIER_HOST, .bytes_max = 10 * ROW_BYTES};
    rig->version->tiers[0]->store->ops->space_close(rig->version->tiers[0]);
    rig->host->ops->close(rig->host);
    rig->host = hps_fake_store_new(&small);
    rig->options.host = rig->host;
    open_host(rig);
    renew(rig);
    heat(rig, 0, 0, 3000, 100000);
    struct hps_warmup_report report = fill(rig, rig->version, 0);
    assert_int_equal(report.end, HPS_WARMUP_NO_CAPACITY);
    assert_int_equal(report.n_rows, 10);
    assert_int_equal(n_warm(rig->version, 0, 0, N_ROWS), 10);
    assert_true(hps_fake_calls(rig->durable, HPS_FAKE_GET) <= 2);
}

static void test_fill_when_its_deadline_passes_then_it_ends_after_the_batch(void **state)
{
    struct rig *rig = *state;
    heat(rig, 0, 0, 3000, 100000);
    hps_clock_fake(1000);
    hps_fake_latency(rig->durable, HPS_FAKE_GET, 500);
    struct hps_warmup_report report = fill(rig, rig->version, 1400);
    assert_int_equal(report.end, HPS_WARMUP_TIME);
    assert_int_equal(report.n_keys, 1024);
    expect_warm(rig, 0, 1024);
}

static void test_fill_when_stopped_then_it_ends_before_the_next_batch(void **state)
{
    struct rig *rig = *state;
    heat(rig, 0, 0, 3000, 100000);
    rig->stop_at = 2;
    assert_int_equal(fill(rig, rig->version, 0).end, HPS_WARMUP_STOPPED);
    expect_warm(rig, 0, 1024);
    assert_int_equal(rig->so_far.n_keys, 1024);
    assert_true(rig->so_far.n_keys_all > 2000);
}

static void test_fill_when_rows_are_damaged_then_other_rows_are_warm_else_it_ends(void **state)
{
    struct rig *rig = *state;
    heat(rig, 0, 0, 3000, 100000);
    hps_fake_fail(rig->durable, HPS_FAKE_GET, HPS_DATA_LOSS, 0, 1, 0);
    struct hps_warmup_report report = fill(rig, rig->version, 0);
    assert_int_equal(report.end, HPS_WARMUP_FAILED);
    assert_int_equal(report.error.status, HPS_DATA_LOSS);
    assert_non_null(strstr(report.error.text, "table \"a\""));
    assert_int_equal(report.n_rows, report.n_keys - 1024);
    assert_int_equal(n_warm(rig->version, 0, 0, N_ROWS), report.n_rows);
    assert_true(report.n_rows > 1024);
    hps_fake_fail(rig->durable, HPS_FAKE_GET, HPS_UNAVAILABLE, 0, 1, 0);
    report = fill(rig, rig->version, 0);
    assert_int_equal(report.error.status, HPS_UNAVAILABLE);
    assert_int_equal(report.n_keys, 1024);
}

/* Rows of a shared tier that are ahead of the version must not be kept. The tier may also be
 * down. */
static void test_fill_when_a_shared_tier_is_ahead_or_down_then_rows_come_from_below(void **state)
{
    struct rig *rig = *state;
    const struct hps_fake_options options = {
        .name = "redis", .tier = HPS_TIER_REDIS, .caps = HPS_STORE_BLOCKING | HPS_STORE_SHARED};
    const struct hps_space_id id = {"m", 1, rig->version->tables, 2, 0};
    const float ahead[DIM] = {-1, -1, -1, -1};
    const hps_key key = 5;
    const struct hps_call call = {0};
    struct hps_store *shared = hps_fake_store_new(&options);
    rig->version->tiers[2] = rig->version->tiers[1];
    assert_int_equal(shared->ops->space_open(shared, &id, &rig->version->tiers[1], NULL), HPS_OK);
    rig->version->n_tiers = 3;
    assert_int_equal(shared->ops->put(rig->version->tiers[1], &call, &rig->version->tables[0], &key,
                                      (const uint8_t *)ahead, 1),
                     HPS_OK);
    hps_fake_later(shared, true);
    heat(rig, 0, 0, 10, 100);
    assert_int_equal(fill(rig, rig->version, 0).end, HPS_WARMUP_DONE);
    assert_int_equal(n_warm(rig->version, 0, 0, N_ROWS), 10); /* each with its own row */
    hps_fake_fail(shared, HPS_FAKE_GET, HPS_UNAVAILABLE, 0, UINT32_MAX, 0);
    heat(rig, 0, 10, 20, 90);
    assert_int_equal(fill(rig, rig->version, 0).end, HPS_WARMUP_DONE);
    assert_int_equal(n_warm(rig->version, 0, 0, N_ROWS), 20);
    shared->ops->space_close(rig->version->tiers[1]);
    shared->ops->close(shared);
    rig->version->tiers[1] = rig->version->tiers[2];
    rig->version->n_tiers = 2;
}

static void *fill_on_thread(void *arg)
{
    struct rig *rig = arg;
    fill(rig, rig->version, 0);
    return NULL;
}

static void test_fill_when_an_update_overtakes_a_row_then_it_is_not_inserted(void **state)
{
    struct rig *rig = *state;
    const hps_key overtaken = 3;
    pthread_t thread;
    rig->version->stamps = hps_stamps_new();
    assert_non_null(rig->version->stamps);
    heat(rig, 0, 0, 5, 100);
    hps_fake_gate_shut(rig->durable, HPS_FAKE_GET);
    assert_int_equal(pthread_create(&thread, NULL, fill_on_thread, rig), 0);
    hps_fake_gate_wait(rig->durable, HPS_FAKE_GET, 1);
    hps_stamps_begin(rig->version->stamps);
    hps_stamps_mark(rig->version->stamps, 0, &overtaken, 1);
    hps_stamps_end(rig->version->stamps);
    hps_fake_gate_open(rig->durable, HPS_FAKE_GET);
    pthread_join(thread, NULL);
    assert_int_equal(n_warm(rig->version, 0, 0, 5), 4);
    assert_false(warm(rig->version, 0, overtaken));
}

static void test_fill_when_the_next_version_has_its_tables_in_another_order_then_by_name(
    void **state)
{
    struct rig *rig = *state;
    struct hps_version *next = version_open(rig, 2, names_ba);
    heat(rig, 0, 40, 50, 1000);
    assert_true(hps_warmup_useful(rig->warmup, next));
    assert_int_equal(fill(rig, next, 0).n_rows, 10);
    assert_int_equal(n_warm(next, 1, 40, 50), 10);
    assert_int_equal(n_warm(next, 0, 0, N_ROWS), 0);
    assert_int_equal(n_warm(rig->version, 0, 0, N_ROWS), 0);
    hps_warmup_attach(rig->warmup, next);
    assert_ptr_equal(next->hot[1], rig->version->hot[0]);
    atomic_store(&next->host_complete, true);
    assert_false(hps_warmup_useful(rig->warmup, next));
    atomic_store(&next->tiers[0]->incomplete, true); /* it has lost rows to other versions */
    assert_true(hps_warmup_useful(rig->warmup, next));
    version_close(next);
}

/* ---- saving ---------------------------------------------------------------------------------- */

static void test_read_when_saved_then_the_same_keys_are_hot(void **state)
{
    struct rig *rig = *state;
    heat(rig, 0, 0, 200, 5000);
    ask(rig, 1, 77);
    hps_warmup_save(rig->warmup, true, true);
    restart(rig);
    assert_int_equal(fill(rig, rig->version, 0).n_rows, 201);
    assert_int_equal(n_warm(rig->version, 0, 0, 200), 200);
    assert_true(warm(rig->version, 1, 77));
    restart(rig); /* without lookups nothing is written, and keys are still known */
    uint64_t n_puts = hps_fake_calls(rig->durable, HPS_FAKE_RECORD_PUT);
    hps_warmup_save(rig->warmup, true, true);
    assert_int_equal(hps_fake_calls(rig->durable, HPS_FAKE_RECORD_PUT), n_puts);
    assert_int_equal(fill(rig, rig->version, 0).n_rows, 201);
}

static void test_save_when_there_are_many_keys_then_records_are_bounded_and_old_ones_deleted(
    void **state)
{
    struct rig *rig = *state;
    rig->options.host_bytes_max = UINT64_C(1) << 32;
    rig->version->tables[0].n_rows = 100000;
    restart(rig);
    assert_int_equal(hps_hot_keys_max(rig->version->hot[0]) / 1000, 84); /* its part of 1 MiB */
    heat(rig, 0, 0, 80000, 1000000);
    ask(rig, 0, 5);
    expect_saved(rig, 3);
    rig->options.hot_bytes_max = 12 * 2000; /* the next process counts fewer keys */
    renew(rig);
    hps_warmup_read(rig->warmup);
    assert_true(hps_hot_keys_max(rig->version->hot[0]) <= 2000 + 8);
    ask(rig, 0, 5);
    expect_saved(rig, 1);
}

static void test_read_when_a_record_is_damaged_then_other_records_count_and_it_is_replaced(
    void **state)
{
    struct rig *rig = *state;
    heat(rig, 0, 0, 100, 5000);
    heat(rig, 1, 200, 300, 5000);
    ask(rig, 0, 0);
    hps_warmup_save(rig->warmup, true, false);
    struct records records = records_of(rig);
    assert_int_equal(records.n, 2);
    records.value[records.value_size / 2] ^= 1;
    assert_int_equal(rig->durable->ops->durable->record_put(rig->durable, records.key,
                                                            records.key_size, records.value,
                                                            records.value_size, NULL),
                     HPS_OK);
    assert_int_equal(
        rig->durable->ops->durable->record_put(rig->durable, "hot/m/000009", 12, "", 0, NULL),
        HPS_OK);
    assert_int_equal(rig->durable->ops->durable->record_put(rig->durable, "hot/", 4, "x", 1, NULL),
                     HPS_OK);
    restart(rig);
    assert_int_equal(fill(rig, rig->version, 0).n_rows, 100);
    expect_saved(rig, 2); /* one valid record and one foreign record */
    restart(rig);
    assert_int_equal(fill(rig, rig->version, 0).n_rows, 100);
}

static void test_save_when_the_store_fails_then_the_next_save_writes_all(void **state)
{
    struct rig *rig = *state;
    ask(rig, 0, 1);
    ask(rig, 1, 2);
    hps_fake_fail(rig->durable, HPS_FAKE_RECORD_PUT, HPS_EXHAUSTED, 1, 1, 0);
    expect_saved(rig, 1);
    expect_saved(rig, 2);
    hps_fake_fail(rig->durable, HPS_FAKE_RECORD_SCAN, HPS_IO, 0, 1, 0);
    restart(rig); /* unreadable records: cold, no failure */
    assert_int_equal(fill(rig, rig->version, 0).n_rows, 0);
}

/* The reserve of free space is for other records, such as the catalog's, not for hints. */
static void test_save_when_the_disk_is_nearly_full_then_no_write_until_space_is_free(void **state)
{
    struct rig *rig = *state;
    heat(rig, 0, 0, 100, 1000);
    ask(rig, 0, 0);
    hps_fake_bytes_free(rig->durable, 100);
    expect_saved(rig, 0);
    assert_int_equal(hps_fake_calls(rig->durable, HPS_FAKE_RECORD_PUT), 0);
    hps_fake_bytes_free(rig->durable, 1 << 20);
    hps_warmup_save(rig->warmup, true, false);
    assert_true(records_of(rig).n > 0);
}

static void test_save_when_the_model_is_removed_then_its_records_are_deleted(void **state)
{
    struct rig *rig = *state;
    ask(rig, 0, 1);
    expect_saved(rig, 1);
    hps_warmup_detach(rig->warmup, "m");
    hps_warmup_attach(rig->warmup, rig->version); /* loaded again before the next save */
    expect_saved(rig, 1);
    hps_warmup_detach(rig->warmup, "m");
    expect_saved(rig, 0);
    /* A process may end before it deletes the records. */
    hps_warmup_attach(rig->warmup, rig->version);
    ask(rig, 0, 1);
    hps_warmup_save(rig->warmup, true, false);
    hps_warmup_free(rig->warmup);
    rig->warmup = hps_warmup_new(&rig->options);
    hps_warmup_read(rig->warmup);
    hps_warmup_save(rig->warmup, false, false);
    assert_int_equal(records_of(rig).n, 1);
    hps_warmup_attach(rig->warmup, rig->version);
    hps_warmup_detach(rig->warmup, "m");
    expect_saved(rig, 0);
}

static void test_save_when_not_allowed_then_the_store_is_not_called(void **state)
{
    struct rig *rig = *state;
    ask(rig, 0, 1);
    hps_warmup_save(rig->warmup, false, true);
    rig->options.read_only = true;
    restart(rig);
    ask(rig, 0, 1);
    hps_warmup_save(rig->warmup, true, true);
    hps_warmup_detach(rig->warmup, "m");
    hps_warmup_save(rig->warmup, true, true);
    assert_int_equal(hps_fake_calls(rig->durable, HPS_FAKE_RECORD_PUT), 0);
    assert_int_equal(hps_fake_calls(rig->durable, HPS_FAKE_RECORD_DELETE), 0);
}

static void test_attach_when_no_memory_is_configured_then_no_counting(void **state)
{
    struct rig *rig = *state;
    rig->options.hot_bytes_max = 0;
    memset(rig->version->hot, 0, 2 * sizeof(*rig->version->hot));
    restart(rig);
    assert_null(rig->version->hot[0]);
    assert_false(hps_warmup_useful(rig->warmup, rig->version));
}

/* ---- the device ------------------------------------------------------------------------------ */

static struct hps_gpu_space *space_open(struct rig *rig, const struct hps_gpu_share *shares)
{
    const struct hps_gpu_space_options options = {
        .model = "m", .number = 1, .tables = rig->version->tables, .shares = shares, .n_tables = 2};
    struct hps_gpu_space *space = NULL;
    struct hps_error err;
    assert_int_equal(hps_gpu_space_open(rig->tier, &options, &space, &err), HPS_OK);
    return space;
}

/* Open a device with memory for n sets of caches of these shares, less some bytes. The version
 * has one set. */
static void device_open(struct rig *rig, const struct hps_gpu_share *shares, uint64_t n,
                        uint64_t less)
{
    struct hps_error err;
    rig->blocks = hps_block_pool_new(0);
    assert_int_equal(hps_block_pool_slab_add(rig->blocks, 1 << 20), HPS_OK);
    const struct hps_sim_driver sim = hps_sim_driver((struct hps_device_sim_config){0});
    const struct hps_gpu_tier_options options = {
        .driver = &sim.driver,
        .cache = {.arena_bytes = n * hps_gpu_share_bytes(rig->version->tables, shares, 2) - less,
                  .gather_bytes = 1 << 20,
                  .stage_bytes = 1 << 20},
        .blocks = rig->blocks,
        .stall_us_max = UINT64_C(600) * 1000 * 1000};
    assert_int_equal(hps_gpu_tier_open(&options, &rig->tier, &err), HPS_OK);
    rig->version->gpu = space_open(rig, shares);
}

static void device_close(struct rig *rig)
{
    hps_gpu_space_close(rig->version->gpu);
    rig->version->gpu = NULL;
    hps_gpu_tier_close(rig->tier);
    hps_block_pool_free(rig->blocks);
}

/* The device has memory for caches of two versions less 256 bytes, and the caches of the evicted
 * version are still in use. */
static void test_fill_when_the_caches_come_late_then_it_waits_for_them(void **state)
{
    struct rig *rig = *state;
    const struct hps_gpu_share shares[2] = {{N_ROWS, 300}, {N_ROWS, 0}};
    const hps_key key = 1;
    const uint32_t slot = 0;
    const uint8_t row[ROW_BYTES] = {0};
    const struct hps_gpu_insertion one = {
        .table_id = 0, .n = 1, .keys = &key, .slots = &slot, .rows = row};
    struct hps_insert_report inserted;
    device_open(rig, shares, 2, 256);
    struct hps_gpu_space *last = rig->version->gpu;
    rig->version->gpu = space_open(rig, shares);
    rig->options.gpu = true;
    rig->version->gpu_warms = true;
    restart(rig);
    heat(rig, 0, 0, 500, 1000);
    rig->held = rig->tier->device;
    hps_device_sim_hold(rig->held, true);
    hps_gpu_insert(last, &one, &inserted);
    assert_int_equal(inserted.n_inserted, 1);
    hps_gpu_tier_sync(rig->tier); /* now the insertion is in flight */
    hps_gpu_space_active(rig->version->gpu, true);
    assert_true(hps_gpu_space_coming(rig->version->gpu));

    struct hps_warmup_report report = fill(rig, rig->version, 0);
    assert_int_equal(report.end, HPS_WARMUP_DONE);
    assert_int_equal(report.n_gpu_rows, 300);
    assert_true(hps_gpu_space_present(rig->version->gpu));

    hps_gpu_space_active(rig->version->gpu, false);
    hps_gpu_space_active(last, true);
    AWAIT(!hps_gpu_space_coming(last));
    report = fill(rig, rig->version, 0); /* has no cache and gets none */
    assert_int_equal(report.end, HPS_WARMUP_DONE);
    assert_int_equal(report.n_gpu_rows, 0);
    hps_gpu_space_close(last);
    device_close(rig);
}

/* ---- fully cached tables --------------------------------------------------------------------- */

/* Cache both tables completely, on a new device. */
static void whole_open(struct rig *rig)
{
    const struct hps_gpu_share shares[2] = {{N_ROWS, N_ROWS}, {N_ROWS, N_ROWS}};
    device_open(rig, shares, 1, 0);
}

struct whole_question {
    struct hps_gpu_lookup lookup;
    atomic_bool done;
};

static void on_whole_answer(struct hps_gpu_lookup *lookup)
{
    atomic_store(&((struct whole_question *)lookup)->done, true);
}

/* Returns whether the device has a row of the key, and the row. */
static bool on_device(struct rig *rig, uint32_t table, hps_key key, float out_row[DIM])
{
    uint32_t hits = 0;
    struct hps_gpu_part part = {
        .table_id = table, .n = 1, .keys = (const uint8_t *)&key, .hits = &hits};
    struct whole_question question = {
        .lookup = {.space = rig->version->gpu,
                   .block = hps_block_new_slab(rig->blocks, ROW_BYTES),
                   .parts = &part,
                   .n_parts = 1,
                   .done = on_whole_answer}};
    assert_int_equal(hps_gpu_lookup(&question.lookup), HPS_OK);
    AWAIT(atomic_load(&question.done));
    memcpy(out_row, question.lookup.block->data, ROW_BYTES);
    hps_block_unref(question.lookup.block);
    return hits != 0;
}

static struct hps_warmup_report fill_whole(struct rig *rig)
{
    const struct hps_warmup_limits limits = {NULL, 0, go_on, rig};
    struct hps_warmup_report report;
    hps_whole_refill(rig->version, &limits, &report);
    hps_gpu_tier_sync(rig->version->gpu->tier);
    return report;
}

static void expect_row(struct rig *rig, uint32_t table, hps_key key)
{
    float row[DIM], expected[DIM];
    row_of((uint32_t)rig->version->tables[table].name[0], key, expected);
    assert_true(on_device(rig, table, key, row));
    assert_memory_equal(row, expected, ROW_BYTES);
}

static void test_whole_when_filled_then_every_row_is_cached_and_no_second_fill(void **state)
{
    struct rig *rig = *state;
    whole_open(rig);
    struct hps_embed_range_usage usage;
    assert_false(hps_whole_useful(rig->version));
    rig->version->gpu_whole = true;
    assert_true(hps_whole_useful(rig->version));
    rig->stop_at = 5;
    struct hps_warmup_report report = fill_whole(rig);
    assert_int_equal(report.end, HPS_WARMUP_STOPPED);
    assert_int_equal(report.n_keys_all, 2 * N_ROWS);
    assert_true(report.n_keys > 0 && report.n_keys < N_ROWS);
    assert_true(hps_whole_useful(rig->version));
    rig->stop_at = 0;
    report = fill_whole(rig);
    assert_int_equal(report.end, HPS_WARMUP_DONE);
    assert_int_equal(report.n_keys, 2 * N_ROWS);
    assert_false(hps_whole_useful(rig->version));
    for (uint32_t t = 0; t < 2; t++) {
        for (hps_key key = 0; key < N_ROWS; key += 37) {
            expect_row(rig, t, key);
        }
        do {
            hps_gpu_space_usage(rig->version->gpu, t, &usage);
            brief_pause();
        } while (usage.n_inserted < N_ROWS); /* until all insertions are applied */
        assert_int_equal(usage.n_rows, N_ROWS);
        assert_true(usage.resident_share >= 1);
    }
    device_close(rig);
}

static struct {
    struct rig *rig;
    uint32_t n_asked;
} overtaker;

/* Before a batch is inserted, update some rows of it and of later batches. */
static bool overtake(void *ctx, const struct hps_warmup_report *so_far, uint64_t *out_free_bytes)
{
    struct rig *rig = ctx;
    struct hps_space *space = rig->version->tiers[1];
    const struct hps_call call = {0};
    const hps_key keys[3] = {100, 101, N_ROWS - 1};
    const float row[DIM] = {-1, -2, -3, -4};
    (void)so_far;
    *out_free_bytes = 0;
    if (overtaker.n_asked++ == 1) {
        hps_stamps_begin(rig->version->stamps);
        hps_stamps_mark(rig->version->stamps, 0, keys, 3);
        for (uint32_t i = 0; i < 3; i += 2) {
            assert_int_equal(space->store->ops->put(space, &call, &rig->version->tables[0],
                                                    &keys[i], (const uint8_t *)row, 1),
                             HPS_OK);
            hps_gpu_update(rig->version->gpu, 0, &keys[i], (const uint8_t *)row, 1);
        }
        assert_int_equal(
            space->store->ops->erase(space, &call, &rig->version->tables[0], &keys[1], 1), HPS_OK);
        hps_gpu_update(rig->version->gpu, 0, &keys[1], NULL, 1);
        hps_stamps_end(rig->version->stamps);
    }
    return true;
}

static void test_whole_when_updates_overtake_rows_then_rows_are_read_again(void **state)
{
    struct rig *rig = *state;
    whole_open(rig);
    const struct hps_warmup_limits limits = {NULL, 0, overtake, rig};
    struct hps_warmup_report report;
    float row[DIM];
    rig->version->stamps = hps_stamps_new();
    overtaker.n_asked = 0;
    hps_whole_refill(rig->version, &limits, &report);
    assert_int_equal(report.end, HPS_WARMUP_DONE);
    assert_true(on_device(rig, 0, 100, row) && row[0] == -1);
    assert_false(on_device(rig, 0, 101, row));
    assert_true(on_device(rig, 0, N_ROWS - 1, row) && row[0] == -1);
    assert_false(hps_gpu_space_unfilled(rig->version->gpu, 0));
    expect_row(rig, 0, 99);
    device_close(rig);
}

static void test_whole_when_one_table_cannot_be_read_then_the_other_is_filled(void **state)
{
    struct rig *rig = *state;
    whole_open(rig);
    float row[DIM];
    hps_fake_fail(rig->durable, HPS_FAKE_SCAN, HPS_DATA_LOSS, 0, 1, 0);
    struct hps_warmup_report report = fill_whole(rig);
    assert_int_equal(report.end, HPS_WARMUP_FAILED);
    assert_non_null(strstr(report.error.text, "table \"a\""));
    assert_true(hps_gpu_space_unfilled(rig->version->gpu, 0));
    assert_false(hps_gpu_space_unfilled(rig->version->gpu, 1));
    assert_false(on_device(rig, 0, 5, row));
    expect_row(rig, 1, 5);
    device_close(rig);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_fill_when_memory_suffices_then_every_hot_row_is_in_the_map),
        TEST(test_fill_when_memory_is_short_then_the_hottest_rows_of_all_tables),
        TEST(test_fill_when_the_map_takes_no_more_then_it_ends),
        TEST(test_fill_when_its_deadline_passes_then_it_ends_after_the_batch),
        TEST(test_fill_when_stopped_then_it_ends_before_the_next_batch),
        TEST(test_fill_when_rows_are_damaged_then_other_rows_are_warm_else_it_ends),
        TEST(test_fill_when_a_shared_tier_is_ahead_or_down_then_rows_come_from_below),
        TEST(test_fill_when_an_update_overtakes_a_row_then_it_is_not_inserted),
        TEST(test_fill_when_the_next_version_has_its_tables_in_another_order_then_by_name),
        TEST(test_read_when_saved_then_the_same_keys_are_hot),
        TEST(test_save_when_there_are_many_keys_then_records_are_bounded_and_old_ones_deleted),
        TEST(test_read_when_a_record_is_damaged_then_other_records_count_and_it_is_replaced),
        TEST(test_save_when_the_store_fails_then_the_next_save_writes_all),
        TEST(test_save_when_the_disk_is_nearly_full_then_no_write_until_space_is_free),
        TEST(test_save_when_the_model_is_removed_then_its_records_are_deleted),
        TEST(test_save_when_not_allowed_then_the_store_is_not_called),
        TEST(test_attach_when_no_memory_is_configured_then_no_counting),
        TEST(test_fill_when_the_caches_come_late_then_it_waits_for_them),
        TEST(test_whole_when_filled_then_every_row_is_cached_and_no_second_fill),
        TEST(test_whole_when_updates_overtake_rows_then_rows_are_read_again),
        TEST(test_whole_when_one_table_cannot_be_read_then_the_other_is_filled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * When the catalog warms up host maps: after a restart, before a switch and behind it, and which
 * calls do not wait for it. The map is too small for all rows of a version.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <stdatomic.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/heap.h"
#include "base/log.h"
#include "cache/lookup/hot.h"
#include "server/catalog/catalog.h"
#include "server/catalog/internal.h"
#include "server/observe/metrics.h"
#include "tests/lib/catalog_fixture.h"
#include "tests/lib/config_fixture.h"
#include "tests/lib/fake_store.h"
#include "tests/lib/tmpdir.h"

enum { DIM = 4, ROW_BYTES = 16, N_ROWS = 3000, N_HOT = 1500, BUDGET = N_ROWS * 40 };

struct rig {
    struct hps_tmpdir dir;
    struct hps_config *config;
    struct hps_load_env env;
    struct hps_store *host, *durable; /* of env.stores */
    struct hps_metrics *metrics;
    struct hps_models *models;
    struct hps_catalog *catalog;
};

static void write_model(struct rig *rig, const char *name)
{
    char path[64];
    hps_tmpdir_mkdir(&rig->dir, name);
    snprintf(path, sizeof(path), "%s/t.npy", name);
    fixture_write_rows(hps_tmpdir_join(&rig->dir, path), DIM, N_ROWS, 0);
}

static void open_catalog(struct rig *rig)
{
    const struct hps_fake_options host = {.name = "host", .tier = HPS_TIER_HOST};
    struct hps_error err = {0};
    rig->host = hps_fake_store_new(&host);
    rig->env.stores = (struct hps_stores){0};
    hps_stores_add(&rig->env.stores, rig->host);
    hps_stores_add(&rig->env.stores, rig->durable);
    rig->metrics = hps_server_metrics_new();
    rig->models = hps_models_new();
    const struct hps_catalog_options options = {
        .models = rig->models, .config = rig->config, .metrics = rig->metrics, .env = rig->env};
    if (hps_catalog_open(&options, &rig->catalog, &err) != HPS_OK) {
        fail_msg("%s", err.text);
    }
}

static void close_catalog(struct rig *rig)
{
    hps_catalog_close(rig->catalog);
    hps_models_free(rig->models);
    hps_metrics_free(rig->metrics);
    rig->host->ops->close(rig->host);
}

static void load(struct rig *rig, const char *name, bool activate)
{
    char path[256];
    snprintf(path, sizeof(path), "%s", hps_tmpdir_join(&rig->dir, name));
    const struct hps_load_request request = {.model = "m", .directory = path, .activate = activate};
    struct hps_load *one = NULL;
    struct hps_load_state state;
    struct hps_error err = {0};
    if (hps_catalog_load(rig->catalog, &request, &one, &err) != HPS_OK) {
        fail_msg("%s", err.text);
    }
    fixture_load_end(one, &state);
    assert_int_equal(state.error.status, HPS_OK);
}

static struct hps_version *pin(struct rig *rig, int64_t number)
{
    struct hps_version *version;
    assert_int_equal(hps_models_pin(rig->models, "m", 1, number, &version, NULL), HPS_OK);
    return version;
}

static int64_t active(struct rig *rig)
{
    struct hps_version *version = pin(rig, 0);
    int64_t number = version->number;
    hps_version_unpin(version);
    return number;
}

static uint64_t host_rows(struct rig *rig, int64_t number)
{
    struct hps_version *version = pin(rig, number);
    struct hps_store_usage usage;
    rig->host->ops->space_usage(version->tiers[0], &usage);
    hps_version_unpin(version);
    return usage.n_rows;
}

/* Make keys 0 .. N_HOT of the active version hot. Returns how many keys are counted as hot. */
static uint32_t heat(struct rig *rig)
{
    struct hps_version *version = pin(rig, 0);
    struct hps_hot_key *top;
    uint32_t n;
    for (hps_key key = 0; key < N_HOT; key++) {
        hps_hot_add(version->hot[0], key, 100 + (uint32_t)key);
    }
    for (unsigned i = 0; i < 100; i++) { /* marks the counts as used */
        const hps_key key = N_HOT - 1;
        hps_hot_note(version->hot[0], &key, 1);
    }
    assert_int_equal(hps_hot_top(version->hot[0], &top, &n), HPS_OK);
    hps_free(top);
    hps_version_unpin(version);
    assert_true(n > 1024); /* more than one batch */
    return n;
}

struct mark {
    struct hps_task task;
    atomic_bool reached;
};

static void reach(struct hps_task *task)
{
    atomic_store(&((struct mark *)(void *)task)->reached, true);
}

/* Wait until warm-ups behind switches have ended. */
static void drain_warmer(struct rig *rig)
{
    struct mark mark = {.task = {.run = reach}};
    assert_int_equal(hps_pool_post(rig->catalog->warmer, &mark.task), HPS_OK);
    AWAIT(atomic_load(&mark.reached));
}

/* Stop the clock at the current time. Opening the catalog saved hot keys at a time of the
 * kernel's clock. With an earlier fake time, nothing would be due. */
static void stop_clock(void)
{
    hps_clock_fake(hps_clock_us());
}

static int setup(void **state)
{
    static struct rig rig;
    const struct hps_fake_options durable = {.name = "rocksdb",
                                             .tier = HPS_TIER_ROCKSDB,
                                             .caps = HPS_STORE_DURABLE | HPS_STORE_BLOCKING};
    memset(&rig, 0, sizeof(rig));
    hps_log_level_set(HPS_LOG_ERROR);
    hps_tmpdir_open(&rig.dir);
    write_model(&rig, "one");
    write_model(&rig, "two");
    rig.config = config_of_store(rig.dir.path);
    rig.durable = hps_fake_store_new(&durable);
    rig.env = (struct hps_load_env){.spill_dir = rig.dir.path,
                                    .memory_bytes = 4 << 20,
                                    .host_bytes_max = BUDGET,
                                    .key_bytes = 8};
    open_catalog(&rig);
    load(&rig, "one", true);
    drain_warmer(&rig);
    assert_int_equal(host_rows(&rig, 1), 0);
    *state = &rig;
    return 0;
}

static int teardown(void **state)
{
    struct rig *rig = *state;
    close_catalog(rig);
    rig->durable->ops->close(rig->durable);
    hps_config_free(rig->config);
    hps_tmpdir_close(&rig->dir);
    hps_clock_real();
    return 0;
}

/* A switch and its result. */
struct wait {
    struct hps_switch waiter;
    atomic_bool done;
    struct hps_error error;
};

static void on_switched(struct hps_switch *waiter, const struct hps_error *error)
{
    struct wait *wait = (struct wait *)(void *)waiter; /* its first member */
    assert_false(wait->done);
    wait->error = *error;
    atomic_store(&wait->done, true);
}

static void wait_done(struct wait *wait)
{
    AWAIT(atomic_load(&wait->done));
}

static void wait_rows(struct rig *rig, int64_t number, uint64_t n)
{
    AWAIT(host_rows(rig, number) >= n);
}

static void test_open_when_restarted_then_the_hot_rows_of_the_active_version_are_in_the_map(
    void **state)
{
    struct rig *rig = *state;
    load(rig, "two", false);
    uint32_t n = heat(rig);
    close_catalog(rig);
    open_catalog(rig);
    wait_rows(rig, 1, n - n / 8); /* hash places differ per process: a few rows do not fit */
    assert_true(host_rows(rig, 1) <= n);
    assert_int_equal(host_rows(rig, 2), 0);
}

static void test_switch_when_the_version_is_cold_then_warm_first_and_other_calls_continue(
    void **state)
{
    struct rig *rig = *state;
    struct wait wait = {.waiter = {.done = on_switched}};
    struct hps_error err;
    struct hps_switched switched;
    load(rig, "two", false);
    uint32_t n = heat(rig);
    hps_fake_gate_shut(rig->durable, HPS_FAKE_GET);
    hps_catalog_switch(rig->catalog, "m", 2, &wait.waiter);
    hps_fake_gate_wait(rig->durable, HPS_FAKE_GET, 1);
    assert_false(wait.done);
    assert_int_equal(active(rig), 1);
    /* Other switches and loads continue. */
    assert_int_equal(hps_catalog_activate(rig->catalog, "m", 1, false, &switched, &err), HPS_OK);
    load(rig, "one", false);
    hps_fake_gate_open(rig->durable, HPS_FAKE_GET);
    wait_done(&wait);
    assert_int_equal(wait.error.status, HPS_OK);
    assert_int_equal(wait.waiter.switched.previous, 1);
    assert_int_equal(active(rig), 2);
    assert_int_equal(host_rows(rig, 2), n);
}

static void test_switch_when_it_takes_too_long_then_switched_and_the_rest_follows(void **state)
{
    struct rig *rig = *state;
    struct wait wait = {.waiter = {.done = on_switched}};
    load(rig, "two", false);
    uint32_t n = heat(rig);
    stop_clock();
    hps_fake_latency(rig->durable, HPS_FAKE_GET, 11 * 1000000);
    hps_fake_gate_shut(rig->durable, HPS_FAKE_GET);
    hps_catalog_switch(rig->catalog, "m", 2, &wait.waiter);
    hps_fake_gate_wait(rig->durable, HPS_FAKE_GET, 1);
    hps_fake_gate_open(rig->durable, HPS_FAKE_GET);
    wait_done(&wait);
    assert_int_equal(wait.error.status, HPS_OK);
    assert_int_equal(active(rig), 2);
    wait_rows(rig, 2, n);
}

static void test_switch_when_the_active_version_fills_the_map_then_its_rows_stay_before_it(
    void **state)
{
    struct rig *rig = *state;
    struct wait wait = {.waiter = {.done = on_switched}};
    struct hps_version *version = pin(rig, 1);
    const struct hps_call call = {0};
    const uint8_t row[ROW_BYTES] = {0};
    load(rig, "two", false);
    uint32_t n = heat(rig);
    for (hps_key key = 0; key < BUDGET / ROW_BYTES; key++) {
        assert_int_equal(
            rig->host->ops->put(version->tiers[0], &call, &version->tables[0], &key, row, 1),
            HPS_OK);
    }
    hps_version_unpin(version);
    hps_fake_gate_shut(rig->durable, HPS_FAKE_GET);
    hps_catalog_switch(rig->catalog, "m", 2, &wait.waiter);
    wait_done(&wait); /* no row was read for it */
    assert_int_equal(active(rig), 2);
    assert_int_equal(host_rows(rig, 1), BUDGET / ROW_BYTES);
    hps_fake_gate_open(rig->durable, HPS_FAKE_GET);
    wait_rows(rig, 2, n);
}

struct progress {
    int64_t number;
    uint64_t n_keys_warm, n_keys_hot;
};

static void on_view(void *ctx, const struct hps_version_view *view)
{
    struct progress *progress = ctx;
    if (view->version->number == progress->number) {
        progress->n_keys_warm = view->n_keys_warm;
        progress->n_keys_hot = view->n_keys_hot;
    }
}

static struct progress progress_of(struct rig *rig, int64_t number)
{
    struct progress progress = {.number = number};
    hps_catalog_each(rig->catalog, on_view, &progress);
    return progress;
}

/* A warm-up behind a switch has no time limit. */
static void test_switch_when_a_warm_up_runs_behind_another_then_it_does_not_wait(void **state)
{
    struct rig *rig = *state;
    struct wait wait = {.waiter = {.done = on_switched}};
    struct hps_error err;
    struct hps_switched switched;
    stop_clock();
    load(rig, "two", false);
    heat(rig);
    uint64_t n_saved = hps_fake_calls(rig->durable, HPS_FAKE_RECORD_PUT);
    hps_fake_gate_shut(rig->durable, HPS_FAKE_GET);
    assert_int_equal(hps_catalog_activate(rig->catalog, "m", 2, false, &switched, &err), HPS_OK);
    n_saved++; /* the record of the active version */
    hps_fake_gate_wait(rig->durable, HPS_FAKE_GET, 1);
    hps_clock_advance(301 * UINT64_C(1000000));
    hps_catalog_tick(rig->catalog);
    AWAIT(hps_fake_calls(rig->durable, HPS_FAKE_RECORD_PUT) > n_saved); /* the hot keys */
    hps_catalog_switch(rig->catalog, "m", 1, &wait.waiter);
    hps_fake_gate_wait(rig->durable, HPS_FAKE_GET, 2);
    hps_fake_gate_open(rig->durable, HPS_FAKE_GET);
    wait_done(&wait);
    assert_int_equal(wait.error.status, HPS_OK);
    assert_int_equal(active(rig), 1);
}

static void test_warm_up_behind_when_another_version_takes_over_then_it_stops(void **state)
{
    struct rig *rig = *state;
    struct hps_error err;
    struct hps_switched switched;
    load(rig, "two", false);
    uint32_t n = heat(rig);
    assert_int_equal(progress_of(rig, 2).n_keys_hot, 0);
    hps_fake_gate_shut(rig->durable, HPS_FAKE_GET);
    assert_int_equal(hps_catalog_activate(rig->catalog, "m", 2, false, &switched, &err), HPS_OK);
    hps_fake_gate_wait(rig->durable, HPS_FAKE_GET, 1);
    assert_int_equal(progress_of(rig, 2).n_keys_warm, 0);
    assert_int_equal(progress_of(rig, 2).n_keys_hot, n);
    assert_int_equal(hps_catalog_rollback(rig->catalog, "m", &switched, &err), HPS_OK);
    hps_fake_gate_open(rig->durable, HPS_FAKE_GET);
    wait_rows(rig, 1, n);
    assert_int_equal(host_rows(rig, 2), 1024); /* the batch in flight */
    assert_int_equal(progress_of(rig, 2).n_keys_hot, 0);
}

static void test_unload_when_the_version_is_being_warmed_up_then_it_stops_without_a_switch(
    void **state)
{
    struct rig *rig = *state;
    struct wait wait = {.waiter = {.done = on_switched}};
    struct fixture_unload unloading = fixture_unload_new();
    struct hps_error err;
    load(rig, "two", false);
    heat(rig);
    hps_fake_gate_shut(rig->durable, HPS_FAKE_GET);
    hps_catalog_switch(rig->catalog, "m", 2, &wait.waiter);
    hps_fake_gate_wait(rig->durable, HPS_FAKE_GET, 1);
    uint64_t n_calls = hps_fake_calls(rig->durable, HPS_FAKE_GET);
    assert_int_equal(hps_catalog_unload(rig->catalog, "m", 2, &unloading.unload, &err), HPS_OK);
    hps_fake_gate_open(rig->durable, HPS_FAKE_GET);
    wait_done(&wait);
    AWAIT(atomic_load(&unloading.done));
    assert_int_equal(unloading.error.status, HPS_OK);
    assert_int_equal(wait.error.status, HPS_PRECONDITION);
    assert_int_equal(hps_fake_calls(rig->durable, HPS_FAKE_GET), n_calls);
    assert_int_equal(active(rig), 1);
}

static void test_switch_when_the_version_does_not_exist_then_it_fails_at_once(void **state)
{
    struct rig *rig = *state;
    struct wait wait = {.waiter = {.done = on_switched}};
    hps_catalog_switch(rig->catalog, "m", 9, &wait.waiter);
    assert_true(wait.done);
    assert_int_equal(wait.error.status, HPS_NOT_FOUND);
}

static void test_load_when_it_is_activated_then_warm_before_the_switch(void **state)
{
    struct rig *rig = *state;
    uint32_t n = heat(rig);
    load(rig, "two", true);
    assert_int_equal(active(rig), 2);
    assert_int_equal(host_rows(rig, 2), n);
}

static void test_tick_when_it_is_due_then_hot_keys_are_written_once(void **state)
{
    struct rig *rig = *state;
    uint64_t n_before = hps_fake_calls(rig->durable, HPS_FAKE_RECORD_PUT);
    close_catalog(rig);
    stop_clock();
    open_catalog(rig);
    heat(rig);
    hps_clock_advance(299 * UINT64_C(1000000));
    hps_catalog_tick(rig->catalog);
    hps_clock_advance(2 * 1000000);
    hps_catalog_tick(rig->catalog);
    hps_catalog_tick(rig->catalog);
    AWAIT(hps_fake_calls(rig->durable, HPS_FAKE_RECORD_PUT) > n_before);
    hps_catalog_stop(rig->catalog); /* there were no new lookups */
    assert_int_equal(hps_fake_calls(rig->durable, HPS_FAKE_RECORD_PUT), n_before + 1);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_open_when_restarted_then_the_hot_rows_of_the_active_version_are_in_the_map),
        TEST(test_switch_when_the_version_is_cold_then_warm_first_and_other_calls_continue),
        TEST(test_switch_when_it_takes_too_long_then_switched_and_the_rest_follows),
        TEST(test_switch_when_the_active_version_fills_the_map_then_its_rows_stay_before_it),
        TEST(test_switch_when_a_warm_up_runs_behind_another_then_it_does_not_wait),
        TEST(test_warm_up_behind_when_another_version_takes_over_then_it_stops),
        TEST(test_unload_when_the_version_is_being_warmed_up_then_it_stops_without_a_switch),
        TEST(test_switch_when_the_version_does_not_exist_then_it_fails_at_once),
        TEST(test_load_when_it_is_activated_then_warm_before_the_switch),
        TEST(test_tick_when_it_is_due_then_hot_keys_are_written_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

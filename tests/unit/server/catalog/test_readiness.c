/* SPDX-License-Identifier: Apache-2.0
 *
 * Readiness of a catalog with one configured model, which has no files at first. State, reasons,
 * health and gauge change together, and the first time is logged once.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "backends/host/map.h"
#include "base/log.h"
#include "server/catalog/readiness.h"
#include "server/observe/metrics.h"
#include "tests/lib/catalog_fixture.h"
#include "tests/lib/config_fixture.h"
#include "tests/lib/tmpdir.h"

enum { DIM = 4, N_ROWS = 100 };

struct rig {
    struct hps_tmpdir dir;
    struct hps_config *config;
    struct hps_store *host;
    struct hps_metrics *metrics;
    struct hps_models *models;
    struct hps_catalog *catalog;
    struct hps_health_service *health;
    struct hps_metric *gauge;
    struct hps_readiness *readiness;
    unsigned n_first;
};

/* A reader of the log line may query all interfaces at once. */
static void on_first(void *ctx)
{
    struct rig *rig = ctx;
    rig->n_first++;
    assert_true(hps_readiness_get(rig->readiness, NULL, NULL));
    assert_true(hps_health_service_get(rig->health));
    assert_true(hps_metric_value(rig->gauge) == 1);
}

static void configure(struct rig *rig)
{
    char text[2048];
    snprintf(text, sizeof(text),
             "{\"supportlonglong\": true,"
             " \"models\": [{\"model\": \"m\", \"sparse_files\": [\"%s\"],"
             " \"embedding_vecsize_per_table\": [%d], \"embedding_table_names\": [\"items\"],"
             " \"default_value_for_each_table\": [0], \"deployed_device_list\": [0]}],"
             " \"server\": {\"state_dir\": \"%s\"}}",
             hps_tmpdir_join(&rig->dir, "one/items.npy"), DIM, rig->dir.path);
    rig->config = config_of(text);
}

static int setup(void **state)
{
    static struct rig rig;
    static const char *const names[] = {"hps.v1.ParameterServer"};
    struct hps_error err = {0};
    memset(&rig, 0, sizeof(rig));
    hps_log_level_set(HPS_LOG_ERROR);
    hps_tmpdir_open(&rig.dir);
    configure(&rig);
    assert_int_equal(hps_host_map_open(64 << 20, &rig.host, &err), HPS_OK);
    rig.metrics = hps_server_metrics_new();
    rig.models = hps_models_new();
    struct hps_catalog_options options = {.models = rig.models,
                                          .config = rig.config,
                                          .metrics = rig.metrics,
                                          .env = {.spill_dir = rig.dir.path,
                                                  .memory_bytes = 4 << 20,
                                                  .host_bytes_max = 64 << 20,
                                                  .key_bytes = 8}};
    hps_stores_add(&options.env.stores, rig.host);
    if (hps_catalog_open(&options, &rig.catalog, &err) != HPS_OK) {
        fail_msg("%s", err.text);
    }
    rig.health = hps_health_service_new(names, 1);
    rig.gauge = hps_server_metric(rig.metrics, HPS_M_READY, NULL, NULL, NULL, NULL);
    const struct hps_readiness_parts parts = {.catalog = rig.catalog,
                                              .health = rig.health,
                                              .ready = rig.gauge,
                                              .first = on_first,
                                              .ctx = &rig};
    rig.readiness = hps_readiness_new(&parts);
    assert_non_null(rig.readiness);
    *state = &rig;
    return 0;
}

static int teardown(void **state)
{
    struct rig *rig = *state;
    hps_readiness_free(rig->readiness);
    hps_health_service_free(rig->health);
    hps_catalog_close(rig->catalog);
    hps_models_free(rig->models);
    hps_metrics_free(rig->metrics);
    rig->host->ops->close(rig->host);
    hps_config_free(rig->config);
    hps_tmpdir_close(&rig->dir);
    return 0;
}

static void write_files(struct rig *rig)
{
    hps_tmpdir_mkdir(&rig->dir, "one");
    fixture_write_rows(hps_tmpdir_join(&rig->dir, "one/items.npy"), DIM, N_ROWS, 0);
}

static void add_reason(void *ctx, const char *reason)
{
    char *text = ctx;
    size_t size = strlen(text);
    snprintf(text + size, 1024 - size, "%s|", reason);
}

/* Check that all interfaces agree. Returns the reasons, or "ready". */
static const char *state_of(struct rig *rig)
{
    static char text[1024];
    text[0] = '\0';
    bool ready = hps_readiness_get(rig->readiness, add_reason, text);
    assert_int_equal(hps_health_service_get(rig->health), ready);
    assert_true(hps_metric_value(rig->gauge) == (ready ? 1 : 0));
    assert_int_equal(text[0] == '\0', ready);
    return ready ? "ready" : text;
}

static void await(struct rig *rig, const char *words)
{
    do {
        brief_pause();
        hps_readiness_refresh(rig->readiness);
    } while (strstr(state_of(rig), words) == NULL);
}

static void expect_pin(struct rig *rig, hps_status expected, const char *words)
{
    struct hps_version *version = NULL;
    struct hps_error err = {0};
    assert_int_equal(hps_models_pin(rig->models, "m", 1, 0, &version, &err), expected);
    if (expected == HPS_OK) {
        hps_version_unpin(version);
    } else if (strstr(err.text, words) == NULL) {
        fail_msg("%s", err.text);
    }
}

static double n_failures(struct rig *rig)
{
    return hps_metric_value(
        hps_server_metric(rig->metrics, HPS_M_MODEL_LOAD_FAILURES, "m", NULL, NULL, NULL));
}

static void test_ready_when_a_load_fails_and_is_retried_then_all_interfaces_change_together(
    void **state)
{
    struct rig *rig = *state;
    assert_string_equal(state_of(rig), "starting|");
    expect_pin(rig, HPS_NOT_FOUND, "not loaded");
    hps_catalog_ensure_models(rig->catalog);
    expect_pin(rig, HPS_UNAVAILABLE, "model \"m\" "); /* it is loading, or has failed */
    await(rig, "model \"m\" failed to load: ");
    expect_pin(rig, HPS_UNAVAILABLE, "model \"m\" failed to load: ");
    assert_true(n_failures(rig) == 1);
    hps_catalog_retry_models(rig->catalog);
    AWAIT(n_failures(rig) >= 2);
    await(rig, "model \"m\" failed to load: ");
    assert_int_equal(rig->n_first, 0);
    write_files(rig);
    hps_catalog_retry_models(rig->catalog);
    await(rig, "ready");
    expect_pin(rig, HPS_OK, NULL);
    assert_int_equal(rig->n_first, 1);
    assert_true(n_failures(rig) == 2);
    hps_catalog_retry_models(rig->catalog); /* no load has failed */
    hps_readiness_refresh(rig->readiness);
    assert_string_equal(state_of(rig), "ready");
    hps_readiness_drain(rig->readiness);
    assert_string_equal(state_of(rig), "draining|");
    hps_readiness_refresh(rig->readiness);
    assert_string_equal(state_of(rig), "draining|");
    assert_int_equal(rig->n_first, 1);
}

static void test_ready_when_it_is_lost_and_regained_then_the_first_time_is_logged_once(void **state)
{
    struct rig *rig = *state;
    struct fixture_unload gone = fixture_unload_new();
    struct hps_error err = {0};
    write_files(rig);
    hps_catalog_ensure_models(rig->catalog);
    await(rig, "ready");
    assert_int_equal(hps_catalog_unload(rig->catalog, "m", 1, &gone.unload, &err), HPS_OK);
    AWAIT(atomic_load(&gone.done));
    await(rig, "model \"m\" has no active version; use hpsctl load");
    expect_pin(rig, HPS_NOT_FOUND, "not loaded");
    hps_catalog_retry_models(rig->catalog); /* no load has failed */
    hps_readiness_refresh(rig->readiness);
    assert_string_equal(state_of(rig), "model \"m\" has no active version; use hpsctl load|");
    hps_catalog_ensure_models(rig->catalog);
    await(rig, "ready");
    assert_int_equal(rig->n_first, 1);
}

static void test_ensure_when_called_twice_then_one_version_is_loaded(void **state)
{
    struct rig *rig = *state;
    write_files(rig);
    hps_catalog_ensure_models(rig->catalog);
    hps_catalog_ensure_models(rig->catalog);
    await(rig, "ready");
    hps_catalog_stop(rig->catalog); /* runs posted tasks */
    struct hps_version *version = NULL;
    struct hps_error err = {0};
    assert_int_equal(hps_models_pin(rig->models, "m", 1, 2, &version, &err), HPS_NOT_FOUND);
    assert_true(n_failures(rig) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            test_ready_when_a_load_fails_and_is_retried_then_all_interfaces_change_together, setup,
            teardown),
        cmocka_unit_test_setup_teardown(
            test_ready_when_it_is_lost_and_regained_then_the_first_time_is_logged_once, setup,
            teardown),
        cmocka_unit_test_setup_teardown(test_ensure_when_called_twice_then_one_version_is_loaded,
                                        setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

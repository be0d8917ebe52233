/* SPDX-License-Identifier: Apache-2.0
 *
 * The metric families: names and labels are in order, and a lookup counts into the right series.
 */
#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "server/observe/metrics.h"
#include "tests/lib/lookup_fixture.h"

static struct hps_metrics *metrics;

static int setup(void **state)
{
    (void)state;
    metrics = hps_server_metrics_new();
    return metrics == NULL ? -1 : 0;
}

static int teardown(void **state)
{
    (void)state;
    hps_metrics_free(metrics);
    return 0;
}

static double value(enum hps_metric_id id, const char *v0, const char *v1, const char *v2,
                    const char *v3)
{
    return hps_metric_value(hps_server_metric(metrics, id, v0, v1, v2, v3));
}

static void test_metrics_when_listed_then_names_follow_the_rules(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        enum hps_metric_type type;
    } families[] = {
#define HPS_METRIC_NAME(id, type_, name_, labels_, help_) {(name_), HPS_METRIC_##type_},
        HPS_METRIC_LIST(HPS_METRIC_NAME)
#undef HPS_METRIC_NAME
    };

    for (unsigned i = 0; i < HPS_M_COUNT; i++) {
        size_t size = strlen(families[i].name);
        bool total = size > 6 && strcmp(families[i].name + size - 6, "_total") == 0;
        bool seconds = size > 8 && strcmp(families[i].name + size - 8, "_seconds") == 0;

        assert_int_equal(total, families[i].type == HPS_METRIC_COUNTER);
        assert_true(seconds || families[i].type != HPS_METRIC_HISTOGRAM); /* ages are gauges */
        for (size_t c = 0; c < size; c++) {
            assert_true(islower((unsigned char)families[i].name[c]) || families[i].name[c] == '_');
        }
        for (unsigned j = 0; j < i; j++) {
            assert_string_not_equal(families[i].name, families[j].name);
        }
    }
    assert_string_equal(hps_stage_name(HPS_STAGE_ROCKSDB), "rocksdb");
}

static void test_metrics_when_printed_then_every_series_is_there(void **state)
{
    (void)state;
    struct hps_service_metrics series;
    struct hps_buf text;

    hps_service_metrics_fill(metrics, &series);
    hps_metric_add(series.rejected[HPS_REJECT_QUEUE], 2);
    hps_buf_init(&text, 1 << 20);
    assert_int_equal(hps_metrics_print(metrics, &text), HPS_OK);
    assert_int_equal(hps_buf_append(&text, "", 1), HPS_OK);
    const char *all = (const char *)text.data;
    assert_non_null(strstr(all, "hpsd_requests_rejected_total{reason=\"queue\"} 2\n"));
    assert_non_null(
        strstr(all, "hpsd_tier_errors_total{tier=\"host\",reason=\"unavailable\"} 0\n"));
    assert_non_null(strstr(all, "hpsd_lookup_stage_duration_seconds_count{stage=\"decode\"} 0\n"));
    hps_buf_fini(&text);
}

static void test_metrics_when_a_lookup_runs_then_keys_and_tiers_are_counted(void **state)
{
    (void)state;
    struct fixture fx;
    struct hps_service_metrics series;
    struct hps_table_metrics table_series[FIXTURE_TABLES] = {0};
    hps_key keys[5] = {1, 2, 3, 3, 9};
    _Alignas(64) uint8_t rows[128];
    struct hps_error err;
    bool done = true;

    fixture_open(&fx, 0);
    hps_service_metrics_fill(metrics, &series);
    hps_table_metrics_fill(metrics, &fx.version, 0, &table_series[0]);
    fx.version.metrics = table_series;
    fixture_put(&fx, FIXTURE_HOST, 0, 1);
    fixture_put(&fx, FIXTURE_DISK, 0, 2);
    fixture_put(&fx, FIXTURE_DISK, 0, 3);
    struct hps_arena *arena = hps_arena_new(4096, 1 << 20);
    struct hps_lookup_part part = {
        .table = &fx.tables[0], .keys = (const uint8_t *)keys, .n_keys = 5};
    struct hps_lookup lookup = {.version = &fx.version,
                                .arena = arena,
                                .parts = &part,
                                .n_parts = 1,
                                .rows = rows,
                                .metrics = &series.lookup};
    assert_non_null(arena);
    assert_int_equal(hps_lookup_plan(&lookup, &err), HPS_OK);
    assert_int_equal(hps_lookup_run_memory(&lookup, &done, &err), HPS_OK);
    assert_false(done);
    assert_int_equal(hps_lookup_run_rest(&lookup, &err), HPS_OK);
    assert_true(value(HPS_M_LOOKUP_KEYS, "m", "t0", "found", NULL) == 4);
    assert_true(value(HPS_M_LOOKUP_KEYS, "m", "t0", "unknown", NULL) == 1);
    assert_true(value(HPS_M_LOOKUP_UNIQUE_KEYS, "m", "t0", NULL, NULL) == 4);
    assert_true(value(HPS_M_TIER_KEYS, "m", "t0", "host", "hit") == 1);
    assert_true(value(HPS_M_TIER_KEYS, "m", "t0", "host", "miss") == 3);
    assert_true(value(HPS_M_TIER_KEYS, "m", "t0", "rocksdb", "hit") == 2);
    assert_true(value(HPS_M_INSERTION_ROWS, "host", "sync", NULL, NULL) == 2);
    assert_true(value(HPS_M_TIER_DURATION, "rocksdb", NULL, NULL, NULL) == 1);
    hps_fake_fail(fx.stores[FIXTURE_HOST], HPS_FAKE_GET, HPS_UNAVAILABLE, 0, 1, 0);
    hps_fake_fail(fx.stores[FIXTURE_DISK], HPS_FAKE_GET, HPS_IO, 0, 1, 0);
    assert_int_equal(hps_lookup_plan(&lookup, &err), HPS_OK);
    assert_int_equal(hps_lookup_run_memory(&lookup, &done, &err), HPS_OK);
    assert_int_equal(hps_lookup_run_rest(&lookup, &err), HPS_IO);
    assert_true(value(HPS_M_TIER_ERRORS, "host", "unavailable", NULL, NULL) == 1);
    assert_true(value(HPS_M_TIER_ERRORS, "rocksdb", "failed", NULL, NULL) == 1);
    hps_arena_free(arena);
    fixture_close(&fx);
}

int main(void)
{
#define METRICS_TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        METRICS_TEST(test_metrics_when_listed_then_names_follow_the_rules),
        METRICS_TEST(test_metrics_when_printed_then_every_series_is_there),
        METRICS_TEST(test_metrics_when_a_lookup_runs_then_keys_and_tiers_are_counted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

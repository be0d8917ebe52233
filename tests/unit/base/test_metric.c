/* SPDX-License-Identifier: Apache-2.0
 *
 * The registry and its Prometheus text.
 */
#include "base/metric.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/assert.h"
#include "tests/lib/fault_heap.h"

enum { REQUESTS, IN_FLIGHT, DURATION, FRESHNESS, KEYS, N_FAMILIES };

static const struct hps_metric_family_def defs[N_FAMILIES] = {
    {"rpc_requests_total", "method,code", HPS_METRIC_COUNTER, "Requests answered."},
    {"requests_in_flight", "", HPS_METRIC_GAUGE, "A \\ and a\nnew line \"here\"."},
    {"rpc_duration_seconds", "method", HPS_METRIC_HISTOGRAM, "Time to answer."},
    {"update_freshness_seconds", "model", HPS_METRIC_HISTOGRAM, "Age of updates."},
    {"lookup_keys_total", "model,table", HPS_METRIC_COUNTER, "Keys answered."},
};

static const char *const lookup_ok[] = {"Lookup", "0"};
static const char *const lookup_bad[] = {"Lookup", "3"};

static void hook(const char *expr, const char *file, int line)
{
    mock_assert(0, expr, file, line);
}

/* All text up to the metrics of the registry itself; the caller frees the buffer. */
static const char *printed(struct hps_metrics *metrics, struct hps_buf *buf, bool all)
{
    hps_buf_init(buf, 1 << 20);
    assert_int_equal(hps_metrics_print(metrics, buf), HPS_OK);
    assert_int_equal(hps_buf_append(buf, "", 1), HPS_OK);
    char *end = strstr((char *)buf->data, "# HELP hpsd_metrics_series_dropped");
    assert_non_null(end);
    if (!all) {
        *end = '\0';
    }
    return (const char *)buf->data;
}

static void test_print_when_no_series_then_only_own_and_process(void **state)
{
    (void)state;
    struct hps_metrics *metrics = hps_metrics_new(defs, N_FAMILIES, 100);
    struct hps_buf buf;
    const char *text = printed(metrics, &buf, true);
    assert_non_null(strstr(text, "\nhpsd_metrics_series_dropped 0\n"));
    assert_null(strstr(text, "rpc_requests_total"));
    static const char *const names[] = {
        "process_cpu_seconds_total",
        "process_resident_memory_bytes",
        "process_virtual_memory_bytes",
        "process_open_fds",
        "process_max_fds",
        "process_start_time_seconds",
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char line[80];
        snprintf(line, sizeof(line), "\n%s ", names[i]);
        const char *at = strstr(text, line);
        assert_non_null(at);
        double value = strtod(at + strlen(line), NULL);
        assert_true(value >= (i == 0 ? 0 : 1));
    }
    assert_null(strstr(text, "process_start_time_seconds 0\n"));
    hps_buf_fini(&buf);
    hps_metrics_free(metrics);
    hps_metrics_free(NULL);
}

static void test_print_when_counter_and_gauge_then_exact_text(void **state)
{
    (void)state;
    struct hps_metrics *metrics = hps_metrics_new(defs, N_FAMILIES, 100);
    hps_metric_add(hps_metric_get(metrics, REQUESTS, lookup_bad), 2);
    hps_metric_add(hps_metric_get(metrics, REQUESTS, lookup_ok), UINT64_MAX);
    hps_metric_add(hps_metric_get(metrics, REQUESTS, lookup_bad), 1);
    struct hps_metric *gauge = hps_metric_get(metrics, IN_FLIGHT, NULL);
    hps_metric_set(gauge, 2.5);
    hps_metric_gauge_add(gauge, -4);
    struct hps_buf buf;
    assert_string_equal(printed(metrics, &buf, false),
                        "# HELP hpsd_rpc_requests_total Requests answered.\n"
                        "# TYPE hpsd_rpc_requests_total counter\n"
                        "hpsd_rpc_requests_total{method=\"Lookup\",code=\"3\"} 3\n"
                        "hpsd_rpc_requests_total{method=\"Lookup\",code=\"0\"} "
                        "18446744073709551615\n"
                        "# HELP hpsd_requests_in_flight A \\\\ and a\\nnew line \"here\".\n"
                        "# TYPE hpsd_requests_in_flight gauge\n"
                        "hpsd_requests_in_flight -1.5\n");
    hps_buf_fini(&buf);
    assert_true(hps_metric_value(gauge) == -1.5);
    hps_metrics_free(metrics);
}

static void test_print_when_label_has_specials_then_escaped(void **state)
{
    (void)state;
    struct hps_metrics *metrics = hps_metrics_new(defs, N_FAMILIES, 100);
    const char *const values[] = {"a\"b\\c", ""};
    const char *const odd[] = {"\x1b\n\xe2\x80\xae", "\xff"}; /* a page is seen on terminals, too */
    hps_metric_add(hps_metric_get(metrics, REQUESTS, values), 1);
    hps_metric_add(hps_metric_get(metrics, REQUESTS, odd), 2);
    struct hps_buf buf;
    const char *page = printed(metrics, &buf, false);
    assert_non_null(strstr(page, "hpsd_rpc_requests_total{method=\"a\\\"b\\\\c\",code=\"\"} 1\n"));
    assert_non_null(
        strstr(page, "{method=\"\\\\u001b\\\\u000a\\\\u202e\",code=\"\xef\xbf\xbd\"} 2\n"));
    hps_buf_fini(&buf);
    hps_metrics_free(metrics);
}

static void test_print_when_histogram_then_cumulative_seconds(void **state)
{
    (void)state;
    struct hps_metrics *metrics = hps_metrics_new(defs, N_FAMILIES, 100);
    struct hps_metric *metric = hps_metric_get(metrics, DURATION, lookup_ok);
    static const uint64_t us[] = {0, 50, 51, 1000, 5000000, 5000001};
    for (size_t i = 0; i < sizeof(us) / sizeof(us[0]); i++) {
        hps_metric_observe_us(metric, us[i]);
    }
    struct hps_buf buf;
#define LE(le, n) "hpsd_rpc_duration_seconds_bucket{method=\"Lookup\",le=\"" le "\"} " n "\n"
    assert_string_equal(
        printed(metrics, &buf, false),
        "# HELP hpsd_rpc_duration_seconds Time to answer.\n"
        "# TYPE hpsd_rpc_duration_seconds histogram\n" LE("5e-05", "2") LE("0.0001", "3")
            LE("0.00025", "3") LE("0.0005", "3") LE("0.001", "4") LE("0.0025", "4") LE("0.005", "4")
                LE("0.01", "4") LE("0.025", "4") LE("0.05", "4") LE("0.1", "4") LE("0.25", "4")
                    LE("0.5", "4") LE("1", "4") LE("2.5", "4") LE("5", "5") LE(
                        "+Inf", "6") "hpsd_rpc_duration_seconds_sum{method=\"Lookup\"} 10.001102\n"
                                     "hpsd_rpc_duration_seconds_count{method=\"Lookup\"} 6\n");
#undef LE
    hps_buf_fini(&buf);
    assert_true(hps_metric_value(metric) == 6);
    hps_metrics_free(metrics);
}

static void test_print_when_freshness_then_buckets_to_an_hour(void **state)
{
    (void)state;
    struct hps_metrics *metrics = hps_metrics_new(defs, N_FAMILIES, 100);
    const char *const model[] = {"dlrm"};
    hps_metric_observe_us(hps_metric_get(metrics, FRESHNESS, model), 1801000000);
    struct hps_buf buf;
    const char *text = printed(metrics, &buf, false);
    assert_non_null(strstr(text, "{model=\"dlrm\",le=\"0.05\"} 0\n"));
    assert_non_null(strstr(text, "{model=\"dlrm\",le=\"1800\"} 0\n"));
    assert_non_null(strstr(text, "{model=\"dlrm\",le=\"3600\"} 1\n"));
    assert_non_null(strstr(text, "_sum{model=\"dlrm\"} 1801.000000\n"));
    hps_buf_fini(&buf);
    hps_metrics_free(metrics);
}

/* A thousand tables must not take the series that say whether the server is well. */
static void test_get_when_many_tables_then_their_series_count_and_are_not_printed(void **state)
{
    (void)state;
    struct hps_metrics *metrics = hps_metrics_new(defs, N_FAMILIES, 1);
    static const char *const a[] = {"m", "a"}, *const b[] = {"m", "b"};
    struct hps_metric *kept = hps_metric_get(metrics, KEYS, a);
    struct hps_metric *unprinted = hps_metric_get(metrics, KEYS, b);
    assert_ptr_not_equal(kept, unprinted);
    assert_ptr_equal(hps_metric_get(metrics, KEYS, a), kept);
    assert_ptr_equal(hps_metric_get(metrics, KEYS, b), unprinted);
    hps_metric_add(kept, 3);
    hps_metric_add(unprinted, 5);
    hps_metric_add(hps_metric_get(metrics, REQUESTS, lookup_bad), 1);
    assert_true(hps_metric_value(unprinted) == 5);
    struct hps_buf buf;
    const char *text = printed(metrics, &buf, true);
    assert_non_null(strstr(text, "\nhpsd_metrics_series_dropped 1\n"));
    assert_non_null(strstr(text, "table=\"a\"} 3\n"));
    assert_null(strstr(text, "table=\"b\""));
    assert_non_null(strstr(text, "code=\"3\"} 1\n"));
    hps_buf_fini(&buf);
    static const struct hps_metric_label label = {"model", "m"};
    hps_metrics_remove(metrics, &label, 1);
    (void)hps_metric_get(metrics, KEYS, b);
    text = printed(metrics, &buf, true);
    assert_non_null(strstr(text, "\nhpsd_metrics_series_dropped 0\n"));
    assert_non_null(strstr(text, "table=\"b\"} 0\n"));
    hps_buf_fini(&buf);
    hps_metrics_free(metrics);
}

static void test_remove_when_label_matches_then_gone_and_room_again(void **state)
{
    (void)state;
    struct hps_metrics *metrics = hps_metrics_new(defs, N_FAMILIES, 3);
    const char *const dlrm[] = {"dlrm"};
    const char *const other[] = {"other"};
    struct hps_metric *metric = hps_metric_get(metrics, FRESHNESS, dlrm);
    hps_metric_observe_us(metric, 7);
    hps_metric_get(metrics, FRESHNESS, other);
    hps_metric_get(metrics, REQUESTS, (const char *const[]){"dlrm", "0"});
    hps_metrics_remove(metrics, &(struct hps_metric_label){"model", "dlrm"}, 1);
    hps_metric_observe_us(metric, 7); /* still valid */
    struct hps_buf buf;
    const char *text = printed(metrics, &buf, false);
    assert_null(strstr(text, "model=\"dlrm\""));
    assert_non_null(strstr(text, "model=\"other\""));
    assert_non_null(strstr(text, "method=\"dlrm\"")); /* the value, but of another label */
    hps_buf_fini(&buf);
    struct hps_metric *again = hps_metric_get(metrics, FRESHNESS, dlrm);
    assert_ptr_equal(again, metric);
    assert_true(hps_metric_value(again) == 0); /* it starts over */
    hps_metrics_free(metrics);
}

static void test_remove_when_two_labels_then_only_series_with_both_go(void **state)
{
    (void)state;
    struct hps_metrics *metrics = hps_metrics_new(defs, N_FAMILIES, 9);
    hps_metric_get(metrics, REQUESTS, lookup_ok);
    hps_metric_get(metrics, REQUESTS, lookup_bad);
    hps_metric_get(metrics, DURATION, (const char *const[]){"Lookup"});
    const struct hps_metric_label labels[] = {{"method", "Lookup"}, {"code", "3"}};
    hps_metrics_remove(metrics, labels, 2);
    struct hps_buf buf;
    const char *text = printed(metrics, &buf, false);
    assert_null(strstr(text, "code=\"3\""));
    assert_non_null(strstr(text, "{method=\"Lookup\",code=\"0\"}"));
    assert_non_null(strstr(text, "rpc_duration_seconds_count{method=\"Lookup\"}"));
    hps_buf_fini(&buf);
    hps_metrics_clear(metrics, REQUESTS);
    text = printed(metrics, &buf, false);
    assert_null(strstr(text, "code="));
    assert_non_null(strstr(text, "rpc_duration_seconds_count{method=\"Lookup\"}"));
    hps_buf_fini(&buf);
    hps_metrics_free(metrics);
}

static void test_update_when_type_differs_then_assert(void **state)
{
    (void)state;
    struct hps_metrics *metrics = hps_metrics_new(defs, N_FAMILIES, 3);
    struct hps_metric *counter = hps_metric_get(metrics, REQUESTS, lookup_ok);
    hps_assert_hook(hook);
    expect_assert_failure(hps_metric_set(counter, 1));
    expect_assert_failure(hps_metric_observe_us(counter, 1));
    expect_assert_failure(hps_metric_get(metrics, N_FAMILIES, NULL));
    hps_assert_hook(NULL);
    hps_metrics_free(metrics);
}

static void refresh(void *ctx)
{
    hps_metric_set(hps_metric_get(ctx, IN_FLIGHT, NULL), 42);
}

static void test_print_when_hook_then_called_before(void **state)
{
    (void)state;
    struct hps_metrics *metrics = hps_metrics_new(defs, N_FAMILIES, 3);
    hps_metrics_on_print(metrics, refresh, metrics);
    struct hps_buf buf;
    assert_non_null(strstr(printed(metrics, &buf, false), "hpsd_requests_in_flight 42\n"));
    hps_buf_fini(&buf);
    hps_metrics_free(metrics);
}

static void test_print_when_buffer_too_small_then_exhausted_and_unchanged(void **state)
{
    (void)state;
    struct hps_metrics *metrics = hps_metrics_new(defs, N_FAMILIES, 3);
    hps_metric_get(metrics, DURATION, lookup_ok);
    struct hps_buf buf;
    hps_buf_init(&buf, 300);
    assert_int_equal(hps_buf_append(&buf, "before", 6), HPS_OK);
    assert_int_equal(hps_metrics_print(metrics, &buf), HPS_EXHAUSTED);
    assert_int_equal(buf.size, 6);
    hps_buf_fini(&buf);
    hps_metrics_free(metrics);
}

static void metric_scenario(void *ctx)
{
    (void)ctx;
    struct hps_metrics *metrics = hps_metrics_new(defs, N_FAMILIES, 100);
    if (metrics == NULL) {
        return;
    }
    hps_metric_add(hps_metric_get(metrics, REQUESTS, lookup_ok), 1);
    hps_metric_observe_us(hps_metric_get(metrics, DURATION, lookup_ok), 1);
    struct hps_buf buf;
    hps_buf_init(&buf, 1 << 20);
    hps_status status = hps_metrics_print(metrics, &buf);
    assert_true(status == HPS_OK || status == HPS_NO_MEMORY);
    hps_buf_fini(&buf);
    hps_metrics_free(metrics);
}

static void test_metric_when_each_allocation_fails_then_no_leak(void **state)
{
    (void)state;
    assert_true(hps_fault_heap_run(metric_scenario, NULL) >= 4);
}

enum { N_THREADS = 4, N_ROUNDS = 2000 };

static void *update_many(void *arg)
{
    struct hps_metric *counter = hps_metric_get(arg, REQUESTS, lookup_ok);
    struct hps_metric *gauge = hps_metric_get(arg, IN_FLIGHT, NULL);
    struct hps_metric *histogram = hps_metric_get(arg, DURATION, lookup_ok);
    for (unsigned i = 0; i < N_ROUNDS; i++) {
        hps_metric_add(counter, 1);
        hps_metric_gauge_add(gauge, i % 2 == 0 ? 1 : -1);
        hps_metric_observe_us(histogram, i);
        if (i % 64 == 0) {
            const char *const mine[] = {"thread", i % 128 == 0 ? "a" : "b"};
            hps_metric_add(hps_metric_get(arg, REQUESTS, mine), 1);
        }
    }
    return NULL;
}

static void test_metric_when_threads_update_and_print_then_nothing_lost(void **state)
{
    (void)state;
    struct hps_metrics *metrics = hps_metrics_new(defs, N_FAMILIES, 100);
    pthread_t threads[N_THREADS];
    for (unsigned i = 0; i < N_THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, update_many, metrics), 0);
    }
    for (unsigned i = 0; i < 20; i++) {
        struct hps_buf buf;
        printed(metrics, &buf, true);
        hps_buf_fini(&buf);
        hps_metrics_remove(metrics, &(struct hps_metric_label){"method", "thread"}, 1);
    }
    for (unsigned i = 0; i < N_THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    double want = N_THREADS * N_ROUNDS;
    assert_true(hps_metric_value(hps_metric_get(metrics, REQUESTS, lookup_ok)) == want);
    assert_true(hps_metric_value(hps_metric_get(metrics, DURATION, lookup_ok)) == want);
    assert_true(hps_metric_value(hps_metric_get(metrics, IN_FLIGHT, NULL)) == 0);
    hps_metrics_free(metrics);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_print_when_no_series_then_only_own_and_process),
        cmocka_unit_test(test_print_when_counter_and_gauge_then_exact_text),
        cmocka_unit_test(test_print_when_label_has_specials_then_escaped),
        cmocka_unit_test(test_print_when_histogram_then_cumulative_seconds),
        cmocka_unit_test(test_print_when_freshness_then_buckets_to_an_hour),
        cmocka_unit_test(test_get_when_many_tables_then_their_series_count_and_are_not_printed),
        cmocka_unit_test(test_remove_when_label_matches_then_gone_and_room_again),
        cmocka_unit_test(test_remove_when_two_labels_then_only_series_with_both_go),
        cmocka_unit_test(test_update_when_type_differs_then_assert),
        cmocka_unit_test(test_print_when_hook_then_called_before),
        cmocka_unit_test(test_print_when_buffer_too_small_then_exhausted_and_unchanged),
        cmocka_unit_test(test_metric_when_each_allocation_fails_then_no_leak),
        cmocka_unit_test(test_metric_when_threads_update_and_print_then_nothing_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

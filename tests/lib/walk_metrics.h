/* SPDX-License-Identifier: Apache-2.0
 *
 * The series of lookups and insertions, in a registry of the test's own.
 */
#ifndef HPS_TESTS_LIB_WALK_METRICS_H
#define HPS_TESTS_LIB_WALK_METRICS_H

#include "cache/lookup/lookup.h"

struct walk_metrics {
    struct hps_metrics *registry;
    struct hps_lookup_metrics series;
};

static inline void walk_metrics_open(struct walk_metrics *metrics)
{
    enum { DURATION, ERRORS, ROWS, DROPPED, QUEUE, SHARED_QUEUE, FAMILIES, SERIES_MAX = 1000 };
    static const struct hps_metric_family_def families[FAMILIES] = {
        [DURATION] = {.name = "duration", .labels = "tier", .type = HPS_METRIC_HISTOGRAM},
        [ERRORS] = {.name = "errors", .labels = "tier,reason", .type = HPS_METRIC_COUNTER},
        [ROWS] = {.name = "rows", .labels = "tier,mode", .type = HPS_METRIC_COUNTER},
        [DROPPED] = {.name = "dropped", .labels = "reason", .type = HPS_METRIC_COUNTER},
        [QUEUE] = {.name = "queue", .labels = "", .type = HPS_METRIC_GAUGE},
        [SHARED_QUEUE] = {.name = "shared_queue", .labels = "", .type = HPS_METRIC_GAUGE},
    };
    static const char *const names[] = {"0", "1", "2", "3", "4", "5", "6", "7"};
    struct hps_lookup_metrics *series = &metrics->series;

    metrics->registry = hps_metrics_new(families, FAMILIES, SERIES_MAX);
    assert_non_null(metrics->registry);
    struct hps_metrics *registry = metrics->registry;
    for (unsigned kind = 0; kind < HPS_TIER_COUNT; kind++) {
        const char *const now[] = {names[kind], "sync"};
        const char *const later[] = {names[kind], "async"};
        series->tier_duration[kind] = hps_metric_get(registry, DURATION, now);
        series->insertion_rows[kind] = hps_metric_get(registry, ROWS, now);
        series->insertion_rows_async[kind] = hps_metric_get(registry, ROWS, later);
        for (unsigned fault = 0; fault < HPS_FAULT_COUNT; fault++) {
            const char *const failed[] = {names[kind], names[fault]};
            series->tier_errors[kind][fault] = hps_metric_get(registry, ERRORS, failed);
        }
    }
    for (unsigned reason = 0; reason < HPS_DROP_COUNT; reason++) {
        series->insertion_dropped[reason] = hps_metric_get(registry, DROPPED, &names[reason]);
    }
    series->insertion_queue_rows = hps_metric_get(registry, QUEUE, names);
    series->insertion_shared_queue_rows = hps_metric_get(registry, SHARED_QUEUE, names);
}

static inline void walk_metrics_close(struct walk_metrics *metrics)
{
    hps_metrics_free(metrics->registry);
}

#endif

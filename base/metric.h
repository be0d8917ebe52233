/* SPDX-License-Identifier: Apache-2.0
 *
 * Counters, gauges and histograms, printed as Prometheus text. A family is declared once; a series
 * (family + label values) is looked up once, by its owner, and then updated without locks.
 * Any thread. Names carry no prefix here; "hpsd_" is added when printed.
 */
#ifndef HPS_BASE_METRIC_H
#define HPS_BASE_METRIC_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/buf.h"

enum hps_metric_type { HPS_METRIC_COUNTER, HPS_METRIC_GAUGE, HPS_METRIC_HISTOGRAM };

enum { HPS_METRIC_LABELS_MAX = 4, HPS_METRIC_BUCKETS = 16 };

struct hps_metric_family_def {
    const char *name;   /* e.g. "rpc_requests_total" */
    const char *labels; /* comma-separated label names, "" for none, e.g. "method,code" */
    enum hps_metric_type type;
    const char *help;
};

struct hps_metrics; /* registry */
struct hps_metric;  /* one series; lives as long as the registry, unless removed */

/* table_series_max bounds what is printed of the families that have the label `table`, all of them
 * together, as a model may have thousands: further series count as all do, and only
 * metrics_series_dropped tells of them, until they are asked for again when there is room. */
struct hps_metrics *hps_metrics_new(const struct hps_metric_family_def *defs, unsigned n_defs,
                                    unsigned table_series_max);
void hps_metrics_free(struct hps_metrics *metrics);
/* The series of `family` (index in defs) with these label values (as many as the family has
 * labels), made if new. Never NULL: without memory it is the dropped series, which takes every kind
 * of update and forgets it. */
struct hps_metric *hps_metric_get(struct hps_metrics *metrics, unsigned family,
                                  const char *const *values);
struct hps_metric_label {
    const char *name;
    const char *value;
};

/* Forget every series of any family that has all these labels (a model unloaded, or one version of
 * it). Pointers to them stay valid but are no longer printed; asked for again, a series starts
 * over. */
void hps_metrics_remove(struct hps_metrics *metrics, const struct hps_metric_label *labels,
                        unsigned n_labels);

void hps_metric_add(struct hps_metric *metric, uint64_t n);     /* counter */
void hps_metric_set(struct hps_metric *metric, double value);   /* gauge */
void hps_metric_gauge_add(struct hps_metric *metric, double n); /* gauge, may be negative */
/* Histogram; seconds when printed. */
void hps_metric_observe_us(struct hps_metric *metric, uint64_t us);
/* Of a counter or gauge; of a histogram its count. */
double hps_metric_value(const struct hps_metric *metric);

/* Called before each print, to refresh gauges that are computed (queue depths, sizes). */
void hps_metrics_on_print(struct hps_metrics *metrics, void (*fn)(void *ctx), void *ctx);
/* Append the Prometheus text of all series, process_* included. */
hps_status hps_metrics_print(struct hps_metrics *metrics, struct hps_buf *out) HPS_MUST_CHECK;

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Counters, gauges and histograms, printed as Prometheus text. A family is declared once. The owner
 * of a series (family and label values) gets it once and then updates it without locks. Names have
 * no prefix here; "hpsd_" is added when printed. Any thread.
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
struct hps_metric;  /* one series; valid until the registry is freed */

/* table_series_max bounds the printed series with the label `table`, over all families, because a
 * model may have thousands of tables. Further series count, but are not printed;
 * metrics_series_dropped gives their number. A later hps_metric_get shows a series if the limit
 * then allows it. */
struct hps_metrics *hps_metrics_new(const struct hps_metric_family_def *defs, unsigned n_defs,
                                    unsigned table_series_max);
void hps_metrics_free(struct hps_metrics *metrics);
/* The series of `family` (index in defs) with these label values, one for each label; created if
 * needed. Never NULL: without memory it returns a shared series that ignores all updates. */
struct hps_metric *hps_metric_get(struct hps_metrics *metrics, unsigned family,
                                  const char *const *values);
struct hps_metric_label {
    const char *name;
    const char *value;
};

/* Remove all series, of any family, that have all these labels (a model was unloaded, or one
 * version). Pointers to them stay valid, but they are no longer printed. A later hps_metric_get
 * starts such a series from zero. */
void hps_metrics_remove(struct hps_metrics *metrics, const struct hps_metric_label *labels,
                        unsigned n_labels);

void hps_metric_add(struct hps_metric *metric, uint64_t n);     /* counter */
void hps_metric_set(struct hps_metric *metric, double value);   /* gauge */
void hps_metric_gauge_add(struct hps_metric *metric, double n); /* gauge, may be negative */
/* A histogram; printed in seconds. */
void hps_metric_observe_us(struct hps_metric *metric, uint64_t us);
/* Value of a counter or gauge; number of observations of a histogram. */
double hps_metric_value(const struct hps_metric *metric);

/* Call `fn` before each print, to refresh computed gauges (queue depths, sizes). */
void hps_metrics_on_print(struct hps_metrics *metrics, void (*fn)(void *ctx), void *ctx);
/* Append the Prometheus text of all series, process_* included. */
hps_status hps_metrics_print(struct hps_metrics *metrics, struct hps_buf *out) HPS_MUST_CHECK;

#endif

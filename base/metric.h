/* SPDX-License-Identifier: Apache-2.0
 *
 * Counters, gauges and histograms, printed as Prometheus text. A family is a metric name with its
 * labels; a series is a family with label values. Code that updates a series gets it once
 * (hps_metric_get) and then updates it without locks. Names have no prefix here; "hpsd_" is added
 * when they are printed. Any thread.
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

/* Create a registry of the families defs[n_defs]. NULL: no memory. table_series_max limits how many
 * series with the label `table` are printed, over all families, because a model may have thousands
 * of tables. Further series are updated but not printed; metrics_series_dropped gives their number.
 * If a later hps_metric_get returns such a series, and the limit allows it by then, the series is
 * printed from then on. */
struct hps_metrics *hps_metrics_new(const struct hps_metric_family_def *defs, unsigned n_defs,
                                    unsigned table_series_max);
void hps_metrics_free(struct hps_metrics *metrics);
/* Get the series of `family` (index in defs) with these label values, one for each label. It is
 * created if it does not exist. Never NULL: if there is no memory, the result is a shared series
 * that ignores all updates. */
struct hps_metric *hps_metric_get(struct hps_metrics *metrics, unsigned family,
                                  const char *const *values);
struct hps_metric_label {
    const char *name;
    const char *value;
};

/* Remove all series, of any family, that have all these labels, for example when a model is
 * unloaded. Pointers to them stay valid, but they are no longer printed. A later hps_metric_get of
 * such a series starts it from zero. */
void hps_metrics_remove(struct hps_metrics *metrics, const struct hps_metric_label *labels,
                        unsigned n_labels);
/* Remove all series of the family, as above. */
void hps_metrics_clear(struct hps_metrics *metrics, unsigned family);

void hps_metric_add(struct hps_metric *metric, uint64_t n);     /* counter */
void hps_metric_set(struct hps_metric *metric, double value);   /* gauge */
void hps_metric_gauge_add(struct hps_metric *metric, double n); /* gauge, may be negative */
/* Add a duration to a histogram, which is printed in seconds. */
void hps_metric_observe_us(struct hps_metric *metric, uint64_t us);
/* Value of a counter or gauge; number of observations of a histogram. */
double hps_metric_value(const struct hps_metric *metric);

/* Register `fn`, which is called before each print to set computed gauges (queue depths, sizes). */
void hps_metrics_on_print(struct hps_metrics *metrics, void (*fn)(void *ctx), void *ctx);
/* Append the Prometheus text of the series that are printed, and of the process_* metrics. Errors
 * as hps_buf_reserve; after an error nothing is appended. */
hps_status hps_metrics_print(struct hps_metrics *metrics, struct hps_buf *out) HPS_MUST_CHECK;

#endif

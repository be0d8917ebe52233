/* SPDX-License-Identifier: Apache-2.0
 *
 * Filters that select the topics of updates to read (base/rows/update_record.h).
 *
 * A filter is a POSIX extended regular expression. HPS puts the filter in place of the model name,
 * in `^hps_et\.FILTER\..+$`. There, the default filter of HPS, `^hps_.+$`, matches no topic. In
 * hpsd a filter must match the complete name of the model or the complete name of the topic. So
 * filters that worked in HPS work in hpsd, and the default of HPS matches every topic.
 *
 * Any thread.
 */
#ifndef HPS_BASE_ROWS_TOPIC_FILTER_H
#define HPS_BASE_ROWS_TOPIC_FILTER_H

#include "base/status.h"

struct hps_topic_filters;

/* Compile the filters; the strings are borrowed for the call. n 0: every topic matches. INVALID:
 * the text names the filter and its error. NO_MEMORY. */
hps_status hps_topic_filters_new(const char *const *filters, uint32_t n,
                                 struct hps_topic_filters **out_filters, struct hps_error *err)
    HPS_MUST_CHECK;
/* Whether this is a topic with updates of the model, and a filter matches. */
bool hps_topic_filters_match(const struct hps_topic_filters *filters, const char *topic,
                             const char *model);
void hps_topic_filters_free(struct hps_topic_filters *filters); /* no effect if NULL */

#endif

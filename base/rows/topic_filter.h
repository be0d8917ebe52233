/* SPDX-License-Identifier: Apache-2.0
 *
 * Filters that select the topics of updates to read (base/rows/update_record.h).
 *
 * A filter is a POSIX extended regular expression that must match the complete name of the model or
 * the complete name of the topic. HPS inserts the filter into `^hps_et\.FILTER\..+$` instead. With
 * the default filter of HPS, `^hps_.+$`, this pattern matches no topic. In hpsd this default
 * matches every topic, and filters that work in HPS also work in hpsd.
 *
 * Any thread.
 */
#ifndef HPS_BASE_ROWS_TOPIC_FILTER_H
#define HPS_BASE_ROWS_TOPIC_FILTER_H

#include "base/status.h"

struct hps_topic_filters;

/* Compile filters[n]. The strings are not used after the call. If n is 0, every topic matches.
 * INVALID: `err` names the filter and its fault; NO_MEMORY. */
hps_status hps_topic_filters_new(const char *const *filters, uint32_t n,
                                 struct hps_topic_filters **out_filters, struct hps_error *err)
    HPS_MUST_CHECK;
/* Whether `topic` has updates of the model, and a filter matches. */
bool hps_topic_filters_match(const struct hps_topic_filters *filters, const char *topic,
                             const char *model);
void hps_topic_filters_free(struct hps_topic_filters *filters); /* no effect if NULL */

#endif

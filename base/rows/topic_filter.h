/* SPDX-License-Identifier: Apache-2.0
 *
 * The filters that say which topics of updates (base/rows/update_record.h) are read.
 *
 * A filter is a POSIX extended regular expression. HPS puts it where the model's name goes,
 * `^hps_et\.FILTER\..+$`, so that its own default, `^hps_.+$`, matches no topic at all. Here a
 * filter holds if it matches the model's name as a whole, or the topic's name as a whole: what
 * worked there works, and that default matches every topic.
 *
 * Any thread.
 */
#ifndef HPS_BASE_ROWS_TOPIC_FILTER_H
#define HPS_BASE_ROWS_TOPIC_FILTER_H

#include "base/status.h"

struct hps_topic_filters;

/* Compile; strings are borrowed for the call. n 0: everything passes. INVALID names the filter and
 * what is wrong with it. NO_MEMORY. */
hps_status hps_topic_filters_new(const char *const *filters, uint32_t n,
                                 struct hps_topic_filters **out_filters, struct hps_error *err)
    HPS_MUST_CHECK;
/* Is this a topic of the model's updates that a filter lets through? */
bool hps_topic_filters_match(const struct hps_topic_filters *filters, const char *topic,
                             const char *model);
void hps_topic_filters_free(struct hps_topic_filters *filters); /* NULL is legal */

#endif

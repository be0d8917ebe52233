/* SPDX-License-Identifier: Apache-2.0
 *
 * Which topics of the log belong to a version.
 */
#ifndef HPS_SERVER_UPDATE_PARTITION_ROUTE_H
#define HPS_SERVER_UPDATE_PARTITION_ROUTE_H

#include "base/rows/update_record.h"
#include "cache/update/update.h"

enum { HPS_UPDATE_TABLE_NONE = UINT32_MAX };

/* How a version applies the records of a topic. */
struct hps_update_route {
    bool whole_model;  /* hps_et.<model>: only packed records */
    uint32_t table_id; /* index; whole_model: HPS_UPDATE_TABLE_NONE */
    uint32_t source;   /* of the caller: records of different sources go into different parts */
};

/* Make the list of topics that may have updates of the version: hps_et.<model>, and
 * hps_et.<model>.<table> for each table, if a filter matches (base/rows/topic_filter.h).
 *
 * owner   the caller frees *out_topics [*out_n]; the names are in the same block
 * error   INVALID: a filter is invalid; NO_MEMORY
 * thread  any
 */
hps_status hps_update_topics(const struct hps_version *version, const char *const *filters,
                             uint32_t n_filters, const char ***out_topics, uint32_t *out_n,
                             struct hps_error *err) HPS_MUST_CHECK;
/* Find the route of a topic. False: the topic is of another model, or of a table that the version
 * lacks. Any thread. */
bool hps_update_route(const struct hps_version *version, const char *topic,
                      struct hps_update_route *out_route);

#endif

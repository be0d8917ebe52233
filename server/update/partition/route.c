/* SPDX-License-Identifier: Apache-2.0
 *
 * The topics of a version: see route.h. Any thread.
 */
#include "server/update/partition/route.h"

#include <string.h>

#include "base/heap.h"
#include "base/rows/topic_filter.h"

hps_status hps_update_topics(const struct hps_version *version, const char *const *filters,
                             uint32_t n_filters, const char ***out_topics, uint32_t *out_n,
                             struct hps_error *err)
{
    struct hps_topic_filters *compiled = NULL;
    uint32_t n = 0;
    hps_status status = hps_topic_filters_new(filters, n_filters, &compiled, err);
    if (status != HPS_OK) {
        return status;
    }
    size_t n_names = (size_t)version->n_tables + 1;
    const char **topics =
        hps_calloc(n_names, sizeof(topics[0]) + (size_t)HPS_UPDATE_TOPIC_BYTES_MAX);
    char *name = (char *)(topics + n_names);
    for (uint32_t i = 0; i < n_names && topics != NULL; i++) {
        const char *table = i < version->n_tables ? version->tables[i].name : NULL;
        hps_update_topic_format(version->model, table, name);
        if (hps_topic_filters_match(compiled, name, version->model)) {
            topics[n++] = name;
            name += HPS_UPDATE_TOPIC_BYTES_MAX;
        }
    }
    hps_topic_filters_free(compiled);
    if (topics == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for the names of topics");
    }
    *out_topics = topics;
    *out_n = n;
    return HPS_OK;
}

bool hps_update_route(const struct hps_version *version, const char *topic,
                      struct hps_update_route *out_route)
{
    struct hps_update_topic name;
    if (!hps_update_topic_parse(topic, &name) || strcmp(name.model, version->model) != 0) {
        return false;
    }
    out_route->source = 0;
    out_route->whole_model = name.table[0] == '\0';
    out_route->table_id = out_route->whole_model
                              ? HPS_UPDATE_TABLE_NONE
                              : hps_version_table(version, name.table, strlen(name.table));
    return out_route->whole_model || out_route->table_id != HPS_UPDATE_TABLE_NONE;
}

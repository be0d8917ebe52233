/* SPDX-License-Identifier: Apache-2.0
 *
 * The order of a model's tables. Lookups that name no table, as in HPS and Triton, need it: their
 * i-th list of keys is for the i-th table. The index of a table in the order is its "place". All
 * versions of a model share one order, so a place means the same table in every version. New tables
 * are appended. A table keeps its place even while no version has the table. Not thread-safe; the
 * catalog's lock protects the orders of its models.
 */
#ifndef HPS_SERVER_LOAD_TABLE_ORDER_H
#define HPS_SERVER_LOAD_TABLE_ORDER_H

#include "cache/version/version.h"

struct hps_table_order {
    char **names;      /* [n] by place; owned */
    uint32_t *by_name; /* [n] places, sorted by the names of their tables */
    uint32_t n;
    uint32_t capacity; /* allocated length of both arrays */
};

/* Free the contents of *order, and zero *order. No effect if *order is zeroed already. */
void hps_table_order_free(struct hps_table_order *order);
/* The place of a table; UINT32_MAX: the table is not in the order. */
uint32_t hps_table_order_find(const struct hps_table_order *order, const char *name);
/* Append a table; no effect if it has a place already.
 * error   NO_MEMORY: the order is unchanged */
hps_status hps_table_order_add(struct hps_table_order *order, const char *name) HPS_MUST_CHECK;
/* Copy an order into an empty one.
 * error   NO_MEMORY: `to` is empty */
hps_status hps_table_order_copy(const struct hps_table_order *from, struct hps_table_order *to)
    HPS_MUST_CHECK;
/* Append the version's tables that have no place yet, in the order of the version. Then set, in the
 * version, the place of each of its tables. The version must not be published.
 * error   NO_MEMORY: the version is unchanged, but the order may have grown */
hps_status hps_table_order_apply(struct hps_table_order *order, struct hps_version *version)
    HPS_MUST_CHECK;

#endif

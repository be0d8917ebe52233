/* SPDX-License-Identifier: Apache-2.0
 *
 * The order of a model's tables, for lookups that name no table, as in HPS and Triton. The i-th
 * list of keys is for the i-th table. The order belongs to the model, so that a place means the
 * same table in every version. New tables are appended, and a table keeps its place while no
 * version has it. Not synchronised; the catalog's lock protects its orders.
 */
#ifndef HPS_SERVER_LOAD_TABLE_ORDER_H
#define HPS_SERVER_LOAD_TABLE_ORDER_H

#include "cache/version/version.h"

struct hps_table_order {
    char **names;      /* [n] owned */
    uint32_t *by_name; /* [n] places, sorted by name */
    uint32_t n;
    uint32_t room;
};

void hps_table_order_free(struct hps_table_order *order); /* may be zeroed; is empty afterwards */
/* The place of a table; UINT32_MAX: none. */
uint32_t hps_table_order_find(const struct hps_table_order *order, const char *name);
/* Append a table; no effect if it has a place. NO_MEMORY: the order is unchanged. */
hps_status hps_table_order_add(struct hps_table_order *order, const char *name) HPS_MUST_CHECK;
/* Copy an order into an empty one. NO_MEMORY: `to` is empty. */
hps_status hps_table_order_copy(const struct hps_table_order *from, struct hps_table_order *to)
    HPS_MUST_CHECK;
/* Give every table of a version its place; new tables are appended in the version's own order. The
 * version must not be published. NO_MEMORY: the version is unchanged, the order may have grown. */
hps_status hps_table_order_apply(struct hps_table_order *order, struct hps_version *version)
    HPS_MUST_CHECK;

#endif

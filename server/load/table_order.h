/* SPDX-License-Identifier: Apache-2.0
 *
 * The order of a model's tables, for look-ups that name no table, as HPS's and Triton's do not: the
 * i-th list of keys is for the i-th table. The order is kept per model, so that a place means the
 * same table in every version: new tables come behind the known ones, and a table keeps its place
 * while no version has it. Not synchronised: the catalog's are under its lock.
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

void hps_table_order_free(struct hps_table_order *order); /* a zeroed one is legal; empty then */
/* The place of a table, or UINT32_MAX. */
uint32_t hps_table_order_find(const struct hps_table_order *order, const char *name);
/* Append a table; nothing if it has a place. NO_MEMORY: the order is as it was. */
hps_status hps_table_order_add(struct hps_table_order *order, const char *name) HPS_MUST_CHECK;
/* An empty order gets the tables of another. NO_MEMORY: it is empty again. */
hps_status hps_table_order_copy(const struct hps_table_order *from, struct hps_table_order *to)
    HPS_MUST_CHECK;
/* Give every table of a version its place, new ones behind the others in the version's own order.
 * The version is not published yet. NO_MEMORY: the version is as it was, the order may have grown.
 */
hps_status hps_table_order_apply(struct hps_table_order *order, struct hps_version *version)
    HPS_MUST_CHECK;

#endif

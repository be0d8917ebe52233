/* SPDX-License-Identifier: Apache-2.0
 *
 * The stores of a daemon, in the order in which a look-up asks them. What each is for is its role,
 * which follows from its capabilities: whoever needs a store asks for the role, not for a name. The
 * last one has every row of a version; rows in those above it are copies.
 */
#ifndef HPS_BACKENDS_STORES_H
#define HPS_BACKENDS_STORES_H

#include "backends/store.h"

/* In the order in which they are asked. */
enum hps_store_role {
    HPS_ROLE_HOST,    /* rows in the memory of this process */
    HPS_ROLE_SHARED,  /* rows that other daemons read and write, too */
    HPS_ROLE_DURABLE, /* rows on this host's disk, and records of what is served */
    HPS_ROLE_COUNT
};

/* Empty: {0}. Borrowed stores; immutable while others use it. */
struct hps_stores {
    struct hps_store *items[HPS_ROLE_COUNT]; /* [n] from the top, of one role each */
    uint32_t n;
};

/* The role that a store's capabilities make. */
enum hps_store_role hps_store_role(const struct hps_store *store);

/* Put the store in its place; none of its role is there yet. Checks its calls (hps_store_check). */
void hps_stores_add(struct hps_stores *stores, struct hps_store *store);
/* The store of a role. NULL: there is none. */
struct hps_store *hps_stores_find(const struct hps_stores *stores, enum hps_store_role role);
/* The one that has every row of a version: it is authoritative. NULL: there are no stores. */
struct hps_store *hps_stores_lowest(const struct hps_stores *stores);
/* Close them, from the top, and forget them. Every space must have been closed. */
void hps_stores_close(struct hps_stores *stores);

static inline struct hps_store *hps_stores_host(const struct hps_stores *stores)
{
    return hps_stores_find(stores, HPS_ROLE_HOST);
}

static inline struct hps_store *hps_stores_shared(const struct hps_stores *stores)
{
    return hps_stores_find(stores, HPS_ROLE_SHARED);
}

static inline struct hps_store *hps_stores_durable(const struct hps_stores *stores)
{
    return hps_stores_find(stores, HPS_ROLE_DURABLE);
}

/* The shared store if it is the lowest: nothing else has the rows, nor the updates that they had.
 * NULL: there is none, or another store is below it. */
struct hps_store *hps_stores_shared_alone(const struct hps_stores *stores);

#endif

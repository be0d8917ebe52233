/* SPDX-License-Identifier: Apache-2.0
 *
 * The stores of a daemon, in lookup order. The capabilities of a store determine its role. Callers
 * select a store by its role, never by its name. The lowest store has every row of a version,
 * except the rows and shards that it reports as dropped or lost (struct hps_store_usage). The
 * stores above it have copies.
 */
#ifndef HPS_BACKENDS_STORES_H
#define HPS_BACKENDS_STORES_H

#include "backends/store.h"

/* In lookup order. */
enum hps_store_role {
    HPS_ROLE_HOST,    /* rows in the memory of this process */
    HPS_ROLE_SHARED,  /* rows that other daemons read and write, too */
    HPS_ROLE_DURABLE, /* rows on the disk of this host, and the catalog */
    HPS_ROLE_COUNT
};

/* Initialize with {0}. The stores are borrowed. Must not change once other threads use it. */
struct hps_stores {
    struct hps_store *items[HPS_ROLE_COUNT]; /* [n] in lookup order, at most one of each role */
    uint32_t n;
};

/* The role that follows from the store's capabilities. */
enum hps_store_role hps_store_role(const struct hps_store *store);

/* Add a store. No store with the same role may have been added. Calls hps_store_check. */
void hps_stores_add(struct hps_stores *stores, struct hps_store *store);
/* The store with this role, or NULL. */
struct hps_store *hps_stores_find(const struct hps_stores *stores, enum hps_store_role role);
/* The lowest store. NULL: there are no stores. */
struct hps_store *hps_stores_lowest(const struct hps_stores *stores);
/* Close all stores in lookup order. All spaces must be closed already. */
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

/* The shared store if it is the lowest one, and so has the only copy of the rows; otherwise
 * NULL. */
struct hps_store *hps_stores_shared_alone(const struct hps_stores *stores);

#endif

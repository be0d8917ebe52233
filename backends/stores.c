/* SPDX-License-Identifier: Apache-2.0
 *
 * Stores by role; see stores.h.
 */
#include "backends/stores.h"

#include "base/assert.h"

enum hps_store_role hps_store_role(const struct hps_store *store)
{
    uint32_t caps = store->ops->caps;
    if ((caps & HPS_STORE_DURABLE) != 0) {
        return HPS_ROLE_DURABLE;
    }
    return (caps & HPS_STORE_SHARED) != 0 ? HPS_ROLE_SHARED : HPS_ROLE_HOST;
}

/* Roles ascend, so each role occurs at most once. */
static void stores_sane(const struct hps_stores *stores)
{
    HPS_ASSERT(stores->n <= HPS_ROLE_COUNT);
    for (uint32_t i = 1; i < stores->n; i++) {
        HPS_ASSERT(hps_store_role(stores->items[i - 1]) < hps_store_role(stores->items[i]));
    }
}

void hps_stores_add(struct hps_stores *stores, struct hps_store *store)
{
    hps_store_check(store->ops);
    HPS_ASSERT(hps_stores_find(stores, hps_store_role(store)) == NULL);
    uint32_t at = stores->n++;
    for (; at > 0 && hps_store_role(stores->items[at - 1]) > hps_store_role(store); at--) {
        stores->items[at] = stores->items[at - 1];
    }
    stores->items[at] = store;
    stores_sane(stores);
}

struct hps_store *hps_stores_find(const struct hps_stores *stores, enum hps_store_role role)
{
    for (uint32_t i = 0; i < stores->n; i++) {
        if (hps_store_role(stores->items[i]) == role) {
            return stores->items[i];
        }
    }
    return NULL;
}

struct hps_store *hps_stores_lowest(const struct hps_stores *stores)
{
    return stores->n > 0 ? stores->items[stores->n - 1] : NULL;
}

struct hps_store *hps_stores_shared_alone(const struct hps_stores *stores)
{
    struct hps_store *lowest = hps_stores_lowest(stores);
    return lowest != NULL && hps_store_role(lowest) == HPS_ROLE_SHARED ? lowest : NULL;
}

void hps_stores_close(struct hps_stores *stores)
{
    stores_sane(stores);
    for (uint32_t i = 0; i < stores->n; i++) {
        stores->items[i]->ops->close(stores->items[i]);
    }
    stores->n = 0;
}

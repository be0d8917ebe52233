/* SPDX-License-Identifier: Apache-2.0
 *
 * Names by place, and places sorted by name. Threads: see table_order.h.
 */
#include "server/load/table_order.h"

#include <string.h>

#include "base/assert.h"
#include "base/heap.h"

void hps_table_order_free(struct hps_table_order *order)
{
    for (uint32_t i = 0; i < order->n; i++) {
        hps_free(order->names[i]);
    }
    hps_free(order->names);
    hps_free(order->by_name);
    memset(order, 0, sizeof(*order));
}

/* Places are sorted by name, and each name occurs once. */
static bool is_sane(const struct hps_table_order *order)
{
    for (uint32_t i = 1; i < order->n; i++) {
        if (strcmp(order->names[order->by_name[i - 1]], order->names[order->by_name[i]]) >= 0) {
            return false;
        }
    }
    return order->n <= order->capacity;
}

/* The index of the table in by_name, or where it would be inserted. */
static uint32_t search(const struct hps_table_order *order, const char *name, bool *out_found)
{
    uint32_t low = 0, high = order->n;
    *out_found = false;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        int compared = strcmp(order->names[order->by_name[middle]], name);
        if (compared == 0) {
            *out_found = true;
            return middle;
        }
        if (compared < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

uint32_t hps_table_order_find(const struct hps_table_order *order, const char *name)
{
    bool found;
    uint32_t at = search(order, name, &found);
    return found ? order->by_name[at] : UINT32_MAX;
}

static hps_status ensure_capacity(struct hps_table_order *order)
{
    if (order->n < order->capacity) {
        return HPS_OK;
    }
    uint32_t capacity = order->capacity < 8 ? 8 : 2 * order->capacity;
    char **names = hps_realloc(order->names, capacity * sizeof(*names));
    if (names == NULL) {
        return HPS_NO_MEMORY;
    }
    order->names = names;
    uint32_t *by_name = hps_realloc(order->by_name, capacity * sizeof(*by_name));
    if (by_name == NULL) {
        return HPS_NO_MEMORY;
    }
    order->by_name = by_name;
    order->capacity = capacity;
    return HPS_OK;
}

hps_status hps_table_order_add(struct hps_table_order *order, const char *name)
{
    bool found;
    uint32_t at = search(order, name, &found);
    if (found) {
        return HPS_OK;
    }
    char *copy = hps_strdup(name);
    if (copy == NULL || ensure_capacity(order) != HPS_OK) {
        hps_free(copy);
        return HPS_NO_MEMORY;
    }
    HPS_ASSERT(at <= order->n);
    HPS_ASSERT(order->n < order->capacity);
    memmove(order->by_name + at + 1, order->by_name + at,
            (order->n - at) * sizeof(*order->by_name));
    order->by_name[at] = order->n;
    order->names[order->n++] = copy;
    HPS_DEBUG_ASSERT(is_sane(order));
    return HPS_OK;
}

hps_status hps_table_order_copy(const struct hps_table_order *from, struct hps_table_order *to)
{
    hps_status status = HPS_OK;
    HPS_ASSERT(to->n == 0);
    for (uint32_t i = 0; status == HPS_OK && i < from->n; i++) {
        status = hps_table_order_add(to, from->names[i]);
    }
    if (status != HPS_OK) {
        hps_table_order_free(to);
    }
    return status;
}

hps_status hps_table_order_apply(struct hps_table_order *order, struct hps_version *version)
{
    hps_status status = HPS_NO_MEMORY;
    uint32_t *places = hps_calloc(version->n_tables, sizeof(*places));
    if (places == NULL) {
        return status;
    }
    status = HPS_OK;
    for (uint32_t i = 0; status == HPS_OK && i < version->n_tables; i++) {
        status = hps_table_order_add(order, version->tables[i].name);
    }
    for (uint32_t i = 0; status == HPS_OK && i < version->n_tables; i++) {
        places[i] = hps_table_order_find(order, version->tables[i].name);
        HPS_ASSERT(places[i] < order->n);
    }
    if (status == HPS_OK) {
        status = hps_version_set_places(version, places, order->n);
    }
    hps_free(places);
    return status;
}

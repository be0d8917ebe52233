/* SPDX-License-Identifier: Apache-2.0
 *
 * Shares of the budget: how much each table of active versions may use, and which table loses
 * memory when another lacks it. Runs on the thread that lacks memory, or that opens, closes,
 * commits or activates. Caller must hold the store's lock.
 */
#include "backends/host/internal.h"
#include "base/container.h"

#include <stddef.h>

#include "base/assert.h"
#include "base/log.h"

enum {
    WISH_ROWS_MIN = 1024,
    EXCESS_SHARE = 8, /* a table that exceeds its share by more than 1/8 may be cleared */
};

/* ---- shares ---------------------------------------------------------------------------------- */

/* Bytes that a table would use. At least a little, because more rows may come than expected. */
static uint64_t table_wish(const struct host_map *store, const struct hps_table *table)
{
    uint64_t n_rows = table->n_rows > WISH_ROWS_MIN ? table->n_rows : WISH_ROWS_MIN;
    return hps_host_table_bytes(&store->shared, table->row_bytes, n_rows);
}

/* Upper bound of bytes for each table of active versions, so that small tables fit whole and large
 * ones share the rest equally. UINT64_MAX: all fit. */
static uint64_t shares_level(const struct host_map *store)
{
    double level = 0;
    for (;;) { /* each round but the last two finds tables below the level */
        double below = 0, n_above = 0;
        for (struct host_space *space = store->spaces; space != NULL; space = space->next) {
            for (uint32_t i = 0; space->active && i < space->n_tables; i++) {
                double wish = (double)table_wish(store, &space->tables[i]);
                below += wish <= level ? wish : 0;
                n_above += wish <= level ? 0 : 1;
            }
        }
        if (n_above == 0) {
            return UINT64_MAX;
        }
        double next = ((double)store->shared.budget.bytes_max - below) / n_above;
        if (next <= level) {
            return (uint64_t)level;
        }
        level = next;
    }
}

void host_shares_update(struct host_map *store)
{
    if (!store->shared.evicts || store->shared.lossy) {
        return; /* tables never take memory from each other */
    }
    uint64_t level = shares_level(store);
    for (struct host_space *space = store->spaces; space != NULL; space = space->next) {
        struct host_set *set = atomic_load_explicit(&space->set, memory_order_acquire);
        bool limited = space->active && level != UINT64_MAX;
        for (uint32_t i = 0; i < set->n_tables; i++) {
            uint64_t wish = table_wish(store, &space->tables[i]);
            uint64_t padded = wish + wish / EXCESS_SHARE; /* more rows may come */
            uint64_t share = padded < level ? padded : level;
            atomic_store_explicit(&set->tables[i]->account.bytes_max, limited ? share : UINT64_MAX,
                                  memory_order_relaxed);
            atomic_store(&set->tables[i]->active, space->active);
        }
    }
}

void host_space_active(struct hps_space *base, bool active)
{
    struct host_map *store = host_of(base);
    hps_lock_acquire(&store->lock);
    ((struct host_space *)base)->active = active;
    host_shares_update(store);
    hps_lock_release(&store->lock);
}

/* ---- taking memory from tables --------------------------------------------------------------- */

/* Bytes that a table has above its claim. */
static uint64_t table_excess(const struct host_space *space, struct hps_host_table *host)
{
    uint64_t used = atomic_load_explicit(&host->account.used_bytes, memory_order_relaxed);
    uint64_t max = atomic_load_explicit(&host->account.bytes_max, memory_order_relaxed);
    if (!space->active) {
        return used;
    }
    return used > max && used - max > max / EXCESS_SHARE ? used - max : 0;
}

/* Clear a table unless a writer is inside. True: its memory is free. */
static bool table_empty(const struct host_space *space, struct hps_host_table *host)
{
    if (!hps_lock_try(&host->lock)) {
        return false;
    }
    if (!host->clearing) {
        uint64_t bytes = atomic_load_explicit(&host->account.used_bytes, memory_order_relaxed);
        HPS_LOG(INFO, "host", "table evicted: other tables need its memory",
                HPS_STR("model", space->model), HPS_I64("version", space->version),
                HPS_U64("bytes", bytes));
        hps_host_table_clear(host);
    }
    bool ended = hps_host_table_clear_end(host);
    hps_lock_release(&host->lock);
    return ended;
}

/* The table with the lowest claim to its memory. */
struct worst {
    struct host_space *space;
    struct hps_host_table *host;
    unsigned rank; /* order of clearing; 0: none found */
    uint64_t excess_bytes;
};

/* First tables that are being cleared already, then tables of inactive versions, then tables far
 * above their share because they grew before others existed. */
static void worst_of(struct worst *worst, struct host_space *space, const struct host_set *set,
                     const struct hps_host_table *for_table)
{
    enum { OVER_SHARE = 1, NOT_ACTIVE, LET_GO };
    for (uint32_t i = 0; i < set->n_tables; i++) {
        struct hps_host_table *host = set->tables[i];
        uint64_t excess_bytes = table_excess(space, host);
        unsigned rank = space->active ? OVER_SHARE : NOT_ACTIVE;
        if (atomic_load(&host->clearing)) {
            rank = LET_GO;
        } else if (excess_bytes == 0) {
            rank = 0;
        }
        bool worse =
            rank > worst->rank || (rank == worst->rank && excess_bytes > worst->excess_bytes);
        if (worse && host != for_table) {
            *worst = (struct worst){space, host, rank, excess_bytes};
        }
    }
}

enum hps_host_way host_give_way(struct hps_host_shared *shared, const struct hps_host_table *table)
{
    struct host_map *store = HPS_CONTAINER_OF(shared, struct host_map, shared);
    struct worst worst = {0};
    hps_lock_acquire(&store->lock);
    for (struct host_space *space = store->spaces; space != NULL; space = space->next) {
        struct hps_store_load *load = space->load;
        if (load != NULL) {
            worst_of(&worst, space, load->set, table);
        } else if (!space->loading) {
            worst_of(&worst, space, atomic_load_explicit(&space->set, memory_order_acquire), table);
        }
    }
    enum hps_host_way way = HPS_HOST_WAY_NONE;
    HPS_ASSERT(worst.host != table);
    HPS_ASSERT(worst.host == NULL || worst.rank > 0);
    if (worst.host != NULL) {
        if (worst.space->load != NULL) {
            atomic_store(&worst.space->load->gave_way, true);
        }
        bool given = table_empty(worst.space, worst.host);
        bool soon = !worst.space->active || atomic_load(&worst.host->clearing);
        way = given ? HPS_HOST_WAY_GIVEN : soon ? HPS_HOST_WAY_SOON : HPS_HOST_WAY_NONE;
    }
    hps_lock_release(&store->lock);
    return way;
}

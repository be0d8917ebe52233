/* SPDX-License-Identifier: Apache-2.0
 *
 * One table of the host map: index, rows, and what waits for its readers to leave. A writer holds
 * `lock`; readers need an epoch and nothing else.
 */
#ifndef HPS_BACKENDS_HOST_TABLE_H
#define HPS_BACKENDS_HOST_TABLE_H

#include <pthread.h>

#include "backends/host_index.h"
#include "backends/host_kernel.h"
#include "backends/host_limbo.h"
#include "backends/host_rows.h"

/* What all tables of a store share. */
struct hps_host_shared {
    struct hps_host_budget budget;
    struct hps_epoch *epoch;
    uint64_t seed; /* clients must not be able to aim at one bucket */
    const struct hps_host_kernel *kernel;
};

struct hps_host_table {
    struct hps_host_shared *shared;
    pthread_mutex_t lock;
    struct hps_host_account account;
    struct hps_host_index index;
    struct hps_host_rows rows;
    struct hps_host_limbo limbo;
    _Atomic(uint64_t) n_rows;
};

/* What a table with n_rows rows will be charged; UINT64_MAX if it does not fit 64 bits. */
uint64_t hps_host_table_bytes(uint32_t row_bytes, uint64_t n_rows);

/* An empty table with room in its index for n_rows. EXHAUSTED, NO_MEMORY. */
hps_status hps_host_table_new(struct hps_host_shared *shared, uint32_t row_bytes, uint64_t n_rows,
                              struct hps_host_table **out_table) HPS_MUST_CHECK;
/* No reader or writer is inside. NULL is legal. */
void hps_host_table_free(struct hps_host_table *table);

/* All that follow but _get: with the lock held. EXHAUSTED, NO_MEMORY: nothing has changed. */
hps_status hps_host_table_put(struct hps_host_table *table, hps_key key, const uint8_t *data)
    HPS_MUST_CHECK;
void hps_host_table_erase(struct hps_host_table *table, hps_key key);
bool hps_host_table_has(const struct hps_host_table *table, hps_key key);

/* Make the index large enough for n_rows. The lock is taken, and let go between steps. */
hps_status hps_host_table_reserve(struct hps_host_table *table, uint64_t n_rows) HPS_MUST_CHECK;

/* Look up keys [lo, hi) of the batch, where [hi, n) is known to be missing. In an epoch. */
void hps_host_table_get(const struct hps_host_table *table, struct hps_batch *batch, uint32_t lo,
                        uint32_t hi, bool stream);

static inline uint64_t hps_host_table_rows(const struct hps_host_table *table)
{
    return atomic_load_explicit(&table->n_rows, memory_order_relaxed);
}

#endif

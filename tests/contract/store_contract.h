/* SPDX-License-Identifier: Apache-2.0
 *
 * The contract of all stores and of the sub-tables that a store has, as suites of tests. One
 * program per store provides the functions that open it.
 */
#ifndef HPS_TESTS_CONTRACT_STORE_CONTRACT_H
#define HPS_TESTS_CONTRACT_STORE_CONTRACT_H

#include "backends/store.h"

struct store_contract {
    const char *name;
    void *ctx;
    /* Open the store; a durable store must have its earlier contents. bytes_max: used if
     * `budget`. */
    hps_status (*open)(void *ctx, uint64_t bytes_max, struct hps_store **out_store,
                       struct hps_error *err);
    /* Called with each space that has been opened, and its tables. May be NULL. */
    void (*opened)(void *ctx, struct hps_space *space, const struct hps_table *tables, uint32_t n);
    /* Delete all contents of the closed store. May be NULL. */
    void (*clean)(void *ctx);
    bool budget; /* refuses rows beyond bytes_max */
};

/* Run the suites for this store. main must return the result. */
int store_contract_run(const struct store_contract *contract);

/* The row of the seq-th write of `key`; every byte depends on both. */
void store_contract_fill(uint8_t *row, size_t row_bytes, hps_key key, uint64_t seq);
bool store_contract_check(const uint8_t *row, size_t row_bytes, hps_key key, uint64_t seq);

#endif

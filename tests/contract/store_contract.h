/* SPDX-License-Identifier: Apache-2.0
 *
 * What every store must do, and what the sub-tables that it has promise, as suites of tests. A
 * program per store says how to make one.
 */
#ifndef HPS_TESTS_CONTRACT_STORE_CONTRACT_H
#define HPS_TESTS_CONTRACT_STORE_CONTRACT_H

#include "backends/store.h"

struct store_contract {
    const char *name;
    void *ctx;
    /* Open the store; a durable one again finds what it held. bytes_max: only where `budget`. */
    hps_status (*open)(void *ctx, uint64_t bytes_max, struct hps_store **out_store,
                       struct hps_error *err);
    /* The store is closed: forget all it held. May be NULL. */
    void (*clean)(void *ctx);
    bool budget; /* refuses rows past bytes_max */
};

/* Run the suites of what this store has; the result is for main to return. */
int store_contract_run(const struct store_contract *contract);

/* The row of `key` as of its seq-th write; every byte depends on both. */
void store_contract_fill(uint8_t *row, size_t row_bytes, hps_key key, uint64_t seq);
bool store_contract_check(const uint8_t *row, size_t row_bytes, hps_key key, uint64_t seq);

#endif

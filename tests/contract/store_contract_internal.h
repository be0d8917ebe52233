/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the suites of the store contract: a fresh store for each test, and short names for
 * frequent calls. On the thread of the test.
 */
#ifndef HPS_TESTS_CONTRACT_STORE_CONTRACT_INTERNAL_H
#define HPS_TESTS_CONTRACT_STORE_CONTRACT_INTERNAL_H

// clang-format off
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include "backends/store_bulk.h"
#include "tests/contract/store_contract.h"

enum { CONTRACT_TABLES = 3, CONTRACT_ROW_BYTES_MAX = 4096 * 4 };

extern const struct store_contract *contract_store; /* of the running suite */
extern struct hps_error contract_error;             /* of the last call that failed */
extern const struct hps_call contract_no_limit;
/* Rows of 64, 7 and 512 bytes. */
extern const struct hps_table contract_tables[CONTRACT_TABLES];

/* Run the suite for all stores, or for a sub-table. Returns the number of failures. */
int contract_core_run(const char *name);
int contract_bulk_run(const char *name);
int contract_durable_run(const char *name);
int contract_limits_run(const char *name);
int contract_log_run(const char *name);
int contract_pool_run(const char *name);
int contract_servers_run(const char *name);

/* Open the store; a failure fails the test. bytes_max: for a store with a budget */
struct hps_store *contract_open_bytes(uint64_t bytes_max);
struct hps_store *contract_open(void);
/* Open the space of a version, with contract_tables or with other tables. */
struct hps_space *contract_space_open_tables(struct hps_store *store, int64_t version,
                                             const struct hps_table *of, uint32_t n);
struct hps_space *contract_space_open(struct hps_store *store, int64_t version);
void contract_drop(struct hps_space *space);
/* Delete all contents of the store between two tests. */
int contract_clean(void **state);

/* Put one row, the seq-th write of the key. */
hps_status contract_put(struct hps_space *space, const struct hps_table *table, hps_key key,
                        uint64_t seq);
hps_status contract_erase(struct hps_space *space, const struct hps_table *table, hps_key key);
/* Returns whether the key exists. Its row must then be that of `seq`. */
bool contract_has(struct hps_space *space, const struct hps_table *table, hps_key key,
                  uint64_t seq);
/* Load rows of write 0. */
hps_status contract_load_begin(struct hps_space *space, uint64_t rows, uint64_t bytes,
                               struct hps_store_load **out_load);
hps_status contract_load_add(struct hps_space *space, struct hps_store_load *load,
                             const struct hps_table *table, hps_key key);
void contract_load_commit(struct hps_space *space, struct hps_store_load *load);
/* A different number for each x, in no order. */
uint64_t contract_mix(uint64_t x);

#endif

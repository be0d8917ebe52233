/* SPDX-License-Identifier: Apache-2.0
 *
 * The contract of stores as tests: the suite for all stores (backends/store.h), and the suites
 * for the sub-tables of this store. Each test gets a fresh store.
 */
#include "tests/contract/store_contract_internal.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"

enum { DEFAULT_BUDGET_MIB = 512 };

const struct store_contract *contract_store;
struct hps_error contract_error;
const struct hps_call contract_no_limit;

static const uint8_t default_row[CONTRACT_ROW_BYTES_MAX];

const struct hps_table contract_tables[CONTRACT_TABLES] = {
    {.name = "a",
     .id = 0,
     .dim = 16,
     .row_bytes = 64,
     .dtype = HPS_DTYPE_FP32,
     .default_row = default_row},
    {.name = "b",
     .id = 1,
     .dim = 3,
     .row_bytes = 7,
     .dtype = HPS_DTYPE_INT8_ROWWISE_F16,
     .default_row = default_row},
    {.name = "c",
     .id = 2,
     .dim = 128,
     .row_bytes = 512,
     .dtype = HPS_DTYPE_FP32,
     .default_row = default_row},
};

uint64_t contract_mix(uint64_t x)
{
    x ^= x >> 30;
    x *= UINT64_C(0xbf58476d1ce4e5b9);
    x ^= x >> 27;
    x *= UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

void store_contract_fill(uint8_t *row, size_t row_bytes, hps_key key, uint64_t seq)
{
    uint64_t word = contract_mix(key ^ contract_mix(seq + 1));
    for (size_t i = 0; i < row_bytes; i++) {
        row[i] = (uint8_t)((word >> (8 * (i % 8))) + i / 8);
    }
}

bool store_contract_check(const uint8_t *row, size_t row_bytes, hps_key key, uint64_t seq)
{
    uint64_t word = contract_mix(key ^ contract_mix(seq + 1));
    for (size_t i = 0; i < row_bytes; i++) {
        if (row[i] != (uint8_t)((word >> (8 * (i % 8))) + i / 8)) {
            return false;
        }
    }
    return true;
}

struct hps_store *contract_open_bytes(uint64_t bytes_max)
{
    struct hps_store *store = NULL;
    hps_status status =
        contract_store->open(contract_store->ctx, bytes_max, &store, &contract_error);
    if (status != HPS_OK) {
        fail_msg("open: %s", contract_error.text);
    }
    return store;
}

struct hps_store *contract_open(void)
{
    return contract_open_bytes((uint64_t)DEFAULT_BUDGET_MIB << 20);
}

struct hps_space *contract_space_open_tables(struct hps_store *store, int64_t version,
                                             const struct hps_table *of, uint32_t n)
{
    struct hps_space_id id = {.model = "m", .version = version, .tables = of, .n_tables = n};
    struct hps_space *space = NULL;
    hps_status status = store->ops->space_open(store, &id, &space, &contract_error);
    if (status != HPS_OK) {
        fail_msg("space_open: %s", contract_error.text);
    }
    if (contract_store->opened != NULL) {
        contract_store->opened(contract_store->ctx, space, of, n);
    }
    return space;
}

struct hps_space *contract_space_open(struct hps_store *store, int64_t version)
{
    return contract_space_open_tables(store, version, contract_tables, CONTRACT_TABLES);
}

hps_status contract_put(struct hps_space *space, const struct hps_table *table, hps_key key,
                        uint64_t seq)
{
    uint8_t row[CONTRACT_ROW_BYTES_MAX];
    store_contract_fill(row, table->row_bytes, key, seq);
    return space->store->ops->put(space, &contract_no_limit, table, &key, row, 1);
}

hps_status contract_erase(struct hps_space *space, const struct hps_table *table, hps_key key)
{
    return space->store->ops->erase(space, &contract_no_limit, table, &key, 1);
}

bool contract_has(struct hps_space *space, const struct hps_table *table, hps_key key, uint64_t seq)
{
    uint8_t row[CONTRACT_ROW_BYTES_MAX];
    hps_key keys[1] = {key};
    uint32_t slots[1] = {0};
    struct hps_batch batch = {.keys = keys, .slots = slots, .rows = row, .n = 1};
    assert_int_equal(space->store->ops->get(space, &contract_no_limit, table, &batch), HPS_OK);
    assert_true(keys[0] == key);
    if (batch.n == 0) {
        assert_true(store_contract_check(row, table->row_bytes, key, seq));
    }
    return batch.n == 0;
}

hps_status contract_load_begin(struct hps_space *space, uint64_t rows, uint64_t bytes,
                               struct hps_store_load **out_load)
{
    return space->store->ops->bulk->begin(space, rows, bytes, out_load, &contract_error);
}

hps_status contract_load_add(struct hps_space *space, struct hps_store_load *load,
                             const struct hps_table *table, hps_key key)
{
    uint8_t row[CONTRACT_ROW_BYTES_MAX];
    store_contract_fill(row, table->row_bytes, key, 0);
    return space->store->ops->bulk->add(load, table, &key, row, 1, &contract_error);
}

void contract_load_commit(struct hps_space *space, struct hps_store_load *load)
{
    assert_int_equal(space->store->ops->bulk->commit(load, &contract_error), HPS_OK);
}

void contract_drop(struct hps_space *space)
{
    assert_int_equal(space->store->ops->space_drop(space, &contract_error), HPS_OK);
}

int contract_clean(void **state)
{
    (void)state;
    hps_clock_real();
    if (contract_store->clean != NULL) {
        contract_store->clean(contract_store->ctx);
    }
    return 0;
}

/* ---- suites ---------------------------------------------------------------------------------- */

static int run(const char *what, int (*suite)(const char *name))
{
    char name[128];
    (void)snprintf(name, sizeof(name), "%s%s", contract_store->name, what);
    return suite(name);
}

int store_contract_run(const struct store_contract *of)
{
    contract_store = of;
    struct hps_store *store = NULL;
    if (of->open(of->ctx, (uint64_t)DEFAULT_BUDGET_MIB << 20, &store, &contract_error) != HPS_OK) {
        (void)fprintf(stderr, "%s: %s\n", of->name, contract_error.text);
        return 1;
    }
    const struct hps_store_ops ops = *store->ops;
    hps_store_check(&ops);
    store->ops->close(store);
    int n_failed = run("", contract_core_run);
    n_failed += ops.bulk != NULL ? run("_bulk", contract_bulk_run) : 0;
    n_failed += ops.durable != NULL ? run("_durable", contract_durable_run) : 0;
    n_failed += ops.limits != NULL ? run("_limits", contract_limits_run) : 0;
    n_failed += ops.log != NULL ? run("_log", contract_log_run) : 0;
    n_failed += ops.pool != NULL ? run("_pool", contract_pool_run) : 0;
    n_failed += ops.servers != NULL ? run("_servers", contract_servers_run) : 0;
    return n_failed;
}

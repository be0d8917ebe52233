/* SPDX-License-Identifier: Apache-2.0
 *
 * Every allocation of the host map fails once: the map reports it, stays consistent and releases
 * all memory.
 */
// clang-format off
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>
// clang-format on

#include "backends/host/map.h"
#include "backends/store_bulk.h"
#include "backends/store_limits.h"
#include "backends/store_pool.h"
#include "tests/lib/fault_heap.h"

enum { N_KEYS = 200 };

static const struct hps_call no_limit = {0};
static const struct hps_table tables[2] = {
    {.name = "a", .id = 0, .dim = 3, .row_bytes = 7, .dtype = HPS_DTYPE_INT8_ROWWISE_F16},
    {.name = "b", .id = 1, .dim = 3, .row_bytes = 11, .dtype = HPS_DTYPE_INT8_ROWWISE_F32},
};

/* Whatever failed before, a row that is found must belong to its key. */
static void check_rows(struct hps_space *space)
{
    for (hps_key i = 0; i < N_KEYS; i++) {
        hps_key key = i;
        uint32_t slot = 0;
        uint64_t value = 0;
        struct hps_batch batch = {.keys = &key, .slots = &slot, .rows = (uint8_t *)&value, .n = 1};
        assert_int_equal(space->store->ops->get(space, &no_limit, &tables[0], &batch), HPS_OK);
        assert_true(batch.n == 1 || value == i);
    }
}

/* Two bags; the second one lacks a key. */
static void check_bags(struct hps_space *space)
{
    const hps_key keys[4] = {1, 2, 3, UINT64_MAX};
    const uint32_t offsets[3] = {0, 3, 4};
    uint8_t rows[2 * 8];
    uint32_t whole = UINT32_MAX;
    const struct hps_bags bags = {.keys = (const uint8_t *)keys,
                                  .offsets = offsets,
                                  .pooling = HPS_POOLING_SUM,
                                  .out = {rows, 8, HPS_DTYPE_FP32},
                                  .whole = &whole};
    hps_status status = space->store->ops->pool->bags(space, &no_limit, &tables[0], &bags, 0, 2);
    assert_true(status == HPS_OK || status == HPS_NO_MEMORY);
    assert_int_equal(whole & ~UINT32_C(1), 0);
    assert_true(status == HPS_OK || whole == 0);
}

static hps_status count_rows(void *ctx, const hps_key *keys, const uint8_t *rows, uint32_t n)
{
    (void)keys;
    (void)rows;
    *(uint32_t *)ctx += n;
    return HPS_OK;
}

static void use_space(struct hps_space *space)
{
    const struct hps_store_ops *ops = space->store->ops;
    struct hps_error err;
    struct hps_store_load *load = NULL;
    if (ops->bulk->begin(space, 0, 0, &load, &err) == HPS_OK) {
        hps_status status = HPS_OK;
        for (hps_key key = 0; key < N_KEYS && status == HPS_OK; key++) {
            status = ops->bulk->add(load, &tables[0], &key, (const uint8_t *)&key, 1, &err);
        }
        if (status != HPS_OK || ops->bulk->commit(load, &err) != HPS_OK) {
            ops->bulk->abort(load);
        }
    }
    check_rows(space);
    hps_key first[64];
    for (uint32_t i = 0; i < 64; i++) {
        first[i] = i;
    }
    hps_ignore(ops->limits->reserve(space, &tables[0], first, 64, &err));
    for (hps_key key = 0; key < N_KEYS; key++) {
        hps_status status = ops->put(space, &no_limit, &tables[0], &key, (const uint8_t *)&key, 1);
        assert_true(status == HPS_OK || status == HPS_NO_MEMORY);
    }
    check_rows(space);
    check_bags(space);
    uint32_t n_rows = 0;
    hps_status status = ops->scan(space, &tables[0], count_rows, &n_rows, &err);
    assert_true(status == HPS_OK || status == HPS_NO_MEMORY);
}

/* ctx: whether tables may have a dense range */
static void scenario(void *ctx)
{
    const struct hps_host_map_options options = {.bytes_max = UINT64_C(1) << 24,
                                                 .dense = *(const bool *)ctx};
    struct hps_error err;
    struct hps_store *store = NULL;
    hps_status status = hps_host_map_open_with(&options, &store, &err);
    if (status != HPS_OK) {
        assert_int_equal(status, HPS_NO_MEMORY);
        return;
    }
    struct hps_space_id id = {.model = "m", .version = 1, .tables = tables, .n_tables = 2};
    struct hps_space *space = NULL;
    status = store->ops->space_open(store, &id, &space, &err);
    if (status == HPS_OK) {
        use_space(space);
        store->ops->space_close(space);
    } else {
        assert_int_equal(status, HPS_NO_MEMORY);
    }
    store->ops->close(store);
}

/* Insert into a full map with two versions, one of them active: rows and tables are evicted all
 * the time. */
static void evicting(void *ctx)
{
    (void)ctx;
    enum { N_MANY = 6000 };
    struct hps_error err;
    struct hps_store *store = NULL;
    const struct hps_host_map_options options = {.bytes_max = 150000, .evicts = true};
    if (hps_host_map_open_with(&options, &store, &err) != HPS_OK) {
        return;
    }
    struct hps_space *spaces[2] = {NULL, NULL};
    for (int64_t i = 0; i < 2; i++) {
        struct hps_space_id id = {.model = "m", .version = i, .tables = tables, .n_tables = 2};
        hps_ignore(store->ops->space_open(store, &id, &spaces[i], &err));
    }
    for (hps_key i = 0; i < 2 * N_MANY && spaces[0] != NULL && spaces[1] != NULL; i++) {
        hps_key key = i % N_MANY;
        uint32_t slot = 0;
        struct hps_insert_report report;
        struct hps_space *space = spaces[i / 512 % 2];
        if (i % N_MANY == 0) {
            store->ops->limits->space_active(spaces[i / N_MANY], true);
            store->ops->limits->space_active(spaces[1 - i / N_MANY], false);
        }
        assert_int_equal(store->ops->insert(space, &no_limit, &tables[0], &key, &slot,
                                            (const uint8_t *)&key, 1, NULL, &report),
                         HPS_OK);
        assert_true(report.n_inserted + report.n_no_capacity <= 1);
    }
    for (unsigned i = 0; i < 2; i++) {
        if (spaces[i] != NULL) {
            check_rows(spaces[i]);
            store->ops->space_close(spaces[i]);
        }
    }
    store->ops->close(store); /* asserts that all bytes were released */
}

static void test_evicting_map_when_each_allocation_fails_then_stays_consistent(void **state)
{
    (void)state;
    assert_true(hps_fault_heap_run(evicting, NULL) > 10);
}

static void test_host_map_when_each_allocation_fails_then_reported_without_leak(void **state)
{
    (void)state;
    bool dense = false;
    assert_true(hps_fault_heap_run(scenario, &dense) > 10);
    dense = true;
    assert_true(hps_fault_heap_run(scenario, &dense) > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host_map_when_each_allocation_fails_then_reported_without_leak),
        cmocka_unit_test(test_evicting_map_when_each_allocation_fails_then_stays_consistent),
    };
    return cmocka_run_group_tests_name("fault_host_map", tests, NULL, NULL);
}

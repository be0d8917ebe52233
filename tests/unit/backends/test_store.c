/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks of a store's table of calls: each missing call and each broken promise is detected.
 * Also the default calls for stores with fewer capabilities.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "backends/store_bulk.h"
#include "backends/store_durable.h"
#include "backends/store_limits.h"
#include "backends/store_log.h"
#include "backends/store_pool.h"
#include "backends/store_servers.h"
#include "base/assert.h"
#include "tests/lib/fake_store.h"

/* A copy of a store's tables, to remove calls from. */
struct tables {
    struct hps_store_ops ops;
    struct hps_store_bulk_ops bulk;
    struct hps_store_durable_ops durable;
    struct hps_store_log_ops log;
};

static jmp_buf after_assert;

static void on_assert(const char *expr, const char *file, int line)
{
    (void)expr, (void)file, (void)line;
    longjmp(after_assert, 1);
}

static bool is_refused(const struct hps_store_ops *ops)
{
    hps_assert_hook(on_assert);
    bool asserted = setjmp(after_assert) != 0;
    if (!asserted) {
        hps_store_check(ops);
    }
    hps_assert_hook(NULL);
    return asserted;
}

static struct tables tables_of(uint32_t caps)
{
    const struct hps_fake_options options = {.caps = caps};
    struct hps_store *store = hps_fake_store_new(&options);
    assert_non_null(store);
    struct tables tables = {.ops = *store->ops, .bulk = *store->ops->bulk};
    if (store->ops->durable != NULL) {
        tables.durable = *store->ops->durable;
    }
    if (store->ops->log != NULL) {
        tables.log = *store->ops->log;
    }
    store->ops->close(store);
    return tables;
}

/* ---- missing calls --------------------------------------------------------------------------- */

/* Set each pointer of a table to NULL once; `ops` must refer to the table. */
static void check_each_hole(const struct hps_store_ops *ops, void *begin, size_t size)
{
    char saved[sizeof(void (*)(void))];
    assert_false(is_refused(ops));
    for (size_t at = 0; at < size; at += sizeof(saved)) {
        memcpy(saved, (char *)begin + at, sizeof(saved));
        memset((char *)begin + at, 0, sizeof(saved));
        assert_true(is_refused(ops));
        memcpy((char *)begin + at, saved, sizeof(saved));
    }
    assert_false(is_refused(ops));
}

static void test_check_when_a_call_of_the_core_is_missing_then_assert(void **state)
{
    (void)state;
    struct tables tables = tables_of(0);
    size_t first = offsetof(struct hps_store_ops, close);
    check_each_hole(&tables.ops, (char *)&tables.ops + first, sizeof(tables.ops) - first);
    tables.ops.name = NULL;
    assert_true(is_refused(&tables.ops));
}

static void test_check_when_a_sub_table_has_a_hole_then_assert(void **state)
{
    (void)state;
    struct tables tables = tables_of(HPS_STORE_DURABLE);
    tables.ops.bulk = &tables.bulk;
    tables.ops.durable = &tables.durable;
    check_each_hole(&tables.ops, &tables.bulk, sizeof(tables.bulk));
    /* The last call is optional. */
    check_each_hole(&tables.ops, &tables.durable, offsetof(struct hps_store_durable_ops, view));
    tables = tables_of(HPS_STORE_SHARED);
    tables.ops.log = &tables.log;
    check_each_hole(&tables.ops, &tables.log, sizeof(tables.log));
}

static void test_check_when_limits_pool_or_servers_have_a_hole_then_assert(void **state)
{
    (void)state;
    static const struct hps_store_limits_ops no_limits;
    static const struct hps_store_pool_ops no_pool;
    static const struct hps_store_servers_ops no_servers;
    struct tables tables = tables_of(0);
    tables.ops.limits = &no_limits;
    assert_true(is_refused(&tables.ops));
    tables.ops.limits = NULL;
    tables.ops.pool = &no_pool;
    assert_true(is_refused(&tables.ops));
    tables.ops.pool = NULL;
    tables.ops.servers = &no_servers;
    assert_true(is_refused(&tables.ops));
}

/* ---- capabilities ---------------------------------------------------------------------------- */

static void test_check_when_capabilities_and_calls_differ_then_assert(void **state)
{
    (void)state;
    static const uint32_t bits[] = {HPS_STORE_DURABLE, HPS_STORE_SHARED, HPS_STORE_INSERTS,
                                    HPS_STORE_SCANS, HPS_STORE_JOINS};
    for (size_t i = 0; i < sizeof(bits) / sizeof(bits[0]); i++) {
        struct tables tables = tables_of(0);
        assert_false(is_refused(&tables.ops));
        tables.ops.caps ^= bits[i];
        assert_true(is_refused(&tables.ops));
    }
}

/* ---- stores that can do less ----------------------------------------------------------------- */

static void test_calls_when_a_store_lacks_the_capability_then_no_change_and_reported(void **state)
{
    (void)state;
    const struct hps_fake_options options = {.caps = HPS_STORE_SHARED};
    const struct hps_call call = {0};
    const struct hps_table table = {.name = "t", .row_bytes = 8};
    const hps_key keys[2] = {1, 2};
    const uint32_t slots[2] = {0, 1};
    const uint8_t rows[16] = {0};
    struct hps_insert_report report;
    struct hps_error err;
    struct hps_store *store = hps_fake_store_new(&options);
    struct hps_space space = {.store = store};
    assert_int_equal(
        hps_store_insert_none(&space, &call, &table, keys, slots, rows, 2, NULL, &report), HPS_OK);
    assert_int_equal(report.n_inserted, 0);
    assert_int_equal(report.n_no_capacity, 2);
    assert_int_equal(hps_store_scan_none(&space, &table, NULL, NULL, &err), HPS_UNIMPLEMENTED);
    assert_string_equal(err.text, "table 't': tier fake cannot list its rows");
    store->ops->close(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_check_when_a_call_of_the_core_is_missing_then_assert),
        cmocka_unit_test(test_check_when_a_sub_table_has_a_hole_then_assert),
        cmocka_unit_test(test_check_when_limits_pool_or_servers_have_a_hole_then_assert),
        cmocka_unit_test(test_check_when_capabilities_and_calls_differ_then_assert),
        cmocka_unit_test(test_calls_when_a_store_lacks_the_capability_then_no_change_and_reported),
    };
    return cmocka_run_group_tests_name("store", tests, NULL, NULL);
}

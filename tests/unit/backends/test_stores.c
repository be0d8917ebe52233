/* SPDX-License-Identifier: Apache-2.0
 *
 * Stores by role: whatever the order in which they are added, they are asked in that of their
 * roles.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "backends/stores.h"
#include "base/assert.h"
#include "tests/lib/fake_store.h"

static struct hps_store *store_new(uint32_t caps)
{
    const struct hps_fake_options options = {.caps = caps};
    struct hps_store *store = hps_fake_store_new(&options);
    assert_non_null(store);
    return store;
}

static void test_roles_when_of_capabilities_then_not_of_names(void **state)
{
    (void)state;
    static const struct {
        uint32_t caps;
        enum hps_store_role role;
    } cases[] = {
        {0, HPS_ROLE_HOST},
        {HPS_STORE_KEEPS, HPS_ROLE_HOST},
        {HPS_STORE_SHARED | HPS_STORE_BLOCKING, HPS_ROLE_SHARED},
        {HPS_STORE_DURABLE | HPS_STORE_BLOCKING, HPS_ROLE_DURABLE},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct hps_store *store = store_new(cases[i].caps);
        assert_int_equal(hps_store_role(store), cases[i].role);
        store->ops->close(store);
    }
}

static void test_add_when_in_any_order_then_asked_from_the_top(void **state)
{
    (void)state;
    static const uint8_t orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                        {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (size_t i = 0; i < sizeof(orders) / sizeof(orders[0]); i++) {
        struct hps_store *by_role[] = {store_new(0), store_new(HPS_STORE_SHARED),
                                       store_new(HPS_STORE_DURABLE)};
        struct hps_stores stores = {0};
        for (size_t k = 0; k < 3; k++) {
            hps_stores_add(&stores, by_role[orders[i][k]]);
        }
        assert_int_equal(stores.n, 3);
        for (size_t k = 0; k < 3; k++) {
            assert_ptr_equal(stores.items[k], by_role[k]);
        }
        assert_ptr_equal(hps_stores_host(&stores), by_role[0]);
        assert_ptr_equal(hps_stores_shared(&stores), by_role[1]);
        assert_ptr_equal(hps_stores_durable(&stores), by_role[2]);
        assert_ptr_equal(hps_stores_lowest(&stores), by_role[2]);
        assert_null(hps_stores_shared_alone(&stores));
        hps_stores_close(&stores);
        assert_null(hps_stores_lowest(&stores));
    }
}

static void test_shared_when_nothing_is_below_it_then_it_is_alone(void **state)
{
    (void)state;
    struct hps_stores stores = {0};
    assert_null(hps_stores_shared_alone(&stores));
    hps_stores_add(&stores, store_new(0));
    assert_null(hps_stores_shared_alone(&stores));
    assert_null(hps_stores_durable(&stores));
    hps_stores_add(&stores, store_new(HPS_STORE_SHARED));
    assert_ptr_equal(hps_stores_shared_alone(&stores), hps_stores_shared(&stores));
    assert_ptr_equal(hps_stores_lowest(&stores), hps_stores_shared(&stores));
    hps_stores_close(&stores);
}

static jmp_buf after_assert;

static void on_assert(const char *expr, const char *file, int line)
{
    (void)expr, (void)file, (void)line;
    longjmp(after_assert, 1);
}

static void test_add_when_the_role_is_taken_then_assert(void **state)
{
    (void)state;
    struct hps_store *second = store_new(0);
    struct hps_stores stores = {0};
    hps_stores_add(&stores, store_new(0));
    hps_assert_hook(on_assert);
    bool asserted = setjmp(after_assert) != 0;
    if (!asserted) {
        hps_stores_add(&stores, second);
    }
    hps_assert_hook(NULL);
    assert_true(asserted);
    second->ops->close(second);
    hps_stores_close(&stores);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_roles_when_of_capabilities_then_not_of_names),
        cmocka_unit_test(test_add_when_in_any_order_then_asked_from_the_top),
        cmocka_unit_test(test_shared_when_nothing_is_below_it_then_it_is_alone),
        cmocka_unit_test(test_add_when_the_role_is_taken_then_assert),
    };
    return cmocka_run_group_tests_name("stores", tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Servers that a store is made of (backends/store_servers.h): they are named, and what lookups
 * find is counted.
 */
#include "tests/contract/store_contract_internal.h"

#include "backends/store_servers.h"

enum { SERVERS_MAX = 16 };

static void test_servers_when_up_then_all_slots_are(void **state)
{
    (void)state;
    struct hps_store *store = contract_open();
    struct hps_store_shared_stats stats;
    struct hps_store_server servers[SERVERS_MAX];
    uint32_t n = store->ops->servers->list(store, servers, SERVERS_MAX);
    assert_in_range(n, 1, SERVERS_MAX);
    for (uint32_t i = 0; i < n; i++) {
        assert_true(servers[i].address[0] != '\0');
        assert_non_null(servers[i].role);
    }
    store->ops->servers->stats(store, &stats);
    assert_non_null(stats.kind);
    assert_true(stats.n_slots > 0);
    assert_int_equal(stats.n_slots_up, stats.n_slots);
    assert_string_equal(stats.error, "");
    store->ops->close(store);
}

static void test_stats_when_rows_are_asked_for_then_counted(void **state)
{
    (void)state;
    struct hps_store *store = contract_open();
    struct hps_space *space = contract_space_open(store, 1);
    struct hps_store_shared_stats before, after;
    struct hps_store_load *load = NULL;
    assert_int_equal(contract_load_begin(space, 0, 0, &load), HPS_OK);
    assert_int_equal(contract_load_add(space, load, &contract_tables[0], 1), HPS_OK);
    contract_load_commit(space, load); /* all of its shards are there then */
    store->ops->servers->stats(store, &before);
    assert_true(contract_has(space, &contract_tables[0], 1, 0));
    assert_false(contract_has(space, &contract_tables[0], 2, 0));
    store->ops->servers->stats(store, &after);
    assert_int_equal(after.n_rows_found - before.n_rows_found, 1);
    assert_int_equal(after.n_rows_absent - before.n_rows_absent, 1);
    contract_drop(space);
    store->ops->close(store);
}

static void test_certificates_when_there_are_none_then_renewed_all_the_same(void **state)
{
    (void)state;
    struct hps_store *store = contract_open();
    assert_int_equal(store->ops->servers->renew_tls(store, &contract_error), HPS_OK);
    store->ops->close(store);
}

int contract_servers_run(const char *name)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_servers_when_up_then_all_slots_are, contract_clean),
        cmocka_unit_test_teardown(test_stats_when_rows_are_asked_for_then_counted, contract_clean),
        cmocka_unit_test_teardown(test_certificates_when_there_are_none_then_renewed_all_the_same,
                                  contract_clean),
    };
    return cmocka_run_group_tests_name(name, tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads of a complete version (backends/store_bulk.h): refusals, and when its rows become
 * visible.
 */
#include "tests/contract/store_contract_internal.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

static void test_load_when_committed_then_visible_at_once(void **state)
{
    (void)state;
    enum { N = 3000 };
    struct hps_store *store = contract_open();
    struct hps_space *space = contract_space_open(store, 1);
    struct hps_store_load *load = NULL;
    assert_int_equal(contract_load_begin(space, N * 2, N * (64 + 512), &load), HPS_OK);
    for (hps_key key = 0; key < N; key++) {
        assert_int_equal(contract_load_add(space, load, &contract_tables[0], key * 3), HPS_OK);
    }
    for (hps_key key = 0; key < N; key++) {
        assert_int_equal(
            contract_load_add(space, load, &contract_tables[2], UINT64_MAX - N + key + 1), HPS_OK);
    }
    assert_false(contract_has(space, &contract_tables[0], 3, 0));
    contract_load_commit(space, load);
    for (hps_key key = 0; key < N; key++) {
        assert_true(contract_has(space, &contract_tables[0], key * 3, 0));
        assert_false(contract_has(space, &contract_tables[0], key * 3 + 1, 0));
        assert_true(contract_has(space, &contract_tables[2], UINT64_MAX - key, 0));
    }
    assert_int_equal(contract_put(space, &contract_tables[0], 3, 5),
                     HPS_OK); /* updates replace loaded rows */
    assert_true(contract_has(space, &contract_tables[0], 3, 5));
    assert_int_equal(contract_erase(space, &contract_tables[0], 6), HPS_OK);
    assert_false(contract_has(space, &contract_tables[0], 6, 0));
    contract_drop(space);
    store->ops->close(store);
}

static void test_load_when_aborted_then_space_is_empty(void **state)
{
    (void)state;
    struct hps_store *store = contract_open();
    struct hps_space *space = contract_space_open(store, 1);
    for (unsigned round = 0; round < 2; round++) {
        struct hps_store_load *load = NULL;
        assert_int_equal(contract_load_begin(space, 0, 0, &load), HPS_OK);
        assert_int_equal(contract_load_add(space, load, &contract_tables[0], 1), HPS_OK);
        store->ops->bulk->abort(load);
        assert_false(contract_has(space, &contract_tables[0], 1, 0));
    }
    struct hps_store_load *load = NULL; /* the space can be loaded afterwards */
    assert_int_equal(contract_load_begin(space, 0, 0, &load), HPS_OK);
    assert_int_equal(contract_load_add(space, load, &contract_tables[0], 1), HPS_OK);
    contract_load_commit(space, load);
    assert_true(contract_has(space, &contract_tables[0], 1, 0));
    contract_drop(space);
    store->ops->close(store);
}

static void test_load_when_empty_then_commits(void **state)
{
    (void)state;
    struct hps_store *store = contract_open();
    struct hps_space *space = contract_space_open(store, 1);
    struct hps_store_load *load = NULL;
    assert_int_equal(contract_load_begin(space, 0, 0, &load), HPS_OK);
    contract_load_commit(space, load);
    assert_false(contract_has(space, &contract_tables[0], 1, 0));
    contract_drop(space);
    store->ops->close(store);
}

static void test_load_when_out_of_order_then_invalid(void **state)
{
    (void)state;
    struct hps_store *store = contract_open();
    struct hps_space *space = contract_space_open(store, 1);
    struct hps_store_load *load = NULL;
    assert_int_equal(contract_load_begin(space, 0, 0, &load), HPS_OK);
    assert_int_equal(contract_load_add(space, load, &contract_tables[0], 7), HPS_OK);
    assert_int_equal(contract_load_add(space, load, &contract_tables[0], 7), HPS_INVALID);
    store->ops->bulk->abort(load);
    assert_int_equal(contract_load_begin(space, 0, 0, &load), HPS_OK);
    assert_int_equal(contract_load_add(space, load, &contract_tables[0], UINT64_MAX), HPS_OK);
    assert_int_equal(contract_load_add(space, load, &contract_tables[0], 1),
                     HPS_INVALID); /* unsigned order */
    store->ops->bulk->abort(load);
    assert_int_equal(contract_load_begin(space, 0, 0, &load), HPS_OK);
    assert_int_equal(contract_load_add(space, load, &contract_tables[1], 1), HPS_OK);
    assert_int_equal(contract_load_add(space, load, &contract_tables[0], 2), HPS_INVALID);
    store->ops->bulk->abort(load);
    assert_false(contract_has(space, &contract_tables[1], 1, 0));
    contract_drop(space);
    store->ops->close(store);
}

static void test_load_when_space_is_not_empty_or_loading_then_refused(void **state)
{
    (void)state;
    struct hps_store *store = contract_open();
    struct hps_space *space = contract_space_open(store, 1);
    struct hps_store_load *load = NULL;
    struct hps_store_load *other = NULL;
    assert_int_equal(contract_load_begin(space, 0, 0, &load), HPS_OK);
    assert_int_equal(contract_load_begin(space, 0, 0, &other), HPS_PRECONDITION);
    store->ops->bulk->abort(load);
    assert_int_equal(contract_put(space, &contract_tables[0], 1, 0), HPS_OK);
    assert_int_equal(contract_load_begin(space, 0, 0, &other), HPS_PRECONDITION);
    assert_null(other);
    contract_drop(space);
    store->ops->close(store);
}

static void test_load_when_over_budget_then_refused_with_both_sizes(void **state)
{
    (void)state;
    if (!contract_store->budget) {
        skip();
    }
    struct hps_store *store = contract_open_bytes(1 << 20);
    struct hps_space *space = contract_space_open(store, 1);
    struct hps_store_load *load = NULL;
    assert_int_equal(contract_load_begin(space, 100000, 100000 * 64, &load), HPS_EXHAUSTED);
    assert_null(load);
    assert_non_null(
        strstr(contract_error.text, "needs") != NULL ? "" : strstr(contract_error.text, "needed"));
    assert_int_equal(contract_load_begin(space, 0, 0, &load),
                     HPS_OK); /* unknown size: refused later */
    hps_status status = HPS_OK;
    for (hps_key key = 0; status == HPS_OK; key++) {
        status = contract_load_add(space, load, &contract_tables[2], key);
        assert_true(key < 4096);
    }
    assert_int_equal(status, HPS_EXHAUSTED);
    store->ops->bulk->abort(load);
    assert_int_equal(contract_put(space, &contract_tables[0], 1, 0), HPS_OK); /* all released */
    contract_drop(space);
    store->ops->close(store);
}

/* ---- readers --------------------------------------------------------------------------------- */

struct race {
    struct hps_space *space;
    atomic_bool done;
    atomic_uint n_bad;
};

static void *commit_reader(void *ctx)
{
    struct race *race = ctx;
    while (!atomic_load(&race->done)) {
        /* tables must become visible together: with a row of the first, the second has its row */
        if (contract_has(race->space, &contract_tables[0], 5, 0) &&
            !contract_has(race->space, &contract_tables[2], 5, 0)) {
            atomic_fetch_add(&race->n_bad, 1);
        }
    }
    return NULL;
}

static void test_load_when_committed_under_readers_then_tables_appear_together(void **state)
{
    (void)state;
    struct hps_store *store = contract_open();
    for (int64_t version = 1; version <= 3; version++) {
        struct race race_now = {.n_bad = 0};
        struct race *race = &race_now;
        race->space = contract_space_open(store, version);
        pthread_t reader;
        assert_int_equal(pthread_create(&reader, NULL, commit_reader, race), 0);
        struct hps_store_load *load = NULL;
        assert_int_equal(contract_load_begin(race->space, 0, 0, &load), HPS_OK);
        for (hps_key key = 0; key < 100; key++) {
            assert_int_equal(contract_load_add(race->space, load, &contract_tables[0], key),
                             HPS_OK);
        }
        for (hps_key key = 0; key < 100; key++) {
            assert_int_equal(contract_load_add(race->space, load, &contract_tables[2], key),
                             HPS_OK);
        }
        contract_load_commit(race->space, load);
        assert_true(contract_has(race->space, &contract_tables[0], 99, 0));
        atomic_store(&race->done, true);
        pthread_join(reader, NULL);
        assert_int_equal(atomic_load(&race->n_bad), 0);
        contract_drop(race->space);
    }
    store->ops->close(store);
}

int contract_bulk_run(const char *name)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_load_when_committed_then_visible_at_once, contract_clean),
        cmocka_unit_test_teardown(test_load_when_aborted_then_space_is_empty, contract_clean),
        cmocka_unit_test_teardown(test_load_when_empty_then_commits, contract_clean),
        cmocka_unit_test_teardown(test_load_when_out_of_order_then_invalid, contract_clean),
        cmocka_unit_test_teardown(test_load_when_space_is_not_empty_or_loading_then_refused,
                                  contract_clean),
        cmocka_unit_test_teardown(test_load_when_over_budget_then_refused_with_both_sizes,
                                  contract_clean),
        cmocka_unit_test_teardown(
            test_load_when_committed_under_readers_then_tables_appear_together, contract_clean),
    };
    return cmocka_run_group_tests_name(name, tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Further calls of stores on disk (backends/store_durable.h): spaces, records, and updates that
 * are applied completely or not at all.
 */
#include "tests/contract/store_contract_internal.h"

#include <stdio.h>
#include <string.h>

#include "backends/store_durable.h"

/* ---- durable stores -------------------------------------------------------------------------- */

struct listed {
    unsigned n;
    int64_t version_sum;
    char text[256];
};

static hps_status list_space(void *ctx, const char *model, int64_t version)
{
    struct listed *listed = ctx;
    assert_string_equal(model, "m");
    listed->n++;
    listed->version_sum += version;
    return HPS_OK;
}

static hps_status list_record(void *ctx, const void *key, size_t key_size, const void *value,
                              size_t value_size)
{
    struct listed *listed = ctx;
    size_t used = strlen(listed->text);
    (void)snprintf(listed->text + used, sizeof(listed->text) - used, "%.*s=%.*s;", (int)key_size,
                   (const char *)key, (int)value_size, (const char *)value);
    listed->n++;
    return HPS_OK;
}

static void test_spaces_when_durable_then_listed_until_dropped(void **state)
{
    (void)state;
    struct hps_store *store = contract_open();
    struct hps_space *one = contract_space_open(store, 100);
    struct hps_space *two = contract_space_open(store, 20);
    store->ops->space_close(two);
    struct listed listed = {0};
    assert_int_equal(store->ops->durable->space_list(store, list_space, &listed, &contract_error),
                     HPS_OK);
    assert_int_equal(listed.n, 2);
    assert_int_equal(listed.version_sum, 120);
    contract_drop(one);
    listed = (struct listed){0};
    assert_int_equal(store->ops->durable->space_list(store, list_space, &listed, &contract_error),
                     HPS_OK);
    assert_int_equal(listed.version_sum, 20);
    assert_true(store->ops->durable->bytes_free(store) > 0);
    store->ops->close(store);
}

static void test_records_when_put_and_deleted_then_scanned_in_order(void **state)
{
    (void)state;
    struct hps_store *store = contract_open();
    const struct hps_store_ops *ops = store->ops;
    assert_int_equal(ops->durable->record_put(store, "b", 1, "2", 1, &contract_error), HPS_OK);
    assert_int_equal(ops->durable->record_put(store, "ab", 2, "x", 1, &contract_error), HPS_OK);
    assert_int_equal(ops->durable->record_put(store, "a", 1, "", 0, &contract_error), HPS_OK);
    assert_int_equal(ops->durable->record_put(store, "ab", 2, "1", 1, &contract_error), HPS_OK);
    assert_int_equal(ops->durable->record_put(store, "c", 1, "3", 1, &contract_error), HPS_OK);
    assert_int_equal(ops->durable->record_delete(store, "c", 1, &contract_error), HPS_OK);
    assert_int_equal(ops->durable->record_delete(store, "none", 4, &contract_error), HPS_OK);
    struct listed listed = {0};
    assert_int_equal(ops->durable->record_scan(store, "", list_record, &listed, &contract_error),
                     HPS_OK);
    assert_string_equal(listed.text, "a=;ab=1;b=2;");
    listed = (struct listed){0};
    assert_int_equal(ops->durable->record_scan(store, "a", list_record, &listed, &contract_error),
                     HPS_OK);
    assert_string_equal(listed.text, "a=;ab=1;");
    listed = (struct listed){0};
    assert_int_equal(ops->durable->record_scan(store, "aa", list_record, &listed, &contract_error),
                     HPS_OK);
    assert_int_equal(listed.n, 0);
    ops->close(store);
}

/* ---- apply ----------------------------------------------------------------------------------- */

static uint8_t apply_rows[3][64];

/* Keys 1, 2 and 3 of table a get rows of `seq`, key 9 of table b is deleted, "pos" is `seq`. */
static hps_status apply(struct hps_space *space, uint64_t seq)
{
    static const hps_key keys[3] = {1, UINT64_MAX, 3};
    static const hps_key deleted = 9;
    char position[24];
    int size = snprintf(position, sizeof(position), "%llu", (unsigned long long)seq);
    for (unsigned i = 0; i < 3; i++) {
        store_contract_fill(apply_rows[i], contract_tables[0].row_bytes, keys[i], seq);
    }
    const struct hps_write writes[2] = {{&contract_tables[0], keys, apply_rows[0], 3},
                                        {&contract_tables[1], &deleted, NULL, 1}};
    const struct hps_record records[2] = {{"pos", 3, position, (size_t)size},
                                          {"other", 5, seq % 2 != 0 ? "" : NULL, 0}};
    return space->store->ops->durable->apply(space, &contract_no_limit, writes, 2, records, 2,
                                             &contract_error);
}

static void check_applied(struct hps_space *space, uint64_t seq, const char *records)
{
    struct listed listed = {0};
    assert_true(contract_has(space, &contract_tables[0], 1, seq));
    assert_true(contract_has(space, &contract_tables[0], UINT64_MAX, seq));
    assert_true(contract_has(space, &contract_tables[0], 3, seq));
    assert_false(contract_has(space, &contract_tables[1], 9, 0));
    assert_int_equal(
        space->store->ops->durable->space_record_scan(space, list_record, &listed, &contract_error),
        HPS_OK);
    assert_string_equal(listed.text, records);
}

static void test_apply_when_durable_then_rows_deletes_and_records_together(void **state)
{
    (void)state;
    struct hps_store *store = contract_open();
    struct hps_space *space = contract_space_open(store, 1);
    struct hps_space *other = contract_space_open(store, 2);
    struct hps_store_load *load = NULL;
    assert_int_equal(contract_put(space, &contract_tables[1], 9, 0), HPS_OK);
    assert_int_equal(apply(space, 7), HPS_OK);
    check_applied(space, 7, "other=;pos=7;");
    assert_int_equal(apply(space, 8), HPS_OK);
    check_applied(space, 8, "pos=8;");
    store->ops->space_close(space); /* a closed space is kept */
    space = contract_space_open(store, 1);
    check_applied(space, 8, "pos=8;");
    const struct hps_record record = {"p", 1, "1", 1}; /* records only */
    assert_int_equal(
        store->ops->durable->apply(other, &contract_no_limit, NULL, 0, &record, 1, &contract_error),
        HPS_OK);
    struct listed listed = {0};
    assert_int_equal(
        store->ops->durable->space_record_scan(other, list_record, &listed, &contract_error),
        HPS_OK);
    assert_string_equal(listed.text, "p=1;");
    listed = (struct listed){0};
    assert_int_equal(
        store->ops->durable->record_scan(store, "", list_record, &listed, &contract_error), HPS_OK);
    assert_int_equal(listed.n, 0); /* not among the records of the store */
    assert_int_equal(contract_load_begin(other, 0, 0, &load), HPS_OK); /* nor any rows */
    store->ops->bulk->abort(load);
    contract_drop(other);
    other = contract_space_open(store, 2);
    assert_int_equal(
        store->ops->durable->space_record_scan(other, list_record, &listed, &contract_error),
        HPS_OK);
    assert_int_equal(listed.n, 0); /* deleted with their space */
    contract_drop(other);
    contract_drop(space);
    store->ops->close(store);
}

struct viewed {
    struct hps_space *space;
    struct listed records;
    uint32_t n_begun, n_rows;
};

/* The first record: changes everything that the view has not passed yet. */
static hps_status view_record(void *ctx, const void *key, size_t key_size, const void *value,
                              size_t value_size)
{
    struct viewed *viewed = ctx;
    if (viewed->records.n == 0) {
        assert_int_equal(apply(viewed->space, 8), HPS_OK);
        assert_int_equal(contract_put(viewed->space, &contract_tables[1], 10, 0), HPS_OK);
    }
    return list_record(&viewed->records, key, key_size, value, value_size);
}

static hps_status view_begin(void *ctx, const struct hps_table *table)
{
    struct viewed *viewed = ctx;
    assert_ptr_equal(table, &contract_tables[viewed->n_begun]);
    viewed->n_begun++;
    return HPS_OK;
}

static hps_status view_rows(void *ctx, const struct hps_table *table, const hps_key *keys,
                            const uint8_t *rows, uint32_t n)
{
    static const hps_key expected[] = {1, 3, UINT64_MAX};
    struct viewed *viewed = ctx;
    uint8_t row[1024];
    assert_ptr_equal(table, &contract_tables[0]); /* the other one is empty */
    assert_true(table->row_bytes <= sizeof(row));
    for (uint32_t i = 0; i < n; i++) {
        assert_true(viewed->n_rows < 3 && keys[i] == expected[viewed->n_rows]);
        viewed->n_rows++;
        store_contract_fill(row, table->row_bytes, keys[i], 7);
        assert_memory_equal(rows + (size_t)i * table->row_bytes, row, table->row_bytes);
    }
    return HPS_OK;
}

static void test_view_when_written_meanwhile_then_of_one_moment(void **state)
{
    (void)state;
    struct hps_store *store = contract_open();
    struct hps_space *space = contract_space_open(store, 1);
    struct viewed viewed = {.space = space};
    const struct hps_view view = {contract_tables, 2, &viewed, view_record, view_begin, view_rows};
    if (store->ops->durable->view != NULL) {
        assert_int_equal(apply(space, 7), HPS_OK);
        assert_int_equal(store->ops->durable->view(space, &view, &contract_error), HPS_OK);
        assert_string_equal(viewed.records.text, "other=;pos=7;");
        assert_int_equal(viewed.n_begun, 2);
        assert_int_equal(viewed.n_rows, 3);
    }
    contract_drop(space);
    store->ops->close(store);
}

static void test_apply_when_over_budget_then_no_part_is_applied(void **state)
{
    (void)state;
    struct hps_store *store = contract_open_bytes(4 * 64);
    struct hps_space *space = contract_space_open(store, 1);
    assert_int_equal(apply(space, 1), HPS_OK);
    if (contract_store->budget) {
        hps_key keys[2] = {100, 101};
        const struct hps_write write = {&contract_tables[0], keys, apply_rows[0], 2};
        const struct hps_record record = {"pos", 3, "2", 1};
        assert_int_equal(store->ops->durable->apply(space, &contract_no_limit, &write, 1, &record,
                                                    1, &contract_error),
                         HPS_EXHAUSTED);
        assert_false(contract_has(space, &contract_tables[0], 100, 0));
    }
    check_applied(space, 1, "other=;pos=1;");
    contract_drop(space);
    store->ops->close(store);
}

int contract_durable_run(const char *name)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_spaces_when_durable_then_listed_until_dropped,
                                  contract_clean),
        cmocka_unit_test_teardown(test_records_when_put_and_deleted_then_scanned_in_order,
                                  contract_clean),
        cmocka_unit_test_teardown(test_apply_when_durable_then_rows_deletes_and_records_together,
                                  contract_clean),
        cmocka_unit_test_teardown(test_view_when_written_meanwhile_then_of_one_moment,
                                  contract_clean),
        cmocka_unit_test_teardown(test_apply_when_over_budget_then_no_part_is_applied,
                                  contract_clean),
    };
    return cmocka_run_group_tests_name(name, tests, NULL, NULL);
}

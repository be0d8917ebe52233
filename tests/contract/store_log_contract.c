/* SPDX-License-Identifier: Apache-2.0
 *
 * Updates of a shared store from the log that all daemons read (backends/store_log.h). Each
 * batch is applied once, by the first daemon that sends it. Rows that are behind are not read
 * until they are updated or removed.
 */
#include "tests/contract/store_contract_internal.h"

#include "backends/store_log.h"

enum { N_KEYS = 64, START = 10, BEHIND_MAX = 4 };

static const uint64_t partition = 7;

/* A version with rows of write 0 for all keys of a table, at the start of the log. */
static struct hps_space *loaded(struct hps_store *store)
{
    struct hps_space *space = contract_space_open(store, 1);
    struct hps_store_load *load = NULL;
    assert_int_equal(contract_load_begin(space, 0, 0, &load), HPS_OK);
    for (hps_key key = 0; key < N_KEYS; key++) {
        assert_int_equal(contract_load_add(space, load, &contract_tables[0], key), HPS_OK);
    }
    contract_load_commit(space, load);
    return space;
}

static void set_position(struct hps_space *space, int64_t offset)
{
    const struct hps_log_position at = {partition, offset, START};
    assert_int_equal(space->store->ops->log->positions_set(space, &at, 1), HPS_OK);
}

static int64_t lowest_position(struct hps_space *space)
{
    struct hps_log_position at = {partition, -1, START};
    const struct hps_store_ops *ops = space->store->ops;
    assert_int_equal(ops->log->positions_get(space, &contract_no_limit, &at, 1), HPS_OK);
    return at.offset;
}

/* Apply the records [first, next): key 1 gets the row of write `seq`, key 2 is deleted. */
static struct hps_log_report apply(struct hps_space *space, int64_t first, int64_t next,
                                   uint64_t seq)
{
    static const hps_key put = 1, deleted = 2;
    static const uint32_t spans_of[2] = {0, 0};
    uint8_t row[64];
    const struct hps_write writes[2] = {{&contract_tables[0], &put, row, 1},
                                        {&contract_tables[0], &deleted, NULL, 1}};
    const struct hps_log_span span = {partition, START, first, next};
    const struct hps_log_batch batch = {writes, spans_of, 2, &span, 1, false};
    struct hps_log_report report = {0};
    store_contract_fill(row, sizeof(row), put, seq);
    assert_int_equal(space->store->ops->log->apply(space, &contract_no_limit, &batch, &report),
                     HPS_OK);
    assert_int_equal(report.n_failed, 0);
    return report;
}

static uint32_t n_behind(struct hps_space *space, int64_t *out_offset)
{
    struct hps_log_position behind[BEHIND_MAX];
    uint32_t n = 0;
    const struct hps_store_ops *ops = space->store->ops;
    assert_int_equal(ops->log->behind(space, &contract_no_limit, behind, BEHIND_MAX, &n), HPS_OK);
    if (n > 0) {
        assert_int_equal(behind[0].partition, partition);
        *out_offset = behind[0].offset;
    }
    return n;
}

static void test_log_when_a_batch_is_sent_twice_then_it_is_applied_once(void **state)
{
    (void)state;
    struct hps_store *store = contract_open();
    struct hps_space *space = loaded(store);
    set_position(space, START);
    assert_true(contract_has(space, &contract_tables[0], 1, 0));
    assert_true(contract_has(space, &contract_tables[0], 2, 0));
    assert_int_equal(lowest_position(space), START);
    struct hps_log_report report = apply(space, START, START + 2, 5);
    assert_true(report.n_applied > 0);
    assert_int_equal(report.n_gap, 0);
    assert_true(contract_has(space, &contract_tables[0], 1, 5));
    assert_false(contract_has(space, &contract_tables[0], 2, 0));
    assert_true(contract_has(space, &contract_tables[0], 3, 0));
    assert_int_equal(lowest_position(space), START + 2);
    report = apply(space, START, START + 2, 6); /* the same records again */
    assert_int_equal(report.n_applied, 0);
    assert_int_equal(report.n_gap, 0);
    assert_true(report.n_had > 0);
    assert_true(contract_has(space, &contract_tables[0], 1, 5));
    contract_drop(space);
    store->ops->close(store);
}

static void test_log_when_rows_are_behind_then_not_read_until_updated(void **state)
{
    (void)state;
    struct hps_store *store = contract_open();
    struct hps_space *space = loaded(store);
    int64_t offset = -1;
    set_position(space, START);
    (void)apply(space, START, START + 2, 5);
    assert_int_equal(n_behind(space, &offset), 0);
    set_position(space, START + 10); /* like after a seek */
    assert_false(contract_has(space, &contract_tables[0], 1, 5));
    assert_int_equal(n_behind(space, &offset), 1);
    assert_int_equal(offset, START + 2);
    struct hps_log_report report = apply(space, START + 5, START + 10, 6);
    assert_int_equal(report.n_applied, 0); /* records before it are missing */
    assert_true(report.n_gap > 0);
    (void)apply(space, START + 2, START + 10, 7);
    assert_int_equal(n_behind(space, &offset), 0);
    assert_true(contract_has(space, &contract_tables[0], 1, 7));
    assert_true(contract_has(space, &contract_tables[0], 3, 0));
    contract_drop(space);
    store->ops->close(store);
}

static void test_log_when_rows_that_are_behind_are_reset_then_removed_and_current(void **state)
{
    (void)state;
    struct hps_store *store = contract_open();
    struct hps_space *space = loaded(store);
    struct hps_log_report report = {0};
    int64_t offset = -1;
    set_position(space, START + 10);
    assert_int_equal(n_behind(space, &offset), 1);
    assert_int_equal(store->ops->log->reset(space, &contract_no_limit, &report), HPS_OK);
    assert_true(report.n_applied > 0);
    assert_int_equal(report.n_failed, 0);
    assert_int_equal(n_behind(space, &offset), 0);
    assert_false(contract_has(space, &contract_tables[0], 1, 0));
    (void)apply(space, START + 10, START + 11, 8);
    assert_true(contract_has(space, &contract_tables[0], 1, 8));
    contract_drop(space);
    store->ops->close(store);
}

static void test_log_when_the_version_leaves_it_then_no_row_is_found(void **state)
{
    (void)state;
    struct hps_store *store = contract_open();
    struct hps_space *space = loaded(store);
    set_position(space, START);
    assert_true(contract_has(space, &contract_tables[0], 3, 0));
    store->ops->log->leave(space);
    assert_false(contract_has(space, &contract_tables[0], 3, 0));
    set_position(space, START);
    assert_true(contract_has(space, &contract_tables[0], 3, 0));
    contract_drop(space);
    store->ops->close(store);
}

int contract_log_run(const char *name)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_log_when_a_batch_is_sent_twice_then_it_is_applied_once,
                                  contract_clean),
        cmocka_unit_test_teardown(test_log_when_rows_are_behind_then_not_read_until_updated,
                                  contract_clean),
        cmocka_unit_test_teardown(
            test_log_when_rows_that_are_behind_are_reset_then_removed_and_current, contract_clean),
        cmocka_unit_test_teardown(test_log_when_the_version_leaves_it_then_no_row_is_found,
                                  contract_clean),
    };
    return cmocka_run_group_tests_name(name, tests, NULL, NULL);
}

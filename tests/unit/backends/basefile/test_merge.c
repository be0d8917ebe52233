/* SPDX-License-Identifier: Apache-2.0
 *
 * Merges while rows are read, written and scanned. A lookup that begins after an acknowledged write
 * returns the row of this write or of a later one. No scan misses a row. The writes begin merges.
 */
#include <pthread.h>
#include <sched.h>

#include "tests/unit/backends/basefile/basefile_test.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { ROUNDS = 15 }; /* at least; three merges in any case */
#else
enum { ROUNDS = 60 };
#endif
enum { T = 1, READERS = 2, KEYS = 700 };

static struct hps_space *shared;
static _Atomic(uint32_t) acked[MODEL_KEYS]; /* seq * 2, plus 1 if the key exists */
static _Atomic(uint32_t) tried[MODEL_KEYS]; /* before the write */
static atomic_bool ended;

/* Row bytes that tell key and write. */
static void fill_plain(uint8_t *row, uint32_t i, uint32_t seq)
{
    memset(row, 0, tables[T].row_bytes);
    for (uint32_t at = 0; at + 8 <= tables[T].row_bytes; at += 8) {
        memcpy(row + at, &i, 4);
        memcpy(row + at + 4, &seq, 4);
    }
}

/* The write that a row tells. Fails if it is torn or of another key. */
static uint32_t seq_of(const uint8_t *row, uint32_t i)
{
    uint8_t expected[ROW_BYTES_MAX];
    uint32_t seq;
    memcpy(&seq, row + 4, 4);
    fill_plain(expected, i, seq);
    assert_memory_equal(row, expected, tables[T].row_bytes);
    return seq;
}

static void write_keys(uint32_t seq)
{
    static uint8_t rows[KEYS * 132];
    hps_key keys[KEYS];
    uint32_t numbers[KEYS];
    uint32_t n = 0;
    bool delete = seq % 4 == 3;
    for (uint32_t i = seq % 7; i < MODEL_KEYS && n < KEYS; i += 5) {
        numbers[n] = i;
        keys[n] = key_of(T, i);
        fill_plain(rows + (size_t)n++ * 132, i, seq);
    }
    uint32_t value = seq * 2 + (delete ? 0 : 1);
    for (uint32_t k = 0; k < n; k++) {
        atomic_store(&tried[numbers[k]], value);
    }
    const struct hps_write write = {&tables[T], keys, delete ? NULL : rows, n};
    assert_int_equal(
        shared->store->ops->durable->apply(shared, &no_limit, &write, 1, NULL, 0, &error), HPS_OK);
    for (uint32_t k = 0; k < n; k++) {
        atomic_store(&acked[numbers[k]], value);
    }
}

/* before: the last write acknowledged before the read; after: the last one begun before its end. */
static void check_row(uint32_t i, uint32_t before, uint32_t after, bool found, const uint8_t *row)
{
    if (!found) {
        assert_true((before & 1) == 0 || before != after);
        return;
    }
    uint32_t seq = seq_of(row, i);
    if (seq < before / 2 || seq > after / 2 || (before == after && (before & 1) == 0)) {
        fail_msg("key %u: write %u, acknowledged %u, tried %u", i, seq, before, after);
    }
}

static void *read_run(void *arg)
{
    uint64_t random = (uint64_t)(uintptr_t)arg;
    uint8_t rows[300 * 132];
    while (!atomic_load(&ended)) {
        hps_key keys[300];
        uint32_t slots[300], numbers[300], before[300];
        bool found[300];
        for (uint32_t k = 0; k < 300; k++) {
            random = hps_mix64(random + 1);
            numbers[k] = (uint32_t)(random % MODEL_KEYS);
            slots[k] = k;
            keys[k] = key_of(T, numbers[k]);
            before[k] = atomic_load(&acked[numbers[k]]);
            found[k] = true;
        }
        struct hps_batch batch = {.keys = keys, .slots = slots, .rows = rows, .n = 300};
        assert_int_equal(shared->store->ops->get(shared, &no_limit, &tables[T], &batch), HPS_OK);
        for (uint32_t k = 0; k < batch.n; k++) {
            found[slots[k]] = false;
        }
        for (uint32_t k = 0; k < 300; k++) {
            check_row(numbers[k], before[k], atomic_load(&tried[numbers[k]]), found[k],
                      rows + (size_t)k * tables[T].row_bytes);
        }
    }
    return NULL;
}

struct scan_check {
    uint32_t at;
    const uint32_t *before;
};

static void scan_skip(struct scan_check *check, uint32_t end)
{
    for (; check->at < end; check->at++) {
        check_row(check->at, check->before[check->at], atomic_load(&tried[check->at]), false, NULL);
    }
}

static hps_status scan_take(void *ctx, const hps_key *keys, const uint8_t *rows, uint32_t n)
{
    struct scan_check *check = ctx;
    for (uint32_t k = 0; k < n; k++) {
        uint32_t i;
        memcpy(&i, rows + (size_t)k * tables[T].row_bytes, 4);
        assert_true(i < MODEL_KEYS && keys[k] == key_of(T, i) && i >= check->at);
        scan_skip(check, i);
        check_row(i, check->before[i], atomic_load(&tried[i]), true,
                  rows + (size_t)k * tables[T].row_bytes);
        check->at = i + 1;
    }
    return HPS_OK;
}

static void *scan_run(void *arg)
{
    (void)arg;
    static uint32_t before[MODEL_KEYS];
    struct hps_error err;
    while (!atomic_load(&ended)) {
        struct scan_check check = {0, before};
        for (uint32_t i = 0; i < MODEL_KEYS; i++) {
            before[i] = atomic_load(&acked[i]);
        }
        assert_int_equal(shared->store->ops->scan(shared, &tables[T], scan_take, &check, &err),
                         HPS_OK);
        scan_skip(&check, MODEL_KEYS);
    }
    return NULL;
}

static void load_plain(void)
{
    static uint8_t rows[MODEL_KEYS * 132];
    static hps_key keys[MODEL_KEYS];
    struct hps_store_load *load = NULL;
    const struct hps_store_bulk_ops *bulk = shared->store->ops->bulk;
    for (uint32_t i = 0; i < MODEL_KEYS; i++) {
        keys[i] = key_of(T, i);
        fill_plain(rows + (size_t)i * 132, i, 1);
        atomic_store(&acked[i], 3);
        atomic_store(&tried[i], 3);
    }
    assert_int_equal(bulk->begin(shared, 0, 0, &load, &error), HPS_OK);
    assert_int_equal(bulk->add(load, &tables[T], keys, rows, MODEL_KEYS, &error), HPS_OK);
    assert_int_equal(bulk->commit(load, &error), HPS_OK);
}

static void run_beside(struct open_options way)
{
    pthread_t threads[READERS + 1];
    how = way;
    how.merges = true;
    atomic_store(&ended, false);
    shared = open_space(open_store());
    load_plain();
    uint64_t first = base_of(shared, T)->record.number;
    for (unsigned i = 0; i < READERS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, read_run, (void *)(uintptr_t)(i + 1)),
                         0);
    }
    assert_int_equal(pthread_create(&threads[READERS], NULL, scan_run, NULL), 0);
    uint32_t seq = 2;
    uint64_t number = first;
    for (; seq < ROUNDS || number < first + 3; seq++) {
        write_keys(seq);
        unsigned epoch = hps_basefile_enter((struct hps_basefile_space *)shared);
        number = base_of(shared, T)->record.number;
        hps_basefile_leave((struct hps_basefile_space *)shared, epoch);
    }
    atomic_store(&ended, true);
    for (unsigned i = 0; i <= READERS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    how.merges = false;
    shared = restart(shared);
    static uint32_t before[MODEL_KEYS];
    struct scan_check check = {0, before};
    for (uint32_t i = 0; i < MODEL_KEYS; i++) {
        before[i] = atomic_load(&acked[i]);
    }
    assert_int_equal(shared->store->ops->scan(shared, &tables[T], scan_take, &check, &error),
                     HPS_OK);
    scan_skip(&check, MODEL_KEYS);
    struct hps_store *store = shared->store;
    assert_int_equal(store->ops->space_drop(shared, &error), HPS_OK);
    assert_int_equal(n_files(), 0);
    store->ops->close(store);
}

static void test_merge_when_read_written_and_scanned_then_no_row_is_old(void **state)
{
    (void)state;
    run_beside((struct open_options){.memory_bytes = UINT64_MAX});
    run_beside((struct open_options){.mode = HPS_READ_DIRECT});
    run_beside((struct open_options){.mode = HPS_READ_BUFFERED, .no_uring = true});
}

static void test_merge_when_the_space_is_closed_then_it_ends(void **state)
{
    (void)state;
    how.merges = true;
    struct hps_store *store = open_store();
    for (unsigned i = 0; i < 10; i++) {
        struct hps_space *space = open_space(store);
        if (i == 0) {
            load(space);
        }
        assert_int_equal(write_some(space, 3, i * 10, 100, 1, i + 2), HPS_OK);
        store->ops->space_close(space);
    }
    how.merges = false;
    struct hps_space *space = open_space(store);
    check_some(space, 3, 0, MODEL_KEYS);
    close_all(space);
}

/* Writes make table 0 due again and again. */
static void test_merge_when_a_table_is_always_due_then_another_is_merged_too(void **state)
{
    (void)state;
    how.merges = true;
    struct hps_space *space = open_space(open_store());
    struct hps_basefile_space *dense = (struct hps_basefile_space *)space;
    load(space);
    uint64_t first = base_of(space, 1)->record.number;
    uint64_t number = first;
    assert_int_equal(write_some(space, 0, 0, 500, 1, 2), HPS_OK);
    assert_int_equal(write_some(space, 1, 0, 500, 1, 2), HPS_OK);
    for (uint32_t seq = 3; number == first; seq++) {
        assert_int_equal(write_some(space, 0, 0, 500, 1, seq), HPS_OK);
        unsigned epoch = hps_basefile_enter(dense);
        number = base_of(space, 1)->record.number;
        hps_basefile_leave(dense, epoch);
        assert_true(seq < 100000);
    }
    check_some(space, 1, 0, MODEL_KEYS);
    close_all(space);
}

/* Wait until the base of table t has another number. */
static void wait_merged(struct hps_space *space, uint32_t t, uint64_t first)
{
    for (uint64_t number = first; number == first; (void)sched_yield()) {
        unsigned epoch = hps_basefile_enter((struct hps_basefile_space *)space);
        number = base_of(space, t)->record.number;
        hps_basefile_leave((struct hps_basefile_space *)space, epoch);
    }
}

/* A call such as an export uses the old base. This base and the new one count once, else no base
 * would be mapped until the call ends. */
static void test_merge_when_it_waits_for_a_call_then_bases_are_mapped_and_others_merged(
    void **state)
{
    (void)state;
    struct hps_space *space = open_space(open_store());
    struct hps_space *other = NULL;
    load(space);
    how.memory_bytes = ((struct hps_basefile_store *)space->store)->bytes;
    how.merges = true;
    space = restart(space);
    struct hps_store *store = space->store;
    uint64_t first = base_of(space, 0)->record.number;
    unsigned epoch = hps_basefile_enter((struct hps_basefile_space *)space);
    assert_int_equal(write_some(space, 0, 0, 500, 1, 2), HPS_OK);
    wait_merged(space, 0, first);
    assert_true(is_mapped(space, 1));
    const struct hps_space_id id = {"m", 2, tables, N_TABLES, 0};
    assert_int_equal(store->ops->space_open(store, &id, &other, &error), HPS_OK);
    load(other);
    uint64_t number = base_of(other, 0)->record.number;
    assert_int_equal(write_some(other, 0, 0, 500, 1, 2), HPS_OK);
    wait_merged(other, 0, number);
    assert_true(n_files() > 2 * (N_TABLES - 1)); /* the old base is there */
    hps_basefile_leave((struct hps_basefile_space *)space, epoch);
    while (n_files() > 2 * (N_TABLES - 1)) {
        (void)sched_yield();
    }
    store->ops->space_close(other);
    close_all(space);
}

static void test_merge_when_few_bytes_have_changed_then_not_due(void **state)
{
    (void)state;
    how.usual = true;
    struct hps_space *space = open_space(open_store());
    load(space);
    for (uint32_t i = 0; i < N_KEYS; i += 500) { /* all rows of 64 bytes */
        assert_int_equal(write_some(space, 0, i, 500, 1, 2), HPS_OK);
    }
    assert_int_equal(base_of(space, 0)->n_changed, N_KEYS);
    assert_false(hps_basefile_merge_due(base_of(space, 0)));
    uint64_t first = base_of(space, 3)->record.number;
    assert_int_equal(write_some(space, 3, 0, 200, 1, 2), HPS_OK); /* 900 KB */
    assert_false(hps_basefile_merge_due(base_of(space, 3)));
    assert_int_equal(write_some(space, 3, 200, 50, 1, 2), HPS_OK);
    wait_merged(space, 3, first);
    check_all(space);
    close_all(space);
}

static const struct hps_store_ops *usual_ops;
static uint32_t n_applies; /* until one fails */
static uint32_t n_puts;    /* of records that fail */

static hps_status apply_or_fail(struct hps_space *space, const struct hps_call *call,
                                const struct hps_write *writes, uint32_t n_writes,
                                const struct hps_record *records, uint32_t n_records,
                                struct hps_error *err)
{
    if (n_applies-- == 0) {
        return hps_error_set(err, HPS_EXHAUSTED, "no space");
    }
    return usual_ops->durable->apply(space, call, writes, n_writes, records, n_records, err);
}

static hps_status put_or_fail(struct hps_store *store, const void *key, size_t key_size,
                              const void *value, size_t value_size, struct hps_error *err)
{
    if (n_puts > 0) {
        n_puts--;
        return hps_error_set(err, HPS_EXHAUSTED, "no space");
    }
    return usual_ops->durable->record_put(store, key, key_size, value, value_size, err);
}

/* Merge table 1; writes to the inner store may fail. */
static hps_status merge_or_fail(struct hps_space *space)
{
    struct hps_store *inner = ((struct hps_basefile_space *)space)->inner->store;
    struct hps_store_ops ops = *inner->ops;
    struct hps_store_durable_ops durable = *ops.durable;
    usual_ops = inner->ops;
    ops.durable = &durable;
    durable.apply = apply_or_fail;
    durable.record_put = put_or_fail;
    inner->ops = &ops;
    hps_status status = merge(space, 1);
    inner->ops = usual_ops;
    return status;
}

/* 1 failure: the old record can be written again. 2: the new one may be on disk. */
static void test_merge_when_its_record_cannot_be_written_then_the_old_base_stays(void **state)
{
    (void)state;
    struct hps_space *space = open_space(open_store());
    load(space);
    assert_int_equal(write_some(space, 1, 0, 500, 1, 2), HPS_OK);
    for (uint32_t n = 1; n < 3; n++) {
        uint64_t number = base_of(space, 1)->record.number;
        n_puts = n;
        assert_int_equal(merge_or_fail(space), HPS_EXHAUSTED);
        assert_int_equal(n_puts, 0);
        assert_int_equal(base_of(space, 1)->record.number, number);
        assert_int_equal(n_files(), N_TABLES - 2 + n);
        check_all(space);
        space = restart(space);
        assert_int_equal(n_files(), N_TABLES - 1);
        check_all(space);
    }
    close_all(space);
}

static hps_status count_rows(void *ctx, const hps_key *keys, const uint8_t *rows, uint32_t n)
{
    (void)keys, (void)rows;
    *(uint32_t *)ctx += n;
    return HPS_OK;
}

/* Rows and marks of a table that are in the inner store. */
static uint32_t n_inner(struct hps_space *space, uint32_t t)
{
    const struct hps_basefile_space *dense = (struct hps_basefile_space *)space;
    uint32_t n = 0;
    assert_int_equal(
        dense->inner->store->ops->scan(dense->inner, &tables[t], count_rows, &n, &error), HPS_OK);
    assert_int_equal(
        dense->inner->store->ops->scan(dense->inner, &dense->marks[t], count_rows, &n, &error),
        HPS_OK);
    return n;
}

static void test_merge_when_merged_rows_cannot_be_deleted_then_the_next_one_deletes_them(
    void **state)
{
    (void)state;
    struct hps_space *space = open_space(open_store());
    load(space);
    uint32_t n_further = n_inner(space, 1);
    for (uint32_t i = 0; i < N_KEYS; i += 500) {
        assert_int_equal(write_some(space, 1, i, 500, 1, 2 + i / 500), HPS_OK);
    }
    uint32_t n_before = n_inner(space, 1);
    n_applies = 1; /* a part of the rows */
    assert_int_equal(merge_or_fail(space), HPS_OK);
    uint32_t n_left = n_inner(space, 1) - n_further;
    assert_true(n_left > 0 && n_left < n_before - n_further);
    assert_int_equal(base_of(space, 1)->n_changed * 2, n_left);
    check_all(space);
    assert_int_equal(merge(space, 1), HPS_OK);
    assert_int_equal(n_inner(space, 1), n_further);
    check_all(space);
    close_all(space);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_merge_when_read_written_and_scanned_then_no_row_is_old,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_merge_when_the_space_is_closed_then_it_ends, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(
            test_merge_when_a_table_is_always_due_then_another_is_merged_too, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_merge_when_it_waits_for_a_call_then_bases_are_mapped_and_others_merged, setup,
            teardown),
        cmocka_unit_test_setup_teardown(test_merge_when_few_bytes_have_changed_then_not_due, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(
            test_merge_when_its_record_cannot_be_written_then_the_old_base_stays, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_merge_when_merged_rows_cannot_be_deleted_then_the_next_one_deletes_them, setup,
            teardown),
    };
    return cmocka_run_group_tests_name("basefile_merge", tests, NULL, NULL);
}

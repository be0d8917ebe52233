/* SPDX-License-Identifier: Apache-2.0
 *
 * Units during updates: which lookups are torn, and that reading keys again makes them
 * consistent, checked against a dictionary. Updates come at chosen points, before a call of a
 * store. One thread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/dtype.h"
#include "cache/update/update.h"
#include "cache/version/stamps.h"
#include "tests/lib/lookup_fixture.h"

enum { KEYS = 6000, DUPLICATES = 500, SENT = KEYS + DUPLICATES, ABSENT = 255 };

struct unit_test {
    struct fixture fx;
    struct hps_arena *arena;
    struct hps_arena *scratch;
    uint8_t *rows;
    struct hps_lookup_part parts[FIXTURE_TABLES];
    struct hps_lookup lookup;
    struct hps_error err;
    hps_key keys[SENT];                       /* of every part: the last keys repeat the first */
    uint8_t generation[FIXTURE_TABLES][KEYS]; /* of the row of each key; ABSENT: no row */
    /* Runs when the walk checks for cancellation, before a call of a store. */
    void (*come)(struct unit_test *t);
    unsigned n_calls; /* checks before the first run of `come` */
    unsigned n_times;
    struct hps_metrics *registry;
    struct hps_table_metrics series[FIXTURE_TABLES];
};

/* ---- rows and updates ------------------------------------------------------------------------ */

static void stored_row(const struct unit_test *t, uint32_t table, hps_key key, uint8_t *row)
{
    fixture_row(&t->fx.tables[table], key + ((hps_key)t->generation[table][key] << 32), row);
}

static void store(struct unit_test *t, uint32_t tier, uint32_t table, hps_key key)
{
    const struct hps_call call = {0};
    struct hps_space *space = t->fx.version.tiers[tier];
    const struct hps_store_ops *ops = space->store->ops;
    uint8_t row[FIXTURE_DIM_MAX * 4];
    hps_status status;
    if (t->generation[table][key] == ABSENT) {
        status = ops->erase(space, &call, &t->fx.tables[table], &key, 1);
    } else {
        stored_row(t, table, key, row);
        status = ops->put(space, &call, &t->fx.tables[table], &key, row, 1);
    }
    assert_int_equal(status, HPS_OK);
}

/* Apply a batch of one key. */
static void update(struct unit_test *t, uint32_t table, hps_key key, uint8_t generation)
{
    struct hps_version *version = &t->fx.version;
    t->generation[table][key] = generation;
    hps_stamps_begin(version->stamps);
    hps_stamps_mark(version->stamps, table, &key, 1);
    store(t, FIXTURE_DISK, table, key);
    store(t, FIXTURE_HOST, table, key);
    hps_stamps_end(version->stamps);
}

/* Remove a row from the host tier. */
static void evict(struct unit_test *t, uint32_t table, hps_key key)
{
    const struct hps_call call = {0};
    struct hps_space *space = t->fx.version.tiers[FIXTURE_HOST];
    hps_status status = space->store->ops->erase(space, &call, &t->fx.tables[table], &key, 1);
    assert_int_equal(status, HPS_OK);
}

static bool on_call(const void *ctx)
{
    struct unit_test *t = (struct unit_test *)ctx;
    if (t->n_calls > 0) {
        t->n_calls--;
    } else if (t->n_times > 0) {
        t->n_times--;
        t->come(t);
    }
    return false;
}

/* ---- a lookup -------------------------------------------------------------------------------- */

static int setup(void **state)
{
    struct unit_test *t = hps_calloc(1, sizeof(*t));
    assert_non_null(t);
    fixture_open(&t->fx, 0);
    assert_int_equal(hps_update_open(&t->fx.version, &t->err), HPS_OK);
    t->arena = hps_arena_new(4096, 1 << 24);
    t->scratch = hps_arena_new(4096, 1 << 24);
    for (uint32_t table = 0; table < FIXTURE_TABLES; table++) {
        for (hps_key key = 0; key < KEYS; key++) {
            t->generation[table][key] = key % 5 == 4 ? ABSENT : 0;
            if (t->generation[table][key] == 0) {
                store(t, FIXTURE_DISK, table, key);
            }
            if (t->generation[table][key] == 0 && key % 2 == 0) {
                store(t, FIXTURE_HOST, table, key);
            }
        }
    }
    for (uint32_t i = 0; i < SENT; i++) {
        t->keys[i] = i < KEYS ? i : i - KEYS;
    }
    *state = t;
    return 0;
}

static int teardown(void **state)
{
    struct unit_test *t = *state;
    hps_clock_real();
    hps_free_aligned(t->rows);
    hps_arena_free(t->arena);
    hps_arena_free(t->scratch);
    hps_updates_free(t->fx.version.updates);
    hps_stamps_free(t->fx.version.stamps);
    hps_metrics_free(t->registry);
    fixture_close(&t->fx);
    hps_free(t);
    return 0;
}

/* Look up the first n keys of n_tables tables. */
static void begin(struct unit_test *t, uint32_t first_table, uint32_t n_tables, uint32_t n)
{
    for (uint32_t i = 0; i < n_tables; i++) {
        t->parts[i] = (struct hps_lookup_part){
            .table = &t->fx.tables[first_table + i], .keys = (const uint8_t *)t->keys, .n_keys = n};
    }
    t->lookup.version = &t->fx.version;
    t->lookup.arena = t->arena;
    t->lookup.scratch = t->scratch;
    t->lookup.parts = t->parts;
    t->lookup.n_parts = n_tables;
    t->lookup.set = NULL;
    t->lookup.set_size = 0;
    t->lookup.unit = true;
    t->lookup.cancelled = on_call;
    t->lookup.cancelled_ctx = t;
    hps_arena_reset(t->arena);
    hps_free_aligned(t->rows);
    assert_int_equal(hps_lookup_plan(&t->lookup, &t->err), HPS_OK);
    t->rows = hps_alloc_aligned(64, t->lookup.rows_bytes + 64);
    assert_non_null(t->rows);
    t->lookup.rows = t->rows;
}

static hps_status run(struct unit_test *t)
{
    bool done = false;
    hps_status status = hps_lookup_run_memory(&t->lookup, &done, &t->err);
    if (status == HPS_OK && !done) {
        status = hps_lookup_run_rest(&t->lookup, &t->err);
    }
    return status;
}

/* Run `come` at n_times checks, after n_before checks. */
static void let_come(struct unit_test *t, void (*come)(struct unit_test *t), unsigned n_before,
                     unsigned n_times)
{
    t->come = come;
    t->n_calls = n_before;
    t->n_times = n_times;
}

/* All rows and statuses equal the current ones. */
static void check(const struct unit_test *t)
{
    for (uint32_t p = 0; p < t->lookup.n_parts; p++) {
        const struct hps_lookup_part *part = &t->parts[p];
        const struct hps_table *table = part->table;
        enum hps_dtype output = t->lookup.output == 0 ? HPS_DTYPE_FP32 : t->lookup.output;
        uint32_t n_unknown = 0;
        for (uint32_t i = 0; i < part->n_keys; i++) {
            uint8_t stored[FIXTURE_DIM_MAX * 4], row[FIXTURE_DIM_MAX * 4];
            bool absent = t->generation[table->id][t->keys[i]] == ABSENT;
            if (absent) {
                memcpy(stored, table->default_row, table->row_bytes);
            } else {
                stored_row(t, table->id, t->keys[i], stored);
            }
            hps_row_convert(row, output, stored, table->dtype, table->dim);
            assert_memory_equal(part->rows + (size_t)i * part->row_bytes, row, part->row_bytes);
            int status = part->key_status == NULL ? HPS_KEY_FOUND : part->key_status[i];
            assert_int_equal(status, absent ? HPS_KEY_UNKNOWN : HPS_KEY_FOUND);
            n_unknown += absent ? 1 : 0;
        }
        assert_int_equal(part->n_unknown, n_unknown);
        assert_int_equal(part->key_status == NULL, n_unknown == 0);
        assert_int_equal(part->n_defaulted, 0);
    }
}

/* ---- torn or not ----------------------------------------------------------------------------- */

static void change_7(struct unit_test *t)
{
    update(t, 0, 7, (uint8_t)(t->generation[0][7] + 1));
}

static void test_unit_when_other_keys_are_updated_then_it_is_not_torn(void **state)
{
    struct unit_test *t = *state;
    let_come(t, change_7, 1, 1); /* before the read of the disk */
    begin(t, 0, 1, 7);
    assert_int_equal(run(t), HPS_OK);
    assert_int_equal(t->n_times, 0);
    check(t);
}

static void test_unit_when_its_key_is_updated_then_it_is_torn_and_reads_that_key_again(void **state)
{
    struct unit_test *t = *state;
    struct hps_store *host = t->fx.stores[FIXTURE_HOST];
    let_come(t, change_7, 1, 1); /* after a call of the host map that has key 7 */
    begin(t, 0, 1, SENT);
    assert_int_equal(run(t), HPS_ABORTED);
    assert_true(t->lookup.torn);
    assert_non_null(strstr(t->err.text, "arrived during the lookup"));
    uint64_t n_host = hps_fake_keys(host, HPS_FAKE_GET);
    assert_int_equal(hps_lookup_reread(&t->lookup, &t->err), HPS_OK);
    assert_false(t->lookup.torn);
    assert_int_equal(t->lookup.n_reread, 2); /* it was sent twice */
    assert_int_equal(hps_fake_keys(host, HPS_FAKE_GET) - n_host, 1);
    check(t);
}

static void begin_batch_of_7(struct unit_test *t)
{
    const hps_key key = 7;
    hps_stamps_begin(t->fx.version.stamps);
    hps_stamps_mark(t->fx.version.stamps, 0, &key, 1);
}

static void test_unit_when_a_batch_is_in_flight_then_torn_if_the_batch_has_its_keys(void **state)
{
    struct unit_test *t = *state;
    begin_batch_of_7(t);
    begin(t, 0, 1, 7);
    assert_int_equal(run(t), HPS_OK);
    begin(t, 0, 1, 8);
    assert_int_equal(run(t), HPS_ABORTED);
    assert_non_null(strstr(t->err.text, "in some tiers only"));
    uint64_t n_asked = hps_fake_calls(t->fx.stores[FIXTURE_HOST], HPS_FAKE_GET);
    assert_int_equal(hps_lookup_reread(&t->lookup, &t->err), HPS_ABORTED);
    assert_true(t->lookup.torn);
    assert_int_equal(hps_fake_calls(t->fx.stores[FIXTURE_HOST], HPS_FAKE_GET) - n_asked, 1);
    hps_stamps_end(t->fx.version.stamps);
    assert_int_equal(hps_lookup_reread(&t->lookup, &t->err), HPS_OK);
    check(t);
}

/* The host tier reads 2,000 keys in two calls. The first call has key 7, which the host tier
 * lacks. */
static void test_unit_when_its_key_got_a_default_row_then_an_update_does_not_tear_it(void **state)
{
    struct unit_test *t = *state;
    t->lookup.miss_policy = HPS_MISS_MEMORY_ONLY;
    let_come(t, change_7, 1, 1);
    begin(t, 0, 1, 2000);
    bool done = false;
    assert_int_equal(hps_lookup_run_memory(&t->lookup, &done, &t->err), HPS_OK);
    assert_true(done);
    assert_int_equal(t->n_times, 0);
    assert_int_equal(t->parts[0].key_status[7], HPS_KEY_DEFAULTED);
}

static void come_9(struct unit_test *t)
{
    update(t, 0, 9, 3);
}

static void test_unit_when_an_unknown_key_is_an_error_then_aborted_if_an_update_adds_it(
    void **state)
{
    struct unit_test *t = *state;
    t->lookup.unknown_policy = HPS_UNKNOWN_ERROR;
    let_come(t, change_7, 1, 1);
    begin(t, 0, 1, 10);
    assert_int_equal(run(t), HPS_NOT_FOUND); /* 4 and 9 are in no tier, torn or not */
    update(t, 0, 4, 0);
    let_come(t, come_9, 3, 1); /* after the disk was read for the first part, before the second */
    begin(t, 0, 2, 10);
    assert_int_equal(run(t), HPS_ABORTED);
    assert_false(t->lookup.torn); /* some rows are missing, not torn */
    hps_lookup_again(&t->lookup);
    t->generation[1][4] = t->generation[1][9] = 0;
    store(t, FIXTURE_DISK, 1, 4);
    store(t, FIXTURE_DISK, 1, 9);
    assert_int_equal(run(t), HPS_OK);
    check(t);
}

/* ---- read again ------------------------------------------------------------------------------ */

static void come_and_go(struct unit_test *t)
{
    for (uint32_t table = 0; table < FIXTURE_TABLES; table++) {
        for (hps_key key = table; key < KEYS; key += 1 + key % 7) {
            uint8_t now = t->generation[table][key];
            update(t, table, key, now == ABSENT ? 1 : key % 3 == 0 ? ABSENT : (uint8_t)(now + 1));
        }
    }
}

static void test_reread_when_many_keys_are_added_and_deleted_then_as_the_dictionary(void **state)
{
    struct unit_test *t = *state;
    static const enum hps_dtype outputs[] = {0, HPS_DTYPE_FP16, HPS_DTYPE_BF16};
    for (unsigned i = 0; i < 3; i++) {
        t->lookup.output = outputs[i];
        let_come(t, come_and_go, 7, 1);
        begin(t, 0, FIXTURE_TABLES, SENT);
        assert_int_equal(run(t), HPS_ABORTED);
        let_come(t, come_and_go, 2, 1); /* between two chunks of the reread */
        assert_int_equal(hps_lookup_reread(&t->lookup, &t->err), HPS_OK);
        assert_int_equal(t->n_times, 0);
        assert_true(t->lookup.n_reread > 3 * 4096);
        check(t);
    }
}

/* Both parts found all keys, so they have no status; then a key is deleted. */
static void delete_7(struct unit_test *t)
{
    update(t, 0, 7, ABSENT);
}

static void test_reread_when_the_first_key_becomes_unknown_then_the_part_has_a_status(void **state)
{
    struct unit_test *t = *state;
    update(t, 0, 4, 0);
    update(t, 1, 4, 0);
    let_come(t, delete_7, 3, 1);
    begin(t, 0, 2, 9);
    assert_int_equal(run(t), HPS_ABORTED);
    assert_null(t->parts[0].key_status);
    assert_int_equal(hps_lookup_reread(&t->lookup, &t->err), HPS_OK);
    assert_int_equal(t->parts[0].n_unknown, 1);
    assert_null(t->parts[1].key_status);
    check(t);
}

static void test_reread_when_each_read_meets_an_update_then_torn_until_updates_stop(void **state)
{
    struct unit_test *t = *state;
    let_come(t, change_7, 0, UINT32_MAX);
    begin(t, 0, 1, 9);
    assert_int_equal(run(t), HPS_ABORTED);
    uint64_t n_asked = hps_fake_calls(t->fx.stores[FIXTURE_HOST], HPS_FAKE_GET);
    assert_int_equal(hps_lookup_reread(&t->lookup, &t->err), HPS_ABORTED);
    assert_int_equal(hps_fake_calls(t->fx.stores[FIXTURE_HOST], HPS_FAKE_GET) - n_asked, 4);
    assert_true(t->lookup.torn);
    t->n_times = 0;
    assert_int_equal(hps_lookup_reread(&t->lookup, &t->err), HPS_OK);
    check(t);
}

static void change_7_unless_held(struct unit_test *t)
{
    if (hps_update_hold(&t->fx.version)) {
        hps_update_release(&t->fx.version);
        change_7(t);
    }
}

static void test_reread_when_updates_come_during_it_then_it_holds_them_and_succeeds(void **state)
{
    struct unit_test *t = *state;
    struct hps_store *host = t->fx.stores[FIXTURE_HOST];
    let_come(t, change_7_unless_held, 0, UINT32_MAX);
    begin(t, 0, 1, 9);
    assert_int_equal(run(t), HPS_ABORTED);
    uint64_t n_asked = hps_fake_calls(host, HPS_FAKE_GET);
    assert_int_equal(hps_lookup_reread(&t->lookup, &t->err), HPS_OK);
    assert_int_equal(hps_fake_calls(host, HPS_FAKE_GET) - n_asked, HPS_LOOKUP_REREADS_MAX);
    assert_true(hps_update_hold(&t->fx.version)); /* released again */
    check(t);
}

static void test_reread_when_another_lookup_holds_updates_then_it_cannot_and_is_torn(void **state)
{
    struct unit_test *t = *state;
    struct hps_store *host = t->fx.stores[FIXTURE_HOST];
    let_come(t, change_7, 0, UINT32_MAX);
    begin(t, 0, 1, 9);
    assert_int_equal(run(t), HPS_ABORTED);
    assert_true(hps_update_hold(&t->fx.version));
    uint64_t n_asked = hps_fake_calls(host, HPS_FAKE_GET);
    assert_int_equal(hps_lookup_reread(&t->lookup, &t->err), HPS_ABORTED);
    assert_int_equal(hps_fake_calls(host, HPS_FAKE_GET) - n_asked, HPS_LOOKUP_REREADS_MAX - 1);
    assert_true(t->lookup.torn);
    assert_false(hps_update_hold(&t->fx.version));
}

static void test_reread_when_rows_are_ahead_then_the_lookup_must_start_again(void **state)
{
    struct unit_test *t = *state;
    let_come(t, delete_7, 1, 1);
    begin(t, 0, 1, 9);
    assert_int_equal(run(t), HPS_ABORTED);
    hps_fake_fail(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET, HPS_ABORTED, 0, 1, 0);
    assert_int_equal(hps_lookup_reread(&t->lookup, &t->err), HPS_ABORTED);
    assert_true(t->lookup.ahead);
    assert_false(t->lookup.torn);
    hps_lookup_again(&t->lookup);
    assert_int_equal(run(t), HPS_OK);
    check(t);
}

static void test_reread_when_the_store_fails_then_its_status(void **state)
{
    struct unit_test *t = *state;
    let_come(t, delete_7, 1, 1);
    begin(t, 0, 1, 9);
    assert_int_equal(run(t), HPS_ABORTED);
    hps_fake_fail(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET, HPS_IO, 0, 1, 0);
    assert_int_equal(hps_lookup_reread(&t->lookup, &t->err), HPS_IO);
    assert_false(t->lookup.torn);
    assert_non_null(strstr(t->err.text, "rocksdb"));
}

static void come_7(struct unit_test *t)
{
    update(t, 0, 7, 5);
}

static void test_reread_when_the_only_unknown_key_is_added_then_the_part_has_no_status(void **state)
{
    struct unit_test *t = *state;
    update(t, 0, 4, 0);
    update(t, 1, 4, 0);
    update(t, 0, 7, ABSENT);
    let_come(t, come_7, 3, 1);
    begin(t, 0, 2, 9);
    assert_int_equal(run(t), HPS_ABORTED);
    assert_int_equal(t->parts[0].n_unknown, 1);
    assert_int_equal(hps_lookup_reread(&t->lookup, &t->err), HPS_OK);
    check(t);
}

/* Key 7 of the first part was found. An update deletes it before the second read. */
static void lose_7(struct unit_test *t)
{
    t->lookup.unknown_policy = HPS_UNKNOWN_ERROR;
    update(t, 0, 4, 0);
    update(t, 1, 4, 0);
    let_come(t, delete_7, 3, 1); /* after the disk was read for the first part */
    begin(t, 0, 2, 9);
    assert_int_equal(run(t), HPS_ABORTED);
    assert_true(t->lookup.torn);
}

static void test_reread_when_an_unknown_key_is_an_error_then_not_found(void **state)
{
    struct unit_test *t = *state;
    lose_7(t);
    assert_int_equal(hps_lookup_reread(&t->lookup, &t->err), HPS_NOT_FOUND);
    assert_false(t->lookup.torn);
}

static void test_reread_when_an_unknown_key_is_added_during_it_then_found(void **state)
{
    struct unit_test *t = *state;
    lose_7(t);
    update(t, 1, 7, 1);
    evict(t, 1, 7);
    let_come(t, come_7, 3, 1); /* after the disk was read for the first part */
    assert_int_equal(hps_lookup_reread(&t->lookup, &t->err), HPS_OK);
    check(t);
}

static void test_reread_when_the_wait_has_ended_then_a_default_row(void **state)
{
    struct unit_test *t = *state;
    hps_clock_fake(1000);
    t->lookup.miss_policy = HPS_MISS_WAIT;
    t->lookup.wait_us_max = 100;
    let_come(t, delete_7, 1, 1);
    begin(t, 0, 1, 9);
    assert_int_equal(run(t), HPS_ABORTED);
    hps_clock_advance(200);
    assert_int_equal(hps_lookup_reread(&t->lookup, &t->err), HPS_OK);
    assert_int_equal(t->parts[0].key_status[7], HPS_KEY_DEFAULTED);
    assert_int_equal(t->parts[0].n_defaulted, 1);
    assert_memory_equal(t->parts[0].rows + 7 * 16, t->fx.tables[0].default_row, 16);
}

/* ---- counted --------------------------------------------------------------------------------- */

static void open_series(struct unit_test *t)
{
    static const struct hps_metric_family_def family = {
        .name = "keys", .labels = "what,table", .type = HPS_METRIC_COUNTER};
    static const char *const tables[FIXTURE_TABLES] = {"0", "1", "2"};
    t->registry = hps_metrics_new(&family, 1, 100);
    for (uint32_t i = 0; i < FIXTURE_TABLES; i++) {
        struct hps_table_metrics *series = &t->series[i];
        struct hps_metric **const all[] = {&series->keys_found, &series->keys_defaulted,
                                           &series->keys_unknown, &series->unique_keys};
        static const char *const names[] = {"found", "defaulted", "unknown", "unique"};
        for (unsigned k = 0; k < 4; k++) {
            const char *const values[] = {names[k], tables[i]};
            *all[k] = hps_metric_get(t->registry, 0, values);
        }
    }
    t->fx.version.metrics = t->series;
}

static void test_reread_when_it_succeeds_then_keys_are_counted_once(void **state)
{
    struct unit_test *t = *state;
    open_series(t);
    let_come(t, delete_7, 1, 1);
    begin(t, 0, 1, 9);
    assert_int_equal(run(t), HPS_ABORTED);
    assert_true(hps_metric_value(t->series[0].unique_keys) == 0);
    assert_int_equal(hps_lookup_reread(&t->lookup, &t->err), HPS_OK);
    assert_true(hps_metric_value(t->series[0].unique_keys) == 9);
    assert_true(hps_metric_value(t->series[0].keys_found) == 7);
    assert_true(hps_metric_value(t->series[0].keys_unknown) == 2);
}

int main(void)
{
#define UNIT_TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        UNIT_TEST(test_unit_when_other_keys_are_updated_then_it_is_not_torn),
        UNIT_TEST(test_unit_when_its_key_is_updated_then_it_is_torn_and_reads_that_key_again),
        UNIT_TEST(test_unit_when_a_batch_is_in_flight_then_torn_if_the_batch_has_its_keys),
        UNIT_TEST(test_unit_when_its_key_got_a_default_row_then_an_update_does_not_tear_it),
        UNIT_TEST(test_unit_when_an_unknown_key_is_an_error_then_aborted_if_an_update_adds_it),
        UNIT_TEST(test_reread_when_many_keys_are_added_and_deleted_then_as_the_dictionary),
        UNIT_TEST(test_reread_when_the_first_key_becomes_unknown_then_the_part_has_a_status),
        UNIT_TEST(test_reread_when_the_only_unknown_key_is_added_then_the_part_has_no_status),
        UNIT_TEST(test_reread_when_each_read_meets_an_update_then_torn_until_updates_stop),
        UNIT_TEST(test_reread_when_updates_come_during_it_then_it_holds_them_and_succeeds),
        UNIT_TEST(test_reread_when_another_lookup_holds_updates_then_it_cannot_and_is_torn),
        UNIT_TEST(test_reread_when_rows_are_ahead_then_the_lookup_must_start_again),
        UNIT_TEST(test_reread_when_the_store_fails_then_its_status),
        UNIT_TEST(test_reread_when_an_unknown_key_is_an_error_then_not_found),
        UNIT_TEST(test_reread_when_an_unknown_key_is_added_during_it_then_found),
        UNIT_TEST(test_reread_when_the_wait_has_ended_then_a_default_row),
        UNIT_TEST(test_reread_when_it_succeeds_then_keys_are_counted_once),
    };
    return cmocka_run_group_tests_name("lookup_unit", tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Update batches: refused batches, the rows that each tier gets, publication, and the state
 * after a tier fails.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "backends/host/map.h"
#include "base/assert.h"
#include "base/heap.h"
#include "cache/lookup/lookup.h"
#include "cache/update/update.h"
#include "cache/version/absent.h"
#include "tests/lib/fake_store.h"

enum { DIM = 4, ROW_BYTES = 4 * DIM, ODD_DIM = 3, ODD_BYTES = ODD_DIM + 4, N_KEYS = 8 };

struct update_test {
    struct hps_store *stores[2]; /* top to bottom */
    uint32_t n_stores;
    struct hps_version *version;
    struct hps_metrics *metrics;
    struct hps_error err;
    struct hps_update_part parts[4];
    struct hps_update_batch batch;
};

static const struct hps_call no_limit = {0};

/* ---- versions -------------------------------------------------------------------------------- */

static void fill_tables(struct hps_version *version)
{
    static const struct hps_table tables[2] = {
        {.name = "a", .id = 0, .dim = DIM, .row_bytes = ROW_BYTES, .dtype = HPS_DTYPE_FP32},
        {.name = "b",
         .id = 1,
         .dim = ODD_DIM,
         .row_bytes = ODD_BYTES,
         .dtype = HPS_DTYPE_INT8_ROWWISE_F16},
    };
    memcpy(version->tables, tables, sizeof(tables));
    version->tables[0].name = hps_strdup("a");
    version->tables[1].name = hps_strdup("b");
    version->tables[0].default_row = hps_calloc(1, ROW_BYTES);
    version->tables[1].default_row = hps_calloc(1, ROW_BYTES);
}

static struct hps_version *version_open(struct update_test *t, int64_t number)
{
    struct hps_version *version = hps_version_new("m", number, 2);
    assert_non_null(version);
    fill_tables(version);
    const struct hps_space_id id = {"m", number, version->tables, 2, 0};
    for (uint32_t i = 0; i < t->n_stores; i++) {
        assert_int_equal(
            t->stores[i]->ops->space_open(t->stores[i], &id, &version->tiers[i], &t->err), HPS_OK);
        version->n_tiers++;
    }
    hps_version_pin(version);
    return version;
}

static void version_close(struct hps_version *version)
{
    for (uint32_t i = 0; i < version->n_tiers; i++) {
        version->tiers[i]->store->ops->space_close(version->tiers[i]);
    }
    hps_version_unpin(version);
    hps_version_free(version);
}

/* The tiers of a version: a host tier of host_bytes (0: unlimited), fake or the real map, above
 * a durable store or without a store. */
struct tiers {
    uint64_t host_bytes;
    bool map;
    bool durable;
};
static struct tiers both = {0, false, true};
static struct tiers small_host = {2 * ROW_BYTES, false, true};
static struct tiers memory = {4 * ROW_BYTES, false, false}; /* four rows of table a */
static struct tiers host_map = {1 << 18, true, false};
static struct tiers host_map_above = {1 << 18, true, true};

/* cmocka's setup of a test with the tiers in *state. */
static int setup(void **state)
{
    const struct tiers *tiers = *state;
    const struct hps_fake_options host = {
        .name = "host", .tier = HPS_TIER_HOST, .bytes_max = tiers->host_bytes};
    const struct hps_fake_options disk = {.name = "rocksdb",
                                          .tier = HPS_TIER_ROCKSDB,
                                          .caps = HPS_STORE_DURABLE | HPS_STORE_BLOCKING};
    struct update_test *t = hps_calloc(1, sizeof(*t));
    if (tiers->map) {
        assert_int_equal(hps_host_map_open(tiers->host_bytes, &t->stores[0], &t->err), HPS_OK);
    } else {
        t->stores[0] = hps_fake_store_new(&host);
    }
    t->stores[1] = tiers->durable ? hps_fake_store_new(&disk) : NULL;
    t->n_stores = tiers->durable ? 2 : 1;
    t->version = version_open(t, 1);
    assert_int_equal(hps_update_open(t->version, &t->err), HPS_OK);
    t->batch.parts = t->parts;
    *state = t;
    return 0;
}

static int teardown(void **state)
{
    struct update_test *t = *state;
    version_close(t->version);
    for (uint32_t i = 0; i < t->n_stores; i++) {
        t->stores[i]->ops->close(t->stores[i]);
    }
    hps_metrics_free(t->metrics);
    hps_free(t);
    return 0;
}

/* ---- batches --------------------------------------------------------------------------------- */

static hps_key part_keys[4][N_KEYS];
static float part_rows[4][N_KEYS][DIM];

/* A part of table a for keys first, first + 1, …: rows of `value`, or deletes if it is 0. */
static void add_part(struct update_test *t, hps_key first, uint32_t n, float value)
{
    uint32_t p = t->batch.n_parts++;
    for (uint32_t i = 0; i < n; i++) {
        part_keys[p][i] = first + i;
        for (uint32_t d = 0; d < DIM; d++) {
            part_rows[p][i][d] = value;
        }
    }
    t->parts[p] = (struct hps_update_part){.table_id = 0,
                                           .row_bytes = ROW_BYTES,
                                           .n = n,
                                           .keys = part_keys[p],
                                           .rows = value == 0 ? NULL : (uint8_t *)part_rows[p]};
}

static hps_status apply(struct update_test *t)
{
    return hps_update_apply(t->version, &t->batch, &t->err);
}

static void apply_one(struct update_test *t, hps_key first, uint32_t n, float value)
{
    t->batch.n_parts = 0;
    add_part(t, first, n, value);
    assert_int_equal(apply(t), HPS_OK);
    t->batch.n_parts = 0;
}

/* Value of the row of a key of table a in a tier; 0: no row. */
static float row_in(struct hps_version *version, uint32_t tier, hps_key key)
{
    float row[DIM] = {0};
    uint32_t slot = 0;
    struct hps_space *space = version->tiers[tier];
    struct hps_batch batch = {.keys = &key, .slots = &slot, .rows = (uint8_t *)row, .n = 1};
    assert_int_equal(space->store->ops->get(space, &no_limit, &version->tables[0], &batch), HPS_OK);
    for (uint32_t d = 1; d < DIM; d++) {
        assert_true(row[d] == row[0]);
    }
    return row[0];
}

static void check(struct update_test *t, hps_key key, float expected)
{
    for (uint32_t tier = 0; tier < t->n_stores; tier++) {
        assert_true(row_in(t->version, tier, key) == expected);
    }
}

struct listed {
    char text[256];
};

static hps_status list(void *ctx, const void *key, size_t key_size, const void *value,
                       size_t value_size)
{
    struct listed *listed = ctx;
    size_t used = strlen(listed->text);
    snprintf(listed->text + used, sizeof(listed->text) - used, "%.*s=%.*s;", (int)key_size,
             (const char *)key, (int)value_size, (const char *)value);
    return HPS_OK;
}

static void check_positions(struct hps_version *version, const char *expected)
{
    struct listed listed = {""};
    assert_int_equal(hps_update_positions(version, list, &listed), HPS_OK);
    assert_string_equal(listed.text, expected);
}

/* ---- applied batches ------------------------------------------------------------------------- */

static void test_batch_when_applied_then_every_tier_has_rows_and_lacks_deleted_keys(void **state)
{
    struct update_test *t = *state;
    apply_one(t, 1, 4, 1);
    add_part(t, 2, 2, 5);
    add_part(t, 4, 1, 0);
    assert_int_equal(apply(t), HPS_OK);
    check(t, 1, 1);
    check(t, 2, 5);
    check(t, 3, 5);
    check(t, 4, 0);
    assert_int_equal(hps_update_sequence(t->version), 2);
    assert_int_equal(hps_fake_calls(t->stores[1], HPS_FAKE_APPLY), 2); /* one write per batch */
}

/* A part of table b with unaligned rows. */
static void add_odd(struct update_test *t, const hps_key *keys, const uint8_t *rows, uint32_t n)
{
    t->parts[t->batch.n_parts++] = (struct hps_update_part){
        .table_id = 1, .n = n, .row_bytes = ODD_BYTES, .keys = keys, .rows = rows};
}

static void check_odd(struct update_test *t, hps_key key, const uint8_t *row)
{
    for (uint32_t tier = 0; tier < t->n_stores; tier++) {
        uint8_t found[ODD_BYTES];
        uint32_t slot = 0;
        hps_key asked = key;
        struct hps_batch batch = {.keys = &asked, .slots = &slot, .rows = found, .n = 1};
        struct hps_space *space = t->version->tiers[tier];
        assert_int_equal(space->store->ops->get(space, &no_limit, &t->version->tables[1], &batch),
                         HPS_OK);
        assert_int_equal(batch.n, 0);
        assert_memory_equal(found, row, ODD_BYTES);
    }
}

/* Four rows: u8 values, then scale and bias. */
static const uint8_t ODD_ROWS[4][ODD_BYTES] = {{1, 2, 3, 0, 0x3c, 0, 0},
                                               {4, 5, 6, 7, 0x38, 8, 0xb9},
                                               {10, 20, 30, 40, 0x35, 50, 0x36},
                                               {255, 0, 255, 1, 0, 2, 0x80}};
static const hps_key ODD_KEYS[4] = {1, 2, 1, 3};

static void test_batch_when_of_two_tables_then_keys_are_not_mixed_up(void **state)
{
    struct update_test *t = *state;
    add_part(t, 1, 1, 9);
    add_odd(t, ODD_KEYS, ODD_ROWS[0], 4); /* the later row of key 1 counts */
    assert_int_equal(apply(t), HPS_OK);
    check(t, 1, 9);
    check_odd(t, 1, ODD_ROWS[2]);
    check_odd(t, 2, ODD_ROWS[1]);
    check_odd(t, 3, ODD_ROWS[3]);
}

static void test_batch_when_keys_repeat_then_the_last_write_counts(void **state)
{
    struct update_test *t = *state;
    add_part(t, 1, 5, 1);
    add_part(t, 2, 1, 0); /* 2: put, deleted, put */
    add_part(t, 3, 2, 0); /* 3 and 4: put, deleted */
    add_part(t, 2, 1, 7);
    part_keys[0][4] = 1; /* 1: twice in one part */
    part_rows[0][4][0] = part_rows[0][4][1] = part_rows[0][4][2] = part_rows[0][4][3] = 6;
    assert_int_equal(apply(t), HPS_OK);
    check(t, 1, 6);
    check(t, 2, 7);
    check(t, 3, 0);
    check(t, 4, 0);
    assert_int_equal(hps_fake_keys(t->stores[0], HPS_FAKE_PUT), 2);
    assert_int_equal(hps_fake_keys(t->stores[0], HPS_FAKE_ERASE), 2);
}

static void test_batch_when_empty_then_positions_advance(void **state)
{
    struct update_test *t = *state;
    const struct hps_record position = {"p0", 2, "17", 2};
    t->batch.positions = &position;
    t->batch.n_positions = 1;
    assert_int_equal(apply(t), HPS_OK);
    check_positions(t->version, "p0=17;");
    assert_int_equal(hps_update_sequence(t->version), 1);
}

static void test_batch_when_applied_then_rows_are_counted_by_op(void **state)
{
    static const struct hps_metric_family_def family = {"update_rows_total", "op",
                                                        HPS_METRIC_COUNTER, "Rows."};
    struct update_test *t = *state;
    const char *put = "put";
    const char *deleted = "delete";
    t->metrics = hps_metrics_new(&family, 1, 16);
    t->version->update_rows_put = hps_metric_get(t->metrics, 0, &put);
    t->version->update_rows_deleted = hps_metric_get(t->metrics, 0, &deleted);
    add_part(t, 1, 4, 1);
    add_part(t, 3, 1, 0);
    assert_int_equal(apply(t), HPS_OK);
    assert_true(hps_metric_value(t->version->update_rows_put) == 3);
    assert_true(hps_metric_value(t->version->update_rows_deleted) == 1);
}

static void test_batch_when_it_has_a_key_known_to_be_absent_then_the_key_is_no_longer(void **state)
{
    struct update_test *t = *state;
    const hps_key keys[2] = {1, 2};
    hps_absent_add(t->version->absent, 0, keys, 2, NULL);
    assert_true(hps_absent_has(t->version->absent, 0, 1));
    apply_one(t, 1, 1, 1);
    assert_false(hps_absent_has(t->version->absent, 0, 1));
    assert_true(hps_absent_has(t->version->absent, 0, 2));
}

/* ---- refused batches ------------------------------------------------------------------------- */

static void check_refused(struct update_test *t, hps_status expected, const char *text)
{
    uint64_t clock = hps_stamps_now(t->version->stamps);
    uint64_t sequence = hps_update_sequence(t->version);
    assert_int_equal(apply(t), expected);
    assert_non_null(strstr(t->err.text, text));
    assert_int_equal(hps_fake_calls(t->stores[1], HPS_FAKE_APPLY), 0);
    assert_int_equal(hps_fake_calls(t->stores[0], HPS_FAKE_PUT), 0);
    assert_int_equal(hps_update_sequence(t->version), sequence);
    assert_int_equal(hps_stamps_now(t->version->stamps), clock);
    check(t, 1, 0);
}

static void test_batch_when_one_part_is_bad_then_no_part_is_applied(void **state)
{
    struct update_test *t = *state;
    add_part(t, 1, 2, 1);
    add_part(t, 5, 2, 1);
    t->parts[1].row_bytes = 12;
    check_refused(t, HPS_INVALID, "table 'a': rows of 12 bytes, expected 16 (dim 4)");
    t->parts[1].row_bytes = ROW_BYTES;
    t->parts[1].table_id = 2;
    check_refused(t, HPS_INVALID, "table 2: model \"m\" has 2");
    t->parts[1].table_id = 0;
    part_rows[1][1][3] = 1.0f / 0.0f;
    check_refused(t, HPS_INVALID, "table 'a': NaN or Inf in the row of key 6, value 3");
    part_rows[1][1][3] = 1;
    uint8_t odd[ODD_BYTES] = {0, 0, 0, 0, 0x3c, 0, 0xfc};
    add_odd(t, ODD_KEYS, odd, 1);
    check_refused(t, HPS_INVALID, "table 'b': NaN or Inf in the row of key 1, bias");
    t->batch.nan_allowed = true;
    assert_int_equal(apply(t), HPS_OK);
}

static void test_batch_when_a_position_has_too_long_a_key_then_refused(void **state)
{
    struct update_test *t = *state;
    static const char key[HPS_RECORD_KEY_BYTES_MAX];
    const struct hps_record position = {key, sizeof(key), "1", 1};
    add_part(t, 1, 1, 1);
    t->batch.positions = &position;
    t->batch.n_positions = 1;
    check_refused(t, HPS_INVALID, "a key of 1024 bytes");
}

static void test_batch_when_lowest_tier_takes_no_updates_then_precondition(void **state)
{
    struct update_test *t = *state;
    struct hps_store_ops ops = *t->stores[1]->ops;
    const struct hps_store_ops *own = t->stores[1]->ops;
    ops.durable = NULL;
    t->stores[1]->ops = &ops;
    add_part(t, 1, 1, 1);
    check_refused(t, HPS_PRECONDITION, "tier rocksdb takes no updates");
    t->stores[1]->ops = own;
}

static jmp_buf after_assert;

static void on_assert(const char *expr, const char *file, int line)
{
    (void)expr;
    (void)file;
    (void)line;
    longjmp(after_assert, 1);
}

static void test_batch_when_version_is_not_pinned_then_assert(void **state)
{
    struct update_test *t = *state;
    hps_version_unpin(t->version);
    hps_assert_hook(on_assert);
    bool asserted = setjmp(after_assert) != 0;
    if (!asserted) {
        hps_ignore(apply(t)); /* must not return */
    }
    hps_assert_hook(NULL);
    assert_true(asserted);
    hps_version_pin(t->version);
}

/* ---- tiers that fail ------------------------------------------------------------------------- */

static void test_durable_store_when_it_fails_then_nothing_has_changed_and_a_retry_works(
    void **state)
{
    struct update_test *t = *state;
    const struct hps_record before = {"p", 1, "1", 1};
    const struct hps_record after = {"p", 1, "2", 1};
    t->batch.positions = &before;
    t->batch.n_positions = 1;
    apply_one(t, 1, 2, 1);
    hps_fake_fail(t->stores[1], HPS_FAKE_APPLY, HPS_EXHAUSTED, 0, 1, 0);
    add_part(t, 1, 1, 2);
    add_part(t, 2, 1, 0);
    t->batch.positions = &after;
    assert_int_equal(apply(t), HPS_EXHAUSTED);
    check(t, 1, 1);
    check(t, 2, 1);
    check_positions(t->version, "p=1;");
    assert_int_equal(hps_update_sequence(t->version), 1);
    assert_int_equal(hps_stamps_now(t->version->stamps) % 2, 0);
    assert_int_equal(apply(t), HPS_OK);
    check(t, 1, 2);
    check(t, 2, 0);
    check_positions(t->version, "p=2;");
    assert_int_equal(hps_update_sequence(t->version), 2);
}

static void test_host_map_when_it_is_full_then_lacks_the_key_and_is_not_complete(void **state)
{
    struct update_test *t = *state;
    apply_one(t, 1, 2, 1);
    t->version->host_complete = true;
    apply_one(t, 1, 2, 2); /* replaced in place */
    assert_true(hps_version_host_complete(t->version));
    apply_one(t, 1, 3, 3);
    assert_true(row_in(t->version, 1, 3) == 3);
    assert_true(row_in(t->version, 0, 3) == 0);
    assert_true(row_in(t->version, 0, 1) == 3);
    assert_false(hps_version_host_complete(t->version));
    assert_int_equal(hps_update_sequence(t->version), 3);
}

static void test_host_map_when_a_put_fails_then_it_has_no_old_rows(void **state)
{
    struct update_test *t = *state;
    apply_one(t, 1, 3, 1);
    hps_fake_fail(t->stores[0], HPS_FAKE_PUT, HPS_NO_MEMORY, 0, 1, 1);
    apply_one(t, 1, 3, 2);
    for (hps_key key = 1; key <= 3; key++) {
        assert_true(row_in(t->version, 0, key) == 0);
        assert_true(row_in(t->version, 1, key) == 2);
    }
    assert_int_equal(hps_update_sequence(t->version), 2);
}

static void test_host_map_when_old_rows_cannot_be_erased_then_batch_is_not_published(void **state)
{
    struct update_test *t = *state;
    apply_one(t, 1, 1, 1);
    hps_fake_fail(t->stores[0], HPS_FAKE_PUT, HPS_UNAVAILABLE, 0, 1, 0);
    hps_fake_fail(t->stores[0], HPS_FAKE_ERASE, HPS_UNAVAILABLE, 0, 1, 0);
    add_part(t, 1, 1, 2);
    assert_int_equal(apply(t), HPS_UNAVAILABLE);
    assert_non_null(strstr(t->err.text, "table 'a': tier host may have old rows"));
    assert_int_equal(hps_update_sequence(t->version), 1);
    assert_int_equal(apply(t), HPS_OK);
    check(t, 1, 2);
    assert_int_equal(hps_update_sequence(t->version), 2);
}

/* ---- a host map without a store below it ----------------------------------------------------- */

static void test_memory_when_batch_fits_then_is_applied(void **state)
{
    struct update_test *t = *state;
    const struct hps_record position = {"p", 1, "1", 1};
    t->batch.positions = &position;
    t->batch.n_positions = 1;
    apply_one(t, 1, 3, 1);
    add_part(t, 2, 3, 2); /* 2 and 3 replaced, 4 new */
    add_part(t, 1, 1, 0);
    add_part(t, 3, 1, 0);
    add_part(t, 9, 1, 0); /* no such row */
    assert_int_equal(apply(t), HPS_OK);
    check(t, 1, 0);
    check(t, 2, 2);
    check(t, 3, 0);
    check(t, 4, 2);
    check_positions(t->version, "p=1;");
    assert_int_equal(hps_update_sequence(t->version), 2);
}

static void test_memory_when_the_batch_does_not_fit_then_every_key_has_its_old_row(void **state)
{
    struct update_test *t = *state;
    apply_one(t, 1, 3, 1);
    add_part(t, 1, 1, 0);
    add_part(t, 2, 4, 2); /* 2 and 3 replaced, 4 fits, 5 does not */
    assert_int_equal(apply(t), HPS_EXHAUSTED);
    assert_non_null(strstr(t->err.text, "tier host applied nothing of a batch of 4 rows"));
    for (hps_key key = 1; key <= 3; key++) {
        check(t, key, 1);
    }
    check(t, 4, 0);
    check(t, 5, 0);
    assert_int_equal(hps_fake_calls(t->stores[0], HPS_FAKE_PUT), 0); /* unchanged */
    assert_int_equal(hps_update_sequence(t->version), 1);
    check_positions(t->version, "");
}

static void test_memory_when_a_put_fails_midway_then_every_key_has_its_old_row(void **state)
{
    struct update_test *t = *state;
    apply_one(t, 1, 3, 1);
    hps_fake_fail(t->stores[0], HPS_FAKE_PUT, HPS_EXHAUSTED, 1, 3, 1);
    add_part(t, 1, 1, 2);
    add_part(t, 2, 3, 2); /* fails after its first key; the fake then erases the keys of the call */
    add_part(t, 3, 1, 0);
    assert_int_equal(apply(t), HPS_EXHAUSTED);
    for (hps_key key = 1; key <= 3; key++) {
        check(t, key, 1);
    }
    check(t, 4, 0);
    assert_int_equal(apply(t), HPS_OK);
    check(t, 1, 2);
    check(t, 2, 2);
    check(t, 3, 0);
    check(t, 4, 2);
}

static void test_memory_when_a_put_of_odd_rows_fails_then_every_key_has_its_old_row(void **state)
{
    struct update_test *t = *state;
    add_odd(t, ODD_KEYS + 1, ODD_ROWS[0], 3);
    assert_int_equal(apply(t), HPS_OK);
    t->batch.n_parts = 0;
    hps_fake_fail(t->stores[0], HPS_FAKE_PUT, HPS_EXHAUSTED, 0, 1, 1);
    add_odd(t, ODD_KEYS + 1, ODD_ROWS[1], 3);
    assert_int_equal(apply(t), HPS_EXHAUSTED);
    check_odd(t, 2, ODD_ROWS[0]);
    check_odd(t, 1, ODD_ROWS[1]);
    check_odd(t, 3, ODD_ROWS[2]);
}

static void test_memory_when_old_rows_cannot_be_restored_then_data_loss(void **state)
{
    struct update_test *t = *state;
    apply_one(t, 1, 2, 1);
    hps_fake_fail(t->stores[0], HPS_FAKE_PUT, HPS_EXHAUSTED, 0, UINT32_MAX, 0);
    add_part(t, 1, 2, 2);
    assert_int_equal(apply(t), HPS_DATA_LOSS);
    assert_int_equal(hps_update_sequence(t->version), 1);
}

enum { MANY = 500 };

/* Apply rows of `value` for keys first, first + 1, … of table a, or deletes if it is 0. */
static hps_status apply_many(struct update_test *t, hps_key first, float value)
{
    static hps_key keys[MANY];
    static float rows[MANY][DIM];
    for (uint32_t i = 0; i < MANY; i++) {
        keys[i] = first + i;
        for (uint32_t d = 0; d < DIM; d++) {
            rows[i][d] = value;
        }
    }
    t->parts[0] = (struct hps_update_part){.row_bytes = ROW_BYTES,
                                           .n = MANY,
                                           .keys = keys,
                                           .rows = value == 0 ? NULL : (const uint8_t *)rows};
    t->batch.n_parts = 1;
    return apply(t);
}

static void check_many(struct update_test *t, uint32_t n_batches, float value)
{
    for (hps_key key = 0; key < (hps_key)n_batches * MANY; key++) {
        check(t, key, value);
    }
}

static void test_host_map_alone_when_it_is_full_then_has_every_batch_but_the_refused_one(
    void **state)
{
    struct update_test *t = *state;
    uint32_t n = 0;
    hps_status status = HPS_OK;
    while (status == HPS_OK) {
        status = apply_many(t, (hps_key)n * MANY, 1);
        n += status == HPS_OK ? 1 : 0;
        assert_true(n < 100);
    }
    assert_int_equal(status, HPS_EXHAUSTED);
    assert_int_equal(hps_update_sequence(t->version), n);
    check_many(t, n, 1);
    assert_int_equal(apply_many(t, (hps_key)n * MANY - MANY / 2, 2), HPS_EXHAUSTED);
    check_many(t, n, 1); /* the refused batch would have replaced half of these rows */
    for (hps_key key = (hps_key)n * MANY; key < (hps_key)(n + 1) * MANY; key++) {
        check(t, key, 0);
    }
    for (uint32_t b = 0; b < n; b++) { /* a full map can replace rows */
        assert_int_equal(apply_many(t, (hps_key)b * MANY, 3), HPS_OK);
    }
    check_many(t, n, 3);
    assert_int_equal(apply_many(t, 0, 0), HPS_OK); /* deletes free memory */
    assert_int_equal(apply_many(t, (hps_key)n * MANY, 3), HPS_OK);
}

/* The old rows that a reader still uses take the memory that the batch needs. Replaced rows stay
 * replaced, the rest follows when the reader has left, and no row is lost. */
static void test_host_map_alone_when_a_reader_stays_then_the_batch_resumes_later(void **state)
{
    struct update_test *t = *state;
    uint32_t n = 0;
    while (apply_many(t, (hps_key)n * MANY, 1) == HPS_OK) {
        n++;
        assert_true(n < 100);
    }
    struct hps_epoch *epoch = hps_host_map_epoch(t->stores[0]);
    struct hps_epoch_slot *slot = hps_epoch_enter(epoch);
    hps_status status = HPS_OK;
    uint32_t b = 0;
    for (; status == HPS_OK; b += status == HPS_OK ? 1 : 0) {
        status = apply_many(t, (hps_key)(b % n) * MANY, (float)(2 + b));
        assert_true(b < 1000);
    }
    for (unsigned i = 0; i < 3; i++) {
        status = apply_many(t, (hps_key)(b % n) * MANY, (float)(2 + b));
        assert_int_equal(status, HPS_EXHAUSTED); /* refused until the reader leaves */
        assert_non_null(strstr(t->err.text, "waits for readers before the rest"));
    }
    assert_int_not_equal(hps_stamps_now(t->version->stamps) % 2, 0);
    for (hps_key key = 0; key < (hps_key)n * MANY; key++) {
        assert_true(row_in(t->version, 0, key) != 0);
    }
    hps_epoch_leave(epoch, slot);
    assert_int_equal(apply_many(t, (hps_key)(b % n) * MANY, (float)(2 + b)), HPS_OK);
    assert_int_equal(hps_stamps_now(t->version->stamps) % 2, 0);
    for (hps_key key = (hps_key)(b % n) * MANY; key < (hps_key)(b % n + 1) * MANY; key++) {
        check(t, key, (float)(2 + b));
    }
}

/* A map without eviction keeps the old row of a key if the new row does not fit. The store below
 * has the new row already, so the old row must be removed. */
static void test_host_map_above_a_store_when_it_refuses_rows_then_has_no_old_ones(void **state)
{
    struct update_test *t = *state;
    assert_int_equal(apply_many(t, 0, 1), HPS_OK);
    check_many(t, 1, 1);
    struct hps_epoch *epoch = hps_host_map_epoch(t->stores[0]);
    struct hps_epoch_slot *slot = hps_epoch_enter(epoch); /* frees no rows before the leave */
    uint32_t n_missing = 0;
    float value = 1;
    for (uint32_t i = 0; i < 1000 && n_missing == 0; i++) {
        value++;
        assert_int_equal(apply_many(t, 0, value), HPS_OK);
        for (hps_key key = 0; key < MANY; key++) {
            float row = row_in(t->version, 0, key);
            assert_true(row == value || row == 0);
            n_missing += row == 0 ? 1 : 0;
            assert_true(row_in(t->version, 1, key) == value);
        }
    }
    hps_epoch_leave(epoch, slot);
    assert_true(n_missing > 0);
    assert_true(atomic_load(&t->version->tiers[0]->incomplete));
}

/* ---- restarts -------------------------------------------------------------------------------- */

static void test_version_when_opened_again_then_it_has_its_positions_and_sequence(void **state)
{
    struct update_test *t = *state;
    const struct hps_record positions[2] = {{"p0", 2, "10", 2}, {"p1", 2, "20", 2}};
    const struct hps_record later = {"p0", 2, "11", 2};
    t->batch.positions = positions;
    t->batch.n_positions = 2;
    apply_one(t, 1, 1, 1);
    t->batch.positions = &later;
    t->batch.n_positions = 1;
    apply_one(t, 1, 1, 2);
    check_positions(t->version, "p0=11;p1=20;");
    version_close(t->version);
    t->version = version_open(t, 1);
    assert_int_equal(hps_update_open(t->version, &t->err), HPS_OK);
    assert_int_equal(hps_update_sequence(t->version), 2);
    check_positions(t->version, "p0=11;p1=20;");
    struct hps_version *other = version_open(t, 2);
    assert_int_equal(hps_update_open(other, &t->err), HPS_OK);
    assert_int_equal(hps_update_sequence(other), 0);
    check_positions(other, "");
    version_close(other);
}

static void test_version_when_its_sequence_is_damaged_then_data_loss(void **state)
{
    struct update_test *t = *state;
    const struct hps_record damaged = {"update/sequence", 15, "123", 3};
    struct hps_version *other = version_open(t, 2);
    assert_int_equal(other->tiers[1]->store->ops->durable->apply(other->tiers[1], &no_limit, NULL,
                                                                 0, &damaged, 1, &t->err),
                     HPS_OK);
    assert_int_equal(hps_update_open(other, &t->err), HPS_DATA_LOSS);
    assert_non_null(strstr(t->err.text, "\"update/sequence\" has 3 bytes, expected 8"));
    version_close(other);
}

static void test_version_when_never_opened_for_updates_then_has_none(void **state)
{
    struct update_test *t = *state;
    struct hps_version *other = version_open(t, 2);
    assert_int_equal(hps_update_sequence(other), 0);
    check_positions(other, "");
    version_close(other);
}

/* ---- insertions from below ------------------------------------------------------------------- */

/* Insert row 1 of key 1, read from below at `since`, into the host map. True: the map has it
 * now. */
static bool insert_old(struct update_test *t, uint64_t since, bool guarded)
{
    const hps_key key = 1;
    const uint32_t slot = 0;
    const float row[DIM] = {1, 1, 1, 1};
    const struct hps_stamp_guard keys = {t->version->stamps, &key, 0, since};
    const struct hps_insert_guard guard = {hps_stamp_guard_fresh, &keys};
    struct hps_insert_report report;
    struct hps_space *host = t->version->tiers[0];
    assert_int_equal(host->store->ops->insert(host, &no_limit, &t->version->tables[0], &key, &slot,
                                              (const uint8_t *)row, 1, guarded ? &guard : NULL,
                                              &report),
                     HPS_OK);
    return report.n_inserted == 1;
}

static void evict(struct update_test *t, hps_key key)
{
    struct hps_space *host = t->version->tiers[0];
    assert_int_equal(host->store->ops->erase(host, &no_limit, &t->version->tables[0], &key, 1),
                     HPS_OK);
}

static void test_insertion_when_an_update_came_since_then_the_guard_keeps_it_out(void **state)
{
    struct update_test *t = *state;
    apply_one(t, 1, 1, 1);
    uint64_t since = hps_stamps_now(t->version->stamps); /* row 1 is read at this time */
    apply_one(t, 1, 1, 2);
    evict(t, 1);
    assert_false(insert_old(t, since, true));
    assert_true(insert_old(t, since, false)); /* without the guard, it is inserted */
    evict(t, 1);
    apply_one(t, 1, 1, 0);
    assert_false(insert_old(t, since, true));
    assert_true(insert_old(t, since, false));
}

static void *apply_thread(void *arg)
{
    struct update_test *t = arg;
    hps_status status = apply(t);
    return (void *)(uintptr_t)(status == HPS_OK);
}

/* Stop a batch at the gate of an operation, try an insertion, and let the batch continue. */
static void insert_while(struct update_test *t, struct hps_store *store, enum hps_fake_op op)
{
    pthread_t thread;
    void *ok = NULL;
    uint64_t before = hps_stamps_now(t->version->stamps);
    t->batch.n_parts = 0;
    add_part(t, 1, 1, 2);
    hps_fake_gate_shut(store, op);
    assert_int_equal(pthread_create(&thread, NULL, apply_thread, t), 0);
    hps_fake_gate_wait(store, op, 1);
    evict(t, 1);
    assert_false(insert_old(t, hps_stamps_now(t->version->stamps), true));
    assert_false(insert_old(t, before, true));
    hps_fake_gate_open(store, op);
    pthread_join(thread, &ok);
    assert_non_null(ok);
    check(t, 1, 2);
}

static void test_insertion_when_a_batch_is_in_flight_then_the_guard_keeps_it_out(void **state)
{
    struct update_test *t = *state;
    apply_one(t, 1, 1, 1);
    insert_while(t, t->stores[1], HPS_FAKE_APPLY);
    insert_while(t, t->stores[0], HPS_FAKE_PUT);
}

/* ---- results of lookups ---------------------------------------------------------------------- */

/* A lookup of one key of table a. */
struct running {
    struct hps_lookup lookup;
    struct hps_lookup_part part;
    hps_key key;
    _Alignas(HPS_ROWS_ALIGN) float rows[64];
    bool done;
    pthread_t thread;
};

static void *running_thread(void *arg)
{
    struct running *running = arg;
    struct hps_error err;
    hps_status status = hps_lookup_run_memory(&running->lookup, &running->done, &err);
    return (void *)(uintptr_t)(status == HPS_OK);
}

/* Begin a lookup that waits at the gate of the host map's get. */
static struct running *running_begin(struct update_test *t, hps_key key)
{
    struct running *running = hps_alloc_aligned(HPS_ROWS_ALIGN, sizeof(*running));
    assert_non_null(running);
    memset(running, 0, sizeof(*running));
    running->key = key;
    running->part.table = &t->version->tables[0];
    running->part.keys = (const uint8_t *)&running->key;
    running->part.n_keys = 1;
    running->lookup.version = t->version;
    running->lookup.arena = hps_arena_new(1 << 12, 1 << 20);
    running->lookup.parts = &running->part;
    running->lookup.n_parts = 1;
    assert_int_equal(hps_lookup_plan(&running->lookup, &t->err), HPS_OK);
    running->lookup.rows = (uint8_t *)running->rows;
    hps_fake_gate_shut(t->stores[0], HPS_FAKE_GET);
    assert_int_equal(pthread_create(&running->thread, NULL, running_thread, running), 0);
    hps_fake_gate_wait(t->stores[0], HPS_FAKE_GET, 1);
    return running;
}

static void running_join(struct update_test *t, struct running *running)
{
    void *ok = NULL;
    hps_fake_gate_open(t->stores[0], HPS_FAKE_GET);
    pthread_join(running->thread, &ok);
    assert_non_null(ok);
}

static void running_free(struct running *running)
{
    hps_arena_free(running->lookup.arena);
    hps_free_aligned(running);
}

static void test_lookup_when_a_batch_is_applied_during_it_then_reports_the_sequence_before(
    void **state)
{
    struct update_test *t = *state;
    apply_one(t, 1, 1, 1);
    struct running *running = running_begin(t, 1);
    apply_one(t, 1, 1, 2);
    running_join(t, running);
    assert_true(running->done);
    assert_int_equal(running->lookup.update_sequence, 1);
    assert_true(running->rows[0] == 2); /* it may see later batches */
    running_free(running);
}

static void test_lookup_when_the_host_map_drops_rows_during_it_then_a_miss_proves_nothing(
    void **state)
{
    struct update_test *t = *state;
    t->version->host_complete = true;
    struct running *running = running_begin(t, 9);
    running_join(t, running);
    assert_true(running->done); /* key 9 is in no tier; the lookup does not read the disk */
    assert_int_equal(running->part.n_unknown, 1);
    running_free(running);
    running = running_begin(t, 9);
    hps_fake_fail(t->stores[0], HPS_FAKE_PUT, HPS_NO_MEMORY, 0, 1, 0);
    t->version->host_complete = false; /* rows are counted on the disk: get of the map is held */
    apply_one(t, 9, 1, 1);
    t->version->host_complete = true; /* the lookup must notice the dropped row nevertheless */
    running_join(t, running);
    assert_false(running->done);
    assert_int_equal(hps_lookup_run_rest(&running->lookup, &t->err), HPS_OK);
    assert_true(running->rows[0] == 1);
    running_free(running);
}

/* ---- half-applied batches -------------------------------------------------------------------- */

static void test_half_applied_when_a_batch_fails_midway_then_until_it_is_complete(void **state)
{
    struct update_test *t = *state;
    apply_one(t, 1, 2, 1);
    assert_false(hps_update_half_applied(t->version));
    add_part(t, 1, 2, 5);
    hps_fake_fail(t->stores[0], HPS_FAKE_PUT, HPS_IO, 0, 1, 0);
    hps_fake_fail(t->stores[0], HPS_FAKE_ERASE, HPS_IO, 0, 1, 0);
    assert_int_not_equal(apply(t), HPS_OK); /* the host map has old rows, the disk new ones */
    assert_true(hps_update_half_applied(t->version));
    hps_fake_fail(t->stores[1], HPS_FAKE_APPLY, HPS_EXHAUSTED, 0, 1, 0);
    assert_int_equal(apply(t), HPS_EXHAUSTED);
    assert_true(hps_update_half_applied(t->version));
    assert_int_equal(apply(t), HPS_OK);
    check(t, 1, 5);
    assert_false(hps_update_half_applied(t->version));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name, tiers) cmocka_unit_test_prestate_setup_teardown(name, setup, teardown, &(tiers))
        TEST(test_half_applied_when_a_batch_fails_midway_then_until_it_is_complete, both),
        TEST(test_batch_when_applied_then_every_tier_has_rows_and_lacks_deleted_keys, both),
        TEST(test_batch_when_of_two_tables_then_keys_are_not_mixed_up, both),
        TEST(test_batch_when_keys_repeat_then_the_last_write_counts, both),
        TEST(test_batch_when_empty_then_positions_advance, both),
        TEST(test_batch_when_applied_then_rows_are_counted_by_op, both),
        TEST(test_batch_when_it_has_a_key_known_to_be_absent_then_the_key_is_no_longer, both),
        TEST(test_batch_when_one_part_is_bad_then_no_part_is_applied, both),
        TEST(test_batch_when_a_position_has_too_long_a_key_then_refused, both),
        TEST(test_batch_when_lowest_tier_takes_no_updates_then_precondition, both),
        TEST(test_batch_when_version_is_not_pinned_then_assert, both),
        TEST(test_durable_store_when_it_fails_then_nothing_has_changed_and_a_retry_works, both),
        TEST(test_host_map_when_it_is_full_then_lacks_the_key_and_is_not_complete, small_host),
        TEST(test_host_map_when_a_put_fails_then_it_has_no_old_rows, both),
        TEST(test_host_map_when_old_rows_cannot_be_erased_then_batch_is_not_published, both),
        TEST(test_memory_when_batch_fits_then_is_applied, memory),
        TEST(test_memory_when_the_batch_does_not_fit_then_every_key_has_its_old_row, memory),
        TEST(test_memory_when_a_put_fails_midway_then_every_key_has_its_old_row, memory),
        TEST(test_memory_when_a_put_of_odd_rows_fails_then_every_key_has_its_old_row, memory),
        TEST(test_memory_when_old_rows_cannot_be_restored_then_data_loss, memory),
        TEST(test_host_map_alone_when_it_is_full_then_has_every_batch_but_the_refused_one,
             host_map),
        TEST(test_host_map_alone_when_a_reader_stays_then_the_batch_resumes_later, host_map),
        TEST(test_host_map_above_a_store_when_it_refuses_rows_then_has_no_old_ones, host_map_above),
        TEST(test_version_when_opened_again_then_it_has_its_positions_and_sequence, both),
        TEST(test_version_when_its_sequence_is_damaged_then_data_loss, both),
        TEST(test_version_when_never_opened_for_updates_then_has_none, both),
        TEST(test_insertion_when_an_update_came_since_then_the_guard_keeps_it_out, both),
        TEST(test_insertion_when_a_batch_is_in_flight_then_the_guard_keeps_it_out, both),
        TEST(test_lookup_when_a_batch_is_applied_during_it_then_reports_the_sequence_before, both),
        TEST(test_lookup_when_the_host_map_drops_rows_during_it_then_a_miss_proves_nothing, both),
    };
    return cmocka_run_group_tests_name("update", tests, NULL, NULL);
}

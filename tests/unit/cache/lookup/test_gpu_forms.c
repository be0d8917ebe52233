/* SPDX-License-Identifier: Apache-2.0
 *
 * Lookups with rows that the gpu converts, lays out or pools, on the simulated device: the calls
 * of each tier, and the bytes of the reply in every outcome. tests/lib/forms_fixture.h computes
 * the expected bytes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/container.h"
#include "tests/lib/forms_fixture.h"
#include "tests/lib/gpu_fixture.h"
#include "tests/lib/pause.h"

enum { GIVE_UP_US = 60 * 1000 * 1000, ODD = 0xA5, KEYS_CACHED = 600 };

struct forms_test {
    struct forms_fixture fx;
    struct gpu_fixture gpu;
    struct hps_lookup lookup;
    atomic_bool answered;
    struct hps_error err;
};

/* Put all existing keys below KEYS_CACHED of every table on the device, and none in a host map. */
static void open_in(struct forms_test *t, const enum forms_tier *tiers, uint32_t n)
{
    forms_open(&t->fx, tiers, n);
    gpu_fixture_open(&t->gpu, &t->fx.version, NULL);
    for (uint32_t table = 0; table < FORMS_TABLES; table++) {
        for (hps_key key = 0; key < KEYS_CACHED; key++) {
            uint8_t row[FORMS_ROW_MAX];
            if (forms_exists(&t->fx, table, key)) {
                forms_row(&t->fx, table, key, row);
                gpu_fixture_put(&t->gpu, &t->fx.tables[table], key, row);
            }
        }
    }
}

static struct forms_test *open_test(const enum forms_tier *tiers, uint32_t n)
{
    struct forms_test *t = hps_calloc(1, sizeof(*t));

    assert_non_null(t);
    open_in(t, tiers, n);
    return t;
}

static void close_in(struct forms_test *t)
{
    hps_lookup_release(&t->lookup);
    hps_block_unref(t->lookup.block);
    gpu_fixture_close(&t->gpu);
    forms_close(&t->fx);
}

static void close_test(struct forms_test *t)
{
    close_in(t);
    hps_free(t);
}

static const enum forms_tier store_alone[] = {FORMS_DISK};
static const enum forms_tier map_and_store[] = {FORMS_HOST_MAP, FORMS_DISK};

/* ---- a lookup -------------------------------------------------------------------------------- */

static void on_answered(struct hps_lookup *lookup)
{
    struct forms_test *t = HPS_CONTAINER_OF(lookup, struct forms_test, lookup);

    atomic_store(&t->answered, true);
}

static void begin(struct forms_test *t, enum hps_lookup_path path)
{
    hps_lookup_release(&t->lookup);
    hps_block_unref(t->lookup.block);
    hps_arena_reset(t->fx.arena);
    t->lookup.block = NULL;
    t->lookup.path = path;
    t->lookup.blocks = t->gpu.blocks;
    t->lookup.gpu_done = on_answered;
    assert_int_equal(hps_lookup_plan(&t->lookup, &t->err), HPS_OK);
    assert_int_equal(hps_lookup_take_block(&t->lookup), HPS_OK);
    memset(t->lookup.rows, ODD, t->lookup.rows_bytes);
}

static bool ask(struct forms_test *t)
{
    atomic_store(&t->answered, false);
    return hps_lookup_ask_gpu(&t->lookup);
}

static void wait_answered(struct forms_test *t)
{
    uint64_t give_up_us = hps_clock_us() + GIVE_UP_US;

    while (!atomic_load(&t->answered)) {
        assert_true(hps_clock_us() < give_up_us);
        brief_pause();
    }
}

/* Run the lookup from the memory tiers to its end. */
static void go_on(struct forms_test *t)
{
    bool done = false;

    assert_int_equal(hps_lookup_run_memory(&t->lookup, &done, &t->err), HPS_OK);
    if (!done) {
        if (ask(t)) {
            wait_answered(t);
        }
        assert_int_equal(hps_lookup_run_gpu(&t->lookup, &done, &t->err), HPS_OK);
    }
    if (!done) {
        assert_int_equal(hps_lookup_run_rest(&t->lookup, &t->err), HPS_OK);
    }
}

static void run(struct forms_test *t, enum hps_lookup_path path)
{
    begin(t, path);
    if (ask(t)) {
        wait_answered(t);
    }
    go_on(t);
}

static void check(const struct forms_test *t)
{
    for (uint32_t i = 0; i < t->lookup.n_parts; i++) {
        const struct hps_lookup_part *part = &t->lookup.parts[i];
        for (uint32_t r = 0; r < part->n_rows; r++) {
            uint8_t row[FORMS_ROW_MAX];
            forms_expected(&t->fx, &t->lookup, part, r, row);
            assert_memory_equal(part->rows + r * part->stride, row, part->row_bytes);
        }
    }
}

/* Send n existing keys, from `first` upward, in part i. */
static void send_keys(struct forms_test *t, uint32_t i, uint32_t table, hps_key first, uint32_t n)
{
    struct forms_part *sent = &t->fx.sent[i];
    hps_key key = first;

    for (uint32_t k = 0; k < n; k++, key++) {
        while (!forms_exists(&t->fx, table, key)) {
            key++;
        }
        memcpy(sent->keys + 1 + k * sizeof(key), &key, sizeof(key));
    }
    t->fx.parts[i] = (struct hps_lookup_part){
        .table = &t->fx.tables[table], .keys = sent->keys + 1, .n_keys = n};
}

/* Put the keys of part i in bags of `size` keys. */
static void put_in_bags(struct forms_test *t, uint32_t i, enum hps_pooling pooling, uint32_t size)
{
    struct hps_lookup_part *part = &t->fx.parts[i];
    struct forms_part *sent = &t->fx.sent[i];

    part->pooling = pooling;
    part->n_bags = part->n_keys / size;
    part->offsets = sent->offsets;
    for (uint32_t b = 0; b <= part->n_bags; b++) {
        sent->offsets[b] = b * size;
    }
    part->n_keys = part->n_bags * size;
}

static void make_lookup(struct forms_test *t, uint32_t n_parts, enum hps_dtype output,
                        enum hps_row_layout layout)
{
    struct hps_block *block = t->lookup.block;

    t->lookup = (struct hps_lookup){.version = &t->fx.version,
                                    .arena = t->fx.arena,
                                    .scratch = t->fx.scratch,
                                    .parts = t->fx.parts,
                                    .n_parts = n_parts,
                                    .block = block,
                                    .miss_policy = HPS_MISS_EXACT,
                                    .unknown_policy = HPS_UNKNOWN_DEFAULT_ROW,
                                    .output = output,
                                    .layout = layout};
}

static const struct hps_tier_report *report(const struct forms_test *t, uint32_t part,
                                            enum hps_tier_kind kind)
{
    return &t->fx.parts[part].walk.reports[kind];
}

/* ---- what the device does -------------------------------------------------------------------- */

/* The device has all keys, so the other tiers do nothing. */
static void test_forms_when_all_is_cached_then_only_the_gpu_is_read(void **state)
{
    struct forms_test *t = open_test(map_and_store, 2);
    (void)state;
    for (unsigned output = HPS_DTYPE_FP32; output <= HPS_DTYPE_BF16; output++) {
        for (unsigned pooling = HPS_POOLING_NONE; pooling <= HPS_POOLING_MEAN_BY_COUNT; pooling++) {
            make_lookup(t, FORMS_TABLES, (enum hps_dtype)output, HPS_LAYOUT_CONCAT);
            for (uint32_t i = 0; i < FORMS_TABLES; i++) {
                send_keys(t, i, i, i * 20, 160);
                if (pooling > HPS_POOLING_NONE) {
                    put_in_bags(t, i, (enum hps_pooling)pooling, 5);
                }
            }
            run(t, HPS_LOOKUP_PATH_GPU);
            check(t);
            for (uint32_t i = 0; i < FORMS_TABLES; i++) {
                const struct hps_lookup_part *part = &t->fx.parts[i];
                assert_int_equal(part->hits_tier, HPS_TIER_GPU);
                assert_int_equal(report(t, i, HPS_TIER_GPU)->n_found, 160);
                assert_int_equal(report(t, i, HPS_TIER_HOST)->n_asked, 0);
                assert_int_equal(part->n_whole_bags, pooling > HPS_POOLING_NONE ? 32 : 0);
                assert_null(part->gathered);
            }
        }
    }
    close_test(t);
}

/* Half of the bags have one key that the device lacks. Without a host map, the device returns
 * the rows of their other keys, and the store only the missing rows. */
static void test_bags_when_partly_cached_then_the_gpu_returns_its_rows(void **state)
{
    struct forms_test *t = open_test(store_alone, 1);
    (void)state;
    make_lookup(t, 1, HPS_DTYPE_FP16, HPS_LAYOUT_PER_TABLE);
    send_keys(t, 0, 4, 0, 60);
    put_in_bags(t, 0, HPS_POOLING_MEAN, 3);
    for (uint32_t b = 0; b < 20; b += 2) {
        hps_key key = KEYS_CACHED + 10;
        for (uint32_t i = 0; i <= b; i++) {
            do {
                key++;
            } while (!forms_exists(&t->fx, 4, key));
        }
        memcpy(t->fx.sent[0].keys + 1 + (size_t)(b * 3 + 1) * 8, &key, sizeof(key));
    }
    run(t, HPS_LOOKUP_PATH_AUTO);
    check(t);
    assert_int_equal(t->fx.parts[0].n_whole_bags, 10);
    assert_int_equal(report(t, 0, HPS_TIER_GPU)->n_asked, 60);
    assert_int_equal(report(t, 0, HPS_TIER_GPU)->n_found, 50);
    assert_int_equal(report(t, 0, HPS_TIER_ROCKSDB)->n_asked, 10);
    run(t, HPS_LOOKUP_PATH_AUTO); /* the device has them now */
    check(t);
    assert_int_equal(t->fx.parts[0].n_whole_bags, 20);
    assert_int_equal(report(t, 0, HPS_TIER_ROCKSDB)->n_asked, 0);
    close_test(t);
}

/* Only rows of a bag that the device lacks are inserted into it. */
static void test_bags_when_memory_has_the_rest_then_the_gpu_gets_the_rows_that_it_lacks(
    void **state)
{
    struct forms_test *t = open_test(map_and_store, 2);
    struct hps_lookup_part *part = &t->fx.parts[0];
    uint32_t n_lacking = 0;
    (void)state;
    make_lookup(t, 1, HPS_DTYPE_FP32, HPS_LAYOUT_PER_TABLE);
    send_keys(t, 0, 3, KEYS_CACHED - 30, 60);
    put_in_bags(t, 0, HPS_POOLING_SUM, 60);
    for (uint32_t i = 0; i < 60; i++) {
        forms_put(&t->fx, 0, 3, forms_key(part, i));
        n_lacking += forms_key(part, i) >= KEYS_CACHED ? 1 : 0;
    }
    run(t, HPS_LOOKUP_PATH_GPU);
    check(t);
    assert_int_equal(part->n_whole_bags, 0);
    assert_int_equal(report(t, 0, HPS_TIER_HOST)->n_found, 60);
    assert_true(n_lacking > 0 && n_lacking < 60);
    assert_int_equal(report(t, 0, HPS_TIER_GPU)->n_inserted, n_lacking);
    run(t, HPS_LOOKUP_PATH_GPU);
    check(t);
    assert_int_equal(part->n_whole_bags, 1);
    close_test(t);
}

/* Rows are converted for the reply but inserted as stored. */
static void test_rows_when_converted_then_misses_are_inserted_as_stored(void **state)
{
    struct forms_test *t = open_test(map_and_store, 2);
    (void)state;
    for (unsigned round = 0; round < 2; round++) {
        make_lookup(t, FORMS_TABLES, HPS_DTYPE_BF16, HPS_LAYOUT_CONCAT);
        for (uint32_t i = 0; i < FORMS_TABLES; i++) {
            send_keys(t, i, i, KEYS_CACHED - 50, 100);
        }
        run(t, HPS_LOOKUP_PATH_GPU);
        check(t);
        for (uint32_t i = 0; i < FORMS_TABLES; i++) {
            uint32_t n_found = report(t, i, HPS_TIER_GPU)->n_found;
            assert_true(round == 0 ? n_found > 0 && n_found < 60 : n_found == 100);
        }
    }
    close_test(t);
}

/* With a host map, large parts with bags go to the gpu first if it caches their table
 * completely. */
static void test_path_when_auto_then_bags_of_completely_cached_tables_go_gpu_first(void **state)
{
    struct forms_test *t = open_test(map_and_store, 2);
    (void)state;
    t->fx.tables[2].row_bytes = HPS_LOOKUP_GPU_FIRST_BYTES / 8; /* the rows are never accessed */
    for (unsigned whole = 0; whole < 2; whole++) {
        t->fx.tables[2].n_rows = whole ? GPU_FIXTURE_ROWS : GPU_FIXTURE_ROWS + 1;
        make_lookup(t, 1, HPS_DTYPE_FP32, HPS_LAYOUT_PER_TABLE);
        send_keys(t, 0, 2, 0, 8);
        put_in_bags(t, 0, HPS_POOLING_SUM, 4);
        begin(t, HPS_LOOKUP_PATH_AUTO);
        assert_int_equal(ask(t), whole);
        if (whole) {
            wait_answered(t);
        }
        hps_lookup_abandon(&t->lookup);
        make_lookup(t, 1, HPS_DTYPE_FP32, HPS_LAYOUT_PER_TABLE);
        t->lookup.unit = true; /* a unit may have to read its rows again */
        begin(t, HPS_LOOKUP_PATH_GPU);
        assert_false(ask(t));
    }
    close_test(t);
}

/* ---- a device that does not reply ------------------------------------------------------------ */

/* One part in each form. */
static void send_forms(struct forms_test *t, unsigned round)
{
    static const enum hps_pooling poolings[] = {HPS_POOLING_NONE, HPS_POOLING_SUM,
                                                HPS_POOLING_MEAN};
    bool concat = round % 2 == 0;

    make_lookup(t, FORMS_TABLES, (enum hps_dtype)(1 + round % 3),
                concat ? HPS_LAYOUT_CONCAT : HPS_LAYOUT_PER_TABLE);
    for (uint32_t i = 0; i < FORMS_TABLES; i++) {
        enum hps_pooling pooling = poolings[(i + round) % 3];
        send_keys(t, i, i, KEYS_CACHED - 80, pooling == HPS_POOLING_NONE ? 40 : 120);
        if (pooling != HPS_POOLING_NONE) {
            put_in_bags(t, i, pooling, 3);
        }
    }
}

/* The n-th operation of the device after the submission of the lookup fails. */
static void lose(struct forms_test *t, unsigned round, uint64_t n)
{
    send_forms(t, round + 1);
    run(t, HPS_LOOKUP_PATH_GPU); /* now the device has all rows */
    check(t);
    hps_device_sim_hold(t->gpu.tier->device, true);
    send_forms(t, round);
    begin(t, HPS_LOOKUP_PATH_GPU);
    assert_true(ask(t));
    hps_gpu_tier_sync(t->gpu.tier); /* two iterations of its thread submit the lookup */
    hps_gpu_tier_sync(t->gpu.tier);
    hps_device_sim_fail(t->gpu.tier->device, n);
    hps_device_sim_hold(t->gpu.tier->device, false);
    wait_answered(t);
    go_on(t);
    check(t);
}

static void test_forms_when_the_device_is_lost_then_every_reply_is_right(void **state)
{
    struct forms_test *t = open_test(map_and_store, 2);
    (void)state;
    for (unsigned n = 1; n <= 6; n++) {
        lose(t, n, n);
        assert_true(n > 2 || report(t, 0, HPS_TIER_GPU)->status == HPS_DATA_LOSS);
        send_forms(t, n);
        run(t, HPS_LOOKUP_PATH_GPU);
        check(t);
        close_in(t);
        memset(t, 0, sizeof(*t));
        open_in(t, map_and_store, 2);
    }
    close_test(t);
}

static void test_forms_when_a_lookup_leaves_the_device_then_its_late_writes_reach_no_reply(
    void **state)
{
    struct forms_test *t = open_test(map_and_store, 2);
    (void)state;
    for (unsigned round = 0; round < 4; round++) {
        send_forms(t, round);
        begin(t, HPS_LOOKUP_PATH_GPU);
        const uint8_t *old = t->lookup.rows;
        hps_device_sim_hold(t->gpu.tier->device, true);
        assert_true(ask(t));
        hps_lookup_leave_gpu(&t->lookup);
        bool done = false;
        assert_int_equal(hps_lookup_run_memory(&t->lookup, &done, &t->err), HPS_OK);
        hps_device_sim_hold(t->gpu.tier->device, false);
        wait_answered(t);
        if (!done) {
            assert_false(ask(t));
            assert_int_equal(hps_lookup_run_rest(&t->lookup, &t->err), HPS_OK);
        }
        assert_ptr_not_equal(t->lookup.rows, old);
        check(t);
        assert_int_equal(report(t, 0, HPS_TIER_GPU)->status, HPS_DEADLINE);
    }
    close_test(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forms_when_all_is_cached_then_only_the_gpu_is_read),
        cmocka_unit_test(test_bags_when_partly_cached_then_the_gpu_returns_its_rows),
        cmocka_unit_test(
            test_bags_when_memory_has_the_rest_then_the_gpu_gets_the_rows_that_it_lacks),
        cmocka_unit_test(test_rows_when_converted_then_misses_are_inserted_as_stored),
        cmocka_unit_test(test_path_when_auto_then_bags_of_completely_cached_tables_go_gpu_first),
        cmocka_unit_test(test_forms_when_the_device_is_lost_then_every_reply_is_right),
        cmocka_unit_test(
            test_forms_when_a_lookup_leaves_the_device_then_its_late_writes_reach_no_reply),
    };
    return cmocka_run_group_tests_name("gpu_forms", tests, NULL, NULL);
}

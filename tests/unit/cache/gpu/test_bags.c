/* SPDX-License-Identifier: Apache-2.0
 *
 * Lookups of a gpu tier that convert or pool rows, on the simulated device: several batches,
 * bags that exceed a batch, and a lost device.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/heap.h"
#include "cache/device/sim/sim.h"
#include "cache/gpu/internal.h"
#include "client/zipf.h"
#include "tests/lib/pause.h"

enum {
    N_TABLES = 3,
    DIM = 33,
    N_KEYS = 200, /* of each table; all are cached, except in the last table */
    BATCH_KEYS = 64,
    KEYS_MAX = 2000,
    BAGS_MAX = 400,
    SLAB = 4 << 20,
    POISON = 0x5a,
    GIVE_UP_US = 60 * 1000 * 1000
};

/* The last table is not cached. */
static const enum hps_dtype dtypes[N_TABLES] = {HPS_DTYPE_FP32, HPS_DTYPE_INT8_ROWWISE_F16,
                                                HPS_DTYPE_FP16};

static struct rig {
    struct hps_block_pool *blocks;
    struct hps_gpu_tier *tier;
    struct hps_gpu_space *space;
    struct hps_table tables[N_TABLES];
    uint8_t rows[N_TABLES][N_KEYS][DIM * 4];
    struct hps_gpu_lookup lookup;
    struct hps_gpu_part parts[2 * N_TABLES];
    atomic_bool done;
    hps_key keys[KEYS_MAX];
    float weights[KEYS_MAX];
    uint32_t offsets[BAGS_MAX + 1];
    uint32_t hits[2 * N_TABLES][KEYS_MAX / 32 + 1];
    uint32_t whole[BAGS_MAX / 32 + 1];
    struct hps_random random;
} rig;

static uint32_t random_below(uint32_t below)
{
    return (uint32_t)(hps_random_next(&rig.random) % below);
}

static void make_tables(void)
{
    for (uint32_t t = 0; t < N_TABLES; t++) {
        rig.tables[t] = (struct hps_table){
            .id = t,
            .name = "t",
            .dim = DIM,
            .dtype = dtypes[t],
            .row_bytes = (uint32_t)hps_dtype_row_bytes(dtypes[t], DIM),
            .n_rows = N_KEYS,
        };
        for (uint32_t key = 0; key < N_KEYS; key++) {
            float values[DIM];
            for (uint32_t i = 0; i < DIM; i++) {
                values[i] =
                    ldexpf((float)random_below(1 << 20) - (1 << 19), (int)random_below(12) - 24);
            }
            hps_row_convert(rig.rows[t][key], dtypes[t], values, HPS_DTYPE_FP32, DIM);
        }
    }
}

static void insert_rows(uint32_t t)
{
    static uint8_t rows[N_KEYS * DIM * 4];
    hps_key keys[N_KEYS];
    uint32_t slots[N_KEYS];
    struct hps_insert_report report;
    const struct hps_gpu_insertion insertion = {
        .table_id = t, .n = N_KEYS, .keys = keys, .slots = slots, .rows = rows, .waits = true};

    for (uint32_t i = 0; i < N_KEYS; i++) {
        keys[i] = i;
        slots[i] = i;
        memcpy(rows + (size_t)i * rig.tables[t].row_bytes, rig.rows[t][i], rig.tables[t].row_bytes);
    }
    hps_gpu_insert(rig.space, &insertion, &report);
    assert_int_equal(report.n_inserted, N_KEYS);
}

static int setup(void **state)
{
    (void)state;
    struct hps_gpu_share shares[N_TABLES];
    struct hps_error err;

    memset(&rig, 0, sizeof(rig));
    rig.random = (struct hps_random){1};
    make_tables();
    rig.blocks = hps_block_pool_new(0);
    assert_int_equal(hps_block_pool_slab_add(rig.blocks, SLAB), HPS_OK);
    const struct hps_sim_driver sim =
        hps_sim_driver((struct hps_device_sim_config){.seed = 7, .delay_us_max = 20});
    const struct hps_gpu_tier_options options = {.driver = &sim.driver,
                                                 .cache = {.arena_bytes = 4 << 20,
                                                           .batch_keys_max = BATCH_KEYS,
                                                           .gather_bytes = 64 << 10,
                                                           .stage_bytes = 1 << 20,
                                                           .mapped_bytes_max = 4096},
                                                 .blocks = rig.blocks,
                                                 .stall_us_max = 10 * GIVE_UP_US};
    assert_int_equal(hps_gpu_tier_open(&options, &rig.tier, &err), HPS_OK);
    for (uint32_t i = 0; i < N_TABLES; i++) {
        shares[i] = (struct hps_gpu_share){.n_rows = N_KEYS,
                                           .n_rows_cached = i + 1 < N_TABLES ? N_KEYS : 0};
    }
    const struct hps_gpu_space_options space = {
        .model = "m", .number = 1, .tables = rig.tables, .shares = shares, .n_tables = N_TABLES};
    assert_int_equal(hps_gpu_space_open(rig.tier, &space, &rig.space, &err), HPS_OK);
    hps_gpu_space_active(rig.space, true);
    for (uint32_t t = 0; t + 1 < N_TABLES; t++) {
        insert_rows(t);
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    hps_block_unref(rig.lookup.block);
    hps_gpu_tier_drain(rig.tier);
    hps_gpu_space_close(rig.space);
    hps_gpu_tier_close(rig.tier);
    hps_block_pool_free(rig.blocks);
    return 0;
}

/* ---- running a lookup ------------------------------------------------------------------------ */

static void on_done(struct hps_gpu_lookup *lookup)
{
    (void)lookup;
    atomic_store(&rig.done, true);
}

static void wait_done(void)
{
    uint64_t give_up_us = hps_clock_us() + GIVE_UP_US;

    while (!atomic_load(&rig.done)) {
        assert_true(hps_clock_us() < give_up_us);
        brief_pause();
    }
}

static void ask(uint32_t n_parts, size_t bytes)
{
    hps_block_unref(rig.lookup.block);
    rig.lookup = (struct hps_gpu_lookup){.space = rig.space,
                                         .block = hps_block_new_slab(rig.blocks, bytes),
                                         .parts = rig.parts,
                                         .n_parts = n_parts,
                                         .done = on_done};
    assert_non_null(rig.lookup.block);
    memset(rig.lookup.block->data, POISON, bytes);
    atomic_store(&rig.done, false);
    assert_int_equal(hps_gpu_lookup(&rig.lookup), HPS_OK);
}

/* Make bags of these sizes with random keys. Bag number `none` gets one key that no table has.
 * Returns the number of keys. */
static uint32_t make_bags(const uint32_t *sizes, uint32_t n_bags, uint32_t none)
{
    rig.offsets[0] = 0;
    for (uint32_t b = 0; b < n_bags; b++) {
        rig.offsets[b + 1] = rig.offsets[b] + sizes[b];
        for (uint32_t i = rig.offsets[b]; i < rig.offsets[b + 1]; i++) {
            rig.keys[i] = random_below(N_KEYS);
            rig.weights[i] = (float)random_below(1000) / 100 - 5;
        }
        if (b == none) {
            rig.keys[rig.offsets[b] + sizes[b] / 2] = N_KEYS + 1;
        }
    }
    assert_true(rig.offsets[n_bags] <= KEYS_MAX);
    return rig.offsets[n_bags];
}

static struct hps_gpu_part pooled_part(uint32_t t, uint32_t n_bags, enum hps_dtype dtype,
                                       enum hps_pooling pooling, uint64_t offset)
{
    return (struct hps_gpu_part){.table_id = t,
                                 .n = rig.offsets[n_bags],
                                 .keys = (const uint8_t *)rig.keys,
                                 .offset = offset,
                                 .dtype = dtype,
                                 .pooling = pooling,
                                 .n_bags = n_bags,
                                 .offsets = rig.offsets,
                                 .weights = (const uint8_t *)rig.weights,
                                 .hits = rig.hits[t]};
}

/* ---- checking -------------------------------------------------------------------------------- */

static void check_bag(const struct hps_gpu_part *part, uint32_t b)
{
    const uint8_t *rows[KEYS_MAX];
    uint32_t begin = part->offsets[b], n = part->offsets[b + 1] - begin;
    const uint8_t *weights =
        part->weights == NULL ? NULL : part->weights + (size_t)begin * sizeof(float);
    struct hps_bag_weights all = {0};
    float sum[DIM] = {0};
    uint8_t wanted[DIM * 4];
    size_t row_bytes = hps_dtype_row_bytes(part->dtype, DIM);
    size_t stride = part->stride == 0 ? row_bytes : part->stride;

    for (uint32_t i = 0; i < n; i++) {
        rows[i] = rig.rows[part->table_id][rig.keys[begin + i]];
    }
    hps_row_sum_add(sum, dtypes[part->table_id], DIM, rows, weights, n);
    hps_bag_weights_add(&all, weights, n);
    hps_row_sum_end(wanted, part->dtype, sum, DIM, part->pooling, &all);
    assert_memory_equal(rig.lookup.block->data + part->offset + b * stride, wanted, row_bytes);
}

static bool bit(const uint32_t *bits, uint32_t i)
{
    return (bits[i / 32] >> i % 32 & 1) != 0;
}

/* A bag is complete if it has keys, fits into a batch and is not number `none`. */
static void check_part(const struct hps_gpu_part *part, uint32_t none)
{
    memset(rig.whole, 0xff, sizeof(rig.whole));
    hps_gpu_bags_whole(part, rig.whole);
    for (uint32_t b = 0; b < part->n_bags; b++) {
        uint32_t n = part->offsets[b + 1] - part->offsets[b];
        bool whole = n > 0 && n <= BATCH_KEYS && b != none;
        assert_int_equal(bit(rig.whole, b), whole);
        for (uint32_t i = part->offsets[b]; i < part->offsets[b + 1]; i++) {
            assert_int_equal(bit(part->hits, i), n <= BATCH_KEYS && rig.keys[i] < N_KEYS);
        }
        if (whole) {
            check_bag(part, b);
        }
    }
    if (part->n_bags % 32 != 0) {
        assert_int_equal(rig.whole[part->n_bags / 32] >> part->n_bags % 32, 0);
    }
}

/* ---- tests ----------------------------------------------------------------------------------- */

enum { NO_BAG = UINT32_MAX };

static void test_bags_when_they_need_many_batches_then_each_is_pooled_in_one_batch(void **state)
{
    (void)state;
    uint32_t sizes[BAGS_MAX];

    for (uint32_t b = 0; b < BAGS_MAX; b++) {
        sizes[b] = random_below(9); /* some bags are empty; hit bits of bags are not word-aligned */
    }
    make_bags(sizes, BAGS_MAX, 77);
    for (uint32_t t = 0; t + 1 < N_TABLES; t++) {
        rig.parts[t] = pooled_part(t, BAGS_MAX, HPS_DTYPE_FP32, HPS_POOLING_SQRTN,
                                   t * BAGS_MAX * DIM * sizeof(float));
    }
    ask(2, 2 * BAGS_MAX * DIM * sizeof(float));
    wait_done();
    assert_int_equal(rig.lookup.status, HPS_OK);
    check_part(&rig.parts[0], sizes[77] > 0 ? 77 : NO_BAG);
    check_part(&rig.parts[1], sizes[77] > 0 ? 77 : NO_BAG);
}

static void test_bags_when_one_exceeds_a_batch_then_other_bags_are_pooled(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {3, BATCH_KEYS + 1, BATCH_KEYS, 0, 1, 1000, 0, 500, 2};
    static const uint32_t last[] = {1, 200};
    static const uint32_t empty[] = {0, 0, 0};

    make_bags(sizes, 9, NO_BAG);
    rig.parts[0] = pooled_part(0, 9, HPS_DTYPE_BF16, HPS_POOLING_MEAN, 0);
    ask(1, 4096);
    wait_done();
    check_part(&rig.parts[0], NO_BAG);
    make_bags(last, 2, NO_BAG);
    rig.parts[0] = pooled_part(0, 2, HPS_DTYPE_FP16, HPS_POOLING_SUM, 0);
    ask(1, 4096);
    wait_done();
    check_part(&rig.parts[0], NO_BAG);
    make_bags(empty, 3, NO_BAG);
    rig.parts[0] = pooled_part(0, 3, HPS_DTYPE_FP32, HPS_POOLING_SUM, 0);
    ask(1, 4096);
    wait_done();
    check_part(&rig.parts[0], NO_BAG);
}

static void test_bags_when_their_table_is_not_cached_then_none_is_pooled(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {3, 4};

    make_bags(sizes, 2, NO_BAG);
    rig.parts[0] = pooled_part(N_TABLES - 1, 2, HPS_DTYPE_FP32, HPS_POOLING_SUM, 0);
    rig.parts[1] = pooled_part(0, 2, HPS_DTYPE_FP32, HPS_POOLING_SUM, 1024);
    ask(2, 4096);
    wait_done();
    hps_gpu_bags_whole(&rig.parts[0], rig.whole);
    assert_int_equal(rig.whole[0], 0);
    assert_int_equal(rig.hits[N_TABLES - 1][0], 0);
    check_part(&rig.parts[1], NO_BAG);
}

/* Columns of one matrix: bags of one table, converted rows of another, and rows as stored. */
static void test_parts_when_rows_have_gaps_then_gaps_are_not_written(void **state)
{
    (void)state;
    enum { N = 150, STRIDE = (3 * DIM + 2) * 4 };
    uint32_t sizes[N];

    for (uint32_t b = 0; b < N; b++) {
        sizes[b] = 1;
    }
    make_bags(sizes, N, NO_BAG);
    rig.parts[0] = pooled_part(0, N, HPS_DTYPE_FP32, HPS_POOLING_SUM, 0);
    rig.parts[1] = (struct hps_gpu_part){.table_id = 1,
                                         .n = N,
                                         .keys = (const uint8_t *)rig.keys,
                                         .offset = DIM * 4,
                                         .dtype = HPS_DTYPE_FP32,
                                         .hits = rig.hits[1]};
    rig.parts[2] = (struct hps_gpu_part){.table_id = 0,
                                         .n = N,
                                         .keys = (const uint8_t *)rig.keys,
                                         .offset = 2 * DIM * 4 + 4,
                                         .dtype = HPS_DTYPE_FP32,
                                         .hits = rig.hits[2]};
    for (uint32_t i = 0; i < 3; i++) {
        rig.parts[i].stride = STRIDE;
    }
    ask(3, N * STRIDE);
    wait_done();
    check_part(&rig.parts[0], NO_BAG);
    for (uint32_t i = 0; i < N; i++) {
        const uint8_t *row = rig.lookup.block->data + (size_t)i * STRIDE;
        float wanted[DIM];
        uint32_t between;
        hps_row_convert(wanted, HPS_DTYPE_FP32, rig.rows[1][rig.keys[i]], dtypes[1], DIM);
        assert_memory_equal(row + DIM * 4, wanted, sizeof(wanted));
        assert_memory_equal(row + 2 * DIM * 4 + 4, rig.rows[0][rig.keys[i]], sizeof(wanted));
        memcpy(&between, row + 2 * DIM * 4, 4);
        assert_int_equal(between, POISON * 0x01010101u);
        memcpy(&between, row + STRIDE - 4, 4);
        assert_int_equal(between, POISON * 0x01010101u);
    }
}

static void test_bags_when_the_device_is_lost_then_data_loss(void **state)
{
    (void)state;
    uint32_t sizes[BAGS_MAX];

    for (uint32_t b = 0; b < BAGS_MAX; b++) {
        sizes[b] = 4;
    }
    make_bags(sizes, BAGS_MAX, NO_BAG);
    rig.parts[0] = pooled_part(1, BAGS_MAX, HPS_DTYPE_FP32, HPS_POOLING_MEAN, 0);
    ask(1, BAGS_MAX * DIM * sizeof(float));
    wait_done();
    check_part(&rig.parts[0], NO_BAG); /* so the device has all rows */
    hps_device_sim_hold(rig.tier->device, true);
    ask(1, BAGS_MAX * DIM * sizeof(float));
    hps_device_sim_fail(rig.tier->device, 3); /* a kernel or the end of one of the first batches */
    hps_device_sim_hold(rig.tier->device, false);
    wait_done();
    assert_int_equal(rig.lookup.status, HPS_DATA_LOSS);
    assert_int_equal(hps_gpu_lookup(&rig.lookup), HPS_UNAVAILABLE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(test_bags_when_they_need_many_batches_then_each_is_pooled_in_one_batch),
        TEST(test_bags_when_one_exceeds_a_batch_then_other_bags_are_pooled),
        TEST(test_bags_when_their_table_is_not_cached_then_none_is_pooled),
        TEST(test_parts_when_rows_have_gaps_then_gaps_are_not_written),
        TEST(test_bags_when_the_device_is_lost_then_data_loss),
#undef TEST
    };
    return cmocka_run_group_tests_name("gpu_bags", tests, NULL, NULL);
}

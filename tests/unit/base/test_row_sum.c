/* SPDX-License-Identifier: Apache-2.0
 *
 * Pooled bags. test_row_kernel.c tests sums bit by bit.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/hash.h"
#include "base/row_sum.h"

enum { DIM = 35, N_ROWS = 100 };

static float rows[N_ROWS][DIM];
static const uint8_t *at[N_ROWS];
static uint8_t weights[N_ROWS * sizeof(float) + 1]; /* from an odd address on */

static float weight_of(uint32_t i)
{
    float weight;

    memcpy(&weight, weights + 1 + i * sizeof(weight), sizeof(weight));
    return weight;
}

static void weight_set(uint32_t i, float weight)
{
    memcpy(weights + 1 + i * sizeof(weight), &weight, sizeof(weight));
}

static int fill(void **state)
{
    uint64_t seed = 1;

    (void)state;
    for (uint32_t i = 0; i < N_ROWS; i++) {
        at[i] = (const uint8_t *)rows[i];
        weight_set(i, (float)(hps_mix64(++seed) % 1000) / 300.0F);
        for (uint32_t d = 0; d < DIM; d++) {
            rows[i][d] = (float)(int32_t)hps_mix64(++seed) / 0x1p30F;
        }
    }
    return 0;
}

/* The bag of the first n rows. */
static void pool(enum hps_pooling pooling, bool weighted, uint32_t n, enum hps_dtype to_type,
                 void *to)
{
    float sum[DIM] = {0};
    struct hps_bag_weights bag = {0};
    const uint8_t *with = weighted ? weights + 1 : NULL;

    hps_row_sum_add(sum, HPS_DTYPE_FP32, DIM, at, with, n);
    hps_bag_weights_add(&bag, with, n);
    assert_int_equal(bag.n, n);
    hps_row_sum_end(to, to_type, sum, DIM, pooling, &bag);
}

/* The result in double precision, and a bound for the error of fp32. */
static double exact(enum hps_pooling pooling, bool weighted, uint32_t n, uint32_t d,
                    double *out_bound)
{
    double sum = 0, magnitude = 0, total = 0, squares = 0;

    for (uint32_t i = 0; i < n; i++) {
        double w = weighted ? (double)weight_of(i) : 1;
        sum += w * (double)rows[i][d];
        magnitude += fabs(w * (double)rows[i][d]);
        total += w;
        squares += w * w;
    }
    double by = pooling == HPS_POOLING_MEAN            ? total
                : pooling == HPS_POOLING_SQRTN         ? sqrt(squares)
                : pooling == HPS_POOLING_MEAN_BY_COUNT ? n
                                                       : 1;
    *out_bound = by == 0 ? 0 : 0x1p-22 * (n + 2) * magnitude / fabs(by);
    return by == 0 ? 0 : sum / by;
}

static void test_bag_when_pooled_then_equal_to_its_definition(void **state)
{
    (void)state;
    static const uint32_t counts[] = {1, 2, 33, N_ROWS};
    for (unsigned turn = 0; turn < 4 * 2 * 4; turn++) {
        enum hps_pooling pooling = (enum hps_pooling)(HPS_POOLING_SUM + turn % 4);
        bool weighted = turn / 4 % 2 != 0;
        uint32_t n = counts[turn / 8];
        float got[DIM], back[DIM];
        uint16_t halves[DIM];
        pool(pooling, weighted, n, HPS_DTYPE_FP32, got);
        for (uint32_t d = 0; d < DIM; d++) {
            double bound;
            double wanted = exact(pooling, weighted, n, d, &bound);
            assert_true(fabs((double)got[d] - wanted) <= bound);
        }
        for (unsigned h = HPS_DTYPE_FP16; h <= HPS_DTYPE_BF16; h++) { /* the fp32 result, rounded */
            uint16_t rounded[DIM];
            pool(pooling, weighted, n, (enum hps_dtype)h, halves);
            hps_row_convert(rounded, (enum hps_dtype)h, got, HPS_DTYPE_FP32, DIM);
            assert_memory_equal(halves, rounded, sizeof(halves));
            hps_row_convert(back, HPS_DTYPE_FP32, halves, (enum hps_dtype)h, DIM);
            assert_true(fabsf(back[0] - got[0]) <= 0.01F * fabsf(got[0]) + 1e-6F);
        }
    }
}

static void check_zero(enum hps_pooling pooling, bool weighted, uint32_t n)
{
    static const uint8_t zeros[DIM * sizeof(float)];

    for (unsigned type = HPS_DTYPE_FP32; type <= HPS_DTYPE_BF16; type++) {
        uint8_t got[DIM * sizeof(float) + 1];
        memset(got, 0xa5, sizeof(got));
        pool(pooling, weighted, n, (enum hps_dtype)type, got);
        size_t bytes = hps_dtype_row_bytes((enum hps_dtype)type, DIM);
        assert_memory_equal(got, zeros, bytes);
        assert_int_equal(got[bytes], 0xa5);
    }
}

static void test_bag_when_empty_or_without_weight_then_zero(void **state)
{
    (void)state;
    for (unsigned pooling = HPS_POOLING_SUM; pooling <= HPS_POOLING_MEAN_BY_COUNT; pooling++) {
        check_zero((enum hps_pooling)pooling, pooling % 2 == 0, 0);
    }
    weight_set(0, 1.5F);
    weight_set(1, -1.5F);
    check_zero(HPS_POOLING_MEAN, true, 2);
    weight_set(0, 0);
    weight_set(1, 0);
    check_zero(HPS_POOLING_MEAN, true, 2);
    check_zero(HPS_POOLING_SQRTN, true, 2);
    (void)fill(NULL);
}

static void test_bag_when_all_weights_are_one_then_equal_to_no_weights(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < N_ROWS; i++) {
        weight_set(i, 1);
    }
    for (unsigned pooling = HPS_POOLING_SUM; pooling <= HPS_POOLING_MEAN_BY_COUNT; pooling++) {
        float with[DIM], without[DIM];
        pool((enum hps_pooling)pooling, true, N_ROWS, HPS_DTYPE_FP32, with);
        pool((enum hps_pooling)pooling, false, N_ROWS, HPS_DTYPE_FP32, without);
        assert_memory_equal(with, without, sizeof(with));
    }
    (void)fill(NULL);
}

static void test_bag_when_added_in_pieces_then_the_same_bits(void **state)
{
    (void)state;
    float whole[DIM] = {0}, pieces[DIM] = {0};
    struct hps_bag_weights whole_bag = {0}, bag = {0};
    hps_row_sum_add(whole, HPS_DTYPE_FP32, DIM, at, weights + 1, N_ROWS);
    hps_bag_weights_add(&whole_bag, weights + 1, N_ROWS);
    for (uint32_t i = 0, n; i < N_ROWS; i += n) {
        n = i + 7 < N_ROWS ? 7 : N_ROWS - i;
        const uint8_t *from = weights + 1 + i * sizeof(float);
        hps_row_sum_add_ahead(pieces, HPS_DTYPE_FP32, DIM, at + i, from, n, N_ROWS - i - n);
        hps_bag_weights_add(&bag, from, n);
    }
    assert_memory_equal(pieces, whole, sizeof(whole));
    assert_memory_equal(&bag, &whole_bag, sizeof(bag));
}

static void test_bag_when_divided_in_place_then_the_same(void **state)
{
    (void)state;
    const struct hps_bag_weights bag = {.n = 3, .sum = 7, .squares = 20};
    for (unsigned pooling = HPS_POOLING_SUM; pooling <= HPS_POOLING_MEAN_BY_COUNT; pooling++) {
        float sum[DIM], apart[DIM];
        memcpy(sum, rows[3], sizeof(sum));
        hps_row_sum_end(apart, HPS_DTYPE_FP32, sum, DIM, (enum hps_pooling)pooling, &bag);
        hps_row_sum_end(sum, HPS_DTYPE_FP32, sum, DIM, (enum hps_pooling)pooling, &bag);
        assert_memory_equal(sum, apart, sizeof(sum));
    }
}

static void test_pooling_when_named_then_the_name_is_read_back(void **state)
{
    (void)state;
    enum hps_pooling got;
    for (unsigned number = 0; number < 8; number++) {
        const char *name = hps_pooling_name((enum hps_pooling)number);
        got = (enum hps_pooling)77;
        bool known = number >= HPS_POOLING_NONE && number <= HPS_POOLING_MEAN_BY_COUNT;
        assert_int_equal(hps_pooling_parse(name, strlen(name), &got), known);
        assert_int_equal(got, known ? number : 77);
    }
    assert_string_equal(hps_pooling_name(HPS_POOLING_MEAN_BY_COUNT), "mean_by_count");
    assert_false(hps_pooling_parse("su", 2, &got));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bag_when_pooled_then_equal_to_its_definition),
        cmocka_unit_test(test_bag_when_empty_or_without_weight_then_zero),
        cmocka_unit_test(test_bag_when_all_weights_are_one_then_equal_to_no_weights),
        cmocka_unit_test(test_bag_when_added_in_pieces_then_the_same_bits),
        cmocka_unit_test(test_bag_when_divided_in_place_then_the_same),
        cmocka_unit_test(test_pooling_when_named_then_the_name_is_read_back),
    };

    return cmocka_run_group_tests_name("row_sum", tests, fill, NULL);
}

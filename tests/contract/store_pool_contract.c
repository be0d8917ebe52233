/* SPDX-License-Identifier: Apache-2.0
 *
 * Stores that pool bags (backends/store_pool.h): which bags they pool, and the results.
 */
#include "tests/contract/store_contract_internal.h"

#include <string.h>

#include "backends/store_pool.h"

enum { DIM = 16, N_ROWS = 64, N_BAGS = 70, N_KEYS_MAX = 1024 };

/* Bags of 0, 1, ... 6 keys, repeated. One in three bags with keys has a key without a row. */
struct question {
    uint32_t offsets[N_BAGS + 1];
    uint32_t ids[N_KEYS_MAX]; /* N_ROWS: no row */
    uint8_t keys[N_KEYS_MAX * 8 + 1];
    uint8_t weights[N_KEYS_MAX * 4 + 1]; /* both start at the second byte */
};

static float value_of(uint32_t id, uint32_t d)
{
    return (float)(int32_t)(contract_mix(id * 100 + d) % 2001 - 1000) / 77.0f;
}

static hps_key key_of(uint32_t id)
{
    return contract_mix(id);
}

static bool lacks_one(uint32_t bag)
{
    return bag % 7 != 0 && bag % 3 == 1;
}

static void question_make(struct question *q)
{
    uint32_t n = 0;
    q->offsets[0] = 0;
    for (uint32_t b = 0; b < N_BAGS; b++) {
        for (uint32_t i = 0; i < b % 7; i++, n++) {
            q->ids[n] = lacks_one(b) && i == b % 7 - 1 ? N_ROWS : (b * 5 + i * 3) % N_ROWS;
            hps_key key = key_of(q->ids[n]);
            float weight = (float)(n % 9) / 4.0f - 1.0f;
            memcpy(q->keys + 1 + (size_t)n * 8, &key, 8);
            memcpy(q->weights + 1 + (size_t)n * 4, &weight, 4);
        }
        q->offsets[b + 1] = n;
    }
}

static struct hps_space *space_with_rows(struct hps_store *store)
{
    struct hps_space *space = contract_space_open(store, 1);
    for (uint32_t id = 0; id < N_ROWS; id++) {
        hps_key key = key_of(id);
        float row[DIM];
        for (uint32_t d = 0; d < DIM; d++) {
            row[d] = value_of(id, d);
        }
        assert_int_equal(store->ops->put(space, &contract_no_limit, &contract_tables[0], &key,
                                         (const uint8_t *)row, 1),
                         HPS_OK);
    }
    return space;
}

/* Compute the result of a bag step by step. */
static void bag_expect(const struct question *q, uint32_t bag, bool weighted,
                       enum hps_pooling pooling, float *out)
{
    float by = 0, squares = 0;
    uint32_t n = q->offsets[bag + 1] - q->offsets[bag];
    memset(out, 0, DIM * sizeof(*out));
    for (uint32_t i = q->offsets[bag]; i < q->offsets[bag + 1]; i++) {
        float weight = 1;
        if (weighted) {
            memcpy(&weight, q->weights + 1 + (size_t)i * 4, 4);
        }
        by += weight;
        squares += weight * weight;
        for (uint32_t d = 0; d < DIM; d++) {
            out[d] += weight * value_of(q->ids[i], d);
        }
    }
    by = pooling == HPS_POOLING_MEAN_BY_COUNT ? (float)n : by;
    by = pooling == HPS_POOLING_SQRTN ? __builtin_sqrtf(squares) : by;
    for (uint32_t d = 0; d < DIM && pooling != HPS_POOLING_SUM; d++) {
        out[d] = by == 0 ? 0 : out[d] / by;
    }
}

struct answer {
    uint8_t rows[N_BAGS * (DIM * 4 + 3)];
    uint32_t whole[(N_BAGS + 31) / 32];
};

static struct hps_bags bags_of(const struct question *q, bool weighted, enum hps_pooling pooling,
                               struct answer *answer)
{
    memset(answer, 0xee, sizeof(*answer));
    return (struct hps_bags){.keys = q->keys + 1,
                             .weights = weighted ? q->weights + 1 : NULL,
                             .offsets = q->offsets,
                             .pooling = pooling,
                             .out = {answer->rows, DIM * 4 + 3, HPS_DTYPE_FP32},
                             .whole = answer->whole};
}

static void check(const struct question *q, const struct hps_bags *bags)
{
    for (uint32_t b = 0; b < N_BAGS; b++) {
        float wanted[DIM];
        assert_int_equal(hps_bags_whole(bags, b), !lacks_one(b));
        if (!lacks_one(b)) {
            bag_expect(q, b, bags->weights != NULL, bags->pooling, wanted);
            assert_memory_equal(bags->out.rows + b * bags->out.stride, wanted, sizeof(wanted));
        }
    }
}

static void test_bags_when_some_lack_a_key_then_other_bags_are_pooled(void **state)
{
    (void)state;
    struct hps_store *store = contract_open();
    struct hps_space *space = space_with_rows(store);
    struct question q;
    struct answer answer;
    question_make(&q);
    for (unsigned pooling = HPS_POOLING_SUM; pooling <= HPS_POOLING_MEAN_BY_COUNT; pooling++) {
        for (unsigned weighted = 0; weighted < 2; weighted++) {
            struct hps_bags bags = bags_of(&q, weighted == 1, (enum hps_pooling)pooling, &answer);
            assert_int_equal(store->ops->pool->bags(space, &contract_no_limit, &contract_tables[0],
                                                    &bags, 0, N_BAGS),
                             HPS_OK);
            check(&q, &bags);
        }
    }
    contract_drop(space);
    store->ops->close(store);
}

/* Bits of other bags are unchanged. */
static void test_bags_when_a_range_is_pooled_then_bits_of_the_rest_stay(void **state)
{
    (void)state;
    struct hps_store *store = contract_open();
    struct hps_space *space = space_with_rows(store);
    struct question q;
    struct answer answer;
    question_make(&q);
    struct hps_bags bags = bags_of(&q, true, HPS_POOLING_MEAN, &answer);
    const struct hps_table *table = &contract_tables[0];
    assert_int_equal(store->ops->pool->bags(space, &contract_no_limit, table, &bags, 32, 32),
                     HPS_OK);
    assert_int_equal(answer.whole[0], 0xeeeeeeee);
    assert_int_equal(answer.whole[2], 0xeeeeeeee);
    assert_int_equal(store->ops->pool->bags(space, &contract_no_limit, table, &bags, 64, 6),
                     HPS_OK);
    assert_int_equal(answer.whole[2] >> 6, 0);
    assert_int_equal(store->ops->pool->bags(space, &contract_no_limit, table, &bags, 0, 32),
                     HPS_OK);
    check(&q, &bags);
    contract_drop(space);
    store->ops->close(store);
}

static void test_bags_when_the_table_is_empty_then_only_empty_bags(void **state)
{
    (void)state;
    struct hps_store *store = contract_open();
    struct hps_space *space = contract_space_open(store, 1);
    struct question q;
    struct answer answer;
    question_make(&q);
    struct hps_bags bags = bags_of(&q, false, HPS_POOLING_SQRTN, &answer);
    assert_int_equal(
        store->ops->pool->bags(space, &contract_no_limit, &contract_tables[0], &bags, 0, N_BAGS),
        HPS_OK);
    for (uint32_t b = 0; b < N_BAGS; b++) {
        assert_int_equal(hps_bags_whole(&bags, b), b % 7 == 0);
    }
    contract_drop(space);
    store->ops->close(store);
}

int contract_pool_run(const char *name)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_bags_when_some_lack_a_key_then_other_bags_are_pooled,
                                  contract_clean),
        cmocka_unit_test_teardown(test_bags_when_a_range_is_pooled_then_bits_of_the_rest_stay,
                                  contract_clean),
        cmocka_unit_test_teardown(test_bags_when_the_table_is_empty_then_only_empty_bags,
                                  contract_clean),
    };
    return cmocka_run_group_tests_name(name, tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Bags of keys, as protobuf-c writes them: read where they lie, or refused with the field and the
 * index that is wrong. One thread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/heap.h"
#include "hps/v1/lookup.pb-c.h"
#include "server/lookup/decode.h"

enum { KEYS_MAX = 8 };

static const struct hps_decode_limits LIMITS = {
    .tables_max = 4, .keys_max = KEYS_MAX, .request_id_max = 16};

struct query_test {
    struct hps_arena *arena;
    uint8_t *bytes; /* what the decoder was given, in a block of just its size */
    struct hps_lookup_request got;
    struct hps_error err;
};

/* One pooled query of zeroes as keys and the rest as given. */
struct asked {
    size_t n_keys;
    int pooling;
    const void *offsets;
    size_t offsets_size;
    const void *weights;
    size_t weights_size;
};

static int setup(void **state)
{
    struct query_test *t = hps_calloc(1, sizeof(*t));

    assert_non_null(t);
    t->arena = hps_arena_new(4096, 1 << 20);
    assert_non_null(t->arena);
    *state = t;
    return 0;
}

static int teardown(void **state)
{
    struct query_test *t = *state;

    hps_arena_free(t->arena);
    hps_free(t->bytes);
    hps_free(t);
    return 0;
}

/* Behind a query of one key, which is not pooled. */
static hps_status decode(struct query_test *t, const struct asked *asked)
{
    static uint8_t zeros[8 * 16];
    Hps__V1__TableQuery first = HPS__V1__TABLE_QUERY__INIT;
    Hps__V1__TableQuery second = HPS__V1__TABLE_QUERY__INIT;
    Hps__V1__TableQuery *queries[] = {&first, &second};
    Hps__V1__LookupRequest request = HPS__V1__LOOKUP_REQUEST__INIT;

    assert_true(asked->n_keys <= 16);
    first.keys = (ProtobufCBinaryData){8, zeros};
    second.keys = (ProtobufCBinaryData){8 * asked->n_keys, zeros};
    second.pooling = (Hps__V1__Pooling)asked->pooling;
    second.offsets =
        (ProtobufCBinaryData){asked->offsets_size, (uint8_t *)(uintptr_t)asked->offsets};
    second.weights =
        (ProtobufCBinaryData){asked->weights_size, (uint8_t *)(uintptr_t)asked->weights};
    request.queries = queries;
    request.n_queries = 2;
    size_t size = hps__v1__lookup_request__get_packed_size(&request);
    hps_free(t->bytes);
    t->bytes = hps_alloc(size);
    assert_non_null(t->bytes);
    hps__v1__lookup_request__pack(&request, t->bytes);
    return hps_decode_lookup(t->bytes, size, &LIMITS, t->arena, &t->got, &t->err);
}

#define BAGS(...)    (const uint32_t[]){__VA_ARGS__}, sizeof((const uint32_t[]){__VA_ARGS__})
#define WEIGHTS(...) (const float[]){__VA_ARGS__}, sizeof((const float[]){__VA_ARGS__})
#define NO_WEIGHTS   NULL, 0

static void expect_refused(struct query_test *t, const struct asked *asked, const char *words)
{
    assert_int_equal(decode(t, asked), HPS_INVALID);
    if (strstr(t->err.text, words) == NULL) {
        fail_msg("'%s' does not say '%s'", t->err.text, words);
    }
}

static void test_bags_when_well_formed_then_read_as_they_are(void **state)
{
    struct query_test *t = *state;
    const struct asked asked = {3, HPS__V1__POOLING__POOLING_SQRTN, BAGS(0, 2, 2, 3),
                                WEIGHTS(0.5F, -1, 3)};

    assert_int_equal(decode(t, &asked), HPS_OK);
    const struct hps_lookup_query *query = &t->got.queries[1];
    assert_int_equal(query->pooling, HPS_POOLING_SQRTN);
    assert_int_equal(query->n_keys, 3);
    assert_int_equal(query->n_bags, 3);
    assert_memory_equal(query->offsets, asked.offsets, asked.offsets_size);
    assert_memory_equal(query->weights, asked.weights, asked.weights_size);
    assert_int_equal(t->got.n_keys, 4);
    assert_int_equal(t->got.n_bags, 3);
    assert_int_equal(t->got.queries[0].pooling, HPS_POOLING_NONE);
}

static void test_bags_when_without_weights_or_keys_then_legal(void **state)
{
    struct query_test *t = *state;
    const struct asked cases[] = {
        {2, HPS__V1__POOLING__POOLING_SUM, BAGS(0, 2), NO_WEIGHTS},
        {0, HPS__V1__POOLING__POOLING_MEAN, BAGS(0, 0, 0), NO_WEIGHTS},
        {0, HPS__V1__POOLING__POOLING_MEAN_BY_COUNT, BAGS(0), NO_WEIGHTS}, /* no bags */
    };
    const uint32_t n_bags[] = {1, 2, 0};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(decode(t, &cases[i]), HPS_OK);
        assert_int_equal(t->got.queries[1].n_bags, n_bags[i]);
        assert_non_null(t->got.queries[1].offsets);
        assert_null(t->got.queries[1].weights);
    }
}

static void test_bags_when_offsets_are_wrong_then_the_index_is_named(void **state)
{
    struct query_test *t = *state;
    const struct asked first = {2, 2, BAGS(1, 2), NO_WEIGHTS};
    const struct asked falls = {3, 2, BAGS(0, 2, 1, 3), NO_WEIGHTS};
    const struct asked early = {3, 2, BAGS(0, 1, 2), NO_WEIGHTS};
    const struct asked late = {3, 2, BAGS(0, 4), NO_WEIGHTS};
    const struct asked wraps = {3, 2, BAGS(0, UINT32_MAX, 3), NO_WEIGHTS};
    const struct asked none = {3, 2, NULL, 0, NO_WEIGHTS};
    const struct asked odd = {3, 2, BAGS(0, 3), NO_WEIGHTS};
    struct asked cut = odd;

    cut.offsets_size -= 1;
    expect_refused(t, &first, "queries[1].offsets[0]: 1, but the first bag begins with key 0");
    expect_refused(t, &falls, "queries[1].offsets[2]: 1 is below the one before it, 2");
    expect_refused(t, &early,
                   "queries[1].offsets[2]: 2, but the last bag ends with the 3 keys of the query");
    expect_refused(t, &late,
                   "queries[1].offsets[1]: 4, but the last bag ends with the 3 keys of the query");
    expect_refused(t, &wraps, "queries[1].offsets[2]: 3 is below the one before it, 4294967295");
    expect_refused(t, &none, "queries[1].offsets: got none");
    expect_refused(t, &cut, "queries[1].offsets: 7 bytes are not a multiple of 4");
}

static void test_bags_when_weights_are_not_one_a_key_then_refused(void **state)
{
    struct query_test *t = *state;
    const struct asked few = {3, 2, BAGS(0, 3), WEIGHTS(1, 1)};
    const struct asked for_none = {0, 2, BAGS(0, 0), WEIGHTS(1)};
    struct asked odd = few;

    odd.weights_size = 5;
    expect_refused(t, &few, "queries[1].weights: got 8 bytes, expected 4 for each of 3 keys");
    expect_refused(t, &for_none, "queries[1].weights: got 4 bytes, expected 4 for each of 0 keys");
    expect_refused(t, &odd, "queries[1].weights: got 5 bytes");
}

static void test_bags_when_nothing_is_pooled_then_their_fields_are_refused(void **state)
{
    struct query_test *t = *state;

    for (int pooling = 0; pooling <= 1; pooling++) {
        const struct asked offsets = {1, pooling, BAGS(0, 1), NO_WEIGHTS};
        const struct asked weights = {1, pooling, NULL, 0, WEIGHTS(1)};
        expect_refused(t, &offsets, "queries[1].offsets: needs queries[1].pooling");
        expect_refused(t, &weights, "queries[1].weights: needs queries[1].pooling");
    }
}

static void test_bags_when_more_than_keys_may_be_then_the_limit_is_named(void **state)
{
    struct query_test *t = *state;
    uint32_t offsets[KEYS_MAX + 2] = {0};
    struct asked asked = {0, 2, offsets, (KEYS_MAX + 1) * sizeof(uint32_t), NO_WEIGHTS};

    assert_int_equal(decode(t, &asked), HPS_OK);
    asked.offsets_size += sizeof(uint32_t);
    expect_refused(t, &asked,
                   "queries: 9 bags, limit is 8; request fewer, or set server.keys_max to 9");
}

int main(void)
{
#define BAGS_TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        BAGS_TEST(test_bags_when_well_formed_then_read_as_they_are),
        BAGS_TEST(test_bags_when_without_weights_or_keys_then_legal),
        BAGS_TEST(test_bags_when_offsets_are_wrong_then_the_index_is_named),
        BAGS_TEST(test_bags_when_weights_are_not_one_a_key_then_refused),
        BAGS_TEST(test_bags_when_nothing_is_pooled_then_their_fields_are_refused),
        BAGS_TEST(test_bags_when_more_than_keys_may_be_then_the_limit_is_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

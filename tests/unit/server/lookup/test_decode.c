/* SPDX-License-Identifier: Apache-2.0
 *
 * The decoder of LookupRequest: what protobuf-c writes is read; limits, fields that are not built,
 * that exclude each other, and malformed bytes are refused by name. Bags: test_decode_query.c. One
 * thread.
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

static const struct hps_decode_limits LIMITS = {
    .tables_max = 4, .keys_max = 10, .request_id_max = 16};

static struct hps_arena *arena;
static struct hps_error err;
static struct hps_lookup_request got;

static int setup(void **state)
{
    (void)state;
    arena = hps_arena_new(4096, 1 << 20);
    memset(&got, 0, sizeof(got));
    memset(&err, 0, sizeof(err));
    return arena == NULL ? -1 : 0;
}

static int teardown(void **state)
{
    (void)state;
    hps_arena_free(arena);
    return 0;
}

/* Decode bytes that lie in a block of just their size, so that ASan sees a read past the end. It is
 * kept for the pointers in `got` until the next call; NULL: just free it. */
static hps_status decode(const void *data, size_t size)
{
    static uint8_t *exact;

    hps_free(exact);
    exact = NULL;
    if (data == NULL) {
        return HPS_OK;
    }
    exact = hps_alloc(size);
    assert_non_null(exact);
    memcpy(exact, data, size);
    return hps_decode_lookup(exact, size, &LIMITS, arena, &got, &err);
}

static hps_status decode_packed(const Hps__V1__LookupRequest *request)
{
    uint8_t bytes[4096];
    size_t size = hps__v1__lookup_request__get_packed_size(request);

    assert_true(size <= sizeof(bytes));
    hps__v1__lookup_request__pack(request, bytes);
    return decode(bytes, size);
}

static void test_decode_when_all_fields_are_set_then_all_are_read(void **state)
{
    (void)state;
    int64_t keys[3] = {1, -1, INT64_MIN};
    int64_t list[2] = {7, 8};
    Hps__V1__TableQuery a = HPS__V1__TABLE_QUERY__INIT;
    Hps__V1__TableQuery b = HPS__V1__TABLE_QUERY__INIT;
    Hps__V1__TableQuery *queries[] = {&a, &b};
    Hps__V1__LookupRequest request = HPS__V1__LOOKUP_REQUEST__INIT;

    a.table = (char *)"items";
    a.keys.data = (uint8_t *)keys;
    a.keys.len = sizeof(keys);
    b.key_list = list;
    b.n_key_list = 2;
    b.pooling = HPS__V1__POOLING__POOLING_NONE;
    request.model = (char *)"m";
    request.version = 3;
    request.queries = queries;
    request.n_queries = 2;
    request.miss_policy = HPS__V1__MISS_POLICY__MISS_POLICY_WAIT;
    request.max_wait_us = 250;
    request.unknown_key_policy = HPS__V1__UNKNOWN_KEY_POLICY__UNKNOWN_KEY_POLICY_ZERO;
    request.output_type = HPS__V1__DATA_TYPE__DATA_TYPE_BF16;
    request.explain = 1;
    request.request_id = (char *)"abc";
    request.consistency = HPS__V1__CONSISTENCY__CONSISTENCY_UNIT;
    request.row_layout = HPS__V1__ROW_LAYOUT__ROW_LAYOUT_PER_TABLE;
    assert_int_equal(decode_packed(&request), HPS_OK);
    assert_memory_equal(got.model, "m", got.model_size);
    assert_int_equal(got.version, 3);
    assert_int_equal(got.n_queries, 2);
    assert_int_equal(got.n_keys, 5);
    assert_int_equal(got.queries[0].table_size, 5);
    assert_memory_equal(got.queries[0].table, "items", 5);
    assert_memory_equal(got.queries[0].keys, keys, sizeof(keys));
    assert_int_equal(got.queries[1].table_size, 0);
    assert_int_equal(got.queries[1].n_keys, 2);
    assert_memory_equal(got.queries[1].keys, list, sizeof(list));
    assert_int_equal(got.miss_policy, HPS_MISS_WAIT);
    assert_int_equal(got.max_wait_us, 250);
    assert_int_equal(got.unknown_policy, HPS_UNKNOWN_ZERO);
    assert_int_equal(got.output, HPS_DTYPE_BF16);
    assert_true(got.explain);
    assert_true(got.unit);
    assert_false(got.concat);
    assert_int_equal(got.queries[1].pooling, HPS_POOLING_NONE);
    assert_null(got.queries[1].offsets);
    assert_int_equal(got.request_id_size, 3);
}

static void test_decode_when_empty_then_defaults(void **state)
{
    (void)state;
    assert_int_equal(decode("", 0), HPS_OK);
    assert_int_equal(got.model_size, 0);
    assert_int_equal(got.n_queries, 0);
    assert_int_equal(got.output, HPS_DTYPE_FP32);
    assert_false(got.unit);
    assert_false(got.concat);
    assert_null(got.request_id);
}

static void test_decode_when_key_list_comes_in_pieces_then_they_are_joined(void **state)
{
    (void)state;
    /* queries: key_list = [1] unpacked, [2, 3] packed, [4] unpacked */
    static const uint8_t bytes[] = {
        0x1a, 36,                                                 /* queries */
        0x19, 1,  0, 0, 0, 0, 0, 0, 0,                            /* 1 */
        0x1a, 16, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, /* 2, 3 */
        0x19, 4,  0, 0, 0, 0, 0, 0, 0,                            /* 4 */
    };
    int64_t expected[] = {1, 2, 3, 4};

    assert_int_equal(decode(bytes, sizeof(bytes)), HPS_OK);
    assert_int_equal(got.queries[0].n_keys, 4);
    assert_memory_equal(got.queries[0].keys, expected, sizeof(expected));
}

static void test_decode_when_scalars_repeat_then_the_last_wins(void **state)
{
    (void)state;
    static const uint8_t bytes[] = {
        0x0a, 1,    'a',  0x0a, 1,    'b', /* model */
        0x20, 2,    0x20, 3,               /* miss_policy */
        0xf8, 0x07, 5,                     /* field 127, unknown */
        0x1a, 4,    0x28, 2,    0x28, 0,   /* pooling SUM, then UNSPECIFIED */
    };

    assert_int_equal(decode(bytes, sizeof(bytes)), HPS_OK);
    assert_memory_equal(got.model, "b", 1);
    assert_int_equal(got.miss_policy, HPS_MISS_MEMORY_ONLY);
}

static void expect_refused(const void *data, size_t size, hps_status status, const char *words)
{
    assert_int_equal(decode(data, size), status);
    assert_int_equal(err.status, status);
    if (strstr(err.text, words) == NULL) {
        fail_msg("'%s' does not say '%s'", err.text, words);
    }
}

/* `n` fields of two bytes, in the request itself or in a query of it. */
static size_t make_fields(uint8_t *to, uint8_t tag, uint8_t value, unsigned n, bool in_query)
{
    size_t size = 0;

    if (in_query) {
        assert_true(2 * n < 16384);
        to[size++] = 0x1a;
        to[size++] = (uint8_t)(2 * n | 0x80);
        to[size++] = (uint8_t)(2 * n >> 7);
    }
    for (unsigned i = 0; i < n; i++) {
        to[size++] = tag;
        to[size++] = value;
    }
    return size;
}

static void test_decode_when_fields_say_nothing_then_not_any_number_of_them(void **state)
{
    static const struct {
        uint8_t tag, value;
        bool in_query;
    } cases[] = {
        {0x78, 5, false},                  /* field 15, unknown */
        {0x20, 2, false},                  /* miss_policy, again and again */
        {0x78, 5, true},  {0x28, 0, true}, /* pooling */
        {0x1a, 0, true},                   /* pieces of key_list without a key */
    };
    static uint8_t bytes[300];
    (void)state;

    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (unsigned n = 64; n <= 65; n++) {
            size_t size = make_fields(bytes, cases[i].tag, cases[i].value, n, cases[i].in_query);
            if (n == 64) {
                assert_int_equal(decode(bytes, size), HPS_OK);
            } else {
                expect_refused(bytes, size, HPS_INVALID, "more than 64 fields");
            }
        }
    }
}

#define EXPECT_REFUSED(status, words, ...)                         \
    do {                                                           \
        static const uint8_t bytes_[] = {__VA_ARGS__};             \
        expect_refused(bytes_, sizeof(bytes_), (status), (words)); \
    } while (0)

static void test_decode_when_a_label_is_set_then_no_version_may_be(void **state)
{
    (void)state;
    static const uint8_t label[] = {0x6a, 1, 'x'};
    static const uint8_t unset[] = {0x6a, 1, 'x', 0x6a, 0, 0x10, 7};
    assert_int_equal(decode(label, sizeof(label)), HPS_OK);
    EXPECT_REFUSED(HPS_INVALID, "label: got it together with version 7", 0x6a, 1, 'x', 0x10, 7);
    assert_int_equal(decode(unset, sizeof(unset)), HPS_OK);
}

static void test_decode_when_output_is_raw_then_nothing_is_added_or_put_side_by_side(void **state)
{
    (void)state;
    static const uint8_t raw[] = {0x38, 15, 0x1a, 0};

    assert_int_equal(decode(raw, sizeof(raw)), HPS_OK);
    assert_int_equal(got.output, HPS_DTYPE_RAW);
    EXPECT_REFUSED(HPS_INVALID, "queries[1].pooling: it and output_type RAW exclude each other",
                   0x38, 15, 0x1a, 0, 0x1a, 8, 0x28, 2, 0x22, 4, 0, 0, 0, 0);
    EXPECT_REFUSED(HPS_INVALID, "row_layout: CONCAT and output_type RAW exclude each other", 0x38,
                   15, 0x60, 2);
}

/* Of query 0 two keys in one bag, of query 1 one key. */
static void test_decode_when_one_matrix_is_asked_then_all_queries_have_as_many_rows(void **state)
{
    (void)state;
    static const uint8_t same[] = {
        0x60, 2,                                                            /* row_layout */
        0x1a, 30, 0x28, 2, 0x12, 16, 0, 0, 0,    0, 0, 0, 0, 0,             /* keys */
        0,    0,  0,    0, 0,    0,  0, 0, 0x22, 8, 0, 0, 0, 0, 2, 0, 0, 0, /* offsets */
        0x1a, 10, 0x12, 8, 1,    0,  0, 0, 0,    0, 0, 0,
    };

    assert_int_equal(decode(same, sizeof(same)), HPS_OK);
    assert_true(got.concat);
    assert_int_equal(got.queries[0].n_bags, 1);
    EXPECT_REFUSED(HPS_INVALID,
                   "queries[1]: 0 keys, but queries[0] has 1 keys: with row_layout CONCAT", 0x60, 2,
                   0x1a, 10, 0x12, 8, 1, 0, 0, 0, 0, 0, 0, 0, 0x1a, 0);
    EXPECT_REFUSED(HPS_INVALID, "queries[1]: 1 bags, but queries[0] has 0 keys", 0x60, 2, 0x1a, 0,
                   0x1a, 12, 0x28, 3, 0x22, 8, 0, 0, 0, 0, 0, 0, 0, 0);
}

static void test_decode_when_values_are_bad_then_they_are_named(void **state)
{
    (void)state;
    EXPECT_REFUSED(HPS_INVALID, "miss_policy: 5", 0x20, 5);
    EXPECT_REFUSED(HPS_INVALID, "unknown_key_policy: 4", 0x30, 4);
    EXPECT_REFUSED(HPS_INVALID, "output_type: 4 (int8_rowwise_f32)", 0x38, 4);
    EXPECT_REFUSED(HPS_INVALID, "output_type: 6", 0x38, 6);
    EXPECT_REFUSED(HPS_INVALID, "row_layout: 3", 0x60, 3);
    EXPECT_REFUSED(HPS_INVALID, "consistency: 3", 0x58, 3);
    EXPECT_REFUSED(HPS_INVALID, "consistency: -1", 0x58, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
                   0xff, 0xff, 1);
    EXPECT_REFUSED(HPS_INVALID, "queries[0].pooling: 9", 0x1a, 2, 0x28, 9);
    EXPECT_REFUSED(HPS_INVALID, "version: -1", 0x10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
                   0xff, 1);
    EXPECT_REFUSED(HPS_INVALID, "queries[0].keys: 7 bytes", 0x1a, 9, 0x12, 7, 0, 0, 0, 0, 0, 0, 0);
    EXPECT_REFUSED(HPS_INVALID, "both keys (1) and key_list (1)", 0x1a, 19, 0x12, 8, 0, 0, 0, 0, 0,
                   0, 0, 0, 0x19, 0, 0, 0, 0, 0, 0, 0, 0);
    EXPECT_REFUSED(HPS_INVALID, "request_id: 17 bytes, limit is 16", 0x4a, 17, 'a', 'a', 'a', 'a',
                   'a', 'a', 'a', 'a', 'a', 'a', 'a', 'a', 'a', 'a', 'a', 'a', 'a');
}

static void test_decode_when_limits_are_passed_then_they_are_named(void **state)
{
    (void)state;
    uint8_t keys[92 + 4 + 16] = {0x1a, 90, 0x12, 88, [92] = 0x1a, 18, 0x1a, 16};

    expect_refused(keys, sizeof(keys), HPS_INVALID,
                   "queries: 13 keys, limit is 10; request fewer, or set server.keys_max to 13");
    EXPECT_REFUSED(HPS_INVALID,
                   "queries: 5, limit is 4; request fewer tables, or set server.tables_max to 5",
                   0x1a, 0, 0x1a, 0, 0x1a, 0, 0x1a, 0, 0x1a, 0);
}

static void test_decode_when_bytes_are_malformed_then_refused(void **state)
{
    (void)state;
    EXPECT_REFUSED(HPS_INVALID, "malformed", 0x0a);                /* no length */
    EXPECT_REFUSED(HPS_INVALID, "malformed", 0x0a, 5, 'a');        /* past the end */
    EXPECT_REFUSED(HPS_INVALID, "malformed", 0x00, 0);             /* field 0 */
    EXPECT_REFUSED(HPS_INVALID, "malformed", 0x0b);                /* group */
    EXPECT_REFUSED(HPS_INVALID, "malformed", 0x0d, 0, 0, 0, 0);    /* model as fixed32 */
    EXPECT_REFUSED(HPS_INVALID, "malformed", 0x10, 0x80);          /* cut varint */
    EXPECT_REFUSED(HPS_INVALID, "malformed", 0x1a, 1, 0x12);       /* cut inside the query */
    EXPECT_REFUSED(HPS_INVALID, "malformed", 0x1a, 3, 0x1a, 1, 0); /* key_list of one byte */
    EXPECT_REFUSED(HPS_INVALID, "malformed", 0x10, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80,
                   0x80, 0x80, 1); /* 11 bytes */
    EXPECT_REFUSED(HPS_INVALID, "malformed", 0x10, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80,
                   0x80, 2); /* 65 bits */
}

static void test_decode_when_arena_is_full_then_refused(void **state)
{
    (void)state;
    struct hps_arena *full = hps_arena_new(64, 64);
    static const uint8_t bytes[] = {0x1a, 0, 0x1a, 0, 0x1a, 0, 0x1a, 0};

    assert_non_null(full);
    assert_int_equal(hps_decode_lookup(bytes, sizeof(bytes), &LIMITS, full, &got, &err),
                     HPS_EXHAUSTED);
    hps_arena_free(full);
}

static int free_exact(void **state)
{
    (void)state;
    return decode(NULL, 0) == HPS_OK ? 0 : -1;
}

int main(void)
{
#define DECODE_TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        DECODE_TEST(test_decode_when_all_fields_are_set_then_all_are_read),
        DECODE_TEST(test_decode_when_empty_then_defaults),
        DECODE_TEST(test_decode_when_key_list_comes_in_pieces_then_they_are_joined),
        DECODE_TEST(test_decode_when_scalars_repeat_then_the_last_wins),
        DECODE_TEST(test_decode_when_fields_say_nothing_then_not_any_number_of_them),
        DECODE_TEST(test_decode_when_a_label_is_set_then_no_version_may_be),
        DECODE_TEST(test_decode_when_output_is_raw_then_nothing_is_added_or_put_side_by_side),
        DECODE_TEST(test_decode_when_one_matrix_is_asked_then_all_queries_have_as_many_rows),
        DECODE_TEST(test_decode_when_values_are_bad_then_they_are_named),
        DECODE_TEST(test_decode_when_limits_are_passed_then_they_are_named),
        DECODE_TEST(test_decode_when_bytes_are_malformed_then_refused),
        DECODE_TEST(test_decode_when_arena_is_full_then_refused),
    };

    return cmocka_run_group_tests(tests, NULL, free_exact);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The encoder against protobuf-c: whole answers, and answers in pieces put together again. One
 * thread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "hps/v1/lookup.pb-c.h"
#include "server/lookup/encode.h"
#include "tests/lib/lookup_fixture.h"

enum { KEYS_MAX = 80000, PARTS = 3 };

struct encode_test {
    struct fixture fx;
    struct hps_arena *arena;
    struct hps_block_pool *pool;
    struct hps_block *rows;
    hps_key keys[PARTS][KEYS_MAX];
    struct hps_lookup_part parts[PARTS];
    struct hps_lookup lookup;
    struct hps_error err;
};

static int setup(void **state)
{
    struct encode_test *t = hps_calloc(1, sizeof(*t));

    assert_non_null(t);
    fixture_open(&t->fx, 0);
    t->arena = hps_arena_new(4096, 1 << 26);
    t->pool = hps_block_pool_new(1 << 20);
    assert_non_null(t->arena);
    assert_non_null(t->pool);
    *state = t;
    return 0;
}

static int teardown(void **state)
{
    struct encode_test *t = *state;

    hps_block_unref(t->rows);
    assert_int_equal(hps_block_pool_bytes(t->pool), 0); /* every reference was given back */
    hps_block_pool_free(t->pool);
    hps_arena_free(t->arena);
    fixture_close(&t->fx);
    hps_free(t);
    return 0;
}

/* Look n keys of each of n_parts tables up: even keys are in the host, multiples of 3 on disk. */
static void look_up(struct encode_test *t, uint32_t n_parts, uint32_t n, uint32_t key_space)
{
    bool done = false;

    for (uint32_t p = 0; p < n_parts; p++) {
        for (hps_key key = 0; key < key_space && key < 300; key++) {
            if (key % 2 == 0) {
                fixture_put(&t->fx, FIXTURE_HOST, p, key);
            } else if (key % 3 == 0) {
                fixture_put(&t->fx, FIXTURE_DISK, p, key);
            }
        }
        for (uint32_t i = 0; i < n; i++) {
            t->keys[p][i] = hps_mix64(i + p) % key_space;
        }
        t->parts[p] = (struct hps_lookup_part){
            .table = &t->fx.tables[p], .keys = (const uint8_t *)t->keys[p], .n_keys = n};
    }
    t->lookup.version = &t->fx.version;
    t->lookup.arena = t->arena;
    t->lookup.parts = t->parts;
    t->lookup.n_parts = n_parts;
    assert_int_equal(hps_lookup_plan(&t->lookup, &t->err), HPS_OK);
    t->rows = hps_block_new(t->pool, t->lookup.rows_bytes + 1);
    assert_non_null(t->rows);
    t->lookup.rows = t->rows->data;
    assert_int_equal(hps_lookup_run_memory(&t->lookup, &done, &t->err), HPS_OK);
    if (!done) {
        assert_int_equal(hps_lookup_run_rest(&t->lookup, &t->err), HPS_OK);
    }
}

/* The message that the slices make, parsed; the slices are given back. */
static Hps__V1__LookupResponse *parse(struct hps_encoded *encoded)
{
    uint8_t *bytes = hps_alloc(encoded->size);
    size_t size = 0;

    assert_non_null(bytes);
    for (unsigned i = 0; i < encoded->n_slices; i++) {
        assert_true(encoded->slices[i].size > 0);
        memcpy(bytes + size, encoded->slices[i].data, encoded->slices[i].size);
        size += encoded->slices[i].size;
    }
    assert_int_equal(size, encoded->size);
    Hps__V1__LookupResponse *response = hps__v1__lookup_response__unpack(NULL, size, bytes);
    assert_non_null(response);
    assert_int_equal(hps__v1__lookup_response__get_packed_size(response), size); /* canonical */
    hps_free(bytes);
    hps_encoded_release(encoded);
    return response;
}

static void check_result(const struct encode_test *t, uint32_t p,
                         const Hps__V1__TableResult *result)
{
    const struct hps_lookup_part *part = &t->parts[p];
    uint32_t n_found = 0;

    assert_string_equal(result->table, part->table->name);
    assert_int_equal(result->dim, part->table->dim);
    assert_int_equal(result->data_type, HPS__V1__DATA_TYPE__DATA_TYPE_FP32);
    assert_int_equal(result->row_count, part->n_keys);
    assert_int_equal(result->unique_key_count, part->n_unique);
    assert_int_equal(result->unknown_key_count, part->n_unknown);
    assert_int_equal(result->rows.len, part->rows_bytes);
    assert_memory_equal(result->rows.data, part->rows, part->rows_bytes);
    assert_int_equal(result->key_status.len, part->n_keys);
    assert_memory_equal(result->key_status.data, part->key_status, part->n_keys);
    for (size_t i = 0; i < result->n_tier_counts; i++) {
        n_found += result->tier_counts[i]->found_keys;
    }
    assert_int_equal(n_found, part->n_unique - part->walk.batch.n - part->walk.n_absent);
    assert_int_equal(result->n_tier_counts, 2);
    assert_string_equal(result->tier_counts[0]->tier, "host");
    assert_string_equal(result->tier_counts[1]->tier, "rocksdb");
}

static void test_encode_when_parsed_by_protobuf_then_equal(void **state)
{
    struct encode_test *t = *state;
    struct hps_encoded encoded;
    struct hps_encode_stage stages[2] = {{"decode", 5}, {"host", 0}};
    const char *notes[1] = {"why"};
    struct hps_encode_explain explain = {
        .stages = stages, .n_stages = 2, .notes = notes, .n_notes = 1};

    look_up(t, PARTS, 1000, 500);
    t->lookup.update_sequence = 1000;
    assert_int_equal(hps_encode_lookup(&t->lookup, &explain, t->rows, t->pool, t->arena, &encoded),
                     HPS_OK);
    assert_true(encoded.size <= hps_encode_size_max(&t->lookup) + 200);
    Hps__V1__LookupResponse *response = parse(&encoded);
    assert_string_equal(response->model, "m");
    assert_int_equal(response->version, 7);
    assert_string_equal(response->label, "nightly");
    assert_int_equal(response->update_sequence, 1000);
    assert_int_equal(response->n_results, PARTS);
    for (uint32_t p = 0; p < PARTS; p++) {
        check_result(t, p, response->results[p]);
    }
    assert_int_equal(response->explain->n_stages, 2);
    assert_string_equal(response->explain->stages[0]->name, "decode");
    assert_int_equal(response->explain->stages[0]->duration_us, 5);
    assert_string_equal(response->explain->notes[0], "why");
    hps__v1__lookup_response__free_unpacked(response, NULL);
}

static void test_encode_when_all_are_found_then_no_status_is_sent(void **state)
{
    struct encode_test *t = *state;
    struct hps_encoded encoded;

    look_up(t, 1, 20, 1);
    t->fx.version.label = NULL;
    assert_int_equal(hps_encode_lookup(&t->lookup, NULL, t->rows, t->pool, t->arena, &encoded),
                     HPS_OK);
    Hps__V1__LookupResponse *response = parse(&encoded);
    assert_int_equal(response->results[0]->key_status.len, 0);
    assert_int_equal(response->results[0]->unique_key_count, 1);
    assert_int_equal(response->results[0]->row_count, 20);
    assert_null(response->explain);
    hps__v1__lookup_response__free_unpacked(response, NULL);
}

static void test_encode_when_nothing_is_asked_then_the_version_is_told(void **state)
{
    struct encode_test *t = *state;
    struct hps_encoded encoded;

    look_up(t, 0, 0, 1);
    assert_int_equal(hps_encode_lookup(&t->lookup, NULL, t->rows, t->pool, t->arena, &encoded),
                     HPS_OK);
    Hps__V1__LookupResponse *response = parse(&encoded);
    assert_int_equal(response->version, 7);
    assert_int_equal(response->n_results, 0);
    hps__v1__lookup_response__free_unpacked(response, NULL);
}

static void test_encode_when_rows_are_sent_then_they_are_not_copied(void **state)
{
    struct encode_test *t = *state;
    struct hps_encoded encoded;
    uint64_t by_reference = 0;

    look_up(t, PARTS, 100, 10);
    assert_int_equal(hps_encode_lookup(&t->lookup, NULL, t->rows, t->pool, t->arena, &encoded),
                     HPS_OK);
    for (unsigned i = 0; i < encoded.n_slices; i++) {
        if (encoded.slices[i].block == t->rows) {
            assert_int_equal((uintptr_t)encoded.slices[i].data % HPS_ROWS_ALIGN, 0);
            by_reference += encoded.slices[i].size;
        }
    }
    assert_int_equal(by_reference, 100 * (4 + 3 + 16) * 4);
    hps_encoded_release(&encoded);
}

/* ---- streams --------------------------------------------------------------------------------- */

/* Counts of rows [row, row + n) of a part, done the slow way. */
static void check_counts(const struct encode_test *t, uint32_t p, uint32_t row,
                         const Hps__V1__TableResult *result)
{
    static uint8_t seen[KEYS_MAX];
    uint32_t n_unique = 0;
    uint32_t n_unknown = 0;
    uint32_t n_found = 0;

    memset(seen, 0, sizeof(seen));
    for (uint32_t i = row; i < row + result->row_count; i++) {
        hps_key key = t->keys[p][i];
        bool known = key < 300 && (key % 2 == 0 || key % 3 == 0);
        n_unknown += known ? 0 : 1;
        if (seen[key] == 0) {
            n_unique++;
            n_found += known ? 1 : 0;
        }
        seen[key] = 1;
    }
    assert_int_equal(result->unique_key_count, n_unique);
    assert_int_equal(result->unknown_key_count, n_unknown);
    assert_int_equal(result->key_status.len, n_unknown > 0 ? result->row_count : 0);
    for (size_t i = 0; i < result->n_tier_counts; i++) {
        n_found -= result->tier_counts[i]->found_keys;
    }
    assert_int_equal(n_found, 0);
}

static void test_stream_when_put_together_then_equals_the_whole(void **state)
{
    struct encode_test *t = *state;
    struct hps_stream *stream = NULL;
    uint32_t part = 0;
    uint32_t row = 0;
    uint32_t n_messages = 0;

    look_up(t, PARTS, KEYS_MAX, 2000);
    assert_int_equal(hps_stream_new(&t->lookup, NULL, t->rows, t->pool, t->arena, &stream), HPS_OK);
    t->lookup.version = NULL; /* must not be needed any more */
    while (!hps_stream_done(stream)) {
        struct hps_encoded encoded;
        assert_int_equal(hps_stream_next(stream, &encoded), HPS_OK);
        assert_true(encoded.size <= HPS_STREAM_MESSAGE_BYTES_MAX);
        Hps__V1__LookupResponse *response = parse(&encoded);
        n_messages++;
        assert_string_equal(response->model, "m");
        assert_int_equal(response->n_results, 1);
        const Hps__V1__TableResult *result = response->results[0];
        assert_string_equal(result->table, t->fx.tables[part].name);
        assert_int_equal(result->rows.len, (size_t)result->row_count * t->parts[part].row_bytes);
        assert_memory_equal(result->rows.data,
                            t->parts[part].rows + (size_t)row * t->parts[part].row_bytes,
                            result->rows.len);
        check_counts(t, part, row, result);
        row += result->row_count;
        if (row == t->parts[part].n_keys) {
            part++;
            row = 0;
        }
        hps__v1__lookup_response__free_unpacked(response, NULL);
    }
    assert_int_equal(part, PARTS);
    assert_int_equal(row, 0);
    assert_true(n_messages >= 8); /* 7.4 MB */
}

static void test_stream_when_nothing_is_asked_then_one_message(void **state)
{
    struct encode_test *t = *state;
    struct hps_stream *stream = NULL;
    struct hps_encoded encoded;

    look_up(t, 0, 0, 1);
    assert_int_equal(hps_stream_new(&t->lookup, NULL, t->rows, t->pool, t->arena, &stream), HPS_OK);
    assert_false(hps_stream_done(stream));
    assert_int_equal(hps_stream_next(stream, &encoded), HPS_OK);
    assert_true(hps_stream_done(stream));
    Hps__V1__LookupResponse *response = parse(&encoded);
    assert_int_equal(response->version, 7);
    hps__v1__lookup_response__free_unpacked(response, NULL);
}

static void test_stream_when_parts_are_empty_then_each_has_a_message(void **state)
{
    struct encode_test *t = *state;
    struct hps_stream *stream = NULL;
    uint32_t n_messages = 0;

    look_up(t, PARTS, 0, 1);
    assert_int_equal(hps_stream_new(&t->lookup, NULL, t->rows, t->pool, t->arena, &stream), HPS_OK);
    while (!hps_stream_done(stream)) {
        struct hps_encoded encoded;
        assert_int_equal(hps_stream_next(stream, &encoded), HPS_OK);
        Hps__V1__LookupResponse *response = parse(&encoded);
        assert_string_equal(response->results[0]->table, t->fx.tables[n_messages].name);
        assert_int_equal(response->results[0]->row_count, 0);
        n_messages++;
        hps__v1__lookup_response__free_unpacked(response, NULL);
    }
    assert_int_equal(n_messages, PARTS);
}

int main(void)
{
#define ENCODE_TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        ENCODE_TEST(test_encode_when_parsed_by_protobuf_then_equal),
        ENCODE_TEST(test_encode_when_all_are_found_then_no_status_is_sent),
        ENCODE_TEST(test_encode_when_nothing_is_asked_then_the_version_is_told),
        ENCODE_TEST(test_encode_when_rows_are_sent_then_they_are_not_copied),
        ENCODE_TEST(test_stream_when_put_together_then_equals_the_whole),
        ENCODE_TEST(test_stream_when_nothing_is_asked_then_one_message),
        ENCODE_TEST(test_stream_when_parts_are_empty_then_each_has_a_message),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Answers in pieces, put together again: rows of one table after the other, bags, and rows of a
 * matrix; and their counts against slow ones. One thread.
 */
#include "tests/lib/encode_fixture.h"

/* Where the messages have come to in a part. */
struct progress {
    uint32_t row;
    uint32_t n_messages;
};

static uint32_t first_key(const struct hps_lookup_part *part, uint32_t row)
{
    return part->offsets == NULL ? row : part->offsets[row];
}

/* Counts of keys [begin, end) of a part, done the slow way. */
static void check_counts(const struct encode_test *t, uint32_t p, uint32_t begin, uint32_t end,
                         const Hps__V1__TableResult *result)
{
    static uint8_t seen[ENCODE_KEYS_MAX];
    uint32_t n_unique = 0;
    uint32_t n_unknown = 0;
    uint32_t n_found = 0;

    memset(seen, 0, sizeof(seen));
    for (uint32_t i = begin; i < end; i++) {
        hps_key key = t->keys[p][i];
        n_unknown += encode_knows(key) ? 0 : 1;
        if (seen[key] == 0) {
            n_unique++;
            n_found += encode_knows(key) ? 1 : 0;
        }
        seen[key] = 1;
    }
    assert_int_equal(result->unique_key_count, n_unique);
    assert_int_equal(result->unknown_key_count, n_unknown);
    assert_int_equal(result->key_status.len, n_unknown > 0 ? end - begin : 0);
    if (n_unknown > 0) {
        assert_memory_equal(result->key_status.data, t->parts[p].key_status + begin, end - begin);
    }
    for (size_t i = 0; i < result->n_tier_counts; i++) {
        n_found -= result->tier_counts[i]->found_keys;
    }
    assert_int_equal(n_found, 0);
}

/* The next rows of a part. */
static void check_result(const struct encode_test *t, uint32_t p, struct progress *progress,
                         const Hps__V1__TableResult *result)
{
    const struct hps_lookup_part *part = &t->parts[p];
    size_t row_bytes = t->lookup.layout == HPS_LAYOUT_CONCAT ? 0 : part->row_bytes;

    assert_string_equal(result->table, t->fx.tables[p].name);
    assert_int_equal(result->dim, t->fx.tables[p].dim);
    assert_int_equal(result->column, part->column);
    assert_true(result->row_count <= part->n_rows - progress->row);
    assert_int_equal(result->rows.len, result->row_count * row_bytes);
    if (result->rows.len > 0) {
        assert_memory_equal(result->rows.data, part->rows + progress->row * row_bytes,
                            result->rows.len);
    }
    check_counts(t, p, first_key(part, progress->row),
                 first_key(part, progress->row + result->row_count), result);
    progress->row += result->row_count;
}

static Hps__V1__LookupResponse *next_message(struct hps_stream *stream)
{
    struct hps_encoded encoded;

    assert_int_equal(hps_stream_next(stream, &encoded), HPS_OK);
    assert_true(encoded.size <= HPS_STREAM_MESSAGE_BYTES_MAX);
    return encode_parse(&encoded);
}

/* Each message has rows of one part, whole bags of it. Returns how many there were. */
static uint32_t check_tables(struct encode_test *t, uint32_t n_parts)
{
    struct progress progress = {0};
    struct hps_stream *stream = NULL;
    uint32_t part = 0;

    assert_int_equal(hps_stream_new(&t->lookup, NULL, t->rows, t->pool, t->arena, &stream), HPS_OK);
    t->lookup.version = NULL; /* must not be needed any more */
    while (!hps_stream_done(stream)) {
        Hps__V1__LookupResponse *response = next_message(stream);
        progress.n_messages++;
        assert_string_equal(response->model, "m");
        assert_int_equal(response->n_results, 1);
        check_result(t, part, &progress, response->results[0]);
        if (progress.row == t->parts[part].n_rows) {
            part++;
            progress.row = 0;
        }
        hps__v1__lookup_response__free_unpacked(response, NULL);
    }
    assert_int_equal(part, n_parts);
    assert_int_equal(progress.row, 0);
    return progress.n_messages;
}

/* Each message has whole rows of the matrix, and a result for every part. */
static uint32_t check_matrix(struct encode_test *t)
{
    struct progress progress[ENCODE_PARTS] = {{0}};
    struct hps_stream *stream = NULL;
    uint64_t at = 0;

    assert_int_equal(hps_stream_new(&t->lookup, NULL, t->rows, t->pool, t->arena, &stream), HPS_OK);
    t->lookup.version = NULL;
    while (!hps_stream_done(stream)) {
        Hps__V1__LookupResponse *response = next_message(stream);
        progress[0].n_messages++;
        assert_int_equal(response->n_results, ENCODE_PARTS);
        for (uint32_t p = 0; p < ENCODE_PARTS; p++) {
            check_result(t, p, &progress[p], response->results[p]);
            assert_int_equal(progress[p].row, progress[0].row);
        }
        assert_true(at + response->matrix.len <= t->lookup.matrix_bytes);
        assert_int_equal(response->matrix.len,
                         response->results[0]->row_count * t->parts[0].stride);
        assert_memory_equal(response->matrix.data, t->lookup.rows + at, response->matrix.len);
        at += response->matrix.len;
        hps__v1__lookup_response__free_unpacked(response, NULL);
    }
    assert_int_equal(at, t->lookup.matrix_bytes);
    return progress[0].n_messages;
}

static void test_stream_when_put_together_then_equals_the_whole(void **state)
{
    struct encode_test *t = *state;
    const struct encode_ask ask = {ENCODE_PARTS, ENCODE_KEYS_MAX, 2000, false, false};

    encode_lookup(t, &ask);
    assert_true(check_tables(t, ENCODE_PARTS) >= 8); /* 7.4 MB */
}

static void test_stream_when_bags_are_asked_then_each_message_has_whole_ones(void **state)
{
    struct encode_test *t = *state;
    const struct encode_ask ask = {ENCODE_PARTS, ENCODE_KEYS_MAX, 2000, true, false};

    encode_lookup(t, &ask);
    assert_true(check_tables(t, ENCODE_PARTS) >= ENCODE_PARTS + 2); /* 3.7 MB, 240 KB of status */
}

static void test_stream_when_a_matrix_is_asked_then_each_message_has_whole_rows(void **state)
{
    struct encode_test *t = *state;
    const struct encode_ask ask = {ENCODE_PARTS, ENCODE_KEYS_MAX, 2000, false, true};

    encode_lookup(t, &ask);
    assert_true(check_matrix(t) >= 8);
}

static void test_stream_when_a_matrix_of_bags_is_asked_then_keys_are_counted_where_they_are(
    void **state)
{
    struct encode_test *t = *state;
    const struct encode_ask ask = {ENCODE_PARTS, ENCODE_KEYS_MAX, 2000, true, true};

    encode_lookup(t, &ask);
    assert_true(check_matrix(t) >= 4);
}

static void test_stream_when_nothing_is_asked_then_one_message(void **state)
{
    struct encode_test *t = *state;
    struct hps_stream *stream = NULL;

    for (int concat = 0; concat < 2; concat++) {
        encode_lookup(t, &(struct encode_ask){0, 0, 1, false, concat == 1});
        assert_int_equal(hps_stream_new(&t->lookup, NULL, t->rows, t->pool, t->arena, &stream),
                         HPS_OK);
        assert_false(hps_stream_done(stream));
        Hps__V1__LookupResponse *response = next_message(stream);
        assert_true(hps_stream_done(stream));
        assert_int_equal(response->version, 7);
        hps__v1__lookup_response__free_unpacked(response, NULL);
        hps_block_unref(t->rows);
        t->rows = NULL;
    }
}

static void test_stream_when_parts_are_empty_then_each_has_a_message(void **state)
{
    struct encode_test *t = *state;

    encode_lookup(t, &(struct encode_ask){ENCODE_PARTS, 0, 1, false, false});
    assert_int_equal(check_tables(t, ENCODE_PARTS), ENCODE_PARTS);
}

static void test_stream_when_a_matrix_is_empty_then_one_message_has_all_results(void **state)
{
    struct encode_test *t = *state;

    encode_lookup(t, &(struct encode_ask){ENCODE_PARTS, 0, 1, true, true});
    assert_int_equal(check_matrix(t), 1);
}

int main(void)
{
#define STREAM_TEST(fn) cmocka_unit_test_setup_teardown(fn, encode_setup, encode_teardown)
    const struct CMUnitTest tests[] = {
        STREAM_TEST(test_stream_when_put_together_then_equals_the_whole),
        STREAM_TEST(test_stream_when_bags_are_asked_then_each_message_has_whole_ones),
        STREAM_TEST(test_stream_when_a_matrix_is_asked_then_each_message_has_whole_rows),
        STREAM_TEST(
            test_stream_when_a_matrix_of_bags_is_asked_then_keys_are_counted_where_they_are),
        STREAM_TEST(test_stream_when_nothing_is_asked_then_one_message),
        STREAM_TEST(test_stream_when_parts_are_empty_then_each_has_a_message),
        STREAM_TEST(test_stream_when_a_matrix_is_empty_then_one_message_has_all_results),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

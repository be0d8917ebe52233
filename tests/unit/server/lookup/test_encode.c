/* SPDX-License-Identifier: Apache-2.0
 *
 * The encoder of whole answers against protobuf-c. One thread.
 */
#include "tests/lib/encode_fixture.h"

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

    encode_lookup(t, &(struct encode_ask){ENCODE_PARTS, 1000, 500, false, false});
    t->lookup.update_sequence = 1000;
    assert_int_equal(hps_encode_lookup(&t->lookup, &explain, t->rows, t->pool, t->arena, &encoded),
                     HPS_OK);
    assert_true(encoded.size <= hps_encode_size_max(&t->lookup) + 200);
    Hps__V1__LookupResponse *response = encode_parse(&encoded);
    assert_string_equal(response->model, "m");
    assert_int_equal(response->version, 7);
    assert_string_equal(response->label, "nightly");
    assert_int_equal(response->update_sequence, 1000);
    assert_int_equal(response->n_results, ENCODE_PARTS);
    for (uint32_t p = 0; p < ENCODE_PARTS; p++) {
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

    encode_lookup(t, &(struct encode_ask){1, 20, 1, false, false});
    t->fx.version.label = NULL;
    assert_int_equal(hps_encode_lookup(&t->lookup, NULL, t->rows, t->pool, t->arena, &encoded),
                     HPS_OK);
    Hps__V1__LookupResponse *response = encode_parse(&encoded);
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

    encode_lookup(t, &(struct encode_ask){0, 0, 1, false, false});
    assert_int_equal(hps_encode_lookup(&t->lookup, NULL, t->rows, t->pool, t->arena, &encoded),
                     HPS_OK);
    Hps__V1__LookupResponse *response = encode_parse(&encoded);
    assert_int_equal(response->version, 7);
    assert_int_equal(response->n_results, 0);
    hps__v1__lookup_response__free_unpacked(response, NULL);
}

static void test_encode_when_rows_are_sent_then_they_are_not_copied(void **state)
{
    struct encode_test *t = *state;
    struct hps_encoded encoded;
    uint64_t by_reference = 0;

    encode_lookup(t, &(struct encode_ask){ENCODE_PARTS, 100, 10, false, false});
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

static void test_encode_when_bags_are_asked_then_rows_are_of_bags_and_counts_of_keys(void **state)
{
    struct encode_test *t = *state;
    const struct encode_ask ask = {ENCODE_PARTS, 1000, 500, true, false};
    struct hps_encoded encoded;

    encode_lookup(t, &ask);
    assert_int_equal(hps_encode_lookup(&t->lookup, NULL, t->rows, t->pool, t->arena, &encoded),
                     HPS_OK);
    assert_true(encoded.size <= hps_encode_size_max(&t->lookup));
    Hps__V1__LookupResponse *response = encode_parse(&encoded);
    for (uint32_t p = 0; p < ENCODE_PARTS; p++) {
        const Hps__V1__TableResult *result = response->results[p];
        assert_int_equal(result->row_count, t->n_bags);
        assert_int_equal(result->dim, t->parts[p].table->dim);
        assert_int_equal(result->key_status.len, 1000);
        assert_memory_equal(result->key_status.data, t->parts[p].key_status, 1000);
        assert_int_equal(result->unknown_key_count, t->parts[p].n_unknown);
        assert_int_equal(result->rows.len, (size_t)t->n_bags * result->dim * sizeof(float));
        assert_memory_equal(result->rows.data, t->parts[p].rows, result->rows.len);
    }
    hps__v1__lookup_response__free_unpacked(response, NULL);
}

static void test_encode_when_a_matrix_is_asked_then_it_is_the_last_field_with_all_rows(void **state)
{
    struct encode_test *t = *state;
    const struct encode_ask ask = {ENCODE_PARTS, 100, 500, false, true};
    const char *const notes[1] = {"why"};
    const struct hps_encode_explain explain = {.notes = notes, .n_notes = 1};
    struct hps_encoded encoded;
    uint32_t column = 0;

    encode_lookup(t, &ask);
    assert_int_equal(hps_encode_lookup(&t->lookup, &explain, t->rows, t->pool, t->arena, &encoded),
                     HPS_OK);
    const struct hps_slice *last = &encoded.slices[encoded.n_slices - 1];
    assert_ptr_equal(last->data, t->lookup.rows); /* not copied, and nothing behind it */
    assert_int_equal(last->size, (size_t)100 * (4 + 3 + 16) * sizeof(float));
    Hps__V1__LookupResponse *response = encode_parse(&encoded);
    assert_int_equal(response->matrix.len, t->lookup.matrix_bytes);
    assert_memory_equal(response->matrix.data, t->lookup.rows, response->matrix.len);
    assert_string_equal(response->explain->notes[0], "why");
    for (uint32_t p = 0; p < ENCODE_PARTS; p++) {
        assert_int_equal(response->results[p]->rows.len, 0);
        assert_int_equal(response->results[p]->row_count, 100);
        assert_int_equal(response->results[p]->column, column);
        column += response->results[p]->dim;
    }
    hps__v1__lookup_response__free_unpacked(response, NULL);
}

int main(void)
{
#define ENCODE_TEST(fn) cmocka_unit_test_setup_teardown(fn, encode_setup, encode_teardown)
    const struct CMUnitTest tests[] = {
        ENCODE_TEST(test_encode_when_parsed_by_protobuf_then_equal),
        ENCODE_TEST(test_encode_when_all_are_found_then_no_status_is_sent),
        ENCODE_TEST(test_encode_when_nothing_is_asked_then_the_version_is_told),
        ENCODE_TEST(test_encode_when_rows_are_sent_then_they_are_not_copied),
        ENCODE_TEST(test_encode_when_bags_are_asked_then_rows_are_of_bags_and_counts_of_keys),
        ENCODE_TEST(test_encode_when_a_matrix_is_asked_then_it_is_the_last_field_with_all_rows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

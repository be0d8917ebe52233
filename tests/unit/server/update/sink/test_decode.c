/* SPDX-License-Identifier: Apache-2.0
 *
 * Decoding of records into parts: the three forms, the reasons of rejected records, and that a bad
 * record adds no rows.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "hps/v1/update.pb-c.h"
#include "server/update/sink/decode.h"
#include "tests/lib/decode_bytes.h"
#include "tests/lib/update_fixture.h"

static const hps_key ONE = 1;
static const float ROW[FIXTURE_DIM] = {10, 10};

struct rig {
    struct update_fixture fx;
    atomic_bool nan_allowed;
    struct hps_update_decoder *decoder;
    struct hps_error err;
};

static int setup(void **state)
{
    struct rig *rig = hps_calloc(1, sizeof(*rig));
    fixture_stores(&rig->fx);
    fixture_version(&rig->fx, 7, "run");
    rig->decoder = hps_update_decoder_new(rig->fx.version, 8, &rig->nan_allowed);
    assert_non_null(rig->decoder);
    *state = rig;
    return 0;
}

static int teardown(void **state)
{
    struct rig *rig = *state;
    hps_update_decoder_free(rig->decoder);
    fixture_version_close(&rig->fx);
    fixture_stores_close(&rig->fx);
    hps_free(rig);
    return 0;
}

static struct hps_update_outcome add(struct rig *rig, const char *topic,
                                     const struct hps_update_bytes *record)
{
    struct hps_update_route route;
    struct hps_update_outcome outcome;
    assert_true(hps_update_route(rig->fx.version, topic, &route));
    assert_int_equal(decode_bytes(rig->decoder, &route, record, true, &outcome, &rig->err), HPS_OK);
    return outcome;
}

/* Apply the decoded batch, and clear it. */
static void apply(struct rig *rig)
{
    struct hps_update_batch batch = {0};
    batch.parts = hps_update_decoder_parts(rig->decoder, &batch.n_parts);
    hps_version_pin(rig->fx.version);
    assert_int_equal(hps_update_apply(rig->fx.version, &batch, &rig->err), HPS_OK);
    hps_version_unpin(rig->fx.version);
    hps_update_decoder_clear(rig->decoder);
}

static struct hps_update_bytes keyed(const hps_key *key, const float *row)
{
    return (struct hps_update_bytes){.key = key,
                                     .key_size = sizeof(*key),
                                     .value = row,
                                     .value_size = row == NULL ? 0 : FIXTURE_DIM * sizeof(float)};
}

/* ---- forms ----------------------------------------------------------------------------------- */

static void test_forms_when_mixed_then_applied_in_order(void **state)
{
    struct rig *rig = *state;
    const hps_key keys[3] = {1, 2, 3};
    const float rows[6] = {10, 10, 20, 20, 30, 30};
    uint8_t hctr[8 + 3 * (8 + 8)];
    const float later[2] = {21, 21};
    hps_update_hctr_encode(keys, rows, 3, 8, 8, hctr);
    const struct hps_update_bytes batch = {.value = hctr, .value_size = sizeof(hctr)};
    struct hps_update_bytes put = keyed(&keys[1], later);
    struct hps_update_bytes gone = keyed(&keys[2], NULL);

    assert_int_equal(add(rig, "hps_et.m.items", &batch).n_keys, 3);
    assert_int_equal(add(rig, "hps_et.m.users", &batch).n_keys, 3);
    assert_int_equal(add(rig, "hps_et.m.items", &put).n_keys, 1);
    assert_int_equal(add(rig, "hps_et.m.items", &gone).n_keys, 1);
    apply(rig);

    assert_true(fixture_value(&rig->fx, FIXTURE_ITEMS, 1) == 10);
    assert_true(fixture_value(&rig->fx, FIXTURE_ITEMS, 2) == 21);
    assert_true(fixture_value(&rig->fx, FIXTURE_ITEMS, 3) == -1);
    assert_true(fixture_value(&rig->fx, FIXTURE_USERS, 3) == 30);
}

static void test_keys_when_the_version_has_32_bit_keys_then_low_bits_are_stored(void **state)
{
    struct rig *rig = *state;
    const hps_key keys[3] = {(hps_key)-5, (UINT64_C(7) << 32) + 6, 6 + (UINT64_C(1) << 63)};
    hps_update_decoder_free(rig->decoder);
    rig->decoder = hps_update_decoder_new(rig->fx.version, 4, &rig->nan_allowed);
    for (unsigned i = 0; i < 3; i++) {
        struct hps_update_bytes one = keyed(&keys[i], i == 2 ? NULL : ROW);
        assert_int_equal(add(rig, "hps_et.m.items", &one).n_keys, 1);
        apply(rig);
        assert_true(fixture_value(&rig->fx, FIXTURE_ITEMS, 4294967291) == 10);
        assert_true(fixture_value(&rig->fx, FIXTURE_ITEMS, 6) == (i == 1 ? 10 : -1));
    }
}

/* A packed record of key 5 in both tables, key 1 deleted in the first. */
static size_t pack(uint8_t *out, int64_t version, const char *second, size_t second_rows_bytes)
{
    static const hps_key keys[1] = {5};
    static const hps_key deletes[1] = {1};
    static const float rows[4] = {50, 50, 51, 51};
    Hps__V1__TableUpdate first = HPS__V1__TABLE_UPDATE__INIT;
    Hps__V1__TableUpdate other = HPS__V1__TABLE_UPDATE__INIT;
    Hps__V1__TableUpdate *tables[2] = {&first, &other};
    Hps__V1__UpdateBatch batch = HPS__V1__UPDATE_BATCH__INIT;
    first.table = (char *)"items";
    first.keys = (ProtobufCBinaryData){sizeof(keys), (uint8_t *)(uintptr_t)keys};
    first.rows = (ProtobufCBinaryData){8, (uint8_t *)(uintptr_t)rows};
    first.deletes = (ProtobufCBinaryData){sizeof(deletes), (uint8_t *)(uintptr_t)deletes};
    other.table = (char *)(uintptr_t)second;
    other.keys = first.keys;
    other.rows = (ProtobufCBinaryData){second_rows_bytes, (uint8_t *)(uintptr_t)(rows + 2)};
    batch.version = version;
    batch.event_time_unix_ms = 777;
    batch.tables = tables;
    batch.n_tables = 2;
    hps_update_packed_head(out);
    return HPS_UPDATE_HEAD_BYTES + hps__v1__update_batch__pack(&batch, out + HPS_UPDATE_HEAD_BYTES);
}

static void test_packed_when_on_the_model_topic_then_spans_tables(void **state)
{
    struct rig *rig = *state;
    uint8_t bytes[512];
    const struct hps_update_bytes packed = {.value = bytes,
                                            .value_size = pack(bytes, 0, "users", 8)};
    struct hps_update_bytes before = keyed(&ONE, ROW);

    add(rig, "hps_et.m.items", &before);
    struct hps_update_outcome outcome = add(rig, "hps_et.m", &packed);
    apply(rig);

    assert_null(outcome.bad);
    assert_int_equal(outcome.n_keys, 3);
    assert_int_equal(outcome.event_time_ms, 777);
    assert_true(fixture_value(&rig->fx, FIXTURE_ITEMS, 5) == 50);
    assert_true(fixture_value(&rig->fx, FIXTURE_USERS, 5) == 51);
    assert_true(fixture_value(&rig->fx, FIXTURE_ITEMS, 1) == -1);
}

static void test_packed_when_a_later_table_is_bad_then_no_row_is_added(void **state)
{
    struct rig *rig = *state;
    uint8_t bytes[512];
    struct hps_update_bytes before = keyed(&ONE, ROW);
    struct hps_update_bytes packed = {.value = bytes, .value_size = pack(bytes, 0, "users", 4)};

    add(rig, "hps_et.m.items", &before);
    assert_string_equal(add(rig, "hps_et.m", &packed).bad, "width");
    packed.value_size = pack(bytes, 0, "ghosts", 8);
    assert_string_equal(add(rig, "hps_et.m", &packed).bad, HPS_UPDATE_BAD_TABLE);
    packed.value_size = pack(bytes, 0, "users", 8);
    assert_string_equal(add(rig, "hps_et.m.items", &packed).bad, HPS_UPDATE_BAD_TABLE);
    packed.value_size -= 3;
    assert_string_equal(add(rig, "hps_et.m", &packed).bad, HPS_UPDATE_BAD_PAYLOAD);
    assert_int_equal(hps_update_decoder_keys(rig->decoder), 1);
    apply(rig);

    assert_true(fixture_value(&rig->fx, FIXTURE_ITEMS, 1) == 10);
    assert_true(fixture_value(&rig->fx, FIXTURE_ITEMS, 5) == -1);
}

/* ---- versions -------------------------------------------------------------------------------- */

static void test_record_when_it_names_another_version_then_skipped(void **state)
{
    struct rig *rig = *state;
    uint64_t number = 8;
    uint8_t bytes[512];
    struct hps_update_bytes record = keyed(&ONE, ROW);
    record.version_header = &number;
    record.version_header_size = sizeof(number);
    assert_true(add(rig, "hps_et.m.items", &record).for_other);
    struct hps_update_bytes packed = {.value = bytes, .value_size = pack(bytes, 8, "users", 8)};
    assert_true(add(rig, "hps_et.m", &packed).for_other);
    assert_int_equal(hps_update_decoder_keys(rig->decoder), 0);

    number = 7;
    assert_int_equal(add(rig, "hps_et.m.items", &record).n_keys, 1);
    record.version_header_size = 3;
    assert_string_equal(add(rig, "hps_et.m.items", &record).bad, HPS_UPDATE_BAD_HEADER);
}

static void test_record_when_its_header_names_another_type_then_rejected(void **state)
{
    struct rig *rig = *state;
    struct hps_update_bytes record = keyed(&ONE, ROW);
    record.dtype_header = "bf16";
    record.dtype_header_size = 4;
    assert_string_equal(add(rig, "hps_et.m.items", &record).bad, HPS_UPDATE_BAD_DTYPE);
    assert_non_null(strstr(rig->err.text, "'bf16', but a row of 8 bytes is fp32"));
    record.dtype_header = "fp32";
    assert_int_equal(add(rig, "hps_et.m.items", &record).n_keys, 1);
    record.dtype_header_size = 3;
    assert_string_equal(add(rig, "hps_et.m.items", &record).bad, HPS_UPDATE_BAD_DTYPE);
    record = keyed(&ONE, NULL); /* a delete has no row */
    record.dtype_header = "bf16";
    record.dtype_header_size = 4;
    assert_int_equal(add(rig, "hps_et.m.items", &record).n_keys, 1);
}

static void test_record_when_it_names_no_version_then_added_only_if_followed(void **state)
{
    struct rig *rig = *state;
    uint64_t number = 7;
    struct hps_update_route route;
    struct hps_update_outcome outcome;
    struct hps_update_bytes record = keyed(&ONE, ROW);
    assert_true(hps_update_route(rig->fx.version, "hps_et.m.items", &route));
    assert_int_equal(decode_bytes(rig->decoder, &route, &record, false, &outcome, &rig->err),
                     HPS_OK);
    assert_true(outcome.for_other);
    record.version_header = &number;
    record.version_header_size = sizeof(number);
    assert_int_equal(decode_bytes(rig->decoder, &route, &record, false, &outcome, &rig->err),
                     HPS_OK);
    assert_false(outcome.for_other);
    assert_int_equal(outcome.n_keys, 1);
}

/* ---- bad records ----------------------------------------------------------------------------- */

static void test_record_when_bad_then_rejected_with_its_reason(void **state)
{
    struct rig *rig = *state;
    const float wide[3] = {1, 2, 3};
    const float nans[2] = {1, NAN};
    const float large[2] = {1e30f, 1}; /* Inf in fp16 */
    struct hps_update_bytes record = keyed(&ONE, wide);

    record.value_size = sizeof(wide);
    assert_string_equal(add(rig, "hps_et.m.items", &record).bad, "width");
    record = keyed(&ONE, nans);
    assert_string_equal(add(rig, "hps_et.m.items", &record).bad, HPS_UPDATE_BAD_NOT_FINITE);
    record = keyed(&ONE, large);
    assert_string_equal(add(rig, "hps_et.m.users", &record).bad, HPS_UPDATE_BAD_NOT_FINITE);
    assert_null(add(rig, "hps_et.m.items", &record).bad);
    assert_string_equal(add(rig, "hps_et.m", &record).bad, HPS_UPDATE_BAD_TABLE);
    record.key_size = 5;
    assert_string_equal(add(rig, "hps_et.m.items", &record).bad, "key");
    assert_int_equal(hps_update_decoder_keys(rig->decoder), 1);

    atomic_store(&rig->nan_allowed, true);
    record = keyed(&ONE, nans);
    assert_null(add(rig, "hps_et.m.items", &record).bad);
}

static void test_route_when_topic_is_of_another_model_then_none(void **state)
{
    struct rig *rig = *state;
    struct hps_update_route route;
    assert_false(hps_update_route(rig->fx.version, "hps_et.mm.items", &route));
    assert_false(hps_update_route(rig->fx.version, "other", &route));
    assert_false(hps_update_route(rig->fx.version, "hps_et.m.ghosts", &route));
    assert_true(hps_update_route(rig->fx.version, "hps_et.m", &route));
    assert_true(route.whole_model);
}

/* ---- row versions ---------------------------------------------------------------------------- */

static void test_row_versions_when_compared_then_each_key_has_its_own(void **state)
{
    struct rig *rig = *state;
    const hps_key keys[2] = {1, 2};
    const uint8_t five[8] = {5};
    const uint8_t six[8] = {6, 1};
    const struct hps_update_part *parts;
    uint32_t n_parts;
    struct hps_update_bytes first = keyed(&keys[0], ROW);
    struct hps_update_bytes second = keyed(&keys[1], ROW);
    struct hps_update_bytes gone = keyed(&keys[0], NULL);
    rig->fx.version->row_versions = true;
    first.row_version_header = five;
    second.row_version_header = gone.row_version_header = six;
    first.row_version_header_size = second.row_version_header_size = 8;
    gone.row_version_header_size = 8;
    assert_null(add(rig, "hps_et.m.items", &first).bad);
    second.row_version_header_size = 7;
    assert_string_equal(add(rig, "hps_et.m.items", &second).bad, "header");
    second.row_version_header = NULL;
    assert_string_equal(add(rig, "hps_et.m.items", &second).bad, "header");
    assert_non_null(strstr(rig->err.text, "hps-row-version: missing"));
    second.row_version_header = six;
    second.row_version_header_size = 8;
    second.value_size = 3; /* bad for another reason: its row version is removed, too */
    assert_non_null(add(rig, "hps_et.m.items", &second).bad);
    second.value_size = sizeof(ROW);
    assert_null(add(rig, "hps_et.m.items", &second).bad);
    assert_null(add(rig, "hps_et.m.items", &gone).bad);
    parts = hps_update_decoder_parts(rig->decoder, &n_parts);
    assert_int_equal(n_parts, 2);
    assert_int_equal(parts[0].n, 2);
    assert_int_equal(parts[0].row_versions[0], 5);
    assert_int_equal(parts[0].row_versions[1], 0x106);
    assert_int_equal(parts[1].row_versions[0], 0x106);
    hps_update_decoder_clear(rig->decoder);
    rig->fx.version->row_versions = false;
    first.row_version_header_size = 3; /* the version does not compare row versions */
    assert_null(add(rig, "hps_et.m.items", &first).bad);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(test_row_versions_when_compared_then_each_key_has_its_own),
        TEST(test_forms_when_mixed_then_applied_in_order),
        TEST(test_keys_when_the_version_has_32_bit_keys_then_low_bits_are_stored),
        TEST(test_packed_when_on_the_model_topic_then_spans_tables),
        TEST(test_packed_when_a_later_table_is_bad_then_no_row_is_added),
        TEST(test_record_when_it_names_another_version_then_skipped),
        TEST(test_record_when_its_header_names_another_type_then_rejected),
        TEST(test_record_when_it_names_no_version_then_added_only_if_followed),
        TEST(test_record_when_bad_then_rejected_with_its_reason),
        TEST(test_route_when_topic_is_of_another_model_then_none),
#undef TEST
    };
    return cmocka_run_group_tests_name("update_decode", tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of records for tables of each stored type: rows are converted, stored unchanged or rejected
 * with a reason. Bytes are written by hand.
 */
// clang-format off
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include <math.h>
#include <string.h>

#include "base/heap.h"
#include "hps/v1/update.pb-c.h"
#include "tests/lib/decode_bytes.h"

enum { DIM = 3, N_TABLES = HPS_DTYPE_STORED_END - 1 };

/* The values 0, 100, 255 as a row of each type, table t having type t + 1. */
static const float VALUES[DIM] = {0, 100, 255};
static const struct {
    uint8_t bytes[DIM * 4];
} stored[N_TABLES] = {
    {{0, 0, 0, 0, 0, 0, 0xc8, 0x42, 0, 0, 0x7f, 0x43}},
    {{0, 0, 0x40, 0x56, 0xf8, 0x5b}},
    {{0, 0, 0xc8, 0x42, 0x7f, 0x43}},
    {{0, 100, 255, 0, 0, 0x80, 0x3f, 0, 0, 0, 0}},
    {{0, 100, 255, 0, 0x3c, 0, 0}},
};
static const char *const topics[N_TABLES] = {"hps_et.m.t0", "hps_et.m.t1", "hps_et.m.t2",
                                             "hps_et.m.t3", "hps_et.m.t4"};
static const hps_key KEY = 7;

struct rig {
    struct hps_version *version;
    atomic_bool nan_allowed;
    struct hps_update_decoder *decoder;
    struct hps_update_outcome outcome;
    struct hps_error err;
};

static int setup(void **state)
{
    struct rig *rig = hps_calloc(1, sizeof(*rig));
    rig->version = hps_version_new("m", 7, N_TABLES);
    assert_non_null(rig->version);
    for (uint32_t i = 0; i < N_TABLES; i++) {
        enum hps_dtype dtype = (enum hps_dtype)(i + 1);
        rig->version->tables[i] =
            (struct hps_table){.name = hps_strdup(topics[i] + strlen("hps_et.m.")),
                               .id = i,
                               .dim = DIM,
                               .dtype = dtype,
                               .row_bytes = (uint32_t)hps_dtype_row_bytes(dtype, DIM)};
    }
    rig->decoder = hps_update_decoder_new(rig->version, 8, &rig->nan_allowed);
    assert_non_null(rig->decoder);
    *state = rig;
    return 0;
}

static int teardown(void **state)
{
    struct rig *rig = *state;
    hps_update_decoder_free(rig->decoder);
    hps_version_free(rig->version);
    hps_free(rig);
    return 0;
}

/* Returns the reason why the record is rejected; NULL: it is not. */
static const char *add(struct rig *rig, uint32_t table, const struct hps_update_bytes *record)
{
    struct hps_update_route route;
    rig->err.text[0] = '\0';
    assert_true(hps_update_route(rig->version, topics[table], &route));
    assert_int_equal(decode_bytes(rig->decoder, &route, record, true, &rig->outcome, &rig->err),
                     HPS_OK);
    return rig->outcome.bad;
}

static const char *add_keyed(struct rig *rig, uint32_t table, const void *row, size_t row_bytes)
{
    const struct hps_update_bytes record = {
        .key = &KEY, .key_size = sizeof(KEY), .value = row, .value_size = row_bytes};
    return add(rig, table, &record);
}

static const char *add_packed(struct rig *rig, uint32_t table, unsigned dtype, const void *row,
                              size_t row_bytes)
{
    uint8_t bytes[256];
    Hps__V1__TableUpdate update = HPS__V1__TABLE_UPDATE__INIT;
    Hps__V1__TableUpdate *tables[1] = {&update};
    Hps__V1__UpdateBatch batch = HPS__V1__UPDATE_BATCH__INIT;
    update.data_type = (Hps__V1__DataType)dtype;
    update.keys = (ProtobufCBinaryData){sizeof(KEY), (uint8_t *)(uintptr_t)&KEY};
    update.rows = (ProtobufCBinaryData){row_bytes, (uint8_t *)(uintptr_t)row};
    batch.tables = tables;
    batch.n_tables = 1;
    hps_update_packed_head(bytes);
    const struct hps_update_bytes record = {
        .value = bytes,
        .value_size = HPS_UPDATE_HEAD_BYTES +
                      hps__v1__update_batch__pack(&batch, bytes + HPS_UPDATE_HEAD_BYTES)};
    return add(rig, table, &record);
}

static const char *add_hctr(struct rig *rig, uint32_t table, const void *row, uint32_t row_bytes)
{
    uint8_t bytes[64];
    hps_update_hctr_encode(&KEY, row, 1, 8, row_bytes, bytes);
    const struct hps_update_bytes record = {.value = bytes,
                                            .value_size = hps_update_hctr_bytes(1, 8, row_bytes)};
    return add(rig, table, &record);
}

/* The batch has exactly this row of any key; clear it. */
static void expect_row(struct rig *rig, uint32_t table, const void *row)
{
    const struct hps_update_part *parts;
    uint32_t n;
    parts = hps_update_decoder_parts(rig->decoder, &n);
    assert_int_equal(n, 1);
    assert_int_equal(parts[0].table_id, table);
    assert_int_equal(parts[0].row_bytes, rig->version->tables[table].row_bytes);
    assert_memory_equal(parts[0].rows, row, parts[0].row_bytes);
    hps_update_decoder_clear(rig->decoder);
}

static void test_rows_when_in_fp32_then_converted_to_the_type_of_the_table(void **state)
{
    struct rig *rig = *state;
    for (uint32_t t = 0; t < N_TABLES; t++) {
        assert_null(add_keyed(rig, t, VALUES, sizeof(VALUES)));
        expect_row(rig, t, stored[t].bytes);
        assert_null(add_hctr(rig, t, VALUES, sizeof(VALUES)));
        expect_row(rig, t, stored[t].bytes);
        assert_null(add_packed(rig, t, HPS_DTYPE_FP32, VALUES, sizeof(VALUES)));
        expect_row(rig, t, stored[t].bytes);
        assert_null(add_packed(rig, t, 0, VALUES, sizeof(VALUES)));
        expect_row(rig, t, stored[t].bytes);
    }
}

/* All bytes stay, also a scale and a bias that hpsd would not choose. */
static void test_rows_when_of_the_type_of_the_table_then_stored_unchanged(void **state)
{
    struct rig *rig = *state;
    static const uint8_t odd[DIM * 4] = {9, 8, 7, 0x35, 0x12, 0x3f, 0xbd, 0x41, 0x8f, 1, 0x40, 0};
    for (uint32_t t = 0; t < N_TABLES; t++) {
        uint32_t row_bytes = rig->version->tables[t].row_bytes;
        assert_null(add_keyed(rig, t, odd, row_bytes));
        expect_row(rig, t, odd);
        assert_null(add_packed(rig, t, t + 1, odd, row_bytes));
        expect_row(rig, t, odd);
    }
}

static void test_rows_when_their_width_is_odd_then_stored_in_order(void **state)
{
    struct rig *rig = *state;
    static const uint8_t second[] = {1, 2, 3, 0, 0x38, 0, 0x40};
    const struct hps_update_part *parts;
    uint32_t n;
    assert_null(add_keyed(rig, 4, VALUES, sizeof(VALUES)));
    assert_null(add_keyed(rig, 4, second, sizeof(second)));
    assert_null(add_keyed(rig, 4, VALUES, sizeof(VALUES)));
    parts = hps_update_decoder_parts(rig->decoder, &n);
    assert_int_equal(n, 1);
    assert_int_equal(parts[0].n, 3);
    assert_memory_equal(parts[0].rows, stored[4].bytes, 7);
    assert_memory_equal(parts[0].rows + 7, second, 7);
    assert_memory_equal(parts[0].rows + 14, stored[4].bytes, 7);
}

static void test_packed_when_of_another_type_then_rejected_with_its_name(void **state)
{
    struct rig *rig = *state;
    for (uint32_t t = 0; t < N_TABLES; t++) {
        for (unsigned dtype = HPS_DTYPE_FP16; dtype < HPS_DTYPE_STORED_END; dtype++) {
            size_t row_bytes = (size_t)hps_dtype_row_bytes((enum hps_dtype)dtype, DIM);
            if (dtype != t + 1) {
                assert_string_equal(add_packed(rig, t, dtype, stored[dtype - 1].bytes, row_bytes),
                                    HPS_UPDATE_BAD_DTYPE);
            }
        }
    }
    assert_non_null(strstr(rig->err.text,
                           "rows of data_type 4 (int8_rowwise_f32), expected fp32 or "
                           "int8_rowwise_f16"));
    assert_string_equal(add_packed(rig, 1, HPS_DTYPE_RAW, stored[1].bytes, 6),
                        HPS_UPDATE_BAD_DTYPE);
    assert_string_equal(add_packed(rig, 1, 99, "", 0), HPS_UPDATE_BAD_DTYPE);
    assert_int_equal(hps_update_decoder_keys(rig->decoder), 0);
}

static void test_rows_when_of_another_width_then_rejected(void **state)
{
    struct rig *rig = *state;
    for (uint32_t t = 0; t < N_TABLES; t++) {
        uint32_t row_bytes = rig->version->tables[t].row_bytes;
        assert_string_equal(add_keyed(rig, t, stored[t].bytes, row_bytes - 1), "width");
        assert_string_equal(add_packed(rig, t, t + 1, stored[t].bytes, row_bytes - 1), "width");
        if (t > 0) {
            assert_string_equal(add_hctr(rig, t, stored[t].bytes, row_bytes), "width");
        }
    }
    assert_int_equal(hps_update_decoder_keys(rig->decoder), 0);
}

static void test_int8_when_scale_or_bias_is_not_finite_then_always_rejected(void **state)
{
    struct rig *rig = *state;
    static const uint8_t scale[] = {1, 2, 3, 0, 0, 0xc0, 0x7f, 0, 0, 0, 0};
    static const uint8_t bias[] = {1, 2, 3, 0, 0x3c, 0, 0xfc};
    for (int allowed = 0; allowed < 2; allowed++) {
        atomic_store(&rig->nan_allowed, allowed != 0);
        assert_string_equal(add_packed(rig, 3, 4, scale, sizeof(scale)), HPS_UPDATE_BAD_NOT_FINITE);
        assert_non_null(strstr(rig->err.text, "NaN or Inf in the row of key 7, scale"));
        assert_string_equal(add_keyed(rig, 4, bias, sizeof(bias)), HPS_UPDATE_BAD_NOT_FINITE);
        assert_non_null(strstr(rig->err.text, "bias"));
    }
}

static void test_fp32_when_too_large_for_the_type_then_rejected_or_infinite(void **state)
{
    struct rig *rig = *state;
    static const float large[DIM] = {0, -70000, 1};
    static const float nans[DIM] = {0, 1, NAN};
    static const uint16_t infinite[DIM] = {0, 0xfc00, 0x3c00};
    assert_string_equal(add_keyed(rig, 1, large, sizeof(large)), HPS_UPDATE_BAD_NOT_FINITE);
    assert_non_null(strstr(rig->err.text, "a value that fp16 cannot hold in the row of key 7, "
                                          "value 1"));
    assert_string_equal(add_hctr(rig, 4, large, sizeof(large)), HPS_UPDATE_BAD_NOT_FINITE);
    assert_null(add_keyed(rig, 2, large, sizeof(large)));
    assert_null(add_keyed(rig, 3, large, sizeof(large)));
    hps_update_decoder_clear(rig->decoder);

    atomic_store(&rig->nan_allowed, true);
    assert_null(add_keyed(rig, 1, large, sizeof(large)));
    expect_row(rig, 1, infinite);
    /* One such value would damage all values of an INT8 row. */
    assert_string_equal(add_keyed(rig, 4, large, sizeof(large)), HPS_UPDATE_BAD_NOT_FINITE);
    assert_string_equal(add_keyed(rig, 3, nans, sizeof(nans)), HPS_UPDATE_BAD_NOT_FINITE);
    assert_non_null(strstr(rig->err.text, "int8_rowwise_f32 cannot hold"));
    assert_int_equal(hps_update_decoder_keys(rig->decoder), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(test_rows_when_in_fp32_then_converted_to_the_type_of_the_table),
        TEST(test_rows_when_of_the_type_of_the_table_then_stored_unchanged),
        TEST(test_rows_when_their_width_is_odd_then_stored_in_order),
        TEST(test_packed_when_of_another_type_then_rejected_with_its_name),
        TEST(test_rows_when_of_another_width_then_rejected),
        TEST(test_int8_when_scale_or_bias_is_not_finite_then_always_rejected),
        TEST(test_fp32_when_too_large_for_the_type_then_rejected_or_infinite),
#undef TEST
    };
    return cmocka_run_group_tests_name("update_decode_dtypes", tests, NULL, NULL);
}

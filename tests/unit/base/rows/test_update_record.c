/* SPDX-License-Identifier: Apache-2.0
 *
 * Update records against bytes written by hand from the layout that HPS's consumer reads
 * (HugeCTR 24.04, kafka_message.cpp): magic, u32 value_size, then pairs, little-endian.
 */
#include "base/rows/update_record.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const struct hps_update_shape WIDE = {.key_bytes = 8, .dim = 2};
static const struct hps_update_shape NARROW = {.key_bytes = 4, .dim = 2};
static const struct hps_update_shape ANY = {.key_bytes = 8, .dim = 0};

/* Two pairs of dim 2: 1 -> (1.0, -2.0), and a key of eight different bytes -> (0.5, 3.0). */
static const uint8_t hctr_wide[] = {
    'H',  'C',  'T',  'R',  0x08, 0x00, 0x00, 0x00,  /* value_size 8 */
    0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,  /* key */
    0x00, 0x00, 0x80, 0x3f, 0x00, 0x00, 0x00, 0xc0,  /* 1.0 -2.0 */
    0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0xf1,  /* key */
    0x00, 0x00, 0x00, 0x3f, 0x00, 0x00, 0x40, 0x40}; /* 0.5 3.0 */
static const uint8_t hctr_narrow[] = {'H',  'C',  'T',  'R',  0x08, 0x00, 0x00, 0x00,
                                      0x01, 0x00, 0x00, 0x00,                         /* key */
                                      0x00, 0x00, 0x80, 0x3f, 0x00, 0x00, 0x00, 0xc0, /* 1.0 -2.0 */
                                      0xfe, 0xff, 0xff, 0xff,                         /* key */
                                      0x00, 0x00, 0x00, 0x3f, 0x00, 0x00, 0x40, 0x40};
static const hps_key keys_wide[] = {1, UINT64_C(0xf122334455667788)};
static const hps_key keys_narrow[] = {1, UINT64_C(0xfffffffe)};
static const float rows[] = {1.0F, -2.0F, 0.5F, 3.0F};

static void expect_reject(const void *key, size_t key_size, const void *value, size_t value_size,
                          const struct hps_update_shape *shape, enum hps_update_reject reject,
                          const char *word)
{
    struct hps_update_record record;
    struct hps_error err = {0};

    assert_int_equal(
        hps_update_record_decode(key, key_size, value, value_size, shape, &record, &err),
        HPS_INVALID);
    assert_int_equal(err.status, HPS_INVALID);
    assert_int_equal(record.reject, reject);
    if (strstr(err.text, word) == NULL) {
        fail_msg("\"%s\" does not name %s", err.text, word);
    }
}

static void expect_rows(const struct hps_update_record *record, const hps_key *keys)
{
    hps_key got_keys[2];
    float got_rows[4];

    assert_int_equal(record->n, 2);
    assert_int_equal(record->row_bytes, 8);
    hps_update_record_copy(record, got_keys, (uint8_t *)got_rows);
    assert_memory_equal(got_keys, keys, sizeof(got_keys));
    assert_memory_equal(got_rows, rows, sizeof(rows));
    hps_update_record_copy(record, got_keys, NULL);
}

static void test_hctr_when_keys_of_8_bytes_then_the_pairs(void **state)
{
    (void)state;
    struct hps_update_record record;
    uint8_t bytes[sizeof(hctr_wide)];

    assert_int_equal(
        hps_update_record_decode(NULL, 0, hctr_wide, sizeof(hctr_wide), &WIDE, &record, NULL),
        HPS_OK);
    assert_int_equal(record.form, HPS_UPDATE_HCTR);
    expect_rows(&record, keys_wide);
    assert_int_equal(hps_update_hctr_bytes(2, 8, 8), sizeof(bytes));
    hps_update_hctr_encode(keys_wide, rows, 2, 8, 8, bytes);
    assert_memory_equal(bytes, hctr_wide, sizeof(bytes));
}

static void test_hctr_when_keys_of_4_bytes_then_the_pairs(void **state)
{
    (void)state;
    struct hps_update_record record;
    uint8_t bytes[sizeof(hctr_narrow)];

    assert_int_equal(
        hps_update_record_decode("", 0, hctr_narrow, sizeof(hctr_narrow), &NARROW, &record, NULL),
        HPS_OK);
    assert_int_equal(record.form, HPS_UPDATE_HCTR);
    expect_rows(&record, keys_narrow);
    assert_int_equal(hps_update_hctr_bytes(2, 4, 8), sizeof(bytes));
    hps_update_hctr_encode(keys_narrow, rows, 2, 4, 8, bytes);
    assert_memory_equal(bytes, hctr_narrow, sizeof(bytes));
}

static void test_hctr_when_cut_anywhere_then_truncated_or_whole_pairs(void **state)
{
    (void)state;
    struct hps_update_record record;

    for (size_t size = 0; size < sizeof(hctr_wide); size++) {
        if (size == 8 || size == 24) {
            assert_int_equal(
                hps_update_record_decode(NULL, 0, hctr_wide, size, &WIDE, &record, NULL), HPS_OK);
            assert_int_equal(record.n, size / 24);
        } else {
            expect_reject(NULL, 0, hctr_wide, size, &WIDE, HPS_UPDATE_REJECT_TRUNCATED,
                          size < 8 ? "at least 8" : "within pair");
        }
    }
    for (size_t size = 9; size < sizeof(hctr_narrow); size++) {
        if (size != 20) {
            expect_reject(NULL, 0, hctr_narrow, size, &NARROW, HPS_UPDATE_REJECT_TRUNCATED,
                          "keys of 4");
        }
    }
    /* Keys of the other width do not add up, here. */
    expect_reject(NULL, 0, hctr_wide, sizeof(hctr_wide), &NARROW, HPS_UPDATE_REJECT_TRUNCATED,
                  "pair 2");
}

static void test_hctr_when_a_beacon_then_no_pairs_whatever_the_width(void **state)
{
    (void)state;
    static const uint8_t beacon[] = {'H', 'C', 'T', 'R', 0, 0, 0, 0};
    static const uint8_t other[] = {'H', 'C', 'T', 'R', 0xff, 0xff, 0xff, 0xff};
    struct hps_update_record record;

    assert_int_equal(hps_update_record_decode(NULL, 0, beacon, 8, &WIDE, &record, NULL), HPS_OK);
    assert_int_equal(record.n, 0);
    assert_int_equal(record.form, HPS_UPDATE_HCTR);
    assert_int_equal(hps_update_record_decode(NULL, 0, other, 8, &NARROW, &record, NULL), HPS_OK);
    assert_int_equal(record.n, 0);
    hps_update_hctr_encode(NULL, NULL, 0, 8, 0, (uint8_t[8]){0});
}

static void test_hctr_when_width_differs_then_rejected(void **state)
{
    (void)state;
    uint8_t bytes[sizeof(hctr_wide)];

    memcpy(bytes, hctr_wide, sizeof(bytes));
    bytes[4] = 4;
    expect_reject(NULL, 0, bytes, sizeof(bytes), &WIDE, HPS_UPDATE_REJECT_WIDTH,
                  "row of 4 bytes, expected 8");
    bytes[4] = 0;
    expect_reject(NULL, 0, bytes, sizeof(bytes), &ANY, HPS_UPDATE_REJECT_WIDTH, "row of 0 bytes");
    bytes[4] = 6;
    expect_reject(NULL, 0, bytes, sizeof(bytes), &ANY, HPS_UPDATE_REJECT_WIDTH, "row of 6 bytes");
    memset(bytes + 4, 0xff, 4);
    expect_reject(NULL, 0, bytes, sizeof(bytes), &ANY, HPS_UPDATE_REJECT_WIDTH,
                  "row of 4294967295 bytes");
}

static void test_record_when_no_known_magic_then_rejected(void **state)
{
    (void)state;
    expect_reject(NULL, 0, "hctr\0\0\0\0", 8, &WIDE, HPS_UPDATE_REJECT_MAGIC, "68 63 74 72");
    expect_reject(NULL, 0, "RTCH\0\0\0\0", 8, &WIDE, HPS_UPDATE_REJECT_MAGIC, "HCTR or HPS1");
    expect_reject("", 0, "HPS2\1\0\0\0", 8, &WIDE, HPS_UPDATE_REJECT_MAGIC, "48 50 53 32");
}

static void test_record_when_key_is_neither_empty_nor_8_bytes_then_rejected(void **state)
{
    (void)state;
    expect_reject("1234", 4, hctr_wide, sizeof(hctr_wide), &WIDE, HPS_UPDATE_REJECT_KEY,
                  "key of 4 bytes");
    expect_reject("123456789", 9, NULL, 0, &WIDE, HPS_UPDATE_REJECT_KEY, "null value");
    expect_reject(NULL, 0, NULL, 0, &WIDE, HPS_UPDATE_REJECT_KEY, "null value");
    expect_reject("", 0, NULL, 0, &WIDE, HPS_UPDATE_REJECT_KEY, "null value");
}

static void test_record_when_too_large_then_rejected_before_it_is_read(void **state)
{
    (void)state;
    expect_reject(NULL, 0, hctr_wide, (size_t)HPS_UPDATE_RECORD_BYTES_MAX + 1, &WIDE,
                  HPS_UPDATE_REJECT_TOO_LARGE, "134217729");
    expect_reject("12345678", 8, hctr_wide, SIZE_MAX, &WIDE, HPS_UPDATE_REJECT_TOO_LARGE,
                  "at most 134217728");
}

static void test_keyed_when_value_is_a_row_then_key_and_row(void **state)
{
    (void)state;
    static const uint8_t key[] = {0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0xf1};
    struct hps_update_record record;
    hps_key got_key;
    uint8_t got_row[8];
    uint8_t bytes[8];

    assert_int_equal(hps_update_record_decode(key, 8, hctr_wide + 16, 8, &NARROW, &record, NULL),
                     HPS_OK);
    assert_int_equal(record.form, HPS_UPDATE_KEYED);
    assert_false(hps_update_record_deletes(&record));
    assert_int_equal(record.n, 1);
    hps_update_record_copy(&record, &got_key, got_row);
    assert_true(got_key == UINT64_C(0xf122334455667788));
    assert_memory_equal(got_row, hctr_wide + 16, 8);
    hps_update_u64_encode(got_key, bytes);
    assert_memory_equal(bytes, key, 8);
}

static void test_keyed_when_value_is_null_then_a_delete_but_not_when_empty(void **state)
{
    (void)state;
    struct hps_update_record record;

    assert_int_equal(hps_update_record_decode("\xff\xff\xff\xff\xff\xff\xff\xff", 8, NULL, 0, &WIDE,
                                              &record, NULL),
                     HPS_OK);
    assert_true(hps_update_record_deletes(&record));
    assert_true(record.key == UINT64_MAX);
    assert_int_equal(record.n, 1);
    expect_reject("12345678", 8, "", 0, &WIDE, HPS_UPDATE_REJECT_WIDTH, "row of 0 bytes");
    expect_reject("12345678", 8, "", 0, &ANY, HPS_UPDATE_REJECT_WIDTH, "row of 0 bytes");
    expect_reject("12345678", 8, rows, 12, &WIDE, HPS_UPDATE_REJECT_WIDTH, "expected 8");
}

static void test_keyed_when_as_wide_as_stored_then_of_the_tables_type(void **state)
{
    (void)state;
    static const uint8_t value[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    struct hps_update_shape shape = {.key_bytes = 8, .dim = 3};
    struct hps_update_record record;
    hps_key key;
    uint8_t row[12];

    for (unsigned dtype = HPS_DTYPE_FP16; dtype < HPS_DTYPE_STORED_END; dtype++) {
        size_t stored = (size_t)hps_dtype_row_bytes((enum hps_dtype)dtype, 3);
        shape.dtype = (enum hps_dtype)dtype;
        assert_int_equal(
            hps_update_record_decode("12345678", 8, value, stored, &shape, &record, NULL), HPS_OK);
        assert_int_equal(record.dtype, dtype);
        assert_int_equal(record.row_bytes, stored);
        hps_update_record_copy(&record, &key, row);
        assert_memory_equal(row, value, stored);
        assert_int_equal(hps_update_record_decode("12345678", 8, value, 12, &shape, &record, NULL),
                         HPS_OK);
        assert_int_equal(record.dtype, HPS_DTYPE_FP32);
    }
    expect_reject("12345678", 8, value, 11, &shape, HPS_UPDATE_REJECT_WIDTH,
                  "row of 11 bytes, expected 12 or 7: 3 values as fp32 or int8_rowwise_f16");
    shape.dtype = HPS_DTYPE_FP32;
    expect_reject("12345678", 8, value, 7, &shape, HPS_UPDATE_REJECT_WIDTH, "expected 12: 3");
}

/* So the width of a keyed record says what its row is. */
static void test_widths_when_of_one_dim_then_float32_is_like_no_other(void **state)
{
    (void)state;
    for (uint64_t dim = 1; dim <= 4096; dim++) {
        for (unsigned dtype = HPS_DTYPE_FP16; dtype < HPS_DTYPE_STORED_END; dtype++) {
            assert_true(hps_dtype_row_bytes((enum hps_dtype)dtype, dim) !=
                        hps_dtype_row_bytes(HPS_DTYPE_FP32, dim));
        }
    }
}

static void test_hctr_when_rows_are_as_stored_then_rejected_as_they_are_float32(void **state)
{
    (void)state;
    const struct hps_update_shape half = {.key_bytes = 8, .dim = 4, .dtype = HPS_DTYPE_FP16};
    expect_reject(NULL, 0, hctr_wide, sizeof(hctr_wide), &half, HPS_UPDATE_REJECT_WIDTH,
                  "row of 8 bytes, expected 16: 4 values of float32");
}

static void test_packed_when_known_format_then_the_batch(void **state)
{
    (void)state;
    static const uint8_t value[] = {'H', 'P', 'S', '1', 1, 0, 0, 0, 0x08, 0x07};
    static const uint8_t newer[] = {'H', 'P', 'S', '1', 2, 0, 0, 0};
    struct hps_update_record record;
    uint8_t head[HPS_UPDATE_HEAD_BYTES];

    assert_int_equal(hps_update_record_decode(NULL, 0, value, sizeof(value), &WIDE, &record, NULL),
                     HPS_OK);
    assert_int_equal(record.form, HPS_UPDATE_PACKED);
    assert_ptr_equal(record.body, value + 8);
    assert_int_equal(record.body_size, 2);
    hps_update_packed_head(head);
    assert_memory_equal(head, value, sizeof(head));
    expect_reject(NULL, 0, newer, sizeof(newer), &WIDE, HPS_UPDATE_REJECT_NEWER_FORMAT, "format 2");
}

static void test_header_when_8_bytes_then_its_value(void **state)
{
    (void)state;
    uint64_t value = 7;

    assert_false(hps_update_header_decode(NULL, 0, &value));
    assert_false(hps_update_header_decode("1234567", 7, &value));
    assert_int_equal(value, 7);
    assert_true(hps_update_header_decode("\x03\0\0\0\0\0\0\x01", 8, &value));
    assert_true(value == UINT64_C(0x0100000000000003));
}

/* What org.apache.kafka.clients.producer.internals.BuiltInPartitioner.partitionForKey gives. */
static void test_partition_when_any_key_then_that_of_kafkas_java_client(void **state)
{
    (void)state;
    static const struct {
        hps_key key;
        uint32_t of_12;
        uint32_t of_1000003;
    } expected[] = {
        {UINT64_C(0x0000000000000000), 11, 718843}, {UINT64_C(0x0000000000000001), 7, 3618},
        {UINT64_C(0x0000000000000002), 7, 716353},  {UINT64_C(0x00000000000000ff), 1, 117721},
        {UINT64_C(0x0000000000000100), 6, 238282},  {UINT64_C(0xffffffffffffffff), 5, 949842},
        {UINT64_C(0x8000000000000000), 5, 16783},   {UINT64_C(0x7fffffffffffffff), 7, 679433},
        {UINT64_C(0x0123456789abcdef), 4, 246399},  {UINT64_C(0xf122334455667788), 0, 48079},
        {UINT64_C(0x0000000100000000), 8, 228907},  {UINT64_C(0x000000003b9aca07), 7, 6491},
    };

    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
        assert_int_equal(hps_update_partition(expected[i].key, 12), expected[i].of_12);
        assert_int_equal(hps_update_partition(expected[i].key, 1000003), expected[i].of_1000003);
        assert_int_equal(hps_update_partition(expected[i].key, 1), 0);
    }
}

static void test_topic_when_formatted_then_parsed_the_same(void **state)
{
    (void)state;
    char name[HPS_UPDATE_NAME_BYTES];
    char topic[HPS_UPDATE_TOPIC_BYTES_MAX];
    struct hps_update_topic found;

    hps_update_topic_format("dlrm", "items", topic);
    assert_string_equal(topic, "hps_et.dlrm.items");
    assert_true(hps_update_topic_parse(topic, &found));
    assert_string_equal(found.model, "dlrm");
    assert_string_equal(found.table, "items");
    hps_update_topic_format("dlrm", NULL, topic);
    assert_string_equal(topic, "hps_et.dlrm");
    assert_true(hps_update_topic_parse(topic, &found));
    assert_string_equal(found.model, "dlrm");
    assert_string_equal(found.table, "");
    memset(name, 'x', sizeof(name));
    name[sizeof(name) - 1] = '\0';
    hps_update_topic_format(name, name, topic);
    assert_int_equal(strlen(topic), HPS_UPDATE_TOPIC_BYTES_MAX - 1);
    assert_true(hps_update_topic_parse(topic, &found));
    assert_string_equal(found.table, name);
}

static void test_topic_when_not_of_updates_then_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"",          "hps_et",      "hps_et.",      "hps_et..t",
                                      "hps_et.m.", "hps_et.m.t.", "hps_et.m.t.u", "hps_et.m t",
                                      "x.m.t",     "Hps_et.m.t",  "__hps_beacon"};
    char long_one[256] = "hps_et.";
    struct hps_update_topic found = {.model = "untouched"};

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_false(hps_update_topic_parse(bad[i], &found));
    }
    memset(long_one + 7, 'a', 121);
    assert_false(hps_update_topic_parse(long_one, &found));
    assert_string_equal(found.model, "untouched");
}

static void test_texts_when_asked_then_metric_labels(void **state)
{
    (void)state;
    assert_string_equal(hps_update_reject_text(HPS_UPDATE_REJECT_TRUNCATED), "truncated");
    assert_string_equal(hps_update_reject_text(HPS_UPDATE_REJECT_NEWER_FORMAT), "newer_format");
    assert_string_equal(hps_update_form_text(HPS_UPDATE_KEYED), "keyed");
    assert_string_equal(hps_update_form_text(HPS_UPDATE_PACKED), "packed");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hctr_when_keys_of_8_bytes_then_the_pairs),
        cmocka_unit_test(test_hctr_when_keys_of_4_bytes_then_the_pairs),
        cmocka_unit_test(test_hctr_when_cut_anywhere_then_truncated_or_whole_pairs),
        cmocka_unit_test(test_hctr_when_a_beacon_then_no_pairs_whatever_the_width),
        cmocka_unit_test(test_hctr_when_width_differs_then_rejected),
        cmocka_unit_test(test_record_when_no_known_magic_then_rejected),
        cmocka_unit_test(test_record_when_key_is_neither_empty_nor_8_bytes_then_rejected),
        cmocka_unit_test(test_record_when_too_large_then_rejected_before_it_is_read),
        cmocka_unit_test(test_keyed_when_value_is_a_row_then_key_and_row),
        cmocka_unit_test(test_keyed_when_value_is_null_then_a_delete_but_not_when_empty),
        cmocka_unit_test(test_keyed_when_as_wide_as_stored_then_of_the_tables_type),
        cmocka_unit_test(test_widths_when_of_one_dim_then_float32_is_like_no_other),
        cmocka_unit_test(test_hctr_when_rows_are_as_stored_then_rejected_as_they_are_float32),
        cmocka_unit_test(test_packed_when_known_format_then_the_batch),
        cmocka_unit_test(test_header_when_8_bytes_then_its_value),
        cmocka_unit_test(test_partition_when_any_key_then_that_of_kafkas_java_client),
        cmocka_unit_test(test_topic_when_formatted_then_parsed_the_same),
        cmocka_unit_test(test_topic_when_not_of_updates_then_refused),
        cmocka_unit_test(test_texts_when_asked_then_metric_labels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

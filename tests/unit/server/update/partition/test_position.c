/* SPDX-License-Identifier: Apache-2.0
 *
 * Positions as bytes: stored positions are read, also in earlier formats.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "server/update/partition/position.h"

enum { FIXED = 112, FIXED_2 = 72, FIXED_1 = 56 };

static const struct hps_position some = {.cluster = "cluster-1",
                                         .topic_id = "topic-1",
                                         .next = 500,
                                         .paused = true,
                                         .last = {true, 499, 17, 18},
                                         .witness = {true, 400, 27, 28},
                                         .as_of_ms = 19,
                                         .event_time_ms = 20,
                                         .start = 100,
                                         .skipped = 300,
                                         .before_start = true,
                                         .frozen = 450,
                                         .base_ms = 460};

static void test_position_when_stored_then_read_unchanged(void **state)
{
    uint8_t value[HPS_POSITION_VALUE_BYTES_MAX];
    struct hps_position read;
    (void)state;
    memset(&read, 0xff, sizeof(read));
    size_t size = hps_position_encode(&some, value);
    assert_int_equal(size, FIXED + strlen(some.cluster) + strlen(some.topic_id));
    assert_int_equal(hps_position_decode(value, size, &read), HPS_OK);
    assert_string_equal(read.cluster, some.cluster);
    assert_string_equal(read.topic_id, some.topic_id);
    assert_int_equal(read.next, 500);
    assert_true(read.paused && read.last.known && read.witness.known);
    assert_int_equal(read.last.hash, 18);
    assert_int_equal(read.frozen, 450);
    assert_int_equal(read.base_ms, 460);
    assert_int_equal(read.witness.offset, 400);
    assert_int_equal(read.witness.time_ms, 27);
    assert_int_equal(read.witness.hash, 28);
    assert_int_equal(read.event_time_ms, 20);
    assert_int_equal(read.start, 100);
    assert_int_equal(read.skipped, 300);
    assert_true(read.before_start);
}

/* In an earlier format, without the topic's id. */
static size_t encode_as(uint8_t format, size_t fixed, uint8_t value[HPS_POSITION_VALUE_BYTES_MAX])
{
    struct hps_position position = some;
    position.topic_id[0] = '\0';
    position.witness.known = false;
    size_t size = hps_position_encode(&position, value);
    memmove(value + fixed, value + FIXED, size - FIXED);
    value[0] = format;
    return size - FIXED + fixed;
}

static void test_position_when_of_the_second_format_then_the_last_record_is_the_witness(
    void **state)
{
    uint8_t value[HPS_POSITION_VALUE_BYTES_MAX];
    struct hps_position read;
    (void)state;
    size_t size = encode_as(2, FIXED_2, value);
    assert_int_equal(hps_position_decode(value, size, &read), HPS_OK);
    assert_string_equal(read.cluster, some.cluster);
    assert_string_equal(read.topic_id, "");
    assert_int_equal(read.skipped, 300);
    assert_int_equal(read.frozen, HPS_POSITION_WHOLE);
    assert_true(read.witness.known);
    assert_int_equal(read.witness.offset, 499);
    assert_int_equal(read.witness.hash, 18);
}

static void test_position_when_of_the_first_format_then_records_may_be_skipped(void **state)
{
    uint8_t value[HPS_POSITION_VALUE_BYTES_MAX];
    struct hps_position read;
    (void)state;
    size_t size = encode_as(1, FIXED_1, value);
    assert_int_equal(hps_position_decode(value, size, &read), HPS_OK);
    assert_string_equal(read.cluster, some.cluster);
    assert_int_equal(read.next, 500);
    assert_int_equal(read.start, -1);
    assert_int_equal(read.skipped, 0);
}

static void test_position_when_damaged_or_newer_then_refused(void **state)
{
    uint8_t value[HPS_POSITION_VALUE_BYTES_MAX];
    struct hps_position read;
    (void)state;
    size_t size = hps_position_encode(&some, value);
    for (size_t cut = 0; cut < size; cut++) {
        assert_int_equal(hps_position_decode(value, cut, &read), HPS_DATA_LOSS);
    }
    value[0] = 4;
    assert_int_equal(hps_position_decode(value, size, &read), HPS_NEWER_FORMAT);
    value[0] = 0;
    assert_int_equal(hps_position_decode(value, size, &read), HPS_DATA_LOSS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_position_when_stored_then_read_unchanged),
        cmocka_unit_test(
            test_position_when_of_the_second_format_then_the_last_record_is_the_witness),
        cmocka_unit_test(test_position_when_of_the_first_format_then_records_may_be_skipped),
        cmocka_unit_test(test_position_when_damaged_or_newer_then_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Positions are compared partition by partition, and come back from bytes as they went.
 */
// clang-format off
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>
// clang-format on

#include "backends/redis/positions.h"

static struct hps_redis_positions one;
static struct hps_redis_positions two;

static int tear_down(void **state)
{
    (void)state;
    hps_redis_positions_fini(&one);
    hps_redis_positions_fini(&two);
    return 0;
}

static void raise_to(struct hps_redis_positions *positions, uint64_t partition, int64_t start,
                     int64_t offset)
{
    assert_int_equal(hps_redis_positions_raise(positions, partition, start, offset), HPS_OK);
}

static void test_raise_when_lower_then_it_stays(void **state)
{
    (void)state;
    raise_to(&one, 5, -1, 10);
    raise_to(&one, 5, 3, 7);
    assert_int_equal(one.n, 1);
    assert_int_equal(hps_redis_positions_find(&one, 5)->offset, 10);
    assert_int_equal(hps_redis_positions_find(&one, 5)->start, 3);
    raise_to(&one, 5, -1, 11);
    assert_int_equal(hps_redis_positions_find(&one, 5)->offset, 11);
    assert_int_equal(hps_redis_positions_find(&one, 5)->start, 3);
    assert_null(hps_redis_positions_find(&one, 6));
}

static void test_copy_when_the_other_changes_then_it_stays(void **state)
{
    (void)state;
    assert_int_equal(hps_redis_positions_copy(&two, &one), HPS_OK);
    assert_int_equal(two.n, 0);
    raise_to(&one, 5, 3, 10);
    raise_to(&two, 6, -1, 1);
    raise_to(&two, 7, -1, 2);
    assert_int_equal(hps_redis_positions_copy(&two, &one), HPS_OK);
    raise_to(&one, 5, 4, 11);
    assert_int_equal(two.n, 1);
    assert_int_equal(hps_redis_positions_find(&two, 5)->offset, 10);
    assert_int_equal(hps_redis_positions_find(&two, 5)->start, 3);
}

static void test_cover_when_one_partition_is_behind_then_no(void **state)
{
    (void)state;
    assert_true(hps_redis_positions_cover(&one, &two));
    raise_to(&one, 1, -1, 10);
    raise_to(&one, 2, -1, 20);
    raise_to(&two, 1, -1, 10);
    assert_true(hps_redis_positions_cover(&one, &two));
    assert_false(hps_redis_positions_within(&one, &two));
    raise_to(&two, 2, -1, 20);
    assert_true(hps_redis_positions_within(&one, &two));
    raise_to(&two, 2, -1, 21);
    assert_false(hps_redis_positions_cover(&one, &two));
    assert_true(hps_redis_positions_within(&one, &two));
}

static void test_cover_when_a_partition_is_not_named_then_by_its_start(void **state)
{
    (void)state;
    raise_to(&two, 9, -1, 5);
    assert_false(hps_redis_positions_cover(&one, &two));
    raise_to(&two, 9, 5, 5);
    assert_true(hps_redis_positions_cover(&one, &two));
    raise_to(&two, 9, 5, 6);
    assert_false(hps_redis_positions_cover(&one, &two));
}

static void test_decode_when_encoded_then_the_same(void **state)
{
    (void)state;
    struct hps_buf bytes;
    hps_buf_init(&bytes, 1 << 20);
    for (uint64_t i = 0; i < 300; i++) {
        raise_to(&one, i * UINT64_C(0x123456789abcdef), -1, (int64_t)(i << 40));
    }
    assert_int_equal(hps_redis_positions_encode(&one, &bytes), HPS_OK);
    assert_int_equal(bytes.size, 300 * HPS_REDIS_POSITION_BYTES);
    raise_to(&two, 3, -1, 3); /* is replaced */
    assert_int_equal(hps_redis_positions_decode(&two, bytes.data, bytes.size), HPS_OK);
    assert_int_equal(two.n, 300);
    assert_true(hps_redis_positions_cover(&one, &two));
    assert_true(hps_redis_positions_cover(&two, &one));
    assert_int_equal(hps_redis_positions_decode(&two, bytes.data, bytes.size - 1), HPS_INVALID);
    hps_buf_fini(&bytes);
}

/* Whoever else writes to the server: an only copy would be taken for that far. */
static void test_decode_when_an_offset_is_below_0_then_invalid(void **state)
{
    (void)state;
    struct hps_buf bytes;
    hps_buf_init(&bytes, 1 << 20);
    raise_to(&one, 1, -1, 7);
    raise_to(&one, 2, -1, -3);
    assert_int_equal(hps_redis_positions_encode(&one, &bytes), HPS_OK);
    assert_int_equal(hps_redis_positions_decode(&two, bytes.data, bytes.size), HPS_INVALID);
    assert_int_equal(
        hps_redis_positions_decode(&two, bytes.data, bytes.size - HPS_REDIS_POSITION_BYTES),
        HPS_OK);
    hps_buf_fini(&bytes);
}

static void test_spans_when_encoded_then_offsets_are_big_endian(void **state)
{
    (void)state;
    static const uint8_t wanted[24] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0,
                                       0,    0,    1,    2,    0,    0,    0,    0,    0, 0, 1, 3};
    const struct hps_log_span span = {42, -1, 0x102, 0x103};
    struct hps_buf bytes;
    hps_buf_init(&bytes, 1 << 20);
    assert_int_equal(hps_redis_spans_encode(&span, 1, &bytes), HPS_OK);
    assert_int_equal(bytes.size, HPS_REDIS_SPAN_BYTES);
    assert_memory_equal(bytes.data + 8, wanted, sizeof(wanted));
    hps_buf_fini(&bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_raise_when_lower_then_it_stays, tear_down),
        cmocka_unit_test_teardown(test_copy_when_the_other_changes_then_it_stays, tear_down),
        cmocka_unit_test_teardown(test_cover_when_one_partition_is_behind_then_no, tear_down),
        cmocka_unit_test_teardown(test_cover_when_a_partition_is_not_named_then_by_its_start,
                                  tear_down),
        cmocka_unit_test_teardown(test_decode_when_encoded_then_the_same, tear_down),
        cmocka_unit_test_teardown(test_decode_when_an_offset_is_below_0_then_invalid, tear_down),
        cmocka_unit_test_teardown(test_spans_when_encoded_then_offsets_are_big_endian, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Growable bytes. One thread.
 */
#include "base/buf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/fault_heap.h"

static void test_append_when_many_then_bytes_in_order(void **state)
{
    (void)state;
    struct hps_buf buf;
    hps_buf_init(&buf, 1 << 20);
    assert_null(buf.data);
    for (unsigned i = 0; i < 5000; i++) {
        uint8_t byte = (uint8_t)(i * 7);
        assert_int_equal(hps_buf_append(&buf, &byte, 1), HPS_OK);
    }
    assert_int_equal(buf.size, 5000);
    for (unsigned i = 0; i < 5000; i++) {
        assert_int_equal(buf.data[i], (uint8_t)(i * 7));
    }
    hps_buf_fini(&buf);
    assert_int_equal(hps_buf_append(&buf, "ab", 2), HPS_OK); /* may be used again */
    hps_buf_fini(&buf);
}

static void test_append_when_max_passed_then_exhausted_and_unchanged(void **state)
{
    (void)state;
    struct hps_buf buf;
    hps_buf_init(&buf, 10);
    assert_int_equal(hps_buf_append(&buf, "0123456", 7), HPS_OK);
    assert_int_equal(hps_buf_append(&buf, "0123", 4), HPS_EXHAUSTED);
    assert_int_equal(hps_buf_append(&buf, "", SIZE_MAX), HPS_EXHAUSTED);
    assert_int_equal(buf.size, 7);
    assert_int_equal(hps_buf_append(&buf, "789", 3), HPS_OK);
    assert_memory_equal(buf.data, "0123456789", 10);
    assert_int_equal(hps_buf_append(&buf, NULL, 0), HPS_OK);
    assert_int_equal(hps_buf_reserve(&buf, 1), HPS_EXHAUSTED);
    hps_buf_fini(&buf);
}

static void test_printf_when_it_fits_exactly_then_ok(void **state)
{
    (void)state;
    struct hps_buf buf;
    hps_buf_init(&buf, 10);
    assert_int_equal(hps_buf_printf(&buf, "%s-%d", "abc", 123456), HPS_OK);
    assert_int_equal(buf.size, 10);
    assert_memory_equal(buf.data, "abc-123456", 10);
    assert_int_equal(hps_buf_printf(&buf, "%s", ""), HPS_OK);
    assert_int_equal(hps_buf_printf(&buf, "x"), HPS_EXHAUSTED);
    assert_int_equal(buf.size, 10);
    hps_buf_fini(&buf);
}

static void test_printf_when_longer_than_memory_then_grows(void **state)
{
    (void)state;
    struct hps_buf buf;
    hps_buf_init(&buf, 100000);
    assert_int_equal(hps_buf_append(&buf, "k=", 2), HPS_OK);
    assert_int_equal(hps_buf_printf(&buf, "%09000d", 42), HPS_OK);
    assert_int_equal(buf.size, 9002);
    assert_memory_equal(buf.data + 8999, "042", 3);
    hps_buf_fini(&buf);
}

static void test_put_when_one_fails_then_the_next_do_nothing_until_a_clear(void **state)
{
    (void)state;
    struct hps_buf buf;
    hps_buf_init(&buf, 5);
    hps_buf_put(&buf, "ab");
    hps_buf_putf(&buf, "%d", 1234); /* too long */
    hps_buf_put(&buf, "c");
    hps_buf_put_bytes(&buf, "d", 1);
    assert_int_equal(buf.status, HPS_EXHAUSTED);
    assert_int_equal(buf.size, 2);
    hps_buf_clear(&buf);
    hps_buf_putf(&buf, "%s", "abcde");
    assert_int_equal(buf.status, HPS_OK);
    assert_memory_equal(buf.data, "abcde", buf.size);
    hps_buf_fini(&buf);
}

static void test_consume_when_part_then_rest_moves_to_front(void **state)
{
    (void)state;
    struct hps_buf buf;
    hps_buf_init(&buf, 100);
    hps_buf_consume(&buf, 0);
    assert_int_equal(hps_buf_append(&buf, "abcdef", 6), HPS_OK);
    hps_buf_consume(&buf, 4);
    assert_int_equal(buf.size, 2);
    assert_memory_equal(buf.data, "ef", 2);
    hps_buf_consume(&buf, 2);
    assert_int_equal(buf.size, 0);
    hps_buf_clear(&buf);
    hps_buf_fini(&buf);
}

static void buf_scenario(void *ctx)
{
    (void)ctx;
    struct hps_buf buf;
    hps_buf_init(&buf, 1 << 16);
    for (unsigned i = 0; i < 4; i++) {
        size_t before = buf.size;
        hps_status status = hps_buf_printf(&buf, "%01000u", i);
        assert_true(status == HPS_OK || status == HPS_NO_MEMORY);
        assert_int_equal(buf.size, before + (status == HPS_OK ? 1000 : 0));
    }
    hps_buf_fini(&buf);
}

static void test_buf_when_each_allocation_fails_then_size_unchanged(void **state)
{
    (void)state;
    assert_true(hps_fault_heap_run(buf_scenario, NULL) >= 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_append_when_many_then_bytes_in_order),
        cmocka_unit_test(test_append_when_max_passed_then_exhausted_and_unchanged),
        cmocka_unit_test(test_printf_when_it_fits_exactly_then_ok),
        cmocka_unit_test(test_printf_when_longer_than_memory_then_grows),
        cmocka_unit_test(test_put_when_one_fails_then_the_next_do_nothing_until_a_clear),
        cmocka_unit_test(test_consume_when_part_then_rest_moves_to_front),
        cmocka_unit_test(test_buf_when_each_allocation_fails_then_size_unchanged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Plain bytes of messages as they came: where they are, inflated, and refused. One thread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "net/grpc.h"
#include "tests/lib/gzip_program.h"

static hps_status unpack(const struct hps_grpc_packed *packed, size_t size_max,
                         const char *expected, size_t expected_size, const char *text)
{
    const uint8_t *data = NULL;
    struct hps_buf plain;
    struct hps_error err = {0};
    size_t size = 0;

    hps_status status = hps_grpc_unpack(packed, size_max, &plain, &data, &size, &err);
    if (status == HPS_OK) {
        assert_int_equal(size, expected_size);
        assert_memory_equal(data, expected, size);
        assert_int_equal(data == packed->data, !packed->compressed);
    } else {
        assert_int_equal(err.status, status);
        assert_non_null(strstr(err.text, text));
    }
    hps_buf_fini(&plain);
    return status;
}

static void test_unpack_when_plain_then_the_bytes_themselves_within_both_limits(void **state)
{
    struct hps_grpc_packed packed = {.data = (const uint8_t *)"12345", .size = 5, .size_max = 5};

    (void)state;
    assert_int_equal(unpack(&packed, 5, "12345", 5, ""), HPS_OK);
    assert_int_equal(unpack(&packed, 4, NULL, 0, "5 bytes, the limit is 4"), HPS_EXHAUSTED);
    packed.size_max = 3;
    assert_int_equal(unpack(&packed, SIZE_MAX, NULL, 0, "limit is 3"), HPS_EXHAUSTED);
}

static void test_unpack_when_gzip_then_inflated_within_both_limits(void **state)
{
    uint8_t bytes[256];
    struct hps_grpc_packed packed = {.data = bytes, .size_max = 10, .compressed = true};

    (void)state;
    packed.size = hps_gzip_program("0123456789", 10, bytes, sizeof(bytes));
    assert_int_equal(unpack(&packed, SIZE_MAX, "0123456789", 10, ""), HPS_OK);
    assert_int_equal(unpack(&packed, 9, NULL, 0, "more than 9 bytes"), HPS_EXHAUSTED);
    packed.size_max = 8;
    assert_int_equal(unpack(&packed, SIZE_MAX, NULL, 0, "more than 8 bytes"), HPS_EXHAUSTED);
}

static void test_unpack_when_gzip_is_damaged_then_internal(void **state)
{
    const struct hps_grpc_packed packed = {
        .data = (const uint8_t *)"abc", .size = 3, .size_max = 10, .compressed = true};

    (void)state;
    assert_int_equal(unpack(&packed, SIZE_MAX, NULL, 0, "compressed message is"), HPS_INTERNAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unpack_when_plain_then_the_bytes_themselves_within_both_limits),
        cmocka_unit_test(test_unpack_when_gzip_then_inflated_within_both_limits),
        cmocka_unit_test(test_unpack_when_gzip_is_damaged_then_internal),
    };
    return cmocka_run_group_tests_name("grpc_unpack", tests, NULL, NULL);
}

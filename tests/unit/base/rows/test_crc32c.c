/* SPDX-License-Identifier: Apache-2.0
 *
 * CRC-32C against the vectors of RFC 3720, section B.4.
 */
#include "base/rows/crc32c.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/tmpdir.h"

static void test_crc32c_when_rfc3720_vectors_then_their_values(void **state)
{
    (void)state;
    uint8_t bytes[32];
    memset(bytes, 0, sizeof(bytes));
    assert_int_equal(hps_crc32c(0, bytes, 32), 0x8a9136aa);
    memset(bytes, 0xff, sizeof(bytes));
    assert_int_equal(hps_crc32c(0, bytes, 32), 0x62a8ab43);
    for (uint8_t i = 0; i < 32; i++) {
        bytes[i] = i;
    }
    assert_int_equal(hps_crc32c(0, bytes, 32), 0x46dd794e);
    for (uint8_t i = 0; i < 32; i++) {
        bytes[i] = (uint8_t)(31 - i);
    }
    assert_int_equal(hps_crc32c(0, bytes, 32), 0x113fdb5c);
    assert_int_equal(hps_crc32c(0, "123456789", 9), 0xe3069283);
    assert_int_equal(hps_crc32c(0, NULL, 0), 0);
}

static void test_crc32c_when_split_anywhere_then_the_same(void **state)
{
    (void)state;
    uint8_t bytes[61];
    for (size_t i = 0; i < sizeof(bytes); i++) {
        bytes[i] = (uint8_t)(i * 37 + 1);
    }
    uint32_t whole = hps_crc32c(0, bytes, sizeof(bytes));
    for (size_t cut = 0; cut <= sizeof(bytes); cut++) {
        uint32_t crc = hps_crc32c(0, bytes, cut);
        assert_int_equal(hps_crc32c(crc, bytes + cut, sizeof(bytes) - cut), whole);
    }
}

static void test_file_when_larger_than_a_piece_then_crc_of_all(void **state)
{
    (void)state;
    static uint8_t bytes[(1 << 20) + 4097];
    for (size_t i = 0; i < sizeof(bytes); i++) {
        bytes[i] = (uint8_t)(i * i >> 3);
    }
    struct hps_tmpdir dir;
    struct hps_error err = {0};
    uint32_t crc = 0;
    uint64_t size = 0;
    hps_tmpdir_open(&dir);
    hps_tmpdir_write(&dir, "f", bytes, sizeof(bytes));
    assert_int_equal(hps_crc32c_file(hps_tmpdir_join(&dir, "f"), NULL, &crc, &size, &err), HPS_OK);
    assert_int_equal(crc, hps_crc32c(0, bytes, sizeof(bytes)));
    assert_int_equal(size, sizeof(bytes));
    hps_tmpdir_close(&dir);
}

static void test_file_when_absent_directory_or_cancelled_then_error(void **state)
{
    (void)state;
    struct hps_tmpdir dir;
    struct hps_error err = {0};
    atomic_bool cancel = true;
    uint32_t crc = 7;
    uint64_t size = 7;
    hps_tmpdir_open(&dir);
    hps_tmpdir_write(&dir, "f", "abc", 3);
    assert_int_equal(hps_crc32c_file(hps_tmpdir_join(&dir, "g"), NULL, &crc, &size, &err),
                     HPS_NOT_FOUND);
    assert_non_null(strstr(err.text, "/g"));
    assert_int_equal(hps_crc32c_file(dir.path, NULL, &crc, &size, &err), HPS_INVALID);
    assert_int_equal(hps_crc32c_file(hps_tmpdir_join(&dir, "f"), &cancel, &crc, &size, &err),
                     HPS_CANCELLED);
    assert_int_equal(crc, 7);
    assert_int_equal(size, 7);
    hps_tmpdir_close(&dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_crc32c_when_rfc3720_vectors_then_their_values),
        cmocka_unit_test(test_crc32c_when_split_anywhere_then_the_same),
        cmocka_unit_test(test_file_when_larger_than_a_piece_then_crc_of_all),
        cmocka_unit_test(test_file_when_absent_directory_or_cancelled_then_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Bounded inflation: good messages, bombs, damage, truncation at every byte.
 */
#include "net/gzip.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "base/heap.h"
#include "tests/lib/fault_heap.h"
#include "tests/lib/gzip_program.h"

static void test_inflate_when_good_then_appends(void **state)
{
    (void)state;
    uint8_t packed[256];
    struct hps_buf out;
    hps_buf_init(&out, 1000);
    assert_int_equal(hps_buf_append(&out, "ab", 2), HPS_OK);
    size_t size = hps_gzip_program("hello, hello, hello", 19, packed, sizeof(packed));
    assert_int_equal(hps_gzip_inflate(packed, size, &out, NULL), HPS_OK);
    assert_int_equal(out.size, 21);
    assert_memory_equal(out.data, "abhello, hello, hello", 21);
    size_t empty = hps_gzip_program("", 0, packed, sizeof(packed));
    assert_int_equal(hps_gzip_inflate(packed, empty, &out, NULL), HPS_OK);
    assert_int_equal(out.size, 21);
    hps_buf_fini(&out);
}

static void test_inflate_when_two_members_then_both(void **state)
{
    (void)state;
    uint8_t packed[256];
    struct hps_buf out;
    hps_buf_init(&out, 6);
    size_t size = hps_gzip_program("abc", 3, packed, sizeof(packed));
    size += hps_gzip_program("def", 3, packed + size, sizeof(packed) - size);
    assert_int_equal(hps_gzip_inflate(packed, size, &out, NULL), HPS_OK);
    assert_int_equal(out.size, 6);
    assert_memory_equal(out.data, "abcdef", 6);
    hps_buf_fini(&out);
}

static void test_inflate_when_at_the_cap_then_ok_and_one_more_exhausted(void **state)
{
    (void)state;
    static uint8_t zeros[HPS_GZIP_FREE_BYTES + 1];
    static uint8_t packed[20000];
    static const size_t sizes[] = {0, 1, 4095, 4096, 4097, 100000, HPS_GZIP_FREE_BYTES};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct hps_buf out;
        struct hps_error err = {0};
        hps_buf_init(&out, sizes[i]);
        size_t size = hps_gzip_program(zeros, sizes[i], packed, sizeof(packed));
        assert_int_equal(hps_gzip_inflate(packed, size, &out, &err), HPS_OK);
        assert_int_equal(out.size, sizes[i]);
        hps_buf_clear(&out);
        size = hps_gzip_program(zeros, sizes[i] + 1, packed, sizeof(packed));
        assert_int_equal(hps_gzip_inflate(packed, size, &out, &err), HPS_EXHAUSTED);
        assert_int_equal(out.size, 0);
        assert_non_null(strstr(err.text, "more than"));
        hps_buf_fini(&out);
    }
}

static void test_inflate_when_beyond_reason_then_exhausted_at_once(void **state)
{
    (void)state;
    static uint64_t keys[1 << 20];
    static uint8_t packed[8 << 20];
    struct hps_error err = {0};
    struct hps_buf out;
    hps_buf_init(&out, 32 << 20);
    size_t size = hps_gzip_program(keys, sizeof(keys), packed, sizeof(packed)); /* one key */
    assert_true(size < sizeof(keys) / 512);
    assert_int_equal(hps_gzip_inflate(packed, size, &out, &err), HPS_EXHAUSTED);
    assert_non_null(strstr(err.text, "128 times"));
    assert_int_equal(out.size, 0);
    assert_true(out.capacity <= 2 * HPS_GZIP_FREE_BYTES);
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]) / 20; i++) { /* a batch that is padded */
        keys[20 * i] = hps_mix64(i) % 1000000;
    }
    size = hps_gzip_program(keys, sizeof(keys), packed, sizeof(packed));
    assert_int_equal(hps_gzip_inflate(packed, size, &out, &err), HPS_OK);
    assert_int_equal(out.size, sizeof(keys));
    hps_buf_fini(&out);
}

static void test_size_then_what_the_trailer_says(void **state)
{
    (void)state;
    uint8_t packed[512];
    static uint8_t zeros[70000];
    size_t size = hps_gzip_program(zeros, sizeof(zeros), packed, sizeof(packed));
    assert_int_equal(hps_gzip_size(packed, size), sizeof(zeros));
    assert_int_equal(hps_gzip_size(packed, 7), 0);
}

static void test_inflate_when_bomb_then_exhausted_within_the_cap(void **state)
{
    (void)state;
    static uint8_t zeros[1 << 20];
    static uint8_t packed[1 << 21];
    size_t size = 0;
    for (unsigned i = 0; i < 1000; i++) { /* 1 GB in members of 1 MB */
        size += i == 0 ? hps_gzip_program(zeros, sizeof(zeros), packed, sizeof(packed)) : 0;
        if (i > 0) {
            size_t one = size / i;
            memcpy(packed + size, packed, one);
            size += one;
        }
    }
    struct hps_buf out;
    hps_buf_init(&out, 5 << 20);
    assert_int_equal(hps_gzip_inflate(packed, size, &out, NULL), HPS_EXHAUSTED);
    assert_true(out.capacity <= 5 << 20);
    assert_int_equal(out.size, 0);
    hps_buf_fini(&out);
}

static void test_inflate_when_cut_anywhere_then_invalid(void **state)
{
    (void)state;
    uint8_t packed[512];
    size_t size =
        hps_gzip_program("some text that is long enough, some text", 40, packed, sizeof(packed));
    for (size_t cut = 0; cut < size; cut++) {
        struct hps_buf out;
        struct hps_error err = {0};
        hps_buf_init(&out, 1000);
        uint8_t *exact = hps_alloc(cut);
        assert_non_null(exact);
        memcpy(exact, packed, cut);
        assert_int_equal(hps_gzip_inflate(exact, cut, &out, &err), HPS_INVALID);
        assert_true(err.text[0] != '\0');
        hps_free(exact);
        hps_buf_fini(&out);
    }
}

static void test_inflate_when_damaged_then_never_wrong_bytes(void **state)
{
    (void)state;
    static const char text[] = "some text that is long enough, some text";
    uint8_t packed[512];
    size_t size = hps_gzip_program(text, 40, packed, sizeof(packed));
    for (size_t at = 0; at < size; at++) {
        struct hps_buf out;
        hps_buf_init(&out, 1000);
        packed[at] ^= 0x10;
        /* Header fields that carry no data (time, system) may change without harm. */
        if (hps_gzip_inflate(packed, size, &out, NULL) == HPS_OK) {
            assert_int_equal(out.size, 40);
            assert_memory_equal(out.data, text, 40);
        }
        packed[at] ^= 0x10;
        hps_buf_fini(&out);
    }
}

static void test_inflate_when_not_gzip_or_more_follows_then_invalid(void **state)
{
    (void)state;
    uint8_t packed[256];
    struct hps_buf out;
    hps_buf_init(&out, 1000);
    assert_int_equal(hps_gzip_inflate("plain text", 10, &out, NULL), HPS_INVALID);
    static const uint8_t zlib_format[] = {0x78, 0xda, 0x4b, 0x4c, 0x4a, 0x06,
                                          0x00, 0x02, 0x4d, 0x01, 0x27};
    assert_int_equal(hps_gzip_inflate(zlib_format, sizeof(zlib_format), &out, NULL), HPS_INVALID);
    assert_int_equal(hps_gzip_size(zlib_format, sizeof(zlib_format)), 0);
    assert_int_equal(hps_zlib_inflate(zlib_format, sizeof(zlib_format), &out, NULL), HPS_OK);
    assert_int_equal(out.size, 3);
    assert_memory_equal(out.data, "abc", 3);
    assert_int_equal(hps_zlib_inflate(zlib_format, sizeof(zlib_format) - 1, &out, NULL),
                     HPS_INVALID);
    hps_buf_clear(&out);
    size_t size = hps_gzip_program("abc", 3, packed, sizeof(packed));
    assert_int_equal(hps_zlib_inflate(packed, size, &out, NULL), HPS_INVALID);
    packed[size] = 'x';
    assert_int_equal(hps_gzip_inflate(packed, size + 1, &out, NULL), HPS_INVALID);
    assert_int_equal(out.size, 0);
    hps_buf_fini(&out);
}

struct message {
    uint8_t packed[4096];
    size_t size;
};

static void scenario(void *ctx)
{
    const struct message *message = ctx;
    struct hps_buf out;
    hps_buf_init(&out, 1 << 20);
    hps_status status = hps_gzip_inflate(message->packed, message->size, &out, NULL);
    assert_true(status == HPS_OK || status == HPS_NO_MEMORY);
    hps_buf_fini(&out);
}

static void test_inflate_when_allocation_fails_then_no_memory(void **state)
{
    (void)state;
    static uint8_t zeros[100000];
    struct message message;
    message.size = hps_gzip_program(zeros, sizeof(zeros), message.packed, sizeof(message.packed));
    assert_true(hps_fault_heap_run(scenario, &message) >= 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_inflate_when_good_then_appends),
        cmocka_unit_test(test_inflate_when_two_members_then_both),
        cmocka_unit_test(test_inflate_when_at_the_cap_then_ok_and_one_more_exhausted),
        cmocka_unit_test(test_inflate_when_beyond_reason_then_exhausted_at_once),
        cmocka_unit_test(test_size_then_what_the_trailer_says),
        cmocka_unit_test(test_inflate_when_bomb_then_exhausted_within_the_cap),
        cmocka_unit_test(test_inflate_when_cut_anywhere_then_invalid),
        cmocka_unit_test(test_inflate_when_damaged_then_never_wrong_bytes),
        cmocka_unit_test(test_inflate_when_not_gzip_or_more_follows_then_invalid),
        cmocka_unit_test(test_inflate_when_allocation_fails_then_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * gRPC framing: splits, limits, time-outs, percent-encoding. Test thread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "net/grpc_frame.h"
#include "tests/lib/fault_heap.h"

static void test_decoder_when_split_anywhere_then_same_messages(void **state)
{
    static const uint8_t wire[] = {0, 0, 0, 0, 3, 'a', 'b', 'c', 0, 0, 0, 0,   0,
                                   1, 0, 0, 0, 1, 'z', 0,   0,   0, 0, 2, 'x', 'y'};
    static const char *const texts[] = {"abc", "", "z", "xy"};

    (void)state;
    for (size_t chunk = 1; chunk <= sizeof wire; chunk++) {
        for (unsigned lend = 0; lend < 2; lend++) {
            struct hps_grpc_decoder decoder;
            unsigned n_messages = 0;
            hps_grpc_decoder_init(&decoder, 3, lend != 0);
            for (size_t at = 0; at < sizeof wire;) {
                size_t size = chunk < sizeof wire - at ? chunk : sizeof wire - at;
                struct hps_grpc_message message;
                bool complete;
                size_t used;
                assert_int_equal(hps_grpc_decoder_feed(&decoder, wire + at, size, &used, &message,
                                                       &complete, NULL),
                                 HPS_OK);
                assert_true(used > 0 && used <= size);
                at += used;
                if (complete) {
                    assert_true(hps_grpc_decoder_idle(&decoder));
                }
                if (complete) {
                    assert_true(n_messages < 4);
                    assert_int_equal(message.size, strlen(texts[n_messages]));
                    if (message.size > 0) {
                        assert_memory_equal(message.data, texts[n_messages], message.size);
                    }
                    assert_int_equal(message.compressed, n_messages == 2);
                    n_messages++;
                }
            }
            assert_int_equal(n_messages, 4);
            assert_true(hps_grpc_decoder_idle(&decoder));
            hps_grpc_decoder_fini(&decoder);
        }
    }
}

static void test_decoder_when_message_lies_whole_then_lent_in_place(void **state)
{
    static const uint8_t wire[] = {0, 0, 0, 0, 3, 'a', 'b', 'c'};
    struct hps_grpc_decoder decoder;
    struct hps_grpc_message message;
    bool complete;
    size_t used;

    (void)state;
    hps_grpc_decoder_init(&decoder, 100, true);
    assert_int_equal(
        hps_grpc_decoder_feed(&decoder, wire, sizeof wire, &used, &message, &complete, NULL),
        HPS_OK);
    assert_true(complete);
    assert_ptr_equal(message.data, wire + 5);
    assert_int_equal(hps_grpc_decoder_held(&decoder), 0);
    hps_grpc_decoder_fini(&decoder);
}

static void test_decoder_when_it_passes_bytes_on_then_in_order_and_none_held(void **state)
{
    static const uint8_t wire[] = {0, 0, 0, 0, 3, 'a', 'b', 'c', 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 'd'};

    (void)state;
    for (size_t piece = 1; piece <= sizeof wire; piece++) {
        struct hps_grpc_decoder decoder;
        struct hps_grpc_message message;
        char text[8] = "";
        unsigned n_complete = 0;
        hps_grpc_decoder_init(&decoder, 3, true);
        decoder.pass = true;
        for (size_t at = 0; at < sizeof wire;) {
            size_t size = piece < sizeof wire - at ? piece : sizeof wire - at;
            bool complete;
            size_t used;
            assert_int_equal(
                hps_grpc_decoder_feed(&decoder, wire + at, size, &used, &message, &complete, NULL),
                HPS_OK);
            strncat(text, message.size == 0 ? "" : (const char *)message.data, message.size);
            at += used;
            n_complete += complete;
            assert_int_equal(message.compressed && message.size > 0, n_complete == 3);
            assert_int_equal(hps_grpc_decoder_held(&decoder), 0);
            assert_true(!complete || hps_grpc_decoder_left(&decoder) == 0);
        }
        assert_int_equal(n_complete, 3);
        assert_string_equal(text, "abcd");
        assert_true(hps_grpc_decoder_idle(&decoder));
        hps_grpc_decoder_fini(&decoder);
    }
}

static void test_decoder_when_bytes_are_put_in_its_room_then_not_copied(void **state)
{
    static const uint8_t head[] = {0, 0, 0, 0, 6, 'a', 'b'};
    struct hps_grpc_decoder decoder;
    struct hps_grpc_message message;
    bool complete;
    size_t used, room = 0;

    (void)state;
    hps_grpc_decoder_init(&decoder, 100, true);
    assert_null(hps_grpc_decoder_room(&decoder, 100, &room)); /* how large is it? */
    assert_int_equal(
        hps_grpc_decoder_feed(&decoder, head, sizeof head, &used, &message, &complete, NULL),
        HPS_OK);
    uint8_t *to = hps_grpc_decoder_room(&decoder, 1, &room);
    assert_non_null(to);
    assert_int_equal(room, 1);
    *to = 'c';
    assert_int_equal(hps_grpc_decoder_feed(&decoder, to, 1, &used, &message, &complete, NULL),
                     HPS_OK);
    assert_false(complete);
    uint8_t *next = hps_grpc_decoder_room(&decoder, 100, &room);
    assert_ptr_equal(next, to + 1);
    assert_int_equal(room, 3); /* not past the end of the message */
    assert_int_equal(hps_grpc_decoder_feed(&decoder, (const uint8_t *)"def", 3, &used, &message,
                                           &complete, NULL),
                     HPS_OK); /* room need not be used */
    assert_true(complete);
    assert_int_equal(message.size, 6);
    assert_memory_equal(message.data, "abcdef", 6);
    assert_ptr_equal(message.data + 2, to);
    assert_null(hps_grpc_decoder_room(&decoder, 100, &room));
    hps_grpc_decoder_fini(&decoder);
}

static void test_decoder_when_the_message_behind_a_large_one_begins_then_its_memory_is_free(
    void **state)
{
    enum { LARGE = 1 << 20, STEP = 1 << 14 };
    static const uint8_t head[] = {0, LARGE >> 24, LARGE >> 16, 0, 0};
    static const uint8_t step[STEP];
    struct hps_grpc_decoder decoder;
    struct hps_grpc_message message;
    bool complete = false;
    size_t used;

    (void)state;
    hps_fault_heap_install(0);
    hps_grpc_decoder_init(&decoder, LARGE, false);
    assert_int_equal(
        hps_grpc_decoder_feed(&decoder, head, sizeof head, &used, &message, &complete, NULL),
        HPS_OK);
    for (unsigned i = 0; i < LARGE / STEP; i++) {
        assert_false(complete);
        assert_int_equal(
            hps_grpc_decoder_feed(&decoder, step, STEP, &used, &message, &complete, NULL), HPS_OK);
        assert_int_equal(used, STEP);
    }
    assert_true(complete);
    assert_int_equal(message.size, LARGE);
    assert_true(hps_fault_heap_live_bytes() >= LARGE); /* it is the service's until then */
    assert_int_equal(hps_grpc_decoder_feed(&decoder, head, 1, &used, &message, &complete, NULL),
                     HPS_OK);
    assert_int_equal(hps_grpc_decoder_held(&decoder), 0);
    assert_true(hps_fault_heap_live_bytes() <= 64 * 1024 + 4096);
    hps_grpc_decoder_fini(&decoder);
    hps_fault_heap_remove();
}

static void test_decoder_when_prefix_is_bad_then_refused_and_nothing_held(void **state)
{
    static const struct {
        uint8_t prefix[5];
        hps_status status;
    } cases[] = {
        {{2, 0, 0, 0, 0}, HPS_INTERNAL},
        {{255, 0, 0, 0, 0}, HPS_INTERNAL},
        {{0, 0, 0, 0, 101}, HPS_EXHAUSTED},
        {{1, 255, 255, 255, 255}, HPS_EXHAUSTED},
    };

    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        struct hps_grpc_decoder decoder;
        struct hps_grpc_message message;
        struct hps_error err;
        bool complete;
        size_t used;
        hps_grpc_decoder_init(&decoder, 100, false);
        assert_int_equal(
            hps_grpc_decoder_feed(&decoder, cases[i].prefix, 5, &used, &message, &complete, &err),
            cases[i].status);
        assert_int_equal(err.status, cases[i].status);
        assert_int_equal(hps_grpc_decoder_held(&decoder), 0);
        hps_grpc_decoder_fini(&decoder);
    }
}

static void test_decoder_when_cut_short_then_not_idle(void **state)
{
    struct hps_grpc_decoder decoder;
    struct hps_grpc_message message;
    bool complete;
    size_t used;

    (void)state;
    hps_grpc_decoder_init(&decoder, 100, false);
    assert_true(hps_grpc_decoder_idle(&decoder));
    for (unsigned i = 0; i < 5; i++) {
        const uint8_t byte = i == 4 ? 2 : 0;
        assert_int_equal(
            hps_grpc_decoder_feed(&decoder, &byte, 1, &used, &message, &complete, NULL), HPS_OK);
        assert_false(complete);
        assert_false(hps_grpc_decoder_idle(&decoder));
    }
    hps_grpc_decoder_fini(&decoder);
}

static void test_timeout_when_parsed_then_microseconds(void **state)
{
    static const struct {
        const char *text;
        bool ok;
        uint64_t us;
    } cases[] = {
        {"1H", true, 3600000000u}, {"2M", true, 120000000},
        {"3S", true, 3000000},     {"501m", true, 501000},
        {"7u", true, 7},           {"1n", true, 1},
        {"1000n", true, 1},        {"1001n", true, 2},
        {"0m", true, 0},           {"99999999H", true, 359999996400000000u},
        {"123456789m", false, 0},  {"", false, 0},
        {"m", false, 0},           {"1", false, 0},
        {"-1m", false, 0},         {"1.5S", false, 0},
        {"1s", false, 0},          {"1h", false, 0},
        {" 1S", false, 0},
    };

    (void)state;
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t us = 0;
        assert_int_equal(hps_grpc_timeout_parse(cases[i].text, strlen(cases[i].text), &us),
                         cases[i].ok);
        assert_true(us == cases[i].us);
    }
}

static void test_timeout_when_formatted_then_never_shorter_and_legal(void **state)
{
    static const uint64_t times[] = {0,         1,          999,         99999999,     100000000,
                                     123456789, 3600000000, 99999999999, 100000000001, UINT64_MAX};

    (void)state;
    for (unsigned i = 0; i < sizeof times / sizeof *times; i++) {
        char text[HPS_GRPC_TIMEOUT_CHARS];
        uint64_t us = 0;
        hps_grpc_timeout_format(times[i], text);
        assert_true(hps_grpc_timeout_parse(text, strlen(text), &us));
        assert_true(us >= times[i] || times[i] == UINT64_MAX);
        assert_true(times[i] == UINT64_MAX || us - times[i] <= times[i] / 1000);
    }
}

static void test_message_when_it_has_any_byte_then_survives(void **state)
{
    char text[256];
    struct hps_buf encoded;
    struct hps_buf decoded;

    (void)state;
    for (unsigned i = 0; i < 255; i++) {
        text[i] = (char)(i + 1);
    }
    text[255] = '\0';
    hps_buf_init(&encoded, 4096);
    hps_buf_init(&decoded, 4096);
    assert_int_equal(hps_grpc_message_encode(&encoded, text), HPS_OK);
    for (size_t i = 0; i < encoded.size; i++) {
        assert_true(encoded.data[i] >= 0x20 && encoded.data[i] <= 0x7e);
    }
    assert_int_equal(hps_grpc_message_decode(&decoded, (char *)encoded.data, encoded.size), HPS_OK);
    assert_int_equal(decoded.size, 255);
    assert_memory_equal(decoded.data, text, 255);
    hps_buf_clear(&decoded);
    assert_int_equal(hps_grpc_message_decode(&decoded, "a%4%zz%C3%", 10), HPS_OK);
    assert_int_equal(decoded.size, 8);
    assert_memory_equal(decoded.data, "a%4%zz\xc3%", 8);
    hps_buf_fini(&encoded);
    hps_buf_fini(&decoded);
}

static void test_message_when_blanks_begin_or_end_it_then_escaped(void **state)
{
    static const char *const cases[][2] = {
        {" ", "%20"}, {" a b ", "%20a b%20"}, {"a  ", "a %20"}, {"  a", "%20 a"}, {"a b", "a b"}};
    struct hps_buf encoded;

    (void)state;
    hps_buf_init(&encoded, 4096);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        hps_buf_clear(&encoded);
        assert_int_equal(hps_grpc_message_encode(&encoded, cases[i][0]), HPS_OK);
        assert_int_equal(encoded.size, strlen(cases[i][1]));
        assert_memory_equal(encoded.data, cases[i][1], encoded.size);
    }
    hps_buf_fini(&encoded);
}

static void test_codes_when_mapped_then_as_the_protocol_says(void **state)
{
    (void)state;
    assert_int_equal(hps_grpc_code_of_reset(7), 14);
    assert_int_equal(hps_grpc_code_of_reset(8), 1);
    assert_int_equal(hps_grpc_code_of_reset(11), 8);
    assert_int_equal(hps_grpc_code_of_reset(2), 13);
    assert_int_equal(hps_grpc_code_of_http(503), 14);
    assert_int_equal(hps_grpc_code_of_http(404), 12);
    assert_int_equal(hps_grpc_code_of_http(200), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decoder_when_split_anywhere_then_same_messages),
        cmocka_unit_test(test_decoder_when_message_lies_whole_then_lent_in_place),
        cmocka_unit_test(test_decoder_when_it_passes_bytes_on_then_in_order_and_none_held),
        cmocka_unit_test(test_decoder_when_bytes_are_put_in_its_room_then_not_copied),
        cmocka_unit_test(
            test_decoder_when_the_message_behind_a_large_one_begins_then_its_memory_is_free),
        cmocka_unit_test(test_decoder_when_prefix_is_bad_then_refused_and_nothing_held),
        cmocka_unit_test(test_decoder_when_cut_short_then_not_idle),
        cmocka_unit_test(test_timeout_when_parsed_then_microseconds),
        cmocka_unit_test(test_timeout_when_formatted_then_never_shorter_and_legal),
        cmocka_unit_test(test_message_when_it_has_any_byte_then_survives),
        cmocka_unit_test(test_message_when_blanks_begin_or_end_it_then_escaped),
        cmocka_unit_test(test_codes_when_mapped_then_as_the_protocol_says),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Redis's protocol: what commands look like, and where replies go, however they arrive.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "backends/redis/client/codec.h"

#define TEXT_MAX ((size_t)1 << 20)

static struct hps_redis_values values;

static int setup(void **state)
{
    *state = hps_redis_reader_new(TEXT_MAX);
    assert_non_null(*state);
    hps_redis_values_init(&values, 1000, TEXT_MAX);
    return 0;
}

static int teardown(void **state)
{
    hps_redis_reader_free(*state);
    hps_redis_values_fini(&values);
    return 0;
}

static hps_status feed(struct hps_redis_reader *reader, const char *text)
{
    return hps_redis_reader_feed(reader, text, strlen(text));
}

/* The one reply that `text` is. */
static void read_one(struct hps_redis_reader *reader, struct hps_redis_reply *reply,
                     const char *text)
{
    assert_int_equal(feed(reader, text), HPS_OK);
    assert_int_equal(hps_redis_reader_next(reader, reply, NULL), HPS_OK);
    assert_int_equal(hps_redis_reader_pending(reader), 0);
}

static void test_command_when_put_then_it_is_resp(void **state)
{
    (void)state;
    const uint64_t keys[2] = {0x0a0d24, 7};
    static const char want[] = "*6\r\n$5\r\nHMGET\r\n$1\r\nh\r\n$8\r\n\x24\x0d\x0a\0\0\0\0\0\r\n"
                               "$8\r\n\x07\0\0\0\0\0\0\0\r\n$2\r\n42\r\n$0\r\n\r\n";
    struct hps_buf buf;
    hps_buf_init(&buf, 1000);
    assert_int_equal(hps_redis_put_begin(&buf, 6), HPS_OK);
    assert_int_equal(hps_redis_put_text(&buf, "HMGET"), HPS_OK);
    assert_int_equal(hps_redis_put_arg(&buf, "h", 1), HPS_OK);
    assert_int_equal(hps_redis_put_args(&buf, keys, 8, 2), HPS_OK);
    assert_int_equal(hps_redis_put_u64(&buf, 42), HPS_OK);
    assert_int_equal(hps_redis_put_arg(&buf, NULL, 0), HPS_OK);
    assert_int_equal(buf.size, sizeof(want) - 1);
    assert_memory_equal(buf.data, want, sizeof(want) - 1);
    hps_buf_fini(&buf);
}

static void test_command_when_over_the_limit_then_exhausted(void **state)
{
    (void)state;
    const uint64_t keys[10] = {0};
    struct hps_buf buf;
    hps_buf_init(&buf, 100);
    assert_int_equal(hps_redis_put_args(&buf, keys, 8, 10), HPS_EXHAUSTED);
    hps_buf_fini(&buf);
}

static const char rows_text[] = "*5\r\n:77\r\n$4\r\nabcd\r\n$-1\r\n$3\r\nxyz\r\n$4\r\nefgh\r\n";

static void test_rows_when_read_then_each_is_in_its_slot_and_misses_are_told_apart(void **state)
{
    const uint32_t slots[4] = {2, 0, 1, 5};
    char rows[6 * 4];
    uint8_t found[4];
    struct hps_redis_rows want = {.n_lead = 1,
                                  .n = 4,
                                  .row_bytes = 4,
                                  .slots = slots,
                                  .rows = (uint8_t *)rows,
                                  .found = found};
    struct hps_redis_reply reply = {.values = &values, .rows = &want};
    int64_t lead = 0;

    memset(rows, '.', sizeof(rows));
    memset(found, 9, sizeof(found));
    read_one(*state, &reply, rows_text);
    assert_int_equal(reply.status, HPS_OK);
    assert_memory_equal(rows, "........abcd........efgh", sizeof(rows));
    const uint8_t want_found[4] = {HPS_REDIS_ROW_FOUND, HPS_REDIS_ROW_ABSENT, HPS_REDIS_ROW_MISFIT,
                                   HPS_REDIS_ROW_FOUND};
    assert_memory_equal(found, want_found, 4);
    assert_int_equal(want.n_found, 2);
    assert_int_equal(want.n_misfit, 1);
    assert_int_equal(values.n, 1);
    assert_true(hps_redis_values_i64(&values, 0, &lead));
    assert_int_equal(lead, 77);
}

static void test_rows_when_they_come_byte_by_byte_then_they_are_the_same(void **state)
{
    char rows[4 * 4];
    uint8_t found[4];
    struct hps_redis_rows want = {
        .n_lead = 1, .n = 4, .row_bytes = 4, .rows = (uint8_t *)rows, .found = found};
    struct hps_redis_reply reply = {.values = &values, .rows = &want};

    memset(rows, '.', sizeof(rows));
    for (size_t i = 0; i + 1 < sizeof(rows_text); i++) {
        assert_int_equal(hps_redis_reader_next(*state, &reply, NULL), HPS_AGAIN);
        assert_int_equal(hps_redis_reader_feed(*state, rows_text + i, 1), HPS_OK);
    }
    assert_int_equal(hps_redis_reader_next(*state, &reply, NULL), HPS_OK);
    assert_memory_equal(rows, "abcd........efgh", sizeof(rows));
    assert_int_equal(want.n_found, 2);
}

/* Keys 0 to 3 of widths 4, 4, 2 and 4, in three tables; one more is asked for nothing. */
static void test_rows_when_of_several_widths_then_each_goes_to_its_own(void **state)
{
    static const char text[] = "*5\r\n$1\r\nx\r\n$-1\r\n$4\r\nabcd\r\n$2\r\nef\r\n$2\r\ngh\r\n";
    char rows[3][9] = {"........", "........", "........"};
    uint8_t found[4] = {9, 9, 9, 9};
    struct hps_redis_rows last = {
        .n = 1, .row_bytes = 4, .rows = (uint8_t *)rows[2], .found = found + 3};
    struct hps_redis_rows third = {
        .n = 1, .row_bytes = 2, .rows = (uint8_t *)rows[1], .found = found + 2, .more = &last};
    struct hps_redis_rows second = {.row_bytes = 3, .more = &third, .found = found + 2};
    struct hps_redis_rows first = {.n_lead = 1,
                                   .n = 2,
                                   .row_bytes = 4,
                                   .rows = (uint8_t *)rows[0],
                                   .found = found,
                                   .more = &second};
    struct hps_redis_reply reply = {.values = &values, .rows = &first};
    for (unsigned again = 0; again < 2; again++) {
        read_one(*state, &reply, text);
        assert_string_equal(rows[0], "....abcd");
        assert_string_equal(rows[1], "ef......");
        assert_string_equal(rows[2], "........");
        const uint8_t want_found[4] = {HPS_REDIS_ROW_ABSENT, HPS_REDIS_ROW_FOUND,
                                       HPS_REDIS_ROW_FOUND, HPS_REDIS_ROW_MISFIT};
        assert_memory_equal(found, want_found, 4);
        assert_int_equal(first.n_found, 1);
        assert_int_equal(third.n_found, 1);
        assert_int_equal(last.n_misfit, 1);
        assert_string_equal(hps_redis_values_text(&values, 0), "x");
    }
}

static void test_rows_when_the_server_errs_then_none_is_found(void **state)
{
    uint8_t row[4];
    uint8_t found[1] = {9};
    struct hps_redis_rows want = {.n = 1, .row_bytes = 4, .rows = row, .found = found};
    struct hps_redis_reply reply = {.rows = &want};
    read_one(*state, &reply, "-WRONGTYPE no hash\r\n");
    assert_int_equal(reply.status, HPS_INVALID);
    assert_string_equal(reply.error, "WRONGTYPE no hash");
    assert_int_equal(want.n_found, 0);
    assert_int_equal(found[0], HPS_REDIS_ROW_ABSENT);
}

static void test_rows_when_the_reply_has_another_form_then_io(void **state)
{
    static const char *const texts[] = {
        "*1\r\n$4\r\nabcd\r\n",               /* too few */
        "*3\r\n$4\r\nabcd\r\n$-1\r\n$-1\r\n", /* too many */
        "*2\r\n:5\r\n$-1\r\n",                /* a number for a row */
        "*2\r\n*1\r\n$4\r\nabcd\r\n$-1\r\n",  /* an array for a row */
        "*2\r\n-ERR within\r\n$-1\r\n",       /* an error for a row */
        "+OK\r\n",
        ":1\r\n",
        "$-1\r\n",
        "*-1\r\n", /* no array */
        "$4\r\nabcd\r\n",
        "what?\r\n",
    };
    uint8_t rows[8];
    uint8_t found[2];
    struct hps_redis_rows want = {.n = 2, .row_bytes = 4, .rows = rows, .found = found};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct hps_redis_reader *reader = hps_redis_reader_new(TEXT_MAX);
        struct hps_redis_reply reply = {.rows = &want};
        struct hps_error err = {0};
        assert_int_equal(feed(reader, texts[i]), HPS_OK);
        assert_int_equal(hps_redis_reader_next(reader, &reply, &err), HPS_IO);
        assert_true(err.text[0] != '\0');
        hps_redis_reader_free(reader);
    }
    (void)state;
}

static void test_values_when_nested_then_flat_in_order(void **state)
{
    struct hps_redis_reply reply = {.values = &values};
    uint64_t number = 0;
    read_one(*state, &reply,
             "*4\r\n+OK\r\n*2\r\n:-5\r\n*1\r\n$-1\r\n$20\r\n18446744073709551615\r\n-ERR x\r\n");
    static const enum hps_redis_type types[] = {HPS_REDIS_ARRAY, HPS_REDIS_TEXT,  HPS_REDIS_ARRAY,
                                                HPS_REDIS_INT,   HPS_REDIS_ARRAY, HPS_REDIS_NIL,
                                                HPS_REDIS_TEXT,  HPS_REDIS_ERROR};
    assert_int_equal(values.n, 8);
    for (uint32_t i = 0; i < values.n; i++) {
        assert_int_equal(values.items[i].type, types[i]);
    }
    assert_string_equal(hps_redis_values_text(&values, 1), "OK");
    assert_int_equal(values.items[3].number, -5);
    assert_false(hps_redis_values_u64(&values, 3, &number));
    assert_true(hps_redis_values_u64(&values, 6, &number));
    assert_true(number == UINT64_MAX);
    int64_t small = 0;
    assert_false(hps_redis_values_i64(&values, 6, &small)); /* too large for it */
    assert_int_equal(hps_redis_values_next(&values, 0), 8);
    assert_int_equal(hps_redis_values_next(&values, 2), 6);
    assert_int_equal(hps_redis_values_next(&values, 4), 6);
    assert_string_equal(hps_redis_values_text(&values, 7), "ERR x");
}

static void test_values_when_over_a_limit_then_exhausted(void **state)
{
    struct hps_redis_values few;
    struct hps_redis_reply reply = {.values = &few};
    hps_redis_values_init(&few, 2, 100);
    assert_int_equal(feed(*state, "*3\r\n:1\r\n:2\r\n:3\r\n"), HPS_OK);
    assert_int_equal(hps_redis_reader_next(*state, &reply, NULL), HPS_EXHAUSTED);
    hps_redis_values_fini(&few);
}

static void test_reader_when_a_value_is_too_large_then_exhausted_and_not_kept(void **state)
{
    static const char block[4096];
    struct hps_redis_reply reply = {0};
    hps_status status = feed(*state, "$100000000\r\n");
    for (unsigned i = 0; i < 1000 && status == HPS_OK; i++) {
        assert_int_equal(hps_redis_reader_next(*state, &reply, NULL), HPS_AGAIN);
        status = hps_redis_reader_feed(*state, block, sizeof(block));
    }
    assert_int_equal(status, HPS_EXHAUSTED);
    assert_true(hps_redis_reader_pending(*state) <= TEXT_MAX);
}

static void test_replies_when_pipelined_then_in_order(void **state)
{
    struct hps_redis_reply reply = {.values = &values};
    assert_int_equal(feed(*state, ":1\r\n-OOM command not allowed\r\n$1\r\nx\r\n"), HPS_OK);
    assert_int_equal(hps_redis_reader_next(*state, &reply, NULL), HPS_OK);
    assert_int_equal(values.items[0].number, 1);
    assert_int_equal(hps_redis_reader_next(*state, &reply, NULL), HPS_OK);
    assert_int_equal(reply.status, HPS_EXHAUSTED);
    assert_int_equal(values.n, 0);
    assert_int_equal(hps_redis_reader_next(*state, &reply, NULL), HPS_OK);
    assert_int_equal(reply.status, HPS_OK);
    assert_string_equal(reply.error, "");
    assert_string_equal(hps_redis_values_text(&values, 0), "x");
    assert_int_equal(hps_redis_reader_next(*state, &reply, NULL), HPS_AGAIN);
}

static void test_errors_when_read_then_they_stand_for_statuses(void **state)
{
    static const struct {
        const char *text;
        hps_status status;
    } cases[] = {
        {"-NOSCRIPT No matching script.\r\n", HPS_NOT_FOUND},
        {"-OOM command not allowed\r\n", HPS_EXHAUSTED},
        {"-NOPERM this user\r\n", HPS_PERMISSION},
        {"-WRONGPASS invalid\r\n", HPS_PERMISSION},
        {"-NOAUTH Authentication required.\r\n", HPS_PERMISSION},
        {"-LOADING Redis is loading\r\n", HPS_UNAVAILABLE},
        {"-CLUSTERDOWN Hash slot not served\r\n", HPS_UNAVAILABLE},
        {"-READONLY You can't write\r\n", HPS_UNAVAILABLE},
        {"-ERR Script attempted to execute a write command while the cluster is down and "
         "readonly script: abc, on @user_script:1.\r\n",
         HPS_UNAVAILABLE},
        {"-GAP 17\r\n", HPS_ABORTED},
        {"-ERR unknown command 'AUTH', with args beginning with: 'hunter' \r\n", HPS_ABORTED},
        {"-OOMPH\r\n", HPS_ABORTED},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct hps_redis_reply reply = {0};
        read_one(*state, &reply, cases[i].text);
        assert_int_equal(reply.status, cases[i].status);
        assert_memory_equal(reply.error, cases[i].text + 1, strlen(reply.error));
        assert_null(strstr(reply.error, "hunter")); /* a password */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_command_when_put_then_it_is_resp),
        cmocka_unit_test(test_command_when_over_the_limit_then_exhausted),
        cmocka_unit_test_setup_teardown(
            test_rows_when_read_then_each_is_in_its_slot_and_misses_are_told_apart, setup,
            teardown),
        cmocka_unit_test_setup_teardown(
            test_rows_when_they_come_byte_by_byte_then_they_are_the_same, setup, teardown),
        cmocka_unit_test_setup_teardown(test_rows_when_of_several_widths_then_each_goes_to_its_own,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_rows_when_the_server_errs_then_none_is_found, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_rows_when_the_reply_has_another_form_then_io, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_values_when_nested_then_flat_in_order, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_values_when_over_a_limit_then_exhausted, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(
            test_reader_when_a_value_is_too_large_then_exhausted_and_not_kept, setup, teardown),
        cmocka_unit_test_setup_teardown(test_replies_when_pipelined_then_in_order, setup, teardown),
        cmocka_unit_test_setup_teardown(test_errors_when_read_then_they_stand_for_statuses, setup,
                                        teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

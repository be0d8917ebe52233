/* SPDX-License-Identifier: Apache-2.0
 *
 * Log lines as they leave the process, read back from a pipe.
 */
#include "base/log.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"

enum { READ_MAX = 1 << 16 };

static int pipe_fds[2];
static char text[READ_MAX];

static int setup(void **state)
{
    (void)state;
    if (pipe2(pipe_fds, O_CLOEXEC | O_NONBLOCK) != 0) {
        return -1;
    }
    hps_clock_fake(1700000000123456u);
    hps_log_setup(HPS_LOG_DEBUG, HPS_LOG_LOGFMT, pipe_fds[1]);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    hps_clock_real();
    hps_log_setup(HPS_LOG_INFO, HPS_LOG_LOGFMT, STDERR_FILENO);
    close(pipe_fds[0]);
    close(pipe_fds[1]);
    return 0;
}

/* Everything written since the last call. */
static const char *logged(void)
{
    size_t size = 0;
    ssize_t rc;
    while ((rc = read(pipe_fds[0], text + size, sizeof(text) - 1 - size)) > 0) {
        size += (size_t)rc;
    }
    text[size] = '\0';
    return text;
}

static unsigned count_lines(const char *lines)
{
    unsigned n = 0;
    for (; *lines != '\0'; lines++) {
        n += *lines == '\n';
    }
    return n;
}

static void test_write_when_logfmt_then_fields_in_order(void **state)
{
    (void)state;
    HPS_LOG(WARN, "catalog", "version dropped", HPS_STR("model", "dlrm"), HPS_I64("delta", -3),
            HPS_U64("keys", UINT64_MAX), HPS_F64("ratio", 0.1));
    assert_string_equal(logged(), "ts=2023-11-14T22:13:20.123Z level=warn msg=\"version dropped\" "
                                  "component=catalog model=dlrm delta=-3 keys=18446744073709551615 "
                                  "ratio=0.1\n");
    HPS_LOG(INFO, "main", "ready");
    assert_string_equal(logged(),
                        "ts=2023-11-14T22:13:20.123Z level=info msg=ready component=main\n");
}

static void test_write_when_json_then_fields_in_order(void **state)
{
    (void)state;
    hps_log_setup(HPS_LOG_DEBUG, HPS_LOG_JSON, pipe_fds[1]);
    HPS_LOG(ERROR, "redis", "lost", HPS_STR("peer", "[::1]:6379"), HPS_I64("code", 14),
            HPS_STR("none", NULL), HPS_F64("x", 1.0 / 0.0), HPS_F64("y", -2.5));
    assert_string_equal(logged(),
                        "{\"ts\":\"2023-11-14T22:13:20.123Z\",\"level\":\"error\",\"msg\":\"lost\","
                        "\"component\":\"redis\",\"peer\":\"[::1]:6379\",\"code\":14,"
                        "\"none\":null,\"x\":\"+Inf\",\"y\":-2.5}\n");
}

static void test_write_when_logfmt_value_needs_it_then_quoted(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"plain/path:1", "plain/path:1"},
        {"", "\"\""},
        {"a b", "\"a b\""},
        {"a=b", "\"a=b\""},
        {"say \"hi\"", "\"say \\\"hi\\\"\""},
        {"c:\\x", "\"c:\\\\x\""},
        {"two\nlines\r\tx", "\"two\\nlines\\r\\tx\""},
        {"\x1b[31m", "\"\\u001b[31m\""},
        {"\x7f", "\"\\u007f\""},
        {"\xc2\x9b"
         "31m",
         "\"\\u009b31m\""},
        {"a\xe2\x80\xae"
         "b",
         "\"a\\u202eb\""},
        {"\xc3\xa9t\xc3\xa9", "\xc3\xa9t\xc3\xa9"},
        {"\xff"
         "a",
         "\"\xef\xbf\xbd"
         "a\""},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct hps_log_site site = {0};
        struct hps_log_field fields[] = {HPS_STR("v", cases[i][0]), HPS_LOG_END};
        hps_log_write(&site, HPS_LOG_INFO, "t", "m", fields);
        char want[128];
        snprintf(want, sizeof(want), " component=t v=%s\n", cases[i][1]);
        assert_string_equal(strstr(logged(), " component="), want);
    }
}

static void test_write_when_json_text_is_not_utf8_then_replaced(void **state)
{
    (void)state;
    static const char bad[] =
        "\x80|\xc0\xaf|\xed\xa0\x80|\xf5\x80\x80\x80|\xe2\x82|\xf0\x9f\x98\x80";
#define R "\xef\xbf\xbd"
    hps_log_setup(HPS_LOG_DEBUG, HPS_LOG_JSON, pipe_fds[1]);
    HPS_LOG(INFO, "t", "m", HPS_STR("v", bad));
    assert_string_equal(strstr(logged(), "\"v\":"), "\"v\":\"" R "|" R R "|" R R R "|" R R R R
                                                    "|" R R "|\xf0\x9f\x98\x80\"}\n");
#undef R
}

static void test_write_when_value_long_then_cut_between_characters(void **state)
{
    (void)state;
    static char value[3001];
    for (unsigned i = 0; i < 1500; i++) {
        memcpy(value + (size_t)2 * i + 1, "\xc3\xa9", 2);
    }
    value[0] = 'x';
    value[3000] = '\0';
    HPS_LOG(INFO, "t", "m", HPS_STR("v", value), HPS_I64("after", 1));
    const char *line = strstr(logged(), "v=");
    const char *after = strstr(line, " after=1\n");
    assert_non_null(after);
    assert_int_equal(after - line, 2 + 1023); /* 1 and 511 times 2 */
}

static void test_write_when_line_full_then_whole_fields_left_out(void **state)
{
    (void)state;
    static char value[1001];
    memset(value, 0x01, 1000); /* six bytes each once escaped */
    hps_log_setup(HPS_LOG_DEBUG, HPS_LOG_JSON, pipe_fds[1]);
    HPS_LOG(INFO, "t", "m", HPS_STR("a", value), HPS_STR("b", value), HPS_I64("c", 5));
    const char *line = logged();
    assert_non_null(strstr(line, "\"a\":\"\\u0001"));
    assert_null(strstr(line, "\"b\":"));
    assert_string_equal(strstr(line, ",\"c\":"), ",\"c\":5,\"truncated\":1}\n");
}

static void test_write_when_site_floods_then_ten_a_second(void **state)
{
    (void)state;
    for (unsigned round = 0; round < 3; round++) {
        for (unsigned i = 0; i < 25; i++) {
            HPS_LOG(INFO, "t", "flood");
            hps_clock_advance(1000);
        }
        const char *lines = logged();
        assert_int_equal(count_lines(lines), 10);
        if (round == 0) {
            assert_null(strstr(lines, "suppressed"));
        } else {
            assert_non_null(strstr(lines, "component=t suppressed=15\n"));
            assert_ptr_equal(strstr(strstr(lines, "suppressed") + 1, "suppressed"), NULL);
        }
        hps_clock_advance(1000000);
    }
    HPS_LOG(INFO, "t", "another site");
    assert_int_equal(count_lines(logged()), 1);
}

static void test_write_when_a_client_floods_then_lines_of_others_are_written(void **state)
{
    (void)state;
    enum { OTHERS = 16, OTHERS_SEEN = 8 /* a few may share a limit with the first one */ };
    for (unsigned i = 0; i < 25 + OTHERS; i++) {
        HPS_LOG_BY(i < 25 ? 7 : 1000 + i, INFO, "t", "flood");
    }
    assert_in_range(count_lines(logged()), 10 + OTHERS_SEEN, 10 + OTHERS);
}

static void test_log_when_below_level_then_nothing_evaluated(void **state)
{
    (void)state;
    int n = 0;
    hps_log_level_set(HPS_LOG_ERROR);
    assert_int_equal(hps_log_level_get(), HPS_LOG_ERROR);
    HPS_LOG(WARN, "t", "m", HPS_I64("n", ++n));
    assert_int_equal(n, 0);
    assert_string_equal(logged(), "");
    HPS_LOG(ERROR, "t", "m", HPS_I64("n", ++n));
    assert_int_equal(n, 1);
    assert_int_equal(count_lines(logged()), 1);
}

static void test_level_parse_when_unknown_then_false(void **state)
{
    (void)state;
    enum hps_log_level level = HPS_LOG_WARN;
    assert_false(hps_log_level_parse("", &level));
    assert_false(hps_log_level_parse("INFO", &level));
    assert_false(hps_log_level_parse("warning", &level));
    assert_int_equal(level, HPS_LOG_WARN);
    assert_true(hps_log_level_parse("debug", &level));
    assert_int_equal(level, HPS_LOG_DEBUG);
    assert_true(hps_log_level_parse("error", &level));
    assert_int_equal(level, HPS_LOG_ERROR);
}

static struct hps_log_site shared_site;

static void *log_many(void *arg)
{
    struct hps_log_field fields[] = {HPS_STR("who", arg), HPS_LOG_END};
    for (unsigned i = 0; i < 500; i++) {
        hps_log_write(&shared_site, HPS_LOG_INFO, "t", "from a thread", fields);
        if (i % 100 == 0) {
            hps_log_level_set(HPS_LOG_INFO);
        }
    }
    return NULL;
}

static void test_write_when_threads_share_a_site_then_lines_whole_and_counted(void **state)
{
    (void)state;
    pthread_t threads[3];
    static char names[3][2] = {"a", "b", "c"};
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, log_many, names[i]), 0);
    }
    for (unsigned i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
    }
    const char *line = logged();
    assert_int_equal(count_lines(line), 10); /* the clock stands still: one window */
    for (unsigned i = 0; i < 10; i++) {
        assert_int_equal(strncmp(line, "ts=2023-11-14T22:13:20.123Z level=info ", 39), 0);
        line = strchr(line, '\n') + 1;
    }
    hps_clock_advance(1000000);
    struct hps_log_field fields[] = {HPS_LOG_END};
    hps_log_write(&shared_site, HPS_LOG_INFO, "t", "m", fields);
    assert_non_null(strstr(logged(), " suppressed=1490\n"));
}

int main(void)
{
#define LOG_TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        LOG_TEST(test_write_when_logfmt_then_fields_in_order),
        LOG_TEST(test_write_when_json_then_fields_in_order),
        LOG_TEST(test_write_when_logfmt_value_needs_it_then_quoted),
        LOG_TEST(test_write_when_json_text_is_not_utf8_then_replaced),
        LOG_TEST(test_write_when_value_long_then_cut_between_characters),
        LOG_TEST(test_write_when_line_full_then_whole_fields_left_out),
        LOG_TEST(test_write_when_site_floods_then_ten_a_second),
        LOG_TEST(test_write_when_a_client_floods_then_lines_of_others_are_written),
        LOG_TEST(test_log_when_below_level_then_nothing_evaluated),
        LOG_TEST(test_level_parse_when_unknown_then_false),
        LOG_TEST(test_write_when_threads_share_a_site_then_lines_whole_and_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

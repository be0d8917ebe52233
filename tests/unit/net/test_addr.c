/* SPDX-License-Identifier: Apache-2.0
 *
 * Addresses: valid and invalid texts, and that a printed address is parsed to the same address.
 */
#include "net/addr.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void test_parse_when_valid_then_printed_text_is_equal(void **state)
{
    (void)state;
    static const struct {
        const char *text, *host, *path;
        unsigned port;
        bool is_unix, name, loopback;
    } cases[] = {
        {"127.0.0.1:8601", "127.0.0.1", "", 8601, false, false, true},
        {"127.3.2.1:0", "127.3.2.1", "", 0, false, false, true},
        {"0.0.0.0:65535", "0.0.0.0", "", 65535, false, false, false},
        {"[::1]:80", "::1", "", 80, false, false, true},
        {"[::]:80", "::", "", 80, false, false, false},
        {"[::ffff:127.0.0.1]:80", "::ffff:127.0.0.1", "", 80, false, false, false},
        {"localhost:1", "localhost", "", 1, false, true, true},
        {"127.0.0.1.example:1", "127.0.0.1.example", "", 1, false, true, false},
        {"ps-0.train_net.example:8601", "ps-0.train_net.example", "", 8601, false, true, false},
        {"unix:/run/hpsd/admin.sock", "", "/run/hpsd/admin.sock", 0, true, false, false},
        {"unix:rel/a:b", "", "rel/a:b", 0, true, false, false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct hps_addr addr;
        char text[HPS_ADDR_TEXT_MAX];
        struct hps_error err;
        assert_int_equal(hps_addr_parse(cases[i].text, &addr, &err), HPS_OK);
        assert_string_equal(addr.host, cases[i].host);
        assert_string_equal(addr.path, cases[i].path);
        assert_int_equal(addr.port, cases[i].port);
        assert_int_equal(addr.is_unix, cases[i].is_unix);
        assert_int_equal(hps_addr_is_name(&addr), cases[i].name);
        assert_int_equal(hps_addr_is_loopback(&addr), cases[i].loopback);
        assert_string_equal(hps_addr_print(&addr, text, sizeof(text)), cases[i].text);
    }
}

static void test_parse_when_malformed_then_invalid_with_the_text_in_the_error(void **state)
{
    (void)state;
    static const char *const cases[] = {
        "",        ":",        ":80",    "localhost",   "localhost:", "localhost:65536",
        "a:99999", "a:123456", "a:8o",   "a:-1",        "a:+1",       "a: 1",
        "a:1 ",    "::1:80",   "[::1]",  "[::1]80",     "[::1:80",    "[localhost]:80",
        "[]:80",   "ho st:80", "a/b:80", "http://a:80", "unix:",      "[::1%lo]:80",
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct hps_addr addr = {.port = 7};
        struct hps_error err = {0};
        assert_int_equal(hps_addr_parse(cases[i], &addr, &err), HPS_INVALID);
        assert_int_equal(addr.port, 7);
        assert_non_null(strstr(err.text, cases[i]));
        assert_int_equal(hps_addr_parse(cases[i], &addr, NULL), HPS_INVALID);
    }
}

static void test_parse_when_too_long_then_invalid(void **state)
{
    (void)state;
    char text[1200];
    struct hps_addr addr;
    struct hps_error err;
    memset(text, 'a', sizeof(text));
    memcpy(text + 256, ":80", 4);
    assert_int_equal(hps_addr_parse(text, &addr, &err), HPS_INVALID);
    memcpy(text + 255, ":80", 4);
    assert_int_equal(hps_addr_parse(text, &addr, &err), HPS_OK);
    memcpy(text, "unix:", 5);
    text[5 + sizeof(addr.path)] = '\0';
    memset(text + 5, 'a', sizeof(addr.path));
    assert_int_equal(hps_addr_parse(text, &addr, &err), HPS_INVALID);
    text[5 + sizeof(addr.path) - 1] = '\0';
    assert_int_equal(hps_addr_parse(text, &addr, &err), HPS_OK);
    text[5 + sizeof(addr.path) - 1] = 'a';
    memset(text + 5, 'a', sizeof(text) - 5);
    text[sizeof(text) - 1] = '\0';
    assert_int_equal(hps_addr_parse(text, &addr, &err), HPS_INVALID);
}

static void test_resolve_when_numeric_then_printed_text_is_equal(void **state)
{
    (void)state;
    static const char *const cases[] = {"127.0.0.1:8601", "[::1]:80", "unix:/tmp/x"};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct hps_addr addr;
        struct hps_places places;
        char text[HPS_ADDR_TEXT_MAX];
        assert_int_equal(hps_addr_parse(cases[i], &addr, NULL), HPS_OK);
        assert_int_equal(hps_addr_resolve(&addr, true, &places, NULL), HPS_OK);
        assert_int_equal(places.n, 1);
        hps_addr_print_sockaddr((struct sockaddr *)&places.items[0].storage, places.items[0].size,
                                text, sizeof(text));
        assert_string_equal(text, cases[i]);
    }
}

static void test_resolve_when_name_unknown_then_unavailable(void **state)
{
    (void)state;
    struct hps_addr addr;
    struct hps_places places;
    struct hps_error err = {0};
    assert_int_equal(hps_addr_parse("no-such-host.invalid:80", &addr, &err), HPS_OK);
    assert_int_equal(hps_addr_resolve(&addr, false, &places, &err), HPS_UNAVAILABLE);
    assert_non_null(strstr(err.text, "no-such-host.invalid"));
}

static void test_print_sockaddr_when_ipv4_mapped_or_unknown_family_then_printed(void **state)
{
    (void)state;
    char text[HPS_ADDR_TEXT_MAX];
    struct sockaddr_in6 sin6 = {.sin6_family = AF_INET6, .sin6_port = htons(5)};
    assert_int_equal(inet_pton(AF_INET6, "::ffff:10.1.2.3", &sin6.sin6_addr), 1);
    hps_addr_print_sockaddr((struct sockaddr *)&sin6, sizeof(sin6), text, sizeof(text));
    assert_string_equal(text, "10.1.2.3:5");
    struct sockaddr_un sun = {.sun_family = AF_UNIX};
    hps_addr_print_sockaddr((struct sockaddr *)&sun, sizeof(sun.sun_family), text, sizeof(text));
    assert_string_equal(text, "unix:");
    struct sockaddr other = {.sa_family = AF_PACKET};
    hps_addr_print_sockaddr(&other, sizeof(other), text, sizeof(text));
    assert_string_equal(text, "?");
    char small[4];
    struct hps_addr addr = {.host = "localhost", .port = 1};
    assert_string_equal(hps_addr_print(&addr, small, sizeof(small)), "loc");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse_when_valid_then_printed_text_is_equal),
        cmocka_unit_test(test_parse_when_malformed_then_invalid_with_the_text_in_the_error),
        cmocka_unit_test(test_parse_when_too_long_then_invalid),
        cmocka_unit_test(test_resolve_when_numeric_then_printed_text_is_equal),
        cmocka_unit_test(test_resolve_when_name_unknown_then_unavailable),
        cmocka_unit_test(test_print_sockaddr_when_ipv4_mapped_or_unknown_family_then_printed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

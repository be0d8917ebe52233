/* SPDX-License-Identifier: Apache-2.0
 *
 * HTTP/1.1 under the server of calls: what clients send, well made, careless and hostile, and what
 * they are answered. Test thread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/heap.h"
#include "tests/lib/gzip_program.h"
#include "tests/lib/http_peer.h"

struct fixture {
    struct rig rig;
    struct peer peer;
};

static int setup(void **state)
{
    static struct fixture f;

    rig_open(&f.rig, &rig_limits);
    peer_open(&f.peer, &f.rig);
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    peer_close(&f->peer);
    rig_close(&f->rig);
    return 0;
}

/* Another connection to the same server. */
static void reconnect(struct fixture *f)
{
    peer_close(&f->peer);
    peer_open(&f->peer, &f->rig);
}

/* ---- requests -------------------------------------------------------------------------------- */

static void test_requests_when_one_after_the_other_then_each_answered(void **state)
{
    struct fixture *f = *state;

    peer_say(&f->peer, POST("/echo", "5", "hello"));
    expect_answer(&f->peer, 200, "hello");
    peer_say(&f->peer, POST("/echo", "0", ""));
    expect_answer(&f->peer, 200, "");
    peer_say(&f->peer, GET("/names/a%20b/%C3%A9"));
    expect_answer(&f->peer, 200, "a b|\xc3\xa9");
    assert_int_equal(f->rig.n_ended[0], 3);
    assert_int_equal(f->rig.n_connections, 1);
    assert_false(f->peer.closed);
}

static void test_requests_when_pipelined_then_answered_in_order(void **state)
{
    struct fixture *f = *state;

    peer_say(&f->peer, POST("/echo", "3", "one") GET("/names/x/y") POST("/echo", "5", "three"));
    expect_answer(&f->peer, 200, "one");
    expect_answer(&f->peer, 200, "x|y");
    expect_answer(&f->peer, 200, "three");
}

static void test_requests_when_pipelined_behind_one_that_waits_then_they_wait_too(void **state)
{
    struct fixture *f = *state;

    peer_say(&f->peer, GET("/park"));
    PEER_UNTIL(&f->peer, f->rig.parked != NULL);
    for (unsigned i = 0; i < 2000; i++) { /* more than are kept */
        peer_say(&f->peer, GET("/names/x/y"));
    }
    assert_int_equal(f->rig.n_messages, 1);
    assert_int_equal(f->peer.in.size, 0);
    hps_grpc_call_send_copy(f->rig.parked, "at last", 7);
    hps_grpc_call_finish(f->rig.parked, 0, NULL);
    expect_answer(&f->peer, 200, "at last");
    for (unsigned i = 0; i < 2000; i++) {
        expect_answer(&f->peer, 200, "x|y");
    }
}

static void test_request_when_it_comes_in_single_bytes_then_answered(void **state)
{
    struct fixture *f = *state;

    peer_say_in_bytes(&f->peer, "\r\n" POST("/echo", "5", "hello"));
    expect_answer(&f->peer, 200, "hello");
    peer_say_in_bytes(&f->peer,
                      CHUNKED("/echo", "5;a=\"b\"\r\nhello\r\n1\r\n \r\n00A\r\n0123456789\r\n"
                                       "0\r\nX-Sum: 1\r\n\r\n"));
    expect_answer(&f->peer, 200, "hello 0123456789");
    peer_say(&f->peer, CHUNKED("/echo", "0\r\n\r\n"));
    expect_answer(&f->peer, 200, "");
}

static uint8_t *pattern(size_t size)
{
    uint8_t *bytes = hps_alloc(size);

    assert_non_null(bytes);
    for (size_t i = 0; i < size; i++) {
        bytes[i] = rig_byte(i);
    }
    return bytes;
}

static void expect_pattern(struct peer *peer, size_t size)
{
    struct answer answer;

    peer_answer(peer, true, &answer);
    assert_int_equal(answer.status, 200);
    assert_int_equal(answer.size, size);
    for (size_t i = 0; i < size; i++) {
        if ((uint8_t)answer.body[i] != rig_byte(i)) {
            fail_msg("byte %zu", i);
        }
    }
    hps_free(answer.body);
}

static void test_body_when_large_then_received_whole_however_it_comes(void **state)
{
    enum { SIZE = 4 * 1024 * 1024 };
    struct fixture *f = *state;
    uint8_t *bytes = pattern(SIZE);

    peer_say(&f->peer, POST("/echo", "4194304", ""));
    assert_true(peer_write(&f->peer, bytes, SIZE));
    expect_pattern(&f->peer, SIZE);
    peer_say(&f->peer, CHUNKED("/echo", ""));
    for (size_t at = 0; at < SIZE; at += 1 << 20) {
        peer_say(&f->peer, "100000\r\n");
        assert_true(peer_write(&f->peer, bytes + at, 1 << 20));
        peer_say(&f->peer, "\r\n");
    }
    peer_say(&f->peer, "0\r\n\r\n");
    expect_pattern(&f->peer, SIZE);
    hps_free(bytes);
    assert_int_equal(f->rig.bytes, 2 * (size_t)SIZE);
}

static void test_reply_when_large_then_sent_whole(void **state)
{
    struct fixture *f = *state;

    peer_say(&f->peer, GET("/big/20000001"));
    expect_pattern(&f->peer, 20000001);
    peer_say(&f->peer, GET("/big/0"));
    expect_answer(&f->peer, 200, "");
    assert_int_equal(hps_grpc_loop_bytes_in_flight(f->rig.grpc_loop), 0);
}

static void test_head_when_asked_then_no_body(void **state)
{
    struct fixture *f = *state;
    struct answer answer;

    peer_say(&f->peer, "HEAD /big/100 HTTP/1.1\r\nHost: a\r\n\r\n"
                       "HEAD /fail/5 HTTP/1.1\r\nHost: a\r\n\r\n"
                       "HEAD /nothing HTTP/1.1\r\nHost: a\r\n\r\n"
                       "HEAD /echo HTTP/1.1\r\nHost: a\r\n\r\n");
    peer_answer(&f->peer, false, &answer);
    assert_int_equal(answer.status, 200);
    assert_non_null(strstr(answer.head, "\r\nContent-Length: 100\r\n"));
    hps_free(answer.body);
    static const unsigned statuses[] = {404, 404, 405};
    for (unsigned i = 0; i < 3; i++) {
        peer_answer(&f->peer, false, &answer);
        assert_int_equal(answer.status, statuses[i]);
        hps_free(answer.body);
    }
    peer_say(&f->peer, GET("/names/x/y"));
    expect_answer(&f->peer, 200, "x|y"); /* nothing lay in between */
}

static void test_connection_when_its_end_is_asked_for_then_it_ends(void **state)
{
    static const char *const asks[] = {
        "GET /names/x/y HTTP/1.1\r\nHost: a\r\nConnection: x, Close\r\n\r\n",
        "GET /names/x/y HTTP/1.0\r\n\r\n",
    };
    struct fixture *f = *state;

    for (unsigned i = 0; i < 2; i++) {
        peer_say(&f->peer, asks[i]);
        expect_head(&f->peer, 200, "\r\nConnection: close\r\n");
        expect_end(&f->peer);
        reconnect(f);
    }
    peer_say(&f->peer, "GET /names/x/y HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    expect_head(&f->peer, 200, "\r\nConnection: keep-alive\r\n");
    peer_say(&f->peer, GET("/names/x/y"));
    expect_answer(&f->peer, 200, "x|y");
}

static void test_continue_when_expected_then_said_before_the_body_comes(void **state)
{
    struct fixture *f = *state;

    peer_say(&f->peer, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n"
                       "Expect: 100-continue\r\n\r\n");
    expect_answer(&f->peer, 100, "");
    peer_say(&f->peer, "hi");
    expect_answer(&f->peer, 200, "hi");
    peer_say(&f->peer, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n"
                       "Expect: 100-continue\r\n\r\nhi"); /* it does not wait */
    expect_answer(&f->peer, 200, "hi");
    peer_say(&f->peer, "POST /echo HTTP/1.0\r\nContent-Length: 2\r\n" /* which knows no 100 */
                       "Expect: 100-continue\r\n\r\n");
    peer_say(&f->peer, "hi");
    expect_answer(&f->peer, 200, "hi");
}

/* ---- routes ---------------------------------------------------------------------------------- */

static void test_route_when_several_fit_then_the_literal_one(void **state)
{
    struct fixture *f = *state;

    peer_say(&f->peer, GET("/names/stats"));
    expect_answer(&f->peer, 200, "stats");
    peer_say(&f->peer, GET("/names/200?x=/y"));
    expect_answer(&f->peer, 200, "");
    peer_say(&f->peer, GET("/names/st%61ts"));
    expect_answer(&f->peer, 200, "stats");
}

static void test_route_when_there_is_none_then_404(void **state)
{
    static const char *const paths[] = {"/",
                                        "/nothing",
                                        "/names",
                                        "/names/",
                                        "/names/a/",
                                        "/names//a",
                                        "/names/a/b/c",
                                        "/names/a/b/",
                                        "/a/b/c/d/e/f/g/h/i/j",
                                        "/t.T/Echo",
                                        "/ECHO"};
    struct fixture *f = *state;

    for (unsigned i = 0; i < sizeof paths / sizeof *paths; i++) {
        char text[128];
        snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: a\r\n\r\n", paths[i]);
        peer_say(&f->peer, text);
        snprintf(text, sizeof text, "{\"error\":\"unknown path %s\"}", paths[i]);
        expect_answer(&f->peer, 404, text);
    }
    assert_int_equal(f->rig.n_messages, 0);
    assert_int_equal(f->rig.n_ended[5], sizeof paths / sizeof *paths);
}

static void test_route_when_its_verb_is_another_then_405_with_allow(void **state)
{
    struct fixture *f = *state;

    peer_say(&f->peer, GET("/echo"));
    expect_head(&f->peer, 405, "\r\nAllow: POST\r\n");
    peer_say(&f->peer, "DELETE /park HTTP/1.1\r\nHost: a\r\n\r\n");
    expect_head(&f->peer, 405, "\r\nAllow: POST, GET, HEAD\r\n");
    peer_say(&f->peer, "get /meta HTTP/1.1\r\nHost: a\r\n\r\n");
    expect_head(&f->peer, 405, "\r\nAllow: GET, HEAD\r\n");
    assert_int_equal(f->rig.n_ended[12], 3);
}

static void test_path_when_it_could_be_another_then_400(void **state)
{
    static const char *const paths[] = {"/names/a%2fb", "/names/%2E%2e", "/names/..",
                                        "/names/./a",   "/names/a%00",   "/names/a%0",
                                        "/names/a%",    "/names/%gg",    "/../names/a"};
    struct fixture *f = *state;

    for (unsigned i = 0; i < sizeof paths / sizeof *paths; i++) {
        char text[128];
        snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: a\r\n\r\n", paths[i]);
        peer_say(&f->peer, text);
        expect_answer(&f->peer, 400, NULL);
    }
    char long_path[3000];
    memset(long_path, 'a', sizeof long_path);
    memcpy(long_path, "GET /names/", 11);
    memcpy(long_path + sizeof long_path - 23, " HTTP/1.1\r\nHost: a\r\n\r\n", 23);
    peer_say(&f->peer, long_path);
    expect_answer(&f->peer, 400, NULL);
    assert_int_equal(f->rig.n_messages, 0);
}

static void test_route_when_asked_by_grpc_then_unimplemented(void **state)
{
    struct fixture *f = *state;
    struct reply reply;

    f->rig.http = false;
    struct hps_grpc_channel *channel = rig_channel(&f->rig);
    reply_init(&reply);
    assert_int_equal(rig_call(&f->rig, channel, "/echo", "", 0, &reply), 12);
    assert_int_equal(rig_call(&f->rig, channel, "/t.T/Echo", "x", 1, &reply), 0);
    reply_fini(&reply);
    hps_grpc_channel_free(channel);
}

/* ---- answers --------------------------------------------------------------------------------- */

static void test_failure_when_by_code_then_its_status_and_text(void **state)
{
    static const unsigned statuses[] = {200, 400, 400, 400, 504, 404, 400, 403, 429,
                                        400, 409, 400, 501, 500, 503, 500, 401};
    struct fixture *f = *state;

    for (unsigned code = 1; code <= 16; code++) {
        char text[128];
        snprintf(text, sizeof text, "GET /fail/%u HTTP/1.1\r\nHost: a\r\n\r\n", code);
        peer_say(&f->peer, text);
        snprintf(text, sizeof text, "{\"error\":\"no \\\"%u\\\"\"}", code);
        expect_answer(&f->peer, statuses[code], text);
        assert_int_equal(f->rig.n_ended[code], 1);
    }
    peer_say(&f->peer, GET("/fail/16"));
    expect_head(&f->peer, 401, "\r\nWww-Authenticate: Bearer\r\n");
    peer_say(&f->peer, GET("/fail/5"));
    expect_head(&f->peer, 404, "\r\nContent-Type: application/json\r\n");
    peer_say(&f->peer, GET("/fail/5%5C%0A%FF"));
    expect_answer(&f->peer, 404, "{\"error\":\"no \\\"5\\\\\\u000a\xef\xbf\xbd\\\"\"}");
}

static void test_status_when_set_then_sent_without_a_body(void **state)
{
    struct fixture *f = *state;

    peer_say(&f->peer, GET("/health/400") GET("/health/200"));
    expect_answer(&f->peer, 400, "");
    expect_answer(&f->peer, 200, "");
    assert_int_equal(f->rig.n_ended[14], 1);
}

static void test_headers_when_added_then_sent_and_trailers_with_them(void **state)
{
    static const char *const parts[] = {"\r\nContent-Type: text/x-test\r\n", "\r\nX-Head: h  1\r\n",
                                        "\r\nGrpc-Retry-Pushback-Ms: 1500\r\n",
                                        "\r\nRetry-After: 2\r\n"};
    struct fixture *f = *state;

    for (unsigned i = 0; i < 4; i++) {
        peer_say(&f->peer, GET("/meta"));
        expect_head(&f->peer, 200, parts[i]);
    }
}

static void test_deadline_when_the_message_says_one_then_it_holds(void **state)
{
    struct fixture *f = *state;

    peer_say(&f->peer, GET("/late"));
    expect_answer(&f->peer, 504, "{\"error\":\"deadline exceeded\"}");
    assert_int_equal(f->rig.n_ended[4], 1);
    assert_true(hps_grpc_call_cancelled(f->rig.parked));
}

/* ---- what could be read in two ways ---------------------------------------------------------- */

#define HEAD(fields) "POST /echo HTTP/1.1\r\nHost: a\r\n" fields "\r\n"

static void test_head_when_malformed_then_refused_and_the_connection_ends(void **state)
{
    static const struct {
        const char *text;
        unsigned status;
    } heads[] = {
        {HEAD("Content-Length: 1\r\nTransfer-Encoding: chunked\r\n"), 400},
        {HEAD("Transfer-Encoding: chunked\r\nContent-Length: 1\r\n"), 400},
        {HEAD("Content-Length: 1\r\nContent-Length: 1\r\n"), 400},
        {HEAD("Content-Length: 1, 1\r\n"), 400},
        {HEAD("Content-Length: +1\r\n"), 400},
        {HEAD("Content-Length: -1\r\n"), 400},
        {HEAD("Content-Length: 0x1\r\n"), 400},
        {HEAD("Content-Length: 1 1\r\n"), 400},
        {HEAD("Content-Length:\r\n"), 400},
        {HEAD("Content-Length: 18446744073709551617\r\n"), 400},
        {HEAD("Transfer-Encoding: gzip\r\n"), 501},
        {HEAD("Transfer-Encoding: gzip, chunked\r\n"), 501},
        {HEAD("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"), 400},
        {HEAD("Transfer-Encoding: \vchunked\r\n"), 400},
        {HEAD("Transfer-Encoding : chunked\r\n"), 400},
        {HEAD("X: 1\r\n Content-Length: 1\r\n"), 400},
        {HEAD("X: 1\n"), 400},
        {HEAD("X: 1\rY: 2\r\n"), 400},
        {HEAD(": 1\r\n"), 400},
        {HEAD("X\r\n"), 400},
        {HEAD("Host: b\r\n"), 400},
        {HEAD("Authorization: a\r\nauthorization: b\r\n"), 400},
        {HEAD("X: \x1b[2J\r\n"), 400},
        {HEAD("Expect: 200-ok\r\n"), 417},
        {"POST /echo HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 400},
        {"POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
        {"POST /echo HTTP/1.2\r\nHost: a\r\n\r\n", 400},
        {"POST  /echo HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"POST /ec ho HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"POST http://a/echo HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {" POST /echo HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"POST /\x01 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"POST /echo HTTP/1.1\nHost: a\n\n", 400},
        {"PO\tST /echo HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"/echo\r\nHost: a\r\n\r\n", 400},
        {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400},
    };
    struct fixture *f = *state;

    for (unsigned i = 0; i < sizeof heads / sizeof *heads; i++) {
        peer_say(&f->peer, heads[i].text);
        peer_say(&f->peer, GET("/names/x/y"));
        expect_head(&f->peer, heads[i].status, "\r\nConnection: close\r\n");
        expect_end(&f->peer);
        reconnect(f);
    }
    assert_int_equal(f->rig.n_messages, 0);
}

static void test_head_when_it_has_a_nul_then_refused(void **state)
{
    struct fixture *f = *state;

    assert_true(peer_write(&f->peer, "GET /open HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n", 39));
    expect_answer(&f->peer, 400, NULL);
    reconnect(f);
    assert_true(peer_write(&f->peer, "GET /open HTTP/1.1\0 \r\nHost: a\r\n\r\n", 33));
    expect_answer(&f->peer, 400, NULL);
}

static void test_head_when_too_long_then_431(void **state)
{
    struct fixture *f = *state;
    char line[1024];

    memset(line, 'x', sizeof line);
    memcpy(line, "X: ", 3);
    memcpy(line + sizeof line - 2, "\r\n", 2);
    peer_say(&f->peer, "GET /open HTTP/1.1\r\nHost: a\r\n");
    for (unsigned i = 0; i < 16; i++) {
        assert_true(peer_write(&f->peer, line, sizeof line));
    }
    expect_answer(&f->peer, 431, NULL);
    expect_end(&f->peer);
    reconnect(f);
    peer_say(&f->peer, "GET /open HTTP/1.1\r\nHost: a\r\n");
    for (unsigned i = 0; i < 63; i++) {
        peer_say(&f->peer, "A: b\r\n");
    }
    peer_say(&f->peer, "\r\n");
    expect_answer(&f->peer, 200, "stats");
    peer_say(&f->peer, "GET /open HTTP/1.1\r\nHost: a\r\n");
    for (unsigned i = 0; i < 64; i++) {
        peer_say(&f->peer, "A: b\r\n");
    }
    peer_say(&f->peer, "\r\n");
    expect_answer(&f->peer, 431, NULL);
    expect_end(&f->peer);
}

static void test_chunks_when_malformed_then_refused_and_nothing_behind_them_is_a_request(
    void **state)
{
    static const char *const bodies[] = {
        "x\r\n",
        "\r\n",
        "-1\r\n",
        " 1\r\nx\r\n0\r\n\r\n",
        "1 \r\nx\r\n0\r\n\r\n",
        "0x1\r\nx\r\n",
        "1\nx\r\n",
        "1\r\nxy\r\n",
        "1\r\nx\n\n0\r\n\r\n",
        "123456789\r\n",
        "1\r\r\nx\r\n",
        "0\r\nX\r\n\r\n",
        "0\r\n X: 1\r\n\r\n",
        "0\r\nX: 1\n\r\n",
    };
    struct fixture *f = *state;
    unsigned n = sizeof bodies / sizeof *bodies;

    for (unsigned i = 0; i < n; i++) {
        peer_say(&f->peer, CHUNKED("/echo", ""));
        peer_say(&f->peer, bodies[i]);
        peer_say(&f->peer, GET("/names/x/y"));
        expect_head(&f->peer, 400, "\r\nConnection: close\r\n");
        expect_end(&f->peer);
        reconnect(f);
    }
    char line[8192];
    memset(line, 'x', sizeof line);
    memcpy(line, "1;", 2);
    peer_say(&f->peer, CHUNKED("/echo", ""));
    assert_true(peer_write(&f->peer, line, 300));
    expect_answer(&f->peer, 400, NULL);
    reconnect(f);
    memcpy(line, "0\r\nX: ", 6);
    peer_say(&f->peer, CHUNKED("/echo", ""));
    assert_true(peer_write(&f->peer, line, 5000));
    expect_answer(&f->peer, 400, NULL);
    assert_int_equal(f->rig.n_messages, 0);
    assert_int_equal(f->rig.n_ended[1], n + 2);
}

/* ---- compressed bodies ----------------------------------------------------------------------- */

static void say_packed(struct peer *peer, const char *path, const char *encoding, const void *body,
                       size_t size)
{
    char text[256];

    snprintf(text, sizeof text,
             "POST %s HTTP/1.1\r\nHost: a\r\nContent-Encoding: %s\r\nContent-Length: %zu\r\n\r\n",
             path, encoding, size);
    peer_say(peer, text);
    assert_true(peer_write(peer, body, size));
}

static void test_body_when_compressed_then_inflated(void **state)
{
    struct fixture *f = *state;
    static const uint8_t zlib[] = {0x78, 0xda, 0x4b, 0x4c, 0x4a, 0x06,
                                   0x00, 0x02, 0x4d, 0x01, 0x27};
    uint8_t gzip[256];
    size_t gzip_size = hps_gzip_program("hello hello", 11, gzip, sizeof gzip);

    say_packed(&f->peer, "/echo", "gzip", gzip, gzip_size);
    expect_answer(&f->peer, 200, "hello hello");
    say_packed(&f->peer, "/echo", "Deflate", zlib, sizeof zlib);
    expect_answer(&f->peer, 200, "abc");
    say_packed(&f->peer, "/echo", "identity", "plain", 5);
    expect_answer(&f->peer, 200, "plain");
    say_packed(&f->peer, "/packed", "gzip", gzip, gzip_size);
    expect_answer(&f->peer, 200, "gzip 11");
    say_packed(&f->peer, "/packed", "deflate", zlib, sizeof zlib);
    expect_answer(&f->peer, 200, "zlib 3");
    say_packed(&f->peer, "/packed", "identity", "plain", 5);
    expect_answer(&f->peer, 200, "plain 5");
}

static void test_body_when_it_cannot_be_inflated_then_refused(void **state)
{
    enum { BOMB = 5 * 1024 * 1024 };
    struct fixture *f = *state;
    uint8_t gzip[64 * 1024];
    uint8_t *zeros = hps_calloc(1, BOMB);

    assert_non_null(zeros);
    size_t size = hps_gzip_program(zeros, BOMB, gzip, sizeof gzip);
    hps_free(zeros);
    say_packed(&f->peer, "/echo", "gzip", gzip, size); /* more than request_bytes_max */
    expect_answer(&f->peer, 413, NULL);
    say_packed(&f->peer, "/echo", "deflate", gzip, size);
    expect_answer(&f->peer, 400, NULL);
    say_packed(&f->peer, "/packed", "gzip", gzip, size / 2);
    expect_answer(&f->peer, 429, NULL);
    say_packed(&f->peer, "/packed", "gzip", "hello", 5);
    expect_answer(&f->peer, 400, NULL);
    assert_int_equal(f->rig.bytes, 0);
}

static void test_body_when_its_encoding_is_unknown_then_415(void **state)
{
    static const char *const encodings[] = {"br", "gzip, gzip", "gzip\r\nContent-Encoding: gzip",
                                            "x"};
    struct fixture *f = *state;

    for (unsigned i = 0; i < 4; i++) {
        say_packed(&f->peer, "/echo", encodings[i], "", 0);
        expect_answer(&f->peer, 415, NULL);
    }
    assert_int_equal(f->rig.n_messages, 0);
}

/* ---- bodies that are too large --------------------------------------------------------------- */

static void test_body_when_declared_too_large_then_413_without_reading_it(void **state)
{
    struct fixture *f = *state;

    peer_say(&f->peer, POST("/small", "10", "0123456789"));
    expect_answer(&f->peer, 200, "0123456789");
    peer_say(&f->peer, POST("/small", "11", ""));
    expect_answer(&f->peer, 413, "{\"error\":\"body of 11 bytes, the limit is 10 bytes\"}");
    expect_end(&f->peer);
    reconnect(f);
    peer_say(&f->peer, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\n"
                       "Expect: 100-continue\r\n\r\n");
    expect_head(&f->peer, 413, "\r\nConnection: close\r\n");
    expect_end(&f->peer);
    assert_int_equal(f->rig.n_ended[8], 2);
}

static void test_body_when_it_becomes_too_large_then_413(void **state)
{
    struct fixture *f = *state;

    peer_say(&f->peer, CHUNKED("/small", "5\r\n01234\r\n6\r\n567890\r\n"));
    expect_head(&f->peer, 413, "\r\nConnection: close\r\n");
    expect_end(&f->peer);
    assert_int_equal(f->rig.n_messages, 0);
}

/* A client that sends all of it first gets the answer all the same. */
static void test_body_when_refused_while_it_is_sent_then_the_answer_arrives(void **state)
{
    enum { SIZE = 8 * 1024 * 1024 };
    struct fixture *f = *state;
    uint8_t *bytes = pattern(SIZE);

    peer_say(&f->peer, POST("/echo", "8388608", ""));
    assert_true(peer_write(&f->peer, bytes, SIZE));
    expect_answer(&f->peer, 413, NULL);
    hps_free(bytes);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_requests_when_one_after_the_other_then_each_answered),
        TEST(test_requests_when_pipelined_then_answered_in_order),
        TEST(test_requests_when_pipelined_behind_one_that_waits_then_they_wait_too),
        TEST(test_request_when_it_comes_in_single_bytes_then_answered),
        TEST(test_body_when_large_then_received_whole_however_it_comes),
        TEST(test_reply_when_large_then_sent_whole),
        TEST(test_head_when_asked_then_no_body),
        TEST(test_connection_when_its_end_is_asked_for_then_it_ends),
        TEST(test_continue_when_expected_then_said_before_the_body_comes),
        TEST(test_route_when_several_fit_then_the_literal_one),
        TEST(test_route_when_there_is_none_then_404),
        TEST(test_route_when_its_verb_is_another_then_405_with_allow),
        TEST(test_path_when_it_could_be_another_then_400),
        TEST(test_route_when_asked_by_grpc_then_unimplemented),
        TEST(test_failure_when_by_code_then_its_status_and_text),
        TEST(test_status_when_set_then_sent_without_a_body),
        TEST(test_headers_when_added_then_sent_and_trailers_with_them),
        TEST(test_deadline_when_the_message_says_one_then_it_holds),
        TEST(test_head_when_malformed_then_refused_and_the_connection_ends),
        TEST(test_head_when_it_has_a_nul_then_refused),
        TEST(test_head_when_too_long_then_431),
        TEST(test_chunks_when_malformed_then_refused_and_nothing_behind_them_is_a_request),
        TEST(test_body_when_compressed_then_inflated),
        TEST(test_body_when_it_cannot_be_inflated_then_refused),
        TEST(test_body_when_its_encoding_is_unknown_then_415),
        TEST(test_body_when_declared_too_large_then_413_without_reading_it),
        TEST(test_body_when_it_becomes_too_large_then_413),
        TEST(test_body_when_refused_while_it_is_sent_then_the_answer_arrives),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

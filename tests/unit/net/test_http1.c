/* SPDX-License-Identifier: Apache-2.0
 *
 * HTTP/1.1 for probes: good requests in any pieces, every refusal, time-outs, large answers.
 */
#include "net/http1.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "net/sock.h"

#define BODY_BYTES_MAX (8u << 20)

struct rig {
    struct hps_loop *loop;
    struct hps_http1 *http;
    struct hps_addr addr;
    unsigned n_gets;
    char path[256];
    char authorization[256]; /* "-": none */
};

static char answer[BODY_BYTES_MAX + 4096];

static hps_status on_get(void *ctx, const struct hps_http1_request *request,
                         struct hps_http1_reply *reply)
{
    struct rig *rig = ctx;
    rig->n_gets++;
    const char *path = request->path;
    const char *authorization = request->authorization;
    snprintf(rig->path, sizeof(rig->path), "%s", path);
    snprintf(rig->authorization, sizeof(rig->authorization), "%s",
             authorization != NULL ? authorization : "-");
    assert_non_null(request->conn);
    if (strcmp(path, "/secret") == 0) {
        reply->status = authorization != NULL ? 403 : 401;
        return hps_buf_printf(&reply->body, "no\n");
    }
    if (strcmp(path, "/fail") == 0) {
        return HPS_NO_MEMORY;
    }
    if (strcmp(path, "/big") == 0) {
        reply->status = 200;
        hps_status status = hps_buf_reserve(&reply->body, BODY_BYTES_MAX);
        assert_int_equal(status, HPS_OK);
        memset(reply->body.data, 'b', BODY_BYTES_MAX);
        reply->body.size = BODY_BYTES_MAX;
        return HPS_OK;
    }
    if (strcmp(path, "/readyz") == 0) {
        reply->status = 503;
        return hps_buf_printf(&reply->body, "not ready\n");
    }
    if (strcmp(path, "/metrics") == 0) {
        reply->status = 200;
        reply->content_type = "text/plain; version=0.0.4";
        return hps_buf_printf(&reply->body, "up 1\n");
    }
    return HPS_OK;
}

static void rig_open(struct rig *rig)
{
    struct hps_addr addr;
    int fd = -1;
    memset(rig, 0, sizeof(*rig));
    assert_int_equal(hps_loop_new(&rig->loop, NULL), HPS_OK);
    assert_int_equal(hps_addr_parse("127.0.0.1:0", &addr, NULL), HPS_OK);
    assert_int_equal(hps_sock_listen(&addr, 0, &fd, NULL), HPS_OK);
    assert_int_equal(hps_sock_local(fd, &rig->addr), HPS_OK);
    struct hps_http1_options options = {.connections_max = 2,
                                        .head_timeout_us = 10000000,
                                        .send_timeout_us = 10000000,
                                        .body_bytes_max = BODY_BYTES_MAX,
                                        .on_get = on_get,
                                        .ctx = rig};
    assert_int_equal(hps_http1_new(rig->loop, fd, &options, &rig->http, NULL), HPS_OK);
}

static void rig_close(struct rig *rig)
{
    hps_http1_free(rig->http);
    hps_loop_free(rig->loop);
}

static int rig_connect(struct rig *rig)
{
    int fd = -1;
    assert_int_equal(hps_sock_connect(&rig->addr, &fd, NULL), HPS_OK);
    while (hps_sock_connected(fd, NULL) == HPS_AGAIN) {
        hps_loop_turn(rig->loop, 1000);
    }
    return fd;
}

static void send_bytes(struct rig *rig, int fd, const char *data, size_t size)
{
    while (size > 0) {
        ssize_t n = send(fd, data, size, MSG_NOSIGNAL);
        if (n > 0) {
            data += n;
            size -= (size_t)n;
        } else {
            assert_int_equal(errno, EAGAIN);
        }
        hps_loop_turn(rig->loop, 0);
    }
}

/* All the server sends until it closes, as a string in `answer`. */
static const char *receive(struct rig *rig, int fd)
{
    size_t size = 0;
    for (;;) {
        ssize_t n = recv(fd, answer + size, sizeof(answer) - 1 - size, MSG_DONTWAIT);
        if (n > 0) {
            size += (size_t)n;
        } else if (n == 0) {
            break;
        } else {
            assert_int_equal(errno, EAGAIN);
        }
        hps_loop_turn(rig->loop, n > 0 ? 0 : 1000);
    }
    answer[size] = '\0';
    return answer;
}

static const char *ask(struct rig *rig, const char *request)
{
    int fd = rig_connect(rig);
    send_bytes(rig, fd, request, strlen(request));
    receive(rig, fd);
    close(fd);
    hps_loop_turn(rig->loop, 1000); /* sees the close */
    return answer;
}

static void assert_starts(const char *text, const char *start)
{
    if (strncmp(text, start, strlen(start)) != 0) {
        fail_msg("'%.60s' does not start with '%s'", text, start);
    }
}

static void test_get_when_known_then_headers_and_body(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig);
    const char *text = ask(&rig, "GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n");
    assert_starts(text, "HTTP/1.1 200 OK\r\n");
    assert_non_null(strstr(text, "Content-Type: text/plain; version=0.0.4\r\n"));
    assert_non_null(strstr(text, "Content-Length: 5\r\n"));
    assert_non_null(strstr(text, "Connection: close\r\n"));
    assert_non_null(strstr(text, "\r\n\r\nup 1\n"));
    assert_string_equal(rig.path, "/metrics");
    assert_starts(ask(&rig, "GET /readyz HTTP/1.0\n\n"), "HTTP/1.1 503 Service Unavailable\r\n");
    assert_non_null(strstr(answer, "\r\n\r\nnot ready\n"));
    rig_close(&rig);
}

static void test_head_when_known_then_length_without_body(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig);
    const char *text = ask(&rig, "HEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_starts(text, "HTTP/1.1 200 OK\r\n");
    assert_non_null(strstr(text, "Content-Length: 5\r\n"));
    assert_string_equal(text + strlen(text) - 4, "\r\n\r\n");
    rig_close(&rig);
}

static void test_get_when_byte_by_byte_then_answered(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig);
    const char request[] = "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n";
    int fd = rig_connect(&rig);
    for (size_t i = 0; i < sizeof(request) - 1; i++) {
        assert_int_equal(rig.n_gets, 0);
        send_bytes(&rig, fd, request + i, 1);
        hps_loop_turn(rig.loop, 0);
    }
    assert_starts(receive(&rig, fd), "HTTP/1.1 200 OK\r\n");
    close(fd);
    rig_close(&rig);
}

static void test_request_when_wrong_then_the_right_refusal(void **state)
{
    (void)state;
    static const struct {
        const char *request, *answer;
    } cases[] = {
        {"GET /nothing HTTP/1.1\r\n\r\n", "HTTP/1.1 404 "},
        {"GET /fail HTTP/1.1\r\n\r\n", "HTTP/1.1 500 "},
        {"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", "HTTP/1.1 405 "},
        {"get /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 405 "},
        {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/1.1 400 "},
        {"GET /metrics HTTP/2.0\r\n\r\n", "HTTP/1.1 400 "},
        {"GET /metrics\r\n\r\n", "HTTP/1.1 400 "},
        {"GET metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 400 "},
        {"GET  /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 400 "},
        {"GET /a b HTTP/1.1\r\n\r\n", "HTTP/1.1 400 "},
        {"GET /\x01 HTTP/1.1\r\n\r\n", "HTTP/1.1 400 "},
        {" GET /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 400 "},
        {"GET /metrics HTTP/1.1\r\nno colon\r\n\r\n", "HTTP/1.1 400 "},
        {"GET /metrics HTTP/1.1\r\nauthorization: a\rb\r\n\r\n", "HTTP/1.1 400 "},
        {"GET /metrics HTTP/1.1\r\nx: \x1b[2J\r\n\r\n", "HTTP/1.1 400 "},
        {"GET /metrics HTTP/1.1\r\n: empty\r\n\r\n", "HTTP/1.1 400 "},
        {"GET /metrics HTTP/1.1\r\nA : b\r\n\r\n", "HTTP/1.1 400 "},
        {"GET /metrics HTTP/1.1\r\nA: b\r\n folded: c\r\n\r\n", "HTTP/1.1 400 "},
        {"\r\n\r\n", "HTTP/1.1 400 "},
        {"\n\n", "HTTP/1.1 400 "},
    };
    struct rig rig;
    rig_open(&rig);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_starts(ask(&rig, cases[i].request), cases[i].answer);
    }
    assert_starts(ask(&rig, "PUT / HTTP/1.1\r\n\r\n"), "HTTP/1.1 405 ");
    assert_non_null(strstr(answer, "Allow: GET, HEAD\r\n"));
    assert_int_equal(rig.n_gets, 2);
    rig_close(&rig);
}

static void test_request_when_it_has_an_authorization_then_the_page_gets_it(void **state)
{
    (void)state;
    static const struct {
        const char *headers, *value;
    } cases[] = {
        {"", "-"},
        {"Host: a\r\nAuthorization: Bearer abc\r\nAccept: */*\r\n", "Bearer abc"},
        {"aUTHORIZATION:\t x y \t\r\n", "x y"},
        {"Authorization:\n", ""},
        {"Authorization: a\nB: c\n", "a"},
        {"Authorizatio: a\r\nAuthorizations: b\r\nX-Authorization: c\r\n", "-"},
    };
    struct rig rig;
    rig_open(&rig);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char request[256];
        snprintf(request, sizeof(request), "GET /metrics HTTP/1.1\r\n%s\r\n", cases[i].headers);
        assert_starts(ask(&rig, request), "HTTP/1.1 200 ");
        assert_string_equal(rig.authorization, cases[i].value);
    }
    /* Who is it? A proxy may have judged the other one. */
    assert_starts(
        ask(&rig, "GET /metrics HTTP/1.1\r\nAuthorization: a\r\nauthorization: b\r\n\r\n"),
        "HTTP/1.1 400 ");
    rig_close(&rig);
}

static void test_reply_when_not_allowed_then_the_client_is_told_what_to_show(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig);
    assert_starts(ask(&rig, "GET /secret HTTP/1.1\r\n\r\n"), "HTTP/1.1 401 Unauthorized\r\n");
    assert_non_null(strstr(answer, "\r\nWWW-Authenticate: Bearer\r\n"));
    assert_starts(ask(&rig, "GET /secret HTTP/1.1\r\nAuthorization: x\r\n\r\n"),
                  "HTTP/1.1 403 Forbidden\r\n");
    assert_null(strstr(answer, "WWW-Authenticate"));
    rig_close(&rig);
}

static void test_request_when_nul_inside_then_400(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig);
    static const char *const requests[] = {"GET /me\0ics HTTP/1.1\r\nH: a\r\n\r\n",
                                           "GET /metrcs HTTP/1.1\r\nH: \0\r\n\r\n"};
    for (unsigned i = 0; i < 2; i++) {
        int fd = rig_connect(&rig);
        send_bytes(&rig, fd, requests[i], 30);
        assert_starts(receive(&rig, fd), "HTTP/1.1 400 ");
        close(fd);
        hps_loop_turn(rig.loop, 1000);
    }
    assert_int_equal(rig.n_gets, 0);
    rig_close(&rig);
}

static void test_request_when_head_is_too_long_then_431(void **state)
{
    (void)state;
    struct rig rig;
    static char request[HPS_HTTP1_HEAD_BYTES_MAX + 100];
    rig_open(&rig);
    int size = snprintf(request, sizeof(request), "GET /metrics HTTP/1.1\r\nA: ");
    memset(request + size, 'x', sizeof(request) - (size_t)size - 1);
    memcpy(request + HPS_HTTP1_HEAD_BYTES_MAX - 4, "\r\n\r\n", 5);
    assert_starts(ask(&rig, request), "HTTP/1.1 200 ");
    memset(request + size, 'x', sizeof(request) - (size_t)size - 1);
    assert_starts(ask(&rig, request), "HTTP/1.1 431 ");
    rig_close(&rig);
}

static void test_request_when_head_is_slow_then_closed(void **state)
{
    (void)state;
    struct rig rig;
    char byte;
    hps_clock_fake(1000000);
    rig_open(&rig);
    int fd = rig_connect(&rig);
    for (unsigned i = 0; i < 9; i++) { /* a byte a second does not help */
        send_bytes(&rig, fd, "G", 1);
        hps_loop_turn(rig.loop, 1000);
        hps_clock_advance(1000000);
    }
    hps_loop_turn(rig.loop, 0);
    assert_int_equal(recv(fd, &byte, 1, MSG_DONTWAIT), -1);
    assert_int_equal(errno, EAGAIN);
    hps_clock_advance(1000000);
    hps_loop_turn(rig.loop, 0);
    struct pollfd poll_fd = {fd, POLLIN, 0};
    assert_int_equal(poll(&poll_fd, 1, 10000), 1);
    assert_true(recv(fd, &byte, 1, MSG_DONTWAIT) <= 0);
    close(fd);
    rig_close(&rig);
    hps_clock_real();
}

static void test_probe_when_silent_peers_have_all_places_then_answered(void **state)
{
    struct rig rig;
    int silent[5];
    (void)state;
    rig_open(&rig);
    for (unsigned i = 0; i < 5; i++) { /* connections_max is 2 */
        silent[i] = rig_connect(&rig);
        send_bytes(&rig, silent[i], "GET /", 5);
    }
    int fd = rig_connect(&rig);
    send_bytes(&rig, fd, "GET /metrics HTTP/1.1\r\n\r\n", 25);
    assert_non_null(strstr(receive(&rig, fd), "up 1\n"));
    close(fd);
    for (unsigned i = 0; i < 5; i++) {
        close(silent[i]);
    }
    rig_close(&rig);
}

static void test_timeouts_when_set_then_the_next_exchange_has_them(void **state)
{
    (void)state;
    struct rig rig;
    hps_clock_fake(1000000);
    rig_open(&rig);
    hps_http1_limits_set(rig.http, 500000, 10000000, 0);
    int fd = rig_connect(&rig);
    send_bytes(&rig, fd, "G", 1);
    hps_loop_turn(rig.loop, 1000);
    hps_clock_advance(600000);
    hps_loop_turn(rig.loop, 0);
    struct pollfd poll_fd = {fd, POLLIN, 0};
    assert_int_equal(poll(&poll_fd, 1, 10000), 1);
    char byte;
    assert_true(recv(fd, &byte, 1, MSG_DONTWAIT) <= 0);
    close(fd);
    rig_close(&rig);
    hps_clock_real();
}

static void test_get_when_answer_is_large_then_whole(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig);
    const char *text = ask(&rig, "GET /big HTTP/1.1\r\n\r\n");
    const char *body = strstr(text, "\r\n\r\n");
    assert_non_null(body);
    assert_int_equal(strspn(body + 4, "b"), BODY_BYTES_MAX);
    assert_int_equal(strlen(body + 4), BODY_BYTES_MAX);
    rig_close(&rig);
}

static void test_get_when_peer_leaves_then_freed(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig);
    for (unsigned i = 0; i < 4; i++) { /* more than connections_max: each must be let go */
        int fd = rig_connect(&rig);
        send_bytes(&rig, fd, "GET /big HTTP/1.1\r\n\r\n", i % 2 ? 21 : 10);
        hps_loop_turn(rig.loop, 1000);
        close(fd);
        hps_loop_turn(rig.loop, 1000);
        hps_loop_turn(rig.loop, 1000);
    }
    assert_starts(ask(&rig, "GET /metrics HTTP/1.1\r\n\r\n"), "HTTP/1.1 200 ");
    rig_close(&rig);
}

static void test_free_when_exchanges_are_open_then_closed(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig);
    int fd = rig_connect(&rig);
    send_bytes(&rig, fd, "GET /big HTTP/1.1\r\n\r\n", 21);
    hps_loop_turn(rig.loop, 1000);
    rig_close(&rig);
    close(fd);
    hps_http1_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_get_when_known_then_headers_and_body),
        cmocka_unit_test(test_head_when_known_then_length_without_body),
        cmocka_unit_test(test_get_when_byte_by_byte_then_answered),
        cmocka_unit_test(test_request_when_wrong_then_the_right_refusal),
        cmocka_unit_test(test_request_when_it_has_an_authorization_then_the_page_gets_it),
        cmocka_unit_test(test_reply_when_not_allowed_then_the_client_is_told_what_to_show),
        cmocka_unit_test(test_request_when_nul_inside_then_400),
        cmocka_unit_test(test_request_when_head_is_too_long_then_431),
        cmocka_unit_test(test_request_when_head_is_slow_then_closed),
        cmocka_unit_test(test_probe_when_silent_peers_have_all_places_then_answered),
        cmocka_unit_test(test_timeouts_when_set_then_the_next_exchange_has_them),
        cmocka_unit_test(test_get_when_answer_is_large_then_whole),
        cmocka_unit_test(test_get_when_peer_leaves_then_freed),
        cmocka_unit_test(test_free_when_exchanges_are_open_then_closed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

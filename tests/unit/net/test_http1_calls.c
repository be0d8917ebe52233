/* SPDX-License-Identifier: Apache-2.0
 *
 * HTTP/1.1 calls and the gRPC server's limits of time and memory, its authorization, clients that
 * disconnect, and servers that drain. Test thread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/heap.h"
#include "base/log.h"
#include "net/tls.h"
#include "tests/lib/certs.h"
#include "tests/lib/fault_heap.h"
#include "tests/lib/http_peer.h"

enum { SECOND_US = 1000 * 1000 };

struct fixture {
    struct rig rig;
    struct peer peer;
};

static int counted_not_fd = -1;
static unsigned n_reads; /* if counted_not_fd is a socket: reads of all other sockets */

/* Replaces the function of libc. */
ssize_t recv(int fd, void *data, size_t size, int flags)
{
    n_reads += counted_not_fd >= 0 && fd != counted_not_fd ? 1 : 0;
    return recvfrom(fd, data, size, flags, NULL, NULL);
}

/* Tests use a fake clock, which only hps_clock_advance changes. */
static int setup(void **state)
{
    static struct fixture f;
    struct hps_grpc_limits limits = rig_limits;

    hps_log_level_set(HPS_LOG_ERROR);
    hps_clock_fake(hps_clock_us());
    limits.connection_reply_bytes_max = 64 * 1024 * 1024;
    limits.reply_bytes_per_s_min = 64 * 1024;
    limits.idle_timeout_us = 60 * (uint64_t)SECOND_US;
    rig_open(&f.rig, &limits);
    peer_open(&f.peer, &f.rig);
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    peer_close(&f->peer);
    rig_close(&f->rig);
    hps_clock_real();
    hps_log_level_set(HPS_LOG_INFO);
    return 0;
}

static void pass(struct fixture *f, uint64_t us)
{
    hps_clock_advance(us);
    rig_turn(&f->rig);
    rig_turn(&f->rig);
}

/* ---- timeouts -------------------------------------------------------------------------------- */

static void test_connection_when_no_request_arrives_then_closed_as_timeout(void **state)
{
    struct fixture *f = *state;

    PEER_UNTIL(&f->peer, f->rig.n_connections == 1);
    pass(f, 9 * (uint64_t)SECOND_US);
    assert_int_equal(f->rig.n_connections, 1);
    pass(f, 2 * (uint64_t)SECOND_US);
    expect_end(&f->peer);
    assert_int_equal(f->rig.n_no_starts[HPS_GRPC_TIMEOUT], 1);
}

static void test_head_when_it_arrives_slowly_then_closed(void **state)
{
    struct fixture *f = *state;

    peer_say(&f->peer, GET("/open"));
    expect_answer(&f->peer, 200, "stats");
    pass(f, 30 * (uint64_t)SECOND_US); /* between requests there is no such limit */
    peer_say(&f->peer, "GET /open HTTP/1.1\r\n");
    for (unsigned i = 0; i < 10; i++) {
        assert_false(f->peer.closed);
        pass(f, SECOND_US);
        peer_say(&f->peer, "X: 1\r\n");
    }
    pass(f, 2 * (uint64_t)SECOND_US);
    expect_end(&f->peer);
}

static void test_connection_when_idle_timeout_is_reached_then_closed(void **state)
{
    struct fixture *f = *state;

    peer_say(&f->peer, GET("/open"));
    expect_answer(&f->peer, 200, "stats");
    pass(f, 59 * (uint64_t)SECOND_US);
    assert_int_equal(f->rig.n_connections, 1);
    pass(f, 2 * (uint64_t)SECOND_US);
    expect_end(&f->peer);
}

/* Each needless read of an empty socket costs as much as a read with data. */
static void test_request_when_it_arrives_complete_then_socket_is_read_once(void **state)
{
    struct fixture *f = *state;

    peer_say(&f->peer, POST("/echo", "3", "abc"));
    expect_answer(&f->peer, 200, "abc");
    counted_not_fd = f->peer.fd;
    n_reads = 0;
    for (unsigned i = 1; i <= 3; i++) {
        peer_say(&f->peer, POST("/echo", "3", "abc"));
        expect_answer(&f->peer, 200, "abc");
        assert_int_equal(n_reads, i);
    }
    counted_not_fd = -1;
}

static void test_body_when_it_stalls_then_408(void **state)
{
    struct fixture *f = *state;

    peer_say(&f->peer, POST("/echo", "100", "some"));
    pass(f, 20 * (uint64_t)SECOND_US);
    peer_say(&f->peer, " more");
    pass(f, 20 * (uint64_t)SECOND_US);
    peer_read(&f->peer);
    assert_int_equal(f->peer.in.size, 0);
    pass(f, 20 * (uint64_t)SECOND_US);
    expect_head(&f->peer, 408, "\r\nConnection: close\r\n");
    expect_end(&f->peer);
    assert_int_equal(f->rig.n_ended[1], 1);
}

/* Queues a reply that is larger than all socket buffers. */
static void ask_much(struct fixture *f)
{
    int size = 64 * 1024;

    assert_int_equal(setsockopt(f->peer.fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size), 0);
    assert_true(send(f->peer.fd, GET("/big/50000000"), sizeof(GET("/big/50000000")) - 1, 0) > 0);
    RIG_UNTIL(&f->rig, f->rig.n_messages == 1);
    for (unsigned i = 0; i < 100; i++) {
        hps_loop_turn(f->rig.loop, 0);
    }
    assert_true(hps_grpc_loop_bytes_in_flight(f->rig.grpc_loop) > 20000000);
}

static void test_reply_when_client_does_not_read_then_closed_and_memory_is_freed(void **state)
{
    struct fixture *f = *state;

    ask_much(f);
    pass(f, SECOND_US);
    pass(f, 31 * (uint64_t)SECOND_US);
    RIG_UNTIL(&f->rig, f->rig.n_connections == 0);
    assert_int_equal(hps_block_pool_bytes(f->rig.blocks), 0);
    assert_int_equal(hps_grpc_loop_bytes_in_flight(f->rig.grpc_loop), 0);
    assert_int_equal(f->rig.n_ended[1], 1);
}

static void test_reply_when_client_reads_too_slowly_then_closed(void **state)
{
    struct fixture *f = *state;
    char bytes[64 * 1024];

    ask_much(f);
    for (unsigned second = 0; second < 12; second++) {
        pass(f, SECOND_US);
        (void)!recv(f->peer.fd, bytes, 1024, MSG_DONTWAIT);
    }
    RIG_UNTIL(&f->rig, f->rig.n_slow[HPS_GRPC_SLOW_RATE] == 1);
    RIG_UNTIL(&f->rig, f->rig.n_connections == 0);
    assert_int_equal(hps_block_pool_bytes(f->rig.blocks), 0);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void test_body_when_request_memory_is_used_up_then_refused(void **state)
{
    struct fixture *f = *state;
    struct peer other;
    static char bytes[2 * 1024 * 1024];

    rig_request_bytes_max(&f->rig, 3 * sizeof bytes / 2);
    peer_say(&f->peer, POST("/echo", "2097153", ""));
    assert_true(peer_write(&f->peer, bytes, sizeof bytes));
    peer_open(&other, &f->rig);
    peer_say(&other, POST("/echo", "5", "small"));
    expect_answer(&other, 200, "small");
    peer_say(&other, POST("/echo", "2097152", ""));
    (void)peer_write(&other, bytes, sizeof bytes);
    expect_answer(&other, 429, NULL);
    peer_close(&other);
    peer_say(&f->peer, "x");
    expect_answer(&f->peer, 200, NULL);
    assert_int_equal(f->rig.n_ended[8], 1);
}

static void test_reply_when_charged_then_next_request_waits(void **state)
{
    struct fixture *f = *state;
    static const uint32_t bytes = 64 * 1024 * 1024;

    peer_say(&f->peer, POST("/charge", "4", ""));
    assert_true(peer_write(&f->peer, &bytes, 4));
    PEER_UNTIL(&f->peer, f->rig.n_charged == 1);
    hps_grpc_call_finish(f->rig.charged[0], 0, NULL); /* the reply keeps its memory */
    expect_answer(&f->peer, 200, "");
    peer_say(&f->peer, GET("/names/x/y"));
    for (unsigned i = 0; i < 10; i++) {
        rig_turn(&f->rig);
        peer_read(&f->peer);
    }
    assert_int_equal(f->peer.in.size, 0);
    rig_discharge(&f->rig);
    expect_answer(&f->peer, 200, "x|y");
}

/* Only allocations of the server fail. The rig and the client allocate before. */
static void test_calls_when_any_allocation_fails_then_nothing_leaks(void **state)
{
    struct fixture *f = *state;
    size_t n = 1;

    for (size_t fail_at = 1; n > 0 && fail_at < 200; fail_at++) {
        struct peer peer;
        peer_open(&peer, &f->rig);
        PEER_UNTIL(&peer, f->rig.n_connections == 2);
        assert_int_equal(hps_buf_reserve(&peer.in, 300 * 1024), HPS_OK);
        hps_fault_heap_install(fail_at);
        peer_say(&peer, POST("/echo", "5", "hello") GET("/fail/5"));
        for (unsigned i = 0; i < 8; i++) {
            rig_turn(&f->rig);
            peer_read(&peer);
        }
        n = hps_fault_heap_allocations() >= fail_at;
        shutdown(peer.fd, SHUT_RDWR);
        RIG_UNTIL(&f->rig, f->rig.n_connections == 1);
        hps_fault_heap_remove();
        close(peer.fd);
        peer.fd = -1;
        peer_close(&peer);
    }
    assert_int_equal(n, 0);
}

/* ---- clients that disconnect ----------------------------------------------------------------- */

static void park(struct fixture *f)
{
    peer_say(&f->peer, GET("/park"));
    PEER_UNTIL(&f->peer, f->rig.parked != NULL);
}

static void test_call_when_client_resets_then_cancelled(void **state)
{
    struct fixture *f = *state;
    struct linger linger = {.l_onoff = 1, .l_linger = 0};

    park(f);
    assert_int_equal(setsockopt(f->peer.fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger), 0);
    close(f->peer.fd);
    f->peer.fd = -1;
    RIG_UNTIL(&f->rig, f->rig.n_ended[1] == 1);
    assert_true(hps_grpc_call_cancelled(f->rig.parked));
    assert_int_equal(f->rig.n_closes, 1);
}

static void test_call_when_client_closes_then_cancelled(void **state)
{
    struct fixture *f = *state;

    hps_clock_real(); /* the connection is checked only at intervals */
    park(f);
    close(f->peer.fd);
    f->peer.fd = -1;
    RIG_UNTIL(&f->rig, f->rig.n_ended[1] == 1);
    assert_true(hps_grpc_call_cancelled(f->rig.parked));
    peer_close(&f->peer);
    peer_open_unix(&f->peer, &f->rig);
    peer_say(&f->peer, GET("/park"));
    RIG_UNTIL(&f->rig, f->rig.n_messages == 2);
    close(f->peer.fd);
    f->peer.fd = -1;
    RIG_UNTIL(&f->rig, f->rig.n_ended[1] == 2);
}

static void test_call_when_client_half_closes_then_answered(void **state)
{
    struct fixture *f = *state;

    park(f);
    assert_int_equal(shutdown(f->peer.fd, SHUT_WR), 0);
    for (unsigned i = 0; i < 5; i++) {
        pass(f, 100 * 1000);
    }
    assert_false(hps_grpc_call_cancelled(f->rig.parked));
    hps_grpc_call_send_copy(f->rig.parked, "at last", 7);
    hps_grpc_call_finish(f->rig.parked, 0, NULL);
    expect_answer(&f->peer, 100, "");
    expect_head(&f->peer, 200, "\r\nConnection: close\r\n");
    expect_end(&f->peer);
    RIG_UNTIL(&f->rig, f->rig.n_connections == 0);
}

static void test_call_when_client_half_closes_within_the_body_then_not_delivered(void **state)
{
    struct fixture *f = *state;

    peer_say(&f->peer, POST("/echo", "100", "some"));
    assert_int_equal(shutdown(f->peer.fd, SHUT_WR), 0);
    RIG_UNTIL(&f->rig, f->rig.n_ended[1] == 1);
    assert_int_equal(f->rig.n_messages, 0);
}

static void test_requests_when_client_half_closes_after_them_then_all_answered(void **state)
{
    struct fixture *f = *state;

    assert_true(send(f->peer.fd, GET("/names/1/a") GET("/names/2/b"),
                     sizeof(GET("/names/1/a") GET("/names/2/b")) - 1, 0) > 0);
    assert_int_equal(shutdown(f->peer.fd, SHUT_WR), 0);
    expect_answer(&f->peer, 200, "1|a");
    expect_answer(&f->peer, 200, "2|b");
    expect_end(&f->peer);
}

/* ---- servers that drain ---------------------------------------------------------------------- */

static void on_drained(void *ctx)
{
    ((struct rig *)ctx)->drained = true;
}

static void test_drain_when_connections_are_open_then_next_reply_has_connection_close(void **state)
{
    struct fixture *f = *state;
    struct peer idle, asking, answered;

    peer_open(&idle, &f->rig);
    peer_say(&idle, GET("/open"));
    expect_answer(&idle, 200, "stats");
    peer_open(&asking, &f->rig);
    peer_say(&asking, GET("/open"));
    expect_answer(&asking, 200, "stats");
    peer_open(&answered, &f->rig);
    peer_say(&answered, GET("/big/4000000")); /* its head is sent before the drain begins */
    PEER_UNTIL(&answered, answered.in.size > 0);
    park(f);
    hps_grpc_loop_drain(f->rig.grpc_loop, on_drained, &f->rig);
    peer_say(&asking, GET("/open"));
    expect_head(&asking, 200, "\r\nConnection: close\r\n");
    expect_end(&asking);
    expect_answer(&answered, 200, NULL);
    assert_false(answered.closed);
    peer_say(&answered, GET("/open"));
    expect_head(&answered, 200, "\r\nConnection: close\r\n");
    expect_end(&answered);
    assert_false(idle.closed);
    pass(f, 2 * (uint64_t)SECOND_US);
    expect_end(&idle);
    assert_false(f->rig.drained);
    hps_grpc_call_finish(f->rig.parked, 0, NULL);
    expect_head(&f->peer, 200, "\r\nConnection: close\r\n");
    expect_end(&f->peer);
    peer_close(&f->peer);
    peer_close(&asking);
    peer_close(&answered);
    RIG_UNTIL(&f->rig, f->rig.drained);
    peer_close(&idle);
}

/* A connection announces its end in the next reply. Until then it stays open, even for long. */
static void test_connection_when_aged_then_next_reply_has_connection_close(void **state)
{
    struct fixture *f = *state;
    struct hps_grpc_limits limits = rig_limits;
    struct peer unused;

    limits.age_max_us = 10 * (uint64_t)SECOND_US;
    limits.idle_timeout_us = 1000 * (uint64_t)SECOND_US;
    hps_grpc_loop_limits_set(f->rig.grpc_loop, &limits);
    peer_close(&f->peer);
    peer_open(&f->peer, &f->rig);
    peer_say(&f->peer, GET("/open"));
    expect_answer(&f->peer, 200, "stats");
    peer_open(&unused, &f->rig);
    peer_say(&unused, GET("/open"));
    expect_answer(&unused, 200, "stats");
    for (unsigned i = 0; i < 3; i++) {
        pass(f, 300 * (uint64_t)SECOND_US);
        peer_read(&f->peer);
        assert_false(f->peer.closed);
    }
    peer_say(&f->peer, GET("/open"));
    expect_head(&f->peer, 200, "\r\nConnection: close\r\n");
    expect_end(&f->peer);
    pass(f, 150 * (uint64_t)SECOND_US);
    expect_end(&unused);
    peer_close(&unused);
}

/* ---- authorization --------------------------------------------------------------------------- */

static struct rig_guard guard;

static void set_guard(struct fixture *f)
{
    guard = (struct rig_guard){.word = "Bearer sesame"};
    rig_guard_set(&f->rig, &guard);
}

#define AS(who, line) line " HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer " who "\r\n\r\n"

static void test_guard_when_set_then_decides_about_all_routes_except_open_ones(void **state)
{
    struct fixture *f = *state;

    set_guard(f);
    peer_say(&f->peer, GET("/names/x/y"));
    expect_head(&f->peer, 401, "\r\nWww-Authenticate: Bearer\r\n");
    peer_say(&f->peer, GET("/nothing"));
    expect_answer(&f->peer, 401, "{\"error\":\"who are you\"}");
    peer_say(&f->peer, AS("x", "GET /names/x/y"));
    expect_answer(&f->peer, 403, "{\"error\":\"not you\"}");
    peer_say(&f->peer, GET("/open"));
    expect_answer(&f->peer, 200, "stats");
    peer_say(&f->peer, AS("sesame", "GET /names/x/y"));
    expect_answer(&f->peer, 200, "x|y");
    peer_say(&f->peer, AS("sesame", "POST /echo"));
    expect_answer(&f->peer, 200, "");
    peer_say(&f->peer, POST("/echo", "1000000", "")); /* refused without its body */
    expect_answer(&f->peer, 401, NULL);
    expect_end(&f->peer);
    assert_int_equal(f->rig.n_messages, 1);
}

static void test_host_when_listener_is_on_loopback_then_other_names_are_refused(void **state)
{
    static const struct {
        const char *host;
        unsigned status;
    } cases[] = {
        {"localhost", 200},
        {"LocalHost:8602", 200},
        {"127.0.0.1:8602", 200},
        {"127.8.9.10", 200},
        {"[::1]:8602", 200},
        {"[::1]", 200},
        {"", 200},
        {"evil.example", 421},
        {"127.0.0.1.evil.example:8602", 421},
        {"localhost.evil.example", 421},
        {"10.0.0.1", 421},
        {"[::2]:8602", 421},
    };
    struct fixture *f = *state;
    char request[128];

    set_guard(f); /* open routes check the host, too */
    f->rig.loopback = true;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(request, sizeof request, "GET /open HTTP/1.1\r\nHost: %s\r\n\r\n", cases[i].host);
        peer_say(&f->peer, request);
        expect_answer(&f->peer, cases[i].status, cases[i].status == 200 ? "stats" : NULL);
    }
    peer_say(&f->peer, "GET /names/x/y HTTP/1.1\r\nHost: evil.example\r\n\r\n");
    expect_head(&f->peer, 421, "HTTP/1.1 421 Misdirected Request\r\n");
    assert_int_equal(guard.n_visitors, 0);
    peer_say(&f->peer, "GET /open HTTP/1.0\r\n\r\n");
    expect_answer(&f->peer, 200, "stats");
}

static void test_guard_when_16_calls_in_a_row_are_unauthenticated_then_connection_ends(void **state)
{
    struct fixture *f = *state;

    set_guard(f);
    for (unsigned i = 0; i < 15; i++) {
        peer_say(&f->peer, GET("/names/x/y"));
        expect_answer(&f->peer, 401, NULL);
    }
    peer_say(&f->peer, GET("/names/x/y"));
    expect_head(&f->peer, 401, "\r\nConnection: close\r\n");
    expect_end(&f->peer);
}

static void test_guard_when_rules_change_then_forbidden_calls_end(void **state)
{
    struct fixture *f = *state;

    set_guard(f);
    peer_say(&f->peer, AS("sesame", "GET /park"));
    PEER_UNTIL(&f->peer, f->rig.parked != NULL);
    guard.word = "another";
    hps_grpc_loop_recheck(f->rig.grpc_loop);
    expect_head(&f->peer, 403, "\r\nConnection: close\r\n");
    expect_end(&f->peer);
}

/* ---- TLS ------------------------------------------------------------------------------------- */

/* A client with TLS, on the same loop. It reads everything that arrives. */
struct tls_client {
    struct rig *rig;
    struct hps_conn *conn;
    struct hps_buf in;
    bool closed;
};

static void tls_on_ready(void *ctx, unsigned events)
{
    struct tls_client *client = ctx;
    size_t size = 0;
    hps_status status;

    (void)events;
    if (hps_conn_handshake(client->conn, NULL) != HPS_OK) {
        return;
    }
    assert_int_equal(hps_conn_want(client->conn, HPS_LOOP_READ), HPS_OK);
    do {
        assert_int_equal(hps_buf_reserve(&client->in, 65537), HPS_OK);
        status = hps_conn_read(client->conn, client->in.data + client->in.size, 65536, &size);
        client->in.size += status == HPS_OK ? size : 0;
    } while (status == HPS_OK);
    client->closed = status != HPS_AGAIN;
    client->in.data[client->in.size] = '\0';
}

static void tls_say(struct tls_client *client, const void *data, size_t size)
{
    const char *at = data;

    while (size > 0) {
        struct iovec iov = {.iov_base = (void *)(uintptr_t)at, .iov_len = size};
        size_t n = 0;
        if (hps_conn_writev(client->conn, &iov, 1, &n) == HPS_OK) {
            at += n;
            size -= n;
        }
        rig_turn(client->rig);
    }
}

static void test_tls_when_bodies_are_large_then_complete_in_both_directions(void **state)
{
    enum { SIZE = 2 * 1024 * 1024 };
    struct fixture *f = *state;
    struct hps_certs certs;
    struct hps_tls *tls;
    struct tls_client client = {.rig = &f->rig};
    char *bytes = hps_alloc(SIZE);
    char head[128];

    hps_clock_real();
    hps_certs_make(&certs);
    const struct hps_tls_options server = {.server = true,
                                           .cert_file = certs.server_cert,
                                           .key_file = certs.server_key,
                                           .http1 = true};
    const struct hps_tls_options options = {.ca_file = certs.ca, .any_protocol = true};
    assert_non_null(bytes);
    memset(bytes, 'b', SIZE);
    assert_int_equal(hps_tls_new(&server, &f->rig.tls, NULL), HPS_OK);
    assert_int_equal(hps_tls_new(&options, &tls, NULL), HPS_OK);
    hps_buf_init(&client.in, 64 * 1024 * 1024);
    assert_int_equal(hps_conn_connect(f->rig.address, tls, &client.conn, NULL), HPS_OK);
    assert_int_equal(hps_conn_attach(client.conn, f->rig.loop, 0, tls_on_ready, &client), HPS_OK);
    RIG_UNTIL(&f->rig, hps_conn_handshake(client.conn, NULL) == HPS_OK);
    assert_int_equal(hps_conn_want(client.conn, HPS_LOOP_READ), HPS_OK);
    tls_say(&client, POST("/echo", "2097152", ""), strlen(POST("/echo", "2097152", "")));
    tls_say(&client, bytes, SIZE);
    RIG_UNTIL(&f->rig, client.in.size >= SIZE && client.in.data != NULL);
    const char *body = strstr((char *)client.in.data, "\r\n\r\n");
    assert_non_null(body);
    size_t head_size = (size_t)(body + 4 - (char *)client.in.data);
    RIG_UNTIL(&f->rig, client.in.size == head_size + SIZE);
    assert_memory_equal(client.in.data + head_size, bytes, SIZE);
    snprintf(head, sizeof head, "%.60s", (char *)client.in.data);
    assert_non_null(strstr(head, "HTTP/1.1 200 OK\r\n"));
    hps_conn_free(client.conn);
    hps_buf_fini(&client.in);
    hps_free(bytes);
    RIG_UNTIL(&f->rig, f->rig.n_connections <= 1);
    hps_tls_unref(f->rig.tls);
    f->rig.tls = NULL;
    hps_tls_unref(tls);
    hps_certs_remove(&certs);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_connection_when_no_request_arrives_then_closed_as_timeout),
        TEST(test_head_when_it_arrives_slowly_then_closed),
        TEST(test_connection_when_idle_timeout_is_reached_then_closed),
        TEST(test_request_when_it_arrives_complete_then_socket_is_read_once),
        TEST(test_body_when_it_stalls_then_408),
        TEST(test_reply_when_client_does_not_read_then_closed_and_memory_is_freed),
        TEST(test_reply_when_client_reads_too_slowly_then_closed),
        TEST(test_body_when_request_memory_is_used_up_then_refused),
        TEST(test_reply_when_charged_then_next_request_waits),
        TEST(test_calls_when_any_allocation_fails_then_nothing_leaks),
        TEST(test_call_when_client_resets_then_cancelled),
        TEST(test_call_when_client_closes_then_cancelled),
        TEST(test_call_when_client_half_closes_then_answered),
        TEST(test_call_when_client_half_closes_within_the_body_then_not_delivered),
        TEST(test_requests_when_client_half_closes_after_them_then_all_answered),
        TEST(test_drain_when_connections_are_open_then_next_reply_has_connection_close),
        TEST(test_connection_when_aged_then_next_reply_has_connection_close),
        TEST(test_guard_when_set_then_decides_about_all_routes_except_open_ones),
        TEST(test_host_when_listener_is_on_loopback_then_other_names_are_refused),
        TEST(test_guard_when_16_calls_in_a_row_are_unauthenticated_then_connection_ends),
        TEST(test_guard_when_rules_change_then_forbidden_calls_end),
        TEST(test_tls_when_bodies_are_large_then_complete_in_both_directions),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

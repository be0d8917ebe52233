/* SPDX-License-Identifier: Apache-2.0
 *
 * Byte streams, plain and TLS, with both ends on one loop: failing handshakes, bulk transfer in
 * both directions with parts of odd sizes, back-pressure, half-close, truncated streams, and
 * timeouts with a fake clock.
 */
#include "net/conn.h"

#include <netinet/in.h>
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

#include "base/assert.h"
#include "base/clock.h"
#include "net/sock.h"
#include "net/tls.h"
#include "tests/lib/certs.h"
#include "tests/lib/names.h"

#define BULK_BYTES (3u << 20)

static struct hps_certs certs;
static struct hps_tls *server_tls, *client_tls;

struct end {
    struct hps_conn *conn;
    hps_status handshake;
    struct hps_error err;
    unsigned ready; /* events since it was last set to 0 */
    bool free_on_ready;
    /* bulk transfer */
    size_t sent, received, reads_max;
    uint8_t seed;
    uint8_t peer_seed;
    bool broken;
};

struct rig {
    struct hps_loop *loop;
    int listen_fd;
    struct hps_addr addr;
    struct end server, client;
};

static int setup(void **state)
{
    (void)state;
    hps_certs_make(&certs);
    struct hps_tls_options server = {.server = true,
                                     .cert_file = certs.server_cert,
                                     .key_file = certs.server_key,
                                     .ca_file = certs.ca};
    struct hps_tls_options client = {
        .cert_file = certs.client_cert, .key_file = certs.client_key, .ca_file = certs.ca};
    assert_int_equal(hps_tls_new(&server, &server_tls, NULL), HPS_OK);
    assert_int_equal(hps_tls_new(&client, &client_tls, NULL), HPS_OK);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    hps_tls_unref(server_tls);
    hps_tls_unref(client_tls);
    hps_certs_remove(&certs);
    return 0;
}

static void on_ready(void *ctx, unsigned events)
{
    struct end *end = ctx;
    end->ready |= events;
    if (end->free_on_ready) {
        hps_conn_free(end->conn);
        end->conn = NULL;
        return;
    }
    if (end->handshake == HPS_AGAIN) {
        end->handshake = hps_conn_handshake(end->conn, &end->err);
    }
}

static void attach(struct rig *rig, struct end *end, uint64_t timeout_us,
                   void (*ready)(void *ctx, unsigned events))
{
    assert_int_equal(hps_conn_attach(end->conn, rig->loop, timeout_us, ready, end), HPS_OK);
    end->handshake = hps_conn_handshake(end->conn, &end->err);
}

static void rig_listen(struct rig *rig, const char *address)
{
    struct hps_addr addr;
    memset(rig, 0, sizeof(*rig));
    assert_int_equal(hps_loop_new(&rig->loop, NULL), HPS_OK);
    assert_int_equal(hps_addr_parse(address, &addr, NULL), HPS_OK);
    assert_int_equal(hps_sock_listen(&addr, 0600, &rig->listen_fd, NULL), HPS_OK);
    assert_int_equal(hps_sock_local(rig->listen_fd, &rig->addr), HPS_OK);
}

static void rig_connect(struct rig *rig, struct hps_tls *tls)
{
    char text[HPS_ADDR_TEXT_MAX];
    hps_addr_print(&rig->addr, text, sizeof(text));
    assert_int_equal(hps_conn_connect(text, tls, &rig->client.conn, &rig->client.err), HPS_OK);
}

static void rig_accept(struct rig *rig, struct hps_tls *tls)
{
    int fd = -1;
    hps_status status = HPS_AGAIN;
    while (status == HPS_AGAIN) { /* soon, because it is loopback */
        status = hps_sock_accept(rig->listen_fd, &fd);
    }
    assert_int_equal(status, HPS_OK);
    assert_int_equal(hps_conn_new(fd, tls, &rig->server.conn, NULL), HPS_OK);
}

static void rig_handshake(struct rig *rig)
{
    while (rig->server.handshake == HPS_AGAIN || rig->client.handshake == HPS_AGAIN) {
        hps_loop_turn(rig->loop, 1000000);
    }
}

static void rig_open(struct rig *rig, const char *address, bool tls)
{
    rig_listen(rig, address);
    rig_connect(rig, tls ? client_tls : NULL);
    rig_accept(rig, tls ? server_tls : NULL);
    attach(rig, &rig->client, 0, on_ready);
    attach(rig, &rig->server, 0, on_ready);
    rig_handshake(rig);
    assert_int_equal(rig->server.handshake, HPS_OK);
    assert_int_equal(rig->client.handshake, HPS_OK);
    assert_int_equal(hps_conn_handshake(rig->client.conn, NULL), HPS_OK);
    assert_int_equal(hps_conn_want(rig->client.conn, HPS_LOOP_READ), HPS_OK);
    assert_int_equal(hps_conn_want(rig->server.conn, HPS_LOOP_READ), HPS_OK);
}

static void rig_close(struct rig *rig)
{
    hps_conn_free(rig->client.conn);
    hps_conn_free(rig->server.conn);
    close(rig->listen_fd);
    if (rig->addr.is_unix) {
        unlink(rig->addr.path);
    }
    hps_loop_free(rig->loop);
}

static hps_status write_text(struct end *end, const char *text)
{
    struct iovec iov = {.iov_base = (void *)(uintptr_t)text, .iov_len = strlen(text)};
    size_t size = 0;
    return hps_conn_writev(end->conn, &iov, 1, &size);
}

/* Reads when bytes have arrived, and runs the loop until then. */
static hps_status read_some(struct rig *rig, struct end *end, char *text, size_t capacity)
{
    size_t size = 0;
    hps_status status;
    while ((status = hps_conn_read(end->conn, text, capacity - 1, &size)) == HPS_AGAIN) {
        hps_loop_turn(rig->loop, 1000000);
    }
    text[size] = '\0';
    return status;
}

/* ---- plain and TLS --------------------------------------------------------------------------- */

static void check_small(bool tls)
{
    struct rig rig;
    char text[64];
    rig_open(&rig, "127.0.0.1:0", tls);
    assert_int_equal(write_text(&rig.client, "ping"), HPS_OK);
    assert_int_equal(read_some(&rig, &rig.server, text, sizeof(text)), HPS_OK);
    assert_string_equal(text, "ping");
    hps_conn_shutdown_write(rig.client.conn);
    assert_int_equal(read_some(&rig, &rig.server, text, sizeof(text)), HPS_CLOSED);
    assert_int_equal(write_text(&rig.server, "pong"), HPS_OK); /* the other direction is open */
    assert_int_equal(read_some(&rig, &rig.client, text, sizeof(text)), HPS_OK);
    assert_string_equal(text, "pong");
    assert_int_equal(hps_conn_is_tls(rig.server.conn), tls);
    assert_false(hps_conn_is_unix(rig.server.conn));
    assert_non_null(strstr(hps_conn_peer(rig.server.conn), "127.0.0.1:"));
    uid_t uid;
    assert_false(hps_conn_peer_uid(rig.server.conn, &uid));
    if (tls) {
        assert_string_equal(hps_conn_certificate_name(rig.server.conn, 0), "CN=trainer");
    } else {
        assert_null(hps_conn_certificate_name(rig.server.conn, 0));
    }
    rig_close(&rig);
}

static void test_conn_when_plain_then_bytes_half_close_and_peer_are_reported(void **state)
{
    (void)state;
    check_small(false);
}

static void test_conn_when_tls_then_bytes_half_close_and_peer_are_reported(void **state)
{
    (void)state;
    check_small(true);
}

static uint8_t byte_at(uint8_t seed, size_t at)
{
    return (uint8_t)(seed + at * 7 + (at >> 12));
}

/* Sends parts of 0 to 40 KB, each from another offset. */
static bool send_bulk(struct end *end)
{
    static uint8_t bytes[8][40000];
    struct iovec iov[8];
    while (end->sent < BULK_BYTES) {
        size_t at = end->sent;
        for (unsigned i = 0; i < 8; i++) {
            size_t size = (at * 31 + i * 997) % sizeof(bytes[0]);
            size = i % 3 == 1 ? 0 : size + (i == 0);
            size = size < BULK_BYTES - at ? size : BULK_BYTES - at;
            for (size_t j = 0; j < size; j++) {
                bytes[i][j] = byte_at(end->seed, at + j);
            }
            iov[i] = (struct iovec){bytes[i], size};
            at += size;
        }
        size_t size = 0;
        hps_status status = hps_conn_writev(end->conn, iov, 8, &size);
        if (status != HPS_OK) {
            assert_int_equal(status, HPS_AGAIN);
            return false;
        }
        assert_true(size > 0);
        end->sent += size;
    }
    return true;
}

static void on_bulk(void *ctx, unsigned events)
{
    struct end *end = ctx;
    uint8_t bytes[30000];
    if (end->handshake == HPS_AGAIN) {
        end->handshake = hps_conn_handshake(end->conn, &end->err);
        return;
    }
    if (events & HPS_LOOP_WRITE) {
        unsigned want = send_bulk(end) ? HPS_LOOP_READ : HPS_LOOP_READ | HPS_LOOP_WRITE;
        assert_int_equal(hps_conn_want(end->conn, want), HPS_OK);
    }
    if (events & HPS_LOOP_READ) {
        size_t size = 0, first = end->reads_max / 3;
        const struct iovec iov[] = {{bytes, first}, {bytes + first, end->reads_max - first}};
        hps_status status = hps_conn_readv(end->conn, iov, 2, &size);
        assert_true(status == HPS_OK || status == HPS_AGAIN);
        for (size_t i = 0; status == HPS_OK && i < size; i++) {
            end->broken |= bytes[i] != byte_at(end->peer_seed, end->received + i);
        }
        end->received += size;
    }
}

static void check_bulk(const char *address, bool tls)
{
    struct rig rig;
    rig_listen(&rig, address);
    rig_connect(&rig, tls ? client_tls : NULL);
    rig_accept(&rig, tls ? server_tls : NULL);
    attach(&rig, &rig.client, 0, on_bulk);
    attach(&rig, &rig.server, 0, on_bulk);
    rig_handshake(&rig);
    rig.client.seed = rig.server.peer_seed = 3;
    rig.server.seed = rig.client.peer_seed = 101;
    rig.client.reads_max = 30000;
    rig.server.reads_max = 777; /* leaves parts of records unread */
    unsigned both = HPS_LOOP_READ | HPS_LOOP_WRITE;
    assert_int_equal(hps_conn_want(rig.client.conn, both), HPS_OK);
    assert_int_equal(hps_conn_want(rig.server.conn, both), HPS_OK);
    while (rig.client.received < BULK_BYTES || rig.server.received < BULK_BYTES) {
        hps_loop_turn(rig.loop, 1000000);
    }
    assert_int_equal(rig.client.received, BULK_BYTES);
    assert_int_equal(rig.server.received, BULK_BYTES);
    assert_false(rig.client.broken || rig.server.broken);
    rig_close(&rig);
}

static void test_conn_when_both_ends_send_bulk_then_all_bytes_arrive_in_order(void **state)
{
    (void)state;
    check_bulk("127.0.0.1:0", false);
    check_bulk("127.0.0.1:0", true);
}

static void test_writev_when_peer_does_not_read_then_again_and_writable_later(void **state)
{
    (void)state;
    for (int tls = 0; tls < 2; tls++) {
        struct rig rig;
        char text[20000];
        size_t received = 0;
        rig_open(&rig, "127.0.0.1:0", tls);
        while (write_text(&rig.client, "0123456789") == HPS_OK) {
            rig.client.sent += 10;
        }
        assert_int_equal(write_text(&rig.client, "0123456789"), HPS_AGAIN);
        assert_int_equal(hps_conn_want(rig.client.conn, HPS_LOOP_WRITE), HPS_OK);
        rig.client.ready = 0;
        while (!(rig.client.ready & HPS_LOOP_WRITE)) {
            size_t size = 0;
            if (hps_conn_read(rig.server.conn, text, sizeof(text), &size) == HPS_OK) {
                received += size;
            }
            hps_loop_turn(rig.loop, 0);
        }
        assert_true(received > 0);
        assert_true(received <= rig.client.sent);
        rig_close(&rig);
    }
}

static void test_conn_when_resting_then_other_events_alone_are_reported_until_it_wants(void **state)
{
    (void)state;
    for (int tls = 0; tls < 2; tls++) {
        struct rig rig;
        rig_open(&rig, "127.0.0.1:0", tls);
        unsigned both = HPS_LOOP_READ | HPS_LOOP_WRITE;
        assert_int_equal(hps_conn_want(rig.client.conn, both), HPS_OK);
        hps_conn_rest(rig.client.conn, HPS_LOOP_WRITE);
        rig.client.ready = 0;
        assert_int_equal(write_text(&rig.server, "text"), HPS_OK);
        while (rig.client.ready == 0) {
            hps_loop_turn(rig.loop, 1000000);
        }
        assert_int_equal(rig.client.ready, HPS_LOOP_READ);
        hps_conn_rest(rig.client.conn, HPS_LOOP_READ);
        rig.client.ready = 0;
        hps_loop_turn(rig.loop, 0);
        assert_int_equal(rig.client.ready, 0);
        assert_int_equal(hps_conn_want(rig.client.conn, both), HPS_OK);
        while (rig.client.ready != both) {
            hps_loop_turn(rig.loop, 1000000);
        }
        rig_close(&rig);
    }
}

/* ---- ends of streams ------------------------------------------------------------------------- */

static void test_read_when_tls_ends_without_close_notify_then_io(void **state)
{
    (void)state;
    struct rig rig;
    char text[16];
    rig_open(&rig, "127.0.0.1:0", true);
    /* The socket ends without a close_notify. An attacker can cause this, so it must not look like
     * a regular end. */
    int fd = dup(STDERR_FILENO);
    close(fd); /* the next descriptor is `fd`: find the client's by its peer */
    for (int i = 3; i < fd; i++) {
        struct hps_addr local;
        char peer[HPS_ADDR_TEXT_MAX];
        if (hps_sock_local(i, &local) == HPS_OK && !local.is_unix &&
            strcmp(hps_addr_print(&local, peer, sizeof(peer)), hps_conn_peer(rig.server.conn)) ==
                0) {
            assert_int_equal(shutdown(i, SHUT_WR), 0);
        }
    }
    assert_int_equal(read_some(&rig, &rig.server, text, sizeof(text)), HPS_IO);
    rig_close(&rig);
}

static void test_free_when_tls_then_peer_reads_close_notify(void **state)
{
    (void)state;
    struct rig rig;
    char text[16];
    rig_open(&rig, "127.0.0.1:0", true);
    hps_conn_free(rig.client.conn);
    rig.client.conn = NULL;
    assert_int_equal(read_some(&rig, &rig.server, text, sizeof(text)), HPS_CLOSED);
    rig_close(&rig);
}

static void test_writev_when_peer_has_closed_then_closed_without_signal(void **state)
{
    (void)state;
    for (int tls = 0; tls < 2; tls++) {
        struct rig rig;
        rig_open(&rig, "127.0.0.1:0", tls);
        assert_int_equal(write_text(&rig.server, "unread bytes make the close a reset"), HPS_OK);
        hps_conn_free(rig.client.conn);
        rig.client.conn = NULL;
        hps_status status;
        do {
            status = write_text(&rig.server, "x");
        } while (status == HPS_OK);
        assert_true(status == HPS_CLOSED || status == HPS_IO);
        assert_true(tls || status == HPS_CLOSED);
        rig_close(&rig);
    }
}

static void test_free_when_within_on_ready_then_allowed(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, "127.0.0.1:0", true);
    rig.server.free_on_ready = true;
    assert_int_equal(write_text(&rig.client, "x"), HPS_OK);
    while (rig.server.conn) {
        hps_loop_turn(rig.loop, 1000000);
    }
    rig_close(&rig);
    hps_conn_free(NULL);
}

/* ---- bytes in the TLS layer ------------------------------------------------------------------ */

static void test_want_when_bytes_are_decrypted_then_ready_without_socket_event(void **state)
{
    (void)state;
    struct rig rig;
    char byte;
    size_t size = 0;
    rig_open(&rig, "127.0.0.1:0", true);
    assert_int_equal(write_text(&rig.client, "abc"), HPS_OK);
    char text[2];
    assert_int_equal(read_some(&rig, &rig.server, text, sizeof(text)), HPS_OK);
    rig.server.ready = 0;
    hps_loop_turn(rig.loop, 1000000);
    assert_int_equal(rig.server.ready, HPS_LOOP_READ);
    assert_int_equal(hps_conn_want(rig.server.conn, 0), HPS_OK);
    hps_loop_turn(rig.loop, 0);
    rig.server.ready = 0;
    hps_loop_turn(rig.loop, 0);
    assert_int_equal(rig.server.ready, 0); /* not wanted, so not reported */
    assert_int_equal(hps_conn_want(rig.server.conn, HPS_LOOP_READ), HPS_OK);
    hps_loop_turn(rig.loop, 1000000);
    assert_int_equal(rig.server.ready, HPS_LOOP_READ);
    assert_int_equal(hps_conn_read(rig.server.conn, &byte, 1, &size), HPS_OK);
    assert_int_equal(hps_conn_read(rig.server.conn, &byte, 1, &size), HPS_OK);
    assert_int_equal(byte, 'c');
    assert_int_equal(hps_conn_read(rig.server.conn, &byte, 1, &size), HPS_AGAIN);
    rig_close(&rig);
}

/* ---- failing handshakes ---------------------------------------------------------------------- */

/* An address that refuses connections: its socket is bound, but does not listen. */
static void rig_refuse(struct rig *rig)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    memset(rig, 0, sizeof(*rig));
    assert_int_equal(hps_loop_new(&rig->loop, NULL), HPS_OK);
    rig->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(rig->listen_fd >= 0);
    assert_int_equal(bind(rig->listen_fd, (struct sockaddr *)&to, sizeof(to)), 0);
    assert_int_equal(hps_sock_local(rig->listen_fd, &rig->addr), HPS_OK);
}

static void test_handshake_when_refused_then_unavailable_with_the_address(void **state)
{
    (void)state;
    struct rig rig;
    char text[HPS_ADDR_TEXT_MAX];
    rig_refuse(&rig);
    hps_addr_print(&rig.addr, text, sizeof(text));
    hps_status status = hps_conn_connect(text, NULL, &rig.client.conn, &rig.client.err);
    if (status == HPS_OK) {
        attach(&rig, &rig.client, 0, on_ready);
        while (rig.client.handshake == HPS_AGAIN) {
            hps_loop_turn(rig.loop, 1000000);
        }
        status = rig.client.handshake;
        assert_int_equal(hps_conn_handshake(rig.client.conn, NULL), status);
    }
    assert_int_equal(status, HPS_UNAVAILABLE);
    assert_non_null(strstr(rig.client.err.text, text));
    rig_close(&rig);
}

static void hook(const char *expr, const char *file, int line)
{
    mock_assert(0, expr, file, line);
}

static void expect_unusable(struct hps_conn *conn)
{
    char byte;
    size_t size;
    struct iovec iov = {.iov_base = &byte, .iov_len = 1};

    hps_assert_hook(hook);
    expect_assert_failure(hps_ignore(hps_conn_want(conn, HPS_LOOP_READ)));
    expect_assert_failure(hps_ignore(hps_conn_readv(conn, &iov, 1, &size)));
    expect_assert_failure(hps_ignore(hps_conn_writev(conn, &iov, 1, &size)));
    hps_assert_hook(NULL);
}

static void test_conn_when_connecting_or_failed_then_reads_and_writes_assert(void **state)
{
    (void)state;
    struct rig rig;
    char text[HPS_ADDR_TEXT_MAX];
    rig_refuse(&rig);
    assert_int_equal(hps_conn_connect(hps_addr_print(&rig.addr, text, sizeof(text)), NULL,
                                      &rig.client.conn, NULL),
                     HPS_OK);
    attach(&rig, &rig.client, 0, on_ready);
    if (rig.client.handshake == HPS_AGAIN) {
        expect_unusable(rig.client.conn); /* connecting */
    }
    while (rig.client.handshake == HPS_AGAIN) {
        hps_loop_turn(rig.loop, 1000000);
    }
    assert_int_equal(rig.client.handshake, HPS_UNAVAILABLE);
    expect_unusable(rig.client.conn); /* failed */
    rig_close(&rig);
}

/* The first address of the name refuses connections. */
static void test_handshake_when_an_address_refuses_then_next_address_is_tried(void **state)
{
    (void)state;
    atomic_store(&names_two, true);
    for (unsigned tls = 0; tls < 2; tls++) {
        struct rig rig;
        char text[64];
        rig_listen(&rig, "127.0.0.1:0");
        snprintf(text, sizeof(text), "localhost:%u", rig.addr.port);
        assert_int_equal(hps_conn_connect(text, tls ? client_tls : NULL, &rig.client.conn, NULL),
                         HPS_OK);
        attach(&rig, &rig.client, 0, on_ready);
        int fd = -1;
        while (hps_sock_accept(rig.listen_fd, &fd) == HPS_AGAIN) {
            assert_true(rig.client.handshake == HPS_AGAIN || rig.client.handshake == HPS_OK);
            hps_loop_turn(rig.loop, 1000);
        }
        assert_int_equal(hps_conn_new(fd, tls ? server_tls : NULL, &rig.server.conn, NULL), HPS_OK);
        attach(&rig, &rig.server, 0, on_ready);
        rig_handshake(&rig);
        assert_int_equal(rig.client.handshake, HPS_OK);
        assert_int_equal(hps_conn_want(rig.client.conn, HPS_LOOP_READ), HPS_OK);
        assert_int_equal(hps_conn_want(rig.server.conn, HPS_LOOP_READ), HPS_OK);
        char word[8];
        assert_int_equal(write_text(&rig.client, "there"), HPS_OK);
        assert_int_equal(read_some(&rig, &rig.server, word, sizeof(word)), HPS_OK);
        assert_string_equal(word, "there");
        rig_close(&rig);
    }
    atomic_store(&names_two, false);
}

static void test_handshake_when_all_addresses_refuse_then_unavailable_with_the_name(void **state)
{
    (void)state;
    struct rig rig;
    char text[64];
    rig_refuse(&rig);
    snprintf(text, sizeof(text), "localhost:%u", rig.addr.port);
    atomic_store(&names_two, true);
    hps_status status = hps_conn_connect(text, NULL, &rig.client.conn, &rig.client.err);
    atomic_store(&names_two, false);
    if (status == HPS_OK) {
        attach(&rig, &rig.client, 0, on_ready);
        while (rig.client.handshake == HPS_AGAIN) {
            hps_loop_turn(rig.loop, 1000000);
        }
        status = rig.client.handshake;
    }
    assert_int_equal(status, HPS_UNAVAILABLE);
    assert_non_null(strstr(rig.client.err.text, text));
    assert_non_null(strstr(rig.client.err.text, "refused"));
    rig_close(&rig);
}

static void test_handshake_when_peer_is_silent_then_deadline(void **state)
{
    (void)state;
    struct rig rig;
    hps_clock_fake(1000000);
    rig_listen(&rig, "127.0.0.1:0");
    rig_connect(&rig, client_tls);
    rig_accept(&rig, server_tls);
    attach(&rig, &rig.server, 5000, on_ready);
    hps_loop_turn(rig.loop, 0);
    assert_int_equal(rig.server.handshake, HPS_AGAIN);
    hps_clock_advance(5000);
    hps_loop_turn(rig.loop, 0);
    assert_int_equal(rig.server.handshake, HPS_DEADLINE);
    assert_non_null(strstr(rig.server.err.text, "timed out"));
    rig_close(&rig);
    hps_clock_real();
}

static void test_handshake_when_peer_speaks_no_tls_then_error_says_so(void **state)
{
    (void)state;
    struct rig rig;
    rig_listen(&rig, "127.0.0.1:0");
    rig_connect(&rig, NULL);
    rig_accept(&rig, server_tls);
    attach(&rig, &rig.client, 0, on_ready);
    attach(&rig, &rig.server, 0, on_ready);
    while (rig.client.handshake == HPS_AGAIN) {
        hps_loop_turn(rig.loop, 1000000);
    }
    assert_int_equal(write_text(&rig.client, "GET / HTTP/1.1\r\n\r\n"), HPS_OK);
    while (rig.server.handshake == HPS_AGAIN) {
        hps_loop_turn(rig.loop, 1000000);
    }
    assert_int_equal(rig.server.handshake, HPS_UNAVAILABLE);
    assert_non_null(strstr(rig.server.err.text, hps_conn_peer(rig.server.conn)));
    rig_close(&rig);
}

static void test_connect_when_address_is_malformed_then_invalid(void **state)
{
    (void)state;
    struct hps_conn *conn = NULL;
    struct hps_error err = {0};
    assert_int_equal(hps_conn_connect("nonsense", NULL, &conn, &err), HPS_INVALID);
    assert_int_equal(hps_conn_connect("unix:/no/such/socket", NULL, &conn, &err), HPS_UNAVAILABLE);
    assert_non_null(strstr(err.text, "/no/such/socket"));
    assert_null(conn);
}

static void test_conn_when_unix_then_peer_uid_and_pid_are_known(void **state)
{
    (void)state;
    struct rig rig;
    char address[128];
    char text[16];
    uid_t uid = (uid_t)-1;
    snprintf(address, sizeof(address), "unix:%.90s/c.sock", certs.dir);
    rig_open(&rig, address, false);
    assert_true(hps_conn_is_unix(rig.server.conn));
    assert_true(hps_conn_peer_uid(rig.server.conn, &uid));
    assert_int_equal(uid, geteuid());
    assert_non_null(strstr(hps_conn_peer(rig.server.conn), "unix:pid="));
    assert_string_equal(hps_conn_peer(rig.client.conn), address);
    assert_int_equal(write_text(&rig.client, "ping"), HPS_OK);
    assert_int_equal(read_some(&rig, &rig.server, text, sizeof(text)), HPS_OK);
    rig_close(&rig);
    check_bulk(address, false);
}

/* Connects to the rig's listener from this loopback address. */
static uint64_t client_from(struct rig *rig, in_addr_t address)
{
    struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr = {htonl(address)}};
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons(rig->addr.port),
                             .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&from, sizeof(from)), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    rig_accept(rig, NULL);
    uint64_t client = hps_conn_client(rig->server.conn);
    hps_conn_free(rig->server.conn);
    rig->server.conn = NULL;
    close(fd);
    return client;
}

static void test_client_when_address_or_user_is_equal_then_number_is_equal(void **state)
{
    (void)state;
    struct rig tcp;
    struct rig other[2];
    char address[128];
    rig_listen(&tcp, "127.0.0.1:0");
    uint64_t client = client_from(&tcp, INADDR_LOOPBACK);
    assert_true(client_from(&tcp, INADDR_LOOPBACK) == client); /* from another port */
    assert_true(client_from(&tcp, INADDR_LOOPBACK + 1) != client);
    for (unsigned i = 0; i < 2; i++) {
        snprintf(address, sizeof(address), "unix:%.90s/%u.sock", certs.dir, i);
        rig_open(&other[i], address, false);
        assert_true(hps_conn_client(other[i].server.conn) != client);
    }
    assert_true(hps_conn_client(other[0].server.conn) == hps_conn_client(other[1].server.conn));
    rig_close(&tcp);
    rig_close(&other[0]);
    rig_close(&other[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conn_when_plain_then_bytes_half_close_and_peer_are_reported),
        cmocka_unit_test(test_conn_when_tls_then_bytes_half_close_and_peer_are_reported),
        cmocka_unit_test(test_conn_when_both_ends_send_bulk_then_all_bytes_arrive_in_order),
        cmocka_unit_test(test_writev_when_peer_does_not_read_then_again_and_writable_later),
        cmocka_unit_test(
            test_conn_when_resting_then_other_events_alone_are_reported_until_it_wants),
        cmocka_unit_test(test_read_when_tls_ends_without_close_notify_then_io),
        cmocka_unit_test(test_free_when_tls_then_peer_reads_close_notify),
        cmocka_unit_test(test_writev_when_peer_has_closed_then_closed_without_signal),
        cmocka_unit_test(test_free_when_within_on_ready_then_allowed),
        cmocka_unit_test(test_want_when_bytes_are_decrypted_then_ready_without_socket_event),
        cmocka_unit_test(test_handshake_when_refused_then_unavailable_with_the_address),
        cmocka_unit_test(test_conn_when_connecting_or_failed_then_reads_and_writes_assert),
        cmocka_unit_test(test_handshake_when_an_address_refuses_then_next_address_is_tried),
        cmocka_unit_test(test_handshake_when_all_addresses_refuse_then_unavailable_with_the_name),
        cmocka_unit_test(test_handshake_when_peer_is_silent_then_deadline),
        cmocka_unit_test(test_handshake_when_peer_speaks_no_tls_then_error_says_so),
        cmocka_unit_test(test_connect_when_address_is_malformed_then_invalid),
        cmocka_unit_test(test_conn_when_unix_then_peer_uid_and_pid_are_known),
        cmocka_unit_test(test_client_when_address_or_user_is_equal_then_number_is_equal),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Large DATA frames are received into the buffer of the owner of the stream. Each stream gets
 * exactly its own bytes, with any frames of the server. The server is written by hand. Test thread.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "net/http2.h"

enum {
    DATA = 0,
    HEADERS = 1,
    SETTINGS = 4,
    ACK = 1,
    END_HEADERS = 4,
    PADDED = 8,
    BODY_BYTES = 4 << 20,
    BIG = 256 * 1024,
    N_STREAMS = 2,
};

struct body {
    struct hps_http_stream *stream; /* NULL: closed */
    uint8_t bytes[BODY_BYTES];
    size_t size;
    size_t in_place; /* of `size` */
};

struct fixture {
    struct hps_loop *loop;
    struct hps_http2_shared *shared;
    struct hps_http *http;
    int server; /* the other end of the socket */
    bool ready;
    bool no_buffer;
    bool held;                     /* do not run the client while bytes are sent */
    struct body bodies[N_STREAMS]; /* of streams 1 and 3 */
};

static uint8_t byte_at(unsigned stream, size_t at)
{
    return (uint8_t)(at * 7 + at / 251 + stream);
}

static void on_ready(void *ctx)
{
    ((struct fixture *)ctx)->ready = true;
}

static uint8_t *on_buffer(void *ctx, struct hps_http_stream *stream, size_t size,
                          size_t *out_capacity)
{
    struct fixture *f = ctx;
    struct body *body = stream->user;

    if (f->no_buffer) {
        return NULL;
    }
    assert_true(size > 0);
    *out_capacity = size;
    return body->bytes + body->size;
}

static void on_data(void *ctx, struct hps_http_stream *stream, const uint8_t *data, size_t size)
{
    struct fixture *f = ctx;
    struct body *body = stream->user;

    for (unsigned i = 0; i < N_STREAMS; i++) { /* another owner may free its buffer at any time */
        const struct body *other = &f->bodies[i];
        assert_true(other == body || data < other->bytes || data >= other->bytes + BODY_BYTES);
    }
    hps_http_consume(stream, size);
    assert_true(size <= BODY_BYTES - body->size);
    if (data == body->bytes + body->size) {
        body->in_place += size;
    } else {
        memcpy(body->bytes + body->size, data, size);
    }
    body->size += size;
}

static void on_stream_closed(void *ctx, struct hps_http_stream *stream, uint32_t error)
{
    struct body *body = stream->user;

    (void)ctx;
    (void)error;
    body->stream = NULL;
}

static void on_closed(void *ctx, const struct hps_error *why)
{
    struct fixture *f = ctx;

    (void)why;
    f->http = NULL;
}

static void pump(struct fixture *f)
{
    for (int i = 0; i < 4; i++) {
        uint8_t ignored[4096];
        hps_loop_turn(f->loop, 0);
        while (recv(f->server, ignored, sizeof(ignored), MSG_DONTWAIT) > 0) {
        }
    }
}

static void send_bytes(struct fixture *f, const uint8_t *bytes, size_t size)
{
    while (size > 0) {
        ssize_t n = send(f->server, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL);
        assert_true(n > 0 || errno == EAGAIN);
        if (n > 0) {
            bytes += n;
            size -= (size_t)n;
        }
        if (!f->held) {
            pump(f);
        }
    }
}

static void send_head(struct fixture *f, uint8_t type, uint8_t flags, uint32_t stream, size_t size)
{
    const uint8_t head[9] = {
        (uint8_t)(size >> 16), (uint8_t)(size >> 8), (uint8_t)size, type, flags, 0, 0, 0,
        (uint8_t)stream};
    send_bytes(f, head, sizeof(head));
}

/* Sends bytes of a stream's body, from offset `at` on. */
static void send_body(struct fixture *f, unsigned stream, size_t at, size_t size)
{
    static uint8_t bytes[BIG];

    assert_true(size <= sizeof(bytes));
    for (size_t i = 0; i < size; i++) {
        bytes[i] = byte_at(stream, at + i);
    }
    send_bytes(f, bytes, size);
}

static void send_frame(struct fixture *f, unsigned stream, size_t at, size_t size)
{
    send_head(f, DATA, 0, stream, size);
    send_body(f, stream, at, size);
}

static void expect_body(const struct fixture *f, unsigned stream, size_t size)
{
    const struct body *body = &f->bodies[stream / 2];
    size_t n_bad = 0;

    assert_int_equal(body->size, size);
    for (size_t i = 0; i < size; i++) {
        n_bad += body->bytes[i] != byte_at(stream, i);
    }
    assert_int_equal(n_bad, 0);
}

static int setup(void **state)
{
    static const struct hps_http_events events = {
        .on_ready = on_ready,
        .on_data = on_data,
        .on_buffer = on_buffer,
        .on_stream_closed = on_stream_closed,
        .on_closed = on_closed,
    };
    static const struct hps_http2_options options = {
        .window_bytes = 16 << 20,
        .connection_window_bytes = 16 << 20,
        .frame_bytes_max = 1 << 20,
        .header_bytes_max = 1 << 16,
        .header_fields_max = 100,
    };
    static const struct hps_http_field fields[] = {
        {":method", 7, "POST", 4}, {":scheme", 7, "http", 4}, {":path", 5, "/", 1}};
    static struct fixture f;
    struct hps_conn *conn;
    struct hps_error err;
    int fds[2];

    memset(&f, 0, sizeof(f));
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    f.server = fds[1];
    int sndbuf = 1 << 20;
    (void)setsockopt(f.server, SOL_SOCKET, SO_SNDBUF, &sndbuf, sizeof(sndbuf));
    assert_int_equal(hps_loop_new(&f.loop, &err), HPS_OK);
    f.shared = hps_http2_shared_new(f.loop);
    assert_non_null(f.shared);
    assert_int_equal(hps_conn_new(fds[0], NULL, &conn, &err), HPS_OK);
    assert_int_equal(hps_http2_new(f.shared, conn, &options, &events, &f, &f.http, &err), HPS_OK);
    while (!f.ready) {
        pump(&f);
    }
    for (unsigned i = 0; i < N_STREAMS; i++) {
        struct body *body = &f.bodies[i];
        assert_int_equal(hps_http2_request(f.http, fields, 3, body, &body->stream), HPS_OK);
        hps_http_finish(body->stream);
    }
    send_head(&f, SETTINGS, 0, 0, 0);
    send_head(&f, SETTINGS, ACK, 0, 0); /* allows large frames */
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    hps_http_free(f->http);
    hps_http2_shared_free(f->shared);
    hps_loop_free(f->loop);
    close(f->server);
    return 0;
}

/* Sends HEADERS with ":status: 200", and with content-length unless `length` is NULL. */
static void answer(struct fixture *f, uint32_t stream, const char *length)
{
    uint8_t block[16] = {0x88, 0x0f, 0x0d};
    size_t size = 1;

    if (length != NULL) {
        block[3] = (uint8_t)strlen(length);
        memcpy(block + 4, length, strlen(length));
        size = 4 + strlen(length);
    }
    send_head(f, HEADERS, END_HEADERS, stream, size);
    send_bytes(f, block, size);
}

static void test_data_when_frames_are_large_then_received_in_place(void **state)
{
    struct fixture *f = *state;
    size_t at[4] = {0};

    answer(f, 1, NULL);
    answer(f, 3, NULL);
    for (int i = 0; i < 4; i++) { /* alternately, as hpsd does */
        for (unsigned stream = 1; stream <= 3; stream += 2) {
            send_frame(f, stream, at[stream], BIG);
            at[stream] += BIG;
        }
    }
    expect_body(f, 1, 4 * BIG);
    expect_body(f, 3, 4 * BIG);
    assert_true(f->bodies[0].in_place > 4 * BIG / 2);
    assert_true(f->bodies[1].in_place > 4 * BIG / 2);
}

static void test_data_when_owner_has_no_buffer_then_delivered(void **state)
{
    struct fixture *f = *state;

    f->no_buffer = true;
    answer(f, 1, NULL);
    send_frame(f, 1, 0, BIG);
    expect_body(f, 1, BIG);
    assert_int_equal(f->bodies[0].in_place, 0);
}

static void test_data_when_padded_then_padding_is_not_delivered(void **state)
{
    static const uint8_t padding[200];
    static const uint8_t pad_size = sizeof(padding);
    struct fixture *f = *state;

    answer(f, 1, NULL);
    for (size_t at = 0; at < 4 * BIG; at += BIG) {
        send_head(f, DATA, PADDED, 1, 1 + BIG + sizeof(padding));
        send_bytes(f, &pad_size, 1);
        send_body(f, 1, at, BIG);
        send_bytes(f, padding, sizeof(padding));
    }
    send_frame(f, 1, 4 * BIG, BIG);
    expect_body(f, 1, 5 * BIG);
}

static void test_data_when_reset_within_a_frame_then_other_streams_are_intact(void **state)
{
    struct fixture *f = *state;

    answer(f, 1, NULL);
    answer(f, 3, NULL);
    send_head(f, DATA, 0, 1, BIG);
    send_body(f, 1, 0, BIG / 2);
    expect_body(f, 1, BIG / 2);
    hps_http_reset(f->bodies[0].stream, HPS_HTTP2_CANCEL);
    send_body(f, 1, BIG / 2, BIG / 2);
    for (size_t at = 0; at < 4 * BIG; at += BIG) {
        send_frame(f, 3, at, BIG);
    }
    expect_body(f, 3, 4 * BIG);
    assert_null(f->bodies[0].stream);
}

/* nghttp2 stops in the middle of this frame, because it is too long, and continues with the next
 * frame. At that moment the client does not know how much of the first frame is left. */
static void test_data_when_longer_than_content_length_then_other_streams_are_intact(void **state)
{
    enum { FIRST = 128 * 1024, SECOND = 32 * 1024 };
    struct fixture *f = *state;

    answer(f, 1, "20000");
    answer(f, 3, NULL);
    f->held = true;
    send_frame(f, 1, 0, FIRST);
    send_frame(f, 3, 0, SECOND);
    f->held = false;
    send_frame(f, 3, SECOND, BIG);
    assert_true(f->bodies[0].size <= 20000);
    assert_null(f->bodies[0].stream);
    expect_body(f, 3, SECOND + BIG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(test_data_when_frames_are_large_then_received_in_place),
        TEST(test_data_when_owner_has_no_buffer_then_delivered),
        TEST(test_data_when_padded_then_padding_is_not_delivered),
        TEST(test_data_when_reset_within_a_frame_then_other_streams_are_intact),
        TEST(test_data_when_longer_than_content_length_then_other_streams_are_intact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

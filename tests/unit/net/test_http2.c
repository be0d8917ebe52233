/* SPDX-License-Identifier: Apache-2.0
 *
 * Hostile frames to HTTP/2 connections of a server. In every case the server disconnects or limits
 * the attacker, and the call of another connection succeeds. Test thread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"
#include "net/http.h"
#include "tests/lib/grpc_rig.h"

enum { DATA, HEADERS, PRIORITY, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION };
enum { END_STREAM = 1, ACK = 1, END_HEADERS = 4 };

struct fixture {
    struct rig rig;
    struct wire wire;
    struct hps_grpc_channel *other; /* a client that must not be affected */
};

static int setup(void **state)
{
    static struct fixture f;

    rig_open(&f.rig, &rig_limits);
    f.other = rig_channel(&f.rig);
    wire_open(&f.wire, &f.rig);
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    struct reply reply;

    reply_init(&reply);
    assert_int_equal(rig_call(&f->rig, f->other, "/t.T/Echo", "fine", 4, &reply), 0);
    assert_int_equal(reply.data.size, 4);
    reply_fini(&reply);
    hps_grpc_channel_free(f->other);
    wire_close(&f->wire);
    rig_close(&f->rig);
    return 0;
}

/* The server has sent GOAWAY with this error, and has closed the connection. */
static void expect_goaway(struct wire *wire, uint8_t error)
{
    const uint8_t *payload;
    size_t size;

    WIRE_UNTIL(wire, wire->closed);
    wire_pump(wire); /* after a failed send the GOAWAY may still be unread */
    assert_true(wire_find(wire, GOAWAY, 0, &payload, &size));
    assert_true(size >= 8);
    assert_int_equal(payload[7], error);
}

/* Checks that the log has `text`, and restores the log to stderr. */
static void expect_logged(int log_fd, const char *text)
{
    char log[4096];
    ssize_t size = pread(log_fd, log, sizeof log, 0);

    hps_log_setup(HPS_LOG_INFO, HPS_LOG_LOGFMT, STDERR_FILENO);
    close(log_fd);
    assert_true(size > 0);
    assert_non_null(memmem(log, (size_t)size, text, strlen(text)));
}

static int log_to_memory(void)
{
    int fd = memfd_create("log", MFD_CLOEXEC);

    assert_true(fd >= 0);
    hps_log_setup(HPS_LOG_INFO, HPS_LOG_LOGFMT, fd);
    return fd;
}

static void test_preface_when_it_is_http1_then_closed_and_logged(void **state)
{
    struct fixture *f = *state;
    int log_fd = log_to_memory();
    struct wire wire = {.rig = &f->rig, .fd = rig_raw(&f->rig)};

    hps_buf_init(&wire.in, 1 << 20);
    assert_true(wire_send(&wire, "GET / HTTP/1.1\r\nHost: x\r\n\r\n", 27));
    WIRE_UNTIL(&wire, wire.closed);
    wire_close(&wire);
    expect_logged(log_fd, "the peer does not speak HTTP/2; expected a gRPC client");
}

static void test_rapid_reset_when_endless_then_disconnected(void **state)
{
    struct fixture *f = *state;
    uint32_t id = 1;

    while (id < 200000 && wire_request(&f->wire, id, "/t.T/Park", false, NULL) &&
           wire_frame(&f->wire, RST, 0, id, "\0\0\0\x8", 4)) {
        id += 2;
        if (id % 256 == 1) {
            wire_pump(&f->wire);
        }
    }
    WIRE_UNTIL(&f->wire, f->wire.closed);
    assert_true(id > 2 * 9000); /* smaller bursts of cancelled calls are allowed */
    assert_int_equal(f->rig.n_messages, 0);
}

/* gRPC's C++ library sends this if a call ends before its HEADERS frame was sent. */
static void test_reset_when_stream_does_not_exist_then_other_calls_continue(void **state)
{
    struct fixture *f = *state;

    assert_true(wire_request(&f->wire, 1, "/t.T/Park", false, NULL));
    assert_true(wire_frame(&f->wire, RST, 0, 3, "\0\0\0\x8", 4));
    assert_true(wire_request(&f->wire, 5, "/t.T/Park", false, NULL));
    assert_true(wire_frame(&f->wire, PING, 0, 0, "12345678", 8));
    WIRE_UNTIL(&f->wire, wire_find(&f->wire, PING, 0, NULL, NULL) || f->wire.closed);
    assert_false(f->wire.closed);
    assert_false(wire_find(&f->wire, GOAWAY, 0, NULL, NULL));
    assert_true(wire_frame(&f->wire, RST, 0, 2, "\0\0\0\x8", 4)); /* the ID of a server's stream */
    WIRE_UNTIL(&f->wire, f->wire.closed);
}

static void test_streams_when_more_than_allowed_then_disconnected(void **state)
{
    struct fixture *f = *state;
    uint32_t id = 1;

    WIRE_UNTIL(&f->wire, wire_find(&f->wire, SETTINGS, 0, NULL, NULL));
    assert_true(wire_frame(&f->wire, SETTINGS, ACK, 0, NULL, 0));
    while (id < 2 * 300 && wire_request(&f->wire, id, "/t.T/Park", false, NULL)) {
        id += 2;
    }
    expect_goaway(&f->wire, 1);
    assert_true(f->rig.n_ended[1] <= 256);
}

static void test_settings_when_too_many_entries_then_disconnected(void **state)
{
    struct fixture *f = *state;
    uint8_t entries[6 * 40];

    for (unsigned i = 0; i < 40; i++) {
        memcpy(entries + i * 6, "\0\xf0\0\0\0\1", 6);
    }
    (void)wire_frame(&f->wire, SETTINGS, 0, 0, entries, sizeof entries);
    WIRE_UNTIL(&f->wire, f->wire.closed);
}

static void test_pings_when_calls_run_then_all_answered(void **state)
{
    struct fixture *f = *state;

    assert_true(wire_request(&f->wire, 1, "/t.T/Park", false, NULL));
    for (unsigned i = 0; i < 1000; i++) {
        assert_true(wire_frame(&f->wire, PING, 0, 0, "12345678", 8));
        if (i % 16 == 0) {
            wire_pump(&f->wire);
        }
    }
    WIRE_UNTIL(&f->wire, f->wire.in.size >= 1000 * 17);
    assert_false(f->wire.closed);
}

/* The client does not acknowledge SETTINGS, so the server refuses excess streams one by one. */
static void test_refusals_when_client_does_not_read_then_disconnected(void **state)
{
    struct fixture *f = *state;
    uint32_t n = 0;

    while (n < 500000 && wire_request(&f->wire, 2 * n + 1, "/t.T/Park", false, NULL)) {
        n++;
    }
    assert_true(n < 500000);
}

static void test_frames_when_endless_then_disconnected(void **state)
{
    static const struct {
        uint8_t type;
        const char *path; /* of a call that is started first; NULL: no call */
        const char *payload;
        size_t size;
        uint32_t id;       /* of the stream; UINT32_MAX: another stream for each frame */
        unsigned pumps;    /* replies are read after this many frames; 0: never */
        unsigned min, max; /* the server accepts at least min frames, but fewer than max */
        uint8_t error;     /* in GOAWAY; 0: any */
    } cases[] = {
        {RST, NULL, "\0\0\0\x8", 4, UINT32_MAX, 128, 0, 100000, 0xb}, /* unknown streams */
        {CONTINUATION, NULL, "\x84\x84\x84\x84", 4, 1, 8, 0, 2500, 0},
        {SETTINGS, NULL, "", 0, 0, 64, 0, 20000, 0},
        {PING, NULL, "12345678", 8, 0, 16, 200, 10000, 0xb},
        {PING, "/t.T/Park", "12345678", 8, 0, 0, 0, 2000000, 0}, /* its ACKs are limited */
        {DATA, "/t.T/Count", "", 0, 1, 64, 10000, 50000, 0xb},
    };
    struct fixture *f = *state;

    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct wire wire;
        unsigned n = 0;
        wire_open(&wire, &f->rig);
        if (cases[i].type == CONTINUATION) { /* ":path: /" in each frame */
            assert_true(wire_frame(&wire, HEADERS, 0, 1, "\x84", 1));
        } else if (cases[i].path != NULL) {
            assert_true(wire_request(&wire, 1, cases[i].path, false, NULL));
        }
        while (n < cases[i].max && wire_frame(&wire, cases[i].type, 0,
                                              cases[i].id == UINT32_MAX ? 2 * n + 1 : cases[i].id,
                                              cases[i].payload, cases[i].size)) {
            n++;
            if (cases[i].pumps > 0 && n % cases[i].pumps == 0) {
                wire_pump(&wire);
            }
        }
        assert_in_range(n, cases[i].min, cases[i].max - 1);
        if (cases[i].error != 0) {
            expect_goaway(&wire, cases[i].error);
        }
        WIRE_UNTIL(&wire, wire.closed);
        wire_close(&wire);
    }
}

/* Stores one header of 4 KB in the table. Each of many following bytes refers to it. */
static void test_headers_when_hpack_bomb_then_stream_reset(void **state)
{
    struct fixture *f = *state;
    uint8_t block[16384];
    size_t size = 0;

    block[size++] = 0x40; /* literal, added to the table */
    block[size++] = 1;
    block[size++] = 'a';
    block[size++] = 127; /* 3,900 = 127 + 61 + 29 * 128 */
    block[size++] = 128 + 61;
    block[size++] = 29;
    memset(block + size, 'v', 3900);
    size += 3900;
    memset(block + size, 0x80 | 62, 12000);
    size += 12000;
    assert_true(wire_frame(&f->wire, HEADERS, END_HEADERS | END_STREAM, 1, block, size));
    WIRE_UNTIL(&f->wire, wire_find(&f->wire, RST, 1, NULL, NULL) || f->wire.closed);
    assert_int_equal(f->rig.n_messages, 0);
    assert_false(f->wire.closed);
    assert_true(wire_request(&f->wire, 3, "/t.T/Echo", false, NULL)); /* both tables are equal */
    assert_true(wire_frame(&f->wire, DATA, END_STREAM, 3, "\0\0\0\0\1x", 6));
    WIRE_UNTIL(&f->wire, f->rig.n_ended[0] == 1);
}

static void test_request_when_headers_are_too_large_then_answered_and_body_discarded(void **state)
{
    static uint8_t block[16356] = {0x83, 0x86, 0x01, 0x7f};
    struct fixture *f = *state;
    size_t rest = sizeof block - 7 - 127; /* the length of :authority, as encoded by HPACK */

    block[4] = (uint8_t)(rest % 128 + 128);
    block[5] = (uint8_t)(rest / 128);
    memset(block + 6, 'a', sizeof block - 7);
    block[sizeof block - 1] = 0x84; /* :path, after the limit */
    for (uint32_t end = 0; end < 2; end++) {
        uint32_t id = 1 + 2 * end;
        assert_true(wire_frame(&f->wire, HEADERS, END_HEADERS, id, block, sizeof block));
        assert_true(wire_frame(&f->wire, DATA, (uint8_t)end, id, "\0\0\0\0\1x", 6));
        WIRE_UNTIL(&f->wire, wire_find(&f->wire, HEADERS, id, NULL, NULL));
    }
    assert_int_equal(f->rig.n_messages, 0);
}

static void test_headers_when_too_many_fields_then_answered(void **state)
{
    struct fixture *f = *state;
    const char *extra[2 * 65 + 1] = {NULL};

    for (unsigned i = 0; i < 65; i++) {
        extra[2 * i] = "x";
        extra[2 * i + 1] = "y";
    }
    assert_true(wire_request(&f->wire, 1, "/t.T/Echo", true, extra));
    WIRE_UNTIL(&f->wire, wire_find(&f->wire, HEADERS, 1, NULL, NULL));
    assert_false(wire_find(&f->wire, RST, 1, NULL, NULL));
    assert_false(f->wire.closed);
}

/* ---- fields of a request --------------------------------------------------------------------- */

/* Sends HEADERS with exactly these fields: lines "name=value". A '~' in a value is sent as NUL. */
static void send_fields(struct wire *wire, uint8_t flags, uint32_t id, const char *lines)
{
    uint8_t block[1024];
    size_t size = 0;

    while (*lines != '\0') {
        size_t name_size = strcspn(lines, "=");
        size_t value_size = strcspn(lines + name_size + 1, "\n");
        assert_true(name_size < 127 && value_size < 127);
        assert_true(size + 3 + name_size + value_size <= sizeof block);
        block[size++] = 0x10; /* a literal, never indexed */
        block[size++] = (uint8_t)name_size;
        memcpy(block + size, lines, name_size);
        size += name_size;
        block[size++] = (uint8_t)value_size;
        for (size_t i = 0; i < value_size; i++) {
            char c = lines[name_size + 1 + i];
            block[size++] = (uint8_t)(c == '~' ? '\0' : c);
        }
        lines += name_size + 1 + value_size + 1;
    }
    assert_true(wire_frame(wire, HEADERS, flags | END_HEADERS, id, block, size));
}

/* Whether a call with these fields is answered. Otherwise the stream must be reset with
 * PROTOCOL_ERROR. */
static bool is_answered(struct wire *wire, uint32_t id, const char *fields, const char *trailers)
{
    const uint8_t *payload = NULL;
    size_t size = 0;

    send_fields(wire, 0, id, fields);
    assert_true(wire_frame(wire, DATA, trailers == NULL ? END_STREAM : 0, id, "\0\0\0\0\1x", 6));
    if (trailers != NULL) {
        bool ends = trailers[0] != '!';
        send_fields(wire, ends ? END_STREAM : 0, id, trailers + (ends ? 0 : 1));
    }
    WIRE_UNTIL(wire,
               wire_find(wire, DATA, id, NULL, NULL) || wire_find(wire, RST, id, &payload, &size));
    assert_false(wire->closed);
    if (payload != NULL) {
        assert_int_equal(payload[3], HPS_HTTP2_PROTOCOL_ERROR);
    }
    return payload == NULL;
}

#define USUAL  ":method=POST\n:scheme=http\n:path=/t.T/Echo\n"
#define PSEUDO USUAL ":authority=test\n"
#define TYPE   "content-type=application/grpc\n"

/* On TCP nghttp2 checks requests, on Unix sockets hpsd does. Only the rules for the authority
 * differ. */
static void test_request_when_malformed_then_reset_unless_unix_authority(void **state)
{
    enum { NEITHER, BOTH, ON_UNIX };
    static const struct {
        const char *fields, *trailers;
        int answered;
    } cases[] = {
        {PSEUDO TYPE, NULL, BOTH},
        {USUAL TYPE "host=test\n", NULL, BOTH},
        {PSEUDO TYPE "te=trailers\ncontent-length=6\n", "x=y\n", BOTH},
        {PSEUDO TYPE "x=blank \n", NULL, NEITHER},
        {PSEUDO TYPE "y=\x01\n", NULL, NEITHER},
        {PSEUDO TYPE "(=z\n", NULL, NEITHER},
        {USUAL TYPE, NULL, ON_UNIX},
        {USUAL ":authority=\n" TYPE, NULL, ON_UNIX},
        {USUAL ":authority=/run/hpsd/hpsd.sock\n" TYPE, NULL, ON_UNIX},
        {USUAL ":authority=%2Frun%2Fhpsd%2Fhpsd.sock\n" TYPE, NULL, BOTH},
        {USUAL ":authority=a\x01\n" TYPE, NULL, NEITHER},
        {PSEUDO ":authority=test\n" TYPE, NULL, NEITHER},
        {PSEUDO ":path=/t.T/Echo\n" TYPE, NULL, NEITHER},
        {PSEUDO ":other=x\n" TYPE, NULL, NEITHER},
        {USUAL TYPE ":authority=test\n", NULL, NEITHER},
        {":scheme=http\n:path=/t.T/Echo\n:authority=test\n" TYPE, NULL, NEITHER},
        {":method=POST\n:path=/t.T/Echo\n:authority=test\n" TYPE, NULL, NEITHER},
        {":method=POST\n:scheme=http\n:authority=test\n" TYPE, NULL, NEITHER},
        {":method=P T\n:scheme=http\n:path=/t.T/Echo\n:authority=test\n" TYPE, NULL, NEITHER},
        {":method=POST\n:scheme=http\n:path=\n:authority=test\n" TYPE, NULL, NEITHER},
        {PSEUDO TYPE "X-Test=x\n", NULL, NEITHER},
        {PSEUDO TYPE "connection=close\n", NULL, NEITHER},
        {PSEUDO TYPE "transfer-encoding=chunked\n", NULL, NEITHER},
        {PSEUDO TYPE "te=gzip\n", NULL, NEITHER},
        {PSEUDO TYPE "te=trailers~gzip\n", NULL, NEITHER},
        {PSEUDO TYPE "host=a\nhost=a\n", NULL, NEITHER},
        {PSEUDO TYPE "content-length=5\n", NULL, NEITHER},
        {PSEUDO TYPE "content-length=7\n", NULL, NEITHER},
        {PSEUDO TYPE "content-length=7\n", "x=y\n", NEITHER},
        {PSEUDO TYPE "content-length=6\ncontent-length=6\n", NULL, NEITHER},
        {PSEUDO TYPE "content-length=x\n", NULL, NEITHER},
        {PSEUDO TYPE "content-length=6\n", "content-length=6\n", NEITHER},
        {PSEUDO TYPE, ":path=/t.T/Echo\n", NEITHER},
        {PSEUDO TYPE, "!x=y\n", NEITHER}, /* trailers without END_STREAM */
    };
    struct fixture *f = *state;
    int log_fd = log_to_memory();
    struct wire tcp;

    wire_open_tcp(&tcp, &f->rig);
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t id = 2 * i + 1;
        bool on_unix = is_answered(&f->wire, id, cases[i].fields, cases[i].trailers);
        bool on_tcp = is_answered(&tcp, id, cases[i].fields, cases[i].trailers);
        if (on_unix != (cases[i].answered != NEITHER) || on_tcp != (cases[i].answered == BOTH)) {
            fail_msg("case %u: on a Unix socket %d, by TCP %d", i, on_unix, on_tcp);
        }
    }
    wire_close(&tcp);
    expect_logged(log_fd, "name: [x]\"");
}

static void test_trailers_when_too_large_then_reset(void **state)
{
    struct fixture *f = *state;
    char fields[65 * 4 + 1] = "";

    for (unsigned i = 0; i < 65; i++) {
        memcpy(fields + (size_t)4 * i, "x=y\n", 5);
    }
    send_fields(&f->wire, 0, 1, PSEUDO TYPE);
    assert_true(wire_frame(&f->wire, DATA, 0, 1, "\0\0\0\0\1x", 6));
    send_fields(&f->wire, END_STREAM, 1, fields);
    WIRE_UNTIL(&f->wire, wire_find(&f->wire, RST, 1, NULL, NULL));
    assert_int_equal(f->rig.n_messages, 0);
}

static void test_data_when_processed_then_window_is_returned(void **state)
{
    enum { MESSAGE_BYTES = 1024, PER_CHUNK = 16, CHUNKS = 256 };
    static uint8_t chunk[PER_CHUNK * MESSAGE_BYTES];
    struct fixture *f = *state;
    unsigned n = 0;

    for (size_t i = 0; i < PER_CHUNK; i++) {
        chunk[i * MESSAGE_BYTES + 3] = (MESSAGE_BYTES - 5) >> 8;
        chunk[i * MESSAGE_BYTES + 4] = (MESSAGE_BYTES - 5) & 0xff;
    }
    assert_true(wire_request(&f->wire, 1, "/t.T/Count", false, NULL));
    while (n < CHUNKS && wire_frame(&f->wire, DATA, 0, 1, chunk, sizeof chunk)) {
        n++;
        wire_pump(&f->wire);
    }
    assert_int_equal(n, CHUNKS); /* 4 MB: four times the window */
    WIRE_UNTIL(&f->wire, f->rig.n_messages == CHUNKS * PER_CHUNK);
}

static void test_frames_when_malformed_then_disconnected(void **state)
{
    static const struct {
        uint8_t type, flags;
        uint32_t stream;
        size_t size;
    } cases[] = {
        {DATA, 0, 0, 5},         {DATA, 0, 7, 5}, {HEADERS, 4, 2, 1}, {SETTINGS, 0, 1, 0},
        {SETTINGS, 0, 0, 5},     {PING, 0, 0, 7}, {WINDOW, 0, 0, 3},  {RST, 0, 9, 3},
        {CONTINUATION, 4, 1, 1}, {PUSH, 4, 1, 8}, {GOAWAY, 0, 0, 7},  {WINDOW, 0, 0, 4},
        {SETTINGS, 1, 0, 6},
    };
    static const uint8_t zeros[16];
    struct fixture *f = *state;

    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct wire wire;
        wire_open(&wire, &f->rig);
        (void)wire_frame(&wire, cases[i].type, cases[i].flags, cases[i].stream, zeros,
                         cases[i].size);
        WIRE_UNTIL(&wire, wire.closed);
        wire_close(&wire);
    }
}

static void test_bytes_when_random_then_other_connections_continue(void **state)
{
    struct fixture *f = *state;
    unsigned seed = 7;

    print_message("seed %u\n", seed);
    for (unsigned round = 0; round < 60; round++) {
        struct wire wire;
        wire_open(&wire, &f->rig);
        for (unsigned i = 0; i < 40 && !wire.closed; i++) {
            uint8_t payload[64];
            size_t size = (unsigned)rand_r(&seed) % sizeof payload;
            for (size_t j = 0; j < size; j++) {
                payload[j] = (uint8_t)rand_r(&seed);
            }
            (void)wire_frame(&wire, (uint8_t)(rand_r(&seed) % 11), (uint8_t)rand_r(&seed),
                             (uint32_t)rand_r(&seed) % 8, payload, size);
            wire_pump(&wire);
        }
        wire_close(&wire);
        rig_turn(&f->rig);
    }
    RIG_UNTIL(&f->rig, f->rig.n_gone == 60);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(test_preface_when_it_is_http1_then_closed_and_logged),
        TEST(test_reset_when_stream_does_not_exist_then_other_calls_continue),
        TEST(test_rapid_reset_when_endless_then_disconnected),
        TEST(test_streams_when_more_than_allowed_then_disconnected),
        TEST(test_settings_when_too_many_entries_then_disconnected),
        TEST(test_pings_when_calls_run_then_all_answered),
        TEST(test_refusals_when_client_does_not_read_then_disconnected),
        TEST(test_frames_when_endless_then_disconnected),
        TEST(test_headers_when_hpack_bomb_then_stream_reset),
        TEST(test_request_when_headers_are_too_large_then_answered_and_body_discarded),
        TEST(test_headers_when_too_many_fields_then_answered),
        TEST(test_request_when_malformed_then_reset_unless_unix_authority),
        TEST(test_trailers_when_too_large_then_reset),
        TEST(test_data_when_processed_then_window_is_returned),
        TEST(test_frames_when_malformed_then_disconnected),
        TEST(test_bytes_when_random_then_other_connections_continue),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

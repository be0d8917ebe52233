/* SPDX-License-Identifier: Apache-2.0
 *
 * The server with unusual, careless and hostile gRPC clients. Requests are sent with the HTTP/2
 * client, with any headers and bytes, or frame by frame. Test thread.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "net/grpc_internal.h"
#include "net/http2.h"
#include "net/sock.h"
#include "tests/lib/fault_heap.h"
#include "tests/lib/grpc_rig.h"
#include "tests/lib/gzip_program.h"

/* A raw HTTP/2 client. */
struct probe {
    struct rig *rig;
    struct hps_http2_shared *shared;
    struct hps_http *http;
    struct hps_http_stream *stream;
    char fields[4096]; /* "name: value\n" of all received headers and trailers */
    struct hps_buf data;
    bool withholds; /* does not return received bytes to the window */
    bool ended;
    bool stream_closed;
    uint32_t error;
    bool goaway;
    bool closed;
};

static void probe_header(void *ctx, struct hps_http_stream *stream, const char *name,
                         size_t name_size, const char *value, size_t value_size)
{
    struct probe *probe = ctx;
    size_t used = strlen(probe->fields);

    (void)stream;
    snprintf(probe->fields + used, sizeof probe->fields - used, "%.*s: %.*s\n", (int)name_size,
             name, (int)value_size, value);
}

static void probe_data(void *ctx, struct hps_http_stream *stream, const uint8_t *data, size_t size)
{
    struct probe *probe = ctx;

    assert_int_equal(hps_buf_append(&probe->data, data, size), HPS_OK);
    if (!probe->withholds) {
        hps_http_consume(stream, size);
    }
}

static void probe_end(void *ctx, struct hps_http_stream *stream)
{
    (void)stream;
    ((struct probe *)ctx)->ended = true;
}

static void probe_stream_closed(void *ctx, struct hps_http_stream *stream, uint32_t error)
{
    struct probe *probe = ctx;

    if (probe->stream == stream) {
        probe->stream = NULL;
        probe->stream_closed = true;
        probe->error = error;
    }
}

static void probe_goaway(void *ctx)
{
    ((struct probe *)ctx)->goaway = true;
}

static void probe_closed(void *ctx, const struct hps_error *why)
{
    (void)why;
    ((struct probe *)ctx)->closed = true;
}

static const struct hps_http_events probe_events = {
    .on_header = probe_header,
    .on_data = probe_data,
    .on_end = probe_end,
    .on_stream_closed = probe_stream_closed,
    .on_goaway = probe_goaway,
    .on_closed = probe_closed,
};

static void probe_open_window(struct probe *probe, struct rig *rig, uint32_t window)
{
    struct hps_http2_options options = {.window_bytes = window,
                                        .connection_window_bytes = 1 << 20,
                                        .frame_bytes_max = 16384,
                                        .header_bytes_max = 16384,
                                        .header_fields_max = 64};
    struct hps_conn *conn;

    memset(probe, 0, sizeof *probe);
    hps_buf_init(&probe->data, 64 * 1024 * 1024);
    probe->rig = rig;
    probe->shared = hps_http2_shared_new(rig->loop);
    assert_non_null(probe->shared);
    assert_int_equal(hps_conn_connect(rig->address, NULL, &conn, NULL), HPS_OK);
    assert_int_equal(
        hps_http2_new(probe->shared, conn, &options, &probe_events, probe, &probe->http, NULL),
        HPS_OK);
    RIG_UNTIL(rig, probe->http->ready);
}

static void probe_open(struct probe *probe, struct rig *rig)
{
    probe_open_window(probe, rig, 1 << 20);
}

static void probe_close(struct probe *probe)
{
    if (!probe->closed) {
        hps_http_free(probe->http);
    }
    hps_http2_shared_free(probe->shared);
    hps_buf_fini(&probe->data);
}

/* Begins a request. `extra` replaces default headers with the same names, or adds headers. */
static void probe_begin(struct probe *probe, const char *path, const char *const *extra)
{
    const char *usual[][2] = {{":method", "POST"}, {":scheme", "http"},
                              {":path", path},     {":authority", "test"},
                              {"te", "trailers"},  {"content-type", "application/grpc+proto"}};
    struct hps_http_field fields[20];
    unsigned n = 0;

    for (unsigned i = 0; i < 6; i++) {
        const char *value = usual[i][1];
        for (const char *const *at = extra; at != NULL && *at != NULL; at += 2) {
            if (strcmp(at[0], usual[i][0]) == 0) {
                value = at[1];
            }
        }
        fields[n++] =
            (struct hps_http_field){usual[i][0], strlen(usual[i][0]), value, strlen(value)};
    }
    for (const char *const *at = extra; at != NULL && *at != NULL; at += 2) {
        if (at[0][0] != ':' && strcmp(at[0], "content-type") != 0) {
            fields[n++] = (struct hps_http_field){at[0], strlen(at[0]), at[1], strlen(at[1])};
        }
    }
    probe->fields[0] = '\0';
    probe->ended = false;
    probe->stream_closed = false;
    hps_buf_clear(&probe->data);
    assert_int_equal(hps_http2_request(probe->http, fields, n, NULL, &probe->stream), HPS_OK);
}

static void probe_send(struct probe *probe, const void *data, size_t size)
{
    assert_int_equal(hps_http_send_copy(probe->stream, "", 0, data, size), HPS_OK);
}

static void probe_wait(struct probe *probe)
{
    RIG_UNTIL(probe->rig, probe->stream_closed);
}

static bool probe_has(const struct probe *probe, const char *text)
{
    return strstr(probe->fields, text) != NULL;
}

/* Sends a complete request with these bytes as body. */
static void probe_start(struct probe *probe, const char *path, const char *const *extra,
                        const void *body, size_t size)
{
    probe_begin(probe, path, extra);
    if (size > 0) {
        probe_send(probe, body, size);
    }
    hps_http_finish(probe->stream);
}

/* Like probe_start, and waits for the end of the stream. */
static void probe_call(struct probe *probe, const char *path, const char *const *extra,
                       const void *body, size_t size)
{
    probe_start(probe, path, extra, body, size);
    probe_wait(probe);
}

struct fixture {
    struct rig rig;
    struct probe probe;
    struct wire wire; /* opened by some tests */
};

static int setup(void **state)
{
    static struct fixture f;

    rig_open(&f.rig, &rig_limits);
    probe_open(&f.probe, &f.rig);
    f.wire = (struct wire){.fd = -1};
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    hps_clock_real(); /* set by tests with a fake clock */
    wire_close(&f->wire);
    probe_close(&f->probe);
    rig_close(&f->rig);
    return 0;
}

/* ---- valid and invalid requests -------------------------------------------------------------- */

static void test_unary_when_valid_then_headers_data_trailers(void **state)
{
    struct fixture *f = *state;

    probe_call(&f->probe, "/t.T/Echo", NULL, "\0\0\0\0\2hi", 7);
    assert_string_equal(f->probe.fields,
                        ":status: 200\ncontent-type: application/grpc\ngrpc-status: 0\n");
    assert_int_equal(f->probe.data.size, 7);
    assert_memory_equal(f->probe.data.data, "\0\0\0\0\2hi", 7);
    assert_true(f->probe.ended);
    assert_int_equal(f->probe.error, 0);
}

static void test_unary_when_data_arrives_in_single_bytes_then_answered(void **state)
{
    struct fixture *f = *state;

    wire_open(&f->wire, &f->rig);
    wire_request(&f->wire, 1, "/t.T/Echo", false, NULL);
    for (unsigned i = 0; i < 305; i++) {
        uint8_t byte = i == 3 ? 1 : i == 4 ? 44 : 0;
        assert_true(wire_frame(&f->wire, 0, i == 304, 1, &byte, 1));
    }
    WIRE_UNTIL(&f->wire, f->rig.n_ended[0] == 1);
    assert_int_equal(f->rig.bytes, 300);
}

static void test_request_when_framing_is_wrong_then_error_names_the_fault(void **state)
{
    static const struct {
        const char *path;
        const char *body;
        size_t size;
        const char *status;
        const char *text;
    } cases[] = {
        {"/t.T/Echo", "\2\0\0\0\1x", 6, "grpc-status: 13\n", "flag is 2"},
        {"/t.T/Echo", "\1\0\0\0\1x", 6, "grpc-status: 13\n", "without grpc-encoding"},
        {"/t.T/Echo", "\0\0\0\0\5x", 6, "grpc-status: 13\n", "within a message"},
        {"/t.T/Echo", "\0\0\0", 3, "grpc-status: 13\n", "within a message"},
        {"/t.T/Echo", "", 0, "grpc-status: 12\n", "sent none"},
        {"/t.T/Echo", "\0\0\0\0\1x\0\0\0\0\1y", 12, "grpc-status: 12\n", "sent more"},
        {"/t.T/Echo", "\0\0\0\0\1x\0", 7, "grpc-status: 12\n", "sent more"},
        {"/t.T/Small", "\0\0\0\0\x0bhello world", 16, "grpc-status: 8\n",
         "11 bytes, the limit is 10 bytes"},
        {"/t.T/Nope", "\0\0\0\0\0", 5, "grpc-status: 12\n", "unknown method /t.T/Nope"},
        {"/t.T/echo", "\0\0\0\0\0", 5, "grpc-status: 12\n", "unknown method"},
    };
    struct fixture *f = *state;

    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        probe_call(&f->probe, cases[i].path, NULL, cases[i].body, cases[i].size);
        assert_true(probe_has(&f->probe, cases[i].status));
        assert_true(probe_has(&f->probe, cases[i].text));
        assert_true(probe_has(&f->probe, ":status: 200\n"));
        assert_int_equal(f->probe.data.size, 0);
    }
    assert_int_equal(f->rig.n_messages, 0);
}

static void test_request_when_headers_are_wrong_then_refused(void **state)
{
    static const struct {
        const char *name, *value, *answer;
    } cases[] = {
        {":method", "GET", ":status: 405\n"},
        {"content-type", "text/plain", ":status: 415\n"},
        {"content-type", "application/grpcx", ":status: 415\n"},
        {"content-type", "application/grpc+json", "grpc-status: 12\n"},
        {"content-type", "application/grpc", "grpc-status: 0\n"},
        {"content-type", "application/grpc;charset=utf8", "grpc-status: 0\n"},
        {"grpc-timeout", "100", "grpc-status: 13\n"},
        {"grpc-timeout", "123456789S", "grpc-status: 13\n"},
        {"grpc-timeout", "99999999H", "grpc-status: 0\n"},
        {"grpc-encoding", "snappy", "grpc-accept-encoding: identity,deflate,gzip\n"},
        {"grpc-encoding", "identity", "grpc-status: 0\n"},
    };
    struct fixture *f = *state;

    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *extra[] = {cases[i].name, cases[i].value, NULL};
        probe_call(&f->probe, "/t.T/Echo", extra, "\0\0\0\0\1x", 6);
        if (!probe_has(&f->probe, cases[i].answer)) {
            fail_msg("case %u: %s", i, f->probe.fields);
        }
    }
}

static void test_request_when_metadata_is_too_large_then_error_names_the_limit(void **state)
{
    static char large[20001];
    const char *extra[] = {"x-large", large, NULL};
    struct fixture *f = *state;

    memset(large, 'v', sizeof large - 1);
    probe_call(&f->probe, "/t.T/Echo", extra, "\0\0\0\0\1x", 6);
    assert_true(probe_has(&f->probe, "grpc-status: 8\n"));
    assert_true(probe_has(&f->probe, "16384 bytes"));
    assert_int_equal(f->rig.n_messages, 0);
}

static uint64_t request_bytes(const struct fixture *f)
{
    return hps_limits_used(f->rig.accounts, HPS_LIMIT_REQUESTS);
}

static uint64_t reply_bytes(const struct fixture *f)
{
    return hps_limits_used(f->rig.accounts, HPS_LIMIT_REPLIES);
}

static void test_headers_when_no_service_reads_them_then_not_stored(void **state)
{
    static char value[4001];
    const char *const unread[] = {"x-unread", value, NULL};
    const char *const read[] = {"x-test", value, NULL};
    struct fixture *f = *state;

    memset(value, 'v', sizeof value - 1);
    wire_open(&f->wire, &f->rig);
    assert_true(wire_request(&f->wire, 1, "/t.T/Echo", false, unread));
    WIRE_UNTIL(&f->wire, request_bytes(f) > 0);
    assert_int_equal(request_bytes(f), HPS_CALL_BYTES);
    assert_true(wire_request(&f->wire, 3, "/t.T/Echo", false, read));
    WIRE_UNTIL(&f->wire, request_bytes(f) > HPS_CALL_BYTES);
    assert_in_range(request_bytes(f), 2 * HPS_CALL_BYTES + sizeof value,
                    2 * HPS_CALL_BYTES + 3 * sizeof value);
    wire_close(&f->wire);
    RIG_UNTIL(&f->rig, request_bytes(f) == 0);
}

/* Sends calls and cancels them. If the client reads the replies, the server allows any number of
 * cancelled calls. */
static void check_given_up(struct fixture *f, bool reads)
{
    enum { CALLS = 6000, RST_STREAM = 3, CANCEL = 8 };
    static const uint8_t cancel[4] = {0, 0, 0, CANCEL};

    wire_open(&f->wire, &f->rig);
    wire_take_settings(&f->wire);
    for (uint32_t i = 0; i < CALLS && !f->wire.closed; i++) {
        const struct grpc_conn *conn = f->rig.grpc_loop->conns; /* NULL: the server has ended it */
        bool gives_up = reads || conn == NULL || conn->http->blocked;
        bool sent =
            wire_request(&f->wire, 2 * i + 1, "/t.T/Echo", true, NULL) &&
            (!gives_up || wire_frame(&f->wire, RST_STREAM, 0, 2 * i + 1, cancel, sizeof cancel));
        assert_true(sent || !reads);
        if (!reads) {
            rig_turn(&f->rig);
        } else if (i % 100 == 0) {
            wire_pump(&f->wire);
            hps_buf_clear(&f->wire.in);
        }
    }
    assert_int_equal(f->wire.closed, !reads);
    wire_close(&f->wire);
}

static void test_cancelled_calls_when_client_reads_no_replies_then_connection_ends(void **state)
{
    check_given_up(*state, true);
    check_given_up(*state, false);
}

static void test_length_when_above_limit_then_refused_before_body_arrives(void **state)
{
    struct fixture *f = *state;

    probe_begin(&f->probe, "/t.T/Echo", NULL);
    probe_send(&f->probe, "\0\x7f\xff\xff\xff", 5);
    probe_wait(&f->probe); /* not half-closed: the server resets the stream after its trailers */
    assert_true(probe_has(&f->probe, "grpc-status: 8\n"));
    assert_true(probe_has(&f->probe, "2147483647 bytes, the limit is 4194304 bytes"));
    assert_true(f->probe.ended);
    assert_int_equal(f->probe.error, HPS_HTTP2_NO_ERROR);
}

/* "deflate" in gRPC is the zlib format, with header and checksum. */
static void test_compressed_request_when_within_limit_then_inflated(void **state)
{
    static uint8_t zeros[5 * 1024 * 1024];
    static uint8_t small[8192], large[8192];
    const struct {
        const char *encoding;
        const void *body;
        size_t size;
        const char *status;
        size_t reply_bytes;
    } cases[] = {
        {"gzip", small, hps_gzip_program(zeros, 1000, small + 5, sizeof small - 5),
         "grpc-status: 0\n", 1005},
        {"gzip", large, hps_gzip_program(zeros, sizeof zeros, large + 5, sizeof large - 5),
         "grpc-status: 8\n", 0},
        {"gzip", "\1\0\0\0\3abc", 3, "grpc-status: 13\n", 0},
        {"gzip", "\0\0\0\0\3abc", 3, "grpc-status: 0\n", 8},
        {"deflate", "\1\0\0\0\13x\234KLJ\6\0\2M\1\47", 11, "grpc-status: 0\n", 8},
        {"deflate", "\1\0\0\0\3abc", 3, "grpc-status: 13\n", 0},
    };
    struct fixture *f = *state;

    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *extra[] = {"grpc-encoding", cases[i].encoding, NULL};
        if (i < 2) {
            uint8_t *prefix = i == 0 ? small : large;
            prefix[0] = 1;
            prefix[3] = (uint8_t)(cases[i].size >> 8);
            prefix[4] = (uint8_t)cases[i].size;
        }
        probe_call(&f->probe, "/t.T/Echo", extra, cases[i].body, cases[i].size + 5);
        assert_true(probe_has(&f->probe, cases[i].status));
        assert_int_equal(f->probe.data.size, cases[i].reply_bytes);
        if (cases[i].reply_bytes == 8) {
            assert_memory_equal(f->probe.data.data, "\0\0\0\0\3abc", 8);
        }
    }
}

static void test_compressed_request_when_compression_is_off_then_reply_lists_encodings(void **state)
{
    static const char *extra[] = {"grpc-encoding", "gzip", NULL};
    struct hps_grpc_limits limits = rig_limits;
    struct fixture *f = *state;

    limits.compression = false;
    hps_grpc_loop_limits_set(f->rig.grpc_loop, &limits);
    probe_call(&f->probe, "/t.T/Echo", extra, "\0\0\0\0\3abc", 8);
    assert_true(probe_has(&f->probe, "grpc-status: 12\n"));
    assert_true(probe_has(&f->probe, "grpc-accept-encoding: identity\n"));
    assert_int_equal(f->rig.n_messages, 0);
    probe_call(&f->probe, "/t.T/Echo", NULL, "\0\0\0\0\3abc", 8);
    assert_true(probe_has(&f->probe, "grpc-status: 0\n"));
}

static void test_metadata_when_binary_then_base64_is_unchanged(void **state)
{
    static const char *extra[] = {"x-raw-bin", "AP/+,Zm9v", "x-test", "value", NULL};
    struct fixture *f = *state;

    probe_call(&f->probe, "/t.T/Meta", extra, "\0\0\0\0\0", 5);
    assert_true(probe_has(&f->probe, "x-head: h1\n"));
    assert_true(probe_has(&f->probe, "x-tail: t1\n"));
    assert_true(probe_has(&f->probe, "x-raw-bin: AP/+,Zm9v\n"));
    assert_string_equal(f->rig.header, "value");
}

static void test_client_streaming_when_messages_arrive_in_parts_then_all_delivered(void **state)
{
    struct fixture *f = *state;

    probe_begin(&f->probe, "/t.T/Count", NULL);
    for (unsigned i = 0; i < 50; i++) {
        probe_send(&f->probe, "\0\0\0\0\3abc\0\0\0", 11); /* and a part of an empty message */
        rig_turn(&f->rig);
        probe_send(&f->probe, "\0\0", 2);
    }
    assert_int_equal(f->rig.n_half_closes, 0);
    hps_http_finish(f->probe.stream);
    probe_wait(&f->probe);
    assert_true(probe_has(&f->probe, "grpc-status: 0\n"));
    assert_int_equal(f->probe.data.size, 9);
    assert_int_equal(f->probe.data.data[5], 100);
    assert_int_equal(f->rig.bytes, 150);
    assert_int_equal(f->rig.n_half_closes, 1);
    assert_int_equal(f->rig.n_closes, 1);
}

/* ---- authorization --------------------------------------------------------------------------- */

static void test_guard_when_set_then_decides_about_all_methods_except_open_ones(void **state)
{
    static const struct {
        const char *path, *word, *answer;
    } cases[] = {
        {"/t.T/Echo", "open sesame", "grpc-status: 0\n"},
        {"/t.T/Echo", "sesame", "grpc-status: 7\n"},
        {"/t.T/Nope", "sesame", "grpc-status: 7\n"},
        {"/t.T/Nope", "open sesame", "grpc-status: 12\n"},
        {"/grpc.health.v1.Health/Check", "sesame", "grpc-status: 0\n"},
    };
    struct fixture *f = *state;
    struct rig_guard guard = {.word = "open sesame"};
    struct probe probe;

    rig_guard_set(&f->rig, &guard);
    probe_open(&probe, &f->rig);
    probe_call(&probe, "/t.T/Echo", NULL, "\0\0\0\0\0", 5);
    assert_true(probe_has(&probe, "grpc-status: 16\n"));
    assert_true(probe_has(&probe, "grpc-message: who are you\n"));
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *extra[] = {"authorization", cases[i].word, NULL};
        probe_call(&probe, cases[i].path, extra, "\0\0\0\0\0", 5);
        if (!probe_has(&probe, cases[i].answer)) {
            fail_msg("case %u: %s", i, probe.fields);
        }
    }
    /* A proxy may have checked only one of two headers. */
    const char *twice[] = {"authorization", "open sesame", "authorization", "open sesame", NULL};
    probe_call(&probe, "/t.T/Echo", twice, "\0\0\0\0\0", 5);
    assert_true(probe_has(&probe, "grpc-status: 13\n"));
    assert_int_equal(guard.n_visitors, 1);
    probe_close(&probe);
    RIG_UNTIL(&f->rig, guard.n_visitors == 0);
    assert_int_equal(guard.n_grants, 0);
}

/* Starts a call with the guard's word; it runs until it is finished. */
static void park_guarded(struct fixture *f, struct rig_guard *guard, struct probe *probe)
{
    static const char *extra[] = {"authorization", "sesame", NULL};

    rig_guard_set(&f->rig, guard);
    probe_open(probe, &f->rig);
    probe_start(probe, "/t.T/Park", extra, "\0\0\0\0\0", 5);
    RIG_UNTIL(&f->rig, f->rig.parked != NULL);
}

static void test_guard_when_rules_change_then_forbidden_calls_end(void **state)
{
    static struct rig_guard guard; /* the parked call has its grant until the rig is closed */
    struct fixture *f = *state;
    struct probe probe;

    guard = (struct rig_guard){.word = "sesame"};
    park_guarded(f, &guard, &probe);
    hps_grpc_loop_recheck(f->rig.grpc_loop); /* the rules are unchanged */
    rig_turn(&f->rig);
    assert_false(hps_grpc_call_cancelled(f->rig.parked));
    guard.word = "another";
    hps_grpc_loop_recheck(f->rig.grpc_loop);
    probe_wait(&probe);
    assert_true(probe_has(&probe, "grpc-status: 7\n"));
    assert_true(hps_grpc_call_cancelled(f->rig.parked));
    RIG_UNTIL(&f->rig, guard.n_visitors == 0); /* the connection is drained, too */
    assert_int_equal(guard.n_grants, 1);       /* the parked call is still referenced */
    probe_close(&probe);
}

static void test_guard_when_it_rejects_the_connection_then_closed(void **state)
{
    static struct rig_guard guard; /* the parked call has its grant until the rig is closed */
    struct fixture *f = *state;
    struct probe probe;

    guard = (struct rig_guard){.word = "sesame", .expels = true};
    park_guarded(f, &guard, &probe);
    hps_grpc_loop_recheck(f->rig.grpc_loop);
    RIG_UNTIL(&f->rig, guard.n_visitors == 0);
    assert_true(hps_grpc_call_cancelled(f->rig.parked));
    probe_close(&probe);
}

/* ---- timeouts -------------------------------------------------------------------------------- */

static void test_deadline_when_nothing_was_sent_then_deadline_exceeded(void **state)
{
    static const char *extra[] = {"grpc-timeout", "20m", NULL};
    struct fixture *f = *state;

    probe_call(&f->probe, "/t.T/Park", extra, "\0\0\0\0\0", 5);
    assert_true(probe_has(&f->probe, "grpc-status: 4\n"));
    assert_int_equal(f->rig.n_ended[4], 1);
    assert_true(hps_grpc_call_cancelled(f->rig.parked));
    hps_grpc_call_finish(f->rig.parked, 0, NULL); /* too late: no effect */
}

static void test_deadline_when_reply_is_queued_then_reset(void **state)
{
    static const char *extra[] = {"grpc-timeout", "30m", NULL};
    struct fixture *f = *state;
    struct probe probe;

    probe_open_window(&probe, &f->rig, 100);
    probe.withholds = true; /* so that the reply cannot be sent */
    probe_call(&probe, "/t.T/Pour", extra, "\0\0\0\0\4\7\0\0\0", 9);
    assert_int_equal(f->rig.n_ended[4], 1);
    probe_close(&probe);
}

static struct hps_grpc_limits short_limits(void)
{
    struct hps_grpc_limits limits = rig_limits;

    limits.handshake_timeout_us = 0;
    limits.stall_timeout_us = 0;
    return limits;
}

static void test_reader_when_it_never_opens_its_window_then_reset(void **state)
{
    struct hps_grpc_limits limits = short_limits();
    struct fixture *f = *state;
    static const uint8_t zero_window[] = {0, 4, 0, 0, 0, 0};

    limits.stall_timeout_us = 60 * 1000;
    hps_grpc_loop_limits_set(f->rig.grpc_loop, &limits);
    wire_open(&f->wire, &f->rig);
    assert_true(wire_frame(&f->wire, 4, 0, 0, zero_window, sizeof zero_window));
    wire_call(&f->wire, 1, "/t.T/Big", NULL, "\0\0\x10\0", 4);
    WIRE_UNTIL(&f->wire, f->rig.n_ended[1] == 1);
    WIRE_UNTIL(&f->wire, wire_find(&f->wire, 3, 1, NULL, NULL));
    assert_int_equal(hps_block_pool_bytes(f->rig.blocks), 0);
    assert_false(f->wire.closed);
}

static void test_connection_when_no_request_or_no_ping_reply_then_closed(void **state)
{
    struct fixture *f = *state;

    for (unsigned pings = 0; pings < 2; pings++) {
        struct hps_grpc_limits limits = short_limits();
        if (pings) {
            limits.keepalive_us = 50 * 1000;
            limits.keepalive_timeout_us = 50 * 1000;
        } else {
            limits.handshake_timeout_us = 60 * 1000;
        }
        hps_grpc_loop_limits_set(f->rig.grpc_loop, &limits);
        wire_open(&f->wire, &f->rig);
        WIRE_UNTIL(&f->wire, f->wire.closed);
        assert_int_equal(wire_find(&f->wire, 6, 0, NULL, NULL), pings);
        wire_close(&f->wire);
    }
}

static void test_limits_when_set_then_apply_to_open_connections(void **state)
{
    struct hps_grpc_limits limits = rig_limits;
    struct fixture *f = *state;

    probe_call(&f->probe, "/t.T/Echo", NULL, "\0\0\0\0\x0bhello world", 16);
    assert_true(probe_has(&f->probe, "grpc-status: 0\n"));
    wire_open(&f->wire, &f->rig);
    limits.request_bytes_max = 10;
    limits.handshake_timeout_us = 60 * 1000; /* also makes the tick more frequent */
    hps_grpc_loop_limits_set(f->rig.grpc_loop, &limits);
    WIRE_UNTIL(&f->wire, f->wire.closed); /* it sends no request */
    probe_call(&f->probe, "/t.T/Echo", NULL, "\0\0\0\0\x0bhello world", 16);
    assert_true(probe_has(&f->probe, "11 bytes, the limit is 10 bytes"));
    hps_grpc_loop_limits_set(f->rig.grpc_loop, &rig_limits);
    probe_call(&f->probe, "/t.T/Echo", NULL, "\0\0\0\0\x0bhello world", 16);
    assert_true(probe_has(&f->probe, "grpc-status: 0\n"));
}

static void test_connection_when_age_limit_is_reached_then_goaway_and_calls_finish(void **state)
{
    struct hps_grpc_limits limits = short_limits();
    struct probe probe;
    struct fixture *f = *state;

    limits.age_max_us = 60 * 1000;
    hps_clock_fake(hps_clock_us()); /* the connection does not age before the call has begun */
    hps_grpc_loop_limits_set(f->rig.grpc_loop, &limits);
    probe_open(&probe, &f->rig);
    probe_start(&probe, "/t.T/Park", NULL, "\0\0\0\0\0", 5);
    RIG_UNTIL(&f->rig, f->rig.parked != NULL);
    assert_false(probe.goaway);
    hps_clock_real();
    RIG_UNTIL(&f->rig, probe.goaway);
    assert_false(probe.stream_closed);
    hps_grpc_call_finish(f->rig.parked, 0, NULL);
    RIG_UNTIL(&f->rig, probe.closed);
    assert_true(probe_has(&probe, "grpc-status: 0\n"));
    probe_close(&probe);
}

/* ---- back-pressure --------------------------------------------------------------------------- */

static void test_requests_when_replies_are_not_read_then_held(void **state)
{
    struct hps_grpc_limits limits = rig_limits;
    struct fixture *f = *state;
    static const uint8_t zero_window[] = {0, 4, 0, 0, 0, 0};
    static const uint8_t open_window[] = {0, 16, 0, 0};

    limits.connection_reply_bytes_max = 65536;
    hps_grpc_loop_limits_set(f->rig.grpc_loop, &limits);
    wire_open(&f->wire, &f->rig);
    assert_true(wire_frame(&f->wire, 4, 0, 0, zero_window, sizeof zero_window));
    for (uint32_t id = 1; id <= 9; id += 2) {
        wire_call(&f->wire, id, "/t.T/Big", NULL, "\0\0\2\0", 4);
    }
    /* The reply to PING shows that the server has read everything. The first request may wait for
     * another slice. */
    wire_frame(&f->wire, 6, 0, 0, "12345678", 8);
    WIRE_UNTIL(&f->wire, wire_find(&f->wire, 6, 0, NULL, NULL));
    WIRE_UNTIL(&f->wire, f->rig.n_messages > 0);
    rig_turn(&f->rig);
    assert_int_equal(f->rig.n_messages, 1);
    assert_true(hps_grpc_loop_bytes_in_flight(f->rig.grpc_loop) < 140 * 1024);
    wire_frame(&f->wire, 3, 0, 3, "\0\0\0\x8", 4); /* the client cancels a waiting request */
    wire_frame(&f->wire, 8, 0, 0, open_window, 4);
    for (uint32_t id = 1; id <= 9; id += 2) {
        wire_frame(&f->wire, 8, 0, id, open_window, 4);
    }
    WIRE_UNTIL(&f->wire, f->rig.n_ended[0] == 4);
    assert_int_equal(f->rig.n_messages, 4);
    assert_int_equal(f->rig.n_ended[1], 1);
}

/* The bytes that WINDOW_UPDATE frames have allowed for the connection. */
static uint64_t window_given(const struct wire *wire)
{
    uint64_t given = 0;

    for (size_t at = 0; wire->in.size - at >= 13;) {
        const uint8_t *p = wire->in.data + at;
        if (p[3] == 8 && p[5] == 0 && p[6] == 0 && p[7] == 0 && p[8] == 0) {
            given += (uint64_t)p[9] << 24 | (uint64_t)p[10] << 16 | (uint64_t)p[11] << 8 | p[12];
        }
        at += 9 + ((size_t)p[0] << 16 | (size_t)p[1] << 8 | p[2]);
    }
    return given;
}

/* Opens a connection with a client that reads no replies, so that the server withholds flow-control
 * window. */
static void wire_open_full(struct fixture *f)
{
    static const uint8_t zero_window[] = {0, 4, 0, 0, 0, 0};
    struct hps_grpc_limits limits = rig_limits;

    limits.connection_reply_bytes_max = 65536;
    hps_grpc_loop_limits_set(f->rig.grpc_loop, &limits);
    wire_open(&f->wire, &f->rig);
    wire_take_settings(&f->wire);
    assert_true(wire_frame(&f->wire, 4, 0, 0, zero_window, sizeof zero_window));
    wire_call(&f->wire, 1, "/t.T/Big", NULL, "\0\0\2\0", 4);
    WIRE_UNTIL(&f->wire, f->rig.n_messages == 1);
}

static void test_window_when_calls_are_cancelled_then_returned(void **state)
{
    static const uint8_t part[16384] = {0, 0, 0x3f, 0xff, 0xff};
    struct fixture *f = *state;

    wire_open_full(f);
    WIRE_UNTIL(&f->wire, window_given(&f->wire) > 0);
    uint64_t before = window_given(&f->wire);
    for (uint32_t id = 3; id < 3 + 2 * 10; id += 2) { /* 640 KB each; all may send 8 MB */
        assert_true(wire_request(&f->wire, id, "/t.T/Echo", false, NULL));
        assert_true(wire_frame(&f->wire, 0, 0, id, part, sizeof part));
        for (unsigned i = 1; i < 40; i++) {
            assert_true(wire_frame(&f->wire, 0, 0, id, part + 8, sizeof part - 8));
        }
        assert_true(wire_frame(&f->wire, 3, 0, id, "\0\0\0\x8", 4));
    }
    WIRE_UNTIL(&f->wire, window_given(&f->wire) > before);
    assert_false(f->wire.closed);
}

static void test_messages_when_client_reads_no_replies_of_its_stream_then_stashed(void **state)
{
    static const uint8_t zero_window[] = {0, 4, 0, 0, 0, 0};
    static const uint8_t open_window[] = {1, 0, 0, 0};
    static const uint8_t messages[2000 * 5];
    struct fixture *f = *state;

    wire_open(&f->wire, &f->rig);
    assert_true(wire_frame(&f->wire, 4, 0, 0, zero_window, sizeof zero_window));
    wire_request(&f->wire, 1, "/t.T/Chat", false, NULL);
    wire_frame(&f->wire, 0, 0, 1, messages, sizeof messages - 3);
    wire_frame(&f->wire, 0, 1, 1, messages, 3);
    wire_frame(&f->wire, 6, 0, 0, "12345678", 8);
    WIRE_UNTIL(&f->wire, wire_find(&f->wire, 6, 0, NULL, NULL) && f->rig.n_messages >= 16);
    assert_true(f->rig.n_messages < 20);
    assert_true(hps_grpc_loop_bytes_in_flight(f->rig.grpc_loop) < 80 * 1024);
    wire_frame(&f->wire, 8, 0, 0, open_window, 4);
    wire_frame(&f->wire, 8, 0, 1, open_window, 4);
    WIRE_UNTIL(&f->wire, f->rig.n_ended[0] == 1);
    assert_int_equal(f->rig.n_messages, 2000);
}

/* The buffer of the last message is freed when the stream is half-closed, although the call
 * continues. */
static void test_stream_when_half_closed_then_charge_is_returned(void **state)
{
    static const uint8_t zeros[16 * 1024];
    struct fixture *f = *state;

    wire_open(&f->wire, &f->rig);
    wire_request(&f->wire, 1, "/t.T/Linger", false, NULL);
    wire_frame(&f->wire, 0, 0, 1, "\0\0\1\0\4ab", 7);
    for (unsigned i = 0; i < 4; i++) {
        wire_frame(&f->wire, 0, 0, 1, zeros, sizeof zeros);
    }
    WIRE_UNTIL(&f->wire, rig_request_bytes(&f->rig) > 0);
    wire_frame(&f->wire, 0, 1, 1, "cd", 2);
    WIRE_UNTIL(&f->wire, f->rig.n_half_closes == 1);
    assert_int_equal(f->rig.bytes, 4 * sizeof zeros + 4);
    assert_int_equal(rig_request_bytes(&f->rig), 0);
}

static void test_gzip_requests_when_not_half_closed_then_not_inflated(void **state)
{
    static const char *extra[] = {"grpc-encoding", "gzip", NULL};
    static uint8_t zeros[1024 * 1024];
    static uint8_t body[16384];
    struct wire wire;
    struct rig rig;

    (void)state;
    size_t n = hps_gzip_program(zeros, sizeof zeros, body + 5, sizeof body - 5);
    body[0] = 1;
    body[3] = (uint8_t)(n >> 8);
    body[4] = (uint8_t)n;
    hps_fault_heap_install(0);
    rig_open(&rig, &rig_limits);
    wire_open(&wire, &rig);
    for (uint32_t id = 1; id <= 21; id += 2) {
        wire_request(&wire, id, "/t.T/Echo", false, extra);
        wire_frame(&wire, 0, 0, id, body, n + 5);
    }
    wire_frame(&wire, 6, 0, 0, "12345678", 8);
    WIRE_UNTIL(&wire, wire_find(&wire, 6, 0, NULL, NULL));
    assert_true(hps_fault_heap_live_bytes() < sizeof zeros);
    wire_frame(&wire, 0, 1, 1, NULL, 0);
    WIRE_UNTIL(&wire, rig.n_messages == 1);
    assert_int_equal(rig.bytes, sizeof zeros);
    wire_close(&wire);
    rig_close(&rig);
    hps_fault_heap_remove();
    assert_int_equal(hps_fault_heap_live(), 0);
}

static void test_requests_when_memory_is_short_then_large_requests_refused(void **state)
{
    static const uint8_t part[16384] = {0, 0, 0x3f, 0xff, 0xff};
    struct hps_grpc_channel *channel;
    struct wire wires[2];
    struct reply reply;
    struct fixture *f = *state;

    rig_request_bytes_max(&f->rig, 512 * 1024);
    for (unsigned i = 0; i < 2; i++) {
        wire_open(&wires[i], &f->rig);
        wire_take_settings(&wires[i]);
        wire_request(&wires[i], 1, "/t.T/Echo", false, NULL);
        for (unsigned k = 0; k < 24; k++) {
            wire_frame(&wires[i], 0, 0, 1, part + (k > 0 ? 8 : 0), sizeof part - (k > 0 ? 8 : 0));
        }
    }
    WIRE_UNTIL(&wires[1], f->rig.n_ended[8] == 1);
    channel = rig_channel(&f->rig); /* a small request succeeds */
    reply_init(&reply);
    assert_int_equal(rig_call(&f->rig, channel, "/t.T/Echo", "x", 1, &reply), 0);
    reply_fini(&reply);
    hps_grpc_channel_free(channel);
    wire_close(&wires[0]);
    wire_close(&wires[1]);
}

/* Queued replies of all methods count as reply memory. */
static void test_replies_when_queued_then_limited_by_reply_memory(void **state)
{
    enum { BIG = 1 << 20 };
    static const uint8_t size[4] = {0, 0, BIG >> 16, 0};
    static const uint8_t more[4] = {0, 0x10, 0, 0};
    struct fixture *f = *state;

    rig_reply_bytes_max(&f->rig, BIG * 3 / 2);
    wire_open(&f->wire, &f->rig);
    wire_take_settings(&f->wire);
    wire_call(&f->wire, 1, "/t.T/Big", NULL, size, sizeof size);
    RIG_UNTIL(&f->rig, f->rig.n_messages == 1);
    assert_in_range(reply_bytes(f), BIG - 100 * 1024, BIG + 100);
    wire_call(&f->wire, 3, "/t.T/Big", NULL, size, sizeof size);
    WIRE_UNTIL(&f->wire, f->rig.n_ended[8] == 1);
    wire_frame(&f->wire, 8, 0, 0, more, sizeof more); /* the client reads */
    wire_frame(&f->wire, 8, 0, 1, more, sizeof more);
    WIRE_UNTIL(&f->wire, f->rig.n_ended[0] == 1);
    assert_int_equal(reply_bytes(f), 0);
    wire_call(&f->wire, 5, "/t.T/Big", NULL, size, sizeof size);
    RIG_UNTIL(&f->rig, f->rig.n_messages == 3);
    assert_true(reply_bytes(f) > 0);
    wire_close(&f->wire);
    RIG_UNTIL(&f->rig, reply_bytes(f) == 0);
}

static void test_small_call_when_bulk_reply_is_in_flight_then_not_starved(void **state)
{
    struct fixture *f = *state;
    struct hps_grpc_channel *channel = rig_channel(&f->rig);
    struct reply bulk;
    struct reply small;
    uint32_t n = 64 * 1024 * 1024;

    hps_clock_fake(hps_clock_us()); /* no timeout on a slow machine */
    reply_init(&bulk);
    reply_init(&small);
    rig_start(channel, "/t.T/Big", &n, sizeof n, &bulk);
    RIG_UNTIL(&f->rig, f->rig.n_messages == 1);
    assert_int_equal(rig_call(&f->rig, channel, "/t.T/Echo", "x", 1, &small), 0);
    assert_int_equal(bulk.n_done, 0);
    RIG_UNTIL(&f->rig, bulk.n_done == 1);
    assert_int_equal(bulk.code, 0);
    hps_grpc_channel_free(channel);
    reply_fini(&bulk);
    reply_fini(&small);
}

static void test_connection_when_lost_during_a_large_reply_then_blocks_released(void **state)
{
    struct fixture *f = *state;

    hps_clock_fake(hps_clock_us()); /* no timeout on a slow machine */
    wire_open(&f->wire, &f->rig);
    wire_call(&f->wire, 1, "/t.T/Big", NULL, "\0\0\0\4", 4);
    RIG_UNTIL(&f->rig, f->rig.n_messages == 1);
    rig_turn(&f->rig);
    wire_close(&f->wire);
    RIG_UNTIL(&f->rig, f->rig.n_gone == 1 && hps_block_pool_bytes(f->rig.blocks) == 0);
    assert_int_equal(f->rig.n_ended[1], 1);
}

/* ---- draining -------------------------------------------------------------------------------- */

static void test_client_when_it_has_two_connections_then_number_is_equal(void **state)
{
    struct fixture *f = *state;
    struct hps_grpc_channel *channels[2];
    struct reply replies[2];
    uint64_t clients[2];

    for (unsigned i = 0; i < 2; i++) {
        channels[i] = rig_channel(&f->rig);
        const struct hps_grpc_call *last = f->rig.parked;
        reply_init(&replies[i]);
        rig_start(channels[i], "/t.T/Park", "", 0, &replies[i]);
        RIG_UNTIL(&f->rig, f->rig.parked != last);
        clients[i] = hps_grpc_call_client(f->rig.parked);
    }
    assert_true(clients[0] == clients[1]);
    assert_true(clients[0] != 0);
    for (unsigned i = 0; i < 2; i++) {
        hps_grpc_channel_free(channels[i]);
        reply_fini(&replies[i]);
    }
}

static void on_drained(void *ctx)
{
    ((struct rig *)ctx)->drained = true;
}

static void test_drain_when_calls_are_in_flight_then_all_complete(void **state)
{
    struct fixture *f = *state;
    struct hps_grpc_channel *channel = rig_channel(&f->rig);
    struct reply reply;

    reply_init(&reply);
    rig_start(channel, "/t.T/Park", "", 0, &reply);
    RIG_UNTIL(&f->rig, f->rig.parked != NULL);
    hps_grpc_loop_drain(f->rig.grpc_loop, on_drained, &f->rig);
    RIG_UNTIL(&f->rig, f->probe.closed); /* the idle connection closes at once */
    assert_int_equal(reply.n_done, 0);
    assert_false(f->rig.drained);
    hps_grpc_call_send_copy(f->rig.parked, "done", 4);
    hps_grpc_call_finish(f->rig.parked, 0, NULL);
    RIG_UNTIL(&f->rig, f->rig.drained);
    RIG_UNTIL(&f->rig, reply.n_done == 1);
    assert_int_equal(reply.code, 0);
    assert_int_equal(hps_grpc_loop_connections(f->rig.grpc_loop), 0);
    hps_grpc_channel_free(channel);
    reply_fini(&reply);
}

/* A client's GOAWAY concerns streams that the server opens. It may still open streams itself. */
static void test_drain_when_client_has_sent_goaway_then_new_calls_are_refused(void **state)
{
    struct fixture *f = *state;
    const uint8_t *payload = NULL;
    size_t size;

    wire_open(&f->wire, &f->rig);
    wire_call(&f->wire, 1, "/t.T/Park", NULL, "", 0);
    WIRE_UNTIL(&f->wire, f->rig.parked != NULL);
    assert_true(wire_frame(&f->wire, 7, 0, 0, "\0\0\0\0\0\0\0\0", 8));
    assert_true(wire_frame(&f->wire, 6, 0, 0, "is read?", 8));
    WIRE_UNTIL(&f->wire, wire_find(&f->wire, 6, 0, NULL, NULL)); /* so GOAWAY was read, too */
    hps_buf_clear(&f->wire.in);
    hps_grpc_loop_drain(f->rig.grpc_loop, on_drained, &f->rig);
    WIRE_UNTIL(&f->wire, wire_find(&f->wire, 6, 0, &payload, &size));
    assert_true(wire_frame(&f->wire, 6, 1, 0, payload, 8)); /* completes the round trip */
    WIRE_UNTIL(&f->wire, wire_find(&f->wire, 7, 0, &payload, &size));
    assert_memory_equal(payload, "\0\0\0\1", 4); /* the last accepted one is the parked call */
    assert_true(wire_request(&f->wire, 3, "/t.T/Echo", true, NULL));
    hps_grpc_call_finish(f->rig.parked, 0, NULL);
    WIRE_UNTIL(&f->wire, f->wire.closed);
    assert_true(wire_find(&f->wire, 1, 1, NULL, NULL));
    assert_false(wire_find(&f->wire, 1, 3, NULL, NULL)); /* no reply */
}

static void test_drain_when_no_connection_exists_then_done(void **state)
{
    struct rig rig;

    (void)state;
    rig_open(&rig, &rig_limits);
    hps_grpc_loop_drain(rig.grpc_loop, on_drained, &rig);
    RIG_UNTIL(&rig, rig.drained);
    int fd = rig_raw(&rig); /* too late */
    char byte;
    RIG_UNTIL(&rig, recv(fd, &byte, 1, 0) == 0);
    close(fd);
    rig_close(&rig);
}

/* ---- workers --------------------------------------------------------------------------------- */

struct job {
    struct hps_task task;
    struct hps_grpc_call *call;
    bool done;
};

static void job_back(struct hps_task *task)
{
    struct job *job = (struct job *)task;

    hps_grpc_call_send_copy(job->call, "worked", 6);
    hps_grpc_call_finish(job->call, 0, NULL);
    hps_grpc_call_unref(job->call);
    job->done = true;
}

static void *job_work(void *ctx)
{
    struct job *job = ctx;

    (void)hps_grpc_call_cancelled(job->call);
    hps_loop_post(hps_grpc_call_loop(job->call), &job->task);
    return NULL;
}

static void test_worker_when_it_posts_its_result_then_sent_or_dropped(void **state)
{
    struct fixture *f = *state;

    for (unsigned gone = 0; gone < 2; gone++) {
        struct job job = {.task = {.run = job_back}};
        pthread_t thread;
        unsigned n_messages = f->rig.n_messages;
        probe_start(&f->probe, "/t.T/Park", NULL, "\0\0\0\0\0", 5);
        RIG_UNTIL(&f->rig, f->rig.n_messages > n_messages);
        job.call = f->rig.parked;
        hps_grpc_call_ref(job.call);
        if (gone) {
            hps_http_reset(f->probe.stream, HPS_HTTP2_CANCEL);
        }
        assert_int_equal(pthread_create(&thread, NULL, job_work, &job), 0);
        RIG_UNTIL(&f->rig, job.done);
        pthread_join(thread, NULL);
        probe_wait(&f->probe);
        assert_int_equal(f->probe.data.size > 0, !gone);
    }
}

/* ---- no memory ------------------------------------------------------------------------------- */

struct acceptor {
    struct hps_loop_fd handle;
    struct hps_grpc_loop *grpc_loop;
    int listen_fd;
};

static void accept_one(void *ctx, unsigned events)
{
    struct acceptor *acceptor = ctx;
    struct hps_conn *conn;
    int fd;

    (void)events;
    if (hps_sock_accept(acceptor->listen_fd, &fd) == HPS_OK &&
        hps_conn_new(fd, NULL, &conn, NULL) == HPS_OK) {
        hps_grpc_loop_adopt(acceptor->grpc_loop, conn, 1, false);
    }
}

/* Closes connections that were not accepted, so that the next round does not accept them. */
static void drain_accept(int listen_fd)
{
    int fd;

    while (hps_sock_accept(listen_fd, &fd) == HPS_OK) {
        close(fd);
    }
}

static void echo_twice(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    /* Without memory only the trailer is missing. */
    hps_ignore(hps_grpc_call_add_trailer(call, "x-raw-bin", data, size));
    hps_grpc_call_send_copy(call, data, size);
    hps_grpc_call_finish(call, 0, "and a text");
}

static void count_done(void *ctx, int code, const char *message)
{
    (void)code;
    (void)message;
    ++*(unsigned *)ctx;
}

static const struct hps_grpc_client_events count_events = {.on_done = count_done};

struct where {
    char address[64];
    int fd;
};

/* Creates a server, a client and two calls, as far as memory allows. */
static void make_calls(void *ctx)
{
    static const struct hps_grpc_method method = {.path = "/m", .on_message = echo_twice};
    const struct where *where = ctx;
    const struct hps_grpc_service service = {"m", &method, 1, NULL};
    struct hps_grpc_channel_options options = {.address = where->address,
                                               .reply_bytes_max = 100000};
    struct hps_loop *loop = NULL;
    struct hps_grpc_server *server = NULL;
    struct hps_grpc_loop *grpc_loop = NULL;
    struct hps_grpc_channel *channel = NULL;
    struct acceptor acceptor = {.listen_fd = where->fd};
    unsigned n_done = 0;
    unsigned n_started = 0;
    struct hps_error err;

    if (hps_loop_new(&loop, &err) != HPS_OK) {
        return;
    }
    server = hps_grpc_server_new(&rig_limits, NULL);
    if (server == NULL || hps_grpc_server_add(server, &service, 1) != HPS_OK ||
        hps_grpc_loop_new(server, loop, &grpc_loop) != HPS_OK) {
        goto out;
    }
    acceptor.grpc_loop = grpc_loop;
    if (hps_loop_fd_add(loop, &acceptor.handle, acceptor.listen_fd, HPS_LOOP_READ, accept_one,
                        &acceptor) != HPS_OK ||
        hps_grpc_channel_new(loop, &options, &channel, &err) != HPS_OK) {
        goto out;
    }
    for (unsigned i = 0; i < 2; i++) {
        n_started += hps_grpc_client_start(channel, "/m", "hello", 5, 0, &count_events, &n_done,
                                           NULL) == HPS_OK;
    }
    for (unsigned i = 0; i < 100 && n_done < n_started; i++) {
        hps_loop_turn(loop, 2000);
    }
out:
    hps_grpc_channel_free(channel);
    assert_int_equal(n_done, n_started); /* on_done was called once for each started call */
    if (acceptor.handle.loop != NULL) {
        hps_loop_fd_del(&acceptor.handle);
    }
    hps_grpc_loop_free(grpc_loop);
    hps_loop_free(loop);
    hps_grpc_server_free(server);
    drain_accept(acceptor.listen_fd);
}

static void test_calls_when_any_allocation_fails_then_nothing_leaks(void **state)
{
    struct where where;
    struct hps_addr addr;

    (void)state;
    assert_int_equal(hps_addr_parse("127.0.0.1:0", &addr, NULL), HPS_OK);
    assert_int_equal(hps_sock_listen(&addr, 0, &where.fd, NULL), HPS_OK);
    assert_int_equal(hps_sock_local(where.fd, &addr), HPS_OK);
    hps_addr_print(&addr, where.address, sizeof where.address);
    assert_true(hps_fault_heap_run(make_calls, &where) > 20);
    close(where.fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(test_unary_when_valid_then_headers_data_trailers),
        TEST(test_unary_when_data_arrives_in_single_bytes_then_answered),
        TEST(test_request_when_framing_is_wrong_then_error_names_the_fault),
        TEST(test_request_when_headers_are_wrong_then_refused),
        TEST(test_request_when_metadata_is_too_large_then_error_names_the_limit),
        TEST(test_headers_when_no_service_reads_them_then_not_stored),
        TEST(test_cancelled_calls_when_client_reads_no_replies_then_connection_ends),
        TEST(test_length_when_above_limit_then_refused_before_body_arrives),
        TEST(test_compressed_request_when_within_limit_then_inflated),
        TEST(test_compressed_request_when_compression_is_off_then_reply_lists_encodings),
        TEST(test_metadata_when_binary_then_base64_is_unchanged),
        TEST(test_client_streaming_when_messages_arrive_in_parts_then_all_delivered),
        TEST(test_guard_when_set_then_decides_about_all_methods_except_open_ones),
        TEST(test_guard_when_rules_change_then_forbidden_calls_end),
        TEST(test_guard_when_it_rejects_the_connection_then_closed),
        TEST(test_deadline_when_nothing_was_sent_then_deadline_exceeded),
        TEST(test_deadline_when_reply_is_queued_then_reset),
        TEST(test_reader_when_it_never_opens_its_window_then_reset),
        TEST(test_connection_when_no_request_or_no_ping_reply_then_closed),
        TEST(test_limits_when_set_then_apply_to_open_connections),
        TEST(test_connection_when_age_limit_is_reached_then_goaway_and_calls_finish),
        TEST(test_requests_when_replies_are_not_read_then_held),
        TEST(test_window_when_calls_are_cancelled_then_returned),
        TEST(test_messages_when_client_reads_no_replies_of_its_stream_then_stashed),
        TEST(test_stream_when_half_closed_then_charge_is_returned),
        cmocka_unit_test(test_gzip_requests_when_not_half_closed_then_not_inflated),
        TEST(test_requests_when_memory_is_short_then_large_requests_refused),
        TEST(test_replies_when_queued_then_limited_by_reply_memory),
        TEST(test_small_call_when_bulk_reply_is_in_flight_then_not_starved),
        TEST(test_connection_when_lost_during_a_large_reply_then_blocks_released),
        TEST(test_client_when_it_has_two_connections_then_number_is_equal),
        TEST(test_drain_when_calls_are_in_flight_then_all_complete),
        TEST(test_drain_when_client_has_sent_goaway_then_new_calls_are_refused),
        cmocka_unit_test(test_drain_when_no_connection_exists_then_done),
        TEST(test_worker_when_it_posts_its_result_then_sent_or_dropped),
        cmocka_unit_test(test_calls_when_any_allocation_fails_then_nothing_leaks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

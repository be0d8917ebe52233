/* SPDX-License-Identifier: Apache-2.0
 *
 * grpc.testing.TestService on our gRPC, for the interoperability clients of other languages. Prints
 * "ready ADDRESS" and serves until it is told to end (TERM, INT). One thread.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/heap.h"
#include "grpc/testing/messages.pb-c.h"
#include "net/acceptor.h"
#include "net/addr.h"
#include "net/grpc.h"
#include "net/sock.h"

#define MESSAGE_BYTES_MAX (16u << 20)
#define N_RESPONSES_MAX   1024u

enum { GRPC_OK = 0, GRPC_INVALID_ARGUMENT = 3, GRPC_RESOURCE_EXHAUSTED = 8, GRPC_INTERNAL = 13 };

/* What a streaming call still has to do. */
struct stream {
    struct hps_grpc_call *call;
    struct hps_timer timer; /* until the next response is due */
    struct {
        size_t size;
        uint64_t interval_us;
    } responses[N_RESPONSES_MAX];
    unsigned n_responses, n_sent;
    size_t received; /* bytes of payloads */
    bool half_closed;
};

static void fail(struct hps_grpc_call *call, int code, const char *message)
{
    hps_grpc_call_finish(call, code, message);
}

/* ---- metadata -------------------------------------------------------------------------------- */

static void echo_metadata(struct hps_grpc_call *call)
{
    static const char initial[] = "x-grpc-test-echo-initial";
    static const char trailing[] = "x-grpc-test-echo-trailing-bin";
    size_t size = 0;
    const char *value = hps_grpc_call_header(call, initial, &size);
    if (value) {
        hps_ignore(hps_grpc_call_add_header(call, initial, value, size)); /* the client looks */
    }
    value = hps_grpc_call_header(call, trailing, &size);
    if (value) {
        hps_ignore(hps_grpc_call_add_trailer(call, trailing, value, size));
    }
}

/* The probes of the compression cases send without a compressor what claims to be compressed. */
static bool compression_is_as_claimed(const struct hps_grpc_call *call,
                                      const Grpc__Testing__BoolValue *expected)
{
    size_t size = 0;
    const char *encoding = hps_grpc_call_header(call, "grpc-encoding", &size);
    bool compressed = encoding && size == 4 && memcmp(encoding, "gzip", 4) == 0;
    return !expected || !expected->value || compressed;
}

/* False: the client asked for this status, and has it. */
static bool status_is_ok(struct hps_grpc_call *call, const Grpc__Testing__EchoStatus *status)
{
    if (!status || status->code == GRPC_OK) {
        return true;
    }
    hps_grpc_call_finish(call, status->code, status->message);
    return false;
}

/* ---- unary ----------------------------------------------------------------------------------- */

static void on_empty_call(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    (void)data;
    (void)size;
    echo_metadata(call);
    hps_grpc_call_send_copy(call, "", 0);
    hps_grpc_call_finish(call, GRPC_OK, NULL);
}

static void reply_unary(struct hps_grpc_call *call, const Grpc__Testing__SimpleRequest *request)
{
    if (!compression_is_as_claimed(call, request->expect_compressed)) {
        fail(call, GRPC_INVALID_ARGUMENT, "the request was to be compressed");
        return;
    }
    if (request->response_size < 0 || (size_t)request->response_size > MESSAGE_BYTES_MAX) {
        fail(call, GRPC_INVALID_ARGUMENT, "response_size");
        return;
    }
    echo_metadata(call);
    if (!status_is_ok(call, request->response_status)) {
        return;
    }
    Grpc__Testing__Payload payload = GRPC__TESTING__PAYLOAD__INIT;
    Grpc__Testing__SimpleResponse response = GRPC__TESTING__SIMPLE_RESPONSE__INIT;
    payload.body.len = (size_t)request->response_size;
    payload.body.data = hps_calloc(1, payload.body.len);
    response.payload = &payload;
    size_t size = grpc__testing__simple_response__get_packed_size(&response);
    uint8_t *packed = payload.body.data ? hps_alloc(size) : NULL;
    if (packed) {
        grpc__testing__simple_response__pack(&response, packed);
        hps_grpc_call_send_copy(call, packed, size);
        hps_grpc_call_finish(call, GRPC_OK, NULL);
    } else {
        fail(call, GRPC_RESOURCE_EXHAUSTED, "out of memory");
    }
    hps_free(packed);
    hps_free(payload.body.data);
}

static void on_unary_call(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    Grpc__Testing__SimpleRequest *request = grpc__testing__simple_request__unpack(NULL, size, data);
    if (!request) {
        fail(call, GRPC_INVALID_ARGUMENT, "not a SimpleRequest");
        return;
    }
    reply_unary(call, request);
    grpc__testing__simple_request__free_unpacked(request, NULL);
}

/* ---- streams --------------------------------------------------------------------------------- */

static void send_sized(struct hps_grpc_call *call, size_t body_size)
{
    Grpc__Testing__Payload payload = GRPC__TESTING__PAYLOAD__INIT;
    Grpc__Testing__StreamingOutputCallResponse response =
        GRPC__TESTING__STREAMING_OUTPUT_CALL_RESPONSE__INIT;
    payload.body.len = body_size;
    payload.body.data = hps_calloc(1, body_size);
    response.payload = &payload;
    size_t size = grpc__testing__streaming_output_call_response__get_packed_size(&response);
    uint8_t *packed = payload.body.data ? hps_alloc(size) : NULL;
    if (packed) {
        grpc__testing__streaming_output_call_response__pack(&response, packed);
        hps_grpc_call_send_copy(call, packed, size);
    } else {
        fail(call, GRPC_RESOURCE_EXHAUSTED, "out of memory");
    }
    hps_free(packed);
    hps_free(payload.body.data);
}

/* Send what is due, and end once the client has ended and everything is out. */
static void stream_go_on(void *ctx)
{
    struct stream *stream = ctx;
    struct hps_loop *loop = hps_grpc_call_loop(stream->call);
    while (stream->n_sent < stream->n_responses) {
        uint64_t interval_us = stream->responses[stream->n_sent].interval_us;
        if (hps_timer_armed(&stream->timer)) {
            return;
        }
        if (interval_us > 0) {
            stream->responses[stream->n_sent].interval_us = 0;
            hps_timer_set_after(loop, &stream->timer, interval_us);
            return;
        }
        send_sized(stream->call, stream->responses[stream->n_sent++].size);
    }
    if (stream->half_closed) {
        hps_grpc_call_finish(stream->call, GRPC_OK, NULL);
    }
}

static struct stream *stream_of(struct hps_grpc_call *call)
{
    struct stream *stream = hps_grpc_call_user(call);
    if (!stream) {
        stream = hps_calloc(1, sizeof(*stream));
        if (!stream) {
            fail(call, GRPC_RESOURCE_EXHAUSTED, "out of memory");
            return NULL;
        }
        stream->call = call;
        hps_timer_init(&stream->timer, stream_go_on, stream);
        hps_grpc_call_set_user(call, stream);
        echo_metadata(call);
    }
    return stream;
}

static void on_stream_close(struct hps_grpc_call *call)
{
    struct stream *stream = hps_grpc_call_user(call);
    if (stream) {
        hps_timer_stop(&stream->timer);
        hps_free(stream);
    }
}

/* False: the call has been failed. */
static bool queue_responses(struct stream *stream,
                            const Grpc__Testing__StreamingOutputCallRequest *request)
{
    for (size_t i = 0; i < request->n_response_parameters; i++) {
        const Grpc__Testing__ResponseParameters *wanted = request->response_parameters[i];
        if (wanted->size < 0 || (size_t)wanted->size > MESSAGE_BYTES_MAX ||
            wanted->interval_us < 0 || stream->n_responses == N_RESPONSES_MAX) {
            fail(stream->call, GRPC_INVALID_ARGUMENT, "response_parameters");
            return false;
        }
        stream->responses[stream->n_responses].size = (size_t)wanted->size;
        stream->responses[stream->n_responses++].interval_us = (uint64_t)wanted->interval_us;
    }
    return true;
}

static void output_message(struct hps_grpc_call *call, const uint8_t *data, size_t size,
                           bool only_one)
{
    struct stream *stream = stream_of(call);
    if (!stream) {
        return;
    }
    Grpc__Testing__StreamingOutputCallRequest *request =
        grpc__testing__streaming_output_call_request__unpack(NULL, size, data);
    if (!request) {
        fail(call, GRPC_INVALID_ARGUMENT, "not a StreamingOutputCallRequest");
        return;
    }
    if (status_is_ok(call, request->response_status) && queue_responses(stream, request)) {
        stream->half_closed |= only_one;
        stream_go_on(stream);
    }
    grpc__testing__streaming_output_call_request__free_unpacked(request, NULL);
}

static void on_streaming_output_call(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    output_message(call, data, size, true);
}

static void on_full_duplex_message(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    output_message(call, data, size, false);
}

static void on_full_duplex_half_close(struct hps_grpc_call *call)
{
    struct stream *stream = stream_of(call);
    if (stream) {
        stream->half_closed = true;
        stream_go_on(stream);
    }
}

static void on_streaming_input_message(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    struct stream *stream = stream_of(call);
    if (!stream) {
        return;
    }
    Grpc__Testing__StreamingInputCallRequest *request =
        grpc__testing__streaming_input_call_request__unpack(NULL, size, data);
    if (!request) {
        fail(call, GRPC_INVALID_ARGUMENT, "not a StreamingInputCallRequest");
        return;
    }
    if (!compression_is_as_claimed(call, request->expect_compressed)) {
        fail(call, GRPC_INVALID_ARGUMENT, "the request was to be compressed");
    }
    stream->received += request->payload ? request->payload->body.len : 0;
    grpc__testing__streaming_input_call_request__free_unpacked(request, NULL);
}

static void on_streaming_input_half_close(struct hps_grpc_call *call)
{
    struct stream *stream = stream_of(call);
    if (!stream) {
        return;
    }
    uint8_t packed[32];
    Grpc__Testing__StreamingInputCallResponse response =
        GRPC__TESTING__STREAMING_INPUT_CALL_RESPONSE__INIT;
    response.aggregated_payload_size = (int32_t)stream->received;
    size_t size = grpc__testing__streaming_input_call_response__pack(&response, packed);
    hps_grpc_call_send_copy(call, packed, size);
    hps_grpc_call_finish(call, GRPC_OK, NULL);
}

/* ---- the server ------------------------------------------------------------------------------ */

/* UnimplementedCall is absent on purpose. */
static const struct hps_grpc_method methods[] = {
    {.path = "/grpc.testing.TestService/EmptyCall", .on_message = on_empty_call},
    {.path = "/grpc.testing.TestService/UnaryCall", .on_message = on_unary_call},
    {.path = "/grpc.testing.TestService/StreamingOutputCall",
     .on_message = on_streaming_output_call,
     .on_close = on_stream_close},
    {.path = "/grpc.testing.TestService/StreamingInputCall",
     .client_streaming = true,
     .on_message = on_streaming_input_message,
     .on_half_close = on_streaming_input_half_close,
     .on_close = on_stream_close},
    {.path = "/grpc.testing.TestService/FullDuplexCall",
     .client_streaming = true,
     .on_message = on_full_duplex_message,
     .on_half_close = on_full_duplex_half_close,
     .on_close = on_stream_close},
};

static const struct hps_grpc_service service = {
    .name = "grpc.testing.TestService",
    .methods = methods,
    .n_methods = sizeof(methods) / sizeof(methods[0]),
};

static const struct hps_grpc_limits limits = {
    .compression = true,
    .request_bytes_max = MESSAGE_BYTES_MAX,
    .connection_reply_bytes_max = 64u << 20,
    .streams_max = 256,
    .handshake_timeout_us = 10000000,
    .stall_timeout_us = 30000000,
};

static void on_accept(void *ctx, struct hps_conn *conn, unsigned cookie)
{
    (void)cookie;
    hps_grpc_loop_adopt(ctx, conn, 1, false);
}

static void on_signal(void *ctx, int signal_number)
{
    (void)signal_number;
    hps_loop_stop(ctx);
}

static int die(const char *what, const struct hps_error *err)
{
    fprintf(stderr, "interop server: %s: %s\n", what, err->text);
    return 1;
}

int main(int argc, char **argv)
{
    static const int signals[] = {SIGTERM, SIGINT};
    struct hps_loop *loop;
    struct hps_loop_signals *watch;
    struct hps_acceptor *acceptor;
    struct hps_grpc_loop *grpc_loop;
    struct hps_addr addr;
    struct hps_error err = {0};
    char text[HPS_ADDR_TEXT_MAX];
    int fd;
    static const char *const headers[] = {"grpc-encoding", "x-grpc-test-echo-initial",
                                          "x-grpc-test-echo-trailing-bin", NULL};
    struct hps_grpc_server *server = hps_grpc_server_new(&limits, NULL);
    if (!server || hps_grpc_server_add(server, &service, 1) != HPS_OK ||
        hps_loop_new(&loop, &err) != HPS_OK ||
        hps_loop_signals_new(loop, signals, 2, on_signal, loop, &watch, &err) != HPS_OK ||
        hps_grpc_loop_new(server, loop, &grpc_loop) != HPS_OK) {
        return die("start", &err);
    }
    hps_grpc_server_keep(server, headers);
    struct hps_acceptor_options options = {.on_accept = on_accept, .ctx = grpc_loop};
    if (hps_addr_parse(argc > 1 ? argv[1] : "127.0.0.1:0", &addr, &err) != HPS_OK ||
        hps_sock_listen(&addr, 0600, &fd, &err) != HPS_OK || hps_sock_local(fd, &addr) != HPS_OK ||
        hps_acceptor_new(loop, &options, &acceptor, &err) != HPS_OK ||
        hps_acceptor_add(acceptor, fd, NULL, 0, true, &err) != HPS_OK) {
        return die("listen", &err);
    }
    printf("ready %s\n", hps_addr_print(&addr, text, sizeof(text)));
    fflush(stdout);
    hps_loop_run(loop);
    hps_acceptor_free(acceptor);
    hps_grpc_loop_free(grpc_loop);
    hps_loop_signals_free(watch);
    hps_loop_free(loop);
    hps_grpc_server_free(server);
    return 0;
}

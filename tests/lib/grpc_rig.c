/* SPDX-License-Identifier: Apache-2.0
 *
 * See grpc_rig.h. Test thread.
 */
#include "tests/lib/grpc_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "net/grpc_internal.h"
#include "net/sock.h"

const struct hps_grpc_limits rig_limits = {
    .compression = true,
    .request_bytes_max = 4 * 1024 * 1024,
    .connection_reply_bytes_max = 256 * 1024 * 1024,
    .streams_max = 256,
    .handshake_timeout_us = 10 * 1000 * 1000,
    .stall_timeout_us = 30 * 1000 * 1000,
};

static struct rig *rig_of(struct hps_grpc_call *call)
{
    struct rig *rig = hps_grpc_call_ctx(call);
    size_t size;
    const char *value = hps_grpc_call_header(call, "x-test", &size);

    if (value != NULL) {
        snprintf(rig->header, sizeof rig->header, "%.*s", (int)size, value);
    }
    rig->n_messages++;
    return rig;
}

static void on_close(struct hps_grpc_call *call)
{
    ((struct rig *)hps_grpc_call_ctx(call))->n_closes++;
}

static void on_echo(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    rig_of(call)->bytes += size;
    hps_grpc_call_send_copy(call, data, size);
    hps_grpc_call_finish(call, 0, NULL);
}

static uint32_t read_u32(const uint8_t *data, size_t size)
{
    uint32_t n = 0;

    if (size >= sizeof n) {
        memcpy(&n, data, sizeof n);
    }
    return n;
}

uint8_t rig_byte(size_t i)
{
    return (uint8_t)(i * 31 >> 3);
}

static void on_big(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    struct rig *rig = rig_of(call);
    uint32_t n = read_u32(data, size);
    struct hps_block *block = hps_block_new(rig->blocks, n > 0 ? n : 1);

    assert_non_null(block);
    for (size_t i = 0; i < n; i++) {
        block->data[i] = rig_byte(i);
    }
    struct hps_slice slices[3] = {{block, block->data, n / 3},
                                  {block, block->data + n / 3, n / 3},
                                  {block, block->data + 2 * (n / 3), n - 2 * (n / 3)}};
    hps_block_ref(block);
    hps_block_ref(block);
    hps_grpc_call_send(call, slices, 3);
    hps_grpc_call_finish(call, 0, NULL);
}

static void on_park(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    struct rig *rig = rig_of(call);

    (void)data;
    (void)size;
    if (rig->parked != NULL) {
        hps_grpc_call_unref(rig->parked);
    }
    hps_grpc_call_ref(call);
    rig->parked = call;
}

static void on_fail(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    (void)rig_of(call);
    (void)data;
    (void)size;
    hps_grpc_call_finish(call, 9, "50 % of \xc3\xa9\n");
}

static void on_count(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    (void)data;
    rig_of(call)->bytes += size;
    hps_grpc_call_set_user(call, (void *)((uintptr_t)hps_grpc_call_user(call) + 1));
}

static void on_count_end(struct hps_grpc_call *call)
{
    uint32_t n = (uint32_t)(uintptr_t)hps_grpc_call_user(call);

    ((struct rig *)hps_grpc_call_ctx(call))->n_half_closes++;
    hps_grpc_call_send_copy(call, &n, sizeof n);
    hps_grpc_call_finish(call, 0, NULL);
}

/* The client has sent everything, and the reply follows later. */
static void on_linger(struct hps_grpc_call *call, const struct hps_grpc_packed *packed)
{
    rig_of(call)->bytes += packed->size;
}

static void on_linger_end(struct hps_grpc_call *call)
{
    ((struct rig *)hps_grpc_call_ctx(call))->n_half_closes++;
}

static void on_chat(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    static const uint8_t answer[4096];

    (void)data;
    (void)size;
    (void)rig_of(call);
    hps_grpc_call_send_copy(call, answer, sizeof answer);
}

static void on_chat_end(struct hps_grpc_call *call)
{
    hps_grpc_call_finish(call, 0, NULL);
}

static void pour(struct hps_grpc_call *call)
{
    struct rig *rig = hps_grpc_call_ctx(call);
    uintptr_t left = (uintptr_t)hps_grpc_call_user(call);

    while (left > 0 && hps_grpc_call_queued(call) < 256 * 1024) {
        struct hps_block *block = hps_block_new(rig->blocks, 65536);
        assert_non_null(block);
        memset(block->data, (int)(left & 127), 65536);
        struct hps_slice slice = {block, block->data, 65536};
        hps_grpc_call_send(call, &slice, 1);
        left--;
    }
    hps_grpc_call_set_user(call, (void *)left);
    if (left == 0) {
        hps_grpc_call_finish(call, 0, NULL);
    }
}

static void on_pour(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    (void)rig_of(call);
    hps_grpc_call_set_user(call, (void *)(uintptr_t)read_u32(data, size));
    pour(call);
}

static void on_pour_drained(struct hps_grpc_call *call)
{
    ((struct rig *)hps_grpc_call_ctx(call))->n_drains++;
    pour(call);
}

static void on_charged(void *ctx)
{
    struct hps_grpc_call *call = ctx;
    struct rig *rig = hps_grpc_call_ctx(call);

    assert_true(rig->n_charged < RIG_CHARGES);
    hps_grpc_call_ref(call);
    rig->charged[rig->n_charged++] = call;
}

static void on_charge(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    struct hps_charge *charge = hps_grpc_call_charge(call);
    struct hps_error err;

    (void)rig_of(call);
    charge->on_granted = on_charged;
    charge->ctx = call;
    if (hps_charge_wait(charge, read_u32(data, size), &err) == HPS_OK) {
        on_charged(call);
    }
}

void rig_discharge(struct rig *rig)
{
    struct hps_grpc_call *call = rig->charged[0];

    assert_true(rig->n_charged > 0);
    rig->n_charged--;
    memmove(rig->charged, rig->charged + 1, rig->n_charged * sizeof rig->charged[0]);
    hps_grpc_call_discharge(call, hps_grpc_call_charge(call)->held[HPS_LIMIT_REPLIES]);
    hps_grpc_call_unref(call);
}

static void on_meta(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    size_t n;
    const char *bin = hps_grpc_call_header(call, "x-raw-bin", &n);

    (void)rig_of(call);
    assert_int_equal(hps_grpc_call_add_header(call, "x-head", "h1", 2), HPS_OK);
    assert_int_equal(hps_grpc_call_add_trailer(call, "x-tail", "t1", 2), HPS_OK);
    if (bin != NULL) {
        assert_int_equal(hps_grpc_call_add_trailer(call, "x-raw-bin", bin, n), HPS_OK);
    }
    hps_grpc_call_send_copy(call, data, size);
    hps_grpc_call_finish(call, 0, NULL);
}

static const struct hps_grpc_method methods[] = {
    {.path = "/t.T/Echo", .roles = 5, .on_message = on_echo, .on_close = on_close},
    {.path = "/t.T/Small", .request_bytes_max = 10, .on_message = on_echo},
    {.path = "/t.T/Big", .on_message = on_big, .on_close = on_close},
    {.path = "/t.T/Park", .on_message = on_park, .on_close = on_close},
    {.path = "/t.T/Fail", .on_message = on_fail, .on_close = on_close},
    {.path = "/t.T/Count",
     .client_streaming = true,
     .on_message = on_count,
     .on_half_close = on_count_end,
     .on_close = on_close},
    {.path = "/t.T/Linger",
     .client_streaming = true,
     .on_packed = on_linger,
     .on_half_close = on_linger_end,
     .on_close = on_close},
    {.path = "/t.T/Chat",
     .client_streaming = true,
     .on_message = on_chat,
     .on_half_close = on_chat_end,
     .on_close = on_close},
    {.path = "/t.T/Pour",
     .on_message = on_pour,
     .on_close = on_close,
     .on_drained = on_pour_drained},
    {.path = "/t.T/Charge", .on_message = on_charge, .on_close = on_close},
    {.path = "/t.T/Meta", .on_message = on_meta, .on_close = on_close},
    {.path = "/grpc.health.v1.Health/Check", .open = true, .on_message = on_echo},
};

/* ---- routes ---------------------------------------------------------------------------------- */

static unsigned number_of(const struct hps_grpc_call *call)
{
    return (unsigned)strtoul(hps_grpc_call_segment(call, 0, NULL), NULL, 10);
}

static void on_big_get(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    uint32_t n = number_of(call);

    (void)data;
    assert_int_equal(size, 0);
    on_big(call, (const uint8_t *)&n, sizeof n);
}

static void on_fail_get(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    char text[64];

    (void)data;
    (void)size;
    snprintf(text, sizeof text, "no \"%s\"", hps_grpc_call_segment(call, 0, NULL));
    hps_grpc_call_finish(call, (int)number_of(call), text);
}

static void on_health_get(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    (void)data;
    (void)size;
    hps_grpc_call_answer_status(call, number_of(call));
    hps_grpc_call_finish(call, number_of(call) == 200 ? 0 : 14, "not ready");
}

static void on_names(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    char text[256];
    size_t first, second;
    const char *a = hps_grpc_call_segment(call, 0, &first);
    const char *b = hps_grpc_call_segment(call, 1, &second);

    (void)data;
    (void)size;
    assert_true(hps_grpc_call_is_http(call));
    assert_int_equal(strlen(a), first);
    assert_int_equal(strlen(b), second);
    assert_null(hps_grpc_call_segment(call, 2, NULL));
    int n = snprintf(text, sizeof text, "%s|%s", a, b);
    hps_grpc_call_send_copy(call, text, (size_t)n);
    hps_grpc_call_finish(call, 0, NULL);
}

static void on_stats(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    (void)data;
    (void)size;
    hps_grpc_call_send_copy(call, "stats", 5);
    hps_grpc_call_finish(call, 0, NULL);
}

static void on_meta_get(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    (void)data;
    (void)size;
    (void)rig_of(call);
    assert_int_equal(hps_grpc_call_add_header(call, "content-type", "text/x-test", 11), HPS_OK);
    assert_int_equal(hps_grpc_call_add_header(call, "x-head", "h\r\n1", 4), HPS_OK);
    assert_int_equal(hps_grpc_call_add_trailer(call, "grpc-retry-pushback-ms", "1500", 4), HPS_OK);
    hps_grpc_call_send_copy(call, "meta", 4);
    hps_grpc_call_finish(call, 0, NULL);
}

static void on_packed(struct hps_grpc_call *call, const struct hps_grpc_packed *packed)
{
    struct hps_buf plain;
    struct hps_error err;
    const uint8_t *data = NULL;
    size_t size = 0;
    char text[64];

    (void)rig_of(call);
    assert_true(packed->is_http);
    if (hps_grpc_unpack(packed, SIZE_MAX, &plain, &data, &size, &err) != HPS_OK) {
        hps_grpc_call_fail(call, &err);
    } else {
        int n = snprintf(text, sizeof text, "%s %zu",
                         !packed->compressed ? "plain"
                         : packed->is_zlib   ? "zlib"
                                             : "gzip",
                         size);
        hps_grpc_call_send_copy(call, text, (size_t)n);
        hps_grpc_call_finish(call, 0, NULL);
    }
    hps_buf_fini(&plain);
}

static void on_late(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    on_park(call, data, size);
    hps_grpc_call_deadline_limit(call, 1);
}

#define ROUTE(verb_, path_, ...)                                                       \
    {                                                                                  \
        .verb = (verb_), .pattern = (path_), .method = {.path = (path_), __VA_ARGS__ } \
    }

static const struct hps_http_route routes[] = {
    ROUTE("POST", "/echo", .roles = 5, .on_message = on_echo, .on_close = on_close),
    ROUTE("POST", "/small", .request_bytes_max = 10, .on_message = on_echo),
    ROUTE("GET", "/big/{}", .on_message = on_big_get, .on_close = on_close),
    ROUTE("POST", "/park", .on_message = on_park, .on_close = on_close),
    ROUTE("GET", "/park", .on_message = on_park, .on_close = on_close),
    ROUTE("GET", "/fail/{}", .on_message = on_fail_get, .on_close = on_close),
    ROUTE("GET", "/health/{}", .on_message = on_health_get),
    ROUTE("GET", "/names/{}/{}", .on_message = on_names),
    ROUTE("GET", "/names/{}", .on_message = on_health_get),
    ROUTE("GET", "/names/stats", .on_message = on_stats),
    ROUTE("GET", "/meta", .on_message = on_meta_get),
    ROUTE("POST", "/packed", .on_packed = on_packed, .on_close = on_close),
    ROUTE("GET", "/open", .open = true, .on_message = on_stats),
    ROUTE("POST", "/charge", .on_message = on_charge, .on_close = on_close),
    ROUTE("GET", "/late", .on_message = on_late, .on_close = on_close),
};

/* ---- authorization --------------------------------------------------------------------------- */

static void *visitor_new(void *ctx, const struct hps_conn *conn, uint32_t listener_mask)
{
    struct rig_guard *guard = ctx;

    assert_non_null(conn);
    assert_int_equal(listener_mask, 1);
    guard->n_visitors++;
    return guard;
}

static void visitor_free(void *visitor)
{
    ((struct rig_guard *)visitor)->n_visitors--;
}

static hps_status judge(const struct rig_guard *guard, const struct hps_grpc_call *call,
                        struct hps_error *err)
{
    const char *said = hps_grpc_call_header(call, "authorization", NULL);

    if (said == NULL) {
        return hps_error_set(err, HPS_UNAUTHENTICATED, "who are you");
    }
    return strcmp(said, guard->word) == 0 ? HPS_OK : hps_error_set(err, HPS_PERMISSION, "not you");
}

static hps_status enter(void *visitor, struct hps_grpc_call *call, uint32_t roles,
                        const void **out_grant, struct hps_error *err)
{
    struct rig_guard *guard = visitor;
    const char *path = hps_grpc_call_path(call);
    hps_status status = judge(guard, call, err);

    assert_int_equal(roles, strcmp(path, "/t.T/Echo") == 0 || strcmp(path, "/echo") == 0 ? 5 : 0);
    if (status == HPS_OK) {
        guard->n_grants++;
        *out_grant = guard;
    }
    return status;
}

static hps_status visitor_again(void *visitor, const struct hps_conn *conn, struct hps_error *err)
{
    assert_non_null(conn);
    return ((struct rig_guard *)visitor)->expels
               ? hps_error_set(err, HPS_UNAUTHENTICATED, "go away")
               : HPS_OK;
}

static hps_status again(void *visitor, struct hps_grpc_call *call, const void *grant,
                        uint32_t roles, struct hps_error *err)
{
    (void)roles;
    assert_ptr_equal(grant, visitor);
    return judge(visitor, call, err);
}

static void release(const void *grant)
{
    ((struct rig_guard *)(uintptr_t)grant)->n_grants--;
}

void rig_guard_set(struct rig *rig, struct rig_guard *guard)
{
    const struct hps_grpc_guard calls = {.ctx = guard,
                                         .visitor_new = visitor_new,
                                         .visitor_free = visitor_free,
                                         .visitor_again = visitor_again,
                                         .enter = enter,
                                         .again = again,
                                         .release = release};

    hps_grpc_server_guard_set(rig->server, &calls);
}

/* ---- the observer ---------------------------------------------------------------------------- */

static void on_call_end(void *ctx, struct hps_grpc_call *call, int code, uint64_t duration_us)
{
    (void)call;
    (void)duration_us;
    ((struct rig *)ctx)->n_ended[code]++;
}

static void on_connection(void *ctx, bool is_http, int delta)
{
    (void)is_http;
    struct rig *rig = ctx;

    rig->n_connections += delta;
    rig->n_gone += delta < 0;
}

static void on_slow(void *ctx, enum hps_grpc_slow why)
{
    struct rig *rig = ctx;

    rig->n_slow[why]++;
    if (rig->slow_us != 0) {
        hps_clock_advance(rig->slow_us);
    }
}

static void on_no_start(void *ctx, const char *peer, enum hps_grpc_no_start how)
{
    (void)peer;
    ((struct rig *)ctx)->n_no_starts[how]++;
}

static void adopt(struct rig *rig, int fd)
{
    struct hps_place *place = NULL;
    struct hps_conn *conn;

    if (rig->places != NULL) {
        enum hps_place_refusal why;
        place = hps_places_admit(rig->places, rig->client, false, hps_clock_us(), &why);
        rig->refused = place == NULL;
        if (rig->refused) {
            close(fd);
            return;
        }
    }
    assert_int_equal(hps_conn_new(fd, rig->tls, &conn, NULL), HPS_OK);
    hps_conn_loopback_set(conn, rig->loopback);
    if (place != NULL) {
        hps_conn_place_give(conn, place);
    }
    hps_grpc_loop_adopt(rig->grpc_loop, conn, 1, rig->http);
}

static void on_accept(void *ctx, unsigned events)
{
    struct rig *rig = ctx;
    int fd;

    (void)events;
    while (hps_sock_accept(rig->listen_fd, &fd) == HPS_OK) {
        adopt(rig, fd);
    }
}

void rig_open(struct rig *rig, const struct hps_grpc_limits *limits)
{
    static const char *const headers[] = {"authorization",
                                          "inference-header-content-length",
                                          "traceparent",
                                          "x-raw-bin",
                                          "x-request-id",
                                          "x-test",
                                          NULL};
    struct hps_addr addr;

    memset(rig, 0, sizeof *rig);
    struct hps_grpc_observer observer = {.ctx = rig,
                                         .on_call_end = on_call_end,
                                         .on_connection = on_connection,
                                         .on_no_start = on_no_start,
                                         .on_slow = on_slow};
    assert_int_equal(hps_loop_new(&rig->loop, NULL), HPS_OK);
    rig->blocks = hps_block_pool_new(0);
    assert_non_null(rig->blocks);
    rig->server = hps_grpc_server_new(limits, &observer);
    assert_non_null(rig->server);
    hps_grpc_server_keep(rig->server, headers);
    rig->memory = (struct hps_limits_options){
        .max = {UINT64_MAX / 4, UINT64_MAX / 4},
        .connection_max = {8 * limits->request_bytes_max, limits->connection_reply_bytes_max}};
    rig->accounts = hps_limits_new(&rig->memory, NULL);
    assert_non_null(rig->accounts);
    hps_grpc_server_limits_use(rig->server, rig->accounts, 0);
    rig->service = (struct hps_grpc_service){"t.T", methods, sizeof methods / sizeof *methods, rig};
    assert_int_equal(hps_grpc_server_add(rig->server, &rig->service, 1), HPS_OK);
    assert_int_equal(
        hps_grpc_server_add_http(rig->server, routes, sizeof routes / sizeof *routes, rig, 1),
        HPS_OK);
    assert_int_equal(hps_grpc_loop_new(rig->server, rig->loop, &rig->grpc_loop), HPS_OK);
    assert_int_equal(hps_addr_parse("127.0.0.1:0", &addr, NULL), HPS_OK);
    assert_int_equal(hps_sock_listen(&addr, 0, &rig->listen_fd, NULL), HPS_OK);
    assert_int_equal(hps_sock_local(rig->listen_fd, &addr), HPS_OK);
    hps_addr_print(&addr, rig->address, sizeof rig->address);
    assert_int_equal(
        hps_loop_fd_add(rig->loop, &rig->listener, rig->listen_fd, HPS_LOOP_READ, on_accept, rig),
        HPS_OK);
}

void rig_request_bytes_max(struct rig *rig, uint64_t bytes)
{
    rig->memory.max[HPS_LIMIT_REQUESTS] = bytes;
    hps_limits_set(rig->accounts, &rig->memory);
}

void rig_reply_bytes_max(struct rig *rig, uint64_t bytes)
{
    rig->memory.max[HPS_LIMIT_REPLIES] = bytes;
    hps_limits_set(rig->accounts, &rig->memory);
}

size_t rig_request_bytes(const struct rig *rig)
{
    size_t bytes = 0;

    for (const struct grpc_conn *conn = rig->grpc_loop->conns; conn != NULL; conn = conn->next) {
        for (const struct hps_grpc_call *call = conn->calls; call != NULL; call = call->next) {
            bytes += call->request->counted;
        }
    }
    return bytes;
}

void rig_close(struct rig *rig)
{
    if (rig->parked != NULL) {
        hps_grpc_call_unref(rig->parked);
    }
    hps_loop_fd_del(&rig->listener);
    close(rig->listen_fd);
    hps_grpc_loop_free(rig->grpc_loop);
    while (rig->n_charged > 0) {
        rig_discharge(rig);
    }
    hps_loop_free(rig->loop);
    hps_grpc_server_free(rig->server);
    for (enum hps_limit limit = 0; limit < HPS_LIMIT_COUNT; limit++) {
        assert_int_equal(hps_limits_used(rig->accounts, limit), 0);
    }
    hps_limits_free(rig->accounts);
    assert_int_equal(rig->n_connections, 0);
    assert_int_equal(hps_block_pool_bytes(rig->blocks), 0);
    hps_block_pool_free(rig->blocks);
}

int rig_raw(struct rig *rig)
{
    int fds[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    adopt(rig, fds[0]);
    return fds[1];
}

struct hps_grpc_channel *rig_channel(struct rig *rig)
{
    struct hps_grpc_channel_options options = {.address = rig->address,
                                               .reply_bytes_max = 256 * 1024 * 1024,
                                               .connect_timeout_us = 10 * 1000 * 1000};
    struct hps_grpc_channel *channel;
    struct hps_error err;

    assert_int_equal(hps_grpc_channel_new(rig->loop, &options, &channel, &err), HPS_OK);
    return channel;
}

void rig_turn(struct rig *rig)
{
    hps_loop_turn(rig->loop, 10 * 1000);
}

/* ---- client calls ---------------------------------------------------------------------------- */

static void reply_message(void *ctx, const uint8_t *data, size_t size)
{
    struct reply *reply = ctx;

    hps_buf_clear(&reply->data);
    if (size > 0) {
        assert_int_equal(hps_buf_append(&reply->data, data, size), HPS_OK);
    }
    reply->n_messages++;
}

static void reply_done(void *ctx, int code, const char *message)
{
    struct reply *reply = ctx;

    reply->n_done++;
    reply->code = code;
    snprintf(reply->text, sizeof reply->text, "%s", message != NULL ? message : "");
}

const struct hps_grpc_client_events reply_events = {.on_message = reply_message,
                                                    .on_done = reply_done};

void reply_init(struct reply *reply)
{
    memset(reply, 0, sizeof *reply);
    hps_buf_init(&reply->data, 512 * 1024 * 1024);
}

void reply_fini(struct reply *reply)
{
    hps_buf_fini(&reply->data);
}

void rig_start(struct hps_grpc_channel *channel, const char *path, const void *request, size_t size,
               struct reply *reply)
{
    assert_int_equal(
        hps_grpc_client_start(channel, path, request, size, 0, &reply_events, reply, NULL), HPS_OK);
}

int rig_call(struct rig *rig, struct hps_grpc_channel *channel, const char *path,
             const void *request, size_t size, struct reply *reply)
{
    unsigned n_done = reply->n_done;

    rig_start(channel, path, request, size, reply);
    RIG_UNTIL(rig, reply->n_done > n_done);
    return reply->code;
}

/* ---- hand-made frames ------------------------------------------------------------------------ */

static void wire_begin(struct wire *wire, struct rig *rig, int fd)
{
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

    *wire = (struct wire){.rig = rig, .fd = fd};
    hps_buf_init(&wire->in, 256 * 1024 * 1024);
    assert_true(wire_send(wire, preface, sizeof preface - 1));
    assert_true(wire_frame(wire, 4, 0, 0, NULL, 0));
}

void wire_open(struct wire *wire, struct rig *rig)
{
    wire_begin(wire, rig, rig_raw(rig));
}

void wire_open_tcp(struct wire *wire, struct rig *rig)
{
    struct hps_addr addr;
    int fd;

    assert_int_equal(hps_addr_parse(rig->address, &addr, NULL), HPS_OK);
    assert_int_equal(hps_sock_connect(&addr, &fd, NULL), HPS_OK);
    RIG_UNTIL(rig, hps_sock_connected(fd, NULL) != HPS_AGAIN);
    wire_begin(wire, rig, fd);
}

void wire_close(struct wire *wire)
{
    if (wire->fd >= 0) {
        close(wire->fd);
    }
    wire->fd = -1;
    hps_buf_fini(&wire->in);
}

bool wire_send(struct wire *wire, const void *data, size_t size)
{
    const uint8_t *from = data;
    unsigned n_stuck = 0;

    while (size > 0) {
        ssize_t n = send(wire->fd, from, size, MSG_NOSIGNAL);
        if (n > 0) {
            from += n;
            size -= (size_t)n;
            n_stuck = 0;
        } else if (errno == EAGAIN) {
            assert_true(++n_stuck < 20000);
            rig_turn(wire->rig);
        } else {
            wire->closed = true;
            return false;
        }
    }
    return true;
}

bool wire_frame(struct wire *wire, uint8_t type, uint8_t flags, uint32_t stream,
                const void *payload, size_t size)
{
    uint8_t head[9] = {(uint8_t)(size >> 16),
                       (uint8_t)(size >> 8),
                       (uint8_t)size,
                       type,
                       flags,
                       (uint8_t)(stream >> 24),
                       (uint8_t)(stream >> 16),
                       (uint8_t)(stream >> 8),
                       (uint8_t)stream};

    return wire_send(wire, head, sizeof head) && (size == 0 || wire_send(wire, payload, size));
}

/* A literal field without indexing and Huffman code. */
static size_t put_field(uint8_t *to, const char *name, const char *value)
{
    size_t n = 0;

    to[n++] = 0x10;
    for (unsigned i = 0; i < 2; i++) {
        const char *text = i == 0 ? name : value;
        size_t size = strlen(text);
        if (size < 127) {
            to[n++] = (uint8_t)size;
        } else {
            to[n++] = 127;
            size_t rest = size - 127;
            while (rest >= 128) {
                to[n++] = (uint8_t)(rest % 128 + 128);
                rest /= 128;
            }
            to[n++] = (uint8_t)rest;
        }
        memcpy(to + n, text, size);
        n += size;
    }
    return n;
}

bool wire_request(struct wire *wire, uint32_t stream, const char *path, bool end,
                  const char *const *extra)
{
    static const char *const usual[] = {":method",    "POST", ":scheme", "http",
                                        ":authority", "test", NULL};
    uint8_t block[16384];
    size_t size = 0;
    bool has_type = false;

    for (const char *const *at = usual; *at != NULL; at += 2) {
        const char *value = at[1];
        if (extra != NULL && extra[0] != NULL && strcmp(extra[0], at[0]) == 0) {
            value = extra[1];
        }
        size += put_field(block + size, at[0], value);
    }
    size += put_field(block + size, ":path", path);
    for (const char *const *at = extra; at != NULL && *at != NULL; at += 2) {
        if (at[0][0] != ':') {
            size += put_field(block + size, at[0], at[1]);
            has_type = has_type || strcmp(at[0], "content-type") == 0;
        }
    }
    if (!has_type) {
        size += put_field(block + size, "content-type", "application/grpc");
    }
    return wire_frame(wire, 1, (uint8_t)(4 | (end ? 1 : 0)), stream, block, size);
}

void wire_call(struct wire *wire, uint32_t stream, const char *path, const char *const *extra,
               const void *message, size_t size)
{
    uint8_t body[105] = {0, 0, 0, 0, (uint8_t)size};

    assert_true(size <= sizeof body - 5);
    memcpy(body + 5, message, size);
    assert_true(wire_request(wire, stream, path, false, extra));
    assert_true(wire_frame(wire, 0, 1, stream, body, 5 + size));
}

void wire_pump(struct wire *wire)
{
    rig_turn(wire->rig);
    for (;;) {
        uint8_t bytes[65536];
        ssize_t n = recv(wire->fd, bytes, sizeof bytes, 0);
        if (n > 0) {
            assert_int_equal(hps_buf_append(&wire->in, bytes, (size_t)n), HPS_OK);
        } else {
            if (n == 0 || errno != EAGAIN) {
                wire->closed = true;
            }
            if (n == 0 || errno != ECONNRESET) {
                return; /* a Unix socket may still have data after a reset */
            }
        }
    }
}

bool wire_find(const struct wire *wire, uint8_t type, uint32_t stream, const uint8_t **out_payload,
               size_t *out_size)
{
    size_t at = 0;

    while (wire->in.size - at >= 9) {
        const uint8_t *head = wire->in.data + at;
        size_t size = (size_t)head[0] << 16 | (size_t)head[1] << 8 | head[2];
        uint32_t id =
            (uint32_t)head[5] << 24 | (uint32_t)head[6] << 16 | (uint32_t)head[7] << 8 | head[8];
        if (wire->in.size - at - 9 < size) {
            return false;
        }
        if (head[3] == type && (stream == 0 || id == stream)) {
            if (out_payload != NULL) {
                *out_payload = head + 9;
                *out_size = size;
            }
            return true;
        }
        at += 9 + size;
    }
    return false;
}

void wire_take_settings(struct wire *wire)
{
    WIRE_UNTIL(wire, wire_find(wire, 4, 0, NULL, NULL));
    assert_true(wire_frame(wire, 4, 1, 0, NULL, 0));
}

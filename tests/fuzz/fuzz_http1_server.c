/* SPDX-License-Identifier: Apache-2.0
 *
 * Bytes of an HTTP/1.1 client against a whole connection of the server of calls: heads, bodies of
 * every kind, routes, limits, time. Each input is one connection to the same server: a byte that
 * says in what pieces it is sent, one that says what happens at its end, then what is sent. What
 * must hold whatever comes: every call that a method saw is closed once, nothing is held when the
 * peer is gone, and what the server says are answers of HTTP/1.1.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/log.h"
#include "net/grpc.h"
#include "tests/fuzz/script.h"

enum { STEPS_MAX = 64, PLAIN_BYTES_MAX = 32 * 1024, BIG_BYTES = 200 * 1000, CHARGE_FACTOR = 1024 };

/* What happens when all is sent. */
enum { END_SHUTDOWN = 1, END_LATE = 2, END_RULES = 4, END_ANSWER = 8, END_UNREAD = 16 };

static struct {
    struct hps_loop *loop;
    struct hps_grpc_server *server;
    struct hps_grpc_loop *grpc_loop;
    struct hps_block_pool *blocks;
    struct hps_grpc_call *parked; /* referenced; NULL: none */
    int n_connections;
    unsigned n_open; /* calls that a method saw, and whose end it did not */
    int n_grants;
    bool rules_changed;
} world;

static const char charged_mark;
static void *const charged_place = (void *)(uintptr_t)&charged_mark;

/* ---- routes ---------------------------------------------------------------------------------- */

static void saw(struct hps_grpc_call *call)
{
    HPS_ASSERT(hps_grpc_call_user(call) == NULL && hps_grpc_call_is_http(call));
    world.n_open++;
    hps_grpc_call_set_user(call, &world);
    for (unsigned i = 0; i < HPS_HTTP_SEGMENTS_MAX; i++) {
        size_t size = 0;
        const char *segment = hps_grpc_call_segment(call, i, &size);
        HPS_ASSERT(segment == NULL || (strlen(segment) == size && size > 0));
        HPS_ASSERT(segment == NULL || (strchr(segment, '/') == NULL && strcmp(segment, "..") != 0));
    }
}

static void on_close(struct hps_grpc_call *call)
{
    HPS_ASSERT(world.n_open > 0);
    world.n_open--;
    if (hps_grpc_call_user(call) == charged_place) {
        hps_grpc_call_discharge(call);
    }
}

static void on_echo(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    saw(call);
    hps_ignore(hps_grpc_call_add_header(call, "x-head", data, size < 16 ? size : 16));
    hps_ignore(
        hps_grpc_call_add_trailer(call, "grpc-retry-pushback-ms", data, size < 9 ? size : 9));
    hps_grpc_call_send_copy(call, data, size);
    hps_grpc_call_finish(call, 0, NULL);
}

static void on_name(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    (void)data;
    (void)size;
    saw(call);
    hps_grpc_call_finish(call, 5, hps_grpc_call_segment(call, 0, NULL));
}

static void on_big(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    struct hps_block *block = hps_block_new(world.blocks, BIG_BYTES);

    (void)data;
    (void)size;
    HPS_ASSERT(block != NULL);
    saw(call);
    memset(block->data, 'b', BIG_BYTES);
    hps_block_ref(block);
    const struct hps_slice slices[] = {{block, block->data, 100},
                                       {block, block->data + 100, BIG_BYTES - 100}};
    hps_grpc_call_send(call, slices, 2);
    hps_grpc_call_finish(call, 0, NULL);
}

static void on_park(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    saw(call);
    if (world.parked != NULL) {
        hps_grpc_call_unref(world.parked);
    }
    hps_grpc_call_ref(call);
    hps_grpc_call_keep_message(call);
    if (size > 0) {
        hps_grpc_call_deadline_limit(call, hps_clock_us() + ((uint64_t)data[0] << 16));
    }
    world.parked = call;
}

/* A call whose answer counts against its connection, as long as the call lasts. */
static void on_packed(struct hps_grpc_call *call, const struct hps_grpc_packed *packed)
{
    struct hps_buf plain;
    const uint8_t *data;
    size_t size;
    struct hps_error err;

    saw(call);
    hps_status status = hps_grpc_unpack(packed, PLAIN_BYTES_MAX, &plain, &data, &size, &err);
    if (status != HPS_OK) {
        hps_grpc_call_fail(call, &err);
    } else if (hps_grpc_call_charge(call, size * CHARGE_FACTOR + 1, size) == HPS_OK) {
        hps_grpc_call_set_user(call, charged_place);
        hps_grpc_call_answer_status(call, 200 + (unsigned)size % 400);
        hps_grpc_call_finish(call, (int)(size % 17), "charged");
    }
    hps_buf_fini(&plain);
}

static void on_room(struct hps_grpc_call *call)
{
    hps_grpc_call_set_user(call, charged_place);
    hps_grpc_call_finish(call, 0, NULL);
}

#define ROUTE(verb_, path_, ...)                                                       \
    {                                                                                  \
        .verb = (verb_), .pattern = (path_), .method = {.path = (path_), __VA_ARGS__}, \
    }

static const struct hps_http_route routes[] = {
    ROUTE("POST", "/echo", .on_message = on_echo, .on_close = on_close),
    ROUTE("POST", "/tiny", .request_bytes_max = 10, .on_message = on_echo, .on_close = on_close),
    ROUTE("GET", "/v2/models/{}", .on_message = on_name, .on_close = on_close),
    ROUTE("GET", "/v2/models/{}/versions/{}", .on_message = on_name, .on_close = on_close),
    ROUTE("GET", "/big", .on_message = on_big, .on_close = on_close),
    ROUTE("POST", "/park", .on_message = on_park, .on_close = on_close),
    ROUTE("POST", "/packed", .on_packed = on_packed, .on_close = on_close, .on_room = on_room),
};

static void on_connection(void *ctx, bool is_http, int delta)
{
    (void)ctx;
    (void)is_http;
    world.n_connections += delta;
}

/* ---- who may call ---------------------------------------------------------------------------- */

static void *visitor_new(void *ctx, const struct hps_conn *conn, uint32_t listener_mask)
{
    (void)ctx;
    (void)conn;
    HPS_ASSERT(listener_mask == 1);
    return &world;
}

static void visitor_free(void *visitor)
{
    (void)visitor;
}

static hps_status enter(void *visitor, const struct hps_grpc_call *call, uint32_t roles,
                        const void **out_grant, struct hps_error *err)
{
    const char *token = hps_grpc_call_header(call, "authorization", NULL);

    (void)roles;
    HPS_ASSERT(visitor == &world);
    if (token != NULL && strcmp(token, "Bearer secret") != 0) {
        return hps_error_set(err, HPS_UNAUTHENTICATED, "another token");
    }
    world.n_grants++;
    *out_grant = &world;
    return HPS_OK;
}

static hps_status visitor_again(void *visitor, const struct hps_conn *conn, struct hps_error *err)
{
    (void)conn;
    (void)err;
    HPS_ASSERT(visitor == &world);
    return HPS_OK;
}

static hps_status again(void *visitor, const struct hps_grpc_call *call, const void *grant,
                        uint32_t roles, struct hps_error *err)
{
    (void)call;
    (void)roles;
    HPS_ASSERT(visitor == &world && grant == &world);
    return world.rules_changed ? hps_error_set(err, HPS_PERMISSION, "no more") : HPS_OK;
}

static void release(const void *grant)
{
    world.n_grants -= grant != NULL ? 1 : 0;
}

static void world_open(void)
{
    static const struct hps_grpc_guard guard = {.visitor_new = visitor_new,
                                                .visitor_free = visitor_free,
                                                .enter = enter,
                                                .visitor_again = visitor_again,
                                                .again = again,
                                                .release = release};
    static const struct hps_grpc_limits limits = {
        .request_bytes_max = 64 * 1024,
        .request_bytes_all_max = 256 * 1024,
        .connection_reply_bytes_max = 512 * 1024,
        .streams_max = 16,
        .compression = true,
        .handshake_timeout_us = 10 * 1000 * 1000,
        .stall_timeout_us = 30 * 1000 * 1000,
        .idle_timeout_us = 60 * 1000 * 1000,
    };
    const struct hps_grpc_observer observer = {.on_connection = on_connection};

    hps_log_level_set(HPS_LOG_ERROR);
    hps_clock_fake(hps_clock_us());
    HPS_ASSERT(hps_loop_new(&world.loop, NULL) == HPS_OK);
    world.blocks = hps_block_pool_new(1 << 20);
    world.server = hps_grpc_server_new(&limits, &observer);
    HPS_ASSERT(world.blocks != NULL && world.server != NULL);
    HPS_ASSERT(hps_grpc_server_add_http(world.server, routes, sizeof(routes) / sizeof(routes[0]),
                                        NULL, 1) == HPS_OK);
    hps_grpc_server_guard_set(world.server, &guard);
    HPS_ASSERT(hps_grpc_loop_new(world.server, world.loop, &world.grpc_loop) == HPS_OK);
}

/* ---- the peer -------------------------------------------------------------------------------- */

struct peer {
    int fd;
    bool asks_heads; /* whose answers have a length, but no body */
    struct hps_buf in;
};

/* What the server said is answers, one behind the other. */
static void check_answers(const struct peer *peer)
{
    const char *at = (const char *)peer->in.data;
    size_t left = peer->in.size;

    while (left > 0) {
        HPS_ASSERT(left < 9 || memcmp(at, "HTTP/1.1 ", 9) == 0);
        const char *end = memmem(at, left, "\r\n\r\n", 4);
        if (end == NULL || peer->asks_heads) {
            return;
        }
        const char *length = memmem(at, (size_t)(end - at) + 2, "\r\nContent-Length: ", 18);
        size_t size = (size_t)(end + 4 - at);
        size += length != NULL ? strtoul(length + 18, NULL, 10) : 0;
        HPS_ASSERT(memchr(at, '\0', (size_t)(end - at)) == NULL);
        if (size >= left) {
            return;
        }
        at += size;
        left -= size;
    }
}

static void receive(struct peer *peer)
{
    ssize_t n;

    hps_loop_turn(world.loop, 0);
    do {
        HPS_ASSERT(hps_buf_reserve(&peer->in, 65536) == HPS_OK);
        n = recv(peer->fd, peer->in.data + peer->in.size, 65536, 0);
        peer->in.size += n > 0 ? (size_t)n : 0;
    } while (n > 0);
}

static void send_all(struct peer *peer, const uint8_t *data, size_t size, size_t piece, bool reads)
{
    for (unsigned stalled = 0; size > 0 && stalled < STEPS_MAX; stalled++) {
        ssize_t n = send(peer->fd, data, piece < size ? piece : size, MSG_NOSIGNAL);
        if (n > 0) {
            data += n;
            size -= (size_t)n;
            stalled = 0;
        } else if (errno != EAGAIN) {
            return;
        }
        hps_loop_turn(world.loop, 0);
        if (reads) {
            receive(peer);
        }
    }
}

static void end(struct peer *peer, uint8_t how)
{
    if ((how & END_ANSWER) != 0 && world.parked != NULL) {
        hps_grpc_call_send_copy(world.parked, "parked", 6);
        hps_grpc_call_finish(world.parked, 0, NULL);
    }
    if ((how & END_SHUTDOWN) != 0) {
        (void)shutdown(peer->fd, SHUT_WR);
        hps_loop_turn(world.loop, 0);
    }
    if ((how & END_RULES) != 0) {
        world.rules_changed = true;
        hps_grpc_loop_recheck(world.grpc_loop);
        hps_loop_turn(world.loop, 0);
        world.rules_changed = false;
    }
    if ((how & END_LATE) != 0) {
        hps_clock_advance(40 * 1000 * 1000);
        hps_loop_turn(world.loop, 0);
    }
}

static void peer_close(struct peer *peer)
{
    close(peer->fd);
    hps_buf_fini(&peer->in);
    for (unsigned i = 0; i < STEPS_MAX && world.n_connections > 0; i++) {
        hps_clock_advance(100 * 1000); /* a peer that has gone is looked for now and then */
        hps_loop_turn(world.loop, 0);
    }
    if (world.parked != NULL) {
        hps_grpc_call_unref(world.parked);
        world.parked = NULL;
    }
    HPS_ASSERT(world.n_connections == 0 && world.n_open == 0 && world.n_grants == 0);
    HPS_ASSERT(hps_grpc_loop_bytes_in_flight(world.grpc_loop) == 0);
    HPS_ASSERT(hps_block_pool_bytes(world.blocks) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct script script = {data, size};
    struct peer peer = {0};
    struct hps_conn *conn;
    int fds[2];

    if (world.loop == NULL) {
        world_open();
    }
    uint8_t pieces = script_u8(&script);
    uint8_t how = script_u8(&script);
    hps_buf_init(&peer.in, 64 * 1024 * 1024);
    peer.asks_heads = script.left >= 4 && memmem(script.at, script.left, "HEAD", 4) != NULL;
    HPS_ASSERT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
    HPS_ASSERT(hps_conn_new(fds[0], NULL, &conn, NULL) == HPS_OK);
    hps_grpc_loop_adopt_http(world.grpc_loop, conn, 1);
    peer.fd = fds[1];
    send_all(&peer, script.at, script.left, pieces > 0 ? pieces : SIZE_MAX,
             (how & END_UNREAD) == 0);
    end(&peer, how);
    receive(&peer);
    receive(&peer);
    check_answers(&peer);
    peer_close(&peer);
    return 0;
}

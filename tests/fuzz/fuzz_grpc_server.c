/* SPDX-License-Identifier: Apache-2.0
 *
 * Frames in any order against a whole server connection: the session, the machine of each call, the
 * messages put together from their pieces, windows, floods, time. Each input is one connection to
 * the same server. What must hold whatever the peer does: every call that a method saw is closed
 * once, nothing is held when the peer is gone, and what the server says are frames of HTTP/2.
 */
#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/log.h"
#include "net/grpc.h"
#include "tests/fuzz/frames.h"

enum { STEPS_MAX = 64, POUR_BYTES = 64 * 1024, QUEUED_BYTES_MAX = 256 * 1024, PARKED_MAX = 4 };
enum { PLAIN_BYTES_MAX = 32 * 1024, CHARGE_FACTOR = 1024 };

static struct {
    struct hps_loop *loop;
    struct hps_grpc_server *server;
    struct hps_grpc_loop *grpc_loop;
    struct hps_block_pool *blocks;
    struct hps_grpc_service service;
    struct hps_grpc_call *parked[PARKED_MAX]; /* referenced; NULL: none */
    int n_connections;
    unsigned n_open; /* calls that a method saw, and whose end it did not */
    int n_visitors;
    int n_grants;
    unsigned rules; /* 1: calls lost what they need; 2: the connection did */
} world;

static const char charged_mark;
static void *const charged_place = (void *)(uintptr_t)&charged_mark;

/* ---- the service ----------------------------------------------------------------------------- */

static void saw(struct hps_grpc_call *call)
{
    if (hps_grpc_call_user(call) == NULL) {
        world.n_open++;
        hps_grpc_call_set_user(call, &world);
    }
    size_t size;
    const char *raw = hps_grpc_call_header(call, "x-raw-bin", &size);
    HPS_ASSERT(raw == NULL || size <= 256);
}

static void on_close(struct hps_grpc_call *call)
{
    if (hps_grpc_call_user(call) != NULL) {
        HPS_ASSERT(world.n_open > 0);
        world.n_open--;
        if (hps_grpc_call_user(call) == charged_place) {
            hps_grpc_call_discharge(call);
        }
        hps_grpc_call_set_user(call, NULL);
    }
}

static void on_echo(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    saw(call);
    hps_ignore(hps_grpc_call_add_header(call, "x-head", "h", 1));
    hps_ignore(hps_grpc_call_add_trailer(call, "x-tail-bin", data, size < 16 ? size : 16));
    hps_grpc_call_send_copy(call, data, size);
    hps_grpc_call_finish(call, 0, NULL);
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
    } else {
        HPS_ASSERT(size <= PLAIN_BYTES_MAX && (packed->compressed || size == packed->size));
        status = hps_grpc_call_charge(call, size * CHARGE_FACTOR + 1, size);
        if (status == HPS_OK) {
            hps_grpc_call_set_user(call, charged_place);
        } else if (status != HPS_AGAIN) {
            hps_grpc_call_finish(call, hps_status_grpc_code(status), "too many wait");
        }
    }
    hps_buf_fini(&plain);
}

static void on_room(struct hps_grpc_call *call)
{
    HPS_ASSERT(hps_grpc_call_user(call) == &world);
    hps_grpc_call_set_user(call, charged_place);
    hps_grpc_call_send_copy(call, "room", 4);
    hps_grpc_call_finish(call, 0, NULL);
}

static void on_park(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    (void)data;
    saw(call);
    struct hps_grpc_call **at = &world.parked[size % PARKED_MAX];
    if (*at != NULL) {
        hps_grpc_call_unref(*at);
    }
    hps_grpc_call_ref(call);
    hps_grpc_call_keep_message(call);
    *at = call;
}

/* As much as the peer takes: for ever. */
static void pour(struct hps_grpc_call *call)
{
    while (!hps_grpc_call_cancelled(call) && hps_grpc_call_queued(call) < QUEUED_BYTES_MAX) {
        struct hps_block *block = hps_block_new(world.blocks, POUR_BYTES);
        HPS_ASSERT(block != NULL);
        memset(block->data, 'p', POUR_BYTES);
        const struct hps_slice slice = {block, block->data, POUR_BYTES};
        hps_grpc_call_send(call, &slice, 1);
    }
}

static void on_pour(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    (void)data;
    (void)size;
    saw(call);
    pour(call);
}

static void on_chat(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    saw(call);
    hps_grpc_call_send_copy(call, data, size);
}

static void on_chat_end(struct hps_grpc_call *call)
{
    hps_grpc_call_finish(call, 9, "50 % of \xc3\xa9\n");
}

static const struct hps_grpc_method methods[] = {
    {.path = "/t.T/Echo", .on_message = on_echo, .on_close = on_close},
    {.path = "/t.T/Park", .on_message = on_park, .on_close = on_close},
    {.path = "/t.T/Pour", .on_message = on_pour, .on_close = on_close, .on_drained = pour},
    {.path = "/t.T/Chat",
     .client_streaming = true,
     .on_message = on_chat,
     .on_half_close = on_chat_end,
     .on_close = on_close},
    {.path = "/t.T/Packed", .on_packed = on_packed, .on_close = on_close, .on_room = on_room},
    {.path = "/t.T/Tiny", .request_bytes_max = 10, .on_message = on_echo, .on_close = on_close},
};
static const char *const paths[] = {"/t.T/Echo", "/t.T/Park",   "/t.T/Pour", "/t.T/Chat",
                                    "/t.T/Tiny", "/t.T/Packed", "/t.T/None", "nowhere"};

static void on_connection(void *ctx, bool is_http, int delta)
{
    (void)ctx;
    (void)is_http;
    world.n_connections += delta;
}

static void on_call_end(void *ctx, struct hps_grpc_call *call, int code, uint64_t duration_us)
{
    (void)ctx;
    (void)call;
    (void)duration_us;
    HPS_ASSERT(code >= 0 && code <= 16);
}

/* ---- who may call ---------------------------------------------------------------------------- */

static void *visitor_new(void *ctx, const struct hps_conn *conn, uint32_t listener_mask)
{
    (void)ctx;
    (void)conn;
    HPS_ASSERT(listener_mask == 1);
    world.n_visitors++;
    return &world;
}

static void visitor_free(void *visitor)
{
    world.n_visitors -= visitor != NULL ? 1 : 0;
}

static hps_status enter(void *visitor, const struct hps_grpc_call *call, uint32_t roles,
                        const void **out_grant, struct hps_error *err)
{
    size_t size;

    (void)roles;
    HPS_ASSERT(visitor == &world);
    const char *token = hps_grpc_call_header(call, "authorization", &size);
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
    HPS_ASSERT(visitor == &world);
    return world.rules == 2 ? hps_error_set(err, HPS_UNAUTHENTICATED, "no more") : HPS_OK;
}

static hps_status again(void *visitor, const struct hps_grpc_call *call, const void *grant,
                        uint32_t roles, struct hps_error *err)
{
    (void)call;
    (void)roles;
    HPS_ASSERT(visitor == &world && grant == &world);
    return world.rules == 1 ? hps_error_set(err, HPS_PERMISSION, "no more") : HPS_OK;
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
        .request_bytes_per_s_min = 4096,
        .connection_reply_bytes_max = 512 * 1024,
        .streams_max = 16,
        .compression = true,
        .handshake_timeout_us = 10 * 1000 * 1000,
        .stall_timeout_us = 30 * 1000 * 1000,
        .idle_timeout_us = 60 * 1000 * 1000,
        .age_max_us = 600 * 1000 * 1000,
        .keepalive_us = 20 * 1000 * 1000,
        .keepalive_timeout_us = 10 * 1000 * 1000,
    };
    const struct hps_grpc_observer observer = {.on_call_end = on_call_end,
                                               .on_connection = on_connection};

    hps_log_level_set(HPS_LOG_ERROR);
    hps_clock_fake(hps_clock_us());
    HPS_ASSERT(hps_loop_new(&world.loop, NULL) == HPS_OK);
    world.blocks = hps_block_pool_new(1 << 20);
    world.server = hps_grpc_server_new(&limits, &observer);
    HPS_ASSERT(world.blocks != NULL && world.server != NULL);
    world.service =
        (struct hps_grpc_service){"t.T", methods, sizeof(methods) / sizeof(methods[0]), NULL};
    HPS_ASSERT(hps_grpc_server_add(world.server, &world.service, 1) == HPS_OK);
    hps_grpc_server_guard_set(world.server, &guard);
    HPS_ASSERT(hps_grpc_loop_new(world.server, world.loop, &world.grpc_loop) == HPS_OK);
}

/* ---- the peer -------------------------------------------------------------------------------- */

struct peer {
    int fd;
    struct frames frames;
    uint8_t head[9]; /* of the frame that is being received */
    size_t n_head;
    size_t left; /* of its payload */
};

static void peer_open(struct peer *peer, bool begins)
{
    int fds[2];
    struct hps_conn *conn;

    *peer = (struct peer){0};
    frames_init(&peer->frames, false, paths, sizeof(paths) / sizeof(paths[0]));
    HPS_ASSERT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
    HPS_ASSERT(hps_conn_new(fds[0], NULL, &conn, NULL) == HPS_OK);
    hps_grpc_loop_adopt(world.grpc_loop, conn, 1);
    peer->fd = fds[1];
    if (begins) {
        frames_begin(&peer->frames);
    }
}

/* What the server sends is a sequence of frames of known types. */
static void check_frames(struct peer *peer, const uint8_t *data, size_t size)
{
    while (size > 0) {
        size_t n = peer->left < size ? peer->left : size;
        peer->left -= n;
        data += n;
        size -= n;
        while (size > 0 && peer->left == 0 && peer->n_head < sizeof(peer->head)) {
            peer->head[peer->n_head++] = *data++;
            size--;
        }
        if (peer->n_head == sizeof(peer->head)) {
            HPS_ASSERT(peer->head[3] <= 9);
            peer->left = (size_t)peer->head[0] << 16 | (size_t)peer->head[1] << 8 | peer->head[2];
            peer->n_head = 0;
        }
    }
}

static void receive(struct peer *peer)
{
    static uint8_t bytes[256 * 1024];
    ssize_t n;

    hps_loop_turn(world.loop, 0);
    do {
        n = recv(peer->fd, bytes, sizeof(bytes), 0);
        check_frames(peer, bytes, n > 0 ? (size_t)n : 0);
    } while (n > 0);
}

static void send_frames(struct peer *peer)
{
    struct hps_buf *out = &peer->frames.out;

    for (unsigned i = 0; out->size > 0 && i < STEPS_MAX; i++) {
        ssize_t n = send(peer->fd, out->data, out->size, MSG_NOSIGNAL);
        if (n > 0) {
            hps_buf_consume(out, (size_t)n);
        } else if (errno != EAGAIN) {
            break;
        }
        hps_loop_turn(world.loop, 0);
    }
    hps_buf_clear(out);
}

static void answer_parked(struct script *script)
{
    struct hps_grpc_call **at = &world.parked[script_u8(script) % PARKED_MAX];

    if (*at != NULL) {
        size_t size;
        const uint8_t *data = script_run(script, &size);
        hps_grpc_call_send_copy(*at, data, size);
        hps_grpc_call_finish(*at, (int)(size % 17), "parked");
        hps_grpc_call_unref(*at);
        *at = NULL;
    }
}

static void step(struct peer *peer, uint8_t kind, struct script *script)
{
    switch (kind) {
    case FRAMES_KINDS:
        send_frames(peer);
        break;
    case FRAMES_KINDS + 1:
        send_frames(peer);
        receive(peer);
        break;
    case FRAMES_KINDS + 2:
        hps_clock_advance((uint64_t)1 << (script_u8(script) % 28));
        hps_loop_turn(world.loop, 0);
        break;
    case FRAMES_KINDS + 3:
        answer_parked(script);
        break;
    case FRAMES_KINDS + 4:
        send_frames(peer);
        (void)shutdown(peer->fd, SHUT_WR);
        break;
    case FRAMES_KINDS + 5:
        send_frames(peer);
        world.rules = script_u8(script) % 3;
        hps_grpc_loop_recheck(world.grpc_loop);
        world.rules = 0;
        break;
    default:
        frames_put(&peer->frames, kind, script);
        break;
    }
}

static void peer_close(struct peer *peer)
{
    close(peer->fd);
    frames_fini(&peer->frames);
    for (unsigned i = 0; i < STEPS_MAX && world.n_connections > 0; i++) {
        hps_loop_turn(world.loop, 0);
    }
    for (unsigned i = 0; i < PARKED_MAX; i++) {
        if (world.parked[i] != NULL) {
            hps_grpc_call_unref(world.parked[i]);
            world.parked[i] = NULL;
        }
    }
    HPS_ASSERT(world.n_connections == 0 && world.n_open == 0);
    HPS_ASSERT(world.n_visitors == 0 && world.n_grants == 0);
    HPS_ASSERT(hps_grpc_loop_bytes_in_flight(world.grpc_loop) == 0);
    HPS_ASSERT(hps_block_pool_bytes(world.blocks) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct script script = {data, size};
    struct peer peer;

    if (world.loop == NULL) {
        world_open();
    }
    peer_open(&peer, script_u8(&script) != 255);
    for (unsigned i = 0; i < STEPS_MAX && script.left > 0; i++) {
        step(&peer, script_u8(&script) % (FRAMES_KINDS + 6), &script);
    }
    send_frames(&peer);
    receive(&peer);
    peer_close(&peer);
    return 0;
}

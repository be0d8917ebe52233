/* SPDX-License-Identifier: Apache-2.0
 *
 * Bytes of an HTTP/1.1 client to a server connection: heads, bodies of all kinds, routes, limits,
 * timeouts. The first byte of an input selects the size of the parts in which it is sent, the
 * second one what happens at the end. Each call that a method has received must be closed once.
 * When the peer has disconnected, no memory may be held. The server must send only HTTP/1.1
 * responses.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/assert.h"
#include "base/clock.h"
#include "tests/fuzz/script.h"
#include "tests/fuzz/served.h"

enum { STEPS_MAX = 64, BIG_BYTES = 200 * 1000 };

/* What happens after all bytes are sent: bits of the second byte. */
enum { END_SHUTDOWN = 1, END_LATE = 2, END_RULES = 4, END_ANSWER = 8, END_UNREAD = 16 };

/* ---- routes ---------------------------------------------------------------------------------- */

static void on_name(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    (void)data;
    (void)size;
    served_saw(call);
    hps_grpc_call_finish(call, 5, hps_grpc_call_segment(call, 0, NULL));
}

static void on_big(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    struct hps_block *block = hps_block_new(served.blocks, BIG_BYTES);

    (void)data;
    (void)size;
    HPS_ASSERT(block != NULL);
    served_saw(call);
    memset(block->data, 'b', BIG_BYTES);
    hps_block_ref(block);
    const struct hps_slice slices[] = {{block, block->data, 100},
                                       {block, block->data + 100, BIG_BYTES - 100}};
    hps_grpc_call_send(call, slices, 2);
    hps_grpc_call_finish(call, 0, NULL);
}

#define ROUTE(verb_, path_, ...)                                                       \
    {                                                                                  \
        .verb = (verb_), .pattern = (path_), .method = {.path = (path_), __VA_ARGS__}, \
    }

static const struct hps_http_route routes[] = {
    ROUTE("POST", "/echo", .on_message = served_echo, .on_close = served_close),
    ROUTE("POST", "/tiny", .request_bytes_max = 10, .on_message = served_echo,
          .on_close = served_close),
    ROUTE("GET", "/v2/models/{}", .on_message = on_name, .on_close = served_close),
    ROUTE("GET", "/v2/models/{}/versions/{}", .on_message = on_name, .on_close = served_close),
    ROUTE("GET", "/big", .on_message = on_big, .on_close = served_close),
    ROUTE("POST", "/park", .on_message = served_park, .on_close = served_close),
    ROUTE("POST", "/packed", .on_packed = served_packed, .on_close = served_close),
};

/* ---- the peer -------------------------------------------------------------------------------- */

struct peer {
    int fd;
    bool asks_heads; /* responses to HEAD have a length, but no body */
    struct hps_buf in;
};

/* Checks that the server has sent a sequence of responses. */
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

    hps_loop_turn(served.loop, 0);
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
        hps_loop_turn(served.loop, 0);
        if (reads) {
            receive(peer);
        }
    }
}

static void end(struct peer *peer, uint8_t how)
{
    for (unsigned i = 0; i < SERVED_PARKED_MAX && (how & END_ANSWER) != 0; i++) {
        served_answer(i, "parked", 6, 0);
    }
    if ((how & END_SHUTDOWN) != 0) {
        (void)shutdown(peer->fd, SHUT_WR);
        hps_loop_turn(served.loop, 0);
    }
    if ((how & END_RULES) != 0) {
        served_recheck(1);
    }
    if ((how & END_LATE) != 0) {
        hps_clock_advance(40 * 1000 * 1000);
        hps_loop_turn(served.loop, 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct script script = {data, size};
    struct peer peer = {0};

    if (served_make()) {
        HPS_ASSERT(hps_grpc_server_add_http(served.server, routes,
                                            sizeof(routes) / sizeof(routes[0]), NULL, 1) == HPS_OK);
        served_start();
    }
    uint8_t pieces = script_u8(&script);
    uint8_t how = script_u8(&script);
    hps_buf_init(&peer.in, 64 * 1024 * 1024);
    peer.asks_heads = script.left >= 4 && memmem(script.at, script.left, "HEAD", 4) != NULL;
    peer.fd = served_connect(true);
    send_all(&peer, script.at, script.left, pieces > 0 ? pieces : SIZE_MAX,
             (how & END_UNREAD) == 0);
    end(&peer, how);
    receive(&peer);
    receive(&peer);
    check_answers(&peer);
    hps_buf_fini(&peer.in);
    served_gone(peer.fd);
    return 0;
}

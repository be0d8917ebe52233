/* SPDX-License-Identifier: Apache-2.0
 *
 * Frames in any order to a server connection. They reach the HTTP/2 session, the phases of calls,
 * the assembly of messages, flow control, floods and timeouts. Each call that a method has received
 * must be closed once. When the peer has disconnected, no memory may be held. The server must send
 * only HTTP/2 frames.
 */
#include <errno.h>
#include <sys/socket.h>

#include "base/assert.h"
#include "base/clock.h"
#include "tests/fuzz/frames.h"
#include "tests/fuzz/served.h"

enum { STEPS_MAX = 64, POUR_BYTES = 64 * 1024, QUEUED_BYTES_MAX = 256 * 1024 };

/* ---- the service ----------------------------------------------------------------------------- */

/* Sends without end, as fast as the peer reads. */
static void pour(struct hps_grpc_call *call)
{
    while (!hps_grpc_call_cancelled(call) && hps_grpc_call_queued(call) < QUEUED_BYTES_MAX) {
        struct hps_block *block = hps_block_new(served.blocks, POUR_BYTES);
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
    served_saw(call);
    pour(call);
}

static void on_chat(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    served_saw(call);
    hps_grpc_call_send_copy(call, data, size);
}

static void on_chat_end(struct hps_grpc_call *call)
{
    hps_grpc_call_finish(call, 9, "50 % of \xc3\xa9\n");
}

static const struct hps_grpc_method methods[] = {
    {.path = "/t.T/Echo", .on_message = served_echo, .on_close = served_close},
    {.path = "/t.T/Park", .on_message = served_park, .on_close = served_close},
    {.path = "/t.T/Pour", .on_message = on_pour, .on_close = served_close, .on_drained = pour},
    {.path = "/t.T/Chat",
     .client_streaming = true,
     .on_message = on_chat,
     .on_half_close = on_chat_end,
     .on_close = served_close},
    {.path = "/t.T/Packed", .on_packed = served_packed, .on_close = served_close},
    {.path = "/t.T/Tiny",
     .request_bytes_max = 10,
     .on_message = served_echo,
     .on_close = served_close},
};
static const struct hps_grpc_service service = {"t.T", methods,
                                                sizeof(methods) / sizeof(methods[0]), NULL};
static const char *const paths[] = {"/t.T/Echo", "/t.T/Park",   "/t.T/Pour", "/t.T/Chat",
                                    "/t.T/Tiny", "/t.T/Packed", "/t.T/None", "nowhere"};

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
    *peer = (struct peer){.fd = served_connect(false)};
    frames_init(&peer->frames, false, paths, sizeof(paths) / sizeof(paths[0]));
    if (begins) {
        frames_begin(&peer->frames);
    }
}

/* Checks that the server sends a sequence of frames of known types. */
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

    hps_loop_turn(served.loop, 0);
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
        hps_loop_turn(served.loop, 0);
    }
    hps_buf_clear(out);
}

static void step(struct peer *peer, uint8_t kind, struct script *script)
{
    const uint8_t *data;
    size_t size;
    uint8_t slot;

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
        hps_loop_turn(served.loop, 0);
        break;
    case FRAMES_KINDS + 3:
        slot = script_u8(script);
        data = script_run(script, &size);
        served_answer(slot, data, size, (int)(size % 17));
        break;
    case FRAMES_KINDS + 4:
        send_frames(peer);
        (void)shutdown(peer->fd, SHUT_WR);
        break;
    case FRAMES_KINDS + 5:
        send_frames(peer);
        served_recheck(script_u8(script) % 3);
        break;
    default:
        frames_put(&peer->frames, kind, script);
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct script script = {data, size};
    struct peer peer;

    if (served_make()) {
        HPS_ASSERT(hps_grpc_server_add(served.server, &service, 1) == HPS_OK);
        served_start();
    }
    peer_open(&peer, script_u8(&script) != 255);
    for (unsigned i = 0; i < STEPS_MAX && script.left > 0; i++) {
        step(&peer, script_u8(&script) % (FRAMES_KINDS + 6), &script);
    }
    send_frames(&peer);
    receive(&peer);
    frames_fini(&peer.frames);
    served_gone(peer.fd);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Frames of a hostile server, in any order, to a client channel and its calls. hps-bench, hpsctl
 * and hps-publish use such channels. Each input uses one channel, which may connect several times.
 * Every call must end once, with a gRPC code, and no message may exceed the channel's limit.
 */
#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "net/grpc.h"
#include "net/sock.h"
#include "tests/fuzz/frames.h"
#include "tests/fuzz/place.h"

enum { STEPS_MAX = 64, CALLS_MAX = 8, REPLY_BYTES_MAX = 16 * 1024, CONNECT_US = 1000 * 1000 };

static struct {
    struct hps_loop *loop;
    struct hps_grpc_channel *channel;
    int listen_fd;
    int fd; /* the accepted connection; -1: none */
    char address[128];
} world;

struct call {
    struct hps_grpc_client_call *call; /* NULL: ended, or not started */
    bool begun;
    unsigned n_done;
};

static void on_message(void *ctx, const uint8_t *data, size_t size)
{
    const struct call *call = ctx;
    uint32_t sum = 0;

    HPS_ASSERT(call->n_done == 0 && size <= REPLY_BYTES_MAX);
    for (size_t i = 0; i < size; i++) {
        sum += data[i];
    }
    HPS_ASSERT(sum <= size * 255);
}

static void on_done(void *ctx, int code, const char *message)
{
    struct call *call = ctx;

    HPS_ASSERT(code >= 0 && (message == NULL || strlen(message) < (1 << 20)));
    HPS_ASSERT(call->n_done == 0);
    call->n_done++;
    call->call = NULL;
}

static const struct hps_grpc_client_events events = {.on_message = on_message, .on_done = on_done};

static void world_open(void)
{
    struct hps_addr addr = {.is_unix = true};

    hps_log_level_set(HPS_LOG_ERROR);
    hps_clock_fake(hps_clock_us());
    snprintf(addr.path, sizeof(addr.path), "%s", hps_tmpdir_join(&place_dir, "grpc"));
    snprintf(world.address, sizeof(world.address), "unix:%s", addr.path);
    HPS_ASSERT(hps_loop_new(&world.loop, NULL) == HPS_OK);
    HPS_ASSERT(hps_sock_listen(&addr, 0600, &world.listen_fd, NULL) == HPS_OK);
}

static void hang_up(void)
{
    if (world.fd >= 0) {
        close(world.fd);
        world.fd = -1;
    }
}

/* Accepts waiting connections, and keeps the newest one. */
static void answer(struct frames *frames)
{
    int fd;

    hps_loop_turn(world.loop, 0);
    while (hps_sock_accept(world.listen_fd, &fd) == HPS_OK) {
        hang_up();
        world.fd = fd;
        hps_buf_clear(&frames->out);
        frames_begin(frames);
    }
}

static void exchange(struct frames *frames)
{
    static uint8_t bytes[256 * 1024];
    struct hps_buf *out = &frames->out;

    answer(frames);
    if (world.fd < 0) {
        return;
    }
    for (unsigned i = 0; i < STEPS_MAX && out->size > 0; i++) {
        ssize_t n = send(world.fd, out->data, out->size, MSG_NOSIGNAL);
        if (n > 0) {
            hps_buf_consume(out, (size_t)n);
        } else if (errno != EAGAIN) {
            hang_up();
            break;
        }
        hps_loop_turn(world.loop, 0);
    }
    hps_buf_clear(out);
    hps_loop_turn(world.loop, 0);
    while (world.fd >= 0 && recv(world.fd, bytes, sizeof(bytes), 0) > 0) {
        /* not checked: tests of net/http2 and fuzz_grpc_server check frames */
    }
}

static void begin_call(struct call *call, struct script *script)
{
    uint8_t mode = script_u8(script);
    size_t size;
    const uint8_t *data = script_run(script, &size);
    uint64_t deadline_us = (mode & 1) != 0 ? hps_clock_us() + ((uint64_t)1 << (mode % 24)) : 0;

    if (call->begun) {
        return;
    }
    hps_status status = hps_grpc_client_start(world.channel, "/t.T/Any", data, size, deadline_us,
                                              &events, call, &call->call);
    call->begun = status == HPS_OK;
    if (call->n_done > 0) {
        call->call = NULL; /* it ended before it was returned */
    }
}

static void step(struct frames *frames, struct call calls[CALLS_MAX], uint8_t kind,
                 struct script *script)
{
    struct call *call;

    switch (kind) {
    case FRAMES_KINDS:
        exchange(frames);
        break;
    case FRAMES_KINDS + 1:
        begin_call(&calls[script_u8(script) % CALLS_MAX], script);
        break;
    case FRAMES_KINDS + 2:
        hps_clock_advance((uint64_t)1 << (script_u8(script) % 26));
        hps_loop_turn(world.loop, 0);
        break;
    case FRAMES_KINDS + 3:
        call = &calls[script_u8(script) % CALLS_MAX];
        if (call->call != NULL) {
            hps_grpc_client_cancel(call->call);
        }
        break;
    case FRAMES_KINDS + 4:
        exchange(frames);
        hang_up();
        break;
    default:
        frames_put(frames, kind, script);
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct script script = {data, size};
    struct call calls[CALLS_MAX] = {0};
    struct frames frames;

    if (place_open()) {
        world_open();
    }
    const struct hps_grpc_channel_options options = {.address = world.address,
                                                     .bearer_token = "secret",
                                                     .reply_bytes_max = REPLY_BYTES_MAX,
                                                     .connect_timeout_us = CONNECT_US};
    world.fd = -1;
    HPS_ASSERT(hps_grpc_channel_new(world.loop, &options, &world.channel, NULL) == HPS_OK);
    frames_init(&frames, true, NULL, 0);
    begin_call(&calls[0], &script);
    exchange(&frames);
    frames.next_id = 2u * CALLS_MAX + 1;
    for (unsigned i = 0; i < STEPS_MAX && script.left > 0; i++) {
        step(&frames, calls, script_u8(&script) % (FRAMES_KINDS + 5), &script);
    }
    exchange(&frames);
    hang_up();
    hps_grpc_channel_free(world.channel);
    hps_loop_turn(world.loop, 0);
    answer(&frames);
    hang_up();
    for (unsigned i = 0; i < CALLS_MAX; i++) {
        HPS_ASSERT(calls[i].n_done == calls[i].begun);
    }
    frames_fini(&frames);
    return 0;
}

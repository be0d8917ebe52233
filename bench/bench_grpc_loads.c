/* SPDX-License-Identifier: Apache-2.0
 *
 * Clients of bench_grpc.c: one connection, a fixed number of calls in flight, each reply in one
 * piece of memory. Our client speaks gRPC to any gRPC server, the bare client length-prefixed
 * messages. Main thread.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/heap.h"
#include "bench/bench.h"
#include "bench/bench_grpc.h"
#include "client/client.h"
#include "client/hist.h"
#include "client/lookup.h"
#include "net/loop.h"
#include "net/sock.h"

enum { CALLS_MAX = 256, PIECE_BYTES = 64 * 1024, CLIENT_CPU = 1, TURN_US = 10000, WARM_ROUNDS = 2 };

struct load_state {
    const struct bench_load *load;
    struct hps_hist *ns;
    struct hps_client *client;
    uint8_t request[8];
    size_t request_bytes;
    uint64_t start_ns;
    uint64_t end_ns;
    uint64_t start_cpu_ns;
    uint64_t n_done;
    uint64_t n_warm; /* warm-up calls left: they open buffers and windows */
    uint64_t n_warm_all;
    uint64_t n_answered; /* bare: includes warm-up calls */
    uint64_t bytes;
    unsigned n_under_way;
    int failed; /* gRPC code */
};

struct load_call {
    struct load_state *state;
    uint64_t start_ns;
};

static void begin(struct load_state *state)
{
    state->n_done = 0;
    state->bytes = 0;
    *state->ns = (struct hps_hist){0};
    state->start_cpu_ns = bench_clock_ns(CLOCK_THREAD_CPUTIME_ID);
    state->start_ns = bench_now_ns();
    state->end_ns = state->start_ns + state->load->ns;
}

/* Record a finished call that took `ns`. */
static void count_call(struct load_state *state, uint64_t ns)
{
    state->n_done++;
    hps_hist_add(state->ns, ns);
    if (state->n_warm > 0 && --state->n_warm == 0) {
        begin(state);
    }
}

static void finish(const struct load_state *state, struct bench_result *out_result)
{
    double seconds = (double)(bench_now_ns() - state->start_ns) / 1e9;
    uint64_t cpu_ns = bench_clock_ns(CLOCK_THREAD_CPUTIME_ID) - state->start_cpu_ns;

    *out_result = (struct bench_result){
        .calls_per_s = (double)state->n_done / seconds,
        .bytes_per_s = (double)state->bytes / seconds,
        .p50_us = (double)hps_hist_quantile(state->ns, 0.5) / 1e3,
        .cpu_us = (double)cpu_ns / 1e3 / (double)state->n_done,
        .n_calls = state->n_done + state->n_warm_all,
    };
}

/* ---- gRPC ------------------------------------------------------------------------------------ */

static void start_call(struct load_call *call);

static void on_message(void *ctx, const uint8_t *data, size_t size)
{
    struct load_call *call = ctx;

    (void)data;
    call->state->bytes += size;
}

static void on_done(void *ctx, int grpc_code, const char *message)
{
    struct load_call *call = ctx;
    struct load_state *state = call->state;
    uint64_t now_ns = bench_now_ns();

    (void)message;
    state->n_under_way--;
    count_call(state, now_ns - call->start_ns);
    if (grpc_code != 0) {
        state->failed = grpc_code;
    } else if (now_ns < state->end_ns) {
        start_call(call);
    }
}

static void start_call(struct load_call *call)
{
    static const struct hps_grpc_client_events events = {.on_message = on_message,
                                                         .on_done = on_done};
    struct load_state *state = call->state;

    call->start_ns = bench_now_ns();
    if (hps_grpc_client_start(hps_client_channel(state->client), HPS_CLIENT_LOOKUP_PATH,
                              state->request, state->request_bytes, 0, &events, call,
                              NULL) == HPS_OK) {
        state->n_under_way++;
    } else {
        state->failed = 8;
    }
}

hps_status bench_load_grpc(const char *address, const struct bench_load *load,
                           struct bench_result *out_result, struct hps_error *err)
{
    struct load_call calls[CALLS_MAX];
    struct hps_client_options options = {.address = address};
    struct load_state state = {.load = load, .ns = hps_calloc(1, sizeof(*state.ns))};
    hps_status status =
        state.ns == NULL ? HPS_NO_MEMORY : hps_client_open(&options, &state.client, err);

    if (status != HPS_OK) {
        hps_free(state.ns);
        return status;
    }
    bench_bind(CLIENT_CPU);
    state.request_bytes = reply_request(load->kind, load->gather, state.request);
    state.n_warm = state.n_warm_all = WARM_ROUNDS * (uint64_t)load->n;
    begin(&state);
    for (unsigned i = 0; i < load->n && i < CALLS_MAX; i++) {
        calls[i].state = &state;
        start_call(&calls[i]);
    }
    while (state.n_under_way > 0) {
        hps_loop_turn(hps_client_loop(state.client), TURN_US);
    }
    finish(&state, out_result);
    hps_client_close(state.client);
    hps_free(state.ns);
    return state.failed == 0 ? HPS_OK
                             : hps_error_set(err, HPS_UNAVAILABLE, "%s: a call failed with code %d",
                                             address, state.failed);
}

/* ---- bare ------------------------------------------------------------------------------------ */

static hps_status raw_connect(const char *address, int *out_fd, struct hps_error *err)
{
    struct hps_addr addr;
    hps_status status = hps_addr_parse(address, &addr, err);

    if (status == HPS_OK) {
        status = hps_sock_connect(&addr, out_fd, err);
    }
    if (status == HPS_OK) {
        struct pollfd polled = {*out_fd, POLLOUT, 0};
        (void)poll(&polled, 1, -1);
        status = hps_sock_connected(*out_fd, err);
        hps_sock_tune(*out_fd);
    }
    return status;
}

/* in[0 .. size) has whole messages; move the rest to the front. */
struct raw_input {
    uint8_t *data;
    size_t capacity;
    size_t size;
};

static bool raw_wait(int fd)
{
    struct pollfd polled = {fd, POLLIN, 0};

    return poll(&polled, 1, -1) >= 0 || errno == EINTR;
}

/* Send `n` requests in one piece. */
static bool raw_send(int fd, const struct load_state *state, unsigned n)
{
    uint8_t out[CALLS_MAX * 12];
    uint32_t size = (uint32_t)state->request_bytes;
    size_t bytes = 0;

    for (unsigned i = 0; i < n; i++) {
        memcpy(out + bytes, &size, 4);
        memcpy(out + bytes + 4, state->request, size);
        bytes += 4 + size;
    }
    return send(fd, out, bytes, MSG_NOSIGNAL) == (ssize_t)bytes;
}

static bool raw_read(int fd, struct raw_input *in)
{
    size_t space = in->capacity - in->size;
    ssize_t n = recv(fd, in->data + in->size, space < PIECE_BYTES ? space : PIECE_BYTES, 0);

    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        return raw_wait(fd);
    }
    in->size += n > 0 ? (size_t)n : 0;
    return n > 0;
}

/* Count whole replies and send as many new requests. Replies come in the order of requests, so the
 * oldest start is the one that a reply belongs to. */
static bool raw_take(int fd, struct load_state *state, struct raw_input *in, uint64_t *starts)
{
    size_t at = 0;
    unsigned n = 0;
    uint64_t now_ns = bench_now_ns();

    while (in->size - at >= 4) {
        uint32_t size;
        memcpy(&size, in->data + at, 4);
        if (in->size - at - 4 < size) {
            break;
        }
        at += 4 + (size_t)size;
        state->bytes += size;
        uint64_t ns = now_ns - starts[state->n_answered++ % CALLS_MAX];
        count_call(state, ns);
        state->n_under_way--;
        n++;
    }
    memmove(in->data, in->data + at, in->size - at);
    in->size -= at;
    if (now_ns >= state->end_ns) {
        return true;
    }
    for (unsigned i = 0; i < n; i++) {
        starts[(state->n_answered + state->n_under_way + i) % CALLS_MAX] = now_ns;
    }
    state->n_under_way += n;
    return n == 0 || raw_send(fd, state, n);
}

hps_status bench_load_raw(const char *address, const struct bench_load *load,
                          struct bench_result *out_result, struct hps_error *err)
{
    uint64_t starts[CALLS_MAX];
    struct load_state state = {.load = load, .ns = hps_calloc(1, sizeof(*state.ns))};
    struct raw_input in = {.capacity = (size_t)32 << 20};
    int fd = -1;
    hps_status status = raw_connect(address, &fd, err);

    in.data = hps_alloc_aligned(2 << 20, in.capacity);
    if (status != HPS_OK || in.data == NULL || state.ns == NULL) {
        status = status != HPS_OK ? status : hps_error_set(err, HPS_NO_MEMORY, "no memory");
        goto out;
    }
    bench_bind(CLIENT_CPU);
    state.request_bytes = reply_request(load->kind, load->gather, state.request);
    state.n_warm = state.n_warm_all = WARM_ROUNDS * (uint64_t)load->n;
    begin(&state);
    state.n_under_way = load->n;
    for (unsigned i = 0; i < CALLS_MAX; i++) {
        starts[i] = state.start_ns;
    }
    bool ok = raw_send(fd, &state, load->n);
    while (ok && state.n_under_way > 0) {
        ok = raw_read(fd, &in) && raw_take(fd, &state, &in, starts);
    }
    finish(&state, out_result);
    status = ok ? HPS_OK : hps_error_set(err, HPS_IO, "bare client: %s", strerror(errno));
out:
    if (fd >= 0) {
        close(fd);
    }
    hps_free_aligned(in.data);
    hps_free(state.ns);
    return status;
}

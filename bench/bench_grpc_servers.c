/* SPDX-License-Identifier: Apache-2.0
 *
 * Servers that bench_grpc.c compares: ours (one event loop on one thread); a bare one with the same
 * replies (length-prefixed messages, one thread, one sendmsg for many replies); and libgrpc++'s in
 * its own process.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/heap.h"
#include "bench/bench.h"
#include "bench/bench_grpc.h"
#include "bench/child.h"
#include "client/wire.h"
#include "net/acceptor.h"
#include "net/grpc.h"
#include "net/sock.h"

enum { SERVER_CPU = 0, RAW_IN_BYTES = 64 * 1024, RAW_REPLIES_MAX = 256, GATHER_AHEAD = 8 };

/* ---- replies --------------------------------------------------------------------------------- */

static const size_t kind_bytes[REPLY_KINDS] = {64, 512 * 1024, 26562 * (size_t)GATHER_ROW_BYTES};

size_t reply_request(unsigned kind, bool gather, uint8_t out[4])
{
    out[0] = 0x0a; /* field 1, the model's name */
    out[1] = gather ? 2 : 1;
    out[2] = (uint8_t)('a' + kind);
    out[3] = 'g';
    return gather ? 4 : 3;
}

static hps_status make_head(struct replies *replies, unsigned kind)
{
    struct hps_buf buf;
    size_t rows = replies->rows_bytes[kind];

    hps_buf_init(&buf, REPLY_HEAD_BYTES_MAX);
    hps_status status = hps_wire_put_head(&buf, 4, hps_wire_field_size(rows));
    if (status == HPS_OK) {
        status = hps_wire_put_head(&buf, 15, rows);
    }
    if (status == HPS_OK) {
        memcpy(replies->heads[kind]->data, buf.data, buf.size);
        replies->head_bytes[kind] = buf.size;
    }
    hps_buf_fini(&buf);
    return status;
}

hps_status replies_init(struct replies *replies)
{
    *replies = (struct replies){.random = {7}};
    replies->pool = hps_block_pool_new((size_t)256 << 20);
    replies->table = hps_alloc_aligned(2 << 20, (size_t)GATHER_ROWS * GATHER_ROW_BYTES);
    if (replies->pool == NULL || replies->table == NULL) {
        return HPS_NO_MEMORY;
    }
    memset(replies->table, 'x', (size_t)GATHER_ROWS * GATHER_ROW_BYTES);
    for (unsigned kind = 0; kind < REPLY_KINDS; kind++) {
        replies->rows_bytes[kind] = kind_bytes[kind];
        replies->heads[kind] = hps_block_new(replies->pool, REPLY_HEAD_BYTES_MAX);
        replies->rows[kind] = hps_block_new(replies->pool, kind_bytes[kind]);
        if (replies->heads[kind] == NULL || replies->rows[kind] == NULL) {
            return HPS_NO_MEMORY;
        }
        memset(replies->rows[kind]->data, 'x', kind_bytes[kind]);
        hps_status status = make_head(replies, kind);
        if (status != HPS_OK) {
            return status;
        }
    }
    return HPS_OK;
}

void replies_fini(struct replies *replies)
{
    for (unsigned kind = 0; kind < REPLY_KINDS; kind++) {
        hps_block_unref(replies->heads[kind]);
        hps_block_unref(replies->rows[kind]);
    }
    if (replies->pool != NULL) {
        hps_block_pool_free(replies->pool);
    }
    hps_free_aligned(replies->table);
}

static const uint8_t *random_row(struct replies *replies)
{
    const uint8_t *row =
        replies->table + (hps_random_next(&replies->random) % GATHER_ROWS) * GATHER_ROW_BYTES;

    for (unsigned at = 0; at < GATHER_ROW_BYTES; at += 64) {
        __builtin_prefetch(row + at, 0, 2);
    }
    return row;
}

static void gather(struct replies *replies, uint8_t *out, size_t bytes)
{
    const uint8_t *ahead[GATHER_AHEAD];

    for (unsigned i = 0; i < GATHER_AHEAD; i++) {
        ahead[i] = random_row(replies);
    }
    for (size_t i = 0; i < bytes / GATHER_ROW_BYTES; i++) {
        memcpy(out + i * GATHER_ROW_BYTES, ahead[i % GATHER_AHEAD], GATHER_ROW_BYTES);
        ahead[i % GATHER_AHEAD] = random_row(replies);
    }
}

struct hps_block *reply_rows(struct replies *replies, const uint8_t *request, size_t size,
                             unsigned *out_kind)
{
    unsigned kind = size >= 3 && request[2] >= 'a' ? request[2] - 'a' : 0;

    kind = kind < REPLY_KINDS ? kind : 0;
    *out_kind = kind;
    if (size < 4) {
        hps_block_ref(replies->rows[kind]);
        return replies->rows[kind];
    }
    struct hps_block *block = hps_block_new(replies->pool, replies->rows_bytes[kind]);
    if (block != NULL) {
        gather(replies, block->data, replies->rows_bytes[kind]);
    }
    return block;
}

/* ---- ours ------------------------------------------------------------------------------------ */

struct ours {
    struct hps_loop *loop;
    struct hps_grpc_server *server;
    struct hps_grpc_loop *grpc_loop;
    struct hps_acceptor *acceptor;
    struct hps_grpc_service service;
    struct replies replies;
    pthread_t thread;
};

static void on_lookup(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    struct ours *ours = hps_grpc_call_ctx(call);
    unsigned kind;
    struct hps_block *rows = reply_rows(&ours->replies, data, size, &kind);

    if (rows == NULL) {
        hps_grpc_call_finish(call, 8, "no memory");
        return;
    }
    struct hps_block *head = ours->replies.heads[kind];
    struct hps_slice slices[2] = {{head, head->data, ours->replies.head_bytes[kind]},
                                  {rows, rows->data, ours->replies.rows_bytes[kind]}};
    hps_block_ref(head);
    hps_grpc_call_send(call, slices, 2);
    hps_grpc_call_finish(call, 0, NULL);
}

static const struct hps_grpc_method lookup_method = {
    .path = "/hps.v1.ParameterServer/Lookup",
    .on_message = on_lookup,
};

static void on_accept(void *ctx, struct hps_conn *conn, unsigned cookie)
{
    struct ours *ours = ctx;

    hps_grpc_loop_adopt(ours->grpc_loop, conn, cookie, false);
}

static void *ours_run(void *ctx)
{
    struct ours *ours = ctx;

    bench_bind(SERVER_CPU);
    hps_loop_run(ours->loop);
    hps_acceptor_free(ours->acceptor);
    hps_grpc_loop_free(ours->grpc_loop);
    hps_loop_free(ours->loop);
    return NULL;
}

static void ours_stop(void *impl)
{
    struct ours *ours = impl;

    hps_loop_stop(ours->loop);
    (void)pthread_join(ours->thread, NULL);
    hps_grpc_server_free(ours->server);
    replies_fini(&ours->replies);
    hps_free(ours);
}

static hps_status listen_any(int *out_fd, char *out_address, size_t size, struct hps_error *err)
{
    struct hps_addr addr;
    hps_status status = hps_addr_parse("127.0.0.1:0", &addr, err);

    if (status == HPS_OK) {
        status = hps_sock_listen(&addr, 0600, out_fd, err);
    }
    if (status == HPS_OK) {
        status = hps_sock_local(*out_fd, &addr);
    }
    if (status == HPS_OK) {
        (void)hps_addr_print(&addr, out_address, size);
    }
    return status;
}

static hps_status ours_open(struct ours *ours, struct bench_server *server, struct hps_error *err)
{
    static const struct hps_grpc_limits limits = {
        .compression = true,
        .request_bytes_max = 1 << 20,
        .connection_reply_bytes_max = (size_t)1 << 30,
        .streams_max = 256,
        .handshake_timeout_us = 10 * 1000 * 1000,
        .stall_timeout_us = 30 * 1000 * 1000,
    };
    struct hps_acceptor_options options = {.on_accept = on_accept, .ctx = ours};
    int fd = -1;
    hps_status status = replies_init(&ours->replies);

    ours->server = hps_grpc_server_new(&limits, NULL);
    ours->service = (struct hps_grpc_service){"hps.v1.ParameterServer", &lookup_method, 1, ours};
    if (status != HPS_OK || ours->server == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for a server");
    }
    status = hps_grpc_server_add(ours->server, &ours->service, 1);
    if (status == HPS_OK) {
        status = hps_loop_new(&ours->loop, err);
    }
    if (status == HPS_OK) {
        status = hps_grpc_loop_new(ours->server, ours->loop, &ours->grpc_loop);
    }
    if (status == HPS_OK) {
        status = hps_acceptor_new(ours->loop, &options, &ours->acceptor, err);
    }
    if (status == HPS_OK) {
        status = listen_any(&fd, server->address, sizeof(server->address), err);
    }
    return status == HPS_OK ? hps_acceptor_add(ours->acceptor, fd, NULL, 1, false, err) : status;
}

hps_status bench_server_grpc(struct bench_server *out_server, struct hps_error *err)
{
    struct ours *ours = hps_calloc(1, sizeof(*ours));
    hps_status status = ours == NULL ? HPS_NO_MEMORY : ours_open(ours, out_server, err);

    if (status == HPS_OK && pthread_create(&ours->thread, NULL, ours_run, ours) != 0) {
        status = HPS_EXHAUSTED;
    }
    if (status != HPS_OK) { /* the program ends without cleanup */
        return hps_error_prefix(err, status, "server");
    }
    (void)pthread_getcpuclockid(ours->thread, &out_server->cpu_clock);
    out_server->impl = ours;
    out_server->stop = ours_stop;
    return HPS_OK;
}

/* ---- bare ------------------------------------------------------------------------------------ */

struct raw {
    int listen_fd;
    int fd;
    int stop_pipe[2];
    struct replies replies;
    pthread_t thread;
    uint8_t in[RAW_IN_BYTES];
    size_t in_bytes;
    uint32_t sizes[RAW_REPLIES_MAX];
    struct hps_block *blocks[RAW_REPLIES_MAX];
    struct iovec iov[3 * RAW_REPLIES_MAX];
    int n_iov;
    unsigned n_replies;
};

static bool send_all(int fd, struct iovec *iov, int n)
{
    while (n > 0) {
        struct msghdr message = {.msg_iov = iov, .msg_iovlen = (size_t)n};
        ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL);
        if (sent < 0) {
            if (errno == EINTR) {
                continue;
            }
            return false;
        }
        size_t left = (size_t)sent;
        while (n > 0 && left >= iov->iov_len) {
            left -= iov->iov_len;
            iov++;
            n--;
        }
        if (n > 0) {
            iov->iov_base = (uint8_t *)iov->iov_base + left;
            iov->iov_len -= left;
        }
    }
    return true;
}

static bool raw_flush(struct raw *raw)
{
    bool ok = send_all(raw->fd, raw->iov, raw->n_iov);

    for (unsigned i = 0; i < raw->n_replies; i++) {
        hps_block_unref(raw->blocks[i]);
    }
    raw->n_iov = 0;
    raw->n_replies = 0;
    return ok;
}

static bool raw_answer(struct raw *raw, const uint8_t *request, size_t size)
{
    unsigned kind;
    struct hps_block *rows = reply_rows(&raw->replies, request, size, &kind);

    if (rows == NULL) {
        return false;
    }
    size_t head = raw->replies.head_bytes[kind], bytes = raw->replies.rows_bytes[kind];
    raw->sizes[raw->n_replies] = (uint32_t)(head + bytes);
    raw->blocks[raw->n_replies] = rows;
    raw->iov[raw->n_iov++] = (struct iovec){&raw->sizes[raw->n_replies], 4};
    raw->iov[raw->n_iov++] = (struct iovec){raw->replies.heads[kind]->data, head};
    raw->iov[raw->n_iov++] = (struct iovec){rows->data, bytes};
    raw->n_replies++;
    return raw->n_replies < RAW_REPLIES_MAX || raw_flush(raw);
}

/* Answer every whole request that is there, then send all replies at once. */
static bool raw_turn(struct raw *raw)
{
    ssize_t n = recv(raw->fd, raw->in + raw->in_bytes, sizeof(raw->in) - raw->in_bytes, 0);
    size_t at = 0;

    if (n <= 0) {
        return n < 0 && errno == EINTR;
    }
    raw->in_bytes += (size_t)n;
    while (raw->in_bytes - at >= 4) {
        uint32_t size;
        memcpy(&size, raw->in + at, 4);
        if (size > 64 || raw->in_bytes - at - 4 < size) {
            break;
        }
        if (!raw_answer(raw, raw->in + at + 4, size)) {
            return false;
        }
        at += 4 + size;
    }
    memmove(raw->in, raw->in + at, raw->in_bytes - at);
    raw->in_bytes -= at;
    return raw_flush(raw);
}

static void *raw_run(void *ctx)
{
    struct raw *raw = ctx;
    struct pollfd polled[2] = {{raw->listen_fd, POLLIN, 0}, {raw->stop_pipe[0], POLLIN, 0}};

    bench_bind(SERVER_CPU);
    for (;;) {
        if (poll(polled, 2, -1) < 0 && errno != EINTR) {
            break;
        }
        if (polled[1].revents != 0) {
            break;
        }
        raw->fd = accept4(raw->listen_fd, NULL, NULL, SOCK_CLOEXEC);
        if (raw->fd < 0) {
            continue;
        }
        hps_sock_tune(raw->fd);
        raw->in_bytes = 0;
        while (raw_turn(raw)) {
        }
        close(raw->fd);
    }
    return NULL;
}

static void raw_stop(void *impl)
{
    struct raw *raw = impl;

    close(raw->stop_pipe[1]);
    (void)pthread_join(raw->thread, NULL);
    close(raw->stop_pipe[0]);
    close(raw->listen_fd);
    replies_fini(&raw->replies);
    hps_free(raw);
}

hps_status bench_server_raw(struct bench_server *out_server, struct hps_error *err)
{
    struct raw *raw = hps_calloc(1, sizeof(*raw));
    hps_status status = raw == NULL ? HPS_NO_MEMORY : replies_init(&raw->replies);

    if (status == HPS_OK) {
        status = listen_any(&raw->listen_fd, out_server->address, sizeof(out_server->address), err);
    }
    if (status == HPS_OK && (pipe2(raw->stop_pipe, O_CLOEXEC) != 0 ||
                             pthread_create(&raw->thread, NULL, raw_run, raw) != 0)) {
        status = HPS_EXHAUSTED;
    }
    if (status != HPS_OK) { /* the program ends without cleanup */
        return hps_error_prefix(err, status, "bare server");
    }
    (void)pthread_getcpuclockid(raw->thread, &out_server->cpu_clock);
    out_server->impl = raw;
    out_server->stop = raw_stop;
    return HPS_OK;
}

/* ---- C++ ------------------------------------------------------------------------------------- */

static void cpp_stop(void *impl)
{
    bench_child_stop(impl);
    hps_free(impl);
}

hps_status bench_server_cpp(struct bench_server *out_server, struct hps_error *err)
{
    static const char path[] = HPS_BIN_DIR "/grpc-cpp-server";
    const char *const argv[] = {path, NULL};
    char port[16];

    if (access(path, X_OK) != 0) {
        return hps_error_set(err, HPS_NOT_FOUND, "%s is not built: libgrpc++ is not installed",
                             path);
    }
    struct bench_child *child = hps_calloc(1, sizeof(*child));
    if (child == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for a server");
    }
    hps_status status = bench_child_start(argv, SERVER_CPU, child, port, sizeof(port), err);
    if (status != HPS_OK) {
        hps_free(child);
        return status;
    }
    (void)snprintf(out_server->address, sizeof(out_server->address), "127.0.0.1:%s", port);
    (void)clock_getcpuclockid(child->pid, &out_server->cpu_clock);
    out_server->impl = child;
    out_server->stop = cpp_stop;
    return HPS_OK;
}

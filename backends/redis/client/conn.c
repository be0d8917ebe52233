/* SPDX-License-Identifier: Apache-2.0
 *
 * One connection to a Redis server. Used by one thread at a time: the cluster's thread until it is
 * ready for commands, then the worker that has checked it out.
 */
#include "backends/redis/client/conn.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/heap.h"
#include "net/sock.h"
#include "net/tls.h"

#define READ_BYTES (64 * 1024)

struct hps_redis_conn {
    int fd;
    bool connected;
    bool ready; /* including TLS */
    bool write_full;
    bool read_writes;                /* TLS: reading continues when the socket is writable */
    struct hps_tls_session *session; /* NULL: plain */
    struct hps_redis_reader *reader;
    uint64_t n_bytes_received;
    uint8_t buffer[READ_BYTES];
};

hps_status hps_redis_conn_open(const struct hps_addr *addr, struct hps_places *places,
                               struct hps_tls *tls, size_t reply_bytes_max,
                               struct hps_redis_conn **out_conn, struct hps_error *err)
{
    struct hps_redis_conn *conn = hps_alloc(sizeof(*conn));
    if (!conn) {
        return hps_error_set(err, HPS_NO_MEMORY, "out of memory");
    }
    memset(conn, 0, offsetof(struct hps_redis_conn, buffer));
    conn->fd = -1;
    conn->write_full = true; /* until it is connected */
    conn->reader = hps_redis_reader_new(reply_bytes_max + READ_BYTES);
    hps_status status = conn->reader ? hps_sock_connect_next(addr, places, &conn->fd, err)
                                     : hps_error_set(err, HPS_NO_MEMORY, "out of memory");
    if (status == HPS_OK && tls) {
        status = hps_tls_session_new(tls, conn->fd, addr->is_unix ? NULL : addr->host,
                                     &conn->session, err);
    }
    if (status != HPS_OK) {
        hps_redis_conn_close(conn);
        return status;
    }
    *out_conn = conn;
    return HPS_OK;
}

void hps_redis_conn_close(struct hps_redis_conn *conn)
{
    if (!conn) {
        return;
    }
    if (conn->session) {
        hps_tls_session_shutdown(conn->session);
        hps_tls_session_free(conn->session);
    }
    if (conn->fd >= 0) {
        close(conn->fd);
    }
    hps_redis_reader_free(conn->reader);
    hps_free(conn);
}

hps_status hps_redis_conn_handshake(struct hps_redis_conn *conn, struct hps_error *err)
{
    HPS_ASSERT(conn->fd >= 0);
    conn->write_full = false;
    if (!conn->connected) {
        hps_status status = hps_sock_connected(conn->fd, err);
        conn->write_full = status == HPS_AGAIN;
        if (status != HPS_OK) {
            return status;
        }
        conn->connected = true;
    }
    if (!conn->ready && conn->session) {
        enum hps_tls_wait wait = HPS_TLS_WAIT_READ;
        hps_status status = hps_tls_session_handshake(conn->session, &wait, err);
        conn->write_full = status == HPS_AGAIN && wait == HPS_TLS_WAIT_WRITE;
        if (status != HPS_OK) {
            return status;
        }
    }
    conn->ready = true;
    return HPS_OK;
}

static hps_status write_plain(int fd, const struct iovec *iov, int n_iov, size_t *out_size)
{
    struct msghdr message = {.msg_iov = (struct iovec *)iov, .msg_iovlen = (size_t)n_iov};
    ssize_t size;
    do {
        size = sendmsg(fd, &message, MSG_NOSIGNAL);
    } while (size < 0 && errno == EINTR);
    if (size >= 0) {
        *out_size = (size_t)size;
        return HPS_OK;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
        return HPS_AGAIN;
    }
    return errno == EPIPE || errno == ECONNRESET ? HPS_CLOSED : HPS_IO;
}

hps_status hps_redis_conn_write(struct hps_redis_conn *conn, const struct iovec *iov, int n_iov,
                                size_t *out_size)
{
    enum hps_tls_wait wait = HPS_TLS_WAIT_WRITE;
    HPS_ASSERT(conn->ready && n_iov > 0);
    hps_status status = conn->session ? hps_tls_session_write(conn->session, iov[0].iov_base,
                                                              iov[0].iov_len, out_size, &wait)
                                      : write_plain(conn->fd, iov, n_iov, out_size);
    conn->write_full = status == HPS_AGAIN && wait == HPS_TLS_WAIT_WRITE;
    return status;
}

static hps_status read_some(struct hps_redis_conn *conn, size_t *out_size)
{
    if (conn->session) {
        enum hps_tls_wait wait = HPS_TLS_WAIT_READ;
        hps_status status = hps_tls_session_read(conn->session, conn->buffer, sizeof(conn->buffer),
                                                 out_size, &wait);
        conn->read_writes = status == HPS_AGAIN && wait == HPS_TLS_WAIT_WRITE;
        return status;
    }
    ssize_t size;
    do {
        size = recv(conn->fd, conn->buffer, sizeof(conn->buffer), 0);
    } while (size < 0 && errno == EINTR);
    if (size > 0) {
        *out_size = (size_t)size;
        return HPS_OK;
    }
    if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        return HPS_AGAIN;
    }
    return size == 0 || errno == ECONNRESET ? HPS_CLOSED : HPS_IO;
}

hps_status hps_redis_conn_next(struct hps_redis_conn *conn, struct hps_redis_reply *reply,
                               struct hps_error *err)
{
    HPS_ASSERT(conn->ready);
    for (;;) {
        hps_status status = hps_redis_reader_next(conn->reader, reply, err);
        if (status != HPS_AGAIN) {
            return status;
        }
        size_t size = 0;
        status = read_some(conn, &size);
        if (status == HPS_OK) {
            conn->n_bytes_received += size;
            status = hps_redis_reader_feed(conn->reader, conn->buffer, size);
        }
        if (status == HPS_AGAIN) {
            return status;
        }
        if (status != HPS_OK) {
            bool too_large = status == HPS_EXHAUSTED;
            bool unwanted = conn->session && conn->n_bytes_received == 0;
            return hps_error_set(err, status == HPS_IO ? HPS_CLOSED : status, "%s",
                                 too_large                 ? "a value larger than the limit"
                                 : status == HPS_NO_MEMORY ? "out of memory"
                                 : unwanted ? "the server closed the connection after the TLS "
                                              "handshake: check tls_client_certificate"
                                 : status == HPS_CLOSED ? "the server closed the connection"
                                                        : "the connection broke");
        }
    }
}

bool hps_redis_conn_reached(const struct hps_redis_conn *conn)
{
    return conn->connected;
}

int hps_redis_conn_fd(const struct hps_redis_conn *conn)
{
    return conn->fd;
}

short hps_redis_conn_events(const struct hps_redis_conn *conn)
{
    return (short)(POLLIN | (conn->write_full || conn->read_writes ? POLLOUT : 0));
}

bool hps_redis_conn_idle_ok(struct hps_redis_conn *conn)
{
    uint8_t byte;
    if (hps_redis_reader_pending(conn->reader) > 0) {
        return false;
    }
    if (conn->session) {
        return true; /* pending bytes may be TLS session tickets */
    }
    return recv(conn->fd, &byte, 1, MSG_PEEK) < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

uint64_t hps_redis_conn_bytes_received(const struct hps_redis_conn *conn)
{
    return conn->n_bytes_received;
}

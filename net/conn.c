/* SPDX-License-Identifier: Apache-2.0
 *
 * One non-blocking byte stream, plain or TLS. Runs on the thread of the loop to which it is
 * attached.
 */
#include "net/conn.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/heap.h"
#include "net/addr.h"
#include "net/places.h"
#include "net/sock.h"
#include "net/tls.h"

#define RECORD_BYTES 16384u /* the most that a TLS record holds */

enum phase {
    PHASE_NEW,        /* being created */
    PHASE_CONNECTING, /* trying one place after the other */
    PHASE_HANDSHAKE,  /* TLS */
    PHASE_OPEN,
    PHASE_FAILED, /* before it was open; `failure` has the status */
    PHASES,
};

/* The places that are still to be tried. */
struct connecting {
    struct hps_addr addr;
    struct hps_places places;
};

/* The other end. */
struct peer {
    char text[HPS_ADDR_TEXT_MAX];
    uint64_t client;
    bool is_unix;
    bool is_loopback;
    struct hps_sock_cred cred; /* is_unix */
};

struct hps_conn {
    int fd;
    struct connecting *connecting;   /* NULL: connected */
    enum phase phase;                /* changed by phase_set alone */
    hps_status failure;              /* PHASE_FAILED */
    struct hps_tls_session *session; /* NULL: plain */
    struct hps_loop *loop;           /* NULL: not attached */
    struct hps_loop_fd handle;
    struct hps_loop_later pending; /* decrypted bytes are left, but the socket may be silent */
    struct hps_timer timer;        /* of the handshake */
    void (*on_ready)(void *ctx, unsigned events);
    void *ctx;
    unsigned want;
    bool timed_out;        /* the handshake; hps_conn_handshake returns it */
    bool read_waits_write; /* TLS: reading continues when the socket is writable */
    bool write_waits_read;
    uint8_t *record;    /* TLS: bytes gathered for one record */
    size_t record_size; /* > 0: a begun record, to be written first */
    struct peer *peer;  /* in the allocation of the connection */
    bool received;      /* bytes came; with TLS see hps_conn_received */
    struct hps_place *place;
};

static void on_fd(void *ctx, unsigned events);
static void on_pending(void *ctx);
static void on_timer(void *ctx);

/* ---- phases ---------------------------------------------------------------------------------- */

static void phase_set(struct hps_conn *conn, enum phase to)
{
    static const unsigned follows[PHASES] = {
        [PHASE_NEW] = 1u << PHASE_CONNECTING | 1u << PHASE_HANDSHAKE | 1u << PHASE_OPEN,
        [PHASE_CONNECTING] = 1u << PHASE_HANDSHAKE | 1u << PHASE_OPEN | 1u << PHASE_FAILED,
        [PHASE_HANDSHAKE] = 1u << PHASE_OPEN | 1u << PHASE_FAILED,
        [PHASE_OPEN] = 1u << PHASE_FAILED, /* no memory to watch the socket at that moment */
    };

    HPS_ASSERT(conn->phase < PHASES && to < PHASES);
    HPS_ASSERT((follows[conn->phase] & 1u << to) != 0);
    conn->phase = to;
}

static void conn_sane(const struct hps_conn *conn)
{
    HPS_DEBUG_ASSERT(!conn->loop || hps_loop_is_mine(conn->loop));
    HPS_ASSERT(conn->fd >= 0 && conn->phase > PHASE_NEW);
    HPS_ASSERT(conn->phase == PHASE_CONNECTING || !conn->connecting);
    HPS_ASSERT(conn->phase != PHASE_HANDSHAKE || conn->session);
    HPS_ASSERT((conn->phase == PHASE_FAILED) == (conn->failure != HPS_OK));
    HPS_ASSERT(!hps_timer_armed(&conn->timer) || conn->phase < PHASE_OPEN);
    HPS_ASSERT(conn->want == 0 || conn->phase == PHASE_OPEN);
    if (conn->phase == PHASE_FAILED) {
        HPS_ASSERT(!conn->handle.loop && !hps_loop_later_is_set(&conn->pending));
    } else {
        HPS_ASSERT(conn->handle.loop == conn->loop);
    }
    if (!conn->session || conn->phase != PHASE_OPEN) {
        HPS_ASSERT(conn->record_size == 0);
        HPS_ASSERT(!conn->read_waits_write && !conn->write_waits_read);
        HPS_ASSERT(!hps_loop_later_is_set(&conn->pending));
    }
}

/* ---- life ------------------------------------------------------------------------------------ */

/* Takes `fd`, also on failure. */
static hps_status conn_new(int fd, struct hps_tls *tls, const char *host, enum phase phase,
                           struct hps_conn **out_conn, struct hps_error *err)
{
    struct hps_conn *conn = hps_calloc(1, sizeof(*conn) + sizeof(*conn->peer));
    if (!conn) {
        close(fd);
        return hps_error_set(err, HPS_NO_MEMORY, "connection: out of memory");
    }
    conn->peer = (struct peer *)(conn + 1);
    conn->fd = fd;
    phase_set(conn, phase);
    hps_loop_later_init(&conn->pending, on_pending, conn);
    hps_timer_init(&conn->timer, on_timer, conn);
    if (tls) {
        hps_status status = hps_tls_session_new(tls, fd, host, &conn->session, err);
        conn->record = status == HPS_OK ? hps_alloc(RECORD_BYTES) : NULL;
        if (!conn->record) {
            hps_conn_free(conn);
            return status != HPS_OK
                       ? status
                       : hps_error_set(err, HPS_NO_MEMORY, "connection: out of memory");
        }
    }
    *out_conn = conn;
    return HPS_OK;
}

hps_status hps_conn_new(int fd, struct hps_tls *tls, struct hps_conn **out_conn,
                        struct hps_error *err)
{
    struct hps_conn *conn = NULL;
    hps_status status = conn_new(fd, tls, NULL, tls ? PHASE_HANDSHAKE : PHASE_OPEN, &conn, err);
    if (status != HPS_OK) {
        return status;
    }
    hps_sock_peer(fd, conn->peer->text, sizeof(conn->peer->text));
    (void)hps_sock_peer_cred(fd, &conn->peer->cred);
    conn->peer->client = hps_sock_client(fd, &conn->peer->is_unix);
    HPS_DEBUG_SANE(conn_sane(conn));
    *out_conn = conn;
    return HPS_OK;
}

static hps_status connecting_new(const char *address, struct connecting **out_connecting,
                                 struct hps_error *err)
{
    struct connecting *connecting = hps_calloc(1, sizeof(*connecting));
    if (!connecting) {
        return hps_error_set(err, HPS_NO_MEMORY, "connection: out of memory");
    }
    hps_status status = hps_addr_parse_peer(address, &connecting->addr, err);
    if (status == HPS_OK) {
        status = hps_addr_resolve(&connecting->addr, false, &connecting->places, err);
    }
    if (status != HPS_OK) {
        hps_free(connecting);
        return status;
    }
    *out_connecting = connecting;
    return HPS_OK;
}

hps_status hps_conn_connect(const char *address, struct hps_tls *tls, struct hps_conn **out_conn,
                            struct hps_error *err)
{
    struct connecting *connecting = NULL;
    struct hps_conn *conn = NULL;
    int fd;
    hps_status status = connecting_new(address, &connecting, err);
    if (status != HPS_OK) {
        return status;
    }
    const struct hps_addr *addr = &connecting->addr;
    status = hps_sock_connect_next(addr, &connecting->places, &fd, err);
    if (status == HPS_OK) {
        status = conn_new(fd, tls, addr->is_unix ? NULL : addr->host, PHASE_CONNECTING, &conn, err);
    }
    if (status != HPS_OK) {
        hps_free(connecting);
        return status;
    }
    conn->connecting = connecting;
    hps_addr_print(addr, conn->peer->text, sizeof(conn->peer->text));
    conn->peer->is_unix = addr->is_unix && hps_sock_peer_cred(fd, &conn->peer->cred);
    HPS_DEBUG_SANE(conn_sane(conn));
    *out_conn = conn;
    return HPS_OK;
}

void hps_conn_free(struct hps_conn *conn)
{
    if (!conn) {
        return;
    }
    hps_loop_fd_del(&conn->handle);
    hps_loop_later_stop(&conn->pending);
    hps_timer_stop(&conn->timer);
    if (conn->session && conn->phase == PHASE_OPEN) {
        hps_tls_session_shutdown(conn->session);
    }
    hps_tls_session_free(conn->session);
    close(conn->fd);
    hps_free(conn->connecting);
    hps_free(conn->record);
    hps_place_free(conn->place);
    hps_free(conn);
}

/* ---- readiness ------------------------------------------------------------------------------- */

/* The events of the socket that the wanted operations wait for. */
static unsigned socket_events(const struct hps_conn *conn)
{
    unsigned events = 0;
    if (conn->want & HPS_LOOP_READ) {
        events |= conn->read_waits_write ? HPS_LOOP_WRITE : HPS_LOOP_READ;
    }
    if (conn->want & HPS_LOOP_WRITE) {
        events |= conn->write_waits_read ? HPS_LOOP_READ : HPS_LOOP_WRITE;
    }
    return events;
}

static hps_status update(struct hps_conn *conn)
{
    if (conn->session && (conn->want & HPS_LOOP_READ) && hps_tls_session_pending(conn->session)) {
        hps_loop_later_set(conn->loop, &conn->pending);
    }
    return hps_loop_fd_want(&conn->handle, socket_events(conn));
}

static void on_fd(void *ctx, unsigned events)
{
    struct hps_conn *conn = ctx;
    HPS_ASSERT(conn->phase != PHASE_FAILED); /* its descriptor is not watched any more */
    if (conn->phase != PHASE_OPEN) {
        conn->on_ready(conn->ctx, events);
        return;
    }
    unsigned ready = 0;
    if (events & (conn->read_waits_write ? HPS_LOOP_WRITE : HPS_LOOP_READ)) {
        ready |= HPS_LOOP_READ;
    }
    if (events & (conn->write_waits_read ? HPS_LOOP_READ : HPS_LOOP_WRITE)) {
        ready |= HPS_LOOP_WRITE;
    }
    ready &= conn->want;
    if (ready) {
        conn->on_ready(conn->ctx, ready);
    }
}

static void on_pending(void *ctx)
{
    struct hps_conn *conn = ctx;
    if ((conn->want & HPS_LOOP_READ) && hps_tls_session_pending(conn->session)) {
        hps_loop_later_set(conn->loop, &conn->pending); /* next turn, unless read by then */
        conn->on_ready(conn->ctx, HPS_LOOP_READ);
    }
}

static void on_timer(void *ctx)
{
    struct hps_conn *conn = ctx;
    HPS_ASSERT(conn->phase < PHASE_OPEN && !conn->timed_out);
    conn->timed_out = true;
    conn->on_ready(conn->ctx, HPS_LOOP_READ | HPS_LOOP_WRITE);
}

hps_status hps_conn_attach(struct hps_conn *conn, struct hps_loop *loop,
                           uint64_t handshake_timeout_us,
                           void (*on_ready)(void *ctx, unsigned events), void *ctx)
{
    HPS_ASSERT(!conn->loop && on_ready);
    unsigned events = 0;
    if (conn->phase == PHASE_CONNECTING) {
        events = HPS_LOOP_WRITE;
    } else if (conn->phase == PHASE_HANDSHAKE) {
        events = HPS_LOOP_READ;
    }
    hps_status status = hps_loop_fd_add(loop, &conn->handle, conn->fd, events, on_fd, conn);
    if (status != HPS_OK) {
        return status;
    }
    conn->loop = loop;
    conn->on_ready = on_ready;
    conn->ctx = ctx;
    if (handshake_timeout_us > 0 && conn->phase != PHASE_OPEN) {
        hps_timer_set_after(loop, &conn->timer, handshake_timeout_us);
    }
    HPS_DEBUG_SANE(conn_sane(conn));
    return HPS_OK;
}

hps_status hps_conn_want(struct hps_conn *conn, unsigned events)
{
    HPS_ASSERT(conn->loop && conn->phase == PHASE_OPEN);
    conn->want = events;
    hps_status status = update(conn);
    HPS_DEBUG_SANE(conn_sane(conn));
    return status;
}

void hps_conn_rest(struct hps_conn *conn, unsigned events)
{
    if (conn->phase == PHASE_OPEN) {
        hps_ignore(hps_conn_want(conn, conn->want & ~events)); /* or it calls */
    }
}

/* ---- handshake ------------------------------------------------------------------------------- */

static hps_status handshake_failed(struct hps_conn *conn, hps_status status)
{
    HPS_ASSERT(status != HPS_OK && status != HPS_AGAIN);
    phase_set(conn, PHASE_FAILED);
    conn->failure = status;
    hps_timer_stop(&conn->timer);
    hps_loop_later_stop(&conn->pending);
    hps_loop_fd_del(&conn->handle);
    hps_free(conn->connecting);
    conn->connecting = NULL;
    HPS_DEBUG_SANE(conn_sane(conn));
    return status;
}

/* After a refusal, tries the next place on the same descriptor number, which TLS knows. AGAIN:
 * connecting. UNAVAILABLE: no place is left, `err` is unchanged. Other errors: `err` has the
 * reason. */
static hps_status reconnect(struct hps_conn *conn, struct hps_error *err)
{
    struct connecting *connecting = conn->connecting;
    int fd;
    if (hps_sock_connect_next(&connecting->addr, &connecting->places, &fd, NULL) != HPS_OK) {
        return HPS_UNAVAILABLE;
    }
    hps_loop_fd_del(&conn->handle);
    int moved = dup3(fd, conn->fd, O_CLOEXEC);
    close(fd);
    if (moved < 0) {
        return hps_error_set(err, HPS_EXHAUSTED, "%s", strerror(errno));
    }
    hps_status status =
        hps_loop_fd_add(conn->loop, &conn->handle, conn->fd, HPS_LOOP_WRITE, on_fd, conn);
    return status == HPS_OK ? HPS_AGAIN : hps_error_set(err, status, "%s", hps_status_text(status));
}

/* One step. OK: continue with the next phase; AGAIN: wait. */
static hps_status handshake_step(struct hps_conn *conn, struct hps_error *err)
{
    if (conn->phase == PHASE_CONNECTING) {
        hps_status status = hps_sock_connected(conn->fd, err);
        if (status == HPS_OK) {
            phase_set(conn, conn->session ? PHASE_HANDSHAKE : PHASE_OPEN);
            hps_free(conn->connecting);
            conn->connecting = NULL;
        } else if (status != HPS_AGAIN) {
            status = reconnect(conn, err);
        }
        return status == HPS_OK || status == HPS_AGAIN
                   ? status
                   : hps_error_prefix(err, status, "cannot connect to %s", conn->peer->text);
    }
    enum hps_tls_wait wait = HPS_TLS_WAIT_READ;
    hps_status status = hps_tls_session_handshake(conn->session, &wait, err);
    if (status == HPS_OK) {
        phase_set(conn, PHASE_OPEN);
    } else if (status == HPS_AGAIN) {
        unsigned events = wait == HPS_TLS_WAIT_WRITE ? HPS_LOOP_WRITE : HPS_LOOP_READ;
        hps_status set = hps_loop_fd_want(&conn->handle, events);
        return set == HPS_OK
                   ? HPS_AGAIN
                   : hps_error_set(err, set, "%s: %s", conn->peer->text, hps_status_text(set));
    } else {
        return hps_error_prefix(err, status, "%s", conn->peer->text);
    }
    return status;
}

hps_status hps_conn_handshake(struct hps_conn *conn, struct hps_error *err)
{
    HPS_ASSERT(conn->loop);
    if (conn->phase == PHASE_FAILED) {
        return hps_error_set(err, conn->failure, "%s: %s", conn->peer->text,
                             hps_status_text(conn->failure));
    }
    while (conn->phase != PHASE_OPEN) {
        if (conn->timed_out) {
            hps_error_set(err, HPS_DEADLINE, "%s: %s timed out", conn->peer->text,
                          conn->phase == PHASE_CONNECTING ? "connecting" : "the TLS handshake");
            return handshake_failed(conn, HPS_DEADLINE);
        }
        hps_status status = handshake_step(conn, err);
        if (status == HPS_AGAIN) {
            HPS_DEBUG_SANE(conn_sane(conn));
            return status;
        }
        if (status != HPS_OK) {
            return handshake_failed(conn, status);
        }
        if (conn->phase == PHASE_OPEN) {
            hps_timer_stop(&conn->timer);
            status = update(conn);
            if (status != HPS_OK) {
                hps_error_set(err, status, "%s: %s", conn->peer->text, hps_status_text(status));
                return handshake_failed(conn, status);
            }
        }
    }
    return HPS_OK;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static hps_status tls_read(struct hps_conn *conn, void *data, size_t capacity, size_t *out_size)
{
    enum hps_tls_wait wait = HPS_TLS_WAIT_READ;
    hps_status status = hps_tls_session_read(conn->session, data, capacity, out_size, &wait);
    conn->read_waits_write = status == HPS_AGAIN && wait == HPS_TLS_WAIT_WRITE;
    if (status == HPS_OK || status == HPS_AGAIN) {
        hps_status set = update(conn);
        return set == HPS_OK || status == HPS_OK ? status : set;
    }
    return status;
}

hps_status hps_conn_readv(struct hps_conn *conn, const struct iovec *iov, int n_iov,
                          size_t *out_size)
{
    HPS_ASSERT(conn->phase == PHASE_OPEN && n_iov > 0 && iov->iov_len > 0);
    if (conn->session) {
        return tls_read(conn, iov->iov_base, iov->iov_len, out_size);
    }
    ssize_t n;
    do {
        n = n_iov == 1 ? recv(conn->fd, iov->iov_base, iov->iov_len, 0)
                       : readv(conn->fd, iov, n_iov);
    } while (n < 0 && errno == EINTR);
    if (n > 0) {
        conn->received = true;
        *out_size = (size_t)n;
        return HPS_OK;
    }
    if (n == 0) {
        return HPS_CLOSED;
    }
    return errno == EAGAIN || errno == EWOULDBLOCK ? HPS_AGAIN : HPS_IO;
}

hps_status hps_conn_read(struct hps_conn *conn, void *data, size_t capacity, size_t *out_size)
{
    struct iovec iov = {.iov_base = data, .iov_len = capacity};
    return hps_conn_readv(conn, &iov, 1, out_size);
}

/* Position in the caller's vector up to which bytes have been gathered into records. */
struct cursor {
    const struct iovec *iov;
    int n_iov;
    size_t offset; /* within iov[0] */
};

static size_t gather(struct cursor *at, uint8_t *out, size_t capacity)
{
    size_t size = 0;
    while (at->n_iov > 0 && size < capacity) {
        size_t left = at->iov->iov_len - at->offset;
        size_t take = left < capacity - size ? left : capacity - size;
        if (take > 0) {
            memcpy(out + size, (const uint8_t *)at->iov->iov_base + at->offset, take);
        }
        size += take;
        at->offset += take;
        if (at->offset == at->iov->iov_len) {
            at->iov++;
            at->n_iov--;
            at->offset = 0;
        }
    }
    return size;
}

static void skip(struct cursor *at, size_t size)
{
    while (size > 0) {
        HPS_ASSERT(at->n_iov > 0); /* the caller must pass the bytes of a begun record again */
        size_t left = at->iov->iov_len - at->offset;
        size_t take = left < size ? left : size;
        size -= take;
        at->offset += take;
        if (at->offset == at->iov->iov_len) {
            at->iov++;
            at->n_iov--;
            at->offset = 0;
        }
    }
}

static hps_status tls_writev(struct hps_conn *conn, const struct iovec *iov, int n_iov,
                             size_t *out_size)
{
    struct cursor at = {.iov = iov, .n_iov = n_iov};
    size_t total = 0;
    hps_status status = HPS_OK;
    enum hps_tls_wait wait = HPS_TLS_WAIT_WRITE;
    skip(&at, conn->record_size);
    for (;;) {
        if (conn->record_size == 0) {
            conn->record_size = gather(&at, conn->record, RECORD_BYTES);
        }
        if (conn->record_size == 0) {
            break;
        }
        size_t written = 0;
        status =
            hps_tls_session_write(conn->session, conn->record, conn->record_size, &written, &wait);
        if (status != HPS_OK) {
            break;
        }
        /* Only a part, if the peer negotiated short records. */
        memmove(conn->record, conn->record + written, conn->record_size - written);
        total += written;
        conn->record_size -= written;
    }
    conn->write_waits_read = status == HPS_AGAIN && wait == HPS_TLS_WAIT_READ;
    if (status == HPS_OK || status == HPS_AGAIN) {
        hps_status set = update(conn);
        status = set == HPS_OK ? status : set;
    }
    if (total > 0) {
        *out_size = total;
        return HPS_OK;
    }
    HPS_ASSERT(status != HPS_OK); /* the vector was empty */
    return status;
}

hps_status hps_conn_writev(struct hps_conn *conn, const struct iovec *iov, int n_iov,
                           size_t *out_size)
{
    HPS_ASSERT(conn->phase == PHASE_OPEN && n_iov > 0);
    if (conn->session) {
        return tls_writev(conn, iov, n_iov, out_size);
    }
    struct msghdr msg = {
        .msg_iov = (struct iovec *)(uintptr_t)iov,
        .msg_iovlen = (size_t)(n_iov < IOV_MAX ? n_iov : IOV_MAX),
    };
    ssize_t n;
    do {
        n = sendmsg(conn->fd, &msg, MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    HPS_ASSERT(n != 0);
    if (n > 0) {
        *out_size = (size_t)n;
        return HPS_OK;
    }
    switch (errno) {
    case EAGAIN:
    case ENOBUFS:
        return HPS_AGAIN;
    case EPIPE:
    case ECONNRESET:
        return HPS_CLOSED;
    default:
        return HPS_IO;
    }
}

void hps_conn_shutdown_write(struct hps_conn *conn)
{
    if (conn->session) {
        hps_tls_session_shutdown(conn->session);
    }
    (void)!shutdown(conn->fd, SHUT_WR); /* fails only if the peer has disconnected */
}

/* ---- facts ----------------------------------------------------------------------------------- */

bool hps_conn_is_tls(const struct hps_conn *conn)
{
    return conn->session != NULL;
}

bool hps_conn_is_unix(const struct hps_conn *conn)
{
    return conn->peer->is_unix;
}

const char *hps_conn_peer(const struct hps_conn *conn)
{
    return conn->peer->text;
}

const char *hps_conn_certificate_name(const struct hps_conn *conn, unsigned i)
{
    return conn->session ? hps_tls_session_name(conn->session, i) : NULL;
}

hps_status hps_conn_recheck(const struct hps_conn *conn, struct hps_error *err)
{
    return conn->session && conn->phase == PHASE_OPEN ? hps_tls_session_recheck(conn->session, err)
                                                      : HPS_OK;
}

uint64_t hps_conn_client(const struct hps_conn *conn)
{
    return conn->peer->client;
}

bool hps_conn_peer_uid(const struct hps_conn *conn, uid_t *out_uid)
{
    if (!conn->peer->is_unix) {
        return false;
    }
    *out_uid = conn->peer->cred.uid;
    return true;
}

bool hps_conn_is_gone(const struct hps_conn *conn)
{
    struct pollfd state = {.fd = conn->fd};
    return poll(&state, 1, 0) > 0 && (state.revents & (POLLERR | POLLHUP)) != 0;
}

bool hps_conn_received(const struct hps_conn *conn)
{
    return conn->received || (conn->session && hps_tls_session_received(conn->session));
}

bool hps_conn_is_loopback(const struct hps_conn *conn)
{
    return conn->peer->is_loopback;
}

void hps_conn_loopback_set(struct hps_conn *conn, bool loopback)
{
    conn->peer->is_loopback = loopback;
}

void hps_conn_place_give(struct hps_conn *conn, struct hps_place *place)
{
    HPS_ASSERT(!conn->place);
    conn->place = place;
}

struct hps_place *hps_conn_place(const struct hps_conn *conn)
{
    return conn->place;
}

struct hps_place *hps_conn_place_take(struct hps_conn *conn)
{
    struct hps_place *place = conn->place;
    conn->place = NULL;
    return place;
}

hps_status hps_conn_peer_groups(const struct hps_conn *conn, gid_t **out_groups, size_t *out_n)
{
    *out_groups = NULL;
    *out_n = 0;
    return conn->peer->is_unix ? hps_sock_peer_groups(conn->fd, out_groups, out_n) : HPS_OK;
}

bool hps_conn_socket_group(const struct hps_conn *conn, gid_t *out_group)
{
    return conn->peer->is_unix && hps_sock_file_group(conn->fd, out_group);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Accepts connections within limits. Runs on the thread of its loop; the counts are shared, because
 * connections end on other threads, and outlive the acceptor for the same reason.
 */
#include "net/acceptor.h"

#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/lock.h"
#include "base/log.h"
#include "net/addr.h"
#include "net/sock.h"
#include "net/tls.h"

#define ACCEPTS_PER_TURN 64
#define PAUSE_US         100000u /* without descriptors: try again after this */
#define N_BUCKETS        1024u

struct peer {
    struct peer *next;
    uint8_t address[16]; /* IPv6, or IPv4 mapped into it */
    unsigned count;
};

/* Shared by the acceptor and its tickets; one reference each. */
struct counts {
    struct hps_lock lock; /* over everything here */
    unsigned refs;
    unsigned connections;
    uint64_t refused;
    struct peer *buckets[N_BUCKETS];
};

struct ticket {
    struct counts *counts;
    struct peer *peer; /* NULL: Unix socket */
};

struct listener {
    struct listener *next;
    struct hps_acceptor *acceptor;
    struct hps_loop_fd handle;
    int fd;
    struct hps_tls *tls;
    unsigned cookie;
    struct stat file; /* of a Unix socket to unlink; st_ino 0: none */
};

struct hps_acceptor {
    struct hps_loop *loop;
    struct hps_acceptor_options options;
    struct counts *counts;
    struct listener *listeners;
    struct hps_timer pause;
    bool starved; /* of descriptors or memory, as is in the log; until one is accepted again */
};

/* ---- counts ---------------------------------------------------------------------------------- */

static struct peer **bucket_of(struct counts *counts, const uint8_t address[16])
{
    uint32_t hash = 2166136261u;
    for (unsigned i = 0; i < 16; i++) {
        hash = (hash ^ address[i]) * 16777619u;
    }
    return &counts->buckets[(hash ^ (hash >> 16)) % N_BUCKETS];
}

/* The entry of `address`, made if need be; NULL: no memory. */
static struct peer *peer_get(struct counts *counts, const uint8_t address[16])
{
    struct peer **bucket = bucket_of(counts, address);
    for (struct peer *peer = *bucket; peer; peer = peer->next) {
        if (memcmp(peer->address, address, 16) == 0) {
            return peer;
        }
    }
    struct peer *peer = hps_calloc(1, sizeof(*peer));
    if (peer) {
        memcpy(peer->address, address, 16);
        peer->next = *bucket;
        *bucket = peer;
    }
    return peer;
}

static void peer_drop_unused(struct counts *counts, struct peer *peer)
{
    if (!peer || peer->count > 0) {
        return;
    }
    struct peer **at = bucket_of(counts, peer->address);
    while (*at != peer) {
        HPS_ASSERT(*at);
        at = &(*at)->next;
    }
    *at = peer->next;
    hps_free(peer);
}

/* Unlocks. */
static void counts_unref(struct counts *counts)
{
    HPS_ASSERT(counts->refs > counts->connections);
    bool last = --counts->refs == 0;
    hps_lock_release(&counts->lock);
    if (last) {
        hps_lock_fini(&counts->lock);
        hps_free(counts);
    }
}

/* EXHAUSTED: over a limit, whose name is set. */
static hps_status admit(struct hps_acceptor *acceptor, int fd, struct ticket **out_ticket,
                        const char **out_limit)
{
    struct counts *counts = acceptor->counts;
    const struct hps_acceptor_options *options = &acceptor->options;
    uint8_t address[16];
    bool counted = hps_sock_peer_address(fd, address);
    struct ticket *ticket = hps_calloc(1, sizeof(*ticket));
    if (!ticket) {
        return HPS_NO_MEMORY;
    }
    ticket->counts = counts;
    hps_status status = HPS_OK;
    hps_lock_acquire(&counts->lock);
    if (options->connections_max > 0 && counts->connections >= options->connections_max) {
        status = HPS_EXHAUSTED;
        *out_limit = "connections_max";
    } else if (counted) {
        ticket->peer = peer_get(counts, address);
        if (!ticket->peer) {
            status = HPS_NO_MEMORY;
        } else if (options->connections_per_peer_max > 0 &&
                   ticket->peer->count >= options->connections_per_peer_max) {
            status = HPS_EXHAUSTED;
            *out_limit = "connections_per_peer_max";
        }
    }
    if (status == HPS_OK) {
        counts->refs++;
        counts->connections++;
        if (ticket->peer) {
            ticket->peer->count++;
        }
    } else {
        counts->refused++;
        peer_drop_unused(counts, ticket->peer);
    }
    hps_lock_release(&counts->lock);
    if (status != HPS_OK) {
        hps_free(ticket);
        return status;
    }
    *out_ticket = ticket;
    return HPS_OK;
}

void hps_acceptor_gone(void *ticket)
{
    struct ticket *mine = ticket;
    struct counts *counts = mine->counts;
    hps_lock_acquire(&counts->lock);
    HPS_ASSERT(counts->connections > 0);
    counts->connections--;
    if (mine->peer) {
        HPS_ASSERT(mine->peer->count > 0);
        mine->peer->count--;
        peer_drop_unused(counts, mine->peer);
    }
    counts_unref(counts);
    hps_free(mine);
}

unsigned hps_acceptor_connections(struct hps_acceptor *acceptor)
{
    hps_lock_acquire(&acceptor->counts->lock);
    unsigned connections = acceptor->counts->connections;
    hps_lock_release(&acceptor->counts->lock);
    return connections;
}

uint64_t hps_acceptor_refused(struct hps_acceptor *acceptor)
{
    hps_lock_acquire(&acceptor->counts->lock);
    uint64_t refused = acceptor->counts->refused;
    hps_lock_release(&acceptor->counts->lock);
    return refused;
}

/* ---- accepting ------------------------------------------------------------------------------- */

static void listen_all(struct hps_acceptor *acceptor, bool on)
{
    for (struct listener *l = acceptor->listeners; l; l = l->next) {
        if (hps_loop_fd_want(&l->handle, on ? HPS_LOOP_READ : 0) != HPS_OK) {
            hps_timer_set_after(acceptor->loop, &acceptor->pause, PAUSE_US); /* try again then */
        }
    }
}

static void on_pause_over(void *ctx)
{
    listen_all(ctx, true);
}

/* The waiting connection keeps the listener readable: without a pause the loop would spin. */
static void starve(struct hps_acceptor *acceptor)
{
    if (!acceptor->starved) {
        acceptor->starved = true;
        HPS_LOG(ERROR, "acceptor",
                "listeners paused: no file descriptor or memory for another connection; raise the "
                "limit of open files, or lower connections_max",
                HPS_U64("connections", hps_acceptor_connections(acceptor)));
    }
    listen_all(acceptor, false);
    hps_timer_set_after(acceptor->loop, &acceptor->pause, PAUSE_US);
}

static void log_refused(int fd, hps_status status, const char *limit)
{
    char peer[HPS_ADDR_TEXT_MAX];
    hps_sock_peer(fd, peer, sizeof(peer));
    if (status == HPS_EXHAUSTED) {
        HPS_LOG(WARN, "acceptor",
                "connection refused: too many connections; raise the limit, or find the peers that "
                "open them",
                HPS_STR("peer", peer), HPS_STR("limit", limit));
    } else {
        HPS_LOG(WARN, "acceptor", "connection refused: it could not be set up",
                HPS_STR("peer", peer), HPS_STR("reason", hps_status_text(status)));
    }
}

static void take(struct listener *listener, int fd)
{
    struct hps_acceptor *acceptor = listener->acceptor;
    struct ticket *ticket;
    struct hps_error err;
    const char *limit = NULL;
    hps_status status = admit(acceptor, fd, &ticket, &limit);
    if (status != HPS_OK) {
        log_refused(fd, status, limit);
        close(fd);
        return;
    }
    struct hps_conn *conn;
    if (hps_conn_new(fd, listener->tls, &conn, &err) != HPS_OK) {
        HPS_LOG(WARN, "acceptor", "connection refused: it could not be set up",
                HPS_STR("reason", err.text));
        hps_acceptor_gone(ticket);
        return;
    }
    acceptor->options.on_accept(acceptor->options.ctx, conn, listener->cookie, ticket);
}

static void on_listener(void *ctx, unsigned events)
{
    struct listener *listener = ctx;
    struct hps_acceptor *acceptor = listener->acceptor;
    (void)events;
    for (unsigned i = 0; i < ACCEPTS_PER_TURN; i++) {
        int fd;
        hps_status status = hps_sock_accept(listener->fd, &fd);
        if (status == HPS_AGAIN) {
            return;
        }
        if (status == HPS_EXHAUSTED) {
            starve(acceptor);
            return;
        }
        if (status == HPS_OK) {
            acceptor->starved = false;
            take(listener, fd);
            if (!acceptor->listeners) {
                return; /* stopped meanwhile; the listener is gone */
            }
        }
    }
}

/* ---- life ------------------------------------------------------------------------------------ */

hps_status hps_acceptor_new(struct hps_loop *loop, const struct hps_acceptor_options *options,
                            struct hps_acceptor **out_acceptor, struct hps_error *err)
{
    HPS_ASSERT(options->on_accept);
    struct hps_acceptor *acceptor = hps_calloc(1, sizeof(*acceptor));
    struct counts *counts = hps_calloc(1, sizeof(*counts));
    if (!acceptor || !counts) {
        hps_free(acceptor);
        hps_free(counts);
        return hps_error_set(err, HPS_NO_MEMORY, "acceptor: out of memory");
    }
    hps_lock_init(&counts->lock, HPS_LOCK_ACCEPTOR);
    counts->refs = 1;
    acceptor->loop = loop;
    acceptor->options = *options;
    acceptor->counts = counts;
    hps_timer_init(&acceptor->pause, on_pause_over, acceptor);
    *out_acceptor = acceptor;
    return HPS_OK;
}

hps_status hps_acceptor_add(struct hps_acceptor *acceptor, int listen_fd, struct hps_tls *tls,
                            unsigned cookie, bool unlink_file, struct hps_error *err)
{
    HPS_ASSERT(hps_loop_is_mine(acceptor->loop) && listen_fd >= 0);
    struct listener *listener = hps_calloc(1, sizeof(*listener));
    if (!listener) {
        close(listen_fd);
        return hps_error_set(err, HPS_NO_MEMORY, "listener: out of memory");
    }
    listener->acceptor = acceptor;
    listener->fd = listen_fd;
    listener->cookie = cookie;
    struct hps_addr addr;
    if (unlink_file && hps_sock_local(listen_fd, &addr) == HPS_OK && addr.is_unix &&
        lstat(addr.path, &listener->file) != 0) {
        listener->file.st_ino = 0;
    }
    hps_status status = hps_loop_fd_add(acceptor->loop, &listener->handle, listen_fd, HPS_LOOP_READ,
                                        on_listener, listener);
    if (status != HPS_OK) {
        close(listen_fd);
        hps_free(listener);
        return hps_error_set(err, status, "listener: %s", hps_status_text(status));
    }
    listener->tls = tls ? hps_tls_ref(tls) : NULL;
    listener->next = acceptor->listeners;
    acceptor->listeners = listener;
    return HPS_OK;
}

void hps_acceptor_limits_set(struct hps_acceptor *acceptor, unsigned connections_max,
                             unsigned connections_per_peer_max)
{
    acceptor->options.connections_max = connections_max;
    acceptor->options.connections_per_peer_max = connections_per_peer_max;
}

/* Not if another server has put its own socket there meanwhile. */
static void unlink_file_of(const struct listener *listener)
{
    struct hps_addr addr;
    struct stat st;
    if (listener->file.st_ino != 0 && hps_sock_local(listener->fd, &addr) == HPS_OK &&
        lstat(addr.path, &st) == 0 && st.st_ino == listener->file.st_ino &&
        st.st_dev == listener->file.st_dev) {
        unlink(addr.path);
    }
}

void hps_acceptor_stop(struct hps_acceptor *acceptor)
{
    HPS_ASSERT(hps_loop_is_mine(acceptor->loop));
    hps_timer_stop(&acceptor->pause);
    while (acceptor->listeners) {
        struct listener *listener = acceptor->listeners;
        acceptor->listeners = listener->next;
        hps_loop_fd_del(&listener->handle);
        unlink_file_of(listener);
        close(listener->fd);
        hps_tls_unref(listener->tls);
        hps_free(listener);
    }
}

void hps_acceptor_free(struct hps_acceptor *acceptor)
{
    if (!acceptor) {
        return;
    }
    hps_acceptor_stop(acceptor);
    HPS_ASSERT(!hps_timer_armed(&acceptor->pause));
    hps_lock_acquire(&acceptor->counts->lock);
    counts_unref(acceptor->counts);
    hps_free(acceptor);
}

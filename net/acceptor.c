/* SPDX-License-Identifier: Apache-2.0
 *
 * Accepts connections within limits, on the thread of its loop. net/places.h counts the
 * connections, because they end on other threads and outlive the acceptor.
 */
#include "net/acceptor.h"

#include <sys/stat.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/log.h"
#include "net/addr.h"
#include "net/sock.h"
#include "net/tls.h"

#define ACCEPTS_PER_TURN 64
#define PAUSE_US         100000u   /* without descriptors: accept again after this time */
#define TELL_US          10000000u /* between two log lines about refused connections */

struct listener {
    struct listener *next;
    struct hps_acceptor *acceptor;
    struct hps_loop_fd handle;
    int fd;
    struct hps_tls *tls;
    unsigned cookie;
    bool loopback;
    struct stat file; /* of a Unix socket, to be removed; st_ino 0: none */
};

struct hps_acceptor {
    struct hps_loop *loop;
    struct hps_acceptor_options options;
    struct hps_place_table *places;
    struct listener *listeners;
    struct hps_timer pause;
    bool starved; /* no descriptors or memory, which the log says once; reset by the next accept */
    uint64_t logged_us[HPS_PLACES_REFUSALS]; /* when these were last logged; 0: never */
    uint64_t n_untold[HPS_PLACES_REFUSALS];
};

/* ---- accepting ------------------------------------------------------------------------------- */

static void listen_all(struct hps_acceptor *acceptor, bool on)
{
    for (struct listener *l = acceptor->listeners; l; l = l->next) {
        if (hps_loop_fd_want(&l->handle, on ? HPS_LOOP_READ : 0) != HPS_OK) {
            hps_timer_set_after(acceptor->loop, &acceptor->pause, PAUSE_US); /* then try again */
        }
    }
}

static void on_pause_over(void *ctx)
{
    listen_all(ctx, true);
}

/* The pending connection keeps the listener readable, so without a pause the loop would spin. */
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

static void write_refused(int fd, enum hps_place_refusal why, uint64_t n)
{
    static const char *const messages[HPS_PLACES_REFUSALS] = {
        [HPS_PLACES_FULL] =
            "connection refused: too many connections; raise the limit, or find the "
            "peers that open them",
        [HPS_PLACES_CLIENT_MAX] = "connection refused: too many connections of one peer; raise the "
                                  "limit, or find out why it opens them",
        [HPS_PLACES_SLOWED] =
            "connection refused: earlier connections of this peer failed before their first "
            "request; a few per second are accepted until one succeeds",
        [HPS_PLACES_FAILED] =
            "connection refused: no memory to set it up; give hpsd more, or lower "
            "connections_max",
    };
    char peer[HPS_ADDR_TEXT_MAX];
    hps_sock_peer(fd, peer, sizeof(peer));
    HPS_LOG(WARN, "acceptor", messages[why], HPS_STR("peer", peer),
            HPS_STR("limit", hps_place_refusal_name(why)), HPS_U64("refused", n));
}

static void count_refused(const struct hps_acceptor *acceptor, enum hps_place_refusal why)
{
    struct hps_metric *refused = acceptor->options.refused[why];
    if (refused) {
        hps_metric_add(refused, 1);
    }
}

/* One line for many, because a refused client retries. */
static void log_refused(struct hps_acceptor *acceptor, int fd, enum hps_place_refusal why,
                        uint64_t now_us)
{
    uint64_t *logged_us = &acceptor->logged_us[why];
    uint64_t *n_untold = &acceptor->n_untold[why];
    (*n_untold)++;
    if (*logged_us == 0 || now_us >= *logged_us + TELL_US) {
        write_refused(fd, why, *n_untold);
        *logged_us = now_us;
        *n_untold = 0;
    }
}

static void take(struct listener *listener, int fd)
{
    struct hps_acceptor *acceptor = listener->acceptor;
    uint64_t now_us = hps_clock_us();
    enum hps_place_refusal why;
    bool is_unix;
    uint64_t client = hps_sock_client(fd, &is_unix);
    struct hps_place *place = hps_places_admit(acceptor->places, client, is_unix, now_us, &why);
    if (!place) {
        count_refused(acceptor, why);
        log_refused(acceptor, fd, why, now_us);
        close(fd);
        return;
    }
    struct hps_conn *conn;
    struct hps_error err;
    if (hps_conn_new(fd, listener->tls, &conn, &err) != HPS_OK) {
        HPS_LOG(WARN, "acceptor", "connection refused: it could not be set up",
                HPS_STR("reason", err.text));
        count_refused(acceptor, HPS_PLACES_FAILED);
        hps_place_free(place);
        return;
    }
    hps_conn_place_give(conn, place);
    hps_conn_loopback_set(conn, listener->loopback);
    acceptor->options.on_accept(acceptor->options.ctx, conn, listener->cookie);
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
                return; /* on_accept stopped the acceptor: the listener is freed */
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
    struct hps_place_table *places = hps_places_new(&options->limits, options->displaced);
    if (!acceptor || !places) {
        hps_free(acceptor);
        hps_places_free(places);
        return hps_error_set(err, HPS_NO_MEMORY, "acceptor: out of memory");
    }
    acceptor->loop = loop;
    acceptor->options = *options;
    acceptor->places = places;
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
    if (hps_sock_local(listen_fd, &addr) == HPS_OK) {
        listener->loopback = hps_addr_is_loopback(&addr);
        if (unlink_file && addr.is_unix && lstat(addr.path, &listener->file) != 0) {
            listener->file.st_ino = 0;
        }
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

void hps_acceptor_limits_set(struct hps_acceptor *acceptor, const struct hps_place_limits *limits)
{
    hps_places_limits_set(acceptor->places, limits);
}

unsigned hps_acceptor_connections(struct hps_acceptor *acceptor)
{
    return hps_places_taken(acceptor->places);
}

/* Leaves the file alone if another server has put its own socket there. */
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
    hps_places_free(acceptor->places);
    hps_free(acceptor);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * One thread forwards bytes between clients and the server. Other threads control it through fields
 * under the lock. A command arrives in one piece, because it is sent at once and read before the
 * next command is sent.
 */
#include "tests/lib/redis_gate.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/heap.h"

enum { PAIRS_MAX = 64, PIECE_BYTES = 64 * 1024, PATIENCE_S = 60 };

struct pair {
    int client;
    int server;
    bool waits; /* replies are held back */
    char *kept; /* held replies [n_kept] */
    size_t n_kept;
};

struct hps_redis_gate {
    uint16_t server;
    int listener;
    char address[32];
    pthread_t thread;
    int wake_fd;
    struct pair pairs[PAIRS_MAX]; /* used only by the thread, like n_pairs */
    uint32_t n_pairs;
    pthread_mutex_t lock; /* protects the fields below */
    pthread_cond_t changed;
    const char *word; /* NULL: the gate is open */
    uint32_t n_left;  /* connections still to be held back */
    uint32_t n_kept;  /* connections with held replies */
    bool opening;     /* held replies have not been sent yet */
    bool stops;
};

static int connect_to(uint16_t port)
{
    const struct sockaddr_in addr = {
        .sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_port = htons(port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (const struct sockaddr *)&addr, sizeof(addr)) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static void at_once(int fd)
{
    int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

static bool send_all(int fd, const char *data, size_t size)
{
    while (size > 0) {
        ssize_t sent = send(fd, data, size, MSG_NOSIGNAL);
        if (sent <= 0) {
            return false;
        }
        data += sent;
        size -= (size_t)sent;
    }
    return true;
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void pair_add(struct hps_redis_gate *gate)
{
    int client = accept4(gate->listener, NULL, NULL, SOCK_CLOEXEC);
    int server = client >= 0 && gate->n_pairs < PAIRS_MAX ? connect_to(gate->server) : -1;
    if (server < 0) {
        close(client);
        return;
    }
    at_once(client);
    at_once(server);
    gate->pairs[gate->n_pairs++] = (struct pair){.client = client, .server = server};
}

static void pair_end(struct hps_redis_gate *gate, uint32_t i)
{
    struct pair *pair = &gate->pairs[i];
    close(pair->client);
    close(pair->server);
    hps_free(pair->kept);
    *pair = gate->pairs[--gate->n_pairs];
}

static void question(struct hps_redis_gate *gate, struct pair *pair, const char *data, size_t size)
{
    pthread_mutex_lock(&gate->lock);
    if (gate->n_left > 0 && !pair->waits &&
        memmem(data, size, gate->word, strlen(gate->word)) != NULL) {
        gate->n_left--;
        pair->waits = true;
    }
    pthread_mutex_unlock(&gate->lock);
}

static bool keep(struct hps_redis_gate *gate, struct pair *pair, const char *data, size_t size)
{
    char *kept = hps_realloc(pair->kept, pair->n_kept + size);
    if (kept == NULL) {
        return false;
    }
    memcpy(kept + pair->n_kept, data, size);
    pair->kept = kept;
    pthread_mutex_lock(&gate->lock);
    gate->n_kept += pair->n_kept == 0 ? 1 : 0;
    pair->n_kept += size;
    pthread_cond_broadcast(&gate->changed);
    pthread_mutex_unlock(&gate->lock);
    return true;
}

/* False: the client or the server has closed its connection. */
static bool carry(struct hps_redis_gate *gate, struct pair *pair, bool answer)
{
    static _Thread_local char data[PIECE_BYTES];
    ssize_t n = recv(answer ? pair->server : pair->client, data, sizeof(data), 0);
    if (n <= 0) {
        return false;
    }
    if (!answer) {
        question(gate, pair, data, (size_t)n);
        return send_all(pair->server, data, (size_t)n);
    }
    return pair->waits ? keep(gate, pair, data, (size_t)n)
                       : send_all(pair->client, data, (size_t)n);
}

/* Send held replies if the gate is open. False: the thread must end. */
static bool look(struct hps_redis_gate *gate)
{
    eventfd_t value;
    (void)eventfd_read(gate->wake_fd, &value);
    pthread_mutex_lock(&gate->lock);
    bool stops = gate->stops;
    bool open = gate->word == NULL;
    pthread_mutex_unlock(&gate->lock);
    for (uint32_t i = gate->n_pairs; i-- > 0 && open;) {
        struct pair *pair = &gate->pairs[i];
        bool there = !pair->waits || send_all(pair->client, pair->kept, pair->n_kept);
        pair->waits = false;
        pair->n_kept = 0;
        if (!there) {
            pair_end(gate, i);
        }
    }
    pthread_mutex_lock(&gate->lock);
    gate->opening = gate->opening && !open;
    pthread_cond_broadcast(&gate->changed);
    pthread_mutex_unlock(&gate->lock);
    return !stops;
}

static void *serve(void *ctx)
{
    struct hps_redis_gate *gate = ctx;
    struct pollfd polls[2 + 2 * PAIRS_MAX];
    for (;;) {
        uint32_t n = gate->n_pairs;
        polls[0] = (struct pollfd){.fd = gate->wake_fd, .events = POLLIN};
        polls[1] = (struct pollfd){.fd = gate->listener, .events = POLLIN};
        for (uint32_t i = 0; i < n; i++) {
            polls[2 + 2 * i] = (struct pollfd){.fd = gate->pairs[i].client, .events = POLLIN};
            polls[3 + 2 * i] = (struct pollfd){.fd = gate->pairs[i].server, .events = POLLIN};
        }
        if (poll(polls, 2 + 2 * n, -1) < 0) {
            continue;
        }
        for (uint32_t i = n; i-- > 0;) {
            struct pair *pair = &gate->pairs[i];
            bool there = !polls[3 + 2 * i].revents || carry(gate, pair, true);
            there = there && (!polls[2 + 2 * i].revents || carry(gate, pair, false));
            if (!there) {
                pair_end(gate, i);
            }
        }
        if (polls[1].revents) {
            pair_add(gate);
        }
        if (polls[0].revents && !look(gate)) {
            return NULL;
        }
    }
}

/* ---- control by the test --------------------------------------------------------------------- */

static void wake(struct hps_redis_gate *gate)
{
    assert_int_equal(eventfd_write(gate->wake_fd, 1), 0);
}

struct hps_redis_gate *hps_redis_gate_new(const char *server)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof(addr);
    struct hps_redis_gate *gate = hps_calloc(1, sizeof(*gate));
    assert_non_null(gate);
    gate->server = (uint16_t)strtoul(strrchr(server, ':') + 1, NULL, 10);
    gate->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(gate->listener, (struct sockaddr *)&addr, size), 0);
    assert_int_equal(listen(gate->listener, PAIRS_MAX), 0);
    assert_int_equal(getsockname(gate->listener, (struct sockaddr *)&addr, &size), 0);
    snprintf(gate->address, sizeof(gate->address), "127.0.0.1:%u", ntohs(addr.sin_port));
    gate->wake_fd = eventfd(0, EFD_CLOEXEC);
    assert_true(gate->wake_fd >= 0);
    assert_int_equal(pthread_mutex_init(&gate->lock, NULL), 0);
    assert_int_equal(pthread_cond_init(&gate->changed, NULL), 0);
    assert_int_equal(pthread_create(&gate->thread, NULL, serve, gate), 0);
    return gate;
}

void hps_redis_gate_free(struct hps_redis_gate *gate)
{
    if (gate == NULL) {
        return;
    }
    pthread_mutex_lock(&gate->lock);
    gate->stops = true;
    pthread_mutex_unlock(&gate->lock);
    wake(gate);
    pthread_join(gate->thread, NULL);
    while (gate->n_pairs > 0) {
        pair_end(gate, gate->n_pairs - 1);
    }
    close(gate->listener);
    close(gate->wake_fd);
    (void)pthread_cond_destroy(&gate->changed);
    (void)pthread_mutex_destroy(&gate->lock);
    hps_free(gate);
}

const char *hps_redis_gate_address(const struct hps_redis_gate *gate)
{
    return gate->address;
}

void hps_redis_gate_shut(struct hps_redis_gate *gate, const char *word, uint32_t n)
{
    pthread_mutex_lock(&gate->lock);
    gate->word = word;
    gate->n_left = n;
    gate->n_kept = 0;
    pthread_mutex_unlock(&gate->lock);
}

void hps_redis_gate_await(struct hps_redis_gate *gate, uint32_t n)
{
    struct timespec until;
    int failed = 0;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PATIENCE_S;
    pthread_mutex_lock(&gate->lock);
    while (gate->n_kept < n && failed == 0) {
        failed = pthread_cond_timedwait(&gate->changed, &gate->lock, &until);
    }
    pthread_mutex_unlock(&gate->lock);
    assert_int_equal(failed, 0);
}

void hps_redis_gate_open(struct hps_redis_gate *gate)
{
    pthread_mutex_lock(&gate->lock);
    gate->word = NULL;
    gate->n_left = 0;
    gate->opening = true;
    wake(gate);
    while (gate->opening) {
        (void)pthread_cond_wait(&gate->changed, &gate->lock);
    }
    pthread_mutex_unlock(&gate->lock);
}

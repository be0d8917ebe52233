/* SPDX-License-Identifier: Apache-2.0
 *
 * One thread for all ports of the fake and their connections.
 */
#include "tests/lib/fake_redis.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/heap.h"

#define SLOTS 16384

enum { PEERS_MAX = 256, BUFFER_BYTES = 64 * 1024 };

struct peer {
    int fd;
    uint32_t node;
    size_t size;
    char buffer[BUFFER_BYTES];
};

struct hps_fake_redis {
    hps_fake_redis_fn answer;
    void *ctx;
    uint32_t n_nodes;
    int listeners[HPS_FAKE_REDIS_NODES_MAX];
    uint16_t ports[HPS_FAKE_REDIS_NODES_MAX];
    char addresses[HPS_FAKE_REDIS_NODES_MAX][32];
    pthread_t thread;
    int stop_fd;
    struct peer *peers[PEERS_MAX];
    uint32_t n_peers;
    char out[HPS_FAKE_REDIS_ANSWER_MAX];
};

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

void hps_fake_redis_usual(const char *command, char *out_answer)
{
    const char *answer = "+OK\r\n";
    if (begins(command, "PING")) {
        answer = "+PONG\r\n";
    } else if (begins(command, "HELLO")) {
        answer = "*2\r\n$4\r\nmode\r\n$7\r\ncluster\r\n";
    }
    memcpy(out_answer, answer, strlen(answer) + 1);
}

enum hps_fake_redis_then hps_fake_redis_alone(void *ctx, uint32_t node, const char *command,
                                              char *out_answer)
{
    (void)ctx;
    (void)node;
    hps_fake_redis_usual(command, out_answer);
    if (strcmp(command, "CLUSTER SLOTS") == 0) {
        strncpy(out_answer, "-ERR This instance has cluster support disabled\r\n", 64);
    } else if (strncmp(command, "HELLO", 5) == 0) {
        strncpy(out_answer, "*2\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n", 64);
    }
    return HPS_FAKE_REDIS_GO_ON;
}

void hps_fake_redis_map(const struct hps_fake_redis *fake, uint32_t n_masters, char *out_answer)
{
    size_t size = (size_t)snprintf(out_answer, HPS_FAKE_REDIS_ANSWER_MAX, "*%u\r\n", n_masters);
    for (uint32_t i = 0; i < n_masters; i++) {
        size += (size_t)snprintf(out_answer + size, HPS_FAKE_REDIS_ANSWER_MAX - size,
                                 "*3\r\n:%u\r\n:%u\r\n*2\r\n$9\r\n127.0.0.1\r\n:%u\r\n",
                                 SLOTS * i / n_masters, SLOTS * (i + 1) / n_masters - 1,
                                 fake->ports[i]);
    }
}

/* ---- the thread ------------------------------------------------------------------------------ */

static bool send_all(int fd, const char *text, size_t size)
{
    while (size > 0) {
        ssize_t sent = send(fd, text, size, MSG_NOSIGNAL);
        if (sent <= 0) {
            return false;
        }
        text += sent;
        size -= (size_t)sent;
    }
    return true;
}

/* One command from the front of the buffer, as words; 0: it is not all there. */
static size_t take_command(const struct peer *peer, char *out_words)
{
    const char *at = peer->buffer;
    const char *end = at + peer->size;
    const char *line = memchr(at, '\n', peer->size);
    unsigned long n_words = line ? strtoul(at + 1, NULL, 10) : 0;
    for (at = line ? line + 1 : end; n_words > 0; n_words--) {
        line = at < end ? memchr(at, '\n', (size_t)(end - at)) : NULL;
        size_t size = line ? strtoul(at + 1, NULL, 10) : 0;
        if (!line || (size_t)(end - line - 1) < size + 2) {
            return 0;
        }
        memcpy(out_words, line + 1, size);
        out_words += size;
        *out_words++ = ' ';
        at = line + 1 + size + 2;
    }
    out_words[-1] = '\0';
    return (size_t)(at - peer->buffer);
}

/* False: the connection is over. */
static bool peer_go_on(struct hps_fake_redis *fake, struct peer *peer)
{
    char words[BUFFER_BYTES + 1] = {0};
    ssize_t n = recv(peer->fd, peer->buffer + peer->size, sizeof(peer->buffer) - peer->size, 0);
    if (n <= 0) {
        return false;
    }
    peer->size += (size_t)n;
    for (;;) {
        size_t size = peer->size > 0 ? take_command(peer, words + 1) : 0;
        if (size == 0) {
            return true;
        }
        peer->size -= size;
        memmove(peer->buffer, peer->buffer + size, peer->size);
        fake->out[0] = '\0';
        enum hps_fake_redis_then then = fake->answer(fake->ctx, peer->node, words + 1, fake->out);
        if (!send_all(peer->fd, fake->out, strlen(fake->out)) || then == HPS_FAKE_REDIS_HANG_UP) {
            return false;
        }
    }
}

static void peer_add(struct hps_fake_redis *fake, uint32_t node)
{
    int fd = accept(fake->listeners[node], NULL, NULL);
    struct peer *peer = fd >= 0 && fake->n_peers < PEERS_MAX ? hps_calloc(1, sizeof(*peer)) : NULL;
    if (!peer) {
        close(fd);
        return;
    }
    peer->fd = fd;
    peer->node = node;
    fake->peers[fake->n_peers++] = peer;
}

static void peer_end(struct hps_fake_redis *fake, uint32_t i)
{
    close(fake->peers[i]->fd);
    hps_free(fake->peers[i]);
    fake->peers[i] = fake->peers[--fake->n_peers];
}

static void *serve(void *ctx)
{
    struct hps_fake_redis *fake = ctx;
    struct pollfd polls[1 + HPS_FAKE_REDIS_NODES_MAX + PEERS_MAX];
    for (;;) {
        uint32_t n_peers = fake->n_peers;
        polls[0] = (struct pollfd){.fd = fake->stop_fd, .events = POLLIN};
        for (uint32_t i = 0; i < fake->n_nodes; i++) {
            polls[1 + i] = (struct pollfd){.fd = fake->listeners[i], .events = POLLIN};
        }
        struct pollfd *peer_polls = polls + 1 + fake->n_nodes;
        for (uint32_t i = 0; i < n_peers; i++) {
            peer_polls[i] = (struct pollfd){.fd = fake->peers[i]->fd, .events = POLLIN};
        }
        if (poll(polls, 1 + fake->n_nodes + n_peers, -1) < 0) {
            continue;
        }
        if (polls[0].revents) {
            return NULL;
        }
        for (uint32_t i = n_peers; i-- > 0;) {
            if (peer_polls[i].revents && !peer_go_on(fake, fake->peers[i])) {
                peer_end(fake, i);
            }
        }
        for (uint32_t i = 0; i < fake->n_nodes; i++) {
            if (polls[1 + i].revents) {
                peer_add(fake, i);
            }
        }
    }
}

/* ---- life ------------------------------------------------------------------------------------ */

static void listen_at(struct hps_fake_redis *fake, uint32_t node)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof(addr);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&addr, size), 0);
    assert_int_equal(listen(fd, PEERS_MAX), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&addr, &size), 0);
    fake->listeners[node] = fd;
    fake->ports[node] = ntohs(addr.sin_port);
    snprintf(fake->addresses[node], sizeof(fake->addresses[node]), "127.0.0.1:%u",
             fake->ports[node]);
}

struct hps_fake_redis *hps_fake_redis_new(uint32_t n_nodes, hps_fake_redis_fn answer, void *ctx)
{
    struct hps_fake_redis *fake = hps_calloc(1, sizeof(*fake));
    assert_non_null(fake);
    assert_true(n_nodes <= HPS_FAKE_REDIS_NODES_MAX);
    fake->answer = answer;
    fake->ctx = ctx;
    fake->n_nodes = n_nodes;
    for (uint32_t i = 0; i < n_nodes; i++) {
        listen_at(fake, i);
    }
    fake->stop_fd = eventfd(0, EFD_CLOEXEC);
    assert_true(fake->stop_fd >= 0);
    assert_int_equal(pthread_create(&fake->thread, NULL, serve, fake), 0);
    return fake;
}

void hps_fake_redis_free(struct hps_fake_redis *fake)
{
    assert_int_equal(eventfd_write(fake->stop_fd, 1), 0);
    pthread_join(fake->thread, NULL);
    while (fake->n_peers > 0) {
        peer_end(fake, fake->n_peers - 1);
    }
    for (uint32_t i = 0; i < fake->n_nodes; i++) {
        close(fake->listeners[i]);
    }
    close(fake->stop_fd);
    hps_free(fake);
}

uint16_t hps_fake_redis_port(const struct hps_fake_redis *fake, uint32_t node)
{
    return fake->ports[node];
}

const char *hps_fake_redis_address(const struct hps_fake_redis *fake, uint32_t node)
{
    return fake->addresses[node];
}

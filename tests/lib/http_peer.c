/* SPDX-License-Identifier: Apache-2.0
 *
 * See http_peer.h. Test thread.
 */
#include "tests/lib/http_peer.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/heap.h"
#include "net/sock.h"

void peer_open(struct peer *peer, struct rig *rig)
{
    struct hps_addr addr;

    *peer = (struct peer){.rig = rig};
    rig->http = true;
    hps_buf_init(&peer->in, 256 * 1024 * 1024);
    assert_int_equal(hps_addr_parse(rig->address, &addr, NULL), HPS_OK);
    assert_int_equal(hps_sock_connect(&addr, &peer->fd, NULL), HPS_OK);
    RIG_UNTIL(rig, hps_sock_connected(peer->fd, NULL) != HPS_AGAIN);
}

void peer_open_unix(struct peer *peer, struct rig *rig)
{
    *peer = (struct peer){.rig = rig};
    rig->http = true;
    hps_buf_init(&peer->in, 256 * 1024 * 1024);
    peer->fd = rig_raw(rig);
}

void peer_close(struct peer *peer)
{
    if (peer->fd >= 0) {
        close(peer->fd);
    }
    peer->fd = -1;
    hps_buf_fini(&peer->in);
}

void peer_read(struct peer *peer)
{
    while (!peer->closed) {
        assert_int_equal(hps_buf_reserve(&peer->in, 65537), HPS_OK);
        ssize_t n = recv(peer->fd, peer->in.data + peer->in.size, 65536, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
            break;
        }
        peer->closed = n <= 0;
        peer->in.size += n > 0 ? (size_t)n : 0;
    }
    peer->in.data[peer->in.size] = '\0';
}

bool peer_write(struct peer *peer, const void *data, size_t size)
{
    const char *at = data;

    while (size > 0) {
        ssize_t n = send(peer->fd, at, size, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno != EAGAIN) {
            return false;
        }
        at += n > 0 ? n : 0;
        size -= n > 0 ? (size_t)n : 0;
        rig_turn(peer->rig);
        peer_read(peer);
    }
    return true;
}

void peer_say(struct peer *peer, const char *text)
{
    assert_true(peer_write(peer, text, strlen(text)));
}

static const char *head_end_of(const struct peer *peer)
{
    return peer->in.data != NULL ? memmem(peer->in.data, peer->in.size, "\r\n\r\n", 4) : NULL;
}

static size_t length_of(const char *head)
{
    const char *at = strstr(head, "\r\nContent-Length: ");

    return at != NULL ? strtoul(at + 18, NULL, 10) : 0;
}

void peer_say_in_bytes(struct peer *peer, const char *text)
{
    for (; *text != '\0'; text++) {
        assert_true(peer_write(peer, text, 1));
    }
}

void peer_answer(struct peer *peer, bool with_body, struct answer *answer)
{
    PEER_UNTIL(peer, head_end_of(peer) != NULL);
    size_t head = (size_t)(head_end_of(peer) - (const char *)peer->in.data) + 4;
    assert_true(head < sizeof answer->head);
    memcpy(answer->head, peer->in.data, head);
    answer->head[head] = '\0';
    assert_int_equal(sscanf(answer->head, "HTTP/1.1 %u ", &answer->status), 1);
    answer->size = with_body ? length_of(answer->head) : 0;
    PEER_UNTIL(peer, peer->in.size >= head + answer->size);
    answer->body = hps_alloc(answer->size + 1);
    assert_non_null(answer->body);
    memcpy(answer->body, peer->in.data + head, answer->size);
    answer->body[answer->size] = '\0';
    hps_buf_consume(&peer->in, head + answer->size);
}

void expect_answer(struct peer *peer, unsigned status, const char *body)
{
    struct answer answer;

    peer_answer(peer, true, &answer);
    assert_int_equal(answer.status, status);
    if (body != NULL) {
        assert_string_equal(answer.body, body);
    }
    hps_free(answer.body);
}

void expect_head(struct peer *peer, unsigned status, const char *part)
{
    struct answer answer;

    peer_answer(peer, true, &answer);
    assert_int_equal(answer.status, status);
    if (strstr(answer.head, part) == NULL) {
        fail_msg("no \"%s\" in:\n%s", part, answer.head);
    }
    hps_free(answer.body);
}

void expect_end(struct peer *peer)
{
    PEER_UNTIL(peer, peer->closed);
    assert_int_equal(peer->in.size, 0);
}

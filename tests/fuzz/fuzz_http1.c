/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as what a client sends to the listener for probes and scrapes: head, and what comes
 * behind it. The first byte says how large the pieces are, and whether the client closes, or half
 * closes, before the answer. Every client is answered in full, or was not worth an answer, and none
 * is left behind.
 */
#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "net/http1.h"
#include "net/sock.h"
#include "tests/fuzz/place.h"
#include "tests/fuzz/script.h"

enum { CLOSE_EARLY = 0x80, HALF_CLOSE = 0x40, TURNS = 4, ANSWER_BYTES_MAX = 1 << 16 };

static struct {
    struct hps_loop *loop;
    struct hps_http1 *http;
    struct sockaddr_un at;
    unsigned n_asked;
} world;

static hps_status on_get(void *ctx, const struct hps_http1_request *request,
                         struct hps_http1_reply *reply)
{
    const char *path = request->path;

    (void)ctx;
    HPS_ASSERT(request->authorization == NULL || strpbrk(request->authorization, "\r\n") == NULL);
    world.n_asked++;
    HPS_ASSERT(path[0] == '/' && strpbrk(path, "?# \r\n") == NULL);
    for (const char *c = path; *c != '\0'; c++) {
        HPS_ASSERT(*c > ' ' && *c <= '~');
    }
    if (strcmp(path, "/fail") == 0) {
        return HPS_NO_MEMORY;
    }
    bool may = request->authorization == NULL || strcmp(request->authorization, "Bearer x") == 0;
    reply->status = !may                            ? 403
                    : strcmp(path, "/metrics") == 0 ? 200
                    : strcmp(path, "/readyz") == 0  ? 503
                                                    : 404;
    return hps_buf_printf(&reply->body, "%s of %zu bytes\n", path, strlen(path));
}

static void world_open(void)
{
    struct hps_addr addr = {.is_unix = true};
    const struct hps_http1_options options = {.connections_max = 4,
                                              .head_timeout_us = 1000 * 1000,
                                              .send_timeout_us = 1000 * 1000,
                                              .body_bytes_max = 1 << 16,
                                              .on_get = on_get};
    int fd;

    hps_log_level_set(HPS_LOG_ERROR);
    hps_clock_fake(hps_clock_us());
    snprintf(addr.path, sizeof(addr.path), "%s", hps_tmpdir_join(&place_dir, "http"));
    HPS_ASSERT(hps_loop_new(&world.loop, NULL) == HPS_OK);
    HPS_ASSERT(hps_sock_listen(&addr, 0600, &fd, NULL) == HPS_OK);
    HPS_ASSERT(hps_http1_new(world.loop, fd, &options, &world.http, NULL) == HPS_OK);
    world.at.sun_family = AF_UNIX;
    memcpy(world.at.sun_path, addr.path, sizeof(addr.path));
}

static void turns(void)
{
    for (unsigned i = 0; i < TURNS; i++) {
        hps_loop_turn(world.loop, 0);
    }
}

/* What came, until the server has no more to say. Returns whether it closed. */
static bool receive(int fd, char answer[ANSWER_BYTES_MAX], size_t *out_size)
{
    bool closed = false;

    *out_size = 0;
    for (unsigned i = 0; i < TURNS && !closed; i++) {
        hps_loop_turn(world.loop, 0);
        ssize_t n = recv(fd, answer + *out_size, ANSWER_BYTES_MAX - 1 - *out_size, 0);
        *out_size += n > 0 ? (size_t)n : 0;
        closed = n == 0 || (n < 0 && errno != EAGAIN);
    }
    answer[*out_size] = '\0';
    return closed;
}

static void check_answer(const char *answer, size_t size, bool asked)
{
    const char *end = strstr(answer, "\r\n\r\n");
    const char *length = strstr(answer, "Content-Length: ");
    int status = 0;

    HPS_ASSERT(sscanf(answer, "HTTP/1.1 %d ", &status) == 1 && end != NULL && length != NULL);
    size_t body = size - (size_t)(end + 4 - answer);
    HPS_ASSERT(body == 0 || body == strtoul(length + strlen("Content-Length: "), NULL, 10));
    HPS_ASSERT(asked ==
               (status == 200 || status == 403 || status == 404 || status == 500 || status == 503));
    HPS_ASSERT(asked || status == 400 || status == 405 || status == 431);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char answer[ANSWER_BYTES_MAX];
    struct script script = {data, size};
    size_t answer_size;

    if (place_open()) {
        world_open();
    }
    uint8_t mode = script_u8(&script);
    size_t piece = (size_t)1 << (mode % 14);
    unsigned n_asked = world.n_asked;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    HPS_ASSERT(fd >= 0 && connect(fd, (struct sockaddr *)&world.at, sizeof(world.at)) == 0);
    for (unsigned i = 0; i < 64 && script.left > 0; i++) {
        size_t n;
        const uint8_t *bytes = script_take(&script, i < 63 ? piece : script.left, &n);
        (void)!send(fd, bytes, n, MSG_NOSIGNAL);
        hps_loop_turn(world.loop, 0);
    }
    if ((mode & HALF_CLOSE) != 0) {
        (void)shutdown(fd, SHUT_WR);
    }
    if ((mode & CLOSE_EARLY) == 0) {
        (void)receive(fd, answer, &answer_size);
        HPS_ASSERT(world.n_asked - n_asked <= 1);
        if (answer_size > 0) {
            check_answer(answer, answer_size, world.n_asked != n_asked);
        } else {
            HPS_ASSERT(world.n_asked == n_asked);
            hps_clock_advance(2 * 1000 * 1000); /* who does not come to the point is cut off */
            HPS_ASSERT(receive(fd, answer, &answer_size) && answer_size == 0);
        }
    }
    close(fd);
    turns();
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Answers of a hostile server to the client of HTTP/1.1, as hps-bench uses it, in any pieces, with
 * the connection ended and time passing in between. Each input is a client of its own, connected
 * as often as it asks. Whatever the server does, every request ends once: with an answer whose
 * parts are within it and within the bound, or with an error that says why.
 */
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "client/http.h"
#include "net/sock.h"
#include "tests/fuzz/place.h"
#include "tests/fuzz/script.h"

enum { STEPS_MAX = 64, ANSWER_BYTES_MAX = 4 * 1024, ASKED_MAX = 32 };
enum { STEP_ASK, STEP_SAY, STEP_HANG_UP, STEP_CLOCK, STEPS };

static struct {
    struct hps_loop *loop;
    int listen_fd;
    char address[128];
} world;

struct talk {
    struct hps_http_client *client;
    int fd; /* the connection that is answered; -1: none */
    unsigned n_asked;
    unsigned n_done;
    unsigned n_again; /* to be asked from within the callback */
};

static void world_open(void)
{
    struct hps_addr addr = {.is_unix = true};

    hps_log_level_set(HPS_LOG_ERROR);
    hps_clock_fake(hps_clock_us());
    snprintf(addr.path, sizeof(addr.path), "%s", hps_tmpdir_join(&place_dir, "http"));
    snprintf(world.address, sizeof(world.address), "unix:%s", addr.path);
    HPS_ASSERT(hps_loop_new(&world.loop, NULL) == HPS_OK);
    HPS_ASSERT(hps_sock_listen(&addr, 0600, &world.listen_fd, NULL) == HPS_OK);
}

static void on_done(void *ctx, const struct hps_http_answer *answer, const struct hps_error *err);

static void ask(struct talk *talk, uint64_t deadline_us)
{
    struct hps_error err = {0};

    if (talk->n_asked > talk->n_done || talk->n_asked == ASKED_MAX) {
        return;
    }
    talk->n_asked++;
    if (hps_http_client_ask(talk->client, "GET", 3, deadline_us, on_done, talk, &err) != HPS_OK) {
        HPS_ASSERT(err.text[0] != '\0');
        talk->n_asked--;
    }
}

static void on_done(void *ctx, const struct hps_http_answer *answer, const struct hps_error *err)
{
    struct talk *talk = ctx;
    uint32_t sum = 0;

    talk->n_done++;
    HPS_ASSERT(talk->n_done == talk->n_asked);
    if (answer == NULL) {
        HPS_ASSERT(err->status != HPS_OK && err->text[0] != '\0');
    } else {
        HPS_ASSERT(answer->status <= 999 && answer->json_size <= answer->size);
        HPS_ASSERT(answer->size <= ANSWER_BYTES_MAX + 80 * 1024); /* a head, and a read */
        for (size_t i = 0; i < answer->size; i++) {
            sum += answer->body[i];
        }
        HPS_ASSERT(sum <= answer->size * 255);
    }
    if (talk->n_again > 0) {
        talk->n_again--;
        ask(talk, 0);
    }
}

static void hang_up(struct talk *talk)
{
    if (talk->fd >= 0) {
        close(talk->fd);
        talk->fd = -1;
    }
}

/* Both ends go on; the newest connection is the one that is answered. */
static void turn(struct talk *talk)
{
    char bytes[256];
    int fd;

    hps_loop_turn(world.loop, 0);
    while (hps_sock_accept(world.listen_fd, &fd) == HPS_OK) {
        hang_up(talk);
        talk->fd = fd;
    }
    hps_loop_turn(world.loop, 0);
    while (talk->fd >= 0 && recv(talk->fd, bytes, sizeof(bytes), MSG_DONTWAIT) > 0) {
    }
}

static void say(struct talk *talk, struct script *script)
{
    size_t size;
    const uint8_t *data = script_run(script, &size);

    if (talk->fd >= 0 && size > 0 && send(talk->fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
        hang_up(talk);
    }
}

static void step(struct talk *talk, struct script *script)
{
    uint8_t n;

    switch (script_u8(script) % STEPS) {
    case STEP_ASK:
        n = script_u8(script);
        talk->n_again = n % 3;
        ask(talk, n >= 128 ? hps_clock_us() + ((uint64_t)1 << (n % 24)) : 0);
        break;
    case STEP_SAY:
        say(talk, script);
        break;
    case STEP_HANG_UP:
        hang_up(talk);
        break;
    default:
        hps_clock_advance((uint64_t)1 << (script_u8(script) % 26));
        break;
    }
    turn(talk);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct script script = {data, size};
    struct talk talk = {.fd = -1};

    if (place_open()) {
        world_open();
    }
    HPS_ASSERT(hps_http_client_new(world.address, NULL, world.loop, ANSWER_BYTES_MAX,
                                   &talk.client) == HPS_OK);
    ask(&talk, 0);
    turn(&talk);
    for (unsigned i = 0; i < STEPS_MAX && script.left > 0; i++) {
        step(&talk, &script);
    }
    talk.n_again = 0;
    turn(&talk);
    hang_up(&talk);
    turn(&talk);
    HPS_ASSERT(talk.n_done == talk.n_asked); /* the connection ended */
    hps_http_client_free(talk.client);
    hang_up(&talk);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The client of HTTP/1.1 against a listener that answers what a test says.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "client/http.h"
#include "tests/lib/tmpdir.h"

enum { ANSWER_BYTES_MAX = 100 * 1000 };
#define PATIENCE_US (UINT64_C(20) * 1000 * 1000)

struct seen {
    unsigned n;
    hps_status status; /* OK: an answer */
    unsigned http;
    size_t size, json_size;
    char body[64];
};

struct rig {
    struct hps_tmpdir folder;
    char address[HPS_TMPDIR_PATH_MAX + 8];
    int listener, peer; /* -1: none */
    struct hps_loop *loop;
    struct hps_http_client *client;
    struct seen seen;
};

static void on_done(void *ctx, const struct hps_http_answer *answer, const struct hps_error *err)
{
    struct seen *seen = ctx;

    seen->n++;
    seen->status = answer == NULL ? err->status : HPS_OK;
    if (answer != NULL) {
        seen->http = answer->status;
        seen->size = answer->size;
        seen->json_size = answer->json_size;
        memset(seen->body, 0, sizeof(seen->body));
        memcpy(seen->body, answer->body, answer->size < 63 ? answer->size : 63);
    } else {
        assert_true(err->text[0] != '\0');
    }
}

static void open_rig(struct rig *rig)
{
    struct hps_error err = {0};
    struct sockaddr_un name = {.sun_family = AF_UNIX};

    *rig = (struct rig){.peer = -1};
    hps_tmpdir_open(&rig->folder);
    const char *path = hps_tmpdir_join(&rig->folder, "s");
    (void)snprintf(rig->address, sizeof(rig->address), "unix:%s", path);
    assert_true(strlen(path) < sizeof(name.sun_path));
    memcpy(name.sun_path, path, strlen(path));
    rig->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(rig->listener, (const struct sockaddr *)&name, sizeof(name)), 0);
    assert_int_equal(listen(rig->listener, 4), 0);
    assert_int_equal(hps_loop_new(&rig->loop, &err), HPS_OK);
    assert_int_equal(
        hps_http_client_new(rig->address, NULL, rig->loop, ANSWER_BYTES_MAX, &rig->client), HPS_OK);
}

static void close_peer(struct rig *rig)
{
    if (rig->peer >= 0) {
        assert_int_equal(close(rig->peer), 0);
        rig->peer = -1;
    }
}

static void close_rig(struct rig *rig)
{
    hps_http_client_free(rig->client);
    hps_loop_free(rig->loop);
    close_peer(rig);
    assert_int_equal(close(rig->listener), 0);
    hps_tmpdir_close(&rig->folder);
}

static void ask(struct rig *rig, uint64_t deadline_us)
{
    struct hps_error err = {0};

    rig->seen = (struct seen){0};
    assert_int_equal(
        hps_http_client_ask(rig->client, "GET", 3, deadline_us, on_done, &rig->seen, &err), HPS_OK);
}

/* The other end of the client's connection has the request. */
static void take_request(struct rig *rig)
{
    char bytes[3];

    hps_loop_turn(rig->loop, 0);
    if (rig->peer < 0) {
        rig->peer = accept(rig->listener, NULL, NULL);
    }
    hps_loop_turn(rig->loop, 0);
    assert_int_equal(recv(rig->peer, bytes, sizeof(bytes), MSG_WAITALL), 3);
    assert_memory_equal(bytes, "GET", 3);
}

static void wait_for_the_end(struct rig *rig)
{
    uint64_t end_us = hps_clock_us() + PATIENCE_US;

    while (rig->seen.n == 0 && hps_clock_us() < end_us) {
        hps_loop_turn(rig->loop, 1000);
    }
    assert_int_equal(rig->seen.n, 1);
}

static void say(struct rig *rig, const char *text, size_t size)
{
    assert_int_equal(send(rig->peer, text, size, MSG_NOSIGNAL), (int)size);
}

static void answer_with(struct rig *rig, const char *text)
{
    ask(rig, 0);
    take_request(rig);
    say(rig, text, strlen(text));
    wait_for_the_end(rig);
}

static void test_ask_when_answered_then_body_and_sizes_and_the_connection_is_kept(void **state)
{
    struct rig rig;

    (void)state;
    open_rig(&rig);
    answer_with(
        &rig,
        "HTTP/1.1 200 OK\r\nInference-Header-Content-Length: 2\r\ncontent-length:5\r\n\r\n{}abc");
    assert_int_equal(rig.seen.status, HPS_OK);
    assert_int_equal(rig.seen.http, 200);
    assert_int_equal(rig.seen.size, 5);
    assert_int_equal(rig.seen.json_size, 2);
    assert_string_equal(rig.seen.body, "{}abc");
    answer_with(&rig, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"); /* on the same one */
    assert_int_equal(rig.seen.status, HPS_OK);
    assert_int_equal(rig.seen.http, 404);
    assert_int_equal(rig.seen.json_size, 0);
    close_rig(&rig);
}

static void test_ask_when_the_answer_comes_a_byte_at_a_time_then_the_same(void **state)
{
    static const char text[] = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabcd";
    struct rig rig;

    (void)state;
    open_rig(&rig);
    ask(&rig, 0);
    take_request(&rig);
    for (size_t i = 0; i < sizeof(text) - 1; i++) {
        assert_int_equal(rig.seen.n, 0);
        say(&rig, text + i, 1);
        hps_loop_turn(rig.loop, 1000);
    }
    wait_for_the_end(&rig);
    assert_string_equal(rig.seen.body, "abcd");
    close_rig(&rig);
}

static void test_ask_when_the_server_ends_the_connection_then_the_next_has_a_new_one(void **state)
{
    struct rig rig;

    (void)state;
    open_rig(&rig);
    answer_with(&rig, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\na");
    assert_int_equal(rig.seen.status, HPS_OK);
    close_peer(&rig);
    answer_with(&rig, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nb");
    assert_string_equal(rig.seen.body, "b");
    ask(&rig, 0);
    take_request(&rig);
    say(&rig, "HTTP/1.1 200 OK\r\nContent-Le", 27);
    close_peer(&rig);
    wait_for_the_end(&rig);
    assert_int_equal(rig.seen.status, HPS_UNAVAILABLE);
    answer_with(&rig, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nc");
    assert_string_equal(rig.seen.body, "c");
    close_rig(&rig);
}

static void test_ask_when_the_answer_is_none_then_data_loss(void **state)
{
    static const char *const wrong[] = {
        "HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\na",
        "HTTP/1.1 2x0 OK\r\nContent-Length: 1\r\n\r\na",
        "HTTP/1.1 200 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: \r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab",
        "HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        "HTTP/1.1 200 OK\r\nInference-Header-Content-Length: 2\r\nContent-Length: 1\r\n\r\na",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\na",
        "\r\n\r\n",
    };
    struct rig rig;

    (void)state;
    open_rig(&rig);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        answer_with(&rig, wrong[i]);
        assert_int_equal(rig.seen.status, HPS_DATA_LOSS);
        close_peer(&rig);
    }
    close_rig(&rig);
}

static void test_ask_when_the_head_has_no_end_then_data_loss_within_bounds(void **state)
{
    char bytes[32 * 1024];
    struct rig rig;

    (void)state;
    memset(bytes, 'a', sizeof(bytes));
    open_rig(&rig);
    ask(&rig, 0);
    take_request(&rig);
    say(&rig, bytes, sizeof(bytes));
    wait_for_the_end(&rig);
    assert_int_equal(rig.seen.status, HPS_DATA_LOSS);
    close_rig(&rig);
}

static void test_ask_when_its_time_is_over_then_deadline(void **state)
{
    struct rig rig;

    (void)state;
    open_rig(&rig);
    ask(&rig, hps_clock_us());
    wait_for_the_end(&rig);
    assert_int_equal(rig.seen.status, HPS_DEADLINE);
    close_rig(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ask_when_answered_then_body_and_sizes_and_the_connection_is_kept),
        cmocka_unit_test(test_ask_when_the_answer_comes_a_byte_at_a_time_then_the_same),
        cmocka_unit_test(test_ask_when_the_server_ends_the_connection_then_the_next_has_a_new_one),
        cmocka_unit_test(test_ask_when_the_answer_is_none_then_data_loss),
        cmocka_unit_test(test_ask_when_the_head_has_no_end_then_data_loss_within_bounds),
        cmocka_unit_test(test_ask_when_its_time_is_over_then_deadline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

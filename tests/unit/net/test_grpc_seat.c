/* SPDX-License-Identifier: Apache-2.0
 *
 * Displaced connections, and connections that end before their first request, as clients and the
 * table of places see them. Test thread, with a fake clock.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "tests/lib/grpc_rig.h"
#include "tests/lib/http_peer.h"

enum { SECOND_US = 1000 * 1000, GREEDY = 11, MODEST = 22 };
enum { FRAME_HEADERS = 1, FRAME_GOAWAY = 7 };

static void open_rig(struct rig *rig, struct hps_place_limits limits)
{
    hps_clock_fake(hps_clock_us());
    rig_open(rig, &rig_limits);
    rig->client = GREEDY;
    rig->places = hps_places_new(&limits, NULL);
    assert_non_null(rig->places);
}

static void close_rig(struct rig *rig)
{
    rig_close(rig);
    assert_int_equal(hps_places_taken(rig->places), 0);
    hps_places_free(rig->places);
    hps_clock_real();
}

/* A client that speaks HTTP/2 or HTTP/1.1. */
struct client {
    struct wire wire;
    struct peer peer;
    bool http;
};

static bool is_closed(const struct client *client)
{
    return client->http ? client->peer.closed : client->wire.closed;
}

/* Opens a connection with one call, which is complete or parked. */
static void open_client(struct client *client, struct rig *rig, bool http, bool parks)
{
    unsigned n_messages = rig->n_messages;
    unsigned n_ended = rig->n_ended[0];

    client->http = http;
    if (http) {
        peer_open(&client->peer, rig);
        peer_say(&client->peer, parks ? GET("/park") : POST("/echo", "0", ""));
    } else {
        wire_open(&client->wire, rig);
        wire_call(&client->wire, 1, parks ? "/t.T/Park" : "/t.T/Echo", NULL, "", 0);
    }
    RIG_UNTIL(rig, rig->n_messages == n_messages + 1);
    if (!parks) {
        RIG_UNTIL(rig, rig->n_ended[0] == n_ended + 1);
    }
    if (http && !parks) {
        expect_answer(&client->peer, 200, "");
    }
    assert_false(is_closed(client));
}

static void close_client(struct client *client)
{
    if (client->http) {
        peer_close(&client->peer);
    } else {
        wire_close(&client->wire);
    }
}

/* Waits for the reply to the parked call. `last`: it is the last one on the connection; HTTP/1.1
 * says so in its headers, HTTP/2 has sent GOAWAY. */
static void expect_reply(struct client *client, bool last)
{
    if (client->http) {
        expect_head(&client->peer, 200, last ? "\r\nConnection: close\r\n" : "\r\n");
    } else {
        WIRE_UNTIL(&client->wire, wire_find(&client->wire, FRAME_HEADERS, 1, NULL, NULL));
        assert_int_equal(wire_find(&client->wire, FRAME_GOAWAY, 0, NULL, NULL), last);
    }
}

static void expect_gone(struct client *client)
{
    if (client->http) {
        expect_end(&client->peer);
    } else {
        WIRE_UNTIL(&client->wire, client->wire.closed);
        assert_true(wire_find(&client->wire, FRAME_GOAWAY, 0, NULL, NULL));
    }
}

/* ---- displaced connections ------------------------------------------------------------------- */

static void test_idle_connection_when_a_place_is_needed_then_displaced_before_one_with_a_call(
    void **state)
{
    struct rig rig;
    struct client parked, idle, other;

    (void)state;
    for (unsigned http = 0; http < 2; http++) {
        open_rig(&rig, (struct hps_place_limits){.max = 2});
        open_client(&parked, &rig, http, true);
        open_client(&idle, &rig, http, false);
        rig.client = MODEST;
        open_client(&other, &rig, http, false); /* `idle` has been idle only briefly */
        expect_gone(&idle);
        assert_int_equal(rig.n_connections, 2);
        hps_grpc_call_finish(rig.parked, 0, NULL);
        expect_reply(&parked, false);
        assert_false(is_closed(&parked));
        close_client(&idle);
        close_client(&parked);
        close_client(&other);
        close_rig(&rig);
    }
}

static void test_connection_with_a_call_when_displaced_then_ends_with_the_call(void **state)
{
    struct rig rig;
    struct client parked, second, other;

    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        bool http = i / 2 > 0;
        bool ends = i % 2 > 0; /* else the connection is closed after two seconds */
        open_rig(&rig, (struct hps_place_limits){.max = 2});
        open_client(&parked, &rig, http, true);
        struct hps_grpc_call *call = rig.parked;
        hps_grpc_call_ref(call);
        open_client(&second, &rig, http, true);
        rig.client = MODEST;
        open_client(&other, &rig, http, false);
        assert_false(is_closed(&parked));
        assert_int_equal(rig.n_connections, 3);
        if (ends) {
            hps_grpc_call_finish(call, 0, NULL);
            expect_reply(&parked, true);
            hps_clock_advance(SECOND_US + 1); /* no reply to PING: the drain goes ahead */
        } else {
            hps_clock_advance(2 * SECOND_US + 1);
        }
        expect_gone(&parked);
        close_client(&parked);
        RIG_UNTIL(&rig, rig.n_connections == 2);
        hps_grpc_call_unref(call);
        close_client(&second);
        close_client(&other);
        close_rig(&rig);
    }
}

static void test_connection_with_a_call_when_calls_are_short_then_ends_at_once(void **state)
{
    struct rig rig;
    struct client parked, other;

    (void)state;
    for (unsigned http = 0; http < 2; http++) {
        open_rig(&rig, (struct hps_place_limits){.max = 1, .short_calls = true});
        open_client(&parked, &rig, http, true);
        open_client(&other, &rig, http, false);
        expect_gone(&parked);
        close_client(&parked);
        close_client(&other);
        close_rig(&rig);
    }
}

static void test_connection_when_its_call_makes_progress_then_displaced_last(void **state)
{
    struct rig rig;
    struct client chat = {0}, parked, other;

    (void)state;
    open_rig(&rig, (struct hps_place_limits){.max = 2});
    wire_open(&chat.wire, &rig);
    assert_true(wire_request(&chat.wire, 1, "/t.T/Chat", false, NULL));
    for (unsigned i = 0; i < 3; i++) { /* `parked` begins after the first message */
        assert_true(wire_frame(&chat.wire, 0, 0, 1, "\0\0\0\0\0", 5));
        WIRE_UNTIL(&chat.wire, rig.n_messages == i + 1 + (i > 0));
        wire_pump(&chat.wire); /* reads the reply, which counts as progress */
        hps_clock_advance(SECOND_US);
        wire_pump(&chat.wire);
        if (i == 0) {
            open_client(&parked, &rig, false, true);
        }
    }
    rig.client = MODEST;
    open_client(&other, &rig, false, false);
    hps_clock_advance(2 * SECOND_US + 1);
    expect_gone(&parked);
    assert_false(is_closed(&chat));
    close_client(&chat);
    close_client(&parked);
    close_client(&other);
    close_rig(&rig);
}

static void test_connection_when_displaced_before_adoption_then_ends(void **state)
{
    struct rig rig;

    (void)state;
    open_rig(&rig, (struct hps_place_limits){.max = 2});
    int first = rig_raw(&rig); /* accepted, but not yet adopted by the loop */
    int second = rig_raw(&rig);
    rig.client = MODEST;
    int other = rig_raw(&rig);
    assert_false(rig.refused);
    char byte;
    RIG_UNTIL(&rig, recv(first, &byte, 1, 0) == 0);
    RIG_UNTIL(&rig, hps_places_taken(rig.places) == 2);
    assert_int_equal(rig.n_no_starts[HPS_GRPC_LEFT], 0); /* the server closed it, not the peer */
    close(first);
    close(second);
    close(other);
    close_rig(&rig);
}

static void test_http_connections_when_a_place_is_needed_then_longest_idle_ends(void **state)
{
    struct rig rig;
    struct client clients[3], other;

    (void)state;
    open_rig(&rig, (struct hps_place_limits){.max = 3});
    for (unsigned i = 0; i < 3; i++) { /* each from another client */
        rig.client = GREEDY + i;
        open_client(&clients[i], &rig, true, false);
        hps_clock_advance(SECOND_US);
    }
    peer_say(&clients[0].peer,
             GET("/names/a/b")); /* now the second one has been idle for the longest time */
    expect_answer(&clients[0].peer, 200, "a|b");
    hps_clock_advance(SECOND_US);
    rig.client = MODEST;
    open_client(&other, &rig, true, false);
    expect_gone(&clients[1]);
    assert_false(rig.refused);
    for (unsigned i = 0; i < 3; i += 2) {
        peer_say(&clients[i].peer, GET("/names/c/d"));
        expect_answer(&clients[i].peer, 200, "c|d");
    }
    assert_int_equal(rig.n_connections, 3);
    for (unsigned i = 0; i < 3; i++) {
        close_client(&clients[i]);
    }
    close_client(&other);
    close_rig(&rig);
}

/* ---- connections without a request ----------------------------------------------------------- */

static unsigned n_no_starts(const struct rig *rig)
{
    unsigned n = 0;

    for (unsigned i = 0; i < HPS_GRPC_NO_STARTS; i++) {
        n += rig->n_no_starts[i];
    }
    return n;
}

static void send_and_close(struct rig *rig, const char *text, size_t size)
{
    unsigned n = n_no_starts(rig);
    int fd = rig_raw(rig);

    if (size > 0) {
        assert_int_equal(send(fd, text, size, MSG_NOSIGNAL), (ssize_t)size);
    }
    shutdown(fd, SHUT_WR);
    RIG_UNTIL(rig, n_no_starts(rig) == n + 1);
    close(fd);
}

static void test_preface_when_wrong_then_protocol_failure_and_client_is_slowed(void **state)
{
    struct rig rig;

    (void)state;
    open_rig(&rig, (struct hps_place_limits){.failures_max = 5});
    for (unsigned i = 0; i < 5 + HPS_PLACES_LET_IN_PER_S; i++) {
        send_and_close(&rig, "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n", 35);
    }
    assert_int_equal(rig.n_no_starts[HPS_GRPC_PROTOCOL], 5 + HPS_PLACES_LET_IN_PER_S);
    close(rig_raw(&rig));
    assert_true(rig.refused);
    rig.client = MODEST;
    close(rig_raw(&rig));
    assert_false(rig.refused);
    close_rig(&rig);
}

static void test_probe_when_it_sends_nothing_then_counted_but_client_is_not_slowed(void **state)
{
    struct rig rig;

    (void)state;
    open_rig(&rig, (struct hps_place_limits){.failures_max = 1});
    for (unsigned i = 0; i < 50; i++) {
        send_and_close(&rig, NULL, 0);
        assert_false(rig.refused);
    }
    assert_int_equal(rig.n_no_starts[HPS_GRPC_LEFT], 50);
    close_rig(&rig);
}

/* Opens connections that are closed at once. */
static void knock(struct rig *rig, unsigned n)
{
    int before = rig->n_connections;

    for (unsigned i = 0; i < n; i++) {
        close(rig_raw(rig));
        RIG_UNTIL(rig, rig->n_connections == before);
    }
}

static void test_connection_when_no_request_arrives_then_timeout_and_silent_client_is_slowed(
    void **state)
{
    struct rig rig;
    struct wire early;

    (void)state;
    open_rig(&rig, (struct hps_place_limits){.failures_max = 1});
    wire_open(&early, &rig); /* speaks HTTP/2, but sends no request yet */
    RIG_UNTIL(&rig, rig.n_connections == 1);
    for (unsigned i = 0; i < 20; i++) {
        wire_pump(&early);
    }
    hps_clock_advance(10 * SECOND_US + 1);
    WIRE_UNTIL(&early, early.closed);
    assert_int_equal(rig.n_no_starts[HPS_GRPC_TIMEOUT], 1);
    wire_close(&early);
    knock(&rig, 2 * HPS_PLACES_LET_IN_PER_S);
    assert_false(rig.refused); /* the timeout did not count as a failure of the client */
    int silent = rig_raw(&rig);
    RIG_UNTIL(&rig, rig.n_connections == 1);
    hps_clock_advance(10 * SECOND_US + 1);
    RIG_UNTIL(&rig, rig.n_connections == 0);
    assert_int_equal(rig.n_no_starts[HPS_GRPC_TIMEOUT], 2);
    knock(&rig, HPS_PLACES_LET_IN_PER_S);
    assert_false(rig.refused);
    knock(&rig, 1);
    assert_true(rig.refused);
    close(silent);
    close_rig(&rig);
}

/* ---- unauthenticated clients ----------------------------------------------------------------- */

/* Makes a call with or without a valid token, and waits for its end. */
static void ask(struct wire *wire, uint32_t stream, bool known)
{
    static const char *const name[] = {"authorization", "me", NULL};
    int code = known ? 0 : 16;
    unsigned n = wire->rig->n_ended[code];

    wire_call(wire, stream, "/t.T/Echo", known ? name : NULL, "", 0);
    WIRE_UNTIL(wire, wire->rig->n_ended[code] == n + 1);
}

static void test_calls_when_16_in_a_row_are_unauthenticated_then_connection_ends(void **state)
{
    struct rig rig;
    struct wire wire;
    struct rig_guard guard = {.word = "me"};
    uint32_t stream = 1;

    (void)state;
    open_rig(&rig, (struct hps_place_limits){.failures_max = 31});
    rig_guard_set(&rig, &guard);
    wire_open(&wire, &rig);
    for (unsigned i = 0; i < 31; i++, stream += 2) {
        ask(&wire, stream, i == 15); /* one valid call interrupts the sequence */
    }
    assert_false(wire_find(&wire, FRAME_GOAWAY, 0, NULL, NULL));
    knock(&rig, 2 * HPS_PLACES_LET_IN_PER_S);
    assert_false(rig.refused);
    ask(&wire, stream, false);
    WIRE_UNTIL(&wire, wire.closed);
    assert_true(wire_find(&wire, FRAME_GOAWAY, 0, NULL, NULL));
    knock(&rig, HPS_PLACES_LET_IN_PER_S); /* the client has reached failures_max */
    assert_false(rig.refused);
    knock(&rig, 1);
    assert_true(rig.refused);
    wire_close(&wire);
    close_rig(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            test_idle_connection_when_a_place_is_needed_then_displaced_before_one_with_a_call),
        cmocka_unit_test(test_connection_with_a_call_when_displaced_then_ends_with_the_call),
        cmocka_unit_test(test_connection_with_a_call_when_calls_are_short_then_ends_at_once),
        cmocka_unit_test(test_connection_when_its_call_makes_progress_then_displaced_last),
        cmocka_unit_test(test_connection_when_displaced_before_adoption_then_ends),
        cmocka_unit_test(test_http_connections_when_a_place_is_needed_then_longest_idle_ends),
        cmocka_unit_test(test_preface_when_wrong_then_protocol_failure_and_client_is_slowed),
        cmocka_unit_test(test_probe_when_it_sends_nothing_then_counted_but_client_is_not_slowed),
        cmocka_unit_test(
            test_connection_when_no_request_arrives_then_timeout_and_silent_client_is_slowed),
        cmocka_unit_test(test_calls_when_16_in_a_row_are_unauthenticated_then_connection_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

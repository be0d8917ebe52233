/* SPDX-License-Identifier: Apache-2.0
 *
 * Connections that give way to others, and those that end before their first request, as clients
 * and the table of peers see it. Test thread; time stands still unless a test moves it.
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

static void open_rig(struct rig *rig, struct hps_peers_limits limits)
{
    hps_clock_fake(hps_clock_us());
    rig_open(rig, &rig_limits);
    rig->client = GREEDY;
    rig->peers = hps_peers_new(&limits, NULL);
    assert_non_null(rig->peers);
}

static void close_rig(struct rig *rig)
{
    rig_close(rig);
    assert_int_equal(hps_peers_connections(rig->peers), 0);
    hps_peers_free(rig->peers);
    hps_clock_real();
}

/* A client that has asked once, and got its answer. */
static void open_asked(struct wire *wire, struct rig *rig)
{
    unsigned n = rig->n_ended[0];

    wire_open(wire, rig);
    wire_call(wire, 1, "/t.T/Echo", NULL, "", 0);
    WIRE_UNTIL(wire, rig->n_ended[0] == n + 1);
}

/* A client with a call that is not answered. */
static void open_parked(struct wire *wire, struct rig *rig)
{
    unsigned n = rig->n_messages;

    wire_open(wire, rig);
    wire_call(wire, 1, "/t.T/Park", NULL, "", 0);
    WIRE_UNTIL(wire, rig->n_messages == n + 1);
}

/* ---- giving way ------------------------------------------------------------------------------ */

static void test_idle_connection_when_its_place_is_needed_then_goaway_and_end(void **state)
{
    struct rig rig;
    struct wire idle, parked, other;

    (void)state;
    open_rig(&rig, (struct hps_peers_limits){.connections_max = 2, .share = 0.5});
    open_asked(&idle, &rig);
    open_parked(&parked, &rig);
    rig.client = MODEST;
    open_asked(&other, &rig);
    WIRE_UNTIL(&idle, idle.closed);
    assert_true(wire_find(&idle, FRAME_GOAWAY, 0, NULL, NULL));
    assert_int_equal(rig.n_connections, 2);
    hps_grpc_call_finish(rig.parked, 0, NULL); /* whoever has a call keeps its connection */
    WIRE_UNTIL(&parked, wire_find(&parked, FRAME_HEADERS, 1, NULL, NULL));
    wire_close(&idle);
    wire_close(&parked);
    wire_close(&other);
    close_rig(&rig);
}

static void test_connection_with_a_call_when_its_peer_has_too_many_then_ends_with_the_call(
    void **state)
{
    struct rig rig;
    struct wire parked, second, other;

    (void)state;
    open_rig(&rig, (struct hps_peers_limits){.connections_max = 2, .share = 0.25});
    open_parked(&parked, &rig);
    struct hps_grpc_call *call = rig.parked;
    open_parked(&second, &rig);
    rig.client = MODEST;
    open_asked(&other, &rig);
    WIRE_UNTIL(&parked, wire_find(&parked, FRAME_GOAWAY, 0, NULL, NULL));
    assert_false(parked.closed);
    hps_grpc_call_finish(call, 0, NULL);
    WIRE_UNTIL(&parked, wire_find(&parked, FRAME_HEADERS, 1, NULL, NULL));
    hps_clock_advance(SECOND_US + 1); /* the client answers no PING: the notice has had its time */
    WIRE_UNTIL(&parked, parked.closed);
    assert_int_equal(rig.n_ended[0], 2);
    wire_close(&parked);
    wire_close(&second);
    wire_close(&other);
    close_rig(&rig);
}

static void test_connection_with_a_call_when_that_does_not_end_then_cut_off(void **state)
{
    struct rig rig;
    struct wire first, second, other;

    (void)state;
    open_rig(&rig, (struct hps_peers_limits){.connections_max = 2, .share = 0.25});
    open_parked(&first, &rig);
    open_parked(&second, &rig);
    rig.client = MODEST;
    open_asked(&other, &rig);
    WIRE_UNTIL(&first, wire_find(&first, FRAME_GOAWAY, 0, NULL, NULL));
    hps_clock_advance(2 * SECOND_US + 1);
    WIRE_UNTIL(&first, first.closed);
    assert_int_equal(rig.n_connections, 2);
    wire_close(&first);
    wire_close(&second);
    wire_close(&other);
    close_rig(&rig);
}

static void test_connection_when_told_to_leave_before_it_is_open_then_ends(void **state)
{
    struct rig rig;

    (void)state;
    open_rig(&rig, (struct hps_peers_limits){.connections_max = 2, .share = 0.25});
    int first = rig_raw(&rig); /* accepted; the loop has not taken it up */
    int second = rig_raw(&rig);
    rig.client = MODEST;
    int other = rig_raw(&rig);
    assert_false(rig.refused);
    char byte;
    RIG_UNTIL(&rig, recv(first, &byte, 1, 0) == 0);
    RIG_UNTIL(&rig, hps_peers_connections(rig.peers) == 2);
    assert_int_equal(rig.n_no_starts[HPS_GRPC_LEFT], 0); /* not by what its peer did */
    close(first);
    close(second);
    close(other);
    close_rig(&rig);
}

/* ---- giving way: HTTP/1.1 -------------------------------------------------------------------- */

/* A client that has asked once, and got its answer. */
static void open_answered(struct peer *peer, struct rig *rig)
{
    peer_open(peer, rig);
    peer_say(peer, GET("/names/a/b"));
    expect_answer(peer, 200, "a|b");
    assert_false(peer->closed);
}

/* A client with a call that is not answered. */
static void open_waiting(struct peer *peer, struct rig *rig)
{
    unsigned n = rig->n_messages;

    peer_open(peer, rig);
    peer_say(peer, GET("/park"));
    PEER_UNTIL(peer, rig->n_messages == n + 1);
}

static void test_http_connections_when_a_place_is_needed_then_the_longest_idle_ends(void **state)
{
    struct rig rig;
    struct peer peers[3], other;

    (void)state;
    open_rig(&rig, (struct hps_peers_limits){.connections_max = 3, .share = 1});
    for (unsigned i = 0; i < 3; i++) { /* each of another address */
        rig.client = GREEDY + i;
        open_answered(&peers[i], &rig);
        hps_clock_advance(SECOND_US);
    }
    peer_say(&peers[0], GET("/names/a/b")); /* so that the second is idle for the longest time */
    expect_answer(&peers[0], 200, "a|b");
    hps_clock_advance(SECOND_US);
    rig.client = MODEST;
    open_answered(&other, &rig);
    expect_end(&peers[1]);
    assert_false(rig.refused);
    for (unsigned i = 0; i < 3; i += 2) {
        peer_say(&peers[i], GET("/names/c/d"));
        expect_answer(&peers[i], 200, "c|d");
    }
    assert_int_equal(rig.n_connections, 3);
    for (unsigned i = 0; i < 3; i++) {
        peer_close(&peers[i]);
    }
    peer_close(&other);
    close_rig(&rig);
}

static void test_idle_http_connection_when_its_peer_has_too_many_then_goes_before_one_with_a_call(
    void **state)
{
    struct rig rig;
    struct peer waiting, idle, other;

    (void)state;
    open_rig(&rig, (struct hps_peers_limits){.connections_max = 2, .share = 0.5});
    open_waiting(&waiting, &rig);
    open_answered(&idle, &rig);
    rig.client = MODEST;
    open_answered(&other, &rig); /* at once, however short the other one has been idle */
    expect_end(&idle);
    hps_grpc_call_finish(rig.parked, 0, NULL);
    expect_answer(&waiting, 200, "");
    assert_false(waiting.closed);
    peer_close(&waiting);
    peer_close(&idle);
    peer_close(&other);
    close_rig(&rig);
}

static void test_http_connection_with_a_call_when_its_peer_has_too_many_then_ends_with_the_answer(
    void **state)
{
    struct rig rig;
    struct peer waiting, second, other;

    (void)state;
    open_rig(&rig, (struct hps_peers_limits){.connections_max = 2, .share = 0.25});
    open_waiting(&waiting, &rig);
    struct hps_grpc_call *call = rig.parked;
    open_waiting(&second, &rig);
    rig.client = MODEST;
    open_answered(&other, &rig);
    assert_false(waiting.closed);
    hps_grpc_call_finish(call, 0, NULL);
    expect_head(&waiting, 200, "\r\nConnection: close\r\n");
    expect_end(&waiting);
    peer_close(&waiting);
    peer_close(&second);
    peer_close(&other);
    close_rig(&rig);
}

static void test_http_connection_with_a_call_when_that_does_not_end_then_cut_off(void **state)
{
    struct rig rig;
    struct peer first, second, other;

    (void)state;
    open_rig(&rig, (struct hps_peers_limits){.connections_max = 2, .share = 0.25});
    open_waiting(&first, &rig);
    open_waiting(&second, &rig);
    rig.client = MODEST;
    open_answered(&other, &rig);
    assert_int_equal(rig.n_connections, 3);
    hps_clock_advance(2 * SECOND_US + 1);
    expect_end(&first);
    assert_int_equal(rig.n_connections, 2);
    peer_close(&first);
    peer_close(&second);
    peer_close(&other);
    close_rig(&rig);
}

/* ---- those that never began ------------------------------------------------------------------ */

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

static void test_preface_when_wrong_then_named_and_after_some_its_peer_is_slowed(void **state)
{
    struct rig rig;

    (void)state;
    open_rig(&rig, (struct hps_peers_limits){.failures_max = 5});
    for (unsigned i = 0; i < 5 + HPS_PEERS_LET_IN_PER_S; i++) {
        send_and_close(&rig, "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n", 35);
    }
    assert_int_equal(rig.n_no_starts[HPS_GRPC_PROTOCOL], 5 + HPS_PEERS_LET_IN_PER_S);
    close(rig_raw(&rig));
    assert_true(rig.refused);
    rig.client = MODEST;
    close(rig_raw(&rig));
    assert_false(rig.refused);
    close_rig(&rig);
}

static void test_probe_when_it_says_nothing_then_counted_and_not_held_against_its_peer(void **state)
{
    struct rig rig;

    (void)state;
    open_rig(&rig, (struct hps_peers_limits){.failures_max = 1});
    for (unsigned i = 0; i < 50; i++) {
        send_and_close(&rig, NULL, 0);
        assert_false(rig.refused);
    }
    assert_int_equal(rig.n_no_starts[HPS_GRPC_LEFT], 50);
    close_rig(&rig);
}

/* Connections that end at once. */
static void knock(struct rig *rig, unsigned n)
{
    int before = rig->n_connections;

    for (unsigned i = 0; i < n; i++) {
        close(rig_raw(rig));
        RIG_UNTIL(rig, rig->n_connections == before);
    }
}

static void test_connection_when_no_request_comes_then_timeout_and_silence_counts_against_its_peer(
    void **state)
{
    struct rig rig;
    struct wire early;

    (void)state;
    open_rig(&rig, (struct hps_peers_limits){.failures_max = 1});
    wire_open(&early, &rig); /* speaks HTTP/2, and asks nothing: as clients do that connect early */
    RIG_UNTIL(&rig, rig.n_connections == 1);
    for (unsigned i = 0; i < 20; i++) {
        wire_pump(&early);
    }
    hps_clock_advance(10 * SECOND_US + 1);
    WIRE_UNTIL(&early, early.closed);
    assert_int_equal(rig.n_no_starts[HPS_GRPC_TIMEOUT], 1);
    wire_close(&early);
    knock(&rig, 2 * HPS_PEERS_LET_IN_PER_S);
    assert_false(rig.refused); /* that was none of its failures */
    int silent = rig_raw(&rig);
    RIG_UNTIL(&rig, rig.n_connections == 1);
    hps_clock_advance(10 * SECOND_US + 1);
    RIG_UNTIL(&rig, rig.n_connections == 0);
    assert_int_equal(rig.n_no_starts[HPS_GRPC_TIMEOUT], 2);
    knock(&rig, HPS_PEERS_LET_IN_PER_S);
    assert_false(rig.refused);
    knock(&rig, 1);
    assert_true(rig.refused);
    close(silent);
    close_rig(&rig);
}

/* ---- those that nobody knows ----------------------------------------------------------------- */

/* A call, known or not, until it is answered. */
static void ask(struct wire *wire, uint32_t stream, bool known)
{
    static const char *const name[] = {"authorization", "me", NULL};
    int code = known ? 0 : 16;
    unsigned n = wire->rig->n_ended[code];

    wire_call(wire, stream, "/t.T/Echo", known ? name : NULL, "", 0);
    WIRE_UNTIL(wire, wire->rig->n_ended[code] == n + 1);
}

static void test_calls_when_nobody_knows_who_makes_them_then_some_in_a_row_end_the_connection(
    void **state)
{
    struct rig rig;
    struct wire wire;
    struct rig_guard guard = {.word = "me"};
    uint32_t stream = 1;

    (void)state;
    open_rig(&rig, (struct hps_peers_limits){.failures_max = 31});
    rig_guard_set(&rig, &guard);
    wire_open(&wire, &rig);
    for (unsigned i = 0; i < 31; i++, stream += 2) {
        ask(&wire, stream, i == 15); /* not in a row */
    }
    assert_false(wire_find(&wire, FRAME_GOAWAY, 0, NULL, NULL));
    knock(&rig, 2 * HPS_PEERS_LET_IN_PER_S);
    assert_false(rig.refused);
    ask(&wire, stream, false);
    WIRE_UNTIL(&wire, wire.closed);
    assert_true(wire_find(&wire, FRAME_GOAWAY, 0, NULL, NULL));
    knock(&rig, HPS_PEERS_LET_IN_PER_S); /* whoever tries so often is slowed */
    assert_false(rig.refused);
    knock(&rig, 1);
    assert_true(rig.refused);
    wire_close(&wire);
    close_rig(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_idle_connection_when_its_place_is_needed_then_goaway_and_end),
        cmocka_unit_test(
            test_connection_with_a_call_when_its_peer_has_too_many_then_ends_with_the_call),
        cmocka_unit_test(test_connection_with_a_call_when_that_does_not_end_then_cut_off),
        cmocka_unit_test(test_connection_when_told_to_leave_before_it_is_open_then_ends),
        cmocka_unit_test(test_http_connections_when_a_place_is_needed_then_the_longest_idle_ends),
        cmocka_unit_test(
            test_idle_http_connection_when_its_peer_has_too_many_then_goes_before_one_with_a_call),
        cmocka_unit_test(
            test_http_connection_with_a_call_when_its_peer_has_too_many_then_ends_with_the_answer),
        cmocka_unit_test(test_http_connection_with_a_call_when_that_does_not_end_then_cut_off),
        cmocka_unit_test(test_preface_when_wrong_then_named_and_after_some_its_peer_is_slowed),
        cmocka_unit_test(
            test_probe_when_it_says_nothing_then_counted_and_not_held_against_its_peer),
        cmocka_unit_test(
            test_connection_when_no_request_comes_then_timeout_and_silence_counts_against_its_peer),
        cmocka_unit_test(
            test_calls_when_nobody_knows_who_makes_them_then_some_in_a_row_end_the_connection),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

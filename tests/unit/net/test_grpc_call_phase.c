/* SPDX-License-Identifier: Apache-2.0
 *
 * The phases of a server call: which transitions of request, reply and deadline are allowed, their
 * effects (queue, timer, charge), and states that violate the invariants. Most tests use calls
 * without a stream; the last ones use a server. Test thread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/assert.h"
#include "base/clock.h"
#include "net/grpc_internal.h"
#include "tests/lib/grpc_rig.h"

struct fixture {
    struct hps_loop *loop;
    struct hps_grpc_server server;
    struct hps_grpc_loop grpc_loop;
    struct grpc_conn conn;
    struct hps_grpc_call call;
    struct grpc_headers headers;
    struct grpc_request request;
    struct grpc_reply reply;
    struct grpc_deadline deadline;
};

static const struct hps_grpc_method unary = {.path = "/m"};
static const struct hps_grpc_method streaming = {.path = "/s", .client_streaming = true};
static const struct grpc_entry unary_entry = {.method = &unary};
static const struct grpc_entry streaming_entry = {.method = &streaming};

static void hook(const char *expr, const char *file, int line)
{
    mock_assert(0, expr, file, line);
}

static void do_nothing(void *ctx)
{
    (void)ctx;
}

/* Part of a request, above the size that HPS_CALL_BYTES covers. */
static const uint8_t large[2 * HPS_CALL_MESSAGE_BYTES];

/* Makes a connection with one call, in the phase HEADERS. */
static void make(struct fixture *f)
{
    struct hps_loop *loop = f->loop;

    hps_timer_stop(&f->deadline.timer);
    hps_grpc_decoder_fini(&f->request.decoder);
    hps_buf_fini(&f->request.stash);
    memset(f, 0, sizeof *f);
    f->loop = loop;
    f->grpc_loop = (struct hps_grpc_loop){.server = &f->server, .loop = loop, .conns = &f->conn};
    f->conn = (struct grpc_conn){.grpc_loop = &f->grpc_loop, .calls = &f->call};
    TAILQ_INIT(&f->conn.held);
    f->call = (struct hps_grpc_call){
        .conn = &f->conn,
        .home = &f->conn,
        .stream = (struct hps_http_stream *)f, /* never dereferenced */
        .grpc_loop = &f->grpc_loop,
        .loop = loop,
        .entry = &unary_entry,
        .headers = &f->headers,
        .request = &f->request,
        .reply = &f->reply,
        .deadline = &f->deadline,
    };
    atomic_init(&f->call.refs, 1);
    hps_timer_init(&f->deadline.timer, do_nothing, NULL);
    hps_grpc_decoder_init(&f->request.decoder, 10000, false);
    hps_buf_init(&f->request.stash, 10000);
}

/* Makes a call with its request in `phase`, and the reply in a phase that this requires. */
static void make_at(struct fixture *f, enum grpc_request_phase phase)
{
    make(f);
    if (phase == GRPC_REQUEST_HEADERS) {
        return;
    }
    grpc_call_request_set(&f->call, GRPC_REQUEST_OPEN);
    if (phase == GRPC_REQUEST_STASHED) {
        f->call.entry = &streaming_entry;
        assert_int_equal(hps_buf_append(&f->request.stash, large, sizeof large), HPS_OK);
        f->request.counted = sizeof large;
    } else if (phase == GRPC_REQUEST_HELD || phase == GRPC_REQUEST_DISPATCHED) {
        grpc_call_request_set(&f->call, GRPC_REQUEST_WHOLE);
    }
    if (phase == GRPC_REQUEST_DROPPED) {
        grpc_call_reply_set(&f->call, GRPC_REPLY_STATUS);
    } else if (phase == GRPC_REQUEST_CLOSED) {
        grpc_call_reply_set(&f->call, GRPC_REPLY_CLOSED);
        f->call.conn = NULL;
        f->call.stream = NULL;
        f->conn.calls = NULL;
    } else if (phase != GRPC_REQUEST_OPEN) {
        grpc_call_request_set(&f->call, phase);
    }
    f->call.delivered = phase == GRPC_REQUEST_DISPATCHED;
}

static int setup(void **state)
{
    static struct fixture f;

    memset(&f, 0, sizeof f);
    assert_int_equal(hps_loop_new(&f.loop, NULL), HPS_OK);
    make(&f);
    hps_assert_hook(hook);
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    hps_assert_hook(NULL);
    make(f);
    hps_loop_free(f->loop);
    return 0;
}

/* ---- transitions ----------------------------------------------------------------------------- */

static void expect_request_refused(struct fixture *f, enum grpc_request_phase to)
{
    expect_assert_failure(grpc_call_request_set(&f->call, to));
}

static void expect_reply_refused(struct fixture *f, enum grpc_reply_phase to)
{
    expect_assert_failure(grpc_call_reply_set(&f->call, to));
}

static void expect_deadline_refused(struct fixture *f, enum grpc_deadline_phase to)
{
    expect_assert_failure(grpc_call_deadline_set(&f->call, to, UINT64_MAX));
}

static void expect_drop_refused(struct fixture *f)
{
    expect_assert_failure(grpc_call_drop_request(&f->call));
}

static void test_request_phase_when_transition_is_not_allowed_then_assert(void **state)
{
    static const char *const legal[GRPC_REQUEST_PHASES] = {
        /* columns: HEADERS OPEN WHOLE STASHED HELD DISPATCHED DROPPED CLOSED */
        [GRPC_REQUEST_HEADERS] = ".y....yy", [GRPC_REQUEST_OPEN] = "..yy.yyy",
        [GRPC_REQUEST_WHOLE] = "....yyyy",   [GRPC_REQUEST_STASHED] = ".....yyy",
        [GRPC_REQUEST_HELD] = ".....yyy",    [GRPC_REQUEST_DISPATCHED] = ".......y",
        [GRPC_REQUEST_DROPPED] = ".......y", [GRPC_REQUEST_CLOSED] = "........",
    };
    struct fixture *f = *state;

    for (unsigned from = 0; from < GRPC_REQUEST_PHASES; from++) {
        for (unsigned to = 0; to < GRPC_REQUEST_PHASES; to++) {
            make_at(f, (enum grpc_request_phase)from);
            if (legal[from][to] == 'y') {
                grpc_call_request_set(&f->call, (enum grpc_request_phase)to);
                assert_int_equal(f->request.phase, to);
            } else {
                expect_request_refused(f, (enum grpc_request_phase)to);
                assert_int_equal(f->request.phase, from);
            }
        }
    }
}

static void test_reply_phase_when_transition_is_not_allowed_then_assert(void **state)
{
    static const char *const legal[GRPC_REPLY_PHASES] = {
        /* columns: NONE OPEN FINISHED EXPIRED STATUS RESET CLOSED */
        [GRPC_REPLY_NONE] = ".y..yyy",     [GRPC_REPLY_OPEN] = "..yy.yy",
        [GRPC_REPLY_FINISHED] = "....yyy", [GRPC_REPLY_EXPIRED] = ".....yy",
        [GRPC_REPLY_STATUS] = ".....yy",   [GRPC_REPLY_RESET] = "......y",
        [GRPC_REPLY_CLOSED] = ".......",
    };
    struct fixture *f = *state;

    for (unsigned from = 0; from < GRPC_REPLY_PHASES; from++) {
        for (unsigned to = 0; to < GRPC_REPLY_PHASES; to++) {
            make_at(f, GRPC_REQUEST_DISPATCHED);
            f->reply.phase = (enum grpc_reply_phase)from;
            if (legal[from][to] == 'y') {
                grpc_call_reply_set(&f->call, (enum grpc_reply_phase)to);
                assert_int_equal(f->reply.phase, to);
            } else {
                expect_reply_refused(f, (enum grpc_reply_phase)to);
                assert_int_equal(f->reply.phase, from);
            }
        }
    }
}

static void test_deadline_phase_when_transition_is_not_allowed_then_assert(void **state)
{
    static const char *const legal[GRPC_DEADLINE_PHASES] = {
        /* columns: NONE ARMED GRACE OVER */
        [GRPC_DEADLINE_NONE] = ".y.y",
        [GRPC_DEADLINE_ARMED] = ".yyy",
        [GRPC_DEADLINE_GRACE] = "...y",
        [GRPC_DEADLINE_OVER] = "...y",
    };
    struct fixture *f = *state;

    for (unsigned from = 0; from < GRPC_DEADLINE_PHASES; from++) {
        for (unsigned to = 0; to < GRPC_DEADLINE_PHASES; to++) {
            make_at(f, GRPC_REQUEST_OPEN);
            f->deadline.phase = (enum grpc_deadline_phase)from;
            if (legal[from][to] == 'y') {
                grpc_call_deadline_set(&f->call, (enum grpc_deadline_phase)to, UINT64_MAX);
                assert_int_equal(hps_timer_armed(&f->deadline.timer), to < GRPC_DEADLINE_OVER);
            } else {
                expect_deadline_refused(f, (enum grpc_deadline_phase)to);
            }
        }
    }
}

/* ---- effects of transitions ------------------------------------------------------------------ */

static void test_held_request_when_it_leaves_the_phase_then_not_queued(void **state)
{
    struct fixture *f = *state;
    struct hps_grpc_call other = {0};

    for (unsigned way = 0; way < 3; way++) {
        make_at(f, GRPC_REQUEST_HELD);
        assert_ptr_equal(TAILQ_FIRST(&f->conn.held), &f->call);
        TAILQ_INSERT_TAIL(&f->conn.held, &other, held);
        if (way == 0) {
            grpc_call_request_set(&f->call, GRPC_REQUEST_DISPATCHED);
        } else {
            grpc_call_reply_set(&f->call, GRPC_REPLY_STATUS);
        }
        assert_ptr_equal(TAILQ_FIRST(&f->conn.held), &other);
        assert_null(TAILQ_NEXT(&other, held));
    }
    make_at(f, GRPC_REQUEST_HELD);
    grpc_call_reply_set(&f->call, GRPC_REPLY_RESET);
    assert_true(TAILQ_EMPTY(&f->conn.held));
}

static void test_timer_when_call_is_reset_or_closed_then_stopped(void **state)
{
    struct fixture *f = *state;

    for (unsigned closed = 0; closed < 2; closed++) {
        make_at(f, GRPC_REQUEST_OPEN);
        grpc_call_deadline_set(&f->call, GRPC_DEADLINE_ARMED, UINT64_MAX);
        assert_true(hps_timer_armed(&f->deadline.timer));
        grpc_call_reply_set(&f->call, closed ? GRPC_REPLY_CLOSED : GRPC_REPLY_RESET);
        assert_false(hps_timer_armed(&f->deadline.timer));
        assert_int_equal(f->deadline.phase, GRPC_DEADLINE_OVER);
    }
}

static void test_bytes_when_request_is_dispatched_or_dropped_then_charge_is_returned(void **state)
{
    struct fixture *f = *state;

    for (unsigned way = 0; way < 3; way++) {
        make_at(f, GRPC_REQUEST_STASHED);
        assert_int_equal(f->request.counted, sizeof large);
        if (way == 0) {
            grpc_call_request_set(&f->call, GRPC_REQUEST_DISPATCHED);
        } else if (way == 2) { /* within a callback the service borrows the stash */
            f->call.delivered = f->call.delivering = true;
            grpc_call_reply_set(&f->call, GRPC_REPLY_STATUS);
            assert_int_equal(f->request.stash.size, sizeof large);
            expect_drop_refused(f);
            grpc_call_sane(&f->call);
            f->call.delivering = false;
            grpc_call_drop_request(&f->call);
        } else {
            grpc_call_reply_set(&f->call, GRPC_REPLY_STATUS);
        }
        assert_int_equal(f->request.counted, 0);
    }
}

/* ---- invariants ------------------------------------------------------------------------------ */

static void test_call_when_in_any_phase_then_invariants_hold(void **state)
{
    struct fixture *f = *state;

    for (unsigned phase = 0; phase < GRPC_REQUEST_PHASES; phase++) {
        make_at(f, (enum grpc_request_phase)phase);
        grpc_call_sane(&f->call);
        grpc_conn_sane(&f->conn);
    }
}

static void test_call_when_it_violates_an_invariant_then_assert(void **state)
{
    struct fixture *f = *state;
    struct hps_grpc_call *call = &f->call;
    struct grpc_conn *conn = &f->conn;

#define LIES(at, lie)                                \
    do {                                             \
        make_at(f, at);                              \
        grpc_call_sane(call);                        \
        lie;                                         \
        expect_assert_failure(grpc_call_sane(call)); \
    } while (0)
    LIES(GRPC_REQUEST_OPEN, atomic_store(&call->refs, 0));
    LIES(GRPC_REQUEST_OPEN, call->stream = NULL); /* only closed calls have no stream */
    LIES(GRPC_REQUEST_CLOSED, call->conn = conn); /* closed calls have no connection */
    LIES(GRPC_REQUEST_CLOSED, call->next = call); /* closed calls are not listed */
    LIES(GRPC_REQUEST_CLOSED, hps_timer_set(f->loop, &call->deadline->timer, 1));
    LIES(GRPC_REQUEST_OPEN, hps_timer_set(f->loop, &call->deadline->timer, 1));
    LIES(GRPC_REQUEST_OPEN, call->deadline->phase = GRPC_DEADLINE_ARMED);   /* not armed */
    LIES(GRPC_REQUEST_OPEN, call->reply->phase = GRPC_REPLY_STATUS);        /* no open request */
    LIES(GRPC_REQUEST_DISPATCHED, call->reply->phase = GRPC_REPLY_EXPIRED); /* deadline: no GRACE */
    LIES(GRPC_REQUEST_OPEN, call->reply->code = 4);                /* the reply is not finished */
    LIES(GRPC_REQUEST_OPEN, atomic_store(&call->cancelled, true)); /* the reply is not finished */
    LIES(GRPC_REQUEST_HEADERS, call->delivered = true);
    LIES(GRPC_REQUEST_OPEN, call->delivered = true);  /* delivered before complete */
    LIES(GRPC_REQUEST_HELD, TAILQ_INIT(&conn->held)); /* the call is not queued */
    LIES(GRPC_REQUEST_DISPATCHED, call->delivered = false);
    LIES(GRPC_REQUEST_STASHED, hps_buf_clear(&call->request->stash));      /* cannot continue */
    LIES(GRPC_REQUEST_STASHED, call->request->stash_taken = sizeof large); /* no byte is left */
    LIES(GRPC_REQUEST_OPEN, call->request->stash_taken = 1);               /* the stash is empty */
    LIES(GRPC_REQUEST_OPEN, call->request->counted = 1);                   /* it holds no bytes */
    LIES(GRPC_REQUEST_DROPPED, call->request->counted = 1);
    LIES(GRPC_REQUEST_OPEN, call->request->unconsumed = 1); /* conn->withheld is false */
    LIES(GRPC_REQUEST_OPEN, conn->calls = NULL);
#undef LIES
}

static void test_connection_when_it_violates_an_invariant_then_assert(void **state)
{
    struct fixture *f = *state;
    struct grpc_conn *conn = &f->conn;

#define LIES(at, lie)                                \
    do {                                             \
        make_at(f, at);                              \
        grpc_conn_sane(conn);                        \
        lie;                                         \
        expect_assert_failure(grpc_conn_sane(conn)); \
    } while (0)
    LIES(GRPC_REQUEST_OPEN, f->grpc_loop.conns = NULL);
    LIES(GRPC_REQUEST_HELD, conn->calls = NULL);
#undef LIES
}

/* ---- calls of a server ----------------------------------------------------------------------- */

static void test_bytes_when_service_finishes_the_call_then_charge_is_returned_at_once(void **state)
{
    struct rig rig;
    struct wire wire;

    (void)state;
    hps_assert_hook(NULL);
    rig_open(&rig, &rig_limits);
    wire_open(&wire, &rig);
    static const uint8_t prefix[5] = {0, 0, 0, 0x20, 0};
    assert_true(wire_request(&wire, 1, "/t.T/Chat", false, NULL));
    assert_true(wire_frame(&wire, 0, 0, 1, prefix, sizeof prefix));
    assert_true(wire_frame(&wire, 0, 0, 1, large, sizeof large));
    WIRE_UNTIL(&wire, rig_request_bytes(&rig) > 0);
    struct hps_grpc_call *call = rig.grpc_loop->conns->calls;
    assert_in_range(call->request->counted, sizeof large, 4 * sizeof large);
    hps_grpc_call_finish(call, 0, NULL);
    assert_int_equal(call->request->phase, GRPC_REQUEST_DROPPED);
    assert_int_equal(rig_request_bytes(&rig), 0);
    WIRE_UNTIL(&wire, rig.n_ended[0] == 1);
    wire_close(&wire);
    rig_close(&rig);
}

static void test_keep_message_when_outside_callback_then_assert(void **state)
{
    struct fixture *f = *state;

    expect_assert_failure(hps_grpc_call_keep_message(&f->call));
}

static void test_keep_message_when_the_method_has_no_on_packed_then_assert(void **state)
{
    struct fixture *f = *state;

    make_at(f, GRPC_REQUEST_OPEN);
    f->call.delivering = true;
    expect_assert_failure(hps_grpc_call_keep_message(&f->call));
    f->call.delivering = false;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(test_request_phase_when_transition_is_not_allowed_then_assert),
        TEST(test_reply_phase_when_transition_is_not_allowed_then_assert),
        TEST(test_deadline_phase_when_transition_is_not_allowed_then_assert),
        TEST(test_held_request_when_it_leaves_the_phase_then_not_queued),
        TEST(test_timer_when_call_is_reset_or_closed_then_stopped),
        TEST(test_bytes_when_request_is_dispatched_or_dropped_then_charge_is_returned),
        TEST(test_call_when_in_any_phase_then_invariants_hold),
        TEST(test_call_when_it_violates_an_invariant_then_assert),
        TEST(test_connection_when_it_violates_an_invariant_then_assert),
        TEST(test_bytes_when_service_finishes_the_call_then_charge_is_returned_at_once),
        TEST(test_keep_message_when_outside_callback_then_assert),
        TEST(test_keep_message_when_the_method_has_no_on_packed_then_assert),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

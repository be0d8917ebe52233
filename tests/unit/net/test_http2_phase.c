/* SPDX-License-Identifier: Apache-2.0
 *
 * The phases of an HTTP/2 connection and of its streams: which transitions are allowed, and states
 * that violate the invariants. The connections have no socket. Test thread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/assert.h"
#include "net/http2_internal.h"

struct fixture {
    struct hps_loop *loop;
    struct hps_http2_shared shared;
    struct hps_http2 h2;
    struct http2_out out;
    struct http2_in in;
    struct hps_http2_stream stream;
};

static void hook(const char *expr, const char *file, int line)
{
    mock_assert(0, expr, file, line);
}

static void do_nothing(struct hps_run_item *item, unsigned events)
{
    (void)item;
    (void)events;
}

/* Makes a connection of a server. Its stream has sent a part of its reply. */
static void make(struct fixture *f, enum http2_phase phase)
{
    struct hps_loop *loop = f->loop;

    hps_run_remove(&f->h2.item);
    memset(f, 0, sizeof *f);
    f->loop = loop;
    f->shared.loop = loop;
    f->h2 = (struct hps_http2){.shared = &f->shared,
                               .base.conn = (struct hps_conn *)f, /* never dereferenced */
                               .session = (nghttp2_session *)f,
                               .options = {.server = true},
                               .out = &f->out,
                               .in = &f->in,
                               .phase = phase};
    hps_run_item_init(&f->h2.item, hps_loop_work(loop), 0, do_nothing);
    f->stream = (struct hps_http2_stream){.h2 = &f->h2, .id = 1, .send = HTTP2_SEND_OPEN};
    STAILQ_INIT(&f->out.unreleased);
    if (phase >= HTTP2_OPEN) {
        LIST_INSERT_HEAD(&f->h2.streams, &f->stream, link);
        f->h2.n_streams = 1;
    }
    if (http2_is_aborting(&f->h2)) {
        hps_run_add(&f->h2.item, HTTP2_KICK);
    }
}

static int setup(void **state)
{
    static struct fixture f;

    memset(&f, 0, sizeof f);
    assert_int_equal(hps_loop_new(&f.loop, NULL), HPS_OK);
    make(&f, HTTP2_OPEN);
    hps_assert_hook(hook);
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    hps_assert_hook(NULL);
    hps_run_remove(&f->h2.item);
    hps_loop_free(f->loop);
    return 0;
}

static void expect_refused(struct fixture *f, enum http2_phase to)
{
    expect_assert_failure(http2_phase_set(&f->h2, to));
}

static void expect_send_refused(struct fixture *f, enum http2_send_phase to)
{
    expect_assert_failure(http2_stream_send_set(&f->stream, to));
}

static void test_phase_when_transition_is_not_allowed_then_assert(void **state)
{
    static const char *const legal[HTTP2_PHASES] = {
        /* columns: HANDSHAKE ABANDONED OPEN DRAINING GOAWAY ABORTING FAILED FREED */
        [HTTP2_HANDSHAKE] = ".yy...yy", [HTTP2_ABANDONED] = "......yy",
        [HTTP2_OPEN] = "...yyyyy",      [HTTP2_DRAINING] = "....yyyy",
        [HTTP2_GOAWAY] = ".....yyy",    [HTTP2_ABORTING] = "......yy",
        [HTTP2_FAILED] = ".......y",    [HTTP2_FREED] = "........",
    };
    struct fixture *f = *state;

    for (unsigned from = 0; from < HTTP2_PHASES; from++) {
        for (unsigned to = 0; to < HTTP2_PHASES; to++) {
            make(f, (enum http2_phase)from);
            if (legal[from][to] == 'y') {
                http2_phase_set(&f->h2, (enum http2_phase)to);
                assert_int_equal(f->h2.phase, to);
            } else {
                expect_refused(f, (enum http2_phase)to);
                assert_int_equal(f->h2.phase, from);
            }
        }
    }
    make(f, HTTP2_OPEN);
    f->h2.options.server = false; /* only servers have this phase */
    expect_assert_failure(http2_phase_set(&f->h2, HTTP2_GOAWAY));
}

static void test_send_phase_when_transition_is_not_allowed_then_assert(void **state)
{
    static const char *const legal[HTTP2_SEND_PHASES] = {
        /* columns: HEADERS OPEN DEFERRED FINISHED ENDED */
        [HTTP2_SEND_HEADERS] = ".y.y.",  [HTTP2_SEND_OPEN] = "..yy.",
        [HTTP2_SEND_DEFERRED] = ".y.y.", [HTTP2_SEND_FINISHED] = "....y",
        [HTTP2_SEND_ENDED] = ".....",
    };
    struct fixture *f = *state;

    for (unsigned from = 0; from < HTTP2_SEND_PHASES; from++) {
        for (unsigned to = 0; to < HTTP2_SEND_PHASES; to++) {
            f->stream.send = (enum http2_send_phase)from;
            if (legal[from][to] == 'y') {
                http2_stream_send_set(&f->stream, (enum http2_send_phase)to);
                assert_int_equal(f->stream.send, to);
            } else {
                expect_send_refused(f, (enum http2_send_phase)to);
            }
        }
    }
}

static void test_connection_when_in_any_phase_then_invariants_hold(void **state)
{
    struct fixture *f = *state;

    for (unsigned phase = 0; phase < HTTP2_FAILED; phase++) {
        make(f, (enum http2_phase)phase);
        http2_sane(&f->h2);
    }
}

static void test_connection_when_it_violates_an_invariant_then_assert(void **state)
{
    struct fixture *f = *state;
    struct hps_http2 *h2 = &f->h2;

#define LIES(at, lie)                          \
    do {                                       \
        make(f, at);                           \
        http2_sane(h2);                        \
        lie;                                   \
        expect_assert_failure(http2_sane(h2)); \
    } while (0)
    LIES(HTTP2_OPEN, h2->phase = HTTP2_FAILED);       /* it must not get a slice */
    LIES(HTTP2_ABORTING, hps_run_remove(&h2->item));  /* nothing would end it */
    LIES(HTTP2_ABANDONED, hps_run_remove(&h2->item)); /* nothing would end it */
    LIES(HTTP2_GOAWAY, h2->options.server = false);   /* only servers have this phase */
    LIES(HTTP2_HANDSHAKE, h2->in->peer_spoke = true); /* TLS is not complete */
    LIES(HTTP2_HANDSHAKE, (h2->out->position = 9, h2->base.written = 9));
    LIES(HTTP2_OPEN, h2->out->position = 9);   /* no bytes are queued */
    LIES(HTTP2_OPEN, h2->base.blocked = true); /* no bytes are queued */
    LIES(HTTP2_OPEN, h2->n_streams = 0);
    LIES(HTTP2_OPEN, h2->base.queued = 1); /* more than its streams have */
    LIES(HTTP2_OPEN, h2->released = true); /* on_released was not called */
    LIES(HTTP2_OPEN, h2->sent = &f->stream);
#undef LIES
}

/* Bytes are queued, but their sending is not requested. */
static void expect_stuck(struct fixture *f, enum http2_send_phase send)
{
    make(f, HTTP2_OPEN);
    f->stream.head = f->stream.tail = (struct http2_message *)f;
    f->stream.base.queued = f->h2.base.queued = 1;
    http2_stream_sane(&f->stream);
    f->stream.send = send;
    expect_assert_failure(http2_stream_sane(&f->stream));
}

static void test_stream_when_it_violates_an_invariant_then_assert(void **state)
{
    struct fixture *f = *state;
    struct hps_http2_stream *stream = &f->stream;
    struct http2_message *message = (struct http2_message *)f; /* never dereferenced */

#define LIES(lie)                                         \
    do {                                                  \
        make(f, HTTP2_OPEN);                              \
        http2_stream_sane(stream);                        \
        lie;                                              \
        expect_assert_failure(http2_stream_sane(stream)); \
    } while (0)
    LIES(LIST_INIT(&f->h2.streams));                                    /* it is not listed */
    LIES(stream->head = message);                                       /* no tail */
    LIES(stream->head = stream->tail = message);                        /* no bytes are queued */
    LIES(stream->base.queued = 1);                                      /* the connection has 0 */
    LIES((stream->send = HTTP2_SEND_HEADERS, stream->base.framed = 1)); /* body before headers */
    LIES((f->h2.options.server = false, stream->send = HTTP2_SEND_HEADERS));
#undef LIES
    expect_stuck(f, HTTP2_SEND_DEFERRED);
    expect_stuck(f, HTTP2_SEND_ENDED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(test_phase_when_transition_is_not_allowed_then_assert),
        TEST(test_send_phase_when_transition_is_not_allowed_then_assert),
        TEST(test_connection_when_in_any_phase_then_invariants_hold),
        TEST(test_connection_when_it_violates_an_invariant_then_assert),
        TEST(test_stream_when_it_violates_an_invariant_then_assert),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

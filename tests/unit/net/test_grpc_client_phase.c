/* SPDX-License-Identifier: Apache-2.0
 *
 * The phases of a client's call: every pair, legal or not, and combinations that must not be.
 * Made-up calls of a made-up channel. Test thread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/assert.h"
#include "net/grpc_client_internal.h"
#include "net/http2_internal.h"

struct fixture {
    struct hps_loop *loop;
    struct hps_grpc_channel channel;
    struct hps_grpc_client_call call;
    struct hps_http_stream stream;
    char path[4];
};

static void hook(const char *expr, const char *file, int line)
{
    mock_assert(0, expr, file, line);
}

static void do_nothing(void *ctx)
{
    (void)ctx;
}

/* The one call of a channel that has no connection and is about to make one. */
static void make(struct fixture *f, enum client_phase phase)
{
    struct hps_loop *loop = f->loop;

    hps_timer_stop(&f->call.deadline);
    hps_loop_later_stop(&f->channel.retry);
    memset(f, 0, sizeof *f);
    f->loop = loop;
    f->channel = (struct hps_grpc_channel){.loop = loop, .n_made = 1, .busy = 1};
    TAILQ_INIT(&f->channel.calls);
    TAILQ_INSERT_TAIL(&f->channel.calls, &f->call, link);
    hps_loop_later_init(&f->channel.retry, do_nothing, NULL);
    hps_loop_later_set(loop, &f->channel.retry);
    hps_timer_init(&f->call.deadline, do_nothing, NULL);
    f->call.channel = &f->channel;
    f->call.phase = phase;
    f->call.path = f->path;
    f->call.code = -1;
    if (phase == CLIENT_SENT || phase == CLIENT_ANSWERED) {
        f->call.stream = &f->stream;
        f->stream.user = &f->call;
    }
}

static int setup(void **state)
{
    static struct fixture f;

    memset(&f, 0, sizeof f);
    assert_int_equal(hps_loop_new(&f.loop, NULL), HPS_OK);
    make(&f, CLIENT_WAITING);
    hps_assert_hook(hook);
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    hps_assert_hook(NULL);
    hps_timer_stop(&f->call.deadline);
    hps_loop_later_stop(&f->channel.retry);
    hps_loop_free(f->loop);
    return 0;
}

static void expect_refused(struct fixture *f, enum client_phase to)
{
    expect_assert_failure(grpc_client_phase_set(&f->call, to));
}

static void test_phase_when_it_cannot_follow_then_assert(void **state)
{
    static const char *const legal[CLIENT_PHASES] = {
        /* to: NEW WAITING SENT ANSWERED DONE */
        [CLIENT_NEW] = ".yy..",      [CLIENT_WAITING] = "..y.y", [CLIENT_SENT] = ".y.yy",
        [CLIENT_ANSWERED] = "....y", [CLIENT_DONE] = ".....",
    };
    struct fixture *f = *state;

    for (unsigned from = 0; from < CLIENT_PHASES; from++) {
        for (unsigned to = 0; to < CLIENT_PHASES; to++) {
            make(f, (enum client_phase)from);
            if (legal[from][to] == 'y') {
                grpc_client_phase_set(&f->call, (enum client_phase)to);
                assert_int_equal(f->call.phase, to);
            } else {
                expect_refused(f, (enum client_phase)to);
                assert_int_equal(f->call.phase, from);
            }
        }
    }
}

static void test_call_when_it_lies_then_assert(void **state)
{
    struct fixture *f = *state;
    struct hps_grpc_client_call *call = &f->call;

#define LIES(at, lie)                                  \
    do {                                               \
        make(f, at);                                   \
        grpc_client_sane(call);                        \
        lie;                                           \
        expect_assert_failure(grpc_client_sane(call)); \
    } while (0)
    LIES(CLIENT_WAITING, call->phase = CLIENT_NEW);
    LIES(CLIENT_WAITING, call->phase = CLIENT_DONE);
    LIES(CLIENT_WAITING, call->stream = &f->stream);
    LIES(CLIENT_WAITING, call->path = NULL); /* could never be sent */
    LIES(CLIENT_SENT, call->stream = NULL);
    LIES(CLIENT_SENT, f->stream.user = NULL);
    LIES(CLIENT_SENT, call->http_status = 200); /* before any header came */
    LIES(CLIENT_SENT, call->code = 0);
    LIES(CLIENT_SENT, call->deadline_us = 1); /* without its timer */
    LIES(CLIENT_SENT, hps_timer_set(f->loop, &call->deadline, 1));
    LIES(CLIENT_SENT, TAILQ_INIT(&f->channel.calls));
#undef LIES
}

static void test_channel_when_it_lies_then_assert(void **state)
{
    struct fixture *f = *state;
    struct hps_grpc_channel *channel = &f->channel;

#define LIES(lie)                                          \
    do {                                                   \
        make(f, CLIENT_WAITING);                           \
        grpc_channel_sane(channel);                        \
        lie;                                               \
        expect_assert_failure(grpc_channel_sane(channel)); \
    } while (0)
    LIES(channel->busy = 0);
    LIES(channel->spare_bytes = 1); /* of no spare */
    LIES(channel->freed = true);    /* with a call */
#ifdef HPS_DEBUG
    LIES(hps_loop_later_stop(&channel->retry)); /* the call would wait for ever */
    LIES(channel->current = (struct client_conn *)f);
#endif
#undef LIES
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(test_phase_when_it_cannot_follow_then_assert),
        TEST(test_call_when_it_lies_then_assert),
        TEST(test_channel_when_it_lies_then_assert),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Client channels and a server on one loop. Test thread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/heap.h"
#include "net/sock.h"
#include "tests/lib/fault_heap.h"
#include "tests/lib/grpc_rig.h"

struct fixture {
    struct rig rig;
    struct hps_grpc_channel *channel;
    struct reply reply;
};

static int setup(void **state)
{
    static struct fixture f;

    rig_open(&f.rig, &rig_limits);
    f.channel = rig_channel(&f.rig);
    reply_init(&f.reply);
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    hps_clock_real(); /* set by a failed test */
    hps_grpc_channel_free(f->channel);
    reply_fini(&f->reply);
    rig_close(&f->rig);
    return 0;
}

static int setup_counted(void **state)
{
    hps_fault_heap_install(0);
    return setup(state);
}

static int teardown_counted(void **state)
{
    int failed = teardown(state);
    hps_fault_heap_remove();
    return failed;
}

static void test_unary_call_when_answered_then_delivers(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(rig_call(&f->rig, f->channel, "/t.T/Echo", "hello", 5, &f->reply), 0);
    assert_int_equal(f->reply.n_messages, 1);
    assert_int_equal(f->reply.data.size, 5);
    assert_memory_equal(f->reply.data.data, "hello", 5);
    RIG_UNTIL(&f->rig, f->rig.n_closes == 1);
    assert_int_equal(f->rig.n_ended[0], 1);
}

static void test_unary_call_when_empty_then_one_empty_message(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(rig_call(&f->rig, f->channel, "/t.T/Echo", "", 0, &f->reply), 0);
    assert_int_equal(f->reply.n_messages, 1);
    assert_int_equal(f->reply.data.size, 0);
}

static void test_calls_when_concurrent_then_all_answered(void **state)
{
    enum { N = 200 };
    struct fixture *f = *state;
    static struct reply replies[N];
    unsigned n_done = 0;

    for (uint32_t i = 0; i < N; i++) {
        reply_init(&replies[i]);
        rig_start(f->channel, "/t.T/Echo", &i, sizeof i, &replies[i]);
    }
    while (n_done < N) {
        rig_turn(&f->rig);
        n_done = 0;
        for (unsigned i = 0; i < N; i++) {
            n_done += replies[i].n_done;
        }
    }
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(replies[i].code, 0);
        assert_memory_equal(replies[i].data.data, &i, sizeof i);
        reply_fini(&replies[i]);
    }
}

static void test_failed_call_when_message_has_escapes_then_text_is_decoded(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(rig_call(&f->rig, f->channel, "/t.T/Fail", "", 0, &f->reply), 9);
    assert_string_equal(f->reply.text, "50 % of \xc3\xa9\n");
    assert_int_equal(f->reply.n_messages, 0);
}

static void test_call_when_method_is_unknown_then_unimplemented(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(rig_call(&f->rig, f->channel, "/t.T/Nope", "", 0, &f->reply), 12);
    assert_non_null(strstr(f->reply.text, "/t.T/Nope"));
}

static void test_reply_when_large_then_intact_and_blocks_released(void **state)
{
    struct fixture *f = *state;
    uint32_t n = 64 * 1024 * 1024 + 7;

    assert_int_equal(rig_call(&f->rig, f->channel, "/t.T/Big", &n, sizeof n, &f->reply), 0);
    assert_int_equal(f->reply.data.size, n);
    size_t bad = 0;
    for (size_t i = 0; i < n; i++) {
        bad += f->reply.data.data[i] != rig_byte(i);
    }
    assert_int_equal(bad, 0);
    RIG_UNTIL(&f->rig, f->rig.n_closes == 1);
    assert_int_equal(hps_block_pool_bytes(f->rig.blocks), 0);
    assert_int_equal(hps_grpc_loop_bytes_in_flight(f->rig.grpc_loop), 0);
}

static void ignore_message(void *ctx, const uint8_t *data, size_t size)
{
    (void)ctx;
    (void)data;
    (void)size;
}

static void count_done(void *ctx, int code, const char *message)
{
    unsigned *n_done = ctx;

    (void)message;
    assert_int_equal(code, 0);
    (*n_done)++;
}

static void test_large_replies_when_concurrent_then_buffers_are_reused(void **state)
{
    enum { N = 4, ROUNDS = 3 };
    static const struct hps_grpc_client_events events = {.on_message = ignore_message,
                                                         .on_done = count_done};
    struct fixture *f = *state;
    uint32_t size = 1 << 20;
    size_t before = hps_fault_heap_live_bytes();

    hps_clock_fake(hps_clock_us()); /* no timeout on a slow machine */
    for (unsigned round = 0; round < ROUNDS; round++) {
        unsigned n_done = 0;
        for (unsigned i = 0; i < N; i++) {
            assert_int_equal(hps_grpc_client_start(f->channel, "/t.T/Big", &size, sizeof(size), 0,
                                                   &events, &n_done, NULL),
                             HPS_OK);
        }
        RIG_UNTIL(&f->rig, n_done == N);
        RIG_UNTIL(&f->rig, hps_block_pool_bytes(f->rig.blocks) == 0);
        size_t kept = hps_fault_heap_live_bytes() - before;
        assert_in_range(kept, (size_t)N * size, (size_t)N * size + size);
    }
    hps_clock_real();
}

/* ---- messages in pieces ---------------------------------------------------------------------- */

/* Takes a Big reply into its own memory, in place after a call of on_room. */
struct pieces {
    struct hps_grpc_client_call *call;
    uint8_t *data; /* [size] */
    size_t size, n, cancel_at;
    unsigned n_begun, n_rooms, n_in_place, n_done;
    int code;
};

static void piece_begin(void *ctx, size_t size)
{
    struct pieces *pieces = ctx;

    pieces->n_begun++;
    assert_int_equal(size, pieces->size);
    if (pieces->cancel_at == 0) {
        hps_grpc_client_cancel(pieces->call);
    }
}

static void piece_take(void *ctx, const uint8_t *data, size_t size)
{
    struct pieces *pieces = ctx;

    assert_true(size > 0 && size <= pieces->size - pieces->n && pieces->n_done == 0);
    pieces->n_in_place += data == pieces->data + pieces->n;
    memmove(pieces->data + pieces->n, data, size);
    pieces->n += size;
    if (pieces->n >= pieces->cancel_at) {
        hps_grpc_client_cancel(pieces->call);
    }
}

static uint8_t *piece_room(void *ctx, size_t size, size_t *out_room)
{
    struct pieces *pieces = ctx;

    assert_true(size > 0 && size <= pieces->size - pieces->n);
    if (++pieces->n_rooms % 3 == 0) {
        return NULL;
    }
    *out_room = size;
    return pieces->data + pieces->n;
}

static void piece_done(void *ctx, int code, const char *message)
{
    struct pieces *pieces = ctx;

    (void)message;
    pieces->n_done++;
    pieces->code = code;
}

static void test_reply_when_taken_in_pieces_then_every_byte_once(void **state)
{
    static const struct hps_grpc_client_events events = {.on_begin = piece_begin,
                                                         .on_piece = piece_take,
                                                         .on_room = piece_room,
                                                         .on_done = piece_done};
    static const size_t cancels[] = {SIZE_MAX, 0, 1, 500000};
    struct fixture *f = *state;
    uint32_t size = 3 << 20;

    for (unsigned i = 0; i < sizeof cancels / sizeof *cancels; i++) {
        struct pieces pieces = {.size = size, .cancel_at = cancels[i], .data = hps_alloc(size)};
        assert_non_null(pieces.data);
        assert_int_equal(hps_grpc_client_start(f->channel, "/t.T/Big", &size, sizeof size, 0,
                                               &events, &pieces, &pieces.call),
                         HPS_OK);
        RIG_UNTIL(&f->rig, pieces.n_done > 0);
        assert_int_equal(pieces.code, i == 0 ? 0 : 1);
        assert_int_equal(pieces.n_begun, 1);
        assert_true(i > 0 || (pieces.n == size && pieces.n_in_place > 0));
        for (size_t at = 0; at < pieces.n; at += 997) {
            assert_int_equal(pieces.data[at], rig_byte(at));
        }
        hps_free(pieces.data);
    }
    assert_int_equal(rig_call(&f->rig, f->channel, "/t.T/Echo", "x", 1, &f->reply), 0);
}

static void test_reply_when_above_limit_then_exhausted_with_the_limit(void **state)
{
    struct fixture *f = *state;
    uint32_t n = 1000;
    struct hps_grpc_channel_options options = {.address = f->rig.address, .reply_bytes_max = 999};
    struct hps_grpc_channel *channel;

    assert_int_equal(hps_grpc_channel_new(f->rig.loop, &options, &channel, NULL), HPS_OK);
    assert_int_equal(rig_call(&f->rig, channel, "/t.T/Big", &n, sizeof n, &f->reply), 8);
    assert_non_null(strstr(f->reply.text, "1000"));
    assert_non_null(strstr(f->reply.text, "999"));
    assert_int_equal(rig_call(&f->rig, channel, "/t.T/Echo", "ok", 2, &f->reply), 0);
    hps_grpc_channel_free(channel);
}

static void test_streamed_reply_when_long_then_all_messages_and_bounded_queue(void **state)
{
    struct fixture *f = *state;
    uint32_t n = 300;

    assert_int_equal(rig_call(&f->rig, f->channel, "/t.T/Pour", &n, sizeof n, &f->reply), 0);
    assert_int_equal(f->reply.n_messages, 300);
    assert_true(f->rig.n_drains > 0);
}

static void test_deadline_when_passed_then_code_4_and_server_cancelled(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(hps_grpc_client_start(f->channel, "/t.T/Park", "", 0,
                                           hps_clock_us() + 30 * 1000, &reply_events, &f->reply,
                                           NULL),
                     HPS_OK);
    RIG_UNTIL(&f->rig, f->reply.n_done == 1);
    assert_int_equal(f->reply.code, 4);
    RIG_UNTIL(&f->rig, f->rig.n_closes == f->rig.n_messages);
    if (f->rig.parked != NULL) {
        assert_true(hps_grpc_call_cancelled(f->rig.parked));
    }
}

static void test_cancel_when_call_is_in_flight_then_done_at_once_and_server_notified(void **state)
{
    struct fixture *f = *state;
    struct hps_grpc_client_call *call;

    assert_int_equal(
        hps_grpc_client_start(f->channel, "/t.T/Park", "", 0, 0, &reply_events, &f->reply, &call),
        HPS_OK);
    RIG_UNTIL(&f->rig, f->rig.parked != NULL);
    assert_false(hps_grpc_call_cancelled(f->rig.parked));
    hps_grpc_client_cancel(call);
    assert_int_equal(f->reply.n_done, 1);
    assert_int_equal(f->reply.code, 1);
    RIG_UNTIL(&f->rig, hps_grpc_call_cancelled(f->rig.parked));
    RIG_UNTIL(&f->rig, f->rig.n_closes == 1);
    assert_int_equal(f->rig.n_ended[1], 1);
    /* A worker that finishes later must have no effect. */
    hps_grpc_call_send_copy(f->rig.parked, "late", 4);
    hps_grpc_call_finish(f->rig.parked, 0, NULL);
}

static void test_cancel_when_large_reply_is_in_flight_then_blocks_released(void **state)
{
    struct fixture *f = *state;
    uint32_t n = 64 * 1024 * 1024;

    for (unsigned round = 0; round < 4; round++) {
        struct hps_grpc_client_call *call;
        assert_int_equal(hps_grpc_client_start(f->channel, "/t.T/Big", &n, sizeof n, 0,
                                               &reply_events, &f->reply, &call),
                         HPS_OK);
        RIG_UNTIL(&f->rig, f->rig.n_messages == round + 1);
        for (unsigned i = 0; i < round * 3; i++) {
            rig_turn(&f->rig);
        }
        assert_int_equal(f->reply.n_done, round);
        hps_grpc_client_cancel(call);
        RIG_UNTIL(&f->rig, hps_block_pool_bytes(f->rig.blocks) == 0);
        RIG_UNTIL(&f->rig, f->rig.n_closes == round + 1);
    }
    assert_int_equal(rig_call(&f->rig, f->channel, "/t.T/Echo", "still", 5, &f->reply), 0);
    assert_int_equal(hps_grpc_loop_bytes_in_flight(f->rig.grpc_loop), 0);
}

static void test_channel_free_when_calls_are_in_flight_then_cancelled(void **state)
{
    struct fixture *f = *state;
    struct hps_grpc_channel *channel = rig_channel(&f->rig);

    rig_start(channel, "/t.T/Park", "", 0, &f->reply);
    RIG_UNTIL(&f->rig, f->rig.parked != NULL);
    hps_grpc_channel_free(channel);
    assert_int_equal(f->reply.n_done, 1);
    assert_int_equal(f->reply.code, 1);
    RIG_UNTIL(&f->rig, f->rig.n_closes == 1);
}

struct nested {
    struct hps_grpc_channel *channel;
    unsigned n_done;
};

static void nested_message(void *ctx, const uint8_t *data, size_t size)
{
    struct nested *nested = ctx;

    (void)data;
    (void)size;
    hps_grpc_channel_free(nested->channel);
}

static void nested_done(void *ctx, int code, const char *message)
{
    (void)code;
    (void)message;
    ((struct nested *)ctx)->n_done++;
}

static void test_channel_free_when_within_callback_then_all_calls_end(void **state)
{
    struct fixture *f = *state;
    struct nested nested = {.channel = rig_channel(&f->rig)};
    static const struct hps_grpc_client_events nested_events = {.on_message = nested_message,
                                                                .on_done = nested_done};

    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(hps_grpc_client_start(nested.channel, "/t.T/Echo", "x", 1, 0,
                                               &nested_events, &nested, NULL),
                         HPS_OK);
    }
    RIG_UNTIL(&f->rig, nested.n_done == 3);
}

static void test_connect_when_refused_then_each_call_unavailable(void **state)
{
    struct fixture *f = *state;
    struct hps_grpc_channel_options options = {
        .address = "127.0.0.1:1", .reply_bytes_max = 100, .connect_timeout_us = 5 * 1000 * 1000};
    struct hps_grpc_channel *channel;
    struct hps_error err;
    hps_status status = hps_grpc_channel_new(f->rig.loop, &options, &channel, &err);

    if (status != HPS_OK) {
        assert_int_equal(status, HPS_UNAVAILABLE);
        return;
    }
    assert_int_equal(rig_call(&f->rig, channel, "/t.T/Echo", "x", 1, &f->reply), 14);
    assert_true(strlen(f->reply.text) > 0);
    assert_int_equal(rig_call(&f->rig, channel, "/t.T/Echo", "x", 1, &f->reply), 14);
    hps_grpc_channel_free(channel);
}

/* A caller that starts another call as soon as a call has failed. */
struct insistent {
    struct hps_grpc_channel *channel;
    unsigned n_done;
};

static void ask_again(void *ctx, int code, const char *message);

static const struct hps_grpc_client_events insistent_events = {.on_done = ask_again};

static void ask_again(void *ctx, int code, const char *message)
{
    struct insistent *caller = ctx;

    (void)message;
    if (++caller->n_done < 1000 && code == 14) {
        assert_int_equal(hps_grpc_client_start(caller->channel, "/t.T/Echo", "", 0, 0,
                                               &insistent_events, caller, NULL),
                         HPS_OK);
    }
}

static void test_call_when_started_in_on_done_then_uses_another_connection(void **state)
{
    struct fixture *f = *state;
    struct hps_grpc_channel_options options = {.address = f->rig.address,
                                               .connect_timeout_us = 10 * 1000 * 1000};
    struct insistent caller = {0};
    struct hps_addr addr;
    char nowhere[64];
    int fd;

    assert_int_equal(hps_addr_parse("127.0.0.1:0", &addr, NULL), HPS_OK);
    assert_int_equal(hps_sock_listen(&addr, 0, &fd, NULL), HPS_OK);
    assert_int_equal(hps_sock_local(fd, &addr), HPS_OK);
    options.address = hps_addr_print(&addr, nowhere, sizeof nowhere);
    assert_int_equal(hps_grpc_channel_new(f->rig.loop, &options, &caller.channel, NULL), HPS_OK);
    close(fd); /* the connection attempt fails, and later attempts are refused */
    assert_int_equal(hps_grpc_client_start(caller.channel, "/t.T/Echo", "", 0, 0, &insistent_events,
                                           &caller, NULL),
                     HPS_OK);
    for (unsigned i = 0; i < 5 && caller.n_done < 3; i++) {
        unsigned before = caller.n_done;
        RIG_UNTIL(&f->rig, caller.n_done > before);
        assert_true(caller.n_done - before <= 2); /* those that waited for the connection */
    }
    caller.n_done = 1000;
    hps_grpc_channel_free(caller.channel);
}

static void test_call_when_connection_was_drained_then_new_connection(void **state)
{
    struct fixture *f = *state;
    struct hps_grpc_limits limits = rig_limits;
    struct rig rig;

    limits.idle_timeout_us = 40 * 1000;
    hps_clock_fake(hps_clock_us()); /* the connection is not idle before its call has ended */
    rig_open(&rig, &limits);
    struct hps_grpc_channel *channel = rig_channel(&rig);
    assert_int_equal(rig_call(&rig, channel, "/t.T/Echo", "x", 1, &f->reply), 0);
    assert_int_equal(rig.n_connections, 1);
    hps_clock_real();
    RIG_UNTIL(&rig, rig.n_gone == 1);
    hps_clock_fake(hps_clock_us());
    assert_int_equal(rig_call(&rig, channel, "/t.T/Echo", "x", 1, &f->reply), 0);
    hps_clock_real();
    hps_grpc_channel_free(channel);
    rig_close(&rig);
}

/* The server allows one call at a time. So the second call is not sent when the connection reaches
 * its age limit. */
static void test_call_when_goaway_arrives_first_then_next_connection_serves_it(void **state)
{
    struct fixture *f = *state;
    struct hps_grpc_limits limits = rig_limits;
    struct reply parked;
    struct reply queued;
    struct rig rig;

    limits.streams_max = 1;
    limits.age_max_us = 40 * 1000;
    hps_clock_fake(hps_clock_us()); /* the connection does not age before both calls have begun */
    rig_open(&rig, &limits);
    struct hps_grpc_channel *channel = rig_channel(&rig);
    assert_int_equal(rig_call(&rig, channel, "/t.T/Echo", "x", 1, &f->reply), 0);
    reply_init(&parked);
    reply_init(&queued);
    rig_start(channel, "/t.T/Park", "", 0, &parked);
    RIG_UNTIL(&rig, rig.parked != NULL);
    rig_start(channel, "/t.T/Echo", "yes", 3, &queued);
    hps_clock_real();
    while (rig.n_connections < 2) { /* a call after the GOAWAY opens another connection */
        struct reply probe;
        reply_init(&probe);
        assert_int_equal(hps_grpc_client_start(channel, "/t.T/Echo", "", 0, hps_clock_us() + 20000,
                                               &reply_events, &probe, NULL),
                         HPS_OK);
        RIG_UNTIL(&rig, probe.n_done == 1);
        reply_fini(&probe);
    }
    hps_grpc_call_finish(rig.parked, 0, NULL);
    RIG_UNTIL(&rig, queued.n_done == 1);
    assert_int_equal(queued.code, 0);
    assert_int_equal(queued.data.size, 3);
    hps_grpc_channel_free(channel);
    reply_fini(&parked);
    reply_fini(&queued);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(test_unary_call_when_answered_then_delivers),
        TEST(test_unary_call_when_empty_then_one_empty_message),
        TEST(test_calls_when_concurrent_then_all_answered),
        TEST(test_failed_call_when_message_has_escapes_then_text_is_decoded),
        TEST(test_call_when_method_is_unknown_then_unimplemented),
        TEST(test_reply_when_large_then_intact_and_blocks_released),
        cmocka_unit_test_setup_teardown(test_large_replies_when_concurrent_then_buffers_are_reused,
                                        setup_counted, teardown_counted),
        TEST(test_reply_when_above_limit_then_exhausted_with_the_limit),
        TEST(test_streamed_reply_when_long_then_all_messages_and_bounded_queue),
        TEST(test_reply_when_taken_in_pieces_then_every_byte_once),
        TEST(test_deadline_when_passed_then_code_4_and_server_cancelled),
        TEST(test_cancel_when_call_is_in_flight_then_done_at_once_and_server_notified),
        TEST(test_cancel_when_large_reply_is_in_flight_then_blocks_released),
        TEST(test_channel_free_when_calls_are_in_flight_then_cancelled),
        TEST(test_channel_free_when_within_callback_then_all_calls_end),
        TEST(test_connect_when_refused_then_each_call_unavailable),
        TEST(test_call_when_started_in_on_done_then_uses_another_connection),
        TEST(test_call_when_connection_was_drained_then_new_connection),
        TEST(test_call_when_goaway_arrives_first_then_next_connection_serves_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

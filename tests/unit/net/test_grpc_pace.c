/* SPDX-License-Identifier: Apache-2.0
 *
 * Clients that read replies slowly: which are disconnected and when. With a fake clock. Test
 * thread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/log.h"
#include "net/grpc_internal.h"
#include "tests/lib/grpc_rig.h"

enum {
    MINIMUM = 64 * 1024, /* bytes a second */
    REPLY_BYTES = 4 * 1024 * 1024,
    SECOND_US = 1000 * 1000,
    READERS = 3
};

/* A connection that reads only when a test says so. */
struct reader {
    struct wire wire;
    uint32_t id; /* the next stream */
};

struct fixture {
    struct rig rig;
    struct reader readers[READERS];
    struct wire other; /* the rig's parked call, for which memory is short */
};

static int setup(void **state)
{
    static struct fixture fixture;
    struct hps_grpc_limits limits = rig_limits;

    hps_log_level_set(HPS_LOG_ERROR);
    hps_clock_fake(hps_clock_us());
    limits.reply_bytes_per_s_min = MINIMUM;
    limits.handshake_timeout_us = 0;
    limits.stall_timeout_us = 0;
    rig_open(&fixture.rig, &limits);
    for (unsigned i = 0; i < READERS; i++) {
        fixture.readers[i].wire.fd = -1;
        fixture.readers[i].id = 1;
    }
    wire_open(&fixture.other, &fixture.rig);
    wire_call(&fixture.other, 1, "/t.T/Park", NULL, "", 0);
    WIRE_UNTIL(&fixture.other, fixture.rig.parked != NULL);
    *state = &fixture;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    for (unsigned i = 0; i < READERS; i++) {
        if (f->readers[i].wire.fd >= 0) {
            wire_close(&f->readers[i].wire);
        }
    }
    wire_close(&f->other);
    rig_close(&f->rig);
    hps_clock_real();
    hps_log_level_set(HPS_LOG_INFO);
    return 0;
}

static void put_u32(uint8_t out[4], uint32_t value)
{
    for (unsigned i = 0; i < 4; i++) {
        out[i] = (uint8_t)(value >> (24 - 8 * i));
    }
}

/* Opens a connection with this flow-control window for each stream, and a large window for the
 * connection. */
static void reader_open(struct fixture *f, struct reader *reader, uint32_t window)
{
    uint8_t settings[6] = {0, 4};
    uint8_t wide[4];

    wire_open(&reader->wire, &f->rig);
    put_u32(settings + 2, window);
    assert_true(wire_frame(&reader->wire, 4, 0, 0, settings, sizeof settings));
    put_u32(wide, 0x40000000);
    assert_true(wire_frame(&reader->wire, 8, 0, 0, wide, sizeof wide));
}

/* Calls a method with a reply of `bytes` bytes, and waits until the reply is queued. */
static uint32_t reader_ask(struct fixture *f, struct reader *reader, uint32_t bytes)
{
    unsigned n_messages = f->rig.n_messages;
    uint32_t id = reader->id;
    uint8_t message[9] = {0, 0, 0, 0, 4};

    memcpy(message + 5, &bytes, sizeof bytes);
    reader->id += 2;
    assert_true(wire_request(&reader->wire, id, "/t.T/Big", false, NULL));
    assert_true(wire_frame(&reader->wire, 0, 1, id, message, sizeof message));
    RIG_UNTIL(&f->rig, f->rig.n_messages > n_messages);
    return id;
}

static void reader_take(struct reader *reader, uint32_t id, uint32_t bytes)
{
    uint8_t window[4];

    put_u32(window, bytes);
    assert_true(wire_frame(&reader->wire, 8, 0, id, window, sizeof window));
    wire_pump(&reader->wire);
    hps_buf_clear(&reader->wire.in);
}

static void pass(struct fixture *f, uint64_t us)
{
    hps_clock_advance(us);
    rig_turn(&f->rig);
    rig_turn(&f->rig);
}

static void test_call_when_client_reads_a_byte_a_second_then_only_this_call_is_reset(void **state)
{
    struct fixture *f = *state;
    struct reader *reader = &f->readers[0];

    reader_open(f, reader, 0);
    uint32_t id = reader_ask(f, reader, REPLY_BYTES);
    for (unsigned second = 0; second < 10; second++) {
        assert_int_equal(f->rig.n_slow[HPS_GRPC_SLOW_RATE], 0);
        pass(f, SECOND_US);
        reader_take(reader, id, 1);
    }
    pass(f, 2 * SECOND_US);
    assert_int_equal(f->rig.n_slow[HPS_GRPC_SLOW_RATE], 1);
    RIG_UNTIL(&f->rig, f->rig.n_ended[1] == 1);
    assert_int_equal(hps_block_pool_bytes(f->rig.blocks), 0);
    wire_pump(&reader->wire);
    assert_false(reader->wire.closed);
}

static void test_tick_when_checks_take_long_then_rest_is_checked_in_next_turn(void **state)
{
    struct fixture *f = *state;

    for (unsigned i = 0; i < 2; i++) {
        reader_open(f, &f->readers[i], 0);
        (void)reader_ask(f, &f->readers[i], REPLY_BYTES);
    }
    for (unsigned second = 0; second < 10; second++) {
        pass(f, SECOND_US);
    }
    f->rig.slow_us = 200;
    hps_clock_advance(2 * SECOND_US);
    rig_turn(&f->rig);
    assert_int_equal(f->rig.n_slow[HPS_GRPC_SLOW_RATE], 1);
    rig_turn(&f->rig);
    assert_int_equal(f->rig.n_slow[HPS_GRPC_SLOW_RATE], 2);
}

/* The tick runs after the window has opened, but before the server has sent bytes into it. */
static void test_call_when_window_opens_before_each_tick_then_reset(void **state)
{
    static const uint8_t one[4] = {0, 0, 0, 1};
    struct fixture *f = *state;
    struct reader *reader = &f->readers[0];

    reader_open(f, reader, 0);
    uint32_t id = reader_ask(f, reader, REPLY_BYTES);
    for (unsigned second = 0; second < 12; second++) {
        assert_true(wire_frame(&reader->wire, 8, 0, id, one, sizeof one));
        pass(f, SECOND_US);
    }
    assert_int_equal(f->rig.n_slow[HPS_GRPC_SLOW_RATE], 1);
    RIG_UNTIL(&f->rig, f->rig.n_ended[1] == 1);
}

static void test_call_when_settings_open_its_window_a_little_then_reset(void **state)
{
    struct fixture *f = *state;
    struct reader *reader = &f->readers[0];

    reader_open(f, reader, 0);
    (void)reader_ask(f, reader, REPLY_BYTES);
    for (uint8_t second = 0; second < 12; second++) {
        const uint8_t settings[6] = {0, 4, 0, 0, 0, (uint8_t)(second + 1)};
        assert_true(wire_frame(&reader->wire, 4, 0, 0, settings, sizeof settings));
        pass(f, SECOND_US);
    }
    assert_int_equal(f->rig.n_slow[HPS_GRPC_SLOW_RATE], 1);
}

/* Opens a connection that closes its flow-control window after 64 KB. */
static void shut_open(struct fixture *f, struct reader *reader)
{
    static const uint8_t wide[] = {0, 4, 0x7f, 0xff, 0xff, 0xff};

    wire_open(&reader->wire, &f->rig);
    assert_true(wire_frame(&reader->wire, 4, 0, 0, wide, sizeof wide));
    (void)reader_ask(f, reader, REPLY_BYTES);
    WIRE_UNTIL(&reader->wire, reader->wire.in.size > 65535);
    hps_buf_clear(&reader->wire.in);
}

static void test_connection_when_window_opens_before_each_tick_then_closed(void **state)
{
    static const uint8_t one[4] = {0, 0, 0, 1};
    struct fixture *f = *state;
    struct reader *reader = &f->readers[0];

    shut_open(f, reader);
    for (unsigned second = 0; second < 12 && f->rig.n_gone == 0; second++) {
        assert_true(wire_frame(&reader->wire, 8, 0, 0, one, sizeof one));
        pass(f, SECOND_US);
    }
    assert_int_equal(f->rig.n_slow[HPS_GRPC_SLOW_RATE], 1);
}

/* Replies without a body do not count as progress. */
static void test_connection_when_it_reads_only_replies_without_body_then_closed(void **state)
{
    struct fixture *f = *state;
    struct reader *reader = &f->readers[0];
    struct hps_grpc_limits limits = rig_limits;

    limits.stall_timeout_us = 0;
    limits.reply_bytes_per_s_min = 100;
    hps_grpc_loop_limits_set(f->rig.grpc_loop, &limits);
    shut_open(f, reader);
    for (unsigned second = 0; second < 12 && f->rig.n_gone == 0; second++) {
        for (unsigned i = 0; i < 10; i++) { /* about 40 bytes of headers each */
            assert_true(wire_request(&reader->wire, reader->id, "/none", true, NULL));
            reader->id += 2;
        }
        wire_pump(&reader->wire);
        pass(f, SECOND_US);
    }
    assert_int_equal(f->rig.n_slow[HPS_GRPC_SLOW_RATE], 1);
}

static void test_connection_when_client_reads_its_socket_slowly_then_closed(void **state)
{
    struct fixture *f = *state;
    struct reader *reader = &f->readers[0];
    uint8_t some[1000];

    reader_open(f, reader, 0x7fffffff);
    (void)reader_ask(f, reader, REPLY_BYTES);
    (void)reader_ask(f, reader, REPLY_BYTES);
    for (unsigned second = 0; second < 25 && f->rig.n_gone == 0; second++) {
        pass(f, SECOND_US);
        (void)recv(reader->wire.fd, some, sizeof some, 0); /* the kernel's buffer is read, too */
    }
    assert_int_equal(f->rig.n_slow[HPS_GRPC_SLOW_RATE], 1);
    assert_int_equal(f->rig.n_gone, 1);
    assert_int_equal(hps_block_pool_bytes(f->rig.blocks), 0);
}

static void test_connection_when_window_stays_closed_then_closed(void **state)
{
    struct fixture *f = *state;
    struct reader *reader = &f->readers[0];
    static const uint8_t wide[] = {0, 4, 0x7f, 0xff, 0xff, 0xff};

    wire_open(&reader->wire, &f->rig); /* the window of the connection is 64 KB */
    assert_true(wire_frame(&reader->wire, 4, 0, 0, wide, sizeof wide));
    (void)reader_ask(f, reader, REPLY_BYTES);
    for (unsigned second = 0; second < 12; second++) {
        pass(f, SECOND_US);
        wire_pump(&reader->wire);
    }
    WIRE_UNTIL(&reader->wire, reader->wire.closed);
    assert_int_equal(f->rig.n_slow[HPS_GRPC_SLOW_RATE], 1);
}

/* The calls of a connection share the minimum. One call cannot use the part of the other. */
static void test_calls_when_they_share_the_minimum_then_only_the_slow_call_is_reset(void **state)
{
    struct fixture *f = *state;
    struct reader *reader = &f->readers[0];

    reader_open(f, reader, 0);
    uint32_t first = reader_ask(f, reader, REPLY_BYTES);
    uint32_t second = reader_ask(f, reader, REPLY_BYTES);
    for (unsigned i = 0; i < 25; i++) {
        pass(f, SECOND_US);
        reader_take(reader, first, MINIMUM * 3 / 4);
        reader_take(reader, second, MINIMUM * 3 / 4);
    }
    assert_int_equal(f->rig.n_slow[HPS_GRPC_SLOW_RATE], 0);
    for (unsigned i = 0; i < 25; i++) {
        pass(f, SECOND_US);
        reader_take(reader, first, 2 * MINIMUM);
    }
    assert_int_equal(f->rig.n_slow[HPS_GRPC_SLOW_RATE], 1);
    assert_int_equal(f->rig.n_ended[1], 1);
}

static void test_reader_when_minimum_is_0_then_never_disconnected(void **state)
{
    struct fixture *f = *state;
    struct reader *reader = &f->readers[0];
    struct hps_grpc_limits limits = rig_limits;

    limits.stall_timeout_us = 0;
    hps_grpc_loop_limits_set(f->rig.grpc_loop, &limits);
    reader_open(f, reader, 0);
    (void)reader_ask(f, reader, REPLY_BYTES);
    for (unsigned second = 0; second < 25; second++) {
        pass(f, SECOND_US);
    }
    hps_grpc_readers_watch(f->rig.parked);
    pass(f, SECOND_US);
    hps_grpc_readers_cut(f->rig.parked, HPS_SCOPE_ALL);
    pass(f, 0);
    assert_int_equal(f->rig.n_slow[HPS_GRPC_SLOW_RATE], 0);
    assert_int_equal(f->rig.n_slow[HPS_GRPC_SLOW_ROOM], 0);
}

static void test_reader_when_minimum_was_0_for_a_time_then_this_time_does_not_count(void **state)
{
    struct fixture *f = *state;
    struct reader *reader = &f->readers[0];
    struct hps_grpc_limits limits = *f->rig.grpc_loop->limits;

    reader_open(f, reader, 0);
    (void)reader_ask(f, reader, REPLY_BYTES);
    pass(f, SECOND_US);
    limits.reply_bytes_per_s_min = 0;
    hps_grpc_loop_limits_set(f->rig.grpc_loop, &limits);
    for (unsigned second = 0; second < 25; second++) {
        pass(f, SECOND_US);
    }
    limits.reply_bytes_per_s_min = MINIMUM;
    hps_grpc_loop_limits_set(f->rig.grpc_loop, &limits);
    pass(f, SECOND_US);
    assert_int_equal(f->rig.n_slow[HPS_GRPC_SLOW_RATE], 0);
    pass(f, 10 * SECOND_US);
    assert_int_equal(f->rig.n_slow[HPS_GRPC_SLOW_RATE], 1);
}

/* The tick ends readers[1] and has had its time then. The next turn continues it. */
static void tick_in_part(struct fixture *f)
{
    f->rig.slow_us = 200;
    hps_clock_advance(SECOND_US + 1000);
    rig_turn(&f->rig);
    f->rig.slow_us = 0;
    assert_int_equal(f->rig.n_slow[HPS_GRPC_SLOW_RATE], 1);
}

static void test_reader_when_it_begins_to_wait_during_a_tick_then_not_ended(void **state)
{
    struct fixture *f = *state;
    struct reader *reader = &f->readers[0];
    uint32_t bytes = REPLY_BYTES;
    uint8_t message[9] = {0, 0, 0, 0, 4};

    memcpy(message + 5, &bytes, sizeof bytes);
    reader_open(f, reader, 0);
    reader_open(f, &f->readers[1], 0);
    (void)reader_ask(f, &f->readers[1], REPLY_BYTES);
    for (unsigned second = 0; second < 10; second++) {
        pass(f, SECOND_US);
    }
    assert_true(wire_request(&reader->wire, 1, "/t.T/Big", false, NULL));
    assert_true(wire_frame(&reader->wire, 0, 1, 1, message, sizeof message));
    tick_in_part(f);
    grpc_paces_cut(f->rig.grpc_loop, GRPC_CUT_READERS, 0); /* sees that the reader waits */
    pass(f, 0);
    assert_int_equal(f->rig.n_slow[HPS_GRPC_SLOW_RATE], 1);
    assert_int_equal(f->rig.n_slow[HPS_GRPC_SLOW_ROOM], 0);
}

/* The tick would check the closed connection last. */
static void test_reader_when_the_end_of_a_connection_ends_a_tick_then_its_samples_count_once(
    void **state)
{
    struct fixture *f = *state;
    struct reader *reader = &f->readers[0];

    reader_open(f, &f->readers[1], 0);
    (void)reader_ask(f, &f->readers[1], REPLY_BYTES);
    reader_open(f, reader, 0);
    uint32_t id = reader_ask(f, reader, REPLY_BYTES);
    for (unsigned second = 0; second < 10; second++) {
        pass(f, SECOND_US);
        reader_take(reader, id, 4 * MINIMUM);
    }
    pass(f, 0);
    wire_close(&f->other);
    tick_in_part(f);
    pass(f, 0);
    pass(f, 0);
    pass(f, 30 * 1000);
    grpc_paces_cut(f->rig.grpc_loop, GRPC_CUT_READERS, 0);
    assert_int_equal(f->rig.n_slow[HPS_GRPC_SLOW_ROOM], 0);
    wire_open(&f->other, &f->rig); /* for teardown */
}

/* ---- when memory is short -------------------------------------------------------------------- */

static void watch(struct fixture *f)
{
    hps_grpc_readers_watch(f->rig.parked);
    pass(f, 0);
    pass(f, 0); /* the tick */
}

static void cut_in(struct fixture *f, enum hps_limit_scope scope)
{
    pass(f, 40 * 1000); /* after the previous cut */
    hps_grpc_readers_cut(f->rig.parked, scope);
    for (unsigned i = 0; i < 4; i++) {
        pass(f, 0);
    }
}

static void cut(struct fixture *f)
{
    cut_in(f, HPS_SCOPE_ALL);
}

static void test_cut_when_memory_of_one_client_is_short_then_only_its_connections_end(void **state)
{
    struct fixture *f = *state;

    reader_open(f, &f->readers[0], 0);
    (void)reader_ask(f, &f->readers[0], REPLY_BYTES);
    watch(f);
    pass(f, 150 * 1000);
    cut_in(f, HPS_SCOPE_CONNECTION); /* of the parked call: no other connection is affected */
    grpc_paces_cut(f->rig.grpc_loop, GRPC_CUT_OWN_READERS, f->rig.parked->home->client + 1);
    pass(f, 0);
    assert_int_equal(f->rig.n_slow[HPS_GRPC_SLOW_ROOM], 0);
    cut_in(f, HPS_SCOPE_ADDRESS); /* the client of the reader has this address */
    assert_int_equal(f->rig.n_slow[HPS_GRPC_SLOW_ROOM], 1);
}

static void test_cut_when_several_readers_are_slow_then_largest_queue_ends_first(void **state)
{
    struct fixture *f = *state;

    for (unsigned i = 0; i < 2; i++) {
        reader_open(f, &f->readers[i], 0);
        (void)reader_ask(f, &f->readers[i], i == 1 ? REPLY_BYTES : REPLY_BYTES / 2);
    }
    watch(f);
    pass(f, 150 * 1000);
    cut(f);
    assert_int_equal(f->rig.n_slow[HPS_GRPC_SLOW_ROOM], 1);
    assert_int_equal(hps_grpc_loop_bytes_in_flight(f->rig.grpc_loop), REPLY_BYTES / 2 + 5);
    cut(f);
    assert_int_equal(f->rig.n_slow[HPS_GRPC_SLOW_ROOM], 2);
    assert_int_equal(hps_grpc_loop_bytes_in_flight(f->rig.grpc_loop), 0);
    cut(f); /* no reader is left */
    assert_int_equal(f->rig.n_slow[HPS_GRPC_SLOW_ROOM], 2);
    assert_int_equal(f->rig.n_slow[HPS_GRPC_SLOW_RATE], 0);
}

static void test_cut_when_a_reader_reads_enough_then_not_disconnected(void **state)
{
    struct fixture *f = *state;

    reader_open(f, &f->readers[0], 0);
    uint32_t id = reader_ask(f, &f->readers[0], REPLY_BYTES);
    watch(f);
    pass(f, 150 * 1000);
    reader_take(&f->readers[0], id, MINIMUM); /* enough for 150 ms */
    cut(f);
    assert_int_equal(f->rig.n_slow[HPS_GRPC_SLOW_ROOM], 0);
    watch(f);
    pass(f, 100 * 1000);
    cut(f); /* it has read nothing since the last sample */
    assert_int_equal(f->rig.n_slow[HPS_GRPC_SLOW_ROOM], 1);
}

static void test_cut_when_samples_are_too_young_then_no_reader_ends(void **state)
{
    struct fixture *f = *state;

    reader_open(f, &f->readers[0], 0);
    (void)reader_ask(f, &f->readers[0], REPLY_BYTES);
    cut(f); /* there is no sample */
    watch(f);
    pass(f, 39 * 1000);
    cut(f);
    assert_int_equal(f->rig.n_slow[HPS_GRPC_SLOW_ROOM], 0);
    reader_open(f, &f->readers[1], 0);
    (void)reader_ask(f, &f->readers[1], 2 * REPLY_BYTES); /* it began after the sample */
    cut(f);
    assert_int_equal(f->rig.n_slow[HPS_GRPC_SLOW_ROOM], 1);
    assert_int_equal(hps_grpc_loop_bytes_in_flight(f->rig.grpc_loop), 2 * REPLY_BYTES + 5);
}

/* Frequent samples, from other calls that begin to wait, must not replace all older ones. */
static void test_cut_when_samples_are_frequent_then_an_older_sample_is_used(void **state)
{
    struct fixture *f = *state;

    reader_open(f, &f->readers[0], 0);
    (void)reader_ask(f, &f->readers[0], REPLY_BYTES);
    for (unsigned i = 0; i < 30; i++) {
        pass(f, 10 * 1000);
        watch(f);
    }
    cut(f);
    assert_int_equal(f->rig.n_slow[HPS_GRPC_SLOW_ROOM], 1);
}

/* Each cut frees memory, so cuts must not follow each other at once. */
static void test_cut_when_called_repeatedly_then_one_reader_ends_per_40_ms(void **state)
{
    struct fixture *f = *state;

    for (unsigned i = 0; i < READERS; i++) {
        reader_open(f, &f->readers[i], 0);
        (void)reader_ask(f, &f->readers[i], REPLY_BYTES);
    }
    watch(f);
    pass(f, 100 * 1000);
    for (unsigned i = 0; i < 20; i++) {
        hps_grpc_readers_cut(f->rig.parked, HPS_SCOPE_ALL);
        pass(f, 0);
    }
    assert_int_equal(f->rig.n_slow[HPS_GRPC_SLOW_ROOM], 1);
    cut(f);
    assert_int_equal(f->rig.n_slow[HPS_GRPC_SLOW_ROOM], 2);
}

static void test_cut_when_several_loops_have_slow_readers_then_each_ends_one(void **state)
{
    struct fixture *f = *state;
    struct hps_grpc_loop *second = NULL;
    struct hps_grpc_loop *first = f->rig.grpc_loop;

    assert_int_equal(hps_grpc_loop_new(f->rig.server, f->rig.loop, &second), HPS_OK);
    reader_open(f, &f->readers[0], 0);
    (void)reader_ask(f, &f->readers[0], REPLY_BYTES / 2);
    f->rig.grpc_loop = second;
    reader_open(f, &f->readers[1], 0);
    (void)reader_ask(f, &f->readers[1], REPLY_BYTES);
    reader_open(f, &f->readers[2], 0);
    (void)reader_ask(f, &f->readers[2], REPLY_BYTES / 2);
    f->rig.grpc_loop = first;
    watch(f);
    pass(f, 150 * 1000);
    cut(f);
    assert_int_equal(f->rig.n_slow[HPS_GRPC_SLOW_ROOM], 2);
    assert_int_equal(hps_grpc_loop_bytes_in_flight(first), 0);
    assert_int_equal(hps_grpc_loop_bytes_in_flight(second), REPLY_BYTES / 2 + 5);
    cut(f);
    assert_int_equal(hps_grpc_loop_bytes_in_flight(second), 0);
    pass(f, 40 * 1000);
    hps_grpc_readers_cut(f->rig.parked, HPS_SCOPE_ALL); /* posted when the loop is freed */
    hps_grpc_loop_free(second);
}

int main(void)
{
#define PACE_TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        PACE_TEST(test_call_when_client_reads_a_byte_a_second_then_only_this_call_is_reset),
        PACE_TEST(test_reader_when_it_begins_to_wait_during_a_tick_then_not_ended),
        PACE_TEST(test_reader_when_the_end_of_a_connection_ends_a_tick_then_its_samples_count_once),
        PACE_TEST(test_tick_when_checks_take_long_then_rest_is_checked_in_next_turn),
        PACE_TEST(test_call_when_window_opens_before_each_tick_then_reset),
        PACE_TEST(test_call_when_settings_open_its_window_a_little_then_reset),
        PACE_TEST(test_connection_when_window_opens_before_each_tick_then_closed),
        PACE_TEST(test_connection_when_it_reads_only_replies_without_body_then_closed),
        PACE_TEST(test_connection_when_client_reads_its_socket_slowly_then_closed),
        PACE_TEST(test_connection_when_window_stays_closed_then_closed),
        PACE_TEST(test_calls_when_they_share_the_minimum_then_only_the_slow_call_is_reset),
        PACE_TEST(test_reader_when_minimum_is_0_then_never_disconnected),
        PACE_TEST(test_reader_when_minimum_was_0_for_a_time_then_this_time_does_not_count),
        PACE_TEST(test_cut_when_memory_of_one_client_is_short_then_only_its_connections_end),
        PACE_TEST(test_cut_when_several_readers_are_slow_then_largest_queue_ends_first),
        PACE_TEST(test_cut_when_a_reader_reads_enough_then_not_disconnected),
        PACE_TEST(test_cut_when_samples_are_too_young_then_no_reader_ends),
        PACE_TEST(test_cut_when_samples_are_frequent_then_an_older_sample_is_used),
        PACE_TEST(test_cut_when_called_repeatedly_then_one_reader_ends_per_40_ms),
        PACE_TEST(test_cut_when_several_loops_have_slow_readers_then_each_ends_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

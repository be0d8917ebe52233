/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests that clients send slowly: which are refused and when. With a fake clock. Test thread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/log.h"
#include "net/grpc_internal.h"
#include "tests/lib/grpc_rig.h"

enum {
    MINIMUM = 64 * 1024, /* bytes a second */
    ALL_MAX = 900 * 1024,
    SECOND_US = 1000 * 1000,
    FRAME_BYTES = 16000,
    SENDERS = 3,
    EXHAUSTED = 8, /* the gRPC code */
};

struct fixture {
    struct rig rig;
    struct wire senders[SENDERS];
};

static void open_rig(struct fixture *f, const struct hps_grpc_limits *wanted)
{
    struct hps_grpc_limits limits = *wanted;

    hps_log_level_set(HPS_LOG_ERROR);
    hps_clock_fake(hps_clock_us());
    limits.handshake_timeout_us = 0;
    limits.stall_timeout_us = 0;
    rig_open(&f->rig, &limits);
    rig_request_bytes_max(&f->rig, ALL_MAX);
}

static void open_sender(struct fixture *f, unsigned i)
{
    wire_open(&f->senders[i], &f->rig);
    wire_take_settings(&f->senders[i]);
}

static int setup(void **state)
{
    static struct fixture fixture;
    struct hps_grpc_limits limits = rig_limits;

    limits.request_bytes_per_s_min = MINIMUM;
    open_rig(&fixture, &limits);
    for (unsigned i = 0; i < SENDERS; i++) {
        open_sender(&fixture, i);
    }
    *state = &fixture;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    for (unsigned i = 0; i < SENDERS; i++) {
        wire_close(&f->senders[i]);
    }
    rig_close(&f->rig);
    hps_clock_real();
    hps_log_level_set(HPS_LOG_INFO);
    return 0;
}

/* Sends the headers of a call, and the prefix of a message of `size` bytes. */
static void begin(struct wire *wire, uint32_t id, const char *path, uint32_t size)
{
    const uint8_t prefix[5] = {0, (uint8_t)(size >> 24), (uint8_t)(size >> 16),
                               (uint8_t)(size >> 8), (uint8_t)size};

    assert_true(wire_request(wire, id, path, false, NULL));
    assert_true(wire_frame(wire, 0, 0, id, prefix, sizeof prefix));
}

static void bring(struct wire *wire, uint32_t id, size_t size)
{
    static const uint8_t bytes[FRAME_BYTES];

    for (size_t n; size > 0; size -= n) {
        n = size < sizeof bytes ? size : sizeof bytes;
        assert_true(wire_frame(wire, 0, 0, id, bytes, n));
    }
}

static void end(struct wire *wire, uint32_t id)
{
    assert_true(wire_frame(wire, 0, 1, id, "", 0));
}

static void pass(struct fixture *f, uint64_t us)
{
    for (unsigned i = 0; i < SENDERS; i++) {
        wire_pump(&f->senders[i]);
        hps_buf_clear(&f->senders[i].in);
    }
    hps_clock_advance(us);
    rig_turn(&f->rig);
    rig_turn(&f->rig);
}

static void test_request_when_client_trickles_bytes_then_only_this_request_refused(void **state)
{
    struct fixture *f = *state;
    struct wire *wire = &f->senders[0];

    begin(wire, 1, "/t.T/Echo", 1 << 20);
    bring(wire, 1, 200 * 1024); /* a burst, and then nothing */
    for (unsigned second = 0; second < 10; second++) {
        assert_int_equal(f->rig.n_slow[HPS_GRPC_SLOW_SEND_RATE], 0);
        bring(wire, 1, 1);
        pass(f, SECOND_US);
    }
    for (unsigned second = 0; second < 11; second++) { /* the burst was in the previous period */
        pass(f, SECOND_US);
        bring(wire, 1, 1);
    }
    assert_int_equal(f->rig.n_slow[HPS_GRPC_SLOW_SEND_RATE], 1);
    RIG_UNTIL(&f->rig, f->rig.n_ended[EXHAUSTED] == 1);
    begin(wire, 3, "/t.T/Echo", 5);
    bring(wire, 3, 5);
    end(wire, 3);
    RIG_UNTIL(&f->rig, f->rig.n_messages == 1);
    assert_false(wire->closed);
}

static void test_request_when_faster_than_the_minimum_then_not_refused(void **state)
{
    struct fixture *f = *state;
    struct wire *wire = &f->senders[0];

    begin(wire, 1, "/t.T/Echo", 12 * (MINIMUM + 8000));
    for (unsigned second = 0; second < 12; second++) {
        bring(wire, 1, MINIMUM + 8000);
        pass(f, SECOND_US);
    }
    end(wire, 1);
    RIG_UNTIL(&f->rig, f->rig.n_messages == 1);
    assert_int_equal(f->rig.n_slow[HPS_GRPC_SLOW_SEND_RATE], 0);
}

static void test_request_when_minimum_was_0_for_a_time_then_this_time_does_not_count(void **state)
{
    struct fixture *f = *state;
    struct hps_grpc_limits limits = *f->rig.grpc_loop->limits;

    begin(&f->senders[0], 1, "/t.T/Echo", 1 << 20);
    pass(f, SECOND_US);
    limits.request_bytes_per_s_min = 0;
    hps_grpc_loop_limits_set(f->rig.grpc_loop, &limits);
    for (unsigned second = 0; second < 25; second++) {
        pass(f, SECOND_US);
    }
    limits.request_bytes_per_s_min = MINIMUM;
    hps_grpc_loop_limits_set(f->rig.grpc_loop, &limits);
    pass(f, SECOND_US);
    assert_int_equal(f->rig.n_slow[HPS_GRPC_SLOW_SEND_RATE], 0);
    pass(f, 10 * SECOND_US);
    assert_int_equal(f->rig.n_slow[HPS_GRPC_SLOW_SEND_RATE], 1);
}

/* Two requests on a connection share the minimum rate. */
static void test_requests_when_on_one_connection_then_they_share_the_minimum(void **state)
{
    struct fixture *f = *state;
    struct wire *wire = &f->senders[0];

    begin(wire, 1, "/t.T/Echo", 420 * 1024);
    begin(wire, 3, "/t.T/Echo", 420 * 1024);
    for (unsigned second = 0; second < 11; second++) {
        bring(wire, 1, MINIMUM / 2 + 4000);
        bring(wire, 3, MINIMUM / 2 - 8000);
        pass(f, SECOND_US);
    }
    assert_int_equal(f->rig.n_slow[HPS_GRPC_SLOW_SEND_RATE], 1); /* the second request */
    bring(wire, 1, 420 * 1024 - 11 * (MINIMUM / 2 + 4000));
    end(wire, 1);
    RIG_UNTIL(&f->rig, f->rig.n_messages == 1);
    assert_int_equal(f->rig.n_ended[EXHAUSTED], 1);
}

static void test_request_when_complete_but_never_half_closed_then_refused(void **state)
{
    struct fixture *f = *state;

    begin(&f->senders[0], 1, "/t.T/Echo", 1000);
    bring(&f->senders[0], 1, 1000);
    for (unsigned second = 0; second < 22; second++) {
        pass(f, SECOND_US);
    }
    assert_int_equal(f->rig.n_slow[HPS_GRPC_SLOW_SEND_RATE], 1);
    RIG_UNTIL(&f->rig, f->rig.n_ended[EXHAUSTED] == 1);
}

static void test_stream_when_silent_then_refused_only_within_a_message(void **state)
{
    static const uint8_t four[9] = {0, 0, 0, 0, 4};
    struct fixture *f = *state;
    struct wire *wire = &f->senders[0];

    assert_true(wire_request(wire, 1, "/t.T/Count", false, NULL));
    assert_true(wire_frame(wire, 0, 0, 1, four, sizeof four));
    for (unsigned second = 0; second < 30; second++) {
        pass(f, SECOND_US);
    }
    assert_int_equal(f->rig.n_slow[HPS_GRPC_SLOW_SEND_RATE], 0);
    assert_true(wire_frame(wire, 0, 0, 1, four, 7));
    for (unsigned second = 0; second < 22; second++) {
        pass(f, SECOND_US);
    }
    assert_int_equal(f->rig.n_slow[HPS_GRPC_SLOW_SEND_RATE], 1);
}

static void test_request_when_memory_is_short_then_slow_requests_are_refused(void **state)
{
    struct fixture *f = *state;
    struct wire *little = &f->senders[0];
    struct wire *hog = &f->senders[1];
    struct wire *late = &f->senders[2];

    begin(little, 1, "/t.T/Echo", 1 << 20); /* slow, but the other sender holds more memory */
    bring(little, 1, 30 * 1024);
    begin(hog, 1, "/t.T/Echo", 1 << 20);
    bring(hog, 1, 600 * 1024);
    begin(hog, 3, "/t.T/Echo", 1 << 20);
    bring(hog, 3, 130 * 1024);
    for (unsigned second = 0; second < 3; second++) {
        pass(f, SECOND_US);
    }
    begin(late, 1, "/t.T/Echo", 100 * 1024);
    bring(late, 1, 100 * 1024);
    end(late, 1);
    RIG_UNTIL(&f->rig, f->rig.n_ended[EXHAUSTED] == 3);
    assert_int_equal(f->rig.n_slow[HPS_GRPC_SLOW_SEND_ROOM], 2); /* both requests of `hog` */
    assert_int_equal(f->rig.n_slow[HPS_GRPC_SLOW_SEND_RATE], 0);
    begin(late, 3, "/t.T/Echo", 100 * 1024);
    bring(late, 3, 100 * 1024);
    end(late, 3);
    RIG_UNTIL(&f->rig, f->rig.n_messages == 1);
    assert_int_equal(f->rig.n_ended[EXHAUSTED], 3);
}

/* Calls without a message are charged too. Some of the calls for which there is no memory get a
 * reply. */
static void test_calls_when_they_have_only_headers_then_limited_by_request_memory(void **state)
{
    enum { STREAMS = 256, CALLS = ALL_MAX / HPS_CALL_BYTES };
    struct fixture *f = *state;

    for (uint32_t i = 0; i < STREAMS; i++) {
        for (unsigned k = 0; k < 2; k++) {
            assert_true(wire_request(&f->senders[k], 2 * i + 1, "/t.T/Echo", false, NULL));
        }
        wire_pump(&f->senders[0]);
    }
    RIG_UNTIL(&f->rig, f->rig.n_ended[EXHAUSTED] > 0);
    rig_turn(&f->rig);
    assert_int_equal(hps_limits_used(f->rig.accounts, HPS_LIMIT_REQUESTS), CALLS * HPS_CALL_BYTES);
    for (unsigned k = 0; k < 2; k++) {
        wire_close(&f->senders[k]);
    }
    RIG_UNTIL(&f->rig, hps_limits_used(f->rig.accounts, HPS_LIMIT_REQUESTS) == 0);
    wire_call(&f->senders[2], 1, "/t.T/Echo", NULL, "x", 1);
    RIG_UNTIL(&f->rig, f->rig.n_ended[0] == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(test_request_when_client_trickles_bytes_then_only_this_request_refused),
        TEST(test_request_when_faster_than_the_minimum_then_not_refused),
        TEST(test_request_when_minimum_was_0_for_a_time_then_this_time_does_not_count),
        TEST(test_requests_when_on_one_connection_then_they_share_the_minimum),
        TEST(test_request_when_complete_but_never_half_closed_then_refused),
        TEST(test_stream_when_silent_then_refused_only_within_a_message),
        TEST(test_request_when_memory_is_short_then_slow_requests_are_refused),
        TEST(test_calls_when_they_have_only_headers_then_limited_by_request_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

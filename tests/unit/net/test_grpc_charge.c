/* SPDX-License-Identifier: Apache-2.0
 *
 * What the answers of a connection take in memory, before any of it is queued: how much of it
 * counts at a time, who waits for it, and that it outlives calls and connections. Test thread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/grpc_rig.h"

enum { MAX_BYTES = 65536, ALL_MAX_BYTES = 3 * MAX_BYTES, N_CALLS = 4 };

struct fixture {
    struct rig rig;
    struct wire wire;
    uint32_t id; /* of the next stream */
    struct hps_grpc_service service;
    struct hps_grpc_call *asking[N_CALLS]; /* calls to /c.C/Ask */
    unsigned n_asking;
};

/* Asks for room later, as lookups do that a worker unpacks. */
static void on_ask(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    struct fixture *f = hps_grpc_call_ctx(call);

    (void)data;
    (void)size;
    assert_true(f->n_asking < N_CALLS);
    f->asking[f->n_asking++] = call;
}

static void on_room(struct hps_grpc_call *call)
{
    hps_grpc_call_finish(call, 0, NULL);
}

static const struct hps_grpc_method ask = {.path = "/c.C/Ask",
                                           .on_message = on_ask,
                                           .on_room = on_room,
                                           .on_close = hps_grpc_call_discharge};

static int setup(void **state)
{
    static struct fixture fixture;
    struct hps_grpc_limits limits = rig_limits;

    limits.connection_reply_bytes_max = MAX_BYTES;
    limits.request_bytes_all_max = ALL_MAX_BYTES;
    fixture.id = 1;
    fixture.n_asking = 0;
    rig_open(&fixture.rig, &limits);
    fixture.service = (struct hps_grpc_service){"c.C", &ask, 1, &fixture};
    assert_int_equal(hps_grpc_server_add(fixture.rig.server, &fixture.service, 1), HPS_OK);
    wire_open(&fixture.wire, &fixture.rig);
    *state = &fixture;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    wire_close(&f->wire);
    rig_close(&f->rig);
    return 0;
}

/* A call whose answer takes so many bytes. */
static uint32_t charge(struct fixture *f, uint32_t bytes)
{
    uint8_t message[9] = {0, 0, 0, 0, 4};
    uint32_t id = f->id;

    memcpy(message + 5, &bytes, sizeof bytes);
    f->id += 2;
    assert_true(wire_request(&f->wire, id, "/t.T/Charge", false, NULL));
    assert_true(wire_frame(&f->wire, 0, 1, id, message, sizeof message));
    return id;
}

/* Wait until everything that was sent before is read: the PING is answered, and the service has got
 * so many messages. A busy loop answers the PING before it passes on the messages. */
static void flush(struct fixture *f, unsigned n_messages)
{
    hps_buf_clear(&f->wire.in);
    assert_true(wire_frame(&f->wire, 6, 0, 0, "12345678", 8));
    WIRE_UNTIL(&f->wire, wire_find(&f->wire, 6, 0, NULL, NULL));
    WIRE_UNTIL(&f->wire, f->rig.n_messages >= n_messages);
}

static void give_up(struct fixture *f, uint32_t id)
{
    unsigned n_closes = f->rig.n_closes;

    assert_true(wire_frame(&f->wire, 3, 0, id, "\0\0\0\x8", 4));
    WIRE_UNTIL(&f->wire, f->rig.n_closes > n_closes);
}

static void test_charge_when_answers_take_as_much_as_they_may_then_the_next_waits(void **state)
{
    struct fixture *f = *state;

    charge(f, MAX_BYTES / 2);
    charge(f, MAX_BYTES / 2 - 1);
    charge(f, 2); /* would be one byte too many */
    charge(f, 1); /* fits, but is not its turn: not even looked at */
    flush(f, 3);
    assert_int_equal(f->rig.n_charged, 2);
    assert_int_equal(f->rig.n_messages, 3);
    rig_discharge(&f->rig);
    RIG_UNTIL(&f->rig, f->rig.n_charged == 3);
    assert_int_equal(f->rig.n_messages, 4);
}

static void test_charge_when_an_answer_is_larger_than_all_then_is_alone(void **state)
{
    struct fixture *f = *state;

    charge(f, 1);
    charge(f, 3 * MAX_BYTES);
    charge(f, 1);
    flush(f, 2);
    assert_int_equal(f->rig.n_charged, 1);
    rig_discharge(&f->rig);
    RIG_UNTIL(&f->rig, f->rig.n_charged == 1);
    flush(f, 2);
    assert_int_equal(f->rig.n_charged, 1);
    rig_discharge(&f->rig);
    RIG_UNTIL(&f->rig, f->rig.n_charged == 1);
}

static void test_charge_when_who_waits_gives_up_then_the_next_goes(void **state)
{
    struct fixture *f = *state;

    charge(f, MAX_BYTES - 1);
    uint32_t waits = charge(f, 2);
    charge(f, 1);
    flush(f, 2);
    assert_int_equal(f->rig.n_charged, 1);
    give_up(f, waits);
    RIG_UNTIL(&f->rig, f->rig.n_charged == 2);
}

/* Its thread may still be at work: who resets calls in a row holds no more memory than others. */
static void test_charge_when_its_call_is_over_then_counts_until_it_is_given_back(void **state)
{
    struct fixture *f = *state;

    uint32_t first = charge(f, MAX_BYTES);
    charge(f, MAX_BYTES);
    flush(f, 1);
    give_up(f, first);
    flush(f, 1);
    assert_int_equal(f->rig.n_charged, 1);
    rig_discharge(&f->rig);
    RIG_UNTIL(&f->rig, f->rig.n_charged == 1);
    assert_int_equal(f->rig.n_closes, 1);
}

static void test_charge_when_its_connection_is_gone_then_may_still_be_given_back(void **state)
{
    struct fixture *f = *state;

    charge(f, MAX_BYTES);
    charge(f, 1); /* waits */
    charge(f, 1); /* is not looked at */
    flush(f, 1);
    wire_close(&f->wire);
    RIG_UNTIL(&f->rig, f->rig.n_gone == 1);
    assert_int_equal(f->rig.n_charged, 1);
    rig_discharge(&f->rig);
    wire_open(&f->wire, &f->rig); /* another one has nothing to do with it */
    f->id = 1;
    charge(f, 1);
    RIG_UNTIL(&f->rig, f->rig.n_charged == 1);
}

static void test_charge_when_it_waits_at_its_deadline_then_leaves_the_line(void **state)
{
    static const char *extra[] = {"grpc-timeout", "30m", NULL};
    struct fixture *f = *state;

    charge(f, MAX_BYTES - 1);
    wire_call(&f->wire, f->id, "/t.T/Charge", extra, "\0\1\0\0", 4);
    f->id += 2;
    charge(f, 1);
    RIG_UNTIL(&f->rig, f->rig.n_charged == 2);
    assert_int_equal(f->rig.n_ended[4], 1);
}

/* N_CALLS calls that have not asked as yet. */
static void begin_all(struct fixture *f)
{
    for (unsigned i = 0; i < N_CALLS; i++) {
        wire_call(&f->wire, f->id, "/c.C/Ask", NULL, "", 0);
        f->id += 2;
    }
    RIG_UNTIL(&f->rig, f->n_asking == N_CALLS);
}

/* They were all under way before one of them asked: what they hold is bounded all the same. */
static void test_charge_when_those_in_line_hold_much_then_the_next_is_refused(void **state)
{
    struct fixture *f = *state;
    struct hps_grpc_call **asking = f->asking;

    begin_all(f);
    assert_int_equal(hps_grpc_call_charge(asking[0], MAX_BYTES, MAX_BYTES), HPS_OK);
    assert_int_equal(hps_grpc_call_charge(asking[1], 1, MAX_BYTES - 1), HPS_AGAIN);
    assert_int_equal(hps_grpc_call_charge(asking[2], 1, 2), HPS_EXHAUSTED);
    assert_int_equal(hps_grpc_call_charge(asking[3], 1, 1), HPS_AGAIN);
    hps_grpc_call_finish(asking[2], 8, NULL);
    hps_grpc_call_finish(asking[0], 0, NULL);
    RIG_UNTIL(&f->rig, f->rig.n_ended[0] == 3); /* those in line had their turns */
    f->n_asking = 0;
    begin_all(f);
    assert_int_equal(hps_grpc_call_charge(asking[0], MAX_BYTES, 0), HPS_OK);
    assert_int_equal(hps_grpc_call_charge(asking[1], 1, MAX_BYTES),
                     HPS_AGAIN); /* nothing is left */
}

/* Its service does not know as yet that it was for nothing: a client may be slow to read of that.
 */
static void test_charge_when_who_waits_is_finished_then_holds_until_it_is_closed(void **state)
{
    struct fixture *f = *state;
    struct hps_grpc_call **asking = f->asking;

    begin_all(f);
    assert_int_equal(hps_grpc_call_charge(asking[0], MAX_BYTES, 0), HPS_OK);
    assert_int_equal(hps_grpc_call_charge(asking[1], 1, MAX_BYTES), HPS_AGAIN);
    hps_grpc_call_finish(asking[1], 4, "late");
    assert_int_equal(hps_grpc_call_charge(asking[2], 1, 1), HPS_EXHAUSTED);
    RIG_UNTIL(&f->rig, f->rig.n_ended[4] == 1);
    assert_int_equal(hps_grpc_call_charge(asking[3], 1, MAX_BYTES), HPS_AGAIN);
}

static void test_charge_when_all_lines_hold_much_then_only_small_ones_stand(void **state)
{
    struct fixture *f = *state;
    struct hps_grpc_call **asking = f->asking;
    struct wire first = f->wire;

    begin_all(f);
    assert_int_equal(hps_grpc_call_charge(asking[0], MAX_BYTES, 0), HPS_OK);
    assert_int_equal(hps_grpc_call_charge(asking[1], 1, ALL_MAX_BYTES), HPS_AGAIN); /* alone */
    wire_open(&f->wire, &f->rig);
    f->id = 1;
    f->n_asking = 0;
    begin_all(f);
    assert_int_equal(hps_grpc_call_charge(asking[0], MAX_BYTES, 0), HPS_OK);
    assert_int_equal(hps_grpc_call_charge(asking[1], 1, MAX_BYTES + 1), HPS_EXHAUSTED);
    assert_int_equal(hps_grpc_call_charge(asking[2], 1, MAX_BYTES), HPS_AGAIN);
    wire_close(&first);
    RIG_UNTIL(&f->rig, f->rig.n_gone == 1); /* and what its line held is free */
    hps_grpc_call_finish(asking[2], 0, NULL);
    RIG_UNTIL(&f->rig, f->rig.n_ended[0] == 1);
    assert_int_equal(hps_grpc_call_charge(asking[3], 1, ALL_MAX_BYTES), HPS_AGAIN);
}

int main(void)
{
#define CHARGE_TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        CHARGE_TEST(test_charge_when_answers_take_as_much_as_they_may_then_the_next_waits),
        CHARGE_TEST(test_charge_when_an_answer_is_larger_than_all_then_is_alone),
        CHARGE_TEST(test_charge_when_who_waits_gives_up_then_the_next_goes),
        CHARGE_TEST(test_charge_when_its_call_is_over_then_counts_until_it_is_given_back),
        CHARGE_TEST(test_charge_when_its_connection_is_gone_then_may_still_be_given_back),
        CHARGE_TEST(test_charge_when_it_waits_at_its_deadline_then_leaves_the_line),
        CHARGE_TEST(test_charge_when_those_in_line_hold_much_then_the_next_is_refused),
        CHARGE_TEST(test_charge_when_who_waits_is_finished_then_holds_until_it_is_closed),
        CHARGE_TEST(test_charge_when_all_lines_hold_much_then_only_small_ones_stand),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

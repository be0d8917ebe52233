/* SPDX-License-Identifier: Apache-2.0
 *
 * How clients share a loop: slices of work, then calls and messages that take their time, and bytes
 * in as small pieces as a client can make. Time is the fake clock's. Test thread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/container.h"
#include "net/conn.h"
#include "net/run.h"
#include "net/tls.h"
#include "tests/lib/certs.h"
#include "tests/lib/fault_heap.h"
#include "tests/lib/grpc_rig.h"

enum { DATA = 0, PING = 6, WINDOW_UPDATE = 8, ACK = 1, END_STREAM = 1 };
enum { WORK_US = 100, N_CALLS = 8, PER_TURN = 3 }; /* the turn is over with the third call */

/* ---- slices ---------------------------------------------------------------------------------- */

enum { STEP_US = 20, CROWD = 100, STEPS_MAX = 4096 };

struct job {
    struct hps_run_item item;
    unsigned left; /* steps */
    char name;
    struct job *removes;   /* removed in the first slice */
    uint64_t preempted_us; /* in the first slice */
};

static struct {
    struct hps_run run;
    struct job jobs[CROWD + 1];
    char log[STEPS_MAX + 1]; /* the name of the job of each step */
} slices;

static void do_steps(struct hps_run_item *item, unsigned events)
{
    struct job *job = HPS_CONTAINER_OF(item, struct job, item);

    assert_int_equal(events, 2);
    if (job->removes != NULL) {
        hps_run_remove(&job->removes->item);
        job->removes = NULL;
    }
    if (job->preempted_us != 0) {
        hps_clock_preempt(job->preempted_us);
        job->preempted_us = 0;
    }
    while (job->left > 0 && !hps_run_is_spent(item->run)) {
        size_t n = strlen(slices.log);
        assert_true(n < STEPS_MAX);
        slices.log[n] = job->name;
        job->left--;
        hps_clock_advance(STEP_US);
        hps_run_see(item->run, hps_clock_us());
    }
    if (job->left > 0 && item->run->current == item) {
        hps_run_add(item, 2);
    }
}

static struct job *add_job(unsigned i, uint64_t client, char name, unsigned steps)
{
    struct job *job = &slices.jobs[i];

    *job = (struct job){.left = steps, .name = name};
    hps_run_item_init(&job->item, &slices.run, client, do_steps);
    hps_run_add(&job->item, 2);
    hps_run_add(&job->item, 2);
    return job;
}

static int slices_setup(void **state)
{
    (void)state;
    memset(&slices, 0, sizeof slices);
    hps_clock_fake(hps_clock_us());
    hps_run_init(&slices.run);
    return 0;
}

static int slices_teardown(void **state)
{
    (void)state;
    hps_clock_real();
    return 0;
}

static void test_slices_when_a_client_has_many_connections_then_another_waits_for_one_slice(
    void **state)
{
    (void)state;
    for (unsigned i = 0; i < CROWD; i++) {
        add_job(i, 1, 'm', 10);
    }
    add_job(CROWD, 2, 'o', 6);
    hps_run_turn(&slices.run);
    assert_string_equal(slices.log, "mmmmoooommmmoo"); /* 64 us are four steps */
    assert_false(hps_run_is_idle(&slices.run));
    while (!hps_run_is_idle(&slices.run)) {
        hps_run_turn(&slices.run);
    }
    assert_int_equal(strlen(slices.log), CROWD * 10 + 6);
}

static void test_slices_when_a_client_is_alone_then_one_lasts_the_turn(void **state)
{
    (void)state;
    add_job(0, 1, 'a', 22);
    hps_run_turn(&slices.run);
    assert_int_equal(strlen(slices.log), HPS_RUN_TURN_US / STEP_US + 1);
    add_job(1, 2, 'b', 3); /* from the next turn on they share */
    hps_run_turn(&slices.run);
    assert_string_equal(slices.log + HPS_RUN_TURN_US / STEP_US + 1, "aaaabbbaaaaa");
    assert_true(hps_run_is_idle(&slices.run));
}

static void test_slices_when_the_thread_is_preempted_then_the_client_does_not_pay(void **state)
{
    (void)state;
    add_job(0, 1, 'a', 9)->preempted_us = 10000;
    add_job(1, 2, 'b', 8);
    hps_run_turn(&slices.run);
    assert_string_equal(slices.log, "a");
    while (!hps_run_is_idle(&slices.run)) {
        hps_run_turn(&slices.run);
    }
    assert_string_equal(slices.log, "abbbbaaaabbbbaaaa");
}

static void test_slices_when_items_are_removed_then_no_further_ones(void **state)
{
    (void)state;
    struct job *first = add_job(0, 1, 'a', 100);
    struct job *second = add_job(1, 1, 'b', 100);
    first->removes = second;
    hps_run_turn(&slices.run);
    assert_null(strchr(slices.log, 'b'));
    first->removes = first;
    hps_run_turn(&slices.run);
    assert_true(hps_run_is_idle(&slices.run));
    assert_false(hps_run_is_added(&first->item) || hps_run_is_added(&second->item));
}

struct result {
    struct hps_task task;
    char name;
};

static void on_result(struct hps_task *task)
{
    slices.log[strlen(slices.log)] = HPS_CONTAINER_OF(task, struct result, task)->name;
    hps_clock_advance(STEP_US);
}

/* Results of work for a client wait for its slices. */
static void test_results_when_a_client_has_many_then_another_waits_for_one_slice(void **state)
{
    static struct result results[CROWD + 2];
    struct hps_loop *loop;

    (void)state;
    assert_int_equal(hps_loop_new(&loop, NULL), HPS_OK);
    for (unsigned i = 0; i < CROWD + 2; i++) {
        bool other = i == CROWD;
        results[i] = (struct result){.task.run = on_result, .name = other ? 'o' : 'm'};
        if (i > CROWD) {
            results[i].name = 'n'; /* of no client: at once */
            hps_loop_post(loop, &results[i].task);
        } else {
            hps_loop_post_for(loop, &results[i].task, other ? 2 : 1);
        }
    }
    hps_loop_turn(loop, 0);
    assert_memory_equal(slices.log, "nmmmmommmm", 10);
    assert_true(strlen(slices.log) < CROWD);
    hps_loop_free(loop);
    assert_int_equal(strlen(slices.log), CROWD + 2);
}

/* ---- calls ----------------------------------------------------------------------------------- */

struct fixture {
    struct rig rig;
    struct wire wire;
    struct hps_grpc_service service;
    uint32_t order[64]; /* what the messages said, as they were delivered */
    unsigned n;
    unsigned n_half_closes;
    unsigned pause_at; /* the stream is paused after this number; 0: never */
    struct hps_grpc_call *paused;
};

/* Takes its time, and answers. */
static void on_work(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    struct fixture *f = hps_grpc_call_ctx(call);

    hps_clock_advance(WORK_US);
    assert_int_equal(size, 1);
    assert_true(f->n < sizeof f->order / sizeof *f->order);
    f->order[f->n++] = data[0];
    hps_grpc_call_send_copy(call, data, size);
    hps_grpc_call_finish(call, 0, NULL);
}

/* Takes its time, and refuses. */
static void on_refuse(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    struct fixture *f = hps_grpc_call_ctx(call);

    (void)data;
    (void)size;
    hps_clock_advance(WORK_US);
    f->n++;
    hps_grpc_call_finish(call, 3, "no");
}

/* Takes its time, and keeps the message. */
static void on_keep(struct hps_grpc_call *call, const struct hps_grpc_packed *packed)
{
    struct fixture *f = hps_grpc_call_ctx(call);

    (void)packed;
    hps_clock_advance(WORK_US);
    f->n++;
    hps_grpc_call_keep_message(call);
}

static void on_streamed(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    struct fixture *f = hps_grpc_call_ctx(call);

    (void)data;
    (void)size;
    hps_clock_advance(WORK_US);
    f->n++;
    (void)call;
}

/* The same, of messages that are numbered. */
static void on_numbered(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    struct fixture *f = hps_grpc_call_ctx(call);

    hps_clock_advance(WORK_US);
    assert_int_equal(size, 2);
    assert_int_equal(data[0] << 8 | data[1], f->n);
    f->n++;
    if (f->n == f->pause_at) {
        hps_grpc_call_pause(call, true);
        f->paused = call;
    }
}

static void on_half_close(struct hps_grpc_call *call)
{
    struct fixture *f = hps_grpc_call_ctx(call);

    f->n_half_closes++;
    hps_grpc_call_finish(call, 0, NULL);
}

static const struct hps_grpc_method methods[] = {
    {.path = "/w.W/Work", .on_message = on_work},
    {.path = "/w.W/Refuse", .on_message = on_refuse},
    {.path = "/w.W/Keep", .on_packed = on_keep},
    {.path = "/w.W/Stream",
     .client_streaming = true,
     .on_message = on_streamed,
     .on_half_close = on_half_close},
    {.path = "/w.W/Numbers",
     .client_streaming = true,
     .on_message = on_numbered,
     .on_half_close = on_half_close},
};

static void wire_ready(struct wire *wire, struct rig *rig)
{
    wire_open(wire, rig);
    wire_take_settings(wire);
    wire_pump(wire);
}

static void fixture_open(struct fixture *f)
{
    memset(f, 0, sizeof *f);
    hps_clock_fake(hps_clock_us());
    rig_open(&f->rig, &rig_limits);
    f->service = (struct hps_grpc_service){"w.W", methods, sizeof methods / sizeof *methods, f};
    assert_int_equal(hps_grpc_server_add(f->rig.server, &f->service, 1), HPS_OK);
    wire_ready(&f->wire, &f->rig);
}

static void fixture_close(struct fixture *f)
{
    wire_close(&f->wire);
    rig_close(&f->rig);
    hps_clock_real();
}

static int setup(void **state)
{
    static struct fixture f;

    fixture_open(&f);
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    fixture_close(*state);
    return 0;
}

/* N_CALLS calls in one piece: headers and bodies one by one, or all headers first. */
static void send_calls(struct wire *wire, const char *path, bool headers_first)
{
    for (unsigned i = 0; i < 2 * N_CALLS; i++) {
        unsigned call = headers_first ? i % N_CALLS : i / 2;
        bool headers = headers_first ? i < N_CALLS : i % 2 == 0;
        const uint8_t message[6] = {0, 0, 0, 0, 1, (uint8_t)call};
        if (headers) {
            assert_true(wire_request(wire, 2 * call + 1, path, false, NULL));
        } else {
            assert_true(wire_frame(wire, DATA, END_STREAM, 2 * call + 1, message, sizeof message));
        }
    }
}

static void check_calls(const char *path, bool headers_first)
{
    struct fixture f;

    fixture_open(&f);
    send_calls(&f.wire, path, headers_first);
    for (unsigned n = PER_TURN; n < N_CALLS; n += PER_TURN) {
        rig_turn(&f.rig);
        assert_int_equal(f.n, n);
    }
    rig_turn(&f.rig);
    assert_int_equal(f.n, N_CALLS);
    fixture_close(&f);
}

static void test_calls_when_they_take_long_then_some_in_each_turn(void **state)
{
    (void)state;
    check_calls("/w.W/Work", false);
    check_calls("/w.W/Work", true);
    check_calls("/w.W/Refuse", false);
    check_calls("/w.W/Refuse", true);
    check_calls("/w.W/Keep", true);
}

static void test_calls_when_held_for_a_turn_then_in_order_and_all_answered(void **state)
{
    struct fixture *f = *state;

    send_calls(&f->wire, "/w.W/Work", false);
    WIRE_UNTIL(&f->wire, f->rig.n_ended[0] == N_CALLS);
    for (unsigned i = 0; i < N_CALLS; i++) {
        assert_int_equal(f->order[i], i);
    }
}

static void test_calls_when_another_client_takes_long_then_served_in_the_same_turn(void **state)
{
    static const uint8_t message[6] = {0, 0, 0, 0, 1, 99};
    struct fixture *f = *state;
    struct wire other;
    bool seen = false;

    wire_open_tcp(&other, &f->rig); /* the first one is of a Unix user */
    wire_take_settings(&other);
    wire_pump(&other);
    send_calls(&f->wire, "/w.W/Work", false);
    assert_true(wire_request(&other, 1, "/w.W/Work", false, NULL));
    assert_true(wire_frame(&other, DATA, END_STREAM, 1, message, sizeof message));
    rig_turn(&f->rig);
    assert_int_equal(f->n, PER_TURN);
    for (unsigned i = 0; i < f->n; i++) {
        seen = seen || f->order[i] == 99;
    }
    assert_true(seen);
    wire_close(&other);
}

/* It is not polled until it has had its slice. */
static void test_connection_when_queued_for_several_turns_then_it_reads_on(void **state)
{
    struct fixture *f = *state;
    struct wire other;

    wire_ready(&other, &f->rig);
    send_calls(&f->wire, "/w.W/Work", true);
    rig_turn(&f->rig);
    for (uint32_t i = 0; i < 3; i++) {
        wire_call(&other, 2 * i + 1, "/w.W/Work", NULL, "x", 1);
        rig_turn(&f->rig);
    }
    WIRE_UNTIL(&other, f->rig.n_ended[0] == N_CALLS + 3);
    wire_call(&other, 7, "/w.W/Work", NULL, "x", 1);
    WIRE_UNTIL(&other, f->rig.n_ended[0] == N_CALLS + 4);
    wire_close(&other);
}

static void test_connection_when_lost_while_calls_are_held_then_they_are_gone(void **state)
{
    struct fixture *f = *state;

    send_calls(&f->wire, "/w.W/Work", false);
    rig_turn(&f->rig);
    wire_close(&f->wire);
    RIG_UNTIL(&f->rig, f->rig.n_connections == 0);
}

static void test_messages_of_a_stream_when_they_take_long_then_some_in_each_turn(void **state)
{
    static const uint8_t messages[N_CALLS * 6];
    uint8_t bytes[sizeof messages];
    struct fixture *f = *state;

    memcpy(bytes, messages, sizeof bytes);
    for (unsigned i = 0; i < N_CALLS; i++) {
        bytes[6 * i + 4] = 1;
    }
    assert_true(wire_request(&f->wire, 1, "/w.W/Stream", false, NULL));
    assert_true(wire_frame(&f->wire, DATA, END_STREAM, 1, bytes, sizeof bytes));
    for (unsigned n = PER_TURN; n < N_CALLS; n += PER_TURN) {
        rig_turn(&f->rig);
        assert_int_equal(f->n, n);
        assert_int_equal(f->n_half_closes, 0);
    }
    WIRE_UNTIL(&f->wire, f->n_half_closes == 1);
    assert_int_equal(f->n, N_CALLS);
    WIRE_UNTIL(&f->wire, f->rig.n_ended[0] == 1);
}

enum { NUMBER_BYTES = 7 };

/* n messages, each of two bytes that say which it is. */
static void put_numbers(uint8_t *bytes, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        const uint8_t message[NUMBER_BYTES] = {0, 0, 0, 0, 2, (uint8_t)(i >> 8), (uint8_t)i};
        memcpy(bytes + (size_t)NUMBER_BYTES * i, message, NUMBER_BYTES);
    }
}

/* Thousands of small messages that wait are not moved about for each turn in which some of them are
 * delivered: that would be the square of their number. Later ones are cut anywhere. */
static void test_messages_of_a_stream_when_thousands_wait_then_they_stay_where_they_are(
    void **state)
{
    enum { N = 6000, PIECE = 1000 };
    static uint8_t bytes[N * NUMBER_BYTES];
    struct fixture f;
    size_t sent = 0;

    (void)state;
    put_numbers(bytes, N);
    hps_fault_heap_install(0);
    fixture_open(&f);
    assert_true(wire_request(&f.wire, 1, "/w.W/Numbers", false, NULL));
    for (; sent < sizeof bytes / 2; sent += PIECE) {
        assert_true(wire_frame(&f.wire, DATA, 0, 1, bytes + sent, PIECE));
    }
    RIG_UNTIL(&f.rig, f.n > 100);
    size_t before = hps_fault_heap_allocations();
    RIG_UNTIL(&f.rig, f.n > 2000);
    assert_true(hps_fault_heap_allocations() - before < 100);
    for (; sent < sizeof bytes; sent += PIECE) {
        assert_true(wire_frame(&f.wire, DATA, sent + PIECE == sizeof bytes ? END_STREAM : 0, 1,
                               bytes + sent, PIECE));
        rig_turn(&f.rig);
    }
    WIRE_UNTIL(&f.wire, f.n_half_closes == 1);
    assert_int_equal(f.n, N);
    fixture_close(&f);
    assert_int_equal(hps_fault_heap_live(), 0);
    hps_fault_heap_remove();
}

/* Messages that were delivered leave no memory behind, as long as a few of them wait: for them
 * nothing would be counted. */
static void test_messages_of_a_stream_when_few_of_thousands_still_wait_then_little_memory_is_held(
    void **state)
{
    enum { N = 6000, LEFT = 10 };
    static uint8_t bytes[N * NUMBER_BYTES];
    struct fixture f;

    (void)state;
    put_numbers(bytes, N);
    hps_fault_heap_install(0);
    fixture_open(&f);
    f.pause_at = 1;
    assert_true(wire_request(&f.wire, 1, "/w.W/Numbers", false, NULL));
    assert_true(wire_frame(&f.wire, DATA, 0, 1, bytes, LEFT * NUMBER_BYTES));
    RIG_UNTIL(&f.rig, f.n == 1);
    size_t before = hps_fault_heap_live_bytes();
    f.pause_at = N - LEFT;
    hps_grpc_call_pause(f.paused, false);
    for (size_t at = LEFT * NUMBER_BYTES; at < sizeof bytes; at += 16 * 1024) {
        size_t size = sizeof bytes - at < 16 * 1024 ? sizeof bytes - at : 16 * 1024;
        assert_true(wire_frame(&f.wire, DATA, at + size == sizeof bytes ? END_STREAM : 0, 1,
                               bytes + at, size));
    }
    WIRE_UNTIL(&f.wire, f.n == N - LEFT);
    wire_pump(&f.wire);
    assert_in_range(hps_fault_heap_live_bytes(), before - 4096, before + 4096);
    hps_grpc_call_pause(f.paused, false);
    WIRE_UNTIL(&f.wire, f.n_half_closes == 1);
    assert_int_equal(f.n, N);
    fixture_close(&f);
    assert_int_equal(hps_fault_heap_live(), 0);
    hps_fault_heap_remove();
}

/* Messages of two streams wait. The first stream takes the whole turn and is done. */
static void test_messages_of_two_streams_when_one_takes_the_turn_then_the_other_goes_on(
    void **state)
{
    uint8_t bytes[2 * PER_TURN * 6] = {0};
    struct fixture *f = *state;

    for (unsigned i = 0; i < 2 * PER_TURN; i++) {
        bytes[6 * i + 4] = 1;
    }
    assert_true(wire_request(&f->wire, 1, "/w.W/Stream", false, NULL));
    assert_true(wire_request(&f->wire, 3, "/w.W/Stream", false, NULL));
    assert_true(wire_frame(&f->wire, DATA, END_STREAM, 1, bytes, sizeof bytes));
    assert_true(wire_frame(&f->wire, DATA, END_STREAM, 3, bytes, sizeof bytes / 2));
    for (unsigned turn = 1; turn <= 3; turn++) {
        rig_turn(&f->rig);
        assert_int_equal(f->n, turn * PER_TURN);
    }
    WIRE_UNTIL(&f->wire, f->n_half_closes == 2);
}

/* 64 KB of the smallest frames are a turn's work, though a megabyte of large ones is. */
static void test_frames_when_tiny_then_few_kilobytes_in_a_turn(void **state)
{
    enum { FRAME_BYTES = 13, N_FRAMES = 8000 };
    static uint8_t bytes[N_FRAMES * FRAME_BYTES];
    struct fixture *f = *state;

    for (unsigned i = 0; i < N_FRAMES; i++) {
        uint8_t *frame = bytes + (size_t)i * FRAME_BYTES;
        frame[2] = 4;
        frame[3] = WINDOW_UPDATE;
        frame[12] = 1;
    }
    assert_true(wire_send(&f->wire, bytes, sizeof bytes));
    assert_true(wire_frame(&f->wire, PING, 0, 0, "12345678", 8));
    wire_pump(&f->wire);
    assert_false(wire_find(&f->wire, PING, 0, NULL, NULL));
    WIRE_UNTIL(&f->wire, wire_find(&f->wire, PING, 0, NULL, NULL));
    assert_false(f->wire.closed);
}

/* ---- TLS ------------------------------------------------------------------------------------- */

static void on_ready(void *ctx, unsigned events)
{
    (void)ctx;
    (void)events;
}

/* Each byte in a separate record. */
static void write_bytes(struct hps_conn *conn, const void *data, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        struct iovec iov = {.iov_base = (uint8_t *)(uintptr_t)data + i, .iov_len = 1};
        size_t written = 0;
        assert_int_equal(hps_conn_writev(conn, &iov, 1, &written), HPS_OK);
        assert_int_equal(written, 1);
    }
}

static void test_records_when_of_one_byte_then_a_read_is_what_counts(void **state)
{
    enum { N_MESSAGES = 400, BODY_BYTES = 5 * N_MESSAGES, READS_MAX = 300 };
    /* preface, SETTINGS, and HEADERS of a POST to /t.T/Count, without compression */
    static const char begin[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
                                "\0\0\0\4\0\0\0\0\0"
                                "\0\0\x33\1\4\0\0\0\1"
                                "\x83\x86\x01\x04test\x04\x0a/t.T/Count"
                                "\x00\x0c"
                                "content-type\x10"
                                "application/grpc"
                                "\0\7\xd0\0\0\0\0\0\1";
    static const uint8_t body[BODY_BYTES];
    struct hps_certs certs;
    struct hps_tls *client_tls;
    struct hps_conn *conn;
    struct hps_error err;
    struct rig rig;

    (void)state;
    hps_certs_make(&certs);
    const struct hps_tls_options server = {
        .server = true, .cert_file = certs.server_cert, .key_file = certs.server_key};
    const struct hps_tls_options client = {.ca_file = certs.ca};
    rig_open(&rig, &rig_limits);
    assert_int_equal(hps_tls_new(&server, &rig.tls, NULL), HPS_OK);
    assert_int_equal(hps_tls_new(&client, &client_tls, NULL), HPS_OK);
    assert_int_equal(hps_conn_connect(rig.address, client_tls, &conn, &err), HPS_OK);
    assert_int_equal(hps_conn_attach(conn, rig.loop, 0, on_ready, NULL), HPS_OK);
    RIG_UNTIL(&rig, hps_conn_handshake(conn, &err) != HPS_AGAIN && rig.n_connections == 1);
    struct iovec iov = {.iov_base = (void *)(uintptr_t)begin, .iov_len = sizeof begin - 1};
    size_t written = 0;
    assert_int_equal(hps_conn_writev(conn, &iov, 1, &written), HPS_OK);
    assert_int_equal(written, iov.iov_len);
    for (unsigned i = 0; i < 4; i++) {
        rig_turn(&rig);
    }
    write_bytes(conn, body, sizeof body);
    rig_turn(&rig);
    assert_true(rig.n_messages <= READS_MAX / 5);
    RIG_UNTIL(&rig, rig.n_messages == N_MESSAGES);
    hps_conn_free(conn);
    rig_close(&rig);
    hps_tls_unref(rig.tls);
    hps_tls_unref(client_tls);
    hps_certs_remove(&certs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name)   cmocka_unit_test_setup_teardown(name, setup, teardown)
#define SLICES(name) cmocka_unit_test_setup_teardown(name, slices_setup, slices_teardown)
        SLICES(test_slices_when_a_client_has_many_connections_then_another_waits_for_one_slice),
        SLICES(test_slices_when_a_client_is_alone_then_one_lasts_the_turn),
        SLICES(test_slices_when_the_thread_is_preempted_then_the_client_does_not_pay),
        SLICES(test_slices_when_items_are_removed_then_no_further_ones),
        SLICES(test_results_when_a_client_has_many_then_another_waits_for_one_slice),
        cmocka_unit_test(test_calls_when_they_take_long_then_some_in_each_turn),
        TEST(test_calls_when_held_for_a_turn_then_in_order_and_all_answered),
        TEST(test_calls_when_another_client_takes_long_then_served_in_the_same_turn),
        TEST(test_connection_when_queued_for_several_turns_then_it_reads_on),
        TEST(test_connection_when_lost_while_calls_are_held_then_they_are_gone),
        TEST(test_messages_of_a_stream_when_they_take_long_then_some_in_each_turn),
        cmocka_unit_test(
            test_messages_of_a_stream_when_thousands_wait_then_they_stay_where_they_are),
        cmocka_unit_test(
            test_messages_of_a_stream_when_few_of_thousands_still_wait_then_little_memory_is_held),
        TEST(test_messages_of_two_streams_when_one_takes_the_turn_then_the_other_goes_on),
        TEST(test_frames_when_tiny_then_few_kilobytes_in_a_turn),
        cmocka_unit_test(test_records_when_of_one_byte_then_a_read_is_what_counts),
    };
    return cmocka_run_group_tests_name("run", tests, NULL, NULL);
}

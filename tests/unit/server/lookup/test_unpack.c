/* SPDX-License-Identifier: Apache-2.0
 *
 * Lookup messages on a real server: which are unpacked on the loop, which by a worker, and the
 * cleanup after their client disconnects. Tests block the only worker; replies during that time
 * come from the loop.
 */
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/log.h"
#include "hps/v1/lookup.pb-c.h"
#include "net/grpc_internal.h"
#include "server/lookup/service.h"
#include "tests/lib/grpc_rig.h"
#include "tests/lib/gzip_program.h"
#include "tests/lib/lookup_fixture.h"

enum {
    SMALL_BYTES = 4096, /* decoded on the loop */
    FEW_KEYS = 10,
    MANY_KEYS = 2000, /* 16 KB */
    VERY_MANY_KEYS = 65000 /* more than a quick task unpacks */,
    QUEUE_MAX = 2,
};

/* Blocks the worker. */
struct holdup {
    struct hps_task task;
    sem_t begun, over;
};

struct unpack_test {
    struct fixture fx;
    struct rig rig;
    struct wire wire;
    struct holdup holdup;
    struct hps_models *models;
    struct hps_pool *workers;
    struct hps_block_pool *blocks;
    struct hps_slowlog *slowlog;
    struct hps_metrics *metrics;
    struct hps_service_metrics series;
    struct hps_lookup_service *service;
    uint32_t next_stream;
    uint8_t body[9 * VERY_MANY_KEYS];
    size_t size;
};

static void run_holdup(struct hps_task *task)
{
    struct holdup *holdup = (struct holdup *)task;

    sem_post(&holdup->begun);
    sem_wait(&holdup->over);
}

static void run_begun(struct hps_task *task)
{
    sem_post(&((struct holdup *)task)->begun);
}

static void hold_up(struct unpack_test *t)
{
    assert_int_equal(hps_pool_post(t->workers, &t->holdup.task), HPS_OK);
    sem_wait(&t->holdup.begun);
}

static int setup(void **state)
{
    struct unpack_test *t = hps_calloc(1, sizeof(*t));
    assert_non_null(t);
    hps_log_level_set(HPS_LOG_ERROR);
    fixture_open(&t->fx, 0);
    rig_open(&t->rig, &rig_limits);
    t->models = hps_models_new();
    t->blocks = hps_block_pool_new(1 << 20);
    t->slowlog = hps_slowlog_new(0);
    t->metrics = hps_server_metrics_new();
    assert_non_null(t->models);
    assert_non_null(t->metrics);
    const struct hps_pool_options pool = {
        .name = "work", .n_threads = 1, .n_quick = *state != NULL ? 1 : 0, .queue_max = QUEUE_MAX};
    assert_int_equal(hps_pool_start(&pool, &t->workers), HPS_OK);
    hps_service_metrics_fill(t->metrics, &t->series);
    assert_int_equal(hps_models_add(t->models, &t->fx.version), HPS_OK);
    assert_int_equal(hps_models_activate(t->models, "m", 7), HPS_OK);
    struct hps_lookup_service_parts parts = {.models = t->models,
                                             .workers = t->workers,
                                             .io = t->workers,
                                             .blocks = t->blocks,
                                             .slowlog = t->slowlog,
                                             .metrics = &t->series,
                                             .limits = HPS_LOOKUP_LIMITS_DEFAULT};
    parts.limits.inline_message_bytes = SMALL_BYTES;
    t->service = hps_lookup_service_new(&parts);
    assert_non_null(t->service);
    assert_int_equal(hps_grpc_server_add(t->rig.server, hps_lookup_service_grpc(t->service), 1),
                     HPS_OK);
    sem_init(&t->holdup.begun, 0, 0);
    sem_init(&t->holdup.over, 0, 0);
    t->holdup.task.run = run_holdup;
    t->next_stream = 1;
    for (hps_key key = 0; key < FEW_KEYS; key++) {
        fixture_put(&t->fx, FIXTURE_HOST, 0, key);
    }
    wire_open(&t->wire, &t->rig);
    *state = t;
    return 0;
}

static int teardown(void **state)
{
    struct unpack_test *t = *state;

    sem_post(&t->holdup.over); /* a failed test may still block it */
    wire_close(&t->wire);
    RIG_UNTIL(&t->rig, t->rig.n_connections == 0);
    assert_int_equal(rig_request_bytes(&t->rig), 0);
    hps_pool_free(t->workers);
    rig_close(&t->rig);
    assert_true(hps_metric_value(t->series.requests_in_flight) == 0);
    assert_int_equal(hps_block_pool_bytes(t->blocks), 0);
    assert_true(hps_version_idle(&t->fx.version));
    hps_lookup_service_free(t->service);
    hps_slowlog_free(t->slowlog);
    hps_block_pool_free(t->blocks);
    assert_int_equal(hps_models_remove(t->models, "m", 7), HPS_OK);
    hps_models_free(t->models);
    hps_metrics_free(t->metrics);
    fixture_close(&t->fx);
    sem_destroy(&t->holdup.begun);
    sem_destroy(&t->holdup.over);
    hps_free(t);
    hps_log_level_set(HPS_LOG_INFO);
    return 0;
}

/* Make a request for n_keys keys, FEW_KEYS of them distinct. */
static void make_request(struct unpack_test *t, uint32_t n_keys)
{
    Hps__V1__TableQuery query = HPS__V1__TABLE_QUERY__INIT;
    Hps__V1__TableQuery *queries[] = {&query};
    Hps__V1__LookupRequest request = HPS__V1__LOOKUP_REQUEST__INIT;
    static hps_key keys[VERY_MANY_KEYS];

    assert_true(n_keys <= VERY_MANY_KEYS);
    for (uint32_t i = 0; i < n_keys; i++) {
        keys[i] = i % FEW_KEYS;
    }
    query.table = (char *)"t0";
    query.keys.data = (uint8_t *)keys;
    query.keys.len = n_keys * sizeof(hps_key);
    request.model = (char *)"m";
    request.queries = queries;
    request.n_queries = 1;
    t->size = hps__v1__lookup_request__get_packed_size(&request);
    assert_true(t->size <= sizeof(t->body));
    hps__v1__lookup_request__pack(&request, t->body);
}

static void compress(struct unpack_test *t)
{
    static uint8_t packed[sizeof(t->body)];
    size_t size = hps_gzip_program(t->body, t->size, packed, sizeof(packed));

    memcpy(t->body, packed, size);
    t->size = size;
}

/* Send the request. extra: more headers, ends with NULL */
static uint32_t start_with(struct unpack_test *t, bool compressed, const char *const *extra)
{
    const uint8_t prefix[5] = {compressed, 0, 0, (uint8_t)(t->size >> 8), (uint8_t)t->size};
    uint32_t id = t->next_stream;

    t->next_stream += 2;
    assert_true(wire_request(&t->wire, id, "/hps.v1.ParameterServer/Lookup", false, extra));
    assert_true(wire_frame(&t->wire, 0, 0, id, prefix, sizeof(prefix)));
    for (size_t at = 0; at < t->size; at += 8192) {
        size_t size = t->size - at < 8192 ? t->size - at : 8192;
        assert_true(wire_frame(&t->wire, 0, at + size == t->size, id, t->body + at, size));
    }
    return id;
}

static uint32_t start(struct unpack_test *t, bool compressed)
{
    static const char *const gzip[] = {"grpc-encoding", "gzip", NULL};

    return start_with(t, compressed, compressed ? gzip : NULL);
}

static unsigned n_ended(const struct unpack_test *t)
{
    unsigned n = 0;

    for (unsigned i = 0; i < 17; i++) {
        n += t->rig.n_ended[i];
    }
    return n;
}

/* Unblock the worker, and wait until a call ends with this code. */
static void finish(struct unpack_test *t, int code)
{
    unsigned before = t->rig.n_ended[code];

    sem_post(&t->holdup.over);
    WIRE_UNTIL(&t->wire, t->rig.n_ended[code] > before);
}

static void test_message_when_small_then_unpacked_on_the_loop(void **state)
{
    struct unpack_test *t = *state;

    hold_up(t);
    make_request(t, FEW_KEYS);
    start(t, false);
    WIRE_UNTIL(&t->wire, t->rig.n_ended[0] == 1);
    compress(t);
    start(t, true);
    WIRE_UNTIL(&t->wire, t->rig.n_ended[0] == 2);
    sem_post(&t->holdup.over);
}

static void check_worker(struct unpack_test *t, bool compressed)
{
    hold_up(t);
    start(t, compressed);
    WIRE_UNTIL(&t->wire, hps_pool_depth(t->workers) == 1);
    assert_int_equal(n_ended(t), 0);
    assert_true(hps_version_idle(&t->fx.version)); /* not unpacked yet */
    assert_int_equal(rig_request_bytes(&t->rig), grpc_call_charged_bytes(t->size));
    finish(t, 0);
    assert_int_equal(rig_request_bytes(&t->rig), 0);
}

static void test_message_when_large_then_a_worker_unpacks_it_and_its_bytes_count(void **state)
{
    struct unpack_test *t = *state;

    make_request(t, MANY_KEYS);
    check_worker(t, false);
}

static void test_message_when_its_trailer_names_a_large_size_then_a_worker_unpacks_it(void **state)
{
    struct unpack_test *t = *state;

    make_request(t, MANY_KEYS);
    compress(t);
    assert_true(t->size < SMALL_BYTES);
    check_worker(t, true);
}

/* The loop stops after SMALL_BYTES of output. A worker finds the wrong size at the end. */
static void test_message_when_its_trailer_names_a_wrong_size_then_a_worker_refuses_it(void **state)
{
    struct unpack_test *t = *state;

    make_request(t, MANY_KEYS);
    compress(t);
    memset(t->body + t->size - 4, 0, 4);
    hold_up(t);
    start(t, true);
    WIRE_UNTIL(&t->wire, hps_pool_depth(t->workers) == 1);
    assert_int_equal(n_ended(t), 0);
    finish(t, 13);
}

/* Let the thread for quick tasks run an empty task of another client. */
static void run_quick_task(struct unpack_test *t)
{
    struct holdup next = {.task.run = run_begun};
    struct hps_error err;

    sem_init(&next.begun, 0, 0);
    while (hps_pool_post_for(t->workers, &next.task, 1, 0, &err) != HPS_OK) {
    }
    sem_wait(&next.begun);
    sem_destroy(&next.begun);
}

static bool is_queued(struct unpack_test *t)
{
    run_quick_task(t);
    return hps_pool_depth(t->workers) == 1;
}

/* The thread for quick tasks stops unpacking after the bytes of a quick task, and queues the
 * message for the worker. */
static void test_message_when_its_trailer_names_a_wrong_size_then_it_is_not_quick(void **state)
{
    struct unpack_test *t = *state;

    make_request(t, VERY_MANY_KEYS);
    compress(t);
    memset(t->body + t->size - 4, 0, 4);
    hold_up(t);
    start(t, true);
    WIRE_UNTIL(&t->wire, is_queued(t)); /* either thread may take it */
    assert_true(is_queued(t));          /* still, although the quick thread was idle */
    rig_turn(&t->rig);
    assert_int_equal(n_ended(t), 0);
    finish(t, 13);
}

static void test_message_when_it_is_bad_then_refused_by_the_loop_or_the_worker(void **state)
{
    struct unpack_test *t = *state;

    hold_up(t);
    make_request(t, FEW_KEYS);
    compress(t);
    t->body[t->size / 2] ^= 0xff;
    start(t, true);
    WIRE_UNTIL(&t->wire, t->rig.n_ended[13] == 1);
    make_request(t, MANY_KEYS);
    t->body[0] = 0xff;
    start(t, false);
    WIRE_UNTIL(&t->wire, hps_pool_depth(t->workers) == 1);
    finish(t, 3);
}

/* Change the body to zlib with a wrong checksum of 0. */
static void make_zlib(struct unpack_test *t)
{
    enum { GZIP_HEAD = 10, GZIP_TRAILER = 8 };

    t->size -= GZIP_HEAD + GZIP_TRAILER;
    memmove(t->body + 2, t->body + GZIP_HEAD, t->size);
    memcpy(t->body, "\x78\x9c", 2);
    memset(t->body + 2 + t->size, 0, 4);
    t->size += 2 + 4;
}

/* All inflated bytes count, also if the trailer names fewer or is missing. */
static void test_message_when_it_inflates_beyond_the_memory_limit_then_refused(void **state)
{
    static const char *const encodings[][3] = {{"grpc-encoding", "gzip"},
                                               {"grpc-encoding", "gzip"}, /* with a wrong trailer */
                                               {"grpc-encoding", "deflate"}};
    struct unpack_test *t = *state;

    for (unsigned i = 0; i < 3; i++) {
        unsigned before = n_ended(t);
        unsigned refused = t->rig.n_ended[8];
        make_request(t, VERY_MANY_KEYS);
        rig_request_bytes_max(&t->rig, t->size);
        compress(t);
        if (i == 1) {
            memset(t->body + t->size - 4, 0, 4);
        } else if (i == 2) {
            make_zlib(t);
        }
        hold_up(t);
        start_with(t, true, encodings[i]);
        start_with(t, true, encodings[i]); /* so that no call is alone */
        WIRE_UNTIL(&t->wire, hps_pool_depth(t->workers) == 2);
        sem_post(&t->holdup.over);
        WIRE_UNTIL(&t->wire, t->rig.n_ended[8] > refused && n_ended(t) == before + 2);
        assert_int_equal(rig_request_bytes(&t->rig), 0);
    }
}

static void test_message_when_workers_are_busy_then_refused_and_dropped(void **state)
{
    struct unpack_test *t = *state;

    hold_up(t);
    make_request(t, MANY_KEYS);
    for (unsigned i = 0; i <= QUEUE_MAX; i++) {
        start(t, false);
    }
    WIRE_UNTIL(&t->wire, t->rig.n_ended[8] == 1);
    assert_int_equal(rig_request_bytes(&t->rig), QUEUE_MAX * t->size);
    sem_post(&t->holdup.over);
    WIRE_UNTIL(&t->wire, t->rig.n_ended[0] == QUEUE_MAX);
}

static bool has_held(const struct unpack_test *t)
{
    const struct grpc_conn *conn = t->rig.grpc_loop->conns;

    while (conn != NULL && TAILQ_EMPTY(&conn->held)) {
        conn = conn->next;
    }
    return conn != NULL;
}

/* The first lookup waits for memory that another connection holds, and fills the quota of its
 * connection. So the second lookup waits until the first one gives up. */
static void test_message_when_the_reply_before_it_gets_no_memory_then_it_continues(void **state)
{
    struct unpack_test *t = *state;
    struct wire other;

    hps_clock_fake(hps_clock_us());
    t->rig.memory.connection_max[HPS_LIMIT_REPLIES] = 1;
    rig_reply_bytes_max(&t->rig, 1);
    wire_open(&other, &t->rig);
    wire_call(&other, 1, "/t.T/Charge", NULL, "\2\0\0\0", 4);
    WIRE_UNTIL(&other, t->rig.n_charged == 1);
    make_request(t, FEW_KEYS);
    start(t, false);
    start(t, false);
    WIRE_UNTIL(&t->wire, has_held(t));
    hps_clock_advance(251 * 1000);
    WIRE_UNTIL(&t->wire, t->rig.n_ended[8] == 1);
    rig_discharge(&t->rig);
    WIRE_UNTIL(&t->wire, t->rig.n_ended[0] == 1);
    wire_close(&other);
    hps_clock_real();
}

static void test_message_when_its_client_disconnects_in_the_queue_then_withdrawn(void **state)
{
    struct unpack_test *t = *state;

    make_request(t, MANY_KEYS);
    hold_up(t);
    uint32_t id = start(t, false);
    WIRE_UNTIL(&t->wire, hps_pool_depth(t->workers) == 1);
    assert_true(wire_frame(&t->wire, 3, 0, id, "\0\0\0\x8", 4));
    WIRE_UNTIL(&t->wire, t->rig.n_ended[1] == 1);
    assert_int_equal(hps_pool_depth(t->workers), 0);
    assert_int_equal(rig_request_bytes(&t->rig), 0);
    sem_post(&t->holdup.over);
}

/* Leave a reply unread, so that later output stays in the server. */
static void block_socket(struct unpack_test *t)
{
    static const uint8_t wide[] = {0, 4, 1, 0, 0, 0};
    static const uint8_t request[] = {0, 0, 0, 0, 4, 0, 0, 0x40, 0}; /* for 4 MB */

    assert_true(wire_frame(&t->wire, 4, 0, 0, wide, sizeof(wide)));
    assert_true(wire_frame(&t->wire, 8, 0, 0, wide + 2, 4));
    assert_true(wire_request(&t->wire, t->next_stream, "/t.T/Big", false, NULL));
    assert_true(wire_frame(&t->wire, 0, 1, t->next_stream, request, sizeof(request)));
    t->next_stream += 2;
    RIG_UNTIL(&t->rig, t->rig.n_messages == 1);
    for (unsigned i = 0; i < 10; i++) {
        rig_turn(&t->rig);
    }
    assert_true(hps_grpc_loop_bytes_in_flight(t->rig.grpc_loop) > 0);
}

static void test_message_when_its_deadline_passes_in_the_queue_then_no_memory_is_requested(
    void **state)
{
    static const char *const timeout[] = {"grpc-timeout", "1S", NULL};
    struct unpack_test *t = *state;

    hps_clock_fake(hps_clock_us());
    block_socket(t);
    make_request(t, MANY_KEYS);
    hold_up(t);
    start_with(t, false, timeout);
    RIG_UNTIL(&t->rig, hps_pool_depth(t->workers) == 1);
    hps_clock_advance(2 * 1000 * 1000);
    rig_turn(&t->rig); /* ended, but its status cannot be sent */
    assert_int_equal(n_ended(t), 0);
    sem_post(&t->holdup.over);
    RIG_UNTIL(&t->rig, rig_request_bytes(&t->rig) == 0);
    WIRE_UNTIL(&t->wire, t->rig.n_ended[4] == 1);
    WIRE_UNTIL(&t->wire, hps_limits_used(t->rig.accounts, HPS_LIMIT_REPLIES) == 0);
    hps_clock_real();
}

/* A worker unpacks the message, and then the same pool reads the store. At either step, a
 * disconnect releases everything. */
static void test_message_when_its_connection_closes_then_all_is_released(void **state)
{
    struct unpack_test *t = *state;

    make_request(t, MANY_KEYS);
    start(t, false);
    start(t, false);
    rig_turn(&t->rig);
    rig_turn(&t->rig);
}

int main(void)
{
#define UNPACK_TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    static bool with_quick_thread = true;
    const struct CMUnitTest tests[] = {
        UNPACK_TEST(test_message_when_small_then_unpacked_on_the_loop),
        UNPACK_TEST(test_message_when_large_then_a_worker_unpacks_it_and_its_bytes_count),
        UNPACK_TEST(test_message_when_its_trailer_names_a_large_size_then_a_worker_unpacks_it),
        UNPACK_TEST(test_message_when_its_trailer_names_a_wrong_size_then_a_worker_refuses_it),
        cmocka_unit_test_prestate_setup_teardown(
            test_message_when_its_trailer_names_a_wrong_size_then_it_is_not_quick, setup, teardown,
            &with_quick_thread),
        UNPACK_TEST(test_message_when_it_is_bad_then_refused_by_the_loop_or_the_worker),
        UNPACK_TEST(test_message_when_it_inflates_beyond_the_memory_limit_then_refused),
        UNPACK_TEST(test_message_when_workers_are_busy_then_refused_and_dropped),
        UNPACK_TEST(test_message_when_the_reply_before_it_gets_no_memory_then_it_continues),
        UNPACK_TEST(test_message_when_its_client_disconnects_in_the_queue_then_withdrawn),
        UNPACK_TEST(test_message_when_its_deadline_passes_in_the_queue_then_no_memory_is_requested),
        UNPACK_TEST(test_message_when_its_connection_closes_then_all_is_released),
    };
    return cmocka_run_group_tests_name("lookup_unpack", tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The lookup service: times of stages, streams, devices, and unit lookups during updates.
 */
#include "tests/lib/service_rig.h"

#include <semaphore.h>

static bool is_held(const struct hps_version *version)
{
    hps_lock_acquire(&version->updates->lock);
    bool held = version->updates->held;
    hps_lock_release(&version->updates->lock);
    return held;
}

static void come_between(const struct hps_grpc_call *call)
{
    if (!is_held(call->updated) || call->unheld) {
        const hps_key key = 5; /* changed, so that no other tier inserts its row */
        hps_stamps_begin(call->updated->stamps);
        hps_stamps_mark(call->updated->stamps, 0, &key, 1);
        hps_stamps_end(call->updated->stamps);
    }
}

/* ---- times of stages ------------------------------------------------------------------------- */

static struct hps_slow_request newest(struct service_test *t)
{
    struct hps_slow_request slow;
    assert_int_equal(hps_slowlog_snapshot(t->slowlog, &slow, 1), 1);
    return slow;
}

static void test_times_when_a_store_is_slow_then_each_wait_has_its_name(void **state)
{
    struct service_test *t = *state;

    hps_clock_fake(hps_clock_us());
    open_with_key(t, FIXTURE_DISK);
    hps_fake_latency(t->fx.stores[FIXTURE_HOST], HPS_FAKE_GET, 30);
    hps_fake_latency(t->fx.stores[FIXTURE_HOST], HPS_FAKE_INSERT, 7);
    hps_fake_gate_shut(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET);
    start(t, 0, LOOKUP, "m", "t0", 1);
    hps_fake_gate_wait(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET, 1);
    t->calls[1].received_us = 900;
    start(t, 1, LOOKUP, "m", "t0", 1); /* waits for the worker */
    hps_clock_advance(2000);
    open_gate(t);
    while (hps_fake_calls(t->fx.stores[FIXTURE_HOST], HPS_FAKE_INSERT) == 0) {
        brief_pause();
    }
    run_until_finished(t, 0);
    hps_clock_advance(400); /* the client reads slowly */
    close_call(t, 0);
    struct hps_slow_request slow = newest(t);
    assert_true(slow.stage_us[HPS_STAGE_ROCKSDB] >= 2000); /* the gate */
    assert_true(slow.stage_us[HPS_STAGE_HOST] >= 30);
    assert_true(slow.stage_us[HPS_STAGE_WORK] >= 7); /* its row was inserted above */
    assert_true(slow.stage_us[HPS_STAGE_SEND] >= 400);
    run_until_finished(t, 1);
    close_call(t, 1);
    slow = newest(t);
    assert_int_equal(slow.stage_us[HPS_STAGE_RECEIVE], 900);
    assert_true(slow.stage_us[HPS_STAGE_QUEUE] >= 2000);
    assert_true(slow.duration_us >= 2900);
}

static void test_times_when_the_loop_is_busy_then_that_is_named(void **state)
{
    struct service_test *t = *state;

    hps_clock_fake(hps_clock_us());
    open_with_key(t, FIXTURE_DISK);
    start(t, 0, LOOKUP, "m", "t0", 1);
    hps_pool_free(t->workers); /* the work is done and posted to the loop */
    t->workers = NULL;
    hps_clock_advance(3000);
    run_until_finished(t, 0);
    close_call(t, 0);
    assert_int_equal(newest(t).stage_us[HPS_STAGE_LOOP], 3000);
}

static void test_times_when_the_reply_waits_for_memory_then_admission_is_named(void **state)
{
    struct service_test *t = *state;

    hps_clock_fake(hps_clock_us());
    open_service(t, 100, 1 << 20); /* one reply at a time */
    use_key(t, FIXTURE_HOST, 5);
    start(t, 0, LOOKUP, "m", "t0", 1);
    start(t, 1, LOOKUP, "m", "t0", 1);
    hps_clock_advance(700);
    close_call(t, 0);
    run_until_finished(t, 1);
    close_call(t, 1);
    struct hps_slow_request slow = newest(t);
    assert_int_equal(slow.stage_us[HPS_STAGE_ADMISSION], 700);
    assert_int_equal(slow.stage_us[HPS_STAGE_QUEUE], 0);
    assert_int_equal(slow.duration_us, 700);
}

static void test_times_when_another_fetches_the_row_then_the_wait_is_named(void **state)
{
    struct service_test *t = *state;

    hps_clock_fake(hps_clock_us());
    hps_pool_free(t->workers);
    assert_int_equal(hps_pool_new("work", 2, 2, &t->workers), HPS_OK);
    t->fx.version.flight = hps_flight_new();
    assert_non_null(t->fx.version.flight);
    open_blocked(t);
    start(t, 1, LOOKUP, "m", "t0", 1);
    unsigned n_looks = atomic_load(&t->calls[1].n_looks);
    while (atomic_load(&t->calls[1].n_looks) < n_looks + 4) { /* it checks while it waits */
        brief_pause();
    }
    hps_clock_advance(6000);
    open_gate(t);
    run_until_finished(t, 0);
    run_until_finished(t, 1);
    close_call(t, 0);
    close_call(t, 1);
    assert_int_equal(newest(t).stage_us[HPS_STAGE_WAIT], 6000);
    assert_int_equal(newest(t).stage_us[HPS_STAGE_ROCKSDB], 0);
    hps_flight_free(t->fx.version.flight);
    t->fx.version.flight = NULL;
}

static void test_service_when_streamed_then_sent_as_it_drains(void **state)
{
    struct service_test *t = *state;
    struct hps_grpc_call *call = &t->calls[0];
    uint32_t n_rows = 0;

    open_service(t, 64 << 20, 64 << 20);
    for (uint32_t i = 0; i < TEST_KEYS_MAX; i++) {
        t->keys[i] = i;
    }
    start(t, 0, LOOKUP_STREAM, "m", "t2", TEST_KEYS_MAX);     /* 3.84 MB */
    assert_true(reply_bytes(t) >= TEST_KEYS_MAX * (64 + 50)); /* includes memory for its work */
    while (call->n_messages == 0) {
        hps_loop_turn(t->loop, 100000);
    }
    assert_int_equal(call->n_messages, 3); /* two messages are just below the limit */
    assert_int_equal(call->code, -1);
    call->queued = 0;
    t->grpc->methods[LOOKUP_STREAM].on_drained(call);
    assert_int_equal(call->code, 0);
    for (unsigned i = 0; i < call->n_messages; i++) {
        n_rows += call->messages[i]->results[0]->row_count;
    }
    assert_int_equal(n_rows, TEST_KEYS_MAX);
}

static void test_service_when_a_stream_is_late_then_encoding_stops(void **state)
{
    struct service_test *t = *state;

    hps_clock_fake(hps_clock_us());
    open_service(t, 64 << 20, 64 << 20);
    for (uint32_t i = 0; i < TEST_KEYS_MAX; i++) {
        t->keys[i] = i;
    }
    for (unsigned i = 0; i < 2; i++) {
        struct hps_grpc_call *call = &t->calls[i];
        call->deadline_us = hps_clock_us() + 50 * 1000 * 1000;
        start(t, i, LOOKUP_STREAM, "m", "t2", TEST_KEYS_MAX);
        while (call->n_messages == 0) {
            hps_loop_turn(t->loop, 100000);
        }
        assert_int_equal(call->n_messages, 3);
        if (i == 0) {
            hps_clock_advance(50 * 1000 * 1000); /* the call's own timer fires later */
        } else {
            atomic_store(&call->cancelled, true); /* ended, except for queued bytes */
        }
        call->queued = 0;
        t->grpc->methods[LOOKUP_STREAM].on_drained(call);
        assert_int_equal(call->n_messages, 3);
        assert_int_equal(call->code, -1);
        close_call(t, i);
    }
}

/* ---- a version with a gpu -------------------------------------------------------------------- */

enum { GPU_KEYS = 8200 }; /* too many for a loop thread */

/* The gpu has keys [0, 100), the host map [50, 150), and the disk all below GPU_KEYS except each
 * hundredth. */
static void open_gpu_service(struct service_test *t, enum hps_lookup_path path)
{
    static const bool cached[FIXTURE_TABLES] = {true, false, true};
    uint8_t row[16];

    gpu_fixture_open(&t->gpu, &t->fx.version, cached);
    t->path = path;
    open_service(t, 64 << 20, 64 << 20);
    for (hps_key key = 0; key < GPU_KEYS; key++) {
        t->keys[key] = key;
        fixture_row(&t->fx.tables[0], key, row);
        if (key < 100) {
            gpu_fixture_put(&t->gpu, &t->fx.tables[0], key, row);
        }
        if (key >= 50 && key < 150) {
            fixture_put(&t->fx, FIXTURE_HOST, 0, key);
        }
        if (key % 100 != 99) {
            fixture_put(&t->fx, FIXTURE_DISK, 0, key);
        }
    }
}

static void check_rows(const struct hps_grpc_call *call, const struct service_test *t)
{
    uint8_t row[16];
    hps_key key = 0;

    assert_int_equal(call->code, 0);
    for (unsigned m = 0; m < call->n_messages; m++) {
        const Hps__V1__TableResult *result = call->messages[m]->results[0];
        for (uint32_t i = 0; i < result->row_count; i++, key++) {
            bool unknown =
                result->key_status.len > 0 && result->key_status.data[i] == HPS_KEY_UNKNOWN;
            if (unknown) {
                assert_true(key % 100 == 99 && key >= 150);
                continue;
            }
            fixture_row(&t->fx.tables[0], key, row);
            assert_memory_equal(result->rows.data + (size_t)i * 16, row, 16);
        }
    }
}

/* Sum over all messages: keys that this tier found according to the reply. */
static uint32_t n_found_by(const struct hps_grpc_call *call, const char *tier)
{
    uint32_t n = 0;

    for (unsigned m = 0; m < call->n_messages; m++) {
        const Hps__V1__TableResult *result = call->messages[m]->results[0];
        for (size_t i = 0; i < result->n_tier_counts; i++) {
            n += strcmp(result->tier_counts[i]->tier, tier) == 0
                     ? result->tier_counts[i]->found_keys
                     : 0;
        }
    }
    return n;
}

static void ask_service(struct service_test *t, unsigned i, unsigned method, uint32_t n)
{
    start(t, i, method, "m", "t0", n);
    while (t->calls[i].code < 0) {
        hps_loop_turn(t->loop, 100000);
        t->calls[i].queued = 0;
        if (method == LOOKUP_STREAM && t->calls[i].n_messages > 0) {
            t->grpc->methods[LOOKUP_STREAM].on_drained(&t->calls[i]);
        }
    }
    check_rows(&t->calls[i], t);
    close_call(t, i);
}

static void test_gpu_when_it_is_first_then_named_in_the_reply(void **state)
{
    struct service_test *t = *state;
    struct hps_slow_request slow;

    open_gpu_service(t, HPS_LOOKUP_PATH_GPU);
    ask_service(t, 0, LOOKUP, 160);
    assert_int_equal(n_found_by(&t->calls[0], "gpu"), 100);
    assert_int_equal(n_found_by(&t->calls[0], "host"), 50);
    assert_int_equal(n_found_by(&t->calls[0], "rocksdb"), 10);
    assert_string_equal(t->calls[0].messages[0]->explain->notes[0],
                        "table 't0': gpu (ok) found 100 of 160");
    assert_string_equal(t->calls[0].messages[0]->explain->stages[HPS_STAGE_GPU]->name, "gpu");
    assert_int_equal(hps_slowlog_snapshot(t->slowlog, &slow, 1), 1);
    assert_true(slow.stage_us[HPS_STAGE_GPU] > 0);
    ask_service(t, 1, LOOKUP_STREAM, 150); /* rows from below are in the gpu now */
    assert_int_equal(n_found_by(&t->calls[1], "gpu"), 150);
}

static void test_gpu_when_the_host_is_first_then_it_gets_the_misses(void **state)
{
    struct service_test *t = *state;

    open_gpu_service(t, HPS_LOOKUP_PATH_HOST);
    ask_service(t, 0, LOOKUP_STREAM, 160);
    assert_int_equal(n_found_by(&t->calls[0], "host"), 100);
    assert_int_equal(n_found_by(&t->calls[0], "gpu"), 50);
    assert_int_equal(n_found_by(&t->calls[0], "rocksdb"), 10);
    ask_service(t, 1, LOOKUP, 100); /* all in memory: no I/O thread */
    assert_int_equal(n_found_by(&t->calls[1], "gpu"), 50);
}

static void test_gpu_when_a_lookup_is_large_then_workers_take_the_steps(void **state)
{
    struct service_test *t = *state;

    open_gpu_service(t, t->path);
    ask_service(t, 0, LOOKUP_STREAM, GPU_KEYS);
    assert_int_equal(n_found_by(&t->calls[0], "gpu"), t->path == HPS_LOOKUP_PATH_HOST ? 50 : 100);
    assert_int_equal(n_found_by(&t->calls[0], "host"), t->path == HPS_LOOKUP_PATH_HOST ? 100 : 50);
}

static void test_gpu_when_the_client_disconnects_then_memory_stays_until_the_device_ends(
    void **state)
{
    struct service_test *t = *state;

    open_gpu_service(t, t->path);
    hps_device_sim_hold(t->gpu.tier->device, true);
    start(t, 0, LOOKUP, "m", "t0", 160);
    while (atomic_load(&t->gpu.tier->n_waiting) == 0) {
        hps_loop_turn(t->loop, 1000);
    }
    close_call(t, 0);
    hps_loop_turn(t->loop, 0);
    assert_true(reply_bytes(t) > 0);
    assert_true(hps_block_pool_bytes(t->gpu.blocks) > 0);
    assert_false(hps_version_idle(&t->fx.version));
    hps_device_sim_hold(t->gpu.tier->device, false);
    while (reply_bytes(t) > 0) {
        hps_loop_turn(t->loop, 1000);
    }
    assert_int_equal(t->calls[0].n_messages, 0);
    hps_gpu_tier_drain(t->gpu.tier);
    assert_int_equal(hps_block_pool_bytes(t->gpu.blocks), 0);
}

/* The device hangs. A lookup with a limited wait gets its reply then, for both orders of tiers. */
static void test_gpu_when_the_wait_ends_then_it_replies_and_memory_stays(void **state)
{
    struct service_test *t = *state;

    open_gpu_service(t, t->path);
    hps_device_sim_hold(t->gpu.tier->device, true);
    t->max_wait_us = 1000;
    start(t, 0, LOOKUP, "m", "t0", 160);
    run_until_finished(t, 0);
    assert_int_equal(t->calls[0].code, 0);
    assert_int_equal(n_found_by(&t->calls[0], "gpu"), 0);
    assert_int_equal(n_found_by(&t->calls[0], "host"), 100);
    struct hps_metric *const *errors = t->series.lookup.tier_errors[HPS_TIER_GPU];
    assert_true(hps_metric_value(errors[HPS_FAULT_DEADLINE]) == 1);
    close_call(t, 0);
    hps_loop_turn(t->loop, 0);
    assert_true(reply_bytes(t) > 0);
    assert_false(hps_version_idle(&t->fx.version));
    hps_device_sim_hold(t->gpu.tier->device, false);
    while (reply_bytes(t) > 0) {
        hps_loop_turn(t->loop, 1000);
    }
    assert_true(hps_version_idle(&t->fx.version));
    hps_gpu_tier_drain(t->gpu.tier);
    assert_int_equal(hps_block_pool_bytes(t->gpu.blocks), 0);
}

static void test_gpu_when_it_is_lost_during_the_lookup_then_rows_from_below(void **state)
{
    struct service_test *t = *state;

    open_gpu_service(t, HPS_LOOKUP_PATH_GPU);
    ask_service(t, 0, LOOKUP, 160);
    hps_device_sim_hold(t->gpu.tier->device, true);
    start(t, 1, LOOKUP, "m", "t0", 160);
    hps_device_give_up(t->gpu.tier->device, "it hangs");
    run_until_finished(t, 1);
    hps_device_sim_hold(t->gpu.tier->device, false);
    check_rows(&t->calls[1], t);
    assert_int_equal(n_found_by(&t->calls[1], "gpu"), 0);
    close_call(t, 1);
    struct hps_metric *const *errors = t->series.lookup.tier_errors[HPS_TIER_GPU];
    /* The device was lost before or after the batch began. */
    assert_true(hps_metric_value(errors[HPS_FAULT_UNAVAILABLE]) +
                    hps_metric_value(errors[HPS_FAULT_OTHER]) ==
                1);
    ask_service(t, 2, LOOKUP, 160);
    assert_int_equal(n_found_by(&t->calls[2], "gpu"), 0);
}

/* ---- calls with many messages ---------------------------------------------------------------- */

enum { HOUR_US = 3600u * 1000 * 1000 };

/* Decodes like hps.v1. */
static hps_status plain_decode(const struct hps_grpc_call *call, const uint8_t *data, size_t size,
                               const struct hps_decode_limits *limits, struct hps_arena *arena,
                               struct hps_lookup_request *out_request,
                               struct hps_lookup_asked **out_asked, struct hps_error *err)
{
    (void)call;
    (void)out_asked;
    return hps_decode_lookup(data, size, limits, arena, out_request, err);
}

/* Decodes a message with a deadline. */
static hps_status streamed_decode(const struct hps_grpc_call *call, const uint8_t *data,
                                  size_t size, const struct hps_decode_limits *limits,
                                  struct hps_arena *arena, struct hps_lookup_request *out_request,
                                  struct hps_lookup_asked **out_asked, struct hps_error *err)
{
    hps_status status = plain_decode(call, data, size, limits, arena, out_request, out_asked, err);

    out_request->timeout_us = HOUR_US / 2;
    return status;
}

static uint64_t streamed_bytes_max(const struct hps_lookup_asked *asked,
                                   const struct hps_lookup *lookup)
{
    (void)asked;
    return hps_encode_size_max(lookup);
}

static hps_status streamed_encode(const struct hps_lookup_asked *asked,
                                  const struct hps_lookup *lookup,
                                  const struct hps_encode_explain *explain, struct hps_block *rows,
                                  struct hps_block_pool *pool, struct hps_arena *arena,
                                  struct hps_encoded *out_encoded, struct hps_error *err)
{
    (void)asked;
    (void)err;
    return hps_encode_lookup(lookup, explain, rows, pool, arena, out_encoded);
}

static void streamed_tell(struct hps_grpc_call *call, const struct hps_lookup_asked *asked,
                          const struct hps_error *err)
{
    (void)call;
    (void)asked;
    fail_msg("%s", err->text);
}

static const struct hps_lookup_front streamed = {.decode = streamed_decode,
                                                 .bytes_max = streamed_bytes_max,
                                                 .encode = streamed_encode,
                                                 .tell = streamed_tell};

/* Send a message on call i with keys[0 .. n) of t0. */
static void send_to(struct service_test *t, unsigned i, uint32_t n,
                    const struct hps_lookup_front *front,
                    void (*on_packed)(struct hps_lookup_service *, const struct hps_lookup_front *,
                                      struct hps_grpc_call *, const struct hps_grpc_packed *))
{
    Hps__V1__TableQuery query = HPS__V1__TABLE_QUERY__INIT;
    Hps__V1__TableQuery *queries[] = {&query};
    Hps__V1__LookupRequest request = HPS__V1__LOOKUP_REQUEST__INIT;

    query.table = (char *)(uintptr_t) "t0";
    query.keys.data = (uint8_t *)t->keys;
    query.keys.len = (size_t)n * sizeof(hps_key);
    request.model = (char *)(uintptr_t) "m";
    request.queries = queries;
    request.n_queries = 1;
    request.miss_policy = HPS__V1__MISS_POLICY__MISS_POLICY_WAIT;
    request.max_wait_us = 1000;
    size_t size = hps__v1__lookup_request__get_packed_size(&request);
    uint8_t *bytes = hps_alloc(size);
    assert_non_null(bytes);
    hps__v1__lookup_request__pack(&request, bytes);
    const struct hps_grpc_packed packed = {.data = bytes, .size = size, .size_max = SIZE_MAX};
    on_packed(t->service, front, &t->calls[i], &packed);
    hps_free(bytes);
}

/* Send the next message of a stream. */
static void send_next(struct service_test *t, unsigned i, uint32_t n)
{
    assert_false(t->calls[i].paused);
    send_to(t, i, n, &streamed, hps_lookup_stream_packed);
}

/* The client has read all messages. */
static void read_all(struct service_test *t, unsigned i)
{
    t->calls[i].queued = 0;
    hps_lookup_stream_drained(&t->calls[i]);
    hps_loop_turn(t->loop, 0);
}

static void test_many_when_the_call_began_long_ago_then_each_message_has_its_own_time(void **state)
{
    struct service_test *t = *state;
    static struct hps_slow_request slow[HPS_SLOWLOG_SIZE];
    struct hps_grpc_call *call = &t->calls[0];

    open_with_key(t, FIXTURE_HOST);
    call->received_us = HOUR_US;
    for (unsigned n = 1; n <= 2; n++) {
        send_next(t, 0, 1);
        assert_int_equal(call->n_messages, n);
        assert_true(call->paused);
        read_all(t, 0);
        assert_false(call->paused);
        assert_int_equal(charged(call), 0);
    }
    hps_lookup_stream_half_close(call);
    assert_int_equal(call->code, 0);
    hps_lookup_stream_closed(call);
    assert_int_equal(hps_slowlog_snapshot(t->slowlog, slow, HPS_SLOWLOG_SIZE), 2);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(slow[i].grpc_code, 0);
        assert_true(slow[i].duration_us < HOUR_US / 2);
    }
}

/* A lookup that the gpu still runs counts for its call, which may run one at a time. */
static void test_many_when_the_gpu_still_runs_one_then_the_next_waits_for_it(void **state)
{
    struct service_test *t = *state;
    struct hps_grpc_call *call = &t->calls[0];

    open_gpu_service(t, HPS_LOOKUP_PATH_GPU);
    hps_device_sim_hold(t->gpu.tier->device, true);
    send_next(t, 0, 160);
    while (call->n_messages == 0) {
        hps_loop_turn(t->loop, 1000);
    }
    read_all(t, 0);
    assert_true(call->paused);
    assert_true(charged(call) > 0);
    hps_device_sim_hold(t->gpu.tier->device, false);
    while (call->paused) {
        hps_loop_turn(t->loop, 1000);
    }
    assert_int_equal(charged(call), 0);
    assert_int_equal(reply_bytes(t), 0);
    send_next(t, 0, 160);
    while (call->n_messages == 1) {
        hps_loop_turn(t->loop, 1000);
    }
    hps_lookup_stream_half_close(call);
    read_all(t, 0);
    while (call->code < 0) {
        hps_loop_turn(t->loop, 1000);
    }
    hps_lookup_stream_closed(call);
    hps_gpu_tier_drain(t->gpu.tier);
}

static void run_until_dropped(struct service_test *t, unsigned i)
{
    while (atomic_load(&t->calls[i].refs) > 1) {
        hps_loop_turn(t->loop, 1000);
    }
}

/* ---- replies that take long to encode -------------------------------------------------------- */

static sem_t encoding, encode_on;

static uint64_t long_cost(const struct hps_lookup_asked *asked, const struct hps_lookup *lookup)
{
    (void)asked;
    (void)lookup;
    return HPS_POOL_LONG;
}

static hps_status long_encode(const struct hps_lookup_asked *asked, const struct hps_lookup *lookup,
                              const struct hps_encode_explain *explain, struct hps_block *rows,
                              struct hps_block_pool *pool, struct hps_arena *arena,
                              struct hps_encoded *out_encoded, struct hps_error *err)
{
    sem_post(&encoding);
    sem_wait(&encode_on);
    return streamed_encode(asked, lookup, explain, rows, pool, arena, out_encoded, err);
}

static hps_status long_headers(struct hps_grpc_call *call, const struct hps_encoded *encoded)
{
    assert_true(encoded->size > 0);
    call->received_us++; /* serves as a counter here */
    return HPS_OK;
}

static const struct hps_lookup_front takes_long = {.decode = plain_decode,
                                                   .bytes_max = streamed_bytes_max,
                                                   .encode_cost = long_cost,
                                                   .encode = long_encode,
                                                   .add_headers = long_headers};

/* The only worker encodes the reply of call 0, and the lookups of call 1 and 2 are done. */
static void open_encoding(struct service_test *t)
{
    sem_init(&encoding, 0, 0);
    sem_init(&encode_on, 0, 0);
    open_with_key(t, FIXTURE_HOST);
    for (unsigned i = 0; i < 3; i++) {
        t->calls[i].open = true;
        t->calls[i].ctx = t->grpc->ctx;
        send_to(t, i, 1, &takes_long, hps_lookup_call_packed);
        if (i == 0) {
            sem_wait(&encoding);
        }
    }
}

static void test_encode_when_it_takes_long_then_a_worker_does_it_or_the_call_is_refused(
    void **state)
{
    struct service_test *t = *state;

    open_encoding(t);
    hps_loop_turn(t->loop, 0); /* the loop continues */
    assert_int_equal(t->calls[0].code, -1);
    assert_int_equal(t->calls[1].code, -1);
    assert_int_equal(t->calls[2].code, 8); /* the queue has capacity for one */
    sem_post(&encode_on);
    sem_post(&encode_on);
    for (unsigned i = 0; i < 2; i++) {
        run_until_finished(t, i);
        check_row(&t->calls[i], t, 5);
        assert_int_equal(t->calls[i].received_us, 1);
    }
}

static void test_encode_when_the_client_disconnects_then_all_is_released(void **state)
{
    struct service_test *t = *state;

    open_encoding(t);
    assert_int_equal(hps_pool_depth(t->workers), 1);
    close_call(t, 1); /* withdrawn from the queue */
    assert_int_equal(hps_pool_depth(t->workers), 0);
    assert_int_equal(atomic_load(&t->calls[1].refs), 1);
    close_call(t, 0);
    assert_true(atomic_load(&t->calls[0].refs) > 1);
    sem_post(&encode_on);
    run_until_dropped(t, 0);
    assert_int_equal(t->calls[0].n_messages, 0);
}

/* ---- units ----------------------------------------------------------------------------------- */

static void open_unit_service(struct service_test *t)
{
    struct hps_error err;

    service_come_between = come_between;
    hps_pool_free(t->workers); /* several lookups can wait for the new thread */
    assert_int_equal(hps_pool_new("work", 1, 8, &t->workers), HPS_OK);
    open_service(t, 1 << 20, 1 << 20);
    assert_int_equal(hps_update_open(&t->fx.version, &err), HPS_OK);
    t->unit = true;
}

/* Begin a batch of key 5, or of keys that no lookup requests. */
static void begin_batch(struct service_test *t, bool has_key)
{
    const hps_key key = 5;

    update_turn_begin(t->fx.version.updates);
    hps_stamps_begin(t->fx.version.stamps);
    if (has_key) {
        hps_stamps_mark(t->fx.version.stamps, 0, &key, 1);
    }
}

static void end_batch(struct service_test *t)
{
    hps_stamps_end(t->fx.version.stamps);
    update_turn_end(t->fx.version.updates);
}

/* Run until a lookup holds the updates back. */
static void run_until_held(struct service_test *t)
{
    while (!is_held(&t->fx.version)) {
        hps_loop_turn(t->loop, 1000);
    }
}

static bool was_read_again(const struct hps_grpc_call *call)
{
    const Hps__V1__Explain *explain = call->messages[0]->explain;
    return strstr(explain->notes[0], "read again") != NULL;
}

static void test_unit_when_no_update_comes_then_replies_inline(void **state)
{
    struct service_test *t = *state;

    open_unit_service(t);
    use_key(t, FIXTURE_HOST, 5);
    start(t, 0, LOOKUP, "m", "t0", 1);
    check_row(&t->calls[0], t, 5);
    assert_false(was_read_again(&t->calls[0]));
    close_call(t, 0);
}

static void test_unit_when_a_batch_of_other_keys_is_in_flight_then_replies_inline(void **state)
{
    struct service_test *t = *state;

    open_unit_service(t);
    use_key(t, FIXTURE_HOST, 5);
    begin_batch(t, false);
    start(t, 0, LOOKUP, "m", "t0", 1);
    check_row(&t->calls[0], t, 5);
    assert_false(was_read_again(&t->calls[0]));
    close_call(t, 0);
    end_batch(t);
}

static void test_unit_when_a_batch_of_its_keys_is_in_flight_then_replies_after_it(void **state)
{
    struct service_test *t = *state;

    open_unit_service(t);
    use_key(t, FIXTURE_HOST, 5);
    begin_batch(t, true);
    start(t, 0, LOOKUP, "m", "t0", 1);
    start(t, 1, LOOKUP_STREAM, "m", "t0", 1);
    t->unit = false;
    start(t, 2, LOOKUP, "m", "t0", 1);
    check_row(&t->calls[2], t, 5);
    run_until_held(t);
    assert_int_equal(t->calls[0].code, -1);
    assert_int_equal(t->calls[1].code, -1);
    end_batch(t);
    run_until_finished(t, 0);
    run_until_finished(t, 1);
    check_row(&t->calls[0], t, 5);
    check_row(&t->calls[1], t, 5);
    assert_true(was_read_again(&t->calls[0]));
    assert_false(is_held(&t->fx.version));
    for (unsigned i = 0; i < 3; i++) {
        close_call(t, i);
    }
}

static void test_unit_when_updates_keep_coming_then_it_holds_them(void **state)
{
    struct service_test *t = *state;

    open_unit_service(t);
    use_key(t, FIXTURE_DISK, 5);
    t->calls[0].updated = &t->fx.version;
    start(t, 0, LOOKUP, "m", "t0", 1);
    run_until_finished(t, 0);
    check_row(&t->calls[0], t, 5);
    assert_true(was_read_again(&t->calls[0]));
    assert_int_equal(hps_fake_calls(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET),
                     1 + HPS_LOOKUP_REREADS_MAX);
    t->calls[0].updated = NULL;
    close_call(t, 0);
}

static void run_until_aborted(struct service_test *t, const char *why)
{
    while (t->calls[0].code < 0) {
        hps_loop_turn(t->loop, 1000);
        hps_clock_advance(10 * 1000);
    }
    assert_int_equal(t->calls[0].code, 10);
    assert_non_null(strstr(t->calls[0].text, "model \"m\": "));
    assert_non_null(strstr(t->calls[0].text, why));
    assert_non_null(strstr(t->calls[0].text, "retry"));
    assert_string_equal(t->calls[0].pushback, "100");
    assert_false(is_held(&t->fx.version));
    t->calls[0].updated = NULL;
    close_call(t, 0);
}

static void test_unit_when_updates_come_for_a_second_then_aborted_with_pushback(void **state)
{
    struct service_test *t = *state;

    hps_clock_fake(1000);
    open_unit_service(t);
    use_key(t, FIXTURE_DISK, 5);
    t->calls[0].updated = &t->fx.version;
    t->calls[0].unheld = true;
    start(t, 0, LOOKUP, "m", "t0", 1);
    run_until_aborted(t, "arrived during the lookup");
}

static void test_unit_when_a_batch_stays_in_some_tiers_only_then_aborted_with_pushback(void **state)
{
    struct service_test *t = *state;

    hps_clock_fake(1000);
    open_unit_service(t);
    use_key(t, FIXTURE_HOST, 5);
    begin_batch(t, true);
    update_turn_end(t->fx.version.updates);
    start(t, 0, LOOKUP, "m", "t0", 1);
    run_until_aborted(t, "in some tiers only");
}

static void test_unit_when_the_batch_completes_while_it_waits_then_it_replies(void **state)
{
    struct service_test *t = *state;

    hps_clock_fake(1000);
    open_unit_service(t);
    use_key(t, FIXTURE_HOST, 5);
    begin_batch(t, true);
    update_turn_end(t->fx.version.updates);
    start(t, 0, LOOKUP, "m", "t0", 1);
    while (hps_fake_calls(t->fx.stores[FIXTURE_HOST], HPS_FAKE_GET) < 3) { /* read again, waited */
        hps_loop_turn(t->loop, 1000);
        hps_clock_advance(1000);
    }
    hps_stamps_end(t->fx.version.stamps);
    while (t->calls[0].code < 0) {
        hps_loop_turn(t->loop, 1000);
        hps_clock_advance(1000);
    }
    check_row(&t->calls[0], t, 5);
    close_call(t, 0);
}

/* Other daemons have updated the only copy. The lookup reads it again until this daemon has
 * applied these updates, too. It does not hold them back. */
static void test_unit_when_the_only_copy_is_ahead_then_it_waits_for_updates(void **state)
{
    struct service_test *t = *state;
    struct hps_store *disk = t->fx.stores[FIXTURE_DISK];

    open_unit_service(t);
    use_key(t, FIXTURE_DISK, 5);
    hps_fake_fail(disk, HPS_FAKE_GET, HPS_ABORTED, 0, 5, 0);
    start(t, 0, LOOKUP, "m", "t0", 1);
    run_until_finished(t, 0);
    check_row(&t->calls[0], t, 5);
    assert_true(was_read_again(&t->calls[0]));
    assert_int_equal(hps_fake_calls(disk, HPS_FAKE_GET), 6);
    assert_false(is_held(&t->fx.version));
    close_call(t, 0);
}

static void test_unit_when_the_only_copy_stays_ahead_then_aborted_with_pushback(void **state)
{
    struct service_test *t = *state;
    struct hps_store *disk = t->fx.stores[FIXTURE_DISK];

    open_unit_service(t);
    use_key(t, FIXTURE_DISK, 5);
    hps_fake_fail(disk, HPS_FAKE_GET, HPS_ABORTED, 0, UINT32_MAX, 0);
    start(t, 0, LOOKUP, "m", "t0", 1);
    start(t, 1, LOOKUP, "m", "t0", 1);
    while (hps_fake_calls(disk, HPS_FAKE_GET) < 6) {
        hps_loop_turn(t->loop, 100000);
    }
    close_call(t, 1); /* ends the wait in any step */
    run_until_finished(t, 0);
    assert_int_equal(t->calls[0].code, 10);
    assert_string_equal(t->calls[0].pushback, "100");
    assert_non_null(strstr(t->calls[0].text, "updates that this version has not applied yet"));
    assert_in_range(hps_fake_calls(disk, HPS_FAKE_GET), HPS_LOOKUP_WAITS_MAX + 1,
                    2 * (HPS_LOOKUP_WAITS_MAX + 1));
    close_call(t, 0);
}

/* ---- units that wait for threads ------------------------------------------------------------- */

/* The only I/O thread reads from a store that hangs, for call i. */
static void block_io(struct service_test *t, unsigned i)
{
    t->unit = false;
    t->keys[0] = 6;
    hps_fake_gate_shut(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET);
    start(t, i, LOOKUP, "m", "t0", 1);
    hps_fake_gate_wait(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET, 1);
    t->unit = true;
    t->keys[0] = 5;
}

static void unblock_io(struct service_test *t, unsigned i)
{
    hps_fake_gate_open(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET);
    run_until_finished(t, i);
    close_call(t, i);
}

/* Lookups that wait for an I/O thread, to read or to read again, do not hold updates back. */
static void test_unit_when_no_io_thread_is_free_then_batches_begin(void **state)
{
    struct service_test *t = *state;

    open_unit_service(t);
    fixture_put(&t->fx, FIXTURE_DISK, 0, 6);
    use_key(t, FIXTURE_DISK, 5);
    block_io(t, 0);
    begin_batch(t, true);
    start(t, 1, LOOKUP, "m", "t0", 1);
    end_batch(t);
    use_key(t, FIXTURE_HOST, 5);
    begin_batch(t, true);
    start(t, 2, LOOKUP, "m", "t0", 1);
    end_batch(t);
    for (unsigned i = 0; i < 3; i++) {
        hps_loop_turn(t->loop, 0);
        assert_false(is_held(&t->fx.version));
        begin_batch(t, true); /* does not wait */
        end_batch(t);
    }
    unblock_io(t, 0);
    for (unsigned i = 1; i < 3; i++) {
        run_until_finished(t, i);
        check_row(&t->calls[i], t, 5);
        close_call(t, i);
    }
}

static void test_unit_when_a_store_hangs_then_the_next_batch_still_begins(void **state)
{
    struct service_test *t = *state;
    struct hps_store *disk = t->fx.stores[FIXTURE_DISK];

    open_unit_service(t);
    use_key(t, FIXTURE_DISK, 5);
    begin_batch(t, true);
    start(t, 0, LOOKUP, "m", "t0", 1);
    run_until_held(t);
    hps_fake_gate_shut(disk, HPS_FAKE_GET);
    end_batch(t);
    hps_fake_gate_wait(disk, HPS_FAKE_GET, 1);
    assert_true(is_held(&t->fx.version));
    close_call(t, 0);
    begin_batch(t, true);
    end_batch(t);
    hps_fake_gate_open(disk, HPS_FAKE_GET);
    run_until_dropped(t, 0);
    assert_false(is_held(&t->fx.version));
    assert_int_equal(t->calls[0].code, -1);
}

static void test_unit_when_it_finds_no_thread_then_refused_with_pushback(void **state)
{
    struct service_test *t = *state;

    hps_pool_free(t->workers); /* one lookup can wait for the new thread */
    assert_int_equal(hps_pool_new("work", 1, 1, &t->workers), HPS_OK);
    open_service(t, 1 << 20, 1 << 20);
    struct hps_error err;
    assert_int_equal(hps_update_open(&t->fx.version, &err), HPS_OK);
    fixture_put(&t->fx, FIXTURE_DISK, 0, 6);
    use_key(t, FIXTURE_DISK, 5);
    block_io(t, 0);
    start_in_queue(t, 1);
    use_key(t, FIXTURE_HOST, 5);
    begin_batch(t, true);
    start(t, 2, LOOKUP, "m", "t0", 1);
    assert_int_equal(t->calls[2].code, 8);
    assert_string_equal(t->calls[2].pushback, "100");
    close_call(t, 2);
    end_batch(t);
    unblock_io(t, 0);
    run_until_finished(t, 1);
    close_call(t, 1);
}

static void test_unit_when_the_client_disconnects_while_it_waits_for_a_batch_then_released(
    void **state)
{
    struct service_test *t = *state;

    open_unit_service(t);
    use_key(t, FIXTURE_HOST, 5);
    begin_batch(t, true);
    start(t, 0, LOOKUP, "m", "t0", 1);
    run_until_held(t);
    start(t, 1, LOOKUP, "m", "t0", 1); /* waits behind it for the only thread */
    close_call(t, 1);
    assert_int_equal(atomic_load(&t->calls[1].refs), 1);
    close_call(t, 0);
    end_batch(t);
    run_until_dropped(t, 0);
    assert_int_equal(t->calls[0].code, -1);
    assert_false(is_held(&t->fx.version));
}

static void test_unit_when_the_client_disconnects_before_the_reread_then_released(void **state)
{
    struct service_test *t = *state;

    open_unit_service(t);
    fixture_put(&t->fx, FIXTURE_DISK, 0, 6);
    block_io(t, 0);
    use_key(t, FIXTURE_HOST, 5);
    begin_batch(t, true);
    start(t, 1, LOOKUP, "m", "t0", 1);
    end_batch(t);
    assert_int_equal(hps_pool_depth(t->workers), 1);
    close_call(t, 1);
    assert_int_equal(hps_pool_depth(t->workers), 0);
    assert_int_equal(atomic_load(&t->calls[1].refs), 1);
    unblock_io(t, 0);
}

int main(void)
{
#define SERVICE_TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
#define SERVICE_TEST_ON(fn, path) \
    cmocka_unit_test_prestate_setup_teardown(fn, setup, teardown, &path)
    static enum hps_lookup_path gpu_first = HPS_LOOKUP_PATH_GPU;
    static enum hps_lookup_path host_first = HPS_LOOKUP_PATH_HOST;
    const struct CMUnitTest tests[] = {
        SERVICE_TEST(test_times_when_a_store_is_slow_then_each_wait_has_its_name),
        SERVICE_TEST(test_times_when_the_loop_is_busy_then_that_is_named),
        SERVICE_TEST(test_times_when_the_reply_waits_for_memory_then_admission_is_named),
        SERVICE_TEST(test_times_when_another_fetches_the_row_then_the_wait_is_named),
        SERVICE_TEST(test_service_when_streamed_then_sent_as_it_drains),
        SERVICE_TEST(test_service_when_a_stream_is_late_then_encoding_stops),
        SERVICE_TEST(test_encode_when_it_takes_long_then_a_worker_does_it_or_the_call_is_refused),
        SERVICE_TEST(test_encode_when_the_client_disconnects_then_all_is_released),
        SERVICE_TEST(test_unit_when_no_update_comes_then_replies_inline),
        SERVICE_TEST(test_unit_when_a_batch_of_other_keys_is_in_flight_then_replies_inline),
        SERVICE_TEST(test_unit_when_a_batch_of_its_keys_is_in_flight_then_replies_after_it),
        SERVICE_TEST(test_unit_when_updates_keep_coming_then_it_holds_them),
        SERVICE_TEST(test_unit_when_updates_come_for_a_second_then_aborted_with_pushback),
        SERVICE_TEST(test_unit_when_a_batch_stays_in_some_tiers_only_then_aborted_with_pushback),
        SERVICE_TEST(test_unit_when_the_only_copy_is_ahead_then_it_waits_for_updates),
        SERVICE_TEST(test_unit_when_the_only_copy_stays_ahead_then_aborted_with_pushback),
        SERVICE_TEST(test_unit_when_no_io_thread_is_free_then_batches_begin),
        SERVICE_TEST(test_unit_when_a_store_hangs_then_the_next_batch_still_begins),
        SERVICE_TEST(test_unit_when_it_finds_no_thread_then_refused_with_pushback),
        SERVICE_TEST(
            test_unit_when_the_client_disconnects_while_it_waits_for_a_batch_then_released),
        SERVICE_TEST(test_unit_when_the_client_disconnects_before_the_reread_then_released),
        SERVICE_TEST(test_unit_when_the_batch_completes_while_it_waits_then_it_replies),
        SERVICE_TEST(test_gpu_when_it_is_first_then_named_in_the_reply),
        SERVICE_TEST(test_gpu_when_the_host_is_first_then_it_gets_the_misses),
        SERVICE_TEST_ON(test_gpu_when_a_lookup_is_large_then_workers_take_the_steps, gpu_first),
        SERVICE_TEST_ON(test_gpu_when_a_lookup_is_large_then_workers_take_the_steps, host_first),
        SERVICE_TEST_ON(
            test_gpu_when_the_client_disconnects_then_memory_stays_until_the_device_ends,
            gpu_first),
        SERVICE_TEST_ON(
            test_gpu_when_the_client_disconnects_then_memory_stays_until_the_device_ends,
            host_first),
        SERVICE_TEST_ON(test_gpu_when_the_wait_ends_then_it_replies_and_memory_stays, gpu_first),
        SERVICE_TEST_ON(test_gpu_when_the_wait_ends_then_it_replies_and_memory_stays, host_first),
        SERVICE_TEST(test_gpu_when_it_is_lost_during_the_lookup_then_rows_from_below),
        SERVICE_TEST(test_many_when_the_call_began_long_ago_then_each_message_has_its_own_time),
        SERVICE_TEST(test_many_when_the_gpu_still_runs_one_then_the_next_waits_for_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The lookup service: which threads do its work, calls that wait for a thread, for memory or for
 * their connection, and clients that disconnect.
 */
#include "tests/lib/service_rig.h"

/* The call is refused for now, and the reply has a delay before the retry. */
static void check_pushed_back(const struct hps_grpc_call *call)
{
    assert_int_equal(call->code, 8);
    assert_string_equal(call->pushback, "100");
}

/* Memory that the call keeps of its message. It must be 0 while a slow client reads the reply. */
static size_t kept_of(const struct hps_grpc_call *call)
{
    const struct request *request = call->user;

    return request->arena != NULL ? hps_arena_used(request->arena) : 0;
}

static void test_service_when_memory_has_the_rows_then_replies_inline(void **state)
{
    struct service_test *t = *state;
    struct hps_slow_request slow;

    open_with_key(t, FIXTURE_HOST);
    start(t, 0, LOOKUP, "m", "t0", 1);
    check_row(&t->calls[0], t, 5);
    assert_true(hps_version_idle(&t->fx.version)); /* not pinned while the client reads */
    assert_in_range(reply_bytes(t), 8192, 16384);  /* of the reply only */
    assert_int_equal(charged(&t->calls[0]), reply_bytes(t));
    assert_int_equal(kept_of(&t->calls[0]), 0);
    assert_string_equal(t->calls[0].messages[0]->explain->stages[0]->name, "decode");
    assert_true(t->calls[0].messages[0]->explain->n_notes > 0);
    close_call(t, 0);
    assert_int_equal(hps_slowlog_snapshot(t->slowlog, &slow, 1), 1);
    assert_string_equal(slow.request_id, "hdr-1");
    assert_string_equal(slow.model, "m");
    assert_int_equal(slow.grpc_code, 0);
    assert_int_equal(slow.n_unique, 1);
}

static void test_service_when_rows_exceed_the_limit_of_a_loop_then_a_worker_reads_them(void **state)
{
    struct service_test *t = *state;

    open_with_key(t, FIXTURE_HOST);
    t->service->parts.limits.inline_bytes_max = 0;
    start(t, 0, LOOKUP, "m", "t0", 1);
    assert_int_equal(t->calls[0].code, -1);
    t->service->parts.limits.inline_bytes_max =
        ((const struct request *)t->calls[0].user)->lookup.rows_bytes;
    run_until_finished(t, 0);
    check_row(&t->calls[0], t, 5);
    start(t, 1, LOOKUP, "m", "t0", 1);
    check_row(&t->calls[1], t, 5);
}

static void test_usage_when_lookups_end_then_their_times_are_counted_by_stage(void **state)
{
    struct service_test *t = *state;
    struct hps_usages *usages = hps_usages_new();
    struct hps_usage_sums sums;
    struct hps_slow_request slow;

    open_service(t, 1 << 20, 4096);
    t->fx.version.usage = hps_usages_of(usages, "m", 7);
    t->calls[0].received_us = 900;
    use_key(t, FIXTURE_HOST, 5);
    start(t, 0, LOOKUP, "m", "t0", 1);
    hps_usage_get(t->fx.version.usage, &sums);
    assert_int_equal(sums.n_good, 0); /* the client has not read the reply yet */
    close_call(t, 0);
    assert_int_equal(hps_slowlog_snapshot(t->slowlog, &slow, 1), 1);
    hps_usage_get(t->fx.version.usage, &sums);
    assert_int_equal(sums.n_good, 1);
    assert_int_equal(sums.n_failed, 0);
    assert_int_equal(sums.good_us, slow.duration_us);
    assert_int_equal(sums.part_us[HPS_USAGE_QUEUE], slow.stage_us[HPS_STAGE_ADMISSION] +
                                                        slow.stage_us[HPS_STAGE_QUEUE] +
                                                        slow.stage_us[HPS_STAGE_LOOP]);
    assert_int_equal(sums.part_us[HPS_USAGE_INPUT], slow.stage_us[HPS_STAGE_DECODE]);
    uint64_t named_us = slow.stage_us[HPS_STAGE_RECEIVE];
    for (unsigned i = 0; i < HPS_USAGE_PARTS; i++) {
        named_us += sums.part_us[i];
    }
    assert_int_equal(named_us, slow.duration_us);
    assert_true(sums.last_ms > 0);

    start(t, 1, LOOKUP, "m", "nope", 1);    /* an unknown table, */
    start(t, 2, LOOKUP, "m", "t0", 1000);   /* a reply that is too large, */
    start(t, 3, LOOKUP, "absent", "t0", 1); /* and an unknown model */
    for (unsigned i = 1; i < CALLS; i++) {
        close_call(t, i);
    }
    hps_usage_get(t->fx.version.usage, &sums);
    assert_int_equal(sums.n_good, 1);
    assert_int_equal(sums.n_failed, 2);
    t->fx.version.usage = NULL;
    hps_usages_free(usages);
}

static void test_service_when_the_client_does_not_read_the_reply_then_cancelled(void **state)
{
    struct service_test *t = *state;
    struct hps_usages *usages = hps_usages_new();
    struct hps_usage_sums sums;
    struct hps_slow_request slow;

    open_with_key(t, FIXTURE_HOST);
    t->fx.version.usage = hps_usages_of(usages, "m", 7);
    start(t, 0, LOOKUP, "m", "t0", 1);
    assert_int_equal(t->calls[0].code, 0);
    atomic_store(&t->calls[0].cancelled, true);
    t->grpc->methods[LOOKUP].on_close(&t->calls[0]);
    t->calls[0].open = false;
    assert_int_equal(hps_slowlog_snapshot(t->slowlog, &slow, 1), 1);
    assert_int_equal(slow.grpc_code, 1);
    hps_usage_get(t->fx.version.usage, &sums);
    assert_int_equal(sums.n_good, 0);
    assert_int_equal(sums.n_failed, 1);
    t->fx.version.usage = NULL;
    hps_usages_free(usages);
}

static void test_service_when_a_store_may_block_then_a_worker_reads_it(void **state)
{
    struct service_test *t = *state;

    open_with_key(t, FIXTURE_DISK);
    start(t, 0, LOOKUP, "m", "", 1);
    assert_int_equal(t->calls[0].code, -1);
    run_until_finished(t, 0);
    check_row(&t->calls[0], t, 5);
}

static void test_service_when_requests_are_wrong_then_status_and_text_name_the_cause(void **state)
{
    struct service_test *t = *state;

    open_service(t, 1 << 20, 300);
    start(t, 0, LOOKUP, "m", "nope", 1);
    assert_int_equal(t->calls[0].code, 5);
    assert_non_null(strstr(t->calls[0].text, "nope"));
    start(t, 1, LOOKUP, "", "t0", 1);
    assert_int_equal(t->calls[1].code, 3);
    start(t, 2, LOOKUP, "absent", "t0", 1);
    assert_int_equal(t->calls[2].code, 5);
    start(t, 3, LOOKUP, "m", "t0", 1000);
    assert_int_equal(t->calls[3].code, 8);
    assert_non_null(strstr(t->calls[3].text, "reply_bytes_max"));
    assert_true(hps_metric_value(t->series.rejected[HPS_REJECT_REPLY_BYTES]) == 1);
}

/* The reply is one row of 16 bytes, pooled from 1,000 rows. */
static void test_service_when_a_bag_is_requested_then_its_rows_count_like_the_reply(void **state)
{
    struct service_test *t = *state;

    open_service(t, 1 << 20, 15000);
    t->pooled = true;
    use_key(t, FIXTURE_DISK, 5);
    for (uint32_t i = 0; i < 1000; i++) {
        t->keys[i] = 5;
    }
    start(t, 0, LOOKUP, "m", "t0", 1000);
    assert_int_equal(t->calls[0].code, 8);
    assert_non_null(strstr(t->calls[0].text, "rows that are added"));
    assert_non_null(strstr(t->calls[0].text, "limit is 15000 (reply_bytes_max)"));
    start(t, 1, LOOKUP, "m", "t0", 500);
    assert_in_range(charged(&t->calls[1]), 500 * (16 + 50 + 1), 500 * 70 + 64 * 1024);
    run_until_finished(t, 1);
    assert_int_equal(t->calls[1].code, 0);
    const Hps__V1__TableResult *result = t->calls[1].messages[0]->results[0];
    assert_int_equal(result->row_count, 1);
    assert_int_equal(result->rows.len, 16);
    float sum = 0;
    for (uint32_t i = 0; i < 500; i++) {
        sum += fixture_value(0, 5, 0);
    }
    assert_memory_equal(result->rows.data, &sum, sizeof(sum));
}

static void test_limits_when_set_then_they_apply_to_new_requests(void **state)
{
    struct service_test *t = *state;
    struct hps_lookup_limits limits = HPS_LOOKUP_LIMITS_DEFAULT;

    open_service(t, 64 << 20, 64 << 20);
    limits.keys_max = 2;
    hps_lookup_service_limits_set(t->service, &limits);
    start(t, 0, LOOKUP, "m", "t0", 3);
    assert_int_equal(t->calls[0].code, 3);
    assert_non_null(strstr(t->calls[0].text, "limit is 2"));
    start(t, 1, LOOKUP, "m", "t0", 2); /* later calls reuse its memory */
    assert_int_equal(t->calls[1].code, -1);
    close_call(t, 0);
    run_until_finished(t, 1);
    close_call(t, 1);

    limits.keys_max = MANY_KEYS;
    hps_lookup_service_limits_set(t->service, &limits);
    for (uint32_t i = 0; i < MANY_KEYS; i++) {
        t->keys[i] = i + 100;
    }
    start(t, 2, LOOKUP, "m", "t0", MANY_KEYS);
    run_until_finished(t, 2);
    assert_int_equal(t->calls[2].code, 0);
    close_call(t, 2);

    limits.tables_max = 0;
    hps_lookup_service_limits_set(t->service, &limits);
    start(t, 3, LOOKUP, "m", "t0", 1);
    assert_int_equal(t->calls[3].code, 3);
    assert_non_null(strstr(t->calls[3].text, "queries: 1, limit is 0"));
}

/* The slow log is returned as strings, which must be UTF-8. */
static void test_service_when_a_name_is_not_text_then_the_slow_log_has_text(void **state)
{
    struct service_test *t = *state;
    struct hps_slow_request slow;
    char model[200];

    open_service(t, 1 << 20, 1 << 20);
    start(t, 0, LOOKUP,
          "a\xff"
          "b\xc3",
          "t0", 1);
    close_call(t, 0);
    assert_int_equal(hps_slowlog_snapshot(t->slowlog, &slow, 1), 1);
    assert_string_equal(slow.model, "a?b?");
    model[0] = 'm'; /* so that a two-byte character crosses the limit of the name */
    for (unsigned i = 1; i + 1 < sizeof(model); i += 2) {
        memcpy(model + i, "\xc3\xbc", 2);
    }
    model[sizeof(model) - 1] = '\0';
    start(t, 1, LOOKUP, model, "t0", 1);
    close_call(t, 1);
    assert_int_equal(hps_slowlog_snapshot(t->slowlog, &slow, 1), 1);
    assert_int_equal(strlen(slow.model) % 2, 1);
    assert_true(strlen(slow.model) + 2 >= sizeof(slow.model) - 1);
    assert_memory_equal(slow.model, model, strlen(slow.model));
}

static void test_service_when_the_client_disconnects_then_work_is_dropped(void **state)
{
    struct service_test *t = *state;

    open_blocked(t);
    start(t, 1, LOOKUP, "m", "t0", 1); /* waits for the worker */
    close_call(t, 0);
    close_call(t, 1);
    open_gate(t);
    while (reply_bytes(t) > 0) {
        hps_loop_turn(t->loop, 100000);
    }
    assert_int_equal(t->calls[0].n_messages + t->calls[1].n_messages, 0);
    assert_int_equal(hps_fake_calls(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET), 1);
}

static void test_service_when_workers_are_busy_then_refused_with_pushback(void **state)
{
    struct service_test *t = *state;

    open_blocked(t);
    start(t, 1, LOOKUP, "m", "t0", 1);
    start(t, 2, LOOKUP, "m", "t0", 1);
    check_pushed_back(&t->calls[2]);
    open_gate(t);
    run_until_finished(t, 0);
    run_until_finished(t, 1);
    check_row(&t->calls[1], t, 5);
}

/* The only I/O thread hangs in a store, like all threads on a disk that hangs. */
static void test_wait_when_no_thread_is_free_in_time_then_default_rows(void **state)
{
    struct service_test *t = *state;

    open_blocked(t);
    t->max_wait_us = 1000;
    start(t, 1, LOOKUP, "m", "t0", 1);
    assert_int_equal(t->calls[1].code, -1);
    run_until_finished(t, 1); /* the gate stays shut */
    assert_int_equal(t->calls[1].code, 0);
    Hps__V1__TableResult *result = t->calls[1].messages[0]->results[0];
    assert_int_equal(result->defaulted_key_count, 1);
    assert_int_equal(result->key_status.data[0], HPS_KEY_DEFAULTED);
    assert_memory_equal(result->rows.data, t->fx.default_rows[0], 16);
    close_call(t, 1);
    assert_int_equal(t->calls[0].code, -1);
    start_in_queue(t, 2);
    start(t, 3, LOOKUP, "m", "t0", 1); /* the queue is full, too */
    assert_int_equal(t->calls[3].code, 0);
    assert_int_equal(t->calls[3].messages[0]->results[0]->defaulted_key_count, 1);
    open_gate(t);
    for (unsigned i = 0; i < 4; i += i == 0 ? 2 : 1) {
        run_until_finished(t, i);
        close_call(t, i);
    }
    check_row(&t->calls[0], t, 5);
    check_row(&t->calls[2], t, 5);
    assert_int_equal(hps_fake_calls(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET), 2);
}

/* The loop and the I/O thread compete for the request. */
static void test_wait_when_it_ends_as_a_thread_becomes_free_then_one_reply(void **state)
{
    enum { N_ROUNDS = 400 };
    struct service_test *t = *state;
    struct hps_grpc_call *call = &t->calls[0];

    open_service(t, 1 << 20, 1 << 20);
    for (hps_key key = 0; key < N_ROUNDS; key++) {
        use_key(t, FIXTURE_DISK, key);
        t->max_wait_us = 1 + (uint32_t)key % 16;
        start(t, 0, LOOKUP, "m", "t0", 1);
        run_until_finished(t, 0);
        assert_int_equal(call->code, 0);
        Hps__V1__TableResult *result = call->messages[0]->results[0];
        if (result->defaulted_key_count == 0) {
            check_row(call, t, key);
        } else {
            assert_memory_equal(result->rows.data, t->fx.default_rows[0], 16);
        }
        close_call(t, 0);
        while (atomic_load(&call->refs) > 1) {
            hps_loop_turn(t->loop, 100000);
        }
        hps__v1__lookup_response__free_unpacked(call->messages[0], NULL);
        call->n_messages = 0;
        call->code = -1;
    }
}

/* Its memory is released at once, before a thread takes the request. */
static void test_service_when_the_client_disconnects_in_the_queue_then_all_is_released(void **state)
{
    struct service_test *t = *state;

    open_blocked(t);
    uint64_t bytes = reply_bytes(t);
    for (unsigned i = 1; i < CALLS; i++) { /* also its place in the queue, which has one */
        t->max_wait_us = i % 2 == 0 ? 0 : 100 * 1000 * 1000;
        start(t, i, LOOKUP, "m", "t0", 1);
        assert_int_equal(t->calls[i].code, -1);
        close_call(t, i);
        assert_int_equal(reply_bytes(t), bytes);
        assert_int_equal(atomic_load(&t->calls[i].refs), 1);
    }
    open_gate(t);
    run_until_finished(t, 0);
    check_row(&t->calls[0], t, 5);
    close_call(t, 0);
    assert_int_equal(hps_fake_calls(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET), 1);
}

/* A worker has read all keys from memory; then the queue of the I/O threads is full. */
static void test_service_when_a_large_lookup_finds_no_thread_then_refused_with_pushback(
    void **state)
{
    struct service_test *t = *state;
    struct hps_store *disk = t->fx.stores[FIXTURE_DISK];

    open_service(t, 64 << 20, 64 << 20);
    for (uint32_t i = 0; i < TEST_KEYS_MAX; i++) {
        t->keys[i] = i;
    }
    hps_fake_gate_shut(disk, HPS_FAKE_GET);
    start(t, 0, LOOKUP, "m", "t0", TEST_KEYS_MAX);
    while (hps_fake_keys(t->fx.stores[FIXTURE_HOST], HPS_FAKE_GET) < TEST_KEYS_MAX) {
        brief_pause();
    }
    start(t, 1, LOOKUP, "m", "t0", 1);
    hps_fake_gate_wait(disk, HPS_FAKE_GET, 1);
    start(t, 2, LOOKUP, "m", "t0", 1); /* waits for the thread */
    assert_int_equal(t->calls[2].code, -1);
    run_until_finished(t, 0);
    check_pushed_back(&t->calls[0]);
    assert_true(hps_metric_value(t->series.rejected[HPS_REJECT_WORKERS]) == 1);
    hps_fake_gate_open(disk, HPS_FAKE_GET);
    run_until_finished(t, 2);
}

static void test_service_when_replies_fill_memory_then_the_next_waits_for_memory(void **state)
{
    struct service_test *t = *state;

    open_service(t, 100, 1 << 20); /* one reply at a time, two may wait */
    use_key(t, FIXTURE_HOST, 5);
    start(t, 0, LOOKUP, "m", "t0", 1);
    start(t, 1, LOOKUP, "m", "t0", 1);
    start(t, 2, LOOKUP, "m", "t0", 1);
    assert_int_equal(t->calls[1].code, -1);
    close_call(t, 1); /* gives up */
    close_call(t, 0);
    run_until_finished(t, 2);
    check_row(&t->calls[2], t, 5);
    assert_int_equal(t->calls[1].n_messages, 0);
}

static void pass(struct service_test *t, uint64_t us)
{
    hps_clock_advance(us);
    hps_loop_turn(t->loop, 0);
}

/* The call waits 250 ms and checks readers. In the second half it closes slow readers. */
static void test_service_when_no_memory_becomes_free_then_refused_with_pushback(void **state)
{
    struct service_test *t = *state;

    hps_clock_fake(1000000);
    open_service(t, 10, 1 << 20);
    use_key(t, FIXTURE_HOST, 5);
    hps_loop_turn(t->loop, 0);
    start(t, 0, LOOKUP, "m", "t0", 1);
    assert_int_equal(t->calls[0].n_watched, 0);
    start(t, 1, LOOKUP, "m", "t0", 1);
    assert_int_equal(t->calls[1].n_watched, 1);
    for (unsigned i = 1; i <= 3; i++) {
        pass(t, 40 * 1000);
        assert_int_equal(t->calls[1].n_watched, 1 + i);
    }
    assert_int_equal(t->calls[1].n_cut, 0);
    pass(t, 40 * 1000);
    assert_int_equal(t->calls[1].n_cut, 1);
    pass(t, 89999);
    assert_int_equal(t->calls[1].code, -1);
    pass(t, 2);
    check_pushed_back(&t->calls[1]);
}

/* While a lookup waits, its keys count as request memory. */
static void test_service_when_its_keys_find_no_memory_then_slow_readers_are_closed(void **state)
{
    struct service_test *t = *state;

    t->request_bytes_max = CALLS * HPS_CALL_BYTES;
    open_service(t, 10, 1 << 20); /* one reply at a time */
    use_key(t, FIXTURE_HOST, 5);
    for (unsigned i = 0; i < 2; i++) {
        start(t, i, LOOKUP, "m", "t0", 1);
    }
    check_pushed_back(&t->calls[1]);
    assert_non_null(strstr(t->calls[1].text, "request_bytes_in_flight"));
    assert_int_equal(t->calls[1].n_cut, 1);
    assert_int_equal(kept_of(&t->calls[1]), 0);
    assert_true(hps_metric_value(t->series.rejected[HPS_REJECT_QUEUE]) == 1);
    assert_int_equal(hps_limits_used(t->limits, HPS_LIMIT_REQUESTS), CALLS * HPS_CALL_BYTES);
}

static void test_service_when_its_connection_is_at_the_limit_then_waits_unadmitted(void **state)
{
    struct service_test *t = *state;

    t->connection_max = 1; /* one reply at a time */
    open_with_key(t, FIXTURE_HOST);
    for (unsigned i = 0; i < 3; i++) {
        start(t, i, LOOKUP, "m", "t0", 1);
        assert_int_equal(t->calls[i].code, i == 0 ? 0 : -1);
    }
    assert_int_equal(reply_bytes(t), charged(&t->calls[0]));
    close_call(t, 1); /* gives up */
    assert_int_equal(atomic_load(&t->calls[1].refs), 1);
    close_call(t, 0);
    run_until_finished(t, 2);
    check_row(&t->calls[2], t, 5);
}

static void test_service_when_its_connection_stays_at_the_limit_then_refused_with_pushback(
    void **state)
{
    struct service_test *t = *state;

    hps_clock_fake(1000000);
    t->connection_max = 1;
    open_with_key(t, FIXTURE_HOST);
    hps_loop_turn(t->loop, 0);
    start(t, 1, LOOKUP, "m", "t0", 1);
    start(t, 0, LOOKUP, "m", "t0", 1);
    pass(t, 9999999);
    assert_int_equal(t->calls[0].code, -1);
    assert_true(kept_of(&t->calls[0]) > 0);
    pass(t, 2);
    check_pushed_back(&t->calls[0]);
    assert_int_equal(kept_of(&t->calls[0]), 0);
    assert_non_null(strstr(t->calls[0].text, "connection_reply_bytes"));
    assert_true(hps_metric_value(t->series.rejected[HPS_REJECT_CONNECTION]) == 1);
}

int main(void)
{
#define SERVICE_TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        SERVICE_TEST(test_service_when_memory_has_the_rows_then_replies_inline),
        SERVICE_TEST(test_service_when_rows_exceed_the_limit_of_a_loop_then_a_worker_reads_them),
        SERVICE_TEST(test_usage_when_lookups_end_then_their_times_are_counted_by_stage),
        SERVICE_TEST(test_service_when_the_client_does_not_read_the_reply_then_cancelled),
        SERVICE_TEST(test_service_when_a_store_may_block_then_a_worker_reads_it),
        SERVICE_TEST(test_service_when_requests_are_wrong_then_status_and_text_name_the_cause),
        SERVICE_TEST(test_service_when_a_bag_is_requested_then_its_rows_count_like_the_reply),
        SERVICE_TEST(test_limits_when_set_then_they_apply_to_new_requests),
        SERVICE_TEST(test_service_when_a_name_is_not_text_then_the_slow_log_has_text),
        SERVICE_TEST(test_service_when_the_client_disconnects_then_work_is_dropped),
        SERVICE_TEST(test_service_when_workers_are_busy_then_refused_with_pushback),
        SERVICE_TEST(test_wait_when_no_thread_is_free_in_time_then_default_rows),
        SERVICE_TEST(test_wait_when_it_ends_as_a_thread_becomes_free_then_one_reply),
        SERVICE_TEST(test_service_when_the_client_disconnects_in_the_queue_then_all_is_released),
        SERVICE_TEST(test_service_when_a_large_lookup_finds_no_thread_then_refused_with_pushback),
        SERVICE_TEST(test_service_when_replies_fill_memory_then_the_next_waits_for_memory),
        SERVICE_TEST(test_service_when_no_memory_becomes_free_then_refused_with_pushback),
        SERVICE_TEST(test_service_when_its_keys_find_no_memory_then_slow_readers_are_closed),
        SERVICE_TEST(test_service_when_its_connection_is_at_the_limit_then_waits_unadmitted),
        SERVICE_TEST(
            test_service_when_its_connection_stays_at_the_limit_then_refused_with_pushback),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

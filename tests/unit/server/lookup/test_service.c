/* SPDX-License-Identifier: Apache-2.0
 *
 * The look-up service over calls that the test plays itself, on a real loop with real workers:
 * where work runs, who waits, and that a client that goes away leaves nothing behind.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/log.h"
#include "cache/update/internal.h"
#include "hps/v1/lookup.pb-c.h"
#include "net/loop.h"
#include "server/lookup/internal.h"
#include "tests/lib/gpu_fixture.h"
#include "tests/lib/nap.h"

/* ---- a call ---------------------------------------------------------------------------------- */

enum { MESSAGES_MAX = 16 };

struct hps_grpc_call {
    void *ctx;
    struct hps_loop *loop;
    void *user;
    atomic_int refs;
    atomic_bool cancelled;
    atomic_uint n_looks; /* whether it is */
    uint64_t deadline_us;
    uint64_t received_us;        /* so long did its message take */
    struct hps_version *updated; /* a batch comes while it is looked up; NULL: none does */
    bool unheld;                 /* the batch waits for nobody */
    bool crowded;                /* its connection has no room for another answer */
    bool turned_away;            /* nor for another one that waits for that */
    bool paused;                 /* no message comes */
    size_t charged;
    size_t held;        /* said to be, while it waits */
    unsigned n_watched; /* slow readers: watched, and cut off */
    unsigned n_cut;
    Hps__V1__LookupResponse *messages[MESSAGES_MAX];
    unsigned n_messages;
    size_t queued;
    int code; /* -1: not finished */
    char text[512];
    char pushback[16];
};

void *hps_grpc_call_ctx(const struct hps_grpc_call *call)
{
    return call->ctx;
}

struct hps_loop *hps_grpc_call_loop(const struct hps_grpc_call *call)
{
    return call->loop;
}

const char *hps_grpc_call_peer(const struct hps_grpc_call *call)
{
    (void)call;
    return "test";
}

const char *hps_grpc_call_path(const struct hps_grpc_call *call)
{
    (void)call;
    return "/hps.v1.ParameterServer/Lookup";
}

const void *hps_grpc_call_grant(const struct hps_grpc_call *call)
{
    (void)call;
    return NULL;
}

uint64_t hps_grpc_call_client(const struct hps_grpc_call *call)
{
    (void)call;
    return 1;
}

uint64_t hps_grpc_call_start_us(const struct hps_grpc_call *call)
{
    return hps_clock_us() - call->received_us;
}

uint64_t hps_grpc_call_deadline_us(const struct hps_grpc_call *call)
{
    return call->deadline_us;
}

const char *hps_grpc_call_header(const struct hps_grpc_call *call, const char *name,
                                 size_t *out_size)
{
    (void)call;
    if (strcmp(name, "traceparent") == 0) {
        return NULL;
    }
    assert_string_equal(name, "x-request-id");
    *out_size = 5;
    return "hdr-1";
}

void *hps_grpc_call_user(const struct hps_grpc_call *call)
{
    return call->user;
}

void hps_grpc_call_set_user(struct hps_grpc_call *call, void *user)
{
    call->user = user;
}

/* Messages are decoded where they come; test_unpack.c has those that are not. */
void hps_grpc_call_keep_message(struct hps_grpc_call *call)
{
    (void)call;
    fail();
}

void hps_grpc_call_drop_message(struct hps_grpc_call *call)
{
    (void)call;
    fail();
}

void hps_grpc_call_pause(struct hps_grpc_call *call, bool paused)
{
    call->paused = paused;
}

/* Requests here have no deadline but the call's. */
void hps_grpc_call_deadline_limit(struct hps_grpc_call *call, uint64_t at_us)
{
    assert_int_equal(at_us, hps_grpc_call_deadline_us(call));
}

void hps_grpc_call_ref(struct hps_grpc_call *call)
{
    atomic_fetch_add(&call->refs, 1);
}

void hps_grpc_call_unref(struct hps_grpc_call *call)
{
    atomic_fetch_sub(&call->refs, 1);
}

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
        const hps_key key = 5; /* so that no other tier gets its row */
        hps_stamps_begin(call->updated->stamps);
        hps_stamps_mark(call->updated->stamps, 0, &key, 1);
        hps_stamps_end(call->updated->stamps);
    }
}

/* Asked by whoever asks a store. */
bool hps_grpc_call_cancelled(const struct hps_grpc_call *call)
{
    atomic_fetch_add(&((struct hps_grpc_call *)(uintptr_t)call)->n_looks, 1);
    if (call->updated != NULL) {
        come_between(call);
    }
    return atomic_load(&call->cancelled);
}

hps_status hps_grpc_call_charge(struct hps_grpc_call *call, size_t bytes, size_t held)
{
    assert_int_equal(call->charged, 0);
    call->held = held;
    if (call->turned_away) {
        return HPS_EXHAUSTED;
    }
    call->charged = bytes;
    return call->crowded ? HPS_AGAIN : HPS_OK;
}

void hps_grpc_call_discharge(struct hps_grpc_call *call)
{
    call->charged = 0;
}

void hps_grpc_readers_watch(struct hps_grpc_call *call)
{
    call->n_watched++;
}

void hps_grpc_readers_cut(struct hps_grpc_call *call)
{
    assert_true(call->n_watched > 0);
    call->n_cut++;
}

void hps_grpc_call_send(struct hps_grpc_call *call, const struct hps_slice *slices,
                        unsigned n_slices)
{
    size_t size = 0;

    for (unsigned i = 0; i < n_slices; i++) {
        size += slices[i].size;
    }
    uint8_t *bytes = hps_alloc(size);
    assert_non_null(bytes);
    size = 0;
    for (unsigned i = 0; i < n_slices; i++) {
        memcpy(bytes + size, slices[i].data, slices[i].size);
        size += slices[i].size;
        hps_block_unref(slices[i].block);
    }
    assert_true(call->n_messages < MESSAGES_MAX);
    call->messages[call->n_messages] = hps__v1__lookup_response__unpack(NULL, size, bytes);
    assert_non_null(call->messages[call->n_messages]);
    call->n_messages++;
    call->queued += size;
    hps_free(bytes);
}

size_t hps_grpc_call_queued(const struct hps_grpc_call *call)
{
    return call->queued;
}

hps_status hps_grpc_call_add_trailer(struct hps_grpc_call *call, const char *name,
                                     const void *value, size_t size)
{
    assert_string_equal(name, "grpc-retry-pushback-ms");
    assert_true(size < sizeof(call->pushback));
    memcpy(call->pushback, value, size);
    return HPS_OK;
}

void hps_grpc_call_finish(struct hps_grpc_call *call, int grpc_code, const char *message)
{
    assert_int_equal(call->code, -1);
    call->code = grpc_code;
    snprintf(call->text, sizeof(call->text), "%s", message == NULL ? "" : message);
}

void hps_grpc_call_fail(struct hps_grpc_call *call, const struct hps_error *err)
{
    hps_grpc_call_finish(call, hps_status_grpc_code(err->status), err->text);
}

void hps_grpc_call_fail_too_large(struct hps_grpc_call *call, const struct hps_error *err)
{
    hps_grpc_call_fail(call, err);
}

/* ---- the service ----------------------------------------------------------------------------- */

enum { LOOKUP, LOOKUP_STREAM, CALLS = 4, TEST_KEYS_MAX = 60000, MANY_KEYS = 300000 };

struct service_test {
    struct fixture fx;
    struct hps_loop *loop;
    struct hps_models *models;
    struct hps_pool *workers;
    struct hps_block_pool *blocks;
    struct hps_admission *admission;
    struct hps_slowlog *slowlog;
    struct hps_metrics *metrics;
    struct hps_service_metrics series;
    struct hps_lookup_service *service;
    const struct hps_grpc_service *grpc;
    struct hps_grpc_call calls[CALLS];
    uint32_t max_wait_us;   /* of requests to come; 0: exact */
    bool unit;              /* likewise */
    bool pooled;            /* likewise: all keys are one bag */
    struct gpu_fixture gpu; /* zeroed: none */
    enum hps_lookup_path path;
    hps_key keys[MANY_KEYS];
};

static void open_service(struct service_test *t, uint64_t bytes_max, uint64_t reply_bytes_max)
{
    struct hps_admission_options options = {.bytes_max = bytes_max,
                                            .reply_bytes_max = reply_bytes_max,
                                            .waiting_max = 2,
                                            .in_flight = t->series.reply_bytes_in_flight};
    t->admission = hps_admission_new(&options);
    assert_non_null(t->admission);
    struct hps_lookup_service_parts parts = {.models = t->models,
                                             .workers = t->workers,
                                             .io = t->workers,
                                             .blocks =
                                                 t->gpu.tier == NULL ? t->blocks : t->gpu.blocks,
                                             .admission = t->admission,
                                             .slowlog = t->slowlog,
                                             .metrics = &t->series,
                                             .limits = HPS_LOOKUP_LIMITS_DEFAULT,
                                             .path = t->path};
    parts.limits.inline_message_bytes = UINT32_MAX;
    t->service = hps_lookup_service_new(&parts);
    assert_non_null(t->service);
    t->grpc = hps_lookup_service_grpc(t->service);
}

static int setup(void **state)
{
    struct service_test *t = hps_calloc(1, sizeof(*t));
    struct hps_error err;

    assert_non_null(t);
    hps_log_level_set(HPS_LOG_ERROR);
    fixture_open(&t->fx, 0);
    assert_int_equal(hps_loop_new(&t->loop, &err), HPS_OK);
    t->models = hps_models_new();
    t->blocks = hps_block_pool_new(1 << 20);
    t->slowlog = hps_slowlog_new(0);
    t->metrics = hps_server_metrics_new();
    assert_non_null(t->models);
    assert_non_null(t->blocks);
    assert_non_null(t->slowlog);
    assert_non_null(t->metrics);
    assert_int_equal(hps_pool_new("work", 1, 1, &t->workers), HPS_OK);
    hps_service_metrics_fill(t->metrics, &t->series);
    assert_int_equal(hps_models_add(t->models, &t->fx.version), HPS_OK);
    assert_int_equal(hps_models_activate(t->models, "m", 7), HPS_OK);
    for (unsigned i = 0; i < CALLS; i++) {
        t->calls[i] = (struct hps_grpc_call){.loop = t->loop, .code = -1};
        atomic_init(&t->calls[i].refs, 1);
    }
    *state = t;
    return 0;
}

/* Whatever a test did: times with a name are the whole time. What was under way when its client
 * went goes on. */
static void check_times(struct service_test *t)
{
    static struct hps_slow_request slow[HPS_SLOWLOG_SIZE];
    unsigned n = hps_slowlog_snapshot(t->slowlog, slow, HPS_SLOWLOG_SIZE);

    for (unsigned i = 0; i < n; i++) {
        uint64_t named_us = 0;
        for (unsigned stage = 0; stage < HPS_STAGE_COUNT; stage++) {
            named_us += slow[i].stage_us[stage];
        }
        if (slow[i].grpc_code != 1) {
            assert_int_equal(named_us, slow[i].duration_us);
        }
        assert_true(named_us >= slow[i].duration_us);
    }
}

static int teardown(void **state)
{
    struct service_test *t = *state;

    hps_fake_gate_open(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET); /* of a test that failed */
    hps_pool_free(t->workers);
    hps_gpu_tier_drain(t->gpu.tier);
    hps_loop_free(t->loop);
    assert_true(hps_metric_value(t->series.requests_in_flight) == 0);
    assert_int_equal(hps_admission_bytes(t->admission), 0);
    assert_int_equal(hps_block_pool_bytes(t->blocks), 0);
    assert_true(hps_version_idle(&t->fx.version));
    check_times(t);
    hps_updates_free(t->fx.version.updates); /* nobody holds them back */
    hps_stamps_free(t->fx.version.stamps);
    t->fx.version.stamps = NULL;
    if (t->gpu.tier != NULL) {
        gpu_fixture_close(&t->gpu);
    }
    hps_lookup_service_free(t->service);
    hps_admission_free(t->admission);
    hps_slowlog_free(t->slowlog);
    hps_block_pool_free(t->blocks);
    assert_int_equal(hps_models_remove(t->models, "m", 7), HPS_OK);
    hps_models_free(t->models);
    hps_metrics_free(t->metrics);
    fixture_close(&t->fx);
    for (unsigned i = 0; i < CALLS; i++) {
        assert_int_equal(atomic_load(&t->calls[i].refs), 1);
        assert_int_equal(t->calls[i].charged, 0);
        for (unsigned m = 0; m < t->calls[i].n_messages; m++) {
            hps__v1__lookup_response__free_unpacked(t->calls[i].messages[m], NULL);
        }
    }
    hps_free(t);
    hps_clock_real();
    hps_log_level_set(HPS_LOG_INFO);
    return 0;
}

/* Send a request for keys[0 .. n) of `table`; the message dies with the callback. */
static void start(struct service_test *t, unsigned i, unsigned method, const char *model,
                  const char *table, uint32_t n)
{
    Hps__V1__TableQuery query = HPS__V1__TABLE_QUERY__INIT;
    Hps__V1__TableQuery *queries[] = {&query};
    Hps__V1__LookupRequest request = HPS__V1__LOOKUP_REQUEST__INIT;
    uint32_t offsets[2] = {0, n};

    query.table = (char *)table;
    query.keys.data = (uint8_t *)t->keys;
    query.keys.len = (size_t)n * sizeof(hps_key);
    if (t->pooled) {
        query.pooling = HPS__V1__POOLING__POOLING_SUM;
        query.offsets = (ProtobufCBinaryData){sizeof(offsets), (uint8_t *)offsets};
    }
    request.model = (char *)model;
    request.queries = queries;
    request.n_queries = 1;
    request.explain = 1;
    if (t->unit) {
        request.consistency = HPS__V1__CONSISTENCY__CONSISTENCY_UNIT;
    }
    if (t->max_wait_us > 0) {
        request.miss_policy = HPS__V1__MISS_POLICY__MISS_POLICY_WAIT;
        request.max_wait_us = t->max_wait_us;
    }
    size_t size = hps__v1__lookup_request__get_packed_size(&request);
    uint8_t *bytes = hps_alloc(size);
    assert_non_null(bytes);
    hps__v1__lookup_request__pack(&request, bytes);
    t->calls[i].ctx = t->grpc->ctx;
    const struct hps_grpc_packed packed = {.data = bytes, .size = size, .size_max = SIZE_MAX};
    t->grpc->methods[method].on_packed(&t->calls[i], &packed);
    hps_free(bytes);
}

static void close_call(struct service_test *t, unsigned i)
{
    atomic_store(&t->calls[i].cancelled, t->calls[i].code < 0);
    t->grpc->methods[LOOKUP].on_close(&t->calls[i]);
}

static void run_until_finished(struct service_test *t, unsigned i)
{
    while (t->calls[i].code < 0) {
        hps_loop_turn(t->loop, 100000);
    }
}

static void use_key(struct service_test *t, uint32_t tier, hps_key key)
{
    fixture_put(&t->fx, tier, 0, key);
    t->keys[0] = key;
}

static void check_row(const struct hps_grpc_call *call, const struct service_test *t, hps_key key)
{
    uint8_t row[16];

    fixture_row(&t->fx.tables[0], key, row);
    assert_int_equal(call->code, 0);
    assert_int_equal(call->n_messages, 1);
    assert_int_equal(call->messages[0]->version, 7);
    assert_memory_equal(call->messages[0]->results[0]->rows.data, row, 16);
}

static void test_service_when_memory_has_the_rows_then_answered_inline(void **state)
{
    struct service_test *t = *state;
    struct hps_slow_request slow;

    open_service(t, 1 << 20, 1 << 20);
    use_key(t, FIXTURE_HOST, 5);
    start(t, 0, LOOKUP, "m", "t0", 1);
    check_row(&t->calls[0], t, 5);
    assert_true(hps_version_idle(&t->fx.version)); /* not held while the client reads */
    assert_true(hps_admission_bytes(t->admission) > 0);
    assert_string_equal(t->calls[0].messages[0]->explain->stages[0]->name, "decode");
    assert_true(t->calls[0].messages[0]->explain->n_notes > 0);
    close_call(t, 0);
    assert_int_equal(hps_slowlog_snapshot(t->slowlog, &slow, 1), 1);
    assert_string_equal(slow.request_id, "hdr-1");
    assert_string_equal(slow.model, "m");
    assert_int_equal(slow.grpc_code, 0);
    assert_int_equal(slow.n_unique, 1);
}

static void test_slowlog_when_the_reply_is_not_taken_then_says_cancelled(void **state)
{
    struct service_test *t = *state;
    struct hps_slow_request slow;

    open_service(t, 1 << 20, 1 << 20);
    use_key(t, FIXTURE_HOST, 5);
    start(t, 0, LOOKUP, "m", "t0", 1);
    assert_int_equal(t->calls[0].code, 0);
    atomic_store(&t->calls[0].cancelled, true);
    t->grpc->methods[LOOKUP].on_close(&t->calls[0]);
    assert_int_equal(hps_slowlog_snapshot(t->slowlog, &slow, 1), 1);
    assert_int_equal(slow.grpc_code, 1);
}

static void test_usage_when_look_ups_end_then_each_counts_where_its_time_went(void **state)
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
    assert_int_equal(sums.n_good, 0); /* its client has not taken the answer yet */
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

    start(t, 1, LOOKUP, "m", "nope", 1);    /* a table that is not there, */
    start(t, 2, LOOKUP, "m", "t0", 1000);   /* an answer that is too large, */
    start(t, 3, LOOKUP, "absent", "t0", 1); /* and one that is of no version */
    for (unsigned i = 1; i < CALLS; i++) {
        close_call(t, i);
    }
    hps_usage_get(t->fx.version.usage, &sums);
    assert_int_equal(sums.n_good, 1);
    assert_int_equal(sums.n_failed, 2);
    t->fx.version.usage = NULL;
    hps_usages_free(usages);
}

static void test_usage_when_the_answer_is_not_taken_then_it_has_failed(void **state)
{
    struct service_test *t = *state;
    struct hps_usages *usages = hps_usages_new();
    struct hps_usage_sums sums;

    open_service(t, 1 << 20, 1 << 20);
    t->fx.version.usage = hps_usages_of(usages, "m", 7);
    use_key(t, FIXTURE_HOST, 5);
    start(t, 0, LOOKUP, "m", "t0", 1);
    atomic_store(&t->calls[0].cancelled, true);
    t->grpc->methods[LOOKUP].on_close(&t->calls[0]);
    hps_usage_get(t->fx.version.usage, &sums);
    assert_int_equal(sums.n_good, 0);
    assert_int_equal(sums.n_failed, 1);
    t->fx.version.usage = NULL;
    hps_usages_free(usages);
}

static void test_service_when_a_store_may_block_then_a_worker_asks_it(void **state)
{
    struct service_test *t = *state;

    open_service(t, 1 << 20, 1 << 20);
    use_key(t, FIXTURE_DISK, 5);
    start(t, 0, LOOKUP, "m", "", 1);
    assert_int_equal(t->calls[0].code, -1);
    run_until_finished(t, 0);
    check_row(&t->calls[0], t, 5);
    close_call(t, 0);
}

static void test_service_when_requests_are_wrong_then_status_and_text_say_so(void **state)
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
    for (unsigned i = 0; i < CALLS; i++) {
        close_call(t, i);
    }
}

/* The answer is one row of 16 bytes, and what it is made of 1,000. */
static void test_service_when_a_bag_is_asked_then_its_rows_count_as_the_reply_does(void **state)
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
    assert_in_range(t->calls[1].charged, 500 * (16 + 50 + 1), 500 * 70 + 3000);
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
    close_call(t, 0);
    close_call(t, 1);
}

static void test_limits_when_set_then_requests_that_come_have_them(void **state)
{
    struct service_test *t = *state;
    struct hps_lookup_limits limits = HPS_LOOKUP_LIMITS_DEFAULT;

    open_service(t, 64 << 20, 64 << 20);
    limits.keys_max = 2;
    hps_lookup_service_limits_set(t->service, &limits);
    start(t, 0, LOOKUP, "m", "t0", 3);
    assert_int_equal(t->calls[0].code, 3);
    assert_non_null(strstr(t->calls[0].text, "limit is 2"));
    start(t, 1, LOOKUP, "m", "t0", 2); /* its memory is used again below */
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
    close_call(t, 3);
}

/* The slow log is answered as strings, which must be UTF-8. */
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
    model[0] = 'm'; /* so that a character of two bytes comes to lie on the end of what is kept */
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

static void test_service_when_the_client_goes_then_work_is_dropped(void **state)
{
    struct service_test *t = *state;

    open_service(t, 1 << 20, 1 << 20);
    use_key(t, FIXTURE_DISK, 5);
    hps_fake_gate_shut(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET);
    start(t, 0, LOOKUP, "m", "t0", 1);
    hps_fake_gate_wait(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET, 1);
    start(t, 1, LOOKUP, "m", "t0", 1); /* waits for the worker */
    close_call(t, 0);
    close_call(t, 1);
    hps_fake_gate_open(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET);
    while (hps_admission_bytes(t->admission) > 0) {
        hps_loop_turn(t->loop, 100000);
    }
    assert_int_equal(t->calls[0].n_messages + t->calls[1].n_messages, 0);
    assert_int_equal(hps_fake_calls(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET), 1);
}

static void test_service_when_workers_are_busy_then_refused_with_pushback(void **state)
{
    struct service_test *t = *state;

    open_service(t, 1 << 20, 1 << 20);
    use_key(t, FIXTURE_DISK, 5);
    hps_fake_gate_shut(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET);
    start(t, 0, LOOKUP, "m", "t0", 1);
    hps_fake_gate_wait(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET, 1);
    start(t, 1, LOOKUP, "m", "t0", 1);
    start(t, 2, LOOKUP, "m", "t0", 1);
    assert_int_equal(t->calls[2].code, 8);
    assert_string_equal(t->calls[2].pushback, "100");
    hps_fake_gate_open(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET);
    run_until_finished(t, 0);
    run_until_finished(t, 1);
    check_row(&t->calls[1], t, 5);
    for (unsigned i = 0; i < 3; i++) {
        close_call(t, i);
    }
}

/* It waits for the thread as long as it takes. */
static void start_in_queue(struct service_test *t, unsigned i)
{
    uint32_t max_wait_us = t->max_wait_us;

    t->max_wait_us = 0;
    start(t, i, LOOKUP, "m", "t0", 1);
    t->max_wait_us = max_wait_us;
    assert_int_equal(t->calls[i].code, -1);
}

/* The only I/O thread hangs in a store, as all of them do on a disk that hangs. */
static void test_wait_when_no_thread_is_free_in_time_then_answered_without_rows(void **state)
{
    struct service_test *t = *state;

    open_service(t, 1 << 20, 1 << 20);
    use_key(t, FIXTURE_DISK, 5);
    hps_fake_gate_shut(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET);
    start(t, 0, LOOKUP, "m", "t0", 1);
    hps_fake_gate_wait(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET, 1);
    t->max_wait_us = 1000;
    start(t, 1, LOOKUP, "m", "t0", 1);
    assert_int_equal(t->calls[1].code, -1);
    run_until_finished(t, 1); /* behind the gate, for ever */
    assert_int_equal(t->calls[1].code, 0);
    Hps__V1__TableResult *result = t->calls[1].messages[0]->results[0];
    assert_int_equal(result->defaulted_key_count, 1);
    assert_int_equal(result->key_status.data[0], HPS_KEY_DEFAULTED);
    assert_memory_equal(result->rows.data, t->fx.default_rows[0], 16);
    close_call(t, 1);
    assert_int_equal(t->calls[0].code, -1);
    start_in_queue(t, 2);
    start(t, 3, LOOKUP, "m", "t0", 1); /* nor is there room to wait in */
    assert_int_equal(t->calls[3].code, 0);
    assert_int_equal(t->calls[3].messages[0]->results[0]->defaulted_key_count, 1);
    hps_fake_gate_open(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET);
    for (unsigned i = 0; i < 4; i += i == 0 ? 2 : 1) {
        run_until_finished(t, i);
        close_call(t, i);
    }
    check_row(&t->calls[0], t, 5);
    check_row(&t->calls[2], t, 5);
    assert_int_equal(hps_fake_calls(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET), 2);
}

/* The loop and the I/O thread both would have it. */
static void test_wait_when_its_time_ends_as_a_thread_comes_then_answered_once(void **state)
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

/* What it held is free at once, not when a thread comes to it. */
static void test_service_when_the_client_goes_before_its_turn_then_all_is_given_back(void **state)
{
    struct service_test *t = *state;

    open_service(t, 1 << 20, 1 << 20);
    use_key(t, FIXTURE_DISK, 5);
    hps_fake_gate_shut(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET);
    start(t, 0, LOOKUP, "m", "t0", 1);
    hps_fake_gate_wait(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET, 1);
    uint64_t bytes = hps_admission_bytes(t->admission);
    for (unsigned i = 1; i < CALLS; i++) { /* also the room in the queue, which is for one */
        t->max_wait_us = i % 2 == 0 ? 0 : 100 * 1000 * 1000;
        start(t, i, LOOKUP, "m", "t0", 1);
        assert_int_equal(t->calls[i].code, -1);
        close_call(t, i);
        assert_int_equal(hps_admission_bytes(t->admission), bytes);
        assert_int_equal(atomic_load(&t->calls[i].refs), 1);
    }
    hps_fake_gate_open(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET);
    run_until_finished(t, 0);
    check_row(&t->calls[0], t, 5);
    close_call(t, 0);
    assert_int_equal(hps_fake_calls(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET), 1);
}

/* A worker has asked memory for all of it; then there is no room in front of the I/O threads. */
static void test_service_when_a_large_look_up_finds_no_thread_then_refused_with_pushback(
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
        nap();
    }
    start(t, 1, LOOKUP, "m", "t0", 1);
    hps_fake_gate_wait(disk, HPS_FAKE_GET, 1);
    start(t, 2, LOOKUP, "m", "t0", 1); /* waits for the thread */
    assert_int_equal(t->calls[2].code, -1);
    run_until_finished(t, 0);
    assert_int_equal(t->calls[0].code, 8);
    assert_string_equal(t->calls[0].pushback, "100");
    assert_true(hps_metric_value(t->series.rejected[HPS_REJECT_WORKERS]) == 1);
    hps_fake_gate_open(disk, HPS_FAKE_GET);
    run_until_finished(t, 2);
    for (unsigned i = 0; i < 3; i++) {
        close_call(t, i);
    }
}

static void test_service_when_replies_fill_memory_then_the_next_waits_for_room(void **state)
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
    close_call(t, 2);
}

static void pass(struct service_test *t, uint64_t us)
{
    hps_clock_advance(us);
    hps_loop_turn(t->loop, 0);
}

/* A wait of 250 ms, in which readers are looked at; slow ones give way in its last half. */
static void test_service_when_room_does_not_come_then_refused_with_pushback(void **state)
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
    assert_int_equal(t->calls[1].code, 8);
    assert_string_equal(t->calls[1].pushback, "100");
    close_call(t, 1);
    close_call(t, 0);
}

static void test_service_when_too_many_wait_for_room_then_slow_readers_give_way(void **state)
{
    struct service_test *t = *state;

    open_service(t, 10, 1 << 20); /* one reply at a time, two may wait */
    use_key(t, FIXTURE_HOST, 5);
    for (unsigned i = 0; i < CALLS; i++) {
        start(t, i, LOOKUP, "m", "t0", 1);
    }
    assert_int_equal(t->calls[3].code, 8);
    assert_int_equal(t->calls[3].n_cut, 1);
    for (unsigned i = CALLS; i-- > 0;) {
        close_call(t, i);
    }
}

static void test_service_when_a_look_up_is_let_in_then_counts_against_its_connection(void **state)
{
    struct service_test *t = *state;

    open_service(t, 1 << 20, 1 << 20);
    use_key(t, FIXTURE_HOST, 5);
    start(t, 0, LOOKUP, "m", "t0", 1);
    assert_int_equal(t->calls[0].charged, hps_admission_bytes(t->admission));
    assert_true(t->calls[0].charged > 0);
    close_call(t, 0);
    assert_int_equal(t->calls[0].charged, 0);
}

static void test_service_when_its_connection_has_no_room_then_waits_and_is_not_admitted(
    void **state)
{
    struct service_test *t = *state;

    open_service(t, 1 << 20, 1 << 20);
    use_key(t, FIXTURE_HOST, 5);
    for (unsigned i = 0; i < 2; i++) {
        t->calls[i].crowded = true;
        start(t, i, LOOKUP, "m", "t0", 1);
        assert_int_equal(t->calls[i].code, -1);
    }
    assert_int_equal(hps_admission_bytes(t->admission), 0);
    close_call(t, 0); /* gives up */
    assert_int_equal(atomic_load(&t->calls[0].refs), 1);
    t->grpc->methods[LOOKUP].on_room(&t->calls[1]);
    check_row(&t->calls[1], t, 5);
    close_call(t, 1);
}

/* Its client may take its time to read of it: as long, nothing of its message is kept. */
static size_t kept_of(const struct hps_grpc_call *call)
{
    return hps_arena_used(((const struct request *)call->user)->arena);
}

static void test_service_when_it_may_not_even_wait_then_refused_with_pushback(void **state)
{
    struct service_test *t = *state;

    open_service(t, 1 << 20, 1 << 20);
    use_key(t, FIXTURE_HOST, 5);
    t->calls[0].turned_away = true;
    start(t, 0, LOOKUP, "m", "t0", 1);
    assert_true(t->calls[0].held >= sizeof(hps_key)); /* its keys at least */
    assert_int_equal(kept_of(&t->calls[0]), 0);
    assert_int_equal(t->calls[0].code, 8);
    assert_non_null(strstr(t->calls[0].text, "connection_reply_bytes"));
    assert_string_equal(t->calls[0].pushback, "100");
    assert_true(hps_metric_value(t->series.rejected[HPS_REJECT_CONNECTION]) == 1);
    assert_int_equal(hps_admission_bytes(t->admission), 0);
    close_call(t, 0);
}

static void test_service_when_its_connection_gets_no_room_then_refused_with_pushback(void **state)
{
    struct service_test *t = *state;

    hps_clock_fake(1000000);
    open_service(t, 1 << 20, 1 << 20);
    use_key(t, FIXTURE_HOST, 5);
    hps_loop_turn(t->loop, 0);
    t->calls[0].crowded = true;
    start(t, 0, LOOKUP, "m", "t0", 1);
    hps_clock_advance(9999999);
    hps_loop_turn(t->loop, 0);
    assert_int_equal(t->calls[0].code, -1);
    assert_true(kept_of(&t->calls[0]) > 0);
    hps_clock_advance(2);
    hps_loop_turn(t->loop, 0);
    assert_int_equal(t->calls[0].code, 8);
    assert_int_equal(kept_of(&t->calls[0]), 0);
    assert_non_null(strstr(t->calls[0].text, "connection_reply_bytes"));
    assert_string_equal(t->calls[0].pushback, "100");
    assert_true(hps_metric_value(t->series.rejected[HPS_REJECT_CONNECTION]) == 1);
    close_call(t, 0);
}

/* ---- where the time goes --------------------------------------------------------------------- */

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
    open_service(t, 1 << 20, 1 << 20);
    use_key(t, FIXTURE_DISK, 5);
    hps_fake_latency(t->fx.stores[FIXTURE_HOST], HPS_FAKE_GET, 30);
    hps_fake_latency(t->fx.stores[FIXTURE_HOST], HPS_FAKE_INSERT, 7);
    hps_fake_gate_shut(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET);
    start(t, 0, LOOKUP, "m", "t0", 1);
    hps_fake_gate_wait(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET, 1);
    t->calls[1].received_us = 900;
    start(t, 1, LOOKUP, "m", "t0", 1); /* waits for the worker */
    hps_clock_advance(2000);
    hps_fake_gate_open(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET);
    while (hps_fake_calls(t->fx.stores[FIXTURE_HOST], HPS_FAKE_INSERT) == 0) {
        nap();
    }
    run_until_finished(t, 0);
    hps_clock_advance(400); /* the clients read slowly */
    close_call(t, 0);
    struct hps_slow_request slow = newest(t);
    assert_true(slow.stage_us[HPS_STAGE_ROCKSDB] >= 2000); /* the gate */
    assert_true(slow.stage_us[HPS_STAGE_HOST] >= 30);
    assert_true(slow.stage_us[HPS_STAGE_WORK] >= 7); /* its row was put above */
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
    open_service(t, 1 << 20, 1 << 20);
    use_key(t, FIXTURE_DISK, 5);
    start(t, 0, LOOKUP, "m", "t0", 1);
    hps_pool_free(t->workers); /* its work is done, and posted to the loop */
    t->workers = NULL;
    hps_clock_advance(3000);
    run_until_finished(t, 0);
    close_call(t, 0);
    assert_int_equal(newest(t).stage_us[HPS_STAGE_LOOP], 3000);
}

static void test_times_when_there_is_no_room_for_the_reply_then_admission_is_named(void **state)
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
    open_service(t, 1 << 20, 1 << 20);
    use_key(t, FIXTURE_DISK, 5);
    hps_fake_gate_shut(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET);
    start(t, 0, LOOKUP, "m", "t0", 1);
    hps_fake_gate_wait(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET, 1);
    start(t, 1, LOOKUP, "m", "t0", 1);
    unsigned n_looks = atomic_load(&t->calls[1].n_looks);
    while (atomic_load(&t->calls[1].n_looks) < n_looks + 4) { /* again and again while it waits */
        nap();
    }
    hps_clock_advance(6000);
    hps_fake_gate_open(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET);
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
    start(t, 0, LOOKUP_STREAM, "m", "t2", TEST_KEYS_MAX);                        /* 3.84 MB */
    assert_true(hps_admission_bytes(t->admission) >= TEST_KEYS_MAX * (64 + 50)); /* and its work */
    while (call->n_messages == 0) {
        hps_loop_turn(t->loop, 100000);
    }
    assert_int_equal(call->n_messages, 3); /* two are just below the mark */
    assert_int_equal(call->code, -1);
    call->queued = 0;
    t->grpc->methods[LOOKUP_STREAM].on_drained(call);
    assert_int_equal(call->code, 0);
    for (unsigned i = 0; i < call->n_messages; i++) {
        n_rows += call->messages[i]->results[0]->row_count;
    }
    assert_int_equal(n_rows, TEST_KEYS_MAX);
    close_call(t, 0);
}

static void test_service_when_a_stream_is_late_then_no_more_of_it_is_encoded(void **state)
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
            hps_clock_advance(50 * 1000 * 1000); /* the call's own timer comes a little later */
        } else {
            atomic_store(&call->cancelled, true); /* it is over, but for what is queued */
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

/* Keys [0, 100) in the gpu, [50, 150) in the host map, all up to GPU_KEYS but each hundredth on the
 * disk. */
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

/* Of all messages: keys that the tier is said to have found. */
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

static void test_gpu_when_it_is_first_then_named_in_the_answer(void **state)
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
    ask_service(t, 1, LOOKUP_STREAM, 150); /* what was found below is there now */
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
    ask_service(t, 1, LOOKUP, 100); /* all in memory: answered without an I/O thread */
    assert_int_equal(n_found_by(&t->calls[1], "gpu"), 50);
}

static void test_gpu_when_a_look_up_is_large_then_workers_take_the_steps(void **state)
{
    struct service_test *t = *state;

    for (enum hps_lookup_path path = HPS_LOOKUP_PATH_GPU; path <= HPS_LOOKUP_PATH_HOST; path++) {
        if (path != HPS_LOOKUP_PATH_GPU) {
            teardown(state);
            setup(state);
            t = *state;
        }
        open_gpu_service(t, path);
        ask_service(t, 0, LOOKUP_STREAM, GPU_KEYS);
        assert_int_equal(n_found_by(&t->calls[0], "gpu"), path == HPS_LOOKUP_PATH_HOST ? 50 : 100);
        assert_int_equal(n_found_by(&t->calls[0], "host"), path == HPS_LOOKUP_PATH_HOST ? 100 : 50);
    }
}

static void test_gpu_when_the_client_goes_meanwhile_then_its_memory_stays_until_then(void **state)
{
    struct service_test *t = *state;

    for (enum hps_lookup_path path = HPS_LOOKUP_PATH_GPU; path <= HPS_LOOKUP_PATH_HOST; path++) {
        if (path != HPS_LOOKUP_PATH_GPU) {
            teardown(state);
            setup(state);
            t = *state;
        }
        open_gpu_service(t, path);
        hps_device_sim_hold(t->gpu.tier->device, true);
        start(t, 0, LOOKUP, "m", "t0", 160);
        while (atomic_load(&t->gpu.tier->n_waiting) == 0) {
            hps_loop_turn(t->loop, 1000);
        }
        close_call(t, 0);
        hps_loop_turn(t->loop, 0);
        assert_true(hps_admission_bytes(t->admission) > 0);
        assert_true(hps_block_pool_bytes(t->gpu.blocks) > 0);
        assert_false(hps_version_idle(&t->fx.version));
        hps_device_sim_hold(t->gpu.tier->device, false);
        while (hps_admission_bytes(t->admission) > 0) {
            hps_loop_turn(t->loop, 1000);
        }
        assert_int_equal(t->calls[0].n_messages, 0);
        hps_gpu_tier_drain(t->gpu.tier);
        assert_int_equal(hps_block_pool_bytes(t->gpu.blocks), 0);
    }
}

/* It hangs: who waits for a time only is answered then, whatever is asked first. */
static void test_gpu_when_the_wait_is_over_then_answered_and_its_memory_stays(void **state)
{
    struct service_test *t = *state;

    for (enum hps_lookup_path path = HPS_LOOKUP_PATH_GPU; path <= HPS_LOOKUP_PATH_HOST; path++) {
        if (path != HPS_LOOKUP_PATH_GPU) {
            teardown(state);
            setup(state);
            t = *state;
        }
        open_gpu_service(t, path);
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
        assert_true(hps_admission_bytes(t->admission) > 0);
        assert_false(hps_version_idle(&t->fx.version));
        hps_device_sim_hold(t->gpu.tier->device, false);
        while (hps_admission_bytes(t->admission) > 0) {
            hps_loop_turn(t->loop, 1000);
        }
        assert_true(hps_version_idle(&t->fx.version));
        hps_gpu_tier_drain(t->gpu.tier);
        assert_int_equal(hps_block_pool_bytes(t->gpu.blocks), 0);
    }
}

static void test_gpu_when_it_is_lost_meanwhile_then_answered_from_below(void **state)
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
    /* Lost before the batch began, or after. */
    assert_true(hps_metric_value(errors[HPS_FAULT_UNAVAILABLE]) +
                    hps_metric_value(errors[HPS_FAULT_OTHER]) ==
                1);
    ask_service(t, 2, LOOKUP, 160);
    assert_int_equal(n_found_by(&t->calls[2], "gpu"), 0);
}

/* ---- calls that carry many ------------------------------------------------------------------- */

enum { HOUR_US = 3600u * 1000 * 1000 };

/* As hps.v1, with a deadline in the message. */
static hps_status streamed_decode(const struct hps_grpc_call *call, const uint8_t *data,
                                  size_t size, const struct hps_decode_limits *limits,
                                  struct hps_arena *arena, struct hps_lookup_request *out_request,
                                  struct hps_lookup_asked **out_asked, struct hps_error *err)
{
    hps_status status = hps_decode_lookup(data, size, limits, arena, out_request, err);

    (void)call;
    (void)out_asked;
    out_request->timeout_us = HOUR_US / 2;
    return status;
}

static uint64_t streamed_bytes_max(const struct hps_lookup_asked *asked,
                                   const struct hps_lookup *lookup)
{
    (void)asked;
    return hps_encode_size_max(lookup);
}

static hps_status streamed_encode(struct hps_grpc_call *call, const struct hps_lookup_asked *asked,
                                  const struct hps_lookup *lookup,
                                  const struct hps_encode_explain *explain, struct hps_block *rows,
                                  struct hps_block_pool *pool, struct hps_arena *arena,
                                  struct hps_encoded *out_encoded, struct hps_error *err)
{
    (void)call;
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

/* The next message of a stream: keys[0 .. n) of t0. */
static void send_next(struct service_test *t, unsigned i, uint32_t n)
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
    assert_false(t->calls[i].paused);
    hps_lookup_stream_packed(t->service, &streamed, &t->calls[i], &packed);
    hps_free(bytes);
}

/* The client has read all. */
static void read_all(struct service_test *t, unsigned i)
{
    t->calls[i].queued = 0;
    hps_lookup_stream_drained(&t->calls[i]);
    hps_loop_turn(t->loop, 0);
}

static void test_many_when_the_call_began_long_ago_then_each_has_its_own_time(void **state)
{
    struct service_test *t = *state;
    static struct hps_slow_request slow[HPS_SLOWLOG_SIZE];
    struct hps_grpc_call *call = &t->calls[0];

    open_service(t, 1 << 20, 1 << 20);
    use_key(t, FIXTURE_HOST, 5);
    call->received_us = HOUR_US;
    for (unsigned n = 1; n <= 2; n++) {
        send_next(t, 0, 1);
        assert_int_equal(call->n_messages, n);
        assert_true(call->paused);
        read_all(t, 0);
        assert_false(call->paused);
        assert_int_equal(call->charged, 0);
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

/* What the gpu still has counts, and a call counts one at a time. */
static void test_many_when_the_gpu_is_left_with_one_then_the_next_waits_for_it(void **state)
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
    assert_true(call->charged > 0);
    hps_device_sim_hold(t->gpu.tier->device, false);
    while (call->paused) {
        hps_loop_turn(t->loop, 1000);
    }
    assert_int_equal(call->charged, 0);
    assert_int_equal(hps_admission_bytes(t->admission), 0);
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

/* ---- units ----------------------------------------------------------------------------------- */

static void open_unit_service(struct service_test *t)
{
    struct hps_error err;

    hps_pool_free(t->workers); /* one where several can wait for the thread */
    assert_int_equal(hps_pool_new("work", 1, 8, &t->workers), HPS_OK);
    open_service(t, 1 << 20, 1 << 20);
    assert_int_equal(hps_update_open(&t->fx.version, &err), HPS_OK);
    t->unit = true;
}

/* One of other keys than those that are asked for, or of key 5. */
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

/* A look-up waits for the end of the batch that is under way. */
static void run_until_held(struct service_test *t)
{
    while (!is_held(&t->fx.version)) {
        hps_loop_turn(t->loop, 1000);
    }
}

static void run_until_dropped(struct service_test *t, unsigned i)
{
    while (atomic_load(&t->calls[i].refs) > 1) {
        hps_loop_turn(t->loop, 1000);
    }
}

static bool was_read_again(const struct hps_grpc_call *call)
{
    const Hps__V1__Explain *explain = call->messages[0]->explain;
    return strstr(explain->notes[0], "read again") != NULL;
}

static void test_unit_when_no_update_comes_then_answered_inline(void **state)
{
    struct service_test *t = *state;

    open_unit_service(t);
    use_key(t, FIXTURE_HOST, 5);
    start(t, 0, LOOKUP, "m", "t0", 1);
    check_row(&t->calls[0], t, 5);
    assert_false(was_read_again(&t->calls[0]));
    close_call(t, 0);
}

static void test_unit_when_a_batch_of_other_keys_is_under_way_then_answered_inline(void **state)
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

static void test_unit_when_a_batch_of_its_keys_is_under_way_then_answered_after_it(void **state)
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

static void test_unit_when_updates_come_again_and_again_then_they_are_held_at_last(void **state)
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
    run_until_aborted(t, "arrived during the look-up");
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

static void test_unit_when_the_batch_is_whole_while_it_waits_then_answered(void **state)
{
    struct service_test *t = *state;

    hps_clock_fake(1000);
    open_unit_service(t);
    use_key(t, FIXTURE_HOST, 5);
    begin_batch(t, true);
    update_turn_end(t->fx.version.updates);
    start(t, 0, LOOKUP, "m", "t0", 1);
    while (hps_fake_calls(t->fx.stores[FIXTURE_HOST], HPS_FAKE_GET) < 3) { /* again, and waited */
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

/* Other daemons have brought the only copy of the row on: it is read when the own updates are
 * there, too, which nothing holds back meanwhile. */
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
    close_call(t, 1); /* waits no longer, wherever it is */
    run_until_finished(t, 0);
    assert_int_equal(t->calls[0].code, 10);
    assert_string_equal(t->calls[0].pushback, "100");
    assert_non_null(strstr(t->calls[0].text, "updates that this version has not had yet"));
    assert_in_range(hps_fake_calls(disk, HPS_FAKE_GET), HPS_LOOKUP_WAITS_MAX + 1,
                    2 * (HPS_LOOKUP_WAITS_MAX + 1));
    close_call(t, 0);
}

/* ---- units, and who waits for whom ----------------------------------------------------------- */

/* The only I/O thread asks a store that hangs, for call i. */
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

/* Look-ups that need an I/O thread: to be read, to be read again, and while they stand in line. */
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
        begin_batch(t, true); /* waits for nobody */
        end_batch(t);
    }
    unblock_io(t, 0);
    for (unsigned i = 1; i < 3; i++) {
        run_until_finished(t, i);
        check_row(&t->calls[i], t, 5);
        close_call(t, i);
    }
}

static void test_unit_when_a_store_hangs_then_the_next_batch_begins_all_the_same(void **state)
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

    hps_pool_free(t->workers); /* one where one can wait for the thread */
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

static void test_unit_when_the_client_goes_while_a_batch_is_waited_for_then_all_is_given_back(
    void **state)
{
    struct service_test *t = *state;

    open_unit_service(t);
    use_key(t, FIXTURE_HOST, 5);
    begin_batch(t, true);
    start(t, 0, LOOKUP, "m", "t0", 1);
    run_until_held(t);
    start(t, 1, LOOKUP, "m", "t0", 1); /* behind it, for the only thread */
    close_call(t, 1);
    assert_int_equal(atomic_load(&t->calls[1].refs), 1);
    close_call(t, 0);
    end_batch(t);
    run_until_dropped(t, 0);
    assert_int_equal(t->calls[0].code, -1);
    assert_false(is_held(&t->fx.version));
}

static void test_unit_when_the_client_goes_before_it_is_read_again_then_all_is_given_back(
    void **state)
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
    const struct CMUnitTest tests[] = {
        SERVICE_TEST(test_service_when_memory_has_the_rows_then_answered_inline),
        SERVICE_TEST(test_slowlog_when_the_reply_is_not_taken_then_says_cancelled),
        SERVICE_TEST(test_usage_when_look_ups_end_then_each_counts_where_its_time_went),
        SERVICE_TEST(test_usage_when_the_answer_is_not_taken_then_it_has_failed),
        SERVICE_TEST(test_service_when_a_store_may_block_then_a_worker_asks_it),
        SERVICE_TEST(test_service_when_requests_are_wrong_then_status_and_text_say_so),
        SERVICE_TEST(test_service_when_a_bag_is_asked_then_its_rows_count_as_the_reply_does),
        SERVICE_TEST(test_limits_when_set_then_requests_that_come_have_them),
        SERVICE_TEST(test_service_when_a_name_is_not_text_then_the_slow_log_has_text),
        SERVICE_TEST(test_service_when_the_client_goes_then_work_is_dropped),
        SERVICE_TEST(test_service_when_workers_are_busy_then_refused_with_pushback),
        SERVICE_TEST(test_wait_when_no_thread_is_free_in_time_then_answered_without_rows),
        SERVICE_TEST(test_wait_when_its_time_ends_as_a_thread_comes_then_answered_once),
        SERVICE_TEST(test_service_when_the_client_goes_before_its_turn_then_all_is_given_back),
        SERVICE_TEST(test_service_when_a_large_look_up_finds_no_thread_then_refused_with_pushback),
        SERVICE_TEST(test_service_when_replies_fill_memory_then_the_next_waits_for_room),
        SERVICE_TEST(test_service_when_room_does_not_come_then_refused_with_pushback),
        SERVICE_TEST(test_service_when_too_many_wait_for_room_then_slow_readers_give_way),
        SERVICE_TEST(test_service_when_a_look_up_is_let_in_then_counts_against_its_connection),
        SERVICE_TEST(test_service_when_its_connection_has_no_room_then_waits_and_is_not_admitted),
        SERVICE_TEST(test_service_when_it_may_not_even_wait_then_refused_with_pushback),
        SERVICE_TEST(test_service_when_its_connection_gets_no_room_then_refused_with_pushback),
        SERVICE_TEST(test_times_when_a_store_is_slow_then_each_wait_has_its_name),
        SERVICE_TEST(test_times_when_the_loop_is_busy_then_that_is_named),
        SERVICE_TEST(test_times_when_there_is_no_room_for_the_reply_then_admission_is_named),
        SERVICE_TEST(test_times_when_another_fetches_the_row_then_the_wait_is_named),
        SERVICE_TEST(test_service_when_streamed_then_sent_as_it_drains),
        SERVICE_TEST(test_service_when_a_stream_is_late_then_no_more_of_it_is_encoded),
        SERVICE_TEST(test_unit_when_no_update_comes_then_answered_inline),
        SERVICE_TEST(test_unit_when_a_batch_of_other_keys_is_under_way_then_answered_inline),
        SERVICE_TEST(test_unit_when_a_batch_of_its_keys_is_under_way_then_answered_after_it),
        SERVICE_TEST(test_unit_when_updates_come_again_and_again_then_they_are_held_at_last),
        SERVICE_TEST(test_unit_when_updates_come_for_a_second_then_aborted_with_pushback),
        SERVICE_TEST(test_unit_when_a_batch_stays_in_some_tiers_only_then_aborted_with_pushback),
        SERVICE_TEST(test_unit_when_the_only_copy_is_ahead_then_it_waits_for_updates),
        SERVICE_TEST(test_unit_when_the_only_copy_stays_ahead_then_aborted_with_pushback),
        SERVICE_TEST(test_unit_when_no_io_thread_is_free_then_batches_begin),
        SERVICE_TEST(test_unit_when_a_store_hangs_then_the_next_batch_begins_all_the_same),
        SERVICE_TEST(test_unit_when_it_finds_no_thread_then_refused_with_pushback),
        SERVICE_TEST(
            test_unit_when_the_client_goes_while_a_batch_is_waited_for_then_all_is_given_back),
        SERVICE_TEST(test_unit_when_the_client_goes_before_it_is_read_again_then_all_is_given_back),
        SERVICE_TEST(test_unit_when_the_batch_is_whole_while_it_waits_then_answered),
        SERVICE_TEST(test_gpu_when_it_is_first_then_named_in_the_answer),
        SERVICE_TEST(test_gpu_when_the_host_is_first_then_it_gets_the_misses),
        SERVICE_TEST(test_gpu_when_a_look_up_is_large_then_workers_take_the_steps),
        SERVICE_TEST(test_gpu_when_the_client_goes_meanwhile_then_its_memory_stays_until_then),
        SERVICE_TEST(test_gpu_when_the_wait_is_over_then_answered_and_its_memory_stays),
        SERVICE_TEST(test_gpu_when_it_is_lost_meanwhile_then_answered_from_below),
        SERVICE_TEST(test_many_when_the_call_began_long_ago_then_each_has_its_own_time),
        SERVICE_TEST(test_many_when_the_gpu_is_left_with_one_then_the_next_waits_for_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The lookup service with simulated calls, on a real loop with real workers. Tests run on one
 * thread.
 */
#ifndef HPS_TESTS_LIB_SERVICE_RIG_H
#define HPS_TESTS_LIB_SERVICE_RIG_H

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
#include "tests/lib/pause.h"

/* ---- a call ---------------------------------------------------------------------------------- */

enum { MESSAGES_MAX = 16 };

struct hps_grpc_call {
    void *ctx;
    struct hps_loop *loop;
    void *user;
    atomic_int refs;
    atomic_bool cancelled;
    atomic_uint n_looks; /* calls of hps_grpc_call_cancelled */
    uint64_t deadline_us;
    uint64_t received_us;        /* time that receiving the message took */
    struct hps_version *updated; /* a batch updates this version during the lookup; NULL: none */
    bool unheld;                 /* the batch does not wait for lookups that delay updates */
    bool paused;                 /* no message may be delivered */
    struct hps_charge charge;
    unsigned n_watched; /* slow readers: number of calls that are watched, and cut off */
    unsigned n_cut;
    bool open; /* started and not closed yet */
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

/* Messages are decoded on the loop; test_unpack.c tests messages that are not. */
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

/* Requests in these tests have no deadline except the call's deadline. */
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

/* Applies a batch while a call with `updated` is looked up. */
static void (*service_come_between)(const struct hps_grpc_call *call);

/* Called before each query of a store. */
bool hps_grpc_call_cancelled(const struct hps_grpc_call *call)
{
    atomic_fetch_add(&((struct hps_grpc_call *)(uintptr_t)call)->n_looks, 1);
    if (call->updated != NULL) {
        service_come_between(call);
    }
    return atomic_load(&call->cancelled);
}

struct hps_charge *hps_grpc_call_charge(struct hps_grpc_call *call)
{
    return &call->charge;
}

void hps_grpc_call_discharge(struct hps_grpc_call *call, uint64_t bytes)
{
    hps_charge_shrink(&call->charge, HPS_LIMIT_REPLIES, bytes);
}

/* Reply memory that is charged to a call. */
static uint64_t charged(const struct hps_grpc_call *call)
{
    return call->charge.held[HPS_LIMIT_REPLIES];
}

void hps_grpc_readers_watch(struct hps_grpc_call *call)
{
    call->n_watched++;
}

void hps_grpc_readers_cut(struct hps_grpc_call *call, enum hps_limit_scope scope)
{
    assert_true(call->n_watched > 0);
    call->n_cut += scope == HPS_SCOPE_ALL;
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
    struct hps_limits *limits;
    uint64_t request_bytes_max; /* of all calls; 0: no limit */
    uint64_t connection_max;    /* reply bytes of the connection; 0: no limit */
    struct hps_slowlog *slowlog;
    struct hps_metrics *metrics;
    struct hps_service_metrics series;
    struct hps_lookup_service *service;
    const struct hps_grpc_service *grpc;
    struct hps_grpc_call calls[CALLS];
    uint32_t max_wait_us;   /* of later requests; 0: exact */
    bool unit;              /* likewise */
    bool pooled;            /* likewise: all keys are one bag */
    struct gpu_fixture gpu; /* zeroed: no gpu */
    enum hps_lookup_path path;
    hps_key keys[MANY_KEYS];
};

static void open_service(struct service_test *t, uint64_t bytes_max, uint64_t reply_bytes_max)
{
    const uint64_t none = UINT64_MAX / 4;
    const struct hps_limits_options options = {
        .max = {t->request_bytes_max != 0 ? t->request_bytes_max : none, bytes_max},
        .connection_max = {none, t->connection_max != 0 ? t->connection_max : none}};
    struct hps_error err;

    t->limits = hps_limits_new(&options, NULL);
    assert_non_null(t->limits);
    struct hps_account *connection =
        hps_account_connection(hps_account_get(t->limits, "user:1"), false);
    for (unsigned i = 0; i < CALLS; i++) {
        assert_int_equal(hps_charge_open(&t->calls[i].charge, connection, &err), HPS_OK);
    }
    hps_account_unref(connection);
    struct hps_lookup_service_parts parts = {.models = t->models,
                                             .workers = t->workers,
                                             .io = t->workers,
                                             .blocks =
                                                 t->gpu.tier == NULL ? t->blocks : t->gpu.blocks,
                                             .slowlog = t->slowlog,
                                             .metrics = &t->series,
                                             .limits = HPS_LOOKUP_LIMITS_DEFAULT,
                                             .path = t->path};
    parts.limits.inline_message_bytes = UINT32_MAX;
    parts.limits.reply_bytes_max = reply_bytes_max;
    t->service = hps_lookup_service_new(&parts);
    assert_non_null(t->service);
    t->grpc = hps_lookup_service_grpc(t->service);
}

/* Reply memory of all calls. */
static uint64_t reply_bytes(const struct service_test *t)
{
    return t->limits != NULL ? hps_limits_used(t->limits, HPS_LIMIT_REPLIES) : 0;
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
    t->path = *state == NULL ? HPS_LOOKUP_PATH_GPU : *(const enum hps_lookup_path *)*state;
    *state = t;
    return 0;
}

/* After every test: the times of the stages must add up to the total time. If the client cancelled,
 * running work continues, so the sum may be larger. */
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

/* The client has read the reply, or gives up. */
static void close_call(struct service_test *t, unsigned i)
{
    t->calls[i].open = false;
    atomic_store(&t->calls[i].cancelled, t->calls[i].code < 0);
    t->grpc->methods[LOOKUP].on_close(&t->calls[i]);
}

static int teardown(void **state)
{
    struct service_test *t = *state;

    hps_fake_gate_open(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET); /* if a test failed */
    for (unsigned i = 0; i < CALLS; i++) {
        if (t->calls[i].open) {
            close_call(t, i);
        }
    }
    hps_pool_free(t->workers);
    hps_gpu_tier_drain(t->gpu.tier);
    hps_loop_free(t->loop);
    assert_true(hps_metric_value(t->series.requests_in_flight) == 0);
    assert_int_equal(reply_bytes(t), 0);
    assert_int_equal(hps_block_pool_bytes(t->blocks), 0);
    assert_true(hps_version_idle(&t->fx.version));
    check_times(t);
    hps_updates_free(t->fx.version.updates); /* no lookup delays updates any more */
    hps_stamps_free(t->fx.version.stamps);
    t->fx.version.stamps = NULL;
    if (t->gpu.tier != NULL) {
        gpu_fixture_close(&t->gpu);
    }
    hps_lookup_service_free(t->service);
    for (unsigned i = 0; i < CALLS; i++) {
        hps_charge_close(&t->calls[i].charge);
    }
    hps_limits_free(t->limits);
    hps_slowlog_free(t->slowlog);
    hps_block_pool_free(t->blocks);
    assert_int_equal(hps_models_remove(t->models, "m", 7), HPS_OK);
    hps_models_free(t->models);
    hps_metrics_free(t->metrics);
    fixture_close(&t->fx);
    for (unsigned i = 0; i < CALLS; i++) {
        assert_int_equal(atomic_load(&t->calls[i].refs), 1);
        for (unsigned m = 0; m < t->calls[i].n_messages; m++) {
            hps__v1__lookup_response__free_unpacked(t->calls[i].messages[m], NULL);
        }
    }
    hps_free(t);
    hps_clock_real();
    hps_log_level_set(HPS_LOG_INFO);
    return 0;
}

/* Send a request for keys[0 .. n) of `table`. The message is freed after the callback. */
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
    t->calls[i].open = true;
    const struct hps_grpc_packed packed = {.data = bytes, .size = size, .size_max = SIZE_MAX};
    t->grpc->methods[method].on_packed(&t->calls[i], &packed);
    hps_free(bytes);
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

/* A service with large limits, and key 5 in a tier. */
static void open_with_key(struct service_test *t, uint32_t tier)
{
    open_service(t, 1 << 20, 1 << 20);
    use_key(t, tier, 5);
}

/* Call 0 blocks the only I/O thread in a store that hangs. */
static void open_blocked(struct service_test *t)
{
    open_with_key(t, FIXTURE_DISK);
    hps_fake_gate_shut(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET);
    start(t, 0, LOOKUP, "m", "t0", 1);
    hps_fake_gate_wait(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET, 1);
}

static void open_gate(struct service_test *t)
{
    hps_fake_gate_open(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET);
}

/* Start a call that waits for the I/O thread without a time limit. */
static void start_in_queue(struct service_test *t, unsigned i)
{
    uint32_t max_wait_us = t->max_wait_us;

    t->max_wait_us = 0;
    start(t, i, LOOKUP, "m", "t0", 1);
    t->max_wait_us = max_wait_us;
    assert_int_equal(t->calls[i].code, -1);
}

#endif

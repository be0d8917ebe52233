/* SPDX-License-Identifier: Apache-2.0
 *
 * See served.h.
 */
#include "tests/fuzz/served.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"

enum { PLAIN_BYTES_MAX = 32 * 1024, CHARGE_FACTOR = 1024 };

struct served served;

static unsigned changed_rules;

/* ---- methods --------------------------------------------------------------------------------- */

void served_saw(struct hps_grpc_call *call)
{
    size_t size = 0;
    const char *raw = hps_grpc_call_header(call, "x-raw-bin", &size);

    HPS_ASSERT(raw == NULL || size <= 256 || hps_grpc_call_is_http(call));
    for (unsigned i = 0; i < HPS_HTTP_SEGMENTS_MAX && hps_grpc_call_is_http(call); i++) {
        const char *segment = hps_grpc_call_segment(call, i, &size);
        HPS_ASSERT(segment == NULL || (strlen(segment) == size && size > 0));
        HPS_ASSERT(segment == NULL || (strchr(segment, '/') == NULL && strcmp(segment, "..") != 0));
    }
    if (hps_grpc_call_user(call) == NULL) {
        served.n_open++;
        hps_grpc_call_set_user(call, &served);
    }
}

void served_close(struct hps_grpc_call *call)
{
    if (hps_grpc_call_user(call) != NULL) {
        HPS_ASSERT(served.n_open > 0);
        served.n_open--;
        struct hps_charge *charge = hps_grpc_call_charge(call);
        (void)hps_charge_cancel(charge, 0, NULL, NULL);
        hps_grpc_call_discharge(call, charge->held[HPS_LIMIT_REPLIES]);
        hps_grpc_call_set_user(call, NULL);
    }
}

void served_echo(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    served_saw(call);
    if (hps_grpc_call_is_http(call)) { /* control characters become spaces */
        hps_ignore(hps_grpc_call_add_header(call, "x-head", data, size < 16 ? size : 16));
        hps_ignore(
            hps_grpc_call_add_trailer(call, "grpc-retry-pushback-ms", data, size < 9 ? size : 9));
    }
    hps_ignore(hps_grpc_call_add_trailer(call, "x-tail", "t1", 2));
    hps_grpc_call_send_copy(call, data, size);
    hps_grpc_call_finish(call, 0, NULL);
}

void served_park(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    struct hps_grpc_call **at = &served.parked[size % SERVED_PARKED_MAX];

    served_saw(call);
    if (*at != NULL) {
        hps_grpc_call_unref(*at);
    }
    hps_grpc_call_ref(call);
    if (size > 0 && hps_grpc_call_is_http(call)) { /* gRPC clients send their own deadlines */
        hps_grpc_call_deadline_limit(call, hps_clock_us() + ((uint64_t)data[0] << 16));
    }
    *at = call;
}

/* The call stays open until its client disconnects. */
static void on_granted(void *ctx)
{
    HPS_ASSERT(hps_grpc_call_user(ctx) == &served);
}

void served_packed(struct hps_grpc_call *call, const struct hps_grpc_packed *packed)
{
    struct hps_buf plain;
    const uint8_t *data;
    size_t size;
    struct hps_error err;

    served_saw(call);
    hps_status status = hps_grpc_unpack(packed, PLAIN_BYTES_MAX, &plain, &data, &size, &err);
    if (status != HPS_OK) {
        hps_grpc_call_fail(call, &err);
        hps_buf_fini(&plain);
        return;
    }
    HPS_ASSERT(size <= PLAIN_BYTES_MAX && (packed->compressed || size == packed->size));
    struct hps_charge *charge = hps_grpc_call_charge(call);
    charge->on_granted = on_granted;
    charge->ctx = call;
    status = hps_charge_wait(charge, size * CHARGE_FACTOR + 1, &err);
    if (status == HPS_OK) {
        if (packed->is_http) { /* gRPC calls stay open until their client disconnects */
            hps_grpc_call_answer_status(call, 200 + (unsigned)size % 400);
            hps_grpc_call_finish(call, (int)(size % 17), "charged");
        }
    } else if (status != HPS_AGAIN) {
        hps_grpc_call_finish(call, hps_status_grpc_code(status), "too many wait");
    }
    hps_buf_fini(&plain);
}

void served_answer(unsigned i, const void *data, size_t size, int code)
{
    struct hps_grpc_call **at = &served.parked[i % SERVED_PARKED_MAX];

    if (*at != NULL) {
        hps_grpc_call_send_copy(*at, data, size);
        hps_grpc_call_finish(*at, code, "parked");
        hps_grpc_call_unref(*at);
        *at = NULL;
    }
}

/* ---- authorization --------------------------------------------------------------------------- */

static void *visitor_new(void *ctx, const struct hps_conn *conn, uint32_t listener_mask)
{
    (void)ctx;
    (void)conn;
    HPS_ASSERT(listener_mask == 1);
    served.n_visitors++;
    return &served;
}

static void visitor_free(void *visitor)
{
    served.n_visitors -= visitor != NULL ? 1 : 0;
}

static hps_status enter(void *visitor, struct hps_grpc_call *call, uint32_t roles,
                        const void **out_grant, struct hps_error *err)
{
    const char *token = hps_grpc_call_header(call, "authorization", NULL);

    (void)roles;
    HPS_ASSERT(visitor == &served);
    if (token != NULL && strcmp(token, "Bearer secret") != 0) {
        return hps_error_set(err, HPS_UNAUTHENTICATED, "another token");
    }
    served.n_grants++;
    *out_grant = &served;
    return HPS_OK;
}

static hps_status visitor_again(void *visitor, const struct hps_conn *conn, struct hps_error *err)
{
    (void)conn;
    HPS_ASSERT(visitor == &served);
    return changed_rules == 2 ? hps_error_set(err, HPS_UNAUTHENTICATED, "no more") : HPS_OK;
}

static hps_status again(void *visitor, struct hps_grpc_call *call, const void *grant,
                        uint32_t roles, struct hps_error *err)
{
    (void)call;
    (void)roles;
    HPS_ASSERT(visitor == &served && grant == &served);
    return changed_rules == 1 ? hps_error_set(err, HPS_PERMISSION, "no more") : HPS_OK;
}

static void release(const void *grant)
{
    served.n_grants -= grant != NULL ? 1 : 0;
}

void served_recheck(unsigned rules)
{
    changed_rules = rules;
    hps_grpc_loop_recheck(served.grpc_loop);
    hps_loop_turn(served.loop, 0);
    changed_rules = 0;
}

/* ---- setup and teardown ---------------------------------------------------------------------- */

static void on_connection(void *ctx, bool is_http, int delta)
{
    (void)ctx;
    (void)is_http;
    served.n_connections += delta;
}

static void on_call_end(void *ctx, struct hps_grpc_call *call, int code, uint64_t duration_us)
{
    (void)ctx;
    (void)call;
    (void)duration_us;
    HPS_ASSERT(code >= 0 && code <= 16);
}

bool served_make(void)
{
    static const struct hps_grpc_guard guard = {.visitor_new = visitor_new,
                                                .visitor_free = visitor_free,
                                                .enter = enter,
                                                .visitor_again = visitor_again,
                                                .again = again,
                                                .release = release};
    static const struct hps_grpc_limits limits = {
        .request_bytes_max = 64 * 1024,
        .request_bytes_per_s_min = 4096,
        .connection_reply_bytes_max = 512 * 1024,
        .streams_max = 16,
        .compression = true,
        .handshake_timeout_us = 10 * 1000 * 1000,
        .stall_timeout_us = 30 * 1000 * 1000,
        .idle_timeout_us = 60 * 1000 * 1000,
        .age_max_us = 600 * 1000 * 1000,
        .keepalive_us = 20 * 1000 * 1000,
        .keepalive_timeout_us = 10 * 1000 * 1000,
    };
    static const char *const headers[] = {"authorization", "x-raw-bin", NULL};
    const struct hps_grpc_observer observer = {.on_call_end = on_call_end,
                                               .on_connection = on_connection};

    if (served.loop != NULL) {
        return false;
    }
    hps_log_level_set(HPS_LOG_ERROR);
    hps_clock_fake(hps_clock_us());
    HPS_ASSERT(hps_loop_new(&served.loop, NULL) == HPS_OK);
    served.blocks = hps_block_pool_new(1 << 20);
    served.server = hps_grpc_server_new(&limits, &observer);
    static const struct hps_limits_options memory = {.max = {256 * 1024, 1024 * 1024},
                                                     .connection_max = {512 * 1024, 512 * 1024},
                                                     .share = 0.25};
    struct hps_limits *accounts = hps_limits_new(&memory, NULL);
    HPS_ASSERT(served.blocks != NULL && served.server != NULL && accounts != NULL);
    hps_grpc_server_limits_use(served.server, accounts, 0);
    hps_grpc_server_guard_set(served.server, &guard);
    hps_grpc_server_keep(served.server, headers);
    return true;
}

void served_start(void)
{
    HPS_ASSERT(hps_grpc_loop_new(served.server, served.loop, &served.grpc_loop) == HPS_OK);
}

int served_connect(bool http)
{
    int fds[2];
    struct hps_conn *conn;

    HPS_ASSERT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
    HPS_ASSERT(hps_conn_new(fds[0], NULL, &conn, NULL) == HPS_OK);
    hps_grpc_loop_adopt(served.grpc_loop, conn, 1, http);
    return fds[1];
}

void served_gone(int fd)
{
    close(fd);
    for (unsigned i = 0; i < SERVED_TURNS_MAX && served.n_connections > 0; i++) {
        hps_clock_advance(100 * 1000); /* the server checks a silent peer at intervals */
        hps_loop_turn(served.loop, 0);
    }
    for (unsigned i = 0; i < SERVED_PARKED_MAX; i++) {
        if (served.parked[i] != NULL) {
            hps_grpc_call_unref(served.parked[i]);
            served.parked[i] = NULL;
        }
    }
    HPS_ASSERT(served.n_connections == 0 && served.n_open == 0);
    HPS_ASSERT(served.n_visitors == 0 && served.n_grants == 0);
    HPS_ASSERT(hps_grpc_loop_bytes_in_flight(served.grpc_loop) == 0);
    HPS_ASSERT(hps_block_pool_bytes(served.blocks) == 0);
}

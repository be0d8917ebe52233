/* SPDX-License-Identifier: Apache-2.0
 *
 * The pages of http_listen: the probes, which need no authorization, and /metrics. Main thread.
 */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "server/daemon_internal.h"

enum {
    CONNECTIONS_MAX = 64,
    METRICS_BYTES_MAX = 64 << 20,
    METRICS_AGE_US = 1000 * 1000,
    READERS_MAX = 16, /* of /metrics; the other connections are left to probes */
    METHOD_BYTES_MAX = 128,
};

#define TEXT_TYPE    "text/plain; charset=utf-8"
#define METRICS_TYPE "text/plain; version=0.0.4; charset=utf-8"

/* ---- authorization --------------------------------------------------------------------------- */

static struct hps_listener *listener_of(struct hps_daemon *daemon)
{
    for (unsigned i = 0; i < daemon->listeners.n; i++) {
        if (daemon->listeners.items[i].kind == HPS_LISTENER_HTTP) {
            return &daemon->listeners.items[i];
        }
    }
    return NULL;
}

/* Whether readers of /metrics are checked: the listener is not local, and the configuration has
 * access rules or requires client certificates. */
static bool is_guarded(struct hps_daemon *daemon)
{
    const struct hps_listener *listener = listener_of(daemon);
    const struct hps_config_server *config = &daemon->options.config->server;
    HPS_ASSERT(listener != NULL);
    return !hps_config_address_is_local(listener->address) &&
           (hps_access_has_file(daemon->access) ||
            (listener->tls && config->tls.require_client_certificate));
}

/* Without roles a certificate is enough, as for lookups. */
static hps_status check_certificate(struct hps_daemon *daemon, const struct hps_conn *conn,
                                    const char *method, struct hps_error *err)
{
    if (hps_conn_certificate_name(conn, 0) != NULL) {
        return HPS_OK;
    }
    hps_status status =
        hps_error_set(err, HPS_UNAUTHENTICATED,
                      "got no client certificate, expected one that server.tls.client_ca verifies");
    const struct hps_audit_event event = {.method = method,
                                          .peer = hps_conn_peer(conn),
                                          .code = hps_status_grpc_code(status),
                                          .error = err->text,
                                          .refused = true};
    hps_audit_limited(daemon->audit, &event);
    return status;
}

static hps_status check_reader(struct hps_daemon *daemon, const struct hps_grpc_call *call,
                               struct hps_error *err)
{
    const struct hps_conn *conn = hps_grpc_call_conn(call);
    char method[METHOD_BYTES_MAX];
    (void)snprintf(method, sizeof(method), "GET %s", hps_grpc_call_path(call));
    if (!is_guarded(daemon)) {
        return HPS_OK;
    }
    if (!hps_access_has_file(daemon->access)) {
        return check_certificate(daemon, conn, method, err);
    }
    return hps_access_ask(daemon->access, conn, method,
                          hps_grpc_call_header(call, "authorization", NULL), HPS_ROLE_READ, err);
}

/* ---- pages ----------------------------------------------------------------------------------- */

/* Begins a reply. made: status of printing the page. False: the call has ended. */
static bool open_reply(struct hps_grpc_call *call, unsigned http_status, const char *type,
                       hps_status made)
{
    hps_status status = made;
    if (status == HPS_OK) {
        status = hps_grpc_call_add_header(call, "content-type", type, strlen(type));
    }
    if (status == HPS_OK) {
        status = hps_grpc_call_add_header(call, "cache-control", "no-store", strlen("no-store"));
    }
    if (status != HPS_OK) {
        HPS_LOG(ERROR, "http",
                "HTTP request failed: the reply could not be made; the client gets status 500",
                HPS_STR("path", hps_grpc_call_path(call)),
                HPS_STR("reason", hps_status_text(status)));
        hps_grpc_call_finish(call, hps_status_grpc_code(HPS_INTERNAL), "no memory for the page");
        return false;
    }
    hps_grpc_call_answer_status(call, http_status);
    return true;
}

static void answer(struct hps_grpc_call *call, unsigned http_status, hps_status made,
                   const struct hps_buf *page)
{
    if (open_reply(call, http_status, TEXT_TYPE, made)) {
        hps_grpc_call_send_copy(call, page->data, page->size);
        hps_grpc_call_finish(call, 0, NULL);
    }
}

static void on_healthz(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    static char ok[] = "ok\n";
    const struct hps_buf page = {.data = (uint8_t *)ok, .size = strlen(ok)};
    (void)data;
    (void)size;
    answer(call, 200, HPS_OK, &page);
}

static void append_reason(void *ctx, const char *reason)
{
    hps_ignore(hps_buf_printf(ctx, "%s\n", reason)); /* a truncated page is still correct */
}

/* The reasons name models and files, so they appear only where readers are not checked. */
static void on_readyz(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    struct hps_daemon *daemon = hps_grpc_call_ctx(call);
    bool guarded = is_guarded(daemon);
    hps_status status = HPS_OK;
    struct hps_buf page;
    (void)data;
    (void)size;
    hps_buf_init(&page, METRICS_BYTES_MAX);
    hps_readiness_refresh(daemon->readiness);
    bool ready = hps_readiness_get(daemon->readiness, guarded ? NULL : append_reason, &page);
    if (ready || guarded) { /* otherwise the reasons are the page */
        status = hps_buf_printf(&page, ready ? "ready\n" : "not ready\n");
    }
    answer(call, ready ? 200 : 503, status, &page);
    hps_buf_fini(&page);
}

/* ---- /metrics -------------------------------------------------------------------------------- */

/* Prints the page, unless clients still read one that is new enough for all. */
static hps_status refresh_page(struct hps_daemon *daemon)
{
    uint64_t now_us = hps_clock_us();
    struct hps_buf text;
    if (daemon->pages.page != NULL && now_us - daemon->pages.printed_us < METRICS_AGE_US) {
        return HPS_OK;
    }
    hps_buf_init(&text, METRICS_BYTES_MAX);
    hps_status status = hps_metrics_print(daemon->metrics, &text);
    struct hps_block *page = NULL;
    if (status == HPS_OK) {
        page = hps_block_new(daemon->blocks, text.size);
        status = page != NULL ? HPS_OK : HPS_NO_MEMORY;
    }
    if (page != NULL) {
        memcpy(page->data, text.data, text.size);
        hps_block_unref(daemon->pages.page);
        daemon->pages.page = page;
        daemon->pages.page_bytes = text.size;
        daemon->pages.printed_us = now_us;
    }
    hps_buf_fini(&text);
    return status;
}

/* A new reader takes the place of this one. */
static void on_displaced(void *ctx)
{
    hps_grpc_call_abort(ctx);
}

static void on_metrics(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    struct hps_daemon *daemon = hps_grpc_call_ctx(call);
    struct hps_error err = {0};
    enum hps_place_refusal why;
    (void)data;
    (void)size;
    if (check_reader(daemon, call, &err) != HPS_OK) {
        hps_grpc_call_fail(call, &err);
        return;
    }
    struct hps_place *place = hps_places_admit(daemon->pages.readers, hps_grpc_call_client(call),
                                               false, hps_clock_us(), &why);
    hps_grpc_call_set_user(call, place);
    if (open_reply(call, 200, METRICS_TYPE, place != NULL ? refresh_page(daemon) : HPS_NO_MEMORY)) {
        struct hps_block *page = daemon->pages.page;
        struct hps_slice slice = {page, page->data, daemon->pages.page_bytes};
        hps_place_on_leave(place, on_displaced, call);
        hps_block_ref(page);
        hps_grpc_call_send(call, &slice, 1);
        hps_grpc_call_finish(call, 0, NULL);
    }
}

static void on_metrics_close(struct hps_grpc_call *call)
{
    struct hps_daemon *daemon = hps_grpc_call_ctx(call);
    hps_place_free(hps_grpc_call_user(call));
    if (hps_places_taken(daemon->pages.readers) == 0) {
        hps_block_unref(daemon->pages.page);
        daemon->pages.page = NULL;
    }
}

/* ---- the listener ---------------------------------------------------------------------------- */

/* `open`: every call passes the authorizer; on_metrics checks its caller with the rules of that
 * moment. A connection with an incomplete request keeps its place. So requests with a body, which a
 * client could send slowly, are rejected. */
static const struct hps_http_route routes[] = {
#define PAGE(path_, answer, close)                   \
    {                                                \
        .verb = "GET", .pattern = path_, .method = { \
            .path = path_,                           \
            .open = true,                            \
            .no_body = true,                         \
            .on_message = answer,                    \
            .on_close = close                        \
        }                                            \
    }
    PAGE("/healthz", on_healthz, NULL),
    PAGE("/readyz", on_readyz, NULL),
    PAGE("/metrics", on_metrics, on_metrics_close),
#undef PAGE
};

/* Without TLS, failures do not slow a peer down: slow clients and probes may share an address. */
static void limits_of(struct hps_daemon *daemon, struct hps_grpc_limits *out_limits,
                      struct hps_place_limits *out_places)
{
    const struct hps_config_server *config = &daemon->options.config->server;
    bool tls = listener_of(daemon)->tls;
    daemon_grpc_limits(config, out_limits);
    out_limits->handshake_timeout_us = (uint64_t)config->http_head_timeout_ms * 1000;
    *out_places =
        (struct hps_place_limits){.max = CONNECTIONS_MAX,
                                  .failures_max = tls ? config->handshake_failures_max : 0,
                                  .short_calls = true};
}

static void on_no_start(void *ctx, const char *peer, enum hps_grpc_no_start how)
{
    const struct hps_daemon *daemon = ctx;
    (void)peer;
    hps_metric_add(daemon->connections_failed[how], 1);
}

static void on_accept(void *ctx, struct hps_conn *conn, unsigned cookie)
{
    struct hps_daemon *daemon = ctx;
    hps_grpc_loop_adopt(daemon->pages.loop, conn, cookie, true);
}

static hps_status make_server(struct hps_daemon *daemon, const struct hps_grpc_limits *limits)
{
    const struct hps_grpc_observer observer = {.ctx = daemon, .on_no_start = on_no_start};
    static const char *const headers_read[] = {"authorization", NULL};
    daemon->pages.server = hps_grpc_server_new(limits, &observer);
    if (daemon->pages.server != NULL) {
        hps_grpc_server_keep(daemon->pages.server, headers_read);
    }
    hps_status status =
        daemon->pages.server != NULL
            ? hps_grpc_server_add_http(daemon->pages.server, routes,
                                       sizeof(routes) / sizeof(routes[0]), daemon, LISTENER_PUBLIC)
            : HPS_NO_MEMORY;
    return status == HPS_OK
               ? hps_grpc_loop_new(daemon->pages.server, daemon->loop, &daemon->pages.loop)
               : status;
}

hps_status daemon_pages_start(struct hps_daemon *daemon, struct hps_error *err)
{
    struct hps_acceptor_options options = {.on_accept = on_accept, .ctx = daemon};
    struct hps_listener *listener = listener_of(daemon);
    struct hps_grpc_limits limits;
    if (listener == NULL) {
        return HPS_OK;
    }
    limits_of(daemon, &limits, &options.limits);
    const struct hps_place_limits readers = {.max = READERS_MAX, .short_calls = true};
    daemon->pages.readers = hps_places_new(&readers, NULL);
    if (daemon->pages.readers == NULL || make_server(daemon, &limits) != HPS_OK) {
        return hps_error_set(err, HPS_NO_MEMORY, "HTTP server: out of memory");
    }
    hps_status status = hps_acceptor_new(daemon->loop, &options, &daemon->pages.acceptor, err);
    if (status != HPS_OK) {
        return status;
    }
    int fd = listener->fd;
    listener->fd = -1;
    return hps_acceptor_add(daemon->pages.acceptor, fd, listener->tls ? daemon->tls.http : NULL,
                            LISTENER_PUBLIC, listener->is_unix && !listener->inherited, err);
}

void daemon_pages_reload(struct hps_daemon *daemon)
{
    struct hps_grpc_limits limits;
    struct hps_place_limits places;
    if (daemon->pages.acceptor != NULL) {
        limits_of(daemon, &limits, &places);
        hps_grpc_loop_limits_set(daemon->pages.loop, &limits);
        hps_acceptor_limits_set(daemon->pages.acceptor, &places);
    }
}

void daemon_pages_stop(struct hps_daemon *daemon)
{
    hps_acceptor_free(daemon->pages.acceptor);
    hps_grpc_loop_free(daemon->pages.loop);
    hps_places_free(daemon->pages.readers);
    daemon->pages.acceptor = NULL;
    daemon->pages.loop = NULL;
    daemon->pages.readers = NULL;
}

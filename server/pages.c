/* SPDX-License-Identifier: Apache-2.0
 *
 * What http_listen answers: probes for everybody, and pages for who may read. Main thread.
 */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "server/daemon_internal.h"

enum { CONNECTIONS_MAX = 64, METRICS_BYTES_MAX = 64 << 20, METHOD_BYTES_MAX = 128 };

/* ---- who may read ---------------------------------------------------------------------------- */

static const struct hps_listener *listener_of(const struct hps_daemon *daemon)
{
    for (unsigned i = 0; i < daemon->listeners.n; i++) {
        if (daemon->listeners.items[i].kind == HPS_LISTENER_HTTP) {
            return &daemon->listeners.items[i];
        }
    }
    return NULL;
}

/* Does it matter who asks? Not on this machine alone, nor where nobody has said who may. */
static bool is_guarded(const struct hps_daemon *daemon)
{
    const struct hps_listener *listener = listener_of(daemon);
    const struct hps_config_server *config = &daemon->options.config->server;
    HPS_ASSERT(listener != NULL);
    return !hps_config_address_is_local(listener->address) &&
           (hps_access_has_file(daemon->access) ||
            (listener->tls && config->tls.require_client_certificate));
}

/* Where there are no roles a certificate is enough, as for look-ups. */
static hps_status check_certificate(struct hps_daemon *daemon, const struct hps_conn *conn,
                                    const char *method, struct hps_error *err)
{
    if (hps_conn_certificate_name(conn, 0) != NULL) {
        return HPS_OK;
    }
    hps_status status = hps_error_set(err, HPS_UNAUTHENTICATED,
                                      "pages are for clients with a certificate: show one that "
                                      "server.tls.client_ca verifies");
    const struct hps_audit_event event = {.method = method,
                                          .peer = hps_conn_peer(conn),
                                          .code = hps_status_grpc_code(status),
                                          .error = err->text,
                                          .refused = true};
    hps_audit_refused(daemon->audit, &event);
    return status;
}

static hps_status check_reader(struct hps_daemon *daemon, const struct hps_http1_request *request,
                               struct hps_error *err)
{
    const struct hps_access_grant *grant = NULL;
    char method[METHOD_BYTES_MAX];
    (void)snprintf(method, sizeof(method), "GET %s", request->path);
    if (!hps_access_has_file(daemon->access)) {
        return check_certificate(daemon, request->conn, method, err);
    }
    hps_status status = hps_access_ask(daemon->access, request->conn, false, method,
                                       request->authorization, HPS_ROLE_READ, &grant, err);
    hps_access_grant_unref(grant);
    return status;
}

/* ---- pages ----------------------------------------------------------------------------------- */

static void append_reason(void *ctx, const char *reason)
{
    hps_ignore(hps_buf_printf(ctx, "%s\n", reason)); /* a shorter page is still a true one */
}

/* Why it is not ready names models and files: not for everybody. */
static hps_status answer_ready(struct hps_daemon *daemon, struct hps_http1_reply *reply)
{
    bool guarded = is_guarded(daemon);
    hps_readiness_refresh(daemon->readiness);
    bool ready = hps_readiness_get(daemon->readiness, guarded ? NULL : append_reason, &reply->body);
    reply->status = ready ? 200 : 503;
    if (!ready && !guarded) {
        return HPS_OK; /* the reasons are the page */
    }
    return hps_buf_printf(&reply->body, ready ? "ready\n" : "not ready\n");
}

static hps_status answer_page(struct hps_daemon *daemon, const char *path,
                              struct hps_http1_reply *reply)
{
    if (strcmp(path, "/metrics") == 0) {
        reply->status = 200;
        reply->content_type = "text/plain; version=0.0.4; charset=utf-8";
        return hps_metrics_print(daemon->metrics, &reply->body);
    }
    return hps_buf_printf(&reply->body, "try /metrics, /healthz, /readyz\n");
}

static hps_status on_get(void *ctx, const struct hps_http1_request *request,
                         struct hps_http1_reply *reply)
{
    struct hps_daemon *daemon = ctx;
    struct hps_error err = {0};
    if (strcmp(request->path, "/healthz") == 0) {
        reply->status = 200;
        return hps_buf_printf(&reply->body, "ok\n");
    }
    if (strcmp(request->path, "/readyz") == 0) {
        return answer_ready(daemon, reply);
    }
    hps_status status = is_guarded(daemon) ? check_reader(daemon, request, &err) : HPS_OK;
    if (status == HPS_OK) {
        return answer_page(daemon, request->path, reply);
    }
    if (status != HPS_UNAUTHENTICATED && status != HPS_PERMISSION) {
        return status;
    }
    reply->status = status == HPS_UNAUTHENTICATED ? 401 : 403;
    return hps_buf_printf(&reply->body, "%s\n", err.text);
}

/* ---- the listener ---------------------------------------------------------------------------- */

static void on_no_start(void *ctx, hps_status status)
{
    const struct hps_daemon *daemon = ctx;
    enum hps_grpc_no_start how = status == HPS_DEADLINE          ? HPS_GRPC_TIMEOUT
                                 : status == HPS_UNAUTHENTICATED ? HPS_GRPC_CERTIFICATE
                                 : status == HPS_CLOSED          ? HPS_GRPC_LEFT
                                                                 : HPS_GRPC_PROTOCOL;
    hps_metric_add(daemon->connections_failed[how], 1);
}

hps_status daemon_start_http(struct hps_daemon *daemon, struct hps_error *err)
{
    const struct hps_config_server *config = &daemon->options.config->server;
    struct hps_http1_options options = {
        .connections_max = CONNECTIONS_MAX,
        .head_timeout_us = (uint64_t)config->http_head_timeout_ms * 1000,
        .send_timeout_us = (uint64_t)config->reply_stall_timeout_ms * 1000,
        .body_bytes_max = METRICS_BYTES_MAX,
        .failures_max = config->handshake_failures_max,
        .on_no_start = on_no_start,
        .on_get = on_get,
        .ctx = daemon};
    for (unsigned i = 0; i < daemon->listeners.n; i++) {
        struct hps_listener *listener = &daemon->listeners.items[i];
        if (listener->kind == HPS_LISTENER_HTTP) {
            int fd = listener->fd;
            listener->fd = -1;
            options.tls = listener->tls ? daemon->tls.http : NULL;
            return hps_http1_new(daemon->loop, fd, &options, &daemon->http, err);
        }
    }
    return HPS_OK;
}

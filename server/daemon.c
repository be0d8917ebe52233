/* SPDX-License-Identifier: Apache-2.0
 *
 * Assembly of the daemon: built bottom-up, freed in reverse. Main thread.
 */
#include "server/daemon.h"

#include <stdio.h>
#include <string.h>

#include "backends/breaker.h"
#include "base/assert.h"
#include "base/build_info.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/lock.h"
#include "base/log.h"
#include "cache/device/device.h"
#include "server/daemon_internal.h"

enum { ADMIN_THREADS = 8, ADMIN_QUEUE_MAX = 256, WORKER_QUEUE_MAX = 4096 };
enum { INSERTION_JOBS_MAX = 16 };
#define BLOCKS_IDLE_BYTES_MAX ((size_t)256 << 20)

_Static_assert((int)HPS_CONFIG_LOOKUP_PATH_AUTO == (int)HPS_LOOKUP_PATH_AUTO &&
                   (int)HPS_CONFIG_LOOKUP_PATH_GPU == (int)HPS_LOOKUP_PATH_GPU &&
                   (int)HPS_CONFIG_LOOKUP_PATH_HOST == (int)HPS_LOOKUP_PATH_HOST,
               "the configuration's numbers are ours");

/* The last one is on the admin listener only. */
static const char *const service_names[] = {"hps.v1.ParameterServer",
                                            "inference.GRPCInferenceService",
                                            "grpc.health.v1.Health",
                                            "grpc.reflection.v1.ServerReflection",
                                            "grpc.reflection.v1alpha.ServerReflection",
                                            "hps.v1.Admin"};
enum { N_NAMES = sizeof(service_names) / sizeof(service_names[0]), N_PUBLIC = N_NAMES - 1 };

/* ---- state ----------------------------------------------------------------------------------- */

static hps_status no_memory(struct hps_error *err)
{
    return hps_error_set(err, HPS_NO_MEMORY, "no memory to start");
}

void daemon_limits(const struct hps_config_server *config, struct hps_limits_options *out_options)
{
    *out_options = (struct hps_limits_options){
        .max = {[HPS_LIMIT_REQUESTS] = config->request_bytes_in_flight,
                [HPS_LIMIT_REPLIES] = config->reply_bytes_in_flight},
        .connection_max = {[HPS_LIMIT_REQUESTS] = 8 * config->request_bytes_max,
                           [HPS_LIMIT_REPLIES] = config->connection_reply_bytes},
        .share = config->peer_share};
}

static struct hps_metric *limit_metric(struct hps_daemon *daemon, enum hps_metric_id id,
                                       const char *limit, const char *scope)
{
    return hps_server_metric(daemon->metrics, id, limit, scope, NULL, NULL);
}

static struct hps_limits *make_limits(struct hps_daemon *daemon)
{
    struct hps_limits_options options;
    struct hps_limits_metrics metrics = {.in_flight = daemon->series.reply_bytes_in_flight};
    for (enum hps_limit limit = 0; limit < HPS_LIMIT_COUNT; limit++) {
        const char *name = hps_limit_name(limit);
        metrics.used[limit] = limit_metric(daemon, HPS_M_LIMIT_USED, name, NULL);
        metrics.max[limit] = limit_metric(daemon, HPS_M_LIMIT_MAX, name, NULL);
        metrics.largest[limit] = limit_metric(daemon, HPS_M_LIMIT_LARGEST, name, NULL);
        for (enum hps_limit_scope scope = 0; scope < HPS_SCOPE_COUNT; scope++) {
            metrics.refused[limit][scope] =
                limit_metric(daemon, HPS_M_LIMIT_REFUSED, name, hps_limit_scope_name(scope));
        }
    }
    metrics.waiting =
        limit_metric(daemon, HPS_M_LIMIT_WAITING, hps_limit_name(HPS_LIMIT_REPLIES), NULL);
    daemon_limits(&daemon->options.config->server, &options);
    return hps_limits_new(&options, &metrics);
}

static hps_status make_state(struct hps_daemon *daemon, struct hps_error *err)
{
    const struct hps_config_server *config = &daemon->options.config->server;
    daemon->metrics = hps_server_metrics_new();
    daemon->models = hps_models_new();
    daemon->blocks = hps_block_pool_new(BLOCKS_IDLE_BYTES_MAX);
    daemon->slowlog = hps_slowlog_new((uint64_t)config->slow_request_ms * 1000);
    if (daemon->metrics == NULL || daemon->models == NULL || daemon->blocks == NULL ||
        daemon->slowlog == NULL) {
        return no_memory(err);
    }
    const struct hps_stores *stores = &daemon->options.env.stores;
    HPS_ASSERT(stores->n > 0);
    struct hps_store *durable = hps_stores_durable(stores);
    struct hps_store *shared = hps_stores_shared(stores);
    if (durable != NULL) {
        const struct hps_breaker_options breaker = HPS_BREAKER_DEFAULT(durable->ops->name);
        daemon->durable_breaker = hps_breaker_new(&breaker);
        if (daemon->durable_breaker == NULL) {
            return no_memory(err);
        }
        HPS_ASSERT(daemon->options.env.durable_breaker == NULL);
        daemon->options.env.durable_breaker = daemon->durable_breaker;
    }
    if (shared != NULL && shared->ops->servers != NULL) {
        daemon->shared_servers = hps_store_servers_new(shared, daemon->metrics);
        if (daemon->shared_servers == NULL) {
            return no_memory(err);
        }
    }
    hps_service_metrics_fill(daemon->metrics, &daemon->series);
    daemon->limits = make_limits(daemon);
    daemon->rpc_metrics = hps_rpc_metrics_new(daemon->metrics);
    if (daemon->limits == NULL || daemon->rpc_metrics == NULL) {
        return no_memory(err);
    }
    int audit_fd = -1;
    hps_status status = hps_audit_open(config->audit_log, &audit_fd, err);
    if (status != HPS_OK) {
        return status;
    }
    daemon->audit =
        hps_audit_new(audit_fd, hps_server_metric(daemon->metrics, HPS_M_AUDIT_LINES_LOST, NULL,
                                                  NULL, NULL, NULL));
    if (daemon->audit == NULL) {
        return no_memory(err);
    }
    hps_metric_set(hps_server_metric(daemon->metrics, HPS_M_BUILD_INFO, hps_build_version,
                                     hps_build_revision, hps_device_cuda_version(), NULL),
                   1);
    return HPS_OK;
}

void daemon_pools_limits(struct hps_daemon *daemon, const struct hps_config_server *config)
{
    hps_pool_share_set(daemon->workers, config->peer_share);
    hps_pool_share_set(daemon->io, config->peer_share);
    hps_pool_share_set(daemon->admin_pool, config->peer_share);
}

static hps_status make_pools(struct hps_daemon *daemon, struct hps_error *err)
{
    const struct hps_config_server *config = &daemon->options.config->server;
    const struct hps_pool_options workers = {.name = "worker",
                                             .n_threads = config->worker_threads,
                                             .n_quick = 1,
                                             .queue_max = WORKER_QUEUE_MAX};
    const struct hps_pool_options io = {.name = "io",
                                        .n_threads = config->io_threads,
                                        .n_quick = (config->io_threads + 7) / 8,
                                        .queue_max = WORKER_QUEUE_MAX};
    const struct hps_pool_options admin = {.name = "admin",
                                           .n_threads = ADMIN_THREADS - 1,
                                           .n_quick = 1,
                                           .queue_max = ADMIN_QUEUE_MAX};
    hps_status status = hps_pool_start(&workers, &daemon->workers);
    if (status == HPS_OK) {
        status = hps_pool_start(&io, &daemon->io);
    }
    if (status == HPS_OK) {
        status = hps_pool_start(&admin, &daemon->admin_pool);
    }
    if (status != HPS_OK) {
        return hps_error_set(err, status, "worker threads cannot be started: %s",
                             hps_status_text(status));
    }
    hps_audit_pool_set(daemon->audit, daemon->admin_pool);
    daemon_pools_limits(daemon, config);
    return HPS_OK;
}

/* Insertions use a part of the I/O threads, so that a lookup that waits for a store finds a free
 * one. */
static hps_status make_insertion(struct hps_daemon *daemon, struct hps_error *err)
{
    const struct hps_config_server *config = &daemon->options.config->server;
    HPS_ASSERT(daemon->io != NULL);
    uint32_t jobs_max = config->io_threads / 4;
    jobs_max = jobs_max == 0 ? 1 : jobs_max > INSERTION_JOBS_MAX ? INSERTION_JOBS_MAX : jobs_max;
    const struct hps_insertion_options options = {.io = daemon->io,
                                                  .rows_max = config->insertion_queue_rows,
                                                  .jobs_max = jobs_max,
                                                  .metrics = &daemon->series.lookup};
    return hps_insertion_new(&options, &daemon->insertion) == HPS_OK ? HPS_OK : no_memory(err);
}

/* Runs before any block is taken: the devices write into a slab of the block pool. */
static hps_status open_devices(struct hps_daemon *daemon, struct hps_error *err)
{
    HPS_ASSERT(daemon->blocks != NULL && daemon->lookup == NULL);
    return hps_devices_open(daemon->options.config, daemon->options.devices, daemon->blocks,
                            &daemon->devices, err);
}

static hps_status make_updater(struct hps_daemon *daemon, struct hps_error *err)
{
    const struct hps_config *config = daemon->options.config;
    HPS_ASSERT(daemon->updater == NULL);
    if (daemon->options.update_log == NULL) {
        return HPS_OK;
    }
    if (config->persistent_db.type != HPS_CONFIG_PERSISTENT_DISABLED &&
        config->persistent_db.read_only) {
        HPS_LOG(WARN, "updates",
                "update stream disabled: persistent_db is read-only; unset "
                "persistent_db.read_only to take updates");
        return HPS_OK;
    }
    uint32_t n_filters = 0;
    daemon->update_filters = hps_config_update_filters(config, &n_filters);
    if (daemon->update_filters == NULL) {
        return no_memory(err);
    }
    const struct hps_updater_options options = {.log = daemon->options.update_log,
                                                .metrics = daemon->metrics,
                                                .config = config,
                                                .filters = daemon->update_filters,
                                                .n_filters = n_filters};
    return hps_updater_new(&options, &daemon->updater, err);
}

static hps_status open_catalog(struct hps_daemon *daemon, struct hps_error *err)
{
    const struct hps_catalog_options options = {.models = daemon->models,
                                                .config = daemon->options.config,
                                                .metrics = daemon->metrics,
                                                .insertion = daemon->insertion,
                                                .devices = daemon->devices,
                                                .updater = daemon->updater,
                                                .env = daemon->options.env};
    HPS_ASSERT(daemon->models != NULL && daemon->insertion != NULL);
    return hps_catalog_open(&options, &daemon->catalog, err);
}

/* ---- TLS and access -------------------------------------------------------------------------- */

hps_status daemon_read_rules(const struct hps_config_server *config,
                             struct hps_access_rules **out_rules, struct hps_error *err)
{
    const struct hps_access_source source = {.file = config->access,
                                             .admin_token_file = config->admin_token_file};
    return hps_access_rules_read(&source, out_rules, err);
}

static void on_refusal(void *ctx, const struct hps_access_refusal *refusal) /* any thread */
{
    struct hps_daemon *daemon = ctx;
    const char *slash = strrchr(refusal->method, '/');
    bool is_path = refusal->method[0] == '/' && /* path of a gRPC method, not a KServe route */
                   strncmp(refusal->method, "/v2", 3) != 0;
    const struct hps_audit_event event = {.method = is_path ? slash + 1 : refusal->method,
                                          .who = refusal->who,
                                          .peer = refusal->peer,
                                          .model = refusal->model,
                                          .code = hps_status_grpc_code(refusal->error->status),
                                          .error = refusal->error->text,
                                          .refused = true};
    hps_audit_limited(daemon->audit, &event);
}

static hps_status make_access(struct hps_daemon *daemon, struct hps_error *err)
{
    const struct hps_access_options options = {.limits = daemon->limits,
                                               .admin_mask = LISTENER_ADMIN,
                                               .on_refusal = on_refusal,
                                               .ctx = daemon};
    struct hps_access_rules *rules = NULL;
    hps_status status = daemon_read_rules(&daemon->options.config->server, &rules, err);
    if (status != HPS_OK) {
        return status;
    }
    daemon->access = hps_access_new(&options, rules);
    return daemon->access != NULL ? HPS_OK : no_memory(err);
}

static hps_status make_context(const struct hps_config_tls *config, bool http1, bool peer_optional,
                               struct hps_tls **out_tls, struct hps_error *err)
{
    static const struct hps_tls_names names = {.cert_file = "server.tls.certificate",
                                               .key_file = "server.tls.key",
                                               .ca_file = "server.tls.client_ca",
                                               .crl_file = "server.tls.client_crl",
                                               .ciphers = "server.tls.ciphers",
                                               .ciphersuites = "server.tls.ciphersuites"};
    const struct hps_tls_options tls = {
        .server = true,
        .names = &names,
        .cert_file = config->certificate,
        .key_file = config->key,
        .ca_file = config->client_ca[0] != '\0' ? config->client_ca : NULL,
        .crl_file = config->client_crl[0] != '\0' ? config->client_crl : NULL,
        .tls13_only = config->min_version == HPS_CONFIG_TLS_1_3,
        .ciphers = config->ciphers,
        .ciphersuites = config->ciphersuites,
        .peer_optional = peer_optional,
        .http1 = http1};
    hps_status status = hps_tls_new(&tls, out_tls, err);
    if (status == HPS_IO) { /* the option is wrong: it names an unreadable file */
        status = HPS_INVALID;
        err->status = status;
    }
    return status;
}

hps_status daemon_make_tls(const struct hps_config_server *config, struct daemon_tls *out_tls,
                           struct hps_error *err)
{
    bool peer_optional = !config->tls.require_client_certificate;
    *out_tls = (struct daemon_tls){NULL, NULL, NULL};
    if (!hps_config_has_tls(config)) {
        return HPS_OK;
    }
    hps_status status = make_context(&config->tls, false, peer_optional, &out_tls->grpc, err);
    if (status == HPS_OK) {
        status = make_context(&config->tls, true, peer_optional, &out_tls->kserve, err);
    }
    if (status == HPS_OK) { /* probes have no certificate */
        status = make_context(&config->tls, true, true, &out_tls->http, err);
    }
    return status;
}

void daemon_tls_free(struct daemon_tls *tls)
{
    hps_tls_unref(tls->grpc);
    hps_tls_unref(tls->http);
    hps_tls_unref(tls->kserve);
    *tls = (struct daemon_tls){NULL, NULL, NULL};
}

/* ---- services -------------------------------------------------------------------------------- */

static void on_connection(void *ctx, bool is_http, int delta)
{
    struct hps_daemon *daemon = ctx;
    const char *listener = is_http ? "kserve" : "grpc";
    hps_metric_gauge_add(
        hps_server_metric(daemon->metrics, HPS_M_CONNECTIONS, listener, NULL, NULL, NULL), delta);
}

static void on_no_start(void *ctx, const char *peer, enum hps_grpc_no_start how)
{
    struct hps_daemon *daemon = ctx;
    (void)peer;
    hps_metric_add(daemon->connections_failed[how], 1);
}

static void on_slow(void *ctx, enum hps_grpc_slow why)
{
    hps_metric_add(((struct hps_daemon *)ctx)->slow_clients[why], 1);
}

static void on_call_end(void *ctx, struct hps_grpc_call *call, int grpc_code, uint64_t duration_us)
{
    hps_rpc_metrics_end(((struct hps_daemon *)ctx)->rpc_metrics, call, grpc_code, duration_us);
}

static hps_status print_config(void *ctx, struct hps_buf *buf)
{
    struct hps_daemon *daemon = ctx;
    hps_lock_acquire(&daemon->config_lock);
    hps_status status = hps_config_print_effective(daemon->options.config, buf);
    hps_lock_release(&daemon->config_lock);
    return status;
}

void daemon_lookup_limits(const struct hps_config_server *config,
                          struct hps_lookup_limits *out_limits)
{
    *out_limits = HPS_LOOKUP_LIMITS_DEFAULT;
    out_limits->tables_max = config->tables_max;
    out_limits->keys_max = config->keys_max;
    out_limits->queue_us_max = (uint64_t)config->queue_ms_max * 1000;
    out_limits->reply_bytes_max = config->reply_bytes_max;
}

static hps_status make_services(struct hps_daemon *daemon, struct hps_error *err)
{
    struct hps_lookup_service_parts lookup = {
        .models = daemon->models,
        .workers = daemon->workers,
        .io = daemon->io,
        .insertion = daemon->insertion,
        .blocks = daemon->blocks,
        .slowlog = daemon->slowlog,
        .metrics = &daemon->series,
        .path = (enum hps_lookup_path)daemon->options.config->server.lookup_path,
        .key_bytes = daemon->options.config->key_bytes};
    HPS_ASSERT(daemon->catalog != NULL);
    daemon_lookup_limits(&daemon->options.config->server, &lookup.limits);
    daemon->health = hps_health_service_new(service_names, N_NAMES);
    const struct hps_readiness_parts readiness = {
        .catalog = daemon->catalog,
        .health = daemon->health,
        .ready = hps_server_metric(daemon->metrics, HPS_M_READY, NULL, NULL, NULL, NULL),
        .first = daemon_first_ready,
        .ctx = daemon};
    daemon->readiness = daemon->health != NULL ? hps_readiness_new(&readiness) : NULL;
    const struct hps_admin_parts admin = {.pool = daemon->admin_pool,
                                          .catalog = daemon->catalog,
                                          .readiness = daemon->readiness,
                                          .models = daemon->models,
                                          .devices = daemon->devices,
                                          .blocks = daemon->blocks,
                                          .updater = daemon->updater,
                                          .key_bytes = daemon->options.config->key_bytes,
                                          .slowlog = daemon->slowlog,
                                          .audit = daemon->audit,
                                          .metrics = &daemon->series,
                                          .export_roots =
                                              &daemon->options.config->server.export_roots,
                                          .ctx = daemon,
                                          .status = daemon_status,
                                          .drain = daemon_ask_drain,
                                          .print_config = print_config};
    const struct hps_model_service_parts model = {
        .models = daemon->models, .updater = daemon->updater, .workers = daemon->workers};
    const struct hps_kserve_parts kserve = {.models = daemon->models,
                                            .catalog = daemon->catalog,
                                            .readiness = daemon->readiness,
                                            .audit = daemon->audit,
                                            .workers = daemon->workers,
                                            .admin_pool = daemon->admin_pool};
    daemon->lookup = hps_lookup_service_new(&lookup);
    daemon->model = hps_model_service_new(&model);
    daemon->wait = hps_wait_service_new(&model);
    daemon->kserve = daemon->readiness != NULL ? hps_kserve_service_new(&kserve) : NULL;
    daemon->admin = hps_admin_service_new(&admin);
    daemon->reflection = hps_reflection_service_new(service_names, N_PUBLIC);
    daemon->admin_reflection = hps_reflection_service_new(service_names, N_NAMES);
    if (daemon->lookup == NULL || daemon->model == NULL || daemon->wait == NULL ||
        daemon->kserve == NULL || daemon->admin == NULL || daemon->readiness == NULL ||
        daemon->reflection == NULL || daemon->admin_reflection == NULL) {
        return no_memory(err);
    }
    return HPS_OK;
}

void daemon_grpc_limits(const struct hps_config_server *config, struct hps_grpc_limits *out_limits)
{
    *out_limits = (struct hps_grpc_limits){
        .request_bytes_max = config->request_bytes_max,
        .connection_reply_bytes_max = config->connection_reply_bytes,
        .streams_max = config->streams_per_connection,
        .compression = config->compression,
        .handshake_timeout_us = (uint64_t)config->handshake_timeout_ms * 1000,
        .stall_timeout_us = (uint64_t)config->reply_stall_timeout_ms * 1000,
        .reply_bytes_per_s_min = config->reply_bytes_per_s_min,
        .request_bytes_per_s_min = config->request_bytes_per_s_min,
        .idle_timeout_us = (uint64_t)config->idle_timeout_ms * 1000,
        .age_max_us = (uint64_t)config->connection_age_s * 1000000,
        .age_jitter = config->connection_age_jitter,
        .keepalive_us = (uint64_t)config->keepalive_ms * 1000,
        .keepalive_timeout_us = (uint64_t)config->keepalive_timeout_ms * 1000};
}

/* Series that loops count. They exist from the start, so that the first event shows as an increase.
 */
static void fill_series(struct hps_daemon *daemon)
{
    static const struct {
        enum hps_metric_id metric;
        const char *reason;
    } slow[HPS_GRPC_SLOW_COUNT] = {
        [HPS_GRPC_SLOW_RATE] = {HPS_M_SLOW_READERS, "rate"},
        [HPS_GRPC_SLOW_ROOM] = {HPS_M_SLOW_READERS, "room"},
        [HPS_GRPC_SLOW_SEND_RATE] = {HPS_M_SLOW_SENDERS, "rate"},
        [HPS_GRPC_SLOW_SEND_ROOM] = {HPS_M_SLOW_SENDERS, "room"},
    };

    for (unsigned i = 0; i < HPS_GRPC_NO_STARTS; i++) {
        const char *how = hps_grpc_no_start_name((enum hps_grpc_no_start)i);
        daemon->connections_failed[i] =
            hps_server_metric(daemon->metrics, HPS_M_CONNECTIONS_FAILED, how, NULL, NULL, NULL);
    }
    for (unsigned i = 0; i < HPS_GRPC_SLOW_COUNT; i++) {
        daemon->slow_clients[i] =
            hps_server_metric(daemon->metrics, slow[i].metric, slow[i].reason, NULL, NULL, NULL);
    }
}

/* Routes of KServe over HTTP/1.1, if there is a listener for them. Each route has a histogram. */
static hps_status add_routes(struct hps_daemon *daemon, const struct hps_http_route *routes,
                             unsigned n_routes, void *ctx)
{
    if (hps_listeners_address(&daemon->listeners, HPS_LISTENER_KSERVE, 0)[0] == '\0') {
        return HPS_OK;
    }
    hps_status status =
        hps_grpc_server_add_http(daemon->server, routes, n_routes, ctx, LISTENER_KSERVE);
    return status == HPS_OK ? hps_rpc_metrics_add_http(daemon->rpc_metrics, routes, n_routes)
                            : status;
}

static hps_status add_kserve_routes(struct hps_daemon *daemon)
{
    unsigned n = 0;
    const struct hps_http_route *infer = hps_kserve_infer_routes(&n);
    hps_status status = add_routes(daemon, infer, n, daemon->lookup);
    daemon->kserve_routes = hps_kserve_service_routes(daemon->kserve, &n);
    if (daemon->kserve_routes == NULL) {
        return HPS_NO_MEMORY;
    }
    return status == HPS_OK ? add_routes(daemon, daemon->kserve_routes, n, daemon->kserve) : status;
}

/* Request headers that the services and the rules of access read. */
static const char *const headers_read[] = {"authorization", "inference-header-content-length",
                                           "traceparent", "x-request-id", NULL};

static hps_status make_server(struct hps_daemon *daemon, struct hps_error *err)
{
    struct hps_grpc_limits limits;
    daemon_grpc_limits(&daemon->options.config->server, &limits);
    fill_series(daemon);
    HPS_ASSERT(daemon->lookup != NULL && daemon->admin != NULL && daemon->readiness != NULL);
    const struct hps_grpc_observer observer = {.ctx = daemon,
                                               .on_call_end = on_call_end,
                                               .on_connection = on_connection,
                                               .on_no_start = on_no_start,
                                               .on_slow = on_slow};
    daemon->server = hps_grpc_server_new(&limits, &observer);
    if (daemon->server == NULL) {
        return no_memory(err);
    }
    hps_grpc_server_limits_use(daemon->server, daemon->limits, LISTENER_ADMIN);
    const struct hps_grpc_guard guard = hps_access_guard(daemon->access);
    hps_grpc_server_guard_set(daemon->server, &guard);
    hps_grpc_server_keep(daemon->server, headers_read);
    daemon->kserve_infer = hps_kserve_infer_grpc(daemon->lookup);
    const struct {
        const struct hps_grpc_service *service;
        uint32_t mask;
    } services[] = {{hps_lookup_service_grpc(daemon->lookup), LISTENER_PUBLIC | LISTENER_ADMIN},
                    {&daemon->kserve_infer, LISTENER_PUBLIC | LISTENER_ADMIN},
                    {hps_unary_service_grpc(daemon->model), LISTENER_PUBLIC | LISTENER_ADMIN},
                    {hps_unary_service_grpc(daemon->wait), LISTENER_PUBLIC | LISTENER_ADMIN},
                    {hps_unary_service_grpc(daemon->kserve), LISTENER_PUBLIC | LISTENER_ADMIN},
                    {hps_unary_service_grpc(daemon->admin), LISTENER_ADMIN},
                    {hps_health_service_grpc(daemon->health), LISTENER_PUBLIC | LISTENER_ADMIN},
                    {hps_reflection_service_grpc(daemon->reflection, 0), LISTENER_PUBLIC},
                    {hps_reflection_service_grpc(daemon->reflection, 1), LISTENER_PUBLIC},
                    {hps_reflection_service_grpc(daemon->admin_reflection, 0), LISTENER_ADMIN},
                    {hps_reflection_service_grpc(daemon->admin_reflection, 1), LISTENER_ADMIN}};
    for (unsigned i = 0; i < sizeof(services) / sizeof(services[0]); i++) {
        hps_status status =
            hps_grpc_server_add(daemon->server, services[i].service, services[i].mask);
        if (status == HPS_OK) {
            status = hps_rpc_metrics_add(daemon->rpc_metrics, services[i].service);
        }
        if (status != HPS_OK) {
            return no_memory(err);
        }
    }
    return add_kserve_routes(daemon) == HPS_OK ? HPS_OK : no_memory(err);
}

/* ---- loops ----------------------------------------------------------------------------------- */

static void *loop_main(void *arg)
{
    struct loop_thread *thread = arg;
    hps_loop_run(thread->loop);
    return NULL;
}

static hps_status make_loops(struct hps_daemon *daemon, struct hps_error *err)
{
    HPS_ASSERT(daemon->server != NULL && daemon->threads == NULL);
    hps_status status = hps_loop_new(&daemon->loop, err);
    daemon->threads =
        hps_calloc(daemon->options.config->server.loop_threads, sizeof(*daemon->threads));
    if (status != HPS_OK || daemon->threads == NULL) {
        return status != HPS_OK ? status : no_memory(err);
    }
    for (unsigned i = 0; i < daemon->options.config->server.loop_threads; i++) {
        struct loop_thread *thread = &daemon->threads[daemon->n_threads++];
        thread->daemon = daemon;
        status = hps_loop_new(&thread->loop, err);
        if (status != HPS_OK) {
            return status;
        }
        if (hps_grpc_loop_new(daemon->server, thread->loop, &thread->grpc) != HPS_OK) {
            return no_memory(err);
        }
    }
    return HPS_OK;
}

static hps_status start_loops(struct hps_daemon *daemon, struct hps_error *err)
{
    for (unsigned i = 0; i < daemon->n_threads; i++) {
        struct loop_thread *thread = &daemon->threads[i];
        char name[16];
        HPS_ASSERT(!thread->worker.running && thread->grpc != NULL);
        snprintf(name, sizeof(name), "loop-%u", i);
        if (hps_worker_start(&thread->worker, name, 0, loop_main, thread) != HPS_OK) {
            return hps_error_set(err, HPS_EXHAUSTED, "a loop thread cannot be started");
        }
    }
    return HPS_OK;
}

static void stop_loops(struct hps_daemon *daemon)
{
    for (unsigned i = 0; i < daemon->n_threads; i++) {
        struct loop_thread *thread = &daemon->threads[i];
        if (thread->worker.running) {
            hps_loop_stop(thread->loop);
            hps_worker_join(&thread->worker);
        }
    }
    for (unsigned i = 0; i < daemon->n_threads; i++) {
        hps_grpc_loop_free(daemon->threads[i].grpc);
        daemon->threads[i].grpc = NULL; /* posted tasks may still run and check it */
    }
}

/* ---- start and stop -------------------------------------------------------------------------- */

static hps_status daemon_make(struct hps_daemon *daemon, struct hps_error *err)
{
    const struct hps_config_server *config = &daemon->options.config->server;
    hps_status status = daemon_make_tls(config, &daemon->tls, err);
    if (status == HPS_OK) {
        status = make_state(daemon, err);
    }
    if (status == HPS_OK) {
        status = make_access(daemon, err);
    }
    if (status == HPS_OK) {
        status = hps_listeners_open(config, &daemon->listeners, err);
    }
    if (status == HPS_OK) {
        status = make_pools(daemon, err);
    }
    if (status == HPS_OK) {
        status = make_insertion(daemon, err);
    }
    if (status == HPS_OK) {
        status = open_devices(daemon, err);
    }
    if (status == HPS_OK) {
        status = make_updater(daemon, err);
    }
    if (status == HPS_OK) {
        status = open_catalog(daemon, err);
    }
    if (status == HPS_OK) {
        status = make_services(daemon, err);
    }
    if (status == HPS_OK) {
        status = make_server(daemon, err);
    }
    if (status == HPS_OK) {
        status = make_loops(daemon, err);
    }
    if (status == HPS_OK) {
        status =
            /* Blocks signals, so it comes before other threads start. */
            daemon_start_serving(daemon, err);
    }
    if (status == HPS_OK) {
        status = start_loops(daemon, err);
    }
    return status;
}

/* List the addresses of one kind in the order in which they were opened. Returns their number. */
static unsigned list_addresses(const struct hps_listeners *listeners, enum hps_listener_kind kind,
                               const char *out_addresses[HPS_LISTENERS_MAX])
{
    unsigned n = 0;
    const char *address = hps_listeners_address(listeners, kind, n);
    while (address[0] != '\0') {
        out_addresses[n++] = address;
        address = hps_listeners_address(listeners, kind, n);
    }
    return n;
}

hps_status hps_daemon_open(const struct hps_daemon_options *options, struct hps_daemon **out_daemon,
                           struct hps_error *err)
{
    struct hps_daemon *daemon = hps_calloc(1, sizeof(*daemon));
    if (daemon == NULL) {
        return no_memory(err);
    }
    daemon->options = *options;
    hps_lock_init(&daemon->config_lock, HPS_LOCK_CONFIG);
    daemon->started_us = hps_clock_us();
    hps_status status = daemon_make(daemon, err);
    if (status != HPS_OK) {
        hps_daemon_close(daemon);
        return status;
    }
    daemon->n_grpc_addresses =
        list_addresses(&daemon->listeners, HPS_LISTENER_GRPC, daemon->grpc_addresses);
    daemon->n_kserve_addresses =
        list_addresses(&daemon->listeners, HPS_LISTENER_KSERVE, daemon->kserve_addresses);
    *out_daemon = daemon;
    return HPS_OK;
}

/* The order: loops stop first, so that no new work begins. Pools and catalog threads end next;
 * their last tasks post to the loops. Then the loops are freed, which runs these tasks on closed
 * calls. The parts that calls used come last. */
void hps_daemon_close(struct hps_daemon *daemon)
{
    if (daemon == NULL) {
        return;
    }
    if (daemon->acceptor != NULL) {
        hps_acceptor_stop(daemon->acceptor);
    }
    if (daemon->admin_acceptor != NULL) {
        hps_acceptor_stop(daemon->admin_acceptor);
    }
    stop_loops(daemon);
    daemon_pages_stop(daemon);
    hps_timer_stop(&daemon->tick);
    hps_timer_stop(&daemon->phase_timer);
    hps_loop_signals_free(daemon->signals);
    hps_insertion_stop(daemon->insertion);
    hps_pool_free(daemon->workers); /* before io, because workers pass work to it */
    hps_pool_free(daemon->io);
    hps_devices_drain(daemon->devices); /* its replies go to the loops */
    hps_admin_snapshot_cancel();
    hps_admin_export_cancel();
    hps_pool_free(daemon->admin_pool); /* writes the pending lines of the audit log */
    hps_catalog_stop(daemon->catalog);
    for (unsigned i = 0; i < daemon->n_threads; i++) {
        hps_loop_free(daemon->threads[i].loop);
    }
    hps_acceptor_free(daemon->acceptor);
    hps_acceptor_free(daemon->admin_acceptor);
    hps_loop_free(daemon->loop);
    hps_lookup_service_free(daemon->lookup);
    hps_unary_service_free(daemon->model);
    hps_unary_service_free(daemon->wait);
    hps_unary_service_free(daemon->kserve);
    hps_unary_service_free(daemon->admin);
    hps_readiness_free(daemon->readiness);
    hps_health_service_free(daemon->health);
    hps_reflection_service_free(daemon->reflection);
    hps_reflection_service_free(daemon->admin_reflection);
    hps_grpc_server_free(daemon->server);
    hps_grpc_server_free(daemon->pages.server);
    hps_free(daemon->kserve_routes);
    hps_catalog_close(daemon->catalog);
    hps_updater_free(daemon->updater); /* the catalog has stopped it */
    hps_free(daemon->update_filters);
    hps_insertion_free(daemon->insertion);
    hps_models_free(daemon->models);
    hps_breaker_free(daemon->durable_breaker);
    hps_store_servers_free(daemon->shared_servers);
    hps_slowlog_free(daemon->slowlog);
    hps_audit_free(daemon->audit);
    hps_devices_close(daemon->devices); /* before the slab that they write to */
    hps_block_pool_free(daemon->blocks);
    hps_rpc_metrics_free(daemon->rpc_metrics);
    hps_metrics_free(daemon->metrics);
    daemon_tls_free(&daemon->tls);
    hps_listeners_close(&daemon->listeners);
    hps_access_free(daemon->access);
    hps_limits_free(daemon->limits);
    hps_free(daemon->threads);
    hps_lock_fini(&daemon->config_lock);
    hps_free(daemon);
}

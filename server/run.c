/* SPDX-License-Identifier: Apache-2.0
 *
 * The main thread of the daemon: accepting, gauges, signals, readiness and the drain.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "backends/breaker.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/container.h"
#include "base/heap.h"
#include "base/log.h"
#include "cache/update/update.h"
#include "server/daemon_internal.h"
#include "server/observe/notify.h"

enum {
    TICK_US = 250 * 1000,
    ADMIN_CONNECTIONS_MAX = 64,
    FILES_RESERVED = 512, /* for stores, loads, probes and the admin listener */
};

/* ---- accepting ------------------------------------------------------------------------------- */

/* The loop with the fewest bytes in flight; of equals, the one with the fewest connections. */
static struct loop_thread *least_loaded(struct hps_daemon *daemon)
{
    struct loop_thread *best = &daemon->threads[0];
    for (unsigned i = 1; i < daemon->n_threads; i++) {
        struct loop_thread *other = &daemon->threads[i];
        size_t mine = hps_grpc_loop_bytes_in_flight(best->grpc);
        size_t its = hps_grpc_loop_bytes_in_flight(other->grpc);
        if (its < mine || (its == mine && hps_grpc_loop_connections(other->grpc) <
                                              hps_grpc_loop_connections(best->grpc))) {
            best = other;
        }
    }
    return best;
}

static void on_accept(void *ctx, struct hps_conn *conn, unsigned cookie)
{
    struct hps_daemon *daemon = ctx;
    hps_grpc_loop_adopt(least_loaded(daemon)->grpc, conn, cookie, cookie == LISTENER_KSERVE);
}

/* Every connection uses a descriptor. A store on disk must never lack one: its write would fail,
 * and a store with a failed write is read-only from then on. */
static unsigned connections_max(const struct hps_config_server *config)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
        return config->connections_max;
    }
    rlim_t n_max = limit.rlim_cur > 2 * (rlim_t)FILES_RESERVED ? limit.rlim_cur - FILES_RESERVED
                                                               : limit.rlim_cur / 2;
    if (n_max >= config->connections_max) {
        return config->connections_max;
    }
    HPS_LOG(WARN, "acceptor",
            "connections limited: open files allow fewer than connections_max; raise LimitNOFILE",
            HPS_U64("connections", n_max), HPS_U64("connections_max", config->connections_max),
            HPS_U64("open_files_max", limit.rlim_cur));
    return (unsigned)n_max;
}

void daemon_place_limits(const struct hps_config_server *config, bool admin,
                         struct hps_place_limits *out_limits)
{
    *out_limits =
        (struct hps_place_limits){.max = admin ? ADMIN_CONNECTIONS_MAX : connections_max(config),
                                  .client_max = admin ? 0 : config->connections_per_peer_max,
                                  .failures_max = config->handshake_failures_max};
}

static void set_metrics(struct hps_metrics *metrics, struct hps_acceptor_options *options)
{
    for (unsigned i = 0; i < HPS_PLACES_REFUSALS; i++) {
        options->refused[i] =
            hps_server_metric(metrics, HPS_M_CONNECTIONS_REFUSED,
                              hps_place_refusal_name((enum hps_place_refusal)i), NULL, NULL, NULL);
    }
    for (unsigned i = 0; i < HPS_PLACES_LOSSES; i++) {
        options->displaced[i] =
            hps_server_metric(metrics, HPS_M_CONNECTIONS_DISPLACED,
                              hps_place_loss_name((enum hps_place_loss)i), NULL, NULL, NULL);
    }
}

static hps_status make_acceptors(struct hps_daemon *daemon, struct hps_error *err)
{
    const struct hps_config_server *config = &daemon->options.config->server;
    struct hps_acceptor_options options = {.on_accept = on_accept, .ctx = daemon};
    set_metrics(daemon->metrics, &options);
    struct hps_acceptor_options admin = options;
    daemon_place_limits(config, false, &options.limits);
    daemon_place_limits(config, true, &admin.limits);
    hps_status status = hps_acceptor_new(daemon->loop, &options, &daemon->acceptor, err);
    return status == HPS_OK ? hps_acceptor_new(daemon->loop, &admin, &daemon->admin_acceptor, err)
                            : status;
}

/* The admin listener has its own limits, so that clients of the public listeners cannot lock the
 * operator out. */
static hps_status start_acceptors(struct hps_daemon *daemon, struct hps_error *err)
{
    hps_status status = make_acceptors(daemon, err);
    for (unsigned i = 0; status == HPS_OK && i < daemon->listeners.n; i++) {
        struct hps_listener *listener = &daemon->listeners.items[i];
        if (listener->kind == HPS_LISTENER_HTTP) {
            continue;
        }
        bool admin = listener->kind == HPS_LISTENER_ADMIN;
        bool kserve = listener->kind == HPS_LISTENER_KSERVE;
        struct hps_tls *tls = kserve ? daemon->tls.kserve : daemon->tls.grpc;
        int fd = listener->fd;
        HPS_ASSERT(fd >= 0);
        listener->fd = -1;
        status = hps_acceptor_add(admin ? daemon->admin_acceptor : daemon->acceptor, fd,
                                  listener->tls ? tls : NULL,
                                  admin    ? LISTENER_ADMIN
                                  : kserve ? LISTENER_KSERVE
                                           : LISTENER_PUBLIC,
                                  listener->is_unix && !listener->inherited, err);
    }
    return status;
}

static unsigned connections(const struct hps_daemon *daemon)
{
    return hps_acceptor_connections(daemon->acceptor) +
           hps_acceptor_connections(daemon->admin_acceptor);
}

/* ---- gauges ---------------------------------------------------------------------------------- */

static void set(struct hps_daemon *daemon, enum hps_metric_id id, const char *v0, const char *v1,
                const char *v2, double value)
{
    hps_metric_set(hps_server_metric(daemon->metrics, id, v0, v1, v2, NULL), value);
}

static void version_gauges(void *ctx, const struct hps_version_view *view)
{
    struct hps_daemon *daemon = ctx;
    char number[32];
    if (strcmp(view->state, "unloading") == 0) {
        return;
    }
    snprintf(number, sizeof(number), "%" PRId64, view->version->number);
    set(daemon, HPS_M_MODEL_LOAD_PROGRESS, view->model, number, NULL, view->load_ratio);
    if (strcmp(view->state, "loading") == 0) {
        return;
    }
    hps_table_metrics_evictions(view->version);
    if (view->gpu != NULL) {
        const char *gpu = hps_tier_name(HPS_TIER_GPU);
        set(daemon, HPS_M_TIER_ROWS, view->model, number, gpu, (double)view->gpu_rows);
        set(daemon, HPS_M_TIER_USED_BYTES, view->model, number, gpu, (double)view->gpu_bytes);
        for (uint32_t i = 0; i < view->version->n_tables; i++) {
            hps_metric_set(hps_server_metric(daemon->metrics, HPS_M_TIER_RESIDENT_RATIO,
                                             view->model, number, view->version->tables[i].name,
                                             gpu),
                           view->gpu_usages[i].resident_share);
        }
    }
    for (uint32_t i = 0; i < view->version->n_tiers; i++) {
        const struct hps_store_ops *ops = view->version->tiers[i]->store->ops;
        struct hps_store_usage usage;
        hps_update_usage(view->version, view->version->tiers[i], &usage);
        set(daemon, HPS_M_TIER_ROWS, view->model, number, ops->name, (double)usage.n_rows);
        set(daemon, HPS_M_TIER_USED_BYTES, view->model, number, ops->name,
            (double)usage.used_bytes);
        if ((ops->caps & HPS_STORE_SHARED) != 0) {
            set(daemon, HPS_M_SHARED_LOST_SHARDS, view->model, number, ops->name,
                usage.n_shards_lost);
        }
        if ((ops->caps & HPS_STORE_DURABLE) != 0) {
            set(daemon, HPS_M_TIER_DAMAGED_PAGES, view->model, number, ops->name,
                usage.n_pages_damaged);
        }
        if (ops->tier == HPS_TIER_HOST) {
            set(daemon, HPS_M_TIER_DROPPED_ROWS, view->model, number, ops->name,
                (double)usage.n_rows_dropped);
            set(daemon, HPS_M_TIER_HUGE_PAGE_BYTES, view->model, number, ops->name,
                (double)usage.huge_bytes);
        }
    }
}

static void device_gauges(struct hps_daemon *daemon)
{
    const char *gpu = hps_tier_name(HPS_TIER_GPU);
    uint64_t bytes = 0;
    for (unsigned i = 0; i < hps_devices_count(daemon->devices); i++) {
        struct hps_device_view view;
        hps_devices_view(daemon->devices, i, &view);
        if (!view.there) {
            return; /* no device is down; log and status report the missing GPUs */
        }
        bytes += view.up ? view.capacity_bytes : 0;
        set(daemon, HPS_M_TIER_UP, gpu, view.node, NULL, view.up ? 1 : 0);
        set(daemon, HPS_M_TIER_CAPACITY_BYTES, gpu, NULL, NULL, (double)bytes);
    }
}

static void refresh_gauges(void *ctx)
{
    struct hps_daemon *daemon = ctx;
    const struct hps_load_env *env = &daemon->options.env;
    struct hps_store *host = hps_stores_host(&env->stores);
    struct hps_store *durable = hps_stores_durable(&env->stores);
    hps_readiness_refresh(daemon->readiness);
    hps_limits_export(daemon->limits);
    hps_catalog_each(daemon->catalog, version_gauges, daemon);
    device_gauges(daemon);
    hps_updater_gauges(daemon->updater);
    if (host != NULL) {
        set(daemon, HPS_M_TIER_UP, host->ops->name, "", NULL, 1);
        set(daemon, HPS_M_TIER_CAPACITY_BYTES, host->ops->name, NULL, NULL,
            (double)env->host_bytes_max);
    }
    if (durable != NULL) {
        set(daemon, HPS_M_TIER_UP, durable->ops->name, "", NULL,
            hps_breaker_up(daemon->durable_breaker) ? 1 : 0);
        set(daemon, HPS_M_STORE_READ_ONLY, NULL, NULL, NULL,
            durable->ops->durable->writes_refused(durable) != NULL ? 1 : 0);
    }
    if (daemon->shared_servers != NULL) {
        hps_store_servers_refresh(daemon->shared_servers);
    }
    set(daemon, HPS_M_CONFIG_DRIFT, NULL, NULL, NULL,
        hps_catalog_drift(daemon->catalog, NULL, NULL));
}

/* ---- tick ------------------------------------------------------------------------------------ */

static void run_echo(struct hps_task *task)
{
    struct loop_thread *thread = HPS_CONTAINER_OF(task, struct loop_thread, echo);
    atomic_store(&thread->alive_us, hps_clock_us());
    atomic_store(&thread->echo_pending, false);
}

/* Notify the watchdog only while every loop answers. */
static void feed_watchdog(struct hps_daemon *daemon, uint64_t now_us)
{
    bool alive = true;
    HPS_ASSERT(daemon->watchdog_us != 0);
    for (unsigned i = 0; i < daemon->n_threads; i++) {
        struct loop_thread *thread = &daemon->threads[i];
        /* A loop may have answered after now_us was read, at the beginning of this turn. */
        alive = alive && atomic_load(&thread->alive_us) + daemon->watchdog_us > now_us;
        if (!atomic_exchange(&thread->echo_pending, true)) {
            thread->echo.run = run_echo;
            hps_loop_post(thread->loop, &thread->echo);
        }
    }
    if (alive && now_us >= daemon->watchdog_at_us) {
        hps_notify_watchdog();
        daemon->watchdog_at_us = now_us + daemon->watchdog_us / 2;
    }
}

static void run_recheck(struct hps_task *task) /* loop thread */
{
    struct loop_thread *thread = HPS_CONTAINER_OF(task, struct loop_thread, recheck);
    atomic_store(&thread->recheck_pending, false); /* a later change posts the task again */
    if (thread->grpc != NULL) {
        hps_grpc_loop_recheck(thread->grpc);
    }
}

void daemon_recheck(struct hps_daemon *daemon)
{
    for (unsigned i = 0; i < daemon->n_threads; i++) {
        struct loop_thread *thread = &daemon->threads[i];
        if (!atomic_exchange(&thread->recheck_pending, true)) {
            thread->recheck.run = run_recheck;
            hps_loop_post(thread->loop, &thread->recheck);
        }
    }
}

/* Invariants of each phase. Main thread, at the end of a turn. */
static void daemon_sane(const struct hps_daemon *daemon)
{
    bool draining = atomic_load(&daemon->draining);
    HPS_ASSERT(daemon->n_draining <= daemon->n_threads);
    HPS_ASSERT(daemon->phase == PHASE_SERVING || daemon->phase == PHASE_STOPPED || draining);
    HPS_ASSERT(daemon->phase >= PHASE_DRAINING || daemon->n_draining == 0);
    HPS_ASSERT(!daemon->failed || daemon->phase != PHASE_SERVING);
}

/* Phases only go forward, and some may be skipped. */
static void phase_set(struct hps_daemon *daemon, enum daemon_phase to)
{
    HPS_ASSERT(to > daemon->phase || (to == PHASE_STOPPED && daemon->phase == PHASE_STOPPED));
    daemon->phase = to;
    daemon_sane(daemon);
}

static void begin_drain(struct hps_daemon *daemon);

/* React to a lost device, after the device has logged the loss. */
static void check_devices(struct hps_daemon *daemon)
{
    if (hps_devices_take_lost(daemon->devices) == 0) {
        return;
    }
    hps_catalog_device_lost(daemon->catalog);
    if (daemon->options.config->server.on_device_loss == HPS_CONFIG_DEVICE_LOSS_DEGRADE) {
        HPS_LOG(
            WARN, "gpu",
            "serving degraded: a device is lost, and rows come from the stores; repair it, then "
            "restart hpsd");
        return;
    }
    HPS_LOG(ERROR, "gpu", "draining: a device is lost, and server.on_device_loss is exit");
    daemon->failed = true;
    if (daemon->phase == PHASE_SERVING) {
        begin_drain(daemon);
    }
}

static void on_tick(void *ctx)
{
    struct hps_daemon *daemon = ctx;
    if (atomic_load(&daemon->draining) && daemon->phase == PHASE_SERVING) {
        begin_drain(daemon); /* requested by hpsctl */
    }
    check_devices(daemon);
    hps_readiness_refresh(daemon->readiness);
    hps_catalog_tick(daemon->catalog);
    if (hps_access_take_expired(daemon->access)) {
        daemon_recheck(daemon);
    }
    if (daemon->watchdog_us != 0) {
        feed_watchdog(daemon, hps_loop_now_us(daemon->loop));
    }
    daemon_sane(daemon);
    hps_timer_set_after(daemon->loop, &daemon->tick, TICK_US);
}

/* ---- drain ----------------------------------------------------------------------------------- */

static void stop_now(struct hps_daemon *daemon)
{
    phase_set(daemon, PHASE_STOPPED);
    hps_loop_stop(daemon->loop);
}

struct drained_notice {
    struct hps_task task;
    struct hps_daemon *daemon;
};

static void run_loop_drained(struct hps_task *task)
{
    struct drained_notice *notice = (struct drained_notice *)task;
    struct hps_daemon *daemon = notice->daemon;
    hps_free(notice);
    HPS_ASSERT(daemon->n_draining > 0);
    if (--daemon->n_draining == 0 && daemon->phase == PHASE_DRAINING) {
        HPS_LOG(INFO, "daemon", "drained");
        stop_now(daemon);
    }
}

static void on_loop_drained(void *ctx) /* loop thread */
{
    struct loop_thread *thread = ctx;
    struct drained_notice *notice = hps_calloc(1, sizeof(*notice));
    if (notice == NULL) {
        return; /* drain_timeout_ms then ends the drain */
    }
    notice->task.run = run_loop_drained;
    notice->daemon = thread->daemon;
    hps_loop_post(thread->daemon->loop, &notice->task);
}

static void run_drain(struct hps_task *task) /* loop thread */
{
    struct loop_thread *thread = HPS_CONTAINER_OF(task, struct loop_thread, drain);
    if (thread->grpc != NULL) {
        hps_grpc_loop_drain(thread->grpc, on_loop_drained, thread);
    }
}

static void on_phase_timer(void *ctx)
{
    struct hps_daemon *daemon = ctx;
    if (daemon->phase == PHASE_DRAINING) {
        HPS_LOG(WARN, "daemon",
                "drain incomplete: calls were still in flight after server.drain_timeout_ms; hpsd "
                "ends them",
                HPS_U64("loops", daemon->n_draining));
        stop_now(daemon);
        return;
    }
    if (daemon->phase == PHASE_STOPPED) {
        return; /* the loop ends with this turn */
    }
    phase_set(daemon, PHASE_DRAINING);
    hps_acceptor_stop(daemon->acceptor);
    hps_acceptor_stop(daemon->admin_acceptor);
    hps_health_service_close(daemon->health);
    hps_updater_waits_close(daemon->updater);
    daemon->n_draining = daemon->n_threads;
    for (unsigned i = 0; i < daemon->n_threads; i++) {
        daemon->threads[i].drain.run = run_drain;
        hps_loop_post(daemon->threads[i].loop, &daemon->threads[i].drain);
    }
    hps_timer_set_after(daemon->loop, &daemon->phase_timer,
                        (uint64_t)daemon->options.config->server.drain_timeout_ms * 1000);
}

static void begin_drain(struct hps_daemon *daemon)
{
    const struct hps_config_server *config = &daemon->options.config->server;
    HPS_ASSERT(daemon->phase == PHASE_SERVING);
    atomic_store(&daemon->draining, true);
    phase_set(daemon, PHASE_UNREADY);
    hps_notify_stopping();
    hps_readiness_drain(daemon->readiness);
    HPS_LOG(INFO, "daemon", "draining: stop requested; a second signal stops at once",
            HPS_U64("delay_ms", config->drain_delay_ms),
            HPS_U64("timeout_ms", config->drain_timeout_ms));
    hps_timer_set_after(daemon->loop, &daemon->phase_timer,
                        (uint64_t)config->drain_delay_ms * 1000);
}

void daemon_ask_drain(void *ctx)
{
    atomic_store(&((struct hps_daemon *)ctx)->draining, true); /* the next tick begins the drain */
}

void daemon_status(void *ctx, struct hps_admin_status *out_status)
{
    struct hps_daemon *daemon = ctx;
    hps_limits_export(daemon->limits);
    *out_status = (struct hps_admin_status){
        .draining = atomic_load(&daemon->draining),
        .started_us = daemon->started_us,
        .grpc_addresses = daemon->grpc_addresses,
        .n_grpc_addresses = daemon->n_grpc_addresses,
        .kserve_addresses = daemon->kserve_addresses,
        .n_kserve_addresses = daemon->n_kserve_addresses,
        .http_address = hps_listeners_address(&daemon->listeners, HPS_LISTENER_HTTP, 0),
        .admin_address = hps_listeners_address(&daemon->listeners, HPS_LISTENER_ADMIN, 0),
        .connections = connections(daemon)};
}

/* ---- signals --------------------------------------------------------------------------------- */

static void log_version(void *ctx, const struct hps_version_view *view)
{
    (void)ctx;
    HPS_LOG(INFO, "state", "version", HPS_STR("model", view->model),
            HPS_I64("version", view->version->number), HPS_STR("state", view->state),
            HPS_U64("rows", view->n_rows), HPS_U64("host_bytes", view->host_bytes),
            HPS_U64("persistent_bytes", view->persistent_bytes));
}

static void log_state(struct hps_daemon *daemon)
{
    HPS_LOG(INFO, "state", "daemon",
            HPS_STR("ready", hps_readiness_get(daemon->readiness, NULL, NULL) ? "true" : "false"),
            HPS_U64("connections", connections(daemon)),
            HPS_U64("reply_bytes_in_flight", hps_limits_used(daemon->limits, HPS_LIMIT_REPLIES)),
            HPS_U64("worker_queue", hps_pool_depth(daemon->workers)));
    hps_catalog_each(daemon->catalog, log_version, daemon);
}

static void on_signal(void *ctx, int number)
{
    struct hps_daemon *daemon = ctx;
    switch (number) {
    case SIGHUP:
        daemon_reload(daemon);
        break;
    case SIGUSR1:
        log_state(daemon);
        break;
    case SIGQUIT:
        stop_now(daemon);
        break;
    default:
        if (daemon->phase != PHASE_SERVING) {
            HPS_LOG(WARN, "daemon", "stopping at once: a second signal came while draining");
            stop_now(daemon);
        } else {
            begin_drain(daemon);
        }
        break;
    }
}

/* ---- start and run --------------------------------------------------------------------------- */

hps_status daemon_start_serving(struct hps_daemon *daemon, struct hps_error *err)
{
    static const int signals[] = {SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGUSR1};
    HPS_ASSERT(daemon->loop != NULL && daemon->phase == PHASE_SERVING);
    hps_timer_init(&daemon->tick, on_tick, daemon);
    hps_timer_init(&daemon->phase_timer, on_phase_timer, daemon);
    hps_metrics_on_print(daemon->metrics, refresh_gauges, daemon);
    hps_status status =
        hps_loop_signals_new(daemon->loop, signals, sizeof(signals) / sizeof(signals[0]), on_signal,
                             daemon, &daemon->signals, err);
    if (status == HPS_OK) {
        status = start_acceptors(daemon, err);
    }
    if (status == HPS_OK) {
        status = daemon_pages_start(daemon, err);
    }
    return status;
}

/* Prints a line for the process that started hpsd. Such a process may read only the first line. */
static void print_line(struct hps_daemon *daemon, const char *word)
{
    printf("%s grpc=", word);
    for (unsigned i = 0; i < daemon->n_grpc_addresses; i++) {
        printf("%s%s", i > 0 ? "," : "", daemon->grpc_addresses[i]);
    }
    for (unsigned i = 0; i < daemon->n_kserve_addresses; i++) {
        printf("%s%s", i > 0 ? "," : " kserve=", daemon->kserve_addresses[i]);
    }
    const char *http = hps_listeners_address(&daemon->listeners, HPS_LISTENER_HTTP, 0);
    printf(" http=%s admin=%s pid=%d\n", http,
           hps_listeners_address(&daemon->listeners, HPS_LISTENER_ADMIN, 0), (int)getpid());
    fflush(stdout);
}

void daemon_first_ready(void *ctx)
{
    print_line(ctx, "ready");
}

/* Marks start and stop in the audit log. */
static void audit_life(struct hps_daemon *daemon, const char *what)
{
    const struct hps_audit_event event = {.method = what, .logged = true};
    hps_audit_write(daemon->audit, &event);
}

/* READY is sent as soon as hpsd listens. A load may take longer than the service manager's start
 * limit; /readyz tells whether models are served. */
void hps_daemon_run(struct hps_daemon *daemon)
{
    audit_life(daemon, "start");
    daemon->watchdog_us = hps_notify_watchdog_us();
    for (unsigned i = 0; i < daemon->n_threads; i++) {
        atomic_store(&daemon->threads[i].alive_us, hps_clock_us());
    }
    hps_catalog_ensure_models(daemon->catalog);
    print_line(daemon, "listening");
    hps_readiness_refresh(daemon->readiness); /* prints `ready` now if there is nothing to load */
    hps_notify_ready();
    hps_timer_set_after(daemon->loop, &daemon->tick, 0);
    hps_loop_run(daemon->loop);
    audit_life(daemon, "stop");
}

bool hps_daemon_failed(const struct hps_daemon *daemon)
{
    return daemon->failed;
}

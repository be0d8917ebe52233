/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by daemon.c (creates and frees the parts), run.c (the main thread's loop), reload.c
 * (SIGHUP) and pages.c (probes and /metrics). Main thread, unless stated otherwise.
 */
#ifndef HPS_SERVER_DAEMON_INTERNAL_H
#define HPS_SERVER_DAEMON_INTERNAL_H

#include <pthread.h>

#include "base/worker.h"
#include "net/acceptor.h"
#include "net/grpc.h"
#include "net/loop.h"
#include "net/tls.h"
#include "server/access/access.h"
#include "server/admin/service.h"
#include "server/catalog/catalog.h"
#include "server/catalog/readiness.h"
#include "server/catalog/store_servers.h"
#include "server/daemon.h"
#include "server/kserve/infer_service.h"
#include "server/kserve/service.h"
#include "server/listeners.h"
#include "server/lookup/service.h"
#include "server/model/service.h"
#include "server/observe/rpc_metrics.h"
#include "server/rpc/health.h"
#include "server/rpc/reflection.h"

enum { LISTENER_PUBLIC = 1, LISTENER_ADMIN = 2, LISTENER_KSERVE = 4 };

/* A thread with a loop and the gRPC connections of that loop. */
struct loop_thread {
    struct hps_daemon *daemon;
    struct hps_loop *loop;
    struct hps_grpc_loop *grpc; /* NULL after the loop has stopped */
    struct hps_worker worker;
    /* The main thread posts these tasks to the loop. */
    struct hps_task drain;     /* end the connections; posted once */
    struct hps_task echo;      /* set alive_us, for the watchdog */
    _Atomic uint64_t alive_us; /* hps_clock_us when the loop last ran `echo` */
    atomic_bool echo_pending;  /* `echo` is posted and has not run */
    /* Check connections again, after rules or certificates have changed. */
    struct hps_task recheck;
    atomic_bool recheck_pending; /* `recheck` is posted and has not run */
};

/* The TLS contexts of the listeners, made from server.tls with one certificate. All are NULL
 * without TLS. */
struct daemon_tls {
    struct hps_tls *grpc;
    struct hps_tls *http;   /* of http_listen; client certificates are optional */
    struct hps_tls *kserve; /* of kserve_listen: as `grpc`, but for HTTP/1.1 */
};

enum daemon_phase { PHASE_SERVING, PHASE_UNREADY, PHASE_DRAINING, PHASE_STOPPED };

/* The parts of the program. Only the files that share this header know this struct. Each part gets
 * pointers to the parts that it uses. */
struct hps_daemon {
    struct hps_daemon_options options;
    /* Protects the reloadable options of `options.config`. Only the main thread changes them, so it
     * reads them without the lock. */
    struct hps_lock config_lock;
    struct hps_metrics *metrics;
    struct hps_service_metrics series;
    struct hps_metric *connections_failed[HPS_GRPC_NO_STARTS];
    struct hps_metric *slow_clients[HPS_GRPC_SLOW_COUNT];
    struct hps_rpc_metrics *rpc_metrics;
    struct hps_breaker *durable_breaker;      /* of the persistent store; also in options.env */
    struct hps_store_servers *shared_servers; /* NULL: no store consists of servers */
    struct hps_models *models;
    struct hps_updater *updater; /* NULL: versions take no updates */
    const char **update_filters; /* array of the configuration's update_filters, for `updater` */
    struct hps_catalog *catalog;
    struct hps_block_pool *blocks;
    struct hps_devices *devices; /* NULL: no model has an embedding cache */
    struct hps_limits *limits;   /* memory of calls */
    struct hps_slowlog *slowlog;
    struct hps_audit *audit;
    struct hps_pool *workers;
    struct hps_pool *io;
    struct hps_pool *admin_pool;
    struct hps_insertion *insertion;
    struct hps_lookup_service *lookup;
    struct hps_grpc_service kserve_infer; /* ModelInfer, which uses `lookup` */
    struct hps_unary_service *model;      /* GetModel */
    struct hps_unary_service *wait;       /* WaitForUpdates */
    struct hps_unary_service *kserve;     /* the other methods of KServe */
    struct hps_http_route *kserve_routes; /* HTTP routes of `kserve` */
    struct hps_unary_service *admin;
    struct hps_health_service *health;
    struct hps_readiness *readiness;
    struct hps_reflection_service *reflection;
    struct hps_reflection_service *admin_reflection;
    struct hps_grpc_server *server;
    struct daemon_tls tls;
    struct hps_access *access;
    struct hps_listeners listeners;
    const char *grpc_addresses[HPS_LISTENERS_MAX];
    unsigned n_grpc_addresses;
    const char *kserve_addresses[HPS_LISTENERS_MAX];
    unsigned n_kserve_addresses;

    struct hps_loop *loop;         /* the main thread's loop */
    struct hps_acceptor *acceptor; /* of the public listeners */
    struct hps_acceptor *admin_acceptor;
    struct {
        struct hps_grpc_server *server;
        struct hps_grpc_loop *loop; /* the connections, on the main thread */
        struct hps_acceptor *acceptor;
        struct hps_place_table *readers; /* calls of /metrics in flight */
        struct hps_block *page;          /* the last page of /metrics, while it has readers */
        size_t page_bytes;
        uint64_t printed_us;
    } pages; /* serves http_listen; all NULL if http_listen is not configured */
    struct hps_loop_signals *signals;
    struct hps_timer tick;        /* periodic work */
    struct hps_timer phase_timer; /* ends the current phase of a drain */
    uint64_t started_us;          /* hps_clock_us */
    uint64_t watchdog_us;         /* the service manager's watchdog interval; 0: no watchdog */
    uint64_t watchdog_at_us;      /* hps_clock_us: the next notification is due */
    enum daemon_phase phase;
    bool failed;          /* a failure ends the daemon */
    atomic_bool draining; /* a drain was requested or has begun; any thread may set it */
    unsigned n_draining;  /* during a drain, loops with open connections; main thread */

    struct loop_thread *threads;
    unsigned n_threads;
};

/* ---- daemon.c: values from the configuration ------------------------------------------------- */

void daemon_limits(const struct hps_config_server *config, struct hps_limits_options *out_options);
void daemon_grpc_limits(const struct hps_config_server *config, struct hps_grpc_limits *out_limits);
/* Sets how much of the queues of the pools one client may use. */
void daemon_pools_limits(struct hps_daemon *daemon, const struct hps_config_server *config);
void daemon_lookup_limits(const struct hps_config_server *config,
                          struct hps_lookup_limits *out_limits);
/* Read the access rules that the configuration names. The caller owns a reference to *out_rules. */
hps_status daemon_read_rules(const struct hps_config_server *config,
                             struct hps_access_rules **out_rules, struct hps_error *err)
    HPS_MUST_CHECK;
/* Make the TLS contexts. The caller frees them with daemon_tls_free, also on failure. */
hps_status daemon_make_tls(const struct hps_config_server *config, struct daemon_tls *out_tls,
                           struct hps_error *err) HPS_MUST_CHECK;
void daemon_tls_free(struct daemon_tls *tls);

/* ---- reload.c -------------------------------------------------------------------------------- */

/* Read the configuration again (SIGHUP). An error is logged, and the old configuration stays in
 * effect. */
void daemon_reload(struct hps_daemon *daemon);

/* ---- run.c and pages.c ----------------------------------------------------------------------- */

/* Set the limits of the admin listener, if `admin` is true, else of the public listeners. For the
 * public listeners, connections_max is lower than configured if RLIMIT_NOFILE requires it. */
void daemon_place_limits(const struct hps_config_server *config, bool admin,
                         struct hps_place_limits *out_limits);
/* Install the signal handlers, and start the acceptors and the pages. */
hps_status daemon_start_serving(struct hps_daemon *daemon, struct hps_error *err) HPS_MUST_CHECK;
/* Start serving the probes and /metrics (pages.c). This call, daemon_pages_reload and
 * daemon_pages_stop have no effect if http_listen is not configured. */
hps_status daemon_pages_start(struct hps_daemon *daemon, struct hps_error *err) HPS_MUST_CHECK;
void daemon_pages_reload(struct hps_daemon *daemon);
/* Close the listener and its connections; hps_daemon_close frees pages.server later. */
void daemon_pages_stop(struct hps_daemon *daemon);
/* For struct hps_admin_parts; ctx: the daemon. Any thread. */
void daemon_status(void *ctx, struct hps_admin_status *out_status);
void daemon_ask_drain(void *ctx);
/* Make every loop check the access rules and certificates of its connections again. Main thread. */
void daemon_recheck(struct hps_daemon *daemon);
/* For struct hps_readiness_parts: print the `ready` line. ctx: the daemon. */
void daemon_first_ready(void *ctx);

#endif

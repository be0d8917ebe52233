/* SPDX-License-Identifier: Apache-2.0
 *
 * What daemon.c (assembly) and run.c (life) share. Main thread, unless said.
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

/* A thread that runs a loop and the gRPC connections given to it. */
struct loop_thread {
    struct hps_daemon *daemon;
    struct hps_loop *loop;
    struct hps_grpc_loop *grpc; /* NULL once it has ended */
    struct hps_worker worker;
    struct hps_task drain; /* posted once */
    struct hps_task echo;  /* main asks, the loop answers: it is alive */
    _Atomic uint64_t alive_us;
    atomic_bool echo_pending;
    struct hps_task recheck; /* rules of access, or certificates, have changed */
    atomic_bool recheck_pending;
};

/* The same certificate in two contexts, as the protocols differ; both or neither. */
struct daemon_tls {
    struct hps_tls *grpc;
    struct hps_tls *http;   /* a client certificate may be shown */
    struct hps_tls *kserve; /* as grpc, but HTTP/1.1 */
};

enum daemon_phase { PHASE_SERVING, PHASE_UNREADY, PHASE_DRAINING, PHASE_STOPPED };

/* A field for each part of the program, in the order in which they are made; no part knows this
 * struct but through what it is given of it, so that groups of them would be of no use to anybody.
 */
struct hps_daemon {
    struct hps_daemon_options options;
    /* Over the reloadable options of `options.config`: the main thread changes them and need not
     * take it to read. */
    struct hps_lock config_lock;
    struct hps_metrics *metrics;
    struct hps_service_metrics series;
    struct hps_metric *connections_failed[HPS_GRPC_NO_STARTS];
    struct hps_metric *slow_clients[HPS_GRPC_SLOW_COUNT];
    struct hps_rpc_metrics *rpc_metrics;
    struct hps_breaker *durable_breaker;      /* of the persistent store; also in options.env */
    struct hps_store_servers *shared_servers; /* NULL: no store is made of servers */
    struct hps_models *models;
    struct hps_updater *updater; /* NULL: versions take no updates */
    const char **update_filters; /* of the configuration */
    struct hps_catalog *catalog;
    struct hps_block_pool *blocks;
    struct hps_devices *devices; /* NULL: no model has an embedding cache */
    struct hps_admission *admission;
    struct hps_slowlog *slowlog;
    struct hps_audit *audit;
    struct hps_pool *workers;
    struct hps_pool *io;
    struct hps_pool *admin_pool;
    struct hps_insertion *insertion;
    struct hps_lookup_service *lookup;
    struct hps_grpc_service kserve_infer; /* of `lookup`, in other bytes */
    struct hps_unary_service *model;
    struct hps_unary_service *wait;
    struct hps_unary_service *kserve;
    struct hps_http_route *kserve_routes; /* of `kserve` */
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

    struct hps_loop *loop; /* of the main thread */
    struct hps_acceptor *acceptor;
    struct hps_acceptor *admin_acceptor;
    struct {
        struct hps_grpc_server *server;
        struct hps_grpc_loop *loop; /* of the main thread */
        struct hps_acceptor *acceptor;
    } pages; /* of http_listen; NULL: there is none */
    struct hps_loop_signals *signals;
    struct hps_timer tick;
    struct hps_timer phase_timer;
    uint64_t started_us;
    uint64_t watchdog_us; /* half of what the service manager allows; 0: none */
    uint64_t watchdog_at_us;
    enum daemon_phase phase;
    bool failed; /* what ends it is a failure */
    atomic_bool draining;
    unsigned n_draining; /* loops that have connections left; main thread */

    struct loop_thread *threads;
    unsigned n_threads;
};

/* daemon.c: what the configuration asks for. */
void daemon_grpc_limits(const struct hps_config_server *config, struct hps_grpc_limits *out_limits);
void daemon_lookup_limits(const struct hps_config_server *config,
                          struct hps_lookup_limits *out_limits);
/* The rules of access that the configuration asks for. owner: the caller */
hps_status daemon_read_rules(const struct hps_config_server *config,
                             struct hps_access_rules **out_rules, struct hps_error *err)
    HPS_MUST_CHECK;
/* None of it: no TLS. owner: the caller, daemon_tls_free, also on failure */
hps_status daemon_make_tls(const struct hps_config_server *config, struct daemon_tls *out_tls,
                           struct hps_error *err) HPS_MUST_CHECK;
void daemon_tls_free(struct daemon_tls *tls);

/* reload.c */
void daemon_reload(struct hps_daemon *daemon);

/* run.c */
/* Of the public listeners, whose connections_max is what is configured or what descriptors there
 * are for; or of the admin listener. */
void daemon_peers_limits(const struct hps_config_server *config, bool admin,
                         struct hps_peers_limits *out_limits);
hps_status daemon_start_serving(struct hps_daemon *daemon, struct hps_error *err) HPS_MUST_CHECK;
/* pages.c: probes and pages, if there is a listener for them. */
hps_status daemon_pages_start(struct hps_daemon *daemon, struct hps_error *err) HPS_MUST_CHECK;
void daemon_pages_reload(struct hps_daemon *daemon);
void daemon_pages_stop(struct hps_daemon *daemon);                  /* the server stays */
void daemon_status(void *ctx, struct hps_admin_status *out_status); /* any thread */
void daemon_ask_drain(void *ctx);                                   /* any thread */
/* Have every loop ask the rules of access again, and look at certificates. Main thread. */
void daemon_recheck(struct hps_daemon *daemon);
void daemon_first_ready(void *ctx); /* prints the line that says so */

#endif

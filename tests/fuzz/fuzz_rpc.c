/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as messages to the services Admin, Health and Reflection, which are set up as in the
 * daemon. The catalog has one version, on a store of the tests. The input is a list of calls. Every
 * call must end; Watch and LoadModel may be cancelled. If a call has unloaded the version, it is
 * loaded again.
 */
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/log.h"
#include "net/grpc.h"
#include "net/sock.h"
#include "server/admin/service.h"
#include "server/rpc/health.h"
#include "server/rpc/reflection.h"
#include "tests/fuzz/place.h"
#include "tests/fuzz/script.h"
#include "tests/lib/fake_store.h"

enum { CALLS_MAX = 8, TURNS_MAX = 2000, TURN_US = 1000, DIM = 2, N_ROWS = 4 };

static const char *const names[] = {"hps.v1.Admin", "grpc.health.v1.Health"};

/* Without CreateSnapshot, because it creates directories that the message names. */
static const char *const paths[] = {
    "/hps.v1.Admin/Ping",
    "/hps.v1.Admin/GetStatus",
    "/hps.v1.Admin/ListModels",
    "/hps.v1.Admin/ListTables",
    "/hps.v1.Admin/LoadModel",
    "/hps.v1.Admin/ActivateVersion",
    "/hps.v1.Admin/RollbackModel",
    "/hps.v1.Admin/UnloadVersion",
    "/hps.v1.Admin/GetStats",
    "/hps.v1.Admin/ExplainKey",
    "/hps.v1.Admin/GetSlowLog",
    "/hps.v1.Admin/ResetSlowLog",
    "/hps.v1.Admin/GetUpdates",
    "/hps.v1.Admin/ControlUpdates",
    "/hps.v1.Admin/GetConfig",
    "/hps.v1.Admin/SetLogLevel",
    "/hps.v1.Admin/Drain",
    "/hps.v1.Admin/ExportVersion", /* without export_roots: always refused */
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
};
enum { N_PATHS = sizeof(paths) / sizeof(paths[0]) };

static struct {
    struct hps_config *config;
    struct hps_metrics *metrics;
    struct hps_service_metrics series;
    struct hps_models *models;
    struct hps_catalog *catalog;
    struct hps_load_env env;
    struct hps_readiness *readiness;
    struct hps_block_pool *blocks;
    struct hps_slowlog *slowlog;
    struct hps_audit *audit;
    struct hps_pool *pool;
    struct hps_health_service *health;
    struct hps_reflection_service *reflection;
    struct hps_unary_service *admin;
    struct hps_loop *loop;
    struct hps_grpc_server *server;
    struct hps_grpc_loop *grpc_loop;
    struct hps_loop_fd listener;
    int listen_fd;
    struct hps_grpc_channel *channel;
} world;

hps_status __wrap_hps_pool_post(struct hps_pool *pool, struct hps_task *task);
hps_status __wrap_hps_pool_post_for(struct hps_pool *pool, struct hps_task *task, uint64_t client,
                                    uint64_t cost, struct hps_error *err);

/* Runs tasks of the admin pool at once, because waiting for its thread would take most of the time.
 * Linked with --wrap for both functions. */
hps_status __wrap_hps_pool_post(struct hps_pool *pool, struct hps_task *task)
{
    (void)pool;
    task->run(task);
    return HPS_OK;
}

hps_status __wrap_hps_pool_post_for(struct hps_pool *pool, struct hps_task *task, uint64_t client,
                                    uint64_t cost, struct hps_error *err)
{
    (void)client;
    (void)cost;
    (void)err;
    return __wrap_hps_pool_post(pool, task);
}

/* ---- the daemon ------------------------------------------------------------------------------ */

static void on_status(void *ctx, struct hps_admin_status *out_status)
{
    (void)ctx;
    *out_status = (struct hps_admin_status){.http_address = "", .admin_address = ""};
}

static void on_drain(void *ctx)
{
    (void)ctx;
}

static hps_status on_print(void *ctx, struct hps_buf *buf)
{
    (void)ctx;
    return hps_config_print_effective(world.config, buf);
}

static void on_first(void *ctx)
{
    (void)ctx;
}

static void on_accept(void *ctx, unsigned events)
{
    struct hps_conn *conn;
    int fd;

    (void)ctx;
    (void)events;
    while (hps_sock_accept(world.listen_fd, &fd) == HPS_OK) {
        HPS_ASSERT(hps_conn_new(fd, NULL, &conn, NULL) == HPS_OK);
        hps_grpc_loop_adopt(world.grpc_loop, conn, 1, false);
    }
}

static void write_model(void)
{
    const struct hps_row_writer_options options = {HPS_ROW_FORM_NPY, DIM, HPS_DTYPE_FP32};
    struct hps_row_writer *writer;

    hps_tmpdir_mkdir(&place_dir, "one");
    HPS_ASSERT(hps_row_writer_open(hps_tmpdir_join(&place_dir, "one/items.npy"), &options, &writer,
                                   NULL) == HPS_OK);
    for (hps_key key = 0; key < N_ROWS; key++) {
        const float row[DIM] = {1, 2};
        HPS_ASSERT(hps_row_writer_append(writer, &key, row, 1, NULL) == HPS_OK);
    }
    HPS_ASSERT(hps_row_writer_close(writer, NULL) == HPS_OK);
}

static void open_config(void)
{
    char text[1024];
    struct hps_error err = {0};
    int n =
        snprintf(text, sizeof(text),
                 "{\"supportlonglong\": true, \"models\": [], \"persistent_db\": {\"type\": "
                 "\"rocks_db\"}, \"server\": {\"state_dir\": \"%s\", \"model_roots\": [\"%s\"]}}",
                 place_dir.path, place_dir.path);

    HPS_ASSERT(hps_config_parse(text, (size_t)n, "fuzz", &world.config, NULL, &err) == HPS_OK);
    HPS_ASSERT(hps_config_finish(world.config, NULL, NULL, &err) == HPS_OK);
}

static void open_catalog(void)
{
    const struct hps_fake_options host = {.name = "host", .tier = HPS_TIER_HOST};
    const struct hps_fake_options disk = {
        .name = "rocksdb", .tier = HPS_TIER_ROCKSDB, .caps = HPS_STORE_DURABLE};

    world.env = (struct hps_load_env){.spill_dir = place_dir.path,
                                      .memory_bytes = 4 << 20,
                                      .host_bytes_max = 64 << 20,
                                      .key_bytes = 8};
    hps_stores_add(&world.env.stores, hps_fake_store_new(&host));
    hps_stores_add(&world.env.stores, hps_fake_store_new(&disk));
    world.metrics = hps_server_metrics_new();
    hps_service_metrics_fill(world.metrics, &world.series);
    world.models = hps_models_new();
    const struct hps_catalog_options options = {
        .models = world.models, .config = world.config, .metrics = world.metrics, .env = world.env};
    HPS_ASSERT(hps_catalog_open(&options, &world.catalog, NULL) == HPS_OK);
}

static void open_services(void)
{
    world.blocks = hps_block_pool_new(1 << 20);
    world.slowlog = hps_slowlog_new(1000);
    world.audit = hps_audit_new(
        -1, hps_server_metric(world.metrics, HPS_M_AUDIT_LINES_LOST, NULL, NULL, NULL, NULL));
    world.health = hps_health_service_new(names, 2);
    world.reflection = hps_reflection_service_new(names, 2);
    HPS_ASSERT(world.blocks != NULL && world.slowlog != NULL && world.health != NULL);
    HPS_ASSERT(world.reflection != NULL && hps_pool_new("admin", 1, 64, &world.pool) == HPS_OK);
    const struct hps_readiness_parts readiness = {
        .catalog = world.catalog,
        .health = world.health,
        .ready = hps_server_metric(world.metrics, HPS_M_READY, NULL, NULL, NULL, NULL),
        .first = on_first};
    world.readiness = hps_readiness_new(&readiness);
    const struct hps_admin_parts parts = {.pool = world.pool,
                                          .catalog = world.catalog,
                                          .readiness = world.readiness,
                                          .models = world.models,
                                          .blocks = world.blocks,
                                          .key_bytes = 8,
                                          .slowlog = world.slowlog,
                                          .audit = world.audit,
                                          .metrics = &world.series,
                                          .status = on_status,
                                          .drain = on_drain,
                                          .print_config = on_print};
    world.admin = hps_admin_service_new(&parts);
    HPS_ASSERT(world.admin != NULL);
}

static void open_server(void)
{
    static const struct hps_grpc_limits limits = {
        .request_bytes_max = 1 << 20, .connection_reply_bytes_max = 64 << 20, .streams_max = 64};
    struct hps_addr addr = {.is_unix = true};
    char address[160];

    world.server = hps_grpc_server_new(&limits, NULL);
    const struct hps_grpc_service *const services[] = {
        hps_unary_service_grpc(world.admin), hps_health_service_grpc(world.health),
        hps_reflection_service_grpc(world.reflection, 0),
        hps_reflection_service_grpc(world.reflection, 1)};
    for (unsigned i = 0; i < sizeof(services) / sizeof(services[0]); i++) {
        HPS_ASSERT(hps_grpc_server_add(world.server, services[i], 1) == HPS_OK);
    }
    snprintf(addr.path, sizeof(addr.path), "%s", hps_tmpdir_join(&place_dir, "rpc"));
    snprintf(address, sizeof(address), "unix:%s", addr.path);
    HPS_ASSERT(hps_loop_new(&world.loop, NULL) == HPS_OK);
    HPS_ASSERT(hps_grpc_loop_new(world.server, world.loop, &world.grpc_loop) == HPS_OK);
    HPS_ASSERT(hps_sock_listen(&addr, 0600, &world.listen_fd, NULL) == HPS_OK);
    HPS_ASSERT(hps_loop_fd_add(world.loop, &world.listener, world.listen_fd, HPS_LOOP_READ,
                               on_accept, NULL) == HPS_OK);
    const struct hps_grpc_channel_options channel = {
        .address = address, .reply_bytes_max = 64 << 20, .connect_timeout_us = 60 * 1000 * 1000};
    HPS_ASSERT(hps_grpc_channel_new(world.loop, &channel, &world.channel, NULL) == HPS_OK);
}

/* Loads the version that calls may use, after a call has unloaded it. */
static void load(void)
{
    const struct hps_load_request request = {.model = "m",
                                             .directory = hps_tmpdir_join(&place_dir, "one"),
                                             .version = 1,
                                             .activate = true};
    struct hps_load *loading;
    struct hps_load_state state = {0};

    if (hps_catalog_load(world.catalog, &request, &loading, NULL) != HPS_OK) {
        return; /* it exists, or is being unloaded */
    }
    while (!state.done) {
        sched_yield();
        hps_load_state_get(loading, &state);
    }
    hps_load_unref(loading);
}

static void world_open(void)
{
    hps_log_setup(HPS_LOG_ERROR, HPS_LOG_LOGFMT, open("/dev/null", O_WRONLY | O_CLOEXEC));
    open_config();
    write_model();
    open_catalog();
    open_services();
    open_server();
    load();
}

/* ---- a call ---------------------------------------------------------------------------------- */

static void on_message(void *ctx, const uint8_t *data, size_t size)
{
    (void)ctx;
    HPS_ASSERT(size == 0 || data != NULL);
}

static void on_done(void *ctx, int code, const char *message)
{
    int *out_code = ctx;

    (void)message;
    HPS_ASSERT(*out_code < 0 && code >= 0 && code <= 16);
    *out_code = code;
}

static void call(const char *path, const uint8_t *data, size_t size)
{
    static const struct hps_grpc_client_events events = {.on_message = on_message,
                                                         .on_done = on_done};
    struct hps_grpc_client_call *started;
    int code = -1;
    bool endless = strstr(path, "Watch") != NULL || strstr(path, "LoadModel") != NULL;

    HPS_ASSERT(hps_grpc_client_start(world.channel, path, data, size, 0, &events, &code,
                                     &started) == HPS_OK);
    for (unsigned i = 0; i < (endless ? 8 : TURNS_MAX) && code < 0; i++) {
        hps_loop_turn(world.loop, endless ? 0 : TURN_US);
    }
    HPS_ASSERT(code >= 0 || endless);
    if (code < 0) {
        hps_grpc_client_cancel(started);
        hps_loop_turn(world.loop, 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct script script = {data, size};

    if (place_open()) {
        world_open();
    }
    for (unsigned i = 0; i < CALLS_MAX && script.left > 0; i++) {
        size_t n;
        uint8_t path = script_u8(&script);
        const uint8_t *message = script_run(&script, &n);
        call(paths[path % N_PATHS], message, n);
    }
    hps_log_level_set(HPS_LOG_ERROR);
    struct hps_version *version;
    if (hps_models_pin(world.models, "m", 1, 1, &version, NULL) == HPS_OK) {
        hps_version_unpin(version);
    } else {
        load();
    }
    return 0;
}

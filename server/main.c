/* SPDX-License-Identifier: Apache-2.0
 *
 * hpsd: arguments, configuration, state directory, stores, then the daemon. The only file that
 * names concrete stores. Main thread.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "backends/host_map.h"
#include "backends/kafka.h"
#include "backends/rocksdb.h"
#include "base/heap.h"
#include "base/log.h"
#include "cache/device.h"
#include "cache/gpu_tier.h"
#include "config/limits.h"
#include "server/daemon.h"
#include "server/options.h"
#include "server/state_dir.h"
#include "server/version_info.h"

enum exit_code { EXIT_DRAINED = 0, EXIT_FATAL = 1, EXIT_USAGE = 2, EXIT_TAKEN = 3, EXIT_STORE = 4 };

/* Signals are for the main loop: threads that libraries start before it must not take them. */
static void block_signals(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGQUIT);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
}

/* The soft limit is for programs that use select(); connections and RocksDB need the hard one. */
static void raise_files_max(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit); /* the acceptor goes by what there is */
    }
}

static int complain(const struct hps_error *err, int code)
{
    fprintf(stderr, "hpsd: %s\n", err->text);
    return code;
}

/* ---- configuration --------------------------------------------------------------------------- */

static hps_status read_config(const struct hps_options *options, struct hps_config **out_config,
                              struct hps_notes *notes, struct hps_error *err)
{
    struct hps_config *config = NULL;
    hps_status status =
        options->config_file != NULL
            ? hps_config_parse_file(options->config_file, &config, notes, err)
            : hps_config_for_tables(options->tables, options->n_tables, &config, err);
    if (status == HPS_OK) {
        status = hps_config_finish(config, &options->flags, notes, err);
    }
    if (status != HPS_OK) {
        hps_config_free(config);
        return status;
    }
    *out_config = config;
    return HPS_OK;
}

static int print_check(const struct hps_config *config, const struct hps_notes *notes)
{
    struct hps_buf text;
    hps_buf_init(&text, 64 << 20);
    for (size_t i = 0; i < notes->n; i++) {
        fprintf(stderr, "hpsd: %s%s\n", notes->items[i].warning ? "warning: " : "",
                notes->items[i].text);
    }
    int code = EXIT_FATAL;
    if (hps_config_print_effective(config, &text) == HPS_OK &&
        fwrite(text.data, 1, text.size, stdout) == text.size && fflush(stdout) == 0) {
        code = EXIT_DRAINED;
    }
    hps_buf_fini(&text);
    return code;
}

static void log_notes(const struct hps_notes *notes)
{
    for (size_t i = 0; i < notes->n; i++) {
        if (notes->items[i].warning) {
            HPS_LOG(WARN, "config", notes->items[i].text);
        } else {
            HPS_LOG(INFO, "config", notes->items[i].text);
        }
    }
}

/* ---- stores ---------------------------------------------------------------------------------- */

/* Above RocksDB the map evicts; as the only store it refuses rows, unless HPS's limit asks for
 * eviction. */
static hps_status open_host(const struct hps_config *config, bool durable,
                            struct hps_store **out_host, struct hps_error *err)
{
    uint64_t margin = config->volatile_db.overflow_margin;
    bool limited = margin != UINT64_MAX;
    uint64_t rows_max = 0;
    if (limited && __builtin_mul_overflow(margin, config->volatile_db.num_partitions, &rows_max)) {
        rows_max = UINT64_MAX;
    }
    if (limited && !durable) {
        HPS_LOG(WARN, "config",
                "volatile_db.overflow_margin: rows beyond it are lost, there is no persistent_db",
                HPS_U64("rows_max", rows_max));
    }
    const struct hps_host_map_options options = {
        .bytes_max = config->volatile_db.memory_bytes,
        .evicts = durable,
        .lossy = limited && !durable,
        .rows_max = rows_max,
        .target_ratio = config->volatile_db.overflow_resolution_target};
    return hps_host_map_open_with(&options, out_host, err);
}

static hps_status open_stores(const struct hps_config *config, struct hps_load_env *env,
                              struct hps_error *err)
{
    hps_status status = HPS_OK;
    if (config->persistent_db.type == HPS_CONFIG_PERSISTENT_ROCKS_DB) {
        uint64_t memory_bytes = hps_limits_memory_bytes();
        uint64_t host_bytes = config->volatile_db.type != HPS_CONFIG_VOLATILE_DISABLED
                                  ? config->volatile_db.memory_bytes
                                  : 0;
        const struct hps_rocksdb_options options = {
            .path = config->persistent_db.path,
            .n_threads = config->persistent_db.num_threads,
            .batch_keys_max = (uint32_t)config->persistent_db.max_batch_size,
            .read_only = config->persistent_db.read_only,
            .disk_free_min_bytes = config->server.disk_free_min_bytes,
            .block_cache_bytes = config->persistent_db.block_cache_bytes,
            .wal_sync_ms = config->persistent_db.wal_sync_ms,
            .read_mode = (enum hps_rocksdb_read_mode)config->persistent_db.read_mode,
            .memory_bytes = memory_bytes > host_bytes ? memory_bytes - host_bytes : 0};
        status = hps_rocksdb_open(&options, &env->durable, err);
    }
    if (status == HPS_OK && config->volatile_db.type != HPS_CONFIG_VOLATILE_DISABLED) {
        status = open_host(config, env->durable != NULL, &env->host, err);
        env->host_bytes_max = config->volatile_db.memory_bytes;
    }
    if (status == HPS_OK && env->durable == NULL && env->host == NULL) {
        status =
            hps_error_set(err, HPS_INVALID,
                          "volatile_db and persistent_db are both disabled: nowhere to keep rows");
    }
    return status;
}

static void close_stores(struct hps_load_env *env)
{
    if (env->host != NULL) {
        env->host->ops->close(env->host);
    }
    if (env->durable != NULL) {
        env->durable->ops->close(env->durable);
    }
}

/* ---- updates --------------------------------------------------------------------------------- */

/* The text of a property is taken apart where it is: names end at their first "=". */
static hps_status open_kafka(const struct hps_config_update_source *source,
                             struct hps_update_log **out_log, struct hps_error *err)
{
    const struct hps_strings *texts = &source->properties;
    struct hps_kafka_property *properties = hps_calloc(texts->n, sizeof(*properties));
    char **names = hps_calloc(texts->n, sizeof(*names));
    hps_status status = properties != NULL && names != NULL ? HPS_OK : HPS_NO_MEMORY;
    for (size_t i = 0; i < texts->n && status == HPS_OK; i++) {
        const char *equals = strchr(texts->items[i], '=');
        names[i] = hps_strndup(texts->items[i], (size_t)(equals - texts->items[i]));
        properties[i] = (struct hps_kafka_property){names[i], equals + 1};
        status = names[i] != NULL ? HPS_OK : HPS_NO_MEMORY;
    }
    if (status == HPS_OK) {
        const struct hps_kafka_options options = {.brokers = source->brokers,
                                                  .properties = properties,
                                                  .n_properties = (uint32_t)texts->n};
        status = hps_kafka_open(&options, out_log, err);
    } else {
        status = hps_error_set(err, status, "no memory for update_source");
    }
    for (size_t i = 0; names != NULL && i < texts->n; i++) {
        hps_free(names[i]);
    }
    hps_free(names);
    hps_free(properties);
    return status;
}

/* ---- serving --------------------------------------------------------------------------------- */

static int store_exit(const struct hps_error *err)
{
    return err->status == HPS_BUSY      ? EXIT_TAKEN
           : err->status == HPS_INVALID ? EXIT_USAGE
                                        : EXIT_STORE;
}

static int daemon_exit(const struct hps_error *err)
{
    switch (err->status) {
    case HPS_BUSY:
        return EXIT_TAKEN;
    case HPS_INVALID:
    case HPS_NOT_FOUND:
        return EXIT_USAGE;
    case HPS_DATA_LOSS:
    case HPS_NEWER_FORMAT:
        return EXIT_STORE;
    default:
        return EXIT_FATAL;
    }
}

static int serve_with_stores(const struct hps_options *options, struct hps_config *config,
                             const char *spill_dir)
{
    struct hps_error err = {0};
    struct hps_daemon *daemon = NULL;
    struct hps_daemon_options daemon_options = {
        .config = config,
        .config_file = options->config_file,
        .flags = &options->flags,
        .env = {.spill_dir = spill_dir,
                .key_bytes = config->key_bytes,
                .disk_free_min_bytes = config->server.disk_free_min_bytes}};
    int code = EXIT_DRAINED;
    if (open_stores(config, &daemon_options.env, &err) != HPS_OK) {
        code = complain(&err, store_exit(&err));
    } else if (config->update_source.type == HPS_CONFIG_UPDATE_SOURCE_KAFKA &&
               open_kafka(&config->update_source, &daemon_options.update_log, &err) != HPS_OK) {
        code = complain(&err, daemon_exit(&err));
    } else if (hps_daemon_open(&daemon_options, &daemon, &err) != HPS_OK) {
        code = complain(&err, daemon_exit(&err));
    } else {
        hps_daemon_run(daemon);
        code = hps_daemon_failed(daemon) ? EXIT_FATAL : EXIT_DRAINED;
        hps_daemon_close(daemon);
    }
    if (daemon_options.update_log != NULL) {
        daemon_options.update_log->ops->close(daemon_options.update_log);
    }
    close_stores(&daemon_options.env);
    return code;
}

static int serve(const struct hps_options *options, struct hps_config *config)
{
    struct hps_error err = {0};
    struct hps_state_dir state;
    if (hps_state_dir_open(config->server.state_dir, &state, &err) != HPS_OK) {
        return complain(&err, err.status == HPS_BUSY ? EXIT_TAKEN : EXIT_FATAL);
    }
    int code = serve_with_stores(options, config, state.spill);
    hps_state_dir_close(&state);
    return code;
}

int main(int argc, char **argv)
{
    struct hps_options options;
    struct hps_error err = {0};
    struct hps_config *config = NULL;
    struct hps_notes notes;
    if (hps_options_parse(argc, argv, &options, &err) != HPS_OK) {
        return complain(&err, EXIT_USAGE);
    }
    if (options.help || options.version) {
        if (options.help) {
            fputs(hps_options_help, stdout);
        } else {
            printf("hpsd %s (%s)\ncuda %s%s%s\n", hps_build_version, hps_build_revision,
                   hps_device_cuda_version(), hps_device_cuda_processors()[0] != 0 ? " for " : "",
                   hps_device_cuda_processors());
        }
        return fflush(stdout) == 0 ? EXIT_DRAINED : EXIT_FATAL;
    }
    block_signals();
    hps_notes_init(&notes);
    int code = EXIT_USAGE;
    if (read_config(&options, &config, &notes, &err) != HPS_OK) {
        complain(&err, code);
    } else if (options.check) {
        code = print_check(config, &notes);
    } else {
        hps_log_setup((enum hps_log_level)config->server.log_level,
                      (enum hps_log_format)config->server.log_format, STDERR_FILENO);
        log_notes(&notes);
        raise_files_max();
        code = serve(&options, config);
    }
    hps_notes_fini(&notes);
    hps_config_free(config);
    if (hps_gpu_tiers_kept()) {
        (void)fflush(stdout);
        _exit(code);
    }
    return code;
}

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
#include <sys/stat.h>
#include <unistd.h>

#include "backends/basefile/basefile.h"
#include "backends/host/map.h"
#include "backends/kafka/kafka.h"
#include "backends/redis/redis.h"
#include "backends/rocksdb/dir.h"
#include "backends/rocksdb/rocksdb.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/log.h"
#include "base/text.h"
#include "cache/device/device.h"
#include "config/limits.h"
#include "net/tls.h"
#include "server/check.h"
#include "server/daemon.h"
#include "server/options.h"
#include "server/program.h"
#include "server/state_dir.h"

_Static_assert((int)HPS_CONFIG_OVERFLOW_EVICT_RANDOM == (int)HPS_REDIS_EVICT_RANDOM &&
                   (int)HPS_CONFIG_OVERFLOW_EVICT_LEAST_USED == (int)HPS_REDIS_EVICT_USED &&
                   (int)HPS_CONFIG_OVERFLOW_EVICT_OLDEST == (int)HPS_REDIS_EVICT_OLDEST,
               "overflow policies");

enum exit_code { EXIT_DRAINED = 0, EXIT_FATAL = 1, EXIT_USAGE = 2, EXIT_TAKEN = 3, EXIT_STORE = 4 };
enum { CHECK_LINE_BYTES = 2048 };

/* jemalloc's options. Its background thread returns freed memory to the kernel. With glibc's
 * malloc, event loops did this and delayed other requests by tens of milliseconds. */
extern const char *malloc_conf;
const char *malloc_conf = "background_thread:true,max_background_threads:1";

/* The main loop handles signals. Threads that libraries start before it must not receive them. */
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
    signal(SIGXFSZ, SIG_IGN); /* a write beyond the file size limit returns an error */
}

/* The soft limit is for programs that use select(). Connections and RocksDB need the hard limit. */
static void raise_files_max(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit); /* the acceptor uses the actual limit */
    }
}

static int complain(const struct hps_error *err, int code)
{
    fprintf(stderr, "hpsd: %s\n", err->text);
    return code;
}

static void print_note(enum hps_note_kind kind, const char *text)
{
    static const char *const words[] = {
        [HPS_NOTE_ERROR] = "",
        [HPS_NOTE_MISSING] = "missing: ",
        [HPS_NOTE_DIFFERENT] = "different from HPS: ",
        [HPS_NOTE_IGNORED] = "ignored: ",
        [HPS_NOTE_WARNING] = "warning: ",
    };
    char shown[CHECK_LINE_BYTES]; /* may contain file names */
    (void)hps_text_plain(text, strlen(text), shown, sizeof(shown));
    fprintf(stderr, "hpsd: %s%s\n", words[kind], shown);
}

static void tell(void *ctx, bool is_error, const char *text)
{
    (void)ctx;
    print_note(is_error ? HPS_NOTE_ERROR : HPS_NOTE_WARNING, text);
}

/* ---- configuration --------------------------------------------------------------------------- */

/* The address has a format that only the Redis store parses. */
static hps_status check_redis_address(const struct hps_config *config, struct hps_error *err)
{
    if (config->volatile_db.type != HPS_CONFIG_VOLATILE_REDIS_CLUSTER) {
        return HPS_OK;
    }
    hps_status status = hps_redis_addresses_check(config->volatile_db.address, err);
    return status == HPS_OK
               ? HPS_OK
               : hps_error_prefix(err, status, "%s: volatile_db.address", config->file);
}

static hps_status read_config(const struct hps_options *options, struct hps_config **out_config,
                              struct hps_notes *notes, struct hps_error *err)
{
    struct hps_config *config = NULL;
    hps_status status =
        options->config_file != NULL
            ? hps_config_parse_file(options->config_file, &config, notes, err)
            : hps_config_for_tables(options->tables.items, options->tables.n, &config, err);
    if (status == HPS_OK) {
        status = hps_config_finish(config, &options->flags, notes, err);
    }
    if (status == HPS_OK) {
        status = check_redis_address(config, err);
    }
    if (status != HPS_OK) {
        hps_config_free(config);
        return status;
    }
    *out_config = config;
    return HPS_OK;
}

/* Print the errors and warnings of a rejected configuration. */
static int complain_all(const struct hps_notes *notes, const struct hps_error *err)
{
    for (size_t i = 0; i < notes->n; i++) {
        const struct hps_note *note = &notes->items[i];
        if (note->kind == HPS_NOTE_ERROR || hps_note_is_warning(note)) {
            print_note(note->kind, note->text);
        }
    }
    return notes->n_errors == 0 ? complain(err, EXIT_USAGE) : EXIT_USAGE;
}

static int print_effective(const struct hps_config *config)
{
    struct hps_buf text;
    hps_buf_init(&text, 64 << 20);
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
        if (hps_note_is_warning(&notes->items[i])) {
            HPS_LOG(WARN, "config", notes->items[i].text);
        } else {
            HPS_LOG(INFO, "config", notes->items[i].text);
        }
    }
}

/* ---- stores ---------------------------------------------------------------------------------- */

/* overflow_margin evicts rows. Without a persistent store those rows are lost. */
static void warn_limited(const struct hps_config *config)
{
    if (config->volatile_db.overflow_margin != UINT64_MAX &&
        config->persistent_db.type == HPS_CONFIG_PERSISTENT_DISABLED) {
        HPS_LOG(WARN, "config",
                "rows beyond volatile_db.overflow_margin are evicted and lost: there is no "
                "persistent_db; enable it, or raise the margin",
                HPS_U64("rows_max_per_shard", config->volatile_db.overflow_margin));
    }
}

/* The limit of HPS for a table; 0: none. With Redis, the limit applies to Redis only. */
static uint64_t host_rows_max(const struct hps_config *config)
{
    const struct hps_config_volatile_db *db = &config->volatile_db;
    uint64_t rows_max = 0;
    if (db->overflow_margin == UINT64_MAX || db->type == HPS_CONFIG_VOLATILE_REDIS_CLUSTER ||
        __builtin_mul_overflow(db->overflow_margin, db->num_partitions, &rows_max)) {
        return 0;
    }
    return rows_max;
}

/* The host map evicts if there is a store below it. As the only store it refuses rows, unless
 * overflow_margin requires eviction. */
static hps_status open_host(const struct hps_config *config, uint64_t bytes_max, bool lowest,
                            struct hps_store **out_host, struct hps_error *err)
{
    uint64_t rows_max = host_rows_max(config);
    const struct hps_host_map_options options = {
        .bytes_max = bytes_max,
        .evicts = !lowest,
        .lossy = rows_max != 0 && lowest,
        .dense = config->server.host_dense && rows_max == 0 &&
                 config->volatile_db.type != HPS_CONFIG_VOLATILE_REDIS_CLUSTER,
        .rows_max = rows_max,
        .target_ratio = config->volatile_db.overflow_resolution_target};
    return hps_host_map_open_with(&options, out_host, err);
}

/* Memory that the host map leaves for the page cache. */
static uint64_t page_cache_bytes(const struct hps_config *config)
{
    uint64_t memory_bytes = hps_limits_memory_bytes();
    uint64_t host_bytes = hps_config_host_bytes(config);
    return memory_bytes > host_bytes ? memory_bytes - host_bytes : 0;
}

/* Put the layer with base files above RocksDB. `rows` is closed if that fails. */
static hps_status open_bases(const struct hps_config *config, struct hps_store *rows,
                             struct hps_store **out_durable, struct hps_error *err)
{
    const struct hps_basefile_options options = {
        .inner = rows,
        .path = config->persistent_db.path,
        .read_only = config->persistent_db.read_only,
        .write = config->persistent_db.base_file == HPS_CONFIG_BASE_FILE_AUTO,
        .read_mode = (enum hps_read_mode)config->persistent_db.read_mode,
        .memory_bytes = page_cache_bytes(config),
        .mapped_bytes = hps_rocksdb_mapped_bytes(rows),
        .readers = hps_rocksdb_readers(rows)};
    hps_status status = hps_basefile_open(&options, out_durable, err);
    if (status != HPS_OK) {
        rows->ops->close(rows);
    }
    return status;
}

static hps_status open_rocksdb(const struct hps_config *config, struct hps_store **out_durable,
                               struct hps_error *err)
{
    const struct hps_rocksdb_options options = {
        .path = config->persistent_db.path,
        .n_threads = config->persistent_db.num_threads,
        .batch_keys_max = (uint32_t)config->persistent_db.max_batch_size,
        .read_only = config->persistent_db.read_only,
        .disk_free_min_bytes = config->server.disk_free_min_bytes,
        .block_cache_bytes = config->persistent_db.block_cache_bytes,
        .wal_sync_ms = config->persistent_db.wal_sync_ms,
        .read_mode = (enum hps_read_mode)config->persistent_db.read_mode,
        /* A restart serves without the model files, so it does not wait for the disk that has them.
         */
        .load_bytes = config->persistent_db.read_mode == HPS_CONFIG_READ_MODE_AUTO &&
                              !hps_rocksdb_dir_has_database(config->persistent_db.path)
                          ? hps_check_store_bytes(config)
                          : 0,
        .memory_bytes = page_cache_bytes(config),
        .base_files = config->persistent_db.base_file == HPS_CONFIG_BASE_FILE_AUTO};
    struct hps_store *rows = NULL;
    hps_status status = hps_rocksdb_open(&options, &rows, err);
    return status == HPS_OK ? open_bases(config, rows, out_durable, err) : status;
}

static const char *text_or_null(const char *text)
{
    return text[0] != '\0' ? text : NULL;
}

static void redis_options(const struct hps_config *config, const char *member, bool lowest,
                          struct hps_redis_store_options *out_options)
{
    static const struct hps_tls_names tls_names = {.cert_file =
                                                       "volatile_db.tls_client_certificate",
                                                   .key_file = "volatile_db.tls_client_key",
                                                   .ca_file = "volatile_db.tls_ca_certificate"};
    const struct hps_config_volatile_db *db = &config->volatile_db;
    struct hps_redis_store_options options = HPS_REDIS_STORE_DEFAULT;
    options.redis.addresses = db->address;
    options.redis.user = db->user_name;
    options.redis.password = db->password;
    options.redis.tls = db->enable_tls;
    options.redis.ca_file = text_or_null(db->tls_ca_certificate);
    options.redis.cert_file = text_or_null(db->tls_client_certificate);
    options.redis.key_file = text_or_null(db->tls_client_key);
    options.redis.tls_names = &tls_names;
    options.redis.server_name = text_or_null(db->tls_server_name_identification);
    options.redis.replica_reads = db->redis_replica_reads;
    options.redis.connections_per_node = db->num_node_connections;
    options.redis.connect_timeout_us = (uint64_t)db->redis_connect_timeout_ms * 1000;
    options.redis.command_timeout_us = (uint64_t)db->redis_command_timeout_ms * 1000;
    options.n_shards = db->num_partitions;
    if (db->max_batch_size < options.fields_max) {
        options.fields_max = (uint32_t)db->max_batch_size;
    }
    options.authoritative = lowest;
    options.member = member;
    options.lease_ms = (uint64_t)db->redis_lease_s * 1000;
    options.ttl_ms = (uint64_t)db->redis_ttl_s * 1000;
    options.rows_max = db->overflow_margin == UINT64_MAX ? 0 : db->overflow_margin;
    options.target_ratio = db->overflow_resolution_target;
    options.evict = (enum hps_redis_evict)db->overflow_policy;
    *out_options = options;
}

/* Wait for unreachable servers for one connection timeout. They may answer later. */
static hps_status open_redis(const struct hps_config *config, const char *member, bool lowest,
                             struct hps_store **out_redis, struct hps_error *err)
{
    struct hps_redis_store_options options;
    redis_options(config, member, lowest, &options);
    hps_status status = hps_redis_open(&options, out_redis, err);
    if (status == HPS_OK &&
        !hps_redis_cluster_wait(hps_redis_of(*out_redis),
                                hps_clock_us() + options.redis.connect_timeout_us)) {
        HPS_LOG(WARN, "redis", "Redis nodes unreachable: not all answered in time; retried",
                HPS_STR("address", config->volatile_db.address));
    }
    return status;
}

static void add_store(struct hps_load_env *env, hps_status status, struct hps_store *store)
{
    if (status == HPS_OK) {
        hps_stores_add(&env->stores, store);
    }
}

/* Opens the stores from the lowest up. Each one must know whether there is a store below it. */
static hps_status open_stores(const struct hps_config *config, const char *member,
                              struct hps_load_env *env, struct hps_error *err)
{
    hps_status status = HPS_OK;
    struct hps_store *store = NULL;
    HPS_ASSERT(env->stores.n == 0);
    warn_limited(config);
    if (config->persistent_db.type == HPS_CONFIG_PERSISTENT_ROCKS_DB) {
        status = open_rocksdb(config, &store, err);
        add_store(env, status, store);
        env->base_files = config->persistent_db.base_file == HPS_CONFIG_BASE_FILE_AUTO;
        env->merges = config->update_source.type == HPS_CONFIG_UPDATE_SOURCE_KAFKA;
    }
    if (status == HPS_OK && config->volatile_db.type == HPS_CONFIG_VOLATILE_REDIS_CLUSTER) {
        status = open_redis(config, member, env->stores.n == 0, &store, err);
        add_store(env, status, store);
        env->shared_seed_ratio = config->volatile_db.initial_cache_rate;
        env->shared_takes_missed = config->volatile_db.cache_missed_embeddings;
    }
    env->host_bytes_max = hps_config_host_bytes(config);
    env->host_rows_max = host_rows_max(config);
    if (status == HPS_OK && env->host_bytes_max > 0) {
        status = open_host(config, env->host_bytes_max, env->stores.n == 0, &store, err);
        add_store(env, status, store);
    }
    if (status == HPS_OK && env->stores.n == 0) {
        status =
            hps_error_set(err, HPS_INVALID,
                          "volatile_db and persistent_db are both disabled: nowhere to keep rows");
    }
    return status;
}

/* ---- updates --------------------------------------------------------------------------------- */

/* Each property is split at its first "=". out_log: NULL to check the properties only. */
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
                                                  .group = source->group,
                                                  .properties = properties,
                                                  .n_properties = (uint32_t)texts->n};
        status = out_log != NULL ? hps_kafka_open(&options, out_log, err)
                                 : hps_kafka_check(&options, err);
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

/* ---- --check --------------------------------------------------------------------------------- */

static unsigned check_redis_tls(const struct hps_config *config)
{
    struct hps_redis_store_options options;
    struct hps_error err = {0};
    if (config->volatile_db.type != HPS_CONFIG_VOLATILE_REDIS_CLUSTER) {
        return 0;
    }
    redis_options(config, "check", false, &options);
    hps_status status = hps_redis_tls_check(&options.redis, &err);
    if (status != HPS_OK) {
        hps_ignore(hps_error_prefix(&err, status, "%s", config->file));
        tell(NULL, true, err.text);
    }
    return status != HPS_OK;
}

static unsigned check_kafka(const struct hps_config *config)
{
    struct hps_error err = {0};
    if (config->update_source.type != HPS_CONFIG_UPDATE_SOURCE_KAFKA) {
        return 0;
    }
    hps_status status = open_kafka(&config->update_source, NULL, &err);
    if (status != HPS_OK) {
        hps_ignore(hps_error_prefix(&err, status, "%s: update_source.properties", config->file));
        tell(NULL, true, err.text);
    }
    return status != HPS_OK;
}

/* Check the files and options that a start needs, other than stores and models. Opens no store and
 * no port. Prints all errors and returns their number. */
static unsigned check_start(const struct hps_check *what)
{
    return check_kafka(what->config) + check_redis_tls(what->config) + hps_check_server(what);
}

/* Print the notes by kind: a user of HPS first sees missing options, then different ones. */
static void print_notes(const struct hps_notes *notes)
{
    for (int kind = HPS_NOTE_MISSING; kind <= HPS_NOTE_WARNING; kind++) {
        for (size_t i = 0; i < notes->n; i++) {
            if (notes->items[i].kind == (enum hps_note_kind)kind) {
                print_note(notes->items[i].kind, notes->items[i].text);
            }
        }
    }
}

/* Report whether models need a GPU that hpsd cannot use. Opens no GPU. */
static void check_gpus(const struct hps_config *config)
{
    const struct hps_device_driver *driver = NULL;
    struct hps_error err = {0};
    char text[CHECK_LINE_BYTES];
    bool is_wanted = false;
    int n = 0;
    for (size_t i = 0; i < config->n_models; i++) {
        is_wanted = is_wanted || (config->models[i].gpucache && config->models[i].gpucacheper > 0);
    }
    if (!is_wanted || hps_program_devices(&driver, &err) != HPS_OK ||
        (hps_device_count(driver, &n, &err) == HPS_OK && n > 0)) {
        return;
    }
    snprintf(text, sizeof(text),
             "%s: models[].gpucache: no usable GPU here%s%s; replies come from the stores and are "
             "exact",
             config->file, err.text[0] == '\0' ? "" : ": ", err.text);
    print_note(HPS_NOTE_MISSING, text);
}

/* The configuration is valid; check the files that it names. Opens no store, connects to nothing.
 */
static int check(const struct hps_config *config, const struct hps_notes *notes)
{
    const struct hps_config_persistent_db *db = &config->persistent_db;
    const struct hps_check what = {.config = config,
                                   .stored = db->type == HPS_CONFIG_PERSISTENT_ROCKS_DB &&
                                             db->path[0] != '\0' &&
                                             hps_rocksdb_dir_has_database(db->path),
                                   .tell = tell};
    check_gpus(config);
    print_notes(notes);
    unsigned n_errors = hps_check_models(&what) + check_start(&what);
    int code = print_effective(config);
    return code == EXIT_DRAINED && n_errors > 0 ? EXIT_USAGE : code;
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
                             const struct hps_device_driver *devices,
                             const struct hps_state_dir *state)
{
    struct hps_error err = {0};
    struct hps_daemon *daemon = NULL;
    struct hps_daemon_options daemon_options = {
        .config = config,
        .config_file = options->config_file,
        .flags = &options->flags,
        .devices = devices,
        .env = {.spill_dir = state->spill,
                .key_bytes = config->key_bytes,
                .disk_free_min_bytes = config->server.disk_free_min_bytes}};
    int code = EXIT_DRAINED;
    if (open_stores(config, state->instance, &daemon_options.env, &err) != HPS_OK) {
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
    hps_stores_close(&daemon_options.env.stores);
    return code;
}

/* Checks the whole configuration before it opens the state directory, the stores and the ports. */
static int serve(const struct hps_options *options, struct hps_config *config)
{
    const struct hps_check what = {.config = config, .tell = tell};
    const struct hps_device_driver *devices = NULL;
    struct hps_error err = {0};
    struct hps_state_dir state;
    if (hps_program_devices(&devices, &err) != HPS_OK) {
        return complain(&err, EXIT_USAGE);
    }
    if (check_start(&what) > 0) {
        return EXIT_USAGE;
    }
    if (hps_state_dir_open(config->server.state_dir, &state, &err) != HPS_OK) {
        return complain(&err, err.status == HPS_BUSY      ? EXIT_TAKEN
                              : err.status == HPS_INVALID ? EXIT_USAGE
                                                          : EXIT_FATAL);
    }
    int code = serve_with_stores(options, config, devices, &state);
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
        return hps_args_wrong(hps_options_program(), NULL, "%s", err.text);
    }
    if (options.args.ask != HPS_ARGS_RUN) {
        return hps_args_answer(hps_options_program(), &options.args);
    }
    block_signals();
    /* No other user may read rows. The group administers hpsd. Sockets set their own modes. */
    (void)umask(umask(0) | 0027);
    hps_notes_init(&notes);
    int code;
    if (read_config(&options, &config, &notes, &err) != HPS_OK) {
        code = complain_all(&notes, &err);
    } else if (options.flags.check) {
        code = check(config, &notes);
    } else {
        hps_log_setup((enum hps_log_level)config->server.log_level,
                      (enum hps_log_format)config->server.log_format, STDERR_FILENO);
        log_notes(&notes);
        raise_files_max();
        code = serve(&options, config);
    }
    hps_notes_fini(&notes);
    hps_config_free(config);
    return code;
}

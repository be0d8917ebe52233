/* SPDX-License-Identifier: Apache-2.0
 *
 * Completes a configuration after file and flags are read: sets defaults that depend on the machine
 * or on other options, checks options against each other, and adds notes on settings of HPS. Main
 * thread.
 */
#include "config/config.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/rows/fileio.h"
#include "base/rows/safetensors.h"
#include "base/rows/topic_filter.h"
#include "base/rows/update_record.h"
#include "base/text.h"
#include "config/limits.h"
#include "config/options.h"
#include "config/secrets.h"

static hps_status no_memory(const struct hps_config *config, struct hps_error *err)
{
    return hps_error_set(err, HPS_NO_MEMORY, "%s: out of memory", config->file);
}

/* ---- flags ----------------------------------------------------------------------------------- */

static hps_status apply_flag(struct hps_config *config, enum hps_option_id id, const char *flag,
                             const char *text, struct hps_error *err)
{
    HPS_ASSERT(flag[0] == '-' && id < HPS_OPTION_COUNT);
    if (text == NULL) {
        return HPS_OK;
    }
    const struct hps_option *option = &hps_options[id];
    hps_status status = hps_option_set_text(option, &config->server, text);
    if (status == HPS_OK) {
        hps_option_mark(&config->server.set, option);
        return HPS_OK;
    }
    struct hps_buf expected;
    hps_buf_init(&expected, 256);
    hps_option_expected(option, &expected);
    if (status == HPS_NO_MEMORY || expected.status != HPS_OK) {
        hps_buf_fini(&expected);
        return no_memory(config, err);
    }
    status = hps_error_set(err, HPS_INVALID, "%s: got \"%.80s\", expected %.*s", flag, text,
                           (int)expected.size, (const char *)expected.data);
    hps_buf_fini(&expected);
    return status;
}

/* Addresses of the command line replace the addresses of the file. */
static hps_status apply_listen(struct hps_config *config, enum hps_option_id id,
                               struct hps_config_listeners *listeners, const char *const *addresses,
                               size_t n, struct hps_error *err)
{
    if (n > 0) {
        hps_config_clear_listeners(listeners);
        hps_option_mark(&config->server.set, &hps_options[id]);
    }
    for (size_t i = 0; i < n; i++) {
        if (hps_config_add_listener(listeners, addresses[i], false) != HPS_OK) {
            return no_memory(config, err);
        }
    }
    return HPS_OK;
}

static hps_status apply_flags(struct hps_config *config, const struct hps_config_flags *flags,
                              struct hps_error *err)
{
    struct hps_config_server *server = &config->server;
    hps_status status = apply_listen(config, HPS_OPTION_server_listen, &server->listen,
                                     flags->listen, flags->n_listen, err);
    if (status == HPS_OK) {
        status = apply_listen(config, HPS_OPTION_server_kserve_listen, &server->kserve_listen,
                              flags->kserve_listen, flags->n_kserve_listen, err);
    }
    const struct {
        enum hps_option_id id;
        const char *flag;
        const char *text;
    } scalars[] = {
        {HPS_OPTION_server_http_listen, "--http-listen", flags->http_listen},
        {HPS_OPTION_server_admin_listen, "--admin-listen", flags->admin_listen},
        {HPS_OPTION_server_state_dir, "--state-dir", flags->state_dir},
        {HPS_OPTION_server_log_level, "--log-level", flags->log_level},
        {HPS_OPTION_server_log_format, "--log-format", flags->log_format},
    };
    for (size_t i = 0; i < sizeof(scalars) / sizeof(scalars[0]) && status == HPS_OK; i++) {
        status = apply_flag(config, scalars[i].id, scalars[i].flag, scalars[i].text, err);
    }
    return status;
}

/* ---- derived defaults ------------------------------------------------------------------------ */

static uint32_t clamp_u32(uint32_t value, uint32_t min, uint32_t max)
{
    HPS_ASSERT(min <= max);
    return value < min ? min : value > max ? max : value;
}

enum { REDIS_SHARDS = 64, REDIS_SHARDS_MAX = 4096 };

uint64_t hps_config_host_bytes(const struct hps_config *config)
{
    switch (config->volatile_db.type) {
    case HPS_CONFIG_VOLATILE_DISABLED:
        return 0;
    case HPS_CONFIG_VOLATILE_REDIS_CLUSTER:
        return config->volatile_db.local_cache_bytes;
    case HPS_CONFIG_VOLATILE_HASH_MAP:
    case HPS_CONFIG_VOLATILE_PARALLEL_HASH_MAP:
    case HPS_CONFIG_VOLATILE_MULTI_PROCESS_HASH_MAP:
        break;
    }
    return config->volatile_db.memory_bytes;
}

bool hps_config_caches_whole(const struct hps_config_model *model)
{
    HPS_ASSERT(model->gpucacheper >= 0);
    return model->embedding_cache_type == HPS_CONFIG_CACHE_STATIC || model->use_static_table ||
           model->gpucacheper >= 1;
}

static void derive_sizes(struct hps_config *config)
{
    struct hps_config_server *server = &config->server;
    uint64_t memory = hps_limits_memory_bytes();
    uint32_t cpus = hps_limits_cpus();
    if (config->volatile_db.memory_bytes == 0) {
        config->volatile_db.memory_bytes = memory / 2;
    }
    if (config->volatile_db.num_partitions == 0) {
        config->volatile_db.num_partitions =
            config->volatile_db.type == HPS_CONFIG_VOLATILE_REDIS_CLUSTER ? REDIS_SHARDS
                                                                          : clamp_u32(cpus, 1, 16);
    }
    /* The host map has the rows that lookups use often, so the block cache would only cost CPU
     * time. */
    if (hps_config_host_bytes(config) != 0 &&
        !hps_option_is_set(&config->persistent_db.set,
                           HPS_OPTION_persistent_db_block_cache_bytes)) {
        config->persistent_db.block_cache_bytes = 0;
    }
    if (server->reply_bytes_in_flight == 0) {
        server->reply_bytes_in_flight = memory / 4;
    }
    if (server->request_bytes_in_flight == 0) { /* an idle server always has memory for a request */
        uint64_t quarter = server->reply_bytes_in_flight / 4;
        uint64_t two = 2 * (uint64_t)server->request_bytes_max;
        server->request_bytes_in_flight = quarter > two ? quarter : two;
    }
    if (server->loop_threads == 0) {
        server->loop_threads = clamp_u32(cpus / 4, 1, 8);
    }
    if (server->worker_threads == 0) {
        server->worker_threads = clamp_u32(cpus, 1, 1024);
    }
    if (server->io_threads == 0) {
        server->io_threads = clamp_u32(cpus >= 16 ? 64 : cpus * 4, 8, 64);
    }
}

/* Replace an owned string; takes `fresh`, NULL: no memory. */
static hps_status replace(struct hps_config *config, char **field, char *fresh,
                          struct hps_error *err)
{
    HPS_ASSERT(field != NULL);
    if (fresh == NULL) {
        return no_memory(config, err);
    }
    hps_free(*field);
    *field = fresh;
    return HPS_OK;
}

/* The directory that holds `path`: "/models/m/1/t" -> "/models/m/1", "t.npy" -> ".". */
static char *directory_of(const char *path)
{
    size_t n = hps_safetensors_file_size(path);
    while (n > 1 && path[n - 1] == '/') {
        n--;
    }
    while (n > 0 && path[n - 1] != '/') {
        n--;
    }
    while (n > 1 && path[n - 1] == '/') {
        n--;
    }
    return n == 0 ? hps_strdup(".") : hps_strndup(path, n);
}

static hps_status add_root(struct hps_strings *roots, const char *root)
{
    for (size_t i = 0; i < roots->n; i++) {
        if (strcmp(roots->items[i], root) == 0) {
            return HPS_OK;
        }
    }
    return hps_strings_append(roots, root);
}

/* Whether `path` is "/", also through links. */
static bool is_all(const char *path)
{
    char resolved[PATH_MAX];
    return strcmp(path, "/") == 0 ||
           (realpath(path, resolved) != NULL && strcmp(resolved, "/") == 0);
}

/* The directory above the one with the files, where other versions are; the latter itself if the
 * former is "/". */
static char *root_of(const char *path)
{
    char *dir = directory_of(path);
    if (dir == NULL || strcmp(dir, ".") == 0 || strcmp(dir, "..") == 0 ||
        (strlen(dir) > 3 && strcmp(dir + strlen(dir) - 3, "/..") == 0)) {
        return dir;
    }
    char *parent = directory_of(dir);
    bool all = parent != NULL && is_all(parent);
    hps_free(all ? parent : dir);
    return all ? dir : parent;
}

static hps_status derive_model_roots(struct hps_config *config, struct hps_error *err)
{
    struct hps_strings *roots = &config->server.model_roots;
    if (roots->n > 0) {
        return HPS_OK;
    }
    hps_status status = HPS_OK;
    for (size_t i = 0; i < config->n_models && status == HPS_OK; i++) {
        for (size_t j = 0; j < config->models[i].n_tables && status == HPS_OK; j++) {
            char *root = root_of(config->models[i].tables[j].path);
            status = root == NULL ? HPS_NO_MEMORY : add_root(roots, root);
            hps_free(root);
        }
    }
    if (status == HPS_OK && config->server.state_dir[0] != '\0') {
        char *own = hps_file_path("%s/models", config->server.state_dir);
        status = own == NULL ? HPS_NO_MEMORY : add_root(roots, own);
        hps_free(own);
    }
    return status == HPS_OK ? HPS_OK : no_memory(config, err);
}

static hps_status derive_state_paths(struct hps_config *config, struct hps_notes *notes,
                                     struct hps_error *err)
{
    struct hps_config_server *server = &config->server;
    struct hps_config_persistent_db *persistent = &config->persistent_db;
    hps_status status = HPS_OK;
    if (server->admin_listen.address[0] == '\0') {
        status = replace(config, &server->admin_listen.address,
                         hps_file_path("unix:%s/admin.sock", server->state_dir), err);
    }
    if (status == HPS_OK && persistent->type == HPS_CONFIG_PERSISTENT_ROCKS_DB &&
        persistent->path[0] == '\0') {
        status = replace(config, &persistent->path, hps_strdup(server->state_dir), err);
        if (status == HPS_OK && hps_option_is_set(&config->set, HPS_OPTION_top_persistent_db)) {
            status = hps_notes_add(
                         notes, HPS_NOTE_DIFFERENT,
                         "%s: persistent_db.path: not given; the database is in %s/hpsd, where HPS "
                         "would use a temporary directory",
                         config->file, persistent->path) == HPS_OK
                         ? HPS_OK
                         : no_memory(config, err);
        }
    }
    return status;
}

static hps_status derive_paths(struct hps_config *config, bool is_check, struct hps_notes *notes,
                               struct hps_error *err)
{
    hps_status status = HPS_OK;
    if (config->server.state_dir[0] != '\0') {
        status = derive_state_paths(config, notes, err);
    } else if (!is_check) {
        status =
            hps_error_set(err, HPS_INVALID,
                          "%s: server.state_dir: got none, expected a directory: give it in the "
                          "file or as --state-dir DIR",
                          config->file);
    } else if (hps_notes_add(notes, HPS_NOTE_MISSING,
                             "%s: server.state_dir: not given; a start needs a state "
                             "directory: give it in the file or as --state-dir DIR",
                             config->file) != HPS_OK) {
        status = no_memory(config, err);
    }
    return status == HPS_OK ? derive_model_roots(config, err) : status;
}

/* HPS has file names as defaults: they apply only if the files are readable. */
static hps_status derive_redis_tls(struct hps_config *config, struct hps_error *err)
{
    struct hps_config_volatile_db *db = &config->volatile_db;
    const struct {
        enum hps_option_id id;
        char **field;
        bool file;
    } all[] = {
        {HPS_OPTION_volatile_db_tls_ca_certificate, &db->tls_ca_certificate, true},
        {HPS_OPTION_volatile_db_tls_client_certificate, &db->tls_client_certificate, true},
        {HPS_OPTION_volatile_db_tls_client_key, &db->tls_client_key, true},
        {HPS_OPTION_volatile_db_tls_server_name_identification, &db->tls_server_name_identification,
         false},
    };
    hps_status status = HPS_OK;
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]) && status == HPS_OK; i++) {
        bool there = all[i].file && access(*all[i].field, R_OK) == 0;
        if (!hps_option_is_set(&db->set, all[i].id) && !there) {
            status = replace(config, all[i].field, hps_strdup(""), err);
        }
    }
    return status;
}

/* ---- tiers and settings of HPS --------------------------------------------------------------- */

static hps_status check_tiers(const struct hps_config *config, struct hps_notes *notes,
                              struct hps_error *err)
{
    if (config->volatile_db.type == HPS_CONFIG_VOLATILE_DISABLED &&
        config->persistent_db.type == HPS_CONFIG_PERSISTENT_DISABLED) {
        return hps_error_set(
            err, HPS_INVALID,
            "%s: volatile_db.type and persistent_db.type: got \"disabled\" for both, "
            "expected a store for the rows (an embedding cache has only some of them)",
            config->file);
    }
    uint64_t memory = hps_limits_memory_bytes();
    bool redis = config->volatile_db.type == HPS_CONFIG_VOLATILE_REDIS_CLUSTER;
    uint64_t host =
        redis ? config->volatile_db.local_cache_bytes : config->volatile_db.memory_bytes;
    if (host > memory) {
        hps_status status =
            hps_notes_add(notes, HPS_NOTE_WARNING,
                          "%s: volatile_db.%s: got %" PRIu64 ", more than the %" PRIu64
                          " bytes that this process may use",
                          config->file, redis ? "local_cache_bytes" : "memory_bytes", host, memory);
        return status == HPS_OK ? HPS_OK : no_memory(config, err);
    }
    return HPS_OK;
}

/* Check address, credentials and client certificate for Redis. */
static hps_status check_redis_access(const struct hps_config *config, struct hps_error *err)
{
    const struct hps_config_volatile_db *db = &config->volatile_db;
    bool default_user = db->user_name[0] == '\0' || strcmp(db->user_name, "default") == 0;
    if (db->address[strspn(db->address, ",; \t")] == '\0') {
        return hps_error_set(err, HPS_INVALID,
                             "%s: volatile_db.address: got \"%s\", expected host:port or unix:PATH",
                             config->file, db->address);
    }
    if (!default_user && db->password[0] == '\0') {
        return hps_error_set(
            err, HPS_INVALID,
            "%s: volatile_db.password: got none, expected the password of user_name \"%s\"",
            config->file, db->user_name);
    }
    if (db->enable_tls && db->tls_client_key[0] != '\0' && db->tls_client_certificate[0] == '\0') {
        return hps_error_set(err, HPS_INVALID,
                             "%s: volatile_db.tls_client_certificate: got none, expected the "
                             "certificate of tls_client_key \"%s\"",
                             config->file, db->tls_client_key);
    }
    return HPS_OK;
}

/* Reject addresses with user name and password: they would be printed wherever the address is. */
static hps_status check_addresses(const struct hps_config *config, struct hps_error *err)
{
    const struct {
        const char *option, *text, *instead;
    } all[] = {
        {"volatile_db.address", config->volatile_db.address, "volatile_db.user_name and password"},
        {"update_source.brokers", config->update_source.brokers, "update_source.properties"},
    };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        for (const char *at = all[i].text; *at != '\0';) {
            at += strspn(at, ",; \t");
            size_t n = strcspn(at, ",; \t");
            if (strncmp(at, "unix:", 5) != 0 && memchr(at, '@', n) != NULL) {
                return hps_error_set(err, HPS_INVALID,
                                     "%s: %s: got '@' in an address, expected host:port; give "
                                     "credentials as %s",
                                     config->file, all[i].option, all[i].instead);
            }
            at += n;
        }
    }
    return HPS_OK;
}

static hps_status check_redis(const struct hps_config *config, struct hps_notes *notes,
                              struct hps_error *err)
{
    const struct hps_config_volatile_db *db = &config->volatile_db;
    hps_status status = HPS_OK;
    if (db->type != HPS_CONFIG_VOLATILE_REDIS_CLUSTER) {
        if (db->local_cache_bytes > 0) {
            status =
                hps_notes_add(notes, HPS_NOTE_WARNING,
                              "%s: volatile_db.local_cache_bytes: not applied; it limits a host "
                              "map above redis_cluster, without which memory_bytes is the limit",
                              config->file);
        }
        return status == HPS_OK ? HPS_OK : no_memory(config, err);
    }
    if (db->num_partitions > REDIS_SHARDS_MAX) {
        return hps_error_set(err, HPS_INVALID,
                             "%s: volatile_db.num_partitions: got %" PRIu32
                             ", expected at most %d for redis_cluster",
                             config->file, db->num_partitions, REDIS_SHARDS_MAX);
    }
    if (db->overflow_resolution_target <= 0) {
        return hps_error_set(err, HPS_INVALID,
                             "%s: volatile_db.overflow_resolution_target: got 0, expected more for "
                             "redis_cluster",
                             config->file);
    }
    if (db->redis_ttl_s > 0 && config->persistent_db.type == HPS_CONFIG_PERSISTENT_DISABLED) {
        return hps_error_set(err, HPS_INVALID,
                             "%s: volatile_db.redis_ttl_s: got %" PRIu32
                             ", expected 0: without a persistent_db Redis has the only copy",
                             config->file, db->redis_ttl_s);
    }
    if (db->redis_ttl_s > 0 && db->redis_ttl_s < db->redis_lease_s) {
        return hps_error_set(err, HPS_INVALID,
                             "%s: volatile_db.redis_ttl_s: got %" PRIu32
                             ", expected 0 or at least redis_lease_s, %" PRIu32,
                             config->file, db->redis_ttl_s, db->redis_lease_s);
    }
    return check_redis_access(config, err);
}

/* Settings of any model that hpsd treats differently from HPS. */
struct model_wishes {
    bool other_cache;
    bool no_warmup;
};

static struct model_wishes wishes_of(const struct hps_config *config)
{
    struct model_wishes wishes = {0};
    for (size_t i = 0; i < config->n_models; i++) {
        const struct hps_config_model *model = &config->models[i];
        wishes.other_cache |=
            model->use_static_table || model->embedding_cache_type != HPS_CONFIG_CACHE_DYNAMIC;
        wishes.no_warmup |= !model->init_ec;
    }
    return wishes;
}

/* A note on a setting, if it applies. */
struct setting {
    bool applies;
    enum hps_note_kind kind;
    const char *text;
};

static hps_status note_settings(const struct hps_config *config, const struct setting *all,
                                size_t n, struct hps_notes *notes)
{
    hps_status status = HPS_OK;
    for (size_t i = 0; i < n && status == HPS_OK; i++) {
        if (all[i].applies) {
            status = hps_notes_add(notes, all[i].kind, "%s: %s", config->file, all[i].text);
        }
    }
    return status;
}

/* Add one note per subject, for any number of models. */
static hps_status note_hps_settings(const struct hps_config *config, struct hps_notes *notes)
{
    const struct hps_config_volatile_db *volatile_db = &config->volatile_db;
    const struct hps_option_set *set = &volatile_db->set;
    const struct model_wishes wishes = wishes_of(config);
    bool redis = volatile_db->type == HPS_CONFIG_VOLATILE_REDIS_CLUSTER;
    const struct setting all[] = {
        {!hps_option_is_set(&config->set, HPS_OPTION_top_supportlonglong) &&
             hps_option_is_set(&config->set, HPS_OPTION_top_models),
         HPS_NOTE_MISSING, "supportlonglong: not given; HPS requires it, and hpsd assumes true"},
        {wishes.other_cache, HPS_NOTE_DIFFERENT,
         "models[].embedding_cache_type: every type uses the stores; a static "
         "embedding cache can hold every row, requests wait for misses of "
         "static and uvm, and stochastic behaves like dynamic"},
        {wishes.no_warmup, HPS_NOTE_DIFFERENT,
         "models[].init_ec: hpsd warms up the host map, with the most requested keys, and not the "
         "embedding cache; server.hot_keys_bytes 0 turns that off"},
        {volatile_db->type == HPS_CONFIG_VOLATILE_MULTI_PROCESS_HASH_MAP, HPS_NOTE_DIFFERENT,
         "volatile_db.type: multi_process_hash_map is the host map of this daemon, and all clients "
         "share it"},
        {!redis && hps_option_is_set(set, HPS_OPTION_volatile_db_overflow_policy),
         HPS_NOTE_DIFFERENT,
         "volatile_db.overflow_policy: not applied; the host map has one policy, with higher hit "
         "rates than those of HPS"},
        {volatile_db->initial_cache_rate < 1.0 &&
             (!redis || config->persistent_db.type == HPS_CONFIG_PERSISTENT_DISABLED),
         HPS_NOTE_DIFFERENT,
         "volatile_db.initial_cache_rate: not applied, as in HPS; every row is loaded"},
    };
    return note_settings(config, all, sizeof(all) / sizeof(all[0]), notes);
}

/* HPS has the same default, but there it matches no topic. */
static bool has_default_filter(const struct hps_config *config)
{
    const struct hps_strings *all[] = {&config->volatile_db.update_filters,
                                       &config->persistent_db.update_filters};
    const bool is_used[] = {config->volatile_db.type != HPS_CONFIG_VOLATILE_DISABLED,
                            config->persistent_db.type != HPS_CONFIG_PERSISTENT_DISABLED};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        for (size_t k = 0; k < all[i]->n && is_used[i]; k++) {
            if (strcmp(all[i]->items[k], "^hps_.+$") == 0) {
                return true;
            }
        }
    }
    return false;
}

/* Add the notes that only `hpsd --check` prints. */
static hps_status note_check(const struct hps_config *config, struct hps_notes *notes)
{
    const struct hps_option_set *top = &config->set;
    bool redis = config->volatile_db.type == HPS_CONFIG_VOLATILE_REDIS_CLUSTER;
    bool rocks = config->persistent_db.type == HPS_CONFIG_PERSISTENT_ROCKS_DB;
    const struct setting all[] = {
        {!rocks, HPS_NOTE_MISSING,
         "persistent_db: disabled; a restart reads the model files again, and forgets versions "
         "that hpsctl has loaded"},
        {!hps_option_is_set(top, HPS_OPTION_top_server) && config->server.kserve_listen.n == 0,
         HPS_NOTE_MISSING,
         "server.kserve_listen: not given; clients of Triton that use HTTP need it or "
         "--kserve-listen ADDR"},
        {!redis && hps_config_host_bytes(config) > 0 &&
             !hps_option_is_set(&config->volatile_db.set, HPS_OPTION_volatile_db_memory_bytes),
         HPS_NOTE_DIFFERENT,
         "volatile_db.memory_bytes: not given; the host map may use half of the memory, and HPS "
         "has "
         "no limit"},
        {redis, HPS_NOTE_DIFFERENT,
         "volatile_db.type: hpsd has its own keys in Redis, and neither reads nor deletes the rows "
         "that HPS wrote there"},
        {rocks && hps_option_is_set(&config->persistent_db.set, HPS_OPTION_persistent_db_path),
         HPS_NOTE_DIFFERENT,
         "persistent_db.path: hpsd has its own database in the subdirectory hpsd, and does not "
         "read "
         "the rows that HPS wrote"},
        {config->update_source.type == HPS_CONFIG_UPDATE_SOURCE_KAFKA && has_default_filter(config),
         HPS_NOTE_DIFFERENT,
         "update_filters: \"^hps_.+$\", the default, selects the updates of all models; in HPS it "
         "selects none"},
    };
    return hps_option_is_set(top, HPS_OPTION_top_models)
               ? note_settings(config, all, sizeof(all) / sizeof(all[0]), notes)
               : HPS_OK; /* of --table */
}

/* ---- updates --------------------------------------------------------------------------------- */

/* One group per host. Set update_source.group if two daemons run on one host. */
static char *default_group(void)
{
    char host[256] = "";
    if (gethostname(host, sizeof(host) - 1) != 0 || host[0] == '\0') {
        return hps_strdup("hpsd");
    }
    return hps_file_path("hpsd.%s", host);
}

/* Characters of topic names in Kafka. Names of librdkafka properties use the same ones. */
enum { TOPIC_BYTES_MAX = 249 };
#define NAME_CHARS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"

static hps_status check_brokers(const struct hps_config *config, struct hps_error *err)
{
    hps_status status = hps_text_brokers_check(config->update_source.brokers, err);

    return status == HPS_OK
               ? HPS_OK
               : hps_error_prefix(err, status, "%s: update_source.brokers", config->file);
}

static hps_status check_filters(const struct hps_config *config, const char *section,
                                const struct hps_strings *texts, struct hps_error *err)
{
    struct hps_topic_filters *filters = NULL;
    hps_status status =
        hps_topic_filters_new((const char *const *)texts->items, (uint32_t)texts->n, &filters, err);
    hps_topic_filters_free(filters);
    return status == HPS_OK ? HPS_OK
           : status == HPS_NO_MEMORY
               ? no_memory(config, err)
               : hps_error_prefix(err, status, "%s: %s.update_filters", config->file, section);
}

const char **hps_config_update_filters(const struct hps_config *config, uint32_t *out_n)
{
    const struct hps_strings *persistent = &config->persistent_db.update_filters;
    const struct hps_strings *volatiles = &config->volatile_db.update_filters;
    const char **filters = hps_calloc(persistent->n + volatiles->n + 1, sizeof(*filters));
    uint32_t n = 0;
    if (filters == NULL) {
        return NULL;
    }
    if (config->persistent_db.type != HPS_CONFIG_PERSISTENT_DISABLED) {
        for (size_t i = 0; i < persistent->n; i++) {
            filters[n++] = persistent->items[i];
        }
    }
    if (config->volatile_db.type != HPS_CONFIG_VOLATILE_DISABLED) {
        for (size_t i = 0; i < volatiles->n; i++) {
            filters[n++] = volatiles->items[i];
        }
    }
    *out_n = n;
    return filters;
}

/* A dead-letter topic that hpsd reads would feed itself. A model of any name can be loaded later,
 * so any name counts. */
static hps_status check_dead_letters_unread(const struct hps_config *config, struct hps_error *err)
{
    const char *topic = config->update_source.dead_letter_topic;
    struct hps_update_topic of;
    struct hps_topic_filters *filters = NULL;
    uint32_t n = 0;
    if (!hps_update_topic_parse(topic, &of)) {
        return HPS_OK;
    }
    const char **texts = hps_config_update_filters(config, &n);
    hps_status status =
        texts == NULL ? HPS_NO_MEMORY : hps_topic_filters_new(texts, n, &filters, NULL);
    bool is_read = status == HPS_OK && hps_topic_filters_match(filters, topic, of.model);
    hps_topic_filters_free(filters);
    hps_free(texts);
    if (status != HPS_OK) {
        return no_memory(config, err);
    }
    return is_read
               ? hps_error_set(err, HPS_INVALID,
                               "%s: update_source.dead_letter_topic: got \"%.260s\", from which "
                               "hpsd reads updates, expected a name that does not begin with "
                               "\"hps_et.\", or update_filters that exclude it",
                               config->file, topic)
               : HPS_OK;
}

static hps_status check_updates(struct hps_config *config, struct hps_error *err)
{
    struct hps_config_update_source *source = &config->update_source;
    hps_status status =
        check_filters(config, "volatile_db", &config->volatile_db.update_filters, err);
    if (status == HPS_OK) {
        status = check_filters(config, "persistent_db", &config->persistent_db.update_filters, err);
    }
    for (size_t i = 0; i < source->properties.n && status == HPS_OK; i++) {
        const char *property = source->properties.items[i];
        size_t name_size = strspn(property, NAME_CHARS);
        if (property[name_size] != '=' || name_size == 0) {
            /* Without its text, which may be a password, as in "sasl.password: YWJj=". */
            return hps_error_set(err, HPS_INVALID,
                                 "%s: update_source.properties[%zu]: expected \"NAME=VALUE\"",
                                 config->file, i);
        }
    }
    if (status == HPS_OK && source->type != HPS_CONFIG_UPDATE_SOURCE_NULL) {
        status = check_brokers(config, err);
    }
    if (status != HPS_OK || source->type == HPS_CONFIG_UPDATE_SOURCE_NULL) {
        return status;
    }
    const char *topic = source->dead_letter_topic;
    if (strlen(topic) > TOPIC_BYTES_MAX || topic[strspn(topic, NAME_CHARS)] != '\0' ||
        strcmp(topic, ".") == 0 || strcmp(topic, "..") == 0) {
        return hps_error_set(err, HPS_INVALID,
                             "%s: update_source.dead_letter_topic: got \"%.60s\", expected at most "
                             "%d of a-z A-Z 0-9 . _ -",
                             config->file, topic, TOPIC_BYTES_MAX);
    }
    status = check_dead_letters_unread(config, err);
    if (status != HPS_OK) {
        return status;
    }
    if (source->start == HPS_CONFIG_UPDATE_START_TIME && source->start_time_unix_ms == 0) {
        return hps_error_set(err, HPS_INVALID,
                             "%s: update_source.start_time_unix_ms: got 0, expected a time, as "
                             "update_source.start is \"time\"",
                             config->file);
    }
    return source->group[0] != '\0' ? HPS_OK
                                    : replace(config, &source->group, default_group(), err);
}

/* Errors of the checks: the first error of each. */
struct errors {
    struct hps_error one; /* of the current check */
    struct hps_error first;
    struct hps_notes *notes;
};

/* Record an error. OK: continue; NO_MEMORY. */
static hps_status keep(struct errors *errors, hps_status status)
{
    if (status != HPS_OK) {
        errors->one.status = status;
        status = hps_notes_add_error(errors->notes, &errors->one, &errors->first);
    }
    return status;
}

static hps_status check_row_versions(const struct hps_config *config, struct errors *errors)
{
    hps_status status = HPS_OK;
    for (size_t i = 0; i < config->n_models && status == HPS_OK; i++) {
        if (config->models[i].row_versions &&
            config->persistent_db.type == HPS_CONFIG_PERSISTENT_DISABLED) {
            status = keep(errors,
                          hps_error_set(&errors->one, HPS_INVALID,
                                        "%s: models[%zu].row_versions: got true, but the versions "
                                        "are kept in persistent_db, which is disabled",
                                        config->file, i));
        }
    }
    return status;
}

hps_status hps_config_finish(struct hps_config *config, const struct hps_config_flags *flags,
                             struct hps_notes *notes, struct hps_error *err)
{
    HPS_ASSERT(config != NULL);
    struct errors errors = {.notes = notes};
    struct hps_error *one = &errors.one;
    bool is_check = flags != NULL && flags->check;
    hps_status status = flags == NULL ? HPS_OK : keep(&errors, apply_flags(config, flags, one));
    if (status == HPS_OK) {
        derive_sizes(config);
        status = keep(&errors, derive_paths(config, is_check, notes, one));
    }
    if (status == HPS_OK) {
        status = keep(&errors, derive_redis_tls(config, one));
    }
    if (status == HPS_OK) {
        status = keep(&errors, hps_config_check_listeners(config, one));
    }
    if (status == HPS_OK) {
        status = keep(&errors, check_tiers(config, notes, one));
    }
    if (status == HPS_OK) {
        status = keep(&errors, check_addresses(config, one));
    }
    if (status == HPS_OK) {
        status = keep(&errors, check_redis(config, notes, one));
    }
    if (status == HPS_OK) {
        status = keep(&errors, check_updates(config, one));
    }
    if (status == HPS_OK) {
        status = check_row_versions(config, &errors);
    }
    if (status == HPS_OK &&
        (note_hps_settings(config, notes) != HPS_OK || hps_secrets_note(config, notes) != HPS_OK ||
         (is_check && note_check(config, notes) != HPS_OK))) {
        status = keep(&errors, no_memory(config, one));
    }
    status = status == HPS_OK ? errors.first.status : status;
    if (status == HPS_OK) {
        hps_config_sane(config);
    } else if (err != NULL) {
        *err = errors.first;
        err->status = status;
    }
    return status;
}

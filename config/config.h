/* SPDX-License-Identifier: Apache-2.0
 *
 * The configuration of a daemon as one plain, owned struct. HPS's ps.json is read unchanged.
 * Options of hpsd are in the block `server` and in new keys of the blocks of HPS. options.def lists
 * all options.
 *
 * Life: hps_config_parse_file (or hps_config_parse, or hps_config_for_tables), then
 * hps_config_finish. The latter applies the flags of the command line, sets defaults that depend on
 * the machine, and checks options against each other. Main thread; any thread may read the finished
 * struct while it does not change.
 */
#ifndef HPS_CONFIG_CONFIG_H
#define HPS_CONFIG_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"

/* One enum per list: enum hps_config_volatile_type { HPS_CONFIG_VOLATILE_DISABLED = 0, ... } */
#define ENUM_BEGIN(list)   \
    enum hps_config_##list \
    {
#define VALUE(list, constant, number, word, aliases) HPS_CONFIG_##constant = (number),
#define ENUM_END(list) \
    }                  \
    ;
#include "config/enums.def"
#undef ENUM_BEGIN
#undef VALUE
#undef ENUM_END

/* HPS_OPTION_server_keys_max and so on. */
enum hps_option_id {
#define OPTION(section, name, field, type, values, unit, def, min, max, flags, help) \
    HPS_OPTION_##section##_##name,
#include "config/options.def"
#undef OPTION
    HPS_OPTION_COUNT
};

/* The options that the file or a flag sets; the others have their defaults. */
struct hps_option_set {
    uint64_t bits[(HPS_OPTION_COUNT + 63) / 64];
};

struct hps_strings {
    char **items;
    size_t n;
};

void hps_strings_fini(struct hps_strings *strings); /* no effect if all zero; empty afterwards */
/* NO_MEMORY. */
hps_status hps_strings_append(struct hps_strings *strings, const char *text) HPS_MUST_CHECK;
/* NO_MEMORY. */
hps_status hps_strings_copy(const struct hps_strings *strings, struct hps_strings *out_copy)
    HPS_MUST_CHECK;

struct hps_config_listener {
    char *address;  /* "host:port", "[v6]:port" or "unix:PATH"; NULL or "": none */
    bool plaintext; /* allowed without TLS beyond loopback; a TCP listener with it never uses TLS */
};

struct hps_config_listeners {
    struct hps_config_listener *items;
    size_t n;
};

/* One field for each option of the block, as in options.def; likewise in the structs below. */
struct hps_config_volatile_db {
    struct hps_option_set set;
    enum hps_config_volatile_type type;
    uint64_t memory_bytes; /* after finish never 0, like num_partitions */
    uint64_t local_cache_bytes;
    char *address;
    char *user_name;
    char *password;
    uint32_t num_partitions;
    uint32_t num_node_connections;
    uint64_t max_batch_size;
    bool enable_tls;
    char *tls_ca_certificate; /* after finish "": the system's; the next three: none */
    char *tls_client_certificate;
    char *tls_client_key;
    char *tls_server_name_identification;
    uint64_t overflow_margin;
    enum hps_config_overflow_policy overflow_policy;
    double overflow_resolution_target;
    double initial_cache_rate;
    bool cache_missed_embeddings;
    struct hps_strings update_filters;
    uint32_t redis_lease_s;
    uint32_t redis_ttl_s; /* 0: rows have no time to live */
    uint32_t redis_connect_timeout_ms;
    uint32_t redis_command_timeout_ms;
    bool redis_replica_reads;
};

struct hps_config_persistent_db {
    struct hps_option_set set;
    enum hps_config_persistent_type type;
    char *path; /* after finish not empty if type is rocks_db; the database is in <path>/hpsd */
    uint32_t num_threads;
    bool read_only;
    enum hps_config_read_mode read_mode;
    uint32_t wal_sync_ms;
    uint64_t max_batch_size;
    uint64_t block_cache_bytes;
    struct hps_strings update_filters;
};

struct hps_config_update_source {
    struct hps_option_set set;
    enum hps_config_update_source_type type;
    char *brokers;
    uint32_t metadata_refresh_interval_ms;
    uint32_t poll_timeout_ms;
    uint64_t max_batch_size;
    uint32_t failure_backoff_ms;
    uint64_t max_batch_bytes;
    uint64_t max_rows_per_s; /* 0: no limit */
    enum hps_config_update_start start;
    uint32_t start_slack_s;
    uint64_t start_time_unix_ms;
    char *group; /* after finish not empty if there is a source */
    char *dead_letter_topic;
    struct hps_strings properties; /* "NAME=VALUE", after finish */
};

struct hps_config_table {
    char *name;
    char *path;                /* as in the file: relative to the working directory */
    uint32_t dim;              /* 0: as in the files */
    float *default_values;     /* [n_default_values] */
    uint32_t n_default_values; /* 1: one value for the whole row; else dim */
    uint32_t row_dtype;        /* of enum hps_dtype; 0: as in the files */
};

struct hps_config_model {
    struct hps_option_set set;
    char *name;
    struct hps_config_table *tables;
    size_t n_tables;
    uint32_t *deployed_device_list;
    size_t n_deployed_devices;
    uint32_t max_batch_size;
    bool gpucache;
    double gpucacheper;
    double hit_rate_threshold;
    enum hps_config_cache_type embedding_cache_type;
    bool use_static_table;
    bool init_ec;
    bool row_versions;
    char *lineage;    /* "": lineage of the newest version */
    uint64_t version; /* 0: highest version + 1 */
    char *label;
    enum hps_config_miss_policy miss_policy;               /* numbers of hps.v1.MissPolicy */
    enum hps_config_unknown_key_policy unknown_key_policy; /* numbers of hps.v1.UnknownKeyPolicy */
};

struct hps_config_tls {
    struct hps_option_set set;
    char *certificate; /* "": no TLS */
    char *key;
    char *client_ca;
    char *client_crl;
    bool require_client_certificate;
    enum hps_config_tls_version min_version;
    char *ciphers;
    char *ciphersuites;
};

struct hps_config_server {
    struct hps_option_set set;
    struct hps_config_listeners listen;
    struct hps_config_listeners kserve_listen;
    struct hps_config_listener http_listen;
    struct hps_config_listener admin_listen; /* after finish always set */
    char *state_dir;                         /* after finish never "" */
    struct hps_config_tls tls;
    bool plaintext;
    char *access; /* "": none; likewise the next two */
    char *admin_token_file;
    char *audit_log;
    uint64_t request_bytes_max;
    bool compression; /* accept gzip messages of clients */
    uint64_t reply_bytes_max;
    uint32_t keys_max;
    uint32_t tables_max;
    uint64_t reply_bytes_in_flight; /* after finish never 0 */
    uint64_t connection_reply_bytes;
    uint32_t queue_ms_max;
    uint32_t streams_per_connection;
    uint32_t connections_max;
    uint32_t connections_per_peer_max; /* 0: none */
    double peer_share;                 /* 0: none */
    uint32_t handshake_failures_max;   /* 0: none */
    uint32_t handshake_timeout_ms;
    uint32_t http_head_timeout_ms;
    uint32_t reply_stall_timeout_ms;
    uint64_t reply_bytes_per_s_min;   /* 0: none */
    uint64_t request_bytes_per_s_min; /* 0: none */
    uint32_t idle_timeout_ms;         /* 0: never */
    uint32_t connection_age_s;        /* 0: never */
    double connection_age_jitter;
    uint32_t keepalive_ms; /* 0: never */
    uint32_t keepalive_timeout_ms;
    uint32_t drain_delay_ms;
    uint32_t drain_timeout_ms;
    uint32_t slow_request_ms;
    uint32_t loop_threads; /* after finish never 0, like the next two */
    uint32_t worker_threads;
    uint32_t io_threads;
    enum hps_config_log_level log_level;   /* numbers of enum hps_log_level */
    enum hps_config_log_format log_format; /* numbers of enum hps_log_format */
    uint32_t keep_versions;
    struct hps_strings model_roots; /* after finish never empty */
    uint64_t disk_free_min_bytes;   /* 0: max(2 GiB, 5 % of the file system) */
    uint64_t load_memory_bytes;
    uint64_t hot_keys_bytes;   /* 0: not counted */
    uint32_t hot_keys_save_s;  /* 0: never */
    uint32_t warmup_timeout_s; /* 0: no warm-up before a switch */
    uint32_t activate_lag_max_s;
    double activate_rows_loss_max;
    enum hps_config_nan_policy nan_policy;
    enum hps_config_device_loss on_device_loss;
    uint64_t gpu_memory_bytes; /* of each device; 0: 80 % of its free memory */
    uint64_t gpu_result_bytes; /* 0: a quarter of reply_bytes_in_flight, 1 GiB at most */
    enum hps_config_lookup_path lookup_path;
    bool async_without_gpu;
    uint32_t insertion_queue_rows;
};

struct hps_config {
    struct hps_option_set set;
    char *file;       /* file name for messages; "--table" if from the command line */
    bool from_tables; /* from --table: serve what its files contain */
    bool supportlonglong;
    uint32_t key_bytes; /* 8, or 4 if supportlonglong is false */
    struct hps_config_volatile_db volatile_db;
    struct hps_config_persistent_db persistent_db;
    struct hps_config_update_source update_source;
    struct hps_config_model *models;
    size_t n_models;
    struct hps_config_server server;
};

/* Errors of a configuration, and notes on a valid one. Owned by the caller. */
struct hps_note {
    bool error;   /* the configuration is rejected */
    bool warning; /* a likely mistake (misspelt key); else how hpsd treats a setting of HPS */
    char *text;
};

struct hps_notes {
    struct hps_note *items;
    size_t n;
    size_t n_errors;  /* of `items` */
    size_t n_dropped; /* beyond HPS_NOTES_MAX errors or HPS_NOTES_MAX others */
};

enum { HPS_NOTES_MAX = 100, HPS_NOTE_BYTES_MAX = 1024 };

void hps_notes_init(struct hps_notes *notes);
void hps_notes_fini(struct hps_notes *notes); /* may be used again afterwards */

/* Parse JSON text; // and block comments are allowed. `file` is for messages only.
 *
 * error   INVALID (exit 2): "FILE:LINE: PATH: got ..., expected ...; did you mean ...?"
 *         UNIMPLEMENTED (exit 2): needs a part that this build lacks; NO_MEMORY
 *         *err is the first error; `notes` get up to HPS_NOTES_MAX errors
 * owner   *out_config: the caller, hps_config_free; notes are appended to `notes` (may be NULL)
 */
hps_status hps_config_parse(const char *text, size_t size, const char *file,
                            struct hps_config **out_config, struct hps_notes *notes,
                            struct hps_error *err) HPS_MUST_CHECK;
/* The same from a file of at most 64 MiB; also IO, NOT_FOUND, PERMISSION. */
hps_status hps_config_parse_file(const char *path, struct hps_config **out_config,
                                 struct hps_notes *notes, struct hps_error *err) HPS_MUST_CHECK;

/* Parse one entry of models[], given as a JSON object; `what` describes it in messages. The result
 * has this one model, and defaults otherwise. Errors and owners as above. Any thread. */
hps_status hps_config_parse_entry(const char *text, size_t size, const char *what,
                                  struct hps_config **out_config, struct hps_notes *notes,
                                  struct hps_error *err) HPS_MUST_CHECK;
/* The configuration of `--table NAME=PATH ...`: model "default", rocks_db in the state directory,
 * exact replies, dim from the files. */
hps_status hps_config_for_tables(const char *const *args, size_t n_args,
                                 struct hps_config **out_config, struct hps_error *err)
    HPS_MUST_CHECK;

void hps_config_free(struct hps_config *config); /* no effect if NULL */

/* Flags of the command line; NULL or n 0: not given. Borrowed for the call. */
struct hps_config_flags {
    const char *const *listen;
    size_t n_listen;
    const char *const *kserve_listen;
    size_t n_kserve_listen;
    const char *http_listen;
    const char *admin_listen;
    const char *state_dir;
    const char *log_level;
    const char *log_format;
};

/* Apply the flags (may be NULL), set defaults that depend on the machine or on other options, and
 * check options against each other. After an error only hps_config_free may be called on the
 * config. `err` is the first error; `notes` get the first error of each check. */
hps_status hps_config_finish(struct hps_config *config, const struct hps_config_flags *flags,
                             struct hps_notes *notes, struct hps_error *err) HPS_MUST_CHECK;

/* Memory budget of the host map; 0: no host map. After finish. */
uint64_t hps_config_host_bytes(const struct hps_config *config);
/* Whether to cache whole tables of the model: `gpucacheper` of 1 or more, or a static table. */
bool hps_config_caches_whole(const struct hps_config_model *model);

/* Whether TLS is configured, and whether this listener uses it (never on Unix sockets). */
bool hps_config_has_tls(const struct hps_config_server *server);
bool hps_config_listener_tls(const struct hps_config_server *server,
                             const struct hps_config_listener *listener);
/* Whether http_listen uses TLS. Not on loopback, because local probes have no certificates. */
bool hps_config_http_tls(const struct hps_config_server *server);
/* Whether an option says which remote identities are administrators. */
bool hps_config_has_administrators(const struct hps_config_server *server);
/* Whether it is "unix:...", 127.0.0.0/8, [::1] or localhost. */
bool hps_config_address_is_local(const char *address);

bool hps_option_is_set(const struct hps_option_set *set, enum hps_option_id id);

/* The entry of models[] with that name, or NULL. */
const struct hps_config_model *hps_config_model_find(const struct hps_config *config,
                                                     const char *name);
struct hps_config_policies {
    enum hps_config_miss_policy miss;
    enum hps_config_unknown_key_policy unknown_key;
    double hit_rate_threshold;
};
/* Policies of lookups that do not set them: from the entry of the model, or the defaults of the
 * options if `model` is NULL. The hit rate threshold is 1.0 for a model without an entry, and for
 * models with a static or UVM cache, which holds every row in HPS. At 1.0, THRESHOLD lookups are
 * exact. */
void hps_config_model_policies(const struct hps_config_model *model,
                               struct hps_config_policies *out_policies);

/* Append JSON of all options: {"server": {"keys_max": {"value": 2097152, "default": true}, ...},
 * ...}. Passwords are not printed. */
hps_status hps_config_print_effective(const struct hps_config *config, struct hps_buf *buf)
    HPS_MUST_CHECK;
/* Append the entry as hps_config_parse_entry reads it, with the options that were given. */
hps_status hps_config_print_entry(const struct hps_config_model *model, struct hps_buf *buf)
    HPS_MUST_CHECK;

struct hps_config_change {
    char path[192]; /* "server.keys_max", "models[dlrm].label", "models[dlrm]" (added or removed) */
    char before[96]; /* as printed; cut; "" if it did not exist */
    char after[96];
    bool reloadable; /* false: needs a restart */
    bool kept;       /* an option of models[] that is stored with each version */
};

/* Call `fn` for each option that differs and has an effect. Both configs are finished. Error:
 * NO_MEMORY; EXHAUSTED: a value is longer than 16 MiB. */
hps_status hps_config_diff(const struct hps_config *before, const struct hps_config *after,
                           void (*fn)(void *ctx, const struct hps_config_change *change), void *ctx)
    HPS_MUST_CHECK;
/* The same for two entries of models[]; paths are option names. */
hps_status hps_config_diff_entry(const struct hps_config_model *before,
                                 const struct hps_config_model *after,
                                 void (*fn)(void *ctx, const struct hps_config_change *change),
                                 void *ctx) HPS_MUST_CHECK;
/* Exchange the values of all options that hps_config_diff reports as reloadable between `running`
 * and `next`. A second call undoes it. Models and entries do not move in memory. */
void hps_config_exchange(struct hps_config *running, struct hps_config *next);

/* Append the part of docs/config.md that is generated from the table of options. */
void hps_config_doc(struct hps_buf *buf);

#endif

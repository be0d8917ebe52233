/* SPDX-License-Identifier: Apache-2.0
 *
 * The configuration of a daemon as one plain, owned struct. HPS's ps.json is read unchanged; ours
 * lives in `server` and in new keys beside the old ones. options.def is the list of all options.
 *
 * Life: hps_config_parse_file (or hps_config_parse, or hps_config_for_tables) → hps_config_finish,
 * which applies the flags of the command line, fills in what depends on the machine and checks what
 * the options say together. Main thread only; the finished struct may be read by any thread while
 * it is not changed.
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

/* Which options the file or a flag gave; the others hold their defaults. */
struct hps_option_set {
    uint64_t bits[(HPS_OPTION_COUNT + 63) / 64];
};

struct hps_strings {
    char **items;
    size_t n;
};

void hps_strings_fini(struct hps_strings *strings); /* a zeroed one is legal; empty afterwards */
/* NO_MEMORY. */
hps_status hps_strings_append(struct hps_strings *strings, const char *text) HPS_MUST_CHECK;
/* NO_MEMORY. */
hps_status hps_strings_copy(const struct hps_strings *strings, struct hps_strings *out_copy)
    HPS_MUST_CHECK;

struct hps_config_listener {
    char *address;  /* "host:port", "[v6]:port" or "unix:PATH"; NULL or "" is none */
    bool plaintext; /* allowed beyond loopback without TLS; a TCP listener with it speaks no TLS */
};

struct hps_config_listeners {
    struct hps_config_listener *items;
    size_t n;
};

/* One field for each option of the block, as in options.def; so in the structs below. */
struct hps_config_volatile_db {
    struct hps_option_set set;
    enum hps_config_volatile_type type;
    uint64_t memory_bytes; /* after finish never 0, as num_partitions */
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
    uint32_t redis_ttl_s; /* 0: rows stay until they are dropped */
    uint32_t redis_connect_timeout_ms;
    uint32_t redis_command_timeout_ms;
    bool redis_replica_reads;
};

struct hps_config_persistent_db {
    struct hps_option_set set;
    enum hps_config_persistent_type type;
    char *path; /* after finish not empty when type is rocks_db; the database is in <path>/hpsd */
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
    char *group; /* after finish not empty when there is a source */
    char *dead_letter_topic;
    struct hps_strings properties; /* "NAME=VALUE", after finish */
};

struct hps_config_table {
    char *name;
    char *path;                /* as written: relative to the working directory */
    uint32_t dim;              /* 0: take it from the file */
    float *default_values;     /* [n_default_values] */
    uint32_t n_default_values; /* 1: the value of the whole row; else dim */
    uint32_t row_dtype;        /* of enum hps_dtype; 0: that of the files */
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
    char *lineage;    /* "": that of the newest version */
    uint64_t version; /* 0: the highest + 1 */
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
    struct hps_config_listener admin_listen; /* after finish: never none */
    char *state_dir;                         /* after finish: never "" */
    struct hps_config_tls tls;
    bool plaintext;
    char *access; /* "": none, as the next */
    char *admin_token_file;
    char *audit_log;
    uint64_t request_bytes_max;
    bool compression; /* gzip messages of clients are taken */
    uint64_t reply_bytes_max;
    uint32_t keys_max;
    uint32_t tables_max;
    uint64_t reply_bytes_in_flight; /* after finish: never 0 */
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
    uint32_t loop_threads; /* after finish: never 0, as the next two */
    uint32_t worker_threads;
    uint32_t io_threads;
    enum hps_config_log_level log_level;   /* numbers of enum hps_log_level */
    enum hps_config_log_format log_format; /* numbers of enum hps_log_format */
    uint32_t keep_versions;
    struct hps_strings model_roots; /* after finish: never empty */
    uint64_t disk_free_min_bytes;   /* 0: max(2 GiB, 5 % of the file system) */
    uint64_t load_memory_bytes;
    uint64_t hot_keys_bytes;   /* 0: not counted */
    uint32_t hot_keys_save_s;  /* 0: never */
    uint32_t warmup_timeout_s; /* 0: none before a switch */
    uint32_t activate_lag_max_s;
    double activate_rows_loss_max;
    enum hps_config_nan_policy nan_policy;
    enum hps_config_device_loss on_device_loss;
    uint64_t gpu_memory_bytes; /* of each device; 0: 80 % of what is free */
    uint64_t gpu_result_bytes; /* 0: a quarter of reply_bytes_in_flight, 1 GiB at most */
    enum hps_config_lookup_path lookup_path;
    bool async_without_gpu;
    uint32_t insertion_queue_rows;
};

struct hps_config {
    struct hps_option_set set;
    char *file;       /* where it came from, for messages; "--table" when from the command line */
    bool from_tables; /* of --table: what its files have is what is served */
    bool supportlonglong;
    uint32_t key_bytes; /* 8, or 4 when supportlonglong is false */
    struct hps_config_volatile_db volatile_db;
    struct hps_config_persistent_db persistent_db;
    struct hps_config_update_source update_source;
    struct hps_config_model *models;
    size_t n_models;
    struct hps_config_server server;
};

/* Errors of a configuration, and remarks on a good one. Owned by the caller. */
struct hps_note {
    bool error;   /* the configuration is refused */
    bool warning; /* a likely mistake (misspelt key); else: what becomes of an HPS setting here */
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
void hps_notes_fini(struct hps_notes *notes); /* may be used again */

/* Parse JSON text; // and block comments are allowed. `file` is for messages only.
 *
 * error   INVALID (exit 2): "FILE:LINE: PATH: got ..., expected ...; did you mean ...?"
 *         UNIMPLEMENTED (exit 2): needs a part that this build lacks; NO_MEMORY
 *         *err has the first error, `notes` have up to HPS_NOTES_MAX of them
 * owner   *out_config: the caller, hps_config_free; notes are appended to `notes` (may be NULL)
 */
hps_status hps_config_parse(const char *text, size_t size, const char *file,
                            struct hps_config **out_config, struct hps_notes *notes,
                            struct hps_error *err) HPS_MUST_CHECK;
/* The same from a file of at most 64 MiB; also IO, NOT_FOUND. */
hps_status hps_config_parse_file(const char *path, struct hps_config **out_config,
                                 struct hps_notes *notes, struct hps_error *err) HPS_MUST_CHECK;

/* One entry of models[], the text of a JSON object; `what` it is, for messages. The result has that
 * one model and defaults otherwise. Errors and owners as above. Any thread. */
hps_status hps_config_parse_entry(const char *text, size_t size, const char *what,
                                  struct hps_config **out_config, struct hps_notes *notes,
                                  struct hps_error *err) HPS_MUST_CHECK;
/* The configuration of `--table NAME=PATH ...`: model "default", rocks_db in the state directory,
 * every answer exact, dim from the files. */
hps_status hps_config_for_tables(const char *const *args, size_t n_args,
                                 struct hps_config **out_config, struct hps_error *err)
    HPS_MUST_CHECK;

void hps_config_free(struct hps_config *config); /* NULL is legal */

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

/* Apply the flags (may be NULL), fill in defaults that depend on the machine or on other options,
 * check what options say together. On error the config is only good for hps_config_free; `err` has
 * the first error, `notes` have them all. */
hps_status hps_config_finish(struct hps_config *config, const struct hps_config_flags *flags,
                             struct hps_notes *notes, struct hps_error *err) HPS_MUST_CHECK;

/* Budget of the host map; 0: there is none. After finish. */
uint64_t hps_config_host_bytes(const struct hps_config *config);
/* Whether the model's tables are to be cached whole: `gpucacheper` 1 or more, or a static table. */
bool hps_config_caches_whole(const struct hps_config_model *model);

/* TLS is configured / this listener speaks it (never on Unix sockets). */
bool hps_config_has_tls(const struct hps_config_server *server);
bool hps_config_listener_tls(const struct hps_config_server *server,
                             const struct hps_config_listener *listener);
/* Does http_listen speak TLS? On loopback not, as probes of this machine know nothing of
 * certificates. */
bool hps_config_http_tls(const struct hps_config_server *server);
/* Whether it is said who may administer from other hosts. */
bool hps_config_has_administrators(const struct hps_config_server *server);
/* "unix:...", 127.0.0.0/8, [::1] or localhost. */
bool hps_config_address_is_local(const char *address);

bool hps_option_is_set(const struct hps_option_set *set, enum hps_option_id id);

/* The entry of models[] of that name; NULL: there is none. */
const struct hps_config_model *hps_config_model_find(const struct hps_config *config,
                                                     const char *name);
struct hps_config_policies {
    enum hps_config_miss_policy miss;
    enum hps_config_unknown_key_policy unknown_key;
    double hit_rate_threshold;
};
/* What look-ups of a model get that do not say: what its entry says (NULL: it has none), else the
 * defaults; but the answers of a model without an entry are always exact, and so are those of a
 * model whose caches have every row in HPS, where none is ever missing. */
void hps_config_model_policies(const struct hps_config_model *model,
                               struct hps_config_policies *out_policies);

/* JSON of every option: {"server": {"keys_max": {"value": 2097152, "default": true}, ...}, ...}.
 * Passwords are not printed. Appends to `buf`. */
hps_status hps_config_print_effective(const struct hps_config *config, struct hps_buf *buf)
    HPS_MUST_CHECK;
/* The entry as hps_config_parse_entry reads it, with the options that were given. Appends to `buf`.
 */
hps_status hps_config_print_entry(const struct hps_config_model *model, struct hps_buf *buf)
    HPS_MUST_CHECK;

struct hps_config_change {
    char path[192]; /* "server.keys_max", "models[dlrm].label", "models[dlrm]" (added or removed) */
    char before[96]; /* as printed; cut; "" when it did not exist */
    char after[96];
    bool reloadable; /* else a restart is needed */
    bool kept;       /* an option of models[] that each version stores */
};

/* Calls `fn` for each option that differs and has an effect; both configs finished. Error:
 * NO_MEMORY. */
hps_status hps_config_diff(const struct hps_config *before, const struct hps_config *after,
                           void (*fn)(void *ctx, const struct hps_config_change *change), void *ctx)
    HPS_MUST_CHECK;
/* The same of two entries of models[]; paths are names of options. */
hps_status hps_config_diff_entry(const struct hps_config_model *before,
                                 const struct hps_config_model *after,
                                 void (*fn)(void *ctx, const struct hps_config_change *change),
                                 void *ctx) HPS_MUST_CHECK;
/* Give `running` the values of `next` where hps_config_diff calls the difference reloadable, and
 * `next` those of `running`: done twice, it is undone. Models and their entries stay where they
 * are in memory. */
void hps_config_exchange(struct hps_config *running, struct hps_config *next);

/* Put the part of docs/config.md that is made from the table of options. */
void hps_config_doc(struct hps_buf *buf);

#endif

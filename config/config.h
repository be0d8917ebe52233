/* SPDX-License-Identifier: Apache-2.0
 *
 * The configuration of a daemon as one plain struct. A ps.json of HPS is read unchanged. An option
 * that only hpsd has is in the block `server`, or is an additional key in one of the blocks of HPS.
 * options.def lists all options.
 *
 * Create a configuration with hps_config_parse_file, hps_config_parse or hps_config_for_tables,
 * then call hps_config_finish. It applies the flags of the command line, sets defaults that depend
 * on the machine, and checks options against each other. In the comments, "after finish" means
 * after this call. Functions run on the main thread, unless their comments say otherwise. Other
 * threads may read a finished struct while the main thread does not change it.
 */
#ifndef HPS_CONFIG_CONFIG_H
#define HPS_CONFIG_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"

/* One enum for each list of enums.def, for example
 * enum hps_config_volatile_type { HPS_CONFIG_VOLATILE_DISABLED = 0, ... } */
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

/* One constant for each option, for example HPS_OPTION_server_keys_max. */
enum hps_option_id {
#define OPTION(section, name, field, type, values, unit, def, min, max, flags, help) \
    HPS_OPTION_##section##_##name,
#include "config/options.def"
#undef OPTION
    HPS_OPTION_COUNT
};

/* The options that the file or a flag has set. All other options have their defaults. */
struct hps_option_set {
    uint64_t bits[(HPS_OPTION_COUNT + 63) / 64];
};

struct hps_strings {
    char **items;
    size_t n;
};

void hps_strings_fini(struct hps_strings *strings); /* no effect if all zero; empty afterwards */
/* Append a copy of `text`. NO_MEMORY. */
hps_status hps_strings_append(struct hps_strings *strings, const char *text) HPS_MUST_CHECK;
/* Copy all strings; the caller calls hps_strings_fini on the copy. NO_MEMORY. */
hps_status hps_strings_copy(const struct hps_strings *strings, struct hps_strings *out_copy)
    HPS_MUST_CHECK;

struct hps_config_listener {
    char *address;  /* "host:port", "[v6]:port" or "unix:PATH"; NULL or "": no listener */
    bool plaintext; /* does not use TLS, even beyond loopback */
};

struct hps_config_listeners {
    struct hps_config_listener *items;
    size_t n;
};

/* Each struct hps_config_* below has one field for each option of its block; see options.def. */
struct hps_config_volatile_db {
    struct hps_option_set set;
    enum hps_config_volatile_type type;
    uint64_t memory_bytes; /* after finish never 0 */
    uint64_t local_cache_bytes;
    char *address;
    char *user_name;
    char *password;
    uint32_t num_partitions; /* after finish never 0 */
    uint32_t num_node_connections;
    uint64_t max_batch_size;
    bool enable_tls;
    char *tls_ca_certificate;             /* after finish "": the system's CAs */
    char *tls_client_certificate;         /* after finish "": no client certificate */
    char *tls_client_key;                 /* after finish "": tls_client_certificate has the key */
    char *tls_server_name_identification; /* after finish "": the host name of the server */
    uint64_t overflow_margin;
    enum hps_config_overflow_policy overflow_policy;
    double overflow_resolution_target;
    double initial_cache_rate;
    bool cache_missed_embeddings;
    struct hps_strings update_filters;
    uint32_t redis_lease_s;
    uint32_t redis_ttl_s; /* 0: rows do not expire */
    uint32_t redis_connect_timeout_ms;
    uint32_t redis_command_timeout_ms;
    bool redis_replica_reads;
};

struct hps_config_persistent_db {
    struct hps_option_set set;
    enum hps_config_persistent_type type;
    char *path; /* the database is in <path>/hpsd; after finish not "" if type is rocks_db */
    uint32_t num_threads;
    bool read_only;
    enum hps_config_read_mode read_mode;
    enum hps_config_base_file base_file;
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
    char *group; /* after finish not "" unless type is null */
    char *dead_letter_topic;
    struct hps_strings properties; /* each is "NAME=VALUE"; finish checks this */
};

struct hps_config_table {
    char *name;
    char *path;                /* as in the file; relative to the working directory */
    uint32_t dim;              /* values per row; 0: the dim of the model's files */
    float *default_values;     /* [n_default_values] the default row */
    uint32_t n_default_values; /* dim, or 1 if all values of the row are the same */
    uint32_t row_dtype;        /* number of enum hps_dtype; 0: the type of the model's files */
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
    char *lineage;                           /* "": lineage of the model's newest version */
    uint64_t version;                        /* 0: the highest number + 1 */
    char *label;                             /* "": no label */
    enum hps_config_miss_policy miss_policy; /* numbers of hps.v1.MissPolicy */
    enum hps_config_unknown_key_policy unknown_key_policy; /* numbers of hps.v1.UnknownKeyPolicy */
};

struct hps_config_tls {
    struct hps_option_set set;
    char *certificate; /* "": no TLS */
    char *key;         /* not "" if `certificate` is not "" */
    char *client_ca;   /* "": no client certificates are requested */
    char *client_crl;  /* "": revocation is not checked */
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
    char *access;           /* "": no role file */
    char *admin_token_file; /* "": no admin token */
    char *audit_log;        /* "": no copy of the audit lines */
    uint64_t request_bytes_max;
    bool compression; /* accept compressed requests */
    uint64_t reply_bytes_max;
    uint32_t keys_max;
    uint32_t tables_max;
    uint64_t reply_bytes_in_flight;   /* after finish never 0 */
    uint64_t request_bytes_in_flight; /* after finish never 0 */
    uint64_t connection_reply_bytes;
    uint32_t queue_ms_max;
    uint32_t streams_per_connection;
    uint32_t connections_max;
    uint32_t connections_per_peer_max; /* 0: no limit */
    double peer_share;                 /* 0: clients have no shares */
    uint32_t handshake_failures_max;   /* 0: no limit */
    uint32_t handshake_timeout_ms;
    uint32_t http_head_timeout_ms;
    uint32_t reply_stall_timeout_ms;
    uint64_t reply_bytes_per_s_min;   /* 0: no minimum */
    uint64_t request_bytes_per_s_min; /* 0: no minimum */
    uint32_t idle_timeout_ms;         /* 0: no limit */
    uint32_t connection_age_s;        /* 0: no limit */
    double connection_age_jitter;
    uint32_t keepalive_ms; /* 0: no PING is sent */
    uint32_t keepalive_timeout_ms;
    uint32_t drain_delay_ms;
    uint32_t drain_timeout_ms;
    uint32_t slow_request_ms;
    uint32_t loop_threads;                 /* after finish never 0 */
    uint32_t worker_threads;               /* after finish never 0 */
    uint32_t io_threads;                   /* after finish never 0 */
    enum hps_config_log_level log_level;   /* same numbers as enum hps_log_level */
    enum hps_config_log_format log_format; /* same numbers as enum hps_log_format */
    uint32_t keep_versions;
    struct hps_strings model_roots;  /* after finish never empty */
    struct hps_strings export_roots; /* empty: no exports */
    uint64_t disk_free_min_bytes;    /* 0: max(2 GiB, 5 % of the file system) */
    uint64_t load_memory_bytes;
    bool host_dense;
    uint64_t hot_keys_bytes;   /* 0: hot keys are not counted */
    uint32_t hot_keys_save_s;  /* 0: hot keys are not saved */
    uint32_t warmup_timeout_s; /* 0: no warm-up before a switch */
    uint32_t activate_lag_max_s;
    double activate_rows_loss_max;
    enum hps_config_nan_policy nan_policy;
    enum hps_config_device_loss on_device_loss;
    uint64_t gpu_memory_bytes; /* per device; 0: 80 % of the memory free at start */
    uint64_t gpu_result_bytes; /* 0: a quarter of reply_bytes_in_flight, at most 1 GiB */
    enum hps_config_lookup_path lookup_path;
    bool async_without_gpu;
    uint32_t insertion_queue_rows;
};

struct hps_config {
    struct hps_option_set set;
    char *file;       /* file name for messages; "--table" for hps_config_for_tables */
    bool from_tables; /* made by hps_config_for_tables */
    bool supportlonglong;
    uint32_t key_bytes; /* 8, or 4 if supportlonglong is false */
    struct hps_config_volatile_db volatile_db;
    struct hps_config_persistent_db persistent_db;
    struct hps_config_update_source update_source;
    struct hps_config_model *models;
    size_t n_models;
    struct hps_config_server server;
};

/* A message about a configuration: an error, a warning, or, if both flags are false, information on
 * how hpsd treats a setting of HPS. */
/* Kinds of notes, in the order in which --check prints them. */
enum hps_note_kind {
    HPS_NOTE_ERROR,     /* the configuration is rejected */
    HPS_NOTE_MISSING,   /* something that a file of HPS lacks, and its effect */
    HPS_NOTE_DIFFERENT, /* an option that has another effect than in HPS */
    HPS_NOTE_IGNORED,   /* options of HPS without effect; a warning in the log */
    HPS_NOTE_WARNING,   /* a likely mistake, for example a misspelt key */
};

struct hps_note {
    enum hps_note_kind kind;
    char *text;
};

/* A list of notes. The caller calls hps_notes_init before its first use and hps_notes_fini at the
 * end. */
struct hps_notes {
    struct hps_note *items;
    size_t n;
    size_t n_errors; /* number of errors in `items` */
    /* Number of notes that were not stored. `items` has at most HPS_NOTES_MAX errors and
     * HPS_NOTES_MAX other notes. */
    size_t n_dropped;
};

enum { HPS_NOTES_MAX = 100, HPS_NOTE_BYTES_MAX = 1024 };

void hps_notes_init(struct hps_notes *notes);
void hps_notes_fini(struct hps_notes *notes); /* frees the notes; `notes` may be used again */
/* Whether the log has the note as a warning. False for errors. */
bool hps_note_is_warning(const struct hps_note *note);

/* Parse a configuration file that is in memory. // and block comments are allowed. `file` is the
 * file name for messages. Notes and errors are appended to `notes`, which may be NULL. *err is the
 * first error.
 *
 * error   INVALID: "FILE:LINE: PATH: got ..., expected ...; did you mean ...?"; UNIMPLEMENTED: an
 *         option needs a part that this build lacks; NO_MEMORY. After INVALID and UNIMPLEMENTED,
 *         hpsd exits with code 2
 * owner   *out_config: the caller, hps_config_free
 */
hps_status hps_config_parse(const char *text, size_t size, const char *file,
                            struct hps_config **out_config, struct hps_notes *notes,
                            struct hps_error *err) HPS_MUST_CHECK;
/* Like hps_config_parse, from a file of at most 64 MiB. Further errors: IO, NOT_FOUND,
 * PERMISSION. */
hps_status hps_config_parse_file(const char *path, struct hps_config **out_config,
                                 struct hps_notes *notes, struct hps_error *err) HPS_MUST_CHECK;

/* Parse one entry of models[], given as a JSON object; `what` describes it in messages. The result
 * has only this model, and the defaults of all other options. Errors and owner: see
 * hps_config_parse. Any thread. */
hps_status hps_config_parse_entry(const char *text, size_t size, const char *what,
                                  struct hps_config **out_config, struct hps_notes *notes,
                                  struct hps_error *err) HPS_MUST_CHECK;
/* Make the configuration for `--table NAME=PATH ...`, where args[i] is "NAME=PATH". It has one
 * model named "default", rocks_db in the state directory, exact replies, and dims from the
 * files. */
hps_status hps_config_for_tables(const char *const *args, size_t n_args,
                                 struct hps_config **out_config, struct hps_error *err)
    HPS_MUST_CHECK;

void hps_config_free(struct hps_config *config); /* no effect if NULL */

/* Flags of the command line, borrowed during hps_config_finish. A flag that is not given is NULL; a
 * list that is not given has n 0. */
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
    /* The configuration is only checked: server.state_dir may be missing, and options that depend
     * on it then stay empty. `notes` gets more notes for users of HPS. */
    bool check;
};

/* Apply the flags (may be NULL), set defaults that depend on the machine or on other options, and
 * check options against each other. *err is the first error. `notes` gets the first error of each
 * check, and all warnings and other notes. After an error, `config` may only be passed to
 * hps_config_free. */
hps_status hps_config_finish(struct hps_config *config, const struct hps_config_flags *flags,
                             struct hps_notes *notes, struct hps_error *err) HPS_MUST_CHECK;

/* Memory limit of the host map in bytes; 0: there is no host map. `config` must be finished. */
uint64_t hps_config_host_bytes(const struct hps_config *config);
/* The filters of both stores together: an update that one store accepts goes to all of them.
 * The caller frees the array with hps_free; its strings belong to `config`. NULL: no memory. */
const char **hps_config_update_filters(const struct hps_config *config, uint32_t *out_n);
/* Whether the embedding cache holds whole tables of the model: `gpucacheper` is 1 or more, or the
 * cache is static. */
bool hps_config_caches_whole(const struct hps_config_model *model);

/* Whether the server has a TLS certificate. */
bool hps_config_has_tls(const struct hps_config_server *server);
/* Whether a listener uses TLS. Unix sockets never do. */
bool hps_config_listener_tls(const struct hps_config_server *server,
                             const struct hps_config_listener *listener);
/* Whether http_listen uses TLS. On loopback it never does, because local probes have no
 * certificates. */
bool hps_config_http_tls(const struct hps_config_server *server);
/* Whether remote identities can be administrators: `access` or `admin_token_file` is set. */
bool hps_config_has_administrators(const struct hps_config_server *server);
/* Whether the address is "unix:...", 127.0.0.0/8, [::1] or localhost. */
bool hps_config_address_is_local(const char *address);

bool hps_option_is_set(const struct hps_option_set *set, enum hps_option_id id);

/* The entry of models[] with this name; NULL if there is no such entry. */
const struct hps_config_model *hps_config_model_find(const struct hps_config *config,
                                                     const char *name);
struct hps_config_policies {
    enum hps_config_miss_policy miss;
    enum hps_config_unknown_key_policy unknown_key;
    double hit_rate_threshold;
};
/* Get the policies for requests that set none: the values in the entry `model`, or if `model` is
 * NULL the defaults of the options. The hit rate threshold is 1.0 if `model` is NULL, or if its
 * cache is static or UVM. With a threshold of 1.0, THRESHOLD lookups are exact. HPS behaves the
 * same, because its static and UVM caches hold every row. */
void hps_config_model_policies(const struct hps_config_model *model,
                               struct hps_config_policies *out_policies);

/* Append all options as JSON:
 * {"server": {"keys_max": {"value": 2097152, "default": true}, ...}, ...}
 * Secret values, such as the password, are replaced by asterisks. */
hps_status hps_config_print_effective(const struct hps_config *config, struct hps_buf *buf)
    HPS_MUST_CHECK;
/* Append an entry of models[] as JSON, in the form that hps_config_parse_entry reads. The entry has
 * only the options that were set in the file. */
hps_status hps_config_print_entry(const struct hps_config_model *model, struct hps_buf *buf)
    HPS_MUST_CHECK;

/* A difference between two configurations. */
struct hps_config_change {
    char path[192]; /* "server.keys_max", "models[dlrm].label", "models[dlrm]" (added or removed) */
    char before[96]; /* old value as printed, truncated; "": not set */
    char after[96];  /* new value as printed, truncated; "": not set */
    /* If neither `reloadable` nor `kept` is set, the new value takes effect at the next start. */
    bool reloadable; /* a reload applies the new value */
    bool kept;       /* each version keeps the value with which it was loaded */
};

/* Call `fn` for each option that has different effective values. Both configurations must be
 * finished.
 *
 * error   NO_MEMORY; EXHAUSTED: a value is longer than 16 MiB
 */
hps_status hps_config_diff(const struct hps_config *before, const struct hps_config *after,
                           void (*fn)(void *ctx, const struct hps_config_change *change), void *ctx)
    HPS_MUST_CHECK;
/* Like hps_config_diff, for two entries of models[]. The path of a change is the option's name. */
hps_status hps_config_diff_entry(const struct hps_config_model *before,
                                 const struct hps_config_model *after,
                                 void (*fn)(void *ctx, const struct hps_config_change *change),
                                 void *ctx) HPS_MUST_CHECK;
/* Swap, between `running` and `next`, the values of all options that hps_config_diff reports as
 * reloadable. A second call restores the old values. Pointers to entries of models[] stay valid. */
void hps_config_exchange(struct hps_config *running, struct hps_config *next);

/* Append the part of docs/config.md that is generated from the table of options. */
void hps_config_doc(struct hps_buf *buf);

#endif

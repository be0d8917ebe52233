/* SPDX-License-Identifier: Apache-2.0
 *
 * The catalog of models and versions. It loads, switches, rolls back and unloads versions at run
 * time. Records in the persistent store let a restart serve the same versions again.
 *
 * Any thread. Calls that "may block" do I/O and must not run on a loop thread.
 */
#ifndef HPS_SERVER_CATALOG_CATALOG_H
#define HPS_SERVER_CATALOG_CATALOG_H

#include "cache/lookup/insertion.h"
#include "cache/version/models.h"
#include "config/config.h"
#include "server/catalog/devices.h"
#include "server/catalog/version_diff.h"
#include "server/load/loader.h"
#include "server/update/updates.h"

struct hps_catalog;

struct hps_catalog_options {
    /* The pointers are borrowed until hps_catalog_close. */
    struct hps_models *models; /* the catalog publishes its versions here */
    /* Reloadable options are read at the open and in hps_catalog_reconfigure. The policies of
     * models[] are also read when a version is added. */
    const struct hps_config *config;
    struct hps_metrics *metrics;
    struct hps_insertion *insertion; /* NULL: no asynchronous insertion */
    struct hps_devices *devices;     /* NULL: no embedding caches */
    struct hps_updater *updater;     /* hps_catalog_stop stops it; NULL: versions take no updates */
    /* The catalog sets env.memory_bytes and env.nan_allowed from `config`. */
    struct hps_load_env env;
};

/* Open the catalog. If there is a persistent store, serve the versions that have a record in it,
 * and remove the rows of all other versions. May block. The caller closes *out_catalog with
 * hps_catalog_close.
 * error   DATA_LOSS: a record cannot be read; NO_MEMORY; errors of the store */
hps_status hps_catalog_open(const struct hps_catalog_options *options,
                            struct hps_catalog **out_catalog, struct hps_error *err) HPS_MUST_CHECK;
/* Queue a load of each model of models[] that has no version. The loader thread opens the files,
 * and this call does not wait for it. A failed load is logged, and the server stays unready.
 *
 * If hpsd was started with --table and its files have changed since they were loaded, also queue a
 * load of these files as the next version. The server is unready until that version is active. If
 * the load fails, the failure is logged and the stored version is served. */
void hps_catalog_ensure_models(struct hps_catalog *catalog);
/* Do hps_catalog_ensure_models only for the models whose last load failed. */
void hps_catalog_retry_models(struct hps_catalog *catalog);
/* Apply the reloadable options of `config`: the policies of models, the rate limit of updates, and
 * limits and roots for later loads and switches. model_roots: a copy of server.model_roots; the
 * catalog takes its contents. `config` must have the same models as hps_catalog_options.config.
 * Main thread. */
void hps_catalog_reconfigure(struct hps_catalog *catalog, const struct hps_config *config,
                             struct hps_strings *model_roots);
/* Call it after a device was lost. Versions have then lost their embedding caches on that device.
 * Policies depend on the caches, so this sets the policies of all versions again. */
void hps_catalog_device_lost(struct hps_catalog *catalog);
/* Do periodic work: log the progress of loads, queue retries, and save the hot keys. Main thread,
 * at least once a second. */
void hps_catalog_tick(struct hps_catalog *catalog);
/* Cancel all loads, end the catalog's threads and save the hot keys. The `done` callbacks of
 * pending unloads and switches get UNAVAILABLE. Afterwards the caller may use only
 * hps_catalog_close and the functions under "views" below. May block. No effect if NULL. */
void hps_catalog_stop(struct hps_catalog *catalog);
/* Do hps_catalog_stop, remove unloaded versions, close the spaces of all others, and free the
 * catalog. No version may be pinned. May block. No effect if NULL. */
void hps_catalog_close(struct hps_catalog *catalog);

/* ---- loads ----------------------------------------------------------------------------------- */

/* The files are named by exactly one of `directory`, `tables` and `config`. Pointers are borrowed
 * for the call. */
struct hps_load_request {
    const char *model;
    const char *directory;                 /* a directory with all tables; "" or NULL: not used */
    const struct hps_source_named *tables; /* [n_tables] in the order of the model */
    size_t n_tables;                       /* 0: `tables` is not used */
    /* A models[] entry as JSON, which names the tables; its `model` is ignored. "" or NULL: not
     * used. The fields version, label, lineage and row_dtype of this struct override it. */
    const char *config;
    /* The models[] entry of the load, and the notes of parsing that entry. The catalog sets these
     * two fields; callers set them to NULL. */
    const struct hps_config_model *entry;
    const struct hps_notes *entry_notes;
    /* Number of the new version. 0: the catalog chooses the number. It takes the number in `config`
     * if `config` has one that no version of the model uses. Otherwise it takes the highest number
     * of the model's versions + 1. */
    int64_t version;
    const char *label; /* "" or NULL: the label in `config`, else no label */
    /* "" or NULL: the lineage comes from the first of these that has one: `config`, manifest.json,
     * the newest version of the model. If none has, it is the number of the new version. */
    const char *lineage;
    /* Type of the stored rows of all tables. If it is not given, each table has the type in
     * `tables`, else the type in its models[] entry, else the type of its files. The models[] entry
     * is `config` or, without it, the entry of the model in the server's configuration. */
    struct hps_row_wish row_dtype;
    bool activate;   /* implied if the model has no active version */
    bool awaited;    /* load of changed --table files: the server is unready until it ends */
    bool only_first; /* fail with EXISTS if the model has a version or is loading one */
    bool force;      /* activate the version even if it differs too much from the active one */
    bool replace;    /* after the load, unload other versions that were never active */
};

/* Numbers of the versions that a switch, load or unload has unloaded. Versions beyond the maximum
 * are unloaded, but not listed. */
enum { HPS_VERSIONS_GONE_MAX = 64 };
struct hps_versions_gone {
    int64_t numbers[HPS_VERSIONS_GONE_MAX]; /* [n] */
    uint32_t n;
};

/* Result of a switch, or of a load that may include one. */
struct hps_switched {
    int64_t version;  /* the version that was activated; 0: none */
    int64_t previous; /* the version that was active before; 0: none */
    /* Duration of the switch; the time to write its record is not included. */
    uint64_t pause_us;
    struct hps_version_diff diff;  /* from `previous` to the new version */
    struct hps_versions_gone gone; /* versions that were unloaded */
};

struct hps_load; /* a load; reference-counted, may outlive its entry in the catalog */

struct hps_load_state {
    int64_t version;
    const char *stage; /* one of the texts of hps_load_progress.stage */
    char table[128];   /* the table that is being loaded */
    /* remaining_ms: an estimate; 0: unknown */
    uint64_t rows_done, rows_total, bytes_done, bytes_total, remaining_ms;
    uint64_t duplicate_keys; /* set after the rows are written */
    uint64_t n_rows;         /* rows of the version, without duplicates; final once `done` */
    /* How many of n_rows the host map dropped because of overflow_margin. No store has them. */
    uint64_t n_rows_dropped;
    /* Before `done`: versions that the load is expected to unload. After it: versions that the load
     * has unloaded. */
    struct hps_versions_gone going;
    bool done;
    bool activated;
    struct hps_error error; /* status OK unless the load failed */
};

enum { HPS_ENTRY_BYTES_MAX = 1 << 20 }; /* limit on the bytes of hps_load_request.config */

/* Check the request, open its files, and queue the load. May block. The caller gets a reference to
 * *out_load, and releases it with hps_load_unref.
 * error   INVALID: a field or a file is wrong; NOT_FOUND: a file does not exist; EXISTS: the model
 *         has that version, or `only_first` forbids the load; RANGE: the highest version number has
 *         no successor; PERMISSION: a file is outside model_roots, or not readable; EXHAUSTED: too
 *         many files are open; PRECONDITION: `activate` is set without `force`, and the version
 *         differs too much from the active one; UNAVAILABLE: the server is draining; NO_MEMORY
 */
hps_status hps_catalog_load(struct hps_catalog *catalog, const struct hps_load_request *request,
                            struct hps_load **out_load, struct hps_error *err) HPS_MUST_CHECK;
/* Queue a load of the model from its entry in models[]. The load also activates the new version.
 * The version gets the number in the entry or, if that number is used already, the next free
 * number. If a resident version already equals the one that the load would give, this call
 * activates the resident version instead, and sets *out_load to NULL. May block. The caller owns a
 * reference to *out_load.
 * error   as hps_catalog_load; also NOT_FOUND: models[] has no such model */
hps_status hps_catalog_load_configured(struct hps_catalog *catalog, const char *model,
                                       struct hps_load **out_load, struct hps_error *err)
    HPS_MUST_CHECK;
/* A dry run of hps_catalog_load: compute what the load would need (*out_plan) and change
 * (*out_effect). May block. *out_version has the tables of the version; *out_notes has the notes of
 * hps_load_notes. A version that differs too much from the active one is not an error here:
 * out_effect->diff has the difference. The caller frees *out_version (hps_version_free),
 * out_effect->diff (hps_version_diff_free) and *out_notes (hps_strings_fini).
 * error   as hps_catalog_load */
hps_status hps_catalog_load_plan(struct hps_catalog *catalog,
                                 const struct hps_load_request *request,
                                 struct hps_load_plan *out_plan, struct hps_version **out_version,
                                 struct hps_switched *out_effect, struct hps_strings *out_notes,
                                 struct hps_error *err) HPS_MUST_CHECK;
void hps_load_state_get(struct hps_load *load, struct hps_load_state *out_state);
/* The result of a load that is `done`. The load owns the result and its `diff`; both are valid
 * until the caller's hps_load_unref. */
const struct hps_switched *hps_load_outcome(const struct hps_load *load);
/* How a load that is `done` converted the rows of each table. Element i is about the table
 * hps_load_table_name(load, i). The array is valid until the caller's hps_load_unref. shape:
 * [*out_n] */
const struct hps_load_conversion *hps_load_conversions(const struct hps_load *load,
                                                       uint32_t *out_n);
/* Notes for the operator about a load, one sentence each: the order of the tables, where updates
 * begin, an inherited lineage, options that are ignored, and a warning if a restart will not keep
 * the version. Valid until the caller's hps_load_unref. */
const struct hps_strings *hps_load_notes(const struct hps_load *load);
/* The name of the load's table with the index `table`. It is valid until the caller's
 * hps_load_unref. */
const char *hps_load_table_name(const struct hps_load *load, uint32_t table);
/* Release the caller's reference; the load itself continues. No effect if NULL. */
void hps_load_unref(struct hps_load *load);

/* ---- versions -------------------------------------------------------------------------------- */

/* Activate a version at once, without a warm-up. May block. The caller frees out_switched->diff.
 * error   NOT_FOUND: no such model or version; PRECONDITION: the version is loading or unloading,
 *         or it differs too much from the active one and `force` is false
 */
hps_status hps_catalog_activate(struct hps_catalog *catalog, const char *model, int64_t version,
                                bool force, struct hps_switched *out_switched,
                                struct hps_error *err) HPS_MUST_CHECK;
/* Activate the version that was active before the last switch, however much it differs. A second
 * rollback in a row is rejected. May block. The caller frees out_switched->diff.
 * error   NOT_FOUND: no such model; PRECONDITION: there is no version to roll back to */
hps_status hps_catalog_rollback(struct hps_catalog *catalog, const char *model,
                                struct hps_switched *out_switched, struct hps_error *err)
    HPS_MUST_CHECK;
/* A pending switch. The caller owns the struct, and must not free it before `done` was called. */
struct hps_switch {
    /* Called once, with status OK or the error. It may run on the caller's thread before
     * hps_catalog_switch returns, or later on the catalog's switch thread. Must not block. */
    void (*done)(struct hps_switch *waiter, const struct hps_error *error);
    bool force; /* as in hps_catalog_activate */
    /* Set before `done` is called with OK; the owner frees switched.diff. */
    struct hps_switched switched;
};

/* Activate the version as hps_catalog_activate does, after a warm-up of at most
 * server.warmup_timeout_s. The warm-up and the activation run on the catalog's switch thread, and
 * the call does not wait for them. If a warm-up would have no effect, the call activates the
 * version before it returns, and may block while it writes records.
 * error   passed to waiter->done: as hps_catalog_activate; also PRECONDITION: the version lags too
 *         far behind its updates; UNAVAILABLE: the server stops */
void hps_catalog_switch(struct hps_catalog *catalog, const char *model, int64_t version,
                        struct hps_switch *waiter);
/* A pending unload. The caller owns the struct, and must not free it before `done` was called. */
struct hps_unload {
    /* Called once, with status OK or the error. It may run on the caller's thread before
     * hps_catalog_unload returns, or later: on a thread of the catalog, on the thread of another
     * caller, or in hps_catalog_stop. Must not block. */
    void (*done)(struct hps_unload *unload, const struct hps_error *error);
};

/* Unload a version. Once this returns OK, no new request gets the version, not even after a
 * restart. When no request uses the version any more, the catalog removes the version's rows and
 * then calls unload->done. `unload` may be NULL. May block.
 * error   NOT_FOUND: no such model or version; PRECONDITION: the version is loading, already
 *         unloading, or active while the model has other versions; errors of the store. After an
 *         error unload->done is not called.
 */
hps_status hps_catalog_unload(struct hps_catalog *catalog, const char *model, int64_t version,
                              struct hps_unload *unload, struct hps_error *err) HPS_MUST_CHECK;

/* Unload all versions of a model, the active one last, each as hps_catalog_unload does. The caller
 * is not notified when their rows are removed. *out_gone has the versions that were unloaded, also
 * after an error. May block.
 * error   NOT_FOUND: the model has no resident version; PRECONDITION: a version is loading, which
 *         would serve the model again
 */
hps_status hps_catalog_unload_model(struct hps_catalog *catalog, const char *model,
                                    struct hps_versions_gone *out_gone, struct hps_error *err)
    HPS_MUST_CHECK;

/* ---- views ----------------------------------------------------------------------------------- */

/* A version as views show it. Pointers are valid during the callback. */
struct hps_version_view {
    const char *model;
    int64_t active_version; /* the model's active version; 0: none */
    const char *state;      /* "loading", "resident", "active", "unloading" */
    const struct hps_version *version;
    /* Rows of the version, and the bytes that it uses in each store. */
    uint64_t n_rows, host_bytes, shared_bytes, persistent_bytes;
    bool rows_estimated; /* n_rows is an estimate, because updates changed the version */
    /* Rows that the host map dropped because of overflow_margin, and that no store has. */
    uint64_t n_rows_dropped;
    struct hps_gpu_space *gpu; /* NULL: no embedding cache */
    /* Rows and bytes in the embedding caches of the version. */
    uint64_t gpu_rows, gpu_bytes;
    const struct hps_embed_range_usage *gpu_usages; /* [n_tables]; NULL if `gpu` is NULL */
    /* The reason why the version, or some of its tables, have no embedding cache although the model
     * is configured for it. Otherwise "". */
    char gpu_note[64];
    double load_ratio; /* share of the load that is done, 0 to 1; 1 after the load */
    /* n_keys_hot: hot keys of the running warm-up; n_keys_warm: how many of them it has tried. Both
     * are 0 if no warm-up is running. */
    uint64_t n_keys_warm, n_keys_hot;
};

/* Call `fn` for every version, in the order of model names and version numbers. `fn` runs under the
 * catalog's lock: it must copy what it needs, and must not call the catalog. */
void hps_catalog_each(struct hps_catalog *catalog,
                      void (*fn)(void *ctx, const struct hps_version_view *view), void *ctx);
enum { HPS_MODEL_WHY_BYTES = 640 };

/* A model without a version that can serve. */
struct hps_unserved_view {
    const char *model;
    const char *state; /* "loading", "failed", "absent" */
    const char *why;   /* one sentence that names the model, with the progress of a load */
};

/* Call `fn` for each model without a version that can serve, in the order of names. The rules for
 * `fn` in hps_catalog_each apply. */
void hps_catalog_each_unserved(struct hps_catalog *catalog,
                               void (*fn)(void *ctx, const struct hps_unserved_view *view),
                               void *ctx);
/* Whether the catalog is ready. It is ready if all of these are true:
 * - Every model of models[] has an active version, and no load of its changed files is pending.
 * - No active version has lost rows whose only copy was in a shared store.
 * - If a shared store has the only copy of the rows, each hash slot has a reachable server.
 * If not ready, calls `fn` (may be NULL) with each reason; the rules for `fn` in hps_catalog_each
 * apply. For the readiness of the server use server/catalog/readiness.h. */
bool hps_catalog_ready(struct hps_catalog *catalog, void (*fn)(void *ctx, const char *reason),
                       void *ctx);
/* Call `fn` with one sentence for each of these:
 * - a model whose active version differs from the model's models[] entry
 * - a model whose models[] entry cannot be loaded any more
 * - a version with a label that a load would now reject
 * The rules for `fn` in hps_catalog_each apply. */
void hps_catalog_notes(struct hps_catalog *catalog, void (*fn)(void *ctx, const char *note),
                       void *ctx);
/* Returns the number of models with drift. A model has drift in two cases. First, its models[]
 * entry, the files of the entry or supportlonglong changed after the active version was loaded.
 * Second, the entry cannot be loaded any more. Calls `fn` (may be NULL) with the name of each such
 * model. The rules for `fn` in hps_catalog_each apply. */
unsigned hps_catalog_drift(struct hps_catalog *catalog, void (*fn)(void *ctx, const char *model),
                           void *ctx);
/* The stores and limits that loads use. A reload may change memory_bytes and nan_allowed at any
 * time. */
const struct hps_load_env *hps_catalog_env(const struct hps_catalog *catalog);
/* Sums over all versions of all models. */
struct hps_catalog_totals {
    uint64_t host_rows, host_rows_dropped, host_bytes, shared_rows, shared_bytes, persistent_rows,
        persistent_bytes;
    bool persistent_estimated; /* persistent_rows is an estimate */
    unsigned n_loading;        /* versions that are loading */
};
void hps_catalog_totals_get(struct hps_catalog *catalog, struct hps_catalog_totals *out_totals);

#endif

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
    struct hps_models *models; /* all borrowed */
    /* After the open the catalog reads reloadable options in hps_catalog_reconfigure only, except
     * the policies of models[]: it also reads those when a version is added. */
    const struct hps_config *config;
    struct hps_metrics *metrics;
    struct hps_insertion *insertion; /* may be NULL */
    struct hps_devices *devices;     /* NULL: no embedding caches */
    struct hps_updater *updater;     /* NULL: versions take no updates; hps_catalog_stop stops it */
    struct hps_load_env env;         /* memory_bytes and nan_allowed are set from `config` */
};

/* Open the catalog: serve the versions of the persistent store again, and remove rows that no
 * record names. May block.
 * error   DATA_LOSS: a record cannot be read; errors of the store */
hps_status hps_catalog_open(const struct hps_catalog_options *options,
                            struct hps_catalog **out_catalog, struct hps_error *err) HPS_MUST_CHECK;
/* Begin to load each model of models[] that has no version. A failure is logged, and the server
 * stays unready. Does not wait: the loader thread opens the files.
 *
 * With --table, also load files that have changed since they were loaded, as the next version, and
 * activate it. The server is unready until then. If that load fails, the failure is logged and the
 * stored version is served. */
void hps_catalog_ensure_models(struct hps_catalog *catalog);
/* As hps_catalog_ensure_models, only for models whose last load failed. */
void hps_catalog_retry_models(struct hps_catalog *catalog);
/* Apply the reloadable options of `config`: the policies of models, the rate limit of updates, and
 * limits and roots for later loads and switches. takes the contents of `model_roots`, a copy of the
 * configuration's. Main thread. `config` must have the same models as the options. */
void hps_catalog_reconfigure(struct hps_catalog *catalog, const struct hps_config *config,
                             struct hps_strings *model_roots);
/* A device was lost: set the policies of its versions again, because they now lack embedding
 * caches. */
void hps_catalog_device_lost(struct hps_catalog *catalog);
/* Periodic work: progress of loads, retries, writes of the hot keys. Main thread, at least once a
 * second. */
void hps_catalog_tick(struct hps_catalog *catalog);
/* End the catalog's threads and write the hot keys. Loads are cancelled, and pending unloads and
 * switches get UNAVAILABLE. Afterwards only views and hps_catalog_close may be called. May block.
 * No effect if NULL. */
void hps_catalog_stop(struct hps_catalog *catalog);
/* Stop, remove unloaded versions, close every space and free the catalog. No version may be pinned.
 * May block. No effect if NULL. */
void hps_catalog_close(struct hps_catalog *catalog);

/* ---- loads ----------------------------------------------------------------------------------- */

struct hps_load_request {
    const char *model;
    const char *directory;                 /* with all tables; "" or NULL: `tables` has them */
    const struct hps_source_named *tables; /* [n_tables] in the order of the model */
    size_t n_tables;
    /* Instead of directory and tables: an entry of models[] as JSON; its name is ignored. "" or
     * NULL: none. The fields version, label, lineage and row_dtype of this struct override it. */
    const char *config;
    /* set by the catalog, as the next field; callers set NULL */
    const struct hps_config_model *entry;
    const struct hps_notes *entry_notes; /* notes of `config`; NULL: none */
    int64_t version;                     /* 0: the highest number + 1 */
    const char *label;                   /* "" or NULL: none */
    const char *lineage;                 /* "" or NULL: lineage of the newest version */
    /* for all tables; not given: from `tables`, else from models[] */
    struct hps_row_wish row_dtype;
    bool activate;
    bool awaited;    /* the load of a configured model: the server is unready until it ends */
    bool only_first; /* EXISTS if the model has a version or is loading one */
    bool force;      /* activate it even if it differs too much from the active version */
    bool replace;    /* after the load, unload the versions that never were active */
};

/* Versions that a switch or a load unloads. */
enum { HPS_VERSIONS_GONE_MAX = 64 };
struct hps_versions_gone {
    int64_t numbers[HPS_VERSIONS_GONE_MAX];
    uint32_t n;
};

/* Result of a switch, or of a load without one. The caller frees `diff`. */
struct hps_switched {
    int64_t version;              /* 0: none was activated yet */
    int64_t previous;             /* 0: none was active */
    uint64_t pause_us;            /* time that the switch itself took */
    struct hps_version_diff diff; /* from the version that was active before */
    struct hps_versions_gone gone;
};

struct hps_load; /* a load; reference-counted, may outlive its entry in the catalog */

struct hps_load_state {
    int64_t version;
    const char *stage;
    char table[128];
    uint64_t rows_done, rows_total, bytes_done, bytes_total, remaining_ms;
    uint64_t duplicate_keys;
    uint64_t n_rows; /* rows of the version without duplicates, after `done` */
    /* rows of these that overflow_margin dropped although no other store has them */
    uint64_t n_rows_dropped;
    /* Versions that the load will unload, as predicted at its start. After `done`: the versions
     * that it has unloaded. */
    struct hps_versions_gone going;
    bool done;
    bool activated;
    struct hps_error error; /* status OK unless the load failed */
};

enum { HPS_ENTRY_BYTES_MAX = 1 << 20 }; /* limit of hps_load_request.config */

/* Check the request, open its files, and queue the load. May block. out_load: the caller owns a
 * reference.
 * error   INVALID, NOT_FOUND, EXISTS (the version), RANGE (no next number), PERMISSION (outside
 *         model_roots), EXHAUSTED, PRECONDITION (to be activated, but it differs too much from the
 *         active version), UNAVAILABLE (draining)
 */
hps_status hps_catalog_load(struct hps_catalog *catalog, const struct hps_load_request *request,
                            struct hps_load **out_load, struct hps_error *err) HPS_MUST_CHECK;
/* Load the model from its entry in models[], as the next version, and activate it. If a resident
 * version was loaded from the same files, that one is activated and *out_load is NULL. Otherwise as
 * hps_catalog_load.
 * error   also NOT_FOUND: models[] has no such model */
hps_status hps_catalog_load_configured(struct hps_catalog *catalog, const char *model,
                                       struct hps_load **out_load, struct hps_error *err)
    HPS_MUST_CHECK;
/* Dry run: what hps_catalog_load would need and change. May block. The caller frees out_version
 * (its tables; hps_version_free), out_effect->diff, and out_notes (as hps_load_notes;
 * hps_strings_fini). Errors as above, except PRECONDITION: out_effect has the difference. */
hps_status hps_catalog_load_plan(struct hps_catalog *catalog,
                                 const struct hps_load_request *request,
                                 struct hps_load_plan *out_plan, struct hps_version **out_version,
                                 struct hps_switched *out_effect, struct hps_strings *out_notes,
                                 struct hps_error *err) HPS_MUST_CHECK;
void hps_load_state_get(struct hps_load *load, struct hps_load_state *out_state);
/* Result of a load that is `done`. Valid while the caller holds the load. */
const struct hps_switched *hps_load_outcome(const struct hps_load *load);
/* How a load that is `done` converted the rows of its tables. Valid while the caller holds the
 * load. shape: [*out_n]; names by hps_load_table_name */
const struct hps_load_conversion *hps_load_conversions(const struct hps_load *load,
                                                       uint32_t *out_n);
/* One sentence each: order of the tables, start of updates, inherited lineage, ignored options of
 * the entry, whether a restart keeps the version. Valid while the caller holds the load. */
const struct hps_strings *hps_load_notes(const struct hps_load *load);
const char *hps_load_table_name(const struct hps_load *load, uint32_t table);
void hps_load_unref(struct hps_load *load);

/* ---- versions -------------------------------------------------------------------------------- */

/* Activate a version at once, without a warm-up. Both calls may block. out_switched: set on
 * success; the caller frees `diff`.
 * error   NOT_FOUND: no such model or version; PRECONDITION: not possible now, or, without `force`,
 *         the version differs too much from the active one
 */
hps_status hps_catalog_activate(struct hps_catalog *catalog, const char *model, int64_t version,
                                bool force, struct hps_switched *out_switched,
                                struct hps_error *err) HPS_MUST_CHECK;
hps_status hps_catalog_rollback(struct hps_catalog *catalog, const char *model,
                                struct hps_switched *out_switched, struct hps_error *err)
    HPS_MUST_CHECK;
/* A pending switch, owned by its caller. */
struct hps_switch {
    /* Called once, with status OK or the error: on the caller's thread, also before
     * hps_catalog_switch returns, or on the catalog's switch thread. Must not block. */
    void (*done)(struct hps_switch *waiter, const struct hps_error *error);
    bool force;                   /* as in hps_catalog_activate */
    struct hps_switched switched; /* set before `done` with OK; the owner frees its diff */
};

/* hps_catalog_activate after a warm-up, if one is useful, of at most server.warmup_timeout_s. Does
 * not wait for the warm-up. May block for small writes.
 * error   (to `done`) also PRECONDITION: the version has not caught up with its updates */
void hps_catalog_switch(struct hps_catalog *catalog, const char *model, int64_t version,
                        struct hps_switch *waiter);
/* A pending unload, owned by its caller. */
struct hps_unload {
    /* Called once, with status OK or the error: on the caller's thread, also before
     * hps_catalog_unload returns, on another thread that changes versions, or in hps_catalog_stop.
     * Must not block. */
    void (*done)(struct hps_unload *unload, const struct hps_error *error);
};

/* Unload a version. After OK no new request gets it, also after a restart. Its rows are removed
 * when the last request that uses it has ended; then unload->done is called (unload may be NULL).
 * May block.
 * error   NOT_FOUND; PRECONDITION: the version is loading, already unloading, or active while the
 *         model has others; errors of the store. After an error unload->done is not called.
 */
hps_status hps_catalog_unload(struct hps_catalog *catalog, const char *model, int64_t version,
                              struct hps_unload *unload, struct hps_error *err) HPS_MUST_CHECK;

/* Unload all versions of a model, the active one last, each as hps_catalog_unload does. There is no
 * notice when their rows are removed. out_gone is also set on failure. May block.
 * error   NOT_FOUND: no resident version; PRECONDITION: a version is loading, and would be served
 */
hps_status hps_catalog_unload_model(struct hps_catalog *catalog, const char *model,
                                    struct hps_versions_gone *out_gone, struct hps_error *err)
    HPS_MUST_CHECK;

/* ---- views ----------------------------------------------------------------------------------- */

struct hps_version_view {
    const char *model;
    int64_t active_version; /* of the model */
    const char *state;      /* "loading", "resident", "active", "unloading" */
    const struct hps_version *version;
    uint64_t n_rows, host_bytes, shared_bytes, persistent_bytes;
    bool rows_estimated; /* n_rows is an estimate, because of updates */
    /* rows that overflow_margin dropped although no other store has them */
    uint64_t n_rows_dropped;
    struct hps_gpu_space *gpu; /* NULL: no embedding cache */
    uint64_t gpu_rows, gpu_bytes;
    const struct hps_embed_range_usage *gpu_usages; /* [n_tables]; NULL if gpu is */
    /* Why the version lacks an embedding cache, or some tables do, although its model is configured
     * for one; "" otherwise. */
    char gpu_note[64];
    double load_ratio; /* share of the load that is done; 1 after the load */
    /* Hot keys that the current warm-up has tried, and all of them; 0: no warm-up. */
    uint64_t n_keys_warm, n_keys_hot;
};

/* Call `fn` for every version, models by name, versions ascending. `fn` runs under the catalog's
 * lock: it must copy what it needs, and must not call the catalog. */
void hps_catalog_each(struct hps_catalog *catalog,
                      void (*fn)(void *ctx, const struct hps_version_view *view), void *ctx);
enum { HPS_MODEL_WHY_BYTES = 640 };

/* A model without a version that can serve. */
struct hps_unserved_view {
    const char *model;
    const char *state; /* "loading", "failed", "absent" */
    const char *why;   /* one sentence that names the model, with the progress of a load */
};

/* Call `fn` for each such model, by name. The rules of hps_catalog_each apply. */
void hps_catalog_each_unserved(struct hps_catalog *catalog,
                               void (*fn)(void *ctx, const struct hps_unserved_view *view),
                               void *ctx);
/* Whether the catalog is ready: every model of models[] has an active version and no changed files
 * to load; no active version has lost rows of its only copy; and every server of a shared store
 * that has the only copy is reachable. Otherwise calls `fn` (may be NULL) with each reason, as
 * hps_catalog_each. For the readiness of the server use server/catalog/readiness.h. */
bool hps_catalog_ready(struct hps_catalog *catalog, void (*fn)(void *ctx, const char *reason),
                       void *ctx);
/* Call `fn` with a sentence for each model whose active version differs from models[]. Also for
 * each version with a label that a load would reject now. The rules of hps_catalog_each apply. */
void hps_catalog_notes(struct hps_catalog *catalog, void (*fn)(void *ctx, const char *note),
                       void *ctx);
/* Returns the number of models with drift: their models[] entry changed after the active version
 * was loaded, or cannot be loaded any more. Calls `fn` (may be NULL) for each, as hps_catalog_each.
 */
unsigned hps_catalog_drift(struct hps_catalog *catalog, void (*fn)(void *ctx, const char *model),
                           void *ctx);
const struct hps_load_env *hps_catalog_env(const struct hps_catalog *catalog);
struct hps_catalog_totals {
    uint64_t host_rows, host_rows_dropped, host_bytes, shared_rows, shared_bytes, persistent_rows,
        persistent_bytes;
    bool persistent_estimated; /* persistent_rows is an estimate */
    unsigned n_loading;
};
void hps_catalog_totals_get(struct hps_catalog *catalog, struct hps_catalog_totals *out_totals);

#endif

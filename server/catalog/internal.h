/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of the catalog. `lock` protects everything that is not immutable. It is never
 * held while rows or records are read or written, because probes wait for it.
 */
#ifndef HPS_SERVER_CATALOG_INTERNAL_H
#define HPS_SERVER_CATALOG_INTERNAL_H

#include "base/pool.h"
#include "base/worker.h"
#include "cache/version/usage.h"
#include "server/catalog/catalog.h"
#include "server/load/records.h"
#include "server/load/table_order.h"
#include "server/load/warmup.h"

struct catalog_defined; /* a models[] entry as a load would read it: definition.c */

enum entry_state { ENTRY_LOADING, ENTRY_RESIDENT, ENTRY_UNLOADING };

struct catalog_entry {
    struct catalog_entry *next; /* next version of the model, ascending */
    struct catalog_model *model;
    struct hps_version *version;
    struct hps_space *host, *shared, *durable; /* spaces of version->tiers by role; NULL: none */
    struct hps_gpu_space *gpu;                 /* version->gpu; NULL: none, or hidden */
    struct hps_embed_range_usage *gpu_usages;  /* [n_tables] as last counted in metrics */
    struct hps_config *own;                    /* version->config, parsed; NULL: none */
    enum entry_state state;
    uint64_t last_active; /* order of activations: higher is later; 0: never active */
    unsigned n_switching; /* pending switches to it, which wait for a warm-up or for updates */
    struct catalog_entry *next_unloading; /* in catalog->unloading */
    struct hps_unload *unload;            /* UNLOADING: called at the end; NULL: none */
};

struct catalog_model {
    struct catalog_model *next; /* by name */
    char *name;
    int64_t active;      /* 0: none */
    int64_t previous;    /* version that rollback activates; 0: none */
    uint64_t n_switches; /* activations so far */
    struct catalog_entry *entries;
    struct hps_table_order order; /* of its tables in all versions */
    uint32_t n_order_stored;      /* number of tables in the stored record; 0: no order is stored */
    /* the record is of an earlier build, or names versions that no longer exist */
    bool record_outdated;
    const struct hps_config_model *config; /* NULL: not in models[] */
    /* its entry when a start or load last read it; NULL: never read */
    struct catalog_defined *defined;
    struct hps_error unusable; /* why a load of the entry would fail; status OK: it would not */
    unsigned differs; /* bits of definition.c: differences of the active version from the entry */
    bool by_hand;     /* it differs, and the entry was the same when that version was loaded */
    bool drift;       /* it differs because the entry changed since; or the entry is unusable */
    /* Its configured files must be loaded, or are loading; the server is unready until then. */
    bool awaits;
    bool waiting; /* for the loader thread to begin its load */
    /* its last load failed because a store was unreachable: retried if it is configured */
    bool unreached;
    struct hps_error failure; /* of the last load; status OK: none, or a later load succeeded */
};

struct hps_load {
    struct hps_task task;
    atomic_uint refs;
    struct hps_catalog *catalog;
    struct hps_load *next; /* in catalog->loads */
    struct hps_source source;
    struct hps_load_env env; /* copied when the load began */
    struct hps_load_plan plan;
    struct hps_strings notes; /* set before the loader thread gets the load */
    struct hps_load_progress progress;
    struct catalog_model *model;
    struct catalog_entry *entry;
    bool activate, force, replace;
    struct catalog_model *awaited; /* its `awaits` ends with this load; NULL: none */
    char model_name[128];
    struct catalog_entry *waiting; /* published, and activated once it has its updates */
    uint64_t waiting_until_us;
    /* Set by the loader thread. Once it releases switch_lock, an unload may free `entry` and
     * `model`. */
    bool published;
    _Atomic uint64_t duplicate_keys; /* set by the loader thread, as the next three */
    _Atomic uint64_t n_rows;
    _Atomic uint64_t n_rows_dropped;
    atomic_bool activated;
    /* protected by the catalog's lock: */
    int64_t number;
    struct hps_versions_gone going; /* predicted when the load began */
    struct hps_switched outcome;    /* final after `done` */
    bool done;
    struct hps_error error;
};

struct hps_catalog {
    struct hps_catalog_options options;
    /* also protects options.env and the members down to async_without_gpu, which a reload changes
     */
    struct hps_lock lock;
    struct hps_strings model_roots;
    uint32_t keep_versions;
    uint32_t warmup_timeout_s;
    uint32_t activate_lag_max_s;
    double activate_rows_loss_max;
    uint32_t hot_keys_save_s; /* 0: never */
    bool async_without_gpu;
    /* Serializes activate, rollback, unload and the end of loads. Taken before `lock`. */
    struct hps_lock switch_lock;
    struct catalog_model *models;
    struct hps_usages *usages; /* protected by `lock` */
    struct hps_load *loads;    /* running or queued */
    struct hps_pool *loader;
    struct hps_warmup *warmup;
    struct warm_up *warm_ups; /* running */
    struct hps_pool *warmer;  /* one thread: warm-ups of serving versions, without a time limit */
    /* one thread: switches, each after a bounded warm-up; saves of hot keys */
    struct hps_pool *switcher;
    struct hps_task save; /* posted to `switcher`; at most one at a time */
    atomic_bool saving;
    uint64_t saved_us; /* used by hps_catalog_tick only, as the next */
    uint64_t tidied_us;
    struct hps_task tidy; /* posted to the loader; at most one at a time */
    atomic_bool tidying;
    bool opened;                     /* recovery is complete */
    struct catalog_entry *unloading; /* unpublished versions that are in use, or not yet removed */
    struct hps_cond reap;            /* signalled when `unloading` is not empty, or `closing` */
    struct hps_worker reaper;
    atomic_bool closing;
};

/* The catalog's stores by role. NULL: none. */
static inline struct hps_store *catalog_host(const struct hps_catalog *catalog)
{
    return hps_stores_host(&catalog->options.env.stores);
}

static inline struct hps_store *catalog_shared(const struct hps_catalog *catalog)
{
    return hps_stores_shared(&catalog->options.env.stores);
}

static inline struct hps_store *catalog_durable(const struct hps_catalog *catalog)
{
    return hps_stores_durable(&catalog->options.env.stores);
}

/* The model, created if `make`. NULL: not found, or out of memory. Lock held. */
struct catalog_model *catalog_model(struct hps_catalog *catalog, const char *name, bool make);
struct catalog_entry *catalog_entry(struct catalog_model *model, int64_t number);
/* Assert the invariants of a model that hold between switches and unloads. Lock held. */
void catalog_model_sane(struct catalog_model *model);
/* Add `version` to the list and apply its entry (catalog_follow). takes `version`, also on failure
 * (NULL). Lock held. */
struct catalog_entry *catalog_entry_add(struct hps_catalog *catalog, struct catalog_model *model,
                                        struct hps_version *version, enum entry_state state);
/* Set the version's policies from its entry and its embedding cache. Lock held. */
void catalog_policies(const struct hps_catalog *catalog, struct catalog_entry *entry);
/* Unlink and free a model without versions. Lock held, or before other threads use the catalog. */
void catalog_model_free(struct hps_catalog *catalog, struct catalog_model *model);
/* Unlink and free the entry, not its version. Also frees a model that has no version left and is
 * not in models[]. Lock held. */
void catalog_entry_remove(struct hps_catalog *catalog, struct catalog_model *model,
                          struct catalog_entry *entry);
/* Set the entry's spaces by role from its version's tiers. Lock held, or before other threads use
 * the catalog. */
void catalog_entry_spaces(struct catalog_entry *entry);
/* Set the series that count the use of the version. Lock held, or before other threads use the
 * catalog. */
void catalog_version_metrics(struct hps_catalog *catalog, struct hps_version *version);
/* Remove the series of a version, and of its model if that has no other. Lock held; the version is
 * still in the list. */
void catalog_version_metrics_remove(struct hps_catalog *catalog, const struct hps_version *version);
uint64_t catalog_host_used(struct hps_catalog *catalog); /* lock held */
/* Rows that overflow_margin dropped although no other store has them. Lock held. */
uint64_t catalog_rows_dropped(const struct catalog_entry *entry);
/* Share of the load that is done; 1 for a loaded version. Lock held. */
double catalog_load_ratio(const struct hps_catalog *catalog, const struct catalog_entry *entry);

/* ---- recover.c ------------------------------------------------------------------------------- */

/* Serve the versions of the persistent store again, and remove rows that no record names. There
 * must be a persistent store. May block; no other thread uses the catalog. error: as
 * hps_catalog_open */
hps_status catalog_recover(struct hps_catalog *catalog, struct hps_error *err) HPS_MUST_CHECK;
/* Have the loader thread warm up and refill the resident versions of a model, as after a start.
 * Lock held, or before other threads use the catalog. */
void catalog_refill_model(struct hps_catalog *catalog, struct catalog_model *model);

/* ---- model.c: under switch_lock, or before other threads use the catalog --------------------- */

/* The new content of the model's record; `without`: a version that is being unloaded, 0: none. */
struct catalog_model_change {
    int64_t active, previous;
    uint64_t n_switches;
    int64_t without;
};

/* Write the model's record. May block; lock not held. */
hps_status catalog_put_model(struct hps_catalog *catalog, struct catalog_model *model,
                             const struct catalog_model_change *change, struct hps_error *err)
    HPS_MUST_CHECK;
/* Apply a record; the versions are in the list already. ctx: the catalog. */
hps_status catalog_adopt_model(void *ctx, const struct hps_model_record *record);
/* Write the record again if it is of an earlier build or names versions that no longer exist,
 * before another version gets such a number. Call it once the versions are known. No effect on a
 * read-only store. May block. */
hps_status catalog_mend_model(struct hps_catalog *catalog, struct catalog_model *model,
                              struct hps_error *err) HPS_MUST_CHECK;
/* Mark `active` as the version that became active last. Lock held. */
void catalog_note_active(struct catalog_model *model, struct catalog_entry *active);
/* For a model without versions: set the order of its tables from models[], or an empty one. Lock
 * held. */
hps_status catalog_configured_order(struct catalog_model *model) HPS_MUST_CHECK;
/* All records of the model are read: complete the order of its tables from its versions, and set
 * the order in each version. */
hps_status catalog_settle_order(struct catalog_model *model) HPS_MUST_CHECK;
/* Publish the model's order of tables for lookups by position. NO_MEMORY: the previous order stays.
 */
hps_status catalog_tell_order(struct hps_catalog *catalog, const struct catalog_model *model)
    HPS_MUST_CHECK;

/* ---- switch.c -------------------------------------------------------------------------------- */

/* Write a resident version to the model's record as the active one, then activate it. back: a
 * rollback, after which the model has no version to roll back to. switch_lock held, lock not. */
hps_status catalog_activate_locked(struct hps_catalog *catalog, struct catalog_model *model,
                                   int64_t number, bool back, struct hps_switched *out_switched,
                                   struct hps_error *err) HPS_MUST_CHECK;
/* How `version` (its tables; it need not be resident) differs from the active one. Empty if it is
 * the active one, or none is active. Lock held. */
hps_status catalog_diff(struct catalog_model *model, const struct hps_version *version,
                        struct hps_version_diff *out_diff) HPS_MUST_CHECK;
/* catalog_diff and catalog_check_diff for a resident version. switch_lock held, lock not. */
hps_status catalog_check_active(struct hps_catalog *catalog, struct catalog_model *model,
                                const struct catalog_entry *entry, struct hps_error *err)
    HPS_MUST_CHECK;
/* Whether version `number` may become active without `force`. PRECONDITION has the reason. Lock
 * held. */
hps_status catalog_check_diff(const struct hps_catalog *catalog, struct catalog_model *model,
                              int64_t number, const struct hps_version_diff *diff,
                              struct hps_error *err) HPS_MUST_CHECK;
/* PRECONDITION: the version lags behind its updates by more than activate_lag_max_s. lock not held.
 */
hps_status catalog_check_lag(struct hps_catalog *catalog, const char *model, int64_t number,
                             struct hps_error *err) HPS_MUST_CHECK;
/* Set the gauge of the active version. */
void catalog_show_active(struct hps_catalog *catalog, const struct catalog_model *model);
/* Tell the host map which version is active: its rows may evict rows of other versions. Lock held.
 */
void catalog_share_memory(const struct catalog_model *model);
/* Find the model and its resident version `number`; both stay while switch_lock is held. lock not
 * held. */
hps_status catalog_resident(struct hps_catalog *catalog, const char *name, int64_t number,
                            struct catalog_model **out_model, struct catalog_entry **out_entry,
                            struct hps_error *err) HPS_MUST_CHECK;

/* ---- gpu.c ----------------------------------------------------------------------------------- */

/* Open the version's embedding caches on the devices of its model. If that fails, the version is
 * served without. Call it before the version is published. lock not held. */
void catalog_gpu_open(struct hps_catalog *catalog, struct catalog_entry *entry);
/* Count for the last time, and remove the caches from the views. Lock held. */
void catalog_gpu_hide(struct hps_catalog *catalog, struct catalog_entry *entry);
/* Close the caches. No view and no request may use them. lock not held. */
void catalog_gpu_close(struct hps_version *version);
/* The entry becomes, or ceases to be, the model's active version. No effect if NULL. switch_lock
 * held, lock not, because this waits for the device's thread. */
void catalog_gpu_active(const struct catalog_entry *entry, bool active);
/* Fill in the device's part of a view, and add what the device has done since the last call to the
 * metrics. Lock held. */
void catalog_gpu_view(struct hps_catalog *catalog, struct catalog_entry *entry,
                      struct hps_version_view *out_view);
/* Bytes that caches of these tables would take on all devices; 0 if `config` is NULL or names no
 * usable device. */
uint64_t catalog_gpu_bytes(const struct hps_catalog *catalog, const struct hps_version *version,
                           const struct hps_config_model *config);

/* ---- warm.c ---------------------------------------------------------------------------------- */

/* Warm up a serving version, and refill its caches, on a thread of `pool`. No effect if that is
 * useless. The version is resident and stays so during the call. */
void catalog_warm_behind(struct hps_catalog *catalog, struct hps_pool *pool,
                         struct hps_version *version);
/* As catalog_warm_behind, for a version that is not active: only tables that are cached whole. */
void catalog_warm_whole(struct hps_catalog *catalog, struct hps_pool *pool,
                        struct hps_version *version);
/* Put all rows of the version into host memory, on a thread of `pool`. The version is resident and
 * stays so during the call. */
void catalog_warm_refill(struct hps_catalog *catalog, struct hps_pool *pool,
                         struct hps_version *version);
/* Fill the caches of tables that are cached whole with the loaded rows. If the load will activate
 * the version, also warm it up. Loader thread, no lock held. */
void catalog_warm_load(struct hps_load *load);
/* Progress of the current warm-up of a version: keys tried, and all keys; 0 of 0: none is running.
 * Lock held. */
void catalog_warm_progress(const struct hps_catalog *catalog, const struct hps_version *version,
                           uint64_t *out_n_done, uint64_t *out_n_all);
/* End the warm-up and switch threads, and write the hot keys. `closing` must be set. */
void catalog_warm_stop(struct hps_catalog *catalog);

/* ---- load.c ---------------------------------------------------------------------------------- */

/* hps_catalog_load with open files. takes the contents of `source`, also on failure. May block;
 * lock not held. */
hps_status catalog_load_begin(struct hps_catalog *catalog, const struct hps_load_request *request,
                              struct hps_source *source, struct hps_load **out_load,
                              struct hps_error *err) HPS_MUST_CHECK;

/* ---- configured.c ---------------------------------------------------------------------------- */

/* The version number in the entry, or 0 (the next number) if the model already has that version.
 * lock not held. */
int64_t catalog_configured_number(struct hps_catalog *catalog,
                                  const struct hps_config_model *config);
/* Begin the first load of a configured model or, with `awaited`, the load of its changed files.
 * With `awaited`, a resident version that has these files is activated instead. Loader thread, no
 * lock held.
 * error   EXISTS: not `awaited`, and the model has a version; others as hps_catalog_load */
hps_status catalog_load_config(struct hps_catalog *catalog, const struct hps_config_model *config,
                               bool awaited, struct hps_error *err) HPS_MUST_CHECK;

/* ---- ready.c --------------------------------------------------------------------------------- */

/* Set the error that lookups of the model get while it loads or after its load failed. Lock held.
 */
void catalog_expect(struct hps_catalog *catalog, struct catalog_model *model);
/* catalog_expect for all models. Lock not held. */
void catalog_expect_all(struct hps_catalog *catalog);
/* Create the series that counts failures. Lock held, as for the next three. */
void catalog_failures_show(const struct hps_catalog *catalog, const struct catalog_model *model);
/* Count a failed load of the model, and keep the error if no version is resident. */
void catalog_load_failed(const struct hps_catalog *catalog, struct catalog_model *model,
                         const struct hps_error *err);
/* A load succeeded: forget the last failure. */
void catalog_load_succeeded(struct hps_catalog *catalog, struct catalog_model *model);
/* Remove the series of a model, except a count of failures. */
void catalog_model_metrics_remove(const struct hps_catalog *catalog,
                                  const struct catalog_model *model);
/* Load the configured models without versions whose last load could not reach a store. Loader
 * thread, no lock held. */
void catalog_load_again(struct hps_catalog *catalog);

/* ---- request.c ------------------------------------------------------------------------------- */

/* A load request, completed by the entry in it. */
struct catalog_request {
    /* `entry`: the one in the request, else the server's; NULL: none */
    struct hps_load_request said;
    struct hps_config *config;    /* holds the entry of the request */
    struct hps_notes entry_notes; /* of that entry */
    struct hps_source_named *tables;
    struct hps_buf text;
};

/* Check and complete a request. Any thread; lock not held. owner: catalog_request_close
 * error   INVALID; NO_MEMORY */
hps_status catalog_request_open(struct hps_catalog *catalog, const struct hps_load_request *request,
                                struct catalog_request *out_whole, struct hps_error *err)
    HPS_MUST_CHECK;
void catalog_request_close(struct catalog_request *whole);

/* ---- notes.c --------------------------------------------------------------------------------- */

/* The sentences of hps_load_notes. model: NULL if it does not exist yet. Lock held. owner: the
 * caller, hps_strings_fini
 * error   NO_MEMORY */
hps_status catalog_load_notes(const struct hps_catalog *catalog, const struct catalog_model *model,
                              const struct hps_load_request *request,
                              const struct hps_source *source, const struct hps_version *version,
                              struct hps_strings *out_notes) HPS_MUST_CHECK;

/* ---- definition.c ---------------------------------------------------------------------------- */

/* The entry that a version follows: the server's, else its own; NULL: none. Any thread. */
const struct hps_config_model *catalog_config(const struct catalog_entry *entry);
/* Parse version->config and apply the entry to a new version. Lock held, or before other threads
 * use the catalog.
 * error   NO_MEMORY */
hps_status catalog_follow(const struct hps_catalog *catalog, struct catalog_entry *entry)
    HPS_MUST_CHECK;
/* Read the files of the server's entry of a model, and compare the active version with them. May
 * block; lock not held. error: the files cannot be read, or a load of them would fail */
hps_status catalog_define(struct hps_catalog *catalog, const struct hps_config_model *config,
                          struct hps_error *err) HPS_MUST_CHECK;
void catalog_defined_free(struct catalog_defined *defined); /* no effect if NULL */
/* Hash of the entry when it was last read; NULL: never read. Lock held. */
const char *catalog_defined_hash(const struct catalog_model *model);
/* Whether a load of the server's entry would give this version. False if that is unknown. Lock
 * held. */
bool catalog_is_defined(const struct catalog_model *model, const struct hps_version *version);
/* Whether a restart serves the version if it is active then. model: NULL if it does not exist yet.
 * Lock held. */
bool catalog_is_kept(const struct hps_catalog *catalog, const struct catalog_model *model,
                     const struct hps_version *version);
/* Set differs, by_hand and drift, after a change of the active version or its entry. Lock held. */
void catalog_judge(const struct hps_catalog *catalog, struct catalog_model *model);
/* At a start: catalog_define, then log differences or set `awaits`. No other thread uses the
 * catalog. */
void catalog_check_files(struct hps_catalog *catalog, struct catalog_model *model);
/* Clear `awaits`: the load of the configured files has ended. Lock held. */
void catalog_await_end(struct hps_catalog *catalog, struct catalog_model *model);
/* The resident version that a load of the server's entry would give; 0: none. lock not held. */
int64_t catalog_find_defined(struct hps_catalog *catalog, const char *model);

/* ---- source.c -------------------------------------------------------------------------------- */

/* Open the files that a request names, all below server.model_roots. May block; lock not held.
 * out_source: hps_source_close
 * error   INVALID, NOT_FOUND, PERMISSION, NO_MEMORY */
hps_status catalog_source_open(struct hps_catalog *catalog, const struct hps_load_request *request,
                               struct hps_source *out_source, struct hps_error *err) HPS_MUST_CHECK;
/* Open the files of an entry of models[]. May block; lock not held. Errors as above. */
hps_status catalog_source_open_config(struct hps_catalog *catalog,
                                      const struct hps_config_model *config,
                                      struct hps_source *out_source, struct hps_error *err)
    HPS_MUST_CHECK;

/* ---- unload.c -------------------------------------------------------------------------------- */

hps_status catalog_reaper_start(struct hps_catalog *catalog, struct hps_error *err) HPS_MUST_CHECK;
/* End the reaper. Pending unloads get UNAVAILABLE. `closing` must be set. */
void catalog_reaper_stop(struct hps_catalog *catalog);
/* Unpublish versions beyond keep_versions that have been active, the one that was active longest
 * ago first. Call catalog_reap afterwards. switch_lock held, lock not. */
void catalog_retire_locked(struct hps_catalog *catalog, struct catalog_model *model,
                           struct hps_versions_gone *out_gone);
/* As catalog_retire_locked, but unpublish the versions that never were active, except `keep`. */
void catalog_replace_locked(struct hps_catalog *catalog, struct catalog_model *model, int64_t keep,
                            struct hps_versions_gone *out_gone);
/* Predict which versions a load will unload. Lock held. */
void catalog_foresee(const struct hps_catalog *catalog, const struct catalog_model *model,
                     bool activate, bool replace, struct hps_versions_gone *out_gone);
/* Remove the unpublished versions that are not in use. The reaper removes the others later. No lock
 * held. */
void catalog_reap(struct hps_catalog *catalog);
/* Every few seconds, if there is a shared store: have the loader thread retry work that failed
 * because that store was unreachable. It deletes rows of unloaded versions or, if the store has the
 * only copy, loads configured models. */
void catalog_tidy(struct hps_catalog *catalog);

#endif

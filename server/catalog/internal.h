/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of the catalog. `catalog->lock` protects everything that is not immutable,
 * except atomic fields and fields whose comment names a thread or another rule. A thread must not
 * hold the lock while it reads or writes rows or records, because probes such as /readyz wait for
 * the lock.
 *
 * An "entry" here is a version in the catalog (struct catalog_entry). An entry of models[] is
 * always called a "models[] entry". The server's models[] entry of a model is in the configuration
 * of the server. A version may also have its own models[] entry, from its load request.
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

struct catalog_defined; /* expected result of a load of a models[] entry: definition.c */

enum entry_state { ENTRY_LOADING, ENTRY_RESIDENT, ENTRY_UNLOADING };

struct catalog_entry {
    struct catalog_entry *next; /* next version of the model, ascending */
    struct catalog_model *model;
    struct hps_version *version;
    /* The spaces in version->tiers, by the role of their store. A space holds the version's rows in
     * one store. NULL: the version has no rows in a store of that role. */
    struct hps_space *host, *shared, *durable;
    /* version->gpu. NULL: there are no caches, or views must not use them. */
    struct hps_gpu_space *gpu;
    struct hps_embed_range_usage *gpu_usages; /* [n_tables] usage at the last update of metrics */
    struct hps_config *own; /* the version's own models[] entry, parsed; NULL: no own entry */
    enum entry_state state;
    /* Rank of the version's last activation among the versions of the model: the higher, the later.
     * 0: the version was never active. */
    uint64_t last_active;
    unsigned n_switching; /* switches to the version that wait for a warm-up or for updates */
    struct catalog_entry *next_unloading; /* in catalog->unloading */
    /* ENTRY_UNLOADING: the unload to notify at the end. NULL: no caller waits. */
    struct hps_unload *unload;
};

struct catalog_model {
    struct catalog_model *next; /* in the order of names */
    char *name;
    int64_t active;      /* number of the active version; 0: none */
    int64_t previous;    /* version that rollback activates; 0: none */
    uint64_t n_switches; /* activations so far */
    struct catalog_entry *entries;
    struct hps_table_order order; /* order of the model's tables, the same in all its versions */
    uint32_t n_order_stored;      /* tables in the order of the stored record; 0: no order */
    /* The stored record is of an earlier build, or names versions that no longer exist. */
    bool record_outdated;
    const struct hps_config_model *config; /* the server's models[] entry; NULL: not configured */
    /* What a load of `config` would have given when its files were last read. NULL: they were never
     * read, or `config` is unusable. */
    struct catalog_defined *defined;
    struct hps_error unusable; /* why a load of `config` would fail; status OK: it would not */
    /* Bits of definition.c: how the active version differs from `config`, and whether
     * supportlonglong has changed. */
    unsigned differs;
    /* The active version differs, but `config` and its files have not changed since that version
     * was loaded: an operator loaded other files. */
    bool by_hand;
    /* The active version differs because `config`, its files or supportlonglong have changed since
     * that version was loaded; or `config` is unusable. */
    bool drift;
    /* The load of the model's changed files has not ended. The server is unready until it ends. */
    bool awaits;
    /* The model's load from models[] is queued, and the loader thread has not begun it. */
    bool waiting;
    /* The last load failed because the shared store was unreachable, and there is no persistent
     * store. catalog_tidy retries the load. */
    bool unreached;
    /* Error of the last failed load. Status OK: no load failed, or a later one succeeded, or a
     * resident version served the model when the load failed. */
    struct hps_error failure;
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
    bool activate, force, replace; /* as in hps_load_request */
    struct catalog_model *awaited; /* the model whose `awaits` ends with this load; NULL: none */
    char model_name[128];
    /* `entry`, while it is published and waits for its updates before it is activated; else
     * NULL. */
    struct catalog_entry *waiting;
    uint64_t waiting_until_us; /* hps_clock_us: the wait of `waiting` ends */
    /* The version is published. The loader thread sets this flag with switch_lock held. After that
     * thread has released switch_lock, an unload may free `entry` and `model`. */
    bool published;
    /* The loader thread sets the next four; any thread reads them. */
    _Atomic uint64_t duplicate_keys;
    _Atomic uint64_t n_rows;
    _Atomic uint64_t n_rows_dropped;
    atomic_bool activated;
    int64_t number; /* of the new version */
    /* The catalog's lock protects the fields below, except `outcome`. */

    /* Versions that the load will unload, as predicted when it began. */
    struct hps_versions_gone going;
    /* The loader thread sets it. Other threads read it after `done`. */
    struct hps_switched outcome;
    bool done;
    struct hps_error error;
};

struct hps_catalog {
    struct hps_catalog_options options;
    /* See the top of this file. It also protects the values that a reload may change: memory_bytes
     * and nan_allowed of options.env, and the fields from model_roots to async_without_gpu. */
    struct hps_lock lock;
    struct hps_strings model_roots;
    uint32_t keep_versions;
    uint32_t warmup_timeout_s;
    uint32_t activate_lag_max_s;
    double activate_rows_loss_max;
    uint32_t hot_keys_save_s; /* period of saving the hot keys; 0: never */
    bool async_without_gpu;
    /* Serializes activate, rollback, unload and the end of loads. Taken before `lock`. */
    struct hps_lock switch_lock;
    struct catalog_model *models;
    struct hps_usages *usages; /* protected by `lock` */
    struct hps_load *loads;    /* running or queued */
    struct hps_pool *loader;   /* one thread: loads, and the warm-ups and refills after a start */
    struct hps_warmup *warmup;
    struct warm_up *warm_ups; /* list of the running warm-ups and refills */
    struct hps_pool *warmer;  /* one thread: warm-ups of serving versions, without a time limit */
    /* One thread. It does switches, each after a warm-up with a time limit, and saves the hot
     * keys. */
    struct hps_pool *switcher;
    /* Saves the hot keys. Posted to `switcher`; never twice at the same time. */
    struct hps_task save;
    atomic_bool saving; /* `save` is posted or running */
    uint64_t saved_us;  /* hps_clock_us of the last `save`; main thread */
    uint64_t tidied_us; /* hps_clock_us of the last `tidy`; main thread */
    /* Does the retries of catalog_tidy. Posted to `loader`; never twice at the same time. */
    struct hps_task tidy;
    atomic_bool tidying;             /* `tidy` is posted or running */
    bool opened;                     /* recovery is complete */
    struct catalog_entry *unloading; /* unpublished versions that are not removed yet */
    struct hps_cond reap; /* signals the reaper that `unloading` or `closing` has changed */
    struct hps_worker reaper;
    atomic_bool closing; /* the catalog stops */
};

/* The catalog's stores by role. NULL: there is no store of that role. */
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

/* "Lock held" below means catalog->lock, or that no other thread uses the catalog yet. */

/* The model of this name, created if `make`. NULL: not found, or out of memory. Lock held. */
struct catalog_model *catalog_model(struct hps_catalog *catalog, const char *name, bool make);
/* The entry of version `number`; NULL: the model has no such version. Lock held. */
struct catalog_entry *catalog_entry(struct catalog_model *model, int64_t number);
/* Assert the invariants of a model that hold between switches and unloads. Lock held. */
void catalog_model_sane(struct catalog_model *model);
/* Add an entry for `version` to the model, and apply the models[] entry that `version` follows
 * (catalog_follow). Takes `version`, also on failure. NULL: out of memory. Lock held. */
struct catalog_entry *catalog_entry_add(struct hps_catalog *catalog, struct catalog_model *model,
                                        struct hps_version *version, enum entry_state state);
/* Set the policies of the entry's version from the models[] entry that the version follows, and
 * version->cache_tier from its embedding caches. Lock held. */
void catalog_policies(const struct hps_catalog *catalog, struct catalog_entry *entry);
/* Unlink and free a model without versions. Lock held. */
void catalog_model_free(struct hps_catalog *catalog, struct catalog_model *model);
/* Unlink and free the entry, but not its version. If it was the last entry of a model that is not
 * in models[], free the model, too. Lock held. */
void catalog_entry_remove(struct hps_catalog *catalog, struct catalog_model *model,
                          struct catalog_entry *entry);
/* Set host, shared and durable of the entry from its version's tiers. Lock held. */
void catalog_entry_spaces(struct catalog_entry *entry);
/* Set the metric series in which lookups and updates of the version are counted. Lock held. */
void catalog_version_metrics(struct hps_catalog *catalog, struct hps_version *version);
/* Remove the series of a version. If its model has no other version, remove the series of the
 * model, too. Lock held; the version must still be in the catalog. */
void catalog_version_metrics_remove(struct hps_catalog *catalog, const struct hps_version *version);
/* Bytes that all versions use in the host map. Lock held. */
uint64_t catalog_host_used(struct hps_catalog *catalog);
/* Number of rows that the host map dropped because of overflow_margin, and that no store has. Lock
 * held. */
uint64_t catalog_rows_dropped(const struct catalog_entry *entry);
/* The share of the entry's load that is done, 0 to 1; 1 for a loaded version. Lock held. */
double catalog_load_ratio(const struct hps_catalog *catalog, const struct catalog_entry *entry);

/* ---- recover.c ------------------------------------------------------------------------------- */

/* Serve the versions of the persistent store again, and remove rows of versions that have no
 * record. There must be a persistent store. May block; no other thread uses the catalog. error: as
 * hps_catalog_open */
hps_status catalog_recover(struct hps_catalog *catalog, struct hps_error *err) HPS_MUST_CHECK;
/* After a start: queue the warm-ups and refills of the model's resident versions for the loader
 * thread. Lock held. */
void catalog_refill_model(struct hps_catalog *catalog, struct catalog_model *model);

/* ---- model.c: switch_lock held, or no other thread uses the catalog yet ---------------------- */

/* New values for the model's record. */
struct catalog_model_change {
    int64_t active, previous; /* 0: none */
    uint64_t n_switches;
    int64_t without; /* a version that is being unloaded, and that the record omits; 0: none */
};

/* Write the model's record to the persistent store, which must exist. May block; lock not held. */
hps_status catalog_put_model(struct hps_catalog *catalog, struct catalog_model *model,
                             const struct catalog_model_change *change, struct hps_error *err)
    HPS_MUST_CHECK;
/* The callback hps_records_reader.model: apply the record of a model. The model's versions must be
 * in the catalog already. ctx: the catalog
 * error   NO_MEMORY */
hps_status catalog_adopt_model(void *ctx, const struct hps_model_record *record);
/* If the stored record is of an earlier build, or names versions that no longer exist, write it
 * again. Call it after the versions are read, and before a new version can get the number of a
 * version that no longer exists. No effect on a read-only store. May block.
 * error   of the store */
hps_status catalog_repair_model(struct hps_catalog *catalog, struct catalog_model *model,
                                struct hps_error *err) HPS_MUST_CHECK;
/* Mark `active` as the version that became active last. Lock held. */
void catalog_note_active(struct catalog_model *model, struct catalog_entry *active);
/* For a model without versions: set the order of its tables to the order in models[]. If the model
 * is not in models[], the order is empty. Lock held.
 * error   NO_MEMORY */
hps_status catalog_configured_order(struct catalog_model *model) HPS_MUST_CHECK;
/* Append the tables of the model's versions that are missing from the model's order. Then set, in
 * each version, the place of each table in this order. Call it after all records of the model are
 * read.
 * error   NO_MEMORY */
hps_status catalog_settle_order(struct catalog_model *model) HPS_MUST_CHECK;
/* Publish the model's order of tables for lookups by position.
 * error   NO_MEMORY: the order that was published before stays in effect */
hps_status catalog_tell_order(struct hps_catalog *catalog, const struct catalog_model *model)
    HPS_MUST_CHECK;

/* ---- switch.c -------------------------------------------------------------------------------- */

/* Activate the resident version `number`. First write the new active version to the model's record,
 * then switch, then unpublish versions beyond keep_versions. The caller then calls catalog_reap to
 * remove them. back: this is a rollback, and afterwards the model has no version to roll back to.
 * switch_lock held, lock not. */
hps_status catalog_activate_locked(struct hps_catalog *catalog, struct catalog_model *model,
                                   int64_t number, bool back, struct hps_switched *out_switched,
                                   struct hps_error *err) HPS_MUST_CHECK;
/* Compute how `version` differs from the active version. Only the tables of `version` are used, and
 * `version` need not be resident. The caller passes *out_diff zeroed, and frees it with
 * hps_version_diff_free. *out_diff stays empty if `version` is active, or if no version is active.
 * Lock held.
 * error   NO_MEMORY */
hps_status catalog_diff(struct catalog_model *model, const struct hps_version *version,
                        struct hps_version_diff *out_diff) HPS_MUST_CHECK;
/* Do catalog_diff and catalog_check_diff for a resident version. switch_lock held, lock not. */
hps_status catalog_check_active(struct hps_catalog *catalog, struct catalog_model *model,
                                const struct catalog_entry *entry, struct hps_error *err)
    HPS_MUST_CHECK;
/* OK if version `number`, with this difference from the active version, may become active without
 * `force`. Lock held.
 * error   PRECONDITION: it differs too much; the text has the reason */
hps_status catalog_check_diff(const struct hps_catalog *catalog, struct catalog_model *model,
                              int64_t number, const struct hps_version_diff *diff,
                              struct hps_error *err) HPS_MUST_CHECK;
/* Check with hps_updater_check_lag that the version does not lag too far behind its updates. The
 * limit is activate_lag_max_s. lock not held.
 * error   PRECONDITION: the version lags too far behind */
hps_status catalog_check_lag(struct hps_catalog *catalog, const char *model, int64_t number,
                             struct hps_error *err) HPS_MUST_CHECK;
/* Set the gauge model_active_version of the model to its active version. switch_lock held, or no
 * other thread uses the catalog yet. */
void catalog_show_active(struct hps_catalog *catalog, const struct catalog_model *model);
/* Tell the host map which version of the model is active: rows of the active version may evict rows
 * of other versions. Lock held. */
void catalog_share_memory(const struct catalog_model *model);
/* Find the model `name` and its resident version `number`. Both pointers are valid while
 * switch_lock is held. lock not held.
 * error   NOT_FOUND; PRECONDITION: the version is loading or unloading */
hps_status catalog_resident(struct hps_catalog *catalog, const char *name, int64_t number,
                            struct catalog_model **out_model, struct catalog_entry **out_entry,
                            struct hps_error *err) HPS_MUST_CHECK;

/* ---- gpu.c ----------------------------------------------------------------------------------- */

/* Open embedding caches for the version on the devices of its model. If that fails, the failure is
 * logged and the version has no caches. Call it before the version is published. lock not held. */
void catalog_gpu_open(struct hps_catalog *catalog, struct catalog_entry *entry);
/* Add the last counts of the caches to the metrics, and remove the caches from the views. Lock
 * held. */
void catalog_gpu_hide(struct hps_catalog *catalog, struct catalog_entry *entry);
/* Close the version's caches, if it has any. No view and no request may use them. lock not held. */
void catalog_gpu_close(struct hps_version *version);
/* Tell the devices whether the entry is its model's active version. No effect if `entry` is NULL.
 * switch_lock held, lock not, because this waits for the device's thread. */
void catalog_gpu_active(const struct catalog_entry *entry, bool active);
/* Fill in the gpu fields of a view. Also add to the metrics the insertions, refusals and evictions
 * of the caches since the last call. Lock held. */
void catalog_gpu_view(struct hps_catalog *catalog, struct catalog_entry *entry,
                      struct hps_version_view *out_view);
/* Bytes that embedding caches of the version's tables would take, summed over all devices of
 * `config`. 0: `config` is NULL, or names no device that was opened. */
uint64_t catalog_gpu_bytes(const struct hps_catalog *catalog, const struct hps_version *version,
                           const struct hps_config_model *config);

/* ---- warm.c ---------------------------------------------------------------------------------- */

/* The next three calls post a task to `pool`. The version stays pinned until the task has ended.
 * The version must be resident during the call. */

/* In the background, warm up a serving version with its hot keys, and fill the caches of its tables
 * that are cached whole. No effect if there is nothing to warm up or fill. */
void catalog_warm_behind(struct hps_catalog *catalog, struct hps_pool *pool,
                         struct hps_version *version);
/* In the background, fill the caches of tables that are cached whole, for a version that is not
 * active. */
void catalog_warm_whole(struct hps_catalog *catalog, struct hps_pool *pool,
                        struct hps_version *version);
/* In the background, copy all rows of the version from the durable store to the host map, if they
 * fit. */
void catalog_warm_refill(struct hps_catalog *catalog, struct hps_pool *pool,
                         struct hps_version *version);
/* Before a loaded version is published, fill the caches of its tables that are cached whole. If the
 * load will activate it, also warm it up. Returns when both have ended. Loader thread, no lock
 * held. */
void catalog_warm_load(struct hps_load *load);
/* Progress of the running warm-up of a version: *out_n_done of *out_n_all keys were tried. Both 0:
 * no warm-up is running. Lock held. */
void catalog_warm_progress(const struct hps_catalog *catalog, const struct hps_version *version,
                           uint64_t *out_n_done, uint64_t *out_n_all);
/* End the warm-up and switch threads, and save the hot keys. `closing` must be set, and the loader
 * thread must have ended. */
void catalog_warm_stop(struct hps_catalog *catalog);

/* ---- load.c ---------------------------------------------------------------------------------- */

/* Queue a load whose files are open already in `source`. Takes the contents of `source`, also on
 * failure. May block; lock not held. *out_load and errors: as hps_catalog_load */
hps_status catalog_load_begin(struct hps_catalog *catalog, const struct hps_load_request *request,
                              struct hps_source *source, struct hps_load **out_load,
                              struct hps_error *err) HPS_MUST_CHECK;

/* ---- configured.c ---------------------------------------------------------------------------- */

/* The version number in a models[] entry; 0 (for "the next number") if the model already has that
 * version. lock not held. */
int64_t catalog_configured_number(struct hps_catalog *catalog,
                                  const struct hps_config_model *config);
/* Queue a load of a configured model from its models[] entry. awaited false: it is the first load
 * of the model. awaited true: its files have changed; if a resident version already has the new
 * files, that version is activated instead. Loader thread, no lock held.
 * error   EXISTS: `awaited` is false, and the model has a version; others as hps_catalog_load */
hps_status catalog_load_config(struct hps_catalog *catalog, const struct hps_config_model *config,
                               bool awaited, struct hps_error *err) HPS_MUST_CHECK;

/* ---- ready.c --------------------------------------------------------------------------------- */

/* Set or clear the error that lookups of the model get while the model has no version that can
 * serve. The error says whether the model is loading or its load failed. Lock held. */
void catalog_expect(struct hps_catalog *catalog, struct catalog_model *model);
/* Do catalog_expect for all models. lock not held. */
void catalog_expect_all(struct hps_catalog *catalog);
/* Create the series model_load_failures_total of the model. Lock held. */
void catalog_failures_show(const struct hps_catalog *catalog, const struct catalog_model *model);
/* Count a failed load of the model, and keep the error if no version is resident. Lock held. */
void catalog_load_failed(const struct hps_catalog *catalog, struct catalog_model *model,
                         const struct hps_error *err);
/* A load of the model succeeded: forget the last failure. Lock held. */
void catalog_load_succeeded(struct hps_catalog *catalog, struct catalog_model *model);
/* Remove the series of a model. The series model_load_failures_total stays if its value is not 0,
 * or if the model is in models[]. Lock held. */
void catalog_model_metrics_remove(const struct hps_catalog *catalog,
                                  const struct catalog_model *model);
/* Retry loads from models[] that failed because a store was unreachable. Only models without a
 * version are loaded. Loader thread, no lock held. */
void catalog_load_again(struct hps_catalog *catalog);

/* ---- request.c ------------------------------------------------------------------------------- */

/* A load request that is checked and completed. */
struct catalog_request {
    /* The request. If the caller set said.config, the fields that the caller left empty are from
     * that models[] entry. said.entry is that entry or, without it, the server's models[] entry;
     * NULL: there is neither. */
    struct hps_load_request said;
    struct hps_config *config;       /* the request's models[] entry, parsed; NULL: no own entry */
    struct hps_notes entry_notes;    /* notes of parsing it */
    struct hps_source_named *tables; /* memory of said.tables */
    struct hps_buf text;             /* memory of said.config */
};

/* Check and complete a request. Any thread; lock not held. The caller frees *out_whole with
 * catalog_request_close.
 * error   INVALID; NO_MEMORY */
hps_status catalog_request_open(struct hps_catalog *catalog, const struct hps_load_request *request,
                                struct catalog_request *out_whole, struct hps_error *err)
    HPS_MUST_CHECK;
void catalog_request_close(struct catalog_request *whole);

/* ---- notes.c --------------------------------------------------------------------------------- */

/* Make the sentences of hps_load_notes. model: NULL if the catalog does not have the model yet.
 * Lock held. The caller frees *out_notes with hps_strings_fini.
 * error   NO_MEMORY */
hps_status catalog_load_notes(const struct hps_catalog *catalog, const struct catalog_model *model,
                              const struct hps_load_request *request,
                              const struct hps_source *source, const struct hps_version *version,
                              struct hps_strings *out_notes) HPS_MUST_CHECK;

/* ---- definition.c ---------------------------------------------------------------------------- */

/* The models[] entry that a version follows: the server's or, if models[] does not have the model,
 * the version's own. NULL: there is neither. Any thread. */
const struct hps_config_model *catalog_config(const struct catalog_entry *entry);
/* Parse the own models[] entry of a new version, and apply the models[] entry that the version
 * follows. Lock held.
 * error   NO_MEMORY */
hps_status catalog_follow(const struct hps_catalog *catalog, struct catalog_entry *entry)
    HPS_MUST_CHECK;
/* Set `defined` and `unusable` of the model from the files of the server's models[] entry `config`.
 * Then compare the active version with `defined` (catalog_judge). If the files cannot be read now,
 * `defined` and `unusable` do not change. May block; lock not held.
 * error   the files cannot be read, or a load of them would fail */
hps_status catalog_define(struct hps_catalog *catalog, const struct hps_config_model *config,
                          struct hps_error *err) HPS_MUST_CHECK;
void catalog_defined_free(struct catalog_defined *defined); /* no effect if NULL */
/* The hash in model->defined, of the server's models[] entry and the files that the entry names.
 * NULL if model->defined is NULL. Lock held. */
const char *catalog_defined_hash(const struct catalog_model *model);
/* Whether a load of the server's models[] entry would give a version that equals this one. False if
 * that is not known. Lock held. */
bool catalog_is_defined(const struct hps_catalog *catalog, const struct catalog_model *model,
                        const struct hps_version *version);
/* Whether hpsd would serve the version again after a restart. True if there is a persistent store,
 * or if a load from models[] gives the same version. model: NULL if the catalog does not have the
 * model yet. Lock held. */
bool catalog_is_kept(const struct hps_catalog *catalog, const struct catalog_model *model,
                     const struct hps_version *version);
/* Set differs, by_hand and drift of the model. Call it after its active version, `defined` or
 * `unusable` has changed. Lock held. */
void catalog_judge(const struct hps_catalog *catalog, struct catalog_model *model);
/* At a start: do catalog_define for the model, then log differences, or set `awaits` if changed
 * files of --table are to be loaded. No other thread uses the catalog. */
void catalog_check_files(struct hps_catalog *catalog, struct catalog_model *model);
/* Clear `awaits`, because the load of the changed files has ended. Then queue the refills that were
 * left out while it was set. No effect if `awaits` is not set. Lock held. */
void catalog_await_end(struct hps_catalog *catalog, struct catalog_model *model);
/* Number of a resident version for which catalog_is_defined is true; 0: none. lock not held. */
int64_t catalog_find_defined(struct hps_catalog *catalog, const char *model);

/* ---- source.c -------------------------------------------------------------------------------- */

/* Open the files that a completed request names. All must be below server.model_roots. May block;
 * lock not held. The caller closes *out_source with hps_source_close.
 * error   INVALID, NOT_FOUND; PERMISSION: a file is outside the roots; NO_MEMORY */
hps_status catalog_source_open(struct hps_catalog *catalog, const struct hps_load_request *request,
                               struct hps_source *out_source, struct hps_error *err) HPS_MUST_CHECK;
/* Open the files of the server's models[] entry `config`, by the rules of hps_source_open_config.
 * May block; lock not held. The caller closes *out_source with hps_source_close.
 * error   as catalog_source_open */
hps_status catalog_source_open_config(struct hps_catalog *catalog,
                                      const struct hps_config_model *config,
                                      struct hps_source *out_source, struct hps_error *err)
    HPS_MUST_CHECK;

/* ---- unload.c -------------------------------------------------------------------------------- */

/* Start the reaper, the thread that removes unpublished versions once no request uses them. */
hps_status catalog_reaper_start(struct hps_catalog *catalog, struct hps_error *err) HPS_MUST_CHECK;
/* End the reaper. Pending unloads get UNAVAILABLE. `closing` must be set. */
void catalog_reaper_stop(struct hps_catalog *catalog);
/* Unpublish surplus versions. While more than keep_versions versions are or have been active,
 * unpublish the one that was active longest ago. Versions with a pending switch are not
 * unpublished. Append the numbers of unpublished versions to *out_gone. The caller then calls
 * catalog_reap to remove them. switch_lock held, lock not. */
void catalog_retire_locked(struct hps_catalog *catalog, struct catalog_model *model,
                           struct hps_versions_gone *out_gone);
/* As catalog_retire_locked, but unpublish the versions that were never active, except version
 * `keep` and versions with a pending switch. */
void catalog_replace_locked(struct hps_catalog *catalog, struct catalog_model *model, int64_t keep,
                            struct hps_versions_gone *out_gone);
/* Predict which versions a load with these flags of its request will unload. Append their numbers
 * to *out_gone. Lock held. */
void catalog_foresee(const struct hps_catalog *catalog, const struct catalog_model *model,
                     bool activate, bool replace, struct hps_versions_gone *out_gone);
/* Remove the unpublished versions that no request uses. The reaper removes each of the others when
 * no request uses it any more. No lock held. */
void catalog_reap(struct hps_catalog *catalog);
/* If there is a shared store: every 5 s, make the loader thread retry work that failed because the
 * shared store was unreachable. With a persistent store, this work deletes rows of unloaded
 * versions. Without one, it loads configured models. Main thread; call it on each tick. */
void catalog_tidy(struct hps_catalog *catalog);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the catalog share. `lock` protects everything that is not immutable; it is
 * never held while rows or records are read or written, as probes wait for it.
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

struct catalog_defined; /* a models[] entry as a load would take it: definition.c */

enum entry_state { ENTRY_LOADING, ENTRY_RESIDENT, ENTRY_UNLOADING };

struct catalog_entry {
    struct catalog_entry *next; /* of the model, versions ascending */
    struct catalog_model *model;
    struct hps_version *version;
    struct hps_space *host, *shared, *durable; /* by role, of version->tiers; NULL: not there */
    struct hps_gpu_space *gpu;                 /* version->gpu, as the last */
    struct hps_embed_range_usage *gpu_usages;  /* [n_tables] as the metrics know them */
    struct hps_config *own;                    /* version->config as it is read; NULL: none */
    enum entry_state state;
    uint64_t last_active; /* of two, the one that became active later has more; 0: never was */
    unsigned n_switching; /* switches to it that wait for its warm-up */
    struct catalog_entry *next_unloading; /* of catalog->unloading */
    struct hps_unload *unload;            /* UNLOADING: who waits for the end; NULL: nobody */
};

struct catalog_model {
    struct catalog_model *next; /* by name */
    char *name;
    int64_t active;      /* 0: none */
    int64_t previous;    /* what rollback goes back to; 0: nothing */
    uint64_t n_switches; /* activations so far */
    struct catalog_entry *entries;
    struct hps_table_order order; /* of its tables, over all versions */
    uint32_t n_order_stored;      /* tables of it that the record has; 0: it says none */
    bool record_outdated;         /* it is of an earlier build, or names versions that are gone */
    const struct hps_config_model *config; /* NULL: only loaded at run time */
    struct catalog_defined *defined; /* its entry when a start or load last read it; NULL: never */
    struct hps_error unusable;       /* why a load of its entry would fail; OK: it would not */
    unsigned differs; /* bits of definition.c: how the active version differs from the entry */
    bool by_hand;     /* it differs, and the entry is the same as when that version was loaded */
    bool drift;       /* it differs, and the entry changed since; or the entry is unusable */
    bool
        awaits; /* a load of its configured files is to begin, or under way: not ready until then */
    bool waiting;   /* for the loader thread to begin its load */
    bool unreached; /* a load failed as a store was away: if it is configured, then once more */
    struct hps_error failure; /* of its last load; OK: none, or it has had a version since */
};

struct hps_load {
    struct hps_task task;
    atomic_uint refs;
    struct hps_catalog *catalog;
    struct hps_load *next; /* of catalog->loads */
    struct hps_source source;
    struct hps_load_env env; /* as it was when the load began */
    struct hps_load_plan plan;
    struct hps_strings notes; /* set before the loader thread knows it */
    struct hps_load_progress progress;
    struct catalog_model *model;
    struct catalog_entry *entry;
    bool activate, force, replace;
    struct catalog_model *awaited; /* its `awaits` ends with this load; NULL: nothing does */
    char model_name[128];
    struct catalog_entry *waiting; /* published, and to be activated once it has its updates */
    uint64_t waiting_until_us;
    bool published; /* by the loader thread; `entry` and `model` are then the catalog's alone */
    _Atomic uint64_t duplicate_keys; /* by the loader thread, as the next ones */
    _Atomic uint64_t n_rows;
    _Atomic uint64_t n_rows_dropped;
    atomic_bool activated;
    /* under the catalog's lock */
    int64_t number;
    struct hps_versions_gone going; /* foreseen when it began */
    struct hps_switched outcome;    /* final when `done` */
    bool done;
    struct hps_error error;
};

struct hps_catalog {
    struct hps_catalog_options options;
    struct hps_lock lock; /* also over what a reload changes: of options.env, and these */
    struct hps_strings model_roots;
    uint32_t keep_versions;
    uint32_t warmup_timeout_s;
    uint32_t activate_lag_max_s;
    double activate_rows_loss_max;
    uint32_t hot_keys_save_s; /* 0: never */
    bool async_without_gpu;
    struct hps_lock
        switch_lock; /* one activate, rollback, unload or end of a load at a time; outer */
    struct catalog_model *models;
    struct hps_usages *usages; /* with the lock held */
    struct hps_load *loads;    /* under way */
    struct hps_pool *loader;
    struct hps_warmup *warmup;
    struct warm_up *warm_ups; /* under way */
    struct hps_pool *warmer;  /* one thread: warm-ups behind what is served, as long as they take */
    struct hps_pool *switcher; /* one thread: switches, each after a bounded warm-up; saves */
    struct hps_task save;      /* posted to it, once at a time */
    atomic_bool saving;
    uint64_t saved_us; /* by hps_catalog_tick alone, as the next */
    uint64_t tidied_us;
    struct hps_task tidy; /* posted to the loader, once at a time */
    atomic_bool tidying;
    bool opened;                     /* all that was stored is known */
    struct catalog_entry *unloading; /* published no more, still used or not removed yet */
    struct hps_cond reap;            /* `unloading` is not empty, or `closing` */
    struct hps_worker reaper;
    atomic_bool closing;
};

/* The catalog's stores by role. NULL: there is none. */
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

/* The model, made if `make`; NULL: not there (or no memory). Lock held. */
struct catalog_model *catalog_model(struct hps_catalog *catalog, const char *name, bool make);
struct catalog_entry *catalog_entry(struct catalog_model *model, int64_t number);
/* What holds of a model between two switches or unloads; asserted at the end of each. Lock held. */
void catalog_model_sane(struct catalog_model *model);
/* Take `version` (also on failure, NULL) into the list; it follows its entry. Lock held. */
struct catalog_entry *catalog_entry_add(struct hps_catalog *catalog, struct catalog_model *model,
                                        struct hps_version *version, enum entry_state state);
/* Give the version the policies that its entry and its embedding cache make. Lock held. */
void catalog_policies(const struct hps_catalog *catalog, struct catalog_entry *entry);
/* Unlink and free a model without versions. Lock held, or nobody else uses the catalog. */
void catalog_model_free(struct hps_catalog *catalog, struct catalog_model *model);
/* Unlink and free the entry, not its version; a model without versions that no configuration names
 * goes too. Lock held. */
void catalog_entry_remove(struct hps_catalog *catalog, struct catalog_model *model,
                          struct catalog_entry *entry);
/* Sort the spaces of its version by role. Lock held, or nobody else uses the catalog. */
void catalog_entry_spaces(struct catalog_entry *entry);
/* Where what is done with the version is counted. Lock held, or nobody else uses the catalog. */
void catalog_version_metrics(struct hps_catalog *catalog, struct hps_version *version);
/* Forget the series of one version, or of its model if that has no other. Lock held, the version
 * still in the list. */
void catalog_version_metrics_remove(struct hps_catalog *catalog, const struct hps_version *version);
uint64_t catalog_host_used(struct hps_catalog *catalog); /* lock held */
/* Rows of the only copy that overflow_margin has let go. Lock held. */
uint64_t catalog_rows_dropped(const struct catalog_entry *entry);
/* Share of a load that is done; 1 of a version that is loaded. Lock held. */
double catalog_load_ratio(const struct hps_catalog *catalog, const struct catalog_entry *entry);

/* ---- recover.c ------------------------------------------------------------------------------- */

/* Bring back the versions of the persistent store, which there is, and remove what no record names.
 * May block; nobody else uses the catalog. error: as hps_catalog_open */
hps_status catalog_recover(struct hps_catalog *catalog, struct hps_error *err) HPS_MUST_CHECK;
/* Have the loader thread warm up and refill the resident versions of a model, as after a start.
 * Lock held, or nobody else uses the catalog. */
void catalog_refill_model(struct hps_catalog *catalog, struct catalog_model *model);

/* ---- model.c: under switch_lock, or nobody else uses the catalog ----------------------------- */

/* What the model's record says from now on; `without`: a version that goes, 0: none. */
struct catalog_model_change {
    int64_t active, previous;
    uint64_t n_switches;
    int64_t without;
};

/* Write the model's record. May block; lock not held. */
hps_status catalog_put_model(struct hps_catalog *catalog, struct catalog_model *model,
                             const struct catalog_model_change *change, struct hps_error *err)
    HPS_MUST_CHECK;
/* Take over a record; versions are in the list already. ctx: the catalog. */
hps_status catalog_adopt_model(void *ctx, const struct hps_model_record *record);
/* After the versions are known for good: write the record anew if it is of an earlier build or
 * names versions that are gone, before another version gets such a number. May block. */
hps_status catalog_mend_model(struct hps_catalog *catalog, struct catalog_model *model,
                              struct hps_error *err) HPS_MUST_CHECK;
/* From now on it is the one that became active last. Lock held. */
void catalog_note_active(struct catalog_model *model, struct catalog_entry *active);
/* The model has no versions: its tables are in the order of models[], or in none. Lock held. */
hps_status catalog_configured_order(struct catalog_model *model) HPS_MUST_CHECK;
/* All that was stored of the model is known: complete the order of its tables from its versions,
 * and give each version its own. */
hps_status catalog_settle_order(struct catalog_model *model) HPS_MUST_CHECK;
/* Look-ups by position name tables by the model's order as it is now. NO_MEMORY: by the one before.
 */
hps_status catalog_tell_order(struct hps_catalog *catalog, const struct catalog_model *model)
    HPS_MUST_CHECK;

/* ---- switch.c -------------------------------------------------------------------------------- */

/* Make a resident version the active one and write it down. `back`: by a rollback, after which
 * there is no version to roll back to. switch_lock held, lock not. */
hps_status catalog_activate_locked(struct hps_catalog *catalog, struct catalog_model *model,
                                   int64_t number, bool back, struct hps_switched *out_switched,
                                   struct hps_error *err) HPS_MUST_CHECK;
/* How `version` (its tables; it need not be resident) differs from the model's active one; empty:
 * that is the same, or none. Lock held. */
hps_status catalog_diff(struct catalog_model *model, const struct hps_version *version,
                        struct hps_version_diff *out_diff) HPS_MUST_CHECK;
/* catalog_diff and catalog_check_diff of a resident version. switch_lock held, lock not. */
hps_status catalog_check_active(struct hps_catalog *catalog, struct catalog_model *model,
                                const struct catalog_entry *entry, struct hps_error *err)
    HPS_MUST_CHECK;
/* May it become the active one without `force`? PRECONDITION says why not. Lock held. */
hps_status catalog_check_diff(const struct hps_catalog *catalog, struct catalog_model *model,
                              int64_t number, const struct hps_version_diff *diff,
                              struct hps_error *err) HPS_MUST_CHECK;
/* Has the version its updates, as activate_lag_max_s demands? PRECONDITION. lock not held. */
hps_status catalog_check_lag(struct hps_catalog *catalog, const char *model, int64_t number,
                             struct hps_error *err) HPS_MUST_CHECK;
/* The gauge that says which version is active. */
void catalog_show_active(struct hps_catalog *catalog, const struct catalog_model *model);
/* Tell the host map which version's rows push out those of the others. With the lock held. */
void catalog_share_memory(const struct catalog_model *model);
/* The model and its resident version `number`, which stay while switch_lock is held. lock not held.
 */
hps_status catalog_resident(struct hps_catalog *catalog, const char *name, int64_t number,
                            struct catalog_model **out_model, struct catalog_entry **out_entry,
                            struct hps_error *err) HPS_MUST_CHECK;

/* ---- gpu.c ----------------------------------------------------------------------------------- */

/* The version's embedding caches, if its model has a device; without them it is served all the
 * same. Before it is published. lock not held. */
void catalog_gpu_open(struct hps_catalog *catalog, struct catalog_entry *entry);
/* No view sees them any more. Lock held. */
void catalog_gpu_hide(struct hps_catalog *catalog, struct catalog_entry *entry);
/* Hidden, and nobody uses the version. lock not held. */
void catalog_gpu_close(struct hps_version *version);
/* The entry is the model's active version from now on, or no more. entry: NULL is legal.
 * switch_lock held, lock not, as this waits for the device's thread. */
void catalog_gpu_active(const struct catalog_entry *entry, bool active);
/* Fill in what the device has of it, and tell the metrics what it has done since. Lock held. */
void catalog_gpu_view(struct hps_catalog *catalog, struct catalog_entry *entry,
                      struct hps_version_view *out_view);
/* What caches of these tables would take, as `config` (NULL: no entry) says. */
uint64_t catalog_gpu_bytes(const struct hps_catalog *catalog, const struct hps_version *version,
                           const struct hps_config_model *config);

/* ---- warm.c ---------------------------------------------------------------------------------- */

/* Warm up a version that serves, on a thread of `pool`; nothing if that is of no use. The version
 * is resident and stays so for the call. */
void catalog_warm_behind(struct hps_catalog *catalog, struct hps_pool *pool,
                         struct hps_version *version);
/* The same of one that is not the active one: only its tables that are cached whole. */
void catalog_warm_whole(struct hps_catalog *catalog, struct hps_pool *pool,
                        struct hps_version *version);
/* Put all rows of the version, on a thread of `pool`, into host memory, as it was before a start.
 * The version is resident and stays so for the call. */
void catalog_warm_refill(struct hps_catalog *catalog, struct hps_pool *pool,
                         struct hps_version *version);
/* Refill the caches of tables that are cached whole with what a load has loaded; and warm it up, if
 * it will be activated. Loader thread, no lock held. */
void catalog_warm_load(struct hps_load *load);
/* How far the warm-up of a version is: keys done, of how many; 0 of 0: none is under way. Lock
 * held. */
void catalog_warm_progress(const struct hps_catalog *catalog, const struct hps_version *version,
                           uint64_t *out_n_done, uint64_t *out_n_all);
/* `closing` is set. Ends the warm-up threads and writes the hot keys. */
void catalog_warm_stop(struct hps_catalog *catalog);

/* ---- load.c ---------------------------------------------------------------------------------- */

/* hps_catalog_load with the files that are open; takes what is in `source`, also on failure. May
 * block; lock not held. */
hps_status catalog_load_begin(struct hps_catalog *catalog, const struct hps_load_request *request,
                              struct hps_source *source, struct hps_load **out_load,
                              struct hps_error *err) HPS_MUST_CHECK;

/* ---- configured.c ---------------------------------------------------------------------------- */

/* The version number that an entry has, unless the model has that version already; 0: the next one.
 * lock not held. */
int64_t catalog_configured_number(struct hps_catalog *catalog,
                                  const struct hps_config_model *config);
/* Begin the first load of a configured model, or, `awaited`, that of its changed files: if a
 * resident version has those already it is only activated. Loader thread, no lock held. EXISTS: the
 * first one, and the model has a version; else as hps_catalog_load. */
hps_status catalog_load_config(struct hps_catalog *catalog, const struct hps_config_model *config,
                               bool awaited, struct hps_error *err) HPS_MUST_CHECK;

/* ---- ready.c --------------------------------------------------------------------------------- */

/* Set what look-ups of the model answer while it is to come: that, and how far it is. Lock held. */
void catalog_expect(struct hps_catalog *catalog, struct catalog_model *model);
/* The same of all models. Lock not held. */
void catalog_expect_all(struct hps_catalog *catalog);
/* Make the series that counts failures. Lock held, as the next three. */
void catalog_failures_show(const struct hps_catalog *catalog, const struct catalog_model *model);
/* A load of the model failed: count it, and keep why. */
void catalog_load_failed(const struct hps_catalog *catalog, struct catalog_model *model,
                         const struct hps_error *err);
/* The model has a version, and the model set knows. */
void catalog_load_succeeded(struct hps_catalog *catalog, struct catalog_model *model);
/* Forget the series of a model, but for that of its failures. */
void catalog_model_metrics_remove(const struct hps_catalog *catalog,
                                  const struct catalog_model *model);
/* Load the configured models without versions whose last load could not reach a store. Loader
 * thread, no lock held. */
void catalog_load_again(struct hps_catalog *catalog);

/* ---- request.c ------------------------------------------------------------------------------- */

/* A request, completed by its own entry. */
struct catalog_request {
    struct hps_load_request said; /* `entry`: its own, else the server's; NULL: none */
    struct hps_config *config;    /* the one that has its own entry */
    struct hps_notes entry_notes; /* of that */
    struct hps_source_named *tables;
    struct hps_buf text;
};

/* Any thread; lock not held. error   INVALID; NO_MEMORY. owner: catalog_request_close */
hps_status catalog_request_open(struct hps_catalog *catalog, const struct hps_load_request *request,
                                struct catalog_request *out_whole, struct hps_error *err)
    HPS_MUST_CHECK;
void catalog_request_close(struct catalog_request *whole);

/* ---- notes.c --------------------------------------------------------------------------------- */

/* The sentences of hps_load_notes. model: NULL if there is none. Lock held. NO_MEMORY. owner:
 * hps_strings_fini */
hps_status catalog_load_notes(const struct hps_catalog *catalog, const struct catalog_model *model,
                              const struct hps_load_request *request,
                              const struct hps_source *source, const struct hps_version *version,
                              struct hps_strings *out_notes) HPS_MUST_CHECK;

/* ---- definition.c ---------------------------------------------------------------------------- */

/* The entry that says how a version is served: the server's, else its own; NULL: none. Any thread.
 */
const struct hps_config_model *catalog_config(const struct catalog_entry *entry);
/* Read version->config and apply the entry to a new version. Lock held, or nobody else uses the
 * catalog. NO_MEMORY */
hps_status catalog_follow(const struct hps_catalog *catalog, struct catalog_entry *entry)
    HPS_MUST_CHECK;
/* Read the files of the server's entry of a model and compare the active version. May block; lock
 * not held. error: the files cannot be read, or a load of them would fail */
hps_status catalog_define(struct hps_catalog *catalog, const struct hps_config_model *config,
                          struct hps_error *err) HPS_MUST_CHECK;
void catalog_defined_free(struct catalog_defined *defined); /* NULL is legal */
/* Of the entry as it was last read; NULL: never. Lock held. */
const char *catalog_defined_hash(const struct catalog_model *model);
/* Would a load of the server's entry make this version? False if that is not known. Lock held. */
bool catalog_is_defined(const struct catalog_model *model, const struct hps_version *version);
/* Does a restart serve the version, if it is active then? model: NULL if there is none. Lock held.
 */
bool catalog_is_kept(const struct hps_catalog *catalog, const struct catalog_model *model,
                     const struct hps_version *version);
/* Set differs, by_hand and drift: after the active version changed. Lock held. */
void catalog_judge(const struct hps_catalog *catalog, struct catalog_model *model);
/* At a start: catalog_define, and log differences or set awaits. Nobody else uses the catalog. */
void catalog_check_files(struct hps_catalog *catalog, struct catalog_model *model);
/* The configured files are not awaited any more. Lock held. */
void catalog_await_end(struct hps_catalog *catalog, struct catalog_model *model);
/* The resident version that a load of the server's entry would make; 0: none. lock not held. */
int64_t catalog_find_defined(struct hps_catalog *catalog, const char *model);

/* ---- source.c -------------------------------------------------------------------------------- */

/* The files that a request names, all below server.model_roots. May block; lock not held. error
 * INVALID, NOT_FOUND, PERMISSION, NO_MEMORY; out_source: hps_source_close */
hps_status catalog_source_open(struct hps_catalog *catalog, const struct hps_load_request *request,
                               struct hps_source *out_source, struct hps_error *err) HPS_MUST_CHECK;
/* Those that models[] names. May block; lock not held. Errors as above. */
hps_status catalog_source_open_config(struct hps_catalog *catalog,
                                      const struct hps_config_model *config,
                                      struct hps_source *out_source, struct hps_error *err)
    HPS_MUST_CHECK;

/* ---- unload.c -------------------------------------------------------------------------------- */

hps_status catalog_reaper_start(struct hps_catalog *catalog, struct hps_error *err) HPS_MUST_CHECK;
/* `closing` is set. Who still waits is told UNAVAILABLE. */
void catalog_reaper_stop(struct hps_catalog *catalog);
/* Unpublish, beyond keep_versions, the versions that have been active, those first that were it the
 * longest time ago; let catalog_reap follow. switch_lock held, lock not. */
void catalog_retire_locked(struct hps_catalog *catalog, struct catalog_model *model,
                           struct hps_versions_gone *out_gone);
/* Unpublish the versions that never were active, but `keep`; otherwise as catalog_retire_locked. */
void catalog_replace_locked(struct hps_catalog *catalog, struct catalog_model *model, int64_t keep,
                            struct hps_versions_gone *out_gone);
/* What a load will take out, as far as can be foreseen. Lock held. */
void catalog_foresee(const struct hps_catalog *catalog, const struct catalog_model *model,
                     bool activate, bool replace, struct hps_versions_gone *out_gone);
/* Remove the unloading versions that nobody uses; the reaper does so with the others later. No lock
 * held. */
void catalog_reap(struct hps_catalog *catalog);
/* Now and then have the loader thread do what a shared store that was unreachable has left undone:
 * delete what unloaded versions have there; where it has the only copy, load what is configured. */
void catalog_tidy(struct hps_catalog *catalog);

#endif

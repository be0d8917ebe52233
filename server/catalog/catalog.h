/* SPDX-License-Identifier: Apache-2.0
 *
 * The catalog of models and versions: loads, switches, rolls back and unloads them at run time, and
 * keeps records of them in the persistent store, so that a restart serves what was served before.
 *
 * Any thread. Calls that say "may block" do I/O: not on a loop thread.
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
    struct hps_models *models;       /* borrowed, as all of these */
    const struct hps_config *config; /* later only its models[] are read, and not their policies */
    struct hps_metrics *metrics;
    struct hps_insertion *insertion; /* NULL: there is none */
    struct hps_devices *devices;     /* NULL: there is none */
    struct hps_updater *updater;     /* NULL: versions take no updates; stopped by the stop */
    struct hps_load_env env;         /* memory_bytes and nan_allowed are the configuration's */
};

/* Bring back the versions of the persistent store and remove what no record names. May block.
 * error   DATA_LOSS: a record cannot be read; what the store says */
hps_status hps_catalog_open(const struct hps_catalog_options *options,
                            struct hps_catalog **out_catalog, struct hps_error *err) HPS_MUST_CHECK;
/* Have each models[] entry that has no version yet loaded; what fails is logged and keeps the
 * server unready. And those of --table whose files have changed since they were loaded, as the next
 * version, which becomes the active one; until then the server is unready, too. If that fails it is
 * logged, and what is stored is served. Their files are opened on the loader thread: this does not
 * wait. */
void hps_catalog_ensure_models(struct hps_catalog *catalog);
/* The same of those whose load has failed. */
void hps_catalog_retry_models(struct hps_catalog *catalog);
/* What an operator may change while the catalog is open, as `config` says now: policies of models,
 * and for loads that begin from now on their limits, the versions that are kept and the roots.
 * takes `model_roots`: a copy of the configuration's. Main thread; `config` has the models of the
 * options. */
void hps_catalog_reconfigure(struct hps_catalog *catalog, const struct hps_config *config,
                             struct hps_strings *model_roots);
/* A device was lost: from now on versions with caches on it are served without. */
void hps_catalog_device_lost(struct hps_catalog *catalog);
/* Begin what is due: now and then hot keys are written. Main thread, at least once a second. */
void hps_catalog_tick(struct hps_catalog *catalog);
/* End the catalog's threads and write the hot keys: loads are cancelled, and who waits for an
 * unload gets UNAVAILABLE. No call that changes anything may follow, only views and the close.
 * May block. */
void hps_catalog_stop(struct hps_catalog *catalog);
/* Stop, remove what is still unloading, close every space. No pin may be left. May block. */
void hps_catalog_close(struct hps_catalog *catalog);

/* ---- loads ----------------------------------------------------------------------------------- */

struct hps_load_request {
    const char *model;
    const char *directory;                 /* of all tables; "" or NULL: `tables` names them */
    const struct hps_source_named *tables; /* [n_tables] in the order that the model has them */
    size_t n_tables;
    /* Instead of both: an entry of models[] as JSON, whose name is ignored; "" or NULL: none. The
     * other fields (version, label, lineage, row_dtype) override it. */
    const char *config;
    const struct hps_config_model *entry; /* NULL: the catalog sets this and the next */
    const struct hps_notes *entry_notes;  /* of `config`; NULL: none */
    int64_t version;                      /* 0: the highest + 1 */
    const char *label;                    /* "" or NULL: none */
    const char *lineage;                  /* "" or NULL: that of the newest version */
    struct hps_row_wish row_dtype; /* of all tables; not given: as `tables` say, or models[] */
    bool activate;
    bool awaited;    /* its model, a configured one, is not ready before it has ended */
    bool only_first; /* EXISTS if the model has a version, or one is loading */
    bool force;      /* activate it however much it differs from the active version */
    bool replace;    /* when it is loaded, versions that never were active go */
};

/* Versions that go with a switch or a load. */
enum { HPS_VERSIONS_GONE_MAX = 64 };
struct hps_versions_gone {
    int64_t numbers[HPS_VERSIONS_GONE_MAX];
    uint32_t n;
};

/* What a switch did, or a load without one. Free `diff`. */
struct hps_switched {
    int64_t version;              /* 0: none was activated, as yet */
    int64_t previous;             /* 0: none was active */
    uint64_t pause_us;            /* that others were held up */
    struct hps_version_diff diff; /* to the version that was active */
    struct hps_versions_gone gone;
};

struct hps_load; /* a load under way; reference-counted, outlives the catalog's own interest */

struct hps_load_state {
    int64_t version;
    const char *stage;
    char table[128];
    uint64_t rows_done, rows_total, bytes_done, bytes_total, remaining_ms;
    uint64_t duplicate_keys;
    uint64_t n_rows;         /* that the version has, once `done`; without duplicates */
    uint64_t n_rows_dropped; /* of these, that overflow_margin has let go of the only copy */
    struct hps_versions_gone
        going; /* versions that are to go with it, as foreseen; gone, if done */
    bool done;
    bool activated;
    struct hps_error error; /* status OK unless the load failed */
};

enum { HPS_ENTRY_BYTES_MAX = 1 << 20 }; /* of hps_load_request.config */

/* Check the request and begin. May block (opens the files). out_load: a reference of the caller's.
 * error   INVALID, NOT_FOUND, EXISTS (the version), PERMISSION (outside model_roots), EXHAUSTED,
 *         PRECONDITION (to be activated, but it differs too much from the active version),
 *         UNAVAILABLE (draining) */
hps_status hps_catalog_load(struct hps_catalog *catalog, const struct hps_load_request *request,
                            struct hps_load **out_load, struct hps_error *err) HPS_MUST_CHECK;
/* Load what models[] says of the model, as its next version, and activate it. If a version was
 * loaded from the very same files that one is activated, and *out_load is NULL. Otherwise as
 * hps_catalog_load; NOT_FOUND also: models[] has no such model. */
hps_status hps_catalog_load_configured(struct hps_catalog *catalog, const char *model,
                                       struct hps_load **out_load, struct hps_error *err)
    HPS_MUST_CHECK;
/* What hps_catalog_load would need and change. May block. out_version holds the tables; free it
 * with hps_version_free. out_effect: `diff`, to be freed, and what would go. out_notes: as
 * hps_load_notes, to be freed. Errors as above, but for PRECONDITION: the difference says it. */
hps_status hps_catalog_load_plan(struct hps_catalog *catalog,
                                 const struct hps_load_request *request,
                                 struct hps_load_plan *out_plan, struct hps_version **out_version,
                                 struct hps_switched *out_effect, struct hps_strings *out_notes,
                                 struct hps_error *err) HPS_MUST_CHECK;
void hps_load_state_get(struct hps_load *load, struct hps_load_state *out_state);
/* Once it is done: what it did, as long as the caller has the load. */
const struct hps_switched *hps_load_outcome(const struct hps_load *load);
/* Once it is done: what it has made of the rows of its tables, as long as the caller has the load.
 * shape: [*out_n]; names by hps_load_table_name. */
const struct hps_load_conversion *hps_load_conversions(const struct hps_load *load,
                                                       uint32_t *out_n);
/* One sentence each: order of the tables, start of updates, inherited lineage, ignored options of
 * its entry, whether a restart keeps the version. Valid while the caller holds the load. */
const struct hps_strings *hps_load_notes(const struct hps_load *load);
const char *hps_load_table_name(const struct hps_load *load, uint32_t table);
void hps_load_unref(struct hps_load *load);

/* ---- versions -------------------------------------------------------------------------------- */

/* All may block. At once, without a warm-up before. NOT_FOUND: no such model or version;
 * PRECONDITION: not possible now; activate without `force`: it differs too much from the active
 * version. out_switched: set on success, `diff` to be freed. */
hps_status hps_catalog_activate(struct hps_catalog *catalog, const char *model, int64_t version,
                                bool force, struct hps_switched *out_switched,
                                struct hps_error *err) HPS_MUST_CHECK;
hps_status hps_catalog_rollback(struct hps_catalog *catalog, const char *model,
                                struct hps_switched *out_switched, struct hps_error *err)
    HPS_MUST_CHECK;
/* Who wants to know how a switch ends. */
struct hps_switch {
    /* Called once, with status OK or why it failed: on the caller's thread (also before
     * hps_catalog_switch returns), the warm-up thread, or that of hps_catalog_stop. Must not block.
     */
    void (*done)(struct hps_switch *waiter, const struct hps_error *error);
    bool force;                   /* as of hps_catalog_activate */
    struct hps_switched switched; /* set before a `done` with OK; whoever waits frees its diff */
};

/* hps_catalog_activate, after a warm-up of server.warmup_timeout_s at most where that is of use.
 * Does not wait for it. May block for small writes. */
void hps_catalog_switch(struct hps_catalog *catalog, const char *model, int64_t version,
                        struct hps_switch *waiter);
/* Who wants to know how an unload ends. */
struct hps_unload {
    /* Called once, with status OK or why it failed: on the caller's thread (also before
     * hps_catalog_unload returns), the catalog's own, or that of hps_catalog_stop. Must not block.
     */
    void (*done)(struct hps_unload *unload, const struct hps_error *error);
};

/* Take a version out. When this returns OK no new request gets it, also after a restart; its rows
 * go when the last request that uses it has ended, and then unload->done is called. The active
 * version only when it is the model's last.
 * error   also PRECONDITION: it is unloading already. Then unload->done is never called. */
hps_status hps_catalog_unload(struct hps_catalog *catalog, const char *model, int64_t version,
                              struct hps_unload *unload, struct hps_error *err) HPS_MUST_CHECK;

/* Take out all versions of a model, the active one last, as hps_catalog_unload does each; nobody is
 * told when their rows are gone. out_gone: also on failure.
 * error   NOT_FOUND: it has none; PRECONDITION: one is loading, and would be served again */
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
    bool rows_estimated;       /* n_rows are: it has had updates */
    uint64_t n_rows_dropped;   /* of the only copy, by overflow_margin */
    struct hps_gpu_space *gpu; /* NULL: it has no embedding cache */
    uint64_t gpu_rows, gpu_bytes;
    const struct hps_embed_range_usage *gpu_usages; /* [n_tables]; NULL: as gpu */
    char gpu_note[64]; /* why it has none, or not all, though its model is to; "": it has */
    double load_ratio; /* share of the load that is done; 1 once it is */
    /* Of a warm-up that is under way: hot keys that were tried, and all; 0: there is none. */
    uint64_t n_keys_warm, n_keys_hot;
};

/* Calls `fn` for every version, models by name, versions ascending, under the catalog's lock: copy
 * what is needed, call nothing of the catalog. */
void hps_catalog_each(struct hps_catalog *catalog,
                      void (*fn)(void *ctx, const struct hps_version_view *view), void *ctx);
enum { HPS_MODEL_WHY_BYTES = 640 };

/* A model that has no version that serves. */
struct hps_unserved_view {
    const char *model;
    const char *state; /* "loading", "failed", "absent" */
    const char *why;   /* a sentence that names the model, with the progress of a load */
};

/* Calls `fn` for each, by name, as hps_catalog_each. */
void hps_catalog_each_unserved(struct hps_catalog *catalog,
                               void (*fn)(void *ctx, const struct hps_unserved_view *view),
                               void *ctx);
/* Every models[] entry and every model has an active version, no other is awaited, and no rows are
 * out of reach because the one store that has them is made of servers of which some are away.
 * Otherwise `fn` gets each reason. Whoever wants to know whether the server is ready asks
 * server/catalog/readiness.h. */
bool hps_catalog_ready(struct hps_catalog *catalog, void (*fn)(void *ctx, const char *reason),
                       void *ctx);
/* Calls `fn` with a sentence for each model whose active version differs from models[], and for
 * each version whose label a load would refuse today. As hps_catalog_each. */
void hps_catalog_notes(struct hps_catalog *catalog, void (*fn)(void *ctx, const char *note),
                       void *ctx);
/* Models whose models[] entry changed after the active version was loaded; returns how many. */
unsigned hps_catalog_drift(struct hps_catalog *catalog, void (*fn)(void *ctx, const char *model),
                           void *ctx);
const struct hps_load_env *hps_catalog_env(const struct hps_catalog *catalog);
struct hps_catalog_totals {
    uint64_t host_rows, host_rows_dropped, host_bytes, shared_rows, shared_bytes, persistent_rows,
        persistent_bytes;
    bool persistent_estimated; /* persistent_rows are */
    unsigned n_loading;
};
void hps_catalog_totals_get(struct hps_catalog *catalog, struct hps_catalog_totals *out_totals);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Hot keys are the keys that lookups use most often. They are counted in lookups, and saved as
 * records in the persistent store. A warm-up inserts their rows into the host map and the embedding
 * caches of a version, after a restart and when a version becomes active. Hot keys are kept by
 * model and table name, so that later versions of the model use them, too.
 *
 * The catalog decides when to save and to warm up. Calls that may block run on its loader, warmup
 * and switch threads.
 */
#ifndef HPS_SERVER_LOAD_WARMUP_H
#define HPS_SERVER_LOAD_WARMUP_H

#include "cache/version/version.h"
#include "server/observe/metrics.h"

struct hps_warmup;

struct hps_warmup_options {
    struct hps_store *host; /* NULL: no host map */
    /* Whether versions may have embedding caches. If this is false and there is no host map, keys
     * are not counted. */
    bool gpu;
    struct hps_store *durable; /* the persistent store; NULL: nothing is saved */
    uint64_t host_bytes_max;   /* capacity of the host map: limits how many keys are counted */
    uint64_t hot_bytes_max;    /* memory for the counts of one model; 0: nothing is counted */
    bool read_only;            /* write and delete no records */
    struct hps_metrics *metrics;
};

/* Pointers in `options` are borrowed until hps_warmup_free. NULL: out of memory. */
struct hps_warmup *hps_warmup_new(const struct hps_warmup_options *options);
/* No lookup may use an attached version any more. No effect if NULL. */
void hps_warmup_free(struct hps_warmup *warmup);

/* Attach the version's model and tables: lookups of the version are counted. If there is no memory
 * for the counts of a table, lookups of this table are not counted. Call it before the version is
 * published. */
void hps_warmup_attach(struct hps_warmup *warmup, struct hps_version *version);
/* Read the records, and add their counts to the counts of attached tables. An unreadable record is
 * skipped with a warning. May block. Call it once, before the first lookup. */
void hps_warmup_read(struct hps_warmup *warmup);
/* Detach a model after its last version was removed. The next save deletes the model's hot keys. */
void hps_warmup_detach(struct hps_warmup *warmup, const char *model);
/* Save the hot keys of each model that had lookups since the last save, or whose last save failed.
 * Also delete the records of models that are not attached. Failures are logged. May block; one
 * thread at a time.
 * write   false: save and delete nothing
 * age     call hps_hot_age for all counts afterwards, so that later lookups have more weight */
void hps_warmup_save(struct hps_warmup *warmup, bool write, bool age);

/* Why a warm-up ended. */
enum hps_warmup_end {
    HPS_WARMUP_DONE,        /* all hot keys were tried */
    HPS_WARMUP_NO_CAPACITY, /* the host map had no capacity for some of them */
    HPS_WARMUP_TIME,        /* the deadline has passed */
    HPS_WARMUP_STOPPED,     /* go_on returned false */
    HPS_WARMUP_FAILED       /* a store failed, or there was no memory */
};
const char *hps_warmup_end_text(enum hps_warmup_end end); /* static text, for the log */

struct hps_warmup_report {
    enum hps_warmup_end end;
    uint64_t n_keys_all; /* hot keys of all tables */
    uint64_t n_keys;     /* of these, keys that were tried */
    uint64_t n_rows;     /* rows inserted into the host map */
    uint64_t n_gpu_rows; /* rows queued for the device, which may still refuse some */
    uint64_t duration_us;
    struct hps_error error; /* the failure; status OK unless end is HPS_WARMUP_FAILED */
};

/* Limits of one warm-up. */
struct hps_warmup_limits {
    const atomic_bool *cancel; /* hps_thread_interrupt(cancel) ends a pause; may be NULL */
    uint64_t deadline_us;      /* hps_clock_us; 0: no deadline */
    /* Called before each batch. Returns false to stop the warm-up. *out_free_bytes: bytes of the
     * host map that the next rows may use. */
    bool (*go_on)(void *ctx, const struct hps_warmup_report *so_far, uint64_t *out_free_bytes);
    void *ctx;
};

/* Whether a warm-up of this version can have an effect. Any thread. */
bool hps_warmup_useful(struct hps_warmup *warmup, const struct hps_version *version);
/* Insert the rows of the model's hot keys into the host map, as rows of `version`: the hottest keys
 * first, until the map is full. If the model has init_ec, also insert the rows into the embedding
 * caches of `version`. The rows are read from lower tiers. The calling thread pauses for about half
 * of the time. The version must be pinned or not yet published. May block. Any thread; calls may
 * run in parallel. */
void hps_warmup_run(struct hps_warmup *warmup, struct hps_version *version,
                    const struct hps_warmup_limits *limits, struct hps_warmup_report *out_report);
/* Pause for the time that has passed since start_us (hps_clock_us), at most 50 ms. Background
 * threads that fill memory call it after each batch, to leave half of CPU and disk to lookups. */
void hps_warmup_pause_after(const struct hps_warmup_limits *limits, uint64_t start_us);

#endif

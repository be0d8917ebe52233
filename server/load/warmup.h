/* SPDX-License-Identifier: Apache-2.0
 *
 * Hot keys: counted in lookups, saved as records in the persistent store, and loaded from there
 * into the host map and the embedding caches. Warm-ups serve versions after a restart and versions
 * that become active. Hot keys belong to the names of model and table, so the next version can use
 * them.
 *
 * The catalog decides when. Calls that may block run on its loader, warmup and switch threads.
 */
#ifndef HPS_SERVER_LOAD_WARMUP_H
#define HPS_SERVER_LOAD_WARMUP_H

#include "cache/version/version.h"
#include "server/observe/metrics.h"

struct hps_warmup;

struct hps_warmup_options {
    struct hps_store *host; /* NULL: no host map */
    /* versions may have embedding caches; without these and a host map nothing is counted */
    bool gpu;
    struct hps_store *durable; /* NULL: nothing is saved */
    uint64_t host_bytes_max;   /* limits the number of keys that are counted */
    uint64_t hot_bytes_max;    /* memory for the counts of one model; 0: nothing is counted */
    bool read_only;            /* no record is written or removed */
    struct hps_metrics *metrics;
};

/* NULL: out of memory. */
struct hps_warmup *hps_warmup_new(const struct hps_warmup_options *options);
/* No attached version may be in use. No effect if NULL. */
void hps_warmup_free(struct hps_warmup *warmup);

/* Count the keys of lookups of this version from now on. Without memory for its counts a table is
 * not counted. Call it before the version is published. */
void hps_warmup_attach(struct hps_warmup *warmup, struct hps_version *version);
/* Add the counts of the records to the attached tables. An unreadable record is skipped with a
 * warning. May block; call it once, before lookups are counted. */
void hps_warmup_read(struct hps_warmup *warmup);
/* The model has no version any more, and none is in use: the next save deletes its hot keys. */
void hps_warmup_detach(struct hps_warmup *warmup, const char *model);
/* Save the hot keys of each model that was used since the last save, and delete the records of
 * models that are not attached. Failures are logged. May block; one thread at a time.
 * write   false: save and delete nothing
 * age     halve all counts, so that later lookups count more */
void hps_warmup_save(struct hps_warmup *warmup, bool write, bool age);

enum hps_warmup_end {
    HPS_WARMUP_DONE,
    HPS_WARMUP_NO_ROOM,
    HPS_WARMUP_TIME,
    HPS_WARMUP_STOPPED,
    HPS_WARMUP_FAILED
};
const char *hps_warmup_end_text(enum hps_warmup_end end);

struct hps_warmup_report {
    enum hps_warmup_end end;
    uint64_t n_keys_all; /* hot keys of all tables */
    uint64_t n_keys;     /* of these, keys that were tried */
    uint64_t n_rows;     /* inserted into the host map */
    uint64_t n_gpu_rows; /* offered to the device */
    uint64_t duration_us;
    struct hps_error error; /* if end is HPS_WARMUP_FAILED */
};

/* Limits of one warm-up. */
struct hps_warmup_limits {
    const atomic_bool *cancel; /* set with hps_thread_interrupt; NULL: never */
    uint64_t deadline_us;      /* hps_clock_us; 0: none */
    /* Called before each batch. False: stop. out_room_bytes: host memory that rows may use. */
    bool (*go_on)(void *ctx, const struct hps_warmup_report *so_far, uint64_t *out_room_bytes);
    void *ctx;
};

/* Whether a warm-up of this version can have an effect. */
bool hps_warmup_useful(struct hps_warmup *warmup, const struct hps_version *version);
/* Insert the rows of the model's hot keys into the host map of `version`, while it has capacity,
 * and with init_ec into its embedding caches. The hottest keys come first; rows are read from the
 * tiers below. The thread pauses for half of the time. The version must be pinned or not yet
 * published. May block; any thread, several at once. */
void hps_warmup_run(struct hps_warmup *warmup, struct hps_version *version,
                    const struct hps_warmup_limits *limits, struct hps_warmup_report *out_report);
/* Pause for as long as the work since start_us took, at most 50 ms, so that lookups get the other
 * half of CPU and disk. For background threads that fill memory. */
void hps_warmup_pause_after(const struct hps_warmup_limits *limits, uint64_t start_us);

#endif

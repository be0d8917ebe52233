/* SPDX-License-Identifier: Apache-2.0
 *
 * Hot keys, from look-ups into records of the persistent store and from there into the host map and
 * the embedding caches: of the versions that a restart brings back, and of a version that takes
 * over. Hot keys are kept by the names of model and table, so that the next version can use them.
 *
 * The catalog decides when; what may block runs on its loader and warm-up threads.
 */
#ifndef HPS_SERVER_LOAD_WARMUP_H
#define HPS_SERVER_LOAD_WARMUP_H

#include "cache/version/version.h"
#include "server/observe/metrics.h"

struct hps_warmup;

struct hps_warmup_options {
    struct hps_store *host;    /* NULL: no host map, none is warmed */
    bool gpu;                  /* versions may have embedding caches; without these and without a
                                  host map nothing is counted */
    struct hps_store *durable; /* NULL: nothing is kept */
    uint64_t host_bytes_max;   /* more keys than fit it are not worth counting */
    uint64_t hot_bytes_max;    /* for the counts of one model; 0: nothing is counted */
    bool read_only;            /* no record is written or removed */
    struct hps_metrics *metrics;
};

/* NULL: no memory. */
struct hps_warmup *hps_warmup_new(const struct hps_warmup_options *options);
/* No version that is attached may be in use. NULL is legal. */
void hps_warmup_free(struct hps_warmup *warmup);

/* Count from now on what is asked of this version. A table whose counts find no memory is not
 * counted. Before the version is published. */
void hps_warmup_attach(struct hps_warmup *warmup, struct hps_version *version);
/* Take over what the records say of the tables that are attached. A record that cannot be read is
 * left out, with a warning. May block; once, before anything is noted. */
void hps_warmup_read(struct hps_warmup *warmup);
/* The model has no version any more, and none is in use: the next save forgets its keys. */
void hps_warmup_detach(struct hps_warmup *warmup, const char *model);
/* Write the hot keys of each model that was used since the last time, and remove those of models
 * that were never attached or are detached. Failures are logged. May block; one thread at a time.
 * write: else only what `age` says
 * age: what was asked for up to now is worth half as much from now on */
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
    uint64_t n_keys_all; /* hot ones of all tables */
    uint64_t n_keys;     /* of them, that were tried */
    uint64_t n_rows;     /* put into the host map */
    uint64_t n_gpu_rows; /* offered to the device */
    uint64_t duration_us;
    struct hps_error error; /* of HPS_WARMUP_FAILED */
};

/* What one warm-up may cost. */
struct hps_warmup_limits {
    const atomic_bool *cancel; /* set by hps_thread_interrupt: stop; NULL: never */
    uint64_t deadline_us;      /* hps_clock_us; 0: none */
    /* Asked before each batch. false: stop. out_room_bytes: that rows may take. */
    bool (*go_on)(void *ctx, const struct hps_warmup_report *so_far, uint64_t *out_room_bytes);
    void *ctx;
};

/* Is there anything to do for this version? */
bool hps_warmup_useful(struct hps_warmup *warmup, const struct hps_version *version);
/* Put the rows of the model's hot keys into the host map of `version`, as long as it has room, and
 * into its embedding caches, if its model has init_ec; the hottest first, from the tiers below, on
 * half of this thread's time. The version is pinned or not yet published. May block; any thread,
 * several at once. */
void hps_warmup_run(struct hps_warmup *warmup, struct hps_version *version,
                    const struct hps_warmup_limits *limits, struct hps_warmup_report *out_report);
/* Sleep as long again as the work since then took, 50 ms at most: half of the time is for others,
 * and so is the disk. Of threads that put rows into memory behind what is served. */
void hps_warmup_pause_after(const struct hps_warmup_limits *limits, uint64_t start_us);

#endif

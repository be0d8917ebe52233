/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of warm-ups share: warmup.c (which keys are hot, and their records), warmup_run.c
 * (their rows into memory) and whole.c (all rows of a table onto a device).
 */
#ifndef HPS_SERVER_LOAD_WARMUP_INTERNAL_H
#define HPS_SERVER_LOAD_WARMUP_INTERNAL_H

#include "base/lock.h"
#include "cache/lookup/hot.h"
#include "server/load/warmup.h"

enum {
    WARMUP_BATCH_KEYS_MAX = 1024, /* read and inserted together, */
    WARMUP_BATCH_BYTES_MAX = 1 << 20,
    WARMUP_LOOK_US = 20 * 1000 /* whether it is to stop, while it waits for a device's caches */
};

/* Keys of one batch of a table: at least one. */
static inline uint32_t warmup_batch_keys(const struct hps_table *table)
{
    uint32_t n = WARMUP_BATCH_BYTES_MAX / table->row_bytes;

    return n < 1 ? 1 : n < WARMUP_BATCH_KEYS_MAX ? n : WARMUP_BATCH_KEYS_MAX;
}

struct warm_table {
    struct warm_table *next;
    char *name;
    struct hps_hot *hot; /* lives as long as this */
};

struct warm_model {
    struct warm_model *next;
    char *name;
    struct warm_table *tables;
    bool attached; /* there is, or was a moment ago, a version of it */
    /* Only of the thread that saves. */
    uint32_t n_records; /* numbers of records in the store are below this */
    uint64_t n_seen;    /* at the last save */
    bool stale;         /* the last save failed */
};

struct hps_warmup {
    struct hps_warmup_options options;
    struct hps_metric *rows;
    struct hps_lock lock; /* over the lists, which only a save shortens, and `attached` */
    struct warm_model *models;
};

/* The model of this name. Lock held. NULL: not there, or no memory to make it. */
struct warm_model *warmup_model(struct hps_warmup *warmup, const char *name, bool make);
/* The table of this name, which has `size` bytes. Lock held. NULL: not there. */
struct warm_table *warmup_table(const struct warm_model *model, const char *name, size_t size);

#endif

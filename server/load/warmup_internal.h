/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of warm-ups:
 *
 * - warmup.c: hot keys and their records
 * - warmup_run.c: rows of hot keys into memory
 * - whole.c: all rows of a table onto a device
 */
#ifndef HPS_SERVER_LOAD_WARMUP_INTERNAL_H
#define HPS_SERVER_LOAD_WARMUP_INTERNAL_H

#include "base/lock.h"
#include "cache/lookup/hot.h"
#include "server/load/warmup.h"

enum {
    WARMUP_BATCH_KEYS_MAX = 1024, /* keys that are read and inserted together */
    WARMUP_BATCH_BYTES_MAX = 1 << 20,
    /* interval of checks for a stop while waiting for a device's caches */
    WARMUP_LOOK_US = 20 * 1000
};

/* Number of keys in a batch of a table; at least 1. */
static inline uint32_t warmup_batch_keys(const struct hps_table *table)
{
    uint32_t n = WARMUP_BATCH_BYTES_MAX / table->row_bytes;

    return n < 1 ? 1 : n < WARMUP_BATCH_KEYS_MAX ? n : WARMUP_BATCH_KEYS_MAX;
}

struct warm_table {
    struct warm_table *next;
    char *name;
    struct hps_hot *hot; /* same life as this struct */
};

struct warm_model {
    struct warm_model *next;
    char *name;
    struct warm_table *tables;
    bool attached; /* a version exists, or existed at the last save */
    /* Used only by the thread that saves: */
    uint32_t n_records; /* record numbers in the store are below this */
    uint64_t n_seen;    /* lookups counted at the last save */
    bool stale;         /* the last save failed */
};

struct hps_warmup {
    struct hps_warmup_options options;
    struct hps_metric *rows;
    struct hps_lock lock; /* protects the lists, which only a save shortens, and `attached` */
    struct warm_model *models;
};

/* Find or make the model. Lock held. NULL: not found, or out of memory. */
struct warm_model *warmup_model(struct hps_warmup *warmup, const char *name, bool make);
/* Find the table of this name of `size` bytes. Lock held. NULL: not found. */
struct warm_table *warmup_table(const struct warm_model *model, const char *name, size_t size);

#endif

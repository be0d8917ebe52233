/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of warm-ups:
 *
 * - warmup.c: counts hot keys, and saves and reads their records
 * - warmup_run.c: inserts the rows of hot keys into the host map and embedding caches
 * - whole.c: inserts all rows of a table into its embedding cache
 */
#ifndef HPS_SERVER_LOAD_WARMUP_INTERNAL_H
#define HPS_SERVER_LOAD_WARMUP_INTERNAL_H

#include "base/lock.h"
#include "cache/lookup/hot.h"
#include "server/load/warmup.h"

enum {
    WARMUP_BATCH_KEYS_MAX = 1024,     /* keys that are read and inserted together */
    WARMUP_BATCH_BYTES_MAX = 1 << 20, /* bytes of their rows */
    /* While a warm-up waits for a device's caches, it checks at this interval whether to stop. */
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
    struct hps_hot *hot; /* the counts; versions point to it while the model is attached */
};

struct warm_model {
    struct warm_model *next;
    char *name;
    struct warm_table *tables;
    bool attached; /* true after hps_warmup_attach, false after hps_warmup_detach */
    /* The thread that saves uses the next three fields. Before the first save, hps_warmup_read may
     * set them. */
    uint32_t n_records; /* the numbers of the model's records in the store are below this */
    uint64_t n_seen;    /* sum of hps_hot_seen of all tables at the last save */
    bool stale;         /* the last save failed, or a record was unreadable: save again */
};

struct hps_warmup {
    struct hps_warmup_options options;
    struct hps_metric *rows; /* insertion_rows_total of the host map by warm-ups */
    struct hps_lock lock;    /* protects `attached` and the lists; only a save removes list items */
    struct warm_model *models;
};

/* Find the model of this name, or create it if `make`. NULL: not found, or out of memory. Lock
 * held. */
struct warm_model *warmup_model(struct hps_warmup *warmup, const char *name, bool make);
/* Find the table whose name is name[size]. NULL: not found. Lock held. */
struct warm_table *warmup_table(const struct warm_model *model, const char *name, size_t size);

#endif

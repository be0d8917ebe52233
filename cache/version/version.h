/* SPDX-License-Identifier: Apache-2.0
 *
 * One resident version of a model: its tables, and the space each tier keeps for it. Immutable but
 * for its policies, counters and pins. Whoever uses a version holds a pin; the catalog frees it
 * when it has been taken out of the model set and the last pin is gone. Any thread, under a pin.
 */
#ifndef HPS_CACHE_VERSION_VERSION_H
#define HPS_CACHE_VERSION_VERSION_H

#include <stdatomic.h>

#include "backends/store.h"
#include "base/metric.h"
#include "cache/version/stamps.h"

struct hps_updates;
struct hps_gpu_space;
struct hps_usage;

enum { HPS_PIN_SHARDS = 16, HPS_TIERS_MAX = HPS_TIER_COUNT };

enum hps_miss_policy {                     /* numbers of hps.v1.MissPolicy */
                       HPS_MISS_MODEL = 0, /* the version's own */
                       HPS_MISS_EXACT = 1,
                       HPS_MISS_WAIT = 2,
                       HPS_MISS_MEMORY_ONLY = 3,
                       HPS_MISS_THRESHOLD = 4
};

enum hps_unknown_policy {                        /* numbers of hps.v1.UnknownKeyPolicy */
                          HPS_UNKNOWN_MODEL = 0, /* the version's own */
                          HPS_UNKNOWN_DEFAULT_ROW = 1,
                          HPS_UNKNOWN_ZERO = 2,
                          HPS_UNKNOWN_ERROR = 3
};

/* Series of one table of a model; looked up once, shared by all versions of the model. */
struct hps_table_metrics {
    struct hps_metric *keys_found; /* lookup_keys_total{status} */
    struct hps_metric *keys_defaulted;
    struct hps_metric *keys_unknown;
    struct hps_metric *unique_keys; /* lookup_unique_keys_total */
    struct hps_metric *absent_keys; /* lookup_absent_keys_total, of the model */
    struct hps_metric *shared_keys; /* lookup_shared_keys_total, of the model */
    /* lookup_defaulted_keys_total{reason}, of the model, by the miss policy that leads to it */
    struct hps_metric *defaulted[HPS_MISS_THRESHOLD + 1];
    struct hps_metric *tier_hit[HPS_TIER_COUNT];       /* tier_keys_total{result="hit"} */
    struct hps_metric *tier_miss[HPS_TIER_COUNT];      /* tier_keys_total{result="miss"} */
    struct hps_metric *tier_evictions[HPS_TIER_COUNT]; /* tier_evictions_total */
};

struct hps_hot;

/* One load of a model. Many fields: it is where the parts that serve a version meet (tables, tiers,
 * updates, policies), each of which is made by its own owner before the version is published; most
 * are pointers to what that owner keeps to itself. */
struct hps_version {
    char *model;
    int64_t number;
    char *label;
    char *lineage;
    char *source;      /* directory it was loaded from */
    char *fingerprint; /* of the source files */
    char *load_id;     /* hash of the rows that were loaded, and where updates began; hex */
    char *config;      /* the models[] entry of its load, JSON; NULL: none */
    char *configured;  /* hash of the server's models[] entry at its load; NULL: not known */
    uint64_t loaded_unix_ms;
    uint64_t duplicate_keys;

    struct hps_table *tables;
    uint32_t n_tables;
    /* The model's order of tables, in which a place means the same table in every version. A new
     * version has that of `tables`; set before the version is published. */
    uint32_t *places;   /* [n_tables] of each table */
    uint32_t *by_place; /* [n_places] index of the table; UINT32_MAX: this version lacks it */
    uint32_t n_places;
    struct hps_table_metrics *metrics; /* [n_tables] */
    /* [n_tables] where look-ups note what is asked for, shared by all versions of the model; NULL:
     * nowhere. Set before the version is published. */
    struct hps_hot **hot;

    /* Top to bottom; the last one is authoritative: it has every row. */
    struct hps_space *tiers[HPS_TIERS_MAX];
    uint32_t n_tiers;
    /* Every row of this version has been put into the host map: a miss there is a proof of absence
     * as long as the map has lost none, see hps_version_host_complete. */
    atomic_bool host_complete;

    /* The embedding caches on a device; not one of `tiers`, as it is asked without waiting. NULL:
     * none. Set before the version is published, closed with its spaces. */
    struct hps_gpu_space *gpu;

    /* A tier that other daemons share gets the rows that are found below it, behind the answers.
     * Set before the version is published. */
    bool shared_takes_missed;
    /* Such a tier has the only copy, and lacks updates that no log brings back: look-ups there
     * fail. The updater's. */
    atomic_bool shared_lost;

    /* Of each tier's store, NULL: it is always asked. Borrowed. */
    struct hps_breaker *breakers[HPS_TIERS_MAX];

    /* Whoever puts rows from below into a tier asks these. NULL: the rows never change. */
    struct hps_stamps *stamps;
    struct hps_absent *absent;   /* keys known to be in no tier; NULL: none is remembered */
    struct hps_fetched *fetched; /* how often rows came behind answers; NULL: not remembered */
    struct hps_flight *flight;   /* keys being fetched; NULL: look-ups share no fetches */
    struct hps_updates *updates; /* sequence and positions; as stamps */
    void (*updates_free)(struct hps_updates *updates); /* of whoever made them; with `updates` */
    /* update_rows_total{op}, or NULL */
    struct hps_metric *update_rows_put, *update_rows_deleted, *update_rows_older;
    /* Where its look-ups are counted (cache/version/usage.h), which outlives it; NULL: nowhere. Set
     * before the version is published. */
    struct hps_usage *usage;
    bool
        row_versions; /* updates have one per key, and the highest counts; before hps_update_open */
    /* From the model's entry, set before the version is published: a warm-up fills its embedding
     * caches with hot rows; a load fills them with all rows of whole tables. */
    bool gpu_warms, gpu_whole;
    uint32_t batch_samples_max; /* max_batch_size for KServe; 0: unknown */

    /* For look-ups that do not say, as the configuration of the model has it. A new version has
     * none: exact, and the default row. */
    _Atomic enum hps_miss_policy miss_policy;
    _Atomic enum hps_unknown_policy unknown_policy;
    /* HPS_MISS_THRESHOLD: the tier whose hit rate counts, which is the embedding cache or what
     * stands in for it (a version that lacks it: every answer is exact), and the rate from which on
     * rows are inserted behind the answer. */
    _Atomic enum hps_tier_kind cache_tier;
    _Atomic double hit_rate_threshold;
    /* The cache tier had no room for rows that were found below it; with a gpu: neither the device
     * nor the host map had. While that is so, rows that are not waited for would be answered with
     * default rows for ever: every answer is exact. */
    atomic_bool cache_full;

    struct {
        _Atomic uint64_t n_taken;
        _Atomic uint64_t n_given;            /* back; by whatever thread */
        char pad[64 - 2 * sizeof(uint64_t)]; /* no two on one cache line */
    } pins[HPS_PIN_SHARDS];
};

/* Index of a table by name, or UINT32_MAX. A scan: versions have few tables. */
uint32_t hps_version_table(const struct hps_version *version, const char *name, size_t size);

/* Index of the table at a place of the model's order, or UINT32_MAX. */
static inline uint32_t hps_version_table_at(const struct hps_version *version, uint32_t place)
{
    return place < version->n_places ? version->by_place[place] : UINT32_MAX;
}
/* places: [n_tables], each below n_places and no two the same; copied. Before the version is
 * published. NO_MEMORY: the version is as it was. */
hps_status hps_version_set_places(struct hps_version *version, const uint32_t *places,
                                  uint32_t n_places) HPS_MUST_CHECK;

/* Which of HPS_PIN_SHARDS the calling thread counts in: few threads have the same. */
unsigned hps_version_shard(void);

/* Any thread. The first pin comes from hps_models_pin; a holder may take more. */
void hps_version_pin(struct hps_version *version);
void hps_version_unpin(struct hps_version *version);
/* True when nobody holds a pin, and nobody will: once no new first pin can be taken. */
bool hps_version_idle(const struct hps_version *version);

/* A key that the host map does not have is in no tier: to be asked before the map is, and again
 * when it had a miss; both must be true. */
bool hps_version_host_complete(const struct hps_version *version);
/* Rows that are found below this tier, which is shared, go into it behind the answers. */
bool hps_version_backfills(const struct hps_version *version, uint32_t tier);
/* A version with copies of the names and room for n_tables tables (zeroed; their names and default
 * rows are freed with the version). NULL: no memory. */
struct hps_version *hps_version_new(const char *model, int64_t number, uint32_t n_tables);
/* Free memory of the version itself; its spaces must have been closed or dropped. NULL is legal. */
void hps_version_free(struct hps_version *version);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * One resident version of a model: its tables, and the space that each tier keeps for it. Immutable
 * except for its policies, counters and pins. Users hold a pin. The catalog frees the version once
 * it has been removed from the model set and the last pin is gone. Thread-safe while the caller
 * holds a pin.
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

/* Metric series of one table of a model, found once and shared by all versions of the model. */
struct hps_table_metrics {
    struct hps_metric *keys_found; /* lookup_keys_total{status} */
    struct hps_metric *keys_defaulted;
    struct hps_metric *keys_unknown;
    struct hps_metric *unique_keys; /* lookup_unique_keys_total */
    struct hps_metric *absent_keys; /* lookup_absent_keys_total, of the model */
    struct hps_metric *shared_keys; /* lookup_shared_keys_total, of the model */
    /* lookup_defaulted_keys_total{reason}, of the model, by miss policy */
    struct hps_metric *defaulted[HPS_MISS_THRESHOLD + 1];
    struct hps_metric *tier_hit[HPS_TIER_COUNT];       /* tier_keys_total{result="hit"} */
    struct hps_metric *tier_miss[HPS_TIER_COUNT];      /* tier_keys_total{result="miss"} */
    struct hps_metric *tier_evictions[HPS_TIER_COUNT]; /* tier_evictions_total */
};

struct hps_hot;

/* One load of a model. It has many fields because the parts that serve a version meet here: tables,
 * tiers, updates, policies. Each is made by its own module before the version is published; most
 * are pointers to opaque structs. */
struct hps_version {
    char *model;
    int64_t number;
    char *label;
    char *lineage;
    char *source;      /* directory it was loaded from */
    char *fingerprint; /* of the source files */
    char *load_id;     /* hash of the loaded rows and of the positions where updates began; hex */
    char *config;      /* the models[] entry of its load, JSON; NULL: none */
    char *configured;  /* hash of the server's models[] entry when it was loaded; NULL: unknown */
    uint64_t loaded_unix_ms;
    uint64_t duplicate_keys;

    struct hps_table *tables;
    uint32_t n_tables;
    /* The model's order of tables: a place means the same table in every version. A new version has
     * the order of `tables`. Set before the version is published. */
    uint32_t *places;   /* [n_tables] place of each table */
    uint32_t *by_place; /* [n_places] index of the table; UINT32_MAX: not in this version */
    uint32_t n_places;
    struct hps_table_metrics *metrics; /* [n_tables] */
    /* [n_tables] where lookups count keys, shared by all versions of the model; NULL: not counted.
     * Set before the version is published. */
    struct hps_hot **hot;

    /* Top to bottom. The last one is authoritative: it has every row. */
    struct hps_space *tiers[HPS_TIERS_MAX];
    uint32_t n_tiers;
    /* Every row of this version has been put into the host map. A miss there proves absence while
     * the map has lost no row: see hps_version_host_complete. */
    atomic_bool host_complete;

    /* The embedding caches on devices. Not one of `tiers`, because it is queried asynchronously.
     * NULL: none. Set before the version is published, closed with its spaces. */
    struct hps_gpu_space *gpu;

    /* Rows found below a shared tier are inserted into it later. Set before the version is
     * published. */
    bool shared_takes_missed;
    /* A shared tier has the only copy and lacks updates that no log can bring back: lookups there
     * fail. Written by the updater. */
    atomic_bool shared_lost;

    /* [n_tiers] breaker of each tier's store; NULL: none. Borrowed. */
    struct hps_breaker *breakers[HPS_TIERS_MAX];

    /* Checked before rows from below are inserted into a tier. NULL: the rows never change. */
    struct hps_stamps *stamps;
    struct hps_absent *absent;   /* keys known to be in no tier; NULL: none are remembered */
    struct hps_fetched *fetched; /* rows that insertion jobs fetched; NULL: not remembered */
    struct hps_flight *flight;   /* keys being fetched; NULL: lookups share no fetches */
    struct hps_updates *updates; /* sequence and positions; NULL like `stamps` */
    void (*updates_free)(struct hps_updates *updates); /* frees `updates`; set with it */
    /* update_rows_total{op}; may be NULL */
    struct hps_metric *update_rows_put, *update_rows_deleted, *update_rows_older;
    /* Counters of its lookups (cache/version/usage.h), which outlive the version; NULL: not
     * counted. Set before the version is published. */
    struct hps_usage *usage;
    bool row_versions; /* each update of a key has a row version, and the highest one counts; set
                          before hps_update_open */
    /* From the model's configuration, set before the version is published. gpu_warms: a warm-up
     * fills the embedding caches with hot rows. gpu_whole: a load fills them with all rows of whole
     * tables. */
    bool gpu_warms, gpu_whole;
    uint32_t batch_samples_max; /* max_batch_size for KServe; 0: unknown */

    /* For lookups that name no policy. A new version has no configured policies: lookups are exact,
     * and unknown keys get the default row. */
    _Atomic enum hps_miss_policy miss_policy;
    _Atomic enum hps_unknown_policy unknown_policy;
    /* For HPS_MISS_THRESHOLD: the tier whose hit rate is compared, and the rate from which on
     * missing rows are inserted after the answer. The tier is the embedding cache or the tier that
     * replaces it. If the version lacks that tier, every answer is exact. */
    _Atomic enum hps_tier_kind cache_tier;
    _Atomic double hit_rate_threshold;
    /* The cache tier had no capacity for rows found below it; with a gpu: neither the device nor
     * the host map had. While this is set, lookups under HPS_MISS_THRESHOLD wait for missing rows.
     * Otherwise those keys would always get the default row. */
    atomic_bool cache_full;

    struct {
        _Atomic uint64_t n_taken;
        _Atomic uint64_t n_given;            /* back; by any thread */
        char pad[64 - 2 * sizeof(uint64_t)]; /* one cache line each */
    } pins[HPS_PIN_SHARDS];
};

/* Index of a table by name, or UINT32_MAX. A linear scan. */
uint32_t hps_version_table(const struct hps_version *version, const char *name, size_t size);

/* Index of the table at a place in the model's order, or UINT32_MAX. */
static inline uint32_t hps_version_table_at(const struct hps_version *version, uint32_t place)
{
    return place < version->n_places ? version->by_place[place] : UINT32_MAX;
}
/* places: [n_tables], each less than n_places and all different; copied. Call it before the version
 * is published. NO_MEMORY: the old places stay. */
hps_status hps_version_set_places(struct hps_version *version, const uint32_t *places,
                                  uint32_t n_places) HPS_MUST_CHECK;

/* The shard, below HPS_PIN_SHARDS, in which the calling thread counts. Few threads share one. */
unsigned hps_version_shard(void);

/* Thread-safe. The first pin comes from hps_models_pin; a holder may take more. */
void hps_version_pin(struct hps_version *version);
void hps_version_unpin(struct hps_version *version);
/* True if no pin is held. This is final only once no new first pin can be taken. */
bool hps_version_idle(const struct hps_version *version);

/* Whether a key that the host map lacks is in no tier. A miss is a proof only if this is true both
 * before the lookup in the map and after its miss. */
bool hps_version_host_complete(const struct hps_version *version);
/* Whether rows found below this tier, which is shared, are inserted into it later. */
bool hps_version_backfills(const struct hps_version *version, uint32_t tier);
/* A version with a copy of the name and space for n_tables tables, zeroed. It owns the names and
 * default rows that the caller sets in them. NULL: no memory. */
struct hps_version *hps_version_new(const char *model, int64_t number, uint32_t n_tables);
/* Free the version. Its spaces must have been closed or dropped. May be NULL. */
void hps_version_free(struct hps_version *version);

#endif

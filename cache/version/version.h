/* SPDX-License-Identifier: Apache-2.0
 *
 * One resident version of a model: its tables, and its space in each tier. Once the version is
 * published (added to the model set, models.h), only its policies, flags, counters and pins change.
 * Every thread that uses the version holds a pin. The catalog removes the version from the model
 * set and frees it after the last pin has been released. Thread-safe while the caller holds a pin.
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

/* How a lookup treats keys that the memory tiers miss. EXACT: wait for the stores. WAIT: wait
 * for a bounded time, then use default rows. MEMORY_ONLY: use default rows at once. THRESHOLD: wait
 * only if the hit rate is below hit_rate_threshold; otherwise use default rows and insert the true
 * rows later. */
enum hps_miss_policy {                     /* numbers of hps.v1.MissPolicy */
                       HPS_MISS_MODEL = 0, /* the version's miss_policy */
                       HPS_MISS_EXACT = 1,
                       HPS_MISS_WAIT = 2,
                       HPS_MISS_MEMORY_ONLY = 3,
                       HPS_MISS_THRESHOLD = 4
};

/* The result of a lookup for a key that is in no tier: the table's default row, zeros, or an error
 * for the whole lookup. */
enum hps_unknown_policy {                        /* numbers of hps.v1.UnknownKeyPolicy */
                          HPS_UNKNOWN_MODEL = 0, /* the version's unknown_policy */
                          HPS_UNKNOWN_DEFAULT_ROW = 1,
                          HPS_UNKNOWN_ZERO = 2,
                          HPS_UNKNOWN_ERROR = 3
};

/* Metric series of one table, shared by all versions of its model. A series "of the model" is also
 * shared by all tables of the model. */
struct hps_table_metrics {
    struct hps_metric *keys_found;     /* lookup_keys_total{status="found"} */
    struct hps_metric *keys_defaulted; /* lookup_keys_total{status="defaulted"} */
    struct hps_metric *keys_unknown;   /* lookup_keys_total{status="unknown"} */
    struct hps_metric *unique_keys;    /* lookup_unique_keys_total; NULL: no series is counted */
    struct hps_metric *absent_keys;    /* lookup_absent_keys_total, of the model */
    struct hps_metric *shared_keys;    /* lookup_shared_keys_total, of the model */
    /* lookup_defaulted_keys_total{reason}, of the model; index: enum hps_miss_policy */
    struct hps_metric *defaulted[HPS_MISS_THRESHOLD + 1];
    struct hps_metric *tier_hit[HPS_TIER_COUNT];       /* tier_keys_total{result="hit"} */
    struct hps_metric *tier_miss[HPS_TIER_COUNT];      /* tier_keys_total{result="miss"} */
    struct hps_metric *tier_evictions[HPS_TIER_COUNT]; /* tier_evictions_total */
};

struct hps_hot;

/* One loaded version of a model. All modules that serve a version keep their state of the version
 * here. Each module sets its fields before the version is published. */
struct hps_version {
    char *model;
    int64_t number;
    char *label;
    char *lineage;
    char *source;      /* directory from which the version was loaded */
    char *fingerprint; /* fingerprint of the source files */
    char *load_id;     /* hash of the loaded rows and of the positions where updates began; hex */
    /* The models[] entry that the load used, as JSON; NULL: the load used no entry. */
    char *config;
    char *configured;   /* hash of the models[] entry in ps.json at the time of the load; NULL: not
                           known */
    uint32_t key_bytes; /* bytes of a key at the time of the load, 8 or 4; 0: not known */
    uint64_t loaded_unix_ms;
    uint64_t duplicate_keys; /* rows of the source files that the load dropped, because another row
                                has the same key */

    struct hps_table *tables;
    uint32_t n_tables;
    /* The model's order of tables. A place is an index in this order, and selects the same table in
     * every version. hps_version_new sets the order of `tables`; hps_version_set_places changes
     * it. */
    uint32_t *places;   /* [n_tables] place of each table */
    uint32_t *by_place; /* [n_places] index of the table; UINT32_MAX: not in this version */
    uint32_t n_places;
    struct hps_table_metrics *metrics; /* [n_tables] */
    /* [n_tables] hot-key counts of each table, shared by all versions of the model. An entry may be
     * NULL: the keys of that table are not counted. */
    struct hps_hot **hot;

    /* [n_tiers] the version's space in each store, from the top tier down. The last one is
     * authoritative: it has every row. */
    struct hps_space *tiers[HPS_TIERS_MAX];
    uint32_t n_tiers;
    /* Every row of this version has been put into the host map. As long as the map has lost no row,
     * a key that the map lacks is in no tier (hps_version_host_complete). */
    atomic_bool host_complete;

    /* The embedding caches on devices. Not one of `tiers`, because it is queried asynchronously.
     * NULL: the version has no such cache. Set before the version is published, closed together
     * with the spaces of `tiers`. */
    struct hps_gpu_space *gpu;

    /* Rows that lookups find below a shared tier are inserted into the shared tier later. Set
     * before the version is published. */
    bool shared_takes_missed;
    /* A shared tier has the only copy of the rows, and has lost updates that the log no longer has.
     * Lookups in that tier fail. Only the updater thread writes this flag. */
    atomic_bool shared_lost;

    /* [n_tiers] breaker of each tier's store; NULL: the store needs none. Borrowed. */
    struct hps_breaker *breakers[HPS_TIERS_MAX];

    /* When updates last changed each key. A tier compares the stamp of a key, under the tier's
     * lock, before a row from a lower tier is inserted (stamps.h). NULL: the rows never change. */
    struct hps_stamps *stamps;
    /* Keys known to be in no tier; NULL: such keys are not remembered. */
    struct hps_absent *absent;
    /* Keys of rows that insertion jobs fetched; NULL: they are not remembered. */
    struct hps_fetched *fetched;
    struct hps_flight *flight;   /* keys being fetched; NULL: lookups share no fetches */
    struct hps_updates *updates; /* state of cache/update/update.h; NULL: the rows never change */
    /* Frees `updates`; set together with `updates`. */
    void (*updates_free)(struct hps_updates *updates);
    /* update_rows_total{op}; NULL: not counted */
    struct hps_metric *update_rows_put, *update_rows_deleted, *update_rows_older;
    /* Counters of the version's lookups (cache/version/usage.h), which outlive the version; NULL:
     * not counted. Set before the version is published. */
    struct hps_usage *usage;
    /* Each update of a key has a row version, and the update with the highest row version has an
     * effect (cache/update/update.h); set before hps_update_open. */
    bool row_versions;
    /* From the model's configuration, set before the version is published. gpu_warms: a warm-up
     * fills the embedding caches with hot rows. gpu_whole: a load inserts all rows of a table into
     * its embedding cache, if the cache can hold them all. */
    bool gpu_warms, gpu_whole;
    uint32_t batch_samples_max; /* max_batch_size for KServe; 0: not configured */

    /* The policies for lookups that name no policy. In a new version both are MODEL (0), which here
     * means EXACT and DEFAULT_ROW. */
    _Atomic enum hps_miss_policy miss_policy;
    _Atomic enum hps_unknown_policy unknown_policy;
    /* For HPS_MISS_THRESHOLD. cache_tier: the tier whose hit rate is compared with the threshold.
     * It is the host map if the option async_without_gpu is set and the version has no embedding
     * cache on a device that works; otherwise it is the gpu. If the version lacks the cache tier,
     * or the gpu has not answered, lookups wait for all missing rows. hit_rate_threshold: 0 to 1;
     * at this rate or above, lookups do not wait for missing rows. */
    _Atomic enum hps_tier_kind cache_tier;
    _Atomic double hit_rate_threshold;
    /* Recent insertions found no capacity in the cache tier. If that is a gpu, they found no
     * capacity in the host map either. While the flag is set, lookups with HPS_MISS_THRESHOLD wait
     * for missing rows. Otherwise they would always get default rows for keys that do not fit. */
    atomic_bool cache_full;

    /* Counts of pins, in shards, so that few threads write to the same cache line. A pin may be
     * counted as taken in one shard and as released in another. */
    struct {
        _Atomic uint64_t n_taken;
        _Atomic uint64_t n_given;            /* released */
        char pad[64 - 2 * sizeof(uint64_t)]; /* so that each shard has its own cache line */
    } pins[HPS_PIN_SHARDS];
};

/* The index of the table with this name; UINT32_MAX: no such table. Scans all tables. */
uint32_t hps_version_table(const struct hps_version *version, const char *name, size_t size);

/* The index of the table at a place in the model's order; UINT32_MAX: this version has no table
 * there. */
static inline uint32_t hps_version_table_at(const struct hps_version *version, uint32_t place)
{
    return place < version->n_places ? version->by_place[place] : UINT32_MAX;
}
/* Set the place of each table. places: [n_tables], each less than n_places and all different;
 * copied. Call it before the version is published. NO_MEMORY: the old places stay. */
hps_status hps_version_set_places(struct hps_version *version, const uint32_t *places,
                                  uint32_t n_places) HPS_MUST_CHECK;

/* The shard, less than HPS_PIN_SHARDS, in which the calling thread counts pins. Few threads share a
 * shard. */
unsigned hps_version_shard(void);

/* Take and release a pin. The caller of hps_version_pin must hold one already; the first comes from
 * hps_models_pin. Thread-safe. */
void hps_version_pin(struct hps_version *version);
void hps_version_unpin(struct hps_version *version);
/* Whether no pin is held. The result stays true only if the version is no longer in the model set;
 * otherwise a new pin may be taken at any time. */
bool hps_version_idle(const struct hps_version *version);

/* Whether a key that the host map lacks is in no tier. A miss in the map proves that the key is in
 * no tier only if this returns true both before and after the map was queried. */
bool hps_version_host_complete(const struct hps_version *version);
/* Whether rows that lookups find below this tier are inserted into this tier later. True only for a
 * shared tier. tier: index in version->tiers. */
bool hps_version_backfills(const struct hps_version *version, uint32_t tier);
/* Make a version with a copy of the model's name and n_tables zeroed tables. The caller sets the
 * names and default rows of the tables; hps_version_free frees them. Returns NULL if there is no
 * memory. */
struct hps_version *hps_version_new(const char *model, int64_t number, uint32_t n_tables);
/* The version's spaces must have been closed or dropped. No effect if version is NULL. */
void hps_version_free(struct hps_version *version);

#endif

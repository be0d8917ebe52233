/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of metric families, and the series that hot paths keep. Any thread.
 */
#include "server/observe/metrics.h"

#include <string.h>

#include "backends/store_limits.h"
#include "base/assert.h"

static const struct hps_metric_family_def FAMILIES[HPS_M_COUNT] = {
#define HPS_METRIC_DEF(id, type_, name_, labels_, help_) \
    [HPS_M_##                                            \
        id] = {.name = (name_), .labels = (labels_), .type = HPS_METRIC_##type_, .help = (help_)},
    HPS_METRIC_LIST(HPS_METRIC_DEF)
#undef HPS_METRIC_DEF
};

static const char *const CODE_NAMES[HPS_RPC_CODES] = {
    "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED"};

static const char *const FAULT_NAMES[HPS_FAULT_COUNT] = {
    [HPS_FAULT_UNAVAILABLE] = "unavailable",
    [HPS_FAULT_DEADLINE] = "deadline",
    [HPS_FAULT_OTHER] = "failed",
};

static const char *const DROP_NAMES[HPS_DROP_COUNT] = {
    [HPS_DROP_NO_SPACE] = "no_space",       [HPS_DROP_STALE] = "stale",
    [HPS_DROP_FAILED] = "failed",           [HPS_DROP_QUEUE_FULL] = "queue_full",
    [HPS_DROP_NOT_FETCHED] = "not_fetched", [HPS_DROP_STOPPED] = "stopped",
};

static const char *const DEFAULTED_NAMES[HPS_MISS_THRESHOLD + 1] = {
    [HPS_MISS_WAIT] = "deadline",
    [HPS_MISS_MEMORY_ONLY] = "memory_only",
    [HPS_MISS_THRESHOLD] = "async",
};

static const char *const REJECT_NAMES[HPS_REJECT_COUNT] = {
    [HPS_REJECT_REPLY_BYTES] = "reply_bytes",       [HPS_REJECT_QUEUE] = "queue",
    [HPS_REJECT_CONNECTION] = "connection",         [HPS_REJECT_WORKERS] = "workers",
    [HPS_REJECT_REQUESTS_PER_S] = "requests_per_s", [HPS_REJECT_REPLY_QUOTA] = "reply_quota",
};

const char *hps_rpc_code_name(unsigned code)
{
    HPS_ASSERT(code < HPS_RPC_CODES);
    return CODE_NAMES[code];
}

const char *hps_defaulted_reason(enum hps_miss_policy policy)
{
    HPS_ASSERT((unsigned)policy <= HPS_MISS_THRESHOLD);
    HPS_ASSERT(DEFAULTED_NAMES[policy] != NULL);
    return DEFAULTED_NAMES[policy];
}

const char *hps_stage_name(enum hps_stage stage)
{
    static const char *const names[HPS_STAGE_COUNT] = {
#define HPS_STAGE_NAME(id, name) [HPS_STAGE_##id] = (name),
        HPS_STAGE_LIST(HPS_STAGE_NAME)
#undef HPS_STAGE_NAME
    };

    HPS_ASSERT((unsigned)stage < HPS_STAGE_COUNT);
    return names[stage];
}

struct hps_metrics *hps_server_metrics_new(void)
{
    return hps_metrics_new(FAMILIES, HPS_M_COUNT, HPS_METRIC_TABLE_SERIES_MAX);
}

struct hps_metric *hps_server_metric(struct hps_metrics *metrics, enum hps_metric_id id,
                                     const char *v0, const char *v1, const char *v2, const char *v3)
{
    const char *const values[HPS_METRIC_LABELS_MAX] = {v0, v1, v2, v3};

    HPS_ASSERT((unsigned)id < HPS_M_COUNT);
    return hps_metric_get(metrics, id, values);
}

static void fill_tier(struct hps_metrics *metrics, enum hps_tier_kind kind,
                      struct hps_lookup_metrics *out)
{
    const char *tier = hps_tier_name(kind);

    out->tier_duration[kind] =
        hps_server_metric(metrics, HPS_M_TIER_DURATION, tier, NULL, NULL, NULL);
    for (unsigned f = 0; f < HPS_FAULT_COUNT; f++) {
        out->tier_errors[kind][f] =
            hps_server_metric(metrics, HPS_M_TIER_ERRORS, tier, FAULT_NAMES[f], NULL, NULL);
    }
    if (kind == HPS_TIER_HOST) {
        out->insertion_rows[kind] =
            hps_server_metric(metrics, HPS_M_INSERTION_ROWS, tier, "sync", NULL, NULL);
    }
    /* Shared tiers get rows only after the reply. */
    if (kind == HPS_TIER_HOST || kind == HPS_TIER_REDIS) {
        out->insertion_rows_async[kind] =
            hps_server_metric(metrics, HPS_M_INSERTION_ROWS, tier, "async", NULL, NULL);
    }
}

void hps_service_metrics_fill(struct hps_metrics *metrics, struct hps_service_metrics *out_series)
{
    struct hps_service_metrics series = {0};

    for (unsigned i = 0; i < HPS_TIER_COUNT; i++) {
        fill_tier(metrics, (enum hps_tier_kind)i, &series.lookup);
    }
    for (unsigned i = 0; i < HPS_DROP_COUNT; i++) {
        series.lookup.insertion_dropped[i] =
            hps_server_metric(metrics, HPS_M_INSERTION_DROPPED, DROP_NAMES[i], NULL, NULL, NULL);
    }
    series.lookup.insertion_queue_rows =
        hps_server_metric(metrics, HPS_M_INSERTION_QUEUE_ROWS, NULL, NULL, NULL, NULL);
    series.lookup.insertion_shared_queue_rows =
        hps_server_metric(metrics, HPS_M_INSERTION_SHARED_QUEUE_ROWS, NULL, NULL, NULL, NULL);
    for (unsigned i = 0; i < HPS_RPC_CODES; i++) {
        series.requests[i] = hps_server_metric(metrics, HPS_M_LOOKUP_REQUESTS, hps_rpc_code_name(i),
                                               NULL, NULL, NULL);
    }
    series.duration = hps_server_metric(metrics, HPS_M_LOOKUP_DURATION, NULL, NULL, NULL, NULL);
    for (unsigned i = 0; i < HPS_STAGE_COUNT; i++) {
        series.stage_duration[i] = hps_server_metric(metrics, HPS_M_LOOKUP_STAGE_DURATION,
                                                     hps_stage_name(i), NULL, NULL, NULL);
    }
    for (unsigned i = 0; i < HPS_REJECT_COUNT; i++) {
        series.rejected[i] =
            hps_server_metric(metrics, HPS_M_REQUESTS_REJECTED, REJECT_NAMES[i], NULL, NULL, NULL);
    }
    series.requests_in_flight =
        hps_server_metric(metrics, HPS_M_REQUESTS_IN_FLIGHT, NULL, NULL, NULL, NULL);
    series.reply_bytes_in_flight =
        hps_server_metric(metrics, HPS_M_REPLY_BYTES_IN_FLIGHT, NULL, NULL, NULL, NULL);
    *out_series = series;
}

static struct hps_metric *keys_metric(struct hps_metrics *metrics, const char *model,
                                      const char *table, const char *status)
{
    return hps_server_metric(metrics, HPS_M_LOOKUP_KEYS, model, table, status, NULL);
}

/* For a version with a store that blocks: lookups that are not exact may skip that store. */
static void fill_unasked(struct hps_metrics *metrics, const char *model,
                         struct hps_table_metrics *out)
{
    out->absent_keys =
        hps_server_metric(metrics, HPS_M_LOOKUP_ABSENT_KEYS, model, NULL, NULL, NULL);
    out->shared_keys =
        hps_server_metric(metrics, HPS_M_LOOKUP_SHARED_KEYS, model, NULL, NULL, NULL);
    for (unsigned i = 0; i <= HPS_MISS_THRESHOLD; i++) {
        if (DEFAULTED_NAMES[i] != NULL) {
            out->defaulted[i] = hps_server_metric(metrics, HPS_M_LOOKUP_DEFAULTED_KEYS, model,
                                                  DEFAULTED_NAMES[i], NULL, NULL);
        }
    }
}

static void fill_table_tier(struct hps_metrics *metrics, const char *model, const char *table,
                            enum hps_tier_kind kind, struct hps_table_metrics *out)
{
    const char *tier = hps_tier_name(kind);

    out->tier_hit[kind] = hps_server_metric(metrics, HPS_M_TIER_KEYS, model, table, tier, "hit");
    out->tier_miss[kind] = hps_server_metric(metrics, HPS_M_TIER_KEYS, model, table, tier, "miss");
    if (kind == HPS_TIER_GPU || kind == HPS_TIER_HOST) {
        out->tier_evictions[kind] =
            hps_server_metric(metrics, HPS_M_TIER_EVICTIONS, model, table, tier, NULL);
    }
}

void hps_table_metrics_fill(struct hps_metrics *metrics, const struct hps_version *version,
                            uint32_t table_id, struct hps_table_metrics *out_series)
{
    const char *model = version->model;
    const char *table = version->tables[table_id].name;
    struct hps_table_metrics series = {0};

    series.keys_found = keys_metric(metrics, model, table, "found");
    series.keys_defaulted = keys_metric(metrics, model, table, "defaulted");
    series.keys_unknown = keys_metric(metrics, model, table, "unknown");
    series.unique_keys =
        hps_server_metric(metrics, HPS_M_LOOKUP_UNIQUE_KEYS, model, table, NULL, NULL);
    struct hps_tier tiers[HPS_TIERS_MAX];
    uint32_t n_tiers = hps_version_tiers(version, tiers);
    for (uint32_t i = 0; i < n_tiers; i++) {
        if ((tiers[i].caps & HPS_CAP_BLOCKS) != 0) {
            fill_unasked(metrics, model, &series);
        }
        fill_table_tier(metrics, model, table, tiers[i].kind, &series);
    }
    *out_series = series;
}

void hps_table_metrics_evictions(const struct hps_version *version)
{
    for (uint32_t tier = 0; tier < version->n_tiers; tier++) {
        struct hps_space *space = version->tiers[tier];
        const struct hps_store_ops *ops = space->store->ops;
        for (uint32_t i = 0; ops->limits != NULL && i < version->n_tables; i++) {
            struct hps_metric *metric = version->metrics[i].tier_evictions[ops->tier];
            uint64_t n = ops->limits->evictions_take(space, &version->tables[i]);
            if (metric != NULL) {
                hps_metric_add(metric, n);
            }
        }
    }
}

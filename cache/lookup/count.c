/* SPDX-License-Identifier: Apache-2.0
 *
 * Metrics of lookups and asynchronous insertions: the work of each tier, the keys of an answer by
 * status, and the most requested keys. On the thread that owns the lookup, or that inserts.
 */
#include "base/assert.h"
#include "cache/lookup/hot.h"
#include "cache/lookup/internal.h"

enum { NOTE_KEYS = 256 };

static void count_faults(const struct hps_lookup_metrics *metrics, enum hps_tier_kind kind,
                         const struct hps_tier_report *report)
{
    enum hps_tier_fault fault = HPS_FAULT_OTHER;

    if (report->n_faults > 0 && report->status != HPS_CANCELLED) {
        fault = report->status == HPS_UNAVAILABLE ? HPS_FAULT_UNAVAILABLE : fault;
        fault = report->status == HPS_DEADLINE ? HPS_FAULT_DEADLINE : fault;
        hps_metric_add(metrics->tier_errors[kind][fault], report->n_faults);
    }
}

/* behind: an asynchronous insertion. A tier without a metric counts its rows itself: only a device
 * knows which rows it took. */
static void count_inserted(const struct hps_lookup_metrics *metrics, enum hps_tier_kind kind,
                           const struct hps_tier_report *report, bool behind)
{
    struct hps_metric *rows =
        behind ? metrics->insertion_rows_async[kind] : metrics->insertion_rows[kind];

    if (report->n_inserted > 0 && rows != NULL) {
        hps_metric_add(rows, report->n_inserted);
    }
    if (report->n_no_capacity > 0) {
        hps_metric_add(metrics->insertion_dropped[HPS_DROP_NO_SPACE], report->n_no_capacity);
    }
    if (report->n_stale > 0) {
        hps_metric_add(metrics->insertion_dropped[HPS_DROP_STALE], report->n_stale);
    }
    if (report->n_dropped > 0) {
        hps_metric_add(metrics->insertion_dropped[HPS_DROP_FAILED], report->n_dropped);
    }
}

static void count_tier(const struct hps_lookup_metrics *metrics,
                       const struct hps_tier_report *report, enum hps_tier_kind kind,
                       const struct hps_table_metrics *series, bool behind)
{
    uint32_t n_hit = report->n_found - report->n_shared;

    HPS_ASSERT(report->n_shared <= report->n_found);
    if (metrics != NULL) {
        count_faults(metrics, kind, report);
        count_inserted(metrics, kind, report, behind);
    }
    if (report->n_asked > 0 && series != NULL && series->tier_hit[kind] != NULL) {
        HPS_ASSERT(report->n_unanswered + n_hit <= report->n_asked);
        hps_metric_add(series->tier_hit[kind], n_hit);
        hps_metric_add(series->tier_miss[kind], report->n_asked - report->n_unanswered - n_hit);
    }
}

/* Count keys that needed no call of a tier. */
static void count_unasked(const struct hps_walk *walk, const struct hps_table_metrics *series)
{
    uint32_t n_shared = 0;

    for (unsigned kind = 0; kind < HPS_TIER_COUNT; kind++) {
        n_shared += walk->reports[kind].n_shared;
    }
    n_shared += walk->n_shared_absent;
    if (n_shared > 0 && series->shared_keys != NULL) {
        hps_metric_add(series->shared_keys, n_shared);
    }
    if (walk->n_remembered > 0 && series->absent_keys != NULL) {
        hps_metric_add(series->absent_keys, walk->n_remembered);
    }
}

/* NULL: not counted. */
static const struct hps_table_metrics *series_of(const struct hps_version *version,
                                                 const struct hps_table *table)
{
    const struct hps_table_metrics *series =
        version->metrics == NULL ? NULL : &version->metrics[table->id];

    return series == NULL || series->unique_keys == NULL ? NULL : series;
}

/* For each part with an answer: unique keys = keys found by its tiers + shared + remembered + not
 * found or not waited for. */
void lookup_count_part(struct hps_lookup *lookup, const struct hps_lookup_part *part,
                       bool *tier_asked)
{
    const struct hps_table_metrics *series = series_of(lookup->version, part->table);

    for (unsigned kind = 0; kind < HPS_TIER_COUNT; kind++) {
        const struct hps_tier_report *report = &part->walk.reports[kind];

        tier_asked[kind] = tier_asked[kind] || report->n_asked > 0;
        lookup->tier_us[kind] += report->duration_us;
        count_tier(lookup->metrics, report, (enum hps_tier_kind)kind, series, false);
    }
    lookup->others_us += part->walk.wait_us;
    if (series != NULL) {
        count_unasked(&part->walk, series);
    }
}

/* Count the keys of an answer by status. */
static void count_keys(const struct hps_lookup *lookup, const struct hps_lookup_part *part)
{
    const struct hps_table_metrics *series = series_of(lookup->version, part->table);

    if (series == NULL) {
        return;
    }
    HPS_ASSERT((unsigned)lookup->miss_policy <= HPS_MISS_THRESHOLD);
    HPS_ASSERT(part->n_defaulted + part->n_unknown <= part->n_keys);
    HPS_ASSERT(part->n_unique <= part->n_keys);
    struct hps_metric *defaulted = series->defaulted[lookup->miss_policy];
    hps_metric_add(series->keys_found, part->n_keys - part->n_defaulted - part->n_unknown);
    hps_metric_add(series->keys_defaulted, part->n_defaulted);
    hps_metric_add(series->keys_unknown, part->n_unknown);
    hps_metric_add(series->unique_keys, part->n_unique);
    if (part->n_defaulted > 0 && defaulted != NULL) {
        hps_metric_add(defaulted, part->n_defaulted);
    }
}

void lookup_observe_tiers(const struct hps_lookup_metrics *metrics, const uint64_t *tier_us,
                          const bool *tier_asked)
{
    for (unsigned kind = 0; kind < HPS_TIER_COUNT; kind++) {
        if (tier_asked[kind]) {
            hps_metric_observe_us(metrics->tier_duration[kind], tier_us[kind]);
        }
    }
}

/* Keys of memory tiers were counted by the lookups. The job queries these tiers again before the
 * stores, which is not counted. */
static void count_inserting_walk(const struct hps_lookup_metrics *metrics,
                                 const struct hps_walk *walk, uint64_t *tier_us, bool *tier_asked)
{
    const struct hps_table_metrics *series = series_of(walk->version, walk->table);
    struct hps_tier tiers[HPS_TIERS_MAX];
    uint32_t n = hps_version_tiers(walk->version, tiers);

    for (uint32_t i = 0; i < n; i++) {
        enum hps_tier_kind kind = tiers[i].kind;
        struct hps_tier_report report = walk->reports[kind];
        report.n_asked = (tiers[i].caps & HPS_CAP_BLOCKS) != 0 ? report.n_asked : 0;
        tier_asked[kind] = tier_asked[kind] || report.n_asked > 0;
        tier_us[kind] += report.duration_us;
        count_tier(metrics, &report, kind, series, true);
    }
    if (series != NULL) {
        count_unasked(walk, series);
    }
}

void hps_lookup_count_insertion(const struct hps_lookup_metrics *metrics,
                                const struct hps_walk *first)
{
    bool tier_asked[HPS_TIER_COUNT] = {false};
    uint64_t tier_us[HPS_TIER_COUNT] = {0};

    for (const struct hps_walk *walk = first; walk != NULL; walk = walk->next) {
        count_inserting_walk(metrics, walk, tier_us, tier_asked);
    }
    lookup_observe_tiers(metrics, tier_us, tier_asked);
}

/* Note the keys, as sent, that a tier had before the walk. */
static void note_hits(struct hps_hot *hot, const struct hps_lookup_part *part)
{
    hps_key keys[NOTE_KEYS];
    uint32_t n = 0;

    if (part->walk.n_keys == 0 && (uintptr_t)part->keys % sizeof(hps_key) == 0) {
        hps_hot_note(hot, (const hps_key *)(const void *)part->keys, part->n_keys);
        return;
    }
    for (uint32_t i = 0; i < part->n_keys; i++) {
        if (hps_lookup_part_hit(part, i)) {
            keys[n++] = lookup_key_at(part, i);
        }
        if (n == NOTE_KEYS || i + 1 == part->n_keys) {
            hps_hot_note(hot, keys, n);
            n = 0;
        }
    }
}

/* Note the keys that were found: only their rows can be warmed up. */
static void note_hot(const struct hps_lookup *lookup, const struct hps_lookup_part *part)
{
    struct hps_hot *const *hot = lookup->version->hot;
    uint32_t begin = part->walk.batch.n + part->walk.n_absent;

    if (hot == NULL || hot[part->table->id] == NULL || !part->finished) {
        return;
    }
    if (part->hits != NULL) {
        note_hits(hot[part->table->id], part);
    }
    if (part->walk.n_keys > begin) {
        hps_hot_note(hot[part->table->id], part->walk.batch.keys + begin,
                     part->walk.n_keys - begin);
    }
}

void lookup_count_end(const struct hps_lookup *lookup, bool answered)
{
    for (uint32_t i = 0; i < lookup->n_parts; i++) {
        const struct hps_lookup_part *part = &lookup->parts[i];
        if (part->rows != NULL && answered) {
            count_keys(lookup, part);
        }
        if (part->rows != NULL) {
            note_hot(lookup, part);
        }
    }
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The life of one look-up: see lookup.h. On the thread that holds the look-up.
 */
#include "cache/lookup/lookup.h"

#include <inttypes.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/dtype.h"
#include "base/hash.h"
#include "cache/lookup/hot.h"
#include "cache/lookup/internal.h"
#include "cache/lookup/policy.h"
#include "cache/update/update.h"
#include "cache/version/fetched.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "keys and rows are used as they travel");

/* Up to this many keys are compared with each other; beyond it a set pays. */
enum { QUADRATIC_KEYS_MAX = 8, NOTE_KEYS = 256 };

static hps_key key_at(const struct hps_lookup_part *part, uint32_t index)
{
    hps_key key;

    memcpy(&key, part->keys + (size_t)index * sizeof(key), sizeof(key));
    return key;
}

static enum hps_dtype output_type(const struct hps_lookup *lookup)
{
    return lookup->output == 0 ? HPS_DTYPE_FP32 : lookup->output;
}

/* ---- plan ------------------------------------------------------------------------------------ */

static uint64_t align_rows(uint64_t bytes)
{
    return (bytes + HPS_ROWS_ALIGN - 1) & ~(uint64_t)(HPS_ROWS_ALIGN - 1);
}

/* Once, so that a change meanwhile does not split the look-up. */
static void choose_policies(struct hps_lookup *lookup)
{
    if (lookup->miss_policy == HPS_MISS_MODEL) {
        lookup->miss_policy = atomic_load(&lookup->version->miss_policy);
    }
    if (lookup->unknown_policy == HPS_UNKNOWN_MODEL) {
        lookup->unknown_policy = atomic_load(&lookup->version->unknown_policy);
    }
}

static void reset_part(struct hps_lookup_part *part)
{
    part->rows = NULL;
    part->n_unique = 0;
    part->n_defaulted = 0;
    part->n_unknown = 0;
    part->key_status = NULL;
    part->finished = false;
    part->waits_for_gpu = false;
    part->hits = NULL;
}

hps_status hps_lookup_plan(struct hps_lookup *lookup, struct hps_error *err)
{
    uint64_t total = 0;
    uint64_t n_keys = 0;

    choose_policies(lookup);
    for (uint32_t i = 0; i < lookup->n_parts; i++) {
        struct hps_lookup_part *part = &lookup->parts[i];
        uint64_t out_bytes = (uint64_t)part->table->dim * hps_dtype_bytes(output_type(lookup));
        uint64_t wider = out_bytes > part->table->row_bytes ? out_bytes : part->table->row_bytes;
        uint64_t room;

        if (out_bytes > UINT32_MAX || __builtin_mul_overflow(wider, part->n_keys, &room) ||
            room > UINT64_MAX / 4 || total > UINT64_MAX / 4) {
            return hps_error_set(err, HPS_RANGE, "table '%s': %u rows of %" PRIu64 " bytes",
                                 part->table->name, part->n_keys, wider);
        }
        part->row_bytes = (uint32_t)out_bytes;
        part->rows_bytes = out_bytes * part->n_keys;
        part->rows_offset = total;
        reset_part(part);
        total += align_rows(room);
        n_keys += part->n_keys;
    }
    lookup->rows_bytes = total;
    lookup->n_keys = n_keys;
    lookup->n_reread = 0;
    lookup->begun = false;
    lookup->torn = false;
    lookup->gpu.asked = false;
    lookup->gpu.left = false;
    return HPS_OK;
}

void hps_lookup_again(struct hps_lookup *lookup)
{
    HPS_ASSERT(!lookup->gpu.asked);
    for (uint32_t i = 0; i < lookup->n_parts; i++) {
        reset_part(&lookup->parts[i]);
    }
    memset(lookup->tier_us, 0, sizeof(lookup->tier_us));
    lookup->others_us = 0;
    lookup->begun = false;
    lookup->ahead = false;
    lookup->torn = false;
}

/* ---- unique keys ----------------------------------------------------------------------------- */

/* The first key from i on that the gpu did not have. */
static uint32_t next_walked(const struct hps_lookup_part *part, uint32_t i)
{
    if (part->hits == NULL || i >= part->n_keys) {
        return i;
    }
    uint32_t missed = ~part->hits[i / 32] & UINT32_MAX << i % 32;
    while (missed == 0 && (i | 31) < part->n_keys - 1) {
        i = (i | 31) + 1;
        missed = ~part->hits[i / 32];
    }
    return missed == 0 ? part->n_keys : (i & ~31u) + (uint32_t)__builtin_ctz(missed);
}

static uint32_t count_hits(const struct hps_lookup_part *part)
{
    uint32_t n = 0;

    for (uint32_t i = 0; part->hits != NULL && i < part->n_keys; i += 32) {
        n += (uint32_t)__builtin_popcount(part->hits[i / 32]);
    }
    return n;
}

/* Keys of a part on their way into the batch that is walked. */
struct dedupe {
    struct hps_lookup *lookup;
    struct hps_lookup_part *part;
    struct hps_batch *batch;
    uint32_t n; /* that the gpu did not have, as sent */
    uint32_t n_duplicates;
};

static hps_status add_duplicate(struct dedupe *dedupe, uint32_t index, uint32_t first)
{
    struct hps_lookup_part *part = dedupe->part;

    if (part->duplicates == NULL) { /* at most all the keys from here on */
        size_t size = (size_t)(dedupe->n - dedupe->batch->n) * sizeof(*part->duplicates);
        part->duplicates = hps_arena_alloc(dedupe->lookup->arena, size);
        if (part->duplicates == NULL) {
            return HPS_EXHAUSTED;
        }
    }
    part->duplicates[dedupe->n_duplicates++] =
        (struct hps_duplicate){.index = index, .first = first};
    return HPS_OK;
}

static void add_unique(struct hps_batch *batch, uint32_t index, hps_key key)
{
    batch->keys[batch->n] = key;
    batch->slots[batch->n] = index;
    batch->n++;
}

static hps_status dedupe_few(struct dedupe *dedupe)
{
    const struct hps_lookup_part *part = dedupe->part;
    struct hps_batch *batch = dedupe->batch;

    for (uint32_t i = next_walked(part, 0); i < part->n_keys; i = next_walked(part, i + 1)) {
        hps_key key = key_at(part, i);
        uint32_t u = 0;

        while (u < batch->n && batch->keys[u] != key) {
            u++;
        }
        if (u == batch->n) {
            add_unique(batch, i, key);
        } else if (add_duplicate(dedupe, i, batch->slots[u]) != HPS_OK) {
            return HPS_EXHAUSTED;
        }
    }
    return HPS_OK;
}

/* An empty set for n keys, at most half full; out_mask: its size less one. EXHAUSTED: arena */
static hps_status take_set(struct hps_lookup *lookup, uint64_t n, uint64_t *out_mask)
{
    uint64_t size = 16;

    while (size < 2 * n) {
        size *= 2;
    }
    if (size > lookup->set_size) {
        lookup->set = hps_arena_alloc(lookup->arena, size * sizeof(*lookup->set));
        if (lookup->set == NULL || size > UINT32_MAX) {
            lookup->set_size = 0;
            return HPS_EXHAUSTED;
        }
        lookup->set_size = (uint32_t)size;
    }
    memset(lookup->set, 0, size * sizeof(*lookup->set));
    *out_mask = size - 1;
    return HPS_OK;
}

/* The set maps a key to its place in the batch, plus one. */
static hps_status dedupe_many(struct dedupe *dedupe)
{
    struct hps_lookup *lookup = dedupe->lookup;
    const struct hps_lookup_part *part = dedupe->part;
    struct hps_batch *batch = dedupe->batch;
    uint64_t secret = hps_hash_secret();
    uint64_t mask;

    if (take_set(lookup, dedupe->n, &mask) != HPS_OK) {
        return HPS_EXHAUSTED;
    }
    for (uint32_t i = next_walked(part, 0); i < part->n_keys; i = next_walked(part, i + 1)) {
        hps_key key = key_at(part, i);
        uint64_t at = hps_mix64(key ^ secret) & mask;

        while (lookup->set[at] != 0 && batch->keys[lookup->set[at] - 1] != key) {
            at = (at + 1) & mask;
        }
        if (lookup->set[at] == 0) {
            add_unique(batch, i, key);
            lookup->set[at] = batch->n;
        } else if (add_duplicate(dedupe, i, batch->slots[lookup->set[at] - 1]) != HPS_OK) {
            return HPS_EXHAUSTED;
        }
    }
    return HPS_OK;
}

/* Keys of the set are those of the part, as sent, each by its index plus one. True: it was new. */
static bool set_add(struct hps_lookup *lookup, const struct hps_lookup_part *part, uint64_t mask,
                    uint32_t index)
{
    hps_key key = key_at(part, index);
    uint64_t at = hps_mix64(key ^ hps_hash_secret()) & mask;

    while (lookup->set[at] != 0 && key_at(part, lookup->set[at] - 1) != key) {
        at = (at + 1) & mask;
    }
    bool added = lookup->set[at] == 0;
    lookup->set[at] = index + 1;
    return added;
}

/* Whether so many of the part's hits are unique: they are counted until that is known. A key that
 * is walked is none, though the gpu may have had it when it was asked again. */
static bool has_unique_hits(struct hps_lookup *lookup, const struct hps_lookup_part *part,
                            uint64_t n_wanted)
{
    const struct hps_walk *walk = &part->walk;
    uint64_t n = 0;
    uint64_t mask;

    if (n_wanted > walk->gpu.n_found ||
        take_set(lookup, n_wanted + walk->n_keys, &mask) != HPS_OK) {
        return false;
    }
    for (uint32_t i = 0; i < walk->n_keys; i++) {
        (void)set_add(lookup, part, mask, walk->batch.slots[i]);
    }
    for (uint32_t i = 0; i < part->n_keys && n < n_wanted; i++) {
        n += hps_lookup_part_hit(part, i) && set_add(lookup, part, mask, i) ? 1 : 0;
    }
    return n == n_wanted;
}

/* Row i of the answer is also where row i of the table's type is fetched to. */
static hps_status start_part(struct hps_lookup *lookup, struct hps_lookup_part *part)
{
    struct hps_batch batch = {.rows = lookup->rows + part->rows_offset};
    uint32_t n_hits = count_hits(part);
    struct dedupe dedupe = {
        .lookup = lookup, .part = part, .batch = &batch, .n = part->n_keys - n_hits};
    hps_status status = HPS_OK;

    part->duplicates = NULL;
    part->rows = batch.rows;
    if (dedupe.n > 0) {
        batch.keys = hps_arena_alloc(lookup->arena, dedupe.n * sizeof(*batch.keys));
        batch.slots = hps_arena_alloc(lookup->arena, dedupe.n * sizeof(*batch.slots));
        if (batch.keys == NULL || batch.slots == NULL) {
            part->rows = NULL;
            return HPS_EXHAUSTED;
        }
        status = dedupe.n <= QUADRATIC_KEYS_MAX ? dedupe_few(&dedupe) : dedupe_many(&dedupe);
    }
    part->n_unique = n_hits + batch.n;
    hps_walk_init(&part->walk, lookup->version, part->table, &batch);
    part->walk.gpu.n_found = n_hits;
    return status;
}

/* ---- what is missing ------------------------------------------------------------------------- */

static uint32_t n_duplicates(const struct hps_lookup_part *part)
{
    return part->n_keys - part->n_unique;
}

static void count_status(struct hps_lookup_part *part, uint8_t status)
{
    part->n_unknown += status == HPS_KEY_UNKNOWN ? 1 : 0;
    part->n_defaulted += status == HPS_KEY_DEFAULTED ? 1 : 0;
}

/* Default rows and status of keys [begin, end) of the batch, none of which was found. */
static void fill_range(struct hps_lookup_part *part, uint32_t begin, uint32_t end, uint8_t status,
                       bool zero)
{
    const struct hps_batch *batch = &part->walk.batch;
    const struct hps_table *table = part->table;

    for (uint32_t i = begin; i < end; i++) {
        uint8_t *row = batch->rows + (size_t)batch->slots[i] * table->row_bytes;

        if (zero) {
            memset(row, 0, table->row_bytes);
        } else {
            memcpy(row, table->default_row, table->row_bytes);
        }
        part->key_status[batch->slots[i]] = status;
        count_status(part, status);
    }
}

/* The same for all keys that were not found. */
static hps_status fill_missing(struct hps_lookup *lookup, struct hps_lookup_part *part,
                               struct hps_error *err)
{
    uint32_t n_missing = part->walk.batch.n;
    uint32_t n_absent = part->walk.n_absent;

    if (n_missing + n_absent == 0) {
        return HPS_OK;
    }
    if (n_absent > 0 && lookup->unknown_policy == HPS_UNKNOWN_ERROR) {
        return hps_error_set(err, HPS_NOT_FOUND, "table '%s': unknown key %" PRId64,
                             part->table->name, (int64_t)part->walk.batch.keys[n_missing]);
    }
    part->key_status = hps_arena_alloc(lookup->arena, part->n_keys);
    if (part->key_status == NULL) {
        return hps_error_set(err, HPS_EXHAUSTED, "table '%s': no memory for the status of %u keys",
                             part->table->name, part->n_keys);
    }
    memset(part->key_status, HPS_KEY_FOUND, part->n_keys);
    fill_range(part, 0, n_missing, HPS_KEY_DEFAULTED, false);
    fill_range(part, n_missing, n_missing + n_absent, HPS_KEY_UNKNOWN,
               lookup->unknown_policy == HPS_UNKNOWN_ZERO);
    for (uint32_t d = 0; d < n_duplicates(part); d++) {
        const struct hps_duplicate *duplicate = &part->duplicates[d];
        part->key_status[duplicate->index] = part->key_status[duplicate->first];
        count_status(part, part->key_status[duplicate->index]);
    }
    return HPS_OK;
}

static void convert_row(const struct hps_lookup *lookup, struct hps_lookup_part *part, size_t i)
{
    const struct hps_table *table = part->table;

    hps_dtype_convert(part->rows + i * part->row_bytes, output_type(lookup),
                      part->rows + i * table->row_bytes, table->dtype, table->dim);
}

/* Change the type of all rows but duplicates, in place: from the last one when rows grow. */
static void convert_rows(const struct hps_lookup *lookup, struct hps_lookup_part *part)
{
    uint32_t n_dup = n_duplicates(part);

    if (part->row_bytes > part->table->row_bytes) {
        for (uint32_t i = part->n_keys, d = n_dup; i-- > 0;) {
            if (d > 0 && part->duplicates[d - 1].index == i) {
                d--;
            } else {
                convert_row(lookup, part, i);
            }
        }
        return;
    }
    for (uint32_t i = 0, d = 0; i < part->n_keys; i++) {
        if (d < n_dup && part->duplicates[d].index == i) {
            d++;
        } else {
            convert_row(lookup, part, i);
        }
    }
}

/* What was not waited for is fetched behind the answer, if that was the bargain and there is a tier
 * to put it into. */
static void insert_behind(struct hps_lookup *lookup, const struct hps_lookup_part *part)
{
    bool wanted = lookup->miss_policy != HPS_MISS_MEMORY_ONLY && part->walk.batch.n > 0;
    bool has_place = !hps_walk_tier_blocks(&part->walk, 0) || lookup_gpu_caches(lookup, part) ||
                     hps_version_fills(lookup->version, 0);

    if (wanted && lookup->insertion != NULL && has_place) {
        hps_insertion_add(lookup->insertion, lookup->version, part->table, part->walk.batch.keys,
                          part->walk.batch.n);
    }
}

static hps_status finish_part(struct hps_lookup *lookup, struct hps_lookup_part *part,
                              struct hps_error *err)
{
    hps_status status = fill_missing(lookup, part, err);
    if (status != HPS_OK) {
        return status;
    }
    insert_behind(lookup, part);
    if (output_type(lookup) != part->table->dtype) {
        convert_rows(lookup, part);
    }
    for (uint32_t d = 0; d < n_duplicates(part); d++) {
        const struct hps_duplicate *duplicate = &part->duplicates[d];
        memcpy(part->rows + (size_t)duplicate->index * part->row_bytes,
               part->rows + (size_t)duplicate->first * part->row_bytes, part->row_bytes);
    }
    part->finished = true;
    return HPS_OK;
}

/* ---- counting -------------------------------------------------------------------------------- */

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

/* behind: it was done behind an answer */
static void count_inserted(const struct hps_lookup_metrics *metrics, enum hps_tier_kind kind,
                           const struct hps_tier_report *report, bool behind)
{
    if (report->n_inserted > 0 && kind != HPS_TIER_GPU) { /* of which only the device knows */
        hps_metric_add(behind ? metrics->insertion_rows_async[kind] : metrics->insertion_rows[kind],
                       report->n_inserted);
    }
    if (report->n_no_room > 0) {
        hps_metric_add(metrics->insertion_dropped[HPS_DROP_NO_SPACE], report->n_no_room);
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

    if (metrics != NULL) {
        count_faults(metrics, kind, report);
        count_inserted(metrics, kind, report, behind);
    }
    if (report->n_asked > 0 && series != NULL && series->tier_hit[kind] != NULL) {
        hps_metric_add(series->tier_hit[kind], n_hit);
        hps_metric_add(series->tier_miss[kind], report->n_asked - report->n_unanswered - n_hit);
    }
}

/* Keys for which no tier was asked. */
static void count_unasked(const struct hps_walk *walk, const struct hps_table_metrics *series)
{
    uint32_t n_shared = 0;

    for (uint32_t t = 0; t < walk->version->n_tiers; t++) {
        n_shared += walk->reports[t].n_shared;
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

/* What its tiers did. Of each part that is answered: unique keys = those that they found + shared +
 * remembered + not found, or not waited for. */
static void count_part(struct hps_lookup *lookup, const struct hps_lookup_part *part,
                       bool *tier_asked)
{
    const struct hps_version *version = lookup->version;
    const struct hps_table_metrics *series = series_of(version, part->table);

    for (uint32_t t = 0; t < version->n_tiers; t++) {
        enum hps_tier_kind kind = version->tiers[t]->store->ops->tier;

        tier_asked[kind] = tier_asked[kind] || part->walk.reports[t].n_asked > 0;
        lookup->tier_us[kind] += part->walk.reports[t].duration_us;
        count_tier(lookup->metrics, &part->walk.reports[t], kind, series, false);
    }
    tier_asked[HPS_TIER_GPU] = tier_asked[HPS_TIER_GPU] || part->walk.gpu.n_asked > 0;
    lookup->tier_us[HPS_TIER_GPU] += part->walk.gpu.duration_us;
    lookup->others_us += part->walk.wait_us;
    count_tier(lookup->metrics, &part->walk.gpu, HPS_TIER_GPU, series, false);
    if (series != NULL) {
        count_unasked(&part->walk, series);
    }
}

/* Keys of an answer. */
static void count_keys(const struct hps_lookup *lookup, const struct hps_lookup_part *part)
{
    const struct hps_table_metrics *series = series_of(lookup->version, part->table);

    if (series == NULL) {
        return;
    }
    struct hps_metric *defaulted = series->defaulted[lookup->miss_policy];
    hps_metric_add(series->keys_found, part->n_keys - part->n_defaulted - part->n_unknown);
    hps_metric_add(series->keys_defaulted, part->n_defaulted);
    hps_metric_add(series->keys_unknown, part->n_unknown);
    hps_metric_add(series->unique_keys, part->n_unique);
    if (part->n_defaulted > 0 && defaulted != NULL) {
        hps_metric_add(defaulted, part->n_defaulted);
    }
}

static void observe_tiers(const struct hps_lookup_metrics *metrics, const uint64_t *tier_us,
                          const bool *tier_asked)
{
    for (unsigned kind = 0; kind < HPS_TIER_COUNT; kind++) {
        if (tier_asked[kind]) {
            hps_metric_observe_us(metrics->tier_duration[kind], tier_us[kind]);
        }
    }
}

/* Keys asked of memory tiers are those of the look-ups: asking again before the stores below is no
 * question of anybody's. */
void hps_lookup_count_insertion(const struct hps_lookup_metrics *metrics,
                                const struct hps_walk *first)
{
    bool tier_asked[HPS_TIER_COUNT] = {false};
    uint64_t tier_us[HPS_TIER_COUNT] = {0};

    for (const struct hps_walk *walk = first; walk != NULL; walk = walk->next) {
        const struct hps_table_metrics *series = series_of(walk->version, walk->table);
        for (uint32_t t = 0; t < walk->version->n_tiers; t++) {
            enum hps_tier_kind kind = walk->version->tiers[t]->store->ops->tier;
            struct hps_tier_report report = walk->reports[t];
            report.n_asked = hps_walk_tier_blocks(walk, t) ? report.n_asked : 0;
            tier_asked[kind] = tier_asked[kind] || report.n_asked > 0;
            tier_us[kind] += report.duration_us;
            count_tier(metrics, &report, kind, series, true);
        }
        count_tier(metrics, &walk->gpu, HPS_TIER_GPU, series, true);
        if (series != NULL) {
            count_unasked(walk, series);
        }
    }
    observe_tiers(metrics, tier_us, tier_asked);
}

/* Keys as sent that the gpu had. */
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
            keys[n++] = key_at(part, i);
        }
        if (n == NOTE_KEYS || i + 1 == part->n_keys) {
            hps_hot_note(hot, keys, n);
            n = 0;
        }
    }
}

/* What was found, that is what can be warmed up. */
static void note_hot(const struct hps_lookup *lookup, const struct hps_lookup_part *part)
{
    struct hps_hot *const *hot = lookup->version->hot;
    uint32_t begin = part->walk.batch.n + part->walk.n_absent;
    uint32_t n_walked = part->n_unique - (part->hits == NULL ? 0 : part->walk.gpu.n_found);

    if (hot == NULL || hot[part->table->id] == NULL || !part->finished) {
        return;
    }
    if (part->hits != NULL) {
        note_hits(hot[part->table->id], part);
    }
    if (n_walked > begin) {
        hps_hot_note(hot[part->table->id], part->walk.batch.keys + begin, n_walked - begin);
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

/* Once per look-up (or try of one), however it ended. */
static hps_status conclude(struct hps_lookup *lookup, hps_status status, struct hps_error *err)
{
    bool tier_asked[HPS_TIER_COUNT] = {false};

    status = lookup_check_unit(lookup, status, err);
    for (uint32_t i = 0; i < lookup->n_parts; i++) {
        if (lookup->parts[i].rows != NULL) { /* it was begun */
            count_part(lookup, &lookup->parts[i], tier_asked);
            hps_walk_note_room(&lookup->parts[i].walk, lookup->version, false);
        }
    }
    if (lookup->metrics != NULL) {
        observe_tiers(lookup->metrics, lookup->tier_us, tier_asked);
    }
    if (status != HPS_ABORTED && !lookup->rereads) { /* else it is asked for again, or was */
        lookup_count_end(lookup, status == HPS_OK);
    }
    return status;
}

/* ---- running --------------------------------------------------------------------------------- */

static struct hps_walk_call walk_call(const struct hps_lookup *lookup, uint64_t deadline_us)
{
    return (struct hps_walk_call){.scratch = lookup->scratch,
                                  .deadline_us = deadline_us,
                                  .cancelled = lookup->cancelled,
                                  .cancelled_ctx = lookup->cancelled_ctx,
                                  .insertion = lookup->insertion,
                                  .exact = lookup->unit};
}

/* A row that misses has come behind an answer before, and did not stay. */
static bool misses_what_came(const struct hps_lookup *lookup, const struct hps_lookup_part *part)
{
    const struct hps_fetched *fetched = lookup->version->fetched;
    const struct hps_batch *batch = &part->walk.batch;
    uint32_t i = 0;

    while (fetched != NULL && i < batch->n &&
           !hps_fetched_often(fetched, part->table->id, batch->keys[i])) {
        i++;
    }
    return fetched != NULL && i < batch->n;
}

/* The hit rate of the part has reached the version's threshold, so that what misses comes behind
 * the answer. Without an embedding cache, or one that took no question, there is no rate: every
 * answer is exact. */
static bool is_asynchronous(struct hps_lookup *lookup, const struct hps_lookup_part *part)
{
    const struct hps_version *version = lookup->version;
    enum hps_tier_kind cache_tier = atomic_load(&version->cache_tier);
    uint32_t n_hits = 0;

    if (lookup->insertion == NULL || atomic_load(&version->cache_full) ||
        (cache_tier == HPS_TIER_GPU && !lookup_gpu_answered(lookup, part)) ||
        !hps_walk_hits(&part->walk, cache_tier, &n_hits)) {
        return false;
    }
    uint64_t n_hits_min =
        hps_policy_hits_min(atomic_load(&version->hit_rate_threshold), part->n_unique - n_hits);
    uint32_t n_others = n_hits - part->walk.gpu.n_found;
    bool reached = n_hits >= n_hits_min;
    if (reached && part->hits != NULL && n_others < n_hits_min) { /* duplicates are among them */
        reached = has_unique_hits(lookup, part, n_hits_min - n_others);
    }
    return reached && !misses_what_came(lookup, part);
}

/* The memory tiers have been asked: are the stores below waited for? */
static bool waits_for_stores(struct hps_lookup *lookup, const struct hps_lookup_part *part)
{
    switch (lookup->miss_policy) {
    case HPS_MISS_MEMORY_ONLY:
        return false;
    case HPS_MISS_WAIT:
        return lookup->wait_us_max > 0;
    case HPS_MISS_THRESHOLD:
        return !is_asynchronous(lookup, part);
    case HPS_MISS_MODEL:
    case HPS_MISS_EXACT:
        break;
    }
    return true;
}

/* The parts that are not answered yet, linked. */
static struct hps_walk *link_walks(struct hps_lookup *lookup)
{
    struct hps_walk *first = NULL;

    for (uint32_t i = lookup->n_parts; i-- > 0;) {
        if (!lookup->parts[i].finished) {
            lookup->parts[i].walk.next = first;
            first = &lookup->parts[i].walk;
        }
    }
    return first;
}

/* Unique keys of every part. */
static hps_status start_parts(struct hps_lookup *lookup, struct hps_error *err)
{
    for (uint32_t i = 0; i < lookup->n_parts; i++) {
        struct hps_lookup_part *part = &lookup->parts[i];
        if (part->n_keys == 0) {
            part->finished = true;
            continue;
        }
        hps_status status = start_part(lookup, part);
        if (status != HPS_OK) {
            return hps_error_set(err, status, "table '%s': no memory for %u keys",
                                 part->table->name, part->n_keys);
        }
    }
    return HPS_OK;
}

void lookup_begin(struct hps_lookup *lookup)
{
    if (!lookup->begun) {
        lookup->begun = true;
        lookup->wait_deadline_us = hps_clock_us() + lookup->wait_us_max;
        lookup->gpu_deadline_us = lookup_gpu_deadline_us(lookup);
        lookup->event_time_ms = hps_update_event_time_ms(lookup->version);
        lookup->update_sequence = hps_update_sequence(lookup->version);
        lookup->since = hps_stamps_now(lookup->version->stamps);
    }
}

/* Finish the parts that wait for nothing more. */
static hps_status finish_ready(struct hps_lookup *lookup, bool *out_done, struct hps_error *err)
{
    bool done = true;

    for (uint32_t i = 0; i < lookup->n_parts; i++) {
        struct hps_lookup_part *part = &lookup->parts[i];
        bool ready =
            hps_walk_done(&part->walk) || (!part->waits_for_gpu && !waits_for_stores(lookup, part));
        if (!part->finished && ready) {
            hps_status status = finish_part(lookup, part, err);
            if (status != HPS_OK) {
                return status;
            }
        }
        done = done && part->finished;
    }
    *out_done = done;
    return HPS_OK;
}

/* The step has ended: it may have been the last one. */
static hps_status end_step(struct hps_lookup *lookup, hps_status status, bool *out_done,
                           struct hps_error *err)
{
    bool done = false;

    if (status == HPS_OK) {
        status = finish_ready(lookup, &done, err);
    }
    if (status != HPS_OK || done) {
        status = conclude(lookup, status, err);
    }
    if (status == HPS_OK) {
        *out_done = done;
    }
    return status;
}

hps_status hps_lookup_run_memory(struct hps_lookup *lookup, bool *out_done, struct hps_error *err)
{
    struct hps_walk_call call = walk_call(lookup, lookup->deadline_us);
    struct hps_walk *first = NULL;

    HPS_ASSERT(lookup->rows != NULL || lookup->rows_bytes == 0);
    call.helpers = lookup->helpers;
    lookup_begin(lookup);
    hps_status status = lookup_gpu_block(lookup, err);
    if (status == HPS_OK) {
        lookup_gpu_hits(lookup);
        status = start_parts(lookup, err);
    }
    if (status == HPS_OK) {
        lookup_gpu_take(lookup);
        first = link_walks(lookup);
    }
    if (first != NULL) {
        status = hps_walk_memory(first, &call, err);
    }
    if (status == HPS_OK) {
        lookup_gpu_offer(lookup);
    }
    return end_step(lookup, status, out_done, err);
}

hps_status hps_lookup_run_gpu(struct hps_lookup *lookup, bool *out_done, struct hps_error *err)
{
    lookup_gpu_take(lookup);
    return end_step(lookup, HPS_OK, out_done, err);
}

hps_status hps_lookup_give_up(struct hps_lookup *lookup, struct hps_error *err)
{
    hps_status status = HPS_OK;

    for (uint32_t i = 0; i < lookup->n_parts && status == HPS_OK; i++) {
        if (!lookup->parts[i].finished) {
            status = finish_part(lookup, &lookup->parts[i], err);
        }
    }
    return conclude(lookup, status, err);
}

void hps_lookup_abandon(struct hps_lookup *lookup)
{
    hps_ignore(conclude(lookup, HPS_CANCELLED, NULL));
    lookup_gpu_forget(lookup);
}

hps_status hps_lookup_run_rest(struct hps_lookup *lookup, struct hps_error *err)
{
    struct hps_walk *first = link_walks(lookup);
    uint64_t deadline_us = lookup->deadline_us;
    bool wait = lookup->miss_policy == HPS_MISS_WAIT;
    hps_status status = HPS_OK;

    if (wait && (deadline_us == 0 || lookup->wait_deadline_us < deadline_us)) {
        deadline_us = lookup->wait_deadline_us;
    } else {
        wait = false; /* the request's own deadline comes first, and fails it */
    }
    if (first != NULL) {
        struct hps_walk_call call = walk_call(lookup, deadline_us);
        status = hps_walk_rest(first, &call, err);
        lookup->ahead = status == HPS_ABORTED;
    }
    if (status == HPS_DEADLINE && wait) {
        status = HPS_OK;
    }
    return status == HPS_OK ? hps_lookup_give_up(lookup, err) : conclude(lookup, status, err);
}

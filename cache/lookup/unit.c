/* SPDX-License-Identifier: Apache-2.0
 *
 * Consistency units: rows of one state of the version, although updates arrive while they are read.
 * A row is as good as one read when the lookup began if no batch has changed its key since
 * (stamps.h). Only other rows are read again, by a lookup of their own, and put in their places.
 * That takes a fraction of the time of the first reading, so the next batch seldom arrives in
 * between. On the thread that owns the lookup.
 */
#include <inttypes.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "cache/lookup/internal.h"
#include "cache/update/update.h"

/* Keys read again at a time. This bounds the memory that it takes besides the lookup. */
enum { AGAIN_KEYS = 4096, AGAIN_BYTES = 1 << 20, ARENA_BYTES_FIRST = 64 * 1024 };

/* ---- changed rows ---------------------------------------------------------------------------- */

static uint32_t key_status(const struct hps_lookup_part *part, uint32_t i)
{
    return part->key_status == NULL ? HPS_KEY_FOUND : part->key_status[i];
}

/* Whether key i, as sent, may have another row now than when it was read. A default row counts as
 * unchanged. */
static bool has_changed(const struct hps_lookup *lookup, const struct hps_lookup_part *part,
                        uint32_t i)
{
    hps_key key;

    memcpy(&key, part->keys + (size_t)i * sizeof(key), sizeof(key));
    return !hps_stamp_unchanged(lookup->version->stamps, part->table->id, key, lookup->since) &&
           key_status(part, i) != HPS_KEY_DEFAULTED;
}

/* Whether no batch was being applied when the lookup began, and none has begun since. */
static bool stood_still(const struct hps_lookup *lookup)
{
    return lookup->since % 2 == 0 && hps_stamps_now(lookup->version->stamps) == lookup->since;
}

/* Whether the batch that was being applied then still is. Its keys count as changed until it ends.
 */
static bool is_under_way(const struct hps_lookup *lookup)
{
    return lookup->since % 2 != 0 && hps_stamps_now(lookup->version->stamps) == lookup->since;
}

static bool any_changed(const struct hps_lookup *lookup)
{
    if (stood_still(lookup)) {
        return false;
    }
    for (uint32_t p = 0; p < lookup->n_parts; p++) {
        for (uint32_t i = 0; i < lookup->parts[p].n_keys; i++) {
            if (has_changed(lookup, &lookup->parts[p], i)) {
                return true;
            }
        }
    }
    return false;
}

/* Whether an update may have added a key that was in no tier, for which the lookup fails. */
static bool absent_changed(const struct hps_lookup *lookup)
{
    for (uint32_t p = 0; p < lookup->n_parts && !stood_still(lookup); p++) {
        const struct hps_walk *walk = &lookup->parts[p].walk;
        for (uint32_t i = 0; i < walk->n_absent && lookup->parts[p].rows != NULL; i++) {
            if (!hps_stamp_unchanged(lookup->version->stamps, walk->table->id,
                                     walk->batch.keys[walk->batch.n + i], lookup->since)) {
                return true;
            }
        }
    }
    return false;
}

static hps_status torn(const struct hps_lookup *lookup, struct hps_error *err)
{
    bool under_way = hps_stamps_now(lookup->version->stamps) % 2 != 0;

    return hps_error_set(err, HPS_ABORTED, "consistency: a batch of updates %s",
                         under_way ? "was in some tiers only" : "arrived during the lookup");
}

hps_status lookup_check_unit(struct hps_lookup *lookup, hps_status status, struct hps_error *err)
{
    bool whole = status != HPS_NOT_FOUND || !absent_changed(lookup);

    if (!lookup->unit) {
        return status;
    }
    lookup->torn = status == HPS_OK && !lookup->rereads && any_changed(lookup);
    return whole && !lookup->torn ? status : torn(lookup, err);
}

/* ---- reading again --------------------------------------------------------------------------- */

/* Keys that are read again together, from all parts. */
struct again {
    struct hps_lookup *whole;
    struct hps_lookup some;
    struct hps_arena *arena;
    uint8_t *keys;      /* [AGAIN_KEYS] int64 LE */
    uint32_t *places;   /* [AGAIN_KEYS] index of each in its part of `whole` */
    uint32_t part, key; /* of `whole`: where to continue */
};

/* Make an empty lookup with the tables of the whole one, for rows as stored. EXHAUSTED: memory */
static hps_status again_clear(struct again *again)
{
    const struct hps_lookup *whole = again->whole;
    uint64_t now_us = hps_clock_us();
    uint64_t left_us = whole->wait_deadline_us > now_us ? whole->wait_deadline_us - now_us : 0;

    hps_arena_reset(again->arena);
    again->keys = hps_arena_alloc(again->arena, AGAIN_KEYS * sizeof(hps_key));
    again->places = hps_arena_alloc(again->arena, AGAIN_KEYS * sizeof(*again->places));
    again->some = (struct hps_lookup){
        .version = whole->version,
        .arena = again->arena,
        .scratch = whole->scratch,
        .parts = hps_arena_calloc(again->arena, whole->n_parts, sizeof(*whole->parts)),
        .n_parts = whole->n_parts,
        .miss_policy = whole->miss_policy,
        .unknown_policy = whole->unknown_policy,
        .output = HPS_DTYPE_RAW,
        .unit = true,
        .rereads = true,
        .wait_us_max = (uint32_t)(left_us < UINT32_MAX ? left_us : UINT32_MAX),
        .deadline_us = whole->deadline_us,
        .cancelled = whole->cancelled,
        .cancelled_ctx = whole->cancelled_ctx,
        .metrics = whole->metrics,
        .insertion = whole->insertion,
    };
    if (again->keys == NULL || again->places == NULL || again->some.parts == NULL) {
        return HPS_EXHAUSTED;
    }
    for (uint32_t p = 0; p < whole->n_parts; p++) {
        again->some.parts[p].table = whole->parts[p].table;
    }
    return HPS_OK;
}

/* Collect the next keys that have changed since the whole lookup began. out_n 0: there are no more.
 */
static hps_status collect(struct again *again, uint32_t *out_n)
{
    struct hps_lookup *whole = again->whole;
    uint64_t bytes = 0;
    uint32_t n = 0;

    if (again_clear(again) != HPS_OK) {
        return HPS_EXHAUSTED;
    }
    for (; again->part < whole->n_parts; again->part++, again->key = 0) {
        const struct hps_lookup_part *part = &whole->parts[again->part];
        struct hps_lookup_part *some = &again->some.parts[again->part];
        some->keys = again->keys + (size_t)n * sizeof(hps_key);
        for (; again->key < part->n_keys; again->key++) {
            if (!has_changed(whole, part, again->key)) {
                continue;
            }
            bytes += part->table->row_bytes;
            if (n == AGAIN_KEYS || (n > 0 && bytes > AGAIN_BYTES)) {
                *out_n = n;
                return HPS_OK;
            }
            memcpy(again->keys + (size_t)n * sizeof(hps_key),
                   part->keys + (size_t)again->key * sizeof(hps_key), sizeof(hps_key));
            again->places[n++] = again->key;
            some->n_keys++;
        }
    }
    *out_n = n;
    return HPS_OK;
}

/* Set the status of a key that was read again. */
static void set_status(struct hps_lookup_part *part, uint32_t i, uint8_t status)
{
    part->n_unknown -= part->key_status[i] == HPS_KEY_UNKNOWN ? 1 : 0;
    part->n_unknown += status == HPS_KEY_UNKNOWN ? 1 : 0;
    part->n_defaulted += status == HPS_KEY_DEFAULTED ? 1 : 0; /* DEFAULTED keys are not reread */
    part->key_status[i] = status;
}

/* Put the rows of a part in their places. Bags are added when all rows have been read. */
static hps_status put_part(struct hps_lookup *whole, struct hps_lookup_part *part,
                           const struct hps_lookup_part *some, const uint32_t *places)
{
    bool pooled = part->form == HPS_PART_POOLED;
    enum hps_dtype stored = part->table->dtype;
    enum hps_dtype dtype = pooled ? stored : part->out_dtype;
    uint64_t stride = pooled ? part->table->row_bytes : part->stride;
    uint8_t *rows = pooled ? part->gathered : part->rows;
    hps_row_convert_fn convert = hps_row_converter(dtype, stored, false);

    HPS_ASSERT(rows != NULL);
    if (some->key_status != NULL && part->key_status == NULL) {
        part->key_status = hps_arena_alloc(whole->arena, part->n_keys);
        if (part->key_status == NULL) {
            return HPS_EXHAUSTED;
        }
        memset(part->key_status, HPS_KEY_FOUND, part->n_keys);
    }
    for (uint32_t i = 0; i < some->n_keys; i++) {
        convert(rows + places[i] * stride, some->rows + i * some->stride, part->table->dim);
        if (part->key_status != NULL) {
            set_status(part, places[i], (uint8_t)key_status(some, i));
        }
    }
    return HPS_OK;
}

/* A part has statuses only if some key was not found; the second reading may have found it. */
static void drop_statuses(struct hps_lookup *whole)
{
    for (uint32_t p = 0; p < whole->n_parts; p++) {
        struct hps_lookup_part *part = &whole->parts[p];
        if (part->n_unknown == 0 && part->n_defaulted == 0) {
            part->key_status = NULL;
        }
    }
}

/* Put all rows that were read again in their places. */
static hps_status put(struct again *again)
{
    struct hps_lookup *whole = again->whole;
    hps_status status = HPS_OK;

    for (uint32_t p = 0; p < whole->n_parts && status == HPS_OK; p++) {
        const struct hps_lookup_part *some = &again->some.parts[p];
        if (some->n_keys > 0) {
            size_t first = (size_t)(some->keys - again->keys) / sizeof(hps_key);
            status = put_part(whole, &whole->parts[p], some, again->places + first);
        }
    }
    for (unsigned kind = 0; kind < HPS_TIER_COUNT; kind++) {
        whole->tier_us[kind] += again->some.tier_us[kind];
    }
    whole->others_us += again->some.others_us;
    return status;
}

/* Look up the collected keys, on this thread alone. */
static hps_status read_some(struct again *again, struct hps_error *err)
{
    struct hps_lookup *some = &again->some;
    bool done = false;
    hps_status status = hps_lookup_plan(some, err);

    if (status != HPS_OK) {
        return status;
    }
    some->rows = hps_alloc_aligned(HPS_ROWS_ALIGN, some->rows_bytes);
    if (some->rows == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory to read %" PRIu64 " rows again",
                             some->n_keys);
    }
    status = hps_lookup_run_memory(some, &done, err);
    if (status == HPS_OK && !done) {
        status = hps_lookup_run_rest(some, err);
    }
    again->whole->ahead = some->ahead;
    if (status == HPS_OK && put(again) != HPS_OK) {
        status = hps_error_set(err, HPS_EXHAUSTED, "no memory for the status of keys");
    }
    hps_free_aligned(some->rows);
    return status;
}

/* Read all rows that have changed since the lookup began. Then the lookup counts as begun now. */
static hps_status read_changed(struct again *again, struct hps_error *err)
{
    struct hps_lookup *whole = again->whole;
    int64_t event_time_ms = hps_update_event_time_ms(whole->version);
    uint64_t update_sequence = hps_update_sequence(whole->version);
    uint64_t since = hps_stamps_now(whole->version->stamps); /* after these two, before any row */
    uint32_t n = 0;

    again->part = 0;
    again->key = 0;
    do {
        if (collect(again, &n) != HPS_OK) {
            return hps_error_set(err, HPS_EXHAUSTED, "no memory to read rows again");
        }
        hps_status status = n == 0 ? HPS_OK : read_some(again, err);
        if (status != HPS_OK) {
            return status;
        }
        whole->n_reread += n;
    } while (n > 0);
    whole->event_time_ms = event_time_ms;
    whole->update_sequence = update_sequence;
    whole->since = since;
    return HPS_OK;
}

/* ABORTED: torn again, or ahead. */
static hps_status read_once(struct again *again, struct hps_error *err)
{
    hps_status status = read_changed(again, err);

    return status == HPS_OK && any_changed(again->whole) ? torn(again->whole, err) : status;
}

/* Read again while updates continue; the last time while they are held back, if that is possible.
 */
static hps_status read_until_whole(struct again *again, struct hps_error *err)
{
    struct hps_lookup *lookup = again->whole;
    hps_status status = torn(lookup, err);

    for (unsigned n = 1; n < HPS_LOOKUP_REREADS_MAX && status == HPS_ABORTED && !lookup->ahead &&
                         !is_under_way(lookup);
         n++) {
        status = read_once(again, err);
    }
    if (status == HPS_ABORTED && !lookup->ahead && hps_update_hold(lookup->version)) {
        status = read_once(again, err);
        hps_update_release(lookup->version);
    }
    return status;
}

hps_status hps_lookup_reread(struct hps_lookup *lookup, struct hps_error *err)
{
    struct again again = {.whole = lookup, .arena = hps_arena_new(ARENA_BYTES_FIRST, SIZE_MAX)};

    HPS_ASSERT(lookup->torn);
    if (again.arena == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory to read rows again");
    }
    hps_status status = read_until_whole(&again, err);
    hps_arena_free(again.arena);
    lookup->torn = status == HPS_ABORTED && !lookup->ahead;
    drop_statuses(lookup);
    if (status == HPS_OK && lookup->n_pooled > 0) {
        status = lookup_add_bags(lookup, NULL, err);
    }
    if (!lookup->torn) {
        hps_lookup_release(lookup);
    }
    if (status == HPS_OK) {
        lookup_count_end(lookup, true);
    }
    return status;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing rows, one script call per shard: batches of the log, and empty shards. One thread per
 * space at a time.
 */
#include <string.h>

#include "backends/redis/internal.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"

/* A call with more rows erases them instead, because it would block the server for too long. */
enum { PUTS_MAX = 16384 };

/* ---- sorting a batch by shard ---------------------------------------------------------------- */

struct entry {
    uint32_t write;
    uint32_t index;
};

/* The keys of a batch by shard, then by span, rows before deletes. */
struct sorted {
    struct redis_space *space;
    const struct hps_log_batch *batch;
    uint32_t n_groups;     /* spans; 1 if the batch has no spans */
    uint32_t n_cells;      /* two per shard and group */
    uint32_t *ends;        /* [n_cells] */
    uint32_t *cells;       /* [n_keys] cell of each key, in order of the batch */
    struct entry *entries; /* [n_keys] */
    uint32_t n_keys;
};

static void sorted_free(struct sorted *sorted)
{
    hps_free(sorted->ends);
    hps_free(sorted->cells);
    hps_free(sorted->entries);
}

static uint32_t cell_of(const struct sorted *sorted, uint32_t write, hps_key key)
{
    const struct hps_log_batch *batch = sorted->batch;
    uint32_t group = batch->n_spans == 0 ? 0 : batch->write_spans[write];
    bool deleted = batch->erase_only || batch->writes[write].rows == NULL;
    HPS_ASSERT(group < sorted->n_groups);
    uint32_t table_id = batch->writes[write].table->id;
    uint32_t shard = hps_redis_shard(table_id, key, sorted->space->n_shards);
    return (shard * sorted->n_groups + group) * 2 + (deleted ? 1 : 0);
}

static hps_status sort(struct redis_space *space, const struct hps_log_batch *batch,
                       struct sorted *sorted)
{
    uint32_t at = 0;
    *sorted = (struct sorted){.space = space, .batch = batch};
    sorted->n_groups = batch->n_spans == 0 ? 1 : batch->n_spans;
    sorted->n_cells = space->n_shards * sorted->n_groups * 2;
    for (uint32_t w = 0; w < batch->n_writes; w++) {
        sorted->n_keys += batch->writes[w].n;
    }
    sorted->ends = hps_calloc(sorted->n_cells, sizeof(*sorted->ends));
    sorted->cells = hps_alloc(sorted->n_keys * sizeof(*sorted->cells));
    sorted->entries = hps_alloc(sorted->n_keys * sizeof(*sorted->entries));
    if (sorted->ends == NULL || sorted->cells == NULL || sorted->entries == NULL) {
        return HPS_NO_MEMORY;
    }
    for (uint32_t w = 0; w < batch->n_writes; w++) {
        for (uint32_t i = 0; i < batch->writes[w].n; i++, at++) {
            sorted->cells[at] = cell_of(sorted, w, batch->writes[w].keys[i]);
            sorted->ends[sorted->cells[at]]++;
        }
    }
    HPS_ASSERT(at == sorted->n_keys);
    at = 0;
    for (uint32_t c = 0; c < sorted->n_cells; c++) {
        uint32_t n = sorted->ends[c];
        sorted->ends[c] = at; /* begin of the cell now; its end once it is filled */
        at += n;
    }
    HPS_ASSERT(at == sorted->n_keys);
    at = 0;
    for (uint32_t w = 0; w < batch->n_writes; w++) {
        for (uint32_t i = 0; i < batch->writes[w].n; i++, at++) {
            sorted->entries[sorted->ends[sorted->cells[at]]++] = (struct entry){w, i};
        }
    }
    return HPS_OK;
}

static uint32_t cell_begin(const struct sorted *sorted, uint32_t cell)
{
    HPS_DEBUG_ASSERT(cell < sorted->n_cells);
    return cell == 0 ? 0 : sorted->ends[cell - 1];
}

/* ---- commands -------------------------------------------------------------------------------- */

hps_status redis_put_field(struct hps_buf *bytes, const struct hps_table *table, hps_key key)
{
    uint8_t field[HPS_REDIS_FIELD_BYTES];
    hps_redis_field(table->id, key, field);
    return hps_redis_put_arg(bytes, field, sizeof(field));
}

static hps_status put_cell(struct hps_buf *bytes, const struct sorted *sorted, uint32_t cell,
                           bool rows)
{
    hps_status status = HPS_OK;
    for (uint32_t e = cell_begin(sorted, cell); e < sorted->ends[cell] && status == HPS_OK; e++) {
        const struct entry *entry = &sorted->entries[e];
        const struct hps_write *write = &sorted->batch->writes[entry->write];
        size_t row_bytes = write->table->row_bytes;
        status = redis_put_field(bytes, write->table, write->keys[entry->index]);
        HPS_DEBUG_ASSERT(!rows || write->rows != NULL);
        if (rows && status == HPS_OK) {
            status = hps_redis_put_arg(bytes, write->rows + entry->index * row_bytes, row_bytes);
        }
    }
    return status;
}

/* Without `rows`, keys that would get a row are erased. */
static hps_status put_group(struct hps_buf *bytes, const struct sorted *sorted, uint32_t cell,
                            bool rows)
{
    uint32_t n_puts = sorted->ends[cell] - cell_begin(sorted, cell);
    uint32_t n_deletes = sorted->ends[cell + 1] - sorted->ends[cell];
    hps_status status = hps_redis_put_u64(bytes, rows ? n_puts : 0);
    status =
        status == HPS_OK ? hps_redis_put_u64(bytes, rows ? n_deletes : n_puts + n_deletes) : status;
    status = status == HPS_OK ? put_cell(bytes, sorted, cell, rows) : status;
    return status == HPS_OK ? put_cell(bytes, sorted, cell + 1, false) : status;
}

static uint32_t n_keys_of(const struct redis_space *space)
{
    bool uses = space->rows_max != 0 && space->redis->options.evict != HPS_REDIS_EVICT_RANDOM;
    return uses ? 2 : 1;
}

/* The call for one shard; `digest` is its known digest, zeros if it is not known. */
static hps_status put_apply(struct hps_buf *bytes, const struct sorted *sorted, uint32_t shard,
                            const struct hps_buf *spans, const uint8_t *digest, bool full)
{
    struct redis_space *space = sorted->space;
    HPS_ASSERT(shard < space->n_shards);
    uint32_t cell = shard * sorted->n_groups * 2;
    uint32_t n_puts = 0;
    uint32_t n_deletes = 0;
    for (uint32_t g = 0; g < sorted->n_groups; g++) {
        uint32_t c = cell + g * 2;
        n_puts += sorted->ends[c] - cell_begin(sorted, c);
        n_deletes += sorted->ends[c + 1] - sorted->ends[c];
    }
    bool rows = !full && (n_puts <= PUTS_MAX || space->redis->options.authoritative);
    uint32_t n_args = 2 + 2 * sorted->n_groups + (rows ? 2 : 1) * n_puts + n_deletes;
    hps_status status = hps_redis_script_begin(bytes, full ? HPS_REDIS_SHRINK : HPS_REDIS_APPLY,
                                               space->shards[shard].keys, n_keys_of(space), n_args);
    status = status == HPS_OK ? hps_redis_put_arg(bytes, spans->data, spans->size) : status;
    status = status == HPS_OK ? hps_redis_put_arg(bytes, digest, REDIS_DIGEST_BYTES) : status;
    for (uint32_t g = 0; g < sorted->n_groups && status == HPS_OK; g++) {
        status = put_group(bytes, sorted, cell + g * 2, rows);
    }
    return status;
}

/* Result for a shard; the script returns HAD, APPLIED or GAP. */
enum outcome { HAD, APPLIED, GAP, FAILED, FULL };

struct applying {
    struct redis_space *space;
    struct sorted sorted;
    struct hps_buf spans;
    uint8_t (*digests)[REDIS_DIGEST_BYTES]; /* [n_shards] known digests */
    uint8_t *outcomes;                      /* [n_shards] enum outcome */
    enum outcome of; /* outcome that selects the shards of the current call */
};

/* ---- applying -------------------------------------------------------------------------------- */

static void applying_fini(struct applying *applying)
{
    sorted_free(&applying->sorted);
    hps_buf_fini(&applying->spans);
    hps_free(applying->digests);
    hps_free(applying->outcomes);
}

static hps_status applying_init(struct applying *applying, struct redis_space *space,
                                const struct hps_log_batch *batch)
{
    *applying = (struct applying){.space = space};
    hps_buf_init(&applying->spans, (size_t)HPS_REDIS_SPAN_BYTES << 20);
    applying->digests = hps_calloc(space->n_shards, sizeof(*applying->digests));
    applying->outcomes = hps_alloc(space->n_shards);
    if (applying->digests == NULL || applying->outcomes == NULL) {
        return HPS_NO_MEMORY;
    }
    memset(applying->outcomes, FAILED, space->n_shards);
    hps_status status = sort(space, batch, &applying->sorted);
    return status == HPS_OK ? hps_redis_spans_encode(batch->spans, batch->n_spans, &applying->spans)
                            : status;
}

/* Take the script's reply: outcome, digest, positions or 0, rows. */
static enum outcome take_applied(struct applying *applying, uint32_t shard,
                                 struct redis_shard_seen seen, const struct hps_redis_reply *reply)
{
    const struct hps_redis_values *values = reply->values;
    const struct hps_log_batch *batch = applying->sorted.batch;
    HPS_ASSERT(shard < applying->space->n_shards);
    struct redis_space *space = applying->space;
    int64_t outcome = FAILED;
    int64_t n_rows = 0;
    if (reply->status != HPS_OK || values->n != 5 || !hps_redis_values_i64(values, 1, &outcome) ||
        outcome < HAD || outcome > GAP || values->items[2].type != HPS_REDIS_TEXT ||
        !hps_redis_values_i64(values, 4, &n_rows)) {
        redis_shard_forget(space, shard, seen);
        return reply->status == HPS_EXHAUSTED ? FULL : FAILED;
    }
    const uint8_t *digest = (const uint8_t *)values->text.data + values->items[2].at;
    bool knows = values->items[3].type == HPS_REDIS_INT;
    if (knows && values->items[2].size == REDIS_DIGEST_BYTES) {
        redis_shard_moved(space, shard, applying->digests[shard], digest, batch->spans,
                          batch->n_spans);
    } else if (values->items[2].size == 0) {
        (void)redis_shard_learn(space, shard, seen, NULL, 0, NULL, 0);
    } else if (!redis_learn_values(space, shard, seen, values, 2)) {
        redis_shard_forget(space, shard, seen);
    }
    if (outcome != GAP) {
        redis_shard_wrote(space, shard, n_rows);
    }
    return (enum outcome)outcome;
}

/* Spans concern all shards. Without spans, only shards with keys are concerned. */
static bool concerns(const struct sorted *sorted, uint32_t shard)
{
    uint32_t n_cells = sorted->n_groups * 2;
    return sorted->batch->n_spans > 0 ||
           sorted->ends[(shard + 1) * n_cells - 1] > cell_begin(sorted, shard * n_cells);
}

static void take_digest(struct applying *applying, uint32_t at)
{
    struct redis_space *space = applying->space;
    const struct redis_shard *shard = &space->shards[at];
    HPS_ASSERT(at < space->n_shards);
    memset(applying->digests[at], 0, REDIS_DIGEST_BYTES);
    hps_lock_acquire(&space->lock);
    if (shard->known && !shard->missing) {
        memcpy(applying->digests[at], shard->digest, REDIS_DIGEST_BYTES);
    }
    hps_lock_release(&space->lock);
}

static hps_status put_applying(void *ctx, struct hps_buf *bytes, uint32_t shard)
{
    struct applying *applying = ctx;
    if (applying->outcomes[shard] != applying->of) {
        return HPS_OK;
    }
    if (!concerns(&applying->sorted, shard)) {
        applying->outcomes[shard] = HAD;
        return HPS_OK;
    }
    take_digest(applying, shard);
    return put_apply(bytes, &applying->sorted, shard, &applying->spans, applying->digests[shard],
                     applying->of == FULL);
}

/* Apply to all shards with the outcome `of`. */
static hps_status apply_to(struct applying *applying, enum outcome of, uint64_t deadline_us)
{
    struct redis_batch batch;
    applying->of = of;
    hps_status status =
        redis_shards_call(applying->space, of == FULL ? HPS_REDIS_SHRINK : HPS_REDIS_APPLY,
                          put_applying, applying, deadline_us, &batch);
    for (uint32_t i = 0; i < batch.n && status == HPS_OK; i++) {
        uint32_t shard = batch.shards[i];
        applying->outcomes[shard] =
            (uint8_t)take_applied(applying, shard, batch.seen[i], &batch.commands[i].reply);
    }
    redis_batch_fini(&batch);
    return status;
}

static uint32_t n_of(const struct applying *applying, enum outcome outcome)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < applying->space->n_shards; i++) {
        n += applying->outcomes[i] == outcome ? 1 : 0;
    }
    return n;
}

/* Apply to all shards. If a server is full, erase the keys there instead of writing rows. */
static void apply_to_all(struct applying *applying, uint64_t deadline_us)
{
    bool only_copy = applying->space->redis->options.authoritative;
    hps_status status = apply_to(applying, FAILED, deadline_us);
    if (status == HPS_OK && n_of(applying, FULL) > 0 && !only_copy) {
        hps_ignore(apply_to(applying, FULL, deadline_us)); /* they stay FULL, and count as failed */
    }
    redis_evict(applying->space, deadline_us);
}

/* ---- emptying shards ------------------------------------------------------------------------- */

struct resetting {
    struct redis_space *space;
    const uint8_t *which;
    struct hps_buf positions;
};

static hps_status put_reset(void *ctx, struct hps_buf *bytes, uint32_t at)
{
    const struct resetting *resetting = ctx;
    struct redis_space *space = resetting->space;
    struct redis_shard *shard = &space->shards[at];
    const struct hps_buf *positions = &resetting->positions;
    if (resetting->which[at] == 0) {
        return HPS_OK;
    }
    uint8_t digest[REDIS_DIGEST_BYTES];
    hps_lock_acquire(&space->lock);
    bool missing = shard->missing;
    memcpy(digest, shard->digest, sizeof(digest));
    hps_lock_release(&space->lock);
    hps_status status =
        hps_redis_script_begin(bytes, HPS_REDIS_RESET, shard->keys, n_keys_of(space), 2);
    status =
        status == HPS_OK ? hps_redis_put_arg(bytes, digest, missing ? 0 : sizeof(digest)) : status;
    return status == HPS_OK ? hps_redis_put_arg(bytes, positions->data, positions->size) : status;
}

hps_status redis_reset(struct redis_space *space, uint8_t *which, uint64_t deadline_us)
{
    struct redis_batch batch = {0};
    struct resetting resetting = {.space = space, .which = which};
    HPS_ASSERT(!space->redis->options.authoritative); /* it would delete the only copy */
    hps_status status = redis_positions_put(space, &resetting.positions);
    if (status == HPS_OK) {
        status =
            redis_shards_call(space, HPS_REDIS_RESET, put_reset, &resetting, deadline_us, &batch);
    }
    memset(which, 0, space->n_shards);
    for (uint32_t i = 0; i < batch.n && status == HPS_OK; i++) {
        const struct hps_redis_values *values = &batch.values[i];
        uint32_t shard = batch.shards[i];
        int64_t done = 0;
        bool answered = batch.commands[i].reply.status == HPS_OK && values->n == 4 &&
                        hps_redis_values_i64(values, 1, &done);
        if (!answered || !redis_learn_values(space, shard, batch.seen[i], values, 2)) {
            redis_shard_forget(space, shard, batch.seen[i]);
        }
        if (!answered) {
            continue;
        }
        which[shard] = done == 1 ? 1 : 2;
        atomic_fetch_add_explicit(&space->redis->n_reset, done == 1, memory_order_relaxed);
    }
    redis_batch_fini(&batch);
    hps_buf_fini(&resetting.positions);
    return status;
}

/* ---- put and erase, without a log ------------------------------------------------------------ */

hps_status redis_make_missing(struct redis_space *space, uint64_t deadline_us)
{
    if (space->redis->options.authoritative) {
        return HPS_OK;
    }
    uint8_t *which = hps_calloc(space->n_shards, 1);
    uint32_t n = 0;
    if (which == NULL) {
        return HPS_NO_MEMORY;
    }
    hps_lock_acquire(&space->lock);
    for (uint32_t i = 0; i < space->n_shards; i++) {
        which[i] = space->shards[i].known && space->shards[i].missing;
        n += which[i];
    }
    hps_lock_release(&space->lock);
    hps_status status = n == 0 ? HPS_OK : redis_reset(space, which, deadline_us);
    hps_free(which);
    return status;
}

static hps_status write_keys(struct hps_space *base, const struct hps_call *call,
                             const struct hps_write *write)
{
    struct redis_space *space = redis_space_of(base);
    const struct hps_log_batch batch = {.writes = write, .n_writes = 1};
    uint64_t deadline_us = redis_write_deadline(space->redis, call);
    struct applying applying;
    if (write->n == 0) {
        return HPS_OK;
    }
    hps_status status = applying_init(&applying, space, &batch);
    if (status == HPS_OK) {
        apply_to_all(&applying, deadline_us);
        if (n_of(&applying, GAP) > 0) {
            status = redis_make_missing(space, deadline_us);
            status = status == HPS_OK ? apply_to(&applying, GAP, deadline_us) : status;
            redis_evict(space, deadline_us);
        }
    }
    if (status == HPS_OK && n_of(&applying, FULL) > 0) {
        status = HPS_EXHAUSTED;
    } else if (status == HPS_OK && n_of(&applying, FAILED) + n_of(&applying, GAP) > 0) {
        status = HPS_UNAVAILABLE;
    }
    applying_fini(&applying);
    return status;
}

/* Same, in steps, so that no server is blocked for long. */
static hps_status write_steps(struct hps_space *base, const struct hps_call *call,
                              const struct hps_write *write)
{
    const struct redis_space *space = redis_space_of(base);
    uint64_t step = (uint64_t)space->redis->options.fields_max * space->n_shards;
    hps_status status = HPS_OK;
    HPS_ASSERT(step > 0);
    for (uint64_t at = 0; at < write->n && status == HPS_OK; at += step) {
        uint64_t n = write->n - at < step ? write->n - at : step;
        const uint8_t *rows =
            write->rows == NULL ? NULL : write->rows + at * write->table->row_bytes;
        const struct hps_write some = {write->table, write->keys + at, rows, (uint32_t)n};
        status = write_keys(base, call, &some);
    }
    return status;
}

hps_status redis_put(struct hps_space *space, const struct hps_call *call,
                     const struct hps_table *table, const hps_key *keys, const uint8_t *rows,
                     uint32_t n)
{
    const struct hps_write write = {table, keys, rows, n};
    return write_steps(space, call, &write);
}

hps_status redis_erase(struct hps_space *space, const struct hps_call *call,
                       const struct hps_table *table, const hps_key *keys, uint32_t n)
{
    const struct hps_write write = {table, keys, NULL, n};
    return write_steps(space, call, &write);
}

/* ---- the log --------------------------------------------------------------------------------- */

static void judge_all(struct redis_space *space)
{
    for (uint32_t i = 0; i < space->n_shards; i++) {
        redis_shard_judge(space, &space->shards[i]);
    }
}

hps_status redis_log_positions_set(struct hps_space *base, const struct hps_log_position *positions,
                                   uint32_t n)
{
    struct redis_space *space = redis_space_of(base);
    struct hps_redis_positions set = {0};
    hps_status status = HPS_OK;
    for (uint32_t i = 0; i < n && status == HPS_OK; i++) {
        status = hps_redis_positions_raise(&set, positions[i].partition, positions[i].start,
                                           positions[i].offset);
    }
    if (status == HPS_OK) {
        hps_lock_acquire(&space->lock);
        struct hps_redis_positions old = space->at;
        space->at = set;
        set = old;
        judge_all(space);
        hps_lock_release(&space->lock);
        atomic_store(&space->left, false);
    }
    hps_redis_positions_fini(&set);
    return status;
}

void redis_log_leave(struct hps_space *space)
{
    atomic_store(&redis_space_of(space)->left, true);
}

hps_status redis_log_positions_get(struct hps_space *base, const struct hps_call *call,
                                   struct hps_log_position *positions, uint32_t n)
{
    struct redis_space *space = redis_space_of(base);
    uint32_t n_unanswered =
        redis_shards_ask(space, false, redis_write_deadline(space->redis, call), NULL);
    hps_status status = n_unanswered > 0 ? HPS_UNAVAILABLE : HPS_OK;
    for (uint32_t p = 0; p < n; p++) {
        positions[p].offset = INT64_MAX;
    }
    hps_lock_acquire(&space->lock);
    for (uint32_t i = 0; i < space->n_shards && status == HPS_OK; i++) {
        const struct redis_shard *shard = &space->shards[i];
        status = !shard->known ? HPS_UNAVAILABLE : shard->missing ? HPS_DATA_LOSS : HPS_OK;
        for (uint32_t p = 0; p < n && status == HPS_OK; p++) {
            struct hps_log_position *position = &positions[p];
            const struct hps_redis_position *has =
                hps_redis_positions_find(&shard->positions, position->partition);
            int64_t offset = has == NULL ? position->start : has->offset;
            position->offset = offset < position->offset ? offset : position->offset;
        }
    }
    hps_lock_release(&space->lock);
    return status;
}

/* now: move the version to the end of the spans. Otherwise: add the spans' new partitions at their
 * beginning, so that the later call with `now` needs no memory. */
static hps_status advance(struct redis_space *space, const struct hps_log_batch *batch, bool now)
{
    hps_status status = HPS_OK;
    hps_lock_acquire(&space->lock);
    for (uint32_t i = 0; i < batch->n_spans && status == HPS_OK; i++) {
        const struct hps_log_span *span = &batch->spans[i];
        status = hps_redis_positions_raise(&space->at, span->partition, span->start,
                                           now ? span->next : span->first);
    }
    if (now) {
        judge_all(space);
    }
    hps_lock_release(&space->lock);
    return status;
}

static void report_applied(const struct applying *applying, struct hps_log_report *out_report)
{
    struct redis *redis = applying->space->redis;
    *out_report = (struct hps_log_report){
        .n_applied = n_of(applying, APPLIED),
        .n_had = n_of(applying, HAD),
        .n_gap = n_of(applying, GAP),
        .n_failed = n_of(applying, FAILED) + n_of(applying, FULL),
    };
    HPS_ASSERT(out_report->n_applied + out_report->n_had + out_report->n_gap +
                   out_report->n_failed ==
               applying->space->n_shards);
    atomic_fetch_add_explicit(&redis->n_gap, out_report->n_gap, memory_order_relaxed);
    atomic_fetch_add_explicit(&redis->n_failed, out_report->n_failed, memory_order_relaxed);
}

/* With the only copy, a batch counts only if all shards have it. */
static hps_status only_copy_status(const struct applying *applying, hps_status status)
{
    if (status != HPS_OK || n_of(applying, FULL) > 0) {
        return status != HPS_OK ? status : HPS_EXHAUSTED;
    }
    if (n_of(applying, GAP) > 0) {
        return HPS_DATA_LOSS;
    }
    return n_of(applying, FAILED) > 0 ? HPS_UNAVAILABLE : HPS_OK;
}

hps_status redis_log_apply(struct hps_space *base, const struct hps_call *call,
                           const struct hps_log_batch *batch, struct hps_log_report *out_report)
{
    struct redis_space *space = redis_space_of(base);
    struct applying applying;
    hps_status status = advance(space, batch, false);
    *out_report = (struct hps_log_report){.n_failed = space->n_shards};
    if (status != HPS_OK) {
        return status;
    }
    status = applying_init(&applying, space, batch);
    if (status == HPS_OK) {
        apply_to_all(&applying, redis_write_deadline(space->redis, call));
        report_applied(&applying, out_report);
    }
    /* If another store has the rows, a batch that no shard has is no error, even if there was no
     * memory for it: all shards are then behind, and get finds no rows there. */
    status = space->redis->options.authoritative ? only_copy_status(&applying, status) : HPS_OK;
    applying_fini(&applying);
    if (status != HPS_OK) {
        return status;
    }
    /* Cannot fail: the call above has allocated all partitions. */
    return advance(space, batch, true);
}

/* Lower `lowest` to the positions of a shard that is behind. RANGE: its positions are not known.
 * Caller must hold the lock. */
static hps_status add_behind(const struct redis_space *space, const struct redis_shard *shard,
                             struct hps_redis_positions *lowest)
{
    if (!shard->known || shard->readable) {
        return HPS_OK;
    }
    hps_status status = shard->missing ? HPS_RANGE : HPS_OK;
    for (uint32_t i = 0; i < space->at.n && status == HPS_OK; i++) {
        const struct hps_redis_position *at = &space->at.items[i];
        const struct hps_redis_position *has =
            hps_redis_positions_find(&shard->positions, at->partition);
        int64_t offset = has == NULL ? at->start : has->offset;
        const struct hps_redis_position *low = hps_redis_positions_find(lowest, at->partition);
        if (offset >= at->offset || (low != NULL && -low->offset <= offset)) {
            continue;
        }
        status =
            offset < 0 ? HPS_RANGE : hps_redis_positions_raise(lowest, at->partition, -1, -offset);
    }
    return status;
}

hps_status redis_log_behind(struct hps_space *base, const struct hps_call *call,
                            struct hps_log_position *out_positions, uint32_t capacity,
                            uint32_t *out_n)
{
    struct redis_space *space = redis_space_of(base);
    /* Negated offsets, because raise keeps the larger one. */
    struct hps_redis_positions lowest = {0};
    hps_status status = HPS_OK;
    uint32_t n_unanswered =
        redis_shards_ask(space, false, redis_write_deadline(space->redis, call), NULL);
    hps_lock_acquire(&space->lock);
    for (uint32_t i = 0; i < space->n_shards && status == HPS_OK; i++) {
        status = add_behind(space, &space->shards[i], &lowest);
    }
    hps_lock_release(&space->lock);
    status = status == HPS_OK && lowest.n > capacity ? HPS_RANGE : status;
    *out_n = status == HPS_OK ? lowest.n : 0;
    HPS_ASSERT(*out_n <= capacity);
    for (uint32_t i = 0; i < *out_n; i++) {
        HPS_ASSERT(lowest.items[i].offset <= 0);
        out_positions[i] =
            (struct hps_log_position){lowest.items[i].partition, -lowest.items[i].offset, -1};
    }
    hps_redis_positions_fini(&lowest);
    return status == HPS_OK && n_unanswered > 0 ? HPS_UNAVAILABLE : status;
}

hps_status redis_log_reset(struct hps_space *base, const struct hps_call *call,
                           struct hps_log_report *out_report)
{
    struct redis_space *space = redis_space_of(base);
    uint64_t deadline_us = redis_write_deadline(space->redis, call);
    *out_report = (struct hps_log_report){0};
    if (space->redis->options.authoritative) {
        return HPS_PRECONDITION;
    }
    uint8_t *which = hps_calloc(space->n_shards, 1);
    if (which == NULL) {
        return HPS_NO_MEMORY;
    }
    (void)redis_shards_ask(space, false, deadline_us, NULL);
    uint32_t n_behind = 0;
    hps_lock_acquire(&space->lock);
    for (uint32_t i = 0; i < space->n_shards; i++) {
        const struct redis_shard *shard = &space->shards[i];
        which[i] = shard->known && !shard->readable;
        n_behind += which[i];
        out_report->n_had += shard->readable ? 1 : 0;
        out_report->n_failed += shard->known ? 0 : 1;
    }
    hps_lock_release(&space->lock);
    hps_status status = n_behind == 0 ? HPS_OK : redis_reset(space, which, deadline_us);
    for (uint32_t i = 0; i < space->n_shards && n_behind > 0; i++) {
        out_report->n_applied += which[i] == 1 ? 1 : 0;
    }
    HPS_ASSERT(out_report->n_applied <= n_behind);
    out_report->n_failed += n_behind - out_report->n_applied;
    hps_free(which);
    return status;
}

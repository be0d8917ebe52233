/* SPDX-License-Identifier: Apache-2.0
 *
 * The rows are a fake store's; this adds the positions: see fake_shared.h.
 */
#include "tests/lib/fake_shared.h"

#include <string.h>

#include "backends/store_log.h"
#include "base/assert.h"
#include "base/heap.h"

enum { PARTITIONS_MAX = 16, KEYS_MAX = 256, N = HPS_SHARED_SHARDS };

struct positions {
    struct hps_log_position items[PARTITIONS_MAX];
    uint32_t n;
};

struct shard {
    struct positions positions;
    bool missing, away;
};

struct shared {
    struct hps_store_ops ops; /* of the fake store from now on: it leads here */
    const struct hps_store_ops *rows;
    struct hps_space *space;
    const struct hps_table *tables;
    uint32_t n_tables;
    struct shard shards[N];
    struct positions at;
    bool alone, left;
    uint64_t n_batches;
};

static struct shared *shared_of(const struct hps_store *store)
{
    return (struct shared *)(void *)store->ops;
}

static struct hps_log_position *find(struct positions *in, uint64_t partition)
{
    for (uint32_t i = 0; i < in->n; i++) {
        if (in->items[i].partition == partition) {
            return &in->items[i];
        }
    }
    return NULL;
}

static void set(struct positions *in, uint64_t partition, int64_t offset, int64_t start)
{
    struct hps_log_position *at = find(in, partition);
    if (at == NULL) {
        HPS_ASSERT(in->n < PARTITIONS_MAX);
        at = &in->items[in->n++];
    }
    *at = (struct hps_log_position){partition, offset, start};
}

static int64_t offset_of(struct shard *shard, uint64_t partition, int64_t start)
{
    const struct hps_log_position *at = find(&shard->positions, partition);
    return at == NULL ? start : at->offset;
}

/* ---- lookups --------------------------------------------------------------------------------- */

static bool is_readable(struct shared *shared, struct shard *shard)
{
    bool readable = !shared->left && !shard->missing && !shard->away;
    for (uint32_t i = 0; i < shared->at.n; i++) {
        const struct hps_log_position *at = &shared->at.items[i];
        readable = readable && offset_of(shard, at->partition, at->start) >= at->offset;
    }
    return readable;
}

static hps_status shared_get(struct hps_space *space, const struct hps_call *call,
                             const struct hps_table *table, struct hps_batch *batch)
{
    struct shared *shared = shared_of(space->store);
    hps_status status = HPS_OK;
    for (uint32_t i = 0; i < batch->n && status == HPS_OK;) {
        struct hps_batch one = {
            .keys = &batch->keys[i], .slots = &batch->slots[i], .rows = batch->rows, .n = 1};
        if (is_readable(shared, &shared->shards[batch->keys[i] % N])) {
            status = shared->rows->get(space, call, table, &one);
        }
        if (one.n == 0) {
            hps_batch_found(batch, i);
        } else {
            i++;
        }
    }
    return status;
}

/* ---- the log --------------------------------------------------------------------------------- */

static hps_status shared_positions_set(struct hps_space *space,
                                       const struct hps_log_position *positions, uint32_t n)
{
    struct shared *shared = shared_of(space->store);
    shared->at.n = 0;
    shared->left = false;
    for (uint32_t i = 0; i < n; i++) {
        set(&shared->at, positions[i].partition, positions[i].offset, positions[i].start);
    }
    return HPS_OK;
}

static hps_status shared_positions_get(struct hps_space *space, const struct hps_call *call,
                                       struct hps_log_position *positions, uint32_t n)
{
    struct shared *shared = shared_of(space->store);
    (void)call;
    for (uint32_t p = 0; p < n; p++) {
        positions[p].offset = INT64_MAX;
        for (uint32_t s = 0; s < N; s++) {
            int64_t has = offset_of(&shared->shards[s], positions[p].partition, positions[p].start);
            positions[p].offset = has < positions[p].offset ? has : positions[p].offset;
        }
    }
    for (uint32_t s = 0; s < N; s++) {
        if (shared->shards[s].away || shared->shards[s].missing) {
            return shared->shards[s].away ? HPS_UNAVAILABLE : HPS_DATA_LOSS;
        }
    }
    return HPS_OK;
}

static void shared_leave(struct hps_space *space)
{
    shared_of(space->store)->left = true;
}

static void write_key(struct hps_space *space, const struct hps_write *write, uint32_t i,
                      bool erase_only)
{
    static const struct hps_call call;
    const struct hps_store_ops *rows = shared_of(space->store)->rows;
    const hps_key *key = &write->keys[i];
    if (write->rows == NULL || erase_only) {
        HPS_ASSERT(rows->erase(space, &call, write->table, key, 1) == HPS_OK);
    } else {
        const uint8_t *row = write->rows + (size_t)i * write->table->row_bytes;
        HPS_ASSERT(rows->put(space, &call, write->table, key, row, 1) == HPS_OK);
    }
}

static void apply_span(struct hps_space *space, const struct hps_log_batch *batch, uint32_t span,
                       uint32_t at)
{
    for (uint32_t w = 0; w < batch->n_writes; w++) {
        const struct hps_write *write = &batch->writes[w];
        for (uint32_t i = 0; i < write->n && batch->write_spans[w] == span; i++) {
            if (write->keys[i] % N == at) {
                write_key(space, write, i, batch->erase_only);
            }
        }
    }
}

static bool apply_shard(struct hps_space *space, const struct hps_log_batch *batch, uint32_t at,
                        bool *out_gap)
{
    struct shard *shard = &shared_of(space->store)->shards[at];
    bool later = false;
    *out_gap = shard->missing;
    for (uint32_t s = 0; s < batch->n_spans; s++) {
        const struct hps_log_span *span = &batch->spans[s];
        int64_t has = offset_of(shard, span->partition, span->start);
        *out_gap = *out_gap || has < 0 || has < span->first;
    }
    for (uint32_t s = 0; s < batch->n_spans && !*out_gap; s++) {
        const struct hps_log_span *span = &batch->spans[s];
        int64_t has = offset_of(shard, span->partition, span->start);
        if (has < span->next) {
            apply_span(space, batch, s, at);
            later = true;
        }
        set(&shard->positions, span->partition, has < span->next ? span->next : has, -1);
    }
    return later;
}

static hps_status shared_apply(struct hps_space *space, const struct hps_call *call,
                               const struct hps_log_batch *batch, struct hps_log_report *out_report)
{
    struct shared *shared = shared_of(space->store);
    struct hps_log_report report = {0};
    (void)call;
    shared->n_batches++;
    for (uint32_t s = 0; s < N; s++) {
        bool gap = false;
        if (shared->shards[s].away) {
            report.n_failed++;
        } else if (apply_shard(space, batch, s, &gap)) {
            report.n_applied++;
        } else if (gap) {
            report.n_gap++;
        } else {
            report.n_had++;
        }
    }
    *out_report = report;
    if (shared->alone && report.n_gap + report.n_failed > 0) {
        return report.n_gap > 0 ? HPS_DATA_LOSS : HPS_UNAVAILABLE;
    }
    for (uint32_t i = 0; i < batch->n_spans; i++) {
        const struct hps_log_span *span = &batch->spans[i];
        const struct hps_log_position *at = find(&shared->at, span->partition);
        bool beyond = at != NULL && at->offset > span->next;
        set(&shared->at, span->partition, beyond ? at->offset : span->next, span->start);
    }
    return HPS_OK;
}

static hps_status shared_behind(struct hps_space *space, const struct hps_call *call,
                                struct hps_log_position *out_positions, uint32_t capacity,
                                uint32_t *out_n)
{
    struct shared *shared = shared_of(space->store);
    struct positions lowest = {.n = 0};
    hps_status status = HPS_OK;
    (void)call;
    *out_n = 0;
    for (uint32_t s = 0; s < N; s++) {
        struct shard *shard = &shared->shards[s];
        if (shard->away) {
            status = HPS_UNAVAILABLE;
            continue;
        }
        if (shard->missing) {
            return HPS_RANGE;
        }
        for (uint32_t i = 0; i < shared->at.n; i++) {
            const struct hps_log_position *at = &shared->at.items[i];
            int64_t has = offset_of(shard, at->partition, at->start);
            const struct hps_log_position *low = find(&lowest, at->partition);
            if (has < at->offset && (low == NULL || has < low->offset)) {
                set(&lowest, at->partition, has, -1);
            }
        }
    }
    HPS_ASSERT(lowest.n <= capacity);
    memcpy(out_positions, lowest.items, lowest.n * sizeof(lowest.items[0]));
    *out_n = lowest.n;
    return status;
}

/* Of the keys that tests use. */
static void empty(struct shared *shared, uint32_t at)
{
    static const struct hps_call call;
    shared->shards[at].positions.n = 0;
    for (uint32_t t = 0; t < shared->n_tables; t++) {
        for (hps_key key = at; key < KEYS_MAX; key += N) {
            HPS_ASSERT(shared->rows->erase(shared->space, &call, &shared->tables[t], &key, 1) ==
                       HPS_OK);
        }
    }
}

static hps_status shared_reset(struct hps_space *space, const struct hps_call *call,
                               struct hps_log_report *out_report)
{
    struct shared *shared = shared_of(space->store);
    (void)call;
    *out_report = (struct hps_log_report){0};
    if (shared->alone) {
        return HPS_PRECONDITION;
    }
    for (uint32_t s = 0; s < N; s++) {
        struct shard *shard = &shared->shards[s];
        if (shard->away) {
            out_report->n_failed++;
        } else if (is_readable(shared, shard)) {
            out_report->n_had++;
        } else {
            out_report->n_applied++;
            empty(shared, s);
            shard->missing = false;
            shard->positions = shared->at;
        }
    }
    return HPS_OK;
}

/* ---- what a test does to it ------------------------------------------------------------------ */

void hps_fake_shared_away(struct hps_store *store, uint32_t shard, bool away)
{
    shared_of(store)->shards[shard].away = away;
}

void hps_fake_shared_lose(struct hps_store *store, uint32_t shard)
{
    empty(shared_of(store), shard);
    shared_of(store)->shards[shard].missing = true;
}

void hps_fake_shared_move(struct hps_store *store, uint32_t shard, uint64_t partition,
                          int64_t offset)
{
    set(&shared_of(store)->shards[shard].positions, partition, offset, -1);
}

int64_t hps_fake_shared_at(struct hps_store *store, uint32_t shard, uint64_t partition)
{
    struct shard *of = &shared_of(store)->shards[shard];
    return of->missing ? -2 : offset_of(of, partition, -1);
}

int64_t hps_fake_shared_version_at(struct hps_store *store, uint64_t partition)
{
    const struct hps_log_position *at = find(&shared_of(store)->at, partition);
    return at == NULL ? -1 : at->offset;
}

bool hps_fake_shared_left(struct hps_store *store)
{
    return shared_of(store)->left;
}

uint64_t hps_fake_shared_batches(struct hps_store *store)
{
    return shared_of(store)->n_batches;
}

static hps_status shared_open(struct hps_store *store, const struct hps_space_id *id,
                              struct hps_space **out_space, struct hps_error *err)
{
    struct shared *shared = shared_of(store);
    hps_status status = shared->rows->space_open(store, id, out_space, err);
    if (status == HPS_OK) {
        shared->space = *out_space;
        shared->tables = id->tables;
        shared->n_tables = id->n_tables;
        shared->at.n = 0;
        shared->left = false;
    }
    return status;
}

static void shared_close(struct hps_store *store)
{
    struct shared *shared = shared_of(store);
    store->ops = shared->rows;
    store->ops->close(store);
    hps_free(shared);
}

static const struct hps_store_log_ops shared_log = {.positions_set = shared_positions_set,
                                                    .positions_get = shared_positions_get,
                                                    .leave = shared_leave,
                                                    .apply = shared_apply,
                                                    .behind = shared_behind,
                                                    .reset = shared_reset};

struct hps_store *hps_fake_shared_new(bool alone)
{
    const struct hps_fake_options options = {
        .name = "redis", .tier = HPS_TIER_REDIS, .caps = HPS_STORE_DURABLE}; /* for its rows */
    struct shared *shared = hps_calloc(1, sizeof(*shared));
    struct hps_store *store = hps_fake_store_new(&options);
    if (shared == NULL || store == NULL) {
        hps_free(shared);
        return NULL;
    }
    shared->alone = alone;
    shared->rows = store->ops;
    shared->ops = *store->ops;
    shared->ops.caps = HPS_STORE_SHARED | HPS_STORE_BLOCKING | HPS_STORE_INSERTS | HPS_STORE_SCANS;
    shared->ops.durable = NULL;
    shared->ops.log = &shared_log;
    shared->ops.close = shared_close;
    shared->ops.space_open = shared_open;
    shared->ops.get = shared_get;
    shared->ops.get_many = hps_store_get_each;
    hps_store_check(&shared->ops);
    store->ops = &shared->ops;
    return store;
}

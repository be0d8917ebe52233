/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading rows: one HMGET per shard for all tables, in one round trip per node. Each command also
 * requests the digest of its shard. So one reply has the rows and says at which positions they are.
 * If the digest is not known, the command is sent a second time and requests the positions, too.
 * Both replies are compared with the version's positions before the first request. Any thread.
 */
#include <string.h>

#include "backends/redis/internal.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"

#define ANY_NODE (-1)

/* The keys of one command: keys of one shard, from any parts. */
struct piece {
    uint32_t shard;
    uint32_t segment; /* index of its first segment */
    uint32_t n_segments;
    uint32_t begin; /* index into the arrays of the read */
    uint32_t n;
    bool asks;     /* also requests the positions */
    bool known;    /* the next three are valid, as of the beginning of the read */
    bool readable; /* rows that come with `digest` may be used */
    bool exact;    /* they are at the version's positions exactly */
    uint8_t digest[REDIS_DIGEST_BYTES];
    bool later; /* the rows are at later positions than the version */
    bool answered;
    bool trusted;
};

/* Keys of one piece and one part. */
struct segment {
    uint32_t part;
    uint32_t begin;
    struct hps_redis_rows rows;
};

struct read {
    struct redis_space *space;
    const struct hps_call *call;
    struct hps_part_batch *parts;
    uint32_t n_parts;
    struct hps_redis_positions begin; /* the version's positions at the beginning */
    uint32_t n_keys;
    uint32_t n_cells; /* one per shard and part, in this order */
    uint32_t *cells;  /* [n_keys] cell of each key, by part */
    uint32_t *order;  /* [n_keys] index in the part's batch; sorted by cell, like the next two */
    uint32_t *slots;
    uint8_t *found;
    uint32_t *ends; /* [n_cells] */
    struct piece *pieces;
    struct segment *segments;
    uint32_t n_pieces;
    uint32_t n_segments;
    uint32_t n_max; /* capacity of pieces and segments */
};

/* ---- distributing keys ----------------------------------------------------------------------- */

static hps_status read_alloc(struct read *read)
{
    const struct redis_space *space = read->space;
    for (uint32_t p = 0; p < read->n_parts; p++) {
        uint32_t n = read->parts[p].batch.n;
        read->n_keys += n;
        read->n_max += n < space->n_shards ? n : space->n_shards;
    }
    if (read->n_keys == 0) {
        return HPS_OK;
    }
    /* Cutting at fields_max makes more pieces. */
    read->n_max += read->n_keys / space->redis->options.fields_max;
    read->n_cells = space->n_shards * read->n_parts;
    read->cells = hps_alloc((size_t)read->n_keys * (3 * sizeof(uint32_t) + 1));
    read->ends = hps_calloc(read->n_cells, sizeof(*read->ends));
    read->pieces = hps_alloc(read->n_max * sizeof(*read->pieces));
    read->segments = hps_alloc(read->n_max * sizeof(*read->segments));
    if (read->cells == NULL || read->ends == NULL || read->pieces == NULL ||
        read->segments == NULL) {
        return HPS_NO_MEMORY;
    }
    read->order = read->cells + read->n_keys;
    read->slots = read->order + read->n_keys;
    read->found = (uint8_t *)(read->slots + read->n_keys);
    return HPS_OK;
}

static void read_free(struct read *read)
{
    hps_redis_positions_fini(&read->begin);
    hps_free(read->cells);
    hps_free(read->ends);
    hps_free(read->pieces);
    hps_free(read->segments);
}

/* Sort the keys by cell. */
static void sort(struct read *read)
{
    const struct redis_space *space = read->space;
    uint32_t at = 0;
    for (uint32_t p = 0; p < read->n_parts; p++) {
        const struct hps_part_batch *part = &read->parts[p];
        for (uint32_t i = 0; i < part->batch.n; i++, at++) {
            uint32_t shard = hps_redis_shard(part->table->id, part->batch.keys[i], space->n_shards);
            read->cells[at] = shard * read->n_parts + p;
            read->ends[read->cells[at]]++;
        }
    }
    at = 0;
    for (uint32_t c = 0; c < read->n_cells; c++) {
        uint32_t n = read->ends[c];
        read->ends[c] = at; /* begin of the cell now; its end once it is filled */
        at += n;
    }
    HPS_ASSERT(at == read->n_keys);
    at = 0;
    for (uint32_t p = 0; p < read->n_parts; p++) {
        const struct hps_batch *batch = &read->parts[p].batch;
        for (uint32_t i = 0; i < batch->n; i++, at++) {
            uint32_t to = read->ends[read->cells[at]]++;
            read->order[to] = i;
            read->slots[to] = batch->slots[i];
        }
    }
}

/* The piece for the next keys of this shard. Its size is bounded. */
static struct piece *piece_of(struct read *read, uint32_t shard, uint32_t begin)
{
    HPS_DEBUG_ASSERT(shard < read->space->n_shards);
    struct piece *last = read->n_pieces > 0 ? &read->pieces[read->n_pieces - 1] : NULL;
    if (last != NULL && last->shard == shard && last->n < read->space->redis->options.fields_max) {
        return last;
    }
    HPS_ASSERT(read->n_pieces < read->n_max);
    struct piece *piece = &read->pieces[read->n_pieces++];
    *piece = (struct piece){.shard = shard, .segment = read->n_segments, .begin = begin};
    return piece;
}

/* Add the keys [begin, end) of a shard and a part. */
static void add_segments(struct read *read, uint32_t shard, uint32_t p, uint32_t begin,
                         uint32_t end)
{
    const struct hps_part_batch *part = &read->parts[p];
    while (begin < end) {
        struct piece *piece = piece_of(read, shard, begin);
        uint32_t n_left = read->space->redis->options.fields_max - piece->n;
        uint32_t n = end - begin < n_left ? end - begin : n_left;
        HPS_ASSERT(n > 0);
        HPS_ASSERT(read->n_segments < read->n_max);
        struct segment *segment = &read->segments[read->n_segments++];
        *segment = (struct segment){.part = p,
                                    .begin = begin,
                                    .rows = {.n = n,
                                             .row_bytes = part->table->row_bytes,
                                             .slots = read->slots + begin,
                                             .rows = part->batch.rows,
                                             .found = read->found + begin}};
        if (piece->n_segments > 0) {
            segment[-1].rows.more = &segment->rows;
        }
        piece->n_segments++;
        piece->n += n;
        begin += n;
    }
}

static void make_pieces(struct read *read)
{
    uint32_t begin = 0;
    for (uint32_t c = 0; c < read->n_cells; c++) {
        add_segments(read, c / read->n_parts, c % read->n_parts, begin, read->ends[c]);
        begin = read->ends[c];
    }
}

/* Copy the version's positions and the known state of the shards before sending requests. */
static hps_status take_known(struct read *read)
{
    hps_lock_acquire(&read->space->lock);
    hps_status status = hps_redis_positions_copy(&read->begin, &read->space->at);
    for (uint32_t i = 0; i < read->n_pieces && status == HPS_OK; i++) {
        struct piece *piece = &read->pieces[i];
        struct redis_shard *shard = &read->space->shards[piece->shard];
        piece->known = shard->known && !shard->missing;
        piece->asks = !piece->known || shard->ask > 0;
        piece->readable = shard->readable;
        piece->exact = shard->exact;
        memcpy(piece->digest, shard->digest, sizeof(piece->digest));
        shard->ask = (uint8_t)(shard->ask - (shard->ask > 0 ? 1 : 0));
    }
    hps_lock_release(&read->space->lock);
    return status;
}

/* ---- commands -------------------------------------------------------------------------------- */

static hps_status put_fields(const struct read *read, struct hps_buf *bytes,
                             const struct segment *segment)
{
    const struct hps_part_batch *part = &read->parts[segment->part];
    hps_status status = HPS_OK;
    for (uint32_t i = 0; i < segment->rows.n && status == HPS_OK; i++) {
        hps_key key = part->batch.keys[read->order[segment->begin + i]];
        status = redis_put_field(bytes, part->table, key);
    }
    return status;
}

/* Replicas that lag cause misses if there is a store below, and failed lookups if there is none. So
 * they are read only if there is one. */
static uint8_t read_flags(const struct redis_space *space)
{
    return space->redis->options.authoritative ? HPS_REDIS_QUICK : HPS_REDIS_READ | HPS_REDIS_QUICK;
}

/* Put the command of a piece. */
static hps_status put_piece(const struct read *read, struct redis_batch *batch,
                            const struct piece *piece)
{
    const struct hps_redis_name *name = &read->space->shards[piece->shard].keys[0];
    struct segment *segments = &read->segments[piece->segment];
    uint32_t n_lead = piece->asks ? 2 : 1;
    hps_status status = hps_redis_put_begin(&batch->bytes, 2 + n_lead + piece->n);
    status = status == HPS_OK ? hps_redis_put_text(&batch->bytes, "HMGET") : status;
    status = status == HPS_OK ? hps_redis_put_arg(&batch->bytes, name->text, name->size) : status;
    status = status == HPS_OK ? hps_redis_put_text(&batch->bytes, "g") : status;
    status = status == HPS_OK && n_lead > 1 ? hps_redis_put_text(&batch->bytes, "p") : status;
    for (uint32_t i = 0; i < piece->n_segments && status == HPS_OK; i++) {
        status = put_fields(read, &batch->bytes, &segments[i]);
    }
    if (status == HPS_OK) {
        redis_batch_end(batch, read->space, piece->shard, read_flags(read->space));
        segments[0].rows.n_lead = n_lead;
        batch->commands[batch->n - 1].reply.rows = &segments[0].rows;
    }
    return status;
}

static bool is_digest(const struct piece *piece, const struct hps_redis_values *values)
{
    const struct hps_redis_value *digest = &values->items[0];
    return piece->known && digest->type == HPS_REDIS_TEXT && digest->size == REDIS_DIGEST_BYTES &&
           memcmp(values->text.data + digest->at, piece->digest, REDIS_DIGEST_BYTES) == 0;
}

/* Whether the rows of a reply may be used; the request was made at `seen`. *out_decided false: only
 * the shard's positions can tell. */
static bool is_trusted(struct read *read, struct piece *piece, struct redis_shard_seen seen,
                       const struct hps_redis_values *values, bool *out_decided)
{
    bool readable = piece->readable;
    bool exact = piece->exact;
    *out_decided = true;
    if (values->n < 1) {
        return false;
    }
    if (!is_digest(piece, values)) {
        *out_decided = redis_judge_rows(read->space, piece->shard, seen, &read->begin, values,
                                        &readable, &exact);
    } else if (readable && !exact) {
        exact = redis_shard_reached(read->space, piece->shard, piece->digest);
    }
    piece->later = readable && !exact;
    return read->call->exact_position ? exact : readable;
}

/* True if a command to this node timed out. */
static bool is_silent(const struct redis_batch *batch, int32_t node)
{
    for (uint32_t i = 0; i < batch->n; i++) {
        const struct hps_redis_command *command = &batch->commands[i];
        if (command->reply.status == HPS_DEADLINE &&
            (node == ANY_NODE || command->target == node)) {
            return true;
        }
    }
    return false;
}

/* Request the pieces that are not decided yet. Sets the number that is still undecided. */
static hps_status ask(struct read *read, bool again, uint64_t deadline_us, uint32_t *out_n_open)
{
    struct redis_batch batch;
    hps_status status = redis_batch_init(&batch, read->n_pieces);
    uint32_t n = 0;
    for (uint32_t i = 0; i < read->n_pieces && status == HPS_OK; i++) {
        struct piece *piece = &read->pieces[i];
        if (again && (piece->answered || !piece->asks)) {
            continue;
        }
        status = put_piece(read, &batch, piece);
    }
    if (status == HPS_OK) {
        redis_batch_run(read->space->redis, &batch, HPS_REDIS_SCRIPTS, deadline_us);
    }
    bool silent = status == HPS_OK && is_silent(&batch, ANY_NODE);
    *out_n_open = 0;
    for (uint32_t i = 0; i < read->n_pieces && status == HPS_OK; i++) {
        struct piece *piece = &read->pieces[i];
        if (again && (piece->answered || !piece->asks)) {
            continue;
        }
        const struct redis_shard_seen seen = batch.seen[n];
        const struct hps_redis_command *command = &batch.commands[n++];
        const struct hps_redis_reply *reply = &command->reply;
        if (reply->status != HPS_OK) {
            piece->asks = false; /* do not retry */
            continue;
        }
        bool decided = true;
        piece->trusted = is_trusted(read, piece, seen, reply->values, &decided);
        piece->answered = decided;
        piece->asks = !decided && !(silent && is_silent(&batch, command->target));
        *out_n_open += piece->asks ? 1 : 0;
    }
    redis_batch_fini(&batch);
    return status;
}

/* ---- replies --------------------------------------------------------------------------------- */

/* Returns whether the rows used are of later positions. */
static bool count(struct read *read, const struct piece *piece)
{
    struct redis *redis = read->space->redis;
    uint32_t n_found = 0;
    for (uint32_t i = 0; i < piece->n_segments; i++) {
        n_found += read->segments[piece->segment + i].rows.n_found;
    }
    if (piece->trusted) {
        atomic_fetch_add_explicit(&redis->n_found, n_found, memory_order_relaxed);
        atomic_fetch_add_explicit(&redis->n_absent, piece->n - n_found, memory_order_relaxed);
    } else if (piece->answered) {
        atomic_fetch_add_explicit(piece->later ? &redis->n_ahead : &redis->n_behind, n_found,
                                  memory_order_relaxed);
    }
    return piece->trusted && piece->later;
}

/* Record one in sample_every of the found rows as used. */
static void sample(struct read *read, uint32_t shard, const struct segment *segment)
{
    struct redis_space *space = read->space;
    const struct hps_part_batch *part = &read->parts[segment->part];
    uint32_t every = space->redis->options.sample_every;
    HPS_ASSERT(every > 0);
    uint32_t n = segment->rows.n;
    uint32_t at = atomic_fetch_add_explicit(&space->n_sampled, n, memory_order_relaxed) % every;
    for (uint32_t i = (every - at) % every; i < n; i += every) {
        if (read->found[segment->begin + i] == HPS_REDIS_ROW_FOUND) {
            uint8_t field[HPS_REDIS_FIELD_BYTES];
            hps_redis_field(part->table->id, part->batch.keys[read->order[segment->begin + i]],
                            field);
            redis_touch(space, shard, field);
        }
    }
}

/* Report found rows to the batches. Iterates from the back, because hps_batch_found swaps a found
 * key with the last one. */
static void answer(struct read *read)
{
    uint32_t *found = read->cells; /* reuses the memory of cells: [n_keys] by part */
    uint32_t *bases = read->ends;  /* likewise: [n_parts] begin of each part in `found` */
    uint32_t base = 0;
    for (uint32_t p = 0; p < read->n_parts; p++) {
        bases[p] = base;
        base += read->parts[p].batch.n;
    }
    HPS_ASSERT(base == read->n_keys && read->n_parts <= read->n_cells);
    memset(found, 0, read->n_keys * sizeof(*found));
    for (uint32_t i = 0; i < read->n_pieces; i++) {
        const struct piece *piece = &read->pieces[i];
        for (uint32_t s = 0; s < piece->n_segments && piece->trusted; s++) {
            const struct segment *segment = &read->segments[piece->segment + s];
            for (uint32_t k = segment->begin; k < segment->begin + segment->rows.n; k++) {
                found[bases[segment->part] + read->order[k]] =
                    read->found[k] == HPS_REDIS_ROW_FOUND;
            }
        }
    }
    for (uint32_t p = 0; p < read->n_parts; p++) {
        for (uint32_t i = read->parts[p].batch.n; i-- > 0;) {
            if (found[bases[p] + i] != 0) {
                hps_batch_found(&read->parts[p].batch, i);
            }
        }
    }
}

/* The status if rows of only n_trusted pieces can be used. ABORTED if the only copy has answered,
 * with rows at later positions than this call permits: the caller should retry when the version has
 * reached them. */
static hps_status only_copy_status(const struct read *read, uint32_t n_trusted)
{
    uint32_t n_later = 0;
    for (uint32_t i = 0; i < read->n_pieces; i++) {
        const struct piece *piece = &read->pieces[i];
        n_later += piece->answered && !piece->trusted && piece->later ? 1 : 0;
    }
    return n_later > 0 && n_trusted + n_later == read->n_pieces ? HPS_ABORTED : HPS_UNAVAILABLE;
}

static hps_status finish(struct read *read)
{
    const struct redis_space *space = read->space;
    bool samples = space->rows_max > 0 && space->redis->options.evict != HPS_REDIS_EVICT_RANDOM;
    uint32_t n_answered = 0;
    uint32_t n_trusted = 0;
    bool later = false;
    for (uint32_t i = 0; i < read->n_pieces; i++) {
        const struct piece *piece = &read->pieces[i];
        n_answered += piece->answered ? 1 : 0;
        n_trusted += piece->trusted ? 1 : 0;
        later = count(read, piece) || later;
        for (uint32_t s = 0; s < piece->n_segments && piece->trusted && samples; s++) {
            sample(read, piece->shard, &read->segments[piece->segment + s]);
        }
    }
    answer(read);
    if (later && read->call->later != NULL) {
        *read->call->later = true;
    }
    bool well = space->redis->options.authoritative ? n_trusted == read->n_pieces
                                                    : n_answered > 0 || read->n_pieces == 0;
    if (well) {
        return HPS_OK;
    }
    if (read->call->deadline_us != 0 && hps_clock_us() >= read->call->deadline_us) {
        return HPS_DEADLINE;
    }
    return space->redis->options.authoritative ? only_copy_status(read, n_trusted)
                                               : HPS_UNAVAILABLE;
}

hps_status redis_get_many(struct hps_space *base, const struct hps_call *call,
                          struct hps_part_batch *parts, uint32_t n_parts)
{
    struct redis_space *space = redis_space_of(base);
    struct read read = {.space = space, .call = call, .parts = parts, .n_parts = n_parts};
    uint32_t n_open = 0;
    if (call->deadline_us != 0 && hps_clock_us() >= call->deadline_us) {
        return HPS_DEADLINE;
    }
    hps_status status = read_alloc(&read);
    if (status != HPS_OK || read.n_keys == 0 || atomic_load(&space->loading) ||
        atomic_load(&space->left)) {
        goto out;
    }
    sort(&read);
    make_pieces(&read);
    status = take_known(&read);
    uint64_t deadline_us = call->deadline_us; /* nodes that send nothing are given up earlier */
    status = status == HPS_OK ? ask(&read, false, deadline_us, &n_open) : status;
    if (status == HPS_OK && n_open > 0) {
        status = ask(&read, true, deadline_us, &n_open);
    }
    if (status == HPS_OK) {
        status = finish(&read);
    }
out:
    read_free(&read);
    return status;
}

hps_status redis_get(struct hps_space *space, const struct hps_call *call,
                     const struct hps_table *table, struct hps_batch *batch)
{
    struct hps_part_batch part = {table, *batch};
    hps_status status = redis_get_many(space, call, &part, 1);
    batch->n = part.batch.n;
    return status;
}

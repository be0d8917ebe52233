/* SPDX-License-Identifier: Apache-2.0
 *
 * LookupResponse by hand: the heads are a few bytes per table and are written before the rows they
 * describe, which stay where they are. A head is written behind a gap that then takes its length,
 * right up to the head; the rows of the table follow as a slice of their own:
 *
 *     heads block   [ response head ][ gap | tag, length | result head ][ gap | ... ]
 *
 * Used by one thread at a time.
 */
#include "server/lookup/encode.h"

#include <string.h>

#include "base/assert.h"

enum {
    VARINT_MAX = 10,
    PREFIX_MAX = 1 + VARINT_MAX,  /* tag and length of a nested message */
    SCALARS_MAX = 8 * PREFIX_MAX, /* all scalars of a TableResult, tag and length of its rows */
    TIER_COUNT_MAX = 48,          /* one TierCount */
    MARGIN = 64
};

enum wire { WIRE_VARINT = 0, WIRE_LEN = 2 };

/* Field numbers of lookup.proto. */
enum {
    RESPONSE_MODEL = 1,
    RESPONSE_VERSION,
    RESPONSE_LABEL,
    RESPONSE_RESULTS,
    RESPONSE_UPDATE_SEQUENCE,
    RESPONSE_EVENT_TIME,
    RESPONSE_EXPLAIN
};
enum {
    RESULT_TABLE = 1,
    RESULT_DIM,
    RESULT_DATA_TYPE,
    RESULT_ROW_COUNT,
    RESULT_UNIQUE_KEY_COUNT,
    RESULT_DEFAULTED_KEY_COUNT,
    RESULT_UNKNOWN_KEY_COUNT,
    RESULT_KEY_STATUS,
    RESULT_TIER_COUNTS,
    RESULT_ROWS = 15
};
enum { TIER_COUNT_TIER = 1, TIER_COUNT_FOUND_KEYS };
enum { EXPLAIN_STAGES = 1, EXPLAIN_NOTES };
enum { STAGE_NAME = 1, STAGE_DURATION_US };

/* What one TableResult says. */
struct result {
    const char *table;
    uint32_t dim;
    enum hps_dtype dtype;
    uint32_t n_rows;
    uint32_t n_unique;
    uint32_t n_defaulted;
    uint32_t n_unknown;
    const uint8_t *key_status;           /* [n_rows], NULL: all found */
    uint32_t tier_found[HPS_TIER_COUNT]; /* by kind */
    const uint8_t *rows;
    uint64_t rows_bytes;
};

/* What is the same in every message. */
struct head {
    const char *model;
    int64_t version;
    const char *label; /* may be NULL */
    uint64_t update_sequence;
    int64_t event_time_ms;
};

/* ---- writing --------------------------------------------------------------------------------- */

struct out {
    uint8_t *at;
    uint8_t *end;
};

static size_t varint_size(uint64_t value)
{
    return 1 + (size_t)(63 - __builtin_clzll(value | 1)) / 7;
}

static void put_varint(struct out *out, uint64_t value)
{
    HPS_ASSERT((size_t)(out->end - out->at) >= varint_size(value));
    while (value >= 0x80) {
        *out->at++ = (uint8_t)(value | 0x80);
        value >>= 7;
    }
    *out->at++ = (uint8_t)value;
}

static void put_tag(struct out *out, uint32_t field, enum wire wire)
{
    put_varint(out, (uint64_t)field << 3 | wire);
}

static void put_uint(struct out *out, uint32_t field, uint64_t value)
{
    if (value != 0) {
        put_tag(out, field, WIRE_VARINT);
        put_varint(out, value);
    }
}

static void put_bytes(struct out *out, uint32_t field, const void *data, size_t size)
{
    if (size == 0) {
        return;
    }
    put_tag(out, field, WIRE_LEN);
    put_varint(out, size);
    HPS_ASSERT((size_t)(out->end - out->at) >= size);
    memcpy(out->at, data, size);
    out->at += size;
}

static size_t text_size(const char *text)
{
    return text == NULL ? 0 : strlen(text);
}

static void put_text(struct out *out, uint32_t field, const char *text)
{
    put_bytes(out, field, text, text_size(text));
}

static void put_head(struct out *out, const struct head *head)
{
    put_text(out, RESPONSE_MODEL, head->model);
    put_uint(out, RESPONSE_VERSION, (uint64_t)head->version);
    put_text(out, RESPONSE_LABEL, head->label);
    put_uint(out, RESPONSE_UPDATE_SEQUENCE, head->update_sequence);
    put_uint(out, RESPONSE_EVENT_TIME, (uint64_t)head->event_time_ms);
}

static void put_result_head(struct out *out, const struct result *result)
{
    put_text(out, RESULT_TABLE, result->table);
    put_uint(out, RESULT_DIM, result->dim);
    put_uint(out, RESULT_DATA_TYPE, result->dtype);
    put_uint(out, RESULT_ROW_COUNT, result->n_rows);
    put_uint(out, RESULT_UNIQUE_KEY_COUNT, result->n_unique);
    put_uint(out, RESULT_DEFAULTED_KEY_COUNT, result->n_defaulted);
    put_uint(out, RESULT_UNKNOWN_KEY_COUNT, result->n_unknown);
    if (result->key_status != NULL) {
        put_bytes(out, RESULT_KEY_STATUS, result->key_status, result->n_rows);
    }
    for (unsigned kind = 0; kind < HPS_TIER_COUNT; kind++) {
        uint8_t scratch[TIER_COUNT_MAX];
        struct out nested = {.at = scratch, .end = scratch + sizeof(scratch)};

        if (result->tier_found[kind] == 0) {
            continue;
        }
        put_text(&nested, TIER_COUNT_TIER, hps_tier_name((enum hps_tier_kind)kind));
        put_uint(&nested, TIER_COUNT_FOUND_KEYS, result->tier_found[kind]);
        put_bytes(out, RESULT_TIER_COUNTS, scratch, (size_t)(nested.at - scratch));
    }
    if (result->rows_bytes > 0) {
        put_tag(out, RESULT_ROWS, WIRE_LEN);
        put_varint(out, result->rows_bytes);
    }
}

/* A nested message was written from `inner`, behind a gap of PREFIX_MAX; `behind` more bytes of it
 * follow elsewhere. Put its tag and length right before it; returns where they begin. */
static uint8_t *put_prefix(const struct out *out, uint8_t *inner, uint32_t field, uint64_t behind)
{
    uint64_t size = (uint64_t)(out->at - inner) + behind;
    uint8_t *begin = inner - 1 - varint_size(size);
    struct out prefix = {.at = begin, .end = inner};

    HPS_ASSERT(out->at >= inner);
    put_tag(&prefix, field, WIRE_LEN);
    put_varint(&prefix, size);
    HPS_ASSERT(prefix.at == inner);
    return begin;
}

/* Write a result up to its rows; returns where it begins, behind out->at as it was. */
static uint8_t *put_result(struct out *out, const struct result *result)
{
    uint8_t *inner = out->at + PREFIX_MAX;

    HPS_ASSERT(out->end - out->at > PREFIX_MAX);
    out->at = inner;
    put_result_head(out, result);
    return put_prefix(out, inner, RESPONSE_RESULTS, result->rows_bytes);
}

static uint64_t stage_bytes(const struct hps_encode_stage *stage)
{
    return text_size(stage->name) + (uint64_t)3 * PREFIX_MAX;
}

static uint64_t explain_bytes_max(const struct hps_encode_explain *explain)
{
    uint64_t bytes = PREFIX_MAX;

    if (explain == NULL) {
        return 0;
    }
    for (uint32_t i = 0; i < explain->n_stages; i++) {
        bytes += stage_bytes(&explain->stages[i]);
    }
    for (uint32_t i = 0; i < explain->n_notes; i++) {
        bytes += PREFIX_MAX + text_size(explain->notes[i]);
    }
    return bytes;
}

static void put_stage(struct out *out, const struct hps_encode_stage *stage)
{
    size_t name_size = text_size(stage->name);
    size_t size = name_size == 0 ? 0 : 1 + varint_size(name_size) + name_size;

    size += stage->duration_us == 0 ? 0 : 1 + varint_size(stage->duration_us);
    put_tag(out, EXPLAIN_STAGES, WIRE_LEN);
    put_varint(out, size);
    put_text(out, STAGE_NAME, stage->name);
    put_uint(out, STAGE_DURATION_US, stage->duration_us);
}

/* Write the field `explain`; returns where it begins. */
static uint8_t *put_explain(struct out *out, const struct hps_encode_explain *explain)
{
    uint8_t *inner = out->at + PREFIX_MAX;

    HPS_ASSERT(out->end - out->at > PREFIX_MAX);
    out->at = inner;
    for (uint32_t i = 0; i < explain->n_stages; i++) {
        put_stage(out, &explain->stages[i]);
    }
    for (uint32_t i = 0; i < explain->n_notes; i++) {
        put_text(out, EXPLAIN_NOTES, explain->notes[i]);
    }
    return put_prefix(out, inner, RESPONSE_EXPLAIN, 0);
}

static uint64_t head_bytes_max(const struct head *head)
{
    return text_size(head->model) + text_size(head->label) + (uint64_t)5 * PREFIX_MAX;
}

/* Of a result without its rows and its key status. */
static uint64_t result_bytes_max(const char *table, uint32_t n_tiers)
{
    return PREFIX_MAX + SCALARS_MAX + text_size(table) + (uint64_t)2 * PREFIX_MAX +
           (uint64_t)n_tiers * (TIER_COUNT_MAX + PREFIX_MAX);
}

/* ---- slices ---------------------------------------------------------------------------------- */

static void add_slice(struct hps_encoded *encoded, struct hps_block *block, const uint8_t *data,
                      uint64_t size)
{
    if (size == 0) {
        return;
    }
    hps_block_ref(block);
    encoded->slices[encoded->n_slices++] =
        (struct hps_slice){.block = block, .data = data, .size = (size_t)size};
    encoded->size += size;
}

void hps_encoded_release(struct hps_encoded *encoded)
{
    for (unsigned i = 0; i < encoded->n_slices; i++) {
        hps_block_unref(encoded->slices[i].block);
    }
    encoded->n_slices = 0;
    encoded->size = 0;
}

static void add_result(struct hps_encoded *encoded, struct out *out, const struct result *result,
                       struct hps_block *heads, struct hps_block *rows)
{
    uint8_t *begin = put_result(out, result);

    add_slice(encoded, heads, begin, (uint64_t)(out->at - begin));
    add_slice(encoded, rows, result->rows, result->rows_bytes);
}

static void add_explain(struct hps_encoded *encoded, struct out *out,
                        const struct hps_encode_explain *explain, struct hps_block *heads)
{
    if (explain != NULL && explain->n_stages + explain->n_notes > 0) {
        uint8_t *begin = put_explain(out, explain);
        add_slice(encoded, heads, begin, (uint64_t)(out->at - begin));
    }
}

static void add_head(struct hps_encoded *encoded, struct out *out, const struct head *head,
                     struct hps_block *heads)
{
    uint8_t *begin = out->at;

    put_head(out, head);
    add_slice(encoded, heads, begin, (uint64_t)(out->at - begin));
}

/* ---- the whole answer ------------------------------------------------------------------------ */

static struct head head_of(const struct hps_lookup *lookup)
{
    return (struct head){.model = lookup->version->model,
                         .version = lookup->version->number,
                         .label = lookup->version->label,
                         .update_sequence = lookup->update_sequence,
                         .event_time_ms = lookup->event_time_ms};
}

static enum hps_dtype dtype_of(const struct hps_lookup *lookup)
{
    return lookup->output == 0 ? HPS_DTYPE_FP32 : lookup->output;
}

uint64_t hps_encode_size_max(const struct hps_lookup *lookup)
{
    struct head head = head_of(lookup);
    uint64_t bytes = head_bytes_max(&head) + MARGIN;
    uint32_t n_tiers = hps_version_n_tiers(lookup->version);

    for (uint32_t i = 0; i < lookup->n_parts; i++) {
        const struct hps_lookup_part *part = &lookup->parts[i];
        bytes += result_bytes_max(part->table->name, n_tiers) + part->n_keys + part->rows_bytes;
    }
    return bytes;
}

static uint64_t heads_bytes(const struct hps_lookup *lookup, const struct head *head)
{
    uint64_t bytes = head_bytes_max(head) + MARGIN;
    uint32_t n_tiers = hps_version_n_tiers(lookup->version);

    for (uint32_t i = 0; i < lookup->n_parts; i++) {
        const struct hps_lookup_part *part = &lookup->parts[i];
        bytes += result_bytes_max(part->table->name, n_tiers);
        bytes += part->key_status == NULL ? 0 : part->n_keys;
    }
    return bytes;
}

static struct result whole_result(const struct hps_lookup *lookup,
                                  const struct hps_lookup_part *part)
{
    struct result result = {.table = part->table->name,
                            .dim = part->table->dim,
                            .dtype = dtype_of(lookup),
                            .n_rows = part->n_keys,
                            .n_unique = part->n_unique,
                            .n_defaulted = part->n_defaulted,
                            .n_unknown = part->n_unknown,
                            .key_status = part->key_status,
                            .rows = part->rows,
                            .rows_bytes = part->rows_bytes};

    for (unsigned kind = 0; kind < HPS_TIER_COUNT && part->n_keys > 0; kind++) {
        result.tier_found[kind] = part->walk.reports[kind].n_found;
    }
    return result;
}

hps_status hps_encode_lookup(const struct hps_lookup *lookup,
                             const struct hps_encode_explain *explain, struct hps_block *rows,
                             struct hps_block_pool *pool, struct hps_arena *arena,
                             struct hps_encoded *out_encoded)
{
    struct head head = head_of(lookup);
    struct hps_encoded encoded = {0};
    size_t n_slices_max = 2 * (size_t)lookup->n_parts + 2;
    size_t size = (size_t)(heads_bytes(lookup, &head) + explain_bytes_max(explain));

    encoded.slices = hps_arena_alloc(arena, n_slices_max * sizeof(*encoded.slices));
    if (encoded.slices == NULL) {
        return HPS_EXHAUSTED;
    }
    struct hps_block *heads = hps_block_new(pool, size);
    if (heads == NULL) {
        return HPS_NO_MEMORY;
    }
    struct out out = {.at = heads->data, .end = heads->data + size};
    add_head(&encoded, &out, &head, heads);
    for (uint32_t i = 0; i < lookup->n_parts; i++) {
        struct result result = whole_result(lookup, &lookup->parts[i]);
        add_result(&encoded, &out, &result, heads, rows);
    }
    add_explain(&encoded, &out, explain, heads);
    HPS_ASSERT(encoded.n_slices <= n_slices_max);
    hps_block_unref(heads);
    *out_encoded = encoded;
    return HPS_OK;
}

/* ---- the answer in pieces -------------------------------------------------------------------- */

enum { STREAM_SLICES_MAX = 4 };

struct hps_stream {
    const struct hps_lookup *lookup; /* its parts, not its version */
    struct hps_encode_explain explain;
    struct hps_block *rows;
    struct hps_block_pool *pool;
    struct head head;
    const char **tables; /* [n_parts] */
    uint32_t n_tiers;    /* of the version */
    uint32_t part;       /* where the next message begins */
    uint32_t row;
    uint32_t duplicate; /* first of the part that is not before `row` */
    uint32_t n_messages;
    /* Per key of the widest part, by its first occurrence in the part. */
    uint32_t *seen;   /* number of the last message with the key */
    uint8_t *tier_of; /* 1 + kind of the tier that answered it, 0: none */
    struct hps_slice slices[STREAM_SLICES_MAX];
};

/* Note which tier answered each key of the current part. */
static void enter_part(struct hps_stream *stream)
{
    if (stream->part == stream->lookup->n_parts) {
        return;
    }
    const struct hps_lookup_part *part = &stream->lookup->parts[stream->part];
    stream->row = 0;
    stream->duplicate = 0;
    if (part->n_keys == 0) {
        return;
    }
    for (uint32_t i = 0; i < part->n_keys; i++) { /* those that it had as sent are in no batch */
        stream->tier_of[i] = hps_lookup_part_hit(part, i) ? HPS_TIER_GPU + 1 : 0;
    }
    uint32_t end = part->walk.n_keys;
    for (unsigned kind = 0; kind < HPS_TIER_COUNT; kind++) {
        uint32_t begin = hps_walk_found_begin(&part->walk, (enum hps_tier_kind)kind);
        for (uint32_t i = begin; i < end; i++) {
            stream->tier_of[part->walk.batch.slots[i]] = (uint8_t)(kind + 1);
        }
        end = begin;
    }
}

static hps_status copy_names(struct hps_stream *stream, const struct hps_lookup *lookup,
                             struct hps_arena *arena)
{
    struct head head = head_of(lookup);

    stream->head.version = head.version;
    stream->head.update_sequence = head.update_sequence;
    stream->head.event_time_ms = head.event_time_ms;
    stream->head.model = hps_arena_strndup(arena, head.model, text_size(head.model));
    stream->head.label =
        hps_arena_strndup(arena, head.label == NULL ? "" : head.label, text_size(head.label));
    stream->tables = hps_arena_alloc(arena, (lookup->n_parts + 1) * sizeof(*stream->tables));
    if (stream->head.model == NULL || stream->head.label == NULL || stream->tables == NULL) {
        return HPS_EXHAUSTED;
    }
    for (uint32_t i = 0; i < lookup->n_parts; i++) {
        const char *name = lookup->parts[i].table->name;
        stream->tables[i] = hps_arena_strndup(arena, name, text_size(name));
        if (stream->tables[i] == NULL) {
            return HPS_EXHAUSTED;
        }
    }
    stream->n_tiers = hps_version_n_tiers(lookup->version);
    return HPS_OK;
}

hps_status hps_stream_new(const struct hps_lookup *lookup, const struct hps_encode_explain *explain,
                          struct hps_block *rows, struct hps_block_pool *pool,
                          struct hps_arena *arena, struct hps_stream **out_stream)
{
    struct hps_stream *stream = hps_arena_calloc(arena, 1, sizeof(*stream));
    uint32_t n_keys_max = 1;

    if (stream == NULL || copy_names(stream, lookup, arena) != HPS_OK) {
        return HPS_EXHAUSTED;
    }
    for (uint32_t i = 0; i < lookup->n_parts; i++) {
        uint32_t n_keys = lookup->parts[i].n_keys;
        n_keys_max = n_keys > n_keys_max ? n_keys : n_keys_max;
    }
    stream->seen = hps_arena_calloc(arena, n_keys_max, sizeof(*stream->seen));
    stream->tier_of = hps_arena_alloc(arena, n_keys_max);
    if (stream->seen == NULL || stream->tier_of == NULL) {
        return HPS_EXHAUSTED;
    }
    stream->lookup = lookup;
    stream->rows = rows;
    stream->pool = pool;
    if (explain != NULL) {
        stream->explain = *explain;
    }
    enter_part(stream);
    *out_stream = stream;
    return HPS_OK;
}

bool hps_stream_done(const struct hps_stream *stream)
{
    return stream->n_messages > 0 && stream->part == stream->lookup->n_parts;
}

/* Index of the first occurrence of the key of row `row`; rows must be asked in order. */
static uint32_t first_occurrence(struct hps_stream *stream, const struct hps_lookup_part *part,
                                 uint32_t row)
{
    uint32_t n_duplicates = part->n_keys - part->n_unique;

    if (stream->duplicate < n_duplicates && part->duplicates[stream->duplicate].index == row) {
        return part->duplicates[stream->duplicate++].first;
    }
    return row;
}

/* The counts of rows [row, row + n_rows) of the current part. */
static void count_rows(struct hps_stream *stream, const struct hps_lookup_part *part,
                       uint32_t n_rows, struct result *result)
{
    uint32_t found[HPS_TIER_COUNT + 1] = {0};

    for (uint32_t row = stream->row; row < stream->row + n_rows; row++) {
        uint32_t first = first_occurrence(stream, part, row);

        if (part->key_status != NULL) {
            result->n_defaulted += part->key_status[row] == HPS_KEY_DEFAULTED ? 1 : 0;
            result->n_unknown += part->key_status[row] == HPS_KEY_UNKNOWN ? 1 : 0;
        }
        if (stream->seen[first] != stream->n_messages) {
            stream->seen[first] = stream->n_messages;
            result->n_unique++;
            found[stream->tier_of[first]]++;
        }
    }
    for (unsigned kind = 0; kind < HPS_TIER_COUNT; kind++) {
        result->tier_found[kind] = found[kind + 1];
    }
    if (result->n_defaulted + result->n_unknown > 0) {
        result->key_status = part->key_status + stream->row;
    }
}

/* Rows of the next message: what fits beside `fixed` bytes, a byte of status each; at least one. */
static uint32_t rows_that_fit(const struct hps_lookup_part *part, uint32_t row, uint64_t fixed)
{
    uint64_t room = fixed < HPS_STREAM_MESSAGE_BYTES_MAX ? HPS_STREAM_MESSAGE_BYTES_MAX - fixed : 0;
    uint64_t n = room / ((uint64_t)part->row_bytes + 1);

    n = n == 0 ? 1 : n;
    return n < part->n_keys - row ? (uint32_t)n : part->n_keys - row;
}

static struct result next_result(struct hps_stream *stream, uint32_t n_rows)
{
    const struct hps_lookup_part *part = &stream->lookup->parts[stream->part];
    struct result result = {.table = stream->tables[stream->part],
                            .dim = part->table->dim,
                            .dtype = dtype_of(stream->lookup),
                            .n_rows = n_rows,
                            .rows_bytes = (uint64_t)n_rows * part->row_bytes};

    if (n_rows > 0) {
        result.rows = part->rows + (uint64_t)stream->row * part->row_bytes;
        count_rows(stream, part, n_rows, &result);
    }
    return result;
}

hps_status hps_stream_next(struct hps_stream *stream, struct hps_encoded *out_encoded)
{
    struct hps_encoded encoded = {.slices = stream->slices};
    bool with_result = stream->part < stream->lookup->n_parts;
    uint64_t fixed = head_bytes_max(&stream->head) + explain_bytes_max(&stream->explain) + MARGIN;
    uint32_t n_rows = 0;

    HPS_ASSERT(!hps_stream_done(stream));
    if (with_result) {
        fixed += result_bytes_max(stream->tables[stream->part], stream->n_tiers);
        n_rows = rows_that_fit(&stream->lookup->parts[stream->part], stream->row, fixed);
    }
    size_t size = (size_t)(fixed + n_rows);
    struct hps_block *heads = hps_block_new(stream->pool, size);
    if (heads == NULL) {
        return HPS_NO_MEMORY;
    }
    struct out out = {.at = heads->data, .end = heads->data + size};
    stream->n_messages++;
    add_head(&encoded, &out, &stream->head, heads);
    if (with_result) {
        struct result result = next_result(stream, n_rows);
        add_result(&encoded, &out, &result, heads, stream->rows);
        stream->row += n_rows;
        if (stream->row == stream->lookup->parts[stream->part].n_keys) {
            stream->part++;
            enter_part(stream);
        }
    }
    if (hps_stream_done(stream)) {
        add_explain(&encoded, &out, &stream->explain, heads);
    }
    hps_block_unref(heads);
    *out_encoded = encoded;
    return HPS_OK;
}

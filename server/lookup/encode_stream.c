/* SPDX-License-Identifier: Apache-2.0
 *
 * Encodes the reply to a lookup in messages of at most 1 MiB. Each has consecutive rows of one part
 * or, in a matrix, of all parts. The keys of a bag are counted in the message that has its row. One
 * thread at a time.
 */
#include "server/lookup/encode_internal.h"

/* The head, explain, the matrix and its tag; results come in addition. */
enum { SLICES_BESIDE = 4 };

/* Copied from the table of a part, because the table may be freed before the stream. */
struct stream_table {
    const char *name;
    uint32_t dim;
};

/* The position of the messages in a part. seen and tier_of are indexed by the first occurrence of a
 * key in the part. */
struct place {
    uint32_t duplicate; /* the first of part->duplicates that is not counted yet */
    uint32_t *seen;     /* [n_keys] number of the last message with the key */
    uint8_t *tier_of;   /* [n_keys] 1 + kind of the tier that answered it, 0: none */
};

struct hps_stream {
    const struct hps_lookup *lookup; /* only its parts; its version may be unpinned */
    struct hps_encode_explain explain;
    struct hps_block *rows;
    struct hps_block_pool *pool;
    struct head head;
    struct stream_table *tables; /* [n_parts] */
    uint32_t n_tiers;            /* of the version */
    bool concat;
    uint32_t part; /* where the next message begins; n_parts: at the end */
    uint32_t row;
    uint32_t n_messages;
    struct place *places; /* [n_parts]; they share memory, except for a matrix */
    struct hps_slice *slices;
};

/* The rows of a message: [row, row + n_rows) of parts [part, part_end). */
struct piece {
    uint32_t part;
    uint32_t part_end;
    uint32_t row;
    uint32_t n_rows;
    uint64_t n_keys; /* of these rows */
};

/* The first key of a row. For row = n_rows: the number of keys. */
static uint32_t key_of_row(const struct hps_lookup_part *part, uint32_t row)
{
    return part->offsets == NULL ? row : part->offsets[row];
}

/* ---- begin ----------------------------------------------------------------------------------- */

/* Sets tier_of for the keys of a part. */
static void enter_part(struct hps_stream *stream, uint32_t i)
{
    const struct hps_lookup_part *part = &stream->lookup->parts[i];
    uint8_t *tier_of = stream->places[i].tier_of;

    if (part->n_keys == 0) {
        return;
    }
    for (uint32_t k = 0; k < part->n_keys; k++) { /* keys found before the walk are in no batch */
        tier_of[k] = hps_lookup_part_hit(part, k) ? (uint8_t)(part->hits_tier + 1) : 0;
    }
    uint32_t end = part->walk.n_keys;
    for (unsigned kind = 0; kind < HPS_TIER_COUNT; kind++) {
        uint32_t begin = hps_walk_found_begin(&part->walk, (enum hps_tier_kind)kind);
        for (uint32_t k = begin; k < end; k++) {
            tier_of[part->walk.batch.slots[k]] = (uint8_t)(kind + 1);
        }
        end = begin;
    }
}

/* Parts that are sent one after the other share seen and tier_of, which fit the largest part. */
static hps_status make_places(struct hps_stream *stream, struct hps_arena *arena)
{
    const struct hps_lookup *lookup = stream->lookup;
    uint64_t n_keys = 1;
    uint64_t at = 0;

    for (uint32_t i = 0; i < lookup->n_parts; i++) {
        uint64_t n = lookup->parts[i].n_keys;
        n_keys = stream->concat ? n_keys + n : n > n_keys ? n : n_keys;
    }
    uint32_t *seen = hps_arena_calloc(arena, n_keys, sizeof(*seen));
    uint8_t *tier_of = hps_arena_alloc(arena, n_keys);
    stream->places = hps_arena_calloc(arena, lookup->n_parts + (size_t)1, sizeof(*stream->places));
    if (seen == NULL || tier_of == NULL || stream->places == NULL) {
        return HPS_EXHAUSTED;
    }
    for (uint32_t i = 0; i < lookup->n_parts; i++) {
        stream->places[i] = (struct place){.seen = seen + at, .tier_of = tier_of + at};
        at += stream->concat ? lookup->parts[i].n_keys : 0;
    }
    return HPS_OK;
}

static hps_status copy_names(struct hps_stream *stream, struct hps_arena *arena)
{
    const struct hps_lookup *lookup = stream->lookup;
    struct head head = encode_head(lookup);

    stream->head.version = head.version;
    stream->head.update_sequence = head.update_sequence;
    stream->head.event_time_ms = head.event_time_ms;
    stream->head.model = hps_arena_strndup(arena, head.model, text_size(head.model));
    stream->head.label =
        hps_arena_strndup(arena, head.label == NULL ? "" : head.label, text_size(head.label));
    stream->tables =
        hps_arena_alloc(arena, (lookup->n_parts + (size_t)1) * sizeof(*stream->tables));
    if (stream->head.model == NULL || stream->head.label == NULL || stream->tables == NULL) {
        return HPS_EXHAUSTED;
    }
    for (uint32_t i = 0; i < lookup->n_parts; i++) {
        const struct hps_table *table = lookup->parts[i].table;
        stream->tables[i].dim = table->dim;
        stream->tables[i].name = hps_arena_strndup(arena, table->name, text_size(table->name));
        if (stream->tables[i].name == NULL) {
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

    if (stream == NULL) {
        return HPS_EXHAUSTED;
    }
    stream->lookup = lookup;
    stream->concat = lookup->layout == HPS_LAYOUT_CONCAT;
    stream->rows = rows;
    stream->pool = pool;
    if (explain != NULL) {
        stream->explain = *explain;
    }
    size_t n_results = stream->concat ? lookup->n_parts : 2; /* one result, and its rows */
    stream->slices = hps_arena_alloc(arena, (n_results + SLICES_BESIDE) * sizeof(*stream->slices));
    if (stream->slices == NULL || copy_names(stream, arena) != HPS_OK ||
        make_places(stream, arena) != HPS_OK) {
        return HPS_EXHAUSTED;
    }
    for (uint32_t i = 0; i < lookup->n_parts && (i == 0 || stream->concat); i++) {
        enter_part(stream, i);
    }
    *out_stream = stream;
    return HPS_OK;
}

bool hps_stream_done(const struct hps_stream *stream)
{
    return stream->n_messages > 0 && stream->part == stream->lookup->n_parts;
}

/* ---- counts ---------------------------------------------------------------------------------- */

/* The first occurrence of `key`. Call for the keys of a part in ascending order. */
static uint32_t first_occurrence(struct place *place, const struct hps_lookup_part *part,
                                 uint32_t key)
{
    uint32_t n_duplicates = part->n_keys - part->n_unique;

    if (place->duplicate < n_duplicates && part->duplicates[place->duplicate].index == key) {
        return part->duplicates[place->duplicate++].first;
    }
    return key;
}

/* Counts keys [begin, begin + result->n_keys) of a part. */
static void count_keys(const struct hps_stream *stream, uint32_t i, uint32_t begin,
                       struct result *result)
{
    const struct hps_lookup_part *part = &stream->lookup->parts[i];
    struct place *place = &stream->places[i];
    uint32_t found[HPS_TIER_COUNT + 1] = {0};

    for (uint32_t key = begin; key < begin + result->n_keys; key++) {
        uint32_t first = first_occurrence(place, part, key);

        if (part->key_status != NULL) {
            result->n_defaulted += part->key_status[key] == HPS_KEY_DEFAULTED ? 1 : 0;
            result->n_unknown += part->key_status[key] == HPS_KEY_UNKNOWN ? 1 : 0;
        }
        if (place->seen[first] != stream->n_messages) {
            place->seen[first] = stream->n_messages;
            result->n_unique++;
            found[place->tier_of[first]]++;
        }
    }
    for (unsigned kind = 0; kind < HPS_TIER_COUNT; kind++) {
        result->tier_found[kind] = found[kind + 1];
    }
    if (result->n_defaulted + result->n_unknown > 0) {
        result->key_status = part->key_status + begin;
    }
}

/* ---- messages -------------------------------------------------------------------------------- */

/* Bytes of a row in a message: the row itself, and a status for each of its keys. */
static uint64_t row_bytes_max(const struct hps_stream *stream, const struct piece *piece,
                              uint32_t row, uint64_t *out_n_keys)
{
    uint64_t bytes = 0;
    uint64_t n_keys = 0;

    for (uint32_t i = piece->part; i < piece->part_end; i++) {
        const struct hps_lookup_part *part = &stream->lookup->parts[i];
        bytes += part->row_bytes;
        n_keys += key_of_row(part, row + 1) - key_of_row(part, row);
    }
    *out_n_keys = n_keys;
    return bytes + n_keys;
}

/* Chooses the rows of the next message: as many as fit next to `fixed` bytes, at least one. */
static void take_rows(const struct hps_stream *stream, uint64_t fixed, struct piece *piece)
{
    uint64_t space =
        fixed < HPS_STREAM_MESSAGE_BYTES_MAX ? HPS_STREAM_MESSAGE_BYTES_MAX - fixed : 0;
    uint32_t n_left = 0;

    if (piece->part < piece->part_end) {
        n_left = stream->lookup->parts[piece->part].n_rows - piece->row;
    }
    for (uint64_t bytes = 0; piece->n_rows < n_left; piece->n_rows++) {
        uint64_t n_keys;
        bytes += row_bytes_max(stream, piece, piece->row + piece->n_rows, &n_keys);
        if (bytes > space && piece->n_rows > 0) {
            break;
        }
        piece->n_keys += n_keys;
    }
}

static struct result next_result(const struct hps_stream *stream, const struct piece *piece,
                                 uint32_t i)
{
    const struct hps_lookup_part *part = &stream->lookup->parts[i];
    struct result result = {.table = stream->tables[i].name,
                            .dim = stream->tables[i].dim,
                            .dtype = part->out_dtype,
                            .n_rows = piece->n_rows,
                            .column = part->column};

    if (piece->n_rows == 0) {
        return result;
    }
    uint32_t begin = key_of_row(part, piece->row);
    result.n_keys = key_of_row(part, piece->row + piece->n_rows) - begin;
    count_keys(stream, i, begin, &result);
    if (!stream->concat) {
        result.rows = part->rows + (uint64_t)piece->row * part->row_bytes;
        result.rows_bytes = (uint64_t)piece->n_rows * part->row_bytes;
    }
    return result;
}

/* Moves to the rows after this message. */
static void pass(struct hps_stream *stream, const struct piece *piece)
{
    stream->row += piece->n_rows;
    if (piece->part == piece->part_end || stream->row < stream->lookup->parts[piece->part].n_rows) {
        return;
    }
    stream->row = 0;
    stream->part = piece->part_end;
    if (stream->part < stream->lookup->n_parts) {
        enter_part(stream, stream->part);
    }
}

static void add_matrix_rows(const struct hps_stream *stream, const struct piece *piece,
                            struct hps_encoded *encoded, struct out *out, struct hps_block *heads)
{
    const struct hps_lookup *lookup = stream->lookup;

    if (stream->concat && piece->n_rows > 0) {
        uint64_t stride = lookup->parts[0].stride;
        encode_add_matrix(encoded, out, lookup->rows + piece->row * stride, piece->n_rows * stride,
                          heads, stream->rows);
    }
}

hps_status hps_stream_next(struct hps_stream *stream, struct hps_encoded *out_encoded)
{
    struct hps_encoded encoded = {.slices = stream->slices};
    struct piece piece = {.part = stream->part, .part_end = stream->part, .row = stream->row};
    uint64_t fixed = encode_head_bytes_max(&stream->head) +
                     encode_explain_bytes_max(&stream->explain) + ENCODE_MARGIN;

    HPS_ASSERT(!hps_stream_done(stream));
    if (stream->part < stream->lookup->n_parts) {
        piece.part_end = stream->concat ? stream->lookup->n_parts : stream->part + 1;
    }
    for (uint32_t i = piece.part; i < piece.part_end; i++) {
        fixed += encode_result_bytes_max(stream->tables[i].name, stream->n_tiers);
    }
    take_rows(stream, fixed, &piece);
    size_t size = (size_t)(fixed + piece.n_keys);
    struct hps_block *heads = hps_block_new(stream->pool, size);
    if (heads == NULL) {
        return HPS_NO_MEMORY;
    }
    struct out out = {.at = heads->data, .end = heads->data + size};
    stream->n_messages++;
    encode_add_head(&encoded, &out, &stream->head, heads);
    for (uint32_t i = piece.part; i < piece.part_end; i++) {
        struct result result = next_result(stream, &piece, i);
        encode_add_result(&encoded, &out, &result, heads, stream->rows);
    }
    pass(stream, &piece);
    if (hps_stream_done(stream)) {
        encode_add_explain(&encoded, &out, &stream->explain, heads);
    }
    add_matrix_rows(stream, &piece, &encoded, &out, heads);
    hps_block_unref(heads);
    *out_encoded = encoded;
    return HPS_OK;
}

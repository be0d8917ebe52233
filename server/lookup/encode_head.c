/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes LookupResponse by hand. The heads are a few bytes per table, written before the rows that
 * they describe; the rows stay in their block. One thread at a time.
 */
#include "server/lookup/encode_internal.h"

enum {
    PREFIX_MAX = PREFIX_BYTES_MAX,
    /* All scalars of a TableResult, and the tag and length of its rows. */
    SCALARS_MAX = 9 * PREFIX_MAX,
    TIER_COUNT_MAX = 48, /* one TierCount */
};

/* Field numbers of lookup.proto. */
enum {
    RESPONSE_MODEL = 1,
    RESPONSE_VERSION,
    RESPONSE_LABEL,
    RESPONSE_RESULTS,
    RESPONSE_UPDATE_SEQUENCE,
    RESPONSE_EVENT_TIME,
    RESPONSE_EXPLAIN,
    RESPONSE_MATRIX = 15
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
    RESULT_COLUMN,
    RESULT_ROWS = 15
};
enum { TIER_COUNT_TIER = 1, TIER_COUNT_FOUND_KEYS };
enum { EXPLAIN_STAGES = 1, EXPLAIN_NOTES };
enum { STAGE_NAME = 1, STAGE_DURATION_US };

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
        put_bytes(out, RESULT_KEY_STATUS, result->key_status, result->n_keys);
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
    put_uint(out, RESULT_COLUMN, result->column);
    if (result->rows_bytes > 0) {
        put_tag(out, RESULT_ROWS, WIRE_LEN);
        put_varint(out, result->rows_bytes);
    }
}

/* Writes a result up to its rows. Returns its first byte, which is after the old out->at. */
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

uint64_t encode_explain_bytes_max(const struct hps_encode_explain *explain)
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

/* Writes the field `explain`. Returns its first byte. */
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

uint64_t encode_head_bytes_max(const struct head *head)
{
    return text_size(head->model) + text_size(head->label) + (uint64_t)5 * PREFIX_MAX;
}

uint64_t encode_result_bytes_max(const char *table, uint32_t n_tiers)
{
    return PREFIX_MAX + SCALARS_MAX + text_size(table) + (uint64_t)2 * PREFIX_MAX +
           (uint64_t)n_tiers * (TIER_COUNT_MAX + PREFIX_MAX);
}

/* ---- slices ---------------------------------------------------------------------------------- */

void encode_add_result(struct hps_encoded *encoded, struct out *out, const struct result *result,
                       struct hps_block *heads, struct hps_block *rows)
{
    uint8_t *begin = put_result(out, result);

    hps_encoded_add(encoded, heads, begin, (uint64_t)(out->at - begin));
    hps_encoded_add(encoded, rows, result->rows, result->rows_bytes);
}

void encode_add_explain(struct hps_encoded *encoded, struct out *out,
                        const struct hps_encode_explain *explain, struct hps_block *heads)
{
    if (explain != NULL && explain->n_stages + explain->n_notes > 0) {
        uint8_t *begin = put_explain(out, explain);
        hps_encoded_add(encoded, heads, begin, (uint64_t)(out->at - begin));
    }
}

void encode_add_head(struct hps_encoded *encoded, struct out *out, const struct head *head,
                     struct hps_block *heads)
{
    uint8_t *begin = out->at;

    put_head(out, head);
    hps_encoded_add(encoded, heads, begin, (uint64_t)(out->at - begin));
}

void encode_add_matrix(struct hps_encoded *encoded, struct out *out, const uint8_t *matrix,
                       uint64_t size, struct hps_block *heads, struct hps_block *rows)
{
    uint8_t *begin = out->at;

    if (size == 0) {
        return;
    }
    put_tag(out, RESPONSE_MATRIX, WIRE_LEN);
    put_varint(out, size);
    hps_encoded_add(encoded, heads, begin, (uint64_t)(out->at - begin));
    hps_encoded_add(encoded, rows, matrix, size);
}

/* ---- of a lookup ----------------------------------------------------------------------------- */

struct head encode_head(const struct hps_lookup *lookup)
{
    return (struct head){.model = lookup->version->model,
                         .version = lookup->version->number,
                         .label = lookup->version->label,
                         .update_sequence = lookup->update_sequence,
                         .event_time_ms = lookup->event_time_ms};
}

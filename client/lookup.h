/* SPDX-License-Identifier: Apache-2.0
 *
 * Encoding of lookups: builds a LookupRequest from arrays of keys, and reads a LookupResponse in
 * place, rows included. Pure functions. Any thread.
 */
#ifndef HPS_CLIENT_LOOKUP_H
#define HPS_CLIENT_LOOKUP_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/dtype.h"
#include "base/row_sum.h"
#include "base/status.h"
#include "base/types.h"
#include "client/wire.h"

#define HPS_CLIENT_LOOKUP_PATH        "/hps.v1.ParameterServer/Lookup"
#define HPS_CLIENT_LOOKUP_STREAM_PATH "/hps.v1.ParameterServer/LookupStream"

/* Names of miss policies. The index of a name is its number in the protocol. */
#define HPS_CLIENT_LOOKUP_MISS_POLICIES "table|exact|wait|memory-only|threshold"

/* The same for the output types, poolings and layouts that a request may have. */
#define HPS_CLIENT_LOOKUP_OUTPUT_TYPES "fp32|fp16|bf16|raw"
#define HPS_CLIENT_LOOKUP_POOLINGS     "none|sum|mean|sqrtn|mean_by_count"
#define HPS_CLIENT_LOOKUP_LAYOUTS      "per-table|concat"

enum { HPS_CLIENT_LOOKUP_CONCAT = 2 }; /* number of hps.v1.RowLayout */

/* The query of one table: a row for each key, or with pooling a row for each bag of keys. */
struct hps_client_lookup_query {
    const char *table; /* NULL or "": the i-th table of the model */
    const hps_key *keys;
    size_t n_keys;
    enum hps_pooling pooling; /* 0 and NONE: a row for each key; the fields below are unset */
    size_t n_bags;
    const uint32_t *offsets; /* [n_bags + 1] bag b has keys [offsets[b], offsets[b + 1]) */
    const float *weights;    /* [n_keys]; NULL: all 1 */
};

/* Fields of LookupRequest; 0 and NULL are the server's defaults. */
struct hps_client_lookup {
    const char *model;
    int64_t version;
    const struct hps_client_lookup_query *queries;
    size_t n_queries;
    uint32_t miss_policy; /* number of hps.v1.MissPolicy */
    uint32_t max_wait_us;
    uint32_t unknown_key_policy;
    uint32_t output_type;
    bool explain;
    const char *request_id;
    uint32_t consistency; /* number of hps.v1.Consistency */
    uint32_t row_layout;  /* number of hps.v1.RowLayout */
};

/* Appends the request to `buf`. EXHAUSTED: above the maximum of the buffer; NO_MEMORY. */
hps_status hps_client_lookup_encode(const struct hps_client_lookup *lookup, struct hps_buf *buf)
    HPS_MUST_CHECK;

/* Text within a reply; not NUL-terminated. */
struct hps_client_lookup_text {
    const char *data;
    size_t size;
};

struct hps_client_lookup_tier {
    struct hps_client_lookup_text name;
    uint32_t found_keys;
};

/* The result of one table. All counts except row_count are numbers of keys. */
struct hps_client_lookup_result {
    struct hps_client_lookup_text table;
    uint32_t dim;
    enum hps_dtype dtype;
    uint32_t row_count; /* one for each key or bag */
    uint32_t unique_key_count;
    uint32_t defaulted_key_count;
    uint32_t unknown_key_count;
    const uint8_t *key_status; /* [n_key_status]; NULL: all keys were found */
    size_t n_key_status;       /* checked against the query by hps_client_lookup_check */
    struct hps_client_lookup_tier tiers[HPS_TIER_COUNT];
    uint32_t n_tiers;
    uint32_t column;     /* of the matrix, at which the rows begin */
    const uint8_t *rows; /* row i at rows + i * stride, any alignment */
    size_t stride;       /* bytes from one row to the next */
    size_t rows_bytes;   /* of all rows, without bytes between them */
};

/* A reply. All pointers are into the bytes on which it was opened. */
struct hps_client_lookup_reply {
    struct hps_client_lookup_text model;
    int64_t version;
    struct hps_client_lookup_text label;
    uint64_t update_sequence;
    uint32_t n_results;
    const uint8_t *matrix; /* NULL: each result has its rows */
    size_t matrix_bytes;
    /* State of hps_client_lookup_reply_next: unread bytes and results returned so far; with a
     * matrix, rows and type of its first result, and columns so far. */
    struct hps_wire_reader cursor;
    uint32_t n_given;
    uint32_t matrix_rows;
    enum hps_dtype matrix_dtype;
    uint64_t matrix_columns;
};

/* DATA_LOSS: not a LookupResponse. */
hps_status hps_client_lookup_reply_open(const uint8_t *data, size_t size,
                                        struct hps_client_lookup_reply *out_reply,
                                        struct hps_error *err) HPS_MUST_CHECK;
/* The result of the next table, in query order. Call it n_results times. DATA_LOSS: counts and
 * bytes disagree; NOT_FOUND: no result is left. */
hps_status hps_client_lookup_reply_next(struct hps_client_lookup_reply *reply,
                                        struct hps_client_lookup_result *out_result,
                                        struct hps_error *err) HPS_MUST_CHECK;

/* The number of rows that a query yields, and the index of the first key of a row. For row = number
 * of rows: the number of keys. */
static inline size_t hps_client_lookup_rows(const struct hps_client_lookup_query *query)
{
    return query->offsets == NULL ? query->n_keys : query->n_bags;
}

static inline size_t hps_client_lookup_first_key(const struct hps_client_lookup_query *query,
                                                 size_t row)
{
    return query->offsets == NULL ? row : query->offsets[row];
}

/* Whether the result fits rows of the query from `row` on; results of a stream are consecutive. If
 * OK, key i of the result is keys[hps_client_lookup_first_key(query, row) + i].
 *
 * error   DATA_LOSS: more rows than the query yields, not one key status per key, or INT8 rows for
 *         bags
 */
hps_status hps_client_lookup_check(const struct hps_client_lookup_query *query, size_t row,
                                   const struct hps_client_lookup_result *result,
                                   struct hps_error *err) HPS_MUST_CHECK;

/* Status of the i-th key. */
static inline enum hps_key_status hps_client_lookup_key_status(
    const struct hps_client_lookup_result *result, uint32_t i)
{
    return result->key_status == NULL ? HPS_KEY_FOUND : (enum hps_key_status)result->key_status[i];
}

/* Value i of a row, or all its values (out[dim]), as float32. Values of INT8 rows are u8 * scale +
 * bias. */
float hps_client_lookup_value(const struct hps_client_lookup_result *result, uint32_t row,
                              uint32_t i);
void hps_client_lookup_row(const struct hps_client_lookup_result *result, uint32_t row, float *out);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Look-ups as bytes: a LookupRequest built straight from arrays of keys, and a LookupResponse read
 * in place, rows included. Pure functions. Any thread.
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

/* Names of miss policies; the place of each is its number on the wire. */
#define HPS_CLIENT_LOOKUP_MISS_POLICIES "table|exact|wait|memory-only|threshold"

/* The same of types of answers, of poolings, and of layouts: of those that may be asked for. */
#define HPS_CLIENT_LOOKUP_OUTPUT_TYPES "fp32|fp16|bf16|raw"
#define HPS_CLIENT_LOOKUP_POOLINGS     "none|sum|mean|sqrtn|mean_by_count"
#define HPS_CLIENT_LOOKUP_LAYOUTS      "per-table|concat"

enum { HPS_CLIENT_LOOKUP_CONCAT = 2 }; /* number of hps.v1.RowLayout */

/* What is asked of one table: a row for each key, or, pooled, one for each bag of keys. */
struct hps_client_lookup_query {
    const char *table; /* NULL or "": the i-th table of the model */
    const hps_key *keys;
    size_t n_keys;
    enum hps_pooling pooling; /* 0 and NONE: a row for each key, and the next are not there */
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

/* Append the request to `buf`. error EXHAUSTED: past the buffer's maximum; NO_MEMORY. */
hps_status hps_client_lookup_encode(const struct hps_client_lookup *lookup, struct hps_buf *buf)
    HPS_MUST_CHECK;

/* Text inside a reply; not terminated. */
struct hps_client_lookup_text {
    const char *data;
    size_t size;
};

struct hps_client_lookup_tier {
    struct hps_client_lookup_text name;
    uint32_t found_keys;
};

/* Of one table. Counts, but for row_count, are of keys. */
struct hps_client_lookup_result {
    struct hps_client_lookup_text table;
    uint32_t dim;
    enum hps_dtype dtype;
    uint32_t row_count; /* keys, or bags */
    uint32_t unique_key_count;
    uint32_t defaulted_key_count;
    uint32_t unknown_key_count;
    const uint8_t *key_status; /* [n_key_status], or NULL: all found */
    size_t n_key_status;       /* as many as keys, which who asked knows: hps_client_lookup_check */
    struct hps_client_lookup_tier tiers[HPS_TIER_COUNT];
    uint32_t n_tiers;
    uint32_t column;     /* of the matrix, where the rows begin */
    const uint8_t *rows; /* row i at rows + i * stride, any alignment */
    size_t stride;       /* of the rows one after the other, or of the matrix */
    size_t rows_bytes;   /* of all rows, what may be between them apart */
};

/* A reply; everything points into the bytes it was opened on. */
struct hps_client_lookup_reply {
    struct hps_client_lookup_text model;
    int64_t version;
    struct hps_client_lookup_text label;
    uint64_t update_sequence;
    uint32_t n_results;
    const uint8_t *matrix; /* NULL: rows are with their results */
    size_t matrix_bytes;
    /* Of hps_client_lookup_reply_next: the bytes that are left, the results that it has given, and
     * what the first of a matrix said, and all of them together. */
    struct hps_wire_reader cursor;
    uint32_t n_given;
    uint32_t matrix_rows;
    enum hps_dtype matrix_dtype;
    uint64_t matrix_columns;
};

/* error DATA_LOSS: not a LookupResponse */
hps_status hps_client_lookup_reply_open(const uint8_t *data, size_t size,
                                        struct hps_client_lookup_reply *out_reply,
                                        struct hps_error *err) HPS_MUST_CHECK;
/* The next table's result, in query order; call it n_results times. DATA_LOSS: counts and bytes
 * do not agree; NOT_FOUND: there is no further one. */
hps_status hps_client_lookup_reply_next(struct hps_client_lookup_reply *reply,
                                        struct hps_client_lookup_result *out_result,
                                        struct hps_error *err) HPS_MUST_CHECK;

/* Rows that a query asks for, and the first key of one of them (of their number: all keys). */
static inline size_t hps_client_lookup_rows(const struct hps_client_lookup_query *query)
{
    return query->offsets == NULL ? query->n_keys : query->n_bags;
}

static inline size_t hps_client_lookup_first_key(const struct hps_client_lookup_query *query,
                                                 size_t row)
{
    return query->offsets == NULL ? row : query->offsets[row];
}

/* Can the result be the answer to rows of the query, from `row` on? A stream's are consecutive. On
 * success its key i is keys[hps_client_lookup_first_key(query, row) + i].
 * error   DATA_LOSS: more rows than were asked for; a number of key states that is not that of
 * their keys; INT8 rows of bags */
hps_status hps_client_lookup_check(const struct hps_client_lookup_query *query, size_t row,
                                   const struct hps_client_lookup_result *result,
                                   struct hps_error *err) HPS_MUST_CHECK;

/* Status of the i-th key. */
static inline enum hps_key_status hps_client_lookup_key_status(
    const struct hps_client_lookup_result *result, uint32_t i)
{
    return result->key_status == NULL ? HPS_KEY_FOUND : (enum hps_key_status)result->key_status[i];
}

/* Value i of a row, or all of them (out[dim]), as float32: those of INT8 rows are u8 * scale +
 * bias. */
float hps_client_lookup_value(const struct hps_client_lookup_result *result, uint32_t row,
                              uint32_t i);
void hps_client_lookup_row(const struct hps_client_lookup_result *result, uint32_t row, float *out);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Encodes a LookupRequest from arrays of keys, and decodes a LookupResponse in place, without
 * copying rows. Pure functions. Any thread.
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

/* Names of miss policies, in the order of their numbers in the protocol, from 0. */
#define HPS_CLIENT_LOOKUP_MISS_POLICIES "table|exact|wait|memory-only|threshold"

/* Names of output types, poolings and row layouts, each in the order of their numbers in the
 * protocol. */
#define HPS_CLIENT_LOOKUP_OUTPUT_TYPES "fp32|fp16|bf16|raw"
#define HPS_CLIENT_LOOKUP_POOLINGS     "none|sum|mean|sqrtn|mean_by_count"
#define HPS_CLIENT_LOOKUP_LAYOUTS      "per-table|concat"

enum { HPS_CLIENT_LOOKUP_CONCAT = 2 }; /* ROW_LAYOUT_CONCAT of hps.v1.RowLayout */

/* The part of a request for one table. The reply has one row for each key. With pooling, it has one
 * row for each bag of keys instead. */
struct hps_client_lookup_query {
    const char *table;   /* NULL or "": the i-th query is for the i-th table of the model */
    const hps_key *keys; /* [n_keys] */
    size_t n_keys;
    enum hps_pooling pooling; /* 0 or NONE: no pooling; the fields below must be 0 or NULL */
    size_t n_bags;
    const uint32_t *offsets; /* [n_bags + 1] bag b has keys [offsets[b], offsets[b + 1]) */
    const float *weights;    /* [n_keys]; NULL: the weight of every key is 1 */
};

/* The fields of LookupRequest. A field that is 0 or NULL selects the default of the server. */
struct hps_client_lookup {
    const char *model;
    int64_t version;
    const struct hps_client_lookup_query *queries;
    size_t n_queries;
    uint32_t miss_policy; /* number of hps.v1.MissPolicy */
    uint32_t max_wait_us;
    uint32_t unknown_key_policy; /* number of hps.v1.UnknownKeyPolicy */
    uint32_t output_type;        /* number of hps.v1.DataType */
    bool explain;
    const char *request_id;
    uint32_t consistency; /* number of hps.v1.Consistency */
    uint32_t row_layout;  /* number of hps.v1.RowLayout */
};

/* Appends the encoded request to `buf`.
 *
 * error   EXHAUSTED: `buf` would exceed its size_max; NO_MEMORY
 */
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
    uint32_t row_count; /* one row for each key, or for each bag */
    uint32_t unique_key_count;
    uint32_t defaulted_key_count;
    uint32_t unknown_key_count;
    const uint8_t *key_status; /* [n_key_status] of enum hps_key_status; NULL: all keys found */
    size_t n_key_status;       /* hps_client_lookup_check compares it with the query */
    struct hps_client_lookup_tier tiers[HPS_TIER_COUNT];
    uint32_t n_tiers;
    uint32_t column;     /* with a matrix: first column with values of this table */
    const uint8_t *rows; /* row i is at rows + i * stride, with any alignment */
    size_t stride;       /* bytes from one row to the next */
    size_t rows_bytes;   /* size of all rows, without the bytes between them */
};

/* A reply. All pointers point into the bytes that hps_client_lookup_reply_open was given. */
struct hps_client_lookup_reply {
    struct hps_client_lookup_text model;
    int64_t version;
    struct hps_client_lookup_text label;
    uint64_t update_sequence;
    uint32_t n_results;
    const uint8_t *matrix; /* rows of all tables (layout CONCAT); NULL: rows are in the results */
    size_t matrix_bytes;
    /* State of hps_client_lookup_reply_next. */
    struct hps_wire_reader cursor; /* bytes of the reply that are not read yet */
    uint32_t n_given;              /* results returned so far */
    uint32_t matrix_rows;          /* with a matrix: rows of the first result */
    enum hps_dtype matrix_dtype;   /* with a matrix: type of the first result */
    uint64_t matrix_columns;       /* with a matrix: columns of the results returned so far */
};

/* Opens a reply. `data` is borrowed while the reply and its results are used. DATA_LOSS: `data` is
 * not a LookupResponse. */
hps_status hps_client_lookup_reply_open(const uint8_t *data, size_t size,
                                        struct hps_client_lookup_reply *out_reply,
                                        struct hps_error *err) HPS_MUST_CHECK;
/* Returns the result of the next table, in the order of the queries. Call it n_results times.
 *
 * error   DATA_LOSS: the counts of the result do not match its bytes; NOT_FOUND: no result is left
 */
hps_status hps_client_lookup_reply_next(struct hps_client_lookup_reply *reply,
                                        struct hps_client_lookup_result *out_result,
                                        struct hps_error *err) HPS_MUST_CHECK;

/* The number of rows that a query yields. */
static inline size_t hps_client_lookup_rows(const struct hps_client_lookup_query *query)
{
    return query->offsets == NULL ? query->n_keys : query->n_bags;
}

/* The index of the first key of a row. If `row` is the number of rows, this is the number of
 * keys. */
static inline size_t hps_client_lookup_first_key(const struct hps_client_lookup_query *query,
                                                 size_t row)
{
    return query->offsets == NULL ? row : query->offsets[row];
}

/* Checks that a result has the rows of the query that begin at `row`. In a stream, the rows of a
 * query may come in several results: `row` is then the sum of row_count of the earlier results for
 * this query. Otherwise `row` is 0. If this returns OK, key i of the result is
 * keys[hps_client_lookup_first_key(query, row) + i].
 *
 * error   DATA_LOSS: the result has too many rows, its number of key statuses is not its number of
 *         keys, or it has INT8 rows for bags
 */
hps_status hps_client_lookup_check(const struct hps_client_lookup_query *query, size_t row,
                                   const struct hps_client_lookup_result *result,
                                   struct hps_error *err) HPS_MUST_CHECK;

/* The status of the i-th key of the result. */
static inline enum hps_key_status hps_client_lookup_key_status(
    const struct hps_client_lookup_result *result, uint32_t i)
{
    return result->key_status == NULL ? HPS_KEY_FOUND : (enum hps_key_status)result->key_status[i];
}

/* Value i of a row as float32. A value of an INT8 row is u8 * scale + bias. */
float hps_client_lookup_value(const struct hps_client_lookup_result *result, uint32_t row,
                              uint32_t i);
/* Writes all values of a row to out[dim], converted like hps_client_lookup_value. */
void hps_client_lookup_row(const struct hps_client_lookup_result *result, uint32_t row, float *out);

#endif

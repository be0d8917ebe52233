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
#include "base/status.h"
#include "base/types.h"
#include "client/wire.h"

#define HPS_CLIENT_LOOKUP_PATH        "/hps.v1.ParameterServer/Lookup"
#define HPS_CLIENT_LOOKUP_STREAM_PATH "/hps.v1.ParameterServer/LookupStream"

/* Names of miss policies; the place of each is its number on the wire. */
#define HPS_CLIENT_LOOKUP_MISS_POLICIES "table|exact|wait|memory-only|threshold"

struct hps_client_lookup_query {
    const char *table; /* NULL or "": the i-th table of the model */
    const hps_key *keys;
    size_t n_keys;
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

struct hps_client_lookup_result {
    struct hps_client_lookup_text table;
    uint32_t dim;
    enum hps_dtype dtype;
    uint32_t row_count;
    uint32_t unique_key_count;
    uint32_t defaulted_key_count;
    uint32_t unknown_key_count;
    const uint8_t *key_status; /* [row_count], or NULL: all found */
    struct hps_client_lookup_tier tiers[HPS_TIER_COUNT];
    uint32_t n_tiers;
    const uint8_t *rows; /* [row_count * dim] of dtype, unaligned */
    size_t rows_bytes;
};

/* A reply; everything points into the bytes it was opened on. */
struct hps_client_lookup_reply {
    struct hps_client_lookup_text model;
    int64_t version;
    struct hps_client_lookup_text label;
    uint64_t update_sequence;
    uint32_t n_results;
    struct hps_wire_reader cursor; /* of hps_client_lookup_reply_next */
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

/* Status of the i-th key. */
static inline enum hps_key_status hps_client_lookup_key_status(
    const struct hps_client_lookup_result *result, uint32_t i)
{
    return result->key_status == NULL ? HPS_KEY_FOUND : (enum hps_key_status)result->key_status[i];
}

/* A float16 as float32, exactly. */
float hps_client_lookup_half(uint16_t half);
/* Value i of a row as float32. */
float hps_client_lookup_value(const struct hps_client_lookup_result *result, uint32_t row,
                              uint32_t i);

#endif

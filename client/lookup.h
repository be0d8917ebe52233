/* SPDX-License-Identifier: Apache-2.0
 *
 * Encodes a LookupRequest from arrays of keys. Pure functions. Any thread.
 */
#ifndef HPS_CLIENT_LOOKUP_H
#define HPS_CLIENT_LOOKUP_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/row_sum.h"
#include "base/status.h"
#include "base/types.h"
#include "client/wire.h"

#define HPS_CLIENT_LOOKUP_PATH        "/hps.v1.ParameterServer/Lookup"
#define HPS_CLIENT_LOOKUP_STREAM_PATH "/hps.v1.ParameterServer/LookupStream"

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
    uint32_t max_staleness_ms;
    uint32_t consistency; /* number of hps.v1.Consistency */
    uint32_t row_layout;  /* number of hps.v1.RowLayout */
    const char *label;
};

/* Appends the encoded request to `buf`.
 *
 * error   EXHAUSTED: `buf` would exceed its size_max; NO_MEMORY
 */
hps_status hps_client_lookup_encode(const struct hps_client_lookup *lookup, struct hps_buf *buf)
    HPS_MUST_CHECK;

/* Appends one more query to an encoded request. Errors as above. */
hps_status hps_client_lookup_encode_query(const struct hps_client_lookup_query *query,
                                          struct hps_buf *buf) HPS_MUST_CHECK;

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Decodes LookupRequest in place: the result points into the message. Rejects values that this
 * build does not support, and skips unknown fields. tests/fuzz/fuzz_request.c compares the decoder
 * with protobuf-c. Any thread.
 */
#ifndef HPS_SERVER_LOOKUP_DECODE_H
#define HPS_SERVER_LOOKUP_DECODE_H

#include "base/arena.h"
#include "base/dtype.h"
#include "base/row_sum.h"
#include "base/types.h"
#include "cache/version/version.h"

struct hps_decode_limits {
    uint32_t tables_max; /* limit on the queries of a request */
    /* Limit on the number of keys in all queries, and also on the number of bags in all queries. */
    uint32_t keys_max;
    uint32_t request_id_max; /* limit on the bytes of the request id */
};

struct hps_lookup_query {
    const char *table; /* name, not NUL-terminated; empty: the table is selected by position */
    size_t table_size;
    const uint8_t *keys; /* [n_keys] int64, little-endian, any alignment; NULL if n_keys is 0 */
    uint32_t n_keys;
    enum hps_pooling pooling; /* NONE if the request has UNSPECIFIED (0) */
    uint32_t n_bags;          /* 0 without pooling */
    /* [n_bags + 1] uint32, little-endian, any alignment: bag i has the keys offsets[i] to
     * offsets[i + 1] - 1. Ascending or equal, from 0 to n_keys. NULL without pooling. */
    const uint8_t *offsets;
    /* [n_keys] float32, little-endian, any alignment. NULL: all weights are 1, or no pooling. */
    const uint8_t *weights;
};

/* A decoded request. Strings, keys, offsets and weights point into the message. A key list in
 * several pieces is joined in the arena. Strings are not NUL-terminated. */
struct hps_lookup_request {
    const char *model; /* not terminated */
    size_t model_size;
    int64_t version;   /* 0: the version with `label` or, without a label, the active version */
    const char *label; /* not terminated; if set, version is 0 */
    size_t label_size; /* 0: no label */
    struct hps_lookup_query *queries;
    uint32_t n_queries;
    uint64_t n_keys;                  /* of all queries */
    uint64_t n_bags;                  /* of all queries */
    enum hps_miss_policy miss_policy; /* 0 (UNSPECIFIED): use the policy of the version */
    uint32_t max_wait_us;
    uint32_t max_staleness_ms;              /* 0: any staleness */
    bool unit;                              /* CONSISTENCY_UNIT is set */
    enum hps_unknown_policy unknown_policy; /* 0 (UNSPECIFIED): use the version's policy */
    /* FP32 if the request has 0 (UNSPECIFIED). With pooling or `concat` it is never RAW. */
    enum hps_dtype output;
    bool concat;  /* ROW_LAYOUT_CONCAT is set, and all queries have the same number of rows */
    bool explain; /* the client wants the field `explain` in the reply */
    uint64_t timeout_us; /* from the arrival of the request; 0: only the call's deadline applies */
    const char *request_id; /* not terminated; NULL: not in the request */
    size_t request_id_size;
};

/* Decodes the LookupRequest in data[size]. After an error *out_request is unchanged.
 *
 * error   INVALID: the message is malformed, or a value is not allowed; the text names the field
 *         and its limit; EXHAUSTED: the arena is full
 */
hps_status hps_decode_lookup(const uint8_t *data, size_t size,
                             const struct hps_decode_limits *limits, struct hps_arena *arena,
                             struct hps_lookup_request *out_request, struct hps_error *err)
    HPS_MUST_CHECK;

#endif

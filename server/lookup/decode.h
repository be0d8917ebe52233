/* SPDX-License-Identifier: Apache-2.0
 *
 * Decodes LookupRequest in place: the result points into the message. Rejects fields and values
 * that this build does not support. tests/fuzz/fuzz_request.c compares it with protobuf-c. Any
 * thread.
 */
#ifndef HPS_SERVER_LOOKUP_DECODE_H
#define HPS_SERVER_LOOKUP_DECODE_H

#include "base/arena.h"
#include "base/dtype.h"
#include "base/row_sum.h"
#include "base/types.h"
#include "cache/version/version.h"

struct hps_decode_limits {
    uint32_t tables_max;
    uint32_t keys_max;       /* keys of all queries together; also bags */
    uint32_t request_id_max; /* bytes */
};

struct hps_lookup_query {
    const char *table; /* not terminated; empty: by position */
    size_t table_size;
    const uint8_t *keys; /* [n_keys] int64 LE, any alignment; NULL if none */
    uint32_t n_keys;
    enum hps_pooling pooling; /* UNSPECIFIED (0) becomes NONE; NONE: the next three are unset */
    uint32_t n_bags;
    /* [n_bags + 1] uint32 LE, any alignment: the first is 0, none is less than the one before, the
     * last is n_keys. */
    const uint8_t *offsets;
    const uint8_t *weights; /* [n_keys] float32 LE, any alignment; NULL: all 1 */
};

/* Strings, keys and bags point into the message; a key list in several pieces is joined in the
 * arena. */
struct hps_lookup_request {
    const char *model;
    size_t model_size;
    int64_t version;
    const char *label; /* not terminated; if set, version is 0 */
    size_t label_size; /* 0: none */
    struct hps_lookup_query *queries;
    uint32_t n_queries;
    uint64_t n_keys;
    uint64_t n_bags;
    enum hps_miss_policy miss_policy;
    uint32_t max_wait_us;
    uint32_t max_staleness_ms; /* 0: any */
    bool unit;                 /* CONSISTENCY_UNIT */
    enum hps_unknown_policy unknown_policy;
    /* 0 (UNSPECIFIED) is decoded as FP32. RAW excludes pooling and `concat`. */
    enum hps_dtype output;
    bool concat; /* ROW_LAYOUT_CONCAT: all queries have the same number of rows */
    bool explain;
    uint64_t timeout_us; /* from the arrival of the request; 0: only the call's deadline counts */
    const char *request_id; /* NULL: none */
    size_t request_id_size;
};

/* Decodes data[size].
 *
 * error   INVALID: malformed, or the text names the field, its value and its limit; UNIMPLEMENTED:
 *         the text names the field; EXHAUSTED: the arena is full. *out_request is then unchanged.
 */
hps_status hps_decode_lookup(const uint8_t *data, size_t size,
                             const struct hps_decode_limits *limits, struct hps_arena *arena,
                             struct hps_lookup_request *out_request, struct hps_error *err)
    HPS_MUST_CHECK;

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of the decoder: decode_field.c (errors of fields), decode_query.c
 * (TableQuery), decode.c (LookupRequest). Any thread.
 */
#ifndef HPS_SERVER_LOOKUP_DECODE_INTERNAL_H
#define HPS_SERVER_LOOKUP_DECODE_INTERNAL_H

#include "base/assert.h"
#include "server/lookup/decode.h"
#include "server/rpc/wire.h"

/* Limit on the fields of a message other than queries and pieces of keys. It leaves room for
 * scalars that are repeated and for fields of newer clients. */
enum { FIELDS_MAX = 64 };

struct decoder {
    const struct hps_decode_limits *limits;
    struct hps_arena *arena;
    struct hps_error *err;
};

/* ---- decode_field.c -------------------------------------------------------------------------- */

/* Set the error for a message of that name, and return INVALID. */
hps_status decode_malformed(const struct decoder *decoder, const char *message) HPS_MUST_CHECK;
hps_status decode_too_many_fields(const struct decoder *decoder, const char *message)
    HPS_MUST_CHECK;
/* Checks an enum value as protobuf reads it: its low 32 bits. INVALID if above `last`. */
hps_status decode_check_enum(const struct decoder *decoder, const char *field, uint64_t value,
                             uint32_t last) HPS_MUST_CHECK;

/* ---- decode_query.c -------------------------------------------------------------------------- */

/* Decodes query number request->n_queries, for which request->queries has space. Adds its keys and
 * bags to the counts of the request.
 * error   INVALID, EXHAUSTED: the text names the query; RANGE, without a text: the request then has
 *         too many keys or bags */
hps_status decode_query(const struct decoder *decoder, struct cursor in,
                        struct hps_lookup_request *request) HPS_MUST_CHECK;
/* Adds the keys and bags of a query to `count`, unless it is malformed. */
struct decode_count {
    uint64_t n_keys, n_bags;
};
void decode_count(const struct decoder *decoder, struct cursor in, struct decode_count *count);

#endif

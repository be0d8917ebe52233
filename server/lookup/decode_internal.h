/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the decoder share: decode_field.c (what is wrong with a field),
 * decode_query.c (TableQuery), decode.c (LookupRequest). Any thread.
 */
#ifndef HPS_SERVER_LOOKUP_DECODE_INTERNAL_H
#define HPS_SERVER_LOOKUP_DECODE_INTERNAL_H

#include "base/assert.h"
#include "server/lookup/decode.h"
#include "server/rpc/wire.h"

/* What a message may have beside its queries, or pieces of its keys: each scalar once or twice, and
 * what newer clients add. */
enum { FIELDS_MAX = 64 };

struct decoder {
    const struct hps_decode_limits *limits;
    struct hps_arena *arena;
    struct hps_error *err;
};

/* ---- decode_field.c -------------------------------------------------------------------------- */

/* INVALID: what is wrong with a message of that name. */
hps_status decode_malformed(const struct decoder *decoder, const char *message) HPS_MUST_CHECK;
hps_status decode_too_many_fields(const struct decoder *decoder, const char *message)
    HPS_MUST_CHECK;
/* The value of an enum, as protobuf reads it: its low 32 bits. error INVALID: above the last one */
hps_status decode_check_enum(const struct decoder *decoder, const char *field, uint64_t value,
                             uint32_t last) HPS_MUST_CHECK;

/* ---- decode_query.c -------------------------------------------------------------------------- */

/* The next query of the request, whose number is request->n_queries, and which has room for it; its
 * keys and bags are added to those of the request.
 * error   INVALID, EXHAUSTED: they name it; RANGE, without a text: with it the request has too many
 *         keys or bags */
hps_status decode_query(const struct decoder *decoder, struct cursor in,
                        struct hps_lookup_request *request) HPS_MUST_CHECK;
/* Add the keys and bags of a query, unless it is malformed. */
struct decode_count {
    uint64_t n_keys, n_bags;
};
void decode_count(const struct decoder *decoder, struct cursor in, struct decode_count *count);

#endif

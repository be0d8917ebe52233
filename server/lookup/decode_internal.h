/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of the decoder: decode_field.c (errors), decode_query.c (TableQuery),
 * decode.c (LookupRequest). Any thread.
 */
#ifndef HPS_SERVER_LOOKUP_DECODE_INTERNAL_H
#define HPS_SERVER_LOOKUP_DECODE_INTERNAL_H

#include "base/assert.h"
#include "server/lookup/decode.h"
#include "server/rpc/wire.h"

/* Maximum number of fields of a message. Fields with queries or with a non-empty part of a key list
 * are not counted. The maximum is higher than the number of known fields: a message may set a
 * scalar several times, and newer clients may send fields that are unknown here. */
enum { FIELDS_MAX = 64 };

struct decoder {
    const struct hps_decode_limits *limits;
    struct hps_arena *arena;
    struct hps_error *err;
};

/* ---- decode_field.c -------------------------------------------------------------------------- */

/* Sets the error "malformed". message: the name of the message type. Returns INVALID. */
hps_status decode_malformed(const struct decoder *decoder, const char *message) HPS_MUST_CHECK;
/* Sets the error for a message with more than FIELDS_MAX fields. message: the name of the message
 * type. Returns INVALID. */
hps_status decode_too_many_fields(const struct decoder *decoder, const char *message)
    HPS_MUST_CHECK;
/* Checks the value of an enum field. As in protobuf, only the low 32 bits of `value` count.
 * error   INVALID: the value is above `last`, the last number of the enum */
hps_status decode_check_enum(const struct decoder *decoder, const char *field, uint64_t value,
                             uint32_t last) HPS_MUST_CHECK;

/* ---- decode_query.c -------------------------------------------------------------------------- */

/* Decodes the TableQuery in `in` and appends it to request->queries, which has space for it. Adds
 * its keys and bags to the counts of the request.
 * error   INVALID, EXHAUSTED: the text names the query; RANGE: with this query the request has too
 *         many keys or bags; the caller of decode_query sets the text */
hps_status decode_query(const struct decoder *decoder, struct cursor in,
                        struct hps_lookup_request *request) HPS_MUST_CHECK;
struct decode_count {
    uint64_t n_keys, n_bags;
};
/* Adds the numbers of keys and bags of the TableQuery in `in` to `count`. No effect if the query is
 * malformed. */
void decode_count(const struct decoder *decoder, struct cursor in, struct decode_count *count);

#endif

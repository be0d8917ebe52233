/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the fields of a LookupResponse that the benchmarks check, in place.
 */
#ifndef HPS_BENCH_BENCH_REPLY_H
#define HPS_BENCH_BENCH_REPLY_H

#include "client/wire.h"

struct bench_reply_result {
    uint32_t n_rows;
    uint32_t n_unknown;
    uint32_t n_found;     /* unique keys, of all tiers */
    uint32_t n_from_host; /* of them */
    const uint8_t *rows;  /* [rows_bytes] */
    size_t rows_bytes;
};

/* The next result of the reply. False: none is left, or the reply is malformed. */
static inline bool bench_reply_next(struct hps_wire_reader *reply,
                                    struct bench_reply_result *out_result)
{
    struct bench_reply_result result = {0};
    struct hps_wire_field field, inner;

    do {
        if (!hps_wire_next(reply, &field)) {
            return false;
        }
    } while (field.number != 4 || field.type != HPS_WIRE_BYTES);
    struct hps_wire_reader reader = {field.data, field.size, 0};
    while (hps_wire_next(&reader, &field)) {
        bool host = false;
        if (field.number == 4) {
            result.n_rows = (uint32_t)field.value;
        } else if (field.number == 7) {
            result.n_unknown = (uint32_t)field.value;
        } else if (field.number == 15 && field.type == HPS_WIRE_BYTES) {
            result.rows = field.data;
            result.rows_bytes = field.size;
        } else if (field.number == 9 && field.type == HPS_WIRE_BYTES) {
            struct hps_wire_reader tier = {field.data, field.size, 0};
            while (hps_wire_next(&tier, &inner)) {
                if (inner.number == 1) {
                    host = inner.size == 4 && memcmp(inner.data, "host", 4) == 0;
                } else {
                    result.n_found += (uint32_t)inner.value;
                    result.n_from_host += host ? (uint32_t)inner.value : 0;
                }
            }
        }
    }
    *out_result = result;
    return !hps_wire_broken(&reader);
}

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Records for the decoder of updates, without a log.
 */
#ifndef HPS_TESTS_LIB_DECODE_BYTES_H
#define HPS_TESTS_LIB_DECODE_BYTES_H

#include <string.h>

#include "server/update/sink/decode.h"

/* NULL: Kafka's null, or the header is missing. */
struct hps_update_bytes {
    const void *key, *value, *version_header, *row_version_header, *dtype_header;
    size_t key_size, value_size, version_header_size, row_version_header_size, dtype_header_size;
};

static inline bool bytes_header(const struct hps_consumer_record *record, const char *name,
                                const void **out_value, size_t *out_size)
{
    const struct hps_update_bytes *from = record->handle;
    const struct {
        const char *name;
        const void *value;
        size_t size;
    } headers[] = {
        {HPS_UPDATE_HEADER_VERSION, from->version_header, from->version_header_size},
        {HPS_UPDATE_HEADER_ROW_VERSION, from->row_version_header, from->row_version_header_size},
        {HPS_UPDATE_HEADER_DTYPE, from->dtype_header, from->dtype_header_size},
    };
    for (unsigned i = 0; i < sizeof(headers) / sizeof(headers[0]); i++) {
        if (headers[i].value != NULL && strcmp(headers[i].name, name) == 0) {
            *out_value = headers[i].value;
            *out_size = headers[i].size;
            return true;
        }
    }
    return false;
}

static inline hps_status decode_bytes(struct hps_update_decoder *decoder,
                                      const struct hps_update_route *route,
                                      const struct hps_update_bytes *from, bool follows,
                                      struct hps_update_outcome *out_outcome, struct hps_error *err)
{
    static const struct hps_consumer_ops ops = {.header = bytes_header};
    const struct hps_consumer_record record = {.key = from->key,
                                               .key_size = from->key_size,
                                               .value = from->value,
                                               .value_size = from->value_size,
                                               .handle = from};
    return hps_update_decoder_add(decoder, route, &ops, &record, follows, out_outcome, err);
}

#endif

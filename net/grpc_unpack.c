/* SPDX-License-Identifier: Apache-2.0
 *
 * Inflates request messages. Runs on any thread, because it uses no state of the call.
 */
#include "net/grpc.h"
#include "net/gzip.h"

hps_status hps_grpc_unpack(const struct hps_grpc_packed *packed, size_t size_max,
                           struct hps_buf *plain, const uint8_t **out_data, size_t *out_size,
                           struct hps_error *err)
{
    size_t limit = size_max < packed->size_max ? size_max : packed->size_max;

    hps_buf_init(plain, limit);
    if (!packed->compressed && packed->size > limit) {
        return hps_error_set(err, HPS_EXHAUSTED, "message of %zu bytes, the limit is %zu bytes",
                             packed->size, limit);
    }
    if (!packed->compressed) {
        *out_data = packed->data;
        *out_size = packed->size;
        return HPS_OK;
    }
    hps_status status = packed->is_zlib ? hps_zlib_inflate(packed->data, packed->size, plain, err)
                                        : hps_gzip_inflate(packed->data, packed->size, plain, err);
    if (status == HPS_INVALID && !packed->is_http) { /* gRPC: the message contradicts its headers */
        err->status = HPS_INTERNAL;
        return HPS_INTERNAL;
    }
    if (status == HPS_OK) {
        *out_data = plain->data;
        *out_size = plain->size;
    }
    return status;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as a stream of gRPC messages, cut into pieces that the first byte chooses: the decoder
 * must give the same messages as when it gets everything at once, and never read or hold more than
 * is there. The rest of the framing (time-outs, messages) gets the same bytes.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/assert.h"
#include "net/grpc_frame.h"

enum { SIZE_MAX_MESSAGE = 4096 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A digest of all messages and of how it ended. */
static uint64_t decode(const uint8_t *data, size_t size, size_t chunk, bool lend)
{
    struct hps_grpc_decoder decoder;
    struct hps_error err;
    uint64_t digest = 14695981039346656037u;
    size_t at = 0;
    hps_status status = HPS_OK;

    hps_grpc_decoder_init(&decoder, SIZE_MAX_MESSAGE, lend);
    while (at < size && status == HPS_OK) {
        struct hps_grpc_message message;
        bool complete = false;
        size_t used = 0;
        size_t n = chunk < size - at ? chunk : size - at;
        status = hps_grpc_decoder_feed(&decoder, data + at, n, &used, &message, &complete, &err);
        if (status != HPS_OK) {
            break;
        }
        HPS_ASSERT(used > 0 && used <= n);
        HPS_ASSERT(hps_grpc_decoder_held(&decoder) <= SIZE_MAX_MESSAGE);
        at += used;
        if (complete) {
            HPS_ASSERT(hps_grpc_decoder_idle(&decoder));
            digest = (digest ^ message.compressed) * 1099511628211u;
            for (size_t i = 0; i < message.size; i++) {
                digest = (digest ^ message.data[i]) * 1099511628211u;
            }
        }
    }
    digest ^=
        (uint64_t)(unsigned)(-status) << 32 | (status == HPS_OK && hps_grpc_decoder_idle(&decoder));
    hps_grpc_decoder_fini(&decoder);
    return digest;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hps_buf buf;
    uint64_t us;

    if (size == 0) {
        return 0;
    }
    size_t chunk = (size_t)data[0] + 1;
    uint64_t whole = decode(data + 1, size - 1, size, false);
    HPS_ASSERT(decode(data + 1, size - 1, chunk, false) == whole);
    HPS_ASSERT(decode(data + 1, size - 1, chunk, true) == whole);
    HPS_ASSERT(decode(data + 1, size - 1, 1, true) == whole);

    (void)hps_grpc_timeout_parse((const char *)data, size, &us);
    hps_buf_init(&buf, size);
    HPS_ASSERT(hps_grpc_message_decode(&buf, (const char *)data, size) == HPS_OK);
    hps_buf_fini(&buf);
    return 0;
}

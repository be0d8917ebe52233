/* SPDX-License-Identifier: Apache-2.0
 *
 * The bytes that gRPC puts inside HTTP/2: length-prefixed messages, time-outs, percent-encoded
 * status messages and base64 metadata. No sockets here, so that it can be fuzzed. Used by the
 * thread that owns the call.
 */
#ifndef HPS_NET_GRPC_FRAME_H
#define HPS_NET_GRPC_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"

enum {
    HPS_GRPC_PREFIX_BYTES = 5,   /* flag, u32 big-endian length */
    HPS_GRPC_TIMEOUT_CHARS = 10, /* 8 digits, a unit, NUL */
};

/* Cuts a stream of DATA bytes, split anywhere, into messages. */
struct hps_grpc_decoder {
    size_t size_max;
    uint8_t prefix[HPS_GRPC_PREFIX_BYTES];
    uint8_t n_prefix;
    bool lend; /* a message that lies whole in the input is handed out in place */
    bool delivered;
    size_t size; /* declared, once the prefix is whole */
    struct hps_buf body;
};

struct hps_grpc_message {
    const uint8_t *data; /* valid until the next feed or, when lent, as long as the input */
    size_t size;
    bool compressed;
};

void hps_grpc_decoder_init(struct hps_grpc_decoder *decoder, size_t size_max, bool lend);
void hps_grpc_decoder_fini(struct hps_grpc_decoder *decoder);
/* Take bytes up to the end of the next message.
 *
 * out_used      how many bytes of the input were taken (all, unless a message was completed)
 * out_complete  whether *out_message is set
 * error         INTERNAL: flag above 1; EXHAUSTED: a length above size_max (known before any byte
 * of the body is stored); NO_MEMORY. The decoder is then of no more use.
 */
hps_status hps_grpc_decoder_feed(struct hps_grpc_decoder *decoder, const uint8_t *data, size_t size,
                                 size_t *out_used, struct hps_grpc_message *out_message,
                                 bool *out_complete, struct hps_error *err) HPS_MUST_CHECK;
/* In the middle of a message: where up to `size` of its next bytes may be put. Fed from there, if
 * they are the next to be fed, they are not copied. NULL: nowhere, feed them from elsewhere. */
uint8_t *hps_grpc_decoder_room(struct hps_grpc_decoder *decoder, size_t size, size_t *out_room);
/* True between messages: the stream may end here. */
bool hps_grpc_decoder_idle(const struct hps_grpc_decoder *decoder);
/* Bytes of an unfinished message that are held. */
size_t hps_grpc_decoder_held(const struct hps_grpc_decoder *decoder);

void hps_grpc_prefix_write(uint8_t out[HPS_GRPC_PREFIX_BYTES], size_t size);

/* "100m" and so on: 1 to 8 digits and one of H M S m u n; false otherwise. Rounds up. */
bool hps_grpc_timeout_parse(const char *text, size_t size, uint64_t *out_us);
void hps_grpc_timeout_format(uint64_t us, char out[HPS_GRPC_TIMEOUT_CHARS]);

/* Percent-encode / -decode a status message; bad escapes are kept as they are. */
hps_status hps_grpc_message_encode(struct hps_buf *out, const char *text) HPS_MUST_CHECK;
hps_status hps_grpc_message_decode(struct hps_buf *out, const char *text, size_t size)
    HPS_MUST_CHECK;

/* Base64 of -bin metadata: written without padding, read with or without; INVALID otherwise. */
hps_status hps_grpc_base64_encode(struct hps_buf *out, const void *data, size_t size)
    HPS_MUST_CHECK;
hps_status hps_grpc_base64_decode(struct hps_buf *out, const char *text, size_t size)
    HPS_MUST_CHECK;

/* gRPC code for a stream that was reset with this HTTP/2 error code. */
int hps_grpc_code_of_reset(uint32_t h2_error);
/* gRPC code for a reply without grpc-status but with this HTTP status. */
int hps_grpc_code_of_http(unsigned http_status);

#endif

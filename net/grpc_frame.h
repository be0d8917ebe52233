/* SPDX-License-Identifier: Apache-2.0
 *
 * The encodings of gRPC within HTTP/2: length-prefixed messages, timeouts and percent-encoded
 * status messages. Without I/O, so that it can be fuzzed. Used by the thread that owns the call.
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

/* Splits the DATA bytes of a stream into messages. The bytes may arrive in parts of any size. */
struct hps_grpc_decoder {
    size_t size_max;
    uint8_t prefix[HPS_GRPC_PREFIX_BYTES];
    uint8_t n_prefix;
    bool lend;      /* a message that is complete in the input is not copied */
    bool pass;      /* messages are not stored: their bytes are returned as they come */
    bool delivered; /* the last message was returned */
    size_t size;    /* declared size, once the prefix is complete */
    size_t passed;  /* bytes of this message that were returned, with `pass` */
    struct hps_buf body;
};

struct hps_grpc_message {
    const uint8_t *data; /* valid until the next feed; in place: until the input is freed */
    size_t size;
    bool compressed;
};

void hps_grpc_decoder_init(struct hps_grpc_decoder *decoder, size_t size_max, bool lend);
void hps_grpc_decoder_fini(struct hps_grpc_decoder *decoder);
/* Processes bytes up to the end of the next message.
 *
 * out_used      bytes that were processed: all, unless a message is complete
 * out_complete  whether *out_message is set. With `pass`, *out_message is always set to the bytes
 *               of the message in the input, and this says whether they are the last ones
 * error         INTERNAL: flag above 1; EXHAUSTED: length above size_max, detected before bytes of
 *               the body are stored; NO_MEMORY. The decoder must not be used after an error
 */
hps_status hps_grpc_decoder_feed(struct hps_grpc_decoder *decoder, const uint8_t *data, size_t size,
                                 size_t *out_used, struct hps_grpc_message *out_message,
                                 bool *out_complete, struct hps_error *err) HPS_MUST_CHECK;
/* Within a message: returns a buffer for up to `size` of its next bytes. If these bytes are then
 * fed from the buffer, they are not copied. NULL: no buffer; feed the bytes from elsewhere. */
uint8_t *hps_grpc_decoder_room(struct hps_grpc_decoder *decoder, size_t size, size_t *out_room);
/* With `pass`, within a message: the number of bytes that are still missing. Otherwise 0. */
size_t hps_grpc_decoder_left(const struct hps_grpc_decoder *decoder);
/* Whether the decoder is between two messages, so that the stream may end. */
bool hps_grpc_decoder_idle(const struct hps_grpc_decoder *decoder);
/* Bytes of an incomplete message that are stored. */
size_t hps_grpc_decoder_held(const struct hps_grpc_decoder *decoder);

void hps_grpc_prefix_write(uint8_t out[HPS_GRPC_PREFIX_BYTES], size_t size);

/* A timeout such as "100m": 1 to 8 digits and a unit (H M S m u n). False: malformed. Both
 * functions round up. */
bool hps_grpc_timeout_parse(const char *text, size_t size, uint64_t *out_us);
void hps_grpc_timeout_format(uint64_t us, char out[HPS_GRPC_TIMEOUT_CHARS]);

/* Percent-encoding of a status message. Decoding keeps malformed escapes unchanged. */
hps_status hps_grpc_message_encode(struct hps_buf *out, const char *text) HPS_MUST_CHECK;
hps_status hps_grpc_message_decode(struct hps_buf *out, const char *text, size_t size)
    HPS_MUST_CHECK;

/* The gRPC code of a stream that was reset with this HTTP/2 error code. */
int hps_grpc_code_of_reset(uint32_t h2_error);
/* The gRPC code of a reply with this HTTP status and without grpc-status. */
int hps_grpc_code_of_http(unsigned http_status);

#endif

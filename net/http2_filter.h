/* SPDX-License-Identifier: Apache-2.0
 *
 * Removes one kind of frame from the bytes of a client: RST_STREAM for a stream that the client has
 * never opened. The gRPC libraries of C++ and Python send such a frame when a call ends before its
 * first byte was sent. RFC 9113 §5.1 makes it a connection error, and nghttp2 has no option to
 * ignore it, so it would end all calls of the connection. All other bytes pass unchanged. Loop
 * thread of the connection.
 */
#ifndef HPS_NET_HTTP2_FILTER_H
#define HPS_NET_HTTP2_FILTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HPS_HTTP2_HEAD_BYTES = 9, HPS_HTTP2_RESET_BYTES = HPS_HTTP2_HEAD_BYTES + 4 };

struct hps_http2_filter {
    size_t left;        /* number of next bytes (preface or frame) that pass unchecked */
    uint32_t last_id;   /* highest id of a stream that the client has opened */
    uint32_t n_dropped; /* removed frames; the owner may reset it to 0 */
    /* The first n_held bytes of a frame of which too few bytes have arrived to check it. */
    uint8_t held[HPS_HTTP2_RESET_BYTES];
    uint8_t n_held;
};

/* Initialises the filter for a new connection, which begins with the client's preface. */
void hps_http2_filter_init(struct hps_http2_filter *filter);

/* Returns the next run of received bytes that nghttp2 may parse. Call it until it returns false:
 * then all bytes of *data are used.
 *
 * shape   *data[*size]: received bytes; the call moves both past the bytes that it used
 * shape   *out_run[*out_size]: part of *data or of the filter, valid until the next call; may be
 *         empty
 */
bool hps_http2_filter_next(struct hps_http2_filter *filter, const uint8_t **data, size_t *size,
                           const uint8_t **out_run, size_t *out_size);

#endif

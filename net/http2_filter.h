/* SPDX-License-Identifier: Apache-2.0
 *
 * Takes one kind of frame out of what a client sends: the reset of a stream that it never began.
 * The gRPC library of C++ and Python sends it when a call ends before its first byte has left; by
 * RFC 9113 §5.1 that is a connection error, which nghttp2 cannot be talked out of, and all other
 * calls of the connection would fail for it. All else passes as it came. Loop thread of the
 * connection.
 */
#ifndef HPS_NET_HTTP2_FILTER_H
#define HPS_NET_HTTP2_FILTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HPS_HTTP2_HEAD_BYTES = 9, HPS_HTTP2_RESET_BYTES = HPS_HTTP2_HEAD_BYTES + 4 };

struct hps_http2_filter {
    size_t left;                         /* bytes of the preface or of a frame, still to pass */
    uint32_t last_id;                    /* of the streams that were begun */
    uint32_t n_dropped;                  /* frames; the owner may set it back */
    uint8_t held[HPS_HTTP2_RESET_BYTES]; /* the begin of a frame that is not yet known */
    uint8_t n_held;
};

/* A connection from its first byte, the client's preface. */
void hps_http2_filter_init(struct hps_http2_filter *filter);

/* The next run of bytes to be taken in; to be called until it returns false, which is when all of
 * *data is used up.
 * data, size   [size] what was read; moved behind what this call has used
 * out_run      [out_size] in *data or in the filter, until the next call
 */
bool hps_http2_filter_next(struct hps_http2_filter *filter, const uint8_t **data, size_t *size,
                           const uint8_t **out_run, size_t *out_size);

#endif

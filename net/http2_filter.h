/* SPDX-License-Identifier: Apache-2.0
 *
 * Removes one kind of frame from the bytes of a client: RST_STREAM of a stream that it never began.
 * The gRPC libraries of C++ and Python send it when a call ends before its first byte was sent. It
 * is a connection error (RFC 9113 §5.1). nghttp2 has no option to ignore it, so all other calls of
 * the connection would fail. All other bytes pass unchanged. Loop thread of the connection.
 */
#ifndef HPS_NET_HTTP2_FILTER_H
#define HPS_NET_HTTP2_FILTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HPS_HTTP2_HEAD_BYTES = 9, HPS_HTTP2_RESET_BYTES = HPS_HTTP2_HEAD_BYTES + 4 };

struct hps_http2_filter {
    size_t left;                         /* bytes of the preface or a frame that pass unchecked */
    uint32_t last_id;                    /* highest id of a stream that was begun */
    uint32_t n_dropped;                  /* dropped frames; the owner may reset it */
    uint8_t held[HPS_HTTP2_RESET_BYTES]; /* the beginning of a frame that cannot be judged yet */
    uint8_t n_held;
};

/* At the beginning of a connection: its first bytes are the client's preface. */
void hps_http2_filter_init(struct hps_http2_filter *filter);

/* Returns the next run of bytes to process. Call it until it returns false; then *data is used up.
 *
 * shape   *data[*size]: bytes read; both move past the bytes that this call used
 * shape   *out_run[*out_size]: in *data or in the filter, valid until the next call; may be empty
 */
bool hps_http2_filter_next(struct hps_http2_filter *filter, const uint8_t **data, size_t *size,
                           const uint8_t **out_run, size_t *out_size);

#endif

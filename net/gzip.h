/* SPDX-License-Identifier: Apache-2.0
 *
 * Bounded inflation of compressed messages that clients send. Answers are never compressed: vectors
 * do not shrink. Any thread.
 */
#ifndef HPS_NET_GZIP_H
#define HPS_NET_GZIP_H

#include <stddef.h>

#include "base/buf.h"
#include "base/status.h"

/* What is inflated may have so many times the bytes of what came, beyond the first megabyte:
 * batches of keys shrink to a third, padded ones to a thirtieth. */
enum { HPS_GZIP_RATIO_MAX = 128, HPS_GZIP_FREE_BYTES = 1024 * 1024 };

/* Append the inflated `data` (one or more gzip members) to `out`, whose size_max is the cap.
 * EXHAUSTED: more would come out than fits, or than HPS_GZIP_RATIO_MAX allows; INVALID: not gzip,
 * damaged, cut short or followed by other bytes; NO_MEMORY. On failure `out` is as before. */
hps_status hps_gzip_inflate(const void *data, size_t size, struct hps_buf *out,
                            struct hps_error *err) HPS_MUST_CHECK;
/* The same of one stream, or more, with the header and checksum of zlib (RFC 1950). */
hps_status hps_zlib_inflate(const void *data, size_t size, struct hps_buf *out,
                            struct hps_error *err) HPS_MUST_CHECK;
/* What `data` says that it inflates to, modulo 2^32: true of one member of gzip made by an honest
 * client. Too short to say, or not gzip: 0. */
size_t hps_gzip_size(const void *data, size_t size);

#endif

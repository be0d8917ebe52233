/* SPDX-License-Identifier: Apache-2.0
 *
 * Bounded inflation of compressed request messages. Replies are never compressed, because vectors
 * do not compress well. Any thread.
 */
#ifndef HPS_NET_GZIP_H
#define HPS_NET_GZIP_H

#include <stddef.h>

#include "base/buf.h"
#include "base/status.h"

/* The inflated size may be at most HPS_GZIP_RATIO_MAX times the compressed size, or
 * HPS_GZIP_FREE_BYTES if that is more. Real requests stay far below this limit. Keys compress to
 * about a third of their size. A list of keys in which most places are filled with the same key
 * (padding) compresses to about a thirtieth. */
enum { HPS_GZIP_RATIO_MAX = 128, HPS_GZIP_FREE_BYTES = 1024 * 1024 };

/* Appends the inflated `data` (one or more gzip members) to `out`. On failure `out` is unchanged.
 *
 * error   EXHAUSTED: the inflated size exceeds out->size_max or the limit above; INVALID: not gzip,
 *         damaged, truncated, empty, or followed by other bytes; NO_MEMORY
 */
hps_status hps_gzip_inflate(const void *data, size_t size, struct hps_buf *out,
                            struct hps_error *err) HPS_MUST_CHECK;
/* Like hps_gzip_inflate, for one or more streams with the header and checksum of zlib (RFC
 * 1950). */
hps_status hps_zlib_inflate(const void *data, size_t size, struct hps_buf *out,
                            struct hps_error *err) HPS_MUST_CHECK;
/* The inflated size (modulo 2^32) that the gzip trailer of `data` states. It is only a hint: it can
 * be wrong if there are several members or the client lies. 0: `data` is too short, or not gzip. */
size_t hps_gzip_size(const void *data, size_t size);

#endif

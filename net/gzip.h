/* SPDX-License-Identifier: Apache-2.0
 *
 * Bounded inflation of gzip messages that clients send. Answers are never compressed: vectors do
 * not shrink. Any thread.
 */
#ifndef HPS_NET_GZIP_H
#define HPS_NET_GZIP_H

#include <stddef.h>

#include "base/buf.h"
#include "base/status.h"

/* Append the inflated `data` (one or more gzip members) to `out`, whose size_max is the cap.
 * EXHAUSTED: more would come out than fits; INVALID: not gzip, damaged, cut short or followed by
 * other bytes; NO_MEMORY. On failure `out` is as before. */
hps_status hps_gzip_inflate(const void *data, size_t size, struct hps_buf *out,
                            struct hps_error *err) HPS_MUST_CHECK;

#endif

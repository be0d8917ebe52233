/* SPDX-License-Identifier: Apache-2.0
 *
 * A growable buffer of bytes with a hard maximum. Its content is data[0 .. size). Used by one
 * thread at a time.
 */
#ifndef HPS_BASE_BUF_H
#define HPS_BASE_BUF_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct hps_buf {
    uint8_t *data;
    size_t size;
    size_t capacity;
    size_t size_max;
    hps_status status; /* first failure of an hps_buf_put* call since the last clear */
};

void hps_buf_init(struct hps_buf *buf, size_t size_max); /* allocates nothing */
void hps_buf_fini(struct hps_buf *buf);  /* frees the memory; `buf` may be used again */
void hps_buf_clear(struct hps_buf *buf); /* sets size to 0 and keeps the memory */
/* Ensure capacity for `size` more bytes after the content. EXHAUSTED: size_max would be exceeded;
 * NO_MEMORY. */
hps_status hps_buf_reserve(struct hps_buf *buf, size_t size) HPS_MUST_CHECK;
/* Append to the content. Errors as hps_buf_reserve. */
hps_status hps_buf_append(struct hps_buf *buf, const void *data, size_t size) HPS_MUST_CHECK;
hps_status hps_buf_printf(struct hps_buf *buf, const char *fmt, ...) HPS_PRINTF(2, 3)
    HPS_MUST_CHECK;
/* Append to the content, but return nothing. A failure is stored in buf->status, and later
 * hps_buf_put* calls have no effect. So the caller can check buf->status once at the end. */
void hps_buf_put(struct hps_buf *buf, const char *text);
void hps_buf_put_bytes(struct hps_buf *buf, const void *data, size_t size);
void hps_buf_putf(struct hps_buf *buf, const char *fmt, ...) HPS_PRINTF(2, 3);
/* Remove the first `size` bytes of the content. */
void hps_buf_consume(struct hps_buf *buf, size_t size);

#endif

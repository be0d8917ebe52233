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
    hps_status status; /* first failure of a put since the last clear */
};

void hps_buf_init(struct hps_buf *buf, size_t size_max); /* allocates nothing */
void hps_buf_fini(struct hps_buf *buf);                  /* frees; the buffer may be used again */
void hps_buf_clear(struct hps_buf *buf);                 /* size 0, memory kept */
/* Ensure capacity for `size` more bytes after the content. EXHAUSTED: size_max would be exceeded;
 * NO_MEMORY. */
hps_status hps_buf_reserve(struct hps_buf *buf, size_t size) HPS_MUST_CHECK;
hps_status hps_buf_append(struct hps_buf *buf, const void *data, size_t size) HPS_MUST_CHECK;
hps_status hps_buf_printf(struct hps_buf *buf, const char *fmt, ...) HPS_PRINTF(2, 3)
    HPS_MUST_CHECK;
/* Append without a result. After the first failure, which `status` keeps, further puts have no
 * effect. So the caller checks `status` once at the end. */
void hps_buf_put(struct hps_buf *buf, const char *text);
void hps_buf_put_bytes(struct hps_buf *buf, const void *data, size_t size);
void hps_buf_putf(struct hps_buf *buf, const char *fmt, ...) HPS_PRINTF(2, 3);
void hps_buf_consume(struct hps_buf *buf, size_t size); /* drop bytes from the front */

#endif

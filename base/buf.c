/* SPDX-License-Identifier: Apache-2.0
 *
 * Growable bytes. One byte more than `capacity` is allocated: vsnprintf needs it for its NUL when
 * text fills the buffer exactly. Used by one thread at a time.
 */
#include "base/buf.h"

#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/heap.h"

enum { CAPACITY_MIN = 256 };

void hps_buf_init(struct hps_buf *buf, size_t size_max)
{
    HPS_ASSERT(size_max < SIZE_MAX);
    *buf = (struct hps_buf){.size_max = size_max};
}

void hps_buf_fini(struct hps_buf *buf)
{
    hps_free(buf->data);
    hps_buf_init(buf, buf->size_max);
}

void hps_buf_clear(struct hps_buf *buf)
{
    buf->size = 0;
    buf->status = HPS_OK;
}

hps_status hps_buf_reserve(struct hps_buf *buf, size_t size)
{
    HPS_ASSERT(buf->size <= buf->size_max);
    HPS_ASSERT(buf->size <= buf->capacity);
    if (size > buf->size_max - buf->size) {
        return HPS_EXHAUSTED;
    }
    size_t need = buf->size + size;
    if (need <= buf->capacity && buf->data != NULL) {
        return HPS_OK;
    }
    size_t capacity = buf->capacity <= buf->size_max / 2 ? buf->capacity * 2 : buf->size_max;
    if (capacity < CAPACITY_MIN) {
        capacity = buf->size_max < CAPACITY_MIN ? buf->size_max : CAPACITY_MIN;
    }
    if (capacity < need) {
        capacity = need;
    }
    uint8_t *data = hps_realloc(buf->data, capacity + 1);
    if (data == NULL) {
        return HPS_NO_MEMORY;
    }
    buf->data = data;
    buf->capacity = capacity;
    HPS_ASSERT(capacity >= need && capacity <= buf->size_max);
    return HPS_OK;
}

hps_status hps_buf_append(struct hps_buf *buf, const void *data, size_t size)
{
    if (size == 0) {
        return HPS_OK;
    }
    hps_status status = hps_buf_reserve(buf, size);
    if (status != HPS_OK) {
        return status;
    }
    HPS_ASSERT(data != NULL);
    memcpy(buf->data + buf->size, data, size);
    buf->size += size;
    return HPS_OK;
}

static hps_status append_text(struct hps_buf *buf, const char *fmt, va_list args)
{
    hps_status status = hps_buf_reserve(buf, 0);
    if (status != HPS_OK) {
        return status;
    }
    va_list again;
    va_copy(again, args);
    size_t space = buf->capacity - buf->size;
    int length = vsnprintf((char *)buf->data + buf->size, space + 1, fmt, args);
    if (length < 0) {
        status = HPS_INVALID;
    } else if ((size_t)length > space) {
        status = hps_buf_reserve(buf, (size_t)length);
        if (status == HPS_OK) {
            vsnprintf((char *)buf->data + buf->size, (size_t)length + 1, fmt, again);
        }
    }
    va_end(again);
    if (status == HPS_OK) {
        buf->size += (size_t)length;
    }
    return status;
}

hps_status hps_buf_printf(struct hps_buf *buf, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    hps_status status = append_text(buf, fmt, args);
    va_end(args);
    return status;
}

void hps_buf_put_bytes(struct hps_buf *buf, const void *data, size_t size)
{
    if (buf->status == HPS_OK) {
        buf->status = hps_buf_append(buf, data, size);
    }
}

void hps_buf_put(struct hps_buf *buf, const char *text)
{
    hps_buf_put_bytes(buf, text, strlen(text));
}

void hps_buf_putf(struct hps_buf *buf, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    if (buf->status == HPS_OK) {
        buf->status = append_text(buf, fmt, args);
    }
    va_end(args);
}

void hps_buf_consume(struct hps_buf *buf, size_t size)
{
    HPS_ASSERT(size <= buf->size);
    if (size == 0) {
        return;
    }
    buf->size -= size;
    memmove(buf->data, buf->data + size, buf->size);
}

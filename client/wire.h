/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of the protobuf encoding that lookups need. A protobuf library would allocate and copy
 * keys and rows, which are most of the bytes. These functions do not. Pure functions. Any thread.
 */
#ifndef HPS_CLIENT_WIRE_H
#define HPS_CLIENT_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/buf.h"

enum hps_wire_type { HPS_WIRE_VARINT = 0, HPS_WIRE_I64 = 1, HPS_WIRE_BYTES = 2, HPS_WIRE_I32 = 5 };

/* Size of `value` encoded as a varint, 1 to 10 bytes. */
static inline size_t hps_wire_varint_size(uint64_t value)
{
    size_t size = 1;

    while (value >= 0x80) {
        value >>= 7;
        size++;
    }
    return size;
}

/* Size of a length-delimited field with `size` bytes of content: tag, length and content. The field
 * number must be below 16. */
static inline size_t hps_wire_field_size(size_t size)
{
    return 1 + hps_wire_varint_size(size) + size;
}

static inline hps_status HPS_MUST_CHECK hps_wire_put_raw_varint(struct hps_buf *buf, uint64_t value)
{
    uint8_t bytes[10];
    size_t n = 0;

    while (value >= 0x80) {
        bytes[n++] = (uint8_t)(value | 0x80);
        value >>= 7;
    }
    bytes[n++] = (uint8_t)value;
    return hps_buf_append(buf, bytes, n);
}

static inline hps_status HPS_MUST_CHECK hps_wire_put_tag(struct hps_buf *buf, uint32_t number,
                                                         enum hps_wire_type type)
{
    return hps_wire_put_raw_varint(buf, (uint64_t)number << 3 | (uint64_t)type);
}

/* Appends a varint field. If `value` is 0, the default of protobuf, appends nothing. */
static inline hps_status HPS_MUST_CHECK hps_wire_put_uint(struct hps_buf *buf, uint32_t number,
                                                          uint64_t value)
{
    if (value == 0) {
        return HPS_OK;
    }
    hps_status status = hps_wire_put_tag(buf, number, HPS_WIRE_VARINT);
    return status != HPS_OK ? status : hps_wire_put_raw_varint(buf, value);
}

/* Appends tag and length of a length-delimited field. The caller appends its `size` bytes of
 * content next. */
static inline hps_status HPS_MUST_CHECK hps_wire_put_head(struct hps_buf *buf, uint32_t number,
                                                          size_t size)
{
    hps_status status = hps_wire_put_tag(buf, number, HPS_WIRE_BYTES);
    return status != HPS_OK ? status : hps_wire_put_raw_varint(buf, size);
}

/* Appends a string or bytes field. If it is empty, appends nothing. */
static inline hps_status HPS_MUST_CHECK hps_wire_put_bytes(struct hps_buf *buf, uint32_t number,
                                                           const void *data, size_t size)
{
    if (size == 0) {
        return HPS_OK;
    }
    hps_status status = hps_wire_put_head(buf, number, size);
    return status != HPS_OK ? status : hps_buf_append(buf, data, size);
}

static inline hps_status HPS_MUST_CHECK hps_wire_put_text(struct hps_buf *buf, uint32_t number,
                                                          const char *text)
{
    return text == NULL ? HPS_OK : hps_wire_put_bytes(buf, number, text, strlen(text));
}

/* Reads the fields of one message in order. The bytes are borrowed. */
struct hps_wire_reader {
    const uint8_t *data;
    size_t size;
    size_t offset; /* SIZE_MAX: the bytes are not a valid message */
};

struct hps_wire_field {
    uint32_t number;
    enum hps_wire_type type;
    uint64_t value;      /* set if the type is not HPS_WIRE_BYTES */
    const uint8_t *data; /* [size]; set if the type is HPS_WIRE_BYTES */
    size_t size;
};

/* Returns the next field. False: there is no further field, or the bytes are malformed. */
bool hps_wire_next(struct hps_wire_reader *reader, struct hps_wire_field *out_field);

/* Whether hps_wire_next has found malformed bytes. */
static inline bool hps_wire_broken(const struct hps_wire_reader *reader)
{
    return reader->offset == SIZE_MAX;
}

#endif

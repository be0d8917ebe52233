/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads and writes protobuf messages field by field, for messages that are large or frequent:
 * lookups and their replies. Readers never read past the end of the bytes. Writers require enough
 * space, which the caller computes beforehand. Any thread.
 */
#ifndef HPS_SERVER_RPC_WIRE_H
#define HPS_SERVER_RPC_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/assert.h"
#include "base/status.h"

enum wire { WIRE_VARINT = 0, WIRE_I64 = 1, WIRE_LEN = 2, WIRE_I32 = 5 };

/* ---- reading --------------------------------------------------------------------------------- */

/* The bytes of a message that are not read yet. */
struct cursor {
    const uint8_t *at;
    const uint8_t *end;
};

struct field {
    uint32_t number;
    uint32_t wire;
    uint64_t value;      /* value of a WIRE_VARINT field; else 0 */
    const uint8_t *data; /* [size] value of a field of another wire type */
    size_t size;         /* 0 for WIRE_VARINT */
};

static inline size_t cursor_size(const struct cursor *in)
{
    return (size_t)(in->end - in->at);
}

static inline struct cursor field_bytes(const struct field *field)
{
    HPS_ASSERT(field->data != NULL || field->size == 0);
    return (struct cursor){.at = field->data, .end = field->data + field->size};
}

/* Read a varint of at most bytes_max bytes, and advance the cursor. False: malformed. */
static inline bool HPS_MUST_CHECK varint_read(struct cursor *in, unsigned bytes_max,
                                              uint64_t *out_value)
{
    uint64_t value = 0;

    for (unsigned i = 0; i < bytes_max && in->at < in->end; i++) {
        uint8_t byte = *in->at++;

        if (i == 9 && byte > 1) {
            return false;
        }
        value |= (uint64_t)(byte & 0x7f) << (7 * i);
        if ((byte & 0x80) == 0) {
            *out_value = value;
            return true;
        }
    }
    return false;
}

/* Read the field at the cursor, and advance the cursor. False: malformed. */
static inline bool HPS_MUST_CHECK field_read(struct cursor *in, struct field *out)
{
    uint64_t tag;
    uint64_t size;

    if (!varint_read(in, 5, &tag) || tag > UINT32_MAX || tag >> 3 == 0) {
        return false;
    }
    out->number = (uint32_t)(tag >> 3);
    out->wire = (uint32_t)(tag & 7);
    out->value = 0;
    switch (out->wire) {
    case WIRE_VARINT:
        out->data = in->at;
        out->size = 0;
        return varint_read(in, 10, &out->value);
    case WIRE_I64:
        size = 8;
        break;
    case WIRE_I32:
        size = 4;
        break;
    case WIRE_LEN:
        if (!varint_read(in, 5, &size)) {
            return false;
        }
        break;
    default:
        return false;
    }
    if (size > (uint64_t)(in->end - in->at)) {
        return false;
    }
    out->data = in->at;
    out->size = (size_t)size;
    in->at += size;
    return true;
}

/* ---- writing --------------------------------------------------------------------------------- */

enum {
    VARINT_BYTES_MAX = 10,
    PREFIX_BYTES_MAX = 1 + VARINT_BYTES_MAX /* tag and length, for field numbers below 16 */
};

/* The unused part of a buffer, to which fields are written. */
struct out {
    uint8_t *at;
    uint8_t *end;
};

static inline size_t varint_size(uint64_t value)
{
    return 1 + (size_t)(63 - __builtin_clzll(value | 1)) / 7;
}

static inline void put_varint(struct out *out, uint64_t value)
{
    HPS_ASSERT((size_t)(out->end - out->at) >= varint_size(value));
    while (value >= 0x80) {
        *out->at++ = (uint8_t)(value | 0x80);
        value >>= 7;
    }
    *out->at++ = (uint8_t)value;
}

static inline void put_tag(struct out *out, uint32_t field, enum wire wire)
{
    put_varint(out, (uint64_t)field << 3 | wire);
}

/* Writes an unsigned integer; nothing if it is 0. */
static inline void put_uint(struct out *out, uint32_t field, uint64_t value)
{
    if (value != 0) {
        put_tag(out, field, WIRE_VARINT);
        put_varint(out, value);
    }
}

/* Writes a bytes field; nothing if size is 0. */
static inline void put_bytes(struct out *out, uint32_t field, const void *data, size_t size)
{
    if (size == 0) {
        return;
    }
    put_tag(out, field, WIRE_LEN);
    put_varint(out, size);
    HPS_ASSERT((size_t)(out->end - out->at) >= size);
    memcpy(out->at, data, size);
    out->at += size;
}

/* Writes a string field; nothing if the text is NULL or empty. */
static inline void put_text(struct out *out, uint32_t field, const char *text)
{
    put_bytes(out, field, text, text == NULL ? 0 : strlen(text));
}

/* Writes the tag and the length of a nested message directly before it. The caller has left a gap
 * of PREFIX_BYTES_MAX bytes before `inner`, and has written the message from `inner` to out->at.
 * behind: number of further bytes of the message, which are not in this buffer. `field` must be
 * below 16. Returns the first byte of the tag. */
static inline uint8_t *put_prefix(const struct out *out, uint8_t *inner, uint32_t field,
                                  uint64_t behind)
{
    uint64_t size = (uint64_t)(out->at - inner) + behind;
    uint8_t *begin = inner - 1 - varint_size(size);
    struct out prefix = {.at = begin, .end = inner};

    HPS_ASSERT(out->at >= inner && field < 16);
    put_tag(&prefix, field, WIRE_LEN);
    put_varint(&prefix, size);
    HPS_ASSERT(prefix.at == inner);
    return begin;
}

#endif

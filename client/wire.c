/* SPDX-License-Identifier: Apache-2.0
 *
 * Bounded walk over the fields of a protobuf message. Any thread.
 */
#include "client/wire.h"

#include "base/assert.h"

static bool take_varint(struct hps_wire_reader *reader, uint64_t *out_value)
{
    HPS_ASSERT(reader->offset <= reader->size);
    uint64_t value = 0;

    for (unsigned shift = 0; shift < 64 && reader->offset < reader->size; shift += 7) {
        uint8_t byte = reader->data[reader->offset++];
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            *out_value = value;
            return shift < 63 || byte <= 1;
        }
    }
    return false;
}

static bool take_fixed(struct hps_wire_reader *reader, size_t size, uint64_t *out_value)
{
    HPS_ASSERT(size <= sizeof(*out_value) && reader->offset <= reader->size);
    if (reader->size - reader->offset < size) {
        return false;
    }
    *out_value = 0;
    for (size_t i = 0; i < size; i++) {
        *out_value |= (uint64_t)reader->data[reader->offset++] << (8 * i);
    }
    return true;
}

static bool take_field(struct hps_wire_reader *reader, struct hps_wire_field *field)
{
    uint64_t tag, size;

    if (!take_varint(reader, &tag) || tag >> 3 == 0 || tag >> 32 != 0) {
        return false;
    }
    field->number = (uint32_t)(tag >> 3);
    switch (tag & 7) {
    case HPS_WIRE_VARINT:
        field->type = HPS_WIRE_VARINT;
        return take_varint(reader, &field->value);
    case HPS_WIRE_I64:
        field->type = HPS_WIRE_I64;
        return take_fixed(reader, 8, &field->value);
    case HPS_WIRE_I32:
        field->type = HPS_WIRE_I32;
        return take_fixed(reader, 4, &field->value);
    case HPS_WIRE_BYTES:
        field->type = HPS_WIRE_BYTES;
        if (!take_varint(reader, &size) || size > reader->size - reader->offset) {
            return false;
        }
        field->data = reader->data + reader->offset;
        field->size = (size_t)size;
        reader->offset += (size_t)size;
        return true;
    default:
        return false; /* groups do not exist in proto3 */
    }
}

bool hps_wire_next(struct hps_wire_reader *reader, struct hps_wire_field *out_field)
{
    struct hps_wire_field field = {0};

    if (reader->offset >= reader->size) {
        return false;
    }
    if (!take_field(reader, &field)) {
        reader->offset = SIZE_MAX;
        return false;
    }
    *out_field = field;
    return true;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * One field of a protobuf message after the other, none beyond the bytes that there are; and the
 * words for what is wrong with a message. Any thread.
 */
#include "server/lookup/decode_internal.h"

#include <inttypes.h>

static bool read_varint(struct cursor *in, unsigned bytes_max, uint64_t *out_value)
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

bool decode_field(struct cursor *in, struct field *out)
{
    uint64_t tag;
    uint64_t size;

    if (!read_varint(in, 5, &tag) || tag > UINT32_MAX || tag >> 3 == 0) {
        return false;
    }
    out->number = (uint32_t)(tag >> 3);
    out->wire = (uint32_t)(tag & 7);
    out->value = 0;
    switch (out->wire) {
    case WIRE_VARINT:
        out->data = in->at;
        out->size = 0;
        return read_varint(in, 10, &out->value);
    case WIRE_I64:
        size = 8;
        break;
    case WIRE_I32:
        size = 4;
        break;
    case WIRE_LEN:
        if (!read_varint(in, 5, &size)) {
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

hps_status decode_malformed(const struct decoder *decoder, const char *message)
{
    return hps_error_set(decoder->err, HPS_INVALID, "malformed %s", message);
}

hps_status decode_too_many_fields(const struct decoder *decoder, const char *message)
{
    return hps_error_set(decoder->err, HPS_INVALID,
                         "%s: more than %d fields that are unknown, empty or set again", message,
                         FIELDS_MAX);
}

hps_status decode_check_enum(const struct decoder *decoder, const char *field, uint64_t value,
                             uint32_t last)
{
    if ((uint32_t)value > last) {
        return hps_error_set(decoder->err, HPS_INVALID, "%s: %" PRId32 " is not one of 0 to %u",
                             field, (int32_t)(uint32_t)value, last);
    }
    return HPS_OK;
}

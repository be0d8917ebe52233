/* SPDX-License-Identifier: Apache-2.0
 *
 * Where protobuf-c keeps the fields of a message, for who goes through them by its descriptor.
 */
#ifndef HPS_PROTO_FIELDS_H
#define HPS_PROTO_FIELDS_H

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>

/* Arrays, sub-messages and defaults are at offsets that descriptors name. */
static inline const void *hps_field_at(const ProtobufCMessage *message, unsigned offset)
{
    return (const char *)message + offset;
}

/* Of one value: an item of an array is as far behind the one before it. */
static inline size_t hps_field_value_size(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32:
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_FLOAT:
    case PROTOBUF_C_TYPE_ENUM:
        return 4;
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_DOUBLE:
        return 8;
    case PROTOBUF_C_TYPE_BOOL:
        return sizeof(protobuf_c_boolean);
    case PROTOBUF_C_TYPE_BYTES:
        return sizeof(ProtobufCBinaryData);
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE:
        break;
    }
    return sizeof(void *);
}

/* Not: of a choice another one, or a sub-message that is absent. */
static inline bool hps_field_is_set(const ProtobufCFieldDescriptor *field,
                                    const ProtobufCMessage *message)
{
    if ((field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) != 0) {
        return *(const uint32_t *)hps_field_at(message, field->quantifier_offset) == field->id;
    }
    return field->label == PROTOBUF_C_LABEL_REPEATED || field->type != PROTOBUF_C_TYPE_MESSAGE ||
           *(ProtobufCMessage *const *)hps_field_at(message, field->offset) != NULL;
}

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Access to the fields of any protobuf-c message through its descriptor. Any thread.
 */
#ifndef HPS_PROTO_FIELDS_H
#define HPS_PROTO_FIELDS_H

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>

/* The address in `message` at `offset`, which is an offset of a field descriptor. */
static inline const void *hps_field_at(const ProtobufCMessage *message, unsigned offset)
{
    return (const char *)message + offset;
}

/* Size in bytes of one value of this type, which is also the distance between the items of a
 * repeated field. */
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

/* Whether the field has a value. False for a oneof field that is not set, and for an absent
 * sub-message. True for all other fields, also if they have the default value. */
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

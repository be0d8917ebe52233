/* SPDX-License-Identifier: Apache-2.0
 *
 * From descriptors to JSON. See proto/json.h.
 */
#include "proto/json.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/json.h"
#include "proto/fields.h"

enum { DEPTH_MAX = 16 };

static void json_base64(struct hps_buf *buf, const uint8_t *data, size_t size)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    hps_buf_put(buf, "\"");
    for (size_t i = 0; i < size; i += 3) {
        size_t n = size - i < 3 ? size - i : 3;
        uint32_t word = (uint32_t)data[i] << 16;
        word |= n > 1 ? (uint32_t)data[i + 1] << 8 : 0;
        word |= n > 2 ? (uint32_t)data[i + 2] : 0;
        char out[4] = {digits[word >> 18], digits[word >> 12 & 63],
                       n > 1 ? digits[word >> 6 & 63] : '=', n > 2 ? digits[word & 63] : '='};
        hps_buf_put_bytes(buf, out, sizeof(out));
    }
    hps_buf_put(buf, "\"");
}

static void json_message(const ProtobufCMessage *message, struct hps_buf *buf, unsigned depth);

static void json_enum(const ProtobufCFieldDescriptor *field, int value, struct hps_buf *buf)
{
    const ProtobufCEnumValue *name = protobuf_c_enum_descriptor_get_value(
        (const ProtobufCEnumDescriptor *)field->descriptor, value);

    if (name == NULL) {
        hps_buf_putf(buf, "%d", value);
    } else {
        hps_json_text(buf, name->name, strlen(name->name));
    }
}

static void json_value(const ProtobufCFieldDescriptor *field, const void *value,
                       struct hps_buf *buf, unsigned depth)
{
    const char *text;
    const ProtobufCBinaryData *bytes = value;

    switch (field->type) {
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32:
        hps_buf_putf(buf, "%" PRId32, *(const int32_t *)value);
        return;
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
        hps_buf_putf(buf, "%" PRIu32, *(const uint32_t *)value);
        return;
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
        hps_buf_putf(buf, "%" PRId64, *(const int64_t *)value);
        return;
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
        hps_buf_putf(buf, "%" PRIu64, *(const uint64_t *)value);
        return;
    case PROTOBUF_C_TYPE_FLOAT:
        hps_json_float(buf, *(const float *)value);
        return;
    case PROTOBUF_C_TYPE_DOUBLE:
        if (!isfinite(*(const double *)value)) {
            break;
        }
        hps_buf_putf(buf, "%.17g", *(const double *)value);
        return;
    case PROTOBUF_C_TYPE_BOOL:
        hps_buf_put(buf, *(const protobuf_c_boolean *)value ? "true" : "false");
        return;
    case PROTOBUF_C_TYPE_ENUM:
        json_enum(field, *(const int *)value, buf);
        return;
    case PROTOBUF_C_TYPE_STRING:
        text = *(char *const *)value;
        hps_json_text(buf, text == NULL ? "" : text, text == NULL ? 0 : strlen(text));
        return;
    case PROTOBUF_C_TYPE_BYTES:
        json_base64(buf, bytes->data, bytes->len);
        return;
    case PROTOBUF_C_TYPE_MESSAGE:
        json_message(*(ProtobufCMessage *const *)value, buf, depth + 1);
        return;
    }
    hps_buf_put(buf, "null");
}

static void json_array(const ProtobufCFieldDescriptor *field, const ProtobufCMessage *message,
                       struct hps_buf *buf, unsigned depth)
{
    size_t n = *(const size_t *)hps_field_at(message, field->quantifier_offset);
    const char *items = *(char *const *)hps_field_at(message, field->offset);

    hps_buf_put(buf, "[");
    for (size_t i = 0; i < n && buf->status == HPS_OK; i++) {
        hps_buf_put(buf, i == 0 ? "" : ",");
        json_value(field, items + i * hps_field_value_size(field->type), buf, depth);
    }
    hps_buf_put(buf, "]");
}

/* protobuf-c stores a map as an array of messages with the fields `key` and `value`. protoc gives
 * the messages a name that ends in "Entry". */
static bool is_map(const ProtobufCFieldDescriptor *field)
{
    if (field->label != PROTOBUF_C_LABEL_REPEATED || field->type != PROTOBUF_C_TYPE_MESSAGE) {
        return false;
    }
    static const char end[] = "Entry";
    const ProtobufCMessageDescriptor *type = field->descriptor;
    size_t size = strlen(type->short_name);

    return type->n_fields == 2 && size >= sizeof(end) &&
           strcmp(type->short_name + size - strlen(end), end) == 0 &&
           strcmp(type->fields[0].name, "key") == 0 && strcmp(type->fields[1].name, "value") == 0 &&
           type->fields[0].type == PROTOBUF_C_TYPE_STRING;
}

static size_t n_items(const ProtobufCFieldDescriptor *field, const ProtobufCMessage *message)
{
    return *(const size_t *)hps_field_at(message, field->quantifier_offset);
}

static void json_map(const ProtobufCFieldDescriptor *field, const ProtobufCMessage *message,
                     struct hps_buf *buf, unsigned depth)
{
    const ProtobufCMessageDescriptor *type = field->descriptor;
    const ProtobufCMessage *const *entries =
        *(const ProtobufCMessage *const *const *)hps_field_at(message, field->offset);

    hps_buf_put(buf, "{");
    for (size_t i = 0; i < n_items(field, message) && buf->status == HPS_OK; i++) {
        hps_buf_put(buf, i == 0 ? "" : ",");
        json_value(&type->fields[0], hps_field_at(entries[i], type->fields[0].offset), buf, depth);
        hps_buf_put(buf, ":");
        json_value(&type->fields[1], hps_field_at(entries[i], type->fields[1].offset), buf, depth);
    }
    hps_buf_put(buf, "}");
}

static void json_field(const ProtobufCFieldDescriptor *field, const ProtobufCMessage *message,
                       struct hps_buf *buf, unsigned depth)
{
    if (is_map(field)) {
        json_map(field, message, buf, depth);
    } else if (field->label == PROTOBUF_C_LABEL_REPEATED) {
        json_array(field, message, buf, depth);
    } else {
        json_value(field, hps_field_at(message, field->offset), buf, depth);
    }
}

static void json_message(const ProtobufCMessage *message, struct hps_buf *buf, unsigned depth)
{
    const ProtobufCMessageDescriptor *type = message->descriptor;
    const char *separator = "{";

    if (depth > DEPTH_MAX) {
        buf->status = HPS_EXHAUSTED;
    }
    for (unsigned i = 0; i < type->n_fields && buf->status == HPS_OK; i++) {
        const ProtobufCFieldDescriptor *field = &type->fields[i];
        if (!hps_field_is_set(field, message) || (is_map(field) && n_items(field, message) == 0)) {
            continue;
        }
        hps_buf_putf(buf, "%s\"%s\":", separator, field->name);
        separator = ",";
        json_field(field, message, buf, depth);
    }
    hps_buf_put(buf, separator[0] == '{' ? "{}" : "}");
}

void hps_message_json(const ProtobufCMessage *message, struct hps_buf *buf)
{
    json_message(message, buf, 0);
}

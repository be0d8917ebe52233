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

static hps_status put(struct hps_buf *buf, const char *text)
{
    return hps_buf_append(buf, text, strlen(text));
}

static hps_status json_base64(struct hps_buf *buf, const uint8_t *data, size_t size)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    hps_status status = put(buf, "\"");

    for (size_t i = 0; i < size && status == HPS_OK; i += 3) {
        size_t n = size - i < 3 ? size - i : 3;
        uint32_t word = (uint32_t)data[i] << 16;
        word |= n > 1 ? (uint32_t)data[i + 1] << 8 : 0;
        word |= n > 2 ? (uint32_t)data[i + 2] : 0;
        char out[4] = {digits[word >> 18], digits[word >> 12 & 63],
                       n > 1 ? digits[word >> 6 & 63] : '=', n > 2 ? digits[word & 63] : '='};
        status = hps_buf_append(buf, out, sizeof(out));
    }
    return status != HPS_OK ? status : put(buf, "\"");
}

static hps_status json_message(const ProtobufCMessage *message, struct hps_buf *buf,
                               unsigned depth);

static hps_status json_enum(const ProtobufCFieldDescriptor *field, int value, struct hps_buf *buf)
{
    const ProtobufCEnumValue *name = protobuf_c_enum_descriptor_get_value(
        (const ProtobufCEnumDescriptor *)field->descriptor, value);

    return name == NULL ? hps_buf_printf(buf, "%d", value)
                        : hps_json_text(buf, name->name, strlen(name->name));
}

static hps_status json_value(const ProtobufCFieldDescriptor *field, const void *value,
                             struct hps_buf *buf, unsigned depth)
{
    const char *text;
    const ProtobufCBinaryData *bytes = value;

    switch (field->type) {
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32:
        return hps_buf_printf(buf, "%" PRId32, *(const int32_t *)value);
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
        return hps_buf_printf(buf, "%" PRIu32, *(const uint32_t *)value);
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
        return hps_buf_printf(buf, "%" PRId64, *(const int64_t *)value);
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
        return hps_buf_printf(buf, "%" PRIu64, *(const uint64_t *)value);
    case PROTOBUF_C_TYPE_FLOAT:
        return hps_json_float(buf, *(const float *)value);
    case PROTOBUF_C_TYPE_DOUBLE:
        return isfinite(*(const double *)value)
                   ? hps_buf_printf(buf, "%.17g", *(const double *)value)
                   : put(buf, "null");
    case PROTOBUF_C_TYPE_BOOL:
        return put(buf, *(const protobuf_c_boolean *)value ? "true" : "false");
    case PROTOBUF_C_TYPE_ENUM:
        return json_enum(field, *(const int *)value, buf);
    case PROTOBUF_C_TYPE_STRING:
        text = *(char *const *)value;
        return hps_json_text(buf, text == NULL ? "" : text, text == NULL ? 0 : strlen(text));
    case PROTOBUF_C_TYPE_BYTES:
        return json_base64(buf, bytes->data, bytes->len);
    case PROTOBUF_C_TYPE_MESSAGE:
        return json_message(*(ProtobufCMessage *const *)value, buf, depth + 1);
    }
    return put(buf, "null");
}

static hps_status json_array(const ProtobufCFieldDescriptor *field, const ProtobufCMessage *message,
                             struct hps_buf *buf, unsigned depth)
{
    size_t n = *(const size_t *)hps_field_at(message, field->quantifier_offset);
    const char *items = *(char *const *)hps_field_at(message, field->offset);
    hps_status status = put(buf, "[");

    for (size_t i = 0; i < n && status == HPS_OK; i++) {
        status = i == 0 ? HPS_OK : put(buf, ",");
        if (status == HPS_OK) {
            status = json_value(field, items + i * hps_field_value_size(field->type), buf, depth);
        }
    }
    return status != HPS_OK ? status : put(buf, "]");
}

/* A map is to protobuf-c an array of messages that have a key and a value, which protoc names so.
 */
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

static hps_status json_map(const ProtobufCFieldDescriptor *field, const ProtobufCMessage *message,
                           struct hps_buf *buf, unsigned depth)
{
    const ProtobufCMessageDescriptor *type = field->descriptor;
    const ProtobufCMessage *const *entries =
        *(const ProtobufCMessage *const *const *)hps_field_at(message, field->offset);
    hps_status status = put(buf, "{");

    for (size_t i = 0; i < n_items(field, message) && status == HPS_OK; i++) {
        const void *key = hps_field_at(entries[i], type->fields[0].offset);
        const void *value = hps_field_at(entries[i], type->fields[1].offset);
        status = i == 0 ? HPS_OK : put(buf, ",");
        if (status == HPS_OK) {
            status = json_value(&type->fields[0], key, buf, depth);
        }
        if (status == HPS_OK) {
            status = put(buf, ":");
        }
        if (status == HPS_OK) {
            status = json_value(&type->fields[1], value, buf, depth);
        }
    }
    return status != HPS_OK ? status : put(buf, "}");
}

static hps_status json_field(const ProtobufCFieldDescriptor *field, const ProtobufCMessage *message,
                             struct hps_buf *buf, unsigned depth)
{
    if (is_map(field)) {
        return json_map(field, message, buf, depth);
    }
    return field->label == PROTOBUF_C_LABEL_REPEATED
               ? json_array(field, message, buf, depth)
               : json_value(field, hps_field_at(message, field->offset), buf, depth);
}

static hps_status json_message(const ProtobufCMessage *message, struct hps_buf *buf, unsigned depth)
{
    const ProtobufCMessageDescriptor *type = message->descriptor;
    hps_status status = put(buf, "{");
    bool first = true;

    if (depth > DEPTH_MAX) {
        return HPS_EXHAUSTED;
    }
    for (unsigned i = 0; i < type->n_fields && status == HPS_OK; i++) {
        const ProtobufCFieldDescriptor *field = &type->fields[i];
        if (!hps_field_is_set(field, message) || (is_map(field) && n_items(field, message) == 0)) {
            continue;
        }
        status = hps_buf_printf(buf, "%s\"%s\":", first ? "" : ",", field->name);
        first = false;
        if (status == HPS_OK) {
            status = json_field(field, message, buf, depth);
        }
    }
    return status != HPS_OK ? status : put(buf, "}");
}

hps_status hps_message_json(const ProtobufCMessage *message, struct hps_buf *buf)
{
    return json_message(message, buf, 0);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * protobuf-c messages over the blocking client, and their JSON form by way of their descriptors.
 * Runs on the thread that calls it.
 */
#include "client/message.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/heap.h"
#include "base/text.h"
#include "base/utf8.h"

/* protobuf-c keeps arrays, sub-messages and defaults at offsets that its descriptors name. */
#define MEMBER(message, field_offset) ((const void *)((const char *)(message) + (field_offset)))

enum { REQUEST_BYTES_MAX = 32 << 20, DEPTH_MAX = 16 };

static void *message_alloc(void *ctx, size_t size)
{
    (void)ctx;
    return hps_alloc(size);
}

static void message_release(void *ctx, void *ptr)
{
    (void)ctx;
    hps_free(ptr);
}

static ProtobufCAllocator allocator = {message_alloc, message_release, NULL};

hps_status hps_message_encode(const ProtobufCMessage *message, struct hps_buf *buf,
                              struct hps_error *err)
{
    size_t size = protobuf_c_message_get_packed_size(message);
    hps_status status = hps_buf_reserve(buf, size);

    if (status != HPS_OK) {
        return hps_error_set(err, status, "%s of %zu bytes: %s", message->descriptor->name, size,
                             hps_status_text(status));
    }
    if (size > 0) {
        buf->size += protobuf_c_message_pack(message, buf->data + buf->size);
    }
    return HPS_OK;
}

hps_status hps_message_decode(const ProtobufCMessageDescriptor *type, const uint8_t *data,
                              size_t size, ProtobufCMessage **out_message, struct hps_error *err)
{
    static const uint8_t nothing[1] = {0};
    ProtobufCMessage *message =
        protobuf_c_message_unpack(type, &allocator, size, size == 0 ? nothing : data);

    if (message == NULL) {
        return hps_error_set(err, HPS_DATA_LOSS, "%zu bytes of the server are no %s", size,
                             type->name);
    }
    *out_message = message;
    return HPS_OK;
}

void hps_message_free(ProtobufCMessage *message)
{
    if (message != NULL) {
        protobuf_c_message_free_unpacked(message, &allocator);
    }
}

hps_status hps_client_call_message(struct hps_client *client, const char *path,
                                   const ProtobufCMessage *request,
                                   const ProtobufCMessageDescriptor *reply_type,
                                   uint64_t timeout_us, ProtobufCMessage **out_reply,
                                   struct hps_error *err)
{
    struct hps_buf encoded, reply;

    hps_buf_init(&encoded, REQUEST_BYTES_MAX);
    hps_buf_init(&reply, HPS_CLIENT_REPLY_BYTES_MAX);
    hps_status status = hps_message_encode(request, &encoded, err);
    if (status == HPS_OK) {
        status = hps_client_call(client, path, encoded.data, encoded.size, timeout_us, &reply, err);
    }
    if (status == HPS_OK) {
        status = hps_message_decode(reply_type, reply.data, reply.size, out_reply, err);
    }
    hps_buf_fini(&reply);
    hps_buf_fini(&encoded);
    return status;
}

/* ---- fields ---------------------------------------------------------------------------------- */

static size_t value_size(ProtobufCType type)
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

static bool field_is_set(const ProtobufCFieldDescriptor *field, const ProtobufCMessage *message)
{
    if ((field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) != 0) {
        return *(const uint32_t *)MEMBER(message, field->quantifier_offset) == field->id;
    }
    return field->label == PROTOBUF_C_LABEL_REPEATED || field->type != PROTOBUF_C_TYPE_MESSAGE ||
           *(ProtobufCMessage *const *)MEMBER(message, field->offset) != NULL;
}

/* ---- strings that may be printed ------------------------------------------------------------- */

static hps_status plain_message(ProtobufCMessage *message, unsigned depth);

/* takes *text if it is replaced */
static hps_status plain_string(char **text)
{
    size_t size = *text != NULL ? strlen(*text) : 0;

    if (hps_text_is_plain(*text, size)) {
        return HPS_OK; /* as are the defaults, which are nobody's to free */
    }
    char *shown = hps_alloc(HPS_TEXT_GROWTH * size + 1);
    if (shown == NULL) {
        return HPS_NO_MEMORY;
    }
    (void)hps_text_plain(*text, size, shown, HPS_TEXT_GROWTH * size + 1);
    hps_free(*text);
    *text = shown;
    return HPS_OK;
}

static hps_status plain_field(const ProtobufCFieldDescriptor *field, ProtobufCMessage *message,
                              unsigned depth)
{
    char *values = (char *)message + field->offset;
    size_t n = 1;
    hps_status status = HPS_OK;

    if (field->label == PROTOBUF_C_LABEL_REPEATED) {
        n = *(const size_t *)MEMBER(message, field->quantifier_offset);
        values = *(char **)(void *)values;
    }
    for (size_t i = 0; i < n && status == HPS_OK; i++) {
        void *value = values + i * value_size(field->type);
        status = field->type == PROTOBUF_C_TYPE_STRING
                     ? plain_string(value)
                     : plain_message(*(ProtobufCMessage **)value, depth + 1);
    }
    return status;
}

static hps_status plain_message(ProtobufCMessage *message, unsigned depth)
{
    const ProtobufCMessageDescriptor *type = message->descriptor;
    hps_status status = HPS_OK;

    if (depth > DEPTH_MAX) {
        return HPS_EXHAUSTED;
    }
    for (unsigned i = 0; i < type->n_fields && status == HPS_OK; i++) {
        const ProtobufCFieldDescriptor *field = &type->fields[i];
        bool has_text =
            field->type == PROTOBUF_C_TYPE_STRING || field->type == PROTOBUF_C_TYPE_MESSAGE;
        if (has_text && field_is_set(field, message)) {
            status = plain_field(field, message, depth);
        }
    }
    return status;
}

hps_status hps_message_plain(ProtobufCMessage *message)
{
    return plain_message(message, 0);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static hps_status put(struct hps_buf *buf, const char *text)
{
    return hps_buf_append(buf, text, strlen(text));
}

hps_status hps_json_text(struct hps_buf *buf, const char *text, size_t size)
{
    hps_status status = put(buf, "\"");

    while (size > 0 && status == HPS_OK) {
        uint32_t point;
        size_t length = hps_utf8_decode(text, size, &point);
        if (length == 0) {
            status = put(buf, "\xEF\xBF\xBD");
            length = 1;
        } else if (!hps_text_point_is_plain(point)) {
            char escape[HPS_TEXT_ESCAPE_BYTES];
            status = hps_buf_append(buf, escape, hps_text_escape(point, escape));
        } else if (point == '"' || point == '\\') {
            status = hps_buf_printf(buf, "\\%c", (char)point);
        } else {
            status = hps_buf_append(buf, text, length);
        }
        text += length;
        size -= length;
    }
    return status != HPS_OK ? status : put(buf, "\"");
}

hps_status hps_json_float(struct hps_buf *buf, float value)
{
    return isfinite(value) ? hps_buf_printf(buf, "%.9g", (double)value) : put(buf, "null");
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
    size_t n = *(const size_t *)MEMBER(message, field->quantifier_offset);
    const char *items = *(char *const *)MEMBER(message, field->offset);
    hps_status status = put(buf, "[");

    for (size_t i = 0; i < n && status == HPS_OK; i++) {
        status = i == 0 ? HPS_OK : put(buf, ",");
        if (status == HPS_OK) {
            status = json_value(field, items + i * value_size(field->type), buf, depth);
        }
    }
    return status != HPS_OK ? status : put(buf, "]");
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
        if (!field_is_set(field, message)) {
            continue;
        }
        status = hps_buf_printf(buf, "%s\"%s\":", first ? "" : ",", field->name);
        first = false;
        if (status == HPS_OK) {
            status = field->label == PROTOBUF_C_LABEL_REPEATED
                         ? json_array(field, message, buf, depth)
                         : json_value(field, MEMBER(message, field->offset), buf, depth);
        }
    }
    return status != HPS_OK ? status : put(buf, "}");
}

hps_status hps_message_json(const ProtobufCMessage *message, struct hps_buf *buf)
{
    return json_message(message, buf, 0);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * protobuf-c messages over the blocking client. Their strings are found through their descriptors.
 * Runs on the calling thread.
 */
#include "client/message.h"

#include <string.h>

#include "base/heap.h"
#include "base/text.h"
#include "proto/fields.h"

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
        return hps_error_set(err, HPS_DATA_LOSS, "the server sent %zu bytes that are not a %s",
                             size, type->name);
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

/* ---- printable strings ----------------------------------------------------------------------- */

static hps_status plain_message(ProtobufCMessage *message, unsigned depth);

/* takes *text if it replaces it */
static hps_status plain_string(char **text)
{
    size_t size = *text != NULL ? strlen(*text) : 0;

    if (hps_text_is_plain(*text, size)) {
        return HPS_OK; /* defaults too: they must not be freed */
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
        n = *(const size_t *)hps_field_at(message, field->quantifier_offset);
        values = *(char **)(void *)values;
    }
    for (size_t i = 0; i < n && status == HPS_OK; i++) {
        void *value = values + i * hps_field_value_size(field->type);
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
        if (has_text && hps_field_is_set(field, message)) {
            status = plain_field(field, message, depth);
        }
    }
    return status;
}

hps_status hps_message_plain(ProtobufCMessage *message)
{
    return plain_message(message, 0);
}

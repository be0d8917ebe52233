/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls with protobuf-c messages, and messages as JSON. Same thread rules as client/client.h.
 */
#ifndef HPS_CLIENT_MESSAGE_H
#define HPS_CLIENT_MESSAGE_H

#include <protobuf-c/protobuf-c.h>

#include "client/client.h"

/* hps_client_call with messages.
 *
 * owner   *out_reply is the caller's: hps_message_free
 * error   as hps_client_call; DATA_LOSS: the reply is no such message
 */
hps_status hps_client_call_message(struct hps_client *client, const char *path,
                                   const ProtobufCMessage *request,
                                   const ProtobufCMessageDescriptor *reply_type,
                                   uint64_t timeout_us, ProtobufCMessage **out_reply,
                                   struct hps_error *err) HPS_MUST_CHECK;
/* Append the encoded message. */
hps_status hps_message_encode(const ProtobufCMessage *message, struct hps_buf *buf,
                              struct hps_error *err) HPS_MUST_CHECK;
/* owner *out_message is the caller's */
hps_status hps_message_decode(const ProtobufCMessageDescriptor *type, const uint8_t *data,
                              size_t size, ProtobufCMessage **out_message, struct hps_error *err)
    HPS_MUST_CHECK;
void hps_message_free(ProtobufCMessage *message); /* NULL is legal */

/* Make every string of a decoded message, of its sub-messages too, one that may be printed
 * (hps_text_plain). NO_MEMORY: some are as they were. */
hps_status hps_message_plain(ProtobufCMessage *message) HPS_MUST_CHECK;

/* Append the message as one line of JSON: every field by its name in the .proto, defaults
 * included; 64-bit integers as numbers, enums by name, bytes in base64; sub-messages that are
 * not set are left out. */
hps_status hps_message_json(const ProtobufCMessage *message, struct hps_buf *buf) HPS_MUST_CHECK;

/* Append `text` as a JSON string, quotes included; what is not plain (base/text.h) is escaped,
 * bytes that are not UTF-8 become U+FFFD. */
hps_status hps_json_text(struct hps_buf *buf, const char *text, size_t size) HPS_MUST_CHECK;
/* Append a float32 so that it reads back the same; NaN and infinities are null. */
hps_status hps_json_float(struct hps_buf *buf, float value) HPS_MUST_CHECK;

#endif

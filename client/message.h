/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls of client/client.h with protobuf-c messages. A client belongs to one thread at a time.
 */
#ifndef HPS_CLIENT_MESSAGE_H
#define HPS_CLIENT_MESSAGE_H

#include <protobuf-c/protobuf-c.h>

#include "client/client.h"

/* Encodes `request`, calls hps_client_call and decodes the reply.
 *
 * owner   *out_reply: the caller, hps_message_free
 * error   the errors of hps_client_call; DATA_LOSS: the reply is not a message of `reply_type`
 */
hps_status hps_client_call_message(struct hps_client *client, const char *path,
                                   const ProtobufCMessage *request,
                                   const ProtobufCMessageDescriptor *reply_type,
                                   uint64_t timeout_us, ProtobufCMessage **out_reply,
                                   struct hps_error *err) HPS_MUST_CHECK;
/* Appends the encoded message to `buf`. */
hps_status hps_message_encode(const ProtobufCMessage *message, struct hps_buf *buf,
                              struct hps_error *err) HPS_MUST_CHECK;
/* Decodes a message of `type`.
 *
 * owner   *out_message: the caller, hps_message_free
 */
hps_status hps_message_decode(const ProtobufCMessageDescriptor *type, const uint8_t *data,
                              size_t size, ProtobufCMessage **out_message, struct hps_error *err)
    HPS_MUST_CHECK;
void hps_message_free(ProtobufCMessage *message); /* NULL has no effect */

/* Makes every string of a decoded message and its sub-messages printable (hps_text_plain).
 * NO_MEMORY: some strings are unchanged. */
hps_status hps_message_plain(ProtobufCMessage *message) HPS_MUST_CHECK;

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Prints protobuf-c messages as JSON. Any thread.
 */
#ifndef HPS_PROTO_JSON_H
#define HPS_PROTO_JSON_H

#include <protobuf-c/protobuf-c.h>

#include "base/buf.h"

/* Appends the message to `buf` as one line of JSON. On failure, buf->status is not OK. Fields are
 * printed with their names in the .proto file, also if they have default values. Unset
 * sub-messages, unset oneof fields and empty maps are left out. 64-bit integers are numbers, enums
 * are names, bytes are base64, maps are objects. */
void hps_message_json(const ProtobufCMessage *message, struct hps_buf *buf);

#endif

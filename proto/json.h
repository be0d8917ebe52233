/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages as JSON. Any thread.
 */
#ifndef HPS_PROTO_JSON_H
#define HPS_PROTO_JSON_H

#include <protobuf-c/protobuf-c.h>

#include "base/buf.h"

/* Appends the message as one line of JSON. Every field has its name in the .proto file; defaults
 * are included. 64-bit integers are numbers, enums are names, bytes are base64, and maps are
 * objects. Absent sub-messages and empty maps are left out. */
void hps_message_json(const ProtobufCMessage *message, struct hps_buf *buf);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages as JSON. Any thread.
 */
#ifndef HPS_PROTO_JSON_H
#define HPS_PROTO_JSON_H

#include <protobuf-c/protobuf-c.h>

#include "base/buf.h"

/* Put the message as one line of JSON: every field by its name in the .proto, defaults
 * included; 64-bit integers as numbers, enums by name, bytes in base64, maps as objects;
 * sub-messages that are not set, and maps without entries, are left out. */
void hps_message_json(const ProtobufCMessage *message, struct hps_buf *buf);

#endif

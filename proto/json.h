/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages as JSON. Any thread.
 */
#ifndef HPS_PROTO_JSON_H
#define HPS_PROTO_JSON_H

#include <protobuf-c/protobuf-c.h>

#include "base/buf.h"

/* Append the message to `buf` as one line of JSON. It has every field by its name in the .proto,
 * with defaults, but neither unset sub-messages nor empty maps. 64-bit integers are numbers, enums
 * are names, bytes are base64, maps are objects. */
void hps_message_json(const ProtobufCMessage *message, struct hps_buf *buf);

#endif

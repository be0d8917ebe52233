/* SPDX-License-Identifier: Apache-2.0
 *
 * Unpacks and sends protobuf-c messages of services with small messages: all except lookups.
 * Unpacked messages are in an arena, whose limit bounds their memory. Any thread, unless stated
 * otherwise.
 */
#ifndef HPS_SERVER_RPC_MESSAGE_H
#define HPS_SERVER_RPC_MESSAGE_H

#include <protobuf-c/protobuf-c.h>

#include "base/arena.h"
#include "net/grpc.h"

/* Default limit on the bytes of a request message, both before and after it is inflated. The limit
 * is low, because every client may send them. */
enum { HPS_REQUEST_BYTES_MAX = 64 * 1024 };
/* Usual limit of the arena of a call, for its request and its reply. */
enum { HPS_MESSAGE_BYTES_MAX = 8 << 20 };
/* Unpack the message in data[size] into `arena`. NULL: the message is malformed, or the arena is
 * full. */
ProtobufCMessage *hps_message_unpack(const ProtobufCMessageDescriptor *type,
                                     struct hps_arena *arena, const uint8_t *data, size_t size);
/* As hps_message_unpack, but returns the error.
 * error   INVALID: the message is malformed; EXHAUSTED: the arena is full */
hps_status hps_message_read(const ProtobufCMessageDescriptor *type, struct hps_arena *arena,
                            const uint8_t *data, size_t size, ProtobufCMessage **out_message)
    HPS_MUST_CHECK;
/* Queue a copy of `message` for sending. If there is no memory, the call ends with
 * RESOURCE_EXHAUSTED. Loop thread of the call. */
void hps_message_send(struct hps_grpc_call *call, const ProtobufCMessage *message);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * protobuf-c messages of the small services (Admin, Health, Reflection): unpacking that takes a
 * bounded amount of memory, and sending. Unpacking: any thread; sending: the call's loop thread.
 */
#ifndef HPS_SERVER_RPC_MESSAGE_H
#define HPS_SERVER_RPC_MESSAGE_H

#include <protobuf-c/protobuf-c.h>

#include "base/arena.h"
#include "net/grpc.h"

/* Of a request, as it came and inflated: it is unpacked on the loop. */
enum { HPS_REQUEST_BYTES_MAX = 64 * 1024 };
/* A message of at most HPS_MESSAGE_BYTES_MAX decoded bytes in `arena`; NULL: malformed or too
 * large. */
enum { HPS_MESSAGE_BYTES_MAX = 8 << 20 };
ProtobufCMessage *hps_message_unpack(const ProtobufCMessageDescriptor *type,
                                     struct hps_arena *arena, const uint8_t *data, size_t size);
/* The same, with what was wrong. INVALID: malformed; EXHAUSTED: the arena gave no more. */
hps_status hps_message_read(const ProtobufCMessageDescriptor *type, struct hps_arena *arena,
                            const uint8_t *data, size_t size, ProtobufCMessage **out_message)
    HPS_MUST_CHECK;
/* Queue `message`; the call fails with RESOURCE_EXHAUSTED without memory. Loop thread. */
void hps_message_send(struct hps_grpc_call *call, const ProtobufCMessage *message);

#endif

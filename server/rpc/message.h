/* SPDX-License-Identifier: Apache-2.0
 *
 * protobuf-c messages of the small services (Admin, Health, Reflection): unpacking within a limit
 * of memory, and sending. Unpacking: any thread; sending: the call's loop thread.
 */
#ifndef HPS_SERVER_RPC_MESSAGE_H
#define HPS_SERVER_RPC_MESSAGE_H

#include <protobuf-c/protobuf-c.h>

#include "base/arena.h"
#include "net/grpc.h"

/* Limit of a request, compressed and inflated, because it is unpacked on the loop. */
enum { HPS_REQUEST_BYTES_MAX = 64 * 1024 };
/* Unpack a message of at most HPS_MESSAGE_BYTES_MAX decoded bytes into `arena`. NULL: malformed or
 * too large. */
enum { HPS_MESSAGE_BYTES_MAX = 8 << 20 };
ProtobufCMessage *hps_message_unpack(const ProtobufCMessageDescriptor *type,
                                     struct hps_arena *arena, const uint8_t *data, size_t size);
/* As hps_message_unpack, with the error. INVALID: malformed; EXHAUSTED: the arena has reached its
 * limit. */
hps_status hps_message_read(const ProtobufCMessageDescriptor *type, struct hps_arena *arena,
                            const uint8_t *data, size_t size, ProtobufCMessage **out_message)
    HPS_MUST_CHECK;
/* Queue `message`. Without memory the call fails with RESOURCE_EXHAUSTED. Loop thread. */
void hps_message_send(struct hps_grpc_call *call, const ProtobufCMessage *message);

#endif

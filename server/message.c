/* SPDX-License-Identifier: Apache-2.0
 *
 * Unpacking into an arena, so that a hostile message costs a bounded amount of memory, and sending.
 */
#include "server/message.h"

#include "base/heap.h"

static void *arena_alloc(void *ctx, size_t size)
{
    return hps_arena_alloc(ctx, size);
}

static void arena_free(void *ctx, void *ptr)
{
    (void)ctx;
    (void)ptr;
}

ProtobufCMessage *hps_message_unpack(const ProtobufCMessageDescriptor *type,
                                     struct hps_arena *arena, const uint8_t *data, size_t size)
{
    ProtobufCAllocator allocator = {arena_alloc, arena_free, arena};
    return protobuf_c_message_unpack(type, &allocator, size, data);
}

void hps_message_send(struct hps_grpc_call *call, const ProtobufCMessage *message)
{
    size_t size = protobuf_c_message_get_packed_size(message);
    uint8_t *bytes = hps_alloc(size);
    if (bytes == NULL) {
        hps_grpc_call_finish(call, hps_status_grpc_code(HPS_NO_MEMORY), "no memory for the answer");
        return;
    }
    protobuf_c_message_pack(message, bytes);
    hps_grpc_call_send_copy(call, bytes, size);
    hps_free(bytes);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Unpacks into an arena, so that a hostile message uses a bounded amount of memory, and sends.
 */
#include "server/rpc/message.h"

#include "base/assert.h"
#include "base/heap.h"

struct reading {
    struct hps_arena *arena;
    bool refused;
};

static void *arena_alloc(void *ctx, size_t size)
{
    struct reading *reading = ctx;
    void *memory = hps_arena_alloc(reading->arena, size);
    reading->refused = reading->refused || memory == NULL;
    return memory;
}

static void arena_free(void *ctx, void *ptr)
{
    (void)ctx;
    (void)ptr;
}

hps_status hps_message_read(const ProtobufCMessageDescriptor *type, struct hps_arena *arena,
                            const uint8_t *data, size_t size, ProtobufCMessage **out_message)
{
    struct reading reading = {.arena = arena};
    ProtobufCAllocator allocator = {arena_alloc, arena_free, &reading};
    ProtobufCMessage *message = protobuf_c_message_unpack(type, &allocator, size, data);
    HPS_ASSERT(message == NULL || message->descriptor == type);
    if (message == NULL) {
        return reading.refused ? HPS_EXHAUSTED : HPS_INVALID;
    }
    *out_message = message;
    return HPS_OK;
}

ProtobufCMessage *hps_message_unpack(const ProtobufCMessageDescriptor *type,
                                     struct hps_arena *arena, const uint8_t *data, size_t size)
{
    ProtobufCMessage *message = NULL;
    hps_status status = hps_message_read(type, arena, data, size, &message);
    return status == HPS_OK ? message : NULL;
}

void hps_message_send(struct hps_grpc_call *call, const ProtobufCMessage *message)
{
    size_t size = protobuf_c_message_get_packed_size(message);
    uint8_t *bytes = hps_alloc(size);
    if (bytes == NULL) {
        hps_grpc_call_finish(call, hps_status_grpc_code(HPS_NO_MEMORY), "no memory for the answer");
        return;
    }
    size_t packed = protobuf_c_message_pack(message, bytes);
    HPS_ASSERT(packed == size);
    hps_grpc_call_send_copy(call, bytes, size);
    hps_free(bytes);
}

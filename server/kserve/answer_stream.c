/* SPDX-License-Identifier: Apache-2.0
 *
 * Encodes ModelStreamInferResponse: a reply, or an error. One thread at a time.
 */
#include "server/kserve/infer_internal.h"
#include "server/rpc/wire.h"

/* Field numbers of grpc_service.proto. */
enum { STREAM_ERROR_MESSAGE = 1, STREAM_INFER_RESPONSE };
enum { RESPONSE_ID = 3, RESPONSE_PARAMETERS };
enum { ENTRY_KEY = 1, ENTRY_VALUE };
enum { TEXT_MAX = 1024 };

/* A request has one response, so each response is the final one. */
static void put_final(struct out *out)
{
    static const uint8_t yes[] = {1 << 3 | WIRE_VARINT, 1}; /* InferParameter.bool_param */
    uint8_t scratch[KSERVE_STREAM_PREFIX_BYTES];
    struct out entry = {.at = scratch, .end = scratch + sizeof(scratch)};

    put_text(&entry, ENTRY_KEY, "triton_final_response");
    put_bytes(&entry, ENTRY_VALUE, yes, sizeof(yes));
    put_bytes(out, RESPONSE_PARAMETERS, scratch, (size_t)(entry.at - scratch));
}

hps_status kserve_stream_wrap(const struct hps_encoded *response, struct hps_block_pool *pool,
                              struct hps_arena *arena, struct hps_encoded *out)
{
    unsigned n = response->n_slices;
    struct hps_slice *slices = hps_arena_alloc(arena, (n + (size_t)1) * sizeof(*slices));

    if (slices == NULL) {
        return HPS_EXHAUSTED;
    }
    struct hps_block *block = hps_block_new(pool, KSERVE_STREAM_PREFIX_BYTES);
    if (block == NULL) {
        return HPS_NO_MEMORY;
    }
    uint8_t parameter[KSERVE_STREAM_PREFIX_BYTES];
    struct out final = {.at = parameter, .end = parameter + sizeof(parameter)};
    struct out prefix = {.at = block->data, .end = block->data + KSERVE_STREAM_PREFIX_BYTES};
    put_final(&final);
    put_tag(&prefix, STREAM_INFER_RESPONSE, WIRE_LEN);
    put_varint(&prefix, response->size + (size_t)(final.at - parameter));
    memcpy(prefix.at, parameter, (size_t)(final.at - parameter));
    prefix.at += final.at - parameter;
    size_t size = (size_t)(prefix.at - block->data);
    slices[0] = (struct hps_slice){.block = block, .data = block->data, .size = size};
    memcpy(slices + 1, response->slices, n * sizeof(*slices));
    *out = (struct hps_encoded){.slices = slices, .n_slices = n + 1, .size = response->size + size};
    return HPS_OK;
}

size_t kserve_stream_error(struct kserve_text id, const char *text,
                           uint8_t out[KSERVE_STREAM_ERROR_BYTES_MAX])
{
    uint8_t response[KSERVE_STREAM_ID_BYTES_MAX + PREFIX_BYTES_MAX];
    struct out inner = {.at = response, .end = response + sizeof(response)};
    struct out at = {.at = out, .end = out + KSERVE_STREAM_ERROR_BYTES_MAX};
    size_t size = strlen(text);

    HPS_ASSERT(id.size <= KSERVE_STREAM_ID_BYTES_MAX);
    put_bytes(&inner, RESPONSE_ID, id.at, id.size);
    put_bytes(&at, STREAM_ERROR_MESSAGE, text, size < TEXT_MAX ? size : TEXT_MAX);
    put_bytes(&at, STREAM_INFER_RESPONSE, response, (size_t)(inner.at - response));
    return (size_t)(at.at - out);
}

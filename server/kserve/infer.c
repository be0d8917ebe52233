/* SPDX-License-Identifier: Apache-2.0
 *
 * ModelInfer and ModelStreamInfer over gRPC as front ends of the lookup service.
 */
#include <inttypes.h>
#include <string.h>

#include "base/utf8.h"
#include "server/access/access.h"
#include "server/kserve/infer_internal.h"

/* The data of a request until its reply. */
struct hps_lookup_asked {
    struct kserve_answer answer;
};

/* ---- every transport ------------------------------------------------------------------------- */

/* Size of the id, cut before invalid UTF-8 and at the limit. Triton's clients end the stream for an
 * id that is not UTF-8. */
static size_t id_size(struct kserve_text id)
{
    size_t size = 0;
    size_t length;
    uint32_t point;

    while ((length = hps_utf8_decode(id.at + size, id.size - size, &point)) > 0 &&
           size + length <= KSERVE_STREAM_ID_BYTES_MAX) {
        size += length;
    }
    return size;
}

/* Keeps the first KSERVE_STREAM_ID_BYTES_MAX bytes of the id. NULL: no memory. */
static struct hps_lookup_asked *asked_new(struct kserve_text id, struct hps_arena *arena)
{
    struct hps_lookup_asked *asked = hps_arena_calloc(arena, 1, sizeof(*asked));
    size_t size = id.size == 0 ? 0 : id_size(id);
    char *copy = hps_arena_alloc(arena, size + 1);

    if (asked == NULL || copy == NULL) {
        return NULL;
    }
    if (size > 0) {
        memcpy(copy, id.at, size);
    }
    asked->answer.id = (struct kserve_text){copy, size};
    return asked;
}

hps_status kserve_keep(hps_status status, const struct kserve_infer *infer,
                       const struct hps_decode_limits *limits, struct hps_arena *arena,
                       struct hps_lookup_request *out_request, struct hps_lookup_asked **out_asked,
                       struct hps_error *err)
{
    struct hps_lookup_asked *asked = asked_new(infer->id, arena);

    if (asked == NULL) {
        return hps_error_set(err, HPS_EXHAUSTED, "no memory for a request");
    }
    *out_asked = asked;
    if (status == HPS_OK) {
        status = kserve_view(infer, limits, arena, out_request, &asked->answer, err);
    }
    if (status != HPS_OK) {
        kserve_view_names(infer, out_request);
    }
    return status;
}

const struct kserve_answer *kserve_answer_of(const struct hps_lookup_asked *asked)
{
    return &asked->answer;
}

hps_status kserve_front_check_answer(const struct hps_lookup_asked *asked,
                                     const struct hps_lookup *lookup, struct hps_error *err)
{
    uint64_t bytes = kserve_samples_bytes(&asked->answer, lookup);

    if (bytes <= KSERVE_SAMPLES_BYTES_MAX) {
        return HPS_OK;
    }
    return hps_error_set(err, HPS_INVALID,
                         "input 'NUMKEYS': its %u samples make an answer of %" PRIu64
                         " bytes, limit is %" PRIu64 "; send fewer samples, or one row of NUMKEYS",
                         asked->answer.n_samples, bytes, KSERVE_SAMPLES_BYTES_MAX);
}

/* Uses Triton's error texts, for which clients look. An input that names no table of the model is
 * INVALID. */
void kserve_front_not_found(const struct hps_lookup_request *request,
                            enum hps_lookup_missing missing, struct hps_error *err)
{
    const struct kserve_text model = {request->model, request->model_size};
    const struct kserve_version version = {.number = request->version,
                                           .label = {request->label, request->label_size}};

    if (missing == HPS_LOOKUP_NO_TABLE) {
        err->status = request->queries[0].table_size > 0 ? HPS_INVALID : err->status;
    } else {
        kserve_say_not_found(model, missing == HPS_LOOKUP_NO_VERSION ? &version : NULL, err);
    }
}

/* ---- gRPC ------------------------------------------------------------------------------------ */

static hps_status decode(const struct hps_grpc_call *call, const uint8_t *data, size_t size,
                         const struct hps_decode_limits *limits, struct hps_arena *arena,
                         struct hps_lookup_request *out_request,
                         struct hps_lookup_asked **out_asked, struct hps_error *err)
{
    struct kserve_infer infer;
    hps_status status = kserve_infer_grpc(data, size, limits, arena, &infer, err);

    (void)call;
    return kserve_keep(status, &infer, limits, arena, out_request, out_asked, err);
}

static uint64_t bytes_max(const struct hps_lookup_asked *asked, const struct hps_lookup *lookup)
{
    return kserve_answer_grpc_bytes_max(&asked->answer, lookup);
}

static hps_status encode(const struct hps_lookup_asked *asked, const struct hps_lookup *lookup,
                         const struct hps_encode_explain *explain, struct hps_block *rows,
                         struct hps_block_pool *pool, struct hps_arena *arena,
                         struct hps_encoded *out_encoded, struct hps_error *err)
{
    (void)explain;
    (void)err;
    return kserve_answer_grpc(&asked->answer, lookup, rows, pool, arena, out_encoded);
}

static const struct hps_lookup_front front = {.positions = KSERVE_NUMKEYS,
                                              .decode = decode,
                                              .check_answer = kserve_front_check_answer,
                                              .not_found = kserve_front_not_found,
                                              .bytes_max = bytes_max,
                                              .encode = encode};

static void on_infer(struct hps_grpc_call *call, const struct hps_grpc_packed *packed)
{
    hps_lookup_call_packed(hps_grpc_call_ctx(call), &front, call, packed);
}

/* ---- streams --------------------------------------------------------------------------------- */

static uint64_t stream_bytes_max(const struct hps_lookup_asked *asked,
                                 const struct hps_lookup *lookup)
{
    return KSERVE_STREAM_PREFIX_BYTES + bytes_max(asked, lookup);
}

static hps_status stream_encode(const struct hps_lookup_asked *asked,
                                const struct hps_lookup *lookup,
                                const struct hps_encode_explain *explain, struct hps_block *rows,
                                struct hps_block_pool *pool, struct hps_arena *arena,
                                struct hps_encoded *out_encoded, struct hps_error *err)
{
    struct hps_encoded encoded;
    hps_status status = encode(asked, lookup, explain, rows, pool, arena, &encoded, err);

    if (status != HPS_OK) {
        return status;
    }
    status = kserve_stream_wrap(&encoded, pool, arena, out_encoded);
    if (status != HPS_OK) {
        hps_encoded_release(&encoded);
    }
    return status;
}

static struct hps_lookup_asked *stream_name(const uint8_t *data, size_t size,
                                            struct hps_arena *arena)
{
    struct kserve_infer infer = {0};

    kserve_infer_grpc_names(data, size, &infer);
    return asked_new(infer.id, arena);
}

static void stream_tell(struct hps_grpc_call *call, const struct hps_lookup_asked *asked,
                        const struct hps_error *err)
{
    static const struct kserve_text none = {NULL, 0};
    uint8_t message[KSERVE_STREAM_ERROR_BYTES_MAX];
    size_t size = kserve_stream_error(asked == NULL ? none : asked->answer.id, err->text, message);

    hps_grpc_call_send_copy(call, message, size);
}

static const struct hps_lookup_front stream_front = {.positions = KSERVE_NUMKEYS,
                                                     .decode = decode,
                                                     .name = stream_name,
                                                     .check_answer = kserve_front_check_answer,
                                                     .not_found = kserve_front_not_found,
                                                     .bytes_max = stream_bytes_max,
                                                     .encode = stream_encode,
                                                     .tell = stream_tell};

static void on_stream_infer(struct hps_grpc_call *call, const struct hps_grpc_packed *packed)
{
    hps_lookup_stream_packed(hps_grpc_call_ctx(call), &stream_front, call, packed);
}

/* ---- the methods ----------------------------------------------------------------------------- */

static const struct hps_grpc_method methods[] = {
    {.path = "/inference.GRPCInferenceService/ModelInfer",
     .roles = HPS_ROLE_LOOKUP,
     .on_packed = on_infer,
     .on_close = hps_lookup_call_closed,
     .on_undelivered = hps_lookup_call_undelivered},
    {.path = "/inference.GRPCInferenceService/ModelStreamInfer",
     .roles = HPS_ROLE_LOOKUP,
     .client_streaming = true,
     .on_packed = on_stream_infer,
     .on_half_close = hps_lookup_stream_half_close,
     .on_close = hps_lookup_stream_closed,
     .on_undelivered = hps_lookup_call_undelivered,
     .on_drained = hps_lookup_stream_drained},
};

struct hps_grpc_service hps_kserve_infer_grpc(struct hps_lookup_service *lookup)
{
    return (struct hps_grpc_service){.name = "inference.GRPCInferenceService",
                                     .methods = methods,
                                     .n_methods = sizeof(methods) / sizeof(methods[0]),
                                     .ctx = lookup};
}

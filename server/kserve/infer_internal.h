/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the front ends of ModelInfer: infer.c (gRPC), infer_rest.c (HTTP), answer_stream.c
 * (messages of ModelStreamInfer). Threads: see server/lookup/front.h.
 */
#ifndef HPS_SERVER_KSERVE_INFER_INTERNAL_H
#define HPS_SERVER_KSERVE_INFER_INTERNAL_H

#include "server/kserve/infer.h"
#include "server/kserve/infer_service.h"
#include "server/lookup/front.h"

/* The last step of decoding a request. status: the result of kserve_infer_grpc or
 * kserve_infer_http. If `status` is OK, sets *out_request to the lookup, and keeps the data for the
 * reply in *out_asked. After an error, *out_request has only model, version and label, and
 * *out_asked only the id. If the arena has no space for the id, *out_request and *out_asked stay
 * unchanged.
 * error   EXHAUSTED: the arena has no space for the id; else `status` if it is not OK; else as
 *         kserve_view */
hps_status kserve_keep(hps_status status, const struct kserve_infer *infer,
                       const struct hps_decode_limits *limits, struct hps_arena *arena,
                       struct hps_lookup_request *out_request, struct hps_lookup_asked **out_asked,
                       struct hps_error *err) HPS_MUST_CHECK;
/* The data for the reply that kserve_keep has kept. */
const struct kserve_answer *kserve_answer_of(const struct hps_lookup_asked *asked);

/* `check_answer` of struct hps_lookup_front, for gRPC and HTTP.
 * error   INVALID: a reply with several samples exceeds KSERVE_SAMPLES_BYTES_MAX */
hps_status kserve_front_check_answer(const struct hps_lookup_asked *asked,
                                     const struct hps_lookup *lookup, struct hps_error *err)
    HPS_MUST_CHECK;
/* `not_found` of struct hps_lookup_front, for gRPC and HTTP. */
void kserve_front_not_found(const struct hps_lookup_request *request,
                            enum hps_lookup_missing missing, struct hps_error *err);

/* ---- answer_stream.c ------------------------------------------------------------------------- */

enum {
    KSERVE_STREAM_PREFIX_BYTES = 48,
    KSERVE_STREAM_ERROR_BYTES_MAX = 2048,
    KSERVE_STREAM_ID_BYTES_MAX = 512
};

/* Wraps an encoded ModelInferResponse in a ModelStreamInferResponse: adds a slice before the slices
 * of the response. Sets the response parameter triton_final_response to true, which ends the read
 * loop of Triton's clients.
 *
 * owner   the references of `response` move to *out; after an error they stay in `response`
 * error   NO_MEMORY; EXHAUSTED: the arena is full */
hps_status kserve_stream_wrap(const struct hps_encoded *response, struct hps_block_pool *pool,
                              struct hps_arena *arena, struct hps_encoded *out) HPS_MUST_CHECK;
/* Writes a ModelStreamInferResponse with an error text and the id of the request into `out`. The id
 * must have at most KSERVE_STREAM_ID_BYTES_MAX bytes; a long text is cut. Returns the number of
 * bytes written. */
size_t kserve_stream_error(struct kserve_text id, const char *text,
                           uint8_t out[KSERVE_STREAM_ERROR_BYTES_MAX]);

#endif

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

/* Makes the lookup of a decoded request if `status` is OK, and keeps the data for its reply. On
 * failure *out_request has model and version, and *out_asked has the id. Returns `status`, or an
 * error of kserve_view. */
hps_status kserve_keep(hps_status status, const struct kserve_infer *infer,
                       const struct hps_decode_limits *limits, struct hps_arena *arena,
                       struct hps_lookup_request *out_request, struct hps_lookup_asked **out_asked,
                       struct hps_error *err) HPS_MUST_CHECK;
const struct kserve_answer *kserve_answer_of(const struct hps_lookup_asked *asked);

/* `check_answer` of struct hps_lookup_front, for each transport.
 * error   INVALID: the rows of several samples exceed KSERVE_SAMPLES_BYTES_MAX */
hps_status kserve_front_check_answer(const struct hps_lookup_asked *asked,
                                     const struct hps_lookup *lookup, struct hps_error *err)
    HPS_MUST_CHECK;
/* `not_found` of struct hps_lookup_front, for each transport. */
void kserve_front_not_found(const struct hps_lookup_request *request,
                            enum hps_lookup_missing missing, struct hps_error *err);

/* ---- answer_stream.c ------------------------------------------------------------------------- */

enum {
    KSERVE_STREAM_PREFIX_BYTES = 48,
    KSERVE_STREAM_ERROR_BYTES_MAX = 2048,
    KSERVE_STREAM_ID_BYTES_MAX = 512
};

/* Wraps a ModelInferResponse as a ModelStreamInferResponse: one more slice, then its slices. Adds
 * the parameter triton_final_response, true, which ends the read loop of Triton's clients.
 *
 * owner   the references of `response` move to *out; on failure they stay
 * error   NO_MEMORY; EXHAUSTED: the arena is full */
hps_status kserve_stream_wrap(const struct hps_encoded *response, struct hps_block_pool *pool,
                              struct hps_arena *arena, struct hps_encoded *out) HPS_MUST_CHECK;
/* Writes a ModelStreamInferResponse with an error and the id of the request, which has at most
 * KSERVE_STREAM_ID_BYTES_MAX bytes. A long text is cut. Returns the size. */
size_t kserve_stream_error(struct kserve_text id, const char *text,
                           uint8_t out[KSERVE_STREAM_ERROR_BYTES_MAX]);

#endif

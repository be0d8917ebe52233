/* SPDX-License-Identifier: Apache-2.0
 *
 * What the front ends of ModelInfer share: infer.c (gRPC), infer_rest.c (HTTP), answer_stream.c
 * (the messages of ModelStreamInfer). Threads: as server/lookup/front.h says of each.
 */
#ifndef HPS_SERVER_KSERVE_INFER_INTERNAL_H
#define HPS_SERVER_KSERVE_INFER_INTERNAL_H

#include "server/kserve/infer.h"
#include "server/kserve/infer_service.h"
#include "server/lookup/front.h"

/* Make the lookup of a decoded request (`status` OK), and keep what the answer needs. On failure
 * *out_request has model and version, and *out_asked has the id. Errors: `status`, kserve_view. */
hps_status kserve_keep(hps_status status, const struct kserve_infer *infer,
                       const struct hps_decode_limits *limits, struct hps_arena *arena,
                       struct hps_lookup_request *out_request, struct hps_lookup_asked **out_asked,
                       struct hps_error *err) HPS_MUST_CHECK;
const struct kserve_answer *kserve_answer_of(const struct hps_lookup_asked *asked);

/* For every transport: `check_answer` of struct hps_lookup_front.
 * error   INVALID: rows of several samples are more than KSERVE_SAMPLES_BYTES_MAX */
hps_status kserve_front_check_answer(const struct hps_lookup_asked *asked,
                                     const struct hps_lookup *lookup, struct hps_error *err)
    HPS_MUST_CHECK;
/* For every transport: `not_found` of struct hps_lookup_front. */
void kserve_front_not_found(const struct hps_lookup_request *request,
                            enum hps_lookup_missing missing, struct hps_error *err);

/* ---- answer_stream.c ------------------------------------------------------------------------- */

enum {
    KSERVE_STREAM_PREFIX_BYTES = 48,
    KSERVE_STREAM_ERROR_BYTES_MAX = 2048,
    KSERVE_STREAM_ID_BYTES_MAX = 512
};

/* A ModelInferResponse as a ModelStreamInferResponse: one more slice, then its slices. Adds the
 * parameter triton_final_response, true, which ends the read loop of stock clients.
 *
 * owner   what `response` refers to goes on to *out; on failure it stays
 * error   NO_MEMORY, EXHAUSTED (arena)
 */
hps_status kserve_stream_wrap(const struct hps_encoded *response, struct hps_block_pool *pool,
                              struct hps_arena *arena, struct hps_encoded *out) HPS_MUST_CHECK;
/* A ModelStreamInferResponse with an error and the id of the request, at most
 * KSERVE_STREAM_ID_BYTES_MAX bytes. A long text is cut. Returns its size. */
size_t kserve_stream_error(struct kserve_text id, const char *text,
                           uint8_t out[KSERVE_STREAM_ERROR_BYTES_MAX]);

#endif

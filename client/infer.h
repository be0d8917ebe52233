/* SPDX-License-Identifier: Apache-2.0
 *
 * Look-ups as bytes of KServe v2, in the view that HPS had of a model: KEYS and NUMKEYS of all
 * tables by their position, one flat OUTPUT0. Pure functions. Any thread.
 */
#ifndef HPS_CLIENT_INFER_H
#define HPS_CLIENT_INFER_H

#include "client/lookup.h"

#define HPS_CLIENT_INFER_PATH "/inference.GRPCInferenceService/ModelInfer"

struct hps_client_infer {
    const char *model; /* a name of the catalog: letters, digits, - and _ */
    /* [n_queries] one for each table of the model, in its order; only keys are looked at. */
    const struct hps_client_lookup_query *queries;
    size_t n_queries;
    enum hps_dtype output; /* FP32, FP16 or BF16 */
    const char
        *miss_policy; /* a word of HPS_CLIENT_LOOKUP_MISS_POLICIES; NULL or "table": the model's */
    uint32_t max_wait_us; /* 0: not said */
    const char *token;    /* over HTTP: bearer token; NULL or "": none */
};

/* Append a ModelInferRequest. error EXHAUSTED: past the buffer's maximum; NO_MEMORY. */
hps_status hps_client_infer_encode(const struct hps_client_infer *infer, struct hps_buf *buf)
    HPS_MUST_CHECK;
/* Append the same as a request of HTTP/1.1, head and body: tensors behind the JSON, rows as well.
 * error as above */
hps_status hps_client_infer_encode_http(const struct hps_client_infer *infer, struct hps_buf *buf)
    HPS_MUST_CHECK;

/* OUTPUT0; the bytes are those of the answer. */
struct hps_client_infer_rows {
    const uint8_t *data;
    size_t size;
};

/* Find it in a ModelInferResponse, the values of `output`.
 * error   DATA_LOSS: not such a message, or of other outputs */
hps_status hps_client_infer_rows(const uint8_t *data, size_t size, enum hps_dtype output,
                                 struct hps_client_infer_rows *out_rows, struct hps_error *err)
    HPS_MUST_CHECK;

#endif

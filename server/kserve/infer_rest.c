/* SPDX-License-Identifier: Apache-2.0
 *
 * POST /v2/models/M[/versions/V]/infer as a front end of the lookup service.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "server/access/access.h"
#include "server/kserve/infer_internal.h"

enum { JSON_VALUES_MAX = 65536 }; /* of a reply */

static const char LENGTH_HEADER[] = "inference-header-content-length";

/* Bytes of JSON in the body. SIZE_MAX: there is no header, all of it is JSON. */
static hps_status read_json_size(const struct hps_grpc_call *call, size_t *out_size,
                                 struct hps_error *err)
{
    size_t size = 0;
    const char *text = hps_grpc_call_header(call, LENGTH_HEADER, &size);
    uint64_t value = 0;

    *out_size = SIZE_MAX;
    if (text == NULL) {
        return HPS_OK;
    }
    bool good = size > 0 && size <= 15;
    for (size_t i = 0; good && i < size; i++) {
        good = text[i] >= '0' && text[i] <= '9';
        value = value * 10 + (uint64_t)(text[i] - '0');
    }
    if (!good) {
        return hps_error_set(err, HPS_INVALID,
                             "Inference-Header-Content-Length: '%.64s' is not the number of bytes "
                             "of JSON in front of the tensors",
                             text);
    }
    *out_size = (size_t)value;
    return HPS_OK;
}

static struct kserve_text segment(const struct hps_grpc_call *call, unsigned i)
{
    struct kserve_text text = {0};

    text.at = hps_grpc_call_segment(call, i, &text.size);
    return text;
}

static hps_status decode(const struct hps_grpc_call *call, const uint8_t *data, size_t size,
                         const struct hps_decode_limits *limits, struct hps_arena *arena,
                         struct hps_lookup_request *out_request,
                         struct hps_lookup_asked **out_asked, struct hps_error *err)
{
    struct kserve_infer infer = {.model = segment(call, 0), .model_version = segment(call, 1)};
    size_t json_size;
    hps_status status = read_json_size(call, &json_size, err);

    if (status == HPS_OK) {
        status = kserve_infer_http(data, size, json_size, limits, arena, &infer, err);
    }
    status = kserve_keep(status, &infer, limits, arena, out_request, out_asked, err);
    return status == HPS_OK
               ? kserve_answer_http_check(kserve_answer_of(*out_asked), out_request->output, err)
               : status;
}

static uint64_t bytes_max(const struct hps_lookup_asked *asked, const struct hps_lookup *lookup)
{
    return kserve_answer_http_bytes_max(kserve_answer_of(asked), lookup);
}

static size_t json_bytes(const struct hps_grpc_call *call, size_t size)
{
    struct hps_error err;
    size_t json_size;

    return read_json_size(call, &json_size, &err) == HPS_OK && json_size < size ? json_size : size;
}

/* The number of values of the reply that are JSON. */
static uint64_t n_json_values(const struct hps_lookup_asked *asked, const struct hps_lookup *lookup)
{
    const struct kserve_answer *answer = kserve_answer_of(asked);
    uint64_t n_values = 0;

    for (uint32_t i = 0; i < answer->n_outputs; i++) {
        const struct kserve_answer_output *output = &answer->outputs[i];
        bool rows = output->kind != KSERVE_OUTPUT_STATUS;
        uint64_t bytes = output->binary ? 0 : kserve_values_bytes_max(lookup, output);
        n_values += rows ? bytes / sizeof(float) : bytes;
    }
    return n_values;
}

static uint64_t encode_cost(const struct hps_lookup_asked *asked, const struct hps_lookup *lookup)
{
    return n_json_values(asked, lookup) * HPS_COST_JSON_VALUE;
}

static hps_status check_answer(const struct hps_lookup_asked *asked,
                               const struct hps_lookup *lookup, struct hps_error *err)
{
    uint64_t n_values = n_json_values(asked, lookup);

    if (n_values > JSON_VALUES_MAX) {
        return hps_error_set(err, HPS_INVALID,
                             "outputs: %" PRIu64
                             " values as JSON, limit is %d; ask for binary_data",
                             n_values, JSON_VALUES_MAX);
    }
    return kserve_front_check_answer(asked, lookup, err);
}

/* Adds the headers of the reply; the length header only if tensors follow the JSON. */
static hps_status add_headers(struct hps_grpc_call *call, const struct hps_encoded *encoded)
{
    static const char type_name[] = "content-type";
    static const char binary[] = "application/octet-stream";
    static const char json[] = "application/json";
    char length[24];

    if (encoded->json_size == encoded->size) {
        return hps_grpc_call_add_header(call, type_name, json, strlen(json));
    }
    int n = snprintf(length, sizeof(length), "%zu", encoded->json_size);
    hps_status status = hps_grpc_call_add_header(call, type_name, binary, strlen(binary));
    return status == HPS_OK ? hps_grpc_call_add_header(call, LENGTH_HEADER, length, (size_t)n)
                            : status;
}

static hps_status encode(const struct hps_lookup_asked *asked, const struct hps_lookup *lookup,
                         const struct hps_encode_explain *explain, struct hps_block *rows,
                         struct hps_block_pool *pool, struct hps_arena *arena,
                         struct hps_encoded *out_encoded, struct hps_error *err)
{
    (void)explain;
    return kserve_answer_http(kserve_answer_of(asked), lookup, rows, pool, arena, out_encoded, err);
}

static const struct hps_lookup_front front = {.positions = KSERVE_NUMKEYS,
                                              .decode = decode,
                                              .check_answer = check_answer,
                                              .not_found = kserve_front_not_found,
                                              .json_bytes = json_bytes,
                                              .bytes_max = bytes_max,
                                              .encode_cost = encode_cost,
                                              .encode = encode,
                                              .add_headers = add_headers};

static void on_infer(struct hps_grpc_call *call, const struct hps_grpc_packed *packed)
{
    hps_lookup_call_packed(hps_grpc_call_ctx(call), &front, call, packed);
}

#define INFER_METHOD(pattern)                                                             \
    {                                                                                     \
        .path = (pattern), .roles = HPS_ROLE_LOOKUP, .on_packed = on_infer,               \
        .on_close = hps_lookup_call_closed, .on_undelivered = hps_lookup_call_undelivered \
    }

static const struct hps_http_route routes[] = {
    {"POST", "/v2/models/{}/infer", INFER_METHOD("/v2/models/{}/infer")},
    {"POST", "/v2/models/{}/versions/{}/infer", INFER_METHOD("/v2/models/{}/versions/{}/infer")},
};

const struct hps_http_route *hps_kserve_infer_routes(unsigned *out_n)
{
    *out_n = sizeof(routes) / sizeof(routes[0]);
    return routes;
}

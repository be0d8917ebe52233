/* SPDX-License-Identifier: Apache-2.0
 *
 * Encoders of infer requests, and a reader of ModelInferResponse. Any thread.
 */
#include "client/infer.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "keys and counts travel as they are");

enum { INPUT_BYTES_MAX = 64, PARAMETER_BYTES_MAX = 96, HEAD_BYTES_MAX = 1024 };

static uint64_t keys_of(const struct hps_client_infer *infer)
{
    uint64_t n = 0;

    for (size_t i = 0; i < infer->n_queries; i++) {
        n += infer->queries[i].n_keys;
    }
    return n;
}

/* The parameter's word, which is not spelt as that of the command line; NULL: none is sent. */
static const char *policy_of(const struct hps_client_infer *infer)
{
    if (infer->miss_policy == NULL || strcmp(infer->miss_policy, "table") == 0) {
        return NULL;
    }
    return strcmp(infer->miss_policy, "memory-only") == 0 ? "memory_only" : infer->miss_policy;
}

static const char *datatype_of(enum hps_dtype output)
{
    HPS_ASSERT(output == HPS_DTYPE_FP32 || output == HPS_DTYPE_FP16 || output == HPS_DTYPE_BF16);
    return output == HPS_DTYPE_FP16 ? "FP16" : output == HPS_DTYPE_BF16 ? "BF16" : "FP32";
}

/* The values of KEYS, then of NUMKEYS, as they travel in both protocols. */
static hps_status put_keys(const struct hps_client_infer *infer, struct hps_buf *buf)
{
    hps_status status = HPS_OK;

    for (size_t i = 0; i < infer->n_queries && status == HPS_OK; i++) {
        const struct hps_client_lookup_query *query = &infer->queries[i];
        status = hps_buf_append(buf, query->keys, query->n_keys * sizeof(hps_key));
    }
    return status;
}

static hps_status put_counts(const struct hps_client_infer *infer, struct hps_buf *buf)
{
    hps_status status = HPS_OK;

    for (size_t i = 0; i < infer->n_queries && status == HPS_OK; i++) {
        HPS_ASSERT(infer->queries[i].n_keys <= INT32_MAX);
        const uint32_t n = (uint32_t)infer->queries[i].n_keys;
        status = hps_buf_append(buf, &n, sizeof(n));
    }
    return status;
}

/* ---- gRPC ------------------------------------------------------------------------------------ */

/* A message of a few fields, put together before its size can be said. */
static hps_status put_message(struct hps_buf *buf, uint32_t number, struct hps_buf *inner,
                              hps_status status)
{
    if (status == HPS_OK) {
        status = hps_wire_put_bytes(buf, number, inner->data, inner->size);
    }
    hps_buf_fini(inner);
    return status;
}

static hps_status put_input(struct hps_buf *buf, const char *name, const char *datatype, uint64_t n)
{
    struct hps_buf inner;

    hps_buf_init(&inner, INPUT_BYTES_MAX);
    hps_status status = hps_wire_put_text(&inner, 1, name);
    if (status == HPS_OK) {
        status = hps_wire_put_text(&inner, 2, datatype);
    }
    if (status == HPS_OK) {
        status = hps_wire_put_head(&inner, 3, hps_wire_varint_size(n));
    }
    if (status == HPS_OK) {
        status = hps_wire_put_raw_varint(&inner, n);
    }
    return put_message(buf, 5, &inner, status);
}

/* `text`, or NULL and the number. */
static hps_status put_parameter(struct hps_buf *buf, const char *name, const char *text,
                                uint64_t number)
{
    struct hps_buf entry, value;

    hps_buf_init(&entry, PARAMETER_BYTES_MAX);
    hps_buf_init(&value, PARAMETER_BYTES_MAX);
    hps_status status = hps_wire_put_text(&entry, 1, name);
    hps_status inner =
        text != NULL ? hps_wire_put_text(&value, 3, text) : hps_wire_put_uint(&value, 2, number);
    status = put_message(&entry, 2, &value, status == HPS_OK ? inner : status);
    return put_message(buf, 4, &entry, status);
}

hps_status hps_client_infer_encode(const struct hps_client_infer *infer, struct hps_buf *buf)
{
    HPS_ASSERT(infer->queries != NULL || infer->n_queries == 0);
    const char *policy = policy_of(infer);
    uint64_t n_keys = keys_of(infer);
    hps_status status = hps_wire_put_text(buf, 1, infer->model);

    if (status == HPS_OK && infer->output != HPS_DTYPE_FP32) {
        status = put_parameter(buf, "hps_output_type", datatype_of(infer->output), 0);
    }
    if (status == HPS_OK && policy != NULL) {
        status = put_parameter(buf, "hps_miss_policy", policy, 0);
    }
    if (status == HPS_OK && infer->max_wait_us > 0) {
        status = put_parameter(buf, "hps_max_wait_us", NULL, infer->max_wait_us);
    }
    if (status == HPS_OK) {
        status = put_input(buf, "KEYS", "INT64", n_keys);
    }
    if (status == HPS_OK) {
        status = put_input(buf, "NUMKEYS", "INT32", infer->n_queries);
    }
    if (status == HPS_OK) {
        status = hps_wire_put_head(buf, 7, n_keys * sizeof(hps_key));
    }
    if (status == HPS_OK) {
        status = put_keys(infer, buf);
    }
    if (status == HPS_OK) {
        status = hps_wire_put_head(buf, 7, infer->n_queries * sizeof(uint32_t));
    }
    return status == HPS_OK ? put_counts(infer, buf) : status;
}

/* The name and datatype of an output. */
static bool is_rows(const struct hps_wire_field *output, const char *datatype)
{
    struct hps_wire_reader reader = {output->data, output->size, 0};
    struct hps_wire_field field;
    bool name = false, type = false;

    while (hps_wire_next(&reader, &field)) {
        bool bytes = field.type == HPS_WIRE_BYTES;
        if (field.number == 1 && bytes) {
            name =
                field.size == strlen("OUTPUT0") && memcmp(field.data, "OUTPUT0", field.size) == 0;
        } else if (field.number == 2 && bytes) {
            type = field.size == strlen(datatype) && memcmp(field.data, datatype, field.size) == 0;
        }
    }
    return name && type && !hps_wire_broken(&reader);
}

hps_status hps_client_infer_rows(const uint8_t *data, size_t size, enum hps_dtype output,
                                 struct hps_client_infer_rows *out_rows, struct hps_error *err)
{
    HPS_ASSERT(data != NULL || size == 0);
    struct hps_wire_reader reader = {data, size, 0};
    struct hps_wire_field field;
    unsigned n_good = 0, n_outputs = 0, n_raw = 0;

    while (hps_wire_next(&reader, &field)) {
        if (field.number == 5 && field.type == HPS_WIRE_BYTES) {
            n_outputs++;
            n_good += is_rows(&field, datatype_of(output)) ? 1 : 0;
        } else if (field.number == 6 && field.type == HPS_WIRE_BYTES) {
            n_raw++;
            *out_rows = (struct hps_client_infer_rows){field.data, field.size};
        }
    }
    if (hps_wire_broken(&reader) || n_good != 1 || n_outputs != 1 || n_raw != 1) {
        return hps_error_set(err, HPS_DATA_LOSS,
                             "a reply of %zu bytes is not a ModelInferResponse with OUTPUT0 of %s",
                             size, datatype_of(output));
    }
    return HPS_OK;
}

/* ---- HTTP ------------------------------------------------------------------------------------ */

static hps_status put_json(const struct hps_client_infer *infer, uint64_t n_keys,
                           struct hps_buf *json)
{
    static const char tensor[] = "{\"name\":\"%s\",\"datatype\":\"%s\",\"shape\":[%" PRIu64
                                 "],\"parameters\":{\"binary_data_size\":%" PRIu64 "}}%s";
    const char *policy = policy_of(infer);
    hps_status status = hps_buf_printf(
        json, "{\"parameters\":{\"binary_data_output\":true,\"hps_output_type\":\"%s\"",
        datatype_of(infer->output));

    if (status == HPS_OK && policy != NULL) {
        status = hps_buf_printf(json, ",\"hps_miss_policy\":\"%s\"", policy);
    }
    if (status == HPS_OK && infer->max_wait_us > 0) {
        status = hps_buf_printf(json, ",\"hps_max_wait_us\":%" PRIu32, infer->max_wait_us);
    }
    if (status == HPS_OK) {
        status = hps_buf_printf(json, "},\"inputs\":[");
    }
    if (status == HPS_OK) {
        status =
            hps_buf_printf(json, tensor, "KEYS", "INT64", n_keys, n_keys * sizeof(hps_key), ",");
    }
    if (status == HPS_OK) {
        const uint64_t n = infer->n_queries;
        status = hps_buf_printf(json, tensor, "NUMKEYS", "INT32", n, n * sizeof(uint32_t), "]}");
    }
    return status;
}

hps_status hps_client_infer_encode_http(const struct hps_client_infer *infer, struct hps_buf *buf)
{
    HPS_ASSERT(infer->queries != NULL || infer->n_queries == 0);
    uint64_t n_keys = keys_of(infer);
    struct hps_buf json;

    hps_buf_init(&json, HEAD_BYTES_MAX);
    hps_status status = put_json(infer, n_keys, &json);
    if (status == HPS_OK) {
        size_t size = json.size + n_keys * sizeof(hps_key) + infer->n_queries * sizeof(uint32_t);
        bool has_token = infer->token != NULL && infer->token[0] != '\0';
        status =
            hps_buf_printf(buf,
                           "POST /v2/models/%s/infer HTTP/1.1\r\nHost: hpsd\r\n%s%s%s"
                           "Inference-Header-Content-Length: %zu\r\nContent-Length: %zu\r\n\r\n",
                           infer->model, has_token ? "Authorization: Bearer " : "",
                           has_token ? infer->token : "", has_token ? "\r\n" : "", json.size, size);
    }
    if (status == HPS_OK) {
        status = hps_buf_append(buf, json.data, json.size);
    }
    hps_buf_fini(&json);
    if (status == HPS_OK) {
        status = put_keys(infer, buf);
    }
    return status == HPS_OK ? put_counts(infer, buf) : status;
}

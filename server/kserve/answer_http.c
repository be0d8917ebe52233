/* SPDX-License-Identifier: Apache-2.0
 *
 * Encodes the reply to an infer request over HTTP: JSON, followed by the bytes of binary outputs,
 * which the JSON counts. Rows are sent from the block into which the lookup wrote them. One thread
 * at a time.
 *
 *     block   [ JSON ][ STATUS ]     rows   [ rows of a part ] [ rows of the next ] ...
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/json.h"
#include "base/text.h"
#include "server/kserve/infer.h"

enum {
    HEAD_BYTES_MAX = 256,                   /* without texts of the request */
    OUTPUT_BYTES_MAX = 256,                 /* without its name and its values */
    FLOAT_BYTES_MAX = HPS_JSON_FLOAT_BYTES, /* with a comma instead of the NUL */
    STATUS_BYTES_MAX = 4
};

/* Writes the body into a block that is large enough. */
struct writer {
    char *at;
    char *end;
    struct hps_buf text; /* scratch space of one string */
    struct hps_error *err;
};

/* ---- sizes ----------------------------------------------------------------------------------- */

static uint64_t text_bytes_max(struct kserve_text text)
{
    return (uint64_t)text.size * HPS_TEXT_GROWTH + 2;
}

/* Upper bound of the values of an output as JSON. */
static uint64_t numbers_bytes_max(const struct hps_lookup *lookup,
                                  const struct kserve_answer_output *output)
{
    uint64_t bytes = kserve_values_bytes_max(lookup, output);

    return output->kind == KSERVE_OUTPUT_STATUS ? bytes * STATUS_BYTES_MAX
                                                : bytes / sizeof(float) * FLOAT_BYTES_MAX;
}

/* All bytes except rows that are sent from their block. */
static uint64_t block_bytes(const struct kserve_answer *answer, const struct hps_lookup *lookup)
{
    uint64_t bytes = HEAD_BYTES_MAX + text_bytes_max(answer->model) + text_bytes_max(answer->id);

    for (uint32_t i = 0; i < answer->n_outputs; i++) {
        const struct kserve_answer_output *output = &answer->outputs[i];
        bytes += OUTPUT_BYTES_MAX + text_bytes_max(output->name);
        if (!output->binary) {
            bytes += numbers_bytes_max(lookup, output);
        } else if (output->kind == KSERVE_OUTPUT_STATUS) {
            bytes += kserve_values_bytes_max(lookup, output);
        }
    }
    return bytes;
}

uint64_t kserve_answer_http_bytes_max(const struct kserve_answer *answer,
                                      const struct hps_lookup *lookup)
{
    uint64_t bytes = block_bytes(answer, lookup) + kserve_samples_bytes(answer, lookup);

    for (uint32_t i = 0; i < answer->n_outputs; i++) {
        const struct kserve_answer_output *output = &answer->outputs[i];
        if (output->binary && output->kind != KSERVE_OUTPUT_STATUS) {
            bytes += kserve_values_bytes_max(lookup, output);
        }
    }
    return bytes;
}

/* ---- texts ----------------------------------------------------------------------------------- */

static void put(struct writer *out, const void *bytes, size_t size)
{
    HPS_ASSERT((size_t)(out->end - out->at) >= size);
    if (size > 0) {
        memcpy(out->at, bytes, size);
        out->at += size;
    }
}

static void put_plain(struct writer *out, const char *text)
{
    put(out, text, strlen(text));
}

static void put_number(struct writer *out, int64_t number)
{
    char text[24];

    put(out, text, (size_t)snprintf(text, sizeof(text), "%" PRId64, number));
}

/* Writes a string with its quotes. */
static hps_status put_text(struct writer *out, struct kserve_text text)
{
    hps_buf_clear(&out->text);
    hps_json_text(&out->text, text.at, text.size);
    if (out->text.status == HPS_OK) {
        put(out, out->text.data, out->text.size);
    }
    return out->text.status;
}

/* ---- values ---------------------------------------------------------------------------------- */

static hps_status refuse_json(struct hps_error *err, const struct kserve_answer_output *output,
                              enum kserve_datatype datatype)
{
    return hps_error_set(err, HPS_INVALID,
                         "output '%.*s': values of %s cannot be sent as JSON; request it with "
                         "parameters.binary_data",
                         KSERVE_TEXT_ARGS(output->name), kserve_datatype_name(datatype));
}

static hps_status put_floats(struct writer *out, const struct kserve_answer_output *output,
                             struct kserve_text rows, int64_t *in_out_index)
{
    for (size_t at = 0; at < rows.size; at += sizeof(float)) {
        float value;
        memcpy(&value, rows.at + at, sizeof(value));
        if (!isfinite(value)) {
            return hps_error_set(
                out->err, HPS_INVALID,
                "output '%.*s': value %" PRId64
                " is %s, which JSON cannot hold; request it with parameters.binary_data",
                KSERVE_TEXT_ARGS(output->name), *in_out_index,
                isnan(value) ? "not a number" : "infinite");
        }
        HPS_ASSERT(out->end - out->at > FLOAT_BYTES_MAX);
        if (*in_out_index > 0) {
            *out->at++ = ',';
        }
        out->at += hps_json_float_text(value, out->at);
        ++*in_out_index;
    }
    return HPS_OK;
}

static void put_bytes(struct writer *out, struct kserve_text bytes)
{
    for (size_t i = 0; i < bytes.size; i++) {
        if (i > 0) {
            put(out, ",", 1);
        }
        put_number(out, (uint8_t)bytes.at[i]);
    }
}

static hps_status put_data(struct writer *out, const struct kserve_answer_output *output,
                           const struct kserve_values *values)
{
    int64_t index = 0;
    hps_status status = HPS_OK;

    if (values->datatype != KSERVE_FP32 && values->datatype != KSERVE_UINT8) {
        return refuse_json(out->err, output, values->datatype);
    }
    put_plain(out, ",\"data\":[");
    for (uint32_t i = 0; i < values->n_pieces && status == HPS_OK; i++) {
        if (values->datatype == KSERVE_UINT8) {
            put_bytes(out, values->pieces[i]);
        } else {
            status = put_floats(out, output, values->pieces[i], &index);
        }
    }
    put_plain(out, "]");
    return status;
}

/* ---- the JSON -------------------------------------------------------------------------------- */

static hps_status put_output(struct writer *out, const struct kserve_answer_output *output,
                             const struct kserve_values *values)
{
    put_plain(out, "{\"name\":");
    hps_status status = put_text(out, output->name);
    if (status != HPS_OK) {
        return status;
    }
    put_plain(out, ",\"datatype\":\"");
    put_plain(out, kserve_datatype_name(values->datatype));
    put_plain(out, "\",\"shape\":[");
    for (unsigned i = 0; i < values->n_dims; i++) {
        put_plain(out, i > 0 ? "," : "");
        put_number(out, values->shape[i]);
    }
    put_plain(out, "]");
    if (output->binary) {
        put_plain(out, ",\"parameters\":{\"binary_data_size\":");
        put_number(out, (int64_t)values->size);
        put_plain(out, "}");
    } else {
        status = put_data(out, output, values);
    }
    put_plain(out, "}");
    return status;
}

static hps_status put_head(struct writer *out, const struct kserve_answer *answer,
                           const struct hps_lookup *lookup)
{
    put_plain(out, "{\"model_name\":");
    hps_status status = put_text(out, answer->model);
    put_plain(out, ",\"model_version\":\"");
    put_number(out, lookup->version->number);
    put_plain(out, "\"");
    if (status == HPS_OK && answer->id.size > 0) {
        put_plain(out, ",\"id\":");
        status = put_text(out, answer->id);
    }
    if (answer->by_position) {
        put_plain(out, ",\"parameters\":{\"NumSample\":");
        put_number(out, kserve_num_sample(lookup));
        put_plain(out, ",\"DeviceID\":0}");
    }
    return status;
}

static hps_status put_json(struct writer *out, const struct kserve_answer *answer,
                           const struct hps_lookup *lookup, const struct kserve_values *values)
{
    hps_status status = put_head(out, answer, lookup);

    put_plain(out, ",\"outputs\":[");
    for (uint32_t i = 0; i < answer->n_outputs && status == HPS_OK; i++) {
        put_plain(out, i > 0 ? "," : "");
        status = put_output(out, &answer->outputs[i], &values[i]);
    }
    put_plain(out, "]}");
    return status;
}

/* ---- the body -------------------------------------------------------------------------------- */

/* Adds the bytes of a binary output. STATUS, which is in the arena, is copied after the JSON. Rows
 * stay in their block. */
static void add_values(struct hps_encoded *encoded, struct writer *out,
                       const struct kserve_answer_output *output,
                       const struct kserve_values *values, struct hps_block *block,
                       struct hps_block *rows)
{
    for (uint32_t i = 0; i < values->n_pieces; i++) {
        const struct kserve_text *piece = &values->pieces[i];
        if (output->kind == KSERVE_OUTPUT_STATUS) {
            const char *begin = out->at;
            put(out, piece->at, piece->size);
            hps_encoded_add(encoded, block, begin, piece->size);
        } else {
            hps_encoded_add(encoded, rows, piece->at, piece->size);
        }
    }
}

hps_status kserve_answer_http_check(const struct kserve_answer *answer, enum hps_dtype output,
                                    struct hps_error *err)
{
    for (uint32_t i = 0; i < answer->n_outputs; i++) {
        bool rows = answer->outputs[i].kind != KSERVE_OUTPUT_STATUS;
        if (rows && !answer->outputs[i].binary && output != HPS_DTYPE_FP32) {
            return refuse_json(err, &answer->outputs[i],
                               output == HPS_DTYPE_FP16 ? KSERVE_FP16 : KSERVE_BF16);
        }
    }
    return HPS_OK;
}

hps_status kserve_answer_http(const struct kserve_answer *answer, const struct hps_lookup *lookup,
                              struct hps_block *rows, struct hps_block_pool *pool,
                              struct hps_arena *arena, struct hps_encoded *out_encoded,
                              struct hps_error *err)
{
    struct hps_encoded encoded = {0};
    struct kserve_values *values;
    size_t n_pieces;
    size_t size = (size_t)block_bytes(answer, lookup);
    hps_status status =
        kserve_values_of_all(answer, lookup, rows, pool, arena, &values, &n_pieces, &rows);

    if (status != HPS_OK) {
        return hps_error_set(err, status, "no memory for the answer");
    }
    encoded.slices = hps_arena_alloc(arena, (n_pieces + 1) * sizeof(*encoded.slices));
    struct hps_block *block = encoded.slices == NULL ? NULL : hps_block_new(pool, size);
    if (block == NULL) {
        hps_block_unref(rows);
        return hps_error_set(err, encoded.slices == NULL ? HPS_EXHAUSTED : HPS_NO_MEMORY,
                             "no memory for the answer: %zu bytes", size);
    }
    struct writer out = {.at = (char *)block->data, .end = (char *)block->data + size, .err = err};
    hps_buf_init(&out.text, size);
    status = put_json(&out, answer, lookup, values);
    hps_buf_fini(&out.text);
    if (status == HPS_OK) {
        encoded.json_size = (size_t)(out.at - (char *)block->data);
        hps_encoded_add(&encoded, block, block->data, encoded.json_size);
        for (uint32_t i = 0; i < answer->n_outputs; i++) {
            if (answer->outputs[i].binary) {
                add_values(&encoded, &out, &answer->outputs[i], &values[i], block, rows);
            }
        }
        HPS_ASSERT(encoded.n_slices <= n_pieces + 1);
        *out_encoded = encoded;
    } else if (status == HPS_NO_MEMORY) {
        status = hps_error_set(err, status, "no memory for the answer");
    }
    hps_block_unref(block);
    hps_block_unref(rows);
    return status;
}

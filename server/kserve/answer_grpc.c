/* SPDX-License-Identifier: Apache-2.0
 *
 * Encodes ModelInferResponse. The heads of outputs are written into one small block. The values are
 * its last field and are sent from the block into which the lookup wrote them. One thread at a
 * time.
 */
#include <inttypes.h>
#include <stdio.h>

#include "server/kserve/infer.h"
#include "server/rpc/wire.h"

/* Field numbers of grpc_service.proto. */
enum {
    RESPONSE_MODEL_NAME = 1,
    RESPONSE_MODEL_VERSION,
    RESPONSE_ID,
    RESPONSE_PARAMETERS,
    RESPONSE_OUTPUTS,
    RESPONSE_RAW_OUTPUTS
};
enum { OUTPUT_NAME = 1, OUTPUT_DATATYPE, OUTPUT_SHAPE };
enum { ENTRY_KEY = 1, ENTRY_VALUE, PARAMETER_INT64 = 2 };
enum {
    NUMBER_TEXT_MAX = 24,
    PARAMETER_BYTES_MAX = 64,
    /* An output without its name, and the tag and length of its values. */
    OUTPUT_BYTES_MAX = 3 * PREFIX_BYTES_MAX + 8 + 2 * VARINT_BYTES_MAX + PREFIX_BYTES_MAX
};

static uint64_t heads_bytes(const struct kserve_answer *answer, const char *model)
{
    uint64_t bytes = 4 * PREFIX_BYTES_MAX + NUMBER_TEXT_MAX + answer->model.size + answer->id.size +
                     2 * PARAMETER_BYTES_MAX + strlen(model);

    for (uint32_t i = 0; i < answer->n_outputs; i++) {
        bytes += OUTPUT_BYTES_MAX + answer->outputs[i].name.size;
    }
    return bytes;
}

uint64_t kserve_answer_grpc_bytes_max(const struct kserve_answer *answer,
                                      const struct hps_lookup *lookup)
{
    uint64_t bytes =
        heads_bytes(answer, lookup->version->model) + kserve_samples_bytes(answer, lookup);

    for (uint32_t i = 0; i < answer->n_outputs; i++) {
        bytes += kserve_values_bytes_max(lookup, &answer->outputs[i]);
    }
    return bytes;
}

/* Writes an entry of the map of parameters. */
static void put_parameter(struct out *out, const char *name, int64_t value)
{
    uint8_t scratch[PARAMETER_BYTES_MAX];
    uint8_t number[2 * VARINT_BYTES_MAX];
    struct out entry = {.at = scratch, .end = scratch + sizeof(scratch)};
    struct out choice = {.at = number, .end = number + sizeof(number)};

    put_tag(&choice, PARAMETER_INT64, WIRE_VARINT); /* in a oneof 0 is written too */
    put_varint(&choice, (uint64_t)value);
    put_text(&entry, ENTRY_KEY, name);
    put_bytes(&entry, ENTRY_VALUE, number, (size_t)(choice.at - number));
    put_bytes(out, RESPONSE_PARAMETERS, scratch, (size_t)(entry.at - scratch));
}

static void put_head(struct out *out, const struct kserve_answer *answer,
                     const struct hps_lookup *lookup)
{
    char version[NUMBER_TEXT_MAX];

    snprintf(version, sizeof(version), "%" PRId64, lookup->version->number);
    put_bytes(out, RESPONSE_MODEL_NAME, answer->model.at, answer->model.size);
    put_text(out, RESPONSE_MODEL_VERSION, version);
    put_bytes(out, RESPONSE_ID, answer->id.at, answer->id.size);
    if (answer->by_position) {
        put_parameter(out, "NumSample", kserve_num_sample(lookup));
        put_parameter(out, "DeviceID", 0);
    }
}

static void put_output(struct out *out, const struct kserve_answer_output *output,
                       const struct kserve_values *values)
{
    uint8_t dims[2 * VARINT_BYTES_MAX];
    uint8_t *begin = out->at;
    uint8_t *inner = out->at + PREFIX_BYTES_MAX;
    struct out shape = {.at = dims, .end = dims + sizeof(dims)};

    HPS_ASSERT(out->end - out->at > PREFIX_BYTES_MAX);
    out->at = inner;
    put_bytes(out, OUTPUT_NAME, output->name.at, output->name.size);
    put_text(out, OUTPUT_DATATYPE, kserve_datatype_name(values->datatype));
    for (unsigned i = 0; i < values->n_dims; i++) {
        put_varint(&shape, (uint64_t)values->shape[i]);
    }
    put_bytes(out, OUTPUT_SHAPE, dims, (size_t)(shape.at - dims));
    /* Closes the gap before the prefix, which is shorter than its space. */
    uint8_t *prefix = put_prefix(out, inner, RESPONSE_OUTPUTS, 0);
    size_t size = (size_t)(out->at - prefix);
    memmove(begin, prefix, size);
    out->at = begin + size;
}

/* Copies the status of keys, which is in the arena, into the block of heads. Rows stay in their
 * block. */
static void add_values(struct hps_encoded *encoded, struct out *out, uint8_t **begin,
                       const struct kserve_answer_output *output,
                       const struct kserve_values *values, struct hps_block *heads,
                       struct hps_block *rows)
{
    /* An empty output has a buffer too, because clients count them. */
    put_tag(out, RESPONSE_RAW_OUTPUTS, WIRE_LEN);
    put_varint(out, values->size);
    for (uint32_t i = 0; i < values->n_pieces; i++) {
        const struct kserve_text *piece = &values->pieces[i];
        if (output->kind == KSERVE_OUTPUT_STATUS) {
            HPS_ASSERT((size_t)(out->end - out->at) >= piece->size);
            memcpy(out->at, piece->at, piece->size);
            out->at += piece->size;
        } else {
            hps_encoded_add(encoded, heads, *begin, (size_t)(out->at - *begin));
            *begin = out->at;
            hps_encoded_add(encoded, rows, piece->at, piece->size);
        }
    }
}

/* Bytes of STATUS, which is copied into the block of heads. */
static uint64_t status_bytes(const struct kserve_answer *answer, const struct kserve_values *values)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < answer->n_outputs; i++) {
        bytes += answer->outputs[i].kind == KSERVE_OUTPUT_STATUS ? values[i].size : 0;
    }
    return bytes;
}

hps_status kserve_answer_grpc(const struct kserve_answer *answer, const struct hps_lookup *lookup,
                              struct hps_block *rows, struct hps_block_pool *pool,
                              struct hps_arena *arena, struct hps_encoded *out_encoded)
{
    struct hps_encoded encoded = {0};
    struct kserve_values *values;
    size_t n_pieces;
    hps_status status =
        kserve_values_of_all(answer, lookup, rows, pool, arena, &values, &n_pieces, &rows);

    if (status != HPS_OK) {
        return status;
    }
    size_t n_slices_max = 2 * n_pieces + 1;
    size_t size =
        (size_t)(heads_bytes(answer, lookup->version->model) + status_bytes(answer, values));
    encoded.slices = hps_arena_alloc(arena, n_slices_max * sizeof(*encoded.slices));
    struct hps_block *heads = encoded.slices == NULL ? NULL : hps_block_new(pool, size);
    if (heads == NULL) {
        hps_block_unref(rows);
        return encoded.slices == NULL ? HPS_EXHAUSTED : HPS_NO_MEMORY;
    }
    struct out out = {.at = heads->data, .end = heads->data + size};
    uint8_t *begin = out.at;
    put_head(&out, answer, lookup);
    for (uint32_t i = 0; i < answer->n_outputs; i++) {
        put_output(&out, &answer->outputs[i], &values[i]);
    }
    for (uint32_t i = 0; i < answer->n_outputs; i++) {
        add_values(&encoded, &out, &begin, &answer->outputs[i], &values[i], heads, rows);
    }
    hps_encoded_add(&encoded, heads, begin, (size_t)(out.at - begin));
    HPS_ASSERT(encoded.n_slices <= n_slices_max);
    hps_block_unref(heads);
    hps_block_unref(rows);
    *out_encoded = encoded;
    return HPS_OK;
}

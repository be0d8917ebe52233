/* SPDX-License-Identifier: Apache-2.0
 *
 * The outputs of a look-up that is done, as tensors: where their values are, and what they are.
 * Used by one thread at a time.
 */
#include <string.h>

#include "base/assert.h"
#include "server/kserve/infer.h"

static enum kserve_datatype datatype_of(enum hps_dtype dtype)
{
    switch (dtype) {
    case HPS_DTYPE_FP16:
        return KSERVE_FP16;
    case HPS_DTYPE_BF16:
        return KSERVE_BF16;
    default:
        HPS_ASSERT(dtype == HPS_DTYPE_FP32 || dtype == 0); /* RAW is refused */
        return KSERVE_FP32;
    }
}

static struct kserve_text rows_of(const struct hps_lookup_part *part)
{
    return (struct kserve_text){.at = (const char *)part->rows, .size = (size_t)part->rows_bytes};
}

/* Of all keys, all of which were found where a part says nothing of them. NULL: no memory. */
static struct kserve_text status_of(const struct hps_lookup *lookup, struct hps_arena *arena)
{
    uint8_t *status = hps_arena_alloc(arena, (size_t)lookup->n_keys + 1);
    size_t at = 0;

    for (uint32_t i = 0; status != NULL && i < lookup->n_parts; i++) {
        const struct hps_lookup_part *part = &lookup->parts[i];
        if (part->key_status != NULL) {
            memcpy(status + at, part->key_status, part->n_keys);
        } else {
            memset(status + at, HPS_KEY_FOUND, part->n_keys);
        }
        at += part->n_keys;
    }
    HPS_ASSERT(status == NULL || at == lookup->n_keys);
    return (struct kserve_text){.at = (const char *)status, .size = at};
}

hps_status kserve_values_of(const struct hps_lookup *lookup,
                            const struct kserve_answer_output *output, struct hps_arena *arena,
                            struct kserve_values *out)
{
    bool flat = output->kind == KSERVE_OUTPUT_FLAT;
    uint32_t n_pieces = flat ? lookup->n_parts : 1;
    struct kserve_text *pieces = hps_arena_calloc(arena, (size_t)n_pieces + 1, sizeof(*pieces));
    struct kserve_values values = {.n_dims = 1, .pieces = pieces, .n_pieces = n_pieces};

    if (pieces == NULL) {
        return HPS_EXHAUSTED;
    }
    if (output->kind == KSERVE_OUTPUT_TABLE) {
        const struct hps_lookup_part *part = &lookup->parts[output->part];
        HPS_ASSERT(output->part < lookup->n_parts);
        pieces[0] = rows_of(part);
        values.datatype = datatype_of(part->out_dtype);
        values.n_dims = 2;
        values.shape[0] = part->n_rows;
        values.shape[1] = part->table->dim;
    } else if (flat) {
        values.datatype = datatype_of(lookup->output);
        for (uint32_t i = 0; i < n_pieces; i++) {
            pieces[i] = rows_of(&lookup->parts[i]);
            values.shape[0] += (int64_t)lookup->parts[i].n_rows * lookup->parts[i].table->dim;
        }
    } else {
        pieces[0] = status_of(lookup, arena);
        if (pieces[0].at == NULL) {
            return HPS_EXHAUSTED;
        }
        values.datatype = KSERVE_UINT8;
        values.shape[0] = (int64_t)lookup->n_keys;
    }
    for (uint32_t i = 0; i < n_pieces; i++) {
        values.size += pieces[i].size;
    }
    *out = values;
    return HPS_OK;
}

hps_status kserve_values_of_all(const struct kserve_answer *answer, const struct hps_lookup *lookup,
                                struct hps_arena *arena, struct kserve_values **out_values,
                                size_t *out_pieces)
{
    struct kserve_values *values =
        hps_arena_calloc(arena, (size_t)answer->n_outputs + 1, sizeof(*values));
    hps_status status = values == NULL ? HPS_EXHAUSTED : HPS_OK;
    size_t n_pieces = 0;

    for (uint32_t i = 0; i < answer->n_outputs && status == HPS_OK; i++) {
        status = kserve_values_of(lookup, &answer->outputs[i], arena, &values[i]);
        n_pieces += values[i].n_pieces;
    }
    if (status == HPS_OK) {
        *out_values = values;
        *out_pieces = n_pieces;
    }
    return status;
}

uint64_t kserve_values_bytes_max(const struct hps_lookup *lookup,
                                 const struct kserve_answer_output *output)
{
    uint64_t bytes = 0;

    switch (output->kind) {
    case KSERVE_OUTPUT_TABLE:
        return lookup->parts[output->part].rows_bytes;
    case KSERVE_OUTPUT_FLAT:
        for (uint32_t i = 0; i < lookup->n_parts; i++) {
            bytes += lookup->parts[i].rows_bytes;
        }
        return bytes;
    default:
        return lookup->n_keys;
    }
}

int64_t kserve_num_sample(const struct hps_lookup *lookup)
{
    return (int64_t)(lookup->n_keys / lookup->version->n_tables);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The values of the outputs of a lookup that is done. One thread at a time.
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
        HPS_ASSERT(dtype == HPS_DTYPE_FP32 || dtype == 0); /* RAW is rejected before */
        return KSERVE_FP32;
    }
}

static struct kserve_text rows_of(const struct hps_lookup_part *part)
{
    return (struct kserve_text){.at = (const char *)part->rows, .size = (size_t)part->rows_bytes};
}

/* Calls `put` for each sample and part in the order of the reply, with its n keys from `first` on.
 * False: no memory. */
static bool each_sample(const struct kserve_answer *answer, const struct hps_lookup *lookup,
                        struct hps_arena *arena, uint8_t *to,
                        uint8_t *(*put)(uint8_t *to, const struct hps_lookup_part *part,
                                        uint32_t first, uint32_t n))
{
    uint32_t *next = hps_arena_calloc(arena, (size_t)lookup->n_parts + 1, sizeof(*next));
    uint32_t n_samples = answer->counts == NULL ? 1 : answer->n_samples;
    const uint32_t *counts = answer->counts;

    for (uint32_t sample = 0; next != NULL && sample < n_samples; sample++) {
        for (uint32_t i = 0; i < lookup->n_parts; i++) {
            uint32_t n = counts == NULL ? lookup->parts[i].n_keys : *counts++;
            HPS_ASSERT(n <= lookup->parts[i].n_keys - next[i]);
            to = n == 0 ? to : put(to, &lookup->parts[i], next[i], n);
            next[i] += n;
        }
    }
    return next != NULL;
}

/* A part without key_status has found all its keys. */
static uint8_t *put_status(uint8_t *to, const struct hps_lookup_part *part, uint32_t first,
                           uint32_t n)
{
    if (part->key_status != NULL) {
        memcpy(to, part->key_status + first, n);
    } else {
        memset(to, HPS_KEY_FOUND, n);
    }
    return to + n;
}

static uint8_t *put_rows(uint8_t *to, const struct hps_lookup_part *part, uint32_t first,
                         uint32_t n)
{
    size_t size = (size_t)n * part->row_bytes;

    memcpy(to, part->rows + (size_t)first * part->row_bytes, size);
    return to + size;
}

/* NULL: no memory. */
static struct kserve_text status_of(const struct kserve_answer *answer,
                                    const struct hps_lookup *lookup, struct hps_arena *arena)
{
    uint8_t *status = hps_arena_alloc(arena, (size_t)lookup->n_keys + 1);
    bool done = status != NULL && each_sample(answer, lookup, arena, status, put_status);

    return (struct kserve_text){done ? (const char *)status : NULL, (size_t)lookup->n_keys};
}

static bool is_flat(const struct kserve_answer_output *output)
{
    return output->kind == KSERVE_OUTPUT_FLAT;
}

/* sorted: rows in the order of the samples; NULL: one sample, rows in the order of the parts. */
static hps_status values_of(const struct kserve_answer *answer, const struct hps_lookup *lookup,
                            const struct kserve_answer_output *output,
                            const struct hps_block *sorted, struct hps_arena *arena,
                            struct kserve_values *out)
{
    bool flat = is_flat(output);
    uint32_t n_pieces = flat && sorted == NULL ? lookup->n_parts : 1;
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
        for (uint32_t i = 0; i < lookup->n_parts; i++) {
            if (sorted == NULL) {
                pieces[i] = rows_of(&lookup->parts[i]);
            }
            values.shape[0] += (int64_t)lookup->parts[i].n_rows * lookup->parts[i].table->dim;
        }
        if (sorted != NULL) {
            pieces[0] = (struct kserve_text){(const char *)sorted->data,
                                             (size_t)kserve_values_bytes_max(lookup, output)};
        }
    } else {
        pieces[0] = status_of(answer, lookup, arena);
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

/* The output with rows to sort; NULL: none. */
static const struct kserve_answer_output *sorted_output(const struct kserve_answer *answer)
{
    for (uint32_t i = 0; answer->counts != NULL && i < answer->n_outputs; i++) {
        if (is_flat(&answer->outputs[i])) {
            return &answer->outputs[i];
        }
    }
    return NULL;
}

/* Copies the rows of several samples into a block, in the order of the samples. */
static hps_status sort_rows(const struct kserve_answer *answer, const struct hps_lookup *lookup,
                            struct hps_block_pool *pool, struct hps_arena *arena,
                            struct hps_block **out_sorted)
{
    const struct kserve_answer_output *output = sorted_output(answer);

    *out_sorted = NULL;
    if (output == NULL) {
        return HPS_OK;
    }
    struct hps_block *block =
        hps_block_new(pool, (size_t)kserve_values_bytes_max(lookup, output) + 1);
    if (block == NULL) {
        return HPS_NO_MEMORY;
    }
    if (!each_sample(answer, lookup, arena, block->data, put_rows)) {
        hps_block_unref(block);
        return HPS_EXHAUSTED;
    }
    *out_sorted = block;
    return HPS_OK;
}

hps_status kserve_values_of_all(const struct kserve_answer *answer, const struct hps_lookup *lookup,
                                struct hps_block *rows, struct hps_block_pool *pool,
                                struct hps_arena *arena, struct kserve_values **out_values,
                                size_t *out_pieces, struct hps_block **out_rows)
{
    struct kserve_values *values =
        hps_arena_calloc(arena, (size_t)answer->n_outputs + 1, sizeof(*values));
    struct hps_block *sorted = NULL;
    hps_status status =
        values == NULL ? HPS_EXHAUSTED : sort_rows(answer, lookup, pool, arena, &sorted);
    size_t n_pieces = 0;

    for (uint32_t i = 0; i < answer->n_outputs && status == HPS_OK; i++) {
        status = values_of(answer, lookup, &answer->outputs[i], sorted, arena, &values[i]);
        n_pieces += values[i].n_pieces;
    }
    if (status != HPS_OK) {
        hps_block_unref(sorted);
        return status;
    }
    if (sorted == NULL && rows != NULL) {
        hps_block_ref(rows);
    }
    *out_values = values;
    *out_pieces = n_pieces;
    *out_rows = sorted != NULL ? sorted : rows;
    return HPS_OK;
}

uint64_t kserve_samples_bytes(const struct kserve_answer *answer, const struct hps_lookup *lookup)
{
    const struct kserve_answer_output *output = sorted_output(answer);

    return (output == NULL ? 0 : kserve_values_bytes_max(lookup, output)) +
           (answer->counts == NULL ? 0 : sizeof(uint32_t) * lookup->n_parts * answer->n_samples);
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

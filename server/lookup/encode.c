/* SPDX-License-Identifier: Apache-2.0
 *
 * Encodes the whole reply to a lookup as one message. One thread at a time.
 */
#include "server/lookup/encode_internal.h"

void hps_encoded_release(struct hps_encoded *encoded)
{
    for (unsigned i = 0; i < encoded->n_slices; i++) {
        hps_block_unref(encoded->slices[i].block);
    }
    encoded->n_slices = 0;
    encoded->size = 0;
}

/* Bytes of all heads, including n_status bytes of key status. */
static uint64_t heads_bytes(const struct hps_lookup *lookup, uint64_t n_status)
{
    struct head head = encode_head(lookup);
    uint64_t bytes = encode_head_bytes_max(&head) + ENCODE_MARGIN + n_status;
    uint32_t n_tiers = hps_version_n_tiers(lookup->version);

    for (uint32_t i = 0; i < lookup->n_parts; i++) {
        bytes += encode_result_bytes_max(lookup->parts[i].table->name, n_tiers);
    }
    return bytes;
}

uint64_t hps_encode_size_max(const struct hps_lookup *lookup)
{
    uint64_t bytes = heads_bytes(lookup, lookup->n_keys);

    for (uint32_t i = 0; i < lookup->n_parts; i++) {
        bytes += (uint64_t)lookup->parts[i].n_rows * lookup->parts[i].row_bytes;
    }
    return bytes;
}

static uint64_t status_bytes(const struct hps_lookup *lookup)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < lookup->n_parts; i++) {
        bytes += lookup->parts[i].key_status == NULL ? 0 : lookup->parts[i].n_keys;
    }
    return bytes;
}

static struct result whole_result(const struct hps_lookup *lookup,
                                  const struct hps_lookup_part *part)
{
    struct result result = {.table = part->table->name,
                            .dim = part->table->dim,
                            .dtype = part->out_dtype,
                            .n_rows = part->n_rows,
                            .n_keys = part->n_keys,
                            .n_unique = part->n_unique,
                            .n_defaulted = part->n_defaulted,
                            .n_unknown = part->n_unknown,
                            .key_status = part->key_status,
                            .column = part->column};

    if (lookup->layout != HPS_LAYOUT_CONCAT) {
        result.rows = part->rows;
        result.rows_bytes = (uint64_t)part->n_rows * part->row_bytes;
    }
    for (unsigned kind = 0; kind < HPS_TIER_COUNT && part->n_keys > 0; kind++) {
        result.tier_found[kind] = part->walk.reports[kind].n_found;
    }
    return result;
}

hps_status hps_encode_lookup(const struct hps_lookup *lookup,
                             const struct hps_encode_explain *explain, struct hps_block *rows,
                             struct hps_block_pool *pool, struct hps_arena *arena,
                             struct hps_encoded *out_encoded)
{
    struct head head = encode_head(lookup);
    struct hps_encoded encoded = {0};
    size_t n_slices_max = 2 * (size_t)lookup->n_parts + 4;
    size_t size =
        (size_t)(heads_bytes(lookup, status_bytes(lookup)) + encode_explain_bytes_max(explain));

    encoded.slices = hps_arena_alloc(arena, n_slices_max * sizeof(*encoded.slices));
    if (encoded.slices == NULL) {
        return HPS_EXHAUSTED;
    }
    struct hps_block *heads = hps_block_new(pool, size);
    if (heads == NULL) {
        return HPS_NO_MEMORY;
    }
    struct out out = {.at = heads->data, .end = heads->data + size};
    encode_add_head(&encoded, &out, &head, heads);
    for (uint32_t i = 0; i < lookup->n_parts; i++) {
        struct result result = whole_result(lookup, &lookup->parts[i]);
        encode_add_result(&encoded, &out, &result, heads, rows);
    }
    encode_add_explain(&encoded, &out, explain, heads);
    if (lookup->layout == HPS_LAYOUT_CONCAT) {
        encode_add_matrix(&encoded, &out, lookup->rows, lookup->matrix_bytes, heads, rows);
    }
    HPS_ASSERT(encoded.n_slices <= n_slices_max);
    hps_block_unref(heads);
    *out_encoded = encoded;
    return HPS_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "clients/triton/backend.h"

#include <inttypes.h>
#include <string.h>

#include "base/heap.h"

#define KEYS    "KEYS"
#define NUMKEYS "NUMKEYS"

enum {
    VALUES_MAX = INT32_MAX, /* of a tensor */
    TABLES_MAX = 65536,     /* no server allows more; each needs some hundred bytes here */
};

struct tensor {
    const uint8_t *data;
    uint64_t size, n_values;
    const int64_t *shape;
    uint32_t n_dims;
};

/* ---- reading --------------------------------------------------------------------------------- */

static hps_status next_piece(struct triton_input *input, uint32_t index, uint64_t size_max,
                             const void **out_data, uint64_t *out_size, int *out_memory,
                             struct hps_error *err)
{
    int64_t device = 0;

    *out_memory = TRITON_CPU;
    hps_status status = hps_triton_taken(
        TRITONBACKEND_InputBuffer(input, index, out_data, out_size, out_memory, &device), err);
    if (status == HPS_OK && *out_size > size_max) {
        return hps_error_set(err, HPS_INVALID, "it has more bytes than its shape");
    }
    return status;
}

/* Copies the pieces of an input to one. */
static hps_status gather(struct triton_input *input, uint32_t n_pieces, uint64_t size,
                         uint8_t **out_data, struct hps_error *err)
{
    uint8_t *to = hps_alloc(size);
    uint64_t at = 0;
    hps_status status = to == NULL ? hps_error_set(err, HPS_NO_MEMORY, "no memory") : HPS_OK;

    for (uint32_t i = 0; status == HPS_OK && i < n_pieces; i++) {
        const void *piece;
        uint64_t piece_size;
        int memory;
        status = next_piece(input, i, size - at, &piece, &piece_size, &memory, err);
        if (status == HPS_OK && piece_size > 0 && memory == TRITON_GPU) {
            status = hps_triton_gpu_copy(to + at, piece, piece_size, err);
        } else if (status == HPS_OK && piece_size > 0) {
            memcpy(to + at, piece, piece_size);
        }
        at += status == HPS_OK ? piece_size : 0;
    }
    if (status == HPS_OK && at != size) {
        status = hps_error_set(err, HPS_INVALID, "it has fewer bytes than its shape");
    }
    if (status != HPS_OK) {
        hps_free(to);
        return status;
    }
    *out_data = to;
    return HPS_OK;
}

static hps_status read_data(struct triton_input *input, uint32_t n_pieces, struct tensor *tensor,
                            void **out_owned, struct hps_error *err)
{
    uint8_t *copy = NULL;

    if (tensor->size > 0 && n_pieces == 1) {
        const void *piece;
        uint64_t size;
        int memory;
        hps_status status = next_piece(input, 0, tensor->size, &piece, &size, &memory, err);
        if (status != HPS_OK) {
            return status;
        }
        if (size == tensor->size && memory != TRITON_GPU) {
            tensor->data = piece;
            return HPS_OK;
        }
    }
    hps_status status = gather(input, n_pieces, tensor->size, &copy, err);
    if (status == HPS_OK) {
        tensor->data = copy;
        *out_owned = copy;
    }
    return status;
}

static hps_status check_shape(struct tensor *tensor, int type, int expected, struct hps_error *err)
{
    uint64_t width = expected == TRITON_INT64 ? sizeof(int64_t) : sizeof(int32_t);

    if (type != expected) {
        return hps_error_set(err, HPS_INVALID, "its datatype is not %s",
                             expected == TRITON_INT64 ? "INT64" : "INT32");
    }
    tensor->n_values = 1;
    for (uint32_t i = 0; i < tensor->n_dims; i++) {
        if (tensor->shape[i] < 0 || tensor->shape[i] > VALUES_MAX) {
            return hps_error_set(err, HPS_INVALID, "a dimension is %" PRId64, tensor->shape[i]);
        }
        tensor->n_values *= (uint64_t)tensor->shape[i];
        if (tensor->n_values > VALUES_MAX) {
            return hps_error_set(err, HPS_INVALID, "it has more than %d values", VALUES_MAX);
        }
    }
    if (tensor->n_values * width != tensor->size) {
        return hps_error_set(err, HPS_INVALID,
                             "it has %" PRIu64 " bytes, but its shape needs %" PRIu64, tensor->size,
                             tensor->n_values * width);
    }
    return HPS_OK;
}

static hps_status read_tensor(struct triton_request *request, const char *name, int type,
                              struct tensor *out, void **out_owned, struct hps_error *err)
{
    struct triton_input *input;
    uint32_t n_pieces = 0;
    int given = 0;

    *out = (struct tensor){0};
    hps_status status = hps_triton_taken(TRITONBACKEND_RequestInput(request, name, &input), err);
    if (status == HPS_OK) {
        status =
            hps_triton_taken(TRITONBACKEND_InputProperties(input, NULL, &given, &out->shape,
                                                           &out->n_dims, &out->size, &n_pieces),
                             err);
    }
    if (status == HPS_OK) {
        status = check_shape(out, given, type, err);
    }
    if (status == HPS_OK) {
        status = read_data(input, n_pieces, out, out_owned, err);
    }
    return status == HPS_OK ? HPS_OK : hps_error_prefix(err, status, "input '%s'", name);
}

/* ---- samples --------------------------------------------------------------------------------- */

size_t hps_triton_keys_count(const struct hps_triton_keys *keys, uint32_t sample, uint32_t table)
{
    uint64_t at = (uint64_t)sample * keys->n_tables + table;
    int32_t count;

    memcpy(&count, keys->counts + at * sizeof(count), sizeof(count));
    return (size_t)count;
}

/* A row of NUMKEYS has the counts of a sample. If there are several, KEYS must have as many rows.
 */
static hps_status find_samples(const struct tensor *keys, const struct tensor *counts,
                               struct hps_triton_keys *out, struct hps_error *err)
{
    uint64_t n_samples = 1;

    if (counts->n_values > 0 && counts->n_dims > 1) {
        n_samples = counts->n_values / (uint64_t)counts->shape[counts->n_dims - 1];
    }
    if (n_samples > 1 && (keys->n_dims < 2 || keys->shape[0] != (int64_t)n_samples)) {
        return hps_error_set(err, HPS_INVALID,
                             "input 'NUMKEYS' has %" PRIu64
                             " rows, one for each sample, but input 'KEYS' has %" PRId64 " rows",
                             n_samples, keys->n_dims < 2 ? 1 : keys->shape[0]);
    }
    if (counts->n_values / n_samples > TABLES_MAX) {
        return hps_error_set(err, HPS_INVALID,
                             "input 'NUMKEYS' has counts of %" PRIu64 " tables, the limit is %d",
                             counts->n_values / n_samples, TABLES_MAX);
    }
    out->keys = keys->data;
    out->counts = counts->data;
    out->n_keys = keys->n_values;
    out->n_samples = (uint32_t)n_samples;
    out->n_tables = (uint32_t)(counts->n_values / n_samples);
    return HPS_OK;
}

static hps_status check_counts(const struct hps_triton_keys *keys, struct hps_error *err)
{
    uint64_t n_row = keys->n_keys / keys->n_samples;

    for (uint32_t sample = 0; sample < keys->n_samples; sample++) {
        uint64_t sum = 0;
        for (uint32_t table = 0; table < keys->n_tables; table++) {
            size_t count = hps_triton_keys_count(keys, sample, table);
            if (count > INT32_MAX) {
                return hps_error_set(err, HPS_INVALID, "input 'NUMKEYS': [%u, %u] is %d", sample,
                                     table, (int)count);
            }
            sum += count;
        }
        if (sum != n_row) {
            return hps_error_set(err, HPS_INVALID,
                                 "input 'NUMKEYS': the sum of row %u is %" PRIu64
                                 " keys, but a row of 'KEYS' has %" PRIu64,
                                 sample, sum, n_row);
        }
    }
    return HPS_OK;
}

size_t hps_triton_keys_of_table(const struct hps_triton_keys *keys, uint32_t table)
{
    size_t sum = 0;

    for (uint32_t sample = 0; sample < keys->n_samples; sample++) {
        sum += hps_triton_keys_count(keys, sample, table);
    }
    return sum;
}

/* Sorts the keys of several samples by table. */
static hps_status sort_keys(struct hps_triton_keys *keys, struct hps_error *err)
{
    uint8_t *sorted = hps_alloc(keys->n_keys * sizeof(int64_t));
    size_t *next = hps_alloc(keys->n_tables * sizeof(*next)); /* place of a table's next key */
    const uint8_t *from = keys->keys;
    size_t sum = 0;

    if (sorted == NULL || next == NULL) {
        hps_free(sorted);
        hps_free(next);
        return hps_error_set(err, HPS_NO_MEMORY, "no memory");
    }
    for (uint32_t table = 0; table < keys->n_tables; table++) {
        next[table] = sum;
        sum += hps_triton_keys_of_table(keys, table);
    }
    for (uint32_t sample = 0; sample < keys->n_samples; sample++) {
        for (uint32_t table = 0; table < keys->n_tables; table++) {
            size_t count = hps_triton_keys_count(keys, sample, table);
            if (count > 0) {
                memcpy(sorted + next[table] * sizeof(int64_t), from, count * sizeof(int64_t));
            }
            next[table] += count;
            from += count * sizeof(int64_t);
        }
    }
    hps_free(next);
    keys->owned[2] = sorted;
    keys->keys = sorted;
    return HPS_OK;
}

hps_status hps_triton_keys_read(struct triton_request *request, struct hps_triton_keys *out,
                                struct hps_error *err)
{
    struct hps_triton_keys read = {0};
    struct tensor keys;
    struct tensor counts;
    hps_status status = read_tensor(request, KEYS, TRITON_INT64, &keys, &read.owned[0], err);

    if (status == HPS_OK) {
        status = read_tensor(request, NUMKEYS, TRITON_INT32, &counts, &read.owned[1], err);
    }
    if (status == HPS_OK) {
        status = find_samples(&keys, &counts, &read, err);
    }
    if (status == HPS_OK) {
        status = check_counts(&read, err);
    }
    if (status == HPS_OK && read.n_samples > 1) {
        status = sort_keys(&read, err);
    }
    if (status != HPS_OK) {
        hps_triton_keys_free(&read);
        return status;
    }
    *out = read;
    return HPS_OK;
}

void hps_triton_keys_free(struct hps_triton_keys *keys)
{
    for (size_t i = 0; i < sizeof(keys->owned) / sizeof(*keys->owned); i++) {
        hps_free(keys->owned[i]);
    }
}

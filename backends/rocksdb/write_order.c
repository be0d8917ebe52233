/* SPDX-License-Identifier: Apache-2.0
 *
 * See write_order.h. Works on pieces of the batch, so that memory is bounded. Each piece is grouped
 * by table, and each group sorted by key.
 */
#include "backends/rocksdb/write_order.h"

#include "base/assert.h"
#include "base/heap.h"
#include "base/key_sort.h"

enum { ROWS_MAX = 1 << 16 };

struct source {
    const struct hps_table *table;
    hps_key key;
    const uint8_t *row;
};

/* Numbers are indices in the piece; a later row has a higher one. */
struct piece {
    struct source *sources; /* [n] in order of the writes */
    uint64_t *groups;       /* [n] table id << 32 | number */
    hps_key *keys;          /* [n] of one group */
    uint32_t *numbers;      /* [n] of the same group */
    uint32_t n, n_max;
    bool one_table;
    hps_write_row_fn *fn;
    void *ctx;
};

static hps_status piece_open(struct piece *piece, uint32_t n_max)
{
    piece->n_max = n_max;
    piece->sources = hps_alloc(n_max * sizeof(*piece->sources));
    piece->groups = hps_alloc(n_max * sizeof(*piece->groups));
    piece->keys = hps_alloc(n_max * sizeof(*piece->keys));
    piece->numbers = hps_alloc(n_max * sizeof(*piece->numbers));
    return piece->sources != NULL && piece->groups != NULL && piece->keys != NULL &&
                   piece->numbers != NULL
               ? HPS_OK
               : HPS_NO_MEMORY;
}

static void piece_close(struct piece *piece)
{
    hps_free(piece->sources);
    hps_free(piece->groups);
    hps_free(piece->keys);
    hps_free(piece->numbers);
}

/* The sort leaves rows of one key in any order. Restore the order of the writes. spare [n] */
static void order_equal(uint32_t *numbers, uint64_t *spare, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        spare[i] = numbers[i];
    }
    hps_key_sort(spare, NULL, n);
    for (uint32_t i = 0; i < n; i++) {
        numbers[i] = (uint32_t)spare[i];
    }
}

static void give_group(const struct piece *piece, uint64_t *group, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        piece->numbers[i] = (uint32_t)group[i];
        piece->keys[i] = piece->sources[piece->numbers[i]].key;
    }
    hps_key_sort(piece->keys, piece->numbers, n);
    for (uint32_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && piece->keys[end] == piece->keys[i]; end++) {
        }
        if (end - i > 1) {
            order_equal(piece->numbers + i, group + i, end - i);
        }
        for (uint32_t j = i; j < end; j++) {
            const struct source *source = &piece->sources[piece->numbers[j]];
            piece->fn(piece->ctx, source->table, source->key, source->row);
        }
    }
}

static void give_piece(struct piece *piece)
{
    if (!piece->one_table) {
        hps_key_sort(piece->groups, NULL, piece->n);
    }
    for (uint32_t i = 0, end; i < piece->n; i = end) {
        for (end = i + 1; end < piece->n && piece->groups[end] >> 32 == piece->groups[i] >> 32;
             end++) {
        }
        give_group(piece, piece->groups + i, end - i);
    }
    piece->n = 0;
}

static void piece_add(struct piece *piece, const struct hps_write *write, uint32_t i)
{
    if (piece->n == piece->n_max) {
        give_piece(piece);
    }
    HPS_DEBUG_ASSERT(piece->n < piece->n_max);
    uint32_t n = piece->n++;
    piece->one_table = n == 0 || (piece->one_table && piece->sources[0].table == write->table);
    piece->groups[n] = (uint64_t)write->table->id << 32 | n;
    piece->sources[n] = (struct source){
        .table = write->table,
        .key = write->keys[i],
        .row = write->rows == NULL ? NULL : write->rows + (size_t)i * write->table->row_bytes};
}

hps_status hps_write_order(const struct hps_write *writes, uint32_t n_writes, hps_write_row_fn *fn,
                           void *ctx)
{
    struct piece piece = {.fn = fn, .ctx = ctx};
    uint32_t n_max = 0;
    for (uint32_t w = 0; w < n_writes && n_max < ROWS_MAX; w++) {
        n_max = writes[w].n < ROWS_MAX - n_max ? n_max + writes[w].n : ROWS_MAX;
    }
    if (n_max == 0) {
        return HPS_OK;
    }
    hps_status status = piece_open(&piece, n_max);
    for (uint32_t w = 0; w < n_writes && status == HPS_OK; w++) {
        for (uint32_t i = 0; i < writes[w].n; i++) {
            piece_add(&piece, &writes[w], i);
        }
    }
    if (status == HPS_OK) {
        give_piece(&piece);
    }
    piece_close(&piece);
    return status;
}

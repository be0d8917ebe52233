/* SPDX-License-Identifier: Apache-2.0
 *
 * Merges the runs of the spill file, with one buffer for each run and a heap of their first
 * records. The arena, which held the input before (rowsort.c), holds:
 *
 *     | cursors[k] | heap[k] | out | buffer of run 0 | ... | buffer of run k-1 |
 *
 * A run is a list of records: 8-byte key and row. Runs stay in order of arrival, so of equal keys
 * the one in the highest run is the newest. If there are more runs than buffers fit, groups of
 * adjacent runs are merged into a second file first.
 */
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/rows/fileio.h"
#include "base/rows/rowsort_internal.h"

/* In smaller reads from an SSD, the call costs more than the transfer. */
enum { MERGE_BUFFER_BYTES_MIN = 64 << 10 };

size_t rowsort_fan_in(const struct hps_rowsort *sort, size_t *out_buffer_records)
{
    size_t out_bytes = rowsort_round_up(sort->out_records * sort->record_bytes);
    size_t space = sort->arena_bytes - out_bytes - 3 * ROWSORT_ALIGN;
    size_t per_run = sizeof(struct cursor) + sizeof(struct entry);
    size_t records =
        rowsort_clamp(MERGE_BUFFER_BYTES_MIN / sort->record_bytes, 1, MERGE_BUFFER_BYTES_MIN);
    size_t k = space / (per_run + records * sort->record_bytes);

    if (k < 2) { /* a small arena, because of a hint that was too low, or very wide rows */
        records = 1;
        k = space / (per_run + sort->record_bytes);
    }
    HPS_ASSERT(k >= 2);
    if (k >= sort->n_runs) {
        k = sort->n_runs;
        records = rowsort_clamp(
            (space / k - per_run) / sort->record_bytes, 1,
            rowsort_clamp(ROWSORT_TAKE_BYTES_MAX / sort->record_bytes, 1, ROWSORT_TAKE_BYTES_MAX));
    }
    *out_buffer_records = records;
    return k;
}

static hps_key cursor_key(const struct cursor *cursor)
{
    hps_key key;

    HPS_DEBUG_ASSERT(cursor->at + ROWSORT_KEY_BYTES <= cursor->have);
    memcpy(&key, cursor->buffer + cursor->at, ROWSORT_KEY_BYTES);
    return key;
}

static hps_status cursor_fill(const struct hps_rowsort *sort, struct cursor *cursor,
                              struct hps_error *err)
{
    HPS_ASSERT(cursor->at == cursor->have && cursor->offset < cursor->end);
    uint64_t left = cursor->end - cursor->offset;
    size_t n = left < sort->buffer_bytes ? (size_t)left : sort->buffer_bytes;

    hps_status status = hps_file_pread(sort->fd, sort->dir, cursor->buffer, n, cursor->offset, err);
    if (status == HPS_OK) {
        cursor->offset += n;
        cursor->at = 0;
        cursor->have = n;
    }
    return status;
}

static bool entry_before(const struct entry *a, const struct entry *b)
{
    return a->key < b->key || (a->key == b->key && a->slot < b->slot);
}

/* Sift the entry at `at` down. */
static void heap_sift(struct entry *heap, size_t n, size_t at)
{
    struct entry moving = heap[at];

    for (;;) {
        size_t child = 2 * at + 1;

        if (child >= n) {
            break;
        }
        if (child + 1 < n && entry_before(&heap[child + 1], &heap[child])) {
            child++;
        }
        if (!entry_before(&heap[child], &moving)) {
            break;
        }
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moving;
}

hps_status rowsort_merge_begin(struct hps_rowsort *sort, size_t first, size_t k,
                               size_t buffer_records, struct hps_error *err)
{
    size_t buffer_bytes = buffer_records * sort->record_bytes;
    uint8_t *at = sort->arena;

    HPS_ASSERT(k > 0 && first + k <= sort->n_runs);
    sort->buffer_bytes = buffer_bytes;
    sort->cursors = (struct cursor *)(void *)at;
    at += rowsort_round_up(k * sizeof(struct cursor));
    sort->heap = (struct entry *)(void *)at;
    at += rowsort_round_up(k * sizeof(struct entry));
    sort->out = at;
    at += rowsort_round_up(sort->out_records * sort->record_bytes);
    HPS_ASSERT(at + k * buffer_bytes <= sort->arena + sort->arena_bytes);
    for (size_t i = 0; i < k; i++) {
        const struct run *run = &sort->runs[first + i];

        sort->cursors[i] = (struct cursor){.offset = run->offset,
                                           .end = run->offset + run->n_rows * sort->record_bytes,
                                           .buffer = at + i * buffer_bytes};
        hps_status status = cursor_fill(sort, &sort->cursors[i], err);
        if (status != HPS_OK) {
            return status;
        }
        sort->heap[i] = (struct entry){.key = cursor_key(&sort->cursors[i]), .slot = i};
    }
    sort->n_heap = k;
    for (size_t i = k / 2; i-- > 0;) {
        heap_sift(sort->heap, k, i);
    }
    return HPS_OK;
}

/* Remove the smallest record. */
static hps_status merge_advance(struct hps_rowsort *sort, struct hps_error *err)
{
    struct cursor *cursor = &sort->cursors[sort->heap[0].slot];

    HPS_DEBUG_ASSERT(sort->n_heap > 0);
    cursor->at += sort->record_bytes;
    if (cursor->at == cursor->have && cursor->offset < cursor->end) {
        hps_status status = cursor_fill(sort, cursor, err);
        if (status != HPS_OK) {
            return status;
        }
    }
    if (cursor->at < cursor->have) {
        sort->heap[0].key = cursor_key(cursor);
    } else {
        sort->heap[0] = sort->heap[--sort->n_heap];
    }
    if (sort->n_heap > 1) {
        heap_sift(sort->heap, sort->n_heap, 0);
    }
    return HPS_OK;
}

hps_status rowsort_merge_next(struct hps_rowsort *sort, size_t max_records,
                              const struct target *target, size_t *out_n, struct hps_error *err)
{
    hps_key last = 0;
    uint64_t duplicates = 0;
    size_t n = 0;

    while (sort->n_heap > 0) {
        const struct cursor *cursor = &sort->cursors[sort->heap[0].slot];
        hps_key key = sort->heap[0].key;

        if (n > 0 && key == last) {
            duplicates++;
        } else if (n == max_records) {
            break;
        } else {
            memcpy(target->keys + n * target->key_stride, &key, ROWSORT_KEY_BYTES);
            last = key;
            n++;
        }
        memcpy(target->rows + (n - 1) * target->row_stride,
               cursor->buffer + cursor->at + ROWSORT_KEY_BYTES, sort->row_bytes);
        hps_status status = merge_advance(sort, err);
        if (status != HPS_OK) {
            return status;
        }
    }
    rowsort_count(&sort->n_duplicates, duplicates);
    *out_n = n;
    return HPS_OK;
}

/* Merge runs[first .. first + k) into one run at the end of another file. */
static hps_status merge_group(struct hps_rowsort *sort, size_t first, size_t k,
                              size_t buffer_records, int fd, uint64_t *file_bytes,
                              struct run *out_run, struct hps_error *err)
{
    struct run run = {.offset = *file_bytes, .key_last = sort->runs[first].key_last};

    hps_status status = rowsort_merge_begin(sort, first, k, buffer_records, err);
    while (status == HPS_OK && sort->n_heap > 0) {
        struct target target = rowsort_out_target(sort);
        size_t n = 0;

        status = rowsort_merge_next(sort, sort->out_records, &target, &n, err);
        if (status == HPS_OK) {
            status = rowsort_write_out(sort, fd, file_bytes, n, err);
            run.n_rows += n;
            memcpy(&run.key_last, sort->out + (n - 1) * sort->record_bytes, ROWSORT_KEY_BYTES);
        }
    }
    if (status == HPS_OK) {
        rowsort_count(&sort->n_runs_written, 1);
        *out_run = run;
    }
    return status;
}

hps_status rowsort_merge_runs(struct hps_rowsort *sort, struct hps_error *err)
{
    uint64_t file_bytes = 0;
    size_t buffer_records = 0;
    size_t n_merged = 0;
    int fd = -1;

    size_t k = rowsort_fan_in(sort, &buffer_records);
    hps_status status = rowsort_open_spill(sort, &fd, err);
    if (status != HPS_OK) {
        return status;
    }
    for (size_t first = 0; status == HPS_OK && first < sort->n_runs; first += k) {
        size_t n = sort->n_runs - first < k ? sort->n_runs - first : k;
        struct run run;

        status = merge_group(sort, first, n, buffer_records, fd, &file_bytes, &run, err);
        if (status == HPS_OK) {
            HPS_ASSERT(n_merged <= first); /* the later ones are not merged yet */
            sort->runs[n_merged++] = run;
        }
    }
    if (status != HPS_OK) {
        close(fd);
        return status;
    }
    close(sort->fd);
    sort->fd = fd;
    sort->file_bytes = file_bytes;
    sort->n_runs = n_merged;
    return HPS_OK;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * External merge sort within a memory budget. See base/rows/rowsort.h.
 *
 * One arena, sized from the budget, is used for input and then for merges. During input:
 *
 *     | entries[capacity] | scratch[capacity] | rows[capacity] | the same again | out |
 *
 * Entries are (key, slot). They are radix-sorted, with scratch as the second buffer; rows do not
 * move. A full area is gathered in key order through `out` to the end of the spill file, as one
 * run. With two areas, a thread spills one while the other is filled. There is only one area before
 * the first spill, unless the hint says that the rows will not fit, and in a small arena.
 * rowsort_merge.c merges the runs.
 */
#include "base/rows/rowsort.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/rows/fileio.h"
#include "base/rows/rowsort_internal.h"

enum {
    RADIX_DIGITS = 8, /* of 8 bits each */
    ROWS_MIN = 16,
    RUNS_MAX = 16384,
    OUT_BYTES_MAX = 1 << 20,
    AREA_BYTES_MIN = 256 << 10, /* smaller areas only make more runs */
    SLACK_BYTES = 4096, /* for allocations of hps_rowsort_new other than the arena and the runs */
};

static hps_status check_cancel(const struct hps_rowsort *sort, struct hps_error *err)
{
    if (sort->options.cancel != NULL &&
        atomic_load_explicit(sort->options.cancel, memory_order_relaxed)) {
        return hps_error_set(err, HPS_CANCELLED, "sort of rows: cancelled");
    }
    return HPS_OK;
}

/* Divide the arena for input. */
static void input_layout(struct hps_rowsort *sort)
{
    size_t bytes_per_row = 2 * sizeof(struct entry) + sort->row_bytes;

    sort->out_records = rowsort_clamp(sort->arena_bytes / 16 / sort->record_bytes, 1,
                                      OUT_BYTES_MAX / sort->record_bytes);
    size_t out_bytes = sort->out_records * sort->record_bytes;
    size_t area_bytes =
        (sort->arena_bytes - rowsort_round_up(out_bytes)) / sort->n_areas - 3 * ROWSORT_ALIGN;
    sort->capacity = area_bytes / bytes_per_row;
    uint8_t *at = sort->arena;
    for (unsigned i = 0; i < sort->n_areas; i++) {
        struct area *area = &sort->areas[i];
        *area = (struct area){.entries = (struct entry *)(void *)at, .ascending = true};
        area->scratch = area->entries + sort->capacity;
        area->rows = at + rowsort_round_up(2 * sort->capacity * sizeof(struct entry));
        at = area->rows + rowsort_round_up(sort->capacity * sort->row_bytes);
    }
    sort->in = &sort->areas[0];
    sort->out = at;
    HPS_ASSERT(sort->out + out_bytes <= sort->arena + sort->arena_bytes);
    HPS_ASSERT(sort->capacity > 0);
}

/* The budget left for the arena, or the size for the hinted number of rows if smaller. Without a
 * hint *out_all_fit is unchanged; else it says whether the hinted rows fit. */
static size_t arena_size(const struct hps_rowsort *sort, bool *out_all_fit)
{
    const struct hps_rowsort_options *options = &sort->options;
    size_t bytes =
        options->memory_bytes - sizeof(*sort) - sort->runs_max * sizeof(struct run) - SLACK_BYTES;
    uint64_t needed;

    if (options->n_rows_hint > 0 &&
        !__builtin_mul_overflow(options->n_rows_hint,
                                (uint64_t)(sort->row_bytes + 2 * sizeof(struct entry)), &needed)) {
        /* `out` takes a 16th of the arena: 1/14 more. The rest is for alignment. */
        needed += needed / 14 + ROWS_MIN * (sort->record_bytes + ROWSORT_ALIGN);
        *out_all_fit = needed <= bytes;
        bytes = needed < bytes ? (size_t)needed : bytes;
    }
    return bytes & ~(size_t)(ROWSORT_ALIGN - 1);
}

hps_status hps_rowsort_new(const struct hps_rowsort_options *options, struct hps_rowsort **out_sort,
                           struct hps_error *err)
{
    HPS_ASSERT(options->row_bytes > 0);
    if (options->memory_bytes < HPS_ROWSORT_MEMORY_BYTES_MIN ||
        options->memory_bytes / ROWS_MIN < options->row_bytes + ROWSORT_KEY_BYTES) {
        return hps_error_set(err, HPS_INVALID,
                             "memory to sort rows: %zu bytes, expected at least %d and %d rows of "
                             "%" PRIu32 " bytes",
                             options->memory_bytes, HPS_ROWSORT_MEMORY_BYTES_MIN, ROWS_MIN,
                             options->row_bytes);
    }
    struct hps_rowsort *sort = hps_calloc(1, sizeof(*sort));
    if (sort == NULL) {
        goto no_memory;
    }
    sort->options = *options;
    sort->row_bytes = options->row_bytes;
    sort->record_bytes = ROWSORT_KEY_BYTES + (size_t)options->row_bytes;
    sort->fd = -1;
    sort->runs_max = rowsort_clamp(options->memory_bytes / 32 / sizeof(struct run), 2, RUNS_MAX);
    bool all_fit = true;
    sort->arena_bytes = arena_size(sort, &all_fit);
    sort->n_areas = all_fit ? 1 : 2;
    sort->runs = hps_alloc(sort->runs_max * sizeof(struct run));
    sort->dir = hps_strdup(options->dir != NULL ? options->dir : ".");
    sort->arena = hps_alloc_aligned(ROWSORT_ALIGN, sort->arena_bytes);
    if (sort->runs == NULL || sort->dir == NULL || sort->arena == NULL) {
        goto no_memory;
    }
    input_layout(sort);
    *out_sort = sort;
    return HPS_OK;

no_memory:
    hps_rowsort_free(sort);
    return hps_error_set(err, HPS_NO_MEMORY, "no memory to sort rows within %zu bytes",
                         options->memory_bytes);
}

void hps_rowsort_free(struct hps_rowsort *sort)
{
    if (sort == NULL) {
        return;
    }
    hps_worker_join(&sort->spiller);
    if (sort->fd >= 0) {
        close(sort->fd);
    }
    hps_free_aligned(sort->arena);
    hps_free(sort->runs);
    hps_free(sort->dir);
    hps_free(sort);
}

/* Stable, least significant digit first; skips digits that all keys share. */
static void radix_sort(struct area *area)
{
    size_t counts[RADIX_DIGITS][256] = {{0}};
    struct entry *from = area->entries;
    struct entry *to = area->scratch;
    size_t n = area->n;

    for (size_t i = 0; i < n; i++) {
        for (int digit = 0; digit < RADIX_DIGITS; digit++) {
            counts[digit][(from[i].key >> (8 * digit)) & 0xff]++;
        }
    }
    for (int digit = 0; digit < RADIX_DIGITS; digit++) {
        size_t *at = counts[digit];
        size_t sum = 0;

        if (at[(from[0].key >> (8 * digit)) & 0xff] == n) {
            continue;
        }
        for (int value = 0; value < 256; value++) {
            size_t here = at[value];

            at[value] = sum;
            sum += here;
        }
        for (size_t i = 0; i < n; i++) {
            to[at[(from[i].key >> (8 * digit)) & 0xff]++] = from[i];
        }
        struct entry *swap = from;
        from = to;
        to = swap;
    }
    area->entries = from;
    area->scratch = to;
}

static bool ascends(const struct area *area)
{
    size_t i = 1;

    while (i < area->n && area->entries[i - 1].key < area->entries[i].key) {
        i++;
    }
    return i >= area->n;
}

/* Sort the rows of an area: entries[n] are then strictly ascending, without duplicates. */
static void sort_memory(struct hps_rowsort *sort, struct area *area)
{
    size_t kept = 0;

    if (area->ascending || area->n == 0) {
        return;
    }
    HPS_ASSERT(area->n <= sort->capacity);
    radix_sort(area);
    struct entry *entries = area->entries;
    for (size_t i = 0; i < area->n; i++) {
        if (i + 1 == area->n || entries[i].key != entries[i + 1].key) {
            entries[kept++] = entries[i];
        }
    }
    rowsort_count(&sort->n_duplicates, area->n - kept);
    area->n = kept;
    HPS_DEBUG_ASSERT(ascends(area));
}

/* Copy entries[first .. first + n) and their rows out. */
static void gather(const struct hps_rowsort *sort, const struct area *area, size_t first, size_t n,
                   const struct target *target)
{
    const struct entry *entries = area->entries + first;

    HPS_ASSERT(first <= area->n && n <= area->n - first);
    for (size_t i = 0; i < n; i++) {
        /* Rows are in random order: prefetch. */
        if (i + 8 < n) {
            __builtin_prefetch(area->rows + entries[i + 8].slot * sort->row_bytes);
        }
        memcpy(target->keys + i * target->key_stride, &entries[i].key, ROWSORT_KEY_BYTES);
        memcpy(target->rows + i * target->row_stride,
               area->rows + entries[i].slot * sort->row_bytes, sort->row_bytes);
    }
}

struct target rowsort_out_target(const struct hps_rowsort *sort)
{
    return (struct target){.keys = sort->out,
                           .rows = sort->out + ROWSORT_KEY_BYTES,
                           .key_stride = sort->record_bytes,
                           .row_stride = sort->record_bytes};
}

hps_status rowsort_open_spill(const struct hps_rowsort *sort, int *out_fd, struct hps_error *err)
{
    int fd = open(sort->dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

    if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR)) {
        char *name =
            hps_file_path("%s/.rowsort.tmp-%ld-%p", sort->dir, (long)getpid(), (const void *)sort);
        if (name == NULL) {
            return hps_error_set(err, HPS_NO_MEMORY, "no memory to spill rows");
        }
        fd = open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (fd >= 0 && unlink(name) != 0) {
            hps_status status = hps_file_error(err, errno, "cannot unlink", name);
            close(fd);
            hps_free(name);
            return status;
        }
        hps_free(name);
    }
    if (fd < 0) {
        return hps_file_error(err, errno, "cannot make a temporary file in", sort->dir);
    }
    *out_fd = fd;
    return HPS_OK;
}

hps_status rowsort_write_out(struct hps_rowsort *sort, int fd, uint64_t *file_bytes, size_t n,
                             struct hps_error *err)
{
    size_t bytes = n * sort->record_bytes;
    struct statvfs fs;

    HPS_ASSERT(fd >= 0 && n <= sort->out_records);
    hps_status status = check_cancel(sort, err);
    if (status != HPS_OK) {
        return status;
    }
    if (sort->options.disk_free_bytes_min > 0) {
        if (fstatvfs(fd, &fs) != 0) {
            return hps_file_error(err, errno, "cannot read the free space of", sort->dir);
        }
        uint64_t bytes_free = (uint64_t)fs.f_bavail * fs.f_frsize;
        if (bytes_free < bytes || bytes_free - bytes < sort->options.disk_free_bytes_min) {
            return hps_error_set(err, HPS_EXHAUSTED,
                                 "%s: %" PRIu64 " bytes free while sorting rows, expected at least "
                                 "%" PRIu64,
                                 sort->dir, bytes_free, sort->options.disk_free_bytes_min);
        }
    }
    status = hps_file_pwrite(fd, sort->dir, sort->out, bytes, *file_bytes, err);
    if (status == HPS_OK) {
        *file_bytes += bytes;
        rowsort_count(&sort->bytes_spilled, bytes);
    }
    return status;
}

/* Write the rows of an area as a run, or append them to the last run if they come after it. */
static hps_status spill(struct hps_rowsort *sort, struct area *area, struct hps_error *err)
{
    hps_status status = HPS_OK;

    HPS_ASSERT(area->n > 0 && sort->n_runs < sort->runs_max);
    sort_memory(sort, area);
    if (sort->fd < 0) {
        status = rowsort_open_spill(sort, &sort->fd, err);
    }
    uint64_t offset = sort->file_bytes;
    struct target target = rowsort_out_target(sort);
    for (size_t at = 0; status == HPS_OK && at < area->n;) {
        size_t n = area->n - at < sort->out_records ? area->n - at : sort->out_records;

        gather(sort, area, at, n, &target);
        status = rowsort_write_out(sort, sort->fd, &sort->file_bytes, n, err);
        at += n;
    }
    if (status != HPS_OK) {
        return status;
    }
    struct run *last = sort->n_runs > 0 ? &sort->runs[sort->n_runs - 1] : NULL;
    if (last != NULL && last->key_last < area->entries[0].key) {
        last->n_rows += area->n;
        last->key_last = area->entries[area->n - 1].key;
    } else {
        sort->runs[sort->n_runs++] = (struct run){
            .offset = offset, .n_rows = area->n, .key_last = area->entries[area->n - 1].key};
        rowsort_count(&sort->n_runs_written, 1);
    }
    return HPS_OK;
}

static void *spiller_run(void *arg)
{
    struct hps_rowsort *sort = arg;

    sort->spill_status = spill(sort, sort->spilled, &sort->spill_error);
    return NULL;
}

/* Wait until the thread has spilled its area. Returns its result. */
static hps_status spiller_wait(struct hps_rowsort *sort, struct hps_error *err)
{
    if (!sort->spiller.running) {
        return HPS_OK;
    }
    hps_worker_join(&sort->spiller);
    if (sort->spill_status != HPS_OK && err != NULL) {
        *err = sort->spill_error;
    }
    return sort->spill_status;
}

/* The area being filled is full: have it spilled, and continue in an empty one. */
static hps_status spill_full_area(struct hps_rowsort *sort, struct hps_error *err)
{
    HPS_ASSERT(sort->phase == PHASE_INPUT && sort->in->n == sort->capacity);
    hps_status status = spiller_wait(sort, err);
    if (status != HPS_OK) {
        return status;
    }
    HPS_ASSERT(!sort->spiller.running);
    if (sort->n_areas == 2 && sort->n_runs + 1 < sort->runs_max) {
        sort->spilled = sort->in;
        hps_ignore(hps_worker_start(&sort->spiller, "rowsort", 0, spiller_run, sort));
    }
    if (sort->spiller.running) {
        sort->in = sort->in == &sort->areas[0] ? &sort->areas[1] : &sort->areas[0];
        sort->in->n = 0;
        sort->in->ascending = true;
        return HPS_OK;
    }
    status = spill(sort, sort->in, err);
    if (status == HPS_OK && sort->n_runs == sort->runs_max) {
        status = rowsort_merge_runs(sort, err);
    }
    sort->n_areas = sort->arena_bytes >= 2 * AREA_BYTES_MIN ? 2 : 1;
    input_layout(sort);
    return status;
}

/* Add entries for the keys of n rows that were added at the end of the area. */
static void note_keys(struct hps_rowsort *sort, const hps_key *keys, size_t n)
{
    struct area *in = sort->in;
    struct entry *entries = in->entries + in->n;
    HPS_ASSERT(n <= sort->capacity - in->n);
    bool ascending = in->ascending;
    hps_key last = in->n > 0 ? entries[-1].key : 0;

    for (size_t i = 0; i < n; i++) {
        ascending = ascending && (last < keys[i] || in->n + i == 0);
        last = keys[i];
        entries[i] = (struct entry){.key = keys[i], .slot = in->n + i};
    }
    in->ascending = ascending;
    in->n += n;
    rowsort_count(&sort->n_rows_in, n);
}

static hps_status fail(struct hps_rowsort *sort, hps_status status)
{
    if (status != HPS_OK) {
        sort->phase = PHASE_FAILED;
    }
    return status;
}

hps_status hps_rowsort_add(struct hps_rowsort *sort, const hps_key *keys, const void *rows,
                           size_t n, struct hps_error *err)
{
    const uint8_t *bytes = (const uint8_t *)rows;

    HPS_ASSERT(sort->phase == PHASE_INPUT);
    hps_status status = check_cancel(sort, err);
    while (status == HPS_OK && n > 0) {
        if (sort->in->n == sort->capacity) {
            status = spill_full_area(sort, err);
            continue;
        }
        size_t n_free = sort->capacity - sort->in->n;
        size_t m = n < n_free ? n : n_free;
        memcpy(sort->in->rows + sort->in->n * sort->row_bytes, bytes, m * sort->row_bytes);
        note_keys(sort, keys, m);
        keys += m;
        bytes += m * sort->row_bytes;
        n -= m;
    }
    return fail(sort, status);
}

/* Read rows directly to their final place, and keys into scratch, which is unused until the sort.
 */
static hps_status take_rows(struct hps_rowsort *sort, struct hps_row_reader *reader,
                            struct hps_error *err)
{
    size_t rows_max =
        rowsort_clamp(ROWSORT_TAKE_BYTES_MAX / sort->row_bytes, 1, ROWSORT_TAKE_BYTES_MAX);

    for (;;) {
        size_t n = 0;

        hps_status status = check_cancel(sort, err);
        if (status == HPS_OK && sort->in->n == sort->capacity) {
            status = spill_full_area(sort, err);
        }
        if (status != HPS_OK) {
            return status;
        }
        struct area *in = sort->in;
        size_t n_free = sort->capacity - in->n;
        hps_key *keys = &in->scratch[0].key;
        status = hps_row_reader_next(reader, n_free < rows_max ? n_free : rows_max, keys,
                                     in->rows + in->n * sort->row_bytes, &n, err);
        if (status != HPS_OK || n == 0) {
            return status;
        }
        note_keys(sort, keys, n);
    }
}

hps_status hps_rowsort_take(struct hps_rowsort *sort, struct hps_row_reader *reader,
                            struct hps_error *err)
{
    const struct hps_row_desc *desc = hps_row_reader_desc(reader);

    HPS_ASSERT(sort->phase == PHASE_INPUT);
    HPS_ASSERT(sort->in->n == 0 && !sort->spiller.running && sort->n_runs == 0);
    HPS_ASSERT(hps_dtype_row_bytes(desc->dtype, desc->dim) == sort->row_bytes);
    hps_status status = hps_row_reader_scan_keys(reader, err);
    hps_row_reader_rewind(reader);
    if (status == HPS_OK && desc->sorted_unique) {
        sort->reader = reader;
        sort->phase = PHASE_DIRECT;
        return HPS_OK;
    }
    if (status == HPS_OK) {
        status = take_rows(sort, reader, err);
    }
    return fail(sort, status);
}

static hps_status finish_spilled(struct hps_rowsort *sort, struct hps_error *err)
{
    size_t buffer_records = 0;
    hps_status status = HPS_OK;

    if (sort->in->n > 0) {
        status = spill(sort, sort->in, err);
    }
    while (status == HPS_OK && rowsort_fan_in(sort, &buffer_records) < sort->n_runs) {
        status = rowsort_merge_runs(sort, err);
    }
    if (status == HPS_OK) {
        status = rowsort_merge_begin(sort, 0, sort->n_runs, buffer_records, err);
    }
    return status;
}

hps_status hps_rowsort_finish(struct hps_rowsort *sort, struct hps_error *err)
{
    if (sort->phase == PHASE_DIRECT) {
        return HPS_OK;
    }
    HPS_ASSERT(sort->phase == PHASE_INPUT);
    hps_status status = spiller_wait(sort, err);
    if (status == HPS_OK && sort->n_runs == 0) {
        sort_memory(sort, sort->in);
        sort->next_entry = 0;
        sort->phase = PHASE_MEMORY;
        return HPS_OK;
    }
    if (status == HPS_OK) {
        status = finish_spilled(sort, err);
    }
    if (status == HPS_OK) {
        sort->phase = PHASE_MERGE;
    }
    return fail(sort, status);
}

hps_status hps_rowsort_next(struct hps_rowsort *sort, size_t max_rows, hps_key *keys, void *rows,
                            size_t *out_n, struct hps_error *err)
{
    struct target target = {.keys = (uint8_t *)keys,
                            .rows = (uint8_t *)rows,
                            .key_stride = ROWSORT_KEY_BYTES,
                            .row_stride = sort->row_bytes};
    size_t n = 0;

    HPS_ASSERT(max_rows > 0 && keys != NULL && rows != NULL);
    HPS_ASSERT(sort->phase != PHASE_INPUT && !sort->spiller.running);
    hps_status status = check_cancel(sort, err);
    if (status != HPS_OK) {
        return fail(sort, status);
    }
    switch (sort->phase) {
    case PHASE_DIRECT:
        status = hps_row_reader_next(sort->reader, max_rows, keys, rows, &n, err);
        rowsort_count(&sort->n_rows_in, n);
        break;
    case PHASE_MEMORY:
        n = sort->in->n - sort->next_entry < max_rows ? sort->in->n - sort->next_entry : max_rows;
        gather(sort, sort->in, sort->next_entry, n, &target);
        sort->next_entry += n;
        break;
    default:
        HPS_ASSERT(sort->phase == PHASE_MERGE);
        status = rowsort_merge_next(sort, max_rows, &target, &n, err);
        break;
    }
    if (status == HPS_OK) {
        rowsort_count(&sort->n_rows_out, n);
        *out_n = n;
    }
    return fail(sort, status);
}

void hps_rowsort_progress_get(const struct hps_rowsort *sort,
                              struct hps_rowsort_progress *out_progress)
{
    *out_progress = (struct hps_rowsort_progress){
        .n_rows_in = atomic_load_explicit(&sort->n_rows_in, memory_order_relaxed),
        .n_rows_out = atomic_load_explicit(&sort->n_rows_out, memory_order_relaxed),
        .n_duplicates = atomic_load_explicit(&sort->n_duplicates, memory_order_relaxed),
        .n_runs = atomic_load_explicit(&sort->n_runs_written, memory_order_relaxed),
        .bytes_spilled = atomic_load_explicit(&sort->bytes_spilled, memory_order_relaxed),
    };
}

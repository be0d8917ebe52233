/* SPDX-License-Identifier: Apache-2.0
 *
 * External merge sort within a memory budget. See base/rows/rowsort.h.
 *
 * One arena, sized from the budget, is used twice. While rows come in:
 *
 *     | entries[capacity] | scratch[capacity] | rows[capacity] | the same again | out |
 *
 * entries are (key, slot) and are radix-sorted with scratch as the other half; rows never move. A
 * full area is gathered in key order through `out` to the end of the spill file: one run. Unless
 * all rows are said to fit, there are two areas: one is spilled by a thread of its own while the
 * other is filled. While merging:
 *
 *     | cursors[k] | heap[k] | out | buffer of run 0 | ... | buffer of run k-1 |
 *
 * A run is records of 8-byte key and row. Runs are kept in order of their arrival, so that of equal
 * keys the one in the highest run is the newest. When there are more runs than buffers fit, groups
 * of neighbours are merged into a second file first.
 */
#include "base/rows/rowsort.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/rows/fileio.h"
#include "base/thread.h"

enum {
    KEY_BYTES = 8,
    RADIX_DIGITS = 8, /* of 8 bits each */
    ROWS_MIN = 16,
    RUNS_MAX = 16384,
    OUT_BYTES_MAX = 1 << 20,
    /* Below this a read from an SSD costs more in calls than in bytes. */
    MERGE_BUFFER_BYTES_MIN = 64 << 10,
    TAKE_BYTES_MAX = 8 << 20,   /* per read: how long a cancel may wait */
    AREA_BYTES_MIN = 256 << 10, /* below it two areas only make more runs */
    SLACK_BYTES = 4096, /* for what hps_rowsort_new allocates beside the arena and the runs */
    ALIGN = 64
};

struct entry {
    hps_key key;
    uint64_t slot; /* index of a row, or of a run when merging */
};

struct run {
    uint64_t offset; /* bytes */
    uint64_t n_rows;
    hps_key key_last;
};

struct cursor {
    uint64_t offset; /* of the next byte to read from the file */
    uint64_t end;
    uint8_t *buffer;
    size_t at;
    size_t have;
};

/* Rows as they came in, and what is sorted for them. */
struct area {
    struct entry *entries;
    struct entry *scratch;
    uint8_t *rows;
    size_t n;
    bool ascending; /* entries ascend strictly as they are */
};

enum phase { PHASE_INPUT, PHASE_DIRECT, PHASE_MEMORY, PHASE_MERGE, PHASE_FAILED };

/* Where records go: apart for the caller, interleaved for a run. */
struct target {
    uint8_t *keys;
    uint8_t *rows;
    size_t key_stride;
    size_t row_stride;
};

struct hps_rowsort {
    struct hps_rowsort_options options;
    char *dir;
    size_t row_bytes;
    size_t record_bytes;
    enum phase phase;
    uint8_t *arena;
    size_t arena_bytes;

    struct area areas[2];
    unsigned n_areas;
    struct area *in; /* being filled */
    uint8_t *out;
    size_t out_records;
    size_t capacity;   /* of an area */
    size_t next_entry; /* PHASE_MEMORY */

    /* While it spills, the file, the runs and `out` are the thread's. */
    pthread_t spiller;
    bool spilling;
    struct area *spilled; /* by the thread */
    hps_status spill_status;
    struct hps_error spill_error;

    int fd; /* -1: nothing spilled */
    uint64_t file_bytes;
    struct run *runs;
    size_t runs_max;
    size_t n_runs;

    struct cursor *cursors;
    struct entry *heap;
    size_t n_heap;
    size_t buffer_bytes; /* of each cursor */

    struct hps_row_reader *reader; /* PHASE_DIRECT */

    atomic_uint_fast64_t n_rows_in;
    atomic_uint_fast64_t n_rows_out;
    atomic_uint_fast64_t n_duplicates;
    atomic_uint_fast64_t n_runs_written;
    atomic_uint_fast64_t bytes_spilled;
};

static void count(atomic_uint_fast64_t *counter, uint64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static size_t round_up(size_t n)
{
    return (n + ALIGN - 1) & ~(size_t)(ALIGN - 1);
}

static hps_status check_cancel(const struct hps_rowsort *sort, struct hps_error *err)
{
    if (sort->options.cancel != NULL &&
        atomic_load_explicit(sort->options.cancel, memory_order_relaxed)) {
        return hps_error_set(err, HPS_CANCELLED, "sort of rows: cancelled");
    }
    return HPS_OK;
}

static size_t clamp(size_t n, size_t low, size_t high)
{
    return n < low ? low : n > high ? high : n;
}

/* How the arena is cut while rows come in. */
static void input_layout(struct hps_rowsort *sort)
{
    size_t bytes_per_row = 2 * sizeof(struct entry) + sort->row_bytes;

    sort->out_records =
        clamp(sort->arena_bytes / 16 / sort->record_bytes, 1, OUT_BYTES_MAX / sort->record_bytes);
    size_t out_bytes = sort->out_records * sort->record_bytes;
    size_t area_bytes = (sort->arena_bytes - round_up(out_bytes)) / sort->n_areas - 3 * ALIGN;
    sort->capacity = area_bytes / bytes_per_row;
    uint8_t *at = sort->arena;
    for (unsigned i = 0; i < sort->n_areas; i++) {
        struct area *area = &sort->areas[i];
        *area = (struct area){.entries = (struct entry *)(void *)at, .ascending = true};
        area->scratch = area->entries + sort->capacity;
        area->rows = at + round_up(2 * sort->capacity * sizeof(struct entry));
        at = area->rows + round_up(sort->capacity * sort->row_bytes);
    }
    sort->in = &sort->areas[0];
    sort->out = at;
    HPS_ASSERT(sort->out + out_bytes <= sort->arena + sort->arena_bytes);
    HPS_ASSERT(sort->capacity > 0);
}

/* The budget left for the arena, or what the hinted number of rows needs if that is less.
 * out_all_fit: false if the hint says that they will not. */
static size_t arena_size(const struct hps_rowsort *sort, bool *out_all_fit)
{
    const struct hps_rowsort_options *options = &sort->options;
    size_t bytes =
        options->memory_bytes - sizeof(*sort) - sort->runs_max * sizeof(struct run) - SLACK_BYTES;
    uint64_t needed;

    if (options->n_rows_hint > 0 &&
        !__builtin_mul_overflow(options->n_rows_hint,
                                (uint64_t)(sort->row_bytes + 2 * sizeof(struct entry)), &needed)) {
        /* 1/14 more for `out`, which takes a 16th of the arena, and the rest for alignment. */
        needed += needed / 14 + ROWS_MIN * (sort->record_bytes + ALIGN);
        *out_all_fit = needed <= bytes;
        bytes = needed < bytes ? (size_t)needed : bytes;
    }
    return bytes & ~(size_t)(ALIGN - 1);
}

hps_status hps_rowsort_new(const struct hps_rowsort_options *options, struct hps_rowsort **out_sort,
                           struct hps_error *err)
{
    HPS_ASSERT(options->row_bytes > 0);
    if (options->memory_bytes < HPS_ROWSORT_MEMORY_BYTES_MIN ||
        options->memory_bytes / ROWS_MIN < options->row_bytes + KEY_BYTES) {
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
    sort->record_bytes = KEY_BYTES + (size_t)options->row_bytes;
    sort->fd = -1;
    sort->runs_max = clamp(options->memory_bytes / 32 / sizeof(struct run), 2, RUNS_MAX);
    bool all_fit = true;
    sort->arena_bytes = arena_size(sort, &all_fit);
    sort->n_areas = all_fit ? 1 : 2;
    sort->runs = hps_alloc(sort->runs_max * sizeof(struct run));
    sort->dir = hps_strdup(options->dir != NULL ? options->dir : ".");
    sort->arena = hps_alloc_aligned(ALIGN, sort->arena_bytes);
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
    if (sort->spilling) {
        pthread_join(sort->spiller, NULL);
    }
    if (sort->fd >= 0) {
        close(sort->fd);
    }
    hps_free_aligned(sort->arena);
    hps_free(sort->runs);
    hps_free(sort->dir);
    hps_free(sort);
}

/* Stable, least significant digit first; digits that all keys share are skipped. */
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

/* Put the rows of an area in order: afterwards entries[n] ascend strictly, without duplicates. */
static void sort_memory(struct hps_rowsort *sort, struct area *area)
{
    size_t kept = 0;

    if (area->ascending || area->n == 0) {
        return;
    }
    radix_sort(area);
    struct entry *entries = area->entries;
    for (size_t i = 0; i < area->n; i++) {
        if (i + 1 == area->n || entries[i].key != entries[i + 1].key) {
            entries[kept++] = entries[i];
        }
    }
    count(&sort->n_duplicates, area->n - kept);
    area->n = kept;
}

/* Copy entries[first .. first + n) and their rows out. */
static void gather(const struct hps_rowsort *sort, const struct area *area, size_t first, size_t n,
                   const struct target *target)
{
    const struct entry *entries = area->entries + first;

    for (size_t i = 0; i < n; i++) {
        /* Rows lie in random order: fetch well ahead. */
        if (i + 8 < n) {
            __builtin_prefetch(area->rows + entries[i + 8].slot * sort->row_bytes);
        }
        memcpy(target->keys + i * target->key_stride, &entries[i].key, KEY_BYTES);
        memcpy(target->rows + i * target->row_stride,
               area->rows + entries[i].slot * sort->row_bytes, sort->row_bytes);
    }
}

static struct target out_target(const struct hps_rowsort *sort)
{
    return (struct target){.keys = sort->out,
                           .rows = sort->out + KEY_BYTES,
                           .key_stride = sort->record_bytes,
                           .row_stride = sort->record_bytes};
}

/* A file without a name: whatever happens to us, nothing is left behind. */
static hps_status open_spill(const struct hps_rowsort *sort, int *out_fd, struct hps_error *err)
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

/* Append n records of `out` to the file. */
static hps_status write_out(struct hps_rowsort *sort, int fd, uint64_t *file_bytes, size_t n,
                            struct hps_error *err)
{
    size_t bytes = n * sort->record_bytes;
    struct statvfs fs;

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
        count(&sort->bytes_spilled, bytes);
    }
    return status;
}

static hps_status merge_runs(struct hps_rowsort *sort, struct hps_error *err);

/* Turn the rows of an area into a run, or into more of the last run if they come after it. */
static hps_status spill(struct hps_rowsort *sort, struct area *area, struct hps_error *err)
{
    hps_status status = HPS_OK;

    sort_memory(sort, area);
    if (sort->fd < 0) {
        status = open_spill(sort, &sort->fd, err);
    }
    uint64_t offset = sort->file_bytes;
    struct target target = out_target(sort);
    for (size_t at = 0; status == HPS_OK && at < area->n;) {
        size_t n = area->n - at < sort->out_records ? area->n - at : sort->out_records;

        gather(sort, area, at, n, &target);
        status = write_out(sort, sort->fd, &sort->file_bytes, n, err);
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
        count(&sort->n_runs_written, 1);
    }
    return HPS_OK;
}

static void *spiller_run(void *arg)
{
    struct hps_rowsort *sort = arg;

    sort->spill_status = spill(sort, sort->spilled, &sort->spill_error);
    return NULL;
}

/* Wait until the thread has spilled its area; how that went. */
static hps_status spiller_wait(struct hps_rowsort *sort, struct hps_error *err)
{
    if (!sort->spilling) {
        return HPS_OK;
    }
    pthread_join(sort->spiller, NULL);
    sort->spilling = false;
    if (sort->spill_status != HPS_OK && err != NULL) {
        *err = sort->spill_error;
    }
    return sort->spill_status;
}

/* The area that is being filled is full: have it spilled, and go on in an empty one. */
static hps_status make_room(struct hps_rowsort *sort, struct hps_error *err)
{
    hps_status status = spiller_wait(sort, err);
    if (status != HPS_OK) {
        return status;
    }
    if (sort->n_areas == 2 && sort->n_runs + 1 < sort->runs_max) {
        sort->spilled = sort->in;
        sort->spilling = hps_thread_start(0, spiller_run, sort, &sort->spiller) == HPS_OK;
    }
    if (sort->spilling) {
        sort->in = sort->in == &sort->areas[0] ? &sort->areas[1] : &sort->areas[0];
        sort->in->n = 0;
        sort->in->ascending = true;
        return HPS_OK;
    }
    status = spill(sort, sort->in, err);
    if (status == HPS_OK && sort->n_runs == sort->runs_max) {
        status = merge_runs(sort, err);
    }
    sort->n_areas = sort->arena_bytes >= 2 * AREA_BYTES_MIN ? 2 : 1;
    input_layout(sort);
    return status;
}

/* Take note of the keys of n rows that were put at the end of the arena. */
static void note_keys(struct hps_rowsort *sort, const hps_key *keys, size_t n)
{
    struct area *in = sort->in;
    struct entry *entries = in->entries + in->n;
    bool ascending = in->ascending;
    hps_key last = in->n > 0 ? entries[-1].key : 0;

    for (size_t i = 0; i < n; i++) {
        ascending = ascending && (last < keys[i] || in->n + i == 0);
        last = keys[i];
        entries[i] = (struct entry){.key = keys[i], .slot = in->n + i};
    }
    in->ascending = ascending;
    in->n += n;
    count(&sort->n_rows_in, n);
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
            status = make_room(sort, err);
            continue;
        }
        size_t room = sort->capacity - sort->in->n;
        size_t m = n < room ? n : room;
        memcpy(sort->in->rows + sort->in->n * sort->row_bytes, bytes, m * sort->row_bytes);
        note_keys(sort, keys, m);
        keys += m;
        bytes += m * sort->row_bytes;
        n -= m;
    }
    return fail(sort, status);
}

/* Rows are read straight to where they stay; keys into scratch, which is unused until the sort. */
static hps_status take_rows(struct hps_rowsort *sort, struct hps_row_reader *reader,
                            struct hps_error *err)
{
    size_t rows_max = clamp(TAKE_BYTES_MAX / sort->row_bytes, 1, TAKE_BYTES_MAX);

    for (;;) {
        size_t n = 0;

        hps_status status = check_cancel(sort, err);
        if (status == HPS_OK && sort->in->n == sort->capacity) {
            status = make_room(sort, err);
        }
        if (status != HPS_OK) {
            return status;
        }
        struct area *in = sort->in;
        size_t room = sort->capacity - in->n;
        hps_key *keys = &in->scratch[0].key;
        status = hps_row_reader_next(reader, room < rows_max ? room : rows_max, keys,
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
    HPS_ASSERT(sort->in->n == 0 && !sort->spilling && sort->n_runs == 0);
    HPS_ASSERT((uint64_t)desc->dim * hps_dtype_bytes(desc->dtype) == sort->row_bytes);
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

/* Bytes that one run's buffer should have, and how many runs can then be merged at once. */
static size_t fan_in(const struct hps_rowsort *sort, size_t *out_buffer_records)
{
    size_t out_bytes = round_up(sort->out_records * sort->record_bytes);
    size_t room = sort->arena_bytes - out_bytes - 3 * ALIGN;
    size_t per_run = sizeof(struct cursor) + sizeof(struct entry);
    size_t records = clamp(MERGE_BUFFER_BYTES_MIN / sort->record_bytes, 1, MERGE_BUFFER_BYTES_MIN);
    size_t k = room / (per_run + records * sort->record_bytes);

    if (k < 2) { /* an arena cut down by a hint that proved too small, or very wide rows */
        records = 1;
        k = room / (per_run + sort->record_bytes);
    }
    HPS_ASSERT(k >= 2);
    if (k >= sort->n_runs) {
        k = sort->n_runs;
        records = clamp((room / k - per_run) / sort->record_bytes, 1,
                        clamp(TAKE_BYTES_MAX / sort->record_bytes, 1, TAKE_BYTES_MAX));
    }
    *out_buffer_records = records;
    return k;
}

static hps_key cursor_key(const struct cursor *cursor)
{
    hps_key key;

    memcpy(&key, cursor->buffer + cursor->at, KEY_BYTES);
    return key;
}

static hps_status cursor_fill(const struct hps_rowsort *sort, struct cursor *cursor,
                              struct hps_error *err)
{
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

/* Move the root down to its place. */
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

/* Begin to merge runs[first .. first + k). The arena must hold no rows. */
static hps_status merge_begin(struct hps_rowsort *sort, size_t first, size_t k,
                              size_t buffer_records, struct hps_error *err)
{
    size_t buffer_bytes = buffer_records * sort->record_bytes;
    uint8_t *at = sort->arena;

    sort->buffer_bytes = buffer_bytes;
    sort->cursors = (struct cursor *)(void *)at;
    at += round_up(k * sizeof(struct cursor));
    sort->heap = (struct entry *)(void *)at;
    at += round_up(k * sizeof(struct entry));
    sort->out = at;
    at += round_up(sort->out_records * sort->record_bytes);
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

/* Step over the smallest record. */
static hps_status merge_advance(struct hps_rowsort *sort, struct hps_error *err)
{
    struct cursor *cursor = &sort->cursors[sort->heap[0].slot];

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

/* Write up to max_records records, each key once: equal keys come in order of age, the last
 * stays. */
static hps_status merge_next(struct hps_rowsort *sort, size_t max_records,
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
            memcpy(target->keys + n * target->key_stride, &key, KEY_BYTES);
            last = key;
            n++;
        }
        memcpy(target->rows + (n - 1) * target->row_stride, cursor->buffer + cursor->at + KEY_BYTES,
               sort->row_bytes);
        hps_status status = merge_advance(sort, err);
        if (status != HPS_OK) {
            return status;
        }
    }
    count(&sort->n_duplicates, duplicates);
    *out_n = n;
    return HPS_OK;
}

/* Merge runs[first .. first + k) into one run at the end of another file. */
static hps_status merge_group(struct hps_rowsort *sort, size_t first, size_t k,
                              size_t buffer_records, int fd, uint64_t *file_bytes,
                              struct run *out_run, struct hps_error *err)
{
    struct run run = {.offset = *file_bytes, .key_last = sort->runs[first].key_last};

    hps_status status = merge_begin(sort, first, k, buffer_records, err);
    while (status == HPS_OK && sort->n_heap > 0) {
        struct target target = out_target(sort);
        size_t n = 0;

        status = merge_next(sort, sort->out_records, &target, &n, err);
        if (status == HPS_OK) {
            status = write_out(sort, fd, file_bytes, n, err);
            run.n_rows += n;
            memcpy(&run.key_last, sort->out + (n - 1) * sort->record_bytes, KEY_BYTES);
        }
    }
    if (status == HPS_OK) {
        count(&sort->n_runs_written, 1);
        *out_run = run;
    }
    return status;
}

/* One pass: fewer and longer runs, in a new file. */
static hps_status merge_runs(struct hps_rowsort *sort, struct hps_error *err)
{
    uint64_t file_bytes = 0;
    size_t buffer_records = 0;
    size_t n_merged = 0;
    int fd = -1;

    size_t k = fan_in(sort, &buffer_records);
    hps_status status = open_spill(sort, &fd, err);
    if (status != HPS_OK) {
        return status;
    }
    for (size_t first = 0; status == HPS_OK && first < sort->n_runs; first += k) {
        size_t n = sort->n_runs - first < k ? sort->n_runs - first : k;
        struct run run;

        status = merge_group(sort, first, n, buffer_records, fd, &file_bytes, &run, err);
        if (status == HPS_OK) {
            sort->runs[n_merged++] = run; /* never ahead of `first` */
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

static hps_status finish_spilled(struct hps_rowsort *sort, struct hps_error *err)
{
    size_t buffer_records = 0;
    hps_status status = HPS_OK;

    if (sort->in->n > 0) {
        status = spill(sort, sort->in, err);
    }
    while (status == HPS_OK && fan_in(sort, &buffer_records) < sort->n_runs) {
        status = merge_runs(sort, err);
    }
    if (status == HPS_OK) {
        status = merge_begin(sort, 0, sort->n_runs, buffer_records, err);
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
                            .key_stride = KEY_BYTES,
                            .row_stride = sort->row_bytes};
    size_t n = 0;

    HPS_ASSERT(max_rows > 0);
    hps_status status = check_cancel(sort, err);
    if (status != HPS_OK) {
        return fail(sort, status);
    }
    switch (sort->phase) {
    case PHASE_DIRECT:
        status = hps_row_reader_next(sort->reader, max_rows, keys, rows, &n, err);
        count(&sort->n_rows_in, n);
        break;
    case PHASE_MEMORY:
        n = sort->in->n - sort->next_entry < max_rows ? sort->in->n - sort->next_entry : max_rows;
        gather(sort, sort->in, sort->next_entry, n, &target);
        sort->next_entry += n;
        break;
    default:
        HPS_ASSERT(sort->phase == PHASE_MERGE);
        status = merge_next(sort, max_rows, &target, &n, err);
        break;
    }
    if (status == HPS_OK) {
        count(&sort->n_rows_out, n);
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

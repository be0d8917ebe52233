/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of bases by key. The keys of a call are sorted. Keys on the same or adjacent pages share one
 * read, a *run*. Rows of mapped pages that were checked before are copied at once. All other runs
 * are read by io_uring on the calling thread, one ring per call; or, without a ring, by pread on
 * several threads. Thread-safe.
 */
#include <errno.h>
#include <liburing.h>
#include <string.h>

#include "backends/basefile/internal.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/key_sort.h"
#include "base/log.h"
#include "base/pool.h"
#include "base/rows/fileio.h"

enum {
    RUN_PAGES = 4,      /* most pages of a run, unless a row needs more */
    RUN_PAGES_MAX = 66, /* a row has at most 256 KiB */
    PIECE_KEYS = 32,    /* of one thread of the pool at a time */
    AHEAD_KEYS = 8,     /* rows that are fetched into the CPU's cache ahead */
    RINGS_MAX = 64,     /* ever made, or tried */
    DEPTH = 128,        /* reads in flight of a ring */
    RING_BYTES = 2 << 20,
};

/* One call. Threads of the pool share it; each has its own keys. */
struct read {
    struct hps_basefile_store *store;
    struct hps_basefile_want *wants;
    uint32_t n_keys;
    uint32_t run_pages;
    bool mapped;
    uint64_t deadline_us;
    atomic_int status; /* the first failure */
};

/* Some keys of a read, which have no run yet. They may belong to several wants. */
struct cursor {
    const struct hps_basefile_want *want;
    uint32_t at; /* index of the next key in the want */
    uint32_t n;
};

/* Keys of one want on adjacent pages. */
struct run {
    const struct hps_basefile_want *want;
    uint32_t first; /* index of the first key in the want */
    uint32_t n;
    uint64_t page;
    uint32_t n_pages;
};

/* Returns whether it is the first failure. */
static bool read_fail(struct read *read, hps_status status)
{
    int none = HPS_OK;
    return atomic_compare_exchange_strong(&read->status, &none, (int)status);
}

static bool read_late(struct read *read)
{
    bool late = read->deadline_us != 0 && hps_clock_us() >= read->deadline_us;
    if (late) {
        (void)read_fail(read, HPS_DEADLINE);
    }
    return late;
}

/* ---- pages ----------------------------------------------------------------------------------- */

static enum hps_read_mode read_mode(const struct hps_basefile_store *store)
{
    const struct hps_basefile_options *options = &store->options;
    uint64_t bytes = atomic_load(&store->bytes);
    bytes += options->mapped_bytes != NULL ? atomic_load(options->mapped_bytes) : 0;
    enum hps_read_mode fitting = bytes <= options->memory_bytes ? HPS_READ_MMAP : HPS_READ_DIRECT;
    return options->read_mode == HPS_READ_AUTO ? fitting : options->read_mode;
}

static int pages_fd(const struct hps_basefile *base)
{
    bool direct = base->fd_direct >= 0 && read_mode(base->store) == HPS_READ_DIRECT;
    return direct ? base->fd_direct : base->fd;
}

hps_status hps_basefile_pages_read(const struct hps_basefile *base, uint64_t page, uint64_t n,
                                   uint8_t *to, struct hps_error *err)
{
    int fd = pages_fd(base);
    size_t bytes = n * HPS_BASEFILE_PAGE_BYTES;
    uint64_t offset = page * HPS_BASEFILE_PAGE_BYTES;
    hps_status status = hps_file_pread(fd, base->name, to, bytes, offset, err);
    if (status != HPS_OK && fd != base->fd) { /* some file systems refuse direct reads only now */
        status = hps_file_pread(base->fd, base->name, to, bytes, offset, err);
    }
    return status;
}

/* ---- runs ------------------------------------------------------------------------------------ */

static uint64_t row_offset(const struct hps_basefile_want *want, uint32_t i)
{
    return (want->batch.keys[i] - want->base->record.first) * want->base->table->row_bytes;
}

static uint64_t first_page(const struct hps_basefile_want *want, uint32_t i)
{
    return row_offset(want, i) / HPS_BASEFILE_PAGE_BYTES;
}

static uint64_t last_page(const struct hps_basefile_want *want, uint32_t i)
{
    return (row_offset(want, i) + want->base->table->row_bytes - 1) / HPS_BASEFILE_PAGE_BYTES;
}

static void row_copy(const struct hps_basefile_want *want, uint32_t i, const uint8_t *from)
{
    uint32_t row_bytes = want->base->table->row_bytes;
    memcpy(want->batch.rows + (size_t)want->batch.slots[i] * row_bytes, from, row_bytes);
    want->found[i] = 1;
}

/* Copy the row of key i from the mapping, if its pages were checked. */
static bool row_mapped(const struct read *read, const struct hps_basefile_want *want, uint32_t i)
{
    const struct hps_basefile *base = want->base;
    if (!read->mapped || base->map == NULL) {
        return false;
    }
    if (i + AHEAD_KEYS < want->batch.n) {
        __builtin_prefetch(base->map + row_offset(want, i + AHEAD_KEYS));
    }
    for (uint64_t page = first_page(want, i); page <= last_page(want, i); page++) {
        if (atomic_load_explicit(&base->pages[page], memory_order_acquire) != HPS_BASEFILE_GOOD) {
            return false;
        }
    }
    row_copy(want, i, base->map + row_offset(want, i));
    return true;
}

static void cursor_step(struct cursor *cursor)
{
    cursor->at++;
    cursor->n--;
}

/* Find the next run; copy the mapped rows before it. False: no keys are left. */
static bool run_next(const struct read *read, struct cursor *cursor, struct run *run)
{
    while (cursor->n > 0) {
        const struct hps_basefile_want *want = cursor->want;
        if (cursor->at == want->batch.n) {
            cursor->want++;
            cursor->at = 0;
            continue;
        }
        if (row_mapped(read, want, cursor->at)) {
            cursor_step(cursor);
            continue;
        }
        uint64_t page = first_page(want, cursor->at);
        uint64_t end = page;
        *run = (struct run){want, cursor->at, 0, page, 0};
        while (cursor->n > 0 && cursor->at < want->batch.n && first_page(want, cursor->at) <= end) {
            uint64_t after = last_page(want, cursor->at) + 1;
            if (run->n > 0 && after - page > read->run_pages) {
                break;
            }
            end = after;
            run->n++;
            cursor_step(cursor);
        }
        run->n_pages = (uint32_t)(end - page);
        HPS_ASSERT(run->n > 0 && run->n_pages <= RUN_PAGES_MAX);
        return true;
    }
    return false;
}

/* Check the pages of a run and copy its rows. */
static void run_take(struct read *read, const struct run *run, const uint8_t *data)
{
    struct hps_basefile *base = run->want->base;
    bool good[RUN_PAGES_MAX];
    for (uint32_t i = 0; i < run->n_pages; i++) {
        good[i] = hps_basefile_page_check(base, run->page + i,
                                          data + (size_t)i * HPS_BASEFILE_PAGE_BYTES);
        if (!good[i]) {
            (void)read_fail(read, HPS_DATA_LOSS);
        } else if (read->mapped) {
            atomic_store_explicit(&base->pages[run->page + i], HPS_BASEFILE_GOOD,
                                  memory_order_release);
        }
    }
    for (uint32_t i = 0; i < run->n; i++) {
        uint32_t at = run->first + i;
        bool all = true;
        for (uint64_t page = first_page(run->want, at); page <= last_page(run->want, at); page++) {
            all = all && good[page - run->page];
        }
        if (all) {
            row_copy(run->want, at,
                     data + (row_offset(run->want, at) - run->page * HPS_BASEFILE_PAGE_BYTES));
        }
    }
}

static void run_pread(struct read *read, const struct run *run, uint8_t *data)
{
    struct hps_error err;
    hps_status status =
        hps_basefile_pages_read(run->want->base, run->page, run->n_pages, data, &err);
    if (status == HPS_OK) {
        run_take(read, run, data);
    } else if (read_fail(read, status)) {
        HPS_LOG(ERROR, "rocksdb", "base file: read failed", HPS_STR("error", err.text));
    }
}

/* ---- by io_uring ----------------------------------------------------------------------------- */

struct hps_basefile_ring {
    uint8_t buffer[RING_BYTES];
    struct io_uring uring;
    struct hps_basefile_ring *next;
};

static void ring_free(struct hps_basefile_ring *ring)
{
    io_uring_queue_exit(&ring->uring);
    hps_free_aligned(ring);
}

/* NULL: the kernel does not permit io_uring, or is too old, or there is no memory. */
static struct hps_basefile_ring *ring_new(void)
{
    struct hps_basefile_ring *ring = hps_alloc_aligned(HPS_BASEFILE_PAGE_BYTES, sizeof(*ring));
    if (ring == NULL || io_uring_queue_init(DEPTH, &ring->uring, 0) != 0) {
        hps_free_aligned(ring);
        return NULL;
    }
    if ((ring->uring.features & IORING_FEAT_RW_CUR_POS) == 0) { /* came with IORING_OP_READ */
        ring_free(ring);
        return NULL;
    }
    return ring;
}

static void ring_put(struct hps_basefile_store *store, struct hps_basefile_ring *ring)
{
    hps_lock_acquire(&store->lock);
    ring->next = store->rings;
    store->rings = ring;
    hps_lock_release(&store->lock);
}

/* NULL: no io_uring, or all rings are in use. */
static struct hps_basefile_ring *ring_get(struct hps_basefile_store *store)
{
    hps_lock_acquire(&store->lock);
    struct hps_basefile_ring *ring = store->rings;
    bool make = ring == NULL && store->n_rings_left > 0;
    if (ring != NULL) {
        store->rings = ring->next;
    }
    store->n_rings_left -= make ? 1 : 0;
    hps_lock_release(&store->lock);
    return make ? ring_new() : ring;
}

bool hps_basefile_rings_open(struct hps_basefile_store *store)
{
    struct hps_basefile_ring *ring = ring_new();
    if (ring != NULL) {
        store->n_rings_left = RINGS_MAX - 1;
        ring_put(store, ring);
    }
    return ring != NULL;
}

void hps_basefile_rings_close(struct hps_basefile_store *store)
{
    while (store->rings != NULL) {
        struct hps_basefile_ring *ring = store->rings;
        store->rings = ring->next;
        ring_free(ring);
    }
}

/* The part of a ring's buffer for the run with this tag. */
static uint8_t *run_data(const struct read *read, struct hps_basefile_ring *ring, uint64_t tag)
{
    return ring->buffer + tag * read->run_pages * HPS_BASEFILE_PAGE_BYTES;
}

static void run_start(const struct read *read, struct hps_basefile_ring *ring,
                      const struct run *run, uint64_t tag)
{
    struct io_uring_sqe *entry = io_uring_get_sqe(&ring->uring);
    HPS_ASSERT(entry != NULL);
    io_uring_prep_read(entry, pages_fd(run->want->base), run_data(read, ring, tag),
                       run->n_pages * HPS_BASEFILE_PAGE_BYTES, run->page * HPS_BASEFILE_PAGE_BYTES);
    entry->user_data = tag;
}

/* Handle all finished reads, and start a further run for each. Returns the number of runs in
 * flight. */
static uint32_t ring_take(struct read *read, struct hps_basefile_ring *ring, struct cursor *cursor,
                          struct run *runs, uint32_t n)
{
    struct io_uring_cqe *result = NULL;
    while (io_uring_peek_cqe(&ring->uring, &result) == 0) {
        uint64_t tag = result->user_data;
        struct run *run = &runs[tag];
        bool whole = result->res == (int)(run->n_pages * HPS_BASEFILE_PAGE_BYTES);
        io_uring_cqe_seen(&ring->uring, result);
        if (whole) {
            run_take(read, run, run_data(read, ring, tag));
        } else {
            run_pread(read, run, run_data(read, ring, tag)); /* again, for the cause */
        }
        if (!read_late(read) && run_next(read, cursor, run)) {
            run_start(read, ring, run, tag);
        } else {
            n--;
        }
    }
    return n;
}

/* False: there is no ring. */
static bool ring_read(struct read *read)
{
    struct run runs[DEPTH]; /* in flight; the index is the tag */
    struct cursor cursor = {read->wants, 0, read->n_keys};
    struct hps_basefile_ring *ring = NULL;
    uint32_t n_max = RING_BYTES / (read->run_pages * HPS_BASEFILE_PAGE_BYTES);
    uint32_t n = 0; /* in flight */
    for (; n < n_max && n < DEPTH && run_next(read, &cursor, &runs[n]); n++) {
        ring = ring != NULL ? ring : ring_get(read->store);
        if (ring == NULL) {
            return false;
        }
        run_start(read, ring, &runs[n], n);
    }
    while (n > 0) {
        int result = io_uring_submit_and_wait(&ring->uring, 1);
        if (result < 0 && result != -EINTR) {
            HPS_LOG(ERROR, "rocksdb", "base file: io_uring failed",
                    HPS_STR("error", strerror(-result)));
            (void)read_fail(read, HPS_IO);
            return true; /* the kernel may still write to the buffer, so it is never freed */
        }
        n = ring_take(read, ring, &cursor, runs, n);
    }
    if (ring != NULL) {
        ring_put(read->store, ring);
    }
    return true;
}

/* ---- by pread -------------------------------------------------------------------------------- */

static void read_piece(void *ctx, uint32_t piece)
{
    struct read *read = ctx;
    uint32_t from = piece * PIECE_KEYS;
    uint32_t n = read->n_keys - from < PIECE_KEYS ? read->n_keys - from : PIECE_KEYS;
    struct cursor cursor = {read->wants, from, n};
    struct run run;
    uint8_t *data = hps_alloc_aligned(HPS_BASEFILE_PAGE_BYTES,
                                      (size_t)read->run_pages * HPS_BASEFILE_PAGE_BYTES);
    if (data == NULL) {
        (void)read_fail(read, HPS_NO_MEMORY);
        return;
    }
    while (cursor.at >= cursor.want->batch.n) {
        cursor.at -= cursor.want->batch.n;
        cursor.want++;
    }
    while (!read_late(read) && run_next(read, &cursor, &run)) {
        run_pread(read, &run, data);
    }
    hps_free_aligned(data);
}

/* ---- one call -------------------------------------------------------------------------------- */

hps_status hps_basefile_read(struct hps_basefile_store *store, const struct hps_call *call,
                             struct hps_basefile_want *wants, uint32_t n_wants)
{
    struct read read = {.store = store,
                        .wants = wants,
                        .run_pages = RUN_PAGES,
                        .mapped = read_mode(store) == HPS_READ_MMAP,
                        .deadline_us = call->deadline_us};
    for (uint32_t i = 0; i < n_wants; i++) {
        struct hps_batch *batch = &wants[i].batch;
        if (batch->n > 0) {
            uint32_t pages = wants[i].base->table->row_bytes / HPS_BASEFILE_PAGE_BYTES + 2;
            read.run_pages = pages > read.run_pages ? pages : read.run_pages;
            read.n_keys += batch->n;
            hps_key_sort(batch->keys, batch->slots, batch->n);
        }
    }
    if (read.n_keys == 0) {
        return HPS_OK;
    }
    uint8_t *found = hps_calloc(read.n_keys, 1);
    if (found == NULL) {
        return HPS_NO_MEMORY;
    }
    uint8_t *next = found;
    for (uint32_t w = 0; w < n_wants; w++) {
        wants[w].found = next;
        next += wants[w].batch.n;
    }
    if (!read_late(&read) && !ring_read(&read)) {
        hps_pool_split(store->options.readers, (read.n_keys + PIECE_KEYS - 1) / PIECE_KEYS,
                       read_piece, &read);
    }
    for (uint32_t w = 0; w < n_wants; w++) {
        for (uint32_t i = wants[w].batch.n; i-- > 0;) {
            if (wants[w].found[i] != 0) {
                hps_batch_found(&wants[w].batch, i);
            }
        }
    }
    hps_free(found);
    return (hps_status)atomic_load(&read.status);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading rows by key, in sorted batches, and scanning tables. A large lookup is divided among the
 * reader threads (rocksdb-read) and its caller. Blocks on disk. Thread-safe.
 */
#include <inttypes.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "backends/rocksdb/internal.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/key_sort.h"
#include "base/log.h"
#include "base/pool.h"

enum {
    SCAN_ROWS = 1024,
    VIEW_READAHEAD_BYTES = 2 << 20,
    CHUNK_KEYS = 1024,    /* per multi-get; the deadline is checked between them */
    SPLIT_KEYS_CPU = 512, /* minimum keys per reader if reading only copies */
    SPLIT_KEYS_DISK = 8,  /* minimum if each row waits for the disk */
    CHUNK_KEYS_DISK = 32, /* maximum then: RocksDB's own limit for one pass */
    READERS_EACH = 4,     /* readers per n_threads, which is usually 16 */
    READERS_MAX = 64,     /* disks were at their best with 64 reads at once */
    COLD_ALL = 1 << 16,
    COLD_MIN = COLD_ALL / 32, /* the disk then takes most of the time */
    COLD_KEYS = 256,          /* number of recent keys in the average */
};

/* ---- one multi-get --------------------------------------------------------------------------- */

/* The origin of a requested key: index in the batch of a part. */
struct asked {
    uint32_t part;
    uint32_t at;
};

/* Arrays for one multi-get of up to n_max keys, in one allocation. */
struct multi_get {
    struct asked *asked;
    const char **keys;
    size_t *sizes;
    rocksdb_pinnableslice_t **values;
    char **errors;
    char *bytes;
};

static size_t multi_get_bytes(uint32_t n_max)
{
    return n_max * (sizeof(struct asked) + sizeof(char *) + sizeof(size_t) + 2 * sizeof(void *) +
                    HPS_ROCKSDB_KEY_BYTES);
}

static void multi_get_init(struct multi_get *get, void *memory, uint32_t n_max)
{
    get->keys = memory;
    get->sizes = (size_t *)(void *)(get->keys + n_max);
    get->values = (rocksdb_pinnableslice_t **)(void *)(get->sizes + n_max);
    get->errors = (char **)(void *)(get->values + n_max);
    get->asked = (struct asked *)(void *)(get->errors + n_max);
    get->bytes = (char *)(get->asked + n_max);
    for (uint32_t i = 0; i < n_max; i++) {
        get->keys[i] = get->bytes + (size_t)i * HPS_ROCKSDB_KEY_BYTES;
        get->sizes[i] = HPS_ROCKSDB_KEY_BYTES;
    }
}

/* Copy one value to its row. Does not free the value. */
static hps_status answer_take(struct hps_space *space, const struct hps_table *table,
                              const rocksdb_pinnableslice_t *value, hps_key key, uint8_t *row)
{
    size_t size = 0;
    const char *data = rocksdb_pinnableslice_value(value, &size);
    if (size != table->row_bytes) {
        HPS_LOG(ERROR, "rocksdb", "row damaged: its size is wrong; replace the version",
                HPS_STR("family", ((struct hps_rocksdb_space *)space)->family->name),
                HPS_STR("table", table->name), HPS_U64("key", key), HPS_U64("bytes", size),
                HPS_U64("expected", table->row_bytes));
        return HPS_DATA_LOSS;
    }
    memcpy(row, data, size);
    return HPS_OK;
}

/* ---- one read -------------------------------------------------------------------------------- */

/* One part of a read: a batch sorted by key. */
struct read_part {
    const struct hps_table *table;
    struct hps_batch *batch;
    uint32_t first; /* number of its first key within the read */
};

/* The keys of one request, read in chunks by one or more threads. Parts are sorted by table id, so
 * keys are in the order of the family. A thread writes only the marks and rows of its chunk. The
 * batches are reordered when all chunks are done. */
struct read {
    struct hps_space *space;
    struct read_part *parts;
    uint32_t n_parts;
    uint32_t n_keys;
    uint32_t n_chunk; /* keys per chunk; the last may have fewer */
    uint32_t n_chunks;
    uint32_t n_pieces; /* piece p has the chunks p, p + n_pieces, … */
    uint8_t *marks;    /* [n_keys] 1: found */
    uint64_t deadline_us;
    const rocksdb_readoptions_t *options;
    atomic_int status; /* first failure; chunks that begin later are skipped */
};

static void read_fail(struct read *read, hps_status status)
{
    int none = HPS_OK;
    atomic_compare_exchange_strong(&read->status, &none, (int)status);
}

/* Take the result for requested key i. */
static void read_answer(struct read *read, struct multi_get *get, uint32_t i)
{
    const struct read_part *part = &read->parts[get->asked[i].part];
    uint32_t at = get->asked[i].at;
    HPS_DEBUG_ASSERT(at < part->batch->n && read->marks[part->first + at] == 0);
    if (get->errors[i] != NULL) {
        if (atomic_load(&read->status) == HPS_OK) {
            read_fail(read, hps_rocksdb_log_text(get->errors[i], "read failed"));
        } else {
            rocksdb_free(get->errors[i]);
        }
    }
    if (get->values[i] == NULL) {
        return;
    }
    uint8_t *row = part->batch->rows + (size_t)part->batch->slots[at] * part->table->row_bytes;
    hps_status status =
        answer_take(read->space, part->table, get->values[i], part->batch->keys[at], row);
    rocksdb_pinnableslice_destroy(get->values[i]);
    if (status == HPS_OK) {
        read->marks[part->first + at] = 1;
    } else {
        read_fail(read, status);
    }
}

static void read_asked(struct read *read, struct multi_get *get, uint32_t n)
{
    memset(get->values, 0, n * sizeof(*get->values));
    memset(get->errors, 0, n * sizeof(*get->errors));
    rocksdb_batched_multi_get_cf(hps_rocksdb_of(read->space)->db, read->options,
                                 hps_rocksdb_handle(read->space), n, get->keys, get->sizes,
                                 get->values, get->errors, true);
    for (uint32_t i = 0; i < n; i++) {
        read_answer(read, get, i);
    }
}

/* Page faults of this thread that waited for the disk. */
static uint64_t faults_now(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_THREAD, &usage) == 0 ? (uint64_t)usage.ru_majflt : 0;
}

/* A thread has read n keys with this number of faults. Threads may overwrite each other's notes. */
static void cold_note(struct hps_rocksdb *store, uint64_t n_faults, uint32_t n)
{
    uint32_t share = n_faults < n ? (uint32_t)(n_faults * COLD_ALL / n) : COLD_ALL;
    uint32_t weight = n < CHUNK_KEYS_DISK ? n : CHUNK_KEYS_DISK;
    uint32_t old = atomic_load_explicit(&store->cold_share, memory_order_relaxed);
    uint32_t mean = (old * (COLD_KEYS - weight) + share * weight) / COLD_KEYS;
    atomic_store_explicit(&store->cold_share, mean, memory_order_relaxed);
}

/* Index of the part that has key number `first` of the read. */
static uint32_t read_part_of(const struct read *read, uint32_t first)
{
    uint32_t lo = 0;
    uint32_t hi = read->n_parts;
    while (hi - lo > 1) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (read->parts[mid].first <= first) {
            lo = mid;
        } else {
            hi = mid;
        }
    }
    return lo;
}

static void read_chunk(struct read *read, struct multi_get *get, uint32_t chunk)
{
    if (read->deadline_us != 0 && hps_clock_us() >= read->deadline_us) {
        read_fail(read, HPS_DEADLINE);
    }
    if (atomic_load(&read->status) != HPS_OK) {
        return;
    }
    HPS_ASSERT(chunk < read->n_chunks);
    struct hps_rocksdb *store = hps_rocksdb_of(read->space);
    bool mapped = store->mode == HPS_READ_MMAP;
    uint64_t n_faults = mapped ? faults_now() : 0;
    uint32_t first = chunk * read->n_chunk;
    uint32_t n_all = read->n_keys - first < read->n_chunk ? read->n_keys - first : read->n_chunk;
    uint32_t left = n_all;
    uint32_t n = 0;
    for (uint32_t p = read_part_of(read, first); left > 0; p++) {
        const struct read_part *part = &read->parts[p];
        if (n > 0 && part->table->id == read->parts[p - 1].table->id) {
            read_asked(read, get, n); /* same table again, so its keys start over */
            n = 0;
        }
        uint32_t at = first > part->first ? first - part->first : 0;
        for (; at < part->batch->n && left > 0; at++, left--, n++) {
            hps_rocksdb_key_encode(get->bytes + (size_t)n * HPS_ROCKSDB_KEY_BYTES, part->table->id,
                                   part->batch->keys[at]);
            get->asked[n] = (struct asked){p, at};
        }
    }
    read_asked(read, get, n);
    if (mapped) {
        cold_note(store, faults_now() - n_faults, n_all);
    }
}

/* Read one piece of a read that several threads share. */
static void read_piece(void *ctx, uint32_t piece)
{
    struct read *read = ctx;
    void *memory = hps_alloc(multi_get_bytes(read->n_chunk));
    if (memory == NULL) {
        read_fail(read, HPS_NO_MEMORY);
        return;
    }
    struct multi_get get;
    multi_get_init(&get, memory, read->n_chunk);
    for (uint32_t chunk = piece; chunk < read->n_chunks; chunk += read->n_pieces) {
        read_chunk(read, &get, chunk);
    }
    hps_free(memory);
}

/* Read options with a deadline, which RocksDB takes in wall-clock time. The caller frees them. */
static rocksdb_readoptions_t *read_until(uint64_t deadline_us, uint64_t now_us)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t wall_us = (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
    rocksdb_readoptions_t *read = rocksdb_readoptions_create();
    rocksdb_readoptions_set_deadline(read, wall_us + (deadline_us - now_us));
    return read;
}

/* Read all chunks, then move found keys to the end of the batches. get NULL: use the readers. */
static hps_status read_run(struct read *read, struct multi_get *get)
{
    rocksdb_readoptions_t *until = NULL;
    read->options = hps_rocksdb_of(read->space)->read;
    if (read->deadline_us != 0) {
        uint64_t now_us = hps_clock_us();
        if (now_us >= read->deadline_us) {
            return HPS_DEADLINE;
        }
        read->options = until = read_until(read->deadline_us, now_us);
    }
    HPS_ASSERT(get != NULL || hps_rocksdb_of(read->space)->readers != NULL);
    if (get == NULL) {
        hps_pool_split(hps_rocksdb_of(read->space)->readers, read->n_pieces, read_piece, read);
    }
    for (uint32_t chunk = 0; get != NULL && chunk < read->n_chunks; chunk++) {
        read_chunk(read, get, chunk);
    }
    if (until != NULL) {
        rocksdb_readoptions_destroy(until);
    }
    for (uint32_t p = 0; p < read->n_parts; p++) {
        struct hps_batch *batch = read->parts[p].batch;
        for (uint32_t i = batch->n; i-- > 0;) {
            if (read->marks[read->parts[p].first + i] != 0) {
                hps_batch_found(batch, i);
            }
        }
    }
    return (hps_status)atomic_load(&read->status);
}

static uint32_t ceil_div(uint32_t a, uint32_t b)
{
    return (a + b - 1) / b;
}

/* Choose the chunks and pieces. Returns whether there is enough work for several threads. If each
 * row waits for the disk, a piece is one small chunk. Otherwise each thread has one piece, and all
 * pieces have about the same number of chunks. */
static bool read_cut(struct read *read)
{
    const struct hps_rocksdb *store = hps_rocksdb_of(read->space);
    uint32_t n_max = store->batch_keys_max < CHUNK_KEYS ? store->batch_keys_max : CHUNK_KEYS;
    HPS_ASSERT(read->n_keys > 0 && n_max > 0);
    bool disk = atomic_load_explicit(&store->disk_bound, memory_order_relaxed) ||
                atomic_load_explicit(&store->cold_share, memory_order_relaxed) > COLD_MIN;
    uint32_t share_min = disk ? SPLIT_KEYS_DISK : SPLIT_KEYS_CPU;
    bool shared = store->readers != NULL && read->n_keys >= 2 * share_min;
    uint32_t n_threads = shared ? hps_pool_threads(store->readers) + 1 : 1;
    n_threads = disk || n_threads < store->n_cpus ? n_threads : store->n_cpus;
    if (shared) {
        n_max = disk && n_max > CHUNK_KEYS_DISK ? CHUNK_KEYS_DISK : n_max;
        uint32_t n_even = ceil_div(read->n_keys, n_threads);
        n_even = n_even > share_min ? n_even : share_min;
        n_even = disk ? n_even : ceil_div(n_even, ceil_div(n_even, n_max));
        n_max = n_even < n_max ? n_even : n_max;
    }
    read->n_chunk = read->n_keys < n_max ? read->n_keys : n_max;
    read->n_chunks = ceil_div(read->n_keys, read->n_chunk);
    read->n_pieces = disk || n_threads > read->n_chunks ? read->n_chunks : n_threads;
    return shared;
}

/* Collect the parts with keys, sorted by table id (they nearly always are). */
static void read_order(struct read *read, struct hps_part_batch *parts, uint32_t n_parts)
{
    for (uint32_t i = 0; i < n_parts; i++) {
        if (parts[i].batch.n == 0) {
            continue;
        }
        uint32_t at = read->n_parts++;
        for (; at > 0 && read->parts[at - 1].table->id > parts[i].table->id; at--) {
            read->parts[at] = read->parts[at - 1];
        }
        read->parts[at] = (struct read_part){.table = parts[i].table, .batch = &parts[i].batch};
        hps_key_sort(parts[i].batch.keys, parts[i].batch.slots, parts[i].batch.n);
    }
    for (uint32_t p = 0; p < read->n_parts; p++) {
        HPS_ASSERT(p == 0 || read->parts[p - 1].table->id <= read->parts[p].table->id);
        read->parts[p].first = read->n_keys;
        read->n_keys += read->parts[p].batch->n;
    }
}

static void *scratch_alloc(const struct hps_call *call, size_t bytes, void **out_heap)
{
    void *memory = call->scratch != NULL ? hps_arena_alloc(call->scratch, bytes) : NULL;
    if (memory == NULL) {
        memory = *out_heap = hps_alloc(bytes);
    }
    return memory;
}

hps_status hps_rocksdb_get_many(struct hps_space *space, const struct hps_call *call,
                                struct hps_part_batch *parts, uint32_t n_parts)
{
    struct read read = {.space = space, .deadline_us = call->deadline_us};
    struct multi_get get;
    void *parts_heap = NULL;
    void *heap = NULL;
    hps_status status = HPS_OK;
    read.parts = scratch_alloc(call, n_parts * sizeof(*read.parts), &parts_heap);
    if (read.parts == NULL) {
        return HPS_NO_MEMORY;
    }
    read_order(&read, parts, n_parts);
    if (read.n_keys > 0) {
        bool shared = read_cut(&read);
        size_t bytes = shared ? 0 : multi_get_bytes(read.n_chunk);
        uint8_t *memory = scratch_alloc(call, bytes + read.n_keys, &heap);
        if (memory == NULL) {
            status = HPS_NO_MEMORY;
        } else {
            if (!shared) {
                multi_get_init(&get, memory, read.n_chunk);
            }
            read.marks = memset(memory + bytes, 0, read.n_keys);
            status = read_run(&read, shared ? NULL : &get);
        }
    }
    hps_free(heap);
    hps_free(parts_heap);
    return status;
}

/* The readers help with large reads. All calls share them, piece by piece, so the disk has as many
 * reads at once as there are readers. If reads only copy, a read is divided among at most as many
 * threads as there are CPUs. The caller is one of them. */
hps_status hps_rocksdb_readers_start(struct hps_rocksdb *store,
                                     const struct hps_rocksdb_options *given, struct hps_error *err)
{
    uint64_t n_most = given->n_threads > 1 ? (uint64_t)READERS_EACH * given->n_threads : 1;
    uint32_t n = (uint32_t)hps_rocksdb_clamp(n_most, 1, READERS_MAX) - 1;
    const struct hps_pool_options options = {
        .name = "rocksdb-read", .n_threads = n, .helps_late = true};
    store->n_cpus = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
    atomic_store(&store->cold_share, store->mode == HPS_READ_MMAP ? COLD_ALL : 0);
    hps_rocksdb_mode_review(store);
    if (n == 0) {
        return HPS_OK;
    }
    hps_status status = hps_pool_start(&options, &store->readers);
    return status == HPS_OK ? HPS_OK
                            : hps_error_set(err, status, "rocksdb: cannot start %u readers", n);
}

struct hps_pool *hps_rocksdb_readers(const struct hps_store *store)
{
    return ((const struct hps_rocksdb *)store)->readers;
}

const atomic_uint_fast64_t *hps_rocksdb_mapped_bytes(const struct hps_store *store)
{
    return &((const struct hps_rocksdb *)store)->mapped_bytes;
}

/* ---- scans ----------------------------------------------------------------------------------- */

struct scan_buffer {
    hps_key *keys;
    uint8_t *rows;
    uint32_t n;
};

static uint64_t read_u64_be(const char *from)
{
    uint64_t value;
    memcpy(&value, from, sizeof(value));
    return __builtin_bswap64(value);
}

static hps_status scan_rows(rocksdb_iterator_t *iter, const struct hps_table *table,
                            struct scan_buffer *buffer,
                            hps_status (*fn)(void *ctx, const hps_key *keys, const uint8_t *rows,
                                             uint32_t n),
                            void *ctx, struct hps_error *err)
{
    char prefix[HPS_ROCKSDB_KEY_BYTES];
    hps_rocksdb_key_encode(prefix, table->id, 0);
    hps_status status = HPS_OK;
    for (rocksdb_iter_seek(iter, prefix, HPS_ROCKSDB_KEY_BYTES); rocksdb_iter_valid(iter);
         rocksdb_iter_next(iter)) {
        size_t key_size = 0;
        size_t size = 0;
        const char *key = rocksdb_iter_key(iter, &key_size);
        const char *row = rocksdb_iter_value(iter, &size);
        if (key_size != HPS_ROCKSDB_KEY_BYTES || memcmp(key, prefix, sizeof(uint32_t)) != 0) {
            break;
        }
        hps_key number = read_u64_be(key + sizeof(uint32_t));
        if (size != table->row_bytes) {
            return hps_error_set(err, HPS_DATA_LOSS,
                                 "rocksdb: table %s key %" PRIu64 ": %zu bytes instead of %" PRIu32,
                                 table->name, number, size, table->row_bytes);
        }
        buffer->keys[buffer->n] = number;
        memcpy(buffer->rows + (size_t)buffer->n * size, row, size);
        if (++buffer->n == SCAN_ROWS) {
            buffer->n = 0;
            status = fn(ctx, buffer->keys, buffer->rows, SCAN_ROWS);
            if (status != HPS_OK) {
                return status;
            }
        }
    }
    char *text = NULL;
    rocksdb_iter_get_error(iter, &text);
    if (text != NULL) {
        return hps_rocksdb_fail_text(text, err, "scan failed");
    }
    return buffer->n > 0 ? fn(ctx, buffer->keys, buffer->rows, buffer->n) : HPS_OK;
}

static hps_status scan_table(struct hps_space *space, const rocksdb_readoptions_t *options,
                             const struct hps_table *table,
                             hps_status (*fn)(void *ctx, const hps_key *keys, const uint8_t *rows,
                                              uint32_t n),
                             void *ctx, struct hps_error *err)
{
    struct hps_rocksdb *store = hps_rocksdb_of(space);
    struct scan_buffer buffer = {
        .keys = hps_alloc(SCAN_ROWS * sizeof(hps_key)),
        .rows = hps_alloc((size_t)SCAN_ROWS * table->row_bytes),
    };
    hps_status status;
    if (buffer.keys == NULL || buffer.rows == NULL) {
        status = hps_rocksdb_fail_memory(err);
    } else {
        rocksdb_iterator_t *iter =
            rocksdb_create_iterator_cf(store->db, options, hps_rocksdb_handle(space));
        status = scan_rows(iter, table, &buffer, fn, ctx, err);
        rocksdb_iter_destroy(iter);
    }
    hps_free(buffer.keys);
    hps_free(buffer.rows);
    return status;
}

hps_status hps_rocksdb_scan(struct hps_space *space, const struct hps_table *table,
                            hps_status (*fn)(void *ctx, const hps_key *keys, const uint8_t *rows,
                                             uint32_t n),
                            void *ctx, struct hps_error *err)
{
    return scan_table(space, hps_rocksdb_of(space)->read_scan, table, fn, ctx, err);
}

struct view_table {
    const struct hps_rocksdb *store;
    const struct hps_view *view;
    const struct hps_table *table;
    struct hps_error *err;
};

static hps_status view_rows(void *ctx, const hps_key *keys, const uint8_t *rows, uint32_t n)
{
    const struct view_table *of = ctx;
    /* The view keeps rows that updates replace, and its files may be on the same disk. */
    if (!of->store->dir.read_only && hps_rocksdb_dir_free_bytes(&of->store->dir) == 0) {
        return hps_error_set(of->err, HPS_EXHAUSTED,
                             "the disk of persistent_db has no more than disk_free_min_bytes free");
    }
    return of->view->rows(of->view->ctx, of->table, keys, rows, n);
}

hps_status hps_rocksdb_view(struct hps_space *space, const struct hps_view *view,
                            struct hps_error *err)
{
    struct hps_rocksdb *store = hps_rocksdb_of(space);
    const rocksdb_snapshot_t *snapshot = rocksdb_create_snapshot(store->db);
    rocksdb_readoptions_t *options = rocksdb_readoptions_create();
    rocksdb_readoptions_set_fill_cache(options, 0);
    rocksdb_readoptions_set_readahead_size(options, VIEW_READAHEAD_BYTES);
    rocksdb_readoptions_set_snapshot(options, snapshot);
    hps_status status = hps_rocksdb_space_records(space, options, view->record, view->ctx, err);
    for (uint32_t i = 0; i < view->n_tables && status == HPS_OK; i++) {
        struct view_table of = {store, view, &view->tables[i], err};
        status = view->begin(view->ctx, of.table);
        if (status == HPS_OK) {
            status = scan_table(space, options, of.table, view_rows, &of, err);
        }
    }
    rocksdb_readoptions_destroy(options);
    rocksdb_release_snapshot(store->db, snapshot);
    return status;
}

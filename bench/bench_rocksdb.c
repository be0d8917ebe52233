/* SPDX-License-Identifier: Apache-2.0
 *
 * The persistent store compared with RocksDB on default options. Loads: sorted files and one
 * ingest, from rows that are in order, sorted in memory, or sorted on disk, compared with write
 * batches through the log. Reads: warm lookups compared with an unsorted multi-get and with pread
 * of a flat file. Updates: apply compared with a loop of write batches. Each way has its own
 * directory, and the ways take turns. Main thread.
 */
#include <fcntl.h>
#include <rocksdb/c.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/rocksdb/rocksdb.h"
#include "backends/store_bulk.h"
#include "backends/store_durable.h"
#include "base/hash.h"
#include "base/heap.h"
#include "base/rows/rowgen.h"
#include "base/rows/rowsort.h"
#include "bench/bench.h"

enum { DIM = 32, ROW_BYTES = DIM * 4, PIECE = 4096, N_ROWS = 2 << 20, ROUNDS = 3 };
enum { WIDE_DIM = 128, WIDE_BYTES = WIDE_DIM * 4, N_WIDE = 1 << 20, READ_ROUNDS = 5 };
enum { READS_PER_ROUND = 100000, APPLY_ROWS = 1000, APPLIES = 150 };

#define SORT_MEMORY_BYTES   (UINT64_C(1) << 30)
#define SORT_EXTERNAL_BYTES (UINT64_C(64) << 20)

static const float zeros[WIDE_DIM];
static const struct hps_table table = {"t", 0, DIM, ROW_BYTES, HPS_DTYPE_FP32, N_ROWS, zeros};
static const struct hps_table wide = {"w", 0, WIDE_DIM, WIDE_BYTES, HPS_DTYPE_FP32, N_WIDE, zeros};

/* All rows of the loads, twice: in order of key, and in the order of their arrival. */
static hps_key *keys_sorted, *keys_shuffled;
static uint8_t *rows_sorted, *rows_shuffled;

/* ---- rigging --------------------------------------------------------------------------------- */

static hps_status fail(struct hps_error *err, hps_status status, const char *what, char *text)
{
    hps_status set = hps_error_set(err, status, "%s: %s", what, text != NULL ? text : "failed");
    rocksdb_free(text);
    return set;
}

static bool rows_make(void)
{
    keys_sorted = hps_calloc(N_ROWS, sizeof(*keys_sorted));
    keys_shuffled = hps_calloc(N_ROWS, sizeof(*keys_shuffled));
    rows_sorted = hps_alloc((size_t)N_ROWS * ROW_BYTES);
    rows_shuffled = hps_alloc((size_t)N_ROWS * ROW_BYTES);
    if (keys_sorted == NULL || keys_shuffled == NULL || rows_sorted == NULL ||
        rows_shuffled == NULL) {
        return false;
    }
    for (uint64_t i = 0; i < N_ROWS; i++) {
        keys_sorted[i] = i;
        hps_rowgen_row(1, 0, i, DIM, rows_sorted + i * ROW_BYTES);
    }
    for (uint64_t i = 0; i < N_ROWS; i++) {
        keys_shuffled[i] = i * 1000003 % N_ROWS;
        memcpy(rows_shuffled + i * ROW_BYTES, rows_sorted + keys_shuffled[i] * ROW_BYTES,
               ROW_BYTES);
    }
    return true;
}

static void rows_free(void)
{
    hps_free(keys_sorted);
    hps_free(keys_shuffled);
    hps_free(rows_sorted);
    hps_free(rows_shuffled);
}

static hps_status store_open(const char *dir, unsigned n_threads, const struct hps_table *of,
                             struct hps_store **out_store, struct hps_space **out_space,
                             struct hps_error *err)
{
    const struct hps_rocksdb_options options = {
        .path = dir,
        .n_threads = n_threads,
        .batch_keys_max = PIECE,
        .disk_free_min_bytes = UINT64_C(2) << 30, /* for the default memory budgets */
        .block_cache_bytes = 64 << 20,
        .wal_sync_ms = 1000,
        .memory_bytes = UINT64_MAX,
    };
    const struct hps_space_id id = {"m", 1, of, 1, 0};
    hps_status status = hps_rocksdb_open(&options, out_store, err);
    return status == HPS_OK ? (*out_store)->ops->space_open(*out_store, &id, out_space, err)
                            : status;
}

static void store_close(struct hps_store *store, struct hps_space *space)
{
    if (space != NULL) {
        store->ops->space_close(space);
    }
    if (store != NULL) {
        store->ops->close(store);
    }
}

/* ---- loads ----------------------------------------------------------------------------------- */

enum way { IN_ORDER, SORTED_IN_MEMORY, SORTED_ON_DISK, WRITE_BATCHES, N_WAYS };

static hps_status add_sorted(struct hps_space *space, struct hps_store_load *load, const char *dir,
                             size_t memory_bytes, struct hps_error *err)
{
    const struct hps_rowsort_options options = {
        .row_bytes = ROW_BYTES, .memory_bytes = memory_bytes, .n_rows_hint = N_ROWS, .dir = dir};
    struct hps_rowsort *sort = NULL;
    static hps_key keys[PIECE];
    static uint8_t rows[PIECE * ROW_BYTES];
    hps_status status = hps_rowsort_new(&options, &sort, err);

    for (size_t at = 0; status == HPS_OK && at < N_ROWS; at += PIECE) {
        status =
            hps_rowsort_add(sort, keys_shuffled + at, rows_shuffled + at * ROW_BYTES, PIECE, err);
    }
    if (status == HPS_OK) {
        status = hps_rowsort_finish(sort, err);
    }
    for (size_t n = 1; status == HPS_OK && n > 0;) {
        status = hps_rowsort_next(sort, PIECE, keys, rows, &n, err);
        if (status == HPS_OK) {
            status = space->store->ops->bulk->add(load, &table, keys, rows, (uint32_t)n, err);
        }
    }
    hps_rowsort_free(sort);
    return status;
}

static hps_status by_load(struct hps_space *space, enum way way, const char *dir,
                          struct hps_error *err)
{
    const struct hps_store_ops *ops = space->store->ops;
    struct hps_store_load *load = NULL;
    hps_status status = ops->bulk->begin(space, N_ROWS, (uint64_t)N_ROWS * ROW_BYTES, &load, err);

    if (status != HPS_OK) {
        return status;
    }
    if (way == IN_ORDER) {
        status = ops->bulk->add(load, &table, keys_sorted, rows_sorted, N_ROWS, err);
    } else {
        status = add_sorted(space, load, dir,
                            way == SORTED_IN_MEMORY ? SORT_MEMORY_BYTES : SORT_EXTERNAL_BYTES, err);
    }
    if (status == HPS_OK) {
        status = ops->bulk->commit(load, err);
    }
    if (status != HPS_OK) {
        ops->bulk->abort(load);
    }
    return status;
}

static hps_status by_batches(struct hps_space *space, struct hps_error *err)
{
    const struct hps_call call = {0};

    for (size_t at = 0; at < N_ROWS; at += PIECE) {
        hps_status status = space->store->ops->put(space, &call, &table, keys_shuffled + at,
                                                   rows_shuffled + at * ROW_BYTES, PIECE);
        if (status != HPS_OK) {
            return hps_error_set(err, status, "put: %s", hps_status_text(status));
        }
    }
    return HPS_OK;
}

static hps_status run_way(enum way way, double *out_rows_per_s, struct hps_error *err)
{
    char dir[] = "/var/tmp/hps-bench-XXXXXX";
    struct hps_store *store = NULL;
    struct hps_space *space = NULL;

    if (mkdtemp(dir) == NULL) {
        return hps_error_set(err, HPS_IO, "no directory %s", dir);
    }
    hps_status status = store_open(dir, 2, &table, &store, &space, err);
    if (status == HPS_OK) {
        uint64_t start_ns = bench_now_ns();
        status = way == WRITE_BATCHES ? by_batches(space, err) : by_load(space, way, dir, err);
        *out_rows_per_s = (double)N_ROWS * 1e9 / (double)(bench_now_ns() - start_ns + 1);
    }
    store_close(store, space);
    bench_remove(dir);
    return status;
}

static hps_status bench_loads(struct hps_error *err)
{
    static const char *const names[N_WAYS] = {"load, in order", "load, sorted in memory",
                                              "load, sorted on disk", "write batches"};
    static const double targets[WRITE_BATCHES] = {8, 8, 4};
    static const char title[] = "bulk load, 2 Mi rows, dim 32";
    double rates[N_WAYS][ROUNDS], ratios[N_WAYS][ROUNDS];
    char name[64];

    for (int i = 0; i < ROUNDS; i++) {
        for (int way = 0; way < N_WAYS; way++) {
            hps_status status = run_way((enum way)way, &rates[way][i], err);
            if (status != HPS_OK) {
                return status;
            }
        }
        for (int way = 0; way < WRITE_BATCHES; way++) {
            ratios[way][i] = rates[way][i] / rates[WRITE_BATCHES][i];
        }
    }
    for (int way = 0; way < N_WAYS; way++) {
        bench_report(title, names[way], bench_median(rates[way], ROUNDS), "rows/s", BENCH_NO_TARGET,
                     0);
    }
    for (int way = 0; way < WRITE_BATCHES; way++) {
        (void)snprintf(name, sizeof(name), "%s / write batches", names[way]);
        bench_report(title, name, bench_median(ratios[way], ROUNDS), "ratio", BENCH_AT_LEAST,
                     targets[way]);
    }
    return HPS_OK;
}

/* ---- RocksDB as it comes --------------------------------------------------------------------- */

struct plain {
    rocksdb_options_t *options;
    rocksdb_readoptions_t *read;
    rocksdb_writeoptions_t *write;
    rocksdb_t *db;
    rocksdb_column_family_handle_t *handles[8];
    size_t n_handles;
    rocksdb_column_family_handle_t *rows; /* the family of the rows */
};

static void plain_close(struct plain *plain)
{
    for (size_t i = 0; i < plain->n_handles; i++) {
        rocksdb_column_family_handle_destroy(plain->handles[i]);
    }
    if (plain->db != NULL) {
        rocksdb_close(plain->db);
    }
    rocksdb_writeoptions_destroy(plain->write);
    rocksdb_readoptions_destroy(plain->read);
    rocksdb_options_destroy(plain->options);
}

/* Open the database at `path` with default options, or create it. */
static hps_status plain_open(struct plain *plain, const char *path, bool make,
                             struct hps_error *err)
{
    const rocksdb_options_t *each[8];
    char **names = NULL, *text = NULL;

    *plain = (struct plain){.options = rocksdb_options_create(),
                            .read = rocksdb_readoptions_create(),
                            .write = rocksdb_writeoptions_create()};
    if (make) {
        rocksdb_options_set_create_if_missing(plain->options, 1);
        plain->db = rocksdb_open(plain->options, path, &text);
        return text == NULL ? HPS_OK : fail(err, HPS_IO, "open", text);
    }
    names = rocksdb_list_column_families(plain->options, path, &plain->n_handles, &text);
    if (text != NULL || plain->n_handles > 8) {
        plain->n_handles = 0;
        return fail(err, HPS_IO, "list families", text);
    }
    for (size_t i = 0; i < plain->n_handles; i++) {
        each[i] = plain->options;
    }
    plain->db =
        rocksdb_open_column_families(plain->options, path, (int)plain->n_handles,
                                     (const char *const *)names, each, plain->handles, &text);
    for (size_t i = 0; i < plain->n_handles; i++) {
        if (strchr(names[i], '@') != NULL) {
            plain->rows = plain->handles[i];
        }
    }
    rocksdb_list_column_families_destroy(names, plain->n_handles);
    return text == NULL ? HPS_OK : fail(err, HPS_IO, "open", text);
}

enum { KEY_BYTES = 12 };

static void key_make(char *to, hps_key key)
{
    uint64_t key_be = __builtin_bswap64(key);

    memset(to, 0, 4);
    memcpy(to + 4, &key_be, 8);
}

/* ---- reads ----------------------------------------------------------------------------------- */

struct reads {
    struct plain plain;
    int flat_fd;
    uint32_t n; /* keys of a batch */
    hps_key *keys;
    hps_key *keys_used;
    uint32_t *slots;
    uint8_t *rows;
};

static uint64_t wrong_rows;

static void check_rows(const struct reads *reads)
{
    uint8_t expected[WIDE_BYTES];

    for (uint32_t i = 0; i < reads->n; i += 97) {
        hps_rowgen_row(1, 0, reads->keys[i], WIDE_DIM, expected);
        wrong_rows += memcmp(reads->rows + (size_t)i * WIDE_BYTES, expected, WIDE_BYTES) != 0;
    }
}

static void read_ours(struct reads *reads, struct hps_space *space)
{
    const struct hps_call call = {0};

    memcpy(reads->keys_used, reads->keys, reads->n * sizeof(hps_key));
    for (uint32_t i = 0; i < reads->n; i++) {
        reads->slots[i] = i;
    }
    struct hps_batch batch = {
        .keys = reads->keys_used, .slots = reads->slots, .rows = reads->rows, .n = reads->n};
    hps_status status = space->store->ops->get(space, &call, &wide, &batch);
    wrong_rows += status != HPS_OK || batch.n != 0;
}

static void read_plain(struct reads *reads)
{
    size_t n = reads->n;
    char *bytes = hps_alloc(n * KEY_BYTES);
    const char **keys = hps_calloc(n, sizeof(*keys));
    const rocksdb_column_family_handle_t **families = hps_calloc(n, sizeof(*families));
    size_t *sizes = hps_calloc(n, sizeof(*sizes));
    char **values = hps_calloc(n, sizeof(*values));
    size_t *value_sizes = hps_calloc(n, sizeof(*value_sizes));
    char **errors = hps_calloc(n, sizeof(*errors));

    for (size_t i = 0; i < n; i++) {
        key_make(bytes + i * KEY_BYTES, reads->keys[i]);
        keys[i] = bytes + i * KEY_BYTES;
        sizes[i] = KEY_BYTES;
        families[i] = reads->plain.rows;
    }
    rocksdb_multi_get_cf(reads->plain.db, reads->plain.read, families, n, keys, sizes, values,
                         value_sizes, errors);
    for (size_t i = 0; i < n; i++) {
        wrong_rows += values[i] == NULL || value_sizes[i] != WIDE_BYTES;
        if (values[i] != NULL) {
            memcpy(reads->rows + i * WIDE_BYTES, values[i], WIDE_BYTES);
        }
        rocksdb_free(values[i]);
        rocksdb_free(errors[i]);
    }
    hps_free((void *)families);
    hps_free((void *)keys);
    hps_free(bytes);
    hps_free(sizes);
    hps_free((void *)values);
    hps_free(value_sizes);
    hps_free((void *)errors);
}

static void read_flat(struct reads *reads)
{
    for (uint32_t i = 0; i < reads->n; i++) {
        ssize_t n = pread(reads->flat_fd, reads->rows + (size_t)i * WIDE_BYTES, WIDE_BYTES,
                          (off_t)(reads->keys[i] * WIDE_BYTES));
        wrong_rows += n != WIDE_BYTES;
    }
}

enum reader { OURS, PLAIN, FLAT, N_READERS };

/* Rows per second of one reader. All readers of a round use the same batches. */
static double read_round(struct reads *reads, enum reader reader, struct hps_space *space,
                         uint64_t seed)
{
    uint64_t ns = 0;

    for (uint32_t done = 0; done < READS_PER_ROUND; done += reads->n) {
        for (uint32_t i = 0; i < reads->n; i++) {
            reads->keys[i] = hps_mix64(seed + done + i) % N_WIDE;
        }
        uint64_t start_ns = bench_now_ns();
        if (reader == OURS) {
            read_ours(reads, space);
        } else if (reader == PLAIN) {
            read_plain(reads);
        } else {
            read_flat(reads);
        }
        ns += bench_now_ns() - start_ns;
        check_rows(reads);
    }
    return READS_PER_ROUND * 1e9 / (double)(ns + 1);
}

static hps_status load_wide(struct hps_space *space, const char *flat, struct hps_error *err)
{
    static uint8_t rows[PIECE * WIDE_BYTES];
    static hps_key keys[PIECE];
    const struct hps_store_ops *ops = space->store->ops;
    struct hps_store_load *load = NULL;
    int fd = open(flat, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    hps_status status = ops->bulk->begin(space, N_WIDE, (uint64_t)N_WIDE * WIDE_BYTES, &load, err);

    for (hps_key key = 0; status == HPS_OK && key < N_WIDE; key += PIECE) {
        for (uint32_t i = 0; i < PIECE; i++) {
            keys[i] = key + i;
            hps_rowgen_row(1, 0, keys[i], WIDE_DIM, rows + (size_t)i * WIDE_BYTES);
        }
        status = ops->bulk->add(load, &wide, keys, rows, PIECE, err);
        if (status == HPS_OK && write(fd, rows, sizeof(rows)) != (ssize_t)sizeof(rows)) {
            status = hps_error_set(err, HPS_IO, "cannot write %s", flat);
        }
    }
    if (status == HPS_OK) {
        status = ops->bulk->commit(load, err);
    }
    if (status != HPS_OK && load != NULL) {
        ops->bulk->abort(load);
    }
    close(fd);
    return status;
}

static void report_reads(uint32_t n_keys, const char *readers, double rates[][READ_ROUNDS])
{
    double to_plain[READ_ROUNDS], to_flat[READ_ROUNDS];
    char title[96];

    (void)snprintf(title, sizeof(title), "warm reads, 1 Mi rows, dim 128, %u keys, %s", n_keys,
                   readers);
    for (int i = 0; i < READ_ROUNDS; i++) {
        to_plain[i] = rates[OURS][i] / rates[PLAIN][i];
        to_flat[i] = rates[OURS][i] / rates[FLAT][i];
    }
    bench_report(title, "store", bench_median(rates[OURS], READ_ROUNDS), "rows/s", BENCH_NO_TARGET,
                 0);
    bench_report(title, "default multi-get", bench_median(rates[PLAIN], READ_ROUNDS), "rows/s",
                 BENCH_NO_TARGET, 0);
    bench_report(title, "flat file", bench_median(rates[FLAT], READ_ROUNDS), "rows/s",
                 BENCH_NO_TARGET, 0);
    bench_report(title, "store / default multi-get", bench_median(to_plain, READ_ROUNDS), "ratio",
                 BENCH_AT_LEAST, 2);
    bench_report(title, "store / flat file", bench_median(to_flat, READ_ROUNDS), "ratio",
                 BENCH_NO_TARGET, 0);
}

static hps_status count_rows(void *ctx, const hps_key *keys, const uint8_t *rows, uint32_t n)
{
    (void)keys;
    (void)rows;
    *(uint64_t *)ctx += n;
    return HPS_OK;
}

/* All batch sizes, with n reader threads of the store. */
static hps_status run_reads(struct reads *reads, const char *dir, unsigned n_threads,
                            const char *readers, struct hps_error *err)
{
    static const uint32_t n_keys[] = {1000, 10000};
    double rates[N_READERS][READ_ROUNDS];
    struct hps_store *store = NULL;
    struct hps_space *space = NULL;
    uint64_t n_scanned = 0;
    hps_status status = store_open(dir, n_threads, &wide, &store, &space, err);

    if (status == HPS_OK) { /* as filling the host map does */
        status = store->ops->scan(space, &wide, count_rows, &n_scanned, err);
    }
    for (unsigned size = 0; status == HPS_OK && size < 2; size++) {
        reads->n = n_keys[size];
        for (int i = -1; i < READ_ROUNDS; i++) { /* the first one only warms */
            for (int reader = 0; reader < N_READERS; reader++) {
                double rate = read_round(reads, (enum reader)reader, space,
                                         (uint64_t)(i + 2) * READS_PER_ROUND);
                rates[reader][i < 0 ? 0 : i] = rate;
            }
        }
        report_reads(reads->n, readers, rates);
    }
    store_close(store, space);
    return status;
}

static hps_status bench_reads(const char *dir, const char *copy, struct hps_error *err)
{
    char flat[256], path[256];
    struct hps_store *store = NULL;
    struct hps_space *space = NULL;
    struct reads reads = {.flat_fd = -1,
                          .keys = hps_calloc(10000, sizeof(hps_key)),
                          .keys_used = hps_calloc(10000, sizeof(hps_key)),
                          .slots = hps_calloc(10000, sizeof(uint32_t)),
                          .rows = hps_alloc((size_t)10000 * WIDE_BYTES)};

    (void)snprintf(flat, sizeof(flat), "%s/flat", dir);
    (void)snprintf(path, sizeof(path), "%s/hpsd", copy);
    hps_status status = store_open(dir, 2, &wide, &store, &space, err);
    if (status == HPS_OK) {
        status = load_wide(space, flat, err);
    }
    if (status == HPS_OK) {
        status = store->ops->durable->checkpoint(store, copy, err);
    }
    store_close(store, space);
    if (status == HPS_OK) {
        status = plain_open(&reads.plain, path, false, err);
        reads.flat_fd = open(flat, O_RDONLY | O_CLOEXEC);
        if (status == HPS_OK) {
            status = run_reads(&reads, dir, 1, "one thread", err);
        }
        if (status == HPS_OK) {
            status = run_reads(&reads, dir, 16, "with its readers", err);
        }
        plain_close(&reads.plain);
        close(reads.flat_fd);
    }
    if (status == HPS_OK && wrong_rows != 0) {
        status =
            hps_error_set(err, HPS_INTERNAL, "%llu wrong rows", (unsigned long long)wrong_rows);
    }
    hps_free(reads.keys);
    hps_free(reads.keys_used);
    hps_free(reads.slots);
    hps_free(reads.rows);
    return status;
}

/* ---- updates --------------------------------------------------------------------------------- */

static void update_keys(hps_key *keys, uint64_t batch)
{
    for (uint32_t i = 0; i < APPLY_ROWS; i++) {
        keys[i] = (batch * APPLY_ROWS + i) * 1000003 % N_WIDE;
    }
}

static hps_status apply_ours(struct hps_space *space, const uint8_t *rows, uint64_t first,
                             double *out_rows_per_s, struct hps_error *err)
{
    const struct hps_call call = {0};
    hps_key keys[APPLY_ROWS];
    uint64_t start_ns = bench_now_ns();

    for (uint64_t batch = first; batch < first + APPLIES; batch++) {
        update_keys(keys, batch);
        const struct hps_write write = {&wide, keys, rows, APPLY_ROWS};
        const struct hps_record record = {"position", 8, &batch, sizeof(batch)};
        hps_status status =
            space->store->ops->durable->apply(space, &call, &write, 1, &record, 1, err);
        if (status != HPS_OK) {
            return status;
        }
    }
    *out_rows_per_s = (double)APPLIES * APPLY_ROWS * 1e9 / (double)(bench_now_ns() - start_ns + 1);
    return HPS_OK;
}

static hps_status apply_plain(struct plain *plain, const uint8_t *rows, uint64_t first,
                              double *out_rows_per_s, struct hps_error *err)
{
    hps_key keys[APPLY_ROWS];
    char *text = NULL, key[KEY_BYTES];
    uint64_t start_ns = bench_now_ns();

    for (uint64_t batch = first; text == NULL && batch < first + APPLIES; batch++) {
        rocksdb_writebatch_t *writes = rocksdb_writebatch_create();
        update_keys(keys, batch);
        for (size_t i = 0; i < APPLY_ROWS; i++) {
            key_make(key, keys[i]);
            rocksdb_writebatch_put(writes, key, KEY_BYTES, (const char *)rows + i * WIDE_BYTES,
                                   WIDE_BYTES);
        }
        rocksdb_write(plain->db, plain->write, writes, &text);
        rocksdb_writebatch_destroy(writes);
    }
    *out_rows_per_s = (double)APPLIES * APPLY_ROWS * 1e9 / (double)(bench_now_ns() - start_ns + 1);
    return text == NULL ? HPS_OK : fail(err, HPS_IO, "write", text);
}

static hps_status bench_applies(const char *dir, struct hps_error *err)
{
    static const char title[] = "updates, 1,000 rows a batch, dim 128";
    double ours[READ_ROUNDS], plain_rates[READ_ROUNDS], ratios[READ_ROUNDS];
    char path[256];
    struct hps_store *store = NULL;
    struct hps_space *space = NULL;
    struct plain plain;
    uint8_t *rows = hps_calloc(APPLY_ROWS, WIDE_BYTES);

    (void)snprintf(path, sizeof(path), "%s/plain", dir);
    hps_status status = plain_open(&plain, path, true, err);
    if (status == HPS_OK) {
        status = store_open(dir, 2, &wide, &store, &space, err);
    }
    for (int i = 0; status == HPS_OK && i < READ_ROUNDS; i++) {
        uint64_t first = (uint64_t)i * APPLIES;
        status = apply_ours(space, rows, first, &ours[i], err);
        if (status == HPS_OK) {
            status = apply_plain(&plain, rows, first, &plain_rates[i], err);
        }
        ratios[i] = ours[i] / plain_rates[i];
    }
    if (status == HPS_OK) {
        bench_report(title, "apply, with a position", bench_median(ours, READ_ROUNDS), "rows/s",
                     BENCH_NO_TARGET, 0);
        bench_report(title, "write batches with a log", bench_median(plain_rates, READ_ROUNDS),
                     "rows/s", BENCH_NO_TARGET, 0);
        bench_report(title, "apply / write batches", bench_median(ratios, READ_ROUNDS), "ratio",
                     BENCH_AT_LEAST, 0.8);
    }
    store_close(store, space);
    plain_close(&plain);
    hps_free(rows);
    return status;
}

hps_status bench_rocksdb(struct hps_error *err)
{
    char dir[] = "/var/tmp/hps-bench-XXXXXX";
    char copy[] = "/var/tmp/hps-bench-XXXXXX";
    hps_status status = HPS_OK;

    if (mkdtemp(dir) == NULL || mkdtemp(copy) == NULL) {
        return hps_error_set(err, HPS_IO, "no directory %s", dir);
    }
    if (!rows_make()) {
        status = hps_error_set(err, HPS_NO_MEMORY, "no memory for the rows");
    }
    if (status == HPS_OK) {
        status = bench_loads(err);
    }
    rows_free();
    if (status == HPS_OK) {
        status = bench_reads(dir, copy, err);
    }
    if (status == HPS_OK) {
        status = bench_applies(copy, err);
    }
    bench_remove(dir);
    bench_remove(copy);
    return status;
}

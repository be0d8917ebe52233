/* SPDX-License-Identifier: Apache-2.0
 *
 * Bulk load of a version into the persistent store (sorted files, one ingest) against writing the
 * same rows as batches through the log, both by the store's own operations. Each way in its own
 * directory.
 */
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/rocksdb.h"
#include "base/heap.h"
#include "base/rowgen.h"
#include "bench/bench.h"

enum { DIM = 32, ROW_BYTES = DIM * 4, PIECE = 4096, N_ROWS = 2 << 20, ROUNDS = 3, FD_MAX = 16 };

static const float zeros[DIM];
static const struct hps_table table = {"t", 0, DIM, ROW_BYTES, HPS_DTYPE_FP32, N_ROWS, zeros};

static int remove_one(const char *path, const struct stat *info, int flag, struct FTW *ftw)
{
    (void)info;
    (void)flag;
    (void)ftw;
    return remove(path);
}

/* Rows row ... row + n - 1: ascending keys for a load, shuffled ones (by a bijection) for
 * batches. */
static void make_rows(uint64_t row, uint32_t n, bool shuffled, hps_key *keys, uint8_t *rows)
{
    for (uint32_t i = 0; i < n; i++) {
        keys[i] = shuffled ? (row + i) * 1000003 % N_ROWS : row + i;
        hps_rowgen_row(1, 0, keys[i], DIM, HPS_DTYPE_FP32, rows + (size_t)i * ROW_BYTES);
    }
}

static hps_status by_load(struct hps_space *space, hps_key *keys, uint8_t *rows, uint64_t *out_ns,
                          struct hps_error *err)
{
    const struct hps_store_ops *ops = space->store->ops;
    struct hps_store_load *load = NULL;
    uint64_t start_ns = bench_now_ns(), made_ns = 0;
    hps_status status = ops->load_begin(space, N_ROWS, (uint64_t)N_ROWS * ROW_BYTES, &load, err);

    if (status != HPS_OK) {
        return status;
    }
    for (uint64_t row = 0; row < N_ROWS; row += PIECE) {
        uint64_t before_ns = bench_now_ns();
        make_rows(row, PIECE, false, keys, rows);
        made_ns += bench_now_ns() - before_ns;
        status = ops->load_add(load, &table, keys, rows, PIECE, err);
        if (status != HPS_OK) {
            ops->load_abort(load);
            return status;
        }
    }
    status = ops->load_commit(load, err);
    *out_ns = bench_now_ns() - start_ns - made_ns;
    return status;
}

static hps_status by_batches(struct hps_space *space, hps_key *keys, uint8_t *rows,
                             uint64_t *out_ns, struct hps_error *err)
{
    struct hps_call call = {NULL, 0};
    uint64_t start_ns = bench_now_ns(), made_ns = 0;

    for (uint64_t row = 0; row < N_ROWS; row += PIECE) {
        uint64_t before_ns = bench_now_ns();
        make_rows(row, PIECE, true, keys, rows);
        made_ns += bench_now_ns() - before_ns;
        hps_status status = space->store->ops->put(space, &call, &table, keys, rows, PIECE);
        if (status != HPS_OK) {
            return hps_error_set(err, status, "put: %s", hps_status_text(status));
        }
    }
    *out_ns = bench_now_ns() - start_ns - made_ns;
    return HPS_OK;
}

static hps_status run_way(bool load, double *out_rows_per_s, struct hps_error *err)
{
    char dir[] = "/var/tmp/hps-bench-XXXXXX";
    struct hps_space_id id = {"m", 1, &table, 1};
    struct hps_store *store = NULL;
    struct hps_space *space = NULL;
    uint64_t ns = 0;
    hps_key *keys = hps_calloc(PIECE, sizeof(*keys));
    uint8_t *rows = hps_alloc((size_t)PIECE * ROW_BYTES);

    if (keys == NULL || rows == NULL || mkdtemp(dir) == NULL) {
        hps_free(keys);
        hps_free(rows);
        return hps_error_set(err, HPS_IO, "no memory, or no directory %s", dir);
    }
    struct hps_rocksdb_options options = {
        .path = dir,
        .n_threads = 2,
        .batch_keys_max = PIECE,
        .disk_free_min_bytes = 256 << 20,
        .block_cache_bytes = 64 << 20,
    };
    hps_status status = hps_rocksdb_open(&options, &store, err);
    if (status == HPS_OK) {
        status = store->ops->space_open(store, &id, &space, err);
    }
    if (status == HPS_OK) {
        status =
            load ? by_load(space, keys, rows, &ns, err) : by_batches(space, keys, rows, &ns, err);
        *out_rows_per_s = (double)N_ROWS * 1e9 / (double)(ns == 0 ? 1 : ns);
        store->ops->space_close(space);
    }
    if (store != NULL) {
        store->ops->close(store);
    }
    (void)nftw(dir, remove_one, FD_MAX, FTW_DEPTH | FTW_PHYS);
    hps_free(rows);
    hps_free(keys);
    return status;
}

hps_status bench_rocksdb(struct hps_error *err)
{
    double loads[ROUNDS], batches[ROUNDS], ratios[ROUNDS];

    for (int i = 0; i < ROUNDS; i++) {
        hps_status status = run_way(true, &loads[i], err);
        if (status == HPS_OK) {
            status = run_way(false, &batches[i], err);
        }
        if (status != HPS_OK) {
            return status;
        }
        ratios[i] = loads[i] / batches[i];
    }
    bench_report("bulk load, 2 Mi rows, dim 32", "load", bench_median(loads, ROUNDS), "rows/s",
                 BENCH_NO_TARGET, 0);
    bench_report("bulk load, 2 Mi rows, dim 32", "write batches", bench_median(batches, ROUNDS),
                 "rows/s", BENCH_NO_TARGET, 0);
    bench_report("bulk load, 2 Mi rows, dim 32", "load/write batches", bench_median(ratios, ROUNDS),
                 "ratio", BENCH_AT_LEAST, 8);
    return HPS_OK;
}

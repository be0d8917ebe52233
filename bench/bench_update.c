/* SPDX-License-Identifier: Apache-2.0
 *
 * Updates of a version through all its tiers (checks, last write per key, stamps, RocksDB with a
 * position, a host map with part of the rows), compared with a loop of RocksDB write batches of the
 * same rows with its log. Both take turns.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rocksdb/c.h>

#include "backends/host/map.h"
#include "backends/rocksdb/rocksdb.h"
#include "base/heap.h"
#include "base/rows/rowgen.h"
#include "bench/bench.h"
#include "cache/update/update.h"

enum {
    DIM = 128,
    ROW_BYTES = DIM * 4,
    N_ROWS = 1 << 18,
    BATCH = 4096,
    BATCHES = 24, /* of a round */
    ROUNDS = 7,
    HOST_BYTES = 64 << 20, /* half of the rows */
    FD_MAX = 16
};

struct world {
    char dir[64];
    struct hps_store *stores[2];
    struct hps_version *version;
    rocksdb_options_t *options;
    rocksdb_writeoptions_t *write;
    rocksdb_t *plain;
    hps_key keys[BATCH];
    uint8_t rows[BATCH * ROW_BYTES];
    uint64_t next; /* of the stream */
};

static hps_status open_plain(struct world *world, struct hps_error *err)
{
    char path[96];
    char *text = NULL;
    (void)snprintf(path, sizeof(path), "%s/plain", world->dir);
    world->options = rocksdb_options_create();
    world->write = rocksdb_writeoptions_create();
    rocksdb_options_set_create_if_missing(world->options, 1);
    world->plain = rocksdb_open(world->options, path, &text);
    if (text == NULL) {
        return HPS_OK;
    }
    hps_status status = hps_error_set(err, HPS_IO, "open: %s", text);
    rocksdb_free(text);
    return status;
}

static hps_status open_version(struct world *world, struct hps_error *err)
{
    struct hps_version *version = world->version = hps_version_new("m", 1, 1);
    if (version == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for a version");
    }
    version->tables[0] = (struct hps_table){.name = hps_strdup("t"),
                                            .dim = DIM,
                                            .row_bytes = ROW_BYTES,
                                            .dtype = HPS_DTYPE_FP32,
                                            .n_rows = N_ROWS};
    hps_version_pin(version);
    const struct hps_space_id id = {"m", 1, version->tables, 1, 0};
    for (uint32_t i = 0; i < 2; i++) {
        hps_status status =
            world->stores[i]->ops->space_open(world->stores[i], &id, &version->tiers[i], err);
        if (status != HPS_OK) {
            return status;
        }
        version->n_tiers++;
    }
    return hps_update_open(version, err);
}

static hps_status make_dir(struct world *world, struct hps_error *err)
{
    (void)snprintf(world->dir, sizeof(world->dir), "/var/tmp/hps-bench-XXXXXX");
    return mkdtemp(world->dir) != NULL ? HPS_OK
                                       : hps_error_set(err, HPS_IO, "no directory %s", world->dir);
}

static hps_status open_world(struct world *world, struct hps_error *err)
{
    const struct hps_rocksdb_options disk = {.path = world->dir,
                                             .n_threads = 2,
                                             .batch_keys_max = BATCH,
                                             .disk_free_min_bytes = 256 << 20,
                                             .block_cache_bytes = 8 << 20,
                                             .wal_sync_ms = 1000};
    const struct hps_host_map_options host = {.bytes_max = HOST_BYTES, .evicts = true};
    hps_status status = make_dir(world, err);
    if (status == HPS_OK) {
        status = hps_host_map_open_with(&host, &world->stores[0], err);
    }
    if (status == HPS_OK) {
        status = hps_rocksdb_open(&disk, &world->stores[1], err);
    }
    if (status == HPS_OK) {
        status = open_version(world, err);
    }
    return status == HPS_OK ? open_plain(world, err) : status;
}

static void close_world(struct world *world)
{
    for (uint32_t i = 0; world->version != NULL && i < world->version->n_tiers; i++) {
        world->stores[i]->ops->space_close(world->version->tiers[i]);
    }
    if (world->version != NULL) {
        hps_version_unpin(world->version);
    }
    hps_version_free(world->version);
    for (uint32_t i = 0; i < 2; i++) {
        if (world->stores[i] != NULL) {
            world->stores[i]->ops->close(world->stores[i]);
        }
    }
    if (world->plain != NULL) {
        rocksdb_close(world->plain);
    }
    if (world->options != NULL) {
        rocksdb_writeoptions_destroy(world->write);
        rocksdb_options_destroy(world->options);
    }
    bench_remove(world->dir);
}

/* The next batch of the stream: keys in random order, each repeats after N_ROWS. */
static void make_batch(struct world *world)
{
    for (uint32_t i = 0; i < BATCH; i++) {
        world->keys[i] = world->next++ * 1000003 % N_ROWS;
        hps_rowgen_row(world->next, 0, world->keys[i], DIM, world->rows + (size_t)i * ROW_BYTES);
    }
}

static hps_status by_update(struct world *world, struct hps_error *err)
{
    const struct hps_update_part part = {
        .row_bytes = ROW_BYTES, .n = BATCH, .keys = world->keys, .rows = world->rows};
    const struct hps_record position = {"p", 1, &world->next, sizeof(world->next)};
    const struct hps_update_batch batch = {
        .parts = &part, .n_parts = 1, .positions = &position, .n_positions = 1};
    return hps_update_apply(world->version, &batch, err);
}

static hps_status by_write_batch(struct world *world, struct hps_error *err)
{
    char *text = NULL;
    rocksdb_writebatch_t *batch = rocksdb_writebatch_create();
    for (uint32_t i = 0; i < BATCH; i++) {
        uint64_t key = __builtin_bswap64(world->keys[i]);
        rocksdb_writebatch_put(batch, (const char *)&key, sizeof(key),
                               (const char *)world->rows + (size_t)i * ROW_BYTES, ROW_BYTES);
    }
    rocksdb_write(world->plain, world->write, batch, &text);
    rocksdb_writebatch_destroy(batch);
    if (text == NULL) {
        return HPS_OK;
    }
    hps_status status = hps_error_set(err, HPS_IO, "write: %s", text);
    rocksdb_free(text);
    return status;
}

/* Rows per second of one way, without the time to make rows. */
static hps_status run_round(struct world *world,
                            hps_status (*way)(struct world *, struct hps_error *),
                            unsigned n_batches, double *out_rows_per_s, struct hps_error *err)
{
    uint64_t ns = 0;
    for (unsigned i = 0; i < n_batches; i++) {
        make_batch(world);
        uint64_t start_ns = bench_now_ns();
        hps_status status = way(world, err);
        ns += bench_now_ns() - start_ns;
        if (status != HPS_OK) {
            return status;
        }
    }
    *out_rows_per_s = (double)n_batches * BATCH * 1e9 / (double)ns;
    return HPS_OK;
}

static hps_status run_rounds(struct world *world, struct hps_error *err)
{
    static const char title[] = "batches of 4096 x 512 B";
    double ours[ROUNDS], plain[ROUNDS], ratios[ROUNDS];
    for (int i = -1; i < ROUNDS; i++) { /* the first round fills the host map */
        int at = i < 0 ? 0 : i;
        hps_status status = run_round(world, by_write_batch, BATCHES, &plain[at], err);
        if (status == HPS_OK) {
            status = run_round(world, by_update, BATCHES, &ours[at], err);
        }
        if (status != HPS_OK) {
            return status;
        }
        ratios[at] = ours[at] / plain[at];
    }
    bench_report(title, "updates, host map and RocksDB", bench_median(ours, ROUNDS), "rows/s",
                 BENCH_NO_TARGET, 0);
    bench_report(title, "bare write batches", bench_median(plain, ROUNDS), "rows/s",
                 BENCH_NO_TARGET, 0);
    bench_report(title, "updates / write batches", bench_median(ratios, ROUNDS), "ratio",
                 BENCH_AT_LEAST, 0.8);
    return HPS_OK;
}

hps_status bench_update(struct hps_error *err)
{
    struct world *world = hps_calloc(1, sizeof(*world));
    if (world == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for a batch");
    }
    hps_status status = open_world(world, err);
    if (status == HPS_OK) {
        status = run_rounds(world, err);
    }
    close_world(world);
    hps_free(world);
    return status;
}

hps_status bench_write_batches(uint64_t n, double *out_rows_per_s, struct hps_error *err)
{
    struct world *world = hps_calloc(1, sizeof(*world));
    if (world == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for a batch");
    }
    hps_status status = make_dir(world, err);
    if (status == HPS_OK) {
        status = open_plain(world, err);
    }
    if (status == HPS_OK) {
        status = run_round(world, by_write_batch, (unsigned)(n / BATCH) + 1, out_rows_per_s, err);
    }
    close_world(world);
    hps_free(world);
    return status;
}

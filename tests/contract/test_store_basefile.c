/* SPDX-License-Identifier: Apache-2.0
 *
 * The persistent store with base files keeps the contract of stores, also from one opening to the
 * next. Every table that is loaded gets a base, and a merge begins after few changes.
 */
#include "backends/basefile/basefile.h"
#include "backends/rocksdb/rocksdb.h"
#include "tests/contract/store_contract.h"
#include "tests/lib/tmpdir.h"

static struct hps_tmpdir dir; /* from the first opening to clean() */
static bool dir_open;

static hps_status open_store(void *ctx, uint64_t bytes_max, struct hps_store **out_store,
                             struct hps_error *err)
{
    const bool *no_uring = ctx;
    struct hps_store *inner = NULL;
    (void)bytes_max;
    if (!dir_open) {
        hps_tmpdir_open(&dir);
        dir_open = true;
    }
    const struct hps_rocksdb_options options = {
        .path = dir.path,
        .n_threads = 2,
        .batch_keys_max = 64, /* so that batches are cut */
        .disk_free_min_bytes = 16 << 20,
        .block_cache_bytes = 8 << 20,
        .base_files = true,
    };
    hps_status status = hps_rocksdb_open(&options, &inner, err);
    if (status != HPS_OK) {
        return status;
    }
    const struct hps_basefile_options base = {.inner = inner,
                                              .path = dir.path,
                                              .write = true,
                                              .read_mode =
                                                  *no_uring ? HPS_READ_MMAP : HPS_READ_DIRECT,
                                              .readers = hps_rocksdb_readers(inner),
                                              .no_uring = *no_uring,
                                              .rows_min = 1,
                                              .merge_ppm = 1};
    status = hps_basefile_open(&base, out_store, err);
    if (status != HPS_OK) {
        inner->ops->close(inner);
    }
    return status;
}

static void clean(void *ctx)
{
    (void)ctx;
    if (dir_open) {
        hps_tmpdir_close(&dir);
        dir_open = false;
    }
}

static int run(const char *name, bool no_uring)
{
    const struct store_contract contract = {
        .name = name,
        .ctx = &no_uring,
        .open = open_store,
        .clean = clean,
    };
    return store_contract_run(&contract);
}

int main(void)
{
    int failed = run("store_basefile", false);
    return failed != 0 ? failed : run("store_basefile_pread", true);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The persistent store keeps the contract of stores, also from one opening to the next.
 */
#include "backends/rocksdb/rocksdb.h"
#include "tests/contract/store_contract.h"
#include "tests/lib/tmpdir.h"

static struct hps_tmpdir dir; /* from the first opening to clean() */
static bool dir_open;

static hps_status open_store(void *ctx, uint64_t bytes_max, struct hps_store **out_store,
                             struct hps_error *err)
{
    (void)ctx;
    (void)bytes_max;
    if (!dir_open) {
        hps_tmpdir_open(&dir);
        dir_open = true;
    }
    struct hps_rocksdb_options options = {
        .path = dir.path,
        .n_threads = 2,
        .batch_keys_max = 64, /* so that batches are cut */
        .disk_free_min_bytes = 16 << 20,
        .block_cache_bytes = 8 << 20,
    };
    return hps_rocksdb_open(&options, out_store, err);
}

static void clean(void *ctx)
{
    (void)ctx;
    if (dir_open) {
        hps_tmpdir_close(&dir);
        dir_open = false;
    }
}

int main(void)
{
    const struct store_contract contract = {
        .name = "store_rocksdb",
        .open = open_store,
        .clean = clean,
    };
    return store_contract_run(&contract);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The persistent store keeps the contract of stores, also from one opening to the next.
 */
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>

#include "backends/rocksdb/rocksdb.h"
#include "tests/contract/store_contract.h"

static char dir[256];

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *ftw)
{
    (void)info;
    (void)type;
    (void)ftw;
    return remove(path);
}

static hps_status open_store(void *ctx, uint64_t bytes_max, struct hps_store **out_store,
                             struct hps_error *err)
{
    (void)ctx;
    (void)bytes_max;
    if (dir[0] == '\0') {
        const char *tmp = getenv("TMPDIR");
        (void)snprintf(dir, sizeof(dir), "%s/hps-contract-XXXXXX", tmp != NULL ? tmp : "/tmp");
        if (mkdtemp(dir) == NULL) {
            dir[0] = '\0';
            return hps_error_set(err, HPS_IO, "no temporary directory");
        }
    }
    struct hps_rocksdb_options options = {
        .path = dir,
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
    (void)nftw(dir, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    dir[0] = '\0';
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

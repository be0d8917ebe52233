/* SPDX-License-Identifier: Apache-2.0
 *
 * The host map keeps the contract of stores: as the only store, which refuses rows, and above
 * another one, where rows go for others. Its tables have an index, or a dense range from key 0 on,
 * or a range that begins in the middle of the keys.
 */
#include "backends/host/map.h"
#include "backends/store_limits.h"
#include "tests/contract/store_contract.h"

#include "base/assert.h"

enum { FIRST_KEYS = 64 };

struct variant {
    const char *name;
    bool evicts;
    bool dense;
    hps_key first; /* of the range */
};

static hps_status open_store(void *ctx, uint64_t bytes_max, struct hps_store **out_store,
                             struct hps_error *err)
{
    const struct variant *variant = ctx;
    const struct hps_host_map_options options = {
        .bytes_max = bytes_max, .evicts = variant->evicts, .dense = variant->dense};
    return hps_host_map_open_with(&options, out_store, err);
}

static void begin_ranges(void *ctx, struct hps_space *space, const struct hps_table *tables,
                         uint32_t n)
{
    const struct variant *variant = ctx;
    hps_key keys[FIRST_KEYS];
    for (uint32_t i = 0; i < FIRST_KEYS; i++) {
        keys[i] = variant->first + i;
    }
    for (uint32_t i = 0; variant->dense && i < n; i++) {
        struct hps_error err;
        hps_status status =
            space->store->ops->limits->reserve(space, &tables[i], keys, FIRST_KEYS, &err);
        HPS_ASSERT(status == HPS_OK);
    }
}

int main(void)
{
    static const struct variant variants[] = {
        {.name = "store_host_map"},
        {.name = "store_host_map_evicting", .evicts = true},
        {.name = "store_host_map_dense", .dense = true},
        {.name = "store_host_map_dense_evicting", .dense = true, .evicts = true},
        {.name = "store_host_map_mixed", .dense = true, .first = 3},
        {.name = "store_host_map_mixed_evicting", .dense = true, .evicts = true, .first = 100},
    };
    int n_failed = 0;
    for (unsigned i = 0; i < sizeof(variants) / sizeof(variants[0]); i++) {
        struct variant variant = variants[i];
        const struct store_contract contract = {
            .name = variant.name,
            .ctx = &variant,
            .open = open_store,
            .opened = begin_ranges,
            .budget = !variant.evicts,
        };
        n_failed += store_contract_run(&contract);
    }
    return n_failed;
}

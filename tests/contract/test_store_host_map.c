/* SPDX-License-Identifier: Apache-2.0
 *
 * The host map keeps the contract of stores.
 */
#include "backends/host/map.h"
#include "tests/contract/store_contract.h"

static hps_status open_store(void *ctx, uint64_t bytes_max, struct hps_store **out_store,
                             struct hps_error *err)
{
    (void)ctx;
    return hps_host_map_open(bytes_max, out_store, err);
}

int main(void)
{
    const struct store_contract contract = {
        .name = "store_host_map",
        .open = open_store,
        .budget = true,
    };
    return store_contract_run(&contract);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The host map keeps the contract of stores: as the only store, which refuses rows, and above
 * another one, where rows go for others.
 */
#include "backends/host/map.h"
#include "tests/contract/store_contract.h"

static hps_status open_store(void *ctx, uint64_t bytes_max, struct hps_store **out_store,
                             struct hps_error *err)
{
    const struct hps_host_map_options options = {.bytes_max = bytes_max,
                                                 .evicts = *(const bool *)ctx};
    return hps_host_map_open_with(&options, out_store, err);
}

int main(void)
{
    bool evicts = false;
    struct store_contract contract = {
        .name = "store_host_map",
        .ctx = &evicts,
        .open = open_store,
        .budget = true,
    };
    int n_failed = store_contract_run(&contract);
    contract.name = "store_host_map_evicting";
    contract.budget = false;
    evicts = true;
    return n_failed + store_contract_run(&contract);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The store that CONTRIBUTING.md shows to who writes a new one is a store.
 */
#include "docs/examples/store.h"
#include "tests/contract/store_contract.h"

static hps_status open_store(void *ctx, uint64_t bytes_max, struct hps_store **out_store,
                             struct hps_error *err)
{
    (void)ctx, (void)bytes_max;
    return hps_example_store_open(out_store, err);
}

int main(void)
{
    const struct store_contract contract = {.name = "store_example", .open = open_store};
    return store_contract_run(&contract);
}

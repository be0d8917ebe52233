/* SPDX-License-Identifier: Apache-2.0
 *
 * The scriptable store keeps the contract of stores, so that what is tested over it holds over
 * others.
 */
#include "tests/contract/store_contract.h"
#include "tests/lib/fake_shared.h"

static hps_status open_store(void *ctx, uint64_t bytes_max, struct hps_store **out_store,
                             struct hps_error *err)
{
    struct hps_fake_options options = *(const struct hps_fake_options *)ctx;
    options.bytes_max = bytes_max;
    struct hps_store *store = hps_fake_store_new(&options);
    if (store == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory");
    }
    *out_store = store;
    return HPS_OK;
}

static hps_status open_shared(void *ctx, uint64_t bytes_max, struct hps_store **out_store,
                              struct hps_error *err)
{
    (void)ctx, (void)bytes_max;
    struct hps_store *store = hps_fake_shared_new(false);
    if (store == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory");
    }
    *out_store = store;
    return HPS_OK;
}

int main(void)
{
    struct hps_fake_options fleeting = {.tier = HPS_TIER_HOST};
    struct hps_fake_options lasting = {.tier = HPS_TIER_ROCKSDB,
                                       .caps = HPS_STORE_DURABLE | HPS_STORE_JOINS};
    struct store_contract contract = {
        .name = "store_fake",
        .ctx = &fleeting,
        .open = open_store,
        .budget = true,
    };
    int n_failed = store_contract_run(&contract);
    contract.name = "store_fake_durable";
    contract.ctx = &lasting;
    n_failed += store_contract_run(&contract);
    contract = (struct store_contract){.name = "store_fake_shared", .open = open_shared};
    return n_failed + store_contract_run(&contract);
}

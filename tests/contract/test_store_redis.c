/* SPDX-License-Identifier: Apache-2.0
 *
 * The redis store keeps the contract of stores, on one server and on a cluster of three masters.
 */
// clang-format off
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>
// clang-format on

#include "backends/redis/redis.h"
#include "base/clock.h"
#include "tests/contract/store_contract.h"
#include "tests/lib/redis_rig.h"

enum { N_MASTERS = 3, WAIT_US = 20 * 1000 * 1000 };

static hps_status open_store(void *ctx, uint64_t bytes_max, struct hps_store **out_store,
                             struct hps_error *err)
{
    struct hps_redis_store_options options = HPS_REDIS_STORE_DEFAULT;
    (void)bytes_max;
    options.redis.addresses = hps_redis_rig_addresses(ctx);
    options.redis.command_timeout_us = WAIT_US;
    options.redis.connect_timeout_us = WAIT_US;
    options.write_timeout_us = WAIT_US;
    options.fields_max = 50; /* so that commands are cut */
    options.n_shards = 16;
    options.member = "one";
    hps_status status = hps_redis_open(&options, out_store, err);
    if (status == HPS_OK &&
        !hps_redis_cluster_wait(hps_redis_of(*out_store), hps_clock_us() + WAIT_US)) {
        (*out_store)->ops->close(*out_store);
        return hps_error_set(err, HPS_UNAVAILABLE, "the server does not answer");
    }
    return status;
}

static void clean(void *ctx)
{
    for (uint32_t i = 0; i < hps_redis_rig_nodes(ctx) && i < N_MASTERS; i++) {
        (void)hps_redis_rig_ask(ctx, i, "FLUSHALL");
    }
}

static int run(const char *name, struct hps_redis_rig *rig)
{
    const struct store_contract contract = {
        .name = name, .ctx = rig, .open = open_store, .clean = clean};
    int failed = store_contract_run(&contract);
    hps_redis_rig_free(rig);
    return failed;
}

int main(void)
{
    if (!hps_redis_rig_present()) {
        return 0;
    }
    return run("store_redis", hps_redis_rig_standalone(NULL)) +
           run("store_redis_cluster", hps_redis_rig_cluster(N_MASTERS, 0, NULL));
}

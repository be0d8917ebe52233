/* SPDX-License-Identifier: Apache-2.0
 *
 * An embedding cache on a simulated device, for unit tests.
 */
#ifndef HPS_TESTS_LIB_EMBED_FIXTURE_H
#define HPS_TESTS_LIB_EMBED_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cache/device/sim/sim.h"
#include "tests/gpu/embed_rig.h"

struct embed_fixture {
    struct hps_device *device;
    struct embed_rig rig;
    struct hps_error err;
};

static inline void fixture_open_device(struct embed_fixture *f, uint32_t delay_us_max)
{
    const struct hps_sim_driver sim =
        hps_sim_driver((struct hps_device_sim_config){.seed = 7, .delay_us_max = delay_us_max});

    *f = (struct embed_fixture){0};
    assert_int_equal(hps_device_open(&sim.driver, 0, hps_embed_kernels, hps_embed_n_kernels,
                                     &f->device, &f->err),
                     HPS_OK);
}

static inline struct hps_embed_cache_config fixture_config(void)
{
    return (struct hps_embed_cache_config){
        .arena_bytes = 4 << 20,
        .gather_bytes = 1 << 20,
        .stage_bytes = 256 << 10,
        .timeout_us = UINT64_C(600000000),
        .seed = 42,
        .n_batches = EMBED_QUERIES,
        .batch_keys_max = 4096,
        .batch_parts_max = EMBED_QUERY_PARTS,
        .sample_rate = 1,
    };
}

/* config NULL: fixture_config. */
static inline void fixture_open(struct embed_fixture *f, uint32_t delay_us_max,
                                const struct hps_embed_cache_config *config)
{
    const struct hps_embed_cache_config usual = fixture_config();

    fixture_open_device(f, delay_us_max);
    embed_rig_open(&f->rig, f->device, config != NULL ? config : &usual, 1 << 20, 0, &f->err);
}

static inline void fixture_expect_ok(struct embed_fixture *f)
{
    if (f->rig.failed) {
        fail_msg("%s", f->err.text);
    }
}

static inline void fixture_close(struct embed_fixture *f)
{
    bool ok = embed_rig_close(&f->rig);

    hps_device_close(f->device);
    if (!ok) {
        fail_msg("%s", f->err.text);
    }
}

#endif

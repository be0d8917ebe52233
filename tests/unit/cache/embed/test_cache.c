/* SPDX-License-Identifier: Apache-2.0
 *
 * The embedding cache against a dictionary, on the simulated device: with and without delays of its
 * streams, which is what makes a forgotten event show.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "cache/device/sim/sim.h"
#include "cache/embed/kernels.h"
#include "tests/gpu/embed_checks.h"

enum { N_CHECKS_MAX = 32 };

/* What sanitizers see does not depend on how long things take. */
#if defined(HPS_TSAN) || defined(__SANITIZE_ADDRESS__)
enum { FIRST_MODE = 1, N_SEEDS = 1 };
#else
enum { FIRST_MODE = 0, N_SEEDS = 2 };
#endif

static void run(const struct embed_check *check, uint64_t seed, uint32_t delay_us_max)
{
    const struct hps_sim_driver sim =
        hps_sim_driver((struct hps_device_sim_config){.seed = seed, .delay_us_max = delay_us_max});
    struct hps_device *device = NULL;
    struct hps_error err = {HPS_OK, ""};

    assert_int_equal(
        hps_device_open(&sim.driver, 0, hps_embed_kernels, hps_embed_n_kernels, &device, &err),
        HPS_OK);
    bool ok = check->run(device, &err);
    hps_device_close(device);
    if (!ok) {
        fail_msg("%s, seed %u: %s", check->name, (unsigned)seed, err.text);
    }
}

static void test_check_when_streams_run_at_once_then_it_holds(void **state)
{
    run(*state, 0, 0);
}

static void test_check_when_streams_are_delayed_then_it_holds(void **state)
{
    for (uint64_t seed = 1; seed <= N_SEEDS; seed++) {
        run(*state, seed, 200);
    }
}

int main(int argc, char **argv)
{
    struct CMUnitTest tests[2 * N_CHECKS_MAX];
    char names[2 * N_CHECKS_MAX][80];
    size_t n = 0;

    for (size_t i = 0; i < n_embed_checks && i < N_CHECKS_MAX; i++) {
        if (argc > 1 && strcmp(argv[1], embed_checks[i].name) != 0) {
            continue;
        }
        for (unsigned delayed = FIRST_MODE; delayed < 2; delayed++, n++) {
            (void)snprintf(names[n], sizeof(names[n]), "test_%s_when_%s", embed_checks[i].name,
                           delayed != 0 ? "delayed" : "at_once");
            tests[n] = (struct CMUnitTest){
                .name = names[n],
                .test_func = delayed != 0 ? test_check_when_streams_are_delayed_then_it_holds
                                          : test_check_when_streams_run_at_once_then_it_holds,
                .initial_state = (void *)(uintptr_t)&embed_checks[i],
            };
        }
    }
    return _cmocka_run_group_tests("embed_cache", tests, n, NULL, NULL);
}

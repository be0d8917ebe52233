/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels on the simulated device against scalar models, in order and in random order.
 */
#include "cache/simt_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/gpu/device_checks.h"

static void checks_run(const struct hps_device_sim_config *config)
{
    struct hps_device *device = NULL;
    struct hps_error err = {0};
    assert_int_equal(hps_device_open(HPS_DEVICE_SIM, 0, config, device_check_kernels,
                                     n_device_check_kernels, &device, &err),
                     HPS_OK);
    for (size_t i = 0; i < n_device_checks; i++) {
        if (!device_checks[i].run(device, &err)) {
            fail_msg("%s: %s", device_checks[i].name, err.text);
        }
    }
    hps_device_close(device);
}

static void test_checks_when_in_order_then_hold(void **state)
{
    (void)state;
    checks_run(&(struct hps_device_sim_config){0});
}

static void test_checks_when_shuffled_and_delayed_then_hold(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 4; seed++) {
        checks_run(&(struct hps_device_sim_config){.seed = seed, .delay_us_max = 50});
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checks_when_in_order_then_hold),
        cmocka_unit_test(test_checks_when_shuffled_and_delayed_then_hold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The contract of every call of device.h, on the simulated device.
 */
#include "cache/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void test_open_when_index_is_beyond_then_not_found(void **state)
{
    (void)state;
    int n = -1;
    struct hps_error err = {0};
    assert_int_equal(hps_device_count(HPS_DEVICE_SIM, &n, &err), HPS_OK);
    assert_true(n > 0);
    struct hps_device *device = NULL;
    struct hps_device_sim_config config = {0};
    assert_int_equal(hps_device_open(HPS_DEVICE_SIM, n, &config, NULL, 0, &device, &err),
                     HPS_NOT_FOUND);
    assert_non_null(strstr(err.text, "there are 8"));
    assert_null(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open_when_index_is_beyond_then_not_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

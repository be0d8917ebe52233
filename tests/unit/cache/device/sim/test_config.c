/* SPDX-License-Identifier: Apache-2.0
 *
 * What may be said of simulated devices, and what is refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "cache/device/sim/sim.h"

static void test_parse_when_said_then_read(void **state)
{
    (void)state;
    struct hps_device_sim_config config = {.seed = 9};
    struct hps_error err;
    assert_int_equal(hps_sim_config_parse("X", "", &config, &err), HPS_OK);
    assert_int_equal(config.seed, 0);
    assert_int_equal(config.fail_at, 0);
    assert_int_equal(hps_sim_config_parse("X",
                                          "fail=12,delay_us=3,seed=4,memory=5,hang=6,stall_us=7",
                                          &config, &err),
                     HPS_OK);
    assert_int_equal(config.fail_at, 12);
    assert_int_equal(config.delay_us_max, 3);
    assert_int_equal(config.seed, 4);
    assert_int_equal(config.memory_bytes, 5);
    assert_int_equal(config.hang_at, 6);
    assert_int_equal(config.stall_us, 7);
}

static void test_parse_when_odd_then_refused_by_name(void **state)
{
    (void)state;
    static const char *const odd[] = {"fail",
                                      "fail=",
                                      "fail=-1",
                                      "fail=1x",
                                      "fail=1,",
                                      "fai=1",
                                      "failing=1",
                                      "=1",
                                      "delay_us=1000001",
                                      "fail= 1",
                                      "fail=1,,seed=1",
                                      "fail=99999999999999999999999999999999999999999999999999"};
    for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
        struct hps_device_sim_config config;
        struct hps_error err;
        if (hps_sim_config_parse("X", odd[i], &config, &err) != HPS_INVALID ||
            strstr(err.text, "X: got") == NULL) {
            fail_msg("%s: %s", odd[i], err.text);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse_when_said_then_read),
        cmocka_unit_test(test_parse_when_odd_then_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Which devices there are: the same program says so with and without CUDA in the build, with and
 * without a GPU in the machine. (What a device does: tests/unit/cache/device/sim/test_device.c,
 * test_simt.c.)
 */
#include "cache/device/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/gpu/device_checks.h"

static void test_cuda_version_when_asked_then_agrees_with_the_build(void **state)
{
    (void)state;
#if defined(HPS_CUDA)
    assert_true(hps_device_cuda_version()[0] == '1');
    assert_non_null(strstr(hps_device_cuda_processors(), "sm_"));
#else
    assert_string_equal(hps_device_cuda_version(), "none");
    assert_string_equal(hps_device_cuda_processors(), "");
#endif
}

static void test_count_when_there_is_no_gpu_then_the_reason_is_said(void **state)
{
    (void)state;
    int n = -1;
    struct hps_error err = {0};
    assert_int_equal(hps_device_count(&hps_device_cuda, &n, &err), HPS_OK);
    assert_true(n >= 0);
    assert_true((n == 0) == (err.text[0] != 0));
    if (n == 0) {
        printf("no GPU: %s\n", err.text);
    }
    if (strcmp(hps_device_cuda_version(), "none") == 0) {
        assert_string_equal(err.text, "this build has no CUDA");
    }
}

static void test_open_when_there_is_no_such_gpu_then_not_found_with_the_reason(void **state)
{
    (void)state;
    int n = -1;
    struct hps_error none = {0};
    struct hps_error err = {0};
    struct hps_device *device = NULL;
    assert_int_equal(hps_device_count(&hps_device_cuda, &n, &none), HPS_OK);
    assert_int_equal(hps_device_open(&hps_device_cuda, n, device_check_kernels,
                                     n_device_check_kernels, &device, &err),
                     HPS_NOT_FOUND);
    assert_null(device);
    assert_non_null(strstr(err.text, none.text));
    assert_int_equal(hps_device_open(&hps_device_cuda, -1, NULL, 0, &device, &err), HPS_NOT_FOUND);
}

/* Where there is a GPU, what holds on the simulated device holds on it. */
static void test_checks_when_there_is_a_gpu_then_hold(void **state)
{
    (void)state;
    int n = 0;
    struct hps_error err = {0};
    assert_int_equal(hps_device_count(&hps_device_cuda, &n, &err), HPS_OK);
    if (n == 0) {
        skip();
    }
    struct hps_device *device = NULL;
    assert_int_equal(hps_device_open(&hps_device_cuda, 0, device_check_kernels,
                                     n_device_check_kernels, &device, &err),
                     HPS_OK);
    for (size_t i = 0; i < n_device_checks; i++) {
        if (!device_checks[i].run(device, &err)) {
            fail_msg("%s: %s", device_checks[i].name, err.text);
        }
    }
    hps_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_version_when_asked_then_agrees_with_the_build),
        cmocka_unit_test(test_count_when_there_is_no_gpu_then_the_reason_is_said),
        cmocka_unit_test(test_open_when_there_is_no_such_gpu_then_not_found_with_the_reason),
        cmocka_unit_test(test_checks_when_there_is_a_gpu_then_hold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

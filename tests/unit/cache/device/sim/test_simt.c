/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels on the simulated device, compared with scalar models, in order and in random order;
 * and kernels that would hang or fail on a GPU.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "cache/device/sim/sim.h"
#include "cache/device/simt.h"
#include "tests/gpu/device_checks.h"
#include "tests/unit/cache/device/sim/sim_test.h"

/* ---- correct kernels ------------------------------------------------------------------------- */

static void checks_run(const struct hps_device_sim_config *config)
{
    struct hps_device *device = NULL;
    struct hps_error err = {0};
    const struct hps_sim_driver sim = hps_sim_driver(*config);
    assert_int_equal(hps_device_open(&sim.driver, 0, device_check_kernels, n_device_check_kernels,
                                     &device, &err),
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
    for (uint64_t seed = 1; seed <= 2; seed++) {
        checks_run(&(struct hps_device_sim_config){.seed = seed, .delay_us_max = 50});
    }
}

/* Returns how many checks pass on such a device. Each check opens the device again, and a
 * failing check must set an error text. */
static size_t checks_hold(const struct hps_device_sim_config *config)
{
    const struct hps_sim_driver sim = hps_sim_driver(*config);
    size_t n = 0;

    for (size_t i = 0; i < n_device_checks; i++) {
        struct hps_device *device = NULL;
        struct hps_error err = {0};
        assert_int_equal(hps_device_open(&sim.driver, 0, device_check_kernels,
                                         n_device_check_kernels, &device, &err),
                         HPS_OK);
        bool ok = device_checks[i].run(device, &err);
        hps_device_close(device);
        assert_true(ok || err.text[0] != '\0');
        n += ok ? 1 : 0;
    }
    return n;
}

static void test_checks_when_the_device_is_lost_then_fail_and_say_why(void **state)
{
    struct hps_device_sim_config config = {.fail_at = 1};
    (void)state;

    assert_int_equal(checks_hold(&config), 0);
    while (checks_hold(&config) < n_device_checks) {
        config.fail_at += 1 + config.fail_at / 2;
    }
}

static void test_checks_when_memory_is_short_then_fail_and_say_why(void **state)
{
    struct hps_device_sim_config config = {.memory_bytes = 16};
    (void)state;

    assert_int_equal(checks_hold(&config), 0);
    while (checks_hold(&config) < n_device_checks) {
        config.memory_bytes += config.memory_bytes / 2;
    }
}

struct bad_args {
    uint32_t *memory; /* [64] mapped, zeroed */
    uint64_t pad;
};

/* Launch the kernel once, which may end the process. Copy its 64 words to out. */
static void launch(const struct hps_device_sim_config *config, const struct hps_kernel *kernel,
                   uint32_t n_blocks, uint32_t out[64])
{
    struct hps_device *device = sim_open(config, kernel);
    struct hps_stream_q *stream = NULL;
    void *host = NULL;
    hps_devptr mapped = 0;
    assert_int_equal(hps_device_host_alloc(device, 256, &host, &mapped, NULL), HPS_OK);
    assert_int_equal(hps_stream_q_new(device, "bad", false, &stream, NULL), HPS_OK);
    struct bad_args args = {(uint32_t *)(uintptr_t)mapped, 0};
    assert_int_equal(hps_launch(stream, kernel, n_blocks, &args), HPS_OK);
    hps_stream_q_free(stream);
    if (out != NULL) {
        memcpy(out, host, 256);
    }
    hps_device_host_free(device, host);
    hps_device_close(device);
}

/* Record the order of the blocks. */
HPS_KERNEL(turns, struct bad_args, args, 32, 1)
{
    if (hps_lane() == 0) {
        args->memory[1 + hps_atomic_add_u32(&args->memory[0], 1, HPS_ACQ_REL)] = hps_block();
    }
}
SIM_KERNEL(turns, struct bad_args, 32, 0);

static void test_blocks_when_seeded_then_run_in_other_orders(void **state)
{
    (void)state;
    bool differs = false;
    for (uint64_t seed = 0; seed < 8; seed++) {
        uint32_t words[64];
        uint64_t seen = 0;
        launch(&(struct hps_device_sim_config){.seed = seed}, &turns, 20, words);
        assert_int_equal(words[0], 20);
        for (uint32_t i = 0; i < 20; i++) {
            seen |= 1ULL << words[1 + i];
            differs = differs || words[1 + i] != i;
            assert_true(seed != 0 || words[1 + i] == i);
        }
        assert_int_equal(seen, (1U << 20) - 1);
    }
    assert_true(differs);
}

/* Deep calls with large frames on all lanes at once, each within a ballot. */
static uint32_t deep(uint32_t depth)
{
    volatile uint32_t frame[64];
    for (uint32_t i = 0; i < 64; i++) {
        frame[i] = hps_lane() + depth;
    }
    uint32_t below = depth == 0 ? hps_ballot(hps_lane() % 3 == 0) : deep(depth - 1);
    for (uint32_t i = 0; i < 64; i++) {
        below += frame[i] - hps_lane() - depth;
    }
    return below;
}

HPS_KERNEL(dive, struct bad_args, args, 64, 1)
{
    args->memory[hps_thread()] = deep(60);
}
SIM_KERNEL(dive, struct bad_args, 64, 0);

static void test_stacks_when_deep_on_every_lane_then_hold(void **state)
{
    (void)state;
    uint32_t words[64];
    launch(NULL, &dive, 1, words);
    for (uint32_t i = 0; i < 64; i++) {
        assert_int_equal(words[i], 0x49249249);
    }
}

/* ---- faulty kernels -------------------------------------------------------------------------- */

HPS_KERNEL(half_ballots, struct bad_args, args, 32, 1)
{
    if (hps_lane() < 16) {
        args->memory[hps_lane()] = hps_ballot(true);
    }
}
SIM_KERNEL(half_ballots, struct bad_args, 32, 0);

HPS_KERNEL(two_calls, struct bad_args, args, 32, 1)
{
    if (hps_lane() < 16) {
        args->memory[hps_lane()] = hps_ballot(true);
    } else {
        args->memory[hps_lane()] = hps_shuffle_u32(1, 0);
    }
}
SIM_KERNEL(two_calls, struct bad_args, 32, 0);

HPS_KERNEL(uneven_loop, struct bad_args, args, 32, 1)
{
    for (uint32_t i = 0; i <= hps_lane() / 31; i++) {
        args->memory[hps_lane()] = hps_ballot(true);
    }
    hps_warp_barrier();
}
SIM_KERNEL(uneven_loop, struct bad_args, 32, 0);

HPS_KERNEL(half_barrier, struct bad_args, args, 64, 1)
{
    (void)args;
    if (hps_lane() < 16) {
        hps_block_barrier();
    }
}
SIM_KERNEL(half_barrier, struct bad_args, 64, 0);

HPS_KERNEL(barrier_or_ballot, struct bad_args, args, 64, 1)
{
    if (hps_lane() < 16) {
        hps_block_barrier();
    } else {
        args->memory[0] = hps_ballot(true);
    }
}
SIM_KERNEL(barrier_or_ballot, struct bad_args, 64, 0);

HPS_KERNEL(one_warp_returns, struct bad_args, args, 64, 1)
{
    (void)args;
    if (hps_warp() == 0) {
        hps_block_barrier();
    }
}
SIM_KERNEL(one_warp_returns, struct bad_args, 64, 0);

HPS_KERNEL(two_barriers, struct bad_args, args, 64, 1)
{
    (void)args;
    if (hps_warp() == 0) {
        hps_block_barrier();
    } else {
        hps_block_barrier();
    }
}
SIM_KERNEL(two_barriers, struct bad_args, 64, 0);

HPS_KERNEL(far_lane, struct bad_args, args, 32, 1)
{
    args->memory[hps_lane()] = hps_shuffle_u32(1, hps_lane() + 1);
}
SIM_KERNEL(far_lane, struct bad_args, 32, 0);

HPS_KERNEL(odd_address, struct bad_args, args, 32, 1)
{
    struct hps_quad quad = {1, 2, 3, 4};
    hps_store_quad(args->memory + hps_lane() % 2 * 2, quad);
}
SIM_KERNEL(odd_address, struct bad_args, 32, 0);

#define DIES(kernel)                    \
    static void run_##kernel(void)      \
    {                                   \
        launch(NULL, &kernel, 1, NULL); \
    }
DIES(half_ballots)
DIES(two_calls)
DIES(uneven_loop)
DIES(half_barrier)
DIES(barrier_or_ballot)
DIES(one_warp_returns)
DIES(two_barriers)
DIES(far_lane)
DIES(odd_address)

static void test_divergence_when_a_gpu_would_hang_then_the_process_ends_with_a_message(void **state)
{
    (void)state;
    sim_dies_saying(run_half_ballots, "kernel half_ballots, block 0, warp 0, lane 31: diverged: "
                                      "lanes 0000ffff wait at ");
    sim_dies_saying(run_half_ballots, "(ballot), lanes ffff0000 have returned");
    sim_dies_saying(run_two_calls, "lane 16: diverged: lanes 0000ffff wait at ");
    sim_dies_saying(run_two_calls, "(ballot), lanes 00010000 are at ");
    sim_dies_saying(run_uneven_loop, "diverged: ");
    sim_dies_saying(run_half_barrier, "(block barrier), lanes ffff0000 have returned");
    sim_dies_saying(run_barrier_or_ballot, "lanes ffff0000 wait at ");
    sim_dies_saying(run_one_warp_returns, "1 of 2 warps wait at ");
    sim_dies_saying(run_two_barriers, "warp 0 waits at ");
    sim_dies_saying(run_far_lane, "a shuffle from lane 32");
    sim_dies_saying(run_odd_address, "misaligned: an access of 16 bytes at ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checks_when_in_order_then_hold),
        cmocka_unit_test(test_checks_when_shuffled_and_delayed_then_hold),
        cmocka_unit_test(test_checks_when_the_device_is_lost_then_fail_and_say_why),
        cmocka_unit_test(test_checks_when_memory_is_short_then_fail_and_say_why),
        cmocka_unit_test(test_blocks_when_seeded_then_run_in_other_orders),
        cmocka_unit_test(test_stacks_when_deep_on_every_lane_then_hold),
        cmocka_unit_test(
            test_divergence_when_a_gpu_would_hang_then_the_process_ends_with_a_message),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The embedding cache against a dictionary, on the simulated device: with and without delays of its
 * streams, which is what makes a forgotten event show. HPS_SEEDS is how many seeds the delays have.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "cache/device/sim/sim.h"
#include "cache/embed/kernels.h"
#include "tests/gpu/embed_checks.h"
#include "tests/lib/fault_heap.h"

enum { N_CHECKS_MAX = 32 };

/* Sanitizers need no run without delays, and ThreadSanitizer none that is short of memory. They
 * have something fail in every second check only: in test_loss.c each step fails. */
#if defined(HPS_TSAN)
enum { FIRST_WAY = 1, END_WAY = 3, FAIL_EVERY = 2 };
#elif defined(__SANITIZE_ADDRESS__)
enum { FIRST_WAY = 1, END_WAY = 5, FAIL_EVERY = 2 };
#else
enum { FIRST_WAY = 0, END_WAY = 5, FAIL_EVERY = 1 };
#endif
enum { FIRST_FAILING = 2 };

/* Whether it holds on a device like that. If not, it must say why. */
static bool holds_on(const struct embed_check *check, const struct hps_device_sim_config *config,
                     struct hps_error *err)
{
    const struct hps_sim_driver sim = hps_sim_driver(*config);
    struct hps_device *device = NULL;

    *err = (struct hps_error){HPS_OK, ""};
    hps_status status =
        hps_device_open(&sim.driver, 0, hps_embed_kernels, hps_embed_n_kernels, &device, err);
    bool ok = status == HPS_OK && check->run(device, err);
    hps_device_close(device);
    assert_true(ok || err->text[0] != '\0');
    return ok;
}

static void run(const struct embed_check *check, uint64_t seed, uint32_t delay_us_max)
{
    const struct hps_device_sim_config config = {.seed = seed, .delay_us_max = delay_us_max};
    struct hps_error err;

    if (!holds_on(check, &config, &err)) {
        fail_msg("%s, seed %u: %s", check->name, (unsigned)seed, err.text);
    }
}

static void test_check_when_streams_run_at_once_then_it_holds(void **state)
{
    run(*state, 0, 0);
}

static void test_check_when_streams_are_delayed_then_it_holds(void **state)
{
    const char *seeds = getenv("HPS_SEEDS");
    uint64_t n_seeds = seeds == NULL ? 1 : strtoull(seeds, NULL, 10);

    for (uint64_t seed = 1; seed <= n_seeds; seed++) {
        run(*state, seed, 200);
    }
}

static void test_check_when_the_device_is_lost_then_it_fails_and_says_why(void **state)
{
    struct hps_device_sim_config config = {.fail_at = 1};
    struct hps_error err;

    while (!holds_on(*state, &config, &err)) {
        config.fail_at *= 4;
    }
    assert_true(config.fail_at > 1);
}

static void test_check_when_memory_is_short_then_it_fails_and_says_why(void **state)
{
    struct hps_device_sim_config config = {.memory_bytes = 64 << 10};
    struct hps_error err;

    while (!holds_on(*state, &config, &err)) {
        config.memory_bytes *= 2;
    }
    assert_true(config.memory_bytes > 64 << 10);
}

/* One allocation fails: what the cache can do without it may hold all the same. */
static void test_check_when_the_heap_fails_then_it_says_why_and_frees_all(void **state)
{
    struct hps_error err;
    size_t n = 0, n_all = 1;

    while (n < n_all) {
        n += 1 + n;
        hps_fault_heap_install(n);
        (void)holds_on(*state, &(struct hps_device_sim_config){0}, &err);
        n_all = hps_fault_heap_allocations();
        hps_fault_heap_remove();
        assert_int_equal(hps_fault_heap_live(), 0);
    }
}

static const struct {
    const char *name;
    void (*run)(void **state);
} ways[] = {
    {"at_once", test_check_when_streams_run_at_once_then_it_holds},
    {"delayed", test_check_when_streams_are_delayed_then_it_holds},
    {"the_device_is_lost", test_check_when_the_device_is_lost_then_it_fails_and_says_why},
    {"memory_is_short", test_check_when_memory_is_short_then_it_fails_and_says_why},
    {"the_heap_fails", test_check_when_the_heap_fails_then_it_says_why_and_frees_all},
};

int main(int argc, char **argv)
{
    struct CMUnitTest tests[END_WAY * N_CHECKS_MAX];
    char names[END_WAY * N_CHECKS_MAX][80];
    size_t n = 0;

    for (size_t i = 0; i < n_embed_checks && i < N_CHECKS_MAX; i++) {
        if (argc > 1 && strcmp(argv[1], embed_checks[i].name) != 0) {
            continue;
        }
        unsigned end = i % FAIL_EVERY == FAIL_EVERY - 1 ? END_WAY : FIRST_FAILING;
        for (unsigned way = FIRST_WAY; way < end; way++, n++) {
            (void)snprintf(names[n], sizeof(names[n]), "test_%s_when_%s", embed_checks[i].name,
                           ways[way].name);
            tests[n] = (struct CMUnitTest){
                .name = names[n],
                .test_func = ways[way].run,
                .initial_state = (void *)(uintptr_t)&embed_checks[i],
            };
        }
    }
    return _cmocka_run_group_tests("embed_cache", tests, n, NULL, NULL);
}

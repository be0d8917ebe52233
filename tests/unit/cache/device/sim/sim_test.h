/* SPDX-License-Identifier: Apache-2.0
 *
 * For tests on the simulated device: one of it, kernels made in place, and programs that must die
 * with the right last words. Included after cmocka.h.
 */
#ifndef HPS_TESTS_UNIT_CACHE_DEVICE_SIM_SIM_TEST_H
#define HPS_TESTS_UNIT_CACHE_DEVICE_SIM_SIM_TEST_H

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cache/device/sim/sim.h"

/* A kernel of this program alone: never built for a GPU. */
#define SIM_KERNEL(kernel, args_type, threads, shared_bytes)                               \
    static const struct hps_kernel kernel = {#kernel,        sizeof(args_type), (threads), \
                                             (shared_bytes), kernel##_sim,      NULL}

static inline struct hps_device *sim_open(const struct hps_device_sim_config *config,
                                          const struct hps_kernel *kernel)
{
    struct hps_device *device = NULL;
    struct hps_error err = {0};
    const struct hps_device_sim_config none = {0};
    const struct hps_sim_driver sim = hps_sim_driver(config != NULL ? *config : none);
    if (hps_device_open(&sim.driver, 0, &kernel, kernel != NULL ? 1 : 0, &device, &err) != HPS_OK) {
        fail_msg("%s", err.text);
    }
    return device;
}

#if defined(HPS_TSAN)
/* A process that comes of a fork starts fibers, which ThreadSanitizer takes for threads, while
 * those that are kept for later count as others. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "die_after_fork=0";
}
#endif

/* Run it in a process of its own, which must abort with `words` in what it said. */
static inline void sim_dies_saying(void (*run)(void), const char *words)
{
    int said[2];
    assert_int_equal(pipe(said), 0);
    fflush(stdout);
    fflush(stderr);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct rlimit none = {0, 0};
        (void)setrlimit(RLIMIT_CORE, &none);
        (void)signal(SIGABRT, SIG_DFL); /* cmocka's handler would go on */
        (void)dup2(said[1], STDERR_FILENO);
        run();
        _exit(0);
    }
    close(said[1]);
    char text[4096];
    size_t length = 0;
    ssize_t n;
    while (length < sizeof(text) - 1 &&
           (n = read(said[0], text + length, sizeof(text) - 1 - length)) > 0) {
        length += (size_t)n;
    }
    text[length] = 0;
    close(said[0]);
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) != 0);
    if (strstr(text, words) == NULL) {
        fail_msg("said '%s', not '%s'", text, words);
    }
}

#endif

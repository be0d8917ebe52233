/* SPDX-License-Identifier: Apache-2.0
 *
 * Helpers for tests on the simulated device: open a device, define kernels, and check that a
 * function ends its process with a message. Include it after cmocka.h.
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

/* A kernel of this test program, never built for a GPU. */
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
/* ThreadSanitizer treats fibers as threads, even unused ones. By default it would end a forked
 * child that starts more fibers. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "die_after_fork=0";
}
#endif

/* Run `run` in a child process, which must fail with `words` in its output. */
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
        (void)signal(SIGABRT, SIG_DFL); /* cmocka's handler would continue */
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

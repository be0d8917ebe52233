/* SPDX-License-Identifier: Apache-2.0
 *
 * sweep [CALLS]: the checks of a device, with cuda.cu over a stand-in for the CUDA runtime
 * (runtime.h): first without faults, then with a sticky error from one call on. In a check of at
 * most CALLS calls (default 340) that is each of them. In a longer one it is each of the first
 * ones, and then every one that is twice as late. Every run has its own process. It must end by
 * itself, pass or say why not, and leave nothing allocated unless the device failed. Main thread.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/assert.h"
#include "cache/device/ops.h"
#include "cache/embed/kernels.h"
#include "tests/gpu/device_checks.h"
#include "tests/gpu/embed_checks.h"
#include "tests/gpu/offline/runtime.h"

enum { ONE_BY_ONE = 24, CALLS = 340, LIMIT_S = 60 };
enum { PASSED, FAILED, SILENT, LEFT };

struct check {
    const char *name;
    bool (*run)(struct hps_device *device, struct hps_error *err);
    const struct hps_kernel *const *kernels;
    size_t n_kernels;
};

/* Written by the process of a run, read by its parent. */
static struct outcome {
    unsigned n_calls;
    struct hps_error err;
} * outcome;

static int run(const struct check *check, bool fails)
{
    struct hps_device *device = NULL;
    struct hps_error *err = &outcome->err;
    hps_status status =
        hps_device_open(&hps_device_cuda, 0, check->kernels, check->n_kernels, &device, err);
    if (status == HPS_OK) {
        device->info.kind = HPS_DEVICE_SIM; /* so that the check is as small as it is there */
    }
    bool ok = status == HPS_OK && check->run(device, err);
    hps_device_close(device);
    outcome->n_calls = runtime_calls();
    if (!fails && runtime_left() > 0) {
        return LEFT;
    }
    return ok ? PASSED : err->text[0] == 0 ? SILENT : FAILED;
}

/* Whether a run ends as it must. fail_at: 0: nothing fails, and so must the check. */
static bool try(const struct check *check, unsigned fail_at, bool set_device)
{
    int how = 0;

    memset(outcome, 0, sizeof(*outcome));
    pid_t child = fork();
    HPS_ASSERT(child >= 0);
    if (child == 0) {
        (void)alarm(LIMIT_S);
        runtime_fail_at(fail_at, set_device);
        _exit(run(check, fail_at != 0));
    }
    HPS_ASSERT(waitpid(child, &how, 0) == child);
    if (WIFEXITED(how) && WEXITSTATUS(how) <= (fail_at == 0 ? PASSED : FAILED)) {
        return true;
    }
    (void)fprintf(stderr, "sweep: %s: call %u%s fails: ", check->name, fail_at,
                  set_device ? "" : ", but not cudaSetDevice,");
    if (WIFSIGNALED(how)) {
        (void)fprintf(stderr, "ended by signal %d: %s\n", WTERMSIG(how), outcome->err.text);
    } else {
        (void)fprintf(stderr, "%s%s\n",
                      WEXITSTATUS(how) == LEFT     ? "something is left allocated"
                      : WEXITSTATUS(how) == SILENT ? "failed without a message"
                                                   : "",
                      outcome->err.text);
    }
    return false;
}

static unsigned n_runs, n_odd;

static void sweep(const struct check *check, unsigned calls_max)
{
    n_runs++;
    if (!try(check, 0, true)) {
        n_odd++;
        return;
    }
    unsigned n_calls = outcome->n_calls, one_by_one = n_calls <= calls_max ? n_calls : ONE_BY_ONE;
    for (unsigned at = 1; at <= n_calls; at += at < one_by_one ? 1 : at) {
        n_runs++;
        n_odd += try(check, at, (n_runs & 1) == 0) ? 0 : 1;
    }
    printf("%s: %u calls\n", check->name, n_calls);
}

int main(int argc, char **argv)
{
    unsigned calls_max = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : CALLS;

    outcome =
        mmap(NULL, sizeof(*outcome), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    HPS_ASSERT(outcome != MAP_FAILED);
    for (size_t i = 0; i < n_device_checks; i++) {
        sweep(&(struct check){device_checks[i].name, device_checks[i].run, device_check_kernels,
                              n_device_check_kernels},
              calls_max);
    }
    for (size_t i = 0; i < n_embed_checks; i++) {
        sweep(&(struct check){embed_checks[i].name, embed_checks[i].run, hps_embed_kernels,
                              hps_embed_n_kernels},
              calls_max);
    }
    printf("%u passed, %u failed\n", n_runs - n_odd, n_odd);
    return n_odd == 0 ? 0 : 1;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * gpu_checks [--sim] [--json FILE] [--list] [NAME...]: run all checks, or the named ones, on the
 * GPU or the simulated device. --list prints the names, one a line. Exit code 1: a check failed, a
 * name is unknown, or no device could be opened. Main thread.
 */
#include <stdio.h>
#include <string.h>

#include "bench/bench.h"
#include "cache/device/sim/sim.h"
#include "cache/embed/kernels.h"
#include "tests/gpu/device_checks.h"
#include "tests/gpu/embed_checks.h"

enum { EXIT_FAILED = 1, EXIT_USAGE = 2, MEMORY_SIM = 256 << 20 };

struct options {
    bool sim;
    const char *json;
    char **names;
    int n_names;
    int n_run, n_failed;
};

static bool is_wanted(const struct options *options, const char *name)
{
    for (int i = 0; i < options->n_names; i++) {
        if (strcmp(options->names[i], name) == 0) {
            return true;
        }
    }
    return options->n_names == 0;
}

static struct hps_device *open_device(const struct options *options,
                                      const struct hps_kernel *const *kernels, size_t n_kernels,
                                      struct hps_error *err)
{
    const struct hps_sim_driver sim =
        hps_sim_driver((struct hps_device_sim_config){.seed = 1, .memory_bytes = MEMORY_SIM});
    struct hps_device *device = NULL;
    hps_status status = hps_device_open(options->sim ? &sim.driver : &hps_device_cuda, 0, kernels,
                                        n_kernels, &device, err);

    return status == HPS_OK ? device : NULL;
}

static void list(void)
{
    for (size_t c = 0; c < n_device_checks; c++) {
        (void)puts(device_checks[c].name);
    }
    for (size_t c = 0; c < n_embed_checks; c++) {
        (void)puts(embed_checks[c].name);
    }
}

/* Each on a device opened anew: a check that loses it, or leaves something behind, is alone. */
static void run(struct options *options, const char *name,
                bool (*check)(struct hps_device *device, struct hps_error *err),
                const struct hps_kernel *const *kernels, size_t n_kernels)
{
    struct hps_error err = {0};

    if (!is_wanted(options, name)) {
        return;
    }
    uint64_t began = bench_now_ns();
    struct hps_device *device = open_device(options, kernels, n_kernels, &err);
    bool ok = device != NULL && check(device, &err);
    hps_device_close(device);
    double seconds = (double)(bench_now_ns() - began) / 1e9;
    options->n_run++;
    options->n_failed += ok ? 0 : 1;
    bench_report(name, "holds", ok ? 1 : 0, "", BENCH_AT_LEAST, 1);
    bench_report(name, "took", seconds, "s", BENCH_NO_TARGET, 0);
    if (!ok) {
        (void)fprintf(stderr, "gpu_checks: %s: %s\n", name, err.text);
    }
}

int main(int argc, char **argv)
{
    struct options options = {.json = "/dev/null"};
    struct hps_error err = {0};
    int i = 1;

    for (; i < argc && argv[i][0] == '-'; i++) {
        if (strcmp(argv[i], "--sim") == 0) {
            options.sim = true;
        } else if (strcmp(argv[i], "--json") == 0 && i + 1 < argc) {
            options.json = argv[++i];
        } else if (strcmp(argv[i], "--list") == 0) {
            list();
            return 0;
        } else {
            (void)fprintf(stderr, "usage: gpu_checks [--sim] [--json FILE] [--list] [NAME...]\n");
            return EXIT_USAGE;
        }
    }
    options.names = argv + i;
    options.n_names = argc - i;
    hps_status status = bench_open("conformance", options.json, &err);
    if (status == HPS_OK) {
        bench_print_head();
        for (size_t c = 0; c < n_device_checks; c++) {
            run(&options, device_checks[c].name, device_checks[c].run, device_check_kernels,
                n_device_check_kernels);
        }
        for (size_t c = 0; c < n_embed_checks; c++) {
            run(&options, embed_checks[c].name, embed_checks[c].run, hps_embed_kernels,
                hps_embed_n_kernels);
        }
        status = bench_close(status, &err);
    }
    if (status != HPS_OK) {
        (void)fprintf(stderr, "gpu_checks: %s\n", err.text);
    }
    printf("%d passed, %d failed\n", options.n_run - options.n_failed, options.n_failed);
    bool all_run = options.n_run > 0 && options.n_run >= options.n_names; /* no name is unknown */
    return status == HPS_OK && options.n_failed == 0 && all_run ? 0 : EXIT_FAILED;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * gpu_bench [--sim] [--json FILE] [--torch PROGRAM] NAME...: measure on the GPU, or try the
 * measurements on the simulated device. Results are printed, and appended to FILE, as they come.
 * Main thread.
 */
#include <stdio.h>
#include <string.h>

#include "bench/gpu/rig.h"

enum { EXIT_FAILED = 1, EXIT_USAGE = 2 };

static const struct {
    const char *name;
    void (*run)(struct bench_rig *rig);
} measurements[] = {
    {"probe", bench_probe},     {"ceilings", bench_ceilings}, {"widths", bench_widths},
    {"fused", bench_fused},     {"delivery", bench_delivery}, {"misses", bench_misses},
    {"updates", bench_updates}, {"profile", bench_profile},
};
enum { N_MEASUREMENTS = sizeof(measurements) / sizeof(measurements[0]) };

static int usage(void)
{
    (void)fprintf(stderr, "usage: gpu_bench [--sim] [--json FILE] [--torch PROGRAM] NAME...\n");
    for (size_t m = 0; m < N_MEASUREMENTS; m++) {
        (void)fprintf(stderr, "  %s\n", measurements[m].name);
    }
    return EXIT_USAGE;
}

static bool run(const char *name, size_t m, bool sim, const char *torch, const char *json)
{
    struct hps_error err = {0};
    struct bench_rig rig;
    hps_status status = bench_open(name, json, &err);

    if (status == HPS_OK) {
        bench_rig_open(&rig, sim, &err);
        rig.torch = torch;
        if (rig.status == HPS_OK) {
            measurements[m].run(&rig);
        }
        bench_rig_close(&rig);
        status = bench_close(rig.status, &err);
    }
    if (status != HPS_OK) {
        (void)fprintf(stderr, "gpu_bench: %s: %s\n", name, err.text);
    }
    return status == HPS_OK;
}

int main(int argc, char **argv)
{
    const char *torch = NULL, *json = "/dev/null";
    bool sim = false, ok = true, any = false;

    for (int i = 1; i < argc; i++) {
        size_t m = 0;
        if (strcmp(argv[i], "--sim") == 0) {
            sim = true;
            continue;
        }
        if (strcmp(argv[i], "--json") == 0 && i + 1 < argc) {
            json = argv[++i];
            continue;
        }
        if (strcmp(argv[i], "--torch") == 0 && i + 1 < argc) {
            torch = argv[++i];
            continue;
        }
        while (m < N_MEASUREMENTS && strcmp(argv[i], measurements[m].name) != 0) {
            m++;
        }
        if (m == N_MEASUREMENTS) {
            return usage();
        }
        if (!any) {
            bench_print_head();
        }
        any = true;
        ok = run(argv[i], m, sim, torch, json) && ok;
    }
    return !any ? usage() : ok ? 0 : EXIT_FAILED;
}

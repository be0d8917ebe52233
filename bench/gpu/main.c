/* SPDX-License-Identifier: Apache-2.0
 *
 * gpu_bench [--sim] [--json FILE] [--torch PROGRAM] NAME...: measure on the GPU, or try the
 * measurements on the simulated device. Each result is printed and appended to FILE at once, so a
 * killed run keeps its results. PROGRAM (torch_gather.py) measures torch; only `torch` needs it.
 * Main thread.
 */
#include <stdio.h>
#include <string.h>

#include "bench/gpu/rig.h"

enum { EXIT_FAILED = 1, EXIT_USAGE = 2 };

#ifndef HPS_VARIANT_NAME
#define HPS_VARIANT_NAME ""
#endif

/* seconds: estimate of the time on an H200, with the setup. */
static const struct {
    const char *name;
    unsigned seconds;
    void (*run)(struct bench_rig *rig);
} measurements[] = {
    {"probe", 2, bench_probe},
    {"gather", 20, bench_gather},
    {"gather_small", 4, bench_gather_small},
    {"fused", 10, bench_fused},
    {"ceilings", 10, bench_ceilings},
    {"delivery", 5, bench_delivery},
    {"misses", 11, bench_misses},
    {"updates", 11, bench_updates},
    {"apply", 5, bench_apply},
    {"pooled", 5, bench_pooled},
    {"converted", 4, bench_converted},
    {"observe", 3, bench_observe},
    {"widths", 10, bench_widths},
    {"claims", 7, bench_claims},
    {"hit_rate", 9, bench_hit_rate},
    {"torch", 15, bench_torch},
    {"profile_lookup", 3, bench_profile},
    {"profile_apply", 3, bench_profile_apply},
    {"profile_pool", 3, bench_profile},
    {"profile_observe", 3, bench_profile},
    {"profile_convert", 3, bench_profile},
    {"profile_gather", 3, bench_profile},
};
enum { N_MEASUREMENTS = sizeof(measurements) / sizeof(measurements[0]) };

static int usage(void)
{
    (void)fprintf(stderr, "usage: gpu_bench [--sim] [--json FILE] [--torch PROGRAM] NAME...\n");
    for (size_t m = 0; m < N_MEASUREMENTS; m++) {
        (void)fprintf(stderr, "  %-16s about %u s\n", measurements[m].name,
                      measurements[m].seconds);
    }
    return EXIT_USAGE;
}

static bool run(const char *name, size_t m, bool sim, const char *torch, const char *json)
{
    struct hps_error err = {0};
    struct bench_rig rig;
    char bench[64];

    (void)snprintf(bench, sizeof(bench), "%s%s%s", name, HPS_VARIANT_NAME[0] != 0 ? "@" : "",
                   HPS_VARIANT_NAME);
    hps_status status = bench_open(bench, json, &err);

    if (status == HPS_OK) {
        bench_rig_open(&rig, sim, &err);
        rig.name = name;
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

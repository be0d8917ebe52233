/* SPDX-License-Identifier: Apache-2.0
 *
 * gpu_bench (bench/gpu/main.c); by another name, gpu_checks (tests/gpu/run_checks.c). They are one
 * program, because the kernels and the CUDA runtime are most of it, and all variants travel.
 */
#include <string.h>

int gpu_bench_main(int argc, char **argv);
int gpu_checks_main(int argc, char **argv);

int main(int argc, char **argv)
{
    const char *name = strrchr(argv[0], '/');

    return strstr(name != NULL ? name : argv[0], "gpu_checks") != NULL ? gpu_checks_main(argc, argv)
                                                                       : gpu_bench_main(argc, argv);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * gpu_bench checks ARGUMENT...: gpu_checks (tests/gpu/run_checks.c); else bench/gpu/main.c. They
 * are one program, because the kernels and the CUDA runtime are most of it, and all variants
 * travel.
 */
#include <string.h>

int gpu_bench_main(int argc, char **argv);
int gpu_checks_main(int argc, char **argv);

int main(int argc, char **argv)
{
    return argc > 1 && strcmp(argv[1], "checks") == 0 ? gpu_checks_main(argc - 1, argv + 1)
                                                      : gpu_bench_main(argc, argv);
}

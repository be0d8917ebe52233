/* SPDX-License-Identifier: Apache-2.0
 *
 * torch's gather on the same device, in a process of its own that waits while others are measured:
 * a line to it asks for a table or for a measurement, a line from it answers.
 *
 * Thread: main.
 */
#ifndef HPS_BENCH_GPU_TORCH_H
#define HPS_BENCH_GPU_TORCH_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

struct bench_torch {
    FILE *to, *from; /* NULL: there is no torch */
    pid_t pid;
};

/* program: NULL for none. Without a torch that sees a device there is none; stderr says why. */
void bench_torch_open(struct bench_torch *torch, const char *program);
void bench_torch_close(struct bench_torch *torch);
/* A table of n_rows rows, and n ids of it by Zipf's law. False: it has none. */
bool bench_torch_case(struct bench_torch *torch, uint32_t row_bytes, uint64_t n_rows, uint32_t n,
                      double alpha);
/* Time of one gather in us; 0: failed. */
double bench_torch_us(struct bench_torch *torch);

#endif

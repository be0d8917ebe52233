/* SPDX-License-Identifier: Apache-2.0
 *
 * torch.nn.EmbeddingBag, compared with our sums of rows. It runs in its own process, which waits
 * while other steps are measured. Main thread.
 */
#ifndef HPS_BENCH_EMBEDDING_BAG_H
#define HPS_BENCH_EMBEDDING_BAG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

struct bench_bags {
    FILE *to, *from; /* NULL: there is no torch */
    pid_t pid;
};

/* Without torch there is none; stderr says why. */
void bench_bags_open(struct bench_bags *bags);
void bench_bags_close(struct bench_bags *bags);
/* A table of FP32, and rows of it by Zipf's law. */
void bench_bags_case(struct bench_bags *bags, uint32_t dim, uint64_t n_rows, double alpha);
/* Nanoseconds of CPU time per row; 0: there is none. mode: "sum" or "mean" */
double bench_bags_ns(struct bench_bags *bags, const char *mode);

#endif

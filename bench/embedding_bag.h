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
    FILE *to, *from; /* NULL: no torch */
    pid_t pid;
};

/* Start the process. Without torch, to and from stay NULL, and stderr has the reason. */
void bench_bags_open(struct bench_bags *bags);
void bench_bags_close(struct bench_bags *bags);
/* Make an FP32 table, and row numbers: uniform for alpha 0, else by Zipf's law. */
void bench_bags_case(struct bench_bags *bags, uint32_t dim, uint64_t n_rows, double alpha);
/* Nanoseconds of CPU time per row; 0 without torch. mode: "sum" or "mean" */
double bench_bags_ns(struct bench_bags *bags, const char *mode);

#endif

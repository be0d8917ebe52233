/* SPDX-License-Identifier: Apache-2.0
 *
 * The lookup kernel compared with torch's index_select and EmbeddingBag on the same device. torch
 * runs in a second process (torch_gather.py), which is idle while the lookup is measured. Each
 * request to it, for a table or a measurement, and each reply is one line. Thread: main.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/gpu/index.h"

struct torch {
    FILE *to, *from; /* NULL: there is no torch */
    pid_t pid;
};

static void torch_close(struct torch *torch)
{
    if (torch->to == NULL) {
        return;
    }
    (void)fclose(torch->to); /* the end of its input is its end */
    (void)fclose(torch->from);
    (void)waitpid(torch->pid, NULL, 0);
    *torch = (struct torch){0};
}

static bool answer(struct torch *torch, char *line, int size)
{
    if (torch->to == NULL || fflush(torch->to) != 0 || fgets(line, size, torch->from) == NULL) {
        torch_close(torch);
        return false;
    }
    return true;
}

/* Nothing is measured of torch where it does not see a device; stderr says why. */
static void torch_open(struct torch *torch, const struct bench_rig *rig)
{
    int to[2], from[2];
    char line[64];

    if (rig->torch == NULL || pipe(to) != 0) {
        return;
    }
    if (pipe(from) != 0) {
        (void)close(to[0]);
        (void)close(to[1]);
        return;
    }
    (void)signal(SIGPIPE, SIG_IGN);
    torch->pid = fork();
    if (torch->pid == 0) {
        (void)dup2(to[0], STDIN_FILENO);
        (void)dup2(from[1], STDOUT_FILENO);
        (void)close(to[1]);
        (void)close(from[0]);
        (void)execlp("python3", "python3", rig->torch, rig->sim ? "cpu" : "cuda", (char *)NULL);
        _exit(127);
    }
    (void)close(to[0]);
    (void)close(from[1]);
    torch->to = fdopen(to[1], "w");
    torch->from = fdopen(from[0], "r");
    if (!answer(torch, line, sizeof(line)) || strcmp(line, "ready\n") != 0) {
        torch_close(torch);
    }
}

/* Request a table of n_rows rows and n ids. bag: number of ids per sum; 0: rows are
 * only gathered. False: torch cannot do it. */
static bool torch_case(struct torch *torch, uint32_t row_bytes, uint64_t n_rows, uint32_t n,
                       double alpha, uint32_t bag)
{
    char line[64];

    if (torch->to == NULL) {
        return false;
    }
    (void)fprintf(torch->to, "case %u %llu %u %.3f %u\n", row_bytes, (unsigned long long)n_rows, n,
                  alpha, bag);
    return answer(torch, line, sizeof(line)) && strcmp(line, "ready\n") == 0;
}

static double torch_us(struct bench_rig *rig, void *arg)
{
    struct torch *torch = arg;
    char line[64];

    (void)rig;
    if (torch->to == NULL) {
        return 0;
    }
    (void)fprintf(torch->to, "run\n");
    return answer(torch, line, sizeof(line)) ? strtod(line, NULL) : 0;
}

/* ---- the measurement ------------------------------------------------------------------------- */

struct torch_case {
    uint32_t row_bytes;
    double alpha;
    uint32_t bag; /* 0: index_select, else EmbeddingBag */
};

/* What the ratio of the times must be at least: as many bytes more as a lookup reads, and 10 %. */
static double target_of(const struct bench_moved *moved)
{
    double rows = moved->read + moved->written;

    return 0.9 * (8 + rows) / (moved->index + rows);
}

static void run_case(struct bench_rig *rig, const struct torch_case *is, struct torch *torch)
{
    uint32_t step = 32 * (is->bag > 0 ? is->bag : 1);
    uint64_t arena = bench_fitting_bytes(rig, UINT64_C(8) << 30, 0.3, 1 << 20);
    uint64_t n_rows = bench_index_rows(is->row_bytes, arena);
    const struct hps_embed_shape shape = {.stored = HPS_DTYPE_FP32,
                                          .dim = is->row_bytes / 4,
                                          .wanted = HPS_DTYPE_FP32,
                                          .pooling = HPS_POOLING_SUM};
    const struct bench_batch_spec spec = {.n_parts = 1,
                                          .n_keys = bench_count(rig, (1 << 20) / step * step, step),
                                          .alpha = is->alpha,
                                          .shape = is->bag > 0 ? &shape : NULL,
                                          .bag = is->bag};
    struct bench_index index;
    struct bench_batches batches;
    uint32_t before = rig->n_pieces;
    char name[64];

    bench_index_open(rig, &index, 0, is->row_bytes, n_rows, n_rows, bench_memory(rig, arena));
    bench_batches_open(rig, &batches, &index, &spec);
    struct bench_work works[] = {{.name = "torch", .time_us = torch_us, .arg = torch},
                                 {.name = "lookup", .give = bench_batches_give, .arg = &batches}};
    if (rig->status == HPS_OK &&
        torch_case(torch, is->row_bytes, n_rows, spec.n_keys, is->alpha, is->bag)) {
        bench_turns(rig, works, 2);
    } else {
        bench_turns(rig, &works[1], 1);
    }
    double hit_share = bench_batches_check(rig, &batches);
    const struct bench_moved moved = bench_batches_moved(&batches, hit_share, BENCH_INDEX_BYTES);
    (void)snprintf(name, sizeof(name), "%u B, %s, bags of %u", is->row_bytes,
                   is->alpha == 0 ? "uniform" : "zipf 1.05", is->bag > 0 ? is->bag : 1);
    bench_result(rig, name, "lookup", works[1].us, "us", BENCH_NO_TARGET, 0);
    if (works[0].us > 0) {
        bench_result(rig, name, is->bag > 0 ? "EmbeddingBag" : "index_select", works[0].us, "us",
                     BENCH_NO_TARGET, 0);
        bench_result(rig, name, "torch / lookup, time", works[0].us / works[1].us, "",
                     is->alpha == 0 ? BENCH_AT_LEAST : BENCH_NO_TARGET, target_of(&moved));
    }
    bench_free_to(rig, before);
}

void bench_torch(struct bench_rig *rig)
{
    static const struct torch_case cases[] = {
        {128, 0, 0},   {128, 0, 30},   {512, 0, 0},  {32, 0, 0},    {128, 1.05, 0},
        {32, 1.05, 0}, {512, 1.05, 0}, {128, 0, 10}, {128, 0, 100}, {512, 0, 30}};
    struct torch torch = {0};

    torch_open(&torch, rig);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]) && rig->status == HPS_OK; i++) {
        run_case(rig, &cases[i], &torch);
    }
    torch_close(&torch);
}

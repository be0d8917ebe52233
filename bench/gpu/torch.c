/* SPDX-License-Identifier: Apache-2.0
 *
 * See torch.h, and torch_gather.py for the other side.
 */
#include "bench/gpu/torch.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static bool answer(struct bench_torch *torch, char *line, int size)
{
    if (torch->to == NULL || fflush(torch->to) != 0 || fgets(line, size, torch->from) == NULL) {
        bench_torch_close(torch);
        return false;
    }
    return true;
}

void bench_torch_open(struct bench_torch *torch, const char *program)
{
    int to[2], from[2];
    char line[64];

    *torch = (struct bench_torch){0};
    if (program == NULL || pipe(to) != 0) {
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
        (void)execlp("python3", "python3", program, (char *)NULL);
        _exit(127);
    }
    (void)close(to[0]);
    (void)close(from[1]);
    torch->to = fdopen(to[1], "w");
    torch->from = fdopen(from[0], "r");
    if (!answer(torch, line, sizeof(line)) || strcmp(line, "ready\n") != 0) {
        bench_torch_close(torch);
    }
}

void bench_torch_close(struct bench_torch *torch)
{
    if (torch->to == NULL) {
        return;
    }
    (void)fclose(torch->to); /* the end of its input is its end */
    (void)fclose(torch->from);
    (void)waitpid(torch->pid, NULL, 0);
    *torch = (struct bench_torch){0};
}

bool bench_torch_case(struct bench_torch *torch, uint32_t row_bytes, uint64_t n_rows, uint32_t n,
                      double alpha)
{
    char line[64];

    if (torch->to == NULL) {
        return false;
    }
    (void)fprintf(torch->to, "case %u %llu %u %.3f\n", row_bytes, (unsigned long long)n_rows, n,
                  alpha);
    return answer(torch, line, sizeof(line)) && strcmp(line, "ready\n") == 0;
}

double bench_torch_us(struct bench_torch *torch)
{
    char line[64];

    if (torch->to == NULL) {
        return 0;
    }
    (void)fprintf(torch->to, "run\n");
    return answer(torch, line, sizeof(line)) ? strtod(line, NULL) : 0;
}

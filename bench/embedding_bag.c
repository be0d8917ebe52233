/* SPDX-License-Identifier: Apache-2.0
 *
 * See embedding_bag.h. embedding_bag.py is the other side.
 */
#include "bench/embedding_bag.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* Read a reply line; false: the other process has ended. */
static bool answer(struct bench_bags *bags, char *line, int size)
{
    if (bags->to == NULL || fflush(bags->to) != 0 || fgets(line, size, bags->from) == NULL) {
        bench_bags_close(bags);
        return false;
    }
    return true;
}

void bench_bags_open(struct bench_bags *bags)
{
    int to[2], from[2];
    char line[64];

    *bags = (struct bench_bags){0};
    if (pipe2(to, O_CLOEXEC) != 0) {
        return;
    }
    if (pipe2(from, O_CLOEXEC) != 0) {
        (void)close(to[0]);
        (void)close(to[1]);
        return;
    }
    bags->pid = fork();
    if (bags->pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* best effort: an interrupted run leaves nothing */
        (void)dup2(to[0], STDIN_FILENO);
        (void)dup2(from[1], STDOUT_FILENO);
        const char *python = getenv("HPS_PYTHON"); /* one that has torch */

        if (python == NULL) {
            python = "/usr/bin/python3";
        }
        (void)execl(python, python, HPS_BENCH_BAGS, (char *)NULL);
        _exit(127);
    }
    (void)close(to[0]);
    (void)close(from[1]);
    bags->to = fdopen(to[1], "w");
    bags->from = fdopen(from[0], "r");
    if (!answer(bags, line, sizeof(line)) || strcmp(line, "ready\n") != 0) {
        bench_bags_close(bags);
    }
}

void bench_bags_close(struct bench_bags *bags)
{
    if (bags->to == NULL) {
        return;
    }
    (void)fclose(bags->to); /* it ends with its input */
    (void)fclose(bags->from);
    (void)waitpid(bags->pid, NULL, 0);
    *bags = (struct bench_bags){0};
}

void bench_bags_case(struct bench_bags *bags, uint32_t dim, uint64_t n_rows, double alpha)
{
    char line[64];

    if (bags->to != NULL) {
        (void)fprintf(bags->to, "case %u %llu %.3f\n", dim, (unsigned long long)n_rows, alpha);
        (void)answer(bags, line, sizeof(line));
    }
}

double bench_bags_ns(struct bench_bags *bags, const char *mode)
{
    char line[64];

    if (bags->to != NULL) {
        (void)fprintf(bags->to, "%s\n", mode);
    }
    return answer(bags, line, sizeof(line)) ? strtod(line, NULL) : 0;
}

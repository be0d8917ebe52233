/* SPDX-License-Identifier: Apache-2.0
 *
 * See child.h.
 */
#include "bench/child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/bench.h"

static void exec_child(const char *const *argv, int cpu, int in, int out)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* best effort: an interrupted run leaves nothing */
    if (cpu != BENCH_CHILD_ANY_CPU) {
        bench_bind((unsigned)cpu);
    }
    (void)dup2(in, STDIN_FILENO);
    (void)dup2(out, STDOUT_FILENO);
    (void)execv(argv[0], (char *const *)(uintptr_t)argv);
    _exit(127);
}

static bool read_line(int fd, char *out, size_t size)
{
    size_t n = 0;

    while (n + 1 < size && read(fd, out + n, 1) == 1 && out[n] != '\n') {
        n++;
    }
    out[n] = '\0';
    return n > 0;
}

hps_status bench_child_start(const char *const *argv, int cpu, struct bench_child *out_child,
                             char *out_line, size_t line_size, struct hps_error *err)
{
    int in[2], out[2];

    if (pipe2(in, O_CLOEXEC) != 0) {
        return hps_error_set(err, HPS_EXHAUSTED, "pipe: %s", strerror(errno));
    }
    if (pipe2(out, O_CLOEXEC) != 0) {
        close(in[0]);
        close(in[1]);
        return hps_error_set(err, HPS_EXHAUSTED, "pipe: %s", strerror(errno));
    }
    struct bench_child child = {.pid = fork(), .in = in[1]};
    if (child.pid == 0) {
        exec_child(argv, cpu, in[0], out[1]);
    }
    close(in[0]);
    close(out[1]);
    bool ok = child.pid > 0 && read_line(out[0], out_line, line_size);
    close(out[0]);
    if (!ok) {
        bench_child_stop(&child);
        return hps_error_set(err, HPS_UNAVAILABLE, "%s did not start", argv[0]);
    }
    *out_child = child;
    return HPS_OK;
}

void bench_child_stop(struct bench_child *child)
{
    close(child->in);
    if (child->pid > 0) {
        (void)kill(child->pid, SIGTERM);
        (void)waitpid(child->pid, NULL, 0);
    }
    child->pid = 0;
}

hps_status bench_child_run(const char *const *argv, struct hps_error *err)
{
    int none = open("/dev/null", O_RDWR | O_CLOEXEC);
    int how = 0;
    pid_t pid = none < 0 ? -1 : fork();

    if (pid == 0) {
        exec_child(argv, BENCH_CHILD_ANY_CPU, none, none);
    }
    bool ended = pid > 0 && waitpid(pid, &how, 0) == pid;
    if (none >= 0) {
        close(none);
    }
    return ended && WIFEXITED(how) && WEXITSTATUS(how) == 0
               ? HPS_OK
               : hps_error_set(err, HPS_INTERNAL, "%s failed", argv[0]);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * A library to preload into hpsd. It counts the calls that change files below one directory, and
 * ends the process like kill -9 before a selected call. A killed process leaves exactly the
 * effects of earlier calls, so every state that a kill can leave has a number, also short-lived
 * ones. Alternatively, the library holds the thread before the call until the test releases it.
 * Any thread.
 *
 * HPS_KILLPOINT names a file of 1 MiB that is shared with the test (struct control), and
 * HPS_KILLPOINT_BELOW the directory.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include "tests/lib/pause.h"

enum how { END = 0, END_TORN = 1 /* half of the data is written */, HOLD = 2 };

enum { CONTROL_BYTES = 1 << 20, PATTERN_BYTES = 240, LINE_BYTES = 600, PATH_BYTES = 512 };

struct control {
    _Atomic int64_t left;        /* matching calls until the kill; 0: none */
    _Atomic uint64_t used;       /* bytes of trace, including lines that did not fit */
    _Atomic int64_t how;         /* enum how; a change releases a held thread */
    char pattern[PATTERN_BYTES]; /* of lines of the trace */
    char trace[];                /* one line per call: its name and the path */
};

static struct control *control;
static char below[PATH_BYTES];
static size_t below_size;

__attribute__((constructor)) static void attach(void)
{
    const char *path = getenv("HPS_KILLPOINT");
    const char *dir = getenv("HPS_KILLPOINT_BELOW");
    int fd = path != NULL && dir != NULL ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) {
        return;
    }
    void *map = mmap(NULL, CONTROL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (map != MAP_FAILED) {
        below_size = (size_t)snprintf(below, sizeof(below), "%s/", dir);
        control = map;
    }
}

/* ---- the kill -------------------------------------------------------------------------------- */

/* Whether the process must end before this call. */
static bool is_due(const char *name, const char *path)
{
    char line[LINE_BYTES];
    if (strncmp(path, below, below_size) != 0) {
        return false;
    }
    size_t size = (size_t)snprintf(line, sizeof(line) - 1, "%s %s\n", name, path + below_size);
    uint64_t at = atomic_fetch_add(&control->used, size);
    if (at + size <= CONTROL_BYTES - sizeof(*control)) {
        memcpy(control->trace + at, line, size);
    }
    line[size - 1] = '\0';
    int64_t left = atomic_load(&control->left);
    if (left <= 0 || fnmatch(control->pattern, line, 0) != 0) {
        return false;
    }
    return atomic_fetch_sub(&control->left, 1) == 1;
}

static _Noreturn void end(void)
{
    for (;;) {
        (void)kill(getpid(), SIGKILL);
    }
}

static void stop_here(void)
{
    if (atomic_load(&control->how) != HOLD) {
        end();
    }
    while (atomic_load(&control->how) == HOLD) {
        brief_pause_ms(1); /* the test writes to the file */
    }
}

static void before(const char *name, const char *path)
{
    if (control != NULL && is_due(name, path)) {
        stop_here();
    }
}

static const char *path_of(int fd, char path[PATH_BYTES])
{
    char link[64];
    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, PATH_BYTES - 1);
    path[size > 0 ? size : 0] = '\0';
    return path;
}

static void before_fd(const char *name, int fd)
{
    char path[PATH_BYTES];
    if (control != NULL && is_due(name, path_of(fd, path))) {
        stop_here();
    }
}

/* Whether half of the data must be written before the end. */
static bool half(const char *name, int fd)
{
    char path[PATH_BYTES];
    if (control == NULL || !is_due(name, path_of(fd, path))) {
        return false;
    }
    if (atomic_load(&control->how) != END_TORN) {
        stop_here();
        return false;
    }
    return true;
}

/* ---- the calls ------------------------------------------------------------------------------- */

/* The function that this library replaces. */
static void *next_of(_Atomic(void *) *found, const char *name)
{
    void *symbol = atomic_load(found);
    if (symbol == NULL) {
        symbol = dlsym(RTLD_NEXT, name);
        if (symbol == NULL) {
            abort();
        }
        atomic_store(found, symbol);
    }
    return symbol;
}

/* Define `name` as a call with `point` before it. */
#define CALL(result, name, parameters, arguments, point) \
    result name parameters                               \
    {                                                    \
        static _Atomic(void *) found;                    \
        void *symbol = next_of(&found, #name);           \
        result(*next) parameters;                        \
        memcpy(&next, &symbol, sizeof(next));            \
        point;                                           \
        return next arguments;                           \
    }

/* The same for a call that writes `size` bytes: half of them may be written before the end. */
#define WRITE(name, parameters, arguments, half_arguments)           \
    CALL(                                                            \
        ssize_t, name, parameters, arguments, if (half(#name, fd)) { \
            (void)!next half_arguments;                              \
            end();                                                   \
        })

WRITE(write, (int fd, const void *data, size_t size), (fd, data, size), (fd, data, size / 2))
WRITE(pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at),
      (fd, data, size / 2, at))
WRITE(pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at),
      (fd, data, size / 2, at))
CALL(int, fsync, (int fd), (fd), before_fd("fsync", fd))
CALL(int, fdatasync, (int fd), (fd), before_fd("fdatasync", fd))
CALL(int, ftruncate, (int fd, off_t size), (fd, size), before_fd("ftruncate", fd))
CALL(int, ftruncate64, (int fd, off64_t size), (fd, size), before_fd("ftruncate", fd))
CALL(int, fallocate, (int fd, int mode, off_t at, off_t size), (fd, mode, at, size),
     before_fd("fallocate", fd))
CALL(int, rename, (const char *from, const char *to), (from, to), before("rename", to))
CALL(int, link, (const char *from, const char *to), (from, to), before("link", to))
CALL(int, unlink, (const char *path), (path), before("unlink", path))
CALL(int, remove, (const char *path), (path), before("remove", path))
CALL(int, rmdir, (const char *path), (path), before("rmdir", path))
CALL(int, mkdir, (const char *path, mode_t mode), (path, mode), before("mkdir", path))

/* Counts only opens that may create or truncate a file. */
#define OPEN(name)                                                        \
    int name(const char *path, int flags, ...)                            \
    {                                                                     \
        static _Atomic(void *) found;                                     \
        void *symbol = next_of(&found, #name);                            \
        int (*next)(const char *, int, ...);                              \
        mode_t mode = 0;                                                  \
        memcpy(&next, &symbol, sizeof(next));                             \
        if ((flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE) { \
            va_list more;                                                 \
            va_start(more, flags);                                        \
            mode = va_arg(more, mode_t);                                  \
            va_end(more);                                                 \
            before("open", path);                                         \
        }                                                                 \
        return next(path, flags, mode);                                   \
    }

OPEN(open)
OPEN(open64)

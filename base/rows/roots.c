/* SPDX-License-Identifier: Apache-2.0
 *
 * Files below directories that no link leads out of. Threads: see base/rows/roots.h.
 */
#include "base/rows/roots.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/rows/fileio.h"

struct root {
    char *path;  /* resolved */
    size_t size; /* of path; 0 for "/" */
    int fd;
};

struct hps_roots {
    const char *option;
    struct root *items;
    size_t n;
};

static hps_status no_memory(struct hps_error *err)
{
    return hps_error_set(err, HPS_NO_MEMORY, "no memory for directories to read from");
}

static bool lies_below(const struct root *root, const char *resolved)
{
    return strncmp(resolved, root->path, root->size) == 0 &&
           (resolved[root->size] == '\0' || resolved[root->size] == '/');
}

static const struct root *find_root(const struct hps_roots *roots, const char *resolved)
{
    for (size_t i = 0; i < roots->n; i++) {
        if (lies_below(&roots->items[i], resolved)) {
            return &roots->items[i];
        }
    }
    return NULL;
}

hps_status hps_roots_add(struct hps_roots *roots, const char *path, struct hps_error *err)
{
    char resolved[PATH_MAX];
    if (realpath(path, resolved) == NULL || find_root(roots, resolved) != NULL) {
        return HPS_OK;
    }
    struct root root = {.path = hps_strdup(resolved)};
    struct root *items = hps_realloc(roots->items, (roots->n + 1) * sizeof(*items));
    if (items != NULL) {
        roots->items = items;
    }
    if (root.path == NULL || items == NULL) {
        hps_free(root.path);
        return no_memory(err);
    }
    root.size = strcmp(resolved, "/") == 0 ? 0 : strlen(resolved);
    root.fd = open(resolved, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (root.fd < 0) {
        hps_status status = hps_file_error(err, errno, "cannot open", resolved);
        hps_free(root.path);
        return status == HPS_EXHAUSTED || status == HPS_NO_MEMORY ? status : HPS_OK;
    }
    items[roots->n++] = root;
    return HPS_OK;
}

hps_status hps_roots_open(const char *option, const char *const *paths, size_t n,
                          struct hps_roots **out_roots, struct hps_error *err)
{
    struct hps_roots *roots = hps_calloc(1, sizeof(*roots));
    hps_status status = roots != NULL ? HPS_OK : no_memory(err);
    for (size_t i = 0; status == HPS_OK && i < n; i++) {
        roots->option = option;
        status = hps_roots_add(roots, paths[i], err);
    }
    if (status != HPS_OK) {
        hps_roots_close(roots);
        return status;
    }
    roots->option = option;
    *out_roots = roots;
    return HPS_OK;
}

void hps_roots_close(struct hps_roots *roots)
{
    for (size_t i = 0; roots != NULL && i < roots->n; i++) {
        close(roots->items[i].fd);
        hps_free(roots->items[i].path);
    }
    if (roots != NULL) {
        hps_free(roots->items);
    }
    hps_free(roots);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* For kernels before 5.6 and sandboxes without openat2: open one name at a time, without following
 * links. A resolved path has no link and no "..", unless a directory has changed since. */
static int walk(int root_fd, const char *below, int flags)
{
    char path[PATH_MAX];
    char *rest = NULL;
    int dir_fd = root_fd;
    size_t size = strlen(below);
    if (size >= sizeof(path)) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(path, below, size + 1);
    for (char *name = strtok_r(path, "/", &rest); name != NULL;) {
        char *next = strtok_r(NULL, "/", &rest);
        int step = next != NULL ? O_PATH | O_DIRECTORY : flags;
        int fd = -1;
        errno = EXDEV;
        if (strcmp(name, "..") != 0) {
            fd = openat(dir_fd, name, step | O_NOFOLLOW | O_CLOEXEC);
        }
        int error = errno;
        if (dir_fd != root_fd) {
            close(dir_fd);
        }
        errno = error;
        if (fd < 0 || next == NULL) {
            return fd;
        }
        dir_fd = fd;
        name = next;
    }
    errno = ENOENT;
    return -1;
}

static int open_below(int root_fd, const char *below, int flags)
{
    struct open_how how = {.flags = (uint64_t)(unsigned)flags | O_CLOEXEC,
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    int fd = (int)syscall(SYS_openat2, root_fd, below, &how, sizeof(how));
    /* EPERM: returned by some sandboxes for the call; EAGAIN: a concurrent rename. */
    bool unknown = fd < 0 && (errno == ENOSYS || errno == EPERM || errno == EAGAIN);
    return unknown ? walk(root_fd, below, flags) : fd;
}

/* The text is the same whether or not `path` exists, so that a client cannot find out which files
 * there are outside the roots. */
static hps_status fail_outside(const struct hps_roots *roots, const char *path,
                               struct hps_error *err)
{
    return hps_error_set(err, HPS_PERMISSION,
                         "%.200s does not lead to a place below any of %s; put it below one of "
                         "them, replace links that lead elsewhere, or add its directory",
                         path, roots->option);
}

/* Whether the part of a path that can be resolved is below a root. False if the next name is a
 * link, which could lead anywhere. */
static bool is_missing_below(const struct hps_roots *roots, const char *path)
{
    char part[PATH_MAX], resolved[PATH_MAX];
    struct stat info;
    size_t least = path[0] == '/' ? 1 : 0;
    size_t size = strlen(path);
    if (size >= sizeof(part)) {
        return false;
    }
    memcpy(part, path, size + 1);
    for (;;) {
        while (size > least && part[size - 1] == '/') {
            part[--size] = '\0';
        }
        if (realpath(size > 0 ? part : ".", resolved) != NULL) {
            return find_root(roots, resolved) != NULL;
        }
        if (size == least || (lstat(part, &info) == 0 && S_ISLNK(info.st_mode))) {
            return false;
        }
        while (size > least && part[size - 1] != '/') {
            part[--size] = '\0';
        }
    }
}

hps_status hps_roots_resolve(const struct hps_roots *roots, const char *path,
                             char out_resolved[PATH_MAX], struct hps_error *err)
{
    bool found = realpath(path, out_resolved) != NULL;
    int error = errno;
    if (roots != NULL &&
        !(found ? find_root(roots, out_resolved) != NULL : is_missing_below(roots, path))) {
        return fail_outside(roots, path, err);
    }
    return found ? HPS_OK : hps_file_error(err, error, "cannot open", path);
}

hps_status hps_roots_open_path(const struct hps_roots *roots, const char *path, int flags,
                               int *out_fd, struct hps_error *err)
{
    char resolved[PATH_MAX];
    int fd = -1;
    HPS_ASSERT((flags & O_CREAT) == 0);
    if (roots == NULL) {
        fd = open(path, flags | O_CLOEXEC);
    } else {
        hps_status status = hps_roots_resolve(roots, path, resolved, err);
        if (status != HPS_OK) {
            return status;
        }
        const struct root *root = find_root(roots, resolved);
        const char *below = resolved + root->size;
        fd = open_below(root->fd, below[0] != '\0' && below[1] != '\0' ? below + 1 : ".", flags);
    }
    if (fd < 0 && (errno == EXDEV || errno == ELOOP) && roots != NULL) {
        return fail_outside(roots, path, err); /* it changed during the check */
    }
    if (fd < 0) {
        return hps_file_error(err, errno, "cannot open", path);
    }
    *out_fd = fd;
    return HPS_OK;
}

hps_status hps_roots_stat(const struct hps_roots *roots, const char *path, struct stat *out_info,
                          struct hps_error *err)
{
    int fd = -1;
    hps_status status = hps_roots_open_path(roots, path, O_PATH, &fd, err);
    if (status == HPS_OK) {
        status =
            fstat(fd, out_info) == 0 ? HPS_OK : hps_file_error(err, errno, "cannot stat", path);
        close(fd);
    }
    return status;
}

hps_status hps_roots_open_read(const struct hps_roots *roots, const char *path, int *out_fd,
                               uint64_t *out_bytes, struct hps_error *err)
{
    int fd = -1;
    hps_status status = hps_roots_open_path(roots, path, HPS_FILE_READ_FLAGS, &fd, err);
    if (status != HPS_OK) {
        return status;
    }
    status = hps_file_take_read(fd, path, out_bytes, err);
    if (status == HPS_OK) {
        *out_fd = fd;
    }
    return status;
}

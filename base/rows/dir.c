/* SPDX-License-Identifier: Apache-2.0
 *
 * Directories by their descriptors. Threads: see base/rows/dir.h.
 */
#include "base/rows/dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/rows/fileio.h"

enum { LINKS_MAX = 40, DEPTH_MAX = 64, DIR_MODE = 0750, FILE_MODE = 0600 };

static hps_status no_memory(struct hps_error *err, const char *path)
{
    return hps_error_set(err, HPS_NO_MEMORY, "no memory to open %s", path);
}

/* "<what> <dir>/<name>: <text of errno>" */
static hps_status fail_in(const struct hps_dir *dir, const char *what, const char *name,
                          struct hps_error *err)
{
    char path[PATH_MAX];
    int error = errno;
    (void)snprintf(path, sizeof(path), "%s/%s", dir->path, name);
    if (error == ELOOP) {
        return hps_error_set(err, HPS_PERMISSION,
                             "%s %s: is a symbolic link, which hpsd does not follow here; replace "
                             "it with its target, or remove it",
                             what, path);
    }
    return hps_file_error(err, error, what, path);
}

/* ---- path resolution ------------------------------------------------------------------------- */

/* Which missing directories of a path are created. */
enum make { MAKE_NONE, MAKE_LAST, MAKE_ALL };

struct way {
    const char *path; /* the original path, for messages */
    enum make make;
    int fd; /* directory reached so far */
    unsigned n_links;
    char rest[2 * PATH_MAX]; /* rest of the path */
    struct hps_error *err;
};

static hps_status way_fail(const struct way *way, const char *what)
{
    return hps_file_error(way->err, errno, what, way->path);
}

static hps_status way_begin(struct way *way, const char *at)
{
    int fd = open(at[0] == '/' ? "/" : ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return way_fail(way, "cannot open");
    }
    if (way->fd >= 0) {
        close(way->fd);
    }
    way->fd = fd;
    return HPS_OK;
}

/* Put the target of a link in place of its name. takes `fd`, of the link */
static hps_status way_follow(struct way *way, int fd, const struct stat *info, const char *behind)
{
    char target[PATH_MAX];
    char rest[sizeof(way->rest)];
    ssize_t n = readlinkat(fd, "", target, sizeof(target) - 1);
    close(fd);
    if (n < 0 || ++way->n_links > LINKS_MAX) {
        errno = n < 0 ? errno : ELOOP;
        return way_fail(way, "cannot open");
    }
    target[n] = '\0';
    if (geteuid() == 0 && info->st_uid != 0) {
        return hps_error_set(
            way->err, HPS_PERMISSION,
            "cannot open %s: its path has a symbolic link to %.100s that user %u owns, and root "
            "follows only its own links; give the path without the link",
            way->path, target, (unsigned)info->st_uid);
    }
    n = snprintf(rest, sizeof(rest), "%s/%s", target, behind);
    if (n >= (ssize_t)sizeof(rest)) {
        errno = ENAMETOOLONG;
        return way_fail(way, "cannot open");
    }
    memcpy(way->rest, rest, (size_t)n + 1);
    return target[0] == '/' ? way_begin(way, target) : HPS_OK;
}

/* Go one name further. */
static hps_status way_step(struct way *way, const char *name, const char *behind)
{
    struct stat info;
    bool is_last = behind[strspn(behind, "/")] == '\0';
    bool make = way->make == MAKE_ALL || (way->make == MAKE_LAST && is_last);
    int fd = openat(way->fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT && make) {
        if (mkdirat(way->fd, name, DIR_MODE) != 0 && errno != EEXIST) {
            return way_fail(way, "cannot make");
        }
        fd = openat(way->fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    }
    if (fd < 0 || fstat(fd, &info) != 0) {
        hps_status status = way_fail(way, "cannot open");
        if (fd >= 0) {
            close(fd);
        }
        return status;
    }
    if (S_ISLNK(info.st_mode)) {
        return way_follow(way, fd, &info, behind);
    }
    close(way->fd);
    way->fd = fd;
    memmove(way->rest, behind, strlen(behind) + 1);
    if (!S_ISDIR(info.st_mode)) {
        return hps_error_set(way->err, HPS_IO, "cannot open %s: %s is not a directory", way->path,
                             name);
    }
    return HPS_OK;
}

static hps_status way_go(struct way *way)
{
    char name[NAME_MAX + 1];
    hps_status status = way_begin(way, way->path);
    while (status == HPS_OK) {
        const char *at = way->rest + strspn(way->rest, "/");
        size_t size = strcspn(at, "/");
        if (size == 0) {
            return HPS_OK;
        }
        if (size >= sizeof(name)) {
            errno = ENAMETOOLONG;
            return way_fail(way, "cannot open");
        }
        memcpy(name, at, size);
        name[size] = '\0';
        status = way_step(way, name, at + size);
    }
    return status;
}

static hps_status open_path(const char *path, enum make make, struct hps_dir *out_dir,
                            struct hps_error *err)
{
    struct way way = {.path = path, .make = make, .fd = -1, .err = err};
    int fd = -1;
    char *copy = hps_strdup(path);
    int n = snprintf(way.rest, sizeof(way.rest), "%s", path);
    hps_status status = copy != NULL ? HPS_OK : no_memory(err, path);
    if (status == HPS_OK && (path[0] == '\0' || n >= PATH_MAX)) {
        errno = path[0] == '\0' ? ENOENT : ENAMETOOLONG;
        status = way_fail(&way, "cannot open");
    }
    if (status == HPS_OK) {
        status = way_go(&way);
    }
    if (status == HPS_OK) {
        fd = openat(way.fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        status = fd >= 0 ? HPS_OK : way_fail(&way, "cannot open");
    }
    if (way.fd >= 0) {
        close(way.fd);
    }
    if (status != HPS_OK) {
        hps_free(copy);
        return status;
    }
    *out_dir = (struct hps_dir){.fd = fd, .path = copy};
    return HPS_OK;
}

hps_status hps_dir_open(const char *path, struct hps_dir *out_dir, struct hps_error *err)
{
    return open_path(path, MAKE_NONE, out_dir, err);
}

hps_status hps_dir_make(const char *path, struct hps_dir *out_dir, struct hps_error *err)
{
    return open_path(path, MAKE_ALL, out_dir, err);
}

hps_status hps_dir_make_last(const char *path, struct hps_dir *out_dir, struct hps_error *err)
{
    return open_path(path, MAKE_LAST, out_dir, err);
}

void hps_dir_close(struct hps_dir *dir)
{
    if (dir->path != NULL && dir->fd >= 0) {
        close(dir->fd);
    }
    hps_free(dir->path);
    *dir = (struct hps_dir){.fd = -1};
}

/* ---- entries --------------------------------------------------------------------------------- */

static void assert_name(const struct hps_dir *dir, const char *name)
{
    HPS_ASSERT(dir->fd >= 0);
    HPS_ASSERT(name[0] != '\0' && strchr(name, '/') == NULL && strcmp(name, "..") != 0);
}

hps_status hps_dir_open_in(const struct hps_dir *dir, const char *name, bool make,
                           struct hps_dir *out_in, struct hps_error *err)
{
    assert_name(dir, name);
    char *path = hps_file_path("%s/%s", dir->path, name);
    if (path == NULL) {
        return no_memory(err, name);
    }
    int fd = -1;
    if (!make || mkdirat(dir->fd, name, DIR_MODE) == 0 || errno == EEXIST) {
        fd = openat(dir->fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    }
    if (fd < 0) {
        struct stat info;
        int error = errno; /* ENOTDIR for a link */
        bool link =
            fstatat(dir->fd, name, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(info.st_mode);
        errno = link ? ELOOP : error;
        hps_status status = fail_in(dir, "cannot open", name, err);
        hps_free(path);
        return status;
    }
    *out_in = (struct hps_dir){.fd = fd, .path = path};
    return HPS_OK;
}

hps_status hps_dir_open_file(const struct hps_dir *dir, const char *name, int flags, int *out_fd,
                             struct hps_error *err)
{
    struct stat info;
    assert_name(dir, name);
    /* O_NONBLOCK: opening a FIFO would wait for its other end. */
    int fd =
        openat(dir->fd, name, flags | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, FILE_MODE);
    if (fd < 0) {
        return fail_in(dir, "cannot open", name, err);
    }
    hps_status status = HPS_OK;
    if (fstat(fd, &info) != 0 || fcntl(fd, F_SETFL, flags) != 0) { /* without O_NONBLOCK */
        status = fail_in(dir, "cannot stat", name, err);
    } else if (!S_ISREG(info.st_mode)) {
        status = hps_error_set(err, HPS_INVALID, "%s/%s: not a regular file", dir->path, name);
    }
    if (status != HPS_OK) {
        close(fd);
        return status;
    }
    *out_fd = fd;
    return HPS_OK;
}

bool hps_dir_has(const struct hps_dir *dir, const char *name)
{
    struct stat info;
    assert_name(dir, name);
    return fstatat(dir->fd, name, &info, AT_SYMLINK_NOFOLLOW) == 0;
}

hps_status hps_dir_each(const struct hps_dir *dir,
                        hps_status (*fn)(void *ctx, const struct hps_dir *dir, const char *name,
                                         struct hps_error *err),
                        void *ctx, struct hps_error *err)
{
    hps_status status = HPS_OK;
    HPS_ASSERT(dir->fd >= 0);
    int fd = openat(dir->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC); /* with its own position */
    DIR *stream = fd >= 0 ? fdopendir(fd) : NULL;
    if (stream == NULL) {
        status = hps_file_error(err, errno, "cannot list", dir->path);
        if (fd >= 0) {
            close(fd);
        }
        return status;
    }
    errno = 0;
    for (const struct dirent *entry = readdir(stream); entry != NULL; entry = readdir(stream)) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            status = fn(ctx, dir, entry->d_name, err);
        }
        if (status != HPS_OK) {
            break;
        }
        errno = 0;
    }
    if (status == HPS_OK && errno != 0) {
        status = hps_file_error(err, errno, "cannot list", dir->path);
    }
    closedir(stream);
    return status;
}

static hps_status remove_entry(void *ctx, const struct hps_dir *dir, const char *name,
                               struct hps_error *err)
{
    unsigned depth = *(const unsigned *)ctx + 1;
    if (unlinkat(dir->fd, name, 0) == 0 || errno == ENOENT) {
        return HPS_OK;
    }
    if (errno != EISDIR && errno != EPERM) {
        return fail_in(dir, "cannot remove", name, err);
    }
    struct hps_dir in = {.fd = -1};
    errno = depth < DEPTH_MAX ? 0 : ENAMETOOLONG;
    hps_status status = errno == 0 ? hps_dir_open_in(dir, name, false, &in, err)
                                   : fail_in(dir, "cannot remove", name, err);
    if (status == HPS_OK) {
        status = hps_dir_each(&in, remove_entry, &depth, err);
    }
    hps_dir_close(&in);
    if (status == HPS_OK && unlinkat(dir->fd, name, AT_REMOVEDIR) != 0 && errno != ENOENT) {
        status = fail_in(dir, "cannot remove", name, err);
    }
    return status;
}

hps_status hps_dir_remove(const struct hps_dir *dir, const char *name, struct hps_error *err)
{
    unsigned depth = 0;
    assert_name(dir, name);
    return remove_entry(&depth, dir, name, err);
}

hps_status hps_dir_sync(const struct hps_dir *dir, struct hps_error *err)
{
    return fsync(dir->fd) == 0 ? HPS_OK : hps_file_error(err, errno, "cannot sync", dir->path);
}

hps_status hps_dir_rename(const struct hps_dir *dir, const char *from, const char *to,
                          struct hps_error *err)
{
    assert_name(dir, from);
    assert_name(dir, to);
    if (renameat(dir->fd, from, dir->fd, to) != 0) {
        return fail_in(dir, "cannot make", to, err);
    }
    return hps_dir_sync(dir, err);
}

/* ---- owners ---------------------------------------------------------------------------------- */

hps_status hps_dir_check_owner(const struct hps_dir *dir, const char *option, struct hps_error *err)
{
    struct stat info;
    if (fstat(dir->fd, &info) != 0) {
        return hps_file_error(err, errno, "cannot stat", dir->path);
    }
    if (geteuid() == 0 && info.st_uid != 0) {
        return hps_error_set(err, HPS_INVALID,
                             "%s: %s belongs to user %u, but hpsd runs as root, and that user "
                             "could redirect it to files of root: start hpsd as that user (User= "
                             "of the unit; setpriv --reuid %u), or give the directory to root",
                             option, dir->path, (unsigned)info.st_uid, (unsigned)info.st_uid);
    }
    return HPS_OK;
}

static hps_status fail_actor(const struct hps_dir *dir, const struct stat *owner,
                             struct hps_error *err)
{
    return hps_error_set(err, HPS_INVALID, "cannot act as user %u, who owns %s: %s",
                         (unsigned)owner->st_uid, dir->path, strerror(errno));
}

hps_status hps_dir_actor_begin(const struct hps_dir *dir, struct hps_dir_actor *out_actor,
                               struct hps_error *err)
{
    struct hps_dir_actor actor = {.changed = true, .gid = getegid()};
    struct stat owner;
    if (fstat(dir->fd, &owner) != 0) {
        return hps_file_error(err, errno, "cannot stat", dir->path);
    }
    if (geteuid() != 0 || owner.st_uid == 0) {
        *out_actor = (struct hps_dir_actor){0};
        return HPS_OK;
    }
    actor.n_groups = getgroups(0, NULL);
    actor.groups = hps_calloc((size_t)actor.n_groups + 1, sizeof(*actor.groups));
    if (actor.groups == NULL) {
        return no_memory(err, dir->path);
    }
    actor.n_groups = getgroups(actor.n_groups, actor.groups);
    HPS_ASSERT(actor.n_groups >= 0);
    if (setgroups(1, &owner.st_gid) != 0 || setegid(owner.st_gid) != 0 ||
        seteuid(owner.st_uid) != 0) {
        hps_status status = fail_actor(dir, &owner, err);
        hps_dir_actor_end(&actor);
        return status;
    }
    *out_actor = actor;
    return HPS_OK;
}

void hps_dir_actor_end(struct hps_dir_actor *actor)
{
    if (actor->changed) {
        bool back = seteuid(0) == 0 && setegid(actor->gid) == 0 &&
                    setgroups((size_t)actor->n_groups, actor->groups) == 0;
        HPS_ASSERT(back); /* root remains the saved user of the process */
    }
    hps_free(actor->groups);
    *actor = (struct hps_dir_actor){0};
}

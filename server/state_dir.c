/* SPDX-License-Identifier: Apache-2.0
 *
 * Directory, lock file, spill folder and name. Main thread.
 */
#include "server/state_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/heap.h"

static hps_status from_errno(const char *what, const char *path, struct hps_error *err)
{
    hps_status status = errno == EACCES || errno == EPERM || errno == EROFS ? HPS_PERMISSION
                        : errno == ENOSPC                                   ? HPS_EXHAUSTED
                                                                            : HPS_IO;
    return hps_error_set(err, status, "%s %s: %s", what, path, strerror(errno));
}

/* mkdir -p: each missing component, mode 0750. */
static hps_status make_dirs(const char *path, struct hps_error *err)
{
    char *copy = hps_strdup(path);
    if (copy == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for a path");
    }
    hps_status status = HPS_OK;
    for (char *at = copy + 1; status == HPS_OK; at++) {
        if (*at != '/' && *at != '\0') {
            continue;
        }
        bool last = *at == '\0';
        *at = '\0';
        struct stat st;
        if (stat(copy, &st) != 0 && mkdir(copy, 0750) != 0 && errno != EEXIST) {
            status = from_errno("server.state_dir: cannot make", copy, err);
        } else if (stat(copy, &st) == 0 && !S_ISDIR(st.st_mode)) {
            status = hps_error_set(err, HPS_IO, "server.state_dir: %s is not a directory", copy);
        }
        if (last) {
            break;
        }
        *at = '/';
    }
    hps_free(copy);
    return status;
}

static hps_status take_lock(const char *dir, int *out_fd, struct hps_error *err)
{
    char path[4096];
    char text[32] = "";
    snprintf(path, sizeof(path), "%s/lock", dir);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0640);
    if (fd < 0) {
        return from_errno("cannot open", path, err);
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        ssize_t n = pread(fd, text, sizeof(text) - 1, 0);
        text[n > 0 ? n : 0] = '\0';
        text[strcspn(text, "\n")] = '\0';
        close(fd);
        return hps_error_set(err, HPS_BUSY, "server.state_dir: %s is used by another hpsd (pid %s)",
                             dir, text[0] != '\0' ? text : "unknown");
    }
    int size = snprintf(text, sizeof(text), "%d\n", (int)getpid());
    if (ftruncate(fd, 0) != 0 || pwrite(fd, text, (size_t)size, 0) != size) {
        hps_status status = from_errno("cannot write", path, err);
        close(fd);
        return status;
    }
    *out_fd = fd;
    return HPS_OK;
}

static bool is_instance(const char *text, ssize_t size)
{
    return size == HPS_INSTANCE_CHARS &&
           strspn(text, "0123456789abcdef") == (size_t)HPS_INSTANCE_CHARS;
}

/* Read the name, or give it one. A file that is none, as a crash may leave it, is written anew. */
static hps_status take_instance(const char *dir, char instance[HPS_INSTANCE_CHARS + 1],
                                struct hps_error *err)
{
    char path[4096];
    uint8_t random[HPS_INSTANCE_CHARS / 2];
    snprintf(path, sizeof(path), "%s/instance", dir);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0640);
    if (fd < 0) {
        return from_errno("cannot open", path, err);
    }
    memset(instance, 0, HPS_INSTANCE_CHARS + 1);
    ssize_t n = pread(fd, instance, HPS_INSTANCE_CHARS, 0);
    bool good = is_instance(instance, n);
    if (!good && getrandom(random, sizeof(random), 0) == (ssize_t)sizeof(random)) {
        for (size_t i = 0; i < sizeof(random); i++) {
            snprintf(instance + 2 * i, 3, "%02x", random[i]);
        }
        good = ftruncate(fd, 0) == 0 &&
               pwrite(fd, instance, HPS_INSTANCE_CHARS, 0) == HPS_INSTANCE_CHARS && fsync(fd) == 0;
    }
    HPS_ASSERT(!good || is_instance(instance, HPS_INSTANCE_CHARS));
    hps_status status = good ? HPS_OK : from_errno("cannot write", path, err);
    close(fd);
    return status;
}

hps_status hps_state_dir_open(const char *dir, struct hps_state_dir *out_state,
                              struct hps_error *err)
{
    struct hps_state_dir state = {.lock_fd = -1};
    HPS_ASSERT(dir[0] != '\0');
    size_t size = strlen(dir) + sizeof("/tmp");
    state.spill = hps_alloc(size);
    if (state.spill == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for a path");
    }
    snprintf(state.spill, size, "%s/tmp", dir);
    hps_status status = make_dirs(dir, err);
    if (status == HPS_OK) {
        status = take_lock(dir, &state.lock_fd, err);
    }
    if (status == HPS_OK) {
        status = make_dirs(state.spill, err);
    }
    if (status == HPS_OK) {
        status = take_instance(dir, state.instance, err);
    }
    if (status != HPS_OK) {
        hps_state_dir_close(&state);
        return status;
    }
    HPS_ASSERT(state.lock_fd >= 0 && state.spill != NULL);
    *out_state = state;
    return HPS_OK;
}

void hps_state_dir_close(struct hps_state_dir *state)
{
    if (state->lock_fd >= 0) {
        close(state->lock_fd);
    }
    hps_free(state->spill);
    state->spill = NULL;
    state->lock_fd = -1;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Directory, lock file, spill folder and instance name. Main thread.
 */
#include "server/state_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/rows/dir.h"
#include "base/rows/fileio.h"

static hps_status fail_write(const struct hps_dir *dir, const char *name, struct hps_error *err)
{
    char path[4096];
    int error = errno;
    (void)snprintf(path, sizeof(path), "%s/%s", dir->path, name);
    return hps_file_error(err, error, "cannot write", path);
}

static hps_status take_lock(const struct hps_dir *dir, int *out_fd, struct hps_error *err)
{
    char text[32] = "";
    int fd = -1;
    hps_status status = hps_dir_open_file(dir, "lock", O_RDWR | O_CREAT, &fd, err);
    if (status != HPS_OK) {
        return status;
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        ssize_t n = pread(fd, text, sizeof(text) - 1, 0);
        text[n > 0 ? n : 0] = '\0';
        text[strcspn(text, "\n")] = '\0';
        close(fd);
        return hps_error_set(err, HPS_BUSY, "server.state_dir: %s is used by another hpsd (pid %s)",
                             dir->path, text[0] != '\0' ? text : "unknown");
    }
    int size = snprintf(text, sizeof(text), "%d\n", (int)getpid());
    if (ftruncate(fd, 0) != 0 || pwrite(fd, text, (size_t)size, 0) != size) {
        status = fail_write(dir, "lock", err);
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

/* Read the instance name, or create one. A file with an invalid name, left by a crash, is
 * overwritten. */
static hps_status take_instance(const struct hps_dir *dir, char instance[HPS_INSTANCE_CHARS + 1],
                                struct hps_error *err)
{
    uint8_t random[HPS_INSTANCE_CHARS / 2];
    int fd = -1;
    hps_status status = hps_dir_open_file(dir, "instance", O_RDWR | O_CREAT, &fd, err);
    if (status != HPS_OK) {
        return status;
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
    status = good ? HPS_OK : fail_write(dir, "instance", err);
    close(fd);
    return status;
}

/* Take the lock, the instance name and the spill folder. */
static hps_status take_all(const struct hps_dir *dir, struct hps_state_dir *state,
                           struct hps_error *err)
{
    struct hps_dir spill = {.fd = -1};
    hps_status status = hps_dir_check_owner(dir, "server.state_dir", err);
    if (status == HPS_OK) {
        status = take_lock(dir, &state->lock_fd, err);
    }
    if (status == HPS_OK) {
        status = hps_dir_open_in(dir, "tmp", true, &spill, err);
    }
    if (status == HPS_OK) {
        status = take_instance(dir, state->instance, err);
    }
    if (status == HPS_OK) {
        state->spill = hps_file_path("%s/tmp", dir->path);
        status = state->spill != NULL ? HPS_OK
                                      : hps_error_set(err, HPS_NO_MEMORY, "no memory for a path");
    }
    hps_dir_close(&spill);
    return status;
}

hps_status hps_state_dir_open(const char *path, struct hps_state_dir *out_state,
                              struct hps_error *err)
{
    struct hps_state_dir state = {.lock_fd = -1};
    struct hps_dir dir = {.fd = -1};
    HPS_ASSERT(path[0] != '\0');
    hps_status status = hps_dir_make(path, &dir, err);
    if (status != HPS_OK) {
        return hps_error_prefix(err, status, "server.state_dir");
    }
    status = take_all(&dir, &state, err);
    hps_dir_close(&dir);
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

/* SPDX-License-Identifier: Apache-2.0
 *
 * A directory that is accessed through its descriptor. Entries are opened, created and removed by
 * name relative to the descriptor, and symbolic links in the directory are never followed. So a
 * process that runs as root can safely use a directory to which another user can write, such as the
 * state directory of a service. The functions may block. A directory may be used by one thread at a
 * time.
 */
#ifndef HPS_BASE_ROWS_DIR_H
#define HPS_BASE_ROWS_DIR_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "base/status.h"

struct hps_dir {
    int fd;     /* -1: not open */
    char *path; /* for messages */
};

/* Open `path`. If this process runs as root, it follows only symbolic links that root owns. So
 * another user cannot use a link to make root access another directory.
 *
 * owner   the caller closes out_dir (hps_dir_close)
 * error   NOT_FOUND; PERMISSION (also: this process is root, and another user owns a link);
 *         NO_MEMORY; EXHAUSTED; IO (also: not a directory)
 */
hps_status hps_dir_open(const char *path, struct hps_dir *out_dir, struct hps_error *err)
    HPS_MUST_CHECK;
/* Same as hps_dir_open, but first creates all missing directories of the path, mode 0750. */
hps_status hps_dir_make(const char *path, struct hps_dir *out_dir, struct hps_error *err)
    HPS_MUST_CHECK;
/* Same as hps_dir_make, but creates only the last directory of the path. */
hps_status hps_dir_make_last(const char *path, struct hps_dir *out_dir, struct hps_error *err)
    HPS_MUST_CHECK;
void hps_dir_close(struct hps_dir *dir); /* no effect if fd is -1, or all is zero */

/* Open the directory `name` in `dir`. If it does not exist and `make` is true, create it with mode
 * 0750. Errors as hps_dir_open; PERMISSION also if `name` is a symbolic link. */
hps_status hps_dir_open_in(const struct hps_dir *dir, const char *name, bool make,
                           struct hps_dir *out_in, struct hps_error *err) HPS_MUST_CHECK;
/* Open a regular file in `dir` with the `flags` of open(2). With O_CREAT a new file has mode 0600.
 * error   INVALID: not a regular file; EXISTS; PERMISSION (also: a symbolic link); others as
 *         hps_dir_open
 */
hps_status hps_dir_open_file(const struct hps_dir *dir, const char *name, int flags, int *out_fd,
                             struct hps_error *err) HPS_MUST_CHECK;
/* Whether an entry with this name exists. A symbolic link counts as an entry, even if its target
 * does not exist. */
bool hps_dir_has(const struct hps_dir *dir, const char *name);
/* Call fn for each entry except "." and "..". If fn does not return OK, the loop ends, and
 * hps_dir_each returns the status of fn. */
hps_status hps_dir_each(const struct hps_dir *dir,
                        hps_status (*fn)(void *ctx, const struct hps_dir *dir, const char *name,
                                         struct hps_error *err),
                        void *ctx, struct hps_error *err) HPS_MUST_CHECK;
/* Remove the entry `name` with everything in it. Links are removed, not followed. A missing entry
 * is no error. */
hps_status hps_dir_remove(const struct hps_dir *dir, const char *name, struct hps_error *err)
    HPS_MUST_CHECK;
/* Rename an entry within `dir`, and sync `dir`. Replaces a file or an empty directory that has the
 * name `to`. EXISTS: `to` is a directory that is not empty; PERMISSION; IO; others as
 * hps_file_status. */
hps_status hps_dir_rename(const struct hps_dir *dir, const char *from, const char *to,
                          struct hps_error *err) HPS_MUST_CHECK;
hps_status hps_dir_sync(const struct hps_dir *dir, struct hps_error *err) HPS_MUST_CHECK;
/* Check that this process may use the directory. INVALID: the process is root, but another user
 * owns the directory and could redirect paths that root opens in it. `err` names `option`, the
 * option that sets the directory. */
hps_status hps_dir_check_owner(const struct hps_dir *dir, const char *option, struct hps_error *err)
    HPS_MUST_CHECK;

/* ---- acting as the owner of a directory ------------------------------------------------------ */

/* The identity that hps_dir_actor_end restores. Until then all threads of the process act with the
 * changed identity, so no other thread may use files. */
struct hps_dir_actor {
    bool changed; /* false: the identity was not changed */
    uint32_t gid;
    int n_groups;
    uint32_t *groups; /* [n_groups] */
};

/* If this process is root and another user owns `dir`, act with the user id and group of that owner
 * until hps_dir_actor_end. Otherwise nothing changes.
 * error   INVALID: the kernel refused the change; NO_MEMORY; others: `dir` cannot be examined
 */
hps_status hps_dir_actor_begin(const struct hps_dir *dir, struct hps_dir_actor *out_actor,
                               struct hps_error *err) HPS_MUST_CHECK;
void hps_dir_actor_end(struct hps_dir_actor *actor); /* no effect if all zero */

#endif

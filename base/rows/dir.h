/* SPDX-License-Identifier: Apache-2.0
 *
 * A directory by its descriptor, for what others than whoever runs this may write to: the state
 * directory of a service, seen by root. What is in it is opened, made and removed by name relative
 * to the descriptor, and no link that lies there is followed. Any thread that may block; a
 * directory is used by one at a time.
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

/* Open `path`. To root only links that root owns are followed on the way: with others a service
 * could lead it out of its directory. out_dir is owned by the caller: hps_dir_close.
 *
 * error   NOT_FOUND, PERMISSION (also: a link of somebody else), IO: no directory, or the kernel's;
 *         NO_MEMORY, EXHAUSTED
 */
hps_status hps_dir_open(const char *path, struct hps_dir *out_dir, struct hps_error *err)
    HPS_MUST_CHECK;
/* The same, and make what is missing of it, mode 0750. */
hps_status hps_dir_make(const char *path, struct hps_dir *out_dir, struct hps_error *err)
    HPS_MUST_CHECK;
/* The same, but make its last part alone. */
hps_status hps_dir_make_last(const char *path, struct hps_dir *out_dir, struct hps_error *err)
    HPS_MUST_CHECK;
void hps_dir_close(struct hps_dir *dir); /* one that is not open (fd -1, or all zero with a NULL
                                            path) is legal */

/* Open a directory in `dir`; `make`: if it is missing, make it first, mode 0750. */
hps_status hps_dir_open_in(const struct hps_dir *dir, const char *name, bool make,
                           struct hps_dir *out_in, struct hps_error *err) HPS_MUST_CHECK;
/* Open a regular file in `dir` with open(2)'s `flags`; one that O_CREAT makes has mode 0600.
 * error   INVALID: it is something else; EXISTS, and as above */
hps_status hps_dir_open_file(const struct hps_dir *dir, const char *name, int flags, int *out_fd,
                             struct hps_error *err) HPS_MUST_CHECK;
/* Does anything lie there under this name? A link is something, wherever it leads. */
bool hps_dir_has(const struct hps_dir *dir, const char *name);
/* Call fn for every entry but "." and ".."; a status other than OK ends it and is returned. */
hps_status hps_dir_each(const struct hps_dir *dir,
                        hps_status (*fn)(void *ctx, const struct hps_dir *dir, const char *name,
                                         struct hps_error *err),
                        void *ctx, struct hps_error *err) HPS_MUST_CHECK;
/* Remove `name` with everything in it, links as links. One that is not there is no error. */
hps_status hps_dir_remove(const struct hps_dir *dir, const char *name, struct hps_error *err)
    HPS_MUST_CHECK;
/* Rename within `dir`, and sync it. EXISTS, IO, PERMISSION. */
hps_status hps_dir_rename(const struct hps_dir *dir, const char *from, const char *to,
                          struct hps_error *err) HPS_MUST_CHECK;
hps_status hps_dir_sync(const struct hps_dir *dir, struct hps_error *err) HPS_MUST_CHECK;
/* INVALID: root would work in a directory of another user, who may change under its hands what
 * it opens by path; `option` names the directory. */
hps_status hps_dir_check_owner(const struct hps_dir *dir, const char *option, struct hps_error *err)
    HPS_MUST_CHECK;

/* ---- acting as its owner --------------------------------------------------------------------- */

/* Who this process was. All of its threads change: no other one may be at work on files. */
struct hps_dir_actor {
    bool changed;
    uint32_t gid;
    int n_groups;
    uint32_t *groups;
};

/* Whoever runs as root acts as the owner and group of `dir`, for files, until hps_dir_actor_end.
 * Nothing changes for others, and in a directory of root's.
 * error   NO_MEMORY, PERMISSION */
hps_status hps_dir_actor_begin(const struct hps_dir *dir, struct hps_dir_actor *out_actor,
                               struct hps_error *err) HPS_MUST_CHECK;
void hps_dir_actor_end(struct hps_dir_actor *actor); /* a zeroed one is legal */

#endif

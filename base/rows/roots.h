/* SPDX-License-Identifier: Apache-2.0
 *
 * Directories (roots) below which files may be read, no matter which user created the files. A path
 * is first resolved; its links may lead to any place below any root. The resolved path is then
 * opened relative to the descriptor of its root, without following links. So the opened file is
 * below the root, even if a directory was replaced by a link in between.
 *
 * If `roots` is NULL in a call below, any path may be read. Only one thread may open, extend and
 * close the roots. Any thread may read with them, but not while a root is added.
 */
#ifndef HPS_BASE_ROWS_ROOTS_H
#define HPS_BASE_ROWS_ROOTS_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "base/status.h"

struct hps_roots;

/* Open the roots paths[n]. Paths that are not directories, or cannot be opened, are skipped.
 *
 * option  the name of the option that lists the roots, for messages; borrowed until the close
 * error   NO_MEMORY; EXHAUSTED: no descriptor
 */
hps_status hps_roots_open(const char *option, const char *const *paths, size_t n,
                          struct hps_roots **out_roots, struct hps_error *err) HPS_MUST_CHECK;
/* Add a root, unless it is below an existing root. Paths are skipped as in hps_roots_open. Errors
 * as hps_roots_open. */
hps_status hps_roots_add(struct hps_roots *roots, const char *path, struct hps_error *err)
    HPS_MUST_CHECK;
void hps_roots_close(struct hps_roots *roots); /* no effect if NULL */

/* Resolve all links of a path.
 *
 * error   PERMISSION: the result is not below a root, or would not be if it existed; or the kernel
 *         refused; NOT_FOUND and IO: below a root
 */
hps_status hps_roots_resolve(const struct hps_roots *roots, const char *path,
                             char out_resolved[PATH_MAX], struct hps_error *err) HPS_MUST_CHECK;
/* Same as open(2) with `flags` (never O_CREAT) and O_CLOEXEC, for a path below a root. Errors as
 * hps_roots_resolve. */
hps_status hps_roots_open_path(const struct hps_roots *roots, const char *path, int flags,
                               int *out_fd, struct hps_error *err) HPS_MUST_CHECK;
/* Same as stat(2), for a path below a root. Errors as hps_roots_resolve. */
hps_status hps_roots_stat(const struct hps_roots *roots, const char *path, struct stat *out_info,
                          struct hps_error *err) HPS_MUST_CHECK;
/* Open a regular file below a root for sequential reading. *out_bytes is its size. INVALID: not a
 * regular file; other errors as hps_roots_resolve. */
hps_status hps_roots_open_read(const struct hps_roots *roots, const char *path, int *out_fd,
                               uint64_t *out_bytes, struct hps_error *err) HPS_MUST_CHECK;

#endif

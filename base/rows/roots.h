/* SPDX-License-Identifier: Apache-2.0
 *
 * Directories (roots) below which files may be read, whichever user placed them there. A path is
 * first resolved, so links may lead anywhere below a root. The result is then opened from the
 * descriptor of the root. It cannot lead out, even if a link has replaced a directory since.
 *
 * If `roots` is NULL in a call below, any path may be read. One thread opens and closes the roots;
 * any thread may read with them.
 */
#ifndef HPS_BASE_ROWS_ROOTS_H
#define HPS_BASE_ROWS_ROOTS_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "base/status.h"

struct hps_roots;

/* `option` names the option that lists the roots, for messages; borrowed. Paths that are not
 * directories are skipped.
 *
 * error   NO_MEMORY; EXHAUSTED: no descriptor
 */
hps_status hps_roots_open(const char *option, const char *const *paths, size_t n,
                          struct hps_roots **out_roots, struct hps_error *err) HPS_MUST_CHECK;
/* Add a root, unless it is below an existing one. Errors as above. */
hps_status hps_roots_add(struct hps_roots *roots, const char *path, struct hps_error *err)
    HPS_MUST_CHECK;
void hps_roots_close(struct hps_roots *roots); /* no effect if NULL */

/* The path without links.
 *
 * error   PERMISSION: not below a root, or the kernel refused; NOT_FOUND; IO
 */
hps_status hps_roots_resolve(const struct hps_roots *roots, const char *path,
                             char out_resolved[PATH_MAX], struct hps_error *err) HPS_MUST_CHECK;
/* open(2) with `flags` (never O_CREAT) and O_CLOEXEC. Errors as above. */
hps_status hps_roots_open_path(const struct hps_roots *roots, const char *path, int flags,
                               int *out_fd, struct hps_error *err) HPS_MUST_CHECK;
/* stat(2). Errors as above. */
hps_status hps_roots_stat(const struct hps_roots *roots, const char *path, struct stat *out_info,
                          struct hps_error *err) HPS_MUST_CHECK;
/* Open a regular file for sequential reading. Errors as above; INVALID: not a regular file. */
hps_status hps_roots_open_read(const struct hps_roots *roots, const char *path, int *out_fd,
                               uint64_t *out_bytes, struct hps_error *err) HPS_MUST_CHECK;

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Directories below which files may be read, whoever has put them there. A path is resolved first,
 * so that links may lead anywhere below a root, by relative and absolute targets alike; then what
 * it resolved to is opened from the root's descriptor, from which nothing can lead out any more,
 * not even a link that takes a directory's place in between.
 *
 * Where `roots` is NULL in a call below, everything may be read. Opened and closed by one thread;
 * any number may read by them.
 */
#ifndef HPS_BASE_ROWS_ROOTS_H
#define HPS_BASE_ROWS_ROOTS_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "base/status.h"

struct hps_roots;

/* `option` is what lists the roots, for messages; borrowed. A path that is no directory is left
 * out.
 *
 * error   NO_MEMORY; EXHAUSTED: no descriptor
 */
hps_status hps_roots_open(const char *option, const char *const *paths, size_t n,
                          struct hps_roots **out_roots, struct hps_error *err) HPS_MUST_CHECK;
/* One more, unless it is below one that is there; errors as above. */
hps_status hps_roots_add(struct hps_roots *roots, const char *path, struct hps_error *err)
    HPS_MUST_CHECK;
void hps_roots_close(struct hps_roots *roots); /* NULL is legal */

/* The path that `path` is, without links.
 *
 * error   PERMISSION: not below a root, or the kernel's; NOT_FOUND; IO
 */
hps_status hps_roots_resolve(const struct hps_roots *roots, const char *path,
                             char out_resolved[PATH_MAX], struct hps_error *err) HPS_MUST_CHECK;
/* open(2) with `flags` (never O_CREAT) and O_CLOEXEC. Errors as above. */
hps_status hps_roots_open_path(const struct hps_roots *roots, const char *path, int flags,
                               int *out_fd, struct hps_error *err) HPS_MUST_CHECK;
/* stat(2). Errors as above. */
hps_status hps_roots_stat(const struct hps_roots *roots, const char *path, struct stat *out_info,
                          struct hps_error *err) HPS_MUST_CHECK;
/* A regular file, for reading from front to back. Errors as above; INVALID: it is something else.
 */
hps_status hps_roots_open_read(const struct hps_roots *roots, const char *path, int *out_fd,
                               uint64_t *out_bytes, struct hps_error *err) HPS_MUST_CHECK;

#endif

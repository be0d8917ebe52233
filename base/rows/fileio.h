/* SPDX-License-Identifier: Apache-2.0
 *
 * Complete reads and writes of plain files. Errors name file, byte offset and cause. Any thread.
 */
#ifndef HPS_BASE_ROWS_FILEIO_H
#define HPS_BASE_ROWS_FILEIO_H

#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* NOT_FOUND, PERMISSION, EXISTS, NO_MEMORY, EXHAUSTED (disk full, quota, limits) or IO. */
hps_status hps_file_status(int error_number);
/* Sets "<what> <path>: <text of error_number>". Returns the status above. */
hps_status hps_file_error(struct hps_error *err, int error_number, const char *what,
                          const char *path);
/* Flags to open a file for reading. Without O_NONBLOCK, opening a FIFO would wait for a writer. */
#define HPS_FILE_READ_FLAGS (O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)
/* Check that a descriptor opened with these flags is a regular file, and announce sequential
 * reading. takes `fd`, closed on error. error INVALID: not a regular file; IO */
hps_status hps_file_take_read(int fd, const char *path, uint64_t *out_bytes, struct hps_error *err)
    HPS_MUST_CHECK;
/* Open a regular file for sequential reading. Follows links. Errors as above. */
hps_status hps_file_open_read(const char *path, int *out_fd, uint64_t *out_bytes,
                              struct hps_error *err) HPS_MUST_CHECK;
/* Read exactly `size` bytes. DATA_LOSS: the file is shorter; IO. `path` is for messages. */
hps_status hps_file_pread(int fd, const char *path, void *data, size_t size, uint64_t offset,
                          struct hps_error *err) HPS_MUST_CHECK;
hps_status hps_file_pwrite(int fd, const char *path, const void *data, size_t size, uint64_t offset,
                           struct hps_error *err) HPS_MUST_CHECK;
/* fsync the directory that contains `path`, so that a rename there is durable. */
hps_status hps_file_sync_parent(const char *path, struct hps_error *err) HPS_MUST_CHECK;
/* "<dir>/.<base><suffix>": a hidden name in the directory of `path`, unique for each call of this
 * process. owner: the caller (hps_free); NULL: no memory. */
char *hps_file_temp_name(const char *path);
/* printf into new memory. NULL: no memory. owner: the caller (hps_free). */
char *hps_file_path(const char *fmt, ...) HPS_PRINTF(1, 2);
/* Replace `path` by data[size]: temporary file, fsync, rename. Mode 0666 less the umask. */
hps_status hps_file_replace(const char *path, const void *data, size_t size, struct hps_error *err)
    HPS_MUST_CHECK;

#endif

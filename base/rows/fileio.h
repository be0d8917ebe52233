/* SPDX-License-Identifier: Apache-2.0
 *
 * Whole reads and writes of plain files, with errors that name file, byte offset and cause.
 * Any thread.
 */
#ifndef HPS_BASE_ROWS_FILEIO_H
#define HPS_BASE_ROWS_FILEIO_H

#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* NOT_FOUND, PERMISSION, EXISTS, NO_MEMORY, EXHAUSTED (disk full, quota, limits) or IO. */
hps_status hps_file_status(int error_number);
/* "<what> <path>: <text of error_number>", with the status above. */
hps_status hps_file_error(struct hps_error *err, int error_number, const char *what,
                          const char *path);
/* What a file is opened with to be read. Without O_NONBLOCK the open of a FIFO would wait for a
 * writer for ever. */
#define HPS_FILE_READ_FLAGS (O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)
/* A descriptor that was opened so is that of a regular file, and read from front to back. takes
 * `fd`: closed on an error. error INVALID: it is something else; IO */
hps_status hps_file_take_read(int fd, const char *path, uint64_t *out_bytes, struct hps_error *err)
    HPS_MUST_CHECK;
/* Open a regular file for reading from front to back. Links are followed. Errors as above. */
hps_status hps_file_open_read(const char *path, int *out_fd, uint64_t *out_bytes,
                              struct hps_error *err) HPS_MUST_CHECK;
/* Read exactly `size` bytes. DATA_LOSS: the file ends before; IO. `path` is for the text. */
hps_status hps_file_pread(int fd, const char *path, void *data, size_t size, uint64_t offset,
                          struct hps_error *err) HPS_MUST_CHECK;
hps_status hps_file_pwrite(int fd, const char *path, const void *data, size_t size, uint64_t offset,
                           struct hps_error *err) HPS_MUST_CHECK;
/* fsync the directory that contains `path`, so that a rename there is durable. */
hps_status hps_file_sync_parent(const char *path, struct hps_error *err) HPS_MUST_CHECK;
/* "<dir>/.<base><suffix>": a hidden name beside `path`, different in every call of this process.
 * owner the caller (hps_free); NULL: no memory. */
char *hps_file_temp_name(const char *path);
/* printf into fresh memory; NULL: no memory. owner the caller (hps_free). */
char *hps_file_path(const char *fmt, ...) HPS_PRINTF(1, 2);
/* Replace `path` by data[size] through a temporary file, fsync and rename.
 * Mode 0666 less the umask. */
hps_status hps_file_replace(const char *path, const void *data, size_t size, struct hps_error *err)
    HPS_MUST_CHECK;

#endif

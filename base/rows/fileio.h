/* SPDX-License-Identifier: Apache-2.0
 *
 * Complete reads and writes of plain files. Errors name file, byte offset and cause. Any thread.
 */
#ifndef HPS_BASE_ROWS_FILEIO_H
#define HPS_BASE_ROWS_FILEIO_H

#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* The status for a value of errno: NOT_FOUND, PERMISSION, EXISTS, NO_MEMORY, EXHAUSTED (disk full,
 * quota, limits) or IO. */
hps_status hps_file_status(int error_number);
/* Set `err` to "<what> <path>: <text of error_number>". Returns hps_file_status(error_number). */
hps_status hps_file_error(struct hps_error *err, int error_number, const char *what,
                          const char *path);
/* Flags to open a file for reading. Without O_NONBLOCK, opening a FIFO would wait for a writer. */
#define HPS_FILE_READ_FLAGS (O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)
/* Check that `fd`, opened with HPS_FILE_READ_FLAGS, is a regular file, and tell the kernel that it
 * will be read sequentially. Takes ownership of `fd` and closes it on error. *out_bytes is the size
 * of the file. INVALID: not a regular file; IO */
hps_status hps_file_take_read(int fd, const char *path, uint64_t *out_bytes, struct hps_error *err)
    HPS_MUST_CHECK;
/* Open a regular file for sequential reading. Follows links. Errors as hps_file_take_read and
 * hps_file_status. */
hps_status hps_file_open_read(const char *path, int *out_fd, uint64_t *out_bytes,
                              struct hps_error *err) HPS_MUST_CHECK;
/* Read exactly `size` bytes at `offset`. `path` is for messages. DATA_LOSS: the file is too short;
 * IO. */
hps_status hps_file_pread(int fd, const char *path, void *data, size_t size, uint64_t offset,
                          struct hps_error *err) HPS_MUST_CHECK;
/* Write exactly `size` bytes at `offset`. `path` is for messages. EXHAUSTED: the disk is full, or a
 * quota is reached; IO. */
hps_status hps_file_pwrite(int fd, const char *path, const void *data, size_t size, uint64_t offset,
                           struct hps_error *err) HPS_MUST_CHECK;
/* Read the first `bytes` bytes of `from` in pieces of 1 MiB, write them to the empty file `to`, and
 * sync it. to: -1: only read. `path` is for messages, `cancel` may be NULL. *out_crc is the CRC-32C
 * of the bytes. DATA_LOSS: `from` is shorter; EXHAUSTED, IO, NO_MEMORY; CANCELLED once *cancel is
 * true. */
hps_status hps_file_copy(int from, int to, const char *path, uint64_t bytes,
                         const atomic_bool *cancel, uint32_t *out_crc, struct hps_error *err)
    HPS_MUST_CHECK;
/* fsync the directory that contains `path`, so that a rename in it is durable. */
hps_status hps_file_sync_parent(const char *path, struct hps_error *err) HPS_MUST_CHECK;
/* A name "<dir>/.<base><suffix>" for a hidden temporary file in the directory of `path`. Each call
 * in this process returns a different name. The caller frees it (hps_free). NULL: no memory. */
char *hps_file_temp_name(const char *path);
/* printf into new memory, which the caller frees (hps_free). NULL: no memory. */
char *hps_file_path(const char *fmt, ...) HPS_PRINTF(1, 2);
/* Replace the file `path`, or create it, with the content data[size]: write a temporary file, sync
 * it and rename it. The new file has mode 0666 less the umask. Errors as hps_file_status;
 * NO_MEMORY. */
hps_status hps_file_replace(const char *path, const void *data, size_t size, struct hps_error *err)
    HPS_MUST_CHECK;

#endif

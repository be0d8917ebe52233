/* SPDX-License-Identifier: Apache-2.0
 *
 * A disk that fails under RocksDB's write-ahead log (WAL): writes to files named *.log, and their
 * syncs, return errors as the kernel would. These functions replace the C library's in the test
 * program that includes them, also for RocksDB. Any thread.
 */
#ifndef HPS_TESTS_LIB_FAILING_DISK_H
#define HPS_TESTS_LIB_FAILING_DISK_H

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct {
    atomic_int wal_write_errno; /* 0: the kernel's result */
    atomic_int wal_sync_errno;
    atomic_uint n_wal_syncs; /* number of syncs */
    atomic_uint n_new_wals;  /* n: the n-th new WAL finds a full disk; 0: none */
} failing_disk;

/* From now on, nothing fails. */
static inline void failing_disk_repair(void)
{
    atomic_store(&failing_disk.n_new_wals, 0);
    atomic_store(&failing_disk.wal_write_errno, 0);
    atomic_store(&failing_disk.wal_sync_errno, 0);
}

static bool fd_is_wal(int fd)
{
    char link[64];
    char name[512];
    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, name, sizeof(name));
    return n > 4 && memcmp(name + n - 4, ".log", 4) == 0;
}

/* Calls the kernel: ThreadSanitizer does not know in which order the C library makes its calls. */
int fdatasync(int fd)
{
    if (fd_is_wal(fd)) {
        atomic_fetch_add(&failing_disk.n_wal_syncs, 1);
        int failed = atomic_load(&failing_disk.wal_sync_errno);
        if (failed != 0) {
            errno = failed;
            return -1;
        }
    }
    return (int)syscall(SYS_fdatasync, fd);
}

static void new_wal_count(int fd)
{
    if (atomic_load(&failing_disk.n_new_wals) > 0 && fd_is_wal(fd) && lseek(fd, 0, SEEK_CUR) == 0 &&
        atomic_fetch_sub(&failing_disk.n_new_wals, 1) == 1) {
        atomic_store(&failing_disk.wal_write_errno, ENOSPC);
    }
}

ssize_t write(int fd, const void *bytes, size_t n)
{
    new_wal_count(fd);
    int failed = atomic_load(&failing_disk.wal_write_errno);
    if (failed != 0 && fd_is_wal(fd)) {
        errno = failed;
        return -1;
    }
    return syscall(SYS_write, fd, bytes, n);
}

#endif

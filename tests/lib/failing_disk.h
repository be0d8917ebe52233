/* SPDX-License-Identifier: Apache-2.0
 *
 * A disk that fails under RocksDB's write-ahead log: what is written to files whose names end in
 * ".log", and their sync, ends as the kernel would report an error. The functions here take the
 * place of the C library's, for RocksDB too, in the test program that includes them. Any thread.
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
    atomic_int wal_write_errno; /* 0: what the kernel says */
    atomic_int wal_sync_errno;
    atomic_uint n_wal_syncs; /* that were asked for */
    atomic_uint n_new_wals;  /* the first write of the one that makes it 0 meets a full disk */
} failing_disk;

/* As if it had never failed. */
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

/* Straight to the kernel: ThreadSanitizer would take the library's own order of its calls for none.
 */
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

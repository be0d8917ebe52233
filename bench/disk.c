/* SPDX-License-Identifier: Apache-2.0
 *
 * See disk.h.
 */
#include "bench/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/heap.h"
#include "bench/bench.h"

#define RATE_NS UINT64_C(500000000)

hps_status bench_disk_open(struct bench_disk *disk, const char *path, struct hps_error *err)
{
    struct stat info;

    *disk = (struct bench_disk){.fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC)};
    disk->pages = hps_alloc_aligned(BENCH_DISK_PAGE, BENCH_DISK_DEPTH_MAX * BENCH_DISK_PAGE);
    if (disk->fd < 0 || disk->pages == NULL || fstat(disk->fd, &info) != 0 ||
        syscall(SYS_io_setup, (long)BENCH_DISK_DEPTH_MAX, &disk->aio) != 0) {
        return hps_error_set(err, HPS_IO, "%s: no direct reads: %s", path, strerror(errno));
    }
    disk->n_pages = (uint64_t)info.st_size / BENCH_DISK_PAGE;
    return HPS_OK;
}

void bench_disk_close(struct bench_disk *disk)
{
    if (disk->aio != 0) {
        (void)syscall(SYS_io_destroy, disk->aio);
    }
    if (disk->pages != NULL && disk->fd >= 0) {
        close(disk->fd);
    }
    hps_free_aligned(disk->pages);
    *disk = (struct bench_disk){0};
}

/* Begin a read into each of n buffers. */
static hps_status begin(struct bench_disk *disk, const uint64_t *slots, unsigned n,
                        struct hps_error *err)
{
    struct iocb reads[BENCH_DISK_DEPTH_MAX];
    struct iocb *each[BENCH_DISK_DEPTH_MAX];

    for (unsigned i = 0; i < n; i++) {
        uint64_t page = hps_mix64(disk->n_drawn++) % disk->n_pages;
        reads[i] = (struct iocb){.aio_data = slots[i],
                                 .aio_lio_opcode = IOCB_CMD_PREAD,
                                 .aio_fildes = (uint32_t)disk->fd,
                                 .aio_buf = (uintptr_t)(disk->pages + slots[i] * BENCH_DISK_PAGE),
                                 .aio_nbytes = BENCH_DISK_PAGE,
                                 .aio_offset = (int64_t)(page * BENCH_DISK_PAGE)};
        each[i] = &reads[i];
    }
    return syscall(SYS_io_submit, disk->aio, (long)n, each) == (long)n
               ? HPS_OK
               : hps_error_set(err, HPS_IO, "io_submit: %s", strerror(errno));
}

/* Wait for at least n_min reads. out_slots: their buffers. */
static hps_status finish(struct bench_disk *disk, unsigned n_min, uint64_t *out_slots,
                         unsigned *out_n, struct hps_error *err)
{
    struct io_event events[BENCH_DISK_DEPTH_MAX];
    long n =
        syscall(SYS_io_getevents, disk->aio, (long)n_min, (long)BENCH_DISK_DEPTH_MAX, events, NULL);

    if (n < (long)n_min) {
        return hps_error_set(err, HPS_IO, "io_getevents: %s", strerror(errno));
    }
    for (long i = 0; i < n; i++) {
        if (events[i].res != BENCH_DISK_PAGE) {
            return hps_error_set(err, HPS_IO, "a read of the disk failed");
        }
        out_slots[i] = events[i].data;
    }
    *out_n = (unsigned)n;
    return HPS_OK;
}

static void slots_fill(uint64_t *slots, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        slots[i] = i;
    }
}

hps_status bench_disk_rate(struct bench_disk *disk, unsigned depth, double *out_per_s,
                           struct hps_error *err)
{
    uint64_t slots[BENCH_DISK_DEPTH_MAX];
    uint64_t n_done = 0, start_ns = bench_now_ns(), now_ns = start_ns;
    unsigned n = depth, n_flying = 0;
    hps_status status = HPS_OK;

    slots_fill(slots, depth);
    while (status == HPS_OK && now_ns < start_ns + RATE_NS) {
        status = begin(disk, slots, n, err);
        n_flying = depth;
        if (status == HPS_OK) {
            status = finish(disk, 1, slots, &n, err);
            n_done += n;
            n_flying -= n;
        }
        now_ns = bench_now_ns();
    }
    *out_per_s = (double)n_done * 1e9 / (double)(now_ns - start_ns + 1);
    return status == HPS_OK && n_flying > 0 ? finish(disk, n_flying, slots, &n, err) : status;
}

hps_status bench_disk_best(struct bench_disk *disk, double *out_per_s, struct hps_error *err)
{
    hps_status status = HPS_OK;

    *out_per_s = 0;
    for (unsigned depth = 32; status == HPS_OK && depth <= BENCH_DISK_DEPTH_MAX; depth *= 2) {
        double per_s = 0;
        status = bench_disk_rate(disk, depth, &per_s, err);
        *out_per_s = per_s > *out_per_s ? per_s : *out_per_s;
    }
    return status;
}

hps_status bench_disk_burst(struct bench_disk *disk, unsigned n, double *out_us,
                            struct hps_error *err)
{
    uint64_t slots[BENCH_DISK_DEPTH_MAX];
    unsigned n_done;

    slots_fill(slots, n);
    uint64_t start_ns = bench_now_ns();
    hps_status status = begin(disk, slots, n, err);
    if (status == HPS_OK) {
        status = finish(disk, n, slots, &n_done, err);
    }
    *out_us = (double)(bench_now_ns() - start_ns) / 1e3;
    return status;
}

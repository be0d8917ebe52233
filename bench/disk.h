/* SPDX-License-Identifier: Apache-2.0
 *
 * Random reads of 4 KiB from a file, without the page cache, to measure the disk. With Linux AIO,
 * one thread keeps many reads in flight. Main thread.
 */
#ifndef HPS_BENCH_DISK_H
#define HPS_BENCH_DISK_H

#include <linux/aio_abi.h>
#include <stdint.h>

#include "base/status.h"

enum { BENCH_DISK_PAGE = 4096, BENCH_DISK_DEPTH_MAX = 256 };

struct bench_disk {
    int fd;
    aio_context_t aio;
    uint8_t *pages;
    uint64_t n_pages; /* of the file */
    uint64_t n_drawn;
};

/* Open an existing file. */
hps_status bench_disk_open(struct bench_disk *disk, const char *path, struct hps_error *err)
    HPS_MUST_CHECK;
void bench_disk_close(struct bench_disk *disk); /* no effect if zeroed */

/* Reads per second with `depth` reads in flight. */
hps_status bench_disk_rate(struct bench_disk *disk, unsigned depth, double *out_per_s,
                           struct hps_error *err) HPS_MUST_CHECK;
/* The rate at the best depth. */
hps_status bench_disk_best(struct bench_disk *disk, double *out_per_s, struct hps_error *err)
    HPS_MUST_CHECK;
/* Time until n reads that begin at once are done. */
hps_status bench_disk_burst(struct bench_disk *disk, unsigned n, double *out_us,
                            struct hps_error *err) HPS_MUST_CHECK;

#endif

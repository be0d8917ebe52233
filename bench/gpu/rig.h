/* SPDX-License-Identifier: Apache-2.0
 *
 * What the measurements of the device run share: a device, a stream, memory of both sides that is
 * freed at the end, and time. On the simulated device everything is tiny and run once or twice:
 * that shows that a measurement works, its figures mean nothing.
 *
 * Thread: main. After the first failure, which is kept in `err`, nothing more is done.
 */
#ifndef HPS_BENCH_GPU_RIG_H
#define HPS_BENCH_GPU_RIG_H

#include "bench/bench.h"
#include "bench/gpu/kernels.h"
#include "cache/device/device.h"
#include "client/zipf.h"

enum { BENCH_PIECES_MAX = 256, BENCH_ROUNDS_MAX = 64 };

struct bench_rig {
    struct hps_device *device;
    struct hps_stream_q *stream;
    struct hps_event *event;
    struct hps_error *err;
    hps_status status;
    bool sim;
    const char *torch; /* a program that gathers with torch, or NULL */
    struct hps_random random;
    uint32_t n_pieces;
    struct {
        hps_devptr device;
        void *host;
    } pieces[BENCH_PIECES_MAX];
};

/* The GPU of index 0, or the simulated device. */
void bench_rig_open(struct bench_rig *rig, bool sim, struct hps_error *err);
void bench_rig_close(struct bench_rig *rig);
/* Note it unless it is OK. Returns whether nothing has failed. */
bool bench_ok(struct bench_rig *rig, hps_status status, const char *what);

/* 0 / NULL after a failure. */
hps_devptr bench_memory(struct bench_rig *rig, uint64_t size);
void *bench_host_memory(struct bench_rig *rig, uint64_t size, hps_devptr *out_ptr);
/* What was allocated since n_pieces was `n`. Nothing is under way. */
void bench_free_to(struct bench_rig *rig, uint32_t n);
/* Copy, and wait. */
void bench_upload(struct bench_rig *rig, hps_devptr to, const void *host, uint64_t size);
void bench_download(struct bench_rig *rig, void *host, hps_devptr from, uint64_t size);
/* `of_gpu` bytes, but no more than a share of what is free there; `of_sim` on the simulated one. */
uint64_t bench_fitting_bytes(const struct bench_rig *rig, uint64_t of_gpu, double share_max,
                             uint64_t of_sim);
static inline uint32_t bench_count(const struct bench_rig *rig, uint32_t of_gpu, uint32_t of_sim)
{
    return rig->sim ? of_sim : of_gpu;
}

/* A piece of work that is given to the rig's stream; i counts them. */
struct bench_work {
    hps_status (*give)(struct bench_rig *rig, void *arg, uint32_t i);
    void *arg;
    uint32_t n;  /* pieces between two looks at the clock */
    uint32_t at; /* pieces given so far */
};
/* Time of one piece, in us: of n that follow each other without a pause. */
double bench_time_us(struct bench_rig *rig, struct bench_work *work);
/* The median of rounds of it, after one that does not count. */
double bench_median_us(struct bench_rig *rig, struct bench_work *work);
/* Wait for all that was given to the stream, without sleeping. */
void bench_wait(struct bench_rig *rig);

/* Bytes read and written by a copy within the device, in GB/s. */
struct bench_copy_work {
    hps_devptr from, to;
    uint64_t size;
    struct bench_work work;
};
void bench_copy_make(struct bench_rig *rig, struct bench_copy_work *copy);
double bench_copy_gb_s(const struct bench_copy_work *copy, double us);

/* BENCH_AT_LEAST and so on count on a GPU alone. */
void bench_result(const struct bench_rig *rig, const char *name_of_case, const char *metric,
                  double value, const char *unit, enum bench_target kind, double target);

uint32_t bench_lanes(uint32_t row_bytes);

/* The measurements. */
void bench_probe(struct bench_rig *rig);
void bench_ceilings(struct bench_rig *rig);
void bench_widths(struct bench_rig *rig);
void bench_fused(struct bench_rig *rig);
void bench_delivery(struct bench_rig *rig);
void bench_misses(struct bench_rig *rig);
void bench_updates(struct bench_rig *rig);
void bench_profile(struct bench_rig *rig);

#endif
